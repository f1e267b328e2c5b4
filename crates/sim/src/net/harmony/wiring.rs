//! The tables of Harmony's switches, from a topology: the ports, which of them lead upwards, and
//! the virtual links of each.

use std::collections::BTreeMap;

use concord_switch::harmony::Route;
use concord_switch::{LinkTables, LinksLayout};
use concord_wire::Addr;
use concord_wire::harmony::{HOPS_MAX, HOSTS_MAX};

use super::config::{HarmonyConfig, HarmonyError};
use crate::engine::NS;
use crate::net::topology::{HostIndex, Routes, Topology};

/// The address of a node.
pub(super) fn addr(node: u32) -> Addr {
    Addr { ip: node, port: 1 }
}

/// The node with an address.
pub(super) fn node_of(addr: Addr) -> u32 {
    addr.ip
}

/// A port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SwitchPort {
    /// The node at the other end.
    pub(super) peer: u32,
    /// The network's port that sends to it; `port ^ 1` sends back.
    pub(super) port: u32,
    /// The number of virtual links on which the peer's data arrives.
    pub(super) links: u32,
    /// Whether the port is one of several that lead upwards.
    pub(super) is_up: bool,
}

/// The switches of a network, as Harmony sees them.
#[derive(Clone, Debug)]
pub(super) struct Fabric {
    pub(super) hosts: u32,
    /// The bandwidth of the slowest host's link, which is that of K slots.
    pub(super) bits_per_s: u64,
    /// The network's port of each host.
    pub(super) host_ports: Vec<u32>,
    /// The ports of each switch.
    pub(super) switches: Vec<Vec<SwitchPort>>,
    /// The tables of each switch.
    pub(super) tables: Vec<LinkTables>,
    pub(super) layout: LinksLayout,
    /// The place of each neighbour among the ports of a switch.
    places: Vec<BTreeMap<u32, usize>>,
}

impl Fabric {
    pub(super) fn new(topology: &Topology, config: &HarmonyConfig) -> Result<Fabric, HarmonyError> {
        let wrong = |why: String| Err(HarmonyError(why));
        let routes = Routes::new(topology).map_err(|error| HarmonyError(error.to_string()))?;
        let hosts = topology.hosts();
        if hosts as usize > HOSTS_MAX {
            return wrong(format!("{hosts} hosts: a network has at most {HOSTS_MAX}"));
        }
        let switches_max = topology.links_between_max().saturating_sub(1);
        if switches_max as usize > HOPS_MAX {
            return wrong(format!("paths of {switches_max} switches: at most {HOPS_MAX}"));
        }
        let links = topology.links();
        let rate = |port: u32| links[port as usize / 2].2.bits_per_s;
        let bits_per_s = routes.host_ports.iter().map(|&port| rate(port)).min().unwrap_or(1);
        let mut fabric = Fabric {
            hosts,
            bits_per_s,
            host_ports: routes.host_ports.clone(),
            switches: vec![Vec::new(); topology.switches() as usize],
            tables: Vec::new(),
            layout: LinksLayout {
                hosts: hosts as u16,
                slots: config.slots,
                choice: config.choice,
                life_ns: config.life_ps / NS,
                ..LinksLayout::DEFAULT
            },
            places: Vec::new(),
        };
        for (link, &(a, b, _)) in links.iter().enumerate() {
            for (from, peer, port) in [(a.0, b.0, 2 * link as u32), (b.0, a.0, 2 * link as u32 + 1)]
            {
                let Some(switch) = from.checked_sub(hosts) else { continue };
                let slots = u128::from(config.slots);
                // A host's link has the host's K slots, whatever its bandwidth (trap H7).
                let of_rate = slots * u128::from(rate(port)) / u128::from(bits_per_s.max(1));
                let links = if peer < hosts { slots } else { of_rate };
                let links = u32::try_from(links).unwrap_or(u32::MAX);
                let port = SwitchPort { peer, port, links, is_up: false };
                fabric.switches[switch as usize].push(port);
            }
        }
        for switch in 0..fabric.switches.len() {
            fabric.add_switch(switch, &routes)?;
        }
        let most = fabric.tables.iter().map(|t| t.links.iter().map(|l| u32::from(*l)).sum());
        let most: u32 = most.max().unwrap_or(1);
        fabric.layout.links = u16::try_from(most.max(1)).unwrap_or(u16::MAX);
        fabric.layout.check().map_err(|error| HarmonyError(error.to_string()))?;
        Ok(fabric)
    }

    /// The place of a neighbour among a switch's ports.
    pub(super) fn place(&self, switch: usize, peer: u32) -> Option<usize> {
        self.places[switch].get(&peer).copied()
    }

    /// Finds the uplinks of a switch, and fills its tables.
    fn add_switch(&mut self, switch: usize, routes: &Routes) -> Result<(), HarmonyError> {
        let node = self.hosts + switch as u32;
        let ports = &mut self.switches[switch];
        let wrong = |why: &str| Err(HarmonyError(format!("at switch {switch}, {why}")));
        let places: BTreeMap<u32, usize> =
            ports.iter().enumerate().map(|(place, port)| (port.peer, place)).collect();
        if places.len() < ports.len() {
            return wrong("two links lead to the same switch: make them one of their bandwidth");
        }
        if ports.iter().any(|port| port.links == 0) {
            return wrong("a link has less than a slot's bandwidth: give fewer slots");
        }
        if ports.iter().any(|port| port.links > u32::from(u16::MAX)) {
            return wrong("a link has more than 65535 virtual links: give fewer slots");
        }
        let mut uplinks: Option<Vec<u32>> = None;
        for host in 0..self.hosts {
            let choices = routes.choices(switch, HostIndex(host));
            match &uplinks {
                _ if choices.len() < 2 => {}
                None => uplinks = Some(choices.to_vec()),
                Some(known) if known == choices => {}
                Some(_) => {
                    return wrong("paths to different hosts may begin by different sets of ports");
                }
            }
        }
        for port in ports.iter_mut() {
            port.is_up = uplinks.as_ref().is_some_and(|uplinks| uplinks.contains(&port.port));
        }
        let place_of = |port: u32| ports.iter().position(|own| own.port == port);
        let mut table = Vec::with_capacity(self.hosts as usize);
        for host in 0..self.hosts {
            let route = match routes.choices(switch, HostIndex(host)) {
                [only] => place_of(*only).map(|place| Route::Down(place as u8)),
                _ => Some(Route::Up),
            };
            let is_both = matches!(route, Some(Route::Down(p)) if ports[usize::from(p)].is_up);
            let Some(route) = route.filter(|_| !is_both) else {
                return wrong("a port is one of several to a host, and the only one to another");
            };
            table.push(route);
        }
        if ports.len() > concord_switch::harmony::LINK_PORTS_MAX {
            return wrong("there are more than 64 ports");
        }
        let ups = ports.iter().enumerate().filter(|(_, port)| port.is_up);
        self.tables.push(LinkTables {
            switch: switch as u16,
            own: addr(node),
            neighbours: ports.iter().map(|port| addr(port.peer)).collect(),
            links: ports.iter().map(|port| port.links as u16).collect(),
            uplinks: ups.map(|(place, _)| place as u8).collect(),
            routes: table,
        });
        self.places.push(places);
        Ok(())
    }

    /// The number of virtual links whose data leaves by each port of the network: those of the node
    /// at its other end, or the slots of the host there.
    pub(super) fn links_by_port(&self, slots: u8) -> BTreeMap<u32, u32> {
        let ports = self.switches.iter().flatten();
        let mut links: BTreeMap<u32, u32> = ports.map(|p| (p.port ^ 1, p.links)).collect();
        links.extend(self.host_ports.iter().map(|port| (port ^ 1, u32::from(slots))));
        links
    }
}
