//! A load, what it costs, and what is measured.

use concord_core::{Duration, MS, US};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The switch owns hot blocks.
    Concordia,
    /// Homes own all blocks.
    Base,
    /// Homes own all blocks and gather acknowledgements; writes are asynchronous.
    Gam,
    /// No cache: accesses are delegated to their homes, and delegations aggregated.
    Grappa,
}

/// What accesses and messages take, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// An access at the thread that makes it.
    pub hit_ns: Duration,
    /// A message, where it is received and where it is sent.
    pub message_ns: Duration,
    /// One way from host to host.
    pub way_ns: Duration,
}

/// A load (§7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The seed of what programs do.
    pub seed: u64,
    /// What is measured.
    pub system: System,
    /// What accesses and messages take.
    pub costs: Costs,
    /// The number of nodes.
    pub nodes: u8,
    /// The number of threads of each node.
    pub threads: usize,
    /// The number of blocks that all nodes access.
    pub shared_blocks: u64,
    /// The number of blocks that only one node accesses, for each node.
    pub private_blocks: u64,
    /// The number of blocks that a cache holds.
    pub cache_blocks: usize,
    /// The number of blocks in each of the switch's six ways.
    pub way_blocks: u32,
    /// Accesses to shared blocks, in percent.
    pub sharing_percent: u64,
    /// Reads among the accesses, in percent.
    pub reads_percent: u64,
    /// Accesses to the block of the access before, in percent.
    pub locality_percent: u64,
    /// The time before the measurement, in ns. Caches are full before that.
    pub warm_up_ns: Duration,
    /// The time of the measurement, in ns.
    pub measure_ns: Duration,
}

impl Load {
    /// The paper's load, with all sizes divided by `scale`: 8 nodes of 4 threads, half of the
    /// accesses reads, blocks of 4 KB, 8 GB of which 250 MB are shared, caches of 1 GB.
    #[must_use]
    pub fn paper(system: System, costs: Costs, scale: u64) -> Load {
        let (nodes, shared_blocks) = (8, 64_000 / scale);
        let all_blocks = (8 << 30) / 4_096 / scale;
        Load {
            seed: 1,
            system,
            costs,
            nodes,
            threads: 4,
            shared_blocks,
            private_blocks: (all_blocks - shared_blocks) / u64::from(nodes),
            cache_blocks: ((1 << 30) / 4_096 / scale) as usize,
            way_blocks: (65_536 / scale) as u32,
            sharing_percent: 0,
            reads_percent: 50,
            locality_percent: 0,
            warm_up_ns: 2 * MS,
            measure_ns: 5 * MS,
        }
    }

    /// The same with blocks of 512 bytes: eight times as many of all.
    #[must_use]
    pub fn small_blocks(self) -> Load {
        Load {
            shared_blocks: 8 * self.shared_blocks,
            private_blocks: 8 * self.private_blocks,
            cache_blocks: 8 * self.cache_blocks,
            ..self
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Accesses that ended.
    pub accesses: u64,
    /// Those that needed no message.
    pub hits: u64,
    /// Packets that hosts sent and received.
    pub packets: u64,
    /// Those of them that home agents sent and received.
    pub home_packets: u64,
    /// Requests that failed, and were tried again.
    pub failed: u64,
    /// Packets that were sent again.
    pub resent: u64,
    /// Accesses that waited, and for how long in all, in ns.
    pub waited: (u64, u64),
    /// The time of the measurement, in ns.
    pub ns: u64,
}

impl Measured {
    /// Accesses a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.accesses as f64 * 1e9 / self.ns.max(1) as f64
    }

    /// Packets of hosts an access.
    #[must_use]
    pub fn packets_each(&self) -> f64 {
        self.packets as f64 / self.accesses.max(1) as f64
    }

    /// Packets of home agents an access.
    #[must_use]
    pub fn home_packets_each(&self) -> f64 {
        self.home_packets as f64 / self.accesses.max(1) as f64
    }

    /// The mean wait of the accesses that waited, in ns.
    #[must_use]
    pub fn wait_ns(&self) -> f64 {
        self.waited.1 as f64 / self.waited.0.max(1) as f64
    }
}

/// The time for which Grappa's delegations to a node wait for each other at most, in ns.
pub(super) const FLUSH_NS: Duration = 5 * US;
