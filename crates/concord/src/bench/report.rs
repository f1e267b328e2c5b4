//! What a bench leaves: a table for a person, CSV with where it comes from, one SVG plot.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use concord_runtime::{Context, Error};
use plotters::prelude::*;

/// Size of a plot in pixels.
const PLOT_SIZE: (u32, u32) = (900, 560);

/// Rows under named columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows.
    pub fn new(columns: &[&'static str]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the last row as it comes, so that long work shows progress.
    pub fn print_last(&self) {
        if self.rows.len() == 1 {
            println!("{}", self.columns.join(", "));
        }
        if let Some(row) = self.rows.last() {
            println!("{}", row.join(", "));
        }
    }

    /// Prints all of it, aligned.
    pub fn print(&self) {
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(i)).map(String::len);
            cells.max().unwrap_or(0).max(self.columns[i].len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            println!("{}", padded.collect::<Vec<_>>().join("  "));
        };
        println!();
        line(&mut self.columns.iter().copied());
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str));
        }
    }
}

/// Where results go.
#[derive(Clone, Debug)]
pub struct Results {
    dir: PathBuf,
    is_quiet: bool,
}

impl Results {
    /// Below `out`, in `bench/`.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(out: &Path) -> Result<Results, Error> {
        Results::below(out, "bench")
    }

    /// Below `out`, in `name`/.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn below(out: &Path, name: &str) -> Result<Results, Error> {
        let dir = out.join(name);
        std::fs::create_dir_all(&dir).cannot(format!("make the directory {}", dir.display()))?;
        Ok(Results { dir, is_quiet: false })
    }

    /// Without a line for every file.
    #[must_use]
    pub fn quiet(self) -> Results {
        Results { is_quiet: true, ..self }
    }

    fn say(&self, path: &Path) {
        if !self.is_quiet {
            println!("wrote {}", path.display());
        }
    }

    /// Writes `name`.csv.
    ///
    /// # Errors
    /// The system's.
    pub fn csv(&self, name: &str, table: &Table) -> Result<(), Error> {
        let mut text = provenance();
        let _ = writeln!(text, "{}", table.columns.join(","));
        for row in &table.rows {
            let _ = writeln!(text, "{}", row.join(","));
        }
        let path = self.dir.join(format!("{name}.csv"));
        std::fs::write(&path, text).cannot(format!("write {}", path.display()))?;
        self.say(&path);
        Ok(())
    }

    /// Writes `name`.svg.
    ///
    /// # Errors
    /// The system's.
    pub fn plot(&self, name: &str, plot: &Plot) -> Result<(), Error> {
        let path = self.dir.join(format!("{name}.svg"));
        plot.draw(&path).map_err(|e| Error::new(format!("cannot draw {}: {e}", path.display())))?;
        self.say(&path);
        Ok(())
    }
}

/// The first line that a command prints.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_string()
}

/// The load of the machine over the last minute; figures of a busy one mean little.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_string()
}

/// Where results come from: commit, date, command, machine, load.
pub fn provenance() -> String {
    let commit = first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    let line: Vec<String> = std::env::args().collect();
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|l| l.strip_prefix("model name"));
    let cpu = cpu.map_or("unknown", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "# commit: {commit}\n# date: {}\n# command: {}\n# machine: {cores} x {cpu}, {}\n# load average at the end: {}\n",
        first_line("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        line.join(" "),
        first_line("uname", &["-sr"]),
        load_average(),
    )
}

/// What stands on the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Places 1, 2, ...
    Places,
    /// Values from 0 on.
    Values,
}

/// Lines over one axis.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// What x is.
    pub x: &'static str,
    /// What y is, from 0.
    pub y: &'static str,
    /// Names of x values, from 1; the number if empty.
    pub x_names: Vec<String>,
    /// How the x axis is laid out.
    pub scale: Scale,
    /// Name and points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot {
    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let x_max = points().map(|p| p.0).fold(0.0, f64::max);
        let places = self.scale == Scale::Places;
        let x_range = if places { 0.5..x_max + 0.5 } else { 0.0..x_max * 1.03 };
        let y_max = points().map(|p| p.1).fold(1e-3, f64::max) * 1.05;
        let root = SVGBackend::new(path, PLOT_SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(80)
            .build_cartesian_2d(x_range, 0.0..y_max)?;
        let name = |x: &f64| {
            let index = x.round() as usize;
            if !places {
                return short(*x);
            }
            match self.x_names.get(index.wrapping_sub(1)) {
                _ if (x - x.round()).abs() > 0.01 => String::new(),
                Some(name) => name.clone(),
                None => index.to_string(),
            }
        };
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(if places { 2 * x_max as usize + 1 } else { 11 })
            .x_label_formatter(&name)
            .y_label_formatter(&|y| short(*y))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (i, (name, points)) in self.series.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            chart.draw_series(line)?.label(name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
            });
            let dots = points.iter().map(|&p| Circle::new(p, 3, color.filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        root.present()?;
        Ok(())
    }
}

/// A number on an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// The middle of `values`, which must be there; the mean of the two middles if they are even.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (n, mid) if n % 2 == 1 => sorted[mid],
        (_, mid) => f64::midpoint(sorted[mid - 1], sorted[mid]),
    }
}

/// `median (min..max)`, rounded.
pub fn spread(values: &[f64], digits: usize) -> String {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({min:.digits$}..{max:.digits$})", median(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(spread(&[1.0, 3.0, 2.0], 1), "2.0 (1.0..3.0)");
    }

    #[test]
    fn results_carry_where_they_come_from() {
        let out = std::env::temp_dir().join(format!("concord-report-{}", std::process::id()));
        let results = Results::new(&out).unwrap();
        let mut table = Table::new(&["n", "rate"]);
        table.row(vec!["1".into(), "2.5".into()]);
        results.csv("t", &table).unwrap();
        let plot = Plot {
            title: "t".into(),
            x: "n",
            y: "rate",
            x_names: Vec::new(),
            scale: Scale::Places,
            series: vec![("s".into(), vec![(1.0, 2.5), (2.0, 5.0)])],
        };
        results.plot("t", &plot).unwrap();
        let csv = std::fs::read_to_string(out.join("bench/t.csv")).unwrap();
        let svg = std::fs::read_to_string(out.join("bench/t.svg")).unwrap();
        std::fs::remove_dir_all(&out).unwrap();
        for head in ["# commit: ", "# date: 20", "# command: ", "# load average"] {
            assert!(csv.contains(head), "{csv}");
        }
        assert!(csv.ends_with("n,rate\n1,2.5\n"), "{csv}");
        assert!(svg.starts_with("<svg") && svg.contains("polyline"));
    }
}
