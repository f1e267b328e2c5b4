//! Commands that wait, as within MULTI: they do not (Redis 7.0 `t_list.c`, `t_zset.c`).

use super::lists::popped;
use super::several::{is_left, move_item, mpop_items, mpop_members, timeout};
use super::sorted::Sorted;
use super::store::List;
use super::{Call, Failure, Handler, zsets};
use crate::events::Classes;
use crate::resp;

pub(super) const HANDLERS: [(&[u8], Handler); 8] = [
    (b"BLPOP", |call| pop(call, true)),
    (b"BRPOP", |call| pop(call, false)),
    (b"BLMOVE", blmove),
    (b"BRPOPLPUSH", |call| {
        timeout(call.args[3])?;
        move_item(call, false, true)
    }),
    (b"BLMPOP", |call| mpop_items(call, 2)),
    (b"BZPOPMIN", |call| zpop(call, false)),
    (b"BZPOPMAX", |call| zpop(call, true)),
    (b"BZMPOP", |call| mpop_members(call, 2)),
];

fn blmove(call: &mut Call<'_>) -> Result<(), Failure> {
    let (from_left, to_left) = (is_left(call.args[3])?, is_left(call.args[4])?);
    timeout(call.args[5])?;
    move_item(call, from_left, to_left)
}

/// The keys, and the time-out is looked at.
fn keys<'a>(call: &Call<'a>) -> Result<&'a [&'a [u8]], Failure> {
    let last = call.args.len() - 1;
    timeout(call.args[last])?;
    Ok(&call.args[1..last])
}

fn pop(call: &mut Call<'_>, left: bool) -> Result<(), Failure> {
    for key in keys(call)? {
        if call.store.read::<List>(key)?.is_none() {
            continue;
        }
        resp::array(call.reply, 2);
        resp::bulk(call.reply, key);
        if let Some(item) = call.store.write(key, |list: &mut List| list.pop(left))? {
            resp::bulk(call.reply, &item);
        }
        call.raise_taken(Classes::LIST, popped(left), key);
        return Ok(());
    }
    resp::null_array(call.reply, call.resp3);
    Ok(())
}

fn zpop(call: &mut Call<'_>, highest: bool) -> Result<(), Failure> {
    for key in keys(call)? {
        if call.store.read::<Sorted>(key)?.is_none() {
            continue;
        }
        let resp3 = call.resp3;
        // A member and its score, after the key.
        let mut entry = alloc::vec::Vec::new();
        call.store.write_existing(key, |set: &mut Sorted| {
            zsets::pop_entries(set, 1, highest, false, resp3, &mut entry);
        })?;
        zsets::raise_popped(call, highest, key);
        resp::array(call.reply, 3);
        resp::bulk(call.reply, key);
        let header = resp::line_length(&entry).unwrap_or(0);
        call.reply.extend_from_slice(&entry[header..]);
        return Ok(());
    }
    resp::null_array(call.reply, call.resp3);
    Ok(())
}
