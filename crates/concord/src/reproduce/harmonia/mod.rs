//! Harmonia §10. Read [`figures`] for the loads that are run, [`claims`] for the paper's
//! statements, [`messages`] for the packets of an operation.

mod claims;
mod figures;
mod messages;

use std::time::Instant;

use clap::Args;
use concord_core::MS;
use concord_runtime::Error;
use concord_sim::load::Load;

use super::claims::{table, tell};
use super::options::FigureArgs;
use super::seen::summary;
use crate::results::Results;

/// The name of the packets of an operation in `--figures`.
const MESSAGES: &str = "messages";

/// `concord reproduce harmonia`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce harmonia                       all figures, one to ten minutes on two cores
  concord reproduce harmonia --figures 5a,9a,13a
  concord reproduce harmonia --figures late,lost,apart,acks,messages
  concord reproduce harmonia --repeats 10          narrower confidence intervals")]
pub struct HarmoniaArgs {
    #[command(flatten)]
    options: FigureArgs,
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &HarmoniaArgs) -> Result<(), Error> {
    let options = &args.options;
    let figures = options.choose(figures::all(), &[MESSAGES])?;
    let counts_messages = options.wants(MESSAGES);
    let runs: u64 = figures.iter().map(|figure| figure.runs(options.repeats)).sum();
    let runner = options.runner(runs + if counts_messages { messages::runs() } else { 0 });
    let results = Results::below(&options.out, "harmonia")?.quiet();
    let began = Instant::now();
    let all = options.run(figures, &runner, &results)?;
    let mut text = table(claims::CLAIMS, &all);
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
        options.repeats,
        options.repeats,
        Load::default().warm_up_ns / MS,
        Load::default().measure_ns / MS,
    );
    tell(&options.out.join("harmonia/table.md"), &(text + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: HarmoniaArgs,
    }

    #[test]
    fn figures_are_chosen_by_name() {
        let names = |names: &str| {
            let line = ["x", "--figures", names];
            let line = if names.is_empty() { &line[..1] } else { &line[..] };
            let options = Line::parse_from(line).args.options;
            let figures = options.choose(figures::all(), &[MESSAGES]);
            figures.map(|figures| figures.iter().map(|f| f.name).collect::<Vec<_>>())
        };
        assert_eq!(names("9a,5a").unwrap(), ["5a", "9a"]);
        assert!(names("").unwrap().len() > 15);
        assert!(names("12").unwrap_err().to_string().contains("no figure \"12\": 5a, 5b"));
    }
}
