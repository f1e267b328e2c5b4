//! Whether a disk has room. A reserve file holds some back: once the disk is full, that space is
//! freed for what has to be written in any case, so that a replica that refuses writes can say so
//! in its log (trap T14).

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::error::is_full;

pub(crate) const NAME: &str = "reserve";
/// The bytes held back, and the bytes that must be free beside them; less on a small disk.
const RESERVE_BYTES: u64 = 16 << 20;
const FREE_BYTES: u64 = 16 << 20;
const SHARE: u64 = 32;

/// The room on the disk of a directory.
#[derive(Debug)]
pub(super) struct Room {
    directory: PathBuf,
    reserve: PathBuf,
    is_short: Arc<AtomicBool>,
}

impl Room {
    pub(super) fn new(directory: &Path, is_short: Arc<AtomicBool>) -> Room {
        let reserve = directory.join(NAME);
        Room { directory: directory.to_path_buf(), reserve, is_short }
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Checks the disk again. Returns whether the result has changed.
    pub(super) fn look(&mut self) -> bool {
        let before = self.is_short();
        let Ok(disk) = statvfs(&self.directory) else { return false };
        let (free, total) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        let (reserve, least) = (RESERVE_BYTES.min(total / SHARE), FREE_BYTES.min(total / SHARE));
        let mut is_short = free < if before { 2 * least } else { least };
        let is_held = std::fs::metadata(&self.reserve).is_ok_and(|own| own.len() >= reserve);
        if !is_held {
            let has_room = free >= reserve + 2 * least;
            is_short = !(has_room && self.hold(reserve));
        }
        self.is_short.store(is_short, Ordering::Relaxed);
        is_short != before
    }

    /// Reserves this many bytes. If the file system cannot, nothing is reserved.
    fn hold(&self, bytes: u64) -> bool {
        match hold(&self.reserve, bytes) {
            Ok(()) => true,
            Err(e) if is_full(&e) => {
                self.give();
                false
            }
            Err(_) => true,
        }
    }

    /// Frees the reserve for what has to be written.
    pub(super) fn give(&self) {
        let _ = std::fs::remove_file(&self.reserve);
        self.is_short.store(true, Ordering::Relaxed);
    }
}

/// Makes the reserve file take this many bytes.
pub(crate) fn hold(reserve: &Path, bytes: u64) -> io::Result<()> {
    let file: File = OpenOptions::new().create(true).truncate(true).write(true).open(reserve)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(())
}
