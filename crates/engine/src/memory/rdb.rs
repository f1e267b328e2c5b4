//! Strings of Redis' dumps ([`crate::rdb`]), written and read.
//!
//! The payload comes from a client. Each element, and each byte that is decompressed, counts as
//! work before it is created, since a short payload may stand for gigabytes.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::work::{STRING_BYTES_OF_ONE, Work};
use super::{Failure, fixed};
use crate::rdb::{COMPRESSED, Length, length, put_length, unpack};
use crate::{STRING_BYTES_MAX, resp};

pub(super) const BAD_FORMAT: Failure = fixed(b"ERR Bad data format");

/// Kinds of strings that are written as numbers.
const INT8: u8 = 0;
const INT16: u8 = 1;
const INT32: u8 = 2;

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
        let (length, rest) = length(self.rest).ok_or(BAD_FORMAT)?;
        self.rest = rest;
        Ok(length)
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
