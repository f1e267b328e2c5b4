//! Descriptions of packets, one line each, for readers of diagrams.

use concord_wire::control::{CopyMessage, LeaseMessage, Membership, Message as _};
use concord_wire::craq::{self, VersionAnswer, VersionQuery};
use concord_wire::link::{Ack, Data, OP_DATA};
use concord_wire::nopaxos::Stamp;
use concord_wire::vr::VrMessage;
use concord_wire::{Kind, Packet, WireError, kind, op};

use crate::systems;
use crate::topic::{Topic, control, request};

/// The subject of a packet, and its important fields in a line.
pub(crate) fn describe(bytes: &[u8]) -> (Topic, String) {
    let described = match kind(bytes) {
        Ok(Kind::Store) => {
            Packet::parse(bytes).map(|packet| request(&packet.repr(), packet.body().len()))
        }
        Ok(Kind::Link) => describe_link(bytes),
        Ok(Kind::Craq) => describe_craq(bytes),
        Ok(Kind::Membership) => Membership::parse(bytes).map(|m| control(&m)),
        Ok(Kind::Lease) => LeaseMessage::parse(bytes).map(|m| control(&m)),
        Ok(Kind::Copy) => CopyMessage::parse(bytes).map(|m| control(&m)),
        Ok(Kind::Vr) => VrMessage::parse(bytes).map(|m| control(&m)),
        Ok(Kind::NoPaxos) => Stamp::parse(bytes).map(|m| control(&m)),
        Ok(other) => systems::describe(other, bytes),
        Err(error) => Err(error),
    };
    described.unwrap_or_else(|error| (Topic::Other, format!("malformed: {error}")))
}

fn describe_link(bytes: &[u8]) -> Result<(Topic, String), WireError> {
    if op(bytes) == OP_DATA {
        let d = Data::parse(bytes)?;
        let text = format!(
            "record piece, epoch {}, link number {}, committed {}, {} bytes",
            d.epoch,
            d.link_seq,
            d.committed,
            d.piece.len()
        );
        return Ok((Topic::Record, text));
    }
    let a = Ack::parse(bytes)?;
    let text = format!(
        "ack, epoch {}, next {}, applied {}, committed {}",
        a.epoch, a.next, a.applied, a.committed
    );
    Ok((Topic::Ack, text))
}

fn describe_craq(bytes: &[u8]) -> Result<(Topic, String), WireError> {
    if op(bytes) == craq::OP_QUERY {
        let q = VersionQuery::parse(bytes)?;
        return Ok((Topic::Read, format!("version query {}, epoch {}", q.number, q.epoch)));
    }
    let a = VersionAnswer::parse(bytes)?;
    let text = format!("version answer {}, epoch {}, committed {}", a.number, a.epoch, a.committed);
    Ok((Topic::Reply, text))
}
