//! Keys that are copied before their place comes ([`mod@crate::copy`]): those of a write whose
//! effect on one key hangs on others. With all its keys copied, whoever copies executes the write
//! as a whole.
//!
//! The keys that a command names are copied in front of it ([`crate::Engine::copy_keys`]). What a
//! script touches is not known before it runs: each key is copied when a script touches it for the
//! first time. Either way a key is copied once in the course of a copy; when another copy begins,
//! all of this begins anew. Of a large key the first piece is in the chunk, and the rest is made as
//! that of any other ([`crate::Engine::copy`]): as it was in front of the write.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::copy::{ABSENT, Copied, Object, PLACE_EARLY, Piece, push, set_next, start_early};

/// What scripts touched, with the keys that had not been copied before, as they were in front of
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Those keys, as a chunk of [`mod@crate::copy`].
    pub chunk: Vec<u8>,
    /// A script looked at all keys, or it cannot be said at which: whoever has some of them only
    /// cannot execute it.
    pub looked_at_all: bool,
}

/// The keys that were copied in the course of the newest copy.
#[derive(Debug)]
pub(crate) struct Early {
    copied: BTreeSet<Vec<u8>>,
    chunk: Vec<u8>,
    /// What is left of the objects of that.
    next: u64,
    looked_at_all: bool,
    /// About how many bytes a chunk has.
    piece_bytes: usize,
}

impl Early {
    pub(crate) fn begin(piece_bytes: usize) -> Early {
        Early {
            copied: BTreeSet::new(),
            chunk: start_early(PLACE_EARLY),
            next: PLACE_EARLY,
            looked_at_all: false,
            piece_bytes,
        }
    }

    pub(crate) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// How many bytes of keys that scripts touch are wanted, and how many in a piece of the rest.
    pub(crate) fn wanted(&self) -> (usize, usize) {
        (self.piece_bytes.saturating_sub(self.chunk.len()), self.piece_bytes)
    }

    /// What is left of the objects that scripts touched since the last call of [`Early::take`].
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether all of these were copied.
    pub(crate) fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.copied.contains(key))
    }

    /// Those of `keys` that were not copied, and are from now on.
    pub(crate) fn take_new(&mut self, mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        keys.retain(|key| self.copied.insert(key.clone()));
        keys
    }

    /// A script touches these keys for the first time, of which the backend has copied those that
    /// are there.
    pub(crate) fn found_all(
        &mut self,
        keys: &[Vec<u8>],
        copied: &Copied,
        deadline_ms: impl Fn(&[u8]) -> Option<u64>,
    ) {
        self.copied.extend(keys.iter().cloned());
        push_all(&mut self.chunk, keys, copied, deadline_ms);
        self.next = copied.next;
    }

    /// A script looks at all keys.
    pub(crate) fn look_at_all(&mut self) {
        self.looked_at_all = true;
    }

    /// What scripts touched since the last call.
    pub(crate) fn take(&mut self) -> Touched {
        let mut chunk = core::mem::replace(&mut self.chunk, start_early(PLACE_EARLY));
        set_next(&mut chunk, core::mem::replace(&mut self.next, PLACE_EARLY));
        Touched { chunk, looked_at_all: core::mem::take(&mut self.looked_at_all) }
    }
}

/// A chunk of these keys, of which the backend has copied those that are there.
pub(crate) fn chunk_of(
    keys: &[Vec<u8>],
    copied: &Copied,
    deadline_ms: impl Fn(&[u8]) -> Option<u64>,
) -> Vec<u8> {
    let mut chunk = start_early(copied.next);
    push_all(&mut chunk, keys, copied, deadline_ms);
    chunk
}

fn push_all(
    chunk: &mut Vec<u8>,
    keys: &[Vec<u8>],
    copied: &Copied,
    deadline_ms: impl Fn(&[u8]) -> Option<u64>,
) {
    for (key, value, piece) in copied.pieces() {
        push(chunk, &Object { key, value, deadline_ms: deadline_ms(key).unwrap_or(0), piece });
    }
    let there: BTreeSet<&[u8]> = copied.objects().map(|(key, _)| key).collect();
    for key in keys.iter().filter(|key| !there.contains(key.as_slice())) {
        let piece = Piece::default();
        push(chunk, &Object { key, value: &[], deadline_ms: ABSENT, piece });
    }
}
