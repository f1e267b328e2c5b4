//! The share of single wrong operations, in runs that are right else, that the checker detects,
//! beside brute force's share.

use std::fmt::Write as _;

use concord_check::{Verdict, check};
use concord_core::Rng;

use super::histories;
use super::keys::{self, Clocks, Draw, MS};
use super::transactions::{self, Wrong};

/// Operations of a run: as many as brute force can do.
const OPERATIONS: u64 = 14;
/// Grace and earliness of the runs with expiry, and by how much it is wrong.
const CLOCKS: Clocks = Clocks { grace_ns: MS, early_ns: MS };
const WRONG_NS: u64 = 4 * MS;

/// Runs of one kind: those that were found, and that brute force found.
fn of_transactions(wrong: Wrong, runs: u64) -> [u64; 2] {
    let mut found = [0; 2];
    for seed in 0..runs {
        let history = transactions::run(&mut Rng::new(seed), OPERATIONS, wrong);
        found[0] += u64::from(!transactions::is_accepted(&history));
        found[1] += u64::from(!transactions::has_order(&history));
    }
    found
}

fn of_keys(wrong: keys::Wrong, draw: Draw, unit_ns: u64, runs: u64) -> [u64; 2] {
    let mut found = [0; 2];
    for seed in 0..runs {
        let history = keys::run(&mut Rng::new(seed), OPERATIONS, unit_ns, draw, wrong);
        let report = check(&history, &keys::options(CLOCKS)).unwrap();
        assert_ne!(report.verdict, Verdict::Unknown, "seed {seed}");
        found[0] += u64::from(report.verdict == Verdict::Violation);
        found[1] += u64::from(!keys::has_order(&history, CLOCKS));
    }
    found
}

/// The checker finds what brute force finds, of each kind.
#[test]
fn what_is_wrong_once_is_found_as_often_as_by_brute_force() {
    let runs = histories() / 3;
    let kinds = [
        ("torn MSET", of_transactions(Wrong::TornWrite, runs)),
        ("torn MGET", of_transactions(Wrong::TornRead, runs)),
        ("stale MGET", of_transactions(Wrong::StaleRead, runs)),
        ("lost update", of_transactions(Wrong::LostUpdate, runs)),
        ("write skew over two keys", of_transactions(Wrong::WriteSkew, runs)),
        ("double transfer", of_keys(keys::Wrong::Twice, keys::counters, 1_000, runs)),
        ("lost element", of_keys(keys::Wrong::Lost, keys::lists, 1_000, runs)),
        ("early expiry", of_keys(keys::Wrong::Early(WRONG_NS), keys::watched, MS / 8, runs)),
        ("late expiry", of_keys(keys::Wrong::Late(WRONG_NS), keys::watched, MS / 2, runs)),
    ];
    let mut table =
        String::from("| wrong once | runs | found | by brute force |\n|---|---|---|---|\n");
    for (name, [found, brute]) in kinds {
        let percent = |count: u64| format!("{:.1}%", count as f64 * 100.0 / runs as f64);
        writeln!(table, "| {name} | {runs} | {} | {} |", percent(found), percent(brute)).unwrap();
        assert_eq!(found, brute, "{name}");
        assert!(found > 0, "{name}: none of {runs}");
    }
    println!("{table}");
    if let Ok(results) = std::env::var("CONCORD_RESULTS") {
        std::fs::write(format!("{results}/detection.md"), table).unwrap();
    }
}
