//! The hosts and switches of a small network: their addresses, and the tables of the switches.

use concord_switch::harmony::Route;
use concord_switch::{Harmony, LinkTables};
use concord_wire::Addr;

/// Hosts below ToR switches, below spines. Nodes are hosts, then ToR switches, then spines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The number of ToR switches.
    pub tors: usize,
    /// The number of hosts below each of them.
    pub tor_hosts: usize,
    /// The number of spines: none if there is one ToR switch.
    pub spines: usize,
    /// K: the number of slots of a host each way, and of virtual links of a link.
    pub slots: u8,
}

impl Topology {
    /// The number of hosts below all ToR switches.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.tors * self.tor_hosts
    }

    /// The number of hosts and switches.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.hosts() + self.tors + self.spines
    }

    /// The ToR switch of a host.
    pub(super) fn tor_of(&self, host: usize) -> usize {
        self.hosts() + host / self.tor_hosts
    }

    /// The tables of a switch.
    pub(super) fn tables(&self, switch: usize) -> LinkTables {
        let hosts = self.hosts();
        let spine = hosts + self.tors;
        let (neighbours, uplinks, routes): (Vec<usize>, Vec<u8>, Vec<Route>) = if switch < spine {
            let own = (switch - hosts) * self.tor_hosts;
            let below = own..own + self.tor_hosts;
            let up = (self.tor_hosts..self.tor_hosts + self.spines).map(|port| port as u8);
            let route = |host: usize| {
                if below.contains(&host) { Route::Down((host - own) as u8) } else { Route::Up }
            };
            let routes = (0..hosts).map(route).collect();
            (below.clone().chain(spine..spine + self.spines).collect(), up.collect(), routes)
        } else {
            let routes = (0..hosts).map(|host| Route::Down((host / self.tor_hosts) as u8));
            ((hosts..spine).collect(), Vec::new(), routes.collect())
        };
        LinkTables {
            switch: switch as u16,
            own: addr(switch),
            links: neighbours.iter().map(|_| self.slots.into()).collect(),
            neighbours: neighbours.into_iter().map(addr).collect(),
            uplinks,
            routes,
        }
    }
}

/// The address of a node.
pub(super) fn addr(node: usize) -> Addr {
    Addr { ip: 10, port: 1_000 + node as u16 }
}

/// The node that has an address.
pub(super) fn node_of(addr: Addr) -> usize {
    usize::from(addr.port.wrapping_sub(1_000))
}

/// A virtual link of a switch that is neither free nor held, or that is so more than once.
pub(super) fn twice(program: &Harmony) -> Option<u16> {
    let mut all = program.free();
    all.extend(program.reservations().filter_map(|held| held.link));
    all.sort_unstable();
    let links = program.links() as u16;
    if all.iter().copied().eq(0..links) {
        return None;
    }
    let wrong = (0..links).find(|link| all.iter().filter(|other| *other == link).count() != 1);
    Some(wrong.unwrap_or(links))
}
