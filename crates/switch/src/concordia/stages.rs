//! The lock-check-forward pipeline, stage by stage (Concordia §5.1.1, figure 5).
//!
//! | stage | arrays | of |
//! |---|---|---|
//! | 0 | `moves`: the newest move's number, and whether it is open | a home |
//! | 1 to 3 | `tag_0` to `tag_5`, two in each | a block |
//! | 4 | `lane`: the newest event's number, and whether it is open | a requester |
//! | 5 to 10 | `meta_w` (version, status) and `copyset_w` of way w in stage 5 + w | a block |
//! | 6 to 11 | `lock_w` of way w in stage 6 + w | a block |
//!
//! The paper has lock, status and copyset in one stage, and checks after that: a request that fails
//! the check goes round to release its lock. Here the check stands before the lock, and a request
//! that fails it never gets the lock. The order of stages keeps this atomic: an unlock writes
//! status and copyset one stage before it frees the lock, so that the next holder of the lock has
//! read what the unlock wrote.

use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_pisa::hash::{Crc32, SPREADING};
use concord_pisa::{ArrayReport, Pass, RegisterArray};
use concord_wire::concordia::{Copyset, GlobalStatus, LANES_MAX, NODES_MAX, NUMBER_MAX, Op, Tag};

use super::layout::{BlocksLayout, WAYS_MAX};

/// The number of stages of a program with all ways.
pub(super) const STAGES: u8 = META_STAGE + 1 + WAYS_MAX as u8;
const MOVES_STAGE: u8 = 0;
const TAG_STAGE: u8 = 1;
const LANE_STAGE: u8 = 4;
const META_STAGE: u8 = 5;
/// Instead of a way: there was no room for the block of a move.
pub(super) const NO_WAY: u8 = u8::MAX;

const TAGS: [&str; WAYS_MAX] = ["tag_0", "tag_1", "tag_2", "tag_3", "tag_4", "tag_5"];
const METAS: [&str; WAYS_MAX] = ["meta_0", "meta_1", "meta_2", "meta_3", "meta_4", "meta_5"];
const COPYSETS: [&str; WAYS_MAX] =
    ["copyset_0", "copyset_1", "copyset_2", "copyset_3", "copyset_4", "copyset_5"];
const LOCKS: [&str; WAYS_MAX] = ["lock_0", "lock_1", "lock_2", "lock_3", "lock_4", "lock_5"];

/// The hash unit that picks a block's row: consecutive blocks get different rows.
static ROWS: Crc32 = Crc32::new(SPREADING);

/// The holders of a lock: the writer's lane and its event's number, or a bit for each node that
/// reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lock(u64);

impl Lock {
    const WRITE: u64 = 1 << 63;
    /// A writer was refused since the last writer held the lock: readers wait for the next one
    /// (trap C14).
    const WANTED: u64 = 1 << 62;

    fn writer(lane: u32, number: u64) -> u64 {
        Lock::WRITE | u64::from(lane) << 48 | number
    }

    fn reader(place: u8) -> u64 {
        1 << place
    }

    /// The holder for a home that takes a block back: no lane has such a number.
    fn mover(range: u16, number: u64) -> u64 {
        Lock::writer(1 << 13 | u32::from(range), number)
    }

    /// The holders of the lock; zero if it is free.
    pub(super) fn holders(self) -> u64 {
        self.0 & !Lock::WANTED
    }

    pub(super) fn is_wanted(self) -> bool {
        self.0 & Lock::WANTED != 0
    }
}

/// The request of a packet to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// A coherence request: check and lock.
    Request(Op),
    /// An unlock: of the write lock if true, else of the read lock.
    Unlock(bool),
    /// ADD-TO-SWITCH, first pass: find the block, or a way that has room.
    Look,
    /// ADD-TO-SWITCH, second pass: insert the block into that way if it is still free; [`NO_WAY`]:
    /// there was no room.
    Insert(u8),
    /// REMOVE-FROM-SWITCH: lock the block, and return its metadata.
    Take,
    /// Empty the block's cells: its home has the metadata.
    Forget,
}

/// How the number of a packet compares to the newest one of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The first packet of its kind with this number.
    First,
    /// A duplicate.
    Again,
    /// Stale: the lane has a newer number.
    Over,
}

/// The header vector of a packet (P4): its state on the way through the pipeline, beside its bytes.
#[derive(Debug)]
pub(super) struct Phv {
    pub(super) pass: Pass,
    pub(super) ask: Ask,
    pub(super) tag: Tag,
    pub(super) place: u8,
    pub(super) lane: u8,
    pub(super) number: u64,
    /// Status, version and copyset that the packet carries, and then those that it found.
    pub(super) status: GlobalStatus,
    pub(super) version: u64,
    pub(super) copyset: Copyset,
    /// The way that holds the block.
    pub(super) way: Option<u8>,
    /// The first way with room for the block.
    pub(super) free: Option<u8>,
    /// Whether this pass inserted the block.
    pub(super) inserted: bool,
    /// A block in the row that has to go if there is no room: the move's number picks it.
    pub(super) in_the_way: Option<Tag>,
    /// How the number of a move compares to the newest move of its home.
    pub(super) moving: Standing,
    /// The number of the newest move of the block's home.
    pub(super) moves: u64,
    pub(super) standing: Standing,
    /// Whether the check table accepts the packet.
    pub(super) is_valid: bool,
    /// Whether the packet's event holds the lock.
    pub(super) has_lock: bool,
}

impl Phv {
    fn lane_index(&self) -> u32 {
        u32::from(self.place) * LANES_MAX as u32 + u32::from(self.lane)
    }

    fn row(&self) -> u32 {
        ROWS.of([(self.tag.0 >> 32) as u32, self.tag.0 as u32])
    }
}

/// The register arrays.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    guards: Guards,
    moves: RegisterArray<u64>,
    tags: Vec<RegisterArray<u64>>,
    lanes: RegisterArray<u64>,
    metas: Vec<RegisterArray<u64>>,
    copysets: Vec<RegisterArray<u32>>,
    locks: Vec<RegisterArray<u64>>,
}

impl Stages {
    pub(super) fn new(layout: &BlocksLayout, guards: Guards) -> Stages {
        let (ways, cells) = (usize::from(layout.ways), layout.way_blocks as usize);
        let of = |names: &[&'static str], stage: fn(u8) -> u8| -> Vec<RegisterArray<u64>> {
            let ways = names[..ways].iter().zip(0..);
            ways.map(|(name, way)| RegisterArray::new(name, stage(way), cells)).collect()
        };
        let copysets = COPYSETS[..ways].iter().zip(0..);
        Stages {
            guards,
            moves: RegisterArray::new("moves", MOVES_STAGE, NODES_MAX),
            tags: of(&TAGS, |way| TAG_STAGE + way / 2),
            lanes: RegisterArray::new("lane", LANE_STAGE, NODES_MAX * LANES_MAX),
            metas: of(&METAS, |way| META_STAGE + way),
            copysets: copysets
                .map(|(n, way)| RegisterArray::new(n, META_STAGE + way, cells))
                .collect(),
            locks: of(&LOCKS, |way| META_STAGE + 1 + way),
        }
    }

    pub(super) fn reset(&mut self) {
        let wide = self.tags.iter_mut().chain(&mut self.metas).chain(&mut self.locks);
        wide.chain([&mut self.lanes, &mut self.moves]).for_each(RegisterArray::reset);
        self.copysets.iter_mut().for_each(RegisterArray::reset);
    }

    /// Runs a packet's pass.
    #[inline]
    pub(super) fn run(&mut self, phv: &mut Phv) {
        for stage in 0..STAGES {
            self.stage(stage, phv);
        }
    }

    /// Runs a packet's access in one stage.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, phv: &mut Phv) {
        match stage {
            MOVES_STAGE => self.moves(phv),
            TAG_STAGE..LANE_STAGE => {
                self.tag(2 * (stage - TAG_STAGE), phv);
                self.tag(2 * (stage - TAG_STAGE) + 1, phv);
            }
            LANE_STAGE => self.lane(phv),
            _ => match phv.way {
                Some(way) if stage == META_STAGE + way => self.meta(usize::from(way), phv),
                Some(way) if stage == META_STAGE + 1 + way => self.lock(usize::from(way), phv),
                _ => {}
            },
        }
    }

    /// Stage 0: the newest move of the block's home. A move is open until its second pass, or its
    /// FORGET; after that a copy of it does nothing (trap C5).
    fn moves(&mut self, phv: &mut Phv) {
        let (ask, number) = (phv.ask, phv.number);
        let is_once = self.guards.on(Guard::MoveOnce);
        let access = |cell: &mut u64| {
            let (newest, is_open) = (*cell >> 1, *cell & 1 == 1);
            let standing = match ask {
                Ask::Request(_) | Ask::Unlock(_) => return (Standing::First, newest),
                Ask::Look | Ask::Take if number > newest || !is_once => Standing::First,
                Ask::Insert(_) | Ask::Forget if !is_once => Standing::First,
                _ if number == newest && is_open => Standing::First,
                _ if number == newest => Standing::Again,
                _ => Standing::Over,
            };
            if standing == Standing::First {
                *cell = number << 1 | u64::from(matches!(ask, Ask::Look | Ask::Take));
            }
            (standing, newest)
        };
        let home = u32::from(phv.tag.range());
        (phv.moving, phv.moves) = self.moves.port().access(&mut phv.pass, home, access);
    }

    /// Stages 1 to 3: whether the block is in this way. A cell holds the tag plus one, since zero
    /// marks an empty cell, and zero is a tag like any other (trap C14).
    fn tag(&mut self, way: u8, phv: &mut Phv) {
        let ways = self.tags.len() as u64;
        let Some(array) = self.tags.get_mut(usize::from(way)) else { return };
        let key = phv.tag.0.wrapping_add(1);
        let moves = phv.moving == Standing::First;
        let inserts = phv.ask == Ask::Insert(way) && phv.way.is_none() && moves;
        let forgets = phv.ask == Ask::Forget && moves;
        let row = phv.row();
        let was = array.port().access(&mut phv.pass, row, |cell| {
            let was = *cell;
            if inserts && was == 0 {
                *cell = key;
            } else if forgets && was == key {
                *cell = 0;
            }
            was
        });
        if was == 0 {
            phv.free = phv.free.or(Some(way));
        } else if phv.number % ways == u64::from(way) {
            phv.in_the_way = Some(Tag(was.wrapping_sub(1)));
        }
        if was == key || inserts && was == 0 {
            phv.way = Some(way);
            phv.inserted = was == 0;
        }
    }

    /// Stage 4: the requester's newest event. A request that goes on to a home is noted, too: a
    /// later copy of it is marked as not the first (trap C6). An unlock goes on to a home as often
    /// as it arrives.
    fn lane(&mut self, phv: &mut Phv) {
        let (number, guards) = (phv.number, self.guards);
        let opens = matches!(phv.ask, Ask::Request(_));
        if !matches!(phv.ask, Ask::Request(_) | Ask::Unlock(_)) {
            return;
        }
        let access = |cell: &mut u64| {
            let (newest, is_open) = (*cell >> 1, *cell & 1 == 1);
            let is_once = guards.on(if opens { Guard::EventOnce } else { Guard::UnlockOnce });
            let standing = match opens {
                true if number > newest || !is_once => Standing::First,
                true if number == newest && is_open => Standing::Again,
                false if number == newest && (is_open || !is_once) => Standing::First,
                false if number == newest => Standing::Again,
                _ => Standing::Over,
            };
            if standing == Standing::First {
                *cell = number << 1 | u64::from(opens);
            }
            standing
        };
        let lane = phv.lane_index();
        phv.standing = self.lanes.port().access(&mut phv.pass, lane, access);
    }

    /// Stages 5 to 10: version, status and copyset; then the check table (table 2).
    fn meta(&mut self, way: usize, phv: &mut Phv) {
        let (row, ask) = (phv.row(), phv.ask);
        let executes = phv.standing == Standing::First;
        let compares = self.guards.on(Guard::UnlockCompared);
        let (brought, version, copyset) = (phv.status, phv.version, phv.copyset);
        let meta = |version: u64, status: GlobalStatus| version << 8 | status as u64;
        let (meta, set) = match ask {
            Ask::Insert(_) if phv.inserted => (Some(meta(version, brought)), Some(copyset)),
            Ask::Forget if phv.moving == Standing::First => (Some(0), Some(Copyset(0))),
            // Each event with the write lock creates a version.
            Ask::Unlock(true) if executes => {
                (Some(meta(NUMBER_MAX.min(version + 1), brought)), Some(copyset))
            }
            Ask::Unlock(false) if executes => (Some(meta(version, brought)), None),
            _ => (None, None),
        };
        let is_unlock = matches!(ask, Ask::Unlock(_)) && executes;
        let (found, is_same) = self.metas[way].port().access(&mut phv.pass, row, |cell| {
            // An unlock takes effect only on the version that its request found (trap C6).
            let is_same = !is_unlock || *cell >> 8 == version || !compares;
            *cell = meta.filter(|_| is_same).unwrap_or(*cell);
            (*cell, is_same)
        });
        // Other readers may have joined since the request left (§5.1.1).
        let joins = ask == Ask::Unlock(false) && executes && is_same;
        let own = if joins { Copyset::of(phv.place) } else { Copyset(0) };
        phv.copyset = self.copysets[way].port().access(&mut phv.pass, row, |cell| {
            let becomes = set.filter(|_| is_same).unwrap_or(Copyset(*cell)).with(own);
            *cell = becomes.0;
            becomes
        });
        phv.status = GlobalStatus::from_byte(found as u8).unwrap_or(GlobalStatus::Unshared);
        phv.version = found >> 8;
        phv.is_valid = is_same && (!self.guards.on(Guard::CheckTable) || check(phv));
    }

    /// Stages 6 to 11: the lock. An event gets it once; its copies find whether the event holds it.
    fn lock(&mut self, way: usize, phv: &mut Phv) {
        let (row, place, guards) = (phv.row(), phv.place, self.guards);
        let writer = Lock::writer(phv.lane_index(), phv.number);
        let mover = Lock::mover(phv.tag.range(), phv.number);
        let (standing, moving, is_valid) = (phv.standing, phv.moving, phv.is_valid);
        let access = |cell: &mut u64| {
            let lock = Lock(*cell);
            let (holders, is_wanted) = (lock.holders(), lock.is_wanted());
            let is_write = holders & Lock::WRITE != 0;
            match phv.ask {
                Ask::Insert(_) | Ask::Look => false,
                Ask::Take if moving != Standing::First => false,
                Ask::Take => {
                    let may = holders == 0 || holders == mover || !guards.on(Guard::MoveLocked);
                    *cell = if may { mover } else { lock.0 | Lock::WANTED };
                    may
                }
                Ask::Forget => {
                    if moving == Standing::First {
                        *cell = 0;
                    }
                    false
                }
                Ask::Request(op) if standing == Standing::Again => match op.is_shared() {
                    true => !is_write && holders & Lock::reader(place) != 0,
                    false => holders == writer,
                },
                Ask::Request(_) if standing == Standing::Over || !is_valid => false,
                Ask::Request(op) if op.is_shared() => {
                    let waits = is_wanted && guards.on(Guard::WriterWanted);
                    let may = !is_write && !waits;
                    if may {
                        *cell |= Lock::reader(place);
                    }
                    may
                }
                Ask::Request(op) => {
                    let may = holders == 0;
                    // A refused eviction may not be retried, so readers must not wait for it.
                    let mark = if op.is_eviction() { 0 } else { Lock::WANTED };
                    *cell = if may { writer } else { lock.0 | mark };
                    may
                }
                Ask::Unlock(_) if standing != Standing::First || !is_valid => false,
                Ask::Unlock(true) => {
                    if holders == writer {
                        *cell = lock.0 & Lock::WANTED;
                    }
                    holders == writer
                }
                Ask::Unlock(false) => {
                    if !is_write {
                        *cell &= !Lock::reader(place);
                    }
                    !is_write
                }
            }
        };
        phv.has_lock = self.locks[way].port().access(&mut phv.pass, row, access);
    }

    /// Where a block is, as the control plane reads it.
    fn find(&self, tag: Tag) -> Option<(usize, u32)> {
        let row = ROWS.of([(tag.0 >> 32) as u32, tag.0 as u32]);
        let is_here = |array: &RegisterArray<u64>| array.peek(row) == tag.0.wrapping_add(1);
        self.tags.iter().position(is_here).map(|way| (way, row))
    }

    /// A block's status, version, copyset and lock, as the control plane reads them.
    pub(super) fn peek(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, Lock)> {
        let (way, row) = self.find(tag)?;
        let meta = self.metas[way].peek(row);
        let status = GlobalStatus::from_byte(meta as u8)?;
        let copyset = Copyset(self.copysets[way].peek(row));
        Some((status, meta >> 8, copyset, Lock(self.locks[way].peek(row))))
    }

    /// The number of ways that hold a block; more than one would be a bug.
    #[cfg(test)]
    pub(super) fn ways_with(&self, tag: Tag) -> usize {
        let row = ROWS.of([(tag.0 >> 32) as u32, tag.0 as u32]);
        self.tags.iter().filter(|array| array.peek(row) == tag.0.wrapping_add(1)).count()
    }

    /// The number of blocks that the switch owns.
    pub(super) fn blocks(&self) -> usize {
        self.tags.iter().flat_map(RegisterArray::cells).filter(|cell| *cell != 0).count()
    }

    /// All registers, as the control plane reads them.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        let wide = self.tags.iter().chain(&self.metas).chain(&self.locks);
        let wide = wide.chain([&self.lanes, &self.moves]);
        let copysets = self.copysets.iter().flat_map(RegisterArray::cells).map(u64::from);
        wide.flat_map(RegisterArray::cells).chain(copysets)
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        let wide = self
            .tags
            .iter()
            .chain([&self.moves, &self.lanes])
            .chain(&self.metas)
            .chain(&self.locks);
        let copysets = self.copysets.iter().map(RegisterArray::report);
        let mut all: Vec<_> = wide.map(RegisterArray::report).chain(copysets).collect();
        all.sort_by_key(|array| array.stage);
        all
    }
}

/// Table 2: whether a request suits the state of its block.
fn check(phv: &Phv) -> bool {
    let has_copy = phv.copyset.has(phv.place);
    match phv.ask {
        Ask::Request(op) => op.is_valid(has_copy, phv.status),
        _ => true,
    }
}
