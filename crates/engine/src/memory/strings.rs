//! Strings (Redis 7.0 `t_string.c`), and compare-and-set (Valkey 8.1, Tair), compare-and-delete.

use alloc::vec::Vec;

use super::float::Number;
use super::keys::delete_key;
use super::store::Bytes;
use super::work::TOO_LONG as REPLY_TOO_LONG;
use super::{
    Call, Failure, Handler, NOT_A_FLOAT, NOT_AN_INTEGER, NOT_FINITE, OVERFLOW, SYNTAX, failure,
    fixed, integer, range_of,
};
use crate::events::Classes;
use crate::table::UpperName;
use crate::{STRING_BYTES_MAX, resp};

/// Longest string of Redis (its `proto-max-bulk-len`).
const REDIS_BYTES_MAX: usize = 512 << 20;
/// MGET ends once its reply is longer than any may be.
const MGET_BYTES_MAX: usize = 64 << 20;
/// Zeros that a string grows by at a time.
const ZEROS: [u8; 4096] = [0; 4096];
pub(super) const TOO_LONG: Failure =
    fixed(b"ERR string exceeds maximum allowed size (proto-max-bulk-len)");

pub(super) const HANDLERS: [(&[u8], Handler); 21] = [
    (b"GET", get),
    (b"MGET", mget),
    (b"MSET", mset),
    (b"MSETNX", msetnx),
    (b"SET", set),
    (b"SETNX", setnx),
    (b"GETSET", getset),
    (b"GETDEL", getdel),
    (b"APPEND", append),
    (b"STRLEN", strlen),
    (b"GETRANGE", getrange),
    (b"SUBSTR", getrange),
    (b"SETRANGE", setrange),
    (b"INCR", |call| add(call, 1)),
    (b"DECR", |call| add(call, -1)),
    (b"INCRBY", incrby),
    (b"DECRBY", decrby),
    (b"INCRBYFLOAT", incrbyfloat),
    (b"CAS", cas),
    (b"CAD", cad),
    (b"DELEX", delex),
];

fn get(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.store.read::<Bytes>(call.args[1])? {
        Some(value) => resp::bulk(call.reply, value),
        None => resp::null(call.reply, call.resp3),
    }
    Ok(())
}

fn set(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, value) = (call.args[1], call.args[2]);
    if call.args.len() == 3 {
        set_to(call, key, value);
        call.reply.extend_from_slice(resp::OK);
        return Ok(());
    }
    let (mut nx, mut xx, mut get_old, mut if_equal) = (false, false, false, None);
    let mut options = call.args[3..].iter();
    while let Some(option) = options.next() {
        match UpperName::of(option).bytes() {
            b"NX" if !xx && if_equal.is_none() => nx = true,
            b"XX" if !nx && if_equal.is_none() => xx = true,
            b"GET" => get_old = true,
            b"IFEQ" if !nx && !xx && if_equal.is_none() => {
                if_equal = Some(options.next().ok_or(SYNTAX)?);
            }
            // Times to live are the shim's: none arrives here.
            _ => return Err(SYNTAX),
        }
    }
    if get_old {
        get(call)?;
    }
    let exists = call.store.get(key).is_some();
    let equal = match if_equal {
        Some(wanted) => call.store.read::<Bytes>(key)?.is_some_and(|old| old.as_slice() == *wanted),
        None => true,
    };
    let performed = equal && if exists { !nx } else { !xx };
    if performed {
        set_to(call, key, value);
    }
    match (get_old, performed) {
        (true, _) => {}
        (false, true) => call.reply.extend_from_slice(resp::OK),
        (false, false) => call.null(),
    }
    Ok(())
}

/// Replaces whatever the key held.
fn set_to(call: &mut Call<'_>, key: &[u8], value: &[u8]) {
    call.store.set_string(key, value);
    call.raise(Classes::STRING, "set", key);
}

/// Nil for what is no string.
fn mget(call: &mut Call<'_>) -> Result<(), Failure> {
    resp::array(call.reply, call.args.len() - 1);
    for key in &call.args[1..] {
        match call.store.read::<Bytes>(key) {
            Ok(Some(value)) => resp::bulk(call.reply, value),
            Ok(None) | Err(_) => resp::null(call.reply, call.resp3),
        }
        if call.reply.len() > MGET_BYTES_MAX {
            return Err(REPLY_TOO_LONG);
        }
    }
    Ok(())
}

/// The keys and values of MSET and MSETNX.
fn pairs<'a>(call: &Call<'a>) -> Result<&'a [[&'a [u8]; 2]], Failure> {
    match call.args[1..].as_chunks() {
        (pairs, []) => Ok(pairs),
        (_, [_, ..]) => Err(call.wrong_arity()),
    }
}

fn mset(call: &mut Call<'_>) -> Result<(), Failure> {
    pairs(call)?.iter().for_each(|[key, value]| set_to(call, key, value));
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}

fn msetnx(call: &mut Call<'_>) -> Result<(), Failure> {
    let pairs = pairs(call)?;
    let are_new = pairs.iter().all(|[key, _]| call.store.get(key).is_none());
    if are_new {
        pairs.iter().for_each(|[key, value]| set_to(call, key, value));
    }
    call.integer(i64::from(are_new));
    Ok(())
}

fn setnx(call: &mut Call<'_>) -> Result<(), Failure> {
    let is_new = call.store.get(call.args[1]).is_none();
    if is_new {
        set_to(call, call.args[1], call.args[2]);
    }
    call.integer(i64::from(is_new));
    Ok(())
}

fn getset(call: &mut Call<'_>) -> Result<(), Failure> {
    get(call)?;
    set_to(call, call.args[1], call.args[2]);
    Ok(())
}

fn getdel(call: &mut Call<'_>) -> Result<(), Failure> {
    get(call)?;
    delete_key(call, call.args[1]);
    Ok(())
}

fn append(call: &mut Call<'_>) -> Result<(), Failure> {
    let old = call.store.read::<Bytes>(call.args[1])?.map_or(0, Bytes::len);
    if old + call.args[2].len() > STRING_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let tail = call.args[2];
    let length = call.store.write(call.args[1], |value: &mut Bytes| {
        value.extend_from_slice(tail);
        value.len()
    })?;
    call.raise(Classes::STRING, "append", call.args[1]);
    call.integer(length as i64);
    Ok(())
}

fn strlen(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<Bytes>(call.args[1])?.map_or(0, Bytes::len);
    call.integer(length as i64);
    Ok(())
}

fn getrange(call: &mut Call<'_>) -> Result<(), Failure> {
    let (start, stop) = (integer(call.args[2])?, integer(call.args[3])?);
    let value = call.store.read::<Bytes>(call.args[1])?.map_or(&[][..], Bytes::as_slice);
    // Redis: an end that lies before the beginning still counts as the first byte, unless both
    // ends are negative and in the wrong order.
    let length = value.len() as i64;
    let stop = if stop < 0 { stop.saturating_add(length).max(0) } else { stop };
    let reversed = call.args[3].starts_with(b"-") && start < 0 && start > integer(call.args[3])?;
    let range = if reversed { 0..0 } else { range_of(start, stop, value.len()) };
    resp::bulk(call.reply, &value[range]);
    Ok(())
}

/// Makes a string at least `length` bytes long. (`SmallVec::resize` goes byte by byte: 64 MiB took
/// 0.3 s.)
pub(super) fn grow(value: &mut Bytes, length: usize) {
    value.reserve(length.saturating_sub(value.len()));
    while value.len() < length {
        value.extend_from_slice(&ZEROS[..ZEROS.len().min(length - value.len())]);
    }
}

/// A bit's place, if Redis could have a bit there.
pub(super) fn check_place(bit: i64) -> Option<usize> {
    usize::try_from(bit).ok().filter(|bit| bit / 8 < REDIS_BYTES_MAX)
}

/// Checks that a string of this length is allowed.
pub(super) fn check_length(offset: i64, bytes: usize) -> Result<usize, Failure> {
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes));
    end.filter(|end| *end <= STRING_BYTES_MAX).ok_or(TOO_LONG)
}

fn setrange(call: &mut Call<'_>) -> Result<(), Failure> {
    let offset = integer(call.args[2])?;
    if offset < 0 {
        return Err(fixed(b"ERR offset is out of range"));
    }
    let part = call.args[3];
    let old = call.store.read::<Bytes>(call.args[1])?.map_or(0, Bytes::len);
    if part.is_empty() {
        call.integer(old as i64);
        return Ok(());
    }
    let end = check_length(offset, part.len())?;
    let length = call.store.write(call.args[1], |value: &mut Bytes| {
        grow(value, end);
        value[end - part.len()..end].copy_from_slice(part);
        value.len()
    })?;
    call.raise(Classes::STRING, "setrange", call.args[1]);
    call.integer(length as i64);
    Ok(())
}

fn add(call: &mut Call<'_>, by: i64) -> Result<(), Failure> {
    let old = match call.store.read::<Bytes>(call.args[1])? {
        Some(value) => resp::number(value).ok_or(NOT_AN_INTEGER)?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    call.store.write(call.args[1], |value: &mut Bytes| {
        value.clear();
        resp::decimal(value, new);
    })?;
    call.raise(Classes::STRING, "incrby", call.args[1]);
    call.integer(new);
    Ok(())
}

fn incrby(call: &mut Call<'_>) -> Result<(), Failure> {
    add(call, integer(call.args[2])?)
}

fn decrby(call: &mut Call<'_>) -> Result<(), Failure> {
    let by = integer(call.args[2])?;
    add(call, by.checked_neg().ok_or(fixed(b"ERR decrement would overflow"))?)
}

/// The sum of two numbers as text. `bad_old` is the failure if `old` is no number.
pub(super) fn float_sum(
    old: Option<&[u8]>,
    by: &[u8],
    bad_old: Failure,
) -> Result<Vec<u8>, Failure> {
    let old = match old {
        Some(old) => Number::parse(old).ok_or(bad_old)?,
        None => Number::parse(b"0").ok_or(bad_old)?,
    };
    match (old, Number::parse(by).ok_or(NOT_A_FLOAT)?) {
        (Number::Finite(old), Number::Finite(by)) => {
            Ok(old.plus(by).ok_or(NOT_FINITE)?.text().into_bytes())
        }
        _ => Err(NOT_FINITE),
    }
}

fn incrbyfloat(call: &mut Call<'_>) -> Result<(), Failure> {
    let old = call.store.read::<Bytes>(call.args[1])?;
    let new = float_sum(old.map(Bytes::as_slice), call.args[2], NOT_A_FLOAT)?;
    call.store.set_string(call.args[1], &new);
    call.raise(Classes::STRING, "incrbyfloat", call.args[1]);
    resp::bulk(call.reply, &new);
    Ok(())
}

/// CAS key old new: 1 if it was set, 0 if the value is another, -1 if there is no key (as in
/// Tair). The time to live stays.
fn cas(call: &mut Call<'_>) -> Result<(), Failure> {
    let result = match call.store.read::<Bytes>(call.args[1])? {
        None => -1,
        Some(value) => i64::from(value.as_slice() == call.args[2]),
    };
    if result == 1 {
        set_to(call, call.args[1], call.args[3]);
    }
    call.integer(result);
    Ok(())
}

/// CAD key old: 1 if it was deleted, 0 if the value is another, -1 if there is no key.
fn cad(call: &mut Call<'_>) -> Result<(), Failure> {
    let result = match call.store.read::<Bytes>(call.args[1])? {
        None => -1,
        Some(value) => i64::from(value.as_slice() == call.args[2]),
    };
    if result == 1 {
        delete_key(call, call.args[1]);
    }
    call.integer(result);
    Ok(())
}

/// DELEX key [IFEQ value]: 1 if it was deleted, else 0.
fn delex(call: &mut Call<'_>) -> Result<(), Failure> {
    let deleted = match call.args {
        [_, key] => delete_key(call, key),
        [_, key, option, wanted] if option.eq_ignore_ascii_case(b"IFEQ") => {
            let equal =
                call.store.read::<Bytes>(key)?.is_some_and(|value| value.as_slice() == *wanted);
            equal && delete_key(call, key)
        }
        [_, _, option, _] => {
            return Err(failure([b"ERR DELEX: unsupported condition ", *option].concat()));
        }
        _ => return Err(call.wrong_arity()),
    };
    call.integer(i64::from(deleted));
    Ok(())
}
