//! Packets that nobody sent so: cut short, forged, padded, late.
//!
//! UDP's checksum guards bits and roles believe each other, so that nothing here says what no role
//! said: what is forged has another magic number or version, or its kind is another one, or an epoch
//! that never comes, or random bytes stand behind a right header. (No random bytes as a control
//! packet: that could be an epoch, which everybody believes.)

use concord_core::{Duration, MS, Rng};
use concord_wire::{DATAGRAM_BYTES_MAX, Kind, MAGIC, VERSION, craq, kind, link};

use crate::edges::Packets;

const MILLION: u64 = 1_000_000;
/// The last operation byte of the header that the switch looks at.
const HARMONIA_OPS: u64 = 15;
/// Where a packet between replicas carries its epoch.
const EPOCH: std::ops::Range<usize> = 4..8;

/// How many there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OddCounts {
    /// Cut short.
    pub truncated: u64,
    /// Of another version, kind or epoch, or random.
    pub forged: u64,
    /// With bytes behind their end.
    pub padded: u64,
    /// Late copies.
    pub late: u64,
}

impl OddCounts {
    /// Adds another run's.
    pub fn add(&mut self, other: &OddCounts) {
        self.truncated += other.truncated;
        self.forged += other.forged;
        self.padded += other.padded;
        self.late += other.late;
    }
}

/// Makes odd packets of those that are sent.
#[derive(Debug)]
pub(crate) struct Odd {
    pub packets: Packets,
    pub count: OddCounts,
    rng: Rng,
}

impl Odd {
    pub(crate) fn new(packets: Packets, rng: Rng) -> Odd {
        Odd { packets, count: OddCounts::default(), rng }
    }

    /// Makes none.
    pub(crate) fn none() -> Odd {
        Odd::new(Packets::default(), Rng::new(0))
    }

    /// What else arrives when `bytes` are sent, each with how much later; `bytes` may be padded.
    pub(crate) fn beside(&mut self, bytes: &mut Vec<u8>) -> Vec<(Duration, Vec<u8>)> {
        let mut beside = Vec::new();
        if self.packets == Packets::default() {
            return beside;
        }
        let Packets { truncated_ppm, forged_ppm, padded_ppm, late_ppm, late_ns_max } = self.packets;
        if self.rng.chance(late_ppm, MILLION) {
            self.count.late += 1;
            beside.push((up_to(&mut self.rng, late_ns_max), bytes.clone()));
        }
        if self.rng.chance(truncated_ppm, MILLION) {
            self.count.truncated += 1;
            let length = self.rng.below(bytes.len() as u64) as usize;
            beside.push((self.rng.below(MS), bytes[..length].to_vec()));
        }
        if self.rng.chance(forged_ppm, MILLION) {
            self.count.forged += 1;
            let forged = self.forge(bytes);
            beside.push((self.rng.below(MS), forged));
        }
        if bytes.len() < DATAGRAM_BYTES_MAX && self.rng.chance(padded_ppm, MILLION) {
            self.count.padded += 1;
            let room = (DATAGRAM_BYTES_MAX - bytes.len()) as u64;
            let length = self.rng.between(1, room);
            bytes.extend((0..length).map(|_| self.rng.below(256) as u8));
        }
        beside
    }

    fn forge(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut forged = bytes.to_vec();
        match self.rng.below(4) {
            0 => {
                let bit = self.rng.below(24) as usize;
                if let Some(byte) = forged.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            1 => {
                let other = self.rng.below(256) as u8;
                let own = kind(&forged);
                if let Some(byte) = forged.get_mut(3) {
                    *byte = other;
                }
                if kind(&forged) == own || kind(&forged) == Ok(Kind::Control) {
                    forged.truncate(3);
                }
            }
            2 if kind(&forged) == Ok(Kind::Link) => {
                let never = if self.rng.chance(1, 2) { u32::MAX } else { 0 };
                if let Some(epoch) = forged.get_mut(EPOCH) {
                    epoch.copy_from_slice(&never.to_be_bytes());
                }
            }
            _ => forged = self.garbage(),
        }
        forged
    }

    /// Random bytes behind a right header, or none.
    fn garbage(&mut self) -> Vec<u8> {
        let ops = [link::OP_DATA, link::OP_ACK, craq::OP_QUERY, craq::OP_ANSWER];
        let op = match self.rng.below(2) {
            0 => self.rng.between(1, HARMONIA_OPS) as u8,
            _ => ops[self.rng.below(ops.len() as u64) as usize],
        };
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.extend([VERSION, op]);
        if self.rng.chance(1, 4) {
            bytes.clear();
        }
        let length = up_to(&mut self.rng, DATAGRAM_BYTES_MAX as u64);
        bytes.extend((0..length).map(|_| self.rng.below(256) as u8));
        bytes.truncate(DATAGRAM_BYTES_MAX);
        bytes
    }
}

/// 1 to `most`, small ones as often as large ones: each power of two alike.
pub(crate) fn up_to(rng: &mut Rng, most: u64) -> u64 {
    let bits = u64::from(most.max(1).ilog2());
    let least = 1 << rng.between(0, bits);
    rng.between(least, (2 * least - 1).min(most.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_packets_say_nothing_that_no_role_said() {
        let packets = Packets {
            truncated_ppm: 0,
            forged_ppm: MILLION,
            padded_ppm: 0,
            late_ppm: 0,
            late_ns_max: 1,
        };
        let mut odd = Odd::new(packets, Rng::new(1));
        let mut control = vec![0x48, 0xc1, 1, concord_wire::control::OP_CONTROL];
        control.extend([7; 40]);
        for _ in 0..1_000 {
            for (_, bytes) in odd.beside(&mut control) {
                assert!(kind(&bytes) != Ok(Kind::Control) && bytes.len() <= DATAGRAM_BYTES_MAX);
            }
        }
        assert_eq!(odd.count.forged, 1_000);
    }

    #[test]
    fn small_numbers_are_drawn_as_often_as_large_ones() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| up_to(&mut rng, 1_000_000)).collect();
        assert!(drawn.iter().all(|n| (1..=1_000_000).contains(n)));
        assert!(drawn.iter().filter(|n| **n < 1_000).count() > 300);
        assert!((0..100).all(|_| up_to(&mut rng, 1) == 1));
    }
}
