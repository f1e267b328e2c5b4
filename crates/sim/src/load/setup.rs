//! The parameters of a rack under load, and of its workload.

use std::sync::Arc;

use concord_core::{Duration, MS, Rng, SEC};
use concord_protocols::SlowReads;
use concord_switch::KeyGroupSettings;
use concord_wire::control::{Program, Protocol};

use crate::systems::store::plan::Service;

/// The number of packets after which a replica flushes its acknowledgements at the latest.
pub const BATCH_PACKETS: usize = 32;

/// The distribution of the keys of operations.
#[derive(Clone, Debug)]
pub enum Keys {
    /// This number of keys, all equally likely.
    Uniform(u64),
    /// The cumulative distribution of the keys' ranks.
    Ranked(Arc<Vec<f64>>),
}

impl Keys {
    /// A Zipf distribution over `keys` keys: the key of rank r has a probability in proportion to
    /// r^-`exponent`.
    #[must_use]
    pub fn zipf(keys: u64, exponent: f64) -> Keys {
        let mut sum = 0.0;
        let mut ranks: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        ranks.iter_mut().for_each(|share| *share /= sum);
        Keys::Ranked(Arc::new(ranks))
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            Keys::Uniform(keys) => rng.below(*keys),
            Keys::Ranked(ranks) => {
                let at = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                ranks.partition_point(|share| *share < at) as u64
            }
        }
    }
}

/// Completions in packets of their own instead of in the replies of writes (Harmonia §6.1:
/// "piggybacked"). Each costs its sender as much time as an acknowledgement costs its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Separate {
    /// The delay before they are sent, in ns.
    pub delay_ns: Duration,
    /// The share of them that are lost, per million.
    pub lost_ppm: u64,
}

/// A rack and its workload.
#[derive(Clone, Debug)]
pub struct Load {
    /// The seed of all random draws.
    pub seed: u64,
    /// The replication protocol.
    pub protocol: Protocol,
    /// The switch program.
    pub program: Program,
    /// The number of replicas.
    pub replicas: usize,
    /// The number of stages of the dirty set.
    pub table_stages: u8,
    /// The number of slots in each stage.
    pub slots: u32,
    /// The number of key groups, and how reads are balanced, for a program with key groups.
    pub key_groups: KeyGroupSettings,
    /// The times that replicas are busy with packets; `switch_ns` is the latency of the switch,
    /// `client_ns` is not used.
    pub service: Service,
    /// The time that a write takes beyond what keeps a node busy, in ns: its reply is held back.
    pub write_wait_ns: Duration,
    /// CRAQ: the time that a replica is busy with each record that it learns is committed, in ns.
    pub commit_ns: Duration,
    /// The latency between a host and the switch, one way, in ns.
    pub latency_ns: Duration,
    /// The latency between replicas, one way, in ns.
    pub peer_latency_ns: Duration,
    /// The distribution of the keys of operations.
    pub keys: Keys,
    /// The length of a value, in bytes.
    pub value_bytes: usize,
    /// The number of operations pending at any time (closed loop).
    pub outstanding: usize,
    /// The number of processes that make these operations, each with a session; the open loop has
    /// as many.
    pub processes: usize,
    /// The share of writes among them, per thousand.
    pub writes_permille: u64,
    /// The number of additional writes per second, which do not wait for earlier ones (open loop).
    pub writes_per_second: u64,
    /// The minimum time before a client sends a request again, in ns.
    pub retry_min_ns: Duration,
    /// Set if completions are not sent in the replies of writes.
    pub completions_separate: Option<Separate>,
    /// VR, NOPaxos: whether COMMIT-ACKs are packets of their own, and not part of PREPARE-OKs
    /// (Harmonia §8.3: "piggybacked").
    pub commit_acks_separate: bool,
    /// VR, Raft: how a leader makes sure that it still leads when it answers a read alone.
    pub reads: SlowReads,
    /// The interval between chunks of the switch's sweep, in ns.
    pub sweep_interval_ns: Duration,
    /// The number of objects that are made dirty before the measurement by writes that never end.
    pub stuck_writes: u64,
    /// The time between the opening of the rack and the measurement, in ns.
    pub warm_up_ns: Duration,
    /// The duration of the measurement, in ns.
    pub measure_ns: Duration,
    /// The duration of a bucket, in which operations are counted separately, in ns.
    pub bucket_ns: Duration,
    /// Stops the switch at the first time of the measurement, and starts a new incarnation at the
    /// second, in ns.
    pub switch_stops: Option<(Duration, Duration)>,
    /// Kills a replica at that time of the measurement, in ns.
    pub dies: Option<(Dies, Duration)>,
    /// The additional time of the last replica, a follower, for every packet, per thousand.
    pub slower_permille: u64,
    /// The interval at which the leader computes weights from the replicas' queues, in ns, if the
    /// switch shares reads by them.
    pub weigh_ns: Duration,
}

/// The replica that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// The replica that orders writes.
    Leader,
    /// Another replica.
    Follower,
}

impl Default for Load {
    /// The prototype of Harmonia §9 with the workload of §10: three replicas, each with 0.92 M
    /// reads or 0.8 M writes per second, 5% writes, and a million objects of 16 bytes.
    fn default() -> Load {
        Load {
            seed: 1,
            protocol: Protocol::Chain,
            program: Program::DEFAULT,
            replicas: 3,
            table_stages: 3,
            slots: 65_536,
            service: Service {
                read_ns: 1_087,
                write_ns: 1_250,
                record_ns: 1_250,
                // The store is the bottleneck; packets that never reach it take no time.
                ack_ns: 0,
                query_ns: 0,
                other_ns: 0,
                switch_ns: 600,
                client_ns: 0,
            },
            key_groups: KeyGroupSettings::DEFAULT,
            write_wait_ns: 0,
            commit_ns: 0,
            latency_ns: 5_000,
            peer_latency_ns: 10_600,
            keys: Keys::Uniform(1_000_000),
            value_bytes: 16,
            outstanding: 0,
            processes: 4,
            writes_permille: 50,
            writes_per_second: 0,
            retry_min_ns: 20 * MS,
            completions_separate: None,
            commit_acks_separate: false,
            reads: SlowReads::default(),
            sweep_interval_ns: 5 * MS,
            stuck_writes: 0,
            warm_up_ns: 10 * MS,
            measure_ns: 30 * MS,
            bucket_ns: SEC,
            switch_stops: None,
            dies: None,
            slower_permille: 0,
            weigh_ns: SEC,
        }
    }
}

impl Load {
    /// The same load with another protocol, with Harmonia's help or without.
    #[must_use]
    pub fn over(self, protocol: Protocol, with_help: bool) -> Load {
        Load { protocol, program: Program::of(protocol, with_help), ..self }
    }
}
