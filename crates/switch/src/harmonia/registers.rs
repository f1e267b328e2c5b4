//! The program's register arrays, and the accesses of each kind of packet in a pass.

use alloc::vec::Vec;

use concord_core::ObjectId;
use concord_pisa::hash::POLYNOMIALS;
use concord_pisa::{ArrayReport, Crc32, Pass, Port, Ports, RegisterArray};
use concord_wire::Flags;

use super::{Layout, TABLE_STAGES_MAX};

/// The arrays, in stage order.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    /// The last number given out.
    pub(super) seq: RegisterArray<u32>,
    /// The largest number known to be committed. Never above `seq`.
    pub(super) last_committed: RegisterArray<u32>,
    /// Cells as [`cell`] makes them. Every write in flight has a cell in some stage, and for each
    /// object one of them holds the largest number in flight.
    dirty_set: Vec<RegisterArray<u64>>,
    /// The number of cells of `dirty_set` that are not empty.
    pub(super) occupied: RegisterArray<u32>,
    /// The number of the latest write of all keys. Never above `seq`.
    pub(super) wildcard_seq: RegisterArray<u32>,
}

/// A cell of the dirty set. It is empty if the counter is 0, whatever the object id (trap T20).
const fn cell(obj_id: ObjectId, counter: u32) -> u64 {
    ((obj_id.0 as u64) << 32) | counter as u64
}

const fn object(cell: u64) -> u32 {
    (cell >> 32) as u32
}

const fn counter(cell: u64) -> u32 {
    cell as u32
}

/// The hash units of the dirty set's stages.
static UNITS: [Crc32; TABLE_STAGES_MAX as usize] = {
    let mut units = [const { Crc32::new(0) }; TABLE_STAGES_MAX as usize];
    let mut stage = 0;
    while stage < units.len() {
        units[stage] = Crc32::new(POLYNOMIALS[stage]);
        stage += 1;
    }
    units
};

/// The index of `obj_id` in stage `stage` of the dirty set, before it is reduced to the stage's
/// size: each stage has another polynomial, so that objects which collide in one do not collide in
/// the next (§7.1).
#[must_use]
#[inline]
pub fn cell_index(stage: usize, obj_id: ObjectId) -> u32 {
    UNITS.get(stage).map_or(0, |unit| unit.of([obj_id.0]))
}

impl Registers {
    pub(super) fn new(layout: &Layout) -> Registers {
        let table = |stage| RegisterArray::new("dirty_set", 2 + stage, layout.slots as usize);
        Registers {
            seq: RegisterArray::new("seq", 0, 1),
            last_committed: RegisterArray::new("last_committed", 1, 1),
            dirty_set: (0..layout.table_stages).map(table).collect(),
            occupied: RegisterArray::new("occupied", 2 + layout.table_stages, 1),
            wildcard_seq: RegisterArray::new("wildcard_seq", 3 + layout.table_stages, 1),
        }
    }

    /// One packet's ports.
    #[inline]
    pub(super) fn ports(&mut self) -> PacketPorts<'_> {
        PacketPorts {
            seq: self.seq.port(),
            last_committed: self.last_committed.port(),
            dirty_set: Ports::of(&mut self.dirty_set),
            occupied: self.occupied.port(),
            wildcard_seq: self.wildcard_seq.port(),
        }
    }

    /// The control plane empties every array.
    pub(super) fn reset(&mut self) {
        self.seq.reset();
        self.last_committed.reset();
        for table in &mut self.dirty_set {
            table.reset();
        }
        self.occupied.reset();
        self.wildcard_seq.reset();
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, usize, u32, u32)> + '_ {
        self.dirty_set.iter().enumerate().flat_map(|(stage, table)| {
            let cells = table.cells().enumerate().filter(|(_, c)| counter(*c) != 0);
            cells.map(move |(at, c)| (stage, at, object(c), counter(c)))
        })
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        let mut arrays = alloc::vec![self.seq.report(), self.last_committed.report()];
        arrays.extend(self.dirty_set.iter().map(RegisterArray::report));
        arrays.extend([self.occupied.report(), self.wildcard_seq.report()]);
        arrays
    }
}

/// The fate of a write in the dirty set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// It has a cell, which was empty or its object's own.
    Taken,
    /// It has a cell that a stray entry of another object had.
    TakenFromStray,
    /// A no-op or a write of all keys needs no cell (traps T18, T13).
    NotNeeded,
    /// Every cell that it could take holds another object that is in flight.
    None,
    /// The same, and it was retried so often that it now counts as a write of all keys.
    AllKeys,
}

/// The fate of another object of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The fate of the object in the dirty set.
    Slot(Slot),
    /// Later writes were numbered since: the write now has this number, and is of all keys.
    Overtaken(u32),
    /// The same, but there are no numbers left.
    Exhausted,
}

/// The result of a read's pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadPass {
    /// The last-committed point when the read passed.
    pub(super) last_committed: u32,
    /// Whether a write of all keys is in flight.
    pub(super) wildcard_pending: bool,
    /// Whether a write of the object is in flight.
    pub(super) dirty: bool,
    /// The number of stray entries of the object that the read removed.
    pub(super) strays_removed: u32,
}

/// The effect of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// It took effect.
    Done,
    /// Its number was never given out.
    Impossible,
}

/// The next number of a switch id; `None` if there are none left.
#[inline]
pub(crate) fn next_number(seq: Port<'_, u32>, pass: &mut Pass, counter_max: u32) -> Option<u32> {
    seq.access(pass, 0, |seq| {
        let left = *seq < counter_max;
        *seq += u32::from(left);
        left.then_some(*seq)
    })
}

/// Takes the first cell of `obj_id` that is empty, stray or its own.
#[inline]
fn enter(
    dirty_set: Ports<'_, u64>,
    occupied: Port<'_, u32>,
    pass: &mut Pass,
    (obj_id, number): (ObjectId, u32),
    last_committed: u32,
) -> Slot {
    for (stage, port) in (0..).zip(dirty_set) {
        // An empty cell's counter is 0, so that it counts as stray. The object's own cell holds a
        // lower number, unless a write of several objects was overtaken and keeps its number.
        let found = port.access(pass, cell_index(stage, obj_id), |c| {
            let was = *c;
            let own = object(was) == obj_id.0;
            let usable = own || counter(was) <= last_committed;
            if usable && !(own && counter(was) > number) {
                *c = cell(obj_id, number);
            }
            usable.then_some(was)
        });
        let Some(was) = found else { continue };
        if counter(was) == 0 {
            occupied.access(pass, 0, |n| *n += 1);
        }
        let stray = counter(was) != 0 && object(was) != obj_id.0;
        return if stray { Slot::TakenFromStray } else { Slot::Taken };
    }
    Slot::None
}

/// The right of one packet to access every array once.
pub(super) struct PacketPorts<'a> {
    seq: Port<'a, u32>,
    last_committed: Port<'a, u32>,
    dirty_set: Ports<'a, u64>,
    occupied: Port<'a, u32>,
    wildcard_seq: Port<'a, u32>,
}

impl PacketPorts<'_> {
    /// A WRITE's pass: its number, and its slot. `None` if there are no numbers left. A write that
    /// `is_overdue` becomes one of all keys if it finds no slot.
    #[inline]
    pub(super) fn write(
        self,
        obj_id: ObjectId,
        flags: Flags,
        is_overdue: bool,
        counter_max: u32,
    ) -> Option<(u32, Slot)> {
        let mut pass = Pass::begin();
        let seq = next_number(self.seq, &mut pass, counter_max)?;
        let last_committed = self.last_committed.access(&mut pass, 0, |l| *l);
        if flags.has(Flags::NOOP) {
            return Some((seq, Slot::NotNeeded));
        }
        if flags.has(Flags::WILDCARD) {
            self.wildcard_seq.access(&mut pass, 0, |w| *w = seq);
            return Some((seq, Slot::NotNeeded));
        }
        let taken = enter(self.dirty_set, self.occupied, &mut pass, (obj_id, seq), last_committed);
        if taken == Slot::None && is_overdue {
            self.wildcard_seq.access(&mut pass, 0, |w| *w = seq);
            return Some((seq, Slot::AllKeys));
        }
        Some((seq, taken))
    }

    /// Another pass of a WRITE that has its number: the slot of its next object. If later writes
    /// overtook it, the node that orders writes may have seen a higher number: then it gets a new
    /// number, and is of all keys from here on. With `keeps` it keeps its number, since the
    /// replicas wait for it (NOPaxos).
    pub(super) fn enter_further(
        self,
        obj_id: ObjectId,
        number: u32,
        keeps: bool,
        counter_max: u32,
    ) -> Entered {
        let mut pass = Pass::begin();
        let again = self.seq.access(&mut pass, 0, |seq| {
            if *seq == number || keeps {
                return Some(number);
            }
            let left = *seq < counter_max;
            *seq += u32::from(left);
            left.then_some(*seq)
        });
        let last_committed = self.last_committed.access(&mut pass, 0, |l| *l);
        match again {
            None => Entered::Exhausted,
            Some(again) if again != number => {
                self.wildcard_seq.access(&mut pass, 0, |w| *w = again);
                Entered::Overtaken(again)
            }
            Some(_) => {
                let entry = (obj_id, number);
                let (dirty_set, occupied) = (self.dirty_set, self.occupied);
                Entered::Slot(enter(dirty_set, occupied, &mut pass, entry, last_committed))
            }
        }
    }

    /// A READ's pass: a search in every stage, and the removal of the object's strays (§6.2).
    #[inline]
    pub(super) fn read(self, obj_id: ObjectId) -> ReadPass {
        let mut pass = Pass::begin();
        let last_committed = self.last_committed.access(&mut pass, 0, |l| *l);
        let (mut dirty, mut strays_removed) = (false, 0);
        for (stage, port) in (0..).zip(self.dirty_set) {
            port.access(&mut pass, cell_index(stage, obj_id), |c| {
                if object(*c) != obj_id.0 || counter(*c) == 0 {
                    return;
                }
                if counter(*c) > last_committed {
                    dirty = true;
                } else {
                    *c = 0;
                    strays_removed += 1;
                }
            });
        }
        if strays_removed != 0 {
            self.occupied.access(&mut pass, 0, |n| *n -= strays_removed);
        }
        let wildcard_seq = self.wildcard_seq.access(&mut pass, 0, |w| *w);
        let wildcard_pending = wildcard_seq > last_committed;
        ReadPass { last_committed, wildcard_pending, dirty, strays_removed }
    }

    /// The pass of a completion with the switch's own id. A write can be in two stages at once (its
    /// first slot was taken, then freed), so every stage is compared.
    #[inline]
    pub(super) fn complete(self, obj_id: ObjectId, completed: u32) -> Completion {
        let mut pass = Pass::begin();
        let seq = self.seq.access(&mut pass, 0, |seq| *seq);
        // If it took effect, such a number would turn writes in flight into strays.
        if completed == 0 || completed > seq {
            return Completion::Impossible;
        }
        self.last_committed.access(&mut pass, 0, |l| *l = completed.max(*l));
        let mut removed = 0;
        for (stage, port) in (0..).zip(self.dirty_set) {
            removed += port.access(&mut pass, cell_index(stage, obj_id), |c| {
                let mine = object(*c) == obj_id.0 && (1..=completed).contains(&counter(*c));
                if mine {
                    *c = 0;
                }
                u32::from(mine)
            });
        }
        if removed != 0 {
            self.occupied.access(&mut pass, 0, |n| *n -= removed);
        }
        Completion::Done
    }

    /// A sweep's pass: clears the strays at index `at` of every stage, and returns how many there
    /// were.
    #[inline]
    pub(super) fn sweep(self, at: u32) -> u32 {
        let mut pass = Pass::begin();
        let last_committed = self.last_committed.access(&mut pass, 0, |l| *l);
        let mut removed = 0;
        for port in self.dirty_set {
            removed += port.access(&mut pass, at, |c| {
                let stray = (1..=last_committed).contains(&counter(*c));
                if stray {
                    *c = 0;
                }
                u32::from(stray)
            });
        }
        if removed != 0 {
            self.occupied.access(&mut pass, 0, |n| *n -= removed);
        }
        removed
    }
}
