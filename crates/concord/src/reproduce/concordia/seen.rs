//! A figure on a shared memory, and its results.

use concord_runtime::Error;
use concord_sim::concordia::load::{Load, Measured, measure};

use crate::reproduce::options::FigureArgs;
use crate::reproduce::points;
use crate::reproduce::runner::Runner;
use crate::results::{Mark, Plot, Results, Scale, Table};

/// A line of a figure on a shared memory.
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
    /// The lines.
    pub lines: Vec<Line>,
}

impl Figure {
    /// The total number of runs.
    pub fn runs(&self, repeats: u64) -> u64 {
        points::runs(&self.lines, repeats)
    }

    fn label(&self) -> String {
        points::label(self.name)
    }
}

/// All points of a figure on a shared memory.
pub type Seen = points::Seen<Measured>;

/// A plot: the end of its file's name, the label of the y axis, and the value.
type Shown = (&'static str, &'static str, fn(&Measured) -> f64);

/// The plots of each figure. By sharing, the last two are figures 2(b) and 10.
const SHOWN: [Shown; 3] = [
    ("", "million accesses a second", |m| m.per_second() / 1e6),
    ("-packets", "packets sent and received an access", Measured::packets_each),
    ("-homes", "packets of home agents an access", Measured::home_packets_each),
];

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
    for (end, y, value) in SHOWN {
        results.plot(&format!("{name}{end}"), &plot(figure, &seen, y, value))?;
    }
    Ok(seen)
}

/// All measurements of each run.
fn raw(figure: &Figure, seen: &Seen) -> Table {
    let mut table = Table::new(&[
        "series",
        "x",
        "seed",
        "accesses_per_s",
        "hit_share",
        "packets_an_access",
        "home_packets_an_access",
        "wait_us",
        "failed",
        "resent",
        "accesses",
    ]);
    for point in &seen.points {
        for (seed, m) in &point.runs {
            table.row(vec![
                figure.lines[point.line].name.replace(',', ";"),
                point.x.to_string(),
                seed.to_string(),
                format!("{:.0}", m.per_second()),
                format!("{:.4}", m.hits as f64 / m.accesses.max(1) as f64),
                format!("{:.3}", m.packets_each()),
                format!("{:.3}", m.home_packets_each()),
                format!("{:.3}", m.wait_ns() / 1e3),
                m.failed.to_string(),
                m.resent.to_string(),
                m.accesses.to_string(),
            ]);
        }
    }
    table
}

fn plot(figure: &Figure, seen: &Seen, y: &'static str, value: fn(&Measured) -> f64) -> Plot {
    // At full locality only hits are measured, which would flatten all other points.
    let is_drawn = |mark: &Mark| figure.name != "12" || mark.x < 100.0;
    let line = |(at, line): (usize, &Line)| {
        let marks = seen.drawn(at, value).into_iter().filter(is_drawn).collect();
        (line.name.clone(), marks)
    };
    Plot {
        title: format!("{}: {}", figure.label(), figure.title),
        x: figure.x,
        y,
        x_names: Vec::new(),
        scale: Scale::Values,
        series: figure.lines.iter().enumerate().map(line).collect(),
    }
}
