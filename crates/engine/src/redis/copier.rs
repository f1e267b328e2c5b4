//! Copying a server's keys: DUMP here, RESTORE there.
//!
//! SCAN has an order of its own, which changes as tables grow, but shows every key that is there
//! from its beginning to its end. So the names are collected first; those that writes touch from
//! then on are added, and the names at a place, whenever it is copied, are all that there are. The
//! names of all keys are in memory for as long as somebody copies.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Ask, Kind, Operation, RedisEngine, encode, shown};
use crate::STRING_BYTES_MAX;
use crate::backend::Submitted;
use crate::copy::{Copied, Object, PLACE_END, place_of_key};
use crate::databases::of_key;
use crate::resp;
use crate::resp_scan::{elements, text};

/// Names that SCAN is asked for at a time.
const SCAN_COUNT: &[u8] = b"1000";
/// Keys of the first chunk; later ones have as many as made the right number of bytes.
const KEYS_FIRST: usize = 16;
const KEYS_MAX: usize = 4096;
/// Most bytes of a copied value, as DUMP tells it: Redis' own limit of an argument.
const RESTORED_BYTES_MAX: usize = 512 << 20;

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
        let nothing = Some(Copied::up_to(PLACE_END));
        let Some(copier) = &self.copier else { return nothing };
        let (names, next) = copier.names(from);
        if names.is_empty() {
            return nothing;
        }
        let mut request = Vec::new();
        names.iter().for_each(|name| encode(&mut request, [&b"DUMP"[..], name]));
        let count = names.len();
        self.enqueue_own(request, Kind::Copy { names, next, bytes_max }, count);
        None
    }

    /// Asks for these keys.
    pub(super) fn dump_keys(&mut self, keys: &[Vec<u8>]) -> Option<Copied> {
        if keys.is_empty() {
            return Some(Copied::up_to(0));
        }
        let mut request = Vec::new();
        keys.iter().for_each(|name| encode(&mut request, [&b"DUMP"[..], name]));
        let kind = Kind::Copy { names: keys.to_vec(), next: 0, bytes_max: 0 };
        self.enqueue_own(request, kind, keys.len());
        None
    }

    /// A dumped value, or null for a key that is not there (any more).
    pub(super) fn on_dump(&mut self, index: usize, frame: &[u8]) {
        let Some(Operation { kind: Kind::Copy { names, next, bytes_max }, .. }) =
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
        if let Some(copier) = self.copier.as_mut().filter(|_| *bytes_max > 0) {
            let wanted = (names.len() * *bytes_max).checked_div(bytes).unwrap_or(KEYS_MAX);
            copier.keys = wanted.clamp(1, KEYS_MAX);
        }
        self.complete();
    }

    pub(super) fn restore(&mut self, objects: &[Object<'_>]) -> Submitted {
        // A copied value has one argument, however large it is.
        let limit = |bytes: usize, request: &mut Vec<u8>| {
            let bytes = alloc::format!("{bytes}");
            encode(request, [&b"CONFIG"[..], b"SET", b"proto-max-bulk-len", bytes.as_bytes()]);
        };
        self.has_databases |= objects.iter().any(|object| of_key(object.key) != 0);
        let mut request = Vec::new();
        limit(RESTORED_BYTES_MAX, &mut request);
        for object in objects {
            // No time to live: those are the shim's (trap T12).
            encode(&mut request, [&b"RESTORE"[..], object.key, b"0", object.value, b"REPLACE"]);
        }
        if objects.is_empty() {
            return Submitted::Done(crate::Outcome::default());
        }
        limit(STRING_BYTES_MAX, &mut request);
        self.enqueue_own(request, Kind::Install, objects.len() + 2);
        Submitted::Pending
    }

    pub(super) fn forget(&mut self) -> Submitted {
        // FLUSHALL deletes the applied number too.
        (self.recorded, self.submitted) = (0, 0);
        self.has_databases = false;
        let mut request = Vec::new();
        encode(&mut request, [&b"FLUSHALL"[..]]);
        self.enqueue_own(request, Kind::Install, 1);
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
            awaited: None,
        });
    }
}
