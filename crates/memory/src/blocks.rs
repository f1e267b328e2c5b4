//! Blocks in packets: split into parts, and reassembled (trap T17).

use alloc::vec::Vec;

use concord_wire::concordia::FRAGMENT_BYTES_MAX;

/// A block that arrives in parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assembly {
    number: u64,
    /// A bit for each part that has arrived.
    parts: u8,
    data: Vec<u8>,
}

impl Assembly {
    /// An assembly without parts, for the event with this number.
    #[must_use]
    pub fn new(number: u64, block_bytes: usize) -> Assembly {
        Assembly { number, parts: 0, data: alloc::vec![0; block_bytes] }
    }

    /// The number of the event to which the block belongs.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds a part. Returns the whole block once all parts are there. A malformed part changes
    /// nothing.
    pub fn add(&mut self, offset_bytes: usize, part: &[u8]) -> Option<Vec<u8>> {
        let fragment_bytes = FRAGMENT_BYTES_MAX.min(self.data.len());
        let count = self.data.len() / fragment_bytes;
        let index = offset_bytes / fragment_bytes;
        let is_part = offset_bytes.is_multiple_of(fragment_bytes)
            && part.len() == fragment_bytes
            && index < count;
        if !is_part {
            return None;
        }
        self.data[offset_bytes..offset_bytes + fragment_bytes].copy_from_slice(part);
        self.parts |= 1 << index;
        (self.parts.count_ones() as usize == count).then(|| self.data.clone())
    }
}

/// The parts of a block: the offset of each, and its bytes.
pub fn parts(data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    (0..).step_by(FRAGMENT_BYTES_MAX).zip(data.chunks(FRAGMENT_BYTES_MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Blocks of all sizes arrive complete from parts in any order, and malformed parts are
    /// refused.
    #[test]
    fn t17_blocks_of_many_packets_arrive_whole() {
        for block_bytes in concord_wire::concordia::BLOCK_BYTES {
            let data: Vec<u8> = (0..block_bytes).map(|at| (at / 64) as u8).collect();
            let mut assembly = Assembly::new(1, block_bytes);
            assert_eq!(assembly.add(64, &data[64..]), None);
            assert_eq!(assembly.add(block_bytes, &[0; 512]), None);
            let mut all: Vec<(usize, &[u8])> = parts(&data).collect();
            all.reverse();
            let (last, first) = all.split_last().unwrap();
            for (offset, part) in first.iter().chain(first) {
                assert_eq!(assembly.add(*offset, part), None);
            }
            assert_eq!(assembly.add(last.0, last.1), Some(data.clone()));
        }
    }
}
