//! The links of a rack.

use concord_core::{Duration, MS};
use serde::{Deserialize, Serialize};

use crate::engine::NS;
use crate::net::{HostIndex, LinkSpec, NodeIndex, Topology};
use crate::systems::store::edges::Within;

/// The maximum bandwidth of a link, in Mb/s.
const MBITS_MAX: u64 = 1_000_000;
/// The maximum buffer of a port, in bytes.
const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// The links and switches of a rack on the packet-level network ([`crate::net`]): two switches with
/// a link between them, of which the first hosts the rack's switch program and the second its
/// standby. Each host has a link to one of them. A packet takes the time for its bytes on each
/// link; at each port it waits for those before it, or is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// The bandwidth of each link, in Mb/s; 0: there are no links, and every packet takes the
    /// plan's `latency_ns`.
    pub mbits: u64,
    /// The propagation delay of each link, in ns.
    pub propagation_ns: Duration,
    /// The buffer of each port, in bytes: a packet that does not fit is dropped.
    pub queue_bytes: u64,
    /// The time of every packet in a switch's pipeline, in ns, even if it only crosses the switch.
    pub pass_ns: Duration,
    /// Whether every second host is at the second switch, one link further from the program.
    pub both: bool,
    /// The delay with which a switch's control plane sees the effect of a packet on the program's
    /// registers, in ns; 0: at once, which only a switch in user space can do.
    pub look_ns: Duration,
}

impl Default for Links {
    fn default() -> Links {
        Links {
            mbits: 0,
            propagation_ns: 500,
            queue_bytes: 1 << 20,
            pass_ns: 400,
            both: false,
            look_ns: 0,
        }
    }
}

impl Links {
    /// Whether the rack has links.
    pub(crate) fn is_on(&self) -> bool {
        self.mbits > 0
    }

    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        within("mbits", self.mbits, 0, MBITS_MAX)?;
        within("propagation_ns", self.propagation_ns, 0, 1_000 * MS)?;
        within("queue_bytes", self.queue_bytes, 2_000, QUEUE_BYTES_MAX)?;
        within("pass_ns", self.pass_ns, 0, 1_000 * MS)?;
        within("look_ns", self.look_ns, 0, 10 * MS)
    }

    /// The topology of a rack with `nodes` nodes, of which `switches` are switches; and for each of
    /// these, its node and the switch of the topology that hosts it.
    pub(crate) fn topology(
        &self,
        nodes: usize,
        switches: &[usize],
    ) -> (Topology, Vec<(usize, NodeIndex)>) {
        let link = LinkSpec {
            bits_per_s: self.mbits * 1_000_000,
            propagation_ps: self.propagation_ns * NS,
            queue_bytes_max: self.queue_bytes,
        };
        let mut topology = Topology::new(nodes as u32);
        let seats: Vec<(usize, NodeIndex)> =
            switches.iter().map(|node| (*node, topology.add_switch(self.pass_ns * NS))).collect();
        for (host, node) in (0..nodes).map(|node| (HostIndex(node as u32), node)) {
            // Packets for a seat's address go to its switch, which hands them to the seat.
            let own = seats.iter().find(|(seat, _)| *seat == node);
            let far = self.both && node % 2 == 1;
            let at = own.map_or(seats[usize::from(far) % seats.len()].1, |(_, at)| *at);
            topology.connect(host.into(), at, link);
        }
        for pair in seats.windows(2) {
            topology.connect(pair[0].1, pair[1].1, link);
        }
        (topology, seats)
    }
}
