//! Harmonia's own fields (Harmonia §6.1, §7.1), in the room that [`crate::rpc`] leaves.
//!
//! | offset | bytes | field | in |
//! |---|---|---|---|
//! | 64 | 4 + 4 | sequence number: switch id, counter | writes, replies, completions |
//! | 72 | 4 + 4 | last committed: switch id, counter | fast reads |
//! | 80 | 4 | index | sweeps |
//! | 84 | 4 | reserved | |
//!
//! NOPaxos' number is the same sequence number (trap T23); CRAQ uses none of them. Meaning and views:
//! [`crate::rpc::Repr`], [`crate::rpc::PacketMut`].

/// Where the fields are.
pub mod at {
    use core::ops::Range;

    /// A write's number.
    pub const SEQ: Range<usize> = 64..72;
    /// A fast read's last-committed point.
    pub const LAST_COMMITTED: Range<usize> = 72..80;
    /// What a sweep looks at.
    pub const INDEX: Range<usize> = 80..84;
    /// Where the fields end.
    pub const END: usize = 84;
}

const _: () = assert!(at::SEQ.start == crate::rpc::at::OWN.start);
const _: () = assert!(at::END <= crate::rpc::at::OWN.end);
