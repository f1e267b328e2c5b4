//! Requests of two objects, whose packets come round in the switch: a write of both is one moment,
//! for reads of one and of both.

use concord_core::{Guard, Guards};
use concord_sim::explore::{Budget, Call, Setup};
use concord_wire::control::Protocol;

use super::{holds, is_large, run};
use Call::{Get, GetBoth, Set, SetBoth};
use Protocol::{Chain, Craq, NoPaxos, PrimaryBackup, Vr};

const BOTH: [&str; 2] = ["a", "b"];

/// One writes both, the other reads both.
fn tiny() -> Vec<Vec<Call>> {
    vec![vec![SetBoth(BOTH, "1")], vec![GetBoth(BOTH)]]
}

/// One writes both, the other reads both, and then one.
fn read() -> Vec<Vec<Call>> {
    vec![vec![SetBoth(BOTH, "1")], vec![GetBoth(BOTH), Get("b")]]
}

/// Beside it a write of one.
fn mixed() -> Vec<Vec<Call>> {
    vec![vec![SetBoth(BOTH, "1")], vec![Set("b", "2"), GetBoth(BOTH)]]
}

/// One writes both, the other reads one after the other.
fn apart() -> Vec<Vec<Call>> {
    vec![vec![SetBoth(BOTH, "1")], vec![Get("b"), Get("a")]]
}

/// One writes one, the other reads both, twice.
fn twice() -> Vec<Vec<Call>> {
    vec![vec![Set("b", "1")], vec![GetBoth(BOTH), GetBoth(BOTH)]]
}

#[test]
fn any_order_of_packets() {
    let counts = [
        (Chain, [119, 230, 104, 122]),
        (PrimaryBackup, [281, 762, 238, 274]),
        (Craq, [231, 1_098, 231, 231]),
        (Vr, [297, 4_112, 280, 352]),
        (NoPaxos, [393, 2_138, 368, 464]),
    ];
    for (protocol, states) in counts {
        for (scripts, states) in [read(), mixed(), apart(), twice()].into_iter().zip(states) {
            holds("two objects", protocol, scripts, Budget::NOTHING, states);
        }
    }
}

#[test]
fn a_packet_is_lost_or_arrives_twice_or_a_replica_dies() {
    let wait = Budget { waits: 1, ..Budget::NOTHING };
    let twice = Budget { duplicates: 1, ..Budget::NOTHING };
    let counts = [(Chain, 148), (PrimaryBackup, 408), (Craq, 832), (Vr, 422), (NoPaxos, 562)];
    for (protocol, states) in counts {
        holds("two objects, one duplicate", protocol, tiny(), twice, states);
    }
    holds("two objects, one loss", Chain, tiny(), Budget { losses: 1, ..wait }, 147_656);
    holds("two objects, a replica dies", Chain, tiny(), Budget { crashes: 1, ..wait }, 128_171);
}

/// With a packet on its way round in the first switch.
#[test]
fn the_switch_is_replaced_or_another_takes_over() {
    let replaced = Budget { replacements: 1, ..Budget::NOTHING };
    let rival = Budget { rivals: 1, ..Budget::NOTHING };
    let counts =
        [(Chain, [10_606, 8_018]), (PrimaryBackup, [83_901, 63_685]), (Craq, [14_663, 13_149])];
    for (protocol, states) in counts {
        holds("two objects, the switch is replaced", protocol, tiny(), replaced, states[0]);
        holds("two objects, another switch", protocol, tiny(), rival, states[1]);
    }
}

/// Where they do not come to an end, the first five million states.
#[test]
fn many_states() {
    if !is_large() {
        return;
    }
    let wait = Budget { waits: 1, ..Budget::NOTHING };
    let crash = Budget { crashes: 1, ..wait };
    let loss = Budget { losses: 1, ..wait };
    let replaced = Budget { replacements: 1, ..Budget::NOTHING };
    for protocol in [PrimaryBackup, Craq, Vr, NoPaxos] {
        for budget in [crash, loss, replaced] {
            let setup = Setup { budget, ..Setup::new(protocol, tiny()) };
            assert_eq!(run("two objects", setup).violation, None);
        }
    }
}

#[test]
fn each_guard_of_several() {
    let draws = [
        (Guard::SeveralEntered, Vr, apart()),
        (Guard::SeveralClean, Vr, twice()),
        (Guard::SeveralNoted, Chain, apart()),
        (Guard::SeveralNewest, Chain, twice()),
    ];
    for (guard, protocol, scripts) in draws {
        let setup = Setup { guards: Guards::without(guard), ..Setup::new(protocol, scripts) };
        let found = run(&format!("without {guard:?}"), setup);
        assert!(found.violation.is_some(), "nothing is wrong without {guard:?}");
    }
}
