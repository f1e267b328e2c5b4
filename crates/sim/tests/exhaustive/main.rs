//! Every interleaving of small racks (`concord_sim::explore`, docs/internals/exhaustive.md): how
//! many states there are, and that none is wrong; each guard removed, how it comes to a wrong one.
//! Here: chain and primary-backup.
//!
//! `CONCORD_EXPLORE=large` goes through larger ones, too; `CONCORD_EXPLORE=count` tells the numbers
//! of states, for who changed what the machines send, instead of asserting them.
//! Release builds only (`make guards`).

mod flair;
mod guards;
mod quorum;
mod several;

use std::time::Instant;

use concord_sim::explore::{Budget, Call, Explored, Prepared, Setup, explore};
use concord_wire::control::Protocol;

use Call::{Get, Set};
use Protocol::{Chain, PrimaryBackup};

/// One client writes, and reads back; the other reads twice.
fn full() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1"), Get("k")], vec![Get("k"), Get("k")]]
}

/// One client writes, the other reads twice.
fn short() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")], vec![Get("k"), Get("k")]]
}

/// One client writes, the other reads.
fn tiny() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")], vec![Get("k")]]
}

/// One client writes, and reads back.
fn one() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1"), Get("k")]]
}

/// One client writes.
fn writes() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")]]
}

fn run(name: &str, setup: Setup) -> Explored {
    let began = Instant::now();
    let protocol = setup.protocol;
    let found = explore(setup);
    println!(
        "{protocol:?}, {name}: {} states, {} steps, {} ends, {} histories, {} deep, complete {}, {:.1} s",
        found.states,
        found.transitions,
        found.ends,
        found.histories,
        found.depth,
        found.is_complete,
        began.elapsed().as_secs_f64()
    );
    if let Some((why, lines)) = &found.violation {
        println!("  {why}:");
        lines.iter().for_each(|line| println!("    {line}"));
    }
    found
}

/// No state is wrong, and there are exactly so many.
fn holds(name: &str, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget, states: usize) {
    holds_from(name, protocol, Vec::new(), scripts, budget, states);
}

/// The same, from states that were prepared.
fn holds_from(
    name: &str,
    protocol: Protocol,
    prepared: Vec<Prepared>,
    scripts: Vec<Vec<Call>>,
    budget: Budget,
    states: usize,
) {
    exactly(name, Setup { prepared, budget, ..Setup::new(protocol, scripts) }, states);
}

/// The same of whatever is set up.
#[track_caller]
fn exactly(name: &str, setup: Setup, states: usize) {
    let states_max = if is_count() { usize::MAX } else { states + 1 };
    let found = run(name, Setup { states_max, ..setup });
    assert_eq!(found.violation, None);
    assert!(found.is_complete, "{name} has more states than {states}");
    assert!(is_count() || found.states == states, "{name} has another number of states");
}

/// Whether the numbers are wanted, after a change that makes others of them.
fn is_count() -> bool {
    std::env::var_os("CONCORD_EXPLORE").is_some_and(|how| how == "count")
}

/// Whether what takes a minute or more is gone through, too.
fn is_large() -> bool {
    is_count() || std::env::var_os("CONCORD_EXPLORE").is_some_and(|how| how == "large")
}

/// What can matter no more is left out of a state: there are fewer, and as many histories.
#[track_caller]
fn loses_nothing(protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget, states: usize) {
    loses_nothing_of(Setup { budget, ..Setup::new(protocol, scripts) }, states);
}

/// The same of whatever is set up.
#[track_caller]
fn loses_nothing_of(reduced: Setup, states: usize) {
    let whole = run("with all", Setup { reduced: false, ..reduced.clone() });
    assert!(is_count() || whole.states == states, "another number of states");
    let reduced = run("reduced", reduced);
    assert!(whole.is_complete && reduced.is_complete);
    assert!(reduced.states < whole.states);
    assert_eq!(reduced.histories, whole.histories);
}

#[test]
fn no_history_is_lost() {
    let wait = Budget { waits: 1, ..Budget::NOTHING };
    loses_nothing(Chain, tiny(), Budget { losses: 1, ..wait }, 486_646);
    loses_nothing(Chain, one(), Budget { crashes: 1, ..wait }, 50_419);
    loses_nothing(Chain, one(), Budget { isolations: 1, ..wait }, 312_906);
    loses_nothing(PrimaryBackup, short(), Budget { duplicates: 1, ..Budget::NOTHING }, 2_184);
    loses_nothing(PrimaryBackup, short(), Budget { rivals: 1, ..Budget::NOTHING }, 1_201_027);
    let duplicate = Budget { duplicates: 1, moments: 1, ..Budget::NOTHING };
    loses_nothing(Protocol::Vr, tiny(), duplicate, 72_798);
    loses_nothing(Protocol::NoPaxos, tiny(), duplicate, 97_008);
    if is_large() {
        loses_nothing(Protocol::Vr, writes(), Budget { crashes: 1, ..wait }, 2_542_941);
        loses_nothing(PrimaryBackup, one(), Budget { crashes: 1, ..wait }, 1_401_033);
        let replaced = Budget { replacements: 1, ..Budget::NOTHING };
        loses_nothing(PrimaryBackup, short(), replaced, 1_599_303);
    }
}

#[test]
fn any_order_of_packets() {
    holds("any order", Chain, full(), Budget::NOTHING, 196);
    holds("any order", PrimaryBackup, full(), Budget::NOTHING, 330);
}

#[test]
fn a_packet_arrives_twice() {
    let budget = Budget { duplicates: 1, ..Budget::NOTHING };
    holds("one duplicate", Chain, full(), budget, 858);
    holds("one duplicate", PrimaryBackup, full(), budget, 1_345);
}

#[test]
fn a_packet_is_lost() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    holds("one loss", Chain, short(), budget, 316_750);
    holds("one loss", PrimaryBackup, tiny(), budget, 3_093_527);
}

#[test]
fn a_replica_dies() {
    let budget = Budget { crashes: 1, waits: 1, ..Budget::NOTHING };
    holds("one crash", Chain, short(), budget, 285_589);
    holds("one crash", PrimaryBackup, tiny(), budget, 1_004_231);
}

#[test]
fn a_replica_is_cut_off() {
    let budget = Budget { isolations: 1, waits: 1, ..Budget::NOTHING };
    holds("one cut off", Chain, tiny(), budget, 810_314);
    holds("one cut off", PrimaryBackup, one(), budget, 379_122);
    if is_large() {
        holds("one cut off", PrimaryBackup, tiny(), budget, 4_960_261);
    }
}

#[test]
fn the_switch_is_replaced() {
    let budget = Budget { replacements: 1, ..Budget::NOTHING };
    holds("switch replaced", Chain, short(), budget, 25_832);
    holds("switch replaced", PrimaryBackup, short(), budget, 191_692);
    let later = Budget { waits: 1, ..budget };
    holds("switch replaced, time passes", Chain, tiny(), later, 3_242_169);
    if is_large() {
        holds("switch replaced, time passes", PrimaryBackup, one(), later, 13_088_932);
    }
}

#[test]
fn another_switch_takes_over_beside_the_first() {
    let budget = Budget { rivals: 1, ..Budget::NOTHING };
    holds("two switches", Chain, short(), budget, 18_774);
    holds("two switches", PrimaryBackup, short(), budget, 141_717);
}
