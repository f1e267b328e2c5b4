//! Between replicas: a stream of records without gaps (trap T15). Every packet of the stream has a
//! number; the receiver acknowledges cumulatively and says what it holds beyond.
//!
//! DATA: `magic, version, op: 4 bytes; epoch: u32; from: u16; flags: u16; length: u16; stream: u16;
//! link_seq: u64; committed: u64`, then a piece of an encoded record. `flags` bit 0: first piece,
//! bit 1: last piece. A packet with both may hold several records, one behind the other, where the
//! receiver expects that.
//!
//! ACK: the same first 16 bytes, with the sender's `life: u32` in the place of `flags` and `length`;
//! `next: u64; held: u64; applied: u64; committed: u64`.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, Position};

use crate::{DATAGRAM_BYTES_MAX, MAGIC, VERSION, WireError, u16_at, u32_at, u64_at};

/// Operation byte of DATA.
pub const OP_DATA: u8 = 32;
/// Operation byte of ACK.
pub const OP_ACK: u8 = 33;
/// Length of DATA's header in bytes.
pub const DATA_HEADER_BYTES: usize = 32;
/// Length of ACK in bytes.
pub const ACK_BYTES: usize = 48;
/// Largest piece of a record in one packet, in bytes.
pub const PIECE_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - DATA_HEADER_BYTES;

const FIRST: u16 = 1;
const LAST: u16 = 2;

/// One packet of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The epoch of the stream; another epoch's packets are dropped.
    pub epoch: Epoch,
    /// Who sends.
    pub from: NodeId,
    /// Which stream of the epoch, as its receiver numbered it; 0 where there is only one.
    pub stream: u16,
    /// The packet's number in the stream, from 1.
    pub link_seq: u64,
    /// Up to where the sender knows the log to be committed.
    pub committed: Position,
    /// The piece is the first of its record.
    pub first: bool,
    /// The piece is the last of its record.
    pub last: bool,
    /// A piece of an encoded [`crate::record`].
    pub piece: &'a [u8],
}

/// What the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The epoch of the stream.
    pub epoch: Epoch,
    /// Who sends the acknowledgement.
    pub from: NodeId,
    /// Which stream of the epoch.
    pub stream: u16,
    /// The next packet that is missing: all before it arrived.
    pub next: u64,
    /// Bit i: packet `next + 1 + i` arrived.
    pub held: u64,
    /// The last record that the receiver applied.
    pub applied: Position,
    /// Up to where the receiver knows the log to be committed.
    pub committed: Position,
    /// VR, NOPaxos: which life of the sender ([`crate::vr::Life::tag`]); 0 elsewhere.
    pub life: u32,
}

fn head(
    op: u8,
    epoch: Epoch,
    from: NodeId,
    (flags, length, stream): (u16, u16, u16),
    out: &mut Vec<u8>,
) {
    out.clear();
    out.extend_from_slice(&MAGIC.to_be_bytes());
    out.extend_from_slice(&[VERSION, op]);
    out.extend_from_slice(&epoch.0.to_be_bytes());
    out.extend_from_slice(&from.0.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
}

impl<'a> Data<'a> {
    /// Reads a DATA packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &'a [u8]) -> Result<Data<'a>, WireError> {
        if bytes.len() < DATA_HEADER_BYTES {
            return Err(WireError::Truncated);
        }
        if bytes[3] != OP_DATA {
            return Err(WireError::Op);
        }
        let flags = u16_at(bytes, 10);
        let length = u16_at(bytes, 12) as usize;
        let piece =
            bytes.get(DATA_HEADER_BYTES..DATA_HEADER_BYTES + length).ok_or(WireError::Truncated)?;
        Ok(Data {
            epoch: Epoch(u32_at(bytes, 4)),
            from: NodeId(u16_at(bytes, 8)),
            stream: u16_at(bytes, 14),
            link_seq: u64_at(bytes, 16),
            committed: Position(u64_at(bytes, 24)),
            first: flags & FIRST != 0,
            last: flags & LAST != 0,
            piece,
        })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let flags = if self.first { FIRST } else { 0 } | if self.last { LAST } else { 0 };
        let length = self.piece.len() as u16;
        head(OP_DATA, self.epoch, self.from, (flags, length, self.stream), out);
        out.extend_from_slice(&self.link_seq.to_be_bytes());
        out.extend_from_slice(&self.committed.0.to_be_bytes());
        out.extend_from_slice(self.piece);
    }
}

/// Appends a whole record to an encoded DATA packet that holds whole records; false if there is no
/// room.
pub fn append_record(packet: &mut Vec<u8>, record: &[u8]) -> bool {
    if packet.len() + record.len() > DATAGRAM_BYTES_MAX {
        return false;
    }
    packet.extend_from_slice(record);
    let length = (packet.len() - DATA_HEADER_BYTES) as u16;
    packet[12..14].copy_from_slice(&length.to_be_bytes());
    true
}

impl Ack {
    /// Reads an ACK packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Ack, WireError> {
        if bytes.len() < ACK_BYTES {
            return Err(WireError::Truncated);
        }
        if bytes[3] != OP_ACK {
            return Err(WireError::Op);
        }
        Ok(Ack {
            epoch: Epoch(u32_at(bytes, 4)),
            from: NodeId(u16_at(bytes, 8)),
            stream: u16_at(bytes, 14),
            next: u64_at(bytes, 16),
            held: u64_at(bytes, 24),
            applied: Position(u64_at(bytes, 32)),
            committed: Position(u64_at(bytes, 40)),
            life: u32_at(bytes, 10),
        })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let life = ((self.life >> 16) as u16, self.life as u16);
        head(OP_ACK, self.epoch, self.from, (life.0, life.1, self.stream), out);
        for word in [self.next, self.held, self.applied.0, self.committed.0] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_acks_survive_the_wire_and_golden_bytes_hold() {
        let d = Data {
            epoch: Epoch(3),
            from: NodeId(2),
            stream: 0,
            link_seq: 77,
            committed: Position(70),
            first: true,
            last: false,
            piece: b"piece",
        };
        let mut out = Vec::new();
        d.emit(&mut out);
        let hex: alloc::string::String = out.iter().map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../../vectors/wire/link.hex").trim());
        assert_eq!(Data::parse(&out).unwrap(), d);
        for cut in 0..out.len() {
            assert_eq!(Data::parse(&out[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert!(append_record(&mut out, b" and another"));
        assert_eq!(Data::parse(&out).unwrap().piece, b"piece and another");
        assert!(!append_record(&mut out, &[0; DATAGRAM_BYTES_MAX]));
        let a = Ack {
            epoch: Epoch(3),
            from: NodeId(1),
            stream: 9,
            next: 78,
            held: 5,
            applied: Position(71),
            committed: Position(70),
            life: 0x0102_0304,
        };
        a.emit(&mut out);
        assert_eq!(Ack::parse(&out).unwrap(), a);
        assert_eq!(Data::parse(&out).unwrap_err(), WireError::Op);
    }
}
