//! The runs of figures on a store, and their files.

use concord_runtime::Error;
use concord_sim::load::{Load, Measured, measure};

use super::figure::{Drawn, Figure};
use super::points::{self, Point};
use super::runner::{Mean, Runner};
use crate::results::{Mark, Plot, Results, Table};

/// All points of a figure on a store.
pub type Seen = points::Seen<Measured>;

impl Seen {
    /// The plotted line of a series. If x is measured, too, its mean is used.
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
    let seeded = |load: &Load, seed| Load { seed, ..load.clone() };
    points::run(figure.name, &figure.series, figure.repeats(repeats), runner, seeded, measure)
}

/// The drawn value of each point, with half the width of its 95% confidence interval.
pub fn summary(all: &[(Figure, Seen)]) -> Table {
    let mut table = Table::new(&["figure", "series", "x", "y_is", "mean", "half_width_95", "runs"]);
    for (figure, seen) in all.iter().filter(|(figure, _)| figure.drawn == Drawn::Points) {
        for point in &seen.points {
            let Some(mean) = seen.at(point.line, point.x, figure.y_value) else { continue };
            table.row(vec![
                figure.name.to_string(),
                figure.series[point.line].name.replace(',', ";"),
                point.x.to_string(),
                figure.y.replace(',', ";"),
                format!("{:.4}", mean.mean / figure.y_unit),
                format!("{:.4}", mean.half / figure.y_unit),
                point.runs.len().to_string(),
            ]);
        }
    }
    table
}

/// Writes a figure's raw data and its plot.
///
/// # Errors
/// A file that could not be written.
pub fn write(results: &Results, figure: &Figure, seen: &Seen) -> Result<(), Error> {
    let mut raw = Table::new(&[
        "series",
        "x",
        "seed",
        "reads_per_s",
        "writes_per_s",
        "read_mean_us",
        "read_p99_us",
        "write_mean_us",
        "write_p99_us",
        "fast_reads",
        "slow_reads",
        "refused_newer",
        "table_full",
        "strays_read",
        "strays_replaced",
        "strays_swept",
        "slots_in_use",
        "leader_reads_share",
        "reads_unstable",
        "replies_stale",
    ]);
    for point in &seen.points {
        for (seed, m) in &point.runs {
            let us = |ns: f64| format!("{:.2}", ns / 1_000.0);
            let count = |name: &str| m.counts.get(name).copied().unwrap_or_default();
            raw.row(vec![
                figure.series[point.line].name.replace(',', ";"),
                format!("{}", point.x),
                seed.to_string(),
                format!("{:.0}", m.reads_per_second),
                format!("{:.0}", m.writes_per_second),
                us(m.read.mean_ns),
                us(m.read.p99_ns.into()),
                us(m.write.mean_ns),
                us(m.write.p99_ns.into()),
                m.replicas.reads_fast.to_string(),
                m.replicas.reads_slow.to_string(),
                m.replicas.refused_newer.to_string(),
                m.switch.dropped_table_full.to_string(),
                m.switch.strays_read.to_string(),
                m.switch.strays_replaced.to_string(),
                m.switch.strays_swept.to_string(),
                m.occupied.to_string(),
                format!("{:.4}", m.leader_reads_share),
                count("reads_unstable").to_string(),
                count("replies_stale").to_string(),
            ]);
        }
    }
    let name = figure.label().replace(' ', "-").to_lowercase();
    results.csv(&name, &raw)?;
    let series = figure.series.iter().enumerate();
    let plot = Plot {
        title: format!("{}: {}", figure.label(), figure.title),
        x: figure.x,
        y: figure.y,
        x_names: figure.x_names.clone(),
        scale: figure.scale,
        series: series.map(|(at, s)| (s.name.clone(), seen.line(figure, at))).collect(),
    };
    results.plot(&name, &plot)
}
