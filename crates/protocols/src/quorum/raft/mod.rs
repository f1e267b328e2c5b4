//! Raft: elections, terms and voters.

pub(in crate::quorum) mod ballot;
pub(in crate::quorum) mod elections;
pub(in crate::quorum) mod membership;
pub(in crate::quorum) mod voters;
