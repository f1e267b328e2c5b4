//! Hashes that are part of the wire or of the log: their values must never change.

use twox_hash::xxhash3_64::Hasher;

use crate::ids::ObjectId;

/// 64-bit hash of `bytes`: XXH3, seeded. Not keyed, not for secrets. (A cheaper one, an Fx hash,
/// gave one value to records whose neighbouring words differ in one bit each: trap T5 needs
/// better.)
#[must_use]
pub fn hash64(seed: u64, bytes: &[u8]) -> u64 {
    Hasher::oneshot_with_seed(seed, bytes)
}

/// The object id of a key (Harmonia §7.1, "variable-length object IDs"): every client and every
/// replica must compute the same one. Collisions cost a slow read, never consistency.
#[must_use]
pub fn object_id(key: &[u8]) -> ObjectId {
    ObjectId((hash64(0, key) >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_are_part_of_the_wire() {
        // XXH3's own test values: <https://github.com/Cyan4973/xxHash>, `XXH3_64bits`.
        assert_eq!(hash64(0, b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(object_id(b"a"), ObjectId(0xe6c6_32b6));
    }

    /// Records that differ in neighbouring words have other hashes.
    #[test]
    fn t5_neighbouring_words_change_the_hash() {
        let words = |first: u64, second: u64| [first.to_le_bytes(), second.to_le_bytes()].concat();
        for bit in 0..64 {
            for shift in 0..64 {
                let other = words(1 << bit, (1_u64 << bit).rotate_left(shift));
                assert_ne!(hash64(0, &words(0, 0)), hash64(0, &other), "{bit} {shift}");
            }
        }
    }

    #[test]
    fn object_ids_spread() {
        let mut low = [0u32; 256];
        for i in 0..65_536u32 {
            low[(object_id(&i.to_le_bytes()).0 & 255) as usize] += 1;
        }
        assert!(low.iter().all(|&n| (150..400).contains(&n)));
    }
}
