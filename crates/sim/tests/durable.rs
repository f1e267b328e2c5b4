//! Replicas with disks: power cuts of one and of all, torn writes, failed syncs (trap T7). Each
//! seed has them.
//!
//! `CONCORD_DISK_SEEDS` sets another number of seeds, `CONCORD_DISK_FIRST` the first one.

#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use concord_core::guard::Guards;
use concord_core::{MS, US};
use concord_sim::{
    Aim, Disks, Effort, Plan, SwarmOptions, SwarmReport, run, run_with_power_cut, shrink, swarm_of,
};
use concord_wire::control::Protocol;

const PROTOCOLS: [Protocol; 5] =
    [Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq, Protocol::Vr, Protocol::NoPaxos];
const SEEDS: u64 = 100;

fn with_disks(seed: u64) -> Plan {
    Plan::draw_with_disks(seed, PROTOCOLS[(seed % 5) as usize])
}

fn seeds_of(first_seed: u64, seeds: u64, guards: Guards) -> SwarmReport {
    let options = SwarmOptions {
        first_seed,
        seeds: Some(seeds),
        time: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        aim: Aim::default(),
        guards,
    };
    swarm_of(&options, |seed| Plan { guards, ..with_disks(seed) }, |_| {})
}

/// At least as many seeds as each of the other protocols has.
#[test]
fn t7_raft_loses_nothing_by_power_cuts() {
    let setting = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let first = setting("CONCORD_DISK_FIRST").unwrap_or(1);
    let seeds = setting("CONCORD_DISK_SEEDS").map_or(40, |all| all / PROTOCOLS.len() as u64);
    for seed in first..first + seeds {
        let outcome = run(&Plan::draw_with_disks(seed, Protocol::Raft));
        assert_eq!(outcome.violation, None, "seed {seed:#x}");
    }
}

#[test]
fn t7_nothing_that_was_acknowledged_is_lost_by_power_cuts() {
    let seeds = std::env::var("CONCORD_DISK_SEEDS").ok().and_then(|s| s.parse().ok());
    let first = std::env::var("CONCORD_DISK_FIRST").ok().and_then(|s| s.parse().ok());
    let report = seeds_of(first.unwrap_or(1), seeds.unwrap_or(SEEDS), Guards::ALL);
    if let Some(found) = report.found {
        let effort = Effort { runs_max: 200, steps_max: 10_000_000 };
        let found = shrink(&found, effort, |_| {}).found;
        println!("{}", found.plan.to_toml());
        panic!("seed {:#x}: {}", found.plan.seed, found.violation);
    }
    println!("{}", report.totals);
    assert!(report.totals.restored > seeds.unwrap_or(SEEDS) / 2, "runs are thin");
}

/// The power went while a snapshot was made of a state without a record: it counted as the state's
/// beginning, never to be whole.
#[test]
fn bug_19_17_incomplete_empty_snapshot_is_no_beginning() {
    let outcome = run(&with_disks(2_291_815));
    assert_eq!(outcome.violation, None);
}

/// A head that lacked a record got it from one member, and heard of another one later that this one
/// has it in a copy only: it left, with its log.
#[test]
fn bug_19_18_head_with_another_members_record_stays() {
    let outcome = run(&with_disks(4_301_071));
    assert_eq!(outcome.violation, None);
}

/// The power went before a group had begun, which was made anew then, and went again before its
/// first record: all that its members had promised was called gone with what they had given up, and
/// they waited for each other for ever.
#[test]
fn bug_19_20_recordless_refounded_group_survives_a_power_cut() {
    let outcome = run(&with_disks(10_054_069));
    assert_eq!(outcome.violation, None);
}

/// A small run, and the same with a cut of all power after each event of it: how many, and what is
/// wrong with one of them.
fn cut_everywhere(protocol: Protocol, seed: u64, guards: Guards) -> (u64, Option<String>) {
    let plan = Plan {
        seed,
        guards,
        clients: 1,
        connections: 3,
        operations: 60,
        keys: 2,
        writes_percent: 60,
        think_ns: MS,
        copy_bytes: 200,
        disks: Disks { sync_ns: 300 * US, snapshot_bytes: 1_500, ..Disks::default() },
        ..Plan::of(protocol)
    };
    let (next, wrong) = (AtomicU64::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let events = next.fetch_add(1, Ordering::Relaxed);
                    let Some(outcome) = run_with_power_cut(&plan, events, 20 * MS) else { return };
                    if let Some(text) = outcome.violation {
                        let line = format!("{protocol:?}, after {events} events: {text}");
                        wrong.lock().unwrap().get_or_insert(line);
                        return;
                    }
                }
            });
        }
    });
    (next.into_inner(), wrong.into_inner().unwrap())
}

#[test]
fn t7_the_power_of_all_goes_at_any_point() {
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Raft]) {
        let mut all = 0;
        for seed in 1..=2 {
            let (events, wrong) = cut_everywhere(protocol, seed, Guards::ALL);
            assert_eq!(wrong, None);
            all += events;
        }
        println!("{protocol:?}: {all} points");
        assert!(all > 1_000, "{all}: runs are thin");
    }
}

/// Primary-backup is not among these: primary and backups all wait for the same record, and whoever
/// did brings it back.
#[cfg(feature = "mutants")]
#[test]
fn what_is_not_durable_is_caught_by_a_cut_at_some_point() {
    use concord_core::guard::Guard;
    let of = [
        (Guard::DurableCommit, Protocol::Chain),
        (Guard::DurableBefore, Protocol::Chain),
        (Guard::DurableCommit, Protocol::Vr),
        (Guard::DurableAck, Protocol::Vr),
    ];
    let mut survived = vec![];
    for (guard, protocol) in of {
        let mut found =
            (1..=10).filter_map(|seed| cut_everywhere(protocol, seed, Guards::without(guard)).1);
        let line = found.next().and_then(|text| text.lines().next().map(str::to_owned));
        println!("without {guard:?}: {line:?}");
        survived.extend(line.is_none().then_some((guard, protocol)));
    }
    assert!(survived.is_empty(), "{survived:?} survive");
}

/// docs/internals/bugs.md: defects that the swarm found, and what its check took for one.
#[test]
fn racks_that_were_wrong_once_are_not() {
    let plans = [
        ("15.sim5", include_str!("plans/lags-behind-a-snapshot.toml")),
        ("15.sim6", include_str!("plans/restarts-in-a-pause.toml")),
        ("15.sim7", include_str!("plans/executes-after-a-commit.toml")),
        ("15.30", include_str!("plans/does-not-read-a-write.toml")),
        ("15.31", include_str!("plans/finds-no-slot.toml")),
        ("15.32", include_str!("plans/stamps-late.toml")),
        ("15.33", include_str!("plans/is-late-in-an-epoch.toml")),
        ("15.34", include_str!("plans/has-nobody-to-ask.toml")),
        ("15.35", include_str!("plans/is-told-an-old-time.toml")),
        ("16.10", include_str!("plans/loses-signs-of-life-before-a-cut.toml")),
        ("16.23", include_str!("plans/acknowledges-before-a-disk.toml")),
        ("15.sim12", include_str!("plans/comes-back-with-more.toml")),
        ("15.sim13", include_str!("plans/is-left-alone-while-it-stands-still.toml")),
        ("19.1", include_str!("plans/returns-to-an-old-state.toml")),
        ("19.2", include_str!("plans/follows-a-broken-copy.toml")),
        ("19.4", include_str!("plans/comes-back-to-an-older-state.toml")),
        ("19.5", include_str!("plans/mixes-keys-in-a-snapshot.toml")),
        ("19.6", include_str!("plans/goes-before-it-began.toml")),
        ("19.3", include_str!("plans/loses-all-power-in-a-recovery.toml")),
        ("18.56", include_str!("plans/begins-a-copy-anew.toml")),
        ("18.65", include_str!("plans/answers-a-registration-again.toml")),
        ("19.25", include_str!("plans/outlives-the-lost-state.toml")),
        ("19.sim4", include_str!("plans/hangs-within-a-hang.toml")),
        ("20.10", include_str!("plans/comes-back-to-its-term.toml")),
        ("20.11", include_str!("plans/waits-for-one-that-does-not-vote.toml")),
        ("20.11", include_str!("plans/waits-for-one-that-left.toml")),
        ("19.sim3", include_str!("plans/outlives-its-time-beside-hung-disks.toml")),
        ("22.7a", include_str!("plans/waits-for-pieces-that-are-gone.toml")),
        ("19.24", include_str!("plans/begins-views-with-writes-to-one.toml")),
        ("19.26", include_str!("plans/waits-in-a-view-after-a-hang.toml")),
        ("19.27", include_str!("plans/waits-in-a-term-after-a-hang.toml")),
        ("19.28", include_str!("plans/cuts-power-in-an-empty-snapshot.toml")),
        ("19.29", include_str!("plans/deposes-whom-others-elected.toml")),
        ("19.sim6", include_str!("plans/numbers-end-in-a-calm.toml")),
        ("19.sim7", include_str!("plans/counts-keys-in-an-hour.toml")),
        ("19.sim7", include_str!("plans/counts-keys-beside-refusals.toml")),
        ("19.sim5", include_str!("plans/asks-for-digests-at-rest.toml")),
        ("22.sim1", include_str!("plans/works-beside-a-stalled-engine.toml")),
    ];
    for (bug, plan) in plans {
        assert_eq!(run(&Plan::from_toml(plan).unwrap()).violation, None, "{bug}");
    }
}

/// The guards of what is durable before what, one removed at a time. The others of disks are shown
/// by tests of their machines: `t4_*` in `control/src/tests/returned.rs`,
/// `protocols/tests/durable.rs` and `protocols/src/quorum/tests/disk.rs`.
#[cfg(feature = "mutants")]
#[test]
fn every_guard_of_disks_is_caught_when_removed() {
    use concord_core::guard::Guard;
    const SEEDS_MAX: u64 = 1_000;
    let guards = [
        Guard::DurableCommit,
        Guard::DurableBefore,
        Guard::DurableAck,
        Guard::DurableReads,
        Guard::DurableEpoch,
        Guard::JournalRoom,
        Guard::HeardDurable,
    ];
    let one = std::env::var("CONCORD_GUARD").ok();
    let mut survived = vec![];
    for guard in guards {
        if one.as_ref().is_some_and(|one| *one != format!("{guard:?}")) {
            continue;
        }
        let report = seeds_of(1, SEEDS_MAX, Guards::without(guard));
        match report.found {
            Some(found) => println!(
                "without {guard:?}: seed {:#x}: {}",
                found.plan.seed,
                found.violation.lines().next().unwrap_or_default()
            ),
            None => survived.push(guard),
        }
    }
    assert!(survived.is_empty(), "{survived:?} survived {SEEDS_MAX} seeds");
}

/// A directory that was copied while its process ran is put back, in some seeds while the power of
/// all others goes as well: what was acknowledged since the copy is not lost.
/// `CONCORD_PUT_BACK_SEEDS` sets how many seeds of a protocol.
#[test]
fn bug_22_2_live_copies_that_are_put_back_lose_nothing() {
    let seeds = std::env::var("CONCORD_PUT_BACK_SEEDS").ok().and_then(|n| n.parse().ok());
    let is_put_back = |plan: &Plan| {
        plan.faults.iter().any(|timed| matches!(timed.fault, concord_sim::Fault::PutBack { .. }))
    };
    let mut wrong = vec![];
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Raft]) {
        let plans = (1..).map(|seed| Plan::draw_with_disks(seed, protocol)).filter(is_put_back);
        for plan in plans.take(seeds.unwrap_or(12)) {
            if let Some(violation) = run(&plan).violation {
                wrong.push(format!("{protocol:?}, seed {:#x}: {violation}", plan.seed));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong.join("\n"));
}
