//! Defects that needed a second group to show.

use super::groups::{both, epochs, founded_both, live_but, persist_all, say_in, worker, workers};
use super::*;

const WORKERS: GroupId = super::groups::WORKERS;

/// A switch that has no group yet speaks for number 0, whichever groups the rack has.
#[test]
fn bug_17_4_a_switch_that_is_in_no_group_of_the_rack_is_heard() {
    let workers = GroupSetup::workers(WORKERS, Program::Falcon);
    let mut c = Controller::new(ControllerConfig { groups: vec![workers], ..setup() }, None);
    worker(&mut c, 0, (1, 50), 0);
    say(&mut c, 0, &switch(77, 0));
    persist_all(&mut c, 0);
    assert_eq!(c.state().config(WORKERS).map(|config| config.epoch), Some(1));
    worker(&mut c, 1, (1, 50), 1);
    let told = say(&mut c, 2, &switch(77, 0));
    assert!(told.iter().any(|(_, bytes)| concord_wire::group(bytes) == WORKERS));
    // A node's sign of life in such a group still counts for nobody.
    assert_eq!(say(&mut c, 3, &alive(9, 1, 0)), []);
    assert_eq!(c.counters().unknown_group, 1);
}

/// Of a group that is stuck a new switch hears nothing: that configuration has the switch before.
#[test]
fn bug_17_5_new_switch_hears_no_old_switch_from_a_stuck_group() {
    let mut c = founded_both();
    live_but(&mut c, (50, 1_000), &[]);
    // Nobody of the store is left who has all the data, and a standby takes over.
    let (before, others) = epochs(&c);
    for ms in (1_000..4_000).step_by(50) {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 11, before))));
        (1..=2).for_each(|node| drop(worker(&mut c, ms, (node, 50), others)));
        let told = say(&mut c, ms, &standby(78, 0));
        let store = told.iter().filter(|(_, bytes)| concord_wire::group(bytes) == GROUP);
        assert_eq!(store.count(), 0, "at {ms} ms");
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!(c.problem(), Some(Problem::NobodyCaughtUp));
    assert_eq!((c.problem_group(), c.state().switch_incarnation), (Some(GROUP), 78));
    assert_eq!(c.state().config(WORKERS).unwrap().switch_incarnation, 78);
    // The same where the members of before are all open, and the group waits for another reason.
    let mut stuck = c.state().clone();
    stuck.groups[0].config.epoch = before;
    let mut c = Controller::new(both(), Some(stuck));
    (1..=3).for_each(|node| drop(say(&mut c, 10, &alive(node, 10, before))));
    let told = say(&mut c, 20, &switch_alive(8, 78, 0, true));
    let store = told.iter().filter(|(_, bytes)| concord_wire::group(bytes) == GROUP);
    assert_eq!(store.count(), 0);
}

/// The epochs of one group are used up: the others go on.
#[test]
fn bug_17_6_a_group_whose_epochs_are_used_up_stops_no_other() {
    let mut stored = founded_both().state().clone();
    stored.groups[1].config.epoch = u32::MAX;
    let mut c = Controller::new(both(), Some(stored));
    let gone = |c: &Controller| c.state().config(GROUP).unwrap().members.len() == 2;
    for ms in (50..3_000).step_by(50) {
        let (replicas, others) = epochs(&c);
        [1, 3].iter().for_each(|node| drop(say(&mut c, ms, &alive(*node, 10, replicas))));
        worker(&mut c, ms, (1, 50), others);
        say(&mut c, ms, &switch(77, replicas));
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert!(gone(&c), "replica 2 was taken out, though worker 2 cannot be");
    assert_eq!(workers(&c), [1, 2]);
    assert_eq!((c.problem(), c.problem_group()), (Some(Problem::EpochsExhausted), Some(WORKERS)));
}

/// Replicas 1 and 3 of the store, and of another store replicas 1 to 3, all in epoch 23; who is
/// gone for good is said by group.
#[test]
fn bug_17_7_a_node_that_is_gone_for_good_is_one_of_its_group() {
    let second = GroupSetup { id: WORKERS, ..setup().groups[0].clone() };
    let gone = vec![(GROUP, 2)];
    let config = ControllerConfig {
        groups: vec![setup().groups[0].clone(), second],
        recover: Some(Recover { gone }),
        ..setup()
    };
    let mut c = Controller::new(config, None);
    let of = |group: GroupId| Config {
        group,
        epoch: 23,
        rack: RACK,
        switch_id: 4,
        switch_incarnation: 77,
        switch: Addr { ip: 9, port: 9 },
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: (1..=3).map(|node| member(node, 10)).collect(),
        joining: vec![],
    };
    let mut problem = None;
    for ms in (0..5_000).step_by(50) {
        for node in [1, 3] {
            say_in(&mut c, GROUP, ms, &alive(node, 10, 23));
            say_in(&mut c, WORKERS, ms, &alive(node, 10, 23));
        }
        // Replica 2 of the second store comes late.
        if ms >= 3_000 {
            say_in(&mut c, WORKERS, ms, &alive(2, 10, 23));
        }
        for group in [GROUP, WORKERS] {
            say_in(&mut c, group, ms, &Membership::Configure(of(group).into()));
        }
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
        if ms == 2_900 {
            problem = c.problem().zip(c.problem_group());
        }
    }
    assert_eq!(problem, Some((Problem::NotHeard { node: Some(2), epoch: 23 }, WORKERS)));
    let members = |group| -> Vec<u16> {
        c.state().config(group).unwrap().members.iter().map(|m| m.node).collect()
    };
    assert_eq!((members(GROUP), members(WORKERS)), (vec![1, 3], vec![1, 2, 3]));
}

fn recovering_both() -> (Controller, Vec<Config>, (u32, u32)) {
    let before = founded_both();
    let configs = before.state().groups.iter().map(|group| group.config.clone()).collect();
    let recover = Some(Recover::default());
    let c = Controller::new(ControllerConfig { recover, ..both() }, None);
    (c, configs, epochs(&before))
}

/// No worker is there while the state is made anew. The group is kept, and once workers come that
/// were in a later epoch than could be known, it begins above theirs.
#[test]
fn bug_17_8_unheard_worker_group_stops_nobody() {
    let (mut c, configs, (replicas, _)) = recovering_both();
    for ms in (0..2_500).step_by(50) {
        let epoch = c.state().config(GROUP).map_or(replicas, |config| config.epoch);
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, epoch))));
        say(&mut c, ms, &Membership::Configure(configs[0].clone().into()));
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((nodes(&c), workers(&c)), (vec![1, 2, 3], vec![]));
    for ms in (2_500..4_000).step_by(50) {
        let (replicas, others) = epochs(&c);
        let is_in = workers(&c) == [1];
        worker(&mut c, ms, (1, 50), if is_in { others } else { 5_000 });
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, replicas))));
        say(&mut c, ms, &switch(77, replicas));
        persist_all(&mut c, ms);
    }
    assert_eq!((c.problem(), workers(&c)), (None, vec![1]));
    assert!(epochs(&c).1 > 5_000);
}

/// A store of which nobody is heard may have data: the workers go on without it, and it is made
/// anew with those who have the data, not begun with whoever is there.
#[test]
fn bug_17_8_a_store_of_which_nobody_is_heard_is_made_anew_later() {
    let (mut c, configs, (replicas, others)) = recovering_both();
    for ms in (0..2_500).step_by(50) {
        let epoch = others.max(epochs(&c).1);
        worker(&mut c, ms, (1, 50), epoch);
        say_in(&mut c, WORKERS, ms, &Membership::Configure(configs[1].clone().into()));
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((workers(&c), nodes(&c)), (vec![1], vec![]));
    // Replicas that were away, with a later epoch than could be known: the workers go on.
    let later = Config { epoch: replicas + 5_000, ..configs[0].clone() };
    let members: Vec<u16> = vec![1, 3];
    for ms in (2_500..5_000).step_by(50) {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, later.epoch))));
        let epoch = epochs(&c).1;
        worker(&mut c, ms, (1, 50), epoch);
        if ms >= 4_000 {
            worker(&mut c, ms, (2, 50), 0);
        }
        say(&mut c, ms, &switch(77, 0));
        persist_all(&mut c, ms);
    }
    assert_eq!((workers(&c), nodes(&c)), (vec![1, 2], vec![]));
    assert_eq!((c.problem(), c.problem_group()), (Some(Problem::LeftOut), Some(GROUP)));
    // The operator has it made anew.
    let newest =
        Config { members: members.iter().map(|node| member(*node, 10)).collect(), ..later.clone() };
    let gone = vec![];
    let setup = ControllerConfig { recover: Some(Recover { gone }), ..both() };
    let mut c = Controller::new(setup, Some(c.state().clone()));
    for ms in (0..2_500).step_by(50) {
        let (replicas, others) = epochs(&c);
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, replicas.max(later.epoch)))));
        worker(&mut c, ms, (1, 50), others);
        let own = c.state().config(WORKERS).unwrap().clone();
        for config in [newest.clone(), own] {
            say_in(&mut c, config.group, ms, &Membership::Configure(config.into()));
        }
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((nodes(&c)[..2].to_vec(), epochs(&c).0 > later.epoch), (members, true));
}

/// A node of another rack, with a later epoch, gives its configuration too: which rack is meant is
/// for the operator to say, unless the file does.
#[test]
fn bug_17_9_a_state_is_made_anew_from_the_nodes_of_one_rack() {
    let run = |stored: Option<State>| {
        let (_, configs, (replicas, others)) = recovering_both();
        let recover = Some(Recover::default());
        let mut c = Controller::new(ControllerConfig { recover, ..both() }, stored);
        let foreign = Config { rack: 0xbad, epoch: 40, ..configs[0].clone() };
        let stranger = Heard { rack: 0xbad, epoch: 40, switch_id: 9 };
        for ms in (0..4_000).step_by(50) {
            (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, replicas))));
            worker(&mut c, ms, (1, 50), others);
            worker(&mut c, ms, (2, 50), others);
            say(&mut c, ms, &but(alive(9, 10, 40), |a| a.heard = stranger));
            for config in [&foreign, &configs[0], &configs[1]] {
                say_in(&mut c, config.group, ms, &Membership::Configure(config.clone().into()));
            }
            c.tick(at(ms), &mut vec![]);
            persist_all(&mut c, ms);
        }
        c
    };
    let c = run(None);
    assert!(c.state().groups.is_empty());
    assert!(matches!(c.problem(), Some(Problem::TwoRacks { .. })), "{:?}", c.problem());
    let yesterday = founded_both().state().clone();
    let c = run(Some(yesterday));
    assert_eq!((c.state().rack, nodes(&c), workers(&c)), (RACK, vec![1, 2, 3], vec![1, 2]));
}

/// `--fresh`: one group has begun anew, another has not yet; a node of a third rack is no founder
/// of that one.
#[test]
fn bug_17_10_refounded_group_takes_no_foreign_node() {
    let mut stored = founded_both().state().clone();
    stored.rack = 0x01d;
    stored.groups.iter_mut().for_each(|group| group.config.rack = 0x01d);
    let mut c = Controller::new(ControllerConfig { fresh: true, ..both() }, Some(stored));
    (1..=3).for_each(|node| drop(say(&mut c, 0, &alive(node, 10, 0))));
    say(&mut c, 0, &switch(77, 0));
    persist_all(&mut c, 0);
    assert_eq!((c.state().rack, nodes(&c)), (RACK, vec![1, 2, 3]));
    let of_rack = |node: u16, rack: u64| but(alive(node, 50, 1), |a| a.heard.rack = rack);
    say_in(&mut c, WORKERS, 10, &of_rack(5, 0xbad));
    persist_all(&mut c, 10);
    assert_eq!((workers(&c), c.counters().foreign), (vec![], 1));
    // Those of the rack before are who the group is for.
    say_in(&mut c, WORKERS, 20, &of_rack(1, 0x01d));
    persist_all(&mut c, 20);
    assert_eq!(workers(&c), [1]);
}
