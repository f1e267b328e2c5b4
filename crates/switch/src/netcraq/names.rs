//! Which cell is a name's: the head's control plane says so.
//!
//! A name that was written is its cell's, until the cell is another name's; a cell whose key was
//! deleted keeps the name. Any other name is *given* a cell that holds no key, and its first write
//! makes the cell its own, in the pipeline: only if the epoch is still that in which the cell was
//! given, and the cell has the version that it had then (`Guard::NameGiven`). Within an epoch the
//! head gives a name one cell alone as long as that can still be taken. So no two names share a
//! cell, and no name has two, though nothing of this is replicated: the next head reads it from its
//! registers, and what was given before can be taken no more.
//!
//! A name whose cell went to another is given a cell again only once every member knows that it has
//! none (`Guard::NameDisplaced`): otherwise one that lags behind would say that there is no such
//! key (hole N8).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_wire::control::{Finding, NAMES_MAX};
use concord_wire::netcraq::Name;

use super::stages::Stages;

/// Most names that have been given a cell and have not taken it, for each cell.
const GIVEN_MAX: usize = 4;

/// The next names after this one that have a key, a write that is under way included.
pub(super) fn names_after(stages: &Stages, cells: u32, after: Name) -> Vec<Name> {
    let present = (0..cells).filter(|cell| stages.peek_state(*cell).is_present());
    let mut names: Vec<Name> = present.map(|cell| stages.peek(cell).0).collect();
    names.retain(|name| *name > after);
    names.sort_unstable();
    names.truncate(NAMES_MAX);
    names
}

/// What the head knows of names in an epoch.
#[derive(Clone, Debug)]
pub(super) struct Names {
    guards: Guards,
    cells: u32,
    /// The cell that each name had or was given last; the registers have the last word. `None`
    /// until the first question.
    index: Option<BTreeMap<Name, u32>>,
    /// What was given, and its version then.
    given: BTreeMap<Name, (u32, u64)>,
    /// Names whose cell was given to another.
    displaced: BTreeMap<Name, u32>,
    /// Where the search for a free cell begins.
    next: u32,
}

impl Names {
    pub(super) fn new(guards: Guards, cells: u32) -> Names {
        let (given, displaced) = (BTreeMap::new(), BTreeMap::new());
        Names { guards, cells, index: None, given, displaced, next: 0 }
    }

    /// A new epoch: what was given in the one before is given no more.
    pub(super) fn begin(&mut self) {
        *self = Names::new(self.guards, self.cells);
    }

    /// Which cell is this name's; `None`: it can be said later.
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

    /// A cell that no key is in: one that was never used, or one that nobody was given, first.
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

    /// What can be taken no more, and names that everybody knows to have no cell.
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
