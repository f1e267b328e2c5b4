//! The rack file: who runs where, and how. One format for `concord up --config` (where roles may be
//! left out, and are then placed on this host) and for every role's `--config` (where they may not).

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use concord_core::MS;
use concord_runtime::Error;
use concord_switch::FaultRates;
use concord_switch::harmonia::Layout;
use concord_wire::Addr;
use concord_wire::control::Program;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the rack file's format.
pub const VERSION: u32 = 1;
/// Most replicas of a rack.
pub const REPLICAS_MAX: u16 = 64;
/// Most gateways of a rack.
pub const GATEWAYS_MAX: u16 = 64;
/// Most standby switches of a rack.
pub const STANDBYS_MAX: u16 = 4;

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
    /// Viewstamped Replication: a leader orders writes, a majority acknowledges; the replicas choose
    /// the leader by themselves.
    Vr,
    /// A chain in which every replica answers reads, asking the tail about objects that are being
    /// written; without the switch's help.
    Craq,
    /// NOPaxos: the switch orders writes and sends them to all, a majority acknowledges.
    #[serde(rename = "nopaxos")]
    #[value(name = "nopaxos")]
    NoPaxos,
}

impl Protocol {
    /// As the wire names it.
    #[must_use]
    pub fn wire(self) -> concord_wire::control::Protocol {
        match self {
            Protocol::Chain => concord_wire::control::Protocol::Chain,
            Protocol::PrimaryBackup => concord_wire::control::Protocol::PrimaryBackup,
            Protocol::Vr => concord_wire::control::Protocol::Vr,
            Protocol::Craq => concord_wire::control::Protocol::Craq,
            Protocol::NoPaxos => concord_wire::control::Protocol::NoPaxos,
        }
    }
}

/// Who helps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// The switch tracks writes in flight; every replica serves reads of all other objects.
    #[default]
    Harmonia,
    /// The switch only forwards; one replica serves all reads (in CRAQ, all of them).
    None,
}

/// Where the data is.
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

/// What survives a power cut of every replica.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Nothing: the data is in memory.
    #[default]
    None,
    /// What was acknowledged: it is synced to every replica's disk before. Primary-backup, chain, CRAQ.
    Fsync,
}

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
            _ => return Err(format!("{text:?} is no size; write it like 512mb or 1gb")),
        };
        let number: u64 =
            lower[..digits].parse().map_err(|_| format!("{text:?} is no size; write 512mb"))?;
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
        #[serde(untagged)]
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

/// The size of the switch's dirty set (Harmonia §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// Stages of the hash table.
    pub stages: u8,
    /// Slots in each stage, a power of two.
    pub slots: u32,
    /// Width of the sequence counter; fewer than 32 bits to see a switch id run out.
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
    pub fn layout(&self) -> Layout {
        Layout {
            table_stages: self.stages,
            slots: self.slots,
            counter_bits: self.counter_bits,
            ..Layout::DEFAULT
        }
    }
}

/// What the switch does to packets on purpose, of a million that pass it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Lost.
    pub drop_per_million: u32,
    /// Sent twice.
    pub duplicate_per_million: u32,
    /// Overtaken by later ones.
    pub reorder_per_million: u32,
    /// Replicas' disks: what is not synced is not in the file, and a sync takes so many ms. So kill -9 takes
    /// what a power cut does.
    pub disk_hold_ms: u64,
    /// The seed of every decision.
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

/// Reads the address of a role's UDP socket: `10.0.0.7:7001`, or a host name, which is looked up once.
fn udp_addr<'de, D: serde::Deserializer<'de>>(d: D) -> Result<SocketAddrV4, D::Error> {
    lookup(&String::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// The first IPv4 address of `text`.
fn lookup(text: &str) -> Result<SocketAddrV4, String> {
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    if !text.contains(':') {
        return Err(format!("{text:?} has no port; write host:port, like 10.0.0.7:7001"));
    }
    let found = text.to_socket_addrs();
    let found = found.map_err(|e| format!("cannot look up {text:?}: {e}; write host:port"))?;
    let v4 = found.into_iter().find_map(|addr| match addr {
        SocketAddr::V4(addr) => Some(addr),
        SocketAddr::V6(_) => None,
    });
    v4.ok_or_else(|| format!("{text:?} has an IPv6 address only; roles talk over IPv4"))
}

/// The controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControllerPlace {
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Its state: epochs and switch ids, locked and fsynced (trap T3).
    pub state: PathBuf,
}

/// The switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchPlace {
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}

/// A switch that stands by: it takes over when the active one is silent (Harmonia §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandbyPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPlace {
    /// Its number, from 1; the first replica of the file is the head or primary.
    pub node: u16,
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Redis engine: the directory of its redis-server's socket and log; `replica-<node>` if not
    /// said.
    pub directory: Option<PathBuf>,
    /// Where it keeps its data; `data/replica-<node>` if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Share of a core that it may use, for benches.
    pub cpu_share: Option<f64>,
}

/// A gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayPlace {
    /// Its number, from 1.
    pub node: u16,
    /// Its UDP address.
    #[serde(deserialize_with = "udp_addr")]
    #[schemars(with = "String")]
    pub addr: SocketAddrV4,
    /// Where it serves /metrics and /status.
    #[schemars(with = "Option<String>")]
    pub http: Option<SocketAddr>,
    /// Where Redis clients connect.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
}

/// The rack file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rack {
    /// The version of this format.
    pub version: u32,
    /// How replicas replicate.
    pub protocol: Protocol,
    /// Who helps.
    pub accel: Accel,
    /// Where the data is.
    pub engine: Engine,
    /// What survives a power cut of every replica.
    pub durability: Durability,
    /// The redis-server to start with `engine = "redis"`.
    pub redis_server: String,
    /// Writes that need memory are refused beyond; 0 for no limit.
    #[schemars(with = "String")]
    pub maxmemory: Bytes,
    /// What clients must AUTH with; empty for nothing.
    pub requirepass: String,
    /// MGET, EXISTS and TOUCH of several keys are read key by key: faster, and not atomic.
    pub split_reads: bool,
    /// Length of a lease, in ms: about the pause after a member died (trap T2).
    pub lease_ms: u64,
    /// A replica that is silent for so long is taken out, in ms.
    pub failure_ms: u64,
    /// Replies to reads pass the switch too, as in a rack of hardware.
    pub replies_via_switch: bool,
    /// The dirty set.
    pub table: Table,
    /// Faults on purpose.
    pub faults: Faults,
    /// The controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerPlace>,
    /// The switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchPlace>,
    /// Switches that stand by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<StandbyPlace>,
    /// The replicas, head or primary first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replica: Vec<ReplicaPlace>,
    /// The gateways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<GatewayPlace>,
}

impl Default for Rack {
    fn default() -> Rack {
        Rack {
            version: VERSION,
            protocol: Protocol::default(),
            accel: Accel::default(),
            engine: Engine::default(),
            durability: Durability::default(),
            redis_server: "redis-server".to_string(),
            maxmemory: Bytes(0),
            requirepass: String::new(),
            split_reads: false,
            lease_ms: 500,
            failure_ms: 1_500,
            replies_via_switch: false,
            table: Table::default(),
            faults: Faults::default(),
            controller: None,
            switch: None,
            standby: Vec::new(),
            replica: Vec::new(),
            gateway: Vec::new(),
        }
    }
}

impl Rack {
    /// Reads and checks a rack file.
    ///
    /// # Errors
    /// One line with the file, the line and what is wrong there.
    pub fn read(path: &Path) -> Result<Rack, Error> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(format!("cannot read {name}: {e}")))?;
        let rack = Rack::parse(&text).map_err(|e| Error::new(format!("{name}{e}")))?;
        Ok(rack)
    }

    /// Parses and checks; an error begins with `:<line>: ` where the line is known.
    fn parse(text: &str) -> Result<Rack, String> {
        let rack: Rack = toml::from_str(text).map_err(|e| {
            let version = toml::from_str::<toml::Table>(text)
                .ok()
                .and_then(|t| t.get("version")?.as_integer());
            if let Some(version) = version.filter(|v| *v != i64::from(VERSION)) {
                return format!(": {}", other_version(version));
            }
            let line = e.span().map(|s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            let message = nearest(&e.message().replace('\n', "; "));
            line.map_or_else(|| format!(": {message}"), |line| format!(":{line}: {message}"))
        })?;
        rack.check().map_err(|e| format!(": {e}"))?;
        Ok(rack)
    }

    /// Whether the parts fit together.
    ///
    /// # Errors
    /// One line that says what does not.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(other_version(self.version.into()));
        }
        let faults = &self.faults;
        for (name, rate) in [
            ("drop", faults.drop_per_million),
            ("duplicate", faults.duplicate_per_million),
            ("reorder", faults.reorder_per_million),
        ] {
            if rate > 1_000_000 {
                return Err(format!("faults: {name} is {rate} of a million packets"));
            }
        }
        if self.protocol == Protocol::Craq && self.accel != Accel::None {
            return Err("protocol craq runs without the switch's help: say --accel none, or \
                        accel = \"none\" in the rack file"
                .to_string());
        }
        if self.durability != Durability::None && self.protocol.wire().is_quorum() {
            return Err("this protocol keeps nothing on disk yet: say --durability none, or \
                        durability = \"none\" in the rack file, or choose chain, primary-backup or craq"
                .to_string());
        }
        if self.lease_ms == 0 || self.failure_ms < self.lease_ms {
            return Err("lease_ms must be above 0 and failure_ms at least as long".to_string());
        }
        if !self.replica.is_empty() && self.replica.len() > usize::from(REPLICAS_MAX) {
            return Err(format!("at most {REPLICAS_MAX} replicas"));
        }
        let nodes = self.replica.iter().map(|r| ("replica", r.node));
        let nodes = nodes.chain(self.gateway.iter().map(|g| ("gateway", g.node)));
        let nodes = nodes.chain(self.standby.iter().map(|s| ("standby", s.node)));
        let mut seen = Vec::new();
        for place in nodes {
            if place.1 == 0 || seen.contains(&place) {
                return Err(format!("{} {}: numbers begin at 1 and are unique", place.0, place.1));
            }
            seen.push(place);
        }
        self.check_addrs()?;
        let shares = self.replica.iter().filter_map(|r| r.cpu_share);
        if let Some(share) = shares.into_iter().find(|s| !(*s > 0.0 && *s <= 1.0)) {
            return Err(format!("cpu_share is {share}; it must be above 0 and at most 1"));
        }
        self.table.layout().check().map_err(|e| format!("table: {e}"))
    }

    /// What the switch runs.
    pub fn program(&self) -> Program {
        Program::of(self.protocol.wire(), self.accel == Accel::Harmonia)
    }

    /// Whether every role can be reached, and none where another is.
    fn check_addrs(&self) -> Result<(), String> {
        let places: Vec<_> = self.places().collect();
        for (at, (name, addr, http)) in places.iter().enumerate() {
            if addr.ip().is_unspecified() || addr.ip().is_multicast() {
                return Err(format!(
                    "{name}: addr is {addr}; the others must be able to send there, so write the \
                     host's own address"
                ));
            }
            if addr.port() == 0 || http.is_some_and(|http| http.port() == 0) {
                return Err(format!("{name}: port 0; say which port it takes"));
            }
            for (other, other_addr, other_http) in &places[..at] {
                if addr == other_addr {
                    return Err(format!("{name} and {other} have one addr, {addr}"));
                }
                if http.is_some() && http == other_http {
                    return Err(format!("{name} and {other} have one http address"));
                }
            }
        }
        Ok(())
    }

    /// Each role's name, its UDP address and its HTTP address.
    fn places(&self) -> impl Iterator<Item = (String, SocketAddrV4, Option<SocketAddr>)> + '_ {
        let controller = self.controller.iter().map(|c| ("controller".to_string(), c.addr, c.http));
        let switch = self.switch.iter().map(|s| ("switch".to_string(), s.addr, s.http));
        let numbered = |role: &str, node: u16| format!("{role} {node}");
        let standby =
            self.standby.iter().map(move |s| (numbered("standby", s.node), s.addr, s.http));
        let replica =
            self.replica.iter().map(move |r| (numbered("replica", r.node), r.addr, r.http));
        let gateway =
            self.gateway.iter().map(move |g| (numbered("gateway", g.node), g.addr, g.http));
        controller.chain(switch).chain(standby).chain(replica).chain(gateway)
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
}

fn other_version(version: i64) -> String {
    format!("version is {version}; this concord reads version {VERSION}")
}

/// The message of an unknown name, with the nearest of those that were expected in place of them all.
fn nearest(message: &str) -> String {
    let Some((found, expected)) = message.split_once(", expected ") else {
        return message.to_string();
    };
    let names = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_string).collect()
    };
    let (unknown, known) = (names(found), names(expected));
    let near = unknown.first().filter(|_| found.starts_with("unknown ")).and_then(|unknown| {
        let by_distance =
            known.iter().map(|name| (strsim::damerau_levenshtein(unknown, name), name));
        by_distance.min().filter(|(distance, _)| *distance <= 1 + unknown.len() / 3)
    });
    near.map_or_else(
        || message.to_string(),
        |(_, name)| format!("{found}; the nearest known one is `{name}`"),
    )
}

fn missing(section: &str) -> Error {
    Error::new(format!("the rack file has no {section}; `concord up` writes a whole one"))
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
            _ if all.is_empty() => format!("the rack file has no [[{role}]]"),
            Some(n) => format!("the rack file has no {role} {n}, only {}", nodes.join(", ")),
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
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let line = Rack::parse(text).unwrap_err();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn an_empty_file_is_the_default_rack() {
        assert_eq!(Rack::parse("").unwrap(), Rack::default());
    }

    #[test]
    fn errors_name_the_line() {
        assert!(
            refused("protocol = \"chain\"\nacel = \"none\"\n").starts_with(":2: unknown field")
        );
        assert!(refused("\n\nprotocol = \"ring\"\n").starts_with(":3: unknown variant `ring`"));
        assert!(
            refused("acel = 1").ends_with("unknown field `acel`; the nearest known one is `accel`")
        );
        assert!(refused("protocol = \"cahin\"").ends_with("the nearest known one is `chain`"));
        assert!(refused("[switch]\naddress = 1").contains("`addr`"));
        assert!(refused("zzzzzz = 1").contains("expected one of `version`, `protocol`"));
        assert!(refused("version = 2").contains("this concord reads version 1"));
        assert!(refused("version = 2\nnew_key = 1").contains("this concord reads version 1"));
        assert!(refused("lease_ms = \"x\"").starts_with(":1: invalid type"));
        assert!(refused("a = = 1").starts_with(":1: "));
        let line = refused("[controller]\naddr = \"127.0.0.1\"\nstate = \"s\"\n");
        assert!(line.starts_with(":2: "), "{line}");
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        assert!(refused("[table]\nslots = 1000\n").contains("table: "));
        assert!(refused("[faults]\ndrop_per_million = 1000001\n").contains("drop"));
        assert!(refused("protocol = \"craq\"").contains("accel = \"none\""));
        assert!(Rack::parse("protocol = \"craq\"\naccel = \"none\"").is_ok());
        assert!(refused("lease_ms = 100\nfailure_ms = 50").contains("failure_ms"));
        let replica = "[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\n";
        assert!(refused(&format!("{replica}{replica}")).contains("replica 1"));
        assert!(refused(&format!("{replica}cpu_share = 1.5\n")).contains("cpu_share"));
        assert!(Rack::parse(replica).is_ok());
    }

    #[test]
    fn addresses_where_nobody_can_be_reached_are_refused() {
        let replica =
            |node: u16, addr: &str| format!("[[replica]]\nnode = {node}\naddr = \"{addr}\"\n");
        assert!(refused(&replica(1, "0.0.0.0:7001")).contains("the host's own address"));
        assert!(refused(&replica(1, "127.0.0.1:0")).contains("replica 1: port 0"));
        let twice = replica(1, "127.0.0.1:7001") + &replica(2, "127.0.0.1:7001");
        assert!(refused(&twice).contains("replica 2 and replica 1 have one addr, 127.0.0.1:7001"));
        assert!(refused(&replica(1, "127.0.0.1")).contains("has no port"));
        assert!(refused(&replica(1, "[::1]:7001")).contains("roles talk over IPv4"));
        assert!(refused(&replica(1, "no-such-host.invalid:7001")).contains("cannot look up"));
        let named = Rack::parse(&replica(1, "localhost:7001")).unwrap();
        assert_eq!(named.replica[0].addr, SocketAddrV4::new(LOCALHOST, 7_001));
    }

    #[test]
    fn a_whole_rack_survives_its_file() {
        let addr = |n: u16| SocketAddrV4::new(LOCALHOST, 7_000 + n);
        let http = |n: u16| Some(SocketAddr::V4(addr(n)));
        let rack = Rack {
            maxmemory: "64mb".parse().unwrap(),
            requirepass: "secret \"quoted\"".to_string(),
            split_reads: true,
            faults: Faults { drop_per_million: 10_000, ..Faults::default() },
            controller: Some(ControllerPlace {
                addr: addr(1),
                http: http(1),
                state: "run/c.state".into(),
            }),
            switch: Some(SwitchPlace { addr: addr(2), http: None }),
            standby: vec![StandbyPlace { node: 1, addr: addr(3), http: http(3) }],
            replica: vec![ReplicaPlace {
                node: 1,
                addr: addr(4),
                http: http(4),
                directory: None,
                data_dir: None,
                cpu_share: Some(0.05),
            }],
            gateway: vec![GatewayPlace {
                node: 1,
                addr: addr(5),
                http: http(5),
                listen: addr(5).into(),
            }],
            ..Rack::default()
        };
        assert_eq!(Rack::parse(&rack.to_toml().unwrap()).unwrap(), rack);
    }

    #[test]
    fn sizes_are_written_as_redis_writes_them() {
        for (text, bytes) in [("1gb", 1 << 30), ("100MB", 100 << 20), ("2k", 2_000), ("7", 7)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for text in ["", "gb", "1tb", "-1", "1.5gb", "99999999999gb"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Rack::parse("maxmemory = 5").unwrap().maxmemory, Bytes(5));
    }

    #[test]
    fn a_node_is_picked_or_the_numbers_are_named() {
        let line = |all: &[u16], wanted| match pick("replica", all, |n| *n, wanted) {
            Ok(n) => n.to_string(),
            Err(e) => e.to_string(),
        };
        assert_eq!(line(&[4], None), "4");
        assert_eq!(line(&[1, 2], Some(2)), "2");
        assert!(line(&[1, 2], Some(3)).contains("no replica 3, only 1, 2"));
        assert!(line(&[1, 2], None).contains("--node with one of 1, 2"));
        assert!(line(&[], None).contains("no [[replica]]"));
    }
}
