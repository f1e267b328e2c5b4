//! COMMAND: the engine's table of commands, and their effects on keys.

use alloc::vec::Vec;

use concord_engine::acl::flags;
use concord_engine::table::UpperName;
use concord_engine::table::categories::{bit_of, commands};
use concord_engine::{CommandSpec, CommandTable, glob_matches, keys as places, resp};

use crate::commands::{Failure, no_subcommand};
use crate::connection::client::help;
use crate::connection::local::wrong_arity;
use crate::state::{CommandContext, Core};

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

const OBJECT_HELP: [&str; 10] = [
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Tell how the value of the key is stored.",
    "FREQ <key>",
    "    Tell how often the key is accessed.",
    "IDLETIME <key>",
    "    Tell for how long the key was not accessed.",
    "REFCOUNT <key>",
    "    Tell the number of references to the value of the key.",
    "HELP",
];

const MEMORY_HELP: [&str; 8] = [
    "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "MALLOC-STATS",
    "    Tell the statistics of the allocator.",
    "PURGE",
    "    Ask the allocator to give memory back.",
    "USAGE <key> [SAMPLES <count>]",
    "    Estimate the bytes that the key and its value take.",
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

/// Whether a command asks for the help of one of the engine's containers, which has none.
pub(crate) fn asks_for_help(name: &UpperName, args: &[&[u8]]) -> bool {
    let is_help = args.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"help"));
    is_help && help_of(name).is_some()
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

/// The HELP of a command with subcommands.
pub(crate) fn container_help(
    call: &mut CommandContext<'_>,
    name: &UpperName,
    args: &[&[u8]],
) -> Result<(), Failure> {
    if args.len() > 2 {
        return Err(wrong_arity(&alloc::format!("{}|help", name.lower())));
    }
    help(call, help_of(name).unwrap_or_default());
    Ok(())
}

fn help_of(name: &UpperName) -> Option<&'static [&'static str]> {
    match name.bytes() {
        b"XGROUP" => Some(&XGROUP_HELP),
        b"XINFO" => Some(&XINFO_HELP),
        b"OBJECT" => Some(&OBJECT_HELP),
        b"MEMORY" => Some(&MEMORY_HELP),
        _ => None,
    }
}

/// COMMAND [COUNT | INFO | DOCS | LIST | GETKEYS | GETKEYSANDFLAGS | HELP]
pub(crate) fn command(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let (table, resp3) = (&core.setup.table, call.connection.resp3);
    let Some(sub) = args.get(1) else {
        call.connection.answer(|out| table.encode_all(out, resp3));
        return Ok(());
    };
    let rest = &args[2..];
    let sub = UpperName::of(sub);
    match (sub.bytes(), rest) {
        (b"COUNT", []) => call.connection.answer(|out| table.encode_count(out)),
        (b"INFO", names) => call.connection.answer(|out| table.encode_info(out, names, resp3)),
        (b"DOCS", names) => call.connection.answer(|out| table.encode_docs(out, names, resp3)),
        (b"LIST", filter) => {
            let names = names(table, filter)?;
            call.connection.answer(|out| {
                resp::array(out, names.len());
                names.iter().for_each(|name| resp::bulk(out, name.as_bytes()));
            });
        }
        (b"GETKEYS", command @ [_, ..]) => {
            let (_, at) = keys(table, command).map_err(|text| core.without_keys(command, text))?;
            call.connection.answer(|out| {
                resp::array(out, at.len());
                at.iter().for_each(|at| resp::bulk(out, command[*at]));
            });
        }
        (b"GETKEYSANDFLAGS", command @ [_, ..]) => {
            let found = keys(table, command);
            let (name, at) = found.map_err(|text| core.without_keys(command, text))?;
            call.connection.answer(|out| {
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
        (b"HELP", []) => help(call, &HELP),
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
    /// The reason that a command has no keys: the gateway's own commands are not in the engine's
    /// table.
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

/// The name of a command, and the positions of its keys.
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

#[cfg(test)]
mod tests {
    use super::*;

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
