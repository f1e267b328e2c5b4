//! `concord reproduce`: a paper's figures, from the simulator with the shipped machines.
//!
//! Raw data goes to CSV files, means with their confidence intervals to `summary.csv`, one plot to
//! each figure, and the paper's statements beside ours to `table.md`. A further paper is a folder
//! here and a line in [`Paper`].

mod claims;
mod concordia;
mod falcon;
mod figure;
mod flair;
mod harmonia;
mod harmony;
mod options;
mod points;
mod runner;

use std::path::Path;

use clap::{Args, Subcommand};
use concord_runtime::{Context, Error};

use crate::bench::{Plot, Results, Table};
use figure::{Drawn, Figure};
pub use runner::Runner;
use runner::Seen;

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
    Harmonia(harmonia::HarmoniaArgs),
    /// Falcon (the thesis' chapter 3), §3.5: delays of tasks, their steps; and racks of 32,000
    /// executors
    Falcon(falcon::FalconArgs),
    /// FLAIR (NSDI 2020; the thesis' chapter 4), §4.5: throughput, latency, failures, beside
    /// follower leases and quorum reads
    Flair(flair::FlairArgs),
    /// Harmony (NSDI 2024), §3.3 and §5: bounds, the share of slots that find virtual links, loads
    /// and slowdowns beside Fastpass
    Harmony(harmony::HarmonyArgs),
    /// Concordia (FAST 2021), §7.2: throughput and packets by sharing, reads and locality, beside
    /// homes alone, GAM's coherence and delegation
    Concordia(concordia::ConcordiaArgs),
}

/// Runs it.
///
/// # Errors
/// One line for a person.
pub fn run(args: &ReproduceArgs) -> Result<(), Error> {
    match &args.paper {
        Paper::Harmonia(args) => harmonia::run(args),
        Paper::Falcon(args) => falcon::run(args),
        Paper::Flair(args) => flair::run(args),
        Paper::Harmony(args) => harmony::run(args),
        Paper::Concordia(args) => concordia::run(args),
    }
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
        series: series.map(|(at, s)| (s.name.to_string(), seen.line(figure, at))).collect(),
    };
    results.plot(&name, &plot)
}
