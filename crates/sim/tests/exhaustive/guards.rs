//! Each guard removed, one at a time: there is a wrong state, and a shortest way to it.

use concord_core::{Guard, Guards};
use concord_sim::explore::{Budget, Call, Setup};
use concord_wire::control::Protocol;

use super::quorum::{followers_missed, leaderless};
use super::{full, one, run, short, tiny};
use Call::{Get, Set};
use Protocol::{Chain, NoPaxos, PrimaryBackup, Vr};

fn is_caught(name: &str, setup: Setup) {
    let found = run(&format!("without {name}"), setup);
    assert!(found.violation.is_some(), "nothing is wrong without {name}");
}

fn without(guard: Guard, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget) {
    let guards = Guards::without(guard);
    is_caught(&format!("{guard:?}"), Setup { guards, budget, ..Setup::new(protocol, scripts) });
}

#[test]
fn last_committed() {
    without(Guard::LastCommitted, Chain, short(), Budget::NOTHING);
}

#[test]
fn in_order_writes() {
    let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2"), Get("k"), Get("k")]];
    without(Guard::InOrderWrites, Chain, scripts, Budget::NOTHING);
}

#[test]
fn client_table() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::ClientTable, Chain, vec![vec![Call::Incr("k"), Get("k")]], budget);
}

#[test]
fn prefix() {
    let scripts = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::Prefix, Chain, scripts, budget);
}

#[test]
fn incarnation() {
    let scripts = vec![vec![Set("k", "1"), Get("k")]];
    let budget = Budget { restarts: 1, ..Budget::NOTHING };
    without(Guard::Incarnation, Chain, scripts, budget);
}

#[test]
fn lease() {
    let scripts = vec![vec![Set("k", "1"), Get("k")]];
    let budget = Budget { isolations: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::Lease, Chain, scripts, budget);
}

#[test]
fn lease_clock() {
    let scripts = vec![vec![Set("k", "1"), Get("k")]];
    let budget = Budget { isolations: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::LeaseClock, Chain, scripts, budget);
}

#[test]
fn epoch_agreement() {
    let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2")]];
    let budget = Budget { crashes: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::EpochAgreement, PrimaryBackup, scripts, budget);
}

#[test]
fn first_completion() {
    let budget = Budget { replacements: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::FirstCompletion, Chain, short(), budget);
}

/// Two write the same object, the second one reads it twice.
fn two_writers() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")], vec![Set("k", "2"), Get("k"), Get("k")]]
}

/// One moment, in which the leader says what is committed.
const MOMENT: Budget = Budget { moments: 1, ..Budget::NOTHING };

#[test]
fn visibility() {
    without(Guard::Visibility, Vr, short(), MOMENT);
    without(Guard::Visibility, NoPaxos, short(), MOMENT);
}

#[test]
fn order_of_quorums() {
    without(Guard::InOrderWrites, Vr, two_writers(), Budget::NOTHING);
    without(Guard::Gaps, NoPaxos, two_writers(), Budget::NOTHING);
}

/// Where a view change has begun, and where time passed with a number missing.
#[test]
fn gaps_of_prepared_racks() {
    for prepared in [leaderless(), followers_missed()] {
        let guards = Guards::without(Guard::Gaps);
        is_caught("Gaps", Setup { guards, prepared, ..Setup::new(NoPaxos, tiny()) });
    }
}

#[test]
fn view() {
    let budget = Budget { crashes: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::View, Vr, one(), budget);
}

#[test]
fn client_table_of_quorums() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    without(Guard::ClientTable, Vr, vec![vec![Call::Incr("k"), Get("k")]], budget);
}

#[test]
fn dirty_set_and_drop_on_full_of_quorums() {
    let two = vec![vec![Set("a", "1")], vec![Set("k", "1"), Get("k")]];
    for protocol in [Vr, NoPaxos] {
        without(Guard::DirtySet, protocol, short(), MOMENT);
        let guards = Guards::without(Guard::DropOnFull);
        let mut small = Setup { guards, budget: MOMENT, ..Setup::new(protocol, two.clone()) };
        small.layout.slots = 1;
        is_caught("DropOnFull", small);
    }
}

/// Where a quorum is everybody and packets arrive in order, COMMIT-ACKs alone are enough, and their
/// removal is caught.
#[test]
fn commit_ack() {
    let budget = Budget { moments: 2, ..Budget::NOTHING };
    let base = Guards::without(Guard::Visibility);
    for protocol in [Vr, NoPaxos] {
        let pair = |guards| Setup {
            replicas: 2,
            ordered: true,
            guards,
            budget,
            ..Setup::new(protocol, short())
        };
        assert!(run("two, ordered, without Visibility", pair(base)).violation.is_none());
        is_caught("CommitAck", pair(base.and_without(Guard::CommitAck)));
    }
}

/// In an ordered network the dirty set alone is enough (§6.2), and its removal is caught.
#[test]
fn dirty_set_and_drop_on_full() {
    let base = Guards::without(Guard::LastCommitted);
    let ordered = |guards, scripts| Setup { ordered: true, guards, ..Setup::new(Chain, scripts) };
    let two = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
    let mut small = ordered(base, two);
    small.layout.slots = 1;
    assert!(run("ordered", ordered(base, full())).violation.is_none());
    assert!(run("ordered, one slot", small.clone()).violation.is_none());
    is_caught("DirtySet", ordered(base.and_without(Guard::DirtySet), short()));
    is_caught("DropOnFull", Setup { guards: base.and_without(Guard::DropOnFull), ..small });
}
