//! Harmony over simulated networks: messages with the shipped hosts and switches, and the bound of
//! every port, which each run asserts.

use super::*;
use crate::engine::{MS, US};
use crate::net::{
    Experiment, LeafSpine, LinkSpec, Outcome as Ran, PlannedFlow, QueueSpec, Routing, Slowdowns,
};

const BITS_PER_S: u64 = 100_000_000_000;

fn link(bits_per_s: u64) -> LinkSpec {
    LinkSpec { bits_per_s, propagation_ps: 200 * NS, queue_bytes_max: 4_000_000 }
}

/// Four racks of four hosts, and two spines, whose links have the given bandwidth.
fn leaf_spine(spine_bits_per_s: u64) -> Topology {
    Topology::leaf_spine(&LeafSpine {
        tors: 4,
        hosts_per_tor: 4,
        spines: 2,
        host_link: link(BITS_PER_S),
        spine_link: link(spine_bits_per_s),
        pipeline_ps: 450 * NS,
    })
}

fn experiment(topology: Topology, flows: Vec<PlannedFlow>) -> Experiment {
    Experiment {
        topology,
        routing: Routing::Ecmp,
        queues: QueueSpec::default(),
        flows,
        triggers: Vec::new(),
        warm_up: Time(0),
        measure_until: Time(100 * MS),
        until: Time(100 * MS),
        watch: Some(0),
        capture: Vec::new(),
        seed: 1,
    }
}

fn flow(from: u32, to: u32, bytes: u64, at: u64) -> PlannedFlow {
    let spec = FlowSpec { from: HostIndex(from), to: HostIndex(to), bytes };
    PlannedFlow { spec, at: Time(at), after: None }
}

/// Each host sends one message to each other host, one after the other.
fn all_to_all(hosts: u32, bytes: u64, apart_ps: u64) -> Vec<PlannedFlow> {
    let rounds = (1..hosts).flat_map(|away| {
        (0..hosts).map(move |from| {
            flow(from, (from + away) % hosts, bytes, u64::from(away - 1) * apart_ps)
        })
    });
    rounds.collect()
}

fn run(experiment: &Experiment, config: &HarmonyConfig) -> (Harmony, Ran) {
    let mut harmony = Harmony::new(&experiment.topology, config).unwrap();
    let ran = experiment.run(&mut harmony).unwrap();
    (harmony, ran)
}

fn count(ran: &Ran, name: &str) -> u64 {
    ran.transport.iter().find(|(own, _)| *own == name).unwrap().1
}

/// A message without competition gets all slots, except for its last bandwidth-delay product, for
/// which it has only its first slot (§3.2): a large part of 512 KB. Without further slots it takes
/// K times its ideal time.
#[test]
fn message_alone_gets_all_slots() {
    let alone = experiment(leaf_spine(2 * BITS_PER_S), vec![flow(0, 15, 512 << 10, 0)]);
    let (harmony, ran) = run(&alone, &HarmonyConfig::default());
    let slowdown = Slowdowns::of(&alone, &ran, 0..=u64::MAX).max;
    assert!((1.0..2.0).contains(&slowdown), "{slowdown}");
    let way = harmony.way(0).unwrap();
    assert_eq!((way.hops.len(), way.hops[0].0, way.hops[2].0), (3, NodeIndex(16), NodeIndex(19)));
    assert!(way.reservations >= 8, "{way:?}");
    let one = HarmonyConfig { extra_bytes: Some(0), ..HarmonyConfig::default() };
    let slowdown = Slowdowns::of(&alone, &run(&alone, &one).1, 0..=u64::MAX).max;
    assert!((7.0..9.5).contains(&slowdown), "{slowdown}");
}

/// All messages arrive, by reservations alone, and nothing is dropped; the run asserts the bounds.
fn all_arrive(experiment: &Experiment, config: &HarmonyConfig) {
    let (harmony, ran) = run(experiment, config);
    let counts = &ran.transport;
    assert_eq!(ran.unfinished(), 0, "{counts:?}");
    assert_eq!(ran.network.dropped_port, 0);
    for never in ["rejected messages", "failed messages", "data without a reservation at switches"]
    {
        assert_eq!(count(&ran, never), 0, "{counts:?}");
    }
    let kept = ran.kept.unwrap();
    let (most, bound) = kept.most();
    println!("{most} bytes waited, bound {bound}, paper {}: {counts:?}", kept.promise.paper_bytes);
    assert!(most > 0 && most <= bound);
    assert!(harmony.bounds().waiting_bytes.iter().any(|bound| *bound < u64::MAX));
}

/// A leaf-spine and a fat tree with several paths (trap H7: links of two access rates have 2 K
/// virtual links), with both ways to choose an uplink (trap H8).
#[test]
fn all_to_all_arrives_over_several_tiers() {
    let config = HarmonyConfig { admission_ps: 2 * MS, ..HarmonyConfig::default() };
    let hash = HarmonyConfig { choice: Choice::Hash, ..config };
    for config in [config, hash] {
        let spine = experiment(leaf_spine(2 * BITS_PER_S), all_to_all(16, 64 << 10, 8 * US));
        all_arrive(&spine, &config);
        let tree = Topology::fat_tree(4, link(BITS_PER_S), 450 * NS);
        all_arrive(&experiment(tree, all_to_all(16, 32 << 10, 4 * US)), &config);
    }
}

/// An incast of more than δ_admission x B is rejected, not slowed (trap H9); after it all slots and
/// virtual links are free.
#[test]
fn incast_above_admission_is_rejected() {
    let flows = (1..16).map(|from| flow(from, 0, 256 << 10, 0)).collect();
    let incast = experiment(leaf_spine(2 * BITS_PER_S), flows);
    let (harmony, ran) = run(&incast, &HarmonyConfig::default());
    let counts = (count(&ran, "complete messages"), count(&ran, "rejected messages"));
    assert_eq!(counts.0 + counts.1, 15, "{counts:?}");
    assert!(counts.0 >= 4 && counts.1 >= 2, "{counts:?}");
    assert_eq!((ran.rejected, ran.unfinished() as u64), (Some(counts.1), counts.1));
    assert_eq!(count(&ran, "failed messages"), 0);
    assert!(harmony.is_at_rest());
}

/// Equal experiments give equal runs.
#[test]
fn run_of_harmony_replays() {
    let all = experiment(leaf_spine(BITS_PER_S), all_to_all(16, 9_000, US));
    let digests = [0, 1].map(|_| run(&all, &HarmonyConfig::default()).1.digest);
    assert_eq!(digests[0], digests[1]);
}

/// The bound at the last of h switches is that of trap H1, 2^(h-1) (K-1) p, less the effect of the
/// headroom, plus that of packets of lower classes.
#[test]
fn h1_bound_doubles_with_each_switch() {
    let config = HarmonyConfig { headroom_percent: 0, ..HarmonyConfig::default() };
    for (topology, hops) in [
        (Topology::single_rack(4, link(BITS_PER_S), 450 * NS), 1),
        (leaf_spine(BITS_PER_S), 3),
        (Topology::fat_tree(4, link(BITS_PER_S), 450 * NS), 5),
    ] {
        let harmony = Harmony::new(&topology, &config).unwrap();
        let (p, bounds) = (u64::from(config.packet_bytes()), harmony.bounds());
        let most = bounds.waiting_bytes.iter().filter(|b| **b < u64::MAX).max().unwrap() / p;
        let formula = (1 << (hops - 1)) * 7;
        let lower = (1 << hops) + 1;
        println!("{hops} switches: {most} packets, {formula} without lower classes");
        assert!((formula..=formula + lower).contains(&most), "{hops}: {most}, {formula}");
        assert_eq!(bounds.paper_bytes, hops * 7 * p);
    }
}

/// Trap H2: if a virtual link is reused at once, `complete`s need room beside full packets, so that
/// a phase is longer.
#[test]
fn h2_phases_leave_room_for_completes() {
    let near = LinkSpec { propagation_ps: 0, ..link(BITS_PER_S) };
    let config = HarmonyConfig::default();
    let phase_ps = |link| {
        let rack = Topology::single_rack(4, link, 0);
        Harmony::new(&rack, &config).unwrap().bounds().phase_ps
    };
    let (p, c) = (u64::from(config.packet_bytes()), u64::from(config.header_bytes));
    assert!(phase_ps(near) >= (p + c) * 80, "{}", phase_ps(near));
    let far = LinkSpec { propagation_ps: US, ..near };
    assert_eq!(phase_ps(far), (p * 103).div_ceil(100) * 80 / NS * NS + NS);
}

/// Impossible networks are refused with one line.
#[test]
fn networks_without_a_bound_are_refused() {
    let refused = |topology: &Topology, config: &HarmonyConfig| {
        Harmony::new(topology, config).map(|_| ()).unwrap_err().to_string()
    };
    let config = HarmonyConfig::default();
    let mut twice = Topology::single_rack(2, link(BITS_PER_S), 0);
    let other = twice.add_switch(0);
    twice.connect(NodeIndex(2), other, link(BITS_PER_S));
    twice.connect(NodeIndex(2), other, link(BITS_PER_S));
    assert!(refused(&twice, &config).contains("two links lead to the same switch"));
    let slow = leaf_spine(BITS_PER_S / 10);
    assert!(refused(&slow, &config).contains("less than a slot's bandwidth"));
    let plan = HarmonyPlan::new(&leaf_spine(BITS_PER_S), &config).unwrap();
    let shared = QueueSpec { shared_bytes_max: Some(100_000), ..QueueSpec::default() };
    let why = plan.check_buffers(&leaf_spine(BITS_PER_S), &shared).unwrap_err().to_string();
    assert!(why.contains("give fewer slots, or more room"), "{why}");
    // A ring of three switches, each with a host: a message waits for another in both directions.
    let mut ring = Topology::new(5);
    let switches: Vec<_> = (0..5).map(|_| ring.add_switch(0)).collect();
    for place in 0..5 {
        ring.connect(NodeIndex(place as u32), switches[place], link(BITS_PER_S));
        ring.connect(switches[place], switches[(place + 1) % 5], link(BITS_PER_S));
    }
    assert!(refused(&ring, &config).contains("circles"));
}
