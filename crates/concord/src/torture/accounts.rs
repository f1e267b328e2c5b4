//! Transactions on several keys (`--accounts`). Clients move amounts among accounts by MULTI, WATCH
//! and scripts, and read all accounts at once, whose sum is always the same. They also append to
//! lists and read several of them in one transaction ([`super::lists`]), from which the order of
//! all transactions is checked (strict serializability).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_check::{Decision, Reply, Transaction, check_transactions, is_too_little};
use concord_core::Rng;
use concord_runtime::{Context, Error};

use super::lists::{LISTS, TRANSACTIONS_OF_LISTS};
use super::resp::{Command, Link, is_passing, number, words};
use super::{RETRY_PAUSE, TOO_LITTLE, TortureArgs};

/// The initial amount of each account.
const AMOUNT: i64 = 100;
/// The maximum number of accounts: a request for all of them fits into a packet, or is a long
/// command.
pub(super) const ACCOUNTS_MAX: u64 = 10_000;
/// The maximum number of times that accounts are created anew because a target went away.
const ROUNDS_MAX: usize = 1_000;
/// The maximum number of attempts of a transaction whose watched keys were changed.
const TRIES_MAX: u64 = 1_000;
/// A script that moves an amount. The names of the accounts are its keys, or ordinary arguments.
const MOVE: &str = "local from, to, amount = KEYS[1] or ARGV[2], KEYS[2] or ARGV[3], tonumber(ARGV[1])
local left, grown = tonumber(redis.call('GET', from)) - amount, tonumber(redis.call('GET', to)) + amount
redis.call('SET', from, left)
redis.call('SET', to, grown)
return {left, grown}";

/// The way in which a transaction is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// MULTI and EXEC.
    Multi,
    /// WATCH, reads, MULTI and EXEC.
    Watch,
    /// EVAL with its keys declared.
    Script,
    /// EVAL without declared keys.
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

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was executed.
    Done,
    /// It was not executed: a watched key had changed.
    Aborted,
    /// It was refused, or its outcome is unknown.
    Failed,
}

/// The observations of the clients.
#[derive(Default)]
struct Seen {
    lists: Vec<Transaction>,
    /// Sums that differed.
    wrong_sums: Vec<i64>,
    errors: BTreeMap<String, u64>,
}

/// The effect of the moves on the accounts.
#[derive(Default)]
struct Balances {
    /// By account: the sum of the amounts that were certainly moved.
    known: BTreeMap<u64, i64>,
    /// Moves of unknown outcome: from, to, amount.
    unknown: Vec<(u64, u64, i64)>,
}

impl Balances {
    fn note(&mut self, ended: &std::io::Result<Moved>, (from, to, amount): (u64, u64, i64)) {
        match ended {
            Ok(Moved::Yes) => {
                *self.known.entry(from).or_default() -= amount;
                *self.known.entry(to).or_default() += amount;
            }
            Ok(Moved::Unknown) | Err(_) => self.unknown.push((from, to, amount)),
            Ok(Moved::No | Moved::Aborted) => {}
        }
    }

    /// Accounts with more or less than all moves explain: a move that was executed twice keeps the
    /// sum.
    fn wrong(&self, found: &[i64]) -> Vec<u64> {
        let is_wrong = |(account, found): &(u64, &i64)| {
            let known = AMOUNT + self.known.get(account).copied().unwrap_or(0);
            let (mut least, mut most) = (known, known);
            for (from, to, amount) in &self.unknown {
                least -= if from == account { *amount } else { 0 };
                most += if to == account { *amount } else { 0 };
            }
            **found < least || **found > most
        };
        (0..).zip(found).filter(is_wrong).map(|(account, _)| account).collect()
    }
}

/// The outcome of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Yes,
    No,
    Aborted,
    Unknown,
}

/// The number of executed transactions of each way.
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
    /// The prefix of its keys.
    prefix: String,
    accounts: u64,
    began: Instant,
    ends_at: Option<Instant>,
    begun: AtomicU64,
    moves: Counts,
    lists: Counts,
    /// Transactions that were not executed because a watched key had changed.
    aborted: AtomicU64,
    /// Transactions that were executed although a watched key differed from what they had read.
    changed: AtomicU64,
    sums: AtomicU64,
    broken: AtomicU64,
    lost: AtomicU64,
    values: AtomicU64,
    seen: Mutex<Seen>,
    balances: Mutex<Balances>,
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

    /// A new value, which is in no list yet.
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

    /// Sends MULTI, the commands and EXEC; returns the reply to EXEC.
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

    /// Moves an amount from one account to another, and notes the outcome.
    fn transfer(&self, link: &mut Link, rng: &mut Rng, way: Way) -> std::io::Result<Ended> {
        let from = rng.below(self.accounts);
        let to = (from + 1 + rng.below(self.accounts - 1)) % self.accounts;
        let amount = 1 + rng.below(self.args.amount_max) as i64;
        let moved = self.move_amount(link, (from, to, amount), way);
        let mut balances = self.balances.lock().unwrap_or_else(PoisonError::into_inner);
        balances.note(&moved, (from, to, amount));
        Ok(match moved? {
            Moved::Yes => Ended::Done,
            Moved::Aborted => Ended::Aborted,
            Moved::No | Moved::Unknown => Ended::Failed,
        })
    }

    fn move_amount(
        &self,
        link: &mut Link,
        (from, to, amount): (u64, u64, i64),
        way: Way,
    ) -> std::io::Result<Moved> {
        let (from, to) = (self.account(from), self.account(to));
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
                let Some(found) = self.watch(link, &commands)? else { return Ok(Moved::No) };
                let [Some(left), Some(grown)] = [&found[0], &found[1]].map(number::<i64>) else {
                    // If the accounts were missing, the sum shows it, too.
                    self.note_error("NOACCOUNT");
                    link.call(&words(&["UNWATCH"]))?;
                    return Ok(Moved::No);
                };
                let (left, grown) = ((left - amount).to_string(), (grown + amount).to_string());
                let again = commands[1..].iter().cloned();
                let sets = [words(&["SET", &from, &left]), words(&["SET", &to, &grown])];
                let reply = Bank::transact(link, again.chain(sets).collect())?;
                // It was executed with other values of the watched keys than it had read.
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
            Reply::Array(items) if !items.iter().any(|item| matches!(item, Reply::Error(_))) => {
                Moved::Yes
            }
            Reply::Nil if way == Way::Watch => Moved::Aborted,
            Reply::Error(text) => {
                self.note_error(&text);
                if text.starts_with("UNKNOWN") { Moved::Unknown } else { Moved::No }
            }
            _ => {
                self.note_error("an odd reply");
                Moved::Unknown
            }
        })
    }

    /// Sends WATCH, and reads of the watched keys; returns their values. `None`, with no key
    /// watched, if one was refused.
    pub(super) fn watch(
        &self,
        link: &mut Link,
        commands: &[Command],
    ) -> std::io::Result<Option<Vec<Reply>>> {
        // As clients do: WATCH is answered before the reads are sent.
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

    /// Reads all accounts at once, and checks the sum.
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

    /// The final amount of each account; `None` if no target answers in time.
    fn amounts(&self) -> Option<Vec<i64>> {
        let timeout = Duration::from_secs(self.args.timeout);
        let (began, mut target) = (Instant::now(), 0);
        let accounts = (0..self.accounts).map(|n| self.account(n).into_bytes());
        let command: Command = [b"MGET".to_vec()].into_iter().chain(accounts).collect();
        while began.elapsed() < timeout {
            let address = self.args.target[target % self.args.target.len()];
            let reply = Link::open(address, timeout).and_then(|mut link| link.call(&command));
            if let Ok(Reply::Array(items)) = reply {
                // A value that is missing, or no number, is no amount that moves explain.
                let amounts = items.iter().map(|item| number(item).unwrap_or(i64::MIN));
                return Some(amounts.collect());
            }
            target += 1;
            std::thread::sleep(RETRY_PAUSE);
        }
        None
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

/// Runs the clients.
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
        balances: Mutex::default(),
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
    let found = bank.amounts();
    let balances = bank.balances.into_inner().unwrap_or_else(PoisonError::into_inner);
    let wrong_accounts = found.as_deref().map(|found| balances.wrong(found)).unwrap_or_default();
    let issued = bank.begun.into_inner().min(args.ops) as usize;
    let executed = [bank.moves.sum(), bank.lists.sum(), bank.sums.load(Ordering::Relaxed)];
    let judged = executed.iter().sum::<u64>() as usize;
    let is_too_little = executed.contains(&0) || found.is_none() || is_too_little(judged, issued);
    let seen = bank.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let verdict = check_transactions(&seen.lists);
    let changed = bank.changed.into_inner();
    let is_open = matches!(verdict, Ok(Decision::Open(_)));
    let is_wrong = verdict.is_err()
        || !seen.wrong_sums.is_empty()
        || changed > 0
        || !wrong_accounts.is_empty();
    let unknown = seen.errors.get("UNKNOWN").copied().unwrap_or(0);
    let refused = seen.errors.values().sum::<u64>() - unknown;
    let (sums, aborted) = (bank.sums.into_inner(), bank.aborted.into_inner());
    let (broken, lost) = (bank.broken.into_inner(), bank.lost.into_inner());
    let cause = verdict.as_ref().err().map(ToString::to_string);
    if args.json {
        let json = serde_json::json!({
            "verdict": match (is_wrong, is_open, is_too_little) {
                (true, ..) => "violation",
                (false, true, _) => "unknown",
                (false, false, true) => "too little was judged",
                (false, false, false) => "ok",
            },
            "issued": issued,
            "judged": judged,
            "refused": refused,
            "unknown": unknown,
            "wrong_accounts": wrong_accounts,
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
        match (&found, wrong_accounts.first()) {
            (None, _) => println!("no target said what the accounts hold at last"),
            (_, Some(account)) => println!(
                "{} accounts hold what no moves explain, account {account} for example",
                wrong_accounts.len()
            ),
            _ => println!("each account holds what the moves left"),
        }
        println!(
            "{issued} issued, {judged} judged, {refused} refused, {unknown} of unknown outcome"
        );
        match cause {
            Some(cause) => println!("not strictly serializable: {cause}"),
            None if is_open => println!("UNKNOWN: the search of an order gave up"),
            None if is_too_little => println!("TOO LITTLE WAS JUDGED"),
            None => println!("strictly serializable"),
        }
    }
    Ok(match (is_wrong, lost) {
        (true, _) => ExitCode::FAILURE,
        // A run that ended early for want of a target proves too little.
        (false, 1..) => ExitCode::from(2),
        (false, 0) if is_open => ExitCode::from(2),
        (false, 0) if is_too_little => ExitCode::from(TOO_LITTLE),
        (false, 0) => ExitCode::SUCCESS,
    })
}

/// The reason why accounts were not created.
enum Failed {
    /// The target went away, or does not know the outcome of a write.
    Broken(std::io::Error),
    /// It refused.
    Refused(String),
}

/// Creates the accounts, at another target if one goes away meanwhile. Writes sent to that one may
/// still be executed at any time, so that the new accounts have other names.
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

/// Gives each account its amount, and empties the lists. `well_at` is the time when the last of
/// that was done.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A move that was executed twice keeps the sum, and leaves two accounts that no moves explain.
    #[test]
    fn bug_25_6_a_double_transfer_is_seen_in_the_accounts() {
        let mut balances = Balances::default();
        balances.note(&Ok(Moved::Yes), (0, 1, 5));
        balances.note(&Ok(Moved::No), (1, 2, 7));
        balances.note(&Ok(Moved::Aborted), (1, 2, 7));
        assert!(balances.wrong(&[95, 105, 100]).is_empty());
        assert_eq!(balances.wrong(&[90, 110, 100]), [0, 1]);
        // A move of unknown outcome explains what it may have moved, and no more.
        balances.note(&Ok(Moved::Unknown), (0, 2, 4));
        assert!(balances.wrong(&[91, 105, 104]).is_empty());
        assert_eq!(balances.wrong(&[90, 110, 104]), [0, 1]);
    }
}
