//! The arguments that are a command's keys.

use alloc::vec::Vec;

use concord_engine::table::Flags;
use concord_engine::{CommandSpec, keys as places};

/// The keys that a command names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// No key.
    None,
    /// One key, at this argument (all keys of the command are equal).
    One(u8),
    /// Several different keys, at these arguments.
    Several(Vec<usize>),
    /// The number of keys is not a valid number.
    BadNumber,
    /// The keys at these arguments, and others that match patterns in the arguments.
    AndOthers(Vec<usize>),
    /// This form is not supported: it would name patterns of keys.
    Unsupported,
}

/// The keys of a command by the table, or by its name (in capitals) if the table says that their
/// positions vary.
pub(crate) fn keys(spec: &CommandSpec, name: &[u8], args: &[&[u8]]) -> Keys {
    match name {
        b"EVAL" | b"EVAL_RO" | b"EVALSHA" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
            counted(args, 2)
        }
        b"LMPOP" | b"ZMPOP" | b"SINTERCARD" | b"ZDIFF" | b"ZINTER" | b"ZINTERCARD" | b"ZUNION" => {
            counted(args, 1)
        }
        b"BLMPOP" | b"BZMPOP" => counted(args, 2),
        b"ZUNIONSTORE" | b"ZINTERSTORE" | b"ZDIFFSTORE" => match counted(args, 2) {
            Keys::One(at) if args[usize::from(at)] != args[1] => {
                Keys::Several(alloc::vec![1, usize::from(at)])
            }
            Keys::Several(at) => Keys::Several([1].into_iter().chain(at).collect()),
            other => other,
        },
        b"XREAD" | b"XREADGROUP" => {
            // The same number of ids follows; otherwise the engine reports the error.
            match places::places(spec, name, args).to_vec() {
                none if none.is_empty() => Keys::Unsupported,
                named => of_positions(args, named),
            }
        }
        b"SORT" | b"SORT_RO" => {
            let named = places::places(spec, name, args).to_vec();
            if places::sorts_by_keys(args) {
                return Keys::AndOthers(named);
            }
            of_positions(args, named)
        }
        b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
            of_positions(args, places::places(spec, name, args).to_vec())
        }
        _ if spec.flags.has(Flags::MOVABLEKEYS) && spec.first_key == 0 => Keys::Unsupported,
        _ => by_table(spec, args),
    }
}

fn counted(args: &[&[u8]], at: usize) -> Keys {
    let number = args.get(at).and_then(|a| core::str::from_utf8(a).ok()?.parse::<usize>().ok());
    let Some(count) = number.filter(|count| *count > 0) else { return Keys::BadNumber };
    let Some(keys) = args.get(at + 1..).and_then(|rest| rest.get(..count)) else {
        return Keys::BadNumber;
    };
    of_positions(args, (at + 1..at + 1 + keys.len()).collect())
}

/// The keys at these arguments: one if all are the same.
fn of_positions(args: &[&[u8]], at: Vec<usize>) -> Keys {
    let Some(first) = at.first().copied() else { return Keys::None };
    match u8::try_from(first) {
        Ok(one) if at.iter().all(|at| args[*at] == args[first]) => Keys::One(one),
        Ok(_) | Err(_) => Keys::Several(at),
    }
}

fn by_table(spec: &CommandSpec, args: &[&[u8]]) -> Keys {
    if spec.first_key <= 0 {
        return Keys::None;
    }
    let first = spec.first_key as usize;
    let last = if spec.last_key < 0 {
        args.len() as i64 + i64::from(spec.last_key)
    } else {
        i64::from(spec.last_key)
    };
    let last = usize::try_from(last).unwrap_or(0).min(args.len().saturating_sub(1));
    if first >= args.len() {
        return Keys::None;
    }
    let step = usize::try_from(spec.step).unwrap_or(1).max(1);
    of_positions(args, (first..=last.max(first)).step_by(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use concord_engine::CommandTable;

    fn spec(name: &'static str, keys: (i32, i32, i32), flags: Flags) -> CommandSpec {
        let table = CommandTable::memory();
        let any = table.find(b"get").unwrap().clone();
        let (first_key, last_key, step) = keys;
        CommandSpec { name: name.into(), flags, first_key, last_key, step, ..any }
    }

    #[test]
    fn several_keys_are_one_if_they_are_equal() {
        let table = |keys, args: &[&[u8]]| super::keys(&spec("x", keys, Flags(0)), b"X", args);
        assert_eq!(table((1, 2, 1), &[b"rename", b"k", b"k"]), Keys::One(1));
        assert_eq!(table((1, 2, 1), &[b"rename", b"k", b"l"]), Keys::Several(vec![1, 2]));
        assert_eq!(table((1, -1, 2), &[b"msetnx", b"k", b"1", b"k", b"2"]), Keys::One(1));
        assert_eq!(table((1, -1, 1), &[b"sinter", b"k", b"l"]), Keys::Several(vec![1, 2]));
        assert_eq!(table((0, 0, 0), &[b"x", b"k"]), Keys::None);
    }

    #[test]
    fn moving_keys_are_found_or_refused() {
        let movable = spec("x", (0, 0, 0), Flags::MOVABLEKEYS);
        let find = |name: &[u8], args: &[&[u8]]| super::keys(&movable, name, args);
        assert_eq!(find(b"SINTERCARD", &[b"", b"2", b"k", b"k"]), Keys::One(2));
        assert_eq!(find(b"SINTERCARD", &[b"", b"x", b"k"]), Keys::BadNumber);
        assert_eq!(find(b"LMPOP", &[b"", b"0", b"k", b"LEFT"]), Keys::BadNumber);
        assert_eq!(find(b"SINTERCARD", &[b"", b"3", b"k"]), Keys::BadNumber);
        assert_eq!(find(b"ZUNIONSTORE", &[b"", b"d", b"1", b"k"]), Keys::Several(vec![1, 3]));
        assert_eq!(find(b"ZUNIONSTORE", &[b"", b"k", b"1", b"k"]), Keys::One(3));
        assert_eq!(find(b"XREAD", &[b"", b"COUNT", b"1", b"streams", b"k", b"0"]), Keys::One(4));
        let of_group: [&[u8]; 7] = [b"", b"GROUP", b"streams", b"c", b"STREAMS", b"k", b">"];
        assert_eq!(find(b"XREADGROUP", &of_group), Keys::One(5));
        assert_eq!(
            find(b"XREAD", &[b"", b"STREAMS", b"k", b"l", b"0", b"0"]),
            Keys::Several(vec![2, 3])
        );
        assert_eq!(find(b"SORT", &[b"sort", b"k", b"BY", b"w_*"]), Keys::AndOthers(vec![1]));
        assert_eq!(
            find(b"SORT", &[b"sort", b"k", b"GET", b"#", b"STORE", b"d"]),
            Keys::Several(vec![1, 5])
        );
        let radius: [&[u8]; 8] = [b"", b"k", b"1", b"2", b"3", b"km", b"store", b"d"];
        let of_key = |name: &[u8], args: &[&[u8]]| {
            super::keys(&spec("x", (1, 1, 1), Flags::MOVABLEKEYS), name, args)
        };
        assert_eq!(of_key(b"GEORADIUS", &radius), Keys::Several(vec![1, 7]));
        assert_eq!(of_key(b"GEORADIUS", &radius[..7]), Keys::One(1));
        assert_eq!(find(b"NEW", &[b"", b"k"]), Keys::Unsupported);
    }
}
