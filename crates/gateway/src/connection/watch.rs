//! WATCH: a read of the digests of its keys, which EXEC names, and which the engine compares
//! (`concord_engine::ttl`).

use alloc::vec::Vec;

use concord_engine::ttl::WATCHED_COMMAND;
use concord_engine::{CommandBuf, resp, resp_scan};

/// Most bytes of keys that a connection watches, and what each takes beside.
const BYTES_MAX: usize = 64 << 10;
const KEY_BYTES: usize = 64;

/// The digest that no key has.
const CHANGED: &[u8] = b"changed";

/// What a connection watches.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Keys, each with its digest when it was watched first.
    seen: Vec<(Vec<u8>, Vec<u8>)>,
    /// WATCHes that are not answered.
    asked: usize,
    /// What all keys take.
    bytes: usize,
    /// The answer to a WATCH was an error.
    failed: bool,
    /// Counts what ended it: what is on its way from before does not count any more.
    number: u64,
}

/// The keys of a WATCH that is not answered.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    keys: Vec<Vec<u8>>,
    number: u64,
}

impl Watch {
    /// Nothing is watched any more.
    pub(crate) fn end(&mut self) {
        *self = Watch { number: self.number + 1, ..Watch::default() };
    }

    /// A WATCH of these keys: what its slot keeps, and what all keys will take; `None` if that is
    /// too much.
    pub(crate) fn begin(&self, keys: &[&[u8]]) -> Option<(Watching, usize)> {
        let bytes = self.bytes + keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>();
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        (bytes <= BYTES_MAX).then_some((Watching { keys, number: self.number }, bytes))
    }

    /// It was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.asked += 1;
        self.bytes = bytes;
    }

    /// A WATCH was not sent, and answered by an error.
    pub(crate) fn refused(&mut self) {
        self.failed = true;
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.asked > 0
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a WATCH was answered.
    pub(crate) fn is_on(&self) -> bool {
        !self.seen.is_empty()
    }

    pub(crate) fn has_seen(&self, key: &[u8]) -> bool {
        self.keys().any(|own| own == key)
    }

    /// Which WATCH counts by now.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The client has read a key that it watches, whose digest was that; empty if nobody knows.
    /// EXEC compares with the digest of when it was watched: if the client has seen another value
    /// since, that must not do, though the key was changed back.
    pub(crate) fn read(&mut self, number: u64, key: &[u8], digest: &[u8]) {
        if number != self.number {
            return;
        }
        let is_there = digest.iter().any(|digit| *digit != b'0');
        for (_, seen) in self.seen.iter_mut().filter(|(own, _)| own == key) {
            // Behind the digest it says when the key is due.
            let value = seen.split(|byte| *byte == b'-').next().unwrap_or_default();
            let same = if is_there { value == digest } else { !digest.is_empty() && value == b"0" };
            if !same {
                *seen = CHANGED.to_vec();
            }
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.seen.iter().map(|(key, _)| key.as_slice())
    }

    /// What EXEC begins with, encoded; `None` if nothing is watched.
    pub(crate) fn encoded(&self) -> Option<Vec<u8>> {
        if self.seen.is_empty() {
            return None;
        }
        let pairs = self.seen.iter().flat_map(|(key, digest)| [key.as_slice(), digest]);
        Some(CommandBuf::new().encode(0, [WATCHED_COMMAND].into_iter().chain(pairs)).to_vec())
    }

    /// The reply to a WATCH, of what the rack answered.
    pub(crate) fn answered(&mut self, watching: &Watching, reply: Vec<u8>) -> Vec<u8> {
        let is_for_this = watching.number == self.number;
        if is_for_this {
            self.asked -= 1;
        }
        if reply.starts_with(b"-") {
            self.failed |= is_for_this;
            return reply;
        }
        for (key, digest) in watching.keys.iter().zip(resp_scan::elements(&reply)) {
            let Some(digest) = resp_scan::text(digest).filter(|_| is_for_this) else { continue };
            if !self.seen.iter().any(|(own, _)| own == key) {
                self.seen.push((key.clone(), digest.to_vec()));
            }
        }
        resp::OK.to_vec()
    }
}
