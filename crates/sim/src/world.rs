//! Virtual time, and a network that misbehaves as the plan says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use concord_core::{Duration, Instant, Now, Rng};
use concord_wire::{Addr, Sink};

/// What happens at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A packet arrives at a node.
    Deliver { to: usize, bytes: Vec<u8> },
    /// A node wanted to be woken.
    Wake { node: usize },
    /// A connection of a client process sends its next operation.
    Next { node: usize, connection: usize },
    /// The plan's fault of that index.
    Fault { index: usize },
}

/// A one-way cut between two nodes, up to a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub from: usize,
    pub to: usize,
    pub until: u64,
}

/// How the network treats packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub reorder_ppm: u64,
    pub latency_ns: Duration,
    /// Between nodes of `peers`.
    pub peer_latency_ns: Duration,
    pub peers: (usize, usize),
    pub delay_ns: Duration,
}

impl Weather {
    fn latency_ns(&self, from: usize, to: usize) -> Duration {
        let is_peer = |node| (self.peers.0..self.peers.1).contains(&node);
        if is_peer(from) && is_peer(to) { self.peer_latency_ns } else { self.latency_ns }
    }
}

/// The event queue, the clock and the network.
pub(crate) struct World {
    /// Virtual ns since the start.
    pub now_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    pub rng: Rng,
    pub weather: Weather,
    pub cuts: Vec<Cut>,
    /// Offset of each node's clock: instants of two nodes mean nothing to each other.
    pub clock_offset_ns: Vec<u64>,
    pub packets: u64,
    pub lost: u64,
}

/// The address of a node.
pub(crate) fn addr(node: usize) -> Addr {
    Addr { ip: 0x0a00_0001, port: node as u16 + 1 }
}

fn node_of(addr: Addr) -> usize {
    addr.port as usize - 1
}

impl World {
    pub(crate) fn new(rng: Rng, weather: Weather) -> World {
        World {
            now_ns: 0,
            queue: BinaryHeap::new(),
            order: 0,
            rng,
            weather,
            cuts: Vec::new(),
            clock_offset_ns: Vec::new(),
            packets: 0,
            lost: 0,
        }
    }

    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at_ns, self.order, event)));
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let Reverse((at_ns, _, event)) = self.queue.pop()?;
        self.now_ns = self.now_ns.max(at_ns);
        Some(event)
    }

    /// What a node's clocks say.
    pub(crate) fn clock(&self, node: usize) -> Now {
        let offset = self.clock_offset_ns[node];
        Now {
            instant: Instant(self.now_ns + offset),
            // Wall clocks differ by some ms.
            unix_ms: 1_700_000_000_000 + self.now_ns / 1_000_000 + offset % 7,
        }
    }

    /// The virtual time at which a node's clock shows `instant`.
    pub(crate) fn virtual_ns(&self, node: usize, instant: Instant) -> u64 {
        instant.0.saturating_sub(self.clock_offset_ns[node])
    }

    /// Puts what a node sent on the wire.
    pub(crate) fn transmit(&mut self, from: usize, sent: &mut Outgoing) {
        for (to, bytes) in sent.packets.drain(..) {
            let to = node_of(to);
            self.packets += 1;
            let now = self.now_ns;
            let latency_ns = self.weather.latency_ns(from, to);
            let cut = self.cuts.iter().any(|c| c.from == from && c.to == to && now < c.until);
            if cut || self.rng.chance(self.weather.loss_ppm, 1_000_000) {
                self.lost += 1;
                continue;
            }
            if self.rng.chance(self.weather.duplicate_ppm, 1_000_000) {
                let late = self.rng.below(self.weather.delay_ns);
                let event = Event::Deliver { to, bytes: bytes.clone() };
                self.push(now + latency_ns + late, event);
            }
            let jitter = if self.rng.chance(self.weather.reorder_ppm, 1_000_000) {
                self.rng.below(self.weather.delay_ns)
            } else {
                0
            };
            self.push(now + latency_ns + jitter, Event::Deliver { to, bytes });
        }
    }
}

/// What a node sent while it handled one input.
#[derive(Default)]
pub(crate) struct Outgoing {
    packets: Vec<(Addr, Vec<u8>)>,
}

impl Sink for Outgoing {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        self.packets.push((to, packet.to_vec()));
    }
}
