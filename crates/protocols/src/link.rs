//! The stream of records between two replicas: no gaps, no duplicates, in order (trap T15), over
//! packets that are lost, duplicated and reordered.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::{Duration, Epoch, Instant, MS, NodeId, Position};
use concord_wire::link::{Ack, Data, PIECE_BYTES_MAX, append_record};
use concord_wire::record::Record;
use concord_wire::{Addr, COMMAND_BYTES_MAX, REPLY_BYTES_MAX, Sink};

use crate::log::Log;

const WINDOW_MIN: usize = 16;
const WINDOW_START: usize = 256;
const WINDOW_MAX: usize = 4_096;
const HELD_MAX: usize = 4_096;
const RTO_MIN_NS: Duration = 10 * MS;
const RTO_MAX_NS: Duration = 1_000 * MS;
/// A peer that is silent for longer is not merely waiting for the CPU.
const PAUSE_MAX_NS: Duration = 200 * MS;
/// The number of later packets whose arrival makes a missing packet count as lost.
const REORDER: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Sent {
    position: Position,
    offset: u32,
    /// The number of whole records after the first one in the same packet.
    more: u16,
    first_sent_at: Instant,
    sent_at: Instant,
    arrived: bool,
}

/// The sending end of a stream.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The receiver.
    pub peer: NodeId,
    addr: Addr,
    me: NodeId,
    epoch: Epoch,
    /// The number of the stream within the epoch, which the peer chose.
    pub stream: u16,
    in_flight: VecDeque<Sent>,
    /// The number of the oldest packet in flight, or of the next one if none is.
    oldest: u64,
    /// The next record to send, and the offset in it.
    next: (Position, u32),
    /// The position up to which [`Sender::pump_full`] has measured; then the number of unsent bytes
    /// up to there.
    measured: Position,
    unsent_bytes: usize,
    /// The last record that the peer applied.
    pub applied: Position,
    /// Whether the disk of the peer, or of a member after it, has no room.
    pub is_short: bool,
    /// The time since which the peer, or a member after it, reports that it is at work on one
    /// operation.
    pub at_work_since: Option<Instant>,
    window: usize,
    /// The smoothed round-trip time, and its mean deviation (Jacobson 1988).
    rtt_ns: Duration,
    deviation_ns: Duration,
    /// The number of time-outs since the last sample of the round-trip time: the back-off.
    timeouts: u32,
    /// After a time-out, the packets that were in flight are sent again, from this one ...
    recover_next: u64,
    /// ... up to this one, two for each that arrives, unless the first one was enough.
    recover_end: u64,
    /// The number of packets sent again.
    pub resent: u64,
}

impl Sender {
    /// A stream to `peer` that starts after `has`, the end of the peer's log. `stream` is 0, or
    /// another number for each further stream to the peer within the epoch.
    #[must_use]
    pub fn new(
        me: NodeId,
        epoch: Epoch,
        (peer, addr): (NodeId, Addr),
        has: Position,
        stream: u64,
    ) -> Sender {
        Sender {
            peer,
            addr,
            me,
            epoch,
            stream: 0,
            in_flight: VecDeque::new(),
            oldest: first_number(stream),
            next: (Position(has.0 + 1), 0),
            measured: has,
            unsent_bytes: 0,
            is_short: false,
            at_work_since: None,
            applied: Position(0),
            window: WINDOW_START,
            rtt_ns: 5 * MS,
            deviation_ns: 5 * MS,
            timeouts: 0,
            recover_next: 0,
            recover_end: 0,
            resent: 0,
        }
    }

    /// The first record of which the peer may lack a part.
    #[must_use]
    pub fn first_needed(&self) -> Position {
        self.in_flight.front().map_or(self.next.0, |sent| sent.position)
    }

    /// Skips the records up to `has`, which the peer got from elsewhere.
    pub fn skip_to(&mut self, has: Position) {
        if self.in_flight.is_empty() && self.next.0 <= has {
            self.next = (Position(has.0 + 1), 0);
        }
    }

    /// Sends the records up to `upto` as far as the window allows, several whole ones to a packet.
    /// Returns the number of packets.
    pub fn pump(
        &mut self,
        now: Instant,
        log: &Log,
        upto: Position,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> usize {
        let before = self.in_flight.len();
        while self.in_flight.len() < self.window && self.next.0 <= upto {
            let (position, offset) = self.next;
            let Some(record) = log.record(position) else { break };
            let link_seq = self.oldest + self.in_flight.len() as u64;
            let end = offset + self.emit_piece(link_seq, offset, record, committed, scratch);
            let whole = offset == 0 && end as usize == record.len();
            let mut more = 0;
            while whole && position.0 + u64::from(more) < upto.0 {
                let next = log.record(Position(position.0 + u64::from(more) + 1));
                if !next.is_some_and(|record| append_record(scratch, record)) {
                    break;
                }
                more += 1;
            }
            sink.send(self.addr, scratch);
            self.in_flight.push_back(Sent {
                position,
                offset,
                more,
                first_sent_at: now,
                sent_at: now,
                arrived: false,
            });
            self.next = if end as usize == record.len() {
                (Position(position.0 + u64::from(more) + 1), 0)
            } else {
                (position, end)
            };
        }
        self.in_flight.len() - before
    }

    /// As [`Sender::pump`], but keeps back the last packet while it has room for more records: for
    /// the middle of a batch. The receiver works on the full packets meanwhile; if the whole batch
    /// were sent at its end, the replicas would work one after the other.
    pub fn pump_full(
        &mut self,
        now: Instant,
        log: &Log,
        upto: Position,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> usize {
        if self.next.0 > self.measured {
            self.measured = Position(self.next.0.0 - 1);
            self.unsent_bytes = 0;
        }
        while self.measured < upto {
            self.measured.0 += 1;
            self.unsent_bytes += log.record(self.measured).map_or(0, <[u8]>::len);
        }
        if self.unsent_bytes < PIECE_BYTES_MAX || self.in_flight.len() >= self.window {
            return 0;
        }
        self.unsent_bytes = 0;
        let full = self.full(log, upto);
        self.pump(now, log, full, committed, scratch, sink)
    }

    /// The last record up to `upto` that ends a packet: the next one begins another.
    fn full(&self, log: &Log, upto: Position) -> Position {
        let first = self.next.0;
        let (mut end, mut bytes) = (first.0 - 1, 0);
        for position in first.0..=upto.0 {
            let Some(record) = log.record(Position(position)) else { break };
            if record.len() > PIECE_BYTES_MAX {
                // A record in pieces, of which some may have been sent. The last piece has a packet
                // of its own.
                (end, bytes) = (position, 0);
                continue;
            }
            if bytes + record.len() > PIECE_BYTES_MAX {
                (end, bytes) = (position - 1, 0);
            }
            bytes += record.len();
        }
        Position(end)
    }

    fn emit_piece(
        &self,
        link_seq: u64,
        offset: u32,
        record: &[u8],
        committed: Position,
        scratch: &mut Vec<u8>,
    ) -> u32 {
        let rest = &record[offset as usize..];
        let piece = &rest[..rest.len().min(PIECE_BYTES_MAX)];
        let data = Data {
            epoch: self.epoch,
            from: self.me,
            stream: self.stream,
            link_seq,
            committed,
            first: offset == 0,
            last: piece.len() == rest.len(),
            piece,
        };
        data.emit(scratch);
        piece.len() as u32
    }

    /// Handles an acknowledgement, and resends packets that others have overtaken.
    pub fn on_ack(
        &mut self,
        now: Instant,
        ack: &Ack,
        log: &Log,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        self.applied = self.applied.max(ack.applied);
        self.is_short = ack.is_short;
        self.at_work_since = self.at_work_since.or(Some(now)).filter(|_| ack.is_at_work);
        let end = self.oldest + self.in_flight.len() as u64;
        if ack.next > end || ack.next < self.oldest {
            return;
        }
        let before = self.oldest;
        let (mut oldest_sent_at, mut sent_once) = (None, true);
        while self.oldest < ack.next {
            if let Some(sent) = self.in_flight.pop_front() {
                self.oldest += 1;
                oldest_sent_at = oldest_sent_at.or(Some(sent.first_sent_at));
                sent_once &= sent.sent_at == sent.first_sent_at;
                self.window = (self.window + 1).min(WINDOW_MAX);
            }
        }
        if let Some(at) = oldest_sent_at {
            self.sample(now.since(at), sent_once);
        } else {
            // The back-off is meant for a silent peer. This one answers, and lacks the oldest
            // packet.
            self.timeouts = self.timeouts.min(1);
        }
        self.after_timeout(now, before, log, committed, scratch, sink);
        if ack.held == 0 {
            return;
        }
        let highest = ack.next + 64 - u64::from(ack.held.leading_zeros());
        for bit in 0..64u64 {
            if ack.held & (1 << bit) != 0
                && let Some(sent) = self.in_flight.get_mut((bit + 1) as usize)
            {
                sent.arrived = true;
            }
        }
        let patience = self.rtt_ns.max(MS / 2);
        for seq in ack.next..highest.saturating_sub(REORDER - 1) {
            let at = (seq - self.oldest) as usize;
            let Some(sent) = self.in_flight.get(at) else { break };
            if !sent.arrived && now.since(sent.sent_at) > patience {
                self.resend(now, at, log, committed, scratch, sink);
            }
        }
    }

    fn resend(
        &mut self,
        now: Instant,
        at: usize,
        log: &Log,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        let Some(sent) = self.in_flight.get_mut(at) else { return };
        sent.sent_at = now;
        let (position, offset, more) = (sent.position, sent.offset, sent.more);
        let Some(record) = log.record(position) else { return };
        self.emit_piece(self.oldest + at as u64, offset, record, committed, scratch);
        for behind in 1..=u64::from(more) {
            let Some(record) = log.record(Position(position.0 + behind)) else { return };
            append_record(scratch, record);
        }
        sink.send(self.addr, scratch);
        self.resent += 1;
    }

    /// Takes a sample of the round-trip time: one a batch, since many equal ones would make the
    /// next batch look late. It counts from the first transmission: most packets are resent because
    /// the peer pauses (a quota of CPU time), and not because the network loses them. A sample
    /// longer than such a pause is ambiguous, as it is unknown which transmission arrived, and says
    /// nothing of the present path (Karn and Partridge 1987). The back-off then stays, so that a
    /// packet that is sent once measures a peer that is always slow.
    fn sample(&mut self, rtt_ns: Duration, sent_once: bool) {
        if !sent_once && rtt_ns > PAUSE_MAX_NS {
            return;
        }
        let rtt_ns = rtt_ns.min(RTO_MAX_NS);
        self.timeouts = 0;
        self.deviation_ns =
            self.deviation_ns - self.deviation_ns / 4 + rtt_ns.abs_diff(self.rtt_ns) / 4;
        self.rtt_ns = self.rtt_ns - self.rtt_ns / 8 + rtt_ns / 8;
    }

    fn rto_ns(&self) -> Duration {
        let quiet_ns = (self.rtt_ns + 4 * self.deviation_ns).max(RTO_MIN_NS);
        (quiet_ns << self.timeouts.min(7)).min(RTO_MAX_NS)
    }

    /// The time at which the oldest packet in flight counts as lost.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        match self.in_flight.front() {
            Some(sent) => sent.sent_at.after(self.rto_ns()),
            None => Instant::NEVER,
        }
    }

    /// Resends from the oldest packet on, after a time-out.
    pub fn tick(
        &mut self,
        now: Instant,
        log: &Log,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        if now < self.deadline() {
            return;
        }
        self.timeouts += 1;
        self.recover_next = self.oldest;
        self.recover_end = self.oldest + self.in_flight.len() as u64;
        self.recover(now, 1, log, committed, scratch, sink);
    }

    /// Handles an acknowledgement after a time-out. If it covers more than was resent, the peer was
    /// slow or missed a single packet; otherwise everything that was in flight is lost.
    fn after_timeout(
        &mut self,
        now: Instant,
        oldest_before: u64,
        log: &Log,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        if self.recover_next >= self.recover_end || self.oldest == oldest_before {
            return;
        }
        if self.oldest > self.recover_next {
            self.recover_end = 0;
            return;
        }
        if self.recover_next == oldest_before + 1 {
            self.window = (self.window / 2).max(WINDOW_MIN);
        }
        let arrived = (self.oldest - oldest_before) as usize;
        self.recover(now, 2 * arrived, log, committed, scratch, sink);
    }

    /// Resends up to `budget` of the packets that were in flight at the last time-out.
    fn recover(
        &mut self,
        now: Instant,
        mut budget: usize,
        log: &Log,
        committed: Position,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        self.recover_next = self.recover_next.max(self.oldest);
        while budget > 0 && self.recover_next < self.recover_end {
            let at = (self.recover_next - self.oldest) as usize;
            self.recover_next += 1;
            if self.in_flight.get(at).is_some_and(|sent| !sent.arrived) {
                self.resend(now, at, log, committed, scratch, sink);
                budget -= 1;
            }
        }
    }
}

/// The number of a stream's first packet, so far from other streams' numbers that a late packet of
/// one does not fit into another.
fn first_number(stream: u64) -> u64 {
    (stream << 40) + 1
}

/// The receiver's verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The packet is the next one: take its piece, then call [`Receiver::next_held`] until it
    /// returns `None`.
    InOrder,
    /// An earlier packet is missing; this one is held.
    Held,
    /// The packet is a duplicate, or there is no room to hold it.
    Dropped,
}

/// The pieces do not fit together, or a record exceeds the largest length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenStream;

/// The receiving end of a stream.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The sender.
    pub peer: NodeId,
    /// The number of the stream within the epoch.
    pub stream: u16,
    next: u64,
    held: BTreeMap<u64, (bool, bool, Vec<u8>)>,
    partial: Vec<u8>,
    /// Whether an acknowledgement is due at the end of the batch.
    pub ack_due: bool,
}

impl Receiver {
    /// The receiving end of stream `stream` from `peer`.
    #[must_use]
    pub fn new(peer: NodeId, stream: u64) -> Receiver {
        Receiver {
            peer,
            stream: 0,
            next: first_number(stream),
            held: BTreeMap::new(),
            partial: Vec::new(),
            ack_due: false,
        }
    }

    /// Handles a packet of the stream. Passes the records that it completes to `each`, in order,
    /// also those in packets that were held. `each` returns whether it accepts more.
    ///
    /// # Errors
    /// [`BrokenStream`]: the pieces do not fit together, or `each` rejects a record.
    pub fn take(
        &mut self,
        data: &Data<'_>,
        mut each: impl FnMut(&[u8]) -> Result<bool, BrokenStream>,
    ) -> Result<Arrival, BrokenStream> {
        let arrival = self.offer(data);
        if arrival == Arrival::InOrder {
            let mut more = self.take_piece(data.first, data.last, data.piece, &mut each)?;
            while more && let Some((first, last, piece)) = self.next_held() {
                more = self.take_piece(first, last, &piece, &mut each)?;
            }
        }
        Ok(arrival)
    }

    /// Handles a piece in order: several whole records, or a part of one.
    fn take_piece(
        &mut self,
        first: bool,
        last: bool,
        piece: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<bool, BrokenStream>,
    ) -> Result<bool, BrokenStream> {
        if first && last && !self.is_partial() {
            let mut rest = piece;
            while !rest.is_empty() {
                let (record, behind) = Record::split_first(rest).ok_or(BrokenStream)?;
                if !each(record)? {
                    return Ok(false);
                }
                rest = behind;
            }
            return Ok(true);
        }
        let Some(record) = self.join(first, last, piece)? else { return Ok(true) };
        let more = each(&record)?;
        self.reuse(record);
        Ok(more)
    }

    /// Classifies a packet of the stream, and holds it if it is early.
    pub fn offer(&mut self, data: &Data<'_>) -> Arrival {
        self.ack_due = true;
        if data.link_seq == self.next {
            self.next += 1;
            return Arrival::InOrder;
        }
        if data.link_seq < self.next || self.held.len() >= HELD_MAX {
            return Arrival::Dropped;
        }
        let held = (data.first, data.last, data.piece.to_vec());
        match self.held.insert(data.link_seq, held) {
            None => Arrival::Held,
            Some(_) => Arrival::Dropped,
        }
    }

    /// The next held piece, if it is in order now.
    pub fn next_held(&mut self) -> Option<(bool, bool, Vec<u8>)> {
        let held = self.held.remove(&self.next)?;
        self.next += 1;
        Some(held)
    }

    /// Appends a piece in order to its record. Returns the record's buffer once it is complete;
    /// return it by [`Receiver::reuse`].
    ///
    /// # Errors
    /// [`BrokenStream`]: no correct sender sends such pieces.
    pub fn join(
        &mut self,
        first: bool,
        last: bool,
        piece: &[u8],
    ) -> Result<Option<Vec<u8>>, BrokenStream> {
        if first != self.partial.is_empty()
            || self.partial.len() > COMMAND_BYTES_MAX + REPLY_BYTES_MAX
        {
            return Err(BrokenStream);
        }
        self.partial.extend_from_slice(piece);
        if !last {
            return Ok(None);
        }
        Ok(Some(core::mem::take(&mut self.partial)))
    }

    /// Takes a record's buffer back.
    pub fn reuse(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.partial = buffer;
    }

    /// Whether some pieces of a record wait for the rest.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The acknowledgement of everything that arrived.
    pub fn ack(&mut self, epoch: Epoch, me: NodeId, applied: Position, committed: Position) -> Ack {
        self.ack_due = false;
        let bits = self.held.keys().map(|seq| seq - self.next - 1);
        let held = bits.take_while(|bit| *bit < 64).fold(0u64, |held, bit| held | 1 << bit);
        let (stream, next) = (self.stream, self.next);
        let (entry, is_short, is_at_work, queue) = (0, false, false, 0);
        let from = me;
        Ack {
            epoch,
            from,
            stream,
            next,
            held,
            applied,
            committed,
            entry,
            is_short,
            is_at_work,
            queue,
        }
    }
}

#[cfg(test)]
mod tests;
