//! CONFIG: the meaning of Redis' parameters here. For parameters that tune the internals of a Redis
//! server, a gateway stores and shows the given value; for one that promises something, it accepts
//! only the value that is true of Concord.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use concord_engine::events::Classes;
use concord_engine::resp;
use concord_engine::table::UpperName;
use concord_wire::VALUE_BYTES_MAX;

use crate::commands::slowlog::{ENTRIES_MAX, SLOWER_THAN, THRESHOLD};
use crate::commands::{Failure, no_subcommand};
use crate::connection::client::help;
use crate::connection::local::wrong_arity;
use crate::state::{CommandContext, Core};
use crate::users::Change;

/// The type of a parameter's values.
#[derive(Clone, Copy)]
enum Value {
    Text,
    /// yes or no.
    Bool,
    Number(i64, i64),
    /// Bytes, with a unit.
    Bytes(i64),
    One(&'static [&'static str]),
    /// Classes of keyspace events.
    Events,
}

/// The effect of CONFIG SET on a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The value is stored, and shown.
    Stored,
    /// The value is a fact about Concord.
    Is,
    /// As in Redis, it cannot be set.
    Immutable,
}

struct Parameter {
    name: &'static str,
    /// Redis' older name for it.
    old: Option<&'static str>,
    default: &'static str,
    value: Value,
    used: Use,
}

const fn kept(name: &'static str, default: &'static str, value: Value) -> Parameter {
    Parameter { name, old: None, default, value, used: Use::Stored }
}

const fn renamed(
    name: &'static str,
    old: &'static str,
    default: &'static str,
    value: Value,
) -> Parameter {
    Parameter { name, old: Some(old), default, value, used: Use::Stored }
}

const fn is(name: &'static str, default: &'static str, value: Value) -> Parameter {
    Parameter { name, old: None, default, value, used: Use::Is }
}

const fn immutable(name: &'static str, default: &'static str) -> Parameter {
    Parameter { name, old: None, default, value: Value::Text, used: Use::Immutable }
}

const INT: i64 = i32::MAX as i64;
const LONG: i64 = i64::MAX;
const COUNT: Value = Value::Number(0, LONG);
const SMALL: Value = Value::Number(0, INT);
const POLICIES: [&str; 8] = [
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
/// The time after which idle clients are disconnected ([`crate::connection::pause`]).
const TIMEOUT: &str = "timeout";
/// The default user's password ([`crate::users`]).
const REQUIREPASS: &str = "requirepass";
const ACL_LOG_MAX: &str = "acllog-max-len";
/// The classes of keyspace events, set for the rack ([`crate::pubsub::events`]).
const EVENTS: &str = "notify-keyspace-events";
const WRONG_CLASS: &str = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";
const MISSES: &str = "Concord does not tell that a read found no key (m): reads are shared among replicas, and in no log";
/// The limit of tracked keys, stored in [`crate::tracking`].
const TRACKED_KEYS: &str = "tracking-table-max-keys";
const VALUE_BYTES: &str = "proto-max-bulk-len";

const PARAMETERS: [Parameter; 57] = [
    renamed("hash-max-listpack-entries", "hash-max-ziplist-entries", "512", COUNT),
    renamed("hash-max-listpack-value", "hash-max-ziplist-value", "64", COUNT),
    renamed("zset-max-listpack-entries", "zset-max-ziplist-entries", "128", COUNT),
    renamed("zset-max-listpack-value", "zset-max-ziplist-value", "64", COUNT),
    renamed(
        "list-max-listpack-size",
        "list-max-ziplist-size",
        "-2",
        Value::Number(i32::MIN as i64, INT),
    ),
    kept("list-compress-depth", "0", SMALL),
    kept("set-max-intset-entries", "512", COUNT),
    kept("stream-node-max-bytes", "4096", Value::Bytes(0)),
    kept("stream-node-max-entries", "100", COUNT),
    kept("hll-sparse-max-bytes", "3000", Value::Bytes(0)),
    kept("lfu-log-factor", "10", SMALL),
    kept("lfu-decay-time", "1", SMALL),
    kept("maxmemory-samples", "5", Value::Number(1, INT)),
    kept("maxmemory-eviction-tenacity", "10", Value::Number(0, 100)),
    kept("active-expire-effort", "1", Value::Number(1, 10)),
    kept("activerehashing", "yes", Value::Bool),
    kept("dynamic-hz", "yes", Value::Bool),
    kept("hz", "10", SMALL),
    kept("lazyfree-lazy-eviction", "no", Value::Bool),
    kept("lazyfree-lazy-expire", "no", Value::Bool),
    kept("lazyfree-lazy-server-del", "no", Value::Bool),
    kept("lazyfree-lazy-user-del", "no", Value::Bool),
    kept("lazyfree-lazy-user-flush", "no", Value::Bool),
    kept(THRESHOLD, "0", COUNT),
    kept(SLOWER_THAN, "10000", Value::Number(-1, LONG)),
    kept(ENTRIES_MAX, "128", COUNT),
    renamed("busy-reply-threshold", "lua-time-limit", "5000", COUNT),
    kept("tcp-keepalive", "300", SMALL),
    kept("close-on-oom", "yes", Value::Bool),
    kept(TRACKED_KEYS, "", COUNT),
    kept(REQUIREPASS, "", Value::Text),
    kept(ACL_LOG_MAX, "128", COUNT),
    is("acl-pubsub-default", "resetchannels", Value::One(&["allchannels", "resetchannels"])),
    immutable("aclfile", ""),
    is("appendfsync", "everysec", Value::One(&["everysec", "always", "no"])),
    is("appendonly", "no", Value::Bool),
    is("bind", "", Value::Text),
    is(
        "client-output-buffer-limit",
        "normal 0 0 0 slave 0 0 0 pubsub 33554432 8388608 60",
        Value::Text,
    ),
    is("maxclients", "", Value::Number(1, u32::MAX as i64)),
    is("maxmemory", "", Value::Bytes(0)),
    is("maxmemory-clients", "0", Value::Bytes(0)),
    is("maxmemory-policy", "noeviction", Value::One(&POLICIES)),
    kept(EVENTS, "", Value::Events),
    is("port", "", Value::Number(0, 65_535)),
    kept(VALUE_BYTES, "67108800", Value::Bytes(1 << 20)),
    is("protected-mode", "no", Value::Bool),
    is("save", "", Value::Text),
    kept(TIMEOUT, "0", SMALL),
    is("replica-read-only", "yes", Value::Bool),
    immutable("databases", "16"),
    immutable("io-threads", "1"),
    immutable("daemonize", "no"),
    immutable("cluster-enabled", "no"),
    immutable("supervised", "no"),
    immutable("unixsocket", ""),
    immutable("replicaof", ""),
    immutable("slaveof", ""),
];

const HELP: [&str; 10] = [
    "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
    "HELP",
];

/// CONFIG GET pattern ..., SET, RESETSTAT, REWRITE.
pub(crate) fn config(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let resp3 = call.connection.resp3;
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"GET", patterns @ [_, ..]) => {
            let asked = |name: &str| patterns.iter().any(|p| matches(p, name.as_bytes()));
            let names = |p: &'static Parameter| [Some(p.name), p.old].into_iter().flatten();
            let all = PARAMETERS.iter().flat_map(|p| names(p).map(move |name| (p, name)));
            let found: Vec<(&str, String)> =
                all.filter(|(_, n)| asked(n)).map(|(p, name)| (name, core.setting(p))).collect();
            call.connection.answer(|out| {
                resp::map(out, found.len(), resp3);
                for (name, value) in found {
                    resp::bulk(out, name.as_bytes());
                    resp::bulk(out, value.as_bytes());
                }
            });
        }
        (b"SET", pairs @ [_, _, ..]) => {
            if core.sets_of_rack(pairs) && call.connection.multi.is_some() {
                return Err("ERR Concord does not change what is the rack's inside MULTI".into());
            }
            match core.set_all(pairs)? {
                Some(change) => return core.change_users(call, change),
                None => call.connection.ok(),
            }
        }
        (b"RESETSTAT", []) => {
            core.commands.reset_counts();
            core.errors = Default::default();
            core.reads = Default::default();
            core.writes = Default::default();
            core.counted_from = core.totals();
            call.connection.ok();
        }
        (b"REWRITE", []) => return Err("ERR The server is running without a config file".into()),
        (b"HELP", []) => help(call, &HELP),
        (b"GET" | b"SET" | b"RESETSTAT" | b"REWRITE" | b"HELP", _) => {
            let sub = UpperName::of(args[1]).lower();
            return Err(wrong_arity(&format!("config|{sub}")));
        }
        _ => return Err(no_subcommand("config", args[1])),
    }
    Ok(())
}

impl Core {
    fn setting(&self, parameter: &Parameter) -> String {
        match parameter.name {
            "maxclients" => self.setup.connections_max.to_string(),
            "maxmemory" => self.memory_bytes_max.to_string(),
            "port" => self.setup.port.to_string(),
            REQUIREPASS => {
                let initial = self.setup.requirepass.as_deref().unwrap_or_default();
                let initial = || String::from_utf8_lossy(initial).into_owned();
                self.settings.get(REQUIREPASS).cloned().unwrap_or_else(initial)
            }
            VALUE_BYTES => self.value_bytes_max.to_string(),
            TRACKED_KEYS => self.tracking.keys_max().to_string(),
            EVENTS => self.events.classes().show(),
            name => self.settings.get(name).map_or(parameter.default, String::as_str).to_string(),
        }
    }

    fn sets_of_rack(&self, pairs: &[&[u8]]) -> bool {
        let is_it = |name: &&[u8]| {
            [REQUIREPASS, EVENTS].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
        };
        pairs.iter().step_by(2).any(is_it)
    }

    /// Sets all of these parameters, or none. Returns the change if one of them is the rack's.
    fn set_all(&mut self, pairs: &[&[u8]]) -> Result<Option<Change>, Failure> {
        let (pairs, []) = pairs.as_chunks::<2>() else { return Err("ERR syntax error".into()) };
        let mut found: Vec<(&'static Parameter, &str, &[u8])> = Vec::new();
        for [name, value] in pairs {
            let is_it = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let parameter = PARAMETERS.iter().find(|p| is_it(p.name) || p.old.is_some_and(is_it));
            let Some((parameter, name)) = parameter.zip(core::str::from_utf8(name).ok()) else {
                let name = String::from_utf8_lossy(&name[..name.len().min(128)]);
                return Err(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                )
                .into());
            };
            let failed = |why: &str| Err(failure(name, why));
            if parameter.used == Use::Immutable {
                return failed("can't set immutable config");
            }
            if found.iter().any(|(other, ..)| other.name == parameter.name) {
                return failed("duplicate parameter");
            }
            found.push((parameter, name, value));
        }
        let mut values = Vec::new();
        for (parameter, name, value) in found {
            let value = parse(parameter.value, value).map_err(|why| failure(name, &why))?;
            if parameter.used == Use::Is && value != self.setting(parameter) {
                let why = "Concord is configured by its own file and flags; see concord --help";
                return Err(failure(name, why));
            }
            values.push((parameter, value));
        }
        let (mut password, mut classes) = (None, None);
        for (parameter, value) in values {
            match parameter.name {
                REQUIREPASS => {
                    password = Some(value.clone().into_bytes());
                    self.settings.insert(REQUIREPASS, value);
                }
                EVENTS => classes = Classes::parse(value.as_bytes()),
                TIMEOUT => {
                    self.pause.idle_seconds = value.parse().unwrap_or(0);
                    self.settings.insert(TIMEOUT, value);
                }
                ACL_LOG_MAX => {
                    self.users.set_log_max(value.parse().unwrap_or(0));
                    self.settings.insert(ACL_LOG_MAX, value);
                }
                VALUE_BYTES => {
                    let asked = value.parse().unwrap_or(VALUE_BYTES_MAX);
                    self.value_bytes_max = asked.min(VALUE_BYTES_MAX);
                }
                TRACKED_KEYS => self.tracking.set_keys_max(value.parse().unwrap_or(0)),
                name @ (SLOWER_THAN | ENTRIES_MAX | THRESHOLD) => {
                    self.set_slow(name, &value);
                    self.settings.insert(name, value);
                }
                name if parameter.used == Use::Stored => drop(self.settings.insert(name, value)),
                _ => {}
            }
        }
        let is_of_rack = password.is_some() || classes.is_some();
        Ok(is_of_rack.then_some(Change::Config(password, classes)))
    }
}

fn failure(name: &str, why: &str) -> Failure {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
}

/// A value in the form in which it is shown.
fn parse(kind: Value, text: &[u8]) -> Result<String, String> {
    let between =
        |min: i64, max: i64| format!("argument must be between {min} and {max} inclusive");
    match kind {
        Value::Text => Ok(String::from_utf8_lossy(text).into_owned()),
        Value::Events => match Classes::parse(text) {
            Some(classes) if classes.has(Classes::MISSED) => Err(MISSES.into()),
            Some(_) => Ok(String::from_utf8_lossy(text).into_owned()),
            None => Err(WRONG_CLASS.into()),
        },
        Value::Bool => match UpperName::of(text).bytes() {
            b"YES" => Ok("yes".into()),
            b"NO" => Ok("no".into()),
            _ => Err("argument must be 'yes' or 'no'".into()),
        },
        Value::Number(min, max) => {
            let number = resp::number(text);
            let is_long = text.iter().all(u8::is_ascii_digit) && !text.is_empty();
            match number {
                Some(number) if (min..=max).contains(&number) => Ok(number.to_string()),
                Some(_) => Err(between(min, max)),
                None if is_long => Err(between(min, max)),
                None => Err("argument couldn't be parsed into an integer".into()),
            }
        }
        Value::Bytes(min) => match bytes(text) {
            Some(bytes) if bytes >= min => Ok(bytes.to_string()),
            Some(_) => Err(between(min, LONG)),
            None => Err("argument must be a memory value".into()),
        },
        Value::One(words) => {
            let is_it = |word: &&&str| text.eq_ignore_ascii_case(word.as_bytes());
            let found = words.iter().find(is_it).map(|word| (*word).to_string());
            found.ok_or_else(|| {
                format!("argument(s) must be one of the following: {}", words.join(", "))
            })
        }
    }
}

/// Parses bytes with a unit: `k` is 1,000 and `kb` is 1,024.
fn bytes(text: &[u8]) -> Option<i64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let factor = match UpperName::of(unit).bytes() {
        b"" | b"B" => 1,
        b"K" => 1_000,
        b"KB" => 1 << 10,
        b"M" => 1_000_000,
        b"MB" => 1 << 20,
        b"G" => 1_000_000_000,
        b"GB" => 1 << 30,
        _ => return None,
    };
    core::str::from_utf8(number).ok()?.parse::<i64>().ok()?.checked_mul(factor)
}

/// Whether `name` fits a pattern with `*` and `?`, whatever the case.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', [])), _) => true,
        // Names are short and patterns have few stars.
        (Some((b'*', rest)), _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        (Some((b'?', pattern)), Some((_, name))) => matches(pattern, name),
        (Some((p, pattern)), Some((n, name))) => {
            p.eq_ignore_ascii_case(n) && matches(pattern, name)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars_and_question_marks() {
        for (pattern, fits) in
            [("*", true), ("max*", true), ("*MEMORY", true), ("m?xmemory", true), ("max", false)]
        {
            assert_eq!(matches(pattern.as_bytes(), b"maxmemory"), fits, "{pattern}");
        }
    }

    #[test]
    fn defaults_are_values() {
        for parameter in &PARAMETERS {
            if !parameter.default.is_empty() {
                let value = parse(parameter.value, parameter.default.as_bytes());
                assert_eq!(value.as_deref(), Ok(parameter.default), "{}", parameter.name);
            }
        }
    }

    #[test]
    fn bytes_have_units() {
        for (text, value) in
            [("0", Some(0)), ("1kb", Some(1_024)), ("2G", Some(2_000_000_000)), ("kb", None)]
        {
            assert_eq!(bytes(text.as_bytes()), value, "{text}");
        }
        assert_eq!(bytes(b"9223372036854775807gb"), None);
    }
}
