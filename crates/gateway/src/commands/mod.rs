//! The gateway's handling of each command, in one table that also counts calls: the engine's
//! commands, the gateway's own, and the refused ones.

pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod dispatch;
pub(crate) mod errors;
pub(crate) mod facts;
pub(crate) mod info;
pub(crate) mod key_names;
pub(crate) mod keys;
pub(crate) mod latencies;
pub(crate) mod long_reads;
pub(crate) mod monitor;
pub(crate) mod monitors;
pub(crate) mod slow;
pub(crate) mod slowlog;
pub(crate) mod split_reads;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use concord_client::Class;
use concord_engine::blocking::Blocking;
use concord_engine::databases::Names;
use concord_engine::table::{Flags, UpperName};
use concord_engine::{Class as EngineClass, CommandSpec, CommandTable};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::commands::split_reads::{Several, several_of};
use crate::connection::subscriptions::{PubSub, Sort};

/// The text of an error reply.
pub(crate) type Failure = Cow<'static, str>;

/// The handling of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handling {
    /// Its only key is at this argument.
    OneKey(Class, u8),
    /// Its keys are found by [`crate::commands::keys::keys`].
    Keys(Class),
    /// It waits for an element of one of its keys.
    Blocks(Blocking),
    /// WAIT: it waits for replicas.
    Wait,
    /// It concerns all keys.
    AllKeys(Class),
    /// It continues at a cursor of a Redis server, which is meaningless to another one: as long as
    /// the configuration stays the same, reads of all keys go to one replica.
    Cursor,
    /// Its keys are its arguments.
    Several(&'static Several),
    /// It is a script, given by its hash or its text, read-only or not.
    Script {
        by_sha: bool,
        read_only: bool,
    },
    /// It calls a function of a library, read-only or not.
    Call {
        read_only: bool,
    },
    /// FUNCTION.
    Function,
    /// Its subcommands have flags and keys of their own.
    Container,
    /// MULTI and related commands, which are also handled within a transaction.
    Multi,
    Exec,
    Discard,
    Watch,
    Explain,
    /// It is a command of publish and subscribe.
    PubSub(PubSub),
    /// It is answered here, with a replica's answer about the data.
    Info,
    /// Answered here.
    Local(Local),
    /// It is answered here, also within a transaction and before the password was given.
    Always(Local),
    Refused(Refusal),
}

impl Handling {
    /// Whether its first argument names a subcommand.
    pub(crate) fn has_subs(&self) -> bool {
        matches!(
            self,
            Handling::Container
                | Handling::PubSub(PubSub::Look)
                | Handling::Local(
                    Local::Client
                        | Local::Command
                        | Local::Config
                        | Local::Acl
                        | Local::Script
                        | Local::SlowLog
                        | Local::Latency
                        | Local::Module
                )
        )
    }
}

/// A command that is answered without the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Ping,
    Echo,
    Select,
    Time,
    Client,
    Command,
    Config,
    Acl,
    Monitor,
    Unwatch,
    Script,
    SlowLog,
    Latency,
    Role,
    Module,
    Debug,
    LastSave,
    Lolwut,
    ReplicaOf,
    Hello,
    Auth,
    Quit,
    Reset,
}

/// The reason that a command of Redis is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Blocking,
    PubSub,
    Admin,
    /// For this reason, in words.
    Because(&'static str),
}

impl Refusal {
    pub(crate) fn text(self, name: &str) -> Failure {
        match self {
            Refusal::Blocking => {
                format!("ERR Concord does not support blocking commands: '{name}'").into()
            }
            Refusal::PubSub => {
                format!("ERR Concord does not support publish/subscribe: '{name}'").into()
            }
            Refusal::Admin => format!(
                "ERR Concord does not support administration by '{name}'; see concord --help"
            )
            .into(),
            Refusal::Because(text) => text.into(),
        }
    }
}

pub(crate) const CROSS_KEY: &str = "CROSSKEY Concord does not support commands over several keys \
     in this form: all keys of such a command must be the same";
pub(crate) const REPLICATES: &str = "ERR Concord replicates by itself; see concord status";
const MIGRATE: &str = "ERR Concord does not move keys to other servers";
const SWAPDB: &str = "ERR Concord does not swap databases: a key stays in its own";

/// The commands of Redis that are refused with a reason, whether the engine has them or not.
const REFUSED: [(&str, Refusal); 25] = [
    (
        "WAITAOF",
        Refusal::Because(
            "ERR Concord does not need WAITAOF: with durability = fsync a write is on disk when it is answered",
        ),
    ),
    ("PSYNC", Refusal::Because(REPLICATES)),
    ("SYNC", Refusal::Because(REPLICATES)),
    ("REPLCONF", Refusal::Because(REPLICATES)),
    ("FAILOVER", Refusal::Because(REPLICATES)),
    ("CLUSTER", Refusal::Because("ERR This instance has cluster support disabled")),
    ("READONLY", Refusal::Because("ERR This instance has cluster support disabled")),
    ("READWRITE", Refusal::Because("ERR This instance has cluster support disabled")),
    ("ASKING", Refusal::Because("ERR This instance has cluster support disabled")),
    ("SWAPDB", Refusal::Because(SWAPDB)),
    ("MIGRATE", Refusal::Because(MIGRATE)),
    ("SAVE", Refusal::Admin),
    ("BGSAVE", Refusal::Admin),
    ("BGREWRITEAOF", Refusal::Admin),
    ("SHUTDOWN", Refusal::Admin),
    ("CONCORD.DIGEST", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.EVENTS", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.EXEC", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.EXPIRE", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.INFO", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.USERS", Refusal::Because("ERR this command is Concord's own")),
    ("CONCORD.REFUSE", Refusal::Because("ERR this command is Concord's own")),
    ("PFDEBUG", Refusal::Admin),
    ("PFSELFTEST", Refusal::Admin),
    ("RESTORE-ASKING", Refusal::Admin),
];

/// The gateway's own commands: name, arity (the minimum if negative), handling.
const OWN: [(&str, i32, Handling); 47] = [
    ("PING", -1, Handling::Local(Local::Ping)),
    ("ECHO", 2, Handling::Local(Local::Echo)),
    ("SELECT", 2, Handling::Local(Local::Select)),
    ("TIME", 1, Handling::Local(Local::Time)),
    ("CLIENT", -2, Handling::Local(Local::Client)),
    ("COMMAND", -1, Handling::Local(Local::Command)),
    ("CONFIG", -2, Handling::Local(Local::Config)),
    ("MONITOR", 1, Handling::Local(Local::Monitor)),
    ("INFO", -1, Handling::Info),
    ("ACL", -2, Handling::Local(Local::Acl)),
    ("UNWATCH", 1, Handling::Local(Local::Unwatch)),
    ("SCRIPT", -2, Handling::Local(Local::Script)),
    ("SLOWLOG", -2, Handling::Local(Local::SlowLog)),
    ("LATENCY", -2, Handling::Local(Local::Latency)),
    ("ROLE", 1, Handling::Local(Local::Role)),
    ("MODULE", -2, Handling::Local(Local::Module)),
    ("DEBUG", -2, Handling::Local(Local::Debug)),
    ("LASTSAVE", 1, Handling::Local(Local::LastSave)),
    ("LOLWUT", -1, Handling::Local(Local::Lolwut)),
    ("REPLICAOF", 3, Handling::Local(Local::ReplicaOf)),
    ("SLAVEOF", 3, Handling::Local(Local::ReplicaOf)),
    ("HELLO", -1, Handling::Always(Local::Hello)),
    ("AUTH", -2, Handling::Always(Local::Auth)),
    ("QUIT", -1, Handling::Always(Local::Quit)),
    ("RESET", 1, Handling::Always(Local::Reset)),
    ("MULTI", 1, Handling::Multi),
    ("EXEC", 1, Handling::Exec),
    ("DISCARD", 1, Handling::Discard),
    ("WATCH", -2, Handling::Watch),
    ("WAIT", 3, Handling::Wait),
    ("SUBSCRIBE", -2, Handling::PubSub(PubSub::Subscribe(Sort::Channel))),
    ("PSUBSCRIBE", -2, Handling::PubSub(PubSub::Subscribe(Sort::Pattern))),
    ("SSUBSCRIBE", -2, Handling::PubSub(PubSub::Subscribe(Sort::Shard))),
    ("UNSUBSCRIBE", -1, Handling::PubSub(PubSub::Unsubscribe(Sort::Channel))),
    ("PUNSUBSCRIBE", -1, Handling::PubSub(PubSub::Unsubscribe(Sort::Pattern))),
    ("SUNSUBSCRIBE", -1, Handling::PubSub(PubSub::Unsubscribe(Sort::Shard))),
    ("PUBLISH", 3, Handling::PubSub(PubSub::Publish(Sort::Channel))),
    ("SPUBLISH", 3, Handling::PubSub(PubSub::Publish(Sort::Shard))),
    ("PUBSUB", -2, Handling::PubSub(PubSub::Look)),
    ("CONCORD", -2, Handling::Explain),
    ("EVAL", -3, Handling::Script { by_sha: false, read_only: false }),
    ("EVAL_RO", -3, Handling::Script { by_sha: false, read_only: true }),
    ("EVALSHA", -3, Handling::Script { by_sha: true, read_only: false }),
    ("EVALSHA_RO", -3, Handling::Script { by_sha: true, read_only: true }),
    ("FCALL", -3, Handling::Call { read_only: false }),
    ("FCALL_RO", -3, Handling::Call { read_only: true }),
    ("FUNCTION", -2, Handling::Function),
];

/// A command with its handling and counts of calls.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its name in lower case.
    pub name: String,
    pub arity: i32,
    pub handling: Handling,
    /// The places in its reply that name keys.
    pub names: Names,
    /// Whether it may name keys of two databases.
    pub is_across: bool,
    pub calls: u64,
    /// The number of calls refused by the gateway.
    pub refused: u64,
    /// The number of calls that ended with an error.
    pub failed: u64,
}

impl Entry {
    pub(crate) fn accepts(&self, argc: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { argc >= wanted } else { argc == wanted }
    }

    pub(crate) fn wrong_arity(&self) -> Failure {
        format!("ERR wrong number of arguments for '{}' command", self.name).into()
    }
}

/// All commands.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    entries: Vec<Entry>,
    /// The indices of commands by name, in capitals.
    by_name: HashMap<Vec<u8>, usize, FxBuildHasher>,
}

impl Commands {
    /// The commands of `table`, which may be a Redis server's, the gateway's own, and the refused
    /// ones.
    pub(crate) fn new(table: &CommandTable, redis: bool) -> Commands {
        let mut commands = Commands::default();
        for spec in table.specs().iter().filter(|spec| !spec.name.contains('|')) {
            let is_cursor = redis && matches!(&*spec.name, "hscan" | "sscan" | "zscan");
            let handling = if is_cursor { Handling::Cursor } else { handling_of(spec) };
            commands.add(&spec.name, spec.arity, handling);
        }
        for (name, arity, handling) in OWN {
            commands.add(name, arity, handling);
        }
        for (name, refusal) in REFUSED {
            commands.add(name, -1, Handling::Refused(refusal));
        }
        commands
    }

    /// Adds a command, or replaces the one with the same name.
    fn add(&mut self, name: &str, arity: i32, handling: Handling) {
        let upper = name.to_ascii_uppercase();
        let entry = Entry {
            name: name.to_ascii_lowercase(),
            arity,
            handling,
            names: Names::of(upper.as_bytes()),
            is_across: matches!(upper.as_str(), "COPY" | "MOVE"),
            calls: 0,
            refused: 0,
            failed: 0,
        };
        match self.by_name.get(upper.as_bytes()) {
            Some(index) => self.entries[*index] = entry,
            None => {
                self.by_name.insert(upper.into_bytes(), self.entries.len());
                self.entries.push(entry);
            }
        }
    }

    pub(crate) fn find(&self, name: &UpperName) -> Option<usize> {
        self.by_name.get(name.bytes()).copied()
    }

    pub(crate) fn entry(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut Entry {
        &mut self.entries[index]
    }

    /// The entries of all commands that were called.
    pub(crate) fn called(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.calls > 0)
    }

    pub(crate) fn reset_counts(&mut self) {
        for entry in &mut self.entries {
            (entry.calls, entry.refused, entry.failed) = (0, 0, 0);
        }
    }
}

pub(crate) fn class_of(spec: &CommandSpec) -> Option<Class> {
    Some(match spec.class()? {
        EngineClass::Read => Class::Read,
        EngineClass::Write => Class::Write,
    })
}

/// The handling of a command of the engine, or of one of its subcommands.
pub(crate) fn handling_of(spec: &CommandSpec) -> Handling {
    let name = spec.name.to_ascii_uppercase();
    if let Some(several) = several_of(name.as_bytes()) {
        return Handling::Several(several);
    }
    if let Some(blocking) = Blocking::of(&UpperName::of(name.as_bytes())) {
        return Handling::Blocks(blocking);
    }
    if spec.flags.has(Flags::BLOCKING) {
        return Handling::Refused(Refusal::Blocking);
    }
    if spec.flags.has(Flags::PUBSUB) {
        return Handling::Refused(Refusal::PubSub);
    }
    if spec.flags.has(Flags::ADMIN) {
        return Handling::Refused(Refusal::Admin);
    }
    let Some(class) = class_of(spec) else { return Handling::Container };
    match name.as_str() {
        "DBSIZE" | "KEYS" | "SCAN" | "RANDOMKEY" | "FLUSHALL" | "FLUSHDB" => {
            Handling::AllKeys(class)
        }
        // The second key is in the other database.
        "MOVE" => Handling::Keys(class),
        _ if spec.first_key == 1 && spec.last_key == 1 && !spec.flags.has(Flags::MOVABLEKEYS) => {
            Handling::OneKey(class, 1)
        }
        _ => Handling::Keys(class),
    }
}

/// Redis' error for an unknown command, with the beginning of its arguments.
pub(crate) fn unknown(args: &[&[u8]]) -> Failure {
    let shown = |bytes: &[u8], limit: usize| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end.min(limit)]).to_string()
    };
    let mut beginning = String::new();
    for arg in &args[1..] {
        if beginning.len() >= 128 {
            break;
        }
        beginning.push_str(&format!("'{}' ", shown(arg, 128 - beginning.len())));
    }
    let name = shown(args[0], 128);
    format!("ERR unknown command '{name}', with args beginning with: {beginning}").into()
}

/// Redis' error for an unknown subcommand.
pub(crate) fn no_subcommand(name: &str, sub: &[u8]) -> Failure {
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
    format!("ERR unknown subcommand '{sub}'. Try {} HELP.", name.to_ascii_uppercase()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_one_entry_and_the_own_ones_win() {
        let commands = Commands::new(&CommandTable::memory(), false);
        let handling =
            |name: &[u8]| commands.find(&UpperName::of(name)).map(|i| commands.entry(i).handling);
        assert!(matches!(handling(b"get"), Some(Handling::OneKey(Class::Read, 1))));
        assert!(matches!(handling(b"Command"), Some(Handling::Local(_))));
        assert!(matches!(handling(b"mget"), Some(Handling::Several(_))));
        assert!(matches!(handling(b"DEL"), Some(Handling::Several(_))));
        assert!(matches!(handling(b"flushall"), Some(Handling::AllKeys(Class::Write))));
        assert!(matches!(handling(b"rename"), Some(Handling::Keys(Class::Write))));
        assert!(matches!(handling(b"pfmerge"), Some(Handling::Keys(Class::Write))));
        assert!(matches!(handling(b"blpop"), Some(Handling::Blocks(_))));
        assert!(handling(b"nosuch").is_none());
        assert!(matches!(handling(b"hscan"), Some(Handling::OneKey(Class::Read, 1))));
        let commands = Commands::new(&CommandTable::memory(), true);
        let index = commands.find(&UpperName::of(b"hscan")).unwrap();
        assert!(matches!(commands.entry(index).handling, Handling::Cursor));
    }

    #[test]
    fn an_unknown_command_is_answered_in_redis_words() {
        let error = unknown(&[b"foo", b"a", b"b"]);
        assert_eq!(error, "ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
        let long = [b'x'; 300];
        assert!(unknown(&[b"foo", &long, &long]).len() < 64 + 140);
    }
}
