//! Every interleaving of small racks (`concord_sim::explore`, docs/exhaustive.md): how many states
//! there are, and that none is wrong; each guard removed, how it comes to a wrong one.
//!
//! `CONCORD_EXPLORE=large` goes through larger ones, too, 12 million states each: half an hour.
//! Release builds only (`make guards`).

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
    holds("any order", Chain, full(), Budget::default(), 196);
    holds("any order", PrimaryBackup, full(), Budget::default(), 336);
}

#[test]
fn a_packet_arrives_twice() {
    let budget = Budget { duplicates: 1, ..Budget::default() };
    holds("one duplicate", Chain, short(), budget, 717);
    holds("one duplicate", PrimaryBackup, short(), budget, 2_327);
}

#[test]
fn a_packet_is_lost() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::default() };
    holds("one loss", Chain, tiny(), budget, 667_993);
    holds_so_far("one loss", PrimaryBackup, tiny(), budget);
    holds_so_far("one loss, two reads", Chain, short(), budget);
}

#[test]
fn a_replica_dies() {
    let budget = Budget { crashes: 1, waits: 1, ..Budget::default() };
    holds("one crash", Chain, one(), budget, 74_543);
    holds("one crash", PrimaryBackup, one(), budget, 2_399_823);
    holds_so_far("one crash, two clients", Chain, short(), budget);
    holds_so_far("one crash, two clients", PrimaryBackup, short(), budget);
}

#[test]
fn a_replica_is_cut_off() {
    let budget = Budget { isolations: 1, waits: 1, ..Budget::default() };
    holds("one cut off", Chain, one(), budget, 431_793);
    holds_so_far("one cut off", PrimaryBackup, one(), budget);
}

#[test]
fn the_switch_is_replaced() {
    let budget = Budget { replacements: 1, ..Budget::default() };
    holds("switch replaced", Chain, short(), budget, 53_020);
    holds("switch replaced", PrimaryBackup, short(), budget, 1_599_333);
    let later = Budget { waits: 1, ..budget };
    holds_so_far("switch replaced, time passes", Chain, short(), later);
    holds_so_far("switch replaced, time passes", PrimaryBackup, short(), later);
}

#[test]
fn another_switch_takes_over_beside_the_first() {
    let budget = Budget { rivals: 1, ..Budget::default() };
    holds("two switches", Chain, short(), budget, 37_480);
    holds("two switches", PrimaryBackup, short(), budget, 1_201_057);
}

mod guards {
    use super::*;
    use concord_core::{Guard, Guards};

    fn is_missed(name: &str, setup: Setup) {
        let found = run(&format!("without {name}"), setup);
        assert!(found.violation.is_some(), "nothing is wrong without {name}");
    }

    fn without(guard: Guard, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget) {
        let guards = Guards::without(guard);
        is_missed(&format!("{guard:?}"), Setup { guards, budget, ..Setup::new(protocol, scripts) });
    }

    #[test]
    fn last_committed() {
        without(Guard::LastCommitted, Chain, short(), Budget::default());
    }

    #[test]
    fn in_order_writes() {
        let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2"), Get("k"), Get("k")]];
        without(Guard::InOrderWrites, Chain, scripts, Budget::default());
    }

    #[test]
    fn client_table() {
        let budget = Budget { losses: 1, waits: 1, ..Budget::default() };
        without(Guard::ClientTable, Chain, vec![vec![Call::Incr("k"), Get("k")]], budget);
    }

    #[test]
    fn prefix() {
        let scripts = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
        let budget = Budget { losses: 1, waits: 1, ..Budget::default() };
        without(Guard::Prefix, Chain, scripts, budget);
    }

    #[test]
    fn incarnation() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { restarts: 1, ..Budget::default() };
        without(Guard::Incarnation, Chain, scripts, budget);
    }

    #[test]
    fn lease() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { isolations: 1, waits: 1, ..Budget::default() };
        without(Guard::Lease, Chain, scripts, budget);
    }

    #[test]
    fn lease_clock() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { isolations: 1, waits: 1, ..Budget::default() };
        without(Guard::LeaseClock, Chain, scripts, budget);
    }

    #[test]
    fn epoch_agreement() {
        let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2")]];
        let budget = Budget { crashes: 1, waits: 1, ..Budget::default() };
        without(Guard::EpochAgreement, PrimaryBackup, scripts, budget);
    }

    #[test]
    fn first_completion() {
        let budget = Budget { replacements: 1, waits: 1, ..Budget::default() };
        without(Guard::FirstCompletion, Chain, short(), budget);
    }

    /// In an ordered network the dirty set alone is enough (§6.2), and is missed.
    #[test]
    fn dirty_set_and_drop_on_full() {
        let base = Guards::without(Guard::LastCommitted);
        let ordered =
            |guards, scripts| Setup { ordered: true, guards, ..Setup::new(Chain, scripts) };
        let two = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
        let mut small = ordered(base, two);
        small.layout.slots = 1;
        assert!(run("ordered", ordered(base, full())).violation.is_none());
        assert!(run("ordered, one slot", small.clone()).violation.is_none());
        is_missed("DirtySet", ordered(base.and_without(Guard::DirtySet), short()));
        is_missed("DropOnFull", Setup { guards: base.and_without(Guard::DropOnFull), ..small });
    }
}
