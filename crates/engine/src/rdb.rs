//! The format of Redis' dumps (RDB version 10; DUMP, RESTORE and those of functions): lengths, what
//! compressed strings unpack to, the checksum at the end. What is read comes from outside.

use alloc::vec::Vec;

/// The version that is written.
pub(crate) const VERSION: u16 = 10;
pub(crate) const BAD_PAYLOAD: &[u8] = b"ERR DUMP payload version or checksum are wrong";
/// The polynomial of the checksum (CRC-64 of Jones), lowest bit first.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
static CHECKSUMS: [u64; 256] = checksums();

/// First bytes of long lengths.
const LENGTH32: u8 = 0x80;
const LENGTH64: u8 = 0x81;

const fn checksums() -> [u64; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| CHECKSUMS[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

/// Appends the version and the checksum of what is there.
pub(crate) fn seal(out: &mut Vec<u8>) {
    out.extend_from_slice(&VERSION.to_le_bytes());
    let sum = checksum(out);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// The sealed payload, if it is complete and its version is at most `newest`.
pub(crate) fn unseal(payload: &[u8], newest: u16) -> Option<&[u8]> {
    let (sealed, sum) = payload.split_last_chunk::<8>()?;
    let (content, version) = sealed.split_last_chunk::<2>()?;
    let is_known = u16::from_le_bytes(*version) <= newest;
    (is_known && checksum(sealed) == u64::from_le_bytes(*sum)).then_some(content)
}

/// Appends a length.
pub(crate) fn put_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..=0x3f => out.push(length as u8),
        0x40..=0x3fff => out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.push(LENGTH32);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
        _ => {
            out.push(LENGTH64);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

/// The prefix of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// So many bytes, or any number that is written as a length.
    Of(u64),
    /// Not a length but a string of this kind.
    Special(u8),
}

/// The kind of strings that are compressed.
pub(crate) const COMPRESSED: u8 = 3;

/// A length, and what follows it.
pub(crate) fn length(bytes: &[u8]) -> Option<(Length, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let low = first & 0x3f;
    Some(match (first >> 6, first) {
        (0, _) => (Length::Of(low.into()), rest),
        (1, _) => {
            let (&second, rest) = rest.split_first()?;
            (Length::Of(u16::from_be_bytes([low, second]).into()), rest)
        }
        (_, LENGTH32) => {
            let (four, rest) = rest.split_first_chunk()?;
            (Length::Of(u32::from_be_bytes(*four).into()), rest)
        }
        (_, LENGTH64) => {
            let (eight, rest) = rest.split_first_chunk()?;
            (Length::Of(u64::from_be_bytes(*eight)), rest)
        }
        (3, _) => (Length::Special(low), rest),
        _ => return None,
    })
}

/// Unpacks LZF: runs of bytes as they are, and of bytes that were there before.
pub(crate) fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut bytes = packed.iter();
    while let Some(&control) = bytes.next() {
        if control < 32 {
            let (run, rest) = bytes.as_slice().split_at_checked(usize::from(control) + 1)?;
            out.extend_from_slice(run);
            bytes = rest.iter();
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if count == 9 {
                count += usize::from(*bytes.next()?);
            }
            let back = usize::from(control & 31) << 8 | usize::from(*bytes.next()?);
            let from = out.len().checked_sub(back + 1)?;
            // The run may go on into what it makes itself.
            for at in from..from + count {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_its_test_value() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let mut sealed = b"content".to_vec();
        seal(&mut sealed);
        assert_eq!(unseal(&sealed, VERSION), Some(&b"content"[..]));
        assert!(unseal(&sealed, VERSION - 1).is_none());
        assert!(unseal(&sealed[1..], VERSION).is_none() && unseal(b"", VERSION).is_none());
    }

    #[test]
    fn runs_are_unpacked() {
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 0], 10).as_deref(), Some(&b"aaaaaaaaaa"[..]));
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 1], 10), None);
        assert_eq!(unpack(&[5, b'a'], 6), None);
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 0], 9), None);
    }
}
