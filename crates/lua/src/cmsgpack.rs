//! `cmsgpack`: MessagePack, as lua-cmsgpack 0.4 writes and reads it.

use mlua::{Lua, MultiValue, Table, Value, Variadic};

use crate::meter::Meter;
use crate::natives::{Fallible, count_read, count_value, outcome};

/// The nesting of tables beyond which nil is written.
const NESTING_MAX: usize = 16;

pub(crate) fn library(lua: &Lua, meter: &Meter) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    let own = meter.clone();
    let pack = lua.create_function(move |lua, args: Variadic<Value>| {
        if args.is_empty() {
            let text = "bad argument #0 to 'pack' (MessagePack pack needs input.)";
            return outcome(lua, Err(text.into()));
        }
        let mut out = Vec::new();
        let ended = args.iter().try_for_each(|value| encode(&own, value, 0, &mut out));
        own.add_bytes(out.len());
        ended?;
        let packed = Value::String(lua.create_string(&out)?);
        outcome(lua, Ok(MultiValue::from_iter([packed])))
    })?;
    table.raw_set("pack", pack)?;
    let own = meter.clone();
    let all = lua.create_function(move |lua, text: mlua::String| {
        let result = unpack((lua, &own), &text.as_bytes(), 0, usize::MAX, false)?;
        outcome(lua, result)
    })?;
    table.raw_set("unpack", all)?;
    let own = meter.clone();
    let one = lua.create_function(move |lua, (text, offset): (mlua::String, Option<i64>)| {
        let result = unpack((lua, &own), &text.as_bytes(), offset.unwrap_or(0), 1, true)?;
        outcome(lua, result)
    })?;
    table.raw_set("unpack_one", one)?;
    let own = meter.clone();
    let some = lua.create_function(
        move |lua, (text, limit, offset): (mlua::String, i64, Option<i64>)| {
            let result = match usize::try_from(limit) {
                Ok(limit) => {
                    unpack((lua, &own), &text.as_bytes(), offset.unwrap_or(0), limit, true)?
                }
                Err(_) => Err(format!(
                    "Invalid request to unpack with offset of {} and limit of {}.",
                    offset.unwrap_or(0),
                    text.as_bytes().len()
                )),
            };
            outcome(lua, result)
        },
    )?;
    table.raw_set("unpack_limit", some)?;
    Ok(table)
}

fn integer(number: i64, out: &mut Vec<u8>) {
    match number {
        0..=127 => out.push(number as u8),
        128..=0xff => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..=0xffff => sized(0xcd, &(number as u16).to_be_bytes(), out),
        0x1_0000..=0xffff_ffff => sized(0xce, &(number as u32).to_be_bytes(), out),
        0x1_0000_0000.. => sized(0xcf, &(number as u64).to_be_bytes(), out),
        -32..0 => out.push(number as u8),
        -128..-32 => out.extend_from_slice(&[0xd0, number as u8]),
        -32_768..-128 => sized(0xd1, &(number as i16).to_be_bytes(), out),
        -2_147_483_648..-32_768 => sized(0xd2, &(number as i32).to_be_bytes(), out),
        _ => sized(0xd3, &number.to_be_bytes(), out),
    }
}

fn sized(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

fn double(number: f64, out: &mut Vec<u8>) {
    let short = number as f32;
    if f64::from(short) == number {
        sized(0xca, &short.to_be_bytes(), out);
    } else {
        sized(0xcb, &number.to_be_bytes(), out);
    }
}

/// The head of a string, an array or a map: the short form's tag and room, then the tags of 8 (if
/// any), 16 and 32 bits.
fn head(length: usize, short: (u8, usize), tags: (Option<u8>, u8, u8), out: &mut Vec<u8>) {
    match (length, tags.0) {
        _ if length <= short.1 => out.push(short.0 | length as u8),
        (0..=0xff, Some(tag)) => out.extend_from_slice(&[tag, length as u8]),
        (0..=0xffff, _) => sized(tags.1, &(length as u16).to_be_bytes(), out),
        _ => sized(tags.2, &(length as u32).to_be_bytes(), out),
    }
}

fn encode(meter: &Meter, value: &Value, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
    count_value(meter, value, out)?;
    match value {
        Value::Boolean(yes) => out.push(if *yes { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => integer(*number, out),
        Value::Number(number) => {
            const LIMIT: f64 = 9_223_372_036_854_775_808.0;
            let whole = number.trunc() == *number && (-LIMIT..LIMIT).contains(number);
            if whole { integer(*number as i64, out) } else { double(*number, out) }
        }
        Value::String(text) => {
            let bytes = text.as_bytes();
            head(bytes.len(), (0xa0, 31), (Some(0xd9), 0xda, 0xdb), out);
            out.extend_from_slice(&bytes);
        }
        Value::Table(table) if depth < NESTING_MAX => encode_table(meter, table, depth + 1, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn encode_table(meter: &Meter, table: &Table, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
    let (mut count, mut highest) = (0, Some(0));
    table.for_each(|key: Value, _: Value| {
        highest = match (&key, highest) {
            (Value::Integer(at), Some(highest)) if *at > 0 => Some(highest.max(*at)),
            _ => None,
        };
        count += 1;
        Ok(())
    })?;
    if highest == i64::try_from(count).ok() {
        head(count, (0x90, 15), (None, 0xdc, 0xdd), out);
        for index in 1..=count {
            encode(meter, &table.raw_get::<Value>(index)?, depth, out)?;
        }
        return Ok(());
    }
    head(count, (0x80, 15), (None, 0xde, 0xdf), out);
    table.for_each(|key: Value, own: Value| {
        encode(meter, &key, depth, out)?;
        encode(meter, &own, depth, out)
    })
}

/// Unpacks up to `limit` values from `offset` on. If requested, the first result is the offset at
/// which to continue, or -1 at the end.
fn unpack(
    (lua, meter): (&Lua, &Meter),
    text: &[u8],
    offset: i64,
    limit: usize,
    says_where: bool,
) -> mlua::Result<Fallible<MultiValue>> {
    let length = text.len();
    let Some(start) = usize::try_from(offset).ok().filter(|start| *start <= length) else {
        let text = format!("Start offset {offset} greater than input length {length}.");
        return Ok(Err(text));
    };
    let mut reader = Reader { lua, meter, rest: &text[start..] };
    let mut values = Vec::new();
    while values.len() < limit && !reader.rest.is_empty() {
        if values.len() == RESULTS_MAX {
            return Ok(Err("too many results to unpack".into()));
        }
        match reader.value(0)? {
            Ok(value) => values.push(value),
            Err(text) => return Ok(Err(text.into())),
        }
    }
    if says_where {
        let at = if reader.rest.is_empty() { -1 } else { (length - reader.rest.len()) as i64 };
        values.insert(0, Value::Integer(at));
    }
    Ok(Ok(MultiValue::from_iter(values)))
}

/// The largest number of values that are unpacked at once.
const RESULTS_MAX: usize = 4_000;

const MISSING: &str = "Missing bytes in input.";
const BAD: &str = "Bad data format in input.";
/// The nesting beyond which input is refused.
const DEPTH_MAX: usize = 128;

struct Reader<'a> {
    lua: &'a Lua,
    meter: &'a Meter,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(MISSING)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian number of this many bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, &'static str> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Result<Value, &'static str>> {
        if depth > DEPTH_MAX {
            return Ok(Err(BAD));
        }
        count_read(self.meter)?;
        let whole = |number: i64| Value::Number(number as f64);
        macro_rules! get {
            ($what:expr) => {
                match $what {
                    Ok(got) => got,
                    Err(text) => return Ok(Err(text)),
                }
            };
        }
        let tag = get!(self.number(1)) as u8;
        let value = match tag {
            0..=0x7f => whole(tag.into()),
            0xe0..=0xff => whole((tag as i8).into()),
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f32::from_bits(get!(self.number(4)) as u32).into()),
            0xcb => Value::Number(f64::from_bits(get!(self.number(8)))),
            0xcc..=0xcf => Value::Number(get!(self.number(1 << (tag - 0xcc))) as f64),
            0xd0 => whole((get!(self.number(1)) as i8).into()),
            0xd1 => whole((get!(self.number(2)) as i16).into()),
            0xd2 => whole((get!(self.number(4)) as i32).into()),
            0xd3 => whole(get!(self.number(8)) as i64),
            0xa0..=0xbf => {
                let bytes = get!(self.take(usize::from(tag & 31)));
                self.meter.add_bytes(bytes.len());
                Value::String(self.lua.create_string(bytes)?)
            }
            0xc4..=0xc6 | 0xd9..=0xdb => {
                let width = 1 << (tag - if tag < 0xd9 { 0xc4 } else { 0xd9 });
                let length = get!(self.number(width)) as usize;
                let bytes = get!(self.take(length));
                self.meter.add_bytes(bytes.len());
                Value::String(self.lua.create_string(bytes)?)
            }
            0x90..=0x9f => return self.array(usize::from(tag & 15), depth),
            0xdc | 0xdd => {
                let count = get!(self.number(2 << (tag - 0xdc))) as usize;
                return self.array(count, depth);
            }
            0x80..=0x8f => return self.map(usize::from(tag & 15), depth),
            0xde | 0xdf => {
                let count = get!(self.number(2 << (tag - 0xde))) as usize;
                return self.map(count, depth);
            }
            _ => return Ok(Err(BAD)),
        };
        Ok(Ok(value))
    }

    fn array(&mut self, count: usize, depth: usize) -> mlua::Result<Result<Value, &'static str>> {
        let table = self.lua.create_table()?;
        for index in 1..=count {
            match self.value(depth + 1)? {
                Ok(value) => table.raw_set(index, value)?,
                Err(text) => return Ok(Err(text)),
            }
        }
        Ok(Ok(Value::Table(table)))
    }

    fn map(&mut self, count: usize, depth: usize) -> mlua::Result<Result<Value, &'static str>> {
        let table = self.lua.create_table()?;
        for _ in 0..count {
            let key = match self.value(depth + 1)? {
                Ok(Value::Nil) => return Ok(Err(BAD)),
                Ok(Value::Number(number)) if number.is_nan() => return Ok(Err(BAD)),
                Ok(key) => key,
                Err(text) => return Ok(Err(text)),
            };
            match self.value(depth + 1)? {
                Ok(value) => table.raw_set(key, value)?,
                Err(text) => return Ok(Err(text)),
            }
        }
        Ok(Ok(Value::Table(table)))
    }
}
