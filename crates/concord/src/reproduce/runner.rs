//! Runs the points of figures on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use concord_runtime::Error;
use concord_sim::load::{Load, Measured, measure};
use indicatif::{ProgressBar, ProgressStyle};

use super::figure::{Drawn, Figure};
use super::points::{self, Point};
use crate::bench::Mark;

/// All points of a figure on a store.
pub type Seen = points::Seen<Measured>;

/// A mean and the half width of its 95% confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The interval is the mean plus or minus this.
    pub half: f64,
}

/// Student's t for 95% and 1 to 9 degrees of freedom; above, the normal distribution's is taken.
const T_95: [f64; 9] = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

impl Mean {
    /// Of independent runs.
    pub fn of(values: &[f64]) -> Mean {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let Some(t) = values.len().checked_sub(2).map(|at| T_95.get(at).copied().unwrap_or(1.96))
        else {
            return Mean { mean, half: f64::NAN };
        };
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Mean { mean, half: t * (squares / (n - 1.0) / n).sqrt() }
    }
}

impl Seen {
    /// The plotted line of a series. Where x is measured too, it is the mean of it.
    pub fn line(&self, figure: &Figure, series: usize) -> Vec<Mark> {
        let first = || self.of(series).next().and_then(|p| p.runs.first());
        if let Drawn::Timeline { bucket_s } = figure.drawn {
            let buckets = first().map(|(_, m)| m.buckets.as_slice()).unwrap_or_default();
            let at = |(n, count): (usize, &u64)| {
                Mark::one(n as f64 * bucket_s, *count as f64 / bucket_s / figure.y_unit)
            };
            return buckets.iter().enumerate().map(at).collect();
        }
        if figure.drawn == Drawn::Distribution {
            let reads = first().map(|(_, m)| m.read.each_hundredth_ns.as_slice());
            let reads = reads.unwrap_or_default().iter().enumerate();
            let at = |(at, ns): (usize, &u32)| Mark::one(f64::from(*ns) / 1e3, at as f64 / 99.0);
            return reads.map(at).collect();
        }
        let at = |point: &Point<Measured>| {
            let x = figure.x_value.map_or(point.x, |value| Mean::of(&point.values(value)).mean);
            Some(Mark::at_mean(x, &point.values(figure.y_value))?.in_units_of(figure.y_unit))
        };
        self.of(series).filter_map(at).collect()
    }
}

/// Runs all points, `repeats` times each; a timeline or a distribution once.
///
/// # Errors
/// A rack that did not run: a bug.
pub fn run(figure: &Figure, repeats: u64, runner: &Runner) -> Result<Seen, Error> {
    let lines = figure.series.iter().map(|series| series.points.as_slice());
    let seeded = |load: &Load, seed| Load { seed, ..load.clone() };
    points::run(figure.name, lines, figure.repeats(repeats), runner, seeded, measure)
}

/// Runs loads on several threads and shows how far it is.
#[derive(Debug)]
pub struct Runner {
    threads: usize,
    bar: ProgressBar,
}

impl Runner {
    /// On so many threads; `runs` are to come in all.
    pub fn new(threads: usize, runs: u64) -> Runner {
        let bar = ProgressBar::new(runs);
        let template = "{bar:30} {pos}/{len} runs, {elapsed}, about {eta} to go, {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Runner { threads: threads.max(1), bar }
    }

    /// A line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }

    /// No more runs come.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// What was measured of each load, in their order.
    ///
    /// # Errors
    /// A rack that did not run: a bug.
    pub fn all(&self, what: &str, loads: &[Load]) -> Result<Vec<Measured>, Error> {
        self.each(what, loads, measure)
    }

    /// The same of loads of any kind.
    ///
    /// # Errors
    /// A rack that did not run: a bug.
    pub fn each<L: Sync, M: Send>(
        &self,
        what: &str,
        loads: &[L],
        measure: impl Fn(&L) -> Result<M, String> + Sync,
    ) -> Result<Vec<M>, Error> {
        self.bar.set_message(what.to_string());
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(load) = loads.get(at) else { return };
                        let measured = measure(load);
                        self.bar.inc(1);
                        if let Ok(mut done) = done.lock() {
                            done.push((at, measured));
                        }
                    }
                });
            }
        });
        let panicked = |_| Error::new("a run of the simulator panicked");
        let mut done = done.into_inner().map_err(panicked)?;
        done.sort_by_key(|(at, _)| *at);
        let named = |why: String| Error::new(format!("{what}: {why}"));
        done.into_iter().map(|(_, measured)| measured.map_err(named)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_come_with_students_interval() {
        let m = Mean::of(&[1.0, 2.0, 3.0]);
        assert_eq!(m.mean, 2.0);
        assert!((m.half - 4.303 / 3f64.sqrt()).abs() < 1e-9, "{m:?}");
        assert!(Mean::of(&[1.0]).half.is_nan());
    }
}
