//! Records that all members have, kept for replicas that were away: as many as a bound of bytes allows.
//!
//! They stand packed in chunks, and the oldest chunk goes as a whole, so that a kept record costs its own
//! bytes and four more, and no allocation once the bound is reached.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// How much a chunk holds, of a large tail. A small one has eight chunks.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_MIN: usize = 8;
/// What a record takes beside its own bytes.
const INDEX_BYTES: usize = size_of::<u32>();

/// Records in a row.
#[derive(Clone, Debug, Default)]
struct Chunk {
    /// The first record's position.
    first: u64,
    bytes: Vec<u8>,
    /// Where each record ends in `bytes`.
    ends: Vec<u32>,
}

impl Chunk {
    fn size_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * INDEX_BYTES
    }

    fn record(&self, position: u64) -> Option<&[u8]> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.bytes.get(start..end)
    }
}

/// The records before a log's base, without gaps up to there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    bytes_max: usize,
    /// In the order of positions.
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// A chunk that is used again.
    spare: Chunk,
}

impl Tail {
    /// An empty tail of at most so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Tail {
        Tail { bytes_max, ..Tail::default() }
    }

    /// Most bytes that it keeps.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many records it keeps.
    pub(crate) fn len(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.ends.len() as u64).sum()
    }

    /// The record at `position`, if it is kept.
    pub(crate) fn record(&self, position: u64) -> Option<&[u8]> {
        let behind = self.chunks.partition_point(|chunk| chunk.first <= position);
        self.chunks.get(behind.checked_sub(1)?)?.record(position)
    }

    /// Keeps the next record, which stands at `position`. One that is longer than all that may be kept
    /// leaves nothing.
    pub(crate) fn push(&mut self, position: u64, record: &[u8]) {
        if self.bytes_max == 0 {
            return;
        }
        let size_bytes = record.len() + INDEX_BYTES;
        while self.bytes + size_bytes > self.bytes_max {
            let Some(mut oldest) = self.chunks.pop_front() else { return };
            self.bytes -= oldest.size_bytes();
            oldest.bytes.clear();
            oldest.ends.clear();
            // One that was made for a long record is larger than others need.
            if oldest.bytes.capacity() <= 2 * CHUNK_BYTES {
                self.spare = oldest;
            }
        }
        let chunk_bytes = CHUNK_BYTES.min(self.bytes_max / CHUNKS_MIN);
        let has_room = |chunk: &Chunk| chunk.size_bytes() + size_bytes <= chunk_bytes;
        if !self.chunks.back().is_some_and(has_room) {
            let first = position;
            self.chunks.push_back(Chunk { first, ..core::mem::take(&mut self.spare) });
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes.extend_from_slice(record);
            chunk.ends.push(chunk.bytes.len() as u32);
            self.bytes += size_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::Rng;

    #[test]
    fn the_newest_records_are_kept_without_gaps_and_within_the_bound() {
        let mut rng = Rng::new(19);
        for bytes_max in [64, 500, 5_000, 3 << 20] {
            let mut tail = Tail::new(bytes_max);
            let mut all = Vec::new();
            for position in 100..1_100 {
                let most = if rng.chance(1, 50) { bytes_max + 9 } else { 1 + bytes_max / 20 };
                let record = alloc::vec![position as u8; rng.between(1, most as u64) as usize];
                tail.push(position, &record);
                all.push(record);
                assert!(tail.bytes() <= bytes_max);
                let first = 100 + all.len() as u64 - tail.len();
                assert_eq!(tail.record(first.wrapping_sub(1)), None);
                assert_eq!(tail.record(position + 1), None);
                for at in [first, u64::midpoint(first, position), position] {
                    let own = (at >= first && at <= position).then(|| &all[at as usize - 100][..]);
                    assert_eq!(tail.record(at), own, "{at} of {first}..={position}");
                }
                let kept = all[first as usize - 100..].iter().map(|r| r.len() + INDEX_BYTES);
                assert_eq!(kept.sum::<usize>(), tail.bytes());
            }
            let shorter = all[1_000 - tail.len() as usize - 1].len();
            assert!(tail.bytes() + shorter + INDEX_BYTES + bytes_max / 8 >= bytes_max / 2);
        }
    }

    #[test]
    fn one_that_keeps_nothing_keeps_nothing() {
        let mut tail = Tail::new(0);
        tail.push(1, &[1; 10]);
        assert_eq!((tail.len(), tail.record(1)), (0, None));
        let mut tail = Tail::new(100);
        tail.push(1, &[1; 10]);
        tail.push(2, &[2; 101]);
        assert_eq!((tail.len(), tail.record(1), tail.record(2)), (0, None, None));
        tail.push(3, &[3; 10]);
        assert_eq!((tail.len(), tail.record(3)), (1, Some(&[3; 10][..])));
    }
}
