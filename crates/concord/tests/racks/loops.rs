//! Scripts keep no event loop of a rack for long, with both engines, while others write: the most
//! CPU time of an iteration (`loop_longest_cpu_ever_seconds`) is below a quarter of a lease.
//!
//! `make fuzz-scripts` runs many (`CONCORD_SCRIPTS`), of a program that was built with optimization
//! (`CONCORD_PROGRAM`), and writes what it saw to `CONCORD_RESULTS`.

#[path = "../../../lua/tests/scripts/at_random.rs"]
mod at_random;
#[path = "../../../lua/tests/scripts/long.rs"]
mod long;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use concord_core::Rng;

use crate::common::*;

/// A quarter of a lease, which is 500 ms if the rack file does not say otherwise.
const ITERATION_MAX: Duration = Duration::from_millis(125);
/// A script may take seconds at each replica of a chain, one after the other.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of all replicas and gateways, the most CPU time of an iteration of the loop since the start.
fn longest_iteration(rack: &Rack) -> Duration {
    let status = rack.status();
    let roles = status["roles"].as_array().unwrap();
    let of_role = |role: &serde_json::Value| {
        assert_eq!(role["reachable"], true, "{role}");
        role["status"]["gauges"]["loop_longest_cpu_ever_seconds"].as_f64().unwrap()
    };
    Duration::from_secs_f64(roles.iter().map(of_role).fold(0.0, f64::max))
}

/// What others saw who wrote meanwhile.
#[derive(Debug, Default)]
struct Others {
    sets: u64,
    busy: u64,
    longest: Duration,
}

fn write_until(done: &AtomicBool, listen: std::net::SocketAddr) -> Others {
    let (mut client, mut seen) = (Resp::open(listen).waiting(PATIENCE), Others::default());
    while !done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let (reply, _) = client.call(&[b"SET", b"other", b"v"]).unwrap();
        match reply.as_str() {
            "+OK" => seen.sets += 1,
            _ if reply.starts_with("-BUSY") => seen.busy += 1,
            _ => panic!("a SET of somebody else: {reply}"),
        }
        seen.longest = seen.longest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    seen
}

/// What a run of scripts showed.
#[derive(Debug)]
struct Shown {
    scripts: usize,
    stopped: usize,
    longest: Duration,
    others: Others,
    took: Duration,
}

/// Runs scripts one after the other at a rack, whose loops are asked for their longest iteration
/// every so often; it fails at the first that took too long, with the scripts that were run.
fn run(rack: &Rack, scripts: impl Iterator<Item = String>) -> Shown {
    let (began, done) = (Instant::now(), AtomicBool::new(false));
    let mut shown = Shown {
        scripts: 0,
        stopped: 0,
        longest: Duration::ZERO,
        others: Others::default(),
        took: Duration::ZERO,
    };
    let mut recent: Vec<String> = Vec::new();
    let look = |recent: &mut Vec<String>| {
        let longest = longest_iteration(rack);
        let is_short = longest < ITERATION_MAX || cfg!(debug_assertions) && !is_optimized();
        assert!(is_short, "an iteration took {longest:?}: one of {recent:#?}");
        recent.clear();
        longest
    };
    std::thread::scope(|scope| {
        let others = scope.spawn(|| write_until(&done, rack.listen));
        let ends = Ends(&done);
        let mut client = rack.client().waiting(PATIENCE);
        for script in scripts {
            client.say("DEL k l");
            let (reply, _) = client.call(&[b"EVAL", script.as_bytes(), b"0"]).unwrap();
            let is_array = reply.strip_prefix('*').and_then(|n| n.parse().ok());
            (0..is_array.unwrap_or(0)).for_each(|_: usize| drop(client.next().unwrap()));
            let is_lost =
                ["-UNKNOWN", "-TRYAGAIN", "-TIMEOUT"].iter().any(|e| reply.starts_with(e));
            assert!(!is_lost, "{reply}: {script}");
            shown.stopped += usize::from(reply.contains("was stopped"));
            shown.scripts += 1;
            recent.push(script);
            if recent.len() == 20 {
                shown.longest = shown.longest.max(look(&mut recent));
            }
        }
        shown.longest = shown.longest.max(look(&mut recent));
        drop(ends);
        shown.others = others.join().unwrap();
    });
    shown.took = began.elapsed();
    assert!(shown.others.sets > 0);
    assert_eq!(rack.role("replica", 1)["epoch"], 1, "a member was removed");
    shown
}

/// Whether the program was built with optimization, so that its speed means something.
fn is_optimized() -> bool {
    std::env::var_os("CONCORD_PROGRAM").is_some()
}

/// Ends what others do, whatever becomes of its owner.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn start(engine: &str, protocol: &str) -> Rack {
    let flags = ["--engine", engine, "--protocol", protocol];
    let rack = Rack::start(&format!("loops-{engine}-{protocol}"), &flags);
    let mut client = rack.client();
    until("script", || client.call(&[b"EVAL", b"return 1", b"1", b"k"]).unwrap().0 == ":1");
    rack
}

/// Some that kept a loop for seconds once, and removed members.
#[test]
fn bug_24_1_scripts_leave_others_and_members_alone() {
    let named = ["s:upper()", "local t = tonumber(s) end", "cjson.encode(t)"];
    let of = |part: &&str| long::LONG.iter().find(|own| own.contains(*part)).unwrap().to_string();
    let shown = run(&start("memory", "primary-backup"), named.iter().map(of));
    println!("{shown:?}");
    assert!(shown.others.longest < PATIENCE / 4, "{shown:?}");
}

/// `make fuzz-scripts`: all long scripts, and those that are written at random.
#[test]
#[ignore = "half an hour: make fuzz-scripts"]
fn scripts_at_random_leave_loops_short() {
    let first = setting("CONCORD_FIRST_SCRIPT", 1);
    let mut table = "| engine | scripts | stopped | longest iteration, CPU time | SETs of others \
        | -BUSY | the longest of them |\n|---|---|---|---|---|---|---|"
        .to_string();
    // A redis-server stops scripts that change nothing after 5 s, and no others: shorter ones.
    for (engine, count, rounds) in [
        ("memory", setting("CONCORD_SCRIPTS", 10_000), 8),
        ("redis", setting("CONCORD_SCRIPTS", 10_000), 2),
    ] {
        let rack = start(engine, "chain");
        let seeds = first..first + count;
        let at_random = seeds.map(|seed| at_random::script(&mut Rng::new(seed), rounds));
        let long = long::LONG.iter().map(ToString::to_string);
        let shown = run(&rack, long.chain(at_random));
        let row = format!(
            "\n| {engine} | {} | {} | {:.1?} | {} | {} | {:.1?} |",
            shown.scripts,
            shown.stopped,
            shown.longest,
            shown.others.sets,
            shown.others.busy,
            shown.others.longest
        );
        println!("{engine}: {shown:?}");
        table += &row;
    }
    println!("{table}");
    if let Ok(results) = std::env::var("CONCORD_RESULTS") {
        let path = std::path::Path::new(&results).join("scripts-at-racks.md");
        std::fs::write(path, table + "\n").unwrap();
    }
}
