//! Streams: entries in the order of their ids, and consumer groups ([`super::groups`]).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use super::groups::Group;
use super::store::ELEMENT_BYTES;
use super::undo::Notes;

/// The largest number of entries of a block and, roughly, its largest size: Redis'
/// stream-node-max-entries and stream-node-max-bytes. Approximate trimming removes whole blocks.
pub(super) const BLOCK_ENTRIES_MAX: u32 = 100;
const BLOCK_BYTES_MAX: u32 = 4096;

/// The id of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) ms: u64,
    pub(super) seq: u64,
}

impl Id {
    pub(super) const ZERO: Id = Id { ms: 0, seq: 0 };
    pub(super) const MAX: Id = Id { ms: u64::MAX, seq: u64::MAX };

    /// The next id.
    pub(super) fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The id before this one.
    pub(super) fn previous(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.ms) << 64) | u128::from(self.seq)).to_be_bytes()
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Id {
        let both = u128::from_be_bytes(bytes);
        Id { ms: (both >> 64) as u64, seq: both as u64 }
    }
}

/// Fields and values in turn, each after its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) Box<[u8]>);

impl Entry {
    pub(super) fn of(fields: &[&[u8]]) -> Entry {
        let mut packed = Vec::with_capacity(fields.iter().map(|field| field.len() + 4).sum());
        for field in fields {
            packed.extend_from_slice(&(field.len() as u32).to_be_bytes());
            packed.extend_from_slice(field);
        }
        Entry(packed.into())
    }

    /// Fields and values, in turn.
    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        core::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (field, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            rest = tail;
            Some(field)
        })
    }

    fn size_bytes(&self) -> u64 {
        self.0.len() as u64 + ELEMENT_BYTES
    }
}

/// Entries that approximate trimming removes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The ids of the first and of the last entry that it ever had.
    pub(super) first: Id,
    pub(super) last: Id,
    /// Entries that are there, and those that it ever had.
    pub(super) live: u32,
    pub(super) total: u32,
    /// The total size of all entries that it ever had, without the parts that are the same in all.
    pub(super) bytes: u32,
}

/// The bound to which a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// A largest number of entries.
    Length(u64),
    /// The entries from this id on.
    From(Id),
}

/// The trimming options of XTRIM and XADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) keep: Keep,
    /// Whole blocks only, and no more entries than the limit (0: all).
    pub(super) approximately: bool,
    pub(super) limit: u64,
}

/// A stream as it was, without its entries. A copy of the stream has none.
#[derive(Debug, Default)]
struct Before(Option<Box<Stream>>);

impl Clone for Before {
    fn clone(&self) -> Before {
        Before(None)
    }
}

/// A stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub(super) entries: BTreeMap<Id, Entry>,
    /// In the order of their ids; each has a live entry.
    pub(super) blocks: VecDeque<Block>,
    pub(super) last_id: Id,
    /// The highest id that was ever deleted (XDEL; trimming does not count).
    pub(super) max_deleted: Id,
    pub(super) entries_added: u64,
    pub(super) groups: BTreeMap<Box<[u8]>, Group>,
    /// The size of the entries, in bytes.
    pub(super) bytes: u64,
    /// Entries that were added or removed.
    notes: Notes<(Id, Option<Entry>)>,
    /// The rest as it was when the notes began.
    before: Before,
}

impl Stream {
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes + self.groups.values().map(Group::size_bytes).sum::<u64>()
    }

    /// The id of the first entry, 0-0 if there is none.
    pub(super) fn first_id(&self) -> Id {
        self.entries.first_key_value().map_or(Id::ZERO, |(id, _)| *id)
    }

    /// The id that a new entry gets at this time.
    pub(super) fn next_id(&self, now_ms: u64) -> Option<Id> {
        if now_ms > self.last_id.ms { Some(Id { ms: now_ms, seq: 0 }) } else { self.last_id.next() }
    }

    /// Adds an entry after the last one.
    pub(super) fn add(&mut self, id: Id, fields: &[&[u8]]) {
        let entry = Entry::of(fields);
        let room = |block: &&mut Block| {
            block.total < BLOCK_ENTRIES_MAX
                && block.bytes + (entry.0.len() as u32) < BLOCK_BYTES_MAX
        };
        let size = entry.0.len() as u32;
        match self.blocks.back_mut().filter(room) {
            Some(block) => {
                block.last = id;
                block.live += 1;
                block.total += 1;
                block.bytes += size;
            }
            None => {
                let block = Block { first: id, last: id, live: 1, total: 1, bytes: size };
                self.blocks.push_back(block);
            }
        }
        self.insert(id, entry);
        self.last_id = id;
        self.entries_added += 1;
    }

    /// Adds an entry that its block counts already.
    pub(super) fn insert(&mut self, id: Id, entry: Entry) {
        self.bytes += entry.size_bytes();
        self.entries.insert(id, entry);
        self.notes.add(|| (id, None));
    }

    fn take(&mut self, id: Id) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.bytes -= entry.size_bytes();
        self.notes.add(|| (id, Some(entry)));
        true
    }

    /// Notes how each change is undone, from now on; false if it does already. Groups and blocks
    /// are copied.
    pub(super) fn begin_notes(&mut self) -> bool {
        if !self.notes.begin() {
            return false;
        }
        let before = Stream {
            entries: BTreeMap::new(),
            blocks: self.blocks.clone(),
            groups: self.groups.clone(),
            notes: Notes::default(),
            before: Before::default(),
            ..*self
        };
        self.before = Before(Some(Box::new(before)));
        true
    }

    pub(super) fn end_notes(&mut self) {
        drop(self.notes.take());
        self.before = Before::default();
    }

    /// Becomes what it was when its notes began.
    pub(super) fn undo(&mut self) {
        let Some(before) = self.before.0.take() else { return };
        let mut entries = core::mem::take(&mut self.entries);
        for (id, entry) in self.notes.take() {
            match entry {
                Some(entry) => entries.insert(id, entry),
                None => entries.remove(&id),
            };
        }
        *self = Stream { entries, ..*before };
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        if !self.take(id) {
            return false;
        }
        let at = self.blocks.partition_point(|block| block.last < id);
        if let Some(block) = self.blocks.get_mut(at) {
            block.live -= 1;
            if block.live == 0 {
                self.blocks.remove(at);
            }
        }
        true
    }

    /// Removes an entry as XDEL does.
    pub(super) fn delete(&mut self, id: Id) -> bool {
        let removed = self.remove(id);
        if removed {
            self.max_deleted = self.max_deleted.max(id);
        }
        removed
    }

    /// Removes the oldest entries, and says how many (Redis 7.0 `streamTrim`).
    pub(super) fn trim(&mut self, trim: Trim) -> u64 {
        let mut removed = 0;
        while let Some(block) = self.blocks.front().copied() {
            let live = u64::from(block.live);
            if matches!(trim.keep, Keep::Length(most) if self.len() <= most)
                || trim.limit > 0 && removed + live > trim.limit
            {
                return removed;
            }
            let goes = match trim.keep {
                Keep::Length(most) => self.len() - live >= most,
                Keep::From(id) => block.last < id,
            };
            if goes {
                let ids: Vec<Id> =
                    self.entries.range(block.first..=block.last).map(|(id, _)| *id).collect();
                ids.into_iter().for_each(|id| {
                    self.take(id);
                });
                self.blocks.pop_front();
                removed += live;
                continue;
            }
            return if trim.approximately {
                removed
            } else {
                removed + self.trim_within(trim.keep)
            };
        }
        removed
    }

    /// Removes the oldest entries of the first block.
    fn trim_within(&mut self, keep: Keep) -> u64 {
        let mut removed = 0;
        while let Some((id, _)) = self.entries.first_key_value() {
            let id = *id;
            let stops = match keep {
                Keep::Length(most) => self.len() <= most,
                Keep::From(first) => id >= first,
            };
            if stops {
                break;
            }
            self.remove(id);
            removed += 1;
        }
        removed
    }

    /// The entries with these ids, in order.
    pub(super) fn range(
        &self,
        ids: RangeInclusive<Id>,
    ) -> impl DoubleEndedIterator<Item = (Id, &Entry)> {
        let range = (ids.start() <= ids.end()).then(|| self.entries.range(ids));
        range.into_iter().flatten().map(|(id, entry)| (*id, entry))
    }

    /// Whether an entry from `from` on may have been deleted (Redis 7.0
    /// `streamRangeHasTombstones`).
    pub(super) fn has_tombstones(&self, from: Id) -> bool {
        !self.entries.is_empty()
            && self.max_deleted != Id::ZERO
            && self.first_id() <= self.max_deleted
            && from <= self.max_deleted
    }

    /// The number of entries ever added up to this one, if it is known (Redis 7.0
    /// `streamEstimateDistanceFromFirstEverEntry`).
    pub(super) fn distance(&self, id: Id) -> Option<u64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        if self.entries.is_empty() && id <= self.last_id || id == self.last_id {
            return Some(self.entries_added);
        }
        if id > self.last_id {
            return None;
        }
        let first = self.first_id();
        let whole = self.max_deleted == Id::ZERO || self.max_deleted < first;
        match id.cmp(&first) {
            core::cmp::Ordering::Less if whole => Some(self.entries_added.wrapping_sub(self.len())),
            core::cmp::Ordering::Equal if whole => {
                Some(self.entries_added.wrapping_sub(self.len()).wrapping_add(1))
            }
            _ => None,
        }
    }

    /// The number of entries that a group has not read yet, if it is known.
    pub(super) fn lag(&self, group: &Group) -> Option<i64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        if let Some(read) = group.entries_read
            && !self.has_tombstones(group.last_id)
        {
            return Some(self.entries_added.wrapping_sub(read) as i64);
        }
        Some(self.entries_added.wrapping_sub(self.distance(group.last_id)?) as i64)
    }
}
