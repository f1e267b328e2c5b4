//! The configuration of a group.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Member;
use crate::Addr;
use crate::WireError;
use crate::header::GroupId;

/// The largest number of members of a configuration: one packet holds them, with a dozen joining
/// ones.
pub const MEMBERS_MAX: usize = 64;

/// The replication protocol of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// The primary orders, all backups acknowledge to it.
    PrimaryBackup,
    /// The head orders, the tail acknowledges.
    Chain,
    /// Viewstamped Replication: the leader of the view orders, a majority acknowledges.
    Vr,
    /// CRAQ: a chain in which every member answers reads, and asks the tail first for objects with
    /// a write in flight.
    Craq,
    /// NOPaxos: the switch orders and multicasts, a majority acknowledges to the leader of the
    /// view.
    NoPaxos,
    /// Raft: the members elect a leader for each term, who orders; a majority acknowledges.
    Raft,
}

impl Protocol {
    /// Whether a majority decides, and the replicas choose who leads by themselves.
    #[must_use]
    pub const fn is_quorum(self) -> bool {
        match self {
            Protocol::PrimaryBackup | Protocol::Chain | Protocol::Craq => false,
            Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => true,
        }
    }

    /// Whether the replicas elect who leads; where they do not, they take turns.
    #[must_use]
    pub const fn elects(self) -> bool {
        matches!(self, Protocol::Raft)
    }

    /// Whether the switch orders the writes and sends them to every replica.
    #[must_use]
    pub const fn is_sequenced(self) -> bool {
        matches!(self, Protocol::NoPaxos)
    }
}

/// Most nodes of a shared memory: places in its copysets.
pub const MEMORY_NODES_MAX: usize = crate::concordia::NODES_MAX;

/// The kind of a group's members. A byte on the wire: below 16 replicas and their protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum GroupKind {
    /// Replicas of a store.
    Replicas(Protocol),
    /// Workers, which run tasks: all that register are members.
    Workers,
    /// Switches that hold the data themselves: a chain, the head first.
    Switches,
    /// Nodes of a shared memory, each with a part of it and a cache.
    Memory,
    /// Hosts whose messages reserve their way.
    Hosts,
}

impl GroupKind {
    /// The replication protocol, if the members are replicas.
    #[must_use]
    pub const fn protocol(self) -> Option<Protocol> {
        match self {
            GroupKind::Replicas(protocol) => Some(protocol),
            GroupKind::Workers | GroupKind::Switches | GroupKind::Memory | GroupKind::Hosts => None,
        }
    }

    /// Whether its members are replicas of which a majority decides.
    #[must_use]
    pub const fn is_quorum(self) -> bool {
        matches!(self, GroupKind::Replicas(protocol) if protocol.is_quorum())
    }

    /// Whether its members are replicas whose writes the switch orders.
    #[must_use]
    pub const fn is_sequenced(self) -> bool {
        matches!(self, GroupKind::Replicas(protocol) if protocol.is_sequenced())
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GroupKind::Replicas(_) => "replicas",
            GroupKind::Workers => "workers",
            GroupKind::Switches => "switches",
            GroupKind::Memory => "memory",
            GroupKind::Hosts => "hosts",
        }
    }
}

impl From<Protocol> for GroupKind {
    fn from(protocol: Protocol) -> GroupKind {
        GroupKind::Replicas(protocol)
    }
}

impl From<GroupKind> for u8 {
    fn from(kind: GroupKind) -> u8 {
        match kind {
            GroupKind::Replicas(Protocol::PrimaryBackup) => 0,
            GroupKind::Replicas(Protocol::Chain) => 1,
            GroupKind::Replicas(Protocol::Vr) => 2,
            GroupKind::Replicas(Protocol::Craq) => 3,
            GroupKind::Replicas(Protocol::NoPaxos) => 4,
            GroupKind::Replicas(Protocol::Raft) => 5,
            GroupKind::Workers => 16,
            GroupKind::Switches => 17,
            GroupKind::Memory => 18,
            GroupKind::Hosts => 19,
        }
    }
}

impl TryFrom<u8> for GroupKind {
    type Error = WireError;

    fn try_from(byte: u8) -> Result<GroupKind, WireError> {
        Ok(match byte {
            0 => Protocol::PrimaryBackup.into(),
            1 => Protocol::Chain.into(),
            2 => Protocol::Vr.into(),
            3 => Protocol::Craq.into(),
            4 => Protocol::NoPaxos.into(),
            5 => Protocol::Raft.into(),
            16 => GroupKind::Workers,
            17 => GroupKind::Switches,
            18 => GroupKind::Memory,
            19 => GroupKind::Hosts,
            _ => return Err(WireError::Field),
        })
    }
}

/// The program that a switch runs for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Passes writes on to who orders them, and reads to who answers them.
    Forward,
    /// Harmonia's dirty set, under a protocol whose replicas order the writes.
    Harmonia,
    /// Spreads reads over all replicas, which ask the tail where they have to.
    Craq,
    /// NOPaxos' sequencer: numbers every write and sends it to all replicas.
    NoPaxos,
    /// The sequencer and the dirty set in one pass.
    NoPaxosHarmonia,
    /// Falcon's queue of tasks, for workers.
    Falcon,
    /// FLAIR's key groups, under a protocol whose replicas elect a leader.
    Flair,
    /// NetCRAQ's store: the members of the group are switches, and hold keys and values.
    NetCraq,
    /// Concordia's locks, statuses and copysets, for the nodes of a shared memory.
    Concordia,
    /// Harmony's reservations of virtual links, for hosts.
    Harmony,
}

impl Program {
    /// Every program that a switch can run.
    pub const ALL: [Program; 10] = [
        Program::Forward,
        Program::Harmonia,
        Program::Craq,
        Program::NoPaxos,
        Program::NoPaxosHarmonia,
        Program::Falcon,
        Program::Flair,
        Program::NetCraq,
        Program::Concordia,
        Program::Harmony,
    ];

    /// The default program: it tracks writes in flight.
    pub const DEFAULT: Program = Program::Harmonia;
    /// The default program of a group of workers.
    pub const OF_WORKERS: Program = Program::Falcon;
    /// The program of a chain of switches that hold the data.
    pub const OF_SWITCHES: Program = Program::NetCraq;
    /// The default program of a group of memory nodes.
    pub const OF_MEMORY: Program = Program::Concordia;

    /// The program for a protocol, with Harmonia's help or without. CRAQ has only one without.
    #[must_use]
    pub const fn of(protocol: Protocol, with_help: bool) -> Program {
        match (protocol, with_help) {
            (Protocol::Craq, _) => Program::Craq,
            (Protocol::NoPaxos, true) => Program::NoPaxosHarmonia,
            (Protocol::NoPaxos, false) => Program::NoPaxos,
            (
                Protocol::PrimaryBackup | Protocol::Chain | Protocol::Vr | Protocol::Raft,
                with_help,
            ) => {
                if with_help {
                    Program::Harmonia
                } else {
                    Program::Forward
                }
            }
        }
    }

    /// Its name, on the wire and for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Program::Forward => "forward",
            Program::Harmonia => "harmonia",
            Program::Craq => "craq",
            Program::NoPaxos => "nopaxos",
            Program::NoPaxosHarmonia => "nopaxos+harmonia",
            Program::Falcon => "falcon",
            Program::Flair => "flair",
            Program::NetCraq => "netcraq",
            Program::Concordia => "concordia",
            Program::Harmony => "harmony",
        }
    }

    /// The program of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Program> {
        Program::ALL.into_iter().find(|program| program.name() == name)
    }

    /// Whether a group of that kind can do with it.
    #[must_use]
    pub fn serves(self, kind: impl Into<GroupKind>) -> bool {
        match kind.into() {
            GroupKind::Replicas(protocol) => {
                let checks =
                    self.checks_replies() && matches!(protocol, Protocol::Vr | Protocol::Raft);
                self == Program::of(protocol, false)
                    || self == Program::of(protocol, true)
                    || checks
            }
            GroupKind::Workers => matches!(self, Program::Forward | Program::Falcon),
            GroupKind::Switches => matches!(self, Program::NetCraq),
            GroupKind::Memory => matches!(self, Program::Concordia),
            GroupKind::Hosts => matches!(self, Program::Harmony),
        }
    }

    /// Whether followers' replies pass it, and are checked there: it tells leader and followers of
    /// its session with each request, and takes replies of its own kind alone.
    #[must_use]
    pub const fn checks_replies(self) -> bool {
        matches!(self, Program::Flair)
    }

    /// The largest number of members that it supports, if that is fewer than a group may have.
    #[must_use]
    pub const fn members_max(self) -> Option<usize> {
        match self {
            Program::Flair => Some(crate::flair::REPLICAS_MAX),
            Program::NetCraq => Some(crate::netchain::CHAIN_MAX),
            Program::Concordia => Some(crate::concordia::NODES_MAX),
            Program::Forward
            | Program::Harmonia
            | Program::Craq
            | Program::NoPaxos
            | Program::NoPaxosHarmonia
            | Program::Falcon
            | Program::Harmony => None,
        }
    }

    /// Whether it has Harmonia's dirty set: it numbers writes, and lets any replica answer reads of
    /// objects without a write in flight.
    #[must_use]
    pub const fn has_dirty_set(self) -> bool {
        matches!(self, Program::Harmonia | Program::NoPaxosHarmonia)
    }
}

/// The configuration of a group in an epoch. The first member orders writes (head, primary).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Part", try_from = "Part")]
pub struct Config {
    /// The number of this configuration.
    pub epoch: u32,
    /// Which group of the rack it is of.
    pub group: GroupId,
    /// Which rack it is of: drawn when its first configuration was made, so that another rack's
    /// state file is told apart.
    pub rack: u64,
    /// The one switch whose numbers and fast reads are accepted (Harmonia §6.3).
    pub switch_id: u32,
    /// The incarnation of the switch to which that id was granted.
    pub switch_incarnation: u64,
    /// The switch's address.
    pub switch: Addr,
    /// The kind of its members.
    pub kind: GroupKind,
    /// The switch program that serves them.
    pub program: Program,
    /// The members in order: head first, tail last. From a VR leader to the switch: itself first,
    /// and whom it hears of.
    pub members: Vec<Member>,
    /// The joining replicas, which copy the state of a member: they answer nothing, and no member
    /// waits for them (trap T4). From a NOPaxos leader to the switch: the other members, which get
    /// its writes too.
    pub joining: Vec<Member>,
}

impl Config {
    /// The member that orders writes.
    #[must_use]
    pub fn head(&self) -> Option<&Member> {
        self.members.first()
    }

    /// The replication protocol, if the members are replicas.
    #[must_use]
    pub const fn protocol(&self) -> Option<Protocol> {
        self.kind.protocol()
    }

    /// The member that answers reads of the normal protocol: the tail of a chain, otherwise the one
    /// that orders. In CRAQ the others ask it.
    #[must_use]
    pub fn reader(&self) -> Option<&Member> {
        match self.protocol()? {
            Protocol::Chain | Protocol::Craq => self.members.last(),
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
                self.members.first()
            }
        }
    }
}

/// A configuration as it is written, in packets and in the controller's state. One that is too long
/// for a packet has several parts there ([`super::parts`]), in the state it has one.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Part {
    /// Which part, from 0.
    part: u8,
    /// The number of parts.
    parts: u8,
    epoch: u32,
    rack: u64,
    group: GroupId,
    switch_id: u32,
    switch_incarnation: u64,
    switch: Addr,
    kind: GroupKind,
    /// The name of the program that the switch runs for this group.
    program: String,
    members: Vec<Member>,
    joining: Vec<Member>,
}

impl Part {
    /// The part of `config` that has its members and joining members: which one, of how many.
    pub(super) fn written(config: Config, (part, parts): (u8, u8)) -> Part {
        Part {
            part,
            parts,
            epoch: config.epoch,
            rack: config.rack,
            group: config.group,
            switch_id: config.switch_id,
            switch_incarnation: config.switch_incarnation,
            switch: config.switch,
            kind: config.kind,
            program: config.program.name().into(),
            members: config.members,
            joining: config.joining,
        }
    }

    /// Which part, of how many.
    pub(super) const fn place(&self) -> (u8, u8) {
        (self.part, self.parts)
    }

    /// The configuration, with the members and joining members of this part.
    pub(super) fn config(self) -> Result<Config, WireError> {
        let program = Program::named(&self.program).filter(|p| p.serves(self.kind));
        Ok(Config {
            epoch: self.epoch,
            rack: self.rack,
            group: self.group,
            switch_id: self.switch_id,
            switch_incarnation: self.switch_incarnation,
            switch: self.switch,
            kind: self.kind,
            program: program.ok_or(WireError::Field)?,
            members: self.members,
            joining: self.joining,
        })
    }
}

impl From<Config> for Part {
    fn from(config: Config) -> Part {
        Part::written(config, (0, 1))
    }
}

impl TryFrom<Part> for Config {
    type Error = WireError;

    fn try_from(part: Part) -> Result<Config, WireError> {
        if part.place() == (0, 1) { part.config() } else { Err(WireError::Field) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOLS: [Protocol; 6] = [
        Protocol::PrimaryBackup,
        Protocol::Chain,
        Protocol::Vr,
        Protocol::Craq,
        Protocol::NoPaxos,
        Protocol::Raft,
    ];

    fn written(protocol: Protocol, program: Program) -> Part {
        let config = Config {
            epoch: 2,
            rack: 0x7ac4,
            group: GroupId(5),
            switch_id: 3,
            switch_incarnation: 5,
            switch: Addr { ip: 0x7f00_0001, port: 9 },
            kind: protocol.into(),
            program,
            members: alloc::vec![Member {
                node: 1,
                incarnation: 77,
                addr: Addr { ip: 1, port: 2 }
            }],
            joining: Vec::new(),
        };
        assert_eq!((config.head(), config.reader()), (config.members.first(), config.head()));
        Part::from(config)
    }

    fn read(part: &Part) -> Result<Config, postcard::Error> {
        postcard::from_bytes(&postcard::to_allocvec(part).unwrap())
    }

    #[test]
    fn the_protocol_is_a_byte_and_the_program_a_name() {
        for (byte, protocol) in (0..).zip(PROTOCOLS) {
            let kind = GroupKind::from(protocol);
            assert_eq!(postcard::to_allocvec(&kind).unwrap(), [byte]);
            assert_eq!(GroupKind::try_from(byte), Ok(kind));
            for with_help in [false, true] {
                let program = Program::of(protocol, with_help);
                assert_eq!(program.has_dirty_set(), with_help && protocol != Protocol::Craq);
                let config = read(&written(protocol, program)).unwrap();
                assert_eq!((config.protocol(), config.program), (Some(protocol), program));
                assert_eq!(Part::from(config).program, program.name());
            }
        }
        let others = (6..=255).filter_map(|byte| GroupKind::try_from(byte).ok());
        let kinds = [GroupKind::Workers, GroupKind::Switches, GroupKind::Memory, GroupKind::Hosts];
        assert_eq!(
            (others.collect::<Vec<_>>(), kinds.map(u8::from)),
            (kinds.to_vec(), [16, 17, 18, 19])
        );
        let names = Program::ALL.map(Program::name);
        let stores = ["forward", "harmonia", "craq", "nopaxos", "nopaxos+harmonia"];
        assert_eq!(
            names,
            [&stores[..], &["falcon", "flair", "netcraq", "concordia", "harmony"]].concat()[..]
        );
        let for_workers = Program::ALL.into_iter().filter(|p| p.serves(GroupKind::Workers));
        assert_eq!(for_workers.collect::<Vec<_>>(), [Program::Forward, Program::Falcon]);
        assert!(PROTOCOLS.iter().all(|protocol| !Program::Falcon.serves(*protocol)));
    }

    /// A program that nobody knows and a part of several are refused.
    #[test]
    fn unknown_program_and_partial_parts_are_refused() {
        let caught_up = written(Protocol::Chain, Program::Harmonia);
        assert!(read(&caught_up).is_ok());
        assert!(read(&Part { program: "mirror".into(), ..caught_up.clone() }).is_err());
        assert!(read(&Part { program: "nopaxos".into(), ..caught_up.clone() }).is_err());
        assert!(read(&Part { parts: 2, ..caught_up.clone() }).is_err());
        assert!(read(&Part { part: 1, ..caught_up }).is_err());
    }

    #[test]
    fn a_member_takes_sixteen_bytes_whatever_it_is() {
        for node in [0, u16::MAX] {
            let addr = Addr { ip: u32::from(node) << 16, port: node };
            let member = Member { node, incarnation: u64::from(node) << 48, addr };
            let bytes = postcard::to_allocvec(&member).unwrap();
            assert_eq!(bytes.len(), 16);
            assert_eq!(postcard::from_bytes::<Member>(&bytes).unwrap(), member);
        }
    }
}
