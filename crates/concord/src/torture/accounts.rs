//! Transactions over several keys (`--accounts`): clients move amounts among accounts by MULTI, and look at
//! all of them at once, where the sum is always the same; and append to lists and read several of them in
//! one transaction, from which the order of all transactions is checked (strict serializability).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_check::{Access, Reply, Transaction, check_transactions};
use concord_core::Rng;
use concord_runtime::{Context, Error};

use super::resp::Link;
use super::{RETRY_PAUSE, TortureArgs};

/// What each account begins with.
const AMOUNT: i64 = 100;
/// Lists that are appended to at a time, and transactions until others take their place: a list that is
/// read is as long as what was appended to it.
const LISTS: u64 = 8;
const TRANSACTIONS_OF_LISTS: u64 = 800;
/// Most commands of a transaction on lists.
const COMMANDS_MAX: u64 = 5;
/// Most accounts: a request for all of them fits a packet or is a long command.
pub(super) const ACCOUNTS_MAX: u64 = 10_000;
/// How often accounts are begun anew since a target went away.
const ROUNDS_MAX: usize = 1_000;

/// What the clients saw.
#[derive(Default)]
struct Seen {
    lists: Vec<Transaction>,
    /// Sums that differed.
    wrong_sums: Vec<i64>,
    errors: BTreeMap<String, u64>,
}

struct Bank<'a> {
    args: &'a TortureArgs,
    /// What the names of its keys begin with.
    prefix: String,
    accounts: u64,
    began: Instant,
    ends_at: Option<Instant>,
    begun: AtomicU64,
    moves: AtomicU64,
    sums: AtomicU64,
    broken: AtomicU64,
    lost: AtomicU64,
    values: AtomicU64,
    seen: Mutex<Seen>,
}

type Command = Vec<Vec<u8>>;

fn words(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Bank<'_> {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.args.ops
            || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    fn account(&self, n: u64) -> String {
        format!("{}account:{n}", self.prefix)
    }

    fn list(&self, n: u64) -> String {
        format!("{}list:{n}", self.prefix)
    }

    fn with_seen(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note_error(&self, text: &str) {
        let kind = text.split(' ').next().unwrap_or_default().to_string();
        self.with_seen(|seen| *seen.errors.entry(kind).or_default() += 1);
    }

    /// MULTI, the commands, EXEC; the reply to EXEC.
    fn transact(link: &mut Link, commands: Vec<Command>) -> std::io::Result<Reply> {
        let queued = commands.len();
        let whole: Vec<Command> =
            [words(&["MULTI"])].into_iter().chain(commands).chain([words(&["EXEC"])]).collect();
        link.send(&whole)?;
        for _ in 0..=queued {
            link.receive()?;
        }
        link.receive()
    }

    /// Moves an amount from one account to another.
    fn transfer(&self, link: &mut Link, rng: &mut Rng) -> std::io::Result<()> {
        let from = rng.below(self.accounts);
        let to = (from + 1 + rng.below(self.accounts - 1)) % self.accounts;
        let amount = (1 + rng.below(9)).to_string();
        let commands = vec![
            words(&["DECRBY", &self.account(from), &amount]),
            words(&["INCRBY", &self.account(to), &amount]),
        ];
        match Bank::transact(link, commands)? {
            Reply::Array(_) => self.moves.fetch_add(1, Ordering::Relaxed),
            Reply::Error(text) => {
                self.note_error(&text);
                0
            }
            _ => 0,
        };
        Ok(())
    }

    /// Looks at all accounts at once.
    fn sum(&self, link: &mut Link) -> std::io::Result<()> {
        let accounts = (0..self.accounts).map(|n| self.account(n).into_bytes());
        let command: Command = [b"MGET".to_vec()].into_iter().chain(accounts).collect();
        match link.call(&command)? {
            Reply::Array(items) => {
                let number = |item: &Reply| match item {
                    Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse::<i64>().ok(),
                    _ => None,
                };
                let sum: i64 = items.iter().filter_map(number).sum();
                self.sums.fetch_add(1, Ordering::Relaxed);
                if sum != AMOUNT * self.accounts as i64 {
                    self.with_seen(|seen| seen.wrong_sums.push(sum));
                }
            }
            Reply::Error(text) => self.note_error(&text),
            _ => {}
        }
        Ok(())
    }

    /// Appends to some lists, and reads some.
    fn lists(&self, link: &mut Link, rng: &mut Rng, number: u64) -> std::io::Result<()> {
        let first = number / TRANSACTIONS_OF_LISTS * LISTS;
        let (mut commands, mut accesses) = (Vec::new(), Vec::new());
        for _ in 0..1 + rng.below(COMMANDS_MAX) {
            let key = first + rng.below(LISTS);
            let name = self.list(key);
            if rng.chance(1, 2) {
                let value = self.values.fetch_add(1, Ordering::Relaxed);
                commands.push(words(&["RPUSH", &name, &value.to_string()]));
                accesses.push(Access::Append(key, value));
            } else {
                commands.push(words(&["LRANGE", &name, "0", "-1"]));
                accesses.push(Access::List(key, Vec::new()));
            }
        }
        let call_ns = self.now_ns();
        let reply = Bank::transact(link, commands);
        let return_ns = self.now_ns();
        let done = match &reply {
            Ok(Reply::Array(items)) => Transaction {
                call_ns,
                return_ns: Some(return_ns),
                accesses: accesses.into_iter().zip(items).map(with_reply).collect(),
            },
            Ok(Reply::Error(text)) if !text.starts_with("UNKNOWN") => {
                self.note_error(text);
                return Ok(());
            }
            Ok(_) | Err(_) => {
                accesses.retain(|access| matches!(access, Access::Append(..)));
                Transaction { call_ns, return_ns: None, accesses }
            }
        };
        self.with_seen(|seen| seen.lists.push(done));
        reply.map(|_| ())
    }

    fn step(&self, link: &mut Link, rng: &mut Rng, number: u64) -> std::io::Result<()> {
        match rng.below(10) {
            0..=4 => self.transfer(link, rng),
            5 => self.sum(link),
            _ => self.lists(link, rng, number),
        }
    }

    fn client(&self, index: u64) {
        let mut rng = Rng::new(self.args.seed.wrapping_mul(1_000_003) ^ index);
        let (mut target, mut link) = (index as usize, None::<Link>);
        let mut connected_at = Instant::now();
        let timeout = Duration::from_secs(self.args.timeout);
        while !self.is_over() {
            let Some(open) = &mut link else {
                match Link::open(self.args.target[target % self.args.target.len()], timeout) {
                    Ok(open) => link = Some(open),
                    Err(_) if connected_at.elapsed() >= timeout => {
                        self.lost.fetch_add(1, Ordering::Relaxed);
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
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            if self.step(open, &mut rng, number).is_err() {
                self.broken.fetch_add(1, Ordering::Relaxed);
                target += 1;
                link = None;
            }
        }
    }
}

/// A read with what it saw.
fn with_reply((access, reply): (Access, &Reply)) -> Access {
    let Access::List(key, _) = access else { return access };
    let number = |item: &Reply| match item {
        Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
        _ => None,
    };
    match reply {
        // What is no number nobody wrote.
        Reply::Array(items) => {
            Access::List(key, items.iter().map(|item| number(item).unwrap_or(u64::MAX)).collect())
        }
        _ => Access::List(key, vec![u64::MAX]),
    }
}

/// Runs it.
///
/// # Errors
/// If no target answers.
pub(super) fn run(args: &TortureArgs, accounts: u64) -> Result<ExitCode, Error> {
    let began = Instant::now();
    let mut bank = Bank {
        args,
        prefix: args.prefix.clone(),
        accounts,
        began,
        ends_at: args.duration.map(|seconds| began + Duration::from_secs(seconds)),
        begun: AtomicU64::new(0),
        moves: AtomicU64::new(0),
        sums: AtomicU64::new(0),
        broken: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        values: AtomicU64::new(0),
        seen: Mutex::default(),
    };
    prepare(&mut bank)?;
    eprintln!("{} clients, {} transactions, {accounts} accounts", args.clients, args.ops);
    std::thread::scope(|scope| {
        for index in 0..args.clients {
            let bank = &bank;
            scope.spawn(move || bank.client(index));
        }
    });
    let elapsed = began.elapsed();
    let seen = bank.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let verdict = check_transactions(&seen.lists);
    let is_wrong = verdict.is_err() || !seen.wrong_sums.is_empty();
    let (moves, sums) = (bank.moves.into_inner(), bank.sums.into_inner());
    let (broken, lost) = (bank.broken.into_inner(), bank.lost.into_inner());
    let cause = verdict.as_ref().err().map(ToString::to_string);
    if args.json {
        let json = serde_json::json!({
            "verdict": if is_wrong { "violation" } else { "ok" },
            "anomaly": cause,
            "wrong_sums": seen.wrong_sums,
            "moves": moves,
            "sums": sums,
            "list_transactions": seen.lists.len(),
            "seed": args.seed,
            "clients": args.clients,
            "errors": seen.errors,
            "connections_broken": broken,
            "clients_lost": lost,
        });
        println!("{json}");
    } else {
        let seconds = elapsed.as_secs_f64();
        let lists = seen.lists.len();
        println!(
            "{moves} moves, {sums} sums, {lists} transactions on lists in {seconds:.1} s, {broken} connections broken"
        );
        for (kind, count) in &seen.errors {
            println!("  {count:>8} x {kind}");
        }
        match seen.wrong_sums.first() {
            Some(sum) => println!(
                "the accounts' sum differed {} times: {sum}, not {}",
                seen.wrong_sums.len(),
                AMOUNT * accounts as i64
            ),
            None => println!("the accounts' sum never differed"),
        }
        match cause {
            Some(cause) => println!("not strictly serializable: {cause}"),
            None => println!("strictly serializable"),
        }
    }
    Ok(match (is_wrong, lost) {
        (true, _) => ExitCode::FAILURE,
        // A run that ended early for want of a target proves too little.
        (false, 1..) => ExitCode::from(2),
        (false, 0) => ExitCode::SUCCESS,
    })
}

/// Why accounts were not made.
enum Failed {
    /// The target went away, or does not know what became of a write.
    Broken(std::io::Error),
    /// It does not want to.
    Refused(String),
}

/// Makes the accounts, at another target where one goes away meanwhile. What was sent to that one may be
/// executed at any time, so that the others have other names.
fn prepare(bank: &mut Bank<'_>) -> Result<(), Error> {
    let timeout = Duration::from_secs(bank.args.timeout);
    let mut well_at = Instant::now();
    for round in 0..ROUNDS_MAX {
        let target = bank.args.target[round % bank.args.target.len()];
        if round > 0 {
            bank.prefix = format!("{}{round}:", bank.args.prefix);
        }
        let error = match make_accounts(bank, target, &mut well_at) {
            Ok(()) => return Ok(()),
            Err(Failed::Refused(text)) => {
                return Err(Error::new(format!("{target} refuses to be prepared: {text}")));
            }
            Err(Failed::Broken(error)) => error,
        };
        if well_at.elapsed() >= timeout {
            return Err(error).cannot(format!("make accounts at {target}"));
        }
        std::thread::sleep(RETRY_PAUSE);
    }
    Err(Error::new(format!(
        "cannot make accounts: {ROUNDS_MAX} times a target went away meanwhile"
    )))
}

/// Gives each account its amount, and empties the lists. `well_at` is when the last of it was done.
fn make_accounts(bank: &Bank<'_>, target: SocketAddr, well_at: &mut Instant) -> Result<(), Failed> {
    let timeout = Duration::from_secs(bank.args.timeout);
    let mut link = Link::open(target, timeout).map_err(Failed::Broken)?;
    let lists = (bank.args.ops / TRANSACTIONS_OF_LISTS + 1) * LISTS;
    let amount = AMOUNT.to_string();
    let set = (0..bank.accounts).map(|n| words(&["SET", &bank.account(n), &amount]));
    let delete = (0..lists).map(|n| words(&["DEL", &bank.list(n)]));
    for command in set.chain(delete) {
        match link.call(&command).map_err(Failed::Broken)? {
            Reply::Error(text) if is_passing(&text) => {
                return Err(Failed::Broken(std::io::Error::other(text)));
            }
            Reply::Error(text) => return Err(Failed::Refused(text)),
            _ => *well_at = Instant::now(),
        }
    }
    Ok(())
}

/// Whether an error says that the rack is not well right now.
fn is_passing(text: &str) -> bool {
    ["TRYAGAIN", "TIMEOUT", "UNKNOWN"].iter().any(|kind| text.starts_with(kind))
}
