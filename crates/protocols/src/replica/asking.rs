//! CRAQ: reads of dirty objects that wait for the tail's answer.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Instant;

use super::unanswered::WAITING_MAX;
use crate::setup::RETRY_NS;

/// The waiting reads, and the queries that cover them.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// The reads in the order of their arrival, each with the number of the query that covers it:
    /// the first one sent after it arrived, so that the answer is not older than the read.
    reads: VecDeque<(u64, Vec<u8>)>,
    /// The number of the last query sent. It is never reset, so that an old answer covers no new
    /// read.
    asked: u64,
    /// The time at which to ask again.
    retry_at: Instant,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { reads: VecDeque::new(), asked: 0, retry_at: Instant::NEVER }
    }
}

impl Asking {
    /// The epoch is over: answers of it are ignored, and clients ask again.
    pub(super) fn forget(&mut self) {
        self.reads.clear();
        self.retry_at = Instant::NEVER;
    }

    /// Whether a waiting read is not covered by a query yet.
    pub(super) fn is_due(&self) -> bool {
        self.reads.back().is_some_and(|(number, _)| *number > self.asked)
    }

    /// The time at which to ask again if no answer comes.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    pub(super) fn is_full(&self) -> bool {
        self.reads.len() >= WAITING_MAX
    }

    /// Adds a waiting read, as the packet in which it arrived.
    pub(super) fn push(&mut self, packet: Vec<u8>) {
        self.reads.push_back((self.asked + 1, packet));
    }

    /// Notes that a query is sent now, for all waiting reads, and returns its number.
    pub(super) fn query(&mut self, now: Instant) -> u64 {
        self.asked += 1;
        self.retry_at = now.after(RETRY_NS);
        self.asked
    }

    /// The next read that the answer to query `number` covers.
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// An answer speaks for reads that came before its query and for no later one.
    #[test]
    fn answer_covers_reads_before_its_query() {
        let mut asking = Asking::default();
        assert!(!asking.is_due() && asking.retry_at() == Instant::NEVER);
        asking.push(vec![1]);
        asking.push(vec![2]);
        assert!(asking.is_due());
        assert_eq!(asking.query(Instant(5)), 1);
        assert!(!asking.is_due());
        assert_eq!(asking.retry_at(), Instant(5).after(RETRY_NS));
        asking.push(vec![3]);
        assert!(asking.is_due());
        assert_eq!(asking.pop(0), None);
        assert_eq!(
            (asking.pop(1), asking.pop(1), asking.pop(1)),
            (Some(vec![1]), Some(vec![2]), None)
        );
        assert_eq!(asking.retry_at(), Instant(5).after(RETRY_NS), "one waits still");
        assert_eq!(asking.query(Instant(6)), 2);
        asking.push(vec![4]);
        assert_eq!(asking.query(Instant(7)), 3);
        assert_eq!(
            (asking.pop(3), asking.pop(3), asking.pop(3)),
            (Some(vec![3]), Some(vec![4]), None)
        );
        assert_eq!(asking.retry_at(), Instant::NEVER);
    }

    #[test]
    fn an_old_epochs_answer_speaks_for_no_read_of_the_next() {
        let mut asking = Asking::default();
        asking.push(vec![1]);
        let old = asking.query(Instant(5));
        asking.forget();
        assert!(!asking.is_due());
        assert_eq!((asking.retry_at(), asking.pop(old)), (Instant::NEVER, None));
        asking.push(vec![2]);
        assert_eq!(asking.pop(old), None);
        let new = asking.query(Instant(6));
        assert_eq!((new, asking.pop(new)), (old + 1, Some(vec![2])));
    }

    #[test]
    fn reads_that_wait_are_bounded() {
        let mut asking = Asking::default();
        for _ in 0..WAITING_MAX {
            assert!(!asking.is_full());
            asking.push(vec![]);
        }
        assert!(asking.is_full());
    }
}
