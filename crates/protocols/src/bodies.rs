//! Values of many packets at a replica (trap T17): bodies staged before their write is numbered, and
//! long read replies kept until they were pulled. Both are bounded; what is evicted is asked for or
//! sent again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Instant, RequestNumber, SEC, SessionId};
use concord_wire::COMMAND_BYTES_MAX;
use concord_wire::fragment::{Assembly, FragmentHdr};

/// Most bytes of staged bodies.
pub const STAGED_BYTES_MAX: usize = 64 << 20;
/// Most bytes of kept read replies.
pub const KEPT_BYTES_MAX: usize = 64 << 20;
const AGE_MAX_NS: u64 = 10 * SEC;

type Key = (SessionId, RequestNumber);

/// Bodies that are being put together, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Staging {
    bodies: VecDeque<(Key, Instant, Assembly)>,
    bytes: usize,
}

impl Staging {
    /// Takes a fragment; false if it makes no sense.
    pub fn add(&mut self, now: Instant, key: Key, hdr: &FragmentHdr, payload: &[u8]) -> bool {
        if hdr.total_bytes as usize > COMMAND_BYTES_MAX || hdr.total_bytes == 0 {
            return false;
        }
        if let Some((_, used, body)) = self.bodies.iter_mut().find(|(k, ..)| *k == key)
            && body.version() == hdr.version
            && body.total_bytes() == hdr.total_bytes
        {
            *used = now;
            return body.add(hdr, payload);
        }
        self.remove(key);
        self.make_room(now, hdr.total_bytes as usize);
        let mut body = Assembly::new(*hdr);
        let fits = body.add(hdr, payload);
        if fits {
            self.bytes += hdr.total_bytes as usize;
            self.bodies.push_back((key, now, body));
        }
        fits
    }

    /// The body of a write, if it is whole and the one that the write means.
    #[must_use]
    pub fn whole(&self, key: Key, version: u64) -> Option<&[u8]> {
        let of = |(k, _, b): &&(Key, Instant, Assembly)| *k == key && b.version() == version;
        let (_, _, body) = self.bodies.iter().find(of)?;
        body.is_complete().then(|| body.bytes())
    }

    /// Takes the body of a write out, if it is whole and the one that the write means.
    pub fn take(&mut self, key: Key, version: u64) -> Option<Vec<u8>> {
        let at = self
            .bodies
            .iter()
            .position(|(k, _, b)| *k == key && b.version() == version && b.is_complete())?;
        let (_, _, body) = self.bodies.remove(at)?;
        self.bytes -= body.total_bytes() as usize;
        Some(body.into_bytes())
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.bodies.iter().position(|(k, ..)| *k == key)
            && let Some((_, _, body)) = self.bodies.remove(at)
        {
            self.bytes -= body.total_bytes() as usize;
        }
    }

    fn make_room(&mut self, now: Instant, bytes: usize) {
        while let Some((_, used, body)) = self.bodies.front() {
            if self.bytes + bytes <= STAGED_BYTES_MAX && now.since(*used) < AGE_MAX_NS {
                return;
            }
            self.bytes -= body.total_bytes() as usize;
            self.bodies.pop_front();
        }
    }
}

/// Long read replies that are being pulled, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    replies: VecDeque<(Key, u64, Vec<u8>)>,
    bytes: usize,
    versions: u64,
}

impl Kept {
    /// Keeps a reply and gives it a version.
    pub fn keep(&mut self, key: Key, reply: &[u8]) -> u64 {
        while self.bytes + reply.len() > KEPT_BYTES_MAX {
            let Some((_, _, old)) = self.replies.pop_front() else { break };
            self.bytes -= old.len();
        }
        self.versions += 1;
        self.bytes += reply.len();
        self.replies.push_back((key, self.versions, reply.to_vec()));
        self.versions
    }

    /// The reply of that version, if it is still there.
    #[must_use]
    pub fn reply(&self, key: Key, version: u64) -> Option<&[u8]> {
        let found = self.replies.iter().rev().find(|(k, v, _)| *k == key && *v == version);
        found.map(|(_, _, reply)| reply.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_wire::fragment::FRAGMENT_BYTES;

    #[test]
    fn t17_staged_bodies_are_bounded_and_belong_to_one_write() {
        let mut s = Staging::default();
        let key = |n| (SessionId(1), RequestNumber(n));
        let hdr = FragmentHdr { version: 5, total_bytes: 1 << 20, index: 0, count: 1 };
        for n in 0..100 {
            assert!(s.add(Instant(n), key(n), &hdr, &[0; FRAGMENT_BYTES]));
            assert!(s.bytes <= STAGED_BYTES_MAX);
        }
        let small = FragmentHdr { version: 6, total_bytes: 3, index: 0, count: 1 };
        assert!(s.add(Instant(200), key(1), &small, b"abc"));
        assert_eq!(s.take(key(1), 5), None);
        assert_eq!(s.take(key(1), 6), Some(b"abc".to_vec()));
        assert_eq!(s.take(key(1), 6), None);
        let huge = FragmentHdr { total_bytes: u32::MAX >> 8, ..hdr };
        assert!(!s.add(Instant(201), key(2), &huge, &[0; FRAGMENT_BYTES]));
    }

    #[test]
    fn t17_kept_replies_are_bounded_and_never_mixed() {
        let mut k = Kept::default();
        let key = (SessionId(1), RequestNumber(1));
        let first = k.keep(key, b"one");
        let second = k.keep(key, b"two");
        assert_eq!(k.reply(key, first), Some(&b"one"[..]));
        assert_eq!(k.reply(key, second), Some(&b"two"[..]));
        k.keep(key, &alloc::vec![0; KEPT_BYTES_MAX]);
        assert_eq!(k.reply(key, first), None);
    }
}
