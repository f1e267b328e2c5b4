//! Chains of switches: who founds one, who goes and comes, and what the rack's switch has to do
//! with it.

use super::groups::{persist_all, say_in};
use super::*;

const CHAIN: GroupId = GroupId(3);

/// A chain of two of three switches, beside a store, or alone.
fn racks(with_store: bool) -> ControllerConfig {
    let chain = Chain { length: 2, failure_ns: 300 * MS, ..Chain::new(vec![1, 2, 3]) };
    let mut groups = vec![GroupSetup::chain(CHAIN, chain)];
    if with_store {
        groups.push(setup().groups[0].clone());
    }
    ControllerConfig { groups, failure_ns: SEC, ..setup() }
}

fn config_of(c: &Controller) -> &Config {
    c.state().config(CHAIN).unwrap()
}

fn members(c: &Controller) -> (Vec<u16>, Vec<u16>) {
    let nodes = |all: &[Member]| all.iter().map(|m| m.node).collect();
    (nodes(&config_of(c).members), nodes(&config_of(c).joining))
}

/// A switch of the chain says where it stands, in the newest epoch.
fn stands_in(c: &mut Controller, ms: u64, (node, life): (u16, u64), standing: Standing) {
    let epoch = c.state().config(CHAIN).map_or(0, |config| config.epoch);
    let message = but(stands(node, life, epoch, standing), |alive| alive.sent_at = ms);
    say_in(c, CHAIN, ms, &message);
    persist_all(c, ms);
}

const OPEN: Standing = Standing::Open { caught_up: true };

fn founded_chain(with_store: bool) -> Controller {
    let mut c = Controller::new(racks(with_store), None);
    (1..=3).for_each(|node| stands_in(&mut c, 0, (node, 10), Standing::Out));
    assert_eq!(members(&c), (vec![1, 2], vec![]));
    c
}

/// It waits for the first ones of its switches, the others are spares; and for no switch of the
/// rack.
#[test]
fn a_chain_begins_with_its_first_switches_and_no_other() {
    let mut c = Controller::new(racks(false), None);
    for ms in (0..=1_500).step_by(50) {
        stands_in(&mut c, ms, (2, 10), Standing::Out);
        stands_in(&mut c, ms, (3, 10), Standing::Out);
        c.tick(at(ms), &mut vec![]);
    }
    assert_eq!(c.problem(), Some(Problem::WaitsForSwitches { node: 1, others: 0 }));
    assert!(c.problem().unwrap().to_string().contains("switch 1, which was not heard"));
    stands_in(&mut c, 1_550, (1, 10), Standing::Out);
    assert_eq!((members(&c), c.problem()), ((vec![1, 2], vec![]), None));
    let config = config_of(&c);
    assert_eq!((config.switch, config.switch_incarnation), (Addr::default(), 0));
    assert_eq!((config.switch_id, c.state().switch_incarnation), (1, 0));
}

/// The rack's switch begins later, and another one takes its place: nothing of that is the chain's.
#[test]
fn a_new_switch_of_the_rack_makes_no_epoch_in_a_chain() {
    let mut c = founded_chain(true);
    let before = config_of(&c).clone();
    for (ms, life) in [(10, 77), (20, 78)] {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 0))));
        (1..=2).for_each(|node| stands_in(&mut c, ms, (node, 10), OPEN));
        say(&mut c, ms, &switch(life, 0));
        persist_all(&mut c, ms);
        assert_eq!(c.state().switch_incarnation, life);
        assert_eq!(*config_of(&c), before);
    }
    assert_eq!(c.state().last_switch_id, 3, "the chain's number is no other group's");
}

/// Its members have a time of their own after which they are silent; a spare copies, and is the
/// last member.
#[test]
fn a_silent_switch_is_replaced_by_a_spare_that_has_copied() {
    let mut c = founded_chain(false);
    for ms in (50..=400).step_by(50) {
        stands_in(&mut c, ms, (2, 10), OPEN);
        stands_in(&mut c, ms, (3, 10), Standing::Out);
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!(members(&c), (vec![2], vec![3]));
    assert_eq!(c.counters().removed_silent, 1);
    stands_in(&mut c, 410, (2, 10), OPEN);
    stands_in(&mut c, 410, (3, 10), Standing::Copying);
    assert_eq!(members(&c), (vec![2], vec![3]));
    stands_in(&mut c, 420, (3, 10), Standing::Copied);
    assert_eq!(members(&c), (vec![2, 3], vec![]));
    assert_eq!(c.state().group(CHAIN).unwrap().caught_up, [2], "3 is once that epoch is open");
    // The one that was removed comes back, and has no place.
    for node in [2, 3] {
        stands_in(&mut c, 430, (node, 10), OPEN);
    }
    stands_in(&mut c, 440, (1, 10), Standing::Out);
    assert_eq!(members(&c), (vec![2, 3], vec![]));
}

/// docs/internals/bugs.md, 24.42: two members fell silent one after the other, and the one that was
/// heard last was left in an epoch of its own, dead; the other, which was only cut off, came back
/// as a stranger, and what it held was lost.
#[test]
fn bug_24_42_the_member_heard_last_is_not_left_alone() {
    let mut c = founded_chain(false);
    stands_in(&mut c, 50, (1, 10), OPEN);
    stands_in(&mut c, 90, (2, 10), OPEN);
    for ms in (100..=1_000).step_by(10) {
        stands_in(&mut c, ms, (3, 10), Standing::Out);
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
        assert_eq!(members(&c), (vec![1, 2], vec![]), "at {ms} ms");
    }
    assert_eq!(c.problem(), Some(Problem::ChainLost));
    // One of them was only cut off: it has all, and goes on without the other.
    for ms in (1_010..=2_000).step_by(10) {
        stands_in(&mut c, ms, (1, 10), OPEN);
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((members(&c).0, c.problem()), (vec![1], None));
}

/// What the last one held is lost with it: a switch that never opened an epoch is not enough.
#[test]
fn a_chain_does_not_go_on_with_a_switch_that_lacks_its_keys() {
    let mut c = founded_chain(false);
    // 1 starts again, and so has nothing; 3 has copied, but its epoch is not open when 2 goes.
    stands_in(&mut c, 50, (2, 10), OPEN);
    stands_in(&mut c, 60, (1, 11), Standing::Out);
    assert_eq!(members(&c).0, [2]);
    for (node, standing) in [(2, OPEN), (3, Standing::Out), (2, OPEN), (3, Standing::Copied)] {
        stands_in(&mut c, 70, (node, 10), standing);
    }
    assert_eq!(members(&c).0, [2, 3]);
    for ms in (100..=900).step_by(50) {
        stands_in(&mut c, ms, (3, 10), Standing::Opening { caught_up: false });
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!(members(&c).0, [2, 3]);
    assert_eq!(c.problem(), Some(Problem::ChainLost));
    stands_in(&mut c, 950, (2, 10), OPEN);
    assert_eq!(c.problem(), None, "it was only silent");
}

/// A state that is made anew keeps a chain's number: with another one its switches would begin with
/// nothing.
#[test]
fn a_chain_keeps_its_number_when_the_state_is_made_anew() {
    let old = founded_chain(false);
    let mut newest = config_of(&old).clone();
    newest.epoch = 5;
    let again = ControllerConfig { recover: Some(Recover::default()), ..racks(false) };
    let mut c = Controller::new(again, None);
    for ms in (0..3_000).step_by(50) {
        for node in [1, 2] {
            let message = but(stands(node, 10, 5, OPEN), |alive| alive.sent_at = ms);
            say_in(&mut c, CHAIN, ms, &message);
        }
        say_in(&mut c, CHAIN, ms, &Membership::Configure(newest.clone().into()));
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
        if c.state().config(CHAIN).is_some() {
            break;
        }
    }
    let number = config_of(&c).switch_id;
    assert_eq!((members(&c).0, number), (vec![1, 2], newest.switch_id));
    // Nor does the epoch after that give it another one.
    for ms in (3_000..=3_500).step_by(50) {
        stands_in(&mut c, ms, (1, 10), OPEN);
        c.tick(at(ms), &mut vec![]);
        persist_all(&mut c, ms);
    }
    assert_eq!((members(&c).0, config_of(&c).switch_id), (vec![1], number));
    assert!(c.state().last_switch_id > number, "numbers were spared");
}
