//! `concord bench recovery`: a million keys on the disks of a rack. It measures the time until the
//! rack serves after all of its processes were killed, the time until a replica that was away is a
//! member again, and how long snapshots block the replicas' event loops.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use concord_core::SEC;
use concord_runtime::{Context, Error};
use serde_json::Value;

use super::load::{Measured, Plan, check_stop, fill, key, run};
use super::peers::CONNECTIONS;
use super::resp::Resp;
use super::rig::{Process, Rig, Shape};
use super::workload::{Choice, Mix, Workload};
use crate::net::{Redis, Reply, http_get};
use crate::rack::Rack;
use crate::results::{Results, Table, load_average, spread};
use crate::systems::store::{Durability, Protocol};

/// The number of pending writes on each connection while keys are loaded, and while a snapshot is
/// made.
const PIPELINE: u32 = 16;
/// The interval of checks, and the maximum time to wait.
const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(120);
const HTTP_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of writes per second while a replica is away.
const AWAY_RATE: f64 = 5_000.0;
/// The maximum age of a replica's longest iteration (`/status`), in s.
const LONGEST_OF: f64 = 20.0;

/// `concord bench recovery`.
#[derive(Args, Clone, Debug)]
pub struct RecoveryArgs {
    /// Number of times that all processes, and that one replica, are killed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    pub keys: u64,
    /// Length of values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: usize,
    /// Time that a replica is away, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub away: f64,
    /// Duration of the writes while snapshots are made, with each durability, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Writes per second meanwhile: few enough that processes do not wait for each other's cores
    #[arg(long, value_name = "N", default_value_t = 20_000.0)]
    pub rate: f64,
    /// The replication protocol
    #[arg(long, default_value = "chain")]
    pub protocol: Protocol,
    /// The directory of the data, on the disk to measure [default: the system's for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &RecoveryArgs, results: &Results) -> Result<(), Error> {
    let parent = args.disk.clone().unwrap_or_else(std::env::temp_dir);
    let mut table = Table::new(&["what", "repeat", "value", "load avg"]);
    let mut summary = Table::new(&["what", "median (min..max)", "aim"]);
    let mut rig = start(args, &parent, Durability::Fsync)?;
    load(args, &rig)?;
    let durable = loops(args, &rig)?;
    let mut starts = Vec::new();
    for repeat in 0..args.repeats {
        let took = kill_all(args, &mut rig)?;
        note(&mut table, "all killed: seconds until all keys are served", repeat, took);
        starts.push(took);
    }
    add(&mut summary, "all killed: s until served", &starts, "5");
    let (mut members, mut opens, mut copies) = (Vec::new(), Vec::new(), 0);
    for repeat in 0..args.repeats {
        let back = away(args, &rig)?;
        note(&mut table, "away: seconds until a member again", repeat, back.member);
        note(&mut table, "away: seconds until the epoch with it is open", repeat, back.open);
        members.push(back.member);
        opens.push(back.open);
        copies += back.copies;
        drop(back.process);
        // Restores the rack for the next run.
        rig.kill_all()?;
        rig.start_again()?;
    }
    add(&mut summary, "away: s until a member again", &members, "2");
    add(&mut summary, "away: s until the epoch with it is open", &opens, "-");
    summary.row(vec!["away: copies of the state".into(), copies.to_string(), "0".into()]);
    drop(rig);
    let rig = start(args, &parent, Durability::None)?;
    load(args, &rig)?;
    let volatile = loops(args, &rig)?;
    drop(rig);
    let ms = |longest: &[f64]| -> Vec<f64> { longest.iter().map(|s| s * 1e3).collect() };
    let cpu = "most CPU time of an iteration with snapshots: ms";
    add(&mut summary, cpu, &ms(&durable.longest_cpu), "5");
    add(&mut summary, "longest iteration with snapshots: ms", &ms(&durable.longest), "5");
    let cpu = "most CPU time of an iteration with nothing on disk: ms";
    add(&mut summary, cpu, &ms(&volatile.longest_cpu), "-");
    add(&mut summary, "longest iteration with nothing on disk: ms", &ms(&volatile.longest), "-");
    let taken = durable.snapshots.to_string();
    summary.row(vec!["snapshots that were made meanwhile".into(), taken, "-".into()]);
    for (name, loops) in [("fsync", &durable), ("none", &volatile)] {
        for (replica, (longest, cpu)) in (1..).zip(loops.longest.iter().zip(&loops.longest_cpu)) {
            note(&mut table, &format!("longest iteration ({name}) in s"), replica, *longest);
            note(&mut table, &format!("most CPU time of one ({name}) in s"), replica, *cpu);
        }
    }
    summary.print();
    results.csv("recovery", &table)?;
    results.csv("recovery-summary", &summary)
}

fn note(table: &mut Table, what: &str, repeat: u32, value: f64) {
    table.row(vec![what.to_string(), repeat.to_string(), format!("{value:.4}"), load_average()]);
    table.print_last();
}

fn add(summary: &mut Table, what: &str, values: &[f64], aim: &str) {
    summary.row(vec![what.to_string(), spread(values, 2), aim.to_string()]);
}

fn start(args: &RecoveryArgs, parent: &Path, durability: Durability) -> Result<Rig, Error> {
    Rig::start_below(parent, Shape { durability, ..Shape::new(args.protocol, 3) })
}

fn load(args: &RecoveryArgs, rig: &Rig) -> Result<(), Error> {
    let mut target = Resp::new(rig.listen, CONNECTIONS, PIPELINE)?;
    fill(&mut target, args.keys, args.value_bytes, CONNECTIONS * PIPELINE)
}

/// The `/status` of a role.
fn status(http: Option<std::net::SocketAddr>) -> Option<Value> {
    serde_json::from_slice(&http_get(http?, "/status", HTTP_TIMEOUT).ok()?).ok()
}

/// Measurements of the replicas' event loops under writes.
struct Loops {
    /// The longest iteration of each replica, in s.
    longest: Vec<f64>,
    /// The longest CPU time of an iteration of each replica, in s.
    longest_cpu: Vec<f64>,
    /// The number of times that the log of a replica became shorter, because a snapshot replaced a
    /// part of it.
    snapshots: u32,
}

/// Measures event loops during writes to all keys.
fn loops(args: &RecoveryArgs, rig: &Rig) -> Result<Loops, Error> {
    let rack = Rack::read(&rig.config())?;
    let none = || vec![0.0; rack.replica.len()];
    let mut loops = Loops { longest: none(), longest_cpu: none(), snapshots: 0 };
    let mut sizes = vec![0; rack.replica.len()];
    let mut target = Resp::new(rig.listen, CONNECTIONS, PIPELINE)?;
    // By then the effects of the load's end are forgotten.
    write(args, &mut target, CONNECTIONS * PIPELINE, Some(args.rate), LONGEST_OF)?;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < args.seconds {
        write(args, &mut target, CONNECTIONS * PIPELINE, Some(args.rate), 1.0)?;
        for (index, place) in rack.replica.iter().enumerate() {
            let Some(own) = status(place.http) else { continue };
            let seconds = |name: &str| own[name].as_f64().unwrap_or(0.0) / SEC as f64;
            loops.longest[index] = loops.longest[index].max(seconds("loop_longest_ns"));
            loops.longest_cpu[index] = loops.longest_cpu[index].max(seconds("loop_longest_cpu_ns"));
            let size = own["log_bytes"].as_u64().unwrap_or(0);
            loops.snapshots += u32::from(size < sizes[index]);
            sizes[index] = size;
        }
    }
    Ok(loops)
}

fn write(
    args: &RecoveryArgs,
    target: &mut Resp,
    clients: u32,
    rate: Option<f64>,
    seconds: f64,
) -> Result<Measured, Error> {
    let plan = Plan {
        clients,
        value_bytes: args.value_bytes,
        rate,
        warmup_ns: 0,
        measure_ns: (seconds * SEC as f64) as u64,
    };
    let mut workload = Workload::new(Mix::SCALE[2], Choice::Uniform, args.keys, 1)?;
    run(target, &mut workload, plan)
}

/// Kills all processes, and restarts them; returns the seconds until the first and the last key are
/// read.
fn kill_all(args: &RecoveryArgs, rig: &mut Rig) -> Result<f64, Error> {
    rig.kill_all()?;
    let began = Instant::now();
    rig.start_again()?;
    let ask = |number: u64| -> std::io::Result<Reply> {
        let mut gateway = Redis::connect(rig.listen, "", HTTP_TIMEOUT)?;
        gateway.call(&[b"GET", &key(number)])
    };
    for number in [0, args.keys - 1] {
        match ask(number).cannot("read a key after a kill of all")? {
            Reply::Text(value) if value.len() == args.value_bytes => {}
            other => {
                return Err(Error::new(format!("key {number} is {other:?} after all were killed")));
            }
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// The return of a replica that was away.
struct Back {
    process: Process,
    /// The seconds until the controller has it as a member.
    member: f64,
    /// The seconds until it reports that its epoch is open.
    open: f64,
    /// The number of copies of the state that it began.
    copies: u64,
}

/// Kills the last replica, restarts it later, and waits until it is a member again.
fn away(args: &RecoveryArgs, rig: &Rig) -> Result<Back, Error> {
    let rack = Rack::read(&rig.config())?;
    let place = rack.replica.last().ok_or_else(|| Error::new("a rack without replicas"))?;
    rig.kill_replica(place.node);
    let mut target = Resp::new(rig.listen, CONNECTIONS, 1)?;
    write(args, &mut target, CONNECTIONS, Some(AWAY_RATE), args.away)?;
    let began = Instant::now();
    let process = rig.start_replica(place.node)?;
    let controller = rack.controller()?.http;
    let mut member = None;
    loop {
        check_stop()?;
        let is_member = status(controller).is_some_and(|own| {
            let members = own["members"].as_array().into_iter().flatten();
            members.filter_map(Value::as_u64).any(|node| node == u64::from(place.node))
        });
        let took = began.elapsed().as_secs_f64();
        let since = is_member.then(|| *member.get_or_insert(took));
        let own = status(place.http).filter(|own| own["phase"] == "open");
        if let Some((member, own)) = since.zip(own) {
            let copies = own["counters"]["copies_begun"].as_u64().unwrap_or(0);
            return Ok(Back { process, member, open: began.elapsed().as_secs_f64(), copies });
        }
        if began.elapsed() > PATIENCE {
            return Err(Error::new("the replica that was away is no member again"));
        }
        std::thread::sleep(LOOK);
    }
}
