//! Copying the whole state of an engine to another, bit by bit, while operations go on.
//!
//! Objects have an order, by [`place`]. A chunk holds all objects of a range of places, exactly as
//! they are between two operations; the ranges of the chunks follow each other, and end at
//! [`PLACE_END`]. So whoever installs chunks in between the same operations knows, of each
//! operation, whether its object was copied already (then the operation is to be executed) or is
//! yet to come (then the chunk will show what it did).
//!
//! A chunk is `next place: u64`, then for each object `key length: u32, value length: u32,
//! deadline in unix ms: u64 (0: none)`, the key, the value as its backend writes it.

use alloc::vec::Vec;
use core::fmt;

use concord_core::ObjectId;
use concord_core::hash::object_id;

use crate::functions::FUNCTIONS_KEY;
use crate::users::USERS_KEY;

/// Behind the last place.
pub const PLACE_END: u64 = 1 << 32;

const HEADER_BYTES: usize = 8;
const OBJECT_HEADER_BYTES: usize = 16;

/// The bits of an object id that come first in the order of places: the memory engine's shard.
const SHARD_BITS: u32 = 12;

/// Where an object stands in the order of copying, below [`PLACE_END`]. Keys of one object id stand
/// at one place, and are copied together.
#[must_use]
pub fn place(obj_id: ObjectId) -> u64 {
    u64::from(obj_id.0.rotate_right(SHARD_BITS))
}

/// Where a key stands in the order of copying. The libraries of functions and the users are in
/// front of every key.
#[must_use]
pub fn place_of_key(key: &[u8]) -> u64 {
    if key == FUNCTIONS_KEY || key == USERS_KEY {
        return 0;
    }
    place(object_id(key))
}

/// What a backend copied: keys and their values, as [`crate::Backend::install`] takes them, in one
/// piece. An allocation for each takes more time than all else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    bytes: Vec<u8>,
    /// Where each key ends, and its value.
    ends: Vec<(usize, usize)>,
    /// The first place that was not copied; [`PLACE_END`] when all were.
    pub next: u64,
}

impl Copied {
    /// Nothing, up to place `next`.
    #[must_use]
    pub fn up_to(next: u64) -> Copied {
        Copied { next, ..Copied::default() }
    }

    /// Adds an object, whose value `write` appends.
    pub fn push(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        write(&mut self.bytes);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The keys and their values.
    pub fn objects(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let begins = core::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let slices = begins.zip(&self.ends);
        slices.map(|(begin, (key, end))| (&self.bytes[begin..*key], &self.bytes[*key..*end]))
    }

    /// The chunk of it, with the deadlines of keys that have one.
    pub(crate) fn chunk(&self, deadline_ms: impl Fn(&[u8]) -> Option<u64>) -> Vec<u8> {
        let headers = HEADER_BYTES + OBJECT_HEADER_BYTES * self.ends.len();
        let mut chunk = Vec::with_capacity(headers + self.size_bytes());
        begin(&mut chunk, self.next);
        for (key, value) in self.objects() {
            let deadline_ms = deadline_ms(key).unwrap_or(0);
            push(&mut chunk, &Object { key, value, deadline_ms });
        }
        chunk
    }
}

/// Bytes that are no chunk, or hold no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChunk;

impl fmt::Display for BadChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a chunk of an engine's state")
    }
}

impl core::error::Error for BadChunk {}

/// An object of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value, as its backend wrote it.
    pub value: &'a [u8],
    /// When it is due, in unix ms; 0 for never.
    pub deadline_ms: u64,
}

/// Appends the beginning of a chunk.
fn begin(out: &mut Vec<u8>, next: u64) {
    out.extend_from_slice(&next.to_be_bytes());
}

/// Appends an object.
pub(crate) fn push(out: &mut Vec<u8>, object: &Object<'_>) {
    out.extend_from_slice(&(object.key.len() as u32).to_be_bytes());
    out.extend_from_slice(&(object.value.len() as u32).to_be_bytes());
    out.extend_from_slice(&object.deadline_ms.to_be_bytes());
    out.extend_from_slice(object.key);
    out.extend_from_slice(object.value);
}

/// The first place that is not in the chunk.
///
/// # Errors
/// [`BadChunk`].
pub fn next_place(chunk: &[u8]) -> Result<u64, BadChunk> {
    let next = u64::from_be_bytes(*chunk.first_chunk().ok_or(BadChunk)?);
    if next <= PLACE_END { Ok(next) } else { Err(BadChunk) }
}

/// The objects of a chunk.
///
/// # Errors
/// [`BadChunk`] if it is cut or longer than it says.
pub fn objects(chunk: &[u8]) -> Result<Vec<Object<'_>>, BadChunk> {
    next_place(chunk)?;
    let mut rest = &chunk[HEADER_BYTES..];
    let mut objects = Vec::new();
    while !rest.is_empty() {
        let (header, tail) = rest.split_at_checked(OBJECT_HEADER_BYTES).ok_or(BadChunk)?;
        let (lengths, deadline) = header.split_at(8);
        let length = |at: usize| {
            lengths[at..].first_chunk().map_or(0, |four| u32::from_be_bytes(*four)) as usize
        };
        let (key, tail) = tail.split_at_checked(length(0)).ok_or(BadChunk)?;
        let (value, tail) = tail.split_at_checked(length(4)).ok_or(BadChunk)?;
        let deadline_ms = deadline.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight));
        objects.push(Object { key, value, deadline_ms });
        rest = tail;
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_survives_and_a_cut_one_is_refused() {
        let mut chunk = Vec::new();
        begin(&mut chunk, 7);
        let all = [
            Object { key: b"k", value: b"value", deadline_ms: 9 },
            Object { key: b"", value: b"", deadline_ms: 0 },
        ];
        all.iter().for_each(|object| push(&mut chunk, object));
        assert_eq!(next_place(&chunk), Ok(7));
        assert_eq!(objects(&chunk).unwrap(), all);
        let ends: Vec<usize> = (0..chunk.len()).filter(|n| objects(&chunk[..*n]).is_ok()).collect();
        assert_eq!(ends, [8, 30], "only between objects");
    }

    #[test]
    fn places_are_in_the_order_of_the_memory_engines_shards() {
        for n in 0..1000u32 {
            let obj_id = object_id(&n.to_be_bytes());
            assert!(place(obj_id) < PLACE_END);
            assert_eq!(place(obj_id) >> (32 - SHARD_BITS), u64::from(obj_id.0 % 4096));
        }
    }
}
