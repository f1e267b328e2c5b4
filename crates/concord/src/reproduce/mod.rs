//! `concord reproduce`: a paper's figures, from the simulator with the shipped machines.
//!
//! Read [`figures`] for what is run, [`claims`] for what the paper says about it. Raw data goes to
//! CSV files, one plot to each figure, and a table of the paper's statements beside ours to
//! `table.md`.

mod claims;
mod figures;
mod runner;

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Subcommand};
use concord_runtime::{Context, Error};

use crate::bench::{Plot, Results, Table};
use figures::Figure;
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
    Harmonia(HarmoniaArgs),
}

/// `concord reproduce harmonia`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce harmonia                       all figures, about ten minutes on two cores
  concord reproduce harmonia --figures 5a,9a,13a
  concord reproduce harmonia --repeats 10          narrower confidence intervals")]
pub struct HarmoniaArgs {
    /// Only these, by their numbers in the paper
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
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(cores).max(1);
    let results = Results::below(&args.out, "harmonia")?;
    let began = Instant::now();
    let mut all: Vec<(Figure, Seen)> = Vec::new();
    for figure in figures {
        let seen = runner::run(&figure, args.repeats, threads)?;
        write(&results, &figure, &seen)?;
        println!("figure {}: {:.0} s in all", figure.name, began.elapsed().as_secs_f64());
        all.push((figure, seen));
    }
    let table = claims::table(&all);
    let path = args.out.join("harmonia/table.md");
    std::fs::write(&path, &table).cannot(format!("write {}", path.display()))?;
    println!("\n{table}\nwrote {}", path.display());
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<Figure>, Error> {
    let all = figures::all();
    if let Some(name) = names.iter().find(|name| all.iter().all(|f| f.name != **name)) {
        let known: Vec<&str> = all.iter().map(|f| f.name).collect();
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
            ]);
        }
    }
    let name = format!("figure-{}", figure.name);
    results.csv(&name, &raw)?;
    let series = figure.series.iter().enumerate();
    let plot = Plot {
        title: format!("Figure {}: {}", figure.name, figure.title),
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
