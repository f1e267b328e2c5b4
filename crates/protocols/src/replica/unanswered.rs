//! Primary: operations that were executed and are not answered yet, since not every backup has
//! executed the writes that they may have seen (trap T6).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::Position;

use crate::pending::{PendingRead, PendingWrite};

/// The largest number of reads that wait for writes to commit, or for the tail's answer.
pub(super) const WAITING_MAX: usize = 65_536;
/// The largest number of bytes of replies that wait for writes to commit; a single one may be
/// larger.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Unanswered writes, and replies to reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Unanswered {
    /// Writes, in order.
    writes: VecDeque<PendingWrite>,
    /// Reads, by the position that they wait for, then in their order.
    replies: BTreeMap<(Position, u64), (PendingRead, Vec<u8>)>,
    /// Bytes of the replies.
    bytes: usize,
}

impl Unanswered {
    /// The epoch is over: clients repeat their reads.
    pub(super) fn forget_reads(&mut self) {
        self.replies.clear();
        self.bytes = 0;
    }

    /// Clients repeat their writes.
    pub(super) fn forget_writes(&mut self) {
        self.writes.clear();
    }

    /// A write was executed.
    pub(super) fn push_write(&mut self, operation: PendingWrite) {
        self.writes.push_back(operation);
    }

    /// The next write that is committed.
    pub(super) fn pop_write(&mut self, committed: Position) -> Option<PendingWrite> {
        self.writes.pop_front_if(|operation| operation.position <= committed)
    }

    /// Adds the reply to an executed read. Returns whether there was room for it.
    pub(super) fn push_read(&mut self, order: u64, operation: PendingRead, reply: &[u8]) -> bool {
        let is_full = self.replies.len() >= WAITING_MAX
            || (self.bytes > 0 && self.bytes + reply.len() > WAITING_BYTES_MAX);
        if !is_full {
            self.bytes += reply.len();
            self.replies.insert((operation.needed, order), (operation, reply.to_vec()));
        }
        !is_full
    }

    /// The next reply that waits for nothing after `committed`.
    pub(super) fn pop_read(&mut self, committed: Position) -> Option<(PendingRead, Vec<u8>)> {
        let entry = self.replies.first_entry().filter(|entry| entry.key().0 <= committed)?;
        let (operation, reply) = entry.remove();
        self.bytes -= reply.len();
        Some((operation, reply))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::record::Record;
    use concord_wire::{Op, Reason, Repr};

    use super::*;

    /// A read that waits for `needed`.
    fn operation(needed: u64) -> PendingRead {
        let mut operation = PendingRead::of(&Repr::new(Op::Read), Reason::None);
        operation.needed = Position(needed);
        operation
    }

    #[test]
    fn t6_replies_wait_for_the_writes_that_they_may_have_seen() {
        let mut waiting = Unanswered::default();
        for (order, needed) in [(1, 7), (2, 5), (3, 7)] {
            assert!(waiting.push_read(order, operation(needed), &[order as u8]));
        }
        let mut answered =
            |committed| waiting.pop_read(Position(committed)).map(|(_, reply)| reply);
        assert_eq!(answered(4), None);
        assert_eq!((answered(6), answered(6)), (Some(vec![2]), None));
        assert_eq!((answered(7), answered(7), answered(7)), (Some(vec![1]), Some(vec![3]), None));
        assert_eq!(waiting.bytes, 0);
    }

    /// Waiting replies are bounded in bytes and a single one may be larger.
    #[test]
    fn waiting_replies_bounded_in_bytes() {
        let mut waiting = Unanswered::default();
        assert!(waiting.push_read(1, operation(1), &vec![0; WAITING_BYTES_MAX + 1]));
        assert!(!waiting.push_read(2, operation(1), b"x"));
        // As if there were more, up to 2 bytes below the bound.
        let mut waiting = Unanswered { bytes: WAITING_BYTES_MAX - 2, ..Unanswered::default() };
        assert!(waiting.push_read(3, operation(1), b"xy"));
        assert!(!waiting.push_read(4, operation(1), b"z"));
        waiting.forget_reads();
        assert!(waiting.push_read(6, operation(1), b"x"));
    }

    /// Waiting replies are bounded in number and go with their epoch.
    #[test]
    fn waiting_replies_bounded_in_number_and_epoch() {
        let mut waiting = Unanswered::default();
        for order in 0..WAITING_MAX as u64 {
            assert!(waiting.push_read(order, operation(1), b"x"));
        }
        assert!(!waiting.push_read(WAITING_MAX as u64, operation(1), b"x"));
        assert!(waiting.pop_read(Position(1)).is_some());
        assert_eq!(waiting.bytes, WAITING_MAX - 1);
        assert!(waiting.push_read(WAITING_MAX as u64, operation(1), b"x"));
        waiting.forget_reads();
        assert!(waiting.pop_read(Position(1)).is_none());
    }

    #[test]
    fn writes_are_answered_in_order_once_they_are_committed() {
        let write = |at| PendingWrite::of(&Record { position: Position(at), ..Record::EMPTY });
        let mut waiting = Unanswered::default();
        [5, 6, 7].into_iter().for_each(|at| waiting.push_write(write(at)));
        waiting.forget_reads();
        let pop = |waiting: &mut Unanswered, committed| {
            waiting.pop_write(Position(committed)).map(|operation| operation.position.0)
        };
        assert_eq!(pop(&mut waiting, 4), None);
        assert_eq!(
            [6, 6, 6].map(|committed| pop(&mut waiting, committed)),
            [Some(5), Some(6), None]
        );
        waiting.forget_writes();
        assert_eq!(pop(&mut waiting, 7), None);
    }
}
