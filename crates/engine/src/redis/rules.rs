//! Which commands the Redis engine passes on: what the server's own COMMAND table declares readonly
//! or write, without what would make replicas differ or hold up the pipeline.

use alloc::format;
use alloc::string::String;

use super::effects;
use super::script::IN_PLACE_ARGS_MAX;
use crate::command::ARGS_MAX;
use crate::resp_scan::number;
use crate::table::{CommandTable, Flags, UpperName};
use crate::{Class, Command, STRING_BYTES_MAX};

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
    if let Some(text) = too_long(name.bytes(), command).filter(|_| spec.accepts(command.argc())) {
        return Err(text.into());
    }
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
    // Whoever decides does not make a script of each of them, but refuses what the others would
    // have to.
    if command.argc() > IN_PLACE_ARGS_MAX
        && (effects::draws(command) || effects::tells_time(command))
    {
        return Some("with more than 7000 arguments");
    }
    match name {
        // The applied number lives in a database of its own.
        b"MOVE" | b"SWAPDB" | b"MIGRATE" => return Some("there is one database"),
        b"COPY" if has_word(command, 3, &[b"DB"]) => return Some("there is one database"),
        b"SPOP" if command.args().nth(2).is_some_and(pops_too_many) => {
            return Some("that many members do not fit into one SREM; pop fewer at a time");
        }
        b"XREAD" | b"XREADGROUP" if !has_word(command, 1, &[b"BLOCK"]) => return None,
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
        // One that is over whatever the clock says leaves nothing.
        b"RESTORE" => {
            let ttl_ms = command.args().nth(2).and_then(number).unwrap_or(0);
            let is_over = ttl_ms == 1 && has_word(command, 4, &[b"ABSTTL"]);
            ttl_ms > 0 && !is_over && command.argc() > 3
        }
        _ => flags.has(Flags::WRITE) && name.windows(6).any(|part| part == b"EXPIRE"),
    };
    gives_time_to_live.then_some("the server would expire it by its own clock, replicas differ")
}

/// SPOP is replicated as an SREM of what it drew, which must be a command of at most
/// [`ARGS_MAX`] arguments.
fn pops_too_many(count: &[u8]) -> bool {
    number(count).is_some_and(|count| count > ARGS_MAX as i64 - 2)
}

/// The error, in Redis' words, of a command that says where it writes and makes a string longer
/// than [`STRING_BYTES_MAX`]. What is no number is the server's to refuse.
fn too_long(name: &[u8], command: &Command<'_>) -> Option<&'static str> {
    let args: alloc::vec::Vec<&[u8]> = match name {
        b"SETRANGE" | b"SETBIT" | b"BITFIELD" => command.args().collect(),
        _ => return None,
    };
    let at = |place: usize| args.get(place).and_then(|arg| number(arg)).unwrap_or(0);
    let of_bytes = |bytes: i64| {
        let text = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        (bytes > STRING_BYTES_MAX as i64).then_some(text)
    };
    let of_bit = |bit: i64| match bit >> 32 {
        ..=0 => of_bytes(bit / 8 + 1),
        _ => Some("ERR bit offset is not an integer or out of range"),
    };
    match name {
        b"SETRANGE" => match args.get(3).map_or(0, |part| part.len()) {
            0 => None,
            length => of_bytes(at(2).saturating_add(length as i64)),
        },
        b"SETBIT" => of_bit(at(2)),
        // Behind each operation that writes stand a type and an offset.
        _ => args.windows(3).find_map(|words| {
            let [operation, kind, offset] = words else { return None };
            let writes = [&b"SET"[..], b"INCRBY"].iter().any(|o| operation.eq_ignore_ascii_case(o));
            let (sign, bits) = kind.split_first()?;
            let bits = number(bits).filter(|bits| match sign {
                b'i' => (1..=64).contains(bits),
                b'u' => (1..64).contains(bits),
                _ => false,
            })?;
            let bit = match offset.strip_prefix(b"#") {
                Some(nth) => number(nth).unwrap_or(0).saturating_mul(bits),
                None => number(offset).unwrap_or(0),
            };
            if writes { of_bit(bit) } else { None }
        }),
    }
}

/// Whether one of `words` is among the arguments from `first` on, in upper or lower case.
fn has_word(command: &Command<'_>, first: usize, words: &[&[u8]]) -> bool {
    command.args().skip(first).any(|arg| words.iter().any(|word| arg.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandBuf;

    /// What writes far behind the end of a string is refused.
    #[test]
    fn bug_16_11_write_far_behind_a_strings_end_is_refused() {
        let makes = |line: &str| {
            let bytes = CommandBuf::new().encode(1, line.split(' ').map(str::as_bytes)).to_vec();
            let command = Command::parse(&bytes).unwrap();
            too_long(UpperName::of(command.name()).bytes(), &command).is_some()
        };
        for line in [
            "SETRANGE k 536870911 x",
            "SETRANGE k 67108800 x",
            "SETRANGE k 9223372036854775807 x",
            "setbit k 4294967295 1",
            "BITFIELD k SET u8 4294967287 1",
            "bitfield k GET u8 0 INCRBY i16 #33554431 1",
        ] {
            assert!(makes(line), "{line}");
        }
        for line in [
            "SETRANGE k 67108799 x",
            "SETRANGE k -1 x",
            "SETRANGE k",
            "SETBIT k 536870399 1",
            "SETBIT k",
            "BITFIELD k OVERFLOW SAT SET u8 100 99999999999",
            "BITFIELD k GET u8 600000000 SET u8 0 1",
            "BITFIELD k SET u64 4294967287 1",
            "SETRANGE k 9223372036854775807 ",
            "BITFIELD k",
        ] {
            assert!(!makes(line), "{line}");
        }
    }
}
