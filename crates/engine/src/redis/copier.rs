//! Copying a server's keys: DUMP here, RESTORE there.
//!
//! SCAN has an order of its own, which changes as tables grow, but shows every key that is there
//! from its beginning to its end. So the names are collected first; those that writes touch from
//! then on are added, and the names at a place, whenever it is copied, are all that there are. The
//! names of all keys are in memory for as long as somebody copies.
//!
//! What DUMP tells of a large key is handed on in pieces ([`mod@crate::copy`]), and put together
//! again before RESTORE: the server makes it, and takes it, in one.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Ask, Kind, Operation, RedisEngine, encode, shown};
use crate::STRING_BYTES_MAX;
use crate::backend::Submitted;
use crate::copy::{
    BadChunk, Copied, Object, PLACE_EARLY, PLACE_END, Piece, cursor, next_ticket, place_of_cursor,
    place_of_key, ticket_of_cursor,
};
use crate::databases::of_key;
use crate::resp;
use crate::resp_scan::{elements, text};

/// Names that SCAN is asked for at a time.
const SCAN_COUNT: &[u8] = b"1000";
/// Keys of the first chunk; later ones have as many as made the right number of bytes.
const KEYS_FIRST: usize = 16;
const KEYS_MAX: usize = 4096;
/// Most bytes of a copied value, as DUMP tells it, and most bytes of a request while values are
/// copied: any key that a server holds. Its own limits are half a gigabyte and a whole one.
const RESTORED_BYTES_MAX: usize = 1 << 40;
/// What a server's limit of a request is otherwise.
const REQUEST_BYTES_MAX: usize = 1 << 30;
/// Most copies at once that have values under way. The oldest goes, and begins again.
const HELD_MAX: usize = 256;

/// The names of the keys, while somebody copies.
#[derive(Debug)]
pub(super) struct Copier {
    /// Which one: an answer to an earlier one's SCAN is of no use.
    generation: u32,
    /// Where SCAN goes on; `None` when it has come round.
    cursor: Option<Vec<u8>>,
    /// By place.
    names: BTreeSet<(u64, Vec<u8>)>,
    /// Keys of the next chunk.
    keys: usize,
}

/// Values of which a chunk had the first pieces.
#[derive(Clone, Debug)]
struct Held {
    ticket: u64,
    /// Where the copy goes on behind them.
    next: u64,
    bytes_max: usize,
    values: VecDeque<Large>,
}

/// A value, and how much of it was handed on.
#[derive(Clone, Debug)]
struct Large {
    key: Vec<u8>,
    value: Arc<Vec<u8>>,
    at: usize,
}

/// Values that are handed on in pieces, or put together.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    held: Vec<Held>,
    last_ticket: u64,
    /// Values of which pieces have come.
    partial: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Pieces {
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.partial.clear();
    }

    /// Nobody copies from here any more.
    pub(super) fn release_all(&mut self) {
        self.held.clear();
    }

    /// Nobody will ask for the rest by this ticket.
    pub(super) fn release(&mut self, ticket: u64) {
        self.held.retain(|held| held.ticket != ticket);
    }

    /// Another ticket for what is held by this one; 0 if nothing is.
    pub(super) fn fork(&mut self, ticket: u64) -> u64 {
        let held = self.held.iter().find(|held| held.ticket == ticket).cloned();
        held.map_or(0, |held| self.put(held))
    }

    fn put(&mut self, held: Held) -> u64 {
        if self.held.len() >= HELD_MAX {
            self.held.remove(0);
        }
        self.last_ticket = next_ticket(self.last_ticket);
        self.held.push(Held { ticket: self.last_ticket, ..held });
        self.last_ticket
    }

    /// What was copied, as the first of a chunk that begins at `place` and has about as many bytes
    /// as the first number says: of larger values the first pieces, whose later ones have as many
    /// as the second, with the others of what is held by `ticket`.
    pub(super) fn cut(
        &mut self,
        copied: Copied,
        place: u64,
        (first_bytes, bytes_max): (usize, usize),
        ticket: u64,
    ) -> Copied {
        let (mut first, mut values) = (Copied::up_to(copied.next), VecDeque::new());
        for (key, value) in copied.objects() {
            let end = value.len().min(first_bytes.max(1));
            let piece = Piece { continues: false, more: end < value.len() };
            first.push_piece(key, piece, |out| out.extend_from_slice(&value[..end]));
            if piece.more {
                values.push_back(Large {
                    key: key.to_vec(),
                    value: Arc::new(value.to_vec()),
                    at: end,
                });
            }
        }
        let own = self.held.iter_mut().find(|held| held.ticket == ticket);
        let ticket = match own {
            _ if values.is_empty() => ticket,
            Some(held) => {
                held.values.append(&mut values);
                ticket
            }
            None => {
                let (next, bytes_max) = (copied.next, bytes_max.max(1));
                self.put(Held { ticket: 0, next, bytes_max, values })
            }
        };
        if ticket != 0 {
            first.next = cursor(place, ticket);
        }
        first
    }

    /// The next pieces of what the cursor has a ticket of.
    fn next(&mut self, from: u64) -> Option<Copied> {
        let index = self.held.iter().position(|held| held.ticket == ticket_of_cursor(from))?;
        let mut held = self.held.remove(index);
        let mut copied = Copied::going_on(held.next);
        while copied.size_bytes() < held.bytes_max
            && let Some(Large { key, value, at }) = held.values.pop_front()
        {
            let left = held.bytes_max - copied.size_bytes();
            let end = value.len().min(at + left);
            let piece = Piece { continues: true, more: end < value.len() };
            copied.push_piece(&key, piece, |out| out.extend_from_slice(&value[at..end]));
            if piece.more {
                held.values.push_front(Large { key, value, at: end });
            }
        }
        if !held.values.is_empty() {
            copied.next = cursor(place_of_cursor(from), self.put(held));
        }
        Some(copied)
    }

    /// Takes a piece; the value once it is complete.
    fn take(&mut self, object: &Object<'_>) -> Result<Option<Vec<u8>>, BadChunk> {
        let mut own = Vec::new();
        if object.piece.continues {
            let index = self.partial.iter().position(|(key, _)| key == object.key);
            let index = index.ok_or(BadChunk)?;
            own = self.partial.swap_remove(index).1;
        } else {
            self.partial.retain(|(key, _)| key != object.key);
        }
        own.extend_from_slice(object.value);
        if object.piece.more {
            self.partial.push((object.key.to_vec(), own));
            return Ok(None);
        }
        Ok(Some(own))
    }
}

impl Copier {
    /// A write touches `key`.
    pub(super) fn touch(&mut self, key: &[u8]) {
        self.names.insert((place_of_key(key), key.to_vec()));
    }

    /// The names of the next chunk from place `from` on, and where the one after it begins.
    fn names(&self, from: u64) -> (Vec<Vec<u8>>, u64) {
        let mut names = Vec::new();
        let mut last = None;
        for (place, name) in self.names.range((from, Vec::new())..) {
            if names.len() >= self.keys && last != Some(*place) {
                return (names, *place);
            }
            last = Some(*place);
            names.push(name.clone());
        }
        (names, PLACE_END)
    }
}

impl RedisEngine {
    pub(super) fn prepare(&mut self) -> bool {
        if let Some(copier) = &self.copier {
            return copier.cursor.is_none();
        }
        self.copies += 1;
        self.copier = Some(Copier {
            generation: self.copies,
            cursor: Some(b"0".to_vec()),
            names: BTreeSet::new(),
            keys: KEYS_FIRST,
        });
        self.scan_on();
        false
    }

    /// Asks for the next names; again after a reconnect.
    pub(super) fn scan_on(&mut self) {
        let Some(Copier { generation, cursor: Some(cursor), .. }) = &self.copier else { return };
        let generation = *generation;
        let mut request = Vec::new();
        encode(&mut request, [&b"SCAN"[..], cursor, b"COUNT", SCAN_COUNT]);
        self.enqueue_own(request, Kind::Ask(Ask::Names(generation)), 1);
    }

    pub(super) fn on_names(&mut self, generation: u32, frame: &[u8]) {
        let mut parts = elements(frame);
        let cursor = parts.next().and_then(text);
        let (Some(cursor), Some(names), Some(copier)) = (cursor, parts.next(), &mut self.copier)
        else {
            return;
        };
        if copier.generation != generation {
            return;
        }
        elements(names).filter_map(text).for_each(|name| copier.touch(name));
        copier.cursor = (cursor != b"0").then(|| cursor.to_vec());
        self.scan_on();
    }

    pub(super) fn copy_from(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        if ticket_of_cursor(from) != 0
            && let Some(copied) = self.pieces.next(from)
        {
            return Some(copied);
        }
        let from = place_of_cursor(from);
        let nothing = Some(Copied::up_to(PLACE_END));
        let Some(copier) = &self.copier else { return nothing };
        let (names, next) = copier.names(from);
        if names.is_empty() {
            return nothing;
        }
        let mut request = Vec::new();
        names.iter().for_each(|name| encode(&mut request, [&b"DUMP"[..], name]));
        let count = names.len();
        self.enqueue_own(request, Kind::Copy { names, from, next, bytes_max }, count);
        None
    }

    /// Asks for these keys.
    pub(super) fn dump_keys(&mut self, keys: &[Vec<u8>], bytes_max: usize) -> Option<Copied> {
        if keys.is_empty() {
            return Some(Copied::up_to(PLACE_EARLY));
        }
        let mut request = Vec::new();
        keys.iter().for_each(|name| encode(&mut request, [&b"DUMP"[..], name]));
        let (from, next, bytes_max) = (PLACE_EARLY, PLACE_EARLY, bytes_max);
        let kind = Kind::Copy { names: keys.to_vec(), from, next, bytes_max };
        self.enqueue_own(request, kind, keys.len());
        None
    }

    /// A dumped value, or null for a key that is not there (any more).
    pub(super) fn on_dump(&mut self, index: usize, frame: &[u8]) {
        let Some(Operation { kind: Kind::Copy { names, from, next, bytes_max }, .. }) =
            self.operations.front()
        else {
            return;
        };
        if frame.starts_with(b"-") {
            return self.lose(shown("the server refused DUMP", frame));
        }
        let copied = &mut self.front.copied;
        if let (Some(value), Some(name)) = (text(frame), names.get(index)) {
            copied.push(name, |out| out.extend_from_slice(value));
        }
        if index + 1 < names.len() {
            return;
        }
        copied.next = *next;
        let bytes = copied.size_bytes();
        if let Some(copier) = self.copier.as_mut().filter(|_| *from != PLACE_EARLY) {
            let wanted = (names.len() * *bytes_max).checked_div(bytes).unwrap_or(KEYS_MAX);
            copier.keys = wanted.clamp(1, KEYS_MAX);
        }
        let copied = core::mem::take(copied);
        self.front.copied = self.pieces.cut(copied, *from, (*bytes_max, *bytes_max), 0);
        self.complete();
    }

    pub(super) fn restore(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        // A copied value has one argument, however large it is.
        let limit = |name: &[u8], bytes: usize, request: &mut Vec<u8>| {
            let bytes = alloc::format!("{bytes}");
            encode(request, [&b"CONFIG"[..], b"SET", name, bytes.as_bytes()]);
        };
        let limits = |argument: usize, all: usize, request: &mut Vec<u8>| {
            limit(b"proto-max-bulk-len", argument, request);
            limit(b"client-query-buffer-limit", all, request);
        };
        self.has_databases |= objects.iter().any(|object| of_key(object.key) != 0);
        let (mut request, mut count) = (Vec::new(), 0);
        limits(RESTORED_BYTES_MAX, RESTORED_BYTES_MAX, &mut request);
        for object in objects {
            let own;
            let value = if object.piece == Piece::default() {
                object.value
            } else if let Some(value) = self.pieces.take(object)? {
                own = value;
                &own[..]
            } else {
                continue;
            };
            // No time to live: those are the shim's (trap T12).
            encode(&mut request, [&b"RESTORE"[..], object.key, b"0", value, b"REPLACE"]);
            count += 1;
        }
        if count == 0 {
            return Ok(Submitted::Done(crate::Outcome::default()));
        }
        limits(STRING_BYTES_MAX, REQUEST_BYTES_MAX, &mut request);
        self.enqueue_own(request, Kind::Install, count + 4);
        self.is_size_old = true;
        Ok(Submitted::Pending)
    }

    pub(super) fn forget(&mut self) -> Submitted {
        // FLUSHALL deletes the applied number too.
        (self.recorded, self.submitted) = (0, 0);
        self.pieces.clear();
        self.has_databases = false;
        let mut request = Vec::new();
        encode(&mut request, [&b"FLUSHALL"[..]]);
        self.enqueue_own(request, Kind::Install, 1);
        self.is_size_old = true;
        Submitted::Pending
    }

    pub(super) fn on_install(&mut self, index: usize, frame: &[u8]) {
        if frame != resp::OK {
            return self.lose(shown("the server refused a copied value", frame));
        }
        if self.operations.front().is_some_and(|operation| index + 1 == operation.commands) {
            self.complete();
        }
    }

    /// Requests of ours, with `count` replies.
    pub(super) fn enqueue_own(&mut self, request: Vec<u8>, kind: Kind, count: usize) {
        self.enqueue(Operation {
            request,
            kind,
            commands: count,
            questions: 0,
            resp3: self.resp3,
            switched: false,
            decides: true,
            refusal: None,
            draws: Vec::new(),
            arrays: Vec::new(),
            taught: Vec::new(),
            has_scripts: false,
            is_beside: false,
            is_guarded: false,
            awaited: None,
        });
    }
}
