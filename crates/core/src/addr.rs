//! Addresses of nodes, and the sink for a machine's packets.

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

/// The outlet of a machine's packets. The driver keeps the order of packets to one address, and may
/// join them to a GSO batch. It copies the bytes, so that the machine can reuse its buffer.
pub trait Sink {
    /// Queues one datagram.
    fn send(&mut self, to: Addr, packet: &[u8]);

    /// Queues one datagram, with `patch` in the copy. A sink that keeps its copy in reach writes it
    /// there, and makes no other one.
    fn send_patched(&mut self, to: Addr, packet: &[u8], patch: Patch) {
        let mut copy = packet.to_vec();
        patch.write(&mut copy);
        self.send(to, &copy);
    }
}

/// Two bytes that take the place of what a packet has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Of the first one, from the packet's beginning.
    pub at: usize,
    /// What stands there then.
    pub bytes: [u8; 2],
}

impl Patch {
    /// Writes it, if the packet is that long.
    #[inline]
    pub fn write(self, packet: &mut [u8]) {
        if let Some(field) = packet.get_mut(self.at..self.at + 2) {
            field.copy_from_slice(&self.bytes);
        }
    }
}

impl Sink for alloc::vec::Vec<(Addr, alloc::vec::Vec<u8>)> {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        self.push((to, packet.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_patch_changes_the_copy_alone_and_nothing_behind_the_end() {
        let (mut sink, packet) = (Vec::new(), [1, 2, 3, 4]);
        for at in [1, 3, 9] {
            sink.send_patched(Addr::default(), &packet, Patch { at, bytes: [8, 9] });
        }
        let sent: Vec<&[u8]> = sink.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(sent, [&[1, 8, 9, 4], &packet, &packet]);
    }
}
