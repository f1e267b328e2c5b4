//! The delivery of packets: most are in flight, and arrive in every order; some arrive at once.

use concord_wire::control::{CopyMessage, LeaseMessage, Membership, Message as _};
use concord_wire::link::OP_ACK;
use concord_wire::vr::{VrBody, VrMessage};
use concord_wire::{Flags, Kind, Op, Packet, kind, op};

use super::sort::Sort;
use crate::systems;

impl Sort {
    pub(super) fn of(bytes: &[u8]) -> Sort {
        match kind(bytes) {
            Ok(Kind::Store) => match Op::from_byte(op(bytes)) {
                Some(Op::ReadReply) => Sort::ReadReply,
                Some(Op::WriteReply) => Sort::WriteReply,
                Some(Op::Read) if is_fast(bytes) => Sort::FastRead,
                Some(_) | None => Sort::Request,
            },
            Ok(Kind::Link) if op(bytes) == OP_ACK => Sort::Ack,
            Ok(Kind::Membership) => {
                Membership::parse(bytes).map_or(Sort::Message, |m| Sort::membership(&m))
            }
            Ok(Kind::Lease) => match LeaseMessage::parse(bytes) {
                Ok(LeaseMessage::Request { .. }) => Sort::LeaseRequest,
                Ok(LeaseMessage::Grant { .. }) => Sort::LeaseGrant,
                Ok(LeaseMessage::Release { .. }) | Err(_) => Sort::Message,
            },
            Ok(Kind::Copy) => CopyMessage::parse(bytes).map_or(Sort::Message, |m| Sort::copy(&m)),
            Ok(Kind::Vr) => VrMessage::parse(bytes).map_or(Sort::Message, |m| Sort::view(&m)),
            Ok(Kind::NoPaxos) => Sort::Periodic,
            Ok(other) => systems::sort(other, bytes),
            Err(_) => Sort::Message,
        }
    }

    fn membership(message: &Membership) -> Sort {
        match message {
            Membership::Configure(_) => Sort::Configure,
            Membership::ReplicaAlive(_)
            | Membership::VoterAlive { .. }
            | Membership::ChangeVoter { .. }
            | Membership::VotersTold(_)
            | Membership::Compared { .. }
            | Membership::WasDurable { .. }
            | Membership::SwitchAlive { .. }
            | Membership::SwitchRetired { .. }
            | Membership::EpochState { .. }
            | Membership::Opened { .. }
            | Membership::Reach { .. }
            | Membership::WhoIsWho { .. } => Sort::Periodic,
            Membership::Open { .. } => Sort::Message,
        }
    }

    fn copy(message: &CopyMessage) -> Sort {
        match message {
            CopyMessage::Fetch { .. } | CopyMessage::Fetched { .. } => Sort::Periodic,
            CopyMessage::Resume { .. }
            | CopyMessage::Resumed { .. }
            | CopyMessage::LogMismatch { .. }
            | CopyMessage::Ask { .. }
            | CopyMessage::Piece { .. } => Sort::Message,
        }
    }

    fn view(message: &VrMessage) -> Sort {
        match message.body {
            VrBody::Suspect => Sort::Periodic,
            VrBody::LeaseRequest { .. } => Sort::LeaseRequest,
            VrBody::LeaseGrant { .. } => Sort::LeaseGrant,
            _ => Sort::Message,
        }
    }
}

fn is_fast(bytes: &[u8]) -> bool {
    Packet::parse(bytes).is_ok_and(|p| p.repr().flags.has(Flags::FAST))
}

/// The mode of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Travel {
    /// Only periodic packets arrive at once; all others are in flight.
    Free,
    /// A call reaches the switch at once.
    Calling,
    /// Time passes: acknowledgements arrive at once, too.
    Waiting,
    /// Packets among replicas and the controller arrive at once, and so does a switch's
    /// configuration.
    Changing,
    /// The rack starts: all packets arrive at once, in order.
    Starting,
}

/// The way in which a packet is delivered.
pub(super) enum Passage {
    AtOnce,
    UnderWay,
    Cut,
}
