//! Consumer groups (Redis 7.0 `t_stream.c`). Deliveries have the time of the record.

use alloc::format;
use alloc::vec::Vec;

use super::groups::{Group, Pending, read_up_to};
use super::stream::{Entry, Id, Stream};
use super::streams::{
    ReadOptions, begin_read, end, finish_read, id, id_or_edge, reply_entry, reply_id, start,
};
use super::{Call, Failure, Handler, NOT_AN_INTEGER, SYNTAX, failure, fixed, integer};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 6] = [
    (b"XGROUP", xgroup),
    (b"XREADGROUP", xreadgroup),
    (b"XACK", xack),
    (b"XPENDING", xpending),
    (b"XCLAIM", xclaim),
    (b"XAUTOCLAIM", xautoclaim),
];

/// Redis' error for a subcommand whose arguments are not its own.
pub(super) fn bad_subcommand(call: &Call<'_>) -> Failure {
    let name = UpperName::of(call.args[0]);
    let sub = &call.args[1][..call.args[1].len().min(128)];
    let head = &b"ERR unknown subcommand or wrong number of arguments for '"[..];
    let capitals = name.bytes();
    failure([head, sub, b"'. Try ", capitals, b" HELP."].concat())
}

/// The event of a consumer that was made.
const NEW_CONSUMER: &str = "xgroup-createconsumer";

fn xgroup(call: &mut Call<'_>) -> Result<(), Failure> {
    let sub = UpperName::of(call.args[1]);
    match (sub.bytes(), call.args.len()) {
        (b"CREATE" | b"SETID", 5..) | (b"DESTROY", 4) | (b"CREATECONSUMER" | b"DELCONSUMER", 5) => {
        }
        _ => return Err(bad_subcommand(call)),
    }
    let (key, name) = (call.args[2], call.args[3]);
    let (makes_stream, entries_read) = create_options(call, &sub)?;
    let stream = call.store.read::<Stream>(key)?;
    if stream.is_none() && !makes_stream {
        return Err(fixed(
            b"ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.",
        ));
    }
    let is_there = stream.is_some_and(|stream| stream.groups.contains_key(name));
    let needs_group = matches!(sub.bytes(), b"SETID" | b"CREATECONSUMER" | b"DELCONSUMER");
    if needs_group && !is_there {
        let head = &b"NOGROUP No such consumer group '"[..];
        return Err(failure([head, name, b"' for key name '", key, b"'"].concat()));
    }
    let last_id = stream.map_or(Id::ZERO, |stream| stream.last_id);
    let now_ms = call.now_ms;
    match sub.bytes() {
        b"CREATE" => {
            let from = if call.args[4] == b"$" { last_id } else { id(call.args[4])? };
            if is_there {
                return Err(fixed(b"BUSYGROUP Consumer Group name already exists"));
            }
            call.store.write(key, |stream: &mut Stream| {
                stream.groups.insert(name.into(), Group::new(from, entries_read));
            })?;
            call.raise(Classes::STREAM, "xgroup-create", key);
            call.reply.extend_from_slice(resp::OK);
        }
        b"SETID" => {
            let from = match call.args[4] {
                b"$" => last_id,
                text => id_or_edge(text, 0)?,
            };
            change(call, key, name, |group| {
                group.last_id = from;
                group.entries_read = entries_read;
            })?;
            call.raise(Classes::STREAM, "xgroup-setid", key);
            call.reply.extend_from_slice(resp::OK);
        }
        b"DESTROY" => {
            let destroyed = call
                .store
                .write(key, |stream: &mut Stream| stream.groups.remove(name).is_some())?;
            if destroyed {
                call.raise(Classes::STREAM, "xgroup-destroy", key);
            }
            call.integer(i64::from(destroyed));
        }
        b"CREATECONSUMER" => {
            let consumer = call.args[4];
            let is_new = change(call, key, name, |group| group.consumer(consumer, now_ms).1)?;
            if is_new == Some(true) {
                call.raise(Classes::STREAM, NEW_CONSUMER, key);
            }
            call.integer(i64::from(is_new.unwrap_or(false)));
        }
        _ => {
            let consumer = call.args[4];
            let is_there = group(call, key, name)?.find(consumer).is_some();
            let pending = change(call, key, name, |group| group.remove_consumer(consumer))?;
            if is_there {
                call.raise(Classes::STREAM, "xgroup-delconsumer", key);
            }
            call.integer(pending.unwrap_or(0) as i64);
        }
    }
    Ok(())
}

/// Whether the stream is made, and how much the group is said to have read.
fn create_options(call: &Call<'_>, sub: &UpperName) -> Result<(bool, Option<u64>), Failure> {
    let (mut makes_stream, mut entries_read) = (false, None);
    let mut at = 5;
    while let Some(option) = call.args.get(at) {
        match (UpperName::of(option).bytes(), call.args.get(at + 1)) {
            (b"MKSTREAM", _) if sub.is(b"CREATE") => makes_stream = true,
            (b"ENTRIESREAD", Some(value)) => {
                entries_read =
                    match integer(value)? {
                        -1 => None,
                        value => Some(u64::try_from(value).map_err(|_| {
                            fixed(b"ERR value for ENTRIESREAD must be positive or -1")
                        })?),
                    };
                at += 1;
            }
            _ => return Err(bad_subcommand(call)),
        }
        at += 1;
    }
    Ok((makes_stream, entries_read))
}

/// Changes a group, if it is there.
fn change<R>(
    call: &mut Call<'_>,
    key: &[u8],
    name: &[u8],
    change: impl FnOnce(&mut Group) -> R,
) -> Result<Option<R>, Failure> {
    let changed = call
        .store
        .write_existing(key, |stream: &mut Stream| stream.groups.get_mut(name).map(change))?;
    Ok(changed.flatten())
}

fn no_group(key: &[u8], name: &[u8], where_: &[u8]) -> Failure {
    let head = &b"NOGROUP No such key '"[..];
    failure([head, key, b"' or consumer group '", name, b"'", where_].concat())
}

fn group<'a>(call: &'a Call<'_>, key: &[u8], name: &[u8]) -> Result<&'a Group, Failure> {
    let stream = call.store.read::<Stream>(key)?;
    stream.and_then(|stream| stream.groups.get(name)).ok_or_else(|| no_group(key, name, b""))
}

fn xreadgroup(call: &mut Call<'_>) -> Result<(), Failure> {
    let options = ReadOptions::parse(call.args, true)?;
    let (name, consumer) = options.group.unwrap_or_default();
    // From where each stream's history is read; `None`: what is new.
    let mut from = Vec::with_capacity(options.keys.len());
    for (key, text) in options.keys.iter().zip(options.ids) {
        let stream = call.store.read::<Stream>(key)?;
        if !stream.is_some_and(|stream| stream.groups.contains_key(name)) {
            return Err(no_group(key, name, b" in XREADGROUP with GROUP option"));
        }
        from.push(match *text {
            b"$" => {
                return Err(fixed(
                    b"ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
                ));
            }
            b">" => None,
            text => Some(id(text)?).filter(|id| *id != Id::MAX),
        });
    }
    let (mut streams, mut found) = (0, Vec::new());
    let (now_ms, resp3) = (call.now_ms, call.resp3);
    for (key, from) in options.keys.iter().zip(from) {
        let (mut entries, mut is_new) = (Vec::new(), false);
        let served = call.store.write_existing(key, |stream: &mut Stream| {
            let Some(mut group) = stream.groups.remove(name) else { return false };
            let was_there = group.find(consumer).is_some();
            let served = match from {
                Some(behind) => {
                    let (number, _) = group.consumer(consumer, now_ms);
                    read_history(
                        stream,
                        &mut group,
                        number,
                        behind,
                        options.count,
                        now_ms,
                        &mut entries,
                    );
                    true
                }
                None => read_new(stream, &mut group, consumer, &options, now_ms, &mut entries),
            };
            is_new = !was_there && group.find(consumer).is_some();
            stream.groups.insert(name.into(), group);
            served
        })?;
        if is_new {
            call.raise(Classes::STREAM, NEW_CONSUMER, key);
        }
        if served == Some(true) {
            streams += 1;
            begin_read(&mut found, key, resp3);
            found.append(&mut entries);
        }
    }
    finish_read(call, streams, &found);
    Ok(())
}

/// What was delivered to a consumer behind an id and is not acknowledged.
fn read_history(
    stream: &Stream,
    group: &mut Group,
    number: u64,
    behind: Id,
    count: usize,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let own = group.consumers.get(&number);
    let ids: Vec<Id> = match (own, behind.next()) {
        (Some(own), Some(first)) => own.pending.range(first..).take(count).copied().collect(),
        _ => Vec::new(),
    };
    resp::array(out, ids.len());
    for id in ids {
        match stream.entries.get(&id) {
            Some(entry) => {
                reply_entry(out, id, entry);
                if let Some(pending) = group.pending.get_mut(&id) {
                    pending.delivered_ms = now_ms as i64;
                    pending.deliveries += 1;
                }
            }
            None => {
                resp::array(out, 2);
                reply_id(out, id);
                resp::null_array(out, false);
            }
        }
    }
}

/// What was delivered to nobody of the group; false if there is nothing.
fn read_new(
    stream: &Stream,
    group: &mut Group,
    consumer: &[u8],
    options: &ReadOptions<'_>,
    now_ms: u64,
    out: &mut Vec<u8>,
) -> bool {
    let Some(first) = group.last_id.next() else { return false };
    let new: Vec<(Id, &Entry)> = stream.range(first..=Id::MAX).take(options.count).collect();
    if new.is_empty() {
        return false;
    }
    let (number, _) = group.consumer(consumer, now_ms);
    resp::array(out, new.len());
    for (id, entry) in new {
        group.entries_read = read_up_to(stream, group.entries_read, id);
        group.last_id = id;
        reply_entry(out, id, entry);
        if !options.no_ack {
            let delivered_ms = now_ms as i64;
            group.deliver(id, Pending { consumer: number, delivered_ms, deliveries: 1 });
        }
    }
    true
}

fn xack(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, name) = (call.args[1], call.args[2]);
    let stream = call.store.read::<Stream>(key)?;
    if !stream.is_some_and(|stream| stream.groups.contains_key(name)) {
        call.integer(0);
        return Ok(());
    }
    let ids = call.args[3..].iter().map(|text| id(text)).collect::<Result<Vec<Id>, _>>()?;
    let acknowledged = change(call, key, name, |group| {
        ids.into_iter().filter(|id| group.acknowledge(*id)).count()
    })?;
    call.integer(acknowledged.unwrap_or(0) as i64);
    Ok(())
}

fn xpending(call: &mut Call<'_>) -> Result<(), Failure> {
    let args = call.args;
    if args.len() == 3 {
        return summary(call);
    }
    if !(6..=9).contains(&args.len()) {
        return Err(SYNTAX);
    }
    let (mut at, mut min_idle_ms) = (3, 0);
    if UpperName::of(args[3]).is(b"IDLE") {
        min_idle_ms = integer(args[4])?;
        if args.len() < 8 {
            return Err(SYNTAX);
        }
        at += 2;
    }
    let count = usize::try_from(integer(args[at + 2])?).unwrap_or(0);
    let (first, last) = (start(args[at])?, end(args[at + 1])?);
    let consumer = args.get(at + 3);
    let group = group(call, args[1], args[2])?;
    let number = match consumer {
        Some(name) => match group.find(name) {
            Some(number) => Some(number),
            None => {
                resp::array(call.reply, 0);
                return Ok(());
            }
        },
        None => None,
    };
    let idle_ms = |pending: &Pending| call.now_ms as i64 - pending.delivered_ms;
    let mut items = Vec::new();
    let mut found = 0;
    let range = (first <= last).then(|| group.pending.range(first..=last));
    let own = |(_, pending): &(&Id, &Pending)| number.is_none_or(|own| own == pending.consumer);
    let idle_enough =
        |(_, pending): &(&Id, &Pending)| min_idle_ms == 0 || idle_ms(pending) >= min_idle_ms;
    let all = range.into_iter().flatten().filter(own).filter(idle_enough);
    for (id, pending) in all.take(count) {
        found += 1;
        resp::array(&mut items, 4);
        reply_id(&mut items, *id);
        resp::bulk(&mut items, group.name(pending.consumer));
        resp::integer(&mut items, idle_ms(pending).max(0));
        resp::integer(&mut items, pending.deliveries);
    }
    resp::array(call.reply, found);
    call.reply.extend_from_slice(&items);
    Ok(())
}

/// XPENDING key group.
fn summary(call: &mut Call<'_>) -> Result<(), Failure> {
    let resp3 = call.resp3;
    let group = group(call, call.args[1], call.args[2])?;
    let mut out = Vec::new();
    resp::array(&mut out, 4);
    resp::integer(&mut out, group.pending.len() as i64);
    match (group.pending.first_key_value(), group.pending.last_key_value()) {
        (Some((first, _)), Some((last, _))) => {
            reply_id(&mut out, *first);
            reply_id(&mut out, *last);
            let waiting = || {
                let consumers = group.by_name.values().filter_map(|n| group.consumers.get(n));
                consumers.filter(|consumer| !consumer.pending.is_empty())
            };
            resp::array(&mut out, waiting().count());
            for consumer in waiting() {
                resp::array(&mut out, 2);
                resp::bulk(&mut out, &consumer.name);
                resp::bulk(&mut out, format!("{}", consumer.pending.len()).as_bytes());
            }
        }
        _ => {
            resp::null(&mut out, resp3);
            resp::null(&mut out, resp3);
            resp::null_array(&mut out, resp3);
        }
    }
    call.reply.extend_from_slice(&out);
    Ok(())
}

/// The options of XCLAIM.
struct ClaimOptions {
    ids: Vec<Id>,
    delivered_ms: i64,
    deliveries: Option<i64>,
    force: bool,
    only_ids: bool,
    last_id: Id,
}

fn number(text: &[u8], what: &str) -> Result<i64, Failure> {
    resp::number(text).ok_or_else(|| failure(format!("ERR Invalid {what}")))
}

impl ClaimOptions {
    fn parse(args: &[&[u8]], now_ms: i64) -> Result<ClaimOptions, Failure> {
        let ids: Vec<Id> = args.iter().map_while(|text| id(text).ok()).collect();
        let mut options = ClaimOptions {
            ids,
            delivered_ms: now_ms,
            deliveries: None,
            force: false,
            only_ids: false,
            last_id: Id::ZERO,
        };
        let mut at = options.ids.len();
        while let Some(option) = args.get(at) {
            let name = UpperName::of(option);
            let value = args.get(at + 1);
            let number =
                |text| number(text, &format!("{} option argument for XCLAIM", Upper(&name)));
            match (name.bytes(), value) {
                (b"FORCE", _) => options.force = true,
                (b"JUSTID", _) => options.only_ids = true,
                (b"IDLE", Some(ms)) => options.delivered_ms = now_ms.wrapping_sub(number(ms)?),
                (b"TIME", Some(ms)) => options.delivered_ms = number(ms)?,
                (b"RETRYCOUNT", Some(count)) => options.deliveries = Some(number(count)?),
                (b"LASTID", Some(text)) => options.last_id = id(text)?,
                _ => {
                    let head = &b"ERR Unrecognized XCLAIM option '"[..];
                    return Err(failure([head, option, b"'"].concat()));
                }
            }
            at += match name.bytes() {
                b"FORCE" | b"JUSTID" => 1,
                _ => 2,
            };
        }
        if options.delivered_ms < 0 || options.delivered_ms > now_ms {
            options.delivered_ms = now_ms;
        }
        Ok(options)
    }
}

/// A name in capitals, in a text.
struct Upper<'a>(&'a UpperName);

impl core::fmt::Display for Upper<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0.lower().to_ascii_uppercase())
    }
}

/// The consumer that claims, made when it claims its first entry.
struct Claimant<'a> {
    name: &'a [u8],
    number: Option<u64>,
    /// It was made.
    is_new: bool,
    now_ms: u64,
}

impl Claimant<'_> {
    /// Takes an entry over, if it is not too fresh; whether it did.
    fn claim(
        &mut self,
        group: &mut Group,
        id: Id,
        min_idle_ms: i64,
        change: impl FnOnce(&mut Pending),
    ) -> bool {
        let Some(mut pending) = group.pending.get(&id).copied() else { return false };
        if min_idle_ms > 0 && (self.now_ms as i64) - pending.delivered_ms < min_idle_ms {
            return false;
        }
        pending.consumer = self.in_group(group);
        change(&mut pending);
        group.deliver(id, pending);
        true
    }

    fn in_group(&mut self, group: &mut Group) -> u64 {
        match self.number {
            Some(number) => number,
            None => {
                let (number, is_new) = group.consumer(self.name, self.now_ms);
                self.is_new |= is_new;
                self.number = Some(number);
                number
            }
        }
    }
}

fn xclaim(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, name, consumer) = (call.args[1], call.args[2], call.args[3]);
    group(call, key, name)?;
    let min_idle_ms = number(call.args[4], "min-idle-time argument for XCLAIM")?.max(0);
    let now_ms = call.now_ms;
    let options = ClaimOptions::parse(&call.args[5..], now_ms as i64)?;
    let (mut claimed, mut out, mut is_new) = (0, Vec::new(), false);
    call.store.write_existing(key, |stream: &mut Stream| {
        let Some(mut group) = stream.groups.remove(name) else { return };
        group.last_id = group.last_id.max(options.last_id);
        let mut claimant = Claimant { name: consumer, number: None, is_new: false, now_ms };
        for id in &options.ids {
            let Some(entry) = stream.entries.get(id) else {
                group.acknowledge(*id);
                continue;
            };
            let mut min_idle_ms = min_idle_ms;
            if options.force && !group.pending.contains_key(id) {
                let number = claimant.in_group(&mut group);
                let fresh =
                    Pending { consumer: number, delivered_ms: options.delivered_ms, deliveries: 1 };
                group.deliver(*id, fresh);
                min_idle_ms = 0;
            }
            let is_claimed = claimant.claim(&mut group, *id, min_idle_ms, |pending| {
                pending.delivered_ms = options.delivered_ms;
                match options.deliveries {
                    Some(count) if count >= 0 => pending.deliveries = count,
                    _ => pending.deliveries += i64::from(!options.only_ids),
                }
            });
            if is_claimed {
                claimed += 1;
                if options.only_ids {
                    reply_id(&mut out, *id);
                } else {
                    reply_entry(&mut out, *id, entry);
                }
            }
        }
        is_new = claimant.is_new;
        stream.groups.insert(name.into(), group);
    })?;
    if is_new {
        call.raise(Classes::STREAM, NEW_CONSUMER, key);
    }
    resp::array(call.reply, claimed);
    call.reply.extend_from_slice(&out);
    Ok(())
}

/// Most entries of an XAUTOCLAIM for whose ids redis-server would find room.
const COUNT_MAX: usize = 1 << 36;

/// COUNT and JUSTID of XAUTOCLAIM.
fn autoclaim_options(args: &[&[u8]]) -> Result<(usize, bool), Failure> {
    const NUMBER_MAX: i64 = i64::MAX / 16;
    let (mut count, mut only_ids) = (100, false);
    let mut at = 0;
    while let Some(option) = args.get(at) {
        match (UpperName::of(option).bytes(), args.get(at + 1)) {
            (b"COUNT", Some(value)) => {
                let bad = fixed(b"ERR COUNT must be > 0");
                let value = resp::number(value).ok_or(NOT_AN_INTEGER);
                count = match value {
                    Ok(value) if (1..=NUMBER_MAX).contains(&value) => value as usize,
                    Ok(_) | Err(_) => return Err(bad),
                };
                at += 1;
            }
            (b"JUSTID", _) => only_ids = true,
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok((count, only_ids))
}

fn xautoclaim(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, name, consumer) = (call.args[1], call.args[2], call.args[3]);
    let min_idle_ms = number(call.args[4], "min-idle-time argument for XAUTOCLAIM")?.max(0);
    let first = start(call.args[5])?;
    let (count, only_ids) = autoclaim_options(&call.args[6..])?;
    group(call, key, name)?;
    if count > COUNT_MAX {
        return Err(fixed(
            b"ERR Insufficient memory, failed allocating transient memory, COUNT too high.",
        ));
    }
    let now_ms = call.now_ms;
    let (mut claimed, mut out, mut is_new) = (0, Vec::new(), false);
    let mut deleted = Vec::new();
    let mut next = Id::ZERO;
    call.store.write_existing(key, |stream: &mut Stream| {
        let Some(mut group) = stream.groups.remove(name) else { return };
        let mut claimant = Claimant { name: consumer, number: None, is_new: false, now_ms };
        let mut attempts = count.saturating_mul(10);
        let mut at = Some(first);
        loop {
            let found = at.and_then(|at| group.pending.range(at..).next()).map(|(id, _)| *id);
            let Some(id) = found else { break };
            if attempts == 0 || claimed + deleted.len() == count {
                next = id;
                break;
            }
            attempts -= 1;
            at = id.next();
            let Some(entry) = stream.entries.get(&id) else {
                group.acknowledge(id);
                deleted.push(id);
                continue;
            };
            let is_claimed = claimant.claim(&mut group, id, min_idle_ms, |pending| {
                pending.delivered_ms = now_ms as i64;
                pending.deliveries += i64::from(!only_ids);
            });
            if is_claimed {
                claimed += 1;
                if only_ids {
                    reply_id(&mut out, id);
                } else {
                    reply_entry(&mut out, id, entry);
                }
            }
        }
        is_new = claimant.is_new;
        stream.groups.insert(name.into(), group);
    })?;
    if is_new {
        call.raise(Classes::STREAM, NEW_CONSUMER, key);
    }
    resp::array(call.reply, 3);
    reply_id(call.reply, next);
    resp::array(call.reply, claimed);
    call.reply.extend_from_slice(&out);
    resp::array(call.reply, deleted.len());
    for id in deleted {
        reply_id(call.reply, id);
    }
    Ok(())
}
