//! Scripts that may not end: the decisions on them, and the answers that wait for these.

pub(in crate::quorum) mod decide;
pub(in crate::quorum) mod decisions;
pub(in crate::quorum) mod withheld;
