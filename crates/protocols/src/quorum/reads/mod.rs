//! Reads: fast ones, those of the leader, those of followers with leases, and quorum reads.

pub(in crate::quorum) mod answer;
pub(in crate::quorum) mod follower_leases;
pub(in crate::quorum) mod group_leases;
pub(in crate::quorum) mod quorum_reads;
