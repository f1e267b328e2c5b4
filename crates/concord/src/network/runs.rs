//! The run of a point: its results in memory, and its files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use concord_sim::engine::{NS, US};
use concord_sim::net::import::hpcc;
use concord_sim::net::scenario::{Options, Point, Scenario};
use concord_sim::net::{Experiment, Outcome, PortReport, PromiseReport, Slowdowns, write_captured};

use super::NetArgs;
use crate::results::Results;

/// The maximum size of a file with a line per flow, and of all such files of a command together, in
/// bytes. Further lines are left out, and the file and the report say so.
const FILE_BYTES_MAX: u64 = 1 << 30;
const FILES_BYTES_MAX: u64 = 8 << 30;
/// The number of bytes of a captured packet in a file.
const CAPTURED_BYTES: u64 = 56;

/// The files that a point leaves.
pub struct Files<'a> {
    /// The flags.
    pub args: &'a NetArgs,
    /// The ports that are captured.
    pub capture: Vec<u32>,
    /// The directory of the files.
    pub results: &'a Results,
    /// The number of points that leave files.
    pub points: usize,
}

impl Files<'_> {
    /// The maximum size of each file, in bytes: the same for every point, so that it does not
    /// matter which one runs first.
    fn bytes_max(&self) -> u64 {
        let kinds = u64::from(self.args.flows)
            + u64::from(self.args.fct)
            + u64::from(!self.capture.is_empty());
        let files = kinds.max(1) * self.points.max(1) as u64;
        (FILES_BYTES_MAX / files).min(FILE_BYTES_MAX)
    }
}

/// The results of a run: the slowdowns by classes of sizes, without the flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The slowdowns of all measured flows.
    pub all: Slowdowns,
    /// The slowdowns of each class of sizes.
    pub by_size: Vec<Slowdowns>,
    /// The maximum queue at any switch port, in bytes.
    pub waiting_bytes_max: u64,
    /// The mean queue at the switch port where it is longest, in bytes.
    pub waiting_bytes_mean: f64,
    /// The use of the switch port that is used most, 0 to 1.
    pub use_max: f64,
    /// The payload that arrived during the measurement, in Gb/s.
    pub goodput_gbps: f64,
    /// The number of packets dropped at full buffers.
    pub dropped: u64,
    /// The number of congestion marks set while ports were measured.
    pub marked: u64,
    /// The number of times that a lossless network would have paused an input.
    pub would_pause: u64,
    /// The time when the run ended, in us.
    pub ended_us: f64,
    /// The number of messages that the transport rejected, if it can reject messages.
    pub rejected: Option<u64>,
    /// The transport's bound of queues, if it has one, and the longest queue.
    pub kept: Option<PromiseReport>,
    /// The transport's counters.
    pub transport: Vec<(&'static str, u64)>,
    /// The reports of all ports, if they are wanted.
    pub ports: Vec<PortReport>,
    /// The number of packets that were not captured because there were too many.
    pub not_captured: u64,
    /// The number of lines of flows left out because there were too many.
    pub not_written: u64,
    /// The hash of the run: equal for equal runs.
    pub digest: u64,
}

/// The classes of sizes in bytes: above, and up to.
pub fn classes(scenario: &Scenario) -> Vec<(u64, u64)> {
    let mut from = 0;
    let bounds = scenario.size_bounds.iter().copied().filter(|&bound| bound < u64::MAX);
    let class = |to: u64| (std::mem::replace(&mut from, to), to);
    bounds.chain([u64::MAX]).map(class).collect()
}

/// The name of a point in names of files.
pub fn name(point: &Point) -> String {
    let load = point.load.map(|load| format!("-load{load}")).unwrap_or_default();
    format!("{}{load}-seed{}", point.transport.name(), point.seed)
}

/// Runs a point, and writes its files.
pub fn run(scenario: &Scenario, point: &Point, files: &Files<'_>) -> Result<Run, String> {
    let options = Options { capture: files.capture.clone(), ..Options::default() };
    let (experiment, outcome) = scenario.run(point, &options).map_err(|e| e.to_string())?;
    let write = |file: String, write: &dyn Fn(&Path) -> io::Result<u64>| {
        let path = files.results.path(&file);
        write(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))
    };
    let (name, args, most) = (name(point), files.args, files.bytes_max());
    let (mut not_written, mut not_captured) = (0, outcome.not_captured);
    if args.flows {
        not_written += write(format!("flows-{name}.csv"), &|path| {
            write_flows(path, most, scenario, &experiment, &outcome)
        })?;
    }
    if args.fct {
        not_written += write(format!("fct-{name}.txt"), &|path| {
            write_fct(path, most, scenario, &experiment, &outcome)
        })?;
    }
    if !files.capture.is_empty() {
        not_captured += write(format!("{name}.pcap"), &|path| {
            let all = &outcome.captured;
            let kept = all.len().min(usize::try_from(most / CAPTURED_BYTES).unwrap_or(usize::MAX));
            write_captured(&all[..kept], &mut BufWriter::new(File::create(path)?))?;
            Ok((all.len() - kept) as u64)
        })?;
    }
    let run = Run::of(scenario, &experiment, outcome, args.ports);
    Ok(Run { not_captured, not_written, ..run })
}

impl Run {
    fn of(scenario: &Scenario, experiment: &Experiment, outcome: Outcome, ports: bool) -> Run {
        let class = |&(above, to): &(u64, u64)| Slowdowns::of(experiment, &outcome, above + 1..=to);
        let hosts = experiment.topology.hosts();
        let switches = || outcome.ports.iter().filter(|port| port.from.0 >= hosts);
        let most = |of: fn(&PortReport) -> f64| switches().map(of).fold(0.0, f64::max);
        let measured = outcome.ended.min(experiment.measure_until).0;
        let measured_ps = measured.saturating_sub(experiment.warm_up.0).max(1);
        Run {
            all: Slowdowns::of(experiment, &outcome, 0..=u64::MAX),
            by_size: classes(scenario).iter().map(class).collect(),
            waiting_bytes_max: switches().map(|p| p.queue.waiting_bytes_max).max().unwrap_or(0),
            waiting_bytes_mean: most(PortReport::waiting_bytes_mean),
            use_max: most(PortReport::use_share),
            goodput_gbps: outcome.arrived_bytes as f64 * 8e3 / measured_ps as f64,
            dropped: outcome.network.dropped_port,
            marked: outcome.ports.iter().map(|port| port.queue.marked).sum(),
            would_pause: outcome.would_pause(),
            ended_us: outcome.ended.0 as f64 / US as f64,
            rejected: outcome.rejected,
            kept: outcome.kept,
            transport: outcome.transport,
            not_captured: outcome.not_captured,
            not_written: 0,
            digest: outcome.digest,
            ports: if ports { outcome.ports } else { Vec::new() },
        }
    }
}

/// Writes lines until the file has `bytes_max` bytes; returns the number of lines left out.
fn write_lines(
    path: &Path,
    bytes_max: u64,
    head: &str,
    lines: impl Iterator<Item = String>,
) -> io::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(head.as_bytes())?;
    let (mut written, mut left_out) = (head.len() as u64, 0);
    for line in lines {
        written += line.len() as u64 + 1;
        if written > bytes_max {
            left_out += 1;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    if left_out > 0 {
        writeln!(out, "# cut off at {bytes_max} bytes: {left_out} lines are left out")?;
    }
    out.flush()?;
    Ok(left_out)
}

fn write_flows(
    path: &Path,
    bytes_max: u64,
    scenario: &Scenario,
    experiment: &Experiment,
    outcome: &Outcome,
) -> io::Result<u64> {
    let head = "# times in ns; a flow without an end has none, and no slowdown\n\
                flow,from,to,bytes,begin_ns,took_ns,ideal_ns,slowdown,received_bytes,measured\n";
    let all = experiment.flows.iter().zip(&outcome.flows).enumerate();
    let line = |(number, (planned, flow)): (usize, (&concord_sim::net::PlannedFlow, &_))| {
        let flow: &concord_sim::net::FlowReport = flow;
        let spec = planned.spec;
        let ns = |ps: u64| format!("{}.{:03}", ps / NS, ps % NS);
        let (from, to) = (scenario.names.of(spec.from.into()), scenario.names.of(spec.to.into()));
        let took = flow.completion_ps();
        let slowdown = took.map(|took| took as f64 / flow.ideal_ps.max(1) as f64);
        let measured = flow.began.is_none_or(|began| began >= experiment.warm_up);
        format!(
            "{number},{from},{to},{},{},{},{},{},{},{measured}",
            spec.bytes,
            flow.began.map(|began| ns(began.0)).unwrap_or_default(),
            took.map(ns).unwrap_or_default(),
            ns(flow.ideal_ps),
            slowdown.map(|slowdown| format!("{slowdown:.6}")).unwrap_or_default(),
            flow.received_bytes,
        )
    };
    write_lines(path, bytes_max, head, all.map(line))
}

fn write_fct(
    path: &Path,
    bytes_max: u64,
    scenario: &Scenario,
    experiment: &Experiment,
    outcome: &Outcome,
) -> io::Result<u64> {
    // A topology in HPCC's format has its own numbers as names.
    let number = |host: concord_sim::net::HostIndex| {
        scenario.names.of(host.into()).parse().unwrap_or(host.0)
    };
    write_lines(path, bytes_max, "", hpcc::fct(experiment, outcome, number))
}
