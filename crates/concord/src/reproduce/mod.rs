//! `concord reproduce`: the figures of a paper, from the simulator with the shipped machines.
//!
//! Raw data goes to CSV files, means with their confidence intervals to `summary.csv`, a plot to a
//! file for each figure, and the paper's statements with our numbers to `table.md`. A further paper
//! is a folder here and a line in [`Paper`].

mod claims;
mod concordia;
mod falcon;
mod figure;
mod flair;
mod harmonia;
mod harmony;
mod options;
mod points;
mod runner;
mod seen;

use clap::{Args, Subcommand};
use concord_runtime::Error;
pub use runner::Runner;

/// `concord reproduce`.
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    /// The paper
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Clone, Debug, Subcommand)]
enum Paper {
    /// Harmonia (VLDB 2019), §10: all figures except those about MongoDB, MySQL and NetCache
    Harmonia(harmonia::HarmoniaArgs),
    /// Falcon (the thesis' chapter 3), §3.5: delays of tasks, and their steps; and racks of 32,000
    /// executors
    Falcon(falcon::FalconArgs),
    /// FLAIR (NSDI 2020; the thesis' chapter 4), §4.5: throughput, latency and failures, compared
    /// with follower leases and quorum reads
    Flair(flair::FlairArgs),
    /// Harmony (NSDI 2024), §3.3 and §5: bounds, the share of slots that find virtual links, loads
    /// and slowdowns, compared with Fastpass
    Harmony(harmony::HarmonyArgs),
    /// Concordia (FAST 2021), §7.2: throughput and packets by sharing, reads and locality, compared
    /// with homes alone, GAM's coherence and delegation
    Concordia(concordia::ConcordiaArgs),
}

/// Runs the command.
///
/// # Errors
/// One line for a person.
pub fn run(args: &ReproduceArgs) -> Result<(), Error> {
    match &args.paper {
        Paper::Harmonia(args) => harmonia::run(args),
        Paper::Falcon(args) => falcon::run(args),
        Paper::Flair(args) => flair::run(args),
        Paper::Harmony(args) => harmony::run(args),
        Paper::Concordia(args) => concordia::run(args),
    }
}
