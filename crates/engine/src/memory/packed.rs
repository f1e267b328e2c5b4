//! The packed form of Redis' small collections, a string each: listpacks (7.0), ziplists (before),
//! sets of integers.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::Failure;
use super::rdb::{BAD_FORMAT, decimal};
use super::work::Work;

/// The byte that ends a listpack or a ziplist.
const END: u8 = 0xff;
const LISTPACK_HEAD_BYTES: usize = 6;
const ZIPLIST_HEAD_BYTES: usize = 10;
/// A count that stands for any.
const UNKNOWN_COUNT: usize = 0xffff;

pub(super) type Elements<'a> = Vec<Cow<'a, [u8]>>;

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// An integer of `bytes` bytes, the lowest first.
    fn integer(&mut self, bytes: usize) -> Option<Cow<'a, [u8]>> {
        let taken = self.take(bytes)?;
        let sign = if taken.last()? & 0x80 == 0 { 0 } else { 0xff };
        let mut value = [sign; 8];
        value[..bytes].copy_from_slice(taken);
        Some(Cow::Owned(decimal(i64::from_le_bytes(value))))
    }

    fn string(&mut self, length: usize) -> Option<Cow<'a, [u8]>> {
        self.take(length).map(Cow::Borrowed)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    /// An element of a listpack; `None` too where it ends.
    fn of_listpack(&mut self) -> Option<Cow<'a, [u8]>> {
        let before = self.0.len();
        let first = self.byte()?;
        let low = |bits: u32| usize::from(first) & ((1 << bits) - 1);
        let element = match first {
            0..=0x7f => Cow::Owned(decimal(first.into())),
            0x80..=0xbf => self.string(low(6))?,
            0xc0..=0xdf => {
                let value = (low(5) << 8 | usize::from(self.byte()?)) as i64;
                Cow::Owned(decimal(if value < 1 << 12 { value } else { value - (1 << 13) }))
            }
            0xe0..=0xef => {
                let length = low(4) << 8 | usize::from(self.byte()?);
                self.string(length)?
            }
            0xf0 => {
                let length = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
                self.string(length as usize)?
            }
            0xf1 => self.integer(2)?,
            0xf2 => self.integer(3)?,
            0xf3 => self.integer(4)?,
            0xf4 => self.integer(8)?,
            _ => return None,
        };
        self.take(back_bytes(before - self.0.len()))?;
        Some(element)
    }

    /// An element of a ziplist; `None` too where it ends.
    fn of_ziplist(&mut self) -> Option<Cow<'a, [u8]>> {
        match self.byte()? {
            END => return None,
            0xfe => drop(self.take(4)?),
            _ => {}
        }
        let first = self.byte()?;
        let low = usize::from(first & 0x3f);
        match first {
            0..=0x3f => self.string(low),
            0x40..=0x7f => {
                let length = low << 8 | usize::from(self.byte()?);
                self.string(length)
            }
            0x80..=0xbf => {
                let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
                self.string(length as usize)
            }
            0xc0 => self.integer(2),
            0xd0 => self.integer(4),
            0xe0 => self.integer(8),
            0xf0 => self.integer(3),
            0xfe => self.integer(1),
            0xf1..=0xfd => Some(Cow::Owned(decimal(i64::from(first & 0xf) - 1))),
            _ => None,
        }
    }
}

/// The size of the length after an element, by which a listpack is read backwards, in bytes.
fn back_bytes(length: usize) -> usize {
    match length {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// All elements up to the end, which stands at the end of the bytes; as many as the head says.
fn elements<'a>(
    work: &Work,
    body: &'a [u8],
    count: usize,
    next: fn(&mut Cursor<'a>) -> Option<Cow<'a, [u8]>>,
) -> Result<Elements<'a>, Failure> {
    let mut cursor = Cursor(body);
    let mut all = Vec::new();
    while cursor.0 != [END] {
        work.spend(1)?;
        all.push(next(&mut cursor).ok_or(BAD_FORMAT)?);
    }
    if count == UNKNOWN_COUNT || count == all.len() { Ok(all) } else { Err(BAD_FORMAT) }
}

/// The head of a listpack or ziplist, whose first number is the length of all and whose last is a
/// count.
fn split(packed: &[u8], head_bytes: usize) -> Result<(usize, &[u8]), Failure> {
    let (head, body) = packed.split_at_checked(head_bytes).ok_or(BAD_FORMAT)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
    if number(&head[..4]) != packed.len() {
        return Err(BAD_FORMAT);
    }
    Ok((number(&head[head_bytes - 2..]), body))
}

/// The elements of a listpack.
pub(super) fn listpack<'a>(work: &Work, packed: &'a [u8]) -> Result<Elements<'a>, Failure> {
    let (count, body) = split(packed, LISTPACK_HEAD_BYTES)?;
    elements(work, body, count, Cursor::of_listpack)
}

/// The elements of a ziplist.
pub(super) fn ziplist<'a>(work: &Work, packed: &'a [u8]) -> Result<Elements<'a>, Failure> {
    let (count, body) = split(packed, ZIPLIST_HEAD_BYTES)?;
    elements(work, body, count, Cursor::of_ziplist)
}

/// The members of a set of integers.
pub(super) fn integers<'a>(work: &Work, packed: &'a [u8]) -> Result<Elements<'a>, Failure> {
    let mut cursor = Cursor(packed);
    let mut number = || cursor.take(4)?.try_into().ok().map(u32::from_le_bytes);
    let (Some(bytes @ (2 | 4 | 8)), Some(count)) = (number(), number()) else {
        return Err(BAD_FORMAT);
    };
    if cursor.0.len() as u64 != u64::from(bytes) * u64::from(count) {
        return Err(BAD_FORMAT);
    }
    work.spend(count.into())?;
    let members = (0..count).map(|_| cursor.integer(bytes as usize).ok_or(BAD_FORMAT));
    members.collect()
}

/// A listpack that is written.
pub(super) struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Listpack {
    pub(super) fn new() -> Listpack {
        Listpack { bytes: alloc::vec![0; LISTPACK_HEAD_BYTES], count: 0 }
    }

    fn close(&mut self, before: usize) {
        let length = self.bytes.len() - before;
        let groups = back_bytes(length);
        // Seven bits a byte, the highest first; all but the first one are marked.
        for at in (0..groups).rev() {
            let mark = if at + 1 == groups { 0 } else { 0x80 };
            self.bytes.push((length >> (7 * at)) as u8 & 0x7f | mark);
        }
        self.count += 1;
    }

    pub(super) fn push_integer(&mut self, value: i64) {
        let before = self.bytes.len();
        match value {
            0..=127 => self.bytes.push(value as u8),
            _ => {
                self.bytes.push(0xf4);
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        self.close(before);
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        let before = self.bytes.len();
        match text.len() {
            short @ 0..=0x3f => self.bytes.push(0x80 | short as u8),
            longer @ 0x40..=0xfff => {
                self.bytes.extend_from_slice(&[0xe0 | (longer >> 8) as u8, longer as u8]);
            }
            long => {
                self.bytes.push(0xf0);
                self.bytes.extend_from_slice(&(long as u32).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text);
        self.close(before);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let total = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        let count = self.count.min(UNKNOWN_COUNT) as u16;
        self.bytes[4..LISTPACK_HEAD_BYTES].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listpack_is_read_as_it_was_written() {
        let work = Work::new(1000);
        let texts: [&[u8]; 5] = [b"", b"x", &[7; 100], &[8; 5000], &[9; 300_000]];
        let mut packed = Listpack::new();
        texts.iter().for_each(|text| packed.push(text));
        [0, 127, 128, -1, i64::MIN].iter().for_each(|value| packed.push_integer(*value));
        let packed = packed.finish();
        let read = listpack(&work, &packed).unwrap();
        assert!(read[..5].iter().zip(texts).all(|(own, text)| **own == *text));
        assert_eq!(read[5..], [&b"0"[..], b"127", b"128", b"-1", b"-9223372036854775808"]);
        for cut in [0, 5, 6, 20, packed.len() - 1] {
            assert!(listpack(&work, &packed[..cut]).is_err());
        }
    }
}
