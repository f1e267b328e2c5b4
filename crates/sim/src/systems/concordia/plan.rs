//! A shared memory, its programs, and faults, drawn from one seed.

use concord_core::{Guards, MS, Rng, SEC, US};
use concord_memory::Coherence;
use concord_switch::BlocksLayout;
use concord_wire::concordia::BLOCK_BYTES;

/// A fault, and its duration in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node pauses: its packets wait.
    PauseNode(usize, u64),
    /// The switch pauses.
    PauseSwitch(u64),
    /// Two nodes cannot reach each other.
    CutPair(usize, usize, u64),
    /// A node and the switch cannot reach each other.
    CutSwitch(usize, u64),
    /// A node and the controller cannot reach each other: the others go on without it.
    CutController(usize, u64),
    /// A node dies with all that it has, and is restarted later.
    KillNode(usize, u64),
    /// A node leaves, and hands over what it has; it is restarted later. If it has not left by
    /// then, it is killed.
    Leave(usize, u64),
    /// The switch loses its tables, and returns as a new one.
    RestartSwitch(u64),
    /// The switch and the controller cannot reach each other: the standby takes over, and the old
    /// switch keeps running, and hears of it only later.
    OtherSwitch(u64),
    /// The controller dies, and is restarted with its state.
    RestartController(u64),
    /// The controller pauses.
    PauseController(u64),
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of everything that is drawn during the run.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: usize,
    /// The size of the switch's tables.
    pub layout: BlocksLayout,
    /// The length of a block, in bytes.
    pub block_bytes: usize,
    /// The number of sets of each cache.
    pub cache_sets: usize,
    /// The number of blocks in a set.
    pub cache_ways: usize,
    /// The maximum number of events that a node has in progress.
    pub lanes: usize,
    /// How blocks are kept coherent.
    pub coherence: Coherence,
    /// The number of blocks in use, over all ranges.
    pub blocks: u64,
    /// The number of programs of each node; each makes one call after the other.
    pub programs: usize,
    /// The number of calls of each program.
    pub calls: u32,
    /// The maximum pause of a program between two calls, in ns.
    pub think_ns: u64,
    /// The share of reads among the calls, in percent.
    pub reads_percent: u64,
    /// The minimum and maximum latency of a packet, in ns.
    pub latency_ns: (u64, u64),
    /// The maximum time of a packet's recirculation at the switch, in ns.
    pub round_ns: u64,
    /// Packets lost, per million.
    pub loss_ppm: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Packets delayed by up to 20 ms, per million.
    pub late_ppm: u64,
    /// The duration of a lease, in ns.
    pub lease_ns: u64,
    /// The faults, and their times in ns.
    pub faults: Vec<(u64, Fault)>,
    /// Whether invariants are checked after each event.
    pub invariants: bool,
    /// The guards that are on.
    pub guards: Guards,
}

impl Plan {
    /// Draws a plan from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let nodes = rng.between(2, 6) as usize;
        let has_epochs = rng.chance(1, 2);
        let shortest = rng.between(2, 50) * US;
        let noise = |rng: &mut Rng, most| if rng.chance(1, 2) { rng.below(most) } else { 0 };
        Plan {
            seed,
            nodes,
            layout: BlocksLayout { ways: rng.between(1, 3) as u8, way_blocks: 1 << rng.below(3) },
            block_bytes: BLOCK_BYTES[rng.below(4) as usize],
            cache_sets: if rng.chance(1, 4) { 2 } else { 1 },
            cache_ways: rng.between(1, 3) as usize,
            lanes: rng.between(1, 4) as usize,
            blocks: rng.between(1, 6),
            programs: rng.between(1, 3) as usize,
            calls: rng.between(5, 30) as u32,
            think_ns: if has_epochs {
                [2 * MS, 40 * MS, 150 * MS][rng.below(3) as usize]
            } else {
                [0, 100 * US, 2 * MS][rng.below(3) as usize]
            },
            reads_percent: rng.below(80),
            latency_ns: (shortest, shortest + rng.below(200) * US),
            round_ns: rng.below(50) * US,
            loss_ppm: noise(rng, 50_000),
            duplicate_ppm: noise(rng, 50_000),
            late_ppm: noise(rng, 30_000),
            // Long leases show nodes that go on without the holders of leases.
            lease_ns: rng.between(30, 200) * MS * if has_epochs && seed % 2 == 1 { 4 } else { 1 },
            faults: if has_epochs { deaths(rng, nodes) } else { faults(rng, nodes) },
            coherence: match rng.below(6) {
                0 => Coherence::Base,
                1 => Coherence::Gam,
                _ => Coherence::Concordia,
            },
            invariants: true,
            guards: Guards::ALL,
        }
    }

    /// The end of the last fault, in ns.
    #[must_use]
    pub fn quiet_at_ns(&self) -> u64 {
        let over = |(at, fault): &(u64, Fault)| {
            at + match *fault {
                Fault::PauseNode(_, ns)
                | Fault::PauseSwitch(ns)
                | Fault::CutPair(_, _, ns)
                | Fault::CutSwitch(_, ns)
                | Fault::CutController(_, ns)
                | Fault::KillNode(_, ns)
                | Fault::Leave(_, ns)
                | Fault::RestartSwitch(ns)
                | Fault::OtherSwitch(ns)
                | Fault::RestartController(ns)
                | Fault::PauseController(ns) => ns,
            }
        };
        self.faults.iter().map(over).max().unwrap_or(0)
    }

    /// Whether a node dies, or the others may go on without one, even because its keepalives are
    /// lost. A node that leaves in time loses nothing.
    #[must_use]
    pub fn may_lose(&self) -> bool {
        let goes_on_without = |(_, fault): &(u64, Fault)| {
            matches!(
                fault,
                Fault::KillNode(..)
                    | Fault::Leave(..)
                    | Fault::PauseNode(..)
                    | Fault::CutController(..)
                    | Fault::PauseController(_)
                    | Fault::RestartController(_)
            )
        };
        self.loss_ppm > 0 || self.faults.iter().any(goes_on_without)
    }
}

fn faults(rng: &mut Rng, nodes: usize) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for _ in 0..rng.below(4) {
        let (node, other) = (rng.below(nodes as u64) as usize, rng.below(nodes as u64) as usize);
        let ns = rng.between(1, 50) * MS;
        let fault = match rng.below(4) {
            0 => Fault::PauseNode(node, ns),
            1 => Fault::PauseSwitch(ns),
            2 => Fault::CutPair(node, other, ns),
            _ => Fault::CutSwitch(node, ns),
        };
        all.push((rng.below(SEC / 20), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}

/// Draws faults that cause further epochs, and others beside them.
fn deaths(rng: &mut Rng, nodes: usize) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for _ in 0..rng.between(1, 5) {
        let (node, other) = (rng.below(nodes as u64) as usize, rng.below(nodes as u64) as usize);
        let ns = rng.between(1, 80) * 10 * MS;
        let fault = match rng.below(14) {
            0..3 => Fault::KillNode(node, ns),
            3 => Fault::PauseNode(node, ns),
            4 => Fault::PauseSwitch(ns),
            5 => Fault::CutPair(node, other, ns),
            6 => Fault::CutSwitch(node, ns),
            7 => Fault::CutController(node, ns),
            8 => Fault::RestartSwitch(ns),
            9 => Fault::OtherSwitch(ns),
            10 => Fault::RestartController(ns),
            11 => Fault::PauseController(ns),
            _ => Fault::Leave(node, ns),
        };
        all.push((rng.below(2 * SEC), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}
