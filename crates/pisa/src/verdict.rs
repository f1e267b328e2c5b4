//! A program's verdict about a packet.

use concord_wire::Addr;

/// The largest number of ports of a switch, with [`PortId::UPLINK`].
pub const PORTS_MAX: usize = 128;

/// A port of the switch, where a packet comes in or leaves. (A [`crate::Port`] is an array's.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(u8);

impl PortId {
    /// The way to everybody who has no port of his own.
    pub const UPLINK: PortId = PortId(0);

    /// The port of that number, if it is below [`PORTS_MAX`].
    #[must_use]
    pub const fn new(number: usize) -> Option<PortId> {
        if number < PORTS_MAX { Some(PortId(number as u8)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

/// A bitmap of ports, as programs keep it in their cells and packets carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet(pub u128);

impl PortSet {
    /// The set with `port` beside what is in it.
    #[must_use]
    pub const fn with(self, port: PortId) -> PortSet {
        PortSet(self.0 | 1 << port.0)
    }

    /// The set without `port`.
    #[must_use]
    pub const fn without(self, port: PortId) -> PortSet {
        PortSet(self.0 & !(1 << port.0))
    }

    /// Whether `port` is in it.
    #[must_use]
    pub const fn has(self, port: PortId) -> bool {
        self.0 >> port.0 & 1 == 1
    }

    /// The number of ports in the set.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// The ports, lowest first.
impl Iterator for PortSet {
    type Item = PortId;

    fn next(&mut self) -> Option<PortId> {
        let lowest = PortId(self.0.trailing_zeros() as u8);
        if self.0 == 0 {
            return None;
        }
        *self = self.without(lowest);
        Some(lowest)
    }
}

/// The receivers of copies of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// All members of one of the program's multicast groups, which the control plane fills.
    Group(u16),
    /// The ports of a bitmap, lowest first.
    Ports(PortSet),
}

/// The data that a packet carries from one pass to the next, beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub [u64; 2]);

/// The outcome of one pass; `R` is the program's own list of drop reasons, each of them counted. A
/// packet that leaves was rewritten in place; sizes are lengths without the padding that it came
/// with, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict<R> {
    /// The packet ends here.
    Drop(R),
    /// The packet leaves to an address.
    Forward {
        /// The receiver.
        to: Addr,
        /// Its length.
        size_bytes: usize,
    },
    /// The packet goes back to its sender.
    Reply {
        /// Its length.
        size_bytes: usize,
    },
    /// Copies of the packet leave.
    Multicast {
        /// To whom.
        to: Copies,
        /// Their length.
        size_bytes: usize,
    },
    /// A copy of the packet's begin leaves, and the packet itself goes round for another pass.
    Mirror {
        /// The receiver of the copy.
        to: Addr,
        /// The copy's length.
        copy_bytes: usize,
        /// The metadata for the next pass.
        metadata: Metadata,
        /// The packet's length.
        size_bytes: usize,
    },
    /// Another pass, later: others pass in between, and where too many wait the packet is lost.
    Recirculate {
        /// The metadata for the next pass.
        metadata: Metadata,
        /// Its length.
        size_bytes: usize,
    },
}

impl<R> Verdict<R> {
    /// The same verdict without the reason of a drop.
    #[inline]
    pub fn without_reason(self) -> Verdict<()> {
        match self {
            Verdict::Drop(_) => Verdict::Drop(()),
            Verdict::Forward { to, size_bytes } => Verdict::Forward { to, size_bytes },
            Verdict::Reply { size_bytes } => Verdict::Reply { size_bytes },
            Verdict::Multicast { to, size_bytes } => Verdict::Multicast { to, size_bytes },
            Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                Verdict::Mirror { to, copy_bytes, metadata, size_bytes }
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                Verdict::Recirculate { metadata, size_bytes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_set_of_ports_gives_each_once_lowest_first() {
        let ports = [127, 0, 64, 5].map(|number| PortId::new(number).unwrap());
        let set = ports.into_iter().fold(PortSet::default(), PortSet::with);
        assert_eq!(set.count(), 4);
        assert_eq!(set.map(PortId::number).collect::<Vec<_>>(), [0, 5, 64, 127]);
        let fewer = set.without(ports[0]).without(ports[0]);
        assert!(fewer.has(ports[2]) && !fewer.has(ports[0]));
        assert_eq!(PortSet::default().next(), None);
        assert_eq!(PortId::new(PORTS_MAX), None);
    }
}
