//! The status of a replica of any protocol.

use concord_core::{Epoch, NodeId, Position};

use crate::setup::Phase;

/// The part of a replica's state that `concord status` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The node.
    pub node: NodeId,
    /// Its phase.
    pub phase: Phase,
    /// Its epoch; 0 if none.
    pub epoch: Epoch,
    /// "head", "middle", "tail", "primary", "backup", "alone", "joining" or "none".
    pub role: &'static str,
    /// The active switch.
    pub switch_id: u32,
    /// The end of its log.
    pub executed: Position,
    /// The position up to which it knows the log to be committed.
    pub committed: Position,
    /// Whether it has executed the whole log that was agreed when the epoch opened.
    pub caught_up: bool,
    /// The percentage of the state that a joining replica has.
    pub copied_percent: Option<u8>,
    /// Whether it holds the lease to answer a read alone.
    pub leased: bool,
    /// The number of keys.
    pub keys: u64,
    /// The size of the data, in bytes.
    pub memory_bytes: u64,
    /// The number of client sessions.
    pub sessions: usize,
    /// At the ordering replica: the node's clock minus the log's time, in ms.
    pub log_behind_ms: i64,
}
