//! `concord sim --system netcraq`: chains of switches that hold the data. Racks of them cannot be
//! started yet.

use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::netcraq::{Plan, Totals, run};
use concord_sim::{shrink, swarm_of};

use crate::sim::{SHRINK_EFFORT, SimArgs, options_of, progress_bar, say_effort, show, verdict};

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that are for racks of replicas.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    let has_store_flag = args.heavy
        || args.accel.is_some()
        || args.protocol.is_some()
        || args.reads.is_some()
        || args.plan.is_some()
        || args.write_plan.is_some()
        || args.trace.is_some()
        || args.pcap.is_some();
    if has_store_flag {
        return Err(Error::new(
            "--system netcraq has --seed, --seeds, --first-seed, --minutes, --threads and --without; the other flags \
             are for racks of replicas",
        ));
    }
    let draw = |seed| Plan { guards, ..Plan::draw(seed) };
    if let Some(seed) = args.seed {
        let ran = run(&draw(seed));
        print_totals(&ran.totals);
        println!("digest      {:#018x}", ran.digest);
        return Ok(verdict(ran.violation.as_deref()));
    }
    let options = options_of(args, guards)?;
    println!("seeds from {:#x} on, {} threads", options.first_seed, options.threads);
    let bar = progress_bar(&options);
    let report = swarm_of(&options, draw, |progress| show(&bar, &options, progress));
    bar.finish_and_clear();
    print_totals(&report.totals);
    let (seeds, seconds) = (report.progress.seeds, report.progress.elapsed.as_secs_f64());
    println!("{seeds} seeds in {seconds:.1} s, {:.0} a second", report.progress.seeds_per_second());
    let Some(found) = &report.found else { return Ok(verdict(None)) };
    let seed = found.plan.seed;
    println!("\nmaking seed {seed:#x} smaller ...");
    let small = shrink(found, SHRINK_EFFORT, |_| {});
    println!("{:#?}", small.found.plan);
    say_effort(&small);
    println!("replay it: concord sim --system netcraq --seed {seed:#x}");
    Ok(verdict(Some(&found.violation)))
}

fn print_totals(t: &Totals) {
    println!(
        "calls       {} answered, {} of unknown outcome; {} reads of clean versions before the tail, {} at the tail",
        t.answered, t.unknown, t.reads_clean, t.reads_to_tail
    );
    println!(
        "writes      {} numbered, {} found another under way, {} came again; {} versions sent again",
        t.writes, t.busy, t.repeated, t.resent
    );
    println!("members     {} taken out", t.taken_out);
}
