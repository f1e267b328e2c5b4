//! Where a node is reached, and where a machine puts its packets.

use core::fmt;

/// An IPv4 address and a UDP port, as requests carry the client's. Six bytes wherever it
/// stands.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Addr {
    /// The address, most significant byte first.
    #[serde(with = "postcard::fixint::be")]
    pub ip: u32,
    /// The UDP port.
    #[serde(with = "postcard::fixint::be")]
    pub port: u16,
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.ip.to_be_bytes();
        write!(f, "{a}.{b}.{c}.{d}:{}", self.port)
    }
}

/// What a machine sends into. The driver keeps the order of packets to one address, and may join
/// them to a train; it copies the bytes, so that the machine reuses its buffer.
pub trait Sink {
    /// Queues one datagram.
    fn send(&mut self, to: Addr, packet: &[u8]);
}

impl Sink for alloc::vec::Vec<(Addr, alloc::vec::Vec<u8>)> {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        self.push((to, packet.to_vec()));
    }
}
