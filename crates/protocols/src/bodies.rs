//! Values of many packets at a replica (trap T17): bodies of writes, staged before the write gets
//! its number, and long read replies, kept until their clients have pulled them. Both are bounded:
//! a transfer in progress keeps its bytes, and a new one is refused if there is no room. A refused
//! client tries again; transfers that their clients have given up make room.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{Instant, MS, RequestNumber, SEC, SessionId};
use concord_wire::COMMAND_BYTES_MAX;
use concord_wire::fragment::{Assembly, FragmentHdr};

/// The largest total size of staged bodies, in bytes.
pub const STAGED_BYTES_MAX: usize = 192 << 20;
/// Those above [`SHORT_BYTES_MAX`] leave the rest of that to others.
const LONG_STAGED_BYTES_MAX: usize = 128 << 20;
const SHORT_BYTES_MAX: usize = (1 << 20) + (64 << 10);
const _: () = assert!(LONG_STAGED_BYTES_MAX >= COMMAND_BYTES_MAX);
/// The largest total size of long read replies, in bytes.
pub const REPLY_CACHE_BYTES_MAX: usize = 64 << 20;
/// A partial body without a new fragment for so long was given up: a client resends a lost fragment
/// every half second at least.
const PARTIAL_AGE_MAX_NS: u64 = 2 * SEC;
/// A complete body waits for its write as long as clients retry.
const WHOLE_AGE_MAX_NS: u64 = 6 * SEC;
/// A reply of which nothing was pulled for so long was given up, or will be requested again.
const KEPT_AGE_MAX_NS: u64 = 2 * SEC;
/// The number of buffers kept for later replies, and the largest buffer that is kept.
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 1 << 20;
/// The interval of the search for abandoned transfers while there is no room.
const SWEEP_NS: u64 = 100 * MS;

type Key = (SessionId, RequestNumber);

#[derive(Clone, Debug)]
struct Staged {
    used_at: Instant,
    body: Assembly,
}

impl Staged {
    fn is_given_up(&self, now: Instant) -> bool {
        let age_max_ns =
            if self.body.is_complete() { WHOLE_AGE_MAX_NS } else { PARTIAL_AGE_MAX_NS };
        now.since(self.used_at) >= age_max_ns
    }
}

/// Bodies of writes, complete or in assembly.
#[derive(Clone, Debug, Default)]
pub struct Staging {
    bodies: BTreeMap<Key, Staged>,
    bytes: usize,
    sweep_at: Instant,
}

/// Why a fragment was not staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The fragment is malformed.
    Malformed,
    /// Other bodies take all the room; the client tries again.
    NoRoom,
}

impl Staging {
    /// Takes a fragment.
    ///
    /// # Errors
    /// [`Refused`]: the fragment was not taken, and the staged bodies are unchanged.
    pub fn add(
        &mut self,
        now: Instant,
        key: Key,
        hdr: &FragmentHdr,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let total_bytes = hdr.total_bytes as usize;
        let is_fragment = payload.len() == hdr.range().len() && !payload.is_empty();
        if total_bytes > COMMAND_BYTES_MAX || !is_fragment {
            return Err(Refused::Malformed);
        }
        if let Some(staged) = self.bodies.get_mut(&key)
            && staged.body.version() == hdr.version
            && staged.body.total_bytes() == hdr.total_bytes
        {
            staged.used_at = now;
            return staged.body.add(hdr, payload).then_some(()).ok_or(Refused::Malformed);
        }
        self.remove(key);
        if !self.has_room(now, total_bytes) {
            return Err(Refused::NoRoom);
        }
        let mut body = Assembly::new(*hdr);
        body.add(hdr, payload);
        self.bytes += total_bytes;
        self.bodies.insert(key, Staged { used_at: now, body });
        Ok(())
    }

    /// The body of a write, if it is whole and the one that the write means.
    #[must_use]
    pub fn whole(&self, key: Key, version: u64) -> Option<&[u8]> {
        let body = &self.bodies.get(&key)?.body;
        (body.version() == version && body.is_complete()).then(|| body.bytes())
    }

    /// Takes the body of a write out, if it is whole and the one that the write means.
    pub fn take(&mut self, key: Key, version: u64) -> Option<Vec<u8>> {
        self.whole(key, version)?;
        self.remove(key).map(Assembly::into_bytes)
    }

    fn remove(&mut self, key: Key) -> Option<Assembly> {
        let Staged { body, .. } = self.bodies.remove(&key)?;
        self.bytes -= body.total_bytes() as usize;
        Some(body)
    }

    fn has_room(&mut self, now: Instant, bytes: usize) -> bool {
        let most = match bytes {
            ..=SHORT_BYTES_MAX => STAGED_BYTES_MAX,
            _ => LONG_STAGED_BYTES_MAX,
        };
        if self.bytes + bytes > most && now >= self.sweep_at {
            self.sweep_at = now.after(SWEEP_NS);
            self.bodies.retain(|_, staged| !staged.is_given_up(now));
            self.bytes = self.bodies.values().map(|s| s.body.total_bytes() as usize).sum();
        }
        self.bytes + bytes <= most
    }
}

#[derive(Clone, Debug)]
struct CachedReply {
    version: u64,
    used_at: Instant,
    reply: Vec<u8>,
}

/// Long read replies that are being pulled, one for each request.
#[derive(Clone, Debug)]
pub struct ReplyCache {
    replies: BTreeMap<Key, CachedReply>,
    bytes: usize,
    last_version: u64,
    sweep_at: Instant,
    /// Buffers for later replies. Where many replies are given up at once, most of the cost of each
    /// is the kernel's zeroing of fresh pages.
    spares: Vec<Vec<u8>>,
}

impl ReplyCache {
    /// An empty cache. Its versions differ from those of every earlier incarnation of the node: a
    /// late fragment of an old reply must not be taken for one of a new reply.
    #[must_use]
    pub fn new(incarnation: u64) -> ReplyCache {
        ReplyCache {
            replies: BTreeMap::new(),
            bytes: 0,
            last_version: splitmix64(incarnation),
            sweep_at: Instant(0),
            spares: Vec::new(),
        }
    }

    /// Keeps a reply and returns its version; `None` if replies that are being pulled leave no
    /// room. A repeated request has one reply: the same one if nothing has changed, otherwise the
    /// newer.
    pub fn keep(&mut self, now: Instant, key: Key, reply: &[u8]) -> Option<u64> {
        if let Some(kept) = self.replies.get_mut(&key)
            && kept.reply == reply
        {
            kept.used_at = now;
            return Some(kept.version);
        }
        self.remove(key);
        if self.bytes + reply.len() > REPLY_CACHE_BYTES_MAX && now >= self.sweep_at {
            self.sweep_at = now.after(SWEEP_NS);
            self.replies.retain(|_, kept| now.since(kept.used_at) < KEPT_AGE_MAX_NS);
            self.bytes = self.replies.values().map(|kept| kept.reply.len()).sum();
        }
        if self.bytes + reply.len() > REPLY_CACHE_BYTES_MAX {
            return None;
        }
        self.last_version = self.last_version.wrapping_add(1);
        self.bytes += reply.len();
        let version = self.last_version;
        let mut own = self.spares.pop().unwrap_or_default();
        own.extend_from_slice(reply);
        self.replies.insert(key, CachedReply { version, used_at: now, reply: own });
        Some(version)
    }

    /// The reply of this version, if it is still here. It counts as being pulled.
    pub fn reply(&mut self, now: Instant, key: Key, version: u64) -> Option<&[u8]> {
        let kept = self.replies.get_mut(&key).filter(|kept| kept.version == version)?;
        kept.used_at = now;
        Some(&kept.reply)
    }

    /// Drops the reply of this version: its client has received it or given it up.
    pub fn release(&mut self, key: Key, version: u64) {
        if self.replies.get(&key).is_some_and(|kept| kept.version == version) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(CachedReply { mut reply, .. }) = self.replies.remove(&key) {
            self.bytes -= reply.len();
            if self.spares.len() < SPARES_MAX && reply.capacity() <= SPARE_BYTES_MAX {
                reply.clear();
                self.spares.push(reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_wire::fragment::FRAGMENT_BYTES;

    fn key(n: u64) -> Key {
        (SessionId(1), RequestNumber(n))
    }

    const BODY: FragmentHdr = FragmentHdr { version: 5, total_bytes: 1 << 20, index: 0, count: 1 };

    #[test]
    fn t17_staged_bodies_are_bounded_and_belong_to_one_write() {
        let mut s = Staging::default();
        for n in 0..100 {
            let _ = s.add(Instant(n), key(n), &BODY, &[0; FRAGMENT_BYTES]);
            assert!(s.bytes <= STAGED_BYTES_MAX);
        }
        let small = FragmentHdr { version: 6, total_bytes: 3, index: 0, count: 1 };
        assert_eq!(s.add(Instant(200), key(1), &small, b"abc"), Ok(()));
        assert_eq!(s.take(key(1), 5), None);
        assert_eq!(s.take(key(1), 6), Some(b"abc".to_vec()));
        assert_eq!(s.take(key(1), 6), None);
        let huge = FragmentHdr { total_bytes: COMMAND_BYTES_MAX as u32 + 1, ..BODY };
        let refused = s.add(Instant(201), key(2), &huge, &[0; FRAGMENT_BYTES]);
        assert_eq!(refused, Err(Refused::Malformed));
    }

    /// Bodies of many MiB leave room for shorter ones.
    #[test]
    fn bug_22_156_huge_bodies_leave_room() {
        let mut s = Staging::default();
        let mut add = |n, total_bytes: usize| {
            let hdr = FragmentHdr { total_bytes: total_bytes as u32, ..BODY };
            s.add(Instant(0), key(n), &hdr, &[0; FRAGMENT_BYTES])
        };
        let huge = LONG_STAGED_BYTES_MAX / 2;
        assert_eq!([1, 2, 3].map(|n| add(n, huge).is_ok()), [true, true, false]);
        let room = (STAGED_BYTES_MAX - 2 * huge) / SHORT_BYTES_MAX;
        assert!((0..room as u64).all(|n| add(10 + n, SHORT_BYTES_MAX).is_ok()));
        assert_eq!(add(9, SHORT_BYTES_MAX), Err(Refused::NoRoom));
    }

    /// A body under way is not given up for another but an abandoned one is.
    #[test]
    fn bug_15_4_body_in_flight_is_not_given_up() {
        let mut s = Staging::default();
        let mut add = |ns, n, index| {
            let hdr = FragmentHdr { index, ..BODY };
            s.add(Instant(ns), key(n), &hdr, &[0; FRAGMENT_BYTES])
        };
        let count = (STAGED_BYTES_MAX / BODY.total_bytes as usize) as u64;
        for n in 0..count {
            assert_eq!(add(n, n, 0), Ok(()));
        }
        assert_eq!(add(count, count, 0), Err(Refused::NoRoom));
        // All but the first go on; the first was given up, and makes room for one.
        for n in 1..count {
            assert_eq!(add(SEC, n, 1), Ok(()));
        }
        let later = PARTIAL_AGE_MAX_NS + SWEEP_NS;
        assert_eq!(add(later, count, 0), Ok(()));
        assert_eq!(add(later, count + 1, 0), Err(Refused::NoRoom));
        assert_eq!(add(later, 1, 2), Ok(()));
    }

    #[test]
    fn t17_kept_replies_are_bounded_and_never_mixed() {
        let mut k = ReplyCache::new(1);
        let first = k.keep(Instant(0), key(1), b"one").unwrap();
        let second = k.keep(Instant(0), key(1), b"two").unwrap();
        assert_eq!(k.reply(Instant(0), key(1), second), Some(&b"two"[..]));
        assert_eq!(k.reply(Instant(0), key(1), first), None);
        assert_eq!(k.keep(Instant(0), key(1), b"two"), Some(second), "a retry disturbs nobody");
        assert_eq!(k.keep(Instant(0), key(2), &alloc::vec![0; REPLY_CACHE_BYTES_MAX]), None);
        k.release(key(1), first);
        assert_eq!(k.reply(Instant(0), key(1), second), Some(&b"two"[..]));
        k.release(key(1), second);
        assert!(k.keep(Instant(0), key(2), &alloc::vec![0; REPLY_CACHE_BYTES_MAX]).is_some());
    }

    /// A reply that is pulled is not given up for another but an abandoned one is.
    #[test]
    fn bug_15_4_reply_in_flight_is_not_given_up() {
        let mut k = ReplyCache::new(1);
        let half = alloc::vec![0; REPLY_CACHE_BYTES_MAX / 2];
        let first = k.keep(Instant(0), key(1), &half).unwrap();
        let second = k.keep(Instant(0), key(2), &half).unwrap();
        assert_eq!(k.keep(Instant(0), key(3), b"new"), None);
        assert!(k.reply(Instant(SEC), key(1), first).is_some());
        assert!(k.keep(Instant(KEPT_AGE_MAX_NS), key(3), b"new").is_some());
        assert!(k.reply(Instant(KEPT_AGE_MAX_NS), key(1), first).is_some());
        assert_eq!(k.reply(Instant(KEPT_AGE_MAX_NS), key(2), second), None);
    }

    /// A fragment of an earlier incarnation is of no reply of this one.
    #[test]
    fn bug_15_13_fragment_of_an_earlier_incarnation() {
        let mut crash_vector = [ReplyCache::new(10), ReplyCache::new(11)];
        let versions = crash_vector.each_mut().map(|entry| {
            (0..100u8).map(|n| entry.keep(Instant(0), key(1), &[n]).unwrap()).collect::<Vec<_>>()
        });
        assert!(versions[0].iter().all(|version| !versions[1].contains(version)));
    }

    #[test]
    fn a_reply_that_was_released_leaves_its_buffer_to_the_next_one() {
        let mut k = ReplyCache::new(1);
        let first = k.keep(Instant(0), key(1), b"a first reply").unwrap();
        let buffer = k.reply(Instant(0), key(1), first).unwrap().as_ptr();
        k.release(key(1), first);
        let second = k.keep(Instant(0), key(2), b"a second one").unwrap();
        let reply = k.reply(Instant(0), key(2), second).unwrap();
        assert_eq!((reply.as_ptr(), reply), (buffer, &b"a second one"[..]));
        // A long one's is given back, and there are not many.
        let long = k.keep(Instant(0), key(3), &alloc::vec![0; SPARE_BYTES_MAX + 1]).unwrap();
        k.release(key(3), long);
        assert!(k.spares.is_empty());
        for n in 0..2 * SPARES_MAX as u64 {
            k.keep(Instant(0), key(n), b"short").unwrap();
        }
        for n in 0..2 * SPARES_MAX as u64 {
            k.remove(key(n));
        }
        assert_eq!((k.spares.len(), k.bytes), (SPARES_MAX, 0));
    }

    /// A whole body waits for its write longer than a part of one.
    #[test]
    fn bug_15_4_complete_body_waits_longer_than_a_part() {
        let whole = FragmentHdr { version: 5, total_bytes: 3, index: 0, count: 1 };
        for (at, is_there) in [(WHOLE_AGE_MAX_NS - 1, true), (WHOLE_AGE_MAX_NS, false)] {
            let mut s = Staging::default();
            let count = (STAGED_BYTES_MAX / BODY.total_bytes as usize) as u64;
            assert_eq!(s.add(Instant(0), key(0), &whole, b"abc"), Ok(()));
            for n in 1..count {
                assert_eq!(s.add(Instant(SEC), key(n), &BODY, &[0; FRAGMENT_BYTES]), Ok(()));
            }
            // There is no room for one more, so that what was given up is looked for.
            assert_eq!(s.add(Instant(at), key(count), &BODY, &[0; FRAGMENT_BYTES]), Ok(()));
            assert_eq!(s.whole(key(0), 5).is_some(), is_there);
            assert_eq!(s.whole(key(count), 5), None, "not all of it is there");
        }
    }

    #[test]
    fn fragments_that_make_no_sense_are_refused_and_disturb_nothing() {
        let mut s = Staging::default();
        let two =
            FragmentHdr { version: 5, total_bytes: FRAGMENT_BYTES as u32 + 2, index: 0, count: 1 };
        assert_eq!(s.add(Instant(0), key(1), &two, &[1; FRAGMENT_BYTES]), Ok(()));
        let second = FragmentHdr { index: 1, ..two };
        for (hdr, payload) in [(second, &b"abc"[..]), (second, b""), (two, b"ab")] {
            assert_eq!(s.add(Instant(0), key(1), &hdr, payload), Err(Refused::Malformed));
        }
        assert_eq!(s.whole(key(1), 5), None);
        assert_eq!(s.add(Instant(0), key(1), &second, b"ab"), Ok(()));
        assert_eq!(s.whole(key(1), 5).map(<[u8]>::len), Some(FRAGMENT_BYTES + 2));
        // Another version of the body takes the place of the first, and its bytes.
        let before = s.bytes;
        assert_eq!(
            s.add(Instant(0), key(1), &FragmentHdr { version: 6, ..two }, &[1; FRAGMENT_BYTES]),
            Ok(())
        );
        assert_eq!((s.bytes, s.whole(key(1), 5), s.whole(key(1), 6)), (before, None, None));
    }
}
