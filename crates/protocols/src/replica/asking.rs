//! CRAQ: reads of dirty objects that wait for the tail's answer.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Instant;

use super::unanswered::WAITING_MAX;
use crate::setup::RETRY_NS;

/// The reads, and the queries that speak for them.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// In the order in which they came, each with the number of the query that speaks for it: the
    /// first one sent after it came, so that the answer is not older than the read.
    reads: VecDeque<(u64, Vec<u8>)>,
    /// The number of the last query sent; never reset, so that an old answer covers no new read.
    asked: u64,
    /// When to ask again.
    retry_at: Instant,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { reads: VecDeque::new(), asked: 0, retry_at: Instant::NEVER }
    }
}

impl Asking {
    /// The epoch is over: its answers count no more, and clients ask again.
    pub(super) fn forget(&mut self) {
        self.reads.clear();
        self.retry_at = Instant::NEVER;
    }

    /// Whether a read waits for which no query was sent.
    pub(super) fn is_due(&self) -> bool {
        self.reads.back().is_some_and(|(number, _)| *number > self.asked)
    }

    /// When to ask again, if no answer comes.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    pub(super) fn is_full(&self) -> bool {
        self.reads.len() >= WAITING_MAX
    }

    /// A read waits, as the packet that it came in.
    pub(super) fn push(&mut self, packet: Vec<u8>) {
        self.reads.push_back((self.asked + 1, packet));
    }

    /// A query is sent now, for all reads that wait: its number.
    pub(super) fn query(&mut self, now: Instant) -> u64 {
        self.asked += 1;
        self.retry_at = now.after(RETRY_NS);
        self.asked
    }

    /// The next read that the answer to query `number` speaks for.
    pub(super) fn pop(&mut self, number: u64) -> Option<Vec<u8>> {
        let (covered_by, _) = self.reads.front()?;
        if *covered_by > number {
            return None;
        }
        let (_, packet) = self.reads.pop_front()?;
        if self.reads.is_empty() {
            self.retry_at = Instant::NEVER;
        }
        Some(packet)
    }
}
