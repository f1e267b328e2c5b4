//! The measurements of a load.

use std::collections::BTreeMap;

use concord_protocols::ReplicaCounters;
use concord_switch::Counters as SwitchCounters;

/// Latencies, in ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean_ns: f64,
    /// The median.
    pub median_ns: u32,
    /// The 99th percentile.
    pub p99_ns: u32,
    /// A hundred latencies, evenly spaced in rank from the lowest to the highest: the distribution.
    pub each_hundredth_ns: Vec<u32>,
}

/// The numbers of packets that a node received and sent during the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Packets received.
    pub got: u64,
    /// Packets sent.
    pub sent: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Reads answered per second.
    pub reads_per_second: f64,
    /// Writes answered per second.
    pub writes_per_second: f64,
    /// The number of answered operations.
    pub answered: u64,
    /// The latency of reads.
    pub read: Latency,
    /// The latency of writes.
    pub write: Latency,
    /// The number of operations answered in each bucket of
    /// [`Load::bucket_ns`](super::Load::bucket_ns).
    pub buckets: Vec<u64>,
    /// The counters of the replicas, summed, since their start.
    pub replicas: ReplicaCounters,
    /// The mean time that a record is in another replica's log before it is executed there, in ns.
    pub record_open_ns: f64,
    /// The share of reads that the replica which orders writes answered, among those that replicas
    /// answered since the start: 0 to 1.
    pub leader_reads_share: f64,
    /// The counters of the switch program, by name, since its start.
    pub counts: BTreeMap<&'static str, u64>,
    /// The counters of the switch, since its start.
    pub switch: SwitchCounters,
    /// The number of slots of the dirty set in use at the end.
    pub occupied: u32,
    /// The packets of the switch, then of each replica in the chain's order.
    pub packets: Vec<Packets>,
    /// The number of events of the simulation.
    pub events: u64,
}

impl Measured {
    /// Operations answered per second.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.reads_per_second + self.writes_per_second
    }
}
