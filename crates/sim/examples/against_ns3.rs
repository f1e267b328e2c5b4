//! The simulator beside ns-3 on a dumbbell; scripts/ns3/README.md says how to run both.
//!
//! `against_ns3 trace [PAYLOAD] > TRACE` draws the load: lines of time in ps, sender, receiver,
//! payload; of random size if none is given.
//! `against_ns3 compare TRACE ARRIVALS QUEUE_BYTES` runs it, and compares with what ns-3 printed:
//! lines of index in the trace and arrival in ps.

use std::error::Error;
use std::fmt::Write as _;

use concord_core::Rng;
use concord_sim::engine::{EventQueue, NS, SEC, Time};
use concord_sim::net::{
    Ecn, HostIndex, LinkSpec, NetEvent, Network, NodeIndex, Packet, Routing, Topology,
};

/// Senders on the left switch, and receivers on the right one.
const PAIRS: u32 = 8;
const BITS_PER_S: u64 = 10_000_000_000;
const PROPAGATION_PS: u64 = 1_000 * NS;
const PACKETS: usize = 200_000;
/// UDP, IP and PPP headers: what ns-3 puts on its point-to-point links.
const HEADER_BYTES: u32 = 8 + 20 + 2;
/// Far more than this load needs.
const UNBOUNDED_BYTES: u64 = 1_000_000_000;

struct Line {
    at: Time,
    sender: u32,
    receiver: u32,
    payload_bytes: u32,
}

impl Line {
    fn wire_bytes(&self) -> u32 {
        self.payload_bytes + HEADER_BYTES
    }

    /// From host to host through three idle links.
    fn idle_ps(&self) -> u64 {
        3 * (u64::from(self.wire_bytes()) * 8 * SEC / BITS_PER_S + PROPAGATION_PS)
    }
}

/// Bursts of 1 to 8 packets from one sender, 0.9 of the bottleneck in the mean.
fn draw(payload: Option<u32>) -> Vec<Line> {
    let mut rng = Rng::new(1);
    let (mut lines, mut at) = (Vec::new(), Time(0));
    while lines.len() < PACKETS {
        let burst = rng.between(1, 8);
        let sender = rng.below(u64::from(PAIRS)) as u32;
        let mut work_ps = 0;
        for _ in 0..burst {
            let receiver = rng.below(u64::from(PAIRS)) as u32;
            let payload_bytes = payload.unwrap_or(rng.between(34, 1_470) as u32);
            let line = Line { at, sender, receiver, payload_bytes };
            work_ps += u64::from(line.wire_bytes()) * 8 * SEC / BITS_PER_S;
            lines.push(line);
        }
        // Uniform in 0 to twice the mean.
        at = at.after(rng.below(2 * work_ps * 10 / 9));
    }
    lines
}

fn parse(text: &str) -> Result<Vec<Line>, Box<dyn Error>> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let fields = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let &[at, sender, receiver, payload] = fields.as_slice() else {
            return Err(format!("no line of a trace: {line}").into());
        };
        lines.push(Line {
            at: Time(at),
            sender: sender as u32,
            receiver: receiver as u32,
            payload_bytes: payload as u32,
        });
    }
    Ok(lines)
}

/// Arrival of each packet, if it arrived.
fn simulate(trace: &[Line], queue_bytes_max: u64) -> Result<Vec<Option<u64>>, Box<dyn Error>> {
    let link = LinkSpec { bits_per_s: BITS_PER_S, propagation_ps: PROPAGATION_PS, queue_bytes_max };
    let mut topology = Topology::new(2 * PAIRS);
    let (left, right) = (topology.add_switch(0), topology.add_switch(0));
    for host in 0..2 * PAIRS {
        let switch = if host < PAIRS { left } else { right };
        topology.connect(NodeIndex(host), switch, link);
    }
    topology.connect(left, right, link);
    let mut network = Network::new(&topology, Routing::Ecmp, 1)?;
    let mut queue: EventQueue<NetEvent<usize>> = EventQueue::new();
    let mut arrivals = vec![None; trace.len()];
    // Below class 0 a buffer is what ns-3's is: it does not count the packet on the wire.
    let class = u8::from(queue_bytes_max < UNBOUNDED_BYTES);
    let mut pump = |queue: &mut EventQueue<_>, network: &mut Network<_>, until| {
        while let Some((now, event)) = queue.next_until(until) {
            if let Some(delivery) = network.handle(queue, event) {
                arrivals[delivery.packet.body] = Some(now.0);
            }
        }
    };
    for (index, line) in trace.iter().enumerate() {
        pump(&mut queue, &mut network, line.at);
        let packet = Packet {
            to: HostIndex(PAIRS + line.receiver),
            from: HostIndex(line.sender),
            size_bytes: line.wire_bytes(),
            flow_label: 0,
            class,
            kind: 0,
            ecn: Ecn::Not,
            path: 0,
            body: index,
        };
        network.send(&mut queue, packet);
    }
    pump(&mut queue, &mut network, Time::NEVER);
    Ok(arrivals)
}

fn print(name: &str, trace: &[Line], arrivals: &[Option<u64>]) {
    let waits = trace.iter().zip(arrivals);
    let mut waits: Vec<u64> = waits
        .filter_map(|(line, at)| Some((*at)?.saturating_sub(line.at.0 + line.idle_ps())))
        .collect();
    waits.sort_unstable();
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] as f64 / NS as f64;
    let dropped = arrivals.len() - waits.len();
    let last = arrivals.iter().flatten().max().copied().unwrap_or(0);
    println!(
        "{name:8} dropped {dropped:6}  queueing in ns: mean {:.3} median {:.3} p99 {:.3} max {:.3}  \
         last arrival {last} ps",
        mean / NS as f64,
        at(0.5),
        at(0.99),
        at(1.0),
    );
}

fn compare(trace: &str, arrivals: &str, queue_bytes: &str) -> Result<(), Box<dyn Error>> {
    let trace = parse(&std::fs::read_to_string(trace)?)?;
    let mut theirs = vec![None; trace.len()];
    for line in std::fs::read_to_string(arrivals)?.lines() {
        let (index, at) = line.split_once(' ').ok_or("no line of arrivals")?;
        *theirs.get_mut(index.parse::<usize>()?).ok_or("no such packet")? = Some(at.parse()?);
    }
    let ours = simulate(&trace, queue_bytes.parse()?)?;
    print("ns-3", &trace, &theirs);
    print("concord", &trace, &ours);
    let both = ours.iter().zip(&theirs);
    let differ = both.clone().filter(|(a, b)| a.is_some() != b.is_some()).count();
    let apart = both.filter_map(|(a, b)| Some((*a)?.abs_diff((*b)?)));
    let equal = apart.clone().filter(|&d| d == 0).count();
    println!(
        "{equal} packets arrive at the same ps in both, the others at most {} ps apart; \
         {differ} arrive in one only",
        apart.max().unwrap_or(0)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["trace", payload @ ..] => {
            let payload = payload.first().map(|p| p.parse()).transpose()?;
            let mut text = String::new();
            for Line { at, sender, receiver, payload_bytes } in draw(payload) {
                writeln!(text, "{} {sender} {receiver} {payload_bytes}", at.0)?;
            }
            print!("{text}");
            Ok(())
        }
        ["compare", trace, arrivals, queue_bytes] => compare(trace, arrivals, queue_bytes),
        _ => {
            Err("against_ns3 trace [PAYLOAD] | against_ns3 compare TRACE ARRIVALS QUEUE_BYTES"
                .into())
        }
    }
}
