//! Ablations: completions that are not piggybacked on the replies of writes, and COMMIT-ACKs that
//! are not piggybacked on PREPARE-OKs.

use concord_core::{Position, Rng};
use concord_wire::link::Ack;
use concord_wire::rpc::{Op, Packet, PacketMut, Repr};
use concord_wire::{Flags, Kind};

use super::setup::Separate;

/// Takes the completion out of a write's reply. `None` if the packet carries none, or the
/// completion is lost, which depends on the packet alone.
pub(super) fn part(apart: Separate, rng: &mut Rng, packet: &mut [u8]) -> Option<Vec<u8>> {
    if concord_wire::kind(packet) != Ok(Kind::Store) {
        return None;
    }
    let hdr = Packet::parse(packet).ok()?.repr();
    if hdr.op != Op::WriteReply || !hdr.flags.has(Flags::COMPLETION) {
        return None;
    }
    PacketMut::parse(packet).ok()?.set_flags(hdr.flags.without(Flags::COMPLETION));
    if rng.chance(apart.lost_ppm, 1_000_000) {
        return None;
    }
    Some(Repr { op: Op::WriteCompletion, ..hdr }.header(0).to_vec())
}

/// The COMMIT-ACK of an acknowledgement, as a packet of its own, if it acknowledges more than
/// `told`. The acknowledgement keeps it, too: the ablation measures the cost of the second packet.
pub(super) fn commit_ack(told: &mut Position, packet: &[u8]) -> Option<Vec<u8>> {
    if concord_wire::kind(packet) != Ok(Kind::Link) {
        return None;
    }
    let ack = Ack::parse(packet).ok()?;
    if ack.applied <= *told {
        return None;
    }
    *told = ack.applied;
    Some(packet.to_vec())
}
