//! `concord bench ycsb`: YCSB A, B, C, D and F with a rack, natively and through RESP, and with
//! redis-server and etcd if they are installed.

use std::net::SocketAddr;
use std::process::Command;

use clap::Args;
use concord_core::{MS, SEC};
use concord_runtime::Error;

use super::etcd::{Etcd, Grpc, Setup};
use super::load::{Measured, Plan, Target, fill, run};
use super::native::Native;
use super::resp::Resp;
use super::rig::{Process, Rig, Scratch, Shape, free_port};
use super::workload::{Choice, Mix, Workload};
use crate::results::{Mark, Plot, Results, Scale, Table, load_average};
use crate::systems::store::Protocol;

const COLUMNS: [&str; 14] = [
    "target",
    "workload",
    "keys",
    "clients",
    "offered",
    "ops/s",
    "read p50 us",
    "read p99 us",
    "read p999 us",
    "write p50 us",
    "write p99 us",
    "fast reads",
    "failed",
    "load avg",
];
/// The number of pending writes while keys are loaded.
const FILL_CLIENTS: u32 = 1_024;
/// The maximum number of keys for etcd, which syncs every write to the disk: loading more would
/// take minutes.
const ETCD_KEYS_MAX: u64 = 10_000;

/// `concord bench ycsb`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord bench ycsb                                  a rack of its own, redis-server, etcd
  concord bench ycsb --target 127.0.0.1:7379          a running server, through RESP
  concord bench ycsb --rate 50000 --workloads A,B     open loop

Latencies count from the time when an operation was due, so that those of an open loop include queueing.")]
pub struct YcsbArgs {
    /// A Redis endpoint to measure, instead of the systems that are started; repeatable
    #[arg(long, value_name = "ADDR:PORT")]
    pub target: Vec<SocketAddr>,
    /// The workloads, of A, B, C, D and F
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "A,B,C,D,F")]
    pub workloads: Vec<String>,
    /// The distribution of keys [default: both]
    #[arg(long, value_enum)]
    pub choice: Option<Choice>,
    /// Number of keys that are loaded
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    pub keys: u64,
    /// Length of values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: usize,
    /// Number of clients, each with one operation at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub clients: u32,
    /// Open loop with this number of operations per second [default: closed loop]
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Duration of the measurement of each workload, in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Duration of the warm-up before it, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub warmup: f64,
    /// Number of replicas of the rack
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: u16,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &YcsbArgs, results: &Results) -> Result<(), Error> {
    let mixes: Vec<Mix> = args.workloads.iter().map(|name| mix(name)).collect::<Result<_, _>>()?;
    if args.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
        return Err(Error::new("--rate must be above 0"));
    }
    let mut table = Table::new(&COLUMNS);
    let mut plot = Plot {
        title: format!("YCSB, {} clients, {} B values", args.clients, args.value_bytes),
        x: "workload",
        y: "operations/s",
        x_names: mixes.iter().map(|m| m.name.to_string()).collect(),
        scale: Scale::Places,
        series: Vec::new(),
    };
    let mut each = |name: &str, target: &mut dyn Target, keys: u64| {
        measure(args, &mixes, name, target, keys, &mut table, &mut plot)
    };
    for &target in &args.target {
        each(&target.to_string(), &mut Resp::new(target, args.clients, 1)?, args.keys)?;
    }
    if args.target.is_empty() {
        own(args, &mut each)?;
    }
    table.print();
    results.csv("ycsb", &table)?;
    results.plot("ycsb", &plot)
}

type Each<'a> = dyn FnMut(&str, &mut dyn Target, u64) -> Result<(), Error> + 'a;

/// Starts the measured systems, one after the other, since they share the cores.
fn own(args: &YcsbArgs, each: &mut Each<'_>) -> Result<(), Error> {
    let rig = Rig::start(Shape::new(Protocol::Chain, args.replicas))?;
    each("concord native", &mut Native::new(rig.switch, 1, 0)?, args.keys)?;
    each("concord RESP", &mut Resp::new(rig.listen, args.clients, 1)?, args.keys)?;
    drop(rig);
    if installed("redis-server") {
        let (_redis, listen) = redis_server()?;
        each("redis-server", &mut Resp::new(listen, args.clients, 1)?, args.keys)?;
    }
    if installed("etcd") {
        let etcd = Etcd::start(3, Setup::Shipped)?;
        each("etcd", &mut Grpc::new(&etcd.clients)?, args.keys.min(ETCD_KEYS_MAX))?;
    }
    Ok(())
}

/// Whether a program is installed; prints a line if not.
pub fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("{program} is not installed: left out");
    }
    found
}

/// Starts a redis-server without persistence; returns its address, too.
///
/// # Errors
/// If it does not start.
pub fn redis_server() -> Result<((Process, Scratch), SocketAddr), Error> {
    redis_server_in(Scratch::new()?, &["--appendonly", "no"])
}

/// Starts a redis-server with its data in `scratch`, persisted as `flags` say; returns its address,
/// too.
///
/// # Errors
/// If it does not start.
pub fn redis_server_in(
    scratch: Scratch,
    flags: &[&str],
) -> Result<((Process, Scratch), SocketAddr), Error> {
    let listen = free_port()?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &listen.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(flags).arg("--dir").arg(&scratch.path);
    let mut process = Process::start(&mut command, scratch.path.join("redis.log"))?;
    process
        .wait_until(|printed| printed.contains("Ready to accept connections"))
        .map_err(|e| Error::new(format!("redis-server did not start: {e}")))?;
    Ok(((process, scratch), listen))
}

fn mix(name: &str) -> Result<Mix, Error> {
    let found = Mix::YCSB.iter().find(|mix| mix.name.eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| Error::new(format!("no workload {name}; there are A, B, C, D, F")))
}

fn measure(
    args: &YcsbArgs,
    mixes: &[Mix],
    name: &str,
    mut target: &mut dyn Target,
    keys: u64,
    table: &mut Table,
    plot: &mut Plot,
) -> Result<(), Error> {
    fill(&mut target, keys, args.value_bytes, FILL_CLIENTS)?;
    let plan = Plan {
        clients: args.clients,
        value_bytes: args.value_bytes,
        rate: args.rate,
        warmup_ns: (args.warmup * SEC as f64) as u64,
        measure_ns: ((args.seconds * SEC as f64) as u64).max(MS),
    };
    let choices = args.choice.map_or(vec![Choice::Uniform, Choice::Zipf], |one| vec![one]);
    for choice in choices {
        let mut points = Vec::new();
        for (i, &mix) in mixes.iter().enumerate() {
            let mut workload = Workload::new(mix, choice, keys, i as u64)?;
            let measured = run(&mut target, &mut workload, plan)?;
            points.push(Mark::one(i as f64 + 1.0, measured.rate()));
            table.row(cells(args, name, mix, choice, &measured));
            table.print_last();
        }
        plot.series.push((format!("{name}, {}", choice.name()), points));
    }
    Ok(())
}

fn cells(args: &YcsbArgs, name: &str, mix: Mix, choice: Choice, m: &Measured) -> Vec<String> {
    let us = |h: &hdrhistogram::Histogram<u64>, percent| match h.len() {
        0 => "-".to_string(),
        _ => format!("{:.0}", h.value_at_quantile(percent) as f64 / 1e3),
    };
    vec![
        name.to_string(),
        mix.name.to_string(),
        choice.name().to_string(),
        args.clients.to_string(),
        args.rate.map_or("closed".to_string(), |rate| format!("{rate:.0}")),
        format!("{:.0}", m.rate()),
        us(&m.reads, 0.5),
        us(&m.reads, 0.99),
        us(&m.reads, 0.999),
        us(&m.writes, 0.5),
        us(&m.writes, 0.99),
        format!("{:.3}", m.fast_share()),
        m.failed.to_string(),
        load_average(),
    ]
}
