//! FLAIR's packets for the simulator and the explorer, beyond what the machines define.

use concord_switch::KeyGroupSettings;
use concord_switch::flair::GROUP_BITS_MIN;
use concord_wire::control::{Message as _, Program, Protocol};
use concord_wire::flair::{Heartbeat, OP_HEARTBEAT, OP_PROBE, Packet, Repr, SessionMessage};
use concord_wire::{Flags, Kind, Op, WireError, op};

use crate::explore::setup::{Call, Setup};
use crate::explore::sort::Sort;
use crate::topic::{Topic, control, request};

/// The minimum number of key groups, which are a single chunk.
pub(crate) const KEY_GROUPS: KeyGroupSettings =
    KeyGroupSettings { group_bits: GROUP_BITS_MIN, run_bits: 0, ..KeyGroupSettings::DEFAULT };

impl Setup {
    /// A setup of the explorer whose switch runs FLAIR.
    #[must_use]
    pub fn flair(protocol: Protocol, scripts: Vec<Vec<Call>>) -> Setup {
        Setup { program: Program::Flair, ..Setup::new(protocol, scripts) }
    }
}

/// The description of a packet in a line.
pub(crate) fn describe(kind: Kind, bytes: &[u8]) -> Result<(Topic, String), WireError> {
    match kind {
        Kind::FlairSession => return SessionMessage::parse(bytes).map(|m| control(&m)),
        Kind::Flair => {}
        _ => return Err(WireError::Op),
    }
    match op(bytes) {
        OP_HEARTBEAT => return Heartbeat::parse(bytes).map(|m| control(&m)),
        OP_PROBE => return Heartbeat::parse_probe(bytes).map(|m| control(&m)),
        _ => {}
    }
    let packet = Packet::parse(bytes)?;
    let Repr { common, log_idx, cflwrs, .. } = packet.repr();
    let (topic, mut text) = request(&common, packet.body().len());
    text += &format!(", position {log_idx}");
    if common.op == Op::WriteReply {
        text += &format!(", held by {:03b}", cflwrs.0);
    }
    Ok((topic, text))
}

/// The kind of a packet in the explorer's network. Replies are not delivered at once, since the
/// switch checks them when they arrive.
pub(crate) fn sort(kind: Kind, bytes: &[u8]) -> Sort {
    if kind == Kind::FlairSession {
        return Sort::Session;
    }
    if kind != Kind::Flair {
        return Sort::Message;
    }
    if [OP_HEARTBEAT, OP_PROBE].contains(&op(bytes)) {
        return Sort::Periodic;
    }
    let Ok(packet) = Packet::parse(bytes) else { return Sort::Message };
    let common = packet.repr().common;
    match common.op {
        Op::Read if common.flags.has(Flags::FAST) => Sort::FastRead,
        Op::Read | Op::Write => Sort::Request,
        _ => Sort::Message,
    }
}
