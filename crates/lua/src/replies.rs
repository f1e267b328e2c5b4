//! The conversion of replies to Lua values, and of a script's result to a reply (Redis 7.0
//! `script_lua.c`).

use concord_engine::{REPLY_BYTES_MAX, resp};
use mlua::{Lua, Table, Value};

use crate::meter::Meter;
use crate::natives::spend_value;

/// The nesting beyond which a value is not a valid reply.
const DEPTH_MAX: usize = 128;

pub(crate) fn error_table(lua: &Lua, text: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    table.raw_set("ignore_error_stats_update", true)?;
    Ok(table)
}

/// A complete reply of a command as a value.
pub(crate) fn parse(lua: &Lua, reply: &[u8]) -> mlua::Result<Value> {
    let mut rest = reply;
    value(lua, &mut rest, 0)
}

fn malformed() -> mlua::Error {
    mlua::Error::runtime("the engine's reply is no reply")
}

fn value(lua: &Lua, rest: &mut &[u8], depth: usize) -> mlua::Result<Value> {
    let line = resp::line_length(rest).filter(|_| depth < DEPTH_MAX).ok_or_else(malformed)?;
    let (head, behind) = rest.split_at(line);
    let (kind, text) = (head[0], &head[1..line - 2]);
    *rest = behind;
    let number = || resp::number(text).ok_or_else(malformed);
    let string = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
    match kind {
        b':' => Ok(Value::Number(number()? as f64)),
        b'+' => field(lua, "ok", string(text)?),
        b'-' => Ok(Value::Table(error_table(lua, text)?)),
        b'_' => Ok(Value::Nil),
        b'#' => Ok(Value::Boolean(text == b"t")),
        b',' => {
            let double = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            field(lua, "double", Value::Number(double.ok_or_else(malformed)?))
        }
        b'(' => field(lua, "big_number", string(text)?),
        b'$' | b'=' => {
            let length = number()?;
            let Ok(length) = usize::try_from(length) else { return Ok(Value::Boolean(false)) };
            let bytes = rest.get(..length).ok_or_else(malformed)?;
            *rest = rest.get(length + 2..).ok_or_else(malformed)?;
            if kind == b'$' { string(bytes) } else { verbatim(lua, bytes) }
        }
        b'*' | b'>' => {
            let Ok(count) = usize::try_from(number()?) else { return Ok(Value::Boolean(false)) };
            let table = lua.create_table_with_capacity(count, 0)?;
            for index in 1..=count {
                table.raw_set(index, value(lua, rest, depth + 1)?)?;
            }
            Ok(Value::Table(table))
        }
        b'~' | b'%' => {
            let count = usize::try_from(number()?).map_err(|_| malformed())?;
            let table = lua.create_table()?;
            for _ in 0..count {
                let key = value(lua, rest, depth + 1)?;
                let own =
                    if kind == b'%' { value(lua, rest, depth + 1)? } else { Value::Boolean(true) };
                table.raw_set(key, own)?;
            }
            field(lua, if kind == b'%' { "map" } else { "set" }, Value::Table(table))
        }
        _ => Err(malformed()),
    }
}

fn field(lua: &Lua, name: &str, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn verbatim(lua: &Lua, bytes: &[u8]) -> mlua::Result<Value> {
    let (format, text) = bytes.split_at_checked(4).ok_or_else(malformed)?;
    let table = lua.create_table()?;
    table.raw_set("format", lua.create_string(&format[..3])?)?;
    table.raw_set("string", lua.create_string(text)?)?;
    field(lua, "verbatim_string", Value::Table(table))
}

/// C's conversion of a double to long long.
fn truncated(number: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&number) { number as i64 } else { i64::MIN }
}

/// Appends the result of a script. `script3`: the script chose RESP3; `client3`: its client did. Of
/// a result that exceeds the longest reply only enough is appended to show that.
///
/// # Errors
/// The script has cost too much.
pub(crate) fn emit(
    meter: &Meter,
    value: &Value,
    script3: bool,
    client3: bool,
    out: &mut Vec<u8>,
) -> mlua::Result<()> {
    Emitter { meter, start: out.len(), script3, client3 }.value(value, 0, out)
}

#[derive(Clone, Copy)]
struct Emitter<'a> {
    meter: &'a Meter,
    /// The offset at which the reply begins.
    start: usize,
    script3: bool,
    client3: bool,
}

impl Emitter<'_> {
    fn value(self, value: &Value, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
        spend_value(self.meter, value)?;
        if out.len() - self.start > REPLY_BYTES_MAX {
            return Ok(());
        }
        if depth >= DEPTH_MAX {
            resp::error(out, b"ERR reached lua stack limit");
            return Ok(());
        }
        match value {
            Value::String(text) => resp::bulk(out, &text.as_bytes()),
            Value::Integer(number) => resp::integer(out, *number),
            Value::Number(number) => resp::integer(out, truncated(*number)),
            Value::Boolean(true) if self.script3 && self.client3 => {
                out.extend_from_slice(b"#t\r\n")
            }
            Value::Boolean(true) => resp::integer(out, 1),
            Value::Boolean(false) if self.script3 && self.client3 => {
                out.extend_from_slice(b"#f\r\n");
            }
            Value::Boolean(false) if self.script3 => resp::integer(out, 0),
            Value::Table(table) => return self.table(table, depth, out),
            _ => resp::null(out, self.client3),
        }
        Ok(())
    }

    fn table(self, table: &Table, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
        let get = |name: &str| table.raw_get::<Value>(name);
        if let Value::String(text) = get("err")? {
            resp::error(out, &one_line(&text.as_bytes()));
        } else if let Value::String(text) = get("ok")? {
            out.push(b'+');
            out.extend_from_slice(&one_line(&text.as_bytes()));
            out.extend_from_slice(b"\r\n");
        } else if let Some(number) = number_of(&get("double")?) {
            resp::double(out, number, self.client3);
        } else if let Value::Table(map) = get("map")? {
            resp::map(out, count(&map)?, self.client3);
            map.for_each(|key: Value, own: Value| {
                self.value(&key, depth + 1, out)?;
                self.value(&own, depth + 1, out)
            })?;
        } else if let Value::Table(set) = get("set")? {
            resp::set(out, count(&set)?, self.client3);
            set.for_each(|key: Value, _: Value| self.value(&key, depth + 1, out))?;
        } else if let Value::String(digits) = get("big_number")? {
            let digits = one_line(&digits.as_bytes());
            if self.client3 {
                out.push(b'(');
                out.extend_from_slice(&digits);
                out.extend_from_slice(b"\r\n");
            } else {
                resp::bulk(out, &digits);
            }
        } else if let Value::Table(verbatim) = get("verbatim_string")? {
            self.verbatim(&verbatim, out)?;
        } else {
            self.array(table, depth, out)?;
        }
        Ok(())
    }

    fn verbatim(self, table: &Table, out: &mut Vec<u8>) -> mlua::Result<()> {
        let text = table.raw_get::<mlua::String>("string")?;
        let format = table.raw_get::<mlua::String>("format")?;
        if !self.client3 {
            resp::bulk(out, &text.as_bytes());
            return Ok(());
        }
        let mut format = format.as_bytes().to_vec();
        format.resize(3, b' ');
        out.extend_from_slice(format!("={}\r\n", text.as_bytes().len() + 4).as_bytes());
        out.extend_from_slice(&format);
        out.push(b':');
        out.extend_from_slice(&text.as_bytes());
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Writes an array, up to the first nil.
    fn array(self, table: &Table, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
        let mut count = 0;
        while table.raw_get::<Value>(count + 1)? != Value::Nil {
            count += 1;
        }
        resp::array(out, count);
        // The length is bounded in total, however deep the tables are.
        for at in 1..=count {
            self.value(&table.raw_get::<Value>(at)?, depth + 1, out)?;
        }
        Ok(())
    }
}

/// The number of entries of a table. They are never held all at once: an interpreter has room for
/// 8,000 values that Rust holds, and the process ends with one more.
pub(crate) fn count(table: &Table) -> mlua::Result<usize> {
    let mut count = 0;
    table.for_each(|_: Value, _: Value| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect()
}
