//! Streams as bytes ([`super::dump`]): one element for the stream itself, then each block with its
//! entries, then each group with its consumers and deliveries.

use alloc::vec::Vec;
use core::ops::{Bound, Range};

use super::dump::{Elements, element};
use super::groups::{Group, Pending};
use super::stream::{Block, Entry, Id, Stream};

/// A sequence of packed numbers.
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

/// The encoded part of a group: its consumers and deliveries up to these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupAt {
    consumer: Option<u64>,
    delivery: Option<Id>,
}

/// About what a consumer takes beside its name, and what a delivery does.
const CONSUMER_BYTES: usize = 24;
const DELIVERY_BYTES: usize = 44;

/// Encodes some of a stream's blocks: pieces that are decoded in order ([`decode_onto`]) make the
/// whole stream.
pub(super) fn encode_blocks(stream: &Stream, blocks: Range<usize>, out: &mut Vec<u8>) {
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
}

/// Encodes the part of a group after `at`: about `bytes_max` bytes, and at least one consumer or
/// delivery. Returns whether there is more.
pub(super) fn encode_group(
    (name, group): (&[u8], &Group),
    at: &mut GroupAt,
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> bool {
    let mut left = bytes_max.max(1);
    let mut fits = |bytes: usize| {
        let is_left = left > 0;
        left = left.saturating_sub(bytes);
        is_left
    };
    let after = at.consumer.map_or(Bound::Unbounded, Bound::Excluded);
    let all = group.consumers.range((after, Bound::Unbounded));
    let consumers: Vec<_> = all.take_while(|(_, c)| fits(c.name.len() + CONSUMER_BYTES)).collect();
    at.consumer = consumers.last().map_or(at.consumer, |(number, _)| Some(**number));
    let after = at.delivery.map_or(Bound::Unbounded, Bound::Excluded);
    let all = group.pending.range((after, Bound::Unbounded));
    let deliveries: Vec<_> = all.take_while(|_| fits(DELIVERY_BYTES)).collect();
    at.delivery = deliveries.last().map_or(at.delivery, |(id, _)| Some(**id));

    element(out, name);
    let head = Packed::new().id(group.last_id).number(group.entries_read.unwrap_or(UNKNOWN));
    let head = head.number(group.next_consumer).number(consumers.len() as u64);
    head.number(deliveries.len() as u64).put(out);
    for (number, consumer) in consumers {
        element(out, &consumer.name);
        Packed::new().number(*number).number(consumer.seen_ms).put(out);
    }
    for (id, pending) in deliveries {
        let packed = Packed::new().id(*id).number(pending.consumer);
        packed.number(pending.delivered_ms as u64).number(pending.deliveries as u64).put(out);
    }
    let last_consumer = group.consumers.last_key_value().map(|(number, _)| *number);
    let last_delivery = group.pending.last_key_value().map(|(id, _)| *id);
    at.consumer != last_consumer || at.delivery != last_delivery
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
        let group = decode_group(stream.groups.remove(name), elements)?;
        stream.groups.insert(name.into(), group);
    }
    Some(())
}

/// A group, or another piece of it.
fn decode_group(begun: Option<Group>, elements: &mut Elements<'_>) -> Option<Group> {
    let mut head = Unpacked(elements.one()?);
    let (last_id, read) = (head.id()?, head.number()?);
    let new = || Group::new(last_id, (read != UNKNOWN).then_some(read));
    let mut group = begun.unwrap_or_else(new);
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
