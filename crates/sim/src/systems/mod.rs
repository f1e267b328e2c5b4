//! The systems that are simulated: a folder for each holds how a run of it is drawn, how its rack
//! is built, what can go wrong, its invariants and what it counts. What they share is beside: the
//! events and the network (`world.rs`), swarms of seeds, and explorations and smaller
//! plans (`frame.rs`).

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

/// How often in a row a node may wish to be woken at once: scripts go on in so many slices, and a
/// value of 6 MiB is made ready for a write in as many, with the smallest pieces that are drawn.
const OVERDUE_MAX: u32 = 200_000;

/// A run of a system, all of it: from equal plans come equal runs.
pub trait Trial: Clone + Send + Sync {
    /// What a run counts.
    type Totals: Tally;

    /// What everything is drawn from that the plan does not say.
    fn seed(&self) -> u64;

    /// The same with another seed.
    #[must_use]
    fn with_seed(&self, seed: u64) -> Self;

    /// Runs it: what it counted, and what went wrong.
    fn run(&self) -> (Self::Totals, Option<String>);

    /// Plans that do a little less, those that do much less first.
    fn smaller(&self) -> Vec<Self>;
}

/// How a run of a system ended.
#[derive(Clone, Debug)]
pub struct Ran<T> {
    /// What went wrong first.
    pub violation: Option<String>,
    /// The same for the same plan.
    pub digest: u64,
    /// What happened.
    pub totals: T,
}

/// How often in a row a node's deadline was over when the node had just been woken for it. A
/// machine that does nothing about its deadline takes its host's whole core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overdue(u32);

impl Overdue {
    /// Counts, once a node was woken at `now` and is to be woken next at `deadline`. What is wrong,
    /// if it was so too often.
    pub(crate) fn woken(&mut self, now: Instant, deadline: Deadline) -> Option<String> {
        self.0 = if deadline.at > now { 0 } else { self.0 + 1 };
        (self.0 > OVERDUE_MAX).then(|| format!("never sleeps: {}", deadline.reason))
    }
}

/// What runs count, and its sum.
pub trait Tally: Default + Send {
    /// Adds another run's.
    fn add(&mut self, other: &Self);

    /// The steps (events) that were run: what they cost in time.
    fn steps(&self) -> u64;
}
