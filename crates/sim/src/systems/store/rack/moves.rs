//! Moves between lists, pops of sorted sets, and both of them with waiting. They are on keys of
//! their own, and part of the history: a move is a pop of one key and a push to another, each
//! checked by itself.

use std::collections::BTreeSet;

use concord_check::{GaveUp, HistoryError, Operation, Options, Reply, Report, Verdict, check};
use concord_core::Rng;
use concord_core::rng::splitmix64;
use concord_engine::databases::stored;

use super::pipeline::{
    Awaited, Combine, Ended, Pipeline, Wanted, Writer, args, ended, is_of_other_version,
};
use crate::systems::store::workload::parse_reply;

/// The number of lists, and of sorted sets.
const LISTS: u64 = 3;
const SORTED: u64 = 2;
/// A list that is mostly empty, and for which many clients wait.
const QUEUE: &str = "queue";
/// The minimum and the maximum time that a client waits for it, in ms.
const QUEUE_MS: (u64, u64) = (50, 350);
/// The maximum time that a client waits for another key, in ms.
const WAITS_MS_MAX: u64 = 60;
/// The maximum number of ways to assign elements to a key's pushes that are tried.
const ORDERS_MAX: usize = 720;
/// The reason given if they were not all tried.
const ORDERS_WHY: &str = "ways to name the elements of pushes that nobody saw";

/// A move whose reply is awaited.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// Its effect on the source list.
    pub pop: Operation,
    /// The command of its push, with the destination key as the rack stores it.
    pub push: Vec<Vec<u8>>,
}

impl Move {
    /// The push of an unknown element.
    fn unknown(&self) -> Operation {
        Operation { cmd: self.push.clone(), ordinal: None, ..self.pop.clone() }
    }

    /// The two parts of a move of unknown outcome; which element the second pushed is determined at
    /// the end.
    pub(super) fn given_up(self) -> (Operation, Operation) {
        let push = self.unknown();
        (self.pop, push)
    }
}

/// The parts of a move that ended: operations, and a push of an unknown element.
///
/// # Errors
/// The reason why this cannot be its reply.
pub(super) fn moved(
    awaited: Awaited,
    bytes: &[u8],
    now_ns: u64,
) -> Result<(Vec<Operation>, Option<Operation>), String> {
    if is_of_other_version(awaited.resp3, bytes) {
        return Err("a reply of the other version of the protocol".into());
    }
    let Wanted::Moved(Move { mut pop, mut push }) = awaited.wanted else {
        return Err("no move".into());
    };
    let reply = parse_reply(bytes).ok_or("a reply that cannot be read")?;
    let reply = match ended(reply)? {
        Ended::Unknown => {
            let (pop, push) = Move { pop, push }.given_up();
            return Ok((vec![pop], Some(push)));
        }
        Ended::Answered(reply @ (Reply::Nil | Reply::Bulk(_))) | Ended::Refused(reply) => reply,
        Ended::Answered(reply) => return Err(format!("a move answers {reply}")),
    };
    let element = match &reply {
        Reply::Bulk(element) => Some(element.clone()),
        _ => None,
    };
    (pop.return_ns, pop.reply) = (Some(now_ns), Some(reply));
    let Some(element) = element else { return Ok((vec![pop], None)) };
    push.push(element);
    let reply = Some(Reply::Unseen);
    let push = Operation { cmd: push, ordinal: None, reply, ..pop.clone() };
    Ok((vec![pop, push], None))
}

/// Checks the history with pushes of unknown elements. An assignment of elements to pushes is
/// guessed first ([`find_pushed`]); if the history has no order with it, all other assignments are
/// tried.
///
/// # Errors
/// See [`check`].
pub(super) fn check_with(
    history: &mut Vec<Operation>,
    unknown: Vec<Operation>,
    options: &Options,
) -> Result<Report, HistoryError> {
    let known = history.len();
    find_pushed(history, unknown);
    let mut report = check(history, options)?;
    let quick = Options { minimise: false, ..*options };
    for key in report.violations.iter().map(|v| v.key.clone()).collect::<Vec<_>>() {
        let of_key = (known..history.len()).filter(|n| history[*n].cmd[1] == key);
        let places: Vec<usize> = of_key.collect();
        let guessed: Vec<Vec<u8>> = places.iter().map(|n| history[*n].cmd[2].clone()).collect();
        let mut name = |order: &[usize]| {
            for (place, element) in places.iter().zip(order) {
                history[*place].cmd[2].clone_from(&guessed[*element]);
            }
            let report = check(history, &quick);
            report.is_ok_and(|report| report.violations.iter().all(|v| v.key != key))
        };
        let mut order: Vec<usize> = (0..places.len()).collect();
        let mut tries = 0;
        let found = loop {
            if !next_order(&mut order) {
                break Tried::All;
            }
            if tries >= ORDERS_MAX {
                break Tried::Some;
            }
            tries += 1;
            if name(&order) {
                break Tried::Explained;
            }
        };
        if found != Tried::Explained {
            name(&(0..places.len()).collect::<Vec<_>>());
        }
        match found {
            Tried::Explained => {}
            Tried::All => return Ok(report),
            Tried::Some => not_all_tried(&mut report, &key),
        }
    }
    if !report.violations.is_empty() {
        let gave_up = std::mem::take(&mut report.gave_up);
        report = check(history, options)?;
        // A violation in the guess that remains there is not proven.
        for gave_up in gave_up.into_iter().filter(|own| own.why == ORDERS_WHY) {
            let key = gave_up.key.clone();
            report.gave_up.push(gave_up);
            report.violations.retain(|violation| violation.key != key);
        }
    }
    if report.violations.is_empty() && !report.gave_up.is_empty() {
        report.verdict = Verdict::Unknown;
    }
    Ok(report)
}

/// The result of trying other assignments of elements to unknown pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// One assignment explains the key.
    Explained,
    /// All assignments were tried, and none explains the key.
    All,
    /// Some assignments were tried, and none of these explains the key.
    Some,
}

/// Marks a key for which not all assignments were tried: it is neither a violation nor a pass.
fn not_all_tried(report: &mut Report, key: &[u8]) {
    let suspect = report.violations.iter().position(|violation| violation.key == key);
    let suspect = suspect.map(|at| report.violations[at].clone());
    report.gave_up.push(GaveUp { key: key.to_vec(), why: ORDERS_WHY.into(), suspect });
}

/// Makes the next permutation in lexicographic order; returns `false` after the last.
fn next_order(order: &mut [usize]) -> bool {
    let Some(at) = (1..order.len()).rev().find(|n| order[n - 1] < order[*n]) else { return false };
    let Some(with) = (at..order.len()).rev().find(|n| order[*n] > order[at - 1]) else {
        return false;
    };
    order.swap(at - 1, with);
    order[at..].reverse();
    true
}

/// Adds to the history what pushes of unknown elements pushed, if anything: an element in a reply
/// of a key to which nobody else pushed it, and that was pushed to another key before (from where
/// the move takes it). The element that was seen first is assigned to the push that was sent first.
/// If nobody saw the element, it gets an arbitrary name: it still counts in lengths.
fn find_pushed(history: &mut Vec<Operation>, mut unknown: Vec<Operation>) {
    unknown.sort_by_key(|push| push.call_ns);
    let is_push = |o: &&Operation| matches!(&o.cmd[0][..], b"RPUSH" | b"LPUSH");
    let elsewhere: BTreeSet<Vec<u8>> =
        history.iter().filter(is_push).flat_map(|o| o.cmd[2..].iter().cloned()).collect();
    for (n, push) in unknown.into_iter().enumerate() {
        let key = &push.cmd[1];
        let own = || history.iter().filter(|operation| operation.cmd.get(1) == Some(key));
        let pushed: BTreeSet<&[u8]> =
            own().filter(is_push).flat_map(|o| &o.cmd[2..]).map(Vec::as_slice).collect();
        let seen = own().filter_map(|operation| operation.reply.as_ref()).flat_map(elements);
        let is_moved =
            |element: &Vec<u8>| elsewhere.contains(element) && !pushed.contains(element.as_slice());
        let found = seen.into_iter().find(is_moved);
        let element = found.unwrap_or_else(|| format!("unseen{n}").into_bytes());
        let cmd = push.cmd.iter().cloned().chain([element]).collect();
        history.push(Operation { cmd, ..push });
    }
}

pub(super) fn elements(reply: &Reply) -> Vec<Vec<u8>> {
    match reply {
        Reply::Bulk(element) => vec![element.clone()],
        Reply::Array(items) => items.iter().flat_map(elements).collect(),
        _ => Vec::new(),
    }
}

/// The result of a pop of a sorted set: the key, with the member and its score; `None` for no
/// element.
pub(super) fn ranked(items: Vec<Reply>) -> Option<(Vec<u8>, Reply)> {
    match <[Reply; 3]>::try_from(items) {
        Ok([Reply::Bulk(key), member, score]) => Some((key, Reply::Array(vec![member, score]))),
        _ => None,
    }
}

impl Writer<'_> {
    /// A generator separate from the others, if such an operation is drawn.
    pub(super) fn draws_move(&self) -> Option<Rng> {
        let drawn = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 58);
        let is_drawn = !self.reads_only && drawn % 100 < self.gateways.moves_percent;
        is_drawn.then(|| Rng::new(splitmix64(drawn)))
    }

    /// Adds an operation on one of these keys, with its own command.
    fn on(&mut self, out: &mut Pipeline, words: &[&str]) {
        let cmd = args(words);
        let mut own = cmd.clone();
        own[1] = stored(out.database, &own[1]).into_owned();
        let operation = self.operation(own);
        self.send(out, &cmd, Wanted::One(operation));
    }

    /// Draws a move, or an operation on a sorted set.
    pub(super) fn moves(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        *self.unique += 1;
        let (value, score) = (format!("v{}", self.unique), self.unique.to_string());
        let timeout = format!("0.{:03}", 1 + rng.below(WAITS_MS_MAX));
        // An element moves on to the next list, so that it is in each list only once.
        let from = rng.below(LISTS);
        let (source, sorted) = (format!("moves:{from}"), format!("sorted:{}", rng.below(SORTED)));
        let to = format!("moves:{}", from + 1 + rng.below(LISTS - from.min(LISTS - 1)));
        out.moves += 1;
        match rng.below(18) {
            13..=16 => self.pop_queue(out, rng),
            17 => {
                self.on(out, &["RPUSH", QUEUE, &value, &format!("{value}a"), &format!("{value}b")])
            }
            12 => self.all_lists(out),
            0..=2 => self.on(out, &["RPUSH", &source, &value]),
            3 | 4 => self.shift(out, &["LMOVE", &source, &to, "LEFT", "RIGHT"]),
            5 | 6 => self.shift(out, &["BLMOVE", &source, &to, "LEFT", "RIGHT", &timeout]),
            7 => self.on(out, &["LPOP", &format!("moves:{LISTS}")]),
            8 => self.on(out, &["LRANGE", &to, "0", "-1"]),
            9 => self.on(out, &["ZADD", &sorted, &score, &value]),
            10 => self.on(out, &[if rng.chance(1, 2) { "ZPOPMIN" } else { "ZPOPMAX" }, &sorted]),
            _ => self.pop_sorted(out, rng, &timeout),
        }
    }

    fn shift(&mut self, out: &mut Pipeline, words: &[&str]) {
        let name = |key: &str| stored(out.database, key.as_bytes()).into_owned();
        let pop = vec![b"LPOP".to_vec(), name(words[1])];
        let push = vec![b"RPUSH".to_vec(), name(words[2])];
        let pop = self.operation(pop);
        self.send(out, &args(words), Wanted::Moved(Move { pop, push }));
    }

    /// Reads all lists at one moment.
    fn all_lists(&mut self, out: &mut Pipeline) {
        self.send(out, &args(&["MULTI"]), Wanted::Exactly(b"+OK\r\n".to_vec()));
        let mut operations = Vec::new();
        for n in 0..=LISTS {
            let mut cmd = args(&["LRANGE", &format!("moves:{n}"), "0", "-1"]);
            self.send(out, &cmd, Wanted::Exactly(b"+QUEUED\r\n".to_vec()));
            cmd[1] = stored(out.database, &cmd[1]).into_owned();
            operations.push(self.operation(cmd));
        }
        self.send(out, &args(&["EXEC"]), Wanted::Parts(Combine::Apart, operations));
    }

    /// Draws a pop of the list for which many clients wait.
    fn pop_queue(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let timeout = format!("0.{:03}", rng.between(QUEUE_MS.0, QUEUE_MS.1));
        let (waits, pop) = if rng.chance(1, 2) { ("BLPOP", "LPOP") } else { ("BRPOP", "RPOP") };
        let own = vec![pop.into(), stored(out.database, QUEUE.as_bytes()).into_owned()];
        let operations = vec![self.operation(own)];
        out.waits += 1;
        self.send(out, &args(&[waits, QUEUE, &timeout]), Wanted::Popped(operations));
    }

    /// Draws a pop of one sorted set or of all, which waits.
    fn pop_sorted(&mut self, out: &mut Pipeline, rng: &mut Rng, timeout: &str) {
        let least = rng.chance(1, 2);
        let (waits, pops) = if least { ("BZPOPMIN", "ZPOPMIN") } else { ("BZPOPMAX", "ZPOPMAX") };
        let mut cmd = args(&[waits]);
        let mut operations = Vec::new();
        for n in rng.below(SORTED)..SORTED {
            let key = format!("sorted:{n}").into_bytes();
            let own = vec![pops.as_bytes().to_vec(), stored(out.database, &key).into_owned()];
            operations.push(self.operation(own));
            cmd.push(key);
        }
        cmd.push(timeout.into());
        out.waits += 1;
        self.send(out, &cmd, Wanted::Popped(operations));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(call_ns: u64, return_ns: u64, cmd: &str, reply: Option<Reply>) -> Operation {
        Operation {
            client: call_ns,
            ordinal: None,
            call_ns,
            return_ns: reply.is_some().then_some(return_ns),
            cmd: args(&cmd.split(' ').collect::<Vec<_>>()),
            reply,
            path: None,
        }
    }

    /// The history of the clients of `concord sim --protocol chain --seed 0x2000000031ce`: the
    /// element that was sent second was pushed and popped first, but its pop was answered last.
    fn seen() -> (Vec<Operation>, Vec<Operation>) {
        let bulk = |text: &str| Some(Reply::bulk(text));
        let history = vec![
            operation(20, 30, "RPUSH l c", Some(Reply::Int(2))),
            operation(60, 70, "LPOP l", bulk("a")),
            operation(40, 80, "LPOP l", bulk("b")),
            operation(50, 55, "LPOP l", bulk("c")),
            operation(1, 2, "RPUSH source a b", Some(Reply::Int(2))),
        ];
        (history, vec![operation(10, 0, "RPUSH l", None), operation(35, 0, "RPUSH l", None)])
    }

    /// An unknown push may have pushed another element than the one that was guessed.
    #[test]
    fn another_push_may_be_of_another_element() {
        let (mut history, unknown) = seen();
        let mut guessed = history.clone();
        find_pushed(&mut guessed, unknown.clone());
        assert!(!check(&guessed, &Options::default()).unwrap().is_ok());
        assert!(check_with(&mut history, unknown, &Options::default()).unwrap().is_ok());
        assert_eq!(history[5].cmd, args(&["RPUSH", "l", "b"]));
    }

    #[test]
    fn what_no_push_explains_is_wrong() {
        let (mut history, unknown) = seen();
        history[3].reply = Some(Reply::bulk("never"));
        history.push(operation(90, 95, "LPOP l", Some(Reply::bulk("c"))));
        assert!(!check_with(&mut history, unknown, &Options::default()).unwrap().is_ok());
    }

    /// A move takes an element that was pushed before: it does not explain an element from nowhere.
    #[test]
    fn bug_25_6_an_unknown_move_explains_no_element_from_nowhere() {
        let unknown = || vec![operation(10, 0, "RPUSH l", None)];
        let seen = |element| {
            vec![
                operation(1, 2, "RPUSH source a", Some(Reply::Int(1))),
                operation(20, 30, "LPOP l", Some(Reply::bulk(element))),
            ]
        };
        assert!(check_with(&mut seen("a"), unknown(), &Options::default()).unwrap().is_ok());
        let report = check_with(&mut seen("x"), unknown(), &Options::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Violation);
    }

    /// Seven unknown pushes have more assignments than are tried: the result is undecided.
    #[test]
    fn bug_25_9_what_is_not_tried_is_unknown() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let history = |count: usize| {
            let source = format!("RPUSH source {}", names[..count].join(" "));
            let mut history = vec![operation(1, 2, &source, Some(Reply::Int(count as i64)))];
            // The last element is popped twice, which no assignment explains.
            let popped = names[..count].iter().chain([&names[count - 1]]);
            history.extend(
                (100..)
                    .step_by(10)
                    .zip(popped)
                    .map(|(at, name)| operation(at, at + 5, "LPOP l", Some(Reply::bulk(*name)))),
            );
            history
        };
        let unknown = |count: usize| {
            (0..count as u64).map(|n| operation(10 + n, 0, "RPUSH l", None)).collect::<Vec<_>>()
        };
        let verdict = |count| {
            check_with(&mut history(count), unknown(count), &Options::default()).unwrap().verdict
        };
        assert_eq!(verdict(3), Verdict::Violation);
        assert_eq!(verdict(7), Verdict::Unknown);
    }

    #[test]
    fn every_order_comes_once() {
        let mut order = [0, 1, 2, 3];
        let mut all = BTreeSet::from([order]);
        while next_order(&mut order) {
            assert!(all.insert(order));
        }
        assert_eq!(all.len(), 24);
    }
}
