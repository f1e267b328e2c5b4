//! The sorts of packets that the explorer's network distinguishes.

/// The sort of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// A client's request, also as forwarded by a switch or a replica.
    Request,
    /// A read that a switch lets any replica answer.
    FastRead,
    ReadReply,
    WriteReply,
    /// An acknowledgement of records.
    Ack,
    /// A record, a vote, a message of the controller.
    Message,
    /// A message that is repeated, and useless after its time.
    Periodic,
    LeaseRequest,
    LeaseGrant,
    /// A step of a session's start, or its confirmation.
    Session,
    /// The configuration, which clients ask for when they doubt theirs.
    Configure,
}
