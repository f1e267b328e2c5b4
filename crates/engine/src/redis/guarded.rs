//! Pops whose reply could be longer than a reply may be: they are refused before they pop.
//!
//! In front of the transaction of such a pop the server watches a key of ours and executes a script
//! (`guard.lua`) that looks at what the pop would answer, in parts; if that is too long it touches
//! the key, and the server drops the transaction. Nothing comes between: nobody else writes to the
//! server.

use alloc::vec::Vec;

use super::APPLIED_DATABASE;
use super::requests::encode;
use crate::resp_scan::number;
use crate::{Command, REPLY_BYTES_MAX};

const GUARD_KEY: &[u8] = b"concord:guard";
const GUARD: &str = include_str!("guard.lua");
/// What is sent in front: SELECT, WATCH, SELECT, EVAL.
pub(super) const GUARD_COMMANDS: usize = 4;

/// Whether `command` pops more than one element.
pub(super) fn pops_several(command: &Command<'_>) -> bool {
    let name = command.name();
    let is = |names: &[&[u8]]| names.iter().any(|own| name.eq_ignore_ascii_case(own));
    if is(&[b"LMPOP", b"ZMPOP"]) {
        return command.argc() > 4;
    }
    let count = || command.args().nth(2).and_then(number).unwrap_or(0);
    is(&[b"LPOP", b"RPOP", b"SPOP", b"ZPOPMIN", b"ZPOPMAX"]) && command.argc() == 3 && count() > 1
}

/// Appends what the server executes in front of the transaction of `pop`.
pub(super) fn guard(request: &mut Vec<u8>, pop: &Command<'_>) {
    let lines: Vec<&str> = GUARD.lines().filter(|line| !line.starts_with("--")).collect();
    let script = lines.join("\n");
    let most = alloc::format!("{REPLY_BYTES_MAX}");
    encode(request, [&b"SELECT"[..], APPLIED_DATABASE]);
    encode(request, [&b"WATCH"[..], GUARD_KEY]);
    encode(request, [&b"SELECT"[..], b"0"]);
    let args: Vec<&[u8]> = [&b"EVAL"[..], script.as_bytes(), b"0", most.as_bytes()]
        .into_iter()
        .chain(pop.args())
        .collect();
    encode(request, args);
}
