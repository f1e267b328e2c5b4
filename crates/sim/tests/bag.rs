//! A fuzz of bags of packets over groups of the shipped machines (docs/internals/simulator.md).

#[cfg(feature = "mutants")]
use concord_core::Guard;
use concord_core::Guards;
use concord_sim::bag::{BagOptions, BagReport, run_bag, run_bags, shrink_bag};
use concord_sim::{PROTOCOLS, protocol_name};
use concord_wire::control::Protocol;

/// Runs that making a failure smaller may take.
const SHRINK_RUNS_MAX: usize = 3_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options(protocol: Protocol) -> BagOptions {
    BagOptions {
        first_seed: 0,
        seeds: None,
        time: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        protocol: Some(protocol),
        replicas: None,
        guards: Guards::ALL,
    }
}

fn report(options: &BagOptions, report: &BagReport) -> Option<String> {
    let name = options.protocol.map_or("any", protocol_name);
    println!("{name}: {:?} in {:.1} s", report.totals, report.elapsed.as_secs_f64());
    let found = report.found.as_ref()?;
    let mut text = format!("{}: {}\n", found.plan.summary(), found.violation);
    if let Some(small) = shrink_bag(&found.plan, SHRINK_RUNS_MAX) {
        text += &format!("{} of {} steps:\n", small.steps.len(), small.steps_before);
        small.steps.iter().for_each(|line| text += &format!("{line}\n"));
        text += &small.violation;
    }
    Some(text + &format!("\nreplay: concord fuzz --protocol {name} --seed {:#x}", found.plan.seed))
}

/// The same seeds of every protocol every time: `CONCORD_BAG_SEEDS` of each (`make test`: a
/// minute's worth on two cores, of a release build), from `CONCORD_BAG_SEED` on. `concord fuzz`
/// draws fresh ones.
#[test]
fn any_packet_at_any_time_breaks_no_promise() {
    let seeds = Some(number("CONCORD_BAG_SEEDS", 20));
    let first_seed = number("CONCORD_BAG_SEED", 0);
    for protocol in PROTOCOLS {
        let options = BagOptions { first_seed, seeds, ..options(protocol) };
        let found = report(&options, &run_bags(&options));
        assert!(found.is_none(), "{}", found.unwrap_or_default());
    }
}

#[test]
fn a_seed_replays() {
    for (seed, protocol) in (100..).zip(PROTOCOLS) {
        let plan = options(protocol).plan(seed);
        let (one, other) = (run_bag(&plan), run_bag(&plan));
        assert_eq!((one.digest, one.totals), (other.digest, other.totals), "{}", plan.summary());
        assert!(one.totals.answered > 0 && one.totals.packets > 100, "{:?}", one.totals);
    }
}

/// Most runs until a removed guard is caught.
#[cfg(feature = "mutants")]
const RUNS_MAX: u64 = 5_000;

/// What each protocol's runs catch when it is removed, one at a time.
#[cfg(feature = "mutants")]
const CAUGHT: [(Protocol, &[Guard]); 5] = [
    (
        Protocol::Chain,
        &[
            Guard::InOrderWrites,
            Guard::DirtySet,
            Guard::DropOnFull,
            Guard::Prefix,
            Guard::ClientTable,
            Guard::Lease,
            Guard::Incarnation,
            Guard::EpochAgreement,
        ],
    ),
    (Protocol::PrimaryBackup, &[Guard::InOrderWrites, Guard::Prefix, Guard::EpochAgreement]),
    (Protocol::Craq, &[Guard::AskTail, Guard::ClientTable]),
    (
        Protocol::Vr,
        &[
            Guard::View,
            Guard::Lease,
            Guard::Incarnation,
            Guard::CrashVector,
            Guard::Visibility,
            Guard::ClientTable,
        ],
    ),
    (
        Protocol::NoPaxos,
        &[Guard::Gaps, Guard::View, Guard::Lease, Guard::Incarnation, Guard::Visibility],
    ),
];

/// Runs until a guard's removal is caught: the median of so many starts as `CONCORD_GUARD_STARTS`
/// says.
#[cfg(feature = "mutants")]
#[test]
fn a_guard_that_is_removed_is_caught() {
    for (protocol, guards) in CAUGHT {
        for guard in guards {
            let mut runs: Vec<u64> = (0..number("CONCORD_GUARD_STARTS", 1))
                .map(|start| {
                    let first_seed = start * 1_000_000;
                    let guards = Guards::without(*guard);
                    let seeds = Some(RUNS_MAX);
                    let options = BagOptions { first_seed, seeds, guards, ..options(protocol) };
                    let found = run_bags(&options).found;
                    found.map_or(u64::MAX, |found| found.plan.seed - first_seed + 1)
                })
                .collect();
            runs.sort_unstable();
            let median = runs[runs.len() / 2];
            println!("{} without {guard:?}: {median} runs of {runs:?}", protocol_name(protocol));
            assert!(
                median <= RUNS_MAX,
                "{protocol:?} without {guard:?}: nothing in {RUNS_MAX} runs"
            );
        }
    }
}
