//! `string.find`, `match`, `gmatch`, `gsub` and `rep`, and the functions of `table` that move many
//! elements: their work counts as instructions of the script.

use mlua::{Function, Lua, MultiValue, Table, Value, Variadic};

use crate::MEMORY_BYTES_MAX;
use crate::meter::Meter;
use crate::natives::{Fallible, outcome};
use crate::patterns::{Bad, Capture, Matcher, is_plain};

/// The number of bytes of a string that are made, or searched for plain text, for one unit.
const BYTES_OF_ONE: u64 = 16;

/// Raises an error of a pattern as Lua does.
fn refuse(lua: &Lua, meter: &Meter, error: Bad) -> mlua::Result<MultiValue> {
    match error {
        Bad::Text(text) => outcome(lua, Err(text)),
        Bad::Over => Err(meter.over()),
    }
}

/// A string argument, or a number converted to one.
fn text_at(
    lua: &Lua,
    args: &[Value],
    at: usize,
    function: &str,
) -> mlua::Result<Fallible<mlua::String>> {
    let value = args.get(at).unwrap_or(&Value::Nil);
    if let Value::String(text) = value {
        return Ok(Ok(text.clone()));
    }
    if let (Value::Integer(_) | Value::Number(_), Some(text)) =
        (value, lua.coerce_string(value.clone())?)
    {
        return Ok(Ok(text));
    }
    let got = if at < args.len() { value.type_name() } else { "no value" };
    let at = at + 1;
    Ok(Err(format!("bad argument #{at} to '{function}' (string expected, got {got})")))
}

macro_rules! text {
    ($lua:expr, $args:expr, $at:expr, $function:expr) => {
        match text_at($lua, $args, $at, $function)? {
            Ok(text) => text,
            Err(text) => return outcome($lua, Err(text)),
        }
    };
}

fn number_of(value: Option<&Value>) -> Option<f64> {
    match value? {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => text.to_str().ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// A capture as a value.
fn value_of(lua: &Lua, text: &[u8], capture: Capture) -> mlua::Result<Fallible<Value>> {
    Ok(match capture {
        Capture::Text(start, end) => Ok(Value::String(lua.create_string(&text[start..end])?)),
        Capture::Place(at) => Ok(Value::Integer(at as i64 + 1)),
        Capture::Open(_) => Err("unfinished capture".to_owned()),
    })
}

/// The captures of a match, or the whole match if there are none.
fn found(
    lua: &Lua,
    text: &[u8],
    captures: &[Capture],
    whole: (usize, usize),
) -> mlua::Result<Fallible<Vec<Value>>> {
    let all = [Capture::Text(whole.0, whole.1)];
    let captures = if captures.is_empty() { &all } else { captures };
    let mut values = Vec::with_capacity(captures.len());
    for capture in captures {
        match value_of(lua, text, *capture)? {
            Ok(value) => values.push(value),
            Err(text) => return Ok(Err(text)),
        }
    }
    Ok(Ok(values))
}

/// The offset at which a search begins: `init` counts from 1, or from the end if negative.
fn start_of(init: Option<&Value>, length: usize) -> usize {
    let init = number_of(init).unwrap_or(1.0) as i64;
    let at = if init < 0 { init + length as i64 } else { init - 1 };
    at.clamp(0, length as i64) as usize
}

/// The offset of a plain text in another one. Each occurrence of its first byte is examined.
fn plain(meter: &Meter, text: &[u8], pattern: &[u8]) -> Result<Option<usize>, Bad> {
    let mut at = 0;
    while let Some(length) = text.len().checked_sub(at + pattern.len()) {
        let Some(skipped) = text[at..=at + length].iter().position(|byte| *byte == pattern[0])
        else {
            break;
        };
        at += skipped;
        if text[at..].starts_with(pattern) {
            return Ok(Some(at));
        }
        let alike = text[at..].iter().zip(pattern).take_while(|(a, b)| a == b).count();
        meter.add(1 + alike as u64 / 8);
        if meter.is_over() {
            return Err(Bad::Over);
        }
        at += 1;
    }
    Ok(None)
}

/// string.find and string.match.
fn search(lua: &Lua, meter: &Meter, args: &[Value], finds: bool) -> mlua::Result<MultiValue> {
    let function = if finds { "find" } else { "match" };
    let (text, pattern) = (text!(lua, args, 0, function), text!(lua, args, 1, function));
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let start = start_of(args.get(2), text.len());
    let wants_plain = !matches!(args.get(3), None | Some(Value::Nil | Value::Boolean(false)));
    let none = || Ok(MultiValue::from_iter([Value::Nil]));
    if finds && (wants_plain || is_plain(&pattern)) {
        meter.add((text.len() - start) as u64 / BYTES_OF_ONE + 1);
        let found = if pattern.is_empty() {
            Some(0)
        } else {
            match plain(meter, &text[start..], &pattern) {
                Ok(found) => found,
                Err(error) => return refuse(lua, meter, error),
            }
        };
        let Some(at) = found else { return none() };
        let first = (start + at + 1) as i64;
        let last = (start + at + pattern.len()) as i64;
        return Ok(MultiValue::from_iter([Value::Integer(first), Value::Integer(last)]));
    }
    let anchored = usize::from(pattern.first() == Some(&b'^'));
    let mut matcher = Matcher::new(&text, &pattern, meter);
    let mut result = Ok(None);
    for at in start..=text.len() {
        result = matcher.at(at, anchored).map(|end| end.map(|end| (at, end)));
        if !matches!(result, Ok(None)) || anchored == 1 {
            break;
        }
    }
    meter.add(matcher.steps);
    let (at, end) = match result {
        Ok(Some(found)) => found,
        Ok(None) => return none(),
        Err(error) => return refuse(lua, meter, error),
    };
    let captures = if finds && matcher.captures.is_empty() {
        Ok(Vec::new())
    } else {
        found(lua, &text, &matcher.captures, (at, end))?
    };
    match captures {
        Err(text) => outcome(lua, Err(text)),
        Ok(values) if finds => {
            let place = [Value::Integer(at as i64 + 1), Value::Integer(end as i64)];
            Ok(MultiValue::from_iter(place.into_iter().chain(values)))
        }
        Ok(values) => Ok(MultiValue::from_iter(values)),
    }
}

/// The text and the pattern of string.gmatch. The prelude keeps them, since values that Rust keeps
/// do not count as memory of the script.
fn gmatch(lua: &Lua, _: &Meter, args: &[Value]) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text!(lua, args, 0, "gmatch"), text!(lua, args, 1, "gmatch"));
    Ok(MultiValue::from_iter([text, pattern].map(Value::String)))
}

/// The next match from an offset on: the offset at which to look for the following one, and the
/// captures.
fn gmatch_next(lua: &Lua, meter: &Meter, args: &[Value]) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text!(lua, args, 0, "gmatch"), text!(lua, args, 1, "gmatch"));
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let start = number_of(args.get(2)).unwrap_or(0.0) as usize;
    let mut matcher = Matcher::new(&text, &pattern, meter);
    for at in start..=text.len() {
        let end = match matcher.at(at, 0) {
            Ok(Some(end)) => end,
            Ok(None) => continue,
            Err(error) => return refuse(lua, meter, error),
        };
        meter.add(matcher.steps);
        let next = if end == at { end + 1 } else { end };
        let values = found(lua, &text, &matcher.captures, (at, end))?;
        let values = values.map(|values| {
            MultiValue::from_iter([Value::Integer(next as i64)].into_iter().chain(values))
        });
        return outcome(lua, values);
    }
    meter.add(matcher.steps);
    Ok(MultiValue::from_iter([Value::Integer(text.len() as i64 + 1), Value::Nil]))
}

/// The replacement of a match.
enum Replacement {
    Text(Vec<u8>),
    Table(Table),
    Function(Function),
}

impl Replacement {
    /// Appends the replacement, or the match itself if that is to be kept.
    fn append(
        &self,
        lua: &Lua,
        text: &[u8],
        captures: &[Capture],
        whole: (usize, usize),
        out: &mut Vec<u8>,
    ) -> mlua::Result<Fallible<()>> {
        let values = match found(lua, text, captures, whole)? {
            Ok(values) => values,
            Err(text) => return Ok(Err(text)),
        };
        let replaced: Value = match self {
            Replacement::Text(with) => return template(lua, text, with, &values, whole, out),
            Replacement::Table(table) => table.get(values[0].clone())?,
            Replacement::Function(function) => function.call(MultiValue::from_iter(values))?,
        };
        match &replaced {
            Value::Nil | Value::Boolean(false) => out.extend_from_slice(&text[whole.0..whole.1]),
            Value::String(with) => out.extend_from_slice(&with.as_bytes()),
            Value::Integer(_) | Value::Number(_) => {
                if let Some(with) = lua.coerce_string(replaced)? {
                    out.extend_from_slice(&with.as_bytes());
                }
            }
            other => {
                let kind = other.type_name();
                return Ok(Err(format!("invalid replacement value (a {kind})")));
            }
        }
        Ok(Ok(()))
    }
}

/// A text that contains `%0` to `%9`.
fn template(
    lua: &Lua,
    text: &[u8],
    with: &[u8],
    values: &[Value],
    whole: (usize, usize),
    out: &mut Vec<u8>,
) -> mlua::Result<Fallible<()>> {
    let mut bytes = with.iter();
    while let Some(&byte) = bytes.next() {
        if out.len() > MEMORY_BYTES_MAX {
            return Ok(Err("resulting string too large".to_owned()));
        }
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'0') => out.extend_from_slice(&text[whole.0..whole.1]),
            Some(digit @ b'1'..=b'9') => {
                let Some(value) = values.get(usize::from(digit - b'1')) else {
                    return Ok(Err("invalid capture index".to_owned()));
                };
                if let Some(part) = lua.coerce_string(value.clone())? {
                    out.extend_from_slice(&part.as_bytes());
                }
            }
            Some(other) => out.push(*other),
            None => out.push(0),
        }
    }
    Ok(Ok(()))
}

fn gsub(lua: &Lua, meter: &Meter, args: &[Value]) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text!(lua, args, 0, "gsub"), text!(lua, args, 1, "gsub"));
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let with = match args.get(2) {
        Some(Value::Table(table)) => Replacement::Table(table.clone()),
        Some(Value::Function(function)) => Replacement::Function(function.clone()),
        Some(Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
            Replacement::Text(text!(lua, args, 2, "gsub").as_bytes().to_vec())
        }
        _ => {
            let text = "bad argument #3 to 'gsub' (string/function/table expected)";
            return outcome(lua, Err(text.into()));
        }
    };
    let most = number_of(args.get(3)).map_or(usize::MAX, |most| most.max(0.0) as usize);
    let anchored = usize::from(pattern.first() == Some(&b'^'));
    let (mut out, mut at, mut count) = (Vec::new(), 0, 0);
    while count < most {
        let mut matcher = Matcher::new(&text, &pattern, meter);
        let end = match matcher.at(at, anchored) {
            Ok(end) => end,
            Err(error) => return refuse(lua, meter, error),
        };
        meter.add(matcher.steps + out.len() as u64 / (1 << 20));
        if let Some(end) = end {
            count += 1;
            if let Err(text) = with.append(lua, &text, &matcher.captures, (at, end), &mut out)? {
                return outcome(lua, Err(text));
            }
            if out.len() > MEMORY_BYTES_MAX {
                return outcome(lua, Err("resulting string too large".into()));
            }
        }
        match end {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                out.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if anchored == 1 {
            break;
        }
    }
    out.extend_from_slice(&text[at.min(text.len())..]);
    let whole = Value::String(lua.create_string(&out)?);
    Ok(MultiValue::from_iter([whole, Value::Integer(count as i64)]))
}

fn rep(lua: &Lua, meter: &Meter, args: &[Value]) -> mlua::Result<MultiValue> {
    let text = text!(lua, args, 0, "rep");
    let Some(count) = number_of(args.get(1)) else {
        let got = args.get(1).map_or("no value", Value::type_name);
        let text = format!("bad argument #2 to 'rep' (number expected, got {got})");
        return outcome(lua, Err(text));
    };
    let text = text.as_bytes();
    let count = if text.is_empty() { 0 } else { count.max(0.0) as usize };
    let length = text.len().saturating_mul(count);
    if length > MEMORY_BYTES_MAX {
        return Err(mlua::Error::MemoryError("not enough memory".into()));
    }
    meter.add(length as u64 / BYTES_OF_ONE);
    let whole = Value::String(lua.create_string(text.repeat(count))?);
    Ok(MultiValue::from_iter([whole]))
}

/// string.upper, lower and reverse.
fn changed(
    lua: &Lua,
    meter: &Meter,
    args: &[Value],
    (function, change): (&str, fn(&mut [u8])),
) -> mlua::Result<MultiValue> {
    let text = text!(lua, args, 0, function);
    let mut bytes = text.as_bytes().to_vec();
    meter.add_bytes(bytes.len());
    change(&mut bytes);
    Ok(MultiValue::from_iter([Value::String(lua.create_string(&bytes)?)]))
}

type Native = fn(&Lua, &Meter, &[Value]) -> mlua::Result<MultiValue>;

const NATIVES: [(&str, Native); 9] = [
    ("upper", |lua, meter, args| {
        changed(lua, meter, args, ("upper", <[u8]>::make_ascii_uppercase))
    }),
    ("lower", |lua, meter, args| {
        changed(lua, meter, args, ("lower", <[u8]>::make_ascii_lowercase))
    }),
    ("reverse", |lua, meter, args| changed(lua, meter, args, ("reverse", <[u8]>::reverse))),
    ("find", |lua, meter, args| search(lua, meter, args, true)),
    ("match", |lua, meter, args| search(lua, meter, args, false)),
    ("gmatch", gmatch),
    ("gmatch_next", gmatch_next),
    ("gsub", gsub),
    ("rep", rep),
];

/// The largest number of arguments that any of these functions uses.
const ARGS_MAX: usize = 4;

pub(crate) fn make(lua: &Lua, native: &Table, meter: &Meter) -> mlua::Result<()> {
    for (name, function) in NATIVES {
        let meter = meter.clone();
        let function = lua.create_function(move |lua, mut args: Variadic<Value>| {
            // While a function of the script runs, which may call others, no more than these are
            // held.
            args.truncate(ARGS_MAX);
            function(lua, &meter, &args)
        })?;
        native.raw_set(name, function)?;
    }
    let meter = meter.clone();
    let charge =
        lua.create_function(move |_, elements: f64| meter.spend(elements.max(0.0) as u64))?;
    native.raw_set("charge", charge)
}
