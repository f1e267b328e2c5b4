//! The rack file: who runs where, and how. One format for `concord up --config` (where roles may be
//! left out, and are then placed on this host) and for every role's `--config` (where they may
//! not).

mod check;
mod groups;
mod mistakes;
mod names;

use std::fmt;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use concord_core::MS;
use concord_runtime::Error;
use concord_switch::{FaultRates, Sections};
use concord_wire::Addr;
use concord_wire::control::Program;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use groups::{Group, GroupPlace, HAS_MAX, Kind, STORE, pick_member};
use mistakes::no_port;
pub use mistakes::{Misfit, Mistake};

use crate::systems::store::{
    Accel, Durability, Engine, GatewayPlace, KeyGroups, Protocol, Reads, ReplicaPlace, Table,
};
use crate::systems::{Cells, Queue};

/// The version of the rack file's format.
pub const VERSION: u32 = 1;
/// Most replicas of a rack.
pub const REPLICAS_MAX: u16 = 64;
/// Most gateways of a rack.
pub const GATEWAYS_MAX: u16 = 64;
/// A switch says every 100 ms that it lives.
const SWITCH_FAILURE_MS_MIN: u64 = 250;
/// What it is if nothing is said.
const SWITCH_FAILURE_MS: u64 = 300;
/// Most workers that `concord up` starts.
pub const WORKERS_MAX: u16 = 64;
/// Most standby switches of a rack.
pub const STANDBYS_MAX: u16 = 4;
/// Longest rack file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A number of bytes, written as Redis does: 100mb, 1gb, 512k, 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
        let unit: u64 = match &lower[digits..] {
            "" | "b" => 1,
            "k" => 1_000,
            "kb" => 1 << 10,
            "m" => 1_000_000,
            "mb" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" => 1 << 30,
            _ => return Err(format!("{text:?} is not a size; write it like 512mb or 1gb")),
        };
        let number: u64 = lower[..digits]
            .parse()
            .map_err(|_| format!("{text:?} is not a size; write it like 512mb or 1gb"))?;
        number.checked_mul(unit).map(Bytes).ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size, like \"512mb\" or 1000")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(d)? {
            Written::Number(n) => Ok(Bytes(n)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Faults that are injected on purpose, for tests. Rates are packets of a million that pass the
/// switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Dropped.
    pub drop_per_million: u32,
    /// Sent twice.
    pub duplicate_per_million: u32,
    /// Held back until later ones have passed.
    pub reorder_per_million: u32,
    /// A sync of a replica's disk takes this many ms, and until then its file has nothing of it, or
    /// half: `kill -9` then leaves what a power cut would.
    pub disk_hold_ms: u64,
    /// A directory: no sync of a replica's disk ends while a file there is called as the replica's
    /// log is, without its extension (`replica-2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_hang: Option<PathBuf>,
    /// A directory: a replica changes one of its keys behind the log's back, once, when there is a
    /// file there that is called as its log is, without its extension (`replica-2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<PathBuf>,
    /// Every decision is drawn from it.
    pub seed: u64,
}

impl Faults {
    /// As the switch names them.
    #[must_use]
    pub fn rates(&self) -> FaultRates {
        FaultRates {
            seed: self.seed,
            drop_ppm: self.drop_per_million,
            duplicate_ppm: self.duplicate_per_million,
            reorder_ppm: self.reorder_per_million,
        }
    }

    /// Whether any of the switch is on.
    #[must_use]
    pub fn any(&self) -> bool {
        self.drop_per_million | self.duplicate_per_million | self.reorder_per_million != 0
    }
}

/// Reads the address of a role's UDP socket: `10.0.0.7:7001`, or a host name, which is looked up
/// once.
pub fn udp_addr<'de, D: serde::Deserializer<'de>>(d: D) -> Result<SocketAddrV4, D::Error> {
    lookup(&String::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// The first IPv4 address of `text`.
fn lookup(text: &str) -> Result<SocketAddrV4, String> {
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("{text:?} has no port; write host:port, like 10.0.0.7:7001"));
    };
    if host.is_empty() {
        return Err(format!("{text:?} has no host; write host:port, like 10.0.0.7:7001"));
    }
    if port.parse::<u16>().is_err() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(no_port(port));
    }
    // The system would take 10.1 for 10.0.0.1, as inet_aton does.
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!(
            "{host:?} is no IPv4 address: write four numbers of 0 to 255, like 10.0.0.7"
        ));
    }
    let found = text.to_socket_addrs().map_err(|e| {
        let why = e.to_string();
        let why = why.rsplit_once("information: ").map_or(&*why, |(_, why)| why);
        format!("the host name {host:?} cannot be resolved: {why}")
    })?;
    let v4 = found.into_iter().find_map(|addr| match addr {
        SocketAddr::V4(addr) => Some(addr),
        SocketAddr::V6(_) => None,
    });
    v4.ok_or_else(|| format!("{text:?} has an IPv6 address only; roles talk over IPv4"))
}

/// Where clients on other hosts reach what listens at `listen`, on the host of `own`.
#[must_use]
pub fn reached(listen: SocketAddr, own: SocketAddrV4) -> SocketAddr {
    let ip = if listen.ip().is_unspecified() { IpAddr::V4(*own.ip()) } else { listen.ip() };
    SocketAddr::new(ip, listen.port())
}

/// The controller: it decides which switch and which replicas are in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControllerPlace {
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The file with its state: epochs and switch ids, locked and fsynced (trap T3). It must not be
    /// lost: write an absolute path; a relative one is below the directory that the controller is
    /// started in.
    pub state: PathBuf,
}

/// The active switch: every request passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchPlace {
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// IP address and port where it serves /metrics, /status and /health; without it
    /// `concord status` cannot ask it.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}

/// A standby switch: it takes over when the active one is silent (Harmonia §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandbyPlace {
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
}

/// The rack file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rack {
    /// The version of this format.
    pub version: u32,
    /// The replication protocol.
    pub protocol: Protocol,
    /// Whether the switch helps, and how.
    pub accel: Accel,
    /// How a VR or Raft group answers a read without the switch's help, or where that does not do.
    #[serde(skip_serializing_if = "Reads::is_default")]
    pub reads: Reads,
    /// Where replicas keep the data.
    pub engine: Engine,
    /// What survives a power cut of all replicas.
    pub durability: Durability,
    /// The redis-server that is started with `engine = "redis"`.
    pub redis_server: String,
    /// Limit of the data at each replica, like `"512mb"`: writes that need memory are refused
    /// beyond it. 0 is no limit, and less than 1mb is refused.
    #[schemars(with = "String")]
    pub maxmemory: Bytes,
    /// About how much of the log each replica keeps in memory for replicas that were away; who
    /// missed more copies the data.
    #[schemars(with = "String")]
    pub log_memory: Bytes,
    /// How much memory each gateway has for replies that its clients have not read, at least 128mb;
    /// one client may take a quarter of what is free of it. A client that leaves more unread waits;
    /// if it reads nothing for 30 s it is disconnected.
    #[schemars(with = "String")]
    pub reply_memory: Bytes,
    /// The longest value, or other argument, that a gateway takes from a client, 1mb to 64mb;
    /// `CONFIG SET proto-max-bulk-len` changes it until the gateway starts again. What commands
    /// make of a string has at most 64 MiB in any case.
    #[schemars(with = "String")]
    pub max_value: Bytes,
    /// How often each replica reads all of its log on disk again to find damage, in seconds, at
    /// most a year; 0 is never.
    pub scrub_seconds: u64,
    /// How often the replicas compare a part of their data, in ms, at most an hour; 0 is never. A
    /// part has about 1,024 keys. Memory engine.
    pub compare_ms: u64,
    /// With the Redis engine: how long a script that has changed something may take, in seconds, 5
    /// to 3,600; beyond that it has no end, and costs a replica its redis-server.
    pub script_seconds: u64,
    /// The password that clients must AUTH with; empty for none.
    pub requirepass: String,
    /// MGET, EXISTS and TOUCH of several keys read each key by itself: faster, and not atomic.
    pub split_reads: bool,
    /// Keys of Redis clients that begin so are those of the rack's chain of switches, at every
    /// gateway; empty, they are the store's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coord_prefix: String,
    /// Length of a lease, in ms: about how long a rack pauses after a member died (trap T2); at
    /// most an hour, as `failure_ms`.
    pub lease_ms: u64,
    /// A replica that is silent for this long is removed, in ms.
    pub failure_ms: u64,
    /// A switch that is silent for this long is replaced by a standby, in ms; 300 if left out, or
    /// `failure_ms` if that is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_failure_ms: Option<u64>,
    /// Replies to reads pass the switch too, as they do where the switch is hardware.
    pub replies_via_switch: bool,
    /// The switch's dirty set.
    pub table: Table,
    /// FLAIR's key groups.
    #[serde(skip_serializing_if = "KeyGroups::is_default")]
    pub key_groups: KeyGroups,
    /// The queue of tasks.
    #[serde(skip_serializing_if = "Queue::is_default")]
    pub queue: Queue,
    /// The keys of a chain of switches.
    #[serde(skip_serializing_if = "Cells::is_default")]
    pub chain: Cells,
    /// Injected faults.
    pub faults: Faults,
    /// The controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerPlace>,
    /// The switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchPlace>,
    /// Standby switches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<StandbyPlace>,
    /// The replicas, head or primary first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replica: Vec<ReplicaPlace>,
    /// The gateways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<GatewayPlace>,
    /// Groups beside the one that the top level describes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<GroupPlace>,
}

impl Default for Rack {
    fn default() -> Rack {
        Rack {
            version: VERSION,
            protocol: Protocol::default(),
            accel: Accel::default(),
            reads: Reads::default(),
            engine: Engine::default(),
            durability: Durability::default(),
            redis_server: "redis-server".to_string(),
            maxmemory: Bytes(0),
            log_memory: Bytes(64 << 20),
            reply_memory: Bytes(256 << 20),
            max_value: Bytes(64 << 20),
            scrub_seconds: 600,
            compare_ms: 1_000,
            script_seconds: 60,
            requirepass: String::new(),
            split_reads: false,
            coord_prefix: String::new(),
            lease_ms: 500,
            failure_ms: 1_500,
            switch_failure_ms: None,
            replies_via_switch: false,
            table: Table::default(),
            key_groups: KeyGroups::default(),
            queue: Queue::default(),
            chain: Cells::default(),
            faults: Faults::default(),
            controller: None,
            switch: None,
            standby: Vec::new(),
            replica: Vec::new(),
            gateway: Vec::new(),
            group: Vec::new(),
        }
    }
}

impl Rack {
    /// Reads and checks a rack file, which may leave out what `concord up` then places.
    ///
    /// # Errors
    /// One line with the file, the line and what is wrong there.
    pub fn read(path: &Path) -> Result<Rack, Error> {
        let text = read_text(path)?;
        Rack::parse(&text).map_err(|e| Error::new(format!("{}{e}", path.display())))
    }

    /// Reads and checks a rack file that names every role, as one that runs, or is looked at, needs
    /// it.
    ///
    /// # Errors
    /// One line with the file, the line and what is wrong there, or the section that is missing.
    pub fn read_whole(path: &Path) -> Result<Rack, Error> {
        let text = read_text(path)?;
        let rack = Rack::parse(&text);
        let whole = rack
            .and_then(|r| r.check_whole().map(|()| r).map_err(|mistake| mistake.in_file(&text)));
        whole.map_err(|e| Error::new(format!("{}{e}", path.display())))
    }

    /// What the switch's programs are told of themselves.
    pub fn sections(&self) -> Sections {
        let (table, queue) = (self.table.settings(), self.queue.layout());
        let key_groups = self.key_groups.settings();
        let chain = self.chain.layout();
        Sections { table, queue, key_groups, chain, ..Sections::DEFAULT }
    }

    /// What the switch runs for the group that the top level describes.
    pub fn program(&self) -> Program {
        self.accel.program(self.protocol)
    }

    /// The file's text.
    ///
    /// # Errors
    /// If it cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|e| Error::new(format!("cannot write the rack file: {e}")))
    }

    /// The controller, which a role cannot do without.
    ///
    /// # Errors
    /// If the file names none.
    pub fn controller(&self) -> Result<&ControllerPlace, Error> {
        self.controller.as_ref().ok_or_else(|| missing("[controller]"))
    }

    /// The switch, which a role cannot do without.
    ///
    /// # Errors
    /// If the file names none.
    pub fn switch(&self) -> Result<&SwitchPlace, Error> {
        self.switch.as_ref().ok_or_else(|| missing("[switch]"))
    }

    /// Lease length in ns.
    #[must_use]
    pub fn lease_ns(&self) -> u64 {
        self.lease_ms.saturating_mul(MS)
    }

    /// Time until a silent replica is taken out, in ns.
    #[must_use]
    pub fn failure_ns(&self) -> u64 {
        self.failure_ms.saturating_mul(MS)
    }

    /// Time until a silent switch is replaced, in ns.
    #[must_use]
    pub fn switch_failure_ns(&self) -> u64 {
        let ms = self.switch_failure_ms.unwrap_or(SWITCH_FAILURE_MS);
        ms.min(self.failure_ms).saturating_mul(MS)
    }
}

fn missing(section: &str) -> Error {
    Error::new(format!("there is no {section}; `concord up` writes a complete rack file"))
}

/// The text of a rack file.
fn read_text(path: &Path) -> Result<String, Error> {
    let name = path.display();
    let cannot = |e| Error::new(format!("cannot read {name}: {e}"));
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(Error::new(format!("{name} is no regular file")));
    }
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::new(format!("{name} is no rack file: it is larger than 1 MiB")));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::new(format!("{name} is no text file: it has bytes that are not UTF-8")))
}

/// Names the rack file before an error about what it says.
pub fn in_file(path: &Path) -> impl Fn(Error) -> Error {
    move |e| Error::new(format!("{}: {e}", path.display()))
}

/// A mistake that only the role that it concerns finds, with the file and the line.
pub fn mistake_in(path: &Path, mistake: &Mistake) -> Error {
    let text = read_text(path).unwrap_or_default();
    Error::new(format!("{}{}", path.display(), mistake.in_file(&text)))
}

/// Where the file says `place`: `rack.toml:7`.
pub fn line_of(path: &Path, place: &str) -> String {
    let text = read_text(path).unwrap_or_default();
    let line = Mistake::at(place, "").line_in(&text);
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    format!("{}{line}", path.display())
}

/// A section's header; those of workers, owners, memory nodes and a chain's switches are always
/// within a group.
fn section_of(role: &str) -> String {
    let role = if role == "node" { "memory" } else { role };
    let is_grouped = ["worker", "owner", "memory", "switch"].contains(&role);
    format!("[[{}{role}]]", if is_grouped { "group." } else { "" })
}

/// The entry of node `wanted`; the only one if none is wanted.
///
/// # Errors
/// One line that names the numbers there are.
pub fn pick<'a, T>(
    role: &str,
    all: &'a [T],
    node: impl Fn(&T) -> u16,
    wanted: Option<u16>,
) -> Result<&'a T, Error> {
    let found = match wanted {
        Some(wanted) => all.iter().find(|t| node(t) == wanted),
        None if all.len() == 1 => all.first(),
        None => None,
    };
    found.ok_or_else(|| {
        let nodes: Vec<String> = all.iter().map(|t| node(t).to_string()).collect();
        Error::new(match wanted {
            _ if all.is_empty() => format!("there is no {}", section_of(role)),
            Some(n) => format!("there is no {role} {n}, only {}", nodes.join(", ")),
            None => format!("which {role}? Say --node with one of {}", nodes.join(", ")),
        })
    })
}

/// As the wire names it.
#[must_use]
pub fn wire(addr: SocketAddrV4) -> Addr {
    Addr { ip: u32::from(*addr.ip()), port: addr.port() }
}

/// This host, for its own processes.
pub const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[cfg(test)]
mod tests;
