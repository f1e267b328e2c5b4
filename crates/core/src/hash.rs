//! Hashes that are part of the wire or of the log: their values must never change.

use crate::ids::ObjectId;
use crate::rng::splitmix64;

const FX_SEED: u64 = 0x517c_c1b7_2722_0a95;

/// 64-bit hash of `bytes`, eight at a time; not keyed, not for secrets.
#[must_use]
pub fn hash64(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = splitmix64(seed ^ bytes.len() as u64);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        h = (h.rotate_left(5) ^ u64::from_le_bytes(*chunk)).wrapping_mul(FX_SEED);
    }
    if !rest.is_empty() {
        let mut last = [0u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        h = (h.rotate_left(5) ^ u64::from_le_bytes(last)).wrapping_mul(FX_SEED);
    }
    splitmix64(h)
}

/// The object id of a key (Harmonia §7.1, "variable-length object IDs"): every client and every
/// replica must compute the same one. Collisions cost a slow read, never consistency.
#[must_use]
pub fn object_id(key: &[u8]) -> ObjectId {
    ObjectId((hash64(0, key) >> 32) as u32)
}

/// Mixes 32-bit words into 32 bits, with nothing an ASIC's hash unit lacks the like of: the
/// switch's table indices and its replica choice come from it.
#[must_use]
pub const fn mix32(seed: u32, word: u32) -> u32 {
    let mut h = word ^ seed.wrapping_mul(0x9e37_79b9);
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_are_part_of_the_wire() {
        assert_eq!(object_id(b""), object_id(b""));
        assert_ne!(object_id(b"a"), object_id(b"b"));
        assert_ne!(hash64(0, b"12345678"), hash64(0, b"1234567"));
        assert_ne!(hash64(0, b"a\0"), hash64(0, b"a"));
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
