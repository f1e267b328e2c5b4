//! Tasks within a program of one's own, without a process in between: [`Submitter`] owns them as
//! `concord owner` does, and [`Functions`] are what a worker executes beside commands and handlers.
//!
//! A program that links both has its tasks in the switch's queue after one packet, and their
//! results in its own loop. They end with it: what runs then is stopped when its lease is over.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use concord_runtime::falcon::tasks::{Functions, Submitter, SubmitterSetup, TaskJob};
//!
//! # fn main() -> Result<(), concord_runtime::Error> {
//! // At a worker of one's own: `falcon::worker::run` with these functions.
//! const SQUARE: u16 = Functions::FIRST;
//! let functions = Functions::default().quick(SQUARE, |call| {
//!     let n = u64::from_be_bytes(call.parameters.try_into().map_err(|_| "not 8 bytes")?);
//!     Ok((n * n).to_be_bytes().to_vec())
//! });
//! # let _ = functions;
//! // At the program that has something to do.
//! let key = concord_runtime::key_file::read("run/key".as_ref())?;
//! let switch = "127.0.0.1:7000".parse().expect("an address");
//! let mut tasks = Submitter::new(&SubmitterSetup::new(switch, key))?;
//! let job = TaskJob::of(SQUARE, (1..=10u64).map(|n| n.to_be_bytes().to_vec()));
//! tasks.submit(job).expect("there is room");
//! while tasks.open() > 0 {
//!     if let Some(told) = tasks.wait(Duration::from_secs(1))? {
//!         println!("task {}: {:?}", told.tid, told.outcome);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use concord_core::{Key, MS, Machine, SEC, SessionId};
use concord_scheduler::{Job, Owner, OwnerConfig, TaskOutcome, TaskSpec};
use concord_wire::falcon::Parameters;
use concord_wire::tasks::Attempt;
use concord_wire::{Addr, GroupId, OfGroup};
use rustix::event::epoll;

use crate::clock;
use crate::error::Error;
use crate::poller::{Event, Interest, Poller, Token};
use crate::roles::unique;
use crate::udp::{Inbox, Outbox, Socket, TRAINS_PER_RECEIVE};

/// The time in ns after it was handed out within which a task's start must be reported: a worker's
/// loop may be busy.
const START_NS: u64 = 50 * MS;
const UDP: Token = Token(0);
/// The number of trains that are received before the output that they caused is sent.
const RECEIVES_MAX: usize = 16;

/// A call of a function.
#[derive(Debug)]
pub struct Call<'a> {
    /// The attempt at the task, which serves as a fencing token.
    pub of: Attempt,
    /// Its parameters.
    pub parameters: &'a [u8],
    is_cancelled: &'a AtomicBool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(of: Attempt, parameters: &'a [u8], is_cancelled: &'a AtomicBool) -> Call<'a> {
        Call { of, parameters, is_cancelled }
    }

    /// Whether the result is no longer wanted: the task was cancelled, took too long, or its lease
    /// is over. A thread cannot be killed, so a function that takes long should check this.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// The result of a function: its output, or one line that says why it failed.
pub type Called = Result<Vec<u8>, String>;
pub(crate) type Function = dyn Fn(&Call<'_>) -> Called + Send + Sync;

/// The functions of a worker beside the built-in ones, by their numbers.
#[derive(Clone, Default)]
pub struct Functions {
    pub(crate) all: BTreeMap<u16, (bool, Arc<Function>)>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all.keys()).finish()
    }
}

impl Functions {
    /// The lowest number that a function may have.
    pub const FIRST: u16 = 256;

    /// Adds a function that is called in the worker's loop, for work of well below a millisecond:
    /// the worker receives nothing meanwhile. For panics see [`Functions::threaded`].
    #[must_use]
    pub fn quick(
        self,
        number: u16,
        function: impl Fn(&Call<'_>) -> Called + Send + Sync + 'static,
    ) -> Functions {
        self.with(number, true, Arc::new(function))
    }

    /// Adds a function that is called in a thread of its own. A panic fails its task, and the
    /// worker goes on, if the program is built with `panic = "unwind"`, Cargo's default; with
    /// `panic = "abort"`, as in Concord's own release profile, a panic ends the worker, and its
    /// tasks are begun again elsewhere when their leases are over. While two cancelled calls for
    /// each executor have not returned ([`Call::is_cancelled`]), further tasks are given back.
    #[must_use]
    pub fn threaded(
        self,
        number: u16,
        function: impl Fn(&Call<'_>) -> Called + Send + Sync + 'static,
    ) -> Functions {
        self.with(number, false, Arc::new(function))
    }

    fn with(mut self, number: u16, is_quick: bool, function: Arc<Function>) -> Functions {
        assert!(number >= Functions::FIRST, "numbers below 256 are Concord's own");
        self.all.insert(number, (is_quick, function));
        self
    }
}

/// A job: tasks of one function.
#[derive(Clone, Debug, Default)]
pub struct TaskJob {
    job: Job,
}

impl TaskJob {
    /// A task for each of the parameters, which are of at most 1 MiB each. Up to 16 bytes travel in
    /// the switch's queue.
    #[must_use]
    pub fn of(function: u16, parameters: impl IntoIterator<Item = Vec<u8>>) -> TaskJob {
        let mut job = Job::default();
        for (tid, bytes) in (0..).zip(parameters) {
            let short = Parameters::new(&bytes);
            if short.is_none() {
                job.long.insert(tid, bytes.into());
            }
            job.tasks.push(TaskSpec { function, parameters: short.unwrap_or_default() });
        }
        TaskJob { job }
    }

    /// Never runs a task twice: if a worker dies, the outcome of its task stays unknown.
    #[must_use]
    pub fn once(mut self) -> TaskJob {
        (self.job.once, self.job.retries) = (true, 0);
        self
    }

    /// The number of times that a failed task is tried again.
    #[must_use]
    pub fn retries(mut self, retries: u16) -> TaskJob {
        (self.job.once, self.job.retries) = (false, retries);
        self
    }

    /// The time limit of a task, in whole milliseconds.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> TaskJob {
        self.job.limit_ms = u32::try_from(limit.as_millis().max(1)).unwrap_or(u32::MAX);
        self
    }
}

/// The configuration of a [`Submitter`].
#[derive(Clone, Copy, Debug)]
pub struct SubmitterSetup {
    /// The address of the switch.
    pub switch: Addr,
    /// The address of the controller, which knows whether another switch took over.
    pub controller: Option<Addr>,
    /// The group of the workers.
    pub group: GroupId,
    /// Its own address, as workers reach it; port 0 for any free port.
    pub addr: Addr,
    /// The time in ns that a task may run without being heard of, as in the rack file.
    pub lease_ns: u64,
    /// The rack's secret.
    pub key: Key,
}

impl SubmitterSetup {
    /// The setup for the first group of a rack on this host.
    #[must_use]
    pub fn new(switch: SocketAddrV4, key: Key) -> SubmitterSetup {
        SubmitterSetup {
            switch: Addr { ip: switch.ip().to_bits(), port: switch.port() },
            controller: None,
            group: GroupId::FIRST,
            addr: Addr { ip: 0x7f00_0001, port: 0 },
            lease_ns: SEC,
            key,
        }
    }
}

/// The owner of a program's tasks, within that program.
pub struct Submitter {
    owner: OfGroup<Owner>,
    poller: Poller,
    inbox: Inbox,
    outbox: Outbox,
    raw: Vec<epoll::Event>,
    events: Vec<Event>,
}

impl fmt::Debug for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Submitter {
    /// A submitter without tasks.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn new(setup: &SubmitterSetup) -> Result<Submitter, Error> {
        let socket = Socket::bind(setup.addr)?;
        let bound = socket.addr().map_err(|e| Error::new(format!("cannot listen: {e}")))?;
        let addr = Addr { port: bound.port, ..setup.addr };
        let config = OwnerConfig {
            controller: setup.controller,
            lease_ns: setup.lease_ns,
            start_ns: START_NS,
            key: Some(setup.key),
            ..OwnerConfig::new(SessionId(unique()?), addr, setup.switch)
        };
        let poller = Poller::new()?;
        poller.add(&*socket, UDP, Interest::READ)?;
        Ok(Submitter {
            owner: OfGroup::new(setup.group, Owner::new(config)),
            poller,
            inbox: Inbox::new(Rc::clone(&socket)),
            outbox: Outbox::new(socket),
            raw: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Accepts a job, and returns its number. `None` if it has no tasks, too many are open, or a
    /// task's parameters are longer than 1 MiB.
    pub fn submit(&mut self, job: TaskJob) -> Option<u32> {
        let now = clock::now();
        let jid = self.owner.submit(now, job.job)?;
        self.owner.tick(now, &mut self.outbox);
        self.outbox.flush();
        Some(jid)
    }

    /// Ends all unfinished tasks of a job.
    pub fn cancel(&mut self, jid: u32) {
        let (owner, mut sink) = self.owner.input(&mut self.outbox);
        owner.cancel(clock::now(), jid, &mut sink);
        self.outbox.flush();
    }

    /// The number of tasks that are unfinished, or whose outcome was not returned yet.
    #[must_use]
    pub fn open(&self) -> usize {
        self.owner.open() + self.owner.outcomes_left()
    }

    /// The next outcome of a task, or `None` if there is none within `longest`. Call it repeatedly
    /// while tasks are open: nothing progresses in between. With a time of 0 it takes what has
    /// arrived, and does not wait.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, longest: Duration) -> Result<Option<TaskOutcome>, Error> {
        let ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let until = clock::now().instant.after(ns);
        let mut is_over = false;
        loop {
            let now = clock::now();
            if self.owner.deadline().at <= now.instant {
                self.owner.tick(now, &mut self.outbox);
            }
            self.owner.flush(now, &mut self.outbox);
            self.outbox.flush();
            if let Some(told) = self.owner.poll_outcome() {
                return Ok(Some(told));
            }
            if is_over {
                return Ok(None);
            }
            // Packets that have arrived are received, however short the wait is.
            is_over = until <= now.instant;
            let next = self.owner.deadline().at.min(until);
            self.poller.wait(clock::now().instant, next, &mut self.raw, &mut self.events)?;
            if !self.events.is_empty() {
                self.receive();
            }
        }
    }

    fn receive(&mut self) {
        for _ in 0..RECEIVES_MAX {
            let received = self.inbox.receive();
            // After the receive (trap T1).
            let now = clock::now();
            for mut train in self.inbox.trains() {
                let from = train.from;
                for message in train.messages() {
                    self.owner.handle(now, from, message, &mut self.outbox);
                }
            }
            if received < TRAINS_PER_RECEIVE {
                return;
            }
        }
    }
}

impl Drop for Submitter {
    /// Tells its workers to stop its runs. If one does not hear of it, the lease ends them.
    fn drop(&mut self) {
        let (owner, mut sink) = self.owner.input(&mut self.outbox);
        owner.retire(clock::now(), &mut sink);
        self.outbox.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use concord_scheduler::Outcome;
    use concord_wire::control::Message as _;
    use concord_wire::falcon::Submission;
    use concord_wire::tasks::{Ended, Run, TaskMessage};

    use super::*;

    #[test]
    fn bug_21_37_a_wait_of_no_time_receives_what_is_here() {
        let switch = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, switch.local_addr().unwrap().port());
        let setup = SubmitterSetup::new(at, Key::from_bytes([7; 16]));
        let mut tasks = Submitter::new(&setup).unwrap();
        let jid = tasks.submit(TaskJob::of(Functions::FIRST, [vec![1]])).unwrap();
        assert!(tasks.wait(Duration::ZERO).unwrap().is_none());
        let mut bytes = [0; 2_048];
        let (length, from) = switch.recv_from(&mut bytes).unwrap();
        let uid = Submission::parse(&bytes[..length]).unwrap().uid.0;
        let of = Attempt { uid, jid, tid: 0, attempt: 1 };
        let run = Run { session: 1, run: 1, worker: setup.switch };
        let (output_bytes, output) = (1, vec![9]);
        let result = TaskMessage::Result { of, run, ended: Ended::Done, output_bytes, output };
        let mut bytes = Vec::new();
        result.emit_in(GroupId::FIRST, &mut bytes);
        switch.send_to(&bytes, from).unwrap();
        let told = tasks.wait(Duration::ZERO).unwrap().map(|told| told.outcome);
        assert_eq!(told, Some(Outcome::Done(vec![9])));
    }
}
