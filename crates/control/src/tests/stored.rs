//! A state that the disk does not take.

use super::*;
use crate::NotStored;

/// What was handed out could not be stored.
fn refuse(c: &mut Controller, ms: u64, why: NotStored) -> Option<u32> {
    let epoch = c.poll_persist()?.what.config(GROUP).map(|config| config.epoch);
    c.not_stored(at(ms), why);
    epoch
}

/// The controller ended when its disk was full. Nobody hears of what was not stored, and once there
/// is room what is decided is what is known then.
#[test]
fn bug_22_130_full_disk_changes_nothing() {
    let mut c = founded();
    let hear = |c: &mut Controller, ms: u64, nodes: &[u16]| {
        let mut sent = Sent::new();
        for node in nodes {
            sent.extend(say(c, ms, &alive(*node, 10, 1)));
        }
        sent.extend(say(c, ms, &switch(77, 1)));
        c.tick(at(ms), &mut sent);
        sent
    };
    let before = c.state().clone();
    (50..=1_000).step_by(50).for_each(|ms| drop(hear(&mut c, ms, &[1, 2])));
    hear(&mut c, 1_050, &[1, 2]);
    assert_eq!(refuse(&mut c, 1_050, NotStored::Full), Some(2));
    assert_eq!(c.problem(), Some(Problem::NotStored(NotStored::Full)));
    assert!(c.problem().unwrap().to_string().contains("is full"));
    // It is not tried again with each packet.
    let sent = hear(&mut c, 1_100, &[1, 2]);
    assert!(c.poll_persist().is_none() && *c.state() == before);
    assert!(!sent.iter().any(|(_, bytes)| {
        matches!(Membership::parse(bytes), Ok(Membership::Configure(part)) if part.common().epoch == 2)
    }));
    hear(&mut c, 1_150, &[1, 2]);
    assert_eq!(refuse(&mut c, 1_150, NotStored::Full), Some(2), "and again");
    assert_eq!(c.counters().removed_silent, 0, "nobody was removed");
    assert_eq!(c.counters().not_stored, 2);
    // Meanwhile the one that was silent is back, and another one is dead.
    for ms in (1_200..2_300).step_by(50) {
        hear(&mut c, ms, &[2, 3]);
        refuse(&mut c, ms, NotStored::Full);
    }
    hear(&mut c, 2_400, &[2, 3]);
    assert_eq!(persist(&mut c, 2_400), Some(2));
    assert_eq!((nodes(&c), c.problem()), (vec![2, 3], None));
    assert_eq!(c.counters().removed_silent, 1);
}

/// Where the disk fails behind the rename, nobody knows which state a successor finds.
#[test]
fn bug_22_130_state_in_doubt_ends_all_changes() {
    let mut c = founded();
    let before = c.state().clone();
    for ms in (50..=1_050).step_by(50) {
        for node in [1, 2] {
            say(&mut c, ms, &alive(node, 10, 1));
        }
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
    }
    assert_eq!(refuse(&mut c, 1_050, NotStored::Unknown), Some(2));
    for ms in (1_100..5_000).step_by(50) {
        say(&mut c, ms, &alive(1, 10, 1));
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        assert!(c.poll_persist().is_none());
    }
    assert_eq!(c.problem(), Some(Problem::NotStored(NotStored::Unknown)));
    assert_eq!(*c.state(), before);
    // What is in force is told as before.
    let sent = say(&mut c, 5_000, &alive(2, 10, 0));
    assert_eq!(configured(&sent, member(2, 10).addr), Some(1));
}
