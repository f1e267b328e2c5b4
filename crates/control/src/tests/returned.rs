//! Members that start again with what their disks have (trap T4).

use super::*;

fn kept(
    node: u16,
    incarnation: u64,
    epoch: u32,
    (id, run, intact): (u64, u64, bool),
) -> Membership {
    but(stands(node, incarnation, epoch, Standing::Kept { intact }), |a| {
        // A replica that was whole in that epoch says so of what is on its disk.
        a.held = Held { epoch, position: 9 };
        a.data_dir = Some(DataDir { id, run });
    })
}

/// The directory of a node.
fn storage(node: u16) -> u64 {
    900 + u64::from(node)
}

/// Three founders with disks, in epoch 1, open and whole.
fn founded_on_disks(guards: Guards) -> Controller {
    let mut c = Controller::new(ControllerConfig { guards, ..setup() }, None);
    for node in 1..=3 {
        say(&mut c, 0, &kept(node, 10, 0, (storage(node), 1, true)));
    }
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    for node in 1..=3 {
        say(&mut c, 10, &alive(node, 10, 1));
    }
    c
}

/// The power of all nodes went, and they come back with other incarnations; the third replica says that of
/// its directory. What the controller makes of it: the epoch, its members and who is whole.
fn all_come_back(guards: Guards, third: (u64, u64, bool)) -> (Option<u32>, Vec<Member>, Vec<u16>) {
    let state = founded_on_disks(guards).state().clone();
    let mut c = Controller::new(ControllerConfig { guards, ..setup() }, Some(state));
    say(&mut c, 0, &switch(78, 0));
    for node in 1..=2 {
        say(&mut c, 0, &kept(node, 20, 1, (storage(node), 2, true)));
        assert_eq!(c.poll_persist().map(|p| p.number), None, "it waits for the others");
    }
    say(&mut c, 0, &kept(3, 20, 1, third));
    let epoch = persist(&mut c, 0);
    let members = c.state().config(GROUP).map_or(vec![], |config| config.members.clone());
    (epoch, members, wholes(&c))
}

#[test]
fn t4_members_that_come_back_with_their_disks_keep_their_places_and_are_whole() {
    let (epoch, members, whole) = all_come_back(Guards::ALL, (storage(3), 2, true));
    assert_eq!(epoch, Some(2), "one epoch takes all of them in");
    assert_eq!(members, [member(1, 20), member(2, 20), member(3, 20)]);
    assert_eq!(whole, [1, 2, 3]);
}

/// Another directory than it had, an older one of it, and one that lost something.
const LOST: [(u64, u64, bool); 3] = [(1_000, 2, true), (903, 1, true), (903, 2, false)];

#[test]
fn t4_who_comes_back_with_another_directory_or_an_older_or_a_damaged_one_is_a_stranger() {
    for third in LOST {
        let (_, members, whole) = all_come_back(Guards::ALL, third);
        assert_eq!(members, [member(1, 20), member(2, 20)], "{third:?}");
        assert_eq!(whole, [1, 2], "{third:?}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn t4_without_a_look_at_its_directory_a_stranger_is_taken_as_whole() {
    for (third, guard) in LOST.into_iter().zip([Guard::SameStorage, Guard::NewerRun, Guard::Intact])
    {
        let (_, members, whole) = all_come_back(Guards::without(guard), third);
        assert_eq!((members.len(), whole), (3, vec![1, 2, 3]), "{guard:?}");
    }
}

#[test]
fn t4_a_member_that_was_not_whole_is_none_for_having_a_disk() {
    let mut c = founded_on_disks(Guards::ALL);
    // The third restarts with nothing, and joins the others again; nobody has heard that it is whole.
    say(&mut c, 100, &kept(3, 20, 1, (1_000, 1, true)));
    assert_eq!(persist(&mut c, 100), Some(2));
    assert_eq!(nodes(&c), [1, 2]);
    let state = c.state().group(GROUP).unwrap();
    let known: Vec<(u16, u64)> = state.storages.iter().map(|s| (s.node, s.id)).collect();
    assert_eq!(known, [(1, storage(1)), (2, storage(2))]);
}

#[test]
fn a_controller_that_starts_again_knows_whose_directory_is_whose() {
    let c = founded_on_disks(Guards::ALL);
    let mut c = Controller::new(setup(), Some(c.state().clone()));
    for node in 1..=3 {
        say(&mut c, 0, &kept(node, 20, 1, (storage(node), 2, true)));
    }
    say(&mut c, 0, &switch(77, 1));
    assert_eq!(persist(&mut c, 0), Some(2));
    assert_eq!((nodes(&c), wholes(&c)), (vec![1, 2, 3], vec![1, 2, 3]));
    assert_eq!(c.counters().returned, 3);
}

/// The state has an epoch that nobody heard of before the power of all went. What they had in the one before is
/// all that was committed, and the state is made anew with it.
#[test]
fn bug_19_1_who_comes_back_with_all_its_data_stays_though_the_newest_epoch_was_never_heard_of() {
    let guards = Guards::ALL;
    let mut state = founded_on_disks(guards).state().clone();
    state.groups[0].config.epoch = 2;
    state.groups[0].config.members.truncate(2);
    let recover = Some(Recover { gone: vec![(GROUP, 1)] });
    let mut c = Controller::new(ControllerConfig { guards, recover, ..setup() }, Some(state));
    let made = (0..2_500).step_by(50).find_map(|ms| {
        for node in 1..=2 {
            say(&mut c, ms, &kept(node, 20, 1, (storage(node), 2, node == 1)));
        }
        persist(&mut c, ms)
    });
    assert_eq!((made, c.recovered()[0].lost_behind), (Some(1_026), None));
    assert_eq!((nodes(&c), wholes(&c)), (vec![1], vec![1]));
}

/// The power of all replicas goes, and the controller goes on: whoever comes back first does not do without the others,
/// who come a moment later. By their word it knows that its state is not the newest, if it is not.
#[test]
fn bug_19_4_members_that_come_back_together_wait_for_each_other() {
    let mut c = founded_on_disks(Guards::ALL);
    for ms in (50..5_000).step_by(50) {
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    assert_eq!((nodes(&c), c.state().groups[0].config.epoch), (vec![1, 2, 3], 1));
    for (node, ms) in [(2, 5_000), (1, 5_040), (3, 5_080)] {
        say(&mut c, ms, &kept(node, 20, 1, (storage(node), 2, true)));
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    assert_eq!((nodes(&c), wholes(&c), c.counters().returned), (vec![1, 2, 3], vec![1, 2, 3], 3));
    assert_eq!(c.state().groups[0].config.epoch, 2);
}

/// VR: the power of all went as the group was founded. What replica 1 said before was said by a process that is no more.
#[test]
fn bug_19_6_a_group_that_never_began_begins_with_those_who_are_there() {
    let groups = vec![GroupSetup::replicas(vec![1, 2, 3], Protocol::Vr, Program::Harmonia)];
    let mut c = Controller::new(ControllerConfig { groups, ..setup() }, None);
    for node in 1..=3 {
        say(&mut c, 0, &kept(node, 10, 0, (storage(node), 1, true)));
    }
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    let back = |node| {
        let back = kept(node, 20, 1, (storage(node), 2, true));
        but(back, |a| a.held = Held::default())
    };
    for (ms, node) in [(300, 2), (310, 3)] {
        say(&mut c, ms, &back(node));
        assert_eq!(persist(&mut c, ms), None, "replica 1 may be gone, too");
    }
    say(&mut c, 320, &back(1));
    assert_eq!(persist(&mut c, 320), None, "the others have not been heard since");
    (2..=3).for_each(|node| drop(say(&mut c, 400, &back(node))));
    assert_eq!(persist(&mut c, 400), Some(2));
    let members = c.state().config(GROUP).unwrap().members.clone();
    assert_eq!(members, [member(1, 20), member(2, 20), member(3, 20)]);
}

/// A replica that was restored.
fn restored(node: u16, incarnation: u64, origin: u64) -> Membership {
    but(stands(node, incarnation, 0, Standing::Founding { origin, switch_id: 40 }), |a| {
        a.data_dir = Some(DataDir { id: storage(node), run: incarnation });
    })
}

#[test]
fn t20_a_rack_of_restored_replicas_begins_above_the_switch_ids_of_the_one_before() {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        say(&mut c, 0, &restored(node, 10, 5));
    }
    assert!(!c.is_behind());
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    let config = c.state().config(GROUP).unwrap();
    assert_eq!((config.switch_id, config.rack), (41, RACK));
    assert_eq!(wholes(&c), [1, 2, 3]);
    // One that starts again before it has heard of the rack is no stranger.
    let sent = say(&mut c, 10, &restored(3, 20, 5));
    assert_eq!(configured(&sent, member(3, 20).addr), Some(1));
    for node in 1..=2 {
        say(&mut c, 10, &alive(node, 10, 1));
    }
    let heard = but(restored(3, 20, 5), |a| a.heard = heard(1));
    say(&mut c, 20, &heard);
    assert_eq!(persist(&mut c, 20), Some(2));
    assert_eq!((nodes(&c), c.counters().returned), (vec![1, 2, 3], 1));
}

#[test]
fn replicas_of_two_backups_and_of_none_begin_no_rack_together() {
    for other in [restored(2, 10, 6), alive(2, 10, 0)] {
        let mut c = Controller::new(setup(), None);
        for ms in [0, 400, 800, 1_200] {
            say(&mut c, ms, &switch(77, 0));
            say(&mut c, ms, &other);
            say(&mut c, ms, &restored(1, 10, 5));
            say(&mut c, ms, &restored(3, 10, 5));
        }
        assert!(c.poll_persist().is_none());
        let problem = c.problem().unwrap();
        assert_eq!(problem, Problem::OriginsDiffer { one: 1, other: 2 });
        assert!(problem.to_string().contains("restore all replicas from one backup"));
    }
}

#[test]
fn a_restored_replica_is_left_alone_by_a_rack_that_goes_on_with_other_data() {
    let mut c = founded_on_disks(Guards::ALL);
    let other = but(restored(4, 10, 5), |a| a.data_dir = Some(DataDir { id: 1, run: 1 }));
    let sent = say(&mut c, 20, &other);
    assert_eq!((configured(&sent, member(4, 10).addr), c.poll_persist().is_none()), (None, true));
    c.tick(at(30), &mut vec![]);
    assert_eq!(c.problem(), Some(Problem::Restored { node: 4 }));
}
