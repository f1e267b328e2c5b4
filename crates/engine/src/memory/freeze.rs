//! Objects that are copied in pieces ([`mod@crate::copy`]): what is left of each, as it was when
//! its first piece was made.
//!
//! The rest of an object is read where it stands, piece by piece, for as long as nobody writes to
//! it. The first write has the rest made before it: that is the one step that takes time by the
//! size of an object. A key that is deleted or replaced leaves its value here. Where all keys go,
//! so does what is here, and whoever copies begins again.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::dump::{At, dump_piece};
use super::store::{Store, Value};
use crate::copy::{Copied, Piece, cursor, next_ticket, place_of_cursor, ticket_of_cursor};

/// Most copies at once that have an object under way: that of the own disk, and those of replicas
/// that join. The oldest goes, and begins again.
const COPIES_MAX: usize = 8;

/// Where the rest of an object is.
#[derive(Debug)]
enum Rest {
    /// In its key, from there on.
    Live(At),
    /// Here: the key is gone.
    Owned(Arc<Value>, At),
    /// Here: the key was written to.
    Made(VecDeque<Vec<u8>>),
}

/// An object that is under way.
#[derive(Debug)]
pub(super) struct Large {
    key: Box<[u8]>,
    rest: Rest,
}

impl Large {
    /// The object at `key`, of which everything up to `at` was copied.
    pub(super) fn begun(key: &[u8], at: At) -> Large {
        Large { key: key.into(), rest: Rest::Live(at) }
    }
}

/// A copy that has objects under way.
#[derive(Debug)]
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
}

impl Frozen {
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Nobody copies any more, or all keys are gone.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
    }

    /// Keys are gone: copies that have one of them under way begin again.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&[u8]) -> bool) {
        self.begun.retain(|begun| !begun.large.iter().any(|large| is_gone(&large.key)));
    }

    /// `large` is under way; behind it the copy goes on at `next`. The ticket.
    pub(super) fn begin(&mut self, next: u64, bytes_max: usize, large: VecDeque<Large>) -> u64 {
        if self.begun.len() >= COPIES_MAX {
            self.begun.remove(0);
        }
        self.put(Begun { ticket: 0, next, bytes_max, large })
    }

    fn put(&mut self, begun: Begun) -> u64 {
        self.last_ticket = next_ticket(self.last_ticket);
        self.begun.push(Begun { ticket: self.last_ticket, ..begun });
        self.last_ticket
    }

    /// What is live of `key`.
    fn live(&mut self, key: &[u8]) -> impl Iterator<Item = (&mut Rest, usize)> {
        self.begun.iter_mut().flat_map(move |begun| {
            let bytes_max = begun.bytes_max;
            let own = begun.large.iter_mut();
            let own = own.filter(move |l| *l.key == *key && matches!(l.rest, Rest::Live(_)));
            own.map(move |large| (&mut large.rest, bytes_max))
        })
    }

    /// Whether `key` is under way, and its value where it was.
    pub(super) fn concerns(&self, key: &[u8]) -> bool {
        let mut all = self.begun.iter().flat_map(|begun| &begun.large);
        all.any(|large| *large.key == *key && matches!(large.rest, Rest::Live(_)))
    }

    /// `key` is about to be written to: what is left of its `value` is made.
    pub(super) fn make(&mut self, key: &[u8], value: &Value) {
        for (rest, bytes_max) in self.live(key) {
            let Rest::Live(at) = rest else { continue };
            let mut pieces = VecDeque::new();
            loop {
                let mut piece = Vec::new();
                let more = dump_piece(value, at, bytes_max, &mut piece);
                pieces.push_back(piece);
                if !more {
                    break;
                }
            }
            *rest = Rest::Made(pieces);
        }
    }

    /// `key` is gone, and had this value.
    pub(super) fn own(&mut self, key: &[u8], value: Value) {
        let value = Arc::new(value);
        for (rest, _) in self.live(key) {
            if let Rest::Live(at) = rest {
                *rest = Rest::Owned(value.clone(), *at);
            }
        }
    }
}

/// The next piece of what the cursor `from` has a ticket of; `None` if there is no such thing any
/// more.
pub(super) fn next_piece(store: &mut Store, from: u64) -> Option<Copied> {
    let ticket = ticket_of_cursor(from);
    let index = store.frozen.begun.iter().position(|begun| begun.ticket == ticket)?;
    let mut begun = store.frozen.begun.remove(index);
    let mut large = begun.large.pop_front()?;
    let mut bytes = Vec::new();
    let more = match &mut large.rest {
        Rest::Live(at) => dump_piece(store.get(&large.key)?, at, begun.bytes_max, &mut bytes),
        Rest::Owned(value, at) => dump_piece(value, at, begun.bytes_max, &mut bytes),
        Rest::Made(pieces) => {
            bytes = pieces.pop_front()?;
            !pieces.is_empty()
        }
    };
    let mut copied = Copied::going_on(begun.next);
    let piece = Piece { continues: true, more };
    copied.push_piece(&large.key, piece, |out| out.append(&mut bytes));
    if more {
        begun.large.push_front(large);
    }
    if !begun.large.is_empty() {
        copied.next = cursor(place_of_cursor(from), store.frozen.put(begun));
    }
    Some(copied)
}
