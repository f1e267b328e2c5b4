//! The sequential behaviour of one key: the specification against which histories are checked.
//!
//! [`step`] takes a state, a command and the reply that a client saw, and returns the state that
//! follows, or none if no sequential store would have answered so. Except for expiry it is
//! deterministic: a key with a time to live may vanish between any two commands once it is due. The
//! search takes that as a step of its own.

mod sorted;
pub(crate) mod state;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::Reply;
use crate::command::{Bytes, Command, Condition, Ttl, integer};

pub use state::Calm;
use state::{Got, NOT_INTEGER, OVERFLOW, Stepped, WRONG_TYPE, WrongType};
pub(crate) use state::{Moment, Next, PREDICTED_ERRORS, State, Value, Want};

/// Executes one command on one state. Returns the state that follows, or `None` if the model would
/// have answered otherwise.
pub(crate) fn step(
    state: &State,
    command: &Command,
    want: Want<'_>,
    moment: &Moment,
) -> Option<Next> {
    let stepped = match command {
        Command::Get
        | Command::Strlen
        | Command::GetSet(_)
        | Command::GetDel
        | Command::Append(_)
        | Command::IncrBy(_)
        | Command::Cas { .. }
        | Command::Cad(_) => string_step(state, command, want),
        Command::Set { .. } | Command::SetNx(_) => set_step(state, command, want, moment),
        Command::Exists | Command::Del | Command::Flush | Command::Expire(_) | Command::Persist => {
            Ok(key_step(state, command, want, moment))
        }
        Command::Push { .. } | Command::Pop { .. } | Command::Llen | Command::Lrange(..) => {
            list_step(state, command, want)
        }
        Command::Sadd(_)
        | Command::Srem(_)
        | Command::Sismember(_)
        | Command::Scard
        | Command::Smembers => set_type_step(state, command, want),
        Command::Hset(_)
        | Command::Hget(_)
        | Command::Hdel(_)
        | Command::Hlen
        | Command::Hgetall => hash_step(state, command, want),
        Command::Zadd(..) | Command::Zpop { .. } | Command::Zcard => {
            sorted::sorted_step(state, command, want)
        }
        // One key's part in them is whether it exists: see `check`.
        Command::Keys | Command::Dbsize => Ok(want.same(&Got::Nil)),
        Command::Exec(commands) => Ok(exec_step(state, commands, want, moment)),
    };
    stepped.unwrap_or_else(|WrongType| want.same(&Got::Error(WRONG_TYPE)))
}

fn string_step(state: &State, command: &Command, want: Want<'_>) -> Stepped {
    let old = state.string()?;
    let equals = |expected: &Bytes| old.is_some_and(|old| old == expected);
    Ok(match command {
        Command::Get => want.optional(old).map(|()| Next::Same),
        Command::Strlen => want.same(&Got::Int(old.map_or(0, |v| v.len() as i64))),
        Command::GetSet(value) => {
            want.optional(old).and_then(|()| State::with(Value::Str(value.clone()), None))
        }
        Command::GetDel if old.is_none() => want.same(&Got::Nil),
        Command::GetDel => want.optional(old).and_then(|()| State::gone()),
        Command::Append(tail) => {
            let old = old.map_or(&[][..], |v| v);
            want.check(&Got::Int((old.len() + tail.len()) as i64))
                .and_then(|()| state.put(Value::Str([old, tail].concat().into())))
        }
        Command::IncrBy(by) => match old.map_or(Some(0), |v| integer(v)) {
            None => want.same(&Got::Error(NOT_INTEGER)),
            Some(value) => match value.checked_add(*by) {
                None => want.same(&Got::Error(OVERFLOW)),
                Some(sum) => want
                    .check(&Got::Int(sum))
                    .and_then(|()| state.put(Value::Str(sum.to_string().as_bytes().into()))),
            },
        },
        Command::Cas { expected, value } if equals(expected) => {
            want.check(&Got::Int(1)).and_then(|()| state.put(Value::Str(value.clone())))
        }
        Command::Cad(expected) if equals(expected) => {
            want.check(&Got::Int(1)).and_then(|()| State::gone())
        }
        _ if old.is_none() => want.same(&Got::Int(-1)),
        _ => want.same(&Got::Int(0)),
    })
}

fn set_step(state: &State, command: &Command, want: Want<'_>, moment: &Moment) -> Stepped {
    let (value, condition, get, ttl) = match command {
        Command::Set { value, condition, get, ttl } => (value, condition, *get, *ttl),
        Command::SetNx(_) if state.exists() => return Ok(want.same(&Got::Int(0))),
        Command::SetNx(value) => {
            let set = || State::with(Value::Str(value.clone()), None);
            return Ok(want.check(&Got::Int(1)).and_then(|()| set()));
        }
        _ => return Ok(None),
    };
    let old =
        if get || matches!(condition, Condition::IfEqual(_)) { state.string()? } else { None };
    let sets = match condition {
        Condition::Always => true,
        Condition::IfMissing => !state.exists(),
        Condition::IfExists => state.exists(),
        Condition::IfEqual(expected) => old.is_some_and(|old| old == expected),
    };
    let seen = match (get, sets) {
        (true, _) => want.optional(old),
        (false, true) => want.check(&Got::Ok),
        (false, false) => want.check(&Got::Nil),
    };
    if !sets {
        return Ok(seen.map(|()| Next::Same));
    }
    let expiry = || match ttl {
        Ttl::Clear => None,
        Ttl::Keep => state.expiry,
        Ttl::Set(ttl_ms) => Some(moment.expiry(ttl_ms)),
    };
    Ok(seen.and_then(|()| State::with(Value::Str(value.clone()), expiry())))
}

fn key_step(state: &State, command: &Command, want: Want<'_>, moment: &Moment) -> Option<Next> {
    let one_if = |yes: bool| Got::Int(i64::from(yes));
    match command {
        Command::Exists => want.same(&one_if(state.exists())),
        Command::Flush if state.exists() => want.check(&Got::Ok).and_then(|()| State::gone()),
        Command::Flush => want.same(&Got::Ok),
        Command::Persist if state.expiry.is_some() => {
            want.check(&Got::Int(1)).and_then(|()| State::with(state.value.clone(), None))
        }
        _ if !state.exists() => want.same(&Got::Int(0)),
        Command::Persist => want.same(&Got::Int(0)),
        Command::Expire(ttl_ms) if *ttl_ms > 0 => want.check(&Got::Int(1)).and_then(|()| {
            State::with(state.value.clone(), Some(moment.expiry(ttl_ms.unsigned_abs())))
        }),
        // A time to live that is not positive deletes at once, as DEL does.
        _ => want.check(&Got::Int(1)).and_then(|()| State::gone()),
    }
}

fn list_step(state: &State, command: &Command, want: Want<'_>) -> Stepped {
    let items = state.list()?;
    Ok(match command {
        Command::Push { left, values } => {
            want.check(&Got::Int((items.len() + values.len()) as i64)).and_then(|()| {
                let mut longer = Vec::with_capacity(items.len() + values.len());
                if *left {
                    longer.extend(values.iter().rev().cloned());
                    longer.extend_from_slice(items);
                } else {
                    longer.extend_from_slice(items);
                    longer.extend(values.iter().cloned());
                }
                state.put(Value::List(longer))
            })
        }
        Command::Pop { .. } if items.is_empty() => want.same(&Got::Nil),
        Command::Pop { left, count } => {
            let taken = count.unwrap_or(1).min(items.len());
            let (gone, kept) = if *left {
                items.split_at(taken)
            } else {
                let (kept, gone) = items.split_at(items.len() - taken);
                (gone, kept)
            };
            let got = match (count, gone) {
                (None, [item, ..]) => Got::Bulk(item),
                _ if *left => Got::Array(gone),
                _ => Got::Reversed(gone),
            };
            want.check(&got).and_then(|()| match (gone, kept) {
                ([], _) => Some(Next::Same),
                (_, []) => State::gone(),
                _ => state.put(Value::List(kept.to_vec())),
            })
        }
        Command::Lrange(from, to) => {
            let length = items.len() as i64;
            let place = |at: i64| if at < 0 { length.saturating_add(at).max(0) } else { at };
            let from = place(*from) as usize;
            let to = if *to < -length { -1 } else { place(*to) };
            let end = (to.saturating_add(1)).clamp(0, length) as usize;
            want.same(&Got::Array(items.get(from..end).unwrap_or_default()))
        }
        _ => want.same(&Got::Int(items.len() as i64)),
    })
}

/// The distinct elements: a command may name one twice.
fn distinct<'a>(elements: impl Iterator<Item = &'a Bytes>) -> BTreeSet<&'a Bytes> {
    elements.collect()
}

fn set_type_step(state: &State, command: &Command, want: Want<'_>) -> Stepped {
    let empty = BTreeSet::new();
    let members = match &state.value {
        Value::Missing => &empty,
        Value::Set(members) => members,
        _ => return Err(WrongType),
    };
    Ok(match command {
        Command::Sadd(values) => {
            let added = distinct(values.iter().filter(|value| !members.contains(*value)));
            want.check(&Got::Int(added.len() as i64)).and_then(|()| {
                if added.is_empty() {
                    return Some(Next::Same);
                }
                let mut then = members.clone();
                then.extend(added.into_iter().cloned());
                state.put(Value::Set(then))
            })
        }
        Command::Srem(values) => {
            let gone = distinct(values.iter().filter(|value| members.contains(*value)));
            want.check(&Got::Int(gone.len() as i64)).and_then(|()| match gone.len() {
                0 => Some(Next::Same),
                count if count == members.len() => State::gone(),
                _ => {
                    let mut then = members.clone();
                    then.retain(|member| !gone.contains(member));
                    state.put(Value::Set(then))
                }
            })
        }
        Command::Scard => want.same(&Got::Int(members.len() as i64)),
        Command::Smembers => want.same(&Got::Members(members)),
        Command::Sismember(value) => want.same(&Got::Int(i64::from(members.contains(value)))),
        _ => None,
    })
}

fn hash_step(state: &State, command: &Command, want: Want<'_>) -> Stepped {
    let empty = BTreeMap::new();
    let fields = match &state.value {
        Value::Missing => &empty,
        Value::Hash(fields) => fields,
        _ => return Err(WrongType),
    };
    Ok(match command {
        Command::Hset(pairs) => {
            let names = pairs.iter().map(|(name, _)| name);
            let added = distinct(names.filter(|name| !fields.contains_key(*name)));
            want.check(&Got::Int(added.len() as i64)).and_then(|()| {
                let mut then = fields.clone();
                then.extend(pairs.iter().cloned());
                if then == *fields { Some(Next::Same) } else { state.put(Value::Hash(then)) }
            })
        }
        Command::Hdel(names) => {
            let gone = distinct(names.iter().filter(|name| fields.contains_key(*name)));
            want.check(&Got::Int(gone.len() as i64)).and_then(|()| match gone.len() {
                0 => Some(Next::Same),
                count if count == fields.len() => State::gone(),
                _ => {
                    let mut then = fields.clone();
                    then.retain(|name, _| !gone.contains(name));
                    state.put(Value::Hash(then))
                }
            })
        }
        Command::Hlen => want.same(&Got::Int(fields.len() as i64)),
        Command::Hgetall => want.same(&Got::Pairs(fields)),
        Command::Hget(name) => want.optional(fields.get(name)).map(|()| Next::Same),
        _ => None,
    })
}

/// Executes all commands at one moment, each with its part of the reply.
fn exec_step(state: &State, commands: &[Command], want: Want<'_>, moment: &Moment) -> Option<Next> {
    let items = match want {
        Want::Reply(Reply::Array(items)) if items.len() == commands.len() => Some(items),
        Want::Reply(_) => return None,
        Want::Anything | Want::Tell(_) => None,
    };
    let (mut now, mut told) = (state.clone(), Vec::new());
    for (at, command) in commands.iter().enumerate() {
        // A single one may be refused as it would be outside of a transaction (full memory).
        let is_refused = |items: &Vec<Reply>| matches!(&items[at], Reply::Error(text) if !PREDICTED_ERRORS.iter().any(|prefix| text.starts_with(prefix)));
        if items.is_some_and(is_refused) {
            continue;
        }
        let cell = Cell::new(None);
        let part = match (&want, items) {
            (_, Some(items)) => Want::Reply(&items[at]),
            (Want::Tell(_), None) => Want::Tell(&cell),
            (Want::Reply(_) | Want::Anything, None) => Want::Anything,
        };
        if let Next::State(next) = step(&now, command, part, moment)? {
            now = next;
        }
        told.extend(cell.take());
    }
    if let Want::Tell(cell) = want {
        cell.set(Some(Reply::Array(told)));
    }
    Some(if now == *state { Next::Same } else { Next::State(now) })
}

/// Whether this reply to this command shows that nothing was changed, whatever the state was.
pub(crate) fn is_inert(command: &Command, reply: &Reply) -> bool {
    let nothing_set = match command {
        Command::Set { condition: Condition::Always, .. } => false,
        // With GET the old value is returned in either case.
        Command::Set { get: false, .. } | Command::Pop { .. } | Command::GetDel => {
            *reply == Reply::Nil
        }
        Command::Cas { .. } | Command::Cad(_) => *reply != Reply::Int(1),
        Command::Zpop { .. } => *reply == Reply::Array(Vec::new()),
        Command::SetNx(_)
        | Command::Del
        | Command::Expire(_)
        | Command::Persist
        | Command::Sadd(_)
        | Command::Srem(_)
        | Command::Hdel(_) => *reply == Reply::Int(0),
        Command::Exec(commands) => match reply {
            Reply::Array(items) if items.len() == commands.len() => {
                commands.iter().zip(items).all(|(command, item)| is_inert(command, item))
            }
            _ => false,
        },
        _ => false,
    };
    nothing_set || command.is_read() || matches!(reply, Reply::Error(_))
}
