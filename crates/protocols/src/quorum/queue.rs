//! Operations that wait for the engine, in order.

use alloc::vec::Vec;

use concord_core::Position;

use crate::pending::{PendingRead, PendingWrite};

/// An operation that waits for the engine, or behind one that does.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// The engine executes it.
    Write(PendingWrite),
    /// Nothing to execute; it only keeps its turn.
    Idle(PendingWrite),
    /// The engine reads.
    Read {
        /// Whose read.
        operation: PendingRead,
        /// What it reads, where the answer says so; else empty.
        command: Vec<u8>,
        /// This replica led when it gave the read to the engine.
        led: bool,
    },
    /// The engine copies a chunk for a member.
    Copy {
        /// Which member.
        to: usize,
        /// Which part.
        number: u64,
        /// As of which position.
        position: Position,
    },
    /// The engine copies keys early, as of that position.
    Early(Position),
    /// The engine installs a chunk, or forgets everything.
    Install,
}
