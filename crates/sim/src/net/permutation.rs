//! A permutation: every host of a leaf-spine network sends one flow to another. It is the usual
//! benchmark of packet-level simulators, and of spraying.

use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::network::{NetCounters, Network};
use super::topology::{HostIndex, LeafSpine, LinkSpec, Routing, Topology, TopologyError};
use super::transport::{FlowSpec, Transport, TransportEvent, Wire, step};
use super::windowed::{Windowed, WindowedConfig, WindowedCounters};
use crate::engine::{EventQueue, NS, Time, US};

/// The experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    /// The topology.
    pub network: LeafSpine,
    /// How ToR switches choose a spine.
    pub routing: Routing,
    /// The parameters of the transport.
    pub transport: WindowedConfig,
    /// The size of each flow.
    pub flow_bytes: u64,
    /// Flows start at random times within this.
    pub start_within_ps: u64,
    /// The seed of everything random.
    pub seed: u64,
}

/// The results of the experiment; equal for equal experiments, on any machine and in any build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermutationReport {
    /// The number of events of the engine.
    pub events: u64,
    /// When the last event happened.
    pub ended: Time,
    /// Flow completion times, ascending.
    pub completion_ps: Vec<u64>,
    /// The number of flows that never completed.
    pub unfinished: usize,
    /// The network's counters.
    pub network: NetCounters,
    /// The counters of the transport.
    pub transport: WindowedCounters,
    /// The maximum of unsent bytes at a port.
    pub backlog_bytes_max: u64,
    /// The maximum number of events that waited at once.
    pub waiting_max: usize,
    /// A hash of each delivery's time, in order: two runs are equal if their digests are.
    pub digest: u64,
}

impl Permutation {
    /// 144 hosts at 100 Gb/s below 9 ToR switches and 16 spines, 200 ns links, 10 MB per host in
    /// packets of 1,500 bytes, sprayed. The window is about three times the bandwidth-delay
    /// product.
    #[must_use]
    pub fn of_144_hosts(seed: u64) -> Permutation {
        Permutation::of(9, 16, 16, seed)
    }

    /// The same with other numbers of switches and hosts.
    #[must_use]
    pub fn of(tors: u32, hosts_per_tor: u32, spines: u32, seed: u64) -> Permutation {
        let link = LinkSpec {
            bits_per_s: 100_000_000_000,
            propagation_ps: 200 * NS,
            queue_bytes_max: 1_000_000,
        };
        Permutation {
            network: LeafSpine {
                tors,
                hosts_per_tor,
                spines,
                host_link: link,
                spine_link: link,
                pipeline_ps: 0,
            },
            routing: Routing::Spray,
            transport: WindowedConfig {
                window: 64,
                data_bytes: 1_500,
                ack_bytes: 64,
                timeout_ps: 500 * US,
            },
            flow_bytes: 10_000_000,
            start_within_ps: US,
            seed,
        }
    }

    /// Runs the experiment to its end.
    ///
    /// # Errors
    /// [`TopologyError`] if the network cannot be used: without spines, for example.
    pub fn run(&self) -> Result<PermutationReport, TopologyError> {
        let mut rng = Rng::new(self.seed);
        let topology = Topology::leaf_spine(&self.network);
        let mut network = Network::new(&topology, self.routing, rng.next_u64())?;
        let mut queue = EventQueue::new();
        let mut transport = Windowed::new(self.transport);
        for (from, to) in cycle(topology.hosts(), &mut rng).into_iter().enumerate() {
            let began = Time(rng.below(self.start_within_ps + 1));
            let from = HostIndex(from as u32);
            let to = HostIndex(to);
            let flow = transport.add_flow(FlowSpec { from, to, bytes: self.flow_bytes });
            queue.schedule(began, TransportEvent::Start { flow });
        }
        let mut digest = self.seed;
        let mut finished = Vec::new();
        while transport.unfinished() > 0
            && let Some((now, event)) = queue.next()
        {
            let mut wire =
                Wire { queue: &mut queue, network: &mut network, finished: &mut finished };
            if let Some(node) = step(&mut transport, &mut wire, event) {
                digest = splitmix64(digest ^ now.0 ^ u64::from(node) << 48);
            }
        }
        let mut completion_ps: Vec<u64> = transport.completion_ps().flatten().collect();
        completion_ps.sort_unstable();
        Ok(PermutationReport {
            events: queue.taken(),
            ended: queue.now(),
            completion_ps,
            unfinished: transport.unfinished(),
            network: network.counters(),
            transport: transport.done(),
            backlog_bytes_max: network.ports().map(|p| p.backlog_bytes_max).max().unwrap_or(0),
            waiting_max: queue.len_max(),
            digest,
        })
    }
}

/// A permutation with a single cycle (Sattolo 1986), so that no host sends to itself.
fn cycle(hosts: u32, rng: &mut Rng) -> Vec<u32> {
    let mut to: Vec<u32> = (0..hosts).collect();
    for i in (1..to.len()).rev() {
        to.swap(i, rng.below(i as u64) as usize);
    }
    to
}
