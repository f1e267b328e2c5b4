//! Whether the parts of a rack file fit together.

use std::net::{SocketAddr, SocketAddrV4};

use concord_switch::pisa::ASIC;
use concord_wire::control::Program;

use super::mistakes::{Mistake, other_version, unreadable};
use super::{Kind, Rack, SWITCH_FAILURE_MS_MIN, VERSION, reached};

/// Where a role is.
struct Place {
    /// `replica 2`
    name: String,
    /// Its section: `replica.1`
    section: String,
    addr: SocketAddrV4,
    http: Option<SocketAddr>,
    /// Where it serves clients.
    listen: Option<SocketAddr>,
}

impl Place {
    /// What it listens at for TCP, and the key that says so; port 0 is any that is free.
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
    /// Parses and checks; an error begins with `:<line>: ` where the line is known.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(text: &str) -> Result<Rack, String> {
        let rack: Rack = toml::from_str(text).map_err(|e| unreadable(text, &e))?;
        rack.check().map_err(|mistake| mistake.in_file(text))?;
        Ok(rack)
    }

    /// Whether the parts fit together.
    ///
    /// # Errors
    /// What does not.
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
        if let Some(line) = self.accel.misfit(self.protocol) {
            return Err(Mistake::among(&["accel", "protocol"], line));
        }
        if let Some(line) = self.reads.misfit(self.protocol, self.accel) {
            return Err(Mistake::among(&["reads", "accel", "protocol"], line));
        }
        self.check_times()?;
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
        self.check_room()
    }

    /// No path is empty.
    fn check_paths(&self) -> Result<(), Mistake> {
        let state =
            self.controller.iter().map(|c| ("controller.state".to_string(), Some(&c.state)));
        let data = self.replica.iter().enumerate();
        let data = data.map(|(at, r)| (format!("replica.{at}.data_dir"), r.data_dir.as_ref()));
        let all = state.chain(data);
        for (key, path) in all {
            if path.is_some_and(|path| path.as_os_str().is_empty()) {
                let (_, name) = key.rsplit_once('.').unwrap_or(("", &key));
                let line = format!("{name} is empty: write a path");
                return Err(Mistake::at(key, line));
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Mistake> {
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

    fn check_shares(&self) -> Result<(), Mistake> {
        let own = self.replica.iter().enumerate().map(|(at, r)| (format!("replica.{at}"), r));
        let groups = self.group.iter().enumerate().flat_map(|(group, place)| {
            let all = place.replica.iter().enumerate();
            all.map(move |(at, r)| (format!("group.{group}.replica.{at}"), r))
        });
        for (section, replica) in own.chain(groups) {
            if let Some(share) = replica.cpu_share.filter(|s| !(*s > 0.0 && *s <= 1.0)) {
                let line = format!("cpu_share is {share}; it must be above 0 and at most 1");
                return Err(Mistake::at(format!("{section}.cpu_share"), line));
            }
        }
        Ok(())
    }

    /// Whether the switch has room for the programs of all groups: one that runs alone may take more than
    /// an ASIC has.
    fn check_room(&self) -> Result<(), Mistake> {
        let groups = self.resolved()?;
        let programs: Vec<Program> = groups.iter().map(|group| group.program).collect();
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

    /// Whether every role can be reached, and none where another is.
    fn check_addrs(&self) -> Result<(), Mistake> {
        let places = self.places();
        for (at, place) in places.iter().enumerate() {
            let Place { name, addr, .. } = place;
            if addr.ip().is_unspecified() || addr.ip().is_multicast() {
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

    /// Each role that has a number: its name, its section, its number.
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

    /// Where the members of all groups are, each with its number.
    fn members(&self) -> Vec<(Place, u16)> {
        let mut all = Vec::new();
        for group in self.groups().unwrap_or_default() {
            let at = self.group.iter().position(|place| place.name == group.name);
            let within = at.filter(|_| !group.is_store());
            let within = within.map_or_else(String::new, |at| format!("group.{at}."));
            let mut add = |role: &str, at: usize, node, addr, http, listen| {
                let name = group.member_name(role, node);
                let section = format!("{within}{role}.{at}");
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
        }
        all
    }

    /// Where each role is.
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

/// Whether two TCP addresses cannot both be had: `0.0.0.0` is every address of its role's own host.
fn is_same(place: &Place, addr: SocketAddr, other: &Place, taken: SocketAddr) -> bool {
    reached(addr, place.addr) == reached(taken, other.addr)
}
