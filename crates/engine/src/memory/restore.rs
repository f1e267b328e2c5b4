//! DUMP and RESTORE (Redis 7.0 `cluster.c`, `rdb.c`). Collections are written in the plain forms of
//! the format, and read in all that Redis ever packed them into.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::packed::{self, Elements};
use super::rdb::{BAD_FORMAT, Reader, put_string};
use super::rdb_stream;
use super::sorted::Sorted;
use super::store::{Bytes, Hash, Kind, List, Set, Value};
use super::work::Work;
use super::{Call, Failure, Handler, SYNTAX, fixed, float, integer};
use crate::events::Classes;
use crate::rdb::{self, put_length};
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 2] = [(b"DUMP", dump), (b"RESTORE", restore)];

/// Types of values, as they are written.
mod types {
    pub(super) const STRING: u8 = 0;
    pub(super) const LIST: u8 = 1;
    pub(super) const SET: u8 = 2;
    /// Scores as text.
    pub(super) const SORTED_OF_TEXT: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const SORTED: u8 = 5;
    pub(super) const LIST_ZIPLIST: u8 = 10;
    pub(super) const SET_INTEGERS: u8 = 11;
    pub(super) const SORTED_ZIPLIST: u8 = 12;
    pub(super) const HASH_ZIPLIST: u8 = 13;
    pub(super) const LIST_ZIPLISTS: u8 = 14;
    pub(super) const STREAM_BEFORE_7: u8 = 15;
    pub(super) const HASH_LISTPACK: u8 = 16;
    pub(super) const SORTED_LISTPACK: u8 = 17;
    pub(super) const LIST_LISTPACKS: u8 = 18;
    pub(super) const STREAM: u8 = 19;
}

/// A node of a list that is one element, and one that is a listpack.
const NODE_PLAIN: u64 = 1;
const NODE_PACKED: u64 = 2;

fn dump(call: &mut Call<'_>) -> Result<(), Failure> {
    let Some(value) = call.store.get(call.args[1]) else {
        call.null();
        return Ok(());
    };
    let mut out = Vec::new();
    put_value(&mut out, value);
    rdb::seal(&mut out);
    resp::bulk(call.reply, &out);
    Ok(())
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(bytes) => {
            out.push(types::STRING);
            put_string(out, bytes);
        }
        Value::List(list) => {
            out.push(types::LIST);
            put_length(out, list.items().len() as u64);
            list.items().iter().for_each(|item| put_string(out, item));
        }
        Value::Set(set) => {
            out.push(types::SET);
            put_length(out, set.members().len() as u64);
            set.members().iter().for_each(|member| put_string(out, member));
        }
        Value::Hash(hash) => {
            out.push(types::HASH);
            put_length(out, hash.map().len() as u64);
            for (field, value) in hash.map() {
                put_string(out, field);
                put_string(out, value);
            }
        }
        Value::Sorted(sorted) => {
            out.push(types::SORTED);
            put_length(out, sorted.len() as u64);
            for own in sorted.iter() {
                put_string(out, &own.member);
                out.extend_from_slice(&own.score.to_le_bytes());
            }
        }
        Value::Stream(stream) => {
            out.push(types::STREAM);
            rdb_stream::put(out, stream);
        }
    }
}

/// Options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    idle_s: Option<i64>,
    frequency: Option<i64>,
}

impl Options {
    fn parse(args: &[&[u8]]) -> Result<Options, Failure> {
        let mut options = Options::default();
        let mut rest = args;
        while let Some((name, behind)) = rest.split_first() {
            rest = behind;
            match (UpperName::of(name).bytes(), behind) {
                (b"REPLACE", _) => options.replace = true,
                // The time to live is the shim's.
                (b"ABSTTL", _) => {}
                (b"IDLETIME", [value, behind @ ..]) if options.frequency.is_none() => {
                    options.idle_s = Some(integer(value)?);
                    if options.idle_s < Some(0) {
                        return Err(fixed(b"ERR Invalid IDLETIME value, must be >= 0"));
                    }
                    rest = behind;
                }
                (b"FREQ", [value, behind @ ..]) if options.idle_s.is_none() => {
                    let value = integer(value)?;
                    if !(0..=255).contains(&value) {
                        let text = b"ERR Invalid FREQ value, must be >= 0 and <= 255";
                        return Err(fixed(text));
                    }
                    options.frequency = Some(value);
                    rest = behind;
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(options)
    }
}

/// A time to live that arrives here is over: the shim keeps all others. Then nothing is left of the
/// key.
fn restore(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, payload) = (call.args[1], call.args[3]);
    let options = Options::parse(&call.args[4..])?;
    if !options.replace && call.store.get(key).is_some() {
        return Err(fixed(b"BUSYKEY Target key name already exists."));
    }
    let ttl_ms = integer(call.args[2])?;
    if ttl_ms < 0 {
        return Err(fixed(b"ERR Invalid TTL value, must be >= 0"));
    }
    let content = rdb::unseal(payload, rdb::VERSION).ok_or(fixed(rdb::BAD_PAYLOAD))?;
    let value = read_value(&call.store.work, content)?;
    let was_there = call.store.delete(key);
    if ttl_ms == 0 {
        call.store.put(key, value);
        call.raise(Classes::GENERIC, "restore", key);
    } else if was_there {
        call.raise(Classes::GENERIC, "del", key);
    }
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}

fn read_value(work: &Work, content: &[u8]) -> Result<Value, Failure> {
    let mut reader = Reader { rest: content, work };
    let kind = reader.byte()?;
    let value = match kind {
        types::STRING => Bytes::from_slice(&reader.string()?).wrap(),
        types::LIST => list(&strings(&mut reader, 1)?)?,
        types::SET => set(&strings(&mut reader, 1)?)?,
        types::HASH => hash(&strings(&mut reader, 2)?)?,
        types::SORTED => {
            return read_sorted(&mut reader, |reader| reader.chunk().map(f64::from_le_bytes));
        }
        types::SORTED_OF_TEXT => return read_sorted(&mut reader, score_of_text),
        types::LIST_ZIPLISTS | types::LIST_LISTPACKS => {
            return read_nodes(&mut reader, kind == types::LIST_LISTPACKS);
        }
        types::STREAM_BEFORE_7 | types::STREAM => {
            rdb_stream::read(&mut reader, kind == types::STREAM)?.wrap()
        }
        _ => {
            let packed = reader.string()?;
            match kind {
                types::LIST_ZIPLIST => list(&packed::ziplist(work, &packed)?)?,
                types::SET_INTEGERS => set(&packed::integers(work, &packed)?)?,
                types::SORTED_ZIPLIST => sorted(&packed::ziplist(work, &packed)?)?,
                types::SORTED_LISTPACK => sorted(&packed::listpack(work, &packed)?)?,
                types::HASH_ZIPLIST => hash(&packed::ziplist(work, &packed)?)?,
                types::HASH_LISTPACK => hash(&packed::listpack(work, &packed)?)?,
                _ => return Err(BAD_FORMAT),
            }
        }
    };
    Ok(value)
}

/// As many strings as a length says, times `each`.
fn strings<'a>(reader: &mut Reader<'a>, each: u64) -> Result<Elements<'a>, Failure> {
    let count = reader.length()?.checked_mul(each).ok_or(BAD_FORMAT)?;
    (0..count).map(|_| reader.string()).collect()
}

/// A collection, which has elements if it is there.
fn whole<K: Kind>(collection: K) -> Result<Value, Failure> {
    if collection.is_vacant() { Err(BAD_FORMAT) } else { Ok(collection.wrap()) }
}

fn list(items: &[Cow<'_, [u8]>]) -> Result<Value, Failure> {
    let mut list = List::default();
    items.iter().for_each(|item| list.push(false, item));
    whole(list)
}

fn set(members: &[Cow<'_, [u8]>]) -> Result<Value, Failure> {
    let mut set = Set::default();
    if !members.iter().all(|member| set.add(member)) {
        return Err(BAD_FORMAT);
    }
    whole(set)
}

fn hash(texts: &[Cow<'_, [u8]>]) -> Result<Value, Failure> {
    let mut hash = Hash::default();
    let (pairs, rest) = texts.as_chunks::<2>();
    if !rest.is_empty() || !pairs.iter().all(|[field, value]| hash.set(field, value)) {
        return Err(BAD_FORMAT);
    }
    whole(hash)
}

fn sorted(texts: &[Cow<'_, [u8]>]) -> Result<Value, Failure> {
    let mut sorted = Sorted::default();
    let (pairs, rest) = texts.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(BAD_FORMAT);
    }
    for [member, score] in pairs {
        add(&mut sorted, member, float::bound(score).ok_or(BAD_FORMAT)?)?;
    }
    whole(sorted)
}

fn add(sorted: &mut Sorted, member: &[u8], score: f64) -> Result<(), Failure> {
    if score.is_nan() || sorted.score(member).is_some() {
        return Err(BAD_FORMAT);
    }
    sorted.set(member, score);
    Ok(())
}

fn read_sorted<'a>(
    reader: &mut Reader<'a>,
    score: impl Fn(&mut Reader<'a>) -> Result<f64, Failure>,
) -> Result<Value, Failure> {
    let mut sorted = Sorted::default();
    for _ in 0..reader.length()? {
        let member = reader.string()?;
        let score = score(reader)?;
        add(&mut sorted, &member, score)?;
    }
    whole(sorted)
}

fn score_of_text(reader: &mut Reader<'_>) -> Result<f64, Failure> {
    match reader.byte()? {
        253 => Err(BAD_FORMAT),
        254 => Ok(f64::INFINITY),
        255 => Ok(f64::NEG_INFINITY),
        length => float::bound(reader.take(length.into())?).ok_or(BAD_FORMAT),
    }
}

/// A list in pieces.
fn read_nodes(reader: &mut Reader<'_>, are_listpacks: bool) -> Result<Value, Failure> {
    let mut list = List::default();
    for _ in 0..reader.length()? {
        let container = if are_listpacks { reader.length()? } else { NODE_PACKED };
        let node = reader.string()?;
        match container {
            NODE_PLAIN => list.push(false, &node),
            NODE_PACKED => {
                let unpack = if are_listpacks { packed::listpack } else { packed::ziplist };
                unpack(reader.work, &node)?.iter().for_each(|item| list.push(false, item));
            }
            _ => return Err(BAD_FORMAT),
        }
    }
    whole(list)
}
