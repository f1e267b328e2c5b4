//! Operations that wait for the engine, in order.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{NodeId, Position};

use crate::pending::{PendingRead, PendingWrite};

/// The largest number of operations, and of bytes of commands, that wait for the engine of the node
/// that orders: it logs them when they are executed. Further ones are dropped, and sent again by
/// their clients.
const PENDING_MAX: usize = 65_536;
const PENDING_BYTES_MAX: usize = 64 << 20;

/// An operation that waits for the engine, or for an operation before it.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// A write for the engine; the node that orders keeps the command.
    Write(PendingWrite, Vec<u8>),
    /// A write with nothing to execute, which only keeps its place.
    Idle(PendingWrite),
    /// A read for the engine.
    Read(PendingRead),
    /// Nothing to execute: the client table for that joining replica, taken at this point of the
    /// log.
    Table(NodeId, Vec<u8>),
    /// The engine copies this part of its state for that joining replica.
    Copy(NodeId, u64),
    /// The engine copies keys early, as of this position.
    Early(Position),
    /// The engine installs a part of another replica's state, or discards its own.
    Install,
}

impl Pending {
    fn bytes(&self) -> usize {
        match self {
            Pending::Write(_, command) => command.len(),
            Pending::Idle(_)
            | Pending::Read(_)
            | Pending::Table(..)
            | Pending::Copy(..)
            | Pending::Early(_)
            | Pending::Install => 0,
        }
    }
}

/// The waiting operations.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pending: VecDeque<Pending>,
    /// The bytes of their commands.
    bytes: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether no further write is accepted.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= PENDING_MAX || self.bytes >= PENDING_BYTES_MAX
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.bytes += pending.bytes();
        self.pending.push_back(pending);
    }

    /// The operations, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter()
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.bytes -= pending.bytes();
        Some(pending)
    }

    /// The next operation, if it does not need the engine.
    pub(super) fn pop_idle(&mut self) -> Option<Pending> {
        match self.pending.front() {
            Some(Pending::Idle(_) | Pending::Table(..)) => self.pop(),
            Some(
                Pending::Write(..)
                | Pending::Read(_)
                | Pending::Copy(..)
                | Pending::Early(_)
                | Pending::Install,
            )
            | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::record::Record;
    use concord_wire::{Op, Reason, Repr};

    use super::*;

    fn operation() -> PendingWrite {
        PendingWrite::of(&Record::EMPTY)
    }

    fn write(bytes: usize) -> Pending {
        Pending::Write(operation(), vec![0; bytes])
    }

    /// Only what needs no engine goes without it and nothing overtakes.
    #[test]
    fn only_engineless_work_skips_the_engine() {
        let mut queue = Queue::default();
        assert!(queue.pop_idle().is_none() && queue.pop().is_none());
        let read = PendingRead::of(&Repr::new(Op::Read), Reason::None);
        for pending in
            [write(3), Pending::Read(read), Pending::Copy(NodeId(2), 1), Pending::Install]
        {
            queue.push(pending);
            queue.push(Pending::Idle(operation()));
            assert!(queue.pop_idle().is_none(), "the engine has not answered the one before");
            assert_eq!(queue.len(), 2);
            assert!(!matches!(queue.pop(), None | Some(Pending::Idle(_))));
            assert!(matches!(queue.pop_idle(), Some(Pending::Idle(_))));
            assert!(queue.is_empty());
        }
        queue.push(Pending::Table(NodeId(2), vec![7]));
        queue.push(write(1));
        assert!(matches!(queue.pop_idle(), Some(Pending::Table(NodeId(2), _))));
        assert!(queue.pop_idle().is_none() && !queue.is_empty());
    }

    #[test]
    fn no_write_is_taken_beyond_so_many_operations_or_bytes() {
        let mut queue = Queue::default();
        for _ in 0..PENDING_MAX {
            assert!(!queue.is_full());
            queue.push(Pending::Install);
        }
        assert!(queue.is_full());
        queue.pop();
        assert!(!queue.is_full());
        // As if there were more, up to 3 bytes below the bound.
        let mut queue = Queue { bytes: PENDING_BYTES_MAX - 3, ..Queue::default() };
        queue.push(write(2));
        queue.push(Pending::Table(NodeId(2), vec![0; 9]));
        assert!(!queue.is_full(), "commands count alone");
        queue.push(write(1));
        assert!(queue.is_full());
        queue.pop();
        assert!(!queue.is_full());
        assert_eq!((queue.bytes, queue.iter().count()), (PENDING_BYTES_MAX - 2, 2));
    }
}
