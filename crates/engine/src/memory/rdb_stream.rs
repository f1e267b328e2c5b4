//! Streams in the format of Redis' snapshots: blocks of entries as listpacks, then groups with what
//! they delivered.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::Failure;
use super::groups::{Group, Pending};
use super::packed::{self, Elements, Listpack};
use super::rdb::{BAD_FORMAT, Reader, put_string};
use super::stream::{Block, Entry, Id, Stream};
use super::work::{STRING_BYTES_OF_ONE, Work};
use crate::rdb::put_length;
use crate::resp;

/// Flags of an entry: it was deleted; it has the fields of its block.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;
/// A number of entries read that is not known.
const UNKNOWN: u64 = u64::MAX;
/// No number is counted up to this; a larger one would overflow one day.
const COUNTED_MAX: u64 = 1 << 62;

fn put_id(out: &mut Vec<u8>, id: Id) {
    put_length(out, id.ms);
    put_length(out, id.seq);
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_length(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// Appends a stream.
pub(super) fn put(out: &mut Vec<u8>, stream: &Stream) {
    put_length(out, stream.blocks.len() as u64);
    for block in &stream.blocks {
        put_text(out, &block.first.to_bytes());
        put_text(out, &packed_block(stream, block));
    }
    put_length(out, stream.len());
    put_id(out, stream.last_id);
    put_id(out, stream.first_id());
    put_id(out, stream.max_deleted);
    put_length(out, stream.entries_added);
    put_length(out, stream.groups.len() as u64);
    for (name, group) in &stream.groups {
        put_string(out, name);
        put_group(out, group);
    }
}

fn packed_block(stream: &Stream, block: &Block) -> Vec<u8> {
    let mut packed = Listpack::new();
    packed.push_integer(block.live.into());
    packed.push_integer(0);
    let mut common: Option<Vec<&[u8]>> = None;
    for (id, entry) in stream.range(block.first..=block.last) {
        let fields: Vec<&[u8]> = entry.fields().step_by(2).collect();
        let values = entry.fields().skip(1).step_by(2);
        let common = common.get_or_insert_with(|| {
            // The fields of the first entry stand before all entries.
            packed.push_integer(fields.len() as i64);
            fields.iter().for_each(|field| packed.push(field));
            packed.push_integer(0);
            fields.clone()
        });
        let is_same = *common == fields;
        packed.push_integer(if is_same { SAME_FIELDS } else { 0 });
        packed.push_integer(id.ms.wrapping_sub(block.first.ms) as i64);
        packed.push_integer(id.seq.wrapping_sub(block.first.seq) as i64);
        let count = fields.len() as i64;
        if is_same {
            values.for_each(|value| packed.push(value));
            packed.push_integer(3 + count);
        } else {
            packed.push_integer(count);
            entry.fields().for_each(|text| packed.push(text));
            packed.push_integer(3 + 1 + 2 * count);
        }
    }
    packed.finish()
}

fn put_group(out: &mut Vec<u8>, group: &Group) {
    put_id(out, group.last_id);
    put_length(out, group.entries_read.unwrap_or(UNKNOWN));
    put_length(out, group.pending.len() as u64);
    for (id, pending) in &group.pending {
        out.extend_from_slice(&id.to_bytes());
        out.extend_from_slice(&pending.delivered_ms.to_le_bytes());
        put_length(out, pending.deliveries as u64);
    }
    put_length(out, group.consumers.len() as u64);
    for consumer in group.consumers.values() {
        put_string(out, &consumer.name);
        out.extend_from_slice(&consumer.seen_ms.to_le_bytes());
        put_length(out, consumer.pending.len() as u64);
        consumer.pending.iter().for_each(|id| out.extend_from_slice(&id.to_bytes()));
    }
}

fn id(reader: &mut Reader<'_>) -> Result<Id, Failure> {
    Ok(Id { ms: reader.length()?, seq: reader.length()? })
}

/// A number that is counted on from here.
fn counted(reader: &mut Reader<'_>) -> Result<u64, Failure> {
    let number = reader.length()?;
    if number > COUNTED_MAX { Err(BAD_FORMAT) } else { Ok(number) }
}

fn raw_id(reader: &mut Reader<'_>) -> Result<Id, Failure> {
    reader.chunk().map(Id::from_bytes)
}

/// Reads a stream; `has_history` if it knows which entries it ever had (since Redis 7.0).
pub(super) fn read(reader: &mut Reader<'_>, has_history: bool) -> Result<Stream, Failure> {
    let mut stream = Stream::default();
    for _ in 0..reader.length()? {
        let first = reader.string()?;
        let first = Id::from_bytes(first[..].try_into().map_err(|_| BAD_FORMAT)?);
        if stream.blocks.back().is_some_and(|block| block.last >= first) {
            return Err(BAD_FORMAT);
        }
        let packed = reader.string()?;
        let elements = packed::listpack(reader.work, &packed)?;
        read_block(&mut stream, reader.work, first, &elements)?;
    }
    let length = reader.length()?;
    stream.last_id = id(reader)?;
    stream.entries_added = length;
    if has_history {
        // The first id is told by the entries.
        id(reader)?;
        stream.max_deleted = id(reader)?;
        stream.entries_added = counted(reader)?;
    }
    let is_behind = stream.blocks.back().is_some_and(|block| block.last > stream.last_id);
    if length != stream.len() || is_behind {
        return Err(BAD_FORMAT);
    }
    for _ in 0..reader.length()? {
        let name = reader.string()?;
        let group = read_group(reader, has_history)?;
        if stream.groups.insert((*name).into(), group).is_some() {
            return Err(BAD_FORMAT);
        }
    }
    Ok(stream)
}

/// Takes elements of a block from front to back.
struct Taken<'a, 'b>(core::slice::Iter<'b, Cow<'a, [u8]>>);

impl<'b> Taken<'_, 'b> {
    fn text(&mut self) -> Result<&'b [u8], Failure> {
        self.0.next().map(|text| &**text).ok_or(BAD_FORMAT)
    }

    fn integer(&mut self) -> Result<i64, Failure> {
        resp::number(self.text()?).ok_or(BAD_FORMAT)
    }

    fn count(&mut self) -> Result<usize, Failure> {
        // Each stands for an element that is there.
        let count = usize::try_from(self.integer()?).ok();
        count.filter(|count| *count <= self.0.len()).ok_or(BAD_FORMAT)
    }
}

fn check(holds: bool) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(BAD_FORMAT) }
}

/// Adds the entries of a block.
fn read_block(
    stream: &mut Stream,
    work: &Work,
    first: Id,
    elements: &Elements<'_>,
) -> Result<(), Failure> {
    let mut taken = Taken(elements.iter());
    let (live, deleted) = (taken.count()?, taken.count()?);
    let fields = taken.count()?;
    let fields: Vec<&[u8]> = (0..fields).map(|_| taken.text()).collect::<Result<_, _>>()?;
    check(taken.integer()? == 0)?;
    let mut block = Block { first, last: first, live: 0, total: 0, bytes: 0 };
    for _ in 0..live + deleted {
        let flags = taken.integer()?;
        let ms = first.ms.wrapping_add(taken.integer()? as u64);
        let id = Id { ms, seq: first.seq.wrapping_add(taken.integer()? as u64) };
        let mut texts = Vec::new();
        if flags & SAME_FIELDS != 0 {
            for field in &fields {
                texts.extend([*field, taken.text()?]);
            }
        } else {
            for _ in 0..2 * taken.count()? {
                texts.push(taken.text()?);
            }
        }
        taken.integer()?;
        check(if block.total == 0 { id >= first } else { id > block.last })?;
        // Fields that stand there once are in each entry here.
        let bytes: u64 = texts.iter().map(|text| text.len() as u64).sum();
        work.spend(bytes / STRING_BYTES_OF_ONE)?;
        let entry = Entry::of(&texts);
        (block.last, block.total) = (id, block.total + 1);
        block.bytes = block.bytes.saturating_add(entry.0.len() as u32);
        if flags & DELETED == 0 {
            block.live += 1;
            stream.insert(id, entry);
        }
    }
    let is_whole = taken.0.len() == 0 && block.live as usize == live;
    if block.live > 0 {
        stream.blocks.push_back(block);
    }
    check(is_whole)
}

fn read_group(reader: &mut Reader<'_>, has_history: bool) -> Result<Group, Failure> {
    let last_id = id(reader)?;
    let read = if has_history { reader.length()? } else { UNKNOWN };
    let mut group = Group::new(last_id, (read != UNKNOWN).then_some(read));
    let mut delivered: Vec<(Id, i64, i64)> = Vec::new();
    for _ in 0..reader.length()? {
        reader.work.spend(2)?;
        let id = raw_id(reader)?;
        let delivered_ms = i64::from_le_bytes(reader.chunk()?);
        let deliveries = counted(reader)? as i64;
        if delivered.last().is_some_and(|(last, ..)| *last >= id) {
            return Err(BAD_FORMAT);
        }
        delivered.push((id, delivered_ms, deliveries));
    }
    for consumer in 0..reader.length()? {
        let name = reader.string()?;
        let seen_ms = u64::from_le_bytes(reader.chunk()?);
        if group.find(&name).is_some() {
            return Err(BAD_FORMAT);
        }
        group.put_consumer(consumer, &name, seen_ms);
        group.next_consumer = consumer + 1;
        for _ in 0..reader.length()? {
            let id = raw_id(reader)?;
            let at = delivered.binary_search_by_key(&id, |(id, ..)| *id).map_err(|_| BAD_FORMAT)?;
            let (_, delivered_ms, deliveries) = delivered[at];
            if group.pending.contains_key(&id) {
                return Err(BAD_FORMAT);
            }
            group.deliver(id, Pending { consumer, delivered_ms, deliveries });
        }
    }
    // Each was delivered to somebody.
    if group.pending.len() == delivered.len() { Ok(group) } else { Err(BAD_FORMAT) }
}
