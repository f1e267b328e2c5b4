//! Invalid packets beside those that were sent: cut short, forged, padded, or very late.
//!
//! UDP's checksum protects bits, and the roles of a rack trust each other. So an invalid packet
//! never states anything that a role could act upon. A forged packet has another magic number,
//! version or kind, an epoch that never begins, or random bytes after a valid header; or it is a
//! write that claims to be a replica's own and has no command. (A control packet never has random
//! bytes: they could announce an epoch, which every role would believe.)

use concord_core::{Duration, MS, Rng};
use concord_engine::Command;
use concord_wire::header::{COMMON_BYTES, Header, at, set_length};
use concord_wire::{
    DATAGRAM_BYTES_MAX, Flags, FurtherIds, Kind, Op, PACKET_BYTES_MAX, Packet, Repr, kind,
};

use crate::systems::store::edges::Packets;

const MILLION: u64 = 1_000_000;
/// The kinds of packets that no role acts upon unless their epoch is in force.
const DATA_KINDS: [Kind; 3] = [Kind::Store, Kind::Link, Kind::Craq];
/// Counts of invalid packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OddCounts {
    /// Packets that were cut short.
    pub truncated: u64,
    /// Packets of another version, kind or epoch, or with random content.
    pub forged: u64,
    /// Writes that claim to be a replica's own, and have no command.
    pub own: u64,
    /// Packets with additional bytes after their end.
    pub padded: u64,
    /// Copies that arrived very late.
    pub late: u64,
}

impl OddCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &OddCounts) {
        self.truncated += other.truncated;
        self.forged += other.forged;
        self.own += other.own;
        self.padded += other.padded;
        self.late += other.late;
    }
}

/// Makes invalid packets out of those that are sent.
#[derive(Debug)]
pub(crate) struct Odd {
    pub packets: Packets,
    pub count: OddCounts,
    rng: Rng,
    /// The generator for writes that claim to be a replica's own, separate so that the other draws
    /// do not depend on it.
    own_rng: Rng,
}

impl Odd {
    pub(crate) fn new(packets: Packets, rng: Rng) -> Odd {
        let own_rng = rng.clone().fork();
        Odd { packets, count: OddCounts::default(), rng, own_rng }
    }

    /// A source that makes no invalid packets.
    pub(crate) fn none() -> Odd {
        Odd::new(Packets::default(), Rng::new(0))
    }

    /// The additional packets that arrive when `bytes` are sent, each with its additional delay.
    /// May pad `bytes` itself.
    pub(crate) fn beside(&mut self, bytes: &mut Vec<u8>) -> Vec<(Duration, Vec<u8>)> {
        let mut beside = Vec::new();
        if self.packets == Packets::default() {
            return beside;
        }
        let Packets { truncated_ppm, forged_ppm, own_ppm, padded_ppm, late_ppm, late_ns_max } =
            self.packets;
        if own_ppm > 0
            && self.own_rng.chance(own_ppm, MILLION)
            && let Some(own) = own_write(bytes)
        {
            self.count.own += 1;
            beside.push((self.own_rng.below(MS), own));
        }
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
                // Read as another kind, the bytes could by chance name the epoch in force.
                self.let_epoch_never_come(&mut forged);
                let other = match self.rng.below(2) {
                    0 => self.rng.below(256) as u8,
                    _ => DATA_KINDS[self.rng.below(DATA_KINDS.len() as u64) as usize] as u8,
                };
                let own = kind(&forged);
                if let Some(byte) = forged.get_mut(at::KIND) {
                    *byte = other;
                }
                let forged_kind = kind(&forged);
                if forged_kind == own || forged_kind.is_ok_and(Kind::is_control) {
                    forged.truncate(at::KIND);
                }
            }
            2 if matches!(kind(&forged), Ok(Kind::Link | Kind::Craq)) => {
                self.let_epoch_never_come(&mut forged);
            }
            _ => forged = self.garbage(),
        }
        forged
    }

    fn let_epoch_never_come(&mut self, forged: &mut [u8]) {
        let never = if self.rng.chance(1, 2) { u32::MAX } else { 0 };
        if let Some(epoch) = forged.get_mut(at::EPOCH) {
            epoch.copy_from_slice(&never.to_be_bytes());
        }
    }

    /// Random bytes, after a valid header or without one.
    fn garbage(&mut self) -> Vec<u8> {
        let (kind, op) = match self.rng.below(2) {
            0 => (Kind::Store, Op::ALL[self.rng.below(Op::ALL.len() as u64) as usize] as u8),
            _ if self.rng.chance(1, 2) => (Kind::Link, self.rng.between(1, 2) as u8),
            _ => (Kind::Craq, self.rng.between(1, 2) as u8),
        };
        let mut bytes = Header::new(kind, op).bytes(COMMON_BYTES).to_vec();
        let has_header = !self.rng.chance(1, 4);
        let length = up_to(&mut self.rng, PACKET_BYTES_MAX as u64) as usize;
        bytes.extend((0..length).map(|_| self.rng.below(256) as u8));
        bytes.truncate(PACKET_BYTES_MAX);
        // A random group, node and epoch, which do not exist.
        bytes[at::GROUP.start..at::END].fill_with(|| self.rng.below(256) as u8);
        if self.rng.chance(1, 2) {
            set_length(&mut bytes);
        } else {
            bytes[at::LENGTH].fill_with(|| self.rng.below(256) as u8);
        }
        if !has_header {
            bytes.drain(..COMMON_BYTES);
        }
        bytes
    }
}

/// A copy of a client's write that has no sequence number yet, marked as a replica's own write,
/// with a body that is no command: replicas refuse it by its record (docs/internals/bugs.md,
/// 15.13a).
fn own_write(bytes: &[u8]) -> Option<Vec<u8>> {
    const NO_COMMAND: [u8; 3] = [0xff; 3];
    let repr = Packet::parse(bytes).ok()?.repr();
    let is_command = Command::parse(&NO_COMMAND).is_ok();
    if repr.op != Op::Write || repr.seq.is_some() || is_command {
        return None;
    }
    let mut own = Vec::new();
    let further = FurtherIds::default();
    Repr { flags: Flags::INTERNAL, further, ..repr }.emit(&NO_COMMAND, &mut own);
    Some(own)
}

/// A random number from 1 to `most`; each power of two is equally likely, so that small numbers are
/// as frequent as large ones.
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
            own_ppm: 0,
            padded_ppm: 0,
            late_ppm: 0,
            late_ns_max: 1,
        };
        let mut odd = Odd::new(packets, Rng::new(1));
        let mut control = Header::new(Kind::Membership, 3).bytes(COMMON_BYTES).to_vec();
        control.extend([7; 40]);
        set_length(&mut control);
        for _ in 0..1_000 {
            for (_, bytes) in odd.beside(&mut control) {
                let is_control = kind(&bytes).is_ok_and(Kind::is_control);
                assert!(!is_control && bytes.len() <= DATAGRAM_BYTES_MAX);
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
