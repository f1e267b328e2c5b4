//! The rack's packets on the packet-level network: links with a bandwidth, ports with buffers, and
//! switches whose pipelines take time, each of which hosts one switch role (a seat).

use crate::engine::{EventQueue, NS, Time};
use crate::net::{Delivery, Ecn, HostIndex, NetEvent, Network, NodeIndex, Packet, Routing};
use crate::systems::store::links::Links;

/// The bytes around a message on the wire: Ethernet, IP and UDP headers, the frame's checksum,
/// preamble and gap.
const AROUND_BYTES: u32 = 14 + 20 + 8 + 4 + 20;

/// The content of a packet in the network.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    pub bytes: Vec<u8>,
    /// The packet's index in the recording, if there is one.
    pub recorded: Option<usize>,
}

/// A packet that has reached its destination.
pub(crate) struct Arrival {
    pub at_ns: u64,
    pub from: usize,
    pub to: usize,
    pub carried: Carried,
}

enum Step {
    /// A packet leaves its sender.
    Leave(Packet<Carried>),
    Net(NetEvent<Carried>),
}

impl From<NetEvent<Carried>> for Step {
    fn from(event: NetEvent<Carried>) -> Step {
        Step::Net(event)
    }
}

/// The network and its event queue.
pub(crate) struct Fabric {
    network: Network<Carried>,
    queue: EventQueue<Step>,
    /// The nodes that are switches, and the switch of the topology that hosts each.
    seats: Vec<(usize, NodeIndex)>,
}

impl Fabric {
    /// The network of a rack with `nodes` nodes, of which `switches` are switches.
    pub(crate) fn new(links: &Links, nodes: usize, switches: &[usize], seed: u64) -> Fabric {
        let (topology, seats) = links.topology(nodes, switches);
        let network = Network::new(&topology, Routing::Ecmp, seed);
        let mut network = network.unwrap_or_else(|error| panic!("a rack's own topology: {error}"));
        seats.iter().for_each(|(_, at)| network.set_programmed(*at));
        Fabric { network, queue: EventQueue::new(), seats }
    }

    /// Sends a packet from `from` at `at_ns`.
    pub(crate) fn send(&mut self, from: usize, to: usize, at_ns: u64, carried: Carried) {
        let size_bytes = carried.bytes.len() as u32 + AROUND_BYTES;
        let (from, to) = (HostIndex(from as u32), HostIndex(to as u32));
        let packet = Packet {
            to,
            from,
            size_bytes,
            flow_label: 0,
            class: 0,
            kind: 0,
            ecn: Ecn::Not,
            path: 0,
            body: carried,
        };
        self.queue.schedule(Time(at_ns * NS), Step::Leave(packet));
    }

    /// The next packet that reaches its destination, not after `limit_ns`.
    pub(crate) fn next_until(&mut self, limit_ns: u64) -> Option<Arrival> {
        let limit = Time(limit_ns.saturating_mul(NS));
        loop {
            // If nothing else is pending, time advances to the network's next event, and no
            // further.
            let (at, step) = match limit_ns {
                u64::MAX => self.queue.next()?,
                _ => self.queue.next_until(limit)?,
            };
            let event = match step {
                Step::Net(event) => event,
                Step::Leave(packet) => {
                    let from = self.at(packet.from);
                    self.network.send_from(&mut self.queue, from, packet);
                    continue;
                }
            };
            let Some(Delivery { node, packet }) = self.network.handle(&mut self.queue, event)
            else {
                continue;
            };
            if node != self.at(packet.to) {
                // The packet is for another node, and only crosses this switch.
                self.network.send_from(&mut self.queue, node, packet);
                continue;
            }
            let (from, to) = (packet.from.0 as usize, packet.to.0 as usize);
            return Some(Arrival { at_ns: at.0.div_ceil(NS), from, to, carried: packet.body });
        }
    }

    /// The position of a node in the topology: a seat is at its switch, other nodes at their own
    /// ports.
    fn at(&self, node: HostIndex) -> NodeIndex {
        let seat = self.seats.iter().find(|(seat, _)| *seat == node.0 as usize);
        seat.map_or(node.into(), |(_, at)| *at)
    }

    /// The number of packets dropped at full ports.
    pub(crate) fn dropped(&self) -> u64 {
        self.network.counters().dropped_port
    }
}
