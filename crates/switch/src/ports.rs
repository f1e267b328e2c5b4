//! The assignment of addresses to ports.

use alloc::vec::Vec;

use concord_pisa::{PORTS_MAX, PortId};
use concord_wire::Addr;

/// The ports of a switch, with their addresses. An address keeps its port for as long as it is
/// wanted, since programs hold bitmaps of ports in their registers. An address without a port is at
/// [`PortId::UPLINK`].
#[derive(Clone, Debug, Default)]
pub struct PortTable {
    /// The address of each port; the first is the uplink.
    addrs: Vec<Option<Addr>>,
}

impl PortTable {
    /// Gives ports to the addresses in `wanted`, and removes all others. If there are too few ports
    /// the rest are at the uplink, and the result is false.
    pub fn fill(&mut self, wanted: &[Addr]) -> bool {
        for place in &mut self.addrs {
            *place = place.filter(|addr| wanted.contains(addr));
        }
        for addr in wanted {
            if self.port_of(*addr) != PortId::UPLINK {
                continue;
            }
            let free = self.addrs.iter().skip(1).position(Option::is_none);
            let number = free.map_or(self.addrs.len(), |place| place + 1).max(1);
            if number >= PORTS_MAX {
                return false;
            }
            self.addrs.resize(self.addrs.len().max(number + 1), None);
            self.addrs[number] = Some(*addr);
        }
        true
    }

    /// The port at which `addr` is.
    #[must_use]
    pub fn port_of(&self, addr: Addr) -> PortId {
        let number = self.addrs.iter().position(|own| *own == Some(addr));
        number.and_then(PortId::new).unwrap_or(PortId::UPLINK)
    }

    /// The address at `port`; none at the uplink.
    #[must_use]
    pub fn addr_of(&self, port: PortId) -> Option<Addr> {
        self.addrs.get(port.number()).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: usize) -> Addr {
        Addr { ip: 1, port: n as u16 }
    }

    /// An address that stays keeps its port, and a new one takes the first that is free.
    #[test]
    fn ports_stay_and_newcomers_take_the_first_free() {
        let mut ports = PortTable::default();
        assert_eq!(ports.port_of(addr(1)), PortId::UPLINK);
        assert!(ports.fill(&[addr(1), addr(2), addr(3)]));
        assert_eq!([1, 2, 3].map(|n| ports.port_of(addr(n)).number()), [1, 2, 3]);
        assert!(ports.fill(&[addr(3), addr(4), addr(1)]));
        assert_eq!([1, 2, 3, 4].map(|n| ports.port_of(addr(n)).number()), [1, 0, 3, 2]);
        let second = PortId::new(2).unwrap();
        assert_eq!(ports.addr_of(second), Some(addr(4)));
        assert_eq!(ports.addr_of(PortId::UPLINK), None);
        assert!(ports.fill(&[]));
        assert_eq!(ports.addr_of(second), None);
    }

    #[test]
    fn a_switch_has_so_many_ports_and_no_more() {
        let all: Vec<Addr> = (1..=PORTS_MAX).map(addr).collect();
        let mut ports = PortTable::default();
        assert!(ports.fill(&all[1..]));
        assert!(!ports.fill(&all), "the uplink's is not given away");
        assert_eq!(ports.port_of(all[0]), PortId::UPLINK);
        assert_eq!(ports.port_of(all[PORTS_MAX - 1]).number(), PORTS_MAX - 1);
    }
}
