//! The replicated log: encoded records without gaps, kept until every member of the epoch has them. Those
//! that are dropped then stay for a while, for replicas that were away (`tail.rs`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Position;
use concord_wire::control::LogEnd;

use crate::limits::Limits;
use crate::tail::Tail;

const SPARE_MAX: usize = 1_024;
const SPARE_BYTES_MAX: usize = 4_096;

/// Records by position. Buffers are reused, so that steady state allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Log {
    records: VecDeque<Vec<u8>>,
    /// The end of what was dropped: the record before the first one that a member may lack.
    base: LogEnd,
    /// What was dropped last.
    tail: Tail,
    /// The end of the log.
    end: LogEnd,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl Log {
    /// An empty log that goes on behind `base`.
    #[must_use]
    pub fn starting_at(base: LogEnd) -> Log {
        Log { base, end: base, ..Log::default() }
    }

    /// An empty log that keeps about so many bytes of what is dropped, for replicas that were away.
    #[must_use]
    pub fn with_tail(bytes_max: usize) -> Log {
        Log { tail: Tail::new(bytes_max), ..Log::default() }
    }

    /// From now on so many bytes of what is dropped are kept.
    #[cfg(test)]
    pub(crate) fn keep_tail(&mut self, bytes_max: usize) {
        self.tail = Tail::new(bytes_max);
    }

    /// The end of what was dropped: the record before the first one that a member may lack.
    #[must_use]
    pub fn base(&self) -> LogEnd {
        self.base
    }

    /// The last position whose record is not here any more: whoever lacks that one cannot go on from
    /// this log.
    #[must_use]
    pub fn oldest(&self) -> Position {
        Position(self.base.position - self.tail.len())
    }

    /// Bytes that are kept of what was dropped.
    #[must_use]
    pub fn tail_bytes(&self) -> usize {
        self.tail.bytes()
    }

    /// The log's end as it was at `position`, which is not below the base, if that is still known.
    #[must_use]
    pub fn end_at(&self, position: u64) -> Option<LogEnd> {
        if position == self.base.position {
            return Some(self.base);
        }
        let hash = hash_of(self.records.get(self.index(position)?)?);
        Some(LogEnd { position, hash })
    }

    /// Drops all records behind `position`, which is not below the base.
    pub fn cut(&mut self, position: u64) {
        let Some(end) = self.end_at(position) else { return };
        while self.end.position > position {
            let Some(record) = self.records.pop_back() else { break };
            self.end.position -= 1;
            self.bytes -= record.len();
        }
        self.end = end;
    }

    /// Moves the records of `other`, which goes on where this log ends, behind it.
    pub fn append(&mut self, mut other: Log) {
        if other.base != self.end {
            return;
        }
        self.records.append(&mut other.records);
        self.bytes += other.bytes;
        self.end = other.end;
    }

    /// The last record's position and running hash.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.end
    }

    /// The running hash at `position`, if that is known.
    #[must_use]
    pub fn hash_at(&self, position: Position) -> Option<u64> {
        if position.0 == self.base.position {
            return Some(self.base.hash);
        }
        self.record(position).map(hash_of)
    }

    /// Begins anew behind `end`.
    pub fn reset(&mut self, end: LogEnd) {
        *self = Log { base: end, end, ..Log::with_tail(self.tail.bytes_max()) };
    }

    /// A buffer to encode the next record into.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// The last record, if it is kept.
    #[must_use]
    pub fn last(&self) -> Option<&[u8]> {
        self.records.back().map(Vec::as_slice)
    }

    /// Appends an encoded record; `hash` is its running hash.
    pub fn push(&mut self, record: Vec<u8>, hash: u64) {
        self.bytes += record.len();
        self.end = LogEnd { position: self.end.position + 1, hash };
        self.records.push_back(record);
    }

    /// The record at `position`, if it is kept.
    #[must_use]
    pub fn record(&self, position: Position) -> Option<&[u8]> {
        match self.index(position.0) {
            Some(index) => self.records.get(index).map(Vec::as_slice),
            None => self.tail.record(position.0),
        }
    }

    fn index(&self, position: u64) -> Option<usize> {
        position.checked_sub(self.base.position + 1).map(|index| index as usize)
    }

    /// Drops all records up to `position`: every member has them. The newest of them stay in the tail.
    pub fn truncate(&mut self, position: Position) {
        while self.base.position < position.0 {
            let Some(mut record) = self.records.pop_front() else { return };
            self.bytes -= record.len();
            self.base = LogEnd { position: self.base.position + 1, hash: hash_of(&record) };
            self.tail.push(self.base.position, &record);
            if self.spare.len() < SPARE_MAX && record.capacity() <= SPARE_BYTES_MAX {
                record.clear();
                self.spare.push(record);
            }
        }
    }

    /// Whether the head must refuse writes until members have caught up.
    #[must_use]
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.records.len() >= limits.log_records_max || self.bytes >= limits.log_bytes_max
    }

    /// Bytes of the records that a member may lack.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is so long that nothing is kept for replicas that are joining.
    #[must_use]
    pub fn is_half_full(&self, limits: &Limits) -> bool {
        self.records.len() >= limits.log_records_max / 2 || self.bytes >= limits.log_bytes_max / 2
    }

    /// Whether the ordering node keeps writes of its own back. VR keeps half of it for members that
    /// lag, always: that much is not full.
    #[must_use]
    pub fn is_nearly_full(&self, limits: &Limits) -> bool {
        self.records.len() >= limits.log_records_max / 4 * 3
            || self.bytes >= limits.log_bytes_max / 4 * 3
    }

    /// Number of records that a member may lack.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// The running hash in an encoded record.
fn hash_of(record: &[u8]) -> u64 {
    let mut hash = [0; 8];
    hash.copy_from_slice(&record[8..16]);
    u64::from_be_bytes(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(base: u64, hashes: &[u64]) -> Log {
        let mut log = Log::starting_at(LogEnd { position: base, hash: base * 10 });
        for &hash in hashes {
            let mut record = alloc::vec![0; 8];
            record.extend_from_slice(&hash.to_be_bytes());
            log.push(record, hash);
        }
        log
    }

    #[test]
    fn a_log_is_cut_behind_and_goes_on_with_another() {
        let mut a = log(5, &[60, 70, 80]);
        assert_eq!(a.end_at(4), None);
        assert_eq!(a.end_at(5), Some(LogEnd { position: 5, hash: 50 }));
        assert_eq!(a.end_at(7), Some(LogEnd { position: 7, hash: 70 }));
        a.cut(6);
        assert_eq!((a.end(), a.len(), a.bytes()), (LogEnd { position: 6, hash: 60 }, 1, 16));
        a.append(log(7, &[80]));
        assert_eq!(a.end().position, 6, "there would be a gap");
        a.append(log(6, &[71, 81]));
        assert_eq!(a.end(), LogEnd { position: 8, hash: 81 });
        a.truncate(Position(7));
        assert_eq!(a.base(), LogEnd { position: 7, hash: 71 });
        a.cut(7);
        assert_eq!((a.end(), a.len(), a.bytes()), (a.base(), 0, 0));
    }
    #[test]
    fn records_are_found_by_their_position_while_they_are_kept() {
        let mut log = log(5, &[60, 70, 80]);
        let at = |log: &Log, position| log.record(Position(position)).map(hash_of);
        let seen: Vec<_> = (4..=9).map(|position| at(&log, position)).collect();
        assert_eq!(seen, [None, None, Some(60), Some(70), Some(80), None]);
        let known: Vec<_> = (4..=9).map(|position| log.hash_at(Position(position))).collect();
        assert_eq!(known, [None, Some(50), Some(60), Some(70), Some(80), None]);
        assert_eq!(log.last().map(hash_of), Some(80));
        log.truncate(Position(6));
        assert_eq!((at(&log, 6), log.hash_at(Position(6)), log.bytes()), (None, Some(60), 32));
        log.truncate(Position(99));
        assert_eq!((log.base(), log.end(), log.is_empty()), (log.end(), log.base(), true));
        assert_eq!((log.end().position, log.last()), (8, None));
        log.reset(LogEnd { position: 3, hash: 1 });
        assert_eq!((log.base(), log.end().position), (log.end(), 3));
    }

    #[test]
    fn what_was_dropped_stays_for_a_while_and_is_not_counted() {
        let mut log = Log::with_tail(4 * 20);
        assert_eq!(log.oldest(), Position(0));
        for hash in 1..=10 {
            let record = [[0; 8], u64::to_be_bytes(hash)].concat();
            log.push(record, hash);
        }
        log.truncate(Position(3));
        assert_eq!((log.base().position, log.oldest()), (3, Position(0)));
        let known = |log: &Log, at| log.hash_at(Position(at));
        assert_eq!([known(&log, 1), known(&log, 3), known(&log, 10)], [Some(1), Some(3), Some(10)]);
        assert_eq!((log.len(), log.bytes(), log.tail_bytes()), (7, 7 * 16, 3 * 20));
        // The end is never moved back to there.
        assert_eq!((log.end_at(2), log.end_at(3)), (None, Some(log.base())));
        log.truncate(Position(8));
        assert_eq!((log.base().position, log.oldest()), (8, Position(4)));
        assert_eq!([known(&log, 4), known(&log, 5), known(&log, 9)], [None, Some(5), Some(9)]);
        log.reset(LogEnd { position: 20, hash: 7 });
        assert_eq!((log.oldest(), known(&log, 8), log.tail_bytes()), (Position(20), None, 0));
        log.push([[0; 8], 8u64.to_be_bytes()].concat(), 8);
        log.truncate(Position(21));
        assert_eq!(log.oldest(), Position(20), "the bound stays");
    }

    #[test]
    fn a_log_is_half_nearly_and_wholly_full_by_records_or_by_bytes() {
        let fill = |log_records_max, log_bytes_max| {
            let limits = Limits { log_records_max, log_bytes_max, ..Limits::default() };
            let mut firsts = [None; 3];
            for count in 0..=20 {
                let log = log(0, &alloc::vec![1; count]);
                let is =
                    [log.is_half_full(&limits), log.is_nearly_full(&limits), log.is_full(&limits)];
                for (first, is) in firsts.iter_mut().zip(is) {
                    *first = first.or(is.then_some(count));
                }
            }
            firsts.map(Option::unwrap)
        };
        assert_eq!(fill(16, usize::MAX), [8, 12, 16]);
        // 16 bytes a record.
        assert_eq!(fill(usize::MAX, 16 * 16), [8, 12, 16]);
    }

    #[test]
    fn buffers_of_records_are_used_again_but_large_ones_and_too_many() {
        let capacities = |log: &mut Log| -> Vec<usize> {
            let mut all = Vec::new();
            while let Some(buffer) = log.spare.pop() {
                assert!(buffer.is_empty());
                all.push(buffer.capacity());
            }
            all
        };
        let mut log = log(0, &alloc::vec![1; SPARE_MAX + 9]);
        log.truncate(Position(SPARE_MAX as u64 + 9));
        assert_eq!(capacities(&mut log).len(), SPARE_MAX);
        for bytes in [SPARE_BYTES_MAX, SPARE_BYTES_MAX + 1] {
            log.push(alloc::vec![0; bytes], 0);
        }
        log.truncate(Position(log.end().position));
        assert_eq!(capacities(&mut log), [SPARE_BYTES_MAX]);
    }
}
