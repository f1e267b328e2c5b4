//! The assignment of cells to names, by the control plane of the head.
//!
//! A name that was written has its cell until the cell goes to another name; a cell whose key was
//! deleted keeps its name. Any other name is *given* a cell that holds no key, and its first write
//! takes the cell in the pipeline, on two conditions: the epoch is still that in which the cell was
//! given, and the cell has the version that it had then (`Guard::NameGiven`). Within an epoch the
//! head gives a name only one cell for as long as the name can still take it. So no two names share
//! a cell, and no name has two, though nothing of this is replicated: the next head reads the
//! assignment from its registers, and cells given in earlier epochs can no longer be taken.
//!
//! A name whose cell went to another name is given a cell again only once every member knows that
//! it has none (`Guard::NameDisplaced`): otherwise a member that lags behind would answer that the
//! key does not exist (hole N8).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_wire::control::{Finding, NAMES_MAX};
use concord_wire::netcraq::Name;

use super::stages::Stages;

/// The maximum number of names that were given a cell and have not taken it, per cell.
const GIVEN_MAX: usize = 4;

/// The names after this one, in order, that have a key or a write of one in progress.
pub(super) fn names_after(stages: &Stages, cells: u32, after: Name) -> Vec<Name> {
    let present = (0..cells).filter(|cell| stages.peek_state(*cell).is_present());
    let mut names: Vec<Name> = present.map(|cell| stages.peek(cell).0).collect();
    names.retain(|name| *name > after);
    names.sort_unstable();
    names.truncate(NAMES_MAX);
    names
}

/// The head's knowledge of names, in one epoch.
#[derive(Clone, Debug)]
pub(super) struct Names {
    guards: Guards,
    cells: u32,
    /// The cell that each name last had or was given; the registers decide. `None` until the first
    /// question.
    index: Option<BTreeMap<Name, u32>>,
    /// The cell that each name was given, and the cell's version then.
    given: BTreeMap<Name, (u32, u64)>,
    /// Names whose cell was given to another name, with that cell.
    displaced: BTreeMap<Name, u32>,
    /// The cell at which the search for a free cell begins.
    next: u32,
}

impl Names {
    pub(super) fn new(guards: Guards, cells: u32) -> Names {
        let (given, displaced) = (BTreeMap::new(), BTreeMap::new());
        Names { guards, cells, index: None, given, displaced, next: 0 }
    }

    /// Forgets all that was given, since a new epoch begins.
    pub(super) fn begin(&mut self) {
        *self = Names::new(self.guards, self.cells);
    }

    /// The cell of a name; `None` if it cannot be given one yet.
    pub(super) fn find(&mut self, stages: &Stages, name: Name, gives: bool) -> Option<Finding> {
        let index = self.index.get_or_insert_with(|| {
            let names = (0..self.cells).map(|cell| (stages.peek(cell).0, cell));
            names.filter(|(name, _)| *name != Name::default()).collect()
        });
        let version = |cell| stages.peek_state(cell).version();
        if let Some(&cell) = index.get(&name)
            && stages.peek(cell).0 == name
        {
            return Some(Finding::At { cell, version: version(cell) });
        }
        if !gives {
            return Some(Finding::Absent);
        }
        if let Some(&(cell, given)) = self.given.get(&name)
            && version(cell) == given
        {
            return Some(Finding::At { cell, version: given });
        }
        let is_told = |cell| !stages.peek_state(cell).is_dirty();
        if self.guards.on(Guard::NameDisplaced)
            && self.displaced.get(&name).is_some_and(|cell| !is_told(*cell))
        {
            return None;
        }
        self.displaced.remove(&name);
        self.given.remove(&name);
        Some(self.give(stages, name))
    }

    /// Gives a free cell, one that was not given to another name or was never used if possible.
    fn give(&mut self, stages: &Stages, name: Name) -> Finding {
        self.forget(stages);
        if self.given.len() >= GIVEN_MAX * self.cells as usize {
            return Finding::Full;
        }
        let mut is_given = alloc::vec![false; self.cells as usize];
        for (cell, _) in self.given.values() {
            is_given[*cell as usize] = true;
        }
        let order = (0..self.cells).map(|step| (self.next + step) % self.cells);
        let free = order.filter(|cell| {
            let state = stages.peek_state(*cell);
            !state.is_present() && !state.is_dirty()
        });
        let rank = |cell: &u32| {
            let was_used = stages.peek_state(*cell).version() != 0;
            (is_given[*cell as usize], was_used)
        };
        let Some(cell) = free.min_by_key(rank) else { return Finding::Full };
        self.next = (cell + 1) % self.cells;
        let before = stages.peek(cell).0;
        if before != Name::default() {
            self.displaced.insert(before, cell);
        }
        let version = stages.peek_state(cell).version();
        self.given.insert(name, (cell, version));
        if let Some(index) = &mut self.index {
            index.insert(name, cell);
        }
        Finding::At { cell, version }
    }

    /// Forgets cells that can no longer be taken, and displaced names that every member knows of.
    fn forget(&mut self, stages: &Stages) {
        self.given.retain(|_, (cell, version)| stages.peek_state(*cell).version() == *version);
        self.displaced.retain(|name, cell| {
            stages.peek(*cell).0 == *name || stages.peek_state(*cell).is_dirty()
        });
        if let Some(index) = &mut self.index {
            let given = &self.given;
            index.retain(|name, cell| stages.peek(*cell).0 == *name || given.contains_key(name));
        }
    }
}
