//! The limits of a replica's state that grows with load.

use concord_core::{Duration, SEC, ViewNumber};

use crate::chunks::CHUNK_BYTES;
use crate::sessions::SESSIONS_MAX;

/// Most records kept for members that lag; the head refuses writes above.
pub const LOG_RECORDS_MAX: usize = 65_536;
/// Most bytes kept for members that lag; the head refuses writes above.
pub const LOG_BYTES_MAX: usize = 256 << 20;
/// How many bytes of records that all members have are kept for replicas that were away.
pub const LOG_MEMORY_BYTES: usize = 64 << 20;
/// Bounds of a replica. What ships has the defaults; simulations draw small ones, so that what
/// happens at a bound happens in a short run. The members of a group have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most records kept for members that lag; the ordering node refuses writes above.
    pub log_records_max: usize,
    /// Most bytes kept for members that lag; the ordering node refuses writes above.
    pub log_bytes_max: usize,
    /// About so many bytes of records that all members have are kept, for replicas that were away:
    /// who lacks older ones copies the state.
    pub log_memory_bytes: usize,
    /// Records stand in memory in chunks of so many bytes; simulations have small ones, so that
    /// logs have many.
    pub log_chunk_bytes: usize,
    /// Most sessions at once; the one longest without a write makes room.
    pub sessions_max: usize,
    /// VR, NOPaxos: the view in which a group begins: 1; simulations draw one near the end of all
    /// numbers.
    pub first_view: ViewNumber,
    /// How long the engine may owe an answer until it is given up, in ns: longer than any command
    /// on a large key takes. Scripts have a limit of their own.
    pub engine_silence_ns: Duration,
    /// From when on clients hear that an engine is at work on one operation, in ns: they wait for
    /// longer than they would for one that is silent.
    pub work_ns: Duration,
    /// How long after a slice of a long script the next one begins, in ns: at once, but where a
    /// simulation has slow scripts.
    pub slice_ns: Duration,
    /// Primary-backup, chain, CRAQ: how long the disk may owe a sync until its replica is given up,
    /// in ns. The second member waits for half as long in addition, and so on: whose disks all hang
    /// do not leave at once. VR, NOPaxos, Raft: after half of it a leader lets another one lead.
    pub disk_silence_ns: Duration,
}

impl Limits {
    /// The same for a log of which nothing is executed while the pieces of an object come, if they
    /// do: bytes alone count. It takes as long as the object is large.
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
