//! Requests as clients send them: arrays of bulk strings, or an inline line.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use concord_wire::{COMMAND_BYTES_MAX, VALUE_BYTES_MAX};

/// Redis' limits: most arguments, longest bulk string, longest inline line in bytes.
const ARGS_MAX: i64 = 1024 * 1024;
const BULK_BYTES_MAX: i64 = 512 * 1024 * 1024;
const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Redis' limits for who has not given the password yet.
const UNAUTHENTICATED_ARGS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_BYTES_MAX: i64 = 16 * 1024;
/// Largest request that is kept, in bytes: the largest command, and ten bytes more for the length
/// of each of a million arguments. What is larger is read to its end and refused.
pub const REQUEST_BYTES_MAX: usize = COMMAND_BYTES_MAX + 10 * ARGS_MAX as usize;
/// The first two bytes of a TLS client: a handshake record of version 3.x (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;
/// Room for so many arguments is kept between requests.
const ARGS_KEPT: usize = 256;

/// What stands at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not a whole request yet.
    Incomplete,
    /// A request of so many bytes; its arguments are in [`Parser::args`] (none: an empty line).
    Request(usize),
    /// So many bytes belong to a request that is too large: drop them and go on behind.
    Dropped(usize),
    /// The end of a request that is too large, all of whose bytes were dropped.
    TooLarge,
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
    /// Quotes of an inline line do not match.
    UnbalancedQuotes,
    /// Too many arguments before the password.
    UnauthenticatedMultibulk,
    /// Too long an argument before the password.
    UnauthenticatedBulk,
    /// The beginning of a TLS handshake.
    Tls,
}

impl ProtocolError {
    /// The reply.
    #[must_use]
    pub fn text(self) -> String {
        let what = match self {
            ProtocolError::MultibulkLength => "invalid multibulk length",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::ExpectedDollar(byte) => {
                return alloc::format!("ERR Protocol error: expected '$', got '{}'", byte as char);
            }
            ProtocolError::TooBigInline => "too big inline request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
            ProtocolError::UnauthenticatedMultibulk => "unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulk => "unauthenticated bulk length",
            ProtocolError::Tls => "this port does not speak TLS; connect without it",
        };
        alloc::format!("ERR Protocol error: {what}")
    }
}

/// Finds requests in a connection's input. It keeps its place in a request that has not come as a
/// whole, so that every byte is looked at once, and allocates nothing per request: arguments are
/// ranges of the input.
#[derive(Clone, Debug)]
pub struct Parser {
    /// Longest argument, in bytes; one that is longer is read to its end and refused.
    pub value_bytes_max: usize,
    /// Arguments still to come of a request that has begun; `None` between requests.
    missing: Option<usize>,
    /// Where parsing goes on, from the start of the request.
    at: usize,
    args: Vec<Range<usize>>,
    /// The arguments of an inline request, quotes resolved, one behind the other.
    words: Vec<u8>,
    is_inline: bool,
    is_dropping: bool,
    /// Bytes still to be dropped of the present argument; only while dropping.
    skip_bytes: usize,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser {
            value_bytes_max: VALUE_BYTES_MAX,
            missing: None,
            at: 0,
            args: Vec::new(),
            words: Vec::new(),
            is_inline: false,
            is_dropping: false,
            skip_bytes: 0,
        }
    }
}

/// A line's number and where the next line starts; `None` if the line is not whole.
fn number_line(input: &[u8], at: usize) -> Option<(Option<i64>, usize)> {
    let negative = input.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let mut value = 0i64;
    let mut i = first;
    loop {
        match *input.get(i)? {
            digit @ b'0'..=b'9' if i - first < 18 => value = value * 10 + i64::from(digit - b'0'),
            b'\r' => {
                input.get(i + 1)?;
                let value = if negative { -value } else { value };
                return Some(((i > first).then_some(value), i + 2));
            }
            _ => return Some((None, i)),
        }
        i += 1;
    }
}

impl Parser {
    /// Looks for a request at the start of `input`. A request that was found is found again until
    /// [`Parser::next`] is called.
    pub fn parse(&mut self, input: &[u8], authenticated: bool) -> Parsed {
        if self.missing.is_none() {
            match input.first() {
                None => return Parsed::Incomplete,
                Some(b'*') => {
                    let Some((count, at)) = number_line(input, 1) else {
                        return Parsed::Incomplete;
                    };
                    let count = match count {
                        Some(count) if count <= ARGS_MAX => count,
                        Some(_) | None => return Parsed::Error(ProtocolError::MultibulkLength),
                    };
                    if !authenticated && count > UNAUTHENTICATED_ARGS_MAX {
                        return Parsed::Error(ProtocolError::UnauthenticatedMultibulk);
                    }
                    self.at = at;
                    self.missing = Some(count.max(0) as usize);
                }
                Some(&TLS_HANDSHAKE) if input.len() == 1 => return Parsed::Incomplete,
                Some(&TLS_HANDSHAKE) if input[1] == TLS_MAJOR => {
                    return Parsed::Error(ProtocolError::Tls);
                }
                Some(_) => return self.parse_inline(input),
            }
        }
        self.parse_arguments(input, authenticated)
    }

    fn parse_arguments(&mut self, input: &[u8], authenticated: bool) -> Parsed {
        while let Some(missing @ 1..) = self.missing {
            if self.is_dropping && self.skip_bytes > 0 {
                return self.drop_argument(input);
            }
            match input.get(self.at) {
                None => return Parsed::Incomplete,
                Some(b'$') => {}
                Some(other) => return Parsed::Error(ProtocolError::ExpectedDollar(*other)),
            }
            let Some((length, start)) = number_line(input, self.at + 1) else {
                return Parsed::Incomplete;
            };
            let length = match length {
                Some(length) if (0..=BULK_BYTES_MAX).contains(&length) => length,
                Some(_) | None => return Parsed::Error(ProtocolError::BulkLength),
            };
            if !authenticated && length > UNAUTHENTICATED_BULK_BYTES_MAX {
                return Parsed::Error(ProtocolError::UnauthenticatedBulk);
            }
            let end = start + length as usize + 2;
            let is_large = length as usize > self.value_bytes_max || end > REQUEST_BYTES_MAX;
            if self.is_dropping || is_large {
                self.is_dropping = true;
                self.skip_bytes = length as usize + 2;
                self.args.clear();
                self.at = 0;
                return Parsed::Dropped(start);
            }
            if input.len() < end {
                return Parsed::Incomplete;
            }
            self.args.push(start..end - 2);
            self.at = end;
            self.missing = Some(missing - 1);
        }
        if self.is_dropping { Parsed::TooLarge } else { Parsed::Request(self.at) }
    }

    fn drop_argument(&mut self, input: &[u8]) -> Parsed {
        if input.is_empty() {
            return Parsed::Incomplete;
        }
        let dropped = self.skip_bytes.min(input.len());
        self.skip_bytes -= dropped;
        if self.skip_bytes == 0 {
            self.missing = self.missing.map(|missing| missing - 1);
        }
        Parsed::Dropped(dropped)
    }

    fn parse_inline(&mut self, input: &[u8]) -> Parsed {
        let Some(end) = input.iter().position(|b| *b == b'\n') else {
            return if input.len() > INLINE_BYTES_MAX {
                Parsed::Error(ProtocolError::TooBigInline)
            } else {
                Parsed::Incomplete
            };
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.is_inline = true;
        self.missing = Some(0);
        self.at = end + 1;
        let mut i = 0;
        loop {
            while line.get(i).is_some_and(u8::is_ascii_whitespace) {
                i += 1;
            }
            if i >= line.len() {
                return Parsed::Request(end + 1);
            }
            let start = self.words.len();
            match inline_word(line, i, &mut self.words) {
                Some(next) => i = next,
                None => return Parsed::Error(ProtocolError::UnbalancedQuotes),
            }
            self.args.push(start..self.words.len());
        }
    }

    /// The arguments of the request at the start of `input`, as ranges of the returned bytes.
    #[must_use]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> (&'a [u8], &'a [Range<usize>]) {
        (if self.is_inline { &self.words } else { input }, &self.args)
    }

    /// Goes to the next request, which starts where this one ended.
    pub fn next(&mut self) {
        self.missing = None;
        self.at = 0;
        self.args.clear();
        self.args.shrink_to(ARGS_KEPT);
        self.words.clear();
        self.is_inline = false;
        self.is_dropping = false;
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

    /// Feeds `input` in pieces that end at the cuts; gives what came of it.
    fn parse_in_pieces(input: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, usize, Option<String>) {
        let (mut parser, mut kept) = (Parser::default(), vec![]);
        let (mut requests, mut large) = (vec![], 0);
        let mut from = 0;
        for to in cuts.iter().copied().chain([input.len()]) {
            kept.extend_from_slice(&input[from..to]);
            from = to;
            loop {
                match parser.parse(&kept, true) {
                    Parsed::Incomplete => break,
                    Parsed::Request(length) => {
                        let (bytes, ranges) = parser.args(&kept);
                        requests.push(ranges.iter().map(|r| bytes[r.clone()].to_vec()).collect());
                        kept.drain(..length);
                        parser.next();
                    }
                    Parsed::Dropped(length) => drop(kept.drain(..length)),
                    Parsed::TooLarge => {
                        large += 1;
                        parser.next();
                    }
                    Parsed::Error(error) => return (requests, large, Some(error.text())),
                }
            }
        }
        (requests, large, None)
    }

    fn words(input: &[u8]) -> Vec<Vec<u8>> {
        parse_in_pieces(input, &[]).0.remove(0)
    }

    #[test]
    fn requests_are_the_same_cut_at_any_byte() {
        let input =
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\nPING \"a b\"\r\n*0\r\n*1\r\n$4\r\nPING\r\n";
        let whole = parse_in_pieces(input, &[]);
        assert_eq!(whole.0.len(), 4);
        assert_eq!(whole.0[0], [&b"SET"[..], b"k", b""]);
        assert_eq!(whole.0[1], [&b"PING"[..], b"a b"]);
        for cut in 0..input.len() {
            assert_eq!(parse_in_pieces(input, &[cut]), whole, "cut at {cut}");
        }
        let all: Vec<usize> = (0..input.len()).collect();
        assert_eq!(parse_in_pieces(input, &all), whole);
    }

    #[test]
    fn protocol_errors_are_worded_as_by_redis() {
        for (input, text) in [
            (&b"*2\r\n+"[..], "ERR Protocol error: expected '$', got '+'"),
            (b"*x\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*9999999999\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*99999999999999999999999\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "ERR Protocol error: invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "ERR Protocol error: invalid bulk length"),
            (b"get \"a\n", "ERR Protocol error: unbalanced quotes in request"),
            (
                b"\x16\x03\x01\x02\x00\x01",
                "ERR Protocol error: this port does not speak TLS; connect without it",
            ),
        ] {
            assert_eq!(parse_in_pieces(input, &[]).2.as_deref(), Some(text));
        }
        let endless = parse_in_pieces(&[b'a'; 70_000], &[]).2;
        assert_eq!(endless.as_deref(), Some("ERR Protocol error: too big inline request"));
        let before_auth = |input: &[u8]| Parser::default().parse(input, false);
        let error = before_auth(b"*11\r\n");
        assert_eq!(error, Parsed::Error(ProtocolError::UnauthenticatedMultibulk));
        let error = before_auth(b"*1\r\n$20000\r\n");
        assert_eq!(error, Parsed::Error(ProtocolError::UnauthenticatedBulk));
    }

    #[test]
    fn inline_lines_have_words_and_quotes() {
        assert_eq!(words(b"PING\r\n"), [b"PING"]);
        let line = b"  set  k \"a\\x41\\n b\" 'c\\'d'\n";
        assert_eq!(words(line), [&b"set"[..], b"k", b"aA\n b", b"c'd"]);
        assert_eq!(words(b"\r\n"), Vec::<Vec<u8>>::new());
    }

    /// A request that is too large is dropped as it comes and the next is found.
    #[test]
    fn oversized_request_is_dropped_and_next_found() {
        let value = vec![b'v'; VALUE_BYTES_MAX + 1];
        let mut input = b"*4\r\n$4\r\nMSET\r\n$1\r\nk\r\n$67108801\r\n".to_vec();
        input.extend_from_slice(&value);
        input.extend_from_slice(b"\r\n$1\r\nx\r\nPING\r\n");
        for cuts in [vec![], vec![40, 500, 600_000], (0..60).collect()] {
            let (requests, large, error) = parse_in_pieces(&input, &cuts);
            assert_eq!((requests, large, error), (vec![vec![b"PING".to_vec()]], 1, None));
        }
    }
}
