//! Commands that wait for an element. The engines execute them as Redis does within MULTI, without waiting:
//! where there is nothing the reply is null, and whoever asked tries again when the key has changed.

use core::ops::Range;

use crate::memory::float::double;
use crate::table::UpperName;

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// An element of a list.
    Item,
    /// A member of a sorted set.
    Member,
}

/// The form of a command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Keys, and the time-out behind them: BLPOP, BZPOPMIN and their kin.
    Pop,
    /// From one key to another; the time-out is the last argument: BLMOVE, BRPOPLPUSH.
    Move,
    /// The time-out, the number of keys, the keys, and options: BLMPOP, BZMPOP.
    Counted,
}

/// A command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// What for.
    pub awaited: Awaited,
    /// Where its arguments stand.
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
            _ => return None,
        };
        Some(Blocking { awaited, form })
    }

    /// Where the keys stand that `args` waits for, the name being the first of them; `None` if there are
    /// too few arguments.
    #[must_use]
    pub fn awaited_keys(self, args: &[&[u8]]) -> Option<Range<usize>> {
        let range = match self.form {
            Form::Pop => 1..args.len().checked_sub(1)?,
            Form::Move => 1..2,
            Form::Counted => {
                let count = crate::resp::number(args.get(2)?)?;
                3..3usize.checked_add(usize::try_from(count).ok()?)?
            }
        };
        (range.start < range.end && range.end <= args.len()).then_some(range)
    }

    /// How long `args` waits, in ms; 0: for ever.
    ///
    /// # Errors
    /// The text of Redis' error.
    pub fn timeout_ms(self, args: &[&[u8]]) -> Result<u64, &'static [u8]> {
        let text = match self.form {
            Form::Pop | Form::Move => args.last(),
            Form::Counted => args.get(1),
        };
        timeout_ms(text.copied().unwrap_or_default())
    }
}

/// A time-out in seconds, as ms.
///
/// # Errors
/// The text of Redis' error.
pub fn timeout_ms(text: &[u8]) -> Result<u64, &'static [u8]> {
    const MS_MAX: f64 = i64::MAX as f64;
    /// What a wall clock may show is added to it.
    const SUM_MAX: u64 = i64::MAX as u64 - (1 << 42);
    let seconds = double(text).ok_or(&b"ERR timeout is not a float or out of range"[..])?;
    let ms = seconds * 1_000.0;
    // What no 64 bits hold is negative in Redis 7.0, too.
    if ms <= -1.0 || ms >= MS_MAX {
        return Err(b"ERR timeout is negative");
    }
    // Rounded up, as Redis does: a tenth of a ms is not for ever.
    let whole = ms as u64;
    let ms = whole + u64::from((whole as f64) < ms);
    if ms > SUM_MAX { Err(b"ERR timeout is out of range") } else { Ok(ms) }
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
    }
}
