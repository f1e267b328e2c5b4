//! How packets travel: most are under way, and arrive in every order; some arrive at once.

use concord_wire::control::Control;
use concord_wire::link::OP_ACK;
use concord_wire::vr::VrBody;
use concord_wire::{Flags, Kind, Op, Packet, kind};

/// What a packet is to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A client's request, or what a switch or a replica makes of it.
    Request,
    /// A read that a switch lets any replica answer.
    FastRead,
    ReadReply,
    WriteReply,
    /// An acknowledgement of records.
    Ack,
    /// A record, a vote, a word of the controller.
    Message,
    /// Said again and again, and worth nothing but at its time.
    Periodic,
    LeaseRequest,
    LeaseGrant,
    /// The configuration, which clients ask for when they doubt.
    Configure,
}

impl Sort {
    pub(super) fn of(bytes: &[u8]) -> Sort {
        match kind(bytes) {
            Ok(Kind::Harmonia) => match Op::from_byte(bytes[3]) {
                Some(Op::ReadReply) => Sort::ReadReply,
                Some(Op::WriteReply) => Sort::WriteReply,
                Some(Op::Read) if is_fast(bytes) => Sort::FastRead,
                Some(_) | None => Sort::Request,
            },
            Ok(Kind::Link) if bytes[3] == OP_ACK => Sort::Ack,
            Ok(Kind::Control) => Control::parse(bytes).map_or(Sort::Message, |c| Sort::word(&c)),
            Ok(Kind::Link) | Err(_) => Sort::Message,
        }
    }

    fn word(message: &Control) -> Sort {
        match message {
            Control::LeaseRequest { .. } => Sort::LeaseRequest,
            Control::LeaseGrant { .. } => Sort::LeaseGrant,
            Control::Configure(_) => Sort::Configure,
            Control::ReplicaAlive { .. }
            | Control::SwitchAlive { .. }
            | Control::SwitchRetired { .. }
            | Control::EpochState { .. }
            | Control::Fetch { .. }
            | Control::Fetched { .. }
            | Control::Opened { .. }
            | Control::Reach { .. }
            | Control::WhoIsWho { .. }
            | Control::Stamp { .. } => Sort::Periodic,
            Control::Vr(message) => match message.body {
                VrBody::Suspect => Sort::Periodic,
                VrBody::LeaseRequest { .. } => Sort::LeaseRequest,
                VrBody::LeaseGrant { .. } => Sort::LeaseGrant,
                _ => Sort::Message,
            },
            _ => Sort::Message,
        }
    }
}

fn is_fast(bytes: &[u8]) -> bool {
    Packet::parse(bytes).is_ok_and(|p| p.repr().flags.has(Flags::FAST))
}

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Travel {
    /// As the network likes; only what is periodic arrives at once.
    Free,
    /// A call reaches the switch at once.
    Calling,
    /// Acknowledgements arrive at once, too: time passes.
    Waiting,
    /// Everything arrives at once, in order: the rack starts.
    Starting,
}

/// What becomes of a packet.
pub(super) enum Passage {
    AtOnce,
    UnderWay,
    Cut,
}
