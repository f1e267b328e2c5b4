//! The replicated log: encoded records without gaps, kept until every member of the epoch has them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Position;
use concord_wire::control::LogEnd;

/// Most records kept for members that lag; the head refuses writes above.
pub const LOG_RECORDS_MAX: usize = 65_536;
/// Most bytes kept for members that lag; the head refuses writes above.
pub const LOG_BYTES_MAX: usize = 256 << 20;
const SPARE_MAX: usize = 1_024;
const SPARE_BYTES_MAX: usize = 4_096;

/// Records by position. Buffers are reused, so that steady state allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Log {
    records: VecDeque<Vec<u8>>,
    /// The end of what was dropped: the record before the first kept one.
    base: LogEnd,
    /// The end of the log.
    end: LogEnd,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl Log {
    /// The last record's position and running hash.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.end
    }

    /// The record before the first that is kept: its position and running hash.
    #[must_use]
    pub fn base(&self) -> LogEnd {
        self.base
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
        *self = Log { base: end, end, ..Log::default() };
    }

    /// A buffer to encode the next record into.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
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
        let at = position.0.checked_sub(self.base.position + 1)?;
        self.records.get(at as usize).map(Vec::as_slice)
    }

    /// Drops all records up to `position`: every member has them.
    pub fn truncate(&mut self, position: Position) {
        while self.base.position < position.0 {
            let Some(mut record) = self.records.pop_front() else { return };
            self.bytes -= record.len();
            self.base = LogEnd { position: self.base.position + 1, hash: hash_of(&record) };
            if self.spare.len() < SPARE_MAX && record.capacity() <= SPARE_BYTES_MAX {
                record.clear();
                self.spare.push(record);
            }
        }
    }

    /// Whether the head must refuse writes until members have caught up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.records.len() >= LOG_RECORDS_MAX || self.bytes >= LOG_BYTES_MAX
    }

    /// Whether it is so long that nothing is kept for replicas that are joining.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.records.len() >= LOG_RECORDS_MAX / 2 || self.bytes >= LOG_BYTES_MAX / 2
    }

    /// Number of records kept.
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
