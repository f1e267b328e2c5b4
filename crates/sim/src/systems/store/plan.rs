//! The plan of a run as data: the rack, the workload, the network, the faults.

use concord_core::{Duration, Guards, MS, Rng, US};
use concord_protocols::SlowReads;
use concord_switch::{RUN_BITS_MAX, SLOTS_MAX, TABLE_STAGES_MAX};
use concord_wire::control::{Program, Protocol};
use serde::{Deserialize, Serialize};

use crate::systems::store::disks::Disks;
use crate::systems::store::edges::{Bounds, Packets, Sizes};
use crate::systems::store::fault::{Fault, Node};
use crate::systems::store::gateways::Gateways;
use crate::systems::store::links::Links;
use crate::systems::store::written::{PROTOCOLS, protocol_name};

/// The maximum number of nodes of one kind in a plan.
pub const NODES_MAX: usize = 64;
/// The maximum number of operations in a plan.
pub const OPERATIONS_MAX: usize = 1_000_000;
/// The maximum drift of clocks, per million. The holder of a lease assumes that it ends a tenth
/// earlier than its grantor does (trap T2).
pub const DRIFT_PPM_MAX: u64 = 40_000;

/// The time that a node is busy with a packet, in ns, by the packet's kind. Packets that arrive
/// meanwhile wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// The time of a replica for a read.
    pub read_ns: Duration,
    /// The time of a replica for a write that it orders.
    pub write_ns: Duration,
    /// The time of a replica for a record from its predecessor or primary.
    pub record_ns: Duration,
    /// The time of a replica for an acknowledgement of a record.
    pub ack_ns: Duration,
    /// The time of a replica for a version query or its answer (CRAQ).
    pub query_ns: Duration,
    /// The time of a replica for any other packet.
    pub other_ns: Duration,
    /// The time of the switch for any packet.
    pub switch_ns: Duration,
    /// The time of a client for any packet.
    pub client_ns: Duration,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Table", into = "toml::Table")]
pub struct Timed {
    /// The virtual time when it begins, in ns.
    pub at_ns: Duration,
    /// The fault.
    pub fault: Fault,
}

/// The plan of a whole run. [`Plan::draw`] draws one from a seed; [`Plan::default`] is a run
/// without faults, whose fields can be changed to build a particular case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The seed of everything that the plan does not determine.
    #[serde(with = "crate::systems::store::written::seed")]
    pub seed: u64,
    /// The replication protocol.
    #[serde(with = "crate::systems::store::written::protocol")]
    pub protocol: Protocol,
    /// The switch program.
    #[serde(with = "crate::systems::store::written::program")]
    pub program: Program,
    /// The number of replicas at the start.
    pub replicas: usize,
    /// The number of client processes, each with a session of its own.
    pub clients: usize,
    /// The number of connections of each client process, which make one operation at a time.
    pub connections: usize,
    /// The number of stages of the switch's table.
    pub table_stages: u8,
    /// The number of slots in each stage.
    pub slots: u32,
    /// The maximum number of waiting packets that a host receives in one batch.
    pub batch_packets: usize,
    /// The number of successive reads of a client that the switch sends to the same replica, as a
    /// power of two.
    pub run_bits: u8,
    /// The minimum number of operations of the safety phase, which also lasts until the last fault.
    pub operations: usize,
    /// The number of keys.
    pub keys: u64,
    /// The share of writes among operations, in percent.
    pub writes_percent: u64,
    /// The share of values of several packets among writes of strings, in percent (trap T17).
    pub long_values_percent: u64,
    /// The share of FLUSHALL among operations, per thousand (trap T13).
    pub flushes_permille: u64,
    /// The maximum pause of a connection between two operations, in ns; every third connection
    /// makes no pauses.
    pub think_ns: Duration,
    /// The period around the beginning and the end of each fault in which pauses are at most 1 ms,
    /// in ns: this is when races occur.
    pub rush_ns: Duration,
    /// The minimum duration of the safety phase after the beginning of the last fault, in ns.
    pub linger_ns: Duration,
    /// The time that clients go on after all faults have ended and all nodes are well, in ns. Times
    /// to live that end in this period are checked exactly.
    pub calm_ns: Duration,
    /// The latency between two nodes, one way, in ns.
    pub latency_ns: Duration,
    /// The latency between two replicas, one way, in ns.
    pub peer_latency_ns: Duration,
    /// The share of packets that are lost, per million.
    pub loss_ppm: u64,
    /// The share of packets that are duplicated, per million.
    pub duplicate_ppm: u64,
    /// The share of packets that are delayed by up to `delay_ns`, so that others overtake them, per
    /// million.
    pub reorder_ppm: u64,
    /// The maximum additional delay, in ns.
    pub delay_ns: Duration,
    /// The maximum number of packets that wait at a busy or paused node; further ones are dropped.
    pub queue_packets_max: usize,
    /// The response time of the storage engine, in ns; 0 for an engine in memory, which answers at
    /// once.
    pub engine_ns: Duration,
    /// The time after which a storage engine that does not answer is given up, in ns.
    pub engine_silence_ns: Duration,
    /// The maximum time that a stalled engine works on one operation, in ns, while it reports that
    /// it works; 0: a stalled engine is silent.
    pub engine_work_ns: Duration,
    /// Whether the replies of the node that orders writes are replicated, as with an engine that is
    /// a server of its own.
    pub replicate_replies: bool,
    /// Raft: for each read a leader asks a quorum whether it still leads (ReadIndex).
    pub read_index: bool,
    /// Raft without the switch's help: followers answer reads by leases of key groups, and clients
    /// choose the replica.
    pub follower_leases: bool,
    /// Raft without the switch's help: any replica answers a read once it has asked a quorum where
    /// their logs end, and clients choose the replica.
    pub quorum_reads: bool,
    /// FLAIR: while a write is pending, the leader gets no read that a follower can answer.
    pub avoid_leader: bool,
    /// FLAIR: reads are shared by weights, which the leader computes from the queues of the
    /// replicas.
    pub load_awareness: bool,
    /// The approximate size of a chunk when a state is copied, in bytes.
    pub copy_bytes: usize,
    /// The interval at which replicas compare a part of their states, in ns; 0: never.
    pub compare_ns: Duration,
    /// Whether a key of one replica is damaged at the end of the run, once all is at rest; the
    /// comparison has to find it.
    pub damages: bool,
    /// VR, NOPaxos: the approximate number of executed records that are retained for members that
    /// lag.
    pub records_kept: usize,
    /// The maximum drift of monotonic clocks, per million.
    pub drift_ppm: u64,
    /// The duration of leases, in ns.
    pub lease_ns: Duration,
    /// The time of silence after which a replica is removed, in ns.
    pub failure_ns: Duration,
    /// Whether invariants are checked after every step; histories and convergence are always
    /// checked.
    pub invariants: bool,
    /// The guards that are on.
    #[serde(rename = "without", with = "crate::systems::store::written::without")]
    pub guards: Guards,
    /// The times that nodes are busy with packets.
    pub service: Service,
    /// The sizes of keys, values and replies.
    pub sizes: Sizes,
    /// Bounds that are smaller than shipped, and numbers that begin near their end.
    pub bounds: Bounds,
    /// The client processes that are gateways, and the behaviour of their Redis clients.
    pub gateways: Gateways,
    /// The invalid packets: cut short, forged, padded, very late.
    pub packets: Packets,
    /// The disks of the replicas.
    pub disks: Disks,
    /// The links and switches that packets take; without any, every packet takes `latency_ns`.
    pub links: Links,
    /// The faults, in order of time.
    pub faults: Vec<Timed>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            seed: 0,
            protocol: Protocol::Chain,
            program: Program::DEFAULT,
            replicas: 3,
            clients: 2,
            connections: 4,
            table_stages: 3,
            slots: 64,
            batch_packets: 1,
            run_bits: 0,
            operations: 500,
            keys: 8,
            writes_percent: 30,
            long_values_percent: 0,
            flushes_permille: 0,
            think_ns: 10 * MS,
            rush_ns: 0,
            linger_ns: 0,
            calm_ns: 0,
            latency_ns: 50 * US,
            peer_latency_ns: 50 * US,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            delay_ns: MS,
            service: Service::default(),
            sizes: Sizes::default(),
            bounds: Bounds::default(),
            gateways: Gateways::default(),
            packets: Packets::default(),
            disks: Disks::default(),
            links: Links::default(),
            queue_packets_max: 4_096,
            engine_ns: 0,
            engine_silence_ns: 600 * MS,
            engine_work_ns: 0,
            replicate_replies: false,
            read_index: false,
            follower_leases: false,
            quorum_reads: false,
            avoid_leader: true,
            load_awareness: false,
            copy_bytes: 4_096,
            compare_ns: 0,
            damages: false,
            records_kept: 32_768,
            drift_ppm: 0,
            lease_ns: 100 * MS,
            failure_ns: 500 * MS,
            faults: Vec::new(),
            invariants: true,
            guards: Guards::ALL,
        }
    }
}

/// Distinguishes the seed that draws protocols with elected leaders from that of all other draws.
const ELECTS: u64 = 0x7e21_a5ed;

/// Draws the protocol of a seed if none is given. One seed in six has a protocol that elects its
/// leaders, drawn by a generator of its own; `rng` draws among the others.
pub fn any_protocol(seed: u64, rng: &mut Rng) -> Protocol {
    let (others, elects) = PROTOCOLS.split_at(PROTOCOLS.len() - 1);
    let drawn = others[rng.below(others.len() as u64) as usize];
    if Rng::new(seed ^ ELECTS).chance(1, 6) { elects[0] } else { drawn }
}

impl Plan {
    /// The way in which a replica makes sure that its answer to a read is not stale.
    pub(crate) fn reads(&self) -> SlowReads {
        match (self.follower_leases, self.quorum_reads, self.read_index) {
            (true, ..) => SlowReads::FollowerLease,
            (_, true, _) => SlowReads::Quorum,
            (_, _, true) => SlowReads::ReadIndex,
            _ => SlowReads::LeaderLease,
        }
    }

    /// A run without faults of a rack with this protocol, with Harmonia's help if the protocol can
    /// use it.
    #[must_use]
    pub fn of(protocol: Protocol) -> Plan {
        Plan { protocol, program: Program::of(protocol, true), ..Plan::default() }
    }

    /// Adds a fault, in plans written by hand.
    #[must_use]
    pub fn with_fault(mut self, at_ns: Duration, fault: Fault) -> Plan {
        self.faults.push(Timed { at_ns, fault });
        self.faults.sort_by_key(|f| f.at_ns);
        self
    }

    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// The first value that is not possible, in words for the plan's author.
    pub fn validate(&self) -> Result<(), String> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(format!("{name} is {value}: give it {least} to {most}"))
        };
        if !self.program.serves(self.protocol) {
            let serving = Program::ALL.into_iter().filter(|p| p.serves(self.protocol));
            let names: Vec<&str> = serving.map(Program::name).collect();
            let (program, protocol) = (self.program.name(), protocol_name(self.protocol));
            return Err(format!(
                "program {program} does not serve {protocol}: give it {}",
                names.join(" or ")
            ));
        }
        let leases = self.protocol.elects() && self.program == Program::Forward;
        if (self.follower_leases || self.quorum_reads) && !leases {
            return Err("follower_leases and quorum_reads need raft and the program forward".into());
        }
        let nodes = NODES_MAX as u64;
        let million = 1_000_000;
        let hour_ns = 3_600 * concord_core::SEC;
        within("replicas", self.replicas as u64, 1, nodes)?;
        within("clients", self.clients as u64, 1, nodes)?;
        within("connections", self.connections as u64, 1, nodes)?;
        within("table_stages", self.table_stages.into(), 1, TABLE_STAGES_MAX.into())?;
        within("slots", self.slots.into(), 1, SLOTS_MAX.into())?;
        if !self.slots.is_power_of_two() {
            return Err(format!("slots is {}: give it a power of two", self.slots));
        }
        within("batch_packets", self.batch_packets as u64, 1, million)?;
        within("run_bits", self.run_bits.into(), 0, RUN_BITS_MAX.into())?;
        within("operations", self.operations as u64, 1, OPERATIONS_MAX as u64)?;
        within("copy_bytes", self.copy_bytes as u64, 1, million)?;
        within("compare_ns", self.compare_ns, 0, hour_ns)?;
        within("records_kept", self.records_kept as u64, 1, million)?;
        within("keys", self.keys, 1, million)?;
        within("writes_percent", self.writes_percent, 0, 100)?;
        within("long_values_percent", self.long_values_percent, 0, 100)?;
        within("flushes_permille", self.flushes_permille, 0, 1_000)?;
        within("loss_ppm", self.loss_ppm, 0, million)?;
        within("duplicate_ppm", self.duplicate_ppm, 0, million)?;
        within("reorder_ppm", self.reorder_ppm, 0, million)?;
        within("queue_packets_max", self.queue_packets_max as u64, 1, million)?;
        within("drift_ppm", self.drift_ppm, 0, DRIFT_PPM_MAX)?;
        within("latency_ns", self.latency_ns, 1, hour_ns)?;
        within("peer_latency_ns", self.peer_latency_ns, 1, hour_ns)?;
        within("delay_ns", self.delay_ns, 0, hour_ns)?;
        within("think_ns", self.think_ns, 0, hour_ns)?;
        within("linger_ns", self.linger_ns, 0, hour_ns)?;
        within("calm_ns", self.calm_ns, 0, hour_ns)?;
        within("rush_ns", self.rush_ns, 0, hour_ns)?;
        within("engine_ns", self.engine_ns, 0, hour_ns)?;
        within("engine_silence_ns", self.engine_silence_ns, MS, hour_ns)?;
        within("engine_work_ns", self.engine_work_ns, 0, hour_ns)?;
        within("lease_ns", self.lease_ns, MS, hour_ns)?;
        within("failure_ns", self.failure_ns, MS, hour_ns)?;
        self.sizes.validate(&within)?;
        self.bounds.validate(&within)?;
        self.packets.validate(&within)?;
        self.gateways.validate(self.clients, &within)?;
        if self.gateways.databases_percent > 0 && self.sizes.all_keys_permille > 0 {
            return Err(
                "all_keys_permille: KEYS, SCAN and DBSIZE are checked with one database".into()
            );
        }
        if self.gateways.together_percent > 0
            && self.sizes.all_keys_permille + self.flushes_permille > 0
        {
            return Err(
                "gateways.together_percent: set all_keys_permille and flushes_permille to 0".into(),
            );
        }
        self.disks.validate(&within)?;
        self.links.validate(&within)?;
        within("replicas, with those that join,", self.replicas_ever() as u64, 1, nodes)?;
        self.faults.iter().try_for_each(|f| self.validate_fault(f))
    }

    /// The number of replicas at the start and those that join later.
    #[must_use]
    pub fn replicas_ever(&self) -> usize {
        self.replicas + self.faults.iter().filter(|f| f.fault == Fault::Join).count()
    }

    fn validate_fault(&self, timed: &Timed) -> Result<(), String> {
        // This fault alone may hit a replica that joins late: the others act on a running host.
        let is_early = !matches!(timed.fault, Fault::LoseRecords { .. });
        let replicas = if is_early { self.replicas } else { self.replicas_ever() };
        if let Fault::Reboot { node } = timed.fault
            && !matches!(node, Node::Replica(_) | Node::Switch)
        {
            return Err(format!("a fault reboots {node}: replicas and the switch can be"));
        }
        let cuts = matches!(
            timed.fault,
            Fault::PowerCut { .. }
                | Fault::PowerCutAll { .. }
                | Fault::FailSync { .. }
                | Fault::FullDisk { .. }
                | Fault::HangDisk { .. }
                | Fault::FlipBit { .. }
                | Fault::Unreadable { .. }
                | Fault::CopyDisk { .. }
                | Fault::PutBack { .. }
        );
        if cuts && !self.disks.is_on() {
            return Err("a fault is of disks: give [disks] a sync_ns".into());
        }
        if matches!(timed.fault, Fault::ChangeVoter { .. }) && !self.protocol.elects() {
            return Err("a fault changes who votes: give it protocol raft".into());
        }
        if matches!(timed.fault, Fault::PowerCutAll { .. }) && self.disks.interval {
            return Err(
                "with [disks] interval the power of all may take what was acknowledged".into()
            );
        }
        for node in timed.fault.nodes() {
            let (count, what) = match node {
                Node::Replica(n) if n >= replicas => (replicas, "replicas"),
                Node::Client(n) if n >= self.clients => (self.clients, "clients"),
                Node::Replica(_)
                | Node::Client(_)
                | Node::Controller
                | Node::OtherController
                | Node::Switch
                | Node::OtherSwitch => continue,
            };
            return Err(format!("a fault names {node}: there are {count} {what}, from 0"));
        }
        Ok(())
    }
}
