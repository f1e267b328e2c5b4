//! Scripts (EVAL) that run the same on every replica.
//!
//! A replica executes the script itself, so that nothing in it may hang on the server's clock, its
//! random source, or the order of its hash tables (which each server seeds anew), and no time to
//! live may reach the server (trap T12). Looking for such commands in a script's text finds neither
//! all of them nor only them. Instead the script runs behind a prologue (`prologue.lua`) that puts
//! its own `redis.call` and `redis.pcall` in front of the server's: TIME is the ordering node's
//! clock, times to live are those of our shim, hash tables are read in sorted order, and what
//! cannot be made equal is an error. The prologue is one line, so that errors name the script's
//! own lines; it gets the clock, the deadline and whether memory is full as three more ARGV, so that
//! the server caches each script once.

use alloc::format;
use alloc::vec::Vec;

use crate::backend::TtlChange;
use crate::resp_scan::{elements, number, text};
use crate::ttl::REFUSE_COMMAND;
use crate::{Command, CommandBuf, Context};

const PROLOGUE: &str = include_str!("prologue.lua");
const EPILOGUE: &[u8] = b"\nend) end)(table.remove(ARGV), table.remove(ARGV), table.remove(ARGV))";

/// The arguments of the EVAL (or EVAL_RO) `command` with prologue, clock and the like; `None` if
/// its number of keys is wrong, which the server tells best.
pub(super) fn wrap(
    command: &Command<'_>,
    context: &Context,
    deadline_ms: Option<u64>,
) -> Option<Vec<Vec<u8>>> {
    let keys = usize::try_from(number(command.args().nth(2)?)?).ok()?;
    if keys > command.argc() - 3 {
        return None;
    }
    let mut args: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
    let original = core::mem::take(&mut args[1]);
    // A first line `#!lua flags=...` must stay the first; it then counts as the script's line 1.
    let shebang_end = if original.starts_with(b"#!") {
        original.iter().position(|&b| b == b'\n').map_or(original.len(), |at| at + 1)
    } else {
        0
    };
    let (shebang, body) = original.split_at(shebang_end);
    let one_line = PROLOGUE.lines().filter(|line| !line.trim_start().starts_with("--"));
    let script = &mut args[1];
    script.extend_from_slice(shebang);
    for line in one_line {
        script.extend_from_slice(line.trim().as_bytes());
        script.push(b' ');
    }
    script.extend_from_slice(body);
    script.extend_from_slice(EPILOGUE);
    args.push(if context.memory_full { b"1".to_vec() } else { Vec::new() });
    args.push(deadline_ms.map(|at| format!("{at}")).unwrap_or_default().into_bytes());
    args.push(format!("{}", context.now_ms).into_bytes());
    Some(args)
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

/// What the script itself answered, and what it did to its key's time to live. `reply` is that of
/// the wrapped script: an array of the deadline at the end and the answer, or an error.
pub(super) fn unwrap(reply: &[u8], deadline_ms: Option<u64>, resp3: bool) -> (&[u8], TtlChange) {
    let mut parts = elements(reply);
    let Some(after) = parts.next() else { return (reply, TtlChange::Keep) };
    let null: &[u8] = if resp3 { b"_\r\n" } else { b"$-1\r\n" };
    let after = text(after).and_then(number).and_then(|at| u64::try_from(at).ok());
    let change = match after {
        _ if after == deadline_ms => TtlChange::Keep,
        Some(at) => TtlChange::Set(at),
        None => TtlChange::Clear,
    };
    // A script that returns nothing leaves no second element: a Lua table ends at its first nil.
    (parts.next().unwrap_or(null), change)
}
