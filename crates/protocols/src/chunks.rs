//! A sequence of encoded records, packed in chunks. A record takes its own bytes and four more, is
//! written once, and needs no allocation as long as chunks are reused.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The default size of a chunk, in bytes.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// The bytes that a record takes beside its own.
pub(crate) const INDEX_BYTES: usize = size_of::<u32>();

#[derive(Clone, Debug, Default)]
struct Chunk {
    /// The first record's position.
    first: u64,
    /// The total size of all records in earlier chunks, in bytes.
    before: u64,
    bytes: Vec<u8>,
    /// The end of each record in `bytes`.
    ends: Vec<u32>,
}

impl Chunk {
    /// The position after the last record.
    fn end(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    /// The index in `bytes` at which the record at `position` begins, which may be the one after
    /// the last.
    fn start(&self, position: u64) -> usize {
        match (position - self.first) as usize {
            0 => 0,
            index => self.ends[index - 1] as usize,
        }
    }
}

/// Records by position, without gaps.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    /// A chunk that has this many bytes takes no further record.
    chunk_bytes: usize,
    /// In the order of positions; none is empty.
    chunks: VecDeque<Chunk>,
    /// A chunk to reuse.
    spare: Chunk,
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks::new(CHUNK_BYTES)
    }
}

impl Chunks {
    /// No records, and chunks of `chunk_bytes`.
    pub(crate) fn new(chunk_bytes: usize) -> Chunks {
        Chunks { chunk_bytes, chunks: VecDeque::new(), spare: Chunk::default() }
    }

    /// No records, and chunks of the same size.
    pub(crate) fn emptied(&self) -> Chunks {
        Chunks::new(self.chunk_bytes)
    }

    /// Appends the record at `position`, which `emit` writes. The position is the one after the
    /// last record, if there is any.
    pub(crate) fn push<T>(&mut self, position: u64, emit: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if self.chunks.back().is_none_or(|chunk| chunk.bytes.len() >= self.chunk_bytes) {
            let before = self.chunks.back().map_or(0, |c| c.before + c.bytes.len() as u64);
            let spare = core::mem::take(&mut self.spare);
            self.chunks.push_back(Chunk { first: position, before, ..spare });
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        let result = emit(&mut chunk.bytes);
        chunk.ends.push(chunk.bytes.len() as u32);
        result
    }

    /// The record at `position`, if it is here.
    pub(crate) fn record(&self, position: u64) -> Option<&[u8]> {
        let chunk = self.chunk(position)?;
        chunk.bytes.get(chunk.start(position)..chunk.start(position + 1))
    }

    /// The total size of the records from `from` to before `to`, in bytes. Each of the two is the
    /// position of a record here, or the one after the last.
    pub(crate) fn bytes_between(&self, from: u64, to: u64) -> usize {
        (self.bytes_before(to) - self.bytes_before(from)) as usize
    }

    /// Drops the records from `position` on.
    pub(crate) fn cut(&mut self, position: u64) {
        while let Some(mut chunk) = self.chunks.pop_back() {
            if chunk.first < position {
                if position < chunk.end() {
                    chunk.bytes.truncate(chunk.start(position));
                    chunk.ends.truncate((position - chunk.first) as usize);
                }
                self.chunks.push_back(chunk);
                return;
            }
            self.reuse(chunk);
        }
    }

    /// Forgets the records before `position`, as far as they fill whole chunks.
    pub(crate) fn forget(&mut self, position: u64) {
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= position) {
            let Some(chunk) = self.chunks.pop_front() else { return };
            self.reuse(chunk);
        }
    }

    fn reuse(&mut self, mut chunk: Chunk) {
        // A chunk that was made for a long record is larger than other records need.
        if chunk.bytes.capacity() <= 2 * self.chunk_bytes {
            chunk.bytes.clear();
            chunk.ends.clear();
            self.spare = chunk;
        }
    }

    /// Most callers ask for one of the newest records, or for the oldest.
    fn chunk(&self, position: u64) -> Option<&Chunk> {
        let (first, last) = (self.chunks.front()?, self.chunks.back()?);
        let chunk = if position >= last.first {
            last
        } else if position < first.end() {
            (position >= first.first).then_some(first)?
        } else {
            &self.chunks[self.chunks.partition_point(|chunk| chunk.end() <= position)]
        };
        (position < chunk.end()).then_some(chunk)
    }

    fn bytes_before(&self, position: u64) -> u64 {
        match self.chunk(position) {
            Some(chunk) => chunk.before + chunk.start(position) as u64,
            None => self.chunks.back().map_or(0, |c| c.before + c.bytes.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::Rng;

    #[test]
    fn records_are_found_counted_cut_and_forgotten_across_chunks() {
        let mut rng = Rng::new(19);
        let mut chunks = Chunks::default();
        // The records from `first` on.
        let (mut first, mut all): (u64, VecDeque<Vec<u8>>) = (100, VecDeque::new());
        for step in 0..4_000 {
            let end = first + all.len() as u64;
            match rng.below(20) {
                0 => {
                    first = rng.between(first, end);
                    chunks.forget(first);
                    while first + all.len() as u64 > end {
                        all.pop_front();
                    }
                }
                1 => {
                    let at = rng.between(first, end);
                    chunks.cut(at);
                    all.truncate((at - first) as usize);
                }
                _ => {
                    let most = if rng.chance(1, 50) { 3 * CHUNK_BYTES } else { CHUNK_BYTES / 10 };
                    let record = alloc::vec![step as u8; rng.between(1, most as u64) as usize];
                    let len = chunks.push(end, |out| {
                        out.extend_from_slice(&record);
                        out.len()
                    });
                    assert!(len < CHUNK_BYTES + record.len());
                    all.push_back(record);
                }
            }
            let end = first + all.len() as u64;
            assert_eq!(chunks.record(end), None);
            let (a, b) = (rng.between(first, end), rng.between(first, end));
            for at in [first, a, end.max(first + 1) - 1] {
                let own = all.get((at - first) as usize).map(Vec::as_slice);
                assert_eq!(chunks.record(at), own, "{at} of {first}..{end}");
            }
            let (from, to) = (a.min(b), a.max(b));
            let between = all.range((from - first) as usize..(to - first) as usize);
            assert_eq!(chunks.bytes_between(from, to), between.map(Vec::len).sum::<usize>());
            assert!(chunks.chunks.iter().all(|chunk| !chunk.ends.is_empty()));
            let needed = |chunk: &Chunk| chunk.end() > first || chunks.chunks.len() == 1;
            assert!(chunks.chunks.front().is_none_or(needed));
        }
    }

    #[test]
    fn a_chunk_is_used_again_but_none_that_is_large() {
        let mut chunks = Chunks::default();
        let push =
            |chunks: &mut Chunks, at, len| chunks.push(at, |out| out.resize(out.len() + len, 0));
        push(&mut chunks, 1, CHUNK_BYTES);
        push(&mut chunks, 2, 1);
        chunks.forget(2);
        assert_eq!((chunks.chunks.len(), chunks.spare.bytes.len()), (1, 0));
        assert!(chunks.spare.bytes.capacity() >= CHUNK_BYTES);
        chunks.cut(2);
        push(&mut chunks, 2, 4 * CHUNK_BYTES);
        chunks.forget(3);
        assert!(chunks.chunks.is_empty() && chunks.spare.bytes.capacity() == 0);
    }
}
