//! Scrubbing: a thread reads all of a replica's log again from time to time and slowly, while the
//! replica writes to it. So damage is found while the state is still in memory, and a new snapshot
//! replaces what is damaged.
//!
//! Segments are never overwritten, so that what is read is a prefix of the log. Its last group may
//! be incomplete because it is being written, which looks the same as damage: it is checked in the
//! next pass.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::directory::{Broken, Segment, list, look_at, segment_path};
use crate::error::{Context, Error};

/// The bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The time after which the next pass begins if damage was found.
const AGAIN: Duration = Duration::from_secs(10);

/// The frequency and speed of scrubbing.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The rest between two passes.
    pub rest: Duration,
    /// The bytes that it reads in a second.
    pub bytes_per_second: u64,
}

/// The state shared by the thread and the loop.
#[derive(Debug, Default)]
struct Shared {
    read_bytes: AtomicU64,
    all_bytes: AtomicU64,
    passes: AtomicU64,
    damages: AtomicU64,
    /// The damage that the last pass found, if any.
    damage: Mutex<Option<String>>,
}

/// The progress of scrubbing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part of the current or last pass that is done, in percent.
    pub percent: u64,
    /// The number of completed passes.
    pub passes: u64,
    /// The number of passes that found damage.
    pub damages: u64,
    /// The damage that the last pass found, if any.
    pub damage: Option<String>,
}

/// The loop's handle. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Scrub {
    shared: Arc<Shared>,
    /// The number of passes with damage that were reported.
    told: u64,
    _stop: Sender<()>,
}

impl Scrub {
    /// Starts the thread. If it finds damage, it signals `bell`, an eventfd.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(directory: PathBuf, pace: Pace, bell: Arc<OwnedFd>) -> Result<Scrub, Error> {
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = channel();
        let scrubber = Scrubber { directory, pace, shared: Arc::clone(&shared), stopped };
        let work = std::thread::Builder::new().name("scrub".to_string());
        work.spawn(move || scrubber.work(&bell)).cannot("start the thread that scrubs")?;
        Ok(Scrub { shared, told: 0, _stop: stop })
    }

    /// The damage that was found since the last call.
    pub fn take_damage(&mut self) -> Option<String> {
        let damages = self.shared.damages.load(Ordering::Acquire);
        if std::mem::replace(&mut self.told, damages) == damages {
            return None;
        }
        self.progress().damage
    }

    /// The progress so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let shared = &*self.shared;
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Progress {
            percent: of(&shared.read_bytes) * 100 / of(&shared.all_bytes).max(1),
            passes: of(&shared.passes),
            damages: of(&shared.damages),
            damage: shared.damage.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// The result of a pass.
enum Pass {
    Clean,
    Damaged(Error),
    /// A snapshot replaced segments before they were opened, or the replica is gone.
    CutShort,
}

/// The thread's state.
struct Scrubber {
    directory: PathBuf,
    pace: Pace,
    shared: Arc<Shared>,
    stopped: Receiver<()>,
}

impl Scrubber {
    fn work(&self, bell: &OwnedFd) {
        let mut rest = self.pace.rest;
        while self.waits(rest) {
            let pass = self.pass().unwrap_or_else(Pass::Damaged);
            rest = self.pace.rest;
            let found = match pass {
                // The segments that replaced the ones that were read were just written.
                Pass::CutShort => continue,
                Pass::Clean => None,
                Pass::Damaged(error) => Some(error.to_string()),
            };
            let is_damaged = found.is_some();
            *self.shared.damage.lock().unwrap_or_else(PoisonError::into_inner) = found;
            self.shared.passes.fetch_add(1, Ordering::Relaxed);
            if is_damaged {
                rest = rest.min(AGAIN);
                self.shared.damages.fetch_add(1, Ordering::Release);
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
        }
    }

    /// Waits for `time`. Returns whether to continue.
    fn waits(&self, time: Duration) -> bool {
        self.stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// Checks everything that the directory holds at the beginning. One file is open at a time: if
    /// a snapshot replaces segments, their space is freed at once, and the pass ends.
    fn pass(&self) -> Result<Pass, Error> {
        let Some((storage, numbers)) = list(&self.directory)? else { return Ok(Pass::CutShort) };
        let path = |number: &u64| segment_path(&self.directory, storage, *number);
        // Bytes written from now on are not read: the lengths are those of now.
        let mut all: Vec<u64> = Vec::new();
        for number in &numbers {
            let Some(bytes) = unless_gone(std::fs::metadata(path(number)))
                .cannot(format!("look at {}", path(number).display()))?
            else {
                return Ok(Pass::CutShort);
            };
            all.push(bytes.len());
        }
        self.shared.read_bytes.store(0, Ordering::Relaxed);
        self.shared.all_bytes.store(all.iter().sum(), Ordering::Relaxed);
        let mut is_stopped = false;
        let read = numbers.iter().zip(&all).map_while(|(number, bytes)| {
            let read = self.read(&path(number), *bytes).transpose();
            is_stopped |= read.is_none();
            let segment = |bytes| Segment { number: *number, bytes, unreadable: None };
            read.map(|read| read.map(segment))
        });
        match look_at(&self.directory, storage, read) {
            _ if is_stopped => Ok(Pass::CutShort),
            Ok(_) => Ok(Pass::Clean),
            Err(Broken::Damaged(error) | Broken::Refused(error)) => Ok(Pass::Damaged(error)),
        }
    }

    /// Reads a segment, slowly, from the disk and not from the system's cache. `None` if the
    /// segment or the replica is gone.
    fn read(&self, path: &Path, bytes: u64) -> Result<Option<Vec<u8>>, Error> {
        let opened = unless_gone(File::open(path)).cannot(format!("open {}", path.display()))?;
        let Some(file) = opened else { return Ok(None) };
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let mut read = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        for (index, piece) in read.chunks_mut(PIECE_BYTES).enumerate() {
            let at = (index * PIECE_BYTES) as u64;
            file.read_exact_at(piece, at).cannot(format!("read {}", path.display()))?;
            self.shared.read_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            let takes = piece.len() as f64 / self.pace.bytes_per_second.max(1) as f64;
            let is_gone = file.metadata().is_ok_and(|file| file.nlink() == 0);
            if is_gone || !self.waits(Duration::from_secs_f64(takes)) {
                return Ok(None);
            }
        }
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        Ok(Some(read))
    }
}

/// `None` for a file that was removed.
fn unless_gone<T>(opened: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}
