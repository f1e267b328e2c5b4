//! The rack file's sections for chains of switches that hold the keys.

use std::net::{SocketAddr, SocketAddrV4};

use concord_switch::ChainLayout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::udp_addr;

/// The size of the store in each switch of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cells {
    /// Keys at most, those that were deleted and whose place nobody took included; a power of two.
    pub keys: u32,
    /// Sessions of clients at most, a power of two: each further one ends the oldest.
    pub sessions: u32,
    /// Longest value in bytes: 16, 32 or 64.
    pub value_bytes: u8,
}

impl Default for Cells {
    fn default() -> Cells {
        let ChainLayout { cells, sessions, value_bytes, .. } = ChainLayout::DEFAULT;
        Cells { keys: cells, sessions, value_bytes }
    }
}

impl Cells {
    /// Whether the file need not say it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Cells::default()
    }

    /// As the switch names it.
    #[must_use]
    pub fn layout(&self) -> ChainLayout {
        let Cells { keys, sessions, value_bytes } = *self;
        ChainLayout { cells: keys, sessions, value_bytes, ..ChainLayout::DEFAULT }
    }
}

/// A switch of a chain: it holds all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles and clients reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}
