//! The rack file: the roles of a rack, with their addresses and settings. `concord up --config` and
//! every role's `--config` read the same format. Only `concord up` allows roles to be left out; it
//! places them on this host.

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

pub use groups::{Group, GroupPlace, HAS_MAX, Kind, STORE, SWITCHES_MAX, pick_member};
use mistakes::no_port;
pub use mistakes::{Misfit, Mistake};

use crate::systems::store::{
    Accel, Durability, Engine, GatewayPlace, KeyGroups, Protocol, Reads, ReplicaPlace, Table,
};
use crate::systems::{Cells, Queue};

/// The version of the rack file's format.
pub const VERSION: u32 = 1;
/// The maximum number of replicas of a rack.
pub const REPLICAS_MAX: u16 = 64;
/// The maximum number of gateways of a rack.
pub const GATEWAYS_MAX: u16 = 64;
/// The minimum of `switch_failure_ms`: a switch sends a keepalive every 100 ms.
const SWITCH_FAILURE_MS_MIN: u64 = 250;
/// The default of `switch_failure_ms`.
const SWITCH_FAILURE_MS: u64 = 300;
/// The maximum number of workers that `concord up` starts.
pub const WORKERS_MAX: u16 = 64;
/// The maximum number of standby switches of a rack.
pub const STANDBYS_MAX: u16 = 4;
/// The maximum length of a rack file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A number of bytes, written as in Redis: 100mb, 1gb, 512k, 1000.
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

/// Injected faults, for tests. Rates are per million packets that pass the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Packets that are dropped, per million.
    pub drop_per_million: u32,
    /// Packets that are duplicated, per million.
    pub duplicate_per_million: u32,
    /// Packets that are held back until later ones have passed, per million.
    pub reorder_per_million: u32,
    /// The duration of each sync of a replica's disk, in ms. Until then its file has none or half
    /// of the data, so that `kill -9` leaves what a power cut would.
    pub disk_hold_ms: u64,
    /// A directory. No sync of a replica's disk ends while it has a file with the name of the
    /// replica's log, without its extension (`replica-2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_hang: Option<PathBuf>,
    /// A directory. A replica changes one of its keys once, without a record in its log, when the
    /// directory has a file with the name of its log, without its extension (`replica-2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<PathBuf>,
    /// The seed of all decisions.
    pub seed: u64,
}

impl Faults {
    /// The rates as the switch takes them.
    #[must_use]
    pub fn rates(&self) -> FaultRates {
        FaultRates {
            seed: self.seed,
            drop_ppm: self.drop_per_million,
            duplicate_ppm: self.duplicate_per_million,
            reorder_ppm: self.reorder_per_million,
        }
    }

    /// Whether any fault of the switch is on.
    #[must_use]
    pub fn any(&self) -> bool {
        self.drop_per_million | self.duplicate_per_million | self.reorder_per_million != 0
    }
}

/// Parses the address of a role's UDP socket: `10.0.0.7:7001`, or a host name, which is resolved
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
    // The system would accept 10.1 for 10.0.0.1, as inet_aton does.
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

/// The address at which clients on other hosts reach a socket that listens at `listen`, on the host
/// of `own`.
#[must_use]
pub fn reached(listen: SocketAddr, own: SocketAddrV4) -> SocketAddr {
    let ip = if listen.ip().is_unspecified() { IpAddr::V4(*own.ip()) } else { listen.ip() };
    SocketAddr::new(ip, listen.port())
}

/// The controller, which decides which switch and which replicas are in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControllerPlace {
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the controller.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// The file with its state: epochs and switch ids, locked and fsynced (trap T3). It must not be
    /// lost. Write an absolute path: a relative one is below the directory in which the controller
    /// is started.
    pub state: PathBuf,
}

/// The active switch, through which every request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchPlace {
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the switch.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}

/// A standby switch, which takes over when the active one is silent (Harmonia §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandbyPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address, as the other roles reach it.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// The IP address and port at which it serves /metrics, /status and /health. Without it,
    /// `concord status` cannot query the switch.
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
    /// How the switch helps the protocol.
    pub accel: Accel,
    /// How a VR or Raft group answers reads that the switch does not help with.
    #[serde(skip_serializing_if = "Reads::is_default")]
    pub reads: Reads,
    /// Where replicas keep their data.
    pub engine: Engine,
    /// Which writes survive a power cut of all replicas.
    pub durability: Durability,
    /// The redis-server to start with `engine = "redis"`.
    pub redis_server: String,
    /// The maximum size of the data at each replica, such as `"512mb"`: writes that need memory are
    /// refused beyond it. 0 is no limit, and less than 1mb is refused.
    #[schemars(with = "String")]
    pub maxmemory: Bytes,
    /// The approximate size of the log that each replica keeps in memory for replicas that were
    /// away; a replica that missed more copies the data.
    #[schemars(with = "String")]
    pub log_memory: Bytes,
    /// The memory of each gateway for replies that its clients have not read, at least 128mb. One
    /// client may use a quarter of what is free. A client that leaves more unread waits; if it
    /// reads nothing for 30 s, it is disconnected.
    #[schemars(with = "String")]
    pub reply_memory: Bytes,
    /// The maximum length of a value, or other argument, that a gateway accepts from a client, 1mb
    /// to 64mb; `CONFIG SET proto-max-bulk-len` changes it until the gateway restarts. A string
    /// that results from commands has at most 64 MiB in any case.
    #[schemars(with = "String")]
    pub max_value: Bytes,
    /// The interval at which each replica reads its whole log on disk again to find damage, in
    /// seconds, at most a year; 0 is never.
    pub scrub_seconds: u64,
    /// The interval at which the replicas compare a part of their data, in ms, at most an hour; 0
    /// is never. A part has about 1,024 keys. Memory engine.
    pub compare_ms: u64,
    /// With the Redis engine: the maximum time of a script that has changed something, in seconds,
    /// 5 to 3,600. A script that takes longer is taken for an endless one, and costs a replica its
    /// redis-server.
    pub script_seconds: u64,
    /// The password that clients must AUTH with; empty for none.
    pub requirepass: String,
    /// Whether MGET, EXISTS and TOUCH of several keys read each key by itself: faster, and not
    /// atomic.
    pub split_reads: bool,
    /// The prefix of the keys that Redis clients find in the rack's chain of switches, at every
    /// gateway. If it is empty, all keys are the store's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coord_prefix: String,
    /// The duration of a lease, in ms: about the time that a rack pauses after a member died (trap
    /// T2); at most an hour, as `failure_ms`.
    pub lease_ms: u64,
    /// The time of silence after which a replica is removed, in ms.
    pub failure_ms: u64,
    /// The time of silence after which a switch is replaced by a standby, in ms. By default 300, or
    /// `failure_ms` if that is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_failure_ms: Option<u64>,
    /// Whether replies to reads pass the switch too, as they do if the switch is hardware.
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
    /// Injected faults, for tests.
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
    /// Further groups beside the one that the top level describes.
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
    /// Reads and checks a rack file, from which roles may be missing that `concord up` then places.
    ///
    /// # Errors
    /// One line with the file, the line, and the mistake.
    pub fn read(path: &Path) -> Result<Rack, Error> {
        let text = read_text(path)?;
        Rack::parse(&text).map_err(|e| Error::new(format!("{}{e}", path.display())))
    }

    /// Reads and checks a rack file that must name every role, since the rack runs or is examined.
    ///
    /// # Errors
    /// One line with the file, the line and the mistake, or with the missing section.
    pub fn read_whole(path: &Path) -> Result<Rack, Error> {
        let text = read_text(path)?;
        let rack = Rack::parse(&text);
        let whole = rack
            .and_then(|r| r.check_whole().map(|()| r).map_err(|mistake| mistake.in_file(&text)));
        whole.map_err(|e| Error::new(format!("{}{e}", path.display())))
    }

    /// The settings of the switch's programs.
    pub fn sections(&self) -> Sections {
        let (table, queue) = (self.table.settings(), self.queue.layout());
        let key_groups = self.key_groups.settings();
        let chain = self.chain.layout();
        Sections { table, queue, key_groups, chain, ..Sections::DEFAULT }
    }

    /// The switch program for the group that the top level describes.
    pub fn program(&self) -> Program {
        self.accel.program(self.protocol)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// If it cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|e| Error::new(format!("cannot write the rack file: {e}")))
    }

    /// The controller, which every role needs.
    ///
    /// # Errors
    /// If the file does not name one.
    pub fn controller(&self) -> Result<&ControllerPlace, Error> {
        self.controller.as_ref().ok_or_else(|| missing("[controller]"))
    }

    /// The switch, which every role needs.
    ///
    /// # Errors
    /// If the file does not name one.
    pub fn switch(&self) -> Result<&SwitchPlace, Error> {
        self.switch.as_ref().ok_or_else(|| missing("[switch]"))
    }

    /// The duration of a lease, in ns.
    #[must_use]
    pub fn lease_ns(&self) -> u64 {
        self.lease_ms.saturating_mul(MS)
    }

    /// The time of silence after which a replica is removed, in ns.
    #[must_use]
    pub fn failure_ns(&self) -> u64 {
        self.failure_ms.saturating_mul(MS)
    }

    /// The time of silence after which a switch is replaced, in ns.
    #[must_use]
    pub fn switch_failure_ns(&self) -> u64 {
        let ms = self.switch_failure_ms.unwrap_or(SWITCH_FAILURE_MS);
        ms.min(self.failure_ms).saturating_mul(MS)
    }
}

fn missing(section: &str) -> Error {
    Error::new(format!("there is no {section}; `concord up` writes a complete rack file"))
}

/// Reads the text of a rack file.
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

/// Adds the name of the rack file to an error about its content.
pub fn in_file(path: &Path) -> impl Fn(Error) -> Error {
    move |e| Error::new(format!("{}: {e}", path.display()))
}

/// The error for a mistake that only the affected role finds, with the file and the line.
pub fn mistake_in(path: &Path, mistake: &Mistake) -> Error {
    let text = read_text(path).unwrap_or_default();
    Error::new(format!("{}{}", path.display(), mistake.in_file(&text)))
}

/// The line of the file with `place`, as `rack.toml:7`.
pub fn line_of(path: &Path, place: &str) -> String {
    let text = read_text(path).unwrap_or_default();
    let line = Mistake::at(place, "").line_in(&text);
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    format!("{}{line}", path.display())
}

/// The header of a role's section. Workers, owners, memory nodes and a chain's switches are always
/// within a group.
fn section_of(role: &str) -> String {
    let role = if role == "node" { "memory" } else { role };
    let is_grouped = ["worker", "owner", "memory", "switch"].contains(&role);
    format!("[[{}{role}]]", if is_grouped { "group." } else { "" })
}

/// The entry of the node `wanted`, or the only entry if `wanted` is `None`.
///
/// # Errors
/// One line that names the existing numbers.
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

/// The address in the form of the wire format.
#[must_use]
pub fn wire(addr: SocketAddrV4) -> Addr {
    Addr { ip: u32::from(*addr.ip()), port: addr.port() }
}

/// The address of this host, for its own processes.
pub const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[cfg(test)]
mod tests;
