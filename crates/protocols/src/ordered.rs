//! The ordered log, the same in every protocol: the log, the newest sequence number in it or on its
//! way to it, and the log's time.

use concord_core::{Guard, Guards, LogClock, Position, Seq};
use concord_wire::control::LogEnd;
use concord_wire::record::{Record, running_hash};

use crate::counters::ReplicaCounters;
use crate::journal::Journal;
use crate::limits::Limits;
use crate::log::Log;

/// Permission to append one record: nothing enters the log without it. [`Ordered::room`] is the
/// valve of every protocol. Each of the other constructors is for records that enter although the
/// valve is closed, and says why their number is bounded.
#[derive(Debug)]
#[must_use]
pub(crate) struct Room(());

impl Room {
    /// For a write, or a packet with records, that arrived while the valve was open. After it
    /// closes, at most the records of one packet enter, and the writes that wait for the engine.
    pub(crate) const fn admitted() -> Room {
        Room(())
    }

    /// For the record with which a new view or term begins: one for each.
    pub(crate) const fn of_view() -> Room {
        Room(())
    }

    /// For records from this replica's own disk, and for tests.
    pub(crate) const fn restored() -> Room {
        Room(())
    }
}

/// The log, and the numbers and times for its next record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) log: Log,
    /// The newest sequence number in the log, or accepted by the ordering replica.
    pub(crate) last_seq: Seq,
    /// The time stamp of the last record. Stamps may decrease along the log only while no key has a
    /// time to live.
    pub(crate) last_now_ms: u64,
    /// The log's time.
    pub(crate) clock: LogClock,
}

/// The relation of a record to the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The log has this record, or another one at its position.
    Known,
    /// The record is the next one.
    Next,
    /// Records before it are missing.
    Gap,
    /// The record continues another log.
    Mismatch,
}

impl Ordered {
    /// An empty log.
    pub(crate) fn new(limits: &Limits) -> Ordered {
        Ordered { log: Log::new(limits), ..Ordered::default() }
    }

    /// The last record's position.
    pub(crate) fn end(&self) -> Position {
        Position(self.log.end().position)
    }

    /// Drops everything, and continues after `end`, whose record had this number and time stamp.
    /// The clock stays.
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

    /// The log's time, for the next record. It steps to this node's clock if no key has a time to
    /// live and no ordered write may set one (`is_timeless`), since no client can notice.
    pub(crate) fn stamp(&mut self, local_ms: u64, is_timeless: bool, guards: Guards) -> u64 {
        if !guards.on(Guard::LogClock) {
            return local_ms.max(self.last_now_ms);
        }
        if self.clock.is_unset() || is_timeless {
            self.clock.note(local_ms, local_ms);
        }
        self.clock.read(local_ms)
    }

    /// Permission to append the next record; `None` if the log is full of records that members
    /// lack, or the disk is late. A write that is not accepted is not acknowledged, and its client
    /// retries.
    pub(crate) fn room(&self, limits: &Limits, guards: Guards, journal: &Journal) -> Option<Room> {
        (!self.log.is_full(limits) && !journal.is_late(guards)).then_some(Room(()))
    }

    /// The node that orders: a record takes its place.
    pub(crate) fn append(&mut self, _room: Room, record: &Record<'_>) {
        self.log.push_with(|previous_hash, out| record.emit(previous_hash, out));
    }

    /// The relation of another node's record to the log's end.
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

    /// Appends the next record, which another node ordered.
    pub(crate) fn take(&mut self, _room: Room, record: &Record<'_>, bytes: &[u8], local_ms: u64) {
        self.put(record, bytes);
        self.last_now_ms = record.now_ms;
        self.clock.note(record.now_ms, local_ms);
    }

    /// Appends a record without checks.
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
            ordered.append(Room::restored(), &record(position, 0));
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
        ordered.take(Room::restored(), &next, &bytes, 1_000);
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
        ordered.take(Room::restored(), &next, &bytes, 1_000);
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
