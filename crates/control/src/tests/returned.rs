//! Members that start again with what their disks have (trap T4).

use super::*;

fn kept(
    node: u16,
    incarnation: u64,
    epoch: u32,
    (id, run, intact): (u64, u64, bool),
) -> Membership {
    but(stands(node, incarnation, epoch, Standing::Returning { intact }), |a| {
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

/// A group, a node of it, and why its directory is not what it was.
type Lost = (GroupId, u16, Mistrust);

/// The power of all replicas went for 5 s, and they come back with other incarnations; the third
/// replica says that of its directory. What the controller makes of it: the epoch, its members and
/// who is whole.
fn all_come_back(
    guards: Guards,
    third: (u64, u64, bool),
) -> (Option<u32>, Vec<Member>, Vec<u16>, Vec<Lost>) {
    let mut c = founded_on_disks(guards);
    say(&mut c, 5_000, &switch(77, 1));
    for node in 1..=2 {
        say(&mut c, 5_000, &kept(node, 20, 1, (storage(node), 2, true)));
        assert_eq!(c.poll_persist().map(|p| p.number), None, "it waits for the others");
    }
    say(&mut c, 5_000, &kept(3, 20, 1, third));
    let epoch = persist(&mut c, 5_000);
    let members = c.state().config(GROUP).map_or(vec![], |config| config.members.clone());
    let caught_up = wholes(&c);
    (epoch, members, caught_up, c.take_mistrusted())
}

/// Members that come back with their disks keep their places and are whole.
#[test]
fn t4_members_with_their_disks_keep_their_places() {
    let (epoch, members, caught_up, lost) = all_come_back(Guards::ALL, (storage(3), 2, true));
    assert_eq!(lost, []);
    assert_eq!(epoch, Some(2), "one epoch takes all of them in");
    assert_eq!(members, [member(1, 20), member(2, 20), member(3, 20)]);
    assert_eq!(caught_up, [1, 2, 3]);
}

/// Another directory than it had, an older one of it, and one that lost something.
const LOST: [(u64, u64, bool); 3] = [(1_000, 2, true), (903, 1, true), (903, 2, false)];

/// Who comes back with another directory or an older or a damaged one is a stranger.
#[test]
fn t4_other_older_or_damaged_directory_is_a_stranger() {
    let why = [Mistrust::OtherDirectory, Mistrust::OlderDirectory, Mistrust::Incomplete];
    for (third, why) in LOST.into_iter().zip(why) {
        let (_, members, caught_up, lost) = all_come_back(Guards::ALL, third);
        assert_eq!(lost, [(GROUP, 3, why)]);
        assert_eq!(members, [member(1, 20), member(2, 20)], "{third:?}");
        assert_eq!(caught_up, [1, 2], "{third:?}");
    }
}

/// Without a look at its directory a stranger is taken as whole.
#[cfg(feature = "mutants")]
#[test]
fn t4_without_the_directory_check_a_stranger_counts() {
    for (third, guard) in LOST.into_iter().zip([Guard::SameStorage, Guard::NewerRun, Guard::Intact])
    {
        let (_, members, caught_up, _) = all_come_back(Guards::without(guard), third);
        assert_eq!((members.len(), caught_up), (3, vec![1, 2, 3]), "{guard:?}");
    }
}

#[test]
fn t4_a_member_that_was_not_whole_is_none_for_having_a_disk() {
    let mut c = founded_on_disks(Guards::ALL);
    // The third restarts with nothing, and joins the others again; nobody has heard that it is
    // whole.
    say(&mut c, 100, &kept(3, 20, 1, (1_000, 1, true)));
    assert_eq!(persist(&mut c, 100), Some(2));
    assert_eq!(nodes(&c), [1, 2]);
    let state = c.state().group(GROUP).unwrap();
    let known: Vec<(u16, u64)> = state.storages.iter().map(|s| (s.node, s.id)).collect();
    assert_eq!(known, [(1, storage(1)), (2, storage(2))]);
}

/// A controller that starts again knows whose directory is whose.
#[test]
fn restarted_controller_knows_directories() {
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

/// The state has an epoch that nobody heard of before the power of all went. What they had in the
/// one before is all that was committed, and the state is made anew with it.
#[test]
fn bug_19_1_returning_member_with_all_data_stays() {
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

/// The power of all replicas goes, and the controller goes on: whoever comes back first does not do
/// without the others, who come a moment later. By their word it knows that its state is not the
/// newest, if it is not.
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

/// The power of all goes, and of the controller; then only these come back, each with a directory
/// and a run of it, for three times as long as silence is borne. What the controller makes of it:
/// the epoch, its members and its problem.
fn few_come_back(guards: Guards, back: &[(u16, u64, u64)]) -> (u32, Vec<u16>, Option<Problem>) {
    let state = founded_on_disks(guards).state().clone();
    let mut c = Controller::new(ControllerConfig { guards, ..setup() }, Some(state));
    come_back(&mut c, (0, 3_000), 20, back);
    (c.state().groups[0].config.epoch, nodes(&c), c.problem())
}

/// These are heard, in that incarnation, with the switch, from one time to the other.
fn come_back(
    c: &mut Controller,
    (from, to): (u64, u64),
    incarnation: u64,
    back: &[(u16, u64, u64)],
) {
    for ms in (from..to).step_by(50) {
        say(c, ms, &switch(78, 0));
        let epoch = c.state().groups[0].config.epoch;
        for (node, id, run) in back {
            say(c, ms, &kept(*node, incarnation, epoch, (*id, *run, true)));
        }
        c.tick(at(ms), &mut vec![]);
        persist(c, ms);
    }
}

/// On the directory that it had.
fn own(node: u16) -> (u16, u64, u64) {
    (node, storage(node), 2)
}

/// The host of the controller and of a replica was put back to yesterday, and the others come late:
/// by the word of those that are heard it is not known that nothing newer exists, since what came
/// later may have been one member's alone.
#[test]
fn bug_19_13_where_all_were_down_each_member_is_waited_for() {
    for back in [&[own(1)][..], &[own(1), own(3)]] {
        let (epoch, members, problem) = few_come_back(Guards::ALL, back);
        assert_eq!((epoch, members), (1, vec![1, 2, 3]));
        assert_eq!(problem, Some(Problem::ColdStart { node: 2, epoch: 1 }));
        let line = problem.unwrap().to_string();
        let says = line.contains("start replica 2") && line.contains("--recover --gone 2");
        assert!(says, "{line}");
    }
    let (epoch, members, problem) = few_come_back(Guards::ALL, &[own(1), own(2), own(3)]);
    assert_eq!((epoch, members, problem), (2, vec![1, 2, 3], None), "all do");
}

/// Replicas 1 and 2 went on without the third one, which comes back first, beside the host that was
/// put back.
#[test]
fn bug_19_13_lone_survivor_is_not_overwritten() {
    let state = founded_on_disks(Guards::ALL).state().clone();
    let mut c = Controller::new(setup(), Some(state));
    come_back(&mut c, (0, 3_000), 20, &[own(1), own(3)]);
    say(&mut c, 3_000, &kept(2, 20, 2, (storage(2), 2, true)));
    assert_eq!(persist(&mut c, 3_000), None);
    c.tick(at(3_050), &mut vec![]);
    let old = Problem::StateOld { epoch: 1, heard_epoch: 2, heard_switch_id: 1 };
    assert_eq!(c.problem(), Some(old));
}

#[cfg(feature = "mutants")]
#[test]
fn t4_without_its_guard_some_go_on_where_all_were_down() {
    for (back, left) in [(&[own(1)][..], vec![1]), (&[own(1), own(3)], vec![1, 3])] {
        let (epoch, members, _) = few_come_back(Guards::without(Guard::ColdStart), back);
        assert_eq!((epoch > 1, members), (true, left));
    }
}

/// Those that lost their disks, or have older directories, have nothing newer: their word counts
/// once all are heard, and a replica of the rack that is no member as well, which may have been let
/// in since.
#[test]
fn t4_all_down_one_with_data_goes_on() {
    for other in [(2, 1_000, 1), (2, storage(2), 1)] {
        let (epoch, members, problem) = few_come_back(Guards::ALL, &[own(1), other]);
        assert_eq!((epoch, members), (1, vec![1, 2, 3]), "{other:?}");
        assert_eq!(problem, Some(Problem::ColdStart { node: 3, epoch: 1 }), "{other:?}");
        let (epoch, members, problem) = few_come_back(Guards::ALL, &[own(1), other, (3, 1_001, 1)]);
        assert_eq!((epoch > 1, members, problem), (true, vec![1], None), "{other:?}");
    }
    let mut state = founded_on_disks(Guards::ALL).state().clone();
    state.groups[0].config.members.truncate(2);
    for (back, epoch) in [(vec![own(1), (2, 1_000, 1)], 1), (vec![own(1), own(2)], 2)] {
        let mut c = Controller::new(setup(), Some(state.clone()));
        come_back(&mut c, (0, 3_000), 20, &back);
        assert_eq!(c.state().groups[0].config.epoch, epoch);
        let waits = Some(Problem::ColdStart { node: 3, epoch: 1 });
        assert_eq!(c.problem(), waits.filter(|_| epoch == 1));
    }
}

/// The operator says that what has an older directory is gone: it is no member that has all the
/// data.
#[test]
fn bug_19_13_older_directory_is_not_caught_up() {
    let state = founded_on_disks(Guards::ALL).state().clone();
    let recover = Some(Recover { gone: vec![(GROUP, 2)] });
    let mut c = Controller::new(ControllerConfig { recover, ..setup() }, Some(state));
    come_back(&mut c, (0, 6_000), 20, &[own(1), (2, storage(2), 1), own(3)]);
    assert_eq!((c.recovered()[0].members.clone(), wholes(&c)), (vec![1, 3], vec![1, 3]));
}

/// The controller was there all the time, and made the newest epoch or heard all its members:
/// nobody knows of a newer one.
#[test]
fn bug_19_14_running_controller_goes_on_with_a_restarted_member() {
    for starts_again in [false, true] {
        let mut c = founded_on_disks(Guards::ALL);
        if starts_again {
            c = Controller::new(setup(), Some(c.state().clone()));
            say(&mut c, 0, &switch(77, 1));
            (1..=3).for_each(|node| drop(say(&mut c, 0, &alive(node, 10, 1))));
        }
        // All die, and this one alone is started again.
        come_back(&mut c, (5_000, 8_000), 20, &[own(1)]);
        assert_eq!((nodes(&c), wholes(&c), c.problem()), (vec![1], vec![1], None));
    }
}

/// One that started again itself has to hear them first, whatever it decided since.
#[test]
fn bug_19_14_controller_with_too_few_members_is_unsure() {
    let state = founded_on_disks(Guards::ALL).state().clone();
    let mut c = Controller::new(setup(), Some(state));
    // Two at a time, and never all of them.
    come_back(&mut c, (0, 2_000), 20, &[own(1), own(3)]);
    come_back(&mut c, (2_000, 5_000), 20, &[own(1)]);
    come_back(&mut c, (5_000, 8_000), 20, &[own(1), own(2)]);
    let epoch = c.state().groups[0].config.epoch;
    assert_eq!((epoch, c.problem()), (1, Some(Problem::ColdStart { node: 3, epoch: 1 })));
}

/// The operator says that the others are gone, and it goes on alone.
#[test]
fn t4_all_down_one_goes_on_alone_when_told() {
    let state = founded_on_disks(Guards::ALL).state().clone();
    let recover = Some(Recover { gone: vec![(GROUP, 2), (GROUP, 3)] });
    let mut c = Controller::new(ControllerConfig { recover, ..setup() }, Some(state));
    come_back(&mut c, (0, 6_000), 20, &[own(1)]);
    assert_eq!((nodes(&c), c.problem()), (vec![1], None));
    assert!(c.state().groups[0].config.epoch > 1_000);
}

/// VR: the power of all went as the group was founded. What replica 1 said before was said by a
/// process that is no more.
#[test]
fn bug_19_6_never_begun_group_begins_with_those_present() {
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

/// VR: all were started again elsewhere, and the first one so late that the others had their new
/// addresses, and a view change under way, before it had been heard for long. They need it, and are
/// told where it listens.
#[test]
fn bug_19_12_late_member_at_another_address_is_announced() {
    let groups = vec![GroupSetup::replicas(vec![1, 2, 3], Protocol::Vr, Program::Harmonia)];
    let setup = || ControllerConfig { groups: groups.clone(), ..setup() };
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        say(&mut c, 0, &kept(node, 10, 0, (storage(node), 1, true)));
    }
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    let mut c = Controller::new(setup(), Some(c.state().clone()));
    let elsewhere = |message| but(message, |a| a.member.addr.port += 100);
    let back = |node, epoch| elsewhere(kept(node, 20, epoch, (storage(node), 2, true)));
    for ms in (0..400).step_by(50) {
        say(&mut c, ms, &back(2, 1));
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None, "without a switch");
    }
    say(&mut c, 400, &back(1, 1));
    say(&mut c, 400, &switch(78, 1));
    assert_eq!(persist(&mut c, 400), Some(2));
    let ports = |c: &Controller| -> Vec<u16> {
        c.state().config(GROUP).unwrap().members.iter().map(|m| m.addr.port).collect()
    };
    assert_eq!(ports(&c), [1, 102, 3]);
    // The second one asks for votes; the third one has lost its disk.
    for ms in (450..1_000).step_by(50) {
        let opening =
            |node| but(back(node, 2), |a| a.standing = Standing::Opening { caught_up: false });
        say(&mut c, ms, &back(1, 2));
        say(&mut c, ms, &opening(2));
        say(&mut c, ms, &switch(78, 2));
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
    }
    assert_eq!(ports(&c), [101, 102, 3]);
}

/// A replica that was restored.
fn restored(node: u16, incarnation: u64, origin: u64) -> Membership {
    but(stands(node, incarnation, 0, Standing::Founding { origin, switch_id: 40 }), |a| {
        a.data_dir = Some(DataDir { id: storage(node), run: incarnation });
    })
}

/// A rack of restored replicas begins above the switch ids of the one before.
#[test]
fn t20_restored_rack_begins_above_old_switch_ids() {
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

/// A restored replica is left alone by a rack that goes on with other data.
#[test]
fn restored_replica_beside_a_running_rack() {
    let mut c = founded_on_disks(Guards::ALL);
    let other = but(restored(4, 10, 5), |a| a.data_dir = Some(DataDir { id: 1, run: 1 }));
    let sent = say(&mut c, 20, &other);
    assert_eq!((configured(&sent, member(4, 10).addr), c.poll_persist().is_none()), (None, true));
    c.tick(at(30), &mut vec![]);
    assert_eq!(c.problem(), Some(Problem::Restored { node: 4 }));
}
