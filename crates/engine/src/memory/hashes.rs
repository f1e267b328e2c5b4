//! Hashes (Redis 7.0 `t_hash.c`).

use super::scan::{ScanOptions, window};
use super::store::Hash;
use super::strings::float_sum;
use super::{
    Call, Failure, Handler, NOT_A_FLOAT, OUT_OF_RANGE, OVERFLOW, SYNTAX, fixed, integer,
    random_count, random_indices,
};
use crate::events::Classes;
use crate::resp;

pub(super) const HANDLERS: [(&[u8], Handler); 16] = [
    (b"HSET", hset),
    (b"HMSET", hset),
    (b"HSETNX", hsetnx),
    (b"HGET", hget),
    (b"HMGET", hmget),
    (b"HGETALL", |call| entries(call, true, true)),
    (b"HKEYS", |call| entries(call, true, false)),
    (b"HVALS", |call| entries(call, false, true)),
    (b"HDEL", hdel),
    (b"HLEN", hlen),
    (b"HEXISTS", hexists),
    (b"HSTRLEN", hstrlen),
    (b"HINCRBY", hincrby),
    (b"HINCRBYFLOAT", hincrbyfloat),
    (b"HRANDFIELD", hrandfield),
    (b"HSCAN", hscan),
];

fn hset(call: &mut Call<'_>) -> Result<(), Failure> {
    let (pairs, rest) = call.args[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(call.wrong_arity());
    }
    let added = call.store.write(call.args[1], |hash: &mut Hash| {
        pairs.iter().filter(|[field, value]| hash.set(field, value)).count()
    })?;
    call.raise(Classes::HASH, "hset", call.args[1]);
    if call.args[0].len() == b"HMSET".len() {
        call.reply.extend_from_slice(resp::OK);
    } else {
        call.integer(added as i64);
    }
    Ok(())
}

fn hsetnx(call: &mut Call<'_>) -> Result<(), Failure> {
    let (field, value) = (call.args[2], call.args[3]);
    let is_new = call.store.write(call.args[1], |hash: &mut Hash| {
        !hash.map().contains_key(field) && hash.set(field, value)
    })?;
    if is_new {
        call.raise(Classes::HASH, "hset", call.args[1]);
    }
    call.integer(i64::from(is_new));
    Ok(())
}

fn hget(call: &mut Call<'_>) -> Result<(), Failure> {
    let hash = call.store.read::<Hash>(call.args[1])?;
    match hash.and_then(|hash| hash.map().get(call.args[2])) {
        Some(value) => resp::bulk(call.reply, value),
        None => resp::null(call.reply, call.resp3),
    }
    Ok(())
}

fn hmget(call: &mut Call<'_>) -> Result<(), Failure> {
    let hash = call.store.read::<Hash>(call.args[1])?;
    resp::array(call.reply, call.args.len() - 2);
    for field in &call.args[2..] {
        match hash.and_then(|hash| hash.map().get(*field)) {
            Some(value) => resp::bulk(call.reply, value),
            None => resp::null(call.reply, call.resp3),
        }
    }
    Ok(())
}

fn entries(call: &mut Call<'_>, fields: bool, values: bool) -> Result<(), Failure> {
    let hash = call.store.read::<Hash>(call.args[1])?;
    let length = hash.map_or(0, |hash| hash.map().len());
    if fields && values {
        resp::map(call.reply, length, call.resp3);
    } else {
        resp::array(call.reply, length);
    }
    for (field, value) in hash.iter().flat_map(|hash| hash.map()) {
        if fields {
            resp::bulk(call.reply, field);
        }
        if values {
            resp::bulk(call.reply, value);
        }
    }
    Ok(())
}

fn hdel(call: &mut Call<'_>) -> Result<(), Failure> {
    let fields = &call.args[2..];
    let removed = call.store.write_existing(call.args[1], |hash: &mut Hash| {
        fields.iter().filter(|field| hash.remove(field)).count()
    })?;
    if removed.is_some_and(|removed| removed > 0) {
        call.raise_taken(Classes::HASH, "hdel", call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn hlen(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<Hash>(call.args[1])?.map_or(0, |hash| hash.map().len());
    call.integer(length as i64);
    Ok(())
}

fn hexists(call: &mut Call<'_>) -> Result<(), Failure> {
    let hash = call.store.read::<Hash>(call.args[1])?;
    let exists = hash.is_some_and(|hash| hash.map().contains_key(call.args[2]));
    call.integer(i64::from(exists));
    Ok(())
}

fn hstrlen(call: &mut Call<'_>) -> Result<(), Failure> {
    let hash = call.store.read::<Hash>(call.args[1])?;
    let length = hash.and_then(|hash| hash.map().get(call.args[2])).map_or(0, |value| value.len());
    call.integer(length as i64);
    Ok(())
}

fn hincrby(call: &mut Call<'_>) -> Result<(), Failure> {
    let by = integer(call.args[3])?;
    let hash = call.store.read::<Hash>(call.args[1])?;
    let old = match hash.and_then(|hash| hash.map().get(call.args[2])) {
        Some(value) => resp::number(value).ok_or(fixed(b"ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    let mut text = alloc::vec::Vec::new();
    resp::decimal(&mut text, new);
    let field = call.args[2];
    call.store.write(call.args[1], |hash: &mut Hash| hash.set(field, &text))?;
    call.raise(Classes::HASH, "hincrby", call.args[1]);
    call.integer(new);
    Ok(())
}

fn hincrbyfloat(call: &mut Call<'_>) -> Result<(), Failure> {
    match super::float::Number::parse(call.args[3]) {
        None => return Err(NOT_A_FLOAT),
        Some(super::float::Number::Infinite) => {
            return Err(fixed(b"ERR value is NaN or Infinity"));
        }
        Some(_) => {}
    }
    let hash = call.store.read::<Hash>(call.args[1])?;
    let old = hash.and_then(|hash| hash.map().get(call.args[2]));
    let bad_old = fixed(b"ERR hash value is not a float");
    let new = float_sum(old.map(|value| &**value), call.args[3], bad_old)?;
    let field = call.args[2];
    call.store.write(call.args[1], |hash: &mut Hash| hash.set(field, &new))?;
    call.raise(Classes::HASH, "hincrbyfloat", call.args[1]);
    resp::bulk(call.reply, &new);
    Ok(())
}

fn hrandfield(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut rng = call.rng();
    let Some(wanted) = call.args.get(2) else {
        match call.store.read::<Hash>(call.args[1])? {
            Some(hash) => {
                let index = rng.below(hash.map().len() as u64) as usize;
                let field = hash.map().get_index(index).map(|(field, _)| field);
                resp::bulk(call.reply, field.map_or(&[][..], |field| field));
            }
            None => resp::null(call.reply, call.resp3),
        }
        return Ok(());
    };
    let wanted = random_count(wanted)?;
    let with_values = match &call.args[3..] {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(SYNTAX),
    };
    if with_values && wanted.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(OUT_OF_RANGE);
    }
    let Some(hash) = call.store.read::<Hash>(call.args[1])? else {
        resp::array(call.reply, 0);
        return Ok(());
    };
    let chosen = random_indices(&mut rng, wanted, hash.map().len());
    let nested = with_values && call.resp3;
    let flat = with_values && !nested;
    resp::array(call.reply, chosen.len() * if flat { 2 } else { 1 });
    for (field, value) in chosen.iter().filter_map(|&index| hash.map().get_index(index)) {
        if nested {
            resp::array(call.reply, 2);
        }
        resp::bulk(call.reply, field);
        if with_values {
            resp::bulk(call.reply, value);
        }
    }
    Ok(())
}

fn hscan(call: &mut Call<'_>) -> Result<(), Failure> {
    let cursor = super::scan::cursor(call.args[2])?;
    let Some(hash) = call.store.read::<Hash>(call.args[1])? else {
        super::scan::empty(call.reply);
        return Ok(());
    };
    let options = ScanOptions::parse(&call.args[3..], false)?;
    let window = window(cursor, options.count, hash.map().len());
    let chosen = || {
        let wanted = |field: &[u8]| window.contains(field) && options.matches(field);
        hash.map().iter().filter(move |(field, _)| wanted(field))
    };
    window.header(call.reply, chosen().count() * 2);
    for (field, value) in chosen() {
        resp::bulk(call.reply, field);
        resp::bulk(call.reply, value);
    }
    Ok(())
}
