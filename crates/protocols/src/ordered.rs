//! What was ordered: the log, the newest sequence number that is in it or on its way to it, and the log's
//! time. The same in every protocol.

use concord_core::{Guard, Guards, LogClock, Position, Seq};
use concord_wire::control::LogEnd;
use concord_wire::record::{Record, running_hash};

use crate::counters::ReplicaCounters;
use crate::limits::Limits;
use crate::log::Log;

/// The log, and what the next record is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) log: Log,
    /// The newest sequence number in the log or in the hands of who orders.
    pub(crate) last_seq: Seq,
    /// The stamp of the last record; it falls along the log only where no key has a time to live.
    pub(crate) last_now_ms: u64,
    /// The log's time.
    pub(crate) clock: LogClock,
}

/// How a record goes on from the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The log has it, or another one in its place.
    Known,
    /// It is the next one.
    Next,
    /// Others are missing before it.
    Gap,
    /// It goes on from another log.
    Mismatch,
}

impl Ordered {
    /// Nothing yet.
    pub(crate) fn new(limits: &Limits) -> Ordered {
        Ordered { log: Log::new(limits), ..Ordered::default() }
    }

    /// The last record's position.
    pub(crate) fn end(&self) -> Position {
        Position(self.log.end().position)
    }

    /// Begins anew behind `end`, whose record had that number and that time. The clock stays.
    pub(crate) fn reset(&mut self, end: LogEnd, seq: Seq, now_ms: u64) {
        self.log.reset(end);
        (self.last_seq, self.last_now_ms) = (seq, now_ms);
    }

    /// Harmonia §6.2: "tracking the last received sequence number and discarding any out-of-order
    /// writes", of the switch `active` alone.
    pub(crate) fn take_number(
        &mut self,
        seq: Seq,
        active: u32,
        guards: Guards,
        count: &mut ReplicaCounters,
    ) -> bool {
        if seq.switch_id.0 != active || !seq.is_some() {
            count.writes_other_switch += 1;
            return false;
        }
        if seq <= self.last_seq {
            count.writes_out_of_order += 1;
            return !guards.on(Guard::InOrderWrites);
        }
        if seq.switch_id == self.last_seq.switch_id {
            count.seq_gaps += u64::from(seq.counter - self.last_seq.counter - 1);
        }
        self.last_seq = seq;
        true
    }

    /// The log's time, for the next record. Where no key has a time to live (`is_timeless`), and none
    /// that was ordered may get one, it steps to the own clock: nobody can tell.
    pub(crate) fn stamp(&mut self, local_ms: u64, is_timeless: bool, guards: Guards) -> u64 {
        if !guards.on(Guard::LogClock) {
            return local_ms.max(self.last_now_ms);
        }
        if self.clock.is_unset() || is_timeless {
            self.clock.note(local_ms, local_ms);
        }
        self.clock.read(local_ms)
    }

    /// The node that orders: a record takes its place.
    pub(crate) fn append(&mut self, record: &Record<'_>) {
        self.log.push_with(|previous_hash, out| record.emit(previous_hash, out));
    }

    /// How a record of another node goes on from here.
    pub(crate) fn fit(&self, record: &Record<'_>, bytes: &[u8]) -> Fit {
        let end = self.log.end();
        if record.position.0 <= end.position {
            Fit::Known
        } else if record.position.0 != end.position + 1 {
            Fit::Gap
        } else if running_hash(end.hash, bytes) != record.hash {
            Fit::Mismatch
        } else {
            Fit::Next
        }
    }

    /// Takes the next record, as another node ordered it.
    pub(crate) fn take(&mut self, record: &Record<'_>, bytes: &[u8], local_ms: u64) {
        self.put(record, bytes);
        self.last_now_ms = record.now_ms;
        self.clock.note(record.now_ms, local_ms);
    }

    /// Puts a record at the end, whatever it says.
    pub(crate) fn put(&mut self, record: &Record<'_>, bytes: &[u8]) {
        self.log.push(bytes, record.hash);
    }
}
