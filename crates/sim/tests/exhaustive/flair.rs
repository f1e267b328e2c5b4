//! FLAIR over Viewstamped Replication, and over Raft where both are alike. Heartbeats arrive at
//! once; time that passes is long enough for the switch to repair groups that stay unstable, and to
//! step down where its leader died.
//!
//! A view change has more states than can be gone through, and the next session begins only once
//! time has passed after it. So sessions begin from prepared states, in which the view has changed
//! and what was said to switches is under way.

use concord_core::{Guard, Guards};
use concord_sim::explore::{Budget, Call, Over, Prepared, Setup, Write};
use concord_wire::control::Protocol;

use super::{exactly, full, is_large, loses_nothing_of, one, run, short, writes};
use Call::{Get, Incr, Set, SetBoth};
use Protocol::{Raft, Vr};

const MOMENT: Budget = Budget { moments: 1, ..Budget::NOTHING };
const WAIT: Budget = Budget { waits: 1, ..Budget::NOTHING };
const TWICE: Budget = Budget { duplicates: 1, ..Budget::NOTHING };
const LOSS: Budget = Budget { losses: 1, ..Budget::NOTHING };

/// Two write the same object, the second one reads it twice.
fn two_writers() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")], vec![Set("k", "2"), Get("k"), Get("k")]]
}

/// One writes two objects, which counts as a write of all keys; the other reads one twice.
fn all_keys() -> Vec<Vec<Call>> {
    vec![vec![SetBoth(["a", "k"], "1")], vec![Get("k"), Get("k")]]
}

fn holds(name: &str, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget, states: usize) {
    let name = format!("FLAIR, {name}");
    exactly(&name, Setup { budget, ..Setup::flair(protocol, scripts) }, states);
}

/// The session is over, and the next one begins: the first write was on its way to the leader, or
/// its reply to the switch.
fn next_session(over: Over) -> Vec<Prepared> {
    [Write::Sequenced, Write::Executed].map(|write| Prepared::Session { write, over }).to_vec()
}

fn begins(over: Over, scripts: Vec<Vec<Call>>, budget: Budget, states: usize) {
    let prepared = next_session(over);
    let name = format!("FLAIR, a session begins, {over:?}");
    exactly(&name, Setup { prepared, budget, ..Setup::flair(Vr, scripts) }, states);
}

#[test]
fn any_order_of_packets() {
    for protocol in [Vr, Raft] {
        holds("any order", protocol, full(), Budget::NOTHING, 5_357);
        holds("any order, two writers", protocol, two_writers(), Budget::NOTHING, 13_209);
        holds("any order, all keys", protocol, all_keys(), Budget::NOTHING, 809);
        holds("any order, one moment", protocol, short(), MOMENT, 17_322);
    }
}

#[test]
fn a_packet_arrives_twice() {
    holds("one duplicate", Vr, short(), TWICE, 10_564);
    holds("one duplicate, all keys", Vr, all_keys(), TWICE, 10_564);
}

#[test]
fn a_packet_is_lost() {
    holds("one loss, one moment", Vr, short(), Budget { losses: 1, ..MOMENT }, 115_546);
    let budget = Budget { losses: 1, ..WAIT };
    holds("one loss, time passes", Vr, writes(), budget, 1_047_621);
    if is_large() {
        holds("one loss, time passes", Vr, one(), budget, 4_142_095);
    }
}

#[test]
fn a_replica_dies() {
    let budget = Budget { crashes: 1, ..WAIT };
    holds("one crash", Vr, one(), budget, 1_064_538);
    holds("one crash", Raft, one(), budget, 1_399_718);
}

#[test]
fn a_replica_is_cut_off() {
    let budget = Budget { isolations: 1, ..WAIT };
    holds("one cut off", Vr, writes(), budget, 656_304);
    if is_large() {
        holds("one cut off", Vr, one(), budget, 3_469_299);
    }
}

#[test]
fn a_session_begins() {
    let loss = Budget { losses: 1, ..WAIT };
    let counts = [
        (Over::LeaderDied, [1_508, 37_544, 6_091, 16_386], [58_575, 240_444]),
        (Over::Replaced, [136, 1_152, 304, 764], [3_712, 13_098]),
        (Over::Split, [1_600, 18_272, 5_200, 13_824], [374_880, 1_602_810]),
        (Over::Rival, [3_456, 121_280, 14_996, 91_680], [0, 0]),
    ];
    for (over, states, later) in counts {
        for (budget, states) in [Budget::NOTHING, TWICE, LOSS, MOMENT].into_iter().zip(states) {
            begins(over, short(), budget, states);
        }
        // With two switches that hear of each other there are more than five million.
        if over != Over::Rival {
            begins(over, one(), WAIT, later[0]);
            begins(over, one(), loss, later[1]);
        }
    }
    if is_large() {
        begins(Over::LeaderDied, short(), WAIT, 4_520_847);
    }
}

/// Racks whose leader is dead, and of which every choice of replicas missed the first write. There
/// is a view change, time passes, a session begins.
fn leaderless() -> Vec<Prepared> {
    (0..8).map(|missed| Prepared::Missed { missed, leader_dies: true }).collect()
}

#[test]
fn the_leader_died_and_a_session_begins() {
    let setup = Setup { prepared: leaderless(), budget: WAIT, ..Setup::flair(Vr, one()) };
    exactly("FLAIR, the leader died, time passes", setup, 440_352);
}

/// After the switch was replaced, a replica dies or is cut off.
#[test]
fn the_switch_was_replaced_and_a_replica_is_lost() {
    begins(Over::Replaced, one(), Budget { crashes: 1, ..WAIT }, 15_808);
    begins(Over::Replaced, one(), Budget { isolations: 1, ..WAIT }, 36_880);
}

/// Where they do not come to an end, the first five million states.
#[test]
fn many_states() {
    if !is_large() {
        return;
    }
    let begun = |name: &str, prepared, budget| {
        let setup = Setup { prepared, budget, ..Setup::flair(Vr, one()) };
        assert_eq!(run(&format!("FLAIR, {name}, time passes"), setup).violation, None);
    };
    begun("the switch is replaced", vec![], Budget { replacements: 1, ..WAIT });
    begun("another switch takes over", vec![], Budget { rivals: 1, ..WAIT });
    begun("a replica comes back empty", vec![], Budget { restarts: 1, ..WAIT });
    begun("a crash, twice", vec![], Budget { crashes: 1, waits: 2, ..Budget::NOTHING });
    begun("another switch took over", next_session(Over::Rival), WAIT);
}

#[test]
fn no_history_is_lost() {
    loses_nothing_of(Setup { budget: MOMENT, ..Setup::flair(Vr, short()) }, 44_376);
    loses_nothing_of(Setup { budget: TWICE, ..Setup::flair(Vr, short()) }, 11_540);
    let (prepared, budget) = (next_session(Over::LeaderDied), WAIT);
    loses_nothing_of(Setup { prepared, budget, ..Setup::flair(Vr, writes()) }, 29_455);
    if is_large() {
        let budget = Budget { crashes: 1, ..WAIT };
        loses_nothing_of(Setup { budget, ..Setup::flair(Vr, writes()) }, 3_450_409);
    }
}

/// A setup without those guards.
fn without(guards: &[Guard], setup: Setup) -> bool {
    let all = guards.iter().fold(Guards::ALL, |all, guard| all.and_without(*guard));
    let found = run(&format!("FLAIR, without {guards:?}"), Setup { guards: all, ..setup });
    assert!(found.violation.is_some() || found.is_complete, "{guards:?}: there are more states");
    found.violation.is_some()
}

#[test]
fn each_guard() {
    let ordered =
        |guard, scripts| assert!(without(&[guard], Setup::flair(Vr, scripts)), "{guard:?}");
    ordered(Guard::UnstableGroup, short());
    ordered(Guard::AllKeysGroup, all_keys());
    ordered(Guard::InOrderWrites, two_writers());
    let budget = Budget { losses: 1, ..WAIT };
    let counted = vec![vec![Incr("k"), Get("k")]];
    assert!(without(&[Guard::ClientTable], Setup { budget, ..Setup::flair(Vr, counted) }));
    let view = Prepared::Missed { missed: 0, leader_dies: true };
    let prepared = vec![view];
    assert!(without(
        &[Guard::View],
        Setup { prepared, budget: WAIT, ..Setup::flair(Vr, writes()) }
    ));
}

/// The late reply to the third write of the session before comes while the third of this one is
/// under way.
#[test]
fn what_is_of_another_session() {
    let prepared = next_session(Over::LeaderDied);
    let three = vec![Set("k", "1"), Set("k", "2"), Set("k", "3")];
    let setup = Setup { prepared, ..Setup::flair(Vr, vec![three, vec![Get("k")]]) };
    assert!(!without(&[], setup.clone()));
    assert!(without(&[Guard::SwitchSession], setup));
}

/// A chunk comes once more after the session is active, and a write was executed.
#[test]
fn a_chunk_that_comes_late() {
    let prepared = next_session(Over::LeaderDied);
    let setup = Setup { prepared, budget: TWICE, ..Setup::flair(Vr, short()) };
    assert!(without(&[Guard::UploadOnce], setup));
}

/// Of these two either is enough: a follower that does not hold a group is not asked, and executes
/// first what it is asked for.
#[test]
fn matched_prefix_and_visibility_cover_each_other() {
    for scripts in [full(), two_writers()] {
        assert!(!without(&[Guard::MatchedPrefix], Setup::flair(Vr, scripts.clone())));
        assert!(!without(&[Guard::Visibility], Setup::flair(Vr, scripts)));
    }
    assert!(without(&[Guard::MatchedPrefix, Guard::Visibility], Setup::flair(Vr, short())));
}

/// docs/internals/flair.md, "The check of replies is not what safety hangs on".
#[test]
fn without_the_check_of_replies_no_state_is_wrong_either() {
    for scripts in [full(), two_writers(), all_keys()] {
        assert!(!without(&[Guard::StaleReply], Setup::flair(Vr, scripts)));
    }
    for budget in [MOMENT, TWICE] {
        let setup = Setup { budget, ..Setup::flair(Vr, short()) };
        assert!(!without(&[Guard::StaleReply], setup.clone()));
        let prepared = next_session(Over::LeaderDied);
        assert!(!without(&[Guard::StaleReply], Setup { prepared, ..setup }));
    }
}
