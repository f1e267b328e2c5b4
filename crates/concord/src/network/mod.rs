//! `concord net`: a topology and a workload with several transports, loads and seeds, packet by
//! packet. [`runs`] runs the points, [`report`] shows and writes their results, [`explain`] shows
//! the time of a flow, [`load`] searches for the highest load.

mod explain;
mod load;
mod report;
mod runs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use clap::Args;
use concord_runtime::{Context, Error};
use concord_sim::net::scenario::{FILE_BYTES_MAX, Point, Scenario, TransportKind};
use concord_sim::net::{IDEAL_TIME, NodeIndex};

use crate::reproduce::Runner;
use crate::results::Results;

/// The maximum number of points of a command.
const POINTS_MAX: usize = 100_000;
/// The maximum number of ports times points of `--ports`, whose reports stay in memory until all
/// points have run.
const PORT_ROWS_MAX: u64 = 2_000_000;

/// `concord net`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord net rack.toml --transport newreno,dctcp --load 0.3,0.5,0.8 --seeds 5
  concord net rack.toml --quick                              a tenth of the time, one seed
  concord net rack.toml --flows --fct --ports                a file of each point, too
  concord net rack.toml --load 0.5 --explain-flow 17         where the time of flow 17 went
  concord net rack.toml --find-load                          the highest load that is carried

docs/guides/network.md begins with an example and lists every key of the file.")]
pub struct NetArgs {
    /// The scenario file: topology, buffers, workload, transports
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Transports to run: windowed, newreno, dctcp, hpcc, dcpim, fastpass, harmony [default: those
    /// of the file]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    transport: Vec<String>,
    /// Loads, as shares of the hosts' links; only for Poisson arrivals [default: those of the file]
    #[arg(long, value_delimiter = ',')]
    load: Vec<f64>,
    /// Number of runs of each point, each with another seed [default: the file's, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: Option<u64>,
    /// The first seed [default: the file's, or 1]
    #[arg(long, value_name = "SEED")]
    first_seed: Option<u64>,
    /// Number of threads, which run points side by side [default: the number of cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Run a tenth of the arrivals and of the warm-up, or of the bytes of a pattern, with one seed
    #[arg(long, conflicts_with = "seeds")]
    quick: bool,
    /// Write every flow of each point to flows-POINT.csv
    #[arg(long)]
    flows: bool,
    /// Write the completed flows in the format of HPCC's simulator to fct-POINT.txt
    #[arg(long)]
    fct: bool,
    /// Write the report of every port to ports.csv
    #[arg(long)]
    ports: bool,
    /// Capture the packets that leave these ports, given as FROM:TO, in POINT.pcap
    #[arg(long, value_delimiter = ',', value_name = "FROM:TO")]
    pcap: Vec<String>,
    /// Show where the time of this flow of the first point went
    #[arg(long, value_name = "N", conflicts_with_all = ["find_load", "flows", "fct", "ports", "pcap"])]
    explain_flow: Option<u32>,
    /// Search for the highest load of which 99% of the bytes arrive, in steps of 0.01
    #[arg(long, conflicts_with_all = ["load", "flows", "fct", "ports", "pcap"])]
    find_load: bool,
    /// The directory for results, which are in net/NAME/; NAME is the scenario's file without .toml
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// One line: the file, a point, or the results cannot be used.
pub fn run(args: &NetArgs) -> Result<(), Error> {
    let name = args.file.display().to_string();
    let mut scenario = read(&args.file)?;
    if args.quick {
        scenario.shorten();
    }
    let wrong = |why: &dyn std::fmt::Display| Error::new(format!("{name}: {why}"));
    let plan = Plan::new(args, &scenario).map_err(|e| wrong(&e))?;
    let capture = plan.ports(args, &scenario).map_err(|e| wrong(&e))?;
    let about = about(args, &scenario, &plan);
    for line in &about {
        println!("{line}");
    }
    if let Some(flow) = args.explain_flow {
        return explain::run(&scenario, &plan.points[0], flow);
    }
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let results = || -> Result<Results, Error> {
        Ok(Results::below(&args.out.join("net"), &stem)?.about(about.clone()))
    };
    if args.find_load {
        return load::find(&scenario, &plan, &runner(args, plan.searches() as u64), results);
    }
    let results = results()?;
    let files = runs::Files { args, capture, results: &results, points: plan.points.len() };
    let runner = runner(args, plan.points.len() as u64);
    let all = runner.each(&stem, &plan.points, |point| runs::run(&scenario, point, &files));
    runner.finish();
    report::write(args, &scenario, &plan, &all?, &results)
}

fn runner(args: &NetArgs, runs: u64) -> Runner {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    Runner::new(args.threads.unwrap_or_else(cores), runs)
}

/// Reads a scenario, and the files that it names, which are beside it.
fn read(path: &Path) -> Result<Scenario, Error> {
    let name = path.display();
    let text = read_text(path).cannot(format!("read {name}"))?;
    let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let files = |file: &str| {
        let path = folder.join(file);
        read_text(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    Scenario::parse(&text, &files).map_err(|e| Error::new(format!("{name}: {e}")))
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let length = std::fs::metadata(path)?.len();
    if length > FILE_BYTES_MAX as u64 {
        let why = format!("{length} bytes: at most {FILE_BYTES_MAX}");
        return Err(std::io::Error::other(why));
    }
    std::fs::read_to_string(path)
}

/// The points of a command, all of which can be run.
#[derive(Debug)]
struct Plan {
    transports: Vec<TransportKind>,
    /// The loads; a single `None` if the workload has no load.
    loads: Vec<Option<f64>>,
    seeds: Vec<u64>,
    points: Vec<Point>,
}

impl Plan {
    fn new(args: &NetArgs, scenario: &Scenario) -> Result<Plan, String> {
        let defaults = &scenario.defaults;
        let mut transports = defaults.transports.clone();
        if !args.transport.is_empty() {
            let parse = |name: &String| TransportKind::parse(name).map_err(|e| e.to_string());
            transports = args.transport.iter().map(parse).collect::<Result<_, _>>()?;
        }
        if transports.is_empty() {
            return Err("no transport: give --transport, or transports in [run]".into());
        }
        let loads = if args.load.is_empty() { &defaults.loads } else { &args.load };
        let mut loads: Vec<Option<f64>> = loads.iter().copied().map(Some).collect();
        if args.find_load && !scenario.has_load() {
            return Err("--find-load: only Poisson arrivals have a load".into());
        }
        if args.find_load {
            loads = vec![Some(0.01)];
        }
        if loads.is_empty() {
            loads.push(None);
        }
        let first = args.first_seed.or(defaults.first_seed).unwrap_or(1);
        let count = if args.quick { 1 } else { args.seeds.or(defaults.seeds).unwrap_or(1) };
        let Some(last) = first.checked_add(count) else {
            return Err(format!("seeds from {first} on run over the largest number"));
        };
        let seeds: Vec<u64> = (first..last).collect();
        let mut points = Vec::new();
        for &transport in &transports {
            for &load in &loads {
                points.extend(seeds.iter().map(|&seed| Point { transport, load, seed }));
            }
        }
        let ports = 2 * scenario.topology.links().len() as u64;
        let rows = ports.saturating_mul(points.len() as u64);
        if args.ports && rows > PORT_ROWS_MAX {
            let why = "write fewer points, or leave --ports out";
            return Err(format!("--ports: {rows} rows, at most {PORT_ROWS_MAX}: {why}"));
        }
        if points.len() > POINTS_MAX {
            return Err(format!("{} runs: at most {POINTS_MAX}", points.len()));
        }
        for point in points.iter().filter(|point| point.seed == first) {
            scenario.check(point).map_err(|e| e.to_string())?;
        }
        Ok(Plan { transports, loads, seeds, points })
    }

    /// The number of searches for a load.
    fn searches(&self) -> usize {
        self.transports.len()
    }

    /// The ports of `--pcap`.
    fn ports(&self, args: &NetArgs, scenario: &Scenario) -> Result<Vec<u32>, String> {
        let nodes = scenario.topology.hosts() + scenario.topology.switches();
        let mut ports = Vec::new();
        for port in &args.pcap {
            let node = |name: &str| {
                let unknown = || format!("--pcap {port}: unknown host or switch {name}");
                scenario.names.find(name, nodes).ok_or_else(unknown)
            };
            let (from, to) = port
                .split_once(':')
                .ok_or_else(|| format!("--pcap {port}: write FROM:TO, like h0:s0"))?;
            let ends = (node(from)?, node(to)?);
            let before = ports.len();
            ports.extend(ports_between(scenario, ends));
            if ports.len() == before {
                return Err(format!("--pcap {port}: no link from {from} to {to}"));
            }
        }
        Ok(ports)
    }
}

/// The ports by which one node sends to the other.
fn ports_between(scenario: &Scenario, ends: (NodeIndex, NodeIndex)) -> Vec<u32> {
    let port = |(link, &(a, b, _)): (usize, &(NodeIndex, NodeIndex, _))| match () {
        () if (a, b) == ends => Some(2 * link as u32),
        () if (b, a) == ends => Some(2 * link as u32 + 1),
        () => None,
    };
    scenario.topology.links().iter().enumerate().filter_map(port).collect()
}

/// The description that every output has.
fn about(args: &NetArgs, scenario: &Scenario, plan: &Plan) -> Vec<String> {
    let command: Vec<String> = std::env::args().collect();
    let (first, last) = (plan.seeds[0], plan.seeds[plan.seeds.len() - 1]);
    let quick = if args.quick { "; --quick: times or bytes are a tenth" } else { "" };
    let warm_up = match scenario.has_load() {
        true => format!(
            "{} us: flows that begin before are not measured; ports are from then to the last arrival",
            scenario.warm_up_us()
        ),
        false => "none: all flows and the whole run are measured".into(),
    };
    let rate = scenario.host_bits_per_s() as f64 / 1e9;
    let mut about = vec![
        format!("command: {}", command.join(" ")),
        format!("scenario: {}, seeds {first} to {last}{quick}", args.file.display()),
        format!("warm-up: {warm_up}"),
        format!("ideal time: {IDEAL_TIME}"),
    ];
    if scenario.has_load() {
        about.push(format!("load: payload, as a share of the hosts' links of {rate} Gb/s"));
    }
    about
}
