//! The writes of unknown outcome whose effects were seen.
//!
//! Open operations are what makes a search explode: each may take effect anywhere. Workloads that
//! write unique values give most of them away:
//!
//! - A reply that is impossible without the value of one particular open write proves that the
//!   write took effect before that reply's return: it counts as completed ([`settle_seen`]).
//! - Values that no operation saw differ in nothing but their length. They are replaced by the same
//!   value, so that only their number matters ([`forget_unseen`]).

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use crate::Reply;
use crate::command::{Bytes, Command, Condition, integer};
use crate::op::Op;

/// The longest reply in bytes that is taken apart.
const PARTS_BYTES_MAX: usize = 4096;
/// The longest integer in decimal, with its sign, in bytes.
const INTEGER_BYTES_MAX: usize = 20;
/// The number of bytes that are searched for unseen values.
const SCAN_BYTES_MAX: usize = 1 << 28;

/// For each value, the one open operation that writes it, or `None` if a completed one or several
/// do.
type Writers = HashMap<Bytes, Option<u32>, FxBuildHasher>;

fn add_writer(writers: &mut Writers, value: &Bytes, writer: Option<u32>) {
    writers.entry(value.clone()).and_modify(|known| *known = None).or_insert(writer);
}

/// The values that writes may leave in a key, with their writers.
#[derive(Default)]
struct Dictionary {
    /// The values with which a string may begin.
    whole: Writers,
    /// The values that may be appended to it.
    appended: Writers,
    whole_lengths: Vec<usize>,
    appended_lengths: Vec<usize>,
    elements: Writers,
    /// Whether a string may begin with any integer.
    counts: bool,
}

impl Dictionary {
    fn new(ops: &[Op<'_>]) -> Dictionary {
        let mut dictionary = Dictionary::default();
        for (index, op) in ops.iter().enumerate() {
            let writer = op.reply.is_none().then_some(index as u32);
            dictionary.add(&op.command, writer);
        }
        let lengths = |writers: &Writers| {
            let mut lengths: Vec<usize> =
                writers.keys().map(|value| value.len()).filter(|length| *length > 0).collect();
            lengths.sort_unstable();
            lengths.dedup();
            lengths
        };
        dictionary.whole_lengths = lengths(&dictionary.whole);
        dictionary.appended_lengths = lengths(&dictionary.appended);
        dictionary
    }

    fn add(&mut self, command: &Command, writer: Option<u32>) {
        match command {
            Command::Set { value, .. }
            | Command::SetNx(value)
            | Command::GetSet(value)
            | Command::Cas { value, .. } => add_writer(&mut self.whole, value, writer),
            Command::Append(value) => {
                add_writer(&mut self.whole, value, writer);
                add_writer(&mut self.appended, value, writer);
            }
            Command::Push { values, .. } => {
                for value in values {
                    add_writer(&mut self.elements, value, writer);
                }
            }
            Command::IncrBy(_) => self.counts = true,
            Command::Exec(commands) => commands.iter().for_each(|c| self.add(c, writer)),
            _ => {}
        }
    }

    /// Finds the open operations without which `command` could not have had this reply.
    fn writers_for(&self, command: &Command, reply: &Reply, found: &mut Vec<u32>) {
        match (command, reply) {
            (
                Command::Get | Command::GetSet(_) | Command::GetDel | Command::Set { .. },
                Reply::Bulk(seen),
            ) => self.writers_of(seen, found),
            (Command::Pop { .. } | Command::Lrange(..), seen) => {
                self.writers_of_element(seen, found);
            }
            (Command::Exec(commands), Reply::Array(items)) => {
                let parts = commands.iter().zip(items);
                parts.for_each(|(command, item)| self.writers_for(command, item, found));
            }
            _ => {}
        }
    }

    /// Finds the open operations without which the string `seen` could not have been seen.
    fn writers_of(&self, seen: &[u8], found: &mut Vec<u32>) {
        if self.appended.is_empty() {
            let number = self.counts && integer(seen).is_some();
            if !number && let Some(Some(writer)) = self.whole.get(seen) {
                found.push(*writer);
            }
            return;
        }
        if seen.len() > PARTS_BYTES_MAX {
            return;
        }
        // For each offset: the number of ways to compose the string up to it (2 for several), the
        // writer of the last piece, and that piece's offset.
        let mut ways: Vec<(u8, Option<u32>, usize)> = vec![(0, None, 0); seen.len() + 1];
        ways[0].0 = 1;
        for from in 0..seen.len() {
            let here = ways[from].0;
            if here == 0 {
                continue;
            }
            let mut reach = |to: usize, writer: Option<u32>| {
                ways[to] = ((ways[to].0 + here).min(2), writer, from);
            };
            let (lengths, writers) = if from == 0 {
                (&self.whole_lengths, &self.whole)
            } else {
                (&self.appended_lengths, &self.appended)
            };
            for to in lengths.iter().map(|length| from + length).take_while(|to| *to <= seen.len())
            {
                if let Some(writer) = writers.get(&seen[from..to]) {
                    reach(to, *writer);
                }
            }
            if from == 0 && self.counts {
                (1..=seen.len().min(INTEGER_BYTES_MAX))
                    .filter(|to| integer(&seen[..*to]).is_some())
                    .for_each(|to| reach(to, None));
            }
        }
        let mut at = seen.len();
        if ways[at].0 == 1 {
            while at > 0 {
                found.extend(ways[at].1);
                at = ways[at].2;
            }
        }
    }

    fn writers_of_element(&self, seen: &Reply, found: &mut Vec<u32>) {
        match seen {
            Reply::Bulk(element) => {
                if let Some(Some(writer)) = self.elements.get(element.as_slice()) {
                    found.push(*writer);
                }
            }
            Reply::Array(items) => {
                items.iter().for_each(|item| self.writers_of_element(item, found));
            }
            Reply::Nil | Reply::Ok | Reply::Unseen | Reply::Int(_) | Reply::Error(_) => {}
        }
    }
}

/// Gives every open write that was certainly seen the time by which it took effect: the first
/// return of an operation that saw it.
pub(crate) fn settle_seen(ops: &mut [Op<'_>]) {
    if ops.iter().all(|op| op.reply.is_some()) {
        return;
    }
    let dictionary = Dictionary::new(ops);
    let mut until_ns: Vec<u64> = ops.iter().map(|op| op.until_ns).collect();
    let mut found = Vec::new();
    for op in ops.iter() {
        let Some(reply) = op.reply else { continue };
        dictionary.writers_for(&op.command, reply, &mut found);
        for writer in found.drain(..) {
            let until_ns = &mut until_ns[writer as usize];
            *until_ns = op.until_ns.min(*until_ns);
        }
    }
    for (op, until_ns) in ops.iter_mut().zip(until_ns) {
        // If it was seen before it was called, that is a violation, which the search will find.
        if until_ns >= op.moment.call_ns {
            op.until_ns = until_ns;
        }
    }
}

/// Replaces the values of open writes that no reply and no other command mentions by one value.
pub(crate) fn forget_unseen(done: &[Op<'_>], open: &mut [Op<'_>]) {
    let values: Vec<Option<Bytes>> = open.iter().map(|op| written(&op.command)).collect();
    if values.iter().all(Option::is_none) {
        return;
    }
    let is_append = |op: &Op<'_>| contains(&op.command, |c| matches!(c, Command::Append(_)));
    let is_strlen = |op: &Op<'_>| contains(&op.command, |c| *c == Command::Strlen);
    let appends = done.iter().chain(open.iter()).any(is_append);
    let lengths_matter = appends || done.iter().any(is_strlen);
    let mut unseen = Vec::new();
    {
        let mentioned = mentioned(done, open);
        let scan_bytes: usize = mentioned.iter().map(|m| m.len()).sum();
        if appends && scan_bytes.saturating_mul(values.len()) > SCAN_BYTES_MAX {
            return;
        }
        let within = |value: &[u8], m: &[u8]| match value.split_first() {
            None => true,
            Some((first, rest)) => {
                let mut places = m.iter().enumerate().filter(|(_, byte)| *byte == first);
                places.any(|(at, _)| m[at + 1..].starts_with(rest))
            }
        };
        let seen = |value: &[u8]| {
            mentioned.contains(value) || (appends && mentioned.iter().any(|m| within(value, m)))
        };
        for (index, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let twice = values.iter().flatten().filter(|other| *other == value).count() > 1;
            let pushed = matches!(open[index].command, Command::Push { .. });
            let length = if lengths_matter && !pushed { value.len() } else { 1 };
            let stand_in: Bytes = vec![0xff; length].into();
            // Neither the value nor anything appended to it may be read as a number.
            let never_a_number = value.iter().any(|b| !b.is_ascii_digit() && *b != b'-');
            if never_a_number && !twice && !seen(value) && !seen(&stand_in) {
                unseen.push((index, stand_in));
            }
        }
    }
    for (index, stand_in) in unseen {
        rewrite(&mut open[index].command, stand_in);
    }
}

/// Whether the command is such a command, or an EXEC with one.
fn contains(command: &Command, is_such: fn(&Command) -> bool) -> bool {
    match command {
        Command::Exec(commands) => commands.iter().any(is_such),
        command => is_such(command),
    }
}

/// Every byte string in a reply or a completed command, and those that open commands compare with.
fn mentioned<'a>(done: &'a [Op<'_>], open: &'a [Op<'_>]) -> HashSet<&'a [u8], FxBuildHasher> {
    let mut mentioned: Vec<&[u8]> = Vec::new();
    for op in done {
        if let Some(reply) = op.reply {
            mention_reply(reply, &mut mentioned);
        }
        mention_command(&op.command, &mut mentioned);
    }
    for op in open {
        match &op.command {
            Command::Set { condition: Condition::IfEqual(expected), .. }
            | Command::Cas { expected, .. } => mentioned.push(expected),
            command if written(command).is_none() => mention_command(command, &mut mentioned),
            _ => {}
        }
    }
    mentioned.into_iter().collect()
}

/// The one value that a command may leave in the key.
fn written(command: &Command) -> Option<Bytes> {
    match command {
        Command::Set { value, .. }
        | Command::SetNx(value)
        | Command::GetSet(value)
        | Command::Cas { value, .. }
        | Command::Append(value) => Some(value.clone()),
        Command::Push { values, .. } => match values.as_slice() {
            [value] => Some(value.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn rewrite(command: &mut Command, stand_in: Bytes) {
    match command {
        Command::Set { value, .. }
        | Command::SetNx(value)
        | Command::GetSet(value)
        | Command::Cas { value, .. }
        | Command::Append(value) => *value = stand_in,
        Command::Push { values, .. } => *values = vec![stand_in],
        _ => {}
    }
}

fn mention_reply<'a>(reply: &'a Reply, out: &mut Vec<&'a [u8]>) {
    match reply {
        Reply::Bulk(value) => out.push(value),
        Reply::Array(items) => items.iter().for_each(|item| mention_reply(item, out)),
        Reply::Nil | Reply::Ok | Reply::Unseen | Reply::Int(_) | Reply::Error(_) => {}
    }
}

fn mention_command<'a>(command: &'a Command, out: &mut Vec<&'a [u8]>) {
    match command {
        Command::Set { value, condition, .. } => {
            out.push(value);
            if let Condition::IfEqual(expected) = condition {
                out.push(expected);
            }
        }
        Command::SetNx(value)
        | Command::GetSet(value)
        | Command::Append(value)
        | Command::Cad(value)
        | Command::Zadd(_, value)
        | Command::Sismember(value)
        | Command::Hget(value) => out.push(value),
        Command::Cas { expected, value } => out.extend([&**expected, &**value]),
        Command::Push { values, .. }
        | Command::Sadd(values)
        | Command::Srem(values)
        | Command::Hdel(values) => out.extend(values.iter().map(|v| &**v)),
        Command::Hset(pairs) => out.extend(pairs.iter().flat_map(|(f, v)| [&**f, &**v])),
        Command::Exec(commands) => commands.iter().for_each(|c| mention_command(c, out)),
        Command::Get
        | Command::Strlen
        | Command::Exists
        | Command::GetDel
        | Command::IncrBy(_)
        | Command::Del
        | Command::Flush
        | Command::Expire(_)
        | Command::Persist
        | Command::Pop { .. }
        | Command::Llen
        | Command::Lrange(..)
        | Command::Scard
        | Command::Smembers
        | Command::Hlen
        | Command::Hgetall
        | Command::Zpop { .. }
        | Command::Zcard
        | Command::Keys
        | Command::Dbsize => {}
    }
}
