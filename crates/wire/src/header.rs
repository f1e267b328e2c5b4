//! The beginning of every datagram: 16 bytes, whatever the kind.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | magic |
//! | 2 | 1 | version |
//! | 3 | 1 | kind: which header follows |
//! | 4 | 1 | op, numbered within the kind from 1 |
//! | 5 | 1 | marks: bit 0, a tag follows the body |
//! | 6 | 2 | length from byte 0 to the end of the body, in bytes |
//! | 8 | 2 | group |
//! | 10 | 2 | node |
//! | 12 | 4 | epoch |
//!
//! Behind `length` bytes there is room for [`TAG_BYTES`] of an authentication tag, and then for
//! padding.

use core::ops::Range;

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};

use crate::{MAGIC, PACKET_BYTES_MAX, VERSION, WireError, u16_at, u32_at};

/// The offsets of the fields.
pub mod at {
    use super::Range;

    /// Magic number.
    pub const MAGIC: Range<usize> = 0..2;
    /// Version of the format.
    pub const VERSION: usize = 2;
    /// Which header follows.
    pub const KIND: usize = 3;
    /// Operation, within the kind.
    pub const OP: usize = 4;
    /// Marks.
    pub const MARKS: usize = 5;
    /// Length up to the end of the body.
    pub const LENGTH: Range<usize> = 6..8;
    /// Group.
    pub const GROUP: Range<usize> = 8..10;
    /// Node.
    pub const NODE: Range<usize> = 10..12;
    /// Epoch.
    pub const EPOCH: Range<usize> = 12..16;
    /// The offset of the kind's own header.
    pub const END: usize = 16;
}

/// Length of what all headers have in common, in bytes.
pub const COMMON_BYTES: usize = at::END;
/// The length of the authentication tag after the body, for which every datagram has room, in
/// bytes.
pub const TAG_BYTES: usize = 16;
/// The mark of a datagram whose body is followed by a tag. No node sends or accepts one yet.
pub const MARK_TAGGED: u8 = 1;

/// Which header follows the common one. Numbers that are not here are those of systems to come
/// (docs/reference/wire.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// [`crate::control::Membership`]: with the controller, and about the opening of epochs.
    Membership = 1,
    /// [`crate::control::LeaseMessage`]: leases of the members of an epoch.
    Lease = 2,
    /// [`crate::control::CopyMessage`]: copies of the state and of records.
    Copy = 3,
    /// [`crate::vr`]: view changes and recovery.
    Vr = 4,
    /// [`crate::link`]: the stream of records between replicas.
    Link = 5,
    /// [`crate::craq`]: version queries.
    Craq = 6,
    /// [`crate::nopaxos`]: from the leader to the switch that orders.
    NoPaxos = 7,
    /// [`crate::tasks::TaskMessage`]: between owners of tasks and workers.
    Tasks = 8,
    /// [`crate::flair::SessionMessage`]: between a leader and its switch.
    FlairSession = 9,
    /// [`crate::gateways`]: between the gateways of a group.
    Gateways = 10,
    /// [`crate::control::ChainMessage`]: between the control planes of a chain's switches.
    Chain = 11,
    /// [`crate::rpc`]: between clients, the switch and the
    /// replicas.
    Store = 16,
    /// [`crate::rpc`] with [`crate::flair`]'s own header: between the switch and the replicas.
    Flair = 17,
    /// [`crate::netcraq`]: between clients and the switches of a chain.
    NetCraq = 18,
    /// [`crate::netchain`]: the same, with the chain in the packet.
    NetChain = 19,
    /// [`crate::falcon`]: between owners of tasks, the switch and executors.
    Falcon = 32,
    /// [`crate::concordia`]: between the nodes of a shared memory, and with their switch.
    Concordia = 33,
    /// [`crate::harmony`]: between hosts that reserve virtual links, and the switches on their way.
    Harmony = 34,
}

impl Kind {
    /// Every kind, in wire order.
    pub const ALL: &'static [Kind] = &[
        Kind::Membership,
        Kind::Lease,
        Kind::Copy,
        Kind::Vr,
        Kind::Link,
        Kind::Craq,
        Kind::NoPaxos,
        Kind::Tasks,
        Kind::FlairSession,
        Kind::Gateways,
        Kind::Chain,
        Kind::Store,
        Kind::Flair,
        Kind::NetCraq,
        Kind::NetChain,
        Kind::Falcon,
        Kind::Concordia,
        Kind::Harmony,
    ];

    /// The kind of a byte on the wire, if it is one.
    #[must_use]
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Membership,
            2 => Kind::Lease,
            3 => Kind::Copy,
            4 => Kind::Vr,
            5 => Kind::Link,
            6 => Kind::Craq,
            7 => Kind::NoPaxos,
            8 => Kind::Tasks,
            9 => Kind::FlairSession,
            10 => Kind::Gateways,
            11 => Kind::Chain,
            16 => Kind::Store,
            17 => Kind::Flair,
            18 => Kind::NetCraq,
            19 => Kind::NetChain,
            32 => Kind::Falcon,
            33 => Kind::Concordia,
            34 => Kind::Harmony,
            _ => return None,
        })
    }

    /// Whether nodes tell each other who is who and what they hold: nothing that a client says.
    #[must_use]
    pub const fn is_control(self) -> bool {
        match self {
            Kind::Membership
            | Kind::Lease
            | Kind::Copy
            | Kind::Vr
            | Kind::NoPaxos
            | Kind::FlairSession
            | Kind::Chain => true,
            Kind::Gateways
            | Kind::Link
            | Kind::Craq
            | Kind::Tasks
            | Kind::Store
            | Kind::Flair
            | Kind::NetCraq
            | Kind::NetChain
            | Kind::Falcon
            | Kind::Concordia
            | Kind::Harmony => false,
        }
    }
}

/// Which replica set or system of a rack: several share a switch. A rack of one group has number 0.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group of a rack that has no other one.
    pub const FIRST: GroupId = GroupId(0);
}

/// The meaning of the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which header follows.
    pub kind: Kind,
    /// Operation, within the kind.
    pub op: u8,
    /// Which group it concerns.
    pub group: GroupId,
    /// The member that the packet concerns: between members the sender, in a reply the responder,
    /// in a request the member that forwarded it, in a Pull the member that is asked. 0 if there is
    /// none.
    pub node: NodeId,
    /// That member's epoch or view; 0 where it has no meaning.
    pub epoch: Epoch,
}

impl Header {
    /// A header that names nothing but its kind and operation.
    #[must_use]
    pub const fn new(kind: Kind, op: u8) -> Header {
        Header { kind, op, group: GroupId::FIRST, node: NodeId(0), epoch: Epoch(0) }
    }

    /// Checks the common header, and gives the packet without tag and padding.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), WireError> {
        let kind = kind(bytes)?;
        // Of a known length, so that one check is for all fields.
        let h = bytes.first_chunk::<COMMON_BYTES>().ok_or(WireError::Truncated)?;
        let packet = bytes.get(..length(h)?).ok_or(WireError::Truncated)?;
        let header = Header {
            kind,
            op: h[at::OP],
            group: GroupId(u16_at(h, at::GROUP.start)),
            node: NodeId(u16_at(h, at::NODE.start)),
            epoch: Epoch(u32_at(h, at::EPOCH.start)),
        };
        Ok((header, packet))
    }

    /// As [`Header::parse`], of a packet of `kind` whose own header ends at `own_end`.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub(crate) fn parse_kind(
        bytes: &[u8],
        kind: Kind,
        own_end: usize,
    ) -> Result<(Header, &[u8]), WireError> {
        let (header, packet) = Header::parse(bytes)?;
        if header.kind != kind {
            return Err(WireError::Op);
        }
        if packet.len() < own_end {
            return Err(WireError::Truncated);
        }
        Ok((header, packet))
    }

    /// The header's bytes, for a packet of `length` bytes without tag and padding.
    #[must_use]
    #[inline]
    pub fn bytes(&self, length: usize) -> [u8; COMMON_BYTES] {
        let mut h = [0; COMMON_BYTES];
        h[at::MAGIC].copy_from_slice(&MAGIC.to_be_bytes());
        h[at::VERSION] = VERSION;
        h[at::KIND] = self.kind as u8;
        h[at::OP] = self.op;
        h[at::LENGTH].copy_from_slice(&(length as u16).to_be_bytes());
        h[at::GROUP].copy_from_slice(&self.group.0.to_be_bytes());
        h[at::NODE].copy_from_slice(&self.node.0.to_be_bytes());
        h[at::EPOCH].copy_from_slice(&self.epoch.0.to_be_bytes());
        h
    }

    /// Begins a packet in `out`. Call [`set_length`] once the rest is appended.
    pub fn begin(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.bytes(COMMON_BYTES));
    }
}

/// Sets the length in the header of `packet` to its present one.
///
/// # Panics
/// If it does not fit into a datagram with its tag: the caller has to cut it before.
#[inline]
pub fn set_length(packet: &mut [u8]) {
    assert!(packet.len() <= PACKET_BYTES_MAX, "a packet fits a datagram beside its tag");
    let length = packet.len() as u16;
    packet[at::LENGTH].copy_from_slice(&length.to_be_bytes());
}

/// The first four bytes' check, and which header follows.
///
/// # Errors
/// [`WireError`] for anything that is not a Concord packet of this version, or of no known kind.
#[inline]
pub fn kind(bytes: &[u8]) -> Result<Kind, WireError> {
    let head = bytes.first_chunk::<4>().ok_or(WireError::Truncated)?;
    if u16_at(head, at::MAGIC.start) != MAGIC {
        return Err(WireError::Magic);
    }
    if head[at::VERSION] != VERSION {
        return Err(WireError::Version);
    }
    Kind::from_byte(head[at::KIND]).ok_or(WireError::Op)
}

/// The operation within the kind; 0, which is no operation, if the packet is too short.
#[must_use]
#[inline]
pub fn op(bytes: &[u8]) -> u8 {
    bytes.get(at::OP).copied().unwrap_or(0)
}

/// The group that a packet concerns; the first, if there are no such bytes.
#[must_use]
#[inline]
pub fn group(bytes: &[u8]) -> GroupId {
    let bytes = bytes.get(at::GROUP).and_then(|b| b.first_chunk());
    GroupId(bytes.map_or(0, |b| u16::from_be_bytes(*b)))
}

/// Says in the header of `packet` which group it concerns.
pub fn set_group(packet: &mut [u8], group: GroupId) {
    if let Some(field) = packet.get_mut(at::GROUP) {
        field.copy_from_slice(&group.0.to_be_bytes());
    }
}

/// Whether a packet is one of Concord's, and concerns another group than `own`.
#[must_use]
#[inline]
pub fn is_of_other_group(bytes: &[u8], own: GroupId) -> bool {
    group(bytes) != own && kind(bytes).is_ok()
}

/// Whether `bytes` are a request or an answer with that operation, of a client or as a switch has
/// made it.
#[must_use]
pub fn is_request(bytes: &[u8], operation: u8) -> bool {
    matches!(kind(bytes), Ok(Kind::Store | Kind::Flair)) && op(bytes) == operation
}

/// Whether `bytes` are of that kind and operation.
#[must_use]
#[inline]
pub fn is(bytes: &[u8], wanted: Kind, operation: u8) -> bool {
    kind(bytes) == Ok(wanted) && op(bytes) == operation
}

/// The length that the header says, without tag and padding.
#[inline]
fn length(h: &[u8; COMMON_BYTES]) -> Result<usize, WireError> {
    let length = u16_at(h, at::LENGTH.start) as usize;
    if h[at::MARKS] != 0 || !(COMMON_BYTES..=PACKET_BYTES_MAX).contains(&length) {
        return Err(WireError::Field);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn example(kind: Kind) -> Header {
        Header { group: GroupId(3), node: NodeId(6), epoch: Epoch(4), ..Header::new(kind, 9) }
    }

    #[test]
    fn every_kind_has_a_number_of_its_own_and_begins_alike() {
        let mut numbers = vec![];
        for kind in Kind::ALL {
            assert_eq!(Kind::from_byte(*kind as u8), Some(*kind));
            numbers.push(*kind as u8);
            let mut packet = vec![];
            example(*kind).begin(&mut packet);
            packet.extend_from_slice(b"body");
            set_length(&mut packet);
            let message = packet.clone();
            packet.extend_from_slice(&[7; TAG_BYTES + 5]);
            assert_eq!(Header::parse(&packet), Ok((example(*kind), &message[..])));
            assert!(is(&packet, *kind, 9) && !is(&packet, *kind, 8));
            assert_eq!(group(&packet), GroupId(3));
            set_group(&mut packet, GroupId(0x0102));
            assert_eq!(group(&packet), GroupId(0x0102));
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        assert_eq!((0..=255).filter_map(Kind::from_byte).count(), count);
    }

    #[test]
    fn a_wrong_header_is_refused_with_a_reason() {
        let mut packet = example(Kind::Link).bytes(COMMON_BYTES).to_vec();
        for cut in 0..packet.len() {
            assert_eq!(Header::parse(&packet[..cut]).unwrap_err(), WireError::Truncated);
        }
        let with = |at: usize, byte: u8| {
            let mut other = packet.clone();
            other[at] = byte;
            Header::parse(&other).unwrap_err()
        };
        assert_eq!(with(at::MAGIC.start, 0), WireError::Magic);
        assert_eq!(with(at::VERSION, 1), WireError::Version);
        assert_eq!(with(at::KIND, 0), WireError::Op);
        assert_eq!(with(at::KIND, 200), WireError::Op);
        assert_eq!(with(at::MARKS, MARK_TAGGED), WireError::Field);
        assert_eq!(with(at::LENGTH.start + 1, 15), WireError::Field);
        assert_eq!(with(at::LENGTH.start + 1, 17), WireError::Truncated);
        assert_eq!(with(at::LENGTH.start, 0xff), WireError::Field);
        assert_eq!(Header::parse_kind(&packet, Kind::Craq, 16).unwrap_err(), WireError::Op);
        assert_eq!(Header::parse_kind(&packet, Kind::Link, 17).unwrap_err(), WireError::Truncated);
        packet.truncate(9);
        assert_eq!(group(&packet), GroupId(0));
        packet.clear();
        assert_eq!(op(&packet), 0);
    }
}
