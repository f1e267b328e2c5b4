//! Managed ports: buffers shared by the ports of a switch, ECN marks, telemetry at departure, and
//! links that fail and return.
//!
//! On a plain port the departure of class 0 is computed on arrival. On a managed port every packet
//! waits in a list until its first bit leaves, so that the queue at that moment is known. A network
//! is managed as a whole ([`Network::manage`](super::Network::manage)), which costs two events for
//! each packet and hop where a port is busy.

use std::collections::VecDeque;

use concord_core::Rng;

use super::packet::{Ecn, Packet};
use super::port::CLASSES;
use super::topology::HostIndex;

/// The denominator of the shares in a [`QueueSpec`].
pub const SHARES: u32 = 256;

/// The rule by which packets that can carry a mark get one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// No packet is marked while at most this many bytes wait at the port. DCTCP's K, with
    /// `max_bytes` equal to it.
    pub min_bytes: u64,
    /// Every packet is marked above this many waiting bytes.
    pub max_bytes: u64,
    /// The probability just below `max_bytes`, in 1/[`SHARES`]; it rises linearly from 0 at
    /// `min_bytes`.
    pub share: u32,
}

impl Marking {
    /// DCTCP §3.1: a packet that finds more than `bytes` waiting is marked.
    #[must_use]
    pub const fn at(bytes: u64) -> Marking {
        Marking { min_bytes: bytes, max_bytes: bytes, share: SHARES }
    }

    fn marks(&self, waiting_bytes: u64, rng: &mut Rng) -> bool {
        if waiting_bytes <= self.min_bytes {
            return false;
        }
        if waiting_bytes > self.max_bytes {
            return true;
        }
        let above = waiting_bytes - self.min_bytes;
        let width = (self.max_bytes - self.min_bytes).max(1);
        rng.chance(above.saturating_mul(u64::from(self.share)), width.saturating_mul(SHARES.into()))
    }
}

/// The queues of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSpec {
    /// The buffer that all ports of the switch share. Without one, each class of a port has the
    /// buffer of its link.
    pub shared_bytes_max: Option<u64>,
    /// The dynamic threshold (Choudhury and Hahne 1998): a class of a port may hold this many
    /// 1/[`SHARES`] of the free part of the shared buffer; 0: all of it.
    pub share: u32,
    /// The rule for ECN marks.
    pub marking: Option<Marking>,
    /// A lossless switch would pause an input once its packets hold more than this many
    /// 1/[`SHARES`] of the free part of the shared buffer; 0: not counted. No input is ever really
    /// paused.
    pub pause_share: u32,
}

/// The state of a port as a packet's first bit leaves: what a switch with in-band network telemetry
/// writes into the packet (HPCC §3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// The index of the port.
    pub port: u32,
    /// The bytes that wait, without the packet itself.
    pub waiting_bytes: u64,
    /// The bytes sent so far, the packet included.
    pub sent_bytes: u64,
    /// The time of departure, in ps.
    pub at_ps: u64,
    /// The bandwidth of the link.
    pub bits_per_s: u64,
    /// Whether the port is a host's own.
    pub is_host: bool,
}

/// The statistics of a managed port since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// The maximum of waiting bytes, without the packet on the wire.
    pub waiting_bytes_max: u64,
    /// The integral of waiting bytes over time, in byte picoseconds.
    pub waiting_area: u128,
    /// The bytes whose transmission began.
    pub sent_bytes: u64,
    /// The packets that were marked.
    pub marked: u64,
    /// The packets that were dropped for lack of room.
    pub dropped: u64,
    /// How often a lossless switch would have begun to pause this input.
    pub would_pause: u64,
}

/// A waiting packet, and the port that brought it to this node.
struct Held<B> {
    packet: Packet<B>,
    input: u32,
    came_ps: u64,
}

/// The visit of a watched packet at a port ([`Network::watch`](super::Network::watch)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The index of the port.
    pub port: u32,
    /// The packet's number in the flow; `None` if it carries no data.
    pub number: Option<u32>,
    /// The size of the packet.
    pub size_bytes: u32,
    /// When the packet arrived at the port.
    pub came_ps: u64,
    /// When its first bit left.
    pub left_ps: u64,
    /// When its last bit reached the node at the other end, the pipeline there included.
    pub arrives_ps: u64,
}

/// The maximum number of visits that are kept: the last ones.
pub const VISITS_MAX: usize = 1 << 20;

/// A packet that left a captured port ([`Network::capture`](super::Network::capture)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The index of the port.
    pub port: u32,
    /// When its first bit left.
    pub at_ps: u64,
    /// The sender of the packet.
    pub from: HostIndex,
    /// The receiver of the packet.
    pub to: HostIndex,
    /// The size of the packet.
    pub size_bytes: u32,
    /// The flow label of the packet.
    pub flow_label: u32,
    /// The packet's number in the flow; `None` if it carries no data.
    pub number: Option<u32>,
    /// The priority of the packet.
    pub class: u8,
    /// The ECN field of the packet.
    pub ecn: Ecn,
}

/// The maximum number of packets that are captured in a run.
pub const CAPTURED_MAX: usize = 1 << 22;

/// The input of a packet that came from no other node: its own host sends it, or a switch's
/// program.
pub(super) const NO_INPUT: u32 = u32::MAX;

pub(super) struct ManagedPort<B> {
    queues: [VecDeque<Held<B>>; CLASSES],
    class_bytes: [u64; CLASSES],
    /// The most of `class_bytes` since the run began, without packets that left at once.
    pub(super) class_bytes_max: [u64; CLASSES],
    waiting_bytes: u64,
    /// Until when a packet is on the wire, in ps.
    busy_until: u64,
    is_release_due: bool,
    changed_at: u64,
    pub(super) is_up: bool,
    /// The number of failures: a packet that was on the wire during one does not arrive.
    pub(super) incarnation: u16,
    /// The bytes sent since the start of the run, which telemetry needs even before the statistics
    /// begin.
    sent_bytes: u64,
    bits_per_s: u64,
    room_bytes: u64,
    /// The node that sends on this port: an index into `nodes`.
    pub(super) node: u32,
    counters: QueueCounters,
    /// The bytes that this port's packets hold at the node to which they go, and whether the input
    /// would be paused there.
    held_bytes: u64,
    is_paused: bool,
}

/// A node, and the buffer that its ports share.
pub(super) struct ManagedNode {
    pub(super) spec: QueueSpec,
    pub(super) held_bytes: u64,
    pub(super) is_up: bool,
}

/// The fate of a packet at a managed port.
pub(super) enum Queued {
    /// It waits; [`Managed::release`] is due at that time, unless it was due before.
    Waits(Option<u64>),
    /// It is dropped, since there was no room.
    Dropped,
    /// It is lost, since the link is down.
    Lost,
}

pub(super) struct Managed<B> {
    hosts: u32,
    pub(super) ports: Vec<ManagedPort<B>>,
    pub(super) nodes: Vec<ManagedNode>,
    pub(super) rng: Rng,
    pub(super) telemetry: Option<fn(&mut B, &Hop)>,
    pub(super) lost: u64,
    statistics_from: u64,
    /// The flow label whose packets are recorded in `visits`.
    pub(super) watched: Option<u32>,
    pub(super) visits: Vec<Visit>,
    /// The ports whose packets are captured, ascending.
    pub(super) capture: Vec<u32>,
    pub(super) captured: Vec<Captured>,
    /// The number of packets beyond the limit.
    pub(super) not_captured: u64,
    /// Returns the number of a data packet.
    pub(super) number: fn(&B) -> Option<u32>,
}

impl<B> ManagedPort<B> {
    pub(super) fn new(node: u32, bits_per_s: u64, room_bytes: u64) -> ManagedPort<B> {
        ManagedPort {
            queues: std::array::from_fn(|_| VecDeque::new()),
            class_bytes: [0; CLASSES],
            class_bytes_max: [0; CLASSES],
            waiting_bytes: 0,
            busy_until: 0,
            is_release_due: false,
            changed_at: 0,
            is_up: true,
            incarnation: 0,
            sent_bytes: 0,
            bits_per_s,
            room_bytes,
            node,
            counters: QueueCounters::default(),
            held_bytes: 0,
            is_paused: false,
        }
    }

    fn count_area(&mut self, now: u64) {
        let since = u128::from(now.saturating_sub(self.changed_at));
        self.counters.waiting_area += since * u128::from(self.waiting_bytes);
        self.changed_at = now;
    }
}

impl<B> Managed<B> {
    pub(super) fn new(
        ports: Vec<ManagedPort<B>>,
        (hosts, nodes): (u32, usize),
        rng: Rng,
    ) -> Managed<B> {
        let node = || ManagedNode { spec: QueueSpec::default(), held_bytes: 0, is_up: true };
        Managed {
            hosts,
            ports,
            nodes: (0..nodes).map(|_| node()).collect(),
            rng,
            telemetry: None,
            lost: 0,
            statistics_from: 0,
            watched: None,
            visits: Vec::new(),
            capture: Vec::new(),
            captured: Vec::new(),
            not_captured: 0,
            number: |_| None,
        }
    }

    /// Handles a packet that is to be sent; `input` is the port that brought it, if another node
    /// did.
    pub(super) fn accept(
        &mut self,
        now: u64,
        port: u32,
        input: u32,
        mut packet: Packet<B>,
    ) -> Queued {
        let out = &mut self.ports[port as usize];
        let node = &mut self.nodes[out.node as usize];
        if !out.is_up {
            self.lost += 1;
            return Queued::Lost;
        }
        let class = usize::from(packet.class) % CLASSES;
        let bytes = u64::from(packet.size_bytes);
        let is_idle = out.busy_until <= now && out.waiting_bytes == 0;
        let room_bytes = match node.spec.shared_bytes_max {
            None if is_idle => u64::MAX,
            None => out.room_bytes.saturating_sub(out.class_bytes[class]),
            Some(max) => {
                let free = max.saturating_sub(node.held_bytes);
                match node.spec.share {
                    0 => free,
                    share => {
                        let share = u128::from(free) * u128::from(share) / u128::from(SHARES);
                        let share = u64::try_from(share).unwrap_or(u64::MAX);
                        free.min(share.saturating_sub(out.class_bytes[class]))
                    }
                }
            }
        };
        if bytes > room_bytes {
            out.counters.dropped += 1;
            return Queued::Dropped;
        }
        if packet.ecn == Ecn::Capable
            && let Some(marking) = &node.spec.marking
            && marking.marks(out.waiting_bytes, &mut self.rng)
        {
            packet.ecn = Ecn::Marked;
            out.counters.marked += 1;
        }
        out.count_area(now);
        out.waiting_bytes += bytes;
        out.class_bytes[class] += bytes;
        // A packet that can leave at once never waits.
        if !is_idle {
            out.counters.waiting_bytes_max = out.counters.waiting_bytes_max.max(out.waiting_bytes);
            out.class_bytes_max[class] = out.class_bytes_max[class].max(out.class_bytes[class]);
        }
        node.held_bytes += bytes;
        out.queues[class].push_back(Held { packet, input, came_ps: now });
        let due = (!out.is_release_due).then(|| out.busy_until.max(now));
        out.is_release_due = true;
        self.watch_input(input, bytes);
        Queued::Waits(due)
    }

    /// Counts the bytes that an input's packets hold, and the pauses that a lossless switch would
    /// send.
    fn watch_input(&mut self, input: u32, bytes: u64) {
        if input == NO_INPUT {
            return;
        }
        let peer = input ^ 1;
        let node = &self.nodes[self.ports[peer as usize].node as usize];
        let (share, max) = (node.spec.pause_share, node.spec.shared_bytes_max);
        let free = max.unwrap_or(u64::MAX).saturating_sub(node.held_bytes);
        let from = &mut self.ports[input as usize];
        from.held_bytes += bytes;
        let over =
            u128::from(from.held_bytes) * u128::from(SHARES) > u128::from(free) * u128::from(share);
        if share != 0 && over && !from.is_paused {
            from.is_paused = true;
            from.counters.would_pause += 1;
        }
    }

    fn leave_input(&mut self, input: u32, bytes: u64) {
        if input == NO_INPUT {
            return;
        }
        let node = &self.nodes[self.ports[input as usize ^ 1].node as usize];
        let (share, max) = (node.spec.pause_share, node.spec.shared_bytes_max);
        let free = max.unwrap_or(u64::MAX).saturating_sub(node.held_bytes);
        let from = &mut self.ports[input as usize];
        from.held_bytes = from.held_bytes.saturating_sub(bytes);
        let under = u128::from(from.held_bytes) * u128::from(SHARES)
            <= u128::from(free) * u128::from(share);
        if under {
            from.is_paused = false;
        }
    }

    /// Begins to send the first packet of the highest class, if the port is free. Returns the
    /// packet, if any, with its arrival, and when to call this again. `send_ps` gives the time that
    /// a size takes on the link, `flight_ps` is the time from its last bit to its arrival.
    pub(super) fn release(
        &mut self,
        now: u64,
        port: u32,
        send_ps: impl Fn(u32) -> u64,
        flight_ps: u64,
    ) -> (Option<(Packet<B>, u64)>, Option<u64>) {
        let out = &mut self.ports[port as usize];
        out.is_release_due = false;
        if out.waiting_bytes == 0 && out.queues.iter().all(VecDeque::is_empty) {
            return (None, None);
        }
        if out.busy_until > now {
            out.is_release_due = true;
            return (None, Some(out.busy_until));
        }
        let Some(class) = (0..CLASSES).find(|&class| !out.queues[class].is_empty()) else {
            return (None, None);
        };
        let Some(Held { mut packet, input, came_ps }) = out.queues[class].pop_front() else {
            return (None, None);
        };
        let bytes = u64::from(packet.size_bytes);
        out.count_area(now);
        out.waiting_bytes -= bytes;
        out.class_bytes[class] -= bytes;
        out.sent_bytes += bytes;
        out.counters.sent_bytes += bytes;
        let done = now + send_ps(packet.size_bytes);
        out.busy_until = done;
        let is_more = out.queues.iter().any(|queue| !queue.is_empty());
        out.is_release_due = is_more;
        let hop = Hop {
            port,
            waiting_bytes: out.waiting_bytes,
            sent_bytes: out.sent_bytes,
            at_ps: now,
            bits_per_s: out.bits_per_s,
            is_host: out.node < self.hosts,
        };
        let node = out.node as usize;
        self.nodes[node].held_bytes -= bytes;
        self.leave_input(input, bytes);
        if let Some(telemetry) = self.telemetry {
            telemetry(&mut packet.body, &hop);
        }
        if self.watched == Some(packet.flow_label) {
            if self.visits.len() == VISITS_MAX {
                self.visits.drain(..VISITS_MAX / 2);
            }
            let (size_bytes, arrives_ps) = (packet.size_bytes, done + flight_ps);
            let number = (self.number)(&packet.body);
            let visit = Visit { port, number, size_bytes, came_ps, left_ps: now, arrives_ps };
            self.visits.push(visit);
        }
        if !self.capture.is_empty() && self.capture.binary_search(&port).is_ok() {
            self.capture(now, port, &packet);
        }
        (Some((packet, done + flight_ps)), is_more.then_some(done))
    }

    fn capture(&mut self, now: u64, port: u32, packet: &Packet<B>) {
        if self.captured.len() >= CAPTURED_MAX {
            self.not_captured += 1;
            return;
        }
        self.captured.push(Captured {
            port,
            at_ps: now,
            from: packet.from,
            to: packet.to,
            size_bytes: packet.size_bytes,
            flow_label: packet.flow_label,
            number: (self.number)(&packet.body),
            class: packet.class,
            ecn: packet.ecn,
        });
    }

    /// Takes the link of a port down or up; waiting packets are lost, and those on the wire.
    pub(super) fn set_port(&mut self, now: u64, port: u32, is_up: bool) {
        let out = &mut self.ports[port as usize];
        if out.is_up == is_up {
            return;
        }
        out.is_up = is_up;
        if is_up {
            return;
        }
        out.incarnation = out.incarnation.wrapping_add(1);
        out.count_area(now);
        out.busy_until = now;
        let node = out.node as usize;
        let held: Vec<(u32, u64)> = out
            .queues
            .iter_mut()
            .flat_map(|queue| queue.drain(..))
            .map(|held| (held.input, u64::from(held.packet.size_bytes)))
            .collect();
        out.waiting_bytes = 0;
        out.class_bytes = [0; CLASSES];
        self.lost += held.len() as u64;
        for (input, bytes) in held {
            self.nodes[node].held_bytes -= bytes;
            self.leave_input(input, bytes);
        }
    }

    /// Restarts the statistics: the warm-up is over.
    pub(super) fn begin_statistics(&mut self, now: u64) {
        self.statistics_from = now;
        for port in &mut self.ports {
            port.changed_at = now;
            port.counters = QueueCounters::default();
        }
    }

    /// The statistics of each port until `now`, and the time that they cover, in ps.
    pub(super) fn counters(&self, now: u64) -> (Vec<QueueCounters>, u64) {
        let of = |port: &ManagedPort<B>| {
            let since = u128::from(now.saturating_sub(port.changed_at));
            let mut counters = port.counters;
            counters.waiting_area += since * u128::from(port.waiting_bytes);
            counters
        };
        (self.ports.iter().map(of).collect(), now.saturating_sub(self.statistics_from))
    }

    /// The bytes that all nodes hold.
    pub(super) fn held_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.held_bytes).sum()
    }
}
