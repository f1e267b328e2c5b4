//! Nanoseconds a packet of the Harmonia program, without sockets: 5% writes, their completions,
//! and reads, uniform over 1 M objects, in the default layout.
//!
//! `cargo run --release -p concord-switch --example bench`

use std::time::Instant;

use concord_core::{Guards, ObjectId, RequestNumber, Rng, Seq, SessionId, SwitchId};
use concord_pisa::Verdict;
use concord_switch::{ConfigError, Harmonia, Layout, Tables};
use concord_wire::rpc::HEADER_BYTES;
use concord_wire::{Addr, Flags, Op, Repr};

const OBJECTS: u64 = 1_000_000;
/// Writes in flight: Harmonia §7.2 counts on 1 ms a write; this is 1 M writes/s of them.
const IN_FLIGHT: usize = 1_000;
const REQUESTS: usize = 1_000_000;
const RUNS: usize = 11;
/// Packets timed at once. Short against a scheduler's time slice, so that the median over batches
/// is the program's time even where other processes want the cores; the mean is not.
const BATCH: usize = 1_000;
/// What the issue asks for.
const TARGET_NS: f64 = 150.0;
const BODY: &[u8; 36] = b"a key of 16 byte a value of 16 bytes";

type Datagram = [u8; HEADER_BYTES + BODY.len()];

fn datagram(hdr: &Repr) -> Datagram {
    let mut bytes = [0; HEADER_BYTES + BODY.len()];
    bytes[..HEADER_BYTES].copy_from_slice(&hdr.header(BODY.len() as u16));
    bytes[HEADER_BYTES..].copy_from_slice(BODY);
    bytes
}

/// The packets of one run in the order of their arrival. The numbers that the switch will give
/// are known beforehand, since nothing is dropped: the completions carry them.
fn trace(rng: &mut Rng, switch_id: SwitchId) -> Vec<Datagram> {
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
                seq: Seq::new(switch_id, completed as u32 + 1),
                client,
                ..Repr::new(Op::WriteReply)
            }));
        }
    }
    packets
}

fn batch_ns(program: &mut Harmonia, batch: &mut [Datagram]) -> f64 {
    let begin = Instant::now();
    let mut forwarded = 0;
    for packet in &mut *batch {
        forwarded += usize::from(matches!(program.process(packet), Verdict::Forward { .. }));
    }
    let ns = begin.elapsed().as_nanos() as f64;
    assert_eq!(forwarded, batch.len(), "every packet passes");
    ns
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), ConfigError> {
    let mut rng = Rng::new(1);
    let mut medians = Vec::new();
    let mut program = Harmonia::new(Layout::DEFAULT, Guards::ALL)?;
    for run in 1..=RUNS as u32 {
        let addr = |node: u16| Addr { ip: 0x7f00_0001, port: 7000 + node };
        program.install(Tables {
            switch_id: SwitchId(run),
            switch: addr(0),
            accelerated: true,
            sequenced: false,
            head: addr(1),
            reader: addr(3),
            spread_reads: false,
            replicas: (1..=3).map(|node| (node, addr(node))).collect(),
        });
        let mut packets = trace(&mut rng, SwitchId(run));
        let begin = Instant::now();
        let mut batches: Vec<f64> = Vec::with_capacity(packets.len() / BATCH + 1);
        for batch in packets.chunks_exact_mut(BATCH) {
            batches.push(batch_ns(&mut program, batch) / BATCH as f64);
        }
        let mean = begin.elapsed().as_nanos() as f64 / (batches.len() * BATCH) as f64;
        let median = median(&mut batches);
        println!("run {run:>2}: {median:6.1} ns a packet (mean by the wall clock {mean:.1})");
        medians.push(median);
    }
    let median = median(&mut medians);
    let c = program.counters();
    println!("fast {} dirty {} writes {}", c.reads_fast, c.reads_slow_dirty, c.writes_tracked);
    let met = if median <= TARGET_NS { "met" } else { "missed" };
    println!("median {median:.1} ns a packet, target {TARGET_NS} ns: {met}");
    Ok(())
}
