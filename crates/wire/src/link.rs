//! The stream of records between replicas, without gaps (trap T15). Every packet of the stream has
//! a number. The receiver acknowledges cumulatively, with a bit for each packet that it holds
//! beyond.
//!
//! | offset | bytes | DATA (op 1) | ACK (op 2) | DURABLE (op 3) |
//! |---|---|---|---|---|
//! | 0 | 16 | what all headers have | the same | the same |
//! | 16 | 2 | stream | stream | reserved |
//! | 18 | 1 | bit 0: first piece, bit 1: last piece | reserved | reserved |
//! | 19 | 1 | reserved | bit 0: no room, bit 1: at work | reserved |
//! | 20 | 4 | reserved: the sender's life | the sender's life | reserved |
//! | 24 | 8 | number of the packet | the next one that is missing | reserved |
//! | 32 | 8 | committed | committed | reserved |
//! | 40 | 8 | reserved: durable | queue (4), reserved (4) | durable |
//! | 48 | | a piece of an encoded record | held: a bit for each packet behind `next` (8) | |
//! | 56 | | | applied (8) | |
//!
//! A DATA packet whose piece is first and last may have several records in a row, if the receiver
//! expects that.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, Position};

use crate::header::{Header, Kind, set_length};
use crate::{PACKET_BYTES_MAX, WireError, u16_at, u32_at, u64_at};

/// Operation of DATA.
pub const OP_DATA: u8 = 1;
/// Operation of ACK.
pub const OP_ACK: u8 = 2;
/// Operation of DURABLE.
pub const OP_DURABLE: u8 = 3;
/// Length of DATA's header, and of DURABLE, in bytes.
pub const DATA_HEADER_BYTES: usize = 48;
/// Length of ACK in bytes.
pub const ACK_BYTES: usize = 64;
/// Largest piece of a record in one packet, in bytes.
pub const PIECE_BYTES_MAX: usize = PACKET_BYTES_MAX - DATA_HEADER_BYTES;

/// The offsets of the fields; the first five are common to both.
mod at {
    pub(super) const STREAM: usize = 16;
    pub(super) const PIECES: usize = 18;
    pub(super) const ROOM: usize = 19;
    pub(super) const LIFE: usize = 20;
    pub(super) const NUMBER: usize = 24;
    pub(super) const COMMITTED: usize = 32;
    pub(super) const DURABLE: core::ops::Range<usize> = 40..48;
    pub(super) const QUEUE: core::ops::Range<usize> = 40..44;
    pub(super) const HELD: usize = 48;
    pub(super) const APPLIED: usize = 56;
}

const FIRST: u8 = 1;
const LAST: u8 = 2;
/// Of an ACK.
const SHORT: u8 = 1;
const AT_WORK: u8 = 2;

/// One packet of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The epoch of the stream; another epoch's packets are dropped.
    pub epoch: Epoch,
    /// The sender.
    pub from: NodeId,
    /// Which stream of the epoch, as its receiver numbered it; 0 where there is only one.
    pub stream: u16,
    /// The packet's number in the stream, from 1.
    pub link_seq: u64,
    /// The position up to which the sender knows the log to be committed.
    pub committed: Position,
    /// The piece is the first of its record.
    pub first: bool,
    /// The piece is the last of its record.
    pub last: bool,
    /// A piece of an encoded [`crate::record`].
    pub piece: &'a [u8],
}

/// An acknowledgement of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The epoch of the stream.
    pub epoch: Epoch,
    /// The sender of the acknowledgement.
    pub from: NodeId,
    /// Which stream of the epoch.
    pub stream: u16,
    /// The next packet that is missing: all before it arrived.
    pub next: u64,
    /// Bit i: packet `next + 1 + i` arrived.
    pub held: u64,
    /// The last record that the receiver applied.
    pub applied: Position,
    /// The position up to which the receiver knows the log to be committed.
    pub committed: Position,
    /// VR, NOPaxos, Raft: the sender's incarnation ([`crate::vr::CrashVectorEntry::tag`]); 0
    /// elsewhere.
    pub entry: u32,
    /// The sender's disk has no room, or that of one after it in a chain.
    pub is_short: bool,
    /// The sender's engine has been at work on one operation for long, or that of one after it.
    pub is_at_work: bool,
    /// VR, Raft, where the switch balances reads by load (FLAIR §4.4.2): the packets that waited at
    /// the sender's host, on average since its last acknowledgement. 0 elsewhere.
    pub queue: u32,
}

/// A member of a chain to the next: up to where the log is on the disks of all up to the sender. Of
/// no stream: it may come late, or never, and is said again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// The epoch.
    pub epoch: Epoch,
    /// The sender.
    pub from: NodeId,
    /// The position up to which all logs are durable.
    pub durable: Position,
}

/// Begins a packet of the link: what DATA and ACK have in common.
fn begin(
    op: u8,
    (epoch, from): (Epoch, NodeId),
    (stream, pieces, entry): (u16, u8, u32),
    (number, committed): (u64, Position),
    out: &mut Vec<u8>,
) {
    Header { node: from, epoch, ..Header::new(Kind::Link, op) }.begin(out);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&[pieces, 0]);
    out.extend_from_slice(&entry.to_be_bytes());
    for word in [number, committed.0, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

impl<'a> Data<'a> {
    /// Reads a DATA packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &'a [u8]) -> Result<Data<'a>, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Link, DATA_HEADER_BYTES)?;
        if header.op != OP_DATA {
            return Err(WireError::Op);
        }
        let pieces = b[at::PIECES];
        Ok(Data {
            epoch: header.epoch,
            from: header.node,
            stream: u16_at(b, at::STREAM),
            link_seq: u64_at(b, at::NUMBER),
            committed: Position(u64_at(b, at::COMMITTED)),
            first: pieces & FIRST != 0,
            last: pieces & LAST != 0,
            piece: &b[DATA_HEADER_BYTES..],
        })
    }

    /// Writes the packet into `out`, replacing what was there.
    ///
    /// # Panics
    /// If the piece is longer than [`PIECE_BYTES_MAX`]: the sender cuts records before.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let pieces = if self.first { FIRST } else { 0 } | if self.last { LAST } else { 0 };
        let own = (self.stream, pieces, 0);
        begin(OP_DATA, (self.epoch, self.from), own, (self.link_seq, self.committed), out);
        out.extend_from_slice(self.piece);
        set_length(out);
    }
}

/// Appends a whole record to an encoded DATA packet that holds whole records; false if there is no
/// room.
pub fn append_record(packet: &mut Vec<u8>, record: &[u8]) -> bool {
    if packet.len() + record.len() > PACKET_BYTES_MAX {
        return false;
    }
    packet.extend_from_slice(record);
    set_length(packet);
    true
}

impl Ack {
    /// Reads an ACK packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Ack, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Link, DATA_HEADER_BYTES)?;
        if header.op != OP_ACK {
            return Err(WireError::Op);
        }
        if b.len() < ACK_BYTES {
            return Err(WireError::Truncated);
        }
        Ok(Ack {
            epoch: header.epoch,
            from: header.node,
            stream: u16_at(b, at::STREAM),
            next: u64_at(b, at::NUMBER),
            held: u64_at(b, at::HELD),
            applied: Position(u64_at(b, at::APPLIED)),
            committed: Position(u64_at(b, at::COMMITTED)),
            entry: u32_at(b, at::LIFE),
            is_short: b[at::ROOM] & SHORT != 0,
            is_at_work: b[at::ROOM] & AT_WORK != 0,
            queue: u32_at(b, at::QUEUE.start),
        })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let own = (self.stream, 0, self.entry);
        begin(OP_ACK, (self.epoch, self.from), own, (self.next, self.committed), out);
        let at_work = if self.is_at_work { AT_WORK } else { 0 };
        out[at::ROOM] = if self.is_short { SHORT } else { 0 } | at_work;
        out[at::QUEUE].copy_from_slice(&self.queue.to_be_bytes());
        for word in [self.held, self.applied.0] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        set_length(out);
    }
}

impl Durable {
    /// Reads a DURABLE packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Durable, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Link, DATA_HEADER_BYTES)?;
        if header.op != OP_DURABLE {
            return Err(WireError::Op);
        }
        let durable = Position(u64_at(b, at::DURABLE.start));
        Ok(Durable { epoch: header.epoch, from: header.node, durable })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        begin(OP_DURABLE, (self.epoch, self.from), (0, 0, 0), (0, Position(0)), out);
        out[at::DURABLE].copy_from_slice(&self.durable.0.to_be_bytes());
        set_length(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DATAGRAM_BYTES_MAX;

    #[test]
    fn durable_survives_the_wire_and_golden_bytes_hold() {
        let d = Durable { epoch: Epoch(3), from: NodeId(2), durable: Position(0x0102_0304) };
        let mut out = Vec::new();
        d.emit(&mut out);
        crate::golden("durable.hex", &[out.clone()]);
        assert_eq!(Durable::parse(&out).unwrap(), d);
        for cut in 0..out.len() {
            assert_eq!(Durable::parse(&out[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert_eq!(Data::parse(&out).unwrap_err(), WireError::Op);
        assert_eq!(Ack::parse(&out).unwrap_err(), WireError::Op);
    }

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
        let a = Ack {
            epoch: Epoch(3),
            from: NodeId(1),
            stream: 9,
            next: 78,
            held: 5,
            applied: Position(71),
            committed: Position(70),
            entry: 0x0102_0304,
            is_short: false,
            is_at_work: false,
            queue: 0x0506_0708,
        };
        let (mut out, mut ack) = (Vec::new(), Vec::new());
        d.emit(&mut out);
        a.emit(&mut ack);
        crate::golden("link.hex", &[out.clone(), ack.clone()]);
        assert_eq!(Data::parse(&out).unwrap(), d);
        for cut in 0..out.len() {
            assert_eq!(Data::parse(&out[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert!(append_record(&mut out, b" and another"));
        assert_eq!(Data::parse(&out).unwrap().piece, b"piece and another");
        assert!(!append_record(&mut out, &[0; DATAGRAM_BYTES_MAX]));
        assert_eq!(out.len(), DATA_HEADER_BYTES + "piece and another".len());
        let full = [7; PIECE_BYTES_MAX];
        Data { piece: &full, ..d }.emit(&mut out);
        assert_eq!(out.len() + crate::header::TAG_BYTES, DATAGRAM_BYTES_MAX);
        assert_eq!(Data::parse(&out).unwrap().piece, full);
        assert!(!append_record(&mut out, &[0]));
        assert_eq!(Ack::parse(&ack).unwrap(), a);
        for cut in 0..ack.len() {
            assert_eq!(Ack::parse(&ack[..cut]).unwrap_err(), WireError::Truncated);
        }
        assert_eq!(Data::parse(&ack).unwrap_err(), WireError::Op);
        assert_eq!(Ack::parse(&out).unwrap_err(), WireError::Op);
        let short = Ack { is_short: true, ..a };
        short.emit(&mut out);
        assert_eq!(Ack::parse(&out).unwrap(), short);
    }
}
