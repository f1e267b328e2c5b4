//! `concord sim --system harmony`: networks whose messages reserve their paths. Real ones cannot be
//! started yet.

use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::harmony::{Plan, Totals, run};

use crate::sim::SimArgs;
use crate::systems::frame::{self, Simulated};

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that apply only to racks of replicas.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    let system = Simulated {
        name: "harmony",
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
        "messages    {} submitted: {} complete, {} rejected, {} failed; {} delivered",
        t.submitted, t.complete, t.rejected, t.failed, t.delivered
    );
    println!(
        "links       {} grants, {} virtual links reserved, {} refused, {} over by their time",
        t.granted, t.reserved, t.refused, t.expired
    );
    println!(
        "data        {} packets at switches with a reservation, {} as best effort",
        t.data_reserved, t.data_best_effort
    );
    println!("restarts    {} of hosts and switches", t.restarts);
}
