//! Commands on one key.

use std::collections::HashSet;

use concord_check::{Operation, Options, Reply, Verdict, check};
use concord_core::Rng;

use super::{histories, moments};

pub const MS: u64 = 1_000_000;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holds {
    Nothing,
    Text(String),
    List(Vec<String>),
}

/// And from when to when it has to vanish.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub holds: Holds,
    pub vanishes: Option<(u64, u64)>,
}

pub const EMPTY: Key = Key { holds: Holds::Nothing, vanishes: None };

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

/// As Redis writes one: no plus, no zeros before it.
fn integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|value| value.to_string() == text)
}

/// Executes a command; a time to live ends somewhere within `ends` of when it begins.
pub fn execute(key: &mut Key, words: &[String], ends: impl Fn(u64) -> (u64, u64)) -> Reply {
    let wrong = || Reply::Error("WRONGTYPE".into());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match &key.holds {
        Holds::Text(text) => Some(text.clone()),
        Holds::Nothing | Holds::List(_) => None,
    };
    let is_list = matches!(key.holds, Holds::List(_));
    let is_there = key.holds != Holds::Nothing;
    let put = |key: &mut Key, text: String, vanishes| {
        *key = Key { holds: Holds::Text(text), vanishes };
    };
    match words[..] {
        ["SET", _, value] => {
            put(key, value.into(), None);
            Reply::Ok
        }
        ["SET", _, value, "PX", ms] => {
            put(key, value.into(), Some(ends(ms.parse().unwrap())));
            Reply::Ok
        }
        ["SET", _, value, "NX"] if !is_there => {
            put(key, value.into(), None);
            Reply::Ok
        }
        ["SET", _, value, "XX"] if is_there => {
            put(key, value.into(), None);
            Reply::Ok
        }
        ["SET", _, _, "NX" | "XX"] => Reply::Nil,
        ["DEL", _] => {
            *key = EMPTY;
            Reply::Int(i64::from(is_there))
        }
        ["EXISTS", _] => Reply::Int(i64::from(is_there)),
        ["GET" | "GETDEL" | "STRLEN" | "APPEND" | "INCRBY", ..] if is_list => wrong(),
        ["GET", _] => text.map_or(Reply::Nil, |text| bulk(&text)),
        ["GETDEL", _] => {
            *key = EMPTY;
            text.map_or(Reply::Nil, |text| bulk(&text))
        }
        ["STRLEN", _] => Reply::Int(text.map_or(0, |text| text.len() as i64)),
        ["APPEND", _, tail] => {
            let grown = text.unwrap_or_default() + tail;
            let length = grown.len() as i64;
            put(key, grown, key.vanishes);
            Reply::Int(length)
        }
        ["INCRBY", _, by] => match integer(&text.unwrap_or("0".into())) {
            None => Reply::Error("ERR value is not an integer or out of range".into()),
            Some(value) => {
                let sum = value + by.parse::<i64>().unwrap();
                put(key, sum.to_string(), key.vanishes);
                Reply::Int(sum)
            }
        },
        ["RPUSH" | "LPUSH" | "LPOP" | "RPOP" | "LLEN" | "LRANGE", ..] if is_there && !is_list => {
            wrong()
        }
        _ => list(key, &words),
    }
}

fn list(key: &mut Key, words: &[&str]) -> Reply {
    let mut items = match &key.holds {
        Holds::List(items) => items.clone(),
        Holds::Nothing | Holds::Text(_) => Vec::new(),
    };
    let reply = match words {
        ["RPUSH", _, element] => {
            items.push((*element).into());
            Reply::Int(items.len() as i64)
        }
        ["LPUSH", _, element] => {
            items.insert(0, (*element).into());
            Reply::Int(items.len() as i64)
        }
        ["LPOP", _] if !items.is_empty() => bulk(&items.remove(0)),
        ["RPOP", _] if !items.is_empty() => bulk(&items.pop().unwrap()),
        ["LPOP" | "RPOP", _] => Reply::Nil,
        ["LLEN", _] => Reply::Int(items.len() as i64),
        ["LRANGE", ..] => Reply::Array(items.iter().map(|item| bulk(item)).collect()),
        _ => panic!("{words:?}"),
    };
    let vanishes = key.vanishes;
    *key = if items.is_empty() { EMPTY } else { Key { holds: Holds::List(items), vanishes } };
    reply
}

/// How exactly expiry is known.
#[derive(Clone, Copy)]
pub struct Clocks {
    pub grace_ns: u64,
    pub early_ns: u64,
}

pub const EXACT: Clocks = Clocks { grace_ns: 0, early_ns: 0 };

fn words(operation: &Operation) -> Vec<String> {
    operation.cmd.iter().map(|word| String::from_utf8(word.clone()).unwrap()).collect()
}

/// Whether the operations, all of one key, have an order: all are tried.
pub fn has_order(history: &[Operation], clocks: Clocks) -> bool {
    let mut seen = HashSet::new();
    any_order(history, clocks, 0, &EMPTY, &mut seen)
}

fn any_order(
    history: &[Operation],
    clocks: Clocks,
    done: u64,
    key: &Key,
    seen: &mut HashSet<(u64, Key)>,
) -> bool {
    let left = || (0..history.len()).filter(|at| done >> at & 1 == 0);
    let Some(first_ns) = left().filter_map(|at| history[at].return_ns).min() else { return true };
    if !seen.insert((done, key.clone())) {
        return false;
    }
    if key.vanishes.is_some_and(|(from, _)| from <= first_ns)
        && any_order(history, clocks, done, &EMPTY, seen)
    {
        return true;
    }
    for at in left() {
        let own = &history[at];
        let is_overdue = key.vanishes.is_some_and(|(_, until)| own.call_ns > until);
        if own.call_ns > first_ns || is_overdue {
            continue;
        }
        let mut next = key.clone();
        let return_ns = own.return_ns.unwrap_or(u64::MAX);
        let reply = execute(&mut next, &words(own), |ms| {
            let from = (own.call_ns + ms * MS).saturating_sub(clocks.early_ns);
            (from, return_ns.saturating_add(ms * MS).saturating_add(clocks.grace_ns))
        });
        let fits = match (&own.reply, &reply) {
            (None | Some(Reply::Unseen), _) => true,
            // Errors are known by how they begin.
            (Some(Reply::Error(seen)), Reply::Error(told)) => seen[..4] == told[..4],
            (Some(seen), told) => seen == told,
        };
        if fits && any_order(history, clocks, done | 1 << at, &next, seen) {
            return true;
        }
    }
    false
}

/// What a store does wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// An increment is executed twice.
    Twice,
    /// A push is acknowledged and lost.
    Lost,
    /// A key vanishes too early, by this.
    Early(u64),
    /// A key is there too long, by this.
    Late(u64),
}

pub type Draw = fn(&mut Rng, u64) -> String;

/// What a store's clients see of one key: each operation takes effect at its moment.
pub fn run(rng: &mut Rng, count: u64, unit_ns: u64, draw: Draw, wrong: Wrong) -> Vec<Operation> {
    let moments = moments(rng, count, unit_ns);
    let victim = rng.below(count);
    let (mut key, mut history, mut is_spent) = (EMPTY, Vec::new(), wrong == Wrong::Nothing);
    for (number, (client, [call_ns, now_ns, return_ns])) in (0..).zip(moments) {
        let cmd: Vec<String> = draw(rng, number).split(' ').map(String::from).collect();
        let is_wrong = number >= victim && !is_spent;
        if key.vanishes.is_some_and(|(at, _)| at <= now_ns) {
            key = EMPTY;
        }
        let before = key.clone();
        let reply = execute(&mut key, &cmd, |ms| {
            let at = now_ns + ms * MS;
            let at = match wrong {
                Wrong::Early(by) if is_wrong => at.saturating_sub(by),
                Wrong::Late(by) if is_wrong => at + by,
                _ => at,
            };
            (at, at)
        });
        let is_executed = !matches!(reply, Reply::Error(_));
        match (&cmd[0][..], wrong) {
            ("INCRBY", Wrong::Twice) if is_wrong && is_executed => {
                let _ = execute(&mut key, &cmd, |_| (0, 0));
                is_spent = true;
            }
            ("RPUSH" | "LPUSH", Wrong::Lost) if is_wrong && is_executed => {
                (key, is_spent) = (before, true);
            }
            ("SET", Wrong::Early(_) | Wrong::Late(_)) if is_wrong && cmd.len() > 4 => {
                is_spent = true;
            }
            _ => {}
        }
        let is_known = !rng.chance(1, 10);
        history.push(Operation {
            client,
            ordinal: None,
            call_ns,
            return_ns: is_known.then_some(return_ns),
            cmd: cmd.into_iter().map(String::into_bytes).collect(),
            reply: is_known.then_some(reply),
            path: None,
        });
    }
    history
}

fn strings(rng: &mut Rng, n: u64) -> String {
    let v = rng.below(3);
    match rng.below(12) {
        0 | 1 => format!("SET k {v}"),
        2 => format!("SET k x{n} NX"),
        3 => format!("SET k {v} XX"),
        4 | 5 => format!("APPEND k {v}"),
        6 => "GETDEL k".into(),
        7 => "DEL k".into(),
        8 => "STRLEN k".into(),
        _ => "GET k".into(),
    }
}

pub fn counters(rng: &mut Rng, _: u64) -> String {
    match rng.below(8) {
        0 => "DEL k".into(),
        1 | 2 => "GET k".into(),
        n => format!("INCRBY k {}", n - 2),
    }
}

pub fn lists(rng: &mut Rng, n: u64) -> String {
    match rng.below(12) {
        0..=3 => format!("RPUSH k e{n}"),
        4 => format!("LPUSH k e{n}"),
        5 | 6 => "LPOP k".into(),
        7 => "RPOP k".into(),
        8 => "LLEN k".into(),
        9 => format!("LPUSH k e{}", rng.below(3)),
        _ => "LRANGE k 0 -1".into(),
    }
}

pub fn expiring(rng: &mut Rng, n: u64) -> String {
    match rng.below(8) {
        0..=2 => format!("SET k v{n} PX {}", 1 + rng.below(3)),
        3 => "EXISTS k".into(),
        4 => format!("SET k v{n} NX"),
        5 => format!("APPEND k +{n}"),
        _ => "GET k".into(),
    }
}

/// As before, with few writes: what is looked at when its time is over, or nearly.
pub fn watched(rng: &mut Rng, n: u64) -> String {
    match rng.below(6) {
        0 => format!("SET k v{n} PX {}", 1 + rng.below(3)),
        1 => "EXISTS k".into(),
        _ => "GET k".into(),
    }
}

fn mixed(rng: &mut Rng, n: u64) -> String {
    [strings, counters, lists, expiring][rng.below(4) as usize](rng, n)
}

pub fn options(clocks: Clocks) -> Options {
    let Clocks { grace_ns, early_ns } = clocks;
    Options { grace_ns, early_ns, time_max: None, minimise: false, ..Options::default() }
}

/// One operation gets another reply, or none that was seen, or other times.
fn mutate(rng: &mut Rng, history: &mut [Operation]) {
    let (at, other) = (rng.below(history.len() as u64), rng.below(history.len() as u64));
    let (at, other) = (at as usize, other as usize);
    let theirs = history[other].reply.clone();
    let own = &mut history[at];
    if own.reply.is_none() {
        return;
    }
    match (rng.below(6), theirs) {
        (0 | 1, Some(theirs)) => own.reply = Some(theirs),
        (2, _) => own.reply = Some(Reply::Int(rng.below(4) as i64)),
        (3, _) => own.reply = Some(Reply::Unseen),
        _ => {
            let by = rng.below(4 * MS);
            own.call_ns += by;
            own.return_ns = own.return_ns.map(|at| at + by);
        }
    }
}

fn agree(draw: Draw, unit_ns: u64) {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..histories() {
        let mut rng = Rng::new(seed);
        let count = 3 + rng.below(6);
        let mut history = run(&mut rng, count, unit_ns, draw, Wrong::Nothing);
        for _ in 0..3 {
            let expected = has_order(&history, EXACT);
            (good, bad) = (good + u64::from(expected), bad + u64::from(!expected));
            let expected = if expected { Verdict::Ok } else { Verdict::Violation };
            let report = check(&history, &options(EXACT)).unwrap();
            assert_eq!(report.verdict, expected, "seed {seed}: {history:#?}\n{report}");
            mutate(&mut rng, &mut history);
        }
    }
    assert!(good > histories() && bad * 20 > histories(), "{good} good, {bad} bad");
}

#[test]
fn strings_agree_with_every_order() {
    agree(strings, 1_000);
}

#[test]
fn counters_agree_with_every_order() {
    agree(counters, 1_000);
}

#[test]
fn lists_agree_with_every_order() {
    agree(lists, 1_000);
}

#[test]
fn expiring_keys_agree_with_every_order() {
    agree(expiring, MS / 2);
}

#[test]
fn commands_of_all_types_agree_with_every_order() {
    agree(mixed, MS / 2);
}
