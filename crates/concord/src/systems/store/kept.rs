//! `concord up` in a run directory that has data already: a rack keeps the settings with which it
//! began. Existing data is served; or, if a flag does not fit it, one line says so, and nothing was
//! written.

use std::path::{Path, PathBuf};

use concord_control::{GroupState, State};
use concord_log::Identity;
use concord_runtime::{Error, directory, state_file};
use concord_wire::GroupId;

use super::{Accel, Durability, Engine, Protocol};
use crate::rack::{Group, Kind, Rack, STORE};

/// The directory of the replicas' data in the run directory.
pub const DATA: &str = "data";

/// Existing data of a replica.
struct ReplicaData {
    dir: PathBuf,
    /// The name of its group, and the replica's number.
    group: String,
    node: u16,
    identity: Identity,
}

/// The state before this start.
pub struct Earlier<'a> {
    /// The run directory.
    pub run_dir: &'a Path,
    /// The rack file of the previous run.
    pub rack: Option<&'a Rack>,
}

/// Whether a run directory has data of a store, with which `rack` then continues.
///
/// # Errors
/// One line that names the flag that does not fit the data.
pub fn check(earlier: &Earlier<'_>, rack: &Rack) -> Result<bool, Error> {
    let kept = all(earlier, rack)?;
    let groups = rack.groups()?;
    let before = earlier.rack.map(Rack::groups).transpose()?.unwrap_or_default();
    let state = known_state(earlier, rack, !kept.is_empty())?;
    let known = |group: &str| known_group(state.as_ref(), group, &groups, &before);
    for own in kept.iter().filter(|own| is_member(known(&own.group), own.node)) {
        fits(own, &groups, &before)?;
    }
    for group in groups.iter().filter(|group| group.kind == Kind::Replicas) {
        let Some(own) = kept.iter().find(|own| own.group == group.name) else { continue };
        let was = before.iter().find(|was| was.name == group.name);
        if let Some(known) = known(group.name) {
            runs_the_same(own, group, known)?;
            has_its_members(own, group, known)?;
        } else if let Some(was) = was
            && (was.protocol, was.program) != (group.protocol, group.program)
        {
            return Err(begun_as(own, group, was.protocol, Accel::of(was.program)));
        }
    }
    Ok(!kept.is_empty())
}

/// The groups in the controller's state whose data ended with their processes.
pub fn gone(earlier: &Earlier<'_>, rack: &Rack) -> Result<Vec<GroupId>, Error> {
    let kept = all(earlier, rack)?;
    let before = earlier.rack.map(Rack::groups).transpose()?.unwrap_or_default();
    let groups = rack.groups()?;
    let ended = |group: &&Group<'_>| {
        let was = before.iter().find(|was| was.id == group.id);
        let kept_nothing = was.is_some_and(|was| was.durability == Durability::None);
        (kept_nothing || group.durability == Durability::None)
            && !kept.iter().any(|own| own.group == group.name)
    };
    let stores = groups.iter().filter(|group| group.kind == Kind::Replicas);
    Ok(stores.filter(ended).map(|group| group.id).collect())
}

/// Every directory with data of a replica: those in the run directory, and those that either rack
/// file names.
fn all(earlier: &Earlier<'_>, rack: &Rack) -> Result<Vec<ReplicaData>, Error> {
    let mut places: Vec<(PathBuf, String, u16)> = Vec::new();
    for rack in earlier.rack.into_iter().chain([rack]) {
        for group in rack.groups()? {
            for replica in group.replicas {
                let dir = replica.data_dir.clone();
                places.extend(dir.map(|dir| (dir, group.name.to_string(), replica.node)));
            }
        }
    }
    for entry in std::fs::read_dir(earlier.run_dir.join(DATA)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((group, node)) = name.to_str().and_then(member) else { continue };
        places.push((entry.path(), group.to_string(), node));
    }
    let mut kept: Vec<ReplicaData> = Vec::new();
    for (dir, group, node) in places {
        let is_known = kept.iter().any(|own| is_same(&own.dir, &dir));
        if !is_known && let Some(identity) = directory::whose(&dir)? {
            kept.push(ReplicaData { dir, group, node, identity });
        }
    }
    Ok(kept)
}

/// The group and the number of the replica that has a directory of this name.
fn member(name: &str) -> Option<(&str, u16)> {
    let (prefix, node) = name.rsplit_once("replica-")?;
    let group = if prefix.is_empty() { STORE } else { prefix.strip_suffix('-')? };
    Some((group, node.parse().ok()?))
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|o| o == one))
}

/// The controller's state. It is looked for only where it was.
fn known_state(earlier: &Earlier<'_>, rack: &Rack, has_data: bool) -> Result<Option<State>, Error> {
    let path = &rack.controller()?.state;
    let before = earlier.rack.and_then(|rack| rack.controller.as_ref()).map(|place| &place.state);
    if let Some(before) = before.filter(|before| has_data && before.exists() && !path.exists()) {
        let (path, before) = (path.display(), before.display());
        return Err(Error::new(format!(
            "the controller's state of the data that is kept is in {before}, and {path} is not there: say \
             state = \"{before}\" in the rack file, or another --run-dir and data_dir"
        )));
    }
    // The controller reports what is wrong with a damaged one.
    Ok(state_file::look(path).unwrap_or_default())
}

/// The state of the group with this name, whose number one of the rack files has.
fn known_group<'a>(
    state: Option<&'a State>,
    name: &str,
    groups: &[Group<'_>],
    before: &[Group<'_>],
) -> Option<&'a GroupState> {
    let named = before.iter().chain(groups).find(|group| group.name == name);
    let id = named.map(|group| group.id).or((name == STORE).then_some(GroupId(0)))?;
    state?.group(id)
}

/// Whether the data counts: that of a replica that was removed for good does not.
fn is_member(known: Option<&GroupState>, node: u16) -> bool {
    known.is_none_or(|known| {
        let config = &known.config;
        config.members.iter().chain(&config.joining).any(|member| member.node == node)
    })
}

/// Checks that the rack has this replica, with this directory and engine, and with data on disk.
fn fits(own: &ReplicaData, groups: &[Group<'_>], before: &[Group<'_>]) -> Result<(), Error> {
    let (dir, name, node) = (own.dir.display(), &own.group, own.node);
    let stores = || groups.iter().filter(|group| group.kind == Kind::Replicas);
    let Some(group) = stores().find(|group| group.name == name) else {
        let hint = if name == STORE { "say --system store" } else { "put its [[group]] back" };
        return Err(Error::new(format!(
            "{dir} has data of the group {name}, which this rack does not have: {hint}, or another --run-dir"
        )));
    };
    if group.durability == Durability::None {
        return Err(Error::new(format!(
            "{dir} has data, and --durability none would begin without: leave it out, or say another --run-dir"
        )));
    }
    let Some(replica) = group.replicas.iter().find(|replica| replica.node == node) else {
        let count = before.iter().find(|was| was.name == name).map(|was| was.replicas.len());
        let count = count.unwrap_or(usize::from(node)).max(usize::from(node));
        return Err(Error::new(format!(
            "{dir} has the data of replica {node}, a member of {name}, which this rack leaves out: say --replicas \
             {count}, or another --run-dir; a replica is removed while the rack runs (docs/operate/operations.md)"
        )));
    };
    if !replica.data_dir.as_ref().is_some_and(|place| is_same(place, &own.dir)) {
        let place = replica.data_dir.as_ref().map_or(String::new(), |p| p.display().to_string());
        return Err(Error::new(format!(
            "{dir} has the data of replica {node}, and the rack file gives it data_dir {place:?}: move the directory \
             there, or change data_dir back"
        )));
    }
    let was = before.iter().find(|was| was.name == name).map(|was| was.engine);
    let engine = own.identity.engine.map(Engine::from).or(was);
    if let Some(engine) = engine.filter(|engine| *engine != group.engine) {
        let (engine, other) = (engine.name(), group.engine.name());
        return Err(Error::new(format!(
            "{dir} was kept with the {engine} engine, which the {other} engine cannot read: say --engine {engine}, or \
             another --run-dir"
        )));
    }
    Ok(())
}

fn begun_as(own: &ReplicaData, group: &Group<'_>, protocol: Protocol, accel: Accel) -> Error {
    let (protocol, accel) = (protocol.name(), accel.name());
    Error::new(format!(
        "{} was begun with --protocol {protocol} --accel {accel}, and a rack keeps these ({} now): say them again, \
         or make a backup and restore it into another --run-dir",
        own.dir.display(),
        format_args!("{} and {}", group.protocol.name(), Accel::of(group.program).name()),
    ))
}

/// Checks that protocol and switch program are those with which the rack began.
fn runs_the_same(own: &ReplicaData, group: &Group<'_>, known: &GroupState) -> Result<(), Error> {
    let config = &known.config;
    let is_same =
        config.protocol() == Some(group.protocol.wire()) && config.program == group.program;
    let protocol = config.protocol().map(Protocol::from);
    match protocol {
        Some(protocol) if !is_same => {
            Err(begun_as(own, group, protocol, Accel::of(config.program)))
        }
        _ => Ok(()),
    }
}

/// Checks that all members have data; and, if a majority decides, that no other replica has.
fn has_its_members(own: &ReplicaData, group: &Group<'_>, known: &GroupState) -> Result<(), Error> {
    let members: Vec<u16> = known.config.members.iter().map(|member| member.node).collect();
    let nodes: Vec<u16> = group.replicas.iter().map(|replica| replica.node).collect();
    let (dir, name, count) = (own.dir.display(), group.name, members.len());
    if let Some(missing) = members.iter().find(|node| !nodes.contains(node)) {
        return Err(Error::new(format!(
            "{dir} is of a group with replica {missing} as a member, which this rack leaves out of {name}: say \
             --replicas {count}, or another --run-dir; a replica is removed while the rack runs \
             (docs/operate/operations.md)"
        )));
    }
    let more = nodes.iter().find(|node| !members.contains(node));
    if let Some(more) = more.filter(|_| group.protocol.has_leader()) {
        let (protocol, wanted) = (group.protocol.name(), nodes.len());
        return Err(Error::new(format!(
            "{dir} is of a {protocol} group, which keeps the {count} replicas that it began with, and replica {more} is \
             none of them: say --replicas {count}, or make a backup and restore it with --replicas {wanted} into \
             another --run-dir"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_directory_says_whose_it_is() {
        assert_eq!(member("replica-3"), Some((STORE, 3)));
        assert_eq!(member("my-replica-group-replica-12"), Some(("my-replica-group", 12)));
        for other in ["replica-1.before", "replica-1.damaged-1", "replica-", "xreplica-1", "x"] {
            assert_eq!(member(other), None, "{other}");
        }
    }
}
