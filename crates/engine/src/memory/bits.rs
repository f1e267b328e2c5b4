//! Bits of strings (Redis 7.0 `bitops.c`), the first bit being the highest of the first byte.

use super::store::Bytes;
use super::strings::{check_length, check_place, grow};
use super::{Call, Failure, Handler, SYNTAX, fixed, integer, range_of};
use crate::events::Classes;
use crate::resp;

pub(super) const HANDLERS: [(&[u8], Handler); 4] =
    [(b"SETBIT", setbit), (b"GETBIT", getbit), (b"BITCOUNT", bitcount), (b"BITPOS", bitpos)];

const BAD_OFFSET: Failure = fixed(b"ERR bit offset is not an integer or out of range");

fn offset(text: &[u8]) -> Result<(usize, u8), Failure> {
    let bit = resp::number(text).ok_or(BAD_OFFSET)?;
    let bit = check_place(bit).ok_or(BAD_OFFSET)?;
    Ok((bit / 8, 0x80 >> (bit % 8)))
}

fn setbit(call: &mut Call<'_>) -> Result<(), Failure> {
    let (at, mask) = offset(call.args[2])?;
    let on = match call.args[3] {
        b"0" => false,
        b"1" => true,
        _ => return Err(fixed(b"ERR bit is not an integer or out of range")),
    };
    check_length(at as i64, 1)?;
    let (old, grew) = call.store.write(call.args[1], |value: &mut Bytes| {
        let grew = value.len() <= at;
        grow(value, at + 1);
        let old = value[at] & mask != 0;
        value[at] = if on { value[at] | mask } else { value[at] & !mask };
        (old, grew)
    })?;
    if grew || old != on {
        call.raise(Classes::STRING, "setbit", call.args[1]);
    }
    call.integer(i64::from(old));
    Ok(())
}

fn getbit(call: &mut Call<'_>) -> Result<(), Failure> {
    let (at, mask) = offset(call.args[2])?;
    let value = call.store.read::<Bytes>(call.args[1])?;
    let byte = value.and_then(|value| value.get(at)).copied().unwrap_or(0);
    call.integer(i64::from(byte & mask != 0));
    Ok(())
}

fn is_bit_unit(text: &[u8]) -> Result<bool, Failure> {
    if text.eq_ignore_ascii_case(b"BIT") {
        return Ok(true);
    }
    if text.eq_ignore_ascii_case(b"BYTE") { Ok(false) } else { Err(SYNTAX) }
}

fn bit(value: &[u8], at: usize) -> bool {
    value[at / 8] & (0x80 >> (at % 8)) != 0
}

/// The bits that a range of bytes or of bits means.
fn bit_range(start: i64, stop: i64, value: &[u8], in_bits: bool) -> core::ops::Range<usize> {
    if in_bits {
        return range_of(start, stop, value.len() * 8);
    }
    let bytes = range_of(start, stop, value.len());
    bytes.start * 8..bytes.end * 8
}

/// Number of ones; whole bytes at once.
fn ones(value: &[u8], range: core::ops::Range<usize>) -> usize {
    let (first, last) = (range.start.div_ceil(8), range.end / 8);
    if first >= last {
        return range.filter(|&at| bit(value, at)).count();
    }
    let edges = (range.start..first * 8).chain(last * 8..range.end);
    let whole: u32 = value[first..last].iter().map(|byte| byte.count_ones()).sum();
    whole as usize + edges.filter(|&at| bit(value, at)).count()
}

fn bitcount(call: &mut Call<'_>) -> Result<(), Failure> {
    let found = call.store.read::<Bytes>(call.args[1])?;
    let value = found.map_or(&[][..], Bytes::as_slice);
    let total = match call.args {
        _ if found.is_none() => 0,
        [_, _] => ones(value, 0..value.len() * 8),
        [_, _, start, stop, unit @ ..] if unit.len() <= 1 => {
            let (start, stop) = (integer(start)?, integer(stop)?);
            // Redis looks at this before it looks at the unit.
            if start < 0 && stop < 0 && start > stop {
                0
            } else {
                let in_bits = unit.first().map_or(Ok(false), |unit| is_bit_unit(unit))?;
                ones(value, bit_range_from_zero(start, stop, value, in_bits))
            }
        }
        _ => return Err(SYNTAX),
    };
    call.integer(total as i64);
    Ok(())
}

/// As [`bit_range`], with an end before the beginning of the string counting as 0, as in Redis.
fn bit_range_from_zero(
    start: i64,
    stop: i64,
    value: &[u8],
    in_bits: bool,
) -> core::ops::Range<usize> {
    let length = (value.len() * if in_bits { 8 } else { 1 }) as i64;
    let stop = if stop < 0 { stop.saturating_add(length).max(0) } else { stop };
    bit_range(start, stop, value, in_bits)
}

fn bitpos(call: &mut Call<'_>) -> Result<(), Failure> {
    let wanted = match integer(call.args[2])? {
        0 => false,
        1 => true,
        _ => return Err(fixed(b"ERR The bit argument must be 1 or 0.")),
    };
    let Some(value) = call.store.read::<Bytes>(call.args[1])? else {
        call.integer(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let (range, end_given) = match call.args {
        [_, _, _] => (0..value.len() * 8, false),
        [_, _, _, start] => (bit_range_from_zero(integer(start)?, -1, value, false), false),
        [_, _, _, start, stop, unit @ ..] if unit.len() <= 1 => {
            let (start, stop) = (integer(start)?, integer(stop)?);
            let in_bits = unit.first().map_or(Ok(false), |unit| is_bit_unit(unit))?;
            (bit_range_from_zero(start, stop, value, in_bits), true)
        }
        _ => return Err(SYNTAX),
    };
    let end = range.end;
    let is_empty = range.is_empty();
    let skips = |byte: u8| byte == if wanted { 0 } else { 0xff };
    let mut at = range.start;
    let mut found = -1;
    while at < end {
        if at % 8 == 0 && end - at >= 8 && skips(value[at / 8]) {
            at += 8;
            continue;
        }
        if bit(value, at) == wanted {
            found = at as i64;
            break;
        }
        at += 1;
    }
    // Redis: a string of ones is followed by zeros, unless the caller gave the end.
    if found < 0 && !wanted && !end_given && !is_empty {
        found = end as i64;
    }
    call.integer(found);
    Ok(())
}
