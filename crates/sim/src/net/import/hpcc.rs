//! The files of HPCC's simulator: `topology.txt`, `flow.txt`, and the results in `fct.txt`.

use super::{lines, number};
use crate::engine::{MS, NS, SEC, Time, US};
use crate::net::experiment::{Experiment, Outcome, PlannedFlow};
use crate::net::topology::{HostIndex, LinkSpec, NodeIndex, Topology};
use crate::net::transport::FlowSpec;
use crate::net::workload::FLOWS_MAX;

/// The maximum number of nodes in a `topology.txt`.
const NODES_MAX: u32 = 65_536;
/// In `fct.txt`: the first source port of a pair of hosts, and the destination port.
const FIRST_PORT: u32 = 10_000;
const TO_PORT: u32 = 100;

/// A parsed `topology.txt`: hosts and switches in the order of their numbers in the file, which
/// become their names.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The wiring.
    pub topology: Topology,
    /// The number of each node in the file.
    pub numbers: Vec<u32>,
}

/// Reads a `topology.txt`: the numbers of nodes, switches and links; the switches; one link a line,
/// with bandwidth, delay and error rate, which must be 0.
///
/// # Errors
/// One line: a malformed number, an unknown node, or fewer links than announced.
pub fn topology(text: &str, queue_bytes_max: u64) -> Result<Imported, String> {
    let mut rows = lines(text);
    let (line, head) = rows.next().ok_or("the file is empty")?;
    let count = |at: usize| number::<u32>(line, "the count", head.get(at));
    let (nodes, switches, links) = (count(0)?, count(1)?, count(2)?);
    if !(2..=NODES_MAX).contains(&nodes) || switches > nodes {
        return Err(format!(
            "line {line}: {nodes} nodes, {switches} switches: from 2 to {NODES_MAX} nodes"
        ));
    }
    let mut is_switch = vec![false; nodes as usize];
    let node = |line: usize, word: Option<&&str>| -> Result<usize, String> {
        let node: u32 = number(line, "node", word)?;
        let wrong = || format!("line {line}: unknown node {node}: there are 0 to {}", nodes - 1);
        (node < nodes).then_some(node as usize).ok_or_else(wrong)
    };
    let mut listed = 0;
    let mut rows = rows.peekable();
    while listed < switches {
        let truncated = || format!("{listed} of {switches} switches are listed: it is truncated");
        let (line, words) = rows.next().ok_or_else(truncated)?;
        for word in &words {
            is_switch[node(line, Some(word))?] = true;
            listed += 1;
        }
    }
    let numbers_of = |wanted: bool| {
        (0..nodes).filter(|&n| is_switch[n as usize] == wanted).collect::<Vec<u32>>()
    };
    let mut numbers = numbers_of(false);
    let mut topology = Topology::new(numbers.len() as u32);
    for switch in numbers_of(true) {
        topology.add_switch(0);
        numbers.push(switch);
    }
    let mut places = vec![0; nodes as usize];
    for (place, &number) in numbers.iter().enumerate() {
        places[number as usize] = place as u32;
    }
    let mut found = 0;
    for (line, words) in rows {
        let (a, b) = (node(line, words.first())?, node(line, words.get(1))?);
        let bits_per_s = rate(line, words.get(2))?;
        let propagation_ps = delay(line, words.get(3))?;
        let errors: f64 = number(line, "the error rate", words.get(4))?;
        if errors != 0.0 {
            return Err(format!("line {line}: error rate {errors}: bit errors are not simulated"));
        }
        let link = LinkSpec { bits_per_s, propagation_ps, queue_bytes_max };
        topology.connect(NodeIndex(places[a]), NodeIndex(places[b]), link);
        found += 1;
    }
    if found != links {
        return Err(format!("the first line says {links} links, the file has {found}"));
    }
    Ok(Imported { topology, numbers })
}

/// Parses a number with one of these units.
fn with_unit(
    line: usize,
    what: &str,
    word: Option<&&str>,
    units: &[(&str, u64)],
) -> Result<f64, String> {
    let names: Vec<&str> = units.iter().map(|unit| unit.0).collect();
    let wrong =
        |word: &str| format!("line {line}: {what} {word}: a number with {}", names.join(", "));
    let Some(word) = word else { return Err(wrong("is missing")) };
    for (unit, scale) in units {
        let number = word.strip_suffix(unit).and_then(|number| number.parse::<f64>().ok());
        if let Some(number) = number.filter(|number| *number >= 0.0 && number.is_finite()) {
            return Ok(number * *scale as f64);
        }
    }
    Err(wrong(word))
}

fn rate(line: usize, word: Option<&&str>) -> Result<u64, String> {
    let units = [("Gbps", 1_000_000_000), ("Mbps", 1_000_000), ("Kbps", 1_000), ("bps", 1)];
    let rate = with_unit(line, "bandwidth", word, &units)?;
    if !(1e6..=1e14).contains(&rate) {
        return Err(format!("line {line}: bandwidth {rate} b/s: from 1 Mb/s to 100 Tb/s"));
    }
    Ok(rate.round() as u64)
}

fn delay(line: usize, word: Option<&&str>) -> Result<u64, String> {
    let units = [("ns", NS), ("us", US), ("ms", MS), ("s", SEC)];
    let delay = with_unit(line, "delay", word, &units)?;
    if delay > 3_600.0 * SEC as f64 {
        return Err(format!("line {line}: delay: at most an hour"));
    }
    Ok(delay.round() as u64)
}

/// Reads a `flow.txt`: the number of flows; one flow a line, with sender, receiver, priority group,
/// port, bytes, and start in seconds. Priority group and port are not used. `host` finds a host by
/// its number in the file.
///
/// # Errors
/// One line: a malformed number, an unknown host, or another number of flows than announced.
pub fn flows(
    text: &str,
    host: impl Fn(&str) -> Option<HostIndex>,
) -> Result<Vec<PlannedFlow>, String> {
    let mut rows = lines(text);
    let (line, head) = rows.next().ok_or("the file is empty")?;
    let count: u64 = number(line, "the count", head.first())?;
    if count > FLOWS_MAX {
        return Err(format!("line {line}: {count} flows: at most {FLOWS_MAX}"));
    }
    let mut flows = Vec::new();
    for (line, words) in rows {
        let end = |at: usize| {
            let word = words.get(at).copied().unwrap_or_default();
            host(word).ok_or_else(|| format!("line {line}: unknown host {word:?}"))
        };
        let (from, to) = (end(0)?, end(1)?);
        let bytes: u64 = number(line, "the size", words.get(4))?;
        let seconds: f64 = number(line, "the start", words.get(5))?;
        if from == to || bytes == 0 {
            return Err(format!("line {line}: a flow has two hosts and at least 1 byte"));
        }
        if !(0.0..=3_600.0).contains(&seconds) {
            return Err(format!("line {line}: begins at {seconds} s: from 0 to 3600"));
        }
        let at = Time((seconds * SEC as f64).round() as u64);
        flows.push(PlannedFlow { spec: FlowSpec { from, to, bytes }, at, after: None });
    }
    if flows.len() as u64 != count {
        let found = flows.len();
        return Err(format!("the first line says {count} flows, the file has {found}: truncated?"));
    }
    Ok(flows)
}

/// The address of a host in `fct.txt`, from its number.
fn address(number: u32) -> u32 {
    0x0b00_0001 + ((number / 256) << 16) + ((number % 256) << 8)
}

/// The lines of `fct.txt` for the flows that ended, in the order of their ends: sender, receiver,
/// their ports, bytes, start, completion time and ideal time in ns. `number` gives a host's number.
pub fn fct<'a>(
    experiment: &'a Experiment,
    outcome: &'a Outcome,
    number: impl Fn(HostIndex) -> u32 + 'a,
) -> impl Iterator<Item = String> + 'a {
    let ended = |at: u32| outcome.flows[at as usize].ended;
    let mut order: Vec<u32> =
        (0..outcome.flows.len() as u32).filter(|&at| ended(at).is_some()).collect();
    order.sort_by_key(|&at| (ended(at), at));
    // Source ports count up for each pair of hosts, in the order of the flows.
    let mut next = std::collections::BTreeMap::new();
    let port = |planned: &PlannedFlow| {
        let used = next.entry((planned.spec.from, planned.spec.to)).or_insert(FIRST_PORT);
        *used += 1;
        *used - 1
    };
    let ports: Vec<u32> = experiment.flows.iter().map(port).collect();
    order.into_iter().filter_map(move |at| {
        let (flow, spec) = (&outcome.flows[at as usize], experiment.flows[at as usize].spec);
        let (from, to) = (address(number(spec.from)), address(number(spec.to)));
        let (sport, bytes) = (ports[at as usize], spec.bytes);
        let (start, took) = (flow.began?.0 / NS, flow.completion_ps()? / NS);
        let ideal = flow.ideal_ps / NS;
        Some(format!("{from:08x} {to:08x} {sport} {TO_PORT} {bytes} {start} {took} {ideal}"))
    })
}
