//! `concord bench`: measurements of racks: YCSB, scale-out under a cap, comparisons with other
//! stores, tasks.
//!
//! Read [`load`] first (the generator), then [`scale`]. All processes that a bench starts end with
//! it, even when it fails or is interrupted.

mod cgroup;
mod commands;
mod durability;
mod etcd;
mod expiry;
mod falcon;
mod load;
mod native;
mod peers;
mod quorum;
mod recovery;
mod resp;
mod rig;
mod scale;
mod workload;
mod ycsb;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use concord_runtime::{Context, Error};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::results::Results;

/// `concord bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord bench --all                    everything, about half an hour
  concord bench ycsb
  concord bench scale --replicas 1,3,10
  concord bench peers
  concord bench commands
  concord bench durability
  concord bench recovery
  concord bench expiry
  concord bench tasks

Measurements mean something only on a quiet machine: each row has its load average.")]
pub struct BenchArgs {
    /// The benchmark
    #[command(subcommand)]
    what: Option<What>,
    /// Run all benchmarks, with their defaults
    #[arg(long)]
    all: bool,
    /// The directory for results, which go to its bench/ or durability/
    #[arg(long, value_name = "DIR", default_value = "results", global = true)]
    out: PathBuf,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// YCSB A, B, C, D, F: natively, through RESP, redis-server, etcd
    Ycsb(ycsb::YcsbArgs),
    /// Throughput by the number of replicas, each capped to the same share of a core
    Scale(scale::ScaleArgs),
    /// Keys with a time to live: whether they are deleted as fast as they are written
    Expiry(expiry::ExpiryArgs),
    /// The cost of `fsync`, compared with `none`, redis-server with appendfsync always, etcd, and
    /// the disk alone
    Durability(durability::DurabilityArgs),
    /// A million keys on disk: the time until they are served after all processes were killed, and
    /// by a replica that was away
    Recovery(recovery::RecoveryArgs),
    /// GETs, compared with redis-server (redis-benchmark) and etcd
    Peers(peers::PeersArgs),
    /// Commands with several keys, scripts, lists with waiting clients, and messages, with both
    /// engines, compared with redis-server
    Commands(commands::CommandsArgs),
    /// Tasks of a rack of workers, compared with NATS, BRPOP, xargs, Dask and Ray: no-ops,
    /// commands, calls from Python
    Tasks(falcon::TasksArgs),
    /// VR, NOPaxos and Raft with and without help, compared with etcd, all capped to the same share
    /// of a core
    Quorum(quorum::QuorumArgs),
}

/// The arguments of a benchmark with their defaults, as without a command line.
#[derive(Debug, Parser)]
struct Defaults<T: Args> {
    #[command(flatten)]
    args: T,
}

fn defaults<T: Args>() -> Result<T, Error> {
    Ok(Defaults::try_parse_from(["bench"]).cannot("use the defaults")?.args)
}

/// The results of the benchmark of tasks.
fn of_tasks(args: &BenchArgs) -> Result<Results, Error> {
    Results::below(&args.out, "falcon-bench")
}

/// Runs the command.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn run(args: &BenchArgs) -> Result<(), Error> {
    let results = Results::new(&args.out)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&load::STOP)).cannot("handle signals")?;
    }
    match &args.what {
        Some(_) if args.all => {
            Err(Error::new("--all measures everything: name no bench beside it"))
        }
        Some(What::Ycsb(args)) => ycsb::bench(args, &results),
        Some(What::Scale(args)) => scale::bench(args, &results),
        Some(What::Expiry(args)) => expiry::bench(args, &results),
        Some(What::Durability(own)) => {
            durability::bench(own, &Results::below(&args.out, "durability")?)
        }
        Some(What::Recovery(own)) => {
            recovery::bench(own, &Results::below(&args.out, "durability")?)
        }
        Some(What::Peers(args)) => peers::bench(args, &results),
        Some(What::Commands(args)) => commands::bench(args, &results),
        Some(What::Tasks(tasks)) => falcon::bench(tasks, &of_tasks(args)?),
        Some(What::Quorum(args)) => quorum::bench(args, &results),
        None if args.all => {
            ycsb::bench(&defaults()?, &results)?;
            expiry::bench(&defaults()?, &results)?;
            peers::bench(&defaults()?, &results)?;
            commands::bench(&defaults()?, &results)?;
            durability::bench(&defaults()?, &Results::below(&args.out, "durability")?)?;
            recovery::bench(&defaults()?, &Results::below(&args.out, "durability")?)?;
            quorum::bench(&defaults()?, &results)?;
            falcon::bench(&defaults()?, &of_tasks(args)?)?;
            scale::bench(&defaults()?, &results)
        }
        None => Err(Error::new(
            "say what to measure: ycsb, scale, expiry, peers, commands, durability, recovery, quorum, tasks, or --all",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_has_defaults() {
        assert_eq!(defaults::<scale::ScaleArgs>().unwrap().replicas.len(), 10);
        assert_eq!(defaults::<ycsb::YcsbArgs>().unwrap().workloads.len(), 5);
        assert_eq!(defaults::<peers::PeersArgs>().unwrap().repeats, 5);
        assert_eq!(defaults::<commands::CommandsArgs>().unwrap().repeats, 5);
        assert_eq!(defaults::<quorum::QuorumArgs>().unwrap().replicas, [1, 3, 5]);
    }
}
