//! The pipeline, stage by stage: the header vector of a packet, and its accesses in each stage.
//!
//! | stage | arrays |
//! |---|---|
//! | 0 to 3 | the pointers ([`super::pointers`]), a stage for each priority |
//! | 4 | `is_valid`: the kind of entry in the slot, and its round |
//! | 5 to 11 | the slot's words ([`super::entry`]) |

use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher};

use concord_core::Guards;
use concord_pisa::{ArrayReport, Pass, RegisterArray};
use concord_wire::falcon::PRIORITIES_MAX;

use super::entry::{NAMES, TASK_WORDS, WAITER_WORDS, Words};
use super::layout::{Form, QueueLayout};
use super::pointers::{Pointers, Repair};

/// The number of stages of the pointers.
pub(super) const POINTER_STAGES: u8 = PRIORITIES_MAX;
const WORD_STAGE: u8 = POINTER_STAGES + 1;
/// The number of stages in total.
#[cfg(test)]
pub(super) const STAGES: u8 = WORD_STAGE + TASK_WORDS as u8;

/// The request of a packet to the pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// To read them.
    Look,
    /// A ticket for a task.
    Add,
    /// The next task; if there is none, a ticket to wait with.
    Retrieve { may_wait: bool },
    /// The ticket of the executor that waits longest, if it is this one.
    Sweep(u32),
}

/// The action of a packet on the slot of its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Nothing.
    None,
    /// Store the task in the slot.
    Put,
    /// Take the task from the slot.
    Take,
    /// Wait in the slot.
    Wait,
    /// Take the waiting executor from the slot.
    Hand,
    /// There is no ticket: no room.
    Full,
    /// There is no ticket: no task.
    Empty,
    /// The ticket is invalid: add_ptr has to be set back first.
    Repairing,
    /// The slot has neither a task nor an executor with this ticket.
    Missing,
    /// The slot holds something else.
    Occupied,
}

impl Side {
    /// Whether the packet stores (true) or takes words of its slot, and how many.
    #[inline]
    fn words(self) -> Option<(bool, usize)> {
        match self {
            Side::Put => Some((true, TASK_WORDS)),
            Side::Take => Some((false, TASK_WORDS)),
            Side::Wait => Some((true, WAITER_WORDS)),
            Side::Hand => Some((false, WAITER_WORDS)),
            Side::None
            | Side::Full
            | Side::Empty
            | Side::Repairing
            | Side::Missing
            | Side::Occupied => None,
        }
    }
}

/// The header vector of a packet (P4): its state on the way through the pipeline, beside its bytes.
#[derive(Debug)]
pub(super) struct Phv {
    pub(super) pass: Pass,
    pub(super) ask: Ask,
    /// The queue of the packet, which exists.
    pub(super) queue: u8,
    /// The priority of its tasks; then, of the task or executor whose ticket it has.
    pub(super) priority: u8,
    /// The repair that the packet carries.
    pub(super) repair: Option<Repair>,
    /// The words that go into the slot, or came from it.
    pub(super) words: Words,
    pub(super) side: Side,
    pub(super) ticket: u32,
    /// The slot of the ticket.
    slot: u32,
    /// For the owner of a task that is handed to an executor: a ticket that retrieve_ptr has
    /// passed, or is about to pass.
    pub(super) handed: u32,
    /// The pointers when the packet passed: here the true value of add_ptr.
    pub(super) add: u32,
    pub(super) retrieve: u32,
    pub(super) generation: u32,
    /// The repair that the packet made necessary.
    pub(super) fix: Option<Repair>,
    /// Whether a task in the slot was overwritten (only in [`Form::Printed`]).
    pub(super) overwrote: bool,
}

impl Phv {
    #[inline]
    pub(super) fn new(ask: Ask, words: Words, repair: Option<Repair>) -> Phv {
        Phv::of((0, 0), ask, words, repair)
    }

    /// A packet for a queue and a priority.
    #[inline]
    pub(super) fn of(
        (queue, priority): (u8, u8),
        ask: Ask,
        words: Words,
        repair: Option<Repair>,
    ) -> Phv {
        Phv {
            pass: Pass::begin(),
            ask,
            queue,
            priority,
            repair,
            words,
            side: Side::None,
            ticket: 0,
            slot: 0,
            handed: 0,
            add: 0,
            retrieve: 0,
            generation: 0,
            fix: None,
            overwrote: false,
        }
    }
}

/// The values of a cell of `is_valid`: empty, or the kind of entry and the round of its ticket.
const EMPTY: u32 = 0;
const TASK: u32 = 1 << 30;
const WAITER: u32 = 2 << 30;
const ROUND: u32 = TASK - 1;

/// The register arrays.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    layout: QueueLayout,
    guards: Guards,
    pub(super) pointers: Pointers,
    /// Which slots hold an entry.
    is_valid: RegisterArray<u32>,
    words: Vec<RegisterArray<u64>>,
}

impl Stages {
    pub(super) fn new(layout: QueueLayout, guards: Guards) -> Stages {
        let slots = layout.slots as usize;
        let words = (WORD_STAGE..).zip(NAMES);
        Stages {
            layout,
            guards,
            pointers: Pointers::new(&layout),
            is_valid: RegisterArray::new("is_valid", POINTER_STAGES, slots),
            words: words.map(|(stage, name)| RegisterArray::new(name, stage, slots)).collect(),
        }
    }

    /// The control plane empties every array.
    pub(super) fn reset(&mut self) {
        self.pointers.reset();
        self.is_valid.reset();
        for array in &mut self.words {
            array.reset();
        }
    }

    /// Runs a packet's pass.
    #[inline]
    pub(super) fn run(&mut self, phv: &mut Phv) {
        for stage in 0..WORD_STAGE {
            self.stage(stage, phv);
        }
        // All stages of words at once: a packet does the same in each of them.
        let Some((writes, count)) = phv.side.words() else { return };
        for (array, word) in self.words.iter_mut().zip(&mut phv.words).take(count) {
            array.port().access(&mut phv.pass, phv.slot, |cell| {
                if writes { *cell = *word } else { *word = *cell }
            });
        }
    }

    /// Runs a packet's access in one stage.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, phv: &mut Phv) {
        match stage {
            0..POINTER_STAGES => self.pointers.stage(stage, &self.layout, self.guards, phv),
            POINTER_STAGES => self.slot(phv),
            WORD_STAGE.. => self.word(usize::from(stage - WORD_STAGE), phv),
        }
    }

    /// Stage 4: `read_and_set(is_valid)`, of the ticket's round.
    #[inline]
    fn slot(&mut self, phv: &mut Phv) {
        let ring = self.layout.ring(phv.queue, phv.priority);
        phv.slot = ring.slot(phv.ticket);
        if self.layout.form == Form::Printed {
            return self.printed_slot(phv);
        }
        let round = ring.round(phv.ticket) & ROUND;
        let (expected, becomes, or_else) = match phv.side {
            Side::Put => (EMPTY, TASK | round, Side::Occupied),
            Side::Take => (TASK | round, EMPTY, Side::Missing),
            Side::Wait => (EMPTY, WAITER | round, Side::Occupied),
            Side::Hand => (WAITER | round, EMPTY, Side::Missing),
            _ => return,
        };
        let is_so = self.is_valid.port().access(&mut phv.pass, phv.slot, |cell| {
            let is_so = *cell == expected;
            if is_so {
                *cell = becomes;
            }
            is_so
        });
        if !is_so {
            phv.side = or_else;
        }
    }

    /// Listing 1, line 5, and Listing 2, line 3: the slot of the ticket, whatever its round.
    fn printed_slot(&mut self, phv: &mut Phv) {
        let becomes = match phv.side {
            Side::Put => TASK,
            Side::Take => EMPTY,
            _ => return,
        };
        let was = self
            .is_valid
            .port()
            .access(&mut phv.pass, phv.slot, |cell| core::mem::replace(cell, becomes));
        phv.overwrote = phv.side == Side::Put && was != EMPTY;
        if phv.side == Side::Take && was == EMPTY {
            phv.side = Side::Empty;
        }
    }

    /// Stages 5 to 11: a word of the slot.
    #[inline]
    fn word(&mut self, index: usize, phv: &mut Phv) {
        let Some((writes, _)) = phv.side.words().filter(|(_, count)| index < *count) else {
            return;
        };
        let word = &mut phv.words[index];
        self.words[index].port().access(&mut phv.pass, phv.slot, |cell| {
            if writes { *cell = *word } else { *word = *cell }
        });
    }

    /// The words of the executor that waits in a queue with `ticket`, if there is one.
    pub(super) fn waits(&self, queue: u8, ticket: u32) -> Option<Words> {
        let ring = self.layout.ring(queue, 0);
        let slot = ring.slot(ticket);
        let waits = self.is_valid.peek(slot) == WAITER | ring.round(ticket) & ROUND;
        waits.then(|| self.peek(slot))
    }

    /// The number of tickets from `retrieve` to `add` that have no task.
    pub(super) fn skipped(&self, queue: u8, priority: u8, add: u32, retrieve: u32) -> usize {
        let ring = self.layout.ring(queue, priority);
        let tickets = (0..add.wrapping_sub(retrieve)).map(|behind| retrieve.wrapping_add(behind));
        let is_task = |ticket: &u32| {
            self.is_valid.peek(ring.slot(*ticket)) == TASK | ring.round(*ticket) & ROUND
        };
        tickets.filter(|ticket| !is_task(ticket)).count()
    }

    /// The words of a slot.
    pub(super) fn peek(&self, slot: u32) -> Words {
        let mut words = Words::default();
        for (word, array) in words.iter_mut().zip(&self.words) {
            *word = array.peek(slot);
        }
        words
    }

    /// The indices of slots that hold a task, and of those that hold a waiting executor.
    pub(super) fn occupied(&self) -> (Vec<u32>, Vec<u32>) {
        let of = |kind| {
            let cells = (0..).zip(self.is_valid.cells());
            cells.filter(|(_, cell)| *cell & !ROUND == kind).map(|(index, _)| index).collect()
        };
        (of(TASK), of(WAITER))
    }

    pub(super) fn hash_state(&self, hasher: &mut impl Hasher) {
        self.pointers.hash_state(hasher);
        for (index, cell) in (0..).zip(self.is_valid.cells()) {
            cell.hash(hasher);
            let words = if cell & TASK != 0 { TASK_WORDS } else { WAITER_WORDS };
            if cell & !ROUND != EMPTY {
                self.peek(index)[..words].hash(hasher);
            }
        }
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        let mut arrays = self.pointers.report();
        arrays.push(self.is_valid.report());
        arrays.extend(self.words.iter().map(RegisterArray::report));
        arrays
    }
}
