//! `concord sim --system netcraq`: chains of switches that hold the data.

use std::process::ExitCode;

use concord_core::Guards;
use concord_runtime::Error;
use concord_sim::netcraq::{Plan, Totals, run};

use crate::sim::SimArgs;
use crate::systems::frame::{self, Simulated};

/// Replays a seed, or runs many.
///
/// # Errors
/// Flags that apply only to racks of replicas.
pub fn simulate(args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
    let system = Simulated {
        name: "netcraq",
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
        "calls       {} answered, {} of unknown outcome; {} reads of clean versions, {} that went to the tail",
        t.answered, t.unknown, t.reads_clean, t.reads_to_tail
    );
    println!(
        "writes      {} numbered, {} found another under way, {} came again; {} versions sent again",
        t.writes, t.busy, t.repeated, t.resent
    );
    println!(
        "times       {} keys ended at their deadlines, the lock was held {} times",
        t.expired, t.held
    );
    println!("names       {} requests found another name in their cell, or none", t.taken);
    println!(
        "members     {} taken out, {} joined ({} cells and sessions copied); {} packets without a lease",
        t.taken_out, t.joined, t.copied, t.no_lease
    );
}
