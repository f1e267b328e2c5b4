//! The rack's switch: its ids, the standby that takes its place, and an old one that wakes up.

use super::*;

/// A restarted switch gets a new id and an old one that wakes up gets none.
#[test]
fn t20_restarted_switch_gets_a_new_id() {
    let mut c = founded();
    say(&mut c, 5, &switch(78, 0));
    let state = c.poll_persist().unwrap().what;
    assert_eq!(state.last_switch_id, 2);
    c.persisted(at(5), c.state().version + 1, &mut vec![]);
    say(&mut c, 6, &switch(77, 1));
    assert!(c.poll_persist().is_none());
    // Started again from its file, also with a fresh group: ids go on.
    let again = ControllerConfig { fresh: true, ..setup() };
    let mut c = Controller::new(again, Some(state));
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 20, 0));
    }
    say(&mut c, 0, &switch(79, 0));
    let state = c.poll_persist().unwrap().what;
    assert_eq!((state.last_switch_id, state.config(GROUP).unwrap().epoch), (3, 3));
}

/// The numbers, the registers and, in VR, the views that the switch knows are those of the group
/// before.
#[test]
fn bug_15_19_refounded_group_gets_a_new_switch_id() {
    let state = founded().state().clone();
    assert_eq!(state.last_switch_id, 1);
    let again = ControllerConfig { fresh: true, ..setup() };
    let mut c = Controller::new(again, Some(state));
    say(&mut c, 0, &switch(77, 1));
    say(&mut c, 0, &alive(1, 10, 1));
    say(&mut c, 0, &alive(2, 20, 0));
    say(&mut c, 0, &stands(3, 10, 1, Standing::Leaving));
    assert!(c.poll_persist().is_none(), "who has left founds nothing");
    say(&mut c, 0, &alive(3, 20, 0));
    let state = c.poll_persist().unwrap().what;
    assert_eq!((state.last_switch_id, state.switch_incarnation), (2, 77));
    assert_eq!(state.retired_switches, []);
    assert_eq!(state.config(GROUP).unwrap().switch_id, 2);
}

#[test]
fn a_switch_that_was_just_replaced_is_no_newcomer() {
    let mut c = founded();
    say(&mut c, 1, &switch(77, 1));
    let addr = Addr { ip: 7, port: 7 };
    let newcomer = Membership::SwitchAlive {
        incarnation: 5,
        addr,
        sent_at: 0,
        epoch: 0,
        heard: heard(0),
        standby: false,
    };
    say(&mut c, 2, &newcomer);
    assert_eq!(persist(&mut c, 2), Some(2));
    c.tick(at(100), &mut vec![]);
    assert_eq!(persist(&mut c, 100), None);
}

const STANDBY: Addr = Addr { ip: 8, port: 8 };

/// How long a switch has been silent when a standby takes over, in ms; nodes say every 50 ms that
/// they live.
fn silence_until_taken(setup: ControllerConfig) -> u64 {
    let mut c = Controller::new(setup, None);
    for ms in (50..=1_000).step_by(50) {
        let epoch = c.state().config(GROUP).map_or(0, |config| config.epoch);
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, epoch))));
        say(&mut c, ms, &switch(77, epoch));
        if epoch > 0 {
            say(&mut c, ms, &standby(90, 0));
        }
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    let taken = (1_050..4_000).step_by(50).find(|ms| {
        (1..=3).for_each(|node| drop(say(&mut c, *ms, &alive(node, 10, 1))));
        say(&mut c, *ms, &standby(90, 0));
        persist(&mut c, *ms).is_some()
    });
    taken.unwrap() - 1_000
}

/// A silent switch is replaced sooner than a node where that is said and never later.
#[test]
fn silent_switch_replaced_by_its_own_timeout() {
    assert_eq!(silence_until_taken(setup()), 1_050);
    let soon = ControllerConfig { switch_failure_ns: 300 * MS, ..setup() };
    assert_eq!(silence_until_taken(soon), 350);
    let late = ControllerConfig { switch_failure_ns: 9 * SEC, ..setup() };
    assert_eq!(silence_until_taken(late), 1_050);
}

/// A standby takes over from a silent switch and not before.
#[test]
fn section_6_3_standby_takes_over_from_a_silent_switch() {
    let mut c = founded();
    let mut t = 0;
    let replicas_live = |c: &mut Controller, t: u64, epoch| {
        (1..=3).for_each(|node| drop(say(c, t, &alive(node, 10, epoch))));
        say(c, t, &standby(90, 0))
    };
    while t < 3_000 {
        t += 50;
        replicas_live(&mut c, t, 1);
        say(&mut c, t, &switch(77, 1));
        assert_eq!(persist(&mut c, t), None);
    }
    while t < 3_900 {
        t += 50;
        replicas_live(&mut c, t, 1);
        assert_eq!(persist(&mut c, t), None);
    }
    t += 200;
    replicas_live(&mut c, t, 1);
    assert_eq!(persist(&mut c, t), Some(2));
    let config = c.state().config(GROUP).unwrap().clone();
    assert_eq!((config.switch, config.switch_id, config.switch_incarnation), (STANDBY, 2, 90));
    assert_eq!(c.counters().standbys_taken, 1);
    // It hears of it when every member refuses the old one's fast reads.
    assert_eq!(configured(&say(&mut c, t, &standby(90, 0)), STANDBY), None);
    (1..=3).for_each(|node| drop(say(&mut c, t, &alive(node, 10, 2))));
    assert_eq!(configured(&say(&mut c, t, &standby(90, 0)), STANDBY), Some(2));
    // The old one wakes up: it gets no id, and is told that it is not the switch any more.
    let told = say(&mut c, t, &switch(77, 1));
    let retired = Membership::SwitchRetired { incarnation: 77, switch: STANDBY };
    assert_eq!(Membership::parse(&told[0].1), Ok(retired));
    assert_eq!(persist(&mut c, t), None);
}

/// When every switch id was granted that is said and nothing is granted.
#[test]
fn t20_used_up_switch_ids_grant_nothing() {
    let state = State { last_switch_id: u32::MAX, ..founded().state().clone() };
    let mut c = Controller::new(setup(), Some(state));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    say(&mut c, 1, &switch(78, 0));
    assert_eq!((persist(&mut c, 1), c.problem()), (None, Some(Problem::SwitchIdsExhausted)));
    assert!(c.problem().unwrap().to_string().contains("every switch id was granted"));
    // The old one may go on.
    say(&mut c, 2, &switch(77, 1));
    assert_eq!(c.problem(), None);
}
