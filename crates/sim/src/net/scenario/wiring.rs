//! The sections `[topology]` and `[buffers]`.

use std::collections::BTreeMap;

use toml::Value;

use super::section::{BITS_PER_S, Files, ScenarioError, Section, hint, wrong};
use crate::net::import;
use crate::net::managed::{Marking, QueueSpec, SHARES};
use crate::net::topology::{
    HostIndex, LINKS_MAX, LeafSpine, LinkSpec, NodeIndex, Routing, Topology,
};

/// The maximum number of hosts of a scenario.
pub const HOSTS_MAX: u32 = 16_384;
/// The maximum number of switches in a list of links.
const SWITCHES_MAX: u32 = 65_536;
/// The maximum number of hosts times switches: a route takes 4 bytes.
const ROUTES_MAX: u64 = 1 << 27;
/// The default buffer of each class of a port, in bytes.
const PORT_BYTES: u64 = 1_000_000;

/// The names of nodes in files and tables: given ones, or `h0`, `h1`, ... and `s0`, `s1`, ...
#[derive(Clone, Debug, Default)]
pub struct Names {
    hosts: u32,
    given: Vec<String>,
    /// The index of each given name.
    places: BTreeMap<String, u32>,
}

impl Names {
    fn counted(hosts: u32) -> Names {
        Names { hosts, ..Names::default() }
    }

    fn given(hosts: u32, given: Vec<String>) -> Names {
        let places = given.iter().cloned().zip(0..).collect();
        Names { hosts, given, places }
    }

    /// The name of a node.
    #[must_use]
    pub fn of(&self, node: NodeIndex) -> String {
        match self.given.get(node.0 as usize) {
            Some(name) => name.clone(),
            None if node.0 < self.hosts => format!("h{}", node.0),
            None => format!("s{}", node.0 - self.hosts),
        }
    }

    /// The node with a name, among the first `nodes`.
    #[must_use]
    pub fn find(&self, name: &str, nodes: u32) -> Option<NodeIndex> {
        if !self.given.is_empty() {
            return self.places.get(name).map(|&at| NodeIndex(at)).filter(|node| node.0 < nodes);
        }
        let number = |rest: &str| rest.parse::<u32>().ok();
        let node = match name.strip_prefix('h') {
            Some(rest) => number(rest).filter(|&host| host < self.hosts),
            None => number(name.strip_prefix('s')?)?.checked_add(self.hosts),
        };
        node.filter(|&node| node < nodes).map(NodeIndex)
    }

    /// The host with a name or a number.
    pub(super) fn host(&self, value: &Value) -> Result<HostIndex, String> {
        let node = match value {
            Value::String(name) => self.find(name, self.hosts),
            Value::Integer(number) => u32::try_from(*number).ok().map(NodeIndex),
            _ => None,
        };
        match node.filter(|node| node.0 < self.hosts) {
            Some(node) => Ok(HostIndex(node.0)),
            None => Err(format!("unknown host {value}: {}", self.hosts_in_words(value))),
        }
    }

    /// Whether the file gives names.
    pub(super) fn are_given(&self) -> bool {
        !self.given.is_empty()
    }

    fn hosts_in_words(&self, value: &Value) -> String {
        let text = value.as_str().unwrap_or_default();
        if self.given.is_empty() {
            return format!("the hosts are h0 to h{}", self.hosts.saturating_sub(1));
        }
        let hosts: Vec<&str> =
            self.given.iter().take(self.hosts as usize).take(64).map(String::as_str).collect();
        hint(text, &hosts)
    }
}

/// The topology, the names of its nodes, and the routing.
pub(super) struct Wiring {
    pub(super) topology: Topology,
    pub(super) names: Names,
    pub(super) routing: Routing,
    pub(super) queues: QueueSpec,
}

const KINDS: [&str; 6] = ["leaf-spine", "fat-tree", "dumbbell", "links", "htsim", "hpcc"];

/// Reads both sections.
pub(super) fn read(
    mut topology: Section<'_>,
    buffers: Section<'_>,
    files: &Files<'_>,
) -> Result<Wiring, ScenarioError> {
    let buffers = Buffers::read(buffers)?;
    let port_bytes = buffers.port_bytes;
    let kind = topology.choice("kind", &KINDS)?;
    let kind = topology.required("kind", kind, "\"leaf-spine\"")?;
    let routing = topology.choice("routing", &["ecmp", "spray"])?;
    let routing = if routing == Some(1) { Routing::Spray } else { Routing::Ecmp };
    let mut given = Vec::new();
    let wiring = match KINDS[kind] {
        "leaf-spine" => leaf_spine(&mut topology, port_bytes)?,
        "fat-tree" => fat_tree(&mut topology, port_bytes)?,
        "dumbbell" => dumbbell(&mut topology, port_bytes)?,
        "links" => {
            let (wiring, names) = links(&mut topology, port_bytes)?;
            given = names;
            wiring
        }
        imported => {
            let file = topology.text("file")?;
            let file = topology.required("file", file, "\"FILE\"")?;
            let text = files(&file).map_err(ScenarioError)?;
            let wrong = |why| ScenarioError(format!("{file}: {why}"));
            match imported {
                "htsim" => import::htsim::topology(&text, port_bytes).map_err(wrong)?,
                _ => {
                    let read = import::hpcc::topology(&text, port_bytes).map_err(wrong)?;
                    given = read.numbers.iter().map(u32::to_string).collect();
                    read.topology
                }
            }
        }
    };
    topology.finish()?;
    let (hosts, switches) = (wiring.hosts(), wiring.switches());
    hosts_within(u64::from(hosts))?;
    links_within(wiring.links().len() as u64)?;
    if u64::from(hosts) * u64::from(switches) > ROUTES_MAX {
        return wrong(format!(
            "[topology] {hosts} hosts and {switches} switches: at most {ROUTES_MAX} hosts times switches"
        ));
    }
    let names = if given.is_empty() { Names::counted(hosts) } else { Names::given(hosts, given) };
    check(&wiring, &names)?;
    Ok(Wiring { topology: wiring, names, routing, queues: buffers.queues })
}

/// Checks that every host has one link and reaches every other host.
fn check(topology: &Topology, names: &Names) -> Result<(), ScenarioError> {
    use crate::net::topology::TopologyError as E;
    let name = |node: u32| names.of(NodeIndex(node));
    match topology.check() {
        Ok(()) => Ok(()),
        Err(E::Links { host, links }) => wrong(format!(
            "[topology] host {} has {links} links: a host has exactly one",
            name(host.0)
        )),
        Err(E::Unreachable { from, to }) => wrong(format!(
            "[topology] the graph is not connected: no path from {} to {}; connect their switches",
            name(from.0),
            name(to.0)
        )),
        Err(error) => wrong(format!("[topology] {error}")),
    }
}

fn hosts_within(hosts: u64) -> Result<(), ScenarioError> {
    if (2..=u64::from(HOSTS_MAX)).contains(&hosts) {
        return Ok(());
    }
    wrong(format!("[topology] {hosts} hosts: at least 2, at most {HOSTS_MAX}"))
}

fn links_within(links: u64) -> Result<(), ScenarioError> {
    if links <= LINKS_MAX {
        return Ok(());
    }
    wrong(format!("[topology] {links} links: at most {LINKS_MAX}"))
}

/// Reads `host_gbps`, `propagation_ns` and `pipeline_ns`, which all built-in topologies have.
fn common(
    section: &mut Section<'_>,
    queue_bytes_max: u64,
) -> Result<(LinkSpec, u64), ScenarioError> {
    let bits_per_s = section.rate("host_gbps")?;
    let bits_per_s = section.required("host_gbps", bits_per_s, "100")?;
    let propagation_ps = section.time("propagation_ns")?;
    let propagation_ps = section.required("propagation_ns", propagation_ps, "200")?;
    let pipeline_ps = section.time("pipeline_ns")?.unwrap_or(0);
    Ok((LinkSpec { bits_per_s, propagation_ps, queue_bytes_max }, pipeline_ps))
}

fn leaf_spine(section: &mut Section<'_>, port_bytes: u64) -> Result<Topology, ScenarioError> {
    let (host_link, pipeline_ps) = common(section, port_bytes)?;
    let mut count = |key, example| {
        let count = section.whole_u32(key, 1..=HOSTS_MAX)?;
        section.required(key, count, example)
    };
    let (tors, hosts_per_tor) = (count("tors", "9")?, count("hosts_per_tor", "16")?);
    let spines = count("spines", "4")?;
    hosts_within(u64::from(tors) * u64::from(hosts_per_tor))?;
    links_within(u64::from(tors) * (u64::from(hosts_per_tor) + u64::from(spines)))?;
    let oversubscription = section.number("oversubscription", (0.001, 1_000.0))?;
    let given = section.rate("spine_gbps")?;
    if given.is_some() && oversubscription.is_some() {
        let why = "it follows from spine_gbps, which is given, too: leave one of them out";
        return Err(section.error("oversubscription", why));
    }
    let down = host_link.bits_per_s as f64 * f64::from(hosts_per_tor);
    let even = down / f64::from(spines) / oversubscription.unwrap_or(1.0);
    let bits_per_s = given.unwrap_or(even.round() as u64);
    if !BITS_PER_S.contains(&bits_per_s) {
        let why = format!("links to spines of {bits_per_s} b/s: from 1 Mb/s to 100 Tb/s");
        return Err(section.error("oversubscription", why));
    }
    let propagation_ps = section.time("spine_propagation_ns")?;
    let propagation_ps = propagation_ps.unwrap_or(host_link.propagation_ps);
    let spine_link = LinkSpec { bits_per_s, propagation_ps, ..host_link };
    let spec = LeafSpine { tors, hosts_per_tor, spines, host_link, spine_link, pipeline_ps };
    Ok(Topology::leaf_spine(&spec))
}

fn fat_tree(section: &mut Section<'_>, port_bytes: u64) -> Result<Topology, ScenarioError> {
    let (link, pipeline_ps) = common(section, port_bytes)?;
    let ports = section.whole_u32("k", 2..=256)?;
    let k = section.required("k", ports, "16")?;
    if !k.is_multiple_of(2) {
        return Err(section.error("k", "the ports of a fat tree's switch are even in number"));
    }
    hosts_within(u64::from(k) * u64::from(k / 2) * u64::from(k / 2))?;
    Ok(Topology::fat_tree(k, link, pipeline_ps))
}

fn dumbbell(section: &mut Section<'_>, port_bytes: u64) -> Result<Topology, ScenarioError> {
    let (host, pipeline_ps) = common(section, port_bytes)?;
    let pairs = section.whole_u32("pairs", 1..=HOSTS_MAX / 2)?;
    let pairs = section.required("pairs", pairs, "8")?;
    let bits_per_s = section.rate("between_gbps")?;
    let bits_per_s = section.required("between_gbps", bits_per_s, "10")?;
    let propagation_ps = section.time("between_propagation_ns")?.unwrap_or(host.propagation_ps);
    let between = LinkSpec { bits_per_s, propagation_ps, ..host };
    Ok(Topology::dumbbell(pairs, host, between, pipeline_ps))
}

/// Reads `hosts` or `switches`: a number of them, or their names.
fn nodes(
    section: &mut Section<'_>,
    key: &'static str,
    letter: char,
    most: u32,
) -> Result<Vec<String>, ScenarioError> {
    if !matches!(section.value(key), Some(Value::Array(_))) {
        let count = section.whole_u32(key, 0..=most)?;
        let count = section.required(key, count, "4")?;
        return Ok((0..count).map(|number| format!("{letter}{number}")).collect());
    }
    let list = section.list(key)?.unwrap_or_default();
    let names: Option<Vec<String>> =
        list.iter().map(|name| name.as_str().map(str::to_string)).collect();
    match names {
        Some(names) if names.len() <= most as usize => Ok(names),
        _ => Err(section.error(key, format!("a number, or a list of names, at most {most}"))),
    }
}

/// Reads `links = [[node, node, Gb/s, ns], ...]`.
fn links(
    section: &mut Section<'_>,
    queue_bytes_max: u64,
) -> Result<(Topology, Vec<String>), ScenarioError> {
    let pipeline_ps = section.time("pipeline_ns")?.unwrap_or(0);
    let hosts = nodes(section, "hosts", 'h', HOSTS_MAX)?;
    let mut names = hosts.clone();
    names.extend(nodes(section, "switches", 's', SWITCHES_MAX)?);
    let mut topology = Topology::new(hosts.len() as u32);
    for _ in hosts.len()..names.len() {
        topology.add_switch(pipeline_ps);
    }
    let by_name: BTreeMap<&str, u32> =
        names.iter().enumerate().map(|(at, name)| (name.as_str(), at as u32)).collect();
    if by_name.len() != names.len() {
        return wrong("[topology] two nodes have the same name: names are of hosts and switches");
    }
    let list = section.list("links")?;
    let list = section.required("links", list, "[[\"h0\", \"s0\", 100, 200], ...]")?;
    for (place, value) in list.iter().enumerate() {
        let wrong = |why: String| ScenarioError(format!("[topology] link {}: {why}", place + 1));
        let form = "write [node, node, Gb/s, propagation in ns]";
        let Some([a, b, gbps, ns]) = value.as_array().map(Vec::as_slice) else {
            return Err(wrong(format!("{value} is no link; {form}")));
        };
        let end = |end: &Value| {
            let name = end.as_str().unwrap_or_default();
            by_name.get(name).copied().map(NodeIndex).ok_or_else(|| {
                let known: Vec<&str> = names.iter().take(64).map(String::as_str).collect();
                wrong(format!("unknown host or switch {end}; {}", hint(name, &known)))
            })
        };
        let number = |value: &Value, most: f64| {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
            let number = number.filter(|n| *n >= 0.0 && *n <= most);
            number.ok_or_else(|| wrong(format!("{value} is no number from 0 to {most}; {form}")))
        };
        let (a, b) = (end(a)?, end(b)?);
        if a == b {
            return Err(wrong("both ends are the same node".to_string()));
        }
        let bits_per_s = (number(gbps, 1e5)? * 1e9).round() as u64;
        if !BITS_PER_S.contains(&bits_per_s) {
            return Err(wrong(format!("{gbps} Gb/s: from 0.001 to 100000")));
        }
        let propagation_ps = (number(ns, 3.6e12)? * 1e3).round() as u64;
        topology.connect(a, b, LinkSpec { bits_per_s, propagation_ps, queue_bytes_max });
    }
    Ok((topology, names))
}

/// The buffers of all switches.
struct Buffers {
    port_bytes: u64,
    queues: QueueSpec,
}

impl Buffers {
    fn read(mut section: Section<'_>) -> Result<Buffers, ScenarioError> {
        let shared = section.whole("shared_bytes", 1..=1 << 40)?;
        let port = section.whole("port_bytes", 1..=1 << 40)?;
        if let (Some(_), Some(_)) = (shared, port) {
            let why = "a switch with shared_bytes has no other buffer: leave one of them out";
            return Err(section.error("port_bytes", why));
        }
        let share = |alpha: f64| (alpha * f64::from(SHARES)).round() as u32;
        let alpha = section.number("alpha", (1.0 / f64::from(SHARES), 1e6))?.map(share);
        let pause = section.number("pause_alpha", (1.0 / f64::from(SHARES), 1e6))?.map(share);
        for (key, value) in [("alpha", alpha), ("pause_alpha", pause)] {
            if value.is_some() && shared.is_none() {
                return Err(section.error(key, "a share of shared_bytes, which is not given"));
            }
        }
        let marking = marking(&mut section, shared.unwrap_or(port.unwrap_or(PORT_BYTES)))?;
        section.finish()?;
        let queues = QueueSpec {
            shared_bytes_max: shared,
            share: alpha.unwrap_or(0),
            marking,
            pause_share: pause.unwrap_or(0),
        };
        Ok(Buffers { port_bytes: port.unwrap_or(PORT_BYTES), queues })
    }
}

/// Reads `ecn_bytes`, or `ecn_min_bytes`, `ecn_max_bytes` and `ecn_probability`.
fn marking(section: &mut Section<'_>, buffer: u64) -> Result<Option<Marking>, ScenarioError> {
    let at = section.whole("ecn_bytes", 0..=1 << 40)?;
    let min = section.whole("ecn_min_bytes", 0..=1 << 40)?;
    let max = section.whole("ecn_max_bytes", 0..=1 << 40)?;
    let probability = section.number("ecn_probability", (0.0, 1.0))?;
    let marking = match (at, min, max, probability) {
        (None, None, None, None) => return Ok(None),
        (Some(at), None, None, None) => Marking::at(at),
        (None, Some(min), Some(max), probability) if min <= max => {
            let share = probability.unwrap_or(1.0) * f64::from(SHARES);
            Marking { min_bytes: min, max_bytes: max, share: share.round() as u32 }
        }
        _ => {
            return wrong(
                "[buffers] marks: give ecn_bytes alone, or ecn_min_bytes, an ecn_max_bytes that is \
                 not below it, and ecn_probability",
            );
        }
    };
    if marking.min_bytes >= buffer {
        let key = if at.is_some() { "ecn_bytes" } else { "ecn_min_bytes" };
        let why = format!("the buffer holds {buffer} bytes, so nothing would ever be marked");
        return Err(section.error(key, why));
    }
    Ok(Some(marking))
}
