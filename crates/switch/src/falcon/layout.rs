//! The size of the queue, and in which form its pointers are.

use core::fmt;

use concord_pisa::ASIC;

/// Fewest and most slots of the queue.
pub const SLOTS_MIN: u32 = 2;
/// Most slots of the queue: an array of 64-bit cells fits a stage.
pub const SLOTS_MAX: u32 = 1 << (ASIC.stage_sram_bytes / 8).ilog2();

/// How add_ptr and retrieve_ptr are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// As the paper's Listings 1 to 3 have them: they move whether or not they may, and a later packet
    /// sets them right. It overwrites tasks, and is here for the tests that show that.
    Printed,
    /// In two stages. Only add_ptr moves where it must not; what repairs it carries a generation, so
    /// that it can be late, lost or doubled.
    Repair,
    /// Both in one cell of 64 bits, where each moves only if it may.
    Paired,
}

/// The queue's size and form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// Slots, a power of two.
    pub slots: u32,
    /// Tasks that wait at most; executors too.
    pub capacity: u32,
    /// How the pointers are kept.
    pub form: Form,
}

impl QueueLayout {
    /// Falcon §3.3.2: 128K entries.
    pub const DEFAULT: QueueLayout =
        QueueLayout { slots: 1 << 17, capacity: 1 << 17, form: Form::Paired };

    /// Whether there can be such a queue.
    ///
    /// # Errors
    /// [`QueueError`] if not.
    pub fn check(&self) -> Result<(), QueueError> {
        if !self.slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&self.slots) {
            return Err(QueueError::Slots(self.slots));
        }
        if self.capacity == 0 || self.capacity > self.slots {
            return Err(QueueError::Capacity { capacity: self.capacity, slots: self.slots });
        }
        Ok(())
    }
}

/// A queue that no switch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Not a power of two, too few or too many.
    Slots(u32),
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
            QueueError::Capacity { capacity, slots } => {
                write!(f, "the queue holds {capacity} tasks in {slots} slots: give it 1 to {slots}")
            }
        }
    }
}

impl core::error::Error for QueueError {}
