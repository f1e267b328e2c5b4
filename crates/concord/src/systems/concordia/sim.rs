//! `concord sim --system concordia`: shared memories.

use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::concordia::{Plan, Totals, run};

use crate::sim::SimArgs;
use crate::systems::frame::{self, Simulated};

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that apply only to racks of replicas.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    let system = Simulated {
        name: "concordia",
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
        "calls       {} answered, {} fences, {} accesses served by caches",
        t.answered, t.fences, t.hits
    );
    println!(
        "events      {} done, {} requests failed, {} packets sent again, {} of events that were over",
        t.events_done, t.failed, t.resent, t.stale
    );
    println!(
        "epochs      {} opened by nodes, {} nodes left, {} packets without a lease",
        t.epochs, t.left, t.unleased
    );
    println!(
        "lost        {} calls of unknown outcome, {} told of lost blocks, {} blocks renewed",
        t.unknown, t.lost, t.renewed
    );
    println!("copies      {} invalidated, {} blocks written back", t.invalidated, t.written_back);
    println!(
        "ownership   {} requests served by homes, {} blocks added to the switch, {} found no room, {} removed",
        t.at_homes, t.added, t.refused, t.removed
    );
}
