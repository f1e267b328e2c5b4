//! The pipelines that Redis clients send to a gateway, and the check of its replies.

use std::collections::BTreeSet;

use concord_check::{Access, Operation, Reply};
use concord_core::Rng;
use concord_core::rng::splitmix64;
use concord_engine::databases::stored;
use concord_engine::resp;

use crate::systems::store::gateways::Gateways;
use crate::systems::store::rack::clients::describe;
use crate::systems::store::rack::moves::{Move, elements, ranked};
use crate::systems::store::rack::together::{Known, Together};
use crate::systems::store::seen::is_short_of_room;
use crate::systems::store::totals::RedisCounters;
use crate::systems::store::workload::{Mix, Op, draw, draw_read, is_read, parse_reply};

/// The maximum number of draws until a command fits the others of its group.
const TRIES: usize = 12;
/// The maximum number of keys of a command with several, and of commands in a transaction.
const TOGETHER_MAX: usize = 4;
/// The maximum length of an argument within a transaction, in bytes: the transaction has to fit
/// into one command.
const QUEUED_BYTES_MAX: usize = 16 << 10;
/// The maximum length of a command that is sent in the inline format, in bytes.
const INLINE_BYTES_MAX: usize = 200;
/// The maximum length of a command that is sent as a script, in bytes: with the script it fits into
/// one command.
const SCRIPTED_BYTES_MAX: usize = 16 << 10;
/// A script that calls a command by a name in its arguments, so that it may access any key; and a
/// script that accesses one key, as its text shows.
const ANY_KEY: &str = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";
const ONE_KEY: &str = "return redis.pcall('NAME', KEYS[1], unpack(ARGV))";
/// The first script as two functions, of which one only reads.
const LIBRARY: &str = "#!lua name=swarm
local function run(keys, args) return redis.pcall(args[1], keys[1], unpack(args, 2)) end
redis.register_function('run', run)
redis.register_function{function_name = 'look', callback = run, flags = {'no-writes'}}";
/// One in this number of scripts continues after its command for longer than the memory engine lets
/// a script run before it keeps an interpreter for it. The script is then run once more, and its
/// command must not be executed again.
const LONG_OF: u64 = 64;
const LONG: &str = " for i = 1, 250000 do end return r";
/// The share of pipelines that change a user, if users are shared, in percent.
const CHANGES_PERCENT: u64 = 20;
/// The maximum length of a wrong reply in reports, in characters.
const SHOWN: usize = 200;

/// The way in which the parts of a command with several keys make one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    /// MGET: an array with one reply for each key.
    Array,
    /// DEL, EXISTS: the sum.
    Sum,
    /// MSET: OK.
    AllOk,
    /// EXEC of reads of lists, no two of which may have an element in common.
    Apart,
}

/// The expected reply to a command.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// The reply to an operation, which the check of the history judges.
    One(Operation),
    /// The combined replies to an operation on each key.
    Parts(Combine, Vec<Operation>),
    /// The reply to a pop that waits: that of the first of these operations with an element.
    Popped(Vec<Operation>),
    /// Exactly these bytes.
    Exactly(Vec<u8>),
    /// An error that begins with this text.
    Begins(&'static str),
    /// The reply to HELLO.
    Hello,
    /// The reply to FUNCTION LOAD.
    Loaded,
    /// The reply to ACL SETUSER: success, or an error that a write may end with.
    Changed,
    /// The reply to an ACL DRYRUN of a command that the change before it allows.
    Allowed,
    /// The reply to a move: an element or nil.
    Moved(Move),
    /// The reply to WATCH.
    Watching,
    /// The reply to a read of a watched key.
    Looked(Access),
    /// The reply to a transaction on several keys.
    Together(Together),
}

/// A command that was sent, and whose reply is awaited.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    pub wanted: Wanted,
    /// Whether RESP3 is in force for the command.
    pub resp3: bool,
    /// The connection's database. In histories, keys have the names under which the rack stores
    /// them.
    pub database: u8,
    /// Whether a client knew, before this command was sent, that the function library is loaded.
    pub has_library: bool,
}

impl Awaited {
    /// Whether this reply says that the function library is loaded.
    pub(super) fn is_loaded_by(&self, bytes: &[u8]) -> bool {
        matches!(self.wanted, Wanted::Loaded) && bytes.starts_with(b"$")
    }

    pub(super) fn operations(self) -> Vec<Operation> {
        match self.wanted {
            Wanted::One(operation) => vec![operation],
            Wanted::Moved(moved) => vec![moved.pop],
            Wanted::Parts(_, operations) | Wanted::Popped(operations) => operations,
            Wanted::Exactly(_) | Wanted::Begins(_) | Wanted::Hello | Wanted::Loaded => Vec::new(),
            Wanted::Changed | Wanted::Allowed => Vec::new(),
            Wanted::Watching | Wanted::Looked(_) | Wanted::Together(_) => Vec::new(),
        }
    }

    /// Whether the command belongs to transactions on several keys, which are not operations of the
    /// history.
    pub(super) fn is_together(&self) -> bool {
        matches!(self.wanted, Wanted::Watching | Wanted::Looked(_) | Wanted::Together(_))
    }

    pub(super) fn called(&mut self, at_ns: u64) {
        match &mut self.wanted {
            Wanted::One(operation) => operation.call_ns = at_ns,
            Wanted::Moved(moved) => moved.pop.call_ns = at_ns,
            Wanted::Parts(_, operations) | Wanted::Popped(operations) => {
                operations.iter_mut().for_each(|o| o.call_ns = at_ns);
            }
            Wanted::Together(together) => together.called(at_ns),
            Wanted::Exactly(_)
            | Wanted::Begins(_)
            | Wanted::Hello
            | Wanted::Loaded
            | Wanted::Changed
            | Wanted::Allowed
            | Wanted::Watching
            | Wanted::Looked(_) => {}
        }
    }
}

/// The end of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The last command.
    Well,
    /// Bytes that are not RESP; the gateway closes the connection.
    Garbage,
    /// An incomplete command; the client closes the connection.
    Torn,
    /// The last command, after which the client closes its sending side and reads the replies.
    Shut,
}

/// Commands that are sent without waiting for replies.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub bytes: Vec<u8>,
    /// The end of each command in `bytes`, and its expected reply.
    pub commands: Vec<(usize, Awaited)>,
    /// Whether RESP3 is in force after the pipeline.
    pub resp3: bool,
    /// The database of its keys.
    pub database: u8,
    pub operations: usize,
    pub transactions: u64,
    pub splits: u64,
    pub waits: u64,
    pub scripts: u64,
    /// Those of `scripts` that run for long.
    pub long: u64,
    pub calls: u64,
    pub together: u64,
    pub moves: u64,
    pub inline: u64,
    /// Whether keys are watched after the pipeline.
    pub watches: bool,
}

impl Pipeline {
    /// The counts of the pipeline.
    pub(super) fn counted(&self, end: End) -> RedisCounters {
        RedisCounters {
            pipelines: u64::from(self.commands.len() > 1),
            transactions: self.transactions,
            splits: self.splits,
            waits: self.waits,
            scripts: self.scripts,
            long: self.long,
            calls: self.calls,
            together: self.together,
            moves: self.moves,
            databases: u64::from(self.database > 0),
            inline: self.inline,
            resp3: u64::from(self.resp3),
            garbage: u64::from(end == End::Garbage),
            torn: u64::from(end == End::Torn),
            shut: u64::from(end == End::Shut),
            ..RedisCounters::default()
        }
    }
}

/// Writes a pipeline.
pub(super) struct Writer<'a> {
    pub rng: &'a mut Rng,
    pub mix: &'a Mix,
    pub gateways: &'a Gateways,
    /// A count that makes each value unique.
    pub unique: &'a mut u64,
    pub client: u64,
    /// Whether a client knows that the function library is loaded.
    pub has_library: bool,
    pub reads_only: bool,
    /// The entries of streams that the connection has read.
    pub known: &'a Known,
    /// Whether the connection watches keys, which the pipeline has to end first.
    pub watches: bool,
}

pub(super) fn args(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The command with its key as the rack stores it.
fn named(database: u8, mut cmd: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if has_key(&cmd) {
        cmd[1] = stored(database, &cmd[1]).into_owned();
    }
    cmd
}

/// Whether the first argument is the only key.
fn has_key(cmd: &[Vec<u8>]) -> bool {
    let keyless = [&b"KEYS"[..], b"SCAN", b"DBSIZE", b"RANDOMKEY"];
    cmd.len() > 1 && !keyless.contains(&cmd[0].as_slice())
}

/// Whether a script can execute the command with the same reply: scripts have replies of RESP2.
fn can_be_scripted(cmd: &[Vec<u8>]) -> bool {
    const NAMES: [&[u8]; 15] = [
        b"GET", b"SET", b"DEL", b"GETDEL", b"APPEND", b"EXISTS", b"INCR", b"LPUSH", b"LLEN",
        b"SADD", b"SREM", b"SCARD", b"HSET", b"HDEL", b"HLEN",
    ];
    let length: usize = cmd.iter().map(Vec::len).sum();
    has_key(cmd) && NAMES.contains(&&cmd[0][..]) && length <= SCRIPTED_BYTES_MAX
}

impl Writer<'_> {
    /// Writes `count` commands, or groups of commands.
    pub(super) fn write(&mut self, count: u64, resp3: bool, end: End) -> Pipeline {
        let mut out = Pipeline {
            bytes: Vec::new(),
            commands: Vec::new(),
            resp3,
            database: 0,
            operations: 0,
            transactions: 0,
            splits: 0,
            waits: 0,
            scripts: 0,
            long: 0,
            calls: 0,
            together: 0,
            moves: 0,
            inline: 0,
            watches: self.watches,
        };
        if self.gateways.databases_percent > 0 {
            self.select(&mut out);
        }
        if out.watches {
            let mut rng = Rng::new(splitmix64(*self.unique ^ self.client << 32 ^ 1 << 59));
            self.end_watched(&mut out, &mut rng);
        }
        for _ in 0..count {
            if !out.watches {
                self.any(&mut out);
            }
        }
        if self.gateways.users && !self.reads_only {
            self.user(&mut out);
        }
        match end {
            End::Well | End::Shut => {}
            End::Garbage => self.garbage(&mut out),
            End::Torn => self.torn(&mut out),
        }
        out
    }

    fn any(&mut self, out: &mut Pipeline) {
        if let Some(mut rng) = self.draws_together() {
            return self.together(out, &mut rng);
        }
        if let Some(mut rng) = self.draws_move() {
            return self.moves(out, &mut rng);
        }
        if !self.reads_only && self.rng.chance(self.gateways.multi_percent, 100) {
            return self.transaction(out);
        }
        if self.rng.chance(self.gateways.split_percent, 100) {
            return self.split(out);
        }
        match self.rng.below(24) {
            0 => {
                let text = format!("echo{}", self.unique);
                let mut reply = Vec::new();
                resp::bulk(&mut reply, text.as_bytes());
                self.send(out, &args(&["ECHO", &text]), Wanted::Exactly(reply));
            }
            1 => self.hello(out),
            2 => self.refused(out),
            _ => self.one(out),
        }
    }

    fn draw(&mut self) -> Vec<Vec<u8>> {
        *self.unique += 1;
        let Op { cmd, .. } = if self.reads_only {
            draw_read(self.rng, self.mix)
        } else {
            draw(self.rng, self.mix, *self.unique)
        };
        cmd
    }

    pub(super) fn operation(&mut self, cmd: Vec<Vec<u8>>) -> Operation {
        *self.unique += 1;
        Operation {
            client: self.client,
            ordinal: Some(*self.unique),
            call_ns: 0,
            return_ns: None,
            cmd,
            reply: None,
            path: None,
        }
    }

    pub(super) fn send(&mut self, out: &mut Pipeline, cmd: &[Vec<u8>], wanted: Wanted) {
        self.encode(out, cmd);
        self.expect(out, wanted);
    }

    fn expect(&self, out: &mut Pipeline, wanted: Wanted) {
        out.operations += match &wanted {
            Wanted::One(_) | Wanted::Moved(_) | Wanted::Together(_) => 1,
            Wanted::Parts(_, operations) | Wanted::Popped(operations) => operations.len(),
            Wanted::Exactly(_)
            | Wanted::Begins(_)
            | Wanted::Hello
            | Wanted::Loaded
            | Wanted::Changed
            | Wanted::Allowed
            | Wanted::Watching
            | Wanted::Looked(_) => 0,
        };
        let (resp3, database, has_library) = (out.resp3, out.database, self.has_library);
        let awaited = Awaited { wanted, resp3, database, has_library };
        out.commands.push((out.bytes.len(), awaited));
    }

    fn encode(&mut self, out: &mut Pipeline, cmd: &[Vec<u8>]) {
        let is_plain = |arg: &Vec<u8>| {
            !arg.is_empty() && arg.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'.')
        };
        let length: usize = cmd.iter().map(Vec::len).sum();
        if self.rng.chance(1, 8) && length < INLINE_BYTES_MAX && cmd.iter().all(is_plain) {
            out.inline += 1;
            out.bytes.extend_from_slice(&cmd.join(&b' '));
            out.bytes.extend_from_slice(if self.rng.chance(1, 2) { b"\n" } else { b"\r\n" });
        } else {
            as_array(cmd, &mut out.bytes);
        }
    }

    pub(super) fn one(&mut self, out: &mut Pipeline) {
        let cmd = self.draw();
        let is_pop = cmd.len() == 2 && matches!(&cmd[0][..], b"LPOP" | b"RPOP");
        // Decided by a separate draw, so that the other draws are the same whether clients wait or
        // not.
        let drawn = splitmix64(*self.unique ^ self.client << 32);
        if is_pop && drawn % 100 < self.gateways.waiting_percent {
            return self.wait(out, cmd, drawn);
        }
        let scripted = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 62);
        match self.as_script(out, &cmd, scripted) {
            Some(script) => self.encode(out, &script),
            None => self.encode(out, &cmd),
        }
        let operation = self.operation(named(out.database, cmd));
        self.expect(out, Wanted::One(operation));
    }

    /// Sends the command as a script, or as a call of a function, if so drawn. Decided by a
    /// separate draw, so that the other draws are the same without scripts.
    fn as_script(
        &mut self,
        out: &mut Pipeline,
        cmd: &[Vec<u8>],
        drawn: u64,
    ) -> Option<Vec<Vec<u8>>> {
        if drawn % 100 >= self.gateways.scripts_percent || !can_be_scripted(cmd) {
            return None;
        }
        let (name, key, rest) = (&cmd[0], &cmd[1], &cmd[2..]);
        let only_reads = is_read(cmd) && drawn >> 8 & 1 == 0 || self.reads_only;
        let one_key = ONE_KEY.replace("NAME", &String::from_utf8_lossy(name));
        let (head, named) = match (drawn >> 9) % 4 {
            0 => ([if only_reads { "EVAL_RO" } else { "EVAL" }, &one_key], false),
            1 => ([if only_reads { "EVAL_RO" } else { "EVAL" }, ANY_KEY], true),
            _ if only_reads => (["FCALL_RO", "look"], true),
            _ => (["FCALL", "run"], true),
        };
        if head[0].starts_with("FCALL") {
            out.calls += 1;
            let is_loading =
                !self.reads_only && (!self.has_library || (drawn >> 11).is_multiple_of(16));
            if is_loading {
                let load = args(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
                self.send(out, &load, Wanted::Loaded);
            }
        } else {
            out.scripts += 1;
        }
        let is_long = head[0].starts_with("EVAL") && (drawn >> 16).is_multiple_of(LONG_OF);
        let long = head[1].replace("return ", "local r = ") + LONG;
        let code = if is_long { &long } else { head[1] };
        out.long += u64::from(is_long);
        let mut script = args(&[head[0], code, "1"]);
        script.push(key.clone());
        script.extend(named.then(|| name.clone()));
        script.extend_from_slice(rest);
        Some(script)
    }

    /// Selects one of a few databases for the commands that follow. Each pipeline does so, since a
    /// new connection begins in database 0. Decided by a separate draw, so that the other draws are
    /// the same without databases.
    fn select(&mut self, out: &mut Pipeline) {
        let drawn = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 63);
        let is_other = drawn % 100 < self.gateways.databases_percent;
        out.database = if is_other { [1, 2, 15][(drawn >> 32) as usize % 3] } else { 0 };
        let select = args(&["SELECT", &out.database.to_string()]);
        self.send(out, &select, Wanted::Exactly(b"+OK\r\n".to_vec()));
    }

    /// Adds a pop of one key or of two that waits for a while.
    fn wait(&mut self, out: &mut Pipeline, pop: Vec<Vec<u8>>, drawn: u64) {
        let mut pops = vec![pop];
        for _ in 0..TRIES {
            let other = self.draw();
            let is_like = other.len() == 2 && other[0] == pops[0][0] && other[1] != pops[0][1];
            if is_like && pops.len() < 2 && drawn & 1 == 0 {
                pops.push(other);
            }
        }
        let mut cmd = args(&[if pops[0][0] == b"LPOP" { "BLPOP" } else { "BRPOP" }]);
        cmd.extend(pops.iter().map(|pop| pop[1].clone()));
        cmd.push(format!("0.{:03}", 1 + (drawn >> 8) % 90).into_bytes());
        out.waits += 1;
        let named = pops.into_iter().map(|pop| named(out.database, pop));
        let operations = named.map(|pop| self.operation(pop)).collect();
        self.send(out, &cmd, Wanted::Popped(operations));
    }

    /// Now and then allows the connection's own user to read another key, and no other; no other
    /// connection changes that user.
    fn user(&mut self, out: &mut Pipeline) {
        let drawn = splitmix64(*self.unique ^ self.client << 32 ^ 1 << 61);
        if drawn % 100 >= CHANGES_PERCENT {
            return;
        }
        let (name, key) = (format!("u{}", self.client), format!("{drawn:x}"));
        let key_rule = format!("~{key}");
        let change = args(&["ACL", "SETUSER", &name, "resetkeys", "+get", &key_rule]);
        self.send(out, &change, Wanted::Changed);
        self.send(out, &args(&["ACL", "DRYRUN", &name, "GET", &key]), Wanted::Allowed);
    }

    fn hello(&mut self, out: &mut Pipeline) {
        out.resp3 = self.rng.chance(1, 2);
        let version = if out.resp3 { "3" } else { "2" };
        self.send(out, &args(&["HELLO", version]), Wanted::Hello);
    }

    fn refused(&mut self, out: &mut Pipeline) {
        let (words, error): (&[&str], _) = match self.rng.below(5) {
            0 => (&["NOSUCH", "x"], "-ERR unknown command"),
            1 => (&["GET"], "-ERR wrong number of arguments"),
            2 => (&["PFDEBUG", "a", "b"], "-ERR Concord does not support administration"),
            3 => (&["REPLICAOF", "host", "1"], "-ERR Concord replicates by itself"),
            _ => (&["EXEC"], "-ERR EXEC without MULTI"),
        };
        self.send(out, &args(words), Wanted::Begins(error));
    }

    /// Adds MULTI, commands on one key, and EXEC, or something that prevents their execution.
    fn transaction(&mut self, out: &mut Pipeline) {
        let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
        for _ in 0..TRIES {
            let cmd = self.draw();
            let fits = has_key(&cmd) && cmd.iter().all(|arg| arg.len() <= QUEUED_BYTES_MAX);
            let is_same = commands.first().is_none_or(|first| first.get(1) == cmd.get(1));
            if fits && is_same && commands.len() < TOGETHER_MAX {
                commands.push(cmd);
            }
        }
        if commands.is_empty() {
            return self.one(out);
        }
        let fate = self.rng.below(8);
        self.send(out, &args(&["MULTI"]), Wanted::Exactly(b"+OK\r\n".to_vec()));
        let mut whole = args(&["EXEC"]);
        for cmd in commands {
            whole.push(cmd.len().to_string().into_bytes());
            self.send(out, &cmd, Wanted::Exactly(b"+QUEUED\r\n".to_vec()));
            whole.extend(named(out.database, cmd));
        }
        match fate {
            0 => self.send(out, &args(&["DISCARD"]), Wanted::Exactly(b"+OK\r\n".to_vec())),
            1 => {
                self.send(out, &args(&["NOSUCH"]), Wanted::Begins("-ERR unknown command"));
                self.send(out, &args(&["EXEC"]), Wanted::Begins("-EXECABORT"));
            }
            _ => {
                out.transactions += 1;
                let operation = self.operation(whole);
                self.send(out, &args(&["EXEC"]), Wanted::One(operation));
            }
        }
    }

    /// Adds a command with several keys.
    fn split(&mut self, out: &mut Pipeline) {
        let (name, part, combine, step) = match self.rng.below(if self.reads_only { 2 } else { 4 })
        {
            0 => ("MGET", "GET", Combine::Array, 1),
            1 => ("EXISTS", "EXISTS", Combine::Sum, 1),
            2 => ("MSET", "SET", Combine::AllOk, 2),
            _ => ("DEL", "DEL", Combine::Sum, 1),
        };
        let (mut cmd, mut parts) = (args(&[name]), Vec::<Vec<Vec<u8>>>::new());
        for _ in 0..TRIES {
            let drawn = self.draw();
            let is_new = parts.iter().all(|part| part.get(1) != drawn.get(1));
            let fits = match combine {
                // The keys of MGET hold strings; for other types it would answer nil.
                Combine::Array => drawn[0] == b"GET",
                Combine::AllOk => drawn[0] == b"SET" && drawn.len() == 3,
                Combine::Sum | Combine::Apart => has_key(&drawn),
            };
            if fits && is_new && parts.len() < TOGETHER_MAX {
                let mut part = args(&[part]);
                part.extend_from_slice(&drawn[1..=step]);
                cmd.extend_from_slice(&part[1..]);
                parts.push(part);
            }
        }
        if parts.len() < 2 {
            return self.one(out);
        }
        out.splits += 1;
        let named = parts.into_iter().map(|part| named(out.database, part));
        let operations = named.map(|part| self.operation(part)).collect();
        self.send(out, &cmd, Wanted::Parts(combine, operations));
    }

    /// Adds bytes that are not RESP, and a write after them that must not be executed.
    fn garbage(&mut self, out: &mut Pipeline) {
        let bytes: &[u8] = match self.rng.below(4) {
            0 => b"*x\r\n",
            1 => b"*1\r\n$-5\r\n",
            2 => b"*2\r\n$3\r\nGET\r\n:1\r\n",
            _ => b"GET \"k\n",
        };
        out.bytes.extend_from_slice(bytes);
        self.expect(out, Wanted::Begins("-ERR Protocol error"));
        let cmd = self.draw();
        as_array(&cmd, &mut out.bytes);
    }

    /// Adds the beginning of a command that must not be executed.
    fn torn(&mut self, out: &mut Pipeline) {
        let cmd = self.draw();
        let mut whole = Vec::new();
        as_array(&cmd, &mut whole);
        let kept = self.rng.between(1, whole.len() as u64 - 1) as usize;
        out.bytes.extend_from_slice(&whole[..kept]);
    }
}

fn as_array(cmd: &[Vec<u8>], out: &mut Vec<u8>) {
    out.reserve(cmd.iter().map(|arg| arg.len() + 16).sum::<usize>() + 16);
    resp::array(out, cmd.len());
    cmd.iter().for_each(|arg| resp::bulk(out, arg));
}

/// The outcome of a command according to its reply.
pub(super) enum Ended {
    /// It was executed, with this reply.
    Answered(Reply),
    /// It was not executed, with this error.
    Refused(Reply),
    /// Whether it was executed is unknown.
    Unknown,
}

/// The beginning of the error for values that together are longer than one command may be.
const TOO_LARGE: &str = "ERR the command is larger";
/// The error for a function that is not there: its library is not loaded yet.
const NO_FUNCTION: &str = "ERR Function not found";

pub(super) fn ended(reply: Reply) -> Result<Ended, String> {
    let Reply::Error(text) = &reply else { return Ok(Ended::Answered(reply)) };
    let begins = |words: &[&str]| words.iter().any(|word| text.starts_with(word));
    if begins(&["UNKNOWN", "PARTIAL"]) {
        Ok(Ended::Unknown)
    } else if begins(&["TIMEOUT", "TRYAGAIN", "BUSY ", TOO_LARGE, NO_FUNCTION])
        || is_short_of_room(text)
    {
        Ok(Ended::Refused(reply))
    } else if begins(&["WRONGTYPE", "ERR value is not an integer", "ERR increment or decrement"]) {
        Ok(Ended::Answered(reply))
    } else {
        Err(format!("an error that nobody expects: {text}"))
    }
}

/// The completed operations of a command with this reply.
///
/// # Errors
/// The reason why this cannot be the reply to the command.
pub(super) fn judge(awaited: Awaited, bytes: &[u8], now_ns: u64) -> Result<Vec<Operation>, String> {
    let replies = match replies_of(&awaited, bytes) {
        Ok(replies) => replies,
        Err(why) => {
            let wanted = match &awaited.wanted {
                Wanted::One(operation) => describe(operation),
                Wanted::Parts(_, operations) | Wanted::Popped(operations) => {
                    operations.iter().map(describe).collect::<Vec<_>>().join("; ")
                }
                other => format!("{other:?}"),
            };
            let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN).collect();
            return Err(format!("a gateway's reply to {wanted}: {why}: {text}"));
        }
    };
    let end = |(mut operation, reply): (Operation, Option<Reply>)| {
        if reply.is_some() {
            (operation.return_ns, operation.reply) = (Some(now_ns), reply);
        }
        operation
    };
    Ok(awaited.operations().into_iter().zip(replies).map(end).collect())
}

/// Whether a reply is in RESP2 although RESP3 is in force, or the reverse.
pub(super) fn is_of_other_version(resp3: bool, bytes: &[u8]) -> bool {
    let is_new = matches!(bytes.first(), Some(b'_' | b'%' | b'~' | b',' | b'#' | b'(' | b'='));
    let is_old = bytes.starts_with(b"$-1") || bytes.starts_with(b"*-1");
    if resp3 { is_old } else { is_new }
}

/// The reply to each operation of a command; `None` if it is unknown whether it was executed.
fn replies_of(awaited: &Awaited, bytes: &[u8]) -> Result<Vec<Option<Reply>>, String> {
    if is_of_other_version(awaited.resp3, bytes) {
        return Err("a reply of the other version of the protocol".into());
    }
    let is_right = match &awaited.wanted {
        Wanted::Exactly(wanted) => bytes == wanted,
        Wanted::Begins(wanted) => bytes.starts_with(wanted.as_bytes()),
        Wanted::Hello => bytes.starts_with(if awaited.resp3 { b"%7\r\n" } else { b"*14\r\n" }),
        Wanted::Loaded => bytes == b"$5\r\nswarm\r\n" || bytes.starts_with(b"-"),
        Wanted::Changed => bytes == b"+OK\r\n" || bytes.starts_with(b"-"),
        Wanted::Allowed | Wanted::Watching | Wanted::Looked(_) | Wanted::Together(_) => true,
        Wanted::One(_) | Wanted::Parts(..) | Wanted::Popped(_) | Wanted::Moved(_) => true,
    };
    if !is_right {
        return Err("another reply than there can be".into());
    }
    let parse = || parse_reply(bytes).ok_or("a reply that cannot be read".to_string());
    Ok(match &awaited.wanted {
        Wanted::Exactly(_) | Wanted::Begins(_) | Wanted::Hello | Wanted::Allowed => Vec::new(),
        Wanted::Watching | Wanted::Looked(_) | Wanted::Together(_) => Vec::new(),
        Wanted::Moved(_) => Vec::new(),
        Wanted::Changed => ended(parse()?).map(|_| Vec::new())?,
        Wanted::Loaded => match ended(parse()?)? {
            Ended::Answered(Reply::Error(text)) => return Err(format!("no library but {text}")),
            Ended::Answered(_) | Ended::Refused(_) | Ended::Unknown => Vec::new(),
        },
        Wanted::One(_) => match ended(parse()?)? {
            Ended::Refused(Reply::Error(text)) if text == NO_FUNCTION && awaited.has_library => {
                return Err("a library is gone".into());
            }
            Ended::Refused(Reply::Error(text)) if text.starts_with(TOO_LARGE) => {
                return Err("one value that is too large".into());
            }
            Ended::Answered(reply) | Ended::Refused(reply) => vec![Some(reply)],
            Ended::Unknown => vec![None],
        },
        Wanted::Popped(operations) => match ended(parse()?)? {
            Ended::Unknown => vec![None; operations.len()],
            Ended::Answered(reply) | Ended::Refused(reply) => {
                popped_of(reply, awaited.database, operations)?
            }
        },
        Wanted::Parts(combine, operations) => match ended(parse()?)? {
            Ended::Unknown => vec![None; operations.len()],
            // If one key's part is refused for want of memory or for its length, that says nothing
            // about the others.
            Ended::Refused(Reply::Error(text))
                if is_short_of_room(&text) || text.starts_with(TOO_LARGE) =>
            {
                vec![None; operations.len()]
            }
            Ended::Refused(reply) => vec![Some(reply); operations.len()],
            Ended::Answered(reply) => {
                parts_of(*combine, reply, operations.len())?.into_iter().map(Some).collect()
            }
        },
    })
}

/// The result of each key in the reply to a pop that waits.
fn popped_of(
    reply: Reply,
    database: u8,
    operations: &[Operation],
) -> Result<Vec<Option<Reply>>, String> {
    let of_all = |reply: Reply| Ok(vec![Some(reply); operations.len()]);
    let is_sorted = operations.iter().all(|o| o.cmd[0].starts_with(b"Z"));
    let (key, item) = match reply {
        Reply::Nil if is_sorted => return of_all(Reply::Array(Vec::new())),
        Reply::Nil => return of_all(Reply::Nil),
        // The error does not say which key it is about.
        Reply::Error(text) if operations.len() > 1 && text.starts_with("WRONGTYPE") => {
            return of_all(Reply::Error("TRYAGAIN another key is of another type".into()));
        }
        Reply::Error(text) => return of_all(Reply::Error(text)),
        Reply::Array(items) if is_sorted => match ranked(items) {
            Some((key, item)) => (stored(database, &key).into_owned(), item),
            None => return Err("neither nil nor a key, a member and its score".into()),
        },
        Reply::Array(items) => match <[Reply; 2]>::try_from(items) {
            Ok([Reply::Bulk(key), item]) => (stored(database, &key).into_owned(), item),
            _ => return Err("neither nil nor a key and an element".into()),
        },
        _ => return Err("neither nil nor a key and an element".into()),
    };
    let others = Reply::Error("TRYAGAIN another key had an element".into());
    let of = |operation: &Operation| match operation.cmd[1] == key {
        true => item.clone(),
        false => others.clone(),
    };
    let replies: Vec<Option<Reply>> = operations.iter().map(|o| Some(of(o))).collect();
    match operations.iter().any(|o| o.cmd[1] == key) {
        true => Ok(replies),
        false => Err("an element of a key that it does not name".into()),
    }
}

/// The result of each key in the reply to a command with several keys.
fn parts_of(combine: Combine, reply: Reply, count: usize) -> Result<Vec<Reply>, String> {
    let same = |reply: Reply| Ok(vec![reply; count]);
    match (combine, reply) {
        (Combine::Array, Reply::Array(items)) if items.len() == count => Ok(items),
        (Combine::Apart, Reply::Array(items)) if items.len() == count => {
            let elements = || items.iter().flat_map(elements);
            match elements().collect::<BTreeSet<_>>().len() == elements().count() {
                true => Ok(items),
                false => Err("an element that is in two lists at one moment".into()),
            }
        }
        (Combine::AllOk, Reply::Ok) => same(Reply::Ok),
        (Combine::Sum, Reply::Int(0)) => same(Reply::Int(0)),
        (Combine::Sum, Reply::Int(sum)) if sum == count as i64 => same(Reply::Int(1)),
        (Combine::Sum, Reply::Int(sum)) if (1..count as i64).contains(&sum) => same(Reply::Unseen),
        (_, reply) => Err(format!("of {count} keys another reply than there can be: {reply}")),
    }
}
