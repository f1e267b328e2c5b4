//! Concordia's packets: between the nodes of a shared memory, and between these and the switch that
//! keeps their caches coherent (Concordia §5, table 1).
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | the fields that all headers share: the sending node, and its epoch |
//! | 16 | 1 + 1 | the requester: its place among the members, and its lane |
//! | 18 | 1 | the outcome, in an ACK |
//! | 19 | 1 | flags: 1 the block is locked for the event; 2 the event holds the write lock; 4 the switch has seen no earlier copy of this packet |
//! | 20 | 1 | global status |
//! | 21 | 1 | the place of the data provider, 255 if there is none. In an ADDED with the outcome "full": the range of the block that occupies the cell |
//! | 22 | 2 | in packets with data: where the data begins in the block, in units of 64 bytes |
//! | 24 | 8 | the number of the event, counted by the requester's lane; in moves, the number of the move, counted by the home; in HEAT and DISPLACE, a count of requests |
//! | 32 | 8 | tag: range (16 bits), block (48 bits) |
//! | 40 | 8 | the version of the block (48 bits). In a request that the switch passes on to a home: the number of that home's newest move. In an ADDED with the outcome "full": the number of the block that occupies the cell |
//! | 48 | 4 | copyset: a bit for each place. In TELL, MARK and TOLD: the number of the item |
//! | 52 | 4 | reserved, 0 |
//! | 56 | 0 to 1,024 | data, in DATA, WRITE_BACK and TELL |

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};

use crate::byte_enum::byte_enum;
use crate::header::{Header, Kind, set_length};
use crate::{GroupId, WireError, u16_at, u32_at, u64_at};

/// The maximum number of nodes of a memory: a copyset has a bit for each (§6).
pub const NODES_MAX: usize = 32;
/// The maximum number of requesters (lanes) of a node. Each has at most one event in progress.
pub const LANES_MAX: usize = 32;
/// The length of a packet without its data, in bytes.
pub const HEAD_BYTES: usize = 56;
/// The maximum amount of data in a packet, in bytes.
pub const FRAGMENT_BYTES_MAX: usize = 1_024;
/// The lengths that blocks can have, in bytes.
pub const BLOCK_BYTES: [usize; 4] = [512, 1_024, 2_048, 4_096];
/// The unit of the data's offset in its block, in bytes.
pub const OFFSET_BYTES: usize = 64;
/// The highest version of a block, and the highest number of an event (48 bits each).
pub const NUMBER_MAX: u64 = (1 << 48) - 1;
/// The byte in place of the data provider's place if there is no data provider.
const NOBODY: u8 = u8::MAX;

const FLAG_LOCKED: u8 = 1;
const FLAG_EXCLUSIVE: u8 = 2;
const FLAG_FIRST: u8 = 4;

/// The offsets of the fields, in bytes.
mod at {
    pub(super) const PLACE: usize = 16;
    pub(super) const LANE: usize = 17;
    pub(super) const OUTCOME: usize = 18;
    pub(super) const FLAGS: usize = 19;
    pub(super) const STATUS: usize = 20;
    pub(super) const PROVIDER: usize = 21;
    pub(super) const OFFSET: usize = 22;
    pub(super) const NUMBER: usize = 24;
    pub(super) const TAG: usize = 32;
    pub(super) const VERSION: usize = 40;
    pub(super) const COPYSET: usize = 48;
    pub(super) const RESERVED: usize = 52;
    pub(super) const DATA: usize = super::HEAD_BYTES;
}

byte_enum! {
    /// The operation of a packet. The first five begin an event, and go from the requester to the
    /// switch (table 1).
    Op {
        /// READ-MISS: the requester has no copy of the block, and reads it.
        ReadMiss = 1,
        /// WRITE-MISS: the requester has no copy of the block, and writes it.
        WriteMiss = 2,
        /// WRITE-SHARED: the requester has a copy that others may have too, and writes it.
        WriteShared = 3,
        /// EVICT-SHARED: the requester gives up a copy that others may have too.
        EvictShared = 4,
        /// EVICT-MODIFIED: the requester gives up the only copy.
        EvictModified = 5,
        /// To the requester, from a cache agent, the switch or the home: the copy was invalidated,
        /// or the request was granted, or it failed ([`Outcome`]).
        Ack = 6,
        /// To the requester, from the data provider or the home: a part of the block.
        Data = 7,
        /// From the requester to the home: a part of the block, which the home is to store.
        WriteBack = 8,
        /// From the home to the requester: the home has stored all parts of the WRITE_BACK.
        Written = 9,
        /// From the requester to the owner of the block: the event ends, with this status and
        /// copyset.
        Unlock = 10,
        /// From the owner to the requester: the event has ended, and its lane is free.
        Unlocked = 11,
        /// ADD-TO-SWITCH: the home hands the block over to the switch, with its status, version and
        /// copyset (§5.2.1).
        Add = 12,
        /// The switch's answer to an ADD: it owns the block, or has no room for it.
        Added = 13,
        /// REMOVE-FROM-SWITCH: the home takes the block back. It asks the switch to lock the block
        /// and to send its metadata (§5.2.1).
        Remove = 14,
        /// The switch's answer to a REMOVE: the block is locked, and this is its status, version
        /// and copyset; or the block is busy.
        Removed = 15,
        /// The home has received the metadata: the switch removes the block from its tables.
        Forget = 16,
        /// The switch has removed the block.
        Forgotten = 17,
        /// From a cache agent to the home: how many requests reached the agent's copy of the block
        /// in the last window (§5.2.2).
        Heat = 18,
        /// From a home to another one: your block occupies the cell that a block of this heat
        /// needs.
        Displace = 19,
        /// While an epoch begins, from a member to a home: a part of a block that the member has.
        Tell = 20,
        /// While an epoch begins, from a member to a home: an item without data.
        Mark = 21,
        /// The home has received the item of a TELL or MARK.
        Told = 22,
        /// To all members: the sender has rebuilt the ranges whose home it is.
        Ready = 23,
    }
}

impl Op {
    /// Whether the operation begins an event.
    #[must_use]
    #[inline]
    pub const fn is_request(self) -> bool {
        (self as u8) <= Op::EvictModified as u8
    }

    /// Whether the request takes the read lock; all other requests take the write lock.
    #[must_use]
    #[inline]
    pub const fn is_shared(self) -> bool {
        matches!(self, Op::ReadMiss)
    }

    /// Whether the request gives up a copy. An eviction may be abandoned: another event may take
    /// the copy first.
    #[must_use]
    #[inline]
    pub const fn is_eviction(self) -> bool {
        matches!(self, Op::EvictShared | Op::EvictModified)
    }

    /// Whether a request is valid in the state of its block (table 2): `has_copy` says whether the
    /// requester is in the copyset. Operations that are no requests are always valid.
    #[must_use]
    #[inline]
    pub const fn is_valid(self, has_copy: bool, status: GlobalStatus) -> bool {
        match self {
            Op::ReadMiss | Op::WriteMiss => !has_copy,
            Op::WriteShared | Op::EvictShared => has_copy && status.is_shared(),
            Op::EvictModified => has_copy && matches!(status, GlobalStatus::Modified),
            _ => true,
        }
    }

    /// Whether the packet carries data.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Op::Data | Op::WriteBack | Op::Tell)
    }

    /// Whether members send it to each other while an epoch begins.
    #[must_use]
    pub const fn is_of_beginnings(self) -> bool {
        matches!(self, Op::Tell | Op::Mark | Op::Told | Op::Ready)
    }
}

byte_enum! {
    /// The outcome of a request.
    Outcome {
        /// Success: the copy was invalidated, or the request was granted.
        Done = 0,
        /// The block is locked by another event: the requester tries again.
        Busy = 1,
        /// The request is not valid in the state of the block (table 2).
        Invalid = 2,
        /// The owner has no room for the block.
        Full = 3,
        /// The newest value of the block was at a node that is gone.
        Lost = 4,
    }
}

byte_enum! {
    /// The global status of a block: which copies exist, and whether the home's value is current
    /// (§4).
    GlobalStatus {
        /// No node has a copy; the home has the newest value.
        Unshared = 0,
        /// One or more nodes have read-only copies; the home has the newest value, too.
        Shared = 1,
        /// One node has the only copy, and may write it; the home's value may be stale.
        Modified = 2,
        /// One or more nodes have read-only copies, and the home's value is stale (not in the
        /// paper, trap C1).
        SharedStale = 3,
    }
}

impl GlobalStatus {
    /// Whether a WRITE-SHARED or an EVICT-SHARED is valid in this status.
    #[must_use]
    #[inline]
    pub const fn is_shared(self) -> bool {
        matches!(self, GlobalStatus::Shared | GlobalStatus::SharedStale)
    }
}

/// A set of places: the nodes that hold a copy of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Copyset(pub u32);

impl Copyset {
    /// The set of one place; the empty set if `place` is [`NODES_MAX`] or more.
    #[must_use]
    #[inline]
    pub const fn of(place: u8) -> Copyset {
        if place < NODES_MAX as u8 { Copyset(1 << place) } else { Copyset(0) }
    }

    /// Whether the set contains `place`.
    #[must_use]
    #[inline]
    pub const fn has(self, place: u8) -> bool {
        self.0 & Copyset::of(place).0 != 0
    }

    /// The union with `other`.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Copyset) -> Copyset {
        Copyset(self.0 | other.0)
    }

    /// The places that are not in `other`.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Copyset) -> Copyset {
        Copyset(self.0 & !other.0)
    }

    /// Whether the set is empty.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// A place of the set, chosen by a hash: the bitmap is rotated by the hash, and its lowest bit
    /// is taken. `None` if the set is empty.
    #[must_use]
    #[inline]
    pub const fn choose(self, hash: u32) -> Option<u8> {
        let turn = hash % NODES_MAX as u32;
        let rotated = self.0.rotate_right(turn);
        if rotated == 0 {
            return None;
        }
        Some(((rotated.trailing_zeros() + turn) % NODES_MAX as u32) as u8)
    }
}

/// Removes and returns the places, lowest first.
impl Iterator for Copyset {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as u8)?;
        *self = self.without(Copyset::of(lowest));
        Some(lowest)
    }
}

/// The name of a block: its range, which has a home, and the block's number in that range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag of a block in a range; the number is truncated to 48 bits.
    #[must_use]
    pub const fn new(range: u16, block: u64) -> Tag {
        Tag((range as u64) << 48 | block & NUMBER_MAX)
    }

    /// The range of the block.
    #[must_use]
    #[inline]
    pub const fn range(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The place of a range's home, among members with these node numbers. The home of range n is node
/// n + 1 if that node is a member; otherwise the range falls to the member at place n modulo the
/// number of members. `None` if there are no members, or no such range.
#[must_use]
pub fn home_place(range: u16, members: &[u16]) -> Option<u8> {
    let range = usize::from(range);
    if range >= NODES_MAX || members.is_empty() {
        return None;
    }
    let own = members.iter().position(|node| usize::from(*node) == range + 1);
    Some(own.unwrap_or(range % members.len()) as u8)
}

/// The meaning of a packet, without its data. A field that the operation does not use is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repr {
    /// The operation.
    pub op: Op,
    /// The group of nodes that form the memory.
    pub group: GroupId,
    /// The node that sends the packet.
    pub from: NodeId,
    /// The epoch of the sender.
    pub epoch: Epoch,
    /// The place of the requester.
    pub place: u8,
    /// The lane of the requester.
    pub lane: u8,
    /// The outcome of the request.
    pub outcome: Outcome,
    /// Whether the owner has locked the block for the event. An agent serves only requests that
    /// hold the lock.
    pub is_locked: bool,
    /// Whether the switch has seen no earlier copy of this request. Only the first copy may take a
    /// lock at the home.
    pub is_first: bool,
    /// Whether an UNLOCK releases the write lock, rather than the read lock.
    pub is_exclusive: bool,
    /// The status of the block; in an UNLOCK, its new status.
    pub status: GlobalStatus,
    /// The place of the cache that sends the data; `None` if the home sends it.
    pub provider: Option<u8>,
    /// The offset of the data in its block, in bytes: a multiple of [`OFFSET_BYTES`].
    pub offset_bytes: usize,
    /// The number of the event, counted by the requester's lane; of a move, counted by the home.
    pub number: u64,
    /// The block.
    pub tag: Tag,
    /// The version of the block.
    pub version: u64,
    /// The copyset of the block; in an UNLOCK, its new copyset.
    pub copyset: Copyset,
}

impl Repr {
    /// A packet about a block, with all other fields zero.
    #[must_use]
    pub const fn new(op: Op, tag: Tag) -> Repr {
        Repr {
            op,
            group: GroupId::FIRST,
            from: NodeId(0),
            epoch: Epoch(0),
            place: 0,
            lane: 0,
            outcome: Outcome::Done,
            is_locked: false,
            is_first: false,
            is_exclusive: false,
            status: GlobalStatus::Unshared,
            provider: None,
            offset_bytes: 0,
            number: 0,
            tag,
            version: 0,
            copyset: Copyset(0),
        }
    }

    /// Parses a packet; returns its meaning and the data that follows its head.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Concordia, HEAD_BYTES)?;
        let op = Op::from_byte(header.op).ok_or(WireError::Op)?;
        let data = &b[at::DATA..];
        let offset_bytes = usize::from(u16_at(b, at::OFFSET)) * OFFSET_BYTES;
        let has_room = data.len() <= FRAGMENT_BYTES_MAX
            && offset_bytes + data.len() <= BLOCK_BYTES[3]
            && data.is_empty() != op.has_data();
        let flags = b[at::FLAGS];
        let (place, lane, provider) = (b[at::PLACE], b[at::LANE], b[at::PROVIDER]);
        let is_place = |place: u8| usize::from(place) < NODES_MAX;
        let has_places = is_place(place)
            && usize::from(lane) < LANES_MAX
            && (provider == NOBODY || is_place(provider));
        let (number, version) = (u64_at(b, at::NUMBER), u64_at(b, at::VERSION));
        let has_numbers = number <= NUMBER_MAX && version <= NUMBER_MAX;
        let is_clean = flags & !(FLAG_LOCKED | FLAG_EXCLUSIVE | FLAG_FIRST) == 0;
        if !has_room || !has_places || !has_numbers || !is_clean || u32_at(b, at::RESERVED) != 0 {
            return Err(WireError::Field);
        }
        let repr = Repr {
            op,
            group: header.group,
            from: header.node,
            epoch: header.epoch,
            place,
            lane,
            outcome: Outcome::from_byte(b[at::OUTCOME]).ok_or(WireError::Field)?,
            is_locked: flags & FLAG_LOCKED != 0,
            is_first: flags & FLAG_FIRST != 0,
            is_exclusive: flags & FLAG_EXCLUSIVE != 0,
            status: GlobalStatus::from_byte(b[at::STATUS]).ok_or(WireError::Field)?,
            provider: (provider != NOBODY).then_some(provider),
            offset_bytes,
            number,
            tag: Tag(u64_at(b, at::TAG)),
            version,
            copyset: Copyset(u32_at(b, at::COPYSET)),
        };
        Ok((repr, data))
    }

    /// The head of a packet that carries `data_bytes` bytes of data.
    #[must_use]
    pub fn head(&self, data_bytes: usize) -> [u8; HEAD_BYTES] {
        let mut b = [0; HEAD_BYTES];
        let header = Header::new(Kind::Concordia, self.op as u8);
        let header = Header { group: self.group, node: self.from, epoch: self.epoch, ..header };
        let common = header.bytes(HEAD_BYTES + data_bytes);
        b[..common.len()].copy_from_slice(&common);
        b[at::PLACE] = self.place;
        b[at::LANE] = self.lane;
        b[at::OUTCOME] = self.outcome as u8;
        b[at::FLAGS] = if self.is_locked { FLAG_LOCKED } else { 0 }
            | if self.is_exclusive { FLAG_EXCLUSIVE } else { 0 }
            | if self.is_first { FLAG_FIRST } else { 0 };
        b[at::STATUS] = self.status as u8;
        b[at::PROVIDER] = self.provider.unwrap_or(NOBODY);
        let offset = (self.offset_bytes / OFFSET_BYTES) as u16;
        let mut put = |at: usize, field: &[u8]| b[at..at + field.len()].copy_from_slice(field);
        put(at::OFFSET, &offset.to_be_bytes());
        put(at::NUMBER, &self.number.to_be_bytes());
        put(at::TAG, &self.tag.0.to_be_bytes());
        put(at::VERSION, &self.version.to_be_bytes());
        put(at::COPYSET, &self.copyset.0.to_be_bytes());
        b
    }

    /// Writes the head of a packet without data to the beginning of `out`, and returns its length
    /// in bytes; `None` if it does not fit.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        out.get_mut(..HEAD_BYTES)?.copy_from_slice(&self.head(0));
        Some(HEAD_BYTES)
    }

    /// The bytes of the packet with its data.
    ///
    /// # Panics
    /// If the data is longer than [`FRAGMENT_BYTES_MAX`]: the sender splits a block first.
    #[must_use]
    pub fn packet(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + data.len());
        bytes.extend_from_slice(&self.head(data.len()));
        bytes.extend_from_slice(data);
        set_length(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(Repr, Vec<u8>)> {
        let numbered = |(at, op): (usize, &Op)| {
            let provider = (at % 2 == 0).then_some(31);
            let statuses = GlobalStatus::ALL;
            let repr = Repr {
                group: GroupId(3),
                from: NodeId(7),
                epoch: Epoch(5),
                place: (3 * at % NODES_MAX) as u8,
                lane: 31 - at as u8,
                outcome: Outcome::ALL[at % Outcome::ALL.len()],
                is_locked: at % 2 == 1,
                is_first: at % 5 == 2,
                is_exclusive: at % 3 == 1,
                status: statuses[at % statuses.len()],
                provider,
                number: NUMBER_MAX - at as u64,
                version: 1 << 40 | at as u64,
                copyset: Copyset(0x8000_0001),
                ..Repr::new(*op, Tag::new(0x0102, 0x0304_0506_0708))
            };
            let data =
                if op.has_data() { alloc::vec![at as u8; 64 * (at % 16)] } else { Vec::new() };
            let offset_bytes = if op.has_data() { 1_024 } else { 0 };
            (Repr { offset_bytes, ..repr }, data)
        };
        Op::ALL.iter().enumerate().map(numbered).collect()
    }

    #[test]
    fn concordia_packets_survive_the_wire_golden_bytes_hold() {
        let mut packets = Vec::new();
        for (repr, data) in samples() {
            let bytes = repr.packet(&data);
            assert_eq!(Repr::parse(&bytes), Ok((repr, &data[..])));
            for cut in 0..bytes.len() {
                assert!(Repr::parse(&bytes[..cut]).is_err());
            }
            packets.push(bytes);
        }
        crate::golden("concordia.hex", &packets);
    }

    /// Fields out of range are rejected: a place, a lane, a number that would wrap (trap C14).
    #[test]
    fn concordia_fields_out_of_range_are_refused() {
        let (repr, _) = samples()[0];
        let refused = |at: usize, byte: u8| {
            let mut bytes = repr.packet(&[]);
            bytes[at] = byte;
            assert_eq!(Repr::parse(&bytes), Err(WireError::Field), "{at}");
        };
        for at in [at::PLACE, at::LANE, at::PROVIDER] {
            refused(at, 32);
        }
        for at in [at::NUMBER, at::VERSION, at::RESERVED, at::OFFSET] {
            refused(at, 1);
        }
        for (at, byte) in [(at::OUTCOME, 5), (at::STATUS, 4), (at::FLAGS, 8)] {
            refused(at, byte);
        }
        assert_eq!(Repr::parse(&repr.packet(&[0])), Err(WireError::Field), "it has no data");
        let data = Repr { op: Op::Data, ..repr };
        assert_eq!(Repr::parse(&data.packet(&[])), Err(WireError::Field), "it has data");
        let long = data.packet(&[0; FRAGMENT_BYTES_MAX + 1]);
        assert_eq!(Repr::parse(&long), Err(WireError::Field));
    }

    #[test]
    fn concordia_any_bytes_are_a_packet_or_an_error() {
        let mut rng = concord_core::Rng::new(33);
        let samples: Vec<Vec<u8>> =
            samples().iter().map(|(repr, data)| repr.packet(data)).collect();
        for round in 0..50_000 {
            let mut bytes = samples[round % samples.len()].clone();
            for _ in 0..rng.between(1, 6) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            bytes.truncate(rng.between(0, 4 * bytes.len() as u64) as usize);
            if let Ok((repr, data)) = Repr::parse(&bytes) {
                let again = repr.packet(data);
                assert_eq!(Repr::parse(&again), Ok((repr, data)));
            }
        }
    }

    /// The chosen place is in the set, and each place of the set is chosen by some hash.
    #[test]
    fn copyset_choice_is_a_member_and_reaches_all() {
        let set = Copyset(1 << 3 | 1 << 17 | 1 << 31);
        let mut chosen = Copyset::default();
        for hash in 0..64 {
            let place = set.choose(hash).unwrap();
            assert!(set.has(place));
            chosen = chosen.with(Copyset::of(place));
        }
        assert_eq!(chosen, set);
        assert_eq!(set.collect::<Vec<_>>(), [3, 17, 31]);
        assert_eq!((Copyset(0).choose(5), Copyset::of(32)), (None, Copyset(0)));
    }
}
