//! A bucket: the keys that one block of the memory holds, and the functions of the commands on
//! them. Each function is one access to the block, and returns a reply in Redis' protocol.
//!
//! A block is a sequence of entries, followed by zeroes. An entry is the length of its key plus one
//! (16 bits, little-endian; 0 ends the entries), the length of its value (16 bits), key and value.
//! A block of zeroes is an empty bucket, so that a new memory is an empty store.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use concord_core::hash::hash64;
use concord_wire::concordia::{NODES_MAX, Tag};

use crate::access::{Function, Work};

/// The size of an entry beside key and value, in bytes.
pub(super) const ENTRY_BYTES: usize = 4;

/// The block of a key, in ranges of `range_blocks` blocks. It does not depend on the nodes: every
/// range has a home, whichever nodes are members.
#[must_use]
pub fn place_of_key(key: &[u8], range_blocks: u64) -> Tag {
    let hash = hash64(0, key);
    let range = (hash >> 32) % NODES_MAX as u64;
    Tag::new(range as u16, (hash & u64::from(u32::MAX)) % range_blocks)
}

/// Packs several arguments into one.
pub(super) fn pack<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    for part in parts {
        packed.extend_from_slice(&(part.len() as u32).to_le_bytes());
        packed.extend_from_slice(part);
    }
    packed
}

/// The first `N` packed arguments; missing ones are empty.
fn unpack<const N: usize>(packed: &[u8]) -> [&[u8]; N] {
    let mut rest = packed;
    core::array::from_fn(|_| {
        let Some((length, behind)) = rest.split_first_chunk::<4>() else { return &[][..] };
        let length = (u32::from_le_bytes(*length) as usize).min(behind.len());
        let (part, behind) = behind.split_at(length);
        rest = behind;
        part
    })
}

/// An entry of a block.
struct Entry {
    all: Range<usize>,
    key: Range<usize>,
    value: Range<usize>,
}

/// The entry at an offset, in bytes.
fn entry(block: &[u8], at: usize) -> Option<Entry> {
    let head = block.get(at..)?.first_chunk::<ENTRY_BYTES>()?;
    let key_bytes = usize::from(u16::from_le_bytes([head[0], head[1]])).checked_sub(1)?;
    let value_bytes = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let key = at + ENTRY_BYTES..at + ENTRY_BYTES + key_bytes;
    let value = key.end..key.end + value_bytes;
    (value.end <= block.len()).then_some(Entry { all: at..value.end, key, value })
}

/// The entry of a key, and the offset at which the entries end, in bytes.
fn find(block: &[u8], key: &[u8]) -> (Option<Entry>, usize) {
    let (mut found, mut at) = (None, 0);
    while let Some(entry) = entry(block, at) {
        at = entry.all.end;
        if &block[entry.key.clone()] == key {
            found = Some(entry);
        }
    }
    (found, at)
}

fn value<'a>(block: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    find(block, key).0.map(|entry| &block[entry.value])
}

/// Removes a key; returns whether it was there.
fn remove(block: &mut [u8], key: &[u8]) -> bool {
    let (Some(entry), end) = find(block, key) else { return false };
    block.copy_within(entry.all.end..end, entry.all.start);
    let left = end - entry.all.len();
    block[left..end].fill(0);
    true
}

/// Sets the value of a key. `Err`: there is no room, and nothing has changed.
fn put(block: &mut [u8], key: &[u8], value: &[u8]) -> Result<(), Vec<u8>> {
    let (old, end) = find(block, key);
    let old_bytes = old.map_or(0, |entry| entry.all.len());
    let free = block.len() - (end - old_bytes);
    let wanted = ENTRY_BYTES + key.len() + value.len();
    let lengths = (u16::try_from(key.len() + 1), u16::try_from(value.len()));
    let (Ok(key_bytes), Ok(value_bytes), true) = (lengths.0, lengths.1, wanted <= free) else {
        let all = block.len();
        return Err(error(&format!(
            "FULL the key's block of {all} bytes has {free} free, and {wanted} are needed: delete keys \
             of it, or begin a memory with more or longer blocks; nothing was changed"
        )));
    };
    remove(block, key);
    let at = end - old_bytes;
    block[at..at + 2].copy_from_slice(&key_bytes.to_le_bytes());
    block[at + 2..at + 4].copy_from_slice(&value_bytes.to_le_bytes());
    let (key_at, value_at) = (at + ENTRY_BYTES, at + ENTRY_BYTES + key.len());
    block[key_at..value_at].copy_from_slice(key);
    block[value_at..value_at + value.len()].copy_from_slice(value);
    Ok(())
}

pub(super) const OK: &[u8] = b"+OK\r\n";
pub(super) const NIL: &[u8] = b"$-1\r\n";

pub(super) fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

pub(super) fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub(super) fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
    reply.extend_from_slice(bytes);
    reply.extend_from_slice(b"\r\n");
    reply
}

/// Parses a number as Redis does: only the form that Redis itself writes.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    let number: i64 = core::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// Argument: a key. Reply: its value.
pub(super) const GET: Function = Function {
    name: "get",
    work: Work::View(|block, argument| {
        let [key] = unpack(argument);
        value(block, key).map_or_else(|| NIL.to_vec(), bulk)
    }),
};

/// Argument: a key. Reply: 1 if it is there, else 0.
pub(super) const EXISTS: Function = Function {
    name: "exists",
    work: Work::View(|block, argument| {
        let [key] = unpack(argument);
        integer(value(block, key).is_some().into())
    }),
};

/// Arguments: a key, a value, and NX, XX or nothing.
pub(super) const SET: Function = Function {
    name: "set",
    work: Work::Update(|block, argument| {
        let [key, new, condition] = unpack(argument);
        let is_there = value(block, key).is_some();
        if condition == b"NX" && is_there || condition == b"XX" && !is_there {
            return NIL.to_vec();
        }
        put(block, key, new).map_or_else(|full| full, |()| OK.to_vec())
    }),
};

/// Argument: a key. Reply: 1 if it was there, else 0.
pub(super) const DEL: Function = Function {
    name: "del",
    work: Work::Update(|block, argument| {
        let [key] = unpack(argument);
        integer(remove(block, key).into())
    }),
};

/// Arguments: a key, and the number to add (8 bytes, little-endian). Reply: the sum.
pub(super) const ADD: Function = Function {
    name: "add",
    work: Work::Update(|block, argument| {
        let [key, add] = unpack(argument);
        let add = add.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
        let Some(old) = value(block, key).map_or(Some(0), number) else {
            return error("ERR value is not an integer or out of range");
        };
        let Some(sum) = old.checked_add(add) else {
            return error("ERR increment or decrement would overflow");
        };
        let full = put(block, key, sum.to_string().as_bytes());
        full.map_or_else(|full| full, |()| integer(sum))
    }),
};

/// Arguments: a key, the value that it must have, and its new value. Reply: 1 if it was set, 0 if
/// it has another value, -1 if it is not there.
pub(super) const CAS: Function = Function {
    name: "cas",
    work: Work::Update(|block, argument| {
        let [key, expected, new] = unpack(argument);
        match value(block, key) {
            None => integer(-1),
            Some(old) if old != expected => integer(0),
            Some(_) => put(block, key, new).map_or_else(|full| full, |()| integer(1)),
        }
    }),
};

#[cfg(test)]
mod tests {
    use super::*;

    fn does(block: &mut [u8], function: Function, parts: &[&[u8]]) -> Vec<u8> {
        let argument = pack(parts.iter().copied());
        match function.work {
            Work::View(view) => view(block, &argument),
            Work::Update(update) => update(block, &argument),
        }
    }

    /// A bucket that is filled, changed and emptied is all zeroes again.
    #[test]
    fn keys_of_a_block_come_and_go() {
        let mut block = [0; 512];
        assert_eq!(does(&mut block, GET, &[b"a"]), NIL);
        for (key, value) in [(&b"a"[..], &b"1"[..]), (b"", b"empty"), (b"b", b"")] {
            assert_eq!(does(&mut block, SET, &[key, value]), OK);
        }
        assert_eq!(does(&mut block, GET, &[b""]), b"$5\r\nempty\r\n");
        assert_eq!(does(&mut block, GET, &[b"b"]), b"$0\r\n\r\n");
        assert_eq!(does(&mut block, SET, &[b"a", b"20", b"NX"]), NIL);
        assert_eq!(does(&mut block, SET, &[b"a", b"20", b"XX"]), OK);
        assert_eq!(does(&mut block, ADD, &[b"a", &(-21_i64).to_le_bytes()]), b":-1\r\n");
        assert_eq!(does(&mut block, ADD, &[b"", &1_i64.to_le_bytes()])[..4], *b"-ERR");
        assert_eq!(does(&mut block, CAS, &[b"a", b"1", b"2"]), b":0\r\n");
        assert_eq!(does(&mut block, CAS, &[b"c", b"1", b"2"]), b":-1\r\n");
        assert_eq!(does(&mut block, CAS, &[b"a", b"-1", b"2"]), b":1\r\n");
        for key in [&b""[..], b"a", b"b"] {
            assert_eq!(does(&mut block, EXISTS, &[key]), b":1\r\n");
            assert_eq!(does(&mut block, DEL, &[key]), b":1\r\n");
            assert_eq!(does(&mut block, DEL, &[key]), b":0\r\n");
        }
        assert_eq!(block, [0; 512]);
    }

    /// A command without room changes nothing; a value that fits with the room of its predecessor
    /// is stored.
    #[test]
    fn a_full_block_says_so() {
        let mut block = [0; 512];
        let value = [7; 245];
        assert_eq!(does(&mut block, SET, &[b"1", &value]), OK);
        assert_eq!(does(&mut block, SET, &[b"2", &value]), OK);
        let full = block;
        assert!(does(&mut block, SET, &[b"3", b"a longer value"]).starts_with(b"-FULL "));
        assert!(does(&mut block, CAS, &[b"1", &value, &[8; 300]]).starts_with(b"-FULL "));
        assert_eq!(block, full);
        assert_eq!(does(&mut block, SET, &[b"2", &[9; 257]]), OK);
        assert_eq!(does(&mut block, GET, &[b"1"]), bulk(&value));
        assert_eq!(does(&mut block, GET, &[b"2"]), bulk(&[9; 257]));
    }

    /// For any content of a block, nothing panics, and nothing is written beyond it.
    #[test]
    fn any_bytes_are_a_bucket() {
        let mut rng = concord_core::Rng::new(53);
        for _ in 0..20_000 {
            let mut block: Vec<u8> = (0..64).map(|_| rng.below(4) as u8).collect();
            let key = [rng.below(4) as u8];
            for function in [GET, EXISTS, SET, ADD, CAS, DEL] {
                does(&mut block, function, &[&key, b"1", b""]);
            }
            assert!(value(&block, &key).is_none_or(|_| entry(&block, 0).is_some()));
        }
    }

    #[test]
    fn keys_spread_over_all_ranges() {
        let mut ranges = [0; NODES_MAX];
        for key in 0..32_000_u32 {
            let tag = place_of_key(key.to_string().as_bytes(), 100);
            assert!(tag.0 & u64::from(u32::MAX) < 100);
            ranges[usize::from(tag.range())] += 1;
        }
        assert!(ranges.iter().all(|count| (800..1_200).contains(count)), "{ranges:?}");
    }
}
