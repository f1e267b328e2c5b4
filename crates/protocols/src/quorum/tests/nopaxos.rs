//! NOPaxos: the switch numbers the writes and sends them to all; here by hand.

use super::*;
use crate::quorum::follower::Follower;

const ALL: [usize; 3] = [0, 1, 2];

fn founded(guards: Guards) -> Group {
    let mut g = Group::founded_as(Protocol::NoPaxos, 3, guards);
    g.pass(5);
    g.completed();
    g.to_client.clear();
    g
}

fn gaps(g: &Group) -> (u64, u64, u64) {
    let sum = |of: fn(&QuorumCounters) -> u64| g.nodes.iter().map(|n| of(&n.vr_count)).sum();
    (sum(|c| c.gaps_asked), sum(|c| c.gaps_filled), sum(|c| c.gaps_agreed))
}

/// All replicas are in one view and hold the same.
fn assert_alike(g: &Group) {
    assert!(g.nodes.iter().all(|n| n.stage == Stage::Normal && n.view == g.nodes[0].view));
    assert!(g.nodes.iter().all(|n| n.ordered.log.end() == g.nodes[0].ordered.log.end()));
    assert!(g.nodes.iter().all(|n| n.executed == g.nodes[0].executed));
    assert!(g.digests().iter().all(|d| *d == g.digests()[0]));
}

#[test]
fn nopaxos_nobody_streams_what_the_switch_sent_to_all() {
    let mut g = founded(Guards::ALL);
    g.sent.fill(0);
    let seq = g.cast_set(&ALL, "k", "v");
    assert_eq!(
        g.executed()[0] + 1,
        g.nodes[0].ordered.log.end().position,
        "nobody has acknowledged it"
    );
    g.run();
    assert_eq!(g.to_client.len(), 1);
    assert_eq!(g.sent, [0, 1, 1], "one PREPARE-OK of each follower, and nothing else");
    g.pass(3);
    assert_alike(&g);
    assert_eq!(g.completed(), Some(seq.counter));
    assert_eq!(g.sent, [2, 2, 2], "the synchronisation, and the COMMIT-ACKs to it");
    assert_eq!(g.get(2, "k", Some(seq)).unwrap(), (Reason::Fast, 3, "v".into()));
}

#[test]
fn nopaxos_what_a_follower_missed_the_leader_streams() {
    let mut g = founded(Guards::ALL);
    g.cast_set(&[0, 1], "k", "first");
    g.cast_set(&ALL, "k", "second");
    g.run();
    assert_eq!(g.to_client.len(), 2, "a majority has both");
    let behind = g.nodes[2].ordered.log.end().position;
    assert_eq!(behind + 2, g.nodes[0].ordered.log.end().position, "no gap in its log");
    g.pass(50);
    assert_alike(&g);
    assert_eq!(gaps(&g), (0, 0, 0));
}

/// Nopaxos gap agreement what the leader missed it gets from who has it.
#[test]
fn nopaxos_leader_gets_a_missed_write_from_others() {
    let mut g = founded(Guards::ALL);
    for key in ["a", "b", "c"] {
        g.cast_set(&[1, 2], key, "missed");
    }
    g.cast_set(&ALL, "k", "v");
    g.run();
    assert!(g.to_client.is_empty(), "it is not ordered behind a gap");
    g.pass(3);
    assert_eq!(g.to_client.len(), 4);
    let (asked, filled, agreed) = gaps(&g);
    assert_eq!((asked, filled, agreed), (1, 6, 0), "three writes of two followers, asked for once");
    g.pass(50);
    assert_alike(&g);
    assert_eq!(g.get(0, "a", None).unwrap().2, "missed");
}

/// Nopaxos the leader hears of a write that it missed by the acknowledgements.
#[test]
fn nopaxos_acknowledgements_tell_of_a_missed_write() {
    let mut g = founded(Guards::ALL);
    g.cast_set(&[1, 2], "k", "v");
    g.run();
    g.pass(5);
    assert_eq!(g.to_client.len(), 1, "though no later number told it");
    assert_alike(&g);
}

#[test]
fn nopaxos_gap_agreement_what_all_missed_is_given_up_for_good() {
    let mut g = founded(Guards::ALL);
    let view = g.nodes[0].view;
    g.counter += 1;
    let lost = Seq::new(SwitchId(1), g.counter);
    g.cast_set(&ALL, "k", "v");
    g.pass(5);
    assert!(g.to_client.is_empty());
    g.pass(30);
    assert_eq!(g.to_client.len(), 1);
    assert_eq!(gaps(&g).2, 1);
    assert_eq!((g.leader(), g.nodes[0].view.0), (Some(0), view.0 + 3), "a view of the same leader");
    // It was on its way for long: nobody takes it any more.
    let mut bytes = vec![];
    let write = g.request(b"k");
    Repr { seq: lost, ..write }.emit(b"", &mut bytes);
    ALL.into_iter().for_each(|to| g.deliver(to, &bytes));
    g.pass(50);
    assert_alike(&g);
    assert_eq!(g.to_client.len(), 1);
    assert_eq!(g.get(0, "k", None).unwrap().2, "v");
}

/// A write is missed by all, and for 20 ms the followers stand as `state` says: nothing is given up
/// before they are back.
fn waits_while(mut g: Group, state: impl Fn(&mut Follower, Instant)) {
    let view = g.nodes[0].view;
    g.counter += 1;
    g.cast_set(&[0], "k", "v");
    let followers = g.nodes[0].leading.followers.clone();
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    for _ in 0..20 {
        g.now.instant = g.now.instant.after(MS);
        let now = g.now.instant;
        g.nodes[0].leading.followers.iter_mut().for_each(|follower| state(follower, now));
        g.nodes[0].tick_gap(g.now, &mut sent);
    }
    assert_eq!((gaps(&g), g.nodes[0].view), ((0, 0, 0), view));
    g.nodes[0].leading.followers = followers;
    g.pass(30);
    assert_eq!(g.to_client.len(), 1);
    assert_eq!(gaps(&g).2, 1);
}

/// The followers come into the view late: its leader does not give a number up for their silence,
/// since a view change begins with writes of its own (expiries), of which the next number is
/// missed.
#[test]
fn bug_15_34_nothing_is_given_up_while_nobody_could_answer() {
    waits_while(founded(Guards::ALL), |follower, _| follower.heard_at = None);
}

/// A follower that was heard, and fetches the log that the view began with, cannot answer either.
#[test]
fn bug_19_24_nothing_given_up_while_a_quorum_lacks_the_start() {
    let mut g = founded(Guards::ALL);
    g.configure(2);
    g.pass(50);
    g.counter = 0;
    assert!(g.nodes[0].leading.view_start() > Position(0));
    waits_while(g, |follower, now| {
        (follower.heard_at, follower.acked) = (Some(now), Position(0));
    });
}

/// Members that have not come into a view yet get its writes: what its leader misses, somebody has.
#[test]
fn bug_19_24_a_view_s_first_writes_go_to_all_members() {
    let mut g = founded(Guards::ALL);
    let told = |g: &mut Group| {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        g.nodes[0].tell_switch(g.now.instant, &mut sent);
        let Ok(Membership::Configure(part)) = Membership::parse(&sent[0].1) else { panic!() };
        let config = Assembly::new(1).take(part).unwrap();
        let nodes = |members: &[Member]| members.iter().map(|m| m.node).collect::<Vec<_>>();
        (nodes(&config.members), nodes(&config.joining))
    };
    assert_eq!(told(&mut g), (vec![1, 2, 3], vec![]));
    for follower in &mut g.nodes[0].leading.followers {
        follower.heard_at = None;
    }
    assert_eq!(told(&mut g), (vec![1], vec![2, 3]), "the others answer no reads yet");
}

#[test]
fn nopaxos_a_gap_is_agreed_on_by_a_quorum_while_others_are_dead() {
    let mut g = founded(Guards::ALL);
    g.isolate(2);
    g.pass(300);
    g.counter += 1;
    g.cast_set(&ALL, "k", "v");
    g.pass(60);
    assert_eq!((g.to_client.len(), gaps(&g).2), (1, 1));
}

#[test]
fn what_the_leader_lacks_is_sent_to_it_alone_and_in_its_view() {
    let mut g = founded(Guards::ALL);
    g.cast_set(&[1, 2], "k", "v");
    let (view, end) = (g.nodes[1].view, g.nodes[1].ordered.end().0);
    let sent = |g: &mut Group, from: usize, view: ViewNumber, position: u64| {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        g.nodes[1].on_lacks((from, view), (position, 1), &mut sent);
        sent.len()
    };
    assert_eq!((sent(&mut g, 0, view, end), sent(&mut g, 0, view, end + 1)), (1, 0));
    assert_eq!(sent(&mut g, 2, view, end), 0, "another follower asks");
    assert_eq!(sent(&mut g, 0, ViewNumber(view.0 + 1), end), 0);
    g.nodes[1].stage = Stage::ViewChange;
    assert_eq!(sent(&mut g, 0, view, end), 0, "the view is left");
}

/// A leader wakes up for a missed number and not once it has left its view.
#[test]
fn leader_wakes_for_a_missing_number_only_in_its_view() {
    let mut g = founded(Guards::ALL);
    g.counter += 1;
    g.cast_set(&[0], "k", "v");
    let at = g.nodes[0].gap_deadline();
    assert!(at < Instant::NEVER && g.nodes[0].deadline().at <= at);
    let (now, next) = (g.now, ViewNumber(g.nodes[0].view.0 + 1));
    g.nodes[0].enter_view(now, next, &mut vec![]);
    assert_eq!(g.nodes[0].gap_deadline(), Instant::NEVER);
}

#[test]
fn a_number_that_has_come_is_counted_and_logged_once() {
    let mut g = founded(Guards::ALL);
    let seqs = [g.cast_set(&ALL, "k", "v"), g.cast_set(&ALL, "k", "w")];
    let end = g.nodes[0].ordered.end();
    for seq in seqs {
        let mut bytes = vec![];
        Repr { seq, ..g.request(b"k") }.emit(b"", &mut bytes);
        g.deliver(0, &bytes);
    }
    assert_eq!((g.nodes[0].count.writes_out_of_order, g.nodes[0].ordered.end()), (2, end));
}

/// Nopaxos a gap is not agreed on while a majority may have committed the write.
#[test]
fn nopaxos_no_gap_while_the_write_may_be_committed() {
    let mut g = founded(Guards::ALL);
    // Followers 1 and 2 have it; the leader hears neither them nor the write, and cannot give it
    // up.
    g.isolate(0);
    g.cast_set(&[1, 2], "k", "v");
    g.cast_set(&ALL, "l", "w");
    g.pass(60);
    assert_eq!(g.leader(), None, "it has left its view, and no other has begun");
    g.cuts.clear();
    g.pass(600);
    assert_alike(&g);
    let leader = g.leader().unwrap();
    assert_eq!(g.get(leader, "k", None).unwrap().2, "v");
    assert_eq!(g.get(leader, "l", None).unwrap().2, "w");
}

/// T23, liveness: a write that found no slot burns its number. As a no-op it is logged like any
/// other.
#[test]
fn t23_write_without_a_slot_is_a_told_no_op() {
    let mut g = founded(Guards::ALL);
    let write = g.request(b"k");
    let mut command = CommandBuf::new();
    let body = command.encode(1, [&b"SET"[..], b"k", b"v"]).to_vec();
    g.cast(&ALL, Repr { flags: Flags::NOOP, ..write }, &body);
    g.run();
    let (busy, _) = &g.to_client[0];
    assert_eq!((busy.status, busy.request), (concord_wire::Status::Busy, write.request));
    // Its retry is executed.
    g.cast(&ALL, Repr { attempt: 1, ..write }, &body);
    g.run();
    assert_eq!((g.to_client.len(), g.to_client[1].0.status), (2, concord_wire::Status::Ok));
    g.pass(50);
    assert_eq!(gaps(&g), (0, 0, 0));
    assert_alike(&g);
    assert_eq!(g.get(0, "k", None).unwrap().2, "v");
}

/// T23, safety: what the leader alone has logged may be given up; nobody has seen it.
#[test]
fn t23_slow_read_shows_nothing_revocable() {
    let mut g = founded(Guards::ALL);
    g.isolate(0);
    g.cast_set(&[0], "k", "speculative");
    g.run();
    assert_eq!(
        g.get(0, "k", None).unwrap().2,
        "nil",
        "the leader has logged it, and holds a lease"
    );
    assert!(g.to_client.is_empty());
    g.pass(400);
    let leader = g.leader().unwrap();
    assert_ne!(leader, 0);
    assert_eq!(g.get(leader, "k", None).unwrap().2, "nil");
    g.cuts.clear();
    g.pass(400);
    assert_alike(&g);
}

/// T23: the session number is the switch's id.
#[test]
fn t23_a_new_switch_is_a_new_session_and_its_numbers_begin_anew() {
    let mut g = founded(Guards::ALL);
    g.cast_set(&ALL, "k", "old");
    g.run();
    let late = Seq::new(SwitchId(1), g.counter + 1);
    g.configure(2);
    g.pass(50);
    g.counter = 0;
    let seq = g.cast_set(&ALL, "k", "new");
    assert_eq!(seq, Seq::new(SwitchId(2), 1));
    let mut bytes = vec![];
    let write = g.request(b"k");
    Repr { seq: late, ..write }.emit(b"", &mut bytes);
    ALL.into_iter().for_each(|to| g.deliver(to, &bytes));
    g.pass(50);
    assert_alike(&g);
    assert!(g.nodes.iter().all(|n| n.count.writes_other_switch == 1));
    assert_eq!(g.get(0, "k", None).unwrap().2, "new");
}

/// In NOPaxos a follower may have logged what its leader has not. It does not get that back by
/// recovering, so what an earlier life acknowledged must not count (DISC 2017).
fn acknowledgement_of_an_earlier_incarnation(guards: Guards) -> Group {
    let mut g = founded(guards);
    // The leader misses the write; what node 1 says of it is on its way for long.
    g.held_way = Some((1, 0));
    g.cut(0, 2);
    let write = g.request(b"k");
    let mut command = CommandBuf::new();
    let body = command.encode(1, [&b"SET"[..], b"k", b"v"]).to_vec();
    g.cast(&[1], write, &body);
    g.pass(1);
    let late: Vec<_> = g.held.drain(..).collect();
    (g.held_way, g.cuts) = (None, vec![]);
    g.restart(1, 900);
    g.pass(200);
    assert!(g.nodes[1].is_intact());
    // Now the write reaches the leader, and the acknowledgement: nobody else has it.
    let (seq, time_ms) = (Seq::new(SwitchId(1), g.counter), g.now.unix_ms);
    let mut bytes = vec![];
    Repr { seq, time_ms, ..write }.emit(&body, &mut bytes);
    g.isolate(0);
    g.deliver(0, &bytes);
    for (_, to, bytes) in late {
        g.deliver(to, &bytes);
    }
    g
}

/// An acknowledgement of an earlier life counts no more.
#[test]
fn disc_2017_late_acknowledgement_of_an_earlier_incarnation() {
    let g = acknowledgement_of_an_earlier_incarnation(Guards::ALL);
    assert!(g.nodes[0].vr_count.stale_lives > 0);
    assert!(g.to_client.is_empty(), "it is at the leader alone");
}

/// Without crash vectors a write that is at the leader alone is acknowledged.
#[cfg(feature = "mutants")]
#[test]
fn disc_2017_without_crash_vectors_a_lone_write_is_acknowledged() {
    let g = acknowledgement_of_an_earlier_incarnation(Guards::without(Guard::CrashVector));
    assert_eq!(g.to_client.len(), 1);
}
