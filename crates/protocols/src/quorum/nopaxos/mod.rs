//! NOPaxos: the switch numbers the writes, and replicas agree on the numbers that are missed.

pub(in crate::quorum) mod gaps;
pub(in crate::quorum) mod sequence;
