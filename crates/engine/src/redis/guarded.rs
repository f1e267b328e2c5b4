//! Pops and transactions whose replies could be longer than a reply may be: they are refused before
//! they have done anything.
//!
//! In front of the transaction of such a write the server watches a key of ours and executes a
//! script (`guard.lua`) that looks at what the commands would answer; if that is too long it
//! touches the key, and the server drops the transaction. Nothing comes between: nobody else writes
//! to the server. What a command answers is looked at as long as no earlier command of the
//! transaction may have changed its keys.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::APPLIED_DATABASE;
use super::requests::encode;
use crate::resp_scan::number;
use crate::{Command, REPLY_BYTES_MAX, several};

const GUARD_KEY: &[u8] = b"concord:guard";
const GUARD: &str = include_str!("guard.lua");
/// What is sent in front: SELECT, WATCH, SELECT, EVAL.
pub(super) const GUARD_COMMANDS: usize = 4;

/// Most words of a command that is looked at: Lua's `unpack` gives fewer than 8,000 values.
const WORDS_MAX: usize = 7_000;

/// Whether `command` pops more than one element.
fn pops_several(command: &Command<'_>) -> bool {
    let name = command.name();
    let is = |names: &[&[u8]]| names.iter().any(|own| name.eq_ignore_ascii_case(own));
    if is(&[b"LMPOP", b"ZMPOP"]) {
        return command.argc() > 4;
    }
    let count = || command.args().nth(2).and_then(number).unwrap_or(0);
    is(&[b"LPOP", b"RPOP", b"SPOP", b"ZPOPMIN", b"ZPOPMAX"]) && command.argc() == 3 && count() > 1
}

/// Whether `command` answers any number of elements; their number and length is looked at.
fn answers_many(command: &Command<'_>) -> bool {
    const READS: [&[u8]; 21] = [
        b"HGETALL",
        b"HKEYS",
        b"HMGET",
        b"HVALS",
        b"LRANGE",
        b"MGET",
        b"SDIFF",
        b"SINTER",
        b"SMEMBERS",
        b"SUNION",
        b"XRANGE",
        b"XREVRANGE",
        b"ZDIFF",
        b"ZINTER",
        b"ZRANGE",
        b"ZRANGEBYLEX",
        b"ZRANGEBYSCORE",
        b"ZREVRANGE",
        b"ZREVRANGEBYLEX",
        b"ZREVRANGEBYSCORE",
        b"ZUNION",
    ];
    let name = command.name();
    pops_several(command) || READS.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Whether `command` answers one value of a key, which is no longer than a reply may be.
fn answers_one(command: &Command<'_>) -> bool {
    const NAMES: [&[u8]; 7] =
        [b"GET", b"GETDEL", b"GETEX", b"GETRANGE", b"GETSET", b"HGET", b"SUBSTR"];
    let name = command.name();
    NAMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// The commands of a write that are to be looked at; none if their replies cannot be too long.
/// `writes`: whether a command may change its keys.
pub(super) fn looked_at<'a>(
    commands: &[Command<'a>],
    writes: impl Fn(&Command<'a>) -> bool,
) -> Vec<Command<'a>> {
    let is_long = |command: &&Command<'a>| answers_many(command) || answers_one(command);
    let long = commands.iter().filter(is_long);
    if long.clone().count() < 2 && !long.clone().any(answers_many) {
        return Vec::new();
    }
    let mut changed: BTreeSet<&[u8]> = BTreeSet::new();
    let mut found = Vec::new();
    for command in commands {
        let keys = several::keys(command);
        let is_changed = keys.iter().any(|key| changed.contains(key));
        if is_long(&command) && !is_changed && command.argc() <= WORDS_MAX {
            found.push(*command);
        }
        if writes(command) {
            if keys.is_empty() {
                // It may have changed any.
                break;
            }
            changed.extend(keys);
        }
    }
    found
}

/// Appends what the server executes in front of the transaction with these commands.
pub(super) fn guard(request: &mut Vec<u8>, commands: &[Command<'_>]) {
    let lines: Vec<&str> = GUARD.lines().filter(|line| !line.starts_with("--")).collect();
    let script = lines.join("\n");
    let most = alloc::format!("{REPLY_BYTES_MAX}");
    encode(request, [&b"SELECT"[..], APPLIED_DATABASE]);
    encode(request, [&b"WATCH"[..], GUARD_KEY]);
    encode(request, [&b"SELECT"[..], b"0"]);
    let counts: Vec<Vec<u8>> =
        commands.iter().map(|command| alloc::format!("{}", command.argc()).into_bytes()).collect();
    let mut args = alloc::vec![&b"EVAL"[..], script.as_bytes(), b"0", most.as_bytes()];
    for (command, count) in commands.iter().zip(&counts) {
        args.push(count);
        args.extend(command.args());
    }
    encode(request, args);
}
