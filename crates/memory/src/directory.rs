//! The directory: a home's part of the coherence state. It knows which blocks of its range it owns,
//! their locks, statuses and copysets, and moves the ownership to the switch and back (Concordia
//! §5.2).
//!
//! For the blocks that it owns, a home does what the switch does for its own: lock, check, forward.
//! All requests pass the switch, which marks the first copy of each number: no other copy takes a
//! lock here. The switch also adds how many moves of this home it had seen when the request passed:
//! a request that passed before its block came back belongs to an earlier ownership, and takes no
//! lock (trap C6).
//!
//! A home makes one move at a time. ADD keeps the block locked until the switch has it. REMOVE
//! locks the block in the switch, which returns the metadata as often as it is asked; once the home
//! has the metadata, FORGET clears it there (trap C5).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards, Instant};
use concord_wire::concordia::{Copyset, GlobalStatus, NUMBER_MAX, Op, Outcome, Repr, Tag};

/// The first version of a block. The home's value has a lower one.
const FIRST_VERSION: u64 = 1;
/// The number of windows without a request after which a block leaves the switch.
const COLD_WINDOWS: u32 = 8;
/// The maximum number of blocks that move after a window (§5.2.2).
const MOVES_MAX: usize = 1_000;

/// The event that holds a lock: place, lane, number.
type Holder = (u8, u8, u64);

/// The location of a block's coherence state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// At its home.
    Home,
    /// At its home, locked until the switch has it.
    Adding,
    /// In the switch.
    Switch,
    /// In the switch, which was asked to lock it and to return its metadata.
    Removing,
    /// At its home, locked until the switch has forgotten it.
    Forgetting,
}

/// The reason why a home's value may not be the newest, once its epoch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Whether the value is known to be old, or only the switch knew.
    pub is_old: bool,
    /// The place of the event that had the write lock: its write may have taken effect.
    pub writer: Option<u8>,
}

impl Doubt {
    /// Whether the home's value is the newest all the same if no member has a copy: then only a
    /// member that stays could have written a newer one.
    #[must_use]
    pub fn is_certain(&self, stays: impl Fn(u8) -> bool) -> bool {
        !self.is_old && self.writer.is_none_or(stays)
    }
}

/// The coherence state of a block.
#[derive(Clone, Debug)]
struct Entry {
    owner: Owner,
    status: GlobalStatus,
    version: u64,
    copyset: Copyset,
    writer: Option<Holder>,
    readers: Vec<Holder>,
    /// A writer was refused since the last writer had the lock: readers wait (trap C14).
    is_wanted: bool,
    /// The move that brought it back: requests that passed the switch before it are of an earlier
    /// ownership.
    since: u64,
    /// The number of copies that requests reached, in this window and in the last one.
    heat: (u64, u64),
    /// The number of windows without any request.
    cold: u32,
}

impl Entry {
    const NEW: Entry = Entry {
        owner: Owner::Home,
        status: GlobalStatus::Unshared,
        version: FIRST_VERSION,
        copyset: Copyset(0),
        writer: None,
        readers: Vec::new(),
        is_wanted: false,
        since: 0,
        heat: (0, 0),
        cold: 0,
    };

    fn is_locked(&self) -> bool {
        self.writer.is_some() || !self.readers.is_empty()
    }

    fn is_held_by(&self, holder: Holder) -> bool {
        self.writer == Some(holder) || self.readers.contains(&holder)
    }
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It is stale: its lane has a newer number.
    Over,
    /// It did not get the lock.
    Failed(Outcome),
    /// It holds the lock: status, version and copyset.
    Locked(GlobalStatus, u64, Copyset),
}

/// A move of a block to the switch or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The block.
    pub tag: Tag,
    /// The number of the move.
    pub number: u64,
    /// When the move was last sent.
    pub at: Instant,
}

/// The directory of a home.
#[derive(Clone, Debug)]
pub struct Directory {
    guards: Guards,
    entries: BTreeMap<Tag, Entry>,
    /// The newest number of each lane in this home's requests.
    lanes: BTreeMap<(u8, u8), u64>,
    /// The number of the newest move.
    moves: u64,
    moving: Option<Move>,
    /// Blocks that are hot, or not owned by the home.
    warm: BTreeSet<Tag>,
    /// Blocks that may move; the last one moves first.
    candidates: Vec<Tag>,
    /// Blocks in the switch that are in the way of hotter ones.
    unwanted: Vec<Tag>,
}

impl Directory {
    /// A directory whose home owns all blocks of its range.
    #[must_use]
    pub fn new(guards: Guards) -> Directory {
        Directory {
            guards,
            entries: BTreeMap::new(),
            lanes: BTreeMap::new(),
            moves: 0,
            moving: None,
            warm: BTreeSet::new(),
            candidates: Vec::new(),
            unwanted: Vec::new(),
        }
    }

    /// Handles a request for a block that the switch does not own: lock and check. A lost block
    /// cannot be locked.
    pub fn request(&mut self, packet: &Repr, is_lost: bool) -> Passed {
        let (lane, number) = ((packet.place, packet.lane), packet.number);
        let holder = (packet.place, packet.lane, number);
        let newest = self.lanes.entry(lane).or_default();
        let is_once = self.guards.on(Guard::EventOnce);
        if number < *newest && is_once {
            return Passed::Over;
        }
        let is_new = number > *newest || !is_once;
        *newest = number.max(*newest);
        let entry = self.entries.entry(packet.tag).or_insert(Entry::NEW);
        let locked = |entry: &Entry| Passed::Locked(entry.status, entry.version, entry.copyset);
        if entry.is_held_by(holder) {
            return locked(entry);
        }
        if is_lost {
            return Passed::Failed(Outcome::Lost);
        }
        let is_first = packet.is_first || !self.guards.on(Guard::FirstCopy);
        let is_current = packet.version >= entry.since || !self.guards.on(Guard::MovedRequest);
        let is_here = match entry.owner {
            Owner::Home => true,
            Owner::Adding | Owner::Forgetting => !self.guards.on(Guard::MoveLocked),
            Owner::Switch | Owner::Removing => false,
        };
        if !is_new || !is_first || !is_current || !is_here {
            return Passed::Failed(Outcome::Busy);
        }
        let has_copy = entry.copyset.has(packet.place);
        if self.guards.on(Guard::CheckTable) && !packet.op.is_valid(has_copy, entry.status) {
            return Passed::Failed(Outcome::Invalid);
        }
        if packet.op.is_shared() {
            let waits = entry.is_wanted && self.guards.on(Guard::WriterWanted);
            if entry.writer.is_some() || waits {
                return Passed::Failed(Outcome::Busy);
            }
            entry.readers.push(holder);
        } else if entry.is_locked() {
            // A refused eviction may not be retried, so readers must not wait for it.
            entry.is_wanted |= !packet.op.is_eviction();
            return Passed::Failed(Outcome::Busy);
        } else {
            (entry.writer, entry.is_wanted) = (Some(holder), false);
        }
        locked(entry)
    }

    /// Handles an unlock that the switch passed on; returns whether it is answered. It takes effect
    /// if its event holds the lock; otherwise it already did, here, or in the switch while that
    /// owned the block.
    pub fn unlock(&mut self, packet: &Repr) -> bool {
        let holder = (packet.place, packet.lane, packet.number);
        if self.lanes.get(&(packet.place, packet.lane)).is_some_and(|n| *n > packet.number) {
            return false;
        }
        let compares = self.guards.on(Guard::UnlockCompared);
        let entry = self.entries.entry(packet.tag).or_insert(Entry::NEW);
        let is_held = entry.is_held_by(holder) && entry.version == packet.version;
        if !is_held && compares {
            return true;
        }
        entry.status = packet.status;
        if packet.is_exclusive {
            entry.copyset = packet.copyset;
            entry.version = NUMBER_MAX.min(packet.version + 1);
            entry.writer = None;
        } else {
            // Other readers may have joined since the request left (§5.1.1).
            entry.copyset = entry.copyset.with(Copyset::of(packet.place));
            entry.readers.retain(|reader| *reader != holder);
        }
        true
    }

    /// Notes that the home has a block's value of this version: if it is the newest one, shared
    /// copies are equal to it.
    pub fn refreshed(&mut self, tag: Tag, version: u64) {
        let is_newest = |entry: &&mut Entry| {
            entry.status == GlobalStatus::SharedStale && entry.version == version
        };
        if let Some(entry) = self.entries.get_mut(&tag).filter(is_newest) {
            entry.status = GlobalStatus::Shared;
        }
    }

    /// Begins to move a block to the other owner; `false` if another move is in progress, or the
    /// block is locked.
    pub fn begin(&mut self, now: Instant, tag: Tag) -> bool {
        let entry = self.entries.entry(tag).or_insert(Entry::NEW);
        if self.moving.is_some() {
            return false;
        }
        entry.owner = match entry.owner {
            Owner::Home if entry.is_locked() && self.guards.on(Guard::MoveLocked) => return false,
            Owner::Home => Owner::Adding,
            _ => Owner::Removing,
        };
        self.moves += 1;
        self.warm.insert(tag);
        self.moving = Some(Move { tag, number: self.moves, at: now });
        true
    }

    /// The move that is in progress, and the packet to send for it.
    #[must_use]
    pub fn moving(&self) -> Option<(Move, Repr)> {
        let moving = self.moving?;
        let entry = self.entries.get(&moving.tag)?;
        let op = match entry.owner {
            Owner::Adding => Op::Add,
            Owner::Removing => Op::Remove,
            Owner::Forgetting => Op::Forget,
            Owner::Home | Owner::Switch => return None,
        };
        let Entry { status, version, copyset, .. } = *entry;
        let packet = Repr { number: moving.number, ..Repr::new(op, moving.tag) };
        Some((moving, Repr { status, version, copyset, ..packet }))
    }

    /// Notes that the packet of the move is sent now.
    pub fn sent(&mut self, now: Instant) {
        if let Some(moving) = &mut self.moving {
            moving.at = now;
        }
    }

    /// Handles the switch's answer to a move; returns whether the move goes on.
    pub fn answered(&mut self, packet: &Repr) -> bool {
        let is_its = |moving: &Move| moving.number == packet.number && moving.tag == packet.tag;
        if !self.moving.as_ref().is_some_and(is_its) {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&packet.tag) else { return false };
        match (packet.op, entry.owner, packet.outcome) {
            (Op::Added, Owner::Adding, Outcome::Done) => {
                (entry.owner, entry.cold, entry.is_wanted) = (Owner::Switch, 0, false);
                self.moving = None;
            }
            (Op::Added, Owner::Adding, _) => {
                // It is tried again if the block is hot in a later window.
                (entry.owner, entry.heat.1) = (Owner::Home, 0);
                self.moving = None;
            }
            (Op::Removed, Owner::Removing, Outcome::Done) => {
                (entry.status, entry.copyset) = (packet.status, packet.copyset);
                (entry.version, entry.since) = (packet.version, packet.number);
                (entry.owner, entry.heat.1) = (Owner::Forgetting, 0);
                return true;
            }
            (Op::Forgotten, Owner::Forgetting, _) => {
                entry.owner = Owner::Home;
                self.moving = None;
            }
            _ => return false,
        }
        self.moving.is_none()
    }

    /// Counts the copies of a block that a request reached.
    pub fn heats(&mut self, tag: Tag, count: u64) {
        let entry = self.entries.entry(tag).or_insert(Entry::NEW);
        entry.heat.0 = entry.heat.0.saturating_add(count);
        self.warm.insert(tag);
    }

    /// Notes that a block of another home with this heat wants the place of this one in the switch.
    pub fn displaces(&mut self, tag: Tag, heat: u64) {
        let is_colder = |entry: &Entry| entry.owner == Owner::Switch && entry.heat.1 < heat;
        if self.entries.get(&tag).is_some_and(is_colder) && !self.unwanted.contains(&tag) {
            self.unwanted.push(tag);
        }
    }

    /// The heat of a block in the last window.
    #[must_use]
    pub fn heat(&self, tag: Tag) -> u64 {
        self.entries.get(&tag).map_or(0, |entry| entry.heat.1)
    }

    /// Ends a window: chooses the blocks that may move in the next one.
    pub fn turn_window(&mut self) {
        let Directory { entries, warm, candidates, .. } = self;
        let mut ranked = Vec::new();
        warm.retain(|tag| {
            let Some(entry) = entries.get_mut(tag) else { return false };
            entry.heat = (0, entry.heat.0);
            entry.cold = if entry.heat.1 == 0 { entry.cold.saturating_add(1) } else { 0 };
            let is_home = entry.owner == Owner::Home;
            // Cold blocks make room once no hot one is left.
            if is_home && entry.heat.1 > 0 || !is_home && entry.cold >= COLD_WINDOWS {
                ranked.push((entry.heat.1, *tag));
            }
            !is_home || entry.heat.1 > 0
        });
        ranked.sort_unstable();
        candidates.clear();
        candidates.extend(ranked.iter().rev().take(MOVES_MAX).rev().map(|(_, tag)| *tag));
    }

    /// Whether windows are needed: a block is warm, or in the switch.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        !self.warm.is_empty()
    }

    /// The block that moves next: first one that is in the way of a hotter one, then the hottest
    /// that the home owns, then a cold one in the switch.
    pub fn next_move(&mut self) -> Option<Tag> {
        if self.moving.is_some() {
            return None;
        }
        while let Some(tag) = self.unwanted.pop() {
            if self.owner(tag) == Owner::Switch {
                return Some(tag);
            }
        }
        while let Some(tag) = self.candidates.pop() {
            let Some(entry) = self.entries.get(&tag) else { continue };
            let may_go = match entry.owner {
                Owner::Home => entry.heat.1 > 0 && !entry.is_locked(),
                Owner::Switch => entry.cold >= COLD_WINDOWS,
                Owner::Adding | Owner::Removing | Owner::Forgetting => false,
            };
            if may_go {
                return Some(tag);
            }
        }
        None
    }

    /// The location of a block's coherence state.
    #[must_use]
    pub fn owner(&self, tag: Tag) -> Owner {
        self.entries.get(&tag).map_or(Owner::Home, |entry| entry.owner)
    }

    /// A block's status, version and copyset, and whether it is locked; `None` if the switch owns
    /// it.
    #[must_use]
    pub fn peek(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, bool)> {
        let new = Entry::NEW;
        let entry = self.entries.get(&tag).unwrap_or(&new);
        let is_here = matches!(entry.owner, Owner::Home | Owner::Adding | Owner::Forgetting);
        is_here.then(|| (entry.status, entry.version, entry.copyset, entry.is_locked()))
    }

    /// Whether a writer of the block was refused since the last one had the lock.
    #[must_use]
    pub fn is_wanted(&self, tag: Tag) -> bool {
        self.entries.get(&tag).is_some_and(|entry| entry.is_wanted)
    }

    /// The blocks whose value at the home may not be the newest, now that the epoch is over.
    /// `version`: that of the home's value.
    #[must_use]
    pub fn doubts(&self, version: impl Fn(Tag) -> u64) -> BTreeMap<Tag, Doubt> {
        let doubt = |(tag, entry): (&Tag, &Entry)| {
            let is_known = matches!(entry.owner, Owner::Home | Owner::Forgetting);
            let is_stale =
                matches!(entry.status, GlobalStatus::Modified | GlobalStatus::SharedStale);
            if is_known && version(*tag) >= entry.version {
                return None;
            }
            let writer = entry.writer.map(|(place, ..)| place);
            let doubt = Doubt { is_old: !is_known || is_stale, writer };
            (doubt.is_old || writer.is_some()).then_some((*tag, doubt))
        };
        self.entries.iter().filter_map(doubt).collect()
    }

    /// Hashes what distinguishes its states; heat does not.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for (tag, entry) in &self.entries {
            (tag, entry.owner, entry.status, entry.version, entry.copyset).hash(hasher);
            (entry.writer, &entry.readers, entry.is_wanted, entry.since).hash(hasher);
        }
        let moving = self.moving.map(|moving| (moving.tag, moving.number));
        (&self.lanes, self.moves, moving).hash(hasher);
    }
}
