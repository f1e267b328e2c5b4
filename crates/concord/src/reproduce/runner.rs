//! The runner of figures' points, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use concord_runtime::Error;
use indicatif::{ProgressBar, ProgressStyle};

/// A mean, and half the width of its 95% confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The interval is the mean plus or minus this.
    pub half: f64,
}

/// Student's t for 95% and 1 to 9 degrees of freedom; above, the value of the normal distribution
/// is used.
const T_95: [f64; 9] = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

impl Mean {
    /// The mean of independent runs.
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

/// Runs loads on several threads, and shows the progress.
#[derive(Debug)]
pub struct Runner {
    threads: usize,
    bar: ProgressBar,
}

impl Runner {
    /// A runner with this number of threads, for `runs` runs in all.
    pub fn new(threads: usize, runs: u64) -> Runner {
        let bar = ProgressBar::new(runs);
        let template = "{bar:30} {pos}/{len} runs, {elapsed}, about {eta} to go, {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Runner { threads: threads.max(1), bar }
    }

    /// Prints a line above the progress bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }

    /// Ends the progress bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The measurements of each load, in the order of the loads.
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
