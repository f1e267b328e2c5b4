//! The header of every client request and answer, whatever the store: session, request, attempt,
//! client, status, times, objects. Bodies of several packets, pulls of long replies and pushes are
//! alike for all stores. What a switch program stamps has 24 bytes of room: the numbers here are
//! those of programs that order writes; FLAIR's lie over them ([`crate::flair`]), CRAQ uses none.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 16 | what all headers have ([`crate::header`]) |
//! | 16 | 2 | flags |
//! | 18 | 1 | status |
//! | 19 | 1 | reason |
//! | 20 | 8 | session id |
//! | 28 | 8 | request number |
//! | 36 | 4 + 2 | client address |
//! | 42 | 2 | attempt |
//! | 44 | 2 | request number minus the lowest unanswered one of the session (trap T16) |
//! | 46 | 2 | request number minus that of the write it must follow, 0 if none (trap T22) |
//! | 48 | 8 | the log's time in ms, in a write that the switch orders |
//! | 56 | 1 | further object ids: 0 to 7 |
//! | 57 | 3 | reserved |
//! | 60 | 4 | object id, the first |
//! | 64 | 4 + 4 | sequence number (switch id, counter), in writes, replies and completions |
//! | 72 | 4 + 4 | last committed (switch id, counter), in fast reads |
//! | 80 | 4 | index, in sweeps |
//! | 84 | 4 | reserved |
//! | 88 | 4 each | further object ids |
//! | then | | body |

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, ObjectId, RequestNumber, Seq, SessionId};

use crate::Addr;
use crate::byte_enum::byte_enum;
use crate::header::{GroupId, Header, Kind};
use crate::objects::{FURTHER_MAX, FurtherIds, ID_BYTES};
use crate::{PACKET_BYTES_MAX, WireError, u16_at, u32_at, u64_at};

/// The offsets of the fields of every request.
pub mod at {
    use core::ops::Range;

    /// Flags.
    pub const FLAGS: Range<usize> = 16..18;
    /// Status.
    pub const STATUS: usize = 18;
    /// Reason.
    pub const REASON: usize = 19;
    /// Session id.
    pub const SESSION: Range<usize> = 20..28;
    /// Request number.
    pub const REQUEST: Range<usize> = 28..36;
    /// The client's IPv4 address.
    pub const CLIENT_IP: Range<usize> = 36..40;
    /// The client's UDP port.
    pub const CLIENT_PORT: Range<usize> = 40..42;
    /// Attempt.
    pub const ATTEMPT: Range<usize> = 42..44;
    /// Distance to the lowest unanswered request.
    pub const LOW_DELTA: Range<usize> = 44..46;
    /// Distance to the write before.
    pub const AFTER_DELTA: Range<usize> = 46..48;
    /// The log's time.
    pub const TIME_MS: Range<usize> = 48..56;
    /// The number of object ids after the header.
    pub const FURTHER: usize = 56;
    /// The first object id.
    pub const OBJECT: Range<usize> = 60..64;
    /// The fields that the switch's program stamps.
    pub const OWN: Range<usize> = 64..88;
    /// A write's number.
    pub const SEQ: Range<usize> = 64..72;
    /// A fast read's last-committed point.
    pub const LAST_COMMITTED: Range<usize> = 72..80;
    /// The index that a sweep looks at.
    pub const INDEX: Range<usize> = 80..84;
    /// The offset of further ids and the body.
    pub const END: usize = 88;
}

/// Length of the header in bytes, without further object ids.
pub const HEADER_BYTES: usize = at::END;
/// Largest body in one packet, in bytes: there is room for a tag and for all object ids.
pub const BODY_BYTES_MAX: usize = PACKET_BYTES_MAX - HEADER_BYTES - FURTHER_MAX * ID_BYTES;

/// Request numbers of reads carry this bit: they have no place in the client table.
pub const READ_BIT: u64 = 1 << 63;

byte_enum!(
    /// The operation of a packet: up to 31 those of all stores, from 32 on Harmonia's.
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
        /// The reply to a write; carries the completion if [`Flags::COMPLETION`] is set.
        WriteReply = 5,
        /// The reply to a read.
        ReadReply = 6,
        /// Asks the responder for more fragments of a long reply.
        Pull = 7,
        /// A fragment of a long reply, or a status that says that it is gone.
        Fragment = 8,
        /// To a client that did not ask for it: the object that it waits for was written
        /// ([`Flags::WAITS`]); any may have been with [`Flags::WILDCARD`].
        Push = 9,
        /// A write is committed everywhere. Stand-alone where no reply carries it.
        WriteCompletion = 32,
        /// From the switch's own agent: clear what is stray at [`Repr::index`] (trap T19).
        Sweep = 33,
    }
);

byte_enum!(
    /// The outcome of a request, apart from the reply's content.
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
        /// Refused, not executed: the switch had no slot for it (NOPaxos, trap T23). Of a read, or
        /// a fragment of a body: the replica has no room for it now (trap T17).
        Busy = 8,
        /// Not sent any more: it named several objects.
        ManyObjects = 9,
        /// No outcome yet: who would execute it, or those whose answers it waits for, are at work
        /// on one operation, for as many ms as [`Repr::time_ms`] says.
        Working = 10,
    }
);

byte_enum!(
    /// The path of a read, and the reason for it. Set by the node that decided last.
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
        /// CRAQ: no write of the object was in flight here; one replica answered alone.
        Clean = 12,
        /// CRAQ: a write of the object was in flight here; the replica asked the tail for the
        /// committed position.
        AskedTail = 13,
        /// FLAIR: the leader answered, because a write of the key group is in flight.
        SlowUnstable = 14,
        /// FLAIR: the leader answered, because a write of the key group came while a follower did.
        SlowStaleReply = 15,
        /// FLAIR: the leader answered, because no follower that is heard is known to hold the key
        /// group.
        SlowNoHolder = 16,
        /// Follower leases: no write of the key group was in flight here; one follower answered
        /// alone.
        Leased = 17,
        /// Follower leases: passed on to the leader, because a write of the key group was in the
        /// follower's log and not executed.
        RefusedRevoked = 18,
        /// Quorum reads: one replica answered, when all was executed that a majority had logged.
        Quorum = 19,
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
    /// A write whose client waits if its reply is null: who answers tells it, by an [`Op::Push`],
    /// when one of its objects was written.
    pub const WAITS: Flags = Flags(2048);
    /// Said by who orders writes: the disk of a replica has no room, so that the write is refused,
    /// by every replica alike. A client's word counts for nothing.
    pub const DISK_FULL: Flags = Flags(4096);
    /// A read whose client has chosen the replica: [`Repr::node`] (follower leases).
    pub const CHOSEN: Flags = Flags(8192);
    /// The flags of writes that are never refused for lack of room: they are not a client's
    /// commands, or concern its session.
    pub const OWN: [Flags; 3] = [Flags::NOOP, Flags::REGISTER, Flags::INTERNAL];

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

    /// These bits, and whether the write is refused where a disk is full.
    #[must_use]
    pub fn refused_if(self, disk_full: bool) -> Flags {
        let is_own = Flags::OWN.iter().any(|own| self.has(*own));
        self.set(Flags::DISK_FULL, disk_full && !is_own)
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
    /// The operation.
    pub op: Op,
    /// Which group of replicas it is for.
    pub group: GroupId,
    /// See [`Flags`].
    pub flags: Flags,
    /// The first object, or anything if [`Flags::WILDCARD`] or [`Flags::NOOP`].
    pub obj_id: ObjectId,
    /// The other objects.
    pub further: FurtherIds,
    /// A write's number, filled in by the switch.
    pub seq: Seq,
    /// A fast read's last-committed point, filled in by the switch.
    pub last_committed: Seq,
    /// The index that an [`Op::Sweep`] looks at, in every stage.
    pub index: u32,
    /// The session of the request.
    pub session: SessionId,
    /// Which request of the session.
    pub request: RequestNumber,
    /// The client's address, for the reply.
    pub client: Addr,
    /// From 0, counted up with each retry.
    pub attempt: u16,
    /// `request` minus the lowest unanswered request of the session.
    pub low_delta: u16,
    /// `request` minus the write that must be executed before; 0 if none.
    pub after_delta: u16,
    /// The log's time in ms since the Unix epoch, stamped by the switch that orders; 0 elsewhere.
    pub time_ms: u64,
    /// The epoch of who forwarded or answered.
    pub epoch: Epoch,
    /// The member that forwarded or answered; in an [`Op::Pull`], and a read with
    /// [`Flags::CHOSEN`], the one that is asked.
    pub node: NodeId,
    /// The outcome.
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
            group: GroupId(0),
            flags: Flags(0),
            obj_id: ObjectId(0),
            further: FurtherIds::NONE,
            seq: Seq::NONE,
            last_committed: Seq::NONE,
            index: 0,
            session: SessionId(0),
            request: RequestNumber(0),
            client: Addr { ip: 0, port: 0 },
            attempt: 0,
            low_delta: 0,
            after_delta: 0,
            time_ms: 0,
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

    /// Whether it concerns more than one object: several, or all.
    #[must_use]
    #[inline]
    pub const fn is_of_many(&self) -> bool {
        self.flags.has(Flags::WILDCARD) || !self.further.is_empty()
    }

    /// Writes the packet with `body` into `out`, replacing what was there.
    ///
    /// # Panics
    /// If the body does not fit into a datagram: the caller has to cut it into fragments before.
    #[inline]
    pub fn emit(&self, body: &[u8], out: &mut Vec<u8>) {
        assert!(body.len() <= BODY_BYTES_MAX, "the body fits a datagram");
        let length = HEADER_BYTES + self.further.size_bytes() + body.len();
        out.clear();
        out.extend_from_slice(&self.head(length));
        self.further.emit(out);
        out.extend_from_slice(body);
    }

    /// The header's bytes, for a packet with at most one object and a body of `body_bytes`.
    ///
    /// # Panics
    /// If there are further objects, whose ids follow the header.
    #[must_use]
    #[inline]
    pub fn header(&self, body_bytes: u16) -> [u8; HEADER_BYTES] {
        assert!(self.further.is_empty(), "a header by itself has one object");
        self.head(HEADER_BYTES + usize::from(body_bytes))
    }

    #[inline]
    fn head(&self, length: usize) -> [u8; HEADER_BYTES] {
        let common = Header {
            kind: Kind::Store,
            op: self.op as u8,
            group: self.group,
            node: self.node,
            epoch: self.epoch,
        };
        let mut h = [0u8; HEADER_BYTES];
        h[..crate::header::COMMON_BYTES].copy_from_slice(&common.bytes(length));
        h[at::FLAGS].copy_from_slice(&self.flags.0.to_be_bytes());
        h[at::STATUS] = self.status as u8;
        h[at::REASON] = self.reason as u8;
        h[at::SESSION].copy_from_slice(&self.session.0.to_be_bytes());
        h[at::REQUEST].copy_from_slice(&self.request.0.to_be_bytes());
        h[at::CLIENT_IP].copy_from_slice(&self.client.ip.to_be_bytes());
        h[at::CLIENT_PORT].copy_from_slice(&self.client.port.to_be_bytes());
        h[at::ATTEMPT].copy_from_slice(&self.attempt.to_be_bytes());
        h[at::LOW_DELTA].copy_from_slice(&self.low_delta.to_be_bytes());
        h[at::AFTER_DELTA].copy_from_slice(&self.after_delta.to_be_bytes());
        h[at::TIME_MS].copy_from_slice(&self.time_ms.to_be_bytes());
        h[at::FURTHER] = self.further.len() as u8;
        h[at::OBJECT].copy_from_slice(&self.obj_id.0.to_be_bytes());
        h[at::SEQ].copy_from_slice(&self.seq.to_u64().to_be_bytes());
        let last_committed = self.last_committed.to_u64();
        h[at::LAST_COMMITTED].copy_from_slice(&last_committed.to_be_bytes());
        h[at::INDEX].copy_from_slice(&self.index.to_be_bytes());
        h
    }
}

/// A checked view on a request or an answer.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks magic, version, kind, operation, status, reason, the count of ids and the length. A
    /// tag and padding after the body are left out.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, WireError> {
        Packet::parse_kind(bytes, Kind::Store)
    }

    /// As [`Packet::parse`], of one of the kinds that have this header.
    #[inline]
    pub(crate) fn parse_kind(bytes: &'a [u8], kind: Kind) -> Result<Packet<'a>, WireError> {
        let (header, bytes) = Header::parse_kind(bytes, kind, HEADER_BYTES)?;
        if Op::from_byte(header.op).is_none() {
            return Err(WireError::Op);
        }
        // Of a known length, so that one check is for all fields.
        let h = bytes.first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
        let further = usize::from(h[at::FURTHER]);
        if Status::from_byte(h[at::STATUS]).is_none()
            || Reason::from_byte(h[at::REASON]).is_none()
            || further > FURTHER_MAX
        {
            return Err(WireError::Field);
        }
        let body_at = HEADER_BYTES + further * ID_BYTES;
        match bytes.len().checked_sub(body_at) {
            Some(0..=BODY_BYTES_MAX) => Ok(Packet { bytes }),
            Some(_) => Err(WireError::Field),
            None => Err(WireError::Truncated),
        }
    }

    /// The header and the body, without tag and padding.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The operation.
    #[must_use]
    #[inline]
    pub fn op(&self) -> Op {
        Op::from_byte(crate::op(self.bytes)).unwrap_or(Op::Write)
    }

    /// See [`Flags`].
    #[must_use]
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags(u16_at(self.bytes, at::FLAGS.start))
    }

    /// The first object.
    #[must_use]
    #[inline]
    pub fn obj_id(&self) -> ObjectId {
        ObjectId(u32_at(self.bytes, at::OBJECT.start))
    }

    /// The write's number.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> Seq {
        Seq::from_u64(u64_at(self.bytes, at::SEQ.start))
    }

    /// The bytes after the header and object ids.
    #[must_use]
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES + usize::from(self.bytes[at::FURTHER]) * ID_BYTES..]
    }

    /// The whole header's meaning.
    #[must_use]
    #[inline]
    pub fn repr(&self) -> Repr {
        const NOTHING: &[u8; HEADER_BYTES] = &[0; HEADER_BYTES];
        // Parsing has checked that it is there. Of a known length, so that one check is for all
        // fields.
        let (b, rest) = self.bytes.split_first_chunk().unwrap_or((NOTHING, &[]));
        let further = FurtherIds::parse(b[at::FURTHER], rest).unwrap_or(FurtherIds::NONE);
        let client =
            Addr { ip: u32_at(b, at::CLIENT_IP.start), port: u16_at(b, at::CLIENT_PORT.start) };
        Repr {
            op: Op::from_byte(b[crate::header::at::OP]).unwrap_or(Op::Write),
            group: GroupId(u16_at(b, crate::header::at::GROUP.start)),
            flags: Flags(u16_at(b, at::FLAGS.start)),
            obj_id: ObjectId(u32_at(b, at::OBJECT.start)),
            further,
            seq: Seq::from_u64(u64_at(b, at::SEQ.start)),
            last_committed: Seq::from_u64(u64_at(b, at::LAST_COMMITTED.start)),
            index: u32_at(b, at::INDEX.start),
            session: SessionId(u64_at(b, at::SESSION.start)),
            request: RequestNumber(u64_at(b, at::REQUEST.start)),
            client,
            attempt: u16_at(b, at::ATTEMPT.start),
            low_delta: u16_at(b, at::LOW_DELTA.start),
            after_delta: u16_at(b, at::AFTER_DELTA.start),
            time_ms: u64_at(b, at::TIME_MS.start),
            epoch: Epoch(u32_at(b, crate::header::at::EPOCH.start)),
            node: NodeId(u16_at(b, crate::header::at::NODE.start)),
            status: Status::from_byte(b[at::STATUS]).unwrap_or(Status::Malformed),
            reason: Reason::from_byte(b[at::REASON]).unwrap_or(Reason::None),
        }
    }
}

/// A view that changes what a switch may change: flags, reason, the log's time, and the system's
/// own fields. Everything else passes untouched.
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

    /// A read-only view on the packet.
    #[must_use]
    #[inline]
    pub fn view(&self) -> Packet<'_> {
        Packet { bytes: self.bytes }
    }

    /// Numbers a write.
    #[inline]
    pub fn set_seq(&mut self, seq: Seq) {
        self.bytes[at::SEQ].copy_from_slice(&seq.to_u64().to_be_bytes());
    }

    /// Stamps a fast read.
    #[inline]
    pub fn set_last_committed(&mut self, seq: Seq) {
        self.bytes[at::LAST_COMMITTED].copy_from_slice(&seq.to_u64().to_be_bytes());
    }

    /// Stamps a write with the log's time in ms.
    #[inline]
    pub fn set_time_ms(&mut self, unix_ms: u64) {
        self.bytes[at::TIME_MS].copy_from_slice(&unix_ms.to_be_bytes());
    }

    /// Says whether memory and a disk are full, in the switch's name.
    #[inline]
    pub fn set_full(&mut self, memory: bool, disk: bool) {
        let flags = self.view().flags().set(Flags::MEMORY_FULL, memory);
        self.set_flags(flags.refused_if(disk));
    }

    /// Replaces the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: Flags) {
        self.bytes[at::FLAGS].copy_from_slice(&flags.0.to_be_bytes());
    }

    /// Says which path and why.
    #[inline]
    pub fn set_reason(&mut self, reason: Reason) {
        self.bytes[at::REASON] = reason as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn example() -> Repr {
        Repr {
            group: GroupId(2),
            flags: Flags::BODY_STAGED.with(Flags::RESP3),
            obj_id: ObjectId(0xdead_beef),
            seq: Seq::new(concord_core::SwitchId(7), 9),
            last_committed: Seq::new(concord_core::SwitchId(7), 8),
            index: 0x0102_0304,
            session: SessionId(0x0102_0304_0506_0708),
            request: RequestNumber(99),
            client: Addr { ip: 0x0a00_0102, port: 7001 },
            attempt: 3,
            low_delta: 5,
            after_delta: 1,
            time_ms: 0x0188_0000_0001,
            epoch: Epoch(4),
            node: NodeId(6),
            status: Status::Order,
            reason: Reason::SlowDirty,
            ..Repr::new(Op::Write)
        }
    }

    fn of_objects(count: u32) -> Repr {
        let ids: Vec<ObjectId> = (1..count).map(|i| ObjectId(i * 0x1111_1111)).collect();
        Repr { further: FurtherIds::new(&ids).unwrap(), ..example() }
    }

    #[test]
    fn golden_bytes() {
        let (mut one, mut eight) = (vec![], vec![]);
        example().emit(b"body", &mut one);
        of_objects(8).emit(b"body", &mut eight);
        crate::golden("harmonia.hex", &[one, eight]);
    }

    #[test]
    fn a_header_survives_the_wire_with_a_tag_and_padding_behind() {
        for count in 1..=8 {
            let mut out = vec![];
            of_objects(count).emit(b"body", &mut out);
            let length = out.len();
            out.extend_from_slice(&[0xff; 46]);
            let p = Packet::parse(&out).unwrap();
            assert_eq!((p.repr(), p.body()), (of_objects(count), &b"body"[..]));
            assert_eq!(p.bytes().len(), length);
        }
    }

    #[test]
    fn the_largest_body_leaves_room_for_eight_objects_and_a_tag() {
        let mut out = vec![];
        of_objects(8).emit(&[7; BODY_BYTES_MAX], &mut out);
        assert_eq!(out.len() + crate::header::TAG_BYTES, crate::DATAGRAM_BYTES_MAX);
        assert_eq!(Packet::parse(&out).unwrap().body().len(), BODY_BYTES_MAX);
        // Without the ids the same length would be a body that is too long.
        out[at::FURTHER] = 6;
        assert_eq!(Packet::parse(&out).unwrap_err(), WireError::Field);
    }

    #[test]
    fn every_operation_status_and_reason_has_a_byte_of_its_own() {
        for byte in 0..=255u8 {
            assert!(Op::from_byte(byte).is_none_or(|op| op as u8 == byte));
            assert!(Status::from_byte(byte).is_none_or(|status| status as u8 == byte));
            assert!(Reason::from_byte(byte).is_none_or(|reason| reason as u8 == byte));
        }
        for op in Op::ALL {
            let mut out = vec![];
            Repr::new(*op).emit(&[], &mut out);
            assert_eq!(Packet::parse(&out).unwrap().op(), *op);
        }
    }

    /// What a switch changes is where it is read and nothing else moves.
    #[test]
    fn switch_changes_are_local() {
        let mut out = vec![];
        of_objects(3).emit(b"body", &mut out);
        let mut packet = PacketMut::parse(&mut out).unwrap();
        let seq = Seq::new(concord_core::SwitchId(1), 2);
        packet.set_seq(seq);
        packet.set_last_committed(seq);
        packet.set_time_ms(77);
        packet.set_flags(Flags::FAST);
        packet.set_full(true, false);
        packet.set_reason(Reason::Fast);
        let expected = Repr {
            seq,
            last_committed: seq,
            time_ms: 77,
            flags: Flags::FAST.with(Flags::MEMORY_FULL),
            reason: Reason::Fast,
            ..of_objects(3)
        };
        assert_eq!(packet.view().repr(), expected);
        assert_eq!(packet.view().body(), b"body");
    }

    #[test]
    fn malformed_packets_are_refused_with_a_reason() {
        let mut out = vec![];
        of_objects(3).emit(b"body", &mut out);
        for cut in 0..out.len() {
            assert_eq!(Packet::parse(&out[..cut]).unwrap_err(), WireError::Truncated);
        }
        let with = |at: usize, byte: u8| {
            let mut o = out.clone();
            o[at] = byte;
            Packet::parse(&o).unwrap_err()
        };
        assert_eq!(with(crate::header::at::OP, 0), WireError::Op);
        assert_eq!(with(crate::header::at::OP, 10), WireError::Op);
        assert_eq!(with(crate::header::at::OP, 200), WireError::Op);
        assert_eq!(with(crate::header::at::KIND, Kind::Link as u8), WireError::Op);
        assert_eq!(with(crate::header::at::LENGTH.start + 1, 87), WireError::Truncated);
        assert_eq!(with(at::STATUS, 99), WireError::Field);
        assert_eq!(with(at::REASON, 99), WireError::Field);
        assert_eq!(with(at::FURTHER, 8), WireError::Field);
        // Two ids and a body of four bytes: three ids and no body, or four that are not there.
        assert_eq!(with(at::FURTHER, 4), WireError::Truncated);
    }
}
