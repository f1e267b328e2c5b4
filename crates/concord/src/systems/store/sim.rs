//! `concord sim` for racks of replicas.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum as _;
use concord_core::Guards;
use concord_runtime::{Context, Error};
use concord_sim::{
    Aim, Found, Plan, Recording, SwarmOptions, SwarmReport, Window, html, protocol_name, run,
    run_recorded, shrink, svg, swarm, write_pcap,
};
use concord_wire::control::{Program, Protocol};

use super::{Accel, Reads};
use crate::sim::{SHRINK_EFFORT, SimArgs, options_of, progress_bar, say_effort, show, verdict};

/// Replays one seed or experiment file, or swarms over many seeds.
///
/// # Errors
/// Flags that do not go together; a file that cannot be read, written or understood.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    if args.protocol == Some(Protocol::Craq) && args.accel == Some(Accel::Harmonia) {
        return Err(Error::new("craq runs without the switch's help: say --accel none"));
    }
    let other = args.protocol.filter(|protocol| !Program::Flair.serves(*protocol));
    if let Some(protocol) = other.filter(|_| args.accel == Some(Accel::Flair)) {
        let name = protocol_name(protocol);
        return Err(Error::new(format!("flair does not serve {name}: say --protocol vr or raft")));
    }
    let is_helped = args.accel.is_some_and(|accel| accel != Accel::None);
    if args.reads.is_some() && (is_helped || args.protocol.is_some_and(|p| p != Protocol::Raft)) {
        let line =
            "--reads is for raft without the switch's help: say --protocol raft --accel none";
        return Err(Error::new(line));
    }
    match plan_of(args, guards)? {
        Some(plan) => replay(args, &plan),
        None => swarm_over(args, guards),
    }
}

fn aim_of(args: &SimArgs) -> Aim {
    let program = args.accel.filter(|accel| *accel == Accel::Flair).map(|_| Program::Flair);
    let with_help = args.accel.map(|accel| accel == Accel::Harmonia);
    // One of the protocols that the program serves, if none is given.
    let vr = program.map(|_| Protocol::Vr);
    let reads = args.reads.map(Reads::of_leader);
    let raft = reads.map(|_| Protocol::Raft);
    let protocol = args.protocol.or(vr).or(raft);
    Aim { protocol, with_help, program, reads, heavy: args.heavy }
}

/// The single plan to run, if there is only one.
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
    Ok(verdict(outcome.violation.as_deref()))
}

/// The description of a plan in a line.
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

fn swarm_over(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    if args.trace.is_some() || args.pcap.is_some() || args.write_plan.is_some() {
        return Err(Error::new("--trace, --pcap and --write-plan need --seed or --plan"));
    }
    let options = SwarmOptions { aim: aim_of(args), ..options_of(args, guards)? };
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

/// Makes the failing plan small, writes it to a file, and prints how to replay it.
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
    if let Some(reads) = args.reads.and_then(|reads| reads.to_possible_value()) {
        command += &format!(" --reads {}", reads.get_name());
    }
    if args.heavy {
        command += " --heavy";
    }
    for guard in &args.without {
        command += &format!(" --without {guard}");
    }
    command + &format!(" --seed {seed:#x}")
}
