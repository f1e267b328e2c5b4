//! The configuration of programs for replicas: the size of their registers, and the intervals of
//! their control plane.

use core::fmt;

use concord_core::{Duration, MS};
use concord_pisa::ASIC;

/// The stages before and after the dirty set: `seq`, `last_committed`, `wildcard_seq`, `occupied`.
const OTHER_STAGES: usize = 4;
/// The maximum number of stages of the dirty set.
pub const TABLE_STAGES_MAX: u8 = (ASIC.stages - OTHER_STAGES) as u8;
/// The maximum number of cells in one stage of the dirty set.
pub const SLOTS_MAX: u32 = 1 << 24;
/// The longest run of a client's reads to one replica, as a power of two.
pub const RUN_BITS_MAX: u8 = 16;

/// The size of the program's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of stages of the dirty set.
    pub table_stages: u8,
    /// The number of cells in each of them, a power of two.
    pub slots: u32,
    /// The width of the sequence counter in bits; fewer than 32 to test its exhaustion (trap T20).
    pub counter_bits: u8,
    /// How many reads of a client in a row go to one replica, as a power of two: a GSO batch of
    /// reads then stays one batch to few replicas, instead of a short one to each.
    pub run_bits: u8,
}

impl Layout {
    /// Harmonia §7.2: three stages of 64K slots.
    pub const DEFAULT: Layout =
        Layout { table_stages: 3, slots: 65_536, counter_bits: 32, run_bits: 4 };

    /// The last number of a switch id.
    #[must_use]
    pub const fn counter_max(&self) -> u32 {
        (((1u64) << self.counter_bits) - 1) as u32
    }

    /// Trap T20: the number at which a successor of the switch id is requested, while enough
    /// numbers are left to continue.
    pub(crate) const fn ask_at(&self) -> u32 {
        self.counter_max() - self.counter_max() / 16
    }

    /// Checks that a switch can have these registers.
    ///
    /// # Errors
    /// [`ConfigError`] if it cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.table_stages == 0 || self.table_stages > TABLE_STAGES_MAX {
            return Err(ConfigError::TableStages(self.table_stages));
        }
        if !self.slots.is_power_of_two() || self.slots > SLOTS_MAX {
            return Err(ConfigError::Slots(self.slots));
        }
        if !(2..=32).contains(&self.counter_bits) {
            return Err(ConfigError::CounterBits(self.counter_bits));
        }
        if self.run_bits > RUN_BITS_MAX {
            return Err(ConfigError::RunBits(self.run_bits));
        }
        Ok(())
    }
}

/// The settings of programs with a dirty set, a sequencer or several readers.
#[derive(Clone, Copy, Debug)]
pub struct TableSettings {
    /// The size of their registers.
    pub layout: Layout,
    /// How long `last_committed` may stay unchanged while a write is in flight, in ns.
    pub noop_interval_ns: Duration,
    /// The time between two chunks of a sweep, in ns.
    pub sweep_interval_ns: Duration,
    /// The number of sweep packets in a chunk, each for one index of every stage.
    pub sweep_chunk: u32,
}

impl TableSettings {
    /// The defaults. A lap of the sweep over 64K slots takes 128 chunks, 0.64 s.
    pub const DEFAULT: TableSettings = TableSettings {
        layout: Layout::DEFAULT,
        noop_interval_ns: 20 * MS,
        sweep_interval_ns: 5 * MS,
        sweep_chunk: 512,
    };
}

/// The reason why no switch can run such a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The dirty set has no stage, or more than a pipe has.
    TableStages(u8),
    /// The number of slots is not a power of two, or too large.
    Slots(u32),
    /// The counter's width is not within 2 to 32.
    CounterBits(u8),
    /// The runs of reads are too long.
    RunBits(u8),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::TableStages(n) => {
                write!(f, "the dirty set has {n} stages: give it 1 to {TABLE_STAGES_MAX}")
            }
            ConfigError::Slots(n) => {
                write!(f, "a stage has {n} slots: give it a power of two up to {SLOTS_MAX}")
            }
            ConfigError::CounterBits(n) => {
                write!(f, "the counter has {n} bits: give it 2 to 32")
            }
            ConfigError::RunBits(n) => {
                write!(f, "2^{n} reads in a row are too many: give it up to 2^{RUN_BITS_MAX}")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
