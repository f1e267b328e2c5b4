//! Harmony's packets: between hosts, which reserve virtual links before they send, and the switches
//! on their way (Harmony §3.1, §4).
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | what all headers have: the node that sends |
//! | 16 | 2 + 2 | the message's sender and receiver: their places among the hosts |
//! | 20 | 4 + 4 | the incarnations of sender and receiver, from 1; a `request` has 0 for the receiver's |
//! | 28 | 8 | the message's number, of its sender's incarnation, from 1 |
//! | 36 | 4 | the grant's number, of the receiver's slot, from 1; 0: it is about no grant |
//! | 40 | 1 | the receiver's slot |
//! | 41 | 1 | the reason of a `reject` or a `failure` |
//! | 42 | 1 + 1 | hops of the path; how many of them are still ahead, of a packet on its way back |
//! | 44 | 4 | `request`: size of the message; `rsvp`: bytes that may be sent; `data`: offset in the message; `complete` from the sender: bytes of the message sent so far |
//! | 48 | 4 | `request`: how many numbers below it the oldest open message is; `rsvp`: life of the reservation in units of 1,024 ns |
//! | 52 | 1 | flags: 1 best effort: a switch found no reservation; 2 it goes to the message's sender |
//! | 53 | 3 | reserved |
//! | 56 | 6 each | five hops, the receiver's switch first: switch (2), its port towards the receiver (1), reserved (1), virtual link (2) |
//! | 86 | 2 | reserved |
//! | 88 | 0 to 1,280 | data |
//!
//! A `reject` and a `complete` take the path back, from the sender's end to the receiver, or go to
//! the sender by its address (flag 2). Those that go to the sender free no virtual link (trap H4).

use alloc::vec::Vec;

use concord_core::NodeId;

use crate::byte_enum::byte_enum;
use crate::header::{Header, Kind, set_length};
use crate::{GroupId, WireError, u16_at, u32_at, u64_at};

/// Most hosts of a network.
pub const HOSTS_MAX: usize = 8_192;
/// Most slots of a host each way: K.
pub const SLOTS_MAX: usize = 32;
/// Most switches on a path: a fat tree's.
pub const HOPS_MAX: usize = 5;
/// Length of a packet without data in bytes.
pub const HEAD_BYTES: usize = 88;
/// Most data of a packet in bytes.
pub const FRAGMENT_BYTES_MAX: usize = 1_280;
/// The unit of a reservation's life is 2^10 ns: a switch shifts, and does not divide.
pub const SPAN_SHIFT: u32 = 10;
/// Bytes of a hop.
const HOP_BYTES: usize = 6;

const FLAG_BEST_EFFORT: u8 = 1;
const FLAG_TO_SENDER: u8 = 2;

/// Where the fields are.
mod at {
    pub(super) const SENDER: usize = 16;
    pub(super) const RECEIVER: usize = 18;
    pub(super) const SENDER_INCARNATION: usize = 20;
    pub(super) const RECEIVER_INCARNATION: usize = 24;
    pub(super) const NUMBER: usize = 28;
    pub(super) const GRANT: usize = 36;
    pub(super) const SLOT: usize = 40;
    pub(super) const REASON: usize = 41;
    pub(super) const HOPS: usize = 42;
    pub(super) const AHEAD: usize = 43;
    pub(super) const BYTES: usize = 44;
    pub(super) const SPAN: usize = 48;
    pub(super) const FLAGS: usize = 52;
    pub(super) const RESERVED: usize = 53;
    pub(super) const PATH: usize = 56;
    pub(super) const TAIL: usize = 86;
    pub(super) const DATA: usize = super::HEAD_BYTES;
}

byte_enum! {
    /// What a packet is.
    Op {
        /// From the sender: it has a message.
        Request = 1,
        /// From the receiver: it has a slot for the message; reserves a virtual link at each switch
        /// on its way.
        Rsvp = 2,
        /// There was no virtual link, or no slot; or, to the sender, the message is not admitted.
        Reject = 3,
        /// From the sender: a reservation is done with; to the sender: the message was delivered.
        Complete = 4,
        /// To the sender: the message was not delivered in its time.
        Failure = 5,
        /// A part of a message.
        Data = 6,
        /// From a switch's control plane to its own pipeline: whether a reservation's time is over.
        Sweep = 7,
    }
}

byte_enum! {
    /// Why a message, or a reservation, came to nothing.
    Reason {
        /// It did not.
        None = 0,
        /// The request waited for a slot for as long as it may (δ_admission).
        Admission = 1,
        /// The receiver has too many requests.
        Pending = 2,
        /// A switch had no virtual link.
        NoLink = 3,
        /// The sender had no slot.
        NoSlot = 4,
        /// The sender does not know the message, or is done with it.
        Over = 5,
        /// Nothing came of a reservation in its time, or not all of the message.
        Lost = 6,
        /// A host or a switch has begun anew, and waits until what it forgot is over.
        Restarted = 7,
    }
}

/// One switch of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Which switch.
    pub switch: u16,
    /// Its port towards the receiver.
    pub back: u8,
    /// The virtual link by which the data reaches it.
    pub link: u16,
}

/// The switches of a path, the receiver's first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    hops: [Hop; HOPS_MAX],
    count: u8,
}

impl Path {
    /// The hops so far.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }

    /// Whether there is no room for another switch.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count as usize == HOPS_MAX
    }

    /// Adds a switch; whether there was room.
    pub fn push(&mut self, hop: Hop) -> bool {
        let Some(free) = self.hops.get_mut(usize::from(self.count)) else { return false };
        *free = hop;
        self.count += 1;
        true
    }
}

/// A packet's meaning, without its data. What an operation has no use for is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repr {
    /// What it is.
    pub op: Op,
    /// Which network of hosts.
    pub group: GroupId,
    /// The node that sends.
    pub from: NodeId,
    /// The place of the message's sender.
    pub sender: u16,
    /// The place of its receiver.
    pub receiver: u16,
    /// Which start of the sender's process, from 1.
    pub sender_incarnation: u32,
    /// Which start of the receiver's; 0 in a `request`.
    pub receiver_incarnation: u32,
    /// The message's number.
    pub number: u64,
    /// The grant's number; 0 if there is none.
    pub grant: u32,
    /// The receiver's slot of that grant.
    pub slot: u8,
    /// Why a message or a reservation came to nothing.
    pub reason: Reason,
    /// The path.
    pub path: Path,
    /// How many hops of the path are ahead of a packet on its way back.
    pub ahead: u8,
    /// Size, quota, offset, or how much was sent, in bytes.
    pub bytes: u32,
    /// Of a `request`, how many numbers below it the oldest open message is; of an `rsvp`, the life
    /// of the reservation in units of 1,024 ns.
    pub span: u32,
    /// Whether a switch found no reservation for it.
    pub is_best_effort: bool,
    /// Whether it goes to the message's sender by its address.
    pub to_sender: bool,
}

impl Repr {
    /// A packet about a message that says nothing else.
    #[must_use]
    pub const fn new(op: Op, sender: u16, receiver: u16, number: u64) -> Repr {
        Repr {
            op,
            group: GroupId::FIRST,
            from: NodeId(0),
            sender,
            receiver,
            sender_incarnation: 1,
            receiver_incarnation: 0,
            number,
            grant: 0,
            slot: 0,
            reason: Reason::None,
            path: Path { hops: [Hop { switch: 0, back: 0, link: 0 }; HOPS_MAX], count: 0 },
            ahead: 0,
            bytes: 0,
            span: 0,
            is_best_effort: false,
            to_sender: false,
        }
    }

    /// Whether it takes the reserved path back to the receiver.
    #[must_use]
    pub const fn is_source_routed(&self) -> bool {
        matches!(self.op, Op::Data | Op::Reject | Op::Complete) && !self.to_sender
    }

    /// Its class of priority, 1 first (§3.2): data, `rsvp` and `complete`, then other control
    /// packets, then what is best effort.
    #[must_use]
    pub const fn class(&self) -> u8 {
        match self.op {
            Op::Data if self.is_best_effort => 3,
            Op::Data | Op::Rsvp | Op::Complete => 1,
            Op::Request | Op::Reject | Op::Failure | Op::Sweep => 2,
        }
    }

    /// Reads a packet, and gives the data behind it.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Harmony, HEAD_BYTES)?;
        let op = Op::from_byte(header.op).ok_or(WireError::Op)?;
        let data = &b[at::DATA..];
        let repr = Repr {
            op,
            group: header.group,
            from: header.node,
            sender: u16_at(b, at::SENDER),
            receiver: u16_at(b, at::RECEIVER),
            sender_incarnation: u32_at(b, at::SENDER_INCARNATION),
            receiver_incarnation: u32_at(b, at::RECEIVER_INCARNATION),
            number: u64_at(b, at::NUMBER),
            grant: u32_at(b, at::GRANT),
            slot: b[at::SLOT],
            reason: Reason::from_byte(b[at::REASON]).ok_or(WireError::Field)?,
            path: path(b).ok_or(WireError::Field)?,
            ahead: b[at::AHEAD],
            bytes: u32_at(b, at::BYTES),
            span: u32_at(b, at::SPAN),
            is_best_effort: b[at::FLAGS] & FLAG_BEST_EFFORT != 0,
            to_sender: b[at::FLAGS] & FLAG_TO_SENDER != 0,
        };
        let is_host = |place: u16| usize::from(place) < HOSTS_MAX;
        let has_hosts = is_host(repr.sender) && is_host(repr.receiver);
        let has_numbers = repr.sender_incarnation > 0
            && repr.number > 0
            && (repr.receiver_incarnation > 0 || matches!(op, Op::Request));
        let has_slot = usize::from(repr.slot) < SLOTS_MAX && repr.ahead <= repr.path.count;
        let ends = u64::from(repr.bytes) + data.len() as u64;
        let has_data = data.is_empty() != matches!(op, Op::Data)
            && data.len() <= FRAGMENT_BYTES_MAX
            && ends <= u64::from(u32::MAX);
        let is_clean = b[at::FLAGS] & !(FLAG_BEST_EFFORT | FLAG_TO_SENDER) == 0
            && b[at::RESERVED..at::PATH] == [0; 3]
            && b[at::TAIL..at::DATA] == [0; 2];
        let is_whole = has_hosts && has_numbers && has_slot && has_data && is_clean;
        if is_whole { Ok((repr, data)) } else { Err(WireError::Field) }
    }

    /// The bytes of a packet with so much data behind it, without the data.
    #[must_use]
    pub fn head(&self, data_bytes: usize) -> [u8; HEAD_BYTES] {
        let mut b = [0; HEAD_BYTES];
        let header = Header::new(Kind::Harmony, self.op as u8);
        let header = Header { group: self.group, node: self.from, ..header };
        let common = header.bytes(HEAD_BYTES + data_bytes);
        b[..common.len()].copy_from_slice(&common);
        b[at::SLOT] = self.slot;
        b[at::REASON] = self.reason as u8;
        b[at::HOPS] = self.path.count;
        b[at::AHEAD] = self.ahead;
        b[at::FLAGS] = if self.is_best_effort { FLAG_BEST_EFFORT } else { 0 }
            | if self.to_sender { FLAG_TO_SENDER } else { 0 };
        let mut put = |at: usize, field: &[u8]| b[at..at + field.len()].copy_from_slice(field);
        put(at::SENDER, &self.sender.to_be_bytes());
        put(at::RECEIVER, &self.receiver.to_be_bytes());
        put(at::SENDER_INCARNATION, &self.sender_incarnation.to_be_bytes());
        put(at::RECEIVER_INCARNATION, &self.receiver_incarnation.to_be_bytes());
        put(at::NUMBER, &self.number.to_be_bytes());
        put(at::GRANT, &self.grant.to_be_bytes());
        put(at::BYTES, &self.bytes.to_be_bytes());
        put(at::SPAN, &self.span.to_be_bytes());
        for (index, hop) in self.path.hops().iter().enumerate() {
            let at = at::PATH + index * HOP_BYTES;
            put(at, &hop.switch.to_be_bytes());
            put(at + 2, &[hop.back]);
            put(at + 4, &hop.link.to_be_bytes());
        }
        b
    }

    /// Writes the head over the beginning of a packet with so much data behind it, and says how
    /// long the packet is; `None` if it does not fit.
    #[must_use]
    pub fn write(&self, data_bytes: usize, out: &mut [u8]) -> Option<usize> {
        out.get_mut(..HEAD_BYTES)?.copy_from_slice(&self.head(data_bytes));
        Some(HEAD_BYTES + data_bytes)
    }

    /// The packet's bytes, with data behind it.
    ///
    /// # Panics
    /// If the data does not fit: whoever sends a message cuts it before.
    #[must_use]
    pub fn packet(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + data.len());
        bytes.extend_from_slice(&self.head(data.len()));
        bytes.extend_from_slice(data);
        set_length(&mut bytes);
        bytes
    }
}

/// The path in a packet; `None` if there are too many hops, or bytes behind the last one.
fn path(b: &[u8]) -> Option<Path> {
    let count = usize::from(b[at::HOPS]);
    let mut path = Path::default();
    for index in 0..HOPS_MAX {
        let hop = &b[at::PATH + index * HOP_BYTES..][..HOP_BYTES];
        if index < count && hop[3] == 0 {
            path.push(Hop { switch: u16_at(hop, 0), back: hop[2], link: u16_at(hop, 4) });
        } else if hop != [0; HOP_BYTES] {
            return None;
        }
    }
    (usize::from(path.count) == count).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(Repr, Vec<u8>)> {
        let numbered = |(index, op): (usize, &Op)| {
            let mut path = Path::default();
            for hop in 0..index.min(5) as u16 {
                let added = path.push(Hop { switch: 9 + hop, back: 1 + hop as u8, link: 0x0102 });
                assert_eq!(added, usize::from(hop) < HOPS_MAX);
            }
            let repr = Repr {
                group: GroupId(3),
                from: NodeId(7),
                sender_incarnation: 4,
                receiver_incarnation: if *op == Op::Request { 0 } else { 5 },
                grant: 0x0a0b_0c00 + index as u32,
                slot: index as u8,
                reason: Reason::ALL[index],
                ahead: path.hops().len() as u8 / 2,
                path,
                bytes: 0x0001_0000,
                span: 77,
                is_best_effort: *op == Op::Data,
                to_sender: *op == Op::Failure,
                ..Repr::new(*op, 8_191, 12, 0x0102_0304_0506_0708)
            };
            let data = if *op == Op::Data { alloc::vec![0xd5; 9] } else { Vec::new() };
            (repr, data)
        };
        Op::ALL.iter().enumerate().map(numbered).collect()
    }

    #[test]
    fn harmony_packets_survive_the_wire_golden_bytes_hold() {
        let mut packets = Vec::new();
        for (repr, data) in samples() {
            let bytes = repr.packet(&data);
            assert_eq!(Repr::parse(&bytes), Ok((repr, &data[..])));
            for cut in 0..bytes.len() {
                assert!(Repr::parse(&bytes[..cut]).is_err());
            }
            packets.push(bytes);
        }
        crate::golden("harmony.hex", &packets);
    }

    /// A place, a slot, a number, a hop that there cannot be; data where there is none.
    #[test]
    fn harmony_fields_out_of_range_are_refused() {
        let (repr, _) = samples()[2];
        let refused = |at: usize, byte: u8| {
            let mut bytes = repr.packet(&[]);
            bytes[at] = byte;
            assert_eq!(Repr::parse(&bytes), Err(WireError::Field), "{at}");
        };
        for (at, byte) in [(at::SENDER, 32), (at::RECEIVER, 32), (at::SLOT, 32), (at::REASON, 8)] {
            refused(at, byte);
        }
        for (at, byte) in [(at::HOPS, 1), (at::HOPS, 6), (at::AHEAD, 3), (at::FLAGS, 4)] {
            refused(at, byte);
        }
        for at in [at::RESERVED, at::PATH + 3, at::TAIL, at::TAIL + 1] {
            refused(at, 1);
        }
        refused(at::SENDER_INCARNATION + 3, 0);
        refused(at::RECEIVER_INCARNATION + 3, 0);
        assert_eq!(Repr::parse(&repr.packet(&[0])), Err(WireError::Field), "it has no data");
        let data = Repr { op: Op::Data, ..repr };
        assert_eq!(Repr::parse(&data.packet(&[])), Err(WireError::Field), "it has data");
        let long = data.packet(&[0; FRAGMENT_BYTES_MAX + 1]);
        assert_eq!(Repr::parse(&long), Err(WireError::Field));
        let beyond = Repr { bytes: u32::MAX, ..data };
        assert_eq!(Repr::parse(&beyond.packet(&[0])), Err(WireError::Field));
    }

    #[test]
    fn harmony_any_bytes_are_a_packet_or_an_error() {
        let mut rng = concord_core::Rng::new(34);
        let samples: Vec<Vec<u8>> =
            samples().iter().map(|(repr, data)| repr.packet(data)).collect();
        let mut parsed = 0;
        for round in 0..50_000 {
            let mut bytes = samples[round % samples.len()].clone();
            for _ in 0..rng.between(1, 6) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            bytes.truncate(rng.between(0, 4 * bytes.len() as u64) as usize);
            if let Ok((repr, data)) = Repr::parse(&bytes) {
                parsed += 1;
                assert_eq!(Repr::parse(&repr.packet(data)), Ok((repr, data)));
            }
        }
        assert!(parsed > 1_000, "{parsed}");
    }

    /// §3.2: data, `rsvp` and `complete` go first, best effort last.
    #[test]
    fn harmony_classes_of_priority() {
        let class = |op| Repr::new(op, 0, 1, 1).class();
        let classes: Vec<u8> = Op::ALL.iter().map(|op| class(*op)).collect();
        assert_eq!(classes, [2, 1, 2, 1, 2, 1, 2]);
        let data = Repr { is_best_effort: true, ..Repr::new(Op::Data, 0, 1, 1) };
        assert_eq!(data.class(), 3);
        assert!(data.is_source_routed() && !Repr::new(Op::Rsvp, 0, 1, 1).is_source_routed());
        let answer = Repr { to_sender: true, ..Repr::new(Op::Complete, 0, 1, 1) };
        assert!(!answer.is_source_routed());
    }
}
