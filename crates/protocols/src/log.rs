//! The replicated log: encoded records without gaps, kept until every member of the epoch has them.
//! After that the newest stay within a bound of bytes, as the *tail*, for replicas that were away.

use core::fmt;

use alloc::vec::Vec;

use concord_core::Position;
use concord_wire::control::LogEnd;

use crate::chunks::{Chunks, INDEX_BYTES};
use crate::limits::Limits;

/// Records by position. In steady state nothing is allocated, and records are not moved.
#[derive(Clone, Default)]
pub struct Log {
    /// The records after `oldest`.
    records: Chunks,
    /// The last position whose record was forgotten.
    oldest: u64,
    /// The last record that every member has: the one before the first that a member may lack.
    base: LogEnd,
    /// The end of the log.
    end: LogEnd,
    /// The total size of the records after the base, in bytes.
    bytes: usize,
    /// The total size of the tail, in bytes; then its bound.
    tail_bytes: usize,
    tail_bytes_max: usize,
}

impl Log {
    /// An empty log that continues after `base`.
    #[must_use]
    pub fn starting_at(base: LogEnd) -> Log {
        Log { oldest: base.position, base, end: base, ..Log::default() }
    }

    /// An empty log with a tail of [`Limits::log_memory_bytes`].
    #[must_use]
    pub fn new(limits: &Limits) -> Log {
        let records = Chunks::new(limits.log_chunk_bytes);
        Log { records, tail_bytes_max: limits.log_memory_bytes, ..Log::default() }
    }

    /// Sets the bound of the tail.
    #[cfg(test)]
    pub(crate) fn keep_tail(&mut self, bytes_max: usize) {
        self.tail_bytes_max = bytes_max;
    }

    /// The last record that every member has: the one before the first that a member may lack.
    #[must_use]
    pub fn base(&self) -> LogEnd {
        self.base
    }

    /// The last position whose record was forgotten: a replica that lacks it cannot continue from
    /// this log.
    #[must_use]
    pub fn oldest(&self) -> Position {
        Position(self.oldest)
    }

    /// The total size of the tail, in bytes.
    #[must_use]
    pub fn tail_bytes(&self) -> usize {
        self.tail_bytes
    }

    /// The log's end as it was at `position`, which is not below the base; `None` if its hash is
    /// not known any more.
    #[must_use]
    pub fn end_at(&self, position: u64) -> Option<LogEnd> {
        if position < self.base.position {
            return None;
        }
        let hash = self.hash_at(Position(position))?;
        Some(LogEnd { position, hash })
    }

    /// Drops all records after `position`, which is not below the base.
    pub fn cut(&mut self, position: u64) {
        let Some(end) = self.end_at(position) else { return };
        self.bytes -= self.records.bytes_between(position + 1, self.end.position + 1);
        self.records.cut(position + 1);
        self.end = end;
    }

    /// Appends the records of `other`, which begins where this log ends.
    pub fn append(&mut self, other: &Log) {
        if other.base != self.end {
            return;
        }
        for position in other.base.position + 1..=other.end.position {
            let Some(record) = other.record(Position(position)) else { return };
            self.push(record, hash_of(record));
        }
    }

    /// The last record's position and running hash.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.end
    }

    /// The running hash at `position`, if it is known.
    #[must_use]
    pub fn hash_at(&self, position: Position) -> Option<u64> {
        if position.0 == self.base.position {
            return Some(self.base.hash);
        }
        self.record(position).map(hash_of)
    }

    /// Drops everything, and continues after `end`.
    pub fn reset(&mut self, end: LogEnd) {
        let (records, tail_bytes_max) = (self.records.emptied(), self.tail_bytes_max);
        *self = Log { records, tail_bytes_max, ..Log::starting_at(end) };
    }

    /// The last record, if a member may lack it.
    #[must_use]
    pub fn last(&self) -> Option<&[u8]> {
        if self.is_empty() { None } else { self.record(Position(self.end.position)) }
    }

    /// Appends an encoded record; `hash` is its running hash.
    pub fn push(&mut self, record: &[u8], hash: u64) {
        self.push_with(|_, out| {
            out.extend_from_slice(record);
            hash
        });
    }

    /// Appends the record that `emit` writes to the end of the buffer. `emit` gets the running hash
    /// of the record before, and returns that of the new one.
    pub fn push_with(&mut self, emit: impl FnOnce(u64, &mut Vec<u8>) -> u64) {
        let (position, previous) = (self.end.position + 1, self.end.hash);
        let (hash, len) = self.records.push(position, |out| {
            let start = out.len();
            (emit(previous, out), out.len() - start)
        });
        self.bytes += len;
        self.end = LogEnd { position, hash };
    }

    /// The record at `position`, if it is kept.
    #[must_use]
    pub fn record(&self, position: Position) -> Option<&[u8]> {
        if position.0 > self.oldest { self.records.record(position.0) } else { None }
    }

    /// Moves the base to `position`: every member has the records up to there. The newest of them
    /// stay in the tail.
    pub fn truncate(&mut self, position: Position) {
        let position = position.0.min(self.end.position);
        if position <= self.base.position {
            return;
        }
        let Some(hash) = self.hash_at(Position(position)) else { return };
        let bytes = self.records.bytes_between(self.base.position + 1, position + 1);
        self.bytes -= bytes;
        self.tail_bytes += bytes + (position - self.base.position) as usize * INDEX_BYTES;
        self.base = LogEnd { position, hash };
        self.shorten_tail();
    }

    fn shorten_tail(&mut self) {
        while self.tail_bytes > self.tail_bytes_max {
            self.oldest += 1;
            let bytes = self.records.record(self.oldest).map_or(0, <[u8]>::len);
            self.tail_bytes -= bytes + INDEX_BYTES;
        }
        self.records.forget(self.oldest + 1);
    }

    /// Whether the head must refuse writes until members have caught up.
    #[must_use]
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.len() >= limits.log_records_max || self.bytes >= limits.log_bytes_max
    }

    /// The total size of the records that a member may lack, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the log is so long that nothing is kept for joining replicas.
    #[must_use]
    pub fn is_half_full(&self, limits: &Limits) -> bool {
        self.len() >= limits.log_records_max / 2 || self.bytes >= limits.log_bytes_max / 2
    }

    /// Whether the ordering node holds back writes of its own. VR always keeps half of the log for
    /// members that lag, so half does not count.
    #[must_use]
    pub fn is_nearly_full(&self, limits: &Limits) -> bool {
        self.len() >= limits.log_records_max / 4 * 3 || self.bytes >= limits.log_bytes_max / 4 * 3
    }

    /// The number of records that a member may lack.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end.position - self.base.position) as usize
    }

    /// Whether no member lacks a record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.position == self.base.position
    }
}

/// Shows the records and not their chunks: logs of the same records look the same.
impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.oldest + 1..=self.end.position;
        let records: Vec<_> = kept.map(|at| self.record(Position(at))).collect();
        f.debug_struct("Log")
            .field("records", &records)
            .field("base", &self.base)
            .field("end", &self.end)
            .finish()
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
    use concord_core::Rng;

    fn log(base: u64, hashes: &[u64]) -> Log {
        let mut log = Log::starting_at(LogEnd { position: base, hash: base * 10 });
        for &hash in hashes {
            log.push(&[[0; 8], hash.to_be_bytes()].concat(), hash);
        }
        log
    }

    fn with_tail(log_memory_bytes: usize) -> Log {
        Log::new(&Limits { log_memory_bytes, log_chunk_bytes: 1_000, ..Limits::default() })
    }

    #[test]
    fn a_log_is_cut_behind_and_goes_on_with_another() {
        let mut a = log(5, &[60, 70, 80]);
        assert_eq!(a.end_at(4), None);
        assert_eq!(a.end_at(5), Some(LogEnd { position: 5, hash: 50 }));
        assert_eq!(a.end_at(7), Some(LogEnd { position: 7, hash: 70 }));
        a.cut(6);
        assert_eq!((a.end(), a.len(), a.bytes()), (LogEnd { position: 6, hash: 60 }, 1, 16));
        a.append(&log(7, &[80]));
        assert_eq!(a.end().position, 6, "there would be a gap");
        a.append(&log(6, &[71, 81]));
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
        let mut log = with_tail(4 * 20);
        assert_eq!(log.oldest(), Position(0));
        for hash in 1..=10 {
            let record = [[0; 8], u64::to_be_bytes(hash)].concat();
            log.push(&record, hash);
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
        log.push(&[[0; 8], 8u64.to_be_bytes()].concat(), 8);
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
    fn the_tail_has_the_newest_records_that_its_bound_allows() {
        let mut rng = Rng::new(19);
        for bytes_max in [0, 64, 500, 5_000, 3 << 20] {
            let mut log = with_tail(bytes_max);
            let mut lens = Vec::new();
            for _ in 0..1_000 {
                let most = if rng.chance(1, 50) { bytes_max + 9 } else { 20 + bytes_max / 20 };
                lens.push(rng.between(16, 16.max(most) as u64) as usize);
                log.push(&alloc::vec![0; lens[lens.len() - 1]], 0);
                if rng.chance(1, 3) {
                    log.truncate(Position(rng.between(log.base().position, log.end().position)));
                }
                let (base, oldest) = (log.base().position as usize, log.oldest().0 as usize);
                let size = |lens: &[usize]| lens.iter().map(|len| len + INDEX_BYTES).sum::<usize>();
                assert_eq!(log.bytes(), lens[base..].iter().sum::<usize>());
                assert_eq!(log.tail_bytes(), size(&lens[oldest..base]));
                assert!(log.tail_bytes() <= bytes_max);
                assert!(oldest == 0 || size(&lens[oldest - 1..base]) > bytes_max);
                assert_eq!(log.record(Position(oldest as u64)), None);
                for at in [oldest + 1, base, base + 1, lens.len()] {
                    let own = (at > oldest).then(|| lens.get(at - 1)).flatten();
                    assert_eq!(log.record(Position(at as u64)).map(<[u8]>::len), own.copied());
                }
            }
        }
    }

    #[test]
    fn logs_of_the_same_records_look_alike() {
        let text = |log: &Log| alloc::format!("{log:?}");
        let (mut a, mut b) = (log(5, &[60, 70, 80]), log(6, &[70, 80]));
        assert_ne!(text(&a), text(&b));
        a.truncate(Position(6));
        b.base.hash = 60;
        assert_eq!(text(&a), text(&b));
        a.cut(7);
        assert_ne!(text(&a), text(&b));
    }
}
