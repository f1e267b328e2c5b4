//! The data of a rack as a whole: `concord backup`, `concord restore`, and the start of `up` after
//! a power cut of all replicas whose disks are synced every second (docs/operate/durability.md).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use concord_log::EngineKind;
use concord_runtime::directory;
use concord_runtime::manifest;
use concord_runtime::origin::{self, State};
use concord_runtime::{Context, Error};
use serde_json::Value;

use super::{Durability, Engine, Protocol, ReplicaPlace};
use crate::cli::{BackupArgs, RestoreArgs};
use crate::net::http_get;
use crate::rack::{Group, Kind, Rack, in_file, pick_member};

const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum age of a `/status`.
const STATUS_AGE_MAX: Duration = Duration::from_millis(100);
/// The maximum time that a backup waits for a disk that has all writes acknowledged before.
const DISK_MAX: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time that a replica of the previous rack may take to end.
const LOCK_MAX: Duration = Duration::from_secs(5);

/// The data directory of a replica.
fn data_dir(group: &Group<'_>, replica: &ReplicaPlace) -> PathBuf {
    let default = || Path::new("data").join(group.member_stem("replica", replica.node));
    replica.data_dir.clone().unwrap_or_else(default)
}

fn stores<'a>(rack: &'a Rack) -> Result<Vec<Group<'a>>, Error> {
    let mut groups = rack.groups()?;
    groups.retain(|group| group.kind == Kind::Replicas && group.durability != Durability::None);
    Ok(groups)
}

/// The states of a group's replicas on this machine, the newest first.
fn states(group: &Group<'_>) -> Vec<(u16, State)> {
    let read = |replica: &ReplicaPlace| {
        let state = State::read(&data_dir(group, replica)).ok()?;
        state.is_there().then_some((replica.node, state))
    };
    let mut states: Vec<(u16, State)> = group.replicas.iter().filter_map(read).collect();
    states.sort_by_key(|(_, state)| std::cmp::Reverse(state.rank()));
    states
}

/// Whether so many replicas may lack acknowledged writes that the group cannot continue with the
/// others.
fn has_lost(group: &Group<'_>, states: &[(u16, State)]) -> bool {
    let owes = |state: &State| state.found().marks.owes;
    let has_begun = states.iter().any(|(_, state)| state.found().marks.config.is_some());
    if !has_begun || !states.iter().any(|(_, state)| owes(state)) {
        return false;
    }
    let mut intact = states.iter().filter(|(_, state)| !owes(state));
    match group.protocol {
        Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
            intact.count() < group.replicas.len() / 2 + 1
        }
        Protocol::Chain | Protocol::PrimaryBackup | Protocol::Craq => {
            let newest = states.first().map(|(_, state)| state.rank().0);
            !intact.any(|(_, state)| Some(state.rank().0) == newest)
        }
    }
}

/// Prepares the start of a rack on this machine: after a power cut of all replicas whose disks were
/// synced only every second, the rack begins anew with the newest data that is left. Returns
/// messages about that.
///
/// # Errors
/// One line.
pub fn begin_anew_if_lost(rack: &Rack) -> Result<Vec<String>, Error> {
    let groups = stores(rack)?;
    let mut locks = Vec::new();
    for dir in groups.iter().flat_map(|g| g.replicas.iter().map(|r| data_dir(g, r))) {
        if dir.exists() {
            locks.push(lock(&dir)?);
        }
    }
    let all: Vec<_> = groups.iter().map(|group| (group, states(group))).collect();
    if !all.iter().any(|(group, states)| has_lost(group, states)) {
        return Ok(Vec::new());
    }
    let mut notes = vec![
        "*** The power of all went, or all were killed: what was acknowledged in the last second may be lost. ***"
            .to_string(),
    ];
    // First, so that the state of the previous rack is never in force.
    set_aside(&rack.controller()?.state)?;
    for (group, states) in &all {
        let Some((node, state)) = states.first() else { continue };
        let id = origin::new_id()?;
        let mut dirs = Vec::new();
        for replica in group.replicas {
            let dir = data_dir(group, replica);
            let next = beside(&dir, "next");
            remove(&next)?;
            state.write(&next, Some(replica.node), id)?;
            dirs.push((dir, next));
        }
        for (dir, next) in &dirs {
            set_aside(dir)?;
            std::fs::rename(next, dir).cannot(format!("make {}", dir.display()))?;
        }
        notes.push(format!(
            "{}: a new rack begins with what replica {node} had, {} records; what there was is in {}.",
            group.name,
            state.end().position,
            dirs.iter().map(|(dir, _)| beside(dir, "before").display().to_string()).collect::<Vec<_>>().join(" ")
        ));
    }
    Ok(notes)
}

/// Locks a data directory that no replica uses, for as long as the result lives.
fn lock(dir: &Path) -> Result<std::fs::File, Error> {
    let began = Instant::now();
    loop {
        match directory::lock(dir) {
            Err(_) if began.elapsed() < LOCK_MAX => std::thread::sleep(LOOK_INTERVAL),
            done => return done,
        }
    }
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{what}"));
    PathBuf::from(name)
}

fn remove(path: &Path) -> Result<(), Error> {
    let gone = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false if path.exists() => std::fs::remove_file(path),
        false => Ok(()),
    };
    gone.cannot(format!("remove {}", path.display()))
}

/// Sets a path aside; what was set aside before is deleted.
fn set_aside(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let aside = beside(path, "before");
    remove(&aside)?;
    std::fs::rename(path, &aside).cannot(format!("set {} aside", path.display()))
}

/// `concord backup`.
///
/// # Errors
/// One line for a person.
pub fn backup(args: &BackupArgs) -> Result<(), Error> {
    if args.verify {
        let found = manifest::verify(&args.target)?;
        let (files, bytes, target) = (found.files, found.bytes, args.target.display());
        let (position, engine) = (found.origin.end.position, engine_name(found.engine));
        println!(
            "{target} is complete: {files} files, {bytes} bytes, {engine} engine, as of record {position}."
        );
        return Ok(());
    }
    if args.target.exists() {
        let target = args.target.display();
        return Err(Error::new(format!("{target} is there already: say another directory")));
    }
    let (node, state) = match &args.data_dir {
        Some(dir) => (None, State::read(dir)?),
        None => {
            let (node, state) = best(args)?;
            (Some(node), state)
        }
    };
    let origin = state.write(&args.target, None, origin::new_id()?)?;
    let of = node.map_or(String::new(), |node| format!(" of replica {node}"));
    let (position, target) = (origin.end.position, args.target.display());
    println!("Backup{of} as of record {position}, in {target}.");
    println!("concord restore {target} --run-dir NEW makes a rack of it.");
    Ok(())
}

fn engine_name(engine: Option<EngineKind>) -> &'static str {
    engine.map_or("unknown", EngineKind::name)
}

/// The `/status` of a replica.
fn status(replica: &ReplicaPlace) -> Option<Value> {
    let body = http_get(replica.http?, "/status", ASK_TIMEOUT).ok()?;
    serde_json::from_slice(&body).ok()
}

/// The newest data on this machine that has all writes acknowledged before: the replica, and its
/// state.
fn best(args: &BackupArgs) -> Result<(u16, State), Error> {
    let rack = Rack::read(&args.config)?;
    let groups = rack.groups()?;
    let wanted = (args.group.as_deref(), None);
    let has = |group: &Group<'_>| group.replicas.len();
    let (group, _) = match groups.iter().filter(|group| has(group) > 0).count() {
        0 | 1 => {
            let first = |group: &Group<'_>| group.replicas.first().map(|r| r.node);
            let node = groups.iter().find_map(first);
            pick_member("replica", &groups, |g| g.replicas, |r| r.node, (wanted.0, node))
        }
        _ => pick_member("replica", &groups, |g| &g.replicas[..has(g).min(1)], |r| r.node, wanted),
    }
    .map_err(in_file(&args.config))?;
    if group.durability == Durability::None {
        return Err(Error::new(
            "nothing is on disk (durability = \"none\"), so that there is nothing to back up",
        ));
    }
    std::thread::sleep(STATUS_AGE_MAX);
    let said: Vec<(u16, Value)> =
        group.replicas.iter().filter_map(|r| Some((r.node, status(r)?))).collect();
    let is_open =
        |node: u16| said.is_empty() || said.iter().any(|(n, s)| *n == node && s["phase"] == "open");
    let committed = |(_, status): &(u16, Value)| {
        (status["phase"] == "open").then(|| status["committed"].as_u64()).flatten()
    };
    let wanted = said.iter().filter_map(committed).max();
    let epochs = said.iter().filter(|(_, status)| status["phase"] == "open");
    let epoch = epochs.filter_map(|(_, status)| status["epoch"].as_u64()).max();
    let least = (epoch.unwrap_or(0), wanted.unwrap_or(0));
    if !said.is_empty() && wanted.is_none() {
        return Err(Error::new("no replica is a member that serves: see `concord status`"));
    }
    let began = Instant::now();
    loop {
        let states = states(&group);
        if states.is_empty() {
            let dirs: Vec<String> =
                group.replicas.iter().map(|r| data_dir(&group, r).display().to_string()).collect();
            return Err(Error::new(format!(
                "no data of the rack is on this machine: none of {} can be read",
                dirs.join(" ")
            )));
        }
        let mut own = states.into_iter().filter(|(node, _)| is_open(*node));
        let newest = own.find(|(_, state)| has_all(state.rank(), least));
        if let Some(newest) = newest {
            return Ok(newest);
        }
        if began.elapsed() > DISK_MAX {
            return Err(Error::new(format!(
                "no directory on this machine has all up to record {} of epoch or view {}: run this where a member of the group has \
                 its data",
                least.1, least.0
            )));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Whether a directory has everything that is committed: it belongs to the newest epoch or view in
/// which a replica serves, which has a single log, and its log is long enough. A directory of an
/// earlier epoch may be longer by records that were never committed, and lack records committed
/// since.
fn has_all((epoch, end): (u32, u64), (epoch_least, committed): (u64, u64)) -> bool {
    u64::from(epoch) >= epoch_least && end >= committed
}

/// `concord restore`.
///
/// # Errors
/// One line for a person.
pub fn restore(args: &RestoreArgs) -> Result<(), Error> {
    // A backup of an earlier version has no manifest: its log then says whether it is complete.
    if manifest::is_there(&args.backup) {
        manifest::verify(&args.backup)?;
    }
    let state = State::read(&args.backup)?;
    let origin = state.origin()?;
    let (dirs, engine) = targets(args)?;
    if let (Some(kept), Some(other)) = (state.engine(), engine)
        && Engine::from(kept) != other
    {
        let (backup, kept, other) = (args.backup.display(), kept.name(), other.name());
        return Err(Error::new(format!(
            "{backup} is of the {kept} engine, which the {other} engine of the rack file cannot read: say engine = \
             \"{kept}\" there"
        )));
    }
    for (_, dir) in &dirs {
        let is_empty =
            !dir.exists() || std::fs::read_dir(dir).is_ok_and(|mut d| d.next().is_none());
        if !is_empty {
            let dir = dir.display();
            return Err(Error::new(format!(
                "{dir} holds something: a backup is restored into new directories"
            )));
        }
    }
    for (node, dir) in &dirs {
        let _ = std::fs::remove_dir(dir);
        state.write(dir, Some(*node), origin.id)?;
        println!("Replica {node}: {}", dir.display());
    }
    let position = origin.end.position;
    println!(
        "Restored as of record {position}. A new rack begins with it, without the sessions of before."
    );
    if let Some(run_dir) = &args.run_dir {
        let engine = match state.engine() {
            Some(EngineKind::Redis) => " --engine redis",
            Some(EngineKind::Memory) | None => "",
        };
        println!("concord up --run-dir {} --replicas {}{engine}", run_dir.display(), dirs.len());
    }
    Ok(())
}

/// Replicas, and the data directory of each.
type Targets = Vec<(u16, PathBuf)>;

/// The replicas whose directories are to be created, and their engine if it is known. Checks that
/// no controller continues another rack there.
fn targets(args: &RestoreArgs) -> Result<(Targets, Option<Engine>), Error> {
    let mut engine = None;
    let (dirs, state) = match (&args.run_dir, &args.config, &args.data_dir) {
        (Some(run_dir), None, None) => {
            let dir = |node| (node, run_dir.join("data").join(format!("replica-{node}")));
            let dirs = (1..=args.replicas).map(dir).collect();
            (dirs, Some(run_dir.join("controller.state")))
        }
        (None, Some(config), None) => {
            let rack = Rack::read(config)?;
            let groups = rack.groups()?;
            let named = |g: &&Group<'_>| args.group.as_deref().is_none_or(|name| g.name == name);
            let mut own = groups.iter().filter(named).filter(|g| !g.replicas.is_empty());
            let (group, further) = (own.next(), own.next());
            let group = match (group, further) {
                (Some(group), None) => group,
                (None, _) => {
                    let file = config.display();
                    return Err(Error::new(format!("{file}: there is no such group of replicas")));
                }
                (Some(_), Some(_)) => {
                    return Err(Error::new("which group? Say --group with its name"));
                }
            };
            engine = Some(group.engine);
            let wanted = |r: &&ReplicaPlace| args.node.is_none_or(|node| node == r.node);
            let own = group.replicas.iter().filter(wanted);
            let dirs: Targets = own.map(|r| (r.node, data_dir(group, r))).collect();
            if dirs.is_empty() {
                return Err(Error::new(format!("{}: there is no such replica", config.display())));
            }
            (dirs, Some(rack.controller().map_err(in_file(config))?.state.clone()))
        }
        (None, None, Some(dir)) => {
            let node = args.node.ok_or_else(|| Error::new("whose is it? Say --node"))?;
            (vec![(node, dir.clone())], None)
        }
        _ => {
            return Err(Error::new(
                "where to? Say one of --run-dir, --config, or --node and --data-dir",
            ));
        }
    };
    match state {
        Some(state) if state.exists() => Err(Error::new(format!(
            "a rack was there already: {} is its state; a backup is restored for a new one",
            state.display()
        ))),
        _ => Ok((dirs, engine)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that was cut off has a tail that was not committed: its directory was longer than
    /// what is committed, and counted as having all of it.
    #[test]
    fn bug_22_135_backup_is_of_the_newest_epoch() {
        let (old_leader, follower, behind) = ((5, 120), (6, 110), (6, 109));
        let least = (6, 110);
        assert!(!has_all(old_leader, least));
        assert!(has_all(follower, least));
        assert!(!has_all(behind, least), "its disk does not have it yet");
    }
}
