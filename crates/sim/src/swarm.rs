//! Swarms: many seeds on several threads, until all are done, the time is up, or one fails.

use std::cell::Cell;
use std::panic;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use concord_core::Guards;

use crate::systems::store::draw::Aim;
use crate::systems::store::plan::Plan;
use crate::systems::{Tally, Trial};

/// The time between two reports of progress.
const PROGRESS: Duration = Duration::from_millis(200);

/// The seeds of a swarm, and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct SwarmOptions {
    /// The first seed; the others follow it in order.
    pub first_seed: u64,
    /// The number of seeds; `None`: as many as the time allows.
    pub seeds: Option<u64>,
    /// The time that the swarm may take; `None`: until all seeds are done.
    pub time: Option<Duration>,
    /// The number of threads.
    pub threads: usize,
    /// The parts of plans that are given instead of drawn.
    pub aim: Aim,
    /// The guards that are on.
    pub guards: Guards,
}

impl SwarmOptions {
    /// The plan that this swarm runs for a seed.
    #[must_use]
    pub fn plan(&self, seed: u64) -> Plan {
        Plan { guards: self.guards, ..Plan::draw_aimed(seed, self.aim) }
    }
}

/// The progress of a swarm.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The number of seeds done.
    pub seeds: u64,
    /// The time since the swarm began.
    pub elapsed: Duration,
}

impl Progress {
    /// The number of seeds done per second.
    #[must_use]
    pub fn seeds_per_second(&self) -> f64 {
        self.seeds as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A plan that failed.
#[derive(Clone, Debug)]
pub struct Found<P = Plan> {
    /// The plan.
    pub plan: P,
    /// The description of the violation.
    pub violation: String,
}

/// The result of a swarm.
#[derive(Clone, Debug)]
pub struct SwarmReport<P: Trial = Plan> {
    /// The sums of the counts of all runs.
    pub totals: P::Totals,
    /// The progress when it ended.
    pub progress: Progress,
    /// The lowest seed that failed, if any did.
    pub found: Option<Found<P>>,
}

thread_local! {
    /// The seed that this thread runs, which the report of a panic names.
    static RUNNING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The state that the threads of a swarm share.
struct Shared<'a, P: Trial, D> {
    options: &'a SwarmOptions,
    draw: D,
    began: Instant,
    next: AtomicU64,
    /// The offset of the lowest seed that has failed so far. Seeds below it are still run, so that
    /// the result of a swarm over fixed seeds does not depend on the number of threads.
    lowest: AtomicU64,
    done: AtomicU64,
    running: AtomicUsize,
    totals: Mutex<P::Totals>,
    found: Mutex<Option<Found<P>>>,
}

/// Runs seeds until all are done, the time is up, or one fails. Calls `report` with the progress
/// several times a second.
pub fn swarm(options: &SwarmOptions, report: impl FnMut(&Progress)) -> SwarmReport {
    swarm_of(options, |seed| options.plan(seed), report)
}

/// A [`swarm`] of any system: `draw` makes the plan of a seed.
pub fn swarm_of<P: Trial>(
    options: &SwarmOptions,
    draw: impl Fn(u64) -> P + Sync,
    mut report: impl FnMut(&Progress),
) -> SwarmReport<P> {
    name_the_seed_in_panics();
    let threads = options.threads.max(1);
    let shared = Shared {
        options,
        draw,
        began: Instant::now(),
        next: AtomicU64::new(0),
        lowest: AtomicU64::new(u64::MAX),
        done: AtomicU64::new(0),
        running: AtomicUsize::new(threads),
        totals: Mutex::new(P::Totals::default()),
        found: Mutex::new(None),
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // The count decreases even if the thread panics, so that the others do not wait for
                // it.
                let _leaving = Leaving(&shared.running);
                shared.work();
            });
        }
        while shared.running.load(Ordering::Acquire) > 0 {
            thread::sleep(PROGRESS.min(Duration::from_millis(20)));
            report(&shared.progress());
        }
    });
    let progress = shared.progress();
    let totals = shared.totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    let found = shared.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    SwarmReport { totals, progress, found }
}

struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<P: Trial, D: Fn(u64) -> P> Shared<'_, P, D> {
    fn progress(&self) -> Progress {
        Progress { seeds: self.done.load(Ordering::Relaxed), elapsed: self.began.elapsed() }
    }

    fn work(&self) {
        let mut totals = P::Totals::default();
        loop {
            let offset = self.next.fetch_add(1, Ordering::Relaxed);
            let is_over = self.options.seeds.is_some_and(|seeds| offset >= seeds)
                || self.options.time.is_some_and(|time| self.began.elapsed() >= time)
                || offset > self.lowest.load(Ordering::Relaxed);
            if is_over {
                break;
            }
            let seed = self.options.first_seed.wrapping_add(offset);
            RUNNING.set(Some(seed));
            let plan = (self.draw)(seed);
            let (counted, violation) = plan.run();
            RUNNING.set(None);
            totals.add(&counted);
            self.done.fetch_add(1, Ordering::Relaxed);
            if let Some(violation) = violation {
                self.fail(offset, Found { plan, violation });
            }
        }
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).add(&totals);
    }

    fn fail(&self, offset: u64, found: Found<P>) {
        let mut lowest = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if offset < self.lowest.load(Ordering::Relaxed) {
            self.lowest.store(offset, Ordering::Relaxed);
            *lowest = Some(found);
        }
    }
}

/// Names the seed whose run panics. In release builds a panic ends the process, and nothing else
/// would tell the seed.
fn name_the_seed_in_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some(seed) = RUNNING.get() {
                eprintln!("seed {seed:#x} panicked; replay: concord sim --seed {seed:#x}");
            }
            before(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_change_nothing_about_what_a_swarm_sees() {
        let options = SwarmOptions {
            first_seed: 100,
            seeds: Some(12),
            time: None,
            threads: 1,
            aim: Aim::default(),
            guards: Guards::ALL,
        };
        let alone = swarm(&options, |_| {});
        let together = swarm(&SwarmOptions { threads: 3, ..options }, |_| {});
        assert_eq!(alone.totals, together.totals);
        assert_eq!((alone.totals.runs, alone.progress.seeds), (12, 12));
        assert!(alone.found.is_none());
    }
}
