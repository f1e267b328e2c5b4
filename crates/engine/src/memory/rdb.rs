//! The format of Redis' snapshots (RDB version 10), as DUMP and RESTORE use it: lengths, strings, the checksum.
//!
//! What is read comes from outside. Each element is paid for as work before it is made, and each byte that is
//! unpacked: a short payload may stand for gigabytes.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::work::{STRING_BYTES_OF_ONE, Work};
use super::{Failure, fixed};
use crate::{STRING_BYTES_MAX, resp};

/// The version that is written, and the newest that is read.
pub(super) const VERSION: u16 = 10;
pub(super) const BAD_FORMAT: Failure = fixed(b"ERR Bad data format");
/// The polynomial of the checksum (CRC-64 of Jones), lowest bit first.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
static CHECKSUMS: [u64; 256] = checksums();

/// Kinds of strings that are no plain bytes.
const INT8: u8 = 0;
const INT16: u8 = 1;
const INT32: u8 = 2;
const COMPRESSED: u8 = 3;
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
pub(super) fn seal(out: &mut Vec<u8>) {
    out.extend_from_slice(&VERSION.to_le_bytes());
    let sum = checksum(out);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// What was sealed, if it is whole and of no newer version.
pub(super) fn unseal(payload: &[u8]) -> Option<&[u8]> {
    let (sealed, sum) = payload.split_last_chunk::<8>()?;
    let (content, version) = sealed.split_last_chunk::<2>()?;
    let is_known = u16::from_le_bytes(*version) <= VERSION;
    (is_known && checksum(sealed) == u64::from_le_bytes(*sum)).then_some(content)
}

/// Appends a length.
pub(super) fn put_length(out: &mut Vec<u8>, length: u64) {
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

/// Appends a string; a small integer as such.
pub(super) fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    let special = |kind: u8| 0xc0 | kind;
    let number = if text.len() <= 11 { resp::number(text) } else { None };
    let Some(number) = number.and_then(|number| i32::try_from(number).ok()) else {
        put_length(out, text.len() as u64);
        out.extend_from_slice(text);
        return;
    };
    if let Ok(number) = i8::try_from(number) {
        out.extend_from_slice(&[special(INT8), number as u8]);
    } else if let Ok(number) = i16::try_from(number) {
        out.push(special(INT16));
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        out.push(special(INT32));
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Reads from front to back.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
    pub(super) work: &'a Work,
}

enum Length {
    Of(u64),
    /// Not a length but a string of this kind.
    Special(u8),
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(BAD_FORMAT)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>().ok_or(BAD_FORMAT)?;
        self.rest = rest;
        Ok(*chunk)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Failure> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    fn length_or_special(&mut self) -> Result<Length, Failure> {
        let first = self.byte()?;
        let low = first & 0x3f;
        Ok(match (first >> 6, first) {
            (0, _) => Length::Of(low.into()),
            (1, _) => Length::Of(u16::from_be_bytes([low, self.byte()?]).into()),
            (_, LENGTH32) => Length::Of(u32::from_be_bytes(self.chunk()?).into()),
            (_, LENGTH64) => Length::Of(u64::from_be_bytes(self.chunk()?)),
            (3, _) => Length::Special(low),
            _ => return Err(BAD_FORMAT),
        })
    }

    /// A length, or any number that is written as one.
    pub(super) fn length(&mut self) -> Result<u64, Failure> {
        match self.length_or_special()? {
            Length::Of(length) => Ok(length),
            Length::Special(_) => Err(BAD_FORMAT),
        }
    }

    fn size(&mut self) -> Result<usize, Failure> {
        usize::try_from(self.length()?).map_err(|_| BAD_FORMAT)
    }

    /// A string.
    pub(super) fn string(&mut self) -> Result<Cow<'a, [u8]>, Failure> {
        self.work.spend(1)?;
        let number = match self.length_or_special()? {
            Length::Of(length) => {
                let length = usize::try_from(length).map_err(|_| BAD_FORMAT)?;
                return Ok(Cow::Borrowed(self.take(length)?));
            }
            Length::Special(INT8) => i8::from_le_bytes(self.chunk()?).into(),
            Length::Special(INT16) => i16::from_le_bytes(self.chunk()?).into(),
            Length::Special(INT32) => i32::from_le_bytes(self.chunk()?).into(),
            Length::Special(COMPRESSED) => {
                let (packed, length) = (self.size()?, self.size()?);
                let packed = self.take(packed)?;
                if length > STRING_BYTES_MAX {
                    return Err(BAD_FORMAT);
                }
                self.work.spend(length as u64 / STRING_BYTES_OF_ONE)?;
                return unpack(packed, length).map(Cow::Owned).ok_or(BAD_FORMAT);
            }
            Length::Special(_) => return Err(BAD_FORMAT),
        };
        Ok(Cow::Owned(decimal(number)))
    }
}

/// An integer as text.
pub(super) fn decimal(value: i64) -> Vec<u8> {
    let mut text = Vec::new();
    resp::decimal(&mut text, value);
    text
}

/// Unpacks LZF: runs of bytes as they are, and of bytes that were there before.
fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
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
        assert_eq!(unseal(&sealed), Some(&b"content"[..]));
        assert!(unseal(&sealed[1..]).is_none() && unseal(b"").is_none());
    }

    #[test]
    fn lengths_and_strings_are_read_as_they_were_written() {
        let work = Work::new(1000);
        for length in
            [0, 63, 64, 16_383, 16_384, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX]
        {
            let mut out = Vec::new();
            put_length(&mut out, length);
            assert_eq!(Reader { rest: &out, work: &work }.length(), Ok(length));
        }
        for text in
            ["", "x", "-128", "127", "128", "-32768", "32768", "2147483647", "2147483648", "007"]
        {
            let mut out = Vec::new();
            put_string(&mut out, text.as_bytes());
            let mut reader = Reader { rest: &out, work: &work };
            assert_eq!(reader.string().as_deref(), Ok(text.as_bytes()));
            assert!(reader.rest.is_empty());
        }
    }

    #[test]
    fn runs_are_unpacked() {
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 0], 10).as_deref(), Some(&b"aaaaaaaaaa"[..]));
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 1], 10), None);
        assert_eq!(unpack(&[5, b'a'], 6), None);
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 0], 9), None);
    }
}
