use super::*;
use crate::header::{GroupId, Header, Kind, at};
use crate::vr::{CrashVectorEntry, LastRecord, SwitchIncarnation, VrBody, VrMessage};
use crate::{DATAGRAM_BYTES_MAX, PACKET_BYTES_MAX, WireError};
use alloc::vec;
use alloc::vec::Vec;

const ADDR: Addr = Addr { ip: 0x7f00_0001, port: 9 };
const END: LogEnd = LogEnd { position: 300, hash: 0x0102_0304_0506_0708 };

fn member(node: u16) -> Member {
    Member {
        node,
        incarnation: u64::MAX - u64::from(node),
        addr: Addr { ip: u32::MAX, port: node },
    }
}

fn config(members: u16, joining: u16) -> Config {
    Config {
        epoch: u32::MAX,
        group: GroupId(u16::MAX),
        rack: u64::MAX,
        switch_id: u32::MAX,
        switch_incarnation: u64::MAX,
        switch: ADDR,
        kind: GroupKind::Replicas(Protocol::NoPaxos),
        program: Program::NoPaxosHarmonia,
        members: (1..=members).map(member).collect(),
        joining: (1..=joining).map(|n| member(1_000 + n)).collect(),
    }
}

fn memberships() -> Vec<Membership> {
    let heard = Heard { rack: 7, epoch: 8, switch_id: 9 };
    let (epoch, from) = (3, 2);
    vec![
        Membership::ReplicaAlive(ReplicaAlive {
            member: member(2),
            sent_at: 1,
            heard,
            standing: Standing::Open { caught_up: true },
            held: Held { epoch: 3, position: 4 },
            data_dir: Some(DataDir { id: 5, run: 6 }),
            unheard: vec![1, 300],
        }),
        Membership::SwitchAlive {
            incarnation: 4,
            addr: ADDR,
            sent_at: 5,
            epoch: 6,
            heard,
            standby: true,
        },
        Membership::Configure(config(3, 1).into()),
        Membership::WhoIsWho { client: ADDR },
        Membership::SwitchRetired { incarnation: 4, switch: ADDR },
        Membership::EpochState { epoch, from, end: END, ask: true, waits: false },
        Membership::Open { epoch, from, end: END, waits: true },
        Membership::Opened { epoch, from },
        Membership::Reach { epoch, from, ask: false },
        Membership::VoterAlive {
            alive: ReplicaAlive {
                member: member(3),
                sent_at: 300,
                heard,
                standing: Standing::Returning { intact: true },
                held: Held::default(),
                data_dir: None,
                unheard: vec![],
            },
            voting: Voting { last: LastRecord { term: 2, position: 300 }, voters: 0b1_0000_0101 },
        },
        Membership::ChangeVoter { client: ADDR, number: 300, change: Some((3, false)) },
        Membership::VotersTold(VotersTold {
            number: 300,
            node: 2,
            outcome: VoterOutcome::NoQuorum,
            members: vec![1, 2, 300],
            voters: 0b101,
            is_committed: true,
        }),
        Membership::WasDurable { incarnation: 300, held: Held { epoch: 3, position: 300 } },
        Membership::Compared {
            node: 2,
            incarnation: 300,
            made: vec![Compared {
                position: 300,
                hash: 1 << 40,
                first: 17,
                end: 4096,
                keys: 1_000,
                digest: 1 << 50,
            }],
        },
    ]
}

fn leases() -> Vec<LeaseMessage> {
    let (epoch, from, asked_at) = (3, 2, 70);
    vec![
        LeaseMessage::Request { epoch, from, asked_at },
        LeaseMessage::Grant { epoch, from, asked_at },
        LeaseMessage::Release { from, incarnation: 5 },
    ]
}

fn chains() -> Vec<ChainMessage> {
    let (epoch, from) = (3, 2);
    let client = Addr { ip: 0x0a00_0001, port: 9_000 };
    let name = crate::netcraq::Name::new(b"lock/leader").unwrap();
    let (cells, sessions) = (vec![[1; 8], [2; 8]], vec![[0xff; 8]]);
    vec![
        ChainMessage::AskBlocks { epoch, from },
        ChainMessage::Blocks { epoch, from, cells, sessions },
        ChainMessage::AskOpen { epoch, from },
        ChainMessage::Open { epoch, from },
        ChainMessage::Find { epoch, from, client, number: 77, name, gives: true },
        ChainMessage::Found {
            epoch,
            from,
            number: 77,
            finding: Finding::At { cell: 9, version: 4 },
        },
        ChainMessage::AskSession { epoch, from, client, number: 78 },
        ChainMessage::Session { epoch, from, number: 78, slot: 5, generation: 7 },
        ChainMessage::List { epoch, from, client, number: 79, after: name },
        ChainMessage::Listed { epoch, from, number: 79, names: vec![name, name] },
    ]
}

fn longest_piece() -> CopyMessage {
    CopyMessage::Piece {
        epoch: u32::MAX,
        attempt: u64::MAX,
        part: u64::MAX,
        position: u64::MAX,
        total_bytes: u32::MAX,
        index: u32::MAX,
        piece: vec![7; crate::fragment::FRAGMENT_BYTES],
    }
}

fn copies() -> Vec<CopyMessage> {
    let (epoch, from, attempt) = (3, 2, 5);
    let piece = vec![1, 2, 3];
    vec![
        CopyMessage::Fetch { epoch, from, position: 6, index: 7, missing: 8 },
        CopyMessage::Fetched {
            epoch,
            position: 6,
            hash: 7,
            total_bytes: 8,
            index: 9,
            piece: piece.clone(),
        },
        CopyMessage::Resume { epoch, from, attempt, end: END },
        CopyMessage::Resumed { epoch, from, attempt },
        CopyMessage::LogMismatch { epoch, from, attempt },
        CopyMessage::Ask { epoch, from, attempt, part: 6, index: 7 },
        CopyMessage::Piece {
            epoch,
            attempt,
            part: 6,
            position: 7,
            total_bytes: 8,
            index: 9,
            piece,
        },
    ]
}

fn views() -> Vec<VrMessage> {
    let switch = SwitchIncarnation { id: 1, incarnation: 2, addr: ADDR };
    let last = LastRecord { term: 2, position: 9 };
    let bodies = [
        VrBody::Suspect,
        VrBody::StartViewChange,
        VrBody::DoViewChange { last_normal: 2, end: END, committed: 4, switch },
        VrBody::LeaseRequest { asked_at: 70 },
        VrBody::LeaseGrant { asked_at: 70, to: CrashVectorEntry { count: 1, incarnation: 9 } },
        VrBody::StartView { end: END, switch, floor: 6 },
        VrBody::Lacks { position: 6, count: 2 },
        VrBody::Follow { stream: 6, end: END, committed: END },
        VrBody::LogMismatch { stream: 6, base: END },
        VrBody::Recovery,
        VrBody::RecoveryResponse { leader: Some((END, switch, 6)) },
        VrBody::Retire { released: true },
        VrBody::PreVote { last },
        VrBody::PreVoted { granted: true },
        VrBody::RequestVote { last, handed: true },
        VrBody::Voted { granted: true, committed: 4, switch },
        VrBody::TimeoutNow,
        VrBody::ReadLease {
            asked_at: 70,
            to: CrashVectorEntry { count: 1, incarnation: 9 },
            floor: 4,
        },
        VrBody::AskLogEnd { round: 5 },
        VrBody::LogEndIs { round: 5, end: 9 },
        VrBody::VotersAre { end: END, switch, voters: 0b101, before: 0b111 },
    ];
    let crash_vector = vec![
        CrashVectorEntry { count: 0, incarnation: u64::MAX },
        CrashVectorEntry { count: 2, incarnation: 3 },
    ];
    let of =
        |body| VrMessage { body, group: 77, from: 2, view: 3, crash_vector: crash_vector.clone() };
    bodies.into_iter().map(of).collect()
}

/// Writes every message and reads it again; each has an operation of its own, counted from 1, and
/// bytes that are cut off or changed are refused or are another message, but never a panic.
fn survive<M: Message + Clone + PartialEq + core::fmt::Debug>(messages: &[M]) -> Vec<Vec<u8>> {
    let mut encoded = vec![];
    for (op, message) in (1..).zip(messages) {
        let mut out = vec![];
        message.emit(&mut out);
        let (header, packet) = Header::parse(&out).unwrap();
        assert_eq!((header.kind, header.op), (M::KIND, op));
        assert_eq!((header.node, header.epoch), message.sender());
        assert_eq!(packet.len(), out.len());
        let mut padded = out.clone();
        padded.extend_from_slice(&[0xff; 25]);
        assert_eq!(M::parse(&padded).as_ref(), Ok(message));
        for cut in 0..out.len() {
            assert_eq!(M::parse(&out[..cut]), Err(WireError::Truncated));
        }
        for i in 0..out.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut other = out.clone();
                other[i] = byte;
                let _ = M::parse(&other);
            }
        }
        let mut other = out.clone();
        for op in [0, messages.len() as u8 + 1, 128, 255] {
            other[at::OP] = op;
            assert!(M::parse(&other).is_err(), "operation {op}");
        }
        encoded.push(out);
    }
    encoded
}

#[test]
fn messages_survive_the_wire_and_golden_bytes_hold() {
    crate::golden("membership.hex", &survive(&memberships()));
    crate::golden("lease.hex", &survive(&leases()));
    crate::golden("copy.hex", &survive(&copies()));
    crate::golden("vr.hex", &survive(&views()));
    crate::golden("chain.hex", &survive(&chains()));
}

#[test]
fn who_says_it_and_of_which_epoch_is_in_the_header_alone() {
    let (mut one, mut other) = (vec![], vec![]);
    Membership::Opened { epoch: 3, from: 2 }.emit(&mut one);
    Membership::Opened { epoch: 0x0102_0304, from: 0x0506 }.emit(&mut other);
    assert_eq!(other[at::NODE], [5, 6]);
    assert_eq!(other[at::EPOCH], [1, 2, 3, 4]);
    assert_eq!(one[at::END..], other[at::END..]);
}

#[test]
fn where_an_older_build_says_nothing_of_disks_it_waits_for_none() {
    let (epoch, from) = (3, 2);
    let state = |waits| Membership::EpochState { epoch, from, end: END, ask: true, waits };
    let open = |waits| Membership::Open { epoch, from, end: END, waits };
    let mut out = vec![];
    for of in [&state as &dyn Fn(bool) -> Membership, &open] {
        of(true).emit(&mut out);
        assert_eq!(Membership::parse(&out), Ok(of(true)));
        out.pop();
        crate::header::set_length(&mut out);
        assert_eq!(Membership::parse(&out), Ok(of(false)));
    }
}

#[test]
fn a_message_of_another_kind_is_refused() {
    let mut out = vec![];
    memberships()[0].emit(&mut out);
    assert_eq!(LeaseMessage::parse(&out).unwrap_err(), WireError::Op);
    assert_eq!(VrMessage::parse(&out).unwrap_err(), WireError::Op);
    assert!(Kind::Membership.is_control() && !Kind::Store.is_control());
}

#[test]
fn the_longest_messages_fit_a_datagram_beside_a_tag() {
    let mut out = vec![];
    longest_piece().emit(&mut out);
    assert!(!out.is_empty() && out.len() + crate::header::TAG_BYTES <= DATAGRAM_BYTES_MAX);
    assert_eq!(CopyMessage::parse(&out), Ok(longest_piece()));
    let (cells, sessions) = (vec![[0xff; 8]; BLOCKS], vec![[0xff; 8]; BLOCKS]);
    let blocks = ChainMessage::Blocks { epoch: u32::MAX, from: u16::MAX, cells, sessions };
    blocks.emit(&mut out);
    assert_eq!(ChainMessage::parse(&out), Ok(blocks));
    let largest = Membership::Configure(config(MEMBERS_MAX as u16, 12).into());
    largest.emit(&mut out);
    assert_eq!(Membership::parse(&out), Ok(largest));
    let crash_vector =
        vec![CrashVectorEntry { count: u32::MAX, incarnation: u64::MAX }; MEMBERS_MAX];
    for message in views() {
        let message = VrMessage { crash_vector: crash_vector.clone(), group: u64::MAX, ..message };
        message.emit(&mut out);
        assert_eq!(VrMessage::parse(&out), Ok(message));
    }
}

#[test]
fn what_no_packet_can_hold_is_not_written() {
    let mut out = vec![1, 2, 3];
    Membership::Configure(config(100, 0).into()).emit(&mut out);
    assert!(out.is_empty() && PACKET_BYTES_MAX < 100 * 16);
}
