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

/// Longest time of [`KeyGroups`], in ms.
const KEY_GROUP_MS_MAX: u64 = 60_000;
/// Least `stepdown_ms`. What the switch holds is as old as two heartbeats before the next one
/// comes; with less it would step down again and again, with this after one that is late.
const STEPDOWN_MS_MIN: u64 = 3 * HEARTBEAT_NS / MS;
/// `stepdown_ms` if nothing is said: less than a lease, and more than the leader's queue takes
/// where it is overloaded, in which the switch's word waits behind requests.
const STEPDOWN_MS: u64 = 450;

/// How replicas replicate.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The head orders writes, the tail acknowledges them.
    #[default]
    Chain,
    /// The primary orders writes, all backups acknowledge to it.
    PrimaryBackup,
    /// Viewstamped Replication: a leader orders writes, a majority acknowledges; the replicas
    /// choose the leader by themselves.
    Vr,
    /// A chain in which every replica answers reads, asking the tail about objects that are being
    /// written; without the switch's help.
    Craq,
    /// NOPaxos: the switch orders writes and sends them to all, a majority acknowledges.
    #[serde(rename = "nopaxos")]
    #[value(name = "nopaxos")]
    NoPaxos,
    /// Raft: the replicas elect a leader, which orders writes; a majority acknowledges.
    Raft,
}

impl Protocol {
    /// As it is written.
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

    /// As the rack file names it.
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

    /// As the wire names it.
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

/// How a VR or Raft group answers a read without the switch's help, or where that does not do.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// A majority has promised to elect nobody else for a while.
    #[default]
    LeaderLease,
    /// It asks a majority for each read, or batch of reads (ReadIndex): slower, and no clock
    /// counts.
    ReadIndex,
    /// Raft without the switch's help: followers answer reads of key groups without a write under
    /// way, by leases. A write waits for all that hold one, so one that dies delays writes by up to
    /// a lease (9/8 of it if it still asks), and one that always lags by a little, less than an
    /// eighth of a lease, delays each by that.
    FollowerLease,
    /// Raft without the switch's help: any replica asks a majority where their logs end, and
    /// answers when all up to there is executed (quorum reads). No clock counts.
    Quorum,
}

impl Reads {
    /// Whether nothing else was said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Reads::default()
    }

    /// As replicas take it.
    #[must_use]
    pub fn of_leader(self) -> SlowReads {
        match self {
            Reads::LeaderLease => SlowReads::LeaderLease,
            Reads::ReadIndex => SlowReads::ReadIndex,
            Reads::FollowerLease => SlowReads::FollowerLease,
            Reads::Quorum => SlowReads::Quorum,
        }
    }

    /// What is wrong with it for replicas of `protocol` that the switch helps by `accel`. The
    /// default is wrong only where somebody said it: [`crate::rack::Rack::check_said_reads`].
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

    /// What is wrong with the default where it is said, and no group has a leader.
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

    /// Whether clients choose who answers a read.
    #[must_use]
    pub fn are_chosen(self) -> bool {
        match self {
            Reads::LeaderLease | Reads::ReadIndex => false,
            Reads::FollowerLease | Reads::Quorum => true,
        }
    }
}

/// Whether the switch helps, and how.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The switch tracks writes in flight; every replica serves reads of all other objects.
    #[default]
    Harmonia,
    /// FLAIR, under VR and Raft: the switch tracks which groups of keys are stable; followers
    /// that hold them serve their reads, and their replies are checked on the way back.
    Flair,
    /// The switch only forwards; one replica serves all reads (in CRAQ, all of them).
    None,
}

impl Accel {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Accel::None => "none",
            Accel::Harmonia => "harmonia",
            Accel::Flair => "flair",
        }
    }

    /// All there are, none first.
    const ALL: [Accel; 3] = [Accel::None, Accel::Harmonia, Accel::Flair];

    /// Those that serve replicas of `protocol`, none first.
    pub fn serving(protocol: Protocol) -> impl Iterator<Item = Accel> {
        let helps = move |accel: &Accel| {
            let program = accel.program(protocol);
            *accel == Accel::None
                || (program.serves(GroupKind::from(protocol.wire()))
                    && Accel::of(program) == *accel)
        };
        Accel::ALL.into_iter().filter(helps)
    }

    /// What the switch runs for replicas of `protocol`.
    #[must_use]
    pub fn program(self, protocol: Protocol) -> Program {
        match self {
            Accel::Flair => Program::Flair,
            Accel::Harmonia | Accel::None => Program::of(protocol.wire(), self == Accel::Harmonia),
        }
    }

    /// Whether the switch keeps what it knows by groups of keys.
    #[must_use]
    pub fn has_key_groups(self) -> bool {
        self == Accel::Flair
    }

    /// What is wrong with this help for replicas of `protocol`, if it is known without the switch's
    /// programs.
    #[must_use]
    pub fn misfit(self, protocol: Protocol) -> Option<Misfit> {
        let is_wrong = protocol == Protocol::Craq && self == Accel::Harmonia;
        is_wrong.then_some(Misfit {
            why: "protocol craq runs without the switch's help",
            keys: "accel = \"none\"",
            flags: "--accel none",
        })
    }

    /// Whose help a program is.
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

/// Where replicas keep the data.
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
    /// As it is written.
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

/// What survives a power cut of all replicas.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Nothing: the data is in memory.
    None,
    /// What was acknowledged: it is synced to disk before.
    #[default]
    Fsync,
    /// What was acknowledged, but for the last second: the disk is synced each second.
    Interval,
}

/// The size of the switch's dirty set (Harmonia §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// Stages of the hash table.
    pub stages: u8,
    /// Slots in each stage, a power of two.
    pub slots: u32,
    /// Width of the sequence counter; fewer than 32 bits are for seeing a switch id run out.
    pub counter_bits: u8,
}

impl Default for Table {
    fn default() -> Table {
        let l = Layout::DEFAULT;
        Table { stages: l.table_stages, slots: l.slots, counter_bits: l.counter_bits }
    }
}

impl Table {
    /// As the switch names it.
    #[must_use]
    pub fn settings(&self) -> TableSettings {
        TableSettings { layout: self.layout(), ..TableSettings::DEFAULT }
    }

    /// The registers.
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
    /// How many, a power of two from 64 to 131,072. With more, a write keeps fewer other keys'
    /// reads from followers.
    pub groups: u32,
    /// While a write is pending the leader gets no read that a follower can answer.
    pub avoid_leader: bool,
    /// Reads are shared among the replicas by weights, which the leader computes once a second of
    /// how long the queues of their hosts are: for hosts that are not alike, or do other work too.
    pub load_awareness: bool,
    /// How old the switch's word in the leader's last heartbeat may be, in ms, from 75 on; after
    /// that the switch passes nothing. The leader sends a heartbeat each 25 ms.
    pub stepdown_ms: u64,
    /// How often the switch looks for key groups that a lost write or reply left unstable, in ms.
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
    /// Whether nothing was said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == KeyGroups::default()
    }

    /// As the switch takes them.
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

    /// The key that is wrong, and why.
    ///
    /// # Errors
    /// That.
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
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Redis engine: the directory of its redis-server's socket and log; `replica-<node>` if left
    /// out.
    pub directory: Option<PathBuf>,
    /// Where it keeps its data; `data/replica-<node>` if left out. A relative path is below the
    /// directory that it is started in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Share of a core that it may use, for benchmarks.
    pub cpu_share: Option<f64>,
}

/// A gateway: Redis clients connect to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The group whose data it serves, by its name; the first group of replicas if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// IP address and port where Redis clients connect; `0.0.0.0` is every address of its host.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}

impl GatewayPlace {
    /// Where clients on other hosts reach it.
    #[must_use]
    pub fn reached(&self) -> SocketAddr {
        reached(self.listen, self.addr)
    }
}
