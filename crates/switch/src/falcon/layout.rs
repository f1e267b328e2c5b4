//! The size of the queue, and in which form its pointers are.

use core::fmt;

use concord_pisa::ASIC;
use concord_wire::falcon::{PRIORITIES_MAX, QUEUES_MAX};

/// Fewest and most slots of the queue.
pub const SLOTS_MIN: u32 = 2;
/// Most slots of the queue: an array of 64-bit cells fits a stage.
pub const SLOTS_MAX: u32 = 1 << (ASIC.stage_sram_bytes / 8).ilog2();

/// How add_ptr and retrieve_ptr are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// As the paper's Listings 1 to 3 have them: they move whether or not they may, and a later
    /// packet sets them right. It overwrites tasks, and is here for the tests that show that.
    Printed,
    /// In two stages. Only add_ptr moves where it must not; what repairs it carries a generation,
    /// so that it can be late, lost or doubled.
    Repair,
    /// Both in one cell of 64 bits, where each moves only if it may.
    Paired,
}

/// The queues' size and form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// Slots in all, a power of two. Where there is more than one queue or priority, the first
    /// queue's lowest priority has half of them, and the others equal parts of the rest.
    pub slots: u32,
    /// Tasks that wait at most in a queue and priority, as far as it has slots; executors too.
    pub capacity: u32,
    /// Queues, one for each class of executors or node: a power of two.
    pub queues: u8,
    /// Priorities of each queue: 1, 2 or 4.
    pub priorities: u8,
    /// How the pointers are kept.
    pub form: Form,
}

impl QueueLayout {
    /// Falcon §3.3.2: 128K entries.
    pub const DEFAULT: QueueLayout = QueueLayout {
        slots: 1 << 17,
        capacity: 1 << 17,
        queues: QUEUES_MAX,
        priorities: PRIORITIES_MAX,
        form: Form::Paired,
    };

    /// One queue without priorities, as the paper has it.
    #[must_use]
    pub const fn one(slots: u32, capacity: u32, form: Form) -> QueueLayout {
        QueueLayout { slots, capacity, queues: 1, priorities: 1, form }
    }

    const fn rings(&self) -> u32 {
        self.queues as u32 * self.priorities as u32
    }

    /// The slots of a queue's priority: a circular queue of its own. There is such a queue and
    /// priority.
    #[must_use]
    #[inline]
    pub(super) const fn ring(&self, queue: u8, priority: u8) -> Ring {
        let rings = self.rings();
        let number = queue as u32 * self.priorities as u32 + priority as u32;
        if rings == 1 {
            return Ring { base: 0, slots: self.slots };
        }
        let half = self.slots / 2;
        // Both are powers of two.
        let part = half >> rings.trailing_zeros();
        // The part of the first one is left out: it has the other half.
        match number {
            0 => Ring { base: 0, slots: half },
            number => Ring { base: half + part * number, slots: part },
        }
    }

    /// Whether there can be such a queue.
    ///
    /// # Errors
    /// [`QueueError`] if not.
    pub fn check(&self) -> Result<(), QueueError> {
        if !self.slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&self.slots) {
            return Err(QueueError::Slots(self.slots));
        }
        let powers = self.queues.is_power_of_two() && self.priorities.is_power_of_two();
        let most = self.queues <= QUEUES_MAX && self.priorities <= PRIORITIES_MAX;
        let is_one = self.rings() == 1;
        let has_room = is_one || self.slots / 2 >= self.rings();
        if !powers || !most || !has_room || !(is_one || self.form == Form::Paired) {
            return Err(QueueError::Rings(*self));
        }
        if self.capacity == 0 || self.capacity > self.slots {
            return Err(QueueError::Capacity { capacity: self.capacity, slots: self.slots });
        }
        Ok(())
    }
}

/// Where the slots of a queue's priority are, and how many: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) base: u32,
    pub(super) slots: u32,
}

impl Ring {
    /// The slot of a ticket.
    #[inline]
    pub(super) const fn slot(&self, ticket: u32) -> u32 {
        self.base + (ticket & (self.slots - 1))
    }

    /// How often the tickets have gone round before this one.
    #[inline]
    pub(super) const fn round(&self, ticket: u32) -> u32 {
        ticket >> self.slots.trailing_zeros()
    }
}

/// A queue that no switch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Not a power of two, too few or too many.
    Slots(u32),
    /// Too many queues or priorities, no powers of two, or not with pointers of this form.
    Rings(QueueLayout),
    /// None, or more than there are slots.
    Capacity {
        /// What was asked for.
        capacity: u32,
        /// How many slots there are.
        slots: u32,
    },
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueError::Slots(n) => write!(
                f,
                "the queue has {n} slots: give it a power of two from {SLOTS_MIN} to {SLOTS_MAX}"
            ),
            QueueError::Rings(QueueLayout { slots, queues, priorities, .. }) => write!(
                f,
                "{queues} queues of {priorities} priorities in {slots} slots: give it up to {QUEUES_MAX} queues and \
                 {PRIORITIES_MAX} priorities, powers of two, with two slots for each, and paired pointers"
            ),
            QueueError::Capacity { capacity, slots } => {
                write!(f, "the queue holds {capacity} tasks in {slots} slots: give it 1 to {slots}")
            }
        }
    }
}

impl core::error::Error for QueueError {}
