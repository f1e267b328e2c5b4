//! COMMAND: the engine's table, and what commands do to their keys.

use alloc::vec::Vec;

use concord_client::Class;
use concord_engine::table::UpperName;
use concord_engine::table::categories::{bit_of, commands};
use concord_engine::{CommandSpec, CommandTable, glob_matches, keys as places, resp};

use crate::client::help;
use crate::commands::{Failure, class_of, no_subcommand};
use crate::local::wrong_arity;
use crate::rules::Access;
use crate::state::{Core, Turn};

const HELP: [&str; 20] = [
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the total number of commands.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
    "    Return a list of all commands.",
    "INFO [<command-name> ...]",
    "    Return details about multiple commands.",
    "    If no command names are given, details for all commands",
    "    are returned.",
    "DOCS [<command-name> ...]",
    "    Return documentation details about multiple commands.",
    "    If no command names are given, documentation details for",
    "    all commands are returned.",
    "GETKEYS <full-command>",
    "    Return the keys from a full command.",
    "GETKEYSANDFLAGS <full-command>",
    "    Return the keys and the access flags from a full command.",
    "HELP",
];

const XGROUP_HELP: [&str; 15] = [
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the stream if it is not there.",
    "    * ENTRIESREAD entries_read",
    "      How many entries the group has read.",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a consumer in the group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "HELP",
];

const XINFO_HELP: [&str; 8] = [
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    Show the consumers of the group.",
    "GROUPS <key>",
    "    Show the groups of the stream.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
    "HELP",
];

/// Whether a command asks a container of the engine for help, which it has none of.
pub(crate) fn asks_for_help(name: &UpperName, args: &[&[u8]]) -> bool {
    let is_help = args.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"help"));
    is_help && (name.is(b"XGROUP") || name.is(b"XINFO"))
}

/// MEMORY MALLOC-STATS and PURGE, as a redis-server without jemalloc answers them.
pub(crate) fn memory_reply(name: &UpperName, args: &[&[u8]]) -> Option<Vec<u8>> {
    let mut reply = Vec::new();
    match (UpperName::of(args.get(1)?).bytes(), args.len()) {
        (b"MALLOC-STATS", 2) if name.is(b"MEMORY") => {
            resp::bulk(&mut reply, b"Stats not supported for the current allocator");
        }
        (b"PURGE", 2) if name.is(b"MEMORY") => reply.extend_from_slice(resp::OK),
        _ => return None,
    }
    Some(reply)
}

/// XGROUP HELP and XINFO HELP.
pub(crate) fn container_help(
    turn: &mut Turn<'_>,
    name: &UpperName,
    args: &[&[u8]],
) -> Result<(), Failure> {
    if args.len() > 2 {
        return Err(wrong_arity(&alloc::format!("{}|help", name.lower())));
    }
    help(turn, if name.is(b"XINFO") { &XINFO_HELP } else { &XGROUP_HELP });
    Ok(())
}

/// COMMAND [COUNT | INFO | DOCS | LIST | GETKEYS | GETKEYSANDFLAGS | HELP]
pub(crate) fn command(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let (table, resp3) = (&core.setup.table, turn.connection.resp3);
    let Some(sub) = args.get(1) else {
        turn.connection.answer(|out| table.encode_all(out, resp3));
        return Ok(());
    };
    let rest = &args[2..];
    let sub = UpperName::of(sub);
    match (sub.bytes(), rest) {
        (b"COUNT", []) => turn.connection.answer(|out| table.encode_count(out)),
        (b"INFO", names) => turn.connection.answer(|out| table.encode_info(out, names, resp3)),
        (b"DOCS", names) => turn.connection.answer(|out| table.encode_docs(out, names, resp3)),
        (b"LIST", filter) => {
            let names = names(table, filter)?;
            turn.connection.answer(|out| {
                resp::array(out, names.len());
                names.iter().for_each(|name| resp::bulk(out, name.as_bytes()));
            });
        }
        (b"GETKEYS", command @ [_, ..]) => {
            let (_, at) = keys(table, command).map_err(|text| core.without_keys(command, text))?;
            turn.connection.answer(|out| {
                resp::array(out, at.len());
                at.iter().for_each(|at| resp::bulk(out, command[*at]));
            });
        }
        (b"GETKEYSANDFLAGS", command @ [_, ..]) => {
            let found = keys(table, command);
            let (name, at) = found.map_err(|text| core.without_keys(command, text))?;
            turn.connection.answer(|out| {
                resp::array(out, at.len());
                for (ordinal, at) in at.iter().enumerate() {
                    let flags = flags(name, ordinal, command);
                    resp::array(out, 2);
                    resp::bulk(out, command[*at]);
                    resp::set(out, flags.split(' ').count(), resp3);
                    flags.split(' ').for_each(|flag| resp::simple(out, flag));
                }
            });
        }
        (b"HELP", []) => help(turn, &HELP),
        (b"COUNT" | b"GETKEYS" | b"GETKEYSANDFLAGS" | b"HELP", _) => {
            return Err(wrong_arity(&alloc::format!("command|{}", sub.lower())));
        }
        _ => return Err(no_subcommand("command", args[1])),
    }
    Ok(())
}

/// COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]
fn names<'a>(table: &'a CommandTable, filter: &[&[u8]]) -> Result<Vec<&'a str>, Failure> {
    let all = || table.specs().iter().map(|spec| &*spec.name);
    let [word, kind, value] = filter else {
        return match filter {
            [] => Ok(all().collect()),
            _ => Err("ERR syntax error".into()),
        };
    };
    if !word.eq_ignore_ascii_case(b"filterby") {
        return Err("ERR syntax error".into());
    }
    match UpperName::of(kind).bytes() {
        b"PATTERN" => {
            let pattern = value.to_ascii_lowercase();
            Ok(all().filter(|name| glob_matches(&pattern, name.as_bytes())).collect())
        }
        b"ACLCAT" => {
            let category = alloc::string::String::from_utf8_lossy(value).to_ascii_lowercase();
            let bit = bit_of(&category);
            Ok(commands()
                .filter(|(_, own)| bit.is_some_and(|bit| own & bit != 0))
                .map(|(n, _)| n)
                .collect())
        }
        // There are no modules.
        b"MODULE" => Ok(Vec::new()),
        _ => Err("ERR syntax error".into()),
    }
}

impl Core {
    /// Why a command has no keys: the gateway's own ones are not in the engine's table.
    fn without_keys(&self, command: &[&[u8]], text: Failure) -> Failure {
        let is_own = self.commands.find(&UpperName::of(command[0])).is_some();
        match is_own && text == NO_COMMAND {
            true => NO_KEYS.into(),
            false => text,
        }
    }
}

const NO_COMMAND: &str = "ERR Invalid command specified";
const NO_KEYS: &str = "ERR The command has no key arguments";

/// The name of a command, and where its keys are.
fn keys<'a>(table: &'a CommandTable, args: &[&[u8]]) -> Result<(&'a str, Vec<usize>), Failure> {
    let name = UpperName::of(args[0]);
    let spec: Option<&CommandSpec> = table.spec_of(name.bytes(), args.get(1).copied());
    let spec = spec.ok_or(NO_COMMAND)?;
    let is_script = spec.name.starts_with("eval");
    let may_have =
        spec.first_key > 0 || is_script || !places::places(spec, name.bytes(), args).is_empty();
    if !may_have {
        return Err(NO_KEYS.into());
    }
    if !spec.accepts(args.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let at = places::places(spec, name.bytes(), args).to_vec();
    if at.is_empty() && !is_script {
        return Err("ERR Invalid arguments specified for command".into());
    }
    Ok((&spec.name, at))
}

/// Where the keys of a command are, and what it does to them. Of one that is wrong the engine will say so.
pub(crate) fn accesses(table: &CommandTable, args: &[&[u8]]) -> Vec<(usize, Access)> {
    let name = UpperName::of(args[0]);
    let (name, at) = match (name.bytes(), keys(table, args)) {
        (_, Ok(found)) => found,
        (b"WATCH", Err(_)) => ("watch", (1..args.len()).collect()),
        (b"FCALL" | b"EVAL" | b"EVALSHA", Err(_)) => ("eval", counted(args)),
        (b"FCALL_RO" | b"EVAL_RO" | b"EVALSHA_RO", Err(_)) => ("eval_ro", counted(args)),
        (_, Err(_)) => return Vec::new(),
    };
    let writes_unnamed = is_write_without_flags(table, name, args);
    let access = |(ordinal, at): (usize, &usize)| {
        if writes_unnamed {
            return (*at, Access::BOTH);
        }
        let mut words = flags(name, ordinal, args).split(' ').skip(1);
        let writes = words.clone().any(|word| matches!(word, "insert" | "delete" | "update"));
        (*at, Access { reads: words.any(|word| word == "access"), writes })
    };
    at.iter().enumerate().map(access).collect()
}

/// Whether a command writes of which the flags of Redis' commands say nothing: one of our own, or of the future.
fn is_write_without_flags(table: &CommandTable, name: &str, args: &[&[u8]]) -> bool {
    let is_named = FLAGS.iter().any(|(names, _)| names.split(' ').any(|own| own == name));
    let is_known = is_named || matches!(name, "set" | "xreadgroup" | "eval_ro");
    !is_known && table.spec_of(args[0], args.get(1).copied()).is_some_and(writes)
}

fn writes(spec: &CommandSpec) -> bool {
    class_of(spec) != Some(Class::Read)
}

/// The keys behind the number in the third argument.
fn counted(args: &[&[u8]]) -> Vec<usize> {
    let number = args.get(2).and_then(|number| resp::number(number));
    let count = number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    (3..args.len()).take(count).collect()
}

/// What a command does to its keys, in Redis' words: to the first and to the others, or what stands behind the last
/// bar to the last one.
const FLAGS: [(&str, &str); 17] = [
    ("msetnx setnx", "OW insert"),
    ("mset psetex restore setex", "OW update"),
    (
        "bitop geosearchstore sdiffstore sunionstore zdiffstore zinterstore zrangestore zunionstore",
        "OW update|RO access",
    ),
    ("sinterstore", "RW update|RO access"),
    ("del unlink", "RM delete"),
    (
        "exists hexists hlen hstrlen llen memory|usage object|encoding object|freq \
         object|idletime object|refcount scard sismember strlen touch type watch xlen zcard",
        "RO",
    ),
    ("copy sort georadius georadiusbymember", "RO access|OW update"),
    ("pfcount", "RW access"),
    (
        "blmpop blpop brpop bzmpop bzpopmax bzpopmin getdel lmpop lpop rpop spop zmpop zpopmax \
         zpopmin",
        "RW access delete",
    ),
    ("renamenx", "RW access delete|OW insert"),
    ("rename", "RW access delete|OW update"),
    ("blmove brpoplpush lmove rpoplpush smove", "RW access delete|RW insert"),
    ("pfmerge", "RW access insert|RO access"),
    (
        "decr decrby eval evalsha getex getset hincrby hincrbyfloat incr incrby incrbyfloat move \
         setbit zincrby bitfield",
        "RW access update",
    ),
    (
        "hdel lrem ltrim srem xautoclaim xdel xgroup|delconsumer xgroup|destroy xtrim zrem \
         zremrangebylex zremrangebyrank zremrangebyscore",
        "RW delete",
    ),
    (
        "append hsetnx linsert lpush lpushx pfadd rpush rpushx sadd xgroup|create \
         xgroup|createconsumer",
        "RW insert",
    ),
    (
        "expire expireat geoadd hmset hset lset persist pexpire pexpireat setrange xack xadd \
         xclaim xgroup|setid xsetid zadd",
        "RW update",
    ),
];

/// Those of the key with this ordinal.
fn flags(name: &str, ordinal: usize, args: &[&[u8]]) -> &'static str {
    if name == "set" {
        let gets = args.iter().skip(3).any(|arg| arg.eq_ignore_ascii_case(b"get"));
        return if gets { "RW access update" } else { "OW update" };
    }
    let found = FLAGS.iter().find(|(names, _)| names.split(' ').any(|own| own == name));
    match found.map(|(_, flags)| flags.split_once('|').unwrap_or((flags, flags))) {
        // All others only read.
        None => "RO access",
        Some((first, _)) if ordinal == 0 => first,
        Some((_, others)) => others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_write_takes_its_key_for_one_that_is_read() {
        let table = CommandTable::memory();
        for spec in table.specs().iter().filter(|spec| spec.first_key == 1 && writes(spec)) {
            if matches!(&*spec.name, "xreadgroup") {
                continue;
            }
            let args = [spec.name.as_bytes(), b"k", b"1", b"2", b"3", b"4", b"5", b"6", b"7"];
            let counts = 1..args.len() + 1;
            let count = counts.into_iter().find(|count| spec.accepts(*count)).unwrap();
            let found = accesses(&table, &args[..count]);
            if spec.name.contains("radius") || spec.name.starts_with("sort") {
                continue; // They write only with STORE.
            }
            assert!(found.iter().any(|(_, access)| access.writes), "{}: {found:?}", spec.name);
        }
        let args = |line: &'static str| line.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        let both = |line| accesses(&table, &args(line)) == [(1, Access::BOTH)];
        assert!(both("cas k a b") && both("cad k a"));
        let reads = Access { reads: true, writes: false };
        assert_eq!(accesses(&table, &args("get k")), [(1, reads)]);
        let stores = accesses(&table, &args("georadius k 1 2 3 km store d"));
        assert_eq!((stores[0], stores[1].1.writes), ((1, reads), true));
        assert_eq!(
            accesses(&table, &args("fcall f 2 k l")),
            [(3, Access::BOTH), (4, Access::BOTH)]
        );
        assert_eq!(accesses(&table, &args("watch k l")).len(), 2);
    }

    #[test]
    fn keys_have_the_flags_of_redis() {
        for (command, expected) in [
            ("set k v", "OW update"),
            ("set k v get", "RW access update"),
            ("lmove a b left right", "RW access delete,RW insert"),
            ("sort a store b", "RO access,OW update"),
            ("get k", "RO access"),
            ("eval x 1 k", "RW access update"),
            ("eval x 0", ""),
            ("zunionstore d 2 a b", "OW update,RO access,RO access"),
            ("mset a 1 b 2", "OW update,OW update"),
            ("memory usage k", "RO"),
            ("xgroup create k g $", "RW insert"),
        ] {
            let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let table = CommandTable::memory();
            let (name, at) = keys(&table, &args).unwrap();
            let all: Vec<&str> = (0..at.len()).map(|n| flags(name, n, &args)).collect();
            assert_eq!(all.join(","), expected, "{command}");
        }
        let table = CommandTable::memory();
        assert!(keys(&table, &[b"ping"]).is_err() && keys(&table, &[b"get"]).is_err());
    }
}
