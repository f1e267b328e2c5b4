//! FLAIR §4.5. Read [`figures`] for the loads that are run, [`claims`] for the paper's statements.

mod claims;
mod figures;

use std::time::Instant;

use clap::Args;
use concord_core::MS;
use concord_runtime::Error;

use super::claims::{table, tell};
use super::options::FigureArgs;
use super::seen::summary;
use crate::results::Results;

/// `concord reproduce flair`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce flair                          all figures, some minutes on two cores
  concord reproduce flair --figures 18a,19a,26a
  concord reproduce flair --figures groups         how many key groups are needed
  concord reproduce flair --repeats 10             narrower confidence intervals")]
pub struct FlairArgs {
    #[command(flatten)]
    options: FigureArgs,
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &FlairArgs) -> Result<(), Error> {
    let options = &args.options;
    let figures = options.choose(figures::all(), &[])?;
    let runs: u64 = figures.iter().map(|figure| figure.runs(options.repeats)).sum();
    let runner = options.runner(runs);
    let results = Results::below(&options.out, "flair")?.quiet();
    let began = Instant::now();
    let all = options.run(figures, &runner, &results)?;
    runner.finish();
    results.csv("summary", &summary(&all))?;
    let load = figures::busy(3, 50);
    let how = format!(
        "\n{} runs of each point, seeds 1 to {}, the first {} ms cut, {} ms measured; ± is half of \
         the 95% confidence interval.\n",
        options.repeats,
        options.repeats,
        load.warm_up_ns / MS,
        load.measure_ns / MS,
    );
    tell(&options.out.join("flair/table.md"), &(table(claims::CLAIMS, &all) + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}
