//! A disk: writes go to a cache, a sync makes them durable after some time, a crash loses the
//! others.

use std::collections::VecDeque;
use std::fmt;

use crate::engine::Time;

/// The speed and size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The minimum time of a sync.
    pub sync_ps: u64,
    /// The additional time of a sync for each byte written since the previous one.
    pub byte_ps: u64,
    /// The capacity: a write beyond it fails.
    pub capacity_bytes: u64,
}

/// The disk has no room for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFull;

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk is full")
    }
}

impl std::error::Error for DiskFull {}

/// A log of records on a disk. It needs no events of its own: a sync returns its end, for which the
/// caller schedules an event.
#[derive(Clone, Debug)]
pub struct Disk<T> {
    spec: DiskSpec,
    records: Vec<(T, u64)>,
    bytes: u64,
    unsynced_bytes: u64,
    /// The end of the last sync, since syncs run one after the other.
    busy_until: u64,
    /// The syncs in progress: the end of each, and the number of records that are durable after it.
    syncs: VecDeque<(u64, usize)>,
    durable: usize,
}

impl<T> Disk<T> {
    /// An empty disk.
    #[must_use]
    pub fn new(spec: DiskSpec) -> Disk<T> {
        Disk {
            spec,
            records: Vec::new(),
            bytes: 0,
            unsynced_bytes: 0,
            busy_until: 0,
            syncs: VecDeque::new(),
            durable: 0,
        }
    }

    /// Appends a record of `bytes` to the cache: the next [`Disk::sync`] makes it durable.
    ///
    /// # Errors
    /// There is no room; nothing was written.
    pub fn write(&mut self, record: T, bytes: u64) -> Result<(), DiskFull> {
        if bytes > self.spec.capacity_bytes - self.bytes {
            return Err(DiskFull);
        }
        self.bytes += bytes;
        self.unsynced_bytes += bytes;
        self.records.push((record, bytes));
        Ok(())
    }

    /// Begins a sync of everything written so far; returns the time at which it ends.
    pub fn sync(&mut self, now: Time) -> Time {
        let takes_ps = self.spec.sync_ps + self.spec.byte_ps * self.unsynced_bytes;
        self.unsynced_bytes = 0;
        self.busy_until = self.busy_until.max(now.0) + takes_ps;
        self.syncs.push_back((self.busy_until, self.records.len()));
        Time(self.busy_until)
    }

    /// The number of records that are durable at `now`: those of the syncs that have ended.
    pub fn durable(&mut self, now: Time) -> usize {
        while let Some(&(done, records)) = self.syncs.front()
            && done <= now.0
        {
            self.durable = records;
            self.syncs.pop_front();
        }
        self.durable
    }

    /// Loses power: records that are not durable are lost, except the first `survivors` of them,
    /// which happened to be written back already (a disk promises neither, so draw the number).
    pub fn crash(&mut self, now: Time, survivors: usize) {
        let kept = self.durable(now).saturating_add(survivors).min(self.records.len());
        self.records.truncate(kept);
        self.bytes = self.records.iter().map(|(_, bytes)| bytes).sum();
        self.unsynced_bytes = 0;
        self.syncs.clear();
        self.busy_until = now.0;
        self.durable = kept;
    }

    /// The records, in the order in which they were written, durable or not.
    pub fn records(&self) -> impl Iterator<Item = &T> {
        self.records.iter().map(|(record, _)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::US;

    fn disk() -> Disk<u32> {
        Disk::new(DiskSpec { sync_ps: 10 * US, byte_ps: 100, capacity_bytes: 1_000 })
    }

    #[test]
    fn a_crash_loses_what_was_not_synced() {
        let mut d = disk();
        d.write(1, 100).unwrap();
        let done = d.sync(Time(0));
        assert_eq!(done, Time(10 * US + 100 * 100));
        d.write(2, 100).unwrap();
        assert_eq!(d.durable(Time(done.0 - 1)), 0);
        assert_eq!(d.durable(done), 1);
        d.crash(done, 0);
        assert_eq!(d.records().copied().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_crash_during_the_sync_loses_its_records_but_for_survivors() {
        for survivors in 0..4 {
            let mut d = disk();
            d.write(1, 1).unwrap();
            d.write(2, 1).unwrap();
            let done = d.sync(Time(0));
            d.crash(Time(done.0 - 1), survivors);
            assert_eq!(d.records().count(), survivors.min(2));
            // The sync that the crash interrupted does not complete later.
            d.write(9, 1).unwrap();
            assert_eq!(d.durable(done), survivors.min(2));
        }
    }

    #[test]
    fn syncs_are_done_in_turn_and_cover_what_was_written_before() {
        let mut d = disk();
        d.write(1, 0).unwrap();
        let first = d.sync(Time(0));
        d.write(2, 0).unwrap();
        let second = d.sync(Time(US));
        d.write(3, 0).unwrap();
        assert_eq!((first, second), (Time(10 * US), Time(20 * US)));
        assert_eq!((d.durable(first), d.durable(second)), (1, 2));
    }

    #[test]
    fn a_full_disk_refuses_and_a_crash_frees_what_it_loses() {
        let mut d = disk();
        d.write(1, 600).unwrap();
        assert_eq!(d.write(2, 600), Err(DiskFull));
        assert_eq!(d.records().count(), 1);
        d.crash(Time(0), 0);
        assert_eq!(d.write(2, 600), Ok(()));
    }
}
