//! htsim's files: `.topo`, a Clos network of two or three tiers, and `.cm`, a connection matrix:
//! flows that begin at a time or by a trigger.

use std::collections::BTreeMap;

use super::{lines, number};
use crate::engine::{NS, Time};
use crate::net::experiment::{After, PlannedFlow, Trigger, TriggerKind};
use crate::net::topology::{HostIndex, LINKS_MAX, LinkSpec, NodeIndex, Topology};
use crate::net::transport::FlowSpec;
use crate::net::workload::FLOWS_MAX;

/// The maximum of every count in a `.topo`.
const COUNT_MAX: u32 = 65_536;

#[derive(Clone, Copy, Default)]
struct Tier {
    is_there: bool,
    gbps: u32,
    radix_down: u32,
    radix_up: u32,
    queue_down: Option<u64>,
    queue_up: Option<u64>,
    latency_ns: u64,
    switch_ns: u64,
    bundle: u32,
    oversubscribed: u32,
}

#[derive(Default)]
struct Header {
    nodes: u32,
    tiers: u32,
    pod: u32,
}

/// Reads a `.topo`. Queues without a size have `queue_bytes`; sizes in the file are in bytes.
///
/// # Errors
/// One line: an unknown key, a missing number, or numbers that contradict each other.
pub fn topology(text: &str, queue_bytes: u64) -> Result<Topology, String> {
    let (header, tiers) = parse(text)?;
    let top = header.tiers as usize - 1;
    for (number, tier) in tiers.iter().enumerate().take(top + 1) {
        let missing = [
            (!tier.is_there, "section"),
            (tier.gbps == 0, "Downlink_speed_Gbps"),
            (tier.radix_down == 0, "Radix_Down"),
            (tier.radix_up == 0 && number < top, "Radix_Up"),
            (tier.latency_ns == 0, "Downlink_Latency_ns"),
        ];
        if let Some((_, what)) = missing.iter().find(|(is_missing, _)| *is_missing) {
            return Err(format!("tier {number} has no {what}"));
        }
    }
    Clos::new(&header, &tiers)?.build(&tiers, top, queue_bytes)
}

fn parse(text: &str) -> Result<(Header, [Tier; 3]), String> {
    let (mut header, mut tiers, mut tier) = (Header::default(), [Tier::default(); 3], None);
    for tier in &mut tiers {
        (tier.bundle, tier.oversubscribed) = (1, 1);
    }
    for (line, words) in lines(text) {
        let key = words[0].to_lowercase();
        let value = words.get(1);
        let count = || -> Result<u32, String> {
            let count: u32 = number(line, words[0], value)?;
            let is_fine = (1..=COUNT_MAX).contains(&count);
            let wrong = || format!("line {line}: {} {count}: 1 to {COUNT_MAX}", words[0]);
            is_fine.then_some(count).ok_or_else(wrong)
        };
        if key == "tier" {
            let at: usize = number(line, words[0], value)?;
            let Some(found) = tiers.get_mut(at) else {
                return Err(format!("line {line}: tier {at}: there are 0, 1 and 2"));
            };
            found.is_there = true;
            tier = Some(at);
            continue;
        }
        let Some(tier) = tier else {
            match key.as_str() {
                "nodes" => header.nodes = count()?,
                "tiers" => header.tiers = count()?,
                "podsize" => header.pod = count()?,
                _ => return Err(format!("line {line}: {} is no key of the header", words[0])),
            }
            continue;
        };
        let tier = &mut tiers[tier];
        match key.as_str() {
            "downlink_speed_gbps" => tier.gbps = count()?,
            "radix_down" => tier.radix_down = count()?,
            "radix_up" => tier.radix_up = count()?,
            "queue_down" => tier.queue_down = Some(number(line, words[0], value)?),
            "queue_up" => tier.queue_up = Some(number(line, words[0], value)?),
            "downlink_latency_ns" => tier.latency_ns = count_ns(line, words[0], value)?,
            "switch_latency_ns" => tier.switch_ns = count_ns(line, words[0], value)?,
            "bundle" => tier.bundle = count()?,
            "oversubscribed" => tier.oversubscribed = count()?,
            _ => return Err(format!("line {line}: {} is no key of a tier", words[0])),
        }
    }
    if header.nodes == 0 || header.pod == 0 || !(2..=3).contains(&header.tiers) {
        return Err("the header needs Nodes, Podsize, and Tiers 2 or 3".into());
    }
    Ok((header, tiers))
}

fn count_ns(line: usize, what: &str, word: Option<&&str>) -> Result<u64, String> {
    let ns: u64 = number(line, what, word)?;
    let is_fine = ns <= 3_600_000_000_000;
    is_fine.then_some(ns).ok_or_else(|| format!("line {line}: {what} {ns}: at most an hour"))
}

/// The numbers of switches and hosts in each tier.
struct Clos {
    nodes: u32,
    pods: u32,
    tors_of_pod: u32,
    aggregations_of_pod: u32,
    /// The number of core switches to which an aggregation switch has a link.
    cores_of_aggregation: u32,
    hosts_of_tor: u32,
}

impl Clos {
    fn new(header: &Header, tiers: &[Tier; 3]) -> Result<Clos, String> {
        let [tor, aggregation, core] = tiers;
        let whole = |what: &str, a: u32, b: u32| {
            let is_whole = a.is_multiple_of(b.max(1)) && b > 0;
            is_whole.then(|| a / b).ok_or_else(|| format!("{what}: {a} is no multiple of {b}"))
        };
        // In two tiers, all ToR switches are one pod.
        let pod = if header.tiers == 2 { header.nodes } else { header.pod };
        let pods = whole("Nodes and Podsize", header.nodes, pod)?;
        let tors_of_pod = whole("Podsize and Radix_Down of tier 0", pod, tor.radix_down)?;
        let aggregations_of_pod =
            whole("Radix_Up of tier 0 and Bundle of tier 1", tor.radix_up, aggregation.bundle)?;
        if u64::from(aggregation.radix_down)
            != u64::from(tors_of_pod) * u64::from(aggregation.bundle)
        {
            let needs = u64::from(tors_of_pod) * u64::from(aggregation.bundle);
            let has = aggregation.radix_down;
            return Err(format!("Radix_Down of tier 1 is {has}: the ToRs of its pod need {needs}"));
        }
        let cores_of_aggregation = match header.tiers {
            2 => 0,
            _ => {
                whole("Radix_Up of tier 1 and Bundle of tier 2", aggregation.radix_up, core.bundle)?
            }
        };
        let needs = u64::from(pods) * u64::from(core.bundle);
        if header.tiers == 3 && u64::from(core.radix_down) != needs {
            let has = core.radix_down;
            return Err(format!("Radix_Down of tier 2 is {has}: the pods need {needs}"));
        }
        let hosts_of_tor = tor.radix_down;
        let nodes = header.nodes;
        let over = u64::from(tor.radix_down) * u64::from(tor.gbps);
        let up = u64::from(tor.radix_up) * u64::from(aggregation.gbps);
        if over != up * u64::from(tor.oversubscribed) && tor.oversubscribed != 1 {
            let says = tor.oversubscribed;
            return Err(format!("Oversubscribed {says}, but ToRs have {over} Gb/s down, {up} up"));
        }
        Ok(Clos {
            nodes,
            pods,
            tors_of_pod,
            aggregations_of_pod,
            cores_of_aggregation,
            hosts_of_tor,
        })
    }

    fn build(&self, tiers: &[Tier; 3], top: usize, queue: u64) -> Result<Topology, String> {
        let aggregations = u128::from(self.pods) * u128::from(self.aggregations_of_pod);
        let cores = u128::from(self.aggregations_of_pod) * u128::from(self.cores_of_aggregation);
        // No product of five factors of at most 2^16 overflows.
        let up = u128::from(self.tors_of_pod) * u128::from(tiers[1].bundle);
        let over = u128::from(self.cores_of_aggregation) * u128::from(tiers[2].bundle);
        let links = u128::from(self.nodes) + aggregations * (up + over);
        let most = u128::from(LINKS_MAX);
        if links > most || cores > most {
            return Err(format!("{links} links and {cores} core switches: at most {most} of each"));
        }
        let cores = cores as u32;
        let mut topology = Topology::new(self.nodes);
        let mut layer = |count: u32, tier: usize| -> Vec<NodeIndex> {
            (0..count).map(|_| topology.add_switch(tiers[tier].switch_ns * NS)).collect()
        };
        let tors = layer(self.pods * self.tors_of_pod, 0);
        let aggregations = layer(self.pods * self.aggregations_of_pod, 1);
        let cores = layer(cores, top);
        // A link has the same size of queue at both ends: the smaller of the two.
        let link = |tier: usize| {
            let up = tier.checked_sub(1).and_then(|below| tiers[below].queue_up);
            let queues = [up, tiers[tier].queue_down];
            LinkSpec {
                bits_per_s: u64::from(tiers[tier].gbps) * 1_000_000_000,
                propagation_ps: tiers[tier].latency_ns * NS,
                queue_bytes_max: queues.into_iter().flatten().min().unwrap_or(queue),
            }
        };
        for host in 0..self.nodes {
            topology.connect(NodeIndex(host), tors[(host / self.hosts_of_tor) as usize], link(0));
        }
        for (number, &tor) in tors.iter().enumerate() {
            let pod = number as u32 / self.tors_of_pod;
            for place in 0..self.aggregations_of_pod {
                let aggregation = aggregations[(pod * self.aggregations_of_pod + place) as usize];
                for _ in 0..tiers[1].bundle {
                    topology.connect(tor, aggregation, link(1));
                }
            }
        }
        for (number, &aggregation) in aggregations.iter().enumerate() {
            let place = number as u32 % self.aggregations_of_pod;
            for step in 0..self.cores_of_aggregation {
                let core = cores[(place + self.aggregations_of_pod * step) as usize];
                for _ in 0..tiers[2].bundle {
                    topology.connect(aggregation, core, link(2));
                }
            }
        }
        Ok(topology)
    }
}

/// The flows of a `.cm`, and their triggers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connections {
    /// The flows, in the order of the file.
    pub flows: Vec<PlannedFlow>,
    /// The triggers, in the order of their ids.
    pub triggers: Vec<Trigger>,
}

#[derive(Default)]
struct Reader {
    counts: BTreeMap<String, u64>,
    flows: Vec<PlannedFlow>,
    /// The index of the flow, the trigger that its end activates, and the line.
    causes: Vec<(u32, u32, usize)>,
    kinds: BTreeMap<u32, TriggerKind>,
    /// The line of each trigger's first use.
    used: BTreeMap<u32, usize>,
}

/// Reads a `.cm`, for a topology with `hosts` hosts. Its times are in ps. Both `send_done_trigger`
/// and `recv_done_trigger` are activated when the receiver has every byte; `prio` is not used.
///
/// # Errors
/// One line: an unknown word, an unknown host, or a header whose counts differ from the file, which
/// is then truncated.
pub fn connections(text: &str, hosts: u32) -> Result<Connections, String> {
    let mut reader = Reader::default();
    for (line, words) in lines(text) {
        match words[0].to_lowercase().as_str() {
            key @ ("nodes" | "connections" | "triggers" | "failures") => {
                let count: u64 = number(line, words[0], words.get(1))?;
                if key == "connections" && count > FLOWS_MAX {
                    return Err(format!("line {line}: {count} connections: at most {FLOWS_MAX}"));
                }
                if key == "failures" && count > 0 {
                    return Err(format!("line {line}: failures are not simulated: remove them"));
                }
                reader.counts.insert(key.into(), count);
            }
            "trigger" => reader.trigger(line, &words)?,
            _ if words[0].contains("->") => reader.connection(line, &words, hosts)?,
            _ => {
                return Err(format!(
                    "line {line}: {} is neither a connection nor a trigger",
                    words[0]
                ));
            }
        }
    }
    reader.finish(hosts)
}

impl Reader {
    fn trigger(&mut self, line: usize, words: &[&str]) -> Result<(), String> {
        let (mut id, mut kind, mut count) = (0, None, None);
        let mut rest = words[1..].iter();
        while let Some(word) = rest.next() {
            match *word {
                "id" => id = number(line, word, rest.next())?,
                "count" => count = Some(number::<u32>(line, word, rest.next())?),
                "oneshot" => kind = Some(TriggerKind::After(1)),
                "multishot" => kind = Some(TriggerKind::Each),
                "barrier" => kind = Some(TriggerKind::After(0)),
                _ => return Err(format!("line {line}: {word} is no word of a trigger")),
            }
        }
        let kind = match (kind, count) {
            (Some(TriggerKind::After(0)), Some(count)) if count > 0 => TriggerKind::After(count),
            (Some(TriggerKind::After(0)), _) => {
                return Err(format!("line {line}: a barrier needs a count above 0"));
            }
            (Some(kind), _) => kind,
            (None, _) => {
                return Err(format!("line {line}: oneshot, multishot or barrier is missing"));
            }
        };
        if id == 0 || self.kinds.insert(id, kind).is_some() {
            return Err(format!("line {line}: trigger id {id}: not 0, and each one once"));
        }
        Ok(())
    }

    fn connection(&mut self, line: usize, words: &[&str], hosts: u32) -> Result<(), String> {
        let (from, to) = words[0].split_once("->").unwrap_or_default();
        let host = |word: &str| -> Result<HostIndex, String> {
            let host: u32 = number(line, "host", Some(&word))?;
            let known = host < hosts;
            let unknown =
                || format!("line {line}: unknown host {host}: there are 0 to {}", hosts - 1);
            known.then_some(HostIndex(host)).ok_or_else(unknown)
        };
        let (from, to) = (host(from)?, host(to)?);
        if from == to {
            return Err(format!("line {line}: host {} sends to itself", from.0));
        }
        let place = self.flows.len() as u32;
        let (mut start, mut after, mut bytes) = (None, None, None);
        let mut rest = words[1..].iter();
        while let Some(word) = rest.next() {
            match *word {
                "start" => start = Some(number::<f64>(line, word, rest.next())?),
                "size" => bytes = Some(number::<u64>(line, word, rest.next())?),
                "trigger" => after = Some(number::<u32>(line, word, rest.next())?),
                "send_done_trigger" | "recv_done_trigger" => {
                    self.causes.push((number(line, word, rest.next())?, place, line));
                }
                "id" | "prio" => drop(number::<u64>(line, word, rest.next())?),
                _ => return Err(format!("line {line}: {word} is no word of a connection")),
            }
        }
        let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else {
            return Err(format!("line {line}: the connection has no size above 0"));
        };
        let (at, after) = match (start, after) {
            (Some(start), None) if (0.0..=3.6e15).contains(&start) => (Time(start as u64), None),
            (None, Some(trigger)) => {
                self.used.entry(trigger).or_insert(line);
                (Time(0), Some(After::Trigger(trigger)))
            }
            _ => return Err(format!("line {line}: give start (in ps) or trigger, one of them")),
        };
        self.flows.push(PlannedFlow { spec: FlowSpec { from, to, bytes }, at, after });
        Ok(())
    }

    fn finish(mut self, hosts: u32) -> Result<Connections, String> {
        let counts =
            [("connections", self.flows.len() as u64), ("triggers", self.kinds.len() as u64)];
        for (key, found) in counts {
            match self.counts.get(key) {
                Some(&says) if says > found => {
                    return Err(format!(
                        "the header says {says} {key}, the file has {found}: it is truncated"
                    ));
                }
                Some(&says) if says != found => {
                    return Err(format!("the header says {says} {key}, the file has {found}"));
                }
                None if key == "connections" => return Err("the header has no Connections".into()),
                _ => {}
            }
        }
        if let Some(&nodes) = self.counts.get("nodes").filter(|&&nodes| nodes > u64::from(hosts)) {
            return Err(format!("Nodes {nodes}, but the topology has {hosts} hosts"));
        }
        let places: BTreeMap<u32, u32> = self.kinds.keys().copied().zip(0..).collect();
        let unknown = |line: usize, id: u32| format!("line {line}: trigger {id} is not defined");
        let mut triggers: Vec<Trigger> =
            self.kinds.values().map(|&kind| Trigger { kind, causes: Vec::new() }).collect();
        for &(id, flow, line) in &self.causes {
            let place = places.get(&id).ok_or_else(|| unknown(line, id))?;
            triggers[*place as usize].causes.push(flow);
        }
        for flow in &mut self.flows {
            if let Some(After::Trigger(id)) = flow.after {
                let place = places.get(&id).ok_or_else(|| unknown(self.used[&id], id))?;
                flow.after = Some(After::Trigger(*place));
            }
        }
        Ok(Connections { flows: self.flows, triggers })
    }
}
