//! Commands that wait for an element, or for an entry of a stream. The engines execute them without
//! waiting, as Redis does within MULTI: if there is nothing the reply is null, and the gateway
//! tries again when the key has changed.

use alloc::vec::Vec;
use core::ops::Range;

use crate::memory::float::double;
use crate::table::UpperName;

/// The kind of data that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// An element of a list.
    Item,
    /// A member of a sorted set.
    Member,
    /// An entry of a stream.
    Entry,
}

/// The form of a command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Keys, then the time-out: BLPOP, BZPOPMIN and the like.
    Pop,
    /// From one key to another, with the time-out as the last argument: BLMOVE, BRPOPLPUSH.
    Move,
    /// The time-out, the number of keys, the keys, and options: BLMPOP, BZMPOP.
    Counted,
    /// Options, BLOCK with the time-out among them, then STREAMS, the keys, and an id for each:
    /// XREAD, XREADGROUP.
    Streams,
}

/// A command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// The kind of data that it waits for.
    pub awaited: Awaited,
    /// The order of its arguments.
    pub form: Form,
}

impl Blocking {
    /// The command of this name, if it is one that waits.
    #[must_use]
    pub fn of(name: &UpperName) -> Option<Blocking> {
        let (awaited, form) = match name.bytes() {
            b"BLPOP" | b"BRPOP" => (Awaited::Item, Form::Pop),
            b"BLMOVE" | b"BRPOPLPUSH" => (Awaited::Item, Form::Move),
            b"BLMPOP" => (Awaited::Item, Form::Counted),
            b"BZPOPMIN" | b"BZPOPMAX" => (Awaited::Member, Form::Pop),
            b"BZMPOP" => (Awaited::Member, Form::Counted),
            b"XREAD" | b"XREADGROUP" => (Awaited::Entry, Form::Streams),
            _ => return None,
        };
        Some(Blocking { awaited, form })
    }

    /// Whether `args` waits: a stream is read without, unless it is told to.
    #[must_use]
    pub fn waits(self, args: &[&[u8]]) -> bool {
        self.form != Form::Streams || StreamOptions::of(args).timeout.is_some()
    }

    /// `args` as it is tried: without what says that it waits.
    #[must_use]
    pub fn without_waiting<'a>(self, args: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let options = StreamOptions::of(args).at;
        let kept = |at: &usize| self.form != Form::Streams || !options.contains(at);
        (0..args.len()).filter(kept).map(|at| args[at]).collect()
    }

    /// The text of Redis' error where BLOCK's time-out is the first thing of `args` that is wrong.
    /// A server that executes it in a script speaks of something else.
    #[must_use]
    pub fn wrong_timeout(self, args: &[&[u8]]) -> Option<&'static [u8]> {
        let name = args.first().filter(|_| self.form == Form::Streams)?;
        let of_group = name.eq_ignore_ascii_case(b"XREADGROUP");
        let mut at = 1;
        loop {
            let value = *args.get(at + 1)?;
            at += match UpperName::of(args[at]).bytes() {
                b"BLOCK" => match timeout_integer_ms(value) {
                    Ok(_) => 2,
                    Err(text) => return Some(text),
                },
                b"COUNT" if crate::resp::number(value).is_some() => 2,
                b"GROUP" if of_group => 3,
                b"NOACK" if of_group => 1,
                _ => return None,
            };
        }
    }

    /// The consumer group on whose behalf `args` waits: an entry goes to one of those who do.
    #[must_use]
    pub fn group<'a>(self, args: &[&'a [u8]]) -> Option<&'a [u8]> {
        let group = args.iter().skip(1).position(|arg| arg.eq_ignore_ascii_case(b"GROUP"))?;
        (self.form == Form::Streams).then(|| args.get(group + 2).copied())?
    }

    /// The indices of the keys for which the command `args` waits; index 0 is its name. `None` if
    /// there are too few arguments.
    #[must_use]
    pub fn awaited_keys(self, args: &[&[u8]]) -> Option<Range<usize>> {
        let range = match self.form {
            Form::Pop => 1..args.len().checked_sub(1)?,
            Form::Move => 1..2,
            Form::Counted => {
                let count = crate::resp::number(args.get(2)?)?;
                3..3usize.checked_add(usize::try_from(count).ok()?)?
            }
            Form::Streams => {
                let first = StreamOptions::of(args).streams? + 1;
                let both = args.len() - first;
                if !both.is_multiple_of(2) {
                    return None;
                }
                first..first + both / 2
            }
        };
        (range.start < range.end && range.end <= args.len()).then_some(range)
    }

    /// The time for which the command `args` waits, in ms; 0: for ever.
    ///
    /// # Errors
    /// The text of Redis' error.
    pub fn timeout_ms(self, args: &[&[u8]]) -> Result<u64, &'static [u8]> {
        let text = match self.form {
            Form::Pop | Form::Move => args.last(),
            Form::Counted => args.get(1),
            Form::Streams => {
                return StreamOptions::of(args).timeout.map_or(Ok(0), timeout_integer_ms);
            }
        };
        timeout_ms(text.copied().unwrap_or_default())
    }
}

/// The index of STREAMS in an XREAD or XREADGROUP, in which a group or a consumer may have that
/// name too. If the arguments before it are invalid, so that the command is an error, the first
/// word of that name.
pub(crate) fn streams_at(args: &[&[u8]]) -> Option<usize> {
    let any = || args.iter().position(|arg| arg.eq_ignore_ascii_case(b"STREAMS"));
    StreamOptions::of(args).streams.or_else(any)
}

/// The options of XREAD and XREADGROUP before their keys.
#[derive(Default)]
struct StreamOptions<'a> {
    timeout: Option<&'a [u8]>,
    /// The indices of BLOCK and its time-outs.
    at: Vec<usize>,
    /// The index of STREAMS.
    streams: Option<usize>,
}

impl<'a> StreamOptions<'a> {
    /// Parses options up to the first word that is none.
    fn of(args: &[&'a [u8]]) -> StreamOptions<'a> {
        let mut options = StreamOptions::default();
        let mut at = 1;
        while let Some(arg) = args.get(at) {
            at += match UpperName::of(arg).bytes() {
                b"BLOCK" => {
                    options.timeout = args.get(at + 1).copied();
                    options.at.extend([at, at + 1]);
                    2
                }
                b"COUNT" => 2,
                b"GROUP" => 3,
                b"NOACK" => 1,
                b"STREAMS" => {
                    options.streams = Some(at);
                    break;
                }
                _ => break,
            };
        }
        options
    }
}

/// A time-out in seconds, as ms.
///
/// # Errors
/// The text of Redis' error.
pub fn timeout_ms(text: &[u8]) -> Result<u64, &'static [u8]> {
    const MS_MAX: f64 = i64::MAX as f64;
    /// The largest time-out to which a wall-clock time can be added.
    const SUM_MAX: u64 = i64::MAX as u64 - (1 << 42);
    let seconds = double(text).ok_or(&b"ERR timeout is not a float or out of range"[..])?;
    let ms = seconds * 1_000.0;
    // A number beyond 64 bits counts as negative, as in Redis 7.0.
    if ms <= -1.0 || ms >= MS_MAX {
        return Err(b"ERR timeout is negative");
    }
    // Rounded up, as Redis does: a tenth of a ms is not for ever.
    let whole = ms as u64;
    let ms = whole + u64::from((whole as f64) < ms);
    if ms > SUM_MAX { Err(b"ERR timeout is out of range") } else { Ok(ms) }
}

/// A time-out in whole ms, as XREAD has it.
///
/// # Errors
/// The text of Redis' error.
pub fn timeout_integer_ms(text: &[u8]) -> Result<u64, &'static [u8]> {
    let ms = crate::resp::number(text);
    let ms = ms.ok_or(&b"ERR timeout is not an integer or out of range"[..])?;
    u64::try_from(ms).map_err(|_| &b"ERR timeout is negative"[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_are_rounded_up_and_refused_in_redis_words() {
        for (text, ms) in
            [("0", 0), ("1", 1_000), ("0.0001", 1), ("0.1", 100), ("1.0001", 1_001), ("-0.0001", 0)]
        {
            assert_eq!(timeout_ms(text.as_bytes()), Ok(ms), "{text}");
        }
        for (text, error) in [
            ("x", "ERR timeout is not a float or out of range"),
            ("nan", "ERR timeout is not a float or out of range"),
            ("-1", "ERR timeout is negative"),
            ("inf", "ERR timeout is negative"),
            ("1e17", "ERR timeout is negative"),
            ("9223372036854770", "ERR timeout is out of range"),
        ] {
            assert_eq!(timeout_ms(text.as_bytes()), Err(error.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_keys_that_are_waited_for_are_found() {
        let keys = |line: &str| {
            let args: alloc::vec::Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            Blocking::of(&UpperName::of(args[0])).unwrap().awaited_keys(&args)
        };
        assert_eq!(keys("blpop a b 0"), Some(1..3));
        assert_eq!(keys("BLMOVE a b LEFT LEFT 0"), Some(1..2));
        assert_eq!(keys("BZMPOP 0 2 a b MIN"), Some(3..5));
        assert_eq!(keys("BZMPOP 0 9 a b MIN"), None);
        assert_eq!(keys("BZMPOP 0 x a b MIN"), None);
        assert_eq!(keys("XREAD BLOCK 0 STREAMS a b 0 0"), Some(4..6));
        assert_eq!(keys("XREADGROUP GROUP block streams COUNT 1 streams a >"), Some(7..8));
        assert_eq!(keys("XREAD BLOCK 0 STREAMS a b 0"), None);
    }

    /// A wrong time out is found where it is the first thing that is wrong.
    #[test]
    fn wrong_timeout_found_where_it_is_the_first_error() {
        let wrong = |line: &str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            Blocking::of(&UpperName::of(args[0])).unwrap().wrong_timeout(&args)
        };
        let negative = Some(&b"ERR timeout is negative"[..]);
        assert_eq!(wrong("XREADGROUP group g c COUNT 6 block -1 streams x"), negative);
        assert_eq!(wrong("xread BLOCK 5 BLOCK -1"), negative);
        let bad = Some(&b"ERR timeout is not an integer or out of range"[..]);
        assert_eq!(wrong("XREAD BLOCK x STREAMS s 0"), bad);
        for line in [
            "XREADGROUP GROUP g c COUNT x BLOCK -1 STREAMS x 0",
            "XREAD NOACK BLOCK -1 STREAMS x 0",
            "XREAD BLOCK 5 STREAMS x 0",
            "XREAD STREAMS BLOCK -1",
            "XREAD BLOCK",
            "BLPOP x -1",
        ] {
            assert_eq!(wrong(line), None, "{line}");
        }
    }

    #[test]
    fn a_stream_is_waited_for_where_block_says_so() {
        let args =
            |line: &'static str| -> Vec<&[u8]> { line.split(' ').map(str::as_bytes).collect() };
        let xread = Blocking::of(&UpperName::of(b"xread")).unwrap();
        assert!(!xread.waits(&args("XREAD STREAMS block 0")));
        assert!(!xread.waits(&args("XREADGROUP GROUP block 1 STREAMS a >")));
        let waits = args("XREADGROUP GROUP g c COUNT 1 block 5 NOACK STREAMS a >");
        assert!(xread.waits(&waits));
        assert_eq!(xread.timeout_ms(&waits), Ok(5));
        assert_eq!(xread.group(&waits), Some(&b"g"[..]));
        let tried = args("XREADGROUP GROUP g c COUNT 1 NOACK STREAMS a >");
        assert_eq!(xread.without_waiting(&waits), tried);
        let bad = args("XREAD BLOCK 1.5 STREAMS a 0");
        let text = &b"ERR timeout is not an integer or out of range"[..];
        assert_eq!(xread.timeout_ms(&bad), Err(text));
    }
}
