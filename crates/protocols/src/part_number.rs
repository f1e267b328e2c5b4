//! Numbers of those parts of a copy or snapshot that continue unfinished objects.

/// This bit and a cursor are the number of a part that continues the objects of which the part
/// before had the first pieces. Only the same source has such a part, and it cannot be made again.
pub(crate) const REST: u64 = 1 << 63;

/// Whether a part continues the objects of which the part before had the first pieces.
pub(crate) fn is_rest(number: u64) -> bool {
    number & REST != 0
}
