//! Copying the whole state of an engine to another in chunks, while operations continue.
//!
//! Objects are ordered by [`place`]. A chunk holds all objects of a range of places, as they are
//! between two operations; the ranges of the chunks are contiguous, and end at [`PLACE_END`]. A
//! receiver that installs the chunks between the same operations knows of each operation whether
//! its object was copied already (then it executes the operation) or not yet (then the chunk will
//! have the effect).
//!
//! An object that is larger than a chunk is cut into pieces. The chunk that begins it, and all that
//! follow up to its last piece, belong to one position: they have the object as it was when its
//! first piece was made, whatever is written meanwhile. So the receiver executes nothing in
//! between. Such a chunk leads to a *cursor* at the same place, with the number of a ticket by
//! which the source finds the rest. If the source has dropped the ticket, it begins at that place
//! again.
//!
//! The format of a chunk is `next: u64`, then for each object `key length: u32, value length: u32,
//! deadline in unix ms: u64 (0: none)`, the key, the value as its backend encodes it. `next` is a
//! cursor: 33 bits of place, 30 bits of ticket (0: the place begins), and one bit that is set if
//! the chunk continues with pieces of the one before. The two highest bits of a key's length are
//! set if the value continues one in the chunk before, and if another piece follows.

use alloc::vec::Vec;
use core::fmt;

use concord_core::ObjectId;
use concord_core::hash::object_id;

use crate::functions::FUNCTIONS_KEY;
use crate::users::USERS_KEY;

/// The deadline of a key that is not there, in a chunk of keys copied early ([`mod@crate::early`]).
pub(crate) const ABSENT: u64 = u64::MAX;

/// Behind the last place.
pub const PLACE_END: u64 = 1 << 32;
/// Stands for the next place in chunks of keys that are copied early ([`mod@crate::early`]), which
/// cover no place.
pub const PLACE_EARLY: u64 = PLACE_END + 1;

/// The bits of a cursor that are a place.
const PLACE_BITS: u32 = 33;
/// The highest ticket.
const TICKET_MAX: u64 = (1 << 30) - 1;
/// In the first word of a chunk: the chunk continues with pieces of the one before.
const CONTINUES: u64 = 1 << 63;
/// In the length of a key: its value continues one in the chunk before.
const PIECE_CONTINUES: u32 = 1 << 31;
/// In the length of a key: another piece of its value follows.
const PIECE_MORE: u32 = 1 << 30;

const HEADER_BYTES: usize = 8;
const OBJECT_HEADER_BYTES: usize = 16;

/// The bits of an object id that come first in the order of places: the memory engine's shard.
const SHARD_BITS: u32 = 12;

/// The place of an object in the order of copying, below [`PLACE_END`]. Keys with one object id
/// have one place, and are copied together.
#[must_use]
pub fn place(obj_id: ObjectId) -> u64 {
    u64::from(obj_id.0.rotate_right(SHARD_BITS))
}

/// The place of a key in the order of copying. The libraries of functions and the users precede
/// every key.
#[must_use]
pub fn place_of_key(key: &[u8]) -> u64 {
    if key == FUNCTIONS_KEY || key == USERS_KEY {
        return 0;
    }
    place(object_id(key))
}

/// The place of a cursor.
#[must_use]
pub fn place_of_cursor(cursor: u64) -> u64 {
    cursor & ((1 << PLACE_BITS) - 1)
}

/// The ticket of a cursor; 0 where its place begins.
#[must_use]
pub fn ticket_of_cursor(cursor: u64) -> u64 {
    (cursor >> PLACE_BITS) & TICKET_MAX
}

/// The cursor of a ticket at a place.
pub(crate) fn cursor(place: u64, ticket: u64) -> u64 {
    place | ticket << PLACE_BITS
}

/// The ticket that follows one: never 0.
pub(crate) fn next_ticket(ticket: u64) -> u64 {
    ticket % TICKET_MAX + 1
}

/// Which piece of its object a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Whether it continues the value in the chunk before.
    pub continues: bool,
    /// Another one follows.
    pub more: bool,
}

/// Keys and values that a backend copied, as [`crate::Backend::install`] takes them, in one buffer:
/// an allocation for each would take more time than everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    bytes: Vec<u8>,
    /// The end of each key, the end of its value, and the piece of the object that it is.
    ends: Vec<(usize, usize, Piece)>,
    /// The cursor of what was not copied; [`PLACE_END`] when all was.
    pub next: u64,
    /// Whether it continues with pieces of the chunk before.
    pub continues: bool,
}

impl Copied {
    /// No objects, up to place `next`.
    #[must_use]
    pub fn up_to(next: u64) -> Copied {
        Copied { next, ..Copied::default() }
    }

    /// No objects yet, up to cursor `next`, continuing the chunk before.
    pub(crate) fn going_on(next: u64) -> Copied {
        Copied { next, continues: true, ..Copied::default() }
    }

    /// Adds an object, whose value `write` appends.
    pub fn push(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.push_piece(key, Piece::default(), write);
    }

    /// Adds a piece of an object, which `write` appends.
    pub(crate) fn push_piece(
        &mut self,
        key: &[u8],
        piece: Piece,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        write(&mut self.bytes);
        self.ends.push((key_end, self.bytes.len(), piece));
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The keys and their values.
    pub fn objects(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pieces().map(|(key, value, _)| (key, value))
    }

    /// The keys, their values, and which piece each is.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (&[u8], &[u8], Piece)> {
        let begins = core::iter::once(0).chain(self.ends.iter().map(|(_, end, _)| *end));
        begins.zip(&self.ends).map(|(begin, (key, end, piece))| {
            (&self.bytes[begin..*key], &self.bytes[*key..*end], *piece)
        })
    }

    /// The chunk of it, with the deadlines of keys that have one.
    pub(crate) fn chunk(&self, deadline_ms: impl Fn(&[u8]) -> Option<u64>) -> Vec<u8> {
        let headers = HEADER_BYTES + OBJECT_HEADER_BYTES * self.ends.len();
        let mut chunk = Vec::with_capacity(headers + self.size_bytes());
        begin(&mut chunk, self.next | if self.continues { CONTINUES } else { 0 });
        for (key, value, piece) in self.pieces() {
            // With a later piece it would be the deadline of a later time.
            let deadline_ms = deadline_ms(key).filter(|_| !piece.continues).unwrap_or(0);
            push(&mut chunk, &Object { key, value, deadline_ms, piece });
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
    /// When it is due, in unix ms; 0 for never. Of no meaning in a piece that goes on another.
    pub deadline_ms: u64,
    /// Which piece of its object the value is.
    pub piece: Piece,
}

impl Object<'_> {
    /// Whether the key is there. Of those that are copied early some are not.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.deadline_ms != ABSENT
    }
}

/// Appends the beginning of a chunk.
fn begin(out: &mut Vec<u8>, next: u64) {
    out.extend_from_slice(&next.to_be_bytes());
}

/// The beginning of a chunk of keys that are copied early: it covers no place, and leads to
/// `next`.
pub(crate) fn start_early(next: u64) -> Vec<u8> {
    let mut chunk = Vec::new();
    begin(&mut chunk, next);
    chunk
}

/// Sets the cursor to which a chunk of keys that are copied early leads.
pub(crate) fn set_next(chunk: &mut [u8], next: u64) {
    if let Some(first) = chunk.first_chunk_mut() {
        *first = next.to_be_bytes();
    }
}

/// The same chunk, with another cursor for the rest of its objects: each receiver has a ticket of
/// its own.
#[must_use]
pub fn with_next(chunk: &[u8], next: u64) -> Vec<u8> {
    let mut chunk = chunk.to_vec();
    set_next(&mut chunk, next);
    chunk
}

/// Appends an object.
pub(crate) fn push(out: &mut Vec<u8>, object: &Object<'_>) {
    let Piece { continues, more } = object.piece;
    let flags = if continues { PIECE_CONTINUES } else { 0 } | if more { PIECE_MORE } else { 0 };
    out.extend_from_slice(&(object.key.len() as u32 | flags).to_be_bytes());
    out.extend_from_slice(&(object.value.len() as u32).to_be_bytes());
    out.extend_from_slice(&object.deadline_ms.to_be_bytes());
    out.extend_from_slice(object.key);
    out.extend_from_slice(object.value);
}

/// The cursor of what is not in the chunk: a place, or a place with the ticket of what is left of
/// it.
///
/// # Errors
/// [`BadChunk`].
pub fn next_place(chunk: &[u8]) -> Result<u64, BadChunk> {
    let next = u64::from_be_bytes(*chunk.first_chunk().ok_or(BadChunk)?) & !CONTINUES;
    let (place, ticket) = (place_of_cursor(next), ticket_of_cursor(next));
    let is_known = place < PLACE_END || place == PLACE_EARLY;
    if is_known || (place == PLACE_END && ticket == 0) { Ok(next) } else { Err(BadChunk) }
}

/// Whether the chunk goes on with pieces of the one before, so that nothing may be executed in
/// between.
#[must_use]
pub fn continues(chunk: &[u8]) -> bool {
    chunk.first_chunk().is_some_and(|first| u64::from_be_bytes(*first) & CONTINUES != 0)
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
        let flags = length(0) as u32;
        let key_bytes = flags & !(PIECE_CONTINUES | PIECE_MORE);
        let piece =
            Piece { continues: flags & PIECE_CONTINUES != 0, more: flags & PIECE_MORE != 0 };
        let (key, tail) = tail.split_at_checked(key_bytes as usize).ok_or(BadChunk)?;
        let (value, tail) = tail.split_at_checked(length(4)).ok_or(BadChunk)?;
        let deadline_ms = deadline.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight));
        objects.push(Object { key, value, deadline_ms, piece });
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
            Object { key: b"k", value: b"value", deadline_ms: 9, piece: Piece::default() },
            Object {
                key: b"",
                value: b"",
                deadline_ms: 0,
                piece: Piece { continues: true, more: true },
            },
        ];
        all.iter().for_each(|object| push(&mut chunk, object));
        assert_eq!(next_place(&chunk), Ok(7));
        assert_eq!(objects(&chunk).unwrap(), all);
        let ends: Vec<usize> = (0..chunk.len()).filter(|n| objects(&chunk[..*n]).is_ok()).collect();
        assert_eq!(ends, [8, 30], "only between objects");
    }

    #[test]
    fn a_cursor_is_a_place_and_a_ticket_and_goes_into_a_chunk() {
        let at = cursor(PLACE_END - 1, TICKET_MAX);
        assert_eq!((place_of_cursor(at), ticket_of_cursor(at)), (PLACE_END - 1, TICKET_MAX));
        assert_eq!((next_ticket(0), next_ticket(TICKET_MAX)), (1, 1));
        let chunk = Copied { next: at, continues: true, ..Copied::default() }.chunk(|_| None);
        assert_eq!((next_place(&chunk), continues(&chunk)), (Ok(at), true));
        let chunk = Copied::up_to(PLACE_END).chunk(|_| None);
        assert_eq!((next_place(&chunk), continues(&chunk)), (Ok(PLACE_END), false));
        for beyond in [PLACE_EARLY + 1, cursor(PLACE_END, 1)] {
            assert_eq!(next_place(&beyond.to_be_bytes()), Err(BadChunk));
        }
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
