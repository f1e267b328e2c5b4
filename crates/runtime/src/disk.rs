//! A replica's disk: a thread writes what is to become durable, syncs it, and signals an eventfd,
//! which the role's loop watches like any other descriptor. The loop never waits for a disk.
//!
//! One batch is in progress at a time. Entries that come meanwhile gather in the machine and form
//! the next batch: one sync makes everything durable that came during the one before (group
//! commit).
//!
//! A full disk does not count as failed: entries wait until there is room, and the replica refuses
//! writes meanwhile. A reserve is kept for what it has to log then (`room.rs`).
//!
//! A disk that fails once is never tried again: after a failed fsync it is not known what the disk
//! holds, and the kernel may report success for the next one.

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

/// The interval at which a full disk is tried again, and at which room is checked while nothing is
/// written.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// Faults of a disk, for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFault {
    /// Data that is not synced does not reach the file, or, every second time, only its first half
    /// does; and a sync takes this long. A process that is killed then leaves what a power cut
    /// leaves.
    pub hold: Option<Duration>,
    /// The number of the sync that fails.
    pub fail_sync: Option<u64>,
    /// No sync ends while this file exists.
    pub hang: Option<PathBuf>,
    /// The number of the snapshot whose first part is damaged on its way to the disk.
    pub damage_snapshot: Option<u64>,
}

/// The result of a write.
#[derive(Debug)]
pub struct Written {
    /// The batch, as it was written, to be reused.
    pub batch: Batch,
    /// The duration of its sync in ns.
    pub sync_ns: u64,
    /// The bytes of all segments.
    pub log_bytes: u64,
}

/// The loop's handle of the disk.
#[derive(Debug)]
pub struct Disk {
    done: Arc<OwnedFd>,
    to: SyncSender<Batch>,
    from: Receiver<Result<Written, Error>>,
    is_short: Arc<AtomicBool>,
    /// The damage of the newest snapshot that could not be read back.
    damage: Damage,
    /// Whether the error of the disk has been reported.
    has_failed: bool,
}

/// The damage of a snapshot, until it is taken.
type Damage = Arc<Mutex<Option<String>>>;

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Disk {
    /// Writes `marks` durably into a new segment of the directory, and starts the thread.
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

    /// Hands a batch over. The one before must have been taken back.
    ///
    /// # Errors
    /// The disk has failed or the thread is gone; [`Disk::take`] says why.
    pub fn write(&mut self, batch: Batch) -> Result<(), Error> {
        if self.has_failed {
            return Err(Error::new("the disk has failed"));
        }
        self.to.try_send(batch).map_err(|_| Error::new("the disk's thread is gone"))
    }

    /// Whether the disk has no room. The descriptor becomes readable when that changes.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// The damage of a snapshot that could not be read back since the last call. The segments that
    /// it was to replace still exist.
    pub fn take_damage(&mut self) -> Option<String> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The eventfd that the thread signals.
    #[must_use]
    pub fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.done)
    }

    /// The result of the write in progress, once the descriptor is readable.
    ///
    /// # Errors
    /// The disk's error: nothing is written any more.
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

/// The thread's handle of the loop.
struct Teller {
    done: Arc<OwnedFd>,
    tell: SyncSender<Result<Written, Error>>,
}

impl Teller {
    fn tell(&self, what: Result<Written, Error>) {
        let _ = self.tell.send(what);
        self.kick();
    }

    /// Signals the loop.
    fn kick(&self) {
        let _ = rustix::io::write(&*self.done, &1u64.to_ne_bytes());
    }
}

/// Writes batches until the loop is gone or the disk fails.
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

/// The segment files.
struct Files {
    path: PathBuf,
    writer: Writer,
    file: Option<File>,
    segments: Vec<u64>,
    /// The bytes of all segments.
    bytes: u64,
    /// The snapshot that is being written, with the segment with which it begins.
    snapshot: Option<(u64, u64)>,
    /// The newest written snapshot, while it is read back.
    read_back: Option<ReadBack>,
    damage: Damage,
    is_synced: bool,
    syncs: u64,
    fault: DiskFault,
    room: Room,
    /// The end of the file that takes groups, in bytes.
    end: u64,
    /// The bytes that a fault keeps from the file.
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

    /// Writes a batch and makes it durable. It waits until there is room.
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
            // The snapshot before need not be read any more, but segments may have been removed for
            // it.
            if let Some(found) = self.read_back.take().and_then(ReadBack::stop) {
                self.note(found, teller)?;
            }
            self.read_back(segment)?;
        }
        Ok(Written { batch, sync_ns, log_bytes: self.bytes })
    }

    /// Repeats `what` until the disk has room for it, undoing each failure with `undo`, or until
    /// `wait` says to give up.
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

    /// Begins a new segment, and makes its name durable before anything is written to it.
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

    /// Appends to the file: all of `bytes` or nothing.
    fn append(&mut self, bytes: &[u8], wait: impl Fn() -> bool) -> Result<(), Error> {
        let Some(file) = &self.file else { return Ok(()) };
        let end = self.end;
        let written = self.until_room(|| file.write_all_at(bytes, end), || file.set_len(end), wait);
        let path = self.segment_path(self.writer.segment());
        written.cannot(format!("write {}", path.display()))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes what a crash may leave of a group: its beginning.
    fn tear(&self, group: &[u8]) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&group[..group.len() / 2], self.end);
        }
    }

    /// Makes everything that was written durable. Returns the duration in ns.
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

    /// A snapshot that begins with `segment` is durable: starts to read it back, after which the
    /// segments before it are removed.
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

    /// Handles the result of reading a snapshot back.
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
