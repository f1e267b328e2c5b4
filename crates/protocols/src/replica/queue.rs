//! Operations that wait for the engine, in order.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::NodeId;

use crate::turn::{ReadTurn, Turn};

/// Most operations, and bytes of commands, that wait for the engine of who orders writes: it logs them
/// when they are executed. What comes beyond is dropped, and sent again by its client.
const PENDING_MAX: usize = 65_536;
const PENDING_BYTES_MAX: usize = 64 << 20;

/// An operation that waits for the engine, or behind one that does.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// The engine executes it; the command is kept by the node that orders.
    Write(Turn, Vec<u8>),
    /// Nothing to execute; it only keeps its turn.
    Idle(Turn),
    /// The engine reads.
    Read(ReadTurn),
    /// Nothing to execute: the client table for that joining replica, taken here in the log.
    Table(NodeId, Vec<u8>),
    /// The engine copies that part of its state for that joining replica.
    Copy(NodeId, u64),
    /// The engine takes a part of another's state, or forgets its own.
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
            | Pending::Install => 0,
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pending: VecDeque<Pending>,
    /// Bytes of the commands among them.
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

    /// Whether another write is not taken.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= PENDING_MAX || self.bytes >= PENDING_BYTES_MAX
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.bytes += pending.bytes();
        self.pending.push_back(pending);
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter()
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.bytes -= pending.bytes();
        Some(pending)
    }

    /// The next one, if it needs no engine.
    pub(super) fn pop_idle(&mut self) -> Option<Pending> {
        match self.pending.front() {
            Some(Pending::Idle(_) | Pending::Table(..)) => self.pop(),
            Some(Pending::Write(..) | Pending::Read(_) | Pending::Copy(..) | Pending::Install)
            | None => None,
        }
    }
}
