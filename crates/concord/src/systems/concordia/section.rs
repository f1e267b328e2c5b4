//! The rack file's keys and sections for groups of memory nodes.

use std::net::{SocketAddr, SocketAddrV4};

use clap::ValueEnum;
use concord_wire::concordia::BLOCK_BYTES;
use concord_wire::control::MEMORY_NODES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::{GroupPlace, Mistake, reached, udp_addr};

/// Length of a block in bytes, if nothing is said: it travels in one packet.
pub const BLOCK_BYTES_DEFAULT: u32 = 1_024;
/// Blocks of each of the 32 ranges, if nothing is said, and the most that there can be.
const RANGE_BLOCKS: u64 = 1 << 16;
const RANGE_BLOCKS_MAX: u64 = 1 << 32;
/// Blocks that a node's cache holds, if nothing is said, and the most.
const CACHE_BLOCKS: u32 = 1 << 14;
const CACHE_BLOCKS_MAX: u32 = 1 << 24;

/// Who keeps a shared memory coherent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Coherence {
    /// The switch, for blocks that are hot; their homes for the others
    #[default]
    Concordia,
    /// Homes alone, without the switch's help: to compare with
    Base,
    /// Homes alone, which gather acknowledgements as in GAM: to compare with
    Gam,
}

/// A node of a shared memory: a part of it, a cache, and a store for Redis clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// IP address and port where Redis clients connect.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}

impl MemoryPlace {
    /// Where it is reached from other hosts.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}

/// What a group of memory nodes is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Length of a block in bytes.
    pub block_bytes: u32,
    /// Blocks of each of the 32 ranges.
    pub range_blocks: u64,
    /// Blocks that a node's cache holds.
    pub cache_blocks: u32,
    /// Who keeps blocks coherent.
    pub coherence: Coherence,
}

impl Shape {
    /// If nothing is said.
    pub const DEFAULT: Shape = Shape {
        block_bytes: BLOCK_BYTES_DEFAULT,
        range_blocks: RANGE_BLOCKS,
        cache_blocks: CACHE_BLOCKS,
        coherence: Coherence::Concordia,
    };

    /// As the file says.
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

/// Whether there can be such a memory.
///
/// # Errors
/// What there cannot be; the place is within the group's section.
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
