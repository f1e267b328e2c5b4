//! `concord fuzz`: groups of replicas to which any packet that was ever sent may arrive at any
//! time. The work is done by [`concord_sim::bag`].

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use concord_core::Guards;
use concord_core::rng::splitmix64;
use concord_runtime::Error;
use concord_sim::bag::{BagOptions, BagPlan, run_bag, run_bags, shrink_bag};
use concord_sim::{parse_protocol, parse_seed, protocol_name, without_guard};
use concord_wire::control::Protocol;

/// The maximum number of runs to make a failing run smaller.
const SHRINK_RUNS_MAX: usize = 4_000;
/// The maximum length of a line of a failing run, in characters.
const LINE_CHARS_MAX: usize = 300;

/// `concord fuzz`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord fuzz --minutes 10                      fresh seeds on all cores
  concord fuzz --protocol vr --seeds 20000 --first-seed 1
  concord fuzz --protocol vr --seed 0x2a         replay one, and make it small if it fails

The same seed gives the same run on every machine and in every build. The exit status is 0 without
a violation, 1 with one, 2 if it could not run.")]
pub struct FuzzArgs {
    /// The replication protocol [default: drawn from the seed]
    #[arg(long, value_name = "NAME", value_parser = parse_protocol)]
    pub protocol: Option<Protocol>,
    /// The number of replicas [default: drawn from the seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub replicas: Option<u8>,
    /// Replay this seed
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    pub seed: Option<u64>,
    /// The duration, in minutes [default: 1]
    #[arg(long, value_name = "MINUTES", conflicts_with = "seed")]
    pub minutes: Option<f64>,
    /// The number of seeds to run
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    pub seeds: Option<u64>,
    /// The first seed [default: by the clock]
    #[arg(long, value_name = "SEED", value_parser = parse_seed, conflicts_with = "seed")]
    pub first_seed: Option<u64>,
    /// The number of threads [default: the number of cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Remove this guard, to see that it is caught (needs a build with --features mutants)
    #[arg(long, value_name = "GUARD")]
    pub without: Vec<String>,
}

/// Runs the command: 0 if nothing was wrong, 1 if something was.
///
/// # Errors
/// A guard that this build cannot remove; a time that is none.
pub fn run_command(args: &FuzzArgs) -> Result<ExitCode, Error> {
    let remove = |guards, name: &String| without_guard(guards, name).map_err(Error::new);
    let guards = args.without.iter().try_fold(Guards::ALL, remove)?;
    let minutes = match (args.minutes, args.seeds) {
        (None, None) => Some(1.0),
        (minutes, _) => minutes,
    };
    if minutes.is_some_and(|m| !(m > 0.0 && m <= 1e6)) {
        return Err(Error::new("--minutes takes a number above 0"));
    }
    let options = BagOptions {
        first_seed: args.seed.or(args.first_seed).unwrap_or_else(seed_by_the_clock),
        seeds: args.seeds,
        time: minutes.map(|m| Duration::from_secs_f64(m * 60.0)),
        threads: args
            .threads
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
        protocol: args.protocol,
        replicas: args.replicas.map(usize::from),
        guards,
    };
    let failed = if let Some(seed) = args.seed {
        let plan = options.plan(seed);
        let outcome = run_bag(&plan);
        println!("{}\ndigest {:#018x}", plan.summary(), outcome.digest);
        outcome.violation.map(|_| plan)
    } else {
        fuzz(&options)
    };
    let Some(plan) = failed else {
        println!("nothing wrong");
        return Ok(ExitCode::SUCCESS);
    };
    report_failure(args, &plan);
    Ok(ExitCode::FAILURE)
}

/// Runs many seeds; the plan of the first that failed.
fn fuzz(options: &BagOptions) -> Option<BagPlan> {
    println!("seeds from {:#x} on, {} threads", options.first_seed, options.threads);
    let report = run_bags(options);
    let (totals, seconds) = (&report.totals, report.elapsed.as_secs_f64());
    println!(
        "{} runs in {seconds:.1} s, {:.0} a second: {} steps, {} packets, {} calls answered, {} not, \
         {} epochs; {} runs lost more than they could",
        totals.runs,
        totals.runs as f64 / seconds.max(1e-9),
        totals.steps,
        totals.packets,
        totals.answered,
        totals.unknown,
        totals.epochs,
        totals.lost
    );
    report.found.map(|found| found.plan)
}

/// Makes the failing run small, shows it, and says how to replay it.
fn report_failure(args: &FuzzArgs, plan: &BagPlan) {
    println!("\nVIOLATION in {}\nmaking it smaller ...", plan.summary());
    let Some(small) = shrink_bag(plan, SHRINK_RUNS_MAX) else { return };
    for line in &small.steps {
        println!("{}", line.chars().take(LINE_CHARS_MAX).collect::<String>());
    }
    println!("\n{} of {} steps: {}", small.steps.len(), small.steps_before, small.violation);
    let mut command = String::from("concord fuzz");
    if let Some(protocol) = args.protocol {
        command += &format!(" --protocol {}", protocol_name(protocol));
    }
    if let Some(replicas) = args.replicas {
        command += &format!(" --replicas {replicas}");
    }
    for guard in &args.without {
        command += &format!(" --without {guard}");
    }
    println!("\nreplay:  {command} --seed {:#x}", plan.seed);
}

/// A seed that differs at each start; it is printed.
fn seed_by_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    splitmix64(since.as_nanos() as u64) >> 16 << 8
}
