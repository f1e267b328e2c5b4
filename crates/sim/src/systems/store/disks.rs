//! The disks of replicas.

use concord_core::{Duration, MS};
use serde::{Deserialize, Serialize};

use crate::systems::store::edges::Within;

/// The maximum duration of a sync, in ns.
const SYNC_NS_MAX: Duration = 5_000 * MS;
/// The duration of a sync below which limits of time are not extended, in ns.
const SLOW_NS: Duration = 5 * MS;
/// The maximum number of successive syncs that an operation, or an election, takes.
const SYNCS: u64 = 12;
/// The maximum number of bytes of log between two snapshots.
const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;

/// The disks of a rack's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disks {
    /// The approximate duration of a sync, in ns; 0: replicas have no disks.
    pub sync_ns: Duration,
    /// The number of bytes of log after which a snapshot begins.
    pub snapshot_bytes: u64,
    /// Whether acknowledgements do not wait for the disk, which is synced every second (`durability
    /// = "interval"`). Power cuts of all replicas are then left out: they may lose acknowledged
    /// writes, and the check cannot tell which.
    pub interval: bool,
    /// With `interval`: every second replica waits for its disk nevertheless, as while an operator
    /// changes `durability` one replica after the other.
    pub mixed: bool,
    /// With `mixed`: the other replicas have no disk at all (`durability = "none"`).
    pub partial: bool,
}

impl Disks {
    /// Whether some replicas, or all of them, keep their data.
    pub(crate) fn is_on(&self) -> bool {
        self.sync_ns > 0
    }

    /// The time by which limits are extended because syncs are slow, in ns.
    pub(crate) fn slow_ns(&self) -> Duration {
        if self.sync_ns <= SLOW_NS { 0 } else { SYNCS * self.syncs_ns().1 }
    }

    /// The minimum and the maximum duration of a sync, in ns. Slow syncs vary little.
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

    /// Whether a replica acknowledges records before they are on its disk.
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
