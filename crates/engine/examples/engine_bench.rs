//! Time of GET, SET and others through the shim and the memory engine, command parsing included:
//! `cargo run --release -p concord-engine --example engine_bench`.

use std::hint::black_box;
use std::time::Instant;

use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Shimmed};

const BATCHES: usize = 300;
const BATCH: usize = 10_000;

/// Prints the best and the median of short batches, as others use this machine's cores too.
fn measure(name: &str, engine: &mut Shimmed<Memory>, class: Class, commands: &[Vec<u8>]) {
    let context = Context { now_ms: 1, ..Context::default() };
    let mut reply = Vec::new();
    let mut commands = commands.iter().cycle();
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        for bytes in commands.by_ref().take(BATCH) {
            reply.clear();
            if let Ok(command) = Command::parse(bytes) {
                engine.submit(&context, class, &command, &mut reply);
            }
            black_box(&reply);
        }
        batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    batches.sort_by(f64::total_cmp);
    println!("{name:<30} best {:>5.0} ns   median {:>5.0} ns", batches[0], batches[BATCHES / 2]);
}

fn encode(keys: usize, args: impl Fn(String) -> Vec<String>) -> Vec<Vec<u8>> {
    let mut buf = CommandBuf::new();
    let one = |at: usize| {
        let args = args(format!("key:{at:012}"));
        buf.encode(1, args.iter().map(String::as_bytes)).to_vec()
    };
    (0..keys).map(one).collect()
}

fn main() {
    for keys in [1_000, 1_000_000] {
        let mut engine = Shimmed::new(Memory::new(0));
        let value = "v".repeat(32);
        let set = encode(keys, |key| vec!["SET".into(), key, value.clone()]);
        let get = encode(keys, |key| vec!["GET".into(), key]);
        let incr = encode(keys, |key| vec!["INCR".into(), format!("n{key}")]);
        let expiring =
            encode(keys, |key| vec!["SET".into(), key, value.clone(), "EX".into(), "100".into()]);
        println!("{keys} keys");
        measure("SET (new, then again)", &mut engine, Class::Write, &set);
        measure("SET", &mut engine, Class::Write, &set);
        measure("GET", &mut engine, Class::Read, &get);
        measure("INCR", &mut engine, Class::Write, &incr);
        measure("SET EX", &mut engine, Class::Write, &expiring);
        measure("SET on keys with deadlines", &mut engine, Class::Write, &set);
    }
}
