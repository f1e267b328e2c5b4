//! The roles, one for each process of a rack: a machine, its descriptors, and its visible state.

pub mod controller;
pub mod gateway;
mod lobby;
pub mod replica;
mod replica_disk;
pub mod switch;

use std::net::SocketAddr;

use concord_wire::{Addr, GroupId};

use crate::driver::{Driver, DriverOptions};
use crate::error::Error;
use crate::udp::Socket;
use crate::{clock, http};

/// The configuration that every role has.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number in the rack.
    pub node: u16,
    /// Its address for its peers (UDP), as they reach it.
    pub addr: Addr,
    /// The address of `/metrics` and `/status`; `None` for none.
    pub http: Option<SocketAddr>,
    /// How its process ends, and its share of a core.
    pub options: DriverOptions,
}

impl Place {
    /// Binds both, and makes the loop.
    pub(crate) fn driver(&self) -> Result<Driver, Error> {
        let socket = Socket::bind(self.addr)?;
        let publisher = self.http.map(http::serve).transpose()?;
        Driver::new(socket, publisher, self.options)
    }
}

/// The names of the rack's groups, for logs and status. A group without a name goes by its number.
#[derive(Clone, Debug, Default)]
pub struct GroupNames(Vec<(GroupId, String)>);

impl GroupNames {
    /// The given names.
    pub fn new(names: impl IntoIterator<Item = (GroupId, String)>) -> GroupNames {
        GroupNames(names.into_iter().collect())
    }

    /// A group's name.
    #[must_use]
    pub fn of(&self, group: GroupId) -> String {
        let known = self.0.iter().find(|(id, _)| *id == group);
        known.map_or_else(|| format!("group {}", group.0), |(_, name)| name.clone())
    }

    /// Whether there are several groups, so that a message must name the one that is meant.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }
}

/// 64 bits that no other start of this or another process has.
pub(crate) fn unique() -> Result<u64, Error> {
    clock::entropy().map_err(|e| Error::new(format!("cannot get randomness: {e}")))
}
