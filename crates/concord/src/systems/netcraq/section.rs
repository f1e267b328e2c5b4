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
    /// The maximum number of keys, a power of two. Deleted keys count until another key takes their
    /// place.
    pub keys: u32,
    /// The maximum number of client sessions, a power of two: each further session ends the oldest.
    pub sessions: u32,
    /// The maximum length of a value in bytes: 16, 32 or 64.
    pub value_bytes: u8,
}

impl Default for Cells {
    fn default() -> Cells {
        let ChainLayout { cells, sessions, value_bytes, .. } = ChainLayout::DEFAULT;
        Cells { keys: cells, sessions, value_bytes }
    }
}

impl Cells {
    /// Whether all values are the defaults, so that the file need not have the section.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Cells::default()
    }

    /// The layout in the switch's terms.
    #[must_use]
    pub fn layout(&self) -> ChainLayout {
        let Cells { keys, sessions, value_bytes } = *self;
        ChainLayout { cells: keys, sessions, value_bytes, ..ChainLayout::DEFAULT }
    }
}

/// A switch of a chain, which holds all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles and clients reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the switch.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}
