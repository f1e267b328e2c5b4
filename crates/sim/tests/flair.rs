//! FLAIR over VR and Raft, and what it is compared with, follower leases over Raft: racks from
//! seeds, with the faults that every swarm draws.

use std::thread;

use concord_core::Guards;
#[cfg(feature = "mutants")]
use concord_core::MS;
use concord_sim::load::SlowReads;
use concord_sim::{Aim, Plan, SwarmOptions, swarm_of};
#[cfg(feature = "mutants")]
use concord_sim::{Fault, Timed, run};
use concord_wire::control::{Program, Protocol};

/// Seeds; `CONCORD_SEEDS` sets another number, `CONCORD_FIRST_SEED` where they begin.
const SEEDS: u64 = 500;
/// Of what FLAIR is compared with.
const OTHERS: u64 = 150;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn over(protocol: Protocol, seed: u64) -> Plan {
    let (protocol, program) = (Some(protocol), Some(Program::Flair));
    Plan::draw_aimed(seed, Aim { protocol, program, ..Aim::default() })
}

fn drawn(seed: u64) -> Plan {
    over(Protocol::Vr, seed)
}

#[test]
fn every_fixed_seed_is_linearizable_and_makes_progress() {
    every_seed_holds(drawn, SEEDS);
}

/// Every fixed seed over raft is linearizable and makes progress.
#[test]
fn fixed_seeds_over_raft() {
    every_seed_holds(|seed| over(Protocol::Raft, seed), SEEDS);
}

/// Followers answer by leases.
fn leased(seed: u64) -> Plan {
    let protocol = Some(Protocol::Raft);
    Plan::draw_aimed(
        seed,
        Aim { protocol, reads: Some(SlowReads::FollowerLease), ..Aim::default() },
    )
}

/// Any replica answers by a quorum's word.
fn by_quorum(seed: u64) -> Plan {
    let protocol = Some(Protocol::Raft);
    Plan::draw_aimed(seed, Aim { protocol, reads: Some(SlowReads::Quorum), ..Aim::default() })
}

/// Every fixed seed with quorum reads is linearizable and makes progress.
#[test]
fn fixed_seeds_with_quorum_reads() {
    every_seed_holds(by_quorum, OTHERS);
}

/// Every fixed seed with follower leases is linearizable and makes progress.
#[test]
fn fixed_seeds_with_follower_leases() {
    every_seed_holds(leased, OTHERS);
}

fn every_seed_holds(drawn: fn(u64) -> Plan, seeds: u64) {
    let options = SwarmOptions {
        first_seed: setting("CONCORD_FIRST_SEED", 0),
        seeds: Some(setting("CONCORD_SEEDS", seeds)),
        time: None,
        threads: thread::available_parallelism().map_or(1, usize::from),
        aim: Aim::default(),
        guards: Guards::ALL,
    };
    let report = swarm_of(&options, drawn, |_| {});
    println!("{}", report.totals);
    if let Some(found) = report.found {
        panic!("seed {:#x}: {}", found.plan.seed, found.violation);
    }
    assert!(report.totals.replicas.reads_fast > 10 * report.progress.seeds);
}

/// Clients and packets being plain, as where VR's guards are removed: few keys, so that groups are
/// often unstable, and writes of all keys.
#[cfg(feature = "mutants")]
fn plain(seed: u64) -> Plan {
    let plain = Plan::default();
    Plan {
        gateways: plain.gateways,
        sizes: plain.sizes,
        bounds: plain.bounds,
        packets: plain.packets,
        invariants: false,
        ..drawn(seed)
    }
}

/// A leader and a follower are apart from each other, and each half has a switch of its own: the
/// one that was, and the one that stood by.
#[cfg(feature = "mutants")]
fn split(seed: u64) -> Plan {
    let mut rng = concord_core::Rng::new(seed);
    let (replica, for_ns) = (rng.between(1, 2) as usize, rng.between(500, 1_500) * MS);
    let fault = Fault::Split { replica, for_ns };
    let faults = vec![Timed { at_ns: rng.between(100, 300) * MS, fault }];
    Plan { replicas: 3, faults, ..plain(seed) }
}

#[cfg(feature = "mutants")]
type Draw = fn(u64) -> Plan;

/// How many seeds until one fails, from each of several starts.
#[cfg(feature = "mutants")]
fn seeds_until(guards: Guards, draw: Draw) -> Vec<Option<u64>> {
    let starts = setting("CONCORD_GUARD_STARTS", 1);
    let until = |first_seed: u64| {
        let options = SwarmOptions {
            first_seed,
            seeds: Some(1_000),
            time: None,
            threads: thread::available_parallelism().map_or(1, usize::from),
            aim: Aim::default(),
            guards,
        };
        let found = swarm_of(&options, |seed| Plan { guards, ..draw(seed) }, |_| {}).found?;
        println!(
            "  {:#x}: {}",
            found.plan.seed,
            found.violation.lines().next().unwrap_or_default()
        );
        Some(found.plan.seed - first_seed + 1)
    };
    (1..=starts).map(|start| until(start * 1_000_000)).collect()
}

/// What is of another session is shown by the model of the switch (`flair_model` in
/// `concord-switch`), where replicas believe all that they hear.
#[cfg(feature = "mutants")]
#[test]
fn every_guard_is_caught_when_removed() {
    use concord_core::Guard;
    // `Guard::View` is VR's, and caught there (`guards.rs`).
    let all: [(Guard, Draw); 5] = [
        (Guard::InOrderWrites, plain),
        (Guard::ClientTable, plain),
        (Guard::UnstableGroup, plain),
        (Guard::AllKeysGroup, plain),
        (Guard::CrashVector, plain),
    ];
    let mut missed = Vec::new();
    for (guard, draw) in all {
        let found = seeds_until(Guards::without(guard), draw);
        println!("without {guard:?}: {found:?}");
        if found.iter().any(Option::is_none) {
            missed.push(guard);
        }
    }
    // A follower that lacks what it is asked for passes the read on, so a bitmap that names too
    // many does no harm; nor does one that is right where a follower does not look.
    let base = Guards::without(Guard::Visibility);
    for seed in 0..200 {
        assert_eq!(run(&Plan { guards: base, ..plain(seed) }).violation, None, "seed {seed}");
    }
    let found = seeds_until(base.and_without(Guard::MatchedPrefix), plain);
    println!("without Visibility and MatchedPrefix: {found:?}");
    if found.iter().any(Option::is_none) {
        missed.push(Guard::MatchedPrefix);
    }
    // A switch that is cut off with a follower steps down sooner than that one's lease ends.
    let base = Guards::without(Guard::SwitchStepDown);
    for seed in 0..100 {
        assert_eq!(run(&Plan { guards: base, ..split(seed) }).violation, None, "seed {seed}");
    }
    let found = seeds_until(base.and_without(Guard::Lease), split);
    println!("without SwitchStepDown and Lease: {found:?}");
    if found.iter().any(Option::is_none) {
        missed.push(Guard::Lease);
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
