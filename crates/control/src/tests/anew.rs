//! A state that is made anew, and a controller that learns that its own is old: whose word counts.

use super::*;

fn config(epoch: u32, members: &[(u16, u64)]) -> Config {
    Config {
        group: GROUP,
        epoch,
        rack: RACK,
        switch_id: 4,
        switch_incarnation: 77,
        switch: Addr { ip: 9, port: 9 },
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: members.iter().map(|(node, incarnation)| member(*node, *incarnation)).collect(),
        joining: vec![],
    }
}

/// Everybody says `says` until the state is made anew, and members give `configs` when they are
/// asked.
fn make_anew(c: &mut Controller, says: &[Membership], configs: &[Config]) -> Option<u32> {
    for ms in (0..2_500).step_by(50) {
        says.iter().for_each(|message| drop(say(c, ms, message)));
        let mut asked = vec![];
        c.tick(at(ms), &mut asked);
        for config in configs.iter().filter(|_| !asked.is_empty()) {
            say(c, ms, &Membership::Configure(config.clone().into()));
        }
        if let Some(epoch) = persist(c, ms) {
            return Some(epoch);
        }
    }
    None
}

#[test]
fn the_newest_configuration_counts_whichever_comes_first() {
    let (old, new) = (config(22, &[(1, 10), (2, 10)]), config(23, &[(1, 10), (3, 10)]));
    let says: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    for configs in [[old.clone(), new.clone()], [new, old]] {
        let mut c = recovering(&[], None);
        assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
        assert_eq!(nodes(&c), [1, 3]);
    }
}

/// Nothing is made of a configuration that is older than what a node has heard of.
#[test]
fn stale_configuration_rebuilds_nothing() {
    let says = [alive(1, 10, 23), alive(2, 10, 22)];
    let old = config(22, &[(1, 10), (2, 10)]);
    let mut c = recovering(&[], None);
    assert_eq!(make_anew(&mut c, &says, core::slice::from_ref(&old)), None);
    assert_eq!(c.problem(), Some(Problem::Recovering));
}

/// A node of another rack than that of the configurations is foreign.
#[test]
fn node_of_another_rack_is_foreign() {
    let mut c = recovering(&[], None);
    let says: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let stray = but(alive(9, 10, 23), |alive| alive.heard.rack = RACK + 1);
    says.iter().for_each(|message| drop(say(&mut c, 0, message)));
    say(&mut c, 0, &stray);
    assert_eq!(c.counters().foreign, 0, "nobody knows which rack is meant");
    c.tick(at(100), &mut vec![]);
    say(&mut c, 100, &Membership::Configure(config(23, &[(1, 10), (2, 10)]).into()));
    says.iter().for_each(|message| drop(say(&mut c, 100, message)));
    assert_eq!(c.counters().foreign, 0);
    say(&mut c, 100, &stray);
    say(&mut c, 100, &stray);
    assert_eq!(c.counters().foreign, 2);
}

#[test]
fn a_state_of_another_rack_counts_for_nothing() {
    let mut other = founded().state().clone();
    other.groups[0].config.epoch = 90;
    other.groups[0].config.rack = RACK + 1;
    let says: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let mut c = recovering(&[], Some(other));
    let configs = [config(23, &[(1, 10), (2, 10)])];
    assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
    assert_eq!((nodes(&c), c.state().rack), (vec![1, 2], RACK));
}

/// What the rack file says of the group counts and who is gone is named.
#[test]
fn rack_file_decides_and_missing_nodes_are_named() {
    let group = GroupSetup::replicas(vec![1, 2, 3], Protocol::PrimaryBackup, Program::Forward);
    let recover = Some(Recover { gone: vec![(GROUP, 2), (GROUP, 8)] });
    let mut c = Controller::new(ControllerConfig { recover, groups: vec![group], ..setup() }, None);
    let configs = [config(23, &[(1, 10), (2, 10), (3, 10)])];
    let says = [alive(1, 10, 23), alive(3, 10, 23)];
    assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
    let made = c.state().config(GROUP).unwrap();
    assert_eq!((made.kind, made.program), (Protocol::PrimaryBackup.into(), Program::Forward));
    let expected = Recovered {
        group: GROUP,
        heard_epoch: 23,
        epoch: 1_047,
        members: vec![1, 3],
        lost_behind: None,
        gone: vec![2],
    };
    assert_eq!(c.recovered(), [expected]);
}

/// Nobody knows which ids were granted by the state that was lost: some are left out, and the next
/// configuration, whatever it is for, has a new one.
#[test]
fn t20_first_change_after_recovery_needs_a_new_switch_id() {
    let says: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let mut c = recovering(&[], None);
    make_anew(&mut c, &says, &[config(23, &[(1, 10), (2, 10), (3, 10)])]);
    let spared = 4 + 1_024;
    for (node, epoch) in [(3, 1_047), (2, 1_048)] {
        (1..=3).for_each(|other| drop(say(&mut c, 2_500, &alive(other, 10, epoch))));
        say(&mut c, 2_500, &stands(node, 10, epoch, Standing::Leaving));
        assert_eq!(persist(&mut c, 2_500), Some(epoch + 1));
        assert_eq!(c.state().config(GROUP).unwrap().switch_id, spared);
    }
}

#[test]
fn t3_a_controller_that_is_handed_the_newest_state_goes_on() {
    let yesterday = founded().state().clone();
    let mut today = yesterday.clone();
    (today.version, today.groups[0].config.epoch) = (5, 5);
    let mut c = Controller::new(setup(), Some(yesterday));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 5))));
    assert!(c.is_behind());
    c.superseded(today);
    assert!(!c.is_behind());
    (1..=2).for_each(|node| drop(say(&mut c, 2, &alive(node, 10, 5))));
    say(&mut c, 2, &stands(3, 10, 5, Standing::Leaving));
    assert_eq!((persist(&mut c, 2), nodes(&c), c.problem()), (Some(6), vec![1, 2], None));
}

/// Another controller let replica 1 in again, while this one stood still and had last heard of the
/// life before.
#[test]
fn bug_15_29_admitted_elsewhere_is_not_silent() {
    let mut c = founded();
    let mut other = c.state().clone();
    other.groups[0].config.members[0].incarnation = 20;
    (other.version, other.groups[0].config.epoch) = (other.version + 3, 4);
    // Replica 1 died at once; the others go on.
    for ms in (100..1_600).step_by(100) {
        (2..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 1))));
        if c.poll_persist().is_some() {
            c.superseded(other.clone());
            break;
        }
    }
    assert_eq!(c.counters().superseded, 1);
    (2..=3).for_each(|node| drop(say(&mut c, 1_600, &alive(node, 10, 4))));
    c.tick(at(1_600), &mut vec![]);
    assert_eq!(persist(&mut c, 1_600), None);
    // It does count from now on.
    let gone = (1_700..4_000).step_by(100).find_map(|ms| {
        (2..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 4))));
        persist(&mut c, ms)
    });
    assert_eq!((gone, nodes(&c)), (Some(5), vec![2, 3]));
}

/// Replica 1 does not hear 2, which has not got all the data yet: the one that has all never goes.
#[test]
fn bug_16_2_of_a_cut_pair_the_one_that_has_all_the_data_stays() {
    let mut state = founded().state().clone();
    state.groups[0].config.members.truncate(2);
    state.groups[0].caught_up = vec![1];
    let mut c = Controller::new(setup(), Some(state));
    for ms in (50..1_500).step_by(50) {
        let epoch = c.state().config(GROUP).unwrap().epoch;
        say(&mut c, ms, &lacks(1, epoch, if epoch == 1 { &[2] } else { &[] }));
        say(&mut c, ms, &stands(2, 10, epoch, Standing::Open { caught_up: false }));
        say(&mut c, ms, &switch(77, epoch));
        persist(&mut c, ms);
    }
    assert_eq!((nodes(&c), c.counters().removed_cut), (vec![1], 1));
}

/// What a whole group has on its disks after its power went, and the state with it.
#[test]
fn bug_16_3_members_with_all_commits_on_disk_lost_nothing() {
    for (held_epoch, expected) in [(23, None), (22, Some(Held { epoch: 22, position: 9 }))] {
        let mut c = recovering(&[], None);
        let says: Vec<Membership> = (1..=3)
            .map(|node| {
                but(stands(node, 20, 23, Standing::Returning { intact: true }), |a| {
                    a.held = Held { epoch: held_epoch, position: 9 };
                    a.data_dir = Some(DataDir { id: 900, run: 2 });
                })
            })
            .collect();
        let configs = [config(23, &[(1, 10), (2, 10), (3, 10)])];
        assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
        assert_eq!(c.recovered()[0].lost_behind, expected);
        let members = &c.state().config(GROUP).unwrap().members;
        assert_eq!(members.len(), if expected.is_none() { 3 } else { 1 });
        assert!(members.iter().all(|m| m.incarnation == 20));
    }
}

/// All power goes before a member has said anything since: its directory is known from what it said
/// before.
#[test]
fn bug_19_3_rebuilt_state_knows_directories() {
    let mut c = recovering(&[], None);
    let on_disk = |node: u16, incarnation: u64, epoch: u32, (standing, run): (Standing, u64)| {
        but(stands(node, incarnation, epoch, standing), |a| {
            a.held = Held { epoch: 23, position: 9 };
            a.data_dir = Some(DataDir { id: 900 + u64::from(node), run });
        })
    };
    let open = Standing::Open { caught_up: true };
    let says: Vec<Membership> = (1..=3).map(|node| on_disk(node, 10, 23, (open, 1))).collect();
    let configs = [config(23, &[(1, 10), (2, 10), (3, 10)])];
    assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
    assert_eq!(c.state().groups[0].storages.len(), 3);
}

#[test]
fn bug_16_3_who_is_leaving_is_not_gone_on_with() {
    let says = [alive(1, 10, 23), stands(2, 10, 23, Standing::Leaving), alive(3, 10, 23)];
    let mut c = recovering(&[], None);
    let configs = [config(23, &[(1, 10), (2, 10), (3, 10)])];
    assert_eq!(make_anew(&mut c, &says, &configs), Some(1_047));
    assert_eq!(nodes(&c), [1, 3]);
}

/// The power of all went, they came back, and the controller's file was lost while they opened an
/// epoch; another replica, which had lost its place, has a record more that nobody acknowledged.
#[test]
fn bug_19_21_members_of_an_unopened_epoch_lost_nothing() {
    for (incarnation, expected) in [(20, vec![1, 2, 3]), (10, vec![4])] {
        let on = |message, epoch, position| but(message, |a| a.held = Held { epoch, position });
        let opening = |node| stands(node, 20, 23, Standing::Opening { caught_up: false });
        let kept = |node| stands(node, 20, 22, Standing::Returning { intact: true });
        let says =
            [on(opening(1), 20, 9), on(kept(2), 20, 9), on(opening(3), 20, 9), on(kept(4), 20, 10)];
        let members = [1, 2, 3].map(|node| (node, incarnation));
        let mut c = recovering(&[], None);
        assert_eq!(make_anew(&mut c, &says, &[config(23, &members)]), Some(1_047));
        assert_eq!(nodes(&c), expected);
        let is_sure = c.recovered()[0].lost_behind.is_none();
        assert_eq!(is_sure, expected.len() == 3);
    }
}
