//! Measures the Harmonia program without sockets, in nanoseconds per packet: 5% writes, their
//! completions, and reads, uniform over 1 M objects, in the default layout; by itself, and in its
//! seat.
//!
//! `cargo run --release -p concord-switch --example bench`

use std::time::Instant;

use concord_core::{
    Incarnation, Machine, Now, ObjectId, RequestNumber, Rng, Seq, SessionId, SwitchId,
};
use concord_pisa::Verdict;
use concord_switch::{
    Agent, AgentConfig, Counters, Harmonia, Ingress, Layout, Load as _, LoadError, PortTable,
    SwitchProgram as _,
};
use concord_wire::control::{Config, Member, Membership, Message as _, Program, Protocol};
use concord_wire::rpc::HEADER_BYTES;
use concord_wire::{Addr, Flags, GroupId, Op, Repr, Sink};

const OBJECTS: u64 = 1_000_000;
/// Writes in flight: Harmonia §7.2 assumes 1 ms per write; this corresponds to 1 M writes/s.
const IN_FLIGHT: usize = 1_000;
const REQUESTS: usize = 1_000_000;
const RUNS: usize = 11;
/// Packets in a timed batch. A batch is short compared to a scheduler's time slice, so that the
/// median over batches is the program's time even where other processes use the cores; the mean is
/// not.
const BATCH: usize = 1_000;
/// The target in ns per packet.
const TARGET_NS: f64 = 150.0;
const BODY: &[u8; 36] = b"a key of 16 byte a value of 16 bytes";

type Datagram = [u8; HEADER_BYTES + BODY.len()];

fn datagram(hdr: &Repr) -> Datagram {
    let mut bytes = [0; HEADER_BYTES + BODY.len()];
    bytes[..HEADER_BYTES].copy_from_slice(&hdr.header(BODY.len() as u16));
    bytes[HEADER_BYTES..].copy_from_slice(BODY);
    bytes
}

/// The packets of one run in the order of their arrival. The numbers that the switch will give are
/// known beforehand, since nothing is dropped: the completions carry them. `given` is the number of
/// those given before.
fn trace(rng: &mut Rng, switch_id: SwitchId, given: u32) -> Vec<Datagram> {
    let client = Addr { ip: 0x7f00_0001, port: 9000 };
    let mut packets = Vec::with_capacity(REQUESTS + REQUESTS / 16);
    let mut writes: Vec<ObjectId> = Vec::new();
    for i in 0..REQUESTS {
        let obj_id = ObjectId((rng.below(OBJECTS) as u32).wrapping_mul(0x9e37_79b1));
        let request = RequestNumber(i as u64);
        let session = SessionId(rng.below(64));
        let op = if rng.chance(5, 100) { Op::Write } else { Op::Read };
        packets.push(datagram(&Repr { obj_id, request, session, client, ..Repr::new(op) }));
        if op == Op::Read {
            continue;
        }
        writes.push(obj_id);
        if let Some(completed) = writes.len().checked_sub(IN_FLIGHT) {
            packets.push(datagram(&Repr {
                flags: Flags::COMPLETION,
                obj_id: writes[completed],
                seq: Seq::new(switch_id, given + completed as u32 + 1),
                client,
                ..Repr::new(Op::WriteReply)
            }));
        }
    }
    packets
}

fn addr(node: u16) -> Addr {
    Addr { ip: 0x7f00_0001, port: 7000 + node }
}

fn config(run: u32) -> Config {
    let member = |node| Member { node, incarnation: 1, addr: addr(node) };
    Config {
        epoch: run,
        group: GroupId(0),
        rack: 1,
        switch_id: run,
        switch_incarnation: 1,
        switch: addr(0),
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: (1..=3).map(member).collect(),
        joining: Vec::new(),
    }
}

/// The subject of a measurement: the program by itself, or in its seat.
trait Measured {
    fn forwards(&mut self, packet: &mut Datagram) -> bool;
    fn counters(&self) -> &Counters;
}

impl Measured for Harmonia {
    fn forwards(&mut self, packet: &mut Datagram) -> bool {
        let ports = PortTable::default();
        let ingress = Ingress::first(Now::default(), addr(9), &ports);
        matches!(self.process(&ingress, packet), Verdict::Forward { .. })
    }

    fn counters(&self) -> &Counters {
        self.store().counters()
    }
}

/// A sink that sends nowhere.
struct Nowhere(usize);

impl Sink for Nowhere {
    fn send(&mut self, _: Addr, _: &[u8]) {
        self.0 += 1;
    }
}

impl Measured for Agent {
    fn forwards(&mut self, packet: &mut Datagram) -> bool {
        let mut sink = Nowhere(0);
        self.handle(Now::default(), addr(9), packet, &mut sink);
        sink.0 == 1
    }

    fn counters(&self) -> &Counters {
        self.program().store().counters()
    }
}

fn batch_ns(measured: &mut impl Measured, batch: &mut [Datagram]) -> f64 {
    let begin = Instant::now();
    let mut forwarded = 0;
    for packet in &mut *batch {
        forwarded += usize::from(measured.forwards(packet));
    }
    let ns = begin.elapsed().as_nanos() as f64;
    assert_eq!(forwarded, batch.len(), "every packet passes");
    ns
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of the medians of several runs. `configured` makes the subject, with empty registers,
/// and returns the number of sequence numbers that it has given.
fn measure<M: Measured>(
    name: &str,
    mut measured: M,
    configure: impl Fn(&mut M, u32) -> u32,
) -> f64 {
    let mut rng = Rng::new(1);
    let mut medians = Vec::new();
    for run in 1..=RUNS as u32 {
        let given = configure(&mut measured, run);
        let mut packets = trace(&mut rng, SwitchId(run), given);
        let begin = Instant::now();
        let mut batches: Vec<f64> = Vec::with_capacity(packets.len() / BATCH + 1);
        for batch in packets.chunks_exact_mut(BATCH) {
            batches.push(batch_ns(&mut measured, batch) / BATCH as f64);
        }
        let mean = begin.elapsed().as_nanos() as f64 / (batches.len() * BATCH) as f64;
        let median = median(&mut batches);
        println!(
            "{name}, run {run:>2}: {median:6.1} ns a packet (mean by the wall clock {mean:.1})"
        );
        medians.push(median);
    }
    let c = measured.counters();
    println!("fast {} dirty {} writes {}", c.reads_fast, c.reads_slow_dirty, c.writes_tracked);
    median(&mut medians)
}

fn main() -> Result<(), LoadError> {
    let mut seated = AgentConfig::new(Incarnation(1), addr(0), addr(8));
    seated.sections.table.layout = Layout::DEFAULT;
    let program = measure("program", Harmonia::load(&seated.settings())?, |program, run| {
        // The first no-op is not sent.
        let _ = program.install(Now::default(), &config(run));
        0
    });
    let agent = measure("in its seat", Agent::new(seated)?, |agent, run| {
        let mut bytes = Vec::new();
        Membership::Configure(config(run).into()).emit(&mut bytes);
        agent.handle(Now::default(), addr(8), &mut bytes, &mut Nowhere(0));
        1
    });
    let met = if program <= TARGET_NS { "met" } else { "missed" };
    println!(
        "median {program:.1} ns a packet, target {TARGET_NS} ns: {met}; in its seat {agent:.1} ns"
    );
    Ok(())
}
