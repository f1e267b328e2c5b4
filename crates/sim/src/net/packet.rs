//! Packets of the network.

use super::topology::HostIndex;

/// The field for explicit congestion notification (RFC 3168) in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not react to marks: the packet is never marked.
    #[default]
    Not,
    /// The packet may be marked.
    Capable,
    /// A switch on the path has marked the packet.
    Marked,
}

/// A packet; `B` is the driver's content: a transport's header, or the bytes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet<B> {
    /// The host that it goes to.
    pub to: HostIndex,
    /// The host that sent it.
    pub from: HostIndex,
    /// The size on the wire, with everything that takes time there.
    pub size_bytes: u32,
    /// The flow label: ECMP keeps packets of one label on one path.
    pub flow_label: u32,
    /// The priority at every port: 0 goes first; below [`CLASSES`](super::CLASSES).
    pub class: u8,
    /// The kind of message, which determines the service time at a host; below
    /// [`KINDS`](super::KINDS).
    pub kind: u8,
    /// The ECN field, set by the sender, and by managed ports
    /// ([`Network::manage`](super::Network::manage)).
    pub ecn: Ecn,
    /// The path, from 1 ([`Network::paths`](super::Network::paths)); 0: switches choose.
    pub path: u8,
    /// The content of the packet.
    pub body: B,
}

impl<B> Packet<B> {
    /// A packet of `size_bytes` on the wire, of kind 0, without a chosen path, and never marked.
    #[must_use]
    pub fn new(
        from: HostIndex,
        to: HostIndex,
        size_bytes: u32,
        flow_label: u32,
        class: u8,
        body: B,
    ) -> Packet<B> {
        Packet { to, from, size_bytes, flow_label, class, kind: 0, ecn: Ecn::Not, path: 0, body }
    }
}
