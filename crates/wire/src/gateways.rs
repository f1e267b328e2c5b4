//! Between the gateways of a group: what one tells all others, who has subscribed to what and what
//! is published, as a stream of packets in order for each of them.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | what all headers have: the sender's node |
//! | 16 | 8 | incarnation of the sender |
//! | 24 | 4 | stream: how often the sender began anew with this receiver |
//! | 28 | 1 | bit 0: the packet ends a message |
//! | 29 | 3 | reserved |
//! | 32 | 8 | the packet's number in the stream, from 1; 0 if it carries nothing |
//! | 40 | 8 | incarnation of the receiver, as known; 0 if it is not |
//! | 48 | 4 | the receiver's stream that is acknowledged |
//! | 52 | 4 | reserved |
//! | 56 | 8 | the next packet of it that is missing |
//! | 64 | 8 | bit i: packet `next + 1 + i` arrived |
//! | 72 | | a part of a message |

use alloc::vec::Vec;

use concord_core::NodeId;

use crate::header::{Header, Kind, set_length};
use crate::{PACKET_BYTES_MAX, WireError, u32_at, u64_at};

/// The only operation.
pub const OP_STREAM: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 72;
/// The largest part of a message in one packet, in bytes.
pub const PART_BYTES_MAX: usize = PACKET_BYTES_MAX - HEADER_BYTES;

mod at {
    pub(super) const INCARNATION: usize = 16;
    pub(super) const STREAM: usize = 24;
    pub(super) const FLAGS: usize = 28;
    pub(super) const NUMBER: usize = 32;
    pub(super) const TO_INCARNATION: usize = 40;
    pub(super) const ACK_STREAM: usize = 48;
    pub(super) const NEXT: usize = 56;
    pub(super) const ARRIVED: usize = 64;
}

/// A packet of the stream from one gateway to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHdr {
    /// The sending gateway.
    pub from: NodeId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its stream.
    pub stream: u32,
    /// The packet's number; 0 if it carries nothing.
    pub number: u64,
    /// Whether it ends a message.
    pub is_last: bool,
    /// The receiver's incarnation as the sender knows it; 0 if it does not.
    pub to_incarnation: u64,
    /// The receiver's stream that is acknowledged.
    pub ack_stream: u32,
    /// The next packet of it that is missing.
    pub next: u64,
    /// Bit i: packet `next + 1 + i` arrived.
    pub arrived: u64,
}

impl StreamHdr {
    /// Reads a packet: the header, and the part of a message.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<(StreamHdr, &[u8]), WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Gateways, HEADER_BYTES)?;
        if header.op != OP_STREAM {
            return Err(WireError::Op);
        }
        let hdr = StreamHdr {
            from: header.node,
            incarnation: u64_at(b, at::INCARNATION),
            stream: u32_at(b, at::STREAM),
            number: u64_at(b, at::NUMBER),
            is_last: match b[at::FLAGS] {
                0 => false,
                1 => true,
                _ => return Err(WireError::Field),
            },
            to_incarnation: u64_at(b, at::TO_INCARNATION),
            ack_stream: u32_at(b, at::ACK_STREAM),
            next: u64_at(b, at::NEXT),
            arrived: u64_at(b, at::ARRIVED),
        };
        Ok((hdr, &b[HEADER_BYTES..]))
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, part: &[u8], out: &mut Vec<u8>) {
        Header { node: self.from, ..Header::new(Kind::Gateways, OP_STREAM) }.begin(out);
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&[u8::from(self.is_last), 0, 0, 0]);
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.to_incarnation.to_be_bytes());
        out.extend_from_slice(&self.ack_stream.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.next.to_be_bytes());
        out.extend_from_slice(&self.arrived.to_be_bytes());
        out.extend_from_slice(part);
        set_length(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn packets_survive_the_wire_and_golden_bytes_hold() {
        let hdr = StreamHdr {
            from: NodeId(2),
            incarnation: 0x0102_0304_0506_0708,
            stream: 3,
            number: 77,
            is_last: true,
            to_incarnation: 9,
            ack_stream: 4,
            next: 12,
            arrived: 0b101,
        };
        let alive = StreamHdr { number: 0, is_last: false, to_incarnation: 0, ..hdr };
        let (mut one, mut other) = (vec![], vec![]);
        hdr.emit(b"part", &mut one);
        alive.emit(b"", &mut other);
        crate::golden("gateways.hex", &[one.clone(), other.clone()]);
        assert_eq!(StreamHdr::parse(&one), Ok((hdr, &b"part"[..])));
        assert_eq!(StreamHdr::parse(&other), Ok((alive, &b""[..])));
        for cut in 0..HEADER_BYTES {
            assert_eq!(StreamHdr::parse(&one[..cut]).unwrap_err(), WireError::Truncated);
        }
        one[at::FLAGS] = 2;
        assert_eq!(StreamHdr::parse(&one).unwrap_err(), WireError::Field);
        hdr.emit(&[7; PART_BYTES_MAX], &mut one);
        assert_eq!(one.len(), PACKET_BYTES_MAX);
    }
}
