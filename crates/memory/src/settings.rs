//! The settings of a node of a shared memory, and the errors in them.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Epoch, Guards, NodeId};
use concord_wire::concordia::{BLOCK_BYTES, LANES_MAX, NODES_MAX};
use concord_wire::{Addr, GroupId};

/// The part of the switch in coherence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// The switch serves the hot blocks, and homes the others (§5).
    #[default]
    Concordia,
    /// Homes serve all blocks: requests go to them directly, without the switch (§7,
    /// CONCORDIA-base).
    Base,
    /// Homes serve all blocks, and gather the acknowledgements of invalidations; writes are
    /// asynchronous, and fences wait for them (GAM, Cai et al., VLDB 2018).
    Gam,
}

/// The settings of a node for one epoch; another epoch has another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// The number of the node.
    pub node: NodeId,
    /// The place of the node among the members: its bit in copysets.
    pub place: u8,
    /// The group of the memory.
    pub group: GroupId,
    /// The epoch of the node.
    pub epoch: Epoch,
    /// The addresses of the members, by place.
    pub nodes: Vec<Addr>,
    /// The places of the ranges' homes, by range.
    pub homes: Vec<u8>,
    /// The address of the switch.
    pub switch: Addr,
    /// Whether the switch takes part in coherence; the same at all nodes.
    pub coherence: Coherence,
    /// The length of a block, in bytes.
    pub block_bytes: usize,
    /// The number of blocks in each range.
    pub range_blocks: u64,
    /// The number of sets in the cache.
    pub cache_sets: usize,
    /// The number of blocks in a set.
    pub cache_ways: usize,
    /// The maximum number of events that the node has in progress.
    pub lanes: usize,
    /// The guards that are on.
    pub guards: Guards,
}

impl NodeSettings {
    /// Checks that a node can have these settings.
    ///
    /// # Errors
    /// [`SettingsError`] if it cannot.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !BLOCK_BYTES.contains(&self.block_bytes) {
            return Err(SettingsError::Block(self.block_bytes));
        }
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return Err(SettingsError::Nodes(self.nodes.len()));
        }
        if usize::from(self.place) >= self.nodes.len() {
            return Err(SettingsError::Place(self.place));
        }
        if let Some(home) = self.homes.iter().find(|h| usize::from(**h) >= self.nodes.len()) {
            return Err(SettingsError::Place(*home));
        }
        if self.cache_sets == 0 || self.cache_ways == 0 {
            return Err(SettingsError::Cache);
        }
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(SettingsError::Lanes(self.lanes));
        }
        Ok(())
    }
}

/// The reason why no node can have such settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// The length of a block is not valid.
    Block(usize),
    /// There are no nodes, or too many.
    Nodes(usize),
    /// The node is not among the members.
    Place(u8),
    /// The cache has no room.
    Cache,
    /// There are no lanes, or too many.
    Lanes(usize),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Block(bytes) => {
                write!(
                    f,
                    "the memory's blocks have {bytes} bytes: give them 512, 1024, 2048 or 4096"
                )
            }
            SettingsError::Nodes(count) => {
                write!(f, "the memory has {count} nodes: give it 1 to {NODES_MAX}")
            }
            SettingsError::Place(place) => {
                write!(f, "the memory has no node at place {place}: add it to the nodes")
            }
            SettingsError::Cache => {
                f.write_str("the node's cache holds no block: give it sets and ways")
            }
            SettingsError::Lanes(count) => {
                write!(f, "the node has {count} lanes: give it 1 to {LANES_MAX}")
            }
        }
    }
}

impl core::error::Error for SettingsError {}
