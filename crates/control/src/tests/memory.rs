//! Nodes of a shared memory: every change of who is there is another epoch.

use super::*;

fn founded() -> Controller {
    let groups = vec![GroupSetup::memory(GROUP, Program::Concordia)];
    let mut c = Controller::new(ControllerConfig { groups, ..setup() }, None);
    (1..=3).for_each(|node| drop(say(&mut c, 0, &alive(node, 10, 0))));
    say(&mut c, 0, &switch(77, 0));
    assert_eq!((persist(&mut c, 0), nodes(&c)), (Some(1), vec![1, 2, 3]));
    c
}

/// All but those say that they live, and have opened the newest epoch.
fn live(c: &mut Controller, (from_ms, to_ms): (u64, u64), silent: &[u16]) {
    for ms in (from_ms..to_ms).step_by(50) {
        let epoch = c.state().config(GROUP).map_or(0, |config| config.epoch);
        for node in nodes(c).into_iter().filter(|n| !silent.contains(n)) {
            say(c, ms, &alive(node, 10, epoch));
        }
        say(c, ms, &switch(77, epoch));
        c.tick(at(ms), &mut vec![]);
        persist(c, ms);
    }
}

#[test]
fn a_memory_goes_on_without_a_silent_node() {
    let mut c = founded();
    live(&mut c, (0, 1_000), &[]);
    live(&mut c, (1_000, 3_000), &[2]);
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![]));
    // One that has not heard of it is not let in: it was a member, and thinks that it is.
    say(&mut c, 3_000, &alive(2, 10, 1));
    assert_eq!(persist(&mut c, 3_000), None);
    say(&mut c, 3_010, &stands(2, 11, 2, Standing::Out));
    assert_eq!((persist(&mut c, 3_010), nodes(&c)), (Some(3), vec![1, 3, 2]));
}

/// Members that nobody hears may be alive, and have leases of each other: others do not go on
/// without any of them, until one is back, as itself or as another process (trap C9).
#[test]
fn c9_nobody_goes_on_while_all_members_are_silent() {
    let alone = |guards| {
        let groups = vec![GroupSetup::memory(GROUP, Program::Concordia)];
        let mut c = Controller::new(ControllerConfig { groups, guards, ..setup() }, None);
        say(&mut c, 0, &alive(1, 10, 0));
        say(&mut c, 0, &switch(77, 0));
        assert_eq!((persist(&mut c, 0), nodes(&c)), (Some(1), vec![1]));
        for ms in (0..3_000).step_by(50) {
            say(&mut c, ms, &stands(2, 10, 1, Standing::Out));
            say(&mut c, ms, &switch(77, 1));
            c.tick(at(ms), &mut vec![]);
            persist(&mut c, ms);
        }
        c
    };
    let mut c = alone(Guards::ALL);
    assert_eq!(nodes(&c), [1]);
    // It was started again: what it had is gone, and so are its leases.
    say(&mut c, 3_000, &stands(1, 11, 1, Standing::Out));
    assert_eq!((persist(&mut c, 3_000), nodes(&c)), (Some(2), vec![1, 2]));
    #[cfg(feature = "mutants")]
    assert_eq!(nodes(&alone(Guards::without(Guard::MemorySurvivor))), [2], "and 1 goes on alone");
}

/// The members wait for what it tells; once they have all opened an epoch they have it.
#[test]
fn whoever_leaves_a_memory_is_waited_for_until_it_is_open() {
    let mut c = founded();
    live(&mut c, (0, 200), &[]);
    say(&mut c, 200, &stands(2, 10, 1, Standing::Leaving));
    assert_eq!(persist(&mut c, 200), Some(2));
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![2]));
    // It has told all, and its process is gone: nothing changes.
    live(&mut c, (250, 3_000), &[]);
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![2]));
    // It comes back as another one.
    say(&mut c, 3_000, &stands(2, 11, 2, Standing::Out));
    assert_eq!(persist(&mut c, 3_000), Some(3));
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3, 2], vec![]));
}

/// One that dies before it has told all is waited for no longer.
#[test]
fn whoever_dies_while_it_leaves_is_not_waited_for() {
    let mut c = founded();
    live(&mut c, (0, 200), &[]);
    say(&mut c, 200, &stands(2, 10, 1, Standing::Leaving));
    assert_eq!(persist(&mut c, 200), Some(2));
    for ms in (250..3_000).step_by(50) {
        let opening = Standing::Opening { caught_up: true };
        for node in [1, 3] {
            let epoch = c.state().config(GROUP).map_or(0, |config| config.epoch);
            say(&mut c, ms, &stands(node, 10, epoch, opening));
        }
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![]));
}
