//! The format of capture files: classic pcap with nanoseconds (magic 0xa1b23c4d), link type 101
//! (raw IP).

use std::io::{self, Write};

const MAGIC_NS: u32 = 0xa1b2_3c4d;
const LINK_TYPE_RAW: u32 = 101;
const SNAP_BYTES: u32 = 65_535;
/// The date of a run's beginning, in s since the Unix epoch.
const BEGIN_S: u64 = 1_700_000_000;

/// Writes the header of a capture file.
pub(crate) fn write_head(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC_NS.to_le_bytes())?;
    out.write_all(&2u16.to_le_bytes())?;
    out.write_all(&4u16.to_le_bytes())?;
    for word in [0, 0, SNAP_BYTES, LINK_TYPE_RAW] {
        out.write_all(&word.to_le_bytes())?;
    }
    Ok(())
}

/// Writes the header of a packet with `length` bytes.
pub(crate) fn write_packet(
    out: &mut impl Write,
    at_ns: u64,
    packet: &[u8],
    length: u32,
) -> io::Result<()> {
    let seconds = BEGIN_S + at_ns / concord_core::SEC;
    let nanos = at_ns % concord_core::SEC;
    for word in [seconds as u32, nanos as u32, packet.len() as u32, length] {
        out.write_all(&word.to_le_bytes())?;
    }
    out.write_all(packet)
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
pub(crate) fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_be_bytes(*w)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
