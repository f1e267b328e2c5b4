use super::*;
use alloc::vec;
use concord_core::SEC;

type Sent = Vec<(Addr, Vec<u8>)>;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

fn member(node: u16, incarnation: u64) -> Member {
    Member { node, incarnation, addr: Addr { ip: 1, port: node } }
}

fn setup() -> ControllerConfig {
    ControllerConfig {
        replicas: vec![1, 2, 3],
        protocol: Protocol::Chain,
        accelerated: true,
        failure_ns: SEC,
        fresh: false,
        guards: Guards::ALL,
    }
}

fn say(c: &mut Controller, ms: u64, message: &Control) -> Sent {
    let (mut bytes, mut sent) = (vec![], vec![]);
    message.emit(&mut bytes);
    c.handle(at(ms), &bytes, &mut sent);
    sent
}

fn alive(node: u16, incarnation: u64, epoch: u32) -> Control {
    let member = member(node, incarnation);
    Control::ReplicaAlive { member, epoch, open: epoch != 0, leaving: false }
}

fn switch(incarnation: u64, epoch: u32) -> Control {
    Control::SwitchAlive { incarnation, addr: Addr { ip: 9, port: 9 }, epoch }
}

fn founded() -> Controller {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 10, 0));
    }
    say(&mut c, 0, &switch(77, 0));
    assert!(c.poll_persist().is_some());
    c.persisted(at(0), &mut vec![]);
    c
}

fn nodes(c: &Controller) -> Vec<u16> {
    c.state().config.iter().flat_map(|c| c.members.iter()).map(|m| m.node).collect()
}

#[test]
fn t3_nobody_hears_of_an_epoch_before_it_is_persisted() {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        assert!(say(&mut c, 0, &alive(node, 10, 0)).is_empty());
    }
    assert!(say(&mut c, 0, &switch(77, 0)).is_empty());
    let state = c.poll_persist().unwrap();
    assert_eq!((state.version, state.last_switch_id), (1, 1));
    assert!(c.poll_persist().is_none());
    assert!(say(&mut c, 1, &alive(1, 10, 0)).is_empty());
    let mut sent = vec![];
    c.persisted(at(1), &mut sent);
    assert_eq!(sent.len(), 3);
}

#[test]
fn the_switch_is_configured_once_every_member_has_opened() {
    let mut c = founded();
    assert!(say(&mut c, 1, &alive(1, 10, 1)).is_empty());
    assert!(say(&mut c, 1, &alive(2, 10, 1)).is_empty());
    let sent = say(&mut c, 1, &alive(3, 10, 1));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, Addr { ip: 9, port: 9 });
    assert!(say(&mut c, 2, &switch(77, 1)).is_empty());
}

#[test]
fn t4_a_restarted_replica_is_removed_and_stays_out() {
    let mut c = founded();
    say(&mut c, 5, &alive(2, 11, 0));
    assert!(c.poll_persist().is_some());
    c.persisted(at(5), &mut vec![]);
    assert_eq!(nodes(&c), [1, 3]);
    say(&mut c, 6, &alive(2, 11, 2));
    assert!(c.poll_persist().is_none());
}

#[test]
fn a_silent_replica_is_removed_but_not_because_the_controller_slept() {
    let mut c = founded();
    let mut t = 0;
    while t < 1_200 {
        t += 50;
        say(&mut c, t, &alive(1, 10, 1));
        say(&mut c, t, &alive(3, 10, 1));
        c.tick(at(t), &mut vec![]);
    }
    assert!(c.poll_persist().is_some());
    c.persisted(at(t), &mut vec![]);
    assert_eq!(nodes(&c), [1, 3]);
    c.tick(at(t + 60_000), &mut vec![]);
    assert!(c.poll_persist().is_none());
}

#[test]
fn the_last_member_is_never_removed() {
    let mut c = founded();
    for n in 0..100 {
        c.tick(at(n * 50), &mut vec![]);
        if c.poll_persist().is_some() {
            c.persisted(at(n * 50), &mut vec![]);
        }
    }
    assert_eq!(nodes(&c), [1, 2, 3]);
}

#[test]
fn t20_a_restarted_switch_gets_a_new_id_and_an_old_one_that_wakes_up_gets_none() {
    let mut c = founded();
    say(&mut c, 5, &switch(78, 0));
    let state = c.poll_persist().unwrap();
    assert_eq!(state.last_switch_id, 2);
    c.persisted(at(5), &mut vec![]);
    say(&mut c, 6, &switch(77, 1));
    assert!(c.poll_persist().is_none());
    // Started again from its file, also with a fresh group: ids go on.
    let again = ControllerConfig { fresh: true, ..setup() };
    let mut c = Controller::new(again, Some(state));
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 20, 0));
    }
    say(&mut c, 0, &switch(79, 0));
    let state = c.poll_persist().unwrap();
    assert_eq!((state.last_switch_id, state.config.unwrap().epoch), (3, 3));
}
