//! Copies the state of a data directory into another one: a backup, or the directories with which a
//! new rack begins.
//!
//! The source may be the directory of a running replica. Its segments are never overwritten, so
//! that what is read is a prefix of the log: the state as of one position.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use concord_log::{
    Batch, Begin, EngineKind, Entry, Found, Identity, Marks, Origin, Writer, entries,
};
use concord_wire::control::LogEnd;
use concord_wire::record::Record;

use crate::directory::{self, create, list, look_at, segment_path, sync};
use crate::error::{Context, Error};
use crate::manifest;

/// A group of frames is written once it has this many bytes.
const GROUP_BYTES: usize = 4 << 20;
/// The number of times that a directory is listed again when its segments vanish while they are
/// opened: a replica takes some seconds to write another snapshot.
const TRIES: u32 = 5;
/// The node number in a backup, which belongs to no node.
pub(crate) const NOBODY: u16 = 0;

/// Draws a number for an origin.
///
/// # Errors
/// If the system has no randomness.
pub fn new_id() -> Result<u64, Error> {
    crate::roles::unique()
}

/// The state of a data directory at one moment.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    storage: u64,
    segments: Vec<Segment>,
    found: Found,
}

/// An open segment, and its length at that moment.
#[derive(Debug)]
struct Segment {
    number: u64,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Segment {
    fn open(directory: &Path, storage: u64, number: u64) -> Result<Segment, Error> {
        let path = segment_path(directory, storage, number);
        let open = || -> std::io::Result<(File, u64)> {
            let file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = open().cannot(format!("open {}", path.display()))?;
        Ok(Segment { number, path, file, bytes })
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(self.bytes).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.cannot(format!("read {}", self.path.display()))?;
        Ok(bytes)
    }
}

impl State {
    /// Reads the contents of a directory. A replica may be writing to it.
    ///
    /// # Errors
    /// One line that names the file that is damaged or missing.
    pub fn read(path: &Path) -> Result<State, Error> {
        let mut tries = 0;
        loop {
            match State::open(path) {
                Ok(state) => return Ok(state),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    fn open(path: &Path) -> Result<State, Error> {
        let Some((storage, numbers)) = list(path)? else {
            return Err(Error::new(format!("{} holds no segments of a log", path.display())));
        };
        // Segments removed from now on are read all the same, and bytes written from now on are
        // not.
        let open = |number: &u64| Segment::open(path, storage, *number);
        let segments = numbers.iter().map(open).collect::<Result<Vec<Segment>, Error>>()?;
        let read = segments.iter().map(|segment| {
            let bytes = segment.read()?;
            Ok(directory::Segment { number: segment.number, bytes, unreadable: None })
        });
        let (found, _) = look_at(path, storage, read)?;
        Ok(State { path: path.to_path_buf(), storage, segments, found })
    }

    /// The part of it that can be trusted.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Whether it holds a state.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.found.begin != Begin::Nothing
    }

    /// Its age: of two directories of one group the one with the greater rank has everything that
    /// was acknowledged before both were read, if both acknowledged it or neither did.
    #[must_use]
    pub fn rank(&self) -> (u32, u64) {
        let marks = &self.found.marks;
        let normal = marks.view.as_ref().map_or(marks.held_epoch, |view| view.last_normal);
        (normal, self.found.end.position)
    }

    /// The highest switch id that its rack may have used.
    fn switch_id(&self) -> u32 {
        let marks = &self.found.marks;
        let config = marks.config.as_ref().map_or(0, |config| config.switch_id);
        config.max(marks.view.as_ref().map_or(0, |view| view.switch.id))
    }

    /// Passes every entry that makes up the state to `each`, in order.
    fn each(&self, mut each: impl FnMut(Entry<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let (first, from) = match self.found.begin {
            Begin::Start => (0, 0),
            Begin::At { segment, offset, .. } => (segment, offset),
            Begin::Nothing => return Ok(()),
        };
        for segment in self.segments.iter().filter(|segment| segment.number >= first) {
            let (number, mut bytes) = (segment.number, segment.read()?);
            if let Some(cut) = self.found.cut.filter(|cut| cut.segment <= number) {
                let is_cut = cut.segment == number;
                bytes.truncate(if is_cut { cut.offset as usize } else { 0 });
            }
            let from = if number == first { from } else { 0 };
            for (_, entry) in entries(self.storage, number, &bytes, from) {
                each(entry)?;
            }
        }
        Ok(())
    }

    /// For each record in the segments, whether it is part of the log: not if another one replaced
    /// it, or if it is repeated later.
    fn records(&self) -> Result<Vec<bool>, Error> {
        let (mut places, mut count) = (Vec::<(u64, usize)>::new(), 0);
        self.each(|entry| {
            match entry {
                Entry::Record(bytes) => {
                    let position = position(bytes)?;
                    if places.last().is_none_or(|(last, _)| *last < position) {
                        places.push((position, count));
                    }
                    count += 1;
                }
                Entry::Cut(end) => places.retain(|(position, _)| *position <= end.position),
                Entry::Part(_) | Entry::Marks(_) | Entry::Reset => {}
                Entry::Committed(_) | Entry::Origin(_) => {}
            }
            Ok(())
        })?;
        let mut counts = vec![false; count];
        places.iter().for_each(|(_, place)| counts[*place] = true);
        Ok(counts)
    }

    /// Writes the state into `target`, which must not exist: with a `node` as that node's data,
    /// with which a new rack begins, otherwise as a backup. Returns the origin.
    ///
    /// # Errors
    /// One line. Nothing is left under that name then.
    pub fn write(&self, target: &Path, node: Option<u16>, id: u64) -> Result<Origin, Error> {
        if !self.is_there() {
            let path = self.path.display();
            return Err(Error::new(format!("{path} holds no state: what was there is given up")));
        }
        if target.exists() {
            let target = target.display();
            return Err(Error::new(format!("{target} is there already: say another directory")));
        }
        let mut partial = target.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let _ = std::fs::remove_dir_all(&partial);
        let origin = self.write_into(&partial, node, id);
        if origin.is_err() {
            let _ = std::fs::remove_dir_all(&partial);
        }
        let origin = origin?;
        std::fs::rename(&partial, target).cannot(format!("make {}", target.display()))?;
        let parent = target.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."));
        sync(parent).cannot(format!("sync {}", parent.display()))?;
        Ok(origin)
    }

    fn write_into(&self, path: &Path, node: Option<u16>, id: u64) -> Result<Origin, Error> {
        let counts = self.records()?;
        let storage = new_id()?;
        let (engine, own) = (self.found.engine, node.unwrap_or(NOBODY));
        let mut copy = Copy::begin(path, Identity { storage, node: own, engine })?;
        let snapshot = match self.found.begin {
            Begin::At { snapshot, .. } => snapshot,
            Begin::Start | Begin::Nothing => 0,
        };
        let (mut nth, mut known) = (0, Origin::default());
        self.each(|entry| {
            match entry {
                Entry::Record(bytes) => {
                    if counts[nth] {
                        copy.batch.record(bytes);
                    }
                    nth += 1;
                }
                Entry::Part(part) if part.snapshot == snapshot && snapshot > 0 => {
                    copy.batch.part(&part).cannot("copy a part of the state")?;
                }
                Entry::Origin(origin) => {
                    known = origin;
                    copy.origin(&origin);
                }
                // They belong to the rack that ends here.
                Entry::Part(_) | Entry::Marks(_) | Entry::Reset => {}
                Entry::Committed(_) | Entry::Cut(_) => {}
            }
            copy.write_if(GROUP_BYTES)
        })?;
        let end = self.found.end;
        let switch_id = self.switch_id().max(known.switch_id);
        let origin = Origin { id, end, switch_id };
        copy.origin(&origin);
        copy.batch.marks(&Marks::default());
        copy.write_if(0)?;
        copy.end()?;
        if node.is_none() {
            manifest::write(path, &origin, engine)?;
        }
        Ok(origin)
    }

    /// The origin of a backup.
    ///
    /// # Errors
    /// It is not a backup, or not all of it is there.
    pub fn origin(&self) -> Result<Origin, Error> {
        if let Some(cut) = self.found.cut {
            let path = segment_path(&self.path, self.storage, cut.segment);
            let (path, offset) = (path.display(), cut.offset);
            return Err(Error::new(format!(
                "{path}: damaged at offset {offset}, or not all of it is there"
            )));
        }
        let mut last = None;
        self.each(|entry| {
            match entry {
                Entry::Origin(origin) => last = Some(origin),
                Entry::Record(_) | Entry::Part(_) => last = None,
                Entry::Marks(_) | Entry::Reset | Entry::Committed(_) | Entry::Cut(_) => {}
            }
            Ok(())
        })?;
        let path = self.path.display();
        last.filter(|_| self.found.node == Some(NOBODY)).ok_or_else(|| {
            Error::new(format!(
                "{path} is not a backup; `concord backup` makes one of a running rack"
            ))
        })
    }

    /// The engine of the state, if it is known.
    #[must_use]
    pub fn engine(&self) -> Option<EngineKind> {
        self.found.engine
    }

    /// The end of its log.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.found.end
    }
}

fn position(record: &[u8]) -> Result<u64, Error> {
    let record = Record::parse(record);
    record.map(|r| r.position.0).map_err(|e| Error::new(format!("a record makes no sense: {e}")))
}

/// A directory that is being written.
struct Copy {
    path: PathBuf,
    writer: Writer,
    file: Option<File>,
    batch: Batch,
}

impl Copy {
    fn begin(path: &Path, identity: Identity) -> Result<Copy, Error> {
        create(path)?;
        let writer = Writer::new(identity, 1, 1);
        let mut copy =
            Copy { path: path.to_path_buf(), writer, file: None, batch: Batch::default() };
        copy.begin_segment()?;
        Ok(copy)
    }

    fn begin_segment(&mut self) -> Result<(), Error> {
        self.sync()?;
        let mut bytes = Vec::new();
        self.writer.begin_segment(&mut bytes);
        let path = segment_path(&self.path, self.writer.identity().storage, self.writer.segment());
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let mut file = file.cannot(format!("create {}", path.display()))?;
        file.write_all(&bytes).cannot(format!("write {}", path.display()))?;
        self.file = Some(file);
        Ok(())
    }

    /// Marks everything so far as committed, and as the state with which a rack begins.
    fn origin(&mut self, origin: &Origin) {
        self.batch.committed(origin.end.position);
        self.batch.origin(origin);
    }

    /// Writes the gathered entries, if they have more than `bytes_min` bytes.
    fn write_if(&mut self, bytes_min: usize) -> Result<(), Error> {
        if self.batch.len() <= bytes_min {
            return Ok(());
        }
        if self.writer.is_full() {
            self.begin_segment()?;
        }
        self.writer.seal(self.batch.bytes());
        if let Some(file) = &mut self.file {
            let written = file.write_all(self.batch.bytes());
            written.cannot(format!("write to {}", self.path.display()))?;
        }
        self.batch.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        match self.file.take() {
            Some(file) => file.sync_all().cannot(format!("sync {}", self.path.display())),
            None => Ok(()),
        }
    }

    fn end(mut self) -> Result<(), Error> {
        self.sync()?;
        sync(&self.path).cannot(format!("sync {}", self.path.display()))
    }
}
