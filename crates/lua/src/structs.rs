//! `struct`: binary layouts, as Roberto Ierusalimschy's struct 0.2 defines them.

use mlua::{Lua, MultiValue, Table, Value, Variadic};

use crate::meter::Meter;
use crate::natives::{Fallible, count_read, count_texts, outcome};

const INTEGER_BYTES_MAX: usize = 32;
/// The longest packed string in bytes.
const PACKED_BYTES_MAX: usize = 64 << 20;

/// One item of a format.
struct Item {
    kind: u8,
    size: usize,
    little: bool,
    /// The number of bytes to skip before it.
    padding: usize,
}

/// Parses a format from front to back.
struct Format<'a> {
    /// The name of the calling function, for error texts.
    function: &'static str,
    text: &'a [u8],
    at: usize,
    little: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(function: &'static str, text: &'a [u8]) -> Format<'a> {
        Format { function, text, at: 0, little: true, align: 1 }
    }

    fn number(&mut self, default: usize) -> Fallible<usize> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if start == self.at {
            return Ok(default);
        }
        let digits = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        let number = digits.parse::<i32>().ok();
        number.map(|n| n as usize).ok_or_else(|| "integral size overflow".to_owned())
    }

    /// The next item, at `total` bytes from the beginning.
    fn next(&mut self, total: usize) -> Fallible<Option<Item>> {
        loop {
            let Some(&kind) = self.text.get(self.at) else { return Ok(None) };
            self.at += 1;
            let size = match kind {
                b'b' | b'B' | b'x' => 1,
                b'h' | b'H' => 2,
                b'l' | b'L' | b'T' | b'd' => 8,
                b'f' => 4,
                b's' => 0,
                b'c' => self.number(1)?,
                b'i' | b'I' => {
                    let size = self.number(4)?;
                    if size > INTEGER_BYTES_MAX {
                        return Err(format!(
                            "integral size {size} is larger than limit of {INTEGER_BYTES_MAX}"
                        ));
                    }
                    size
                }
                b' ' => continue,
                b'<' => {
                    self.little = true;
                    continue;
                }
                b'>' => {
                    self.little = false;
                    continue;
                }
                b'!' => {
                    let align = self.number(8)?;
                    if align == 0 || !align.is_power_of_two() {
                        return Err("alignment is not a power of 2".into());
                    }
                    self.align = align;
                    continue;
                }
                other => {
                    let (name, other) = (self.function, char::from(other));
                    return Err(format!(
                        "bad argument #1 to '{name}' (invalid format option '{other}')"
                    ));
                }
            };
            let align = if matches!(kind, b'c' | b's') { 0 } else { size.min(self.align) };
            let padding = if align > 1 { (align - total % align) % align } else { 0 };
            return Ok(Some(Item { kind, size, little: self.little, padding }));
        }
    }
}

fn missing(at: usize, name: &str, wanted: &str, got: &Value) -> String {
    let got = if *got == Value::Nil { "no value" } else { got.type_name() };
    format!("bad argument #{at} to '{name}' ({wanted} expected, got {got})")
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => text.to_str().ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// Converts as C does: a negative number wraps around.
fn integer_of(number: f64) -> u64 {
    if number < 0.0 { number as i64 as u64 } else { number as u64 }
}

fn ordered(mut bytes: Vec<u8>, little: bool) -> Vec<u8> {
    if !little {
        bytes.reverse();
    }
    bytes
}

fn pack(args: &[Value]) -> Fallible<Vec<u8>> {
    let Some(Value::String(format)) = args.first() else {
        return Err(missing(1, "pack", "string", args.first().unwrap_or(&Value::Nil)));
    };
    let format = format.as_bytes();
    let mut format = Format::new("pack", &format);
    let mut out: Vec<u8> = Vec::new();
    let mut at = 1;
    while let Some(item) = format.next(out.len())? {
        if out.len() + item.padding + item.size > PACKED_BYTES_MAX {
            return Err("result too long".into());
        }
        out.resize(out.len() + item.padding, 0);
        if item.kind == b'x' {
            out.push(0);
            continue;
        }
        let value = args.get(at).unwrap_or(&Value::Nil);
        at += 1;
        let number = || number_of(value).ok_or_else(|| missing(at, "pack", "number", value));
        match item.kind {
            b'f' => out.extend(ordered((number()? as f32).to_le_bytes().to_vec(), item.little)),
            b'd' => out.extend(ordered(number()?.to_le_bytes().to_vec(), item.little)),
            b'c' | b's' => {
                let Value::String(text) = value else {
                    return Err(missing(at, "pack", "string", value));
                };
                let text = text.as_bytes();
                let size = if item.size == 0 { text.len() } else { item.size };
                let Some(part) = text.get(..size) else {
                    return Err(format!("bad argument #{at} to 'pack' (string too short)"));
                };
                out.extend_from_slice(part);
                if item.kind == b's' {
                    out.push(0);
                }
            }
            _ => {
                let number = number()?;
                let fill = if number < 0.0 { 0xff } else { 0 };
                let mut bytes = integer_of(number).to_le_bytes().to_vec();
                bytes.resize(item.size, if item.size > 8 { fill } else { 0 });
                out.extend(ordered(bytes, item.little));
            }
        }
    }
    Ok(out)
}

/// The largest number of values that are unpacked at once.
const RESULTS_MAX: usize = 4_000;

/// The values, then the offset at which to continue.
fn unpack(lua: &Lua, meter: &Meter, args: &[Value]) -> mlua::Result<Fallible<MultiValue>> {
    let (Some(Value::String(format)), Some(Value::String(data))) = (args.first(), args.get(1))
    else {
        let at = 1 + usize::from(matches!(args.first(), Some(Value::String(_))));
        let got = args.get(at - 1).unwrap_or(&Value::Nil);
        return Ok(Err(missing(at, "unpack", "string", got)));
    };
    let start = args.get(2).and_then(number_of).unwrap_or(1.0);
    if start < 1.0 {
        return Ok(Err("offset must be 1 or greater".into()));
    }
    let (format, data) = (format.as_bytes(), data.as_bytes());
    let mut format = Format::new("unpack", &format);
    let mut at = (start - 1.0) as usize;
    let mut values: Vec<Value> = Vec::new();
    loop {
        count_read(meter)?;
        if values.len() == RESULTS_MAX {
            return Ok(Err("too many results to unpack".into()));
        }
        let item = match format.next(at) {
            Ok(Some(item)) => item,
            Ok(None) => break,
            Err(text) => return Ok(Err(text)),
        };
        at = at.saturating_add(item.padding);
        let too_short =
            || Ok(Err("bad argument #2 to 'unpack' (data string too short)".to_owned()));
        let mut size = item.size;
        if item.kind == b'c' && size == 0 {
            let Some(length) = values.pop().as_ref().and_then(number_of) else {
                return Ok(Err("format 'c0' needs a previous size".into()));
            };
            size = length as usize;
        }
        let Some(rest) = data.get(at..) else { return too_short() };
        if item.kind == b's' {
            let Some(end) = rest.iter().position(|byte| *byte == 0) else {
                return Ok(Err("unfinished string in data".into()));
            };
            meter.add_bytes(end);
            values.push(Value::String(lua.create_string(&rest[..end])?));
            at += end + 1;
            continue;
        }
        let Some(bytes) = rest.get(..size) else { return too_short() };
        at += size;
        match item.kind {
            b'x' => {}
            b'c' => {
                meter.add_bytes(bytes.len());
                values.push(Value::String(lua.create_string(bytes)?));
            }
            kind => values.push(Value::Number(number_in(kind, bytes, item.little))),
        }
    }
    values.push(Value::Integer(at as i64 + 1));
    Ok(Ok(MultiValue::from_iter(values)))
}

fn number_in(kind: u8, bytes: &[u8], little: bool) -> f64 {
    let bytes = ordered(bytes.to_vec(), little);
    match (kind, bytes.first_chunk::<4>(), bytes.first_chunk::<8>()) {
        (b'f', Some(bytes), _) => f32::from_le_bytes(*bytes).into(),
        (b'd', _, Some(bytes)) => f64::from_le_bytes(*bytes),
        _ => {
            let low = bytes.iter().take(8).rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
            if kind.is_ascii_uppercase() {
                return low as f64;
            }
            let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
            (((low << unused) as i64) >> unused) as f64
        }
    }
}

fn size(format: &[u8]) -> Fallible<usize> {
    let mut format = Format::new("size", format);
    let mut total: usize = 0;
    while let Some(item) = format.next(total)? {
        if item.kind == b's' || (item.kind == b'c' && item.size == 0) {
            let option = if item.kind == b's' { "s" } else { "c0" };
            return Err(format!("bad argument #1 to 'size' (option '{option}' has no fixed size)"));
        }
        total = total.saturating_add(item.padding + item.size);
    }
    Ok(total)
}

pub(crate) fn library(lua: &Lua, meter: &Meter) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let own = meter.clone();
    let packer = lua.create_function(move |lua, args: Variadic<Value>| {
        match count_texts(&own, &args).map(|()| pack(&args))? {
            Ok(packed) => {
                let packed = Value::String(lua.create_string(packed)?);
                outcome(lua, Ok(MultiValue::from_iter([packed])))
            }
            Err(text) => outcome(lua, Err(text)),
        }
    })?;
    table.raw_set("pack", packer)?;
    let own = meter.clone();
    let unpacker = lua.create_function(move |lua, args: Variadic<Value>| {
        let result = unpack(lua, &own, &args)?;
        outcome(lua, result)
    })?;
    table.raw_set("unpack", unpacker)?;
    let sizer = lua.create_function(|lua, format: mlua::String| {
        let total = size(&format.as_bytes());
        outcome(lua, total.map(|total| MultiValue::from_iter([Value::Integer(total as i64)])))
    })?;
    table.raw_set("size", sizer)?;
    Ok(table)
}
