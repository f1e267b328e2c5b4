//! Groups in which a majority decides: the controller neither removes nor admits anybody.

use concord_wire::control::Voting;
use concord_wire::vr::LastRecord;

use super::*;

fn five(protocol: Protocol, recover: Option<Recover>) -> ControllerConfig {
    let group = GroupSetup::replicas(vec![1, 2, 3, 4, 5], protocol, Program::Harmonia);
    ControllerConfig { groups: vec![group], recover, ..setup() }
}

fn vr(recover: Option<Recover>) -> ControllerConfig {
    five(Protocol::Vr, recover)
}

fn founded_vr() -> Controller {
    founded_as(Protocol::Vr)
}

fn founded_as(protocol: Protocol) -> Controller {
    let mut c = Controller::new(five(protocol, None), None);
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

/// The leader tells the switch so that a view change waits for no controller.
#[test]
fn leader_tells_the_switch() {
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
        but(stands(node, 20, epoch, Standing::Returning { intact: true }), |a| {
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

/// A Raft replica whose log ends with that record of that term, and says that those vote.
fn votes(node: u16, (term, position): (u32, u64), voters: &[u16]) -> Membership {
    voter(alive(node, 10, 1), (term, position), voters)
}

fn voter(message: Membership, (term, position): (u32, u64), voters: &[u16]) -> Membership {
    let Membership::ReplicaAlive(alive) = message else { panic!("a sign of life") };
    let voters = voters.iter().fold(0, |set, node| set | 1 << (node - 1));
    Membership::VoterAlive { alive, voting: Voting { last: LastRecord { term, position }, voters } }
}

/// What replicas of a Raft group say, and whether these are a majority of those who vote.
fn majorities() -> Vec<(Vec<Membership>, bool)> {
    let all = [1, 2, 3, 4, 5];
    vec![
        (vec![votes(1, (2, 9), &all), votes(2, (2, 9), &all)], false),
        ((1..=3).map(|node| votes(node, (2, 9), &all)).collect(), true),
        // 3 and 4 are dead, and 3 does not vote: neither is 5 waited for, which does not vote
        // either.
        ([1, 2].map(|node| votes(node, (2, 9), &[1, 2, 4])).into(), true),
        // More than a half of the members, of whom a half of the voters has never heard.
        ((3..=5).map(|node| votes(node, (2, 9), &[1, 2, 3])).collect(), false),
        // A change that nobody else heard of, by a leader of an earlier term. Later terms know
        // nothing of it.
        (vec![votes(1, (2, 9), &[1, 2]), votes(2, (3, 5), &all)], false),
        (vec![votes(1, (2, 9), &[1, 2, 4]), votes(2, (2, 8), &all)], true),
        (vec![votes(1, (2, 9), &[1, 2, 4]), votes(2, (2, 10), &all)], false),
        // One copies the state, and has no log.
        (vec![votes(1, (2, 9), &[1, 2, 4]), alive(2, 10, 1)], false),
        // One has not heard yet that the group was founded; and one is back without its data, and
        // in no term yet.
        (vec![votes(1, (2, 9), &[1, 2, 4]), alive(2, 10, 0)], true),
        (vec![votes(1, (2, 9), &[1, 2, 4]), alive(2, 11, 0)], false),
        {
            let back = stands(2, 11, 1, Standing::Opening { caught_up: false });
            (vec![votes(1, (2, 9), &[1, 2, 4]), voter(back, (0, 0), &all)], false)
        },
        {
            let back = stands(2, 11, 1, Standing::Open { caught_up: true });
            (vec![votes(1, (2, 9), &[1, 2, 4]), voter(back, (2, 9), &[1, 2, 4])], true)
        },
    ]
}

/// Another switch is taken once a majority of those who vote was heard.
#[test]
fn bug_20_11_switch_replaced_by_a_majority_of_voters() {
    for (n, (says, are_enough)) in majorities().into_iter().enumerate() {
        let state = founded_as(Protocol::Raft).state().clone();
        let mut c = Controller::new(five(Protocol::Raft, None), Some(state));
        say(&mut c, 1, &switch(78, 0));
        says.iter().for_each(|message| drop(say(&mut c, 1, message)));
        assert_eq!(persist(&mut c, 1), are_enough.then_some(2), "{n}");
        assert_eq!(c.state().switch_incarnation, if are_enough { 78 } else { 77 });
        assert_eq!(nodes(&c), [1, 2, 3, 4, 5]);
    }
}

/// A lost state is made anew with a majority of those who vote.
#[test]
fn bug_20_11_state_rebuilt_by_a_majority_of_voters() {
    let config = founded_as(Protocol::Raft).state().groups[0].config.clone();
    for (n, (says, are_enough)) in majorities().into_iter().enumerate() {
        let mut c = Controller::new(five(Protocol::Raft, Some(Recover::default())), None);
        for ms in (0..2_500).step_by(50) {
            says.iter().for_each(|message| drop(say(&mut c, ms, message)));
            say(&mut c, ms, &Membership::Configure(config.clone().into()));
            c.tick(at(ms), &mut vec![]);
            persist(&mut c, ms);
        }
        assert_eq!(nodes(&c), if are_enough { vec![1, 2, 3, 4, 5] } else { vec![] }, "{n}");
    }
}
