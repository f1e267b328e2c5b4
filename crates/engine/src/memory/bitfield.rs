//! BITFIELD and BITOP (Redis 7.0 `bitops.c`).

use alloc::vec;
use alloc::vec::Vec;

use super::keys::delete_key;
use super::store::Bytes;
use super::strings::{check_length, check_place};
use super::{Call, Failure, Handler, SYNTAX, fixed, integer};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 3] = [
    (b"BITFIELD", |call| bitfield(call, true)),
    (b"BITFIELD_RO", |call| bitfield(call, false)),
    (b"BITOP", bitop),
];

const BAD_OFFSET: Failure = fixed(b"ERR bit offset is not an integer or out of range");
const BAD_TYPE: Failure = fixed(
    b"ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);

/// The treatment of a number that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// An integer among the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    at: u64,
    bits: u32,
    signed: bool,
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Field, Failure> {
        let signed = match kind.first() {
            Some(b'i') => true,
            Some(b'u') => false,
            _ => return Err(BAD_TYPE),
        };
        let bits = resp::number(&kind[1..]).ok_or(BAD_TYPE)?;
        let bits_max = if signed { 64 } else { 63 };
        if !(1..=bits_max).contains(&bits) {
            return Err(BAD_TYPE);
        }
        let (by_fields, digits) = match offset {
            [b'#', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let at = resp::number(digits).ok_or(BAD_OFFSET)?;
        let at = if by_fields { at.checked_mul(bits).ok_or(BAD_OFFSET)? } else { at };
        check_place(at).ok_or(BAD_OFFSET)?;
        Ok(Field { at: at as u64, bits: bits as u32, signed })
    }

    /// The bytes that there must be for it.
    fn end_byte(self) -> usize {
        ((self.at + u64::from(self.bits) - 1) / 8) as usize + 1
    }

    fn read(self, value: &[u8]) -> i64 {
        let mut raw = 0u64;
        for at in self.at..self.at + u64::from(self.bits) {
            let byte = value.get((at / 8) as usize).copied().unwrap_or(0);
            raw = raw << 1 | u64::from(byte >> (7 - at % 8) & 1);
        }
        self.in_range(raw)
    }

    fn write(self, value: &mut [u8], number: i64) {
        for nth in 0..u64::from(self.bits) {
            let at = self.at + nth;
            let on = number as u64 >> (u64::from(self.bits) - 1 - nth) & 1 == 1;
            let mask = 0x80 >> (at % 8);
            let byte = &mut value[(at / 8) as usize];
            *byte = if on { *byte | mask } else { *byte & !mask };
        }
    }

    /// The number that the lowest bits of `raw` are.
    fn in_range(self, raw: u64) -> i64 {
        let unused = 64 - self.bits;
        let high = raw << unused;
        if self.signed { (high as i64) >> unused } else { (high >> unused) as i64 }
    }

    /// A number as it fits; `None` if it does not and that fails.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (min, max) = if self.signed {
            (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1)
        } else {
            (0, (1i128 << self.bits) - 1)
        };
        if (min..=max).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => Some(self.in_range(number as u64)),
            Overflow::Saturate => Some(number.clamp(min, max) as i64),
            Overflow::Fail => None,
        }
    }
}

/// One operation of BITFIELD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    Set(i64, Overflow),
    Add(i64, Overflow),
}

fn operations(args: &[&[u8]], may_write: bool) -> Result<Vec<(Field, Operation)>, Failure> {
    let mut overflow = Overflow::Wrap;
    let mut operations = Vec::new();
    let mut at = 0;
    while let Some(name) = args.get(at) {
        let values = &args[at + 1..];
        at += match (UpperName::of(name).bytes(), values) {
            (b"GET", [kind, offset, ..]) => {
                operations.push((Field::parse(kind, offset)?, Operation::Get));
                3
            }
            (b"SET", [kind, offset, number, ..]) => {
                let field = Field::parse(kind, offset)?;
                operations.push((field, Operation::Set(integer(number)?, overflow)));
                4
            }
            (b"INCRBY", [kind, offset, number, ..]) => {
                let field = Field::parse(kind, offset)?;
                operations.push((field, Operation::Add(integer(number)?, overflow)));
                4
            }
            (b"OVERFLOW", [kind, ..]) => {
                overflow = match UpperName::of(kind).bytes() {
                    b"WRAP" => Overflow::Wrap,
                    b"SAT" => Overflow::Saturate,
                    b"FAIL" => Overflow::Fail,
                    _ => return Err(fixed(b"ERR Invalid OVERFLOW type specified")),
                };
                2
            }
            _ => return Err(SYNTAX),
        };
    }
    if !may_write && operations.iter().any(|(_, operation)| *operation != Operation::Get) {
        return Err(fixed(b"ERR BITFIELD_RO only supports the GET subcommand"));
    }
    Ok(operations)
}

fn bitfield(call: &mut Call<'_>, may_write: bool) -> Result<(), Failure> {
    let operations = operations(&call.args[2..], may_write)?;
    let old = call.store.read::<Bytes>(call.args[1])?;
    let writes = operations.iter().filter(|(_, operation)| *operation != Operation::Get);
    let length = writes.map(|(field, _)| field.end_byte()).max();
    let mut value: Vec<u8> = old.map_or(Vec::new(), |bytes| bytes.to_vec());
    let old_length = old.map(|bytes| bytes.len());
    if let Some(length) = length {
        check_length(0, length)?;
        value.resize(value.len().max(length), 0);
    }
    let grew = old_length.is_none_or(|old_length| old_length < value.len());
    let mut is_changed = false;
    resp::array(call.reply, operations.len());
    for (field, operation) in operations {
        let old = field.read(&value);
        let (number, overflow) = match operation {
            Operation::Get => {
                call.integer(old);
                continue;
            }
            // As the unsigned field sees it a negative number is a large one.
            Operation::Set(number, overflow) if !field.signed => {
                (i128::from(number as u64), overflow)
            }
            Operation::Set(number, overflow) => (i128::from(number), overflow),
            Operation::Add(by, overflow) => (i128::from(old) + i128::from(by), overflow),
        };
        match field.fit(number, overflow) {
            Some(new) => {
                field.write(&mut value, new);
                is_changed |= grew || new != old;
                call.integer(if matches!(operation, Operation::Set(..)) { old } else { new });
            }
            None => call.null(),
        }
    }
    if length.is_some() {
        call.store.set_string(call.args[1], &value);
    }
    if is_changed {
        call.raise(Classes::STRING, "setbit", call.args[1]);
    }
    Ok(())
}

fn bitop(call: &mut Call<'_>) -> Result<(), Failure> {
    let operation: fn(u8, u8) -> u8 = match UpperName::of(call.args[1]).bytes() {
        b"AND" => |a, b| a & b,
        b"OR" => |a, b| a | b,
        b"XOR" => |a, b| a ^ b,
        b"NOT" => |a, _| !a,
        _ => return Err(SYNTAX),
    };
    let is_not = call.args[1].eq_ignore_ascii_case(b"NOT");
    if is_not && call.args.len() != 4 {
        return Err(fixed(b"ERR BITOP NOT must be called with a single source key."));
    }
    let mut sources: Vec<&[u8]> = Vec::with_capacity(call.args.len() - 3);
    for key in &call.args[3..] {
        sources.push(call.store.read::<Bytes>(key)?.map_or(&[][..], |bytes| &bytes[..]));
    }
    let length = sources.iter().map(|source| source.len()).max().unwrap_or(0);
    let mut result = vec![0; length];
    for (nth, source) in sources.iter().enumerate() {
        for (at, byte) in result.iter_mut().enumerate() {
            let own = source.get(at).copied().unwrap_or(0);
            *byte = match (nth, is_not) {
                (0, false) => own,
                (0, true) => operation(own, 0),
                _ => operation(*byte, own),
            };
        }
    }
    if result.is_empty() {
        delete_key(call, call.args[2]);
    } else {
        call.store.set_string(call.args[2], &result);
        call.raise(Classes::STRING, "set", call.args[2]);
    }
    call.integer(length as i64);
    Ok(())
}
