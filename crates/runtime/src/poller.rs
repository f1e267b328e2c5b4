//! Waits for file descriptors: epoll, level-triggered.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use concord_core::{Duration, Instant, MS, SEC};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::{Context, Error};

/// The default number of events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// The longest wait, which bounds the cost of a wrong deadline.
const WAIT_NS_MAX: Duration = SEC;

/// The identity of a watched descriptor, as its owner chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// The events for which a descriptor is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Data can be read, or the peer is gone.
    pub read: bool,
    /// Data can be written.
    pub write: bool,
    /// The peer sends no more, even if nothing is to be read.
    pub end: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Interest = Interest { read: true, write: false, end: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::RDHUP, self.read || self.end);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A ready descriptor. Errors and hang-ups count as both readable and writable: the next call
/// reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The descriptor.
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
    /// Whether the kernel supports only waits of whole milliseconds (Linux before 5.11).
    is_coarse: Cell<bool>,
    /// The number of events taken from the kernel at once.
    events_max: usize,
}

impl AsFd for Poller {
    /// Readable while one of its descriptors is ready: a poller can be watched by another one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The timeout for the kernel.
fn timeout(wait_ns: Duration, is_coarse: bool) -> Timespec {
    let wait_ns = wait_ns.min(WAIT_NS_MAX);
    let wait_ns = if is_coarse { wait_ns.div_ceil(MS) * MS } else { wait_ns };
    Timespec { tv_sec: (wait_ns / SEC) as i64, tv_nsec: (wait_ns % SEC) as i64 }
}

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> Result<Poller, Error> {
        Poller::with_events(EVENTS_MAX)
    }

    /// As [`Poller::new`], with the number of events taken from the kernel at once.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn with_events(events_max: usize) -> Result<Poller, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).cannot("create an epoll")?;
        Ok(Poller { epoll, is_coarse: Cell::new(false), events_max })
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
        raw.reserve_exact(self.events_max);
        loop {
            let timeout = timeout(deadline.since(now), self.is_coarse.get());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(raw), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => break,
                Err(Errno::NOSYS) if !self.is_coarse.get() => self.is_coarse.set(true),
                Err(e) => return Err(e).cannot("wait for events"),
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_deadline_and_not_a_millisecond_later() {
        let poller = Poller::new().unwrap();
        let (mut raw, mut events) = (vec![], vec![]);
        let us = |_| {
            let now = crate::clock::now().instant;
            let until = now.after(MS / 10);
            poller.wait(now, until, &mut raw, &mut events).unwrap();
            let woken = crate::clock::now().instant;
            assert!(woken >= until, "too early");
            woken.since(until) / 1_000
        };
        let late: Vec<u64> = (0..50).map(us).collect();
        println!("woken {} us late at best", late.iter().min().unwrap());
        let exact = timeout(1_500_001, false);
        assert_eq!((exact.tv_sec, exact.tv_nsec), (0, 1_500_001));
        assert_eq!(timeout(1_500_001, true).tv_nsec, 2_000_000);
        assert_eq!((timeout(u64::MAX, false).tv_sec, timeout(0, true).tv_nsec), (1, 0));
    }
}
