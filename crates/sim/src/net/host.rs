//! A host as a queueing station: some cores, one queue, and a service time for each kind of
//! message, so that a replica saturates at `cores / service time`.

use super::pool::{Fifo, Pool};

/// Kinds of messages that can have a service time.
pub const KINDS: usize = 16;

/// What a host can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Cores; each serves one packet at a time, from one queue.
    pub cores: u32,
    /// Time that a core takes for a packet of a kind; 0: it is delivered at once, past the queue
    /// (a NIC's own answer, or a host whose processing does not matter).
    pub service_ps: [u64; KINDS],
    /// Packets that may wait for a core; more are dropped.
    pub queue_packets_max: u32,
}

impl Default for HostSpec {
    /// Delivers at once.
    fn default() -> HostSpec {
        HostSpec { cores: 1, service_ps: [0; KINDS], queue_packets_max: u32::MAX }
    }
}

/// What becomes of a packet that came to a host.
pub(super) enum Served {
    /// It is the driver's now.
    Now,
    /// A core has taken it, and is done at that time.
    At(u64),
    /// It waits for a core.
    Waits,
    /// The queue was full.
    Dropped,
}

pub(super) struct Host {
    pub(super) spec: HostSpec,
    queue: Fifo,
    queued: u32,
    busy: u32,
    /// Counts crashes: a service that began before one never ends.
    pub(super) life: u16,
}

impl Host {
    pub(super) fn new(spec: HostSpec) -> Host {
        Host { spec, queue: Fifo::EMPTY, queued: 0, busy: 0, life: 0 }
    }

    fn service_ps(&self, kind: u8) -> u64 {
        self.spec.service_ps[usize::from(kind) % KINDS]
    }

    pub(super) fn accept<B: Default>(&mut self, pool: &mut Pool<B>, now: u64, id: u32) -> Served {
        let service_ps = self.service_ps(pool.get(id).kind);
        if service_ps == 0 {
            return Served::Now;
        }
        if self.busy < self.spec.cores {
            self.busy += 1;
            return Served::At(now + service_ps);
        }
        if self.queued >= self.spec.queue_packets_max {
            return Served::Dropped;
        }
        self.queued += 1;
        self.queue.push(pool, id);
        Served::Waits
    }

    /// A core is done; the packet that it takes next, and when it will be done with that.
    pub(super) fn next<B: Default>(&mut self, pool: &Pool<B>, now: u64) -> Option<(u32, u64)> {
        let Some(id) = self.queue.pop(pool) else {
            self.busy -= 1;
            return None;
        };
        self.queued -= 1;
        Some((id, now + self.service_ps(pool.get(id).kind)))
    }

    /// Loses what waits and what is being served; gives the number that waited.
    pub(super) fn crash<B: Default>(&mut self, pool: &mut Pool<B>) -> u64 {
        let mut lost = 0;
        while let Some(id) = self.queue.pop(pool) {
            pool.remove(id);
            lost += 1;
        }
        self.queued = 0;
        self.busy = 0;
        self.life = self.life.wrapping_add(1);
        lost
    }
}
