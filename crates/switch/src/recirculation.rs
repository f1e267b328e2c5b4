//! Packets between two of their passes: a queue of a fixed length, in which each waits as long.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant};

use crate::fabric::Arrival;

/// The way that a packet takes from its verdict to its next pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How long it takes, in ns.
    pub delay_ns: Duration,
    /// Packets on it at a time; more are lost.
    pub packets_max: usize,
}

impl Loop {
    /// About what an ASIC's takes, and packets of 10 us at 100 Gb/s.
    pub const DEFAULT: Loop = Loop { delay_ns: 1_000, packets_max: 128 };
    /// A switch in user space: a pass is a call, and the next one follows at once.
    pub const AT_ONCE: Loop = Loop { delay_ns: 0, ..Loop::DEFAULT };
}

/// A packet on its way to another pass.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// When it comes.
    at: Instant,
    pub(crate) arrival: Arrival,
    pub(crate) bytes: Vec<u8>,
}

/// The packets on their way to another pass, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Recirculation {
    way: Loop,
    waiting: VecDeque<Waiting>,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
}

impl Recirculation {
    pub(crate) fn new(way: Loop) -> Recirculation {
        Recirculation { way, waiting: VecDeque::new(), spare: Vec::new() }
    }

    /// Whether no packet is on its way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a packet that leaves the pipeline at `now`, if there is room.
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

    /// The next packet that has come by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.waiting.pop_front_if(|waiting| waiting.at <= now)
    }

    /// A buffer that is not needed any more.
    pub(crate) fn reuse(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }

    /// Forgets the packets of a program that goes.
    pub(crate) fn forget(&mut self, seat: usize) {
        self.waiting.retain(|waiting| waiting.arrival.seat != seat);
    }

    /// When the next packet comes.
    pub(crate) fn deadline(&self) -> Deadline {
        let at = self.waiting.front().map(|waiting| waiting.at);
        at.map_or(Deadline::NONE, |at| Deadline { at, reason: "a packet comes round" })
    }
}
