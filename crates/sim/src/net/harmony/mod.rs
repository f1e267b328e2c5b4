//! Harmony (Agarwal et al., "Harmony: A Congestion-free Datacenter Architecture", NSDI 2024) as a
//! transport: the hosts of `concord_transport` and the switch program of `concord_switch`, as they
//! ship, with the packets' own bytes, over the network's links.
//!
//! A flow is a message; a message that is rejected or fails never completes. Hosts and switches
//! count time in ns. A host delays packets only for its slots, and a recirculation takes no time.
//! All clocks are equal. [`QueueBounds`] has the bound of each port, which every run asserts.

mod allocation;
mod bound;
mod config;
mod plan;
#[cfg(test)]
mod tests;
mod wiring;
mod worst;

use concord_core::{Instant, Machine as _, Now};
use concord_pisa::{Metadata, Verdict};
use concord_switch::{Harmony as Program, Ingress, PortTable, SwitchProgram as _};
use concord_transport::{Completion, Host, Outcome};
use concord_wire::Addr;
use concord_wire::harmony::{Op, Path, Repr};

pub use allocation::{Allocation, allocated_share};
pub use bound::QueueBounds;
pub use concord_switch::harmony::Choice;
pub use config::{HarmonyConfig, HarmonyError};
pub use worst::{Paced, Worst, worst_queue};

pub(super) use config::MESSAGE_BYTES_MAX;
pub(super) use plan::HarmonyPlan;

use super::network::Network;
use super::packet::Packet;
use super::topology::{HostIndex, NodeIndex, Topology};
use super::transport::{FlowSpec, Promise, Transport, Way, Wire, WireBytes};
use crate::engine::{NS, Time};
use wiring::{addr, node_of};

/// The class of packets with a reservation.
const RESERVED_CLASS: u8 = 1;

/// Harmony's part of a packet: its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HarmonyHeader {
    bytes: Vec<u8>,
    /// The node that last sent it.
    last: u32,
    /// The number of a data packet in its flow.
    number: Option<u32>,
}

/// A message.
#[derive(Clone, Copy, Debug)]
struct Flow {
    spec: FlowSpec,
    received_bytes: u64,
    /// The number of reservations with which its sender could send.
    reservations: u32,
    /// The slot and the path of the data that arrived last.
    last: Option<(u8, Path)>,
}

/// The fates of messages.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    complete: u64,
    rejected: u64,
    failed: u64,
}

/// The hosts and switches of a network.
pub struct Harmony {
    plan: HarmonyPlan,
    hosts: Vec<Host>,
    switches: Vec<Program>,
    /// The time at which each node is woken next, in ns; `u64::MAX` if never.
    wakes: Vec<u64>,
    flows: Vec<Flow>,
    /// The flows of each host's messages, which are numbered from 1.
    numbers: Vec<Vec<u32>>,
    fates: Fates,
    ports: PortTable,
}

impl Harmony {
    /// A transport without flows.
    ///
    /// # Errors
    /// [`HarmonyError`] if the switches of the topology cannot run Harmony, or no bound of its
    /// queues is known.
    pub fn new(topology: &Topology, config: &HarmonyConfig) -> Result<Harmony, HarmonyError> {
        Harmony::of(HarmonyPlan::new(topology, config)?)
    }

    pub(super) fn of(plan: HarmonyPlan) -> Result<Harmony, HarmonyError> {
        let fabric = &plan.fabric;
        let wrong = |error: &dyn std::fmt::Display| HarmonyError(error.to_string());
        let hosts = (0..fabric.hosts).map(|host| Host::new(plan.settings(host)));
        let hosts: Vec<Host> = hosts.collect::<Result<_, _>>().map_err(|e| wrong(&e))?;
        let mut switches = Vec::with_capacity(fabric.tables.len());
        for tables in &fabric.tables {
            let program = Program::new(fabric.layout, tables.own, plan.config.guards);
            let mut program = program.map_err(|e| wrong(&e))?;
            let filled = program.fill(Instant(0), tables.clone(), false);
            filled.map_err(|_| wrong(&"a switch has too many virtual links: give fewer slots"))?;
            switches.push(program);
        }
        Ok(Harmony {
            wakes: vec![u64::MAX; hosts.len() + switches.len()],
            numbers: vec![Vec::new(); hosts.len()],
            hosts,
            switches,
            flows: Vec::new(),
            fates: Fates::default(),
            ports: PortTable::default(),
            plan,
        })
    }

    /// The bounds of the queues.
    #[must_use]
    pub fn bounds(&self) -> &QueueBounds {
        &self.plan.bounds
    }

    /// Whether all slots and virtual links are free, and no message is in progress.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.hosts.iter().all(Host::is_idle)
            && self.switches.iter().all(|switch| switch.reservations().next().is_none())
    }

    /// Asserts that each virtual link of a switch is free or held, exactly once.
    ///
    /// # Panics
    /// If one is not.
    fn assert_links(&self) {
        for (number, switch) in self.switches.iter().enumerate() {
            let mut all = switch.free();
            all.extend(switch.reservations().filter_map(|held| held.link));
            all.sort_unstable();
            let is_each_once = all.iter().copied().eq(0..switch.links() as u16);
            assert!(is_each_once, "a virtual link of switch {number} is lost, or held twice");
        }
    }

    /// The flow of a message; `None` if there is no such message.
    fn flow(&self, packet: &Repr) -> Option<u32> {
        let numbers = self.numbers.get(usize::from(packet.sender))?;
        numbers.get(usize::try_from(packet.number.checked_sub(1)?).ok()?).copied()
    }

    /// Sends a packet from a node to a neighbour.
    fn send(&self, wire: &mut Wire<'_, HarmonyHeader>, node: u32, to: Addr, bytes: Vec<u8>) {
        let Ok((packet, data)) = Repr::parse(&bytes) else { return };
        let port = match node.checked_sub(self.plan.fabric.hosts) {
            None => Some(self.plan.fabric.host_ports[node as usize]),
            Some(switch) => {
                let place = self.plan.fabric.place(switch as usize, node_of(to));
                place.map(|place| self.plan.fabric.switches[switch as usize][place].port)
            }
        };
        let Some(port) = port else { return };
        let goes_to_sender = packet.to_sender || packet.op == Op::Rsvp;
        let (to, from) = if goes_to_sender {
            (packet.sender, packet.receiver)
        } else {
            (packet.receiver, packet.sender)
        };
        let is_data = packet.op == Op::Data;
        let number = is_data.then(|| packet.bytes / self.plan.config.payload_bytes);
        let size_bytes = self.plan.config.header_bytes + data.len() as u32;
        let flow_label = self.flow(&packet).unwrap_or(u32::MAX);
        let (to, from) = (HostIndex(to.into()), HostIndex(from.into()));
        let body = HarmonyHeader { last: node, number, bytes };
        let packet = Packet::new(from, to, size_bytes, flow_label, class(&packet), body);
        wire.network.send_by_port(wire.queue, port, packet);
    }

    /// Wakes a node at a time in ns, unless it is woken before.
    fn wake(&mut self, wire: &mut Wire<'_, HarmonyHeader>, node: u32, at_ns: u64) {
        let at_ns = at_ns.max(wire.now().0.div_ceil(NS));
        if at_ns < self.wakes[node as usize] && at_ns < u64::MAX / NS {
            self.wakes[node as usize] = at_ns;
            wire.timer(Time(at_ns * NS), node, 0);
        }
    }

    /// Handles the outputs of a host after an input: packets, outcomes, and its next deadline.
    fn after_host(
        &mut self,
        wire: &mut Wire<'_, HarmonyHeader>,
        host: u32,
        sent: Vec<(Addr, Vec<u8>)>,
    ) {
        for (to, bytes) in sent {
            self.send(wire, host, to, bytes);
        }
        let own = &mut self.hosts[host as usize];
        while let Some(delivered) = own.poll_delivered() {
            let numbers = &self.numbers[usize::from(delivered.from)];
            wire.finished(numbers[delivered.number as usize - 1]);
        }
        while let Some(Completion { outcome, .. }) = own.poll_completion() {
            match outcome {
                Outcome::Complete => self.fates.complete += 1,
                Outcome::Reject(_) => self.fates.rejected += 1,
                Outcome::Failure(_) => self.fates.failed += 1,
            }
        }
        let deadline = own.deadline();
        self.wake(wire, host, deadline.at.0);
    }

    /// Runs all passes of a packet through a switch.
    fn run(
        &mut self,
        wire: &mut Wire<'_, HarmonyHeader>,
        node: u32,
        from: u32,
        mut bytes: Vec<u8>,
    ) {
        let switch = (node - self.plan.fabric.hosts) as usize;
        let (mut passes, mut metadata) = (0, Metadata::default());
        loop {
            let first = Ingress::first(now(wire), addr(from), &self.ports);
            let ingress = Ingress { passes, metadata, ..first };
            match self.switches[switch].process(&ingress, &mut bytes) {
                Verdict::Forward { to, size_bytes } => {
                    bytes.truncate(size_bytes);
                    return self.send(wire, node, to, bytes);
                }
                Verdict::Recirculate { metadata: next, size_bytes } => {
                    bytes.truncate(size_bytes);
                    (passes, metadata) = (passes + 1, next);
                }
                _ => return,
            }
        }
    }

    /// Lets the control plane of a switch scan for expired reservations.
    fn sweep(&mut self, wire: &mut Wire<'_, HarmonyHeader>, node: u32) {
        let switch = (node - self.plan.fabric.hosts) as usize;
        while let Some(mut sweep) = self.switches[switch].upkeep(now(wire).instant) {
            self.run(wire, node, node, sweep.packet().to_vec());
        }
        if self.switches[switch].reservations().next().is_some() {
            let at = self.switches[switch].deadline().at;
            self.wake(wire, node, at.0);
        }
    }
}

/// The class of a packet, 1 first: the packets of a reservation, its data and the `complete` that
/// ends it; then control packets; then best-effort packets. The paper (§3.2, as [`Repr::class`])
/// has every `rsvp` and `complete` in the first class. No slot paces those, so that together with K
/// slots of B/K they exceed the link (trap H2), and no queue is bounded.
fn class(packet: &Repr) -> u8 {
    match packet.op {
        Op::Rsvp => 2,
        Op::Complete if packet.to_sender => 2,
        _ => packet.class(),
    }
}

/// The current time, as hosts and switches count it.
fn now(wire: &Wire<'_, HarmonyHeader>) -> Now {
    Now { instant: Instant(wire.now().0 / NS), unix_ms: 0 }
}

impl Transport for Harmony {
    type Header = HarmonyHeader;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        assert!(spec.bytes <= MESSAGE_BYTES_MAX, "a message of more than a GiB");
        self.flows.push(Flow { spec, received_bytes: 0, reservations: 0, last: None });
        self.flows.len() as u32 - 1
    }

    fn begin(&mut self, network: &mut Network<HarmonyHeader>) {
        for switch in 0..self.switches.len() as u32 {
            network.set_programmed(NodeIndex(self.plan.fabric.hosts + switch));
        }
    }

    fn start(&mut self, wire: &mut Wire<'_, HarmonyHeader>, flow: u32) {
        let FlowSpec { from, to, bytes } = self.flows[flow as usize].spec;
        let data = vec![0; bytes.max(1) as usize];
        let now = now(wire);
        match self.hosts[from.0 as usize].submit(now, to.0 as u16, data) {
            Ok(number) => {
                let numbers = &mut self.numbers[from.0 as usize];
                numbers.push(flow);
                assert!(numbers.len() as u64 == number, "messages are numbered from 1");
            }
            Err(_) => self.fates.rejected += 1,
        }
        self.after_host(wire, from.0, Vec::new());
    }

    fn timer(&mut self, wire: &mut Wire<'_, HarmonyHeader>, node: u32, _token: u32) {
        // A timer whose node was woken before is ignored.
        if wire.now().0 / NS != self.wakes[node as usize] {
            return;
        }
        self.wakes[node as usize] = u64::MAX;
        if node >= self.plan.fabric.hosts {
            return self.sweep(wire, node);
        }
        let mut sent = Vec::new();
        self.hosts[node as usize].tick(now(wire), &mut sent);
        self.after_host(wire, node, sent);
    }

    fn pass(
        &mut self,
        wire: &mut Wire<'_, HarmonyHeader>,
        switch: NodeIndex,
        packet: Packet<HarmonyHeader>,
    ) {
        let HarmonyHeader { bytes, last, .. } = packet.body;
        self.run(wire, switch.0, last, bytes);
        if self.wakes[switch.0 as usize] == u64::MAX {
            let at = self.switches[(switch.0 - self.plan.fabric.hosts) as usize].deadline().at;
            self.wake(wire, switch.0, at.0);
        }
    }

    fn deliver(&mut self, wire: &mut Wire<'_, HarmonyHeader>, packet: Packet<HarmonyHeader>) {
        let HarmonyHeader { mut bytes, last, .. } = packet.body;
        if let Ok((head, data)) = Repr::parse(&bytes)
            && let Some(flow) = self.flow(&head)
        {
            let flow = &mut self.flows[flow as usize];
            match head.op {
                // In a network without failures each byte is sent once.
                Op::Data => {
                    let received = flow.received_bytes + data.len() as u64;
                    flow.received_bytes = received.min(flow.spec.bytes);
                    flow.last = Some((head.slot, head.path));
                }
                Op::Rsvp => flow.reservations += 1,
                _ => {}
            }
        }
        let mut sent = Vec::new();
        let host = packet.to.0;
        self.hosts[host as usize].handle(now(wire), addr(last), &mut bytes, &mut sent);
        self.after_host(wire, host, sent);
    }

    fn wire_bytes(&self, bytes: u64) -> WireBytes {
        let (payload, header) = (self.plan.config.payload_bytes, self.plan.config.header_bytes);
        let packets = bytes.div_ceil(payload.into()).max(1);
        let last = (bytes.max(1) - (packets - 1) * u64::from(payload)) as u32 + header;
        WireBytes { all: bytes.max(1) + packets * u64::from(header), last }
    }

    fn received_bytes(&self, flow: u32) -> u64 {
        self.flows[flow as usize].received_bytes
    }

    fn number(header: &HarmonyHeader) -> Option<u32> {
        header.number
    }

    fn rejected(&self) -> Option<u64> {
        Some(self.fates.rejected)
    }

    fn promise(&self) -> Option<Promise> {
        self.assert_links();
        Some(Promise {
            class: RESERVED_CLASS,
            ports: self.plan.bounds.waiting_bytes.clone(),
            paper_bytes: self.plan.bounds.paper_bytes,
        })
    }

    fn way(&self, flow: u32) -> Option<Way> {
        let flow = self.flows.get(flow as usize)?;
        let (slot, path) = flow.last?;
        let switch = |number: u16| NodeIndex(self.plan.fabric.hosts + u32::from(number));
        let hops = path.hops().iter().rev().map(|hop| (switch(hop.switch), hop.link)).collect();
        Some(Way { slot, reservations: flow.reservations, hops })
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counts = vec![
            ("complete messages", self.fates.complete),
            ("rejected messages", self.fates.rejected),
            ("failed messages", self.fates.failed),
        ];
        let senders = self.hosts.iter().map(|host| host.counters().0);
        let receivers = self.hosts.iter().map(|host| host.counters().1);
        let switches = self.switches.iter().map(Program::counters);
        counts.extend([
            ("requests", senders.clone().map(|c| c.requests).sum()),
            ("grants", receivers.clone().map(|c| c.granted).sum()),
            ("grants of further slots", receivers.clone().map(|c| c.granted_extra).sum()),
            ("grants rejected by senders", senders.clone().map(|c| c.no_slot).sum()),
            ("grants rejected by switches", switches.clone().map(|c| c.refused_no_link).sum()),
            ("grants not closed in their time", receivers.map(|c| c.grants_expired).sum()),
            ("data packets", senders.map(|c| c.data_sent).sum()),
            ("data without a reservation at switches", {
                switches.clone().map(|c| c.data_best_effort).sum()
            }),
            ("recirculations", switches.map(|c| c.recirculated).sum()),
        ]);
        counts
    }
}
