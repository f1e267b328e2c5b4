//! Every interleaving of small racks (`concord_sim::explore`, docs/exhaustive.md): how many states
//! there are, and that none is wrong; each guard removed, how it comes to a wrong one. Here: chain
//! and primary-backup.
//!
//! `CONCORD_EXPLORE=large` goes through larger ones, too, 12 million states each: half an hour.
//! Release builds only (`make guards`).

mod guards;
mod quorum;

use std::time::Instant;

use concord_sim::explore::{Budget, Call, Explored, Setup, explore};
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

fn run(name: &str, setup: Setup) -> Explored {
    let began = Instant::now();
    let protocol = setup.protocol;
    let found = explore(setup);
    println!(
        "{protocol:?}, {name}: {} states, {} steps, {} ends, {} deep, complete {}, {:.1} s",
        found.states,
        found.transitions,
        found.ends,
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
    let found = run(name, Setup { budget, ..Setup::new(protocol, scripts) });
    assert_eq!(found.violation, None);
    assert!(found.is_complete);
    assert_eq!(found.states, states, "{name} has another number of states");
}

/// What is larger than that is looked at up to so many states, breadth first.
fn holds_so_far(name: &str, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget) {
    if std::env::var_os("CONCORD_EXPLORE").is_none_or(|how| how != "large") {
        return;
    }
    let found =
        run(name, Setup { budget, states_max: 12_000_000, ..Setup::new(protocol, scripts) });
    assert_eq!(found.violation, None);
}

#[test]
fn any_order_of_packets() {
    holds("any order", Chain, full(), Budget::NOTHING, 196);
    holds("any order", PrimaryBackup, full(), Budget::NOTHING, 336);
}

#[test]
fn a_packet_arrives_twice() {
    let budget = Budget { duplicates: 1, ..Budget::NOTHING };
    holds("one duplicate", Chain, short(), budget, 717);
    holds("one duplicate", PrimaryBackup, short(), budget, 2_327);
}

#[test]
fn a_packet_is_lost() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    holds("one loss", Chain, tiny(), budget, 667_993);
    holds_so_far("one loss", PrimaryBackup, tiny(), budget);
    holds_so_far("one loss, two reads", Chain, short(), budget);
}

#[test]
fn a_replica_dies() {
    let budget = Budget { crashes: 1, waits: 1, ..Budget::NOTHING };
    holds("one crash", Chain, one(), budget, 74_543);
    holds("one crash", PrimaryBackup, one(), budget, 2_399_825);
    holds_so_far("one crash, two clients", Chain, short(), budget);
    holds_so_far("one crash, two clients", PrimaryBackup, short(), budget);
}

#[test]
fn a_replica_is_cut_off() {
    let budget = Budget { isolations: 1, waits: 1, ..Budget::NOTHING };
    holds("one cut off", Chain, one(), budget, 431_793);
    holds_so_far("one cut off", PrimaryBackup, one(), budget);
}

#[test]
fn the_switch_is_replaced() {
    let budget = Budget { replacements: 1, ..Budget::NOTHING };
    holds("switch replaced", Chain, short(), budget, 53_020);
    holds("switch replaced", PrimaryBackup, short(), budget, 1_599_333);
    let later = Budget { waits: 1, ..budget };
    holds_so_far("switch replaced, time passes", Chain, short(), later);
    holds_so_far("switch replaced, time passes", PrimaryBackup, short(), later);
}

#[test]
fn another_switch_takes_over_beside_the_first() {
    let budget = Budget { rivals: 1, ..Budget::NOTHING };
    holds("two switches", Chain, short(), budget, 37_480);
    holds("two switches", PrimaryBackup, short(), budget, 1_201_057);
}
