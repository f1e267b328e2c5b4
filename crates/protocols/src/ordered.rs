//! The ordered log: the log, the newest sequence number that is in it or on its way to it, and the
//! log's time. The same in every protocol.

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

    /// The log's time, for the next record. Where no key has a time to live (`is_timeless`), and
    /// none that was ordered may get one, it steps to the own clock: nobody can tell.
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use concord_core::SwitchId;

    use super::*;

    fn record(position: u64, now_ms: u64) -> Record<'static> {
        Record { position: Position(position), now_ms, ..Record::EMPTY }
    }

    /// Its bytes, and what they say, behind a log whose hash is that.
    fn encoded(record: Record<'static>, previous_hash: u64) -> (Record<'static>, Vec<u8>) {
        let mut bytes = Vec::new();
        let hash = record.emit(previous_hash, &mut bytes);
        (Record { hash, ..record }, bytes)
    }

    #[test]
    fn numbers_are_taken_of_the_active_switch_alone_and_only_rise() {
        let (mut ordered, mut count) = (Ordered::default(), ReplicaCounters::default());
        let mut takes = |switch_id, counter, active| {
            let seq = Seq::new(SwitchId(switch_id), counter);
            ordered.take_number(seq, active, Guards::ALL, &mut count)
        };
        assert!(takes(1, 5, 1));
        assert!(!takes(1, 5, 1) && !takes(1, 4, 1));
        assert!(takes(1, 6, 1) && takes(1, 9, 1));
        assert!(!takes(2, 10, 1) && !takes(1, 0, 1), "another switch's, and none at all");
        assert!(takes(2, 3, 2), "a new switch begins anew");
        assert!(!takes(1, 20, 1));
        assert_eq!(ordered.last_seq, Seq::new(SwitchId(2), 3));
        assert_eq!((count.writes_other_switch, count.writes_out_of_order), (2, 3));
        assert_eq!(count.seq_gaps, 2, "7 and 8");
    }

    /// A record fits behind the end of the log that it was ordered in.
    #[test]
    fn record_fits_after_its_log_end() {
        let mut ordered = Ordered::default();
        for position in 1..=3 {
            ordered.append(&record(position, 0));
        }
        let end = ordered.log.end();
        assert_eq!(ordered.end(), Position(3));
        let fit = |position, previous_hash| {
            let (record, bytes) = encoded(record(position, 0), previous_hash);
            ordered.fit(&record, &bytes)
        };
        assert_eq!((fit(2, end.hash), fit(3, end.hash)), (Fit::Known, Fit::Known));
        assert_eq!((fit(4, end.hash), fit(4, end.hash ^ 1)), (Fit::Next, Fit::Mismatch));
        assert_eq!((fit(5, end.hash), fit(9, end.hash)), (Fit::Gap, Fit::Gap));
    }

    /// The logs time goes on from the last record and where no key has one from the own clock.
    #[test]
    fn log_time_continues_from_records_or_clock() {
        let mut ordered = Ordered::default();
        assert_eq!(ordered.stamp(1_000, false, Guards::ALL), 1_000);
        let (next, bytes) = encoded(record(1, 90_000), 0);
        ordered.take(&next, &bytes, 1_000);
        assert_eq!((ordered.last_now_ms, ordered.end()), (90_000, Position(1)));
        assert_eq!(ordered.log.end().hash, next.hash);
        assert_eq!(ordered.stamp(1_010, false, Guards::ALL), 90_010);
        assert_eq!(ordered.stamp(1_010, true, Guards::ALL), 1_010);
        assert_eq!(ordered.stamp(1_020, false, Guards::ALL), 1_020, "it stays there");
    }

    #[test]
    fn beginning_anew_keeps_the_clock() {
        let mut ordered = Ordered::default();
        let (next, bytes) = encoded(record(1, 90_000), 0);
        ordered.take(&next, &bytes, 1_000);
        let seq = Seq::new(SwitchId(1), 7);
        ordered.reset(LogEnd { position: 20, hash: 5 }, seq, 80_000);
        assert_eq!((ordered.end(), ordered.last_seq), (Position(20), seq));
        assert_eq!(ordered.last_now_ms, 80_000);
        assert_eq!(ordered.stamp(1_000, false, Guards::ALL), 90_000);
    }

    #[test]
    fn a_record_that_is_put_changes_nothing_but_the_log() {
        let mut ordered = Ordered::default();
        let (next, bytes) = encoded(record(1, 90_000), 0);
        ordered.put(&next, &bytes);
        assert_eq!((ordered.end(), ordered.last_now_ms), (Position(1), 0));
        assert!(ordered.clock.is_unset());
    }
}
