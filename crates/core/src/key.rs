//! The rack's secret, and tags that only those who have it can make.

use core::fmt;

/// A secret of 128 bits. Tags are SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
/// PRF", 2012): 64 bits, which is what the slot of a task in the switch has room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u64; 2]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

impl Key {
    /// The key with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Key {
        let all = u128::from_le_bytes(bytes);
        Key([all as u64, (all >> 64) as u64])
    }

    /// The tag of `bytes`.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> u64 {
        let [k0, k1] = self.0;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = bytes.len() as u8;
        for word in words.iter().chain([&last]) {
            let word = u64::from_le_bytes(*word);
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    /// A key of its own for each use, so that a tag made for one says nothing in another.
    #[must_use]
    pub fn derived(&self, purpose: [u8; 8]) -> Key {
        let half = |which: u8| {
            let mut input = [which; 9];
            input[..8].copy_from_slice(&purpose);
            self.tag(&input)
        };
        Key([half(1), half(2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_the_siphash_paper() {
        let bytes: [u8; 16] = core::array::from_fn(|i| i as u8);
        let key = Key::from_bytes(bytes);
        // Appendix A; and the first of the reference implementation's vectors.
        assert_eq!(key.tag(&bytes[..15]), 0xa129_ca61_49be_45e5);
        assert_eq!(key.tag(b""), 0x726f_db47_dd0e_0e31);
    }

    #[test]
    fn derived_keys_differ() {
        let key = Key::from_bytes([7; 16]);
        assert_ne!(key.derived(*b"one     "), key.derived(*b"other   "));
        assert_ne!(key.derived(*b"one     ").tag(b"x"), key.tag(b"x"));
        assert_ne!(key.derived(*b"one     "), Key::from_bytes([8; 16]).derived(*b"one     "));
    }
}
