//! CRAQ's version queries (CRAQ §2.3): a replica asks the tail up to where the log is committed.
//!
//! | offset | bytes | QUERY (op 1) | ANSWER (op 2) |
//! |---|---|---|---|
//! | 0 | 16 | what all headers have: the asker's node and epoch | the tail's |
//! | 16 | 8 | the question's number | the same |
//! | 24 | 4 + 2 | where the answer goes: address, port | committed (8) |
//! | 30 | 2 | reserved | |

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, Position};

use crate::Addr;
use crate::header::{Header, Kind, set_length};
use crate::{WireError, u16_at, u32_at, u64_at};

/// Operation of QUERY.
pub const OP_QUERY: u8 = 1;
/// Operation of ANSWER.
pub const OP_ANSWER: u8 = 2;
/// Length of both in bytes.
pub const VERSION_BYTES: usize = 32;

/// The offsets of the fields.
mod at {
    pub(super) const NUMBER: usize = 16;
    pub(super) const ASKER_IP: usize = 24;
    pub(super) const ASKER_PORT: usize = 28;
    pub(super) const COMMITTED: usize = 24;
}

/// A replica's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionQuery {
    /// The asker's epoch: only the tail of the same one answers (trap T25).
    pub epoch: Epoch,
    /// The asking replica.
    pub from: NodeId,
    /// The address for the answer.
    pub asker: Addr,
    /// The question's number, echoed: its answer holds for all reads that came before it was sent.
    pub number: u64,
}

/// The tail's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionAnswer {
    /// The tail's epoch.
    pub epoch: Epoch,
    /// The answering replica.
    pub from: NodeId,
    /// Echo of the question.
    pub number: u64,
    /// Every record up to here is committed.
    pub committed: Position,
}

/// Begins a packet: what both have in common.
fn begin(op: u8, (epoch, from): (Epoch, NodeId), number: u64, out: &mut Vec<u8>) {
    Header { node: from, epoch, ..Header::new(Kind::Craq, op) }.begin(out);
    out.extend_from_slice(&number.to_be_bytes());
}

fn parse(op: u8, bytes: &[u8]) -> Result<(Header, &[u8]), WireError> {
    let (header, b) = Header::parse_kind(bytes, Kind::Craq, VERSION_BYTES)?;
    if header.op != op {
        return Err(WireError::Op);
    }
    Ok((header, b))
}

impl VersionQuery {
    /// Reads a QUERY packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<VersionQuery, WireError> {
        let (header, b) = parse(OP_QUERY, bytes)?;
        let asker = Addr { ip: u32_at(b, at::ASKER_IP), port: u16_at(b, at::ASKER_PORT) };
        let number = u64_at(b, at::NUMBER);
        Ok(VersionQuery { epoch: header.epoch, from: header.node, asker, number })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        begin(OP_QUERY, (self.epoch, self.from), self.number, out);
        out.extend_from_slice(&self.asker.ip.to_be_bytes());
        out.extend_from_slice(&self.asker.port.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        set_length(out);
    }
}

impl VersionAnswer {
    /// Reads an ANSWER packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<VersionAnswer, WireError> {
        let (header, b) = parse(OP_ANSWER, bytes)?;
        let (number, committed) = (u64_at(b, at::NUMBER), Position(u64_at(b, at::COMMITTED)));
        Ok(VersionAnswer { epoch: header.epoch, from: header.node, number, committed })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        begin(OP_ANSWER, (self.epoch, self.from), self.number, out);
        out.extend_from_slice(&self.committed.0.to_be_bytes());
        set_length(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_survive_the_wire_and_golden_bytes_hold() {
        let asker = Addr { ip: 0x0a00_0102, port: 7001 };
        let q = VersionQuery { epoch: Epoch(3), from: NodeId(2), asker, number: 77 };
        let a =
            VersionAnswer { epoch: Epoch(3), from: NodeId(4), number: 77, committed: Position(70) };
        let (mut query, mut answer) = (Vec::new(), Vec::new());
        q.emit(&mut query);
        a.emit(&mut answer);
        crate::golden("craq.hex", &[query.clone(), answer.clone()]);
        assert_eq!(VersionQuery::parse(&query).unwrap(), q);
        assert_eq!(VersionAnswer::parse(&answer).unwrap(), a);
        assert_eq!(VersionAnswer::parse(&query).unwrap_err(), WireError::Op);
        assert_eq!(VersionQuery::parse(&answer).unwrap_err(), WireError::Op);
        for cut in 0..VERSION_BYTES {
            assert_eq!(VersionQuery::parse(&query[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert_eq!(crate::kind(&query), Ok(crate::Kind::Craq));
        assert_eq!(crate::kind(&answer), Ok(crate::Kind::Craq));
    }
}
