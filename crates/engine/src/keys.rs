//! The keys among the arguments of a command.

use smallvec::SmallVec;

use crate::blocking;
use crate::table::{CommandSpec, Flags};

/// Indices of keys among the arguments.
pub type Places = SmallVec<[usize; 8]>;

/// The indices of all keys of a command, ascending; `name` is its name in upper case. Empty also if
/// the command counts its keys by an argument that is not a valid number of keys.
#[must_use]
pub fn places(spec: &CommandSpec, name: &[u8], args: &[&[u8]]) -> Places {
    match name {
        b"EVAL" | b"EVAL_RO" | b"EVALSHA" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
            counted(args, 2)
        }
        b"LMPOP" | b"ZMPOP" | b"SINTERCARD" | b"ZDIFF" | b"ZINTER" | b"ZINTERCARD" | b"ZUNION" => {
            counted(args, 1)
        }
        b"BLMPOP" | b"BZMPOP" => counted(args, 2),
        b"ZUNIONSTORE" | b"ZINTERSTORE" | b"ZDIFFSTORE" => {
            let mut places = counted(args, 2);
            if !places.is_empty() {
                places.insert(0, 1);
            }
            places
        }
        b"XREAD" | b"XREADGROUP" => streams(args),
        b"SORT" | b"SORT_RO" => sort(args),
        b"GEORADIUS" | b"GEORADIUSBYMEMBER" => radius(args),
        _ if spec.flags.has(Flags::MOVABLEKEYS) && spec.first_key == 0 => Places::new(),
        _ => by_table(spec, args),
    }
}

fn counted(args: &[&[u8]], at: usize) -> Places {
    let number = args.get(at).and_then(|a| core::str::from_utf8(a).ok()?.parse::<usize>().ok());
    let first = at + 1;
    match number {
        Some(count) if count <= args.len().saturating_sub(first) => {
            (first..first + count).collect()
        }
        Some(_) | None => Places::new(),
    }
}

/// The first half of the arguments after STREAMS: the keys, before their ids. If their number is
/// odd, which is an error, the middle one counts as a key.
pub(crate) fn streams(args: &[&[u8]]) -> Places {
    let Some(at) = blocking::streams_at(args) else { return Places::new() };
    let behind = args.len() - at - 1;
    (at + 1..at + 1 + behind.div_ceil(2)).collect()
}

/// Whether a SORT reads keys that are not among its arguments: those that match its BY and GET
/// patterns.
#[must_use]
pub fn sorts_by_keys(args: &[&[u8]]) -> bool {
    let is = |word: &[u8], words: [&[u8]; 2]| words.iter().any(|w| word.eq_ignore_ascii_case(w));
    let after_key = args.iter().skip(2).zip(args.iter().skip(3));
    let mut patterns = after_key.filter(|(word, _)| is(word, [b"BY", b"GET"]));
    is(args.first().copied().unwrap_or_default(), [b"SORT", b"SORT_RO"])
        && patterns.any(|(_, pattern)| pattern.contains(&b'*'))
}

/// The key of a SORT, and the key of its result: the last STORE counts.
pub(crate) fn sort(args: &[&[u8]]) -> Places {
    let mut places: Places = (1..args.len().min(2)).collect();
    let mut at = 2;
    let mut stored = None;
    while at < args.len() {
        let is = |word: &[u8]| args[at].eq_ignore_ascii_case(word);
        if is(b"LIMIT") {
            at += 2;
        } else if is(b"BY") || is(b"GET") {
            at += 1;
        } else if is(b"STORE") && at + 1 < args.len() {
            at += 1;
            stored = Some(at);
        }
        at += 1;
    }
    places.extend(stored);
    places
}

/// The key of a GEORADIUS or GEORADIUSBYMEMBER, and the key of its result: the last STORE or
/// STOREDIST counts.
pub(crate) fn radius(args: &[&[u8]]) -> Places {
    let is_store = |at: &usize| {
        let is = |word: &[u8]| args[*at].eq_ignore_ascii_case(word);
        is(b"STORE") || is(b"STOREDIST")
    };
    let mut places: Places = (1..args.len().min(2)).collect();
    let mut at = 5;
    let mut stored = None;
    while at + 1 < args.len() {
        if is_store(&at) {
            at += 1;
            stored = Some(at);
        }
        at += 1;
    }
    places.extend(stored);
    places
}

fn by_table(spec: &CommandSpec, args: &[&[u8]]) -> Places {
    let Some(first) = usize::try_from(spec.first_key).ok().filter(|first| *first > 0) else {
        return Places::new();
    };
    let last = if spec.last_key < 0 {
        args.len() as i64 + i64::from(spec.last_key)
    } else {
        i64::from(spec.last_key)
    };
    let last = usize::try_from(last).unwrap_or(0).min(args.len().saturating_sub(1));
    let step = usize::try_from(spec.step).unwrap_or(1).max(1);
    (first..=last).step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandTable;
    use alloc::vec::Vec;

    fn found(line: &str) -> Vec<usize> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let table = CommandTable::memory();
        let any = table.find(b"eval").unwrap();
        let spec = table.find(args[0]).unwrap_or(any);
        places(spec, args[0], &args).to_vec()
    }

    #[test]
    fn keys_are_found_where_they_stand_and_where_they_move() {
        assert_eq!(found("GET k"), [1]);
        assert_eq!(found("DEL a b c"), [1, 2, 3]);
        assert_eq!(found("DBSIZE"), []);
        assert_eq!(found("EVAL x 2 a b c"), [3, 4]);
        assert_eq!(found("EVAL x 0"), []);
        assert_eq!(found("EVAL x 3 a b"), []);
        assert_eq!(found("EVAL x -1 a b"), []);
        assert_eq!(found("ZMPOP 2 a b MIN"), [2, 3]);
        assert_eq!(found("ZUNIONSTORE d 2 a b"), [1, 3, 4]);
        assert_eq!(found("XREADGROUP GROUP g c STREAMS a b 1 2"), [5, 6]);
        assert_eq!(found("XREADGROUP GROUP streams c count 1 STREAMS a >"), [7]);
        assert_eq!(found("XREADGROUP GROUP g streams streams a >"), [5]);
        assert_eq!(found("XREAD ODD STREAMS a 0"), [3]);
        assert_eq!(found("SORT k LIMIT 1 2 GET STORE STORE d STORE e"), [1, 10]);
        assert_eq!(found("GEORADIUS k 1 2 3 km STORE a COUNT 1 STOREDIST STORE"), [1, 11]);
        assert_eq!(found("GEORADIUSBYMEMBER k m 3 km STORE"), [1]);
        assert_eq!(found("MEMORY USAGE k"), []);
    }
}
