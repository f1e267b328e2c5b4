//! Objects that are being copied in pieces ([`mod@crate::copy`]): the rest of each object, as it
//! was when its first piece was made.
//!
//! The rest of an object is read from its key, piece by piece, as long as no command writes to the
//! key. Before the first write, the rest is encoded into pieces: of a large object slice by slice,
//! while the write waits ([`crate::Backend::make_ready`]). If the key is deleted or replaced, its
//! value moves here; if it is renamed, it is read under its new name. A value that a script removes
//! stays in the script's undo list until the script has ended: then it moves here, or back to its
//! key. No piece is requested while a script runs. When all keys are deleted, everything here is
//! dropped too, and the copies begin again.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::dump::{At, dump_piece};
use super::store::{Bytes, Store, Value};
use crate::copy::{Copied, Piece, cursor, next_ticket, place_of_cursor, ticket_of_cursor};

/// The largest number of copies with unfinished objects. Beyond it the oldest is dropped, and has
/// to begin again.
const BEGUN_MAX: usize = 256;

/// The place of the rest of an object.
#[derive(Clone, Debug)]
enum Rest {
    /// Still in its key, from this position on.
    Live(At),
    /// In the undo list of the running script, at this index.
    Undoable(usize, At),
    /// Here, since the key was deleted or replaced.
    Owned(Arc<Value>, At),
    /// None: all of it is encoded.
    Nothing,
}

/// An object of which a part was copied.
#[derive(Clone, Debug)]
pub(super) struct Large {
    /// The key under which the object is copied.
    key: Bytes,
    /// The key that holds the value now.
    home: Bytes,
    /// Encoded pieces that were not requested yet. They precede `rest`.
    made: VecDeque<Arc<Vec<u8>>>,
    rest: Rest,
}

impl Large {
    /// The object at `key`, of which everything before `at` was copied.
    pub(super) fn begun(key: &[u8], at: At) -> Large {
        let (key, made) = (Bytes::from(key), VecDeque::new());
        Large { home: key.clone(), key, made, rest: Rest::Live(at) }
    }

    /// Encodes pieces of the rest of `value`, up to about `bytes_max` bytes. Returns the number of
    /// bytes encoded.
    fn make(&mut self, value: &Value, piece_bytes: usize, bytes_max: usize) -> usize {
        let mut bytes = 0;
        while let Rest::Live(at) = &mut self.rest
            && bytes < bytes_max
        {
            let mut piece = Vec::new();
            let more = dump_piece(value, at, piece_bytes, &mut piece);
            bytes += piece.len();
            self.made.push_back(Arc::new(piece));
            if !more {
                self.rest = Rest::Nothing;
            }
        }
        bytes
    }
}

/// A copy with objects of which a part was copied.
#[derive(Clone, Debug)]
struct Begun {
    /// The number by which the next pieces are requested.
    ticket: u64,
    /// The place at which the copy continues after these objects.
    next: u64,
    /// The approximate size of a piece, in bytes.
    bytes_max: usize,
    large: VecDeque<Large>,
}

/// The unfinished objects of all copies.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    begun: Vec<Begun>,
    last_ticket: u64,
    /// A superset of the keys from which a rest is being read.
    homes: HashSet<Bytes, FxBuildHasher>,
}

impl Frozen {
    /// Drops everything: no copy is in progress, or all keys were deleted.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
        self.homes.clear();
    }

    /// Drops the copies that have an unfinished object in one of the deleted keys; they begin
    /// again.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&[u8]) -> bool) {
        let is_gone = |large: &Large| is_gone(&large.home);
        self.begun.retain(|begun| !begun.large.iter().any(is_gone));
    }

    /// Registers the unfinished objects of a copy, which continues at `next` after them. Returns
    /// its ticket.
    pub(super) fn begin(&mut self, next: u64, bytes_max: usize, large: VecDeque<Large>) -> u64 {
        self.homes.extend(large.iter().map(|large| large.home.clone()));
        self.put(Begun { ticket: 0, next, bytes_max: bytes_max.max(1), large })
    }

    /// Adds unfinished objects to the copy of `ticket`, or registers a new copy if there is none.
    pub(super) fn add(
        &mut self,
        ticket: u64,
        (next, bytes_max): (u64, usize),
        mut large: VecDeque<Large>,
    ) -> u64 {
        let index = self.begun.iter().position(|begun| begun.ticket == ticket);
        let Some(begun) = index.and_then(|index| self.begun.get_mut(index)) else {
            return self.begin(next, bytes_max, large);
        };
        self.homes.extend(large.iter().map(|large| large.home.clone()));
        begun.large.append(&mut large);
        ticket
    }

    /// A second ticket for a clone of the copy of `ticket`; 0 if there is none.
    pub(super) fn fork(&mut self, ticket: u64) -> u64 {
        let Some(begun) = self.begun.iter().find(|begun| begun.ticket == ticket) else { return 0 };
        let begun = begun.clone();
        self.put(begun)
    }

    /// Drops the copy of `ticket`: its rest will not be requested.
    pub(super) fn release(&mut self, ticket: u64) {
        self.begun.retain(|begun| begun.ticket != ticket);
        if self.begun.is_empty() {
            self.homes.clear();
        }
    }

    fn put(&mut self, begun: Begun) -> u64 {
        if self.begun.len() >= BEGUN_MAX {
            self.begun.remove(0);
        }
        self.last_ticket = next_ticket(self.last_ticket);
        self.begun.push(Begun { ticket: self.last_ticket, ..begun });
        self.last_ticket
    }

    /// The objects whose rest is read from this key, each with the approximate size of its pieces.
    fn live(&mut self, home: &[u8]) -> impl Iterator<Item = (&mut Large, usize)> {
        self.begun.iter_mut().flat_map(move |begun| {
            let bytes_max = begun.bytes_max;
            let own = begun.large.iter_mut();
            let own = own.filter(move |l| *l.home == *home && matches!(l.rest, Rest::Live(_)));
            own.map(move |large| (large, bytes_max))
        })
    }

    /// Whether the rest of an object may be in this key. May be true without one.
    #[inline]
    pub(super) fn concerns(&self, key: &[u8]) -> bool {
        !self.homes.is_empty() && self.homes.contains(key)
    }

    /// Encodes the rest of `value` before a write to `key`, up to about `bytes_max` bytes. Returns
    /// whether all of it is encoded.
    pub(super) fn make(&mut self, key: &[u8], value: &Value, bytes_max: usize) -> bool {
        let mut left = bytes_max;
        for (large, piece_bytes) in self.live(key) {
            left = left.saturating_sub(large.make(value, piece_bytes, left));
            if left == 0 && matches!(large.rest, Rest::Live(_)) {
                return false;
            }
        }
        self.homes.remove(key);
        true
    }

    /// There is no such key: no rest is read from it. Returns true, as nothing is left to encode.
    pub(super) fn forget_home(&mut self, key: &[u8]) -> bool {
        self.homes.remove(key);
        true
    }

    /// `key` was deleted or replaced, and had this value.
    pub(super) fn own(&mut self, key: &[u8], value: Value) {
        if !self.concerns(key) {
            return;
        }
        self.homes.remove(key);
        let value = Arc::new(value);
        for (large, _) in self.live(key) {
            if let Rest::Live(at) = large.rest {
                large.rest = Rest::Owned(value.clone(), at);
            }
        }
    }

    /// `key` was renamed to `to`, which did not exist.
    pub(super) fn renamed(&mut self, key: &[u8], to: &[u8]) {
        if !self.concerns(key) {
            return;
        }
        self.homes.remove(key);
        self.homes.insert(to.into());
        for (large, _) in self.live(key) {
            large.home = to.into();
        }
    }

    /// A script removed the value of `key`, which is at this index of its undo list.
    pub(super) fn keep(&mut self, key: &[u8], index: usize) {
        if !self.concerns(key) {
            return;
        }
        self.homes.remove(key);
        for (large, _) in self.live(key) {
            if let Rest::Live(at) = large.rest {
                large.rest = Rest::Undoable(index, at);
            }
        }
    }

    /// The objects whose value is at this index of the undo list.
    fn kept(&mut self, index: usize) -> impl Iterator<Item = (&mut Large, At)> {
        let all = self.begun.iter_mut().flat_map(|begun| begun.large.iter_mut());
        all.filter_map(move |large| match large.rest {
            Rest::Undoable(own, at) if own == index => Some((large, at)),
            Rest::Undoable(..) | Rest::Live(_) | Rest::Owned(..) | Rest::Nothing => None,
        })
    }

    /// The script is undone: the value at this index is in `key` again.
    pub(super) fn give_back(&mut self, index: usize, key: &[u8]) {
        let mut is_any = false;
        for (large, at) in self.kept(index) {
            (large.home, large.rest) = (key.into(), Rest::Live(at));
            is_any = true;
        }
        if is_any {
            self.homes.insert(key.into());
        }
    }

    /// The script has ended, and the value at this index stays removed.
    pub(super) fn own_kept(&mut self, index: usize, value: Value) {
        let value = Arc::new(value);
        for (large, at) in self.kept(index) {
            large.rest = Rest::Owned(value.clone(), at);
        }
    }
}

/// The next pieces of the copy whose ticket is in the cursor `from`; `None` if it was dropped.
pub(super) fn next_piece(store: &mut Store, from: u64) -> Option<Copied> {
    let ticket = ticket_of_cursor(from);
    let index = store.frozen.begun.iter().position(|begun| begun.ticket == ticket)?;
    let mut begun = store.frozen.begun.remove(index);
    let mut copied = Copied::going_on(begun.next);
    while copied.size_bytes() < begun.bytes_max
        && let Some(mut large) = begun.large.pop_front()
    {
        let (left, mut bytes) = (begun.bytes_max - copied.size_bytes(), Vec::new());
        let more = match (large.made.pop_front(), &mut large.rest) {
            (Some(piece), rest) => {
                bytes = Arc::unwrap_or_clone(piece);
                !large.made.is_empty() || !matches!(rest, Rest::Nothing)
            }
            (None, Rest::Live(at)) => dump_piece(store.get(&large.home)?, at, left, &mut bytes),
            (None, Rest::Owned(value, at)) => dump_piece(value, at, left, &mut bytes),
            (None, Rest::Undoable(..) | Rest::Nothing) => return None,
        };
        let piece = Piece { continues: true, more };
        copied.push_piece(&large.key, piece, |out| out.append(&mut bytes));
        if more {
            begun.large.push_front(large);
        }
    }
    if !begun.large.is_empty() {
        copied.next = cursor(place_of_cursor(from), store.frozen.put(begun));
    } else if store.frozen.begun.is_empty() {
        store.frozen.homes.clear();
    }
    Some(copied)
}

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;
