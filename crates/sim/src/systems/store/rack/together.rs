//! Transactions on several keys, which are checked as such (`concord_check::check_transactions`):
//! made of MULTI, WATCH, scripts that name their keys or do not, MGET and MSET, and XREAD that
//! waits. They are on keys of their own: lists and streams that are only appended to, and
//! registers.

use std::collections::BTreeMap;

use concord_check::{Access, Reply, Transaction};
use concord_core::Rng;
use concord_core::rng::splitmix64;

use super::pipeline::{Awaited, Ended, Pipeline, Wanted, Writer, args, ended, is_of_other_version};
use crate::systems::store::workload::parse_reply;

/// The number of keys of each kind: few, so that transactions conflict.
const KEYS: u64 = 3;
/// The maximum number of commands in a transaction.
const COMMANDS_MAX: u64 = 4;
/// The maximum time that XREAD waits, in ms.
const WAITS_MS_MAX: u64 = 60;
/// A script that makes accesses, each given by name, key and value; the names determine the form of
/// its reply.
const SCRIPT: &str = "local out = {}
for at = 1, #ARGV / 3 do
  local name, key, value = ARGV[3 * at - 2], KEYS[at] or ARGV[3 * at - 1], ARGV[3 * at]
  if name == 'LRANGE' then out[at] = redis.call(name, key, '0', '-1')
  elseif name == 'XRANGE' then out[at] = redis.call(name, key, '-', '+')
  elseif name == 'GET' then out[at] = redis.call(name, key)
  elseif name == 'XADD' then out[at] = redis.call(name, key, '*', 'n', value)
  else out[at] = redis.call(name, key, value) end
end
return out";

/// The type of a key. A database has a thousand key numbers, of which each type has a hundred.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Register,
    Stream,
}

/// The number of a key for the checker, which has no databases; its name follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    fn new(database: u8, kind: Kind, n: u64) -> Key {
        Key(u64::from(database) * 1_000 + kind as u64 * 100 + n)
    }

    fn kind(self) -> Kind {
        match self.0 / 100 % 10 {
            0 => Kind::List,
            1 => Kind::Register,
            _ => Kind::Stream,
        }
    }

    /// The name of the key in its database.
    fn name(self) -> String {
        let kind = match self.kind() {
            Kind::List => "list",
            Kind::Register => "register",
            Kind::Stream => "stream",
        };
        format!("{kind}:{}", self.0 % 100)
    }
}

fn key_of(access: &Access) -> Key {
    let (Access::Append(key, _)
    | Access::List(key, _)
    | Access::Write(key, _)
    | Access::Read(key, _)) = access;
    Key(*key)
}

fn is_read(access: &Access) -> bool {
    matches!(access, Access::List(..) | Access::Read(..))
}

/// The way in which a reply tells the results of the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One reply for each access, the last of them one of a script with those of `scripted`
    /// accesses.
    Each { scripted: usize },
    /// MSET: OK for all accesses.
    AllOk,
    /// XREAD: the new entries, or nothing.
    Entries,
}

/// A transaction whose reply is awaited.
#[derive(Clone, Debug)]
pub(super) struct Together {
    call_ns: u64,
    accesses: Vec<Access>,
    form: Form,
    /// Whether it is an EXEC of a connection that watches keys.
    watches: bool,
}

impl Together {
    pub(super) fn called(&mut self, at_ns: u64) {
        self.call_ns = at_ns;
    }

    pub(super) fn is_read(&self) -> bool {
        self.accesses.iter().all(is_read)
    }

    /// The transaction with an unknown outcome, in which nothing was read.
    pub(super) fn unknown(self) -> Transaction {
        let accesses = self.accesses.into_iter().filter(|access| !is_read(access)).collect();
        Transaction { call_ns: self.call_ns, return_ns: None, accesses }
    }
}

/// The results that a connection has received.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The reads of the keys that it watches; `None` if it watches none.
    watched: Option<Watched>,
    /// For each stream that it has read, the last id, and all values up to that.
    streams: BTreeMap<Key, (String, Vec<u64>)>,
}

#[derive(Clone, Debug, Default)]
struct Watched {
    seen: Vec<Access>,
    /// Whether WATCH was answered with an error.
    failed: bool,
}

/// The outcome of a transaction according to its reply.
pub(super) enum Said {
    /// Nothing for the history.
    Nothing,
    /// It was not executed: a watched key had changed.
    Aborted,
    /// It was executed, with these results.
    Done(Transaction),
}

impl Known {
    /// Forgets watched keys, since the connection is another one.
    pub(super) fn forget_watched(&mut self) {
        self.watched = None;
    }

    /// Handles a reply to the commands that [`Writer::together`] wrote.
    ///
    /// # Errors
    /// The reason why this cannot be the reply.
    pub(super) fn take(
        &mut self,
        awaited: Awaited,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<Said, String> {
        if is_of_other_version(awaited.resp3, bytes) {
            return Err("a reply of the other version of the protocol".into());
        }
        let reply = parse_reply(bytes).ok_or("a reply that cannot be read")?;
        match awaited.wanted {
            Wanted::Watching => {
                let watched = self.watched.get_or_insert_default();
                match ended(reply)? {
                    Ended::Answered(Reply::Ok) => {}
                    Ended::Refused(_) => watched.failed = true,
                    Ended::Answered(_) | Ended::Unknown => return Err("WATCH is not OK".into()),
                }
                Ok(Said::Nothing)
            }
            Wanted::Looked(access) => {
                if let Ended::Answered(reply) = ended(reply)? {
                    let access = self.with_reply(access, reply)?;
                    self.watched.get_or_insert_default().seen.push(access);
                }
                Ok(Said::Nothing)
            }
            Wanted::Together(together) => self.end(together, reply, now_ns),
            _ => Ok(Said::Nothing),
        }
    }

    fn end(&mut self, together: Together, reply: Reply, now_ns: u64) -> Result<Said, String> {
        let watched = if together.watches { self.watched.take() } else { None };
        let (seen, failed) = watched.map_or((Vec::new(), false), |w| (w.seen, w.failed));
        if matches!(&reply, Reply::Error(text) if failed && text.starts_with("EXECABORT")) {
            return Ok(Said::Nothing);
        }
        let reply = match ended(reply)? {
            Ended::Unknown => return Ok(Said::Done(together.unknown())),
            Ended::Refused(_) => return Ok(Said::Nothing),
            Ended::Answered(Reply::Nil) if together.watches => return Ok(Said::Aborted),
            Ended::Answered(reply) => reply,
        };
        if failed {
            return Err("it is executed, though it is not known what it watches".into());
        }
        let Together { call_ns, accesses, form, .. } = together;
        let own = self.each(form, accesses, reply)?;
        let accesses = seen.into_iter().chain(own).collect();
        Ok(Said::Done(Transaction { call_ns, return_ns: Some(now_ns), accesses }))
    }

    /// The accesses with their results.
    fn each(
        &mut self,
        form: Form,
        mut accesses: Vec<Access>,
        reply: Reply,
    ) -> Result<Vec<Access>, String> {
        match (form, reply) {
            (Form::AllOk, Reply::Ok) => Ok(accesses),
            (Form::Each { scripted }, Reply::Array(mut items)) => {
                if scripted > 0 && scripted < accesses.len() {
                    match items.pop() {
                        Some(Reply::Array(inner)) => items.extend(inner),
                        other => return Err(format!("a script answered {other:?}")),
                    }
                }
                if items.len() != accesses.len() {
                    return Err(format!("{} replies to {} commands", items.len(), accesses.len()));
                }
                let pairs = accesses.into_iter().zip(items);
                pairs.map(|(access, item)| self.with_reply(access, item)).collect()
            }
            (Form::Entries, reply) => {
                let Some(Access::List(key, known)) = accesses.pop() else {
                    return Err("no stream".into());
                };
                Ok(vec![Access::List(key, self.grown(Key(key), known, reply)?)])
            }
            (_, reply) => Err(format!("another reply than there can be: {reply}")),
        }
    }

    fn with_reply(&mut self, access: Access, reply: Reply) -> Result<Access, String> {
        let key = key_of(&access);
        let odd = |reply: &Reply| Err(format!("of {} there is {reply}", key.name()));
        Ok(match (access, reply) {
            (Access::Append(key, value), reply) => match (Key(key).kind(), &reply) {
                (Kind::List, Reply::Int(1..)) | (Kind::Stream, Reply::Bulk(_)) => {
                    Access::Append(key, value)
                }
                _ => return odd(&reply),
            },
            (write @ Access::Write(..), Reply::Ok) => write,
            (Access::Read(key, _), Reply::Nil) => Access::Read(key, None),
            (Access::Read(key, _), reply @ Reply::Bulk(_)) => match number(&reply) {
                Some(value) => Access::Read(key, Some(value)),
                None => return odd(&reply),
            },
            (Access::List(own, _), Reply::Array(items)) if key.kind() == Kind::Stream => {
                Access::List(own, self.entries(key, Vec::new(), items)?)
            }
            (Access::List(own, _), Reply::Array(items)) => {
                let values: Option<Vec<u64>> = items.iter().map(number).collect();
                Access::List(own, values.ok_or("an element that nobody wrote")?)
            }
            (_, reply) => return odd(&reply),
        })
    }

    /// The content of a stream after the reply to XREAD, which has the entries after the known
    /// ones.
    fn grown(&mut self, key: Key, known: Vec<u64>, reply: Reply) -> Result<Vec<u64>, String> {
        let items = match reply {
            Reply::Nil => return Ok(known),
            Reply::Array(items) => items,
            reply => return Err(format!("XREAD answers {reply}")),
        };
        // RESP3 has the name and its entries side by side, RESP2 in an array of their own.
        let items = match <[Reply; 1]>::try_from(items) {
            Ok([Reply::Array(items)]) => items,
            Ok([other]) => return Err(format!("XREAD answers an array of {other}")),
            Err(items) => items,
        };
        match <[Reply; 2]>::try_from(items) {
            Ok([_, Reply::Array(entries)]) if !entries.is_empty() => {
                self.entries(key, known, entries)
            }
            other => Err(format!("XREAD answers {other:?}")),
        }
    }

    /// All values of a stream: the known ones, and the new entries.
    fn entries(
        &mut self,
        key: Key,
        mut values: Vec<u64>,
        entries: Vec<Reply>,
    ) -> Result<Vec<u64>, String> {
        let mut last = None;
        for entry in entries {
            let Reply::Array(parts) = entry else { return Err("no entry".into()) };
            let [Reply::Bulk(id), Reply::Array(fields)] = &parts[..] else {
                return Err("an entry without an id".into());
            };
            values.push(fields.get(1).and_then(number).ok_or("an entry that nobody wrote")?);
            last = Some(String::from_utf8_lossy(id).into_owned());
        }
        if let Some(last) = last {
            let known = self.streams.entry(key).or_default();
            if known.1.len() <= values.len() {
                *known = (last, values.clone());
            }
        }
        Ok(values)
    }
}

fn number(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// The command that makes an access.
fn command(access: &Access) -> Vec<Vec<u8>> {
    let [name, key, value] = triple(access);
    let (name, key, value) = (name.as_str(), key.as_str(), value.as_str());
    match name {
        "LRANGE" => args(&[name, key, "0", "-1"]),
        "XRANGE" => args(&[name, key, "-", "+"]),
        "GET" => args(&[name, key]),
        "XADD" => args(&[name, key, "*", "n", value]),
        _ => args(&[name, key, value]),
    }
}

/// The name of the access, its key and its value, for the script.
fn triple(access: &Access) -> [String; 3] {
    let key = key_of(access);
    let (name, value) = match (access, key.kind()) {
        (Access::Append(_, value), Kind::Stream) => ("XADD", value.to_string()),
        (Access::Append(_, value), _) => ("RPUSH", value.to_string()),
        (Access::List(..), Kind::Stream) => ("XRANGE", String::new()),
        (Access::List(..), _) => ("LRANGE", String::new()),
        (Access::Write(_, value), _) => ("SET", value.to_string()),
        (Access::Read(..), _) => ("GET", String::new()),
    };
    [name.into(), key.name(), value]
}

/// A script that makes the accesses.
fn script(accesses: &[Access], with_keys: bool) -> Vec<Vec<u8>> {
    let name = if accesses.iter().all(is_read) { "EVAL_RO" } else { "EVAL" };
    let keys = if with_keys { accesses.len() } else { 0 };
    let mut command = args(&[name, SCRIPT, &keys.to_string()]);
    let names = accesses.iter().map(|access| key_of(access).name().into_bytes());
    command.extend(names.take(keys));
    command.extend(accesses.iter().flat_map(triple).map(String::into_bytes));
    command
}

impl Writer<'_> {
    /// A generator separate from the others, if a transaction on several keys is drawn.
    pub(super) fn draws_together(&self) -> Option<Rng> {
        let drawn = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 60);
        let is_drawn = drawn % 100 < self.gateways.together_percent;
        is_drawn.then(|| Rng::new(splitmix64(drawn)))
    }

    fn access(&mut self, database: u8, rng: &mut Rng, kind: Option<Kind>, reads: bool) -> Access {
        let drawn = match rng.below(8) {
            0..=3 => Kind::List,
            4..=6 => Kind::Register,
            _ => Kind::Stream,
        };
        let kind = kind.unwrap_or(drawn);
        let Key(key) = Key::new(database, kind, rng.below(KEYS));
        *self.unique += 1;
        match (kind, reads || rng.chance(1, 2)) {
            (Kind::Register, true) => Access::Read(key, None),
            (Kind::Register, false) => Access::Write(key, *self.unique),
            (_, true) => Access::List(key, Vec::new()),
            (_, false) => Access::Append(key, *self.unique),
        }
    }

    fn accesses(&mut self, database: u8, rng: &mut Rng) -> Vec<Access> {
        let reads = self.reads_only || rng.chance(1, 3);
        let count = rng.between(1, COMMANDS_MAX);
        (0..count).map(|_| self.access(database, rng, None, reads)).collect()
    }

    fn send_together(
        &mut self,
        out: &mut Pipeline,
        cmd: &[Vec<u8>],
        accesses: Vec<Access>,
        form: Form,
    ) {
        out.together += 1;
        let together = Together { call_ns: 0, accesses, form, watches: false };
        self.send(out, cmd, Wanted::Together(together));
    }

    /// Draws a transaction on several keys.
    pub(super) fn together(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let whole = Form::Each { scripted: 0 };
        match rng.below(10) {
            0 | 1 => {
                let accesses = self.accesses(out.database, rng);
                self.multi(out, accesses, rng, false);
            }
            2..=4 if !out.watches => self.watch(out, rng),
            2..=5 => {
                let accesses = self.accesses(out.database, rng);
                let cmd = script(&accesses, rng.chance(1, 2));
                self.send_together(out, &cmd, accesses, whole);
            }
            6..=8 => {
                let reads = self.reads_only || rng.chance(1, 2);
                let count = rng.between(2, KEYS + 1);
                let registers = Some(Kind::Register);
                let mut accesses: Vec<Access> =
                    (0..count).map(|_| self.access(out.database, rng, registers, reads)).collect();
                if !reads {
                    accesses.retain(|access| !is_read(access));
                }
                let names = accesses.iter().map(triple);
                let words: Vec<String> = names
                    .flat_map(|[_, key, value]| {
                        [key, value].into_iter().take(if reads { 1 } else { 2 })
                    })
                    .collect();
                if words.is_empty() {
                    return self.one(out);
                }
                let mut cmd = args(&[if reads { "MGET" } else { "MSET" }]);
                cmd.extend(words.into_iter().map(String::into_bytes));
                self.send_together(out, &cmd, accesses, if reads { whole } else { Form::AllOk });
            }
            _ => self.read_stream(out, rng),
        }
    }

    /// Adds an XREAD of the entries that are new to the connection, which waits for them for a
    /// while.
    fn read_stream(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let key = Key::new(out.database, Kind::Stream, rng.below(KEYS));
        let (last, values) = match self.known.streams.get(&key) {
            Some((last, values)) => (last.clone(), values.clone()),
            None => ("0".to_string(), Vec::new()),
        };
        *self.unique += 1;
        let waits_ms = (1 + rng.below(WAITS_MS_MAX)).to_string();
        let cmd = args(&["XREAD", "BLOCK", &waits_ms, "STREAMS", &key.name(), &last]);
        self.send_together(out, &cmd, vec![Access::List(key.0, values)], Form::Entries);
    }

    /// Adds WATCH, and reads of the watched keys. The transaction may follow in the next pipeline.
    fn watch(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let mut looked: Vec<Access> = Vec::new();
        for _ in 0..rng.between(1, COMMANDS_MAX) {
            let access = self.access(out.database, rng, None, true);
            if looked.iter().all(|own| key_of(own) != key_of(&access)) {
                looked.push(access);
            }
        }
        let mut cmd = args(&["WATCH"]);
        cmd.extend(looked.iter().map(|access| key_of(access).name().into_bytes()));
        self.send(out, &cmd, Wanted::Watching);
        out.watches = true;
        for access in looked {
            let cmd = command(&access);
            self.send(out, &cmd, Wanted::Looked(access));
        }
        if rng.chance(1, 2) {
            return;
        }
        for _ in 0..rng.below(3) {
            self.one(out);
        }
        self.end_watched(out, rng);
    }

    /// Adds the transaction that is executed if the watched keys have not changed.
    pub(super) fn end_watched(&mut self, out: &mut Pipeline, rng: &mut Rng) {
        let accesses = self.accesses(out.database, rng);
        out.watches = false;
        self.multi(out, accesses, rng, true);
    }

    /// Adds MULTI, the accesses as commands, with or without the last ones in a script, and EXEC.
    fn multi(&mut self, out: &mut Pipeline, accesses: Vec<Access>, rng: &mut Rng, watches: bool) {
        self.send(out, &args(&["MULTI"]), Wanted::Exactly(b"+OK\r\n".to_vec()));
        let scripted = if rng.chance(1, 4) { accesses.len() / 2 } else { 0 };
        let (alone, last) = accesses.split_at(accesses.len() - scripted);
        let mut commands: Vec<Vec<Vec<u8>>> = alone.iter().map(command).collect();
        if scripted > 0 {
            commands.push(script(last, rng.chance(1, 2)));
        }
        for cmd in commands {
            self.send(out, &cmd, Wanted::Exactly(b"+QUEUED\r\n".to_vec()));
        }
        out.together += 1;
        let form = Form::Each { scripted };
        let together = Together { call_ns: 0, accesses, form, watches };
        self.send(out, &args(&["EXEC"]), Wanted::Together(together));
    }
}

/// The description of a transaction in a line, for reports.
pub(super) fn describe(transaction: &Transaction) -> String {
    let Transaction { call_ns, return_ns, accesses } = transaction;
    let mut text = match return_ns {
        Some(return_ns) => format!("{} to {} us:", call_ns / 1_000, return_ns / 1_000),
        None => format!("from {} us, of unknown outcome:", call_ns / 1_000),
    };
    for access in accesses {
        let Key(key) = key_of(access);
        let name = Key(key).name();
        text += &match access {
            Access::Append(_, value) | Access::Write(_, value) => format!(" {name} <- {value}"),
            Access::List(_, values) => format!(" {name} = {values:?}"),
            Access::Read(_, value) => format!(" {name} = {value:?}"),
        };
    }
    text
}
