//! Finds where a RESP2 or RESP3 reply ends in a stream of bytes, without building a value.
//!
//! Replies are opaque to us (they travel to the client as the server wrote them), so that all the
//! Redis engine needs is their boundaries. Read [`Scanner`] first. Source: the Redis serialization
//! protocol specification (RESP2 and RESP3; streamed types, which no server sends, are refused).

/// Deepest nesting that is accepted. `COMMAND DOCS` nests 9 deep, XINFO STREAM FULL 6; what a
/// script returns 128, within a transaction.
pub const DEPTH_MAX: usize = 160;

/// Longest line (an error text, a number, a header) that is accepted, in bytes. A script's error
/// may be as long as the script makes it.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Longest bulk string and largest number of elements that are accepted: Redis' own limits.
const LENGTH_MAX: u64 = 1 << 32;

/// Why bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// No type starts with this byte.
    Type(u8),
    /// A length is not a number, or too large, or what it counts does not end by CR LF.
    Length,
    /// Nested deeper than [`DEPTH_MAX`].
    Depth,
    /// A line longer than [`LINE_BYTES_MAX`].
    Line,
}

/// Finds the end of one reply at a time, however the bytes are cut.
///
/// The law: [`Scanner::scan`] is called with all bytes of the current reply that have come so far,
/// from its first byte on; it never looks at a byte twice, except for one line's last.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// The next element (or, while `body` is not 0, its body) starts here.
    at: usize,
    /// No CR LF begins in `at..searched`.
    searched: usize,
    /// Bytes of a bulk string that must follow at `at`, CR LF included; 0: none.
    body: usize,
    /// Elements that are still to come at each level of nesting; `missing[0]` is the reply itself.
    missing: [u64; DEPTH_MAX],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner::new()
    }
}

impl Scanner {
    /// At the beginning of a reply.
    #[must_use]
    pub fn new() -> Scanner {
        let mut missing = [0; DEPTH_MAX];
        missing[0] = 1;
        Scanner { at: 0, searched: 0, body: 0, missing, depth: 0 }
    }

    /// The length in bytes of the reply that `frame` starts with, once it is complete (the scanner
    /// is then at the beginning of the next); `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`ScanError`] if `frame` does not start with a reply; the stream cannot be read any further.
    pub fn scan(&mut self, frame: &[u8]) -> Result<Option<usize>, ScanError> {
        loop {
            if self.body > 0 {
                let end = self.at + self.body;
                if frame.len() < end {
                    return Ok(None);
                }
                if &frame[end - 2..end] != b"\r\n" {
                    return Err(ScanError::Length);
                }
                (self.at, self.searched, self.body) = (end, end, 0);
                self.element_done();
            } else {
                let Some(line) = self.line(frame)? else { return Ok(None) };
                self.element(line)?;
            }
            if self.missing[0] == 0 {
                let length = self.at;
                *self = Scanner::new();
                return Ok(Some(length));
            }
        }
    }

    /// Whether it is at the beginning of a reply.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.at == 0 && self.searched == 0 && self.body == 0 && self.depth == 0
    }

    /// Of a reply of which `length` bytes have come, the number of those at its beginning that
    /// [`Scanner::scan`] no longer looks at: it is to be given the others alone from now on.
    pub fn drop_seen(&mut self, length: usize) -> usize {
        let mut seen = self.at;
        if self.body > 0 {
            // The CR LF after it is checked.
            let of_body = length.saturating_sub(self.at).min(self.body - 2);
            self.body -= of_body;
            seen += of_body;
        }
        (self.at, self.searched) = (0, self.searched.saturating_sub(seen));
        seen
    }

    /// The line at `at`, without CR LF. Moves past it.
    fn line<'a>(&mut self, frame: &'a [u8]) -> Result<Option<&'a [u8]>, ScanError> {
        let from = self.searched.max(self.at);
        let found = frame.get(from..).and_then(|rest| rest.windows(2).position(|w| w == b"\r\n"));
        let end = found.map(|offset| from + offset);
        if end.unwrap_or(frame.len()).saturating_sub(self.at) > LINE_BYTES_MAX {
            return Err(ScanError::Line);
        }
        let Some(end) = end else {
            // The last byte may be the CR of a CR LF that is cut in two.
            self.searched = frame.len().saturating_sub(1).max(self.at);
            return Ok(None);
        };
        let line = &frame[self.at..end];
        (self.at, self.searched) = (end + 2, end + 2);
        Ok(Some(line))
    }

    /// Takes an element whose first line is `line`.
    fn element(&mut self, line: &[u8]) -> Result<(), ScanError> {
        let (&kind, rest) = line.split_first().ok_or(ScanError::Type(b'\r'))?;
        match kind {
            b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => self.element_done(),
            b'$' | b'=' | b'!' => match length(rest)? {
                // The length is at most LENGTH_MAX, which fits.
                Some(bytes) => self.body = bytes as usize + 2,
                None => self.element_done(),
            },
            b'*' | b'~' | b'>' => self.open(length(rest)?.unwrap_or(0))?,
            b'%' => self.open(2 * length(rest)?.unwrap_or(0))?,
            // Attributes come before the value that they describe: one more element in its place.
            b'|' => {
                self.missing[self.depth] += 1;
                self.open(2 * length(rest)?.unwrap_or(0))?;
            }
            other => return Err(ScanError::Type(other)),
        }
        Ok(())
    }

    fn open(&mut self, children: u64) -> Result<(), ScanError> {
        if children == 0 {
            self.element_done();
            return Ok(());
        }
        if self.depth + 1 == DEPTH_MAX {
            return Err(ScanError::Depth);
        }
        self.depth += 1;
        self.missing[self.depth] = children;
        Ok(())
    }

    fn element_done(&mut self) {
        self.missing[self.depth] -= 1;
        while self.depth > 0 && self.missing[self.depth] == 0 {
            self.depth -= 1;
            self.missing[self.depth] -= 1;
        }
    }
}

/// A length; `None` for -1, the null of RESP2.
fn length(digits: &[u8]) -> Result<Option<u64>, ScanError> {
    if digits == b"-1" {
        return Ok(None);
    }
    let number = number(digits).ok_or(ScanError::Length)?;
    match u64::try_from(number) {
        Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
        _ => Err(ScanError::Length),
    }
}

/// A decimal integer.
pub(crate) fn number(digits: &[u8]) -> Option<i64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The length of the first frame of `bytes`, at any depth of nesting (up to [`DEPTH_MAX`]).
#[must_use]
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    Scanner::new().scan(bytes).ok().flatten()
}

/// The elements of the array, set, push or map `frame` (keys and values in turn), which must be a
/// whole reply; none of anything else.
#[must_use]
pub fn elements(frame: &[u8]) -> Elements<'_> {
    let line_end = frame.windows(2).position(|w| w == b"\r\n");
    match (frame.first(), line_end) {
        (Some(b'*' | b'~' | b'>' | b'%'), Some(end)) => Elements { rest: &frame[end + 2..] },
        _ => Elements { rest: &[] },
    }
}

/// Iterates over the elements of an aggregate; see [`elements`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let length = Scanner::new().scan(self.rest).ok().flatten()?;
        let (element, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(element)
    }
}

/// The text of a string, number or error reply (a bulk or a line; of a verbatim string behind its
/// format); `None` for a null and for aggregates.
#[must_use]
pub fn text(frame: &[u8]) -> Option<&[u8]> {
    let end = frame.windows(2).position(|w| w == b"\r\n")?;
    match frame.first()? {
        b'+' | b'-' | b':' | b',' | b'(' | b'#' => frame.get(1..end),
        b'$' | b'!' => frame.get(end + 2..frame.len().checked_sub(2)?),
        b'=' => frame.get(end + 6..frame.len().checked_sub(2)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;
    use concord_core::Rng;

    /// Appends a random reply that nests at most `depth` deep.
    fn random_reply(rng: &mut Rng, depth: u64, out: &mut Vec<u8>) {
        let bulk = |rng: &mut Rng, out: &mut Vec<u8>, kind: char| {
            let length = rng.below(12);
            out.extend_from_slice(format!("{kind}{length}\r\n").as_bytes());
            // Bodies made of what delimits lines and elements: they must not be looked into.
            out.extend((0..length).map(|_| b"\r\n*$3x"[rng.below(6) as usize]));
            out.extend_from_slice(b"\r\n");
        };
        match rng.below(if depth == 0 { 11 } else { 17 }) {
            0 => out.extend_from_slice(b"+OK\r\n"),
            1 => out.extend_from_slice(b"-ERR no\r\r\n"),
            2 => out.extend_from_slice(b":-42\r\n"),
            3 => out.extend_from_slice(b"$-1\r\n"),
            4 => out.extend_from_slice(b"*-1\r\n"),
            5 => out.extend_from_slice(b"_\r\n"),
            6 => out.extend_from_slice(b",1.5\r\n"),
            7 => out.extend_from_slice(b"#t\r\n"),
            8 => out.extend_from_slice(b"(3492890328409238509324850943850943825024385\r\n"),
            9 => bulk(rng, out, '$'),
            10 => bulk(rng, out, '!'),
            kind => {
                let count = rng.below(4);
                let (sign, children) = [
                    ('*', count),
                    ('~', count),
                    ('>', count),
                    ('%', 2 * count),
                    // The value that the attribute describes follows it.
                    ('|', 2 * count + 1),
                    ('*', count),
                ][kind as usize - 11];
                out.extend_from_slice(format!("{sign}{count}\r\n").as_bytes());
                (0..children).for_each(|_| random_reply(rng, depth - 1, out));
            }
        }
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same_replies() {
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let (mut stream, mut ends) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                random_reply(&mut rng, 4, &mut stream);
                ends.push(stream.len());
            }
            let (mut scanner, mut start, mut have, mut found) = (Scanner::new(), 0, 0, Vec::new());
            while have < stream.len() {
                have = (have + 1 + rng.below(9) as usize).min(stream.len());
                while let Some(length) = scanner.scan(&stream[start..have]).unwrap() {
                    start += length;
                    found.push(start);
                }
            }
            assert_eq!(found, ends, "seed {seed}");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let scan = |bytes: &[u8]| Scanner::new().scan(bytes);
        assert_eq!(scan(b"?\r\n"), Err(ScanError::Type(b'?')));
        assert_eq!(scan(b"\r\n"), Err(ScanError::Type(b'\r')));
        assert_eq!(scan(b"$x\r\n"), Err(ScanError::Length));
        assert_eq!(scan(b"$?\r\n"), Err(ScanError::Length));
        assert_eq!(scan(b"$-2\r\n"), Err(ScanError::Length));
        assert_eq!(scan(b"*99999999999\r\n"), Err(ScanError::Length));
        assert_eq!(scan(b"$1\r\nabc"), Err(ScanError::Length));
        assert_eq!(scan(&b"*1\r\n".repeat(DEPTH_MAX)), Err(ScanError::Depth));
        assert_eq!(scan(&vec![b'+'; LINE_BYTES_MAX + 2]), Err(ScanError::Line));
        let deep = [b"*1\r\n".repeat(DEPTH_MAX - 1), b":1\r\n".to_vec()].concat();
        assert_eq!(scan(&deep), Ok(Some(deep.len())));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut rng = Rng::new(7);
        for _ in 0..20_000 {
            let bytes: Vec<u8> =
                (0..rng.below(24)).map(|_| b"*$+-:%|~\r\n0123?x"[rng.below(16) as usize]).collect();
            let _ = Scanner::new().scan(&bytes);
            let _ = (elements(&bytes).count(), text(&bytes));
        }
    }

    #[test]
    fn elements_and_texts_are_the_parts_of_a_reply() {
        let frame = b"*3\r\n$2\r\nab\r\n*1\r\n:7\r\n=5\r\ntxt:x\r\n";
        let parts: Vec<&[u8]> = elements(frame).collect();
        assert_eq!(parts, [&b"$2\r\nab\r\n"[..], b"*1\r\n:7\r\n", b"=5\r\ntxt:x\r\n"]);
        assert_eq!((text(parts[0]), text(parts[1])), (Some(&b"ab"[..]), None));
        assert_eq!((text(parts[2]), text(b"$-1\r\n")), (Some(&b"x"[..]), None));
        assert_eq!(elements(b"+OK\r\n").count(), 0);
    }

    /// A reply that is dropped as it comes ends where it would have.
    #[test]
    fn bug_22_112_what_is_dropped_is_scanned_to_its_end() {
        let frame = b"*3\r\n$10\r\n0123456789\r\n*2\r\n:1\r\n$3\r\nabc\r\n-ERR x\r\n";
        for piece in 1..frame.len() {
            let (mut scanner, mut kept, mut dropped, mut ended) =
                (Scanner::new(), alloc::vec::Vec::new(), 0, None);
            for bytes in frame.chunks(piece) {
                kept.extend_from_slice(bytes);
                match scanner.scan(&kept).unwrap() {
                    Some(length) => ended = Some(dropped + length),
                    None => {
                        let seen = scanner.drop_seen(kept.len());
                        kept.drain(..seen);
                        dropped += seen;
                        assert!(kept.len() <= piece + 8, "{piece}: {}", kept.len());
                    }
                }
            }
            assert_eq!(ended, Some(frame.len()), "{piece}");
        }
    }
}
