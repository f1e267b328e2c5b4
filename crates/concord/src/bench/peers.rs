//! `concord bench peers`: the rack compared with one unreplicated redis-server, by Redis' own
//! benchmark, and with a three-node etcd, in one run.

use std::net::SocketAddr;
use std::process::Command;

use clap::Args;
use concord_core::SEC;
use concord_runtime::{Context, Error};

use super::etcd::{Etcd, Grpc, Setup};
use super::load::{Plan, check_stop, fill, run};
use super::rig::{Rig, Shape};
use super::workload::{Choice, Mix, Workload};
use super::ycsb::{installed, redis_server};
use crate::results::{Mark, Plot, Results, Scale, Table, load_average, median, spread};
use crate::systems::store::Protocol;

/// The number of connections of redis-benchmark.
pub const CONNECTIONS: u32 = 50;
/// The pipelines of redis-benchmark, and the number of GETs with each.
const PIPELINES: [(u32, u64); 2] = [(16, 2_000_000), (1, 300_000)];
const ETCD_KEYS: u64 = 1_000;
const ETCD_VALUE_BYTES: usize = 16;

/// `concord bench peers`.
#[derive(Args, Clone, Debug)]
pub struct PeersArgs {
    /// Number of runs of each, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// GETs of this number of random keys, instead of one key as is redis-benchmark's default
    #[arg(long, value_name = "N")]
    pub random_keys: Option<u64>,
    /// Number of replicas of the rack
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: u16,
    /// Leave etcd out
    #[arg(long)]
    pub no_etcd: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &PeersArgs, results: &Results) -> Result<(), Error> {
    for program in ["redis-server", "redis-benchmark"] {
        if !installed(program) {
            return Err(Error::new("install Debian's redis to compare with it"));
        }
    }
    let mut table = Table::new(&["target", "pipeline", "repeat", "GET/s", "load avg"]);
    let rig = Rig::start(Shape::new(Protocol::Chain, args.replicas))?;
    let (redis, redis_listen) = redis_server()?;
    let sides = [("concord", rig.listen), ("redis-server", redis_listen)];
    for (_, listen) in sides {
        benchmark(
            args.random_keys,
            listen,
            "set",
            16,
            args.random_keys.unwrap_or(1_000).max(1_000) * 4,
        )?;
    }
    // rates[pipeline][side]
    let mut rates = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for repeat in 0..args.repeats as usize {
        for (p, &(pipeline, requests)) in PIPELINES.iter().enumerate() {
            for rotation in 0..sides.len() {
                let side = (repeat + rotation) % sides.len();
                let rate = benchmark(args.random_keys, sides[side].1, "get", pipeline, requests)?;
                rates[p][side].push(rate);
                row(&mut table, sides[side].0, pipeline, repeat, rate);
            }
        }
    }
    drop((rig, redis));
    let mut etcd = [Vec::new(), Vec::new()];
    if !args.no_etcd && installed("etcd") {
        etcd = measure_etcd(args, &mut table)?;
    }
    summarise(&rates, &etcd).print();
    results.csv("peers", &table)?;
    results.csv("peers-summary", &summarise(&rates, &etcd))?;
    results.plot("peers", &plot(&rates, &etcd))
}

fn row(table: &mut Table, name: &str, pipeline: u32, repeat: usize, rate: f64) {
    table.row(vec![
        name.to_string(),
        pipeline.to_string(),
        repeat.to_string(),
        format!("{rate:.0}"),
        load_average(),
    ]);
    table.print_last();
}

/// Makes one run of redis-benchmark; returns the requests per second.
///
/// # Errors
/// If it prints no rate, or a signal came.
pub fn benchmark(
    random_keys: Option<u64>,
    listen: SocketAddr,
    test: &str,
    pipeline: u32,
    requests: u64,
) -> Result<f64, Error> {
    benchmark_of(random_keys, listen, &["-t", test], pipeline, requests)
}

/// As [`benchmark`], of the test or command `what`, its last arguments.
///
/// # Errors
/// If it prints no rate, or a signal came.
pub fn benchmark_of(
    random_keys: Option<u64>,
    listen: SocketAddr,
    what: &[&str],
    pipeline: u32,
    requests: u64,
) -> Result<f64, Error> {
    check_stop()?;
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &listen.ip().to_string(), "-p", &listen.port().to_string()]);
    command.args(["-c", &CONNECTIONS.to_string(), "-P", &pipeline.to_string()]);
    command.args(["-n", &requests.to_string(), "--csv"]);
    if let Some(keys) = random_keys {
        command.args(["-r", &keys.to_string()]);
    }
    let output = command.args(what).output().cannot("run redis-benchmark")?;
    check_stop()?;
    let text = String::from_utf8_lossy(&output.stdout);
    rate_of(&text).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().last().or(text.lines().last()).unwrap_or("nothing").to_string();
        Error::new(format!("redis-benchmark said no rate but: {last}"))
    })
}

/// The rate in the last line, such as `"GET","663129.94","0.57",...`.
fn rate_of(csv: &str) -> Option<f64> {
    let (_, rest) = csv.lines().last()?.split_once("\",\"")?;
    rest.split('"').next()?.parse().ok()
}

/// Measures linearizable gets of three nodes, with as many pending as redis-benchmark has.
fn measure_etcd(args: &PeersArgs, table: &mut Table) -> Result<[Vec<f64>; 2], Error> {
    let etcd = Etcd::start(3, Setup::Shipped)?;
    let mut grpc = Grpc::new(&etcd.clients)?;
    fill(&mut grpc, ETCD_KEYS, ETCD_VALUE_BYTES, CONNECTIONS)?;
    let mut rates = [Vec::new(), Vec::new()];
    for repeat in 0..args.repeats as usize {
        for (p, &(pipeline, _)) in PIPELINES.iter().enumerate() {
            let plan = Plan {
                clients: CONNECTIONS * pipeline,
                value_bytes: ETCD_VALUE_BYTES,
                rate: None,
                warmup_ns: SEC / 2,
                measure_ns: 3 * SEC,
            };
            let read_only = Mix::SCALE[0];
            let mut workload = Workload::new(read_only, Choice::Uniform, ETCD_KEYS, 1)?;
            let measured = run(&mut grpc, &mut workload, plan)?;
            if measured.failed > 0 {
                return Err(Error::new(format!("etcd refused {} gets", measured.failed)));
            }
            rates[p].push(measured.rate());
            row(table, "etcd", pipeline, repeat, measured.rate());
        }
    }
    Ok(rates)
}

type Rates = [[Vec<f64>; 2]; 2];

fn summarise(rates: &Rates, etcd: &[Vec<f64>; 2]) -> Table {
    let mut table = Table::new(&[
        "connections x pipeline",
        "concord GET/s",
        "redis-server GET/s",
        "etcd gets/s",
        "concord / redis-server",
        "concord / etcd",
    ]);
    for (p, (pipeline, _)) in PIPELINES.iter().enumerate() {
        let [concord, redis] = &rates[p];
        let pairs: Vec<f64> = concord.iter().zip(redis).map(|(c, r)| c / r).collect();
        let (of_etcd, times) = match etcd[p].is_empty() {
            true => ("-".to_string(), "-".to_string()),
            false => {
                let times = median(concord) / median(&etcd[p]);
                (spread(&etcd[p], 0), format!("{times:.1}"))
            }
        };
        table.row(vec![
            format!("{CONNECTIONS} x {pipeline}"),
            spread(concord, 0),
            spread(redis, 0),
            of_etcd,
            spread(&pairs, 3),
            times,
        ]);
    }
    table
}

fn plot<'a>(rates: &'a Rates, etcd: &'a [Vec<f64>; 2]) -> Plot {
    let line = |of: &dyn Fn(usize) -> &'a [f64]| {
        let at = |p| Some(Mark::at_median(p as f64 + 1.0, of(p))?.in_units_of(1e3));
        (0..PIPELINES.len()).filter_map(at).collect::<Vec<_>>()
    };
    let mut series = vec![
        ("concord, 3 replicas".to_string(), line(&|p| &rates[p][0])),
        ("redis-server, one".to_string(), line(&|p| &rates[p][1])),
    ];
    if etcd.iter().all(|rates| !rates.is_empty()) {
        series.push(("etcd, 3 nodes".to_string(), line(&|p| &etcd[p])));
    }
    Plot {
        title: "GET, 50 connections".to_string(),
        x: "pipeline",
        y: "thousand GETs/s",
        x_names: PIPELINES.iter().map(|(pipeline, _)| pipeline.to_string()).collect(),
        scale: Scale::Places,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_redis_benchmark_s_csv() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"663129.94\",\"0.57\"\n";
        assert_eq!(rate_of(csv), Some(663_129.94));
        assert_eq!(rate_of("\"MGET a b\",\"1.50\",\"0.57\"\n"), Some(1.5));
        assert_eq!(rate_of("\"test\",\"rps\"\n"), None);
        assert_eq!(rate_of(""), None);
    }
}
