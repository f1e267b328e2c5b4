//! A record of the replicated log: what the ordering node decided, for every replica.
//!
//! `position: u64, hash: u64, epoch: u32, flags: u16, low_delta: u16, seq: u64, session: u64,
//! request: u64, now_ms: u64, obj_id: u32, after_delta: u16, attempt: u16, client: u32 + u16,
//! refused: u8, reserved: u8, command_bytes: u32, reply_bytes: u32`, the command, the reply.
//!
//! `hash` is the running hash over all records up to this one (trap T5).

use alloc::vec::Vec;

use concord_core::hash::hash64;
use concord_core::{Epoch, ObjectId, Position, RequestNumber, Seq, SessionId};

use crate::addr::Addr;
use crate::harmonia::{Flags, Status};
use crate::{WireError, u16_at, u32_at, u64_at};

/// Length of a record before its command, in bytes.
pub const RECORD_HEADER_BYTES: usize = 80;
const HASHED_FROM: usize = 16;

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
    /// Whose write.
    pub session: SessionId,
    /// Which of the session.
    pub request: RequestNumber,
    /// The log's time in ms (docs/semantics.md); it falls only where no key has a time to live.
    pub now_ms: u64,
    /// The object.
    pub obj_id: ObjectId,
    /// As in the write's header.
    pub after_delta: u16,
    /// As in the write's header.
    pub attempt: u16,
    /// Where the reply goes.
    pub client: Addr,
    /// Not [`Status::Ok`]: refused by the ordering node, executed by nobody.
    pub refused: Status,
    /// An encoded command; empty for what only takes its turn.
    pub command: &'a [u8],
    /// The ordering node's reply, where the engine is a server that might answer otherwise.
    pub reply: &'a [u8],
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
        let command_bytes = u32_at(b, 72) as usize;
        let reply_bytes = u32_at(b, 76) as usize;
        let rest = &b[RECORD_HEADER_BYTES..];
        let (command, reply) = rest.split_at_checked(command_bytes).ok_or(WireError::Truncated)?;
        if reply.len() != reply_bytes {
            return Err(WireError::Truncated);
        }
        Ok(Record {
            position: Position(u64_at(b, 0)),
            hash: u64_at(b, 8),
            epoch: Epoch(u32_at(b, 16)),
            flags: Flags(u16_at(b, 20)),
            low_delta: u16_at(b, 22),
            seq: Seq::from_u64(u64_at(b, 24)),
            session: SessionId(u64_at(b, 32)),
            request: RequestNumber(u64_at(b, 40)),
            now_ms: u64_at(b, 48),
            obj_id: ObjectId(u32_at(b, 56)),
            after_delta: u16_at(b, 60),
            attempt: u16_at(b, 62),
            client: Addr { ip: u32_at(b, 64), port: u16_at(b, 68) },
            refused: Status::from_byte(b[70]).ok_or(WireError::Field)?,
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
        let behind_header = (u32_at(b, 72) as usize).checked_add(u32_at(b, 76) as usize)?;
        b.split_at_checked(RECORD_HEADER_BYTES.checked_add(behind_header)?)
    }

    /// Appends the record to `out` with the running hash that follows `previous_hash`, and gives
    /// that hash. The `hash` field is ignored.
    pub fn emit(&self, previous_hash: u64, out: &mut Vec<u8>) -> u64 {
        let start = out.len();
        out.extend_from_slice(&self.position.0.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
        out.extend_from_slice(&self.flags.0.to_be_bytes());
        out.extend_from_slice(&self.low_delta.to_be_bytes());
        out.extend_from_slice(&self.seq.to_u64().to_be_bytes());
        out.extend_from_slice(&self.session.0.to_be_bytes());
        out.extend_from_slice(&self.request.0.to_be_bytes());
        out.extend_from_slice(&self.now_ms.to_be_bytes());
        out.extend_from_slice(&self.obj_id.0.to_be_bytes());
        out.extend_from_slice(&self.after_delta.to_be_bytes());
        out.extend_from_slice(&self.attempt.to_be_bytes());
        out.extend_from_slice(&self.client.ip.to_be_bytes());
        out.extend_from_slice(&self.client.port.to_be_bytes());
        out.extend_from_slice(&[self.refused as u8, 0]);
        out.extend_from_slice(&(self.command.len() as u32).to_be_bytes());
        out.extend_from_slice(&(self.reply.len() as u32).to_be_bytes());
        out.extend_from_slice(self.command);
        out.extend_from_slice(self.reply);
        let hash = running_hash(previous_hash, &out[start..]);
        out[start + 8..start + 16].copy_from_slice(&hash.to_be_bytes());
        hash
    }
}

/// The running hash after the encoded record `bytes`; position and hash field are not hashed, the
/// position is implied by the order.
#[must_use]
pub fn running_hash(previous_hash: u64, bytes: &[u8]) -> u64 {
    hash64(previous_hash, &bytes[HASHED_FROM..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::SwitchId;

    #[test]
    fn a_record_survives_the_wire_and_its_hash_depends_on_all_before() {
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
            after_delta: 10,
            attempt: 11,
            client: Addr { ip: 12, port: 13 },
            refused: Status::Ok,
            command: b"command",
            reply: b"reply",
        };
        let mut out = Vec::new();
        let hash = r.emit(1, &mut out);
        let hex: alloc::string::String = out.iter().map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../../vectors/wire/record.hex").trim());
        assert_eq!(Record::parse(&out).unwrap(), Record { hash, ..r });
        assert_eq!(running_hash(1, &out), hash);
        assert_ne!(running_hash(2, &out), hash);
        for cut in 0..out.len() {
            assert!(Record::parse(&out[..cut]).is_err());
            assert_eq!(Record::split_first(&out[..cut]), None);
        }
        let two = [out.clone(), out.clone()].concat();
        assert_eq!(Record::split_first(&two), Some((&out[..], &out[..])));
    }
}
