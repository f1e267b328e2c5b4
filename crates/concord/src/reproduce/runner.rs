//! Runs the points of figures on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use concord_runtime::Error;
use concord_sim::load::{Load, Measured, measure};
use indicatif::{ProgressBar, ProgressStyle};

use super::figure::{Drawn, Figure};
use crate::bench::Mark;

/// A point of a series, run several times.
#[derive(Debug)]
pub struct Point {
    /// Which series.
    pub series: usize,
    /// Where on the x axis.
    pub x: f64,
    /// Seed and what was measured, by seed.
    pub runs: Vec<(u64, Measured)>,
}

impl Point {
    /// A value of each run.
    fn values(&self, value: impl Fn(&Measured) -> f64) -> Vec<f64> {
        self.runs.iter().map(|(_, m)| value(m)).collect()
    }
}

/// All points of a figure, as it lists them.
#[derive(Debug)]
pub struct Seen {
    /// The points.
    pub points: Vec<Point>,
}

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
    /// A value of a point, over its runs; `None` if there is no such point.
    pub fn at(&self, series: usize, x: f64, value: impl Fn(&Measured) -> f64) -> Option<Mean> {
        let is_it = |p: &&Point| p.series == series && (p.x - x).abs() < 1e-9;
        let point = self.points.iter().find(is_it)?;
        Some(Mean::of(&point.values(value)))
    }

    /// The largest mean of a series.
    pub fn most(&self, series: usize, value: impl Fn(&Measured) -> f64) -> Option<f64> {
        let points = self.points.iter().filter(|p| p.series == series);
        points.filter_map(|p| self.at(series, p.x, &value)).map(|m| m.mean).max_by(f64::total_cmp)
    }

    /// The plotted line of a series: means with the spread of their runs. Where x is measured too,
    /// it is the mean of it.
    pub fn line(&self, figure: &Figure, series: usize) -> Vec<Mark> {
        let points = self.points.iter().filter(|p| p.series == series);
        let first = || points.clone().next().and_then(|p| p.runs.first());
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
        let at = |point: &Point| {
            let x = figure.x_value.map_or(point.x, |value| Mean::of(&point.values(value)).mean);
            Some(Mark::at_mean(x, &point.values(figure.y_value))?.in_units_of(figure.y_unit))
        };
        points.filter_map(at).collect()
    }
}

/// Runs all points, `repeats` times each; a timeline or a distribution once.
///
/// # Errors
/// A rack that did not run: a bug.
pub fn run(figure: &Figure, repeats: u64, runner: &Runner) -> Result<Seen, Error> {
    let mut points: Vec<Point> = Vec::new();
    let mut places: Vec<usize> = Vec::new();
    let mut loads: Vec<Load> = Vec::new();
    for (series, line) in figure.series.iter().enumerate() {
        for (x, load) in &line.points {
            for seed in 1..=figure.repeats(repeats) {
                places.push(points.len());
                loads.push(Load { seed, ..load.clone() });
            }
            points.push(Point { series, x: *x, runs: Vec::new() });
        }
    }
    let all = runner.all(figure.name, &loads)?;
    for ((place, load), measured) in places.into_iter().zip(&loads).zip(all) {
        points[place].runs.push((load.seed, measured));
    }
    Ok(Seen { points })
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
