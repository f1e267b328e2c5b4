//! A whole run as data: the rack, the workload, the network, the faults.

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

/// Most nodes of a kind in a plan.
pub const NODES_MAX: usize = 64;
/// Most operations of a plan.
pub const OPERATIONS_MAX: usize = 1_000_000;
/// Clocks drift by at most that, per million: the holder of a lease counts a tenth less than who
/// granted it (trap T2).
pub const DRIFT_PPM_MAX: u64 = 40_000;

/// How long a node is busy with a packet, in ns. Packets that arrive meanwhile wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// A replica with a read.
    pub read_ns: Duration,
    /// A replica with a write that it orders.
    pub write_ns: Duration,
    /// A replica with a record of its predecessor or primary.
    pub record_ns: Duration,
    /// A replica with an acknowledgement of a record.
    pub ack_ns: Duration,
    /// A replica with a version query or its answer (CRAQ).
    pub query_ns: Duration,
    /// A replica with anything else.
    pub other_ns: Duration,
    /// The switch with any packet.
    pub switch_ns: Duration,
    /// A client with any packet.
    pub client_ns: Duration,
}

/// A fault and when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Table", into = "toml::Table")]
pub struct Timed {
    /// When, in virtual ns.
    pub at_ns: Duration,
    /// What.
    pub fault: Fault,
}

/// A whole run; [`Plan::draw`] draws one from a seed, [`Plan::default`] is a good day. Change
/// fields to aim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The seed of everything that the plan leaves open.
    #[serde(with = "crate::systems::store::written::seed")]
    pub seed: u64,
    /// How the replicas replicate.
    #[serde(with = "crate::systems::store::written::protocol")]
    pub protocol: Protocol,
    /// What the switch runs.
    #[serde(with = "crate::systems::store::written::program")]
    pub program: Program,
    /// Number of replicas at the start.
    pub replicas: usize,
    /// Client processes, each with a session of its own.
    pub clients: usize,
    /// Connections of each client process; one operation at a time each.
    pub connections: usize,
    /// Stages of the switch's table.
    pub table_stages: u8,
    /// Slots of each stage.
    pub slots: u32,
    /// Packets that a host receives at once, at most, when several wait for it.
    pub batch_packets: usize,
    /// Reads of a client that the switch sends to one replica in a row, as a power of two.
    pub run_bits: u8,
    /// Operations of the safety phase, at least: it lasts until the last fault, too.
    pub operations: usize,
    /// Number of keys.
    pub keys: u64,
    /// Writes among 100 operations.
    pub writes_percent: u64,
    /// Writes of values of several packets among 100 writes of strings (trap T17).
    pub long_values_percent: u64,
    /// FLUSHALL among 1,000 operations (trap T13).
    pub flushes_permille: u64,
    /// Longest pause of a connection between two operations, in ns; every third has none.
    pub think_ns: Duration,
    /// That long around every fault's beginning and end nobody thinks for more than 1 ms, in ns:
    /// races are there.
    pub rush_ns: Duration,
    /// How long the safety phase goes on after the last fault began, at least, in ns.
    pub linger_ns: Duration,
    /// How long clients go on once everything has healed and all are well, in ns: times to live
    /// that end then are judged exactly.
    pub calm_ns: Duration,
    /// One way from node to node, in ns.
    pub latency_ns: Duration,
    /// One way between two replicas, in ns.
    pub peer_latency_ns: Duration,
    /// Packets lost, per million.
    pub loss_ppm: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Packets delayed by up to `delay_ns`, per million; others overtake them.
    pub reorder_ppm: u64,
    /// Longest extra delay, in ns.
    pub delay_ns: Duration,
    /// Packets that wait at a busy or paused node at most; more are dropped.
    pub queue_packets_max: usize,
    /// How long the storage engine takes to answer, in ns; 0: memory, at once.
    pub engine_ns: Duration,
    /// How long the storage engine may owe an answer until it is given up, in ns.
    pub engine_silence_ns: Duration,
    /// An engine whose fault is that it stalls is at work on one operation, for so long at most, in
    /// ns; 0: it is silent.
    pub engine_work_ns: Duration,
    /// The ordering node's replies are replicated, as with an engine that is a server of its own.
    pub replicate_replies: bool,
    /// Raft: a leader asks a quorum for each read, whether it still leads (ReadIndex).
    pub read_index: bool,
    /// Raft without a switch's help: followers answer reads by leases of key groups, and clients
    /// choose who does.
    pub follower_leases: bool,
    /// The same, and any replica answers once it has asked a quorum where their logs end.
    pub quorum_reads: bool,
    /// FLAIR: while a write is pending the leader gets no read that a follower can answer.
    pub avoid_leader: bool,
    /// FLAIR: reads are shared by weights, which the leader computes of the replicas' queues.
    pub load_awareness: bool,
    /// About how many bytes a chunk of a copied state has.
    pub copy_bytes: usize,
    /// How often the replicas compare a part of their states, in ns; 0: never.
    pub compare_ns: Duration,
    /// Once all is at rest, one key of one replica is damaged: that has to be found.
    pub damages: bool,
    /// VR, NOPaxos: about how many executed records are kept for members that lag.
    pub records_kept: usize,
    /// How fast or slow monotonic clocks run, at most, per million.
    pub drift_ppm: u64,
    /// How long leases last, in ns.
    pub lease_ns: Duration,
    /// Silence after which a replica is removed, in ns.
    pub failure_ns: Duration,
    /// Whether invariants are checked at every step; histories and convergence always are.
    pub invariants: bool,
    /// Which guards are on.
    #[serde(rename = "without", with = "crate::systems::store::written::without")]
    pub guards: Guards,
    /// How long nodes are busy with packets.
    pub service: Service,
    /// How large keys, values and replies are.
    pub sizes: Sizes,
    /// Bounds that are small, and numbers near their end.
    pub bounds: Bounds,
    /// Client processes that are gateways, and what Redis clients do.
    pub gateways: Gateways,
    /// Packets that are cut short, forged, padded or late.
    pub packets: Packets,
    /// What of the replicas' data survives their processes.
    pub disks: Disks,
    /// The links and switches that packets take; with none, every packet takes `latency_ns`.
    pub links: Links,
    /// Faults, by time.
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

/// What the seed of the draw of those that elect is other than that of the rest.
const ELECTS: u64 = 0x7e21_a5ed;

/// The protocol of a seed where none is said. One in six elects its leaders, by a generator of its
/// own; `rng` draws among the others.
pub fn any_protocol(seed: u64, rng: &mut Rng) -> Protocol {
    let (others, elects) = PROTOCOLS.split_at(PROTOCOLS.len() - 1);
    let drawn = others[rng.below(others.len() as u64) as usize];
    if Rng::new(seed ^ ELECTS).chance(1, 6) { elects[0] } else { drawn }
}

impl Plan {
    /// How a leader, or whoever answers, knows that its answer is not too old.
    pub(crate) fn reads(&self) -> SlowReads {
        match (self.follower_leases, self.quorum_reads, self.read_index) {
            (true, ..) => SlowReads::FollowerLease,
            (_, true, _) => SlowReads::Quorum,
            (_, _, true) => SlowReads::ReadIndex,
            _ => SlowReads::LeaderLease,
        }
    }

    /// A good day of a rack of that protocol, with Harmonia's help where it has any.
    #[must_use]
    pub fn of(protocol: Protocol) -> Plan {
        Plan { protocol, program: Program::of(protocol, true), ..Plan::default() }
    }

    /// Adds a fault, for plans written by hand.
    #[must_use]
    pub fn with_fault(mut self, at_ns: Duration, fault: Fault) -> Plan {
        self.faults.push(Timed { at_ns, fault });
        self.faults.sort_by_key(|f| f.at_ns);
        self
    }

    /// Whether the plan can be run.
    ///
    /// # Errors
    /// The first value that cannot be, in words for whoever wrote it.
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

    /// Replicas that there are or will be.
    #[must_use]
    pub fn replicas_ever(&self) -> usize {
        self.replicas + self.faults.iter().filter(|f| f.fault == Fault::Join).count()
    }

    fn validate_fault(&self, timed: &Timed) -> Result<(), String> {
        // Who joins late may be hit by this one only: the others do something to a running host.
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
