//! The state of each of a worker's executors, with indexes by idle time and by run.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::{Bound, Index};

use concord_core::Instant;

use super::{Work, WorkerConfig};

/// The state of an executor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// It does nothing until this time.
    Idle { until: Instant },
    /// It asked, and has no answer yet: the number of attempts, and the time until which it waits
    /// in the switch if there is no task.
    Asking { queue: u8, number: u32, until: Instant, tries: u32, waits_until: Option<Instant> },
    /// It waits in the switch, in each of its queues.
    Waiting { until: Instant },
    /// It has a task, and has asked since then whether it may start it.
    Claiming { work: Work, since: Instant, beat_at: Instant, until: Instant },
    /// It runs a task, or is about to.
    Running(Running),
}

/// A task that its owner knows to run, or is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub work: Work,
    /// The time at which its owner is told next that it runs.
    pub beat_at: Instant,
    /// Whether the owner has answered.
    pub is_heard: bool,
    pub lease_until: Instant,
    /// The time at which its time limit has passed.
    pub limit_at: Instant,
    /// Whether its data is here and its driver has it.
    pub is_started: bool,
}

/// The number of slots by use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InUse {
    /// Slots that ask or wait for a task.
    pub asking: usize,
    /// Slots with a task that has not begun.
    pub held: usize,
    /// Slots that run a task.
    pub started: usize,
}

impl InUse {
    /// Whether one more slot may ask. The number of slots that have a task or wait for one is
    /// limited to that of executors. With prefetch, more may ask: while tasks run, one for each
    /// executor, until all have theirs; and `ahead` more while requests find tasks in the queue,
    /// since tasks may end sooner than the switch answers.
    pub fn may_ask(self, config: &WorkerConfig, ahead: usize) -> bool {
        let (slots, prefetch) = (usize::from(config.slots), usize::from(config.prefetch));
        let beside = (prefetch * self.started).min(self.held + self.started);
        self.asking + self.held + self.started < slots + beside.max(ahead)
    }
}

/// All slots of a worker.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    /// The number of slots by use.
    in_use: InUse,
    /// The idle slots, by the time until which they are.
    idle: BTreeSet<(Instant, usize)>,
    /// The slots that run or hold a task, by the run's number.
    runs: BTreeMap<u32, usize>,
    /// Those of them whose run has not begun.
    held: BTreeMap<u32, usize>,
}

impl Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, index: usize) -> &Slot {
        &self.all[index]
    }
}

impl Slots {
    /// This many slots, all idle.
    pub(super) fn new(count: usize) -> Slots {
        Slots {
            all: alloc::vec![Slot::Idle { until: Instant(0) }; count],
            in_use: InUse::default(),
            idle: (0..count).map(|index| (Instant(0), index)).collect(),
            runs: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.all.iter()
    }

    pub(super) fn in_use(&self) -> InUse {
        self.in_use
    }

    /// The slot that has been idle for the longest, if it is due.
    pub(super) fn idle(&self, now: Instant) -> Option<usize> {
        self.idle.first().filter(|(until, _)| *until <= now).map(|(_, index)| *index)
    }

    /// The slot that runs or holds this run.
    pub(super) fn of_run(&self, run: u32) -> Option<usize> {
        self.runs.get(&run).copied()
    }

    /// The first run after `run` that has not begun, and its slot.
    pub(super) fn held_after(&self, run: Option<u32>) -> Option<(u32, usize)> {
        let after = run.map_or(Bound::Unbounded, Bound::Excluded);
        self.held.range((after, Bound::Unbounded)).next().map(|(run, index)| (*run, *index))
    }

    /// Sets the state of a slot.
    pub(super) fn set(&mut self, index: usize, slot: Slot) {
        let was = core::mem::replace(&mut self.all[index], slot);
        match was {
            Slot::Idle { until } => {
                self.idle.remove(&(until, index));
            }
            Slot::Asking { .. } | Slot::Waiting { .. } => self.in_use.asking -= 1,
            Slot::Claiming { .. } => self.in_use.held -= 1,
            Slot::Running(Running { work, is_started, .. }) => {
                if !matches!(slot, Slot::Running(next) if next.work.run == work.run) {
                    self.runs.remove(&work.run);
                }
                if is_started {
                    self.in_use.started -= 1;
                } else {
                    self.in_use.held -= 1;
                    self.held.remove(&work.run);
                }
            }
        }
        match slot {
            Slot::Idle { until } => {
                self.idle.insert((until, index));
            }
            Slot::Asking { .. } | Slot::Waiting { .. } => self.in_use.asking += 1,
            Slot::Claiming { .. } => self.in_use.held += 1,
            Slot::Running(Running { work, is_started, .. }) => {
                self.runs.insert(work.run, index);
                if is_started {
                    self.in_use.started += 1;
                } else {
                    self.in_use.held += 1;
                    self.held.insert(work.run, index);
                }
            }
        }
    }
}
