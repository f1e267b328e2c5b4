//! The kinds of access that commands make to their keys, and the positions of these keys.

use alloc::vec::Vec;

use super::rules::{Access, Call, Catalogue};
use crate::table::{CommandSpec, CommandTable, UpperName};
use crate::{Class, keys, resp};

/// Hands a command with its keys and channels to `look`.
pub fn with_call<T>(
    all: &Catalogue,
    table: &CommandTable,
    args: &[&[u8]],
    look: impl FnOnce(&Call<'_>) -> T,
) -> T {
    let name = UpperName::of(args[0]);
    let keys = accesses(table, args);
    let (channels, are_patterns): (Vec<usize>, bool) = match name.bytes() {
        b"PUBLISH" | b"SPUBLISH" if args.len() > 1 => (alloc::vec![1], false),
        b"SUBSCRIBE" | b"SSUBSCRIBE" => ((1..args.len()).collect(), false),
        b"PSUBSCRIBE" => ((1..args.len()).collect(), true),
        _ => (Vec::new(), false),
    };
    let command = all.find_call(args);
    look(&Call { command, args, keys: &keys, channels: &channels, are_patterns })
}

/// The indices of a command's keys, and the access to each. For a malformed command the engine will
/// answer with an error.
#[must_use]
pub fn accesses(table: &CommandTable, args: &[&[u8]]) -> Vec<(usize, Access)> {
    let name = UpperName::of(args[0]);
    let (name, at) = match (name.bytes(), named(table, args)) {
        (_, Some(found)) => found,
        (b"WATCH", None) => ("watch", (1..args.len()).collect()),
        (b"FCALL" | b"EVAL" | b"EVALSHA", None) => ("eval", counted(args)),
        (b"FCALL_RO" | b"EVAL_RO" | b"EVALSHA_RO", None) => ("eval_ro", counted(args)),
        (_, None) => return Vec::new(),
    };
    let writes_unnamed = is_write_without_flags(table, name, args);
    let access = |(ordinal, at): (usize, &usize)| match writes_unnamed {
        true => (*at, Access::BOTH),
        false => (*at, access_of(flags(name, ordinal, args))),
    };
    at.iter().enumerate().map(access).collect()
}

fn access_of(flags: &str) -> Access {
    let mut words = flags.split(' ').skip(1);
    let writes = words.clone().any(|word| matches!(word, "insert" | "delete" | "update"));
    Access { reads: words.any(|word| word == "access"), writes }
}

/// Whether a command writes of which the flags of Redis' commands say nothing: one of our own, or
/// of the future.
fn is_write_without_flags(table: &CommandTable, name: &str, args: &[&[u8]]) -> bool {
    let is_named = FLAGS.iter().any(|(names, _)| names.split(' ').any(|own| own == name));
    let is_known = is_named || matches!(name, "set" | "xreadgroup" | "eval_ro");
    !is_known && table.spec_of(args[0], args.get(1).copied()).is_some_and(writes)
}

fn writes(spec: &CommandSpec) -> bool {
    spec.class() != Some(Class::Read)
}

/// The name of a command in the table, and the places of its keys; `None` if it has none, or is
/// wrong.
fn named<'a>(table: &'a CommandTable, args: &[&[u8]]) -> Option<(&'a str, Vec<usize>)> {
    let name = UpperName::of(args[0]);
    let spec = table.spec_of(name.bytes(), args.get(1).copied())?;
    let at = keys::places(spec, name.bytes(), args);
    let is_right = spec.accepts(args.len()) && (!at.is_empty() || spec.name.starts_with("eval"));
    is_right.then(|| (&*spec.name, at.to_vec()))
}

/// The keys after the number in the third argument.
fn counted(args: &[&[u8]]) -> Vec<usize> {
    let number = args.get(2).and_then(|number| resp::number(number));
    let count = number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    (3..args.len()).take(count).collect()
}

/// The accesses of commands to their first and other keys, in words (`append=ww `), for code that
/// has only strings; commands that only read are left out.
pub(crate) fn words(all: &Catalogue, table: &CommandTable) -> Vec<u8> {
    let mut out = alloc::vec![b' '];
    let mut names: Vec<&str> = all.names().collect();
    for spec in table.specs().iter().filter(|spec| !spec.name.contains('|')) {
        if all.names().all(|known| known != &*spec.name) {
            names.push(&spec.name);
        }
    }
    for name in names {
        let (top, sub) = name.split_once('|').unwrap_or((name, ""));
        let args = [top.as_bytes(), sub.as_bytes()];
        let letters = match is_write_without_flags(table, name, &args) {
            true => [b'b'; 2],
            false => [0, 1].map(|ordinal| access_of(flags(name, ordinal, &[])).letter()),
        };
        if letters != *b"rr" {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&[b'=', letters[0], letters[1], b' ']);
        }
    }
    out
}

/// The access of a command to its keys, in Redis' words: to the first and to the others; after the
/// last bar, to the last one.
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

/// Those of the key with this ordinal, of the command of this name (`xgroup|create`).
#[must_use]
pub fn flags(name: &str, ordinal: usize, args: &[&[u8]]) -> &'static str {
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
}
