//! The sorts of packets that the network tells apart.

/// What a packet is to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
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
    /// A step of a session's start, or that it is done.
    Session,
    /// The configuration, which clients ask for when they doubt.
    Configure,
}
