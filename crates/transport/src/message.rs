//! A message that arrives in pieces: which of its bytes are here.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The bytes of a message so far. Pieces may come in any order, twice, and overlap.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    size: u32,
    data: Vec<u8>,
    /// Ranges that are here: from, to. They neither overlap nor touch.
    ranges: BTreeMap<u32, u32>,
}

impl Pieces {
    /// A message of so many bytes, none of which is here.
    pub(crate) fn new(size: u32) -> Pieces {
        Pieces { size, data: Vec::new(), ranges: BTreeMap::new() }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// How many bytes are here.
    pub(crate) fn received(&self) -> u32 {
        self.ranges.iter().map(|(from, to)| to - from).sum()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.ranges.get(&0) == Some(&self.size)
    }

    /// Takes a piece; whether it lies within the message.
    pub(crate) fn take(&mut self, offset: u32, piece: &[u8]) -> bool {
        let end = u64::from(offset) + piece.len() as u64;
        if end > u64::from(self.size) {
            return false;
        }
        let (mut from, mut to) = (offset, end as u32);
        if self.data.len() < to as usize {
            self.data.resize(to as usize, 0);
        }
        self.data[from as usize..to as usize].copy_from_slice(piece);
        // Ranges that overlap or touch it become one with it.
        while let Some((&begin, &end)) = self.ranges.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.ranges.remove(&begin);
            (from, to) = (from.min(begin), to.max(end));
        }
        self.ranges.insert(from, to);
        true
    }

    /// Its bytes.
    pub(crate) fn into_data(self) -> Vec<u8> {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use concord_core::Rng;

    use super::*;

    /// Pieces in any order, twice and overlapping, beside a bit for each byte.
    #[test]
    fn pieces_are_counted_as_by_a_bit_each() {
        let mut rng = Rng::new(52);
        for _ in 0..500 {
            let size = rng.between(1, 60) as u32;
            let whole: Vec<u8> = (0..size).map(|n| n as u8 ^ 0x55).collect();
            let (mut pieces, mut here) = (Pieces::new(size), alloc::vec![false; size as usize]);
            while !pieces.is_whole() {
                let from = rng.below(u64::from(size)) as usize;
                let to = rng.between(from as u64 + 1, u64::from(size)) as usize;
                assert!(pieces.take(from as u32, &whole[from..to]));
                here[from..to].fill(true);
                assert_eq!(pieces.received() as usize, here.iter().filter(|h| **h).count());
                assert_eq!(pieces.is_whole(), here.iter().all(|h| *h));
            }
            assert!(!pieces.take(size, &[0]) && !pieces.take(u32::MAX, &[0]));
            assert_eq!(pieces.into_data(), whole);
        }
    }
}
