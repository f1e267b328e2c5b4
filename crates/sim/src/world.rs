//! Virtual time, and a network that loses, delays and duplicates packets as the plan says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use concord_core::addr::Patch;
use concord_core::hash::hash64;
use concord_core::{Duration, Now, Rng};
use concord_wire::rpc::HEADER_BYTES;
use concord_wire::{Addr, Kind, Op, Packet, Sink, header, link};

use crate::clock::Clock;
use crate::fabric::{Arrival, Carried, Fabric};
use crate::odd::Odd;
use crate::record::{Fate, Recorder};
use crate::systems::store::edges::Packets;

/// The controller's place among the nodes.
pub(crate) const CONTROLLER: usize = 0;
/// The switch's place among the nodes.
pub(crate) const SWITCH: usize = 1;
/// The place of the first replica. The clients follow the replicas, then the second controller and
/// the second switch.
pub(crate) const REPLICAS: usize = 2;

const MILLION: u64 = 1_000_000;
/// The loss rate of sequenced writes while a fault loses them, per million.
const WRITES_LOST_PPM: u64 = 300_000;
const SPARE_MAX: usize = 1_024;
/// The number of bits for an event's slot in its key; the other 40 bits below the time are the
/// event's ordinal.
const SLOT_BITS: u32 = 24;
const IP: u32 = 0x0a00_0001;
const PORT: u16 = 7_400;

/// An event of a run.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A packet arrives at a node.
    Deliver { from: usize, to: usize, bytes: Vec<u8> },
    /// A node has finished a packet, or its pause is over: it may handle the next one.
    Serve { node: usize },
    /// A node's deadline: it had asked to be woken now.
    Wake { node: usize },
    /// A node's storage engine completes an operation.
    Engine { node: usize },
    /// A connection of a client process sends its next operation.
    Next { node: usize, connection: usize },
    /// The fault with this index in the plan begins.
    Fault { index: usize },
    /// A sync of a replica's disk ends; ignored if its process has ended since.
    Disk { node: usize, incarnation: u64 },
    /// A replica that was told to shut down is restarted.
    Start { node: usize },
    /// A full disk of a replica has room again; ignored if it was filled anew since.
    Room { node: usize },
}

/// The pending events, by time; events of one time leave in the order in which they were added.
///
/// The heap has keys of 16 bytes: time, ordinal, and the event's slot. Ordinals are unique, so that
/// slots are never compared.
#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Reverse<u128>>,
    ordinal: u64,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
}

impl Queue {
    fn push(&mut self, at_ns: u64, event: Event) {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            assert!(slot < 1 << SLOT_BITS, "more events wait than have a slot");
            self.slots.push(None);
        }
        self.slots[slot] = Some(event);
        self.ordinal += 1;
        let key = u128::from(at_ns) << 64 | u128::from(self.ordinal << SLOT_BITS) | slot as u128;
        self.heap.push(Reverse(key));
    }

    /// The time of the next event; `u64::MAX` if none is pending.
    fn next_ns(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |Reverse(key)| (*key >> 64) as u64)
    }

    fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse(key) = self.heap.pop()?;
        let slot = key as usize & ((1 << SLOT_BITS) - 1);
        self.free.push(slot);
        Some(((key >> 64) as u64, self.slots[slot].take()?))
    }
}

/// A link between two nodes that is cut in one direction, up to a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub from: usize,
    pub to: usize,
    pub until_ns: u64,
}

/// A delay: packets from one node to another that are sent before one time arrive at another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub from: usize,
    pub to: usize,
    pub until_ns: u64,
    pub arrive_ns: u64,
}

/// A period in which the whole network loses or duplicates more packets, up to a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub until_ns: u64,
}

/// The latency, loss, duplication and reordering of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub reorder_ppm: u64,
    pub latency_ns: Duration,
    /// The latency between two nodes of `peers`, in ns.
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

/// The event queue, the clocks, and the network.
pub(crate) struct World {
    /// The virtual time, in ns since the start.
    pub now_ns: u64,
    queue: Queue,
    rng: Rng,
    /// The nodes that are switches.
    pub switches: Vec<usize>,
    /// The links that packets take, if the plan has any; latencies then result from them.
    pub fabric: Option<Fabric>,
    pub weather: Weather,
    pub cuts: Vec<Cut>,
    pub holds: Vec<Hold>,
    pub bursts: Vec<Burst>,
    /// The time until which completions are lost on their way to the switch.
    pub completions_lost_until_ns: u64,
    /// The times until which records are lost on their way to a replica.
    pub records_lost: Vec<(usize, u64)>,
    /// The times until which some of the sequenced writes are lost on their way to a replica.
    pub writes_lost: Vec<(usize, u64)>,
    pub odd: Odd,
    pub clocks: Vec<Clock>,
    /// The hash of all events so far.
    pub digest: u64,
    pub events: u64,
    pub packets: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub recorder: Option<Recorder>,
}

/// The address of a node. Each node is a host of its own, so that a capture is easy to read.
pub(crate) fn addr(node: usize) -> Addr {
    Addr { ip: IP + node as u32, port: PORT }
}

pub(crate) fn node_of(addr: Addr) -> usize {
    addr.ip.wrapping_sub(IP) as usize
}

impl World {
    pub(crate) fn new(rng: Rng, weather: Weather, odd: Odd) -> World {
        World {
            now_ns: 0,
            queue: Queue::default(),
            rng,
            switches: vec![SWITCH],
            fabric: None,
            weather,
            cuts: Vec::new(),
            holds: Vec::new(),
            bursts: Vec::new(),
            completions_lost_until_ns: 0,
            records_lost: Vec::new(),
            writes_lost: Vec::new(),
            odd,
            clocks: Vec::new(),
            digest: 0,
            events: 0,
            packets: 0,
            lost: 0,
            duplicated: 0,
            recorder: None,
        }
    }

    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.queue.push(at_ns, event);
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let limit_ns = self.queue.next_ns();
        let arrival = self.fabric.as_mut().and_then(|fabric| fabric.next_until(limit_ns));
        let (at_ns, event) = match arrival {
            Some(Arrival { at_ns, from, to, carried }) => {
                if let (Some(recorder), Some(at)) = (&mut self.recorder, carried.recorded) {
                    recorder.arrived(at, at_ns);
                }
                (at_ns, Event::Deliver { from, to, bytes: carried.bytes })
            }
            None => self.queue.pop()?,
        };
        self.now_ns = self.now_ns.max(at_ns);
        self.events += 1;
        Some(event)
    }

    /// Adds an event at a node to the digest of the run.
    pub(crate) fn note(&mut self, what: u64, node: usize, bytes: &[u8]) {
        let seed = self.digest.rotate_left(9) ^ self.now_ns ^ (what << 56) ^ ((node as u64) << 48);
        self.digest = hash64(seed, bytes);
    }

    /// The readings of a node's clocks.
    pub(crate) fn clock(&self, node: usize) -> Now {
        self.clocks[node].at(self.now_ns)
    }

    /// Ends all faults of the network.
    pub(crate) fn calm(&mut self) {
        self.weather.loss_ppm = 0;
        self.weather.duplicate_ppm = 0;
        self.weather.reorder_ppm = 0;
        self.cuts.clear();
        self.holds.clear();
        self.bursts.clear();
        self.completions_lost_until_ns = 0;
        self.records_lost.clear();
        self.writes_lost.clear();
        self.odd.packets = Packets::default();
    }

    /// Transmits at `at_ns` the packets that a node has sent.
    pub(crate) fn transmit(&mut self, from: usize, at_ns: u64, sent: &mut Outgoing) {
        let Outgoing { packets, spare } = sent;
        for (to, mut bytes) in packets.drain(..) {
            let to = node_of(to);
            if to >= self.clocks.len() {
                continue;
            }
            self.packets += 1;
            let is_cut = self.is_cut(from, to);
            for (later_ns, odd) in self.odd.beside(&mut bytes).into_iter().filter(|_| !is_cut) {
                self.carry((from, to), at_ns, later_ns, odd);
            }
            let Some((loss_ppm, duplicate_ppm)) = self.passes(from, to, &bytes) else {
                self.lose(from, to, at_ns, &bytes);
                continue;
            };
            if self.rng.chance(loss_ppm, MILLION) {
                self.lose(from, to, at_ns, &bytes);
                continue;
            }
            let held_ns = self.held(from, to, at_ns);
            if self.rng.chance(duplicate_ppm, MILLION) {
                self.duplicated += 1;
                let late_ns = held_ns + self.rng.below(self.weather.delay_ns);
                let mut copy = spare.pop().unwrap_or_default();
                copy.extend_from_slice(&bytes);
                self.carry((from, to), at_ns, late_ns, copy);
            }
            let late = self.rng.chance(self.weather.reorder_ppm, MILLION);
            let jitter_ns = if late { self.rng.below(self.weather.delay_ns) } else { 0 };
            self.carry((from, to), at_ns, held_ns + jitter_ns, bytes);
        }
    }

    /// Delivers a packet that was sent at `sent_ns`, delayed by `later_ns` beyond its latency.
    fn carry(&mut self, way: (usize, usize), sent_ns: u64, later_ns: u64, bytes: Vec<u8>) {
        let (from, to) = way;
        let Some(fabric) = &mut self.fabric else {
            let arrives_ns = sent_ns + self.weather.latency_ns(from, to) + later_ns;
            self.record(from, to, sent_ns, Fate::Arrives(arrives_ns), &bytes);
            return self.push(arrives_ns, Event::Deliver { from, to, bytes });
        };
        // Recorded as lost until it arrives: a full port may still drop it.
        let recorded = self.recorder.as_mut().map(|recorder| {
            recorder.packet(way, sent_ns, Fate::Lost, &bytes);
            recorder.recording.flights.len() - 1
        });
        fabric.send(from, to, sent_ns + later_ns, Carried { bytes, recorded });
    }

    /// The additional delay of a packet that leaves at `at_ns`, if a fault holds packets of its
    /// link.
    fn held(&self, from: usize, to: usize, at_ns: u64) -> u64 {
        let holds = |h: &&Hold| h.from == from && h.to == to && self.now_ns < h.until_ns;
        let alone_ns = at_ns + self.weather.latency_ns(from, to);
        self.holds.iter().find(holds).map_or(0, |h| h.arrive_ns.saturating_sub(alone_ns))
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        let is_on_way = |c: &Cut| c.from == from && c.to == to && self.now_ns < c.until_ns;
        self.cuts.iter().any(is_on_way)
    }

    /// The probabilities that a packet is lost and duplicated, per million; `None` if its link is
    /// cut.
    fn passes(&self, from: usize, to: usize, bytes: &[u8]) -> Option<(u64, u64)> {
        let now_ns = self.now_ns;
        let is_switch = self.switches.contains(&to);
        if self.is_cut(from, to)
            || (is_switch && now_ns < self.completions_lost_until_ns && is_completion(bytes))
        {
            return None;
        }
        let lost =
            self.records_lost.iter().any(|(node, until_ns)| *node == to && now_ns < *until_ns);
        if lost && is_record(bytes) {
            return None;
        }
        let mut ppm = (self.weather.loss_ppm, self.weather.duplicate_ppm);
        let loses = |(node, until_ns): &(usize, u64)| *node == to && now_ns < *until_ns;
        if self.writes_lost.iter().any(loses) && is_sequenced_write(bytes) {
            ppm.0 = ppm.0.max(WRITES_LOST_PPM);
        }
        for burst in self.bursts.iter().filter(|b| now_ns < b.until_ns) {
            ppm = (ppm.0.max(burst.loss_ppm), ppm.1.max(burst.duplicate_ppm));
        }
        Some(ppm)
    }

    fn lose(&mut self, from: usize, to: usize, at_ns: u64, bytes: &[u8]) {
        self.lost += 1;
        self.record(from, to, at_ns, Fate::Lost, bytes);
    }

    fn record(&mut self, from: usize, to: usize, at_ns: u64, fate: Fate, bytes: &[u8]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.packet((from, to), at_ns, fate, bytes);
        }
    }
}

fn is_record(bytes: &[u8]) -> bool {
    header::is(bytes, Kind::Link, link::OP_DATA)
}

fn is_sequenced_write(bytes: &[u8]) -> bool {
    Packet::parse(bytes).is_ok_and(|packet| {
        let repr = packet.repr();
        repr.op == Op::Write && repr.seq.is_some()
    })
}

fn is_completion(bytes: &[u8]) -> bool {
    let is = |op| header::is(bytes, Kind::Store, op as u8);
    bytes.len() >= HEADER_BYTES && (is(Op::WriteCompletion) || is(Op::WriteReply))
}

/// The packets that a node sent while it handled one input.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub packets: Vec<(Addr, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Sink for Outgoing {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(packet);
        self.packets.push((to, buffer));
    }

    fn send_patched(&mut self, to: Addr, packet: &[u8], patch: Patch) {
        self.send(to, packet);
        if let Some((_, copy)) = self.packets.last_mut() {
            patch.write(copy);
        }
    }
}

impl Outgoing {
    /// Takes back a packet's buffer for reuse.
    pub(crate) fn reuse(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
