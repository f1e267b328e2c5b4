//! Scrubbing: a thread reads all of a replica's log again, now and then and slowly, while the
//! replica writes there. So damage is found while the state is still in memory, and a new snapshot
//! takes the place of what is damaged.
//!
//! Segments are never written over, so that what is read is a prefix of the log. Its last group may
//! be under way, and looks the same as one that is damaged: that one is looked at with the next
//! pass.

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

/// How much is read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Where damage was found, the next pass begins so long after it.
const AGAIN: Duration = Duration::from_secs(10);

/// How often, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long it rests between two passes.
    pub rest: Duration,
    /// Bytes that it reads in a second.
    pub bytes_per_second: u64,
}

/// What both ends know.
#[derive(Debug, Default)]
struct Shared {
    read_bytes: AtomicU64,
    all_bytes: AtomicU64,
    passes: AtomicU64,
    damages: AtomicU64,
    /// What the last pass found, if that was damage.
    damage: Mutex<Option<String>>,
}

/// What was scrubbed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How much of the pass that is under way, or was the last, in percent.
    pub percent: u64,
    /// Passes that came to their end.
    pub passes: u64,
    /// Passes that found damage.
    pub damages: u64,
    /// What the last one found, if that was damage.
    pub damage: Option<String>,
}

/// The loop's end. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Scrub {
    shared: Arc<Shared>,
    /// Passes with damage that were told.
    told: u64,
    _stop: Sender<()>,
}

impl Scrub {
    /// Begins the thread. Where it finds damage, it makes `bell`, an eventfd, readable.
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

    /// The damage that was found since this was asked last.
    pub fn take_damage(&mut self) -> Option<String> {
        let damages = self.shared.damages.load(Ordering::Acquire);
        if std::mem::replace(&mut self.told, damages) == damages {
            return None;
        }
        self.progress().damage
    }

    /// What was scrubbed so far.
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

/// How a pass ended.
enum Pass {
    Clean,
    Damaged(Error),
    /// A snapshot took the place of segments before they were opened, or the replica is gone.
    CutShort,
}

/// The thread's end.
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
                // What took the place of what was read was just written.
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

    /// Whether to go on, after so long.
    fn waits(&self, time: Duration) -> bool {
        self.stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// Looks at all that the directory holds now. One file is open at a time: where a snapshot
    /// takes the place of segments, these give their space back at once, and the pass ends.
    fn pass(&self) -> Result<Pass, Error> {
        let Some((storage, numbers)) = list(&self.directory)? else { return Ok(Pass::CutShort) };
        let path = |number: &u64| segment_path(&self.directory, storage, *number);
        // What is written from now on is not read: the file has what it has.
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

/// `None` of a file that was removed.
fn unless_gone<T>(opened: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}
