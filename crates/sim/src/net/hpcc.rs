//! HPCC (Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019): each packet brings
//! back the load of every port on its path (in-band telemetry), and the sender sets its window so
//! that the busiest of them has slightly less in flight than it can carry.
//!
//! Algorithm 1 is here line by line. Around it: the flows of a host take turns at its link, each
//! paced at window over base round trip; a receiver acknowledges every packet; lost packets are
//! sent again from the first gap on (go-back-N), as RDMA NICs do, after a negative acknowledgement
//! or a timeout. The paper's network is lossless by pause frames, which are not modelled, so
//! switches need buffers.

use super::managed::Hop;
use super::packet::Packet;
use super::round_robin::RoundRobin;
use super::topology::HostIndex;
use super::transport::{FlowSpec, Transport, Wire, WireBytes};
use crate::engine::{MS, Time, US};

/// The maximum number of switch ports on a path whose state a packet holds: a fat tree has five.
pub(super) const HOPS_MAX: usize = 5;
/// The fixed-point representation of 1 for loads.
const ONE: u64 = 1 << 20;
/// The maximum length of a flow, in packets.
const PACKETS_MAX: u64 = 1 << 31;

/// The purposes of a flow's timer; for a host's link, the flow is the host.
const PACE: u32 = 0;
const RESEND: u32 = 1;
const LINK_FREE: u32 = 2;

/// The state of a port when a packet left it (§3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Telemetry {
    at_ps: u64,
    sent_bytes: u64,
    waiting_bytes: u32,
    megabits_per_s: u32,
}

/// The states of the ports on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    hops: [Telemetry; HOPS_MAX],
    count: u8,
    /// A hash of the ports, which changes with the path (§4.1: pathID).
    id: u32,
}

/// HPCC's part of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HpccHeader {
    /// The index of the flow.
    pub flow: u32,
    /// The number of a data packet; in an acknowledgement, the first number that is missing.
    pub number: u32,
    /// Whether this is an acknowledgement.
    is_ack: bool,
    /// In an acknowledgement: whether a packet after the missing one has arrived.
    is_negative: bool,
    path: Path,
}

/// The parameters of HPCC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpccConfig {
    /// The payload of a full packet.
    pub payload_bytes: u32,
    /// The size of headers and framing of a packet on the wire, telemetry included.
    pub header_bytes: u32,
    /// The size of an acknowledgement on the wire.
    pub ack_bytes: u32,
    /// T: the base round trip, the same for all flows (§3.2).
    pub round_trip_ps: u64,
    /// Eta: the share of a link that is to be used, in percent (95).
    pub target_percent: u32,
    /// maxStage: the number of additive increases before a multiplicative one (5).
    pub stages_max: u32,
    /// W_AI: the additive increase of the window (§5.4: W_init (1 - eta) / N, 80 bytes).
    pub increase_bytes: u64,
    /// The minimum rate, in bits per second.
    pub bits_per_s_min: u64,
    /// The time without an acknowledgement after which every unacknowledged packet is sent again.
    pub timeout_ps: u64,
    /// The priority of data packets and acknowledgements at every port.
    pub class: u8,
}

impl Default for HpccConfig {
    /// The paper's parameters, packets of its simulator.
    fn default() -> HpccConfig {
        HpccConfig {
            payload_bytes: 1_000,
            header_bytes: 90,
            ack_bytes: 102,
            round_trip_ps: 13 * US,
            target_percent: 95,
            stages_max: 5,
            increase_bytes: 80,
            bits_per_s_min: 100_000_000,
            timeout_ps: MS,
            class: 1,
        }
    }
}

impl HpccConfig {
    fn window_min(&self) -> u64 {
        bytes_in(self.bits_per_s_min, self.round_trip_ps).max(1)
    }
}

/// The number of bytes that a bandwidth carries in a time.
fn bytes_in(bits_per_s: u64, ps: u64) -> u64 {
    (u128::from(bits_per_s) * u128::from(ps) / 8_000_000_000_000) as u64
}

/// The window of a flow: Algorithm 1.
#[derive(Clone, Debug)]
struct Window {
    /// W, in bytes on the wire.
    bytes: u64,
    /// W^c: the window of the last round trip.
    reference: u64,
    /// W_init: the bytes that the host's link carries in a base round trip. A flow begins with it,
    /// and never exceeds it.
    bytes_max: u64,
    stage: u32,
    /// U: the bytes in flight relative to those that the busiest link carries, in 1/[`ONE`].
    load: u64,
    /// L: the telemetry of the last acknowledgement; allocated with the first one.
    last: Option<Box<Path>>,
    /// A round trip begins at the acknowledgement of a packet with this number or a higher one.
    round_end: u32,
}

impl Window {
    fn new(bytes: u64) -> Window {
        let (stage, load, last, round_end) = (0, ONE, None, 0);
        Window { bytes, reference: bytes, bytes_max: bytes, stage, load, last, round_end }
    }

    /// NewAck (lines 23 to 29); `next` is snd_nxt.
    fn on_ack(&mut self, config: &HpccConfig, path: &Path, number: u32, next: u32) {
        let begins_round = number > self.round_end;
        if self.measure(config, path) {
            self.compute(config, begins_round);
        }
        if begins_round {
            self.round_end = next;
        }
        match &mut self.last {
            Some(last) => **last = *path,
            None => self.last = Some(Box::new(*path)),
        }
    }

    /// MeasureInflight (lines 1 to 10); returns whether there was an earlier state to compare with.
    fn measure(&mut self, config: &HpccConfig, path: &Path) -> bool {
        let Some(last) = &self.last else { return false };
        if last.id != path.id || last.count != path.count {
            return false;
        }
        let round_trip = u128::from(config.round_trip_ps.max(1));
        let (mut most, mut since_ps) = (None, 0);
        for (new, old) in path.hops[..path.count.into()].iter().zip(&last.hops) {
            let bits_per_ms = u128::from(new.megabits_per_s.max(1)) * 1_000;
            let elapsed = u128::from(new.at_ps.saturating_sub(old.at_ps));
            if elapsed == 0 {
                continue;
            }
            let scale = |bytes: u64, ps: u128| -> u128 {
                // bits / (bandwidth x time), in 1/ONE; a ms has 10^9 ps.
                u128::from(bytes) * 8 * 1_000_000_000 * u128::from(ONE) / (bits_per_ms * ps)
            };
            let waiting = u64::from(new.waiting_bytes.min(old.waiting_bytes));
            let sent = new.sent_bytes.wrapping_sub(old.sent_bytes);
            let load = scale(waiting, round_trip) + scale(sent, elapsed);
            if most.is_none_or(|most| load > most) {
                (most, since_ps) = (Some(load), elapsed);
            }
        }
        let Some(load) = most else { return false };
        // An exponentially weighted moving average over a round trip.
        let weight = since_ps.min(round_trip);
        let old = u128::from(self.load) * (round_trip - weight);
        self.load = ((old + load * weight) / round_trip).min(u128::from(u64::MAX)) as u64;
        true
    }

    /// ComputeWind (lines 11 to 22).
    fn compute(&mut self, config: &HpccConfig, begins_round: bool) {
        let target = ONE * u64::from(config.target_percent) / 100;
        let is_multiplicative = self.load >= target || self.stage >= config.stages_max;
        let base = if is_multiplicative {
            let cut = u128::from(self.reference) * u128::from(target);
            u64::try_from(cut / u128::from(self.load.max(1))).unwrap_or(u64::MAX)
        } else {
            self.reference
        };
        let bytes = base.saturating_add(config.increase_bytes);
        self.bytes = bytes.max(config.window_min()).min(self.bytes_max);
        if begins_round {
            self.stage = if is_multiplicative { 0 } else { self.stage + 1 };
            self.reference = self.bytes;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    data: u64,
    again: u64,
    negative: u64,
    timeouts: u64,
}

struct Flow {
    spec: FlowSpec,
    packets: u32,
    window: Window,
    /// Packets with lower numbers are acknowledged.
    acked: u32,
    /// The next number to send; a loss sets it back.
    next: u32,
    /// Packets with lower numbers were sent at least once.
    sent: u32,
    /// Pacing: the earliest time of the next packet.
    may_send_at: Time,
    /// Whether the flow waits for its turn at the host's link, or for its pace.
    is_queued: bool,
    due: Time,
    is_timer_set: bool,
    /// At the receiver: packets with lower numbers have arrived.
    received: u32,
    /// At the receiver: whether the next number was reported as missing.
    is_gap_told: bool,
}

/// The senders and receivers of all flows.
pub struct Hpcc {
    config: HpccConfig,
    flows: Vec<Flow>,
    turns: RoundRobin,
    counters: Counters,
}

impl Hpcc {
    /// A transport without flows.
    #[must_use]
    pub fn new(config: HpccConfig) -> Hpcc {
        let (flows, turns) = (Vec::new(), RoundRobin::new(LINK_FREE));
        Hpcc { config, flows, turns, counters: Counters::default() }
    }

    /// The window of a flow, in bytes on the wire.
    #[must_use]
    pub fn window_bytes(&self, flow: u32) -> u64 {
        self.flows[flow as usize].window.bytes
    }

    fn size_bytes(&self, f: &Flow, number: u32) -> u32 {
        let payload = u64::from(self.config.payload_bytes);
        let rest = f.spec.bytes.saturating_sub(u64::from(number) * payload);
        rest.min(payload) as u32 + self.config.header_bytes
    }

    /// Whether the flow has a packet to send, and its window allows it.
    fn may_send(&self, flow: u32) -> bool {
        let full = u64::from(self.config.payload_bytes + self.config.header_bytes);
        let f = &self.flows[flow as usize];
        let in_flight = u64::from(f.next - f.acked) * full;
        // A window below one packet still sends one, at its pace.
        f.next < f.packets && (in_flight == 0 || in_flight + full <= f.window.bytes)
    }

    /// Queues a flow at the host's link if its window allows a packet.
    fn queue(&mut self, wire: &mut Wire<'_, HpccHeader>, flow: u32) {
        let may_send = self.may_send(flow);
        let f = &mut self.flows[flow as usize];
        if f.is_queued || !may_send {
            return;
        }
        f.is_queued = true;
        if f.may_send_at > wire.now() {
            return wire.timer(f.may_send_at, flow, PACE);
        }
        let host = f.spec.from;
        self.turns.add(host, flow);
        self.send(wire, host);
    }

    /// Sends the next packet of the host's link.
    fn send(&mut self, wire: &mut Wire<'_, HpccHeader>, host: HostIndex) {
        while let Some(flow) = self.turns.next(wire, host) {
            self.flows[flow as usize].is_queued = false;
            // The window may have shrunk meanwhile.
            if !self.may_send(flow) {
                continue;
            }
            let f = &mut self.flows[flow as usize];
            let number = f.next;
            f.next += 1;
            self.counters.data += 1;
            self.counters.again += u64::from(number < f.sent);
            f.sent = f.sent.max(f.next);
            let spec = f.spec;
            let size_bytes = self.size_bytes(&self.flows[flow as usize], number);
            let body = HpccHeader { flow, number, ..HpccHeader::default() };
            wire.send(Packet::new(
                spec.from,
                spec.to,
                size_bytes,
                body.flow,
                self.config.class,
                body,
            ));
            self.turns.sent(wire, host, size_bytes);
            let f = &mut self.flows[flow as usize];
            // R = W / T (line 28).
            let gap = u128::from(size_bytes) * u128::from(self.config.round_trip_ps)
                / u128::from(f.window.bytes.max(1));
            f.may_send_at = wire.now().after(u64::try_from(gap).unwrap_or(u64::MAX / 4));
            if !f.is_timer_set {
                f.is_timer_set = true;
                f.due = wire.now().after(self.config.timeout_ps);
                wire.timer(f.due, flow, RESEND);
            }
            self.queue(wire, flow);
        }
    }

    fn on_data(&mut self, wire: &mut Wire<'_, HpccHeader>, data: &Packet<HpccHeader>) {
        let header = data.body;
        let f = &mut self.flows[header.flow as usize];
        let mut is_negative = false;
        if header.number == f.received {
            f.received += 1;
            f.is_gap_told = false;
            if f.received == f.packets {
                wire.finished(header.flow);
            }
        } else if header.number > f.received {
            if f.is_gap_told {
                return;
            }
            (f.is_gap_told, is_negative) = (true, true);
            self.counters.negative += 1;
        }
        let number = f.received;
        let echo = HpccHeader { number, is_ack: true, is_negative, ..header };
        let (bytes, class) = (self.config.ack_bytes, self.config.class);
        wire.send(Packet::new(data.to, data.from, bytes, echo.flow, class, echo));
    }

    fn on_ack(&mut self, wire: &mut Wire<'_, HpccHeader>, header: HpccHeader) {
        let config = self.config;
        let f = &mut self.flows[header.flow as usize];
        if header.number < f.acked || f.acked == f.packets {
            return;
        }
        if header.number > f.acked {
            f.due = wire.now().after(config.timeout_ps);
        }
        f.acked = header.number;
        f.next = f.next.max(f.acked);
        f.window.on_ack(&config, &header.path, header.number, f.next);
        if header.is_negative {
            f.next = f.acked;
        }
        if f.acked == f.packets {
            f.window.last = None;
            return;
        }
        self.queue(wire, header.flow);
    }

    fn on_timeout(&mut self, wire: &mut Wire<'_, HpccHeader>, flow: u32) {
        let timeout_ps = self.config.timeout_ps;
        let f = &mut self.flows[flow as usize];
        f.is_timer_set = false;
        if f.acked == f.sent {
            return;
        }
        if f.due <= wire.now() {
            f.next = f.acked;
            f.due = wire.now().after(timeout_ps);
            self.counters.timeouts += 1;
        }
        f.is_timer_set = true;
        wire.timer(f.due, flow, RESEND);
        self.queue(wire, flow);
    }
}

/// Writes the state of a switch's port into a data packet (§3.1).
fn write(header: &mut HpccHeader, hop: &Hop) {
    let path = &mut header.path;
    if header.is_ack || hop.is_host {
        return;
    }
    path.id = path.id.rotate_left(5).wrapping_mul(31) ^ (hop.port + 1);
    let Some(place) = path.hops.get_mut(usize::from(path.count)) else { return };
    *place = Telemetry {
        at_ps: hop.at_ps,
        sent_bytes: hop.sent_bytes,
        waiting_bytes: u32::try_from(hop.waiting_bytes).unwrap_or(u32::MAX),
        megabits_per_s: u32::try_from(hop.bits_per_s / 1_000_000).unwrap_or(u32::MAX),
    };
    path.count += 1;
}

impl Transport for Hpcc {
    type Header = HpccHeader;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        let packets = spec.bytes.div_ceil(u64::from(self.config.payload_bytes)).max(1);
        assert!(packets < PACKETS_MAX, "a flow of 2^31 packets or more");
        self.flows.push(Flow {
            spec,
            packets: packets as u32,
            window: Window::new(1),
            acked: 0,
            next: 0,
            sent: 0,
            may_send_at: Time(0),
            is_queued: false,
            due: Time(0),
            is_timer_set: false,
            received: 0,
            is_gap_told: false,
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, HpccHeader>, flow: u32) {
        let f = &mut self.flows[flow as usize];
        let bits_per_s = wire.network.host_bits_per_s(f.spec.from);
        f.window = Window::new(bytes_in(bits_per_s, self.config.round_trip_ps).max(1));
        self.queue(wire, flow);
    }

    fn timer(&mut self, wire: &mut Wire<'_, HpccHeader>, flow: u32, token: u32) {
        match token {
            PACE => {
                let host = self.flows[flow as usize].spec.from;
                self.turns.add(host, flow);
                self.send(wire, host);
            }
            RESEND => self.on_timeout(wire, flow),
            _ => {
                self.turns.is_free(HostIndex(flow));
                self.send(wire, HostIndex(flow));
            }
        }
    }

    fn deliver(&mut self, wire: &mut Wire<'_, HpccHeader>, packet: Packet<HpccHeader>) {
        match packet.body.is_ack {
            true => self.on_ack(wire, packet.body),
            false => self.on_data(wire, &packet),
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
        (u64::from(f.received) * u64::from(self.config.payload_bytes)).min(f.spec.bytes)
    }

    fn number(header: &HpccHeader) -> Option<u32> {
        (!header.is_ack).then_some(header.number)
    }

    fn telemetry(&self) -> Option<fn(&mut HpccHeader, &Hop)> {
        Some(write)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        vec![
            ("data packets", c.data),
            ("sent again", c.again),
            ("negative acknowledgements", c.negative),
            ("timeouts", c.timeouts),
        ]
    }
}
