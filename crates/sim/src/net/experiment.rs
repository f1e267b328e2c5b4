//! A run of any flows over any topology with any transport, and its results.

use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::managed::{Captured, QueueCounters, QueueSpec, Visit};
use super::network::{NetCounters, Network};
use super::topology::{HostIndex, NodeIndex, Routing, Topology, TopologyError};
use super::transport::{FlowSpec, Promise, Transport, TransportEvent, Way, Wire, WireBytes, step};
use crate::engine::{EventQueue, SEC, Time};

/// A flow, and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFlow {
    /// The sender, the receiver, and the size.
    pub spec: FlowSpec,
    /// The time of its start; with `after`, the delay after that.
    pub at: Time,
    /// The condition for its start, if it waits for one.
    pub after: Option<After>,
}

/// The condition for which a flow waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The end of this flow.
    Flow(u32),
    /// The activation of this trigger.
    Trigger(u32),
}

/// A trigger begins flows when others have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Which of the waiting flows begin, and when.
    pub kind: TriggerKind,
    /// The flows whose ends activate the trigger.
    pub causes: Vec<u32>,
}

/// The effect of a trigger's activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// All waiting flows begin after this many activations.
    After(u32),
    /// Each activation begins the next waiting flow.
    Each,
}

/// The description of a run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The wiring.
    pub topology: Topology,
    /// How switches choose among equally near ports.
    pub routing: Routing,
    /// The queues of all switches.
    pub queues: QueueSpec,
    /// The flows; their indices are the transport's.
    pub flows: Vec<PlannedFlow>,
    /// The triggers that flows wait for.
    pub triggers: Vec<Trigger>,
    /// Statistics of ports begin at this time.
    pub warm_up: Time,
    /// Statistics of ports end at this time, or with the run.
    pub measure_until: Time,
    /// The run ends at this time, even if flows are unfinished.
    pub until: Time,
    /// The flow whose packets' visits at ports are recorded.
    pub watch: Option<u32>,
    /// The ports whose packets are captured.
    pub capture: Vec<u32>,
    /// The seed of everything random.
    pub seed: u64,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// The time of its start; `None` if the flow for which it waited never ended.
    pub began: Option<Time>,
    /// The time when its receiver had every byte.
    pub ended: Option<Time>,
    /// The time that it takes on an idle network: see [`ideal_ps`].
    pub ideal_ps: u64,
    /// The payload that its receiver has.
    pub received_bytes: u64,
}

impl FlowReport {
    /// The time from its start to its end, in ps.
    #[must_use]
    pub fn completion_ps(&self) -> Option<u64> {
        Some(self.ended?.since(self.began?))
    }
}

/// The statistics of a port after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The node that sends.
    pub from: NodeIndex,
    /// The node at the other end.
    pub to: NodeIndex,
    /// The bandwidth.
    pub bits_per_s: u64,
    /// The counters of its queue.
    pub queue: QueueCounters,
    /// The time that the counters cover, in ps.
    pub covered_ps: u64,
}

impl PortReport {
    /// The mean number of waiting bytes.
    #[must_use]
    pub fn waiting_bytes_mean(&self) -> f64 {
        self.queue.waiting_area as f64 / self.covered_ps.max(1) as f64
    }

    /// The share of the bandwidth that was used.
    #[must_use]
    pub fn use_share(&self) -> f64 {
        let possible = self.bits_per_s as f64 * self.covered_ps as f64 / SEC as f64;
        self.queue.sent_bytes as f64 * 8.0 / possible.max(1.0)
    }
}

/// The results of a run; equal for equal experiments, on any machine and in any build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The results of the flows, in the order of the experiment.
    pub flows: Vec<FlowReport>,
    /// The statistics of the ports, by index: `2 l` sends from the first node of link `l`, `2 l +
    /// 1` from its second.
    pub ports: Vec<PortReport>,
    /// The network's counters.
    pub network: NetCounters,
    /// The counters of the transport.
    pub transport: Vec<(&'static str, u64)>,
    /// The number of messages that the transport refused, if it refuses any.
    pub rejected: Option<u64>,
    /// The bounds that the transport promised, if any, and the most that waited.
    pub kept: Option<PromiseReport>,
    /// The reservation that carried the watched flow's last packet, if the transport reserves.
    pub way: Option<Way>,
    /// The visits of the watched flow's packets at ports.
    pub visits: Vec<Visit>,
    /// The packets captured at ports.
    pub captured: Vec<Captured>,
    /// The number of packets of those ports that exceeded the limit.
    pub not_captured: u64,
    /// The payload that arrived between the warm-up and [`Experiment::measure_until`], in bytes.
    pub arrived_bytes: u64,
    /// The number of events of the engine.
    pub events: u64,
    /// When the run ended.
    pub ended: Time,
    /// A hash of each delivery's time and host, in order.
    pub digest: u64,
}

/// The bounds that a transport promised and kept: a run that exceeds one ends with a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromiseReport {
    /// The bounds.
    pub promise: Promise,
    /// For each port, the most bytes of that class that waited in the whole run.
    pub most: Vec<u64>,
}

impl PromiseReport {
    fn of<B>(promise: Promise, network: &Network<B>) -> PromiseReport {
        let most = (0..promise.ports.len() as u32)
            .map(|port| network.class_bytes_max(port, promise.class))
            .collect();
        let kept = PromiseReport { promise, most };
        for (port, (&most, &bound)) in kept.most.iter().zip(&kept.promise.ports).enumerate() {
            let (from, to) = network.port_ends(port as u32);
            let class = kept.promise.class;
            assert!(
                most <= bound,
                "{most} bytes of class {class} waited at node {} for node {}: the bound is {bound}",
                from.0,
                to.0
            );
        }
        kept
    }

    /// The port of a switch that came nearest to its bound: the most that waited there, and the
    /// bound.
    #[must_use]
    pub fn nearest(&self) -> (u64, u64) {
        let bounded = self.most.iter().zip(&self.promise.ports).filter(|(_, b)| **b < u64::MAX);
        let share = |(most, bound): &(&u64, &u64)| **most as f64 / (**bound).max(1) as f64;
        let nearest = bounded.max_by(|a, b| share(a).total_cmp(&share(b)));
        nearest.map_or((0, 0), |(most, bound)| (*most, *bound))
    }

    /// The most that waited at any port with a bound, and the highest bound.
    #[must_use]
    pub fn most(&self) -> (u64, u64) {
        let bounded = self.most.iter().zip(&self.promise.ports).filter(|(_, b)| **b < u64::MAX);
        bounded.fold((0, 0), |(most, bound), (m, b)| (most.max(*m), bound.max(*b)))
    }
}

impl Outcome {
    /// The number of flows without an end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.flows.iter().filter(|flow| flow.ended.is_none()).count()
    }

    /// How often a lossless network would have paused an input.
    #[must_use]
    pub fn would_pause(&self) -> u64 {
        self.ports.iter().map(|port| port.queue.would_pause).sum()
    }
}

impl Experiment {
    /// Runs until every flow has ended, or until [`Experiment::until`].
    ///
    /// # Errors
    /// [`TopologyError`] if the topology cannot be used.
    pub fn run<T: Transport>(&self, transport: &mut T) -> Result<Outcome, TopologyError> {
        let mut network = self.network(transport)?;
        let mut queue = EventQueue::new();
        let ideals = Ideals::new(&self.topology, &network);
        let mut flows = Vec::with_capacity(self.flows.len());
        for (flow, planned) in self.flows.iter().enumerate() {
            let number = transport.add_flow(planned.spec);
            assert!(number as usize == flow, "flows are numbered in the order of addition");
            let size = transport.wire_bytes(planned.spec.bytes);
            let ideal_ps = ideals.of(&network, planned.spec.from, planned.spec.to, size);
            flows.push(FlowReport { ideal_ps, ..FlowReport::default() });
        }
        let mut starts = Starts::new(&self.flows, &self.triggers);
        starts.schedule_next(&self.flows, &mut queue);
        transport.begin(&mut network);
        let mut run = Run { flows, unfinished: self.flows.len(), digest: self.seed };
        let mut measure = Measure::default();
        let mut finished = Vec::new();
        while run.unfinished > 0
            && let Some((now, event)) = queue.next_until(self.until)
        {
            measure.look(self, now, &mut network, transport);
            if let TransportEvent::Start { flow } = event {
                run.flows[flow as usize].began = Some(now);
                if self.flows[flow as usize].after.is_none() {
                    starts.schedule_next(&self.flows, &mut queue);
                }
            }
            let mut wire =
                Wire { queue: &mut queue, network: &mut network, finished: &mut finished };
            if let Some(node) = step(transport, &mut wire, event) {
                run.digest = splitmix64(run.digest ^ now.0 ^ u64::from(node) << 48);
            }
            for flow in finished.drain(..) {
                run.unfinished -= 1;
                run.flows[flow as usize].ended = Some(now);
                for next in starts.after(flow) {
                    let at = now.after(self.flows[next as usize].at.0);
                    queue.schedule(at, TransportEvent::Start { flow: next });
                }
            }
        }
        let ended = if run.unfinished > 0 && !queue.is_empty() { self.until } else { queue.now() };
        measure.end(self, ended, &mut network, transport);
        Ok(self.outcome(run, measure, (ended, queue.taken()), &network, transport))
    }

    fn network<T: Transport>(&self, transport: &T) -> Result<Network<T::Header>, TopologyError> {
        let mut rng = Rng::new(self.seed);
        let mut network = Network::new(&self.topology, self.routing, rng.next_u64())?;
        network.manage(self.queues);
        if let Some(telemetry) = transport.telemetry() {
            network.set_telemetry(telemetry);
        }
        if let Some(flow) = self.watch {
            network.watch(flow, T::number);
        }
        if !self.capture.is_empty() {
            network.capture(&self.capture, T::number);
        }
        Ok(network)
    }

    fn outcome<T: Transport>(
        &self,
        mut run: Run,
        measure: Measure,
        (ended, events): (Time, u64),
        network: &Network<T::Header>,
        transport: &T,
    ) -> Outcome {
        for (flow, report) in run.flows.iter_mut().enumerate() {
            report.received_bytes = transport.received_bytes(flow as u32);
        }
        let (counters, covered_ps) = measure.counters.unwrap_or_default();
        let port = |(port, queue): (usize, QueueCounters)| {
            let (from, to) = network.port_ends(port as u32);
            let bits_per_s = self.topology.links()[port / 2].2.bits_per_s;
            PortReport { from, to, bits_per_s, queue, covered_ps }
        };
        let (captured, not_captured) = network.captured();
        Outcome {
            flows: run.flows,
            ports: counters.into_iter().enumerate().map(port).collect(),
            network: network.counters(),
            transport: transport.counters(),
            rejected: transport.rejected(),
            kept: transport.promise().map(|promise| PromiseReport::of(promise, network)),
            way: self.watch.and_then(|flow| transport.way(flow)),
            visits: network.visits().to_vec(),
            captured: captured.to_vec(),
            not_captured,
            arrived_bytes: measure.arrived_bytes,
            events,
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

/// The statistics between the warm-up and [`Experiment::measure_until`].
#[derive(Default)]
struct Measure {
    is_warm: bool,
    received_before: u64,
    arrived_bytes: u64,
    counters: Option<(Vec<QueueCounters>, u64)>,
}

impl Measure {
    /// Called before each event: begins or ends the statistics if it is time.
    fn look<T: Transport>(
        &mut self,
        experiment: &Experiment,
        now: Time,
        network: &mut Network<T::Header>,
        transport: &T,
    ) {
        if !self.is_warm && now >= experiment.warm_up {
            self.is_warm = true;
            if experiment.warm_up > Time(0) {
                network.begin_statistics(experiment.warm_up);
                self.received_before = received(experiment, transport);
            }
        }
        if self.counters.is_none() && now > experiment.measure_until {
            self.end(experiment, experiment.measure_until, network, transport);
        }
    }

    fn end<T: Transport>(
        &mut self,
        experiment: &Experiment,
        now: Time,
        network: &mut Network<T::Header>,
        transport: &T,
    ) {
        if self.counters.is_some() {
            return;
        }
        let now = now.min(experiment.measure_until);
        if !self.is_warm {
            // The run ended before the warm-up: nothing was measured.
            network.begin_statistics(now);
            self.received_before = received(experiment, transport);
        }
        self.counters = Some(network.queue_counters(now));
        self.arrived_bytes = received(experiment, transport) - self.received_before;
    }
}

fn received<T: Transport>(experiment: &Experiment, transport: &T) -> u64 {
    (0..experiment.flows.len() as u32).map(|flow| transport.received_bytes(flow)).sum()
}

/// The flows that have not begun. Only one start at a time is scheduled, so that a million flows do
/// not need a million events.
struct Starts {
    /// Flows without a condition, by time, the next one last.
    timed: Vec<u32>,
    /// Pairs of a flow and one that waits for its end; ascending.
    followers: Vec<(u32, u32)>,
    /// Pairs of a flow and a trigger that its end activates; ascending.
    causes: Vec<(u32, u32)>,
    triggers: Vec<Armed>,
}

/// A trigger during a run.
struct Armed {
    kind: TriggerKind,
    activations: u32,
    /// The flows that wait for it, the next one last.
    waiting: Vec<u32>,
}

impl Starts {
    fn new(flows: &[PlannedFlow], triggers: &[Trigger]) -> Starts {
        let armed =
            |trigger: &Trigger| Armed { kind: trigger.kind, activations: 0, waiting: Vec::new() };
        let mut starts = Starts {
            timed: Vec::new(),
            followers: Vec::new(),
            causes: Vec::new(),
            triggers: triggers.iter().map(armed).collect(),
        };
        for (number, trigger) in triggers.iter().enumerate() {
            starts.causes.extend(trigger.causes.iter().map(|&flow| (flow, number as u32)));
        }
        for (flow, planned) in flows.iter().enumerate().rev() {
            let flow = flow as u32;
            match planned.after {
                None => starts.timed.push(flow),
                Some(After::Flow(before)) => starts.followers.push((before, flow)),
                Some(After::Trigger(trigger)) => {
                    starts.triggers[trigger as usize].waiting.push(flow);
                }
            }
        }
        starts.timed.sort_by_key(|&flow| std::cmp::Reverse((flows[flow as usize].at, flow)));
        starts.followers.sort_unstable();
        starts.causes.sort_unstable();
        starts
    }

    fn schedule_next<H>(
        &mut self,
        flows: &[PlannedFlow],
        queue: &mut EventQueue<TransportEvent<H>>,
    ) {
        if let Some(flow) = self.timed.pop() {
            let at = flows[flow as usize].at.max(queue.now());
            queue.schedule(at, TransportEvent::Start { flow });
        }
    }

    /// The flows that begin because a flow has ended.
    fn after(&mut self, flow: u32) -> Vec<u32> {
        let mut next: Vec<u32> = of(&self.followers, flow).collect();
        let activated: Vec<u32> = of(&self.causes, flow).collect();
        for trigger in activated {
            let armed = &mut self.triggers[trigger as usize];
            armed.activations += 1;
            match armed.kind {
                TriggerKind::Each => next.extend(armed.waiting.pop()),
                TriggerKind::After(needed) if armed.activations >= needed => {
                    next.extend(armed.waiting.drain(..).rev());
                }
                TriggerKind::After(_) => {}
            }
        }
        next
    }
}

/// The second numbers of the pairs whose first number is `first`.
fn of(pairs: &[(u32, u32)], first: u32) -> impl Iterator<Item = u32> {
    let from = pairs.partition_point(|pair| pair.0 < first);
    pairs[from..].iter().take_while(move |pair| pair.0 == first).map(|pair| pair.1)
}

/// The time that a flow takes alone on an idle network without control packets, in ps: its last
/// packet crosses each link of a shortest path, and the packets before it pass the slowest of these
/// links. Exact if the last packet is full, else a lower bound. Of equally short paths, the one
/// that has the fastest link at each switch counts.
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

/// The inputs of the ideal times, computed for each node.
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
            let ps = u128::from(bytes) * 8 * u128::from(SEC) / u128::from(bits_per_s.max(1));
            u64::try_from(ps).unwrap_or(u64::MAX)
        };
        let links = self.topology.links();
        let rate = |port: u32| links[port as usize / 2].2.bits_per_s;
        let (mut total, mut slowest) = (0u64, u64::MAX);
        let mut port = self.host_ports[from.0 as usize];
        for _ in 0..self.topology.switches() + 1 {
            let link = links[port as usize / 2].2;
            let (_, node) = network.port_ends(port);
            slowest = slowest.min(link.bits_per_s);
            let last_ps = send_ps(u64::from(size.last), link.bits_per_s);
            total = total.saturating_add(last_ps).saturating_add(link.propagation_ps);
            total += self.topology.pipeline_ps(node);
            if node == NodeIndex::from(to) {
                break;
            }
            // Hosts do not forward: a path ends at every host.
            if node.0 < self.topology.hosts() {
                break;
            }
            let ports = network.ports_towards(node, to).iter().copied();
            let Some(next) = ports.max_by_key(|&port| (rate(port), u32::MAX - port)) else { break };
            port = next;
        }
        total.saturating_add(send_ps(size.all - u64::from(size.last), slowest))
    }
}
