//! XINFO (Redis 7.0 `t_stream.c`).

use alloc::vec::Vec;

use super::group_commands::bad_subcommand;
use super::groups::Group;
use super::stream::{Id, Stream};
use super::streams::{reply_entry, reply_id};
use super::{Call, Failure, Handler, failure, fixed, integer};
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 1] = [(b"XINFO", xinfo)];

/// The default number of entries that XINFO STREAM FULL shows.
const FULL_COUNT: usize = 10;

fn xinfo(call: &mut Call<'_>) -> Result<(), Failure> {
    let sub = UpperName::of(call.args[1]);
    match (sub.bytes(), call.args) {
        (b"STREAM", [_, _, key, options @ ..]) => info_stream(call, key, options),
        (b"GROUPS", [_, _, key]) => info_groups(call, key),
        (b"CONSUMERS", [_, _, key, group]) => info_consumers(call, key, group),
        _ => Err(bad_subcommand(call)),
    }
}

/// A map that is written field by field.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    resp3: bool,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) {
        resp::bulk(self.out, name.as_bytes());
    }

    fn integer(&mut self, name: &str, value: u64) {
        self.name(name);
        resp::integer(self.out, value as i64);
    }

    fn id(&mut self, name: &str, id: Id) {
        self.name(name);
        reply_id(self.out, id);
    }

    fn optional(&mut self, name: &str, value: Option<i64>) {
        self.name(name);
        match value {
            Some(value) => resp::integer(self.out, value),
            None => resp::null(self.out, self.resp3),
        }
    }

    fn stream(&mut self, stream: &Stream) {
        let blocks = stream.blocks.len() as u64;
        self.integer("length", stream.len());
        self.integer("radix-tree-keys", blocks);
        self.integer("radix-tree-nodes", blocks + 1);
        self.id("last-generated-id", stream.last_id);
        self.id("max-deleted-entry-id", stream.max_deleted);
        self.integer("entries-added", stream.entries_added);
        self.id("recorded-first-entry-id", stream.first_id());
    }

    fn group(&mut self, stream: &Stream, group: &Group, count: usize) {
        self.id("last-delivered-id", group.last_id);
        self.optional("entries-read", group.entries_read.map(|read| read as i64));
        self.optional("lag", stream.lag(group));
        self.integer("pel-count", group.pending.len() as u64);
        self.name("pending");
        resp::array(self.out, group.pending.len().min(count));
        for (id, pending) in group.pending.iter().take(count) {
            resp::array(self.out, 4);
            reply_id(self.out, *id);
            resp::bulk(self.out, group.name(pending.consumer));
            resp::integer(self.out, pending.delivered_ms);
            resp::integer(self.out, pending.deliveries);
        }
        self.name("consumers");
        resp::array(self.out, group.consumers.len());
        for consumer in group.by_name.values().filter_map(|n| group.consumers.get(n)) {
            resp::map(self.out, 4, self.resp3);
            self.name("name");
            resp::bulk(self.out, &consumer.name);
            self.integer("seen-time", consumer.seen_ms);
            self.integer("pel-count", consumer.pending.len() as u64);
            self.name("pending");
            resp::array(self.out, consumer.pending.len().min(count));
            for id in consumer.pending.iter().take(count) {
                let pending = group.pending.get(id);
                resp::array(self.out, 3);
                reply_id(self.out, *id);
                resp::integer(self.out, pending.map_or(0, |p| p.delivered_ms));
                resp::integer(self.out, pending.map_or(0, |p| p.deliveries));
            }
        }
    }
}

fn stream<'a>(call: &'a Call<'_>, key: &[u8]) -> Result<&'a Stream, Failure> {
    call.store.read::<Stream>(key)?.ok_or(fixed(b"ERR no such key"))
}

fn info_stream(call: &mut Call<'_>, key: &[u8], options: &[&[u8]]) -> Result<(), Failure> {
    stream(call, key)?;
    let full = match options {
        [] => None,
        [full] if UpperName::of(full).is(b"FULL") => Some(FULL_COUNT),
        [full, count, value]
            if UpperName::of(full).is(b"FULL") && UpperName::of(count).is(b"COUNT") =>
        {
            match integer(value)? {
                0 => Some(usize::MAX),
                value => Some(usize::try_from(value).unwrap_or(FULL_COUNT)),
            }
        }
        _ => return Err(bad_subcommand(call)),
    };
    let resp3 = call.resp3;
    let stream = stream(call, key)?;
    let mut out = Vec::new();
    resp::map(&mut out, if full.is_some() { 9 } else { 10 }, resp3);
    let mut fields = Fields { out: &mut out, resp3 };
    fields.stream(stream);
    match full {
        None => {
            fields.integer("groups", stream.groups.len() as u64);
            let edges = [
                ("first-entry", stream.entries.first_key_value()),
                ("last-entry", stream.entries.last_key_value()),
            ];
            for (name, entry) in edges {
                fields.name(name);
                match entry {
                    Some((id, entry)) => reply_entry(fields.out, *id, entry),
                    None => resp::null(fields.out, resp3),
                }
            }
        }
        Some(count) => {
            fields.name("entries");
            resp::array(fields.out, stream.entries.len().min(count));
            for (id, entry) in stream.entries.iter().take(count) {
                reply_entry(fields.out, *id, entry);
            }
            fields.name("groups");
            resp::array(fields.out, stream.groups.len());
            for (name, group) in &stream.groups {
                resp::map(fields.out, 7, resp3);
                fields.name("name");
                resp::bulk(fields.out, name);
                fields.group(stream, group, count);
            }
        }
    }
    call.reply.extend_from_slice(&out);
    Ok(())
}

fn info_groups(call: &mut Call<'_>, key: &[u8]) -> Result<(), Failure> {
    let resp3 = call.resp3;
    let stream = stream(call, key)?;
    let mut out = Vec::new();
    resp::array(&mut out, stream.groups.len());
    for (name, group) in &stream.groups {
        resp::map(&mut out, 6, resp3);
        let mut fields = Fields { out: &mut out, resp3 };
        fields.name("name");
        resp::bulk(fields.out, name);
        fields.integer("consumers", group.consumers.len() as u64);
        fields.integer("pending", group.pending.len() as u64);
        fields.id("last-delivered-id", group.last_id);
        fields.optional("entries-read", group.entries_read.map(|read| read as i64));
        fields.optional("lag", stream.lag(group));
    }
    call.reply.extend_from_slice(&out);
    Ok(())
}

fn info_consumers(call: &mut Call<'_>, key: &[u8], name: &[u8]) -> Result<(), Failure> {
    let (resp3, now_ms) = (call.resp3, call.now_ms);
    let Some(group) = stream(call, key)?.groups.get(name) else {
        let head = &b"NOGROUP No such consumer group '"[..];
        return Err(failure([head, name, b"' for key name '", key, b"'"].concat()));
    };
    let mut out = Vec::new();
    resp::array(&mut out, group.consumers.len());
    for consumer in group.by_name.values().filter_map(|n| group.consumers.get(n)) {
        resp::map(&mut out, 3, resp3);
        let mut fields = Fields { out: &mut out, resp3 };
        fields.name("name");
        resp::bulk(fields.out, &consumer.name);
        fields.integer("pending", consumer.pending.len() as u64);
        fields.integer("idle", now_ms.saturating_sub(consumer.seen_ms));
    }
    call.reply.extend_from_slice(&out);
    Ok(())
}
