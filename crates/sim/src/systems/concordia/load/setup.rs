//! A load, its costs, and its measurements.

use concord_core::{Duration, MS, US};

/// The system that is measured.
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

/// The costs of accesses and messages, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The time of an access at the thread that makes it.
    pub hit_ns: Duration,
    /// The time of a message at its receiver, and again at its sender.
    pub message_ns: Duration,
    /// The latency from host to host, one way.
    pub way_ns: Duration,
}

/// A load (§7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The seed of the programs.
    pub seed: u64,
    /// The system that is measured.
    pub system: System,
    /// The costs of accesses and messages.
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
    /// The share of accesses to shared blocks, in percent.
    pub sharing_percent: u64,
    /// The share of reads among the accesses, in percent.
    pub reads_percent: u64,
    /// The share of accesses to the block of the previous access, in percent.
    pub locality_percent: u64,
    /// The time before the measurement, in ns. Caches are filled before that.
    pub warm_up_ns: Duration,
    /// The duration of the measurement, in ns.
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

    /// The same load with blocks of 512 bytes: eight times as many of each kind.
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

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Completed accesses.
    pub accesses: u64,
    /// Accesses that needed no message.
    pub hits: u64,
    /// Packets that hosts sent and received.
    pub packets: u64,
    /// Packets that home agents sent and received.
    pub home_packets: u64,
    /// Requests that failed, and were tried again.
    pub failed: u64,
    /// Packets that were sent again.
    pub resent: u64,
    /// The number of accesses that waited, and their total wait, in ns.
    pub waited: (u64, u64),
    /// The duration of the measurement, in ns.
    pub ns: u64,
}

impl Measured {
    /// Accesses per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.accesses as f64 * 1e9 / self.ns.max(1) as f64
    }

    /// Packets of hosts per access.
    #[must_use]
    pub fn packets_each(&self) -> f64 {
        self.packets as f64 / self.accesses.max(1) as f64
    }

    /// Packets of home agents per access.
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

/// The maximum time for which Grappa's delegations to a node wait for each other, in ns.
pub(super) const FLUSH_NS: Duration = 5 * US;
