//! The points of a figure's lines: the load of each, and its measurements by seed.

use concord_runtime::Error;

use super::runner::{Mean, Runner};
use crate::results::Mark;

/// A line of a figure.
#[derive(Clone, Debug)]
pub struct Line<L> {
    /// The name in the legend.
    pub name: String,
    /// The points: position on the x axis, and load.
    pub points: Vec<(f64, L)>,
}

/// The total number of runs of these lines.
pub fn runs<L>(lines: &[Line<L>], repeats: u64) -> u64 {
    let points: usize = lines.iter().map(|line| line.points.len()).sum();
    points as u64 * repeats
}

/// A point of a line, run several times.
#[derive(Debug)]
pub struct Point<M> {
    /// The index of the line.
    pub line: usize,
    /// The position on the x axis.
    pub x: f64,
    /// The seed and the measurements of each run.
    pub runs: Vec<(u64, M)>,
}

impl<M> Point<M> {
    /// A value of each run.
    pub fn values(&self, value: impl Fn(&M) -> f64) -> Vec<f64> {
        self.runs.iter().map(|(_, m)| value(m)).collect()
    }
}

/// All points of a figure, in its order.
#[derive(Debug)]
pub struct Seen<M> {
    /// The points.
    pub points: Vec<Point<M>>,
}

impl<M> Seen<M> {
    /// The points of a line.
    pub fn of(&self, line: usize) -> impl Iterator<Item = &Point<M>> + Clone {
        self.points.iter().filter(move |p| p.line == line)
    }

    fn point(&self, line: usize, x: f64) -> Option<&Point<M>> {
        self.of(line).find(|p| (p.x - x).abs() < 1e-9)
    }

    /// The mean of a value over the runs of a point; `None` if the point does not exist.
    pub fn at(&self, line: usize, x: f64, value: impl Fn(&M) -> f64) -> Option<Mean> {
        Some(Mean::of(&self.point(line, x)?.values(value)))
    }

    /// The mean difference of a value between two lines, by seed: both have the same arrivals and
    /// sizes.
    pub fn paired(
        &self,
        (line, other): (usize, usize),
        x: f64,
        value: impl Fn(&M) -> f64,
    ) -> Option<Mean> {
        let (own, other) = (self.point(line, x)?, self.point(other, x)?);
        let pairs = own.runs.iter().zip(&other.runs);
        let differences = pairs.filter(|((a, _), (b, _))| a == b);
        let differences: Vec<f64> =
            differences.map(|((_, a), (_, b))| value(a) - value(b)).collect();
        (!differences.is_empty()).then(|| Mean::of(&differences))
    }

    /// The largest mean of a line.
    pub fn most(&self, line: usize, value: impl Fn(&M) -> f64) -> Option<f64> {
        let means = self.of(line).map(|p| Mean::of(&p.values(&value)).mean);
        means.max_by(f64::total_cmp)
    }

    /// A line as it is plotted: means with the spread of their runs.
    pub fn drawn(&self, line: usize, value: impl Fn(&M) -> f64) -> Vec<Mark> {
        self.of(line).filter_map(|p| Mark::at_mean(p.x, &p.values(&value))).collect()
    }
}

/// Runs all points of a figure's lines, each with the seeds 1 to `repeats`. `seeded` makes a load
/// with another seed.
///
/// # Errors
/// A rack that did not run: a bug.
pub fn run<L: Sync, M: Send>(
    figure: &str,
    lines: &[Line<L>],
    repeats: u64,
    runner: &Runner,
    seeded: impl Fn(&L, u64) -> L,
    measure: impl Fn(&L) -> Result<M, String> + Sync,
) -> Result<Seen<M>, Error> {
    let (mut points, mut runs, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    for (line, Line { points: places, .. }) in lines.iter().enumerate() {
        for (x, load) in places {
            for seed in 1..=repeats {
                runs.push((points.len(), seed));
                loads.push(seeded(load, seed));
            }
            points.push(Point { line, x: *x, runs: Vec::new() });
        }
    }
    let all = runner.each(figure, &loads, measure)?;
    for ((at, seed), measured) in runs.into_iter().zip(all) {
        points[at].runs.push((seed, measured));
    }
    Ok(Seen { points })
}

/// The name of a figure in output: those of the paper are numbers.
pub fn label(name: &str) -> String {
    let is_ours = !name.starts_with(|c: char| c.is_ascii_digit());
    format!("{} {name}", if is_ours { "Beside" } else { "Figure" })
}
