//! Nanoseconds of CPU time per submit + handle + poll, with 256 requests unanswered, without
//! sockets. What the benchmark itself needs to read requests and write replies comes first.
//! `cargo run --release -p concord-client --example hot_path`

use concord_client::{Class, Client, ClientConfig, Request};
use concord_core::{Instant, Machine, Now, ObjectId, RequestNumber, Rng};
use concord_wire::{Addr, Flags, Op, Packet, Repr, Sink};

const OPS: u64 = 4_000_000;
const OUT: usize = 256;

/// CPU time of this thread so far; other processes do not count.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// What the benchmark's own part costs.
fn measure_network() {
    let mut network = Network::default();
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    let addr = Addr { ip: 0x7f00_0001, port: 1 };
    Repr::new(Op::Read).emit(&[7; 40], &mut request);
    let start = cpu_ns();
    for _ in 0..OPS {
        network.send(addr, std::hint::black_box(&request));
        if let Some(repr) = network.sent.pop_front() {
            Repr { op: Op::ReadReply, ..repr }.emit(&[9; 40], &mut reply);
        }
        std::hint::black_box(&reply);
    }
    println!("{:<16} {:>6.1} ns an operation", "benchmark alone", (cpu_ns() - start) / OPS as f64);
}

/// Keeps the headers of what was sent.
#[derive(Default)]
struct Network {
    sent: std::collections::VecDeque<Repr>,
}

impl Sink for Network {
    fn send(&mut self, _: Addr, packet: &[u8]) {
        if let Ok(packet) = Packet::parse(packet) {
            self.sent.push_back(packet.repr());
        }
    }
}

fn measure(name: &str, class: Option<Class>, is_chained: bool) {
    let addr = |port| Addr { ip: 0x7f00_0001, port };
    let config = ClientConfig { window: 1_024, ..ClientConfig::new(addr(1), addr(2)) };
    let mut client = Client::new(config, Rng::new(1));
    let mut network = Network::default();
    let (mut reply, mut ended) = (Vec::new(), 0u64);
    let mut last: Option<RequestNumber> = None;
    let start = cpu_ns();
    let mut clock = 0;
    let mut submitted = 0u64;
    while ended < OPS {
        clock += 1_000;
        let now = Now { instant: Instant(clock), unix_ms: 0 };
        while client.unanswered() < OUT && submitted < OPS {
            let class = class.unwrap_or(if submitted.is_multiple_of(2) {
                Class::Read
            } else {
                Class::Write
            });
            let after = last.filter(|_| is_chained && class == Class::Write);
            let (flags, obj_id) = (Flags::default(), ObjectId(submitted as u32));
            let further = concord_wire::FurtherIds::NONE;
            let request = Request { class, obj_id, further, flags, after, command: &[7; 40] };
            match client.submit(now, request, &mut network) {
                Ok(number) if class == Class::Write => last = Some(number),
                Ok(_) => {}
                Err(_) => break,
            }
            submitted += 1;
        }
        for _ in 0..32 {
            let Some(repr) = network.sent.pop_front() else { break };
            let op = if repr.op == Op::Read { Op::ReadReply } else { Op::WriteReply };
            Repr { op, ..repr }.emit(&[9; 40], &mut reply);
            client.handle(now, addr(2), &mut reply, &mut network);
        }
        while let Some(done) = client.poll() {
            client.give_back(done.reply);
            ended += 1;
        }
        if now.instant >= client.deadline().at {
            client.tick(now, &mut network);
        }
    }
    let ns = (cpu_ns() - start) / OPS as f64;
    println!("{name:<16} {ns:>6.1} ns an operation, of that the benchmark as above");
}

fn main() {
    measure_network();
    measure("reads", Some(Class::Read), false);
    measure("writes", Some(Class::Write), false);
    measure("chained writes", Some(Class::Write), true);
    measure("half and half", None, false);
}
