//! An output port: the sending end of a link. It has strict, non-preemptive priorities.
//!
//! Class 0 is never overtaken, so the departure of its packets is known when they arrive: they are
//! *committed* at once and never wait in a list, and a network without priorities costs one event
//! for each packet and hop. Lower classes wait in lists until the port has sent all committed
//! packets.

use std::collections::VecDeque;

use super::packet::Packet;
use super::topology::LinkSpec;

/// The number of priorities of a port, 0 being the highest; eight, as switches have.
pub const CLASSES: usize = 8;

/// The number of fraction bits in the time of a byte.
const RATE_BITS: u32 = 16;

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets dropped because their class had no room.
    pub dropped: u64,
    /// The maximum of unsent bytes after a packet was accepted.
    pub backlog_bytes_max: u64,
}

/// The fate of a packet at a port.
pub(super) enum Accepted {
    /// It reaches the other end at this time, in ps.
    Arrives(u64),
    /// It has to wait: the caller goes on with [`Port::wait`].
    Waits,
    /// It is dropped, since there was no room.
    Dropped,
}

/// The part of a port that every packet uses: one cache line.
#[repr(align(64))]
pub(super) struct Port {
    /// The time at which all committed packets are sent.
    busy_until: u64,
    /// The time of a byte, in 2^-16 ps.
    byte_time: u64,
    /// The time from the last bit sent until the packet can be sent on: propagation, and the
    /// pipeline of the switch at the other end.
    flight_ps: u64,
    /// The buffer of each class, as the time that it takes to send it.
    room_ps: u64,
    backlog_ps_max: u64,
    packets: u64,
    bytes: u64,
    /// The node at the other end.
    pub(super) peer: u32,
    /// Bit `c` is set if packets of class `c` wait. Class 0 never does.
    waiting: u8,
}

/// The packets that wait at a port; most networks have none.
pub(super) struct Waiting<B> {
    queues: [VecDeque<Packet<B>>; CLASSES],
    backlog_ps: [u64; CLASSES],
    pub(super) dropped: u64,
}

impl<B> Waiting<B> {
    pub(super) fn new() -> Waiting<B> {
        let queues = std::array::from_fn(|_| VecDeque::new());
        Waiting { queues, backlog_ps: [0; CLASSES], dropped: 0 }
    }
}

impl Port {
    pub(super) fn new(link: &LinkSpec, peer: u32, pipeline_ps: u64) -> Port {
        let byte_time = (8_000_000_000_000u128 << RATE_BITS) / u128::from(link.bits_per_s.max(1));
        let byte_time = u64::try_from(byte_time).unwrap_or(u64::MAX);
        Port {
            busy_until: 0,
            byte_time,
            flight_ps: link.propagation_ps + pipeline_ps,
            room_ps: time_of(byte_time, link.queue_bytes_max),
            backlog_ps_max: 0,
            packets: 0,
            bytes: 0,
            peer,
            waiting: 0,
        }
    }

    /// The time from the last bit to the arrival: propagation, and the pipeline at the other end.
    pub(super) fn flight_ps(&self) -> u64 {
        self.flight_ps
    }

    /// Counts a packet that a managed port has sent.
    pub(super) fn count(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    pub(super) fn send_ps(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * self.byte_time) >> RATE_BITS
    }

    /// Accepts a packet that is to be sent.
    #[inline]
    pub(super) fn accept<B>(&mut self, now: u64, packet: &Packet<B>) -> Accepted {
        let (bytes, class) = (packet.size_bytes, packet.class);
        let send_ps = self.send_ps(bytes);
        let committed_ps = self.busy_until.saturating_sub(now);
        if class != 0 && (committed_ps != 0 || self.waiting != 0) {
            return Accepted::Waits;
        }
        // The packet on the wire counts until its last bit has left.
        let backlog_ps = committed_ps + send_ps;
        if class == 0 && backlog_ps > self.room_ps {
            return Accepted::Dropped;
        }
        self.backlog_ps_max = self.backlog_ps_max.max(backlog_ps);
        Accepted::Arrives(self.commit(now, bytes, send_ps))
    }

    fn commit(&mut self, now: u64, bytes: u32, send_ps: u64) -> u64 {
        self.busy_until = self.busy_until.max(now) + send_ps;
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.busy_until + self.flight_ps
    }

    /// Queues a packet of a lower class, or drops it. Returns when to call [`Port::release`],
    /// unless a call is already due.
    pub(super) fn wait<B>(&mut self, rest: &mut Waiting<B>, packet: Packet<B>) -> Option<u64> {
        let class = usize::from(packet.class) % CLASSES;
        let backlog_ps = rest.backlog_ps[class] + self.send_ps(packet.size_bytes);
        if backlog_ps > self.room_ps {
            rest.dropped += 1;
            return None;
        }
        rest.backlog_ps[class] = backlog_ps;
        rest.queues[class].push_back(packet);
        self.backlog_ps_max = self.backlog_ps_max.max(rest.backlog_ps.iter().sum());
        let first = self.waiting == 0;
        self.waiting |= 1 << class;
        first.then_some(self.busy_until)
    }

    /// Sends the first waiting packet of the highest class, if the port is free: the first result
    /// is the packet and its arrival at the other end, the second is when to call this again.
    pub(super) fn release<B>(
        &mut self,
        rest: &mut Waiting<B>,
        now: u64,
    ) -> (Option<(Packet<B>, u64)>, Option<u64>) {
        // Packets of class 0 were committed since: they go first.
        if self.busy_until > now {
            return (None, Some(self.busy_until));
        }
        let class = self.waiting.trailing_zeros() as usize % CLASSES;
        let Some(packet) = rest.queues[class].pop_front() else { return (None, None) };
        let send_ps = self.send_ps(packet.size_bytes);
        rest.backlog_ps[class] -= send_ps;
        if rest.queues[class].is_empty() {
            self.waiting &= !(1 << class);
        }
        let arrives = self.commit(now, packet.size_bytes, send_ps);
        (Some((packet, arrives)), (self.waiting != 0).then_some(self.busy_until))
    }

    pub(super) fn counters<B>(&self, rest: &Waiting<B>) -> PortCounters {
        let byte_time = u128::from(self.byte_time.max(1));
        let backlog = (u128::from(self.backlog_ps_max) << RATE_BITS).div_ceil(byte_time);
        PortCounters {
            packets: self.packets,
            bytes: self.bytes,
            dropped: rest.dropped,
            backlog_bytes_max: backlog as u64,
        }
    }
}

fn time_of(byte_time: u64, bytes: u64) -> u64 {
    let ps = (u128::from(bytes) * u128::from(byte_time)) >> RATE_BITS;
    u64::try_from(ps).unwrap_or(u64::MAX)
}
