//! A replica's disk: a thread writes what is to be durable, syncs it, and says so by an eventfd,
//! which the role's loop watches like any other descriptor. The loop never waits for a disk.
//!
//! One batch is under way at a time. What comes meanwhile gathers in the machine, and is the next
//! one: so one sync makes all durable that came during the one before (group commit).
//!
//! A disk that is full is no disk that fails: what is to be written waits until there is room, and
//! the replica refuses writes meanwhile. Some room was held back for what it has to say then
//! (`room.rs`).
//!
//! A disk that fails once is never tried again: after a failed fsync nobody knows what it holds,
//! and the kernel may say of the next one that all is well.

mod read_back;
mod room;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_log::{Batch, Marks, Writer};
use rustix::event::{EventfdFlags, eventfd};

use crate::directory::{Directory, segment_path, sync};
use crate::error::{Context, Error, is_full};
use read_back::{Outcome, ReadBack, Task};
use room::Room;
pub(crate) use room::{NAME as RESERVE, hold};

/// How often a full disk is tried again, and looked at while nothing is written.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// What is wrong with a disk, for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFault {
    /// What is not synced is not in the file, or its first half alone, in turn; and a sync takes as
    /// long: a process that is killed leaves what a power cut does.
    pub hold: Option<Duration>,
    /// The sync of that number fails.
    pub fail_sync: Option<u64>,
    /// No sync ends while this file is there.
    pub hang: Option<PathBuf>,
    /// The first part of that snapshot is damaged on its way to the disk.
    pub damage_snapshot: Option<u64>,
}

/// What was done.
#[derive(Debug)]
pub struct Written {
    /// The batch, as it was written.
    pub batch: Batch,
    /// How long its sync took.
    pub sync_ns: u64,
    /// Bytes of all segments.
    pub log_bytes: u64,
}

/// The loop's end.
#[derive(Debug)]
pub struct Disk {
    done: Arc<OwnedFd>,
    to: SyncSender<Batch>,
    from: Receiver<Result<Written, Error>>,
    is_short: Arc<AtomicBool>,
    /// The newest snapshot that cannot be read back: what is wrong.
    damage: Damage,
    /// It has said why.
    has_failed: bool,
}

/// What is wrong with a snapshot, until somebody asks.
type Damage = Arc<Mutex<Option<String>>>;

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Disk {
    /// Writes `marks` durably into a new segment of the directory, and begins the thread.
    ///
    /// # Errors
    /// If the disk or the system refuses.
    pub fn start(
        directory: Directory,
        node: u16,
        marks: &Marks,
        fault: DiskFault,
    ) -> Result<Disk, Error> {
        let bytes = directory.bytes();
        let (path, lock, writer, segments) = directory.into_writer(node);
        let is_short = Arc::new(AtomicBool::new(false));
        let room = Room::new(&path, Arc::clone(&is_short));
        let damage = Damage::default();
        let mut files = Files::new(path, writer, segments, bytes, (fault, room));
        files.damage = Arc::clone(&damage);
        files.begin_segment()?;
        let mut batch = Batch::default();
        batch.marks(marks);
        files.write(&mut batch)?;
        files.sync()?;
        files.room.look();
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let done = Arc::new(done.cannot("make an eventfd")?);
        let (to, batches) = sync_channel(1);
        let (tell, from) = sync_channel(1);
        let teller = Teller { done: Arc::clone(&done), tell };
        std::thread::Builder::new()
            .name("disk".to_string())
            .spawn(move || {
                let _lock = lock;
                work(files, &batches, &teller);
            })
            .cannot("start the disk's thread")?;
        Ok(Disk { done, to, from, is_short, damage, has_failed: false })
    }

    /// Hands a batch over; the one before must have been taken back.
    ///
    /// # Errors
    /// If the disk has failed, or the thread is gone: it has said why.
    pub fn write(&mut self, batch: Batch) -> Result<(), Error> {
        if self.has_failed {
            return Err(Error::new("the disk has failed"));
        }
        self.to.try_send(batch).map_err(|_| Error::new("the disk's thread is gone"))
    }

    /// Whether the disk has no room; the descriptor becomes readable when that changes.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// What is wrong with a snapshot that was written, if it could not be read back since this was
    /// asked last: what it was to take the place of is there still.
    pub fn take_damage(&mut self) -> Option<String> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What makes the descriptor readable.
    #[must_use]
    pub fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.done)
    }

    /// What was done, once the descriptor is readable.
    ///
    /// # Errors
    /// The disk's: nothing is written any more.
    pub fn take(&mut self) -> Result<Option<Written>, Error> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.done, &mut count);
        match self.from.try_recv() {
            Ok(written) => {
                self.has_failed |= written.is_err();
                written.map(Some)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Error::new("the disk's thread is gone")),
        }
    }
}

/// The thread's end.
struct Teller {
    done: Arc<OwnedFd>,
    tell: SyncSender<Result<Written, Error>>,
}

impl Teller {
    fn tell(&self, what: Result<Written, Error>) {
        let _ = self.tell.send(what);
        self.kick();
    }

    /// There is something to look at.
    fn kick(&self) {
        let _ = rustix::io::write(&*self.done, &1u64.to_ne_bytes());
    }
}

/// Until the loop is gone, or the disk fails.
fn work(mut files: Files, batches: &Receiver<Batch>, teller: &Teller) {
    loop {
        let batch = match batches.recv_timeout(ROOM_INTERVAL) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut settled = files.settle(teller);
        if let Some(batch) = batch {
            let done = std::mem::replace(&mut settled, Ok(()));
            let done = done.and_then(|()| files.put(batch, teller));
            let has_failed = done.is_err();
            teller.tell(done);
            if has_failed {
                return;
            }
        }
        if let Err(error) = settled {
            return teller.tell(Err(error));
        }
        if files.room.look() {
            teller.kick();
        }
    }
}

/// The segments.
struct Files {
    path: PathBuf,
    writer: Writer,
    file: Option<File>,
    segments: Vec<u64>,
    /// Bytes of all of them.
    bytes: u64,
    /// The snapshot that is being written, and the segment that it begins.
    snapshot: Option<(u64, u64)>,
    /// The newest one that was written, while it is read back.
    read_back: Option<ReadBack>,
    damage: Damage,
    is_synced: bool,
    syncs: u64,
    fault: DiskFault,
    room: Room,
    /// Where the file ends that takes groups.
    end: u64,
    /// What the file does not have yet, because of a fault.
    held: Vec<u8>,
}

impl Files {
    fn new(
        path: PathBuf,
        writer: Writer,
        segments: Vec<u64>,
        bytes: u64,
        (fault, room): (DiskFault, Room),
    ) -> Files {
        Files {
            path,
            writer,
            file: None,
            segments,
            bytes,
            snapshot: None,
            read_back: None,
            damage: Damage::default(),
            is_synced: true,
            syncs: 0,
            fault,
            room,
            end: 0,
            held: Vec::new(),
        }
    }

    fn segment_path(&self, segment: u64) -> PathBuf {
        segment_path(&self.path, self.writer.identity().storage, segment)
    }

    /// Writes a batch, and makes it durable. Where there is no room, it waits.
    fn put(&mut self, mut batch: Batch, teller: &Teller) -> Result<Written, Error> {
        let wait = || {
            teller.kick();
            std::thread::sleep(ROOM_INTERVAL);
            true
        };
        if batch.begins_snapshot().is_some() || self.writer.is_full() {
            self.begin_segment_waiting(wait)?;
        }
        if let Some(snapshot) = batch.begins_snapshot() {
            self.snapshot = Some((snapshot, self.writer.segment()));
        }
        self.write_waiting(&mut batch, wait)?;
        let ended = batch.ends_snapshot().zip(self.snapshot);
        let ended = ended.filter(|(ended, (begun, _))| ended == begun).map(|(_, (_, at))| at);
        let sync_ns = self.sync_waiting(wait)?;
        if let Some(segment) = ended {
            self.snapshot = None;
            // The one before need not be read any more, but it may have removed segments.
            if let Some(found) = self.read_back.take().and_then(ReadBack::stop) {
                self.note(found, teller)?;
            }
            self.read_back(segment)?;
        }
        Ok(Written { batch, sync_ns, log_bytes: self.bytes })
    }

    /// Does what the disk may have no room for, until it has, or nobody waits for that.
    fn until_room(
        &self,
        what: impl Fn() -> std::io::Result<()>,
        undo: impl Fn() -> std::io::Result<()>,
        wait: impl Fn() -> bool,
    ) -> std::io::Result<()> {
        let mut is_first = true;
        loop {
            match what() {
                Err(e) if is_full(&e) => {
                    undo()?;
                    self.room.give();
                    if !std::mem::take(&mut is_first) && !wait() {
                        return Err(e);
                    }
                }
                done => return done,
            }
        }
    }

    /// Goes on in a new segment, which is durable before anything stands in it.
    fn begin_segment_waiting(&mut self, wait: impl Fn() -> bool) -> Result<(), Error> {
        self.sync_waiting(&wait)?;
        let mut bytes = Vec::new();
        self.writer.begin_segment(&mut bytes);
        let segment = self.writer.segment();
        let path = self.segment_path(segment);
        let create = || -> std::io::Result<()> {
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            sync(&self.path)
        };
        let undo = || {
            std::fs::remove_file(&path).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            })
        };
        self.until_room(create, undo, wait).cannot(format!("write {}", path.display()))?;
        let file = OpenOptions::new().write(true).open(&path);
        self.file = Some(file.cannot(format!("open {}", path.display()))?);
        self.segments.push(segment);
        self.end = bytes.len() as u64;
        self.bytes += self.end;
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<(), Error> {
        self.begin_segment_waiting(|| false)
    }

    fn write(&mut self, batch: &mut Batch) -> Result<(), Error> {
        self.write_waiting(batch, || false)
    }

    fn sync(&mut self) -> Result<u64, Error> {
        self.sync_waiting(|| false)
    }

    fn write_waiting(&mut self, batch: &mut Batch, wait: impl Fn() -> bool) -> Result<(), Error> {
        self.writer.seal(batch.bytes());
        self.bytes += batch.bytes().len() as u64;
        self.is_synced = false;
        if self.fault.hold.is_some() {
            self.held.extend_from_slice(batch.bytes());
            return Ok(());
        }
        if batch.begins_snapshot().is_some_and(|n| self.fault.damage_snapshot == Some(n)) {
            let mut damaged = batch.bytes().to_vec();
            let middle = damaged.len() / 2;
            damaged[middle] ^= 1;
            return self.append(&damaged, wait);
        }
        self.append(batch.bytes(), wait)
    }

    /// At the end of the file: all of it, or nothing.
    fn append(&mut self, bytes: &[u8], wait: impl Fn() -> bool) -> Result<(), Error> {
        let Some(file) = &self.file else { return Ok(()) };
        let end = self.end;
        let written = self.until_room(|| file.write_all_at(bytes, end), || file.set_len(end), wait);
        let path = self.segment_path(self.writer.segment());
        written.cannot(format!("write {}", path.display()))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// What a crash may leave of a group: its beginning.
    fn tear(&self, group: &[u8]) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&group[..group.len() / 2], self.end);
        }
    }

    /// Makes durable what was written; how long that took.
    fn sync_waiting(&mut self, wait: impl Fn() -> bool) -> Result<u64, Error> {
        let began = Instant::now();
        if self.file.is_none() || self.is_synced {
            return Ok(0);
        }
        self.syncs += 1;
        if let Some(takes) = self.fault.hold {
            let held = std::mem::take(&mut self.held);
            if self.syncs.is_multiple_of(2) {
                self.tear(&held);
            }
            std::thread::sleep(takes);
            self.append(&held, wait)?;
        }
        while self.fault.hang.as_ref().is_some_and(|file| file.exists()) {
            std::thread::sleep(ROOM_INTERVAL);
        }
        let fails = self.fault.fail_sync == Some(self.syncs);
        let synced = match &self.file {
            Some(_) if fails => Err(std::io::Error::from(rustix::io::Errno::IO)),
            Some(file) => file.sync_data(),
            None => Ok(()),
        };
        let path = self.segment_path(self.writer.segment());
        synced.cannot(format!("sync {}", path.display()))?;
        self.is_synced = true;
        Ok(began.elapsed().as_nanos() as u64)
    }

    /// A snapshot is durable that begins with `segment`: it is read back, and then what is before
    /// is removed.
    fn read_back(&mut self, segment: u64) -> Result<(), Error> {
        let of = |number: &u64| segment_path(&self.path, self.writer.identity().storage, *number);
        let size = |number: &u64| match *number == self.writer.segment() {
            true => self.end,
            false => std::fs::metadata(of(number)).map_or(u64::MAX, |m| m.len()),
        };
        let (gone, checked): (Vec<u64>, Vec<u64>) =
            self.segments.iter().partition(|number| **number < segment);
        let task = Task {
            path: self.path.clone(),
            storage: self.writer.identity().storage,
            segments: checked.iter().map(|number| (*number, size(number))).collect(),
            gone,
        };
        self.read_back = Some(ReadBack::start(task)?);
        Ok(())
    }

    /// What came of the snapshot that is read back.
    fn settle(&mut self, teller: &Teller) -> Result<(), Error> {
        let Some(outcome) = self.read_back.as_ref().and_then(ReadBack::poll) else { return Ok(()) };
        self.read_back = None;
        self.note(outcome, teller)
    }

    fn note(&mut self, outcome: Outcome, teller: &Teller) -> Result<(), Error> {
        match outcome {
            Outcome::Removed { segments, bytes } => {
                self.segments.retain(|segment| !segments.contains(segment));
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            Outcome::Damaged(error) => {
                let text = error.to_string();
                *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                teller.kick();
            }
            Outcome::Failed(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
