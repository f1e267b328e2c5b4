//! The frame of `concord sim --system NAME` for systems other than the store: replays a seed, or
//! runs many, and makes failing plans smaller.

use std::fmt::Debug;
use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::systems::Trial;
use concord_sim::{shrink, swarm_of};

use crate::sim::{SHRINK_EFFORT, SimArgs, options_of, progress_bar, say_effort, show, verdict};

/// The result of a run: its counts, its digest, and its violation.
pub type Replayed<T> = (T, u64, Option<String>);

/// The simulation of a system.
pub struct Simulated<'a, P: Trial> {
    /// Its name for `--system`.
    pub name: &'a str,
    /// Draws the plan of a seed, with the guards that are on.
    pub draw: &'a (dyn Fn(u64) -> P + Sync),
    /// Runs a plan.
    pub replay: &'a dyn Fn(&P) -> Replayed<P::Totals>,
    /// Prints the counts.
    pub print: &'a dyn Fn(&P::Totals),
}

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that apply only to racks of replicas.
pub fn simulate<P: Trial + Debug>(
    args: &SimArgs,
    guards: Guards,
    system: &Simulated<'_, P>,
) -> Result<ExitCode, Error> {
    let name = system.name;
    let has_store_flag = args.heavy
        || args.accel.is_some()
        || args.protocol.is_some()
        || args.reads.is_some()
        || args.plan.is_some()
        || args.write_plan.is_some()
        || args.trace.is_some()
        || args.pcap.is_some();
    if has_store_flag {
        return Err(Error::new(format!(
            "--system {name} has --seed, --seeds, --first-seed, --minutes, --threads and --without; the \
             other flags are for racks of replicas"
        )));
    }
    if let Some(seed) = args.seed {
        let (totals, digest, violation) = (system.replay)(&(system.draw)(seed));
        (system.print)(&totals);
        println!("digest      {digest:#018x}");
        return Ok(verdict(violation.as_deref()));
    }
    let options = options_of(args, guards)?;
    println!("seeds from {:#x} on, {} threads", options.first_seed, options.threads);
    let bar = progress_bar(&options);
    let report = swarm_of(&options, system.draw, |progress| show(&bar, &options, progress));
    bar.finish_and_clear();
    (system.print)(&report.totals);
    let (seeds, seconds) = (report.progress.seeds, report.progress.elapsed.as_secs_f64());
    println!("{seeds} seeds in {seconds:.1} s, {:.0} a second", report.progress.seeds_per_second());
    let Some(found) = &report.found else { return Ok(verdict(None)) };
    let seed = found.plan.seed();
    println!("\nmaking seed {seed:#x} smaller ...");
    let small = shrink(found, SHRINK_EFFORT, |_| {});
    println!("{:#?}", small.found.plan);
    say_effort(&small);
    println!("replay it: concord sim --system {name} --seed {seed:#x}");
    Ok(verdict(Some(&found.violation)))
}
