//! A run of any flows over any topology with any transport, and what it gave.

use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::managed::{QueueCounters, QueueSpec, Visit};
use super::network::{NetCounters, Network};
use super::topology::{HostIndex, NodeIndex, Routing, Topology, TopologyError};
use super::transport::{FlowSpec, Transport, TransportEvent, Wire, WireBytes, step};
use crate::engine::{EventQueue, SEC, Time};

/// A flow, and when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFlow {
    /// From where to where, how much.
    pub spec: FlowSpec,
    /// When it begins; with `after`, how long after that one's end.
    pub at: Time,
    /// The flow that has to end first: an earlier one of the list.
    pub after: Option<u32>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The wiring.
    pub topology: Topology,
    /// How packets find their way.
    pub routing: Routing,
    /// The queues of all switches.
    pub queues: QueueSpec,
    /// The flows; their indices are the transport's.
    pub flows: Vec<PlannedFlow>,
    /// Statistics of ports begin here.
    pub warm_up: Time,
    /// The run ends here, even if flows are unfinished.
    pub until: Time,
    /// The flow whose packets' stays at ports are recorded.
    pub watch: Option<u32>,
    /// Everything random is drawn from it.
    pub seed: u64,
}

/// What became of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// When it began; not at all if the flow before it never ended.
    pub began: Option<Time>,
    /// When its receiver had every byte.
    pub ended: Option<Time>,
    /// How long it takes on an idle network: see [`ideal_ps`].
    pub ideal_ps: u64,
}

impl FlowReport {
    /// The time that it took.
    #[must_use]
    pub fn completion_ps(&self) -> Option<u64> {
        Some(self.ended?.since(self.began?))
    }
}

/// What a port did after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The node that sends.
    pub from: NodeIndex,
    /// The node at the other end.
    pub to: NodeIndex,
    /// Bandwidth.
    pub bits_per_s: u64,
    /// What it counted.
    pub queue: QueueCounters,
    /// The time that the counters cover.
    pub covered_ps: u64,
}

impl PortReport {
    /// Mean of the bytes that wait.
    #[must_use]
    pub fn waiting_bytes_mean(&self) -> f64 {
        self.queue.waiting_area as f64 / self.covered_ps.max(1) as f64
    }

    /// Share of the bandwidth that was used.
    #[must_use]
    pub fn use_share(&self) -> f64 {
        let possible = self.bits_per_s as f64 * self.covered_ps as f64 / SEC as f64;
        self.queue.sent_bytes as f64 * 8.0 / possible.max(1.0)
    }
}

/// What a run gave; equal for equal experiments, on any machine and in any build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// In the order of the experiment's flows.
    pub flows: Vec<FlowReport>,
    /// In the order of ports: `2 l` sends from the first node of link `l`, `2 l + 1` from its
    /// second.
    pub ports: Vec<PortReport>,
    /// The network's counters.
    pub network: NetCounters,
    /// The transport's.
    pub transport: Vec<(&'static str, u64)>,
    /// Stays at ports of the watched flow's packets.
    pub visits: Vec<Visit>,
    /// Events of the engine.
    pub events: u64,
    /// When the run ended.
    pub ended: Time,
    /// Hash of each delivery's time and host, in order.
    pub digest: u64,
}

impl Outcome {
    /// Flows without an end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.flows.iter().filter(|flow| flow.ended.is_none()).count()
    }

    /// Times that a lossless network would have paused an input.
    #[must_use]
    pub fn would_pause(&self) -> u64 {
        self.ports.iter().map(|port| port.queue.would_pause).sum()
    }
}

impl Experiment {
    /// Runs until every flow has ended, or until [`Experiment::until`].
    ///
    /// # Errors
    /// The topology cannot be used.
    pub fn run<T: Transport>(&self, transport: &mut T) -> Result<Outcome, TopologyError> {
        let mut rng = Rng::new(self.seed);
        let mut network = Network::new(&self.topology, self.routing, rng.next_u64())?;
        network.manage(self.queues);
        if let Some(flow) = self.watch {
            network.watch(flow);
        }
        let mut queue = EventQueue::new();
        let ideals = Ideals::new(&self.topology, &network);
        let mut flows = Vec::with_capacity(self.flows.len());
        let mut followers: Vec<Vec<u32>> = vec![Vec::new(); self.flows.len()];
        for (flow, planned) in self.flows.iter().enumerate() {
            let number = transport.add_flow(planned.spec);
            assert!(number as usize == flow, "flows are numbered in the order of addition");
            let size = transport.wire_bytes(planned.spec.bytes);
            let ideal_ps = ideals.of(&network, planned.spec.from, planned.spec.to, size);
            flows.push(FlowReport { began: None, ended: None, ideal_ps });
            match planned.after {
                Some(before) => followers[before as usize].push(number),
                None => queue.schedule(planned.at, TransportEvent::Start { flow: number }),
            }
        }
        let mut run = Run { flows, unfinished: self.flows.len(), digest: self.seed };
        let mut finished = Vec::new();
        let mut is_warm = self.warm_up == Time(0);
        while run.unfinished > 0
            && let Some((now, event)) = queue.next_until(self.until)
        {
            if !is_warm && now >= self.warm_up {
                network.begin_statistics(self.warm_up);
                is_warm = true;
            }
            if let TransportEvent::Start { flow } = event {
                run.flows[flow as usize].began = Some(now);
            }
            let mut wire =
                Wire { queue: &mut queue, network: &mut network, finished: &mut finished };
            if let Some(node) = step(transport, &mut wire, event) {
                run.digest = splitmix64(run.digest ^ now.0 ^ u64::from(node) << 48);
            }
            for flow in finished.drain(..) {
                run.unfinished -= 1;
                run.flows[flow as usize].ended = Some(now);
                for &next in &followers[flow as usize] {
                    let at = now.after(self.flows[next as usize].at.0);
                    queue.schedule(at, TransportEvent::Start { flow: next });
                }
            }
        }
        Ok(self.outcome(run, &queue, &network, transport))
    }

    fn outcome<T: Transport>(
        &self,
        run: Run,
        queue: &EventQueue<TransportEvent<T::Header>>,
        network: &Network<T::Header>,
        transport: &T,
    ) -> Outcome {
        let ended = if run.unfinished > 0 && !queue.is_empty() { self.until } else { queue.now() };
        let (counters, covered_ps) = network.queue_counters(ended);
        let port = |(port, queue): (usize, QueueCounters)| {
            let (from, to) = network.port_ends(port as u32);
            let bits_per_s = self.topology.links()[port / 2].2.bits_per_s;
            PortReport { from, to, bits_per_s, queue, covered_ps }
        };
        Outcome {
            flows: run.flows,
            ports: counters.into_iter().enumerate().map(port).collect(),
            network: network.counters(),
            transport: transport.counters(),
            visits: network.visits().to_vec(),
            events: queue.taken(),
            ended,
            digest: run.digest,
        }
    }
}

struct Run {
    flows: Vec<FlowReport>,
    unfinished: usize,
    digest: u64,
}

/// The time that a flow takes alone on an idle network without headers of control: its last packet
/// crosses each link of a shortest way, and the packets before it pass the slowest of them. Exact
/// if the last packet is full, else a lower bound. Of ways that are equally short, at each switch
/// the fastest link.
#[must_use]
pub fn ideal_ps<B>(
    topology: &Topology,
    network: &Network<B>,
    from: HostIndex,
    to: HostIndex,
    size: WireBytes,
) -> u64 {
    Ideals::new(topology, network).of(network, from, to, size)
}

/// What the ideal times need of each node.
struct Ideals<'a> {
    topology: &'a Topology,
    host_ports: Vec<u32>,
}

impl<'a> Ideals<'a> {
    fn new<B>(topology: &'a Topology, network: &Network<B>) -> Ideals<'a> {
        let ports = (0..topology.hosts()).map(|host| network.host_port(HostIndex(host)));
        Ideals { topology, host_ports: ports.collect() }
    }

    fn of<B>(&self, network: &Network<B>, from: HostIndex, to: HostIndex, size: WireBytes) -> u64 {
        let send_ps = |bytes: u64, bits_per_s: u64| {
            (u128::from(bytes) * 8 * u128::from(SEC) / u128::from(bits_per_s.max(1))) as u64
        };
        let links = self.topology.links();
        let rate = |port: u32| links[port as usize / 2].2.bits_per_s;
        let (mut total, mut slowest) = (0, u64::MAX);
        let mut port = self.host_ports[from.0 as usize];
        for _ in 0..self.topology.switches() + 1 {
            let link = links[port as usize / 2].2;
            let (_, node) = network.port_ends(port);
            slowest = slowest.min(link.bits_per_s);
            total += send_ps(u64::from(size.last), link.bits_per_s) + link.propagation_ps;
            total += self.topology.pipeline_ps(node);
            if node == NodeIndex::from(to) {
                break;
            }
            // Hosts forward nothing: another host is the end as well.
            if node.0 < self.topology.hosts() {
                break;
            }
            let ports = network.ports_towards(node, to).iter().copied();
            let Some(next) = ports.max_by_key(|&port| (rate(port), u32::MAX - port)) else { break };
            port = next;
        }
        total + send_ps(size.all - u64::from(size.last), slowest)
    }
}
