//! WATCH: reads the digests of its keys, which EXEC contains, and which the engine compares
//! (`concord_engine::ttl`).

use alloc::vec::Vec;

use concord_engine::ttl::WATCHED_COMMAND;
use concord_engine::{CommandBuf, resp, resp_scan};

/// The bytes of keys that a connection may watch, and the overhead of each key.
const BYTES_MAX: usize = 64 << 10;
const KEY_BYTES: usize = 64;

/// A digest that no key has.
const CHANGED: &[u8] = b"changed";

/// The watched keys of a connection.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The keys, each with its digest when it was first watched.
    seen: Vec<(Vec<u8>, Vec<u8>)>,
    /// The number of unanswered WATCHes.
    asked: usize,
    /// The bytes of all keys.
    bytes: usize,
    /// Whether the answer to a WATCH was an error.
    failed: bool,
    /// Counts the times that watching ended: answers from before do not count any more.
    number: u64,
}

/// The keys of an unanswered WATCH.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    keys: Vec<Vec<u8>>,
    number: u64,
}

impl Watch {
    /// Ends the watching of all keys.
    pub(crate) fn end(&mut self) {
        *self = Watch { number: self.number + 1, ..Watch::default() };
    }

    /// Begins a WATCH of these keys: returns its data for the slot, and the bytes of all keys with
    /// it; `None` if these are too many.
    pub(crate) fn begin(&self, keys: &[&[u8]]) -> Option<(Watching, usize)> {
        let bytes = self.bytes + keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>();
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        (bytes <= BYTES_MAX).then_some((Watching { keys, number: self.number }, bytes))
    }

    /// Notes that it was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.asked += 1;
        self.bytes = bytes;
    }

    /// Notes that a WATCH was not sent, but answered with an error.
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

    /// The number of the current watching.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The client has read a watched key, whose digest was `digest`; empty if unknown. EXEC
    /// compares with the digest of the first WATCH: if the client has seen another value since,
    /// EXEC must fail, even if the key was changed back.
    pub(crate) fn read(&mut self, number: u64, key: &[u8], digest: &[u8]) {
        if number != self.number {
            return;
        }
        let is_there = digest.iter().any(|digit| *digit != b'0');
        for (_, seen) in self.seen.iter_mut().filter(|(own, _)| own == key) {
            // The time at which the key expires follows the digest.
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

    /// The beginning of EXEC, encoded; `None` if nothing is watched.
    pub(crate) fn encoded(&self) -> Option<Vec<u8>> {
        if self.seen.is_empty() {
            return None;
        }
        let pairs = self.seen.iter().flat_map(|(key, digest)| [key.as_slice(), digest]);
        Some(CommandBuf::new().encode(0, [WATCHED_COMMAND].into_iter().chain(pairs)).to_vec())
    }

    /// The reply to a WATCH, from the rack's answer.
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
