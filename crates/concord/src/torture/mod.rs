//! `concord torture`: hammers any Redis endpoints with concurrent clients, records what they saw,
//! and checks it for linearizability.

mod resp;
mod workload;

use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use concord_check::{Options, Recorder, Reply, Verdict, check};
use concord_core::Rng;
use concord_runtime::{Context, Error};
use indicatif::{ProgressBar, ProgressStyle};

use resp::Link;
use workload::Workload;

/// Pause of a client whose target does not answer, before it tries the next one.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// `concord torture`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord torture --target 127.0.0.1:7379 --ops 200000 --keys 8
  concord torture --target 127.0.0.1:7379 --target 127.0.0.1:7380 --history run/history.jsonl

It writes to keys that start with the prefix. The exit status is 0 if what was seen is linearizable,
1 if not, 2 if the search gave up.")]
pub struct TortureArgs {
    /// A Redis endpoint; repeat it to spread the clients over several
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7379")]
    pub target: Vec<SocketAddr>,
    /// Concurrent clients
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub clients: u64,
    /// Operations of all clients together
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub ops: u64,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Writes among 100 operations
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub writes_percent: u64,
    /// The seed of the workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What the keys start with
    #[arg(long, value_name = "TEXT", default_value = "torture:")]
    pub prefix: String,
    /// A client gives up a reply after so long; the outcome is unknown then
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    pub timeout: u64,
    /// Longest search of one key
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub check_seconds: u64,
    /// Write the history here (JSON Lines)
    #[arg(long, value_name = "FILE.jsonl")]
    pub history: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// What all clients share.
struct Shared<'a> {
    args: &'a TortureArgs,
    recorder: Recorder,
    begun: AtomicU64,
    next_client: AtomicU64,
    refused: AtomicU64,
    broken: AtomicU64,
    cas: bool,
}

/// Runs it.
///
/// # Errors
/// If no target answers, or the history cannot be written.
pub fn run(args: &TortureArgs) -> Result<ExitCode, Error> {
    let cas = prepare(args)?;
    let shared = Shared {
        args,
        recorder: Recorder::new(),
        begun: AtomicU64::new(0),
        next_client: AtomicU64::new(args.clients),
        refused: AtomicU64::new(0),
        broken: AtomicU64::new(0),
        cas,
    };
    eprintln!("{} clients, {} operations, {} keys", args.clients, args.ops, args.keys);
    let began = Instant::now();
    let style = ProgressStyle::with_template("{elapsed} {bar:40} {pos}/{len} operations")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(args.ops).with_style(style);
    std::thread::scope(|scope| {
        for client in 0..args.clients {
            let shared = &shared;
            scope.spawn(move || hammer(shared, client));
        }
        while shared.begun.load(Ordering::Relaxed) < args.ops {
            bar.set_position(shared.begun.load(Ordering::Relaxed).min(args.ops));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    bar.finish_and_clear();
    let elapsed = began.elapsed();
    let (refused, broken) = (shared.refused.into_inner(), shared.broken.into_inner());
    let history = shared.recorder.into_history();
    if let Some(path) = &args.history {
        let name = path.display();
        let file = File::create(path).cannot(format!("write {name}"))?;
        history.write(BufWriter::new(file)).cannot(format!("write {name}"))?;
    }
    let options = Options {
        time_max: Some(Duration::from_secs(args.check_seconds)),
        threads: 2,
        // The deadline is the ordering node's wall clock; the recorder's clock is another.
        early_ns: 5_000_000,
        ..Options::default()
    };
    let report = check(&history.operations, &options).map_err(|e| Error::new(e.to_string()))?;
    let rate = report.operations as f64 / elapsed.as_secs_f64();
    if args.json {
        let mut json = report.to_json();
        json["operations_per_second"] = rate.round().into();
        json["errors"] = refused.into();
        json["connections_broken"] = broken.into();
        println!("{json}");
    } else {
        println!(
            "{} operations in {:.1} s ({rate:.0}/s), {refused} refused, {broken} connections broken",
            report.operations,
            elapsed.as_secs_f64()
        );
        println!("{report}");
    }
    Ok(match report.verdict {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::Violation => ExitCode::FAILURE,
        Verdict::Unknown => ExitCode::from(2),
    })
}

/// Deletes the keys, so that the history starts from nothing; whether every target knows CAS.
fn prepare(args: &TortureArgs) -> Result<bool, Error> {
    let timeout = Duration::from_secs(args.timeout);
    let open = |target| Link::open(target, timeout).cannot(format!("connect to {target}"));
    let first = args.target[0];
    let mut link = open(first)?;
    for key in 0..args.keys {
        let key = workload::key(&args.prefix, key);
        let reply = link.call(&[b"DEL".to_vec(), key]).cannot(format!("use {first}"))?;
        if let Reply::Error(error) = reply {
            return Err(Error::new(format!("{first} refuses DEL: {error}")));
        }
    }
    let mut cas = true;
    for target in &args.target {
        let key = format!("{}cas", args.prefix).into_bytes();
        let probe = open(*target)?.call(&[b"CAS".to_vec(), key, b"a".to_vec(), b"b".to_vec()]);
        cas &= !matches!(probe.cannot(format!("use {target}"))?, Reply::Error(_));
    }
    Ok(cas)
}

/// One client: an operation at a time, on one connection; a broken connection makes it another
/// client, since its last operation may still be under way.
fn hammer(shared: &Shared<'_>, index: u64) {
    let args = shared.args;
    let mut rng = Rng::new(args.seed.wrapping_mul(1_000_003) ^ index);
    let mut workload = Workload::new(&args.prefix, args.keys, args.writes_percent, shared.cas);
    let mut client = index;
    let mut target = index as usize;
    let mut link: Option<Link> = None;
    while shared.begun.load(Ordering::Relaxed) < args.ops {
        let Some(open) = &mut link else {
            let address = args.target[target % args.target.len()];
            match Link::open(address, Duration::from_secs(args.timeout)) {
                Ok(open) => link = Some(open),
                Err(_) => {
                    target += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            continue;
        };
        let number = shared.begun.fetch_add(1, Ordering::Relaxed);
        if number >= args.ops {
            return;
        }
        let operation = workload.draw(&mut rng, number);
        let pending = shared.recorder.begin(client, operation.cmd.clone());
        match open.call(&operation.cmd) {
            Ok(Reply::Error(error)) if error.starts_with("UNKNOWN") => pending.unknown(),
            Ok(reply) => {
                if matches!(&reply, Reply::Error(e) if !e.starts_with("WRONGTYPE")) {
                    shared.refused.fetch_add(1, Ordering::Relaxed);
                }
                pending.returned(reply);
            }
            Err(_) => {
                pending.unknown();
                shared.broken.fetch_add(1, Ordering::Relaxed);
                client = shared.next_client.fetch_add(1, Ordering::Relaxed);
                target += 1;
                link = None;
            }
        }
    }
}
