//! The rack file's sections for groups of workers.

use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use concord_switch::QueueLayout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::{reached, udp_addr};

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
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Tasks that it runs at a time; as many as the host has cores if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u16>,
    /// Tasks that each executor may have beside the one that it runs, so that it has the next at
    /// once: for short ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u8>,
    /// Whether it executes commands, as whoever started it.
    #[serde(default)]
    pub allow_exec: bool,
    /// What tasks may need that not every worker has, like ["gpu"]: at most seven names in a group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
}

/// An owner of tasks: jobs are submitted to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnerPlace {
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
    /// IP address and port where jobs are submitted, over HTTP.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// A file in which its jobs are written down, so that they outlive it; without it they end with
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<PathBuf>,
}

impl OwnerPlace {
    /// Where it is reached from other hosts.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}
