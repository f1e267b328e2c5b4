//! The network: what becomes of a packet from `send` until the driver has it back.

use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::host::{Host, HostSpec, KINDS, Served};
use super::packet::Packet;
use super::port::{Accepted, CLASSES, Port, PortCounters, Waiting};
use super::topology::{HostIndex, NodeIndex, Routes, Routing, Topology, TopologyError};
use crate::engine::{EventQueue, Time};

/// The network's events; a driver's own event type holds them (`From<NetEvent>`) and gives them
/// back to [`Network::handle`].
/// A packet lives in the event that moves it, so it costs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent<B> {
    /// A packet is at a node, its pipeline latency included.
    Arrive {
        /// The node.
        node: NodeIndex,
        /// The packet.
        packet: Packet<B>,
    },
    /// A port with packets that wait may be free.
    Release {
        /// Its index.
        port: u32,
    },
    /// A core of a host is done with a packet.
    Served {
        /// The host.
        host: HostIndex,
        /// The crashes of the host before the service began.
        incarnation: u16,
        /// The packet.
        packet: Packet<B>,
    },
}

/// A packet that is the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<B> {
    /// Where it is: its host, after its service; or a switch with a program, before it is routed
    /// (to send it on, [`Network::send_from`] there).
    pub node: NodeIndex,
    /// The packet.
    pub packet: Packet<B>,
}

/// Packets by what became of them: at rest, `sent = delivered + dropped_port + dropped_host +
/// lost_in_crash`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Given to the network.
    pub sent: u64,
    /// Given to the driver.
    pub delivered: u64,
    /// Dropped at a full port.
    pub dropped_port: u64,
    /// Dropped at the full queue of a host.
    pub dropped_host: u64,
    /// Lost in the crash of a host.
    pub lost_in_crash: u64,
    /// Packets put on a link: each packet counts once a hop.
    pub hops: u64,
}

/// Links, ports, switches and hosts, and the packets between them.
pub struct Network<B> {
    hosts: u32,
    routes: Routes,
    routing: Routing,
    ports: Vec<Port>,
    waiting: Vec<Waiting<B>>,
    stations: Vec<Host<B>>,
    /// Switches that the driver runs a program for.
    programmed: Vec<bool>,
    rng: Rng,
    /// Makes the ECMP hashes of two runs differ.
    hash_seed: u64,
    counters: NetCounters,
}

impl<B> Network<B> {
    /// A network at rest. Every host delivers at once until [`Network::set_host`] says otherwise.
    ///
    /// # Errors
    /// The topology is not connected, or a host has not exactly one link.
    pub fn new(topology: &Topology, routing: Routing, seed: u64) -> Result<Self, TopologyError> {
        let routes = Routes::new(topology)?;
        let mut ports = Vec::new();
        for (a, b, link) in topology.links() {
            ports.push(Port::new(link, b.0, topology.pipeline_ps(*b)));
            ports.push(Port::new(link, a.0, topology.pipeline_ps(*a)));
        }
        let mut rng = Rng::new(seed);
        Ok(Network {
            hosts: topology.hosts(),
            routes,
            routing,
            waiting: ports.iter().map(|_| Waiting::new()).collect(),
            ports,
            stations: (0..topology.hosts()).map(|_| Host::new(HostSpec::default())).collect(),
            programmed: vec![false; topology.switches() as usize],
            hash_seed: rng.next_u64(),
            rng,
            counters: NetCounters::default(),
        })
    }

    /// Changes what a host can do, from the next packet on.
    pub fn set_host(&mut self, host: HostIndex, spec: HostSpec) {
        self.stations[host.0 as usize].spec = spec;
    }

    /// From now on every packet that comes to this switch is handed to the driver.
    pub fn set_programmed(&mut self, switch: NodeIndex) {
        self.programmed[(switch.0 - self.hosts) as usize] = true;
    }

    /// Sends a packet from its host.
    pub fn send<E: From<NetEvent<B>>>(&mut self, queue: &mut EventQueue<E>, packet: Packet<B>) {
        self.send_from(queue, NodeIndex(packet.from.0), packet);
    }

    /// Sends a packet from a host, or from a switch with a program.
    pub fn send_from<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        node: NodeIndex,
        packet: Packet<B>,
    ) {
        assert!(packet.to.0 < self.hosts, "a packet to no host");
        assert!(usize::from(packet.class) < CLASSES, "no such priority class");
        assert!(usize::from(packet.kind) < KINDS, "no such kind of message");
        self.counters.sent += 1;
        let port = if node.0 < self.hosts {
            self.routes.host_ports[node.0 as usize]
        } else {
            self.route((node.0 - self.hosts) as usize, &packet)
        };
        self.transmit(queue, port, packet);
    }

    /// Deals with an event; the packet that is the driver's now, if any.
    #[inline]
    pub fn handle<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        event: NetEvent<B>,
    ) -> Option<Delivery<B>> {
        match event {
            NetEvent::Arrive { node, packet } => {
                let Some(switch) = node.0.checked_sub(self.hosts) else {
                    return self.receive(queue, HostIndex(node.0), packet);
                };
                if self.programmed[switch as usize] {
                    self.counters.delivered += 1;
                    return Some(Delivery { node, packet });
                }
                let port = self.route(switch as usize, &packet);
                self.transmit(queue, port, packet);
                None
            }
            NetEvent::Release { port } => {
                self.release(queue, port);
                None
            }
            NetEvent::Served { host, incarnation, packet } => {
                self.served(queue, host, incarnation, packet)
            }
        }
    }

    /// A host crashes: the packets that wait for a core, and those that a core works on, are lost.
    pub fn crash(&mut self, host: HostIndex) {
        let lost = self.stations[host.0 as usize].crash();
        self.counters.lost_in_crash += lost;
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn counters(&self) -> NetCounters {
        let mut counters = self.counters;
        for port in self.ports() {
            counters.hops += port.packets;
            counters.dropped_port += port.dropped;
        }
        counters
    }

    /// What the ports did: `2 l` sends from the first node of the topology's link `l`, `2 l + 1`
    /// from its second.
    pub fn ports(&self) -> impl Iterator<Item = PortCounters> {
        self.ports.iter().zip(&self.waiting).map(|(port, rest)| port.counters(rest))
    }

    #[inline(always)]
    fn route(&mut self, switch: usize, packet: &Packet<B>) -> u32 {
        let choices = self.routes.choices(switch, packet.to);
        if let [only] = choices {
            return *only;
        }
        let count = choices.len() as u64;
        let choice = match self.routing {
            Routing::Spray => self.rng.below(count),
            Routing::Ecmp => {
                let pair = u64::from(packet.from.0) << 32 | u64::from(packet.to.0);
                let flow = splitmix64(pair) ^ u64::from(packet.flow_label);
                let hash = splitmix64(flow ^ self.hash_seed.rotate_left(switch as u32));
                ((u128::from(hash) * u128::from(count)) >> 64) as u64
            }
        };
        choices[choice as usize]
    }

    // Inlined with what it calls: no copy of the packet on its way into the next event.
    #[inline(always)]
    fn transmit<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        port: u32,
        packet: Packet<B>,
    ) {
        let out = &mut self.ports[port as usize];
        match out.accept(queue.now().0, &packet) {
            Accepted::Arrives(at) => {
                let node = NodeIndex(out.peer);
                queue.schedule(Time(at), NetEvent::Arrive { node, packet }.into());
            }
            Accepted::Waits => {
                if let Some(at) = out.wait(&mut self.waiting[port as usize], packet) {
                    queue.schedule(Time(at), NetEvent::Release { port }.into());
                }
            }
            Accepted::Dropped => self.waiting[port as usize].dropped += 1,
        }
    }

    fn release<E: From<NetEvent<B>>>(&mut self, queue: &mut EventQueue<E>, port: u32) {
        let out = &mut self.ports[port as usize];
        let (sent, again) = out.release(&mut self.waiting[port as usize], queue.now().0);
        if let Some((packet, at)) = sent {
            let node = NodeIndex(out.peer);
            queue.schedule(Time(at), NetEvent::Arrive { node, packet }.into());
        }
        if let Some(at) = again {
            queue.schedule(Time(at), NetEvent::Release { port }.into());
        }
    }

    #[inline(always)]
    fn receive<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        host: HostIndex,
        packet: Packet<B>,
    ) -> Option<Delivery<B>> {
        let station = &mut self.stations[host.0 as usize];
        match station.accept(queue.now().0, packet) {
            Served::Now(packet) => {
                self.counters.delivered += 1;
                return Some(Delivery { node: host.into(), packet });
            }
            Served::At(at, packet) => {
                let event = NetEvent::Served { host, incarnation: station.incarnation, packet };
                queue.schedule(Time(at), event.into());
            }
            Served::Waits => {}
            Served::Dropped => self.counters.dropped_host += 1,
        }
        None
    }

    fn served<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        host: HostIndex,
        incarnation: u16,
        packet: Packet<B>,
    ) -> Option<Delivery<B>> {
        let station = &mut self.stations[host.0 as usize];
        if station.incarnation != incarnation {
            self.counters.lost_in_crash += 1;
            return None;
        }
        if let Some((packet, at)) = station.next(queue.now().0) {
            queue.schedule(Time(at), NetEvent::Served { host, incarnation, packet }.into());
        }
        self.counters.delivered += 1;
        Some(Delivery { node: host.into(), packet })
    }
}
