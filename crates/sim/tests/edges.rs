//! Guards that chance removes too seldom to be seen in the swarm: a directed run each, which finds
//! a violation without the guard, and none with it. Invariants and progress judge, and the history.

#![cfg(feature = "mutants")]

use concord_core::guard::{Guard, Guards};
use concord_core::{MS, Rng, SEC, US};
use concord_sim::{Fault, Node, Plan, Sizes, Timed, run};
use concord_wire::control::Protocol;

/// Most seeds until a removed guard is caught.
const SEEDS_MAX: u64 = 100;
/// Seeds that pass with all guards.
const SEEDS_SOUND: u64 = 20;
const DAY_MS: i64 = 24 * 3_600_000;

type Draw = fn(u64) -> Plan;

/// A small rack without faults; a third of the operations are writes.
fn plain(protocol: Protocol, replicas: usize, seed: u64) -> Plan {
    Plan { seed, replicas, operations: 400, ..Plan::of(protocol) }
}

fn with(plan: Plan, faults: Vec<(u64, Fault)>) -> Plan {
    let mut faults: Vec<Timed> =
        faults.into_iter().map(|(at_ns, fault)| Timed { at_ns, fault }).collect();
    faults.sort_by_key(|f| f.at_ns);
    Plan { faults, ..plan }
}

/// The second of two begins anew with a wall clock that is days ahead; then it is the only one.
/// Keys live for some seconds.
fn days_ahead(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let at = rng.between(20, 100) * MS;
    let later = at + rng.between(700, 1_000) * MS;
    let is_quorum = protocol.is_quorum();
    let plan = plain(protocol, if is_quorum { 3 } else { 2 }, seed);
    let sizes = Sizes { ttl_ms_max: 10 * DAY_MS as u64, ..plan.sizes };
    let node = Node::Replica(1);
    let by_ms = rng.between(12, 240) as i64 * DAY_MS / 24;
    let faults = vec![
        (at, Fault::ClockJump { node, by_ms }),
        (at + MS, Fault::Restart { replica: 1 }),
        (later, Fault::Kill { replica: 0 }),
    ];
    with(Plan { sizes, linger_ns: 2 * SEC, ..plan }, faults)
}

/// The leader's engine answers nothing for five seconds.
fn leader_hangs(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = plain(protocol, 3, seed);
    let plan = Plan { engine_ns: rng.between(1, 300) * US, linger_ns: 6 * SEC, ..plan };
    with(
        plan,
        vec![(rng.between(50, 300) * MS, Fault::StallEngine { replica: 0, for_ns: 5 * SEC })],
    )
}

/// Many reads of all keys while writes are at a slow engine. No record reaches the backup for a
/// while; then the primary dies, and what was written meanwhile never was.
fn slow_engine(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = plain(Protocol::PrimaryBackup, 2, seed);
    let sizes = Sizes { all_keys_permille: 300, ..plan.sizes };
    let at = rng.between(50, 200) * MS;
    let for_ns = rng.between(20, 100) * MS;
    let faults = vec![
        (at, Fault::LoseRecords { replica: 1, for_ns }),
        (at + for_ns - MS, Fault::Kill { replica: 0 }),
    ];
    let (engine_ns, think_ns) = (rng.between(50, 500) * US, MS);
    let plan = Plan { sizes, engine_ns, think_ns, keys: 3, writes_percent: 50, ..plan };
    with(Plan { linger_ns: SEC, ..plan }, faults)
}

/// Two neighbours do not reach each other for five seconds; everybody else reaches both.
fn neighbours_apart(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = plain(protocol, 3, seed);
    let one = rng.below(2) as usize;
    let fault = Fault::CutPair { one, other: one + 1, for_ns: 5 * SEC };
    let plan = Plan { linger_ns: 6 * SEC, ..plan };
    with(plan, vec![(rng.between(50, 300) * MS, fault)])
}

fn found(guards: Guards, draw: Draw) -> Option<u64> {
    (0..SEEDS_MAX).find(|seed| {
        let outcome = run(&Plan { guards, ..draw(*seed) });
        if let Some(violation) = &outcome.violation {
            println!("  {seed}: {}", violation.lines().next().unwrap_or_default());
        }
        outcome.violation.is_some()
    })
}

#[test]
fn guards_at_the_edges_are_caught_when_removed() {
    // An engine that is silent is given up, too: this makes up for a leader that does not step
    // down.
    let silence = Guards::without(Guard::EngineSilence);
    let runs: [(&str, Guards, Guard, Draw); 7] = [
        ("chain", Guards::ALL, Guard::LogClock, |seed| days_ahead(Protocol::Chain, seed)),
        ("VR", Guards::ALL, Guard::LogClock, |seed| days_ahead(Protocol::Vr, seed)),
        ("VR", silence, Guard::StepDown, |seed| leader_hangs(Protocol::Vr, seed)),
        ("NOPaxos", silence, Guard::StepDown, |seed| leader_hangs(Protocol::NoPaxos, seed)),
        ("primary-backup", Guards::ALL, Guard::AllKeysSubmitted, slow_engine),
        ("chain", Guards::ALL, Guard::CutPair, |seed| neighbours_apart(Protocol::Chain, seed)),
        ("CRAQ", Guards::ALL, Guard::CutPair, |seed| neighbours_apart(Protocol::Craq, seed)),
    ];
    let mut missed = Vec::new();
    for (name, base, guard, draw) in runs {
        for seed in 0..SEEDS_SOUND {
            let outcome = run(&Plan { guards: base, ..draw(seed) });
            assert_eq!(outcome.violation, None, "{name}, {guard:?}, seed {seed}");
        }
        match found(base.and_without(guard), draw) {
            Some(seed) => println!("{name} without {guard:?}: caught by run {}", seed + 1),
            None => missed.push((name, guard)),
        }
    }
    assert!(missed.is_empty(), "not caught in {SEEDS_MAX} runs: {missed:?}");
}
