//! Scripts that are written at random from all natives, with large arguments: each ends or is
//! stopped, at two replicas alike, and none keeps an iteration of the loop for long.
//! `make fuzz-scripts` says which took longest.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests outside test functions, for clippy.

#[path = "scripts/at_random.rs"]
mod at_random;

use std::time::Duration;

use at_random::script;
use concord_core::Rng;
use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

/// What a script may cost here.
const TESTED: u64 = 10_000_000;
/// A script that costs so much, and the slices of a native that is not paused, are not more calls
/// than that.
const CALLS_MAX: u64 = 60;

/// Statements are executed up to two to this power of times.
const ROUNDS: u64 = 15;

/// A quarter of a lease of 500 ms: what no iteration of a replica's loop may take, once the tests
/// are built with optimization.
const ITERATION_MAX: Duration = Duration::from_millis(125);

/// What this thread has used of a core. (By the clock on the wall, other processes count.)
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

struct Replica {
    engine: Shimmed<Memory>,
    position: u64,
}

impl Replica {
    fn new() -> Replica {
        let engine = Shimmed::new(Memory::new(0)).with_scripts(concord_lua::run_within::<TESTED>);
        Replica { engine, position: 0 }
    }

    /// The reply, how many calls of the engine it took, and the most CPU time of one.
    fn eval(&mut self, script: &str) -> (Vec<u8>, u64, Duration) {
        let args = [&b"EVAL"[..], script.as_bytes(), b"0"];
        let bytes = CommandBuf::new().encode(0, args).to_vec();
        let command = Command::parse(&bytes).unwrap();
        self.position += 1;
        let context = Context { position: self.position, entropy: 7, ..Context::default() };
        let (mut reply, mut calls) = (Vec::new(), 1);
        let began = cpu_time();
        let progress = self.engine.submit(&context, Class::Write, &command, &mut reply);
        let mut longest = cpu_time() - began;
        if progress == Progress::Pending {
            loop {
                let began = cpu_time();
                let done = self.engine.poll();
                longest = longest.max(cpu_time() - began);
                calls += 1;
                if let Some(done) = done {
                    reply = done.reply;
                    break;
                }
            }
        }
        (reply, calls, longest)
    }
}

#[test]
fn scripts_at_random_end_in_slices_at_all_replicas_alike() {
    let count = std::env::var("CONCORD_SCRIPTS").map_or(60, |n| n.parse().unwrap());
    let first: u64 = std::env::var("CONCORD_FIRST_SCRIPT").map_or(1, |n| n.parse().unwrap());
    let mut slowest: Vec<(Duration, u64, String)> = Vec::new();
    let (mut one, mut other) = (Replica::new(), Replica::new());
    let (mut stopped, mut long) = (0, 0);
    for seed in first..first + count {
        let script = script(&mut Rng::new(seed), ROUNDS);
        let before = one.engine.digest();
        let (reply, calls, longest) = one.eval(&script);
        let hint = || format!("CONCORD_FIRST_SCRIPT={seed} CONCORD_SCRIPTS=1: {script}");
        assert!(calls <= CALLS_MAX, "{calls} calls, {}", hint());
        if reply.ends_with(b"it has changed nothing\r\n") {
            stopped += 1;
            assert_eq!(one.engine.digest(), before, "{}", hint());
        }
        long += u64::from(calls > 1);
        // Other scripts ran there.
        other.eval("return cjson.encode({1, 2})");
        assert_eq!(other.eval(&script).0, reply, "{}", hint());
        assert_eq!(one.engine.digest(), other.engine.digest(), "{}", hint());
        let is_short = longest < ITERATION_MAX || cfg!(debug_assertions);
        assert!(is_short, "an iteration of {longest:?}, {}", hint());
        slowest.push((longest, seed, script));
        slowest.sort_by_key(|(longest, _, _)| std::cmp::Reverse(*longest));
        slowest.truncate(5);
    }
    println!("{count} scripts, {long} of them long, {stopped} stopped");
    for (longest, seed, script) in slowest {
        println!("{longest:?}, seed {seed}: {script}");
    }
    assert!(count < 50 || long > count / 10 && stopped > 0, "{long} long, {stopped} stopped");
}
