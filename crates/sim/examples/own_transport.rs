//! A transport of one's own: a window that grows while round trips are short and shrinks while they
//! are long, beside DCTCP in an incast. docs/guides/write-your-own.md goes through it.

use concord_sim::engine::{MS, SEC, Time, US};
use concord_sim::net::{
    Dctcp, Ecn, Experiment, FlowSpec, HostIndex, LinkSpec, Marking, Outcome, Packet, QueueSpec,
    Routing, Slowdowns, Tcp, TcpConfig, Topology, Transport, Wire, WireBytes, workload,
};

/// Bytes on the wire of a packet and of an acknowledgement; payload of a packet.
const PACKET_BYTES: u32 = 1_538;
const ACK_BYTES: u32 = 84;
const PAYLOAD_BYTES: u64 = 1_460;
/// Without an acknowledgement for so long everything unacknowledged is sent again.
const TIMEOUT_PS: u64 = MS;

/// What a packet carries; an acknowledgement has the rest of the packet that it acknowledges.
#[derive(Clone, Copy)]
struct Header {
    flow: u32,
    number: u32,
    sent_at: Time,
    is_ack: bool,
}

/// A flow's sender and receiver.
struct Flow {
    spec: FlowSpec,
    /// In 1/1,000 packets.
    window: u64,
    next: u32,
    in_flight: u32,
    acked: Vec<bool>,
    progress_at: Time,
    cut_at: Time,
    received: Vec<bool>,
    missing: u32,
}

/// All flows; round trips are to take `target_ps`.
struct DelayBased {
    target_ps: u64,
    flows: Vec<Flow>,
}

impl DelayBased {
    /// Sends what the window allows.
    fn fill(&mut self, wire: &mut Wire<'_, Header>, flow: u32) {
        let f = &mut self.flows[flow as usize];
        while u64::from(f.in_flight) < (f.window / 1_000).max(1) {
            while f.acked.get(f.next as usize) == Some(&true) {
                f.next += 1;
            }
            if f.next as usize == f.acked.len() {
                return;
            }
            let body = Header { flow, number: f.next, sent_at: wire.now(), is_ack: false };
            wire.send(packet(f.spec.from, f.spec.to, PACKET_BYTES, body));
            f.next += 1;
            f.in_flight += 1;
        }
    }

    fn on_ack(&mut self, wire: &mut Wire<'_, Header>, header: Header) {
        let (now, target_ps) = (wire.now(), self.target_ps);
        let f = &mut self.flows[header.flow as usize];
        f.acked[header.number as usize] = true;
        f.in_flight = f.in_flight.saturating_sub(1);
        f.progress_at = now;
        let round_trip_ps = now.since(header.sent_at);
        if round_trip_ps <= target_ps {
            f.window += 1_000_000 / f.window.max(1_000);
        } else if header.sent_at >= f.cut_at {
            // Once a round trip, by as much as it was too long, at most by half.
            let keep = (1_000 * target_ps / round_trip_ps).max(500);
            f.window = (f.window * keep / 1_000).max(1_000);
            f.cut_at = now;
        }
        self.fill(wire, header.flow);
    }
}

fn packet(from: HostIndex, to: HostIndex, size_bytes: u32, body: Header) -> Packet<Header> {
    let (flow_label, class, kind, ecn, path) = (body.flow, 1, 0, Ecn::Not, 0);
    Packet { from, to, size_bytes, flow_label, class, kind, ecn, path, body }
}

impl Transport for DelayBased {
    type Header = Header;

    fn add_flow(&mut self, spec: FlowSpec) -> u32 {
        let packets = spec.bytes.div_ceil(PAYLOAD_BYTES).max(1) as u32;
        let none = vec![false; packets as usize];
        self.flows.push(Flow {
            spec,
            window: 10_000,
            next: 0,
            in_flight: 0,
            acked: none.clone(),
            progress_at: Time(0),
            cut_at: Time(0),
            received: none,
            missing: packets,
        });
        self.flows.len() as u32 - 1
    }

    fn start(&mut self, wire: &mut Wire<'_, Header>, flow: u32) {
        self.flows[flow as usize].progress_at = wire.now();
        self.fill(wire, flow);
        wire.timer(wire.now().after(TIMEOUT_PS), flow, 0);
    }

    fn timer(&mut self, wire: &mut Wire<'_, Header>, flow: u32, token: u32) {
        let now = wire.now();
        let f = &mut self.flows[flow as usize];
        if !f.acked.contains(&false) {
            return;
        }
        if f.progress_at.after(TIMEOUT_PS) <= now {
            (f.next, f.in_flight, f.window, f.progress_at) = (0, 0, 1_000, now);
            self.fill(wire, flow);
        }
        wire.timer(now.after(TIMEOUT_PS), flow, token);
    }

    fn deliver(&mut self, wire: &mut Wire<'_, Header>, data: Packet<Header>) {
        let header = data.body;
        if header.is_ack {
            return self.on_ack(wire, header);
        }
        let f = &mut self.flows[header.flow as usize];
        if !std::mem::replace(&mut f.received[header.number as usize], true) {
            f.missing -= 1;
            if f.missing == 0 {
                wire.finished(header.flow);
            }
        }
        wire.send(packet(data.to, data.from, ACK_BYTES, Header { is_ack: true, ..header }));
    }

    fn wire_bytes(&self, bytes: u64) -> WireBytes {
        let packets = bytes.div_ceil(PAYLOAD_BYTES).max(1);
        WireBytes { all: packets * u64::from(PACKET_BYTES), last: PACKET_BYTES }
    }

    fn received_bytes(&self, flow: u32) -> u64 {
        let f = &self.flows[flow as usize];
        ((f.received.len() as u64 - u64::from(f.missing)) * PAYLOAD_BYTES).min(f.spec.bytes)
    }

    fn number(header: &Header) -> Option<u32> {
        (!header.is_ack).then_some(header.number)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Sixteen hosts of a rack send 1 MB each to another one.
fn incast<T: Transport>(transport: &mut T) -> Result<(Outcome, Slowdowns), String> {
    let link =
        LinkSpec { bits_per_s: 10_000_000_000, propagation_ps: US, queue_bytes_max: 400_000 };
    let mut rng = concord_core::Rng::new(1);
    let experiment = Experiment {
        topology: Topology::single_rack(17, link, US / 2),
        routing: Routing::Ecmp,
        queues: QueueSpec { marking: Some(Marking::at(30_000)), ..QueueSpec::default() },
        flows: workload::incast(17, 16, 1_000_000, &mut rng).map_err(|e| e.to_string())?,
        triggers: Vec::new(),
        warm_up: Time(0),
        measure_until: Time(SEC),
        until: Time(SEC),
        watch: None,
        capture: Vec::new(),
        seed: 1,
    };
    let outcome = experiment.run(transport).map_err(|e| e.to_string())?;
    let slowdowns = Slowdowns::of(&experiment, &outcome, 0..=u64::MAX);
    Ok((outcome, slowdowns))
}

fn main() -> Result<(), String> {
    let mut own = DelayBased { target_ps: 30 * US, flows: Vec::new() };
    let mut dctcp = Tcp::new(TcpConfig::default(), Dctcp::default());
    for (name, (outcome, s)) in [("own", incast(&mut own)?), ("dctcp", incast(&mut dctcp)?)] {
        let most = outcome.ports.iter().map(|p| p.queue.waiting_bytes_max).max();
        println!("{name}: slowdown p50 {:.2}, max {:.2}; most queued {most:?}", s.p50, s.max);
    }
    Ok(())
}

/// Every flow ends, soon after the receiver's link has carried all of them.
#[test]
fn every_flow_ends() {
    let mut own = DelayBased { target_ps: 30 * US, flows: Vec::new() };
    let (outcome, slowdowns) = incast(&mut own).expect("an experiment");
    assert!(outcome.unfinished() == 0 && slowdowns.max < 30.0, "{slowdowns:?}");
}
