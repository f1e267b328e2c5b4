//! The rack file: who runs where, and how. One format for `concord up --config` (where roles may be
//! left out, and are then placed on this host) and for every role's `--config` (where they may not).

mod groups;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use concord_core::MS;
use concord_runtime::Error;
use concord_switch::pisa::ASIC;
use concord_switch::{FaultRates, Sections};
use concord_wire::Addr;
use concord_wire::control::Program;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use groups::{Group, GroupPlace, Kind, STORE, pick_member};

use crate::systems::falcon::Queue;
use crate::systems::store::{
    Accel, Durability, Engine, GatewayPlace, Protocol, ReplicaPlace, Table,
};

/// The version of the rack file's format.
pub const VERSION: u32 = 1;
/// Most replicas of a rack.
pub const REPLICAS_MAX: u16 = 64;
/// Most gateways of a rack.
pub const GATEWAYS_MAX: u16 = 64;
/// A switch says every 100 ms that it lives.
const SWITCH_FAILURE_MS_MIN: u64 = 250;
/// Most workers that `concord up` starts.
pub const WORKERS_MAX: u16 = 64;
/// Most standby switches of a rack.
pub const STANDBYS_MAX: u16 = 4;

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
pub fn udp_addr<'de, D: serde::Deserializer<'de>>(d: D) -> Result<SocketAddrV4, D::Error> {
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
    /// A switch that is silent for so long is replaced by one that stands by, in ms; failure_ms if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_failure_ms: Option<u64>,
    /// Replies to reads pass the switch too, as in a rack of hardware.
    pub replies_via_switch: bool,
    /// The dirty set.
    pub table: Table,
    /// The queue of tasks.
    #[serde(skip_serializing_if = "Queue::is_default")]
    pub queue: Queue,
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
            engine: Engine::default(),
            durability: Durability::default(),
            redis_server: "redis-server".to_string(),
            maxmemory: Bytes(0),
            requirepass: String::new(),
            split_reads: false,
            lease_ms: 500,
            failure_ms: 1_500,
            switch_failure_ms: None,
            replies_via_switch: false,
            table: Table::default(),
            queue: Queue::default(),
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
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(text: &str) -> Result<Rack, String> {
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
        if self.protocol == Protocol::Craq && self.accel == Accel::Harmonia {
            return Err("protocol craq runs without the switch's help: say --accel none, or \
                        accel = \"none\" in the rack file"
                .to_string());
        }
        if self.lease_ms == 0 || self.failure_ms < self.lease_ms {
            return Err("lease_ms must be above 0 and failure_ms at least as long".to_string());
        }
        let own = self.switch_failure_ms.filter(|ms| *ms < SWITCH_FAILURE_MS_MIN);
        if let Some(ms) = own.or(self.switch_failure_ms.filter(|ms| *ms > self.failure_ms)) {
            return Err(format!(
                "switch_failure_ms is {ms}; it must be from {SWITCH_FAILURE_MS_MIN} to failure_ms"
            ));
        }
        self.check_groups()?;
        let mut seen = Vec::new();
        for (name, node) in self.numbered() {
            if node == 0 || seen.contains(&name) {
                return Err(format!("{name}: numbers begin at 1 and are unique"));
            }
            seen.push(name);
        }
        self.check_addrs()?;
        let groups = self.group.iter().flat_map(|group| &group.replica);
        let shares = self.replica.iter().chain(groups).filter_map(|r| r.cpu_share);
        if let Some(share) = shares.into_iter().find(|s| !(*s > 0.0 && *s <= 1.0)) {
            return Err(format!("cpu_share is {share}; it must be above 0 and at most 1"));
        }
        self.table.layout().check().map_err(|e| format!("table: {e}"))?;
        self.queue.layout().check().map_err(|e| format!("queue: {e}"))?;
        self.check_room()
    }

    /// Whether the switch has room for the programs of all groups: one that runs alone may take more than
    /// an ASIC has.
    fn check_room(&self) -> Result<(), String> {
        let groups = self.groups().map_err(|e| e.to_string())?;
        let programs: Vec<Program> = groups.iter().map(|group| group.program).collect();
        if programs.len() < 2 {
            return Ok(());
        }
        let report =
            crate::roles::together(&programs, self.sections()).map_err(|e| e.to_string())?;
        let has_tasks = programs.contains(&Program::Falcon);
        let what = if has_tasks { "[table] or [queue]" } else { "[table]" };
        report.excess(&ASIC).map_or(Ok(()), |excess| {
            Err(format!(
                "the groups' programs do not fit on one switch: {excess}; make {what} smaller"
            ))
        })
    }

    /// What the switch's programs are told of themselves.
    pub fn sections(&self) -> Sections {
        let (table, queue) = (self.table.settings(), self.queue.layout());
        Sections { table, queue, ..Sections::DEFAULT }
    }

    /// What the switch runs for the group that the top level describes.
    pub fn program(&self) -> Program {
        self.accel.program(self.protocol)
    }

    /// Whether every role can be reached, and none where another is.
    fn check_addrs(&self) -> Result<(), String> {
        let places = self.places();
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

    /// Each role that has a number, by its name.
    fn numbered(&self) -> Vec<(String, u16)> {
        let groups = self.groups().unwrap_or_default();
        let members = groups.iter().flat_map(|group| {
            let replicas = group.replicas.iter().map(|r| ("replica", r.node));
            let workers = group.workers.iter().map(|w| ("worker", w.node));
            let owners = group.owners.iter().map(|o| ("owner", o.node));
            let all = replicas.chain(workers).chain(owners);
            all.map(|(role, node)| (group.member_name(role, node), node))
        });
        let standbys = self.standby.iter().map(|s| (format!("standby {}", s.node), s.node));
        let gateways = self.gateway.iter().map(|g| (format!("gateway {}", g.node), g.node));
        members.chain(gateways).chain(standbys).collect()
    }

    /// Each role's name, its UDP address and its HTTP address.
    fn places(&self) -> Vec<(String, SocketAddrV4, Option<SocketAddr>)> {
        let controller = self.controller.iter().map(|c| ("controller".to_string(), c.addr, c.http));
        let switch = self.switch.iter().map(|s| ("switch".to_string(), s.addr, s.http));
        let standbys = self.standby.iter().map(|s| (format!("standby {}", s.node), s.addr, s.http));
        let groups = self.groups().unwrap_or_default();
        let members = groups.iter().flat_map(|group| {
            let replicas = group.replicas.iter().map(|r| ("replica", r.node, r.addr, r.http));
            let workers = group.workers.iter().map(|w| ("worker", w.node, w.addr, w.http));
            let owners = group.owners.iter().map(|o| ("owner", o.node, o.addr, o.http));
            let all = replicas.chain(workers).chain(owners);
            all.map(|(role, node, addr, http)| (group.member_name(role, node), addr, http))
        });
        let gateways = self.gateway.iter().map(|g| (format!("gateway {}", g.node), g.addr, g.http));
        controller.chain(switch).chain(standbys).chain(members).chain(gateways).collect()
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
        self.switch_failure_ms.unwrap_or(self.failure_ms).saturating_mul(MS)
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
    fn flair_is_for_vr_and_up_to_eight_replicas() {
        let file = |more: &str| refused(&format!("accel = \"flair\"\n{more}"));
        assert!(file("").contains("program flair does not fit; those that do: forward, harmonia"));
        let replica = |n| format!("[[replica]]\nnode = {n}\naddr = \"127.0.0.1:{}\"\n", 7_100 + n);
        let replicas: String = (1..=9).map(replica).collect();
        let vr = "protocol = \"vr\"\n";
        assert!(file(&format!("{vr}{replicas}")).contains("8 replicas, not 9"));
        assert!(Rack::parse(&format!("accel = \"flair\"\n{vr}")).is_ok());
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

    const TWO: &str = "\
[[replica]]
node = 1
addr = \"127.0.0.1:1\"
[[group]]
name = \"sessions\"
number = 3
protocol = \"vr\"
program = \"forward\"
maxmemory = \"1mb\"
[[group.replica]]
node = 1
addr = \"127.0.0.1:2\"
[[group]]
name = \"tasks\"
number = 4
kind = \"workers\"
[[group.worker]]
node = 1
addr = \"127.0.0.1:3\"
[[gateway]]
node = 1
addr = \"127.0.0.1:4\"
listen = \"127.0.0.1:5\"
group = \"sessions\"
[queue]
slots = 4096
capacity = 4096
";

    #[test]
    fn a_group_has_what_it_says_and_else_what_the_top_level_does() {
        let rack = Rack::parse(TWO).unwrap();
        assert_eq!(Rack::parse(&rack.to_toml().unwrap()).unwrap(), rack);
        let groups = rack.groups().unwrap();
        let names: Vec<_> = groups.iter().map(|g| (g.name, g.id.0, g.program.name())).collect();
        assert_eq!(
            names,
            [("store", 0, "harmonia"), ("sessions", 3, "forward"), ("tasks", 4, "falcon")]
        );
        assert_eq!((groups[1].engine, groups[1].maxmemory), (Engine::Memory, Bytes(1 << 20)));
        assert_eq!(rack.group_of(&rack.gateway[0]).unwrap().name, "sessions");
        assert_eq!(groups[0].member_name("replica", 1), "replica 1");
        assert_eq!(groups[1].member_stem("replica", 1), "sessions-replica-1");
        let pick = |name, node| {
            let picked = pick_member("replica", &groups, |g| g.replicas, |r| r.node, (name, node));
            picked.map_or_else(
                |e| e.to_string(),
                |(group, own)| format!("{} {}", group.name, own.addr),
            )
        };
        assert_eq!(pick(Some("sessions"), Some(1)), "sessions 127.0.0.1:2");
        assert_eq!(pick(Some("store"), None), "store 127.0.0.1:1");
        assert_eq!(pick(None, Some(1)), "which replica? Say --group with one of store, sessions");
        let line = pick(Some("tasks"), None);
        assert!(line.contains("no group tasks has a replica"), "{line}");
        // All in groups: there is no store.
        let (_, groups) = TWO.split_once("[[group]]").unwrap();
        let rack = Rack::parse(&format!("[[group]]{groups}")).unwrap();
        let names: Vec<_> = rack.groups().unwrap().iter().map(|g| g.name).collect();
        assert_eq!(names, ["sessions", "tasks"]);
    }

    #[test]
    fn groups_that_do_not_fit_are_refused_in_a_line() {
        let but = |from: &str, to: &str| {
            assert!(TWO.contains(from));
            refused(&TWO.replace(from, to))
        };
        assert!(but("protocol = \"vr\"", "protcol = \"vr\"").ends_with("known one is `protocol`"));
        assert!(but("[[group.worker]]", "[[group.wroker]]").ends_with("known one is `worker`"));
        assert!(but("kind = \"workers\"", "kind = \"worker\"").ends_with("known one is `workers`"));
        assert!(but("number = 4", "number = 3").contains("group tasks: another one has number 3"));
        assert!(but("number = 4", "number = 0").contains("0 is the store's"));
        assert!(but("\"tasks\"", "\"sessions\"").contains("another one has that name"));
        assert!(but("\"tasks\"", "\"store\"").contains("another one has that name"));
        assert!(but("\"tasks\"", "\"Tasks\"").contains("lower case letters"));
        assert!(but("\"forward\"", "\"craq\"").contains("those that do: forward, harmonia"));
        assert!(but("\"forward\"", "\"mirror\"").contains("there is no program \"mirror\""));
        assert!(but("kind = \"workers\"\n", "").contains("is for kind = \"workers\""));
        let line = but("number = 4", "number = 4\nengine = \"redis\"");
        assert!(line.contains("group tasks: engine is for kind = \"replicas\""), "{line}");
        assert!(but("group = \"sessions\"", "group = \"tasks\"").contains("no group tasks"));
        assert!(
            but("127.0.0.1:3", "127.0.0.1:2").contains("tasks worker 1 and sessions replica 1")
        );
        let group = "[[group]]\nname = \"b\"\nnumber = 1\n[table]\nslots = 131072\n";
        let replica = "[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\n";
        let line = refused(&format!("{replica}{group}"));
        assert!(line.contains("do not fit on one switch") && line.contains("[table]"), "{line}");
        assert!(Rack::parse(&format!("{replica}[table]\nslots = 131072")).is_ok());
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
                group: None,
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
