//! Scheduling of short tasks: their owners and their workers. The queue between the two is in the
//! switch (Falcon, `concord_switch::falcon`).
//!
//! Read [`Owner`] first, then [`Worker`]. The law is that of every node: `handle(now, packet)`,
//! `tick`, `deadline`, and output goes into the sink. A worker's driver gets runs from
//! [`Worker::poll_order`], and reports their end with [`Worker::finished`]; an owner's driver gets
//! outcomes from [`Owner::poll_outcome`].
//!
//! Only the owner knows the state of its tasks: the switch forgets everything when it restarts, and
//! what it handed to a worker may be lost on the way. So an owner asks the switch for its
//! retrieve_ptr: a task whose ticket it has passed was handed to a worker, and is submitted again
//! if no worker says that it runs. An attempt is over at the latest with its lease: a worker stops
//! runs without a lease.
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
