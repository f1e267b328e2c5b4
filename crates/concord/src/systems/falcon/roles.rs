//! Workers and owners as processes, built from the rack file.

use std::collections::BTreeSet;
use std::io::stdin;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;

use concord_runtime::driver::DriverOptions;
use concord_runtime::falcon::owner::{Executors, OwnerSetup};
use concord_runtime::falcon::tasks::Functions;
use concord_runtime::falcon::worker::WorkerSetup;
use concord_runtime::falcon::{owner as owner_role, worker as worker_role};
use concord_runtime::roles::Place;
use concord_runtime::{Context as _, Error, clock, key_file};
use concord_wire::falcon::queue_of_node;

use super::args::{OwnerArgs, WorkerArgs};
use super::jobs::microseconds;
use super::section::WorkerPlace;
use crate::rack::{Group, Mistake, Rack, in_file, mistake_in, pick_member, wire};

/// The function that returns its worker's clock, CLOCK_BOOTTIME in ns as 8 bytes, big-endian: for
/// benches.
pub const CLOCK: u16 = Functions::FIRST;

/// The exit status of a worker that a user had drained: it is not restarted.
pub const DRAINED: u8 = 4;

/// The file with the rack's secret, which workers and owners need.
///
/// # Errors
/// If the rack file, which is `config`, names none.
pub fn key_path<'a>(config: &Path, group: &Group<'a>) -> Result<&'a Path, Error> {
    group.key_file.ok_or_else(|| {
        let line = format!("group {} has no key_file, which workers and owners need", group.name);
        let read = Rack::read(config).ok();
        let at = read.and_then(|rack| rack.group.iter().position(|own| own.name == group.name));
        let place = at.map_or_else(String::new, |at| format!("group.{at}.key_file"));
        mistake_in(config, &Mistake::at(place, line))
    })
}

/// The number of cores, as the number of tasks at a time.
pub fn cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    u16::try_from(cores).unwrap_or(u16::MAX)
}

/// The features that workers of a group have: the first is class 1 of executors.
fn classes(group: &Group<'_>) -> Vec<String> {
    let names: BTreeSet<&String> = group.workers.iter().flat_map(|worker| &worker.has).collect();
    names.into_iter().cloned().collect()
}

/// The queues from which a worker takes tasks: its node's, those of its features, and the common
/// one.
fn queues(group: &Group<'_>, own: &WorkerPlace, has: &[String]) -> Result<u32, Error> {
    let classes = classes(group);
    let has = if has.is_empty() { &own.has } else { has };
    let mut queues = 1 | 1 << queue_of_node(own.node);
    for name in has {
        let class = classes.iter().position(|class| class == name).ok_or_else(|| {
            Error::new(format!(
                "--has {name}: no worker of the rack file has it, so that no owner knows it: add it to a worker's `has`"
            ))
        })?;
        queues |= 2 << class;
    }
    Ok(queues)
}

/// `concord worker`. One that an owner had drained ends with [`DRAINED`].
///
/// # Errors
/// One line for a person.
pub fn worker(args: &WorkerArgs) -> Result<ExitCode, Error> {
    let WorkerArgs { role, group, slots, allow_exec, has, prefetch, drain } = args;
    let drain_us = microseconds("--drain", drain)?;
    role.log.init()?;
    let rack = Rack::read_whole(&role.config)?;
    let groups = rack.groups()?;
    let wanted = (group.as_deref(), role.node);
    let (group, own) = pick_member("worker", &groups, |g| g.workers, |w| w.node, wanted)
        .map_err(in_file(&role.config))?;
    let options = DriverOptions { supervised: role.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let exec = (*allow_exec || own.allow_exec).then(|| -> Result<Vec<String>, Error> {
        let program = std::env::current_exe().cannot("find this program")?;
        let program = program.into_os_string().into_string();
        let program = program.map_err(|_| Error::new("the path of this program is not UTF-8"))?;
        Ok(vec![program, "reap".to_string()])
    });
    let setup = WorkerSetup {
        queues: queues(&group, own, has)?,
        prefetch: prefetch.or(own.prefetch).unwrap_or(0),
        group: group.id,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        slots: slots.or(own.slots).unwrap_or_else(cores),
        lease_ns: group.task_lease_ns(),
        key: key_file::read(key_path(&role.config, &group)?)?,
        exec: exec.transpose()?,
        drain_ns: drain_us.saturating_mul(1_000),
        functions: Functions::default()
            .quick(CLOCK, |_| Ok(clock::now().instant.0.to_be_bytes().to_vec())),
    };
    let is_drained = worker_role::run(&place, &setup)?;
    Ok(if is_drained { ExitCode::from(DRAINED) } else { ExitCode::SUCCESS })
}

/// `concord owner`.
///
/// # Errors
/// One line for a person.
pub fn owner(args: &OwnerArgs) -> Result<(), Error> {
    let OwnerArgs { role, group, journal } = args;
    role.log.init()?;
    let rack = Rack::read_whole(&role.config)?;
    let groups = rack.groups()?;
    let wanted = (group.as_deref(), role.node);
    let (group, own) = pick_member("owner", &groups, |g| g.owners, |o| o.node, wanted)
        .map_err(in_file(&role.config))?;
    let options = DriverOptions { supervised: role.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = OwnerSetup {
        group: group.id,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        listen: own.listen,
        lease_ns: group.task_lease_ns(),
        key: key_file::read(key_path(&role.config, &group)?)?,
        executors: Executors {
            classes: classes(&group),
            workers: group.workers.iter().map(|own| (own.node, wire(own.addr))).collect(),
        },
        journal: journal.clone().or_else(|| own.journal.clone()),
    };
    owner_role::run(&place, &setup)
}

/// `concord reap`: a process that a worker starts beside itself.
pub fn reap() {
    worker_role::reap(stdin().lock());
}
