//! Keys that are copied before their place comes ([`mod@crate::copy`]): those of a write whose
//! effect on one key hangs on others. With all its keys copied, whoever copies executes the write
//! as a whole.
//!
//! The keys that a command names are copied in front of it ([`crate::Engine::copy_keys`]). What a
//! script touches is not known before it runs: each key is copied when a script touches it for the
//! first time. Either way a key is copied once in the course of a copy; when another copy begins,
//! all of this begins anew.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::copy::{ABSENT, Copied, Object, push, start_early};

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
    looked_at_all: bool,
}

impl Early {
    pub(crate) fn begin() -> Early {
        Early { copied: BTreeSet::new(), chunk: start_early(), looked_at_all: false }
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

    /// A script touches this key for the first time.
    pub(crate) fn found(&mut self, key: &[u8], value: Option<&[u8]>, deadline_ms: Option<u64>) {
        self.copied.insert(key.to_vec());
        push_early(&mut self.chunk, key, value, deadline_ms);
    }

    /// A script looks at all keys.
    pub(crate) fn look_at_all(&mut self) {
        self.looked_at_all = true;
    }

    /// What scripts touched since the last call.
    pub(crate) fn take(&mut self) -> Touched {
        let chunk = core::mem::replace(&mut self.chunk, start_early());
        Touched { chunk, looked_at_all: core::mem::take(&mut self.looked_at_all) }
    }
}

/// A chunk of these keys, of which the backend has copied those that are there.
pub(crate) fn chunk_of(
    keys: &[Vec<u8>],
    copied: &Copied,
    deadline_ms: impl Fn(&[u8]) -> Option<u64>,
) -> Vec<u8> {
    let mut chunk = start_early();
    for (key, value) in copied.objects() {
        push_early(&mut chunk, key, Some(value), deadline_ms(key));
    }
    let there: BTreeSet<&[u8]> = copied.objects().map(|(key, _)| key).collect();
    for key in keys.iter().filter(|key| !there.contains(key.as_slice())) {
        push_early(&mut chunk, key, None, None);
    }
    chunk
}

fn push_early(chunk: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>, deadline_ms: Option<u64>) {
    let (value, deadline_ms) = match value {
        Some(value) => (value, deadline_ms.unwrap_or(0)),
        None => (&[][..], ABSENT),
    };
    push(chunk, &Object { key, value, deadline_ms });
}
