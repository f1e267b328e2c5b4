//! Values as bytes, for copying to another replica: a tag, then the elements in their order, each
//! behind its length (`u32`). What hangs on the order of elements (SPOP and the like) does the same
//! on the copy.

use alloc::vec::Vec;

use concord_core::hash::hash64;

use super::sorted::Sorted;
use super::store::{Hash, Kind, List, Set, Store, Value};
use super::stream_dump;
use crate::copy::{Copied, PLACE_END, place_of_key};

const STRING: u8 = 0;
const HASH: u8 = 1;
const LIST: u8 = 2;
const SET: u8 = 3;
const SORTED: u8 = 4;
const STREAM: u8 = 5;

/// Places of one shard.
const SHARD_PLACES: u64 = PLACE_END / super::store::SHARDS as u64;

pub(super) fn element(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// The value as bytes.
pub(super) fn dump(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    dump_to(value, &mut out);
    out
}

fn dump_to(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(bytes) => {
            out.push(STRING);
            out.extend_from_slice(bytes);
        }
        Value::Hash(hash) => {
            out.push(HASH);
            for (field, value) in hash.map() {
                element(out, field);
                element(out, value);
            }
        }
        Value::List(list) => {
            out.push(LIST);
            list.items().iter().for_each(|item| element(out, item));
        }
        Value::Set(set) => {
            out.push(SET);
            set.members().iter().for_each(|member| element(out, member));
        }
        Value::Sorted(sorted) => {
            out.push(SORTED);
            for scored in sorted.iter() {
                element(out, &scored.score.to_bits().to_be_bytes());
                element(out, &scored.member);
            }
        }
        Value::Stream(stream) => {
            out.push(STREAM);
            stream_dump::encode(stream, out);
        }
    }
}

/// A digest of what the key holds, 0 if nothing.
pub(super) fn digest(store: &Store, key: &[u8]) -> u64 {
    store.get(key).map_or(0, |value| hash64(0, &dump(value)).max(1))
}

/// The inverse of [`dump`].
fn load(bytes: &[u8]) -> Option<Value> {
    let (tag, rest) = bytes.split_first()?;
    if *tag == STRING {
        return Some(Value::String(rest.into()));
    }
    let mut elements = Elements { rest };
    let value = match *tag {
        // A collection without elements is not there.
        HASH..=SORTED if rest.is_empty() => return None,
        HASH => {
            let mut hash = Hash::default();
            while let Some((field, value)) = elements.pair() {
                hash.set(field, value);
            }
            hash.wrap()
        }
        LIST => {
            let mut list = List::default();
            while let Some(item) = elements.one() {
                list.push(false, item);
            }
            list.wrap()
        }
        SET => {
            let mut set = Set::default();
            while let Some(member) = elements.one() {
                set.add(member);
            }
            set.wrap()
        }
        SORTED => {
            let mut sorted = Sorted::default();
            while let Some((score, member)) = elements.pair() {
                sorted.set(member, f64::from_bits(u64::from_be_bytes(score.try_into().ok()?)));
            }
            sorted.wrap()
        }
        STREAM => stream_dump::decode(&mut elements)?.wrap(),
        _ => return None,
    };
    elements.rest.is_empty().then_some(value)
}

/// Reads elements from front to back.
pub(super) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(super) fn one(&mut self) -> Option<&'a [u8]> {
        let (length, tail) = self.rest.split_first_chunk::<4>()?;
        let (one, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.rest = tail;
        Some(one)
    }

    fn pair(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        Some((self.one()?, self.one()?))
    }
}

/// Whole shards from place `from` on, cut between places once there are `bytes_max` bytes.
pub(super) fn copy(store: &Store, from: u64, bytes_max: usize) -> Copied {
    let mut copied = Copied::up_to(PLACE_END);
    let first = (from / SHARD_PLACES) as usize;
    for shard in first..super::store::SHARDS {
        let mut slots: Vec<_> = store
            .shard(shard)
            .map(|(key, value)| (place_of_key(key), key, value))
            .filter(|(place, ..)| *place >= from)
            .collect();
        slots.sort_unstable_by_key(|(place, key, _)| (*place, *key));
        let mut last = None;
        for (place, key, value) in slots {
            if copied.size_bytes() >= bytes_max && last != Some(place) {
                copied.next = place;
                return copied;
            }
            copied.push(key, |out| dump_to(value, out));
            last = Some(place);
        }
    }
    copied
}

/// Those of `keys` that are there.
pub(super) fn copy_keys(store: &Store, keys: &[Vec<u8>]) -> Copied {
    let mut copied = Copied::up_to(0);
    for key in keys {
        if let Some(value) = store.get(key) {
            copied.push(key, |out| dump_to(value, out));
        }
    }
    copied
}

/// Sets a key to a dumped value, whatever it held. False if the bytes are no value.
pub(super) fn install(store: &mut Store, key: &[u8], bytes: &[u8]) -> bool {
    let Some(value) = load(bytes) else { return false };
    store.put(key, value);
    true
}
