//! Waiting for file descriptors: epoll, level-triggered.

use std::os::fd::{AsFd, OwnedFd};

use concord_core::{Instant, MS};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::{Context, Error};

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// Longest wait: a bound on what a wrong deadline could cost.
const WAIT_MS_MAX: u64 = 1_000;

/// Which descriptor an event is about, as its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Something can be read, or the peer is gone.
    pub read: bool,
    /// Something can be written.
    pub write: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Interest = Interest { read: true, write: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN | EventFlags::RDHUP, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is ready. Errors and hang-ups count as both: the next call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub token: Token,
    /// Reading will not block.
    pub readable: bool,
    /// Writing will not block.
    pub writable: bool,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> Result<Poller, Error> {
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC).cannot("create an epoll")? })
    }

    /// Watches `fd` from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), interest.flags())
            .cannot("watch a descriptor")
    }

    /// Changes what `fd` is watched for.
    ///
    /// # Errors
    /// The system's.
    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), Error> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), interest.flags())
            .cannot("watch a descriptor")
    }

    /// Stops watching `fd`; a closed descriptor is forgotten by itself.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or the deadline has come, and replaces `events`.
    ///
    /// # Errors
    /// The system's; an interrupted wait is not one.
    pub fn wait(
        &self,
        now: Instant,
        deadline: Instant,
        raw: &mut Vec<epoll::Event>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        raw.clear();
        events.clear();
        raw.reserve(EVENTS_MAX);
        let wait_ms = deadline.since(now).div_ceil(MS).min(WAIT_MS_MAX) as i64;
        let timeout = Timespec { tv_sec: wait_ms / 1_000, tv_nsec: wait_ms % 1_000 * MS as i64 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(raw), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).cannot("wait for events"),
        }
        for event in raw.iter() {
            let flags = event.flags;
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            events.push(Event {
                token: Token(event.data.u64()),
                readable: broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: broken || flags.intersects(EventFlags::OUT),
            });
        }
        Ok(())
    }
}
