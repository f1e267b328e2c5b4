//! Sets (Redis 7.0 `t_set.c`), in the order of insertion.

use super::scan::{ScanOptions, window};
use super::store::Set;
use super::{Call, Failure, Handler, SYNTAX, count, random_count, random_indices};
use crate::events::Classes;
use crate::resp;

pub(super) const HANDLERS: [(&[u8], Handler); 9] = [
    (b"SADD", sadd),
    (b"SREM", srem),
    (b"SISMEMBER", sismember),
    (b"SMISMEMBER", smismember),
    (b"SCARD", scard),
    (b"SMEMBERS", smembers),
    (b"SPOP", spop),
    (b"SRANDMEMBER", srandmember),
    (b"SSCAN", sscan),
];

fn sadd(call: &mut Call<'_>) -> Result<(), Failure> {
    let members = &call.args[2..];
    let added = call.store.write(call.args[1], |set: &mut Set| {
        members.iter().filter(|member| set.add(member)).count()
    })?;
    if added > 0 {
        call.raise(Classes::SET, "sadd", call.args[1]);
    }
    call.integer(added as i64);
    Ok(())
}

fn srem(call: &mut Call<'_>) -> Result<(), Failure> {
    let members = &call.args[2..];
    let removed = call.store.write_existing(call.args[1], |set: &mut Set| {
        members.iter().filter(|member| set.remove(member)).count()
    })?;
    if removed.is_some_and(|removed| removed > 0) {
        call.raise_taken(Classes::SET, "srem", call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn sismember(call: &mut Call<'_>) -> Result<(), Failure> {
    let set = call.store.read::<Set>(call.args[1])?;
    let is_member = set.is_some_and(|set| set.members().contains(call.args[2]));
    call.integer(i64::from(is_member));
    Ok(())
}

fn smismember(call: &mut Call<'_>) -> Result<(), Failure> {
    let set = call.store.read::<Set>(call.args[1])?;
    resp::array(call.reply, call.args.len() - 2);
    for member in &call.args[2..] {
        let is_member = set.is_some_and(|set| set.members().contains(*member));
        resp::integer(call.reply, i64::from(is_member));
    }
    Ok(())
}

fn scard(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<Set>(call.args[1])?.map_or(0, |set| set.members().len());
    call.integer(length as i64);
    Ok(())
}

fn smembers(call: &mut Call<'_>) -> Result<(), Failure> {
    let set = call.store.read::<Set>(call.args[1])?;
    resp::set(call.reply, set.map_or(0, |set| set.members().len()), call.resp3);
    for member in set.iter().flat_map(|set| set.members()) {
        resp::bulk(call.reply, member);
    }
    Ok(())
}

fn spop(call: &mut Call<'_>) -> Result<(), Failure> {
    let wanted = match call.args {
        [_, _] => None,
        [_, _, wanted] => Some(count(wanted)?),
        _ => return Err(SYNTAX),
    };
    let Some(set) = call.store.read::<Set>(call.args[1])? else {
        match wanted {
            None => resp::null(call.reply, call.resp3),
            Some(_) => resp::set(call.reply, 0, call.resp3),
        }
        return Ok(());
    };
    let taken = wanted.unwrap_or(1).min(set.members().len());
    if wanted.is_some() {
        resp::set(call.reply, taken, call.resp3);
    }
    let mut rng = call.rng();
    let reply = &mut *call.reply;
    call.store.write(call.args[1], |set: &mut Set| {
        for _ in 0..taken {
            let index = rng.below(set.members().len() as u64) as usize;
            if let Some(member) = set.remove_at(index) {
                resp::bulk(reply, &member);
            }
        }
    })?;
    if taken > 0 {
        call.raise_taken(Classes::SET, "spop", call.args[1]);
    }
    Ok(())
}

fn srandmember(call: &mut Call<'_>) -> Result<(), Failure> {
    let wanted = match call.args {
        [_, _] => None,
        [_, _, wanted] => Some(random_count(wanted)?),
        _ => return Err(SYNTAX),
    };
    let mut rng = call.rng();
    let Some(set) = call.store.read::<Set>(call.args[1])? else {
        match wanted {
            None => resp::null(call.reply, call.resp3),
            Some(_) => resp::array(call.reply, 0),
        }
        return Ok(());
    };
    let chosen = random_indices(&mut rng, wanted.unwrap_or(-1), set.members().len());
    if wanted.is_some() {
        resp::array(call.reply, chosen.len());
    }
    for member in chosen.iter().filter_map(|&index| set.members().get_index(index)) {
        resp::bulk(call.reply, member);
    }
    Ok(())
}

fn sscan(call: &mut Call<'_>) -> Result<(), Failure> {
    let cursor = super::scan::cursor(call.args[2])?;
    let Some(set) = call.store.read::<Set>(call.args[1])? else {
        super::scan::empty(call.reply);
        return Ok(());
    };
    let options = ScanOptions::parse(&call.args[3..], false)?;
    let window = window(cursor, options.count, set.members().len());
    let chosen = || {
        let wanted = |member: &[u8]| window.contains(member) && options.matches(member);
        set.members().iter().filter(move |member| wanted(member))
    };
    window.header(call.reply, chosen().count());
    for member in chosen() {
        resp::bulk(call.reply, member);
    }
    Ok(())
}
