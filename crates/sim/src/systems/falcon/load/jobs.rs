//! The jobs of a load: the same for each system.

use std::collections::VecDeque;

use concord_core::{Rng, SEC};

use super::{Arrivals, Load, Times};

/// With bimodal times, the share of long tasks, and how many times longer they are.
const LONG_SHARE: (u64, u64) = (1, 10);
const LONGER: u64 = 10;
/// The time of a short task, in units of 1/10,000 of the mean: 0.9 * s + 0.1 * 10 s = 1.
const SHORT_PERMYRIAD: u64 = 5_263;

/// A job.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub at_ns: u64,
    pub client: usize,
    /// The time of each task in ns.
    pub times_ns: Vec<u32>,
}

/// The jobs of a load, by time, without an end.
pub(super) struct Jobs<'a> {
    load: &'a Load,
    rng: Rng,
    number: u64,
    now_ns: f64,
}

/// Draws from an exponential distribution.
pub(super) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.unit()).ln() * mean
}

impl<'a> Jobs<'a> {
    pub fn new(load: &'a Load) -> Jobs<'a> {
        Jobs { load, rng: Rng::new(load.seed ^ 0x6a0b_5eed), number: 0, now_ns: 0.0 }
    }

    fn time_ns(&mut self) -> u32 {
        let mean_ns = self.load.task_ns;
        let ns = match self.load.times {
            Times::Fixed => mean_ns,
            Times::Exponential => exponential(&mut self.rng, mean_ns as f64) as u64,
            Times::Bimodal => {
                let short_ns = mean_ns * SHORT_PERMYRIAD / 10_000;
                let is_long = self.rng.chance(LONG_SHARE.0, LONG_SHARE.1);
                if is_long { LONGER * short_ns } else { short_ns }
            }
        };
        u32::try_from(ns).unwrap_or(u32::MAX).max(1)
    }
}

impl Iterator for Jobs<'_> {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        let clients = self.load.clients as u64;
        let (at_ns, client) = match self.load.arrivals {
            Arrivals::Periodic { period_ns, phase_ns } => {
                let client = self.number % clients;
                (self.number / clients * period_ns + client * phase_ns, client)
            }
            Arrivals::Poisson { jobs_per_second } => {
                let gap_ns = SEC as f64 / jobs_per_second as f64;
                self.now_ns += exponential(&mut self.rng, gap_ns);
                (self.now_ns as u64, self.rng.below(clients))
            }
        };
        let upto = |number: u64| (number as f64 * self.load.tasks_per_job + 1e-9) as u64;
        let tasks = upto(self.number + 1) - upto(self.number);
        self.number += 1;
        let times_ns = (0..tasks).map(|_| self.time_ns()).collect();
        Some(Job { at_ns, client: client as usize, times_ns })
    }
}

/// The known jobs by number; the first ones are forgotten when they are over.
pub(super) struct Known<T> {
    first: u64,
    jobs: VecDeque<T>,
}

impl<T> Known<T> {
    pub fn new(first: u64) -> Known<T> {
        Known { first, jobs: VecDeque::new() }
    }

    /// The number of the next job.
    pub fn next(&self) -> u64 {
        self.first + self.jobs.len() as u64
    }

    pub fn push(&mut self, job: T) {
        self.jobs.push_back(job);
    }

    pub fn of(&mut self, number: u64) -> Option<&mut T> {
        self.jobs.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The known jobs.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.jobs.iter()
    }

    /// Forgets the first jobs, as far as they are over.
    pub fn forget(&mut self, is_over: impl Fn(&T) -> bool) {
        while self.jobs.front().is_some_and(&is_over) {
            self.jobs.pop_front();
            self.first += 1;
        }
    }
}
