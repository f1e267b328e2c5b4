//! A set of packet numbers.

/// A set of packet numbers: a bit for each packet of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers(Vec<u64>);

impl Numbers {
    /// An empty set, for a flow of `count` packets.
    pub(super) fn new(count: u32) -> Numbers {
        Numbers(vec![0; (count as usize).div_ceil(64)])
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.0[number as usize / 64] >> (number % 64) & 1 != 0
    }

    /// Adds a number; returns whether it is new.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let word = &mut self.0[number as usize / 64];
        let bit = 1 << (number % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Frees the memory, once every number is in the set.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}
