//! HyperLogLogs (Redis 7.0 `hyperloglog.c`): strings in Redis' own format, byte for byte.
//!
//! Behind a head of 16 bytes ("HYLL", the encoding, three zeros, the count that was cached) stand
//! 16,384 registers. *Dense*: six bits each, the lowest first. *Sparse*: runs of equal registers,
//! in codes of one or two bytes: `00nnnnnn` n + 1 zeros, `01nnnnnn nnnnnnnn` the same with 14 bits,
//! `1vvvvvnn` n + 1 times the value v + 1. PFCOUNT changes nothing here, so that what PFADD and
//! PFMERGE leave has no count cached.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::store::{Bytes, Store};
use super::{Call, Failure, Handler, fixed};
use crate::events::Classes;
use crate::resp;

pub(super) const HANDLERS: [(&[u8], Handler); 3] =
    [(b"PFADD", pfadd), (b"PFCOUNT", pfcount), (b"PFMERGE", pfmerge)];

const BAD_VALUE: Failure = fixed(b"WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPTED: Failure = fixed(b"INVALIDOBJ Corrupted HLL object detected");

/// Bits of a hash that choose the register, and those in which zeros are counted.
const INDEX_BITS: u32 = 14;
const COUNTED_BITS: u32 = 64 - INDEX_BITS;
const REGISTERS: usize = 1 << INDEX_BITS;
const REGISTER_BITS: usize = 6;

const HEAD_BYTES: usize = 16;
const DENSE_BYTES: usize = HEAD_BYTES + REGISTERS * REGISTER_BITS / 8;
/// The offset of the encoding; then that of the cached count, whose top bit marks it as invalid.
const ENCODING: usize = 4;
const CACHE: core::ops::Range<usize> = 8..16;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;

/// A sparse one that would be longer becomes dense (`hll-sparse-max-bytes`).
const SPARSE_BYTES_MAX: usize = 3000;
/// Longest runs of each code, and the largest value of a run.
const ZEROS_MAX: usize = 64;
const VALUES_MAX: usize = 4;
const VALUE_MAX: u8 = 32;
/// The number of codes that are searched for equal neighbors.
const JOINED_MAX: usize = 5;

type Registers = Box<[u8; REGISTERS]>;

fn no_registers() -> Registers {
    Box::new([0; REGISTERS])
}

/// A run of registers of one value, and the bytes of its code.
#[derive(Clone, Copy)]
struct Run {
    value: u8,
    length: usize,
    bytes: usize,
}

/// The run whose code begins here.
fn run_at(codes: &[u8]) -> Option<Run> {
    let (&first, rest) = codes.split_first()?;
    let low = usize::from(first & 0x3f);
    Some(match first >> 6 {
        0 => Run { value: 0, length: low + 1, bytes: 1 },
        1 => {
            let length = (low << 8 | usize::from(*rest.first()?)) + 1;
            Run { value: 0, length, bytes: 2 }
        }
        _ => Run { value: (first >> 2 & 31) + 1, length: usize::from(first & 3) + 1, bytes: 1 },
    })
}

fn values(value: u8, length: usize) -> u8 {
    0x80 | (value - 1) << 2 | (length - 1) as u8
}

/// Appends the code of a run, if there is any register in it.
fn push_run(codes: &mut Vec<u8>, value: u8, length: usize) {
    match (value, length) {
        (_, 0) => {}
        (0, 1..=ZEROS_MAX) => codes.push((length - 1) as u8),
        (0, _) => codes.extend_from_slice(&[0x40 | ((length - 1) >> 8) as u8, (length - 1) as u8]),
        _ => codes.push(values(value, length)),
    }
}

/// One that nothing was added to, as Redis makes it.
fn new() -> Bytes {
    let mut bytes = Bytes::from_slice(b"HYLL");
    bytes.push(SPARSE);
    bytes.resize(HEAD_BYTES, 0);
    let mut codes = Vec::new();
    push_run(&mut codes, 0, REGISTERS);
    bytes.extend_from_slice(&codes);
    bytes
}

fn is_one(bytes: &[u8]) -> bool {
    bytes.len() >= HEAD_BYTES
        && bytes.starts_with(b"HYLL")
        && match bytes[ENCODING] {
            DENSE => bytes.len() == DENSE_BYTES,
            encoding => encoding == SPARSE,
        }
}

/// The HyperLogLog of a key.
fn read<'a>(store: &'a Store, key: &[u8]) -> Result<Option<&'a Bytes>, Failure> {
    match store.read::<Bytes>(key)? {
        Some(bytes) if !is_one(bytes) => Err(BAD_VALUE),
        other => Ok(other),
    }
}

/// The register and its value that an element stands for.
fn place_of(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element, 0xadc8_3b19);
    let index = hash as usize & (REGISTERS - 1);
    let counted = hash >> INDEX_BITS | 1 << COUNTED_BITS;
    (index, counted.trailing_zeros() as u8 + 1)
}

/// MurmurHash64A, with which Redis chooses registers.
fn murmur(bytes: &[u8], seed: u64) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |hash: u64| hash ^ hash >> 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = mix(u64::from_le_bytes(*word).wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    }
    mix(mix(hash).wrapping_mul(FACTOR))
}

/// The dense register: the byte that it begins in, and the bit there.
fn dense_place(index: usize) -> (usize, usize) {
    let bit = index * REGISTER_BITS;
    (HEAD_BYTES + bit / 8, bit % 8)
}

fn dense_get(bytes: &[u8], index: usize) -> u8 {
    let (at, bit) = dense_place(index);
    let both = u16::from(bytes[at]) | u16::from(bytes.get(at + 1).copied().unwrap_or(0)) << 8;
    (both >> bit & 63) as u8
}

/// Raises a register; whether it was lower.
fn dense_raise(bytes: &mut [u8], index: usize, value: u8) -> bool {
    if dense_get(bytes, index) >= value {
        return false;
    }
    let (at, bit) = dense_place(index);
    for (at, shift) in [(at, 0), (at + 1, 8)] {
        if let Some(byte) = bytes.get_mut(at) {
            *byte &= !((63u16 << bit >> shift) as u8);
            *byte |= (u16::from(value) << bit >> shift) as u8;
        }
    }
    true
}

/// Has the largest of each register in `registers`.
fn merge(bytes: &[u8], registers: &mut [u8; REGISTERS]) -> Result<(), Failure> {
    if bytes[ENCODING] == DENSE {
        for (index, own) in registers.iter_mut().enumerate() {
            *own = (*own).max(dense_get(bytes, index));
        }
        return Ok(());
    }
    let (mut codes, mut index) = (&bytes[HEAD_BYTES..], 0);
    while !codes.is_empty() {
        let run = run_at(codes).ok_or(CORRUPTED)?;
        let covered = registers.get_mut(index..index + run.length).ok_or(CORRUPTED)?;
        covered.iter_mut().for_each(|own| *own = (*own).max(run.value));
        index += run.length;
        codes = &codes[run.bytes..];
    }
    if index == REGISTERS { Ok(()) } else { Err(CORRUPTED) }
}

fn make_dense(bytes: &mut Bytes) -> Result<(), Failure> {
    if bytes[ENCODING] == DENSE {
        return Ok(());
    }
    let mut registers = no_registers();
    merge(bytes, &mut registers)?;
    bytes[ENCODING] = DENSE;
    bytes.truncate(HEAD_BYTES);
    bytes.extend_from_slice(&vec![0; DENSE_BYTES - HEAD_BYTES]);
    for (index, value) in registers.iter().enumerate() {
        dense_raise(bytes, index, *value);
    }
    Ok(())
}

/// Raises a register of any encoding; whether it was lower.
fn raise(bytes: &mut Bytes, index: usize, value: u8) -> Result<bool, Failure> {
    if bytes[ENCODING] == DENSE {
        return Ok(dense_raise(bytes, index, value));
    }
    if value <= VALUE_MAX
        && let Some(raised) = sparse_raise(bytes, index, value)?
    {
        return Ok(raised);
    }
    make_dense(bytes)?;
    Ok(dense_raise(bytes, index, value))
}

/// Raises a register of a sparse one; `None` if it would become too long for that.
fn sparse_raise(bytes: &mut Bytes, index: usize, value: u8) -> Result<Option<bool>, Failure> {
    let (mut at, mut first, mut previous) = (HEAD_BYTES, 0, None);
    let run = loop {
        let run = run_at(&bytes[at..]).ok_or(CORRUPTED)?;
        if index < first + run.length {
            break run;
        }
        previous = Some(at);
        at += run.bytes;
        first += run.length;
    };
    if run.value >= value {
        return Ok(Some(false));
    }
    let mut codes = Vec::with_capacity(5);
    push_run(&mut codes, run.value, index - first);
    push_run(&mut codes, value, 1);
    push_run(&mut codes, run.value, first + run.length - 1 - index);
    let longer = codes.len().saturating_sub(run.bytes);
    if longer > 0 && bytes.len() + longer > SPARSE_BYTES_MAX {
        return Ok(None);
    }
    splice(bytes, at, run.bytes, &codes);
    join(bytes, previous.unwrap_or(HEAD_BYTES));
    Ok(Some(true))
}

fn splice(bytes: &mut Bytes, at: usize, removed: usize, inserted: &[u8]) {
    let behind = Bytes::from_slice(&bytes[at + removed..]);
    bytes.truncate(at);
    bytes.extend_from_slice(inserted);
    bytes.extend_from_slice(&behind);
}

/// Joins neighbors of the same value, from this code on.
fn join(bytes: &mut Bytes, mut at: usize) {
    for _ in 0..JOINED_MAX {
        let Some(run) = run_at(bytes.get(at..).unwrap_or_default()) else { return };
        let next = run_at(&bytes[at + run.bytes..]);
        match next {
            Some(next)
                if run.value > 0
                    && next.value == run.value
                    && run.length + next.length <= VALUES_MAX =>
            {
                splice(bytes, at, 2, &[values(run.value, run.length + next.length)]);
            }
            _ => at += run.bytes,
        }
    }
}

fn forget_count(bytes: &mut Bytes) {
    bytes[CACHE.end - 1] |= 0x80;
}

fn cached_count(bytes: &[u8]) -> Option<u64> {
    let cache: [u8; 8] = bytes[CACHE].try_into().ok()?;
    Some(u64::from_le_bytes(cache)).filter(|count| *count >> 63 == 0)
}

/// The estimated number of elements (Ertl's improved estimator, section 4 of arXiv 1702.01284).
fn estimate(registers: &[u8; REGISTERS]) -> u64 {
    let mut histogram = [0u32; 64];
    registers.iter().for_each(|value| histogram[usize::from(*value & 63)] += 1);
    let of_all = |count: u32| f64::from(count) / REGISTERS as f64;
    let highest = COUNTED_BITS as usize + 1;
    let mut sum = REGISTERS as f64 * tau(of_all(REGISTERS as u32 - histogram[highest]));
    for count in histogram[1..highest].iter().rev() {
        sum = (sum + f64::from(*count)) * 0.5;
    }
    sum += REGISTERS as f64 * sigma(of_all(histogram[0]));
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    libm::round(ALPHA * REGISTERS as f64 * REGISTERS as f64 / sum) as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if before == sum {
            return sum;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut sum) = (1.0, 1.0 - x);
    loop {
        x = libm::sqrt(x);
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * y;
        if before == sum {
            return sum / 3.0;
        }
    }
}

fn pfadd(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, elements) = (call.args[1], &call.args[2..]);
    let old = read(call.store, key)?;
    let mut bytes = old.cloned().unwrap_or_else(new);
    let mut changed = old.is_none();
    for element in elements {
        let (index, value) = place_of(element);
        changed |= raise(&mut bytes, index, value)?;
    }
    if changed {
        forget_count(&mut bytes);
        call.store.write(key, |own: &mut Bytes| *own = bytes)?;
        call.raise(Classes::STRING, "pfadd", key);
    }
    call.integer(i64::from(changed));
    Ok(())
}

/// The largest of each register of some keys, and whether one of them is dense.
fn merged(store: &Store, keys: &[&[u8]]) -> Result<(Registers, bool), Failure> {
    let (mut registers, mut any_dense) = (no_registers(), false);
    for key in keys {
        if let Some(bytes) = read(store, key)? {
            any_dense |= bytes[ENCODING] == DENSE;
            merge(bytes, &mut registers)?;
        }
    }
    Ok((registers, any_dense))
}

fn pfcount(call: &mut Call<'_>) -> Result<(), Failure> {
    let keys = &call.args[1..];
    let cached = match keys {
        [key] => match read(call.store, key)? {
            Some(bytes) => cached_count(bytes),
            None => Some(0),
        },
        _ => None,
    };
    let count = match cached {
        Some(count) => count,
        None => estimate(&merged(call.store, keys)?.0),
    };
    call.integer(count as i64);
    Ok(())
}

fn pfmerge(call: &mut Call<'_>) -> Result<(), Failure> {
    let (registers, any_dense) = merged(call.store, &call.args[1..])?;
    let key = call.args[1];
    let mut bytes = read(call.store, key)?.cloned().unwrap_or_else(new);
    if any_dense {
        make_dense(&mut bytes)?;
    }
    for (index, value) in registers.iter().enumerate().filter(|(_, value)| **value > 0) {
        raise(&mut bytes, index, *value)?;
    }
    forget_count(&mut bytes);
    call.store.write(key, |own: &mut Bytes| *own = bytes)?;
    call.raise(Classes::STRING, "pfadd", key);
    call.reply.extend_from_slice(resp::OK);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn registers_are_the_same_in_both_encodings() {
        let mut sparse = new();
        let mut dense = new();
        make_dense(&mut dense).unwrap();
        for n in 0..3000 {
            let (index, value) = place_of(format!("element {n}").as_bytes());
            let raised = raise(&mut sparse, index, value).unwrap();
            assert_eq!(raised, raise(&mut dense, index, value).unwrap());
            if n == 400 {
                assert_eq!(sparse[ENCODING], SPARSE);
            }
        }
        assert_eq!(sparse[ENCODING], DENSE);
        assert_eq!(sparse, dense);
        let mut registers = no_registers();
        merge(&dense, &mut registers).unwrap();
        let count = estimate(&registers);
        assert!((2900..3100).contains(&count), "{count}");
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        let mut rng = concord_core::rng::Rng::new(5);
        for _ in 0..2000 {
            let mut bytes = new();
            let length = rng.below(40);
            bytes.truncate(HEAD_BYTES + rng.below(3) as usize);
            bytes.extend((0..length).map(|_| rng.below(256) as u8));
            let mut registers = no_registers();
            let _ = merge(&bytes, &mut registers);
            let _ =
                raise(&mut bytes, rng.below(REGISTERS as u64) as usize, 1 + rng.below(51) as u8);
        }
        assert!(!is_one(b"HYLL") && !is_one(&[0; 16]) && !is_one(b"HYLL\0\0\0\0\0\0\0\0\0\0\0\0"));
    }
}
