//! What FUNCTION DUMP answers and FUNCTION RESTORE takes: Redis' own form, so that libraries move between the two.
//! For each library a byte that says so and its text; behind all of them the version of the form and a check sum.

use alloc::vec;
use alloc::vec::Vec;

/// In front of each library.
const LIBRARY: u8 = 245;
/// The version of the form that Redis 7.0 writes, and the newest whose libraries look the same.
const VERSION: u16 = 10;
const VERSION_MAX: u16 = 12;
const VERSION_BYTES: usize = 2;
const SUM_BYTES: usize = 8;
/// No text is longer.
const TEXT_BYTES_MAX: usize = super::CODE_BYTES_MAX;

const BAD: &[u8] = b"ERR DUMP payload version or checksum are wrong";
const BAD_LIBRARY: &[u8] = b"ERR Failed loading library data";

/// The texts of libraries as one payload.
pub(super) fn dump<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.push(LIBRARY);
        match text.len() {
            length @ 0..64 => out.push(length as u8),
            length @ 64..16_384 => {
                out.extend_from_slice(&(0x4000 | length as u16).to_be_bytes());
            }
            length => {
                out.push(0x80);
                out.extend_from_slice(&(length as u32).to_be_bytes());
            }
        }
        out.extend_from_slice(text);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let sum = check_sum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The texts that a payload has.
pub(super) fn texts(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static [u8]> {
    let (summed, sum) = payload.split_last_chunk::<SUM_BYTES>().ok_or(BAD)?;
    let (mut rest, version) = summed.split_last_chunk::<VERSION_BYTES>().ok_or(BAD)?;
    if u16::from_le_bytes(*version) > VERSION_MAX || check_sum(summed) != u64::from_le_bytes(*sum) {
        return Err(BAD);
    }
    let mut texts = Vec::new();
    let mut bytes = 0;
    while let Some((kind, behind)) = rest.split_first() {
        if *kind != LIBRARY {
            return Err(b"ERR given type is not a function");
        }
        let (text, behind) = text(behind).ok_or(BAD_LIBRARY)?;
        rest = behind;
        bytes += text.len();
        if bytes > TEXT_BYTES_MAX {
            return Err(BAD_LIBRARY);
        }
        texts.push(text);
    }
    Ok(texts)
}

/// A length, as Redis writes it, or the number of another form with the marker of those in front.
enum Length {
    Bytes(usize),
    Form(u8),
}

fn length(bytes: &[u8]) -> Option<(Length, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    Some(match first >> 6 {
        0 => (Length::Bytes(usize::from(first)), rest),
        1 => {
            let (&low, rest) = rest.split_first()?;
            (Length::Bytes(usize::from(first & 63) << 8 | usize::from(low)), rest)
        }
        2 if first == 0x80 => {
            let (four, rest) = rest.split_first_chunk::<4>()?;
            (Length::Bytes(u32::from_be_bytes(*four) as usize), rest)
        }
        2 if first == 0x81 => {
            let (eight, rest) = rest.split_first_chunk::<8>()?;
            (Length::Bytes(usize::try_from(u64::from_be_bytes(*eight)).ok()?), rest)
        }
        2 => return None,
        _ => (Length::Form(first & 63), rest),
    })
}

fn bytes_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match length(bytes)? {
        (Length::Bytes(length), rest) => Some((length, rest)),
        (Length::Form(_), _) => None,
    }
}

/// A text, and what is behind it. (One that is a number, which Redis writes shorter, is no library.)
fn text(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    const COMPRESSED: u8 = 3;
    match length(bytes)? {
        (Length::Bytes(length), rest) => {
            let (text, rest) = rest.split_at_checked(length)?;
            Some((text.to_vec(), rest))
        }
        (Length::Form(COMPRESSED), rest) => {
            let (compressed, rest) = bytes_length(rest)?;
            let (plain, rest) = bytes_length(rest)?;
            let (packed, rest) = rest.split_at_checked(compressed)?;
            Some((unpacked(packed, plain)?, rest))
        }
        (Length::Form(_), _) => None,
    }
}

/// What LZF compressed to `packed`: runs of literal bytes, and repetitions of what came before.
fn unpacked(mut packed: &[u8], length: usize) -> Option<Vec<u8>> {
    if length > TEXT_BYTES_MAX {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    while let Some((&control, rest)) = packed.split_first() {
        let control = usize::from(control);
        if control < 32 {
            let (literal, rest) = rest.split_at_checked(control + 1)?;
            out.extend_from_slice(literal);
            packed = rest;
        } else {
            let (more, rest) = match control >> 5 {
                7 => rest.split_first().map(|(more, rest)| (usize::from(*more), rest))?,
                _ => (0, rest),
            };
            let (&low, rest) = rest.split_first()?;
            let back = (control & 31) << 8 | usize::from(low);
            let from = out.len().checked_sub(back + 1)?;
            for at in from..from + (control >> 5) + more + 2 {
                out.push(*out.get(at)?);
            }
            packed = rest;
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

/// CRC-64 of Jones, as Redis has it at the end of its dumps.
fn check_sum(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    let mut table = vec![0_u64; 256];
    for (byte, entry) in table.iter_mut().enumerate() {
        let shift = |sum: u64, _| if sum & 1 == 1 { sum >> 1 ^ REFLECTED } else { sum >> 1 };
        *entry = (0..8).fold(byte as u64, shift);
    }
    let step = |sum: u64, byte: &u8| table[usize::from(sum as u8 ^ byte)] ^ sum >> 8;
    bytes.iter().fold(0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_survives_and_a_changed_one_is_refused() {
        assert_eq!(check_sum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let long = vec![b'x'; 20_000];
        let all: [&[u8]; 4] = [b"", &[b'y'; 63], &[b'z'; 64], &long];
        let payload = dump(all.into_iter());
        assert_eq!(texts(&payload).unwrap(), all);
        for at in [0, 1, 100, payload.len() - 1] {
            let mut changed = payload.clone();
            changed[at] ^= 1;
            assert_eq!(texts(&changed), Err(BAD));
        }
        for end in 0..payload.len() {
            assert!(texts(&payload[..end]).is_err());
        }
    }

    #[test]
    fn what_is_compressed_is_unpacked_and_nothing_is_believed() {
        assert_eq!(unpacked(b"\x02abc\x20\x02", 6).unwrap(), b"abcabc");
        assert_eq!(unpacked(b"\x00a\xe0\x01\x00", 11).unwrap(), b"aaaaaaaaaaa");
        for bad in [&b"\x20\x02"[..], b"\x02ab", b"\x00a\xe0", b"\x00a\x20"] {
            assert_eq!(unpacked(bad, 3), None);
        }
        assert_eq!(unpacked(b"\x02abc", 2), None);
        assert_eq!(unpacked(b"\x00a", usize::MAX), None);
    }
}
