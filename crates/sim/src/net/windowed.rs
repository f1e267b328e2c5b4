//! A plain windowed transport: a fixed number of packets in flight, an acknowledgement for each,
//! and retransmission of everything unacknowledged after a time without progress. It has no
//! congestion control: it is the load for measuring the simulator, and the simplest example of a
//! transport.

use super::numbers::Numbers;
use super::packet::Packet;
use super::topology::HostIndex;
use super::transport::{FlowSpec, Transport, Wire, WireBytes};
use crate::engine::Time;

/// The part of the transport in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The index of the flow.
    pub flow: u32,
    /// The packet's number in its flow, with [`ACK`] set in an acknowledgement of it.
    number: u32,
}

const ACK: u32 = 1 << 31;

/// The parameters of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowedConfig {
    /// The number of packets of a flow that are in flight.
    pub window: u32,
    /// The size of a data packet on the wire.
    pub data_bytes: u32,
    /// The size of an acknowledgement on the wire.
    pub ack_bytes: u32,
    /// The time without progress after which every unacknowledged packet is sent again.
    pub timeout_ps: u64,
}

/// Counts of what the transport did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowedCounters {
    /// Data packets sent, first transmissions and retransmissions.
    pub data: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// Data packets that had arrived before.
    pub duplicates: u64,
    /// Timeouts that caused retransmissions.
    pub timeouts: u64,
}

struct Flow {
    from: HostIndex,
    to: HostIndex,
    packets: u32,
    bytes: u64,
    began: Time,
    // The sender's part.
    /// Packets with lower numbers were sent at least once.
    fresh: u32,
    /// Unacknowledged packets in `again..again_end` are sent again, before a fresh one.
    again: u32,
    again_end: u32,
    in_flight: u32,
    acked: Numbers,
    unacked: u32,
    progress_at: Time,
    // At the receiver.
    received: Numbers,
    missing: u32,
    done_at: Option<Time>,
}

impl Flow {
    fn next_number(&mut self) -> Option<u32> {
        while self.again < self.again_end {
            let number = self.again;
            self.again += 1;
            if !self.acked.has(number) {
                return Some(number);
            }
        }
        let number = self.fresh;
        (number < self.packets).then(|| {
            self.fresh += 1;
            number
        })
    }
}

/// The senders and receivers of all flows.
pub struct Windowed {
    config: WindowedConfig,
    flows: Vec<Flow>,
    unfinished: usize,
    counters: WindowedCounters,
}

impl Windowed {
    /// A transport without flows.
    #[must_use]
    pub fn new(config: WindowedConfig) -> Windowed {
        Windowed { config, flows: Vec::new(), unfinished: 0, counters: WindowedCounters::default() }
    }

    /// The number of flows that are not completely received.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// The counters so far.
    #[must_use]
    pub fn done(&self) -> WindowedCounters {
        self.counters
    }

    /// Completion times in ps, in the order of the flows: from a flow's start until its receiver
    /// has every packet.
    pub fn completion_ps(&self) -> impl Iterator<Item = Option<u64>> {
        self.flows.iter().map(|f| f.done_at.map(|done| done.since(f.began)))
    }

    /// Sends the packets that the window allows.
    #[inline]
    fn fill(&mut self, wire: &mut Wire<'_, Segment>, flow: u32) {
        let f = &mut self.flows[flow as usize];
        while f.in_flight < self.config.window {
            let Some(number) = f.next_number() else { return };
            f.in_flight += 1;
            self.counters.data += 1;
            let body = Segment { flow, number };
            wire.send(Packet::new(f.from, f.to, self.config.data_bytes, flow, 0, body));
        }
    }
}

impl Transport for Windowed {
    type Header = Segment;

    /// Adds a flow, whose length is rounded up to full packets.
    fn add_flow(&mut self, flow: FlowSpec) -> u32 {
        let packets = flow.bytes.div_ceil(u64::from(self.config.data_bytes)).max(1);
        assert!(packets < u64::from(ACK), "a flow of 2^31 packets or more");
        let packets = packets as u32;
        self.unfinished += 1;
        self.flows.push(Flow {
            from: flow.from,
            to: flow.to,
            packets,
            bytes: flow.bytes,
            began: Time(0),
            fresh: 0,
            again: 0,
            again_end: 0,
            in_flight: 0,
            acked: Numbers::new(packets),
            unacked: packets,
            progress_at: Time(0),
            received: Numbers::new(packets),
            missing: packets,
            done_at: None,
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, Segment>, flow: u32) {
        let now = wire.now();
        let f = &mut self.flows[flow as usize];
        (f.began, f.progress_at) = (now, now);
        self.fill(wire, flow);
        wire.timer(now.after(self.config.timeout_ps), flow, 0);
    }

    /// Checks whether the flow makes progress.
    fn timer(&mut self, wire: &mut Wire<'_, Segment>, flow: u32, _token: u32) {
        let timeout_ps = self.config.timeout_ps;
        let now = wire.now();
        let f = &mut self.flows[flow as usize];
        if f.unacked == 0 {
            return;
        }
        let due = f.progress_at.after(timeout_ps);
        if due > now {
            return wire.timer(due, flow, 0);
        }
        f.progress_at = now;
        f.in_flight = 0;
        (f.again, f.again_end) = (0, f.fresh);
        self.counters.timeouts += 1;
        self.fill(wire, flow);
        wire.timer(now.after(timeout_ps), flow, 0);
    }

    #[inline]
    fn deliver(&mut self, wire: &mut Wire<'_, Segment>, packet: Packet<Segment>) {
        let Segment { flow, number } = packet.body;
        let f = &mut self.flows[flow as usize];
        if number & ACK != 0 {
            f.in_flight = f.in_flight.saturating_sub(1);
            if f.acked.insert(number & !ACK) {
                f.unacked -= 1;
                f.progress_at = wire.now();
            }
            self.fill(wire, flow);
            return;
        }
        if f.received.insert(number) {
            f.missing -= 1;
            if f.missing == 0 {
                f.done_at = Some(wire.now());
                self.unfinished -= 1;
                wire.finished(flow);
            }
        } else {
            self.counters.duplicates += 1;
        }
        self.counters.acks += 1;
        let ack = Packet {
            to: packet.from,
            from: packet.to,
            size_bytes: self.config.ack_bytes,
            body: Segment { flow, number: number | ACK },
            ..packet
        };
        wire.send(ack);
    }

    fn wire_bytes(&self, bytes: u64) -> WireBytes {
        let packets = bytes.div_ceil(u64::from(self.config.data_bytes)).max(1);
        let last = self.config.data_bytes;
        WireBytes { all: packets * u64::from(last), last }
    }

    fn received_bytes(&self, flow: u32) -> u64 {
        let f = &self.flows[flow as usize];
        let packets = u64::from(f.packets - f.missing);
        if f.missing == 0 { f.bytes } else { packets * u64::from(self.config.data_bytes) }
    }

    fn number(header: &Segment) -> Option<u32> {
        (header.number & ACK == 0).then_some(header.number)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        vec![
            ("data packets", c.data),
            ("acknowledgements", c.acks),
            ("duplicates", c.duplicates),
            ("timeouts", c.timeouts),
        ]
    }
}
