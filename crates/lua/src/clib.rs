//! The two functions of C's library with which Lua's machine reads strings of any length within one
//! instruction: `strcoll`, which compares strings, and `strtod`, which parses numbers. They are
//! defined here so that the bytes that they read are counted. They ignore the locale, so that they
//! do the same at every replica.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use crate::meter::{Counts, DIGITS_OF_ONE, Meter};

/// The number of compared bytes that cost one unit.
const COMPARED_BYTES_OF_ONE: u64 = 64;

thread_local! {
    /// The counts of the script that runs on this thread.
    static COUNTS: Cell<*const Counts> = const { Cell::new(ptr::null()) };
}

/// While this value lives, the bytes that this thread reads are counted for a script.
pub(crate) struct Counting<'a> {
    _meter: &'a Meter,
    before: *const Counts,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        COUNTS.set(self.before);
    }
}

/// Makes `meter` count the bytes that this thread reads.
pub(crate) fn count_by(meter: &Meter) -> Counting<'_> {
    // The functions below are found by name: without this they would not be there.
    static FUNCTIONS: (
        unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
        unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> f64,
    ) = (strcoll, strtod);
    std::hint::black_box(&FUNCTIONS);
    let before = COUNTS.replace(ptr::from_ref(meter.counts()));
    Counting { _meter: meter, before }
}

/// What is counted by on this thread; it is used at once, and not kept.
pub(crate) fn counts<'a>() -> Option<&'a Counts> {
    // SAFETY: who set it borrows the meter for as long as it is set.
    unsafe { COUNTS.get().as_ref() }
}

fn add(cost: u64) {
    if let Some(counts) = counts() {
        counts.add(cost);
    }
}

/// Compares as bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn strcoll(left: *const c_char, right: *const c_char) -> c_int {
    // SAFETY: as of C's function, both are strings that end by a zero byte.
    let (left, right) = unsafe { (CStr::from_ptr(left), CStr::from_ptr(right)) };
    let (left, right) = (left.to_bytes(), right.to_bytes());
    add((left.len() + right.len()) as u64 / COMPARED_BYTES_OF_ONE);
    left.cmp(right) as c_int
}

/// Parses the number at the beginning of a string, and returns its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn strtod(text: *const c_char, end: *mut *mut c_char) -> f64 {
    // SAFETY: as of C's function, it is a string that ends by a zero byte.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    add(bytes.len() as u64 / DIGITS_OF_ONE);
    let (number, length) = number(bytes);
    if !end.is_null() {
        // SAFETY: as of C's function, there is room for the place where it ends, which is in the
        // string.
        unsafe { *end = text.add(length).cast_mut() };
    }
    number
}

/// Parses a number as C does: spaces, a sign, then a decimal or hexadecimal number, `inf` or `nan`.
/// Also returns its length, or 0.
fn number(text: &[u8]) -> (f64, usize) {
    let is_space = |byte: &&u8| matches!(byte, b' ' | 9..=13);
    let spaces = text.iter().take_while(is_space).count();
    let signed = usize::from(matches!(text.get(spaces), Some(b'-' | b'+')));
    let rest = &text[spaces + signed..];
    let (value, length) = match unsigned(rest) {
        (_, 0) => return (0.0, 0),
        found => found,
    };
    let is_negative = text[spaces] == b'-';
    (if is_negative { -value } else { value }, spaces + signed + length)
}

fn unsigned(text: &[u8]) -> (f64, usize) {
    let begins = |word: &[u8]| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    for (word, value) in
        [(&b"infinity"[..], f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)]
    {
        if begins(word) {
            return (value, word.len());
        }
    }
    if begins(b"0x") {
        // `0x` without digits is the number 0.
        return hexadecimal(&text[2..]).map_or((0.0, 1), |(value, length)| (value, length + 2));
    }
    let digits = |at: usize| text[at.min(text.len())..].iter().take_while(|b| b.is_ascii_digit());
    let whole = digits(0).count();
    let mut length = whole;
    if text.get(whole) == Some(&b'.') {
        let fraction = digits(whole + 1).count();
        if whole + fraction == 0 {
            return (0.0, 0);
        }
        length += 1 + fraction;
    } else if whole == 0 {
        return (0.0, 0);
    }
    length += exponent(&text[length..], b'e').map_or(0, |(_, length)| length);
    let value = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.parse().ok());
    (value.unwrap_or(0.0), length)
}

/// An exponent and its length, if there is one.
fn exponent(text: &[u8], letter: u8) -> Option<(i64, usize)> {
    text.first().filter(|byte| byte.eq_ignore_ascii_case(&letter))?;
    let signed = usize::from(matches!(text.get(1), Some(b'-' | b'+')));
    let digits = text[1 + signed..].iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let all = &text[1 + signed..1 + signed + digits];
    let value =
        all.iter().fold(0_i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(1 << 40));
    Some((if text[1] == b'-' { -value } else { value }, 1 + signed + digits))
}

/// Parses digits after `0x`, rounded to the nearest number.
fn hexadecimal(text: &[u8]) -> Option<(f64, usize)> {
    let (mut mantissa, mut is_odd, mut scale) = (0_u64, false, 0_i64);
    let (mut at, mut digits, mut behind_point) = (0, 0, false);
    while let Some(&byte) = text.get(at) {
        if byte == b'.' && !behind_point {
            behind_point = true;
        } else if let Some(digit) = char::from(byte).to_digit(16) {
            digits += 1;
            if mantissa >> 59 == 0 {
                mantissa = mantissa << 4 | u64::from(digit);
                scale -= if behind_point { 4 } else { 0 };
            } else {
                is_odd |= digit != 0;
                scale += if behind_point { 0 } else { 4 };
            }
        } else {
            break;
        }
        at += 1;
    }
    if digits == 0 {
        return None;
    }
    let (exponent, length) = exponent(&text[at..], b'p').unwrap_or((0, 0));
    let mut scale = (scale + exponent).clamp(-2_000, 2_000);
    let mut value = (mantissa | u64::from(is_odd)) as f64;
    while scale != 0 && value != 0.0 && value.is_finite() {
        let step = scale.clamp(-1_000, 1_000);
        value *= 2.0_f64.powi(step as i32);
        scale -= step;
    }
    Some((value, at + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_by_c() {
        for (text, value, length) in [
            ("12", 12.0, 2),
            ("  -1.5e3x", -1500.0, 8),
            ("1e", 1.0, 1),
            ("1e+", 1.0, 1),
            (".5", 0.5, 2),
            ("5.", 5.0, 2),
            (".", 0.0, 0),
            ("", 0.0, 0),
            (" ", 0.0, 0),
            ("-", 0.0, 0),
            ("x1", 0.0, 0),
            ("0x10", 16.0, 4),
            ("0x.8", 0.5, 4),
            ("0x1p4", 16.0, 5),
            ("0xg", 0.0, 1),
            ("inf", f64::INFINITY, 3),
            ("-Infinityx", f64::NEG_INFINITY, 9),
            ("1e400", f64::INFINITY, 5),
            ("0x1p-1074", 5e-324, 9),
            ("0x20000000000001", 9_007_199_254_740_992.0, 16),
        ] {
            assert_eq!(number(text.as_bytes()), (value, length), "{text}");
        }
        assert!(number(b"nan").0.is_nan());
    }
}
