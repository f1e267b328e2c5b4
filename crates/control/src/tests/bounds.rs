//! Times and numbers at their bounds: the last moment at which nothing happens, and the first at
//! which something does.

use super::*;
use crate::{REPLICAS_MAX, RETIRED_MAX, SWITCHES_MAX};
use concord_wire::control::PLACES_MAX;

/// A controller that heard everybody at 1,000 ms, and all but `silent` since.
fn silent_since_1000(silent: u16) -> Controller {
    let mut c = founded();
    live(&mut c, 50, 1_001, |_| vec![]);
    for ms in (1_100..2_000).step_by(100) {
        for node in (1..=3).filter(|node| *node != silent) {
            say(&mut c, ms, &alive(node, 10, 1));
        }
        if silent != 0 {
            say(&mut c, ms, &switch(77, 1));
        }
        say(&mut c, ms, &standby(90, 0));
        assert_eq!(persist(&mut c, ms), None);
    }
    c
}

#[test]
fn who_was_heard_within_the_failure_time_is_not_silent() {
    for (ms, epoch, left) in [(2_000, None, vec![1, 2, 3]), (2_001, Some(2), vec![1, 3])] {
        let mut c = silent_since_1000(2);
        say(&mut c, ms, &alive(1, 10, 1));
        c.tick(at(ms), &mut vec![]);
        assert_eq!((persist(&mut c, ms), nodes(&c)), (epoch, left), "at {ms} ms");
    }
    // Nor while nobody is heard: whose silence that is will be seen.
    let mut c = silent_since_1000(2);
    c.tick(at(2_200), &mut vec![]);
    assert_eq!((persist(&mut c, 2_200), nodes(&c)), (None, vec![1, 2, 3]));
    say(&mut c, 2_201, &alive(1, 10, 1));
    assert_eq!((persist(&mut c, 2_201), nodes(&c)), (Some(2), vec![1, 3]));
    // The switch, likewise.
    for (ms, active) in [(2_000, 77), (2_001, 90)] {
        let mut c = silent_since_1000(0);
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
        assert_eq!(c.state().switch_incarnation, active, "at {ms} ms");
    }
}

/// A controller is deaf after half the failure time and 140 ms at least.
#[test]
fn deaf_after_half_the_failure_time() {
    for (failure_ms, patience_ms) in [(1_000, 500), (400, 200), (200, 140)] {
        for (late_ms, deaf) in [(0, 0), (1, 1)] {
            let setup = ControllerConfig { failure_ns: failure_ms * MS, ..setup() };
            let mut c = Controller::new(setup, None);
            say(&mut c, 100, &alive(1, 10, 0));
            say(&mut c, 100 + patience_ms + late_ms, &alive(1, 10, 0));
            assert_eq!(c.counters().deaf, deaf, "{failure_ms} ms, {late_ms} ms late");
        }
    }
}

#[test]
fn a_wait_is_told_once_the_failure_time_has_passed() {
    for (ms, problem) in [(1_000, None), (1_001, Some(Problem::WaitsForSwitch))] {
        let mut c = Controller::new(setup(), None);
        for said_ms in [0, 400, 800, ms] {
            (1..=3).for_each(|node| drop(say(&mut c, said_ms, &alive(node, 10, 0))));
        }
        assert_eq!((c.problem(), persist(&mut c, ms)), (problem, None), "at {ms} ms");
    }
}

#[test]
fn it_wakes_up_every_50_ms_and_not_before() {
    let mut c = recovering(&[], None);
    say(&mut c, 0, &alive(1, 10, 23));
    let mut asked = |ms| {
        let mut sent = vec![];
        c.tick(at(ms), &mut sent);
        (sent.len(), c.deadline().at)
    };
    assert_eq!(asked(100), (1, Instant(150 * MS)));
    assert_eq!(asked(149), (0, Instant(150 * MS)), "too early does no harm");
    assert_eq!(asked(150), (1, Instant(200 * MS)));
    assert_eq!(asked(900), (1, Instant(950 * MS)), "too late, too");
}

/// A stranger is shown for two seconds and one of several stays the same.
#[test]
fn strangers_are_shown_for_two_seconds() {
    let stray = |node| but(alive(node, 10, 1), |a| a.heard.rack = RACK + 1);
    let mut c = founded();
    live(&mut c, 50, 1_000, |_| vec![]);
    for node in [8, 9] {
        assert!(say(&mut c, 1_000, &stray(node)).is_empty());
    }
    let shown = Some(Problem::Stranger { addr: member(8, 0).addr });
    live(&mut c, 1_000, 3_001, |_| vec![]);
    assert_eq!((c.problem(), c.counters().foreign), (shown, 2));
    live(&mut c, 3_001, 3_100, |_| vec![]);
    assert_eq!(c.problem(), None);
    // Another one comes later.
    say(&mut c, 3_100, &stray(9));
    assert_eq!(c.problem(), Some(Problem::Stranger { addr: member(9, 0).addr }));
    // Whoever has heard of no rack yet is none.
    say(&mut c, 3_100, &alive(7, 10, 0));
    assert_eq!((c.counters().foreign, nodes(&c)), (3, vec![1, 2, 3]));
}

/// The switches that are known are bounded and the active one is among them.
#[test]
fn known_switches_are_bounded() {
    let mut c = founded();
    let most = SWITCHES_MAX as u16;
    for n in 0..=most {
        say(&mut c, 10 + u64::from(n), &switch_alive(100 + n, u64::from(200 + n), 0, true));
    }
    let known: Vec<u64> = c.switches(at(100)).map(|(incarnation, ..)| incarnation).collect();
    assert_eq!(known.len(), SWITCHES_MAX);
    assert!(known.contains(&77), "the active one");
    assert!(!known.contains(&200) && !known.contains(&201), "not those that were silent longest");
}

#[test]
fn t20_the_lives_of_the_switch_that_are_remembered_are_bounded() {
    let mut c = founded();
    let last = 1_000 + RETIRED_MAX as u64 + 1;
    for incarnation in 1_000..=last {
        say(&mut c, 1, &switch(incarnation, 0));
        assert!(persist(&mut c, 1).is_some());
    }
    let expected: Vec<u64> = (last - RETIRED_MAX as u64..last).collect();
    assert_eq!(c.state().retired_switches, expected);
    assert_eq!(u64::from(c.state().last_switch_id), last - 1_000 + 2);
    assert_eq!(c.counters().switch_ids_granted, last - 1_000 + 2);
}

#[test]
fn the_replicas_of_a_group_are_bounded_those_that_join_included() {
    let mut c = founded();
    // They are known before the epoch is open, so that all of them come at once.
    for node in 4..100 {
        say(&mut c, 1, &stands(node, 10, 1, Standing::Out));
    }
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    assert_eq!(persist(&mut c, 1), Some(2));
    assert_eq!(nodes(&c).len() + joining(&c).len(), REPLICAS_MAX);
    assert_eq!(c.counters().admitted as usize, REPLICAS_MAX - 3);
    // A place that is free is another one's.
    for node in nodes(&c) {
        say(&mut c, 2, &alive(node, 10, 2));
    }
    say(&mut c, 2, &stands(99, 10, 2, Standing::Out));
    say(&mut c, 2, &stands(4, 10, 2, Standing::Leaving));
    assert_eq!(persist(&mut c, 2), Some(3));
    assert!(!joining(&c).contains(&4) && joining(&c).contains(&99), "{:?}", joining(&c));
    assert_eq!(nodes(&c).len() + joining(&c).len(), REPLICAS_MAX);
}

#[test]
fn the_workers_of_a_group_are_as_many_as_a_configuration_holds() {
    let group = GroupSetup::workers(GROUP, Program::Falcon);
    let mut c = Controller::new(ControllerConfig { groups: vec![group], ..setup() }, None);
    for node in 1..=PLACES_MAX as u16 + 2 {
        say(&mut c, 1, &alive(node, 10, 0));
    }
    say(&mut c, 1, &switch(77, 0));
    assert_eq!(persist(&mut c, 1), Some(1));
    assert_eq!(nodes(&c).len(), PLACES_MAX);
}

/// When every epoch was used that is said and nothing changes.
#[test]
fn t3_used_up_epochs_are_reported() {
    let mut state = founded().state().clone();
    state.groups[0].config.epoch = u32::MAX;
    let mut c = Controller::new(setup(), Some(state.clone()));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, u32::MAX))));
    say(&mut c, 1, &switch(78, 0));
    assert_eq!((persist(&mut c, 1), c.problem()), (None, Some(Problem::EpochsExhausted)));
    assert_eq!(*c.state(), state);
}

#[test]
fn the_compare_and_swap_takes_the_next_version_alone() {
    let of = |version| State { version, ..State::default() };
    let takes = |next, stored: Option<u64>| of(next).follows(stored.map(of).as_ref(), Guards::ALL);
    assert!(takes(1, None) && takes(8, Some(7)));
    assert!(!takes(0, None) && !takes(2, None));
    assert!(!takes(7, Some(7)) && !takes(9, Some(7)) && !takes(6, Some(7)));
}

/// docs/internals/bugs.md, 19.25: another controller still goes on from the state that was lost.
#[test]
fn bug_19_25_rebuilt_state_is_not_replaced_by_the_lost_ones() {
    let at_epoch = |version, epoch| {
        let mut state = founded().state().clone();
        (state.version, state.groups[0].config.epoch) = (version, epoch);
        state
    };
    let anew = at_epoch(1, 1_025);
    assert!(!at_epoch(2, 2).follows(Some(&anew), Guards::ALL));
    assert!(at_epoch(2, 1_025).follows(Some(&anew), Guards::ALL));
    assert!(at_epoch(2, 1_026).follows(Some(&anew), Guards::ALL));
    let mut other = at_epoch(2, 1);
    other.groups[0].config.rack += 1;
    assert!(other.follows(Some(&anew), Guards::ALL), "a rack that is begun anew");
}

/// It is silent, whatever an earlier life of it had said, and comes now.
#[test]
fn t4_late_packets_keep_no_dead_member() {
    let mut c = founded();
    live(&mut c, 50, 1_000, |_| vec![]);
    for ms in (1_000..2_100).step_by(50) {
        say(&mut c, ms, &alive(1, 10, 1));
        say(&mut c, ms, &stands(2, 9, 0, Standing::Out));
        say(&mut c, ms, &alive(3, 10, 1));
        say(&mut c, ms, &switch(77, 1));
        persist(&mut c, ms);
    }
    assert_eq!((nodes(&c), c.counters().removed_silent), (vec![1, 3], 1));
}

#[test]
fn a_joining_replica_need_not_hear_those_who_are_no_members() {
    let mut c = founded();
    live(&mut c, 50, 100, |_| vec![]);
    say(&mut c, 100, &stands(4, 10, 1, Standing::Out));
    assert_eq!((persist(&mut c, 100), joining(&c)), (Some(2), vec![4]));
    for (unheard, expected) in [(vec![3], None), (vec![9], Some(3))] {
        let says = but(stands(4, 10, 2, Standing::Copied), |a| a.unheard = unheard);
        for ms in (110..1_200).step_by(50) {
            (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 2))));
            say(&mut c, ms, &switch(77, 2));
            say(&mut c, ms, &says);
        }
        // Nor does anybody hear of it.
        let cut = expected.is_none().then_some(Problem::CutPair { one: 3, other: 4 });
        assert_eq!((c.problem(), persist(&mut c, 1_200)), (cut, expected));
    }
}

/// A joining replica is not cut off from members that are dead.
#[test]
fn bug_16_12_joiner_is_not_cut_off_from_dead_members() {
    let mut c = founded();
    live(&mut c, 50, 100, |_| vec![]);
    say(&mut c, 100, &stands(4, 10, 1, Standing::Out));
    assert_eq!((persist(&mut c, 100), joining(&c)), (Some(2), vec![4]));
    live(&mut c, 150, 300, |_| vec![]);
    // The members die.
    let says = but(stands(4, 10, 2, Standing::Copied), |a| a.unheard = vec![1, 2, 3]);
    for ms in (300..6_000).step_by(50) {
        say(&mut c, ms, &says);
        say(&mut c, ms, &switch(77, 2));
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    assert_eq!(c.problem(), Some(Problem::NobodyCaughtUp));
}

/// It came while nothing could be decided, and is gone.
#[test]
fn silent_new_switch_is_not_taken() {
    let mut c = Controller::new(setup(), Some(founded().state().clone()));
    say(&mut c, 1, &switch(78, 0));
    assert_eq!(persist(&mut c, 1), None, "no replica was heard");
    for ms in [1_100, 1_200] {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 1))));
        c.tick(at(ms), &mut vec![]);
        assert_eq!((persist(&mut c, ms), c.state().switch_incarnation), (None, 77));
    }
}

/// docs/internals/bugs.md, 22.158: replicas that lost power together fell silent one after the
/// other, and the last one was left in an epoch of its own: only its disk counted from then on.
#[test]
fn bug_22_158_who_falls_silent_last_is_not_left_alone() {
    let mut c = founded();
    live(&mut c, 50, 1_001, |_| vec![]);
    say(&mut c, 1_090, &alive(3, 10, 1));
    for ms in (1_100..4_000).step_by(10) {
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        assert_eq!((persist(&mut c, ms), nodes(&c)), (None, vec![1, 2, 3]), "at {ms} ms");
    }
}
