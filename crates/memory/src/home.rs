//! A home: the part of the memory that a node keeps (§4). Its coherence state is the
//! directory's.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards};
use concord_wire::concordia::{Repr, Tag};

use crate::blocks::Assembly;

/// A block as the home has it. Whatever was never written back is zeroes of version 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The version that was written back last, in this epoch.
    pub version: u64,
    /// Its content.
    pub data: Vec<u8>,
}

/// A range of the memory, as its home has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    /// The epoch in which it was rebuilt here.
    pub base: u32,
    /// The blocks that are not zeroes.
    pub blocks: BTreeMap<Tag, Block>,
    /// Blocks whose only copies were at nodes that are gone.
    pub lost: BTreeSet<Tag>,
    /// The home of before is gone: what is not in `blocks` is lost.
    pub is_orphan: bool,
}

impl Range {
    /// Its blocks go to the node of an epoch that opens; the epoch stays.
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

/// The part of the memory that is at home at a node.
#[derive(Clone, Debug)]
pub struct Home {
    guards: Guards,
    block_bytes: usize,
    ranges: BTreeMap<u16, Range>,
    /// Blocks that are being written back: one of each lane of each node at most.
    parts: BTreeMap<(u8, u8), Assembly>,
}

impl Home {
    /// These ranges, as they are; of others zeroes.
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

    /// A block's content.
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

    /// A block is zeroes from now on, if it was lost; whether it was.
    pub fn renew(&mut self, tag: Tag) -> bool {
        let is_lost = self.is_lost(tag);
        if is_lost && let Some(range) = self.ranges.get_mut(&tag.range()) {
            range.lost.remove(&tag);
            let data = alloc::vec![0; self.block_bytes];
            range.blocks.insert(tag, Block { version: 0, data });
        }
        is_lost
    }

    /// All blocks that are lost are zeroes from now on; how many these are in ranges of so many
    /// blocks.
    pub fn renew_all(&mut self, range_blocks: u64) -> u64 {
        let lost = self.lost(range_blocks);
        for range in self.ranges.values_mut() {
            range.lost.clear();
            range.is_orphan = false;
        }
        lost
    }

    /// How many blocks are lost, in ranges of so many.
    #[must_use]
    pub fn lost(&self, range_blocks: u64) -> u64 {
        let of_range = |range: &Range| {
            // It is asked for often, and few blocks are lost beside all that are there.
            let old = || range.lost.iter().filter(|tag| range.blocks.contains_key(tag)).count();
            match range.is_orphan {
                true => range_blocks.saturating_sub((range.blocks.len() - old()) as u64),
                false => range.lost.len() as u64,
            }
        };
        self.ranges.values().map(of_range).sum()
    }

    /// How many blocks it has that are not zeroes.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.ranges.values().map(|range| range.blocks.len()).sum()
    }

    /// Its ranges, once its epoch is over.
    #[must_use]
    pub fn into_ranges(self) -> BTreeMap<u16, Range> {
        self.ranges
    }

    /// A part of a block that is written back: whether the home has the whole of that version by
    /// now.
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

    /// What tells its states apart.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (&self.ranges, &self.parts).hash(hasher);
    }
}
