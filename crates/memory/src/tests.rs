#![allow(clippy::unwrap_used)]

use concord_core::{Addr, Epoch, Guards, Machine as _, NodeId, Now, Rng};
use concord_wire::GroupId;
use concord_wire::concordia::{BLOCK_BYTES, Copyset, GlobalStatus, Op, Outcome, Repr, Tag};

use super::*;

mod epochs;
mod gam;

const SWITCH: Addr = Addr { ip: 1, port: 1 };
/// A block of node 0's range.
const TAG: Tag = Tag(0);

type Sent = alloc::vec::Vec<(Addr, alloc::vec::Vec<u8>)>;

fn addr(place: u16) -> Addr {
    Addr { ip: 2, port: 10 + place }
}

fn settings(place: u8, guards: Guards) -> NodeSettings {
    NodeSettings {
        node: NodeId(1 + u16::from(place)),
        place,
        group: GroupId(0),
        epoch: Epoch(1),
        nodes: (0..3).map(addr).collect(),
        homes: alloc::vec![0, 1, 2],
        switch: SWITCH,
        coherence: Coherence::Concordia,
        block_bytes: 512,
        range_blocks: 16,
        cache_sets: 1,
        cache_ways: 1,
        lanes: 2,
        guards,
    }
}

fn node(place: u8, guards: Guards) -> Node {
    Node::new(settings(place, guards)).unwrap()
}

fn write(id: u64, block: u64, byte: u8) -> Call {
    let access = Access::Write { offset_bytes: 0, data: alloc::vec![byte] };
    Call { id, tag: Tag::new(0, block), access }
}

fn read(id: u64) -> Call {
    Call { id, tag: TAG, access: Access::Read { offset_bytes: 0, size_bytes: 1 } }
}

/// Handles a packet of this epoch; returns the packets that the node sends.
fn comes(node: &mut Node, packet: &Repr, data: &[u8]) -> alloc::vec::Vec<Repr> {
    let mut sent: Sent = Sent::new();
    let packet = Repr { epoch: Epoch(1), ..*packet };
    node.handle(Now::default(), SWITCH, &mut packet.packet(data), &mut sent);
    sent.iter().map(|(_, bytes)| Repr::parse(bytes).unwrap().0).collect()
}

fn called(node: &mut Node, call: Call) -> alloc::vec::Vec<Repr> {
    let mut sent: Sent = Sent::new();
    node.call(Now::default(), call, &mut sent);
    sent.iter().map(|(_, bytes)| Repr::parse(bytes).unwrap().0).collect()
}

/// Node 1 with block 0, modified: its event of lane 0 with number 1 is over.
fn owner(guards: Guards) -> Node {
    let mut node = node(1, guards);
    let asked = called(&mut node, write(1, 0, 7))[0];
    let data = Repr { op: Op::Data, version: 1, ..asked };
    let unlock = comes(&mut node, &data, &[0; 512])[0];
    assert_eq!(
        (unlock.op, unlock.status, unlock.copyset),
        (Op::Unlock, GlobalStatus::Modified, Copyset(2))
    );
    let _ = comes(&mut node, &Repr { op: Op::Unlocked, ..unlock }, &[]);
    assert_eq!((node.poll_done().unwrap().result, node.events().count()), (Ok(alloc::vec![]), 0));
    node
}

/// A call with an invalid address is refused at once, and no packet is sent.
#[test]
fn calls_that_cannot_be_are_refused_at_once() {
    let mut node = node(0, Guards::ALL);
    let block = |tag| Call { tag, ..read(1) };
    let at = |access| Call { access, ..read(1) };
    for (call, failure) in [
        (block(Tag::new(3, 0)), Failure::NoBlock),
        (block(Tag::new(0, 16)), Failure::NoBlock),
        (at(Access::Read { offset_bytes: 505, size_bytes: 8 }), Failure::Outside),
        (at(Access::Read { offset_bytes: usize::MAX, size_bytes: 8 }), Failure::Outside),
        (at(Access::FetchAdd { offset_bytes: 4, add: 1 }), Failure::Misaligned),
        (at(Access::CompareSwap { offset_bytes: 512, expected: 0, new: 1 }), Failure::Outside),
    ] {
        assert_eq!(called(&mut node, call), []);
        assert_eq!(node.poll_done().unwrap().result, Err(failure));
    }
}

#[test]
fn nodes_that_cannot_be_are_refused_in_one_line() {
    let base = settings(0, Guards::ALL);
    for wrong in [
        NodeSettings { block_bytes: 3_000, ..base.clone() },
        NodeSettings { nodes: (0..33).map(addr).collect(), ..base.clone() },
        NodeSettings { place: 3, ..base.clone() },
        NodeSettings { cache_ways: 0, ..base.clone() },
        NodeSettings { lanes: 33, ..base },
    ] {
        let said = alloc::format!("{}", Node::new(wrong).unwrap_err());
        assert!(said.starts_with("the ") && said.contains(": ") && !said.contains('\n'), "{said}");
    }
}

/// A request that is older than the copy belongs to an event that is over: the copy stays (trap
/// C7).
#[test]
fn c7_a_late_request_takes_no_newer_copy() {
    let late = |guards| {
        let mut node = owner(guards);
        let status = GlobalStatus::Modified;
        let asked = Repr {
            place: 2,
            number: 1,
            is_locked: true,
            status,
            version: 1,
            ..Repr::new(Op::ReadMiss, TAG)
        };
        let answer = comes(&mut node, &asked, &[]);
        (answer.len(), node.lines().next().unwrap().state)
    };
    assert_eq!(late(Guards::ALL), (0, LineState::Modified));
    #[cfg(feature = "mutants")]
    {
        let without = late(Guards::without(concord_core::Guard::CopyVersion));
        assert_eq!(without, (1, LineState::Shared), "its writes never pass the check again");
    }
}

/// A node that gave its only copy away gives it again, if the taker has not received it (trap C8).
#[test]
fn c8_a_giver_keeps_what_the_taker_may_lack() {
    let again = |guards| {
        let mut node = owner(guards);
        let (status, provider) = (GlobalStatus::Modified, Some(1));
        let asked = Repr {
            place: 2,
            number: 1,
            is_locked: true,
            status,
            version: 2,
            provider,
            ..Repr::new(Op::WriteMiss, TAG)
        };
        let first = comes(&mut node, &asked, &[]);
        assert_eq!((first.len(), first[0].op, node.lines().count()), (1, Op::Data, 0));
        comes(&mut node, &asked, &[]).len()
    };
    assert_eq!(again(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    assert_eq!(again(Guards::without(concord_core::Guard::GivenKept)), 0);
}

/// An eviction ends once the home has the block: the unlock does not overtake the write-back (trap
/// C8).
#[test]
fn c8_the_unlock_waits_for_the_write_back() {
    let evicts = |guards| {
        let mut node = owner(guards);
        let evict = called(&mut node, write(2, 1, 8))[0];
        assert_eq!(evict.op, Op::EvictModified);
        let metadata =
            Repr { status: GlobalStatus::Modified, version: 2, copyset: Copyset(2), ..evict };
        let granted = Repr { op: Op::Ack, outcome: Outcome::Done, ..metadata };
        comes(&mut node, &granted, &[])
            .iter()
            .map(|packet| packet.op)
            .collect::<alloc::vec::Vec<_>>()
    };
    assert_eq!(evicts(Guards::ALL), [Op::WriteBack]);
    #[cfg(feature = "mutants")]
    {
        let without = evicts(Guards::without(concord_core::Guard::WrittenBack));
        assert_eq!(without[..2], [Op::WriteBack, Op::Unlock]);
    }
}

/// A block that is being evicted is not written (trap C8).
#[test]
fn c8_no_write_during_its_blocks_eviction() {
    let during = |guards| {
        let mut node = owner(guards);
        let _ = called(&mut node, write(2, 1, 8));
        let _ = called(&mut node, write(3, 0, 9));
        node.poll_done().is_some()
    };
    assert!(!during(Guards::ALL));
    #[cfg(feature = "mutants")]
    assert!(during(Guards::without(concord_core::Guard::EvictedUnwritten)));
}

/// A late part of a write-back does not overwrite a newer block (trap C8).
#[test]
fn c8_a_late_write_back_changes_nothing() {
    let late = |guards| {
        let mut home = node(0, guards);
        let back =
            |number, version| Repr { place: 1, number, version, ..Repr::new(Op::WriteBack, TAG) };
        assert_eq!(comes(&mut home, &back(1, 2), &[1; 512])[0].op, Op::Written);
        assert_eq!(comes(&mut home, &back(1, 2), &[1; 512])[0].op, Op::Written, "it is told again");
        let _ = comes(&mut home, &Repr { place: 2, ..back(1, 4) }, &[2; 512]);
        let _ = comes(&mut home, &Repr { number: 2, ..back(1, 2) }, &[1; 512]);
        home.home_data(TAG)[0]
    };
    assert_eq!(late(Guards::ALL), 2);
    #[cfg(feature = "mutants")]
    assert_eq!(late(Guards::without(concord_core::Guard::NewerBlock)), 1);
}

/// A miss requests its block only once it has a place in the cache (trap C12).
#[test]
fn c12_a_miss_has_room_before_it_asks() {
    let asks = |guards| called(&mut owner(guards), write(2, 1, 8))[0].op;
    assert_eq!(asks(Guards::ALL), Op::EvictModified);
    #[cfg(feature = "mutants")]
    assert_eq!(asks(Guards::without(concord_core::Guard::RoomFirst)), Op::WriteMiss);
}

/// A request of node 1 for block 0, as the switch passes it on.
fn passed(number: u64, moves: u64) -> Repr {
    let is_first = true;
    Repr { place: 1, number, version: moves, is_first, ..Repr::new(Op::ReadMiss, TAG) }
}

fn first(sent: &[Repr]) -> (Op, Outcome) {
    sent.first().map(|packet| (packet.op, packet.outcome)).unwrap()
}

/// A home locks its block only for the copy of a request that passed the switch first, and a number
/// that failed stays failed (trap C6).
#[test]
fn c6_a_home_locks_for_first_copies_only() {
    let copies = |guards| {
        let mut home = node(0, guards);
        let copy = Repr { is_first: false, ..passed(1, 0) };
        let said = first(&comes(&mut home, &copy, &[]));
        let _ = comes(&mut home, &passed(1, 0), &[]);
        (said, home.owned(TAG).unwrap().3)
    };
    assert_eq!(copies(Guards::ALL), ((Op::Ack, Outcome::Busy), false));
    #[cfg(feature = "mutants")]
    assert!(copies(Guards::without(concord_core::Guard::FirstCopy)).1);
}

/// Moves block 0 of this home to the switch and back, with metadata from there.
fn there_and_back(home: &mut Node) {
    let mut sent = Sent::new();
    assert!(home.migrate(Now::default(), TAG, &mut sent));
    assert!(!home.migrate(Now::default(), Tag(1), &mut sent), "one after the other");
    let add = Repr::parse(&sent[0].1).unwrap().0;
    assert_eq!((add.op, add.number, add.version), (Op::Add, 1, 1));
    let _ = comes(home, &Repr { op: Op::Added, ..add }, &[]);
    assert_eq!(home.owned(TAG), None);
    assert!(home.migrate(Now::default(), TAG, &mut sent));
    let remove = Repr::parse(&sent[1].1).unwrap().0;
    assert_eq!((remove.op, remove.number), (Op::Remove, 2));
    let (status, copyset) = (GlobalStatus::Modified, Copyset(4));
    let removed = Repr { op: Op::Removed, status, version: 9, copyset, ..remove };
    let busy = Repr { outcome: Outcome::Busy, ..removed };
    assert_eq!(comes(home, &busy, &[]), [], "it is asked again later");
    let forget = comes(home, &removed, &[])[0];
    assert_eq!((forget.op, forget.number), (Op::Forget, 2));
    assert_eq!(first(&comes(home, &passed(1, 1), &[])), (Op::Ack, Outcome::Busy));
    let _ = comes(home, &Repr { op: Op::Forgotten, ..forget }, &[]);
    assert_eq!(home.owned(TAG), Some((status, 9, copyset, false)), "the version comes with it");
}

/// A request that passed the switch before the block came back locks nothing (trap C6).
#[test]
fn c6_a_request_of_an_earlier_ownership_locks_nothing() {
    let late = |guards| {
        let mut home = node(0, guards);
        there_and_back(&mut home);
        let late = comes(&mut home, &Repr { lane: 1, ..passed(1, 1) }, &[]);
        (first(&late).0, home.owned(TAG).unwrap().3)
    };
    assert_eq!(late(Guards::ALL), (Op::Ack, false));
    #[cfg(feature = "mutants")]
    {
        let without = late(Guards::without(concord_core::Guard::MovedRequest));
        assert_eq!(without, (Op::ReadMiss, true), "the owner is asked, and nobody waits");
    }
    let mut home = node(0, Guards::ALL);
    there_and_back(&mut home);
    assert_eq!(
        comes(&mut home, &passed(2, 2), &[])[0].op,
        Op::ReadMiss,
        "to place 2, which has it"
    );
}

/// An unlock that the switch executed while it owned the block is acknowledged by the home, and
/// changes nothing (trap C6).
#[test]
fn c6_an_unlock_of_an_earlier_owner_changes_nothing() {
    let late = |guards| {
        let mut home = node(0, guards);
        there_and_back(&mut home);
        let unlock = Repr { place: 1, number: 1, version: 8, ..Repr::new(Op::Unlock, TAG) };
        let unlock = Repr { is_exclusive: true, copyset: Copyset(2), ..unlock };
        assert_eq!(comes(&mut home, &unlock, &[])[0].op, Op::Unlocked);
        home.owned(TAG).unwrap().2
    };
    assert_eq!(late(Guards::ALL), Copyset(4));
    #[cfg(feature = "mutants")]
    assert_eq!(late(Guards::without(concord_core::Guard::UnlockCompared)), Copyset(2));
}

/// An eviction that a home refuses leaves no mark either.
#[test]
fn bug_25_40_a_home_marks_no_refused_eviction() {
    let mut home = node(0, Guards::ALL);
    let data = comes(&mut home, &passed(1, 0), &[])[0];
    let unlock = Repr { op: Op::Unlock, copyset: Copyset(2), ..data };
    let _ = comes(&mut home, &Repr { status: GlobalStatus::Shared, ..unlock }, &[]);
    let _ = comes(&mut home, &Repr { place: 2, ..passed(1, 0) }, &[]);
    let evict = Repr { op: Op::EvictShared, ..passed(2, 0) };
    assert_eq!(first(&comes(&mut home, &evict, &[])), (Op::Ack, Outcome::Busy));
    assert!(home.owned(TAG).unwrap().3 && !home.is_wanted(TAG));
}

/// A home serves no request for a block that is moving (trap C5).
#[test]
fn c5_a_block_that_moves_is_locked() {
    let during = |guards| {
        let mut home = node(0, guards);
        let mut sent = Sent::new();
        assert!(home.migrate(Now::default(), TAG, &mut sent));
        first(&comes(&mut home, &passed(1, 0), &[])).0
    };
    assert_eq!(during(Guards::ALL), Op::Ack);
    #[cfg(feature = "mutants")]
    assert_eq!(during(Guards::without(concord_core::Guard::MoveLocked)), Op::Data);
}

/// A requested block goes to the switch at the end of a window; a block without requests comes
/// back, and so does one that is in the way of a hotter one (§5.2.2).
#[test]
fn hot_blocks_go_to_the_switch_cold_ones_come_back() {
    let (mut home, mut sent) = (node(0, Guards::ALL), Sent::new());
    let at = |ms| Now { instant: concord_core::Instant(ms * concord_core::MS), ..Now::default() };
    let mut deadline = |home: &mut Node, ms| {
        sent.clear();
        home.tick(at(ms), &mut sent);
        sent.iter().map(|(_, bytes)| Repr::parse(bytes).unwrap().0).collect::<alloc::vec::Vec<_>>()
    };
    let data = comes(&mut home, &passed(1, 0), &[])[0];
    let unlock = Repr { op: Op::Unlock, copyset: Copyset(2), ..data };
    let _ = comes(&mut home, &Repr { status: GlobalStatus::Shared, ..unlock }, &[]);
    let add = deadline(&mut home, 10)[0];
    assert_eq!((add.op, add.status, add.copyset), (Op::Add, GlobalStatus::Shared, Copyset(2)));
    // The switch has no room: the home of the block that is in the way is told.
    let full = Repr { op: Op::Added, outcome: Outcome::Full, provider: Some(2), ..add };
    let displace = comes(&mut home, &Repr { version: 5, ..full }, &[])[0];
    assert_eq!((displace.op, displace.tag, displace.number), (Op::Displace, Tag::new(2, 5), 1));
    assert!(home.owned(TAG).is_some());
    // Agents report how often they were asked for it: the move is tried again.
    let _ = comes(&mut home, &Repr { number: 3, ..Repr::new(Op::Heat, TAG) }, &[]);
    let add = deadline(&mut home, 20)[0];
    assert_eq!((add.op, add.number), (Op::Add, 2));
    let _ = comes(&mut home, &Repr { op: Op::Added, ..add }, &[]);
    let colder = Repr { number: 2, ..Repr::new(Op::Displace, TAG) };
    let _ = comes(&mut home, &colder, &[]);
    for window in 3..10 {
        assert_eq!(deadline(&mut home, 10 * window), [], "window {window}");
    }
    assert_eq!(deadline(&mut home, 110)[0].op, Op::Remove);
}

/// A grant of a copy that the node no longer holds makes no empty copy: whatever arrives from the
/// network, a call finds a whole block.
#[test]
fn a_grant_without_a_copy_is_none() {
    let mut node = node(1, Guards::ALL);
    let asked = called(&mut node, read(1))[0];
    let shared = Repr { status: GlobalStatus::Unshared, version: 1, ..asked };
    let unlock = comes(&mut node, &Repr { op: Op::Data, ..shared }, &[0; 512])[0];
    let _ = comes(&mut node, &Repr { op: Op::Unlocked, ..unlock }, &[]);
    let asked = called(&mut node, write(2, 0, 7))[0];
    assert_eq!(asked.op, Op::WriteShared);
    let other = Repr { place: 2, number: 1, version: 1, ..Repr::new(Op::WriteShared, TAG) };
    let other = Repr { is_locked: true, status: GlobalStatus::Shared, ..other };
    assert_eq!(comes(&mut node, &other, &[])[0].op, Op::Ack);
    let granted = Repr { op: Op::Ack, copyset: Copyset(2), version: 2, ..asked };
    assert_eq!(comes(&mut node, &granted, &[]), []);
    assert_eq!(node.lines().filter(|line| line.is_valid()).count(), 0);
}

/// Requests are sent again after six round trips, unlocks after three (§5.3.1).
#[test]
fn resending_after_six_and_three_round_trips() {
    let (mut node, mut sent) = (node(1, Guards::ALL), Sent::new());
    let at = |ns| Now { instant: concord_core::Instant(ns), ..Now::default() };
    node.call(at(0), write(1, 0, 7), &mut sent);
    let due = node.deadline().at.0;
    assert_eq!(due, RoundTrip::INITIAL.times(6));
    node.tick(at(due - 1), &mut sent);
    assert_eq!(sent.len(), 1);
    node.tick(at(due), &mut sent);
    assert_eq!((sent.len(), &sent[0]), (2, &sent[1]), "the same number");
    let asked = Repr::parse(&sent[0].1).unwrap().0;
    let data = Repr { op: Op::Data, version: 1, ..asked };
    node.handle(at(due), SWITCH, &mut data.packet(&[0; 512]), &mut sent);
    assert_eq!(node.deadline().at.0, due + RoundTrip::INITIAL.times(3));
}

/// No input crashes the node.
#[test]
fn any_bytes_leave_a_memory_node_standing() {
    let mut rng = Rng::new(54);
    for block_bytes in BLOCK_BYTES {
        let settings = NodeSettings { block_bytes, cache_ways: 2, ..settings(0, Guards::ALL) };
        let mut node = Node::new(settings).unwrap();
        let mut sent = Sent::new();
        for id in 0..20_000 {
            if rng.chance(1, 8) {
                node.call(Now::default(), write(id, rng.below(4), 1), &mut sent);
            }
            let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
            let data: &[u8] = if op.has_data() { &[1; 512] } else { &[] };
            let status = GlobalStatus::ALL[rng.below(4) as usize];
            let packet = Repr {
                epoch: Epoch(1),
                place: rng.below(3) as u8,
                lane: rng.below(2) as u8,
                number: rng.below(8),
                version: rng.below(4),
                copyset: Copyset(rng.below(8) as u32),
                is_locked: rng.chance(3, 4),
                outcome: Outcome::ALL[rng.below(Outcome::ALL.len() as u64) as usize],
                is_first: rng.chance(1, 2),
                status,
                ..Repr::new(op, Tag::new(0, rng.below(3)))
            };
            let mut bytes = packet.packet(data);
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            node.handle(Now::default(), SWITCH, &mut bytes, &mut sent);
            if rng.chance(1, 4) {
                node.wake(Now::default(), rng.below(2) as usize, &mut sent);
            }
            sent.clear();
            while node.poll_done().is_some() {}
        }
    }
}
