//! Falcon §3.5. Read [`figures`] for the loads that are run, [`claims`] for the paper's statements.

mod claims;
mod figures;
mod seen;

use std::time::Instant;

use clap::Args;
use concord_runtime::Error;

use self::figures::{FALCON_HOST_NS, SPARK_PROCESS_NS, SPARROW_PROCESS_NS};
use super::claims::tell;
use super::options::FigureArgs;
use crate::results::Results;

/// `concord reproduce falcon`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce falcon                         all figures, ten minutes or more on two cores
  concord reproduce falcon --figures 8,9,10
  concord reproduce falcon --figures phase,period,poisson,submit
  concord reproduce falcon --figures large         32,000 executors, 3 million tasks a second
  concord reproduce falcon --figures short-bimodal 320 executors, tasks of 0.1 ms")]
pub struct FalconArgs {
    #[command(flatten)]
    options: FigureArgs,
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &FalconArgs) -> Result<(), Error> {
    let options = &args.options;
    let all = figures::all();
    options.check(&all.iter().map(|figure| figure.name).collect::<Vec<_>>())?;
    let figures: Vec<_> = all.into_iter().filter(|figure| options.wants(figure.name)).collect();
    let runner = options.runner(figures.iter().map(|figure| figure.runs(options.repeats)).sum());
    let results = Results::below(&options.out, "falcon")?.quiet();
    let began = Instant::now();
    let mut seen = Vec::new();
    for figure in figures {
        let of = seen::run(&figure, options, &runner, &results)?;
        runner.say(&format!("{}: {:.0} s in all", figure.name, began.elapsed().as_secs_f64()));
        seen.push((figure.name, of));
    }
    runner.finish();
    let how = format!(
        "\n{} runs of each point, seeds 1 to {}; ± is half of the 95% confidence interval. Delays are from a job's \
         submission to a task's start, and 4,295 ms at most. Host costs are fitted at 50%: a host of Falcon's is busy \
         {} us with a packet, Sparrow's processes {} us with a message, Spark's driver {} us with a task that it sends \
         and with the report of its end.\n",
        options.repeats,
        options.repeats,
        FALCON_HOST_NS as f64 / 1e3,
        SPARROW_PROCESS_NS as f64 / 1e3,
        SPARK_PROCESS_NS as f64 / 1e3,
    );
    tell(&options.out.join("falcon/table.md"), &(claims::table(&seen) + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}
