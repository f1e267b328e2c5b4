//! Objects that are copied in pieces ([`mod@crate::copy`]): what is left of each, as it was when
//! its first piece was made.
//!
//! The rest of an object is read where it stands, piece by piece, for as long as nobody writes to
//! it. The first write has the rest made before it: of a large object slice by slice, while the
//! write waits ([`crate::Backend::make_ready`]). A key that is deleted or replaced leaves its
//! value here; one that is renamed is read under its new name. What a script takes away stays with
//! what can be undone until the script has ended: then it is here, or it is back in its key. No
//! piece is asked for while a script runs. Where all keys go, so does what is here, and whoever
//! copies begins again.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::dump::{At, dump_piece};
use super::store::{Bytes, Store, Value};
use crate::copy::{Copied, Piece, cursor, next_ticket, place_of_cursor, ticket_of_cursor};

/// Most copies at once that have objects under way. The oldest goes, and begins again.
const BEGUN_MAX: usize = 256;

/// Where the rest of an object is.
#[derive(Clone, Debug)]
enum Rest {
    /// In its key, from there on.
    Live(At),
    /// In what a script that is running can undo, under this number.
    Undoable(usize, At),
    /// Here: the key is gone.
    Owned(Arc<Value>, At),
    /// It is made.
    Nothing,
}

/// An object that is under way.
#[derive(Clone, Debug)]
pub(super) struct Large {
    /// The name by which it is copied.
    key: Bytes,
    /// The key that holds the value now.
    home: Bytes,
    /// Pieces that are made already: they come first.
    made: VecDeque<Arc<Vec<u8>>>,
    rest: Rest,
}

impl Large {
    /// The object at `key`, of which everything up to `at` was copied.
    pub(super) fn begun(key: &[u8], at: At) -> Large {
        let (key, made) = (Bytes::from(key), VecDeque::new());
        Large { home: key.clone(), key, made, rest: Rest::Live(at) }
    }

    /// Makes pieces of what is left, of `value`, until there are so many bytes of them; how many
    /// there are.
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

/// A copy that has objects under way.
#[derive(Clone, Debug)]
struct Begun {
    /// The rest is asked for by this.
    ticket: u64,
    /// Where the copy goes on behind them.
    next: u64,
    /// About how many bytes a piece has.
    bytes_max: usize,
    large: VecDeque<Large>,
}

/// All that is under way.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    begun: Vec<Begun>,
    last_ticket: u64,
    /// Keys that hold a value of which a rest is read there, and perhaps others.
    homes: HashSet<Bytes, FxBuildHasher>,
}

impl Frozen {
    /// Nobody copies any more, or all keys are gone.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
        self.homes.clear();
    }

    /// Keys are gone: copies that have one of them under way begin again.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&[u8]) -> bool) {
        let is_gone = |large: &Large| is_gone(&large.home);
        self.begun.retain(|begun| !begun.large.iter().any(is_gone));
    }

    /// `large` is under way; behind it the copy goes on at `next`. The ticket.
    pub(super) fn begin(&mut self, next: u64, bytes_max: usize, large: VecDeque<Large>) -> u64 {
        self.homes.extend(large.iter().map(|large| large.home.clone()));
        self.put(Begun { ticket: 0, next, bytes_max: bytes_max.max(1), large })
    }

    /// The same, together with what is under way by `ticket`, if that is not 0.
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

    /// Another ticket for what is under way by this one; 0 if nothing is.
    pub(super) fn fork(&mut self, ticket: u64) -> u64 {
        let Some(begun) = self.begun.iter().find(|begun| begun.ticket == ticket) else { return 0 };
        let begun = begun.clone();
        self.put(begun)
    }

    /// Nobody will ask for the rest by this ticket.
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

    /// What is read in this key, and about how many bytes a piece of it has.
    fn live(&mut self, home: &[u8]) -> impl Iterator<Item = (&mut Large, usize)> {
        self.begun.iter_mut().flat_map(move |begun| {
            let bytes_max = begun.bytes_max;
            let own = begun.large.iter_mut();
            let own = own.filter(move |l| *l.home == *home && matches!(l.rest, Rest::Live(_)));
            own.map(move |large| (large, bytes_max))
        })
    }

    /// Whether a rest may be read in this key.
    #[inline]
    pub(super) fn concerns(&self, key: &[u8]) -> bool {
        !self.homes.is_empty() && self.homes.contains(key)
    }

    /// `key` is about to be written to: what is left of its `value` is made, until there are about
    /// so many bytes of it. Whether all is made.
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

    /// `key` is gone, and had this value.
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

    /// `key` has another name now, which held nothing.
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

    /// A script took the value of `key` away, which is kept under this number.
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

    /// What is kept under this number.
    fn kept(&mut self, index: usize) -> impl Iterator<Item = (&mut Large, At)> {
        let all = self.begun.iter_mut().flat_map(|begun| begun.large.iter_mut());
        all.filter_map(move |large| match large.rest {
            Rest::Undoable(own, at) if own == index => Some((large, at)),
            Rest::Undoable(..) | Rest::Live(_) | Rest::Owned(..) | Rest::Nothing => None,
        })
    }

    /// The script is undone: that value is in `key` again.
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

    /// The script has ended, and that value is gone.
    pub(super) fn own_kept(&mut self, index: usize, value: Value) {
        let value = Arc::new(value);
        for (large, at) in self.kept(index) {
            large.rest = Rest::Owned(value.clone(), at);
        }
    }
}

/// The next pieces of what the cursor `from` has a ticket of; `None` if there is no such thing any
/// more.
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
