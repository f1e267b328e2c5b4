//! The key space: keys with typed values, and how many bytes they take.
//!
//! Keys are spread over a fixed number of shards by a hash that is the same everywhere. SCAN walks
//! the shards and returns each as a whole: a key that is there during a whole scan is returned,
//! whatever is added or removed meanwhile, and whichever replicas answer.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::hash::hash64;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use indexmap::{IndexMap, IndexSet};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::Failure;
use super::freeze::Frozen;
use super::sorted::Sorted;
use super::stream::Stream;
use super::undo::{Notes, Undo, Was};
use super::work::Work;
use crate::databases::{self, DATABASES};
use crate::events::{Classes, Collector};

/// Number of shards. A SCAN call over n keys returns at least n / 4096 of them.
pub(super) const SHARDS: usize = 4096;
/// The counted size of a key beside its bytes: the same at every replica, and near the real one.
const KEY_BYTES: u64 = 64;
/// The counted size of an element of a collection beside its bytes.
pub(super) const ELEMENT_BYTES: u64 = 48;
/// Collections up to this size keep their order when an element is removed, as Redis' packed
/// encodings do; larger ones move the last element into the gap, in constant time.
const ORDERED_MAX: usize = 512;

/// A key or a string. Short ones lie in their slot of the table: reading them waits for memory once
/// less.
pub(super) type Bytes = SmallVec<[u8; 24]>;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    String(Bytes),
    Hash(Box<Hash>),
    List(Box<List>),
    Set(Box<Set>),
    Sorted(Box<Sorted>),
    Stream(Box<Stream>),
}

/// A type of value.
pub(super) trait Kind: Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn wrap(self) -> Value;
    /// A key whose value is vacant does not exist.
    fn is_vacant(&self) -> bool;

    /// Notes how each change is undone, from now on; `None` where a copy is needed for that, and
    /// false if it does already.
    fn begin_notes(&mut self) -> Option<bool>;
}

macro_rules! kind {
    ($type:ty, $variant:ident, $vacant:expr, $wrap:expr, $notes:expr) => {
        impl Kind for $type {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$variant(inner) = value { Some(inner) } else { None }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$variant(inner) = value { Some(inner) } else { None }
            }
            fn wrap(self) -> Value {
                Value::$variant($wrap(self))
            }
            fn is_vacant(&self) -> bool {
                $vacant(self)
            }
            fn begin_notes(&mut self) -> Option<bool> {
                $notes(self)
            }
        }
    };
}

kind!(Bytes, String, |_: &Bytes| false, |s| s, |_: &mut Bytes| None);
kind!(Hash, Hash, |h: &Hash| h.map.is_empty(), Box::new, |h: &mut Hash| Some(h.notes.begin()));
kind!(List, List, |l: &List| l.items.is_empty(), Box::new, |l: &mut List| Some(l.notes.begin()));
kind!(Set, Set, |s: &Set| s.members.is_empty(), Box::new, |s: &mut Set| Some(s.notes.begin()));
kind!(Sorted, Sorted, |z: &Sorted| z.len() == 0, Box::new, |z: &mut Sorted| Some(z.begin_notes()));
// One without entries keeps its last id and its groups.
kind!(Stream, Stream, |_: &Stream| false, Box::new, |s: &mut Stream| Some(s.begin_notes()));

/// Fields and their values, in the order of insertion.
#[derive(Clone, Debug, Default)]
pub(super) struct Hash {
    map: IndexMap<Box<[u8]>, Box<[u8]>, FxBuildHasher>,
    bytes: u64,
    notes: Notes<HashWas>,
}

/// The inverse of a change of a hash.
#[derive(Debug)]
enum HashWas {
    /// The last field is new.
    Added,
    Replaced {
        field: Box<[u8]>,
        value: Box<[u8]>,
    },
    /// The field was at this index, where the last one is now if `was_swapped`.
    Removed {
        at: usize,
        field: Box<[u8]>,
        value: Box<[u8]>,
        was_swapped: bool,
    },
}

impl Hash {
    pub(super) fn map(&self) -> &IndexMap<Box<[u8]>, Box<[u8]>, FxBuildHasher> {
        &self.map
    }

    /// Returns whether the field is new.
    pub(super) fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.bytes += value.len() as u64;
        if let Some(own) = self.map.get_mut(field) {
            self.bytes -= own.len() as u64;
            let value = core::mem::replace(own, value.into());
            self.notes.add(|| HashWas::Replaced { field: field.into(), value });
            return false;
        }
        self.bytes += field.len() as u64 + ELEMENT_BYTES;
        self.map.insert(field.into(), value.into());
        self.notes.add(|| HashWas::Added);
        true
    }

    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let ordered = self.map.len() <= ORDERED_MAX;
        let removed = if ordered {
            self.map.shift_remove_full(field)
        } else {
            self.map.swap_remove_full(field)
        };
        let Some((at, field, value)) = removed else { return false };
        self.bytes -= (field.len() + value.len()) as u64 + ELEMENT_BYTES;
        self.notes.add(|| HashWas::Removed { at, field, value, was_swapped: !ordered });
        true
    }

    fn undo(&mut self) {
        for was in self.notes.take() {
            match was {
                HashWas::Added => {
                    if let Some((field, value)) = self.map.pop() {
                        self.bytes -= (field.len() + value.len()) as u64 + ELEMENT_BYTES;
                    }
                }
                HashWas::Replaced { field, value } => {
                    self.set(&field, &value);
                }
                HashWas::Removed { at, field, value, was_swapped } => {
                    self.bytes += (field.len() + value.len()) as u64 + ELEMENT_BYTES;
                    if was_swapped {
                        let (last, _) = self.map.insert_full(field, value);
                        self.map.swap_indices(at, last);
                    } else {
                        self.map.shift_insert(at, field, value);
                    }
                }
            }
        }
    }
}

/// A list.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    items: VecDeque<Box<[u8]>>,
    bytes: u64,
    notes: Notes<ListWas>,
}

/// The inverse of a change of a list.
#[derive(Debug)]
enum ListWas {
    Pushed {
        left: bool,
    },
    Popped {
        left: bool,
        item: Box<[u8]>,
    },
    Inserted {
        at: usize,
    },
    Replaced {
        at: usize,
        item: Box<[u8]>,
    },
    /// The same item was at each of these indices, ascending.
    Removed {
        places: Vec<usize>,
        item: Box<[u8]>,
    },
}

impl List {
    pub(super) fn items(&self) -> &VecDeque<Box<[u8]>> {
        &self.items
    }

    pub(super) fn push(&mut self, left: bool, item: &[u8]) {
        self.bytes += item.len() as u64 + ELEMENT_BYTES;
        if left {
            self.items.push_front(item.into());
        } else {
            self.items.push_back(item.into());
        }
        self.notes.add(|| ListWas::Pushed { left });
    }

    pub(super) fn pop(&mut self, left: bool) -> Option<Box<[u8]>> {
        let item = if left { self.items.pop_front() } else { self.items.pop_back() }?;
        self.bytes -= item.len() as u64 + ELEMENT_BYTES;
        self.notes.add(|| ListWas::Popped { left, item: item.clone() });
        Some(item)
    }

    pub(super) fn insert(&mut self, at: usize, item: &[u8]) {
        self.bytes += item.len() as u64 + ELEMENT_BYTES;
        self.items.insert(at, item.into());
        self.notes.add(|| ListWas::Inserted { at });
    }

    pub(super) fn replace(&mut self, at: usize, item: &[u8]) {
        self.bytes += item.len() as u64;
        self.bytes -= self.items[at].len() as u64;
        let item = core::mem::replace(&mut self.items[at], item.into());
        self.notes.add(|| ListWas::Replaced { at, item });
    }

    /// Removes up to `limit` items equal to `item`, from the end if `backward`.
    pub(super) fn remove(&mut self, item: &[u8], limit: usize, backward: bool) -> usize {
        let equal = self.items.iter().filter(|own| ***own == *item).count();
        let removed = equal.min(limit);
        let kept_first = if backward { equal - removed } else { 0 };
        let (mut seen, mut at, mut places) = (0, 0, Vec::new());
        let notes = self.notes.is_on();
        self.items.retain(|own| {
            at += 1;
            if **own != *item {
                return true;
            }
            seen += 1;
            let goes = (kept_first + 1..=kept_first + removed).contains(&seen);
            if goes && notes {
                places.push(at - 1);
            }
            !goes
        });
        self.bytes -= removed as u64 * (item.len() as u64 + ELEMENT_BYTES);
        self.notes.add(|| ListWas::Removed { places, item: item.into() });
        removed
    }

    fn undo(&mut self) {
        for was in self.notes.take() {
            match was {
                ListWas::Pushed { left } => {
                    self.pop(left);
                }
                ListWas::Popped { left, item } => self.push(left, &item),
                ListWas::Inserted { at } => {
                    if let Some(item) = self.items.remove(at) {
                        self.bytes -= item.len() as u64 + ELEMENT_BYTES;
                    }
                }
                ListWas::Replaced { at, item } => self.replace(at, &item),
                ListWas::Removed { places, item } => {
                    self.bytes += places.len() as u64 * (item.len() as u64 + ELEMENT_BYTES);
                    let count = self.items.len() + places.len();
                    let mut stayed = core::mem::take(&mut self.items).into_iter();
                    let mut places = places.into_iter().peekable();
                    self.items = (0..count)
                        .filter_map(|at| match places.next_if_eq(&at) {
                            Some(_) => Some(item.clone()),
                            None => stayed.next(),
                        })
                        .collect();
                }
            }
        }
    }
}

/// A set, in the order of insertion.
#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    members: IndexSet<Box<[u8]>, FxBuildHasher>,
    bytes: u64,
    notes: Notes<SetWas>,
}

/// The inverse of a change of a set.
#[derive(Debug)]
enum SetWas {
    /// The last member is new.
    Added,
    /// The member was at this index, where the last one is now.
    Removed { at: usize, member: Box<[u8]> },
}

impl Set {
    pub(super) fn members(&self) -> &IndexSet<Box<[u8]>, FxBuildHasher> {
        &self.members
    }

    pub(super) fn add(&mut self, member: &[u8]) -> bool {
        if self.members.contains(member) {
            return false;
        }
        self.bytes += member.len() as u64 + ELEMENT_BYTES;
        self.notes.add(|| SetWas::Added);
        self.members.insert(member.into())
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        match self.members.get_index_of(member) {
            Some(at) => self.remove_at(at).is_some(),
            None => false,
        }
    }

    pub(super) fn remove_at(&mut self, index: usize) -> Option<Box<[u8]>> {
        let member = self.members.swap_remove_index(index)?;
        self.bytes -= member.len() as u64 + ELEMENT_BYTES;
        self.notes.add(|| SetWas::Removed { at: index, member: member.clone() });
        Some(member)
    }

    fn undo(&mut self) {
        for was in self.notes.take() {
            match was {
                SetWas::Added => {
                    if let Some(member) = self.members.pop() {
                        self.bytes -= member.len() as u64 + ELEMENT_BYTES;
                    }
                }
                SetWas::Removed { at, member } => {
                    self.bytes += member.len() as u64 + ELEMENT_BYTES;
                    let (last, _) = self.members.insert_full(member);
                    self.members.swap_indices(at, last);
                }
            }
        }
    }
}

impl Value {
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Value::String(bytes) => bytes.len() as u64,
            Value::Hash(hash) => hash.bytes,
            Value::List(list) => list.bytes,
            Value::Set(set) => set.bytes,
            Value::Sorted(sorted) => sorted.size_bytes(),
            Value::Stream(stream) => stream.size_bytes(),
        }
    }

    /// Becomes what it was when its notes began.
    fn undo(&mut self) {
        match self {
            Value::String(_) => {}
            Value::Hash(hash) => hash.undo(),
            Value::List(list) => list.undo(),
            Value::Set(set) => set.undo(),
            Value::Sorted(sorted) => sorted.undo(),
            Value::Stream(stream) => stream.undo(),
        }
    }

    /// Stays as it is.
    fn end_notes(&mut self) {
        match self {
            Value::String(_) => {}
            Value::Hash(hash) => drop(hash.notes.take()),
            Value::List(list) => drop(list.notes.take()),
            Value::Set(set) => drop(set.notes.take()),
            Value::Sorted(sorted) => sorted.end_notes(),
            Value::Stream(stream) => stream.end_notes(),
        }
    }

    /// As TYPE names it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::Hash(_) => "hash",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Sorted(_) => "zset",
            Value::Stream(_) => "stream",
        }
    }

    /// Covers the order of elements too, since SPOP and the like depend on it.
    fn digest(&self, seed: u64) -> u64 {
        match self {
            Value::String(bytes) => hash64(seed, bytes),
            Value::Hash(hash) => {
                let pairs = hash.map.iter();
                pairs.fold(seed ^ 1, |d, (field, value)| hash64(hash64(d, field), value))
            }
            Value::List(list) => list.items.iter().fold(seed ^ 2, |d, item| hash64(d, item)),
            Value::Set(set) => set.members.iter().fold(seed ^ 3, |d, member| hash64(d, member)),
            Value::Sorted(sorted) => sorted.digest(seed ^ 4),
            Value::Stream(_) => hash64(seed ^ 5, &super::dump::dump(self)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    key: Bytes,
    value: Value,
}

/// The numbers of keys.
#[derive(Debug, Default)]
pub(super) struct Counts {
    all: u64,
    /// By database, except 0.
    of: [u64; DATABASES as usize],
}

impl Counts {
    fn add(&mut self, key: &[u8]) {
        self.all += 1;
        let database = databases::of_key(key);
        if database != 0 {
            self.of[usize::from(database)] += 1;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        self.all -= 1;
        let database = databases::of_key(key);
        if database != 0 {
            self.of[usize::from(database)] -= 1;
        }
    }
}

/// The keys, how many there are, and what they take.
pub(super) type Keys = (Box<[HashTable<Slot>]>, Counts, u64);

/// All keys.
#[derive(Debug)]
pub(super) struct Store {
    shards: Box<[HashTable<Slot>]>,
    counts: Counts,
    used_bytes: u64,
    /// While a script is executed: what it has done.
    undo: Option<Undo>,
    pub(super) work: Work,
    /// The objects that are being copied in pieces.
    pub(super) frozen: Frozen,
    /// What happened to keys, for those who listen.
    pub(super) raised: Collector,
}

fn no_keys() -> Box<[HashTable<Slot>]> {
    (0..SHARDS).map(|_| HashTable::new()).collect()
}

/// The bits of the hash that choose a shard are not those that a table of a few hundred uses.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

fn hash_of(key: &[u8]) -> u64 {
    hash64(0, key)
}

impl Store {
    /// An empty store; an operation may look at `work_max` elements.
    pub(super) fn new(work_max: u64) -> Store {
        let work = Work::new(work_max);
        let (counts, raised) = (Counts::default(), Collector::default());
        let frozen = Frozen::default();
        Store { shards: no_keys(), counts, used_bytes: 0, undo: None, work, frozen, raised }
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.all
    }

    /// The number of keys of one database; of all for a number that is not a database.
    pub(super) fn count_of(&self, database: u8) -> u64 {
        match database {
            0 => self.counts.all - self.counts.of.iter().sum::<u64>(),
            _ => self.counts.of.get(usize::from(database)).copied().unwrap_or(self.counts.all),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Value> {
        let hash = hash_of(key);
        self.shards[shard_of(hash)].find(hash, |slot| *slot.key == *key).map(|slot| &slot.value)
    }

    /// The size of a key with its value, as [`Store::used_bytes`] counts it.
    pub(super) fn size_bytes(&self, key: &[u8]) -> Option<u64> {
        self.get(key).map(|value| KEY_BYTES + key.len() as u64 + value.size_bytes())
    }

    /// The value of type `K`; `None` if there is no such key.
    pub(super) fn read<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, Failure> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => K::of(value).map(Some).ok_or(super::WRONG_TYPE),
        }
    }

    /// Encodes the rest of an object that is being copied in pieces, before a write to it.
    #[inline]
    fn before_write(&mut self, key: &[u8]) {
        if self.frozen.concerns(key) {
            let mut frozen = core::mem::take(&mut self.frozen);
            if let Some(value) = self.get(key) {
                frozen.make(key, value, usize::MAX);
            }
            self.frozen = frozen;
        }
    }

    /// Encodes the rest of these keys, of which pieces were copied, before a write, about
    /// `bytes_max` bytes at a time. Returns whether all is encoded.
    pub(super) fn make_ready(&mut self, keys: &[&[u8]], bytes_max: usize) -> bool {
        let Some(key) = keys.iter().find(|key| self.frozen.concerns(key)) else { return true };
        let mut frozen = core::mem::take(&mut self.frozen);
        let made = match self.get(key) {
            Some(value) => frozen.make(key, value, bytes_max),
            None => frozen.forget_home(key),
        };
        self.frozen = frozen;
        // One key at a time.
        made && keys.iter().all(|other| other == key || !self.frozen.concerns(other))
    }

    /// Changes the value of type `K`, which is created if there is none; deletes the key if the
    /// value is empty then.
    pub(super) fn write<K: Kind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut K) -> R,
    ) -> Result<R, Failure> {
        self.before_write(key);
        let hash = hash_of(key);
        let hasher = |slot: &Slot| hash_of(&slot.key);
        let table = &mut self.shards[shard_of(hash)];
        let mut is_new = false;
        let mut entry = match table.entry(hash, |slot| *slot.key == *key, hasher) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                is_new = true;
                self.counts.add(key);
                self.used_bytes += KEY_BYTES + key.len() as u64;
                if let Some(undo) = &mut self.undo {
                    undo.absent(key);
                }
                entry.insert(Slot { key: key.into(), value: K::default().wrap() })
            }
        };
        let value = &mut entry.get_mut().value;
        let before = value.size_bytes();
        if let Some(undo) = self.undo.as_mut().filter(|undo| !undo.is_own(key)) {
            match K::of_mut(value).ok_or(super::WRONG_TYPE)?.begin_notes() {
                Some(true) => undo.changed(key),
                Some(false) => {}
                None => drop(undo.held(key, value.clone())),
            }
        }
        let inner = K::of_mut(value).ok_or(super::WRONG_TYPE)?;
        let result = change(inner);
        let vacant = inner.is_vacant();
        self.used_bytes = self.used_bytes + value.size_bytes() - before;
        if vacant {
            let (slot, _) = entry.remove();
            if let Some(undo) = &mut self.undo {
                drop(undo.held(key, slot.value));
            }
            self.counts.remove(key);
            self.used_bytes -= KEY_BYTES + key.len() as u64;
        } else if is_new {
            self.raised.raise(Classes::NEW, "new", key);
        }
        Ok(result)
    }

    /// Changes the value of type `K` if there is one.
    pub(super) fn write_existing<K: Kind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut K) -> R,
    ) -> Result<Option<R>, Failure> {
        match self.read::<K>(key)? {
            None => Ok(None),
            Some(_) => self.write(key, change).map(Some),
        }
    }

    /// Replaces whatever the key held by a string.
    pub(super) fn set_string(&mut self, key: &[u8], bytes: &[u8]) {
        let hash = hash_of(key);
        let hasher = |slot: &Slot| hash_of(&slot.key);
        let table = &mut self.shards[shard_of(hash)];
        self.used_bytes += bytes.len() as u64;
        match table.entry(hash, |slot| *slot.key == *key, hasher) {
            Entry::Occupied(mut entry) => {
                let value = &mut entry.get_mut().value;
                self.used_bytes -= value.size_bytes();
                let is_noted = self.undo.as_ref().is_some_and(|undo| !undo.is_own(key));
                match value {
                    // A buffer that fits is used again, one that is far too large is not kept.
                    Value::String(old)
                        if !is_noted
                            && !self.frozen.concerns(key)
                            && old.capacity() / 2 <= bytes.len().max(64) =>
                    {
                        old.clear();
                        old.extend_from_slice(bytes);
                    }
                    other => {
                        let old = core::mem::replace(other, Value::String(bytes.into()));
                        self.goes(key, old);
                    }
                }
            }
            Entry::Vacant(entry) => {
                if let Some(undo) = &mut self.undo {
                    undo.absent(key);
                }
                self.counts.add(key);
                self.used_bytes += KEY_BYTES + key.len() as u64;
                entry.insert(Slot { key: key.into(), value: Value::String(bytes.into()) });
                self.raised.raise(Classes::NEW, "new", key);
            }
        }
    }

    /// Replaces whatever the key held.
    pub(super) fn put(&mut self, key: &[u8], value: Value) {
        let was_there = self.delete(key);
        if !was_there {
            self.raised.raise(Classes::NEW, "new", key);
        }
        if let Some(undo) = &mut self.undo {
            undo.absent(key);
        }
        self.add(key, value);
    }

    /// A key that is not there.
    fn add(&mut self, key: &[u8], value: Value) {
        let hash = hash_of(key);
        self.counts.add(key);
        self.used_bytes += KEY_BYTES + key.len() as u64 + value.size_bytes();
        let slot = Slot { key: key.into(), value };
        self.shards[shard_of(hash)].insert_unique(hash, slot, |slot| hash_of(&slot.key));
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.take(key) else { return false };
        self.goes(key, value);
        true
    }

    /// The value of a key that is gone: for a script that may be undone, and for a copy that has
    /// the first pieces of it.
    fn goes(&mut self, key: &[u8], value: Value) {
        let value = match &mut self.undo {
            Some(undo) => match undo.held(key, value) {
                Ok(index) => return self.frozen.keep(key, index),
                Err(value) => value,
            },
            None => value,
        };
        self.frozen.own(key, value);
    }

    /// Moves a key's value to another key, replacing its value. Returns false if there is none.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> bool {
        let Some(value) = self.take(from) else { return false };
        self.delete(to);
        self.raised.raise(Classes::NEW, "new", to);
        if let Some(undo) = &mut self.undo {
            undo.absent(to);
            if !undo.is_own(from) {
                undo.renamed(from, to);
            }
        }
        self.frozen.renamed(from, to);
        self.add(to, value);
        true
    }

    /// A script begins: all that it does can be undone.
    pub(super) fn begin_undo(&mut self) {
        self.undo = Some(Undo::default());
    }

    /// Ends a script, whose changes stay.
    pub(super) fn end_undo(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        let frozen = &mut self.frozen;
        for key in undo.into_noting(|index, value| frozen.own_kept(index, value)) {
            let hash = hash_of(&key);
            let found = self.shards[shard_of(hash)].find_mut(hash, |slot| slot.key == key);
            if let Some(slot) = found {
                slot.value.end_notes();
            }
        }
    }

    /// The script has done nothing.
    pub(super) fn undo(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        for (index, was) in undo.into_undone() {
            match was {
                Was::Absent(key) => drop(self.take(&key)),
                Was::Held(key, value) => {
                    drop(self.take(&key));
                    self.add(&key, value);
                    self.frozen.give_back(index, &key);
                }
                Was::Changed(key) => {
                    if let Some(mut value) = self.take(&key) {
                        value.undo();
                        self.add(&key, value);
                    }
                }
                Was::Renamed(from, to) => {
                    if let Some(value) = self.take(&to) {
                        self.frozen.renamed(&to, &from);
                        self.add(&from, value);
                    }
                }
                Was::Flushed(keys) => (self.shards, self.counts, self.used_bytes) = *keys,
            }
        }
    }

    /// Deletes a key whose time has come.
    pub(super) fn expire(&mut self, key: &[u8]) {
        if self.delete(key) {
            self.raised.raise(Classes::EXPIRED, "expired", key);
        }
    }

    /// A command took from a key: if nothing is left of it, it is gone.
    pub(super) fn raise_if_gone(&mut self, key: &[u8]) {
        if self.raised.is_on() && self.get(key).is_none() {
            self.raised.raise(Classes::GENERIC, "del", key);
        }
    }

    /// Takes a key's value away, which is for the caller to note.
    fn take(&mut self, key: &[u8]) -> Option<Value> {
        let hash = hash_of(key);
        let table = &mut self.shards[shard_of(hash)];
        let entry = table.find_entry(hash, |slot| *slot.key == *key).ok()?;
        let (slot, _) = entry.remove();
        self.counts.remove(key);
        self.used_bytes -= KEY_BYTES + slot.key.len() as u64 + slot.value.size_bytes();
        Some(slot.value)
    }

    pub(super) fn clear(&mut self) {
        self.frozen.clear();
        let shards = core::mem::replace(&mut self.shards, no_keys());
        let counts = core::mem::take(&mut self.counts);
        let used_bytes = core::mem::take(&mut self.used_bytes);
        if let Some(undo) = &mut self.undo {
            undo.flushed((shards, counts, used_bytes));
        }
    }

    /// Deletes the keys of one database.
    pub(super) fn clear_database(&mut self, database: u8) {
        if self.count_of(database) == self.counts.all {
            return self.clear();
        }
        self.frozen.forget(|key| databases::of_key(key) == database);
        let Store { shards, counts, used_bytes, undo, .. } = self;
        for shard in shards.iter_mut().filter(|shard| !shard.is_empty()) {
            shard.retain(|slot| {
                let stays = databases::of_key(&slot.key) != database;
                if !stays {
                    counts.remove(&slot.key);
                    *used_bytes -= KEY_BYTES + slot.key.len() as u64 + slot.value.size_bytes();
                    if let Some(undo) = undo {
                        let empty = Value::String(Bytes::new());
                        drop(undo.held(&slot.key, core::mem::replace(&mut slot.value, empty)));
                    }
                }
                stays
            });
        }
    }

    /// The keys of one shard with their values.
    pub(super) fn shard(&self, index: usize) -> impl Iterator<Item = (&[u8], &Value)> {
        self.shards[index].iter().map(|slot| (&*slot.key, &slot.value))
    }

    /// The number of keys of one shard.
    pub(super) fn shard_len(&self, index: usize) -> usize {
        self.shards[index].len()
    }

    /// The shard of a key.
    pub(super) fn shard_of(key: &[u8]) -> usize {
        shard_of(hash_of(key))
    }

    /// The keys of one shard in order, which is the same at every replica: a table's own order
    /// depends on its history.
    pub(super) fn shard_in_order(&self, index: usize) -> Vec<(&[u8], &Value)> {
        let mut slots: Vec<(&[u8], &Value)> = self.shard(index).collect();
        slots.sort_unstable_by_key(|(key, _)| *key);
        slots
    }

    /// The key that stands at this place among all, `index < count`.
    pub(super) fn key_at(&self, mut index: u64) -> Option<&[u8]> {
        for (at, shard) in self.shards.iter().enumerate() {
            if index < shard.len() as u64 {
                return self.shard_in_order(at).get(index as usize).map(|(key, _)| *key);
            }
            index -= shard.len() as u64;
        }
        None
    }

    /// The key of a database that stands at this place among its keys,
    /// `index < count_of(database)`.
    pub(super) fn key_of_database_at(&self, database: u8, mut index: u64) -> Option<&[u8]> {
        let is_own = |slot: &&Slot| databases::of_key(&slot.key) == database;
        for (at, shard) in self.shards.iter().enumerate() {
            let own = shard.iter().filter(is_own).count() as u64;
            if index < own {
                let keys = self.shard_in_order(at).into_iter().map(|(key, _)| key);
                let mut keys = keys.filter(|key| databases::of_key(key) == database);
                return keys.nth(index as usize);
            }
            index -= own;
        }
        None
    }

    /// Independent of the order of keys.
    pub(super) fn digest(&self) -> u64 {
        let slots = self.shards.iter().flat_map(|shard| shard.iter());
        slots.fold(0, |sum, slot| sum.wrapping_add(slot.value.digest(hash64(1, &slot.key))))
    }
}

/// A failure with a text that was put together.
pub(super) fn failure(text: impl Into<Vec<u8>>) -> Failure {
    Failure(Cow::Owned(text.into()))
}
