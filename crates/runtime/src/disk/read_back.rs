//! Reading a snapshot back: what it takes the place of is removed only once all that was written
//! since it began was read from the disk, and not from the system's cache, and every frame is
//! valid. A thread does that, at most half of the time, in pieces: the disk's thread goes on
//! meanwhile, and where it waits for room, this is what makes some.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use concord_log::{Check, HEADER_BYTES};
use rustix::fs::{Advice, fadvise};

use crate::directory::{segment_path, sync};
use crate::error::{Context, Error, is_without_descriptors};

/// How much is read at a time; then as much time is left to others as that took.
const PIECE_BYTES: usize = 1 << 20;
/// Longest rest between two pieces.
const REST_MAX: Duration = Duration::from_millis(100);

/// What is to be done.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) path: PathBuf,
    pub(super) storage: u64,
    /// The segments from the one that the snapshot begins on, and how much of each is checked.
    pub(super) segments: Vec<(u64, u64)>,
    /// The segments that go then, the oldest first.
    pub(super) gone: Vec<u64>,
}

/// What was found.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The segments before are gone, with so many bytes.
    Removed { segments: Vec<u64>, bytes: u64 },
    /// The snapshot cannot be read: nothing is removed.
    Damaged(Error),
    /// The disk failed while segments were removed.
    Failed(Error),
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReadBack {
    stopped: Arc<AtomicBool>,
    outcome: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl ReadBack {
    pub(super) fn start(task: Task) -> Result<ReadBack, Error> {
        let stopped = Arc::new(AtomicBool::new(false));
        let (tell, outcome) = channel();
        let is_stopped = Arc::clone(&stopped);
        let thread = std::thread::Builder::new().name("read back".to_string());
        let work = move || {
            let done = match task.check(&is_stopped) {
                Ok(true) => task.remove(),
                Ok(false) => return,
                Err(error) => Outcome::Damaged(error),
            };
            let _ = tell.send(done);
        };
        let thread = Some(thread.spawn(work).cannot("start the thread that reads back")?);
        Ok(ReadBack { stopped, outcome, thread })
    }

    /// What was found, once it is.
    pub(super) fn poll(&self) -> Option<Outcome> {
        self.outcome.try_recv().ok()
    }

    /// Ends it: what it had found by then. What it removed is gone, whoever asks for it or not.
    pub(super) fn stop(mut self) -> Option<Outcome> {
        self.join();
        self.poll()
    }

    fn join(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ReadBack {
    fn drop(&mut self) {
        self.join();
    }
}

/// Opens a file; where the process or the system has no descriptor left, once it has: that says
/// nothing of the disk. `None` if it was stopped before.
fn open(path: &Path, stopped: &AtomicBool) -> Result<Option<File>, Error> {
    while !stopped.load(Ordering::Relaxed) {
        match File::open(path) {
            Err(error) if is_without_descriptors(&error) => std::thread::sleep(REST_MAX),
            file => return file.cannot(format!("open {}", path.display())).map(Some),
        }
    }
    Ok(None)
}

impl Task {
    /// Reads all of it; false if it was stopped before.
    fn check(&self, stopped: &AtomicBool) -> Result<bool, Error> {
        for (segment, end) in &self.segments {
            let path = segment_path(&self.path, self.storage, *segment);
            let what = || format!("read {}", path.display());
            let Some(file) = open(&path, stopped)? else { return Ok(false) };
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
            let mut reader = BufReader::with_capacity(PIECE_BYTES, &file);
            let mut check = Check::new(self.storage, *segment);
            let (mut frame, mut piece, mut began) = (Vec::new(), 0, Instant::now());
            while check.offset() < *end {
                if stopped.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let mut header = [0; HEADER_BYTES];
                reader.read_exact(&mut header).cannot(what())?;
                let length =
                    Check::frame_bytes(&header).filter(|n| *n as u64 <= *end - check.offset());
                frame.clear();
                frame.extend_from_slice(&header);
                frame.resize(length.unwrap_or(HEADER_BYTES), 0);
                reader.read_exact(&mut frame[HEADER_BYTES..]).cannot(what())?;
                if !check.take(&frame) {
                    let (path, offset) = (path.display(), check.offset());
                    return Err(Error::new(format!("{path}: damaged at offset {offset}")));
                }
                piece += frame.len();
                if piece >= PIECE_BYTES {
                    std::thread::sleep(began.elapsed().min(REST_MAX));
                    (piece, began) = (0, Instant::now());
                }
            }
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
        Ok(true)
    }

    /// What is before is of no use. The oldest goes first, so that a crash leaves no gap.
    fn remove(&self) -> Outcome {
        let mut bytes = 0;
        let mut remove = || -> Result<(), Error> {
            for segment in &self.gone {
                let path = segment_path(&self.path, self.storage, *segment);
                let size = std::fs::metadata(&path).map_or(0, |m| m.len());
                std::fs::remove_file(&path).cannot(format!("remove {}", path.display()))?;
                bytes += size;
            }
            sync(&self.path).cannot(format!("sync {}", self.path.display()))
        };
        match remove() {
            Ok(()) => Outcome::Removed { segments: self.gone.clone(), bytes },
            Err(error) => Outcome::Failed(error),
        }
    }
}
