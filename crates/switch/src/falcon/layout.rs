//! The size of the queue, and the form of its pointers.

use core::fmt;

use concord_pisa::ASIC;
use concord_wire::falcon::{PRIORITIES_MAX, QUEUES_MAX};

/// The minimum number of slots of the queue.
pub const SLOTS_MIN: u32 = 2;
/// The maximum number of slots of the queue: an array of 64-bit cells fits a stage.
pub const SLOTS_MAX: u32 = 1 << (ASIC.stage_sram_bytes / 8).ilog2();

/// How the registers hold add_ptr and retrieve_ptr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// As in the paper's Listings 1 to 3: a pointer moves whether or not it may, and a later packet
    /// repairs it. This form overwrites tasks, and serves the tests that show this.
    Printed,
    /// In two stages. Only add_ptr can move where it must not; its repair carries a generation, so
    /// that it may be late, lost or duplicated.
    Repair,
    /// Both in one cell of 64 bits, where each moves only if it may.
    Paired,
}

/// The size and form of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// Slots in total, a power of two. Where there are several queues or priorities, the lowest
    /// priority of the first queue has half of the slots, and the others have equal parts of the
    /// rest.
    pub slots: u32,
    /// The maximum number of tasks that wait in one priority of a queue, as far as it has slots; of
    /// executors too.
    pub capacity: u32,
    /// The number of queues, one for each class of executors or node: a power of two.
    pub queues: u8,
    /// The number of priorities of each queue: 1, 2 or 4.
    pub priorities: u8,
    /// The form of the pointers.
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

    /// The slots of one priority of a queue: a circular queue of its own. The queue and priority
    /// must exist.
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
        // Skip the part of the first one, which has the other half.
        match number {
            0 => Ring { base: 0, slots: half },
            number => Ring { base: half + part * number, slots: part },
        }
    }

    /// Checks that a switch can have this queue.
    ///
    /// # Errors
    /// [`QueueError`] if it cannot.
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

/// Where the slots of one priority of a queue are, and how many: a power of two.
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

    /// How many times the tickets went round the ring before this one.
    #[inline]
    pub(super) const fn round(&self, ticket: u32) -> u32 {
        ticket >> self.slots.trailing_zeros()
    }
}

/// The reason why no switch can have such a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The number of slots is not a power of two, too small or too large.
    Slots(u32),
    /// There are too many queues or priorities, their numbers are not powers of two, or the form of
    /// the pointers has only one.
    Rings(QueueLayout),
    /// The capacity is zero, or larger than the number of slots.
    Capacity {
        /// The capacity in the settings.
        capacity: u32,
        /// The number of slots.
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
