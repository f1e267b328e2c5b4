//! The network: the path of a packet from `send` until the driver gets it back.

use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::host::{Host, HostSpec, KINDS, Served};
use super::managed::{
    Captured, Hop, Managed, ManagedPort, NO_INPUT, QueueCounters, QueueSpec, Queued, Visit,
};
use super::packet::Packet;
use super::port::{Accepted, CLASSES, Port, PortCounters, Waiting};
use super::topology::{HostIndex, NodeIndex, Routes, Routing, Topology, TopologyError};
use crate::engine::{EventQueue, Time};

/// The events of the network. The event type of a driver contains them (`From<NetEvent>`), and the
/// driver passes them to [`Network::handle`]. A packet is stored in the event that moves it, so it
/// costs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent<B> {
    /// A packet arrives at a node, its pipeline latency included.
    Arrive {
        /// The node.
        node: NodeIndex,
        /// The packet.
        packet: Packet<B>,
    },
    /// A packet of a managed port arrives at the other end, the pipeline there included.
    Cross {
        /// The port.
        port: u32,
        /// The number of failures of its link before the packet left.
        incarnation: u16,
        /// The packet.
        packet: Packet<B>,
    },
    /// A port with waiting packets may be free.
    Release {
        /// The index of the port.
        port: u32,
    },
    /// A core of a host ends the service of a packet.
    Served {
        /// The host.
        host: HostIndex,
        /// The number of crashes of the host before the service began.
        incarnation: u16,
        /// The packet.
        packet: Packet<B>,
    },
}

/// A packet that is delivered to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<B> {
    /// Where the packet is: at its host, after its service; or at a switch with a program, before
    /// it is routed (the driver sends it on with [`Network::send_from`]).
    pub node: NodeIndex,
    /// The packet.
    pub packet: Packet<B>,
}

/// Counts of packets by their fate. At rest, `sent = delivered + dropped_port + dropped_host +
/// lost_in_crash + lost_on_link`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Packets given to the network.
    pub sent: u64,
    /// Packets given to the driver.
    pub delivered: u64,
    /// Packets dropped at a full port.
    pub dropped_port: u64,
    /// Packets dropped at the full queue of a host.
    pub dropped_host: u64,
    /// Packets lost in the crash of a host.
    pub lost_in_crash: u64,
    /// Packets lost with a link or a switch that failed, or without a path to their host.
    pub lost_on_link: u64,
    /// Packets put on a link: each packet counts once per hop.
    pub hops: u64,
}

/// Links, ports, switches and hosts, and the packets between them.
pub struct Network<B> {
    hosts: u32,
    routes: Routes,
    routing: Routing,
    /// The number of links from each switch to the nearest host.
    levels: Vec<u8>,
    ports: Vec<Port>,
    waiting: Vec<Waiting<B>>,
    stations: Vec<Host<B>>,
    /// The switches for which the driver runs a program.
    programmed: Vec<bool>,
    rng: Rng,
    /// Makes the ECMP hashes of two runs differ.
    hash_seed: u64,
    counters: NetCounters,
    topology: Topology,
    /// The links that failed by themselves; a link of a failed switch is down too.
    failed_links: Vec<bool>,
    managed: Option<Box<Managed<B>>>,
}

/// Instead of a port: no port leads to the packet's host.
const NO_ROUTE: u32 = u32::MAX;

impl<B> Network<B> {
    /// A network at rest. Every host delivers at once until [`Network::set_host`] changes it.
    ///
    /// # Errors
    /// [`TopologyError`] if the topology is not connected, or a host does not have exactly one
    /// link.
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
            levels: topology.levels(),
            routes,
            routing,
            waiting: ports.iter().map(|_| Waiting::new()).collect(),
            ports,
            stations: (0..topology.hosts()).map(|_| Host::new(HostSpec::default())).collect(),
            programmed: vec![false; topology.switches() as usize],
            hash_seed: rng.next_u64(),
            rng,
            counters: NetCounters::default(),
            topology: topology.clone(),
            failed_links: vec![false; topology.links().len()],
            managed: None,
        })
    }

    /// Makes all ports managed ones, before any packet is sent: see [`QueueSpec`]. Every switch has
    /// the queues of `spec`; a host has an unbounded queue at its own port, and marks nothing.
    pub fn manage(&mut self, spec: QueueSpec) {
        assert!(self.counters.sent == 0, "a network is managed from its beginning");
        let hosts = self.hosts;
        let mut ports = Vec::new();
        for (a, b, link) in self.topology.links() {
            for from in [a, b] {
                let room = if from.0 < hosts { u64::MAX } else { link.queue_bytes_max };
                ports.push(ManagedPort::new(from.0, link.bits_per_s, room));
            }
        }
        let nodes = (hosts + self.topology.switches()) as usize;
        let mut managed = Managed::new(ports, (hosts, nodes), self.rng.fork());
        for node in &mut managed.nodes[hosts as usize..] {
            node.spec = spec;
        }
        self.managed = Some(Box::new(managed));
    }

    /// Changes the queues of one switch of a managed network.
    pub fn set_queues(&mut self, switch: NodeIndex, spec: QueueSpec) {
        assert!(switch.0 >= self.hosts, "the queues of a switch, not of a host");
        self.managed_mut().nodes[switch.0 as usize].spec = spec;
    }

    /// Sets the telemetry: every packet that leaves a managed port is passed to `telemetry`, which
    /// may write the port's state into it.
    pub fn set_telemetry(&mut self, telemetry: fn(&mut B, &Hop)) {
        self.managed_mut().telemetry = Some(telemetry);
    }

    /// Records the visits of packets with this flow label; `number` returns a data packet's number.
    pub fn watch(&mut self, flow_label: u32, number: fn(&B) -> Option<u32>) {
        let managed = self.managed_mut();
        (managed.watched, managed.number) = (Some(flow_label), number);
    }

    /// Captures the packets that leave these ports; `number` returns a data packet's number.
    pub fn capture(&mut self, ports: &[u32], number: fn(&B) -> Option<u32>) {
        let managed = self.managed_mut();
        managed.capture = ports.to_vec();
        managed.capture.sort_unstable();
        managed.number = number;
    }

    /// The packets captured so far, at most [`CAPTURED_MAX`](super::CAPTURED_MAX), and the number
    /// of those beyond it.
    #[must_use]
    pub fn captured(&self) -> (&[Captured], u64) {
        let managed = self.managed.as_ref();
        managed.map_or((&[], 0), |managed| (&managed.captured, managed.not_captured))
    }

    /// The visits recorded so far, in the order of departure; at most
    /// [`VISITS_MAX`](super::VISITS_MAX).
    #[must_use]
    pub fn visits(&self) -> &[Visit] {
        self.managed.as_ref().map_or(&[], |managed| &managed.visits)
    }

    /// Restarts the statistics of managed ports: the warm-up is over.
    pub fn begin_statistics(&mut self, now: Time) {
        self.managed_mut().begin_statistics(now.0);
    }

    /// The statistics of managed ports, and the time in ps that they cover.
    #[must_use]
    pub fn queue_counters(&self, now: Time) -> (Vec<QueueCounters>, u64) {
        self.managed.as_ref().map_or((Vec::new(), 0), |managed| managed.counters(now.0))
    }

    /// The most bytes of a class that waited at a managed port since the run began.
    #[must_use]
    pub fn class_bytes_max(&self, port: u32, class: u8) -> u64 {
        let managed = self.managed.as_ref();
        managed.map_or(0, |m| m.ports[port as usize].class_bytes_max[usize::from(class) % CLASSES])
    }

    /// The number of hosts; nodes from there on are switches.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The bytes that wait at managed ports.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.managed.as_ref().map_or(0, |managed| managed.held_bytes())
    }

    fn managed_mut(&mut self) -> &mut Managed<B> {
        let Some(managed) = &mut self.managed else { panic!("call Network::manage first") };
        managed
    }

    /// Takes a link down or up. Packets that wait for it or are on it are lost. Routes stay
    /// unchanged until [`Network::reroute`].
    pub fn set_link(&mut self, now: Time, link: u32, is_up: bool) {
        self.failed_links[link as usize] = !is_up;
        self.set_ports(now);
    }

    /// Takes a switch with all its links down or up.
    pub fn set_switch(&mut self, now: Time, switch: NodeIndex, is_up: bool) {
        assert!(switch.0 >= self.hosts, "a switch, not a host");
        self.managed_mut().nodes[switch.0 as usize].is_up = is_up;
        self.set_ports(now);
    }

    fn is_link_up(&self, link: usize) -> bool {
        let (a, b, _) = self.topology.links()[link];
        let is_node_up = |node: NodeIndex| {
            self.managed.as_ref().is_none_or(|managed| managed.nodes[node.0 as usize].is_up)
        };
        !self.failed_links[link] && is_node_up(a) && is_node_up(b)
    }

    fn set_ports(&mut self, now: Time) {
        for link in 0..self.failed_links.len() {
            let is_up = self.is_link_up(link);
            for port in [2 * link as u32, 2 * link as u32 + 1] {
                self.managed_mut().set_port(now.0, port, is_up);
            }
        }
    }

    /// Reroutes around the failures, as the control plane does once it has heard of them: from now
    /// on packets take the shortest remaining paths. Packets to an unreachable host are lost.
    pub fn reroute(&mut self) {
        // The topology was accepted at the start, and failures cannot make it malformed.
        if let Ok(routes) = Routes::around_failures(&self.topology, |l| self.is_link_up(l)) {
            self.routes = routes;
        }
    }

    /// The first port through which `from` reaches its neighbour `to`.
    #[must_use]
    pub fn port_between(&self, from: NodeIndex, to: NodeIndex) -> Option<u32> {
        let ends = self.topology.links().iter().enumerate();
        let port = |(link, &(a, b, _)): (usize, &(NodeIndex, NodeIndex, _))| {
            let link = link as u32;
            if (a, b) == (from, to) {
                return Some(2 * link);
            }
            ((b, a) == (from, to)).then_some(2 * link + 1)
        };
        ends.filter_map(port).next()
    }

    /// The node that sends on a port, and the node at the other end.
    #[must_use]
    pub fn port_ends(&self, port: u32) -> (NodeIndex, NodeIndex) {
        let (a, b, _) = self.topology.links()[port as usize / 2];
        if port.is_multiple_of(2) { (a, b) } else { (b, a) }
    }

    /// The port through which a host sends.
    #[must_use]
    pub fn host_port(&self, host: HostIndex) -> u32 {
        self.routes.host_ports[host.0 as usize]
    }

    /// The index of a path's port among the choices of a switch. Each tier uses one digit of the
    /// path's number, so that in a folded Clos network all paths differ.
    fn choice_of_path(&self, switch: usize, choices: usize, path: u8) -> usize {
        let mut rest = usize::from(path - 1);
        for _ in 1..self.levels[switch] {
            rest /= choices;
        }
        rest % choices
    }

    /// The number of paths between two hosts that [`Packet::path`] can distinguish, from 1 to 255.
    #[must_use]
    pub fn paths(&self, from: HostIndex, to: HostIndex) -> u8 {
        let mut paths: usize = 1;
        for port in self.ports_of_path(from, to, 1) {
            let (node, _) = self.port_ends(port);
            if node.0 >= self.hosts {
                paths = paths.saturating_mul(self.ports_towards(node, to).len());
            }
        }
        paths.clamp(1, 255) as u8
    }

    /// The ports on a path, beginning with that of the sending host.
    #[must_use]
    pub fn ports_of_path(&self, from: HostIndex, to: HostIndex, path: u8) -> Vec<u32> {
        let mut ports = vec![self.host_port(from)];
        let mut node = self.port_ends(ports[0]).1;
        while node.0 >= self.hosts && ports.len() <= self.levels.len() {
            let switch = (node.0 - self.hosts) as usize;
            let choices = self.routes.choices(switch, to);
            if choices.is_empty() {
                break;
            }
            let port = choices[self.choice_of_path(switch, choices.len(), path.max(1))];
            ports.push(port);
            node = self.port_ends(port).1;
        }
        ports
    }

    /// The time that `bytes` take on a port's link, in ps.
    #[must_use]
    pub fn send_ps(&self, port: u32, bytes: u32) -> u64 {
        self.ports[port as usize].send_ps(bytes)
    }

    /// The time from a packet's last bit to its arrival, in ps: propagation, and the pipeline at
    /// the other end.
    #[must_use]
    pub fn flight_ps(&self, port: u32) -> u64 {
        self.ports[port as usize].flight_ps()
    }

    /// The bandwidth of a host's link.
    #[must_use]
    pub fn host_bits_per_s(&self, host: HostIndex) -> u64 {
        self.topology.links()[self.host_port(host) as usize / 2].2.bits_per_s
    }

    /// The ports through which a switch sends to a host, on shortest paths.
    #[must_use]
    pub fn ports_towards(&self, switch: NodeIndex, host: HostIndex) -> &[u32] {
        self.routes.choices((switch.0 - self.hosts) as usize, host)
    }

    /// Sends a packet through this port, regardless of the routes: for a switch whose program
    /// routes by the content of packets.
    pub fn send_by_port<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        port: u32,
        packet: Packet<B>,
    ) {
        self.check(&packet);
        self.counters.sent += 1;
        self.transmit(queue, port, NO_INPUT, packet);
    }

    fn check(&self, packet: &Packet<B>) {
        assert!(packet.to.0 < self.hosts, "a packet to no host");
        assert!(usize::from(packet.class) < CLASSES, "no such priority class");
        assert!(usize::from(packet.kind) < KINDS, "no such kind of message");
    }

    /// Changes the capacity of a host, from the next packet on.
    pub fn set_host(&mut self, host: HostIndex, spec: HostSpec) {
        self.stations[host.0 as usize].spec = spec;
    }

    /// Makes a switch programmed: from now on every packet that arrives there is delivered to the
    /// driver.
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
        self.check(&packet);
        self.counters.sent += 1;
        let port = if node.0 < self.hosts {
            self.routes.host_ports[node.0 as usize]
        } else {
            self.route((node.0 - self.hosts) as usize, &packet)
        };
        self.transmit(queue, port, NO_INPUT, packet);
    }

    /// Handles an event; returns the packet that it delivers to the driver, if any.
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
                self.transmit(queue, port, NO_INPUT, packet);
                None
            }
            NetEvent::Cross { port, incarnation, packet } => {
                self.cross(queue, port, incarnation, packet)
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

    /// Crashes a host: the packets that wait for a core, and those in service, are lost.
    pub fn crash(&mut self, host: HostIndex) {
        let lost = self.stations[host.0 as usize].crash();
        self.counters.lost_in_crash += lost;
    }

    /// Counts of the packets so far, by their fate.
    #[must_use]
    pub fn counters(&self) -> NetCounters {
        let mut counters = self.counters;
        for port in self.ports() {
            counters.hops += port.packets;
            counters.dropped_port += port.dropped;
        }
        counters.lost_on_link += self.managed.as_ref().map_or(0, |managed| managed.lost);
        counters
    }

    /// The counters of the ports, by index: `2 l` sends from the first node of the topology's link
    /// `l`, `2 l + 1` from its second.
    pub fn ports(&self) -> impl Iterator<Item = PortCounters> {
        self.ports.iter().zip(&self.waiting).map(|(port, rest)| port.counters(rest))
    }

    /// Ends the crossing of a managed port's link.
    fn cross<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        port: u32,
        incarnation: u16,
        packet: Packet<B>,
    ) -> Option<Delivery<B>> {
        if self.managed_mut().ports[port as usize].incarnation != incarnation {
            self.counters.lost_on_link += 1;
            return None;
        }
        let node = NodeIndex(self.ports[port as usize].peer);
        let Some(switch) = node.0.checked_sub(self.hosts) else {
            return self.receive(queue, HostIndex(node.0), packet);
        };
        if self.programmed[switch as usize] {
            self.counters.delivered += 1;
            return Some(Delivery { node, packet });
        }
        let next = self.route(switch as usize, &packet);
        self.transmit(queue, next, port, packet);
        None
    }

    /// As [`Network::transmit`], for a managed port.
    #[inline(never)]
    fn transmit_managed<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        port: u32,
        input: u32,
        packet: Packet<B>,
    ) {
        let Some(managed) = &mut self.managed else { return };
        if port == NO_ROUTE {
            self.counters.lost_on_link += 1;
            return;
        }
        match managed.accept(queue.now().0, port, input, packet) {
            Queued::Waits(Some(at)) if at == queue.now().0 => self.release(queue, port),
            Queued::Waits(Some(at)) => {
                queue.schedule(Time(at), NetEvent::Release { port }.into());
            }
            Queued::Waits(None) => {}
            Queued::Dropped => self.waiting[port as usize].dropped += 1,
            Queued::Lost => {}
        }
    }

    fn release_managed<E: From<NetEvent<B>>>(&mut self, queue: &mut EventQueue<E>, port: u32) {
        let Some(managed) = &mut self.managed else { return };
        let out = &mut self.ports[port as usize];
        let send_ps = |bytes| out.send_ps(bytes);
        let flight_ps = out.flight_ps();
        let (sent, again) = managed.release(queue.now().0, port, send_ps, flight_ps);
        let incarnation = managed.ports[port as usize].incarnation;
        if let Some((packet, at)) = sent {
            out.count(packet.size_bytes);
            let event = NetEvent::Cross { port, incarnation, packet };
            queue.schedule(Time(at), event.into());
        }
        if let Some(at) = again {
            queue.schedule(Time(at), NetEvent::Release { port }.into());
        }
    }

    #[inline(always)]
    fn route(&mut self, switch: usize, packet: &Packet<B>) -> u32 {
        let choices = self.routes.choices(switch, packet.to);
        if let [only] = choices {
            return *only;
        }
        if choices.is_empty() {
            return NO_ROUTE;
        }
        let count = choices.len() as u64;
        if packet.path != 0 {
            return choices[self.choice_of_path(switch, choices.len(), packet.path)];
        }
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

    // Inlined together with its callees, so that the packet is not copied on its way into the next
    // event.
    #[inline(always)]
    fn transmit<E: From<NetEvent<B>>>(
        &mut self,
        queue: &mut EventQueue<E>,
        port: u32,
        input: u32,
        packet: Packet<B>,
    ) {
        if self.managed.is_some() {
            return self.transmit_managed(queue, port, input, packet);
        }
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
        if self.managed.is_some() {
            return self.release_managed(queue, port);
        }
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
