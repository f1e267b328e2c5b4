//! Packets in flight: one vector and a list of its free slots, so that a packet costs no
//! allocation. Slots are chained into queues by their index.

use super::topology::HostIndex;

/// No packet.
pub(super) const NONE: u32 = u32::MAX;

/// A packet; `B` is what the driver carries in it: a transport's header, or the bytes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet<B> {
    /// The host that it goes to.
    pub to: HostIndex,
    /// The host that sent it.
    pub from: HostIndex,
    /// Its size on the wire, with everything that takes time there.
    pub size_bytes: u32,
    /// ECMP keeps packets of one label on one path.
    pub flow_label: u32,
    /// Its priority at every port: 0 goes first; below [`CLASSES`](super::CLASSES).
    pub class: u8,
    /// Its kind of message, by which a host looks up its service time; below
    /// [`KINDS`](super::KINDS).
    pub kind: u8,
    /// The driver's.
    pub body: B,
}

/// A packet in the network's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketId(pub(super) u32);

struct Slot<B> {
    packet: Packet<B>,
    next: u32,
}

/// The packets in flight.
pub(super) struct Pool<B> {
    slots: Vec<Slot<B>>,
    free: u32,
    live: usize,
}

impl<B: Default> Pool<B> {
    pub(super) fn new() -> Pool<B> {
        Pool { slots: Vec::new(), free: NONE, live: 0 }
    }

    /// Packets in flight.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// The most packets that were ever in flight at once.
    pub(super) fn peak(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn insert(&mut self, packet: Packet<B>) -> u32 {
        self.live += 1;
        let slot = Slot { packet, next: NONE };
        let id = self.free;
        if id == NONE {
            let id = self.slots.len() as u32;
            assert!(id != NONE, "more than 2^32 - 1 packets in flight");
            self.slots.push(slot);
            return id;
        }
        self.free = self.slots[id as usize].next;
        self.slots[id as usize] = slot;
        id
    }

    /// Frees the slot; the packet is the caller's.
    pub(super) fn remove(&mut self, id: u32) -> Packet<B> {
        let slot = &mut self.slots[id as usize];
        slot.next = self.free;
        self.free = id;
        self.live -= 1;
        std::mem::take(&mut slot.packet)
    }

    pub(super) fn get(&self, id: u32) -> &Packet<B> {
        &self.slots[id as usize].packet
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Packet<B> {
        &mut self.slots[id as usize].packet
    }
}

/// A first-in, first-out queue of packets of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    pub(super) const EMPTY: Fifo = Fifo { head: NONE, tail: NONE };

    pub(super) fn is_empty(self) -> bool {
        self.head == NONE
    }

    pub(super) fn push<B>(&mut self, pool: &mut Pool<B>, id: u32) {
        pool.slots[id as usize].next = NONE;
        if self.head == NONE {
            self.head = id;
        } else {
            pool.slots[self.tail as usize].next = id;
        }
        self.tail = id;
    }

    pub(super) fn pop<B>(&mut self, pool: &Pool<B>) -> Option<u32> {
        if self.head == NONE {
            return None;
        }
        let id = self.head;
        self.head = pool.slots[id as usize].next;
        Some(id)
    }
}
