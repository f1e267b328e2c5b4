//! The effects of a command that draws at random or reads the server's clock, as a deterministic
//! command.
//!
//! Only SPOP and XADD do, of the commands that pass: the deciding node executes them as they are
//! and replicates what came out. Approximate trimming (`MAXLEN ~`) stays: what it removes hangs on
//! the stream's nodes alone, and these on the history and on the server's settings, which are equal
//! on all replicas.

use alloc::vec::Vec;

use crate::resp_scan::{elements, text};
use crate::{Command, CommandBuf};

/// Whether the reply of `command` will tell more than its effect would without it.
pub(crate) fn draws(command: &Command<'_>) -> bool {
    let name = command.name();
    name.eq_ignore_ascii_case(b"SPOP")
        || (name.eq_ignore_ascii_case(b"XADD")
            && id_index(command).and_then(|at| command.args().nth(at)).is_some_and(is_drawn_id))
}

/// Whether the server would store the time of its own clock, or tell what has passed by it:
/// consumer groups.
pub(super) fn tells_time(command: &Command<'_>) -> bool {
    let name = command.name();
    [&b"XREADGROUP"[..], b"XCLAIM", b"XAUTOCLAIM", b"XPENDING"]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own))
}

/// SREM as nobody writes it: what an SPOP came to, which is told as one ([`super::heard`]).
const SPOPPED: &[u8] = b"sREm";

/// Whether `command` is what an SPOP came to, where another replica executed it.
pub(super) fn was_spop(command: &Command<'_>) -> bool {
    command.name() == SPOPPED
}

/// The command that does what `command`, of those that draw, did when it answered `reply`; `None`
/// if it did nothing: then the original does nothing anywhere.
pub(super) fn effect(command: &Command<'_>, reply: &[u8]) -> Option<Vec<u8>> {
    if reply.starts_with(b"-") {
        return None;
    }
    let mut buf = CommandBuf::new();
    if command.name().eq_ignore_ascii_case(b"SPOP") {
        let members: Vec<&[u8]> = match text(reply) {
            Some(member) => alloc::vec![member],
            None => elements(reply).filter_map(text).collect(),
        };
        // A set whose last member goes is deleted by SREM as by SPOP.
        let head = [SPOPPED, command.key()?];
        return (!members.is_empty())
            .then(|| buf.encode(1, head.into_iter().chain(members)).to_vec());
    }
    let id = text(reply)?;
    let at = id_index(command)?;
    let args = command.args().enumerate().map(|(index, arg)| if index == at { id } else { arg });
    Some(buf.encode(command.key_index(), args).to_vec())
}

/// `*` and `ms-*`: the server draws the id, or its sequence part, from its clock or its state.
fn is_drawn_id(id: &[u8]) -> bool {
    id == b"*" || id.ends_with(b"-*")
}

/// Which argument of an XADD is the id:
/// `XADD key [NOMKSTREAM] [KEEPREF|DELREF|ACKED] [MAXLEN|MINID [=|~] limit [LIMIT n]] id field...`.
fn id_index(command: &Command<'_>) -> Option<usize> {
    let mut args = command.args().enumerate().skip(2);
    while let Some((index, arg)) = args.next() {
        let is = |word: &[u8]| arg.eq_ignore_ascii_case(word);
        if is(b"NOMKSTREAM") || is(b"KEEPREF") || is(b"DELREF") || is(b"ACKED") {
            continue;
        }
        if is(b"LIMIT") {
            args.next()?;
        } else if is(b"MAXLEN") || is(b"MINID") {
            let (_, limit) = args.next()?;
            if limit == b"=" || limit == b"~" {
                args.next()?;
            }
        } else {
            return Some(index);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(line: &[&str], reply: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut buf = CommandBuf::new();
        let bytes = buf.encode(1, line.iter().map(|arg| arg.as_bytes()));
        let command = Command::parse(bytes).unwrap();
        assert!(draws(&command), "{line:?}");
        let effect = effect(&command, reply)?;
        Some(Command::parse(&effect).unwrap().args().map(<[u8]>::to_vec).collect())
    }

    fn words(line: &[&str]) -> Option<Vec<Vec<u8>>> {
        Some(line.iter().map(|arg| arg.as_bytes().to_vec()).collect())
    }

    #[test]
    fn spop_becomes_srem_of_what_came_out() {
        assert_eq!(effect_of(&["spop", "k"], b"$1\r\na\r\n"), words(&["sREm", "k", "a"]));
        let set = b"~2\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(effect_of(&["SPOP", "k", "2"], set), words(&["sREm", "k", "a", "b"]));
        assert_eq!(effect_of(&["SPOP", "k"], b"$-1\r\n"), None);
        assert_eq!(effect_of(&["SPOP", "k"], b"_\r\n"), None);
        assert_eq!(effect_of(&["SPOP", "k", "3"], b"*0\r\n"), None);
        assert_eq!(effect_of(&["SPOP", "k"], b"-WRONGTYPE\r\n"), None);
    }

    #[test]
    fn xadd_gets_the_id_of_the_reply_and_keeps_its_options() {
        let line = ["XADD", "k", "nomkstream", "MAXLEN", "~", "9", "LIMIT", "5", "*", "*", "v"];
        let mut expected = line;
        expected[8] = "7-1";
        assert_eq!(effect_of(&line, b"$3\r\n7-1\r\n"), words(&expected));
        let line = ["XADD", "k", "MINID", "=", "7", "7-*", "f", "v"];
        assert_eq!(effect_of(&line, b"-ERR no\r\n"), None);
        assert_eq!(effect_of(&["XADD", "k", "MAXLEN", "7", "*", "f", "v"], b"$-1\r\n"), None);
        let mut buf = CommandBuf::new();
        let fixed = buf.encode(1, [&b"XADD"[..], b"k", b"5-1", b"*", b"*"]);
        assert!(!draws(&Command::parse(fixed).unwrap()));
    }
}
