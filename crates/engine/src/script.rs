//! Scripts (EVAL) of an engine that executes them itself: what a script is, and what it may do.
//!
//! The interpreter is another crate's ([`Interpreter`]). Every replica executes a script, so that a
//! script must do the same on each: its clock and randomness are the record's ([`Context`]), and
//! what it is told comes in an order that depends on the data alone. Each of its commands runs like
//! one that a client sent, times to live included, and nothing comes in between.
//!
//! A script may take seconds, and a replica must say meanwhile that it lives. So an interpreter
//! executes a long script in slices ([`Paused`]), which are counted in units of cost and not by a
//! clock: a unit is about what an instruction of Lua takes, 10 ns. Between two slices nothing else
//! is executed. A script that costs too much is stopped, and all that it has done is undone: keys,
//! times to live, events, and what it published.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use sha1::Digest;

use crate::acl::sent::{self, Acting};
use crate::backend::{Backend, OUT_OF_MEMORY, Published, Submitted};
use crate::command::{ARGS_MAX, Command, CommandBuf, TOO_MANY_ARGS};
use crate::databases::{self, Localized, Names, localize, may_change, of_key, own_name, show};
use crate::table::{CommandSpec, Flags, UpperName};
use crate::ttl::{Shimmed, is_call, step_of};
use crate::{Class, Context, NOT_DONE_TOO_LONG, Progress, REPLY_BYTES_MAX, resp};
use crate::{keys, resp_scan, several};

/// A script with its arguments.
#[derive(Clone, Debug)]
pub struct Script<'a> {
    /// As the client sent it: its SHA-1 names it.
    pub text: &'a [u8],
    /// The index at which the code begins: after a first line `#!lua ...`, whose end counts as a
    /// line.
    pub code_at: usize,
    /// KEYS.
    pub keys: &'a [&'a [u8]],
    /// ARGV.
    pub args: &'a [&'a [u8]],
    /// The reply is encoded as RESP3.
    pub resp3: bool,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The text is that of a library, of which this function is called.
    pub function: Option<&'a [u8]>,
}

/// The commands and data that a script can use.
pub trait Host {
    /// Executes one command, name first, and appends its reply in RESP2 or RESP3. Returns what that
    /// has cost beside its arguments and its reply: the same at all replicas.
    fn call(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) -> u64;

    /// Whether the user who runs the script may execute a command; `None` if there is no command of
    /// this name.
    fn may(&mut self, args: &[&[u8]]) -> Option<bool>;
}

/// The progress of a script.
#[derive(Debug)]
pub enum Ran {
    /// The script has ended, and its reply was appended.
    Ended,
    /// The script has cost too much, and the error was appended: its changes have to be undone.
    Stopped,
    /// The script is paused, and continues when told to.
    Paused(Box<dyn Paused>),
}

/// A script between two slices.
pub trait Paused: core::fmt::Debug {
    /// Executes the next slice; see [`Interpreter`].
    fn go_on(self: Box<Self>, host: &mut dyn Host, reply: &mut Vec<u8>) -> Ran;
}

/// Runs a script to its end and appends its reply, or runs a short part of it. What it does must
/// depend on nothing but the script and the host's replies, and it must end.
pub type Interpreter = fn(&Script<'_>, &mut dyn Host, &mut Vec<u8>) -> Ran;

/// About what a slice may cost, in units: some 10 ms.
pub const SLICE_COST: u64 = 1_000_000;
/// The cost that counts for a command that waited for a script.
pub(crate) const WAITED_COST: u64 = 1_000;

/// The largest channel or message, in bytes, as for a client's PUBLISH (`VALUE_BYTES_MAX` of the
/// wire).
const PUBLISHED_VALUE_BYTES_MAX: usize = 1 << 20;
/// The largest total size of messages of a script, or of a transaction with scripts, in bytes: they
/// come with its reply.
const PUBLISHED_BYTES_MAX: usize = 4 << 20;

const NOT_FROM_SCRIPT: &[u8] = b"ERR This Redis command is not allowed from script";
const UNKNOWN: &[u8] = b"ERR Unknown Redis command called from script";
const WRONG_ARITY: &[u8] = b"ERR Wrong number of args calling Redis command from script";
const READ_ONLY: &[u8] = b"ERR Write commands are not allowed from read-only scripts.";
const NOT_LOCAL: &[u8] = b"ERR Script attempted to access a non local key in a cluster node";
const STAYS: &[u8] = b"ERR a script stays in the database of its client (Concord does not support \
    another one in SELECT, MOVE and COPY)";
pub(crate) const FULL: &[u8] =
    b"OOM allow-oom flag is not set on the script, can not run it when used \
    memory > 'maxmemory'";

/// Commands of Redis that no script may call, beside those that the engine's table says so of.
const NOT_IN_SCRIPTS: [&[u8]; 55] = [
    b"ACL",
    b"ASKING",
    b"AUTH",
    b"BGREWRITEAOF",
    b"BGSAVE",
    b"BLMOVE",
    b"BLMPOP",
    b"BLPOP",
    b"BRPOP",
    b"BRPOPLPUSH",
    b"BZMPOP",
    b"BZPOPMAX",
    b"BZPOPMIN",
    b"CLIENT",
    b"CLUSTER",
    b"CONFIG",
    b"DEBUG",
    b"DISCARD",
    b"EVAL",
    b"EVALSHA",
    b"EVALSHA_RO",
    b"EVAL_RO",
    b"EXEC",
    b"FAILOVER",
    b"FCALL",
    b"FCALL_RO",
    b"FUNCTION",
    b"HELLO",
    b"LATENCY",
    b"MIGRATE",
    b"MODULE",
    b"MONITOR",
    b"MULTI",
    b"PSUBSCRIBE",
    b"PSYNC",
    b"PUNSUBSCRIBE",
    b"QUIT",
    b"REPLCONF",
    b"REPLICAOF",
    b"RESET",
    b"ROLE",
    b"SAVE",
    b"SCRIPT",
    b"SHUTDOWN",
    b"SLAVEOF",
    b"SLOWLOG",
    b"SSUBSCRIBE",
    b"SUBSCRIBE",
    b"SUNSUBSCRIBE",
    b"SYNC",
    b"UNSUBSCRIBE",
    b"UNWATCH",
    b"WAIT",
    b"WATCH",
    b"READONLY",
];

/// The flags of a script's first line (Redis 7.0 `evalExtractShebangFlags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shebang {
    code_at: usize,
    is_there: bool,
    no_writes: bool,
    allow_oom: bool,
}

impl Shebang {
    fn parse(text: &[u8]) -> Result<Shebang, Vec<u8>> {
        if !text.starts_with(b"#!") {
            return Ok(Shebang::default());
        }
        let Some(end) = text.iter().position(|&b| b == b'\n') else {
            return Err(b"ERR Invalid script shebang".to_vec());
        };
        let mut words = text[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let engine = words.next().unwrap_or_default();
        if engine != b"#!lua" {
            return Err([b"ERR Unexpected engine in script shebang: ", engine].concat());
        }
        let mut shebang = Shebang { code_at: end, is_there: true, ..Shebang::default() };
        for word in words {
            let Some(flags) = word.strip_prefix(b"flags=") else {
                return Err([b"ERR Unknown lua shebang option: ", word].concat());
            };
            for flag in flags.split(|&b| b == b',').filter(|flag| !flag.is_empty()) {
                match flag {
                    b"no-writes" => shebang.no_writes = true,
                    b"allow-oom" => shebang.allow_oom = true,
                    b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys" => {}
                    _ => return Err([b"ERR Unexpected flag in script shebang: ", flag].concat()),
                }
            }
        }
        Ok(shebang)
    }
}

/// Puts a push frame in front of `reply[start..]` with the messages that scripts published, three
/// elements each: the node that the client is connected to delivers them when it takes the reply,
/// which is given once however often the request comes.
pub(crate) fn put_published(published: &[Published], reply: &mut Vec<u8>, start: usize) {
    if published.is_empty() {
        return;
    }
    let own = reply.split_off(start);
    resp::push(reply, published.len() * 3);
    for one in published {
        resp::bulk(reply, if one.is_sharded { b"spublish" } else { b"publish" });
        resp::bulk(reply, &one.channel);
        resp::bulk(reply, &one.message);
    }
    reply.extend_from_slice(&own);
}

/// A reply without what scripts published in front of it.
#[must_use]
pub fn own_reply(reply: &[u8]) -> &[u8] {
    match reply.starts_with(b">").then(|| resp::value_length(reply)).flatten() {
        Some(length) => &reply[length..],
        None => reply,
    }
}

/// The messages that scripts published, and the length of the frame with them that precedes the
/// reply.
#[must_use]
pub fn split_published(reply: &[u8]) -> (Vec<Published>, usize) {
    let mut published = Vec::new();
    let length = reply.len() - own_reply(reply).len();
    let mut words = resp_scan::elements(&reply[..length]).filter_map(resp_scan::text);
    while let (Some(kind), Some(channel), Some(message)) =
        (words.next(), words.next(), words.next())
    {
        let (channel, message) = (channel.to_vec(), message.to_vec());
        published.push(Published { is_sharded: kind == b"spublish", channel, message });
    }
    (published, length)
}

/// SHA-1 in lower-case hex, as Redis names scripts.
#[must_use]
pub fn hash_of(script: &[u8]) -> [u8; 40] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 40];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(sha1::Sha1::digest(script)) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    hex
}

/// Whether the first line of a script says that it does not write.
pub(crate) fn declares_no_writes(text: &[u8]) -> bool {
    Shebang::parse(text).is_ok_and(|shebang| shebang.no_writes)
}

/// Whether the first line of a script says that it may write where memory is short.
pub(crate) fn declares_allow_oom(text: &[u8]) -> bool {
    Shebang::parse(text).is_ok_and(|shebang| shebang.allow_oom)
}

/// What holds for the commands of a script.
#[derive(Debug)]
pub(crate) struct Rules {
    context: Context,
    class: Class,
    read_only: bool,
    /// The only key that may be touched, if the record names one.
    own_key: Option<Vec<u8>>,
    /// The database of its keys.
    database: u8,
    /// On whose behalf it runs, if that user may not do everything.
    acting: Option<Arc<Acting>>,
    /// It says that it may write where memory is short. Each command of any other one that needs
    /// memory fails then, whatever it wrote before: Redis lets the rest of a script through once it
    /// has written.
    allows_oom: bool,
    command: CommandBuf,
}

/// A script that waits for its next slice.
#[derive(Debug)]
pub(crate) struct Running {
    paused: Box<dyn Paused>,
    rules: Rules,
    reply: Vec<u8>,
}

/// The shim as a script sees it.
struct Within<'a, B> {
    shim: &'a mut Shimmed<B>,
    rules: &'a mut Rules,
}

impl<B: Backend> Host for Within<'_, B> {
    fn call(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) -> u64 {
        let start = reply.len();
        let before = self.shim.backend().spent();
        if let Err(text) = self.execute(resp3, args, reply) {
            reply.truncate(start);
            resp::error(reply, &text);
        }
        self.shim.backend().spent() - before
    }

    fn may(&mut self, args: &[&[u8]]) -> Option<bool> {
        let table = self.shim.backend().commands()?;
        let name = UpperName::of(args[0]);
        let is_own =
            || table.spec_of(name.bytes(), None).is_some_and(|spec| spec.class().is_some());
        let may = self.rules.acting.as_ref().is_none_or(|acting| acting.may(table, args));
        let is_known = is_own() || self.shim.understood.catalogue().has_call(args);
        is_known.then_some(may)
    }
}

impl<B: Backend> Within<'_, B> {
    fn execute(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) -> Result<(), Vec<u8>> {
        let name = UpperName::of(args.first().copied().unwrap_or_default());
        if NOT_IN_SCRIPTS.contains(&name.bytes()) {
            return Err(NOT_FROM_SCRIPT.to_vec());
        }
        self.must_be_allowed(&name, args)?;
        let looks_at_all = [&b"KEYS"[..], b"SCAN", b"DBSIZE", b"RANDOMKEY"].contains(&name.bytes());
        if self.rules.own_key.is_none() && (looks_at_all || keys::sorts_by_keys(args)) {
            self.shim.look_at_all();
        }
        if self.answer_here(&name, args, reply)? {
            return Ok(());
        }
        if (name.is(b"XREAD") || name.is(b"XREADGROUP")) && waits(args) {
            let text = b" command is not allowed with BLOCK option from scripts";
            return Err([b"ERR ", args[0], &text[..]].concat());
        }
        let names = Names::of(name.bytes());
        let localized = self.localize(&name, args)?;
        let kept: Vec<&[u8]> = localized.iter().flatten().map(|arg| &**arg).collect();
        let args = if localized.is_some() { &kept[..] } else { args };
        let name = if localized.is_some() { UpperName::of(args[0]) } else { name };
        let start = reply.len();
        let (class, flags, places) = self.look_up(&name, args)?;
        if class == Class::Write && self.rules.read_only {
            return Err(READ_ONLY.to_vec());
        }
        let full = self.rules.context.memory_full && !self.rules.allows_oom;
        if full && flags.has(Flags::DENYOOM) {
            return Err(OUT_OF_MEMORY.to_vec());
        }
        if let Some(own) = self.rules.own_key.as_deref()
            && (places.is_empty()
                || places.iter().any(|&at| args[at] != own)
                || keys::sorts_by_keys(args))
        {
            return Err(NOT_LOCAL.to_vec());
        }
        if self.rules.class == Class::Write {
            if self.rules.own_key.is_none() {
                let keys: Vec<&[u8]> = places.iter().map(|&at| args[at]).collect();
                self.shim.touch(&keys);
            }
            places.iter().for_each(|&at| self.shim.delete_if_due(&self.rules.context, args[at]));
        }
        let is_one = places.iter().all(|&at| args[at] == args[places[0]]);
        let key_index = match places.first() {
            Some(&first) if is_one => u8::try_from(first).map_err(|_| SEVERAL_KEYS.to_vec())?,
            Some(_) if several::names_keys(&name) => 0,
            Some(_) => return Err(SEVERAL_KEYS.to_vec()),
            None => 0,
        };
        self.rules.context.entropy = splitmix64(self.rules.context.entropy);
        let context = Context { resp3, memory_full: false, decide: false, ..self.rules.context };
        let mut buffer = core::mem::take(&mut self.rules.command);
        buffer.encode(key_index, args.iter().copied());
        if let Ok(command) = Command::parse(buffer.set_database(self.rules.database)) {
            let progress = self.shim.start(&context, class, &name, &command, reply);
            debug_assert!(progress == Progress::Done, "commands of a script are done at once");
        }
        self.rules.command = buffer;
        if localized.is_some() || names.are_of_all() {
            let own = reply.split_off(start);
            reply.extend_from_slice(&show(names, self.rules.database, own));
        }
        Ok(())
    }

    /// Refuses what the user who runs the script may not do. What is wrong with a command is said
    /// first.
    fn must_be_allowed(&self, name: &UpperName, args: &[&[u8]]) -> Result<(), Vec<u8>> {
        let Some(acting) = &self.rules.acting else { return Ok(()) };
        let is_right = match (name.bytes(), args.len()) {
            (b"PING", argc) => argc <= 2,
            (b"ECHO" | b"SELECT", argc) => argc == 2,
            (b"TIME", argc) => argc == 1,
            (b"PUBLISH" | b"SPUBLISH", argc) => argc == 3,
            _ => self.look_up(name, args).map(|_| true)?,
        };
        match self.shim.backend().commands().filter(|_| is_right) {
            Some(table) => acting.check(table, args),
            None => Ok(()),
        }
    }

    /// The arguments with keys as they are stored, if that changes any.
    fn localize<'c>(
        &self,
        name: &UpperName,
        args: &[&'c [u8]],
    ) -> Result<Option<Localized<'c>>, Vec<u8>> {
        if !may_change(self.rules.database, args) && !name.is(b"MOVE") && !name.is(b"COPY") {
            return Ok(None);
        }
        self.look_up(name, args)?;
        let table = self.shim.backend().commands();
        let spec = table.and_then(|t| t.spec_of(name.bytes(), args.get(1).copied()));
        let all = localize(self.rules.database, spec, name, args);
        let all = all.map_err(|text| text.as_bytes().to_vec())?;
        // As with the Redis engine, whose replicas know of other databases by the requests.
        let goes = all.get(2).is_some_and(|to| of_key(to) != self.rules.database);
        if name.is(b"MOVE") || name.is(b"COPY") && goes {
            return Err(STAYS.to_vec());
        }
        Ok(Some(all))
    }

    /// Answers commands that need no data.
    fn answer_here(
        &mut self,
        name: &UpperName,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) -> Result<bool, Vec<u8>> {
        match (name.bytes(), args) {
            (b"PING", [_]) => resp::simple(reply, "PONG"),
            (b"PING" | b"ECHO", [_, text]) => resp::bulk(reply, text),
            (b"SELECT", [_, number]) if databases::number(number) == Ok(self.rules.database) => {
                reply.extend_from_slice(resp::OK);
            }
            (b"TIME", [_]) => {
                let now_ms = self.rules.context.now_ms;
                resp::array(reply, 2);
                for part in [now_ms / 1000, now_ms % 1000 * 1000] {
                    let mut digits = Vec::new();
                    resp::decimal(&mut digits, part as i64);
                    resp::bulk(reply, &digits);
                }
            }
            (b"PING", _) => {
                return Err(b"ERR wrong number of arguments for 'ping' command".to_vec());
            }
            (b"ECHO" | b"SELECT" | b"TIME", _) if args.len() != 2 => {
                return Err(WRONG_ARITY.to_vec());
            }
            (b"SELECT", _) => return Err(STAYS.to_vec()),
            (b"TIME", _) => return Err(WRONG_ARITY.to_vec()),
            (b"PUBLISH" | b"SPUBLISH", [_, channel, message]) => {
                if self.rules.read_only {
                    return Err(READ_ONLY.to_vec());
                }
                if channel.len().max(message.len()) > PUBLISHED_VALUE_BYTES_MAX {
                    return Err(b"ERR value is larger than 1 MiB (Concord's limit)".to_vec());
                }
                let bytes = self.shim.published_bytes + channel.len() + message.len();
                if bytes > PUBLISHED_BYTES_MAX {
                    return Err(
                        b"ERR a script publishes more than 4 MiB (Concord's limit)".to_vec()
                    );
                }
                self.shim.published_bytes = bytes;
                let (channel, message) = (channel.to_vec(), message.to_vec());
                let is_sharded = name.is(b"SPUBLISH");
                self.shim.published.push(Published { is_sharded, channel, message });
                resp::integer(reply, 0);
            }
            (b"PUBLISH" | b"SPUBLISH", _) => return Err(WRONG_ARITY.to_vec()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The specification of a command in the engine's table.
    fn look_up(
        &self,
        name: &UpperName,
        args: &[&[u8]],
    ) -> Result<(Class, Flags, keys::Places), Vec<u8>> {
        let table = self.shim.backend().commands().ok_or(UNKNOWN)?;
        let mut spec: &CommandSpec = table.find(name.bytes()).ok_or(UNKNOWN)?;
        if spec.class().is_none() {
            let sub = args.get(1).ok_or(WRONG_ARITY)?;
            spec = table.find_sub(name.bytes(), sub).ok_or(UNKNOWN)?;
        }
        if !spec.accepts(args.len()) {
            return Err(WRONG_ARITY.to_vec());
        }
        if args.len() > ARGS_MAX {
            return Err(TOO_MANY_ARGS.into());
        }
        let class = spec.class().ok_or(UNKNOWN)?;
        if spec.flags.has(Flags::NOSCRIPT) {
            return Err(NOT_FROM_SCRIPT.to_vec());
        }
        Ok((class, spec.flags, keys::places(spec, name.bytes(), args)))
    }
}

/// Whether an XREAD or XREADGROUP is told to wait.
fn waits(args: &[&[u8]]) -> bool {
    let is = |arg: &&&[u8], word: &[u8]| arg.eq_ignore_ascii_case(word);
    args.iter().take_while(|arg| !is(arg, b"STREAMS")).any(|arg| is(&arg, b"BLOCK"))
}

const SEVERAL_KEYS: &[u8] =
    b"ERR Concord's memory engine does not support commands over several keys in scripts";

impl<B: Backend> Shimmed<B> {
    /// EVAL, FCALL and their kin, where scripts are executed here. `Pending`: it goes on by
    /// [`Shimmed::run_slice`].
    pub(crate) fn start_script(
        &mut self,
        interpreter: Interpreter,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let start = reply.len();
        // A transaction has begun already, and ends by itself.
        if !self.is_in_exec {
            self.backend_mut().begin_script();
        }
        self.begin_undo();
        let ran = match is_call(&UpperName::of(command.name())) {
            true => self.run_call(interpreter, context, class, command, reply),
            false => self.run_script(interpreter, context, class, command, reply),
        };
        let (ran, rules) = match ran {
            Ok((ran, rules)) => (ran, Some(rules)),
            Err(text) => {
                reply.truncate(start);
                resp::error(reply, &text);
                (Ran::Ended, None)
            }
        };
        match (ran, rules) {
            (Ran::Paused(paused), Some(rules)) => {
                reply.truncate(start);
                self.running = Some(Running { paused, rules, reply: Vec::new() });
                return Progress::Pending;
            }
            (Ran::Stopped, _) => self.end_undo(false),
            (Ran::Ended | Ran::Paused(_), _) => self.end_script_of(reply, start),
        }
        if self.is_in_exec {
            return Progress::Done;
        }
        self.put_published(reply, start);
        self.end_script(context, class, reply)
    }

    /// The next slice of the script that runs; its reply, if it has ended.
    pub(crate) fn run_slice(&mut self) -> Option<Vec<u8>> {
        let Running { paused, mut rules, mut reply } = self.running.take()?;
        let mut within = Within { shim: self, rules: &mut rules };
        match paused.go_on(&mut within, &mut reply) {
            Ran::Paused(paused) => {
                self.running = Some(Running { paused, rules, reply });
                return None;
            }
            Ran::Stopped => self.end_undo(false),
            Ran::Ended => self.end_script_of(&mut reply, 0),
        }
        Some(reply)
    }

    /// Begins to record the script's changes, so that they can be undone.
    fn begin_undo(&mut self) {
        let alone = !self.is_in_exec;
        self.backend_mut().begin_undo(alone);
        self.before_script = (self.published.len(), self.published_bytes, self.expired);
        self.deadlines.begin_undo();
        self.event_buffer.hold();
    }

    /// A script has ended by itself with `reply[start..]`: what it did stays, unless that is longer
    /// than a reply may be.
    fn end_script_of(&mut self, reply: &mut Vec<u8>, start: usize) {
        let is_long = reply.len() - start > REPLY_BYTES_MAX;
        self.end_undo(!is_long);
        if is_long {
            reply.truncate(start);
            reply.extend_from_slice(NOT_DONE_TOO_LONG);
        }
    }

    /// A script has ended: what it did stays, or has not happened.
    fn end_undo(&mut self, stays: bool) {
        self.backend_mut().end_undo(stays);
        self.event_buffer.release(stays);
        if stays {
            return self.deadlines.end_undo();
        }
        self.deadlines.undo();
        let published;
        (published, self.published_bytes, self.expired) = self.before_script;
        self.published.truncate(published);
    }

    /// Ends what [`Backend::begin_script`] began.
    pub(crate) fn end_script(
        &mut self,
        context: &Context,
        class: Class,
        reply: &mut Vec<u8>,
    ) -> Progress {
        match self.backend_mut().end_script(class, reply) {
            Submitted::Done(_) => Progress::Done,
            Submitted::Pending => self.pass_later(context),
        }
    }

    /// On whose behalf a script runs that came with these rules.
    fn acting(&mut self, rules: Option<&[u8]>) -> Result<Option<Arc<Acting>>, Vec<u8>> {
        rules.map(|rules| self.understood.of(rules).map_err(sent::malformed)).transpose()
    }

    /// FCALL and FCALL_RO.
    fn run_call(
        &mut self,
        interpreter: Interpreter,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(Ran, Rules), Vec<u8>> {
        let (args, rules) = sent::split(command.args().collect());
        let acting = self.acting(rules)?;
        let call = self.call_of(context, class, &args)?;
        let flags = call.function.flags;
        let mut rules = Rules {
            context: *context,
            class,
            read_only: call.is_read || flags.no_writes(),
            own_key: None,
            database: command.database(),
            acting,
            allows_oom: flags.allow_oom(),
            command: CommandBuf::new(),
        };
        let own_names: Vec<&[u8]> = call.keys.iter().map(|key| own_name(key)).collect();
        let script = Script {
            text: &call.library.text,
            code_at: call.library.code_at(),
            keys: &own_names,
            args: call.args,
            resp3: context.resp3,
            seed: context.entropy,
            function: Some(&call.function.name),
        };
        let mut within = Within { shim: self, rules: &mut rules };
        let ran = interpreter(&script, &mut within, reply);
        Ok((ran, rules))
    }

    fn run_script(
        &mut self,
        interpreter: Interpreter,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(Ran, Rules), Vec<u8>> {
        let (args, rules) = sent::split(command.args().collect());
        let acting = self.acting(rules)?;
        let [_, text, number, rest @ ..] = &args[..] else {
            return Err(b"ERR wrong number of arguments for 'eval' command".to_vec());
        };
        let number =
            resp::number(number).ok_or(&b"ERR value is not an integer or out of range"[..])?;
        let number = usize::try_from(number)
            .map_err(|_| b"ERR Number of keys can't be negative".to_vec())?;
        let (keys, args) = rest
            .split_at_checked(number)
            .ok_or(&b"ERR Number of keys can't be greater than number of args"[..])?;
        let shebang = Shebang::parse(text)?;
        if context.memory_full && shebang.is_there && !shebang.allow_oom && !shebang.no_writes {
            return Err(FULL.to_vec());
        }
        let is_read = class == Class::Read || command.name().eq_ignore_ascii_case(b"EVAL_RO");
        if is_read && shebang.is_there && !shebang.no_writes {
            return Err(
                b"ERR Can not execute a script with write flag using *_ro command.".to_vec()
            );
        }
        let mut rules = Rules {
            context: *context,
            class,
            read_only: is_read || shebang.no_writes,
            own_key: command.key().map(<[u8]>::to_vec),
            database: command.database(),
            acting,
            allows_oom: shebang.allow_oom,
            command: CommandBuf::new(),
        };
        let own_names: Vec<&[u8]> = keys.iter().map(|key| own_name(key)).collect();
        let (keys, resp3) = (&own_names[..], context.resp3);
        let (code_at, seed, function) = (shebang.code_at, context.entropy, None);
        let script = Script { text, code_at, keys, args, resp3, seed, function };
        let mut within = Within { shim: self, rules: &mut rules };
        let ran = interpreter(&script, &mut within, reply);
        Ok((ran, rules))
    }

    /// Deletes a key whose time has come, before a script looks at it.
    pub(crate) fn delete_if_due(&mut self, context: &Context, key: &[u8]) {
        let (is_due, _) = self.delete_due(context, Class::Write, Some(key));
        if is_due {
            let mut step = step_of(Class::Write, Some(key), &[]);
            step.delete_first = true;
            self.backend_mut().submit(context, &step, &mut Vec::new());
            self.buffer_raised(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_says_what_a_script_may_do() {
        let parse = |text: &str| Shebang::parse(text.as_bytes());
        assert_eq!(parse("return 1"), Ok(Shebang::default()));
        let flags = parse("#!lua flags=no-writes,allow-oom\nreturn 1").unwrap();
        assert!(flags.no_writes && flags.allow_oom && flags.code_at == 31);
        assert!(parse("#!lua").unwrap_err().starts_with(b"ERR Invalid"));
        assert!(parse("#!js\n").unwrap_err().ends_with(b"shebang: #!js"));
        assert!(parse("#!lua name=a\n").unwrap_err().ends_with(b"option: name=a"));
        assert!(parse("#!lua flags=bad\n").unwrap_err().ends_with(b"shebang: bad"));
    }
}
