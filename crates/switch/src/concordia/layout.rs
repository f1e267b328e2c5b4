//! The size of the registers: how many blocks a switch can own.

use core::fmt;

use concord_pisa::ASIC;

/// The maximum number of ways: two tags in each of three stages.
pub const WAYS_MAX: usize = 6;
/// The maximum number of blocks in a way: status, copyset and lock of two ways fill a stage.
pub const WAY_BLOCKS_MAX: u32 = 1 << (ASIC.stage_sram_bytes / 20).ilog2();

/// The number of blocks that the switch can own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksLayout {
    /// Ways: the places in which a block can be.
    pub ways: u8,
    /// Blocks in each way; a power of two.
    pub way_blocks: u32,
}

impl BlocksLayout {
    /// The default: 393,216 blocks; the paper has 375,000 (§6).
    pub const DEFAULT: BlocksLayout =
        BlocksLayout { ways: WAYS_MAX as u8, way_blocks: WAY_BLOCKS_MAX };

    /// Checks that a switch can have these sizes.
    ///
    /// # Errors
    /// [`BlocksError`] if it cannot.
    pub fn check(&self) -> Result<(), BlocksError> {
        let has_ways = self.ways > 0 && usize::from(self.ways) <= WAYS_MAX;
        let is_size = self.way_blocks.is_power_of_two() && self.way_blocks <= WAY_BLOCKS_MAX;
        if has_ways && is_size { Ok(()) } else { Err(BlocksError(*self)) }
    }
}

/// A number of ways or blocks that no switch can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksError(pub BlocksLayout);

impl fmt::Display for BlocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlocksLayout { ways, way_blocks } = self.0;
        write!(
            f,
            "the memory's switch has {ways} ways of {way_blocks} blocks: give it 1 to {WAYS_MAX} ways, and a power \
             of two up to {WAY_BLOCKS_MAX}"
        )
    }
}

impl core::error::Error for BlocksError {}
