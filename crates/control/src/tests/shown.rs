//! The controller's status and counters, and its handling of useless packets.

use super::*;
use concord_wire::control::{CopyMessage, LogEnd};

/// Whoever is heard of is shown with how long it has been silent.
#[test]
fn heard_nodes_are_shown_with_their_silence() {
    let mut c = founded();
    // It has heard of no epoch; since it has no place, it may be a new one for all that.
    say(&mut c, 20, &stands(4, 11, 0, Standing::Out));
    say(&mut c, 30, &standby(90, 0));
    let shown: Vec<_> = c.nodes(GROUP, at(50)).collect();
    assert_eq!(shown.len(), 4);
    assert_eq!(shown[0], (member(1, 10), 0, Standing::Out, 50 * MS));
    assert_eq!(shown[3], (member(4, 11), 0, Standing::Out, 30 * MS));
    assert_eq!(c.nodes(GroupId(8), at(50)).count(), 0, "of no other group");
    let shown: Vec<_> = c.switches(at(50)).collect();
    let (active, other) = (Addr { ip: 9, port: 9 }, Addr { ip: 8, port: 8 });
    assert_eq!(shown, [(90, other, true, 20 * MS), (77, active, false, 50 * MS)]);
    assert_eq!(c.groups().collect::<Vec<_>>(), [GROUP]);
}

#[test]
fn what_is_of_no_use_is_counted_and_changes_nothing() {
    let mut c = founded();
    let before = c.state().clone();
    let mut sent = vec![];
    // No packet of ours; one of another kind; and what only replicas and switches say to each
    // other.
    c.handle(at(1), Addr::default(), &mut [1, 2, 3], &mut sent);
    let mut cut_short = vec![];
    switch(77, 1).emit(&mut cut_short);
    cut_short.truncate(cut_short.len() - 1);
    c.handle(at(1), Addr::default(), &mut cut_short, &mut sent);
    assert_eq!(c.counters().malformed, 2);
    let mut copy = vec![];
    CopyMessage::Fetch { epoch: 9, from: 1, position: 0, index: 0, missing: 1 }.emit(&mut copy);
    c.handle(at(1), Addr::default(), &mut copy, &mut sent);
    let end = LogEnd::default();
    for message in [
        Membership::SwitchRetired { incarnation: 77, switch: Addr::default() },
        Membership::EpochState { epoch: 9, from: 1, end, ask: true, waits: true },
        Membership::Open { epoch: 9, from: 1, end, waits: true },
        Membership::Opened { epoch: 9, from: 1 },
        Membership::Reach { epoch: 9, from: 1, ask: true },
        // Nobody asked for it.
        Membership::Configure(before.groups[0].config.clone().into()),
    ] {
        sent.extend(say(&mut c, 1, &message));
    }
    assert_eq!(c.counters().unexpected, 7);
    assert!(sent.is_empty() && c.poll_persist().is_none() && *c.state() == before);
}

#[test]
fn each_reason_why_replicas_lose_their_places_is_counted_once() {
    let mut c = founded();
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    say(&mut c, 2, &stands(2, 11, 1, Standing::Out));
    say(&mut c, 2, &switch(77, 1));
    assert_eq!(persist(&mut c, 2), Some(2));
    let count = *c.counters();
    assert_eq!((count.removed_restarted, count.removed_leaving, count.removed_silent), (1, 0, 0));
    assert_eq!((count.epochs, count.switch_ids_granted, count.standbys_taken), (2, 1, 0));
    assert_eq!((count.stale, count.foreign, count.deaf, count.returned), (0, 0, 0, 0));
}

/// What a node or a switch said earlier arrives later.
#[test]
fn what_a_switch_said_before_its_newest_word_is_ignored() {
    let said = |ms: u64, incarnation, epoch| {
        let Membership::SwitchAlive { addr, heard, standby, .. } = switch(incarnation, epoch)
        else {
            panic!("a sign of life")
        };
        Membership::SwitchAlive { incarnation, addr, sent_at: ms, epoch, heard, standby }
    };
    let mut c = founded();
    say(&mut c, 1, &said(5, 77, 0));
    say(&mut c, 2, &said(7, 77, 1));
    (1..=3).for_each(|node| drop(say(&mut c, 3, &alive(node, 10, 1))));
    // It runs epoch 1, so that it need not be told; that it ran none is long ago.
    assert_eq!((say(&mut c, 4, &said(6, 77, 0)).len(), c.counters().stale), (0, 1));
    assert_eq!(say(&mut c, 5, &said(7, 77, 1)).len(), 0);
    assert_eq!(c.counters().stale, 1, "a copy says the same again");
    // A life of its own has a clock of its own.
    say(&mut c, 6, &said(1, 78, 0));
    assert_eq!((persist(&mut c, 6), c.counters().stale), (Some(2), 1));
    // Likewise a replica, of which another life is no late packet.
    let replica = |incarnation, sent_at| {
        but(stands(4, incarnation, 2, Standing::Out), |a| a.sent_at = sent_at)
    };
    say(&mut c, 7, &replica(10, 9));
    for (sent_at, stale) in [(3, 1), (5, 1), (5, 1), (4, 2), (6, 2)] {
        say(&mut c, 7, &replica(11, sent_at));
        assert_eq!(c.counters().stale, stale, "said at {sent_at}");
    }
    assert_eq!(c.nodes(GROUP, at(7)).last().map(|n| n.0), Some(member(4, 11)));
}

/// A switch that did not hear of its epoch is told again with each tick.
#[test]
fn switch_is_told_its_epoch_each_tick() {
    let mut c = founded();
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    for ms in [50, 100] {
        let mut sent = vec![];
        c.tick(at(ms), &mut sent);
        assert_eq!(configured(&sent, Addr { ip: 9, port: 9 }), Some(1));
    }
    say(&mut c, 120, &switch(77, 1));
    let mut sent = vec![];
    c.tick(at(150), &mut sent);
    assert!(sent.is_empty());
}

/// It has heard of the rack before and of nothing since, and is still the switch that was written
/// down.
#[test]
fn bug_16_3_switch_of_a_refounded_rack_is_no_stranger() {
    let before = founded().state().clone();
    let again = ControllerConfig { fresh: true, rack: RACK + 1, ..setup() };
    let mut c = Controller::new(again, Some(before));
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 1))));
    say(&mut c, 1, &switch(77, 1));
    assert_eq!(persist(&mut c, 1), Some(2));
    say(&mut c, 2, &switch(77, 1));
    assert_eq!((c.counters().foreign, c.problem()), (0, None));
    say(&mut c, 3, &switch_alive(5, 55, 1, false));
    assert_eq!((c.counters().foreign, persist(&mut c, 3)), (1, None));
}

#[test]
fn of_several_standbys_the_one_that_was_heard_last_takes_over() {
    let mut c = founded();
    for ms in (50..2_000).step_by(50) {
        (1..=3).for_each(|node| drop(say(&mut c, ms, &alive(node, 10, 1))));
        say(&mut c, ms, &switch_alive(8, 90, 0, true));
        if ms < 900 {
            // Silent like the active one.
            say(&mut c, ms, &switch_alive(10, 91, 0, true));
        }
        if persist(&mut c, ms).is_some() {
            break;
        }
    }
    assert_eq!((c.state().switch_incarnation, c.counters().standbys_taken), (90, 1));
    // Where there is no other, the first epoch begins with a standby.
    let mut c = Controller::new(setup(), None);
    (1..=3).for_each(|node| drop(say(&mut c, 1, &alive(node, 10, 0))));
    say(&mut c, 1, &standby(90, 0));
    assert_eq!((persist(&mut c, 1), c.state().switch_incarnation), (Some(1), 90));
}
