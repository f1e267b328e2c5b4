//! The part that SCAN, HSCAN, SSCAN and ZSCAN share.
//!
//! A cursor is a position in the space of hashes, so that it needs no state, means the same at
//! every replica, and an element that is there during a whole scan is returned.

use alloc::vec::Vec;

use concord_core::hash::hash64;

use super::{Failure, SYNTAX, fixed, glob, integer};
use crate::resp;
use crate::table::UpperName;

/// The number of bits of a collection's cursor.
const CURSOR_BITS: u32 = 48;
/// A collection up to this size is returned by one call, as Redis' packed encodings are.
const WHOLE_MAX: usize = 512;
/// The largest number of calls for a scan of a larger collection: each looks at all elements.
const CALLS_MAX: u64 = 64;

/// The options after the cursor.
pub(super) struct ScanOptions<'a> {
    pub(super) count: usize,
    pattern: Option<&'a [u8]>,
    pub(super) type_name: Option<&'a [u8]>,
}

impl<'a> ScanOptions<'a> {
    pub(super) fn parse(args: &[&'a [u8]], has_type: bool) -> Result<ScanOptions<'a>, Failure> {
        let mut options = ScanOptions { count: 10, pattern: None, type_name: None };
        let (pairs, rest) = args.as_chunks::<2>();
        for [name, value] in pairs {
            match UpperName::of(name).bytes() {
                b"COUNT" => {
                    let count = integer(value)?;
                    options.count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or(SYNTAX)?;
                }
                b"MATCH" => options.pattern = Some(value),
                b"TYPE" if has_type => options.type_name = Some(value),
                _ => return Err(SYNTAX),
            }
        }
        if rest.is_empty() { Ok(options) } else { Err(SYNTAX) }
    }

    pub(super) fn matches(&self, text: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, text))
    }
}

/// Reads a cursor as C's strtoul does: empty is 0, a minus wraps around.
pub(super) fn cursor(text: &[u8]) -> Result<u64, Failure> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut value = 0u64;
    for &byte in digits {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
        let next = digit.and_then(|digit| value.checked_mul(10)?.checked_add(digit));
        value = next.ok_or(fixed(b"ERR invalid cursor"))?;
    }
    Ok(if digits.len() < text.len() { value.wrapping_neg() } else { value })
}

/// Appends the reply for a key that does not exist.
pub(super) fn empty(reply: &mut Vec<u8>) {
    reply_header(reply, 0, 0);
}

/// Appends all of a reply but its elements.
pub(super) fn reply_header(reply: &mut Vec<u8>, next_cursor: u64, elements: usize) {
    resp::array(reply, 2);
    let mut text = Vec::new();
    resp::decimal(&mut text, next_cursor as i64);
    resp::bulk(reply, &text);
    resp::array(reply, elements);
}

/// The part of a collection that one call returns.
pub(super) struct Window {
    start: u64,
    /// Exclusive; the next cursor. 0: up to the end.
    end: u64,
}

/// The window of a collection of `length` elements that begins at `cursor`, for about `count`.
pub(super) fn window(cursor: u64, count: usize, length: usize) -> Window {
    if length <= WHOLE_MAX {
        return Window { start: 0, end: 0 };
    }
    let calls = (length as u64 / count as u64).clamp(1, CALLS_MAX);
    let end = cursor.saturating_add((1 << CURSOR_BITS) / calls + 1);
    Window { start: cursor, end: if end >= 1 << CURSOR_BITS { 0 } else { end } }
}

impl Window {
    pub(super) fn contains(&self, element: &[u8]) -> bool {
        if self.start == 0 && self.end == 0 {
            return true;
        }
        let place = hash64(2, element) >> (64 - CURSOR_BITS);
        place >= self.start && (self.end == 0 || place < self.end)
    }

    pub(super) fn header(&self, reply: &mut Vec<u8>, elements: usize) {
        reply_header(reply, self.end, elements);
    }
}
