//! Several groups under one controller, on one switch.

use super::*;
use concord_wire::control::Assembly;

pub(super) const WORKERS: GroupId = GroupId(7);

pub(super) fn both() -> ControllerConfig {
    let workers = GroupSetup::workers(WORKERS, Program::Forward);
    ControllerConfig { groups: setup().groups.into_iter().chain([workers]).collect(), ..setup() }
}

pub(super) fn say_in(c: &mut Controller, group: GroupId, ms: u64, message: &Membership) -> Sent {
    let (mut bytes, mut sent) = (vec![], vec![]);
    message.emit_in(group, &mut bytes);
    c.handle(at(ms), Addr::default(), &mut bytes, &mut sent);
    sent
}

/// A worker's sign of life, in its own group and that group's epoch.
pub(super) fn worker(
    c: &mut Controller,
    ms: u64,
    (node, incarnation): (u16, u64),
    epoch: u32,
) -> Sent {
    say_in(c, WORKERS, ms, &alive(node, incarnation, epoch))
}

pub(super) fn epochs(c: &Controller) -> (u32, u32) {
    let of = |group| c.state().config(group).map_or(0, |config| config.epoch);
    (of(GROUP), of(WORKERS))
}

pub(super) fn workers(c: &Controller) -> Vec<u16> {
    c.state().config(WORKERS).into_iter().flat_map(|c| c.members.iter()).map(|m| m.node).collect()
}

pub(super) fn persist_all(c: &mut Controller, ms: u64) -> Sent {
    let mut sent = vec![];
    while c.poll_persist().is_some() {
        c.persisted(at(ms), c.state().version + 1, &mut sent);
    }
    sent
}

/// Three replicas, and workers 1 and 2, all of them in their first epoch.
pub(super) fn founded_both() -> Controller {
    let mut c = Controller::new(both(), None);
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 10, 0));
    }
    say(&mut c, 0, &switch(77, 0));
    persist_all(&mut c, 0);
    assert_eq!(epochs(&c), (1, 0));
    worker(&mut c, 0, (1, 50), 0);
    worker(&mut c, 0, (2, 50), 0);
    persist_all(&mut c, 0);
    worker(&mut c, 0, (2, 50), 1);
    persist_all(&mut c, 0);
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 2, 3], vec![1, 2]));
    c
}

/// Everybody says that he lives, but for those: replicas below 100, workers from 100 on.
pub(super) fn live_but(c: &mut Controller, (from_ms, to_ms): (u64, u64), silent: &[u16]) {
    for ms in (from_ms..to_ms).step_by(50) {
        let (replicas, others) = epochs(c);
        for node in nodes(c).into_iter().filter(|n| !silent.contains(n)) {
            say(c, ms, &alive(node, 10, replicas));
        }
        for node in workers(c).into_iter().filter(|n| !silent.contains(&(100 + n))) {
            worker(c, ms, (node, 50), others);
        }
        say(c, ms, &switch(77, replicas));
        say_in(c, WORKERS, ms, &switch(77, others));
        c.tick(at(ms), &mut vec![]);
        persist_all(c, ms);
    }
}

#[test]
fn a_group_that_loses_a_member_opens_no_epoch_in_another() {
    let mut c = founded_both();
    live_but(&mut c, (50, 1_000), &[]);
    let before = epochs(&c);
    // A worker falls silent.
    live_but(&mut c, (1_000, 3_000), &[101]);
    assert_eq!(epochs(&c), (before.0, before.1 + 1));
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 2, 3], vec![2]));
    // It comes back, behind those that stayed.
    worker(&mut c, 3_000, (1, 50), before.1);
    persist_all(&mut c, 3_000);
    assert_eq!((epochs(&c), workers(&c)), ((before.0, before.1 + 2), vec![2, 1]));
    // A replica falls silent; the workers need not hear of it.
    live_but(&mut c, (3_000, 5_000), &[2]);
    assert_eq!(epochs(&c), (before.0 + 1, before.1 + 2));
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 3], vec![2, 1]));
    assert_eq!(c.counters().removed_silent, 2);
}

#[test]
fn nodes_hear_of_their_own_group_alone() {
    let mut c = founded_both();
    // Replica 2 and worker 2 have one number and one address here; what each hears is of its group.
    let told = say(&mut c, 10, &alive(2, 10, 0));
    assert_eq!(groups_told(&told), [GROUP]);
    let told = worker(&mut c, 10, (2, 50), 0);
    assert_eq!(groups_told(&told), [WORKERS]);
    let ask = Membership::WhoIsWho { client: Addr { ip: 3, port: 3 } };
    assert_eq!(groups_told(&say_in(&mut c, WORKERS, 11, &ask)), [WORKERS]);
    assert_eq!(groups_told(&say(&mut c, 11, &ask)), [GROUP]);
    // Of a group that the rack does not have nobody hears anything, and nothing changes.
    let before = c.state().clone();
    assert_eq!(say_in(&mut c, GroupId(8), 12, &alive(9, 1, 0)), []);
    assert_eq!(say_in(&mut c, GroupId(8), 12, &switch(99, 0)), []);
    assert_eq!(c.counters().unknown_group, 2);
    assert!(c.poll_persist().is_none() && *c.state() == before);
}

/// The groups of the configurations among `sent`: in the header and in the body, which are the
/// same.
fn groups_told(sent: &Sent) -> Vec<GroupId> {
    let configs = sent.iter().filter_map(|(_, bytes)| match Membership::parse(bytes) {
        Ok(Membership::Configure(part)) => Some((part.common().group, concord_wire::group(bytes))),
        _ => None,
    });
    configs
        .map(|(body, header)| {
            assert_eq!(body, header);
            body
        })
        .collect()
}

#[test]
fn another_switch_is_an_epoch_in_every_group_and_one_id() {
    let mut c = founded_both();
    live_but(&mut c, (50, 1_000), &[]);
    let (before, id) = (epochs(&c), c.state().last_switch_id);
    let of = |c: &Controller, group| c.state().config(group).unwrap().switch_id;
    assert_ne!(of(&c, GROUP), of(&c, WORKERS), "each group began with an id of its own");
    say(&mut c, 1_000, &switch(78, 0));
    persist_all(&mut c, 1_000);
    assert_eq!(epochs(&c), (before.0 + 1, before.1 + 1));
    assert_eq!((of(&c, GROUP), of(&c, WORKERS)), (id + 1, id + 1));
    assert_eq!(c.state().retired_switches, [77]);
    // It hears of replicas once all of them have opened, and of workers at once: one that is dead
    // holds nobody up (21.48).
    assert_eq!(groups_told(&say(&mut c, 1_005, &switch(78, 0))), [WORKERS]);
    for node in 1..=3 {
        say(&mut c, 1_010, &alive(node, 10, before.0 + 1));
    }
    assert_eq!(groups_told(&say(&mut c, 1_020, &switch(78, 0))), [GROUP, WORKERS]);
    // What it runs of one group it need not say with the other.
    say(&mut c, 1_050, &switch(78, before.0 + 1));
    let told = say_in(&mut c, WORKERS, 1_060, &switch(78, 0));
    assert_eq!(groups_told(&told), [WORKERS]);
}

/// A worker that began anew takes the last place and one that goes loses its own.
#[test]
fn restarted_worker_takes_the_last_place() {
    let mut c = founded_both();
    let (_, epoch) = epochs(&c);
    // Perhaps a late packet of an earlier life; then it has heard of the epoch in force.
    worker(&mut c, 10, (1, 51), 0);
    persist_all(&mut c, 10);
    assert_eq!(epochs(&c).1, epoch);
    worker(&mut c, 20, (1, 51), epoch);
    persist_all(&mut c, 20);
    assert_eq!((epochs(&c).1, workers(&c)), (epoch + 1, vec![2, 1]));
    say_in(&mut c, WORKERS, 30, &stands(2, 50, epoch + 1, Standing::Leaving));
    persist_all(&mut c, 30);
    assert_eq!((epochs(&c).1, workers(&c)), (epoch + 2, vec![1]));
    // The last one stays in the list: a list without members is none.
    say_in(&mut c, WORKERS, 40, &stands(1, 51, epoch + 2, Standing::Leaving));
    persist_all(&mut c, 40);
    assert_eq!((epochs(&c), workers(&c)), ((1, epoch + 2), vec![1]));
}

/// A file that is behind in one group decides nothing for any.
#[test]
fn t3_old_file_of_one_group_decides_nothing() {
    let stored = founded_both().state().clone();
    let mut c = Controller::new(both(), Some(stored));
    for node in [1, 3] {
        say(&mut c, 10, &alive(node, 10, 1));
    }
    worker(&mut c, 10, (1, 50), 9);
    for ms in (50..3_000).step_by(50) {
        for node in [1, 3] {
            say(&mut c, ms, &alive(node, 10, 1));
        }
        c.tick(at(ms), &mut vec![]);
        assert!(c.poll_persist().is_none());
    }
    assert!(c.is_behind());
    assert!(matches!(c.problem(), Some(Problem::StateOld { heard_epoch: 9, .. })));
    assert_eq!(c.problem_group(), Some(WORKERS), "it says whose epochs those are");
}

#[test]
fn bug_16_3_a_lost_state_is_made_anew_for_every_group() {
    let before = founded_both();
    let recover = Some(Recover::default());
    let mut c = Controller::new(ControllerConfig { recover, ..both() }, None);
    let configs: Vec<Config> =
        before.state().groups.iter().map(|group| group.config.clone()).collect();
    let (replicas, others) = epochs(&before);
    for ms in (0..2_500).step_by(50) {
        for node in 1..=3 {
            say(&mut c, ms, &alive(node, 10, replicas));
        }
        worker(&mut c, ms, (2, 50), others);
        let mut asked = vec![];
        c.tick(at(ms), &mut asked);
        // The workers' configuration comes late: nothing is made without it.
        let known = if ms < 2_200 { &configs[..1] } else { &configs[..] };
        for config in known.iter().filter(|_| !asked.is_empty()) {
            say_in(&mut c, config.group, ms, &Membership::Configure(config.clone().into()));
        }
        persist_all(&mut c, ms);
        assert!(ms >= 2_200 || c.state().groups.is_empty(), "at {ms} ms");
    }
    assert_eq!(epochs(&c), (replicas + 1_024, others + 1_024));
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 2, 3], vec![2]));
    assert_eq!((c.state().rack, c.recovered().len()), (RACK, 2));
    assert!(c.recovered()[1].to_string().starts_with("group 7: made the state anew"));
}

/// 300 workers take four packets; each of them, the switch, and a controller that lost its state
/// put the configuration together, though every other packet is lost.
#[test]
fn large_configuration_in_several_packets() {
    let mut c = Controller::new(both(), None);
    (1..=3).for_each(|node| drop(say(&mut c, 0, &alive(node, 10, 0))));
    (1..=300).for_each(|node| drop(worker(&mut c, 0, (node, 50), 0)));
    say(&mut c, 0, &switch(77, 0));
    let mut sent = persist_all(&mut c, 0);
    let config = c.state().config(WORKERS).unwrap().clone();
    assert_eq!((config.members.len(), config.epoch), (300, 1));
    // Whom it is for, and what has come there by now.
    let (one, other) = (member(1, 50).addr, member(300, 50).addr);
    let at_switch = Addr { ip: 9, port: 9 };
    let mut assemblies = [one, other, at_switch].map(|addr| (addr, Assembly::new(2), None));
    let mut count = 0;
    for round in 0..8 {
        for (to, bytes) in &sent {
            let is_others = concord_wire::group(bytes) != WORKERS;
            let Some((_, assembly, told)) = assemblies.iter_mut().find(|(a, ..)| a == to) else {
                continue;
            };
            count += 1;
            if is_others || count % 2 == round % 2 {
                continue;
            }
            if let Ok(Membership::Configure(part)) = Membership::parse(bytes) {
                *told = assembly.take(part).or(told.take());
            }
        }
        let ms = 100 * (round as u64 + 1);
        sent = worker(&mut c, ms, (1, 50), 0);
        sent.extend(worker(&mut c, ms, (300, 50), 0));
        (1..=300).for_each(|node| drop(worker(&mut c, ms, (node, 50), 1)));
        sent.extend(say_in(&mut c, WORKERS, ms, &switch(77, 0)));
    }
    for (addr, _, told) in assemblies {
        assert_eq!(told.as_ref(), Some(&config), "{addr}");
    }
    let recover = Some(Recover::default());
    let mut c = Controller::new(ControllerConfig { recover, ..both() }, None);
    for ms in (0..2_500).step_by(50) {
        (1..=300).for_each(|node| drop(worker(&mut c, ms, (node, 50), 1)));
        for part in config.parts().skip(ms as usize / 50 % 2).step_by(2) {
            say_in(&mut c, WORKERS, ms, &Membership::Configure(part));
        }
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((workers(&c).len(), epochs(&c).1), (300, 1_025));
}

/// A group of which nobody has heard begins later and the others go on.
#[test]
fn bug_16_3_unheard_group_begins_later() {
    let before = founded_both();
    let config = before.state().config(GROUP).unwrap().clone();
    // What is there is of another rack.
    let mut other = before.state().clone();
    other.groups.iter_mut().for_each(|group| group.config.rack = RACK + 1);
    let recover = Some(Recover::default());
    let mut c = Controller::new(ControllerConfig { recover, ..both() }, Some(other));
    for ms in (0..2_500).step_by(50) {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, config.epoch))));
        say(&mut c, ms, &Membership::Configure(config.clone().into()));
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!(epochs(&c).0, config.epoch + 1_024);
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 2, 3], vec![]));
    assert_eq!(c.recovered().len(), 1);
}
