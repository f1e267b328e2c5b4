//! The network: what becomes of a packet from `send` until the driver has it back.

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
    /// A packet that a managed port sent is at the other end, the pipeline there included.
    Cross {
        /// The port.
        port: u32,
        /// The failures of its link before the packet left.
        incarnation: u16,
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
/// lost_in_crash + lost_on_link`.
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
    /// Lost with a link or a switch that failed, or with no way to their host.
    pub lost_on_link: u64,
    /// Packets put on a link: each packet counts once a hop.
    pub hops: u64,
}

/// Links, ports, switches and hosts, and the packets between them.
pub struct Network<B> {
    hosts: u32,
    routes: Routes,
    routing: Routing,
    /// For each switch the links to the nearest host.
    levels: Vec<u8>,
    ports: Vec<Port>,
    waiting: Vec<Waiting<B>>,
    stations: Vec<Host<B>>,
    /// Switches that the driver runs a program for.
    programmed: Vec<bool>,
    rng: Rng,
    /// Makes the ECMP hashes of two runs differ.
    hash_seed: u64,
    counters: NetCounters,
    topology: Topology,
    /// Links that failed by themselves; a link of a failed switch is down too.
    failed_links: Vec<bool>,
    managed: Option<Box<Managed<B>>>,
}

/// No port leads to the packet's host.
const NO_ROUTE: u32 = u32::MAX;

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

    /// Makes all ports managed ones, before anything is sent: see [`QueueSpec`]. Every switch has
    /// the queues of `spec`; hosts have an unbounded queue at their own port and mark nothing.
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

    /// From now on every packet that leaves a managed port is shown to `telemetry`, which may
    /// write what it sees into the packet.
    pub fn set_telemetry(&mut self, telemetry: fn(&mut B, &Hop)) {
        self.managed_mut().telemetry = Some(telemetry);
    }

    /// Records the stays of packets with that flow label; `number` reads a data packet's number.
    pub fn watch(&mut self, flow_label: u32, number: fn(&B) -> Option<u32>) {
        let managed = self.managed_mut();
        (managed.watched, managed.number) = (Some(flow_label), number);
    }

    /// Captures the packets that leave these ports; `number` reads a data packet's number.
    pub fn capture(&mut self, ports: &[u32], number: fn(&B) -> Option<u32>) {
        let managed = self.managed_mut();
        managed.capture = ports.to_vec();
        managed.capture.sort_unstable();
        managed.number = number;
    }

    /// What was captured so far, at most [`CAPTURED_MAX`](super::CAPTURED_MAX), and how many
    /// packets were left out.
    #[must_use]
    pub fn captured(&self) -> (&[Captured], u64) {
        let managed = self.managed.as_ref();
        managed.map_or((&[], 0), |managed| (&managed.captured, managed.not_captured))
    }

    /// The stays recorded so far, in the order of departure; at most
    /// [`VISITS_MAX`](super::VISITS_MAX).
    #[must_use]
    pub fn visits(&self) -> &[Visit] {
        self.managed.as_ref().map_or(&[], |managed| &managed.visits)
    }

    /// Statistics of managed ports begin anew: the warm-up is over.
    pub fn begin_statistics(&mut self, now: Time) {
        self.managed_mut().begin_statistics(now.0);
    }

    /// Statistics of managed ports, and the time in ps that they cover.
    #[must_use]
    pub fn queue_counters(&self, now: Time) -> (Vec<QueueCounters>, u64) {
        self.managed.as_ref().map_or((Vec::new(), 0), |managed| managed.counters(now.0))
    }

    /// Bytes that wait at managed ports.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.managed.as_ref().map_or(0, |managed| managed.held_bytes())
    }

    fn managed_mut(&mut self) -> &mut Managed<B> {
        let Some(managed) = &mut self.managed else { panic!("call Network::manage first") };
        managed
    }

    /// A link fails, or is mended. What waits for it is lost, and what is on it. Routes stay as
    /// they are until [`Network::reroute`].
    pub fn set_link(&mut self, now: Time, link: u32, is_up: bool) {
        self.failed_links[link as usize] = !is_up;
        self.set_ports(now);
    }

    /// A switch fails with all its links, or returns.
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

    /// The control plane has heard of the failures: from now on packets take the shortest ways
    /// that are left. Those to a host out of reach are lost.
    pub fn reroute(&mut self) {
        // The topology was accepted once, and failures cannot make it malformed.
        if let Ok(routes) = Routes::around_failures(&self.topology, |l| self.is_link_up(l)) {
            self.routes = routes;
        }
    }

    /// The first port by which `from` reaches its neighbour `to`.
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

    /// The node that a port sends from, and the one that it sends to.
    #[must_use]
    pub fn port_ends(&self, port: u32) -> (NodeIndex, NodeIndex) {
        let (a, b, _) = self.topology.links()[port as usize / 2];
        if port.is_multiple_of(2) { (a, b) } else { (b, a) }
    }

    /// The port by which a host sends.
    #[must_use]
    pub fn host_port(&self, host: HostIndex) -> u32 {
        self.routes.host_ports[host.0 as usize]
    }

    /// The place among the choices of a switch that a path takes: each tier has a digit of it, so
    /// that in a folded Clos network each path is another one.
    fn choice_of_path(&self, switch: usize, choices: usize, path: u8) -> usize {
        let mut rest = usize::from(path - 1);
        for _ in 1..self.levels[switch] {
            rest /= choices;
        }
        rest % choices
    }

    /// The number of paths between two hosts that [`Packet::path`] can tell apart, from 1 to 255.
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

    /// The ports that a packet of that path passes, its host's first.
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

    /// The time of that many bytes on a port's link.
    #[must_use]
    pub fn send_ps(&self, port: u32, bytes: u32) -> u64 {
        self.ports[port as usize].send_ps(bytes)
    }

    /// What follows a packet's last bit: propagation, and the pipeline at the other end.
    #[must_use]
    pub fn flight_ps(&self, port: u32) -> u64 {
        self.ports[port as usize].flight_ps()
    }

    /// Bandwidth of a host's link.
    #[must_use]
    pub fn host_bits_per_s(&self, host: HostIndex) -> u64 {
        self.topology.links()[self.host_port(host) as usize / 2].2.bits_per_s
    }

    /// The ports by which a switch sends to a host, on shortest ways.
    #[must_use]
    pub fn ports_towards(&self, switch: NodeIndex, host: HostIndex) -> &[u32] {
        self.routes.choices((switch.0 - self.hosts) as usize, host)
    }

    /// Sends a packet by that port, whatever the routes say: for a switch with a program that
    /// routes by what the packet carries.
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
        self.check(&packet);
        self.counters.sent += 1;
        let port = if node.0 < self.hosts {
            self.routes.host_ports[node.0 as usize]
        } else {
            self.route((node.0 - self.hosts) as usize, &packet)
        };
        self.transmit(queue, port, NO_INPUT, packet);
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
        counters.lost_on_link += self.managed.as_ref().map_or(0, |managed| managed.lost);
        counters
    }

    /// What the ports did: `2 l` sends from the first node of the topology's link `l`, `2 l + 1`
    /// from its second.
    pub fn ports(&self) -> impl Iterator<Item = PortCounters> {
        self.ports.iter().zip(&self.waiting).map(|(port, rest)| port.counters(rest))
    }

    /// A packet has crossed the link of a managed port.
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

    /// As [`Network::transmit`], by a managed port.
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

    // Inlined with what it calls: no copy of the packet on its way into the next event.
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
