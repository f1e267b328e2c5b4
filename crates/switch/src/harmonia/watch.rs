//! The tasks of the switch's own processor for the dirty set: it makes sure that completions keep
//! coming (trap T18), and sweeps (trap T19). It reads the registers of one cell, and acts only by
//! sending packets through the pipeline.

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, ObjectId};
use concord_wire::{Addr, Flags, Op, Repr};

use super::registers::Registers;
use crate::program::{Injection, Settings};
use crate::store::Counters;

/// The registers of one cell, as they were when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The last number given out; 0 if none.
    pub seq: u32,
    /// The number of the latest write known to be committed; 0 before the first completion.
    pub last_committed: u32,
    /// The number of the latest write of all keys; 0 if none.
    pub wildcard_seq: u32,
    /// The number of cells of the dirty set that are in use.
    pub occupied: u32,
}

/// A lap of the sweep over the indices of the dirty set.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    /// Whether `last_committed` moved since the last lap began: then there may be new strays.
    wanted: bool,
    /// The next index.
    next: u32,
    /// The number of indices left in this lap.
    left: u32,
    /// The number of indices left in this chunk.
    left_of_chunk: u32,
    /// When the next chunk is due.
    at: Instant,
}

/// The registers as they were last read, and the timers.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    addr: Addr,
    slots: u32,
    noop_interval_ns: Duration,
    sweep_interval_ns: Duration,
    sweep_chunk: u32,
    /// `last_committed` at the last read.
    committed_seen: u32,
    /// Whether a write was in flight at the last read.
    waiting: bool,
    /// When the next no-op is due if `last_committed` has not moved until then. Meaningful only
    /// while `waiting`.
    noop_at: Instant,
    sweep: Sweep,
}

impl Watch {
    pub(super) fn new(settings: &Settings) -> Watch {
        let own = settings.sections.table;
        Watch {
            addr: settings.addr,
            slots: own.layout.slots,
            noop_interval_ns: own.noop_interval_ns,
            sweep_interval_ns: own.sweep_interval_ns,
            sweep_chunk: own.sweep_chunk,
            committed_seen: 0,
            waiting: false,
            noop_at: Instant::NEVER,
            sweep: Sweep::default(),
        }
    }

    /// The switch falls silent: it no longer waits for completions.
    pub(super) fn rest(&mut self) {
        self.waiting = false;
    }

    /// Sets the timers from the registers.
    #[inline]
    pub(super) fn look(&mut self, now: Instant, registers: &Registers, is_installed: bool) {
        let last_committed = registers.last_committed.peek(0);
        let progressed = last_committed != self.committed_seen;
        self.committed_seen = last_committed;
        let waiting = is_installed && waits(last_committed, registers);
        if waiting && (progressed || !self.waiting) {
            self.noop_at = now.after(self.noop_interval_ns);
        }
        self.waiting = waiting;
        if progressed {
            if !self.sweeps(registers.occupied.peek(0)) {
                self.sweep.at = now.after(self.sweep_interval_ns);
            }
            self.sweep.wanted = true;
        }
    }

    /// Trap T18: a write that changes no data, whose completion enables the fast path, and turns
    /// the entries of lost writes into strays.
    pub(super) fn noop(&mut self, now: Instant) -> Injection {
        self.noop_at = now.after(self.noop_interval_ns);
        noop(self.addr)
    }

    /// The next packet that is due.
    pub(super) fn upkeep(
        &mut self,
        now: Instant,
        view: &View,
        counters: &mut Counters,
    ) -> Option<Injection> {
        if self.waiting && now >= self.noop_at {
            counters.noops_sent += 1;
            return Some(self.noop(now));
        }
        if self.sweep.left_of_chunk == 0 {
            if !self.sweeps(view.occupied) || now < self.sweep.at {
                return None;
            }
            self.begin_chunk(now, counters);
        }
        self.sweep.left_of_chunk = self.sweep.left_of_chunk.checked_sub(1)?;
        let sweep = Repr { index: self.sweep.next, ..Repr::new(Op::Sweep) };
        self.sweep.next = (self.sweep.next + 1) % self.slots;
        self.sweep.left -= 1;
        Some(Injection::new(&sweep.header(0)))
    }

    fn begin_chunk(&mut self, now: Instant, counters: &mut Counters) {
        if self.sweep.left == 0 {
            self.sweep.wanted = false;
            self.sweep.left = self.slots;
            counters.sweep_laps += 1;
        }
        self.sweep.left_of_chunk = self.sweep.left.min(self.sweep_chunk);
        self.sweep.at = now.after(self.sweep_interval_ns);
    }

    pub(super) fn deadline(&self, view: &View) -> Deadline {
        let mut deadline = Deadline::NONE;
        if self.waiting {
            deadline = deadline.min(Deadline { at: self.noop_at, reason: "no-op (T18)" });
        }
        if self.sweeps(view.occupied) {
            deadline = deadline.min(Deadline { at: self.sweep.at, reason: "sweep (T19)" });
        }
        deadline
    }

    /// Whether a lap is in progress or due: there are entries, and some may be stray.
    fn sweeps(&self, occupied: u32) -> bool {
        (self.sweep.left > 0 || self.sweep.wanted) && occupied > 0
    }
}

/// Whether a completion is needed, that of a no-op if no other comes (trap T18). If every number
/// given out is committed, all entries are stray, and the sweep is enough.
#[inline]
fn waits(last_committed: u32, registers: &Registers) -> bool {
    let is_any =
        || registers.occupied.peek(0) > 0 || registers.wildcard_seq.peek(0) > last_committed;
    last_committed == 0 || (last_committed < registers.seq.peek(0) && is_any())
}

/// A numbered write that changes no data. Its reply ends at the switch.
pub(crate) fn noop(switch: Addr) -> Injection {
    let noop =
        Repr { flags: Flags::NOOP, obj_id: ObjectId(0), client: switch, ..Repr::new(Op::Write) };
    Injection::new(&noop.header(0))
}
