//! `concord sim`: replays a seed or an experiment file, or runs swarms over many seeds, makes
//! failing plans smaller, and says how to replay them. The part of each system is in
//! [`crate::systems`]; the work is done by `concord-sim`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use concord_core::rng::splitmix64;
use concord_core::{Guards, MS};
use concord_runtime::Error;
use concord_sim::{
    Aim, Effort, Progress, Shrunk, SwarmOptions, Window, parse_protocol, parse_seed, without_guard,
};
use concord_wire::control::Protocol;
use indicatif::{ProgressBar, ProgressStyle};

use crate::systems::simulated::Simulated;
use crate::systems::store::{Accel, Reads};

/// The maximum effort to make a failing plan smaller: a minute or two. A run without progress has
/// millions of events.
pub(crate) const SHRINK_EFFORT: Effort = Effort { runs_max: 2_000, steps_max: 50_000_000 };

/// `concord sim`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord sim --minutes 10                                  fresh seeds on all cores
  concord sim --protocol chain --seeds 20000 --first-seed 1
  concord sim --accel none --protocol chain --seed 0x2a
  concord sim --seed 0x2a --write-plan one.toml             to change it by hand, then:
  concord sim --plan one.toml --trace one.html --pcap one.pcap

The same seed or plan gives the same digest on every machine and in every build. The exit status is
0 without a violation, 1 with one, 2 if it could not run.")]
pub struct SimArgs {
    /// The system whose racks are simulated
    #[arg(long, value_enum, default_value_t)]
    pub system: Simulated,
    /// How the switch helps the protocol [default: drawn from the seed]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// The replication protocol [default: drawn from the seed]
    #[arg(long, value_name = "NAME", value_parser = parse_protocol)]
    pub protocol: Option<Protocol>,
    /// How Raft answers reads without the switch's help, in every seed [default: drawn from the
    /// seed]
    #[arg(long, value_enum, conflicts_with = "plan")]
    pub reads: Option<Reads>,
    /// Draw sizes that make runs long in every seed, instead of one in sixteen: keys up to 4 KB,
    /// values up to 1 MiB, replies of thousands of elements, thousands of keys that expire at once
    #[arg(long, conflicts_with = "plan")]
    pub heavy: bool,
    /// Replay this seed
    #[arg(long, value_name = "SEED", value_parser = parse_seed, conflicts_with = "plan")]
    pub seed: Option<u64>,
    /// Run an experiment file
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["accel", "protocol"])]
    pub plan: Option<PathBuf>,
    /// The duration of a swarm, in minutes [default: 1]
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["seed", "plan"])]
    pub minutes: Option<f64>,
    /// The number of seeds of a swarm
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "plan"])]
    pub seeds: Option<u64>,
    /// The first seed of a swarm [default: by the clock]
    #[arg(long, value_name = "SEED", value_parser = parse_seed, conflicts_with_all = ["seed", "plan"])]
    pub first_seed: Option<u64>,
    /// The number of threads of a swarm [default: the number of cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Remove this guard, to see that its absence is caught (needs a build with --features mutants)
    #[arg(long, value_name = "GUARD")]
    pub without: Vec<String>,
    /// Write the plan as an experiment file
    #[arg(long, value_name = "FILE.toml")]
    pub write_plan: Option<PathBuf>,
    /// Draw a space-time diagram of the run
    #[arg(long, value_name = "FILE.html|.svg")]
    pub trace: Option<PathBuf>,
    /// The part of the run to draw, in ms of virtual time [default: its end]
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window, requires = "trace")]
    pub window: Option<Window>,
    /// Write every packet of the run as a capture for tcpdump or Wireshark
    #[arg(long, value_name = "FILE.pcap")]
    pub pcap: Option<PathBuf>,
    /// The directory for the reduced plan of a failing swarm
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub failures_dir: PathBuf,
}

fn parse_window(text: &str) -> Result<Window, String> {
    let ms = |text: &str| text.parse().map(|ms: u64| ms.saturating_mul(MS)).ok();
    let ends = text.split_once("..").and_then(|(from, to)| Some((ms(from)?, ms(to)?)));
    match ends {
        Some((from_ns, to_ns)) if from_ns < to_ns => Ok(Window { from_ns, to_ns }),
        _ => Err("give it two times in ms, like 120..180".into()),
    }
}

/// Runs the command; returns 0 if there was no violation, 1 if there was.
///
/// # Errors
/// A file that cannot be read, written or understood; a guard that this build cannot remove.
pub fn run_command(args: &SimArgs) -> Result<ExitCode, Error> {
    let remove = |guards, name: &String| without_guard(guards, name).map_err(Error::new);
    let guards = args.without.iter().try_fold(Guards::ALL, remove)?;
    args.system.simulate(args, guards)
}

/// The options of a swarm.
///
/// # Errors
/// A duration that is not possible.
pub(crate) fn options_of(args: &SimArgs, guards: Guards) -> Result<SwarmOptions, Error> {
    let minutes = match (args.minutes, args.seeds) {
        (None, None) => Some(1.0),
        (minutes, _) => minutes,
    };
    if minutes.is_some_and(|m| !(m > 0.0 && m <= 1e6)) {
        return Err(Error::new("--minutes takes a number above 0"));
    }
    Ok(SwarmOptions {
        first_seed: args.first_seed.unwrap_or_else(seed_by_the_clock),
        seeds: args.seeds,
        time: minutes.map(|m| Duration::from_secs_f64(m * 60.0)),
        threads: args.threads.unwrap_or_else(cores),
        aim: Aim::default(),
        guards,
    })
}

/// Prints the verdict on a run; returns the exit status.
pub(crate) fn verdict(violation: Option<&str>) -> ExitCode {
    match violation {
        None => {
            println!("nothing wrong");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the effort that it took to make a plan smaller.
pub(crate) fn say_effort<P>(shrunk: &Shrunk<P>) {
    let (runs, steps) = (shrunk.runs, shrunk.steps);
    let end = if shrunk.is_cut_short {
        "stopped there; the plan may get smaller still"
    } else {
        "nothing more can be left out"
    };
    println!("made smaller in {runs} runs of {steps} events in all: {end}");
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A seed that differs at each start; it is printed.
fn seed_by_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to type, and far enough apart that two swarms do not overlap.
    splitmix64(since.as_nanos() as u64) >> 16 << 8
}

/// A progress bar by seeds if their number is known, otherwise by seconds.
pub(crate) fn progress_bar(options: &SwarmOptions) -> ProgressBar {
    let seconds = options.time.map_or(0, |time| time.as_secs());
    let (length, unit) = options.seeds.map_or((seconds, "s"), |seeds| (seeds, "seeds"));
    let bar = ProgressBar::new(length);
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Shows the progress of a swarm.
pub(crate) fn show(bar: &ProgressBar, options: &SwarmOptions, progress: &Progress) {
    let per_second = progress.seeds_per_second();
    bar.set_message(format!("{} seeds, {per_second:.0} a second", progress.seeds));
    let seconds = progress.elapsed.as_secs();
    bar.set_position(if options.seeds.is_some() { progress.seeds } else { seconds });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_two_times() {
        let window = Window { from_ns: 2 * MS, to_ns: 30 * MS };
        assert_eq!(parse_window("2..30"), Ok(window));
        for bad in ["", "5", "5..", "..5", "5..5", "9..5", "a..b"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }
}
