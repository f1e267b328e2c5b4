use super::*;
use alloc::string::ToString;
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

fn stands(node: u16, incarnation: u64, epoch: u32, standing: Standing) -> Control {
    Control::ReplicaAlive { member: member(node, incarnation), epoch, standing }
}

fn alive(node: u16, incarnation: u64, epoch: u32) -> Control {
    let standing = if epoch == 0 { Standing::Out } else { Standing::Open { whole: true } };
    stands(node, incarnation, epoch, standing)
}

fn switch(incarnation: u64, epoch: u32) -> Control {
    let addr = Addr { ip: 9, port: 9 };
    Control::SwitchAlive { incarnation, addr, epoch, standby: false }
}

fn standby(incarnation: u64, epoch: u32) -> Control {
    let addr = Addr { ip: 8, port: 8 };
    Control::SwitchAlive { incarnation, addr, epoch, standby: true }
}

/// Persists what is proposed; its epoch, if something is.
fn persist(c: &mut Controller, ms: u64) -> Option<u32> {
    let state = c.poll_persist()?;
    c.persisted(at(ms), &mut vec![]);
    state.config.map(|config| config.epoch)
}

fn joining(c: &Controller) -> Vec<u16> {
    c.state().config.iter().flat_map(|c| c.joining.iter()).map(|m| m.node).collect()
}

/// The epoch of the configuration among `sent` to that address.
fn configured(sent: &Sent, to: Addr) -> Option<u32> {
    sent.iter().filter(|(addr, _)| *addr == to).find_map(|(_, bytes)| match Control::parse(bytes) {
        Ok(Control::Configure(config)) => Some(config.epoch),
        _ => None,
    })
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
fn t4_a_restarted_replica_is_removed_and_let_in_by_two_epochs() {
    let mut c = founded();
    // It may be a late packet of an earlier life, unless it has heard of the configuration.
    let told = say(&mut c, 5, &alive(2, 11, 0));
    assert_eq!((persist(&mut c, 5), configured(&told, member(2, 11).addr)), (None, Some(1)));
    say(&mut c, 5, &stands(2, 11, 1, Standing::Out));
    assert_eq!(persist(&mut c, 5), Some(2));
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![]), "not before epoch 1 was open");
    say(&mut c, 6, &stands(2, 11, 2, Standing::Out));
    for node in [1, 3] {
        say(&mut c, 6, &alive(node, 10, 2));
    }
    assert_eq!(persist(&mut c, 6), Some(3));
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3], vec![2]));
    for node in [1, 3] {
        say(&mut c, 7, &alive(node, 10, 3));
    }
    say(&mut c, 7, &stands(2, 11, 3, Standing::Copying));
    // The word of another epoch means nothing.
    say(&mut c, 7, &stands(2, 11, 2, Standing::Copied));
    assert_eq!(persist(&mut c, 7), None);
    say(&mut c, 8, &stands(2, 11, 3, Standing::Copied));
    assert_eq!(persist(&mut c, 8), Some(4));
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 3, 2], vec![]));
    assert_eq!(c.state().whole, [1, 3]);
    assert_eq!((c.counters().admitted, c.counters().promoted), (1, 1));
}

#[test]
fn t4_a_replica_that_never_got_the_whole_log_cannot_go_on_alone() {
    for whole in [false, true] {
        let mut c = founded();
        for node in 1..=3 {
            say(&mut c, 1, &alive(node, 10, 1));
        }
        say(&mut c, 2, &stands(4, 10, 1, Standing::Out));
        persist(&mut c, 2);
        say(&mut c, 3, &stands(4, 10, 2, Standing::Copied));
        persist(&mut c, 3);
        assert_eq!(nodes(&c), [1, 2, 3, 4]);
        let mut t = 3;
        while t < 1_500 {
            t += 50;
            say(&mut c, t, &stands(4, 10, 3, Standing::Open { whole }));
            c.tick(at(t), &mut vec![]);
        }
        let problem = (!whole).then_some(Problem::NobodyWhole);
        assert_eq!(c.problem(), problem);
        assert_eq!(persist(&mut c, t).is_some(), whole);
        assert_eq!(nodes(&c).len(), if whole { 1 } else { 4 });
        // One that has all of it comes back.
        if !whole {
            say(&mut c, t, &alive(1, 10, 1));
            persist(&mut c, t);
            assert_eq!((nodes(&c), c.state().whole.clone()), (vec![1, 4], vec![1]));
        }
    }
}

#[test]
fn a_replica_that_dies_while_it_joins_is_forgotten() {
    let mut c = founded();
    for node in 1..=3 {
        say(&mut c, 1, &alive(node, 10, 1));
    }
    say(&mut c, 2, &stands(4, 10, 1, Standing::Out));
    persist(&mut c, 2);
    assert_eq!(joining(&c), [4]);
    for ms in (50..1_200).step_by(50) {
        for node in 1..=3 {
            say(&mut c, ms, &alive(node, 10, 2));
        }
        c.tick(at(ms), &mut vec![]);
    }
    persist(&mut c, 1_200);
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 2, 3], vec![]));
    assert_eq!(c.counters().joining_removed, 1);
}

#[test]
fn t3_of_two_controllers_with_one_state_one_is_refused_and_goes_on_from_the_others() {
    let first = founded();
    let mut stored = first.state().clone();
    let mut two = [Controller::new(setup(), Some(stored.clone())), first];
    for (n, c) in two.iter_mut().enumerate() {
        say(c, 5, &stands(2 + n as u16, 11, 1, Standing::Out));
        let state = c.poll_persist().unwrap();
        if state.follows(Some(&stored), Guards::ALL) {
            stored = state;
            c.persisted(at(5), &mut vec![]);
        } else {
            c.superseded(stored.clone());
        }
    }
    assert_eq!((nodes(&two[0]), nodes(&two[1])), (vec![1, 3], vec![1, 3]));
    assert_eq!((two[0].counters().superseded, two[1].counters().superseded), (0, 1));
    // It sees what it wanted again, and its next state follows.
    say(&mut two[1], 6, &stands(3, 11, 2, Standing::Out));
    assert!(two[1].poll_persist().unwrap().follows(Some(&stored), Guards::ALL));
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

/// The numbers, the registers and, in VR, the views that the switch knows are those of the group before.
#[test]
fn bug_15_19_a_group_that_is_founded_anew_gets_a_new_id_from_the_same_switch() {
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
    let state = c.poll_persist().unwrap();
    assert_eq!((state.last_switch_id, state.switch_incarnation), (2, 77));
    assert_eq!(state.retired_switches, []);
    assert_eq!(state.config.unwrap().switch_id, 2);
}

#[test]
fn a_switch_that_was_just_replaced_is_no_newcomer() {
    let mut c = founded();
    say(&mut c, 1, &switch(77, 1));
    let addr = Addr { ip: 7, port: 7 };
    say(&mut c, 2, &Control::SwitchAlive { incarnation: 5, addr, epoch: 0, standby: false });
    assert_eq!(persist(&mut c, 2), Some(2));
    c.tick(at(100), &mut vec![]);
    assert_eq!(persist(&mut c, 100), None);
}

const STANDBY: Addr = Addr { ip: 8, port: 8 };

#[test]
fn section_6_3_a_standby_takes_over_from_a_silent_switch_and_not_before() {
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
    let config = c.state().config.clone().unwrap();
    assert_eq!((config.switch, config.switch_id, config.switch_incarnation), (STANDBY, 2, 90));
    assert_eq!(c.counters().standbys_taken, 1);
    // It hears of it when every member refuses the old one's fast reads.
    assert_eq!(configured(&say(&mut c, t, &standby(90, 0)), STANDBY), None);
    (1..=3).for_each(|node| drop(say(&mut c, t, &alive(node, 10, 2))));
    assert_eq!(configured(&say(&mut c, t, &standby(90, 0)), STANDBY), Some(2));
    // The old one wakes up: it gets no id, and is told that it is not the switch any more.
    let told = say(&mut c, t, &switch(77, 1));
    let retired = Control::SwitchRetired { incarnation: 77, switch: STANDBY };
    assert_eq!(Control::parse(&told[0].1), Ok(retired));
    assert_eq!(persist(&mut c, t), None);
}

#[test]
fn t20_when_every_switch_id_was_granted_that_is_said_and_nothing_is_granted() {
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

#[test]
fn t7_after_a_power_cut_of_every_replica_nobody_goes_on_with_nothing() {
    let mut c = founded();
    for node in 1..=3 {
        say(&mut c, 1, &alive(node, 10, 1));
    }
    // All come back, empty: what was acknowledged was in memory alone.
    for node in 1..=3 {
        say(&mut c, 2, &stands(node, 11, 1, Standing::Out));
    }
    say(&mut c, 2, &switch(77, 1));
    let mut ms = 2;
    while ms < 5_000 {
        ms += 50;
        for node in 1..=3 {
            let epoch = c.state().config.as_ref().map_or(0, |config| config.epoch);
            say(&mut c, ms, &stands(node, 11, epoch, Standing::Out));
        }
        c.tick(at(ms), &mut vec![]);
        if let Some(epoch) = persist(&mut c, ms) {
            let config = c.state().config.as_ref().map(|c| c.members.clone()).unwrap_or_default();
            assert!(config.iter().any(|m| m.incarnation == 10), "epoch {epoch} has no data");
        }
    }
    assert_eq!(c.problem(), Some(Problem::NobodyWhole));
    assert!(c.problem().unwrap().to_string().contains("--fresh"));
}
