//! Copies of state and log from member to member.

pub(in crate::quorum) mod copying;
pub(in crate::quorum) mod early;
pub(in crate::quorum) mod inbound;
pub(in crate::quorum) mod outgoing;
pub(in crate::quorum) mod transfer;
