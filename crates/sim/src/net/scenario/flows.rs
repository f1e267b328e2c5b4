//! The section `[workload]`: the flows, and the interval in which they are measured.

use concord_core::Rng;

use super::section::{Files, ScenarioError, Section};
use super::wiring::Names;
use crate::engine::{Time, US};
use crate::net::experiment::{PlannedFlow, Trigger};
use crate::net::import::{hpcc, htsim};
use crate::net::topology::{HostIndex, Topology};
use crate::net::transport::FlowSpec;
use crate::net::workload::{self, Sizes, WorkloadError};

/// The maximum time of a run after the last arrival, or in total if all flows begin at once, unless
/// the file sets another one: 1 s.
const DRAIN_PS: u64 = 1_000_000 * US;
/// The maximum size of a flow, in bytes: 1 TiB.
const BYTES_MAX: u64 = 1 << 40;

const KINDS: [&str; 8] =
    ["poisson", "incast", "permutation", "all-to-all", "ring-all-reduce", "flows", "htsim", "hpcc"];

/// The kind of a workload.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    Poisson { sizes: Sizes, duration_ps: u64, warm_up_ps: u64, drain_ps: u64 },
    Pattern { kind: Pattern, bytes: u64, limit_ps: u64 },
    List { flows: Vec<PlannedFlow>, triggers: Vec<Trigger>, limit_ps: u64 },
}

/// The pattern of flows that begin together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    Incast { senders: u32 },
    Permutation,
    AllToAll,
    RingAllReduce,
}

/// The flows of a point.
pub(super) struct Drawn {
    pub(super) flows: Vec<PlannedFlow>,
    pub(super) triggers: Vec<Trigger>,
    pub(super) warm_up: Time,
    pub(super) measure_until: Time,
    pub(super) until: Time,
}

impl Workload {
    pub(super) fn read(
        mut section: Section<'_>,
        topology: &Topology,
        names: &Names,
        files: &Files<'_>,
    ) -> Result<Workload, ScenarioError> {
        let kind = section.choice("kind", &KINDS)?;
        let kind = section.required("kind", kind, "\"poisson\"")?;
        let workload = match KINDS[kind] {
            "poisson" => Workload::poisson(&mut section, files)?,
            list @ ("flows" | "htsim" | "hpcc") => {
                let limit_ps = section.time("limit_us")?.unwrap_or(DRAIN_PS);
                let (flows, triggers) = match list {
                    "flows" => (listed(&mut section, names)?, Vec::new()),
                    _ => imported(&mut section, list, topology, names, files)?,
                };
                Workload::List { flows, triggers, limit_ps }
            }
            pattern => {
                let bytes = section.whole("bytes", 1..=BYTES_MAX)?;
                let bytes = section.required("bytes", bytes, "64000")?;
                let limit_ps = section.time("limit_us")?.unwrap_or(DRAIN_PS);
                let kind = match pattern {
                    "incast" => {
                        let senders = section.whole_u32("senders", 1..=topology.hosts() - 1)?;
                        let senders = section.required("senders", senders, "32")?;
                        Pattern::Incast { senders }
                    }
                    "permutation" => Pattern::Permutation,
                    "all-to-all" => Pattern::AllToAll,
                    _ => Pattern::RingAllReduce,
                };
                Workload::Pattern { kind, bytes, limit_ps }
            }
        };
        section.finish()?;
        Ok(workload)
    }

    fn poisson(section: &mut Section<'_>, files: &Files<'_>) -> Result<Workload, ScenarioError> {
        let sizes = sizes(section, files)?;
        let duration = section.time("duration_us")?;
        let duration_ps = section.required("duration_us", duration, "10000")?;
        let warm_up_ps = section.time("warm_up_us")?.unwrap_or(0);
        if warm_up_ps >= duration_ps {
            return Err(section.error("warm_up_us", "it has to end before duration_us does"));
        }
        let drain_ps = section.time("drain_us")?.unwrap_or(DRAIN_PS);
        Ok(Workload::Poisson { sizes, duration_ps, warm_up_ps, drain_ps })
    }

    pub(super) fn has_load(&self) -> bool {
        matches!(self, Workload::Poisson { .. })
    }

    /// Shortens arrivals and warm-up to a tenth of their time, or a pattern to a tenth of its
    /// bytes.
    pub(super) fn shorten(&mut self) {
        match self {
            Workload::Poisson { duration_ps, warm_up_ps, .. } => {
                *duration_ps = (*duration_ps / 10).max(1);
                *warm_up_ps /= 10;
            }
            Workload::Pattern { bytes, .. } => *bytes = (*bytes / 10).max(1),
            Workload::List { .. } => {}
        }
    }

    pub(super) fn warm_up_ps(&self) -> u64 {
        match self {
            Workload::Poisson { warm_up_ps, .. } => *warm_up_ps,
            _ => 0,
        }
    }

    /// Checks whether a load can be run, without drawing its flows.
    pub(super) fn check(
        &self,
        (hosts, bits_per_s): (u32, u64),
        load: Option<f64>,
    ) -> Result<(), WorkloadError> {
        let Workload::Poisson { sizes, duration_ps, .. } = self else { return Ok(()) };
        let load = load.unwrap_or(f64::NAN);
        workload::poisson_flows(hosts, bits_per_s, sizes, load, Time(*duration_ps)).map(drop)
    }

    pub(super) fn draw(
        &self,
        (hosts, bits_per_s): (u32, u64),
        load: Option<f64>,
        rng: &mut Rng,
    ) -> Result<Drawn, WorkloadError> {
        let all = |flows, limit_ps: u64| {
            let (warm_up, until) = (Time(0), Time(limit_ps));
            Drawn { flows, triggers: Vec::new(), warm_up, measure_until: until, until }
        };
        match self {
            Workload::Poisson { sizes, duration_ps, warm_up_ps, drain_ps } => {
                let (until, load) = (Time(*duration_ps), load.unwrap_or(f64::NAN));
                let flows = workload::poisson(hosts, bits_per_s, sizes, load, until, rng)?;
                let (warm_up, end) = (Time(*warm_up_ps), until.after(*drain_ps));
                let triggers = Vec::new();
                Ok(Drawn { flows, triggers, warm_up, measure_until: until, until: end })
            }
            Workload::Pattern { kind, bytes, limit_ps } => {
                let flows = match kind {
                    Pattern::Incast { senders } => workload::incast(hosts, *senders, *bytes, rng),
                    Pattern::Permutation => workload::permutation(hosts, *bytes, rng),
                    Pattern::AllToAll => workload::all_to_all(hosts, *bytes),
                    Pattern::RingAllReduce => workload::ring_all_reduce(hosts, *bytes),
                };
                Ok(all(flows?, *limit_ps))
            }
            Workload::List { flows, triggers, limit_ps } => {
                Ok(Drawn { triggers: triggers.clone(), ..all(flows.clone(), *limit_ps) })
            }
        }
    }
}

/// `sizes`: a name, a number of bytes, or points; or `sizes_file`.
fn sizes(section: &mut Section<'_>, files: &Files<'_>) -> Result<Sizes, ScenarioError> {
    let file = section.text("sizes_file")?;
    let Some(value) = section.value("sizes").cloned() else {
        let file = section.required("sizes", file, "\"websearch\"")?;
        let text = files(&file).map_err(ScenarioError)?;
        return Sizes::parse(&text).map_err(|why| ScenarioError(format!("{file}: {why}")));
    };
    if file.is_some() {
        return Err(section.error("sizes_file", "sizes is given, too: leave one of them out"));
    }
    match value {
        toml::Value::String(_) => {
            let names = ["websearch", "imc10", "datamining"];
            let place = section.choice("sizes", &names)?.unwrap_or_default();
            section.required("sizes", Sizes::named(names[place]), "\"websearch\"")
        }
        toml::Value::Integer(_) => {
            let bytes = section.whole("sizes", 1..=BYTES_MAX)?;
            Ok(Sizes::fixed(bytes.unwrap_or(1)))
        }
        toml::Value::Array(points) => {
            let number = |value: Option<&toml::Value>| {
                let value = value?;
                value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
            };
            let point = |value: &toml::Value| {
                let point = value.as_array()?;
                Some((number(point.first())?, number(point.get(1))?))
            };
            let points: Option<Vec<(f64, f64)>> = points.iter().map(point).collect();
            let points = points
                .ok_or_else(|| section.error("sizes", "points are [bytes, share], share to 1"))?;
            if points.last().is_some_and(|point| point.0 > BYTES_MAX as f64) {
                return Err(section.error("sizes", format!("flows of at most {BYTES_MAX} bytes")));
            }
            Sizes::from_points(&points).map_err(|why| section.error("sizes", why))
        }
        _ => Err(section.error("sizes", "a name, a number of bytes, or [[bytes, share], ...]")),
    }
}

/// `flows = [[from, to, bytes, us], ...]`.
fn listed(section: &mut Section<'_>, names: &Names) -> Result<Vec<PlannedFlow>, ScenarioError> {
    let list = section.list("flows")?;
    let list = section.required("flows", list, "[[\"h0\", \"h1\", 64000, 0], ...]")?;
    let mut flows = Vec::new();
    for (place, value) in list.iter().enumerate() {
        let wrong = |why: String| ScenarioError(format!("[workload] flow {}: {why}", place + 1));
        let form = "write [from, to, bytes, us at which it begins]";
        let Some([from, to, bytes, us]) = value.as_array().map(Vec::as_slice) else {
            return Err(wrong(format!("{value} is no flow; {form}")));
        };
        let (from, to) = (names.host(from).map_err(wrong)?, names.host(to).map_err(wrong)?);
        let bytes = bytes.as_integer().and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| (1..=BYTES_MAX).contains(bytes));
        let us = us.as_float().or_else(|| us.as_integer().map(|n| n as f64));
        let us = us.filter(|us| (0.0..=3.6e9).contains(us));
        match (bytes, us) {
            (Some(bytes), Some(us)) if from != to => {
                let at = Time((us * US as f64).round() as u64);
                flows.push(PlannedFlow { spec: FlowSpec { from, to, bytes }, at, after: None });
            }
            _ => return Err(wrong(format!("{value}: two hosts, and at least 1 byte; {form}"))),
        }
    }
    Ok(flows)
}

fn imported(
    section: &mut Section<'_>,
    kind: &str,
    topology: &Topology,
    names: &Names,
    files: &Files<'_>,
) -> Result<(Vec<PlannedFlow>, Vec<Trigger>), ScenarioError> {
    let file = section.text("file")?;
    let file = section.required("file", file, "\"FILE\"")?;
    let text = files(&file).map_err(ScenarioError)?;
    let wrong = |why| ScenarioError(format!("{file}: {why}"));
    if kind == "htsim" {
        let read = htsim::connections(&text, topology.hosts()).map_err(wrong)?;
        return Ok((read.flows, read.triggers));
    }
    let host = |word: &str| {
        let named = names.find(word, topology.hosts());
        let numbered = || word.parse().ok().filter(|_| !names.are_given());
        let node = named.map(|node| node.0).or_else(numbered)?;
        (node < topology.hosts()).then_some(HostIndex(node))
    };
    Ok((hpcc::flows(&text, host).map_err(wrong)?, Vec::new()))
}
