//! Viewstamped Replication: view changes, and the recovery of a replica that lost everything.

pub(in crate::quorum) mod change;
pub(in crate::quorum) mod crash_vector;
pub(in crate::quorum) mod recovering;
pub(in crate::quorum) mod recovery;
pub(in crate::quorum) mod views;
