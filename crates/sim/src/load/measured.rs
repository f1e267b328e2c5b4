//! The measurements of a load.

use std::collections::BTreeMap;

use concord_protocols::ReplicaCounters;
use concord_switch::Counters as SwitchCounters;

/// Latencies in ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean_ns: f64,
    /// Half are below.
    pub median_ns: u32,
    /// 99% are below.
    pub p99_ns: u32,
    /// A hundred of them, evenly from the least to the most, for their distribution.
    pub each_hundredth_ns: Vec<u32>,
}

/// Packets that a node got and sent while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Got.
    pub got: u64,
    /// Sent.
    pub sent: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Reads answered a second.
    pub reads_per_second: f64,
    /// Writes answered a second.
    pub writes_per_second: f64,
    /// Operations answered.
    pub answered: u64,
    /// Of reads.
    pub read: Latency,
    /// Of writes.
    pub write: Latency,
    /// Operations answered in each bucket.
    pub buckets: Vec<u64>,
    /// What the replicas counted, from the start on.
    pub replicas: ReplicaCounters,
    /// How long a record is in another replica's log before it is executed there, on average, in
    /// ns.
    pub record_open_ns: f64,
    /// Reads that the one who orders the writes answered, of those that replicas did, from the
    /// start on.
    pub leader_reads_share: f64,
    /// Whatever the switch's program counted, by name, from its start on.
    pub counts: BTreeMap<&'static str, u64>,
    /// What the switch counted, from its start on.
    pub switch: SwitchCounters,
    /// Slots of the dirty set in use at the end.
    pub occupied: u32,
    /// Of the switch, then of each replica in the chain's order.
    pub packets: Vec<Packets>,
    /// Events of the simulation.
    pub events: u64,
}

impl Measured {
    /// Operations answered a second.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.reads_per_second + self.writes_per_second
    }
}
