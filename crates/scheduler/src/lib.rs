//! Scheduling of short tasks: who owns them, and who runs them. The queue between the two is in the
//! switch (Falcon, `concord_switch::falcon`).
//!
//! Read [`Owner`] first, then [`Worker`]. The law is that of every node: `handle(now, packet)`,
//! `tick`, `deadline`, and what they send goes into the sink. What a worker is to run comes out of
//! [`Worker::poll_order`], how it ended goes in by [`Worker::finished`]; how a task ended comes out
//! of [`Owner::poll_outcome`].
//!
//! The owner alone knows how its tasks stand: the switch forgets everything when it restarts, and
//! what it handed to a worker may be lost on the way. So an owner asks the switch how far
//! retrieve_ptr is: a task whose ticket it has passed was handed to somebody, and is submitted
//! again if nobody says that it runs. That an attempt is over it knows by its lease: a worker stops
//! what it has no lease for.
//!
//! ```
//! use concord_core::{Machine, Now, SessionId};
//! use concord_scheduler::{Job, Owner, OwnerConfig, TaskSpec};
//! use concord_wire::Addr;
//!
//! let addr = |port| Addr { ip: 0x7f00_0001, port };
//! let mut owner = Owner::new(OwnerConfig::new(SessionId(1), addr(9000), addr(7000)));
//! let mut sink = Vec::new();
//! let jid = owner.submit(Now::default(), Job { tasks: vec![TaskSpec::default(); 20], ..Job::default() });
//! assert_eq!(jid, Some(1));
//! owner.tick(Now::default(), &mut sink);
//! assert_eq!(sink.len(), 2, "sixteen tasks fit a submission");
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod bodies;
mod book;
mod journal;
mod journaled;
mod outcome;
mod owner;
mod tags;
mod trace;
mod worker;

pub use book::{Book, Counts, JobRecord, OUTPUT_BYTES_KEPT_MAX};
pub use journal::{Found, FoundJob, FoundOutcome, Journal, JournalReader};
pub use journaled::JournaledOwner;
pub use outcome::{Outcome, TaskOutcome};
pub use owner::{Drained, Job, Owner, OwnerConfig, OwnerCounters, TASKS_OPEN_MAX, TaskSpec};
pub use trace::{Again, Trace};
pub use worker::{Order, Output, SLOTS_MAX, Worker, WorkerConfig, WorkerCounters};
