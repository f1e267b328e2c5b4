//! Groups in which a majority decides: the controller neither removes nor admits anybody.

use super::*;

fn vr(recover: Option<Recover>) -> ControllerConfig {
    let group = GroupSetup::replicas(vec![1, 2, 3, 4, 5], Protocol::Vr, Program::Harmonia);
    ControllerConfig { groups: vec![group], recover, ..setup() }
}

fn founded_vr() -> Controller {
    let mut c = Controller::new(vr(None), None);
    (1..=5).for_each(|node| drop(say(&mut c, 0, &alive(node, 10, 0))));
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    c
}

#[test]
fn nobody_is_removed_or_admitted_and_a_cut_pair_is_only_told() {
    let mut c = founded_vr();
    for ms in (50..3_000).step_by(50) {
        // Most replicas are silent; 1 does not hear 2; another one asks to be let in.
        say(&mut c, ms, &lacks(1, 1, &[2]));
        say(&mut c, ms, &alive(2, 10, 1));
        say(&mut c, ms, &stands(6, 10, 1, Standing::Out));
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None);
    }
    assert_eq!((nodes(&c), joining(&c)), (vec![1, 2, 3, 4, 5], vec![]));
    assert_eq!(c.problem(), Some(Problem::CutPair { one: 1, other: 2 }));
}

#[test]
fn the_leader_tells_the_switch_so_that_a_view_change_waits_for_no_controller() {
    let mut c = founded_vr();
    (1..=5).for_each(|node| assert!(say(&mut c, 1, &alive(node, 10, 1)).is_empty()));
    assert!(say(&mut c, 2, &switch(77, 0)).is_empty());
    let mut sent = vec![];
    c.tick(at(50), &mut sent);
    assert!(sent.is_empty());
}

#[test]
fn another_switch_is_taken_once_a_majority_was_heard() {
    let mut c = Controller::new(vr(None), Some(founded_vr().state().clone()));
    say(&mut c, 1, &switch(78, 0));
    (1..=2).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    assert_eq!(persist(&mut c, 1), None, "three of them may have heard of more");
    say(&mut c, 2, &alive(5, 10, 1));
    assert_eq!((persist(&mut c, 2), c.state().switch_incarnation), (Some(2), 78));
    assert_eq!(nodes(&c), [1, 2, 3, 4, 5]);
}

#[test]
fn bug_16_3_a_lost_state_is_made_anew_with_a_majority() {
    let config = founded_vr().state().groups[0].config.clone();
    for (heard, made) in [(2, false), (3, true)] {
        let mut c = Controller::new(vr(Some(Recover::default())), None);
        for ms in (0..2_500).step_by(50) {
            (1..=heard).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 1))));
            say(&mut c, ms, &Membership::Configure(config.clone().into()));
            c.tick(at(ms), &mut vec![]);
            persist(&mut c, ms);
        }
        let expected = if made { vec![1, 2, 3, 4, 5] } else { vec![] };
        assert_eq!((nodes(&c), wholes(&c)), (expected.clone(), expected));
        let waits = Problem::NotHeard { node: None, epoch: 1 };
        assert_eq!(c.problem(), (!made).then_some(waits));
    }
}

/// All processes were started again, elsewhere, with what their disks have.
#[test]
fn a_member_that_starts_again_at_another_address_is_found_there() {
    let mut c = Controller::new(vr(None), Some(founded_vr().state().clone()));
    let moved = |node: u16| Addr { ip: 1, port: 500 + node };
    let says = |node: u16, epoch: u32| {
        but(stands(node, 20, epoch, Standing::Kept { intact: true }), |a| {
            a.member.addr = moved(node);
            a.held = Held { epoch, position: 9 };
        })
    };
    let mut made_at = None;
    for ms in (0..1_000).step_by(50) {
        let epoch = c.state().groups[0].config.epoch;
        (1..=3).for_each(|node| drop(say(&mut c, ms, &says(node, epoch))));
        // Two processes take node 4 for their own, and take turns.
        say(
            &mut c,
            ms,
            &but(stands(4, 30 + ms / 50 % 2, epoch, Standing::Out), |a| {
                a.member.addr = moved(9);
            }),
        );
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        made_at = made_at.or(persist(&mut c, ms).map(|epoch| (epoch, ms)));
    }
    assert_eq!(made_at, Some((2, 250)));
    let config = &c.state().groups[0].config;
    assert_eq!(config.epoch, 2, "and no other");
    for member in &config.members {
        let was = founded_vr().state().groups[0].config.members[usize::from(member.node) - 1];
        let expected = if member.node <= 3 { moved(member.node) } else { was.addr };
        assert_eq!((member.incarnation, member.addr), (was.incarnation, expected));
    }
}
