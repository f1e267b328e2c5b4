//! NetChain's header (NSDI 2018, as NetCRAQ §II.B.2 describes it): the packet has a list of the
//! switches that it still has to visit, and each switch removes itself from it. Used by the
//! simulator, figures and benches.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | the fields that all headers share |
//! | 16 | 1 | OP: 1 READ, 2 WRITE, 3 REPLY |
//! | 17 | 1 | SC: the number of switches that follow |
//! | 18 | 2 | reserved |
//! | 20 | 4 | KEY |
//! | 24 | 8 | SEQ: 16 bits as published, or 48 |
//! | 32 | 16 | VALUE |
//! | 48 | SC x 6 | S_k: address and port of the k-th switch that follows |
//! | | 6 | address and port of the client |

use alloc::vec::Vec;

use crate::header::{Header, Kind, set_length};
use crate::{Addr, WireError, u16_at, u32_at, u64_at};

/// The maximum number of switches in a chain.
pub const CHAIN_MAX: usize = 8;
const FIXED_BYTES: usize = 48;
const ADDR_BYTES: usize = 6;

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// A read, which goes to the tail.
    Read = 1,
    /// A write, which goes to the head, and then along the chain.
    Write = 2,
    /// The tail's answer.
    Reply = 3,
}

/// The meaning of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repr {
    /// OP: the operation.
    pub op: Op,
    /// KEY: the index of the key.
    pub key: u32,
    /// SEQ: the sequence number that the head gave the write; 0 before that.
    pub seq: u64,
    /// VALUE: the value of the key, in bytes.
    pub value: [u8; 16],
    /// S_k: the switches that the packet still has to visit, in order.
    pub chain: Vec<Addr>,
    /// The client that is answered.
    pub client: Addr,
}

impl Repr {
    /// Parses a packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Repr, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::NetChain, FIXED_BYTES + ADDR_BYTES)?;
        let op = match header.op {
            1 => Op::Read,
            2 => Op::Write,
            3 => Op::Reply,
            _ => return Err(WireError::Op),
        };
        let switches = usize::from(b[17]);
        if b[16] != header.op || switches > CHAIN_MAX {
            return Err(WireError::Field);
        }
        if b.len() != FIXED_BYTES + ADDR_BYTES * (switches + 1) {
            return Err(WireError::Truncated);
        }
        let addr = |index: usize| {
            let at = FIXED_BYTES + ADDR_BYTES * index;
            Addr { ip: u32_at(b, at), port: u16_at(b, at + 4) }
        };
        let value = core::array::from_fn(|index| b[32 + index]);
        let chain = (0..switches).map(addr).collect();
        let (key, seq) = (u32_at(b, 20), u64_at(b, 24));
        Ok(Repr { op, key, seq, value, chain, client: addr(switches) })
    }

    /// Replaces the content of `out` by the packet. Of a longer chain, only the first [`CHAIN_MAX`]
    /// switches are written.
    pub fn emit(&self, out: &mut Vec<u8>) {
        Header::new(Kind::NetChain, self.op as u8).begin(out);
        let chain = &self.chain[..self.chain.len().min(CHAIN_MAX)];
        out.extend_from_slice(&[self.op as u8, chain.len() as u8, 0, 0]);
        out.extend_from_slice(&self.key.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.value);
        for addr in chain.iter().chain([&self.client]) {
            out.extend_from_slice(&addr.ip.to_be_bytes());
            out.extend_from_slice(&addr.port.to_be_bytes());
        }
        set_length(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netchain_packets_survive_the_wire_and_golden_bytes_hold() {
        let addr = |port| Addr { ip: 0x0a00_0001, port };
        let (mut packets, mut bytes) = (Vec::new(), Vec::new());
        for (op, switches) in [(Op::Read, 0), (Op::Write, 3), (Op::Reply, 0), (Op::Write, 8)] {
            let chain = (0..switches).map(addr).collect();
            let repr = Repr { op, key: 9, seq: 65_535, value: [7; 16], chain, client: addr(9_000) };
            repr.emit(&mut bytes);
            assert_eq!(Repr::parse(&bytes), Ok(repr));
            for cut in 0..bytes.len() {
                assert!(Repr::parse(&bytes[..cut]).is_err());
            }
            packets.push(bytes.clone());
        }
        crate::golden("netchain.hex", &packets);
        let mut other = packets[0].clone();
        other[17] = 9;
        assert_eq!(Repr::parse(&other), Err(WireError::Field));
        let mut rng = concord_core::Rng::new(19);
        for _ in 0..50_000 {
            let mut other = packets[1].clone();
            for _ in 0..rng.between(1, 6) {
                let at = rng.below(other.len() as u64) as usize;
                other[at] = rng.below(256) as u8;
            }
            other.truncate(rng.between(0, 8 * packets[1].len() as u64) as usize);
            let _ = Repr::parse(&other);
        }
    }
}
