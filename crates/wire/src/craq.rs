//! CRAQ's version queries (CRAQ §2.3): a replica asks the tail up to where the log is committed.
//!
//! QUERY: `magic, version, op: 4 bytes; epoch: u32; from: u16; port: u16; ip: u32; number: u64;
//! reserved: u64`: the answer goes to `ip` and `port`.
//!
//! ANSWER: the same; `reserved` is `committed: u64`, `port` and `ip` are 0.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, Position};

use crate::addr::Addr;
use crate::{MAGIC, VERSION, WireError, u16_at, u32_at, u64_at};

/// Operation byte of QUERY.
pub const OP_QUERY: u8 = 36;
/// Operation byte of ANSWER.
pub const OP_ANSWER: u8 = 37;
/// Length of both in bytes.
pub const VERSION_BYTES: usize = 32;

/// A replica's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionQuery {
    /// The asker's epoch: only the tail of the same one answers (trap T25).
    pub epoch: Epoch,
    /// Who asks.
    pub from: NodeId,
    /// Where the answer goes.
    pub asker: Addr,
    /// The question's number, echoed: its answer holds for all reads that came before it was sent.
    pub number: u64,
}

/// The tail's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionAnswer {
    /// The tail's epoch.
    pub epoch: Epoch,
    /// Who answers.
    pub from: NodeId,
    /// Echo of the question.
    pub number: u64,
    /// Every record up to here is committed.
    pub committed: Position,
}

/// What both have in common: epoch, sender, address, number, last word.
type Fields = (Epoch, NodeId, Addr, u64, u64);

fn emit(op: u8, (epoch, from, asker, number, committed): Fields, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&MAGIC.to_be_bytes());
    out.extend_from_slice(&[VERSION, op]);
    out.extend_from_slice(&epoch.0.to_be_bytes());
    out.extend_from_slice(&from.0.to_be_bytes());
    out.extend_from_slice(&asker.port.to_be_bytes());
    out.extend_from_slice(&asker.ip.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&committed.to_be_bytes());
}

fn parse(op: u8, bytes: &[u8]) -> Result<Fields, WireError> {
    if bytes.len() < VERSION_BYTES {
        return Err(WireError::Truncated);
    }
    if bytes[3] != op {
        return Err(WireError::Op);
    }
    let asker = Addr { ip: u32_at(bytes, 12), port: u16_at(bytes, 10) };
    let (epoch, from) = (Epoch(u32_at(bytes, 4)), NodeId(u16_at(bytes, 8)));
    Ok((epoch, from, asker, u64_at(bytes, 16), u64_at(bytes, 24)))
}

impl VersionQuery {
    /// Reads a QUERY packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<VersionQuery, WireError> {
        let (epoch, from, asker, number, _) = parse(OP_QUERY, bytes)?;
        Ok(VersionQuery { epoch, from, asker, number })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit(OP_QUERY, (self.epoch, self.from, self.asker, self.number, 0), out);
    }
}

impl VersionAnswer {
    /// Reads an ANSWER packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<VersionAnswer, WireError> {
        let (epoch, from, _, number, committed) = parse(OP_ANSWER, bytes)?;
        Ok(VersionAnswer { epoch, from, number, committed: Position(committed) })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let nobody = Addr::default();
        emit(OP_ANSWER, (self.epoch, self.from, nobody, self.number, self.committed.0), out);
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
        let both = query.iter().chain(&answer);
        let hex: alloc::string::String = both.map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../../vectors/wire/craq.hex").trim());
        assert_eq!(VersionQuery::parse(&query).unwrap(), q);
        assert_eq!(VersionAnswer::parse(&answer).unwrap(), a);
        assert_eq!(VersionAnswer::parse(&query).unwrap_err(), WireError::Op);
        assert_eq!(VersionQuery::parse(&answer).unwrap_err(), WireError::Op);
        for cut in 0..VERSION_BYTES {
            assert_eq!(VersionQuery::parse(&query[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert_eq!(crate::kind(&query), Ok(crate::Kind::Link));
        assert_eq!(crate::kind(&answer), Ok(crate::Kind::Link));
    }
}
