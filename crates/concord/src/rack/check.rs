//! The check that the parts of a rack file fit together.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use concord_switch::pisa::ASIC;
use concord_wire::control::Program;
use concord_wire::netcraq::NAME_BYTES_MAX;
use toml::de::DeTable;

use super::mistakes::{Mistake, other_version, unreadable};
use super::{Bytes, Kind, Rack, SWITCH_FAILURE_MS_MIN, VERSION, reached};
use crate::systems::store::{Reads, ReplicaPlace};

/// The maximum of `lease_ms`, `failure_ms` and `compare_ms`: an hour.
const SILENCE_MS_MAX: u64 = 3_600_000;
/// The maximum and the minimum of `script_seconds`. A script that changes nothing is stopped within
/// the minimum.
const SCRIPT_SECONDS_MAX: u64 = 3_600;
const SCRIPT_SECONDS_MIN: u64 = 5;
/// The maximum of `scrub_seconds`: a year.
const SCRUB_SECONDS_MAX: u64 = 31_536_000;
/// The minimum limit of the data, in bytes: with less, the unit was probably forgotten.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The minimum and the maximum of `max_value`, in bytes.
const VALUE_BYTES_MIN: u64 = 1 << 20;
const MAX_VALUE_MOST: u64 = 64 << 20;

/// The minimum of `reply_memory`, in bytes, which a gateway uses in any case.
const REPLY_MEMORY_BYTES_MIN: u64 = concord_runtime::roles::gateway::REPLIES_BYTES_MIN as u64;

/// The addresses of a role.
struct Place {
    /// The name of the role, such as `replica 2`.
    name: String,
    /// The section of the role, such as `replica.1`.
    section: String,
    addr: SocketAddrV4,
    http: Option<SocketAddr>,
    /// The address at which it serves clients.
    listen: Option<SocketAddr>,
}

impl Place {
    /// Its TCP addresses, each with the key in the file; port 0 stands for any free port.
    fn tcp(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let all = [("http", self.http), ("listen", self.listen)];
        let all = all.into_iter().filter_map(|(key, addr)| Some((key, addr?)));
        all.filter(|(_, addr)| addr.port() != 0)
    }

    fn wrong(&self, key: &str, message: String) -> Mistake {
        Mistake::at(format!("{}.{key}", self.section), message)
    }
}

impl Rack {
    /// Parses and checks a rack file. An error begins with `:<line>: ` if the line is known.
    ///
    /// # Errors
    /// One line with the mistake.
    pub fn parse(text: &str) -> Result<Rack, String> {
        let rack: Rack = toml::from_str(text).map_err(|e| unreadable(text, &e))?;
        let says_reads =
            DeTable::parse(text).is_ok_and(|file| file.get_ref().contains_key("reads"));
        let checked = rack.check().and_then(|()| match says_reads {
            true => rack.check_said_reads(),
            false => Ok(()),
        });
        checked.map_err(|mistake| mistake.in_file(text))?;
        Ok(rack)
    }

    /// Checks that the file names everything that a running rack has: `concord up` places roles
    /// that a file leaves out, a role cannot.
    ///
    /// # Errors
    /// The missing section.
    pub fn check_whole(&self) -> Result<(), Mistake> {
        let has_member = self.group.iter().any(|group| {
            let stores_and_tasks =
                [group.replica.is_empty(), group.worker.is_empty(), group.owner.is_empty()];
            let others = [group.switch.is_empty(), group.memory.is_empty()];
            stores_and_tasks.contains(&false) || others.contains(&false)
        });
        let has_role = self.controller.is_some()
            || self.switch.is_some()
            || !(self.standby.is_empty() && self.replica.is_empty() && self.gateway.is_empty());
        if !has_member && !has_role {
            let line =
                "names no role; a rack has [controller], [switch], [[replica]] and [[gateway]]";
            return Err(Mistake::among(&[], line));
        }
        let lacks = |section: &str| {
            let line = format!("there is no {section}; `concord up` writes a complete rack file");
            Mistake::among(&[], line)
        };
        if self.controller.is_none() {
            return Err(lacks("[controller]"));
        } else if self.needs_switch() && self.switch.is_none() {
            return Err(lacks("[switch]"));
        } else if self.has_store() && self.replica.is_empty() {
            return Err(lacks("[[replica]]"));
        }
        for (at, group) in self.group.iter().enumerate() {
            let (role, is_empty) = match group.kind {
                Kind::Replicas => ("replica", group.replica.is_empty()),
                Kind::Workers => ("worker", group.worker.is_empty()),
                Kind::Switches => ("switch", group.switch.is_empty()),
                Kind::Memory => ("memory", group.memory.is_empty()),
            };
            if is_empty {
                let line = format!("group {} has no [[group.{role}]]", group.name);
                return Err(Mistake::at(format!("group.{at}"), line));
            }
        }
        for place in self.places() {
            if place.listen.is_some_and(|listen| listen.port() == 0) {
                let line = format!("{}: port 0; say which port it takes", place.name);
                return Err(place.wrong("listen", line));
            }
        }
        Ok(())
    }

    /// Checks that `reads`, if it was given, applies to a group with a leader.
    ///
    /// # Errors
    /// If it would be ignored.
    pub fn check_said_reads(&self) -> Result<(), Mistake> {
        let groups = self.resolved()?;
        let mut stores = groups.iter().filter(|group| group.kind == Kind::Replicas);
        if self.reads == Reads::LeaderLease && !stores.any(|group| group.protocol.has_leader()) {
            return Err(Mistake::of_misfit(&["reads"], &Reads::LEADERLESS));
        }
        Ok(())
    }

    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), Mistake> {
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
                let key = format!("{name}_per_million");
                let line = format!("{key} is {rate}; it must be at most 1000000");
                return Err(Mistake::at(format!("faults.{key}"), line));
            }
        }
        if let Some(misfit) = self.accel.misfit(self.protocol) {
            return Err(Mistake::of_misfit(&["accel", "protocol"], &misfit));
        }
        if let Some(misfit) = self.reads.misfit(self.protocol, self.accel) {
            return Err(Mistake::of_misfit(&["reads", "accel", "protocol"], &misfit));
        }
        self.check_times()?;
        self.check_coord()?;
        self.check_memory()?;
        self.check_paths()?;
        self.check_groups()?;
        let mut seen = Vec::new();
        for (name, section, node) in self.numbered() {
            let section = format!("{section}.node");
            if node == 0 {
                return Err(Mistake::at(section, format!("{name}: numbers begin at 1")));
            } else if seen.contains(&name) {
                return Err(Mistake::at(section, format!("there are two of {name}")));
            }
            seen.push(name);
        }
        self.check_addrs()?;
        self.check_shares()?;
        let table = self.table.layout().check();
        table.map_err(|e| Mistake::at("table", format!("table: {e}")))?;
        self.key_groups.check().map_err(|(key, line)| {
            Mistake::at(format!("key_groups.{key}"), format!("key_groups.{key} is {line}"))
        })?;
        let queue = self.queue.layout().check();
        queue.map_err(|e| Mistake::at("queue", format!("queue: {e}")))?;
        let chain = self.chain.layout().check();
        chain.map_err(|e| Mistake::at("chain", format!("chain: {e}")))?;
        self.check_room()
    }

    /// Checks that no path is empty, or one that only a shell understands.
    fn check_paths(&self) -> Result<(), Mistake> {
        let state =
            self.controller.iter().map(|c| ("controller.state".to_string(), Some(&c.state)));
        let data = self.all_replicas().flat_map(|(section, r)| {
            let own = [("data_dir", r.data_dir.as_ref()), ("directory", r.directory.as_ref())];
            own.map(|(key, path)| (format!("{section}.{key}"), path))
        });
        let groups = self.group.iter().enumerate().flat_map(|(at, group)| {
            let owners = group.owner.iter().enumerate();
            let journals = owners
                .map(move |(n, o)| (format!("group.{at}.owner.{n}.journal"), o.journal.as_ref()));
            journals.chain([(format!("group.{at}.key_file"), group.key_file.as_ref())])
        });
        for (key, path) in state.chain(data).chain(groups) {
            let Some(path) = path else { continue };
            let (_, name) = key.rsplit_once('.').unwrap_or(("", &key));
            if path.as_os_str().is_empty() {
                let line = format!("{name} is empty: write a path");
                return Err(Mistake::at(key, line));
            }
            if path.as_os_str().as_encoded_bytes().starts_with(b"~") {
                let line =
                    format!("{name} begins with ~, which only a shell knows: write the whole path");
                return Err(Mistake::at(key, line));
            }
        }
        Ok(())
    }

    /// Checks that a prefix belongs to a single chain, and leaves room for keys.
    fn check_coord(&self) -> Result<(), Mistake> {
        let prefix = &self.coord_prefix;
        if prefix.is_empty() {
            return Ok(());
        }
        let chains = self.group.iter().filter(|group| group.kind == Kind::Switches).count();
        let line = match (chains, prefix.len() < NAME_BYTES_MAX && !prefix.contains('\0')) {
            (1, true) => return Ok(()),
            (_, false) => {
                format!("coord_prefix: keys of a chain have {NAME_BYTES_MAX} bytes at most, none of them 0")
            }
            (0, true) => "coord_prefix is for the keys of a chain; there is no [[group]] of kind = \"switches\"".into(),
            (count, true) => format!("coord_prefix is for the keys of one chain; there are {count}"),
        };
        Err(Mistake::at("coord_prefix", line))
    }

    /// Checks that no limit of the data is so small that its unit was probably forgotten.
    fn check_memory(&self) -> Result<(), Mistake> {
        let groups = self.group.iter().enumerate();
        let groups =
            groups.filter_map(|(at, g)| Some((format!("group.{at}.maxmemory"), g.maxmemory?)));
        for (key, Bytes(bytes)) in
            [("maxmemory".to_string(), self.maxmemory)].into_iter().chain(groups)
        {
            if (1..MEMORY_BYTES_MIN).contains(&bytes) {
                let line = format!(
                    "maxmemory is {bytes} bytes; it must be at least 1mb, or 0 for no limit: the units \
                     are kb, mb and gb"
                );
                return Err(Mistake::at(key, line));
            }
        }
        if self.script_seconds < SCRIPT_SECONDS_MIN {
            let line = format!(
                "script_seconds is {}; it must be at least {SCRIPT_SECONDS_MIN}",
                self.script_seconds
            );
            return Err(Mistake::at("script_seconds", line));
        }
        if !(VALUE_BYTES_MIN..=MAX_VALUE_MOST).contains(&self.max_value.0) {
            let line = "max_value must be from 1mb to 64mb: no reply is longer";
            return Err(Mistake::at("max_value", line));
        }
        if self.reply_memory.0 < REPLY_MEMORY_BYTES_MIN {
            let line = "reply_memory must be at least 128mb: two replies of 64 MiB";
            return Err(Mistake::at("reply_memory", line));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Mistake> {
        let groups = self.group.iter().enumerate();
        let groups = groups.filter_map(|(at, g)| {
            Some((format!("group.{at}.lease_ms"), g.lease_ms?, SILENCE_MS_MAX))
        });
        let all = [
            ("lease_ms", self.lease_ms, SILENCE_MS_MAX),
            ("failure_ms", self.failure_ms, SILENCE_MS_MAX),
            ("compare_ms", self.compare_ms, SILENCE_MS_MAX),
            ("scrub_seconds", self.scrub_seconds, SCRUB_SECONDS_MAX),
            ("script_seconds", self.script_seconds, SCRIPT_SECONDS_MAX),
        ];
        let all = all.map(|(key, value, most)| (key.to_string(), value, most));
        for (key, value, most) in all.into_iter().chain(groups) {
            if value > most {
                let name = key.rsplit('.').next().unwrap_or(&key);
                let line = format!("{name} is {value}; it must be at most {most}");
                return Err(Mistake::at(key, line));
            }
        }
        if self.lease_ms == 0 {
            return Err(Mistake::at("lease_ms", "lease_ms must be above 0"));
        }
        if self.failure_ms < self.lease_ms {
            let line = format!(
                "failure_ms is {}; it must be at least lease_ms, which is {}",
                self.failure_ms, self.lease_ms
            );
            return Err(Mistake::among(&["failure_ms", "lease_ms"], line));
        }
        match self.switch_failure_ms {
            Some(ms) if ms < SWITCH_FAILURE_MS_MIN || ms > self.failure_ms => Err(Mistake::at(
                "switch_failure_ms",
                format!(
                    "switch_failure_ms is {ms}; it must be from {SWITCH_FAILURE_MS_MIN} to \
                     failure_ms, which is {}",
                    self.failure_ms
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// All replicas, each with its section.
    fn all_replicas(&self) -> impl Iterator<Item = (String, &ReplicaPlace)> {
        let own = self.replica.iter().enumerate().map(|(at, r)| (format!("replica.{at}"), r));
        let groups = self.group.iter().enumerate().flat_map(|(group, place)| {
            let all = place.replica.iter().enumerate();
            all.map(move |(at, r)| (format!("group.{group}.replica.{at}"), r))
        });
        own.chain(groups)
    }

    fn check_shares(&self) -> Result<(), Mistake> {
        for (section, replica) in self.all_replicas() {
            if let Some(share) = replica.cpu_share.filter(|s| !(*s > 0.0 && *s <= 1.0)) {
                let line = format!("cpu_share is {share}; it must be above 0 and at most 1");
                return Err(Mistake::at(format!("{section}.cpu_share"), line));
            }
        }
        Ok(())
    }

    /// Checks that the switch has room for the programs of all groups. A program that runs alone
    /// may take more than an ASIC has.
    fn check_room(&self) -> Result<(), Mistake> {
        let groups = self.resolved()?;
        // Each switch of a chain is a separate switch.
        let shared = groups.iter().filter(|group| group.kind != Kind::Switches);
        let programs: Vec<Program> = shared.map(|group| group.program).collect();
        if programs.len() < 2 {
            return Ok(());
        }
        let sections = ["table", "key_groups", "queue", "group"];
        let wrong = |line| Mistake::among(&sections, line);
        let report = crate::roles::together(&programs, self.sections());
        let report = report.map_err(|e| wrong(e.to_string()))?;
        let has_tasks = groups.iter().any(|group| group.kind == Kind::Workers);
        let what = if has_tasks { "[table] or [queue]" } else { "[table]" };
        report.excess(&ASIC).map_or(Ok(()), |excess| {
            Err(wrong(format!(
                "the groups' programs do not fit on one switch: {excess}; make {what} smaller"
            )))
        })
    }

    /// Checks that every role can be reached, and that no two have the same address.
    fn check_addrs(&self) -> Result<(), Mistake> {
        let places = self.places();
        for (at, place) in places.iter().enumerate() {
            let Place { name, addr, .. } = place;
            let ip = addr.ip();
            if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
                let line = format!(
                    "{name}: addr is {addr}; the others must be able to send there, so write the \
                     host's own address"
                );
                return Err(place.wrong("addr", line));
            }
            if addr.port() == 0 {
                return Err(place.wrong("addr", format!("{name}: port 0; say which port it takes")));
            }
            if let Some(http) = place.http.filter(|http| http.ip().is_unspecified()) {
                let line = format!(
                    "{name}: http is {http}; `concord status` asks there, so write the host's own \
                     address"
                );
                return Err(place.wrong("http", line));
            }
            if place.http.is_some_and(|http| http.port() == 0) {
                return Err(place.wrong("http", format!("{name}: port 0; say which port it takes")));
            }
            if let (Some(http), Some(listen)) = (place.http, place.listen)
                && is_same(place, http, place, listen)
            {
                let line = format!("{name}: http and listen are one address, {http}");
                return Err(place.wrong("http", line));
            }
            let far = places.iter().find(|other| !other.addr.ip().is_loopback());
            if let (true, Some(far)) = (ip.is_loopback(), far) {
                let line = format!(
                    "{name}: addr is {addr}, which other hosts cannot reach, and {} is at {}: write the \
                     host's own address",
                    far.name, far.addr
                );
                return Err(place.wrong("addr", line));
            }
            for other in &places[..at] {
                let their = &other.name;
                if *addr == other.addr {
                    let line = format!("{name} and {their} have one addr, {addr}");
                    return Err(place.wrong("addr", line));
                }
                for (key, tcp) in place.tcp() {
                    let taken = other.tcp().find(|(_, taken)| is_same(place, tcp, other, *taken));
                    if let Some((their_key, _)) = taken {
                        let line = format!(
                            "{name}: {key} is {tcp}, which is {their_key} of {their} already"
                        );
                        return Err(place.wrong(key, line));
                    }
                }
            }
        }
        Ok(())
    }

    /// Each role with a number: its name, its section, its number.
    fn numbered(&self) -> Vec<(String, String, u16)> {
        let members =
            self.members().into_iter().map(|(place, node)| (place.name, place.section, node));
        let standbys = self.standby.iter().enumerate();
        let standbys = standbys
            .map(|(at, s)| (format!("standby {}", s.node), format!("standby.{at}"), s.node));
        let gateways = self.gateway.iter().enumerate();
        let gateways = gateways
            .map(|(at, g)| (format!("gateway {}", g.node), format!("gateway.{at}"), g.node));
        members.chain(gateways).chain(standbys).collect()
    }

    /// The addresses of the members of all groups, each with its number.
    fn members(&self) -> Vec<(Place, u16)> {
        let mut all = Vec::new();
        for group in self.groups().unwrap_or_default() {
            let at = self.group.iter().position(|place| place.name == group.name);
            let within = at.filter(|_| !group.is_store());
            let within = within.map_or_else(String::new, |at| format!("group.{at}."));
            let mut add = |role: &str, at: usize, node, addr, http, listen| {
                let name = group.member_name(role, node);
                let key = if role == "node" { "memory" } else { role };
                let section = format!("{within}{key}.{at}");
                all.push((Place { name, section, addr, http, listen }, node));
            };
            for (at, r) in group.replicas.iter().enumerate() {
                add("replica", at, r.node, r.addr, r.http, None);
            }
            for (at, w) in group.workers.iter().enumerate() {
                add("worker", at, w.node, w.addr, w.http, None);
            }
            for (at, o) in group.owners.iter().enumerate() {
                add("owner", at, o.node, o.addr, o.http, Some(o.listen));
            }
            for (at, s) in group.switches.iter().enumerate() {
                add("switch", at, s.node, s.addr, s.http, None);
            }
            for (at, n) in group.nodes.iter().enumerate() {
                add("node", at, n.node, n.addr, n.http, Some(n.listen));
            }
        }
        all
    }

    /// The address of the host, if the file has the address of any role: all roles of `concord up`
    /// are on one host.
    pub fn host(&self) -> Option<Ipv4Addr> {
        self.places().first().map(|place| *place.addr.ip())
    }

    /// The addresses of each role.
    fn places(&self) -> Vec<Place> {
        let one = |name: String, section: String, addr, http| Place {
            name,
            section,
            addr,
            http,
            listen: None,
        };
        let controller = self.controller.iter();
        let controller = controller
            .map(|c| one("controller".to_string(), "controller".to_string(), c.addr, c.http));
        let switch = self.switch.iter();
        let switch =
            switch.map(|s| one("switch".to_string(), "switch".to_string(), s.addr, s.http));
        let standbys = self.standby.iter().enumerate().map(|(at, s)| {
            one(format!("standby {}", s.node), format!("standby.{at}"), s.addr, s.http)
        });
        let members = self.members().into_iter().map(|(place, _)| place);
        let gateways = self.gateway.iter().enumerate().map(|(at, g)| {
            let place = one(format!("gateway {}", g.node), format!("gateway.{at}"), g.addr, g.http);
            Place { listen: Some(g.listen), ..place }
        });
        controller.chain(switch).chain(standbys).chain(members).chain(gateways).collect()
    }
}

/// Whether two TCP addresses conflict: `0.0.0.0` is every address of its role's own host.
fn is_same(place: &Place, addr: SocketAddr, other: &Place, taken: SocketAddr) -> bool {
    reached(addr, place.addr) == reached(taken, other.addr)
}
