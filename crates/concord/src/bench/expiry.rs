//! `concord bench expiry`: whether keys are deleted as fast as they are written, and how fast keys
//! are deleted that expire at the same time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use concord_core::SEC;
use concord_runtime::{Context, Error};

use super::load::{Plan, check_stop, fill, run};
use super::resp::Resp;
use super::rig::{Rig, Shape};
use super::workload::{Choice, Mix, Workload};
use crate::net::{Redis, Reply};
use crate::results::{Results, Table, load_average};
use crate::systems::store::Protocol;

const CONNECTIONS: u32 = 16;
const PIPELINE: u32 = 64;
const VALUE_BYTES: usize = 16;
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which the number of keys is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time until expired keys are gone.
const GONE_MAX: Duration = Duration::from_secs(60);
/// A mix in which every write is one of a new key.
const INSERTS: Mix = Mix { name: "inserts", update: 0, insert: 100, modify: 0 };

/// `concord bench expiry`.
#[derive(Args, Clone, Debug)]
pub struct ExpiryArgs {
    /// SETs of new keys per second
    #[arg(long, value_name = "N", default_value_t = 77_000.0)]
    pub rate: f64,
    /// Time to live of the keys, in ms
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub ttl_ms: u64,
    /// Duration, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Number of keys that expire at the same time
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    pub burst: u64,
    /// Number of replicas of the rack
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: u16,
    /// The replication protocol
    #[arg(long, value_enum, default_value = "chain")]
    pub protocol: Protocol,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &ExpiryArgs, results: &Results) -> Result<(), Error> {
    let mut table = Table::new(&[
        "what",
        "SETs/s",
        "PX",
        "most keys",
        "rate x PX",
        "keys / (rate x PX)",
        "expiries/s",
        "load avg",
    ]);
    let rig = Rig::start(Shape::new(args.protocol, args.replicas))?;
    steady(args, rig.listen, &mut table)?;
    burst(args, rig.listen, &mut table)?;
    results.csv("expiry", &table)
}

/// Writes keys at a rate, each with a time to live.
fn steady(args: &ExpiryArgs, listen: SocketAddr, table: &mut Table) -> Result<(), Error> {
    let mut target = Resp::new(listen, CONNECTIONS, PIPELINE)?.with_ttl(args.ttl_ms);
    let plan = Plan {
        clients: CONNECTIONS * PIPELINE,
        value_bytes: VALUE_BYTES,
        rate: Some(args.rate),
        warmup_ns: 0,
        measure_ns: (args.seconds * SEC as f64) as u64,
    };
    let mut workload = Workload::new(INSERTS, Choice::Uniform, 1, 1)?;
    let (most, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let measured = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| -> Result<(), Error> {
            let mut redis = connect(listen)?;
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(keys(&mut redis)?, Ordering::Relaxed);
                std::thread::sleep(LOOK_INTERVAL);
            }
            Ok(())
        });
        let measured = run(&mut target, &mut workload, plan);
        is_over.store(true, Ordering::Relaxed);
        watcher.join().map_err(|_| Error::new("the thread that counts keys failed"))??;
        measured
    })?;
    let (rate, most) = (measured.rate(), most.into_inner() as f64);
    let expected = rate * args.ttl_ms as f64 / 1e3;
    let gone_after = until_empty(&mut connect(listen)?)?.as_secs_f64();
    let expiries = rate * measured.seconds / (measured.seconds + gone_after);
    table.row(vec![
        "steady".to_string(),
        format!("{rate:.0}"),
        args.ttl_ms.to_string(),
        format!("{most:.0}"),
        format!("{expected:.0}"),
        format!("{:.2}", most / expected),
        format!("{expiries:.0}"),
        load_average(),
    ]);
    table.print_last();
    Ok(())
}

/// Lets keys that were written before expire at the same moment, without further writes.
fn burst(args: &ExpiryArgs, listen: SocketAddr, table: &mut Table) -> Result<(), Error> {
    let mut redis = connect(listen)?;
    let lead = Duration::from_secs(2 + args.burst / 50_000);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let due = since.cannot("read the clock")? + lead;
    let mut target = Resp::new(listen, CONNECTIONS, PIPELINE)?.due_at(due.as_millis() as u64);
    let begun = Instant::now();
    fill(&mut target, args.burst, VALUE_BYTES, CONNECTIONS * PIPELINE)?;
    if begun.elapsed() >= lead {
        return Err(Error::new("the machine is too slow to write the keys before they are due"));
    }
    std::thread::sleep(lead - begun.elapsed());
    let seconds = until_empty(&mut redis)?.as_secs_f64();
    table.row(vec![
        "all at once".to_string(),
        "-".to_string(),
        "-".to_string(),
        args.burst.to_string(),
        "-".to_string(),
        "-".to_string(),
        format!("{:.0}", args.burst as f64 / seconds),
        load_average(),
    ]);
    table.print_last();
    Ok(())
}

fn connect(listen: SocketAddr) -> Result<Redis, Error> {
    Redis::connect(listen, "", ASK_TIMEOUT).cannot(format!("connect to {listen}"))
}

fn keys(redis: &mut Redis) -> Result<u64, Error> {
    match redis.call(&[b"DBSIZE"]).cannot("ask for the number of keys")? {
        Reply::Text(text) => text.parse().cannot("read the number of keys"),
        other => Err(Error::new(format!("DBSIZE answered {}", other.lines().join(" ")))),
    }
}

/// The time until no key is left.
fn until_empty(redis: &mut Redis) -> Result<Duration, Error> {
    let begun = Instant::now();
    while keys(redis)? > 0 {
        check_stop()?;
        if begun.elapsed() > GONE_MAX {
            return Err(Error::new(format!("{} keys do not expire", keys(redis)?)));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(begun.elapsed())
}
