//! Transactions over several keys (`--accounts`): clients move amounts among accounts by MULTI,
//! WATCH and scripts, and look at all of them at once, where the sum is always the same; and append
//! to lists and read several of them in one transaction ([`super::lists`]), from which the order of
//! all transactions is checked (strict serializability).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_check::{Reply, Transaction, check_transactions};
use concord_core::Rng;
use concord_runtime::{Context, Error};

use super::lists::{LISTS, TRANSACTIONS_OF_LISTS};
use super::resp::{Command, Link, is_passing, number, words};
use super::{RETRY_PAUSE, TortureArgs};

/// What each account begins with.
const AMOUNT: i64 = 100;
/// Most accounts: a request for all of them fits a packet or is a long command.
pub(super) const ACCOUNTS_MAX: u64 = 10_000;
/// How often accounts are begun anew since a target went away.
const ROUNDS_MAX: usize = 1_000;
/// How often a transaction is tried again whose watched keys were changed.
const TRIES_MAX: u64 = 1_000;
/// Moves an amount; the names of the accounts are given as keys, or found as arguments like any
/// other.
const MOVE: &str = "local from, to, amount = KEYS[1] or ARGV[2], KEYS[2] or ARGV[3], tonumber(ARGV[1])
local left, grown = tonumber(redis.call('GET', from)) - amount, tonumber(redis.call('GET', to)) + amount
redis.call('SET', from, left)
redis.call('SET', to, grown)
return {left, grown}";

/// How a transaction is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// MULTI and EXEC.
    Multi,
    /// WATCH, reads, MULTI and EXEC.
    Watch,
    /// EVAL with its keys.
    Script,
    /// EVAL without them.
    Undeclared,
    /// EVAL within MULTI.
    Within,
}

impl Way {
    pub(super) const ALL: [Way; 5] =
        [Way::Multi, Way::Watch, Way::Script, Way::Undeclared, Way::Within];

    fn name(self) -> &'static str {
        match self {
            Way::Multi => "multi",
            Way::Watch => "watch",
            Way::Script => "script",
            Way::Undeclared => "script_without_keys",
            Way::Within => "script_in_multi",
        }
    }

    fn draw(rng: &mut Rng) -> Way {
        match rng.below(10) {
            0..=3 => Way::Multi,
            4..=6 => Way::Watch,
            7 => Way::Script,
            8 => Way::Undeclared,
            _ => Way::Within,
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was executed.
    Done,
    /// It was not, since what it watched had changed.
    Aborted,
    /// It was refused, or nobody knows.
    Failed,
}

/// What the clients saw.
#[derive(Default)]
struct Seen {
    lists: Vec<Transaction>,
    /// Sums that differed.
    wrong_sums: Vec<i64>,
    errors: BTreeMap<String, u64>,
}

/// How many transactions were executed, of each way.
#[derive(Default)]
struct Counts([AtomicU64; Way::ALL.len()]);

impl Counts {
    fn note(&self, way: Way) {
        self.0[way as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Way::ALL.iter().map(|way| (way.name(), self.0[*way as usize].load(Ordering::Relaxed)))
    }

    fn sum(&self) -> u64 {
        self.each().map(|(_, count)| count).sum()
    }
}

pub(super) struct Bank<'a> {
    args: &'a TortureArgs,
    /// What the names of its keys begin with.
    prefix: String,
    accounts: u64,
    began: Instant,
    ends_at: Option<Instant>,
    begun: AtomicU64,
    moves: Counts,
    lists: Counts,
    /// Transactions whose watched keys had changed.
    aborted: AtomicU64,
    /// Transactions that were executed though what they watched was not as they had read it.
    changed: AtomicU64,
    sums: AtomicU64,
    broken: AtomicU64,
    lost: AtomicU64,
    values: AtomicU64,
    seen: Mutex<Seen>,
}

impl Bank<'_> {
    pub(super) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.args.ops
            || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    fn account(&self, n: u64) -> String {
        format!("{}account:{n}", self.prefix)
    }

    pub(super) fn list(&self, n: u64) -> String {
        format!("{}list:{n}", self.prefix)
    }

    /// A value that is in no list yet.
    pub(super) fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed)
    }

    fn with_seen(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn note_lists(&self, seen: Transaction) {
        self.with_seen(|all| all.lists.push(seen));
    }

    pub(super) fn note_error(&self, text: &str) {
        let kind = text.split(' ').next().unwrap_or_default().to_string();
        self.with_seen(|seen| *seen.errors.entry(kind).or_default() += 1);
    }

    /// MULTI, the commands, EXEC; the reply to EXEC.
    pub(super) fn transact(link: &mut Link, commands: Vec<Command>) -> std::io::Result<Reply> {
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
    fn transfer(&self, link: &mut Link, rng: &mut Rng, way: Way) -> std::io::Result<Ended> {
        let from = rng.below(self.accounts);
        let to = (from + 1 + rng.below(self.accounts - 1)) % self.accounts;
        let (from, to) = (self.account(from), self.account(to));
        let amount = 1 + rng.below(self.args.amount_max) as i64;
        let text = amount.to_string();
        let script = words(&["EVAL", MOVE, "2", &from, &to, &text]);
        let reply = match way {
            Way::Multi => {
                let commands =
                    vec![words(&["DECRBY", &from, &text]), words(&["INCRBY", &to, &text])];
                Bank::transact(link, commands)?
            }
            Way::Watch => {
                let commands =
                    [words(&["WATCH", &from, &to]), words(&["GET", &from]), words(&["GET", &to])];
                let Some(found) = self.watch(link, &commands)? else { return Ok(Ended::Failed) };
                let [Some(left), Some(grown)] = [&found[0], &found[1]].map(number::<i64>) else {
                    // Who has looked at accounts that are not there sees it in the sum, too.
                    self.note_error("NOACCOUNT");
                    link.call(&words(&["UNWATCH"]))?;
                    return Ok(Ended::Failed);
                };
                let (left, grown) = ((left - amount).to_string(), (grown + amount).to_string());
                let again = commands[1..].iter().cloned();
                let sets = [words(&["SET", &from, &left]), words(&["SET", &to, &grown])];
                let reply = Bank::transact(link, again.chain(sets).collect())?;
                // It was executed on other values than were read of what it watches.
                if matches!(&reply, Reply::Array(items) if !items.starts_with(&found)) {
                    self.changed.fetch_add(1, Ordering::Relaxed);
                }
                reply
            }
            Way::Script => link.call(&script)?,
            Way::Undeclared => link.call(&words(&["EVAL", MOVE, "0", &text, &from, &to]))?,
            Way::Within => Bank::transact(link, vec![words(&["STRLEN", &from]), script])?,
        };
        Ok(match reply {
            Reply::Array(_) => Ended::Done,
            Reply::Nil if way == Way::Watch => Ended::Aborted,
            Reply::Error(text) => {
                self.note_error(&text);
                Ended::Failed
            }
            _ => {
                self.note_error("an odd reply");
                Ended::Failed
            }
        })
    }

    /// WATCH, and reads of what is watched; what they saw. Nothing, and nothing is watched, where
    /// one was refused.
    pub(super) fn watch(
        &self,
        link: &mut Link,
        commands: &[Command],
    ) -> std::io::Result<Option<Vec<Reply>>> {
        // As clients do: it is known to be watched before it is read.
        let watched = link.call(&commands[0])?;
        link.send(&commands[1..])?;
        let found: Vec<Reply> =
            commands[1..].iter().map(|_| link.receive()).collect::<Result<_, _>>()?;
        for reply in found.iter().chain([&watched]) {
            if let Reply::Error(text) = reply {
                self.note_error(text);
                link.call(&words(&["UNWATCH"]))?;
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Looks at all accounts at once.
    fn sum(&self, link: &mut Link) -> std::io::Result<()> {
        let accounts = (0..self.accounts).map(|n| self.account(n).into_bytes());
        let command: Command = [b"MGET".to_vec()].into_iter().chain(accounts).collect();
        match link.call(&command)? {
            Reply::Array(items) => {
                let sum: i64 = items.iter().filter_map(number::<i64>).sum();
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

    fn step(&self, link: &mut Link, rng: &mut Rng, number: u64) -> std::io::Result<()> {
        let (kind, way) = (rng.below(10), Way::draw(rng));
        if kind == 5 {
            return self.sum(link);
        }
        for _ in 0..TRIES_MAX {
            let (ended, counts) = match kind {
                0..=4 => (self.transfer(link, rng, way)?, &self.moves),
                _ => (self.append(link, rng, number, way)?, &self.lists),
            };
            match ended {
                Ended::Done => counts.note(way),
                Ended::Failed => {}
                Ended::Aborted => {
                    self.aborted.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            }
            break;
        }
        Ok(())
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
        moves: Counts::default(),
        lists: Counts::default(),
        aborted: AtomicU64::new(0),
        changed: AtomicU64::new(0),
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
    let changed = bank.changed.into_inner();
    let is_wrong = verdict.is_err() || !seen.wrong_sums.is_empty() || changed > 0;
    let (sums, aborted) = (bank.sums.into_inner(), bank.aborted.into_inner());
    let (broken, lost) = (bank.broken.into_inner(), bank.lost.into_inner());
    let cause = verdict.as_ref().err().map(ToString::to_string);
    if args.json {
        let json = serde_json::json!({
            "verdict": if is_wrong { "violation" } else { "ok" },
            "anomaly": cause,
            "wrong_sums": seen.wrong_sums,
            "moves": bank.moves.sum(),
            "moves_by": bank.moves.each().collect::<BTreeMap<_, _>>(),
            "sums": sums,
            "list_transactions": bank.lists.sum(),
            "list_transactions_by": bank.lists.each().collect::<BTreeMap<_, _>>(),
            "checked": seen.lists.len(),
            "aborted": aborted,
            "watched_changed": changed,
            "seed": args.seed,
            "clients": args.clients,
            "errors": seen.errors,
            "connections_broken": broken,
            "clients_lost": lost,
        });
        println!("{json}");
    } else {
        let (seconds, moves, lists) = (elapsed.as_secs_f64(), bank.moves.sum(), bank.lists.sum());
        println!(
            "{moves} moves, {sums} sums, {lists} transactions on lists in {seconds:.1} s, {broken} connections broken"
        );
        let ways = bank.moves.each().zip(bank.lists.each());
        for ((name, moves), (_, lists)) in ways {
            println!("  {moves:>8} moves, {lists:>8} on lists by {name}");
        }
        println!("  {aborted:>8} tried again since what they watched had changed");
        for (kind, count) in &seen.errors {
            println!("  {count:>8} x {kind}");
        }
        if changed > 0 {
            println!(
                "{changed} transactions were executed though what they watched was not as they had read it"
            );
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

/// Makes the accounts, at another target where one goes away meanwhile. What was sent to that one
/// may be executed at any time, so that the others have other names.
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
