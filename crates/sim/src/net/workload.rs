//! Workloads: the flows of a run, drawn from a seed. Poisson arrivals over a distribution of sizes,
//! incast, permutation, all-to-all, ring all-reduce.

use std::fmt;

use concord_core::Rng;

use super::experiment::{After, PlannedFlow};
use super::topology::HostIndex;
use super::transport::FlowSpec;
use crate::engine::{SEC, Time};

/// The maximum number of flows of a run.
pub const FLOWS_MAX: u64 = 10_000_000;

/// The payload in bytes of the packets in which the published distributions count.
const PUBLISHED_PACKET_BYTES: u64 = 1_460;

/// A distribution of flow sizes: points of its cumulative distribution function, with linear
/// interpolation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Pairs of a size in bytes and the share of flows that are not longer; both ascending, the
    /// last share is 1.
    points: Vec<(f64, f64)>,
}

/// The reason why a workload cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadError {
    /// A point of a distribution is out of order, or not a number.
    Point {
        /// The position of the point in the list, from 1.
        place: usize,
        /// The mistake in the point.
        why: &'static str,
    },
    /// The load is not above 0 and at most 1.
    Load(f64),
    /// There are more than [`FLOWS_MAX`] flows.
    Flows(u64),
    /// The pattern needs more hosts.
    Hosts {
        /// The minimum number of hosts.
        needed: u32,
        /// The number of hosts of the topology.
        hosts: u32,
    },
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadError::Point { place, why } => {
                write!(f, "point {place} of the distribution of sizes {why}")
            }
            WorkloadError::Load(load) => {
                write!(f, "a load of {load}: it is a share of the hosts' links, above 0, at most 1")
            }
            WorkloadError::Flows(flows) => {
                write!(
                    f,
                    "{flows} flows: at most {FLOWS_MAX}; shorten the duration or lower the load"
                )
            }
            WorkloadError::Hosts { needed, hosts } => {
                write!(f, "the workload needs {needed} hosts, the topology has {hosts}")
            }
        }
    }
}

impl std::error::Error for WorkloadError {}

impl Sizes {
    /// A distribution with a single size.
    #[must_use]
    pub fn fixed(bytes: u64) -> Sizes {
        Sizes { points: vec![(bytes as f64, 1.0)] }
    }

    /// A distribution from pairs of bytes and share.
    ///
    /// # Errors
    /// The points are not ascending, or do not end at 1.
    pub fn from_points(points: &[(f64, f64)]) -> Result<Sizes, WorkloadError> {
        let wrong = |place: usize, why| Err(WorkloadError::Point { place: place + 1, why });
        let mut before = (0.0, 0.0);
        for (place, &(bytes, share)) in points.iter().enumerate() {
            if !bytes.is_finite() || bytes < 1.0 {
                return wrong(place, "has fewer than 1 byte");
            }
            if !(0.0..=1.0).contains(&share) {
                return wrong(place, "has a share outside of 0 to 1");
            }
            if bytes < before.0 || share < before.1 {
                return wrong(place, "is below the one before it");
            }
            before = (bytes, share);
        }
        if points.is_empty() || before.1 < 1.0 {
            return wrong(points.len().saturating_sub(1), "is the last, and its share is not 1");
        }
        Ok(Sizes { points: points.to_vec() })
    }

    fn of_packets(points: &[(u64, f64)]) -> Sizes {
        let bytes =
            |&(packets, share): &(u64, f64)| ((packets * PUBLISHED_PACKET_BYTES) as f64, share);
        Sizes { points: points.iter().map(bytes).collect() }
    }

    /// Web search: Alizadeh et al., "Data Center TCP", SIGCOMM 2010, figure 4, with the points that
    /// pFabric, pHost and dcPIM use.
    #[must_use]
    pub fn websearch() -> Sizes {
        Sizes::of_packets(&[
            (6, 0.0),
            (6, 0.15),
            (13, 0.2),
            (19, 0.3),
            (33, 0.4),
            (53, 0.53),
            (133, 0.6),
            (667, 0.7),
            (1_333, 0.8),
            (3_333, 0.9),
            (6_667, 0.97),
            (20_000, 1.0),
        ])
    }

    /// IMC10: Benson, Akella, Maltz, "Network traffic characteristics of data centers in the wild",
    /// IMC 2010, with the points that pHost and dcPIM use.
    #[must_use]
    pub fn imc10() -> Sizes {
        Sizes::of_packets(&[
            (1, 0.0),
            (1, 0.5),
            (2, 0.6),
            (3, 0.7),
            (5, 0.75),
            (7, 0.8),
            (40, 0.812_5),
            (72, 0.825),
            (137, 0.85),
            (267, 0.9),
            (1_187, 0.95),
            (2_107, 1.0),
        ])
    }

    /// Data mining: Greenberg et al., "VL2", SIGCOMM 2009, with the points that pFabric, pHost and
    /// dcPIM use.
    #[must_use]
    pub fn datamining() -> Sizes {
        Sizes::of_packets(&[
            (1, 0.0),
            (1, 0.5),
            (2, 0.6),
            (3, 0.7),
            (7, 0.8),
            (267, 0.9),
            (2_107, 0.95),
            (66_667, 0.99),
            (666_667, 1.0),
        ])
    }

    /// The distribution with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Sizes> {
        match name {
            "websearch" => Some(Sizes::websearch()),
            "imc10" => Some(Sizes::imc10()),
            "datamining" => Some(Sizes::datamining()),
            _ => None,
        }
    }

    /// The mean, in bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        let (mut mean, mut before) = (0.0, (self.points[0].0, 0.0));
        for &(bytes, share) in &self.points {
            mean += (share - before.1) * (bytes + before.0) / 2.0;
            before = (bytes, share);
        }
        mean
    }

    /// The share of flows that have at most `bytes`.
    #[must_use]
    pub fn share_up_to(&self, bytes: f64) -> f64 {
        let mut before = (self.points[0].0, 0.0);
        for &(at, share) in &self.points {
            if bytes < at {
                let width = at - before.0;
                let part = if width > 0.0 { (bytes - before.0).max(0.0) / width } else { 0.0 };
                return before.1 + part * (share - before.1);
            }
            before = (at, share);
        }
        1.0
    }

    /// Parses a text with one point a line, in the format of HPCC's generator and others: first the
    /// bytes, last the share of flows that are not longer, up to 1 or to 100; `#` begins a comment.
    ///
    /// # Errors
    /// One line that says which line is wrong, and why.
    pub fn parse(text: &str) -> Result<Sizes, String> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(first), Some(last)) = (words.first(), words.last()) else { continue };
            match (first.parse(), last.parse()) {
                (Ok(bytes), Ok(share)) if words.len() > 1 => points.push((bytes, share)),
                _ => return Err(format!("line {}: write `bytes share`", place + 1)),
            }
        }
        let most = points.last().map_or(0.0, |point| point.1);
        if most == 100.0 {
            points.iter_mut().for_each(|point| point.1 /= 100.0);
        }
        // A first point of 0 bytes is common, and means that there are no such flows.
        if let Some(first) = points.first_mut() {
            first.0 = first.0.max(1.0);
        }
        Sizes::from_points(&points).map_err(|e| e.to_string())
    }

    /// Draws a size, in bytes.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.unit();
        let mut before = (self.points[0].0, 0.0);
        for &(bytes, share) in &self.points {
            if at < share {
                let part = (at - before.1) / (share - before.1);
                return (before.0 + part * (bytes - before.0)).round().max(1.0) as u64;
            }
            before = (bytes, share);
        }
        before.0 as u64
    }
}

fn need(needed: u32, hosts: u32) -> Result<(), WorkloadError> {
    if hosts < needed { Err(WorkloadError::Hosts { needed, hosts }) } else { Ok(()) }
}

fn flow(from: u32, to: u32, bytes: u64, at: Time) -> PlannedFlow {
    let spec = FlowSpec { from: HostIndex(from), to: HostIndex(to), bytes };
    PlannedFlow { spec, at, after: None }
}

/// The expected number of flows that [`poisson`] draws.
///
/// # Errors
/// The load is not above 0 and at most 1, or there are more than [`FLOWS_MAX`].
pub fn poisson_flows(
    hosts: u32,
    host_bits_per_s: u64,
    sizes: &Sizes,
    load: f64,
    until: Time,
) -> Result<f64, WorkloadError> {
    if !(load > 0.0 && load <= 1.0) {
        return Err(WorkloadError::Load(load));
    }
    let expected = until.0 as f64 / gap_ps(hosts, host_bits_per_s, sizes, load);
    if expected > FLOWS_MAX as f64 {
        return Err(WorkloadError::Flows(expected as u64));
    }
    Ok(expected)
}

/// The mean time between two flows, in ps.
fn gap_ps(hosts: u32, host_bits_per_s: u64, sizes: &Sizes, load: f64) -> f64 {
    let bits_per_s = load * f64::from(hosts) * host_bits_per_s as f64;
    sizes.mean_bytes() * 8.0 / bits_per_s * SEC as f64
}

/// Poisson arrivals, each from a host to another, both uniform, until `until`: the mean payload is
/// `load` times the capacity of all hosts' links.
///
/// # Errors
/// The load is not above 0 and at most 1, there are too many flows, or one host.
pub fn poisson(
    hosts: u32,
    host_bits_per_s: u64,
    sizes: &Sizes,
    load: f64,
    until: Time,
    rng: &mut Rng,
) -> Result<Vec<PlannedFlow>, WorkloadError> {
    need(2, hosts)?;
    poisson_flows(hosts, host_bits_per_s, sizes, load, until)?;
    let gap_ps = gap_ps(hosts, host_bits_per_s, sizes, load);
    let (mut flows, mut at) = (Vec::new(), 0.0);
    loop {
        at += -(1.0 - rng.unit()).ln() * gap_ps;
        if at >= until.0 as f64 {
            return Ok(flows);
        }
        let from = rng.below(u64::from(hosts)) as u32;
        let to = (from + 1 + rng.below(u64::from(hosts) - 1) as u32) % hosts;
        flows.push(flow(from, to, sizes.draw(rng), Time(at as u64)));
    }
}

/// `senders` hosts, drawn at random, send to another one at the same moment.
///
/// # Errors
/// There are not enough hosts.
pub fn incast(
    hosts: u32,
    senders: u32,
    bytes: u64,
    rng: &mut Rng,
) -> Result<Vec<PlannedFlow>, WorkloadError> {
    need(senders.saturating_add(1), hosts)?;
    let mut order: Vec<u32> = (0..hosts).collect();
    for place in 0..=senders as usize {
        let other = place as u64 + rng.below(u64::from(hosts) - place as u64);
        order.swap(place, other as usize);
    }
    let to = order[0];
    let of = |&from: &u32| flow(from, to, bytes, Time(0));
    Ok(order[1..=senders as usize].iter().map(of).collect())
}

/// Every host sends to one other, and receives from one: a single cycle (Sattolo 1986).
///
/// # Errors
/// There is only one host.
pub fn permutation(
    hosts: u32,
    bytes: u64,
    rng: &mut Rng,
) -> Result<Vec<PlannedFlow>, WorkloadError> {
    need(2, hosts)?;
    let mut to: Vec<u32> = (0..hosts).collect();
    for i in (1..to.len()).rev() {
        to.swap(i, rng.below(i as u64) as usize);
    }
    let of = |(from, &to): (usize, &u32)| flow(from as u32, to, bytes, Time(0));
    Ok(to.iter().enumerate().map(of).collect())
}

/// Every host sends to every other, beginning with its successor.
///
/// # Errors
/// There is only one host, or there are too many flows.
pub fn all_to_all(hosts: u32, bytes: u64) -> Result<Vec<PlannedFlow>, WorkloadError> {
    need(2, hosts)?;
    let count = u64::from(hosts) * u64::from(hosts - 1);
    if count > FLOWS_MAX {
        return Err(WorkloadError::Flows(count));
    }
    let of = |step: u32, from: u32| flow(from, (from + step) % hosts, bytes, Time(0));
    Ok((1..hosts).flat_map(|step| (0..hosts).map(move |from| of(step, from))).collect())
}

/// A ring all-reduce of `bytes` per host: 2 (n - 1) steps, in each of which every host sends 1/n of
/// the bytes to its successor. A host begins a step when it has received its predecessor's last
/// one.
///
/// # Errors
/// There is only one host, or there are too many flows.
pub fn ring_all_reduce(hosts: u32, bytes: u64) -> Result<Vec<PlannedFlow>, WorkloadError> {
    need(2, hosts)?;
    let steps = 2 * (hosts - 1);
    let count = u64::from(hosts) * u64::from(steps);
    if count > FLOWS_MAX {
        return Err(WorkloadError::Flows(count));
    }
    let part = bytes.div_ceil(u64::from(hosts)).max(1);
    let mut flows = Vec::new();
    for step in 0..steps {
        for host in 0..hosts {
            let before = (host + hosts - 1) % hosts;
            let after = step.checked_sub(1).map(|last| After::Flow(last * hosts + before));
            flows.push(PlannedFlow { after, ..flow(host, (host + 1) % hosts, part, Time(0)) });
        }
    }
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MS;

    const GBPS_100: u64 = 100_000_000_000;

    /// Harmony figure 1: the share of messages below one bandwidth-delay product, 93 KB at 100 Gb/s
    /// over a fat tree and four times that at 400 Gb/s.
    #[test]
    fn shares_below_one_bdp_are_those_of_harmony() {
        for (sizes, expected) in
            [(Sizes::websearch(), [54.0, 64.0]), (Sizes::imc10(), [82.0, 89.0])]
        {
            for (bytes, expected) in [93_000.0, 372_000.0].into_iter().zip(expected) {
                let share = sizes.share_up_to(bytes) * 100.0;
                assert!((share - expected).abs() <= 3.0, "{bytes}: {share}, not {expected}");
            }
        }
    }

    /// The mean of draws is the mean of the points, and the share of draws below a point is its
    /// share.
    #[test]
    fn draws_follow_the_distribution() {
        for sizes in [Sizes::websearch(), Sizes::imc10(), Sizes::fixed(5_000)] {
            let mut rng = Rng::new(1);
            let drawn: Vec<f64> = (0..200_000).map(|_| sizes.draw(&mut rng) as f64).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            assert!((mean / sizes.mean_bytes() - 1.0).abs() < 0.02, "{mean} {sizes:?}");
            let below = drawn.iter().filter(|&&bytes| bytes <= 50_000.0).count() as f64;
            let share = sizes.share_up_to(50_000.0);
            assert!((below / drawn.len() as f64 - share).abs() < 0.01, "{share} {sizes:?}");
        }
    }

    /// The arrivals have the requested load, from and to every host.
    #[test]
    fn poisson_arrivals_offer_the_load() {
        let sizes = Sizes::fixed(10_000);
        let flows = poisson(16, GBPS_100, &sizes, 0.5, Time(10 * MS), &mut Rng::new(1)).unwrap();
        let bits: u64 = flows.iter().map(|f| f.spec.bytes * 8).sum();
        let load = bits as f64 / (16.0 * GBPS_100 as f64 * 0.01);
        assert!((load - 0.5).abs() < 0.01, "{load}");
        assert!(flows.iter().all(|f| f.spec.from != f.spec.to && f.spec.to.0 < 16));
        assert!(flows.is_sorted_by_key(|f| f.at));
        for host in 0..16 {
            let sent = flows.iter().filter(|f| f.spec.from.0 == host).count() * 16;
            assert!(sent.abs_diff(flows.len()) < flows.len() / 10);
        }
    }

    #[test]
    fn bad_workloads_are_refused_in_words() {
        let mut rng = Rng::new(1);
        let sizes = Sizes::fixed(1);
        for load in [0.0, -1.0, 1.01, f64::NAN] {
            let refused = poisson(4, GBPS_100, &sizes, load, Time(MS), &mut rng);
            assert!(matches!(refused, Err(WorkloadError::Load(_))), "{load}");
        }
        let many = poisson(4, GBPS_100, &sizes, 1.0, Time(SEC), &mut rng);
        assert!(matches!(many, Err(WorkloadError::Flows(_))));
        assert!(incast(8, 8, 1, &mut rng).is_err());
        assert!(incast(8, u32::MAX, 1, &mut rng).is_err());
        assert!(permutation(1, 1, &mut rng).is_err() && all_to_all(1, 1).is_err());
        let nan = f64::NAN;
        for points in [
            &[][..],
            &[(10.0, 0.5)],
            &[(10.0, 0.5), (5.0, 1.0)],
            &[(1.0, 0.5), (2.0, 0.4)],
            &[(nan, 1.0)],
            &[(1.0, nan)],
        ] {
            let why = Sizes::from_points(points).unwrap_err().to_string();
            assert!(why.starts_with("point ") && !why.contains('\n'), "{why}");
        }
        assert!(Sizes::from_points(&[(100.0, 0.5), (200.0, 1.0)]).is_ok());
    }

    /// Each pattern has its flows, none from a host to itself, and every dependency is on an
    /// earlier flow.
    #[test]
    fn patterns_have_their_flows() {
        let mut rng = Rng::new(1);
        let incast = incast(16, 15, 64_000, &mut rng).unwrap();
        let mut senders: Vec<_> = incast.iter().map(|f| f.spec.from).collect();
        senders.sort_unstable();
        senders.dedup();
        assert_eq!(senders.len(), 15);
        let permutation = permutation(16, 1, &mut rng).unwrap();
        let mut receivers: Vec<_> = permutation.iter().map(|f| f.spec.to.0).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..16).collect::<Vec<_>>());
        let all = all_to_all(5, 1).unwrap();
        assert_eq!(all.len(), 20);
        let ring = ring_all_reduce(4, 4_000).unwrap();
        assert_eq!(ring.len(), 24);
        for flows in [&incast, &permutation, &all, &ring] {
            for (place, flow) in flows.iter().enumerate() {
                assert!(flow.spec.from != flow.spec.to && flow.spec.bytes > 0);
                let Some(After::Flow(before)) = flow.after else { continue };
                assert!((before as usize) < place);
            }
        }
        // A step waits for the predecessor's part.
        for flow in &ring[4..] {
            let Some(After::Flow(before)) = flow.after else { panic!("{flow:?}") };
            assert_eq!(ring[before as usize].spec.to, flow.spec.from);
        }
    }
}
