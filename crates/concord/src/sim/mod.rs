//! `concord sim`: replays one seed or experiment file, or swarms over many, shrinks what fails, and
//! says how to replay it. The work is done by `concord-sim`.

mod falcon;

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use concord_core::rng::splitmix64;
use concord_core::{Guards, MS};
use concord_runtime::{Context, Error};
use concord_sim::{
    Aim, Effort, Found, Outcome, Plan, Progress, Recording, Shrunk, SwarmOptions, SwarmReport,
    Window, html, parse_protocol, parse_seed, protocol_name, run, run_recorded, shrink, svg, swarm,
    without_guard, write_pcap,
};
use concord_wire::control::{Program, Protocol};
use indicatif::{ProgressBar, ProgressStyle};

use crate::systems::store::Accel;

/// What making a failing plan smaller may take: a minute or two. A run without progress has millions of events.
const SHRINK_EFFORT: Effort = Effort { runs_max: 2_000, steps_max: 50_000_000 };

/// Whose racks are simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// A replicated store
    #[default]
    Harmonia,
    /// Owners of tasks and workers
    Falcon,
    /// What `--accel none` is now.
    #[value(hide = true)]
    None,
}

/// `concord sim`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord sim --minutes 10                                  fresh seeds on all cores
  concord sim --protocol chain --seeds 20000 --first-seed 1
  concord sim --accel harmonia --protocol chain --seed 0x2a
  concord sim --seed 0x2a --write-plan one.toml             to change it by hand, then:
  concord sim --system falcon --seeds 20000                 owners and workers of tasks
  concord sim --plan one.toml --trace one.html --pcap one.pcap

The same seed or plan gives the same digest on every machine and in every build. The exit status is
0 if nothing was wrong, 1 if something was.")]
pub struct SimArgs {
    /// Whose racks are simulated
    #[arg(long, value_enum, default_value_t)]
    pub system: System,
    /// Whether the switch helps; drawn by the seed if not given
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// How replicas replicate; drawn by the seed if not given
    #[arg(long, value_name = "NAME", value_parser = parse_protocol)]
    pub protocol: Option<Protocol>,
    /// Every seed draws sizes that make its run long (keys to 4 KB, values to 1 MiB, replies of
    /// thousands of elements, thousands of keys due at once), not one of sixteen
    #[arg(long, conflicts_with = "plan")]
    pub heavy: bool,
    /// Replay this one seed
    #[arg(long, value_name = "SEED", value_parser = parse_seed, conflicts_with = "plan")]
    pub seed: Option<u64>,
    /// Run an experiment file
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["accel", "protocol"])]
    pub plan: Option<PathBuf>,
    /// Swarm for so long [default: 1]
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["seed", "plan"])]
    pub minutes: Option<f64>,
    /// Swarm over so many seeds
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "plan"])]
    pub seeds: Option<u64>,
    /// The first seed of a swarm [default: by the clock]
    #[arg(long, value_name = "SEED", value_parser = parse_seed, conflicts_with_all = ["seed", "plan"])]
    pub first_seed: Option<u64>,
    /// Threads of a swarm [default: as many as cores]
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
    /// The part of the run that is drawn, in ms of virtual time [default: its end]
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window, requires = "trace")]
    pub window: Option<Window>,
    /// Write every packet of the run as a capture for tcpdump or Wireshark
    #[arg(long, value_name = "FILE.pcap")]
    pub pcap: Option<PathBuf>,
    /// Where the shrunken plan of a failing swarm goes
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

/// Runs the command: 0 if nothing was wrong, 1 if something was.
///
/// # Errors
/// A file that cannot be read, written or understood; a guard that this build cannot remove.
pub fn run_command(args: &SimArgs) -> Result<ExitCode, Error> {
    let remove = |guards, name: &String| without_guard(guards, name).map_err(Error::new);
    let guards = args.without.iter().try_fold(Guards::ALL, remove)?;
    if args.system == System::None {
        let line = "--system says whose racks are simulated; for the protocol alone say --accel none, \
                    and --accel harmonia for the switch's help in every run";
        return Err(Error::new(line));
    }
    if args.system == System::Falcon {
        return falcon::run_command(args, guards);
    }
    if args.protocol == Some(Protocol::Craq) && args.accel == Some(Accel::Harmonia) {
        return Err(Error::new("craq runs without the switch's help: say --accel none"));
    }
    let other = args.protocol.filter(|protocol| !Program::Flair.serves(*protocol));
    if let Some(protocol) = other.filter(|_| args.accel == Some(Accel::Flair)) {
        let name = protocol_name(protocol);
        return Err(Error::new(format!("flair does not serve {name}: say --protocol vr or raft")));
    }
    match plan_of(args, guards)? {
        Some(plan) => replay(args, &plan),
        None => swarm_over(args, guards),
    }
}

fn aim_of(args: &SimArgs) -> Aim {
    let program = args.accel.filter(|accel| *accel == Accel::Flair).map(|_| Program::Flair);
    let with_help = args.accel.map(|accel| accel == Accel::Harmonia);
    // Of the protocols that it serves, if none is said.
    let vr = program.map(|_| Protocol::Vr);
    Aim { protocol: args.protocol.or(vr), with_help, program, heavy: args.heavy }
}

/// The one plan that is to be run, if it is one.
fn plan_of(args: &SimArgs, guards: Guards) -> Result<Option<Plan>, Error> {
    if let Some(seed) = args.seed {
        return Ok(Some(Plan { guards, ..Plan::draw_aimed(seed, aim_of(args)) }));
    }
    let Some(file) = &args.plan else { return Ok(None) };
    let name = file.display();
    let text = fs::read_to_string(file).cannot(format!("read {name}"))?;
    let plan = Plan::from_toml(&text).map_err(|e| Error::new(format!("{name}: {e}")))?;
    Ok(Some(if args.without.is_empty() { plan } else { Plan { guards, ..plan } }))
}

fn replay(args: &SimArgs, plan: &Plan) -> Result<ExitCode, Error> {
    if let Some(file) = &args.write_plan {
        write_file(file, &plan.to_toml())?;
    }
    let (outcome, recording) = match (&args.trace, &args.pcap) {
        (None, None) => (run(plan), Recording::default()),
        _ => run_recorded(plan),
    };
    println!("{}", summary(plan));
    print!("{}", outcome.totals);
    println!("digest      {:#018x}", outcome.digest);
    if let Some(file) = &args.trace {
        write_trace(args, file, plan, &recording)?;
    }
    if let Some(file) = &args.pcap {
        let name = file.display();
        let out = File::create(file).cannot(format!("write {name}"))?;
        write_pcap(&recording, &mut BufWriter::new(out)).cannot(format!("write {name}"))?;
    }
    Ok(verdict(&outcome))
}

fn verdict(outcome: &Outcome) -> ExitCode {
    match &outcome.violation {
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

/// A plan in a line.
fn summary(plan: &Plan) -> String {
    let system = match Accel::of(plan.program) {
        Accel::Harmonia => "harmonia",
        Accel::Flair => "flair",
        Accel::None => "no system",
    };
    format!(
        "seed {:#x}: {system} over {}, {} replicas, {} operations on {} keys, {} faults",
        plan.seed,
        protocol_name(plan.protocol),
        plan.replicas,
        plan.operations,
        plan.keys,
        plan.faults.len()
    )
}

fn write_trace(
    args: &SimArgs,
    file: &Path,
    plan: &Plan,
    recording: &Recording,
) -> Result<(), Error> {
    let window = args.window.unwrap_or_else(|| Window::last(recording));
    let text = match file.extension().and_then(|e| e.to_str()) {
        Some("svg") => svg(recording, window, &summary(plan)),
        Some("html") => html(recording, window, &summary(plan)),
        _ => return Err(Error::new("--trace writes FILE.html or FILE.svg")),
    };
    write_file(file, &text)
}

fn write_file(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).cannot(format!("write {}", file.display()))
}

/// How a swarm is to go on.
fn options_of(args: &SimArgs, guards: Guards) -> Result<SwarmOptions, Error> {
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
        aim: aim_of(args),
        guards,
    })
}

fn swarm_over(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    if args.trace.is_some() || args.pcap.is_some() || args.write_plan.is_some() {
        return Err(Error::new("--trace, --pcap and --write-plan need --seed or --plan"));
    }
    let options = options_of(args, guards)?;
    println!("seeds from {:#x} on, {} threads", options.first_seed, options.threads);
    let bar = progress_bar(&options);
    let report = swarm(&options, |progress| show(&bar, &options, progress));
    bar.finish_and_clear();
    print_report(&report);
    let Some(found) = &report.found else {
        println!("nothing wrong");
        return Ok(ExitCode::SUCCESS);
    };
    report_failure(args, found)?;
    Ok(ExitCode::FAILURE)
}

fn print_report(report: &SwarmReport) {
    print!("{}", report.totals);
    let progress = &report.progress;
    println!(
        "{} seeds in {:.1} s, {:.0} a second",
        progress.seeds,
        progress.elapsed.as_secs_f64(),
        progress.seeds_per_second()
    );
}

/// Makes the failing plan small, writes it down, and says how to replay it.
fn report_failure(args: &SimArgs, found: &Found) -> Result<(), Error> {
    let seed = found.plan.seed;
    println!("\nVIOLATION in {}\n{}", summary(&found.plan), found.violation);
    println!("\nmaking it smaller ...");
    let shrunk = shrink(found, SHRINK_EFFORT, |_| {});
    let small = &shrunk.found;
    let file = args.failures_dir.join(format!("sim-failure-{seed:x}.toml"));
    write_file(&file, &small.plan.to_toml())?;
    println!("{}\n{}", summary(&small.plan), small.violation);
    say_effort(&shrunk);
    println!("\nthe seed as it was drawn:  {}", replay_command(args, seed));
    println!("replay:  concord sim --plan {}", file.display());
    Ok(())
}

/// Says what it took to make a plan smaller.
fn say_effort<P>(shrunk: &Shrunk<P>) {
    let (runs, steps) = (shrunk.runs, shrunk.steps);
    let end = if shrunk.is_cut_short {
        "stopped there; the plan may get smaller still"
    } else {
        "nothing more can be left out"
    };
    println!("made smaller in {runs} runs of {steps} events in all: {end}");
}

fn replay_command(args: &SimArgs, seed: u64) -> String {
    let mut command = String::from("concord sim");
    match args.accel {
        Some(Accel::Harmonia) => command += " --accel harmonia",
        Some(Accel::Flair) => command += " --accel flair",
        Some(Accel::None) => command += " --accel none",
        None => {}
    }
    if let Some(protocol) = args.protocol {
        command += &format!(" --protocol {}", protocol_name(protocol));
    }
    if args.heavy {
        command += " --heavy";
    }
    for guard in &args.without {
        command += &format!(" --without {guard}");
    }
    command + &format!(" --seed {seed:#x}")
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Other seeds each time; the first is printed.
fn seed_by_the_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed, far enough apart that two swarms do not overlap.
    splitmix64(since.as_nanos() as u64) >> 16 << 8
}

/// By seeds if their number is known, else by seconds.
fn progress_bar(options: &SwarmOptions) -> ProgressBar {
    let seconds = options.time.map_or(0, |time| time.as_secs());
    let (length, unit) = options.seeds.map_or((seconds, "s"), |seeds| (seeds, "seeds"));
    let bar = ProgressBar::new(length);
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, options: &SwarmOptions, progress: &Progress) {
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
