//! The bound of Harmony's queues, by network calculus; `docs/internals/harmony.md` has the proof.
//!
//! The packets of a reservation, its data and the `complete` that ends it, leave the sender one
//! cycle apart. They arrive at a port at most a *jitter* J closer. So at most p + (p + e) J / C
//! bytes of one virtual link arrive at once, and p + e in each cycle C after that. N virtual links
//! together offer at most the bandwidth R: at most N times that amount waits, and the bytes that
//! arrive while one packet of a lower class is being sent. The resulting delay is the jitter that
//! the port adds.

use std::collections::BTreeMap;

use super::config::{HarmonyConfig, HarmonyError};
use super::wiring::Fabric;
use crate::engine::{NS, SEC};
use crate::net::topology::{NodeIndex, Topology};

/// The bounds of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// For each port of a switch, the maximum number of bytes with a reservation that wait;
    /// `u64::MAX` for ports of hosts.
    pub waiting_bytes: Vec<u64>,
    /// The longest total time that a packet with a reservation waits at ports, including its
    /// sender's own, in ps.
    pub delay_ps: u64,
    /// Theorem 3.1 of the paper: #H (K-1) p, in bytes.
    pub paper_bytes: u64,
    /// The time from one packet of a sender to its next, in ps.
    pub phase_ps: u64,
}

/// The bounds found for a port.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// How much closer packets of one reservation leave than they were sent, in ps.
    jitter_ps: u64,
    waiting_bytes: u64,
}

struct Calculus<'a> {
    fabric: &'a Fabric,
    topology: &'a Topology,
    /// The virtual links of each port.
    links: BTreeMap<u32, u32>,
    packet_bytes: u64,
    control_bytes: u64,
    phase_ps: u64,
    cycle_ps: u64,
    seen: BTreeMap<u32, Option<Seen>>,
}

/// The transmission time of `bytes` bytes at that bandwidth, in ps, rounded up.
fn send_ps(bytes: u64, bits_per_s: u64) -> u64 {
    let ps = (u128::from(bytes) * 8 * u128::from(SEC)).div_ceil(u128::from(bits_per_s.max(1)));
    u64::try_from(ps).unwrap_or(u64::MAX)
}

impl QueueBounds {
    /// The bounds of a network.
    ///
    /// # Errors
    /// No bound is known, because the paths of packets form a cycle.
    pub(super) fn new(
        topology: &Topology,
        fabric: &Fabric,
        config: &HarmonyConfig,
    ) -> Result<QueueBounds, HarmonyError> {
        let packet_bytes = u64::from(config.packet_bytes());
        let slots = u64::from(config.slots);
        let mut calculus = Calculus {
            fabric,
            topology,
            links: fabric.links_by_port(config.slots),
            packet_bytes,
            control_bytes: u64::from(config.header_bytes),
            phase_ps: 0,
            cycle_ps: 0,
            seen: BTreeMap::new(),
        };
        let headroom = packet_bytes * u64::from(config.headroom_percent);
        calculus.pace(send_ps(packet_bytes + headroom.div_ceil(100), fabric.bits_per_s), slots);
        // If virtual links are reused so soon that `complete`s count, the phase has room for one
        // beside each packet.
        if calculus.excess_bytes_max() > 0 {
            let both = packet_bytes + calculus.control_bytes;
            calculus.pace(send_ps(both, fabric.bits_per_s).max(calculus.phase_ps), slots);
        }
        let mut bounds = QueueBounds {
            waiting_bytes: vec![u64::MAX; 2 * topology.links().len()],
            delay_ps: 0,
            paper_bytes: u64::from(topology.links_between_max().saturating_sub(1))
                * (slots - 1)
                * packet_bytes,
            phase_ps: calculus.phase_ps,
        };
        let ports: Vec<u32> = fabric.switches.iter().flatten().map(|port| port.port).collect();
        for port in ports {
            let seen = calculus.port(port)?;
            bounds.waiting_bytes[port as usize] = seen.waiting_bytes;
            bounds.delay_ps = bounds.delay_ps.max(seen.jitter_ps);
        }
        Ok(bounds)
    }
}

impl Calculus<'_> {
    /// Sets the time from one packet to the next, in whole ns, since hosts count in ns.
    fn pace(&mut self, phase_ps: u64, slots: u64) {
        self.phase_ps = phase_ps.div_ceil(NS) * NS;
        self.cycle_ps = self.phase_ps * slots;
    }

    fn bits_per_s(&self, port: u32) -> u64 {
        self.topology.links()[port as usize / 2].2.bits_per_s
    }

    /// The bytes by which a `complete` exceeds what its virtual link could have carried until the
    /// next reservation's data arrives: at least the time to the node at the other end and back.
    fn excess_bytes(&self, port: u32) -> u64 {
        let (a, b, link) = self.topology.links()[port as usize / 2];
        let pipelines = [a, b].map(|node: NodeIndex| self.topology.pipeline_ps(node));
        let gap_ps = 2 * link.propagation_ps + pipelines[0] + pipelines[1];
        let carried =
            u128::from(self.packet_bytes) * u128::from(gap_ps) / u128::from(self.cycle_ps);
        self.control_bytes.saturating_sub(u64::try_from(carried).unwrap_or(u64::MAX))
    }

    fn excess_bytes_max(&self) -> u64 {
        self.links.keys().map(|&port| self.excess_bytes(port)).max().unwrap_or(0)
    }

    /// The bound of a switch's port, and the jitter after it.
    fn port(&mut self, port: u32) -> Result<Seen, HarmonyError> {
        match self.seen.get(&port) {
            Some(Some(seen)) => return Ok(*seen),
            Some(None) => {
                return Err(HarmonyError(
                    "the ways of packets go in circles, so that no bound of queues is known".into(),
                ));
            }
            None => {}
        }
        self.seen.insert(port, None);
        let mut jitter_ps = 0;
        for before in self.before(port) {
            jitter_ps = jitter_ps.max(self.jitter_behind(before)?);
        }
        let links = u64::from(self.links.get(&port).copied().unwrap_or(0));
        let each = u128::from(self.packet_bytes + self.excess_bytes(port));
        let early = (each * u128::from(jitter_ps)).div_ceil(u128::from(self.cycle_ps));
        let burst = links * (self.packet_bytes + early as u64);
        // A packet of a lower class that is being sent is not interrupted.
        let waiting_bytes = burst + self.packet_bytes;
        let delay_ps = send_ps(waiting_bytes - self.packet_bytes.min(burst), self.bits_per_s(port));
        let seen = Seen { jitter_ps: jitter_ps + delay_ps, waiting_bytes };
        self.seen.insert(port, Some(seen));
        Ok(seen)
    }

    /// How much closer packets of one reservation are after a port than when they were sent, in ps.
    fn jitter_behind(&mut self, port: u32) -> Result<u64, HarmonyError> {
        let link = self.topology.links()[port as usize / 2];
        let from = if port.is_multiple_of(2) { link.0 } else { link.1 };
        if from.0 < self.fabric.hosts {
            // One packet leaves per phase: it waits only for a packet of a lower class that is
            // being sent.
            return Ok(send_ps(self.packet_bytes, link.2.bits_per_s));
        }
        Ok(self.port(port)?.jitter_ps)
    }

    /// The ports by which the data arrives that leaves a switch by this port.
    fn before(&self, port: u32) -> Vec<u32> {
        let link = self.topology.links()[port as usize / 2];
        let (from, to) = if port.is_multiple_of(2) { (link.0, link.1) } else { (link.1, link.0) };
        let switch = (from.0 - self.fabric.hosts) as usize;
        let ports = &self.fabric.switches[switch];
        let is_up = ports.iter().any(|own| own.port == port && own.is_up);
        // Data that goes up came from below; data that goes down came from any other port.
        let others = ports.iter().filter(|own| own.peer != to.0 && !(is_up && own.is_up));
        others.map(|own| own.port ^ 1).collect()
    }
}
