//! Which commands the Redis engine passes on: what the server's own COMMAND table declares readonly
//! or write, without what would make replicas differ or hold up the pipeline.

use alloc::format;
use alloc::string::String;

use crate::command::ARGS_MAX;
use crate::resp_scan::number;
use crate::table::{CommandTable, Flags, UpperName};
use crate::{Class, Command};

/// Whether `command` may be passed on as one of `class`.
///
/// A command that the server does not know passes: the server's own error is the best one, and
/// nothing happens.
///
/// # Errors
/// The text of the error for the client.
pub(super) fn check(
    table: &CommandTable,
    class: Class,
    command: &Command<'_>,
) -> Result<(), String> {
    let name = UpperName::of(command.name());
    let sub = command.args().nth(1);
    let Some(spec) = table.spec_of(name.bytes(), sub) else { return Ok(()) };
    match (name.bytes(), class) {
        (b"EVAL", Class::Write) | (b"EVAL_RO" | b"COMMAND", _) | (b"INFO", Class::Read) => {
            return Ok(());
        }
        // What WATCH asks for; clients cannot.
        (b"DEBUG", _) if sub == Some(b"DIGEST-VALUE") => return Ok(()),
        _ => {}
    }
    let refuse = |why: &str| Err(format!("ERR '{}' is not supported: {why}", name.lower()));
    match spec.class() {
        _ if spec.flags.has(Flags::ADMIN) => refuse("it administrates the server"),
        None => refuse("the server declares it neither readonly nor write"),
        Some(Class::Write) if class == Class::Read => refuse("it writes, and came as a read"),
        Some(_) => match reason_against(name.bytes(), spec.flags, command) {
            Some(why) => refuse(why),
            None => Ok(()),
        },
    }
}

/// Whether the server would refuse `command` where memory is short. Scripts are not refused as a
/// whole: what they call is (`prologue.lua`).
pub(super) fn needs_memory(table: &CommandTable, command: &Command<'_>) -> bool {
    table
        .find(command.name())
        .is_some_and(|spec| spec.accepts(command.argc()) && spec.flags.has(Flags::DENYOOM))
}

/// Why a readonly or write command must not reach the server.
fn reason_against(name: &[u8], flags: Flags, command: &Command<'_>) -> Option<&'static str> {
    match name {
        b"XREADGROUP" | b"XCLAIM" | b"XAUTOCLAIM" => {
            return Some("consumer groups store the server's clock, replicas would differ");
        }
        // The applied number lives in a database of its own.
        b"MOVE" | b"SWAPDB" | b"COPY" | b"MIGRATE" => return Some("there is one database"),
        b"SPOP" if command.args().nth(2).is_some_and(pops_too_many) => {
            return Some("that many members do not fit into one SREM; pop fewer at a time");
        }
        b"XREAD" if !has_word(command, 1, &[b"BLOCK"]) => return None,
        _ => {}
    }
    // A write comes within MULTI, where nothing blocks.
    if flags.has(Flags::BLOCKING) && !flags.has(Flags::WRITE) {
        return Some("it would block every other client");
    }
    // The shim keeps times to live (trap T12). This is the last line: none reaches the server.
    let gives_time_to_live = match name {
        b"SETEX" | b"PSETEX" | b"GETEX" | b"HSETEX" | b"HGETEX" | b"MSETEX" => true,
        b"SET" => has_word(command, 3, &[b"EX", b"PX", b"EXAT", b"PXAT"]),
        b"RESTORE" => command.args().nth(2).is_some_and(|ttl| ttl != b"0"),
        _ => flags.has(Flags::WRITE) && name.windows(6).any(|part| part == b"EXPIRE"),
    };
    gives_time_to_live.then_some("the server would expire it by its own clock, replicas differ")
}

/// SPOP is replicated as an SREM of what it drew, which must be a command of at most
/// [`ARGS_MAX`] arguments.
fn pops_too_many(count: &[u8]) -> bool {
    number(count).is_some_and(|count| count > ARGS_MAX as i64 - 2)
}

/// Whether one of `words` is among the arguments from `first` on, in upper or lower case.
fn has_word(command: &Command<'_>, first: usize, words: &[&[u8]]) -> bool {
    command.args().skip(first).any(|arg| words.iter().any(|word| arg.eq_ignore_ascii_case(word)))
}
