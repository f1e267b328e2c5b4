//! The controller's state on disk: locked, written as a whole, fsynced (trap T3).
//!
//! The format is postcard after a magic number and a checksum. A write goes to a temporary file
//! beside the state's, which is fsynced and renamed over the old one, and the directory is fsynced:
//! after a power cut the file holds the old state or the new one. A controller that died between
//! the rename and the last fsync has told nobody; but the state that its successor reads could
//! still vanish, so opening syncs the directory before the state is used. The lock is on a file of
//! its own, because the rename replaces the state's.
//!
//! A reserve file beside it holds room back for writes to a full disk. A write that fails before
//! the rename has had no effect, and may be tried again: each attempt begins with a new file, so
//! that no earlier failure of a sync is forgotten. If it fails after the rename, its effect is not
//! known.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use concord_control::{GroupState, NotStored, State};
use concord_core::Guards;
use concord_core::hash::hash64;
use concord_wire::GroupId;
use concord_wire::control::Config;
use rustix::fs::{FlockOperation, flock, statvfs};
use serde::{Deserialize, Serialize};

use crate::directory::{create, sync};
use crate::disk::hold;
use crate::error::{Context, Error, is_full};

/// The bytes held back for the state.
const RESERVE_BYTES: u64 = 1 << 20;
const MAGIC: &[u8; 8] = b"CNCRDST6";
/// The seed of the checksum. It differs from those of earlier formats, whose magic numbers differ
/// in a bit or two.
const SEED: u64 = 6;
/// The magic number of the format before, which has no data directories. It is read, and never
/// written.
const MAGIC_5: &[u8; 8] = b"CNCRDST5";
const SEED_5: u64 = 5;
/// The magic number of the format before that, which has one group, whose configuration names the
/// rack. It is read, and never written.
const MAGIC_4: &[u8; 8] = b"CNCRDST4";
const HEADER_BYTES: usize = 16;

/// The file. This process holds its lock for as long as the value exists.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    _lock: File,
    /// The fault that writes meet, in tests.
    #[cfg(test)]
    pub(crate) fault: Fault,
}

/// The reason that a state was not written.
#[derive(Debug)]
pub enum Unwritten {
    /// The disk failed.
    Disk(NotStored, Error),
    /// The state does not follow the stored one, and must not be used any more.
    Superseded(Error),
}

#[cfg(test)]
impl Unwritten {
    fn why(&self) -> Option<NotStored> {
        match self {
            Unwritten::Disk(why, _) => Some(*why),
            Unwritten::Superseded(_) => None,
        }
    }
}

/// The step at which a write fails.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    Write,
    Rename,
    Sync,
}

impl StateFile {
    /// Locks and reads the file. The state is `None` if the file does not exist yet.
    ///
    /// # Errors
    /// Another controller holds it, it is damaged, or the system refuses.
    pub fn open(path: &Path) -> Result<(StateFile, Option<State>), Error> {
        let directory = parent(path);
        create(&directory)?;
        let lock_path = with_suffix(path, "lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.cannot(format!("open {}", lock_path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(format!(
                "another controller holds {}; one rack has one controller",
                path.display()
            ))
        })?;
        let state = read(path)?;
        // The controller that renamed it may have died before the directory was synced.
        sync(&directory).cannot(format!("sync {}", directory.display()))?;
        let file = StateFile {
            path: path.to_path_buf(),
            _lock: lock,
            #[cfg(test)]
            fault: Fault::None,
        };
        file.reserve();
        Ok((file, state))
    }

    /// Replaces the state durably, if and only if it follows the stored one. The stored one is read
    /// again: the lock does not hold if its file was removed, nor on every network disk.
    ///
    /// # Errors
    /// The state does not follow, or the disk refuses: then it must not be told to anyone.
    pub fn write(&mut self, state: &State) -> Result<(), Unwritten> {
        let refused = |error| Unwritten::Disk(NotStored::Refused, error);
        let stored = read(&self.path).map_err(refused)?;
        if !state.follows(stored.as_ref(), Guards::ALL) {
            let stored = stored.map_or(0, |stored| stored.version);
            return Err(Unwritten::Superseded(Error::new(format!(
                "{}: state {} does not follow the stored {stored}: another controller writes there; \
                 one rack has one controller",
                self.path.display(),
                state.version,
            ))));
        }
        let bytes = encode(state).cannot("encode the controller's state").map_err(refused)?;
        let done = self.replace(&bytes);
        self.reserve();
        done.map_err(|(why, error)| {
            let error = Err::<(), _>(error).cannot(format!("write {}", self.path.display()));
            Unwritten::Disk(why, error.err().unwrap_or(Error::new("")))
        })
    }

    /// Whether there is no room but the reserve, if that is held.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let held = std::fs::metadata(self.reserve_path()).is_ok_and(|m| m.len() >= RESERVE_BYTES);
        let free = statvfs(parent(&self.path)).map_or(u64::MAX, |d| d.f_bavail * d.f_frsize);
        !held || free < RESERVE_BYTES
    }

    fn reserve_path(&self) -> PathBuf {
        with_suffix(&self.path, "reserve")
    }

    /// Reserves room, unless that is done. If the file system cannot, an empty reserve file shows
    /// that it was tried.
    pub fn reserve(&self) {
        let path = self.reserve_path();
        if std::fs::metadata(&path).is_ok_and(|m| m.len() >= RESERVE_BYTES) {
            return;
        }
        match hold(&path, RESERVE_BYTES) {
            Err(error) if is_full(&error) => drop(std::fs::remove_file(&path)),
            Err(_) => drop(File::create(&path).and_then(|file| file.set_len(RESERVE_BYTES))),
            Ok(()) => {}
        }
    }

    fn replace(&self, bytes: &[u8]) -> Result<(), (NotStored, std::io::Error)> {
        let temporary = with_suffix(&self.path, "new");
        let mut put = self.put(&temporary, bytes);
        if put.as_ref().is_err_and(is_full) {
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(self.reserve_path());
            put = self.put(&temporary, bytes);
        }
        put.map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            let why = if is_full(&error) { NotStored::Full } else { NotStored::Refused };
            (why, error)
        })?;
        #[cfg(test)]
        self.fail_at(Fault::Sync).map_err(|error| (NotStored::Unknown, error))?;
        sync(&parent(&self.path)).map_err(|error| (NotStored::Unknown, error))
    }

    /// Moves the state into its place. Whether that is durable is not known yet.
    fn put(&self, temporary: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = File::create(temporary)?;
        file.write_all(bytes)?;
        #[cfg(test)]
        self.fail_at(Fault::Write)?;
        file.sync_all()?;
        #[cfg(test)]
        self.fail_at(Fault::Rename)?;
        std::fs::rename(temporary, &self.path)
    }

    #[cfg(test)]
    fn fail_at(&self, step: Fault) -> std::io::Result<()> {
        match self.fault == step {
            true => Err(std::io::Error::from(rustix::io::Errno::IO)),
            false => Ok(()),
        }
    }
}

/// The state in a file, without locking it; `None` if there is none.
///
/// # Errors
/// It is damaged, or the system refuses.
pub fn look(path: &Path) -> Result<Option<State>, Error> {
    read(path)
}

/// Removes groups from a state whose data is gone with the processes that had it: they are founded
/// anew. Switch ids continue above those that were used.
///
/// # Errors
/// A controller holds the file, or as [`StateFile::write`].
pub fn forget(path: &Path, groups: &[GroupId]) -> Result<(), Error> {
    let is_there = look(path)?;
    let is_meant = |group: &GroupState| groups.contains(&group.config.group);
    if !is_there.is_some_and(|state| state.groups.iter().any(is_meant)) {
        return Ok(());
    }
    let (mut file, Some(mut state)) = StateFile::open(path)? else { return Ok(()) };
    state.groups.retain(|group| !is_meant(group));
    state.version += 1;
    file.write(&state).map_err(|unwritten| match unwritten {
        Unwritten::Disk(_, error) | Unwritten::Superseded(error) => error,
    })
}

/// The stored state; `None` if there is none yet.
fn read(path: &Path) -> Result<Option<State>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => decode(&bytes).map(Some).ok_or_else(|| {
            Error::new(format!(
                "{} is damaged or of another version; move it away, and start with --recover to \
                 make it anew from what the replicas have heard",
                path.display()
            ))
        }),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).cannot(format!("read {}", path.display())),
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn encode(state: &State) -> Result<Vec<u8>, postcard::Error> {
    let body = postcard::to_allocvec(state)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&hash64(SEED, &body).to_be_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

pub(crate) fn decode(bytes: &[u8]) -> Option<State> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (sum, body) = rest.split_first_chunk::<8>()?;
    let is_sum = |seed| u64::from_be_bytes(*sum) == hash64(seed, body);
    match magic {
        MAGIC if is_sum(SEED) => postcard::from_bytes(body).ok(),
        MAGIC_5 if is_sum(SEED_5) => postcard::from_bytes::<State5>(body).ok().map(State::from),
        MAGIC_4 if is_sum(0) => postcard::from_bytes::<State4>(body).ok().map(State::from),
        _ => None,
    }
}

/// The state in the format before.
#[derive(Serialize, Deserialize)]
struct State5 {
    version: u64,
    rack: u64,
    switch_incarnation: u64,
    last_switch_id: u32,
    retired_switches: Vec<u64>,
    groups: Vec<(Config, Vec<u16>)>,
}

impl From<State5> for State {
    fn from(old: State5) -> State {
        let groups = old.groups.into_iter();
        State {
            version: old.version,
            rack: old.rack,
            switch_incarnation: old.switch_incarnation,
            last_switch_id: old.last_switch_id,
            retired_switches: old.retired_switches,
            groups: groups.map(|(config, caught_up)| group_of(config, caught_up)).collect(),
        }
    }
}

/// A group without known data directories.
fn group_of(config: Config, caught_up: Vec<u16>) -> GroupState {
    GroupState { config, caught_up, storages: Vec::new() }
}

/// The state in the format before that.
#[derive(Serialize, Deserialize)]
struct State4 {
    version: u64,
    config: Option<Config>,
    switch_incarnation: u64,
    last_switch_id: u32,
    retired_switches: Vec<u64>,
    caught_up: Vec<u16>,
}

impl From<State4> for State {
    fn from(old: State4) -> State {
        let caught_up = old.caught_up;
        State {
            version: old.version,
            rack: old.config.as_ref().map_or(0, |c| c.rack),
            switch_incarnation: old.switch_incarnation,
            last_switch_id: old.last_switch_id,
            retired_switches: old.retired_switches,
            groups: old.config.map(|config| group_of(config, caught_up)).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_wire::control::{Member, Program, Protocol};
    use concord_wire::{Addr, GroupId};

    use crate::directory::tests::SYNCED;

    /// A directory that is gone with its test.
    struct Directory(PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn directory(name: &str) -> Directory {
        let unique = format!("concord-state-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }

    fn state(version: u64) -> State {
        State { version, last_switch_id: 7, ..State::default() }
    }

    /// A second controller on the same file is refused until the first ends.
    #[test]
    fn t3_second_controller_on_the_file_is_refused() {
        let directory = directory("lock");
        let path = directory.0.join("controller.state");
        let (first, none) = StateFile::open(&path).unwrap();
        assert_eq!(none, None);
        let line = StateFile::open(&path).unwrap_err().to_string();
        assert!(line.contains("another controller holds") && !line.contains('\n'), "{line}");
        drop(first);
        StateFile::open(&path).unwrap();
    }

    /// What was written is read and a write that does not follow is refused.
    #[test]
    fn t3_state_round_trip_and_refused_write() {
        let directory = directory("cas");
        let path = directory.0.join("controller.state");
        {
            let (mut file, _) = StateFile::open(&path).unwrap();
            file.write(&state(1)).unwrap();
            assert!(file.write(&state(1)).is_err());
            assert!(file.write(&state(3)).is_err());
            file.write(&state(2)).unwrap();
        }
        let (mut file, read) = StateFile::open(&path).unwrap();
        assert_eq!(read, Some(state(2)));
        assert!(file.write(&state(2)).is_err());
        file.write(&state(3)).unwrap();
    }

    #[test]
    fn t3_two_controllers_that_both_hold_a_lock_cannot_both_write() {
        let directory = directory("fence");
        let path = directory.0.join("controller.state");
        let (mut first, _) = StateFile::open(&path).unwrap();
        first.write(&state(1)).unwrap();
        std::fs::remove_file(with_suffix(&path, "lock")).unwrap();
        let (mut second, read) = StateFile::open(&path).unwrap();
        assert_eq!(read, Some(state(1)));
        second.write(&state(2)).unwrap();
        let Unwritten::Superseded(line) = first.write(&state(2)).unwrap_err() else { panic!() };
        assert!(line.to_string().contains("another controller writes there"), "{line}");
        second.write(&state(3)).unwrap();
    }

    /// What was renamed before a crash is durable before it is used.
    #[test]
    fn bug_15_13_renamed_file_is_durable_before_use() {
        let directory = directory("renamed");
        let path = directory.0.join("controller.state");
        StateFile::open(&path).unwrap().0.write(&state(1)).unwrap();
        // Another controller renamed its state there, and died before it synced the directory.
        SYNCED.with_borrow_mut(Vec::clear);
        assert_eq!(StateFile::open(&path).unwrap().1, Some(state(1)));
        assert_eq!(SYNCED.with_borrow(Vec::clone), std::slice::from_ref(&directory.0));
    }

    /// A failure before the rename leaves the state of before, and the next write may succeed;
    /// after it nobody knows which of the two a power cut leaves.
    #[test]
    fn bug_22_130_failed_write_says_what_is_stored() {
        let directory = directory("failed");
        let path = directory.0.join("controller.state");
        let (mut file, _) = StateFile::open(&path).unwrap();
        file.write(&state(1)).unwrap();
        let cases = [(Fault::Write, NotStored::Refused), (Fault::Rename, NotStored::Refused)];
        for (fault, why) in cases {
            file.fault = fault;
            assert_eq!(file.write(&state(2)).unwrap_err().why(), Some(why), "{fault:?}");
            assert_eq!(read(&path).unwrap(), Some(state(1)), "{fault:?}");
            assert!(!with_suffix(&path, "new").exists(), "{fault:?}");
        }
        file.fault = Fault::None;
        file.write(&state(2)).unwrap();
        file.fault = Fault::Sync;
        assert_eq!(file.write(&state(3)).unwrap_err().why(), Some(NotStored::Unknown));
        assert_eq!(read(&path).unwrap(), Some(state(3)));
    }

    /// A file of the format before is read and written in the new one.
    #[test]
    fn previous_format_is_read_and_rewritten() {
        let directory = directory("format");
        let path = directory.0.join("controller.state");
        std::fs::create_dir_all(&directory.0).unwrap();
        let addr = Addr { ip: 0x7f00_0001, port: 9 };
        let config = Config {
            epoch: 23,
            group: GroupId::FIRST,
            rack: 0x7ac4,
            switch_id: 4,
            switch_incarnation: 77,
            switch: addr,
            kind: Protocol::Chain.into(),
            program: Program::Harmonia,
            members: vec![Member { node: 1, incarnation: 10, addr }],
            joining: vec![Member { node: 2, incarnation: 11, addr }],
        };
        let old = State4 {
            version: 9,
            config: Some(config.clone()),
            switch_incarnation: 77,
            last_switch_id: 5,
            retired_switches: vec![76],
            caught_up: vec![1],
        };
        let body = postcard::to_allocvec(&old).unwrap();
        let bytes = [&MAGIC_4[..], &hash64(0, &body).to_be_bytes(), &body].concat();
        std::fs::write(&path, bytes).unwrap();
        let (mut file, read) = StateFile::open(&path).unwrap();
        let expected = State {
            version: 9,
            rack: 0x7ac4,
            switch_incarnation: 77,
            last_switch_id: 5,
            retired_switches: vec![76],
            groups: vec![group_of(config, vec![1])],
        };
        assert_eq!(read, Some(expected.clone()));
        file.write(&State { version: 10, ..expected.clone() }).unwrap();
        drop(file);
        assert!(std::fs::read(&path).unwrap().starts_with(MAGIC));
        let newer = State { version: 10, ..expected.clone() };
        assert_eq!(StateFile::open(&path).unwrap().1, Some(newer));
        // Nothing that was written before its first configuration is lost, either.
        let old = State4 { config: None, caught_up: vec![], ..old };
        assert_eq!(State::from(old).groups, []);
        // The format in between.
        let path = directory.0.join("five.state");
        let State { version, rack, switch_incarnation, last_switch_id, .. } = expected;
        let groups =
            expected.groups.iter().map(|g| (g.config.clone(), g.caught_up.clone())).collect();
        let retired_switches = expected.retired_switches.clone();
        let old =
            State5 { version, rack, switch_incarnation, last_switch_id, retired_switches, groups };
        let body = postcard::to_allocvec(&old).unwrap();
        let bytes = [&MAGIC_5[..], &hash64(SEED_5, &body).to_be_bytes(), &body].concat();
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().1, Some(expected));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_an_empty_state() {
        let directory = directory("damage");
        let path = directory.0.join("controller.state");
        drop(StateFile::open(&path).unwrap().0.write(&state(1)));
        let caught_up = std::fs::read(&path).unwrap();
        for cut in 0..caught_up.len() {
            std::fs::write(&path, &caught_up[..cut]).unwrap();
            assert!(StateFile::open(&path).is_err(), "cut at {cut}");
        }
        let mut flipped = caught_up.clone();
        for byte in 0..caught_up.len() {
            flipped[byte] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            assert!(StateFile::open(&path).is_err(), "byte {byte}");
            flipped[byte] ^= 1;
        }
        std::fs::write(&path, &caught_up).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().1, Some(state(1)));
    }
}
