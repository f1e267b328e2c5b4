//! The status of a replica of any protocol.

use concord_core::{Epoch, NodeId, Position};

use crate::setup::Phase;

/// What `concord status` shows of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The node.
    pub node: NodeId,
    /// Where it stands.
    pub phase: Phase,
    /// Its epoch; 0 if none.
    pub epoch: Epoch,
    /// "head", "middle", "tail", "primary", "backup", "alone", "joining" or "none".
    pub role: &'static str,
    /// The active switch.
    pub switch_id: u32,
    /// The end of its log.
    pub executed: Position,
    /// Up to where it knows the log to be committed.
    pub committed: Position,
    /// Whether all that was agreed when the epoch opened is executed here.
    pub caught_up: bool,
    /// How much of the state it has, in percent, if it joins.
    pub copied_percent: Option<u8>,
    /// Whether it may answer alone.
    pub leased: bool,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of data.
    pub memory_bytes: u64,
    /// Number of client sessions.
    pub sessions: usize,
    /// Who orders writes: how far the log's time is behind the node's clock, in ms.
    pub log_behind_ms: i64,
}
