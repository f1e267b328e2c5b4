//! What the rack file says of groups of workers.

use std::net::{SocketAddr, SocketAddrV4};

use concord_switch::QueueLayout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::udp_addr;

/// The size of the switch's queue of tasks (Falcon §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Slots, a power of two.
    pub slots: u32,
    /// Tasks that wait at most.
    pub capacity: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        let QueueLayout { slots, capacity, .. } = QueueLayout::DEFAULT;
        Queue { slots, capacity }
    }
}

impl Queue {
    /// Whether the file need not say it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Queue::default()
    }

    /// As the switch names it.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        QueueLayout { slots: self.slots, capacity: self.capacity, ..QueueLayout::DEFAULT }
    }
}

/// A worker: it runs tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Tasks that it runs at a time; as many as the host has cores if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u16>,
    /// It executes commands.
    #[serde(default)]
    pub allow_exec: bool,
}

/// An owner of tasks: jobs are submitted to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnerPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Where jobs are submitted, over HTTP.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}
