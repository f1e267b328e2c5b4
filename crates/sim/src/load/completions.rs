//! Completions that do not come in the replies of writes, as an ablation.

use concord_core::Rng;
use concord_wire::harmonia::{Op, Packet, PacketMut, Repr};
use concord_wire::{Flags, Kind};

use super::Apart;

/// Takes the completion out of a write's reply. `None` if the packet carries none, or the completion
/// gets lost: the packet alone says which.
pub(super) fn part(apart: Apart, rng: &mut Rng, packet: &mut [u8]) -> Option<Vec<u8>> {
    if concord_wire::kind(packet) != Ok(Kind::Harmonia) {
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
