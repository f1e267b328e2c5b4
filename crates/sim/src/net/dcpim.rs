//! dcPIM (Cai, Arashloo, Agarwal, "dcPIM: Near-optimal Proactive Datacenter Transport", SIGCOMM
//! 2022): parallel iterative matching of receivers and senders. While the data of one phase flows,
//! the matching of the next is computed, in rounds of three steps:
//! 1. A receiver that has free channels requests them of each sender that has data for it.
//! 2. A sender grants its free channels to requests: in the first round to the flows with the least
//!    left to send, then at random.
//! 3. A receiver accepts grants, by the same rule, while it has free channels.
//!
//! In the phase that follows, a receiver clocks the packets of its senders with one token for each
//! packet, at the share of its link that the matched channels are. Flows of at most a
//! bandwidth-delay product are sent at once, with a higher priority than matched data; packets of
//! them that are lost are matched like those of longer flows.
//!
//! Deviations: all hosts begin phases at the same instants (the paper's do within a round trip); a
//! receiver detects loss by [`DcpimConfig::timeout_ps`] without progress.

use concord_core::Rng;

use super::matching::{Matching, Offer};
use super::numbers::Numbers;
use super::packet::Packet;
use super::topology::HostIndex;
use super::transport::{FlowSpec, Transport, Wire, WireBytes};
use crate::engine::{SEC, Time, US};

/// The maximum length of a flow, in packets.
const PACKETS_MAX: u64 = 1 << 31;
/// The maximum number of channels of a host.
pub(super) const CHANNELS_MAX: u32 = 64;

/// The purposes of a timer; its flow is a flow, or the index of a host.
const STEP: u32 = 0;
const SENDER_LOOKS: u32 = 1;
const RECEIVER_LOOKS: u32 = 2;
/// From this value on: a link of a matching, and its phase.
const TOKENS: u32 = 16;
/// The number of links of one host that a timer can tell apart.
const LINKS: u32 = CHANNELS_MAX;

/// The kinds of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// Data.
    #[default]
    Data,
    /// The sender announces a flow.
    Notify,
    /// The receiver has the whole flow.
    Finished,
    /// The receiver permits the sender to send the packet with this number.
    Token,
    /// The three steps of a round.
    Request,
    Grant,
    Accept,
}

/// dcPIM's part of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcpimHeader {
    kind: Kind,
    /// The flow, if the packet concerns one.
    flow: u32,
    /// The number of a packet; in requests and grants, the packets that the shortest flow has left.
    number: u32,
    /// The phase and round of a matching.
    phase: u32,
    round: u16,
    channels: u16,
}

/// The parameters of dcPIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcpimConfig {
    /// The payload of a full packet.
    pub payload_bytes: u32,
    /// The size of headers and framing of a packet on the wire.
    pub header_bytes: u32,
    /// The size of control packets on the wire.
    pub control_bytes: u32,
    /// r: the number of rounds of a matching (4).
    pub rounds: u32,
    /// k: the number of channels of a host's link (4).
    pub channels: u32,
    /// beta: the length of a step, in percent of half a control packet's round trip (130).
    pub slack_percent: u32,
    /// The longest round trip of control packets on an idle network, in ps.
    pub control_round_trip_ps: u64,
    /// A bandwidth-delay product. Flows of at most this size are sent at once; for a longer flow,
    /// tokens for at most this many bytes are outstanding.
    pub window_bytes: u64,
    /// The time without progress after which tokens are sent again, and after which a flow is
    /// announced again, in ps.
    pub timeout_ps: u64,
    /// The priorities of control packets, of flows that are sent at once, and of matched data.
    pub classes: [u8; 3],
}

impl Default for DcpimConfig {
    /// The paper's parameters, packets of its simulator, and round trips of its leaf-spine.
    fn default() -> DcpimConfig {
        DcpimConfig {
            payload_bytes: 1_460,
            header_bytes: 40,
            control_bytes: 40,
            rounds: 4,
            channels: 4,
            slack_percent: 130,
            control_round_trip_ps: 5_200_000,
            window_bytes: 72_000,
            timeout_ps: 100 * US,
            classes: [0, 1, 2],
        }
    }
}

impl DcpimConfig {
    /// The time of a step (request, grant or accept), in ps.
    fn step_ps(&self) -> u64 {
        let half = u128::from(self.control_round_trip_ps) * u128::from(self.slack_percent) / 200;
        u64::try_from(half).unwrap_or(u64::MAX).max(1)
    }

    /// The number of steps of a phase: accepting and the next round's request are one.
    fn steps(&self) -> u64 {
        2 * u64::from(self.rounds) + 1
    }
}

struct Flow {
    spec: FlowSpec,
    packets: u32,
    /// At the sender: whether the receiver has reported that it has everything.
    is_over: bool,
    /// At the receiver: the packets that have arrived.
    received: Numbers,
    missing: u32,
    is_known: bool,
    /// Whether the flow takes part in matchings.
    is_matched: bool,
    /// Tokens go to missing packets with numbers from here on.
    next_token: u32,
    /// The number of tokens whose packets have not arrived.
    under_way: u32,
    /// When the last packet arrived, or the last token was sent.
    progress_at: Time,
}

/// A link of a phase's matching: the channels of a receiver that a sender has.
struct Link {
    sender: u32,
    channels: u32,
}

/// A host as receiver.
#[derive(Default)]
struct Receiver {
    /// The senders with flows in matchings, ascending, and those flows.
    senders: Vec<(u32, Vec<u32>)>,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    data: u64,
    again: u64,
    tokens: u64,
    control: u64,
    phases: u64,
    matched: u64,
    possible: u64,
}

/// The senders and receivers of all flows.
pub struct Dcpim {
    config: DcpimConfig,
    flows: Vec<Flow>,
    receivers: Vec<Receiver>,
    matching: Matching,
    /// The number of unfinished flows in matchings: without one no phase begins.
    in_matchings: u32,
    is_running: bool,
    counters: Counters,
}

impl Dcpim {
    /// A transport without flows; random choices are drawn from the seed.
    #[must_use]
    pub fn new(config: DcpimConfig, seed: u64) -> Dcpim {
        assert!((1..=CHANNELS_MAX).contains(&config.channels), "no such number of channels");
        Dcpim {
            config,
            flows: Vec::new(),
            receivers: Vec::new(),
            matching: Matching::new(config.channels, Rng::new(seed)),
            in_matchings: 0,
            is_running: false,
            counters: Counters::default(),
        }
    }

    fn control(&mut self, wire: &mut Wire<'_, DcpimHeader>, from: u32, to: u32, body: DcpimHeader) {
        self.counters.control += 1;
        let (size_bytes, class) = (self.config.control_bytes, self.config.classes[0]);
        wire.send(Packet::new(HostIndex(from), HostIndex(to), size_bytes, body.flow, class, body));
    }

    fn data(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32, number: u32, class: u8) {
        let f = &self.flows[flow as usize];
        let before = u64::from(number) * u64::from(self.config.payload_bytes);
        let rest = f.spec.bytes.saturating_sub(before).min(self.config.payload_bytes.into());
        let size_bytes = rest as u32 + self.config.header_bytes;
        let body = DcpimHeader { flow, number, ..DcpimHeader::default() };
        self.counters.data += 1;
        wire.send(Packet::new(f.spec.from, f.spec.to, size_bytes, body.flow, class, body));
    }

    fn notify(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32) {
        let spec = self.flows[flow as usize].spec;
        let body = DcpimHeader { kind: Kind::Notify, flow, ..DcpimHeader::default() };
        self.control(wire, spec.from.0, spec.to.0, body);
        wire.timer(wire.now().after(self.config.timeout_ps), flow, SENDER_LOOKS);
    }

    fn is_short(&self, flow: u32) -> bool {
        self.flows[flow as usize].spec.bytes <= self.config.window_bytes
    }

    /// Handles the announcement of a flow at its receiver.
    fn on_notify(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32) {
        let is_short = self.is_short(flow);
        let f = &mut self.flows[flow as usize];
        if f.missing == 0 {
            let (from, to) = (f.spec.to.0, f.spec.from.0);
            let body = DcpimHeader { kind: Kind::Finished, flow, ..DcpimHeader::default() };
            return self.control(wire, from, to, body);
        }
        if std::mem::replace(&mut f.is_known, true) {
            return;
        }
        f.progress_at = wire.now();
        if !is_short {
            self.match_from_now(wire, flow);
        }
        wire.timer(wire.now().after(self.config.timeout_ps), flow, RECEIVER_LOOKS);
    }

    /// Adds a flow to the matchings.
    fn match_from_now(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32) {
        let f = &mut self.flows[flow as usize];
        if std::mem::replace(&mut f.is_matched, true) {
            return;
        }
        let (sender, receiver) = (f.spec.from.0, f.spec.to.0 as usize);
        if self.receivers.len() <= receiver {
            self.receivers.resize_with(receiver + 1, Receiver::default);
        }
        let senders = &mut self.receivers[receiver].senders;
        match senders.binary_search_by_key(&sender, |entry| entry.0) {
            Ok(place) => senders[place].1.push(flow),
            Err(place) => senders.insert(place, (sender, vec![flow])),
        }
        self.in_matchings += 1;
        if !self.is_running {
            self.is_running = true;
            // Phases begin at multiples of their length, whichever host begins.
            let phase_ps = self.config.step_ps() * self.config.steps();
            let at = wire.now().0.div_ceil(phase_ps) * phase_ps;
            wire.timer(Time(at), 0, STEP);
        }
    }

    /// Checks at the receiver whether the flow makes progress.
    fn look(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32) {
        let (now, timeout_ps) = (wire.now(), self.config.timeout_ps);
        let f = &mut self.flows[flow as usize];
        if f.missing == 0 {
            return;
        }
        if f.progress_at.after(timeout_ps) <= now {
            // Outstanding packets would have arrived: their tokens are sent again.
            (f.next_token, f.under_way, f.progress_at) = (0, 0, now);
            self.match_from_now(wire, flow);
        }
        wire.timer(now.after(timeout_ps), flow, RECEIVER_LOOKS);
    }

    fn on_data(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32, number: u32) {
        let f = &mut self.flows[flow as usize];
        if f.missing == 0 || !f.received.insert(number) {
            self.counters.again += 1;
            return;
        }
        f.missing -= 1;
        f.progress_at = wire.now();
        f.under_way = f.under_way.saturating_sub(1);
        if f.missing > 0 {
            return;
        }
        f.received.clear();
        let (from, to, is_matched) = (f.spec.to.0, f.spec.from.0, f.is_matched);
        if is_matched {
            self.in_matchings -= 1;
            let senders = &mut self.receivers[from as usize].senders;
            if let Ok(place) = senders.binary_search_by_key(&to, |entry| entry.0) {
                senders[place].1.retain(|&other| other != flow);
                if senders[place].1.is_empty() {
                    senders.remove(place);
                }
            }
        }
        wire.finished(flow);
        let body = DcpimHeader { kind: Kind::Finished, flow, ..DcpimHeader::default() };
        self.control(wire, from, to, body);
    }

    /// Performs a step of the matching, for all hosts.
    fn step(&mut self, wire: &mut Wire<'_, DcpimHeader>) {
        let (step_ps, steps) = (self.config.step_ps(), self.config.steps());
        let ordinal = wire.now().0 / step_ps;
        let (phase, step) = ((ordinal / steps) as u32, ordinal % steps);
        if step == 0 {
            self.begin_phase(wire, phase);
            if self.in_matchings == 0 {
                self.is_running = false;
                return;
            }
        }
        let round = (step / 2) as u16;
        if step % 2 == 1 {
            for (sender, offer) in self.matching.grants(round) {
                self.offer(wire, Kind::Grant, sender, phase, round, offer);
            }
        } else {
            if step > 0 {
                for (receiver, offer) in self.matching.accepts(round - 1) {
                    self.offer(wire, Kind::Accept, receiver, phase, round - 1, offer);
                }
            }
            if u32::from(round) < self.config.rounds {
                self.request(wire, phase, round);
            }
        }
        wire.timer(wire.now().after(step_ps), 0, STEP);
    }

    fn offer(
        &mut self,
        wire: &mut Wire<'_, DcpimHeader>,
        kind: Kind,
        from: u32,
        phase: u32,
        round: u16,
        offer: Offer,
    ) {
        let Offer { peer, channels, left } = offer;
        let channels = channels as u16;
        let body = DcpimHeader { kind, number: left, phase, round, channels, flow: u32::MAX };
        self.control(wire, from, peer, body);
    }

    /// The number of packets that a channel carries in a phase.
    fn channel_packets(&self, wire: &Wire<'_, DcpimHeader>, host: u32) -> u64 {
        let packet_ps = self.packet_ps(wire, host);
        let phase_ps = self.config.step_ps() * self.config.steps();
        (phase_ps / packet_ps / u64::from(self.config.channels)).max(1)
    }

    fn packet_ps(&self, wire: &Wire<'_, DcpimHeader>, host: u32) -> u64 {
        let bits = u128::from(self.config.payload_bytes + self.config.header_bytes) * 8;
        let bits_per_s = wire.network.host_bits_per_s(HostIndex(host)).max(1);
        ((bits * u128::from(SEC) / u128::from(bits_per_s)) as u64).max(1)
    }

    /// Receivers request the channels that they need and have free.
    fn request(&mut self, wire: &mut Wire<'_, DcpimHeader>, phase: u32, round: u16) {
        for receiver in 0..self.receivers.len() as u32 {
            let free = self.matching.free_at_receiver(receiver);
            if free == 0 || self.receivers[receiver as usize].senders.is_empty() {
                continue;
            }
            let packets = self.channel_packets(wire, receiver);
            let mut requests = Vec::new();
            let r = &self.receivers[receiver as usize];
            for (sender, flows) in &r.senders {
                let left = |&flow: &u32| self.flows[flow as usize].missing;
                let all: u64 = flows.iter().map(|flow| u64::from(left(flow))).sum();
                let least = flows.iter().map(left).min().unwrap_or(0);
                let now: u32 =
                    r.links.iter().filter(|l| l.sender == *sender).map(|l| l.channels).sum();
                let has = now + self.matching.matched(receiver, *sender);
                let needs = all.div_ceil(packets).saturating_sub(u64::from(has));
                let channels = needs.min(u64::from(free)) as u32;
                if channels > 0 {
                    requests.push(Offer { peer: *sender, channels, left: least });
                }
            }
            for request in requests {
                self.offer(wire, Kind::Request, receiver, phase, round, request);
            }
        }
    }

    /// Begins a phase with the matching that was computed.
    fn begin_phase(&mut self, wire: &mut Wire<'_, DcpimHeader>, phase: u32) {
        self.counters.phases += 1;
        let matched = self.matching.take();
        for receiver in &mut self.receivers {
            receiver.links.clear();
        }
        for (receiver, sender, channels) in matched {
            self.counters.matched += u64::from(channels);
            let links = &mut self.receivers[receiver as usize].links;
            let link = links.len() as u32;
            links.push(Link { sender, channels });
            self.token(wire, receiver, phase, link);
        }
        let busy = self.receivers.iter().filter(|receiver| !receiver.senders.is_empty()).count();
        self.counters.possible += busy as u64 * u64::from(self.config.channels);
    }

    /// Sends a receiver's next token for a link.
    fn token(&mut self, wire: &mut Wire<'_, DcpimHeader>, receiver: u32, phase: u32, link: u32) {
        let r = &self.receivers[receiver as usize];
        let Some(&Link { sender, channels }) = r.links.get(link as usize) else { return };
        let full = u64::from(self.config.payload_bytes);
        let under_way_max = self.config.window_bytes.div_ceil(full).max(1);
        let flows = r.senders.binary_search_by_key(&sender, |entry| entry.0);
        let flows = flows.map(|place| r.senders[place].1.as_slice()).unwrap_or_default();
        let may = |flow: &&u32| {
            let f = &self.flows[**flow as usize];
            f.next_token < f.packets && u64::from(f.under_way) < under_way_max
        };
        let next =
            flows.iter().filter(may).min_by_key(|&&flow| (self.flows[flow as usize].missing, flow));
        if let Some(&flow) = next {
            let f = &mut self.flows[flow as usize];
            while f.next_token < f.packets && f.received.has(f.next_token) {
                f.next_token += 1;
            }
            if f.next_token < f.packets {
                let number = f.next_token;
                f.next_token += 1;
                f.under_way += 1;
                f.progress_at = wire.now();
                self.counters.tokens += 1;
                let body =
                    DcpimHeader { kind: Kind::Token, flow, number, ..DcpimHeader::default() };
                self.control(wire, receiver, sender, body);
            }
        }
        let gap_ps = self.packet_ps(wire, receiver) * u64::from(self.config.channels);
        let gap_ps = (gap_ps / u64::from(channels)).max(1);
        wire.timer(wire.now().after(gap_ps), receiver, TOKENS + phase % (1 << 20) * LINKS + link);
    }

    /// The phase at a time.
    fn phase(&self, now: Time) -> u32 {
        (now.0 / self.config.step_ps() / self.config.steps()) as u32
    }
}

impl Transport for Dcpim {
    type Header = DcpimHeader;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        let packets = spec.bytes.div_ceil(u64::from(self.config.payload_bytes)).max(1);
        assert!(packets < PACKETS_MAX, "a flow of 2^31 packets or more");
        let packets = packets as u32;
        self.flows.push(Flow {
            spec,
            packets,
            is_over: false,
            received: Numbers::default(),
            missing: packets,
            is_known: false,
            is_matched: false,
            next_token: 0,
            under_way: 0,
            progress_at: Time(0),
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32) {
        let f = &mut self.flows[flow as usize];
        f.received = Numbers::new(f.packets);
        let packets = f.packets;
        self.notify(wire, flow);
        if self.is_short(flow) {
            for number in 0..packets {
                self.data(wire, flow, number, self.config.classes[1]);
            }
        }
    }

    fn timer(&mut self, wire: &mut Wire<'_, DcpimHeader>, flow: u32, token: u32) {
        match token {
            STEP => self.step(wire),
            SENDER_LOOKS if self.flows[flow as usize].is_over => {}
            SENDER_LOOKS => self.notify(wire, flow),
            RECEIVER_LOOKS => self.look(wire, flow),
            _ => {
                let (phase, link) = ((token - TOKENS) / LINKS, (token - TOKENS) % LINKS);
                let now = self.phase(wire.now());
                if phase == now % (1 << 20) {
                    self.token(wire, flow, now, link);
                }
            }
        }
    }

    fn deliver(&mut self, wire: &mut Wire<'_, DcpimHeader>, packet: Packet<DcpimHeader>) {
        let (header, from, to) = (packet.body, packet.from.0, packet.to.0);
        let offer = Offer { peer: from, channels: header.channels.into(), left: header.number };
        let is_now = header.phase == self.phase(wire.now());
        match header.kind {
            Kind::Data => self.on_data(wire, header.flow, header.number),
            Kind::Notify => self.on_notify(wire, header.flow),
            Kind::Finished => self.flows[header.flow as usize].is_over = true,
            Kind::Token => self.data(wire, header.flow, header.number, self.config.classes[2]),
            Kind::Request if is_now => self.matching.on_request(to, header.round, offer),
            Kind::Grant if is_now => self.matching.on_grant(to, header.round, offer),
            Kind::Accept if is_now => self.matching.on_accept(to, offer),
            Kind::Request | Kind::Grant | Kind::Accept => {}
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

    fn number(header: &DcpimHeader) -> Option<u32> {
        (header.kind == Kind::Data).then_some(header.number)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        vec![
            ("data packets", c.data),
            ("data that came twice", c.again),
            ("tokens", c.tokens),
            ("control packets", c.control),
            ("phases", c.phases),
            ("channels matched", c.matched),
            ("channels of receivers with data to come", c.possible),
        ]
    }
}
