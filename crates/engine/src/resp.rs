//! Writing RESP2 and RESP3 replies, and finding where one ends.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Deepest nesting of a reply that [`value_length`] follows; COMMAND's has six levels.
const DEPTH_MAX: usize = 32;

/// `+OK`.
pub const OK: &[u8] = b"+OK\r\n";

/// Appends an integer in decimal.
pub fn decimal(out: &mut impl Extend<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend(digits[at..].iter().copied());
}

fn header(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `:value`.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    header(out, b':', value);
}

/// Appends a bulk string.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    header(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a simple string.
pub fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the null of a single value.
pub fn null(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
}

/// Appends the null of an array.
pub fn null_array(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"*-1\r\n" });
}

/// Appends the header of a push of `count` values, which does not answer a command.
pub fn push(out: &mut Vec<u8>, count: usize) {
    header(out, b'>', count as i64);
}

/// Appends an array's header.
pub fn array(out: &mut Vec<u8>, count: usize) {
    header(out, b'*', count as i64);
}

/// Appends a map's header; an array of twice as many in RESP2.
pub fn map(out: &mut Vec<u8>, pairs: usize, resp3: bool) {
    if resp3 {
        header(out, b'%', pairs as i64);
    } else {
        array(out, pairs * 2);
    }
}

/// Appends a set's header; an array in RESP2.
pub fn set(out: &mut Vec<u8>, count: usize, resp3: bool) {
    header(out, if resp3 { b'~' } else { b'*' }, count as i64);
}

/// Appends a double; a bulk string in RESP2.
pub fn double(out: &mut Vec<u8>, value: f64, resp3: bool) {
    let text = double_text(value);
    if resp3 {
        out.push(b',');
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(b"\r\n");
    } else {
        bulk(out, text.as_bytes());
    }
}

/// Appends an error; line breaks in it become spaces, as in Redis.
pub fn error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    out.extend(text.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
    out.extend_from_slice(b"\r\n");
}

/// A double as Redis 7.0 prints it: as an integer where that is exact (`double2ll`, |v| < 2^52),
/// else C's `%.17g`.
#[must_use]
pub fn double_text(value: f64) -> String {
    if value.is_infinite() {
        return String::from(if value > 0.0 { "inf" } else { "-inf" });
    }
    if value.is_nan() {
        return String::from("nan");
    }
    general(value, 17)
}

/// C's `%.<precision>g` for a finite value.
#[must_use]
pub fn general(value: f64, precision: usize) -> String {
    if value == 0.0 {
        return String::from(if value.is_sign_negative() { "-0" } else { "0" });
    }
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.unsigned_abs());
    }
    let decimals = (precision as i32 - 1 - exponent) as usize;
    String::from(trimmed(&format!("{value:.decimals$}")))
}

/// The number without trailing zeros of its fraction, and without the point if the fraction is
/// empty.
fn trimmed(text: &str) -> &str {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.')
}

/// The length of the first RESP value in `bytes`, of any type of RESP2 and RESP3; `None` if it is
/// not there as a whole.
#[must_use]
pub fn value_length(bytes: &[u8]) -> Option<usize> {
    length_within(bytes, DEPTH_MAX)
}

fn length_within(bytes: &[u8], depth: usize) -> Option<usize> {
    let line = line_length(bytes)?;
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Some(line),
        b'$' | b'=' | b'!' => match number(&bytes[1..line - 2])? {
            -1 => Some(line),
            length => {
                let total = line.checked_add(usize::try_from(length).ok()?)?.checked_add(2)?;
                (bytes.len() >= total).then_some(total)
            }
        },
        kind @ (b'*' | b'~' | b'%' | b'>' | b'|') => {
            let count = number(&bytes[1..line - 2])?;
            let values = match (count, kind) {
                (-1, _) => 0,
                (count, b'%' | b'|') => usize::try_from(count).ok()?.checked_mul(2)?,
                (count, _) => usize::try_from(count).ok()?,
            };
            let mut total = line;
            for _ in 0..values {
                total += length_within(bytes.get(total..)?, depth.checked_sub(1)?)?;
            }
            Some(total)
        }
        _ => None,
    }
}

/// The length of the first line, its CRLF included; at least 3.
#[must_use]
pub fn line_length(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let end = from + bytes[from..].iter().position(|byte| *byte == b'\r')?;
        if bytes.get(end + 1) == Some(&b'\n') {
            return (end > 0).then_some(end + 2);
        }
        from = end + 1;
    }
}

/// A decimal integer, strictly as Redis reads one: no spaces, no plus, no leading zeros.
#[must_use]
pub fn number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] => return (!negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// The payload of the first value, if that is a bulk string.
#[must_use]
pub fn bulk_payload(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.first() != Some(&b'$') {
        return None;
    }
    let total = value_length(bytes)?;
    bytes.get(line_length(bytes)?..total.checked_sub(2)?)
}

/// Whether the value is one of the nulls.
#[must_use]
pub fn is_null(bytes: &[u8]) -> bool {
    matches!(bytes, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n")
}

/// The values of the first array; `None` if there is no array, or it is incomplete.
#[must_use]
pub fn array_items(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let head = line_length(bytes).filter(|_| bytes[0] == b'*')?;
    let count = usize::try_from(number(&bytes[1..head - 2])?).ok()?;
    let mut rest = &bytes[head..];
    let mut items = Vec::new();
    for _ in 0..count {
        let (item, behind) = rest.split_at_checked(value_length(rest)?)?;
        items.push(item);
        rest = behind;
    }
    Some(items)
}

/// Whether the value is one of the nulls, or an array of which the last is.
#[must_use]
pub fn ends_in_null(bytes: &[u8]) -> bool {
    let last = || array_items(bytes).and_then(|items| items.last().copied());
    is_null(bytes) || last().is_some_and(is_null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_taken_apart_and_what_is_none_is_not() {
        let bytes = b"*3\r\n*2\r\n$1\r\nq\r\n$1\r\na\r\n*-1\r\n-WRONGTYPE x\r\n";
        let items: [&[u8]; 3] = [b"*2\r\n$1\r\nq\r\n$1\r\na\r\n", b"*-1\r\n", b"-WRONGTYPE x\r\n"];
        assert_eq!(array_items(bytes).unwrap(), items);
        for other in [&b"-ERR x\r\n"[..], b"*-1\r\n", b"*2\r\n:1\r\n", b"", b"*", b"*1\r\n$4\r\nab"]
        {
            assert_eq!(array_items(other), None);
        }
        for (reply, ends) in [
            (&b"*-1\r\n"[..], true),
            (b"_\r\n", true),
            (b"*2\r\n$1\r\na\r\n*-1\r\n", true),
            (b"*2\r\n*-1\r\n$1\r\na\r\n", false),
            (b"*2\r\n$1\r\nk\r\n$2\r\na_\r\n", false),
            (b"$2\r\na_\r\n", false),
            (b"*0\r\n", false),
        ] {
            assert_eq!(ends_in_null(reply), ends, "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn numbers_are_read_as_strictly_as_redis_does() {
        assert_eq!(number(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(number(b"9223372036854775807"), Some(i64::MAX));
        for bad in [&b"9223372036854775808"[..], b"", b"-", b"+1", b"01", b"-0", b" 1", b"1 "] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        let mut out = Vec::new();
        decimal(&mut out, i64::MIN);
        assert_eq!(out, b"-9223372036854775808");
    }

    #[test]
    fn doubles_print_as_with_17_significant_digits() {
        for (value, text) in [
            (3.0, "3"),
            (0.1, "0.10000000000000001"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (-1.5e-7, "-1.4999999999999999e-07"),
            (123456.75, "123456.75"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(double_text(value), text);
        }
    }

    /// A value ends where its last element does and a torn one has no length.
    #[test]
    fn values_end_at_their_last_element() {
        let value = b"*3\r\n$3\r\na\r\n\r\n%1\r\n+k\r\n:1\r\n_\r\n";
        assert_eq!(value_length(value), Some(value.len()));
        for cut in 0..value.len() {
            assert_eq!(value_length(&value[..cut]), None, "cut at {cut}");
        }
        assert_eq!(value_length(b"$-1\r\nrest"), Some(5));
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 2);
        assert_eq!(value_length(&deep), None);
        assert_eq!(bulk_payload(b"$2\r\nab\r\n"), Some(&b"ab"[..]));
    }
}
