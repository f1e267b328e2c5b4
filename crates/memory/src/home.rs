//! A home: the part of the memory that a node holds (§4). The coherence state of its blocks is in
//! the directory.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards};
use concord_wire::concordia::{Repr, Tag};

use crate::blocks::Assembly;

/// A block at its home. A block that was never written back is zeroes of version 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The version that was last written back, in this epoch.
    pub version: u64,
    /// The content of the block.
    pub data: Vec<u8>,
}

/// A range of the memory at its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    /// The epoch in which the range was rebuilt here.
    pub base: u32,
    /// The blocks that are not all zeroes.
    pub blocks: BTreeMap<Tag, Block>,
    /// The blocks whose only copies were at nodes that are gone.
    pub lost: BTreeSet<Tag>,
    /// Whether the previous home is gone: then blocks that are not in `blocks` are lost.
    pub is_orphan: bool,
}

impl Range {
    /// Moves the content out, to the node of an epoch that opens; the base epoch stays here.
    #[must_use]
    pub(crate) fn open(&mut self) -> Range {
        let base = self.base;
        core::mem::replace(self, Range { base, ..Range::default() })
    }

    /// Whether a block is lost.
    #[must_use]
    pub fn is_lost(&self, tag: Tag) -> bool {
        self.lost.contains(&tag) || self.is_orphan && !self.blocks.contains_key(&tag)
    }
}

/// The part of the memory whose home is a node.
#[derive(Clone, Debug)]
pub struct Home {
    guards: Guards,
    block_bytes: usize,
    ranges: BTreeMap<u16, Range>,
    /// Blocks that are being written back: at most one for each lane of each node.
    parts: BTreeMap<(u8, u8), Assembly>,
}

impl Home {
    /// A home with these ranges; blocks that they do not have are zeroes.
    #[must_use]
    pub fn new(block_bytes: usize, ranges: BTreeMap<u16, Range>, guards: Guards) -> Home {
        Home { guards, block_bytes, ranges, parts: BTreeMap::new() }
    }

    fn block(&self, tag: Tag) -> Option<&Block> {
        self.ranges.get(&tag.range())?.blocks.get(&tag)
    }

    /// The version of a block's value; 0 if it was not written back in this epoch.
    #[must_use]
    pub fn version(&self, tag: Tag) -> u64 {
        self.block(tag).map_or(0, |block| block.version)
    }

    /// The content of a block.
    #[must_use]
    pub fn data(&self, tag: Tag) -> Vec<u8> {
        let zeroes = || alloc::vec![0; self.block_bytes];
        self.block(tag).map_or_else(zeroes, |block| block.data.clone())
    }

    /// Whether a block is lost.
    #[must_use]
    pub fn is_lost(&self, tag: Tag) -> bool {
        self.ranges.get(&tag.range()).is_some_and(|range| range.is_lost(tag))
    }

    /// Sets a lost block to zeroes; returns whether it was lost.
    pub fn renew(&mut self, tag: Tag) -> bool {
        let is_lost = self.is_lost(tag);
        if is_lost && let Some(range) = self.ranges.get_mut(&tag.range()) {
            range.lost.remove(&tag);
            let data = alloc::vec![0; self.block_bytes];
            range.blocks.insert(tag, Block { version: 0, data });
        }
        is_lost
    }

    /// Sets all lost blocks to zeroes; returns their number, in ranges of `range_blocks` blocks.
    pub fn renew_all(&mut self, range_blocks: u64) -> u64 {
        let lost = self.lost(range_blocks);
        for range in self.ranges.values_mut() {
            range.lost.clear();
            range.is_orphan = false;
        }
        lost
    }

    /// The number of lost blocks, in ranges of `range_blocks` blocks.
    #[must_use]
    pub fn lost(&self, range_blocks: u64) -> u64 {
        let of_range = |range: &Range| {
            // Called often, and few blocks are lost among all that are there.
            let old = || range.lost.iter().filter(|tag| range.blocks.contains_key(tag)).count();
            match range.is_orphan {
                true => range_blocks.saturating_sub((range.blocks.len() - old()) as u64),
                false => range.lost.len() as u64,
            }
        };
        self.ranges.values().map(of_range).sum()
    }

    /// The number of blocks that are not all zeroes.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.ranges.values().map(|range| range.blocks.len()).sum()
    }

    /// The ranges, once the epoch is over.
    #[must_use]
    pub fn into_ranges(self) -> BTreeMap<u16, Range> {
        self.ranges
    }

    /// Handles a part of a block that is written back; returns whether the home has all of that
    /// version by now.
    pub fn write_back(&mut self, packet: &Repr, data: &[u8]) -> bool {
        let version = self.version(packet.tag);
        if packet.version == version {
            return true;
        }
        if packet.version < version && self.guards.on(Guard::NewerBlock) {
            return false;
        }
        let lane = (packet.place, packet.lane);
        let is_known = self.parts.get(&lane).is_some_and(|part| part.number() >= packet.number);
        if !is_known {
            self.parts.insert(lane, Assembly::new(packet.number, self.block_bytes));
        }
        let Some(part) = self.parts.get_mut(&lane).filter(|p| p.number() == packet.number) else {
            return false;
        };
        let Some(data) = part.add(packet.offset_bytes, data) else { return false };
        let range = self.ranges.entry(packet.tag.range()).or_default();
        range.blocks.insert(packet.tag, Block { version: packet.version, data });
        self.parts.remove(&lane);
        true
    }

    /// Hashes what distinguishes its states.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (&self.ranges, &self.parts).hash(hasher);
    }
}
