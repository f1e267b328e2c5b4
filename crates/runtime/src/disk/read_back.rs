//! Reads a snapshot back: the segments that it replaces are removed only once all that was written
//! since it began was read from the disk, not from the system's cache, and every frame is valid. A
//! thread does that in pieces, at most half of the time: the disk's thread continues meanwhile, and
//! if it waits for room, this is what frees some.

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

/// The bytes read at a time. After each piece the thread rests for as long as reading it took.
const PIECE_BYTES: usize = 1 << 20;
/// The longest rest between two pieces.
const REST_MAX: Duration = Duration::from_millis(100);

/// The work of the thread.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) path: PathBuf,
    pub(super) storage: u64,
    /// The segments from the one with which the snapshot begins, each with the number of bytes to
    /// check.
    pub(super) segments: Vec<(u64, u64)>,
    /// The segments that are removed afterwards, the oldest first.
    pub(super) gone: Vec<u64>,
}

/// The result of reading a snapshot back.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The segments before the snapshot were removed. They had `bytes` bytes.
    Removed { segments: Vec<u64>, bytes: u64 },
    /// The snapshot cannot be read, and nothing was removed.
    Damaged(Error),
    /// The disk failed while segments were being removed.
    Failed(Error),
}

/// The thread's handle. The thread ends when this is dropped.
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

    /// The result, once there is one.
    pub(super) fn poll(&self) -> Option<Outcome> {
        self.outcome.try_recv().ok()
    }

    /// Stops the thread, and returns the result if there was one by then. Segments that it removed
    /// are gone in either case.
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

/// Opens a file. If the process or the system has no descriptor left, it waits for one, since that
/// says nothing about the disk. `None` if it was stopped meanwhile.
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
    /// Reads and checks all of it. `false` if it was stopped before the end.
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

    /// Removes the segments that are no longer needed. The oldest goes first, so that a crash
    /// leaves no gap.
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
