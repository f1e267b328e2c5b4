//! The messages between the roles, one file per header: a `Packet` view on bytes beside a `Repr`,
//! its meaning. All integers are big-endian. All begin with the same header ([`header`]); the
//! fields of every request are in [`rpc`], those of one system in a file of its own.
//! docs/reference/wire.md has all of it in tables.
//!
//! A datagram may be padded after its body (the segments of a GSO batch have one size), and keeps
//! room for a tag, so every header has the length up to the end of the body.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod byte_enum;
pub mod concordia;
pub mod control;
pub mod craq;
pub mod falcon;
pub mod flair;
pub mod fragment;
pub mod gateways;
pub mod harmony;
pub mod header;
pub mod link;
pub mod netchain;
pub mod netcraq;
pub mod nopaxos;
pub mod objects;
pub mod of_group;
pub mod record;
pub mod rpc;
pub mod tasks;
pub mod vr;

pub use concord_core::{Addr, Sink};
pub use flair::{Checked, checked_reply};
pub use header::{GroupId, Header, Kind, group, kind, op};
pub use objects::{FurtherIds, OBJECTS_MAX};
pub use of_group::OfGroup;
pub use rpc::{Flags, Op, Packet, PacketMut, Reason, Repr, Status};

use core::fmt;

/// First two bytes of every Concord datagram.
pub const MAGIC: u16 = 0x48c1;
/// The version of the wire format; a node drops what is not its own.
pub const VERSION: u8 = 2;
/// Largest datagram, headers and tag included, in bytes: fits an Ethernet frame.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;
/// Largest packet that a role sends, without the tag that may follow it, in bytes.
pub const PACKET_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - header::TAG_BYTES;
/// Largest value or reply, in bytes; a larger one is refused with a clear error.
pub const VALUE_BYTES_MAX: usize = (64 << 20) - 64;
/// Largest encoded command, in bytes: a value, its key and what is around them.
pub const COMMAND_BYTES_MAX: usize = (64 << 20) + 64 * 1024;
/// Largest reply, in bytes; more is answered by an error.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// The largest number of unanswered writes of one session, for which the client table keeps results
/// (trap T16).
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
    /// A kind or an operation that this version does not know, or another than the one asked for.
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

/// Compares packets with the golden bytes in `vectors/wire`, one packet a line; with
/// `CONCORD_REGENERATE=1` it writes them anew.
#[cfg(test)]
fn golden(name: &str, packets: &[alloc::vec::Vec<u8>]) {
    extern crate std;
    use core::fmt::Write as _;

    let mut text = alloc::string::String::new();
    for packet in packets {
        for byte in packet {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/wire");
    if std::env::var_os("CONCORD_REGENERATE").is_some() {
        std::fs::write(dir.join(name), &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(dir.join(name)).unwrap(), "{name}");
}
