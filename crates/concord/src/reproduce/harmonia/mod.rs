//! Harmonia §10. Read [`figures`] for what is run, [`claims`] for what the paper says about it, [`messages`] for
//! the packets of an operation.

mod claims;
mod figures;
mod messages;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use concord_core::MS;
use concord_runtime::Error;
use concord_sim::load::Load;

use super::figure::Figure;
use super::runner::{self, Runner, Seen};
use super::{summary, tell, write};
use crate::bench::Results;

/// What `--figures` calls the packets of an operation.
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
pub fn run(args: &HarmoniaArgs) -> Result<(), Error> {
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

fn chosen(names: &[String]) -> Result<Vec<Figure>, Error> {
    let all = figures::all();
    let known = || all.iter().map(|f| f.name).chain([MESSAGES]);
    if let Some(name) = names.iter().find(|name| known().all(|known| known != **name)) {
        let known: Vec<&str> = known().collect();
        return Err(Error::new(format!("no figure {name:?}: {}", known.join(", "))));
    }
    Ok(all.into_iter().filter(|f| names.is_empty() || names.iter().any(|n| n == f.name)).collect())
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
