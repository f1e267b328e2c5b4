//! A rack under load, and what is asked of it.

use std::sync::Arc;

use concord_core::{Duration, MS, Rng, SEC};
use concord_protocols::SlowReads;
use concord_switch::KeyGroupSettings;
use concord_wire::control::{Program, Protocol};

use crate::systems::store::plan::Service;

/// A replica flushes its acknowledgements after that many packets at the latest.
pub const BATCH_PACKETS: usize = 32;

/// Which keys are asked for.
#[derive(Clone, Debug)]
pub enum Keys {
    /// That many, all alike.
    Uniform(u64),
    /// By the cumulative distribution of their ranks.
    Ranked(Arc<Vec<f64>>),
}

impl Keys {
    /// `keys` of which the one of rank r is asked for in proportion to r^-`exponent` (Zipf).
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

/// Completions in packets of their own, not in the replies of writes (Harmonia §6.1:
/// "piggybacked"). Each costs who sends it as much time as an acknowledgement costs its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Separate {
    /// How long they are held back.
    pub delay_ns: Duration,
    /// How many of a million get lost.
    pub lost_ppm: u64,
}

/// A rack and what is asked of it.
#[derive(Clone, Debug)]
pub struct Load {
    /// Of all that is drawn.
    pub seed: u64,
    /// How the replicas replicate.
    pub protocol: Protocol,
    /// What the switch runs.
    pub program: Program,
    /// How many there are.
    pub replicas: usize,
    /// Stages of the dirty set.
    pub table_stages: u8,
    /// Slots of each stage.
    pub slots: u32,
    /// A program with key groups: how many, and how it balances reads.
    pub key_groups: KeyGroupSettings,
    /// How long replicas are busy; `switch_ns` is the switch's latency, `client_ns` is not used.
    pub service: Service,
    /// How much longer a write takes than it keeps anybody busy: its reply is held back.
    pub write_wait_ns: Duration,
    /// CRAQ: how long a replica is busy with each record that it learns is committed.
    pub commit_ns: Duration,
    /// One way between a host and the switch, in ns.
    pub latency_ns: Duration,
    /// One way between replicas, in ns.
    pub peer_latency_ns: Duration,
    /// Which keys are asked for.
    pub keys: Keys,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Operations under way at any time (closed loop).
    pub outstanding: usize,
    /// Processes that these are of, each with a session, and as many for the open loop.
    pub processes: usize,
    /// How many of 1,000 of them are writes.
    pub writes_permille: u64,
    /// Writes a second that come besides, whatever happens to those before (open loop).
    pub writes_per_second: u64,
    /// Shortest time before a client asks again, in ns.
    pub retry_min_ns: Duration,
    /// If completions do not come in the replies of writes.
    pub completions_separate: Option<Separate>,
    /// VR, NOPaxos: COMMIT-ACKs in packets of their own, not in PREPARE-OKs (§8.3: "piggybacked").
    pub commit_acks_separate: bool,
    /// VR, Raft: how a leader knows that it still leads when it answers a read alone.
    pub reads: SlowReads,
    /// Time from one chunk of the switch's sweep to the next, in ns.
    pub sweep_interval_ns: Duration,
    /// Objects that are made dirty before the measurement by writes that never end.
    pub stuck_writes: u64,
    /// Time before the measurement, after all is open.
    pub warm_up_ns: Duration,
    /// Time of the measurement.
    pub measure_ns: Duration,
    /// What is counted apart: this long each.
    pub bucket_ns: Duration,
    /// The switch stops at the first time of the measurement, and a new life of it starts at the
    /// second.
    pub switch_stops: Option<(Duration, Duration)>,
    /// A replica dies, at that time of the measurement.
    pub dies: Option<(Dies, Duration)>,
    /// The last replica, a follower, takes longer for everything, by so many of 1,000.
    pub slower_permille: u64,
    /// How often the leader weighs the replicas' queues, if the switch shares reads by them.
    pub weigh_ns: Duration,
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// Who orders the writes.
    Leader,
    /// Another replica.
    Follower,
}

impl Default for Load {
    /// The prototype of Harmonia §9 and the workload of §10: three replicas, 0.92 M reads and 0.8 M
    /// writes a second and server, 5% writes, a million objects of 16 bytes.
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
                // The store is what saturates; what never reaches it costs nothing.
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
    /// The same over another protocol, with Harmonia's help or without.
    #[must_use]
    pub fn over(self, protocol: Protocol, with_help: bool) -> Load {
        Load { protocol, program: Program::of(protocol, with_help), ..self }
    }
}
