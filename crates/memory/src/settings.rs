//! The settings of a node of a shared memory, and the mistakes in them.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Epoch, Guards, NodeId};
use concord_wire::concordia::{BLOCK_BYTES, LANES_MAX, NODES_MAX};
use concord_wire::{Addr, GroupId};

/// Who keeps blocks coherent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// The switch those that are hot, and homes the others (§5).
    #[default]
    Concordia,
    /// Homes alone: requests go to them at once, and the switch has no part in it (§7, the base).
    Base,
}

/// What a node is told. An epoch is the life of all coherence state: another one is another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Its number.
    pub node: NodeId,
    /// Its place among the nodes: its bit in copysets.
    pub place: u8,
    /// Which memory.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The nodes, by place.
    pub nodes: Vec<Addr>,
    /// The places of the ranges' homes, by range.
    pub homes: Vec<u8>,
    /// The switch.
    pub switch: Addr,
    /// Who keeps blocks coherent; the same at all nodes.
    pub coherence: Coherence,
    /// Length of a block in bytes.
    pub block_bytes: usize,
    /// Blocks of each range.
    pub range_blocks: u64,
    /// Sets of the cache.
    pub cache_sets: usize,
    /// Blocks of a set.
    pub cache_ways: usize,
    /// Events that the node may have under way.
    pub lanes: usize,
    /// Which guards are on.
    pub guards: Guards,
}

impl NodeSettings {
    /// Whether there can be such a node.
    ///
    /// # Errors
    /// [`SettingsError`] if not.
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

/// A node that there cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// Blocks of a length that there is not.
    Block(usize),
    /// No nodes, or too many.
    Nodes(usize),
    /// It is not among the nodes.
    Place(u8),
    /// A cache without room.
    Cache,
    /// No lanes, or too many.
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
