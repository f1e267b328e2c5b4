//! Encoding of values for copies: a tag, then the elements in their order, each after its length
//! (`u32`). Commands that depend on the order of elements (SPOP and the like) do the same on the
//! copy. A large value is encoded in pieces ([`super::freeze`]): each is a value with some of the
//! elements, and all of them installed in order make the whole value.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::hash::hash64;

use super::freeze::{Large, next_piece};
use super::sorted::Sorted;
use super::store::{Bytes, Hash, Kind, List, Set, Store, Value};
use super::stream::Stream;
use super::stream_dump::{self, GroupAt};
use crate::copy::{
    Copied, Object, PLACE_EARLY, PLACE_END, Piece, cursor, place_of_cursor, place_of_key,
    ticket_of_cursor,
};

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
    dump_piece(value, &mut At::default(), usize::MAX, &mut out);
    out
}

/// The encoded part of a value: bytes of a string, elements of a collection, blocks and then groups
/// of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    elements: usize,
    groups: usize,
    group: GroupAt,
}

impl At {
    /// After so many bytes of a string, elements of a collection, or blocks of a stream.
    pub(super) fn after(elements: usize) -> At {
        At { elements, ..At::default() }
    }
}

/// Appends the part of the value after `at`: about `bytes_max` bytes, and at least one element.
/// Returns whether there is more.
pub(super) fn dump_piece(value: &Value, at: &mut At, bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    let first = at.elements;
    let all = match value {
        Value::String(bytes) => {
            out.push(STRING);
            let end = bytes.len().min(first.saturating_add(bytes_max.max(1)));
            out.extend_from_slice(&bytes[first..end]);
            at.elements = end;
            return end < bytes.len();
        }
        Value::Stream(stream) => {
            out.push(STREAM);
            return dump_stream(stream, at, bytes_max, out);
        }
        Value::Hash(hash) => hash.map().len(),
        Value::List(list) => list.items().len(),
        Value::Set(set) => set.members().len(),
        Value::Sorted(sorted) => sorted.len(),
    };
    let mut put = |tag: u8, elements: &mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>| {
        out.push(tag);
        while out.len() - begin < bytes_max.max(2) {
            let Some((one, other)) = elements.next() else { break };
            element(out, one);
            if let Some(other) = other {
                element(out, other);
            }
            at.elements += 1;
        }
    };
    match value {
        Value::Hash(hash) => {
            let map = hash.map();
            let rest = (first..all).filter_map(|index| map.get_index(index));
            put(HASH, &mut rest.map(|(field, value)| (&**field, Some(&**value))));
        }
        Value::List(list) => {
            put(LIST, &mut list.items().range(first..).map(|item| (&**item, None)));
        }
        Value::Set(set) => {
            let members = set.members();
            let rest = (first..all).filter_map(|index| members.get_index(index));
            put(SET, &mut rest.map(|member| (&**member, None)));
        }
        Value::Sorted(sorted) => {
            out.push(SORTED);
            for scored in sorted.iter_from(first) {
                if out.len() - begin >= bytes_max.max(2) {
                    break;
                }
                element(out, &scored.score.to_bits().to_be_bytes());
                element(out, &scored.member);
                at.elements += 1;
            }
        }
        Value::String(_) | Value::Stream(_) => {}
    }
    at.elements < all
}

/// Whole blocks, then groups, each in pieces if it is large.
fn dump_stream(stream: &Stream, at: &mut At, bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let (first, begin, mut bytes) = (at.elements, out.len(), 0);
    while at.elements < stream.blocks.len() && (bytes < bytes_max || at.elements == first) {
        bytes += stream.blocks[at.elements].bytes as usize;
        at.elements += 1;
    }
    stream_dump::encode_blocks(stream, first..at.elements, out);
    if at.elements < stream.blocks.len() {
        return true;
    }
    let mut is_progress = at.elements > first;
    for (name, group) in stream.groups.iter().skip(at.groups) {
        let left = bytes_max.saturating_sub(out.len() - begin);
        if left == 0 && is_progress {
            return true;
        }
        is_progress = true;
        if stream_dump::encode_group((name, group), &mut at.group, left, out) {
            return true;
        }
        at.groups += 1;
        at.group = GroupAt::default();
    }
    false
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

/// Objects from the cursor `from` on, cut between places once there are `bytes_max` bytes; larger
/// ones in pieces.
pub(super) fn copy(store: &mut Store, from: u64, bytes_max: usize) -> Copied {
    if ticket_of_cursor(from) != 0
        && let Some(copied) = next_piece(store, from)
    {
        return copied;
    }
    let from = place_of_cursor(from);
    let (mut copied, large) = copy_places(store, from, bytes_max);
    if !large.is_empty() {
        let ticket = store.frozen.begin(copied.next, bytes_max, large);
        copied.next = cursor(from, ticket);
    }
    copied
}

/// The same, and the objects of which it has only the first piece.
fn copy_places(store: &Store, from: u64, bytes_max: usize) -> (Copied, VecDeque<Large>) {
    let mut large = VecDeque::new();
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
                return (copied, large);
            }
            let (mut at, mut bytes) = (At::default(), Vec::new());
            let more = dump_piece(value, &mut at, bytes_max, &mut bytes);
            copied.push_piece(key, Piece { continues: false, more }, |out| out.append(&mut bytes));
            if more {
                large.push_back(Large::begun(key, at));
            }
            last = Some(place);
        }
    }
    (copied, large)
}

/// Copies those of `keys` that exist, in a chunk of about `bytes_max` bytes; of large ones the
/// first pieces, whose rest is joined with that of `ticket`.
pub(super) fn copy_keys(
    store: &mut Store,
    keys: &[Vec<u8>],
    (bytes_max, piece_bytes): (usize, usize),
    ticket: u64,
) -> Copied {
    let (mut copied, mut large) = (Copied::up_to(PLACE_EARLY), VecDeque::new());
    for key in keys {
        let Some(value) = store.get(key) else { continue };
        // At least a part of each, since its deadline is the present one.
        let left = bytes_max.saturating_sub(copied.size_bytes());
        let (mut at, mut bytes) = (At::default(), Vec::new());
        let more = dump_piece(value, &mut at, left, &mut bytes);
        copied.push_piece(key, Piece { continues: false, more }, |out| out.append(&mut bytes));
        if more {
            large.push_back(Large::begun(key, at));
        }
    }
    let ticket = match large.is_empty() {
        true => ticket,
        false => store.frozen.add(ticket, (PLACE_EARLY, piece_bytes), large),
    };
    copied.next = cursor(PLACE_EARLY, ticket);
    copied
}

/// Sets a key to a dumped value, whatever it held, or adds a piece to what it holds. False if the
/// bytes are no value.
pub(super) fn install(store: &mut Store, object: &Object<'_>) -> bool {
    let Object { key, value, piece, .. } = *object;
    if piece.continues {
        return install_onto(store, key, value).is_some();
    }
    let Some(value) = load(value) else { return false };
    store.put(key, value);
    true
}

/// Adds the elements of a piece to what the key holds.
fn install_onto(store: &mut Store, key: &[u8], bytes: &[u8]) -> Option<()> {
    let (tag, rest) = bytes.split_first()?;
    let mut elements = Elements { rest };
    store.get(key)?;
    match *tag {
        STRING => {
            return store.write(key, |own: &mut Bytes| own.extend_from_slice(rest)).ok();
        }
        HASH => store.write(key, |own: &mut Hash| {
            while let Some((field, value)) = elements.pair() {
                own.set(field, value);
            }
        }),
        LIST => store.write(key, |own: &mut List| {
            while let Some(item) = elements.one() {
                own.push(false, item);
            }
        }),
        SET => store.write(key, |own: &mut Set| {
            while let Some(member) = elements.one() {
                own.add(member);
            }
        }),
        SORTED => store.write(key, |own: &mut Sorted| {
            while let Some((score, member)) = elements.pair() {
                let Ok(score) = score.try_into() else { return };
                own.set(member, f64::from_bits(u64::from_be_bytes(score)));
            }
        }),
        STREAM => {
            store
                .write(key, |own: &mut Stream| stream_dump::decode_onto(own, &mut elements))
                .ok()??;
            Ok(())
        }
        _ => return None,
    }
    .ok()?;
    elements.rest.is_empty().then_some(())
}
