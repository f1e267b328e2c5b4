//! Concordia §7.2. Read [`figures`] for the loads that are run, [`claims`] for the paper's
//! statements.

mod claims;
mod figures;
mod seen;

use std::time::Instant;

use clap::Args;
use concord_runtime::Error;
use concord_sim::concordia::load::Costs;

use self::figures::{GAM_HIT_NS, HIT_NS, WAY_NS};
use self::seen::{Figure, Seen};
use super::claims::tell;
use super::options::FigureArgs;
use crate::results::Results;

/// `concord reproduce concordia`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord reproduce concordia                      all figures
  concord reproduce concordia --figures 9,11-20    throughput by sharing; by reads, 20% shared
  concord reproduce concordia --scale 64           a quarter of the sizes")]
pub struct ConcordiaArgs {
    #[command(flatten)]
    options: FigureArgs,
    /// The divisor of the paper's sizes (8 GB, caches of 1 GB, 250 MB shared)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=512))]
    scale: u64,
    /// The time of a message in ns at the host that sends it, and again at the one that receives it
    /// (ours: the base's fall from no sharing to all hardly depends on it)
    #[arg(long, value_name = "NS", default_value_t = 300)]
    message_ns: u64,
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &ConcordiaArgs) -> Result<(), Error> {
    let (options, began) = (&args.options, Instant::now());
    let (scale, message_ns) = (args.scale, args.message_ns);
    options.check(&figures::NAMES)?;
    let results = Results::below(&options.out, "concordia")?.quiet();
    let costs = Costs { hit_ns: HIT_NS, message_ns, way_ns: WAY_NS };
    let seen = run_all(figures::all(costs, scale), options, &results)?;
    let how = format!(
        "\n{} runs of each point, seeds 1 to {}; ± is half of the 95% confidence interval. Sizes are the paper's over \
         {scale}. Fitted: an access is {HIT_NS} ns (GAM: {GAM_HIT_NS} ns) at its thread, from throughput at full \
         locality. Ours: a message is {message_ns} ns where it is sent and where it is received, one way {WAY_NS} ns. \
         All else is predicted. Nothing of Grappa is fitted: only that it does not \
         change with locality is a result.\n",
        options.repeats, options.repeats,
    );
    tell(&options.out.join("concordia/table.md"), &(claims::table(&seen) + &how))?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the figures that are wanted, and writes their results.
fn run_all(
    all: Vec<Figure>,
    options: &FigureArgs,
    results: &Results,
) -> Result<Vec<(&'static str, Seen)>, Error> {
    let began = Instant::now();
    let figures: Vec<_> = all.into_iter().filter(|figure| options.wants(figure.name)).collect();
    let runner = options.runner(figures.iter().map(|figure| figure.runs(options.repeats)).sum());
    let mut seen = Vec::new();
    for figure in figures {
        let of = seen::run(&figure, options, &runner, results)?;
        runner.say(&format!("{}: {:.0} s in all", figure.name, began.elapsed().as_secs_f64()));
        seen.push((figure.name, of));
    }
    runner.finish();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use concord_core::US;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ConcordiaArgs,
    }

    /// All figures of a tiny memory, for 100 us: each statement has its row, and each figure its
    /// raw data and three plots.
    #[test]
    fn figures_of_a_tiny_memory_of_concordia() {
        let out = std::env::temp_dir().join(format!("concord-figures-{}", std::process::id()));
        let args = ["", "--repeats", "2", "--threads", "1", "--out", out.to_str().unwrap()];
        let args = Line::try_parse_from(args).unwrap().args;
        let results = Results::below(&out, "concordia").unwrap().quiet();
        let costs = Costs { hit_ns: HIT_NS, message_ns: 300, way_ns: WAY_NS };
        let mut all = figures::all(costs, 512);
        let lines = all.iter_mut().flat_map(|figure| &mut figure.lines);
        for (_, load) in lines.flat_map(|line| &mut line.points) {
            (load.warm_up_ns, load.measure_ns) = (20 * US, 100 * US);
        }
        let seen = run_all(all, &args.options, &results).unwrap();
        let files = std::fs::read_dir(out.join("concordia")).unwrap().count();
        std::fs::remove_dir_all(&out).unwrap();
        assert_eq!(files, 4 * figures::NAMES.len());
        let table = claims::table(&seen);
        assert_eq!(table.lines().count(), 2 + claims::CLAIMS.len(), "{table}");
        assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    }
}
