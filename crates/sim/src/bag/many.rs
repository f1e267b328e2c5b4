//! Many runs on several threads, until all are done, the time is up, or one fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use concord_core::Guards;
use concord_wire::control::Protocol;

use super::plan::BagPlan;
use super::run::{BagTotals, run_bag};

/// The seeds of the runs, and their bounds.
#[derive(Clone, Copy, Debug)]
pub struct BagOptions {
    /// The first seed; the others follow it in order.
    pub first_seed: u64,
    /// The number of seeds; `None`: as many as the time allows.
    pub seeds: Option<u64>,
    /// The time that the runs may take; `None`: until all seeds are done.
    pub time: Option<Duration>,
    /// The number of threads.
    pub threads: usize,
    /// The replication protocol; drawn from the seed if `None`.
    pub protocol: Option<Protocol>,
    /// The number of replicas; drawn from the seed if `None`.
    pub replicas: Option<usize>,
    /// The guards that are on.
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

/// A run that failed.
#[derive(Clone, Debug)]
pub struct BagFound {
    /// The plan of the run.
    pub plan: BagPlan,
    /// The description of the violation.
    pub violation: String,
}

/// The result of many runs.
#[derive(Clone, Debug)]
pub struct BagReport {
    /// The sums of the counts of all runs.
    pub totals: BagTotals,
    /// The time that they took.
    pub elapsed: Duration,
    /// The lowest seed that failed, if any did.
    pub found: Option<BagFound>,
}

/// Runs seeds until all are done, the time is up, or one fails. The result over a fixed number of
/// seeds does not depend on the number of threads.
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
