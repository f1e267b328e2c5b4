//! The limits of the parts of a replica's state that grow with load.

use concord_core::{Duration, SEC, ViewNumber};

use crate::chunks::CHUNK_BYTES;
use crate::sessions::SESSIONS_MAX;

/// The largest number of records kept for members that lag; beyond it the ordering node refuses
/// writes.
pub const LOG_RECORDS_MAX: usize = 65_536;
/// The largest total size of records kept for members that lag, in bytes; beyond it the ordering
/// node refuses writes.
pub const LOG_BYTES_MAX: usize = 256 << 20;
/// The total size of records that all members have and that are kept for replicas that were away,
/// in bytes.
pub const LOG_MEMORY_BYTES: usize = 64 << 20;
/// The bounds of a replica. Real racks have the defaults; simulations draw small ones, so that a
/// short run reaches them. All members of a group have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of records kept for members that lag; beyond it the ordering node refuses
    /// writes.
    pub log_records_max: usize,
    /// The largest total size of records kept for members that lag, in bytes; beyond it the
    /// ordering node refuses writes.
    pub log_bytes_max: usize,
    /// The approximate total size of records that all members have and that are kept for replicas
    /// that were away, in bytes. A replica that lacks older ones copies the state.
    pub log_memory_bytes: usize,
    /// The size of the chunks in which records are kept in memory, in bytes; simulations have small
    /// ones, so that logs have many.
    pub log_chunk_bytes: usize,
    /// The largest number of sessions; the one that has been without a write for longest makes
    /// room.
    pub sessions_max: usize,
    /// VR, NOPaxos: the view in which a group begins, which is 1; simulations draw one near the
    /// largest number.
    pub first_view: ViewNumber,
    /// The time without an answer after which the engine is given up, in ns: longer than any
    /// command on a large key takes. Scripts have a limit of their own.
    pub engine_silence_ns: Duration,
    /// The duration of an operation from which on clients are told that the engine is at work, in
    /// ns: they then wait longer than for a silent replica.
    pub work_ns: Duration,
    /// The pause between two slices of a long script, in ns: 0, except in simulations of slow
    /// scripts.
    pub slice_ns: Duration,
    /// Primary-backup, chain, CRAQ: the duration of a sync after which the replica leaves, in ns.
    /// The second member waits for half as long in addition, and so on, so that replicas whose
    /// disks all hang do not leave at once. VR, NOPaxos, Raft: after half of it a leader lets
    /// another replica lead.
    pub disk_silence_ns: Duration,
}

impl Limits {
    /// These limits for the log of a replica that is receiving the pieces of a large object
    /// (`has_pieces`) and executes nothing meanwhile: only the bytes are bounded, since that takes
    /// as long as the object is large.
    pub(crate) fn beside_pieces(self, has_pieces: bool) -> Limits {
        let most = if has_pieces { usize::MAX } else { self.log_records_max };
        Limits { log_records_max: most, ..self }
    }
}

/// See [`Limits::engine_silence_ns`].
const ENGINE_SILENCE_NS: Duration = 10 * SEC;
/// See [`Limits::work_ns`].
const WORK_NS: Duration = SEC;
/// See [`Limits::disk_silence_ns`].
const DISK_SILENCE_NS: Duration = 10 * SEC;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            log_records_max: LOG_RECORDS_MAX,
            log_bytes_max: LOG_BYTES_MAX,
            log_memory_bytes: LOG_MEMORY_BYTES,
            log_chunk_bytes: CHUNK_BYTES,
            sessions_max: SESSIONS_MAX,
            first_view: ViewNumber(1),
            engine_silence_ns: ENGINE_SILENCE_NS,
            work_ns: WORK_NS,
            slice_ns: 0,
            disk_silence_ns: DISK_SILENCE_NS,
        }
    }
}
