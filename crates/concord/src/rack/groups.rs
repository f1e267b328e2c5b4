//! The groups of a rack: the store that the file's top level describes, and those of `[[group]]`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use concord_control::{CHAIN_MAX, Chain, GroupSetup};
use concord_core::MS;
use concord_runtime::Error;
use concord_switch::agent::SEATS_MAX;
use concord_wire::GroupId;
use concord_wire::control::{GroupKind, Program};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mistakes::Mistake;
use super::{Bytes, REPLICAS_MAX, Rack};
use crate::systems::store::{Durability, Engine, GatewayPlace, Protocol, ReplicaPlace};
use crate::systems::{
    ChainPlace, Coherence, MemoryPlace, OwnerPlace, Shape, WorkerPlace, check_memory,
};

/// The name of the group that the top level describes.
pub const STORE: &str = "store";
/// The minimum lease of a task, in ms: a quarter of it may pass between two keepalives.
const LEASE_MS_MIN: u64 = 20;
/// The maximum number of distinct features that the workers of a group have: each has a class of
/// executors, and there is one class for all.
pub const HAS_MAX: usize = 7;
/// The maximum length of a group's name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The kind of a group's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Replicas of a store of their own.
    #[default]
    Replicas,
    /// Workers, which run tasks.
    Workers,
    /// Switches that hold small keys themselves.
    Switches,
    /// Nodes of a shared memory.
    Memory,
}

impl Kind {
    /// The name of the kind, which the controller uses, too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Replicas => "replicas",
            Kind::Workers => "workers",
            Kind::Switches => "switches",
            Kind::Memory => "memory",
        }
    }
}

/// A group beside the one that the top level describes. It shares the rack's controller and switch,
/// and has an epoch, members and a switch program of its own. Keys that it leaves out have their
/// values of the top level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupPlace {
    /// Its name, for `--group` and in output: lower case letters, digits and `-`.
    pub name: String,
    /// Its number, from 1. The controller identifies the group by it, so that it must never change.
    pub number: u16,
    /// The kind of its members.
    #[serde(default)]
    pub kind: Kind,
    /// Its switch program: `harmonia`, `flair`, `forward`, `craq`, `nopaxos` or `nopaxos+harmonia`,
    /// which must fit the protocol. If left out, it follows from `protocol` and `accel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Its replication protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Where its replicas keep their data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Which writes survive a power cut of all its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// The maximum size of the data at each of its replicas; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub maxmemory: Option<Bytes>,
    /// Its replicas, head or primary first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replica: Vec<ReplicaPlace>,
    /// Workers: the time in ms that a task may run without contact to its owner; 1000 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Workers: the file with the secret that authenticates tasks, mode 0600; the same for all
    /// workers and owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Its workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worker: Vec<WorkerPlace>,
    /// The owners of its tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner: Vec<OwnerPlace>,
    /// Switches: how many of them are the chain, 1 to 8; the others are spares, one of which joins
    /// when a member has died. All if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u16>,
    /// Its switches, the head of the chain first, spares last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switch: Vec<ChainPlace>,
    /// Memory: the length of a block in bytes, 512, 1024, 2048 or 4096; 1024 if left out. A key and
    /// its value must fit into a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// Memory: the number of blocks in each of its 32 ranges; 65536 if left out. A block takes
    /// memory once it has been written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_blocks: Option<u64>,
    /// Memory: the number of blocks that each node's cache holds; 16384 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_blocks: Option<u32>,
    /// Memory: how blocks are kept coherent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coherence: Option<Coherence>,
    /// Its memory nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryPlace>,
}

/// A group of the rack, with all settings resolved.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The number of the group.
    pub id: GroupId,
    /// The name of the group.
    pub name: &'a str,
    /// The kind of its members.
    pub kind: Kind,
    /// Its switch program.
    pub program: Program,
    /// Its replication protocol.
    pub protocol: Protocol,
    /// Where its replicas keep their data.
    pub engine: Engine,
    /// Which writes survive a power cut of all its replicas.
    pub durability: Durability,
    /// The maximum size of the data at each replica.
    pub maxmemory: Bytes,
    /// Its replicas.
    pub replicas: &'a [ReplicaPlace],
    /// Its workers.
    pub workers: &'a [WorkerPlace],
    /// The owners of its tasks.
    pub owners: &'a [OwnerPlace],
    /// Its switches.
    pub switches: &'a [ChainPlace],
    /// The number of switches in the chain; the others are spares. `None`: all are members.
    pub length: Option<u16>,
    /// The file with the secret of workers and owners.
    pub key_file: Option<&'a Path>,
    /// The time that a task may run without contact to its owner, in ms.
    pub task_lease_ms: u64,
    /// Its memory nodes.
    pub nodes: &'a [MemoryPlace],
    /// The parameters of the shared memory.
    pub memory: Shape,
}

/// The maximum number of switches of a chain, with its spares.
pub const SWITCHES_MAX: usize = 2 * CHAIN_MAX;
/// The default time that a task may run without contact to its owner, in ms.
const TASK_LEASE_MS: u64 = 1_000;

impl Group<'_> {
    /// Whether the top level describes the group.
    #[must_use]
    pub fn is_store(&self) -> bool {
        self.id == GroupId::FIRST
    }

    /// The name of a member for people: `replica 2`, or `sessions replica 2` outside of the store.
    #[must_use]
    pub fn member_name(&self, role: &str, node: u16) -> String {
        if self.is_store() {
            format!("{role} {node}")
        } else {
            format!("{} {role} {node}", self.name)
        }
    }

    /// The name of a member in names of files: `replica-2`, `sessions-replica-2`.
    #[must_use]
    pub fn member_stem(&self, role: &str, node: u16) -> String {
        self.member_name(role, node).replace(' ', "-")
    }

    /// The number of switches in the chain, as long as so many are alive; the others are spares.
    #[must_use]
    pub fn chain_length(&self) -> usize {
        self.length.map_or(self.switches.len(), usize::from)
    }

    /// The time that a task may run without contact to its owner, in ns.
    #[must_use]
    pub fn task_lease_ns(&self) -> u64 {
        self.task_lease_ms.saturating_mul(MS)
    }

    /// The settings of the group for the controller.
    #[must_use]
    pub fn setup(&self) -> GroupSetup {
        let setup = match self.kind {
            Kind::Replicas => {
                let nodes = self.replicas.iter().map(|r| r.node).collect();
                GroupSetup::replicas(nodes, self.protocol.wire(), self.program)
            }
            Kind::Workers => GroupSetup::workers(self.id, self.program),
            Kind::Switches => {
                let nodes = self.switches.iter().map(|switch| switch.node).collect();
                let length = self.chain_length();
                GroupSetup::chain(self.id, Chain { length, ..Chain::new(nodes) })
            }
            Kind::Memory => GroupSetup::memory(self.id, self.program),
        };
        GroupSetup { id: self.id, ..setup }
    }

    /// Checks that the group's own settings fit together.
    ///
    /// # Errors
    /// The first settings that do not; the place is within the group's section.
    pub fn check(&self) -> Result<(), Mistake> {
        let of = if self.is_store() { String::new() } else { format!("group {}: ", self.name) };
        if !self.program.serves(self.wire_kind()) {
            let all = Program::ALL.into_iter().filter(|p| p.serves(self.wire_kind()));
            let fit: Vec<&str> = all.map(Program::name).collect();
            let (own, fit) = (self.program.name(), fit.join(", "));
            let whom = match self.kind {
                Kind::Replicas => format!("protocol {}", self.protocol.name()),
                Kind::Workers => "workers".to_string(),
                Kind::Switches => "switches".to_string(),
                Kind::Memory => "memory".to_string(),
            };
            let line = format!("{of}the program {own} does not fit {whom}; those that do: {fit}");
            return Err(Mistake::among(&["program", "accel", "protocol"], line));
        }
        let most = self.program.members_max();
        if let Some(most) = most.filter(|most| self.replicas.len() > *most) {
            let (own, name) = (self.replicas.len(), self.program.name());
            let line = format!("{of}{name} has a bit for each of up to {most} replicas, not {own}");
            return Err(Mistake::at("replica", line));
        }
        if self.replicas.len() > usize::from(REPLICAS_MAX) {
            return Err(Mistake::at("replica", format!("{of}at most {REPLICAS_MAX} replicas")));
        }
        self.check_chain(&of)
    }

    /// Whether there can be such a chain.
    fn check_chain(&self, of: &str) -> Result<(), Mistake> {
        let (own, length) = (self.switches.len(), self.chain_length());
        let has_length = (1..=CHAIN_MAX).contains(&length);
        let (key, line) = match self.length {
            Some(_) if !has_length => {
                ("length", format!("length is {length}; a chain has 1 to {CHAIN_MAX} switches"))
            }
            Some(_) if own > 0 && own < length => {
                ("length", format!("length is {length}, more than it has switches ({own})"))
            }
            Some(_) if own > SWITCHES_MAX => (
                "switch",
                format!("a chain and its spares are at most {SWITCHES_MAX} switches, not {own}"),
            ),
            None if own > CHAIN_MAX => (
                "switch",
                format!(
                    "a chain has 1 to {CHAIN_MAX} switches, not {own}; with `length` others are spares"
                ),
            ),
            _ => return Ok(()),
        };
        Err(Mistake::at(key, format!("{of}{line}")))
    }

    fn wire_kind(&self) -> GroupKind {
        match self.kind {
            Kind::Replicas => self.protocol.wire().into(),
            Kind::Workers => GroupKind::Workers,
            Kind::Switches => GroupKind::Switches,
            Kind::Memory => GroupKind::Memory,
        }
    }
}

impl GroupPlace {
    /// A group with defaults only.
    #[must_use]
    pub fn new(name: &str, number: u16, kind: Kind) -> GroupPlace {
        GroupPlace {
            name: name.to_string(),
            number,
            kind,
            program: None,
            protocol: None,
            engine: None,
            durability: None,
            maxmemory: None,
            replica: Vec::new(),
            lease_ms: None,
            key_file: None,
            worker: Vec::new(),
            owner: Vec::new(),
            length: None,
            switch: Vec::new(),
            block_bytes: None,
            range_blocks: None,
            cache_blocks: None,
            coherence: None,
            memory: Vec::new(),
        }
    }

    /// Checks that each worker runs tasks, and how many distinct features the workers have.
    fn check_workers(&self) -> Result<(), Mistake> {
        let name = &self.name;
        let mut things = BTreeSet::new();
        for (at, worker) in self.worker.iter().enumerate() {
            if worker.slots == Some(0) {
                let line =
                    format!("group {name}: slots is 0; a worker runs at least 1 task at a time");
                return Err(Mistake::at(format!("worker.{at}.slots"), line));
            }
            things.extend(&worker.has);
            if things.len() > HAS_MAX {
                let line =
                    format!("group {name}: its workers have more than {HAS_MAX} different things");
                return Err(Mistake::at(format!("worker.{at}.has"), line));
            }
        }
        Ok(())
    }

    /// The group, with the values of the top level of `rack` where it leaves them out.
    fn resolved<'a>(&'a self, rack: &Rack) -> Result<Group<'a>, Mistake> {
        let protocol = self.protocol.unwrap_or(rack.protocol);
        let program = match (&self.program, self.kind) {
            (Some(name), _) => Program::named(name).ok_or_else(|| {
                let all = Program::ALL.map(Program::name).join(", ");
                let line = format!("group {}: there is no program {name:?}, but {all}", self.name);
                Mistake::at("program", line)
            })?,
            (None, Kind::Replicas) => rack.accel.program(protocol),
            (None, Kind::Workers) => Program::OF_WORKERS,
            (None, Kind::Switches) => Program::OF_SWITCHES,
            (None, Kind::Memory) => Program::OF_MEMORY,
        };
        Ok(Group {
            id: GroupId(self.number),
            name: &self.name,
            kind: self.kind,
            program,
            protocol,
            engine: self.engine.unwrap_or(rack.engine),
            durability: self.durability.unwrap_or(rack.durability),
            maxmemory: self.maxmemory.unwrap_or(rack.maxmemory),
            replicas: &self.replica,
            workers: &self.worker,
            owners: &self.owner,
            switches: &self.switch,
            length: self.length,
            key_file: self.key_file.as_deref(),
            task_lease_ms: self.lease_ms.unwrap_or(TASK_LEASE_MS),
            nodes: &self.memory,
            memory: Shape::of(self),
        })
    }

    /// Checks that the group has only settings of its kind.
    fn check(&self) -> Result<(), Mistake> {
        let name = &self.name;
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            let line = format!(
                "group {name:?}: a name has 1 to {NAME_BYTES_MAX} lower case letters, digits and -"
            );
            return Err(Mistake::at("name", line));
        }
        if self.number == 0 {
            let line = format!("group {name}: numbers begin at 1; 0 is the store's");
            return Err(Mistake::at("number", line));
        }
        if let Some(ms) = self.lease_ms.filter(|ms| *ms < LEASE_MS_MIN) {
            let line =
                format!("group {name}: lease_ms is {ms}; it must be at least {LEASE_MS_MIN}");
            return Err(Mistake::at("lease_ms", line));
        }
        self.check_workers()?;
        check_memory(self)?;
        let of_replicas = [
            (self.protocol.is_some(), "protocol"),
            (self.engine.is_some(), "engine"),
            (self.durability.is_some(), "durability"),
            (self.maxmemory.is_some(), "maxmemory"),
            (!self.replica.is_empty(), "replica"),
        ];
        let of_workers = [
            (!self.worker.is_empty(), "worker"),
            (!self.owner.is_empty(), "owner"),
            (self.key_file.is_some(), "key_file"),
            (self.lease_ms.is_some(), "lease_ms"),
        ];
        let of_switches = [(!self.switch.is_empty(), "switch"), (self.length.is_some(), "length")];
        let of_memory = [
            (self.block_bytes.is_some(), "block_bytes"),
            (self.range_blocks.is_some(), "range_blocks"),
            (self.cache_blocks.is_some(), "cache_blocks"),
            (self.coherence.is_some(), "coherence"),
            (!self.memory.is_empty(), "memory"),
        ];
        let all = [
            (Kind::Replicas, &of_replicas[..]),
            (Kind::Workers, &of_workers),
            (Kind::Switches, &of_switches),
            (Kind::Memory, &of_memory),
        ];
        let others = all.into_iter().filter(|(kind, _)| *kind != self.kind);
        let said = others.flat_map(|(kind, keys)| keys.iter().map(move |key| (kind, key)));
        let mut foreign = said.filter(|(_, (is_there, _))| *is_there);
        foreign.next().map_or(Ok(()), |(theirs, (_, key))| {
            let is_section = ["replica", "worker", "owner", "switch", "memory"].contains(key);
            let what = if is_section { format!("[[group.{key}]]") } else { key.to_string() };
            let line = format!("group {name}: {what} is for kind = \"{}\"", theirs.name());
            Err(Mistake::at(*key, line))
        })
    }
}

impl Rack {
    /// Whether the top level describes a group; it does not if all roles of the rack are in
    /// `[[group]]`.
    pub fn has_store(&self) -> bool {
        !self.replica.is_empty() || self.group.is_empty()
    }

    /// Whether any group is served by the rack's own switch; the switches of a chain are separate.
    pub fn needs_switch(&self) -> bool {
        self.has_store() || self.group.iter().any(|group| group.kind != Kind::Switches)
    }

    /// The group that the top level describes.
    pub fn store(&self) -> Group<'_> {
        Group {
            id: GroupId::FIRST,
            name: STORE,
            kind: Kind::Replicas,
            program: self.program(),
            protocol: self.protocol,
            engine: self.engine,
            durability: self.durability,
            maxmemory: self.maxmemory,
            replicas: &self.replica,
            workers: &[],
            owners: &[],
            switches: &[],
            length: None,
            key_file: None,
            task_lease_ms: TASK_LEASE_MS,
            nodes: &[],
            memory: Shape::DEFAULT,
        }
    }

    /// All groups, the store first.
    ///
    /// # Errors
    /// One line that names an unknown program.
    pub fn groups(&self) -> Result<Vec<Group<'_>>, Error> {
        self.resolved().map_err(|mistake| Error::new(mistake.to_string()))
    }

    pub(super) fn resolved(&self) -> Result<Vec<Group<'_>>, Mistake> {
        let store = self.has_store().then(|| Ok(self.store()));
        let others = self.group.iter().enumerate().map(|(at, group)| {
            group.resolved(self).map_err(|mistake| mistake.within(&format!("group.{at}")))
        });
        store.into_iter().chain(others).collect()
    }

    /// The group whose data a gateway serves.
    ///
    /// # Errors
    /// If there is no such group of replicas.
    pub fn group_of(&self, gateway: &GatewayPlace) -> Result<Group<'_>, Error> {
        let groups = self.groups()?;
        find_served(&groups, gateway).map_err(Error::new)
    }

    /// Checks that the groups fit together, and with their gateways.
    pub(super) fn check_groups(&self) -> Result<(), Mistake> {
        for (at, group) in self.group.iter().enumerate() {
            group.check().map_err(|mistake| mistake.within(&format!("group.{at}")))?;
        }
        let groups = self.resolved()?;
        if groups.len() > SEATS_MAX {
            let line = format!("a switch has programs for {SEATS_MAX} groups");
            return Err(Mistake::at("group", line));
        }
        for (at, group) in groups.iter().enumerate() {
            let section = at.checked_sub(usize::from(self.has_store()));
            let within = |mistake: Mistake| match section {
                Some(section) => mistake.within(&format!("group.{section}")),
                None => mistake,
            };
            let name = group.name;
            if groups[..at].iter().any(|g| g.name == name) || (name == STORE && !group.is_store()) {
                let line = format!("group {name}: another one has that name");
                return Err(within(Mistake::at("name", line)));
            }
            if groups[..at].iter().any(|g| g.id == group.id) {
                let line = format!("group {name}: another one has number {}", group.id.0);
                return Err(within(Mistake::at("number", line)));
            }
            group.check().map_err(within)?;
        }
        for (at, gateway) in self.gateway.iter().enumerate() {
            find_served(&groups, gateway)
                .map_err(|line| Mistake::at(format!("gateway.{at}.group"), line))?;
        }
        Ok(())
    }
}

/// The group that a gateway names, or the first group of replicas.
fn find_served<'a>(groups: &[Group<'a>], gateway: &GatewayPlace) -> Result<Group<'a>, String> {
    let mut stores = groups.iter().filter(|group| group.kind == Kind::Replicas);
    let found = match &gateway.group {
        Some(name) => stores.clone().find(|group| group.name == name),
        None => stores.next(),
    };
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = stores.map(|group| group.name).collect();
        let (node, wanted) = (gateway.node, gateway.group.as_deref().unwrap_or("replicas"));
        format!("gateway {node}: there is no group {wanted} of replicas, only {}", names.join(", "))
    })
}

/// The member `node` of the group `name`; either may be left out if there is only one.
///
/// # Errors
/// One line that names the existing groups or numbers.
pub fn pick_member<'a, T>(
    role: &str,
    groups: &[Group<'a>],
    members: impl Fn(&Group<'a>) -> &'a [T],
    number: impl Fn(&T) -> u16,
    (name, node): (Option<&str>, Option<u16>),
) -> Result<(Group<'a>, &'a T), Error> {
    let named = |group: &&Group<'a>| name.is_none_or(|name| group.name == name);
    let own = groups.iter().filter(named).filter(|group| !members(group).is_empty());
    let own: Vec<Group<'a>> = own.copied().collect();
    if let (Some(name), true) = (name, own.is_empty()) {
        let all: Vec<&str> = groups.iter().map(|group| group.name).collect();
        let all = all.join(", ");
        return Err(Error::new(format!("no group {name} has a {role}; the groups are {all}")));
    }
    let has = |group: &Group<'a>| {
        node.is_none_or(|node| members(group).iter().any(|m| number(m) == node))
    };
    let having: Vec<Group<'a>> = own.iter().filter(|group| has(group)).copied().collect();
    let group = match (&having[..], &own[..]) {
        ([one], _) | (_, [one]) => *one,
        (_, []) => return Err(Error::new(format!("there is no {}", super::section_of(role)))),
        (_, several) => {
            let all: Vec<&str> = several.iter().map(|group| group.name).collect();
            let all = all.join(", ");
            return Err(Error::new(format!("which {role}? Say --group with one of {all}")));
        }
    };
    let member = super::pick(role, members(&group), number, node)?;
    Ok((group, member))
}
