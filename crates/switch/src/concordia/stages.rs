//! The lock-check-forward pipeline, stage by stage (Concordia §5.1.1, figure 5).
//!
//! | stage | arrays | of |
//! |---|---|---|
//! | 0 to 2 | `tag_0` to `tag_5`, two in each | a block |
//! | 3 | `lane`: the newest event's number, and whether it is open | a requester |
//! | 4 to 9 | `meta_w` (version, status) and `copyset_w` of way w in stage 4 + w | a block |
//! | 5 to 10 | `lock_w` of way w in stage 5 + w | a block |
//!
//! The paper has lock, status and copyset in one stage, and checks after that: what fails goes
//! round to give its lock back. Here the check stands between them, and a request that fails it
//! never has the lock. The order keeps that atomic: an unlock writes status and copyset one stage
//! before it frees the lock, so that whoever gets the lock has read what it wrote.

use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_pisa::hash::{Crc32, SPREADING};
use concord_pisa::{ArrayReport, Pass, RegisterArray};
use concord_wire::concordia::{Copyset, GlobalStatus, LANES_MAX, NODES_MAX, NUMBER_MAX, Op, Tag};

use super::layout::{BlocksLayout, WAYS_MAX};

/// Stages of a program with all ways.
pub(super) const STAGES: u8 = 5 + WAYS_MAX as u8;
const LANE_STAGE: u8 = 3;

const TAGS: [&str; WAYS_MAX] = ["tag_0", "tag_1", "tag_2", "tag_3", "tag_4", "tag_5"];
const METAS: [&str; WAYS_MAX] = ["meta_0", "meta_1", "meta_2", "meta_3", "meta_4", "meta_5"];
const COPYSETS: [&str; WAYS_MAX] =
    ["copyset_0", "copyset_1", "copyset_2", "copyset_3", "copyset_4", "copyset_5"];
const LOCKS: [&str; WAYS_MAX] = ["lock_0", "lock_1", "lock_2", "lock_3", "lock_4", "lock_5"];

/// The hash unit that picks a block's row: blocks that follow each other have rows of their own.
static ROWS: Crc32 = Crc32::new(SPREADING);

/// A lock: who holds it. The writer's lane and its event's number, or a bit for each node that
/// reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lock(u64);

impl Lock {
    const WRITE: u64 = 1 << 63;
    /// A writer was refused since the last one had it: readers wait for the next (trap C14).
    const WANTED: u64 = 1 << 62;

    fn writer(lane: u32, number: u64) -> u64 {
        Lock::WRITE | u64::from(lane) << 48 | number
    }

    fn reader(place: u8) -> u64 {
        1 << place
    }

    /// Who holds it; zero: nobody.
    pub(super) fn holders(self) -> u64 {
        self.0 & !Lock::WANTED
    }

    pub(super) fn is_wanted(self) -> bool {
        self.0 & Lock::WANTED != 0
    }
}

/// What a packet does with the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// A coherence request: lock, check.
    Request(Op),
    /// An unlock of the write lock, or of the read lock.
    Unlock(bool),
    /// ADD-TO-SWITCH, first pass: whether the block is here, and where there is room.
    Look,
    /// Its second pass: into that way, if it is still free.
    Insert(u8),
}

/// How the number of a packet stands to its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the first of its kind.
    First,
    /// It came before.
    Again,
    /// The lane has gone on.
    Over,
}

/// What a packet carries through the pipeline beside its bytes (P4's header vector).
#[derive(Debug)]
pub(super) struct Phv {
    pub(super) pass: Pass,
    pub(super) ask: Ask,
    pub(super) tag: Tag,
    pub(super) place: u8,
    pub(super) lane: u8,
    pub(super) number: u64,
    /// What it brings, or found.
    pub(super) status: GlobalStatus,
    pub(super) version: u64,
    pub(super) copyset: Copyset,
    /// The way in which its block is.
    pub(super) way: Option<u8>,
    /// The first way that has room.
    pub(super) free: Option<u8>,
    /// Whether it has put its block there.
    pub(super) inserted: bool,
    pub(super) standing: Standing,
    /// Whether the check table passes it.
    pub(super) is_valid: bool,
    /// Whether its event holds the lock.
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
            tags: of(&TAGS, |way| way / 2),
            lanes: RegisterArray::new("lane", LANE_STAGE, NODES_MAX * LANES_MAX),
            metas: of(&METAS, |way| 4 + way),
            copysets: copysets.map(|(n, way)| RegisterArray::new(n, 4 + way, cells)).collect(),
            locks: of(&LOCKS, |way| 5 + way),
        }
    }

    pub(super) fn reset(&mut self) {
        let wide = self.tags.iter_mut().chain(&mut self.metas).chain(&mut self.locks);
        wide.chain([&mut self.lanes]).for_each(RegisterArray::reset);
        self.copysets.iter_mut().for_each(RegisterArray::reset);
    }

    /// A packet's pass.
    #[inline]
    pub(super) fn run(&mut self, phv: &mut Phv) {
        for stage in 0..STAGES {
            self.stage(stage, phv);
        }
    }

    /// What a packet does in one stage.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, phv: &mut Phv) {
        match stage {
            0..LANE_STAGE => {
                self.tag(2 * stage, phv);
                self.tag(2 * stage + 1, phv);
            }
            LANE_STAGE => self.lane(phv),
            _ => match phv.way {
                Some(way) if stage == 4 + way => self.meta(usize::from(way), phv),
                Some(way) if stage == 5 + way => self.lock(usize::from(way), phv),
                _ => {}
            },
        }
    }

    /// Stages 0 to 2: whether the block is in this way. A tag is kept plus one, since zero marks an
    /// empty cell, and zero is a tag like any other (trap C14).
    fn tag(&mut self, way: u8, phv: &mut Phv) {
        let Some(array) = self.tags.get_mut(usize::from(way)) else { return };
        let key = phv.tag.0.wrapping_add(1);
        let inserts = phv.ask == Ask::Insert(way) && phv.way.is_none();
        let row = phv.row();
        let was = array.port().access(&mut phv.pass, row, |cell| {
            let was = *cell;
            if inserts && was == 0 {
                *cell = key;
            }
            was
        });
        if was == 0 {
            phv.free = phv.free.or(Some(way));
        }
        if was == key || inserts && was == 0 {
            phv.way = Some(way);
            phv.inserted = was == 0;
        }
    }

    /// Stage 3: the requester's newest event. What the switch only passes on is not noted (trap
    /// C6).
    fn lane(&mut self, phv: &mut Phv) {
        let (number, guards) = (phv.number, self.guards);
        let opens = matches!(phv.ask, Ask::Request(_));
        if phv.way.is_none() || matches!(phv.ask, Ask::Look | Ask::Insert(_)) {
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

    /// Stages 4 to 9: version, status and copyset; then the check table (table 2).
    fn meta(&mut self, way: usize, phv: &mut Phv) {
        let (row, ask) = (phv.row(), phv.ask);
        let executes = phv.standing == Standing::First;
        let (brought, version, copyset) = (phv.status, phv.version, phv.copyset);
        let meta = |version: u64, status: GlobalStatus| version << 8 | status as u64;
        let (meta, set) = match ask {
            Ask::Insert(_) if phv.inserted => (Some(meta(version, brought)), Some(copyset)),
            // Each event with the write lock makes a version.
            Ask::Unlock(true) if executes => {
                (Some(meta(NUMBER_MAX.min(version + 1), brought)), Some(copyset))
            }
            Ask::Unlock(false) if executes => (Some(meta(version, brought)), None),
            _ => (None, None),
        };
        let found = self.metas[way].port().access(&mut phv.pass, row, |cell| {
            *cell = meta.unwrap_or(*cell);
            *cell
        });
        // Other readers may have been added since the request left (§5.1.1).
        let joins = ask == Ask::Unlock(false) && executes;
        let own = if joins { Copyset::of(phv.place) } else { Copyset(0) };
        phv.copyset = self.copysets[way].port().access(&mut phv.pass, row, |cell| {
            let becomes = set.unwrap_or(Copyset(*cell)).with(own);
            *cell = becomes.0;
            becomes
        });
        phv.status = GlobalStatus::from_byte(found as u8).unwrap_or(GlobalStatus::Unshared);
        phv.version = found >> 8;
        phv.is_valid = !self.guards.on(Guard::CheckTable) || check(phv);
    }

    /// Stages 5 to 10: the lock. An event gets it once; its copies find whether it has it.
    fn lock(&mut self, way: usize, phv: &mut Phv) {
        let (row, place, guards) = (phv.row(), phv.place, self.guards);
        let writer = Lock::writer(phv.lane_index(), phv.number);
        let (standing, is_valid) = (phv.standing, phv.is_valid);
        let access = |cell: &mut u64| {
            let lock = Lock(*cell);
            let (holders, is_wanted) = (lock.holders(), lock.is_wanted());
            let is_write = holders & Lock::WRITE != 0;
            match phv.ask {
                Ask::Insert(_) | Ask::Look => false,
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
                Ask::Request(_) => {
                    let may = holders == 0;
                    *cell = if may { writer } else { lock.0 | Lock::WANTED };
                    may
                }
                Ask::Unlock(_) if standing != Standing::First => false,
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

    /// How many ways have a block; two would be a mistake.
    #[cfg(test)]
    pub(super) fn ways_with(&self, tag: Tag) -> usize {
        let row = ROWS.of([(tag.0 >> 32) as u32, tag.0 as u32]);
        self.tags.iter().filter(|array| array.peek(row) == tag.0.wrapping_add(1)).count()
    }

    /// Blocks that the switch owns.
    pub(super) fn blocks(&self) -> usize {
        self.tags.iter().flat_map(RegisterArray::cells).filter(|cell| *cell != 0).count()
    }

    /// All registers, as the control plane reads them.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        let wide = self.tags.iter().chain(&self.metas).chain(&self.locks).chain([&self.lanes]);
        let copysets = self.copysets.iter().flat_map(RegisterArray::cells).map(u64::from);
        wide.flat_map(RegisterArray::cells).chain(copysets)
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        let wide = self.tags.iter().chain([&self.lanes]).chain(&self.metas).chain(&self.locks);
        let copysets = self.copysets.iter().map(RegisterArray::report);
        let mut all: Vec<_> = wide.map(RegisterArray::report).chain(copysets).collect();
        all.sort_by_key(|array| array.stage);
        all
    }
}

/// Table 2: whether a request is of a state that its block is in.
fn check(phv: &Phv) -> bool {
    let (has_copy, status) = (phv.copyset.has(phv.place), phv.status);
    match phv.ask {
        Ask::Request(Op::ReadMiss | Op::WriteMiss) => !has_copy,
        Ask::Request(Op::WriteShared | Op::EvictShared) => has_copy && status.is_shared(),
        Ask::Request(Op::EvictModified) => has_copy && status == GlobalStatus::Modified,
        _ => true,
    }
}
