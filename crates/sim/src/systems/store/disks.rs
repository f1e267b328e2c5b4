//! The disks of replicas.

use concord_core::{Duration, MS};
use serde::{Deserialize, Serialize};

use crate::systems::store::edges::Within;

/// Longest sync, in ns.
const SYNC_NS_MAX: Duration = 5_000 * MS;
/// What is quicker takes no notice of its disk.
const SLOW_NS: Duration = 5 * MS;
/// An operation, or an election, takes so many syncs one after the other, at most.
const SYNCS: u64 = 12;
/// Most bytes between two snapshots.
const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;

/// The disks of a rack's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disks {
    /// How long a sync takes about, in ns; 0: nothing is on disk.
    pub sync_ns: Duration,
    /// Bytes of log after which a snapshot begins.
    pub snapshot_bytes: u64,
    /// Nothing that is acknowledged waits for the disk, which is synced each second
    /// (`durability = "interval"`). Then the power of all does not go: what it would take is
    /// allowed, and the check does not know what that is.
    pub interval: bool,
    /// With `interval`: every second replica waits for its disk all the same, as while `durability`
    /// is changed one replica after the other.
    pub mixed: bool,
    /// With `mixed`: the others have no disk at all (`durability = "none"`).
    pub partial: bool,
}

impl Disks {
    /// Whether replicas keep their data, all or some of them.
    pub(crate) fn is_on(&self) -> bool {
        self.sync_ns > 0
    }

    /// How much longer all may take since syncs are slow.
    pub(crate) fn slow_ns(&self) -> Duration {
        if self.sync_ns <= SLOW_NS { 0 } else { SYNCS * self.syncs_ns().1 }
    }

    /// How long a sync takes, at least and at most. Of slow ones each is about as slow.
    pub(crate) fn syncs_ns(&self) -> (Duration, Duration) {
        match self.sync_ns {
            quick if quick <= SLOW_NS => (quick / 2, 2 * quick),
            slow => (slow * 3 / 4, slow * 5 / 4),
        }
    }

    /// Whether a replica keeps its data.
    pub(crate) fn keeps(&self, replica: usize) -> bool {
        self.is_on() && !(self.partial && self.acks_early(replica))
    }

    /// Whether a replica acknowledges before its disk has what it acknowledges.
    pub(crate) fn acks_early(&self, replica: usize) -> bool {
        self.interval && !(self.mixed && replica % 2 == 1)
    }

    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        if self.partial && !(self.mixed && self.interval) {
            return Err("disks.partial goes with interval and mixed".into());
        }
        within("sync_ns", self.sync_ns, 0, SYNC_NS_MAX)?;
        within("snapshot_bytes", self.snapshot_bytes, 0, SNAPSHOT_BYTES_MAX)
    }
}
