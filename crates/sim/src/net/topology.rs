//! The topology of a network, and the ports through which each host is reached.

use std::collections::VecDeque;
use std::fmt;

use crate::engine::SEC;

/// The maximum number of links of a topology in a file: a port takes about half a KiB of memory.
pub(super) const LINKS_MAX: u64 = 1 << 18;

/// The index of a host: `0..hosts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u32);

/// The index of a host (the same as its [`HostIndex`]) or of a switch (after the hosts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

impl From<HostIndex> for NodeIndex {
    fn from(host: HostIndex) -> NodeIndex {
        NodeIndex(host.0)
    }
}

/// A full-duplex link, with the same parameters in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// The bandwidth.
    pub bits_per_s: u64,
    /// The propagation delay.
    pub propagation_ps: u64,
    /// The buffer of each priority class at the sending port. In class 0 the unsent part of the
    /// packet on the wire counts too; in the others, only waiting packets.
    pub queue_bytes_max: u64,
}

/// How a switch chooses among equally near ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Per-packet spraying: uniformly at random.
    Spray,
    /// ECMP: by a hash of source, destination and flow label, different at each switch.
    Ecmp,
}

/// A two-tier Clos network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSpine {
    /// The number of top-of-rack switches.
    pub tors: u32,
    /// The number of hosts below each of them.
    pub hosts_per_tor: u32,
    /// The number of spines; every ToR switch has one link to each.
    pub spines: u32,
    /// The links of hosts.
    pub host_link: LinkSpec,
    /// The links between ToR switches and spines.
    pub spine_link: LinkSpec,
    /// The pipeline latency of every switch.
    pub pipeline_ps: u64,
}

/// The reason why a topology cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// A host does not have exactly one link.
    Links {
        /// The index of the host.
        host: HostIndex,
        /// The number of its links.
        links: usize,
    },
    /// No path connects two hosts.
    Unreachable {
        /// The first host.
        from: HostIndex,
        /// The second host.
        to: HostIndex,
    },
    /// A link ends at a node that does not exist.
    NoSuchNode(NodeIndex),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::Links { host, links } => {
                write!(f, "host {} has {links} links; a host has exactly one", host.0)
            }
            TopologyError::Unreachable { from, to } => {
                write!(f, "no path from host {} to host {}: connect their switches", from.0, to.0)
            }
            TopologyError::NoSuchNode(node) => write!(f, "a link ends at {}, no node", node.0),
        }
    }
}

impl std::error::Error for TopologyError {}

/// Hosts, switches and links.
#[derive(Clone, Debug)]
pub struct Topology {
    hosts: u32,
    pipelines_ps: Vec<u64>,
    links: Vec<(NodeIndex, NodeIndex, LinkSpec)>,
}

impl Topology {
    /// `hosts` hosts, no switch, no link.
    #[must_use]
    pub fn new(hosts: u32) -> Topology {
        Topology { hosts, pipelines_ps: Vec::new(), links: Vec::new() }
    }

    /// One switch, and the hosts on it.
    #[must_use]
    pub fn single_rack(hosts: u32, link: LinkSpec, pipeline_ps: u64) -> Topology {
        let mut topology = Topology::new(hosts);
        let switch = topology.add_switch(pipeline_ps);
        for host in 0..hosts {
            topology.connect(NodeIndex(host), switch, link);
        }
        topology
    }

    /// A leaf-spine network. Hosts of one rack have consecutive numbers.
    #[must_use]
    pub fn leaf_spine(spec: &LeafSpine) -> Topology {
        let mut topology = Topology::new(spec.tors * spec.hosts_per_tor);
        let tors: Vec<_> = (0..spec.tors).map(|_| topology.add_switch(spec.pipeline_ps)).collect();
        let spines: Vec<_> =
            (0..spec.spines).map(|_| topology.add_switch(spec.pipeline_ps)).collect();
        for (rack, &tor) in tors.iter().enumerate() {
            for place in 0..spec.hosts_per_tor {
                let host = NodeIndex(rack as u32 * spec.hosts_per_tor + place);
                topology.connect(host, tor, spec.host_link);
            }
            for &spine in &spines {
                topology.connect(tor, spine, spec.spine_link);
            }
        }
        topology
    }

    /// A k-ary fat tree (Al-Fares et al. 2008) of equal links: k pods of k/2 edge and k/2
    /// aggregation switches, (k/2)^2 core switches, k^3/4 hosts. The hosts of an edge switch have
    /// consecutive numbers, and so have those of a pod. `k` is even.
    #[must_use]
    pub fn fat_tree(k: u32, link: LinkSpec, pipeline_ps: u64) -> Topology {
        let half = k / 2;
        let mut topology = Topology::new(k * half * half);
        let mut layer = |count| -> Vec<NodeIndex> {
            (0..count).map(|_| topology.add_switch(pipeline_ps)).collect()
        };
        let (edges, aggregations) = (layer(k * half), layer(k * half));
        let cores = layer(half * half);
        for (number, &edge) in edges.iter().enumerate() {
            for place in 0..half {
                topology.connect(NodeIndex(number as u32 * half + place), edge, link);
            }
            let pod = number / half as usize;
            for place in 0..half as usize {
                topology.connect(edge, aggregations[pod * half as usize + place], link);
            }
        }
        for (number, &aggregation) in aggregations.iter().enumerate() {
            let first = number % half as usize * half as usize;
            for &core in &cores[first..first + half as usize] {
                topology.connect(aggregation, core, link);
            }
        }
        topology
    }

    /// Senders `0..pairs` on one switch, receivers `pairs..2 pairs` on another, with one link
    /// between.
    #[must_use]
    pub fn dumbbell(pairs: u32, host: LinkSpec, between: LinkSpec, pipeline_ps: u64) -> Topology {
        let mut topology = Topology::new(2 * pairs);
        let (left, right) = (topology.add_switch(pipeline_ps), topology.add_switch(pipeline_ps));
        for pair in 0..pairs {
            topology.connect(NodeIndex(pair), left, host);
            topology.connect(NodeIndex(pairs + pair), right, host);
        }
        topology.connect(left, right, between);
        topology
    }

    /// Adds a switch with this pipeline latency.
    pub fn add_switch(&mut self, pipeline_ps: u64) -> NodeIndex {
        self.pipelines_ps.push(pipeline_ps);
        NodeIndex(self.hosts + self.pipelines_ps.len() as u32 - 1)
    }

    /// Adds a link.
    pub fn connect(&mut self, a: NodeIndex, b: NodeIndex, link: LinkSpec) {
        self.links.push((a, b, link));
    }

    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The number of switches.
    #[must_use]
    pub fn switches(&self) -> u32 {
        self.pipelines_ps.len() as u32
    }

    /// The links, by index.
    #[must_use]
    pub fn links(&self) -> &[(NodeIndex, NodeIndex, LinkSpec)] {
        &self.links
    }

    /// Checks that every host has one link, and reaches every other host.
    ///
    /// # Errors
    /// [`TopologyError`]: the first host that does not, or a link that ends at no node.
    pub fn check(&self) -> Result<(), TopologyError> {
        let (edges, hosts) = (edges_of(self)?, self.hosts as usize);
        let degrees = edges.iter().take(hosts).map(Vec::len).enumerate();
        if let Some((host, links)) = degrees.into_iter().find(|&(_, links)| links != 1) {
            return Err(TopologyError::Links { host: HostIndex(host as u32), links });
        }
        if hosts == 0 {
            return Ok(());
        }
        // Links are bidirectional: if one host reaches all others, they all reach each other.
        let distance = distances(&edges, hosts, 0);
        match (0..hosts).find(|&host| distance[host] == FAR) {
            Some(to) => {
                Err(TopologyError::Unreachable { from: HostIndex(0), to: HostIndex(to as u32) })
            }
            None => Ok(()),
        }
    }

    /// For each host the number of links on the longest of its shortest paths to other hosts. The
    /// topology must pass [`Topology::check`].
    #[must_use]
    pub fn links_between_max(&self) -> u32 {
        let Ok(edges) = edges_of(self) else { return 0 };
        let hosts = self.hosts as usize;
        // Hosts of the same switch are equally far from all others.
        let mut seen = std::collections::BTreeSet::new();
        let mut most = 0;
        for host in 0..hosts {
            if !edges[host].first().is_some_and(|edge| seen.insert(edge.to)) {
                continue;
            }
            let distance = distances(&edges, hosts, host);
            let far = distance[..hosts].iter().filter(|&&links| links != FAR).max();
            most = most.max(far.copied().unwrap_or(0));
        }
        most
    }

    /// For each switch the number of links to the nearest host, at most 255.
    pub(super) fn levels(&self) -> Vec<u8> {
        let Ok(edges) = edges_of(self) else { return Vec::new() };
        let hosts = self.hosts as usize;
        let mut levels = vec![u8::MAX; edges.len()];
        levels[..hosts].fill(0);
        let mut reached: VecDeque<usize> = (0..hosts).collect();
        while let Some(node) = reached.pop_front() {
            for edge in edges[node].iter().filter(|edge| edge.to >= hosts) {
                if levels[edge.to] == u8::MAX && levels[node] < u8::MAX - 1 {
                    levels[edge.to] = levels[node] + 1;
                    reached.push_back(edge.to);
                }
            }
        }
        levels.split_off(hosts)
    }

    /// The longest round trip between two hosts on an idle network, in ps: a packet one way, an
    /// answer back, each stored and forwarded on a shortest path. The topology must pass
    /// [`Topology::check`].
    #[must_use]
    pub fn round_trip_ps_max(&self, packet_bytes: u32, answer_bytes: u32) -> u64 {
        let Ok(edges) = edges_of(self) else { return 0 };
        let hosts = self.hosts as usize;
        let hop_ps = |from: usize, edge: &Edge| {
            let link = self.links[edge.port as usize / 2].2;
            let bytes = u128::from(packet_bytes) + u128::from(answer_bytes);
            let send_ps = bytes * 8 * u128::from(SEC) / u128::from(link.bits_per_s.max(1));
            let switches = [from, edge.to].map(|node| self.pipeline_ps(NodeIndex(node as u32)));
            let rest = 2 * link.propagation_ps + switches[0] + switches[1];
            u64::try_from(send_ps).unwrap_or(u64::MAX).saturating_add(rest)
        };
        let mut seen = std::collections::BTreeSet::new();
        let mut most = 0;
        for host in 0..hosts {
            // Hosts of the same switch with equal links are equally far from all others.
            let Some(edge) = edges[host].first() else { continue };
            if !seen.insert((edge.to, hop_ps(host, edge))) {
                continue;
            }
            let distance = distances(&edges, hosts, host);
            let mut nodes: Vec<usize> = (0..edges.len()).filter(|&n| distance[n] != FAR).collect();
            nodes.sort_by_key(|&node| distance[node]);
            let mut round_trip_ps = vec![0u64; edges.len()];
            for node in nodes {
                if node < hosts && node != host {
                    continue;
                }
                for edge in
                    edges[node].iter().filter(|edge| distance[edge.to] == distance[node] + 1)
                {
                    let there = round_trip_ps[node].saturating_add(hop_ps(node, edge));
                    round_trip_ps[edge.to] = round_trip_ps[edge.to].max(there);
                }
            }
            most = most.max(round_trip_ps[..hosts].iter().copied().max().unwrap_or(0));
        }
        most
    }

    /// The latency of a node's pipeline, in ps.
    pub(super) fn pipeline_ps(&self, node: NodeIndex) -> u64 {
        let switch = node.0.checked_sub(self.hosts);
        switch.map_or(0, |s| self.pipelines_ps[s as usize])
    }
}

/// The ports of each node, and the routes: all shortest paths.
pub(super) struct Routes {
    hosts: usize,
    /// For each pair of switch and host, an index into `groups`.
    table: Vec<u32>,
    /// The first index and the number of equally near ports in `choices`.
    groups: Vec<(u32, u32)>,
    choices: Vec<u32>,
    /// The port of each host.
    pub(super) host_ports: Vec<u32>,
}

/// A port as the routes see it: its index, and the node to which it leads.
struct Edge {
    port: u32,
    to: usize,
}

const FAR: u32 = u32::MAX;

impl Routes {
    /// The routes over all links. Ports are numbered by link: `2 l` sends from its first node, `2 l
    /// + 1` from its second.
    pub(super) fn new(topology: &Topology) -> Result<Routes, TopologyError> {
        Routes::over(topology, |_| true, false)
    }

    /// The routes over the links that are up; a host may then be unreachable.
    pub(super) fn around_failures(
        topology: &Topology,
        is_up: impl Fn(usize) -> bool,
    ) -> Result<Routes, TopologyError> {
        Routes::over(topology, is_up, true)
    }

    fn over(
        topology: &Topology,
        is_up: impl Fn(usize) -> bool,
        may_be_cut: bool,
    ) -> Result<Routes, TopologyError> {
        let hosts = topology.hosts() as usize;
        let nodes = hosts + topology.switches() as usize;
        let mut edges = edges_of(topology)?;
        let host_edges: Vec<_> =
            edges.iter().take(hosts).map(|e| e.first().map(|e| e.port)).collect();
        for (host, edges) in edges.iter().enumerate().take(hosts) {
            if edges.len() != 1 {
                let host = HostIndex(host as u32);
                return Err(TopologyError::Links { host, links: edges.len() });
            }
        }
        let mut routes = Routes {
            hosts,
            table: vec![0; (nodes - hosts) * hosts],
            groups: vec![(0, 0)],
            choices: Vec::new(),
            host_ports: host_edges.into_iter().flatten().collect(),
        };
        for edges in &mut edges {
            edges.retain(|edge| is_up(edge.port as usize / 2));
        }
        let mut groups_of = vec![Vec::new(); nodes];
        for host in 0..hosts {
            routes.add_host(&edges, host, &mut groups_of, may_be_cut)?;
        }
        Ok(routes)
    }

    fn add_host(
        &mut self,
        edges: &[Vec<Edge>],
        host: usize,
        groups_of: &mut [Vec<u32>],
        may_be_cut: bool,
    ) -> Result<(), TopologyError> {
        let distance = distances(edges, self.hosts, host);
        if !may_be_cut && let Some(from) = (0..self.hosts).find(|&from| distance[from] == FAR) {
            let (from, to) = (HostIndex(from as u32), HostIndex(host as u32));
            return Err(TopologyError::Unreachable { from, to });
        }
        for switch in self.hosts..edges.len() {
            let nearer = edges[switch].iter().filter(|e| distance[e.to] < distance[switch]);
            let ports: Vec<u32> = nearer.map(|e| e.port).collect();
            let known = groups_of[switch].iter().find(|&&g| self.ports(g) == ports);
            let group = match known {
                Some(&group) => group,
                None => {
                    let group = self.groups.len() as u32;
                    self.groups.push((self.choices.len() as u32, ports.len() as u32));
                    self.choices.extend(ports);
                    groups_of[switch].push(group);
                    group
                }
            };
            self.table[(switch - self.hosts) * self.hosts + host] = group;
        }
        Ok(())
    }

    fn ports(&self, group: u32) -> &[u32] {
        let (first, count) = self.groups[group as usize];
        &self.choices[first as usize..(first + count) as usize]
    }

    /// The ports of switch `switch` (not counting hosts) on shortest paths to `host`.
    #[inline]
    pub(super) fn choices(&self, switch: usize, host: HostIndex) -> &[u32] {
        self.ports(self.table[switch * self.hosts + host.0 as usize])
    }
}

/// The ports of each node.
fn edges_of(topology: &Topology) -> Result<Vec<Vec<Edge>>, TopologyError> {
    let nodes = topology.hosts as usize + topology.pipelines_ps.len();
    let mut edges: Vec<Vec<Edge>> = (0..nodes).map(|_| Vec::new()).collect();
    for (link, &(a, b, _)) in topology.links.iter().enumerate() {
        for (from, to, port) in [(a, b, 2 * link as u32), (b, a, 2 * link as u32 + 1)] {
            if to.0 as usize >= nodes {
                return Err(TopologyError::NoSuchNode(to));
            }
            let at = edges.get_mut(from.0 as usize);
            let at = at.ok_or(TopologyError::NoSuchNode(from))?;
            at.push(Edge { port, to: to.0 as usize });
        }
    }
    Ok(edges)
}

/// The number of links from each node to `host`; hosts do not forward.
fn distances(edges: &[Vec<Edge>], hosts: usize, host: usize) -> Vec<u32> {
    let mut distance = vec![FAR; edges.len()];
    distance[host] = 0;
    let mut reached = VecDeque::from([host]);
    while let Some(node) = reached.pop_front() {
        for edge in &edges[node] {
            if distance[edge.to] == FAR {
                distance[edge.to] = distance[node] + 1;
                if edge.to >= hosts {
                    reached.push_back(edge.to);
                }
            }
        }
    }
    distance
}
