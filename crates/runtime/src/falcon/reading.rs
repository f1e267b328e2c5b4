//! Parses long submissions in a thread of its own: hundreds of thousands of lines take longer than
//! a lease may wait for the owner's loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use super::jobs::{self, Executors, Read};
use crate::error::{Context, Error};
use crate::http::api::{Answer, Ask};

/// A request, and the job that was parsed, or the reason that it is invalid.
pub(super) type Submission = (Ask, Result<Read, String>);

/// The loop's handle of the thread. The bound on open requests also bounds its queue.
#[derive(Debug)]
pub(super) struct Reading {
    /// Readable when something was parsed.
    done: Arc<OwnedFd>,
    to: Sender<Ask>,
    from: Receiver<Submission>,
}

impl AsFd for Reading {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Reading {
    /// Starts the thread, which ends when this is dropped.
    pub(super) fn start(executors: Executors) -> Result<Reading, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let done = Arc::new(eventfd(0, flags).cannot("make an eventfd")?);
        let (to, asks) = channel::<Ask>();
        let (tell, from) = channel();
        let bell = Arc::clone(&done);
        let work = move || {
            for ask in asks {
                let read = jobs::read(&ask.body, &executors);
                // Both fail only where the loop is gone.
                let _ = tell.send((ask, read));
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
            }
        };
        let named = std::thread::Builder::new().name("submissions".to_string());
        named.spawn(work).cannot("start the thread that reads submissions")?;
        Ok(Reading { done, to, from })
    }

    /// Hands a request over to be parsed.
    pub(super) fn read(&self, ask: Ask) {
        if let Err(unsent) = self.to.send(ask) {
            let why = "the owner cannot read long submissions any more: start it again";
            unsent.0.answer(Answer::refused(500, why));
        }
    }

    /// Resets the descriptor after it was readable.
    pub(super) fn heard(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.done, &mut count);
    }

    /// The next result. Call it until there is none, when the descriptor is readable.
    pub(super) fn next(&self) -> Option<Submission> {
        self.from.try_recv().ok()
    }
}
