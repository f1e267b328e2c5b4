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
/// A peer that is silent for longer did not only wait for its turn of the CPU.
const PAUSE_MAX_NS: Duration = 200 * MS;
/// Packets that arrived after a missing one before it is taken for lost.
const REORDER: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Sent {
    position: Position,
    offset: u32,
    /// Whole records behind the first one in the same packet.
    more: u16,
    first_sent_at: Instant,
    sent_at: Instant,
    arrived: bool,
}

/// The sending end.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Who receives.
    pub peer: NodeId,
    addr: Addr,
    me: NodeId,
    epoch: Epoch,
    /// Which stream of the epoch, as the peer numbered it.
    pub stream: u16,
    in_flight: VecDeque<Sent>,
    /// Number of the oldest packet in flight, or of the next one.
    oldest: u64,
    /// The next record to send, and from where.
    next: (Position, u32),
    /// How far [`Sender::pump_full`] has looked, and how many bytes it saw that were not sent yet.
    measured: Position,
    unsent_bytes: usize,
    /// The last record that the peer applied.
    pub applied: Position,
    /// The peer's disk has no room, or that of one after it.
    pub is_short: bool,
    /// Since when its receiver says that it is at work on one operation, or one after it.
    pub at_work_since: Option<Instant>,
    window: usize,
    /// Smoothed round trip and its mean deviation (Jacobson 1988).
    rtt_ns: Duration,
    deviation_ns: Duration,
    /// Time-outs since the last sample of the round trip: the back-off.
    timeouts: u32,
    /// After a time-out, what was in flight then is sent again from here...
    recover_next: u64,
    /// ... up to here, two packets for each that arrives, unless the first one was enough.
    recover_end: u64,
    /// Packets sent again.
    pub resent: u64,
}

impl Sender {
    /// A stream to `peer` that starts behind `has`, the end of the peer's log. `stream` is 0, or
    /// another number for each further stream to it within the epoch.
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

    /// The first record that the peer may not have whole.
    #[must_use]
    pub fn first_needed(&self) -> Position {
        self.in_flight.front().map_or(self.next.0, |sent| sent.position)
    }

    /// The peer has all up to `has` already, from elsewhere: it need not be sent.
    pub fn skip_to(&mut self, has: Position) {
        if self.in_flight.is_empty() && self.next.0 <= has {
            self.next = (Position(has.0 + 1), 0);
        }
    }

    /// Sends what the window allows of the records up to `upto`, several to a packet where they are
    /// whole, and says how many packets that took.
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
    /// the middle of a batch. Whoever receives works on the full ones meanwhile; a batch that is
    /// sent at its end only makes the replicas work one after the other.
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

    /// The last record up to `upto` that ends a packet: the one behind it goes into another.
    fn full(&self, log: &Log, upto: Position) -> Position {
        let first = self.next.0;
        let (mut end, mut bytes) = (first.0 - 1, 0);
        for position in first.0..=upto.0 {
            let Some(record) = log.record(Position(position)) else { break };
            if record.len() > PIECE_BYTES_MAX {
                // In pieces, some of which may have gone; the last one travels alone.
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

    /// Takes an acknowledgement, and sends again what others overtook.
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
            // The back-off is for a peer that is not there. This one is, and lacks the oldest.
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

    /// One round trip a batch: many alike would make the next batch look late. Counted from the
    /// first sending: most packets are sent again because the peer pauses (a quota of CPU time),
    /// not because the path loses them. Longer than a pause, nobody knows which sending arrived:
    /// then the peer was cut off, which says nothing of the path as it is now (Karn, Partridge
    /// 1987). The back-off stays, so that a peer that is always as slow is known by a packet that
    /// is sent once.
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

    /// When the oldest packet in flight is taken for lost.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        match self.in_flight.front() {
            Some(sent) => sent.sent_at.after(self.rto_ns()),
            None => Instant::NEVER,
        }
    }

    /// Sends again from the oldest on, after a silence.
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

    /// An acknowledgement after a time-out: of more than was sent again, then the peer was slow or
    /// missed one packet only; else all that was in flight is lost.
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

    /// Sends up to `budget` of the packets again that were in flight at the last time-out.
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

/// The number of a stream's first packet: so far from all other streams' that a late packet of one
/// is none of another.
fn first_number(stream: u64) -> u64 {
    (stream << 40) + 1
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one: take its piece, then call [`Receiver::next_held`] until it is empty.
    InOrder,
    /// A packet before it is missing; it is held.
    Held,
    /// It came before, or there is no room to hold it.
    Dropped,
}

/// The pieces make no sense, or a record without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenStream;

/// The receiving end.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Who sends.
    pub peer: NodeId,
    /// Which stream of the epoch.
    pub stream: u16,
    next: u64,
    held: BTreeMap<u64, (bool, bool, Vec<u8>)>,
    partial: Vec<u8>,
    /// An acknowledgement is due at the end of the batch.
    pub ack_due: bool,
}

impl Receiver {
    /// The stream of that number from `peer`.
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

    /// Takes a packet of the stream, and gives the records that are whole by it to `each`, in their
    /// order: one that was held before, too. `each` says whether it takes more.
    ///
    /// # Errors
    /// [`BrokenStream`]: the pieces make no sense, or `each` says so of a record.
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

    /// Takes a piece in order: several whole records, or a part of one.
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

    /// Takes a packet of the stream.
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

    /// The next piece that was held and is now in order.
    pub fn next_held(&mut self) -> Option<(bool, bool, Vec<u8>)> {
        let held = self.held.remove(&self.next)?;
        self.next += 1;
        Some(held)
    }

    /// Joins a piece in order to its record; gives the record's buffer once whole. Give it back by
    /// [`Receiver::reuse`].
    ///
    /// # Errors
    /// [`BrokenStream`]: the sender is not one of ours.
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

    /// Whether a record's first pieces wait for the rest.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The acknowledgement of all that arrived.
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
