//! add_ptr and retrieve_ptr, each a pair <round, index> in 32 bits, in their three forms (Falcon
//! §3.3.2, §3.3.5).
//!
//! In [`Form::Paired`] there is a pair of pointers for each queue (a class of executors, or a node)
//! and priority, the most urgent priority in the first stage. An executor takes a task from the
//! most urgent priority of its queue that has one, and waits in the lowest. A task of a higher
//! priority passes its own stage first, and takes a ticket there; if it then finds a waiting
//! executor, that ticket has no task. The packet that hands the task over is recirculated, and
//! skips the ticket if retrieve_ptr stands there: a late, duplicated or lost one changes nothing,
//! and an executor that gets such a ticket asks again.
//!
//! The paper lets retrieve_ptr run ahead of add_ptr when executors find no task, and sets it back
//! later. Here the same difference represents waiting: a request takes a ticket as a task does, and
//! waits in its slot; the task that gets the same ticket finds it there. So add_ptr minus
//! retrieve_ptr is the number of waiting tasks if positive, and of waiting executors if negative.
//! No request can miss a task that arrives at that moment, since each pointer moves in a single
//! access.
//!
//! [`Form::Repair`] has two cells in two stages. A packet reads add_ptr first, so that a request
//! moves retrieve_ptr only as far as it may. A task moves add_ptr before it can know that the queue
//! is full, so only add_ptr needs repair. The first task that finds it too high notes its true
//! value (`is_repairing`), and until a repair has set it back every task is recirculated and
//! carries the repair itself. The note and the repair name the generation of add_ptr, which the
//! repair raises: a late or duplicated repair changes nothing, and the next task replaces a lost
//! one.

use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher};

use concord_core::{Guard, Guards};
use concord_pisa::{ArrayReport, RegisterArray};

use super::layout::{Form, QueueLayout};
use super::stages::{Ask, POINTER_STAGES, Phv, Side};

/// How far `a` is ahead of `b`; both wrap.
#[inline]
pub(super) const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(cell: u64) -> u32 {
    (cell >> 32) as u32
}

const fn low(cell: u64) -> u32 {
    cell as u32
}

/// The pointer that is set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Add,
    Retrieve,
}

/// The repair of a pointer, carried by a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repair {
    pub(super) which: Which,
    /// The generation of add_ptr that it repairs.
    pub(super) generation: u32,
    pub(super) value: u32,
}

/// The registers of the pointers.
#[derive(Clone, Debug)]
pub(super) enum Pointers {
    Printed {
        add_ptr: RegisterArray<u32>,
        retrieve_ptr: RegisterArray<u32>,
        is_repairing_add_ptr: RegisterArray<u8>,
        is_repairing_retrieve_ptr: RegisterArray<u8>,
    },
    Repair {
        /// The generation and add_ptr, which is above its true value while it is repaired.
        add_ptr: RegisterArray<u64>,
        retrieve_ptr: RegisterArray<u32>,
        /// The generation that is repaired, plus one, and the true value of add_ptr in it.
        is_repairing: RegisterArray<u64>,
    },
    Paired {
        /// An array for each stage, the most urgent priority first, with a cell for each queue:
        /// add_ptr and retrieve_ptr, never further apart than the capacity. Executors wait in the
        /// last one.
        levels: Vec<RegisterArray<u64>>,
    },
}

impl Pointers {
    pub(super) fn new(layout: &QueueLayout) -> Pointers {
        match layout.form {
            Form::Printed => Pointers::Printed {
                add_ptr: RegisterArray::new("add_ptr", 0, 1),
                retrieve_ptr: RegisterArray::new("retrieve_ptr", 1, 1),
                is_repairing_add_ptr: RegisterArray::new("repairing_add", 2, 1),
                is_repairing_retrieve_ptr: RegisterArray::new("repairing_rtrv", 2, 1),
            },
            Form::Repair => Pointers::Repair {
                add_ptr: RegisterArray::new("add_ptr", 0, 1),
                retrieve_ptr: RegisterArray::new("retrieve_ptr", 1, 1),
                is_repairing: RegisterArray::new("is_repairing", 2, 1),
            },
            Form::Paired => {
                let stages = POINTER_STAGES - layout.priorities..POINTER_STAGES;
                let cells = usize::from(layout.queues);
                let level = |stage| RegisterArray::new("pointers", stage, cells);
                Pointers::Paired { levels: stages.map(level).collect() }
            }
        }
    }

    pub(super) fn reset(&mut self) {
        self.begin_at(0, 0);
    }

    /// Sets both as if that many tasks had been added and retrieved, with no repair under way.
    pub(super) fn begin_at(&mut self, add: u32, retrieve: u32) {
        let mut pass = concord_pisa::Pass::begin();
        match self {
            Pointers::Printed {
                add_ptr,
                retrieve_ptr,
                is_repairing_add_ptr,
                is_repairing_retrieve_ptr,
            } => {
                is_repairing_add_ptr.reset();
                is_repairing_retrieve_ptr.reset();
                add_ptr.port().access(&mut pass, 0, |cell| *cell = add);
                retrieve_ptr.port().access(&mut pass, 0, |cell| *cell = retrieve);
            }
            Pointers::Repair { add_ptr, retrieve_ptr, is_repairing } => {
                is_repairing.reset();
                add_ptr.port().access(&mut pass, 0, |cell| *cell = pair(0, add));
                retrieve_ptr.port().access(&mut pass, 0, |cell| *cell = retrieve);
            }
            Pointers::Paired { levels } => {
                for level in levels {
                    for queue in 0..level.size() as u32 {
                        level.port().access(&mut pass, queue, |cell| *cell = pair(add, retrieve));
                    }
                }
            }
        }
    }

    /// The pointers of a queue's priority, as the control plane reads them: the true value of
    /// add_ptr, and retrieve_ptr.
    #[inline]
    pub(super) fn peek(&self, queue: u8, priority: u8) -> (u32, u32) {
        match self {
            Pointers::Printed { add_ptr, retrieve_ptr, .. } => {
                (add_ptr.peek(0), retrieve_ptr.peek(0))
            }
            Pointers::Repair { add_ptr, retrieve_ptr, is_repairing } => {
                let (add, noted) = (add_ptr.peek(0), is_repairing.peek(0));
                let is_noted = high(noted) == high(add).wrapping_add(1);
                (if is_noted { low(noted) } else { low(add) }, retrieve_ptr.peek(0))
            }
            Pointers::Paired { levels } => {
                let above = levels.len().checked_sub(usize::from(priority) + 1);
                let level = above.and_then(|level| levels.get(level));
                let cell = level.map_or(0, |level| level.peek(queue.into()));
                (high(cell), low(cell))
            }
        }
    }

    /// Whether a pointer differs from its true value.
    pub(super) fn is_repairing(&self) -> bool {
        match self {
            Pointers::Printed { is_repairing_add_ptr, is_repairing_retrieve_ptr, .. } => {
                is_repairing_add_ptr.peek(0) != 0 || is_repairing_retrieve_ptr.peek(0) != 0
            }
            Pointers::Repair { add_ptr, is_repairing, .. } => {
                high(is_repairing.peek(0)) == high(add_ptr.peek(0)).wrapping_add(1)
            }
            Pointers::Paired { .. } => false,
        }
    }

    pub(super) fn hash_state(&self, hasher: &mut impl Hasher) {
        match self {
            Pointers::Printed {
                add_ptr,
                retrieve_ptr,
                is_repairing_add_ptr,
                is_repairing_retrieve_ptr,
            } => {
                (add_ptr.peek(0), retrieve_ptr.peek(0)).hash(hasher);
                (is_repairing_add_ptr.peek(0), is_repairing_retrieve_ptr.peek(0)).hash(hasher);
            }
            Pointers::Repair { add_ptr, retrieve_ptr, is_repairing } => {
                (add_ptr.peek(0), retrieve_ptr.peek(0), is_repairing.peek(0)).hash(hasher);
            }
            Pointers::Paired { levels } => {
                levels.iter().flat_map(RegisterArray::cells).for_each(|cell| cell.hash(hasher));
            }
        }
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        match self {
            Pointers::Printed {
                add_ptr,
                retrieve_ptr,
                is_repairing_add_ptr,
                is_repairing_retrieve_ptr,
            } => alloc::vec![
                add_ptr.report(),
                retrieve_ptr.report(),
                is_repairing_add_ptr.report(),
                is_repairing_retrieve_ptr.report()
            ],
            Pointers::Repair { add_ptr, retrieve_ptr, is_repairing } => {
                alloc::vec![add_ptr.report(), retrieve_ptr.report(), is_repairing.report()]
            }
            Pointers::Paired { levels } => levels.iter().map(RegisterArray::report).collect(),
        }
    }

    /// Runs a packet's access in one of the first stages.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, layout: &QueueLayout, guards: Guards, phv: &mut Phv) {
        let capacity = layout.capacity as i32;
        match self {
            Pointers::Paired { levels } => {
                let priority = POINTER_STAGES - 1 - stage;
                let above = levels.len().checked_sub(usize::from(priority) + 1);
                let Some(level) = above.and_then(|level| levels.get_mut(level)) else { return };
                let capacity = layout.capacity.min(layout.ring(phv.queue, priority).slots) as i32;
                match priority {
                    0 => paired(level, capacity, phv),
                    _ => urgent(level, priority, capacity, guards, phv),
                }
            }
            Pointers::Repair { add_ptr, retrieve_ptr, is_repairing } => match stage {
                0 => repaired_add(add_ptr, guards, phv),
                1 => repaired_retrieve(retrieve_ptr, capacity, phv),
                3.. => {}
                _ => repaired_note(is_repairing, capacity, phv),
            },
            Pointers::Printed {
                add_ptr,
                retrieve_ptr,
                is_repairing_add_ptr,
                is_repairing_retrieve_ptr,
            } => match stage {
                0 => printed_add(add_ptr, phv),
                1 => printed_retrieve(retrieve_ptr, capacity, phv),
                3.. => {}
                _ => printed_flags(is_repairing_add_ptr, is_repairing_retrieve_ptr, phv),
            },
        }
    }
}

/// A priority above the lowest, in whose queue only tasks are. A task takes a ticket here before it
/// can know whether an executor waits; if one does, the ticket has no task, and a recirculated
/// packet skips it. Until then, an executor that gets the ticket asks again.
#[inline]
fn urgent(
    level: &mut RegisterArray<u64>,
    priority: u8,
    capacity: i32,
    guards: Guards,
    phv: &mut Phv,
) {
    let (ask, repair) = (phv.ask, phv.repair);
    let is_its = match ask {
        Ask::Add | Ask::Look => phv.priority == priority,
        Ask::Retrieve { .. } => phv.side == Side::None,
        Ask::Sweep(_) => false,
    };
    if !is_its {
        return;
    }
    let (add, retrieve, side) = level.port().access(&mut phv.pass, phv.queue.into(), |cell| {
        let (mut add, mut retrieve) = (high(*cell), low(*cell));
        if let Some(Repair { which: Which::Retrieve, value, .. }) = repair
            && (retrieve == value || !guards.on(Guard::SkippedTicket))
        {
            retrieve = retrieve.wrapping_add(1);
        }
        let (before, waiting) = ((add, retrieve), ahead(add, retrieve));
        let side = match ask {
            Ask::Add if waiting >= capacity => Side::Full,
            Ask::Add => Side::Put,
            Ask::Retrieve { .. } if waiting > 0 => Side::Take,
            Ask::Retrieve { .. } | Ask::Look | Ask::Sweep(_) => Side::None,
        };
        add = add.wrapping_add(u32::from(side == Side::Put));
        retrieve = retrieve.wrapping_add(u32::from(side == Side::Take));
        *cell = pair(add, retrieve);
        (before.0, before.1, side)
    });
    (phv.add, phv.retrieve, phv.side) = (add, retrieve, side);
    if side == Side::Take {
        (phv.ticket, phv.priority) = (retrieve, priority);
    } else {
        phv.ticket = add;
    }
}

/// The lowest priority. Both pointers are in one cell: each moves only if it may, and the packet
/// that moved it knows the outcome at once.
#[inline]
fn paired(level: &mut RegisterArray<u64>, capacity: i32, phv: &mut Phv) {
    let ask = match (phv.ask, phv.priority) {
        (Ask::Add, 1..) => return hand_urgent(level, phv),
        (Ask::Look, 1..) => return,
        (Ask::Retrieve { .. }, _) if phv.side == Side::Take => return,
        (ask, _) => ask,
    };
    let (cell, ticket, side) = level.port().access(&mut phv.pass, phv.queue.into(), |cell| {
        let before = *cell;
        let (add, retrieve) = (high(before), low(before));
        let waiting = ahead(add, retrieve);
        let (ticket, side) = match ask {
            Ask::Look => (0, Side::None),
            Ask::Add if waiting >= capacity => (0, Side::Full),
            Ask::Add => (add, if waiting < 0 { Side::Hand } else { Side::Put }),
            Ask::Retrieve { .. } if waiting > 0 => (retrieve, Side::Take),
            Ask::Retrieve { may_wait: false } => (0, Side::Empty),
            Ask::Retrieve { may_wait: true } if -waiting >= capacity => (0, Side::Full),
            Ask::Retrieve { may_wait: true } => (retrieve, Side::Wait),
            Ask::Sweep(ticket) if waiting < 0 && add == ticket => (ticket, Side::Hand),
            Ask::Sweep(_) => (0, Side::None),
        };
        *cell = match side {
            Side::Put | Side::Hand => pair(add.wrapping_add(1), retrieve),
            Side::Take | Side::Wait => pair(add, retrieve.wrapping_add(1)),
            _ => before,
        };
        (before, ticket, side)
    });
    (phv.add, phv.retrieve, phv.priority) = (high(cell), low(cell), 0);
    (phv.ticket, phv.side, phv.handed) = (ticket, side, ticket);
}

/// A task of a higher priority, which has a ticket there or found no room: the executor that waits
/// longest, if any, gets it.
#[inline]
fn hand_urgent(level: &mut RegisterArray<u64>, phv: &mut Phv) {
    let waiter = level.port().access(&mut phv.pass, phv.queue.into(), |cell| {
        let (add, retrieve) = (high(*cell), low(*cell));
        let waits = ahead(add, retrieve) < 0;
        *cell = pair(add.wrapping_add(u32::from(waits)), retrieve);
        waits.then_some(add)
    });
    let Some(waiter) = waiter else { return };
    let skip = |value| Repair { which: Which::Retrieve, generation: 0, value };
    phv.fix = (phv.side == Side::Put).then_some(skip(phv.ticket));
    // Where there was no room, the owner gets a ticket that retrieve_ptr has passed.
    phv.handed = if phv.fix.is_some() { phv.ticket } else { phv.retrieve.wrapping_sub(1) };
    (phv.side, phv.ticket, phv.priority) = (Side::Hand, waiter, 0);
}

/// Stage 0: a task moves add_ptr whether or not it may; a repair of the same generation sets it
/// back.
#[inline]
fn repaired_add(add_ptr: &mut RegisterArray<u64>, guards: Guards, phv: &mut Phv) {
    let (ask, repair) = (phv.ask, phv.repair);
    let cell = add_ptr.port().access(&mut phv.pass, 0, |cell| {
        if let Some(repair) = repair
            && (high(*cell) == repair.generation || !guards.on(Guard::RepairGeneration))
        {
            *cell = pair(high(*cell).wrapping_add(1), repair.value);
        }
        let found = *cell;
        let moves = match ask {
            Ask::Add => true,
            Ask::Sweep(ticket) => low(found) == ticket,
            Ask::Look | Ask::Retrieve { .. } => false,
        };
        if moves {
            *cell = pair(high(found), low(found).wrapping_add(1));
        }
        found
    });
    (phv.generation, phv.add) = (high(cell), low(cell));
    if let Ask::Sweep(ticket) = ask
        && low(cell) == ticket
    {
        (phv.ticket, phv.side) = (ticket, Side::Hand);
    }
}

/// Stage 1: a request moves retrieve_ptr at most the capacity ahead of the add_ptr that it saw.
#[inline]
fn repaired_retrieve(retrieve_ptr: &mut RegisterArray<u32>, capacity: i32, phv: &mut Phv) {
    let (ask, add) = (phv.ask, phv.add);
    let (found, moved) = retrieve_ptr.port().access(&mut phv.pass, 0, |cell| {
        let found = *cell;
        let waiting = ahead(add, found);
        let moves = match ask {
            Ask::Retrieve { may_wait } => waiting > 0 || may_wait && -waiting < capacity,
            Ask::Look | Ask::Add | Ask::Sweep(_) => false,
        };
        *cell = found.wrapping_add(u32::from(moves));
        (found, moves)
    });
    phv.retrieve = found;
    if let Ask::Retrieve { may_wait } = ask {
        phv.ticket = found;
        // The next stage shows whether a task has that ticket.
        phv.side = match (moved, may_wait) {
            (true, _) => Side::Take,
            (false, true) => Side::Full,
            (false, false) => Side::Empty,
        };
    }
}

/// Stage 2: whether add_ptr has its true value. The first task that found the queue full notes that
/// it no longer has.
#[inline]
fn repaired_note(is_repairing: &mut RegisterArray<u64>, capacity: i32, phv: &mut Phv) {
    let (ask, add, generation) = (phv.ask, phv.add, phv.generation.wrapping_add(1));
    let is_full = ahead(add, phv.retrieve) >= capacity;
    let noted = is_repairing.port().access(&mut phv.pass, 0, |cell| {
        let found = *cell;
        if ask == Ask::Add && is_full && high(found) != generation {
            *cell = pair(generation, add);
        }
        (high(found) == generation).then_some(low(found))
    });
    phv.add = noted.unwrap_or(add);
    let repair = |value| Repair { which: Which::Add, generation: phv.generation, value };
    match ask {
        Ask::Add => {
            (phv.ticket, phv.handed) = (add, add);
            let fix = noted.or(is_full.then_some(add));
            phv.fix = fix.map(repair);
            phv.side = match (noted, is_full) {
                (Some(_), _) => Side::Repairing,
                (None, true) => Side::Full,
                (None, false) if ahead(add, phv.retrieve) < 0 => Side::Hand,
                (None, false) => Side::Put,
            };
        }
        Ask::Retrieve { may_wait } if phv.side == Side::Take => {
            let waiting = ahead(phv.add, phv.ticket);
            // It moved because add_ptr was too high: the ticket has no task, and never will have if
            // no executor waits with it.
            phv.side = match (waiting > 0, may_wait) {
                (true, _) => Side::Take,
                (false, true) if -waiting < capacity => Side::Wait,
                (false, true) => Side::Full,
                (false, false) => Side::Empty,
            };
        }
        // A move on an add_ptr that is to be set back does not count.
        Ask::Sweep(_) if noted.is_some() => phv.side = Side::None,
        Ask::Look | Ask::Retrieve { .. } | Ask::Sweep(_) => {}
    }
}

/// Listing 1, line 2: read_and_increment(add_ptr). Listing 3: a repair sets it unconditionally.
fn printed_add(add_ptr: &mut RegisterArray<u32>, phv: &mut Phv) {
    let (ask, repair) = (phv.ask, phv.repair);
    phv.add = add_ptr.port().access(&mut phv.pass, 0, |cell| {
        if let Some(Repair { which: Which::Add, value, .. }) = repair {
            *cell = value;
        }
        let found = *cell;
        *cell = found.wrapping_add(u32::from(ask == Ask::Add));
        found
    });
}

/// Listing 1, line 3: read(retrieve_ptr); Listing 2, line 2: read_and_increment(retrieve_ptr).
fn printed_retrieve(retrieve_ptr: &mut RegisterArray<u32>, capacity: i32, phv: &mut Phv) {
    let (ask, repair) = (phv.ask, phv.repair);
    let asks = matches!(ask, Ask::Retrieve { .. });
    phv.retrieve = retrieve_ptr.port().access(&mut phv.pass, 0, |cell| {
        if let Some(Repair { which: Which::Retrieve, value, .. }) = repair {
            *cell = value;
        }
        let found = *cell;
        *cell = found.wrapping_add(u32::from(asks));
        found
    });
    match ask {
        Ask::Add => {
            phv.ticket = phv.add;
            // §3.3.2: "If the difference is equal to or larger than the queue size, the queue is
            // full."
            let is_full = ahead(phv.add, phv.retrieve) >= capacity;
            phv.side = if is_full { Side::Full } else { Side::Put };
        }
        Ask::Retrieve { .. } => (phv.ticket, phv.side) = (phv.retrieve, Side::Take),
        Ask::Look | Ask::Sweep(_) => {}
    }
}

/// Listing 1, lines 9 and 19: read_and_set of the flags. Listing 3, lines 10 and 14: they are
/// cleared.
fn printed_flags(
    is_repairing_add_ptr: &mut RegisterArray<u8>,
    is_repairing_retrieve_ptr: &mut RegisterArray<u8>,
    phv: &mut Phv,
) {
    let was_set = |cell: &mut u8| core::mem::replace(cell, 1) != 0;
    match phv.repair.map(|repair| repair.which) {
        Some(Which::Add) => {
            is_repairing_add_ptr.port().access(&mut phv.pass, 0, |cell| *cell = 0);
        }
        Some(Which::Retrieve) => {
            is_repairing_retrieve_ptr.port().access(&mut phv.pass, 0, |cell| *cell = 0);
        }
        None => {}
    }
    if phv.ask != Ask::Add {
        return;
    }
    let repair = |which| Repair { which, generation: 0, value: phv.ticket };
    if phv.side == Side::Full {
        if !is_repairing_add_ptr.port().access(&mut phv.pass, 0, was_set) {
            phv.fix = Some(repair(Which::Add));
        }
    } else if ahead(phv.retrieve, phv.ticket) > 0
        && !is_repairing_retrieve_ptr.port().access(&mut phv.pass, 0, was_set)
    {
        phv.fix = Some(repair(Which::Retrieve));
    }
}
