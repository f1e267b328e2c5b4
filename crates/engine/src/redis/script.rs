//! Scripts (EVAL) that run the same on every replica.
//!
//! A replica executes the script itself, so that nothing in it may hang on the server's clock, its
//! random source, or the order of its hash tables (which each server seeds anew), and no time to
//! live may reach the server (trap T12). Looking for such commands in a script's text finds neither
//! all of them nor only them. Instead the script runs behind a prologue (`prologue.lua`) that puts
//! its own `redis.call` and `redis.pcall` in front of the server's: TIME is the ordering node's
//! clock, times to live are those of our shim, hash tables are read in sorted order, what is drawn
//! at random is drawn from the record's randomness, and what cannot be made equal is an error. The
//! prologue is one line, so that errors name the script's own lines; what it needs to know comes as
//! more ARGV, so that the server caches each script once.
//!
//! **Times to live.** A script that was sent for one key touches no other, and is given that key's
//! deadline. Any other, and one within a transaction, looks the deadlines of the keys that it
//! touches up in a hash beside the data ([`DEADLINES_KEY`] in the database of the applied number),
//! which the shim keeps up ([`crate::backend::Backend::tell_deadlines`]) and the prologue changes.
//! What the replica has to hear of a script, whether it ended by an error or not, the prologue
//! appends to a list there ([`TOLD_KEY`]); it is read and deleted within the transaction of the
//! script.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use super::rights::{self, rules_of};
use crate::acl::sent;
use crate::backend::{Published, Reach, Step, Told};
use crate::databases::{ALL, MARKER, prefix};
use crate::functions::FunctionFlags;
use crate::resp_scan::{elements, number, text};
use crate::script::{declares_allow_oom, declares_no_writes};
use crate::ttl::REFUSE_COMMAND;
use crate::{Class, Command, CommandBuf, Context};

/// The script that executes a command which stands in its arguments, its keys as they are stored.
/// No client sends this text by chance.
const AS_A_SCRIPT: &[u8] = b"return redis.pcall(unpack(ARGV)) -- Concord's own";
/// Most arguments of such a command: Lua's `unpack` gives fewer than 8,000 values.
pub(crate) const IN_PLACE_ARGS_MAX: usize = 7_000;
const PROLOGUE: &str = include_str!("prologue.lua");
/// What stands in it, behind the line that begins so, for a user who may not do everything.
const ACL: &str = include_str!("acl.lua");
const ACL_PLACE: &str = "-- (acl.lua";
/// What takes back what a script did, and the line of the prologue in whose place it stands.
const UNDO: &str = include_str!("undo.lua");
const UNDO_PLACE: &str = "-- (undo.lua";
/// What the server executes for a command on all keys of one database, where it holds those of
/// others.
const OF_DATABASE: &str = include_str!("databases.lua");
/// What the server executes for FCALL, behind the prologue.
const LIBRARY: &str = include_str!("library.lua");
const EPILOGUE: &[u8] = b"\nend)";
/// The hash of all deadlines, in ms since the Unix epoch.
pub(super) const DEADLINES_KEY: &[u8] = b"concord:deadlines";
/// The keys that were copied when a script touched them first, while somebody copies.
pub(super) const EARLY_KEY: &[u8] = b"concord:early";
/// What a script told: three elements for each.
pub(super) const TOLD_KEY: &[u8] = b"concord:told";
/// What the prologue's generator of random numbers may begin with: 1 to one less than its modulus.
const SEEDS: u64 = 2_147_483_646;

/// Scripts that the server knows by their hash: they need not be sent again. It never forgets one
/// before Redis 7.4.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By their own text, without the prologue, but behind [`sent::MARKER`] where it looks at
    /// rules: the hash of what the server was sent, in hex.
    hashes: BTreeMap<Vec<u8>, [u8; 40]>,
    /// Bytes of all texts.
    bytes: usize,
    /// The server forgets scripts, so that none is known.
    pub(super) forgets: bool,
    /// Tells whether a text is Lua.
    pub(super) compiler: Option<Compiler>,
    /// Rules of users who may not do everything.
    pub(super) rights: rights::Known,
}

/// Whether a text is a script by itself, without its first line `#!lua`; the error for the client
/// if it is none.
pub type Compiler = fn(&[u8]) -> Result<(), Vec<u8>>;

/// Most bytes of scripts of which it is known that the server knows them; beyond, all are sent
/// again.
const KNOWN_BYTES_MAX: usize = 16 << 20;

impl Known {
    /// The server has executed the script `text`, of this hash.
    pub(super) fn learn(&mut self, text: Vec<u8>, hash: [u8; 40]) {
        if self.forgets {
            return;
        }
        if self.bytes + text.len() > KNOWN_BYTES_MAX {
            self.hashes.clear();
            self.bytes = 0;
        }
        let bytes = text.len();
        if self.hashes.insert(text, hash).is_none() {
            self.bytes += bytes;
        }
    }
}

/// What is asked of a script beside what it does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScriptOptions {
    /// It has to tell which keys it touches.
    pub is_copied: bool,
    /// It may find keys of other databases than its own.
    pub has_databases: bool,
    /// It says what it does to deadlines, for those who listen to events.
    pub is_heard: bool,
}

/// The arguments of the EVAL (or EVAL_RO) `command` with prologue, clock and the like; `None` if
/// its number of keys is wrong, which the server tells best.
pub(super) fn wrap(
    command: &Command<'_>,
    context: &Context,
    step: &Step<'_>,
    entropy: u64,
    known: &Known,
    asked: ScriptOptions,
) -> Option<Vec<Vec<u8>>> {
    let ScriptOptions { is_copied, has_databases, is_heard } = asked;
    let rules = rules_of(command);
    let mut args: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
    if rules.is_some() {
        args.remove(2);
    }
    let keys = usize::try_from(number(args.get(2)?)?).ok()?;
    if keys > args.len() - 3 {
        return None;
    }
    let original = core::mem::take(&mut args[1]);
    let lines = rules.map(|rules| known.rights.lines(rules));
    let reads_by_name = command.name().eq_ignore_ascii_case(b"EVAL_RO");
    if let Some(Err(error)) = lines {
        args[1] = with_prologue(&saying(error), false);
    } else if let Some(hash) = known.hashes.get(&*name_of(&original, rules.is_some())) {
        args[0] = if reads_by_name { b"EVALSHA_RO".to_vec() } else { b"EVALSHA".to_vec() };
        args[1] = hash.to_vec();
    } else {
        let wrong = known.compiler.and_then(|compiles| compiles(body(&original).1).err());
        let text = wrong.map(|error| saying(&error));
        args[1] = with_prologue(text.as_ref().unwrap_or(&original), rules.is_some());
    }
    let mut flags = Vec::new();
    let only_reads = step.class == Class::Read || reads_by_name || declares_no_writes(&original);
    let deadline_ms = match step.reach {
        Reach::OneKey => {
            flags.push(b'o');
            step.deadline_ms
        }
        Reach::AnyKey { is_timed } => {
            flags.extend(is_timed.then_some(b'd'));
            None
        }
    };
    flags.extend(command.key().is_some().then_some(b'k'));
    flags.extend(only_reads.then_some(b'r'));
    flags.extend(is_copied.then_some(b'c'));
    let stands_for_command = original == AS_A_SCRIPT;
    flags.extend(stands_for_command.then_some(b'p'));
    // A script's own calls answer in RESP2, unless it asks for RESP3.
    flags.extend((context.resp3 && stands_for_command).then_some(b'3'));
    flags.extend(has_databases.then_some(b'm'));
    flags.extend((is_heard && !only_reads).then_some(b'e'));
    if command.database() != 0 {
        flags.extend(format!("#{}", command.database()).into_bytes());
    }
    args.extend(lines.and_then(Result::ok).map(<[u8]>::to_vec));
    args.push(format!("{}", 1 + entropy % SEEDS).into_bytes());
    args.push(flags);
    let is_full = context.memory_full && !declares_allow_oom(&original);
    args.push(if is_full { b"1".to_vec() } else { Vec::new() });
    args.push(deadline_ms.map(|at| format!("{at}")).unwrap_or_default().into_bytes());
    args.push(format!("{}", context.now_ms).into_bytes());
    Some(args)
}

/// A script's first line, if it says `#!lua flags=...`, and the rest.
fn body(original: &[u8]) -> (&[u8], &[u8]) {
    let shebang_end = if original.starts_with(b"#!") {
        original.iter().position(|&b| b == b'\n').map_or(original.len(), |at| at + 1)
    } else {
        0
    };
    original.split_at(shebang_end)
}

/// What a script is known by that looks at rules, or does not.
pub(super) fn name_of(original: &[u8], looks: bool) -> Cow<'_, [u8]> {
    if looks { [sent::MARKER, original].concat().into() } else { original.into() }
}

/// What the server executes for the script `original`; `looks`: at rules.
fn with_prologue(original: &[u8], looks: bool) -> Vec<u8> {
    // A first line `#!lua flags=...` must stay the first; it then counts as the script's line 1.
    let (shebang, body) = body(original);
    let inner = |line: &str| match () {
        () if looks && line.starts_with(ACL_PLACE) => ACL.lines(),
        () if line.starts_with(UNDO_PLACE) => UNDO.lines(),
        () => "".lines(),
    };
    let all = PROLOGUE.lines().flat_map(|line| [line].into_iter().chain(inner(line)));
    let mut script = shebang.to_vec();
    for line in all.filter(|line| !line.trim_start().starts_with("--")) {
        script.extend_from_slice(line.trim().as_bytes());
        script.push(b' ');
    }
    script.extend_from_slice(body);
    script.extend_from_slice(EPILOGUE);
    script
}

/// The script that loads a library with this code, and calls the function whose name is the last
/// argument.
pub(crate) fn script_of_library(code: &[u8], flags: FunctionFlags) -> Vec<u8> {
    let lines = LIBRARY.lines().filter(|line| !line.starts_with("--"));
    let own = lines.collect::<Vec<_>>().join(" ");
    let (before, behind) = own.split_once("CODE").unwrap_or((&own, ""));
    let mut script = Vec::with_capacity(own.len() + code.len() + code.len() / 16);
    let first_line: &[u8] = match (flags.no_writes(), flags.allow_oom()) {
        (true, _) => b"#!lua flags=no-writes\n",
        (false, true) => b"#!lua flags=allow-oom\n",
        (false, false) => b"",
    };
    script.extend_from_slice(first_line);
    script.extend_from_slice(before.as_bytes());
    quote(code, &mut script);
    script.extend_from_slice(behind.as_bytes());
    script
}

/// Appends a text as Lua writes one.
fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0 => out.extend_from_slice(b"\\000"),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// What the server executes for a text that is no Lua by itself: it might be some behind the
/// prologue, whose function it could close.
fn saying(error: &[u8]) -> Vec<u8> {
    let mut script = b"return redis.error_reply(".to_vec();
    quote(error, &mut script);
    script.push(b')');
    script
}

/// A script that executes `command` as scripts do: what it would draw by the server's clock or at
/// random it draws from the record. It has [`IN_PLACE_ARGS_MAX`] arguments at most.
pub(crate) fn in_place_of(command: &Command<'_>, class: Class) -> Vec<u8> {
    let eval: &[u8] = if class == Class::Read { b"EVAL_RO" } else { b"EVAL" };
    let args = [eval, AS_A_SCRIPT, b"0"].into_iter().chain(command.args());
    let mut in_place = CommandBuf::new();
    in_place.encode(0, args);
    in_place.set_database(command.database()).to_vec()
}

/// The arguments of an EVAL that does what `command` does to the keys of its database alone.
pub(super) fn of_database(command: &Command<'_>, entropy: u64) -> Vec<Vec<u8>> {
    let [.., letter] = prefix(command.database());
    let seed = format!("{}", entropy % SEEDS).into_bytes();
    let name = command.name().to_ascii_uppercase();
    let head = [b"EVAL".to_vec(), OF_DATABASE.into(), b"0".to_vec()];
    let own = [name, MARKER.to_vec(), [letter].to_vec(), seed];
    let options = command.args().skip(1).map(<[u8]>::to_vec);
    head.into_iter().chain(own).chain(options).collect()
}

/// Whether `command` is of all keys of one database.
pub(super) fn is_of_database(command: &Command<'_>) -> bool {
    let name = command.name();
    let is = |own: &&[u8]| name.eq_ignore_ascii_case(own);
    command.database() != ALL && [&b"DBSIZE"[..], b"RANDOMKEY", b"FLUSHDB"].iter().any(is)
}

/// Whether `command` deletes the keys of a database, or of all.
pub(super) fn flushes(command: &Command<'_>) -> bool {
    let name = command.name();
    name.eq_ignore_ascii_case(b"FLUSHDB") || name.eq_ignore_ascii_case(b"FLUSHALL")
}

/// Whether `command` is a PFCOUNT of one key.
pub(super) fn keeps_its_count(command: &Command<'_>) -> bool {
    command.argc() == 2 && command.name().eq_ignore_ascii_case(b"PFCOUNT")
}

/// Whether `script` stands for a command that answers nothing by a null array.
pub(super) fn answers_null_array(script: &Command<'_>) -> bool {
    const COMMANDS: [&[u8]; 9] = [
        b"XREADGROUP",
        b"BLPOP",
        b"BRPOP",
        b"BLMPOP",
        b"LMPOP",
        b"BZPOPMIN",
        b"BZPOPMAX",
        b"BZMPOP",
        b"ZMPOP",
    ];
    let name = script.args().nth(3).unwrap_or_default();
    script.args().nth(1) == Some(AS_A_SCRIPT)
        && COMMANDS.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// What the server's error says of a script that SCRIPT KILL stopped (Redis 6 and 7).
const STOPPED: &[u8] = b"Script killed by user with SCRIPT KILL";
/// What the client gets in its place.
pub const STOPPED_REPLY: &[u8] =
    b"-ERR the script ran for too long and was stopped; it has changed nothing\r\n";

/// Whether the reply is that of a script which was stopped, if one was.
pub(super) fn was_stopped(reply: &[u8]) -> bool {
    reply.starts_with(b"-") && reply.windows(STOPPED.len()).any(|part| part == STOPPED)
}

/// What is replicated in the place of a script that was stopped.
pub(super) fn refusal() -> Vec<u8> {
    CommandBuf::new().encode(0, [REFUSE_COMMAND, STOPPED_REPLY[1..].trim_ascii_end()]).to_vec()
}

/// What scripts told, and the keys that they touched. `reply` is that of LRANGE.
pub(super) fn told(reply: &[u8], mut touch: impl FnMut(&[u8])) -> Vec<Told> {
    let mut words = elements(reply).filter_map(text);
    let mut all = Vec::new();
    while let (Some(kind), Some(first), Some(second)) = (words.next(), words.next(), words.next()) {
        match kind {
            b"due" => {
                let deadline_ms = number(second).and_then(|at| u64::try_from(at).ok());
                all.push(Told::Due { key: first.to_vec(), deadline_ms });
            }
            // Without a number: of all databases.
            b"flush" => {
                let database = number(first).and_then(|n| u8::try_from(n).ok());
                all.push(Told::Flush(database.unwrap_or(ALL)));
            }
            b"publish" | b"spublish" => all.push(Told::Published(Published {
                is_sharded: kind == b"spublish",
                channel: first.to_vec(),
                message: second.to_vec(),
            })),
            b"all" => all.push(Told::LookedAtAll),
            // The server says nothing but an empty string of a key that is not there: no DUMP is
            // one.
            b"early" => {
                touch(first);
                let value = (!second.is_empty()).then(|| second.to_vec());
                all.push(Told::Early { key: first.to_vec(), value });
            }
            _ => touch(first),
        }
    }
    all
}
