//! The clients that see the commands of all clients ([`crate::commands::monitor`]).

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::connection::id::ConnectionId;

/// The monitors, and the lines for them.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    pub ids: BTreeSet<ConnectionId>,
    /// The lines, each with the monitors at the time when it was written.
    pub lines: VecDeque<(Vec<ConnectionId>, Vec<u8>)>,
}
