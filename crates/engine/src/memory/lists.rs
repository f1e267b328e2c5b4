//! Lists (Redis 7.0 `t_list.c`).

use super::store::List;
use super::{Call, Failure, Handler, SYNTAX, count, fixed, integer, range_of};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 14] = [
    (b"LPUSH", |call| push(call, true, false)),
    (b"RPUSH", |call| push(call, false, false)),
    (b"LPUSHX", |call| push(call, true, true)),
    (b"RPUSHX", |call| push(call, false, true)),
    (b"LPOP", |call| pop(call, true)),
    (b"RPOP", |call| pop(call, false)),
    (b"LLEN", llen),
    (b"LRANGE", lrange),
    (b"LINDEX", lindex),
    (b"LSET", lset),
    (b"LINSERT", linsert),
    (b"LREM", lrem),
    (b"LTRIM", ltrim),
    (b"LPOS", lpos),
];

fn push(call: &mut Call<'_>, left: bool, only_existing: bool) -> Result<(), Failure> {
    let items = &call.args[2..];
    if call.store.read::<List>(call.args[1])?.is_none() && only_existing {
        call.integer(0);
        return Ok(());
    }
    let length = call.store.write(call.args[1], |list: &mut List| {
        for item in items {
            list.push(left, item);
        }
        list.items().len()
    })?;
    call.raise(Classes::LIST, pushed(left), call.args[1]);
    call.integer(length as i64);
    Ok(())
}

/// The event of an element that was added at an end.
pub(super) fn pushed(left: bool) -> &'static str {
    if left { "lpush" } else { "rpush" }
}

/// The event of elements that were taken from an end.
pub(super) fn popped(left: bool) -> &'static str {
    if left { "lpop" } else { "rpop" }
}

fn pop(call: &mut Call<'_>, left: bool) -> Result<(), Failure> {
    let wanted = match call.args {
        [_, _] => None,
        [_, _, wanted] => Some(count(wanted)?),
        _ => return Err(call.wrong_arity()),
    };
    let Some(list) = call.store.read::<List>(call.args[1])? else {
        match wanted {
            None => resp::null(call.reply, call.resp3),
            Some(_) => resp::null_array(call.reply, call.resp3),
        }
        return Ok(());
    };
    let available = list.items().len();
    if let Some(wanted) = wanted {
        resp::array(call.reply, wanted.min(available));
    }
    let reply = &mut *call.reply;
    call.store.write(call.args[1], |list: &mut List| {
        for _ in 0..wanted.unwrap_or(1).min(available) {
            if let Some(item) = list.pop(left) {
                resp::bulk(reply, &item);
            }
        }
    })?;
    if wanted != Some(0) {
        call.raise_taken(Classes::LIST, popped(left), call.args[1]);
    }
    Ok(())
}

fn llen(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<List>(call.args[1])?.map_or(0, |list| list.items().len());
    call.integer(length as i64);
    Ok(())
}

fn lrange(call: &mut Call<'_>) -> Result<(), Failure> {
    let (start, stop) = (integer(call.args[2])?, integer(call.args[3])?);
    let Some(list) = call.store.read::<List>(call.args[1])? else {
        resp::array(call.reply, 0);
        return Ok(());
    };
    let range = range_of(start, stop, list.items().len());
    resp::array(call.reply, range.len());
    for item in list.items().range(range) {
        resp::bulk(call.reply, item);
    }
    Ok(())
}

/// The place that an index means, negative from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < length)
}

fn lindex(call: &mut Call<'_>) -> Result<(), Failure> {
    let item = match call.store.read::<List>(call.args[1])? {
        None => None,
        Some(list) => {
            let at = place(integer(call.args[2])?, list.items().len());
            at.and_then(|at| list.items().get(at))
        }
    };
    match item {
        Some(item) => resp::bulk(call.reply, item),
        None => resp::null(call.reply, call.resp3),
    }
    Ok(())
}

fn lset(call: &mut Call<'_>) -> Result<(), Failure> {
    let list = call.store.read::<List>(call.args[1])?.ok_or(fixed(b"ERR no such key"))?;
    let at = place(integer(call.args[2])?, list.items().len());
    let at = at.ok_or(fixed(b"ERR index out of range"))?;
    let item = call.args[3];
    call.store.write(call.args[1], |list: &mut List| list.replace(at, item))?;
    call.raise(Classes::LIST, "lset", call.args[1]);
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}

fn linsert(call: &mut Call<'_>) -> Result<(), Failure> {
    let behind = match UpperName::of(call.args[2]).bytes() {
        b"BEFORE" => 0,
        b"AFTER" => 1,
        _ => return Err(SYNTAX),
    };
    let (pivot, item) = (call.args[3], call.args[4]);
    let length = call.store.write_existing(call.args[1], |list: &mut List| {
        let Some(at) = list.items().iter().position(|own| **own == *pivot) else { return -1 };
        list.insert(at + behind, item);
        list.items().len() as i64
    })?;
    if length.is_some_and(|length| length > 0) {
        call.raise(Classes::LIST, "linsert", call.args[1]);
    }
    call.integer(length.unwrap_or(0));
    Ok(())
}

fn lrem(call: &mut Call<'_>) -> Result<(), Failure> {
    let limit = integer(call.args[2])?;
    let item = call.args[3];
    let most = if limit == 0 { usize::MAX } else { limit.unsigned_abs() as usize };
    let removed = call
        .store
        .write_existing(call.args[1], |list: &mut List| list.remove(item, most, limit < 0))?;
    if removed.is_some_and(|removed| removed > 0) {
        call.raise_taken(Classes::LIST, "lrem", call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn ltrim(call: &mut Call<'_>) -> Result<(), Failure> {
    let (start, stop) = (integer(call.args[2])?, integer(call.args[3])?);
    let trimmed = call.store.write_existing(call.args[1], |list: &mut List| {
        let length = list.items().len();
        let range = range_of(start, stop, length);
        for _ in range.end..length {
            list.pop(false);
        }
        for _ in 0..range.start.min(range.end) {
            list.pop(true);
        }
    })?;
    if trimmed.is_some() {
        call.raise_taken(Classes::LIST, "ltrim", call.args[1]);
    }
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}

/// The options of LPOS.
struct PositionOptions {
    rank: i64,
    count: Option<usize>,
    most_compared: usize,
}

impl PositionOptions {
    fn parse(args: &[&[u8]]) -> Result<PositionOptions, Failure> {
        let mut options = PositionOptions { rank: 1, count: None, most_compared: 0 };
        let (pairs, rest) = args.as_chunks::<2>();
        for [name, value] in pairs {
            let natural = |text: &'static [u8]| count(value).map_err(|_| fixed(text));
            match UpperName::of(name).bytes() {
                b"RANK" => options.rank = position_rank(value)?,
                b"COUNT" => options.count = Some(natural(b"ERR COUNT can't be negative")?),
                b"MAXLEN" => options.most_compared = natural(b"ERR MAXLEN can't be negative")?,
                _ => return Err(SYNTAX),
            }
        }
        if rest.is_empty() { Ok(options) } else { Err(SYNTAX) }
    }
}

fn position_rank(text: &[u8]) -> Result<i64, Failure> {
    match integer(text)? {
        0 => Err(fixed(
            b"ERR RANK can't be zero: use 1 to start from the first match, 2 from the second \
              ... or use negative to start from the end of the list",
        )),
        rank => Ok(rank),
    }
}

fn lpos(call: &mut Call<'_>) -> Result<(), Failure> {
    let options = PositionOptions::parse(&call.args[3..])?;
    let Some(list) = call.store.read::<List>(call.args[1])? else {
        match options.count {
            None => resp::null(call.reply, call.resp3),
            Some(_) => resp::array(call.reply, 0),
        }
        return Ok(());
    };
    let length = list.items().len();
    let compared = if options.most_compared == 0 { length } else { options.most_compared };
    let from_end = |at: usize| if options.rank < 0 { length - 1 - at } else { at };
    let equal = |at: &usize| *list.items()[*at] == *call.args[2];
    let mut places = (0..compared.min(length))
        .map(from_end)
        .filter(equal)
        .skip(options.rank.unsigned_abs() as usize - 1);
    match options.count {
        None => match places.next() {
            Some(at) => resp::integer(call.reply, at as i64),
            None => resp::null(call.reply, call.resp3),
        },
        Some(wanted) => {
            let wanted = if wanted == 0 { usize::MAX } else { wanted };
            let found: alloc::vec::Vec<usize> = places.take(wanted).collect();
            resp::array(call.reply, found.len());
            for at in found {
                resp::integer(call.reply, at as i64);
            }
        }
    }
    Ok(())
}
