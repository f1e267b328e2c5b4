//! The common part of TCP-like transports: a window in bytes, cumulative acknowledgements, fast
//! recovery (RFC 6582), and a retransmission timer (RFC 6298). A [`Congestion`] decides how the
//! window changes: [`NewReno`](super::NewReno) and [`Dctcp`](super::Dctcp) have one file each.
//!
//! Left out: handshakes, delayed acknowledgements (each packet is acknowledged, so that marks are
//! echoed exactly), SACK, receive windows. Reordering looks like loss, so route by ECMP.

use std::collections::BTreeSet;

use super::packet::{Ecn, Packet};
use super::topology::HostIndex;
use super::transport::{FlowSpec, Transport, Wire, WireBytes};
use crate::engine::{MS, Time};

/// The number of duplicate acknowledgements that indicate a loss (RFC 5681).
const DUPLICATES_MAX: u32 = 3;
/// The maximum number of doublings of the timeout (RFC 6298 (5.5)).
const DOUBLINGS_MAX: u32 = 10;
/// The maximum length of a flow, in packets.
const PACKETS_MAX: u64 = 1 << 31;

/// The part of a TCP-like transport in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// The index of the flow.
    pub flow: u32,
    /// The number of a data packet; in an acknowledgement, the first number that is missing.
    pub number: u32,
    /// When the data packet left its sender, in ps; an acknowledgement echoes it (RFC 7323).
    pub sent_ps: u64,
    /// Whether this is an acknowledgement.
    pub is_ack: bool,
    /// In an acknowledgement: whether the data packet was marked.
    pub is_marked: bool,
}

/// The parameters of TCP-like transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// The payload of a full packet (MSS).
    pub payload_bytes: u32,
    /// The size of headers and framing of a packet on the wire.
    pub header_bytes: u32,
    /// The size of an acknowledgement on the wire.
    pub ack_bytes: u32,
    /// The initial window, in packets (RFC 6928: 10).
    pub first_window: u32,
    /// The maximum of the window, in bytes: the receiver's buffer.
    pub window_bytes_max: u64,
    /// The minimum retransmission timeout.
    pub timeout_ps_min: u64,
    /// The retransmission timeout before a round trip was measured.
    pub first_timeout_ps: u64,
    /// The priority of data packets and acknowledgements at every port.
    pub class: u8,
}

impl Default for TcpConfig {
    /// Ethernet frames of 1,538 bytes on the wire with 1,460 bytes of payload; timeouts as in data
    /// centers.
    fn default() -> TcpConfig {
        TcpConfig {
            payload_bytes: 1_460,
            header_bytes: 78,
            ack_bytes: 84,
            first_window: 10,
            window_bytes_max: 1 << 40,
            timeout_ps_min: 5 * MS,
            first_timeout_ps: 10 * MS,
            class: 1,
        }
    }
}

/// The window of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The bytes that may be in flight.
    pub bytes: u64,
    /// The window at which slow start ends, in bytes.
    pub threshold_bytes: u64,
    /// The payload of a full packet.
    pub packet_bytes: u64,
    /// The bytes acknowledged since the window last grew by a packet.
    counted_bytes: u64,
}

impl Window {
    fn new(config: &TcpConfig) -> Window {
        let packet_bytes = u64::from(config.payload_bytes);
        Window {
            bytes: packet_bytes * u64::from(config.first_window),
            threshold_bytes: u64::MAX,
            packet_bytes,
            counted_bytes: 0,
        }
    }

    /// Grows the window: slow start, or congestion avoidance by appropriate byte counting (RFC 5681
    /// §3.1, RFC 3465).
    pub fn grow(&mut self, acked_bytes: u64) {
        if self.bytes < self.threshold_bytes {
            self.bytes += acked_bytes;
            return;
        }
        self.counted_bytes += acked_bytes;
        if self.counted_bytes >= self.bytes {
            self.counted_bytes -= self.bytes;
            self.bytes += self.packet_bytes;
        }
    }

    /// Sets window and threshold, with a minimum of two packets.
    pub fn set(&mut self, bytes: u64) {
        self.threshold_bytes = bytes.max(2 * self.packet_bytes);
        self.bytes = self.threshold_bytes;
        self.counted_bytes = 0;
    }
}

/// An acknowledgement of new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// The bytes that it acknowledges for the first time.
    pub bytes: u64,
    /// Whether the packet that caused it was marked.
    pub is_marked: bool,
    /// Whether it acknowledges everything that was in flight when the last round began: the end of
    /// a round trip.
    pub ends_round: bool,
}

/// The reaction of a window to acknowledgements and losses.
pub trait Congestion: Clone {
    /// The name of the transport.
    const NAME: &'static str;
    /// The ECN field of its packets.
    const ECN: Ecn;

    /// Reacts to an acknowledgement of new data. While losses are repaired (`is_recovering`), the
    /// common part sets the window.
    fn on_acked(&mut self, window: &mut Window, acked: Acked, is_recovering: bool);

    /// The window after duplicate acknowledgements have indicated a loss, in bytes.
    fn after_loss(&mut self, window: &Window, in_flight_bytes: u64) -> u64;
}

/// Counts of what a TCP-like transport did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    data: u64,
    again: u64,
    recoveries: u64,
    timeouts: u64,
    marks: u64,
}

struct Sender {
    window: Window,
    /// Packets with lower numbers are acknowledged.
    acked: u32,
    /// The next number to send; a timeout sets it back.
    next: u32,
    /// Packets with lower numbers were sent at least once.
    sent: u32,
    duplicates: u32,
    /// While losses are repaired: the recovery ends once all packets with lower numbers are
    /// acknowledged.
    recovery: Option<u32>,
    /// Duplicates of packets that were sent before a timeout begin no recovery (RFC 6582 §4.1).
    no_recovery_below: u32,
    round_end: u32,
    srtt_ps: u64,
    variance_ps: u64,
    doublings: u32,
    /// When the oldest unacknowledged packet counts as lost.
    due: Time,
    is_timer_set: bool,
}

struct Receiver {
    /// Packets with lower numbers have arrived.
    next: u32,
    /// The packets with higher numbers that have arrived.
    ahead: BTreeSet<u32>,
}

struct Flow<C> {
    spec: FlowSpec,
    packets: u32,
    sender: Sender,
    congestion: C,
    receiver: Receiver,
}

/// The senders and receivers of all flows.
pub struct Tcp<C> {
    config: TcpConfig,
    congestion: C,
    flows: Vec<Flow<C>>,
    counters: Counters,
}

impl<C: Congestion> Tcp<C> {
    /// A transport without flows; each flow begins with a copy of `congestion`.
    #[must_use]
    pub fn new(config: TcpConfig, congestion: C) -> Tcp<C> {
        Tcp { config, congestion, flows: Vec::new(), counters: Counters::default() }
    }

    /// The window of a flow.
    #[must_use]
    pub fn window(&self, flow: u32) -> Window {
        self.flows[flow as usize].sender.window
    }

    /// The congestion state of a flow.
    #[must_use]
    pub fn congestion(&self, flow: u32) -> &C {
        &self.flows[flow as usize].congestion
    }

    fn payload(&self, f: &Flow<C>, number: u32) -> u32 {
        let before = u64::from(number) * u64::from(self.config.payload_bytes);
        let rest = f.spec.bytes.saturating_sub(before);
        rest.min(u64::from(self.config.payload_bytes)) as u32
    }

    fn send_packet(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32, number: u32) {
        let f = &self.flows[flow as usize];
        let size_bytes = self.payload(f, number) + self.config.header_bytes;
        let header =
            TcpHeader { flow, number, sent_ps: wire.now().0, is_ack: false, is_marked: false };
        wire.send(packet(f.spec.from, f.spec.to, size_bytes, C::ECN, self.config.class, header));
        let f = &mut self.flows[flow as usize];
        self.counters.data += 1;
        self.counters.again += u64::from(number < f.sender.sent);
        f.sender.sent = f.sender.sent.max(number + 1);
    }

    /// Sends the packets that the window allows.
    fn fill(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32) {
        loop {
            let f = &self.flows[flow as usize];
            let s = &f.sender;
            let bytes = s.window.bytes.min(self.config.window_bytes_max);
            let in_flight = u64::from(s.next - s.acked) * u64::from(self.config.payload_bytes);
            let fits = in_flight + u64::from(self.config.payload_bytes) <= bytes;
            // A window below one packet still sends one.
            if s.next >= f.packets || !(fits || s.next == s.acked) {
                break;
            }
            let number = s.next;
            self.flows[flow as usize].sender.next += 1;
            self.send_packet(wire, flow, number);
        }
        self.set_timer(wire, flow);
    }

    fn timeout_ps(&self, s: &Sender) -> u64 {
        let measured = match s.srtt_ps {
            0 => self.config.first_timeout_ps,
            srtt => srtt + 4 * s.variance_ps,
        };
        measured.max(self.config.timeout_ps_min) << s.doublings
    }

    /// Sets the timer of a flow. At most one timer event of a flow is pending; when it expires, it
    /// checks whether it is due.
    fn set_timer(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32) {
        let s = &mut self.flows[flow as usize].sender;
        if s.acked < s.next && !s.is_timer_set {
            s.is_timer_set = true;
            wire.timer(s.due.max(wire.now()), flow, 0);
        }
    }

    fn postpone(&mut self, now: Time, flow: u32) {
        let timeout_ps = self.timeout_ps(&self.flows[flow as usize].sender);
        self.flows[flow as usize].sender.due = now.after(timeout_ps);
    }

    fn on_data(&mut self, wire: &mut Wire<'_, TcpHeader>, data: &Packet<TcpHeader>) {
        let header = data.body;
        let f = &mut self.flows[header.flow as usize];
        let was_done = f.receiver.next == f.packets;
        f.receiver.insert(header.number);
        if !was_done && f.receiver.next == f.packets {
            wire.finished(header.flow);
        }
        let is_marked = data.ecn == Ecn::Marked;
        self.counters.marks += u64::from(is_marked);
        let echo = TcpHeader { number: f.receiver.next, is_ack: true, is_marked, ..header };
        let (bytes, class) = (self.config.ack_bytes, self.config.class);
        wire.send(packet(data.to, data.from, bytes, Ecn::Not, class, echo));
    }

    fn on_ack(&mut self, wire: &mut Wire<'_, TcpHeader>, header: TcpHeader) {
        let now = wire.now();
        let flow = header.flow;
        let payload_bytes = u64::from(self.config.payload_bytes);
        let f = &mut self.flows[flow as usize];
        let s = &mut f.sender;
        if header.number < s.acked || s.acked == f.packets {
            return;
        }
        if header.number == s.acked {
            return self.on_duplicate(wire, flow, header.is_marked);
        }
        s.measure(now.since(Time(header.sent_ps)));
        let bytes = u64::from(header.number - s.acked) * payload_bytes;
        s.acked = header.number;
        s.next = s.next.max(s.acked);
        s.duplicates = 0;
        s.doublings = 0;
        let ends_round = s.acked >= s.round_end;
        if ends_round {
            s.round_end = s.next;
        }
        let acked = Acked { bytes, is_marked: header.is_marked, ends_round };
        let is_recovering = s.recovery.is_some();
        f.congestion.on_acked(&mut s.window, acked, is_recovering);
        let mut again = None;
        match s.recovery {
            Some(end) if s.acked < end => {
                // RFC 6582 §3.2 step 3, a partial acknowledgement: resend the next hole.
                again = Some(s.acked);
                s.window.bytes = s.window.bytes.saturating_sub(bytes) + payload_bytes;
            }
            Some(_) => {
                s.recovery = None;
                s.window.bytes = s.window.threshold_bytes;
            }
            None => {}
        }
        self.postpone(now, flow);
        if let Some(number) = again {
            self.send_packet(wire, flow, number);
        }
        self.fill(wire, flow);
    }

    fn on_duplicate(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32, is_marked: bool) {
        let payload_bytes = u64::from(self.config.payload_bytes);
        let f = &mut self.flows[flow as usize];
        let s = &mut f.sender;
        let acked = Acked { bytes: 0, is_marked, ends_round: false };
        f.congestion.on_acked(&mut s.window, acked, s.recovery.is_some());
        s.duplicates += 1;
        if s.recovery.is_some() {
            s.window.bytes += payload_bytes;
            return self.fill(wire, flow);
        }
        if s.duplicates < DUPLICATES_MAX || s.acked < s.no_recovery_below {
            return;
        }
        let in_flight = u64::from(s.next - s.acked) * payload_bytes;
        let bytes = f.congestion.after_loss(&s.window, in_flight);
        s.window.set(bytes);
        s.window.bytes += u64::from(DUPLICATES_MAX) * payload_bytes;
        s.recovery = Some(s.next);
        let number = s.acked;
        self.counters.recoveries += 1;
        self.postpone(wire.now(), flow);
        self.send_packet(wire, flow, number);
        self.fill(wire, flow);
    }

    fn on_timeout(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32) {
        let payload_bytes = u64::from(self.config.payload_bytes);
        let s = &mut self.flows[flow as usize].sender;
        let in_flight = u64::from(s.next - s.acked) * payload_bytes;
        s.window.set(in_flight / 2);
        s.window.bytes = payload_bytes;
        s.recovery = None;
        s.duplicates = 0;
        s.no_recovery_below = s.sent;
        // Packets that the network still delivers are acknowledged, and not sent again.
        s.next = s.acked;
        s.round_end = s.next;
        s.doublings = (s.doublings + 1).min(DOUBLINGS_MAX);
        self.counters.timeouts += 1;
        self.postpone(wire.now(), flow);
        self.fill(wire, flow);
    }
}

impl Sender {
    fn new(config: &TcpConfig) -> Sender {
        Sender {
            window: Window::new(config),
            acked: 0,
            next: 0,
            sent: 0,
            duplicates: 0,
            recovery: None,
            no_recovery_below: 0,
            round_end: 0,
            srtt_ps: 0,
            variance_ps: 0,
            doublings: 0,
            due: Time(0),
            is_timer_set: false,
        }
    }

    /// Measures a round trip: RFC 6298 (2.2) and (2.3).
    fn measure(&mut self, rtt_ps: u64) {
        if self.srtt_ps == 0 {
            (self.srtt_ps, self.variance_ps) = (rtt_ps.max(1), rtt_ps / 2);
            return;
        }
        self.variance_ps = (3 * self.variance_ps + self.srtt_ps.abs_diff(rtt_ps)) / 4;
        self.srtt_ps = (7 * self.srtt_ps + rtt_ps) / 8;
    }
}

impl Receiver {
    fn insert(&mut self, number: u32) {
        if number > self.next {
            self.ahead.insert(number);
        }
        if number == self.next {
            self.next += 1;
            while self.ahead.remove(&self.next) {
                self.next += 1;
            }
        }
    }
}

fn packet(
    from: HostIndex,
    to: HostIndex,
    size_bytes: u32,
    ecn: Ecn,
    class: u8,
    body: TcpHeader,
) -> Packet<TcpHeader> {
    Packet { to, from, size_bytes, flow_label: body.flow, class, kind: 0, ecn, path: 0, body }
}

impl<C: Congestion> Transport for Tcp<C> {
    type Header = TcpHeader;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        let packets = spec.bytes.div_ceil(u64::from(self.config.payload_bytes)).max(1);
        assert!(packets < PACKETS_MAX, "a flow of 2^31 packets or more");
        self.flows.push(Flow {
            spec,
            packets: packets as u32,
            sender: Sender::new(&self.config),
            congestion: self.congestion.clone(),
            receiver: Receiver { next: 0, ahead: BTreeSet::new() },
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32) {
        self.postpone(wire.now(), flow);
        self.fill(wire, flow);
        let s = &mut self.flows[flow as usize].sender;
        s.round_end = s.next;
    }

    fn timer(&mut self, wire: &mut Wire<'_, TcpHeader>, flow: u32, _token: u32) {
        let s = &mut self.flows[flow as usize].sender;
        s.is_timer_set = false;
        if s.acked < s.next && s.due <= wire.now() {
            return self.on_timeout(wire, flow);
        }
        self.set_timer(wire, flow);
    }

    fn deliver(&mut self, wire: &mut Wire<'_, TcpHeader>, packet: Packet<TcpHeader>) {
        match packet.body.is_ack {
            true => self.on_ack(wire, packet.body),
            false => self.on_data(wire, &packet),
        }
    }

    fn wire_bytes(&self, bytes: u64) -> WireBytes {
        let payload_bytes = u64::from(self.config.payload_bytes);
        let packets = bytes.div_ceil(payload_bytes).max(1);
        let last = bytes - (packets - 1) * payload_bytes;
        WireBytes {
            all: bytes + packets * u64::from(self.config.header_bytes),
            last: last as u32 + self.config.header_bytes,
        }
    }

    fn received_bytes(&self, flow: u32) -> u64 {
        let f = &self.flows[flow as usize];
        let packets = u64::from(f.receiver.next) + f.receiver.ahead.len() as u64;
        (packets * u64::from(self.config.payload_bytes)).min(f.spec.bytes)
    }

    fn number(header: &TcpHeader) -> Option<u32> {
        (!header.is_ack).then_some(header.number)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        vec![
            ("data packets", c.data),
            ("sent again", c.again),
            ("fast recoveries", c.recoveries),
            ("timeouts", c.timeouts),
            ("marked packets", c.marks),
        ]
    }
}
