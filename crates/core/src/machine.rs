//! The law of every node, as a trait. Drivers run the same machines: the simulator, the runtime and
//! the model checker.
//!
//! A machine takes one input at a time, and every output is drained before the next batch of
//! inputs:
//!
//! | input | when |
//! |---|---|
//! | [`Machine::handle`] | a packet came |
//! | [`Machine::tick`] | its [`Machine::deadline`] has come |
//! | [`Machine::persisted`] | something that it gave out is durable |
//! | [`Machine::flush`] | a batch of any of these has ended |
//!
//! Its outputs are packets, written into a [`Sink`] of the driver, so that the hot path allocates
//! nothing, and the results of [`Machine::poll_persist`]. A machine may have further inputs (a
//! client's calls, completions of an engine), as methods of its own, for which the same law holds.
//!
//! A machine has no clock, socket, thread or random source of its own.
//!
//! ```
//! use concord_core::machine::{Deadline, Machine};
//! use concord_core::{Addr, Instant, MS, Nothing, Now, Sink};
//!
//! /// Sends back what comes, and says every 100 ms that it lives.
//! struct Echo {
//!     controller: Addr,
//!     alive_at: Instant,
//! }
//!
//! impl Machine for Echo {
//!     type Persist = Nothing;
//!
//!     fn handle(&mut self, _now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
//!         sink.send(from, packet);
//!     }
//!
//!     fn tick(&mut self, now: Now, sink: &mut impl Sink) {
//!         if now.instant >= self.alive_at {
//!             self.alive_at = now.instant.after(100 * MS);
//!             sink.send(self.controller, b"alive");
//!         }
//!     }
//!
//!     fn deadline(&self) -> Deadline {
//!         Deadline { at: self.alive_at, reason: "sign of life" }
//!     }
//! }
//!
//! let mut echo = Echo { controller: Addr { ip: 1, port: 1 }, alive_at: Instant(0) };
//! let (mut sent, now) = (Vec::new(), Now::default());
//! echo.tick(now, &mut sent);
//! echo.handle(now, Addr { ip: 2, port: 2 }, &mut [7], &mut sent);
//! assert_eq!(sent[1], (Addr { ip: 2, port: 2 }, vec![7]));
//! assert_eq!(echo.deadline().at, Instant(100 * MS));
//! ```

use alloc::vec::Vec;

use crate::addr::{Addr, Sink};
use crate::time::{Instant, Now};

/// A node without I/O.
pub trait Machine {
    /// The data that has to be durable before others may hear of it; [`Nothing`] for a machine
    /// without any.
    type Persist;

    /// Handles one datagram of `from`, which it may rewrite; there may be padding after it. `now`
    /// was sampled after the packet had arrived (trap T1).
    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink);

    /// Its deadline has come. To be called too early does no harm.
    fn tick(&mut self, now: Now, sink: &mut impl Sink);

    /// When to be woken if nothing arrives before, and why.
    fn deadline(&self) -> Deadline;

    /// The end of a batch of inputs, one at least: what is said once for all of them is sent here.
    fn flush(&mut self, _now: Now, _sink: &mut impl Sink) {}

    /// The next data to make durable, in order; called after each [`Machine::flush`] until there is
    /// no more. The driver may write several at once.
    fn poll_persist(&mut self) -> Option<Persist<Self::Persist>> {
        None
    }

    /// All that was given out up to `number` is durable, and outlives a power cut.
    fn persisted(&mut self, _now: Now, _number: u64, _sink: &mut impl Sink) {}

    /// The possible effect of a packet that arrives from now on, for the model checker, which
    /// counts states that differ only in irrelevant packets as one.
    fn relevance(&self, _packet: &[u8]) -> Relevance {
        Relevance::Relevant
    }
}

/// The possible effect of a packet that is in flight to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// Something, as far as the machine knows.
    Relevant,
    /// None, unless the node begins anew: the packet belongs to a time that is over.
    Stale,
    /// None, if no node has ever begun anew: the packet also carries incarnations.
    StaleButIncarnations,
    /// None, if it would have none now: the machine keeps the maximum of its content.
    AsNow,
    /// None, if it would have none now and no time passes: the time of its arrival matters.
    AsNowButTime,
    /// None, if the machine would not change now, and the packets that it passes on have no effect.
    AsPassedOn,
    /// As much as of this answer, which its client would get.
    AsAnswer {
        /// The client.
        to: Addr,
        /// The answer's header.
        packet: Vec<u8>,
    },
}

/// Data that a machine wants to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Persist<P> {
    /// The machine's own number of it; numbers rise.
    pub number: u64,
    /// It.
    pub what: P,
}

/// The [`Machine::Persist`] of a machine without durable data. It has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {}

/// The time at which a machine wants to be woken, and the reason, which traces show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When.
    pub at: Instant,
    /// Why, for traces and for the engineer at three in the morning.
    pub reason: &'static str,
}

impl Deadline {
    /// Nothing to wake up for.
    pub const NONE: Deadline = Deadline { at: Instant::NEVER, reason: "idle" };

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Deadline) -> Deadline {
        if other.at < self.at { other } else { self }
    }
}
