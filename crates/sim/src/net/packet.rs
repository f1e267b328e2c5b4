//! Packets of the network.

use super::topology::HostIndex;

/// Explicit congestion notification (RFC 3168), as a packet carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Its transport does not react to marks: it is never marked.
    #[default]
    Not,
    /// It may be marked.
    Capable,
    /// A switch on its way has marked it.
    Marked,
}

/// A packet; `B` is what the driver carries in it: a transport's header, or the bytes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet<B> {
    /// The host that it goes to.
    pub to: HostIndex,
    /// The host that sent it.
    pub from: HostIndex,
    /// Its size on the wire, with everything that takes time there.
    pub size_bytes: u32,
    /// ECMP keeps packets of one label on one path.
    pub flow_label: u32,
    /// Its priority at every port: 0 goes first; below [`CLASSES`](super::CLASSES).
    pub class: u8,
    /// Its kind of message, by which a host looks up its service time; below
    /// [`KINDS`](super::KINDS).
    pub kind: u8,
    /// Set by the sender, and by managed ports ([`Network::manage`](super::Network::manage)).
    pub ecn: Ecn,
    /// The path that it takes, from 1 ([`Network::paths`](super::Network::paths)); 0: switches
    /// choose.
    pub path: u8,
    /// The driver's.
    pub body: B,
}

impl<B> Packet<B> {
    /// A packet of `size_bytes` on the wire, of no kind and on no chosen path, to which no switch
    /// adds marks.
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
