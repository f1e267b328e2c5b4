//! Tests of FLAIR's program: sessions, key groups, the check of replies, stepping down, repair.
#![allow(clippy::unwrap_used)]

mod common;
mod flair_rig;

use common::{CLIENT, OWN, SWITCH, replica};
use concord_core::{
    Epoch, Guards, Instant, MS, NodeId, Now, ObjectId, Position, RequestNumber, Seq, SwitchId,
};
use concord_pisa::ASIC;
use concord_switch::flair::{DropReason, FlairError};
use concord_switch::program::Wants;
use concord_switch::{AgentConfig, DropReason as StoreDrop, KeyGroupSettings, Load, LoadError};
use concord_switch::{Flair, SwitchProgram};
use concord_wire::control::{Config, Member};
use concord_wire::flair::{self, CaughtUp, Followers, Heartbeat, REPLICAS_MAX, Sid, Step};
use concord_wire::{Flags, FurtherIds, Kind, Op, Packet, Reason, Repr, Status};
use flair_rig::*;

const A: ObjectId = ObjectId(5 << 26);
const B: ObjectId = ObjectId(9 << 26 | 3);

fn request(op: Op, obj_id: ObjectId) -> Repr {
    Repr { obj_id, ..common::request(op, 0) }
}

fn of_all(op: Op) -> Repr {
    Repr { flags: Flags::WILDCARD, ..request(op, A) }
}

/// A follower's reply to a read, with the command appended.
fn reply(read: &flair::Repr, node: u16) -> flair::Repr {
    let common = Repr { op: Op::ReadReply, node: NodeId(node), epoch: Epoch(3), ..read.common };
    let (log_idx, cflwrs, switch) = (Position(0), Followers(0), read.switch);
    flair::Repr { common, log_idx, cflwrs, echo: 7, switch }
}

const BODY: &[u8] = b"$-1\r\ncommand";

#[test]
fn nothing_passes_without_an_active_session() {
    let mut s = Switch::new(SMALL, Guards::ALL);
    let none = Err(DropReason::NoSession);
    assert_eq!(s.ask(request(Op::Write, A), b""), none);
    assert_eq!(s.ask(request(Op::Read, A), b""), none);
    let begin = s.begin(SID, stable(10, ALL));
    assert_eq!(s.tell(&begin), Some(Step::Begun { groups: 64, load_awareness: false }));
    assert_eq!(s.ask(request(Op::Read, A), b""), none);
    assert!(!s.program.is_ready() && s.program.counters().dropped_no_session == 3);
    let mut s = Switch::in_session(SMALL);
    assert!(s.program.is_ready());
    assert_eq!(s.read(A).1.common.reason, Reason::Fast);
    s.program.uninstall();
    let unconfigured = Err(DropReason::Store(StoreDrop::Unconfigured));
    assert_eq!(s.ask(request(Op::Read, A), b""), unconfigured);
    assert!(!s.program.is_ready());
}

/// A write makes its group unstable until the reply to the last one.
#[test]
fn write_makes_its_group_unstable_until_the_last_reply() {
    let mut s = Switch::in_session(SMALL);
    let (first, second) = (s.write(A), s.write(object(5, 1)));
    assert_eq!((first.common.seq, second.common.seq), (SID.number(1), SID.number(2)));
    let (to, read) = s.read(A);
    assert_eq!((to, read.common.reason), (replica(1), Reason::SlowUnstable));
    assert_eq!(s.read(B).1.common.reason, Reason::Fast, "another group");
    assert_eq!(s.program.gauge("groups_unstable"), 1);
    // §4.3.3: the reply to the earlier write is passed on, and changes nothing.
    let (to, out) = s.written(&first, 11, ALL).unwrap();
    assert_eq!((to, Packet::parse(&out).unwrap().body()), (CLIENT, &b"+OK\r\n"[..]));
    assert_eq!(s.read(A).1.common.reason, Reason::SlowUnstable);
    s.written(&second, 12, Followers(0b110)).unwrap();
    let (to, read) = s.read(A);
    assert_ne!(to, replica(1));
    assert_eq!((read.log_idx, read.common.seq), (Position(12), SID.number(2)));
    assert_eq!(s.program.group(A), (2, stable(12, Followers(0b110))));
    // A duplicated reply has the same effect as one.
    s.written(&second, 12, Followers(0b110)).unwrap();
    assert_eq!(s.program.gauge("groups_unstable"), 0);
    let never = flair::Repr { common: Repr { seq: SID.number(9), ..second.common }, ..second };
    assert_eq!(s.written(&never, 13, ALL), Err(DropReason::Impossible));
}

/// Reads of a stable group go to replicas that hold its newest write and that the leader hears.
#[test]
fn stable_reads_go_to_live_holders() {
    let mut s = Switch::new(SMALL, Guards::ALL);
    s.start(SID, |_| stable(10, Followers(0b011)), stable(10, ALL));
    let to = |s: &mut Switch| {
        let read = |n| Repr { request: RequestNumber(n), ..request(Op::Read, A) };
        (0..64).map(|n| s.asked(read(n)).0).collect::<Vec<_>>()
    };
    let all = to(&mut s);
    assert!(all.contains(&replica(1)) && all.contains(&replica(2)) && !all.contains(&replica(3)));
    // The leader stops hearing node 2, and then hears it again.
    s.configure(3, &[1, 3]);
    assert!(to(&mut s).iter().all(|to| *to == replica(1)));
    s.configure(3, &[1, 2, 3]);
    assert!(to(&mut s).contains(&replica(2)));
    // No live replica holds it.
    let write = s.write(A);
    s.written(&write, 11, Followers(0b100)).unwrap();
    s.configure(3, &[1, 2]);
    let (to, read) = s.read(A);
    assert_eq!((to, read.common.reason), (replica(1), Reason::SlowNoHolder));
    assert!(!read.common.flags.has(Flags::FAST));
}

/// Which of the three replicas are asked for an object.
fn asked_of(s: &mut Switch, obj_id: ObjectId) -> Followers {
    let read = |n| Repr { request: RequestNumber(n), ..request(Op::Read, obj_id) };
    let asked: Vec<_> = (0..64).map(|n| s.asked(read(n)).0).collect();
    let bits = (0..3).filter(|bit| asked.contains(&replica(*bit + 1)));
    bits.fold(Followers::default(), |set, bit| set.with(usize::from(bit)))
}

/// Replicas that have caught up by the last heartbeat are asked, beside the quorum that first had
/// the write.
#[test]
fn caught_up_followers_are_asked_beside_the_quorum() {
    let mut s = Switch::in_session(SMALL);
    let quorum = Followers(0b011);
    let caught_up = |s: &mut Switch, sid, log_idx, followers| {
        let (log_idx, followers) = (Position(log_idx), Followers(followers));
        s.beat_of(sid, s.now.instant, CaughtUp { log_idx, followers })
    };
    for (obj_id, log_idx) in [(A, 11), (B, 12)] {
        let write = s.write(obj_id);
        s.written(&write, log_idx, quorum).unwrap();
    }
    assert_eq!((asked_of(&mut s, A), asked_of(&mut s, B)), (quorum, quorum));
    caught_up(&mut s, SID, 11, 0b111).unwrap();
    assert_eq!((asked_of(&mut s, A), asked_of(&mut s, B)), (ALL, quorum));
    assert_eq!(caught_up(&mut s, Sid(SID.0 - 1), 99, 0b111), Err(DropReason::OtherSession));
    assert_eq!(asked_of(&mut s, B), quorum);
    caught_up(&mut s, SID, 12, 0b111).unwrap();
    // An overtaken heartbeat is ignored; a later one reports that a follower is no longer caught
    // up.
    caught_up(&mut s, SID, 11, 0b001).unwrap();
    assert_eq!(asked_of(&mut s, B), ALL);
    caught_up(&mut s, SID, 12, 0b101).unwrap();
    assert_eq!((asked_of(&mut s, A), asked_of(&mut s, B)), (ALL, ALL));
    caught_up(&mut s, SID, 12, 0b001).unwrap();
    assert_eq!((asked_of(&mut s, A), asked_of(&mut s, B)), (quorum, quorum));
    // T13: writes of all keys count too, and reads of a group with a write in flight go to the
    // leader.
    caught_up(&mut s, SID, 12, 0b111).unwrap();
    let (_, all) = s.asked(of_all(Op::Write));
    s.written(&all, 13, quorum).unwrap();
    assert_eq!(asked_of(&mut s, B), quorum);
    caught_up(&mut s, SID, 13, 0b111).unwrap();
    assert_eq!(asked_of(&mut s, B), ALL);
    s.write(B);
    assert_eq!((s.read(B).0, s.read(B).1.common.reason), (replica(1), Reason::SlowUnstable));
    // Caught-up followers belong to the session.
    s.start(Sid(SID.0 + 1), |_| stable(5, quorum), stable(5, ALL));
    assert_eq!(asked_of(&mut s, B), quorum);
}

/// While a write of all keys is pending, reads go to the leader; after it, both positions count.
#[test]
fn t13_pending_all_keys_write_sends_reads_to_the_leader() {
    let mut s = Switch::in_session(SMALL);
    let early = s.read(A).1;
    let (_, all) = s.asked(of_all(Op::Write));
    let (to, read) = s.read(A);
    assert_eq!((to, read.common.reason), (replica(1), Reason::SlowWildcard));
    assert_eq!(s.asked(of_all(Op::Read)).1.common.reason, Reason::SlowAllKeys);
    s.written(&all, 11, Followers(0b101)).unwrap();
    // The group itself is quiet, and all three replicas hold it; but the third has not heard of
    // FLUSHALL.
    for n in 0..64 {
        let read = Repr { request: RequestNumber(n), ..request(Op::Read, A) };
        let (to, read) = s.asked(read);
        assert_ne!(to, replica(2));
        assert_eq!((read.log_idx, read.common.seq), (Position(11), SID.number(1)));
    }
    // A reply from before the write of all keys is stale, though its group had no write.
    let (to, out) = s.answer(&reply(&early, 2), BODY).unwrap();
    assert_eq!((to, flair::Packet::parse(&out).unwrap().repr().common.op), (replica(1), Op::Read));
    // A later write of the group counts as well.
    let write = s.write(A);
    s.written(&write, 12, Followers(0b110)).unwrap();
    let (to, read) = s.read(A);
    assert_eq!((to, read.log_idx), (replica(3), Position(12)));
    assert_eq!(s.read(B).1.log_idx, Position(11));
}

#[test]
fn requests_of_several_objects_are_of_all_keys() {
    let mut s = Switch::in_session(SMALL);
    let further = FurtherIds::new(&[B]).unwrap();
    let (_, write) = s.asked(Repr { further, ..request(Op::Write, A) });
    assert!(write.common.flags.has(Flags::WILDCARD));
    assert_eq!(s.read(object(30, 0)).1.common.reason, Reason::SlowWildcard);
    s.written(&write, 11, ALL).unwrap();
    assert_eq!(s.read(B).1.log_idx, Position(11));
    let (to, read) = s.asked(Repr { further, ..request(Op::Read, A) });
    assert_eq!((to, read.common.reason), (replica(1), Reason::SlowAllKeys));
}

#[test]
fn a_registration_has_a_number_and_leaves_every_group_stable() {
    let mut s = Switch::in_session(SMALL);
    let (_, out) = s.asked(Repr { flags: Flags::REGISTER, ..request(Op::Write, ObjectId(0)) });
    assert_eq!(out.common.seq, SID.number(1));
    assert_eq!(s.read(object(0, 0)).1.common.reason, Reason::Fast);
    s.written(&out, 11, Followers(0)).unwrap();
    assert_eq!(s.read(object(0, 0)).1.log_idx, Position(10));
}

#[test]
fn a_followers_reply_is_checked_and_the_leaders_is_not() {
    let mut s = Switch::in_session(SMALL);
    let read = s.read(A).1;
    let (to, out) = s.answer(&reply(&read, 2), BODY).unwrap();
    let packet = Packet::parse(&out).unwrap();
    assert_eq!((to, packet.body()), (CLIENT, &b"$-1\r\n"[..]));
    assert_eq!((packet.repr().reason, packet.repr().seq), (Reason::Fast, Seq::NONE));
    // A write intervenes.
    let write = s.write(A);
    let (to, out) = s.answer(&reply(&read, 2), BODY).unwrap();
    assert_eq!(to, replica(1));
    let again = flair::Packet::parse(&out).unwrap();
    assert_eq!((again.repr().common.op, again.command()), (Op::Read, &b"command"[..]));
    assert_eq!(again.repr().common.client, CLIENT);
    // A reply that carries no command: its client asks again.
    let long = flair::Repr { echo: 0, ..reply(&read, 2) };
    let (to, out) = s.answer(&long, b"a long one").unwrap();
    let refused = Packet::parse(&out).unwrap();
    assert_eq!((to, refused.repr().status, refused.body()), (CLIENT, Status::Busy, &b""[..]));
    // The leader's reply is passed on, whatever is pending.
    let (to, _) = s.answer(&reply(&read, 1), BODY).unwrap();
    assert_eq!(to, CLIENT);
    // The follower's reply stays stale once the write is over.
    s.written(&write, 11, ALL).unwrap();
    assert_eq!(s.answer(&reply(&read, 2), BODY).unwrap().0, replica(1));
    let c = s.program.counters();
    assert_eq!((c.replies_checked, c.replies_stale, c.replies_refused), (1, 2, 1));
}

#[test]
fn what_is_of_another_session_or_was_not_checked_ends_here() {
    let mut s = Switch::in_session(SMALL);
    let (write, read) = (s.write(A), s.read(B).1);
    s.start(Sid(8), |_| stable(10, ALL), stable(10, ALL));
    let other = Err(DropReason::OtherSession);
    let new = s.write(A);
    assert_eq!(new.common.seq, Sid(8).number(1));
    assert_eq!(s.written(&write, 11, ALL), other);
    assert_eq!(s.read(A).1.common.reason, Reason::SlowUnstable);
    assert_eq!(s.answer(&reply(&read, 2), BODY), other);
    assert_eq!(s.answer(&reply(&read, 1), BODY), other, "the leader's neither");
    assert_eq!(s.beat(SID, s.now.instant), other);
    for op in [Op::WriteReply, Op::ReadReply] {
        assert_eq!(s.ask(request(op, A), b""), Err(DropReason::Unchecked));
    }
    let read = flair::Repr { common: Repr { op: Op::Read, ..read.common }, ..read };
    assert_eq!(s.answer(&read, b""), Err(DropReason::Unchecked), "a replica asks nothing");
    // A forged confirmation in the switch's name.
    let mut forged = Vec::new();
    concord_wire::control::Message::emit(&s.activate(Sid(8)), &mut forged);
    assert_eq!(s.pass(replica(2), &forged), Err(DropReason::Unchecked));
}

/// A session is active once everything was uploaded, and a late chunk changes nothing.
#[test]
fn t28_session_activates_when_uploaded_and_ignores_late_chunks() {
    let settings = KeyGroupSettings { group_bits: 8, ..SMALL };
    let mut s = Switch::new(settings, Guards::ALL);
    let (begin, activate) = (s.begin(SID, stable(10, ALL)), s.activate(SID));
    assert_eq!(s.tell(&activate), None, "before it began");
    assert_eq!(s.tell(&begin), Some(Step::Begun { groups: 256, load_awareness: false }));
    let chunk = |s: &Switch, at| s.chunk(SID, at, vec![stable(10, ALL); 64]);
    for at in [0, 1, 3, 1] {
        let chunk = chunk(&s, at);
        s.tell(&chunk).unwrap();
    }
    assert_eq!(s.tell(&activate), None, "chunk 2 was lost");
    // A repeated begin loses nothing.
    assert_eq!(s.tell(&begin), Some(Step::Begun { groups: 256, load_awareness: false }));
    for wrong in [s.chunk(SID, 4, vec![stable(10, ALL); 64]), s.chunk(SID, 2, vec![]), {
        s.chunk(Sid(6), 2, vec![stable(10, ALL); 64])
    }] {
        assert_eq!(s.tell(&wrong), None);
    }
    let last = chunk(&s, 2);
    assert_eq!(s.tell(&last), Some(Step::Chunk { chunk: 2 }));
    assert_eq!(s.tell(&activate), Some(Step::Active));
    assert_eq!(s.program.gauge("groups_unstable"), 0);
    let write = s.write(ObjectId(0));
    let late = chunk(&s, 0);
    assert_eq!(s.tell(&late), Some(Step::Chunk { chunk: 0 }), "it is here");
    assert_eq!(s.tell(&activate), Some(Step::Active));
    assert_eq!(s.read(ObjectId(0)).1.common.reason, Reason::SlowUnstable);
    s.written(&write, 11, ALL).unwrap();
}

#[test]
fn t28_session_ids_do_not_come_back_and_a_view_ends_its_session() {
    let mut s = Switch::in_session(SMALL);
    let older = s.begin(Sid(6), stable(10, ALL));
    assert_eq!(s.tell(&older), None);
    let (other_view, other_node) = {
        let mut other = Switch::new(SMALL, Guards::ALL);
        (other.view, other.leader) = (4, 1);
        let view = other.begin(Sid(8), stable(10, ALL));
        (other.view, other.leader) = (3, 2);
        (view, other.begin(Sid(8), stable(10, ALL)))
    };
    for refused in [other_view, other_node] {
        let mut bytes = Vec::new();
        concord_wire::control::Message::emit(&refused, &mut bytes);
        assert!(s.program.control(s.now, &bytes).unwrap().is_none());
    }
    assert!(s.program.is_ready());
    s.configure(4, &[2, 1, 3]);
    assert_eq!(s.ask(request(Op::Read, A), b""), Err(DropReason::NoSession));
    // The upload of the previous view is useless as well.
    let (again, activate) = (s.begin(SID, stable(10, ALL)), s.activate(SID));
    assert_eq!((s.tell(&again), s.tell(&activate)), (None, None));
    s.start(Sid(8), |_| stable(10, ALL), stable(10, ALL));
    assert_eq!(s.write(A).common.seq, Sid(8).number(1));
    // A switch id is new to a group that was founded anew: its sessions are counted from the start.
    let founded = Config { switch_id: OWN.0 + 1, ..config(1, &[1, 2, 3]) };
    s.program.install(s.now, &founded).unwrap();
    (s.view, s.leader) = (1, 1);
    s.id = SwitchId(OWN.0 + 1);
    s.start(Sid(1), |_| stable(0, ALL), stable(0, ALL));
}

/// A rack that is founded anew counts views from 1 again, and with them sessions; its switch has
/// another id.
#[test]
fn t28_refounded_group_ends_an_old_session() {
    let mut s = Switch::in_session(SMALL);
    let (write, read) = (s.write(A), s.read(B).1);
    let (begin, chunk) =
        (s.begin(SID, stable(99, ALL)), s.chunk(SID, 0, vec![stable(99, ALL); 64]));
    let founded = Config { switch_id: OWN.0 + 1, ..config(3, &[1, 2, 3]) };
    s.program.install(s.now, &founded).unwrap();
    s.id = SwitchId(OWN.0 + 1);
    assert_eq!((s.tell(&begin), s.tell(&chunk)), (None, None));
    s.start(SID, |_| stable(0, ALL), stable(0, ALL));
    let new = s.write(A);
    assert_eq!((new.common.seq, new.switch), (write.common.seq, s.id), "the very number");
    let other = Err(DropReason::OtherSession);
    assert_eq!(s.written(&write, 11, ALL), other);
    assert_eq!(s.answer(&reply(&read, 2), BODY), other);
    assert_eq!(s.answer(&reply(&read, 1), BODY), other, "the leader's neither");
    s.id = OWN;
    assert_eq!(s.beat(SID, s.now.instant), other);
    s.id = SwitchId(OWN.0 + 1);
    assert_eq!(s.read(A).1.common.reason, Reason::SlowUnstable);
    s.written(&new, 1, ALL).unwrap();
    s.read(A);
}

/// A heartbeat that was delayed by a pause is as old as the probe that it echoes.
#[test]
fn t26_heartbeat_is_as_old_as_its_probe() {
    let mut s = Switch::in_session(SMALL);
    let before = s.now.instant;
    s.wait(100 * MS);
    let (to, out) = s.beat(SID, before).unwrap();
    let answer = Heartbeat::parse_probe(&out).unwrap();
    assert_eq!((to, answer.probe, answer.sid), (replica(1), s.now.instant, SID));
    // The switch pauses for a minute, with heartbeats in its queue.
    s.wait(60_000 * MS);
    s.beat(SID, answer.probe).unwrap();
    let none = Err(DropReason::NoSession);
    assert_eq!(s.ask(request(Op::Read, A), b""), none);
    assert_eq!(s.ask(request(Op::Write, A), b""), none);
    // A heartbeat that answers now is fresh.
    let (_, out) = s.beat(SID, answer.probe).unwrap();
    let fresh = Heartbeat::parse_probe(&out).unwrap().probe;
    s.beat(SID, fresh).unwrap();
    assert_eq!(s.read(A).1.common.reason, Reason::Fast);
    // A probe that the switch never sent does not advance its clock.
    s.beat(SID, Instant(u64::MAX)).unwrap();
    s.wait(151 * MS);
    assert_eq!(s.ask(request(Op::Read, A), b""), none);
}

/// The switch steps down by the packet's time, and no packet in between has an effect.
#[test]
fn switch_steps_down_by_packet_time() {
    let mut s = Switch::in_session(SMALL);
    let (write, read) = (s.write(A), s.read(B).1);
    s.wait(150 * MS);
    assert_eq!(s.read(B).1.common.reason, Reason::Fast);
    s.wait(1);
    assert_eq!(s.written(&write, 11, ALL), Err(DropReason::NoSession));
    assert_eq!(s.answer(&reply(&read, 2), BODY), Err(DropReason::NoSession));
    let now = s.now.instant;
    s.beat(SID, now).unwrap();
    assert_eq!(s.read(A).1.common.reason, Reason::SlowUnstable);
    s.written(&write, 11, ALL).unwrap();
}

#[test]
fn what_stays_unstable_is_repaired_by_a_numbered_no_op() {
    let mut s = Switch::in_session(SMALL);
    assert!(s.upkeep().is_empty() && s.program.deadline().at == Instant::NEVER);
    // A write of a group is lost, and then one of all keys.
    s.write(A);
    s.asked(of_all(Op::Write));
    let mut sent = Vec::new();
    for _ in 0..2 {
        assert!(sent.is_empty());
        s.wait(50 * MS);
        assert!(s.program.deadline().at <= s.now.instant);
        sent = s.upkeep();
    }
    let flags: Vec<Flags> = sent.iter().map(|noop| noop.common.flags).collect();
    assert_eq!(flags, [Flags::NOOP, Flags::NOOP.with(Flags::WILDCARD)]);
    assert_eq!((sent[0].common.obj_id, sent[0].common.seq), (A, SID.number(3)));
    s.beat(SID, s.now.instant).unwrap();
    for (noop, log_idx) in sent.iter().zip(11..) {
        assert_eq!(noop.common.client, SWITCH);
        let consumed = Err(DropReason::Store(StoreDrop::Consumed));
        assert_eq!(s.written(noop, log_idx, ALL), consumed);
    }
    let (_, read) = s.read(A);
    assert_eq!((read.common.reason, read.log_idx), (Reason::Fast, Position(12)));
    assert_eq!(s.program.deadline().at, Instant::NEVER);
    // Groups that are written repeatedly need no repair; but a lost no-op is sent again.
    for _ in 0..5 {
        s.write(A);
        s.wait(50 * MS);
        s.beat(SID, s.now.instant).unwrap();
        assert!(s.upkeep().is_empty());
    }
    s.wait(50 * MS);
    assert_eq!(s.upkeep().len(), 1);
    s.wait(50 * MS);
    assert!(s.upkeep().is_empty());
    s.wait(50 * MS);
    assert_eq!(s.upkeep().len(), 1);
}

/// A replica's own write makes its group stable, and its reply ends at the switch.
#[test]
fn replicas_own_write_stabilises_its_group() {
    let mut s = Switch::in_session(SMALL);
    let client = replica(1);
    let (_, own) = s.asked(Repr { flags: Flags::INTERNAL, client, ..request(Op::Write, A) });
    assert_eq!(s.written(&own, 11, ALL), Err(DropReason::Store(StoreDrop::Consumed)));
    assert_eq!(s.read(A).1.log_idx, Position(11));
}

#[test]
fn the_leader_is_spared_while_a_write_is_pending() {
    let mut s = Switch::in_session(KeyGroupSettings { avoid_leader: true, ..SMALL });
    let asks_leader = |s: &mut Switch| {
        let read = |n| Repr { request: RequestNumber(n), ..request(Op::Read, B) };
        (0..64).filter(|n| s.asked(read(*n)).0 == replica(1)).count()
    };
    assert!(asks_leader(&mut s) > 10);
    let (first, second) = (s.write(A), s.write(A));
    assert_eq!(asks_leader(&mut s), 0);
    s.written(&first, 11, ALL).unwrap();
    assert_eq!(asks_leader(&mut s), 0, "the last number has no reply yet");
    s.written(&second, 12, ALL).unwrap();
    assert!(asks_leader(&mut s) > 10);
}

/// The number of 256 reads of an object that go to each of three replicas.
fn shares(s: &mut Switch, object: ObjectId) -> [usize; 3] {
    let mut shares = [0; 3];
    for n in 0..256 {
        let read = Repr { request: RequestNumber(n), ..request(Op::Read, object) };
        let to = s.asked(read).0;
        let at = (1..=3).position(|node| to == replica(node)).unwrap();
        shares[at] += 1;
    }
    shares
}

/// Reads are distributed by the newest weights of the leader.
#[test]
fn section_4_4_2_reads_follow_the_newest_weights() {
    let mut s = Switch::in_session(KeyGroupSettings { load_awareness: true, ..SMALL });
    let even = shares(&mut s, A);
    assert!(even.iter().all(|n| (70..100).contains(n)), "{even:?}");
    let told = |s: &mut Switch, sid, round, weights| {
        let message = s.weights(sid, round, weights);
        s.tell(&message)
    };
    let second = [300, 100, 100, 0, 0, 0, 0, 0];
    assert_eq!(told(&mut s, SID, 2, second), Some(Step::Weighed { round: 2 }));
    let weighed = shares(&mut s, A);
    assert!(weighed[0] > 130 && weighed[1] < 70 && weighed[2] < 70, "{weighed:?}");
    // Late weights and those of another session change nothing.
    assert_eq!(told(&mut s, SID, 1, [1; 8]), Some(Step::Weighed { round: 1 }));
    assert_eq!(told(&mut s, Sid(6), 3, [1; 8]), None);
    assert_eq!(shares(&mut s, A), weighed);
    // A replica that does not hold a group gets no read of it, whatever the weights are; nor does a
    // silent one.
    let write = s.write(A);
    s.written(&write, 11, Followers(0b110)).unwrap();
    assert_eq!(shares(&mut s, A)[0], 0);
    assert_eq!(shares(&mut s, B), weighed, "of another group");
    s.configure(3, &[1, 3]);
    let heard = shares(&mut s, B);
    assert!(heard[0] > 2 * heard[2] && heard[1] == 0, "{heard:?}");
    // Another session begins with even weights.
    s.configure(3, &[1, 2, 3]);
    s.start(Sid(8), |_| stable(13, ALL), stable(13, ALL));
    assert_eq!(shares(&mut s, A), even);
}

/// Weights are refused before the session is active, and without load awareness.
#[test]
fn weights_need_an_active_session() {
    let mut s = Switch::new(KeyGroupSettings { load_awareness: true, ..SMALL }, Guards::ALL);
    let begin = s.begin(SID, stable(10, ALL));
    assert_eq!(s.tell(&begin), Some(Step::Begun { groups: 64, load_awareness: true }));
    let weights = s.weights(SID, 1, [9; 8]);
    assert_eq!(s.tell(&weights), None);
    let mut s = Switch::in_session(SMALL);
    let weights = s.weights(SID, 1, [9; 8]);
    assert_eq!(s.tell(&weights), None);
    let counted = s.program.counts();
    let count = |name| counted.iter().find(|c| c.0 == name).unwrap().2;
    assert_eq!((count("weights_taken"), count("session_messages_refused")), (0, 1));
}

/// At the end of its numbers a session takes no writes; reads go on.
#[test]
fn t20_exhausted_session_takes_no_writes() {
    let mut s = Switch::in_session(KeyGroupSettings { counter_bits: 2, ..SMALL });
    for _ in 0..3 {
        s.write(A);
    }
    let exhausted = Err(DropReason::Store(StoreDrop::SeqExhausted));
    assert_eq!(s.ask(request(Op::Write, B), b""), exhausted);
    assert_eq!(s.read(B).1.common.reason, Reason::Fast);
    assert_eq!(s.program.look(Instant(0)), Wants::SwitchId);
    s.start(Sid(8), |_| stable(13, ALL), stable(13, ALL));
    assert_eq!(s.write(B).common.seq, Sid(8).number(1));
    assert_eq!(s.program.look(Instant(0)), Wants::Nothing);
}

#[test]
fn other_packets_are_passed_on_and_what_is_malformed_is_counted() {
    let mut s = Switch::in_session(SMALL);
    assert_eq!(s.ask(request(Op::WRest, A), b"fragment").unwrap().0, replica(1));
    let pull = Repr { node: NodeId(2), ..request(Op::Pull, A) };
    assert_eq!(s.ask(pull, b"").unwrap().0, replica(2));
    let fragment = Repr { node: NodeId(2), ..request(Op::Fragment, A) };
    let (to, out) = s.ask(fragment, b"fragment").unwrap();
    assert_eq!((to, Packet::parse(&out).unwrap().repr()), (CLIENT, fragment));
    assert!(matches!(s.pass(CLIENT, b"concord"), Err(DropReason::Store(StoreDrop::Malformed(_)))));
    let counted = s.program.counts();
    let count = |name| counted.iter().find(|c| c.0 == name).unwrap().2;
    assert_eq!((count("pulls"), count("malformed_magic")), (1, 1));
    for kind in Kind::ALL {
        let own = matches!(kind, Kind::Store | Kind::Flair | Kind::FlairSession);
        assert_eq!(s.program.takes(*kind) == concord_switch::program::Takes::Nothing, !own);
    }
}

/// The program fits an ASIC, and takes less than a twentieth of its memory.
#[test]
fn fits_an_asic_in_a_twentieth_of_its_memory() {
    let s = Switch::new(KeyGroupSettings::DEFAULT, Guards::ALL);
    let report = s.program.describe();
    assert!(report.fits(&ASIC) && report.recirculations_max == 0);
    assert_eq!((report.stages(), report.arrays.len()), (8, 16));
    assert!(report.sram_bytes() * 20 < ASIC.sram_bytes());
    let rows: Vec<_> = report.tables.iter().map(|table| (table.name, table.rows)).collect();
    let entries = 2 * 256;
    let tables =
        [("forward_row", entries * 256), ("forward_ring", entries * 8), ("forward_addr", 8)];
    assert_eq!(rows, tables, "an entry for each bitmap, with and without the leader");
    let most = KeyGroupSettings { group_bits: 17, ..KeyGroupSettings::DEFAULT };
    assert!(Switch::new(most, Guards::ALL).program.describe().fits(&ASIC));
}

#[test]
fn what_cannot_be_is_refused() {
    let load = |flair| {
        let mut told = AgentConfig::new(concord_core::Incarnation(1), SWITCH, SWITCH);
        told.sections.key_groups = flair;
        match Flair::load(&told.settings()) {
            Err(LoadError::Flair(error)) => Some(error),
            Err(_) | Ok(_) => None,
        }
    };
    assert_eq!(load(KeyGroupSettings::DEFAULT), None);
    for (bits, error) in [(5, FlairError::GroupBits(5)), (18, FlairError::GroupBits(18))] {
        assert_eq!(load(KeyGroupSettings { group_bits: bits, ..SMALL }), Some(error));
        assert!(error.to_string().ends_with("give it 2^6 to 2^17"));
    }
    assert_eq!(
        load(KeyGroupSettings { counter_bits: 33, ..SMALL }),
        Some(FlairError::CounterBits(33))
    );
    assert_eq!(load(KeyGroupSettings { run_bits: 17, ..SMALL }), Some(FlairError::RunBits(17)));
    assert_eq!(load(KeyGroupSettings { stepdown_ns: 0, ..SMALL }), Some(FlairError::Interval));
    // More than eight replicas do not fit the bitmap.
    let mut s = Switch::new(SMALL, Guards::ALL);
    let member = |node| Member { node, incarnation: 1, addr: replica(node) };
    let members = (1..=REPLICAS_MAX as u16 + 1).map(member).collect();
    assert!(s.program.install(Now::default(), &Config { members, ..config(3, &[1]) }).is_err());
}
