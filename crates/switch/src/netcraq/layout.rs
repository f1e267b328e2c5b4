//! The size of a chain's registers: cells, sessions, and the maximum length of values.

use core::fmt;

use concord_core::{Duration, MS};
use concord_pisa::ASIC;

/// The maximum number of cells and of sessions: two arrays of 64-bit cells fit a stage.
pub const CELLS_MAX: u32 = 1 << (ASIC.stage_sram_bytes / 16).ilog2();
/// The valid maximum lengths of values, in bytes.
pub const VALUE_BYTES: [u8; 3] = [16, 32, 64];

/// The store's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLayout {
    /// The maximum number of keys; a power of two.
    pub cells: u32,
    /// The maximum number of sessions; a power of two.
    pub sessions: u32,
    /// The maximum length of a value in bytes: 16, 32 or 64.
    pub value_bytes: u8,
    /// The time after which a version that is not acknowledged is sent again, in ns.
    pub patience_ns: Duration,
}

impl ChainLayout {
    /// The default sizes of a switch.
    pub const DEFAULT: ChainLayout =
        ChainLayout { cells: 4_096, sessions: 1_024, value_bytes: 64, patience_ns: 20 * MS };

    /// The number of 64-bit words of a value.
    #[must_use]
    pub const fn words(&self) -> u8 {
        self.value_bytes / 8
    }

    /// Checks that a switch can have such a store.
    ///
    /// # Errors
    /// [`ChainError`] if it cannot.
    pub fn check(&self) -> Result<(), ChainError> {
        let is_size = |size: u32| size.is_power_of_two() && size <= CELLS_MAX;
        // A stamp has 16 bits for its slot.
        if !is_size(self.cells) || !is_size(self.sessions) {
            return Err(ChainError::Size(*self));
        }
        if !VALUE_BYTES.contains(&self.value_bytes) {
            return Err(ChainError::Value(self.value_bytes));
        }
        if self.patience_ns == 0 {
            return Err(ChainError::Patience);
        }
        Ok(())
    }
}

/// The reason why no switch can have such a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The number of cells or sessions is not a power of two, or too large.
    Size(ChainLayout),
    /// The length of values is not valid.
    Value(u8),
    /// The patience is zero: versions would be sent again at once, and without end.
    Patience,
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainError::Size(ChainLayout { cells, sessions, .. }) => write!(
                f,
                "the chain's switches have {cells} cells and {sessions} sessions: give them powers of two up to \
                 {CELLS_MAX}"
            ),
            ChainError::Value(bytes) => {
                write!(f, "the chain's values have {bytes} bytes: give them 16, 32 or 64")
            }
            ChainError::Patience => f.write_str(
                "the chain sends again what is not acknowledged for 0 ns: give it a time",
            ),
        }
    }
}

impl core::error::Error for ChainError {}
