//! The files with the results of a bench, a figure or a simulated network: a table for a person,
//! CSV with its provenance, and an SVG plot. A plot has lines over one axis, a bar from the minimum
//! to the maximum of each point's runs, and the legend beside the chart.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use concord_runtime::{Context, Error};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The width of a chart with its axes, in pixels; the width of the legend is added to it.
const CHART_WIDTH: u32 = 900;
/// The minimum height of a plot, in pixels; a legend may need more.
const HEIGHT_MIN: u32 = 560;
/// The size of the legend's text as plotters counts it: 1.24 times the pixels of the SVG.
const LEGEND_TEXT: u32 = 17;
/// The width assumed for a character of the legend, in pixels: 0.66 em, more than wide fonts need
/// on average.
const LEGEND_CHAR: u32 = 9;
/// The height of a line of the legend, in pixels.
const LEGEND_LINE: u32 = 22;
/// The space above the legend's first line, which begins at the height of the chart, in pixels.
const LEGEND_TOP: u32 = 40;
/// The length of a series' stroke in the legend, in pixels.
const LEGEND_STROKE: u32 = 24;
/// The space left of the stroke, between it and the name, and right of the name, in pixels.
const LEGEND_GAP: u32 = 8;
/// The maximum offset between two neighbouring series at one of [`Scale::Places`]: enough that
/// their bars do not cover each other.
const OFFSET_MAX: f64 = 0.05;
/// The maximum offset between the first and the last series: below 1, the distance of two places,
/// so that it is clear which place a bar belongs to.
const OFFSETS_MAX: f64 = 0.6;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawing = Result<(), Box<dyn std::error::Error>>;

/// Rows under named columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[&'static str]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the last row, so that long work shows its progress.
    pub fn print_last(&self) {
        if self.rows.len() == 1 {
            println!("{}", self.columns.join(", "));
        }
        if let Some(row) = self.rows.last() {
            println!("{}", row.join(", "));
        }
    }

    /// Prints the table, aligned.
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

/// The directory of results.
#[derive(Clone, Debug)]
pub struct Results {
    dir: PathBuf,
    is_quiet: bool,
    about: Vec<String>,
}

impl Results {
    /// The directory `bench/` below `out`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(out: &Path) -> Result<Results, Error> {
        Results::below(out, "bench")
    }

    /// The directory `name` below `out`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn below(out: &Path, name: &str) -> Result<Results, Error> {
        let dir = out.join(name);
        std::fs::create_dir_all(&dir).cannot(format!("make the directory {}", dir.display()))?;
        Ok(Results { dir, is_quiet: false, about: Vec::new() })
    }

    /// The same, without a message for every file.
    #[must_use]
    pub fn quiet(self) -> Results {
        Results { is_quiet: true, ..self }
    }

    /// The same, with these lines at the head of each CSV file and as the description of each plot.
    #[must_use]
    pub fn about(self, about: Vec<String>) -> Results {
        Results { about, ..self }
    }

    /// The lines at the head of each CSV file.
    #[must_use]
    pub fn about_text(&self) -> String {
        self.about.iter().map(|line| format!("# {line}")).collect::<Vec<_>>().join("\n")
    }

    /// The path of a file in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Prints that a file was written.
    pub fn say(&self, path: &Path) {
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
        for line in &self.about {
            let _ = writeln!(text, "# {line}");
        }
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
        if !self.about.is_empty() {
            describe(&path, &self.about).cannot(format!("write {}", path.display()))?;
        }
        self.say(&path);
        Ok(())
    }
}

/// Adds a description to an SVG.
fn describe(path: &Path, about: &[String]) -> std::io::Result<()> {
    let svg = std::fs::read_to_string(path)?;
    let text = about.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let described = match svg.find("<svg").and_then(|at| Some(at + svg[at..].find('>')? + 1)) {
        Some(at) => format!("{}\n<desc>{text}</desc>{}", &svg[..at], &svg[at..]),
        None => svg,
    };
    std::fs::write(path, described)
}

/// The first line of a command's output.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_string()
}

/// The load of the machine over the last minute; measurements on a busy machine mean little.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_string()
}

/// The provenance of results: commit, date, command, machine, load.
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

/// The layout of the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Places 1, 2, ... for named values.
    Places,
    /// Numeric values, from 0 on.
    Values,
}

/// A point of a plot: a dot, and a bar from the minimum to the maximum of its runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// The position on the x axis.
    pub x: f64,
    /// The value of the only run, or the median or mean of the runs.
    pub y: f64,
    /// The minimum of the runs; `y` if there is only one.
    pub low: f64,
    /// The maximum of the runs; `y` if there is only one.
    pub high: f64,
}

impl Mark {
    /// The point of one run, without a bar.
    pub fn one(x: f64, y: f64) -> Mark {
        Mark { x, y, low: y, high: y }
    }

    /// The point at the median of runs; `None` if there are no runs.
    pub fn at_median(x: f64, values: &[f64]) -> Option<Mark> {
        Mark::many(x, median(values), values)
    }

    /// The point at the mean of runs; `None` if there are no runs.
    pub fn at_mean(x: f64, values: &[f64]) -> Option<Mark> {
        Mark::many(x, values.iter().sum::<f64>() / values.len() as f64, values)
    }

    fn many(x: f64, y: f64, values: &[f64]) -> Option<Mark> {
        let low = values.iter().copied().min_by(f64::total_cmp)?;
        let high = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Mark { x, y, low, high })
    }

    /// The same point, with y in units of `unit`.
    #[must_use]
    pub fn in_units_of(self, unit: f64) -> Mark {
        Mark { y: self.y / unit, low: self.low / unit, high: self.high / unit, ..self }
    }

    fn has_bar(&self) -> bool {
        self.low < self.high
    }
}

/// A plot: lines over one axis.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The title above the chart.
    pub title: String,
    /// The label of the x axis.
    pub x: &'static str,
    /// The label of the y axis, which begins at 0.
    pub y: &'static str,
    /// The names of the x values, from 1; the number itself if empty.
    pub x_names: Vec<String>,
    /// The layout of the x axis.
    pub scale: Scale,
    /// The name and the points of each series.
    pub series: Vec<(String, Vec<Mark>)>,
}

impl Plot {
    fn draw(&self, path: &Path) -> Drawing {
        let lines = LEGEND_TOP + LEGEND_LINE * (self.series.len() as u32 + 1);
        let size = (CHART_WIDTH + self.legend_width(), lines.max(HEIGHT_MIN));
        let root = SVGBackend::new(path, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.split_horizontally(CHART_WIDTH);
        let mut chart = self.draw_axes(&left)?;
        for (i, (_, marks)) in self.series.iter().enumerate() {
            draw_line(&mut chart, marks, self.offset(i), color(i))?;
        }
        self.draw_legend(&right)?;
        root.present()?;
        Ok(())
    }

    fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.series.iter().flat_map(|(_, marks)| marks)
    }

    /// The offset to the right with which a series is drawn.
    fn offset(&self, series: usize) -> f64 {
        if self.scale != Scale::Places || !self.marks().any(Mark::has_bar) {
            return 0.0;
        }
        let count = self.series.len() as f64;
        (series as f64 - (count - 1.0) / 2.0) * OFFSET_MAX.min(OFFSETS_MAX / count)
    }

    /// Draws the axes with their labels, with room for all points and bars.
    fn draw_axes<'a>(&self, area: &Area<'a>) -> Result<Chart<'a>, Box<dyn std::error::Error>> {
        let x_max = self.marks().map(|mark| mark.x).fold(0.0, f64::max);
        let y_max = self.marks().map(|mark| mark.y.max(mark.high)).fold(1e-3, f64::max) * 1.05;
        let places = self.scale == Scale::Places;
        let x_range = if places { 0.5..x_max + 0.5 } else { 0.0..x_max * 1.03 };
        let mut chart = ChartBuilder::on(area)
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
        Ok(chart)
    }

    /// The width of the legend, enough for the longest name, in pixels.
    fn legend_width(&self) -> u32 {
        let chars = self.series.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        LEGEND_STROKE + 3 * LEGEND_GAP + LEGEND_CHAR * chars as u32
    }

    /// Draws a line for each series in `area`, which is as wide as [`Plot::legend_width`].
    fn draw_legend(&self, area: &Area<'_>) -> Drawing {
        let (begin, end) = (LEGEND_GAP as i32, (LEGEND_GAP + LEGEND_STROKE) as i32);
        let text = TextStyle::from(("sans-serif", LEGEND_TEXT).into_font())
            .pos(Pos::new(HPos::Left, VPos::Center));
        for (i, (name, _)) in self.series.iter().enumerate() {
            let y = (LEGEND_TOP + LEGEND_LINE * i as u32 + LEGEND_LINE / 2) as i32;
            area.draw(&PathElement::new([(begin, y), (end, y)], color(i).stroke_width(2)))?;
            area.draw(&Circle::new(((begin + end) / 2, y), 3, color(i).filled()))?;
            area.draw(&Text::new(name.as_str(), (end + LEGEND_GAP as i32, y), text.clone()))?;
        }
        Ok(())
    }
}

/// The colour of a series.
fn color(series: usize) -> RGBAColor {
    Palette99::pick(series).to_rgba()
}

/// Draws a series: bars below its line and its dots.
fn draw_line(chart: &mut Chart<'_>, marks: &[Mark], offset: f64, color: RGBAColor) -> Drawing {
    let bars = marks.iter().filter(|mark| mark.has_bar()).map(|mark| {
        let x = mark.x + offset;
        PathElement::new([(x, mark.low), (x, mark.high)], color.stroke_width(2))
    });
    chart.draw_series(bars)?;
    let points = || marks.iter().map(|mark| (mark.x + offset, mark.y));
    chart.draw_series(LineSeries::new(points(), color.stroke_width(2)))?;
    chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
    Ok(())
}

/// A number as the label of an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// The median of `values`, which must not be empty; with an even number of values, the mean of the
/// two in the middle.
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
            series: vec![("s".into(), vec![Mark::one(1.0, 2.5), Mark::one(2.0, 5.0)])],
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
    #[test]
    fn a_mark_is_in_the_middle_of_its_runs() {
        let mark = Mark::at_median(1.0, &[4.0, 1.0, 2.0]).unwrap();
        assert_eq!(mark, Mark { x: 1.0, y: 2.0, low: 1.0, high: 4.0 });
        assert_eq!(Mark::at_mean(1.0, &[4.0, 1.0, 1.0]), Some(mark));
        assert_eq!(mark.in_units_of(2.0), Mark { x: 1.0, y: 1.0, low: 0.5, high: 2.0 });
        assert_eq!(Mark::at_median(1.0, &[3.0]), Some(Mark::one(1.0, 3.0)));
        assert_eq!((Mark::at_median(1.0, &[]), Mark::at_mean(1.0, &[])), (None, None));
    }

    /// The elements of a kind, each without its last character.
    fn elements<'a>(svg: &'a str, kind: &str) -> Vec<&'a str> {
        let parts = svg.split('<').filter_map(|part| part.strip_prefix(kind));
        parts.filter(|part| part.starts_with(' ')).collect()
    }

    fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
        let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap();
        rest.split('"').next().unwrap()
    }

    fn number(element: &str, name: &str) -> f64 {
        attribute(element, name).parse().unwrap()
    }

    /// The SVG of a plot of `series`.
    fn drawn(name: &str, scale: Scale, series: Vec<(String, Vec<Mark>)>) -> String {
        let out = std::env::temp_dir().join(format!("concord-{name}-{}.svg", std::process::id()));
        let title = "t".to_string();
        Plot { title, x: "n", y: "rate", x_names: Vec::new(), scale, series }.draw(&out).unwrap();
        let svg = std::fs::read_to_string(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
        svg
    }

    /// The vertical strokes in the colour of a series: x, upper and lower end.
    fn bars(svg: &str, series: usize) -> Vec<(f64, f64, f64)> {
        let RGBAColor(r, g, b, _) = color(series);
        let stroke = format!("#{r:02X}{g:02X}{b:02X}");
        let of = elements(svg, "polyline").into_iter().filter(|e| attribute(e, "stroke") == stroke);
        let points = of.map(|e| {
            let numbers = attribute(e, "points").split([' ', ',']).filter(|n| !n.is_empty());
            numbers.map(|n| n.parse::<f64>().unwrap()).collect::<Vec<_>>()
        });
        let vertical = points.filter_map(|p| match p[..] {
            [x0, y0, x1, y1] if x0 == x1 => Some((x0, y0.min(y1), y0.max(y1))),
            _ => None,
        });
        vertical.collect()
    }

    #[test]
    fn legends_lie_beside_the_chart() {
        for count in [1, 2, 40] {
            let name = |i: usize| format!("series {i}{}", ", of a long name".repeat(i % 3));
            let marks = || vec![Mark::one(1.0, 2.0), Mark::one(2.0, 4.0)];
            let series = (0..count).map(|i| (name(i), marks())).collect();
            let svg = drawn("legend", Scale::Values, series);
            let right = elements(&svg, "line").iter().map(|e| number(e, "x2")).fold(0.0, f64::max);
            assert!(right > 800.0, "{svg}");
            let (root, texts) = (elements(&svg, "svg")[0], elements(&svg, "text"));
            for i in 0..count {
                let name = name(i);
                let text = texts.iter().find(|e| e.lines().any(|line| line == name)).unwrap();
                let (x, y, size) =
                    (number(text, "x"), number(text, "y"), number(text, "font-size"));
                assert!(x > right && size > 12.0, "{text}");
                assert!(x + 0.6 * size * name.len() as f64 <= number(root, "width"), "{text}");
                assert!(y + size <= number(root, "height"), "{text}");
            }
        }
    }

    #[test]
    fn bars_reach_from_the_least_to_the_most_of_the_runs() {
        let spread = || Mark::at_median(1.0, &[1.0, 2.0, 8.0]).unwrap();
        let marks = || vec![spread(), Mark::one(2.0, 4.0), Mark { x: 3.0, ..spread() }];
        let named = |name: &str, marks| (name.to_string(), marks);
        let one = vec![Mark::one(1.0, 3.0), Mark::one(2.0, 4.0)];
        let series = vec![named("a", marks()), named("b", marks()), named("c", one)];
        let svg = drawn("bars", Scale::Places, series.clone());
        let (a, b) = (bars(&svg, 0), bars(&svg, 1));
        assert_eq!((a.len(), b.len(), bars(&svg, 2).len()), (2, 2, 0), "{svg}");
        let grid = elements(&svg, "line");
        let top = grid.iter().map(|e| number(e, "y2")).fold(f64::MAX, f64::min);
        let base = grid.iter().map(|e| number(e, "y1")).fold(0.0, f64::max);
        for (of_a, of_b) in a.iter().zip(&b) {
            assert!(of_a.0 + 2.0 < of_b.0, "they would cover each other: {of_a:?} {of_b:?}");
            let (most, least) = (base - of_a.1, base - of_a.2);
            assert!(of_a.1 >= top && (most / least - 8.0).abs() < 0.2, "{of_a:?} above {base}");
        }
        let svg = drawn("bars", Scale::Values, series);
        assert_eq!(bars(&svg, 0), bars(&svg, 1), "values are not moved");
    }
}
