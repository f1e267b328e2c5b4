//! Commands on keys of any type, and on all of them (Redis 7.0 `db.c`).

use alloc::vec::Vec;

use concord_core::rng::Rng;

use super::scan::{ScanOptions, cursor, reply_header};
use super::store::{SHARDS, Store};
use super::work::IN_A_ROW_OF_ONE;
use super::{Call, Failure, Handler, SYNTAX, glob, integer};
use crate::events::Classes;
use crate::table::UpperName;
use crate::{databases, resp};

/// Keys that RANDOMKEY draws to find one of its database.
const DRAWS_MAX: usize = 32;

pub(super) const HANDLERS: [(&[u8], Handler); 12] = [
    (b"DEL", delete),
    (b"UNLINK", delete),
    (b"EXISTS", exists),
    (b"TOUCH", exists),
    (b"TYPE", type_name),
    (b"DBSIZE", dbsize),
    (b"MEMORY", memory),
    (b"SCAN", scan),
    (b"KEYS", keys),
    (b"RANDOMKEY", randomkey),
    (b"FLUSHALL", |call| flush(call, None)),
    (b"FLUSHDB", |call| flush(call, Some(call.database))),
];

fn delete(call: &mut Call<'_>) -> Result<(), Failure> {
    let deleted = call.args[1..].iter().filter(|key| delete_key(call, key)).count();
    call.integer(deleted as i64);
    Ok(())
}

/// Deletes a key; whether it was there.
pub(super) fn delete_key(call: &mut Call<'_>, key: &[u8]) -> bool {
    let was_there = call.store.delete(key);
    if was_there {
        call.raise(Classes::GENERIC, "del", key);
    }
    was_there
}

/// A key that is named twice counts twice.
fn exists(call: &mut Call<'_>) -> Result<(), Failure> {
    let exist = call.args[1..].iter().filter(|key| call.store.get(key).is_some()).count();
    call.integer(exist as i64);
    Ok(())
}

fn type_name(call: &mut Call<'_>) -> Result<(), Failure> {
    let name = call.store.get(call.args[1]).map_or("none", |value| value.type_name());
    resp::simple(call.reply, name);
    Ok(())
}

fn dbsize(call: &mut Call<'_>) -> Result<(), Failure> {
    let count = call.store.count_of(call.database);
    call.integer(count as i64);
    Ok(())
}

/// MEMORY USAGE key [SAMPLES count]: all of a value is counted, however many samples are wanted.
fn memory(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, options) = (call.args[2], &call.args[3..]);
    let (pairs, rest) = options.as_chunks::<2>();
    for [name, samples] in pairs {
        if !name.eq_ignore_ascii_case(b"SAMPLES") || integer(samples)? < 0 {
            return Err(SYNTAX);
        }
    }
    if !rest.is_empty() {
        return Err(SYNTAX);
    }
    match call.store.size_bytes(key) {
        Some(size_bytes) => call.integer(size_bytes as i64),
        None => call.null(),
    }
    Ok(())
}

/// The cursor is the number of the next shard.
fn scan(call: &mut Call<'_>) -> Result<(), Failure> {
    let cursor = cursor(call.args[1])?;
    let options = ScanOptions::parse(&call.args[2..], true)?;
    let first = usize::try_from(cursor).map_or(SHARDS, |first| first.min(SHARDS));
    let mut found: Vec<&[u8]> = Vec::new();
    let (mut seen, mut next) = (0, 0);
    for shard in first..SHARDS {
        if seen >= options.count {
            next = shard as u64;
            break;
        }
        for (key, value) in call.store.shard_in_order(shard) {
            seen += 1;
            let has_type = options
                .type_name
                .is_none_or(|name| name.eq_ignore_ascii_case(value.type_name().as_bytes()));
            if has_type && options.matches(key) {
                found.push(key);
            }
        }
    }
    reply_header(call.reply, next, found.len());
    for key in found {
        resp::bulk(call.reply, key);
    }
    Ok(())
}

fn keys(call: &mut Call<'_>) -> Result<(), Failure> {
    let all = (0..SHARDS).flat_map(|shard| call.store.shard_in_order(shard));
    let found: Vec<&[u8]> =
        all.map(|(key, _)| key).filter(|key| glob::matches(call.args[1], key)).collect();
    resp::array(call.reply, found.len());
    for key in found {
        resp::bulk(call.reply, key);
    }
    Ok(())
}

fn randomkey(call: &mut Call<'_>) -> Result<(), Failure> {
    match random_key(call.store, call.database, call.rng())? {
        Some(key) => resp::bulk(call.reply, key),
        None => resp::null(call.reply, call.resp3),
    }
    Ok(())
}

/// Draws among all keys until one is of the database; if most are of others, walks along its own.
fn random_key(store: &Store, database: u8, mut rng: Rng) -> Result<Option<&[u8]>, Failure> {
    let (all, own) = (store.count(), store.count_of(database));
    if own == 0 {
        return Ok(None);
    }
    for _ in 0..DRAWS_MAX {
        let key = store.key_at(rng.below(all));
        if key.is_some_and(|key| databases::of_key(key) == database) {
            return Ok(key);
        }
    }
    store.work.spend(all / IN_A_ROW_OF_ONE)?;
    Ok(store.key_of_database_at(database, rng.below(own)))
}

/// `None`: of all databases.
fn flush(call: &mut Call<'_>, database: Option<u8>) -> Result<(), Failure> {
    match call.args {
        [_] => {}
        [_, mode] if matches!(UpperName::of(mode).bytes(), b"ASYNC" | b"SYNC") => {}
        _ => return Err(SYNTAX),
    }
    match database {
        None => call.store.clear(),
        Some(database) => call.store.clear_database(database),
    }
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}
