//! Workers and owners as processes: from the rack file to the runtime.

use std::io::stdin;
use std::num::NonZero;
use std::path::Path;

use concord_runtime::driver::DriverOptions;
use concord_runtime::roles::owner::OwnerSetup;
use concord_runtime::roles::worker::WorkerSetup;
use concord_runtime::roles::{Place, owner as owner_role, worker as worker_role};
use concord_runtime::{Context as _, Error, key_file};

use super::args::{OwnerArgs, WorkerArgs};
use crate::rack::{Group, Rack, pick_member, wire};

/// The file with the rack's secret, which workers and owners need.
///
/// # Errors
/// If the rack file names none.
pub fn key_path<'a>(group: &Group<'a>) -> Result<&'a Path, Error> {
    group.key_file.ok_or_else(|| {
        let name = group.name;
        Error::new(format!("the rack file's group {name} has no key_file, which workers need"))
    })
}

/// As many tasks at a time as there are cores.
pub fn cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    u16::try_from(cores).unwrap_or(u16::MAX)
}

/// `concord worker`.
///
/// # Errors
/// One line for a person.
pub fn worker(args: &WorkerArgs) -> Result<(), Error> {
    let WorkerArgs { role, group, slots, allow_exec } = args;
    role.log.init()?;
    let rack = Rack::read(&role.config)?;
    let groups = rack.groups()?;
    let wanted = (group.as_deref(), role.node);
    let (group, own) = pick_member("worker", &groups, |g| g.workers, |w| w.node, wanted)?;
    let options = DriverOptions { supervised: role.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let exec = (*allow_exec || own.allow_exec).then(|| -> Result<Vec<String>, Error> {
        let program = std::env::current_exe().cannot("find this program")?;
        let program = program.into_os_string().into_string();
        let program = program.map_err(|_| Error::new("the path of this program is not UTF-8"))?;
        Ok(vec![program, "reap".to_string()])
    });
    let setup = WorkerSetup {
        group: group.id,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        slots: slots.or(own.slots).unwrap_or_else(cores),
        lease_ns: group.task_lease_ns(),
        key: key_file::read(key_path(&group)?)?,
        exec: exec.transpose()?,
    };
    worker_role::run(&place, &setup)
}

/// `concord owner`.
///
/// # Errors
/// One line for a person.
pub fn owner(args: &OwnerArgs) -> Result<(), Error> {
    let OwnerArgs { role, group } = args;
    role.log.init()?;
    let rack = Rack::read(&role.config)?;
    let groups = rack.groups()?;
    let wanted = (group.as_deref(), role.node);
    let (group, own) = pick_member("owner", &groups, |g| g.owners, |o| o.node, wanted)?;
    let options = DriverOptions { supervised: role.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = OwnerSetup {
        group: group.id,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        listen: own.listen,
        lease_ns: group.task_lease_ns(),
        key: key_file::read(key_path(&group)?)?,
    };
    owner_role::run(&place, &setup)
}

/// `concord reap`: what a worker starts beside itself.
pub fn reap() {
    worker_role::reap(stdin().lock());
}
