//! Fastpass (Perry et al., "Fastpass: A Centralized Zero-Queue Datacenter Network", SIGCOMM 2014),
//! as Harmony extends it (§5.2, footnote 3): an arbiter that knows all messages assigns each one a
//! path, and consecutive timeslots for all of its packets, so that no packet waits in a switch. A
//! message that cannot begin within `admission_ps` is rejected, and never sent.
//!
//! The arbiter decides in the order of requests. Requests and answers take a fixed round trip and
//! no bandwidth; a timeslot is the time of a full packet on the slowest link of the path. On a link
//! that is faster by a factor, that many messages pass at once, so a packet may wait there for one
//! packet of each other message; and a short last packet waits for the one before it. A packet that
//! is lost all the same, in a buffer too small for this, is not sent again.

use super::arbiter::{Arbiter, Passed};
use super::numbers::Numbers;
use super::packet::{Ecn, Packet};
use super::transport::{FlowSpec, Transport, Wire, WireBytes};
use crate::engine::{Time, US};

/// The maximum length of a flow, in packets.
const PACKETS_MAX: u64 = 1 << 31;
/// The maximum number of paths between two hosts that the arbiter considers.
const WAYS_MAX: u8 = 64;

/// Fastpass' part of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastpassHeader {
    flow: u32,
    number: u32,
}

/// The parameters of Fastpass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastpassConfig {
    /// The payload of a full packet.
    pub payload_bytes: u32,
    /// The size of headers and framing of a packet on the wire.
    pub header_bytes: u32,
    /// The time from a request until its answer.
    pub arbiter_round_trip_ps: u64,
    /// Harmony's delta_admission: the maximum wait of a message for its first timeslot (63 us).
    pub admission_ps: u64,
    /// The priority at every port.
    pub class: u8,
}

impl Default for FastpassConfig {
    fn default() -> FastpassConfig {
        FastpassConfig {
            payload_bytes: 1_460,
            header_bytes: 78,
            arbiter_round_trip_ps: 4_600_000,
            admission_ps: 63 * US,
            class: 1,
        }
    }
}

struct Flow {
    spec: FlowSpec,
    packets: u32,
    next: u32,
    slot_ps: u64,
    path: u8,
    received: Numbers,
    missing: u32,
}

/// The senders and receivers of all flows, and the arbiter.
pub struct Fastpass {
    config: FastpassConfig,
    flows: Vec<Flow>,
    arbiter: Arbiter,
    data: u64,
    rejected: u64,
    /// The sum of the times from the requests' answers to the first timeslots, in ps.
    waited_ps: u64,
}

impl Fastpass {
    /// A transport without flows.
    #[must_use]
    pub fn new(config: FastpassConfig) -> Fastpass {
        let (flows, arbiter) = (Vec::new(), Arbiter::default());
        Fastpass { config, flows, arbiter, data: 0, rejected: 0, waited_ps: 0 }
    }

    /// The links of a path, and the time of a full packet on the slowest, in ps.
    fn way(&self, wire: &Wire<'_, FastpassHeader>, spec: FlowSpec, path: u8) -> (Vec<Passed>, u64) {
        let bytes = self.config.payload_bytes + self.config.header_bytes;
        let ports = wire.network.ports_of_path(spec.from, spec.to, path);
        // Computed as ports do, exact to the picosecond.
        let send_ps = |&port: &u32| wire.network.send_ps(port, bytes).max(1);
        let slot_ps = ports.iter().map(send_ps).max().unwrap_or(1);
        let mut offset_ps = 0;
        let passed = |port: u32| {
            let lanes = (slot_ps / send_ps(&port)).min(1 << 16) as u32;
            let passed = Passed { port, lanes, offset_ps };
            offset_ps += send_ps(&port) + wire.network.flight_ps(port);
            passed
        };
        (ports.into_iter().map(passed).collect(), slot_ps)
    }
}

impl Transport for Fastpass {
    type Header = FastpassHeader;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        let packets = spec.bytes.div_ceil(u64::from(self.config.payload_bytes)).max(1);
        assert!(packets < PACKETS_MAX, "a flow of 2^31 packets or more");
        self.flows.push(Flow {
            spec,
            packets: packets as u32,
            next: 0,
            slot_ps: 0,
            path: 0,
            received: Numbers::default(),
            missing: packets as u32,
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, FastpassHeader>, flow: u32) {
        let (spec, packets) = (self.flows[flow as usize].spec, self.flows[flow as usize].packets);
        let paths = wire.network.paths(spec.from, spec.to).min(WAYS_MAX);
        // Each flow begins with another path, so that equal paths are used equally.
        let order = (0..paths).map(|place| 1 + ((flow % u32::from(paths)) as u8 + place) % paths);
        let order: Vec<u8> = order.collect();
        let mut slot_ps = 0;
        let mut ways = Vec::with_capacity(order.len());
        for &path in &order {
            let (way, slowest_ps) = self.way(wire, spec, path);
            ways.push(way);
            slot_ps = slowest_ps.max(slot_ps);
        }
        let earliest = wire.now().0 + self.config.arbiter_round_trip_ps;
        let latest = earliest + self.config.admission_ps;
        let length = slot_ps.saturating_mul(packets.into());
        let found = self.arbiter.reserve(&ways, length, (earliest, latest), wire.now().0);
        let Some((place, start)) = found else {
            self.rejected += 1;
            return;
        };
        let f = &mut self.flows[flow as usize];
        (f.slot_ps, f.path, f.received) = (slot_ps, order[place], Numbers::new(packets));
        self.waited_ps += start - earliest;
        wire.timer(Time(start), flow, 0);
    }

    /// Sends the packet of a timeslot.
    fn timer(&mut self, wire: &mut Wire<'_, FastpassHeader>, flow: u32, token: u32) {
        let payload = u64::from(self.config.payload_bytes);
        let f = &mut self.flows[flow as usize];
        let number = f.next;
        f.next += 1;
        let rest = f.spec.bytes.saturating_sub(u64::from(number) * payload).min(payload) as u32;
        let packet = Packet {
            to: f.spec.to,
            from: f.spec.from,
            size_bytes: rest + self.config.header_bytes,
            flow_label: flow,
            class: self.config.class,
            kind: 0,
            ecn: Ecn::Not,
            path: f.path,
            body: FastpassHeader { flow, number },
        };
        self.data += 1;
        if f.next < f.packets {
            wire.timer(wire.now().after(f.slot_ps), flow, token);
        }
        wire.send(packet);
    }

    fn deliver(&mut self, wire: &mut Wire<'_, FastpassHeader>, packet: Packet<FastpassHeader>) {
        let f = &mut self.flows[packet.body.flow as usize];
        if f.missing > 0 && f.received.insert(packet.body.number) {
            f.missing -= 1;
            if f.missing == 0 {
                f.received.clear();
                wire.finished(packet.body.flow);
            }
        }
    }

    fn wire_bytes(&self, bytes: u64) -> WireBytes {
        let payload = u64::from(self.config.payload_bytes);
        let packets = bytes.div_ceil(payload).max(1);
        let last = (bytes - (packets - 1) * payload) as u32 + self.config.header_bytes;
        WireBytes { all: bytes + packets * u64::from(self.config.header_bytes), last }
    }

    fn received_bytes(&self, flow: u32) -> u64 {
        let f = &self.flows[flow as usize];
        let packets = u64::from(f.packets - f.missing);
        (packets * u64::from(self.config.payload_bytes)).min(f.spec.bytes)
    }

    fn number(header: &FastpassHeader) -> Option<u32> {
        Some(header.number)
    }

    fn rejected(&self) -> Option<u64> {
        Some(self.rejected)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("data packets", self.data),
            ("rejected messages", self.rejected),
            ("us waited for first timeslots", self.waited_ps / US),
        ]
    }
}
