//! The bag: every packet that was ever sent, equal ones once.

use std::collections::VecDeque;

use concord_core::Rng;
use concord_core::hash::hash64;
use concord_wire::{Kind, kind, op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The number of kinds of packets that are distinguished.
const SORTS: usize = 160;
/// The number of packets of a kind that count as its latest.
const LATEST: usize = 12;

/// The index of a packet in the bag.
pub(super) type PacketId = u32;

/// A packet.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub from: u8,
    pub to: u8,
    pub bytes: Vec<u8>,
    /// The kind of the packet: see [`sort_of`].
    pub sort: u8,
    /// The incarnations of sender and receiver when it was first sent.
    pub incarnations: (u64, u64),
    /// The sender's epoch, or view, when it was first sent.
    pub epoch: u32,
    /// Whether it has not been delivered since it was last sent.
    is_fresh: bool,
}

/// The way in which a step names a packet: by its content; or, if the content differs because an
/// earlier step is left out, by its ordinal among the packets of its kind between the same nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    hash: u64,
    way: (u8, u8, u8),
    ordinal: u32,
}

/// The bag of packets.
#[derive(Debug, Default)]
pub(super) struct Bag {
    pub flights: Vec<Flight>,
    by_hash: HashMap<u64, PacketId, FxBuildHasher>,
    by_way: HashMap<(u8, u8, u8), Vec<PacketId>, FxBuildHasher>,
    by_sort: Vec<Vec<PacketId>>,
    sorts: Vec<u8>,
    /// The packets that were not delivered since they were sent, oldest first.
    fresh: VecDeque<PacketId>,
}

impl Bag {
    /// Adds a packet that a node sends.
    pub(super) fn put(
        &mut self,
        (from, to): (usize, usize),
        incarnations: (u64, u64),
        epoch: u32,
        bytes: Vec<u8>,
    ) {
        let hash = hash64((from << 8 | to) as u64, &bytes);
        if let Some(id) = self.by_hash.get(&hash) {
            let flight = &mut self.flights[*id as usize];
            if !flight.is_fresh {
                flight.is_fresh = true;
                self.fresh.push_back(*id);
            }
            return;
        }
        let id = self.flights.len() as PacketId;
        let sort = sort_of(&bytes);
        let (from, to) = (from as u8, to as u8);
        self.by_hash.insert(hash, id);
        self.by_way.entry((from, to, sort)).or_default().push(id);
        self.by_sort.resize(SORTS, Vec::new());
        if self.by_sort[usize::from(sort)].is_empty() {
            self.sorts.push(sort);
        }
        self.by_sort[usize::from(sort)].push(id);
        self.fresh.push_back(id);
        self.flights.push(Flight { from, to, bytes, sort, incarnations, epoch, is_fresh: true });
    }

    /// The next fresh packet that may be delivered, among the first `window`. One that may not be
    /// is passed over for good, and arrives only as an old packet.
    pub(super) fn next_fresh(
        &mut self,
        rng: &mut Rng,
        window: usize,
        may: impl Fn(&Flight) -> bool,
    ) -> Option<PacketId> {
        let mut at = 0;
        while at < window.min(self.fresh.len()) {
            let id = self.fresh[at] as usize;
            if may(&self.flights[id]) {
                at += 1;
            } else {
                self.fresh.remove(at);
                self.flights[id].is_fresh = false;
            }
        }
        let chosen = rng.below(at as u64) as usize;
        self.fresh.get(chosen).copied()
    }

    /// Draws any packet: with `by_sort`, each kind is equally likely, otherwise each packet.
    pub(super) fn any(&self, rng: &mut Rng, by_sort: bool) -> Option<PacketId> {
        if !by_sort {
            let any = rng.below(self.flights.len() as u64);
            return (!self.flights.is_empty()).then_some(any as PacketId);
        }
        let sort = self.sorts.get(rng.below(self.sorts.len() as u64) as usize)?;
        let all = &self.by_sort[usize::from(*sort)];
        all.get(rng.below(all.len() as u64) as usize).copied()
    }

    /// Draws a packet of a kind, half of the time one of the latest.
    pub(super) fn any_of(&self, rng: &mut Rng, sort: u8) -> Option<PacketId> {
        let all = self.by_sort.get(usize::from(sort))?;
        let latest = if rng.chance(1, 2) { all.len().min(LATEST) } else { all.len() };
        let at = all.len() - latest + rng.below(latest as u64) as usize;
        all.get(at).copied()
    }

    /// Notes that the packet is delivered, and returns it.
    pub(super) fn deliver(&mut self, id: PacketId) -> Option<&Flight> {
        let flight = self.flights.get_mut(id as usize)?;
        if std::mem::take(&mut flight.is_fresh)
            && let Some(at) = self.fresh.iter().position(|f| *f == id)
        {
            self.fresh.remove(at);
        }
        self.flights.get(id as usize)
    }

    /// Makes all fresh packets old: they do not arrive by themselves any more.
    pub(super) fn forget_fresh(&mut self) {
        for id in self.fresh.drain(..) {
            self.flights[id as usize].is_fresh = false;
        }
    }

    pub(super) fn name(&self, id: PacketId) -> Name {
        let flight = &self.flights[id as usize];
        let way = (flight.from, flight.to, flight.sort);
        let seed = u64::from(flight.from) << 8 | u64::from(flight.to);
        let on_way = self.by_way.get(&way).and_then(|all| all.binary_search(&id).ok());
        Name { hash: hash64(seed, &flight.bytes), way, ordinal: on_way.unwrap_or(0) as u32 }
    }

    pub(super) fn find(&self, name: &Name) -> Option<PacketId> {
        let exact = self.by_hash.get(&name.hash);
        exact.or_else(|| self.by_way.get(&name.way)?.get(name.ordinal as usize)).copied()
    }
}

/// The kind of a packet, from its kind and operation on the wire.
fn sort_of(bytes: &[u8]) -> u8 {
    let (begin, most) = match kind(bytes) {
        Ok(Kind::Store) => (0, 48),
        Ok(Kind::Link) => (48, 4),
        Ok(Kind::Craq) => (52, 4),
        Ok(Kind::NoPaxos) => (56, 4),
        Err(_) => (60, 4),
        Ok(Kind::Membership) => (64, 32),
        Ok(Kind::Lease) => (96, 8),
        Ok(Kind::Copy) => (104, 24),
        Ok(Kind::Vr) => (128, 32),
        Ok(Kind::Falcon) => (160, 8),
        Ok(Kind::Tasks) => (168, 16),
        Ok(Kind::FlairSession) => (184, 8),
        Ok(Kind::Flair) => (192, 48),
        Ok(Kind::Gateways) => (240, 8),
        Ok(Kind::NetCraq) => (248, 7),
        // Systems that no bag contains share the last kind.
        Ok(Kind::NetChain | Kind::Concordia | Kind::Harmony | Kind::Chain) => (255, 1),
    };
    begin + op(bytes) % most
}
