use super::*;
use alloc::string::ToString;
use alloc::vec;
use concord_wire::control::{Config, DataDir, Heard, Held, Program, Protocol, ReplicaAlive};

type Sent = Vec<(Addr, Vec<u8>)>;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

fn member(node: u16, incarnation: u64) -> Member {
    Member { node, incarnation, addr: Addr { ip: 1, port: node } }
}

const RACK: u64 = 0x7ac4;
const GROUP: GroupId = GroupId(0);

fn setup() -> ControllerConfig {
    ControllerConfig {
        groups: vec![GroupSetup::replicas(vec![1, 2, 3], Protocol::Chain, Program::Harmonia)],
        failure_ns: SEC,
        switch_failure_ns: SEC,
        fresh: false,
        recover: None,
        rack: RACK,
        addr: Addr { ip: 7, port: 7 },
        guards: Guards::ALL,
    }
}

fn say(c: &mut Controller, ms: u64, message: &Membership) -> Sent {
    let (mut bytes, mut sent) = (vec![], vec![]);
    message.emit(&mut bytes);
    c.handle(at(ms), Addr::default(), &mut bytes, &mut sent);
    sent
}

fn stands(node: u16, incarnation: u64, epoch: u32, standing: Standing) -> Membership {
    let member = member(node, incarnation);
    let (heard, held, unheard) = (heard(epoch), Held::default(), vec![]);
    let (sent_at, data_dir) = (0, None);
    let alive = ReplicaAlive { member, sent_at, heard, standing, held, data_dir, unheard };
    Membership::ReplicaAlive(alive)
}

/// The same sign of life, but for that.
fn but(message: Membership, change: impl FnOnce(&mut ReplicaAlive)) -> Membership {
    let Membership::ReplicaAlive(mut alive) = message else { panic!("a sign of life") };
    change(&mut alive);
    Membership::ReplicaAlive(alive)
}

/// What a node of this rack has heard of by that epoch, under the first switch.
fn heard(epoch: u32) -> Heard {
    let (rack, switch_id) = if epoch == 0 { (0, 0) } else { (RACK, 1) };
    Heard { rack, epoch, switch_id }
}

fn alive(node: u16, incarnation: u64, epoch: u32) -> Membership {
    let standing = if epoch == 0 { Standing::Out } else { Standing::Open { caught_up: true } };
    stands(node, incarnation, epoch, standing)
}

/// A switch's sign of life.
fn switch_alive(at: u16, incarnation: u64, epoch: u32, standby: bool) -> Membership {
    let addr = Addr { ip: at.into(), port: at };
    Membership::SwitchAlive { incarnation, addr, sent_at: 0, epoch, heard: heard(epoch), standby }
}

fn switch(incarnation: u64, epoch: u32) -> Membership {
    switch_alive(9, incarnation, epoch, false)
}

fn standby(incarnation: u64, epoch: u32) -> Membership {
    switch_alive(8, incarnation, epoch, true)
}

/// Persists what is proposed; its epoch, if something is.
fn persist(c: &mut Controller, ms: u64) -> Option<u32> {
    let state = c.poll_persist()?.what;
    c.persisted(at(ms), c.state().version + 1, &mut vec![]);
    state.config(GROUP).map(|config| config.epoch)
}

fn joining(c: &Controller) -> Vec<u16> {
    c.state().config(GROUP).into_iter().flat_map(|c| c.joining.iter()).map(|m| m.node).collect()
}

/// The epoch of the configuration among `sent` to that address.
fn configured(sent: &Sent, to: Addr) -> Option<u32> {
    sent.iter().filter(|(addr, _)| *addr == to).find_map(|(_, bytes)| {
        match Membership::parse(bytes) {
            Ok(Membership::Configure(part)) => Some(part.common().epoch),
            _ => None,
        }
    })
}

fn founded() -> Controller {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 10, 0));
    }
    say(&mut c, 0, &switch(77, 0));
    assert!(c.poll_persist().is_some());
    c.persisted(at(0), c.state().version + 1, &mut vec![]);
    c
}

fn nodes(c: &Controller) -> Vec<u16> {
    c.state().config(GROUP).into_iter().flat_map(|c| c.members.iter()).map(|m| m.node).collect()
}

fn wholes(c: &Controller) -> Vec<u16> {
    c.state().group(GROUP).map_or(vec![], |g| g.caught_up.clone())
}

#[test]
fn a_first_epoch_that_waits_says_for_whom() {
    let mut c = Controller::new(setup(), None);
    c.tick(at(0), &mut vec![]);
    c.tick(at(500), &mut vec![]);
    assert_eq!(c.problem(), None, "roles come within moments");
    c.tick(at(1_200), &mut vec![]);
    assert_eq!(c.problem(), Some(Problem::WaitsForReplicas { node: 1, others: 2 }));
    for at_ms in [1_300, 1_700, 2_100, 2_400] {
        for node in [1, 3] {
            say(&mut c, at_ms, &alive(node, 10, 0));
        }
        say(&mut c, at_ms, &switch(77, 0));
    }
    let problem = c.problem().unwrap();
    assert_eq!(problem, Problem::WaitsForReplicas { node: 2, others: 0 });
    assert!(problem.to_string().contains("waits for replica 2, which"));
    say(&mut c, 2_500, &alive(2, 10, 0));
    assert!(c.poll_persist().is_some());
    assert_eq!(c.problem(), None);
}

#[test]
fn t3_nobody_hears_of_an_epoch_before_it_is_persisted() {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        assert!(say(&mut c, 0, &alive(node, 10, 0)).is_empty());
    }
    assert!(say(&mut c, 0, &switch(77, 0)).is_empty());
    let state = c.poll_persist().unwrap().what;
    assert_eq!((state.version, state.last_switch_id), (1, 1));
    assert!(c.poll_persist().is_none());
    assert!(say(&mut c, 1, &alive(1, 10, 0)).is_empty());
    let mut sent = vec![];
    c.persisted(at(1), c.state().version + 1, &mut sent);
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
    assert_eq!(wholes(&c), [1, 3]);
    assert_eq!((c.counters().admitted, c.counters().promoted), (1, 1));
}

#[test]
fn t4_a_replica_that_never_got_the_whole_log_cannot_go_on_alone() {
    for caught_up in [false, true] {
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
            say(&mut c, t, &stands(4, 10, 3, Standing::Open { caught_up }));
            c.tick(at(t), &mut vec![]);
        }
        let problem = (!caught_up).then_some(Problem::NobodyCaughtUp);
        assert_eq!(c.problem(), problem);
        assert_eq!(persist(&mut c, t).is_some(), caught_up);
        assert_eq!(nodes(&c).len(), if caught_up { 1 } else { 4 });
        // One that has all of it comes back.
        if !caught_up {
            say(&mut c, t, &alive(1, 10, 1));
            persist(&mut c, t);
            assert_eq!((nodes(&c), wholes(&c)), (vec![1, 4], vec![1]));
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

/// Of two controllers with one state one is refused and goes on from the others.
#[test]
fn t3_second_controller_is_refused_and_continues() {
    let first = founded();
    let mut stored = first.state().clone();
    let mut two = [Controller::new(setup(), Some(stored.clone())), first];
    for (n, c) in two.iter_mut().enumerate() {
        for node in 1..=3 {
            say(c, 5, &alive(node, 10, 1));
        }
        say(c, 5, &stands(2 + n as u16, 11, 1, Standing::Out));
        let state = c.poll_persist().unwrap().what;
        if state.follows(Some(&stored), Guards::ALL) {
            stored = state;
            c.persisted(at(5), c.state().version + 1, &mut vec![]);
        } else {
            c.superseded(stored.clone());
        }
    }
    assert_eq!((nodes(&two[0]), nodes(&two[1])), (vec![1, 3], vec![1, 3]));
    assert_eq!((two[0].counters().superseded, two[1].counters().superseded), (0, 1));
    // It sees what it wanted again, and its next state follows.
    say(&mut two[1], 6, &alive(1, 10, 2));
    say(&mut two[1], 6, &stands(3, 11, 2, Standing::Out));
    assert!(two[1].poll_persist().unwrap().what.follows(Some(&stored), Guards::ALL));
}

/// A silent replica is removed but not because the controller slept.
#[test]
fn silent_replica_removed_unless_controller_slept() {
    let mut c = founded();
    let mut t = 0;
    while t < 1_200 {
        t += 50;
        say(&mut c, t, &alive(1, 10, 1));
        say(&mut c, t, &alive(3, 10, 1));
        c.tick(at(t), &mut vec![]);
    }
    assert!(c.poll_persist().is_some());
    c.persisted(at(t), c.state().version + 1, &mut vec![]);
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
            c.persisted(at(n * 50), c.state().version + 1, &mut vec![]);
        }
    }
    assert_eq!(nodes(&c), [1, 2, 3]);
}

/// The last epoch stands, whoever dies or comes: a number that begins anew would be an old epoch to
/// all.
#[test]
fn t20_used_up_epochs_change_nothing() {
    let mut state = founded().state().clone();
    state.groups[0].config.epoch = u32::MAX;
    let mut c = Controller::new(setup(), Some(state));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, u32::MAX))));
    say(&mut c, 1, &switch(77, u32::MAX));
    assert_eq!((persist(&mut c, 1), c.problem()), (None, None));
    // One has lost all.
    say(&mut c, 2, &stands(3, 11, u32::MAX, Standing::Out));
    assert_eq!((persist(&mut c, 2), c.problem()), (None, Some(Problem::EpochsExhausted)));
    assert!(c.problem().unwrap().to_string().contains("every epoch number was used"));
    assert_eq!(c.state().config(GROUP).unwrap().epoch, u32::MAX);
}

/// After a power cut of every replica nobody goes on with nothing.
#[test]
fn t7_power_cut_of_all_starts_nothing_empty() {
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
            let epoch = c.state().config(GROUP).map_or(0, |config| config.epoch);
            say(&mut c, ms, &stands(node, 11, epoch, Standing::Out));
        }
        c.tick(at(ms), &mut vec![]);
        if let Some(epoch) = persist(&mut c, ms) {
            let config = c.state().config(GROUP).map(|c| c.members.clone()).unwrap_or_default();
            assert!(config.iter().any(|m| m.incarnation == 10), "epoch {epoch} has no data");
        }
    }
    assert_eq!(c.problem(), Some(Problem::NobodyCaughtUp));
    assert!(c.problem().unwrap().to_string().contains("--fresh"));
}

/// What a replica says, with whom it does not hear.
fn lacks(node: u16, epoch: u32, unheard: &[u16]) -> Membership {
    but(alive(node, 10, epoch), |a| a.unheard = unheard.to_vec())
}

/// Everybody lives, for so many ms; the last epoch that was made.
fn live(c: &mut Controller, from_ms: u64, to_ms: u64, says: impl Fn(u16) -> Vec<u16>) {
    for ms in (from_ms..to_ms).step_by(50) {
        let epoch = c.state().config(GROUP).map_or(0, |config| config.epoch);
        for node in nodes(c) {
            say(c, ms, &lacks(node, epoch, &says(node)));
        }
        say(c, ms, &switch(77, epoch));
        c.tick(at(ms), &mut vec![]);
        persist(c, ms);
    }
}

#[test]
fn bug_16_1_a_controller_that_was_cut_off_removes_nobody_for_it() {
    for (cut_ms, survivors) in
        [(2_000, 1), (6_000, 1), (20_000, 1), (2_000, 2), (900, 1), (1_100, 1), (1_700, 1)]
    {
        let mut c = founded();
        live(&mut c, 50, 3_000, |_| vec![]);
        // Its own link is down; its ticks go on. The last packets came at different times.
        say(&mut c, 3_040, &alive(1, 10, 1));
        let again = 3_000 + cut_ms;
        for ms in (3_000..again).step_by(50) {
            c.tick(at(ms), &mut vec![]);
            assert_eq!(persist(&mut c, ms), None, "cut for {cut_ms} ms, after {ms}");
        }
        // It is up again: they come one by one.
        for node in 1..=survivors {
            say(&mut c, again, &alive(node, 10, 1));
            assert_eq!(persist(&mut c, again), None);
        }
        c.tick(at(again + 10), &mut vec![]);
        assert_eq!(persist(&mut c, again + 10), None);
        live(&mut c, again + 100, again + 5_000, |_| vec![]);
        assert_eq!((nodes(&c), c.state().config(GROUP).unwrap().epoch), (vec![1, 2, 3], 1));
        // Who is silent from then on is removed as ever.
        let mut t = again + 5_000;
        while t < again + 7_000 {
            t += 50;
            for node in [1, 3] {
                say(&mut c, t, &alive(node, 10, 1));
            }
            c.tick(at(t), &mut vec![]);
        }
        persist(&mut c, t);
        assert_eq!(nodes(&c), [1, 3]);
    }
}

/// A controller goes on with nobody whom it has not heard.
#[test]
fn bug_16_1_controller_ignores_members_it_never_heard() {
    let stored = founded().state().clone();
    let mut c = Controller::new(setup(), Some(stored));
    say(&mut c, 10, &alive(1, 10, 1));
    say(&mut c, 10, &stands(2, 11, 1, Standing::Out));
    assert_eq!(persist(&mut c, 10), None, "replica 3 may be gone, or know more");
    say(&mut c, 20, &alive(3, 10, 1));
    assert_eq!(persist(&mut c, 20), Some(2));
    assert_eq!(nodes(&c), [1, 3]);
}

/// In VR the founders' incarnations stay the group's name, though most replicas restarted since.
#[test]
fn bug_16_1_switch_replaced_though_most_replicas_restarted() {
    let mut c = Controller::new(
        ControllerConfig {
            groups: vec![GroupSetup::replicas(vec![1, 2, 3], Protocol::Vr, Program::Harmonia)],
            ..setup()
        },
        None,
    );
    for node in 1..=3 {
        say(&mut c, 0, &alive(node, 10, 0));
    }
    say(&mut c, 0, &switch(77, 0));
    assert_eq!(persist(&mut c, 0), Some(1));
    for node in [1, 2] {
        say(&mut c, 10, &stands(node, 11, 1, Standing::Opening { caught_up: false }));
    }
    say(&mut c, 10, &alive(3, 10, 1));
    say(&mut c, 10, &switch(78, 0));
    assert_eq!(persist(&mut c, 10), None, "who recovers may have heard of more");
    say(&mut c, 20, &alive(1, 11, 1));
    assert_eq!(persist(&mut c, 20), Some(2));
}

/// Of two replicas that do not hear each other one is removed.
#[test]
fn bug_16_2_one_of_two_cut_replicas_is_removed() {
    let both = [((1, 2), true, [1, 3]), ((2, 3), true, [1, 2]), ((1, 3), true, [1, 2])];
    // Only one of the two says so: its packets arrive, the other one's do not.
    let one = [((1, 2), false, [2, 3]), ((2, 3), false, [1, 3]), ((1, 3), false, [2, 3])];
    for (pair, is_mutual, expected) in both.into_iter().chain(one) {
        let mut c = founded();
        live(&mut c, 50, 2_000, |_| vec![]);
        let says = |node| match node {
            _ if node == pair.0 => vec![pair.1],
            _ if node == pair.1 && is_mutual => vec![pair.0],
            _ => vec![],
        };
        live(&mut c, 2_000, 2_200, says);
        assert_eq!(nodes(&c), [1, 2, 3]);
        let problem = Problem::CutPair { one: pair.0, other: pair.1 };
        assert_eq!(c.problem(), Some(problem));
        live(&mut c, 2_200, 2_500, says);
        assert_eq!((nodes(&c), c.counters().removed_cut), (expected.to_vec(), 1));
        // It joins; as long as it does not hear all members it waits outside.
        let gone = (1..=3).find(|n| !expected.contains(n)).unwrap();
        let lacked = if gone == pair.0 { pair.1 } else { pair.0 };
        let mut ms = 2_500;
        while ms < 5_000 {
            ms += 50;
            let epoch = c.state().config(GROUP).unwrap().epoch;
            let standing = if epoch == 2 { Standing::Out } else { Standing::Copied };
            let unheard = if ms < 4_500 { vec![lacked] } else { vec![] };
            let says = but(stands(gone, 10, epoch, standing), |a| a.unheard = unheard);
            say(&mut c, ms, &says);
            live(&mut c, ms, ms + 1, |_| vec![]);
            if ms == 4_400 {
                assert_eq!((nodes(&c).len(), joining(&c)), (2, vec![gone]));
                assert_eq!(c.problem(), Some(Problem::CutPair { one: lacked, other: gone }));
            }
        }
        assert_eq!((nodes(&c).len(), c.problem()), (3, None));
    }
}

#[test]
fn bug_16_2_who_hears_nobody_goes_and_the_last_whole_one_never() {
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    live(&mut c, 2_000, 2_600, |node| if node == 1 { vec![2, 3] } else { vec![1] });
    assert_eq!(nodes(&c), [2, 3]);
    // Nobody is removed for a silence that ends, or of which nobody knows whether it goes on.
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    for round in 0..5 {
        let from = 2_000 + round * 400;
        live(&mut c, from, from + 300, |node| if node == 1 { vec![2] } else { vec![] });
        live(&mut c, from + 300, from + 400, |_| vec![]);
    }
    assert_eq!(nodes(&c), [1, 2, 3]);
}

/// Replica 2 stands still for longer than a cut takes, and for less than half of what costs it its
/// place.
#[test]
fn bug_19_19_who_was_paused_was_not_cut_off() {
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    for ms in (2_000..2_400).step_by(50) {
        for (node, unheard) in [(1, vec![2]), (3, vec![2])] {
            say(&mut c, ms, &lacks(node, 1, &unheard));
        }
        say(&mut c, ms, &switch(77, 1));
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None);
    }
    // Its first word is of before it read what had come.
    live(&mut c, 2_400, 2_450, |node| if node == 2 { vec![1, 3] } else { vec![2] });
    live(&mut c, 2_450, 4_000, |_| vec![]);
    assert_eq!((nodes(&c), c.counters().removed_cut), (vec![1, 2, 3], 0));
}

#[test]
fn bug_15_22_who_is_in_another_epoch_is_not_cut_off() {
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    let epoch = c.state().config(GROUP).unwrap().epoch;
    // Replica 2 has not heard of the epoch yet, and so hears nobody in it; then it has.
    for ms in (2_000..2_600).step_by(50) {
        [alive(1, 10, epoch), lacks(2, epoch - 1, &[1, 3]), alive(3, 10, epoch)]
            .iter()
            .for_each(|message| drop(say(&mut c, ms, message)));
        c.tick(at(ms), &mut vec![]);
        assert_eq!((persist(&mut c, ms), c.problem()), (None, None));
    }
    live(&mut c, 2_600, 2_700, |node| if node == 2 { vec![1] } else { vec![] });
    live(&mut c, 2_700, 3_000, |_| vec![]);
    assert_eq!(nodes(&c), [1, 2, 3]);
}

/// Replica 3 hears of an epoch a second after it began, and did not take part until then.
#[test]
fn bug_15_33_late_member_is_not_taken_for_cut_off() {
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    say(&mut c, 2_000, &stands(2, 10, 1, Standing::Leaving));
    assert_eq!((persist(&mut c, 2_000), nodes(&c)), (Some(2), vec![1, 3]));
    let opening = |node, caught_up| stands(node, 10, 2, Standing::Opening { caught_up });
    let misses_3 = but(opening(1, true), |a| a.unheard = vec![3]);
    for ms in (2_050..3_000).step_by(50) {
        say(&mut c, ms, &misses_3);
        say(&mut c, ms, &alive(3, 10, 1));
        say(&mut c, ms, &switch(77, 2));
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None);
    }
    say(&mut c, 3_000, &opening(3, false));
    c.tick(at(3_000), &mut vec![]);
    assert_eq!((persist(&mut c, 3_000), nodes(&c)), (None, vec![1, 3]));
    live(&mut c, 3_050, 4_000, |_| vec![]);
    assert_eq!((nodes(&c), c.counters().removed_cut), (vec![1, 3], 0));
}

#[test]
fn bug_16_3_a_controller_without_its_file_decides_nothing() {
    let mut c = Controller::new(setup(), None);
    for node in 1..=3 {
        assert!(say(&mut c, 1, &alive(node, 10, 23)).is_empty());
    }
    let sent = say(&mut c, 1, &switch(77, 23));
    assert_eq!((sent, persist(&mut c, 1)), (vec![], None));
    let expected = Problem::StateLost { heard_epoch: 23, heard_switch_id: 1 };
    assert_eq!(c.problem(), Some(expected));
    let line = c.problem().unwrap().to_string();
    assert!(line.contains("epoch 23") && line.contains("--recover") && !line.contains('\n'));
    // Nor where only the switch is left of what was.
    let mut c = Controller::new(setup(), None);
    say(&mut c, 1, &switch(77, 23));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 11, 0))));
    assert_eq!((persist(&mut c, 1), c.problem()), (None, Some(expected)));
    // Whoever gives the data up begins behind all that was used.
    let mut c = Controller::new(ControllerConfig { fresh: true, ..setup() }, None);
    say(&mut c, 1, &switch(77, 23));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 11, 0))));
    assert_eq!(persist(&mut c, 1), Some(24));
    assert_eq!(c.state().last_switch_id, 2);
}

/// A controller with a file of yesterday decides nothing.
#[test]
fn bug_16_3_old_state_file_decides_nothing() {
    let yesterday = founded().state().clone();
    let mut c = Controller::new(setup(), Some(yesterday.clone()));
    say(&mut c, 1, &switch(77, 1));
    say(&mut c, 1, &alive(2, 10, 1));
    // It has heard of epoch 5 from whoever was the controller then.
    assert!(say(&mut c, 1, &alive(1, 10, 5)).is_empty());
    say(&mut c, 1, &stands(3, 10, 5, Standing::Leaving));
    for ms in (50..3_000).step_by(50) {
        say(&mut c, ms, &alive(1, 10, 5));
        c.tick(at(ms), &mut vec![]);
    }
    assert_eq!((persist(&mut c, 3_000), nodes(&c)), (None, vec![1, 2, 3]));
    let expected = Problem::StateOld { epoch: 1, heard_epoch: 5, heard_switch_id: 1 };
    assert_eq!(c.problem(), Some(expected));
    // A gateway is not told who is who, either: that was long ago.
    assert!(
        say(&mut c, 3_000, &Membership::WhoIsWho { client: Addr { ip: 1, port: 1 } }).is_empty()
    );
    // A switch id that nobody knows of here says it as well.
    let mut c = Controller::new(setup(), Some(yesterday));
    let Membership::SwitchAlive { incarnation, addr, epoch, heard, standby, .. } = switch(77, 1)
    else {
        panic!("a sign of life")
    };
    let heard = Heard { switch_id: 2, ..heard };
    say(
        &mut c,
        1,
        &Membership::SwitchAlive { incarnation, addr, sent_at: 0, epoch, heard, standby },
    );
    assert!(c.is_behind());
}

/// A rack file with another program brings the switch a new id.
#[test]
fn bug_17_3_other_program_brings_a_new_switch_id() {
    let state = founded().state().clone();
    let plain = vec![GroupSetup::replicas(vec![1, 2, 3], Protocol::Chain, Program::Forward)];
    let mut c = Controller::new(ControllerConfig { groups: plain, ..setup() }, Some(state));
    for ms in (0..3_000).step_by(50) {
        say(&mut c, ms, &switch(77, 1));
        (1..=2).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 1))));
        c.tick(at(ms), &mut vec![]);
    }
    assert_eq!(persist(&mut c, 3_000), Some(2));
    let config = c.state().config(GROUP).unwrap();
    assert_eq!((config.program, config.switch_id, nodes(&c)), (Program::Forward, 2, vec![1, 2]));
}

/// A file of yesterday under a running controller takes nothing back.
#[test]
fn bug_15_26_old_file_under_a_running_controller() {
    let mut c = founded();
    let yesterday = c.state().clone();
    live(&mut c, 50, 1_000, |_| vec![]);
    // The switch asks for another id, and gets it; then the file is put back, and it asks again.
    say(&mut c, 1_000, &switch(78, 1));
    assert_eq!(persist(&mut c, 1_000), Some(2));
    say(&mut c, 1_050, &switch(79, 2));
    let refused = c.poll_persist().unwrap().what;
    assert!(!refused.follows(Some(&yesterday), Guards::ALL));
    c.superseded(yesterday);
    c.tick(at(1_100), &mut vec![]);
    assert_eq!(persist(&mut c, 1_100), None);
    let expected = Problem::StateOld { epoch: 1, heard_epoch: 2, heard_switch_id: 2 };
    assert_eq!((c.is_behind(), c.problem()), (true, Some(expected)));
}

/// A controller with a file of another rack decides nothing.
#[test]
fn bug_16_3_foreign_state_file_decides_nothing() {
    let mut other = founded().state().clone();
    other.rack = RACK + 1;
    other.groups[0].config.rack = RACK + 1;
    other.groups[0].config.epoch = 90;
    other.groups[0].config.members.iter_mut().for_each(|m| m.incarnation = 99);
    other.switch_incarnation = 99;
    let mut c = Controller::new(setup(), Some(other));
    for ms in (0..3_000).step_by(50) {
        for node in 1..=3 {
            assert!(say(&mut c, ms, &alive(node, 10, 5)).is_empty());
        }
        assert!(say(&mut c, ms, &switch(77, 5)).is_empty());
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None);
    }
    assert!(matches!(c.problem(), Some(Problem::Stranger { .. })), "{:?}", c.problem());
}

fn recovering(gone: &[u16], state: Option<State>) -> Controller {
    let recover = Some(Recover { gone: gone.iter().map(|node| (GROUP, *node)).collect() });
    Controller::new(ControllerConfig { recover, ..setup() }, state)
}

/// Replicas that are in epoch 23 of `members` and say so, for so long that the state is made anew.
fn recover(c: &mut Controller, members: &[u16], says: &[Membership]) -> Option<u32> {
    let config = Config {
        group: concord_wire::GroupId(0),
        epoch: 23,
        rack: RACK,
        switch_id: 4,
        switch_incarnation: 77,
        switch: Addr { ip: 9, port: 9 },
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: members.iter().map(|node| member(*node, 10)).collect(),
        joining: vec![],
    };
    for ms in (0..2_500).step_by(50) {
        for message in says {
            let told = say(c, ms, message);
            assert_eq!(configured(&told, member(1, 10).addr), None);
        }
        let mut sent = vec![];
        c.tick(at(ms), &mut sent);
        if let Some((_, bytes)) = sent.first() {
            let asked = Membership::WhoIsWho { client: setup().addr };
            assert_eq!(Membership::parse(bytes), Ok(asked));
            say(c, ms, &Membership::Configure(config.clone().into()));
        }
        if let Some(epoch) = persist(c, ms) {
            assert!(ms >= 2_000, "it listens first");
            return Some(epoch);
        }
    }
    None
}

#[test]
fn bug_16_3_a_lost_state_is_made_anew_above_all_that_was_heard() {
    let all: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let mut c = recovering(&[], None);
    assert_eq!(recover(&mut c, &[3, 1, 2], &all), Some(23 + 1_024));
    assert_eq!((nodes(&c), wholes(&c)), (vec![3, 1, 2], vec![3, 1, 2]));
    let config = c.state().config(GROUP).unwrap().clone();
    assert_eq!((config.rack, config.switch_id, c.state().last_switch_id), (RACK, 4, 4 + 1_024));
    assert!(c.recovered()[0].to_string().contains("no data is lost"));
    // It goes on as ever.
    say(&mut c, 2_600, &switch(78, 0));
    (1..=3).for_each(|node| drop(say(&mut c, 2_600, &alive(node, 10, 1_047))));
    assert_eq!((persist(&mut c, 2_600), c.state().last_switch_id), (Some(1_048), 4 + 1_025));
    // The file of yesterday helps with nothing; its version is followed.
    let mut c = recovering(&[], Some(founded().state().clone()));
    assert_eq!(recover(&mut c, &[1, 2, 3], &all), Some(1_047));
    assert_eq!(c.state().version, 2);
}

/// A state is made anew with replicas that restarted since the file of yesterday.
#[test]
fn bug_15_24_state_rebuilt_with_restarted_replicas() {
    let mut yesterday = founded().state().clone();
    yesterday.groups[0].config.members.iter_mut().for_each(|m| m.incarnation = 9);
    let all: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let mut c = recovering(&[], Some(yesterday));
    assert_eq!(recover(&mut c, &[1, 2, 3], &all), Some(1_047));
}

#[test]
fn bug_16_3_nothing_is_made_anew_while_a_member_may_know_more() {
    let two: Vec<Membership> = [1, 3].map(|node| alive(node, 10, 23)).to_vec();
    let mut c = recovering(&[], None);
    assert_eq!(recover(&mut c, &[1, 2, 3], &two), None);
    assert_eq!(c.problem(), Some(Problem::NotHeard { node: Some(2), epoch: 23 }));
    let mut c = recovering(&[2], None);
    assert_eq!(recover(&mut c, &[1, 2, 3], &two), Some(1_047));
    assert_eq!(nodes(&c), [1, 3]);
    // One that the operator took for gone is back, with all that it had.
    let all: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 23)).collect();
    let mut c = recovering(&[2], None);
    assert_eq!(recover(&mut c, &[1, 2, 3], &all), Some(1_047));
    assert_eq!(nodes(&c), [1, 2, 3]);
    // Nobody has heard of anything.
    let mut c = recovering(&[], None);
    let blank: Vec<Membership> = (1..=3).map(|node| alive(node, 10, 0)).collect();
    assert_eq!(recover(&mut c, &[1], &blank), None);
    assert_eq!(c.problem(), Some(Problem::NothingHeard));
}

/// When the last member is gone the newest of the others is promoted.
#[test]
fn bug_16_1_newest_non_member_is_promoted() {
    let outside = |node: u16, epoch: u32, position: u64| {
        but(stands(node, 10, 23, Standing::Out), |a| a.held = Held { epoch, position })
    };
    let said = [outside(1, 21, 900), outside(2, 22, 500), outside(4, 22, 400), outside(5, 0, 0)];
    // Replica 3 was alone in epoch 23. Without the operator's word nobody goes on without it.
    let mut c = recovering(&[], None);
    assert_eq!(recover(&mut c, &[3], &said), None);
    assert_eq!(c.problem(), Some(Problem::NotHeard { node: Some(3), epoch: 23 }));
    let mut c = recovering(&[3], None);
    assert_eq!(recover(&mut c, &[3], &said), Some(1_047));
    assert_eq!((nodes(&c), wholes(&c)), (vec![2], vec![2]));
    let line = c.recovered()[0].to_string();
    assert!(line.contains("record 500 in epoch 22") && line.contains("lost"), "{line}");
    // And not while one that has all is there, whoever else is said to be gone.
    let mut c = recovering(&[3], None);
    let three: Vec<Membership> = said.iter().cloned().chain([alive(6, 10, 23)]).collect();
    assert_eq!(recover(&mut c, &[3, 6], &three), Some(1_047));
    assert_eq!((nodes(&c), c.recovered()[0].lost_behind), (vec![6], None));
    let mut c = recovering(&[3], None);
    assert_eq!(recover(&mut c, &[3], &[outside(5, 0, 0)]), None);
    assert_eq!(c.problem(), Some(Problem::NothingLeft));
}

/// Who is of a rack that begins anew hears of it until it knows.
#[test]
fn bug_16_3_refounded_rack_is_told_until_it_knows() {
    let before = founded().state().clone();
    let again = ControllerConfig { fresh: true, rack: RACK + 1, ..setup() };
    let mut c = Controller::new(again, Some(before));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    say(&mut c, 1, &switch(77, 1));
    assert_eq!(persist(&mut c, 1), Some(2));
    assert_eq!(c.state().config(GROUP).unwrap().rack, RACK + 1);
    // The first word was lost: they are still of the rack before.
    let told = say(&mut c, 2, &alive(2, 10, 1));
    assert_eq!(configured(&told, member(2, 10).addr), Some(2));
    assert_eq!(c.problem(), None);
    // One that has no place is a stranger until it is started again.
    assert!(say(&mut c, 3, &alive(4, 10, 1)).is_empty());
    assert!(matches!(c.problem(), Some(Problem::Stranger { .. })));
}

/// Of two that are cut none is removed when the other has just died.
#[test]
fn bug_16_2_cut_pair_keeps_both_when_the_other_died() {
    let mut c = founded();
    live(&mut c, 50, 2_000, |_| vec![]);
    let says = |node| if node == 2 { vec![1, 3] } else { vec![] };
    live(&mut c, 2_000, 2_250, says);
    // Replica 2, which did not hear the others, is no more; all else goes on.
    for ms in (2_250..3_900).step_by(50) {
        for node in nodes(&c).into_iter().filter(|node| *node != 2) {
            let epoch = c.state().config(GROUP).unwrap().epoch;
            say(&mut c, ms, &lacks(node, epoch, &[]));
        }
        c.tick(at(ms), &mut vec![]);
        persist(&mut c, ms);
        assert!(nodes(&c).contains(&1) && nodes(&c).contains(&3), "{:?}", nodes(&c));
    }
    assert_eq!((nodes(&c), c.counters().removed_silent), (vec![1, 3], 1));
}

/// Signs of life that come late do not say that it can hear.
#[test]
fn bug_16_1_late_keepalives_prove_no_hearing() {
    let mut c = founded();
    let stamped = |node, ms: u64| but(alive(node, 10, 1), |a| a.sent_at = ms * MS);
    for ms in (50..1_000).step_by(50) {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &stamped(node, ms))));
    }
    // Its link is down; what replica 1 said long ago is still on its way.
    for ms in (1_000..5_000).step_by(50) {
        say(&mut c, ms, &stamped(1, 100 + ms / 10));
        c.tick(at(ms), &mut vec![]);
        assert_eq!(persist(&mut c, ms), None);
    }
    assert_eq!(nodes(&c), [1, 2, 3]);
    assert!(c.counters().stale > 0);
}

/// Members that go are taken out at once and the last one that has all the data is not.
#[test]
fn leaving_members_are_removed_except_the_last_caught_up() {
    let mut c = founded();
    for (node, left) in [(1, vec![2, 3]), (3, vec![2])] {
        let epoch = c.state().config(GROUP).unwrap().epoch;
        for other in 1..=3 {
            say(&mut c, 1, &alive(other, 10, epoch));
        }
        say(&mut c, 2, &stands(node, 10, epoch, Standing::Leaving));
        assert_eq!(persist(&mut c, 2), Some(epoch + 1));
        assert_eq!(nodes(&c), left);
    }
    assert_eq!(c.counters().removed_leaving, 2);
    say(&mut c, 3, &stands(2, 10, 3, Standing::Leaving));
    assert_eq!((persist(&mut c, 3), nodes(&c)), (None, vec![2]));
    assert_eq!(c.problem(), Some(Problem::NobodyCaughtUp));
}

mod anew;
mod bounds;
mod chain;
mod groups;
mod memory;
mod quorum;
mod returned;
mod several;
mod shown;
mod stored;
mod switches;
