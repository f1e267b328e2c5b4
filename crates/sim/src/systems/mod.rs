//! The simulated systems. The folder of each has the drawing of its plans, the construction of its
//! rack, its faults, its invariants and its counts. The parts that they share are outside of these
//! folders: events and network (`world.rs`), swarms of seeds, and explorations and smaller plans
//! (`frame.rs`).

pub mod concordia;
pub mod falcon;
mod flair;
pub(crate) mod frame;
pub mod harmony;
pub mod netcraq;
pub(crate) mod store;

use concord_core::Instant;
use concord_core::machine::Deadline;
pub(crate) use flair::{KEY_GROUPS, describe, sort};

/// The maximum number of times in a row that a node may ask to be woken at once. The number of
/// slices of a script, and of steps in which a value of 6 MiB is prepared for a write with the
/// smallest pieces that are drawn, stay below it.
const OVERDUE_MAX: u32 = 200_000;

/// The plan of a complete run of a system. Equal plans give equal runs.
pub trait Trial: Clone + Send + Sync {
    /// The counts of a run.
    type Totals: Tally;

    /// The seed of everything that the plan does not determine.
    fn seed(&self) -> u64;

    /// The same plan with another seed.
    #[must_use]
    fn with_seed(&self, seed: u64) -> Self;

    /// Runs the plan; returns the counts, and the violation if there was one.
    fn run(&self) -> (Self::Totals, Option<String>);

    /// Smaller plans to try while the plan fails, the smallest first.
    fn smaller(&self) -> Vec<Self>;
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran<T> {
    /// The first violation, if there was one.
    pub violation: Option<String>,
    /// The hash of all events: equal plans give equal digests.
    pub digest: u64,
    /// The counts of the run.
    pub totals: T,
}

/// A check that machines act on their deadlines: how often in a row a node's deadline had passed
/// already when the node had just been woken for it. A machine that does not act on its deadline
/// would keep a core of its host busy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overdue(u32);

impl Overdue {
    /// Counts a node that was woken at `now`, and next asks for `deadline`. Returns a violation if
    /// that was already over too often in a row.
    pub(crate) fn woken(&mut self, now: Instant, deadline: Deadline) -> Option<String> {
        self.0 = if deadline.at > now { 0 } else { self.0 + 1 };
        (self.0 > OVERDUE_MAX).then(|| format!("never sleeps: {}", deadline.reason))
    }
}

/// The counts of runs, which can be added up.
pub trait Tally: Default + Send {
    /// Adds the counts of another run.
    fn add(&mut self, other: &Self);

    /// The number of steps (events) that were run, as a measure of time.
    fn steps(&self) -> u64;
}
