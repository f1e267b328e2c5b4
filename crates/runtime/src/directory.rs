//! A replica's data directory: its lock, its segments, and the part of them that can be trusted.
//!
//! A segment's file name has the directory's number, drawn when it was made, and the segment's own:
//! a file of another directory is recognised by its name. Files are never overwritten: a start cuts
//! off an incomplete last group, and continues in a new segment.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use concord_log::{
    Begin, Damage, EngineKind, Entry, Found, Identity, Recovery, Writer, entries, identity,
};
use rustix::fs::{FlockOperation, flock};

use crate::disk::RESERVE;
use crate::error::{self, Context, Error};
use crate::manifest;
use crate::origin::NOBODY;

/// The bytes read at a time around a place that the disk cannot read.
const BLOCK_BYTES: usize = 4_096;
const LOCK: &str = "lock";
const EXTENSION: &str = "log";
/// The folder in which file systems keep recovered files. A data directory may be a file system's
/// root.
const LOST_AND_FOUND: &str = "lost+found";

/// An upper bound of the bytes of a segment's first frame.
const FIRST_FRAME_BYTES: u64 = 256;

/// A directory that was examined. This process holds its lock for as long as the value exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: File,
    storage: u64,
    found: Found,
    /// The existing segments, in the order of their numbers.
    segments: Vec<u64>,
    bytes: u64,
    /// The engine whose state is written from now on.
    engine: Option<EngineKind>,
}

/// The reason that a directory cannot be used.
#[derive(Debug)]
pub enum Broken {
    /// A file is damaged or missing before the end of the log.
    Damaged(Error),
    /// Another reason: the directory is in use or another node's, or the system refuses.
    Refused(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Broken {
        Broken::Refused(error)
    }
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Error {
        match broken {
            Broken::Damaged(error) | Broken::Refused(error) => error,
        }
    }
}

/// Locks an existing directory. The lock is held as long as the file is open.
///
/// # Errors
/// The directory is in use by a replica, or the system refuses.
pub fn lock(path: &Path) -> Result<File, Error> {
    let lock_path = path.join(LOCK);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.cannot(format!("open {}", lock_path.display()))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Error::new(format!("another replica keeps its data in {}", path.display())))?;
    Ok(lock)
}

/// The directory's number and those of its segments, by the names of its files; `None` if it has no
/// segments.
pub(crate) fn list(path: &Path) -> Result<Option<(u64, Vec<u64>)>, Broken> {
    let mut found: Option<(u64, Vec<u64>)> = None;
    for entry in std::fs::read_dir(path).cannot(format!("read {}", path.display()))? {
        let entry = entry.cannot(format!("read {}", path.display()))?;
        let name = entry.file_name();
        let Some((storage, segment)) = name.to_str().and_then(parse_name) else { continue };
        let (own, segments) = found.get_or_insert_with(|| (storage, Vec::new()));
        if *own != storage {
            return Err(Broken::Damaged(Error::new(format!(
                "{} has segments of two directories, {own:016x} and {storage:016x}",
                path.display()
            ))));
        }
        segments.push(segment);
    }
    if let Some((_, segments)) = &mut found {
        segments.sort_unstable();
    }
    Ok(found)
}

/// Whether a directory holds files that no replica leaves there.
fn holds_other_files(path: &Path) -> Result<bool, Error> {
    for entry in std::fs::read_dir(path).cannot(format!("read {}", path.display()))? {
        let name = entry.cannot(format!("read {}", path.display()))?.file_name();
        if ![LOCK, RESERVE, LOST_AND_FOUND].iter().any(|known| name == *known) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Parses the name of a segment, such as `0123456789abcdef-00000001.log`, into the two numbers.
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (storage, rest) = name.split_once('-')?;
    let segment = rest.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    let is_number = storage.len() == 16 && segment.bytes().all(|b| b.is_ascii_digit());
    let storage = u64::from_str_radix(storage, 16).ok().filter(|_| is_number)?;
    Some((storage, segment.parse().ok()?))
}

/// Whether a file of that name is a segment.
pub(crate) fn is_segment(name: &str) -> bool {
    parse_name(name).is_some()
}

/// The identity of a directory, from the first frame of its newest segment that has a valid one;
/// `None` if there are no segments. Nothing else is read, and nothing is locked.
///
/// # Errors
/// The system's, and where there are segments of two directories.
pub fn whose(path: &Path) -> Result<Option<Identity>, Error> {
    use std::io::Read as _;
    if !path.is_dir() {
        return Ok(None);
    }
    let Some((storage, segments)) = list(path)? else { return Ok(None) };
    for segment in segments.into_iter().rev() {
        let file = segment_path(path, storage, segment);
        let mut bytes = Vec::new();
        let read =
            File::open(&file).and_then(|f| f.take(FIRST_FRAME_BYTES).read_to_end(&mut bytes));
        match read {
            // The replica sets the directory aside, and reports it.
            Err(error) if error::is_bad_place(&error) => continue,
            read => read.cannot(format!("read {}", file.display()))?,
        };
        if let Some(identity) = identity(storage, segment, &bytes) {
            return Ok(Some(identity));
        }
    }
    Ok(None)
}

/// The path of a segment.
pub(crate) fn segment_path(directory: &Path, storage: u64, segment: u64) -> PathBuf {
    directory.join(format!("{storage:016x}-{segment:08}.{EXTENSION}"))
}

/// Makes a directory and its missing parents durably: each new name is on the disk before anything
/// below it counts as written.
pub(crate) fn create(path: &Path) -> Result<(), Error> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    std::fs::create_dir_all(path).cannot(format!("create {}", path.display()))?;
    for new in missing.into_iter().rev().filter(|new| *new != Path::new("")) {
        let parent = parent(new);
        sync(parent).cannot(format!("sync {}", parent.display()))?;
    }
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."))
}

/// Makes the names in a directory durable (fsync of the directory).
pub(crate) fn sync(directory: &Path) -> std::io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(directory.to_path_buf()));
    File::open(directory)?.sync_all()
}

fn damaged(directory: &Path, storage: u64, damage: Damage) -> Broken {
    let path = segment_path(directory, storage, damage.segment);
    Broken::Damaged(Error::new(format!("{}: {damage}", path.display())))
}

/// Examines every segment. Returns what can be trusted, and the bytes of all segments.
fn look(directory: &Path, storage: u64, segments: &[u64]) -> Result<(Found, u64), Broken> {
    read_ahead(directory, storage, segments, |read| look_at(directory, storage, read))
}

/// The contents of a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Its number.
    pub number: u64,
    /// Its bytes, with zeros in the places that the disk cannot read.
    pub bytes: Vec<u8>,
    /// The offset of the last place that the disk cannot read.
    pub unreadable: Option<u64>,
}

/// Reads a segment, skipping the places that the disk cannot read.
fn read_segment(path: &Path, number: u64) -> std::io::Result<Segment> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Segment { number, bytes, unreadable: None }),
        Err(error) if error::is_bad_place(&error) => {
            let file = File::open(path)?;
            let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
            let mut unreadable = 0;
            for (index, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
                let offset = (index * BLOCK_BYTES) as u64;
                match file.read_exact_at(block, offset) {
                    Err(error) if error::is_bad_place(&error) => {
                        block.fill(0);
                        unreadable = offset;
                    }
                    read => read?,
                }
            }
            Ok(Segment { number, bytes, unreadable: Some(unreadable) })
        }
        Err(error) => Err(error),
    }
}

/// Passes segments to `each`, while a thread reads the next one.
fn read_ahead<R>(
    directory: &Path,
    storage: u64,
    segments: &[u64],
    each: impl FnOnce(std::sync::mpsc::IntoIter<Result<Segment, Error>>) -> R,
) -> R {
    std::thread::scope(|scope| {
        // One segment is processed while the next one is read or waits, so that at most two are in
        // memory.
        let (sender, read) = std::sync::mpsc::sync_channel(0);
        scope.spawn(move || {
            for &segment in segments {
                let path = segment_path(directory, storage, segment);
                let read = read_segment(&path, segment);
                // They are not wanted any more once one is wrong.
                if sender.send(read.cannot(format!("read {}", path.display()))).is_err() {
                    return;
                }
            }
        });
        each(read.into_iter())
    })
}

/// As [`look`], for segments that the caller reads.
pub(crate) fn look_at(
    directory: &Path,
    storage: u64,
    segments: impl Iterator<Item = Result<Segment, Error>>,
) -> Result<(Found, u64), Broken> {
    let mut recovery = Recovery::new(storage);
    let mut total = 0;
    for segment in segments {
        let Segment { number, bytes, unreadable } = segment?;
        total += bytes.len() as u64;
        if let Some(offset) = unreadable {
            recovery.unreadable(number, offset);
        }
        recovery.segment(number, &bytes);
    }
    let found = recovery.finish().map_err(|damage| damaged(directory, storage, damage))?;
    Ok((found, total))
}

impl Directory {
    /// Locks the directory of `node`, creates it if it does not exist, and examines its contents.
    /// An incomplete last group is cut off. `storage` is the number of a directory that is created.
    ///
    /// # Errors
    /// [`Broken`], with one line that names the file.
    pub fn open(path: &Path, node: u16, storage: u64) -> Result<Directory, Broken> {
        create(path)?;
        // This is done before the lock is taken, since the lock file would be one more file among
        // those of others.
        if list(path)?.is_none() && holds_other_files(path)? {
            return Err(Broken::Refused(Error::new(format!(
                "{} holds other files: give replica {node} a directory of its own",
                path.display()
            ))));
        }
        let lock = lock(path)?;
        // The list is read again: another process may have written until the lock was free.
        let (storage, segments) = list(path)?.unwrap_or((storage, Vec::new()));
        let (found, bytes) = look(path, storage, &segments)?;
        if let Some(other) = found.node.filter(|other| *other != node) {
            return Err(Broken::Refused(Error::new(format!(
                "{} is the data of replica {other}, and this is replica {node}: were directories \
                 swapped?",
                path.display()
            ))));
        }
        let (path_buf, engine) = (path.to_path_buf(), found.engine);
        let mut directory =
            Directory { path: path_buf, lock, storage, found, segments, bytes, engine };
        directory.cut().cannot(format!("cut what is incomplete in {}", path.display()))?;
        Ok(directory)
    }

    /// As [`Directory::open`], but a damaged directory is renamed, and an empty one takes its
    /// place. Returns the new name and the damage, if so.
    ///
    /// # Errors
    /// [`Broken::Refused`] for every other reason.
    pub fn open_or_set_aside(
        path: &Path,
        node: u16,
        storage: u64,
    ) -> Result<(Directory, Option<Error>), Error> {
        let error = match Directory::open(path, node, storage) {
            Ok(directory) => return Ok((directory, None)),
            Err(Broken::Refused(error)) => return Err(error),
            Err(Broken::Damaged(error)) => error,
        };
        let aside = free_name(path);
        std::fs::rename(path, &aside).cannot(format!("set {} aside", path.display()))?;
        let parent = parent(path);
        sync(parent).cannot(format!("sync {}", parent.display()))?;
        let error = Error::new(format!("{error}; all of it is in {} now", aside.display()));
        let directory = Directory::open(path, node, storage)?;
        Ok((directory, Some(error)))
    }

    /// Makes `engine` the engine whose state is written from now on.
    ///
    /// # Errors
    /// The existing state is another engine's, which this one could not read. Nothing was written
    /// then.
    pub fn take_over(&mut self, engine: EngineKind) -> Result<(), Error> {
        if let Some(kept) = self.found.engine.filter(|kept| *kept != engine) {
            return Err(Error::new(format!(
                "{}: kept with the {} engine, and the {} engine cannot go on from that: give this replica another \
                 data_dir, or the engine of before",
                self.path.display(),
                kept.name(),
                engine.name()
            )));
        }
        self.engine = Some(engine);
        Ok(())
    }

    /// The part of the log that can be trusted.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The directory's number.
    #[must_use]
    pub fn storage(&self) -> u64 {
        self.storage
    }

    /// The bytes of its segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes an incomplete last group: what is written next must not follow what looks like
    /// damage.
    fn cut(&mut self) -> std::io::Result<()> {
        let Some(cut) = self.found.cut else { return Ok(()) };
        for segment in self.found.empty.iter().rev() {
            std::fs::remove_file(segment_path(&self.path, self.storage, *segment))?;
        }
        let path = segment_path(&self.path, self.storage, cut.segment);
        if cut.offset == 0 {
            std::fs::remove_file(&path)?;
        } else {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(cut.offset)?;
            file.sync_all()?;
        }
        let is_left =
            |segment: &u64| *segment < cut.segment || (*segment == cut.segment && cut.offset > 0);
        self.segments.retain(is_left);
        sync(&self.path)
    }

    /// Passes every entry of the existing state to `each`, in order.
    ///
    /// # Errors
    /// A file cannot be read, or `each` failed.
    pub fn each_entry(
        &self,
        mut each: impl FnMut(Entry<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (first, from) = match self.found.begin {
            Begin::Start => (0, 0),
            Begin::At { segment, offset, .. } => (segment, offset),
            Begin::Nothing => return Ok(()),
        };
        let wanted = self.segments.partition_point(|segment| *segment < first);
        read_ahead(&self.path, self.storage, &self.segments[wanted..], |mut read| {
            read.try_for_each(|segment| {
                let Segment { number, bytes, .. } = segment?;
                let from = if number == first { from } else { 0 };
                entries(self.storage, number, &bytes, from).try_for_each(|(_, e)| each(e))
            })
        })
    }

    /// The path, the lock, a writer and the existing segments, for the thread that continues to
    /// write.
    pub(crate) fn into_writer(self, node: u16) -> (PathBuf, File, Writer, Vec<u64>) {
        let identity = Identity { storage: self.storage, node, engine: self.engine };
        let writer = Writer::new(identity, self.found.next_segment, self.found.next_group);
        (self.path, self.lock, writer, self.segments)
    }
}

/// Whether the contents are the state with which a new rack begins.
fn founds(path: &Path, storage: u64, segments: &[u64]) -> bool {
    segments.iter().any(|&segment| {
        let bytes = std::fs::read(segment_path(path, storage, segment)).unwrap_or_default();
        entries(storage, segment, &bytes, 0).any(|(_, entry)| matches!(entry, Entry::Origin(_)))
    })
}

/// An unused name beside `path`.
fn free_name(path: &Path) -> PathBuf {
    let name = |n: u32| {
        let mut name = OsString::from(path.as_os_str());
        name.push(format!(".damaged-{n}"));
        PathBuf::from(name)
    };
    (1..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
}

/// Describes for a person what a directory holds and whether it is complete. It is not locked, and
/// nothing is cut off: a replica may be writing to it.
///
/// # Errors
/// One line that names the file that is damaged or missing.
pub fn inspect(path: &Path) -> Result<String, Error> {
    if !path.is_dir() {
        let why = std::io::Error::from(ErrorKind::NotFound);
        return Err(why).cannot(format!("inspect {}", path.display()));
    }
    let Some((storage, segments)) = list(path)? else {
        return Err(Error::new(format!("{} holds no segments of a log", path.display())));
    };
    let (found, total) = look(path, storage, &segments)?;
    // A backup must be complete.
    let is_backup = found.node == Some(NOBODY) || manifest::is_there(path);
    let verified = is_backup.then(|| manifest::verify(path)).transpose()?;
    let mut text = String::new();
    let node = found.node.map_or("none".to_string(), |node| node.to_string());
    let _ = match verified {
        Some(v) => {
            writeln!(
                text,
                "directory {storage:016x}, a backup: as its MANIFEST says, {} files",
                v.files
            )
        }
        None => writeln!(text, "directory {storage:016x} of replica {node}"),
    };
    if let Some(engine) = found.engine {
        let _ = writeln!(text, "state of the {} engine", engine.name());
    }
    let (first, last) = (segments.first().unwrap_or(&0), segments.last().unwrap_or(&0));
    let _ = writeln!(text, "segments {first} to {last}, {total} bytes");
    let begins = match found.begin {
        Begin::Start => "an empty state, at the first segment".to_string(),
        Begin::At { segment, offset, snapshot: 0 } => {
            format!("an empty state, in segment {segment} at offset {offset}")
        }
        Begin::At { segment, offset, snapshot } => {
            format!("snapshot {snapshot}, in segment {segment} at offset {offset}")
        }
        Begin::Nothing => "nothing: what was here is given up".to_string(),
    };
    let _ = writeln!(text, "begins with {begins}");
    if found.begin != Begin::Nothing {
        let (position, hash) = (found.end.position, found.end.hash);
        let _ = writeln!(text, "ends with record {position}, running hash {hash:016x}");
    }
    let marks = &found.marks;
    let _ = writeln!(
        text,
        "started {} times; longest lease {} ms",
        marks.run,
        marks.lease_ns / 1_000_000
    );
    match &marks.config {
        Some(config) => {
            let members: Vec<String> = config.members.iter().map(|m| m.node.to_string()).collect();
            let _ = writeln!(
                text,
                "knows of epoch {} of rack {:016x}: replicas {}; complete as of epoch {}",
                config.epoch,
                config.rack,
                members.join(" "),
                marks.held_epoch
            );
        }
        None if founds(path, storage, &segments) => {
            text.push_str("begins a new rack: knows of no epoch\n");
        }
        None => text.push_str("knows of no epoch\n"),
    }
    if marks.owes {
        text.push_str(
            "in use, or not stopped cleanly: what was acknowledged last may be missing\n",
        );
    }
    match found.cut {
        Some(cut) => {
            let _ = writeln!(
                text,
                "intact up to segment {} offset {}; an incomplete group after it will be cut off",
                cut.segment, cut.offset
            );
        }
        None => text.push_str("intact\n"),
    }
    Ok(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    std::thread_local! {
        /// The directories that this test's thread synced.
        pub(crate) static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const {
            std::cell::RefCell::new(Vec::new())
        };
    }

    /// Of directories that were made nobody synced the parents: after a power cut the directory
    /// could be gone with all that was synced in it.
    #[test]
    fn bug_22_133_new_directories_are_durable() {
        let top = std::env::temp_dir().join(format!("concord-parents-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        std::fs::create_dir(&top).unwrap();
        SYNCED.with_borrow_mut(Vec::clear);
        let path = top.join("data").join("replica-1");
        drop(Directory::open(&path, 1, 7).map_err(|_| "opened").unwrap());
        assert_eq!(SYNCED.with_borrow(Vec::clone), [top.clone(), top.join("data")]);
        SYNCED.with_borrow_mut(Vec::clear);
        drop(Directory::open(&path, 1, 7).map_err(|_| "opened again").unwrap());
        assert_eq!(SYNCED.with_borrow(Vec::clone), Vec::<PathBuf>::new(), "nothing was made");
        let _ = std::fs::remove_dir_all(&top);
    }

    /// A sector that could not be read kept a replica from starting for ever, where a flipped bit
    /// is set aside and copied. (Reading the beginning of a process' memory is an I/O error.)
    #[test]
    fn bug_22_132_unreadable_segment_is_set_aside() {
        let top = std::env::temp_dir().join(format!("concord-sector-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        let path = top.join("data");
        std::fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/mem", segment_path(&path, 7, 1)).unwrap();
        assert!(error::is_bad_place(&std::fs::read(segment_path(&path, 7, 1)).unwrap_err()));
        let (directory, aside) = Directory::open_or_set_aside(&path, 1, 9).unwrap();
        let line = aside.unwrap().to_string();
        assert!(line.contains("the disk cannot read what stands at offset 0"), "{line}");
        assert!(line.ends_with("data.damaged-1 now"), "{line}");
        assert_eq!((directory.storage(), directory.found().begin), (9, Begin::Start));
        let _ = std::fs::remove_dir_all(&top);
    }
}
