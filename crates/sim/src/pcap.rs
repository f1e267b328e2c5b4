//! Recordings as capture files: every packet as IPv4 and UDP, at its virtual time.
//!
//! The format of the file is that of `capture`. A lost packet has a time to live of 1, all others
//! have 64: the filter `ip.ttl == 1` shows the lost ones.

use std::io::{self, Write};

use crate::capture::{internet_checksum, write_head, write_packet};
use crate::record::{Fate, Flight, Recording};
use crate::world::addr;

const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const UDP: u8 = 17;

/// Writes every packet of `recording`, in the order in which they were sent.
///
/// # Errors
/// The errors of `out`.
pub fn write_pcap(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    write_head(out)?;
    let mut flights: Vec<&Flight> = recording.flights.iter().collect();
    flights.sort_by_key(|flight| flight.sent_ns);
    for flight in flights {
        let packet = ip_packet(flight);
        write_packet(out, flight.sent_ns, &packet, packet.len() as u32)?;
    }
    out.flush()
}

fn ip_packet(flight: &Flight) -> Vec<u8> {
    let (from, to) = (addr(flight.from), addr(flight.to));
    let udp_bytes = (UDP_HEADER_BYTES + flight.bytes.len()) as u16;
    let total_bytes = IP_HEADER_BYTES as u16 + udp_bytes;
    let ttl = if flight.fate == Fate::Lost { 1 } else { 64 };
    let mut p = Vec::with_capacity(total_bytes.into());
    p.extend_from_slice(&[0x45, 0]);
    p.extend_from_slice(&total_bytes.to_be_bytes());
    // The identification is 0, with the flag "do not fragment".
    p.extend_from_slice(&[0, 0, 0x40, 0, ttl, UDP, 0, 0]);
    p.extend_from_slice(&from.ip.to_be_bytes());
    p.extend_from_slice(&to.ip.to_be_bytes());
    let checksum = internet_checksum(&p);
    p[10..12].copy_from_slice(&checksum.to_be_bytes());
    p.extend_from_slice(&from.port.to_be_bytes());
    p.extend_from_slice(&to.port.to_be_bytes());
    p.extend_from_slice(&udp_bytes.to_be_bytes());
    // No UDP checksum, as IPv4 allows.
    p.extend_from_slice(&[0, 0]);
    p.extend_from_slice(&flight.bytes);
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(sent_ns: u64, fate: Fate) -> Flight {
        Flight { from: 2, to: 1, sent_ns, fate, bytes: b"payload".to_vec() }
    }

    #[test]
    fn a_capture_has_the_bytes_that_tcpdump_expects() {
        let flights = vec![flight(3_000_000_007, Fate::Lost), flight(5, Fate::Arrives(50))];
        let recording = Recording { flights, ..Recording::default() };
        let mut out = Vec::new();
        write_pcap(&recording, &mut out).unwrap();
        assert_eq!(&out[..8], &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!((word(16), word(20)), (65_535, 101));
        // Sorted by time: the second first.
        assert_eq!((word(24), word(28)), (1_700_000_000, 5));
        assert_eq!((word(32), word(36)), (35, 35));
        let ip = &out[40..75];
        assert_eq!(internet_checksum(&ip[..20]), 0);
        assert_eq!((ip[0], ip[8], ip[9]), (0x45, 64, 17));
        assert_eq!(&ip[12..20], &[10, 0, 0, 3, 10, 0, 0, 2]);
        assert_eq!(u16::from_be_bytes([ip[24], ip[25]]), 15);
        assert_eq!(&ip[28..], b"payload");
        let lost = &out[75..];
        assert_eq!((lost[0], lost[4], lost[16 + 8]), (3, 7, 1));
        assert_eq!(lost.len(), 16 + 35);
    }
}
