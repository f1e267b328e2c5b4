//! A figure on tasks, and its results.

use concord_runtime::Error;
use concord_sim::falcon::load::{Load, Measured, measure};

use crate::reproduce::options::FigureArgs;
use crate::reproduce::points;
use crate::reproduce::runner::Runner;
use crate::results::{Mark, Plot, Results, Scale, Table};

/// The drawn values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The 5th, 50th and 95th percentile of each line.
    Percentiles,
    /// The 99th percentile.
    P99,
    /// The distribution of each step.
    Steps,
}

/// A line of a figure on tasks.
pub type Line = points::Line<Load>;

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number in the paper, or a name.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The label of the x axis.
    pub x: &'static str,
    /// The names of places on the x axis; empty if it has values.
    pub x_names: Vec<String>,
    /// The layout of the x axis.
    pub scale: Scale,
    /// The drawn values.
    pub shown: Shown,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Figure {
    /// A figure of percentiles over values of x.
    pub fn new(
        name: &'static str,
        title: &'static str,
        x: &'static str,
        lines: Vec<Line>,
    ) -> Figure {
        let (x_names, scale, shown) = (Vec::new(), Scale::Values, Shown::Percentiles);
        Figure { name, title, x, x_names, scale, shown, lines }
    }

    /// The total number of runs.
    pub fn runs(&self, repeats: u64) -> u64 {
        points::runs(&self.lines, repeats)
    }

    fn label(&self) -> String {
        points::label(self.name)
    }
}

/// All points of a figure on tasks.
pub type Seen = points::Seen<Measured>;

/// Runs a figure, and writes its results.
///
/// # Errors
/// A rack that did not run, or a file that could not be written.
pub fn run(
    figure: &Figure,
    args: &FigureArgs,
    runner: &Runner,
    results: &Results,
) -> Result<Seen, Error> {
    let seeded = |load: &Load, seed| Load { seed, ..load.clone() };
    let seen = points::run(figure.name, &figure.lines, args.repeats, runner, seeded, measure)?;
    let name = figure.label().replace(' ', "-").to_lowercase();
    results.csv(&name, &raw(figure, &seen))?;
    results.plot(&name, &plot(figure, &seen))?;
    Ok(seen)
}

/// The name of a column, and its value.
type Value = (&'static str, fn(&Measured) -> u32);

fn raw(figure: &Figure, seen: &Seen) -> Table {
    let mut table = Table::new(&[
        "series",
        "x",
        "seed",
        "what",
        "count",
        "unstarted",
        "mean_us",
        "p5_us",
        "p50_us",
        "p95_us",
        "p99_us",
        "p99.9_us",
        "most_us",
        "slowdown_p99",
        "events",
    ]);
    let us = |ns: u32| format!("{:.2}", f64::from(ns) / 1e3);
    for point in &seen.points {
        for (seed, m) in &point.runs {
            let steps = m.steps.iter().map(|step| (step.name, &step.delays));
            for (what, d) in [("task", &m.task), ("job", &m.job)].into_iter().chain(steps) {
                table.row(vec![
                    figure.lines[point.line].name.replace(',', ";"),
                    point.x.to_string(),
                    seed.to_string(),
                    what.to_string(),
                    d.count.to_string(),
                    m.unstarted.to_string(),
                    format!("{:.2}", d.mean_ns / 1e3),
                    us(d.p5_ns),
                    us(d.median_ns),
                    us(d.p95_ns),
                    us(d.p99_ns),
                    us(d.p999_ns),
                    us(d.most_ns),
                    format!("{:.3}", m.slowdown_p99),
                    m.events.to_string(),
                ]);
            }
        }
    }
    table
}

fn plot(figure: &Figure, seen: &Seen) -> Plot {
    let us = |ns: u32| f64::from(ns) / 1e3;
    let mut series = Vec::new();
    for (at, line) in figure.lines.iter().enumerate() {
        match figure.shown {
            Shown::P99 => {
                series.push((line.name.clone(), seen.drawn(at, |m| us(m.task.p99_ns))));
            }
            Shown::Percentiles => {
                let values: [Value; 3] = [
                    ("5%", |m| m.task.p5_ns),
                    ("median", |m| m.task.median_ns),
                    ("95%", |m| m.task.p95_ns),
                ];
                // All three of the delays that the paper compares.
                let values = if at < 2 { &values[..] } else { &values[1..2] };
                for (of, value) in values {
                    // Delays of a system that cannot keep up would flatten all others.
                    let drawn = seen.drawn(at, |m| us(value(m)));
                    let drawn = drawn.into_iter().filter(|mark| mark.y < 20_000.0).collect();
                    series.push((format!("{}, {of}", line.name), drawn));
                }
            }
            Shown::Steps => {
                let runs = seen.points.iter().filter(|p| p.line == at).flat_map(|p| p.runs.first());
                for step in runs.flat_map(|(_, m)| &m.steps) {
                    let each = step.delays.each_hundredth_ns.iter().enumerate();
                    let drawn = each.map(|(n, ns)| Mark::one(us(*ns), n as f64 / 99.0)).collect();
                    series.push((step.name.to_string(), drawn));
                }
            }
        }
    }
    let y = match figure.shown {
        Shown::Steps => "share that is faster",
        Shown::P99 => "99th percentile of the delay from submission to start in us",
        Shown::Percentiles => "delay from submission to start in us",
    };
    Plot {
        title: format!("{}: {}", figure.label(), figure.title),
        x: figure.x,
        y,
        x_names: figure.x_names.clone(),
        scale: figure.scale,
        series,
    }
}
