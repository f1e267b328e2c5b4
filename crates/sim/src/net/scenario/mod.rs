//! Scenarios: a topology, its buffers, a workload and the parameters of transports, read from a
//! TOML file, and the runs of its points.
//!
//! [`Scenario::parse`] reads and checks a file, [`Scenario::check`] checks a point, and
//! [`Scenario::run`] runs one. The result of a point depends only on the file and the point.

mod flows;
mod section;
#[cfg(test)]
mod tests;
mod transports;
mod wiring;

use concord_core::Rng;
use concord_core::rng::splitmix64;

pub use section::{Files, ScenarioError};
pub use transports::TransportKind;
pub use wiring::{HOSTS_MAX, Names};

use super::dcpim::Dcpim;
use super::dctcp::Dctcp;
use super::experiment::{Experiment, Outcome, PlannedFlow};
use super::fastpass::Fastpass;
use super::harmony::{Harmony, HarmonyPlan, MESSAGE_BYTES_MAX};
use super::hpcc::{self, Hpcc};
use super::managed::QueueSpec;
use super::newreno::NewReno;
use super::tcp::Tcp;
use super::topology::{Routing, Topology};
use super::windowed::Windowed;
use crate::engine::US;
use flows::Workload;
use section::{Section, wrong};
use transports::Settings;

/// The maximum size of a scenario's file, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// The maximum length of a flow, in packets.
const FLOW_PACKETS_MAX: u64 = 1 << 31;
/// The maximum number of packets of all flows with the plain window, which stores two bits of each.
const WINDOWED_PACKETS_MAX: u64 = 1 << 32;
/// The default bounds of flow sizes, in bytes, for which slowdowns are shown.
const SIZE_BOUNDS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];

/// A parsed scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The wiring.
    pub topology: Topology,
    /// The names of its nodes.
    pub names: Names,
    /// The points that are run unless flags say otherwise.
    pub defaults: Defaults,
    /// Slowdowns are shown for flows up to each of these sizes in bytes, and for longer ones.
    pub size_bounds: Vec<u64>,
    routing: Routing,
    queues: QueueSpec,
    workload: Workload,
    settings: Settings,
    host_bits_per_s: u64,
    links_between_max: u32,
}

/// The section `[run]`.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The transports.
    pub transports: Vec<TransportKind>,
    /// The loads.
    pub loads: Vec<f64>,
    /// The number of runs of each point.
    pub seeds: Option<u64>,
    /// The first seed.
    pub first_seed: Option<u64>,
}

/// One run of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The transport of the flows.
    pub transport: TransportKind,
    /// The load, as a share of the hosts' links; only Poisson arrivals have one.
    pub load: Option<f64>,
    /// The seed of everything random.
    pub seed: u64,
}

/// The optional records of a run, beside its statistics.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The flow whose packets' visits at ports are recorded.
    pub watch: Option<u32>,
    /// The ports whose packets are captured.
    pub capture: Vec<u32>,
    /// Whether the run ends with the last arrival.
    pub is_cut_off: bool,
}

impl Scenario {
    /// Parses a scenario; `files` reads the files that it names.
    ///
    /// # Errors
    /// One line: malformed TOML, an unknown key, an invalid value, or a graph that is not
    /// connected.
    pub fn parse(text: &str, files: &Files<'_>) -> Result<Scenario, ScenarioError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
            ScenarioError(format!("line {line}: {}", error.message().replace('\n', "; ")))
        })?;
        let mut file = Section::new("", text, table);
        let (topology, buffers) = (file.section("topology")?, file.section("buffers")?);
        let (workload, transport) = (file.section("workload")?, file.section("transport")?);
        let run = file.section("run")?;
        for (name, section) in [("topology", &topology), ("workload", &workload)] {
            if section.is_empty() {
                file.finish()?;
                return wrong(format!("the section [{name}] is missing"));
            }
        }
        file.finish()?;
        let (defaults, size_bounds) = read_run(run)?;
        let wiring = wiring::read(topology, buffers, files)?;
        let settings = Settings::read(transport, &wiring.topology, host_rate(&wiring.topology))?;
        let workload = Workload::read(workload, &wiring.topology, &wiring.names, files)?;
        let scenario = Scenario {
            host_bits_per_s: host_rate(&wiring.topology),
            links_between_max: wiring.topology.links_between_max(),
            topology: wiring.topology,
            names: wiring.names,
            defaults,
            size_bounds,
            routing: wiring.routing,
            queues: wiring.queues,
            workload,
            settings,
        };
        if !scenario.has_load() && !scenario.defaults.loads.is_empty() {
            return wrong("[run] loads: only Poisson arrivals have a load");
        }
        Ok(scenario)
    }

    /// Whether the workload has a load.
    #[must_use]
    pub fn has_load(&self) -> bool {
        self.workload.has_load()
    }

    /// The warm-up, in us: flows that begin before its end are not measured, nor are the ports.
    #[must_use]
    pub fn warm_up_us(&self) -> f64 {
        self.workload.warm_up_ps() as f64 / US as f64
    }

    /// Shortens Poisson arrivals and the warm-up to a tenth of their time, or a pattern to a tenth
    /// of its bytes; lists of flows stay unchanged.
    pub fn shorten(&mut self) {
        self.workload.shorten();
    }

    /// The bandwidth to which loads refer: that of the slowest host's link, in bits per second.
    #[must_use]
    pub fn host_bits_per_s(&self) -> u64 {
        self.host_bits_per_s
    }

    /// The number of links on the longest of the shortest paths between hosts.
    #[must_use]
    pub fn links_between_max(&self) -> u32 {
        self.links_between_max
    }

    /// Checks that a point can be run.
    ///
    /// # Errors
    /// One line: an invalid load, or a transport that needs something that the scenario does not
    /// have.
    pub fn check(&self, point: &Point) -> Result<(), ScenarioError> {
        let name = point.transport.name();
        match (self.has_load(), point.load) {
            (true, None) => return wrong("Poisson arrivals need a load: --load, or [run] loads"),
            (false, Some(_)) => {
                return wrong("a load is given, but only Poisson arrivals have one");
            }
            _ => {}
        }
        let hosts = (self.topology.hosts(), self.host_bits_per_s);
        self.workload.check(hosts, point.load).map_err(|e| ScenarioError(e.to_string()))?;
        if self.routing == Routing::Spray && point.transport.needs_order() {
            return wrong(format!(
                "[topology] routing = \"spray\" reorders packets, which {name} takes for loss: use ecmp"
            ));
        }
        let switches = self.links_between_max.saturating_sub(1);
        if point.transport == TransportKind::Hpcc && switches > hpcc::HOPS_MAX as u32 {
            let most = hpcc::HOPS_MAX;
            return wrong(format!(
                "[topology] paths of {switches} switches: hpcc's packets have room for {most}"
            ));
        }
        if point.transport == TransportKind::Harmony {
            self.harmony()?;
        }
        if point.transport == TransportKind::Dctcp && self.queues.marking.is_none() {
            return wrong("dctcp without marks is newreno: give ecn_bytes in [buffers]");
        }
        Ok(())
    }

    /// The settings of Harmony's hosts and switches.
    fn harmony(&self) -> Result<HarmonyPlan, ScenarioError> {
        let named = |error: &dyn std::fmt::Display| ScenarioError(format!("harmony: {error}"));
        let plan = HarmonyPlan::new(&self.topology, &self.settings.harmony);
        let plan = plan.map_err(|e| named(&e))?;
        plan.check_buffers(&self.topology, &self.queues).map_err(|e| named(&e))?;
        Ok(plan)
    }

    /// The experiment of a point, before it is run.
    ///
    /// # Errors
    /// As [`Scenario::check`].
    pub fn experiment(
        &self,
        point: &Point,
        options: &Options,
    ) -> Result<Experiment, ScenarioError> {
        self.check(point)?;
        let mut rng = Rng::new(point.seed);
        let hosts = (self.topology.hosts(), self.host_bits_per_s);
        let drawn = self.workload.draw(hosts, point.load, &mut rng);
        let drawn = drawn.map_err(|e| ScenarioError(e.to_string()))?;
        self.check_lengths(point.transport, &drawn.flows)?;
        let until = if options.is_cut_off { drawn.measure_until } else { drawn.until };
        Ok(Experiment {
            topology: self.topology.clone(),
            routing: self.routing,
            queues: self.queues,
            flows: drawn.flows,
            triggers: drawn.triggers,
            warm_up: drawn.warm_up,
            measure_until: drawn.measure_until,
            until,
            watch: options.watch,
            capture: options.capture.clone(),
            seed: rng.next_u64(),
        })
    }

    /// Checks that no flow has more packets than a transport can number.
    fn check_lengths(
        &self,
        kind: TransportKind,
        flows: &[PlannedFlow],
    ) -> Result<(), ScenarioError> {
        let payload = u64::from(self.settings.payload_bytes(kind));
        let packets = |flow: &PlannedFlow| flow.spec.bytes.div_ceil(payload);
        let longest = flows.iter().map(packets).max().unwrap_or(0);
        if longest >= FLOW_PACKETS_MAX {
            let why = format!("a flow of {longest} packets of {payload} bytes");
            return wrong(format!("[workload] {why}: fewer than {FLOW_PACKETS_MAX}"));
        }
        let most = flows.iter().map(|flow| flow.spec.bytes).max().unwrap_or(0);
        if kind == TransportKind::Harmony && most > MESSAGE_BYTES_MAX {
            return wrong(format!(
                "[workload] a flow of {most} bytes: harmony's messages have at most {MESSAGE_BYTES_MAX}"
            ));
        }
        let all: u64 = flows.iter().map(packets).sum();
        if kind == TransportKind::Windowed && all > WINDOWED_PACKETS_MAX {
            return wrong(format!(
                "[workload] {all} packets: windowed keeps each one's state, at most {WINDOWED_PACKETS_MAX}"
            ));
        }
        Ok(())
    }

    /// Runs a point; returns the experiment and its results.
    ///
    /// # Errors
    /// As [`Scenario::check`].
    pub fn run(
        &self,
        point: &Point,
        options: &Options,
    ) -> Result<(Experiment, Outcome), ScenarioError> {
        let experiment = self.experiment(point, options)?;
        let settings = &self.settings;
        let outcome = match point.transport {
            TransportKind::Windowed => experiment.run(&mut Windowed::new(settings.windowed)),
            TransportKind::NewReno => experiment.run(&mut Tcp::new(settings.newreno, NewReno)),
            TransportKind::Dctcp => {
                let dctcp = Dctcp::new(settings.gain_shift);
                experiment.run(&mut Tcp::new(settings.dctcp, dctcp))
            }
            TransportKind::Hpcc => experiment.run(&mut Hpcc::new(settings.hpcc)),
            TransportKind::Fastpass => experiment.run(&mut Fastpass::new(settings.fastpass)),
            TransportKind::Harmony => {
                let harmony = Harmony::of(self.harmony()?);
                experiment.run(&mut harmony.map_err(|e| ScenarioError(e.to_string()))?)
            }
            TransportKind::Dcpim => {
                experiment.run(&mut Dcpim::new(settings.dcpim, splitmix64(point.seed)))
            }
        };
        match outcome {
            Ok(outcome) => Ok((experiment, outcome)),
            Err(error) => wrong(error.to_string()),
        }
    }
}

/// Reads `[run]`: the points, and the sizes for which slowdowns are shown.
fn read_run(mut section: Section<'_>) -> Result<(Defaults, Vec<u64>), ScenarioError> {
    let mut defaults = Defaults {
        seeds: section.whole("seeds", 1..=1_000)?,
        first_seed: section.whole("first_seed", 0..=i64::MAX as u64)?,
        ..Defaults::default()
    };
    for value in section.list("transports")?.unwrap_or_default() {
        let name = value.as_str().unwrap_or_default();
        let kind = TransportKind::parse(name).map_err(|why| section.error("transports", why))?;
        defaults.transports.push(kind);
    }
    for value in section.list("loads")?.unwrap_or_default() {
        let load = value.as_float().or_else(|| value.as_integer().map(|load| load as f64));
        let load = load.filter(|&load| load > 0.0 && load <= 1.0);
        let wrong = "a load is a share of the hosts' links, above 0, at most 1";
        defaults.loads.push(load.ok_or_else(|| section.error("loads", wrong))?);
    }
    let mut bounds = SIZE_BOUNDS.to_vec();
    if let Some(list) = section.list("size_bounds")? {
        let bound = |value: &toml::Value| value.as_integer().and_then(|n| u64::try_from(n).ok());
        let given: Option<Vec<u64>> = list.iter().map(bound).collect();
        bounds = given
            .filter(|list| list.is_sorted_by(|a, b| a < b) && list.len() <= 100)
            .ok_or_else(|| section.error("size_bounds", "at most 100 numbers, ascending"))?;
    }
    section.finish()?;
    Ok((defaults, bounds))
}

/// The bandwidth of the slowest host's link.
fn host_rate(topology: &Topology) -> u64 {
    let hosts = topology.hosts();
    let links = topology.links().iter().filter(|(a, b, _)| a.0 < hosts || b.0 < hosts);
    links.map(|(_, _, link)| link.bits_per_s).min().unwrap_or(1)
}
