//! Streams without their groups (Redis 7.0 `t_stream.c`). What Redis takes from its clock is the
//! time of the record, so that an id is drawn once, by the node that orders writes.

use alloc::format;
use alloc::vec::Vec;

use super::stream::{BLOCK_ENTRIES_MAX, Entry, Id, Keep, Stream, Trim};
use super::{Call, Failure, Handler, SYNTAX, failure, fixed, integer};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 8] = [
    (b"XADD", xadd),
    (b"XLEN", xlen),
    (b"XRANGE", |call| xrange(call, false)),
    (b"XREVRANGE", |call| xrange(call, true)),
    (b"XREAD", xread),
    (b"XDEL", xdel),
    (b"XTRIM", xtrim),
    (b"XSETID", xsetid),
];

const BAD_ID: Failure = fixed(b"ERR Invalid stream ID specified as stream command argument");
const BAD_START: Failure = fixed(b"ERR invalid start ID for the interval");
const BAD_END: Failure = fixed(b"ERR invalid end ID for the interval");
const LIMIT_WITHOUT_TILDE: Failure =
    fixed(b"ERR syntax error, LIMIT cannot be used without the special ~ option");
const UNBALANCED: Failure = fixed(
    b"ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
);
const NO_KEY: Failure = fixed(b"ERR no such key");
const TWO_TRIMS: Failure =
    fixed(b"ERR syntax error, MAXLEN and MINID options at the same time are not compatible");

/// A number without a sign, as C's `strtoull` reads it where it is not written in the usual way.
fn unsigned(text: &[u8]) -> Option<u64> {
    if let Some(value) = resp::number(text) {
        return u64::try_from(value).ok();
    }
    let blank = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let text = &text[text.iter().take_while(|b| blank(b)).count()..];
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = core::str::from_utf8(digits).ok()?.parse::<u64>().ok()?;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Longest text of an id.
const ID_BYTES_MAX: usize = 127;

/// An id; `missing_seq` stands for a sequence part that is not there.
fn parse_id(text: &[u8], missing_seq: u64) -> Result<Id, Failure> {
    if text.len() > ID_BYTES_MAX {
        return Err(BAD_ID);
    }
    let id = match text.iter().position(|b| *b == b'-') {
        None => unsigned(text).map(|ms| Id { ms, seq: missing_seq }),
        Some(at) => {
            unsigned(&text[..at]).zip(unsigned(&text[at + 1..])).map(|(ms, seq)| Id { ms, seq })
        }
    };
    id.ok_or(BAD_ID)
}

/// An id with both parts, or with the sequence 0.
pub(super) fn id(text: &[u8]) -> Result<Id, Failure> {
    parse_id(text, 0)
}

/// An id, where `-` is the lowest and `+` the highest.
pub(super) fn id_or_edge(text: &[u8], missing_seq: u64) -> Result<Id, Failure> {
    match text {
        b"-" => Ok(Id::ZERO),
        b"+" => Ok(Id::MAX),
        _ => parse_id(text, missing_seq),
    }
}

/// The first id of an interval; with `(` it is excluded.
pub(super) fn start(text: &[u8]) -> Result<Id, Failure> {
    match text {
        [b'(', text @ ..] if !text.is_empty() => id(text)?.next().ok_or(BAD_START),
        _ => id_or_edge(text, 0),
    }
}

/// The last id of an interval.
pub(super) fn end(text: &[u8]) -> Result<Id, Failure> {
    match text {
        [b'(', text @ ..] if !text.is_empty() => {
            parse_id(text, u64::MAX)?.previous().ok_or(BAD_END)
        }
        _ => id_or_edge(text, u64::MAX),
    }
}

pub(super) fn reply_id(reply: &mut Vec<u8>, id: Id) {
    resp::bulk(reply, format!("{}-{}", id.ms, id.seq).as_bytes());
}

/// An entry: its id, then its fields and values.
pub(super) fn reply_entry(reply: &mut Vec<u8>, id: Id, entry: &Entry) {
    resp::array(reply, 2);
    reply_id(reply, id);
    resp::array(reply, entry.fields().count());
    for field in entry.fields() {
        resp::bulk(reply, field);
    }
}

/// The options of XADD and XTRIM.
struct AddOptions {
    /// The index of XADD's id, or the end.
    at: usize,
    only_existing: bool,
    trim: Option<Trim>,
    id: NewId,
}

/// The id of a new entry.
#[derive(Clone, Copy)]
enum NewId {
    /// An id from the clock.
    Auto,
    /// The next one in this ms.
    In(u64),
    Given(Id),
}

fn new_id(text: &[u8]) -> Result<NewId, Failure> {
    match text.strip_suffix(b"-*") {
        Some(ms) if !ms.contains(&b'-') => unsigned(ms).map(NewId::In).ok_or(BAD_ID),
        _ => id(text).map(NewId::Given),
    }
}

fn not_negative(text: &[u8], name: &str) -> Result<u64, Failure> {
    let value = integer(text)?;
    u64::try_from(value).map_err(|_| failure(format!("ERR The {name} argument must be >= 0.")))
}

impl AddOptions {
    /// Redis 7.0 `streamParseAddOrTrimArgsOrReply`.
    fn parse(args: &[&[u8]], adds: bool) -> Result<AddOptions, Failure> {
        let mut options =
            AddOptions { at: args.len(), only_existing: false, trim: None, id: NewId::Auto };
        let mut limit = None;
        let mut at = 2;
        while at < args.len() {
            let more = args.len() - 1 - at;
            let name = UpperName::of(args[at]);
            match name.bytes() {
                b"*" if adds => {
                    options.at = at;
                    break;
                }
                b"MAXLEN" | b"MINID" if more > 0 => {
                    if options.trim.is_some() {
                        return Err(TWO_TRIMS);
                    }
                    let approximately = more >= 2 && args[at + 1] == b"~";
                    at += usize::from(more >= 2 && matches!(args[at + 1], b"~" | b"="));
                    let keep = if name.is(b"MAXLEN") {
                        Keep::Length(not_negative(args[at + 1], "MAXLEN")?)
                    } else {
                        Keep::From(id(args[at + 1])?)
                    };
                    options.trim = Some(Trim { keep, approximately, limit: 0 });
                    at += 1;
                }
                b"LIMIT" if more > 0 => {
                    limit = Some(not_negative(args[at + 1], "LIMIT")?);
                    at += 1;
                }
                b"NOMKSTREAM" if adds => options.only_existing = true,
                _ if adds => {
                    options.id = new_id(args[at])?;
                    options.at = at;
                    break;
                }
                _ => return Err(SYNTAX),
            }
            at += 1;
        }
        options.set_limit(limit, adds)?;
        Ok(options)
    }

    fn set_limit(&mut self, limit: Option<u64>, adds: bool) -> Result<(), Failure> {
        let Some(trim) = &mut self.trim else {
            return match limit {
                Some(limit) if limit > 0 => Err(fixed(
                    b"ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
                )),
                Some(_) if adds => Err(LIMIT_WITHOUT_TILDE),
                None if adds => Ok(()),
                _ => Err(fixed(
                    b"ERR syntax error, XTRIM must be called with a trimming strategy",
                )),
            };
        };
        match limit {
            Some(_) if !trim.approximately => Err(LIMIT_WITHOUT_TILDE),
            Some(limit) => {
                trim.limit = limit;
                Ok(())
            }
            None => {
                // As much as a hundred blocks.
                trim.limit =
                    if trim.approximately { 100 * u64::from(BLOCK_ENTRIES_MAX) } else { 0 };
                Ok(())
            }
        }
    }
}

fn xadd(call: &mut Call<'_>) -> Result<(), Failure> {
    const ZERO_ID: Failure = fixed(b"ERR The ID specified in XADD must be greater than 0-0");
    const EXHAUSTED: Failure =
        fixed(b"ERR The stream has exhausted the last possible ID, unable to add more items");
    const TOO_LOW: Failure =
        fixed(b"ERR The ID specified in XADD is equal or smaller than the target stream top item");
    let options = AddOptions::parse(call.args, true)?;
    let fields = call.args.get(options.at + 1..).unwrap_or_default();
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    if matches!(options.id, NewId::Given(Id::ZERO)) {
        return Err(ZERO_ID);
    }
    let stream = call.store.read::<Stream>(call.args[1])?;
    if stream.is_none() && options.only_existing {
        call.null();
        return Ok(());
    }
    let fresh = Stream::default();
    let stream = stream.unwrap_or(&fresh);
    let last_id = stream.last_id;
    if last_id == Id::MAX {
        return Err(EXHAUSTED);
    }
    let id = match options.id {
        NewId::Auto => stream.next_id(call.now_ms).ok_or(EXHAUSTED)?,
        NewId::In(ms) if ms == last_id.ms => {
            Id { ms, seq: last_id.seq.checked_add(1).ok_or(TOO_LOW)? }
        }
        NewId::In(ms) => Id { ms, seq: 0 },
        NewId::Given(id) => id,
    };
    if id <= last_id {
        return Err(TOO_LOW);
    }
    let trimmed = call.store.write(call.args[1], |stream: &mut Stream| {
        stream.add(id, fields);
        options.trim.map_or(0, |trim| stream.trim(trim))
    })?;
    call.raise(Classes::STREAM, "xadd", call.args[1]);
    if trimmed > 0 {
        call.raise(Classes::STREAM, "xtrim", call.args[1]);
    }
    reply_id(call.reply, id);
    Ok(())
}

fn xlen(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<Stream>(call.args[1])?.map_or(0, Stream::len);
    call.integer(length as i64);
    Ok(())
}

fn xrange(call: &mut Call<'_>, backward: bool) -> Result<(), Failure> {
    let (first, last) = if backward { (3, 2) } else { (2, 3) };
    let (first, last) = (start(call.args[first])?, end(call.args[last])?);
    let mut limit = None;
    let (pairs, rest) = call.args[4..].as_chunks::<2>();
    for [name, count] in pairs {
        if !UpperName::of(name).is(b"COUNT") {
            return Err(SYNTAX);
        }
        limit = Some(usize::try_from(integer(count)?).unwrap_or(0));
    }
    if !rest.is_empty() {
        return Err(SYNTAX);
    }
    let Some(stream) = call.store.read::<Stream>(call.args[1])? else {
        resp::array(call.reply, 0);
        return Ok(());
    };
    if limit == Some(0) {
        resp::null_array(call.reply, call.resp3);
        return Ok(());
    }
    let limit = limit.unwrap_or(usize::MAX);
    let entries = stream.range(first..=last);
    let found: Vec<(Id, &Entry)> =
        if backward { entries.rev().take(limit).collect() } else { entries.take(limit).collect() };
    resp::array(call.reply, found.len());
    for (id, entry) in found {
        reply_entry(call.reply, id, entry);
    }
    Ok(())
}

/// The options of XREAD and XREADGROUP.
pub(super) struct ReadOptions<'a> {
    /// The largest number of entries of each stream.
    pub(super) count: usize,
    /// The group and the consumer.
    pub(super) group: Option<(&'a [u8], &'a [u8])>,
    pub(super) no_ack: bool,
    pub(super) keys: &'a [&'a [u8]],
    pub(super) ids: &'a [&'a [u8]],
}

impl<'a> ReadOptions<'a> {
    pub(super) fn parse(args: &'a [&'a [u8]], of_group: bool) -> Result<ReadOptions<'a>, Failure> {
        let mut options =
            ReadOptions { count: usize::MAX, group: None, no_ack: false, keys: &[], ids: &[] };
        let only_of_group = |option: &str| {
            failure(format!(
                "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
            ))
        };
        let mut at = 1;
        while at < args.len() {
            let more = args.len() - 1 - at;
            match UpperName::of(args[at]).bytes() {
                // Whether it waits is not for the engine to say.
                b"BLOCK" if more > 0 => {
                    crate::blocking::timeout_integer_ms(args[at + 1]).map_err(fixed)?;
                    at += 1;
                }
                b"COUNT" if more > 0 => {
                    let count = usize::try_from(integer(args[at + 1])?).unwrap_or(0);
                    options.count = if count == 0 { usize::MAX } else { count };
                    at += 1;
                }
                b"STREAMS" if more > 0 => {
                    let all = &args[at + 1..];
                    if !all.len().is_multiple_of(2) {
                        return Err(UNBALANCED);
                    }
                    (options.keys, options.ids) = all.split_at(all.len() / 2);
                    break;
                }
                b"GROUP" if more >= 2 => {
                    if !of_group {
                        return Err(only_of_group("GROUP"));
                    }
                    options.group = Some((args[at + 1], args[at + 2]));
                    at += 2;
                }
                b"NOACK" => {
                    if !of_group {
                        return Err(only_of_group("NOACK"));
                    }
                    options.no_ack = true;
                }
                _ => return Err(SYNTAX),
            }
            at += 1;
        }
        if options.keys.is_empty() {
            return Err(SYNTAX);
        }
        if of_group && options.group.is_none() {
            return Err(fixed(b"ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(options)
    }
}

/// Puts the number of streams before what was found of each; null if nothing was.
pub(super) fn finish_read(call: &mut Call<'_>, streams: usize, found: &[u8]) {
    match (streams, call.resp3) {
        (0, resp3) => resp::null_array(call.reply, resp3),
        (_, true) => resp::map(call.reply, streams, true),
        (_, false) => resp::array(call.reply, streams),
    }
    call.reply.extend_from_slice(found);
}

/// Begins what was found of one stream.
pub(super) fn begin_read(found: &mut Vec<u8>, key: &[u8], resp3: bool) {
    if !resp3 {
        resp::array(found, 2);
    }
    resp::bulk(found, key);
}

fn xread(call: &mut Call<'_>) -> Result<(), Failure> {
    let options = ReadOptions::parse(call.args, false)?;
    let mut behind = Vec::with_capacity(options.keys.len());
    for (key, text) in options.keys.iter().zip(options.ids) {
        let stream = call.store.read::<Stream>(key)?;
        behind.push(match *text {
            b"$" => stream.map_or(Id::ZERO, |stream| stream.last_id),
            b">" => {
                return Err(fixed(
                    b"ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
                ));
            }
            text => id(text)?,
        });
    }
    let (mut streams, mut found) = (0, Vec::new());
    for (key, behind) in options.keys.iter().zip(behind) {
        let Some(stream) = call.store.read::<Stream>(key)? else { continue };
        let Some(first) = behind.next() else { continue };
        let entries: Vec<_> = stream.range(first..=Id::MAX).take(options.count).collect();
        if entries.is_empty() {
            continue;
        }
        streams += 1;
        begin_read(&mut found, key, call.resp3);
        resp::array(&mut found, entries.len());
        for (id, entry) in entries {
            reply_entry(&mut found, id, entry);
        }
    }
    finish_read(call, streams, &found);
    Ok(())
}

fn xdel(call: &mut Call<'_>) -> Result<(), Failure> {
    if call.store.read::<Stream>(call.args[1])?.is_none() {
        call.integer(0);
        return Ok(());
    }
    let ids = call.args[2..].iter().map(|text| id(text)).collect::<Result<Vec<Id>, _>>()?;
    let deleted = call.store.write_existing(call.args[1], |stream: &mut Stream| {
        ids.into_iter().filter(|id| stream.delete(*id)).count()
    })?;
    if deleted.is_some_and(|deleted| deleted > 0) {
        call.raise(Classes::STREAM, "xdel", call.args[1]);
    }
    call.integer(deleted.unwrap_or(0) as i64);
    Ok(())
}

fn xtrim(call: &mut Call<'_>) -> Result<(), Failure> {
    let options = AddOptions::parse(call.args, false)?;
    let removed = call.store.write_existing(call.args[1], |stream: &mut Stream| {
        options.trim.map_or(0, |trim| stream.trim(trim))
    })?;
    if removed.is_some_and(|removed| removed > 0) {
        call.raise(Classes::STREAM, "xtrim", call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn xsetid(call: &mut Call<'_>) -> Result<(), Failure> {
    let last_id = id(call.args[2])?;
    let (mut entries_added, mut max_deleted) = (None, Id::ZERO);
    let (pairs, rest) = call.args[3..].as_chunks::<2>();
    for [name, value] in pairs {
        match UpperName::of(name).bytes() {
            b"ENTRIESADDED" => {
                let added = u64::try_from(integer(value)?);
                let negative = fixed(b"ERR entries_added must be positive");
                entries_added = Some(added.map_err(|_| negative)?);
            }
            b"MAXDELETEDID" => {
                max_deleted = id(value)?;
                if last_id < max_deleted {
                    return Err(fixed(
                        b"ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
            }
            _ => return Err(SYNTAX),
        }
    }
    if !rest.is_empty() {
        return Err(SYNTAX);
    }
    let stream = call.store.read::<Stream>(call.args[1])?.ok_or(NO_KEY)?;
    if let Some((top, _)) = stream.entries.last_key_value() {
        if last_id < *top {
            return Err(fixed(
                b"ERR The ID specified in XSETID is smaller than the target stream top item",
            ));
        }
        if entries_added.is_some_and(|added| stream.len() > added) {
            return Err(fixed(
                b"ERR The entries_added specified in XSETID is smaller than the target stream length",
            ));
        }
    }
    call.store.write(call.args[1], |stream: &mut Stream| {
        stream.last_id = last_id;
        stream.entries_added = entries_added.unwrap_or(stream.entries_added);
        if max_deleted != Id::ZERO {
            stream.max_deleted = max_deleted;
        }
    })?;
    call.raise(Classes::STREAM, "xsetid", call.args[1]);
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}
