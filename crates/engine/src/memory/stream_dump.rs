//! Streams as bytes ([`super::dump`]): one element for the stream itself, then each block with its
//! entries, then each group with its consumers and deliveries.

use alloc::vec::Vec;
use core::ops::Range;

use super::dump::{Elements, element};
use super::groups::{Group, Pending};
use super::stream::{Block, Entry, Id, Stream};

/// Numbers one behind the other.
struct Packed(Vec<u8>);

impl Packed {
    fn new() -> Packed {
        Packed(Vec::new())
    }

    fn number(mut self, value: u64) -> Packed {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn id(mut self, id: Id) -> Packed {
        self.0.extend_from_slice(&id.to_bytes());
        self
    }

    fn put(self, out: &mut Vec<u8>) {
        element(out, &self.0);
    }
}

/// The inverse of [`Packed`].
struct Unpacked<'a>(&'a [u8]);

impl Unpacked<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    fn id(&mut self) -> Option<Id> {
        let (id, rest) = self.0.split_first_chunk::<16>()?;
        self.0 = rest;
        Some(Id::from_bytes(*id))
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// `None` for what is not known.
const UNKNOWN: u64 = u64::MAX;

/// Some of its blocks, and some of its groups: pieces of a stream that are decoded one behind the
/// other ([`decode_onto`]) make the whole.
pub(super) fn encode_piece(
    stream: &Stream,
    (blocks, groups): (Range<usize>, Range<usize>),
    out: &mut Vec<u8>,
) {
    let head = Packed::new().id(stream.last_id).id(stream.max_deleted).number(stream.entries_added);
    head.number(blocks.len() as u64).put(out);
    for block in stream.blocks.range(blocks) {
        let head = Packed::new().id(block.first).id(block.last).number(block.live.into());
        head.number(block.total.into()).number(block.bytes.into()).put(out);
        for (id, entry) in stream.range(block.first..=block.last) {
            element(out, &id.to_bytes());
            element(out, &entry.0);
        }
    }
    for (name, group) in stream.groups.iter().skip(groups.start).take(groups.len()) {
        element(out, name);
        let head = Packed::new().id(group.last_id).number(group.entries_read.unwrap_or(UNKNOWN));
        let head = head.number(group.next_consumer).number(group.consumers.len() as u64);
        head.number(group.pending.len() as u64).put(out);
        for (number, consumer) in &group.consumers {
            element(out, &consumer.name);
            Packed::new().number(*number).number(consumer.seen_ms).put(out);
        }
        for (id, pending) in &group.pending {
            let packed = Packed::new().id(*id).number(pending.consumer);
            packed.number(pending.delivered_ms as u64).number(pending.deliveries as u64).put(out);
        }
    }
}

pub(super) fn decode(elements: &mut Elements<'_>) -> Option<Stream> {
    let mut stream = Stream::default();
    decode_onto(&mut stream, elements)?;
    Some(stream)
}

/// Another piece of a stream.
pub(super) fn decode_onto(stream: &mut Stream, elements: &mut Elements<'_>) -> Option<()> {
    let mut head = Unpacked(elements.one()?);
    stream.last_id = head.id()?;
    stream.max_deleted = head.id()?;
    stream.entries_added = head.number()?;
    let blocks = head.number()?;
    head.end()?;
    for _ in 0..blocks {
        let mut head = Unpacked(elements.one()?);
        let (first, last, live) = (head.id()?, head.id()?, head.number()?);
        let (total, bytes) = (head.number()?, head.number()?);
        head.end()?;
        let [live, total, bytes] = [live, total, bytes].map(u32::try_from);
        let block = Block { first, last, live: live.ok()?, total: total.ok()?, bytes: bytes.ok()? };
        for _ in 0..block.live {
            let id = Id::from_bytes(elements.one()?.try_into().ok()?);
            stream.insert(id, Entry(elements.one()?.into()));
        }
        stream.blocks.push_back(block);
    }
    while let Some(name) = elements.one() {
        let group = decode_group(elements)?;
        stream.groups.insert(name.into(), group);
    }
    Some(())
}

fn decode_group(elements: &mut Elements<'_>) -> Option<Group> {
    let mut head = Unpacked(elements.one()?);
    let (last_id, read) = (head.id()?, head.number()?);
    let mut group = Group::new(last_id, (read != UNKNOWN).then_some(read));
    group.next_consumer = head.number()?;
    let (consumers, deliveries) = (head.number()?, head.number()?);
    head.end()?;
    for _ in 0..consumers {
        let name = elements.one()?;
        let mut seen = Unpacked(elements.one()?);
        group.put_consumer(seen.number()?, name, seen.number()?);
        seen.end()?;
    }
    for _ in 0..deliveries {
        let mut packed = Unpacked(elements.one()?);
        let (id, consumer) = (packed.id()?, packed.number()?);
        let (delivered_ms, count) = (packed.number()? as i64, packed.number()? as i64);
        packed.end()?;
        group.consumers.contains_key(&consumer).then_some(())?;
        group.deliver(id, Pending { consumer, delivered_ms, deliveries: count });
    }
    Some(group)
}
