#![allow(clippy::unwrap_used)]

use alloc::string::String;
use alloc::vec::Vec;

use concord_core::{Guards, Incarnation, Rng};
use concord_pisa::PortId;
use concord_wire::control::{Member, Program};

use super::printed::{Passed, PrintedBlock};
use super::*;
use crate::{AgentConfig, PortTable};

const SWITCH: Addr = Addr { ip: 1, port: 1 };
/// A block of node 0's range: its tag is zero, which is as valid as any other (trap C14).
const TAG: Tag = Tag(0);

fn addr(place: u8) -> Addr {
    Addr { ip: 2, port: 10 + u16::from(place) }
}

fn config(epoch: u32, nodes: u8) -> Config {
    let member =
        |place: u8| Member { node: 1 + u16::from(place), incarnation: 1, addr: addr(place) };
    Config {
        epoch,
        group: GroupId(0),
        rack: 1,
        switch_id: epoch,
        switch_incarnation: 1,
        switch: SWITCH,
        kind: GroupKind::Memory,
        program: Program::Concordia,
        members: (0..nodes).map(member).collect(),
        joining: Vec::new(),
    }
}

fn load(layout: BlocksLayout, guards: Guards) -> Result<Concordia, LoadError> {
    let mut told = AgentConfig::new(Incarnation(1), SWITCH, SWITCH);
    told.sections.blocks = layout;
    Concordia::load(&AgentConfig { guards, ..told }.settings())
}

/// A switch of three nodes, and their ports.
struct Rig {
    program: Concordia,
    ports: PortTable,
}

/// What left: the places of the destinations, and the packet.
type Left = Option<(Vec<u8>, Repr)>;

impl Rig {
    fn new(layout: BlocksLayout, guards: Guards) -> Rig {
        let mut program = load(layout, guards).unwrap();
        program.install(Now::default(), &config(1, 3)).unwrap();
        let mut ports = PortTable::default();
        // Ports have other numbers than the places.
        assert!(ports.fill(&[addr(2), addr(0), addr(1)]));
        Rig { program, ports }
    }

    /// A rig whose block is owned by the switch.
    fn with_block(guards: Guards) -> Rig {
        let mut rig = Rig::new(BlocksLayout { ways: 2, way_blocks: 2 }, guards);
        let (_, added) = rig.send(&Repr { version: 1, ..packet(Op::Add, 0, 1) }).unwrap();
        assert_eq!((added.op, added.outcome), (Op::Added, Outcome::Done));
        rig
    }

    fn send(&mut self, packet: &Repr) -> Left {
        let mut bytes = packet.packet(&[]);
        let mut ingress = Ingress::first(Now::default(), addr(packet.place), &self.ports);
        loop {
            let place = |to: Addr| (to.port - 10) as u8;
            let parsed = |bytes: &[u8]| Repr::parse(bytes).unwrap().0;
            match self.program.process(&ingress, &mut bytes) {
                Verdict::Recirculate { metadata, size_bytes } => {
                    bytes.truncate(size_bytes);
                    ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
                }
                Verdict::Forward { to, size_bytes } => {
                    return Some((alloc::vec![place(to)], parsed(&bytes[..size_bytes])));
                }
                Verdict::Multicast { to: Copies::Ports(ports), size_bytes } => {
                    let mut places: Vec<u8> = ports
                        .map(|port: PortId| place(self.ports.addr_of(port).unwrap()))
                        .collect();
                    places.sort_unstable();
                    return Some((places, parsed(&bytes[..size_bytes])));
                }
                _ => return None,
            }
        }
    }

    /// Sends a request; returns what left.
    fn request(&mut self, op: Op, place: u8, number: u64) -> Left {
        self.send(&packet(op, place, number))
    }

    /// Sends the unlock of the event that got `asked`.
    fn unlock(&mut self, op: Op, place: u8, number: u64, new: (GlobalStatus, &[u8])) -> Left {
        let version = self.program.peek(TAG).unwrap().1;
        let copyset = new.1.iter().fold(Copyset(0), |set, place| set.with(Copyset::of(*place)));
        let is_exclusive = !op.is_shared();
        let unlock = packet(Op::Unlock, place, number);
        self.send(&Repr { status: new.0, copyset, version, is_exclusive, ..unlock })
    }

    /// Runs a whole event, without loss.
    fn event(&mut self, op: Op, place: u8, number: u64, new: (GlobalStatus, &[u8])) {
        let (_, packet) = self.request(op, place, number).unwrap();
        assert_eq!(packet.outcome, Outcome::Done, "{op:?} of {place}");
        assert_eq!(self.unlock(op, place, number, new).unwrap().1.op, Op::Unlocked);
    }

    fn is_locked(&self) -> bool {
        self.program.peek(TAG).unwrap().3
    }
}

fn packet(op: Op, place: u8, number: u64) -> Repr {
    Repr { epoch: Epoch(1), place, number, ..Repr::new(op, TAG) }
}

fn outcome(left: &Left) -> (Op, Outcome) {
    left.as_ref().map(|(_, packet)| (packet.op, packet.outcome)).unwrap()
}

/// Table 3, and the state transitions of figure 6.
#[test]
fn requests_go_where_the_forward_table_says() {
    let mut rig = Rig::with_block(Guards::ALL);
    // Unshared: to the home.
    let (to, asked) = rig.request(Op::ReadMiss, 1, 1).unwrap();
    assert_eq!((to, asked.op, asked.provider), (alloc::vec![0], Op::ReadMiss, None));
    assert_eq!((asked.status, asked.version), (GlobalStatus::Unshared, 1));
    rig.unlock(Op::ReadMiss, 1, 1, (GlobalStatus::Shared, &[1]));
    // Shared: to the node that has it; both readers hold the lock.
    let (to, asked) = rig.request(Op::ReadMiss, 2, 1).unwrap();
    assert_eq!((to, asked.provider), (alloc::vec![1], Some(1)));
    rig.unlock(Op::ReadMiss, 2, 1, (GlobalStatus::Shared, &[2]));
    assert_eq!(rig.program.peek(TAG).unwrap().2, Copyset(0b110), "a reader is added");
    // A writer that has a copy: to all other nodes.
    let (to, asked) = rig.request(Op::WriteShared, 1, 2).unwrap();
    assert_eq!((to, asked.provider, asked.copyset), (alloc::vec![2], None, Copyset(0b110)));
    assert_eq!(outcome(&rig.request(Op::ReadMiss, 0, 1)), (Op::Ack, Outcome::Busy));
    rig.unlock(Op::WriteShared, 1, 2, (GlobalStatus::Modified, &[1]));
    assert_eq!(rig.program.peek(TAG), Some((GlobalStatus::Modified, 2, Copyset(0b10), false)));
    // A writer that has no copy: to the owner, which gives its own.
    let (to, asked) = rig.request(Op::WriteMiss, 2, 2).unwrap();
    assert_eq!((to, asked.provider, asked.version), (alloc::vec![1], Some(1), 2));
    rig.unlock(Op::WriteMiss, 2, 2, (GlobalStatus::Modified, &[2]));
    // Evictions come back to their requester.
    let (to, asked) = rig.request(Op::EvictModified, 2, 3).unwrap();
    assert_eq!((to, asked.op, asked.outcome), (alloc::vec![2], Op::Ack, Outcome::Done));
    rig.unlock(Op::EvictModified, 2, 3, (GlobalStatus::Unshared, &[]));
    assert_eq!(rig.program.peek(TAG), Some((GlobalStatus::Unshared, 4, Copyset(0), false)));
}

/// Table 2: a request that a concurrent event made pointless gets no lock, and a failed ACK.
#[test]
fn requests_of_another_state_are_refused_unlocked() {
    let refused = |guards| {
        let mut rig = Rig::with_block(guards);
        rig.event(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
        let mut all = Vec::new();
        for (number, (op, place)) in
            (2..).zip([(Op::WriteShared, 2), (Op::EvictShared, 1), (Op::ReadMiss, 1)])
        {
            all.push(outcome(&rig.request(op, place, number)));
        }
        (all, rig.is_locked())
    };
    let (all, is_locked) = refused(Guards::ALL);
    assert!(all.iter().all(|said| *said == (Op::Ack, Outcome::Invalid)) && !is_locked);
    #[cfg(feature = "mutants")]
    assert!(refused(Guards::without(concord_core::Guard::CheckTable)).1);
}

/// A late copy of a lock request locks nothing, and reaches no node (trap C2). As printed, it takes
/// the lock for an event that is over, and the score that it leaves lets the requester's next
/// number but one pass a lock that another node holds.
#[test]
fn c2_a_late_copy_of_a_request_locks_nothing() {
    let mut printed = PrintedBlock::new();
    assert!(matches!(printed.request(Op::WriteMiss, 1, 1), Passed::On(..)));
    let score = printed.unlock_first_pass(1, 1);
    let new = (GlobalStatus::Modified, Copyset::of(1));
    printed.unlock_second_pass(Op::WriteMiss, (1, 1), score, new);
    // The late copy is refused, since node 1 has the block; its score stays.
    assert_eq!(printed.request(Op::WriteMiss, 1, 1), Passed::Refused);
    printed.give_back(Op::WriteMiss);
    // Node 2 writes, and holds the lock; number 3 of node 1 passes it.
    assert!(matches!(printed.request(Op::WriteMiss, 2, 1), Passed::On(..)));
    assert!(matches!(printed.request(Op::EvictModified, 1, 3), Passed::On(..)));

    // And where node 1 no longer has a copy, the late copy takes the lock for an event that is
    // over.
    let late = |guards| {
        let mut rig = Rig::with_block(guards);
        rig.event(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
        rig.event(Op::WriteMiss, 2, 1, (GlobalStatus::Modified, &[2]));
        (rig.request(Op::WriteMiss, 1, 1).map(|(to, _)| to), rig.is_locked())
    };
    assert_eq!(late(Guards::ALL), (None, false));
    #[cfg(feature = "mutants")]
    {
        let without = late(Guards::without(concord_core::Guard::EventOnce));
        assert_eq!(without, (Some(alloc::vec![2]), true), "the owner gives its copy to nobody");
    }
}

/// A copy of a request between the two passes of its unlock: as printed, it leaves a reader for
/// ever (trap C3). Here an unlock has one pass, and a lock names its holders.
#[test]
fn c3_no_copy_of_a_read_outlives_its_unlock() {
    let mut printed = PrintedBlock::new();
    assert!(matches!(printed.request(Op::ReadMiss, 1, 1), Passed::On(..)));
    let score = printed.unlock_first_pass(1, 1);
    assert!(matches!(printed.request(Op::ReadMiss, 1, 1), Passed::On(..)));
    let new = (GlobalStatus::Shared, Copyset::of(1));
    printed.unlock_second_pass(Op::ReadMiss, (1, 1), score, new);
    assert_eq!(printed.readers, 1);
    assert_eq!(printed.request(Op::WriteMiss, 2, 1), Passed::Failed);

    let mut rig = Rig::with_block(Guards::ALL);
    for _ in 0..3 {
        let (to, asked) = rig.request(Op::ReadMiss, 1, 1).unwrap();
        assert_eq!((to, asked.op), (alloc::vec![0], Op::ReadMiss), "a copy goes the same way");
    }
    rig.unlock(Op::ReadMiss, 1, 1, (GlobalStatus::Shared, &[1]));
    assert!(!rig.is_locked() && rig.request(Op::ReadMiss, 1, 1).is_none());
}

/// A duplicated unlock ends no later event of its node, which may be another lane's (traps C3 and
/// C6).
#[test]
fn c6_an_unlock_is_executed_once() {
    let again = |guards| {
        let mut rig = Rig::with_block(guards);
        rig.event(Op::ReadMiss, 1, 1, (GlobalStatus::Shared, &[1]));
        rig.event(Op::EvictShared, 1, 2, (GlobalStatus::Unshared, &[]));
        // Another lane of the node reads; then come duplicates of the eviction's unlock, and of the
        // unlock of a read that is still the newest event of its lane.
        let read = Repr { lane: 3, ..packet(Op::ReadMiss, 1, 1) };
        let unlock = Repr { status: GlobalStatus::Shared, copyset: Copyset::of(1), ..read };
        let unlock = Repr { op: Op::Unlock, version: 2, ..unlock };
        let _ = (rig.send(&read), rig.send(&unlock));
        rig.event(Op::EvictShared, 1, 3, (GlobalStatus::Unshared, &[]));
        let _ = rig.request(Op::ReadMiss, 1, 4);
        let is_told = rig.send(&unlock).is_some();
        (is_told, rig.is_locked(), rig.program.peek(TAG).unwrap().2)
    };
    assert_eq!(again(Guards::ALL), (true, true, Copyset(0)), "it is told again");
    #[cfg(feature = "mutants")]
    {
        let without = Guards::without(concord_core::Guard::UnlockOnce);
        assert!(!again(without).0, "its lane waits for an answer for ever");
        let without = without.and_without(concord_core::Guard::UnlockCompared);
        assert_eq!(again(without).1, false, "nobody has the lock");
        assert_eq!(again(without).2, Copyset::of(1), "a copy is noted that nobody has");
    }
}

/// After a failed ACK no copy of the request gets the lock (trap C4): the first copy decides, and a
/// number that failed stays failed.
#[test]
fn c4_a_number_that_failed_never_locks() {
    let mut printed = PrintedBlock::new();
    assert!(matches!(printed.request(Op::WriteMiss, 1, 1), Passed::On(..)));
    assert_eq!(printed.request(Op::ReadMiss, 2, 1), Passed::Failed);
    let score = printed.unlock_first_pass(1, 1);
    let new = (GlobalStatus::Modified, Copyset::of(1));
    printed.unlock_second_pass(Op::WriteMiss, (1, 1), score, new);
    assert!(matches!(printed.request(Op::ReadMiss, 2, 1), Passed::On(..)));
    assert_eq!(printed.readers, 1, "node 2 has gone on to number 2");

    let failed = |guards| {
        let mut rig = Rig::with_block(guards);
        let _ = rig.request(Op::WriteMiss, 1, 1);
        assert_eq!(outcome(&rig.request(Op::ReadMiss, 2, 1)), (Op::Ack, Outcome::Busy));
        rig.unlock(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
        let said = outcome(&rig.request(Op::ReadMiss, 2, 1));
        (said, rig.is_locked())
    };
    assert_eq!(failed(Guards::ALL), ((Op::Ack, Outcome::Busy), false));
    #[cfg(feature = "mutants")]
    assert!(failed(Guards::without(concord_core::Guard::EventOnce)).1);
}

/// A late duplicate of ADD-TO-SWITCH leaves the block as it is, in one way; and once its home has
/// taken the block back, it stays there (trap C5). As printed, the older copyset is installed, and
/// the block has two owners.
#[test]
fn c5_a_block_is_added_once() {
    let late = |guards| {
        let mut rig = Rig::with_block(guards);
        rig.event(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
        let add = Repr { version: 1, ..packet(Op::Add, 0, 1) };
        let (to, added) = rig.send(&add).unwrap();
        assert_eq!((to, added.outcome, added.version), (alloc::vec![0], Outcome::Done, 2));
        assert_eq!(rig.program.peek(TAG), Some((GlobalStatus::Modified, 2, Copyset(0b10), false)));
        assert_eq!(rig.program.stages.ways_with(TAG), 1);
        let removed = rig.send(&packet(Op::Remove, 0, 2)).unwrap().1;
        assert_eq!((removed.outcome, removed.version), (Outcome::Done, 2));
        assert_eq!(rig.send(&packet(Op::Forget, 0, 2)).unwrap().1.op, Op::Forgotten);
        assert_eq!(rig.program.peek(TAG), None);
        (rig.send(&add).is_some(), rig.program.peek(TAG).is_some())
    };
    assert_eq!(late(Guards::ALL), (false, false));
    #[cfg(feature = "mutants")]
    assert_eq!(late(Guards::without(concord_core::Guard::MoveOnce)), (true, true));
}

/// Two copies of an ADD that found room in different ways: the block goes into one way only (trap
/// C5).
#[test]
fn c5_a_block_is_put_into_one_way() {
    let ways = |guards| {
        let layout = BlocksLayout { ways: 2, way_blocks: 1 };
        let mut stages = Stages::new(&layout, guards);
        let other = Tag::new(1, 0);
        let mut pass = |ask, tag, number| {
            let mut phv = phv(ask, &Repr { tag, version: 1, ..packet(Op::Add, 0, number) });
            stages.run(&mut phv);
            phv.free
        };
        assert_eq!(pass(Ask::Look, other, 1), Some(0));
        let _ = pass(Ask::Insert(0), other, 1);
        assert_eq!(pass(Ask::Look, TAG, 1), Some(1));
        let _ = (pass(Ask::Take, other, 2), pass(Ask::Forget, other, 2));
        assert_eq!(pass(Ask::Look, TAG, 1), Some(0), "a copy");
        let _ = (pass(Ask::Insert(1), TAG, 1), pass(Ask::Insert(0), TAG, 1));
        stages.ways_with(TAG)
    };
    assert_eq!(ways(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    assert_eq!(ways(Guards::without(concord_core::Guard::MoveOnce)), 2);
}

/// The answer to a REMOVE is given again if it was lost: the block stays, locked, until its home
/// has the metadata, and confirms it (trap C5). As printed, the metadata is lost with the answer.
#[test]
fn c5_a_removal_says_its_metadata_again() {
    let mut rig = Rig::with_block(Guards::ALL);
    rig.event(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
    for _ in 0..2 {
        let (to, removed) = rig.send(&packet(Op::Remove, 0, 2)).unwrap();
        assert_eq!((to, removed.op, removed.outcome), (alloc::vec![0], Op::Removed, Outcome::Done));
        let metadata = (removed.status, removed.version, removed.copyset);
        assert_eq!(metadata, (GlobalStatus::Modified, 2, Copyset(0b10)));
    }
    assert_eq!(outcome(&rig.request(Op::ReadMiss, 2, 1)), (Op::Ack, Outcome::Busy));
    for _ in 0..2 {
        assert_eq!(rig.send(&packet(Op::Forget, 0, 2)).unwrap().1.op, Op::Forgotten);
        assert!(rig.program.stages.blocks() == 0);
    }
    let removed = rig.send(&packet(Op::Remove, 0, 3)).unwrap().1;
    assert_eq!(removed.outcome, Outcome::Invalid, "it is not here");
}

/// A block is taken back once no event holds its lock (trap C5).
#[test]
fn c5_a_locked_block_stays() {
    let removed = |guards| {
        let mut rig = Rig::with_block(guards);
        let _ = rig.request(Op::WriteMiss, 1, 1);
        let first = rig.send(&packet(Op::Remove, 0, 2)).unwrap().1.outcome;
        rig.unlock(Op::WriteMiss, 1, 1, (GlobalStatus::Modified, &[1]));
        (first, rig.send(&packet(Op::Remove, 0, 2)).unwrap().1.outcome)
    };
    assert_eq!(removed(Guards::ALL), (Outcome::Busy, Outcome::Done));
    #[cfg(feature = "mutants")]
    {
        let without = removed(Guards::without(concord_core::Guard::MoveLocked));
        assert_eq!(without, (Outcome::Done, Outcome::Done));
    }
}

/// The switch notes requests that it passes on to a home: the first copy is marked as such, and
/// once the lane has a newer event, no copy passes. Unlocks pass as often as they arrive, so that
/// an unlock lost between switch and home can be repeated (trap C6).
#[test]
fn c6_the_first_copy_that_is_passed_on_says_so() {
    let mut rig = Rig::new(BlocksLayout { ways: 1, way_blocks: 1 }, Guards::ALL);
    for is_first in [true, false] {
        let (to, passed) = rig.request(Op::ReadMiss, 1, 1).unwrap();
        assert_eq!((to, passed.op, passed.is_locked), (alloc::vec![0], Op::ReadMiss, false));
        assert_eq!(passed.is_first, is_first);
    }
    for _ in 0..2 {
        let (to, passed) = rig.request(Op::Unlock, 1, 1).unwrap();
        assert_eq!((to, passed.op), (alloc::vec![0], Op::Unlock));
    }
    assert_eq!(rig.request(Op::ReadMiss, 1, 1), None, "the event is over");
    // And once the switch owns the block: the unlock has been executed, the request is stale.
    let _ = rig.send(&Repr { version: 1, ..packet(Op::Add, 0, 1) });
    assert_eq!(rig.request(Op::Unlock, 1, 1).unwrap().1.op, Op::Unlocked);
    assert_eq!(rig.request(Op::ReadMiss, 1, 1), None);
    assert!(!rig.is_locked());
    // A switch without room names the block that is in the way.
    let (_, added) = rig.send(&Repr { tag: Tag(1), ..packet(Op::Add, 0, 2) }).unwrap();
    assert_eq!((added.outcome, added.provider, added.version), (Outcome::Full, Some(0), 0));
    // A request that passes on carries the number of the newest move before it.
    let (_, passed) = rig.send(&Repr { tag: Tag(1), ..packet(Op::ReadMiss, 1, 2) }).unwrap();
    assert_eq!(passed.version, 2);
}

/// An unlock for another version than the block's changes nothing (trap C6).
#[test]
fn c6_an_unlock_is_of_the_version_that_it_found() {
    let other = |guards| {
        let mut rig = Rig::with_block(guards);
        let _ = rig.request(Op::WriteMiss, 1, 1);
        let copyset = Copyset::of(2);
        let unlock = Repr { version: 3, copyset, is_exclusive: true, ..packet(Op::Unlock, 1, 1) };
        (rig.send(&unlock).is_some(), rig.program.peek(TAG).unwrap().1)
    };
    assert_eq!(other(Guards::ALL), (false, 1));
    #[cfg(feature = "mutants")]
    {
        let without = other(Guards::without(concord_core::Guard::UnlockCompared));
        assert_eq!(without, (true, 4));
    }
}

/// A stream of readers does not starve a writer (trap C14).
#[test]
fn c14_readers_wait_for_a_refused_writer() {
    let starved = |guards| {
        let mut rig = Rig::with_block(guards);
        let _ = rig.request(Op::ReadMiss, 1, 1);
        assert_eq!(outcome(&rig.request(Op::WriteMiss, 0, 1)), (Op::Ack, Outcome::Busy));
        let second = rig.request(Op::ReadMiss, 2, 1).unwrap().1;
        rig.unlock(Op::ReadMiss, 1, 1, (GlobalStatus::Shared, &[1]));
        (second.op, rig.request(Op::WriteMiss, 0, 2).unwrap().1.op)
    };
    assert_eq!(starved(Guards::ALL), (Op::Ack, Op::WriteMiss));
    #[cfg(feature = "mutants")]
    {
        let without = starved(Guards::without(concord_core::Guard::WriterWanted));
        assert_eq!(without, (Op::ReadMiss, Op::Ack));
    }
}

/// A refused eviction may not be retried, since another event took its copy: readers must not wait
/// for it.
#[test]
fn bug_25_40_a_refused_eviction_leaves_no_mark() {
    let mut rig = Rig::with_block(Guards::ALL);
    rig.event(Op::ReadMiss, 1, 1, (GlobalStatus::Shared, &[1]));
    let _ = rig.request(Op::ReadMiss, 2, 1);
    assert_eq!(outcome(&rig.request(Op::EvictShared, 1, 2)), (Op::Ack, Outcome::Busy));
    assert_eq!(rig.request(Op::ReadMiss, 0, 1).unwrap().1.op, Op::ReadMiss);
}

/// Packets of another epoch are dropped, recirculated ones too; a new epoch begins with empty
/// registers.
#[test]
fn epochs_of_memory_begin_with_empty_registers() {
    let mut rig = Rig::with_block(Guards::ALL);
    assert!(rig.program.install(Now::default(), &config(0, 3)).is_err(), "an older epoch");
    assert!(rig.program.install(Now::default(), &config(2, 33)).is_err(), "33 nodes");
    let workers = Config { kind: GroupKind::Workers, ..config(2, 3) };
    assert!(rig.program.install(Now::default(), &workers).is_err());
    assert!(rig.program.peek(TAG).is_some());
    rig.program.install(Now::default(), &config(2, 3)).unwrap();
    assert!(rig.program.peek(TAG).is_none());
    assert_eq!(rig.request(Op::ReadMiss, 1, 1), None);
    let strangers = [Repr { place: 3, ..packet(Op::ReadMiss, 3, 1) }, {
        Repr { tag: Tag::new(32, 0), ..packet(Op::ReadMiss, 1, 1) }
    }];
    for stranger in strangers {
        assert_eq!(rig.send(&Repr { epoch: Epoch(2), ..stranger }), None);
    }
    let counters = rig.program.counters();
    assert_eq!((counters.dropped_other_epoch, counters.dropped_no_node), (1, 2));
    let mut bytes = Repr { epoch: Epoch(2), version: 1, ..packet(Op::Add, 0, 1) }.packet(&[]);
    let first = Ingress::first(Now::default(), addr(0), &rig.ports);
    let late = Ingress { passes: 1, metadata: Metadata([0, 1]), ..first };
    let verdict = rig.program.process(&late, &mut bytes);
    assert_eq!(verdict, Verdict::Drop(DropReason::OtherEpoch));
}

/// Packets that are in consecutive stages at the same time leave the registers as if they had
/// passed one after the other.
#[test]
fn concordia_packets_in_the_pipeline_do_not_mix() {
    let draw = |rng: &mut Rng| {
        let op = Op::ALL[rng.below(5) as usize];
        let ask = match rng.below(6) {
            0 => Ask::Unlock(rng.chance(1, 2)),
            1 => Ask::Insert(rng.below(2) as u8),
            2 => Ask::Look,
            3 => [Ask::Take, Ask::Forget][rng.below(2) as usize],
            _ => Ask::Request(op),
        };
        let drawn = packet(op, rng.below(3) as u8, rng.between(1, 4));
        let status = GlobalStatus::ALL[rng.below(4) as usize];
        let (tag, copyset) = (Tag(rng.below(3)), Copyset(rng.below(8) as u32));
        phv(ask, &Repr { status, copyset, tag, version: rng.between(1, 3), ..drawn })
    };
    for seed in 0..200 {
        let packets = || -> Vec<Phv> {
            let mut rng = Rng::new(seed);
            (0..32).map(|_| draw(&mut rng)).collect()
        };
        let layout = BlocksLayout { ways: 2, way_blocks: 2 };
        let mut in_turn = Stages::new(&layout, Guards::ALL);
        packets().iter_mut().for_each(|phv| in_turn.run(phv));
        let (mut staged, mut other) = (Stages::new(&layout, Guards::ALL), packets());
        for tick in 0..32 + usize::from(stages::STAGES) {
            for (index, phv) in other.iter_mut().enumerate() {
                if let Some(stage) = tick.checked_sub(index)
                    && stage < usize::from(stages::STAGES)
                {
                    staged.stage(stage as u8, phv);
                }
            }
        }
        assert!(in_turn.cells().eq(staged.cells()), "seed {seed}");
    }
}

/// No input crashes the switch, and malformed packets change no register.
#[test]
fn any_bytes_leave_a_memorys_switch_standing() {
    let mut rng = Rng::new(53);
    let mut rig = Rig::with_block(Guards::ALL);
    for _ in 0..200_000 {
        let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
        let data: &[u8] = if op.has_data() { &[0; 64] } else { &[] };
        let mut bytes = packet(op, rng.below(3) as u8, rng.below(8)).packet(data);
        for _ in 0..rng.below(8) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        let is_malformed = Repr::parse(&bytes).is_err();
        let before: Vec<u64> =
            if is_malformed { rig.program.stages.cells().collect() } else { Vec::new() };
        let metadata = Metadata([rng.below(8), 1]);
        let first = Ingress::first(Now::default(), addr(0), &rig.ports);
        let ingress = Ingress { passes: rng.below(2) as u8, metadata, ..first };
        let _ = rig.program.process(&ingress, &mut bytes);
        assert!(!is_malformed || rig.program.stages.cells().eq(before));
    }
}

/// With the default settings the program fits an ASIC: 393,216 blocks in twelve stages.
#[test]
fn concordia_fits_an_asic_by_itself() {
    let program = load(BlocksLayout::DEFAULT, Guards::ALL).unwrap();
    let report = program.describe();
    assert_eq!(report.excess(&concord_pisa::ASIC), None);
    assert_eq!((report.stages(), report.recirculations_max), (12, 1));
    assert_eq!(6 * BlocksLayout::DEFAULT.way_blocks, 393_216);
}

#[test]
fn blocks_that_no_switch_can_have_are_refused_in_one_line() {
    for layout in [
        BlocksLayout { ways: 0, way_blocks: 2 },
        BlocksLayout { ways: 7, way_blocks: 2 },
        BlocksLayout { ways: 1, way_blocks: 3 },
        BlocksLayout { ways: 1, way_blocks: 2 * WAY_BLOCKS_MAX },
    ] {
        let refused = load(layout, Guards::ALL).unwrap_err();
        assert_eq!(refused, LoadError::Blocks(BlocksError(layout)));
        let said: String = alloc::format!("{refused}");
        assert!(said.starts_with("the memory's switch") && !said.contains('\n'), "{said}");
    }
}
