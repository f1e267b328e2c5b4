//! Scripts that may not end: which ran to their end, which were stopped, and the answers that wait
//! for it.

pub(in crate::quorum) mod decide;
pub(in crate::quorum) mod decisions;
pub(in crate::quorum) mod withheld;
