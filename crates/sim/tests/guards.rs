//! A check that guards safety is itself checked: with the guard removed, the same swarm that passes
//! with it finds a violation. Printed: the median number of seeds over several starts.
//!
//! The invariants are off here, but for guards that say so: what is missed must be seen by a client,
//! or in replicas that differ at rest.
//!
//! The dirty set (with drop on full) and the last-committed check cover each other in read-ahead
//! protocols: a fast read that passes §8.2's check shows committed writes only, and a committed write
//! is at every replica. So the dirty set is shown where the paper says that it suffices by itself
//! (§6.2: "in an ideal network, where messages are processed in order"): without the last-committed
//! check, in an ordered network, the swarm passes; without the dirty set or drop on full as well, it
//! finds a violation.

use concord_core::guard::{Guard, Guards};
use concord_core::{MS, Rng, US};
use concord_sim::{Aim, Fault, Node, Plan, Service, SwarmOptions, Timed, run, swarm_of};
use concord_wire::control::Protocol;

const SEEDS_MAX: u64 = 1_000;

/// The guards that this swarm must miss, one at a time.
const ALONE: [Guard; 12] = [
    Guard::InOrderWrites,
    Guard::LastCommitted,
    Guard::Prefix,
    Guard::Lease,
    Guard::ClientTable,
    Guard::Incarnation,
    Guard::FirstCompletion,
    Guard::EpochAgreement,
    Guard::EpochSwap,
    Guard::LeaseClock,
    Guard::Whole,
    Guard::Floor,
];

/// Starts of which the median is taken; `CONCORD_GUARD_STARTS` sets another number.
fn starts() -> u64 {
    std::env::var("CONCORD_GUARD_STARTS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn median_seeds(name: &str, guards: Guards, draw: fn(u64) -> Plan) -> u64 {
    let began = std::time::Instant::now();
    let mut found: Vec<u64> =
        (1..=starts()).map(|s| seeds_until(s * 1_000_000, guards, draw)).collect();
    found.sort_unstable();
    let median = found[found.len() / 2];
    println!("without {name}: median {median} seeds over {found:?}, {:?}", began.elapsed());
    median
}

/// How many seeds from `first_seed` on until one fails; `u64::MAX` if none does.
fn seeds_until(first_seed: u64, guards: Guards, draw: fn(u64) -> Plan) -> u64 {
    let options = SwarmOptions {
        first_seed,
        seeds: Some(SEEDS_MAX),
        time: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        aim: Aim::default(),
        guards,
    };
    let draw = |seed| Plan { guards, invariants: std::env::var_os("INV").is_some(), ..draw(seed) };
    let found = swarm_of(&options, draw, |_| {}).found;
    if let Some(f) = &found {
        println!("  {:#x}: {}", f.plan.seed, f.violation.lines().next().unwrap_or_default());
    }
    found.map_or(u64::MAX, |found| found.plan.seed - first_seed + 1)
}

/// A plan of a protocol that the switch may help.
fn harmonia(seed: u64) -> Plan {
    let protocol = [Protocol::PrimaryBackup, Protocol::Chain][(seed % 2) as usize];
    Plan::draw_aimed(seed, Aim { protocol: Some(protocol), ..Aim::default() })
}

/// Fixed latency, nothing lost, small tables, and members that never fail.
fn ordered(seed: u64) -> Plan {
    let plan = harmonia(seed);
    Plan {
        accelerated: true,
        replicas: plan.replicas.max(3),
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        latency_ns: 50 * US,
        peer_latency_ns: plan.peer_latency_ns.max(500 * US),
        service: Service::default(),
        think_ns: plan.think_ns.min(MS),
        table_stages: 1,
        slots: 1 << (seed % 4),
        faults: Vec::new(),
        ..plan
    }
}

#[test]
fn every_guard_is_missed_when_removed() {
    for guard in ALONE {
        if std::env::var("ONLY").is_ok_and(|o| !o.contains(&format!("{guard:?}"))) {
            continue;
        }
        let _ = median_seeds(&format!("{guard:?}"), Guards::without(guard), harmonia);
    }
}

#[test]
fn in_an_ordered_network_the_dirty_set_alone_suffices_and_is_missed() {
    let base = Guards::without(Guard::LastCommitted);
    for seed in 0..500 {
        let outcome = run(&Plan { guards: base, ..ordered(seed) });
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
    for guard in [Guard::DirtySet, Guard::DropOnFull] {
        let median = median_seeds(&format!("{guard:?}"), base.and_without(guard), ordered);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds without {guard:?}");
    }
}

/// CRAQ with a head, at least one in the middle, and a tail.
fn craq(seed: u64) -> Plan {
    let plan = Plan::draw_aimed(seed, Aim { protocol: Some(Protocol::Craq), ..Aim::default() });
    Plan { replicas: plan.replicas.max(3), ..plan }
}

/// The tail and the one before it are cut off together from the others and the controller, and the
/// switch does not hear of it (trap T25).
fn craq_with_a_detached_tail(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = craq(seed);
    let (at_ns, for_ns) = (rng.between(50, 500) * MS, rng.between(800, 2_000) * MS);
    let (left, right) = (0..plan.replicas - 2, plan.replicas - 2..plan.replicas);
    let mut cuts = vec![(Node::Controller, Node::Switch)];
    for detached in right.map(Node::Replica) {
        for other in left.clone().map(Node::Replica).chain([Node::Controller]) {
            cuts.extend([(detached, other), (other, detached)]);
        }
    }
    let cut = |(from, to)| Timed { at_ns, fault: Fault::Cut { from, to, for_ns } };
    Plan { faults: cuts.into_iter().map(cut).collect(), ..plan }
}

/// One in the middle is cut off, and asks the tail before it hears that it was removed.
fn craq_with_a_stranger(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let at_ns = rng.between(50, 500) * MS;
    let for_ns = rng.between(700, 1_500) * MS;
    let fault = Fault::Isolate { replica: 1, for_ns, stale_switch: true };
    Plan { faults: vec![Timed { at_ns, fault }], ..craq(seed) }
}

#[test]
fn every_guard_of_craq_is_missed_when_removed() {
    let aimed: [(Guard, fn(u64) -> Plan); 3] = [
        (Guard::AskTail, craq),
        (Guard::VersionLease, craq_with_a_detached_tail),
        (Guard::VersionEpoch, craq_with_a_stranger),
    ];
    for (guard, draw) in aimed {
        for seed in 0..100 {
            assert_eq!(run(&draw(seed)).violation, None, "with {guard:?}, seed {seed}");
        }
        let median = median_seeds(&format!("CRAQ {guard:?}"), Guards::without(guard), draw);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds of CRAQ without {guard:?}");
    }
    for guard in [Guard::Lease, Guard::ClientTable, Guard::Incarnation] {
        let median = median_seeds(&format!("CRAQ {guard:?}"), Guards::without(guard), craq);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds of CRAQ without {guard:?}");
    }
}
