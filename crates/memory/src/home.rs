//! A home: the part of the memory that a node keeps (§4). Its coherence state is the
//! directory's.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards};
use concord_wire::concordia::{Repr, Tag};

use crate::blocks::Assembly;

/// A block as the home has it. Whatever was never written back is zeroes of version 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Block {
    version: u64,
    data: Vec<u8>,
}

/// A node's range of the memory.
#[derive(Clone, Debug)]
pub struct Home {
    guards: Guards,
    block_bytes: usize,
    blocks: BTreeMap<Tag, Block>,
    /// Blocks that are being written back: one of each lane of each node at most.
    parts: BTreeMap<(u8, u8), Assembly>,
}

impl Home {
    /// A range of zeroes.
    #[must_use]
    pub fn new(block_bytes: usize, guards: Guards) -> Home {
        Home { guards, block_bytes, blocks: BTreeMap::new(), parts: BTreeMap::new() }
    }

    /// A block's content.
    #[must_use]
    pub fn data(&self, tag: Tag) -> Vec<u8> {
        let zeroes = || alloc::vec![0; self.block_bytes];
        self.blocks.get(&tag).map_or_else(zeroes, |block| block.data.clone())
    }

    /// A part of a block that is written back: whether the home has the whole of that version by
    /// now.
    pub fn write_back(&mut self, packet: &Repr, data: &[u8]) -> bool {
        let version = self.blocks.get(&packet.tag).map_or(0, |block| block.version);
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
        self.blocks.insert(packet.tag, Block { version: packet.version, data });
        self.parts.remove(&lane);
        true
    }

    /// What tells its states apart.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (&self.blocks, &self.parts).hash(hasher);
    }
}
