//! Many runs on many threads, until the time is up or one fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use concord_core::Guards;
use concord_wire::control::Protocol;

use super::plan::BagPlan;
use super::run::{BagTotals, run_bag};

/// Which seeds, and how long.
#[derive(Clone, Copy, Debug)]
pub struct BagOptions {
    /// The first seed; the others follow it.
    pub first_seed: u64,
    /// How many; `None`: until the time is up.
    pub seeds: Option<u64>,
    /// How long; `None`: until all seeds are done.
    pub time: Option<Duration>,
    /// Threads.
    pub threads: usize,
    /// How replicas replicate; drawn by the seed if not given.
    pub protocol: Option<Protocol>,
    /// How many replicas; drawn by the seed if not given.
    pub replicas: Option<usize>,
    /// Which guards are on.
    pub guards: Guards,
}

impl BagOptions {
    /// The plan of a seed.
    #[must_use]
    pub fn plan(&self, seed: u64) -> BagPlan {
        let plan = BagPlan::draw(seed, self.protocol);
        let replicas = self.replicas.unwrap_or(plan.replicas);
        BagPlan { replicas, guards: self.guards, ..plan }
    }
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct BagFound {
    /// Its plan.
    pub plan: BagPlan,
    /// What is wrong.
    pub violation: String,
}

/// What many runs saw.
#[derive(Clone, Debug)]
pub struct BagReport {
    /// Of all runs.
    pub totals: BagTotals,
    /// How long it took.
    pub elapsed: Duration,
    /// The lowest seed that failed, if one did.
    pub found: Option<BagFound>,
}

/// Runs seeds until they are done, the time is up, or one fails. What is found over a number of
/// seeds does not depend on the threads.
#[must_use]
pub fn run_bags(options: &BagOptions) -> BagReport {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let lowest = AtomicU64::new(u64::MAX);
    let all: Mutex<(BagTotals, Option<BagFound>)> = Mutex::new((BagTotals::default(), None));
    let work = || {
        let mut totals = BagTotals::default();
        loop {
            let offset = next.fetch_add(1, Ordering::Relaxed);
            let is_over = options.seeds.is_some_and(|seeds| offset >= seeds)
                || options.time.is_some_and(|time| began.elapsed() >= time)
                || offset > lowest.load(Ordering::Relaxed);
            if is_over {
                break;
            }
            let plan = options.plan(options.first_seed.wrapping_add(offset));
            let outcome = run_bag(&plan);
            totals.add(&outcome.totals);
            let Some(violation) = outcome.violation else { continue };
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            if lowest.fetch_min(offset, Ordering::Relaxed) > offset {
                all.1 = Some(BagFound { plan, violation });
            }
        }
        all.lock().unwrap_or_else(PoisonError::into_inner).0.add(&totals);
    };
    thread::scope(|scope| {
        (0..options.threads.max(1)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let (totals, found) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    BagReport { totals, elapsed: began.elapsed(), found }
}
