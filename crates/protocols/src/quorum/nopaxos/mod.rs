//! NOPaxos: the switch numbers the writes, and replicas agree on missing numbers.

pub(in crate::quorum) mod gaps;
pub(in crate::quorum) mod sequence;
