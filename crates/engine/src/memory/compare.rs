//! Digests of bounded parts of the key space ([`crate::digest`]).
//!
//! The bounds depend on nothing but the state itself, so that all replicas that hold the same make
//! the same digest: a part has as many shards as it takes for [`KEYS_WANTED`] keys, and its large
//! values share the bytes that small ones leave of [`BYTES_MAX`]. Of a value that is larger than
//! its share only a window is covered, beside its length; the salt moves it, so that later digests
//! cover the rest. A window that reaches the end goes on at the beginning: all bytes and elements
//! are as likely to be covered.

use alloc::vec::Vec;

use concord_core::hash::hash64;

use super::dump::{At, dump_piece};
use super::store::{Bytes, SHARDS, Store, Value};
use crate::digest::{PLACES, RangeDigest};

/// A part ends after the shard with which it has so many keys. A shard is never divided: of 100
/// million keys it has 24,000.
const KEYS_WANTED: usize = 1_024;
/// The size of the values that one digest covers, in bytes, if there are no more keys than that.
const BYTES_MAX: usize = 1 << 20;
/// The size up to which a value is small, and the least that is covered of an element, in bytes.
const SMALL_BYTES: usize = 256;
const ELEMENT_BYTES_MIN: usize = 64;

const _: () = assert!(PLACES as usize == SHARDS);

impl Store {
    /// The digest of the shards from `first` on. Time: one lookup for each key, and the hashes of
    /// about [`BYTES_MAX`] bytes.
    pub(super) fn digest_range(
        &self,
        first: u16,
        salt: u64,
        deadline: &dyn Fn(&[u8]) -> Option<u64>,
    ) -> RangeDigest {
        let first = usize::from(first).min(SHARDS);
        let (mut end, mut keys) = (first, 0);
        while end < SHARDS && keys < KEYS_WANTED {
            keys += self.shard_len(end);
            end += 1;
        }
        let values = || (first..end).flat_map(|shard| self.shard(shard));
        let share = share_of_large(values().map(|(_, value)| value.size_bytes() as usize));
        let mut digest = 0u64;
        for (key, value) in values() {
            let due_ms = deadline(key).map_or(0, |ms| ms.wrapping_add(1));
            let of_key = hash64(due_ms, key);
            // The order of a shard's keys depends on its history.
            digest = digest.wrapping_add(of_value(value, share, salt ^ of_key, of_key));
        }
        RangeDigest { first: first as u16, end: end as u16, keys: keys as u32, digest }
    }

    /// For tests: damages the value of one key; its shard.
    pub(super) fn damage(&mut self, which: u64) -> Option<u16> {
        let count = self.count();
        let key = self.key_at(which.checked_rem(count)?)?.to_vec();
        let changed = self.write(&key, |own: &mut Bytes| match own.first_mut() {
            Some(byte) => *byte ^= 1,
            None => own.push(b'?'),
        });
        if changed.is_err() {
            self.set_string(&key, b"?");
        }
        Some(Store::shard_of(&key) as u16)
    }
}

/// The bytes that a digest covers of each value, given the sizes of all.
fn share_of_large(sizes: impl Iterator<Item = usize>) -> usize {
    let (mut bytes, mut large) = (0, 0);
    for size in sizes {
        bytes += size.min(SMALL_BYTES);
        large += usize::from(size > SMALL_BYTES);
    }
    SMALL_BYTES + BYTES_MAX.saturating_sub(bytes) / large.max(1)
}

/// The digest of about `share` bytes of a value, or one element; `salt` chooses which.
fn of_value(value: &Value, share: usize, salt: u64, seed: u64) -> u64 {
    let mut digest = Window { left: share, salt, digest: seed };
    let is_whole = value.size_bytes() as usize <= share;
    let from = |length: usize| if is_whole { 0 } else { (salt % length.max(1) as u64) as usize };
    match value {
        Value::String(bytes) => {
            digest.add_length(0, bytes.len());
            digest.add(bytes);
        }
        Value::Hash(hash) => {
            let map = hash.map();
            digest.add_length(1, map.len());
            let rest = around(from(map.len()), map.len()).map_while(|index| map.get_index(index));
            digest.add_all(rest.map(|(field, value)| (0, &**field, Some(&**value))));
        }
        Value::List(list) => {
            let items = list.items();
            digest.add_length(2, items.len());
            let first = from(items.len());
            let rest = items.range(first..).chain(items.range(..first));
            digest.add_all(rest.map(|item| (0, &**item, None)));
        }
        Value::Set(set) => {
            let members = set.members();
            digest.add_length(3, members.len());
            let rest = around(from(members.len()), members.len());
            let rest = rest.map_while(|at| members.get_index(at));
            digest.add_all(rest.map(|member| (0, &**member, None)));
        }
        Value::Sorted(sorted) => {
            digest.add_length(4, sorted.len());
            let first = from(sorted.len());
            let rest = sorted.iter_from(first).chain(sorted.iter_from(0).take(first));
            digest.add_all(rest.map(|own| (own.score.to_bits(), &*own.member, None)));
        }
        Value::Stream(stream) => {
            let blocks = stream.blocks.len();
            digest.add_length(5, blocks);
            // From one of the blocks on, or from the groups on.
            let (mut at, mut out) = (At::after(from(blocks + 1)), Vec::new());
            dump_piece(value, &mut at, share, &mut out);
            digest.left = usize::MAX;
            digest.add(&out);
        }
    }
    digest.digest
}

/// All of `0..length`, from `first` on and then from 0.
fn around(first: usize, length: usize) -> impl Iterator<Item = usize> {
    (first..length).chain(0..first)
}

/// The part of a value that a digest covers.
struct Window {
    /// The number of bytes that it may still cover.
    left: usize,
    salt: u64,
    digest: u64,
}

impl Window {
    fn add_length(&mut self, kind: u64, length: usize) {
        self.digest = hash64(self.digest ^ kind, &(length as u64).to_be_bytes());
    }

    /// Adds a string, or a window of it.
    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(self.left.max(ELEMENT_BYTES_MIN));
        let is_whole = length == bytes.len();
        let first = if is_whole { 0 } else { (self.salt % bytes.len() as u64) as usize };
        let end = bytes.len().min(first + length);
        self.add_length(0, bytes.len());
        self.digest = hash64(self.digest, &bytes[first..end]);
        self.digest = hash64(self.digest, &bytes[..first + length - end]);
        // An element costs something beside its bytes.
        self.left = self.left.saturating_sub(length + ELEMENT_BYTES_MIN);
    }

    /// Adds elements, at least one: a number and one or two strings each.
    fn add_all<'a>(&mut self, elements: impl Iterator<Item = (u64, &'a [u8], Option<&'a [u8]>)>) {
        for (number, one, other) in elements {
            self.digest ^= number;
            self.add(one);
            if let Some(other) = other {
                self.add(other);
            }
            if self.left == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use concord_core::rng::Rng;

    use super::*;
    use crate::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

    type Own = Shimmed<Memory>;

    fn run(engine: &mut Own, args: &[&[u8]]) {
        let mut buf = CommandBuf::new();
        let bytes = buf.encode(1, args.iter().copied());
        let context = Context { now_ms: 1, position: 1, entropy: 7, ..Context::default() };
        let command = Command::parse(bytes).unwrap();
        let mut reply = Vec::new();
        assert_eq!(engine.submit(&context, Class::Write, &command, &mut reply), Progress::Done);
        assert_ne!(reply.first(), Some(&b'-'), "{:?}", String::from_utf8_lossy(&reply));
    }

    fn line(engine: &mut Own, line: &str) {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        run(engine, &args);
    }

    /// All parts, one after the other.
    fn round(engine: &Own, salt: u64) -> Vec<RangeDigest> {
        let (mut first, mut all) = (0, Vec::new());
        while first < PLACES {
            let range = engine.digest_range(first, salt).unwrap();
            assert!(range.first == first && range.end > first);
            first = range.end;
            all.push(range);
        }
        all
    }

    fn filled(keys: u64) -> Own {
        let mut engine = Shimmed::new(Memory::new(0));
        for n in 0..keys {
            line(&mut engine, &format!("SET key:{n} value:{n}"));
        }
        engine
    }

    /// The first byte of a long string and the first element of a long list are covered as often as
    /// others: by the share of the value that a digest covers, here a quarter.
    #[test]
    fn windows_cover_the_beginning_as_often_as_the_rest() {
        let long = alloc::vec![b'a'; 4 * BYTES_MAX];
        let elements: Vec<Vec<u8>> =
            (0..4 * BYTES_MAX / 1_024).map(|_| alloc::vec![b'e'; 960]).collect();
        let (mut a, mut b) = (Shimmed::new(Memory::new(0)), Shimmed::new(Memory::new(0)));
        for engine in [&mut a, &mut b] {
            run(engine, &[b"SET", b"s", &long]);
            for part in elements.chunks(64) {
                let args: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
                run(engine, &[&[b"RPUSH".as_slice(), b"l"], &args[..]].concat());
            }
        }
        for change in ["SETRANGE s 0 b", "LSET l 0 b"] {
            line(&mut b, change);
            let differ = |salt: &u64| round(&a, *salt) != round(&b, *salt);
            let found = (1..=400u64).filter(|n| differ(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let found = found.count();
            assert!((20..=200).contains(&found), "{change}: {found} of 400");
            line(&mut b, if change.starts_with('S') { "SETRANGE s 0 a" } else { "LSET l 0 b" });
        }
    }

    /// The parts of a round cover each key once, and each has at most a shard more than it should.
    #[test]
    fn parts_cover_all_keys_and_are_bounded() {
        for keys in [0, 1, 5_000, 50_000] {
            let all = round(&filled(keys), 3);
            let sum: u64 = all.iter().map(|range| u64::from(range.keys)).sum();
            assert_eq!((sum, all[all.len() - 1].end), (keys, PLACES));
            assert!(all.iter().all(|range| range.keys < KEYS_WANTED as u32 + 100));
            assert!(all.len() <= keys as usize / KEYS_WANTED + 1, "{keys} keys");
        }
    }

    /// Keys and deadlines that came in another order, or were copied in pieces, make the same
    /// digests at each salt.
    #[test]
    fn equal_states_have_equal_digests() {
        let lines = [
            "SET s 1",
            "SET t 2 PX 5000",
            "HSET h a 1 b 2 c 3",
            "RPUSH l a b c d",
            "SADD u a b c",
            "ZADD z 1 a 2 b 3 c",
            "XADD x 1-1 f v",
            "XGROUP CREATE x g 0",
            "SETRANGE long 9999 x",
        ];
        let (mut a, mut b) = (filled(100), Shimmed::new(Memory::new(0)));
        // Other keys first; those of one key stay in order.
        lines[4..].iter().chain(&lines[..4]).for_each(|text| line(&mut b, text));
        lines.iter().for_each(|text| line(&mut a, text));
        for n in (0..100).rev() {
            line(&mut b, &format!("SET key:{n} value:{n}"));
        }
        let mut copied: Own = Shimmed::new(Memory::new(0));
        assert!(a.prepare_copy());
        let mut from = 0;
        while from != crate::copy::PLACE_END {
            let mut chunk = Vec::new();
            assert_eq!(a.copy(from, 300, &mut chunk), Progress::Done);
            from = crate::copy::next_place(&chunk).unwrap();
            copied.install(&chunk).unwrap();
        }
        for salt in 0..50 {
            assert_eq!(round(&a, salt), round(&b, salt));
            assert_eq!(round(&a, salt), round(&copied, salt));
        }
    }

    /// Each of these differences is found, that of a large value after some rounds, in the part of
    /// its key.
    #[test]
    fn differences_are_found_where_they_are() {
        let differences = [
            ("s", "SET s 1", "SET s 2", 1),
            ("s", "SET s 1", "DEL s", 1),
            ("s", "SET s 1", "PEXPIREAT s 9000", 1),
            ("h", "HSET h a 1 b 2", "HSET h b 3", 1),
            ("l", "RPUSH l a b", "LSET l 1 c", 1),
            ("u", "SADD u a b", "SREM u b", 1),
            ("z", "ZADD z 1 a 2 b", "ZADD z 3 b", 1),
            ("x", "XADD x 1-1 f v", "XADD x 2-1 f v", 9),
            ("x", "XADD x 1-1 f v", "XGROUP CREATE x g 0", 9),
            // Four megabytes, of which a digest covers a fifth.
            ("long", "SETRANGE long 4000000 a", "SETRANGE long 2700000 b", 60),
        ];
        for (key, before, change, rounds) in differences {
            let (mut a, mut b) = (filled(3_000), filled(3_000));
            line(&mut a, before);
            line(&mut b, before);
            line(&mut b, change);
            let place = Store::shard_of(key.as_bytes()) as u16;
            let differs = |salt| {
                let (a, b) = (round(&a, salt), round(&b, salt));
                let unequal = a.iter().zip(&b).filter(|(a, b)| a != b).count();
                let own = a.iter().zip(&b).find(|(a, b)| a != b);
                assert!(change == "DEL s" || unequal <= 1);
                own.is_some_and(|(range, _)| range.first <= place && place < range.end)
            };
            assert!((0..rounds).any(|n| differs(Rng::new(n).next_u64())), "{change}");
        }
    }

    /// The test's own damage is one of one key.
    #[test]
    fn damage_changes_one_key() {
        for which in 0..50 {
            let (sound, mut hurt) = (filled(20), filled(20));
            let place = hurt.damage(which).unwrap();
            assert_eq!(sound.keys(), hurt.keys());
            let (one, other) = (round(&sound, 1), round(&hurt, 1));
            assert_ne!(one, other);
            assert!(place < PLACES);
        }
        assert_eq!(filled(0).damage(5), None);
    }
}
