//! The Harmonia header (Harmonia §6.1, §7.1), the first 64 bytes of a UDP payload.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | magic |
//! | 2 | 1 | version |
//! | 3 | 1 | op |
//! | 4 | 2 | flags |
//! | 6 | 2 | body length in bytes |
//! | 8 | 4 | object id |
//! | 12 | 4 + 4 | sequence number: switch id, counter |
//! | 20 | 4 + 4 | last committed: switch id, counter; in a write that the switch orders: the log's time in ms |
//! | 28 | 8 | session id |
//! | 36 | 8 | request number |
//! | 44 | 4 + 2 | client address |
//! | 50 | 2 | attempt |
//! | 52 | 2 | request number minus the lowest unanswered one of the session (trap T16) |
//! | 54 | 2 | request number minus that of the write it must follow, 0 if none (trap T22) |
//! | 56 | 4 | epoch (forwarded reads, replies) |
//! | 60 | 2 | node: the responder, or who forwarded |
//! | 62 | 1 | status |
//! | 63 | 1 | reason |

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, ObjectId, RequestNumber, Seq, SessionId, SwitchId};

use crate::addr::Addr;
use crate::{DATAGRAM_BYTES_MAX, MAGIC, VERSION, WireError, u16_at, u32_at, u64_at};

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 64;
/// Largest body in one datagram, in bytes.
pub const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES;

/// Request numbers of reads carry this bit: they have no place in the client table.
pub const READ_BIT: u64 = 1 << 63;

macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)+ }
        impl $name {
            /// The value of a byte on the wire, if it is one.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<$name> {
                match byte { $($value => Some($name::$variant),)+ _ => None }
            }
            /// Every value, in wire order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
        }
    };
}

byte_enum!(
    /// What a packet is.
    Op {
        /// A write that the switch numbers (the paper's WRITE and WFirst). The body is a command,
        /// or nothing if it was staged by [`Op::WRest`] packets before (trap T17).
        Write = 1,
        /// A fragment of a write's body, sent before its [`Op::Write`]; never numbered.
        WRest = 2,
        /// Acknowledges one [`Op::WRest`].
        WRestAck = 3,
        /// A read; the switch makes it fast or leaves it to the normal protocol.
        Read = 4,
        /// A write is committed everywhere. Stand-alone where no reply carries it.
        WriteCompletion = 5,
        /// The reply to a write; carries the completion if [`Flags::COMPLETION`] is set.
        WriteReply = 6,
        /// The reply to a read.
        ReadReply = 7,
        /// Asks the responder for more fragments of a long reply.
        Pull = 8,
        /// A fragment of a long reply, or a status that there is none.
        Fragment = 9,
        /// From the switch's own agent: clear what is stray at index `seq.counter` (trap T19).
        Sweep = 10,
    }
);

byte_enum!(
    /// How a request ended, apart from the reply's own content.
    Status {
        /// Executed (now or before); the body is the reply.
        Ok = 0,
        /// The session is not known (any more): refused, not executed now (trap T16).
        SessionExpired = 1,
        /// Refused, not executed: the write that it must follow was not executed yet (trap T22).
        Order = 2,
        /// Refused, not executed: its staged body is not there; send it again (trap T17).
        BodyMissing = 3,
        /// Below the session's lowest unanswered request: an old duplicate.
        Stale = 4,
        /// Refused, not executed: too far above the lowest unanswered request.
        Window = 5,
        /// The reply's fragments are gone: ask again from the start.
        Gone = 6,
        /// Refused, not executed: the command is malformed.
        Malformed = 7,
        /// Refused, not executed: the switch had no slot for it (NOPaxos, trap T23). Of a read, or a
        /// fragment of a body: the replica has no room for it now (trap T17).
        Busy = 8,
    }
);

byte_enum!(
    /// Which path a read took, and why. Filled in by whoever decided last.
    Reason {
        /// Not decided yet.
        None = 0,
        /// One replica answered alone, on the switch's word.
        Fast = 1,
        /// Slow: the object has a write in flight (Algorithm 1, line 10).
        SlowDirty = 2,
        /// Slow: the switch saw no completion with its own id yet (Harmonia §6.3).
        SlowNotReady = 3,
        /// Slow: a write of all keys is in flight (trap T13).
        SlowWildcard = 4,
        /// Slow: the rack runs without the switch's help.
        SlowUnaided = 5,
        /// Slow: the command reads more than one object.
        SlowAllKeys = 6,
        /// Refused at a replica: it applied a newer write than the last-committed point (§8.2).
        RefusedNewer = 7,
        /// Refused at a replica: it holds no lease (trap T2).
        RefusedLease = 8,
        /// Refused at a replica: the read comes from another switch than the active one (§6.3).
        RefusedSwitch = 9,
        /// Not sent to the right replica: an old configuration at the switch.
        Misrouted = 10,
        /// Refused at a replica: it has not executed up to the last-committed point (§8.3, P1).
        RefusedBehind = 11,
        /// CRAQ: no write of the object was under way here; one replica answered alone.
        Clean = 12,
        /// CRAQ: a write of the object was under way here; the tail said what is committed.
        AskedTail = 13,
    }
);

/// Bits of the flags field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// A read that one replica may answer alone.
    pub const FAST: Flags = Flags(1);
    /// A numbered write that changes nothing and takes no slot (trap T18).
    pub const NOOP: Flags = Flags(2);
    /// The command concerns all keys (trap T13).
    pub const WILDCARD: Flags = Flags(4);
    /// The reply is to be encoded as RESP3.
    pub const RESP3: Flags = Flags(8);
    /// Registers or touches the session; the body is empty. The request number is a log position
    /// that the registrar heard of before, or 0: one of an evicted session is refused by it, with
    /// [`Status::Stale`] and the position to try again with as body (trap T16 c).
    pub const REGISTER: Flags = Flags(16);
    /// The body was staged by WRest packets: the body here is its [`crate::fragment::FragmentHdr`].
    pub const BODY_STAGED: Flags = Flags(32);
    /// This reply is a WRITE-COMPLETION too (Harmonia §6.1, "piggybacked").
    pub const COMPLETION: Flags = Flags(64);
    /// A read that a replica passed on: it makes no further hop (trap T2).
    pub const FORWARDED: Flags = Flags(128);
    /// The body is the first fragment of a longer reply.
    pub const MORE: Flags = Flags(256);
    /// A replica's own write (an expired key): no session, no reply.
    pub const INTERNAL: Flags = Flags(512);
    /// Said by who orders writes: the data takes more than its limit, so that commands which need
    /// memory are refused, by every replica alike. A client's word counts for nothing.
    pub const MEMORY_FULL: Flags = Flags(1024);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These bits and those of `other`.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These bits, with those of `other` if `on`, else without.
    #[must_use]
    pub const fn set(self, other: Flags, on: bool) -> Flags {
        if on { self.with(other) } else { self.without(other) }
    }

    /// These bits without those of `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// The meaning of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// What the packet is.
    pub op: Op,
    /// See [`Flags`].
    pub flags: Flags,
    /// The object, or anything if [`Flags::WILDCARD`] or [`Flags::NOOP`].
    pub obj_id: ObjectId,
    /// A write's number, filled in by the switch.
    pub seq: Seq,
    /// A fast read's last-committed point, filled in by the switch.
    pub last_committed: Seq,
    /// Whose request.
    pub session: SessionId,
    /// Which request of the session.
    pub request: RequestNumber,
    /// Where the reply goes.
    pub client: Addr,
    /// From 0, counted up with each retry.
    pub attempt: u16,
    /// `request` minus the lowest unanswered request of the session.
    pub low_delta: u16,
    /// `request` minus the write that must be executed before; 0 if none.
    pub after_delta: u16,
    /// The epoch of who forwarded or answered.
    pub epoch: Epoch,
    /// Who forwarded or answered.
    pub node: NodeId,
    /// How it ended.
    pub status: Status,
    /// Which path it took.
    pub reason: Reason,
}

impl Repr {
    /// A header with nothing but an operation.
    #[must_use]
    pub const fn new(op: Op) -> Repr {
        Repr {
            op,
            flags: Flags(0),
            obj_id: ObjectId(0),
            seq: Seq::NONE,
            last_committed: Seq::NONE,
            session: SessionId(0),
            request: RequestNumber(0),
            client: Addr { ip: 0, port: 0 },
            attempt: 0,
            low_delta: 0,
            after_delta: 0,
            epoch: Epoch(0),
            node: NodeId(0),
            status: Status::Ok,
            reason: Reason::None,
        }
    }

    /// Whether a write with these flags has nothing to execute, so that its body says nothing.
    #[must_use]
    pub const fn has_no_command(&self) -> bool {
        let registers = self.flags.has(Flags::REGISTER) && !self.flags.has(Flags::INTERNAL);
        self.flags.has(Flags::NOOP) || registers
    }

    /// Writes the header and `body` into `out`, replacing what was there.
    ///
    /// # Panics
    /// If the body does not fit a datagram: whoever builds packets fragments before.
    #[inline]
    pub fn emit(&self, body: &[u8], out: &mut Vec<u8>) {
        assert!(body.len() <= BODY_BYTES_MAX, "the body fits a datagram");
        out.clear();
        out.extend_from_slice(&self.header(body.len() as u16));
        out.extend_from_slice(body);
    }

    /// The header's bytes, for a body of `body_bytes`.
    #[must_use]
    #[inline]
    pub fn header(&self, body_bytes: u16) -> [u8; HEADER_BYTES] {
        let mut h = [0u8; HEADER_BYTES];
        h[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        h[2] = VERSION;
        h[3] = self.op as u8;
        h[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        h[6..8].copy_from_slice(&body_bytes.to_be_bytes());
        h[8..12].copy_from_slice(&self.obj_id.0.to_be_bytes());
        h[12..20].copy_from_slice(&self.seq.to_u64().to_be_bytes());
        h[20..28].copy_from_slice(&self.last_committed.to_u64().to_be_bytes());
        h[28..36].copy_from_slice(&self.session.0.to_be_bytes());
        h[36..44].copy_from_slice(&self.request.0.to_be_bytes());
        h[44..48].copy_from_slice(&self.client.ip.to_be_bytes());
        h[48..50].copy_from_slice(&self.client.port.to_be_bytes());
        h[50..52].copy_from_slice(&self.attempt.to_be_bytes());
        h[52..54].copy_from_slice(&self.low_delta.to_be_bytes());
        h[54..56].copy_from_slice(&self.after_delta.to_be_bytes());
        h[56..60].copy_from_slice(&self.epoch.0.to_be_bytes());
        h[60..62].copy_from_slice(&self.node.0.to_be_bytes());
        h[62] = self.status as u8;
        h[63] = self.reason as u8;
        h
    }
}

/// A checked view on a datagram with a Harmonia header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks magic, version, operation, status, reason and the body's length; padding behind the
    /// body is allowed.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, WireError> {
        if bytes.len() < HEADER_BYTES {
            return Err(WireError::Truncated);
        }
        if u16_at(bytes, 0) != MAGIC {
            return Err(WireError::Magic);
        }
        if bytes[2] != VERSION {
            return Err(WireError::Version);
        }
        if Op::from_byte(bytes[3]).is_none() {
            return Err(WireError::Op);
        }
        if Status::from_byte(bytes[62]).is_none() || Reason::from_byte(bytes[63]).is_none() {
            return Err(WireError::Field);
        }
        let body_bytes = u16_at(bytes, 6) as usize;
        let end = HEADER_BYTES + body_bytes;
        if body_bytes > BODY_BYTES_MAX {
            return Err(WireError::Field);
        }
        match bytes.get(..end) {
            Some(bytes) => Ok(Packet { bytes }),
            None => Err(WireError::Truncated),
        }
    }

    /// The header and the body, without padding.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What the packet is.
    #[must_use]
    #[inline]
    pub fn op(&self) -> Op {
        Op::from_byte(self.bytes[3]).unwrap_or(Op::Write)
    }

    /// See [`Flags`].
    #[must_use]
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags(u16_at(self.bytes, 4))
    }

    /// The object.
    #[must_use]
    #[inline]
    pub fn obj_id(&self) -> ObjectId {
        ObjectId(u32_at(self.bytes, 8))
    }

    /// The write's number.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> Seq {
        Seq::from_u64(u64_at(self.bytes, 12))
    }

    /// What follows the header.
    #[must_use]
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The whole header's meaning.
    #[must_use]
    #[inline]
    pub fn repr(&self) -> Repr {
        let b = self.bytes;
        Repr {
            op: self.op(),
            flags: self.flags(),
            obj_id: self.obj_id(),
            seq: self.seq(),
            last_committed: Seq::from_u64(u64_at(b, 20)),
            session: SessionId(u64_at(b, 28)),
            request: RequestNumber(u64_at(b, 36)),
            client: Addr { ip: u32_at(b, 44), port: u16_at(b, 48) },
            attempt: u16_at(b, 50),
            low_delta: u16_at(b, 52),
            after_delta: u16_at(b, 54),
            epoch: Epoch(u32_at(b, 56)),
            node: NodeId(u16_at(b, 60)),
            status: Status::from_byte(b[62]).unwrap_or(Status::Malformed),
            reason: Reason::from_byte(b[63]).unwrap_or(Reason::None),
        }
    }
}

/// A view that changes what a switch may change: sequence number, last-committed point, flags,
/// reason. Everything else passes untouched.
#[derive(Debug)]
pub struct PacketMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> PacketMut<'a> {
    /// Like [`Packet::parse`].
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<PacketMut<'a>, WireError> {
        let length = Packet::parse(bytes)?.bytes().len();
        Ok(PacketMut { bytes: &mut bytes[..length] })
    }

    /// The same packet, to read.
    #[must_use]
    #[inline]
    pub fn view(&self) -> Packet<'_> {
        Packet { bytes: self.bytes }
    }

    /// Numbers a write.
    #[inline]
    pub fn set_seq(&mut self, seq: Seq) {
        self.bytes[12..20].copy_from_slice(&seq.to_u64().to_be_bytes());
    }

    /// Stamps a fast read.
    #[inline]
    pub fn set_last_committed(&mut self, seq: Seq) {
        self.bytes[20..28].copy_from_slice(&seq.to_u64().to_be_bytes());
    }

    /// Stamps a write with the log's time in ms, in the place of the last-committed point.
    #[inline]
    pub fn set_time_ms(&mut self, unix_ms: u64) {
        self.bytes[20..28].copy_from_slice(&unix_ms.to_be_bytes());
    }

    /// Says whether memory is full, in the switch's name.
    #[inline]
    pub fn set_memory_full(&mut self, full: bool) {
        let flags = self.view().repr().flags;
        self.set_flags(flags.set(Flags::MEMORY_FULL, full));
    }

    /// Replaces the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: Flags) {
        self.bytes[4..6].copy_from_slice(&flags.0.to_be_bytes());
    }

    /// Says which path and why.
    #[inline]
    pub fn set_reason(&mut self, reason: Reason) {
        self.bytes[63] = reason as u8;
    }
}

/// The switch id of a packet's last-committed point, without parsing the rest; for traces.
#[must_use]
pub fn last_committed_switch(packet: &Packet<'_>) -> SwitchId {
    SwitchId(u32_at(packet.bytes, 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn example() -> Repr {
        Repr {
            flags: Flags::RESP3.with(Flags::FAST),
            obj_id: ObjectId(0x0102_0304),
            seq: Seq::new(SwitchId(7), 9),
            last_committed: Seq::new(SwitchId(7), 8),
            session: SessionId(0x1122_3344_5566_7788),
            request: RequestNumber(5),
            client: Addr { ip: 0x7f00_0001, port: 7379 },
            attempt: 2,
            low_delta: 3,
            after_delta: 1,
            epoch: Epoch(4),
            node: NodeId(6),
            status: Status::Order,
            reason: Reason::SlowDirty,
            ..Repr::new(Op::Write)
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = vec![];
        example().emit(b"body", &mut out);
        let hex: alloc::string::String = out.iter().map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../../vectors/wire/harmonia.hex").trim());
    }

    #[test]
    fn a_header_survives_the_wire_with_padding_behind() {
        let mut out = vec![];
        example().emit(b"body", &mut out);
        out.extend_from_slice(&[0; 30]);
        let p = Packet::parse(&out).unwrap();
        assert_eq!(p.repr(), example());
        assert_eq!(p.body(), b"body");
    }

    #[test]
    fn malformed_packets_are_refused_with_a_reason() {
        let mut out = vec![];
        example().emit(b"body", &mut out);
        for cut in 0..out.len() {
            assert_eq!(Packet::parse(&out[..cut]).unwrap_err(), WireError::Truncated);
        }
        let with = |at: usize, byte: u8| {
            let mut o = out.clone();
            o[at] = byte;
            Packet::parse(&o).unwrap_err()
        };
        assert_eq!(with(0, 0), WireError::Magic);
        assert_eq!(with(2, 99), WireError::Version);
        assert_eq!(with(3, 0), WireError::Op);
        assert_eq!(with(3, 200), WireError::Op);
        assert_eq!(with(6, 0xff), WireError::Field);
        assert_eq!(with(62, 99), WireError::Field);
        assert_eq!(with(63, 99), WireError::Field);
    }
}
