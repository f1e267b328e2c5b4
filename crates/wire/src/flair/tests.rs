use super::*;
use crate::control::Message as _;
use crate::{Addr, FurtherIds};
use alloc::vec;
use concord_core::{ObjectId, RequestNumber, SessionId};

const SID: Sid = Sid(0x0003_0001);
const SWITCH: SwitchId = SwitchId(0x0a0b_0c0d);

fn common(op: Op) -> rpc::Repr {
    rpc::Repr {
        group: GroupId(2),
        flags: Flags::RESP3,
        obj_id: ObjectId(0xdead_beef),
        seq: SID.number(9),
        session: SessionId(0x0102_0304_0506_0708),
        request: RequestNumber(99),
        client: Addr { ip: 0x0a00_0102, port: 7001 },
        attempt: 3,
        low_delta: 5,
        epoch: Epoch(4),
        node: NodeId(6),
        ..rpc::Repr::new(op)
    }
}

fn example(op: Op) -> Repr {
    let cflwrs = Followers::default().with(0).with(2);
    let log_idx = Position(0x0102_0304_0506);
    Repr { common: common(op), log_idx, cflwrs, echo: 0, switch: SWITCH }
}

fn emitted(repr: &Repr, body: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    repr.emit(body, &mut out);
    out
}

fn heartbeat() -> Heartbeat {
    let (group, from, view) = (GroupId(2), NodeId(3), Epoch(3));
    let probe = Instant(0x0102_0304_0506_0708);
    let caught_up = CaughtUp { log_idx: Position(0x0908_0706), followers: Followers(0b110) };
    Heartbeat { group, from, view, sid: SID, switch: SWITCH, probe, caught_up }
}

fn group(log_idx: u64) -> Group {
    Group { log_idx, followers: Followers(0b101), is_stable: log_idx.is_multiple_of(2) }
}

fn messages() -> [SessionMessage; 6] {
    let (view, from, switch, sid) = (3, 1, SWITCH.0, SID);
    let begun = Step::Begun { groups: 4_096, load_awareness: true };
    let (replicas, step) = (vec![1, 2, 9], Step::Weighed { round: 300 });
    let weights = [64, 0, 1, 127, 128, 300, 9, u16::MAX];
    [
        SessionMessage::Begin { view, from, switch, sid, replicas, all_keys: group(70) },
        SessionMessage::Groups {
            view,
            from,
            switch,
            sid,
            chunk: 63,
            groups: vec![group(70), group(71)],
        },
        SessionMessage::Activate { view, from, switch, sid, probe: 77 },
        SessionMessage::Confirmed { view, from, switch, sid, step: begun, probe: 78 },
        SessionMessage::Confirmed { view, from, switch, sid, step, probe: 79 },
        SessionMessage::Weights { view, from, switch, sid, round: 300, weights },
    ]
}

#[test]
fn golden_bytes() {
    let mut packets = vec![
        emitted(&example(Op::WriteReply), b"+OK\r\n"),
        emitted(&Repr { echo: 7, ..example(Op::ReadReply) }, b"$-1\r\ncommand"),
    ];
    let mut beat = vec![];
    heartbeat().emit(&mut beat);
    packets.push(beat.clone());
    Heartbeat::answer(&mut beat, Instant(5)).unwrap();
    packets.push(beat);
    for message in messages() {
        let mut out = vec![];
        message.emit_in(GroupId(2), &mut out);
        assert_eq!(SessionMessage::parse(&out), Ok(message));
        packets.push(out);
    }
    crate::golden("flair.hex", &packets);
}

#[test]
fn a_header_survives_the_wire_and_no_other_kind_takes_it() {
    let ids = [ObjectId(1), ObjectId(2)];
    let further = FurtherIds::new(&ids).unwrap();
    for op in [Op::Write, Op::Read, Op::WriteReply, Op::ReadReply] {
        let mut repr = example(op);
        repr.common.further = further;
        let out = emitted(&repr, b"body");
        let packet = Packet::parse(&out).unwrap();
        assert_eq!(
            (packet.repr(), packet.body(), packet.command()),
            (repr, &b"body"[..], &b"body"[..])
        );
        assert_eq!(rpc::Packet::parse(&out).unwrap_err(), WireError::Op);
        assert_eq!(Heartbeat::parse(&out).unwrap_err(), WireError::Op);
        assert_eq!(Sid::of(repr.common.seq), SID);
    }
}

/// Operations of other systems and commands that do not fit are refused.
#[test]
fn foreign_operations_and_bad_commands_are_refused() {
    for op in [Op::WriteCompletion, Op::Sweep] {
        assert_eq!(Packet::parse(&emitted(&example(op), b"")).unwrap_err(), WireError::Op);
    }
    let out = emitted(&Repr { echo: 5, ..example(Op::ReadReply) }, b"four");
    assert_eq!(Packet::parse(&out).unwrap_err(), WireError::Field);
}

/// A request enters with empty fields and an answer leaves as every client takes it.
#[test]
fn request_enters_empty_and_answer_leaves_plain() {
    let mut out = vec![];
    let asked = rpc::Repr { last_committed: SID.number(3), index: 7, ..common(Op::Write) };
    asked.emit(b"command", &mut out);
    PacketMut::enter(&mut out).unwrap().stamp(SWITCH, SID.number(1), Position(0));
    let empty = Repr { log_idx: Position(0), cflwrs: Followers(0), ..example(Op::Write) };
    let numbered = rpc::Repr { seq: SID.number(1), ..empty.common };
    assert_eq!(Packet::parse(&out).unwrap().repr(), Repr { common: numbered, ..empty });
    // A reply is no request, and one that is in need not enter.
    assert_eq!(PacketMut::enter(&mut out).unwrap_err(), WireError::Op);
    let mut reply = vec![];
    common(Op::ReadReply).emit(b"reply", &mut reply);
    assert_eq!(PacketMut::enter(&mut reply).unwrap_err(), WireError::Op);

    let mut out = emitted(&Repr { echo: 7, ..example(Op::ReadReply) }, b"replycommand");
    let full = out.len();
    let length = PacketMut::parse(&mut out).unwrap().leave();
    assert_eq!(length, full - 7);
    let packet = rpc::Packet::parse(&out).unwrap();
    let taken = rpc::Repr { seq: Seq::NONE, ..common(Op::ReadReply) };
    assert_eq!((packet.repr(), packet.body()), (taken, &b"reply"[..]));
}

/// A stale reply becomes the read that it answers or says that the client is to ask again.
#[test]
fn t30_stale_reply_becomes_its_read_or_a_retry() {
    let stale = Repr { echo: 7, ..example(Op::ReadReply) };
    let mut out = emitted(&stale, b"a replycommand");
    assert!(PacketMut::parse(&mut out).unwrap().ask_again(SWITCH, SID.number(12)));
    let packet = Packet::parse(&out).unwrap();
    assert_eq!(packet.command(), b"command");
    let again = rpc::Repr {
        op: Op::Read,
        seq: SID.number(12),
        node: NodeId(0),
        epoch: Epoch(0),
        reason: Reason::SlowStaleReply,
        ..stale.common
    };
    assert_eq!(packet.repr(), Repr { common: again, log_idx: Position(0), ..stale });

    let mut no_echo = emitted(&example(Op::ReadReply), b"a long reply");
    let mut packet = PacketMut::parse(&mut no_echo).unwrap();
    assert!(!packet.ask_again(SWITCH, SID.number(12)));
    let length = packet.refuse();
    assert_eq!(length, rpc::HEADER_BYTES);
    let packet = rpc::Packet::parse(&no_echo).unwrap();
    assert_eq!((packet.repr().status, packet.body()), (Status::Busy, &b""[..]));
    assert_eq!(packet.repr().reason, Reason::SlowStaleReply);
}

#[test]
fn a_reply_of_every_store_becomes_one_that_the_switch_checks() {
    let checked = Checked {
        seq: SID.number(9),
        switch: SWITCH,
        flags: Flags::WILDCARD,
        log_idx: Position(0x0102_0304_0506),
        cflwrs: Followers(0b101),
    };
    for (body, command, echo) in [(5, 7, 7), (rpc::BODY_BYTES_MAX, 1, 0), (5, 0, 0)] {
        let (mut out, command) = (vec![], vec![b'c'; command]);
        common(Op::ReadReply).emit(&vec![b'r'; body], &mut out);
        checked_reply(&mut out, checked, &command);
        let packet = Packet::parse(&out).unwrap();
        let common = common(Op::ReadReply);
        let common = rpc::Repr { flags: common.flags.with(Flags::WILDCARD), ..common };
        assert_eq!(packet.repr(), Repr { common, echo, ..example(Op::ReadReply) });
        assert_eq!(packet.body().len(), body + usize::from(echo));
    }
    // The first of several fragments is full.
    let mut out = vec![];
    let first = common(Op::ReadReply);
    rpc::Repr { flags: Flags::MORE, ..first }.emit(b"fragment", &mut out);
    checked_reply(&mut out, checked, b"command");
    assert_eq!(Packet::parse(&out).unwrap().body(), b"fragment");
}

/// A heartbeat survives the wire and its answer has the switchs clock.
#[test]
fn heartbeat_round_trip_and_answer() {
    let mut out = vec![];
    heartbeat().emit(&mut out);
    assert_eq!(Heartbeat::parse(&out), Ok(heartbeat()));
    assert_eq!(Heartbeat::parse_probe(&out), Err(WireError::Op));
    assert_eq!(Packet::parse(&out).unwrap_err(), WireError::Truncated);
    for cut in 0..HEARTBEAT_BYTES {
        assert_eq!(Heartbeat::parse(&out[..cut]), Err(WireError::Truncated));
    }
    assert_eq!(Heartbeat::answer(&mut out, Instant(5)), Ok(HEARTBEAT_BYTES));
    assert_eq!(Heartbeat::parse_probe(&out), Ok(Heartbeat { probe: Instant(5), ..heartbeat() }));
    assert_eq!(Heartbeat::answer(&mut out, Instant(6)), Err(WireError::Op));
}

/// A heartbeat of an older replica names nobody and is answered as it came.
#[test]
fn older_heartbeat_names_nobody() {
    let mut out = vec![];
    heartbeat().emit(&mut out);
    out.truncate(at::PROBE_END);
    set_length(&mut out);
    let short = Heartbeat { caught_up: CaughtUp::default(), ..heartbeat() };
    assert_eq!(Heartbeat::parse(&out), Ok(short));
    assert_eq!(Heartbeat::answer(&mut out, Instant(5)), Ok(at::PROBE_END));
    assert_eq!(Heartbeat::parse_probe(&out), Ok(Heartbeat { probe: Instant(5), ..short }));
}

#[test]
fn the_longest_chunk_fits_a_packet() {
    let last = Group { log_idx: u64::MAX, followers: Followers::ALL, is_stable: true };
    let (view, from, switch, sid) = (u32::MAX, u16::MAX, u32::MAX, Sid(u32::MAX));
    let groups = vec![last; GROUPS_OF_CHUNK];
    let chunk = SessionMessage::Groups { view, from, switch, sid, chunk: u32::MAX, groups };
    let mut out = vec![];
    chunk.emit(&mut out);
    assert_eq!(SessionMessage::parse(&out), Ok(chunk));
}

#[test]
fn sets_of_followers() {
    let set = Followers::default().with(1).with(7);
    assert_eq!((set.0, set.has(7), set.has(0), set.has(8)), (0b1000_0010, true, false, false));
    assert_eq!(set.and(Followers(0b11)).without(1), Followers::default());
    assert!(!set.is_empty() && Followers::default().is_empty());
}
