//! Nodes through epochs: nodes that die, join, leave, or are cut off. The switch has no room for
//! blocks here, and passes everything on.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

#[cfg(feature = "mutants")]
use concord_core::Guard;
use concord_core::{Instant, MS};
use concord_wire::Kind;
use concord_wire::concordia::home_place;
use concord_wire::control::{Config, GroupKind, Member, Membership, Message as _, Program};

use super::*;

const LEASE_MS: u64 = 100;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

/// The address of a node.
fn place(node: u16) -> Addr {
    Addr { ip: 3, port: node }
}

/// Nodes by number, the packets in flight, and the outcomes of calls.
struct Rig {
    ms: u64,
    nodes: BTreeMap<u16, MemoryNode>,
    guards: Guards,
    config: Option<Config>,
    flights: Sent,
    told: BTreeMap<u64, Result<Vec<u8>, Failure>>,
    /// Whether a packet is lost.
    loses: fn(&Addr, &Repr) -> bool,
    calls: u64,
    /// The number of items that were sent.
    tells: usize,
}

impl Rig {
    /// Nodes 1 to 3 in epoch 1, with their leases.
    fn new(guards: Guards) -> Rig {
        let mut rig = Rig {
            ms: 1,
            nodes: BTreeMap::new(),
            guards,
            config: None,
            flights: Sent::new(),
            told: BTreeMap::new(),
            loses: |_, _| false,
            calls: 0,
            tells: 0,
        };
        (1..=3).for_each(|node| rig.start(node));
        rig.epoch(&[1, 2, 3], &[]);
        rig.runs(2 * LEASE_MS);
        assert!(rig.nodes.values().all(|node| node.node().is_some()));
        rig
    }

    fn start(&mut self, node: u16) {
        let settings = MemberSettings {
            node: NodeId(node),
            incarnation: u64::from(node),
            addr: place(node),
            controller: Addr { ip: 4, port: 4 },
            group: GroupId(0),
            block_bytes: 512,
            range_blocks: 16,
            cache_sets: 1,
            cache_ways: 4,
            lanes: 2,
            coherence: Coherence::Concordia,
            lease_ns: LEASE_MS * MS,
            guards: self.guards,
        };
        self.nodes.insert(node, MemoryNode::new(at(self.ms), settings).unwrap());
    }

    /// Sends the configuration of the next epoch to all nodes: its members, and the nodes that
    /// leave.
    fn epoch(&mut self, members: &[u16], joining: &[u16]) {
        let member =
            |node: &u16| Member { node: *node, incarnation: u64::from(*node), addr: place(*node) };
        let epoch = self.config.as_ref().map_or(1, |config| config.epoch + 1);
        let config = Config {
            epoch,
            group: GroupId(0),
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: GroupKind::Memory,
            program: Program::Concordia,
            members: members.iter().map(member).collect(),
            joining: joining.iter().map(member).collect(),
        };
        self.config = Some(config);
        let all: Vec<u16> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|node| self.hears(node));
    }

    /// Sends the newest configuration to a node.
    fn hears(&mut self, node: u16) {
        let config = self.config.clone().unwrap();
        for part in config.parts() {
            let mut bytes = Vec::new();
            Membership::Configure(part).emit_in(GroupId(0), &mut bytes);
            self.comes(place(node), bytes);
        }
    }

    fn comes(&mut self, to: Addr, mut bytes: Vec<u8>) {
        if to == SWITCH {
            return self.passes(bytes);
        }
        let Some(node) = self.nodes.get_mut(&to.port).filter(|_| to.ip == 3) else { return };
        node.handle(at(self.ms), SWITCH, &mut bytes, &mut self.flights);
    }

    /// A switch without room passes a packet on.
    fn passes(&mut self, bytes: Vec<u8>) {
        let Ok((packet, _)) = Repr::parse(&bytes) else { return };
        let config = self.config.as_ref().unwrap();
        let members: Vec<u16> = config.members.iter().map(|m| m.node).collect();
        let home = home_place(packet.tag.range(), &members).unwrap();
        if packet.epoch.0 == config.epoch && (packet.op.is_request() || packet.op == Op::Unlock) {
            let packet = Repr { is_first: packet.op.is_request(), ..packet };
            self.flights.push((place(members[usize::from(home)]), packet.packet(&[])));
        } else if packet.op == Op::Add {
            let full = Repr { op: Op::Added, outcome: Outcome::Full, ..packet };
            self.flights.push((place(members[usize::from(home)]), full.packet(&[])));
        }
    }

    /// Lets time pass; packets arrive at once.
    fn runs(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            for node in self.nodes.values_mut() {
                node.tick(at(self.ms), &mut self.flights);
            }
            for _ in 0..1_000 {
                if self.flights.is_empty() {
                    break;
                }
                let (to, bytes) = self.flights.remove(0);
                let packet = Repr::parse(&bytes).ok().map(|(packet, _)| packet);
                let tells = packet.is_some_and(|p| matches!(p.op, Op::Tell | Op::Mark));
                self.tells += usize::from(tells);
                let is_coherence = concord_wire::kind(&bytes) == Ok(Kind::Concordia);
                if !is_coherence || !packet.is_some_and(|packet| (self.loses)(&to, &packet)) {
                    self.comes(to, bytes);
                }
            }
            for node in self.nodes.values_mut() {
                while let Some(done) = node.poll_done() {
                    self.told.insert(done.id, done.result);
                }
            }
        }
    }

    /// Makes a call at a node; returns its number.
    fn begins(&mut self, node: u16, tag: Tag, access: Access) -> u64 {
        self.calls += 1;
        let (id, now) = (self.calls, at(self.ms));
        let own = self.nodes.get_mut(&node).unwrap();
        own.call(now, Call { id, tag, access }, &mut self.flights);
        id
    }

    /// The result of reading a byte at a node within the duration of a lease.
    fn read(&mut self, node: u16, tag: Tag) -> Option<Result<u8, Failure>> {
        let id = self.begins(node, tag, Access::Read { offset_bytes: 0, size_bytes: 1 });
        self.runs(LEASE_MS / 2);
        self.told.get(&id).cloned().map(|result| result.map(|bytes| bytes[0]))
    }

    /// A node writes a byte, and then has the only copy of the block.
    fn write(&mut self, node: u16, tag: Tag, byte: u8) {
        let data = alloc::vec![byte];
        let id = self.begins(node, tag, Access::Write { offset_bytes: 0, data });
        self.runs(LEASE_MS / 2);
        assert_eq!(self.told.get(&id), Some(&Ok(Vec::new())));
    }

    fn kill(&mut self, node: u16) {
        self.nodes.remove(&node);
    }

    fn is_open(&self, node: u16) -> bool {
        let epoch = self.config.as_ref().unwrap().epoch;
        self.nodes.get(&node).is_some_and(|n| n.epoch() == epoch && n.node().is_some())
    }
}

/// A block of node 1's range, and one of node 2's.
const A: Tag = Tag(0);
const B: Tag = Tag(1 << 48);

/// Another node takes over the range of one that died: blocks with a copy at any member survive,
/// the others are lost until they are renewed, and never read as zeroes or an old value before that
/// (item 3).
#[test]
fn c10_what_a_copy_is_left_of_outlives_its_home() {
    let mut rig = Rig::new(Guards::ALL);
    rig.write(2, A, 7);
    rig.kill(1);
    rig.epoch(&[2, 3], &[]);
    rig.runs(2 * LEASE_MS);
    assert_eq!(rig.read(3, A), Some(Ok(7)));
    let other = Tag::new(0, 1);
    assert_eq!(rig.read(3, other), Some(Err(Failure::Lost)));
    // Node 1 returns with nothing, and gets its range back.
    rig.start(1);
    rig.epoch(&[2, 3, 1], &[]);
    rig.runs(2 * LEASE_MS);
    assert_eq!((rig.read(2, A), rig.read(2, other)), (Some(Ok(7)), Some(Err(Failure::Lost))));
    let now = at(rig.ms);
    assert!(rig.nodes.get_mut(&1).unwrap().renew(now, other));
    assert_eq!(rig.read(2, other), Some(Ok(0)));
}

/// A block that a dead member had changed, or may have, is lost; one that it only read is not.
#[test]
fn c10_what_a_dead_node_may_have_changed_is_lost() {
    let after = |guards| {
        let mut rig = Rig::new(guards);
        rig.write(3, A, 1);
        assert_eq!(rig.read(3, B), Some(Ok(0)));
        rig.kill(3);
        rig.epoch(&[1, 2], &[]);
        rig.runs(2 * LEASE_MS);
        (rig.read(2, A).unwrap(), rig.read(1, B).unwrap())
    };
    assert_eq!(after(Guards::ALL), (Err(Failure::Lost), Ok(0)));
    #[cfg(feature = "mutants")]
    {
        let without = after(Guards::without(concord_core::Guard::LostKnown));
        assert_eq!(without, (Ok(0), Ok(0)), "an acknowledged write is gone, and nobody says so");
    }
}

/// A copy that was given to an event that still waits for it is reported, too.
#[test]
fn c10_a_copy_on_its_way_outlives_its_epoch() {
    let after = |guards| {
        let mut rig = Rig::new(guards);
        rig.write(2, A, 7);
        rig.loses = |to, packet| packet.op == Op::Data && *to == place(3);
        let access = Access::Write { offset_bytes: 1, data: alloc::vec![1] };
        let _ = rig.begins(3, A, access);
        rig.runs(10);
        rig.loses = |_, _| false;
        // The switch is replaced: all members stay.
        rig.epoch(&[1, 2, 3], &[]);
        rig.runs(2 * LEASE_MS);
        rig.read(1, A).unwrap()
    };
    assert_eq!(after(Guards::ALL), Ok(7));
    #[cfg(feature = "mutants")]
    assert_eq!(
        after(Guards::without(concord_core::Guard::InTransit)),
        Ok(0),
        "the only copy is gone"
    );
}

/// A home that goes on without a member's report has an old value.
#[test]
fn c10_a_home_waits_for_all_reports() {
    let after = |guards| {
        let mut rig = Rig::new(guards);
        rig.write(3, A, 7);
        rig.loses = |_, packet| packet.op == Op::Tell && packet.from == NodeId(3);
        rig.epoch(&[1, 2, 3], &[]);
        rig.runs(2 * LEASE_MS);
        rig.loses = |_, _| false;
        rig.runs(2 * LEASE_MS);
        rig.read(2, A).unwrap()
    };
    assert_eq!(after(Guards::ALL), Ok(7));
    #[cfg(feature = "mutants")]
    assert_eq!(after(Guards::without(concord_core::Guard::AllReports)), Ok(0), "an old value");
}

/// A node that hears no other answers nothing from its cache once its lease has ended.
#[test]
fn c9_a_cached_copy_answers_with_a_lease_alone() {
    let after = |guards| {
        let mut rig = Rig::new(guards);
        assert_eq!(rig.read(2, A), Some(Ok(0)));
        rig.kill(1);
        rig.kill(3);
        assert_eq!(rig.read(2, A), Some(Ok(0)), "it holds a lease");
        rig.runs(LEASE_MS);
        rig.read(2, A)
    };
    assert_eq!(after(Guards::ALL), None);
    #[cfg(feature = "mutants")]
    assert_eq!(
        after(Guards::without(concord_core::Guard::MemoryLease)),
        Some(Ok(0)),
        "others may have gone on"
    );
}

/// A timer does not serve waiting calls either, and a node without a lease does not spin.
#[test]
fn c9_a_node_without_a_lease_stands_still() {
    let mut rig = Rig::new(Guards::ALL);
    assert_eq!(rig.read(2, A), Some(Ok(0)));
    rig.loses = |_, _| true;
    // One call waits for the only copy, one for any copy.
    let write = rig.begins(2, A, Access::FetchAdd { offset_bytes: 0, add: 1 });
    let read = rig.begins(2, B, Access::Read { offset_bytes: 0, size_bytes: 1 });
    rig.kill(1);
    rig.kill(3);
    rig.runs(2 * LEASE_MS);
    let late = rig.begins(2, A, Access::Read { offset_bytes: 0, size_bytes: 1 });
    rig.runs(2 * LEASE_MS);
    assert!([write, read, late].iter().all(|call| !rig.told.contains_key(call)));
    assert!(rig.nodes[&2].deadline().at > at(rig.ms).instant);
}

/// No node opens an epoch while a node outside may still answer from its cache.
#[test]
fn c9_an_epoch_waits_for_the_leases_of_outsiders() {
    let open_after = |guards| {
        let mut rig = Rig::new(guards);
        // Node 3 keeps running, and hears nothing.
        rig.kill(3);
        rig.epoch(&[1, 2], &[]);
        (1..=2 * LEASE_MS).find(|_| {
            rig.runs(1);
            rig.is_open(1) && rig.is_open(2)
        })
    };
    assert!(open_after(Guards::ALL).unwrap() > LEASE_MS / 2);
    #[cfg(feature = "mutants")]
    assert!(open_after(Guards::without(concord_core::Guard::MemoryOutsiders)).unwrap() < 3);
}

/// A request that the owner of another epoch forwarded invalidates nothing (an old switch wakes
/// up).
#[test]
fn c11_packets_of_another_epoch_do_nothing() {
    let copies = |guards| {
        let mut rig = Rig::new(guards);
        rig.epoch(&[1, 2, 3], &[]);
        rig.runs(2 * LEASE_MS);
        assert_eq!(rig.read(2, A), Some(Ok(0)));
        let (is_locked, status, copyset) = (true, GlobalStatus::Shared, Copyset(2));
        let old = Repr {
            place: 2,
            number: 9,
            is_locked,
            status,
            copyset,
            version: 5,
            ..Repr::new(Op::WriteShared, A)
        };
        rig.comes(place(2), Repr { epoch: Epoch(1), ..old }.packet(&[]));
        rig.nodes[&2].node().unwrap().lines().count()
    };
    assert_eq!(copies(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    assert_eq!(copies(Guards::without(concord_core::Guard::CoherenceEpoch)), 0);
}

/// A node that leaves hands over its range and its changes: nothing is lost.
#[test]
fn whoever_leaves_hands_over_what_it_has() {
    let mut rig = Rig::new(Guards::ALL);
    rig.write(2, A, 7);
    rig.write(1, B, 8);
    rig.write(2, Tag::new(1, 3), 9);
    let now = at(rig.ms);
    rig.nodes.get_mut(&2).unwrap().leave(now);
    assert_eq!(rig.read(2, A), Some(Err(Failure::NoNode)));
    assert!(!rig.nodes[&2].has_left());
    rig.epoch(&[1, 3], &[2]);
    rig.runs(LEASE_MS / 2);
    assert!(rig.nodes[&2].has_left(), "and nobody waits for its lease");
    rig.kill(2);
    rig.runs(LEASE_MS);
    for (tag, value) in [(A, 7), (B, 8), (Tag::new(1, 3), 9), (Tag::new(1, 4), 0)] {
        assert_eq!(rig.read(3, tag), Some(Ok(value)), "{tag:?}");
    }
}

/// A range that was reported to another home, in an epoch that was never opened, is not lost with
/// that home: the old home still has it.
#[test]
fn bug_25_41_an_epoch_that_nobody_opened_takes_no_range_away() {
    let mut rig = Rig::new(Guards::ALL);
    rig.write(2, A, 7);
    rig.write(2, Tag::new(1, 1), 8);
    // Node 4 would be the home of no range; node 1 dies, and 3 becomes the home of its range.
    rig.kill(1);
    rig.epoch(&[3, 2], &[]);
    rig.runs(10);
    assert!(!rig.is_open(2) && !rig.is_open(3), "node 1 holds a lease");
    rig.start(4);
    rig.epoch(&[3, 2, 4], &[]);
    rig.runs(2 * LEASE_MS);
    assert_eq!(rig.read(4, A), Some(Ok(7)));
    assert_eq!(rig.read(4, Tag::new(1, 1)), Some(Ok(8)));
    assert_eq!(rig.read(4, Tag::new(1, 2)), Some(Ok(0)));
}

/// Node 4 has just begun, and is not ready: no node opens epoch 2, and nothing is lost as 1 leaves.
#[test]
fn bug_25_44_one_that_is_not_ready_shows_that_nobody_opened() {
    let mut rig = Rig::new(Guards::ALL);
    let moved = Tag::new(3, 1);
    rig.write(2, A, 7);
    rig.write(2, moved, 8);
    rig.start(4);
    rig.epoch(&[1, 2, 3, 4], &[]);
    rig.runs(10);
    assert!((1..=4).all(|node| !rig.is_open(node)));
    let now = at(rig.ms);
    rig.nodes.get_mut(&1).unwrap().leave(now);
    rig.epoch(&[2, 3, 4], &[1]);
    rig.runs(3 * LEASE_MS);
    assert_eq!([A, moved].map(|tag| rig.read(4, tag)), [7, 8].map(|value| Some(Ok(value))));
}

/// Node 2 leaves, and has reported to the others, which write, and die before it hears of that: its
/// third report is old. Returns whether node 4 takes it.
fn old_report_counts(guards: Guards) -> bool {
    let mut rig = Rig::new(guards);
    rig.write(2, A, 7);
    let now = at(rig.ms);
    rig.nodes.get_mut(&2).unwrap().leave(now);
    rig.loses = |to, packet| packet.op == Op::Ready && *to == place(2);
    rig.epoch(&[1, 3], &[2]);
    rig.runs(2 * LEASE_MS);
    assert!(!rig.nodes[&2].has_left());
    rig.write(1, A, 9);
    [1, 3].into_iter().for_each(|node| rig.kill(node));
    rig.start(4);
    rig.epoch(&[4], &[2]);
    rig.runs(2 * LEASE_MS);
    match rig.read(4, A) {
        Some(Err(Failure::Lost)) => false,
        Some(Ok(7)) => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn c10_what_a_node_tells_that_others_went_on_without_is_old() {
    assert!(!old_report_counts(Guards::ALL));
}

#[cfg(feature = "mutants")]
#[test]
fn c10_without_the_guard_an_old_value_comes_back() {
    assert!(old_report_counts(Guards::without(Guard::UnopenedEpoch)));
}

/// A member with a long report sends each item about once, if nothing is lost.
#[test]
fn bug_25_42_items_are_told_once_if_nothing_is_lost() {
    let mut rig = Rig::new(Guards::ALL);
    for block in 0..16 {
        rig.write(1, Tag::new(0, block), 1);
    }
    let now = at(rig.ms);
    rig.nodes.get_mut(&1).unwrap().leave(now);
    rig.tells = 0;
    rig.epoch(&[2, 3], &[1]);
    rig.runs(LEASE_MS / 2);
    assert!(rig.nodes[&1].has_left() && rig.is_open(2) && rig.is_open(3));
    assert!((16..=64).contains(&rig.tells), "{}", rig.tells);
}

/// Whatever members send before, while and after an epoch begins, the node does not crash.
#[test]
fn any_bytes_leave_a_node_in_any_epoch_standing() {
    let mut rng = Rng::new(55);
    let mut rig = Rig::new(Guards::ALL);
    for round in 0..60 {
        rig.write(2, Tag::new(round % 3, 0), 1);
        rig.loses = |_, packet| packet.op.is_of_beginnings();
        rig.epoch(&[1, 2, 3], &[]);
        for _ in 0..200 {
            let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
            let data: &[u8] = if op.has_data() { &[1; 512] } else { &[] };
            let packet = Repr {
                from: NodeId(rng.between(1, 4) as u16),
                epoch: Epoch(u32::from(round) + 1 + rng.below(3) as u32),
                provider: Some(rng.below(9) as u8),
                copyset: Copyset(rng.below(5) as u32),
                version: rng.below(4),
                is_locked: rng.chance(1, 2),
                is_exclusive: rng.chance(1, 2),
                is_first: rng.chance(1, 2),
                ..Repr::new(op, Tag::new(rng.below(34) as u16, rng.below(3)))
            };
            let mut bytes = packet.packet(data);
            if rng.chance(1, 4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            rig.comes(place(2), bytes);
            rig.flights.clear();
        }
        rig.loses = |_, _| false;
        // Invented items are forgotten with the epoch.
        rig.kill(2);
        rig.epoch(&[1, 3], &[]);
        rig.runs(2 * LEASE_MS);
        rig.start(2);
        rig.epoch(&[1, 3, 2], &[]);
        rig.runs(2 * LEASE_MS);
        for range in 0..3 {
            let now = at(rig.ms);
            rig.nodes.get_mut(&(range + 1)).unwrap().renew(now, Tag::new(range, 0));
        }
    }
}
