//! The law of every node.
//!
//! A node takes one input at a time and then every output is drained, before the next input:
//! - `handle(now, input)`: a packet, a timer, a completion of the storage engine or the disk;
//! - outputs: packets to send, replies, things to persist, written into a sink that the driver
//!   hands in, so that the hot path allocates nothing;
//! - `deadline()`: when to be woken if nothing arrives before.
//!
//! No clock, socket, thread or random source of its own. Drivers run the same machines: the
//! simulator, the runtime and the model checker.

use crate::time::Instant;

/// Where a machine wants to be woken, and why: the reason is printed in traces.
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
