//! Requests as clients send them: arrays of bulk strings, or an inline line.

use alloc::vec::Vec;
use core::ops::Range;

/// Redis' limits: most arguments, longest bulk string, longest inline line.
const ARGS_MAX: i64 = 1024 * 1024;
const BULK_BYTES_MAX: i64 = 512 * 1024 * 1024;
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// What stands at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not a whole request yet.
    Incomplete,
    /// A request of so many bytes; its arguments are in `args` (none: an empty line).
    Request(usize),
    /// Not the protocol: answer the error and close.
    Error(ProtocolError),
}

/// What is wrong, in Redis' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A number of arguments that cannot be.
    MultibulkLength,
    /// A length of an argument that cannot be.
    BulkLength,
    /// An argument does not start with `$`, but with this.
    ExpectedDollar(u8),
    /// An inline line without end.
    TooBigInline,
    /// A header line without end.
    TooBigCount,
    /// Quotes of an inline line do not match.
    UnbalancedQuotes,
}

impl ProtocolError {
    /// The reply.
    #[must_use]
    pub fn text(self) -> alloc::string::String {
        match self {
            ProtocolError::MultibulkLength => "ERR Protocol error: invalid multibulk length".into(),
            ProtocolError::BulkLength => "ERR Protocol error: invalid bulk length".into(),
            ProtocolError::ExpectedDollar(byte) => {
                alloc::format!("ERR Protocol error: expected '$', got '{}'", byte as char)
            }
            ProtocolError::TooBigInline => "ERR Protocol error: too big inline request".into(),
            ProtocolError::TooBigCount => "ERR Protocol error: too big mbulk count string".into(),
            ProtocolError::UnbalancedQuotes => {
                "ERR Protocol error: unbalanced quotes in request".into()
            }
        }
    }
}

/// A line's number and where the next line starts; `None` if the line is not whole.
fn number_line(input: &[u8], at: usize) -> Option<(Option<i64>, usize)> {
    let mut value = 0i64;
    let mut digits = 0;
    let negative = input.get(at) == Some(&b'-');
    let mut i = at + usize::from(negative);
    loop {
        match *input.get(i)? {
            digit @ b'0'..=b'9' if digits < 18 => {
                value = value * 10 + i64::from(digit - b'0');
                digits += 1;
            }
            b'\r' => {
                input.get(i + 1)?;
                let value = if negative { -value } else { value };
                return Some(((digits > 0).then_some(value), i + 2));
            }
            _ => return Some((None, i)),
        }
        i += 1;
    }
}

/// Parses the request at the start of `input`; its arguments become ranges of `input`. For an inline
/// line with quotes the arguments are in `unquoted` instead, one behind the other.
pub fn parse_request(input: &[u8], args: &mut Vec<Range<usize>>, unquoted: &mut Vec<u8>) -> Parsed {
    args.clear();
    unquoted.clear();
    match input.first() {
        None => Parsed::Incomplete,
        Some(b'*') => parse_multibulk(input, args),
        Some(_) => parse_inline(input, args, unquoted),
    }
}

fn parse_multibulk(input: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
    let Some((count, mut at)) = number_line(input, 1) else {
        return if input.len() > INLINE_BYTES_MAX {
            Parsed::Error(ProtocolError::TooBigCount)
        } else {
            Parsed::Incomplete
        };
    };
    let count = match count {
        Some(count) if count <= ARGS_MAX => count,
        Some(_) | None => return Parsed::Error(ProtocolError::MultibulkLength),
    };
    for _ in 0..count.max(0) {
        match input.get(at) {
            None => return Parsed::Incomplete,
            Some(b'$') => {}
            Some(other) => return Parsed::Error(ProtocolError::ExpectedDollar(*other)),
        }
        let Some((length, start)) = number_line(input, at + 1) else { return Parsed::Incomplete };
        let length = match length {
            Some(length) if (0..=BULK_BYTES_MAX).contains(&length) => length as usize,
            Some(_) | None => return Parsed::Error(ProtocolError::BulkLength),
        };
        at = start + length + 2;
        if input.len() < at {
            return Parsed::Incomplete;
        }
        args.push(start..start + length);
    }
    Parsed::Request(at)
}

fn parse_inline(input: &[u8], args: &mut Vec<Range<usize>>, unquoted: &mut Vec<u8>) -> Parsed {
    let Some(end) = input.iter().position(|b| *b == b'\n') else {
        return if input.len() > INLINE_BYTES_MAX {
            Parsed::Error(ProtocolError::TooBigInline)
        } else {
            Parsed::Incomplete
        };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let mut i = 0;
    loop {
        while line.get(i).is_some_and(u8::is_ascii_whitespace) {
            i += 1;
        }
        if i >= line.len() {
            return Parsed::Request(end + 1);
        }
        let start = unquoted.len();
        match inline_word(line, i, unquoted) {
            Some(next) => i = next,
            None => return Parsed::Error(ProtocolError::UnbalancedQuotes),
        }
        args.push(start..unquoted.len());
    }
}

/// Appends the word at `i`, quotes resolved as by Redis' `sdssplitargs`; where it ends.
fn inline_word(line: &[u8], mut i: usize, out: &mut Vec<u8>) -> Option<usize> {
    let mut quote = None;
    loop {
        let byte = line.get(i).copied();
        match (quote, byte) {
            (None, None) => return Some(i),
            (Some(_), None) => return None,
            (None, Some(b)) if b.is_ascii_whitespace() => return Some(i),
            (None, Some(b @ (b'"' | b'\''))) => quote = Some(b),
            (Some(q), Some(b)) if b == q => {
                let next = line.get(i + 1);
                return next.is_none_or(u8::is_ascii_whitespace).then_some(i + 1);
            }
            (Some(b'"'), Some(b'\\')) => i += escape(&line[i..], out)?,
            (Some(b'\''), Some(b'\\')) if line.get(i + 1) == Some(&b'\'') => {
                out.push(b'\'');
                i += 1;
            }
            (_, Some(b)) => out.push(b),
        }
        i += 1;
    }
}

/// Resolves the escape at the start of `text`; how many bytes behind the backslash it took.
fn escape(text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    if let (Some(b'x'), Some(high), Some(low)) =
        (text.get(1), text.get(2).and_then(|b| hex(*b)), text.get(3).and_then(|b| hex(*b)))
    {
        out.push(high << 4 | low);
        return Some(3);
    }
    out.push(match *text.get(1)? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    });
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn parse(input: &[u8]) -> (Parsed, Vec<Vec<u8>>) {
        let (mut args, mut unquoted) = (vec![], vec![]);
        let parsed = parse_request(input, &mut args, &mut unquoted);
        let from = if input.first() == Some(&b'*') { input } else { &unquoted };
        let words = match parsed {
            Parsed::Request(_) => args.iter().map(|r| from[r.clone()].to_vec()).collect(),
            Parsed::Incomplete | Parsed::Error(_) => vec![],
        };
        (parsed, words)
    }

    #[test]
    fn a_request_is_incomplete_at_every_cut_and_whole_at_its_end() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]).0, Parsed::Incomplete, "{cut}");
        }
        let (parsed, words) = parse(&[whole, &b"*1"[..]].concat());
        assert_eq!(parsed, Parsed::Request(whole.len()));
        assert_eq!(words, [&b"SET"[..], b"k", b""]);
    }

    #[test]
    fn protocol_errors_are_worded_as_by_redis() {
        for (input, text) in [
            (&b"*2\r\n+"[..], "ERR Protocol error: expected '$', got '+'"),
            (b"*x\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*9999999999\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "ERR Protocol error: invalid bulk length"),
            (b"*1\r\n$600000000\r\n", "ERR Protocol error: invalid bulk length"),
            (b"get \"a\n", "ERR Protocol error: unbalanced quotes in request"),
        ] {
            let Parsed::Error(error) = parse(input).0 else { panic!("{input:?}") };
            assert_eq!(error.text(), text);
        }
        assert_eq!(parse(&[b'a'; 70_000]).0, Parsed::Error(ProtocolError::TooBigInline));
    }

    #[test]
    fn inline_lines_have_words_and_quotes() {
        assert_eq!(parse(b"PING\r\n").1, [b"PING"]);
        assert_eq!(
            parse(b"  set  k \"a\\x41\\n b\" 'c\\'d'\n").1,
            [&b"set"[..], b"k", b"aA\n b", b"c'd"]
        );
        assert_eq!(parse(b"\r\n"), (Parsed::Request(2), vec![]));
        assert_eq!(parse(b"*0\r\n"), (Parsed::Request(4), vec![]));
    }
}
