//! Clients that see the commands of all clients ([`crate::commands::monitor`]).

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::connection::id::ConnectionId;

/// Who sees commands, and what they are to see.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    pub ids: BTreeSet<ConnectionId>,
    /// Lines, each with who saw commands when it was written.
    pub lines: VecDeque<(Vec<ConnectionId>, Vec<u8>)>,
}
