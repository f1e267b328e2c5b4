//! Numbers of the parts of a copy or snapshot that go on with objects begun before.

/// The number of a part that goes on with objects of which the one before had the first pieces is
/// this and the cursor. It is to be had of the same source alone, and cannot be made anew.
pub(crate) const REST: u64 = 1 << 63;

/// Whether a part goes on with objects of which the one before had the first pieces.
pub(crate) fn is_rest(number: u64) -> bool {
    number & REST != 0
}
