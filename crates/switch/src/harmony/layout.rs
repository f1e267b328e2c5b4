//! The size of the registers, and the tables that the control plane fills: the ports, and the hosts
//! that are reached by each.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Duration, MS};
use concord_pisa::ASIC;
use concord_wire::Addr;
use concord_wire::harmony::{HOSTS_MAX, SLOTS_MAX};

/// The maximum number of ports of a switch.
pub const LINK_PORTS_MAX: usize = 64;
/// The maximum number of virtual links of a switch.
pub const LINKS_MAX: usize = 8_192;

/// How an `rsvp` on its way up gets a virtual link (trap H8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// From one FIFO of all uplinks' virtual links, as the paper has it (§4, `UplinkQ`).
    #[default]
    Fifo,
    /// From the uplink that a hash picks; if that has none, from the next one that a hash picks, in
    /// another pass.
    Hash,
}

/// The sizes of a switch, and the maximum lifetime of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksLayout {
    /// The number of hosts in the network.
    pub hosts: u16,
    /// The number of slots of a receiver: K.
    pub slots: u8,
    /// The number of virtual links of all ports.
    pub links: u16,
    /// How virtual links upwards are chosen.
    pub choice: Choice,
    /// The maximum lifetime of a reservation in ns; the hosts have the same.
    pub life_ns: Duration,
}

impl LinksLayout {
    /// A ToR of 16 hosts and 16 uplinks in a network of up to 1,024 hosts, with K = 8.
    pub const DEFAULT: LinksLayout =
        LinksLayout { hosts: 1_024, slots: 8, links: 512, choice: Choice::Fifo, life_ns: 10 * MS };

    /// The number of cells in an array with one cell for each receiver's slot.
    #[must_use]
    pub fn slot_cells(&self) -> usize {
        usize::from(self.hosts).next_power_of_two() * self.slot_stride()
    }

    /// The number of cells of a receiver in such an array.
    #[must_use]
    pub fn slot_stride(&self) -> usize {
        usize::from(self.slots).next_power_of_two()
    }

    /// The number of cells of the ring: each queue's part of it is a power of two.
    #[must_use]
    pub fn ring_cells(&self) -> usize {
        2 * usize::from(self.links).next_power_of_two()
    }

    /// Checks that a switch can have these sizes.
    ///
    /// # Errors
    /// [`LinksError`] if it cannot.
    pub fn check(&self) -> Result<(), LinksError> {
        let is_hosts = (1..=HOSTS_MAX).contains(&usize::from(self.hosts));
        let is_slots = (1..=SLOTS_MAX).contains(&usize::from(self.slots));
        let is_links = (1..=LINKS_MAX).contains(&usize::from(self.links));
        let fits = is_hosts && is_slots && self.slot_cells() * 8 <= ASIC.stage_sram_bytes;
        if fits && is_links && self.life_ns > 0 { Ok(()) } else { Err(LinksError(*self)) }
    }
}

/// Sizes that no switch can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksError(pub LinksLayout);

impl fmt::Display for LinksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinksLayout { hosts, slots, links, .. } = self.0;
        write!(
            f,
            "the network's switch has {hosts} hosts of {slots} slots and {links} virtual links: give it 1 to \
             {HOSTS_MAX} hosts, 1 to {SLOTS_MAX} slots, of both together at most 131072, and 1 to {LINKS_MAX} \
             virtual links"
        )
    }
}

impl core::error::Error for LinksError {}

/// The route to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Below this port: the only shortest path.
    Down(u8),
    /// Through any uplink.
    Up,
}

/// The tables of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTables {
    /// The number of this switch, by which paths name it.
    pub switch: u16,
    /// The address of this switch, from which its control plane's packets come.
    pub own: Addr,
    /// The neighbour at each port: the address of a switch or of a host.
    pub neighbours: Vec<Addr>,
    /// The number of virtual links of each port: K for a link with the rate of the access links, m
    /// times K for one that is m times as fast (trap H7).
    pub links: Vec<u16>,
    /// The ports of uplinks.
    pub uplinks: Vec<u8>,
    /// The route to each host.
    pub routes: Vec<Route>,
}

/// A queue of free virtual links: its part of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) base: u32,
    pub(super) mask: u32,
}

/// The rows that the pipeline looks up, derived from [`LinkTables`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) tables: LinkTables,
    /// The port of each virtual link.
    pub(super) port_of: Vec<u8>,
    /// The queue of each virtual link.
    pub(super) queue_of: Vec<u8>,
    /// The queues: one of all uplinks, or one for each, and one for each other port.
    pub(super) queues: Vec<Queue>,
    /// The virtual links of each queue, in the order in which they are free at first.
    pub(super) free: Vec<Vec<u16>>,
    /// Rows for a hash: the uplinks, whose frequencies differ by at most one.
    pub(super) spread: [u8; SPREAD],
}

/// The number of rows for a hash that picks an uplink.
pub(super) const SPREAD: usize = 256;

impl Rows {
    /// The rows; `None` if the tables name ports that do not exist, or are too large.
    pub(super) fn of(layout: &LinksLayout, tables: LinkTables) -> Option<Rows> {
        let ports = tables.neighbours.len();
        let links: usize = tables.links.iter().map(|links| usize::from(*links)).sum();
        let is_port = |port: u8| usize::from(port) < ports;
        let has_ports = tables.uplinks.iter().all(|port| is_port(*port));
        let has_routes = tables.routes.iter().all(|route| match route {
            Route::Down(port) => is_port(*port),
            Route::Up => !tables.uplinks.is_empty(),
        });
        let fits = (1..=LINK_PORTS_MAX).contains(&ports)
            && tables.links.len() == ports
            && links <= usize::from(layout.links)
            && tables.routes.len() <= usize::from(layout.hosts);
        if !has_ports || !has_routes || !fits {
            return None;
        }
        let mut rows = Rows {
            port_of: Vec::new(),
            queue_of: Vec::new(),
            queues: Vec::new(),
            free: (0..=ports).map(|_| Vec::new()).collect(),
            spread: [0; SPREAD],
            tables,
        };
        for port in 0..ports as u8 {
            // Queue 0 belongs to all uplinks.
            let is_shared = layout.choice == Choice::Fifo && rows.tables.uplinks.contains(&port);
            let queue = if is_shared { 0 } else { port + 1 };
            for _ in 0..rows.tables.links[usize::from(port)] {
                let link = rows.port_of.len() as u16;
                rows.port_of.push(port);
                rows.queue_of.push(queue);
                rows.free[usize::from(queue)].push(link);
            }
        }
        // Alternate the uplinks, instead of all virtual links of one first.
        rows.free[0] = in_turn(&rows.free[0], &rows.port_of);
        let mut base = 0;
        for free in &rows.free {
            let cells = free.len().next_power_of_two() as u32;
            rows.queues.push(Queue { base, mask: cells - 1 });
            base += cells;
        }
        for (row, port) in rows.spread.iter_mut().zip(rows.tables.uplinks.iter().cycle()) {
            *row = *port;
        }
        (base as usize <= layout.ring_cells() + rows.free.len()).then_some(rows)
    }
}

/// The virtual links of several ports, alternating between the ports.
fn in_turn(links: &[u16], port_of: &[u8]) -> Vec<u16> {
    let rank = |at: usize| {
        let port = port_of[usize::from(links[at])];
        links[..at].iter().filter(|link| port_of[usize::from(**link)] == port).count()
    };
    let mut ranked: Vec<(usize, u16)> = (0..links.len()).map(|at| (rank(at), links[at])).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, link)| link).collect()
}
