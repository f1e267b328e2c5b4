//! Lua 5.1's patterns (section 5.4.1 of its manual), in bounded time: the cost of a match counts as
//! instructions of the script, since Lua's own functions may take forever within one instruction.

use crate::meter::Meter;

/// The largest number of captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// The nesting beyond which patterns are refused.
const DEPTH_MAX: usize = 200;
/// The characters that make a text a pattern.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// A capture: the text matched between parentheses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Capture {
    Open(usize),
    Text(usize, usize),
    /// `()`: the position.
    Place(usize),
}

/// The reason that a match has no result.
#[derive(Debug)]
pub(crate) enum Bad {
    Text(String),
    /// It took more steps than permitted.
    Over,
}

fn bad<T>(text: &str) -> Result<T, Bad> {
    Err(Bad::Text(text.to_owned()))
}

/// Whether `pattern` is plain text.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| SPECIAL.contains(byte))
}

/// The matching of a pattern on a text.
pub(crate) struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    pub(crate) captures: Vec<Capture>,
    depth: usize,
    /// The steps that are not paid for yet.
    pub(crate) steps: u64,
    meter: &'a Meter,
}

/// The number of steps that are paid for at once.
const STEPS_AT_ONCE: u64 = 1_024;

impl<'a> Matcher<'a> {
    pub(crate) fn new(text: &'a [u8], pattern: &'a [u8], meter: &'a Meter) -> Matcher<'a> {
        // As in C, a pattern ends at its first zero byte.
        let end = pattern.iter().position(|byte| *byte == 0).unwrap_or(pattern.len());
        let pattern = &pattern[..end];
        Matcher { text, pattern, captures: Vec::new(), depth: 0, steps: 0, meter }
    }

    /// The end of a match that begins at `at`, with the pattern from `from` on.
    pub(crate) fn at(&mut self, at: usize, from: usize) -> Result<Option<usize>, Bad> {
        self.captures.clear();
        self.matches(at, from)
    }

    fn step(&mut self) -> Result<(), Bad> {
        self.steps += 1;
        if self.steps < STEPS_AT_ONCE {
            return Ok(());
        }
        self.meter.add(std::mem::take(&mut self.steps));
        if self.meter.is_over() { Err(Bad::Over) } else { Ok(()) }
    }

    fn matches(&mut self, at: usize, p: usize) -> Result<Option<usize>, Bad> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return bad("pattern too complex");
        }
        let found = self.matches_here(at, p);
        self.depth -= 1;
        found
    }

    fn matches_here(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>, Bad> {
        loop {
            self.step()?;
            let rest = &self.pattern[p..];
            match rest {
                [] => return Ok(Some(s)),
                [b'(', b')', ..] => return self.open(s, p + 2, Capture::Place(s)),
                [b'(', ..] => return self.open(s, p + 1, Capture::Open(s)),
                [b')', ..] => return self.close(s, p + 1),
                [b'$'] => return Ok((s == self.text.len()).then_some(s)),
                [b'%', b'b', pair @ ..] => {
                    let Some(end) = self.balanced(s, pair)? else { return Ok(None) };
                    (s, p) = (end, p + 4);
                }
                [b'%', b'f', set @ ..] => {
                    if set.first() != Some(&b'[') {
                        return bad("missing '[' after '%f' in pattern");
                    }
                    let end = self.item_end(p + 2)?;
                    let before = if s == 0 { 0 } else { self.text[s - 1] };
                    let here = self.text.get(s).copied().unwrap_or(0);
                    if self.in_set(before, p + 2, end) || !self.in_set(here, p + 2, end) {
                        return Ok(None);
                    }
                    p = end;
                }
                [b'%', digit @ b'0'..=b'9', ..] => {
                    let Some(end) = self.again(s, *digit)? else { return Ok(None) };
                    (s, p) = (end, p + 2);
                }
                _ => {
                    let end = self.item_end(p)?;
                    let is_here = self.one(s, p, end);
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if is_here && let Some(found) = self.matches(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.longest(s, p, end),
                        Some(b'+') if is_here => return self.longest(s + 1, p, end),
                        Some(b'+') => return Ok(None),
                        Some(b'-') => return self.shortest(s, p, end),
                        _ if is_here => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn open(&mut self, s: usize, p: usize, capture: Capture) -> Result<Option<usize>, Bad> {
        if self.captures.len() >= CAPTURES_MAX {
            return bad("too many captures");
        }
        let level = self.captures.len();
        self.captures.push(capture);
        let found = self.matches(s, p)?;
        if found.is_none() {
            self.captures.truncate(level);
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Result<Option<usize>, Bad> {
        let open = self.captures.iter().rposition(|own| matches!(own, Capture::Open(_)));
        let Some(level) = open else { return bad("invalid pattern capture") };
        let Capture::Open(start) = self.captures[level] else { return Ok(None) };
        self.captures[level] = Capture::Text(start, s);
        let found = self.matches(s, p)?;
        if found.is_none() {
            self.captures[level] = Capture::Open(start);
        }
        Ok(found)
    }

    fn balanced(&mut self, s: usize, pair: &[u8]) -> Result<Option<usize>, Bad> {
        let [open, close, ..] = pair else { return bad("unbalanced pattern") };
        let (open, close) = (*open, *close);
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for at in s + 1..self.text.len() {
            self.step()?;
            let byte = self.text[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%1`: matches again what that capture has matched.
    fn again(&mut self, s: usize, digit: u8) -> Result<Option<usize>, Bad> {
        let capture = usize::from(digit - b'0').checked_sub(1).and_then(|at| self.captures.get(at));
        let (start, end) = match capture {
            Some(Capture::Text(start, end)) => (*start, *end),
            // A position has no length, so that nothing matches it.
            Some(Capture::Place(_)) => return Ok(None),
            Some(Capture::Open(_)) | None => return bad("invalid capture index"),
        };
        self.steps += (end - start) as u64;
        let found = self.text[s..].starts_with(&self.text[start..end]);
        Ok(found.then_some(s + end - start))
    }

    fn longest(&mut self, s: usize, p: usize, end: usize) -> Result<Option<usize>, Bad> {
        let mut count = 0;
        while self.one(s + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(found) = self.matches(s + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn shortest(&mut self, mut s: usize, p: usize, end: usize) -> Result<Option<usize>, Bad> {
        loop {
            if let Some(found) = self.matches(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.one(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    /// The end of the single item that begins at `p`.
    fn item_end(&self, p: usize) -> Result<usize, Bad> {
        match &self.pattern[p..] {
            [b'%'] => bad("malformed pattern (ends with '%')"),
            [b'%', _, ..] => Ok(p + 2),
            [b'[', rest @ ..] => {
                let mut at = usize::from(rest.first() == Some(&b'^'));
                // The first character of a set may be a bracket itself.
                let mut is_first = true;
                loop {
                    match rest.get(at) {
                        None => return bad("malformed pattern (missing ']')"),
                        Some(b']') if !is_first => return Ok(p + 1 + at + 1),
                        Some(b'%') => at += 2,
                        Some(_) => at += 1,
                    }
                    is_first = false;
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the item `p..end` matches the character at `s`.
    fn one(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => in_class(byte, self.pattern[p + 1]),
            b'[' => self.in_set(byte, p, end),
            own => own == byte,
        }
    }

    /// Whether a character is in the set `[...]` at `p..end`.
    fn in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let mut set = &self.pattern[p + 1..end - 1];
        let negated = set.first() == Some(&b'^');
        if negated {
            set = &set[1..];
        }
        let mut found = false;
        while let [first, rest @ ..] = set {
            set = match (first, rest) {
                (b'%', [class, rest @ ..]) => {
                    found |= in_class(byte, *class);
                    rest
                }
                (low, [b'-', high, rest @ ..]) => {
                    found |= (*low..=*high).contains(&byte);
                    rest
                }
                (own, rest) => {
                    found |= *own == byte;
                    rest
                }
            };
        }
        found != negated
    }
}

/// The classes of C's locale.
fn in_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}
