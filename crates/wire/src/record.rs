//! A record of the replicated log: what the ordering node decided, for every replica.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | position |
//! | 8 | 8 | running hash |
//! | 16 | 4 | epoch |
//! | 20 | 2 | flags |
//! | 22 | 2 | request number minus the lowest unanswered one |
//! | 24 | 4 + 4 | sequence number: switch id, counter |
//! | 32 | 8 | session id |
//! | 40 | 8 | request number |
//! | 48 | 8 | the log's time in ms |
//! | 56 | 4 | object id, the first |
//! | 60 | 2 | request number minus that of the write before |
//! | 62 | 2 | attempt |
//! | 64 | 4 + 2 | client address |
//! | 70 | 1 | status if it was refused |
//! | 71 | 1 | further object ids: 0 to 7 |
//! | 72 | 4 | length of the command in bytes |
//! | 76 | 4 | length of the reply in bytes |
//! | 80 | 4 each | further object ids |
//! | then | | command, reply |
//!
//! `hash` is the running hash over all records up to this one (trap T5).

use alloc::vec::Vec;

use concord_core::hash::hash64;
use concord_core::{Epoch, ObjectId, Position, RequestNumber, Seq, SessionId};

use crate::Addr;
use crate::objects::{FURTHER_MAX, FurtherIds, ID_BYTES};
use crate::rpc::{Flags, Status};
use crate::{WireError, u16_at, u32_at, u64_at};

/// Length of a record before its further object ids and its command, in bytes.
pub const RECORD_HEADER_BYTES: usize = at::END;
/// The largest size of a record without its command and its reply, in bytes.
pub const RECORD_OVERHEAD_BYTES_MAX: usize = RECORD_HEADER_BYTES + FURTHER_MAX * ID_BYTES;

/// The offsets of the fields.
mod at {
    use core::ops::Range;

    pub(super) const POSITION: usize = 0;
    pub(super) const HASH: Range<usize> = 8..16;
    /// The bytes before this are not hashed.
    pub(super) const EPOCH: usize = 16;
    pub(super) const FLAGS: usize = 20;
    pub(super) const LOW_DELTA: usize = 22;
    pub(super) const SEQ: usize = 24;
    pub(super) const SESSION: usize = 32;
    pub(super) const REQUEST: usize = 40;
    pub(super) const NOW_MS: usize = 48;
    pub(super) const OBJECT: usize = 56;
    pub(super) const AFTER_DELTA: usize = 60;
    pub(super) const ATTEMPT: usize = 62;
    pub(super) const CLIENT_IP: usize = 64;
    pub(super) const CLIENT_PORT: usize = 68;
    pub(super) const REFUSED: usize = 70;
    pub(super) const FURTHER: usize = 71;
    pub(super) const COMMAND_BYTES: usize = 72;
    pub(super) const REPLY_BYTES: usize = 76;
    pub(super) const END: usize = 80;
}

/// A record, its command and its reply borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in the log.
    pub position: Position,
    /// The running hash, this record included.
    pub hash: u64,
    /// The epoch in which it was ordered.
    pub epoch: Epoch,
    /// [`Flags`] of the write.
    pub flags: Flags,
    /// As in the write's header.
    pub low_delta: u16,
    /// The switch's number; strictly rising along the log where the switch helps.
    pub seq: Seq,
    /// The session of the write.
    pub session: SessionId,
    /// Which of the session.
    pub request: RequestNumber,
    /// The log's time in ms (docs/reference/semantics.md); it falls only where no key has a time to
    /// live.
    pub now_ms: u64,
    /// The first object.
    pub obj_id: ObjectId,
    /// The other objects.
    pub further: FurtherIds,
    /// As in the write's header.
    pub after_delta: u16,
    /// As in the write's header.
    pub attempt: u16,
    /// The client's address, for the reply.
    pub client: Addr,
    /// If not [`Status::Ok`]: the ordering node refused the write, and no replica executes it.
    pub refused: Status,
    /// An encoded command; empty for what only takes its turn.
    pub command: &'a [u8],
    /// The ordering node's reply, where the engine is a server that might answer otherwise.
    pub reply: &'a [u8],
}

impl Record<'_> {
    /// One that says nothing, of no request: what tests fill in.
    pub const EMPTY: Record<'static> = Record {
        position: Position(0),
        hash: 0,
        epoch: Epoch(0),
        flags: Flags(0),
        low_delta: 0,
        seq: Seq::NONE,
        session: SessionId(0),
        request: RequestNumber(0),
        now_ms: 0,
        obj_id: ObjectId(0),
        further: FurtherIds::NONE,
        after_delta: 0,
        attempt: 0,
        client: Addr { ip: 0, port: 0 },
        refused: Status::Ok,
        command: b"",
        reply: b"",
    };
}

impl<'a> Record<'a> {
    /// Reads one record.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not exactly one record.
    pub fn parse(b: &'a [u8]) -> Result<Record<'a>, WireError> {
        if b.len() < RECORD_HEADER_BYTES {
            return Err(WireError::Truncated);
        }
        let command_bytes = u32_at(b, at::COMMAND_BYTES) as usize;
        let reply_bytes = u32_at(b, at::REPLY_BYTES) as usize;
        let further = FurtherIds::parse(b[at::FURTHER], &b[RECORD_HEADER_BYTES..])?;
        let rest = &b[RECORD_HEADER_BYTES + further.size_bytes()..];
        let (command, reply) = rest.split_at_checked(command_bytes).ok_or(WireError::Truncated)?;
        if reply.len() != reply_bytes {
            return Err(WireError::Truncated);
        }
        Ok(Record {
            position: Position(u64_at(b, at::POSITION)),
            hash: u64_at(b, at::HASH.start),
            epoch: Epoch(u32_at(b, at::EPOCH)),
            flags: Flags(u16_at(b, at::FLAGS)),
            low_delta: u16_at(b, at::LOW_DELTA),
            seq: Seq::from_u64(u64_at(b, at::SEQ)),
            session: SessionId(u64_at(b, at::SESSION)),
            request: RequestNumber(u64_at(b, at::REQUEST)),
            now_ms: u64_at(b, at::NOW_MS),
            obj_id: ObjectId(u32_at(b, at::OBJECT)),
            further,
            after_delta: u16_at(b, at::AFTER_DELTA),
            attempt: u16_at(b, at::ATTEMPT),
            client: Addr { ip: u32_at(b, at::CLIENT_IP), port: u16_at(b, at::CLIENT_PORT) },
            refused: Status::from_byte(b[at::REFUSED]).ok_or(WireError::Field)?,
            command,
            reply,
        })
    }

    /// Cuts the first of several encoded records off; `None` if there is no whole one.
    #[must_use]
    pub fn split_first(b: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if b.len() < RECORD_HEADER_BYTES {
            return None;
        }
        let further_bytes = usize::from(b[at::FURTHER]) * ID_BYTES;
        let behind_header = (u32_at(b, at::COMMAND_BYTES) as usize)
            .checked_add(u32_at(b, at::REPLY_BYTES) as usize)?
            .checked_add(further_bytes)?;
        b.split_at_checked(RECORD_HEADER_BYTES.checked_add(behind_header)?)
    }

    /// Appends the record to `out` with the running hash that follows `previous_hash`, and gives
    /// that hash. The `hash` field is ignored.
    pub fn emit(&self, previous_hash: u64, out: &mut Vec<u8>) -> u64 {
        let start = out.len();
        let mut header = [0; RECORD_HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
        put(at::POSITION, &self.position.0.to_be_bytes());
        put(at::EPOCH, &self.epoch.0.to_be_bytes());
        put(at::FLAGS, &self.flags.0.to_be_bytes());
        put(at::LOW_DELTA, &self.low_delta.to_be_bytes());
        put(at::SEQ, &self.seq.to_u64().to_be_bytes());
        put(at::SESSION, &self.session.0.to_be_bytes());
        put(at::REQUEST, &self.request.0.to_be_bytes());
        put(at::NOW_MS, &self.now_ms.to_be_bytes());
        put(at::OBJECT, &self.obj_id.0.to_be_bytes());
        put(at::AFTER_DELTA, &self.after_delta.to_be_bytes());
        put(at::ATTEMPT, &self.attempt.to_be_bytes());
        put(at::CLIENT_IP, &self.client.ip.to_be_bytes());
        put(at::CLIENT_PORT, &self.client.port.to_be_bytes());
        put(at::REFUSED, &[self.refused as u8]);
        put(at::FURTHER, &[self.further.len() as u8]);
        put(at::COMMAND_BYTES, &(self.command.len() as u32).to_be_bytes());
        put(at::REPLY_BYTES, &(self.reply.len() as u32).to_be_bytes());
        out.extend_from_slice(&header);
        self.further.emit(out);
        out.extend_from_slice(self.command);
        out.extend_from_slice(self.reply);
        let hash = running_hash(previous_hash, &out[start..]);
        out[start..][at::HASH].copy_from_slice(&hash.to_be_bytes());
        hash
    }
}

/// The running hash after the encoded record `bytes`; position and hash field are not hashed, the
/// position is implied by the order.
#[must_use]
pub fn running_hash(previous_hash: u64, bytes: &[u8]) -> u64 {
    hash64(previous_hash, &bytes[at::EPOCH..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::SwitchId;

    /// A record survives the wire and its hash depends on all before.
    #[test]
    fn record_round_trip_and_chained_hash() {
        let r = Record {
            position: Position(5),
            hash: 0,
            epoch: Epoch(2),
            flags: Flags::RESP3,
            low_delta: 1,
            seq: Seq::new(SwitchId(3), 4),
            session: SessionId(6),
            request: RequestNumber(7),
            now_ms: 8,
            obj_id: ObjectId(9),
            further: FurtherIds::NONE,
            after_delta: 10,
            attempt: 11,
            client: Addr { ip: 12, port: 13 },
            refused: Status::Ok,
            command: b"command",
            reply: b"reply",
        };
        let seven: Vec<ObjectId> = (21..28).map(ObjectId).collect();
        let of_eight = Record { further: FurtherIds::new(&seven).unwrap(), ..r };
        let mut encoded = Vec::new();
        for r in [r, of_eight] {
            let mut out = Vec::new();
            let hash = r.emit(1, &mut out);
            assert_eq!(Record::parse(&out).unwrap(), Record { hash, ..r });
            assert_eq!(running_hash(1, &out), hash);
            assert_ne!(running_hash(2, &out), hash);
            for cut in 0..out.len() {
                assert!(Record::parse(&out[..cut]).is_err());
                assert_eq!(Record::split_first(&out[..cut]), None);
            }
            let two = [out.clone(), out.clone()].concat();
            assert_eq!(Record::split_first(&two), Some((&out[..], &out[..])));
            encoded.push(out);
        }
        let beside = encoded[1].len() - r.command.len() - r.reply.len();
        assert_eq!(beside, RECORD_OVERHEAD_BYTES_MAX);
        crate::golden("record.hex", &encoded);
        encoded[1][at::FURTHER] = 8;
        assert_eq!(Record::parse(&encoded[1]).unwrap_err(), WireError::Field);
    }
}
