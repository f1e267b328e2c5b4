//! Floating point as Redis on x86-64 computes and prints it.
//!
//! INCRBYFLOAT and HINCRBYFLOAT there use the 80-bit `long double` (64 bits of significand) and
//! print `%.17Lf` without the zeros at the end; 0.1 prints as 0.1 so, which an f64 does not.
//! Hexadecimal floats, which C's strtold would take, are not accepted.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Longest text of a float (Redis 7.0 `MAX_LONG_DOUBLE_CHARS`).
const TEXT_BYTES_MAX: usize = 5 * 1024;
/// A decimal exponent past this is an overflow or an underflow of the 80-bit format.
const EXPONENT_MAX: i64 = 6_000;
/// The largest exponent of two of the 80-bit format.
const BINARY_EXPONENT_MAX: i64 = 16_383;

/// Reads a score: what C's strtod takes as a whole, but for NaN, overflow and underflow.
pub(crate) fn double(text: &[u8]) -> Option<f64> {
    let text = str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    let digits = text.bytes().take_while(|b| !matches!(b, b'e' | b'E'));
    let mut digits = digits.filter(|b| !matches!(b, b'+' | b'-' | b'.'));
    let named_infinity = text.bytes().any(|b| matches!(b, b'n' | b'N'));
    if value.is_nan()
        || value.is_infinite() && !named_infinity
        || value == 0.0 && digits.any(|b| b != b'0')
    {
        return None;
    }
    Some(value)
}

/// Reads a bound of a score range: as [`double`], but empty is 0 and an overflow is infinite.
pub(super) fn bound(text: &[u8]) -> Option<f64> {
    if text.is_empty() {
        return Some(0.0);
    }
    let value: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    (!value.is_nan()).then_some(value)
}

/// An 80-bit float: `significand * 2^exponent`, the significand's top bit set unless it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extended {
    negative: bool,
    significand: u64,
    exponent: i64,
}

/// A number that INCRBYFLOAT reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Finite(Extended),
    Infinite,
}

impl Number {
    /// Reads what C's strtold takes as a whole, but for NaN, overflow and underflow.
    pub(super) fn parse(text: &[u8]) -> Option<Number> {
        if text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Number::Infinite);
        }
        let mut digits = Big::from(0);
        let (mut count, mut seen_point, mut exponent) = (0u32, false, 0i64);
        let mut at = 0;
        while let Some(&byte) = rest.get(at) {
            match byte {
                b'0'..=b'9' => {
                    digits.multiply_add(10, u32::from(byte - b'0'));
                    count += 1;
                    exponent -= i64::from(seen_point);
                }
                b'.' if !seen_point => seen_point = true,
                _ => break,
            }
            at += 1;
        }
        if count == 0 {
            return None;
        }
        if let Some((b'e' | b'E', shown)) = rest[at..].split_first() {
            // Rust takes one sign too, as C does.
            let value: i64 = str::from_utf8(shown).ok()?.parse().ok()?;
            exponent += value.clamp(-EXPONENT_MAX * 2, EXPONENT_MAX * 2);
        } else if at != rest.len() {
            return None;
        }
        if digits.is_zero() {
            return Some(Number::Finite(Extended { negative, significand: 0, exponent: 0 }));
        }
        if exponent.abs() > EXPONENT_MAX * 2 {
            return None;
        }
        Extended::from_decimal(negative, digits, exponent).map(Number::Finite)
    }
}

impl Extended {
    /// `digits * 10^exponent`, rounded to nearest even; `None` beyond the format's range.
    fn from_decimal(negative: bool, digits: Big, exponent: i64) -> Option<Extended> {
        let (mut numerator, mut denominator) = (digits, Big::from(1));
        let scaled = if exponent < 0 { &mut denominator } else { &mut numerator };
        for _ in 0..exponent.unsigned_abs() {
            scaled.multiply_add(10, 0);
        }
        // Long division, one bit at a time: 64 bits, one to round by, and whether anything is left.
        let shift = numerator.bits() as i64 - denominator.bits() as i64;
        if shift > 0 {
            denominator.shift_left(shift as usize);
        } else {
            numerator.shift_left(-shift as usize);
        }
        let mut quotient = 0u128;
        for _ in 0..67 {
            quotient <<= 1;
            if numerator.at_least(&denominator) {
                numerator.subtract(&denominator);
                quotient |= 1;
            }
            numerator.shift_left(1);
        }
        quotient = quotient << 1 | u128::from(!numerator.is_zero());
        let value = Extended::rounded(negative, quotient, shift - 67);
        let magnitude = value.exponent + 63;
        (-BINARY_EXPONENT_MAX..=BINARY_EXPONENT_MAX).contains(&magnitude).then_some(value)
    }

    /// `significand * 2^exponent` to 64 bits, to nearest even; its lowest bit may stand for all
    /// that is below it.
    fn rounded(negative: bool, significand: u128, exponent: i64) -> Extended {
        let excess = (128 - significand.leading_zeros()).saturating_sub(64);
        if excess == 0 {
            let shift = (significand as u64).leading_zeros().min(63);
            let value = (significand as u64) << shift;
            let exponent = if value == 0 { 0 } else { exponent - i64::from(shift) };
            return Extended { negative, significand: value, exponent };
        }
        let rest = significand & ((1 << excess) - 1);
        let half = 1u128 << (excess - 1);
        let kept = significand >> excess;
        let up = rest > half || rest == half && kept & 1 == 1;
        let kept = kept + u128::from(up);
        let exponent = exponent + i64::from(excess);
        match u64::try_from(kept) {
            Ok(significand) => Extended { negative, significand, exponent },
            Err(_) => Extended { negative, significand: 1 << 63, exponent: exponent + 1 },
        }
    }

    /// The sum; `None` if it is infinite.
    pub(super) fn plus(self, other: Extended) -> Option<Extended> {
        if self.significand == 0 {
            return Some(other);
        }
        if other.significand == 0 {
            return Some(self);
        }
        let (big, small) =
            if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        // 62 bits below the larger's last: enough to round by, with what is lost jammed into one.
        let a = u128::from(big.significand) << 62;
        let b = u128::from(small.significand) << 62;
        let distance = big.exponent - small.exponent;
        let b = match u32::try_from(distance) {
            Ok(distance) if distance < 127 => {
                let lost = b & ((1u128 << distance) - 1) != 0;
                b >> distance | u128::from(lost)
            }
            _ => 1,
        };
        let (negative, sum) = if big.negative == small.negative {
            (big.negative, a + b)
        } else if a >= b {
            (big.negative, a - b)
        } else {
            (small.negative, b - a)
        };
        let negative = negative && sum != 0;
        let value = Extended::rounded(negative, sum, big.exponent - 62);
        (value.exponent + 63 <= BINARY_EXPONENT_MAX).then_some(value)
    }

    /// `%.17Lf`, without the zeros at the end of the fraction; `-0` is `0`.
    pub(super) fn text(self) -> String {
        let mut scaled = Big::from(self.significand);
        if self.exponent >= 0 {
            scaled.shift_left(self.exponent as usize);
            for _ in 0..17 {
                scaled.multiply_add(10, 0);
            }
        } else {
            for _ in 0..17 {
                scaled.multiply_add(10, 0);
            }
            scaled.shift_right_rounded(self.exponent.unsigned_abs() as usize);
        }
        let mut digits = scaled.decimal();
        while digits.len() < 18 {
            digits.insert(0, '0');
        }
        let point = digits.len() - 17;
        let fraction = digits.split_off(point);
        let fraction = fraction.trim_end_matches('0');
        if !fraction.is_empty() {
            digits.push('.');
            digits.push_str(fraction);
        }
        if self.negative && digits != "0" {
            digits.insert(0, '-');
        }
        digits
    }
}

/// A natural number of any size: 32-bit digits, lowest first, no zero at the top.
#[derive(Clone, Debug)]
struct Big {
    digits: Vec<u32>,
}

impl Big {
    fn from(value: u64) -> Big {
        let mut big = Big { digits: vec![value as u32, (value >> 32) as u32] };
        big.trim();
        big
    }

    fn trim(&mut self) {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    fn bits(&self) -> usize {
        let top = self.digits.last().map_or(0, |top| top.leading_zeros() as usize);
        self.digits.len() * 32 - top
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for digit in &mut self.digits {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.digits.push(carry as u32);
        }
    }

    fn shift_left(&mut self, bits: usize) {
        if self.is_zero() {
            return;
        }
        let part = bits % 32;
        if part > 0 {
            self.multiply_add(1 << part, 0);
        }
        self.digits.splice(0..0, core::iter::repeat_n(0, bits / 32));
    }

    /// Divides by a power of two, to nearest even.
    fn shift_right_rounded(&mut self, bits: usize) {
        if bits > self.bits() {
            self.digits.clear();
            return;
        }
        let bit = |at: usize| self.digits.get(at / 32).is_some_and(|d| d >> (at % 32) & 1 == 1);
        let half = bits > 0 && bit(bits - 1);
        let below = (0..bits.saturating_sub(1)).any(bit);
        let up = half && (below || bit(bits));
        self.digits.drain(..bits / 32);
        let part = bits % 32;
        if part > 0 {
            for at in 0..self.digits.len() {
                let high = self.digits.get(at + 1).map_or(0, |d| d << (32 - part));
                self.digits[at] = self.digits[at] >> part | high;
            }
            self.trim();
        }
        if up {
            self.increment();
        }
    }

    fn increment(&mut self) {
        for digit in &mut self.digits {
            let (value, over) = digit.overflowing_add(1);
            *digit = value;
            if !over {
                return;
            }
        }
        self.digits.push(1);
    }

    fn at_least(&self, other: &Big) -> bool {
        let by_length = self.digits.len().cmp(&other.digits.len());
        by_length.then_with(|| self.digits.iter().rev().cmp(other.digits.iter().rev())).is_ge()
    }

    /// Subtracts what is not larger.
    fn subtract(&mut self, other: &Big) {
        let mut borrow = false;
        for (at, digit) in self.digits.iter_mut().enumerate() {
            let taken = other.digits.get(at).copied().unwrap_or(0);
            let (value, first) = digit.overflowing_sub(taken);
            let (value, second) = value.overflowing_sub(u32::from(borrow));
            *digit = value;
            borrow = first || second;
        }
        self.trim();
    }

    fn decimal(mut self) -> String {
        let mut text = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for digit in self.digits.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / 10) as u32;
                rest %= 10;
            }
            text.push(b'0' + rest as u8);
            self.trim();
        }
        text.iter().rev().map(|&b| b as char).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let read = |text: &str| match Number::parse(text.as_bytes()) {
            Some(Number::Finite(value)) => value,
            other => panic!("{text}: {other:?}"),
        };
        read(a).plus(read(b)).unwrap().text()
    }

    #[test]
    fn sums_print_as_redis_prints_them() {
        for (a, b, text) in [
            ("0.1", "0.2", "0.3"),
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3", "0"),
            ("1e30", "1", "1000000000000000000024696061952"),
            ("0", "-0.00000000000000000001", "0"),
            ("1", "1e-18", "1"),
            (".5", "1.", "1.5"),
        ] {
            assert_eq!(sum(a, b), text, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_float_is_refused() {
        for bad in ["", "-", "1e", "1x", " 1", "1 ", "nan", "1e99999", "1e-99999", ".", "0x10"] {
            assert_eq!(Number::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Number::parse(b"-inf"), Some(Number::Infinite));
        assert_eq!(double(b"inf"), Some(f64::INFINITY));
        for bad in ["1e400", "1e-400", "nan", "", "1x"] {
            assert_eq!(double(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!((double(b"0e10"), bound(b"1e400")), (Some(0.0), Some(f64::INFINITY)));
    }
}
