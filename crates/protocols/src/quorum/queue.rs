//! Operations that wait for the engine, in order.

use alloc::vec::Vec;

use concord_core::Position;

use crate::pending::{PendingRead, PendingWrite};

/// An operation that waits for the engine, or for an earlier operation.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// A write that the engine executes.
    Write(PendingWrite),
    /// A record without anything to execute, which only has its place in the order.
    Idle(PendingWrite),
    /// A read by the engine.
    Read {
        /// The read's request.
        operation: PendingRead,
        /// The read's command, if the answer has to name it; otherwise empty.
        command: Vec<u8>,
        /// Whether this replica led when it gave the read to the engine.
        led: bool,
    },
    /// A chunk that the engine copies for a member.
    Copy {
        /// The member's index.
        to: usize,
        /// The number of the part.
        number: u64,
        /// The position of the state.
        position: Position,
    },
    /// Keys that the engine copies early, as of this position.
    Early(Position),
    /// A chunk that the engine installs, or the end of all its state.
    Install,
}
