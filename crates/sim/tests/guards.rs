//! A check that guards safety is itself checked: with the guard removed, the same swarm that passes
//! with it finds a violation. Printed: the median number of seeds over several starts.
//!
//! The swarm is `Plan::draw`'s, as it ships: histories, invariants, rest. With
//! CONCORD_GUARD_HISTORIES=1 the invariants are off, so that a client must see what is missed, or
//! replicas must differ at rest.
//!
//! The dirty set (with drop on full) and the last-committed check cover each other in read-ahead
//! protocols: a fast read that passes §8.2's check shows committed writes only, and a committed write
//! is at every replica. So the dirty set is shown where the paper says that it suffices by itself
//! (§6.2: "in an ideal network, where messages are processed in order"): without the last-committed
//! check, in an ordered network, the swarm passes; without the dirty set or drop on full as well, it
//! finds a violation.
//!
//! Nor is the floor of a copy missed alone: what a joining replica copied and others have not is
//! uncommitted, and so its object is in the dirty set.

use std::time::Instant;

use concord_core::guard::{Guard, Guards};
use concord_core::{MS, US};
use concord_sim::{Aim, Plan, Service, SwarmOptions, run, swarm_of};

const SEEDS_MAX: u64 = 1_000;

/// The guards that this swarm must miss, one at a time.
const ALONE: [Guard; 11] = [
    Guard::InOrderWrites,
    Guard::LastCommitted,
    Guard::Prefix,
    Guard::Lease,
    Guard::ClientTable,
    Guard::FirstCompletion,
    Guard::Incarnation,
    Guard::EpochAgreement,
    Guard::EpochSwap,
    Guard::LeaseClock,
    Guard::Whole,
];

/// Starts of which the median is taken; `CONCORD_GUARD_STARTS` sets another number.
fn starts() -> u64 {
    std::env::var("CONCORD_GUARD_STARTS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn median_seeds(name: &str, guards: Guards, draw: fn(u64) -> Plan) -> u64 {
    let began = Instant::now();
    let mut found: Vec<u64> =
        (1..=starts()).map(|s| seeds_until(s * 1_000_000, guards, draw)).collect();
    found.sort_unstable();
    let median = found[found.len() / 2];
    let seconds = began.elapsed().as_secs_f64();
    println!("without {name}: median {median} seeds over {found:?}, {seconds:.1} s");
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
    let invariants = std::env::var_os("CONCORD_GUARD_HISTORIES").is_none();
    let draw = |seed| Plan { guards, invariants, ..draw(seed) };
    let Some(found) = swarm_of(&options, draw, |_| {}).found else { return u64::MAX };
    println!("  {:#x}: {}", found.plan.seed, found.violation.lines().next().unwrap_or_default());
    found.plan.seed - first_seed + 1
}

/// Fixed latency, nothing lost, small tables, and members that never fail; clients judge.
fn ordered(seed: u64) -> Plan {
    let plan = Plan::draw(seed);
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
        let median = median_seeds(&format!("{guard:?}"), Guards::without(guard), Plan::draw);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds without {guard:?}");
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
