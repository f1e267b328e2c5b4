//! Observations of tasks, and the figures that follow from them.

use super::{Load, Measured};

/// The distribution of delays, in ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delays {
    /// The number of delays.
    pub count: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The 5th percentile.
    pub p5_ns: u32,
    /// The median.
    pub median_ns: u32,
    /// The 95th percentile.
    pub p95_ns: u32,
    /// The 99th percentile.
    pub p99_ns: u32,
    /// The 99.9th percentile.
    pub p999_ns: u32,
    /// The maximum.
    pub most_ns: u32,
    /// A hundred of them, evenly from the smallest to the largest, which show their distribution.
    pub each_hundredth_ns: Vec<u32>,
}

impl Delays {
    /// The distribution of these delays, which are sorted here.
    pub(super) fn of(all_ns: &mut [u32]) -> Delays {
        all_ns.sort_unstable();
        let Some(last) = all_ns.len().checked_sub(1) else { return Delays::default() };
        let sum: u64 = all_ns.iter().map(|ns| u64::from(*ns)).sum();
        let permille = |n: usize| all_ns[last * n / 1_000];
        Delays {
            count: all_ns.len() as u64,
            mean_ns: sum as f64 / all_ns.len() as f64,
            p5_ns: permille(50),
            median_ns: permille(500),
            p95_ns: permille(950),
            p99_ns: permille(990),
            p999_ns: permille(999),
            most_ns: all_ns[last],
            each_hundredth_ns: (0..100).map(|at| all_ns[last * at / 99]).collect(),
        }
    }
}

/// A step of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Its durations.
    pub delays: Delays,
}

/// A job in progress.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub at_ns: u64,
    pub times_ns: Vec<u32>,
    /// For each task, whether it has begun.
    begun: Vec<bool>,
    /// The number of tasks that have not begun.
    pub left: usize,
}

impl Open {
    pub fn new(at_ns: u64, times_ns: Vec<u32>) -> Open {
        let left = times_ns.len();
        Open { at_ns, begun: vec![false; left], times_ns, left }
    }

    /// Whether all its tasks have begun.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }
}

/// The observations.
pub(super) struct Seen {
    from_ns: u64,
    until_ns: u64,
    delays: Vec<u32>,
    jobs: Vec<u32>,
    slowdowns: Vec<f32>,
    /// The number of measured tasks that have not begun.
    left: u64,
    steps: Vec<(&'static str, Vec<u32>)>,
}

pub(super) fn short(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}

impl Seen {
    pub fn new(load: &Load, steps: &[&'static str]) -> Seen {
        let until_ns = load.warm_up_ns + load.measure_ns;
        let steps = if load.steps { steps } else { &[] };
        Seen {
            from_ns: load.warm_up_ns,
            until_ns,
            delays: Vec::new(),
            jobs: Vec::new(),
            slowdowns: Vec::new(),
            left: 0,
            steps: steps.iter().map(|name| (*name, Vec::new())).collect(),
        }
    }

    /// Whether an event at this time is measured.
    pub fn counts(&self, at_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }

    /// Notes the arrival of a job.
    pub fn job(&mut self, at_ns: u64, tasks: usize) {
        if self.counts(at_ns) {
            self.left += tasks as u64;
        }
    }

    /// Notes that a task of a job begins; `false` if it had begun before.
    pub fn begins(&mut self, now_ns: u64, job: &mut Open, tid: usize) -> bool {
        if job.begun.get(tid) != Some(&false) {
            return false;
        }
        job.begun[tid] = true;
        job.left -= 1;
        if self.counts(job.at_ns) {
            let delay_ns = now_ns - job.at_ns;
            self.delays.push(short(delay_ns));
            let time_ns = f64::from(job.times_ns[tid]);
            self.slowdowns.push(((delay_ns as f64 + time_ns) / time_ns) as f32);
            self.left -= 1;
            if job.left == 0 {
                self.jobs.push(short(delay_ns));
            }
        }
        true
    }

    /// Notes the duration of a step of a task, whose job arrived at `job_at_ns`.
    pub fn step(&mut self, job_at_ns: u64, step: usize, took_ns: u64) {
        if self.counts(job_at_ns)
            && let Some((_, all)) = self.steps.get_mut(step)
        {
            all.push(short(took_ns));
        }
    }

    /// Whether every measured task has begun.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns && self.left == 0
    }

    /// The latest end of the simulation: a rack that cannot keep up never finishes.
    pub fn end_ns(&self) -> u64 {
        self.until_ns + (self.until_ns - self.from_ns) / 4
    }

    /// The results. `open` are the jobs in progress.
    pub fn measured<'a>(mut self, open: impl Iterator<Item = &'a Open>) -> Measured {
        let (from_ns, until_ns, end_ns) = (self.from_ns, self.until_ns, self.end_ns());
        let unstarted = self.left;
        for job in open.filter(|job| (from_ns..until_ns).contains(&job.at_ns) && job.left > 0) {
            let delay_ns = short(end_ns - job.at_ns);
            self.delays.extend(std::iter::repeat_n(delay_ns, job.left));
            self.jobs.push(delay_ns);
        }
        self.slowdowns.sort_unstable_by(f32::total_cmp);
        let last = self.slowdowns.len().saturating_sub(1);
        let step =
            |(name, all): &mut (&'static str, Vec<u32>)| Step { name, delays: Delays::of(all) };
        Measured {
            tasks: self.delays.len() as u64,
            unstarted,
            task: Delays::of(&mut self.delays),
            job: Delays::of(&mut self.jobs),
            slowdown_p99: f64::from(self.slowdowns.get(last * 99 / 100).copied().unwrap_or(0.0)),
            steps: self.steps.iter_mut().map(step).collect(),
            ..Measured::default()
        }
    }
}
