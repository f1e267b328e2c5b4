//! `concord reproduce`: a paper's figures, from the simulator with the shipped machines.
//!
//! Read [`figures`] for what is run, [`claims`] for what the paper says about it, [`messages`] for
//! the packets of an operation. Raw data goes to CSV files, means with their confidence intervals to
//! `summary.csv`, one plot to each figure, and the paper's statements beside ours to `table.md`.

mod claims;
mod figures;
mod messages;
mod runner;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use concord_core::MS;
use concord_runtime::{Context, Error};
use concord_sim::load::Load;

use crate::bench::{Plot, Results, Table};
use figures::Figure;
use runner::{Runner, Seen};

/// What `--figures` calls the packets of an operation.
const MESSAGES: &str = "messages";

/// `concord reproduce`.
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    /// Which paper
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Clone, Debug, Subcommand)]
enum Paper {
    /// Harmonia (VLDB 2019), §10: every figure that is not about MongoDB, MySQL or NetCache
    Harmonia(HarmoniaArgs),
}

/// `concord reproduce harmonia`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce harmonia                       all figures, one to ten minutes on two cores
  concord reproduce harmonia --figures 5a,9a,13a
  concord reproduce harmonia --figures late,lost,apart,acks,messages
  concord reproduce harmonia --repeats 10          narrower confidence intervals")]
pub struct HarmoniaArgs {
    /// Only these, by their numbers in the paper; ours are messages and the ablations late, lost,
    /// apart, acks
    #[arg(long, value_delimiter = ',', value_name = "FIGURE")]
    figures: Vec<String>,
    /// Runs of each point, each of another seed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=100))]
    repeats: u64,
    /// Threads [default: as many as cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Results go to harmonia/ in this directory
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

/// Runs it.
///
/// # Errors
/// One line for a person.
pub fn run(args: &ReproduceArgs) -> Result<(), Error> {
    let Paper::Harmonia(args) = &args.paper;
    let figures = chosen(&args.figures)?;
    let counts_messages =
        args.figures.is_empty() || args.figures.iter().any(|name| name == MESSAGES);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let runs: u64 = figures.iter().map(|figure| figure.runs(args.repeats)).sum();
    let more = if counts_messages { messages::runs() } else { 0 };
    let runner = Runner::new(args.threads.unwrap_or_else(cores), runs + more);
    let results = Results::below(&args.out, "harmonia")?.quiet();
    let began = Instant::now();
    let mut all: Vec<(Figure, Seen)> = Vec::new();
    for figure in figures {
        let seen = runner::run(&figure, args.repeats, &runner)?;
        write(&results, &figure, &seen)?;
        runner.say(&format!("{}: {:.0} s in all", figure.name, began.elapsed().as_secs_f64()));
        all.push((figure, seen));
    }
    let mut text = claims::table(&all);
    if counts_messages {
        let (raw, table) = messages::run(&runner)?;
        results.csv("messages", &raw)?;
        text += &format!("\nPackets got and sent for an operation:\n\n{table}");
    }
    runner.finish();
    results.csv("summary", &summary(&all))?;
    let how = format!(
        "\n{} runs of each point, seeds 1 to {}, the first {} ms cut, {} ms measured; ± is half of \
         the 95% confidence interval.\n",
        args.repeats,
        args.repeats,
        Load::default().warm_up_ns / MS,
        Load::default().measure_ns / MS,
    );
    tell(&args.out.join("harmonia/table.md"), &(text + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn tell(path: &Path, text: &str) -> Result<(), Error> {
    let from = crate::bench::provenance().replace("# ", "");
    std::fs::write(path, format!("<!--\n{from}-->\n{text}"))
        .cannot(format!("write {}", path.display()))?;
    println!("\n{text}\nwrote {} and the figures beside it", path.display());
    Ok(())
}

/// What is drawn at each point, with the half width of its 95% confidence interval.
fn summary(all: &[(Figure, Seen)]) -> Table {
    let mut table = Table::new(&["figure", "series", "x", "y_is", "mean", "half_width_95", "runs"]);
    for (figure, seen) in all.iter().filter(|(figure, _)| figure.timeline_s.is_none()) {
        for point in &seen.points {
            let Some(mean) = seen.at(point.series, point.x, figure.y_value) else { continue };
            table.row(vec![
                figure.name.to_string(),
                figure.series[point.series].name.replace(',', ";"),
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

fn chosen(names: &[String]) -> Result<Vec<Figure>, Error> {
    let all = figures::all();
    let known = || all.iter().map(|f| f.name).chain([MESSAGES]);
    if let Some(name) = names.iter().find(|name| known().all(|known| known != **name)) {
        let known: Vec<&str> = known().collect();
        return Err(Error::new(format!("no figure {name:?}: {}", known.join(", "))));
    }
    Ok(all.into_iter().filter(|f| names.is_empty() || names.iter().any(|n| n == f.name)).collect())
}

/// A figure's raw data and its plot.
fn write(results: &Results, figure: &Figure, seen: &Seen) -> Result<(), Error> {
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
    ]);
    for point in &seen.points {
        for (seed, m) in &point.runs {
            let us = |ns: f64| format!("{:.2}", ns / 1_000.0);
            raw.row(vec![
                figure.series[point.series].name.replace(',', ";"),
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
        series: series.map(|(at, s)| (s.name.to_string(), seen.line(figure, at))).collect(),
    };
    results.plot(&name, &plot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            chosen(&names).map(|figures| figures.iter().map(|f| f.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["9a", "5a"]).unwrap(), ["5a", "9a"]);
        assert!(names(&[]).unwrap().len() > 15);
        assert!(names(&["12"]).unwrap_err().to_string().contains("no figure \"12\": 5a, 5b"));
    }
}
