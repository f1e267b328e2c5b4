//! The runs that began of tasks that are never run twice: a process that continues with their
//! owner's journal asks for them.

use alloc::collections::{BTreeSet, VecDeque};

/// The number of runs that are remembered as begun.
const BEGUN_MAX: usize = 1 << 16;

/// The last runs that began of tasks that are never run twice.
#[derive(Clone, Debug, Default)]
pub(super) struct BegunRuns {
    runs: BTreeSet<u32>,
    order: VecDeque<u32>,
    /// The last run that was forgotten: of it and of earlier ones nothing is known.
    forgotten: Option<u32>,
}

impl BegunRuns {
    pub(super) fn insert(&mut self, run: u32) {
        if !self.runs.insert(run) {
            return;
        }
        self.order.push_back(run);
        if self.order.len() > BEGUN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
            self.forgotten = Some(oldest);
        }
    }

    /// Notes that a run did not begin after all.
    pub(super) fn remove(&mut self, run: u32) {
        if self.runs.remove(&run) {
            self.order.retain(|own| *own != run);
        }
    }

    /// Whether a run may have begun. Numbers of runs wrap.
    pub(super) fn may_contain(&self, run: u32) -> bool {
        let is_forgotten = self.forgotten.is_some_and(|own| own.wrapping_sub(run) as i32 >= 0);
        is_forgotten || self.runs.contains(&run)
    }
}
