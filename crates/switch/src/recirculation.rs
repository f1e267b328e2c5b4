//! The recirculation path: a queue of bounded length, in which each packet waits equally long.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant};

use crate::fabric::Arrival;

/// The path of a packet from its verdict to its next pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The time that it takes, in ns.
    pub delay_ns: Duration,
    /// The maximum number of packets on it; further ones are lost.
    pub packets_max: usize,
}

impl Loop {
    /// About the delay of an ASIC, with room for packets of 10 us at 100 Gb/s.
    pub const DEFAULT: Loop = Loop { delay_ns: 1_000, packets_max: 128 };
    /// A switch in user space: a pass is a call, and the next one follows immediately.
    pub const AT_ONCE: Loop = Loop { delay_ns: 0, ..Loop::DEFAULT };
}

/// A packet that waits for its next pass.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// When it re-enters the pipeline.
    at: Instant,
    pub(crate) arrival: Arrival,
    pub(crate) bytes: Vec<u8>,
}

/// The packets that wait for their next pass, in order.
#[derive(Clone, Debug)]
pub(crate) struct Recirculation {
    way: Loop,
    waiting: VecDeque<Waiting>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Recirculation {
    pub(crate) fn new(way: Loop) -> Recirculation {
        Recirculation { way, waiting: VecDeque::new(), spare: Vec::new() }
    }

    /// Whether no packet waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a packet that leaves the pipeline at `now`; `false` if there is no room.
    pub(crate) fn push(&mut self, now: Instant, arrival: Arrival, packet: &[u8]) -> bool {
        if self.waiting.len() >= self.way.packets_max {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        let at = now.after(self.way.delay_ns);
        self.waiting.push_back(Waiting { at, arrival, bytes });
        true
    }

    /// The next packet whose wait ends by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.waiting.pop_front_if(|waiting| waiting.at <= now)
    }

    /// Returns a buffer that is no longer needed.
    pub(crate) fn reuse(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }

    /// Removes the packets of a program that is unloaded.
    pub(crate) fn forget(&mut self, seat: usize) {
        self.waiting.retain(|waiting| waiting.arrival.seat != seat);
    }

    /// When the next packet re-enters the pipeline.
    pub(crate) fn deadline(&self) -> Deadline {
        let at = self.waiting.front().map(|waiting| waiting.at);
        at.map_or(Deadline::NONE, |at| Deadline { at, reason: "a packet comes round" })
    }
}
