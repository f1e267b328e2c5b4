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
    /// The number of slots, a power of two.
    pub slots: u32,
    /// The maximum number of tasks that wait.
    pub capacity: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        let QueueLayout { slots, capacity, .. } = QueueLayout::DEFAULT;
        Queue { slots, capacity }
    }
}

impl Queue {
    /// Whether all values are the defaults, so that the file need not have the section.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Queue::default()
    }

    /// The layout in the switch's terms.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        QueueLayout { slots: self.slots, capacity: self.capacity, ..QueueLayout::DEFAULT }
    }
}

/// A worker, which runs tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the worker.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The number of tasks that it runs at a time; the number of the host's cores if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u16>,
    /// The number of tasks that each executor fetches ahead while it runs one, so that the next
    /// begins at once; useful for short tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u8>,
    /// Whether it executes commands, as the user who started it.
    #[serde(default)]
    pub allow_exec: bool,
    /// Features that tasks may need and not every worker has, such as ["gpu"]: at most seven names
    /// in a group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
}

/// An owner of tasks, to which jobs are submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnerPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the owner.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The IP address and port at which jobs are submitted, over HTTP.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// The file with its journal of jobs, so that they outlive it; without it they end with the
    /// owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<PathBuf>,
}

impl OwnerPlace {
    /// The address at which other hosts reach it.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}
