//! Nanoseconds of CPU time per command through gateway and client, without sockets: 16 commands of
//! one connection at a time, parsed, sent, answered and written in order. A name as argument
//! measures those workloads alone that begin with it, for a profile.
//! `cargo run --release -p concord-gateway --example gateway_bench`

use concord_client::ClientConfig;
use concord_core::{Instant, Machine, Now, Rng};
use concord_engine::CommandTable;
use concord_gateway::{ConnectionId, Gateway, GatewayConfig, Parsed, Parser};
use concord_wire::{Addr, Flags, Op, Packet, Repr, Sink};

const OPS: u64 = 8_000_000;
const PIPELINE: u64 = 16;
/// Unanswered commands at a time: so many pipelines.
const PIPELINES: u64 = 32;
const BATCHES: u64 = OPS / PIPELINE / PIPELINES;
const ID: ConnectionId = ConnectionId(1);

/// CPU time of this thread so far; other processes do not count.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// Keeps the headers of what was sent.
#[derive(Default)]
struct Network {
    sent: Vec<Repr>,
}

impl Sink for Network {
    fn send(&mut self, _: Addr, packet: &[u8]) {
        if let Ok(packet) = Packet::parse(packet) {
            self.sent.push(packet.repr());
        }
    }
}

fn request(args: &[&str]) -> String {
    let bulk = |arg: &&str| format!("${}\r\n{arg}\r\n", arg.len());
    format!("*{}\r\n{}", args.len(), args.iter().map(bulk).collect::<String>())
}

fn measure_parser(input: &str) {
    let mut parser = Parser::default();
    let start = cpu_ns();
    let mut requests = 0;
    while requests < OPS {
        let mut at = 0;
        while let Parsed::Request(length) = parser.parse(&input.as_bytes()[at..], true) {
            std::hint::black_box(parser.args(&input.as_bytes()[at..]));
            parser.next();
            at += length;
            requests += 1;
        }
    }
    println!("{:<22} {:>6.1} ns a request", "parser alone", (cpu_ns() - start) / OPS as f64);
}

/// What reading requests and writing replies costs the benchmark itself.
fn measure_network() {
    let mut network = Network::default();
    let (mut packet, mut reply) = (Vec::new(), Vec::new());
    Repr::new(Op::Read).emit(&[7; 40], &mut packet);
    let start = cpu_ns();
    for _ in 0..OPS {
        network.send(Addr { ip: 1, port: 1 }, std::hint::black_box(&packet));
        for repr in network.sent.drain(..) {
            Repr { op: Op::ReadReply, ..repr }.emit(&[9; 40], &mut reply);
        }
        std::hint::black_box(&reply);
    }
    println!("{:<22} {:>6.1} ns a command", "benchmark alone", (cpu_ns() - start) / OPS as f64);
}

fn measure(name: &str, input: &str) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.starts_with(&wanted)) {
        return;
    }
    let addr = |port| Addr { ip: 0x7f00_0001, port };
    let config = GatewayConfig {
        splits_reads: false,
        client: ClientConfig::new(addr(1), addr(2)),
        requirepass: None,
        table: CommandTable::memory(),
        redis: false,
        connections_max: 10,
        limits: concord_gateway::Limits::default(),
        others: Vec::new(),
        node: 1,
        port: 7379,
    };
    let mut gateway = Gateway::new(config, Rng::new(1));
    let mut network = Network::default();
    let mut reply = Vec::new();
    let mut clock = 0;
    gateway.connected(Now::default(), ID, "bench");
    let (mut submit_ns, mut answer_ns) = (0.0, 0.0);
    for _ in 0..BATCHES {
        clock += 1_000_000;
        let now = Now { instant: Instant(clock), unix_ms: 0 };
        let start = cpu_ns();
        for _ in 0..PIPELINES {
            gateway.input(now, ID, input.as_bytes(), &mut network);
        }
        let submitted = cpu_ns();
        while !network.sent.is_empty() {
            for repr in core::mem::take(&mut network.sent) {
                let op = if repr.op == Op::Read { Op::ReadReply } else { Op::WriteReply };
                let register = repr.flags.has(Flags::REGISTER);
                let body: &[u8] = if register { b"" } else { b"$16\r\nabcdefghijklmnop\r\n" };
                Repr { op, ..repr }.emit(body, &mut reply);
                gateway.handle(now, addr(2), &mut reply, &mut network);
            }
        }
        while let Some(id) = gateway.take_ready(now, &mut network) {
            if let Some(output) = gateway.output(id) {
                let bytes = std::hint::black_box(output).len();
                gateway.written(now, id, bytes, &mut network);
            }
        }
        gateway.tick(now, &mut network);
        submit_ns += submitted - start;
        answer_ns += cpu_ns() - submitted;
    }
    let ops = (BATCHES * PIPELINES * PIPELINE) as f64;
    let (submit_ns, answer_ns) = (submit_ns / ops, answer_ns / ops);
    let all_ns = submit_ns + answer_ns;
    println!(
        "{name:<18} {submit_ns:>6.1} ns to parse and send, {answer_ns:>6.1} ns to answer, {all_ns:>6.1} ns in all"
    );
}

fn main() {
    let pipeline = |line: &dyn Fn(u64) -> String| (0..PIPELINE).map(line).collect::<String>();
    let gets = pipeline(&|i| request(&["GET", &format!("key:{i:012}")]));
    let sets = pipeline(&|i| request(&["SET", &format!("key:{i:012}"), "abcdefghijklmnop"]));
    let mixed = pipeline(&|i| match i % 2 {
        0 => request(&["GET", &format!("key:{i:012}")]),
        _ => request(&["SET", &format!("key:{i:012}"), "abcdefghijklmnop"]),
    });
    measure_parser(&gets);
    measure_network();
    measure("GET, 16 at a time", &gets);
    measure("SET, 16 at a time", &sets);
    measure("half and half", &mixed);
    measure("PING", &pipeline(&|_| request(&["PING"])));
}
