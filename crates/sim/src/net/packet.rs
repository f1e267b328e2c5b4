//! Packets of the network.

use super::topology::HostIndex;

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
    /// The driver's.
    pub body: B,
}
