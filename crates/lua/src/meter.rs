//! The cost of a script so far, in units of about 10 ns: the time of one Lua instruction.
//!
//! The count depends on the script alone, so that it is stopped at the same place at every replica.
//! It has two uses: a script that costs more than it may is stopped, and one that has cost a slice
//! is paused ([`crate::slices`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use concord_core::rng::splitmix64;
use concord_engine::script::{Host, SLICE_COST};

use crate::slices::Outside;
use crate::{COST_MAX, COST_STEP, STOPPED};

/// The number of bytes that a native reads or makes for one unit.
const BYTES_OF_ONE: u64 = 16;
/// The number of bytes of numbers in strings that cost one unit: they are read byte by byte.
pub(crate) const DIGITS_OF_ONE: u64 = 4;

/// Costs that may differ between replicas are divided by this.
const UNSURE_OF_ONE: u64 = 20;

/// The square of so many keys at one place of a table counts as one; and what it takes to pass by
/// one of them, in units.
const SEARCHED_OF_ONE: u64 = 16;
const PASSED_COST: u64 = 2;

/// The meter of a script (see the module). Clones count for the same script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Rc<Counts>);

/// The counts, and the way out of the script.
#[derive(Debug)]
pub(crate) struct Counts {
    cost: Cell<u64>,
    /// The cost that may differ a little between replicas.
    unsure: Cell<u64>,
    cost_max: Cell<u64>,
    /// Instructions that are not counted yet.
    steps: Cell<u32>,
    /// The number of instructions of the script that were looked at ([`crate::steps`]).
    looks: Cell<u64>,
    /// The rest of the slice, and whether there are slices.
    left: Cell<u64>,
    is_sliced: Cell<bool>,
    outside: Outside,
    /// The memory in use, and the amount at which garbage is collected, in bytes.
    used: Cell<usize>,
    /// The part of it in small blocks, each of which the collector visits.
    small: Cell<usize>,
    collect_at: Cell<usize>,
    /// The replies to the first commands, with their costs: these commands were executed before.
    replies: RefCell<Replies>,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            cost: Cell::new(0),
            unsure: Cell::new(0),
            cost_max: Cell::new(COST_MAX),
            steps: Cell::new(0),
            looks: Cell::new(0),
            left: Cell::new(SLICE_COST),
            is_sliced: Cell::new(false),
            outside: Outside::default(),
            used: Cell::new(0),
            small: Cell::new(0),
            collect_at: Cell::new(usize::MAX),
            replies: RefCell::default(),
        }
    }
}

/// An instruction that is looked at.
pub(crate) struct Looked {
    /// The number of instructions for which it stands, itself included.
    pub(crate) stands_for: u32,
    /// Whether [`COST_STEP`] further instructions are over.
    pub(crate) is_step: bool,
    /// The number of instructions until the next one.
    pub(crate) next: u32,
}

/// The number of instructions before the next look, that one included: 1 to 16. No loop has the
/// length of a pattern, since there is none.
#[inline]
fn stride(looks: u64) -> u32 {
    1 + (splitmix64(looks) >> 60) as u32
}

impl Counts {
    /// Counts a cost, and pauses the script if its slice is over.
    #[inline]
    pub(crate) fn add(&self, cost: u64) {
        self.cost.set(self.cost.get().saturating_add(cost));
        self.work(cost);
    }

    /// The number of instructions until the first one of a script that is looked at.
    pub(crate) fn first_look(&self) -> u32 {
        self.steps.set(0);
        self.looks.set(0);
        stride(0)
    }

    /// An instruction is looked at.
    #[inline]
    pub(crate) fn look(&self) -> Looked {
        let looks = self.looks.get();
        self.looks.set(looks + 1);
        let stands_for = stride(looks);
        let steps = self.steps.get() + stands_for;
        let is_step = steps >= COST_STEP;
        self.steps.set(if is_step { steps - COST_STEP } else { steps });
        Looked { stands_for, is_step, next: stride(looks + 1) }
    }

    /// Counts work that uses up the slice, but for which the script does not pay.
    #[inline]
    pub(crate) fn work(&self, cost: u64) {
        match self.left.get().checked_sub(cost) {
            Some(left) => self.left.set(left),
            None => self.pause(),
        }
    }

    /// Counts a cost that depends on addresses. Its limit is far above anything else that a script
    /// may cost, so that a script that ends by itself ends at all replicas.
    #[cold]
    pub(crate) fn add_unsure(&self, cost: u64) {
        self.unsure.set(self.unsure.get().saturating_add(cost / UNSURE_OF_ONE));
        self.work(cost);
    }

    /// A key was looked for among so many at the same place of a table, so many times. With objects
    /// among them these depend on addresses. The cost grows with the square: a table that grows
    /// passes by all of them for each of them, within one instruction.
    #[cold]
    pub(crate) fn add_searched(&self, keys: u64, times: u32) {
        let cost = (keys.saturating_mul(keys) / SEARCHED_OF_ONE).saturating_mul(times.into());
        self.unsure.set(self.unsure.get().saturating_add(cost / UNSURE_OF_ONE));
        self.work(keys.saturating_mul(PASSED_COST).saturating_mul(times.into()));
    }

    #[cold]
    fn pause(&self) {
        self.left.set(SLICE_COST);
        if self.is_sliced.get() {
            self.outside.pause();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let most = self.cost_max.get();
        self.cost.get() > most || self.unsure.get() > most
    }

    pub(crate) fn used(&self) -> &Cell<usize> {
        &self.used
    }

    pub(crate) fn small(&self) -> &Cell<usize> {
        &self.small
    }

    pub(crate) fn collect_at(&self) -> &Cell<usize> {
        &self.collect_at
    }

    /// Whether garbage should be collected.
    pub(crate) fn is_full(&self) -> bool {
        self.used.get() > self.collect_at.get()
    }

    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// From now on the script is paused whenever it has used up a slice.
    pub(crate) fn slice(&self) {
        self.is_sliced.set(true);
    }

    /// Ends the script, whatever it has cost; it is not paused any more.
    pub(crate) fn abandon(&self) {
        self.is_sliced.set(false);
        self.cost.set(u64::MAX);
    }
}

impl Meter {
    /// The counts for Lua's own functions and those of C's library.
    pub(crate) fn counts(&self) -> &Counts {
        &self.0
    }

    /// Starts to count anew.
    pub(crate) fn begin(&self, cost: u64, cost_max: u64) {
        self.0.cost.set(cost);
        self.0.unsure.set(0);
        self.0.cost_max.set(cost_max);
    }

    pub(crate) fn add(&self, cost: u64) {
        self.0.add(cost);
    }

    /// Counts the bytes that a native has read or made.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.0.add(bytes as u64 / BYTES_OF_ONE);
    }

    /// See [`Counts::work`].
    pub(crate) fn work(&self, cost: u64) {
        self.0.work(cost);
    }

    pub(crate) fn cost(&self) -> u64 {
        self.0.cost.get()
    }

    pub(crate) fn left(&self) -> u64 {
        self.0.cost_max.get().saturating_sub(self.0.cost.get())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Counts a cost, and fails if the limit is exceeded.
    pub(crate) fn spend(&self, cost: u64) -> mlua::Result<()> {
        self.add(cost);
        if self.is_over() { Err(mlua::Error::runtime(STOPPED)) } else { Ok(()) }
    }

    /// The error of a script that exceeds its cost limit.
    pub(crate) fn over(&self) -> mlua::Error {
        self.add(self.left().saturating_add(1));
        mlua::Error::runtime(STOPPED)
    }

    /// The first commands were executed before, with these replies.
    pub(crate) fn replay(&self, replies: Replies) {
        *self.0.replies.borrow_mut() = replies;
    }

    /// Takes the noted replies.
    pub(crate) fn take_replies(&self) -> Replies {
        self.0.replies.take()
    }

    /// Executes a command, or repeats its first reply; the reply is appended.
    pub(crate) fn call(&self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) {
        let counts = &*self.0;
        if let Some(cost) = counts.replies.borrow_mut().next(reply) {
            return counts.add(cost);
        }
        let start = reply.len();
        let cost = counts.outside.with(|host| host.call(resp3, args, reply)).unwrap_or(0);
        if !counts.is_sliced.get() {
            counts.replies.borrow_mut().note(&reply[start..], cost);
        }
        counts.add(cost);
    }

    /// Whether the user may execute a command; see [`Host::may`].
    pub(crate) fn may(&self, args: &[&[u8]]) -> Option<bool> {
        self.0.outside.with(|host: &mut dyn Host| host.may(args)).flatten()
    }
}

/// The replies to the commands that a script executed.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    /// The end of each reply, with the cost of its command.
    ends: Vec<(usize, u64)>,
    /// The number of replies that were repeated.
    given: usize,
}

impl Replies {
    fn note(&mut self, reply: &[u8], cost: u64) {
        self.bytes.extend_from_slice(reply);
        self.ends.push((self.bytes.len(), cost));
        self.given = self.ends.len();
    }

    /// The same replies, from the first one on.
    pub(crate) fn rewound(self) -> Replies {
        Replies { given: 0, ..self }
    }

    /// Appends the next reply, and returns the cost of its command.
    fn next(&mut self, reply: &mut Vec<u8>) -> Option<u64> {
        let (end, cost) = *self.ends.get(self.given)?;
        let start = self.given.checked_sub(1).map_or(0, |before| self.ends[before].0);
        reply.extend_from_slice(&self.bytes[start..end]);
        self.given += 1;
        if self.given == self.ends.len() {
            *self = Replies::default();
        }
        Some(cost)
    }
}
