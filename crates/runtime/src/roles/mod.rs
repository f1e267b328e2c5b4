//! What each process of a rack does: a machine, its descriptors, and what it shows of itself.

pub mod controller;
pub mod gateway;
mod keeper;
pub mod replica;
pub mod switch;

use std::net::SocketAddr;

use concord_wire::Addr;

use crate::driver::{Driver, DriverOptions};
use crate::error::Error;
use crate::udp::Socket;
use crate::{clock, http};

/// What every role is told.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number in the rack.
    pub node: u16,
    /// Where it listens for its peers (UDP), as they reach it.
    pub addr: Addr,
    /// Where it serves `/metrics` and `/status`; `None` for nowhere.
    pub http: Option<SocketAddr>,
    /// How its process ends, and its share of a core.
    pub options: DriverOptions,
}

impl Place {
    /// Binds both and makes the loop.
    fn driver(&self) -> Result<Driver, Error> {
        let socket = Socket::bind(self.addr)?;
        let publisher = self.http.map(http::serve).transpose()?;
        Driver::new(socket, publisher, self.options)
    }
}

/// 64 bits that no other start of this or another process has.
fn unique() -> Result<u64, Error> {
    clock::entropy().map_err(|e| Error::new(format!("cannot get randomness: {e}")))
}
