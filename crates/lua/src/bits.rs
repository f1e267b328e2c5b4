//! `bit`: operations on 32 bits, as LuaBitOp names and defines them.

use mlua::{Lua, MultiValue, Table, Value, Variadic};

use crate::meter::Meter;
use crate::natives::{Fallible, count_texts, outcome};

/// The low 32 bits of a number, rounded to the nearest integer (half to even).
fn bits_of(value: &Value, name: &str, at: usize) -> Fallible<u32> {
    let number = match value {
        Value::Integer(number) => return Ok(*number as u32),
        Value::Number(number) => *number,
        Value::String(text) => {
            let parsed = text.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
            parsed.ok_or_else(|| wrong(name, at, "string"))?
        }
        Value::Nil => return Err(wrong(name, at, "no value")),
        other => return Err(wrong(name, at, other.type_name())),
    };
    let rounded = number.round_ties_even() % 4_294_967_296.0;
    Ok(rounded as i64 as u32)
}

fn wrong(name: &str, at: usize, got: &str) -> String {
    format!("bad argument #{at} to '{name}' (number expected, got {got})")
}

type Args<'a> = &'a [Value];

fn one(args: Args<'_>, name: &str, at: usize) -> Fallible<u32> {
    bits_of(args.get(at - 1).unwrap_or(&Value::Nil), name, at)
}

fn fold(args: Args<'_>, name: &str, join: fn(u32, u32) -> u32) -> Fallible<u32> {
    let mut bits = one(args, name, 1)?;
    for at in 2..=args.len() {
        bits = join(bits, one(args, name, at)?);
    }
    Ok(bits)
}

fn shift(args: Args<'_>, name: &str, shift: fn(u32, u32) -> u32) -> Fallible<u32> {
    Ok(shift(one(args, name, 1)?, one(args, name, 2)? & 31))
}

fn tohex(args: Args<'_>) -> Fallible<String> {
    let bits = one(args, "tohex", 1)?;
    let wanted = if args.len() > 1 { one(args, "tohex", 2)? as i32 } else { 8 };
    let digits = format!("{bits:08x}");
    let count = (wanted.unsigned_abs() as usize).min(8);
    let digits = &digits[8 - count..];
    Ok(if wanted < 0 { digits.to_ascii_uppercase() } else { digits.to_owned() })
}

type Operation = fn(Args<'_>) -> Fallible<u32>;

const OPERATIONS: [(&str, Operation); 11] = [
    ("tobit", |args| one(args, "tobit", 1)),
    ("bnot", |args| Ok(!one(args, "bnot", 1)?)),
    ("bswap", |args| Ok(one(args, "bswap", 1)?.swap_bytes())),
    ("band", |args| fold(args, "band", |a, b| a & b)),
    ("bor", |args| fold(args, "bor", |a, b| a | b)),
    ("bxor", |args| fold(args, "bxor", |a, b| a ^ b)),
    ("lshift", |args| shift(args, "lshift", |a, n| a << n)),
    ("rshift", |args| shift(args, "rshift", |a, n| a >> n)),
    ("arshift", |args| shift(args, "arshift", |a, n| ((a as i32) >> n) as u32)),
    ("rol", |args| shift(args, "rol", u32::rotate_left)),
    ("ror", |args| shift(args, "ror", u32::rotate_right)),
];

pub(crate) fn library(lua: &Lua, meter: &Meter) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, operation) in OPERATIONS {
        let meter = meter.clone();
        let function = lua.create_function(move |lua, args: Variadic<Value>| {
            count_texts(&meter, &args)?;
            let number = |bits: u32| MultiValue::from_iter([Value::Integer((bits as i32).into())]);
            outcome(lua, operation(&args).map(number))
        })?;
        table.raw_set(name, function)?;
    }
    let meter = meter.clone();
    let hex = lua.create_function(move |lua, args: Variadic<Value>| {
        match count_texts(&meter, &args).map(|()| tohex(&args))? {
            Ok(text) => {
                let text = Value::String(lua.create_string(text)?);
                outcome(lua, Ok(MultiValue::from_iter([text])))
            }
            Err(text) => outcome(lua, Err(text)),
        }
    })?;
    table.raw_set("tohex", hex)?;
    Ok(table)
}
