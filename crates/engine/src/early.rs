//! Keys that are copied before their turn ([`mod@crate::copy`]): those of a write whose effect on
//! one key depends on others. With all its keys copied, the receiver executes the whole write.
//!
//! The keys that a command names are copied before it ([`crate::Engine::copy_keys`]). The keys of a
//! script are not known before it runs: each is copied when a script uses it for the first time.
//! Either way a key is copied at most once in a copy; another copy begins anew. The chunk has the
//! first piece of a large key, and the rest follows as usual ([`crate::Engine::copy`]), as it was
//! before the write.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::copy::{ABSENT, Copied, Object, PLACE_EARLY, Piece, push, set_next, start_early};

/// The keys that scripts used and that had not been copied, as they were before the scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Those keys, as a chunk of [`mod@crate::copy`].
    pub chunk: Vec<u8>,
    /// Whether a script looked at all keys, or it is unknown at which: a receiver with only some of
    /// them cannot execute it.
    pub looked_at_all: bool,
}

/// The keys that were copied in the course of the newest copy.
#[derive(Debug)]
pub(crate) struct Early {
    copied: BTreeSet<Vec<u8>>,
    chunk: Vec<u8>,
    /// The cursor of the rest of those objects.
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

    /// The wanted size of keys that scripts use, and of a piece of the rest, in bytes.
    pub(crate) fn wanted(&self) -> (usize, usize) {
        (self.piece_bytes.saturating_sub(self.chunk.len()), self.piece_bytes)
    }

    /// The cursor of the rest of objects that scripts used since the last [`Early::take`].
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether all of these were copied.
    pub(crate) fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.copied.contains(key))
    }

    /// Those of `keys` that were not copied yet; from now on they count as copied.
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

    /// The keys that scripts used since the last call.
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
