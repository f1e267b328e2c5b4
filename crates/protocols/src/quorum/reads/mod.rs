//! Reads: on the switch's word, by the leader, by followers with leases, and by asking a quorum.

pub(in crate::quorum) mod answer;
pub(in crate::quorum) mod follower_leases;
pub(in crate::quorum) mod group_leases;
pub(in crate::quorum) mod quorum_reads;
