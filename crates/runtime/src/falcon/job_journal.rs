//! The file of an owner's journal: locked, appended to and synced by a thread of its own, before
//! any effect of its entries is told.
//!
//! The format, and the handling of a torn end, is [`concord_scheduler::Journal`]'s. A journal is
//! rewritten at each start without the entries that are no longer needed, in the same way as the
//! controller's state: into a file beside it, which is synced and renamed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use concord_scheduler::{Found, Journal, JournalReader};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Context, Error};
use crate::roles::unique;

/// The number of finished jobs that are kept when a journal is rewritten.
const OVER_MAX: usize = 1_000;
/// The bytes read at a time.
const READ_BYTES: usize = 4 << 20;
/// The file's permissions: commands, their lines and their outputs are the owner's alone.
const MODE: u32 = 0o600;

/// The file. This process holds its lock for as long as the value exists.
#[derive(Debug)]
pub(crate) struct JobJournal {
    path: PathBuf,
    file: File,
    _lock: File,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

impl JobJournal {
    /// Locks and reads the file. Its entries are written once more, into a new file.
    ///
    /// # Errors
    /// Another owner holds it, it is damaged, or the system refuses.
    pub(crate) fn open(path: &Path) -> Result<(JobJournal, Journal, Found), Error> {
        let name = path.display();
        let lock_path = beside(path, ".lock");
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(&lock_path);
        let lock = lock.cannot(format!("open {}", lock_path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::new(format!("another owner holds the journal {name}")))?;
        let damaged = |why: String| {
            Error::new(format!("the journal {name}: {why}; move it away to begin without its jobs"))
        };
        // The file may be long: no more of it is in memory than is needed.
        let mut reader = JournalReader::default();
        match File::open(path) {
            Ok(mut file) => {
                let mut piece = vec![0; READ_BYTES];
                loop {
                    let count = file.read(&mut piece).cannot(format!("read {name}"))?;
                    if count == 0 {
                        break;
                    }
                    reader.take(&piece[..count]).map_err(damaged)?;
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e).cannot(format!("read {name}")),
        }
        let mut found = reader.finish().map_err(damaged)?.unwrap_or_default();
        let number = unique()?;
        if found.incarnation == 0 {
            found.incarnation = unique()?;
        }
        let temporary = beside(path, ".new");
        let mut write = || -> std::io::Result<File> {
            // The leftover of an earlier attempt may have another mode.
            match std::fs::remove_file(&temporary) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                Ok(()) | Err(_) => {}
            }
            let mut file =
                OpenOptions::new().create_new(true).write(true).mode(MODE).open(&temporary)?;
            Journal::rewrite(number, &mut found, OVER_MAX, |bytes| file.write_all(bytes))?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            let directory = path.parent().filter(|parent| *parent != Path::new(""));
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = write().cannot(format!("write {name}"))?;
        let journal = Journal::resume(&found);
        Ok((JobJournal { path: path.to_path_buf(), file, _lock: lock }, journal, found))
    }

    /// Starts the thread that writes from now on.
    ///
    /// # Errors
    /// The system refuses a descriptor or the thread.
    pub(crate) fn start(mut self) -> Result<JournalThread, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let done = Arc::new(eventfd(0, flags).cannot("make an eventfd")?);
        let (to, frames) = sync_channel::<Vec<u8>>(1);
        let (tell, from) = sync_channel(1);
        let bell = Arc::clone(&done);
        let work = move || {
            for frame in frames {
                let written = self.append(&frame);
                let has_failed = written.is_err();
                // Both fail only where the loop is gone.
                let _ = tell.send(written);
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                if has_failed {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name("journal".to_string());
        named.spawn(work).cannot("start the journal's thread")?;
        Ok(JournalThread { done, to, from, frames: 0 })
    }

    /// Appends `bytes`, and syncs.
    ///
    /// # Errors
    /// The disk's error: no effect of `bytes` may be told then.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.cannot(format!("write the journal {}", self.path.display()))
    }
}

/// The loop's handle of the thread that writes a journal, one frame at a time: the loop does not
/// wait for the disk.
#[derive(Debug)]
pub(crate) struct JournalThread {
    /// Readable when a frame has been written.
    done: Arc<OwnedFd>,
    to: SyncSender<Vec<u8>>,
    from: Receiver<Result<(), Error>>,
    /// The number of frames that were written.
    frames: u64,
}

impl AsFd for JournalThread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl JournalThread {
    /// Hands a frame over. The one before must have been written.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn write(&mut self, frame: Vec<u8>) -> Result<(), Error> {
        self.to.try_send(frame).map_err(|_| Error::new("the journal's thread is gone"))
    }

    /// The number of the frame that was written, from 1, once the descriptor is readable.
    ///
    /// # Errors
    /// The disk's error: no effect of the frame may be told then.
    pub(crate) fn written(&mut self) -> Result<Option<u64>, Error> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.done, &mut count);
        match self.from.try_recv() {
            Ok(written) => {
                self.frames += 1;
                written.map(|()| Some(self.frames))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Error::new("the journal's thread is gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::machine::Machine;
    use concord_core::{Now, SessionId};
    use concord_scheduler::{Job, JournaledOwner, OwnerConfig, TaskSpec};
    use concord_wire::Addr;

    fn owner(journal: Journal, found: &Found) -> JournaledOwner {
        let addr = Addr { ip: 1, port: 1 };
        JournaledOwner::resume(
            OwnerConfig::new(SessionId(1), addr, addr),
            Now::default(),
            journal,
            found,
        )
    }

    /// A job is found again a torn end is cut and damage is refused with one line.
    #[test]
    fn job_journal_recovery() {
        let directory =
            std::env::temp_dir().join(format!("concord-journal-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("jobs");
        let (file, journal, found) = JobJournal::open(&path).unwrap();
        let incarnation = found.incarnation;
        let mut thread = file.start().unwrap();
        assert!(found.jobs.is_empty());
        let line = JobJournal::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(line.starts_with("another owner holds the journal"), "{line}");
        let mut own = owner(journal, &found);
        let job = Job { tasks: vec![TaskSpec::default(); 3], ..Job::default() };
        let jid = own.submit(Now::default(), job, b"note").unwrap();
        assert!(!own.is_taken(jid));
        let mut sent = Vec::new();
        own.tick(Now::default(), &mut sent);
        assert!(sent.is_empty(), "nobody hears of it before it is durable");
        let persist = own.poll_persist().unwrap();
        thread.write(persist.what).unwrap();
        let number = loop {
            if let Some(number) = thread.written().unwrap() {
                break number;
            }
            std::thread::yield_now();
        };
        assert_eq!(number, persist.number);
        own.persisted(Now::default(), number, &mut sent);
        assert!(own.is_taken(jid) && !sent.is_empty());
        drop(thread);
        // The thread lets go of the lock when it has heard of that.
        let began = std::time::Instant::now();
        while JobJournal::open(&path).is_err() {
            assert!(began.elapsed().as_secs() < 20);
        }
        // Torn.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"CJF1 and no more");
        std::fs::write(&path, &bytes).unwrap();
        let (file, _, found) = JobJournal::open(&path).unwrap();
        assert_eq!((found.jobs.len(), found.jobs[&jid].note.as_slice()), (1, &b"note"[..]));
        assert_eq!((found.next_jid(), found.incarnation), (jid + 1, incarnation));
        assert_ne!(incarnation, 0, "the numbers of its jobs are its own (bug 21.80)");
        drop(file);
        // Also where an older one was everybody's to read (bug 21.59).
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, MODE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let line = JobJournal::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(line.contains("damaged") && line.contains("move it away"), "{line}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
