//! Moves between lists, pops of sorted sets, and both of them waiting. They are on keys of their
//! own, and part of the history: a move is a pop of one key and a push to another, each checked by
//! itself.

use std::collections::BTreeSet;

use concord_check::{HistoryError, Operation, Options, Reply, Report, check};
use concord_core::Rng;
use concord_core::rng::splitmix64;
use concord_engine::databases::stored;

use super::pipeline::{
    Awaited, Combine, Ended, Pipeline, Wanted, Writer, args, ended, is_of_other_version,
};
use crate::systems::store::workload::parse_reply;

/// Lists, and sorted sets.
const LISTS: u64 = 3;
const SORTED: u64 = 2;
/// A list that is mostly empty, and for which many wait.
const QUEUE: &str = "queue";
/// Shortest and longest time that one waits for it, in ms.
const QUEUE_MS: (u64, u64) = (50, 350);
/// Longest time that one waits, in ms.
const WAITS_MS_MAX: u64 = 60;
/// Most ways in which the elements of a key's pushes are tried.
const ORDERS_MAX: usize = 720;

/// A move whose reply is awaited.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// What it does to the list that it takes from.
    pub pop: Operation,
    /// To which it pushes, as the rack stores it, and how.
    pub push: Vec<Vec<u8>>,
}

impl Move {
    /// The push of an element that nobody knows.
    fn unknown(&self) -> Operation {
        Operation { cmd: self.push.clone(), ordinal: None, ..self.pop.clone() }
    }

    /// Its parts, where nobody knows what became of it; which element the second is of is found out
    /// at the end.
    pub(super) fn given_up(self) -> (Operation, Operation) {
        let push = self.unknown();
        (self.pop, push)
    }
}

/// The parts of a move that ended: operations, and a push of an element that nobody knows.
///
/// # Errors
/// Why this cannot be its reply.
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

/// Checks the history with pushes of unknown elements. Which push was of which element is guessed
/// first ([`find_pushed`]), and where that has no order all other ways are tried.
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
        let is_explained = loop {
            if tries >= ORDERS_MAX || !next_order(&mut order) {
                break false;
            }
            tries += 1;
            if name(&order) {
                break true;
            }
        };
        if !is_explained {
            name(&(0..places.len()).collect::<Vec<_>>());
            return Ok(report);
        }
    }
    if !report.violations.is_empty() {
        report = check(history, options)?;
    }
    Ok(report)
}

/// The next permutation in the order of words; false behind the last.
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
/// of a key to which nobody else pushed it, the one that was seen first for the one that was sent
/// first. Where nobody saw one it has any name: it counts in lengths.
fn find_pushed(history: &mut Vec<Operation>, mut unknown: Vec<Operation>) {
    unknown.sort_by_key(|push| push.call_ns);
    for (n, push) in unknown.into_iter().enumerate() {
        let key = &push.cmd[1];
        let own = || history.iter().filter(|operation| operation.cmd.get(1) == Some(key));
        let is_push = |o: &&Operation| matches!(&o.cmd[0][..], b"RPUSH" | b"LPUSH");
        let pushed: BTreeSet<&[u8]> =
            own().filter(is_push).flat_map(|o| &o.cmd[2..]).map(Vec::as_slice).collect();
        let seen = own().filter_map(|operation| operation.reply.as_ref()).flat_map(elements);
        let found = seen.into_iter().find(|element| !pushed.contains(element.as_slice()));
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

/// What a pop of a sorted set says: the key, the member and its score, or nothing.
pub(super) fn ranked(items: Vec<Reply>) -> Option<(Vec<u8>, Reply)> {
    match <[Reply; 3]>::try_from(items) {
        Ok([Reply::Bulk(key), member, score]) => Some((key, Reply::Array(vec![member, score]))),
        _ => None,
    }
}

impl Writer<'_> {
    /// A generator beside the others, if one of these is drawn.
    pub(super) fn draws_move(&self) -> Option<Rng> {
        let drawn = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 58);
        let is_drawn = !self.reads_only && drawn % 100 < self.gateways.moves_percent;
        is_drawn.then(|| Rng::new(splitmix64(drawn)))
    }

    /// An operation on one of these keys, in its own words.
    fn on(&mut self, out: &mut Pipeline, words: &[&str]) {
        let cmd = args(words);
        let mut own = cmd.clone();
        own[1] = stored(out.database, &own[1]).into_owned();
        let operation = self.operation(own);
        self.send(out, &cmd, Wanted::One(operation));
    }

    /// A move, or something with a sorted set.
    pub(super) fn moves(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        *self.unique += 1;
        let (value, score) = (format!("v{}", self.unique), self.unique.to_string());
        let timeout = format!("0.{:03}", 1 + rng.below(WAITS_MS_MAX));
        // An element is moved on, so that it comes to a list once.
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

    /// All lists at one moment.
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

    /// A pop of the list for which many wait.
    fn pop_queue(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let timeout = format!("0.{:03}", rng.between(QUEUE_MS.0, QUEUE_MS.1));
        let (waits, pop) = if rng.chance(1, 2) { ("BLPOP", "LPOP") } else { ("BRPOP", "RPOP") };
        let own = vec![pop.into(), stored(out.database, QUEUE.as_bytes()).into_owned()];
        let operations = vec![self.operation(own)];
        out.waits += 1;
        self.send(out, &args(&[waits, QUEUE, &timeout]), Wanted::Popped(operations));
    }

    /// A pop of one sorted set or of all, which waits.
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

    /// What the clients of `concord sim --protocol chain --seed 0x2000000031ce` saw: the element
    /// that was sent second was pushed, and popped, first, but its pop was answered last.
    fn seen() -> (Vec<Operation>, Vec<Operation>) {
        let bulk = |text: &str| Some(Reply::bulk(text));
        let history = vec![
            operation(20, 30, "RPUSH l c", Some(Reply::Int(2))),
            operation(60, 70, "LPOP l", bulk("a")),
            operation(40, 80, "LPOP l", bulk("b")),
            operation(50, 55, "LPOP l", bulk("c")),
        ];
        (history, vec![operation(10, 0, "RPUSH l", None), operation(35, 0, "RPUSH l", None)])
    }

    /// Another push may have been of an element than the one that was guessed.
    #[test]
    fn another_push_may_be_of_another_element() {
        let (mut history, unknown) = seen();
        let mut guessed = history.clone();
        find_pushed(&mut guessed, unknown.clone());
        assert!(!check(&guessed, &Options::default()).unwrap().is_ok());
        assert!(check_with(&mut history, unknown, &Options::default()).unwrap().is_ok());
        assert_eq!(history[4].cmd, args(&["RPUSH", "l", "b"]));
    }

    #[test]
    fn what_no_push_explains_is_wrong() {
        let (mut history, unknown) = seen();
        history[3].reply = Some(Reply::bulk("never"));
        history.push(operation(90, 95, "LPOP l", Some(Reply::bulk("c"))));
        assert!(!check_with(&mut history, unknown, &Options::default()).unwrap().is_ok());
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
