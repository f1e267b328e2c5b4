//! What travels between the roles, one file per header: a `Packet` view on bytes beside a `Repr`,
//! its meaning. All integers are big-endian. Read [`harmonia`] first: it is the only header that a
//! switch looks at.
//!
//! A datagram may be padded behind its body (trains need segments of one size), so every header
//! says how long its body is.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod addr;
pub mod control;
pub mod craq;
pub mod fragment;
pub mod harmonia;
pub mod link;
pub mod record;
pub mod vr;

pub use addr::{Addr, Sink};
pub use harmonia::{Flags, Op, Packet, PacketMut, Reason, Repr, Status};

use core::fmt;

/// First two bytes of every Concord datagram.
pub const MAGIC: u16 = 0x48c1;
/// The version of the wire format; a node drops what is not its own.
pub const VERSION: u8 = 1;
/// Largest datagram that a role sends, headers included, in bytes: fits an Ethernet frame.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;
/// Largest value or reply, in bytes; a larger one is refused with a clear error.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Largest encoded command, in bytes: a value, its key and what is around them.
pub const COMMAND_BYTES_MAX: usize = VALUE_BYTES_MAX + 64 * 1024;
/// Largest reply, in bytes; more is answered by an error.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Most unanswered writes of one session: what the client table keeps for it at most (trap T16).
pub const WINDOW_MAX: u64 = 8_192;

/// Why bytes are not a packet: each is a counted drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Shorter than its header or than its header says.
    Truncated,
    /// Not our magic number.
    Magic,
    /// Another version of the format.
    Version,
    /// An operation this version does not know.
    Op,
    /// A field has a value that it cannot have.
    Field,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::Truncated => "truncated",
            WireError::Magic => "not a Concord packet",
            WireError::Version => "another wire version",
            WireError::Op => "unknown operation",
            WireError::Field => "a field is out of range",
        })
    }
}

/// Which header a datagram carries, by its fourth byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`harmonia`]: between clients, the switch and the replicas.
    Harmonia,
    /// [`link`] and [`craq`]: between replicas.
    Link,
    /// [`control`]: with the controller, and about epochs and leases among replicas.
    Control,
}

/// The first four bytes' check, and which header follows.
///
/// # Errors
/// [`WireError`] for anything that is not a Concord packet of this version.
#[inline]
pub fn kind(bytes: &[u8]) -> Result<Kind, WireError> {
    let head = bytes.first_chunk::<4>().ok_or(WireError::Truncated)?;
    if u16::from_be_bytes([head[0], head[1]]) != MAGIC {
        return Err(WireError::Magic);
    }
    if head[2] != VERSION {
        return Err(WireError::Version);
    }
    match head[3] {
        1..=15 => Ok(Kind::Harmonia),
        link::OP_DATA | link::OP_ACK | craq::OP_QUERY | craq::OP_ANSWER => Ok(Kind::Link),
        control::OP_CONTROL => Ok(Kind::Control),
        _ => Err(WireError::Op),
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(bytes, at)) << 32) | u64::from(u32_at(bytes, at + 4))
}
