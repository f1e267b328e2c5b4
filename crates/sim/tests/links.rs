//! Racks on the packet-level network: links with a bandwidth, ports with buffers, two switches that
//! each host a seat.
//!
//! `CONCORD_LINK_SEEDS` sets another number of seeds for each protocol, `CONCORD_LINK_FIRST` the
//! first one.

#![allow(clippy::unwrap_used)]

use concord_core::{MS, SEC, US};
use concord_sim::{Effort, Fate, Fault, Links, PROTOCOLS, Plan, Totals, run, run_recorded, shrink};
use concord_sim::{Found, SwarmOptions, swarm_of};
use concord_wire::control::Protocol;

const SEEDS: u64 = 30;

/// A good day on links of a gigabit, without luck: what takes time is bytes.
fn rack(protocol: Protocol) -> Plan {
    let links = Links { mbits: 1_000, propagation_ns: 500, ..Links::default() };
    Plan { seed: 7, links, ..Plan::of(protocol) }
}

fn well(plan: &Plan) -> Totals {
    let outcome = run(plan);
    assert_eq!(outcome.violation, None);
    outcome.totals
}

/// Every protocol serves on links and a run is a function of its plan.
#[test]
fn every_protocol_on_links() {
    for protocol in PROTOCOLS {
        let plan = rack(protocol);
        let totals = well(&plan);
        assert!(totals.operations >= plan.operations as u64);
        assert_eq!((totals.with_links, totals.dropped_port), (1, 0));
        assert_eq!(run(&plan).digest, run(&plan).digest);
    }
}

#[test]
fn the_program_serves_reads_at_all_replicas_from_either_switch() {
    let mut plan = rack(Protocol::Chain);
    plan.links.both = true;
    let before = well(&plan);
    assert!(before.fast_reads > 50, "{}", before.fast_reads);
    // The standby is the second switch of the topology: it hosts a seat, too.
    let fault = Fault::ReplaceSwitch { standby: true, for_ns: 2 * SEC };
    let after = well(&Plan { linger_ns: 3 * SEC, ..plan.with_fault(300 * MS, fault) });
    assert!(after.fast_reads > 50, "{}", after.fast_reads);
    assert!(after.control.standbys_taken > 0, "the standby is taken");
}

/// Of a packet of the plan's rack: how long it is on its way, in ns.
fn on_the_way_ns(plan: &Plan, is_it: impl Fn(&str, &str) -> bool) -> Vec<(usize, u64)> {
    let (outcome, recording) = run_recorded(plan);
    assert_eq!(outcome.violation, None);
    let name = |node: usize| recording.nodes[node].to_string();
    let ways = recording.flights.iter().filter(|f| is_it(&name(f.from), &name(f.to)));
    ways.filter_map(|flight| match flight.fate {
        Fate::Arrives(at_ns) => Some((flight.bytes.len(), at_ns - flight.sent_ns)),
        Fate::Lost => None,
    })
    .collect()
}

/// A packet takes what its bytes take on each link and the pipeline.
#[test]
fn packet_time_on_links_and_pipeline() {
    let plan = rack(Protocol::Chain);
    let wire_ns = |bytes: usize| (bytes as u64 + 66) * 8;
    // To the switch: one link. Its pipeline is before its program.
    let ways = on_the_way_ns(&plan, |from, to| from.starts_with("client") && to == "switch");
    assert!(ways.len() > 100);
    let least = ways.iter().map(|(bytes, ns)| ns - wire_ns(*bytes)).min();
    assert_eq!(least, Some(500 + 400));
    // From neighbour to neighbour: two links, and it passes the switch.
    let ways =
        on_the_way_ns(&plan, |from, to| from.starts_with("replica") && to.starts_with("replica"));
    let least = ways.iter().map(|(bytes, ns)| ns - 2 * wire_ns(*bytes)).min();
    assert_eq!(least, Some(2 * 500 + 400));
}

/// Packets that find no room in a port are dropped and the history is right.
#[test]
fn full_ports_drop_and_the_history_is_right() {
    let mut plan = rack(Protocol::Chain);
    // Values of many packets over a link of 100 Mb/s whose ports hold two.
    (plan.long_values_percent, plan.sizes.value_bytes_max) = (50, 20_000);
    plan.links = Links { mbits: 100, queue_bytes: 4_000, ..plan.links };
    let (outcome, recording) = run_recorded(&plan);
    assert_eq!(outcome.violation, None);
    assert!(outcome.totals.dropped_port > 100, "{}", outcome.totals.dropped_port);
    // Each of them is lost in the recording, and nothing else is.
    let lost = recording.flights.iter().filter(|f| f.fate == Fate::Lost).count() as u64;
    let in_flight = lost - outcome.totals.dropped_port;
    assert!(in_flight < 100, "{in_flight} were on their way at the end");
}

/// A control plane that reads registers later has switch ids renewed in time.
#[test]
fn late_register_reads_renew_switch_ids_in_time() {
    let mut plan = rack(Protocol::Chain);
    (plan.bounds.counter_bits, plan.links.look_ns) = (7, 2 * MS);
    plan.operations = 2_000;
    let totals = well(&plan);
    assert!(totals.control.switch_ids_granted > 2, "{}", totals.control.switch_ids_granted);
    assert!(totals.fast_reads > 50, "{}", totals.fast_reads);
    let at_once = Plan { links: Links { look_ns: 0, ..plan.links }, ..plan.clone() };
    assert_ne!(run(&plan).digest, run(&at_once).digest);
}

#[test]
fn a_plan_without_links_is_the_same_whatever_their_settings() {
    let plan = Plan { seed: 7, ..Plan::of(Protocol::Vr) };
    let other = Links { mbits: 0, propagation_ns: US, queue_bytes: 2_000, ..Links::default() };
    assert_eq!(run(&plan).digest, run(&Plan { links: other, ..plan.clone() }).digest);
}

#[test]
fn seeds_on_links_are_linearizable() {
    let of_env = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let seeds = of_env("CONCORD_LINK_SEEDS").unwrap_or(SEEDS);
    let first_seed = of_env("CONCORD_LINK_FIRST").unwrap_or(1);
    let mut seen = Totals::default();
    for protocol in PROTOCOLS {
        let options = SwarmOptions {
            first_seed,
            seeds: Some(seeds),
            time: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            aim: concord_sim::Aim::default(),
            guards: concord_core::Guards::ALL,
        };
        let report = swarm_of(&options, |seed| Plan::draw_with_links(seed, protocol), |_| {});
        if let Some(found) = report.found {
            let effort = Effort { runs_max: 200, steps_max: 10_000_000 };
            let Found { plan, violation, .. } = shrink(&found, effort, |_| {}).found;
            println!("{}", plan.to_toml());
            panic!("{} seed {:#x}: {violation}", concord_sim::protocol_name(protocol), plan.seed);
        }
        seen.add(&report.totals);
    }
    println!("{seen}");
    assert_eq!(seen.with_links, seen.runs);
    assert!(seen.dropped_port > 0, "ports are never full");
}
