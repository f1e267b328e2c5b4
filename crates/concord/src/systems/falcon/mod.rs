//! Falcon: groups of workers, the owners of their tasks, and the switch's queue of tasks between
//! them.

mod args;
mod drain;
mod jobs;
mod outputs;
mod roles;
mod section;
#[cfg(feature = "lab")]
mod sim;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use concord_runtime::{Error, key_file};
use concord_wire::falcon::CLASSES_MAX;
use serde_json::{Map, Value, json};

use super::System;
use crate::cli::UpArgs;
use crate::rack::{Group, GroupPlace, HAS_MAX, Kind, LOCALHOST, Rack};
use crate::status::{Role, latency};
use crate::up::children::Children;
use crate::up::is_said;
use crate::up::place::{Ports, port_after, wanted};

pub use args::{DrainArgs, JobArgs, OwnerArgs, OwnerSelector, SubmitArgs, WorkerArgs};
pub use drain::drain;
pub use jobs::{Client, explain, microseconds, run as job, submit, task};
pub use roles::{CLOCK, DRAINED, key_path, owner, reap, worker};
pub use section::{OwnerPlace, Queue, WorkerPlace};
#[cfg(feature = "lab")]
pub use sim::simulate;

/// The number and the name of the group that `concord up` makes.
const NUMBER: u16 = 1;
const NAME: &str = "tasks";
const WORKERS: u16 = 2;
/// The default port at which the first owner is asked.
const LISTEN_PORT: u16 = 7380;
/// The minimum number of tasks that a worker of `concord up` runs at a time: commands wait more
/// than they compute.
const SLOTS_MIN: u16 = 4;

/// The check of the rack file knows the number of the queue's classes of executors: one for all,
/// and one for each feature.
const _: () = assert!(HAS_MAX + 1 == CLASSES_MAX as usize);

/// Tasks for workers.
#[derive(Debug)]
pub struct Falcon;

fn groups(rack: &mut Rack) -> impl Iterator<Item = &mut GroupPlace> {
    rack.group.iter_mut().filter(|group| group.kind == Kind::Workers)
}

impl System for Falcon {
    fn kind(&self) -> Kind {
        Kind::Workers
    }

    fn add(&self, rack: &mut Rack) {
        if groups(rack).next().is_none() {
            rack.group.push(GroupPlace::new(NAME, NUMBER, Kind::Workers));
        }
    }

    fn overlay(&self, _rack: &mut Rack, _args: &UpArgs) {}

    /// Claims the addresses at which owners listen, if they are given; `--listen` is for the
    /// gateways if there is a store.
    fn claim(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        let is_free = rack.gateway.is_empty();
        let mut next = match args.listen.filter(|_| is_free) {
            Some(listen) => listen,
            None => SocketAddr::new(IpAddr::V4(LOCALHOST), LISTEN_PORT),
        };
        for group in groups(rack) {
            let name = &group.name;
            // A journal belongs to one owner: each has a file of its own.
            let journal = |node: u16| match node {
                1 => args.run_dir.join(format!("{name}.journal")),
                _ => args.run_dir.join(format!("{name}-{node}.journal")),
            };
            for owner in &mut group.owner {
                owner.listen = ports.claim(owner.listen)?;
                if args.journal {
                    owner.journal.get_or_insert_with(|| journal(owner.node));
                }
            }
            if group.owner.is_empty() {
                let listen = ports.claim(next)?;
                let (addr, http) = (ports.udp()?, ports.http()?);
                let journal = args.journal.then(|| journal(1));
                group.owner.push(OwnerPlace { node: 1, addr, http, listen, journal });
                next.set_port(port_after(next.port(), 1).unwrap_or(LISTEN_PORT));
            }
        }
        Ok(())
    }

    fn place(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        let is_wanted = args.workers.is_some() || args.slots.is_some() || args.prefetch.is_some();
        if groups(rack).next().is_none() && is_wanted {
            let why =
                "--workers, --slots and --prefetch are for racks with workers: say --system falcon";
            return Err(Error::new(why));
        }
        for group in groups(rack) {
            // While everything is on this host's loopback, only users who can read the key can
            // submit. Beyond that, requests with the token travel in plain HTTP: then the rack file
            // has to allow it.
            let allow_exec = group.owner.iter().all(|owner| owner.listen.ip().is_loopback());
            for node in 1..=wanted("worker", group.worker.len(), args.workers, WORKERS)? {
                let (addr, http) = (ports.udp()?, ports.http()?);
                let slots = Some(args.slots.unwrap_or_else(|| roles::cores().max(SLOTS_MIN)));
                group.worker.push(WorkerPlace {
                    node,
                    addr,
                    http,
                    slots,
                    prefetch: args.prefetch,
                    allow_exec,
                    has: Vec::new(),
                });
            }
            group.key_file.get_or_insert_with(|| args.run_dir.join("key"));
        }
        Ok(())
    }

    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error> {
        for group in rack.groups()?.iter().filter(|group| group.kind == Kind::Workers) {
            key_file::make(roles::key_path(file, group)?)?;
            for worker in group.workers {
                let own = (worker.addr, worker.http);
                children.add_member(group, "worker", worker.node, file, own)?;
            }
            for owner in group.owners {
                children.add_member(group, "owner", owner.node, file, (owner.addr, owner.http))?;
            }
        }
        Ok(())
    }

    fn headline(&self, _rack: &Rack, group: &Group<'_>) -> String {
        let slots: u32 = group.workers.iter().filter_map(|w| w.slots).map(u32::from).sum();
        let workers = group.workers.len();
        format!("{workers} workers for {slots} tasks at a time, the queue in the switch (Falcon)")
    }

    fn keeps_data(&self, _group: &Group<'_>) -> bool {
        false
    }

    /// `None` once the controller has made every worker a member, and every owner answers.
    fn missing(&self, rack: &Rack) -> Option<String> {
        for group in rack.groups().iter().flatten().filter(|group| group.kind == Kind::Workers) {
            let absent = group.workers.iter().find(|worker| !is_said(worker.http, "member"));
            if let Some(worker) = absent {
                return Some(format!(
                    "{} is not a member",
                    group.member_name("worker", worker.node)
                ));
            }
            let silent = group.owners.iter().find(|owner| !is_said(owner.http, "serving"));
            if let Some(owner) = silent {
                return Some(format!("{} does not answer", group.member_name("owner", owner.node)));
            }
        }
        None
    }

    fn notes(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let mut lines = Vec::new();
        for group in groups.iter().filter(|group| group.kind == Kind::Workers) {
            if group.workers.iter().any(|worker| worker.allow_exec) {
                let key = group.key_file.map_or_else(String::new, |key| key.display().to_string());
                lines.push(format!(
                    "{}: anyone who can read {key} can run commands as you",
                    group.name
                ));
            }
            if let Some(owner) = group.owners.iter().find(|o| !o.listen.ip().is_loopback()) {
                let (name, listen) = (group.name, owner.listen);
                lines.push(match group.workers.iter().any(|worker| worker.allow_exec) {
                    true => format!(
                        "{name}: {listen} is reached from other hosts, in plain HTTP: whoever hears the token there can \
                         run commands as you"
                    ),
                    false => format!(
                        "{name}: {listen} is reached from other hosts, in plain HTTP: no commands are run; \
                         `allow_exec = true` at its workers in a rack file allows it"
                    ),
                });
            }
            if group.owners.iter().any(|owner| owner.journal.is_none()) {
                let name = group.name;
                lines.push(format!("{name}: jobs are in their owner's memory, and end with it"));
            }
        }
        lines
    }

    fn how_to_use(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let mut lines = Vec::new();
        for group in groups.iter().filter(|group| group.kind == Kind::Workers) {
            for owner in group.owners {
                lines.push(format!("Jobs of {} are submitted at {}:", group.name, owner.reached()));
            }
            let key = group.key_file.map(|key| key.with_file_name("rack.toml"));
            let file = key.map_or_else(String::new, |file| format!(" --config {}", file.display()));
            lines.push(format!("  concord submit{file} --array 0-9 --wait -- echo {{}}"));
        }
        lines
    }

    fn farewell(&self, rack: &Rack) -> Option<&'static str> {
        let has_workers = rack.group.iter().any(|group| group.kind == Kind::Workers);
        let mut owners = rack.group.iter().flat_map(|group| &group.owner);
        let keeps = owners.all(|owner| owner.journal.is_some());
        let told = if keeps {
            "Its jobs go on when it is started again."
        } else {
            "The jobs have ended with it."
        };
        has_workers.then_some(told)
    }

    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error> {
        let mut roles = Vec::new();
        for group in rack.groups()?.iter().filter(|group| group.kind == Kind::Workers) {
            let own = |w: &WorkerPlace| Role::member(group, "worker", w.node, w.addr, w.http);
            roles.extend(group.workers.iter().map(own));
            let own = |o: &OwnerPlace| {
                Role::member(group, "owner", o.node, o.addr, o.http).known_as(o.reached())
            };
            roles.extend(group.owners.iter().map(own));
        }
        Ok(roles)
    }

    fn describe(&self, role: &Value) -> Option<String> {
        let status = &role["status"];
        let gauge = |name: &str| status["gauges"][name].as_f64().unwrap_or(0.0);
        let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
        match role["role"].as_str() {
            Some("worker") => Some(format!(
                "epoch {}, {} of {} slots run, {:.0} tasks/s{}{}",
                status["epoch"],
                gauge("running"),
                gauge("slots"),
                rate("done") + rate("failed"),
                if status["exec"] == true { "" } else { ", no commands" },
                if status["draining"] == true { ", takes no more tasks" } else { "" },
            )),
            Some("owner") => Some(format!(
                "{} jobs and {} tasks open, {:.0} tasks/s, to start {}",
                gauge("jobs_open"),
                gauge("tasks_open"),
                rate("outcomes"),
                latency(&role["latencies"]["start_seconds"]),
            )),
            _ => None,
        }
    }

    fn figures(&self, _members: &[&Value]) -> Map<String, Value> {
        Map::new()
    }

    fn describe_group(&self, told: &Value) -> String {
        format!("workers, {}", told["program"].as_str().unwrap_or("?"))
    }

    fn settings(&self, group: &Group<'_>) -> Map<String, Value> {
        [("program".to_string(), json!(group.program.name()))].into_iter().collect()
    }
}
