//! Harmony (NSDI 2024), §3.3 and §5. [`theory`] has what follows from formulas, from the shipped
//! switches alone, and from the adversary of trap H1; [`runs`] has the runs packet by packet.

mod row;
mod runs;
mod theory;

use std::time::Instant;

use clap::Args;
use concord_runtime::Error;

use self::row::{Given, Row};
use super::claims::{self, table_of, tell};
use super::options::FigureArgs;
use crate::results::Results;

/// `concord reproduce harmony`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce harmony --quick                figures of small networks and short runs
  concord reproduce harmony --figures rtt,k,4,h1   those without packets
  concord reproduce harmony --figures 8a,8b,8c")]
pub struct HarmonyArgs {
    #[command(flatten)]
    options: FigureArgs,
    /// Run a third of the hosts, and a tenth of the time
    #[arg(long)]
    quick: bool,
}

type Figure = fn(&Given<'_>) -> Result<Vec<Row>, Error>;

/// The figures.
const FIGURES: [(&str, Figure); 8] = [
    ("rtt", theory::round_trips),
    ("k", theory::bounds),
    ("4", theory::allocation),
    ("h1", theory::adversary),
    ("6", runs::feasible),
    ("8a", runs::sizes),
    ("8b", runs::oversubscribed),
    ("8c", runs::trees),
];

/// The number of runs of a figure.
fn runs_of(figure: &str, repeats: u64, is_quick: bool) -> u64 {
    match figure {
        "4" => 12 * repeats,
        "h1" => 9,
        "6" if is_quick => 6,
        "6" => 20,
        "8a" => 5 * repeats,
        "8b" => 3 * repeats,
        "8c" => 2 * repeats,
        _ => 0,
    }
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &HarmonyArgs) -> Result<(), Error> {
    let options = &args.options;
    options.check(&FIGURES.map(|(name, _)| name))?;
    let results = Results::below(&options.out, "harmony")?.quiet();
    let wanted: Vec<_> = FIGURES.iter().filter(|(name, _)| options.wants(name)).collect();
    let runs = wanted.iter().map(|(name, _)| runs_of(name, options.repeats, args.quick));
    let runner = options.runner(runs.sum());
    let given = Given {
        repeats: options.repeats,
        is_quick: args.quick,
        runner: &runner,
        results: &results,
    };
    let began = Instant::now();
    let mut rows = Vec::new();
    for (name, figure) in wanted {
        rows.extend(figure(&given)?);
        runner.say(&format!("{name}: {:.0} s in all", began.elapsed().as_secs_f64()));
    }
    runner.finish();
    let quick =
        if args.quick { " --quick: a third of the hosts, a tenth of the time." } else { "" };
    let how = format!(
        "\n{} runs of each point, seeds from 1; ± is half of the 95% confidence interval.{quick} \
         Hosts and switches are those that ship; packets of 1,280 bytes of payload and 154 of headers, 3% \
         of headroom. Each run asserts the proved bound of every port.\n",
        options.repeats
    );
    tell(&options.out.join("harmony/table.md"), &(table(&rows) + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| claims::Row {
        figure: row.figure,
        says: &row.says,
        paper: row.paper,
        ours: row.ours,
        beside: row.paper.beside_interval(&row.ours),
        reason: &row.reason,
    });
    table_of(rows, 3)
}
