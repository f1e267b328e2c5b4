//! A host as a queueing station: cores, one queue, and a service time for each kind of message, so
//! that a replica saturates at `cores / service time`.

use std::collections::VecDeque;

use super::packet::Packet;

/// The number of kinds of messages that can have a service time.
pub const KINDS: usize = 16;

/// The capacity of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// The number of cores; each serves one packet at a time, from a common queue.
    pub cores: u32,
    /// The service time of a packet by its kind; 0: it is delivered at once, past the queue (an
    /// answer of the NIC itself, or a host whose processing does not matter).
    pub service_ps: [u64; KINDS],
    /// The maximum number of packets that wait for a core; further ones are dropped.
    pub queue_packets_max: u32,
}

impl Default for HostSpec {
    /// A host that delivers every packet at once.
    fn default() -> HostSpec {
        HostSpec { cores: 1, service_ps: [0; KINDS], queue_packets_max: u32::MAX }
    }
}

/// The fate of a packet that arrived at a host.
pub(super) enum Served<B> {
    /// It is delivered to the driver now.
    Now(Packet<B>),
    /// A core serves it, until that time in ps.
    At(u64, Packet<B>),
    /// It waits for a core.
    Waits,
    /// It is dropped, since the queue was full.
    Dropped,
}

pub(super) struct Host<B> {
    pub(super) spec: HostSpec,
    queue: VecDeque<Packet<B>>,
    busy: u32,
    /// The number of crashes: a service that began before one never ends.
    pub(super) incarnation: u16,
}

impl<B> Host<B> {
    pub(super) fn new(spec: HostSpec) -> Host<B> {
        Host { spec, queue: VecDeque::new(), busy: 0, incarnation: 0 }
    }

    fn service_ps(&self, kind: u8) -> u64 {
        self.spec.service_ps[usize::from(kind) % KINDS]
    }

    #[inline]
    pub(super) fn accept(&mut self, now: u64, packet: Packet<B>) -> Served<B> {
        let service_ps = self.service_ps(packet.kind);
        if service_ps == 0 {
            return Served::Now(packet);
        }
        if self.busy < self.spec.cores {
            self.busy += 1;
            return Served::At(now + service_ps, packet);
        }
        if self.queue.len() >= self.spec.queue_packets_max as usize {
            return Served::Dropped;
        }
        self.queue.push_back(packet);
        Served::Waits
    }

    /// Ends the service of a core; returns the packet that it takes next, and the end of that
    /// service.
    pub(super) fn next(&mut self, now: u64) -> Option<(Packet<B>, u64)> {
        // The host has fewer cores than before: this one stops.
        if self.busy > self.spec.cores {
            self.busy -= 1;
            return None;
        }
        let Some(packet) = self.queue.pop_front() else {
            self.busy -= 1;
            return None;
        };
        let done = now + self.service_ps(packet.kind);
        Some((packet, done))
    }

    /// Loses the packets that wait or are being served; returns the number of those that waited.
    pub(super) fn crash(&mut self) -> u64 {
        let lost = self.queue.len() as u64;
        self.queue.clear();
        self.busy = 0;
        self.incarnation = self.incarnation.wrapping_add(1);
        lost
    }
}
