//! The rack file's sections for replicas and gateways.

use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use concord_core::MS;
use concord_log::EngineKind;
use concord_runtime::roles::replica::{HEARTBEAT_NS, SlowReads};
use concord_switch::flair::{GROUP_BITS_MAX, GROUP_BITS_MIN};
use concord_switch::harmonia::Layout;
use concord_switch::{KeyGroupSettings, TableSettings};
use concord_wire::control::{GroupKind, Program};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rack::{Misfit, reached, udp_addr};

/// The maximum of the times in [`KeyGroups`], in ms.
const KEY_GROUP_MS_MAX: u64 = 60_000;
/// The minimum of `stepdown_ms`. The switch's state is two heartbeats old before the next one
/// arrives. With less than this, the switch would step down again and again; with this, it does so
/// after one late heartbeat.
const STEPDOWN_MS_MIN: u64 = 3 * HEARTBEAT_NS / MS;
/// The default of `stepdown_ms`: less than a lease, and more than the delay in the queue of an
/// overloaded leader, in which the switch's answer waits behind requests.
const STEPDOWN_MS: u64 = 450;

/// The replication protocol.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The head orders writes, the tail acknowledges them.
    #[default]
    Chain,
    /// The primary orders writes, and all backups acknowledge them to it.
    PrimaryBackup,
    /// Viewstamped Replication: a leader orders writes, a majority acknowledges them; the replicas
    /// choose the leader by themselves.
    Vr,
    /// A chain in which every replica answers reads, and asks the tail about objects that are being
    /// written; without the switch's help.
    Craq,
    /// NOPaxos: the switch orders writes and sends them to all replicas, a majority acknowledges
    /// them.
    #[serde(rename = "nopaxos")]
    #[value(name = "nopaxos")]
    NoPaxos,
    /// Raft: the replicas elect a leader, which orders writes; a majority acknowledges them.
    Raft,
}

impl Protocol {
    /// The name in the rack file.
    #[must_use]
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Whether a leader answers reads, by leases or by asking a majority.
    #[must_use]
    pub fn has_leader(self) -> bool {
        match self {
            Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => true,
            Protocol::Chain | Protocol::PrimaryBackup | Protocol::Craq => false,
        }
    }

    /// The protocol from its form on the wire.
    #[must_use]
    pub fn from(protocol: concord_wire::control::Protocol) -> Protocol {
        match protocol {
            concord_wire::control::Protocol::Chain => Protocol::Chain,
            concord_wire::control::Protocol::PrimaryBackup => Protocol::PrimaryBackup,
            concord_wire::control::Protocol::Vr => Protocol::Vr,
            concord_wire::control::Protocol::Craq => Protocol::Craq,
            concord_wire::control::Protocol::NoPaxos => Protocol::NoPaxos,
            concord_wire::control::Protocol::Raft => Protocol::Raft,
        }
    }

    /// The protocol in its form on the wire.
    #[must_use]
    pub fn wire(self) -> concord_wire::control::Protocol {
        match self {
            Protocol::Chain => concord_wire::control::Protocol::Chain,
            Protocol::PrimaryBackup => concord_wire::control::Protocol::PrimaryBackup,
            Protocol::Vr => concord_wire::control::Protocol::Vr,
            Protocol::Craq => concord_wire::control::Protocol::Craq,
            Protocol::NoPaxos => concord_wire::control::Protocol::NoPaxos,
            Protocol::Raft => concord_wire::control::Protocol::Raft,
        }
    }
}

/// How a VR or Raft group answers reads that the switch does not help with.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// A majority has promised to elect no other leader for a while.
    #[default]
    LeaderLease,
    /// The leader asks a majority for each read, or batch of reads (ReadIndex): slower, but
    /// independent of clocks.
    ReadIndex,
    /// Raft without the switch's help: by leases, followers answer reads of key groups without a
    /// pending write. A write waits for all holders of such a lease: a holder that dies delays
    /// writes by up to a lease (9/8 of it if it still requests leases), and one that always lags by
    /// less than an eighth of a lease delays each write by that time.
    FollowerLease,
    /// Raft without the switch's help: any replica asks a majority where their logs end, and
    /// answers once it has executed its log up to there (quorum reads). Independent of clocks.
    Quorum,
}

impl Reads {
    /// Whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Reads::default()
    }

    /// The setting in the terms of replicas.
    #[must_use]
    pub fn of_leader(self) -> SlowReads {
        match self {
            Reads::LeaderLease => SlowReads::LeaderLease,
            Reads::ReadIndex => SlowReads::ReadIndex,
            Reads::FollowerLease => SlowReads::FollowerLease,
            Reads::Quorum => SlowReads::Quorum,
        }
    }

    /// The reason why it does not fit replicas of `protocol` that the switch helps by `accel`, if
    /// there is one. The default is wrong only if it was given: see
    /// [`crate::rack::Rack::check_said_reads`].
    #[must_use]
    pub fn misfit(self, protocol: Protocol, accel: Accel) -> Option<Misfit> {
        let is_alone = protocol == Protocol::Raft && accel == Accel::None;
        match self {
            Reads::ReadIndex if !protocol.has_leader() => {
                Some(Reads::of_a_leader("reads = \"read-index\" is for protocols with a leader"))
            }
            Reads::FollowerLease if !is_alone => Some(Reads::of_raft_alone(
                "reads = \"follower-lease\" is for raft without the switch's help",
            )),
            Reads::Quorum if !is_alone => Some(Reads::of_raft_alone(
                "reads = \"quorum\" is for raft without the switch's help",
            )),
            Reads::LeaderLease | Reads::ReadIndex | Reads::FollowerLease | Reads::Quorum => None,
        }
    }

    /// The mistake of giving the default although no group has a leader.
    pub const LEADERLESS: Misfit =
        Reads::of_a_leader("reads = \"leader-lease\" is for protocols with a leader");

    const fn of_a_leader(why: &'static str) -> Misfit {
        let keys = "protocol = \"raft\", \"vr\" or \"nopaxos\"";
        Misfit { why, keys, flags: "--protocol raft, vr or nopaxos" }
    }

    const fn of_raft_alone(why: &'static str) -> Misfit {
        let keys = "protocol = \"raft\" and accel = \"none\"";
        Misfit { why, keys, flags: "--protocol raft --accel none" }
    }

    /// Whether clients choose the replica that answers a read.
    #[must_use]
    pub fn are_chosen(self) -> bool {
        match self {
            Reads::LeaderLease | Reads::ReadIndex => false,
            Reads::FollowerLease | Reads::Quorum => true,
        }
    }
}

/// How the switch helps the protocol.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The switch tracks pending writes; every replica serves reads of all other objects.
    #[default]
    Harmonia,
    /// FLAIR, for VR and Raft: the switch tracks which groups of keys are stable. Followers that
    /// have a stable group serve its reads, and the switch checks their replies on the way back.
    Flair,
    /// The switch only forwards; one replica serves all reads (in CRAQ, all replicas do).
    None,
}

impl Accel {
    /// The name in the rack file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Accel::None => "none",
            Accel::Harmonia => "harmonia",
            Accel::Flair => "flair",
        }
    }

    /// All kinds of help, `None` first.
    const ALL: [Accel; 3] = [Accel::None, Accel::Harmonia, Accel::Flair];

    /// The kinds of help for replicas of `protocol`, `None` first.
    pub fn serving(protocol: Protocol) -> impl Iterator<Item = Accel> {
        let helps = move |accel: &Accel| {
            let program = accel.program(protocol);
            *accel == Accel::None
                || (program.serves(GroupKind::from(protocol.wire()))
                    && Accel::of(program) == *accel)
        };
        Accel::ALL.into_iter().filter(helps)
    }

    /// The switch program for replicas of `protocol`.
    #[must_use]
    pub fn program(self, protocol: Protocol) -> Program {
        match self {
            Accel::Flair => Program::Flair,
            Accel::Harmonia | Accel::None => Program::of(protocol.wire(), self == Accel::Harmonia),
        }
    }

    /// Whether the switch tracks groups of keys.
    #[must_use]
    pub fn has_key_groups(self) -> bool {
        self == Accel::Flair
    }

    /// The reason why this help does not fit replicas of `protocol`, as far as it is known without
    /// the switch's programs.
    #[must_use]
    pub fn misfit(self, protocol: Protocol) -> Option<Misfit> {
        let is_wrong = protocol == Protocol::Craq && self == Accel::Harmonia;
        is_wrong.then_some(Misfit {
            why: "protocol craq runs without the switch's help",
            keys: "accel = \"none\"",
            flags: "--accel none",
        })
    }

    /// The kind of help that a program gives.
    #[must_use]
    pub fn of(program: Program) -> Accel {
        if program.checks_replies() {
            Accel::Flair
        } else if program.has_dirty_set() {
            Accel::Harmonia
        } else {
            Accel::None
        }
    }
}

/// Where replicas keep their data.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// In each replica's own memory.
    #[default]
    Memory,
    /// In a redis-server beside each replica.
    Redis,
}

impl Engine {
    /// The name in the rack file.
    #[must_use]
    pub fn name(self) -> &'static str {
        EngineKind::from(self).name()
    }
}

impl From<Engine> for EngineKind {
    fn from(engine: Engine) -> EngineKind {
        match engine {
            Engine::Memory => EngineKind::Memory,
            Engine::Redis => EngineKind::Redis,
        }
    }
}

impl From<EngineKind> for Engine {
    fn from(kind: EngineKind) -> Engine {
        match kind {
            EngineKind::Memory => Engine::Memory,
            EngineKind::Redis => Engine::Redis,
        }
    }
}

/// Which writes survive a power cut of all replicas.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// None: the data is in memory.
    None,
    /// All acknowledged writes: they are synced to disk before the acknowledgement.
    #[default]
    Fsync,
    /// All acknowledged writes except those of the last second: the disk is synced every second.
    Interval,
}

/// The size of the switch's dirty set (Harmonia §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// The number of stages of the hash table.
    pub stages: u8,
    /// The number of slots in each stage, a power of two.
    pub slots: u32,
    /// The width of the sequence counter, in bits; fewer than 32 are for tests of a switch id that
    /// is used up.
    pub counter_bits: u8,
}

impl Default for Table {
    fn default() -> Table {
        let l = Layout::DEFAULT;
        Table { stages: l.table_stages, slots: l.slots, counter_bits: l.counter_bits }
    }
}

impl Table {
    /// The settings in the switch's terms.
    #[must_use]
    pub fn settings(&self) -> TableSettings {
        TableSettings { layout: self.layout(), ..TableSettings::DEFAULT }
    }

    /// The layout of the registers.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            table_stages: self.stages,
            slots: self.slots,
            counter_bits: self.counter_bits,
            ..Layout::DEFAULT
        }
    }
}

/// FLAIR's key groups at the switch (`accel = "flair"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeyGroups {
    /// The number of key groups, a power of two from 64 to 131,072. With more groups, a write keeps
    /// fewer other keys' reads from followers.
    pub groups: u32,
    /// Whether the leader gets no read that a follower can answer while a write is pending.
    pub avoid_leader: bool,
    /// Whether reads are shared among the replicas by weights, which the leader computes every
    /// second from the lengths of their hosts' queues: for hosts that differ, or do other work,
    /// too.
    pub load_awareness: bool,
    /// The maximum age of the switch's answer in the leader's last heartbeat, in ms, at least 75;
    /// with an older one the switch forwards nothing. The leader sends a heartbeat every 25 ms.
    pub stepdown_ms: u64,
    /// The interval at which the switch looks for key groups that a lost write or reply left
    /// unstable, in ms.
    pub repair_ms: u64,
}

impl Default for KeyGroups {
    fn default() -> KeyGroups {
        let own = KeyGroupSettings::DEFAULT;
        KeyGroups {
            groups: own.groups(),
            avoid_leader: own.avoid_leader,
            load_awareness: own.load_awareness,
            stepdown_ms: STEPDOWN_MS,
            repair_ms: own.repair_interval_ns / MS,
        }
    }
}

impl KeyGroups {
    /// Whether all values are the defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == KeyGroups::default()
    }

    /// The settings in the switch's terms.
    #[must_use]
    pub fn settings(&self) -> KeyGroupSettings {
        KeyGroupSettings {
            group_bits: self.groups.checked_ilog2().unwrap_or_default() as u8,
            avoid_leader: self.avoid_leader,
            load_awareness: self.load_awareness,
            stepdown_ns: self.stepdown_ms.saturating_mul(MS),
            repair_interval_ns: self.repair_ms.saturating_mul(MS),
            ..KeyGroupSettings::DEFAULT
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The key that is wrong, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let (least, most) = (1u32 << GROUP_BITS_MIN, 1u32 << GROUP_BITS_MAX);
        if !self.groups.is_power_of_two() || !(least..=most).contains(&self.groups) {
            let own = self.groups;
            return Err((
                "groups",
                format!("{own}; give it a power of two from {least} to {most}"),
            ));
        }
        let times =
            [("stepdown_ms", self.stepdown_ms, STEPDOWN_MS_MIN), ("repair_ms", self.repair_ms, 1)];
        match times.into_iter().find(|(_, ms, least)| !(*least..=KEY_GROUP_MS_MAX).contains(ms)) {
            Some((name, ms, least)) => {
                Err((name, format!("{ms}; give it {least} to {KEY_GROUP_MS_MAX}")))
            }
            None => Ok(()),
        }
    }
}

/// A replica of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPlace {
    /// Its number, from 1; the first replica of the file is the head or primary.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the replica.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Redis engine: the directory for the socket and the log of its redis-server; `replica-<node>`
    /// if left out.
    pub directory: Option<PathBuf>,
    /// The directory of its data; `data/replica-<node>` if left out. A relative path is below the
    /// directory in which the replica is started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// The share of a core that it may use, for benchmarks.
    pub cpu_share: Option<f64>,
}

/// A gateway, to which Redis clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the gateway.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The name of the group whose data it serves; the first group of replicas if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The IP address and port for Redis clients; `0.0.0.0` is every address of its host.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}

impl GatewayPlace {
    /// The address at which clients on other hosts reach it.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}
