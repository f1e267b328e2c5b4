//! Consumer groups of a stream: what was delivered to whom and is not acknowledged. A consumer is
//! named by its number within the group, so that a delivery costs the same whatever its name.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

use super::store::ELEMENT_BYTES;
use super::stream::{Id, Stream};

/// The size of a delivery in the group's list and in the consumer's, in bytes.
const PENDING_BYTES: u64 = 2 * ELEMENT_BYTES;

/// An entry that was delivered and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// To whom: the consumer's number.
    pub(super) consumer: u64,
    /// When, in ms since the Unix epoch.
    pub(super) delivered_ms: i64,
    /// The number of deliveries.
    pub(super) deliveries: i64,
}

/// A consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Consumer {
    pub(super) name: Box<[u8]>,
    /// When it was heard of, in ms since the Unix epoch.
    pub(super) seen_ms: u64,
    /// The entries that were delivered to it and not acknowledged.
    pub(super) pending: BTreeSet<Id>,
}

/// A consumer group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) last_id: Id,
    /// The number of entries that it has read of all that were ever added; `None` if that is not
    /// known.
    pub(super) entries_read: Option<u64>,
    pub(super) pending: BTreeMap<Id, Pending>,
    /// By number.
    pub(super) consumers: BTreeMap<u64, Consumer>,
    pub(super) by_name: BTreeMap<Box<[u8]>, u64>,
    pub(super) next_consumer: u64,
    bytes: u64,
}

impl Group {
    pub(super) fn new(last_id: Id, entries_read: Option<u64>) -> Group {
        Group { last_id, entries_read, bytes: 2 * ELEMENT_BYTES, ..Group::default() }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// The consumer of this name, created if there is none, and marked as seen now. Returns also
    /// whether it is new.
    pub(super) fn consumer(&mut self, name: &[u8], now_ms: u64) -> (u64, bool) {
        if let Some(number) = self.find(name) {
            if let Some(consumer) = self.consumers.get_mut(&number) {
                consumer.seen_ms = now_ms;
            }
            return (number, false);
        }
        let number = self.next_consumer;
        self.next_consumer += 1;
        self.put_consumer(number, name, now_ms);
        (number, true)
    }

    /// Adds a consumer under its number.
    pub(super) fn put_consumer(&mut self, number: u64, name: &[u8], seen_ms: u64) {
        self.bytes += 2 * (name.len() as u64 + ELEMENT_BYTES);
        self.by_name.insert(name.into(), number);
        let consumer = Consumer { name: name.into(), seen_ms, ..Consumer::default() };
        self.consumers.insert(number, consumer);
    }

    /// Removes a consumer with what was delivered to it, and says how much that was.
    pub(super) fn remove_consumer(&mut self, name: &[u8]) -> u64 {
        let Some(number) = self.by_name.remove(name) else { return 0 };
        self.bytes -= 2 * (name.len() as u64 + ELEMENT_BYTES);
        let Some(consumer) = self.consumers.remove(&number) else { return 0 };
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        self.bytes -= consumer.pending.len() as u64 * PENDING_BYTES;
        consumer.pending.len() as u64
    }

    /// Notes a delivery, in the place of what was known of this entry.
    pub(super) fn deliver(&mut self, id: Id, pending: Pending) {
        self.acknowledge(id);
        self.bytes += PENDING_BYTES;
        self.pending.insert(id, pending);
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.insert(id);
        }
    }

    /// Forgets a delivery; whether there was one.
    pub(super) fn acknowledge(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.bytes -= PENDING_BYTES;
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    /// The name of a consumer.
    pub(super) fn name(&self, number: u64) -> &[u8] {
        self.consumers.get(&number).map_or(&[], |consumer| &consumer.name)
    }
}

/// The number of entries read by a group that has read up to `id` of `stream` (Redis 7.0
/// `streamReplyWithRange`).
pub(super) fn read_up_to(stream: &Stream, entries_read: Option<u64>, id: Id) -> Option<u64> {
    match entries_read {
        Some(read) if !stream.has_tombstones(id) => Some(read.wrapping_add(1)),
        _ if stream.entries_added > 0 => stream.distance(id),
        read => read,
    }
}
