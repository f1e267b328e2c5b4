//! `concord torture`: hammers any Redis endpoints with concurrent clients, records what they saw,
//! and checks it for linearizability.

mod accounts;
mod coord;
mod expiries;
mod lists;
mod queues;
mod resp;
mod taken;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use concord_check::{
    History, JUDGED_PERCENT_MIN, Options, Pending, Recorder, Reply, Report, Verdict, check,
};
use concord_core::Rng;
use concord_runtime::coord::CoordPlace;
use concord_runtime::{Context, Error};
use indicatif::{ProgressBar, ProgressStyle};

use resp::Link;
use workload::Workload;

/// The exit status of a run in which too few operations were checked.
const TOO_LITTLE: u8 = 3;
/// The pause of a client whose target does not answer, before it tries the next one.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const PROGRESS_PAUSE: Duration = Duration::from_millis(20);

/// `concord torture`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord torture --target 127.0.0.1:7379 --ops 200000 --keys 8
  concord torture --target 127.0.0.1:7379 --target 127.0.0.1:7380 --history run/history.jsonl
  concord torture --target 127.0.0.1:7379 --accounts 100
  concord torture --target 127.0.0.1:7379 --queues 4 --ops 100000
  concord torture --coord run/rack.toml --keys 30 --ops 20000

It writes to keys with the prefix. The exit status is 0 if the history is linearizable; 1 if not, or if
a lock of --coord had two holders; 2 if the search gave up or no target was left; 3 if too few
operations were checked: less than a tenth, or none of those that the run is for (transactions,
elements, expiries).")]
pub struct TortureArgs {
    /// A Redis endpoint; repeat it to spread the clients over several
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7379")]
    pub target: Vec<SocketAddr>,
    /// The number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub clients: u64,
    /// The number of operations of all clients together
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub ops: u64,
    /// The maximum duration in seconds, after which fewer operations suffice
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// The number of commands that a client sends before it reads the first reply
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub pipeline: u64,
    /// The number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Run transactions instead: move amounts among this number of accounts by MULTI, WATCH and
    /// scripts, read all accounts at once, append to lists and read several at once; and check that
    /// the sum never differs and everything is strictly serializable
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=accounts::ACCOUNTS_MAX))]
    pub accounts: Option<u64>,
    /// The maximum amount of a move: with small amounts an account often returns to an earlier
    /// value
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub amount_max: u64,
    /// Use this number of queues instead: half of the clients push the operations' elements, the
    /// others take them by BLPOP, BRPOP and BLMOVE, and die now and then; check that each element
    /// goes to one client
    #[arg(long, value_name = "N", conflicts_with = "accounts", value_parser = clap::value_parser!(u64).range(1..=queues::QUEUES_MAX))]
    pub queues: Option<u64>,
    /// Use strings and counters only, with the commands of a shared memory's nodes
    #[arg(long, conflicts_with_all = ["accounts", "queues"])]
    pub strings: bool,
    /// Use the keys of a chain of switches instead, without a gateway: times to live, conditions,
    /// counters, and a lock that no two clients may hold; the chain is in this rack file
    #[arg(long, value_name = "FILE.toml", num_args = 0..=1, default_missing_value = "run/rack.toml",
          conflicts_with_all = ["accounts", "queues", "strings", "target", "pipeline"])]
    pub coord: Option<PathBuf>,
    /// The chain, if the rack has several
    #[arg(long, value_name = "NAME", requires = "coord")]
    pub group: Option<String>,
    /// The share of writes among operations, in percent
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub writes_percent: u64,
    /// The seed of the workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The prefix of the keys
    #[arg(long, value_name = "TEXT", default_value = "torture:")]
    pub prefix: String,
    /// The time after which a client gives up a reply, in seconds; the outcome is then unknown
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    pub timeout: u64,
    /// The maximum duration of the search for one key, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub check_seconds: u64,
    /// Write the history to this file (JSON Lines)
    #[arg(long, value_name = "FILE.jsonl")]
    pub history: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// The state that all clients share.
struct Shared<'a> {
    args: &'a TortureArgs,
    recorder: Recorder,
    begun: AtomicU64,
    next_client: AtomicU64,
    broken: AtomicU64,
    /// The number of clients that found no target for as long as a reply may take.
    lost: AtomicU64,
    /// Counts of error replies by their beginning, WRONGTYPE and UNKNOWN among them.
    errors: Mutex<BTreeMap<String, u64>>,
    ends_at: Option<Instant>,
    cas: bool,
    /// Keys that were given a time to live.
    expiring: Mutex<BTreeSet<Vec<u8>>>,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.args.ops
            || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    fn note_error(&self, text: &str) {
        let kind = match text.split_once(' ') {
            Some((kind, _)) if kind != "ERR" => kind,
            _ => text,
        };
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(kind.to_string()).or_default() += 1;
    }
}

/// Runs the clients of a chain.
fn of_chain(args: &TortureArgs, (place, value_bytes): (CoordPlace, u8)) -> Result<ExitCode, Error> {
    eprintln!("{} clients, {} operations, {} keys", args.clients, args.ops, args.keys);
    let wanted = coord::Wanted {
        clients: args.clients,
        ops: args.ops,
        duration: args.duration.map(Duration::from_secs),
        keys: args.keys,
        writes_percent: args.writes_percent,
        seed: args.seed,
        prefix: &args.prefix,
        value_bytes: value_bytes.into(),
        grace_ns: expiries::grace_ns,
    };
    let seen = coord::run(&wanted, &place)?;
    eprintln!("the lock was held {} times", seen.holds);
    let (elapsed, errors) = (seen.elapsed, seen.errors);
    let outcome = Outcome { elapsed, lost: 0, broken: 0, errors };
    let (history, grace_ns, wrong) = (seen.history, seen.grace_ns, seen.twice);
    judge(args, &outcome, &Judging { history, grace_ns, wrong })
}

/// The parameters of the check.
struct Judging {
    history: History,
    /// The time after its deadline for which a key may exist, in ns.
    grace_ns: u64,
    /// A violation other than those in the history.
    wrong: Option<String>,
}

/// Runs the command; with `chain`, over that chain, whose values have this maximum length.
///
/// # Errors
/// If no target answers, or the history cannot be written.
pub fn run(args: &TortureArgs, chain: Option<(CoordPlace, u8)>) -> Result<ExitCode, Error> {
    if let Some(count) = args.accounts {
        return accounts::run(args, count);
    }
    if let Some(count) = args.queues {
        return queues::run(args, count);
    }
    if let Some(chain) = chain {
        return of_chain(args, chain);
    }
    let cas = prepare(args)?;
    let began = Instant::now();
    let shared = Shared {
        args,
        recorder: Recorder::new(),
        begun: AtomicU64::new(0),
        next_client: AtomicU64::new(args.clients),
        broken: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        errors: Mutex::default(),
        ends_at: args.duration.map(|seconds| began + Duration::from_secs(seconds)),
        cas,
        expiring: Mutex::default(),
    };
    eprintln!("{} clients, {} operations, {} keys", args.clients, args.ops, args.keys);
    hammer_all(&shared);
    let elapsed = began.elapsed();
    if shared.lost.load(Ordering::Relaxed) == 0 {
        expiries::look(&shared);
    }
    let grace_ns = shared.recorder.look(expiries::grace_ns);
    let lost = shared.lost.into_inner();
    if lost > 0 {
        let seconds = args.timeout;
        eprintln!("concord: {lost} clients gave up: no target took a connection for {seconds} s");
    }
    let outcome = Outcome {
        elapsed,
        lost,
        broken: shared.broken.into_inner(),
        errors: shared.errors.into_inner().unwrap_or_else(PoisonError::into_inner),
    };
    let history = shared.recorder.into_history();
    judge(args, &outcome, &Judging { history, grace_ns, wrong: None })
}

/// Writes the history if it is wanted, checks it, and prints the result.
fn judge(args: &TortureArgs, outcome: &Outcome, judging: &Judging) -> Result<ExitCode, Error> {
    let Judging { history, grace_ns, wrong } = judging;
    if let Some(path) = &args.history {
        let name = path.display();
        let file = File::create(path).cannot(format!("write {name}"))?;
        history.write(BufWriter::new(file)).cannot(format!("write {name}"))?;
    }
    let options = Options {
        time_max: Some(Duration::from_secs(args.check_seconds)),
        threads: 2,
        // Deadlines follow the wall clock of the node that orders writes, which differs from the
        // recorder's.
        early_ns: 5_000_000,
        grace_ns: *grace_ns,
        judged_percent_min: JUDGED_PERCENT_MIN,
        ..Options::default()
    };
    let mut report = check(&history.operations, &options).map_err(|e| Error::new(e.to_string()))?;
    if report.verdict == Verdict::Ok && expiries::are_too_few(&report.expiries) {
        report.verdict = Verdict::TooLittle;
    }
    outcome.print(args, &report);
    if let Some(why) = wrong {
        eprintln!("concord: {why}");
        return Ok(ExitCode::FAILURE);
    }
    let lost = outcome.lost;
    Ok(match report.verdict {
        Verdict::Violation => ExitCode::FAILURE,
        Verdict::Unknown => ExitCode::from(2),
        // A run that ended early for want of a target proves too little.
        Verdict::Ok | Verdict::TooLittle if lost > 0 => ExitCode::from(2),
        Verdict::TooLittle => ExitCode::from(TOO_LITTLE),
        Verdict::Ok => ExitCode::SUCCESS,
    })
}

/// The statistics of a run beside its history.
struct Outcome {
    elapsed: Duration,
    lost: u64,
    broken: u64,
    errors: BTreeMap<String, u64>,
}

impl Outcome {
    fn print(&self, args: &TortureArgs, report: &Report) {
        let rate = report.operations as f64 / self.elapsed.as_secs_f64();
        if args.json {
            let mut json = report.to_json();
            json["seed"] = args.seed.into();
            json["clients"] = args.clients.into();
            json["operations_per_second"] = rate.round().into();
            json["errors"] = serde_json::json!(self.errors);
            json["connections_broken"] = self.broken.into();
            json["clients_lost"] = self.lost.into();
            println!("{json}");
            return;
        }
        println!(
            "{} operations in {:.1} s ({rate:.0}/s), {} connections broken",
            report.operations,
            self.elapsed.as_secs_f64(),
            self.broken
        );
        for (kind, count) in &self.errors {
            println!("  {count:>8} x {kind}");
        }
        println!("{report}");
    }
}

/// Runs all clients until they are done.
fn hammer_all(shared: &Shared<'_>) {
    let ops = shared.args.ops;
    let style = ProgressStyle::with_template("{elapsed} {bar:40} {pos}/{len} operations")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(ops).with_style(style);
    std::thread::scope(|scope| {
        let spawn = |client| scope.spawn(move || hammer(shared, client));
        let clients: Vec<_> = (0..shared.args.clients).map(spawn).collect();
        while !clients.iter().all(|client| client.is_finished()) {
            bar.set_position(shared.begun.load(Ordering::Relaxed).min(ops));
            std::thread::sleep(PROGRESS_PAUSE);
        }
    });
    bar.finish_and_clear();
}

/// Deletes the keys, so that the history starts with empty ones; returns whether every target knows
/// CAS.
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

/// Runs one client on one connection, one pipeline at a time. After a broken connection it counts
/// as another client, since its last operations may still be in progress.
fn hammer(shared: &Shared<'_>, index: u64) {
    let args = shared.args;
    let mut rng = Rng::new(args.seed.wrapping_mul(1_000_003) ^ index);
    let mut workload = Workload::new(&args.prefix, args.keys, args.writes_percent, shared.cas)
        .of_strings(args.strings);
    let mut client = index;
    let mut target = index as usize;
    let mut link: Option<Link> = None;
    let mut connected_at = Instant::now();
    while !shared.is_over() {
        let Some(open) = &mut link else {
            let address = args.target[target % args.target.len()];
            match Link::open(address, Duration::from_secs(args.timeout)) {
                Ok(open) => link = Some(open),
                Err(_) if connected_at.elapsed().as_secs() >= args.timeout => {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(_) => {
                    target += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            continue;
        };
        connected_at = Instant::now();
        let first = shared.begun.fetch_add(args.pipeline, Ordering::Relaxed);
        let numbers = first..(first + args.pipeline).min(args.ops.max(first));
        let commands: Vec<_> = numbers.map(|n| workload.draw(&mut rng, n).cmd).collect();
        if pipeline(shared, open, client, &commands).is_err() {
            shared.broken.fetch_add(1, Ordering::Relaxed);
            client = shared.next_client.fetch_add(1, Ordering::Relaxed);
            target += 1;
            link = None;
        }
    }
}

/// Sends the commands and records their replies. Returns the commands of unknown outcome without a
/// reply.
fn pipeline(
    shared: &Shared<'_>,
    link: &mut Link,
    client: u64,
    commands: &[Vec<Vec<u8>>],
) -> std::io::Result<()> {
    let begin = |cmd: &Vec<Vec<u8>>| shared.recorder.begin(client, cmd.clone());
    for cmd in commands.iter().filter(|cmd| cmd.iter().any(|arg| arg == b"PX")) {
        let mut expiring = shared.expiring.lock().unwrap_or_else(PoisonError::into_inner);
        expiring.insert(cmd[1].clone());
    }
    let pending: Vec<Pending<'_>> = commands.iter().map(begin).collect();
    link.send(commands)?;
    for pending in pending {
        let reply = link.receive()?;
        if let Reply::Error(error) = &reply {
            shared.note_error(error);
        }
        match reply {
            Reply::Error(error) if error.starts_with("UNKNOWN") => pending.unknown(),
            reply => pending.returned(reply),
        }
    }
    Ok(())
}
