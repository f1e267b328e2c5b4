//! `concord bench durability`: the cost of acknowledged writes that survive a power cut: a rack
//! with `fsync`, compared with one with `none`, redis-server with appendfsync always, a three-node
//! etcd, and the disk alone.
//!
//! All of them run at once with their data on one disk, and are measured in turn, so that other
//! work of the machine affects all of them alike.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use concord_core::SEC;
use concord_runtime::{Context, Error};

use super::etcd::{Etcd, Grpc, Setup};
use super::load::{Plan, check_stop, fill, run};
use super::peers::{CONNECTIONS, benchmark};
use super::rig::{Process, Rig, Scratch, Shape};
use super::workload::{Choice, Mix, Workload};
use super::ycsb::{installed, redis_server_in};
use crate::results::{Results, Table, load_average, median, spread};
use crate::systems::store::{Durability, Protocol};

/// The length of values, in bytes: redis-benchmark's default.
const VALUE_BYTES: usize = 3;
const ETCD_KEYS: u64 = 1_000;
/// The number of bytes that each write appends when the disk alone is measured.
const DISK_WRITE_BYTES: usize = 4 << 10;

/// `concord bench durability`.
#[derive(Args, Clone, Debug)]
pub struct DurabilityArgs {
    /// Number of runs of each, in turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Number of random keys that are written and read
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub random_keys: u64,
    /// Number of replicas of each rack
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: u16,
    /// The replication protocol
    #[arg(long, default_value = "chain")]
    pub protocol: Protocol,
    /// The directory of the data, on the disk to measure [default: the system's for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Leave etcd out
    #[arg(long)]
    pub no_etcd: bool,
}

/// A measured store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    /// The rack without data on disk.
    Volatile,
    /// The rack that syncs writes before it acknowledges them.
    Durable,
    Redis,
    Etcd,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Volatile => "concord none",
            Store::Durable => "concord fsync",
            Store::Redis => "redis-server always",
            Store::Etcd => "etcd",
        }
    }
}

/// A line of the figure: an operation of redis-benchmark with a pipeline, and the stores that run
/// it.
struct Case {
    test: &'static str,
    pipeline: u32,
    requests: u64,
    stores: &'static [Store],
}

/// The cases; their requests take a second or two with a disk that syncs in 0.3 ms.
const CASES: [Case; 4] = [
    Case {
        test: "set",
        pipeline: 16,
        requests: 200_000,
        stores: &[Store::Volatile, Store::Durable, Store::Redis, Store::Etcd],
    },
    Case {
        test: "set",
        pipeline: 1,
        requests: 40_000,
        stores: &[Store::Volatile, Store::Durable, Store::Redis, Store::Etcd],
    },
    Case {
        test: "get",
        pipeline: 16,
        requests: 800_000,
        stores: &[Store::Volatile, Store::Durable],
    },
    Case {
        test: "get",
        pipeline: 1,
        requests: 150_000,
        stores: &[Store::Volatile, Store::Durable],
    },
];

/// A goal of the issue: the case, and the ratio to reach.
struct Aim {
    case: usize,
    beside: Store,
    least: f64,
}

const AIMS: [Aim; 5] = [
    Aim { case: 0, beside: Store::Volatile, least: 0.5 },
    Aim { case: 1, beside: Store::Redis, least: 0.4 },
    Aim { case: 1, beside: Store::Etcd, least: 1.0 },
    Aim { case: 2, beside: Store::Volatile, least: 0.97 },
    Aim { case: 3, beside: Store::Volatile, least: 0.97 },
];

/// The rates of one store in one case.
#[derive(Debug, PartialEq)]
struct Rates {
    case: usize,
    store: Store,
    per_second: Vec<f64>,
}

/// All running stores.
struct Stores {
    volatile: Rig,
    durable: Rig,
    redis: Option<((Process, Scratch), SocketAddr)>,
    etcd: Option<(Etcd, Grpc)>,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &DurabilityArgs, results: &Results) -> Result<(), Error> {
    if !installed("redis-benchmark") {
        return Err(Error::new("install Debian's redis-tools: redis-benchmark makes the load"));
    }
    let parent = args.disk.clone().unwrap_or_else(std::env::temp_dir);
    let mut stores = start(args, &parent)?;
    let mut table = Table::new(&["store", "operation", "pipeline", "repeat", "per s", "load avg"]);
    let (mut rates, mut disk) = (Vec::new(), (Vec::new(), Vec::new()));
    for repeat in 0..args.repeats as usize {
        let alone = measure_disk(&parent)?;
        row(&mut table, ("disk", "fdatasync", 1), repeat, alone.0);
        disk.0.push(alone.0);
        disk.1.push(alone.1);
        for (index, case) in CASES.iter().enumerate() {
            for rotation in 0..case.stores.len() {
                let store = case.stores[(repeat + rotation) % case.stores.len()];
                let Some(rate) = stores.measure(args, case, store)? else { continue };
                row(&mut table, (store.name(), case.test, case.pipeline), repeat, rate);
                note(&mut rates, index, store, rate);
            }
        }
    }
    drop(stores);
    let summary = summarise(&rates, &disk);
    summary.print();
    results.csv("cost", &table)?;
    results.csv("cost-summary", &summary)
}

fn start(args: &DurabilityArgs, parent: &Path) -> Result<Stores, Error> {
    let shape = |durability| Shape { durability, ..Shape::new(args.protocol, args.replicas) };
    let volatile = Rig::start_below(parent, shape(Durability::None))?;
    let durable = Rig::start_below(parent, shape(Durability::Fsync))?;
    let mut redis = None;
    if installed("redis-server") {
        let always = ["--appendonly", "yes", "--appendfsync", "always"];
        redis = Some(redis_server_in(Scratch::below(parent)?, &always)?);
    }
    let mut etcd = None;
    if !args.no_etcd && installed("etcd") {
        let nodes = Etcd::start_in(Scratch::below(parent)?, 3, Setup::Shipped)?;
        let mut grpc = Grpc::new(&nodes.clients)?;
        fill(&mut grpc, ETCD_KEYS, VALUE_BYTES, CONNECTIONS)?;
        etcd = Some((nodes, grpc));
    }
    for listen in [volatile.listen, durable.listen] {
        benchmark(Some(args.random_keys), listen, "set", 16, 4 * args.random_keys)?;
    }
    Ok(Stores { volatile, durable, redis, etcd })
}

impl Stores {
    /// The requests per second of a store, if it is there.
    fn measure(
        &mut self,
        args: &DurabilityArgs,
        case: &Case,
        store: Store,
    ) -> Result<Option<f64>, Error> {
        let listen = match store {
            Store::Volatile => self.volatile.listen,
            Store::Durable => self.durable.listen,
            Store::Redis => match &self.redis {
                Some((_, listen)) => *listen,
                None => return Ok(None),
            },
            Store::Etcd => {
                let Some((_, grpc)) = &mut self.etcd else { return Ok(None) };
                return puts(grpc, case.pipeline).map(Some);
            }
        };
        let keys = Some(args.random_keys);
        benchmark(keys, listen, case.test, case.pipeline, case.requests).map(Some)
    }
}

/// Measures puts of etcd, with as many pending as redis-benchmark has.
fn puts(grpc: &mut Grpc, pipeline: u32) -> Result<f64, Error> {
    let plan = Plan {
        clients: CONNECTIONS * pipeline,
        value_bytes: VALUE_BYTES,
        rate: None,
        warmup_ns: SEC / 2,
        measure_ns: 2 * SEC,
    };
    let write_only = Mix::SCALE[2];
    let mut workload = Workload::new(write_only, Choice::Uniform, ETCD_KEYS, 1)?;
    let measured = run(grpc, &mut workload, plan)?;
    match measured.failed {
        0 => Ok(measured.rate()),
        failed => Err(Error::new(format!("etcd refused {failed} puts"))),
    }
}

/// Appends and calls fdatasync for a second, one after the other; returns the number per second,
/// and the median in ms.
fn measure_disk(parent: &Path) -> Result<(f64, f64), Error> {
    check_stop()?;
    let scratch = Scratch::below(parent)?;
    let path = scratch.path.join("disk");
    let write = || -> std::io::Result<(f64, f64)> {
        let file = File::create(&path)?;
        let bytes = [7; DISK_WRITE_BYTES];
        let (began, mut took) = (Instant::now(), Vec::new());
        while began.elapsed() < Duration::from_secs(1) {
            let at = Instant::now();
            file.write_all_at(&bytes, (took.len() * DISK_WRITE_BYTES) as u64)?;
            file.sync_data()?;
            took.push(at.elapsed().as_secs_f64() * 1e3);
        }
        Ok((took.len() as f64 / began.elapsed().as_secs_f64(), median(&took)))
    };
    write().cannot(format!("measure the disk of {}", parent.display()))
}

fn row(table: &mut Table, what: (&str, &str, u32), repeat: usize, rate: f64) {
    let (store, operation, pipeline) = what;
    table.row(vec![
        store.to_string(),
        operation.to_string(),
        pipeline.to_string(),
        repeat.to_string(),
        format!("{rate:.0}"),
        load_average(),
    ]);
    table.print_last();
}

fn note(rates: &mut Vec<Rates>, case: usize, store: Store, rate: f64) {
    let own = rates.iter_mut().find(|r| r.case == case && r.store == store);
    match own {
        Some(own) => own.per_second.push(rate),
        None => rates.push(Rates { case, store, per_second: vec![rate] }),
    }
}

/// The medians with their spread, and for each goal the ratio of runs that followed each other.
fn summarise(rates: &[Rates], disk: &(Vec<f64>, Vec<f64>)) -> Table {
    let mut table = Table::new(&["what", "median (min..max)", "aim"]);
    let mut add = |what: String, value: String, aim: String| table.row(vec![what, value, aim]);
    add("fdatasync of 4 KiB per s".into(), spread(&disk.0, 0), "-".into());
    add("fdatasync of 4 KiB in ms".into(), spread(&disk.1, 3), "at most 1".into());
    let named = |case: &Case| format!("{} -P {}", case.test.to_uppercase(), case.pipeline);
    for (index, case) in CASES.iter().enumerate() {
        for own in rates.iter().filter(|r| r.case == index) {
            let what = format!("{}: {} per s", named(case), own.store.name());
            add(what, spread(&own.per_second, 0), "-".into());
        }
    }
    let of = |case, store| rates.iter().find(|r| r.case == case && r.store == store);
    for aim in &AIMS {
        let Some(own) = of(aim.case, Store::Durable) else { continue };
        let Some(other) = of(aim.case, aim.beside) else { continue };
        let ratios: Vec<f64> =
            own.per_second.iter().zip(&other.per_second).map(|(own, other)| own / other).collect();
        let (case, beside) = (named(&CASES[aim.case]), aim.beside.name());
        let what = format!("{case}: {} / {beside}", Store::Durable.name());
        add(what, spread(&ratios, 2), format!("{}", aim.least));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_what_ran_in_one_round() {
        let mut rates = Vec::new();
        for (none, fsync) in [(100.0, 60.0), (200.0, 100.0), (50.0, 40.0)] {
            note(&mut rates, 0, Store::Volatile, none);
            note(&mut rates, 0, Store::Durable, fsync);
        }
        let table = summarise(&rates, &(vec![1_000.0], vec![0.5]));
        let text = format!("{table:?}");
        assert!(text.contains("SET -P 16: concord fsync / concord none"), "{text}");
        assert!(text.contains("0.60 (0.50..0.80)"), "{text}");
        assert!(!text.contains("etcd"), "{text}");
    }

    #[test]
    fn each_aim_is_of_a_case_that_runs_both() {
        for aim in &AIMS {
            let stores = CASES[aim.case].stores;
            assert!(stores.contains(&Store::Durable) && stores.contains(&aim.beside));
        }
    }
}
