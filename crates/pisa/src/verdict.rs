//! What a program decides about a packet.

use concord_wire::Addr;

/// The outcome of one pass; `R` is the program's own list of drop reasons, each of them counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict<R> {
    /// The packet ends here.
    Drop(R),
    /// The packet leaves, rewritten in place.
    Forward {
        /// Where to.
        to: Addr,
        /// Length without the padding that it came with, in bytes.
        size_bytes: usize,
    },
    /// The packet leaves, rewritten in place, to every member of the program's group.
    Multicast {
        /// Length without the padding that it came with, in bytes.
        size_bytes: usize,
    },
    /// Another pass: the packet costs the bandwidth of one more.
    Recirculate,
}
