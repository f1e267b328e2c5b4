//! `concord sim --system falcon`: racks of owners and workers.

use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::falcon::{Plan, Totals, run};

use crate::sim::SimArgs;
use crate::systems::frame::{self, Simulated};

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that apply only to racks of replicas.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    let system = Simulated {
        name: "falcon",
        draw: &|seed| Plan { guards, ..Plan::draw(seed) },
        replay: &|plan| {
            let ran = run(plan);
            (ran.totals, ran.digest, ran.violation)
        },
        print: &print_totals,
    };
    frame::simulate(args, guards, &system)
}

fn print_totals(t: &Totals) {
    println!(
        "tasks       {} over: {} done, {} failed, {} unknown, {} cancelled; {} of owners that died",
        t.tasks, t.done, t.failed, t.unknown, t.cancelled_tasks, t.orphans
    );
    println!(
        "runs        {} begun, {} cancelled, {} claims refused, {} leases over",
        t.runs, t.cancelled, t.claims_refused, t.leases_over
    );
    println!(
        "submitted again: {} unheard, {} with another switch, {} after a full queue",
        t.unheard, t.forgotten, t.refused
    );
}
