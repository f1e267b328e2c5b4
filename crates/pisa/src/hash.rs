//! The hash functions of an ASIC's hash unit: CRC-32, of a polynomial that the program chooses.
//! There is no multiplication and no remainder in a pipeline.
//!
//! A CRC is linear: the seed is the same constant added to every value, so that two words which
//! collide under one seed collide under all. Independent hashes have different polynomials.

/// Polynomials in normal form, the term x^32 left out; no two tell words apart in the same way. Of
/// two words that collide in the lowest 16 bits of one of the first three, none collide in those of
/// another. Koopman's (DSN 2002, and his tables since), IEEE 802.3, Castagnoli's, those of AIXM,
/// CRC-32D and AUTOSAR, and one of ours, the last, which spreads consecutive numbers: see
/// [`SPREADING`].
pub const POLYNOMIALS: [u32; 9] = [
    0x741b_8cd7,
    0x3258_3499,
    0x3aff_2fad,
    0x04c1_1db7,
    0x1edc_6f41,
    0x8141_41ab,
    0xa833_982b,
    0xf4ac_fb13,
    SPREADING,
];

/// Of words that count up from bit 0, 12 or 16, any 2^k in a row (k up to 10, the first of them a
/// multiple of 2^k) have hashes that differ in their lowest k bits: they pick each row of a table
/// of 2^k once.
pub const SPREADING: u32 = 0x2085_2c5b;

/// A hash unit with its polynomial: reflected, all ones before and after, as Ethernet's. Four
/// tables, so that a word costs four look-ups at once (Kounavis, Berry 2005).
#[derive(Debug)]
pub struct Crc32 {
    tables: [[u32; 256]; 4],
}

impl Crc32 {
    /// The unit for a polynomial in normal form.
    #[must_use]
    pub const fn new(polynomial: u32) -> Crc32 {
        let reflected = polynomial.reverse_bits();
        let mut tables = [[0; 256]; 4];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { reflected } else { 0 };
                bit += 1;
            }
            tables[0][byte] = crc;
            byte += 1;
        }
        let mut table = 1;
        while table < 4 {
            let mut byte = 0;
            while byte < 256 {
                let before: u32 = tables[table - 1][byte];
                tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
                byte += 1;
            }
            table += 1;
        }
        Crc32 { tables }
    }

    /// The hash of words, each with its lowest byte first.
    #[must_use]
    #[inline]
    pub fn of<const N: usize>(&self, words: [u32; N]) -> u32 {
        let mut crc = u32::MAX;
        for word in words {
            let [a, b, c, d] = (crc ^ word).to_le_bytes();
            crc = self.tables[3][usize::from(a)]
                ^ self.tables[2][usize::from(b)]
                ^ self.tables[1][usize::from(c)]
                ^ self.tables[0][usize::from(d)];
        }
        !crc
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_values_are_those_of_the_standards() {
        let (ieee, castagnoli) = (Crc32::new(0x04c1_1db7), Crc32::new(0x1edc_6f41));
        let words = [0x3433_3231, 0x3837_3635];
        assert_eq!(ieee.of(words), 0x9ae0_daaf, "zlib's crc32(b\"12345678\")");
        assert_eq!(castagnoli.of([0; 8]), 0x8a91_36aa, "RFC 3720, B.4");
    }

    /// How many of the words are independent, as vectors of bits.
    fn rank(mut words: Vec<u64>) -> usize {
        let mut rank = 0;
        for bit in 0..64 {
            let Some(at) = words[rank..].iter().position(|w| w >> bit & 1 == 1) else { continue };
            words.swap(rank, rank + at);
            let pivot = words[rank];
            for (i, word) in words.iter_mut().enumerate() {
                if i != rank && *word >> bit & 1 == 1 {
                    *word ^= pivot;
                }
            }
            rank += 1;
        }
        rank
    }

    /// Of 32, how many bits of a word the lowest 16 bits of both hashes tell: two words that
    /// collide in both differ in the others only.
    fn told_by(a: &Crc32, b: &Crc32) -> usize {
        let low = |unit: &Crc32, bit: u32| u64::from((unit.of([1 << bit]) ^ unit.of([0])) & 0xffff);
        rank((0..32).map(|bit| low(a, bit) << 16 | low(b, bit)).collect())
    }

    #[test]
    fn numbers_in_a_row_pick_each_row_of_a_table_once() {
        let unit = Crc32::new(SPREADING);
        for (from, bits) in
            [0, 12, 16].into_iter().flat_map(|from| (1..=10).map(move |k| (from, k)))
        {
            for first in [0, 5 << bits, 77 << bits] {
                let row = |n: u32| unit.of([1, 2, 3, n << from]) & ((1 << bits) - 1);
                let mut rows: Vec<u32> = (first..first + (1 << bits)).map(row).collect();
                rows.sort_unstable();
                assert!(rows.iter().copied().eq(0..1 << bits), "from bit {from}, {bits} bits");
            }
        }
    }

    #[test]
    fn what_collides_under_one_polynomial_hardly_does_under_another() {
        let units = POLYNOMIALS.map(Crc32::new);
        for (i, a) in units.iter().enumerate() {
            for (j, b) in units.iter().enumerate().skip(i + 1) {
                let told = told_by(a, b);
                assert!(told >= if j < 3 { 32 } else { 29 }, "{i} and {j}: {told}");
            }
        }
    }
}
