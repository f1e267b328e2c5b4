//! Digests of bounded parts of an engine's state. Replicas that have executed the same writes hold
//! the same state, in the same order, so that their digests of one part are equal: they compare
//! them while they run (`concord_protocols`, module `compare`).
//!
//! A part is a range of *places*, [`PLACES`] in all, over which keys are spread by a hash. The
//! places are those that SCAN's cursor counts, so that `SCAN first` lists the keys of a part.

/// The number of places.
pub const PLACES: u16 = 4096;

/// The digest of a range of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeDigest {
    /// The first place.
    pub first: u16,
    /// The place after the last one: at most [`PLACES`].
    pub end: u16,
    /// The number of keys there.
    pub keys: u32,
    /// Covers keys, times to live, and values; of large values a part.
    pub digest: u64,
}
