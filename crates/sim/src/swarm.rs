//! Many seeds on many threads, until the time is up or one fails.

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

/// Time between two reports of progress.
const PROGRESS: Duration = Duration::from_millis(200);

/// Which seeds, and how long.
#[derive(Clone, Copy, Debug)]
pub struct SwarmOptions {
    /// The first seed; the others follow it.
    pub first_seed: u64,
    /// How many; `None`: until the time is up.
    pub seeds: Option<u64>,
    /// How long; `None`: until all seeds are done.
    pub time: Option<Duration>,
    /// Threads.
    pub threads: usize,
    /// What the seeds may not draw themselves.
    pub aim: Aim,
    /// Which guards are on.
    pub guards: Guards,
}

impl SwarmOptions {
    /// The plan of a seed of this swarm.
    #[must_use]
    pub fn plan(&self, seed: u64) -> Plan {
        Plan { guards: self.guards, ..Plan::draw_aimed(seed, self.aim) }
    }
}

/// How far a swarm is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Seeds done.
    pub seeds: u64,
    /// Time since it began.
    pub elapsed: Duration,
}

impl Progress {
    /// Seeds done in a second.
    #[must_use]
    pub fn seeds_per_second(&self) -> f64 {
        self.seeds as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A plan that went wrong.
#[derive(Clone, Debug)]
pub struct Found<P = Plan> {
    /// The plan.
    pub plan: P,
    /// What is wrong.
    pub violation: String,
}

/// What a swarm saw.
#[derive(Clone, Debug)]
pub struct SwarmReport<P: Trial = Plan> {
    /// Of all seeds that were run.
    pub totals: P::Totals,
    /// How far it got.
    pub progress: Progress,
    /// The lowest seed that failed, if one did.
    pub found: Option<Found<P>>,
}

thread_local! {
    /// The seed that this thread runs, for the report of a panic.
    static RUNNING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What the threads of a swarm share.
struct Shared<'a, P: Trial, D> {
    options: &'a SwarmOptions,
    draw: D,
    began: Instant,
    next: AtomicU64,
    /// Offset of the lowest seed that failed so far: seeds below it are still run, so that what a
    /// swarm over fixed seeds finds does not depend on its threads.
    lowest: AtomicU64,
    done: AtomicU64,
    running: AtomicUsize,
    totals: Mutex<P::Totals>,
    found: Mutex<Option<Found<P>>>,
}

/// Runs seeds until they are done, the time is up, or one fails. `report` hears of the progress a
/// few times a second.
pub fn swarm(options: &SwarmOptions, report: impl FnMut(&Progress)) -> SwarmReport {
    swarm_of(options, |seed| options.plan(seed), report)
}

/// A [`swarm`] whose seeds draw by `draw`, runs of whichever system.
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
                // Counted down even if the thread panics, so that nobody waits for it for ever.
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

/// A broken assertion ends the process in release builds: say before which seed it was.
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
