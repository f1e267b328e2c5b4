//! Writes captured packets as a capture file.

use std::io::{self, Write};

use super::managed::Captured;
use super::packet::Ecn;
use crate::capture::{internet_checksum, write_head, write_packet};
use crate::engine::NS;

const UDP: u8 = 17;
/// The number of bytes of a packet in the file: headers, flow, number, port.
const KEPT_BYTES: usize = 20 + 8 + 12;
/// The first source port of flows.
const FIRST_PORT: u32 = 49_152;
/// The destination port of flows.
const TO_PORT: u16 = 100;

/// Writes packets as IPv4 and UDP, in their order. Hosts have the addresses from 10.0.0.1 on; ECN
/// is the packet's, and DSCP its class; the payload is flow, number (2^32 - 1 if the packet carries
/// no data) and port, 32 bits each. Times count from the start of the run, rounded down to ns.
///
/// # Errors
/// The errors of `out`.
pub fn write_captured(packets: &[Captured], out: &mut impl Write) -> io::Result<()> {
    write_head(out)?;
    for packet in packets {
        let bytes = ip_packet(packet);
        let length = packet.size_bytes.max(KEPT_BYTES as u32);
        write_packet(out, packet.at_ps / NS, &bytes, length)?;
    }
    out.flush()
}

fn ip_packet(packet: &Captured) -> Vec<u8> {
    let ecn = match packet.ecn {
        Ecn::Not => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    let total = packet.size_bytes.clamp(KEPT_BYTES as u32, u32::from(u16::MAX)) as u16;
    let from_port = FIRST_PORT + packet.flow_label % (u32::from(u16::MAX) - FIRST_PORT + 1);
    let mut p = Vec::with_capacity(KEPT_BYTES);
    p.extend_from_slice(&[0x45, packet.class << 5 | ecn]);
    p.extend_from_slice(&total.to_be_bytes());
    // Identification 0, do not fragment, time to live 64.
    p.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP, 0, 0]);
    for host in [packet.from, packet.to] {
        p.extend_from_slice(&(0x0a00_0001 + host.0).to_be_bytes());
    }
    let checksum = internet_checksum(&p);
    p[10..12].copy_from_slice(&checksum.to_be_bytes());
    p.extend_from_slice(&(from_port as u16).to_be_bytes());
    p.extend_from_slice(&TO_PORT.to_be_bytes());
    p.extend_from_slice(&(total - 20).to_be_bytes());
    // No UDP checksum, as IPv4 allows.
    p.extend_from_slice(&[0, 0]);
    for word in [packet.flow_label, packet.number.unwrap_or(u32::MAX), packet.port] {
        p.extend_from_slice(&word.to_be_bytes());
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::topology::HostIndex;

    /// Every record has its time, its length on the wire, the hosts, and the mark.
    #[test]
    fn captures_have_times_lengths_and_marks() {
        let packet = Captured {
            port: 3,
            at_ps: 1_500_000_000_001,
            from: HostIndex(0),
            to: HostIndex(256),
            size_bytes: 1_538,
            flow_label: 7,
            number: Some(9),
            class: 1,
            ecn: Ecn::Marked,
        };
        let mut out = Vec::new();
        write_captured(&[packet, packet], &mut out).unwrap();
        assert_eq!(out.len(), 24 + 2 * (16 + KEPT_BYTES));
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!((word(24), word(28)), (1_700_000_001, 500_000_000));
        assert_eq!((word(32), word(36)), (KEPT_BYTES as u32, 1_538));
        let ip = &out[40..];
        assert_eq!(
            (ip[1], &ip[12..16], &ip[16..20]),
            (0x23, &[10, 0, 0, 1][..], &[10, 0, 1, 1][..])
        );
        assert_eq!(internet_checksum(&ip[..20]), 0);
        assert_eq!(ip[28..40], [0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 3]);
    }
}
