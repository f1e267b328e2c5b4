//! A network of hosts and switches, its messages, and faults, drawn from one seed.

use concord_core::{Guards, MS, Rng, US};
use concord_switch::harmony::Choice;

use super::topology::Topology;

/// A fault, and its duration in ns. Nodes are hosts, then ToR switches, then spines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host pauses: its packets wait.
    PauseHost(usize, u64),
    /// A host dies, and is restarted later.
    RestartHost(usize, u64),
    /// A switch loses its registers, and returns with empty ones.
    RestartSwitch(usize, u64),
    /// No packet passes between a switch and its neighbours.
    CutSwitch(usize, u64),
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of everything that is drawn during the run.
    pub seed: u64,
    /// The number of ToR switches.
    pub tors: usize,
    /// The number of hosts below each of them.
    pub tor_hosts: usize,
    /// The number of spines: none if there is one ToR switch.
    pub spines: usize,
    /// K: the number of slots of a host each way, and of virtual links of a link.
    pub slots: u8,
    /// How virtual links upwards are chosen.
    pub choice: Choice,
    /// The data of a packet, in bytes.
    pub fragment_bytes: usize,
    /// The additional time from one packet to the next, in percent of a packet's time on a link.
    pub headroom_percent: u64,
    /// δ_admission, in ns.
    pub admission_ns: u64,
    /// The maximum lifetime of a reservation, in ns.
    pub life_ns: u64,
    /// Whether a rejected message is retried.
    pub tries_again: bool,
    /// The number of messages of each host.
    pub messages: u32,
    /// The length of the longest message, in packets.
    pub packets_max: u64,
    /// The maximum time between two messages of a host, in ns.
    pub think_ns: u64,
    /// Whether all hosts send to the first one.
    pub is_incast: bool,
    /// The latency of a packet from one node to the next, beside its transmission, in ns.
    pub latency_ns: u64,
    /// Control packets lost, per million.
    pub loss_ppm: u64,
    /// Data packets lost, per million.
    pub data_loss_ppm: u64,
    /// Control packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Control packets delayed by up to 1 ms, per million.
    pub late_ppm: u64,
    /// The faults, and their times in ns.
    pub faults: Vec<(u64, Fault)>,
    /// The guards that are on.
    pub guards: Guards,
}

impl Plan {
    /// Draws a plan from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let tors = rng.between(1, 3) as usize;
        let is_calm = rng.chance(1, 3);
        let noise =
            |rng: &mut Rng, most| if !is_calm && rng.chance(1, 2) { rng.below(most) } else { 0 };
        let mut plan = Plan {
            seed,
            tors,
            tor_hosts: if tors == 1 { rng.between(2, 5) } else { rng.between(1, 3) } as usize,
            spines: if tors == 1 { 0 } else { rng.between(1, 3) as usize },
            slots: rng.between(1, 4) as u8,
            choice: if rng.chance(1, 2) { Choice::Fifo } else { Choice::Hash },
            fragment_bytes: rng.between(200, 1_200) as usize,
            headroom_percent: rng.between(3, 20),
            admission_ns: rng.between(20, 300) * US,
            life_ns: rng.between(300, 1_000) * US,
            tries_again: rng.chance(1, 2),
            messages: rng.between(2, 15) as u32,
            packets_max: [1, 8, 40][rng.below(3) as usize],
            think_ns: [0, 20 * US, 400 * US][rng.below(3) as usize],
            is_incast: rng.chance(1, 3),
            latency_ns: rng.between(100, 1_000),
            loss_ppm: noise(rng, 60_000),
            data_loss_ppm: noise(rng, 20_000),
            duplicate_ppm: noise(rng, 60_000),
            late_ppm: noise(rng, 30_000),
            faults: Vec::new(),
            guards: Guards::ALL,
        };
        if !is_calm {
            plan.faults = faults(rng, &plan);
        }
        plan
    }

    /// The number of hosts below all ToR switches.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.topology().hosts()
    }

    /// Its hosts and switches.
    pub(super) fn topology(&self) -> Topology {
        let Plan { tors, tor_hosts, spines, slots, .. } = *self;
        Topology { tors, tor_hosts, spines, slots }
    }

    /// The number of hosts and switches.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.topology().nodes()
    }

    /// Whether the plan has no faults: then no message may fail.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let noise = self.loss_ppm + self.data_loss_ppm + self.duplicate_ppm + self.late_ppm;
        noise == 0 && self.faults.is_empty()
    }

    /// The end of the last fault, in ns.
    #[must_use]
    pub fn quiet_at_ns(&self) -> u64 {
        let over = |(at, fault): &(u64, Fault)| {
            at + match *fault {
                Fault::PauseHost(_, ns)
                | Fault::RestartHost(_, ns)
                | Fault::RestartSwitch(_, ns)
                | Fault::CutSwitch(_, ns) => ns,
            }
        };
        self.faults.iter().map(over).max().unwrap_or(0)
    }
}

fn faults(rng: &mut Rng, plan: &Plan) -> Vec<(u64, Fault)> {
    let (hosts, nodes) = (plan.hosts() as u64, plan.nodes() as u64);
    let mut all = Vec::new();
    for _ in 0..rng.below(5) {
        let host = rng.below(hosts) as usize;
        let switch = rng.between(hosts, nodes - 1) as usize;
        let ns = rng.between(1, 1_000) * US;
        let fault = match rng.below(6) {
            0 | 1 => Fault::RestartHost(host, ns),
            2 | 3 => Fault::RestartSwitch(switch, ns),
            4 => Fault::PauseHost(host, ns),
            _ => Fault::CutSwitch(switch, ns),
        };
        all.push((rng.below(2 * MS), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}
