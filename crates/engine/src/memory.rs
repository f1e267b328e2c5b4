//! The memory engine's data: Redis' types and commands, with the replies of Redis 7.0 byte for
//! byte where those are specified.
//!
//! All replicas that execute the same writes hold the same state, in the same order: nothing comes
//! from a clock, an address or a random source but [`Context::entropy`].

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Write;

use concord_core::rng::{Rng, splitmix64};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::backend::{Backend, BackendDone, OUT_OF_MEMORY, Outcome, Step, Submitted};
use crate::command::Command;
use crate::copy::{self, BadChunk, Copied, Object, place_of_cursor, ticket_of_cursor};
use crate::databases::DATABASES;
use crate::digest::RangeDigest;
use crate::events::{Classes, Event};
use crate::table::{CommandSpec, CommandTable, Flags, UpperName};
use crate::{Class, Context, NOT_DONE_TOO_LONG, REPLY_BYTES_MAX, resp};

mod bitfield;
mod bits;
mod blocking;
mod compare;
mod dump;
pub(crate) mod float;
mod freeze;
mod geo;
mod geohash;
pub(crate) mod glob;
mod group_commands;
mod groups;
mod hashes;
mod hyperloglog;
mod keys;
mod lcs;
mod lists;
mod object;
mod packed;
mod rdb;
mod rdb_stream;
mod restore;
mod scan;
mod sets;
mod several;
mod sort;
mod sorted;
mod store;
mod stream;
mod stream_dump;
mod stream_info;
mod streams;
mod strings;
mod trig;
mod undo;
mod work;
mod zsets;

use store::{Store, failure};

/// About how many bytes of an object that is copied in pieces are made at a time, before a write to
/// it: a few milliseconds.
const READY_BYTES: usize = 1 << 20;
pub use work::WORK_MAX;

/// The text of an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure(Cow<'static, [u8]>);

const fn fixed(text: &'static [u8]) -> Failure {
    Failure(Cow::Borrowed(text))
}

const WRONG_TYPE: Failure =
    fixed(b"WRONGTYPE Operation against a key holding the wrong kind of value");
const SYNTAX: Failure = fixed(b"ERR syntax error");
const NOT_AN_INTEGER: Failure = fixed(b"ERR value is not an integer or out of range");
const NOT_A_FLOAT: Failure = fixed(b"ERR value is not a valid float");
const NOT_POSITIVE: Failure = fixed(b"ERR value is out of range, must be positive");
const OUT_OF_RANGE: Failure = fixed(b"ERR value is out of range");
const OVERFLOW: Failure = fixed(b"ERR increment or decrement would overflow");
const NOT_FINITE: Failure = fixed(b"ERR increment would produce NaN or Infinity");
/// The largest number of elements that a random choice with repetition returns (Redis has no
/// bound).
const REPEATED_MAX: u64 = 1 << 20;

type Handler = fn(&mut Call<'_>) -> Result<(), Failure>;

/// One command while it executes. A handler that fails has changed nothing; what it appended to
/// the reply is cut off.
struct Call<'a> {
    store: &'a mut Store,
    /// The name first; as many as the command's arity wants.
    args: &'a [&'a [u8]],
    reply: &'a mut Vec<u8>,
    resp3: bool,
    entropy: u64,
    /// The database of a command on all keys of one.
    database: u8,
    /// The time of the record; of a read: the reader's.
    now_ms: u64,
}

impl Call<'_> {
    fn rng(&self) -> Rng {
        Rng::new(self.entropy)
    }

    fn null(&mut self) {
        resp::null(self.reply, self.resp3);
    }

    fn integer(&mut self, value: i64) {
        resp::integer(self.reply, value);
    }

    /// This happened to a key.
    #[inline]
    fn raise(&mut self, class: Classes, name: &'static str, key: &[u8]) {
        self.store.raised.raise(class, name, key);
    }

    /// The same, and deletes the key if it is empty.
    fn raise_taken(&mut self, class: Classes, name: &'static str, key: &[u8]) {
        self.store.raised.raise(class, name, key);
        self.store.raise_if_gone(key);
    }

    fn wrong_arity(&self) -> Failure {
        wrong_arity(&UpperName::of(self.args[0]))
    }
}

fn wrong_arity(name: &UpperName) -> Failure {
    failure(format!("ERR wrong number of arguments for '{}' command", name.lower()))
}

/// An argument as an integer.
fn integer(text: &[u8]) -> Result<i64, Failure> {
    resp::number(text).ok_or(NOT_AN_INTEGER)
}

/// A number of elements wanted, not negative.
fn count(text: &[u8]) -> Result<usize, Failure> {
    let value = resp::number(text).ok_or(NOT_POSITIVE)?;
    usize::try_from(value).map_err(|_| NOT_POSITIVE)
}

/// A number of elements wanted, negative for a choice with repetition.
fn random_count(text: &[u8]) -> Result<i64, Failure> {
    match integer(text)? {
        i64::MIN => Err(failure(format!(
            "ERR value is out of range, value must between {} and {}",
            -i64::MAX,
            i64::MAX
        ))),
        value if value < 0 && value.unsigned_abs() > REPEATED_MAX => Err(OUT_OF_RANGE),
        value => Ok(value),
    }
}

/// The half-open range that `start..=stop` means in a sequence, negative from its end.
fn range_of(start: i64, stop: i64, length: usize) -> core::ops::Range<usize> {
    let length = length as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(length - 1);
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}

/// Indices for a random choice: `count` different ones, or with repetition if it is negative.
fn random_indices(rng: &mut Rng, count: i64, length: usize) -> Vec<usize> {
    if count < 0 {
        return (0..count.unsigned_abs()).map(|_| rng.below(length as u64) as usize).collect();
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count >= length {
        return (0..length).collect();
    }
    // Floyd's algorithm: each subset of this size is equally likely.
    let mut chosen = BTreeSet::new();
    for highest in length - count..length {
        let drawn = rng.below(highest as u64 + 1) as usize;
        if !chosen.insert(drawn) {
            chosen.insert(highest);
        }
    }
    chosen.into_iter().collect()
}

/// The memory engine's data.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    /// By name in upper case: the handler, the specification, and whether the command's work is
    /// counted.
    handlers: HashMap<&'static [u8], (Handler, CommandSpec, bool), FxBuildHasher>,
    table: CommandTable,
    /// 0: no limit.
    memory_bytes_max: u64,
    /// The most that the data ever took.
    peak_bytes: u64,
    /// Whether a script or a transaction with scripts is being executed, whose commands share a
    /// bound of replies.
    is_in_script: bool,
    /// Whether a script is being executed: each of its commands has its own bound of work, and a
    /// cost.
    runs_script: bool,
    /// Whether it is a script outside a transaction, whose interpreter bounds the replies of its
    /// commands.
    is_alone: bool,
    /// About how many bytes of an object that is copied in pieces are made at a time.
    ready_bytes: usize,
}

impl Memory {
    /// No keys. The data is full when it takes more than `memory_bytes_max` (0: no limit); only the
    /// ordering node asks ([`crate::Engine::is_full`]).
    #[must_use]
    pub fn new(memory_bytes_max: u64) -> Memory {
        let table = CommandTable::memory();
        let mut handlers: HashMap<&'static [u8], (Handler, CommandSpec, bool), FxBuildHasher> =
            HashMap::default();
        let families = [
            &strings::HANDLERS[..],
            &bits::HANDLERS[..],
            &hashes::HANDLERS[..],
            &lists::HANDLERS[..],
            &sets::HANDLERS[..],
            &zsets::HANDLERS[..],
            &keys::HANDLERS[..],
            &several::HANDLERS[..],
            &blocking::HANDLERS[..],
            &streams::HANDLERS[..],
            &group_commands::HANDLERS[..],
            &stream_info::HANDLERS[..],
            &sort::HANDLERS[..],
            &object::HANDLERS[..],
            &bitfield::HANDLERS[..],
            &geo::HANDLERS[..],
            &hyperloglog::HANDLERS[..],
            &lcs::HANDLERS[..],
            &restore::HANDLERS[..],
        ];
        for &(name, handler) in families.iter().flat_map(|family| family.iter()) {
            if let Some(spec) = table.find(name) {
                handlers.insert(name, (handler, spec.clone(), work::is_counted(name)));
            }
        }
        let store = Store::new(WORK_MAX);
        Memory {
            store,
            handlers,
            table,
            memory_bytes_max,
            peak_bytes: 0,
            is_in_script: false,
            runs_script: false,
            is_alone: false,
            ready_bytes: READY_BYTES,
        }
    }

    /// Sets the number of bytes of a partly copied object that are encoded at a time before a write
    /// to it: simulations have few, so that writes wait for several steps.
    #[must_use]
    pub fn with_ready_bytes(self, ready_bytes: usize) -> Memory {
        Memory { ready_bytes, ..self }
    }

    /// Sets the number of elements at which one command may look, in place of [`WORK_MAX`]; the
    /// same at all replicas.
    #[must_use]
    pub fn with_work_max(mut self, work_max: u64) -> Memory {
        self.store = Store::new(work_max);
        self
    }

    fn execute(
        &mut self,
        class: Class,
        command: &Command<'_>,
        context: &Context,
        entropy: u64,
        reply: &mut Vec<u8>,
    ) {
        let start = reply.len();
        let mut on_stack: [&[u8]; 8] = [&[]; 8];
        let on_heap: Vec<&[u8]>;
        let argc = command.argc();
        let args = if argc <= on_stack.len() {
            for (to, from) in on_stack.iter_mut().zip(command.args()) {
                *to = from;
            }
            &on_stack[..argc]
        } else {
            on_heap = command.args().collect();
            &on_heap
        };
        let database = command.database();
        let raised = self.store.raised.count();
        if let Err(failure) = self.run(class, args, context, (entropy, database), reply) {
            self.store.raised.forget_from(raised);
            reply.truncate(start);
            resp::error(reply, &failure.0);
        }
        if !self.is_alone {
            self.store.work.wrote(reply.len() - start);
        }
    }

    fn run(
        &mut self,
        class: Class,
        args: &[&[u8]],
        context: &Context,
        (entropy, database): (u64, u8),
        reply: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let name = UpperName::of(args[0]);
        let Some((handler, spec, is_counted)) = self.handlers.get(name.bytes()) else {
            return self.run_other(&name, args, context.resp3, reply);
        };
        if !spec.accepts(args.len()) {
            return Err(wrong_arity(&name));
        }
        let flags = match spec.class() {
            Some(_) => spec.flags,
            None => self.subcommand(&name, args)?.flags,
        };
        if class == Class::Read && flags.has(Flags::WRITE) {
            return Err(fixed(b"ERR a write was submitted as a read"));
        }
        if !flags.has(Flags::WRITE) {
            self.store.work.may_read()?;
        }
        if *is_counted {
            self.store.work.spend(work::cost(&self.store, name.bytes(), args))?;
        }
        let (store, resp3, now_ms) = (&mut self.store, context.resp3, context.now_ms);
        handler(&mut Call { store, args, reply, resp3, entropy, database, now_ms })
    }

    /// The subcommand that `args` name, if they are as many as it wants.
    fn subcommand(&self, name: &UpperName, args: &[&[u8]]) -> Result<&CommandSpec, Failure> {
        let sub = args.get(1).copied().unwrap_or_default();
        let Some(spec) = self.table.find_sub(name.bytes(), sub) else {
            let head = &b"ERR unknown subcommand '"[..];
            let shown = &sub[..sub.len().min(128)];
            return Err(failure([head, shown, b"'. Try ", name.bytes(), b" HELP."].concat()));
        };
        if spec.accepts(args.len()) {
            return Ok(spec);
        }
        let name = &spec.name;
        Err(failure(format!("ERR wrong number of arguments for '{name}' command")))
    }

    fn needs_memory(&self, command: &Command<'_>) -> bool {
        let spec = self.table.spec_of(command.name(), command.args().nth(1));
        spec.is_some_and(|spec| spec.accepts(command.argc()) && spec.flags.has(Flags::DENYOOM))
    }

    /// COMMAND, INFO (for [`mod@crate::info`]), DEBUG DIGEST-VALUE of one key (for WATCH), and what
    /// there is not.
    fn run_other(
        &self,
        name: &UpperName,
        args: &[&[u8]],
        resp3: bool,
        reply: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if name.is(b"INFO") {
            let (used, peak) = (self.store.used_bytes(), self.peak_bytes);
            let mut text = format!("used_memory:{used}\r\nused_memory_peak:{peak}\r\n");
            // With one database the shim knows enough.
            let is_shared = self.store.count() != self.store.count_of(0);
            for database in (0..DATABASES).filter(|_| is_shared) {
                let keys = self.store.count_of(database);
                let _ = write!(text, "keys_db{database}:{keys}\r\n");
            }
            resp::bulk(reply, text.as_bytes());
            return Ok(());
        }
        if let (b"DEBUG", [_, b"DIGEST-VALUE", key]) = (name.bytes(), args) {
            resp::array(reply, 1);
            let digest = format!("{:016x}", dump::digest(&self.store, key));
            resp::simple(reply, &digest);
            return Ok(());
        }
        if !name.is(b"COMMAND") {
            return Err(unknown(args));
        }
        let Some(sub) = args.get(1) else {
            self.table.encode_all(reply, resp3);
            return Ok(());
        };
        match UpperName::of(sub).bytes() {
            b"COUNT" => self.table.encode_count(reply),
            b"INFO" => self.table.encode_info(reply, &args[2..], resp3),
            b"DOCS" => self.table.encode_docs(reply, &args[2..], resp3),
            _ => self.subcommand(name, args).map(|_| ())?,
        }
        Ok(())
    }
}

/// Redis' error for an unknown command, with the beginning of its arguments.
fn unknown(args: &[&[u8]]) -> Failure {
    let printable = |bytes: &[u8], limit: usize| -> Vec<u8> {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        bytes[..end.min(limit)].to_vec()
    };
    let mut shown = Vec::new();
    for arg in &args[1..] {
        if shown.len() >= 128 {
            break;
        }
        let limit = 128 - shown.len();
        shown.push(b'\'');
        shown.extend(printable(arg, limit));
        shown.extend(b"' ");
    }
    let name = printable(args[0], 128);
    let start = &b"ERR unknown command '"[..];
    failure([start, &name, b"', with args beginning with: ", &shown].concat())
}

impl Memory {
    /// Whether the replies to a write may be longer together than a reply may be: for each of its
    /// arguments a command answers all data at most, beside what it says of it.
    fn may_answer_long(&self, step: &Step<'_>) -> bool {
        const TIMES: u64 = 4;
        let places: u64 = step.commands.iter().map(|command| command.argc() as u64).sum();
        let answered = self.store.used_bytes().saturating_mul(TIMES * places);
        step.class == Class::Write
            && answered > REPLY_BYTES_MAX as u64
            && (step.commands.len() > 1 || step.commands.iter().any(answers_data))
    }

    /// The replies from `start` on: what they are to is undone if they are longer together than a
    /// reply may be.
    fn end_long(&mut self, reply: &mut Vec<u8>, start: usize) {
        if reply.len() - start <= REPLY_BYTES_MAX && !self.store.work.was_long() {
            return self.store.end_undo();
        }
        self.store.undo();
        self.store.raised.take();
        reply.truncate(start);
        reply.shrink_to(REPLY_BYTES_MAX);
        reply.extend_from_slice(NOT_DONE_TOO_LONG);
    }
}

/// Whether the reply to `command` may hold many values: commands that write and answer a number, or
/// one value, do not.
fn answers_data(command: &Command<'_>) -> bool {
    const SHORT: &[u8] = b" SET SETNX SETEX PSETEX MSET MSETNX APPEND SETRANGE SETBIT INCRBY \
        INCRBYFLOAT DECRBY DEL UNLINK EXPIRE PEXPIRE EXPIREAT PEXPIREAT GETSET LPUSH RPUSH LPUSHX \
        RPUSHX LREM LTRIM LSET LMOVE BLMOVE RPOPLPUSH BRPOPLPUSH HSET HMSET HSETNX HDEL HINCRBY \
        HINCRBYFLOAT SADD SREM SMOVE ZADD ZREM ZINCRBY XADD XACK XDEL PFADD GEOADD RENAME COPY ";
    let name = UpperName::of(command.name());
    let is_short = SHORT.split(|byte| *byte == b' ').any(|own| name.is(own));
    command.argc() > 2 && !is_short
}

impl Backend for Memory {
    fn submit(&mut self, context: &Context, step: &Step<'_>, reply: &mut Vec<u8>) -> Submitted {
        if !self.is_in_script {
            self.store.work.begin();
        }
        if let (true, Some(key)) = (step.delete_first, step.key) {
            self.store.expire(key);
        }
        step.due.iter().for_each(|key| self.store.expire(key));
        let mut entropy = context.entropy;
        // As in Redis, a transaction is refused as a whole.
        let refused = context.memory_full && step.commands.iter().any(|c| self.needs_memory(c));
        if refused {
            resp::error(reply, OUT_OF_MEMORY);
        }
        let start = reply.len();
        let may_undo = !self.is_in_script && !refused && self.may_answer_long(step);
        if may_undo {
            self.store.begin_undo();
        }
        for (index, command) in step.commands.iter().enumerate().filter(|_| !refused) {
            if !self.is_in_script || self.runs_script {
                self.store.work.begin_command();
            }
            self.store.raised.begin(index);
            let before = self.store.used_bytes();
            self.execute(step.class, command, context, entropy, reply);
            self.store.work.moved(self.store.used_bytes().abs_diff(before));
            // Commands of one transaction draw differently.
            entropy = splitmix64(entropy);
        }
        if step.commands.len() > 1 {
            self.store.raised.begin(0);
        }
        if may_undo {
            self.end_long(reply, start);
        }
        self.peak_bytes = self.peak_bytes.max(self.store.used_bytes());
        let exists = match (step.want_exists, step.key) {
            (true, Some(key)) => Some(self.store.get(key).is_some()),
            _ => None,
        };
        Submitted::Done(Outcome { exists, ..Outcome::default() })
    }

    fn poll(&mut self) -> Option<BackendDone> {
        None
    }

    fn commands(&self) -> Option<&CommandTable> {
        Some(&self.table)
    }

    fn want_events(&mut self, classes: Classes) -> bool {
        self.store.raised.want(classes);
        true
    }

    fn take_events(&mut self) -> Vec<(usize, Event)> {
        self.store.raised.take()
    }

    fn begin_script(&mut self) {
        self.store.work.begin();
        self.is_in_script = true;
    }

    fn end_script(&mut self, _class: Class, _reply: &mut Vec<u8>) -> Submitted {
        self.is_in_script = false;
        Submitted::Done(Outcome::default())
    }

    fn begin_undo(&mut self, alone: bool) {
        (self.runs_script, self.is_alone) = (true, alone);
        self.store.work.begin_script();
        self.store.begin_undo();
    }

    fn end_undo(&mut self, stays: bool) {
        (self.runs_script, self.is_alone) = (false, false);
        self.store.work.end_script();
        match stays {
            true => self.store.end_undo(),
            false => self.store.undo(),
        }
    }

    fn spent(&self) -> u64 {
        self.store.work.spent()
    }

    fn prepare_copy(&mut self) -> bool {
        true
    }

    fn end_copy(&mut self) {
        self.store.frozen.clear();
    }

    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        Some(dump::copy(&mut self.store, from, bytes_max))
    }

    fn copy_keys(&mut self, keys: &[Vec<u8>], wanted: (usize, usize), onto: u64) -> Option<Copied> {
        Some(dump::copy_keys(&mut self.store, keys, wanted, ticket_of_cursor(onto)))
    }

    fn make_ready(&mut self, keys: &[&[u8]]) -> bool {
        self.store.make_ready(keys, self.ready_bytes)
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        copy::cursor(place_of_cursor(cursor), self.store.frozen.fork(ticket_of_cursor(cursor)))
    }

    fn release_copy(&mut self, cursor: u64) {
        self.store.frozen.release(ticket_of_cursor(cursor));
    }

    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        // Events of copied data are earlier.
        let wanted = self.store.raised.wanted();
        self.store.raised.want(Classes::default());
        for object in objects {
            if !dump::install(&mut self.store, object) {
                return Err(BadChunk);
            }
        }
        self.store.raised.want(wanted);
        self.peak_bytes = self.peak_bytes.max(self.store.used_bytes());
        Ok(Submitted::Done(Outcome::default()))
    }

    fn clear(&mut self) -> Submitted {
        self.store.clear();
        self.store.raised.want(Classes::default());
        Submitted::Done(Outcome::default())
    }

    fn lost(&self) -> bool {
        false
    }

    fn keys(&self) -> u64 {
        self.store.count()
    }

    fn memory_bytes(&self) -> u64 {
        self.store.used_bytes()
    }

    fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    fn digest(&self) -> Option<u64> {
        Some(self.store.digest())
    }

    fn digest_range(
        &self,
        first: u16,
        salt: u64,
        deadline: &dyn Fn(&[u8]) -> Option<u64>,
    ) -> Option<RangeDigest> {
        Some(self.store.digest_range(first, salt, deadline))
    }

    fn damage(&mut self, which: u64) -> Option<u16> {
        self.store.damage(which)
    }
}

#[cfg(test)]
mod tests;
