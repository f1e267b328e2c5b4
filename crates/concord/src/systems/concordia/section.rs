//! The rack file's keys and sections for groups of memory nodes.

use std::net::{SocketAddr, SocketAddrV4};

use clap::ValueEnum;
use concord_wire::concordia::BLOCK_BYTES;
use concord_wire::control::MEMORY_NODES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::{GroupPlace, Mistake, reached, udp_addr};

/// The default length of a block, in bytes: it travels in one packet.
pub const BLOCK_BYTES_DEFAULT: u32 = 1_024;
/// The default number of blocks in each of the 32 ranges, and the maximum.
const RANGE_BLOCKS: u64 = 1 << 16;
const RANGE_BLOCKS_MAX: u64 = 1 << 32;
/// The default number of blocks that a node's cache holds, and the maximum.
const CACHE_BLOCKS: u32 = 1 << 14;
const CACHE_BLOCKS_MAX: u32 = 1 << 24;

/// How a shared memory is kept coherent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Coherence {
    /// By the switch for hot blocks, by their homes for all others
    #[default]
    Concordia,
    /// By homes alone, without the switch's help: for comparison
    Base,
    /// By homes alone, which gather acknowledgements as in GAM: for comparison
    Gam,
}

/// A node of a shared memory, with a part of the memory, a cache, and a store for Redis clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the node.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The IP address and port for Redis clients.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}

impl MemoryPlace {
    /// The address at which other hosts reach it.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}

/// The parameters of a group of memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The length of a block, in bytes.
    pub block_bytes: u32,
    /// The number of blocks in each of the 32 ranges.
    pub range_blocks: u64,
    /// The number of blocks that a node's cache holds.
    pub cache_blocks: u32,
    /// How blocks are kept coherent.
    pub coherence: Coherence,
}

impl Shape {
    /// The defaults.
    pub const DEFAULT: Shape = Shape {
        block_bytes: BLOCK_BYTES_DEFAULT,
        range_blocks: RANGE_BLOCKS,
        cache_blocks: CACHE_BLOCKS,
        coherence: Coherence::Concordia,
    };

    /// The parameters that the file gives, and defaults for the others.
    #[must_use]
    pub fn of(place: &GroupPlace) -> Shape {
        Shape {
            block_bytes: place.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT),
            range_blocks: place.range_blocks.unwrap_or(RANGE_BLOCKS),
            cache_blocks: place.cache_blocks.unwrap_or(CACHE_BLOCKS),
            coherence: place.coherence.unwrap_or_default(),
        }
    }
}

/// Checks that such a memory is possible.
///
/// # Errors
/// The first mistake; the place is within the group's section.
pub fn check(place: &GroupPlace) -> Result<(), Mistake> {
    let (name, shape) = (&place.name, Shape::of(place));
    let nodes = place.memory.len();
    if nodes > MEMORY_NODES_MAX {
        let line =
            format!("group {name}: a shared memory has 1 to {MEMORY_NODES_MAX} nodes, not {nodes}");
        return Err(Mistake::at(format!("memory.{MEMORY_NODES_MAX}"), line));
    }
    if !BLOCK_BYTES.contains(&(shape.block_bytes as usize)) {
        let (bytes, all) = (shape.block_bytes, BLOCK_BYTES.map(|bytes| bytes.to_string()));
        let line =
            format!("group {name}: block_bytes is {bytes}; it must be one of {}", all.join(", "));
        return Err(Mistake::at("block_bytes", line));
    }
    let bounds = [
        ("range_blocks", shape.range_blocks, RANGE_BLOCKS_MAX),
        ("cache_blocks", shape.cache_blocks.into(), CACHE_BLOCKS_MAX.into()),
    ];
    for (key, value, most) in bounds {
        if value == 0 || value > most {
            let line = format!("group {name}: {key} is {value}; it must be from 1 to {most}");
            return Err(Mistake::at(key, line));
        }
    }
    Ok(())
}
