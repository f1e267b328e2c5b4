//! `cjson`: JSON, with the defaults, limits and error texts of lua-cjson 2.1 as Redis has it.

use std::cell::Cell;
use std::rc::Rc;

use concord_engine::resp;
use mlua::{Lua, MultiValue, Table, Value, Variadic};

use crate::meter::Meter;
use crate::natives::{Fallible, count_read, count_value, outcome};

/// The nesting limit, which a script cannot raise: a thread's stack has no room for many more
/// levels, nor has the interpreter for the values that Rust holds.
const DEPTH_MAX: usize = 1_000;
const SPARSE_RATIO: i64 = 2;
const SPARSE_SAFE: i64 = 10;
const PRECISION: usize = 14;
/// Whole numbers below this have no more digits than cjson prints.
const INTEGER_MAX: f64 = 1e14;

/// The settings that a script may change.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth: usize,
    decode_depth: usize,
    precision: usize,
    encode_invalid: Invalid,
    decode_invalid: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Invalid {
    Refused,
    Null,
    Written,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sparse_convert: false,
            sparse_ratio: SPARSE_RATIO,
            sparse_safe: SPARSE_SAFE,
            encode_depth: DEPTH_MAX,
            decode_depth: DEPTH_MAX,
            precision: PRECISION,
            encode_invalid: Invalid::Refused,
            decode_invalid: true,
        }
    }
}

type Shared = Rc<Cell<Settings>>;

pub(crate) fn library(lua: &Lua, shared: &Shared, meter: &Meter) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    table.raw_set("null", Value::NULL)?;
    let (own, own_meter) = (shared.clone(), meter.clone());
    let encode = lua.create_function(move |lua, args: Variadic<Value>| {
        let [value] = &args[..] else { return outcome(lua, Err(one_argument("encode"))) };
        let mut out = Vec::new();
        let ended = (Encoder { settings: own.get(), meter: &own_meter }).value(value, 0, &mut out);
        own_meter.add_bytes(out.len());
        match ended? {
            Err(text) => outcome(lua, Err(text)),
            Ok(()) => {
                let text = Value::String(lua.create_string(&out)?);
                outcome(lua, Ok(MultiValue::from_iter([text])))
            }
        }
    })?;
    table.raw_set("encode", encode)?;
    let (own, own_meter) = (shared.clone(), meter.clone());
    let decode = lua.create_function(move |lua, args: Variadic<Value>| {
        let [value] = &args[..] else { return outcome(lua, Err(one_argument("decode"))) };
        let Some(text) = lua.coerce_string(value.clone())? else {
            let got = value.type_name();
            let text = format!("bad argument #1 to 'decode' (string expected, got {got})");
            return outcome(lua, Err(text));
        };
        own_meter.spend(text.as_bytes().len() as u64 / crate::BYTES_OF_ONE)?;
        match decode(lua, &text.as_bytes(), own.get(), &own_meter)? {
            Err(text) => outcome(lua, Err(text)),
            Ok(value) => outcome(lua, Ok(MultiValue::from_iter([value]))),
        }
    })?;
    table.raw_set("decode", decode)?;
    settings(lua, &table, shared)?;
    Ok(table)
}

fn one_argument(name: &str) -> String {
    format!("bad argument #1 to '{name}' (expected 1 argument)")
}

/// Adds the functions that change settings; each returns the resulting value.
fn settings(lua: &Lua, table: &Table, shared: &Shared) -> mlua::Result<()> {
    type Set = fn(&mut Settings, &[Value]) -> Fallible<Vec<Value>>;
    let all: [(&str, Set); 7] = [
        ("encode_max_depth", |s, args| {
            if let Some(value) = args.first() {
                s.encode_depth = integer(value, 1, 10_000)? as usize;
            }
            Ok(vec![Value::Integer(s.encode_depth as i64)])
        }),
        ("decode_max_depth", |s, args| {
            if let Some(value) = args.first() {
                s.decode_depth = integer(value, 1, 10_000)? as usize;
            }
            Ok(vec![Value::Integer(s.decode_depth as i64)])
        }),
        ("encode_number_precision", |s, args| {
            if let Some(value) = args.first() {
                s.precision = integer(value, 1, 16)? as usize;
            }
            Ok(vec![Value::Integer(s.precision as i64)])
        }),
        ("encode_sparse_array", |s, args| {
            if let Some(Value::Boolean(convert)) = args.first() {
                s.sparse_convert = *convert;
            }
            if let Some(value) = args.get(1) {
                s.sparse_ratio = integer(value, 0, i64::from(i32::MAX))?;
            }
            if let Some(value) = args.get(2) {
                s.sparse_safe = integer(value, 0, i64::from(i32::MAX))?;
            }
            let numbers = [s.sparse_ratio, s.sparse_safe].map(Value::Integer);
            Ok([Value::Boolean(s.sparse_convert)].into_iter().chain(numbers).collect())
        }),
        ("encode_invalid_numbers", |s, args| {
            match args.first() {
                Some(Value::Boolean(true)) => s.encode_invalid = Invalid::Written,
                Some(Value::Boolean(false)) => s.encode_invalid = Invalid::Refused,
                Some(Value::String(text)) if text.as_bytes() == b"null" => {
                    s.encode_invalid = Invalid::Null;
                }
                _ => {}
            }
            Ok(vec![Value::Boolean(s.encode_invalid != Invalid::Refused)])
        }),
        ("decode_invalid_numbers", |s, args| {
            if let Some(Value::Boolean(on)) = args.first() {
                s.decode_invalid = *on;
            }
            Ok(vec![Value::Boolean(s.decode_invalid)])
        }),
        ("encode_keep_buffer", |_, args| match args.first() {
            Some(Value::Boolean(keep)) => Ok(vec![Value::Boolean(*keep)]),
            _ => Ok(vec![Value::Boolean(true)]),
        }),
    ];
    for (name, set) in all {
        let own = shared.clone();
        let function = lua.create_function(move |lua, args: Variadic<Value>| {
            let mut settings = own.get();
            let result = set(&mut settings, &args);
            own.set(settings);
            outcome(lua, result.map(MultiValue::from_iter))
        })?;
        table.raw_set(name, function)?;
    }
    Ok(())
}

fn integer(value: &Value, low: i64, high: i64) -> Fallible<i64> {
    match value {
        Value::Integer(number) if (low..=high).contains(number) => Ok(*number),
        _ => Err(format!("bad argument #1 (expected integer between {low} and {high})")),
    }
}

struct Encoder<'a> {
    settings: Settings,
    meter: &'a Meter,
}

impl Encoder<'_> {
    fn value(&self, value: &Value, depth: usize, out: &mut Vec<u8>) -> mlua::Result<Fallible<()>> {
        count_value(self.meter, value, out)?;
        match value {
            Value::String(text) => quoted(&text.as_bytes(), out),
            Value::Integer(number) => return Ok(self.number(*number as f64, out)),
            Value::Number(number) => return Ok(self.number(*number, out)),
            Value::Boolean(yes) => out.extend_from_slice(if *yes { b"true" } else { b"false" }),
            Value::Nil => out.extend_from_slice(b"null"),
            value if *value == Value::NULL => out.extend_from_slice(b"null"),
            Value::Table(table) => return self.table(table, depth + 1, out),
            other => {
                let kind = other.type_name();
                return Ok(Err(format!("Cannot serialise {kind}: type not supported")));
            }
        }
        Ok(Ok(()))
    }

    fn number(&self, number: f64, out: &mut Vec<u8>) -> Fallible<()> {
        if number.fract() == 0.0
            && number.abs() < INTEGER_MAX
            && self.settings.precision >= PRECISION
        {
            // As general() writes it, and far faster.
            if number == 0.0 && number.is_sign_negative() {
                out.push(b'-');
            }
            resp::decimal(out, number as i64);
            return Ok(());
        }
        if number.is_finite() {
            out.extend_from_slice(resp::general(number, self.settings.precision).as_bytes());
            return Ok(());
        }
        match self.settings.encode_invalid {
            Invalid::Refused => Err("Cannot serialise number: must not be NaN or Inf".into()),
            Invalid::Null => {
                out.extend_from_slice(b"null");
                Ok(())
            }
            Invalid::Written => {
                let text = match number {
                    n if n.is_nan() => "nan",
                    n if n > 0.0 => "inf",
                    _ => "-inf",
                };
                out.extend_from_slice(text.as_bytes());
                Ok(())
            }
        }
    }

    fn table(&self, table: &Table, depth: usize, out: &mut Vec<u8>) -> mlua::Result<Fallible<()>> {
        if depth > self.settings.encode_depth.min(DEPTH_MAX) {
            return Ok(Err(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        match self.array_length(table)? {
            Err(text) => return Ok(Err(text)),
            Ok(Some(length)) => {
                out.push(b'[');
                for index in 1..=length {
                    if index > 1 {
                        out.push(b',');
                    }
                    let element = table.raw_get::<Value>(index)?;
                    if let Err(text) = self.value(&element, depth, out)? {
                        return Ok(Err(text));
                    }
                }
                out.push(b']');
            }
            Ok(None) => return self.object(table, depth, out),
        }
        Ok(Ok(()))
    }

    fn object(&self, table: &Table, depth: usize, out: &mut Vec<u8>) -> mlua::Result<Fallible<()>> {
        out.push(b'{');
        let mut first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, own) = pair?;
            if !first {
                out.push(b',');
            }
            first = false;
            let written = match &key {
                Value::String(text) => {
                    quoted(&text.as_bytes(), out);
                    Ok(())
                }
                Value::Integer(_) | Value::Number(_) => {
                    out.push(b'"');
                    let number = match key {
                        Value::Integer(number) => number as f64,
                        Value::Number(number) => number,
                        _ => 0.0,
                    };
                    let written = self.number(number, out);
                    out.push(b'"');
                    written
                }
                other => {
                    let kind = other.type_name();
                    Err(format!("Cannot serialise {kind}: table key must be a number or string"))
                }
            };
            out.push(b':');
            if let Err(text) = written {
                return Ok(Err(text));
            }
            if let Err(text) = self.value(&own, depth, out)? {
                return Ok(Err(text));
            }
        }
        out.push(b'}');
        Ok(Ok(()))
    }

    /// The length of a table that is an array: its keys are positive integers, and not too sparse.
    fn array_length(&self, table: &Table) -> mlua::Result<Fallible<Option<i64>>> {
        let (mut highest, mut items) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            match pair?.0 {
                Value::Integer(key) if key > 0 => {
                    highest = highest.max(key);
                    items += 1;
                }
                _ => return Ok(Ok(None)),
            }
        }
        let settings = &self.settings;
        if settings.sparse_ratio > 0
            && highest > items * settings.sparse_ratio
            && highest > settings.sparse_safe
        {
            if settings.sparse_convert {
                return Ok(Ok(None));
            }
            return Ok(Err("Cannot serialise table: excessively sparse array".into()));
        }
        Ok(Ok((highest > 0).then_some(highest)))
    }
}

fn quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..=31 | 127 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => out.push(other),
        }
    }
    out.push(b'"');
}

fn decode(
    lua: &Lua,
    text: &[u8],
    settings: Settings,
    meter: &Meter,
) -> mlua::Result<Fallible<Value>> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Ok(Err("JSON parser does not support UTF-16 or UTF-32".into()));
    }
    let mut decoder = Decoder { lua, text, at: 0, settings, meter };
    match decoder.whole() {
        Ok(value) => Ok(Ok(value)),
        Err(Bad::Text(text)) => Ok(Err(text)),
        Err(Bad::Lua(error)) => Err(error),
    }
}

/// The reason that a text is not JSON.
enum Bad {
    Text(String),
    Lua(mlua::Error),
}

impl From<mlua::Error> for Bad {
    fn from(error: mlua::Error) -> Bad {
        Bad::Lua(error)
    }
}

enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::String(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Error(text) => text,
        }
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    settings: Settings,
    meter: &'a Meter,
}

impl Decoder<'_> {
    fn whole(&mut self) -> Result<Value, Bad> {
        let (token, at) = self.token();
        let value = self.value(token, at, 0)?;
        match self.token() {
            (Token::End, _) => Ok(value),
            (other, at) => Err(expected("the end", &other, at)),
        }
    }

    fn value(&mut self, token: Token, at: usize, depth: usize) -> Result<Value, Bad> {
        count_read(self.meter)?;
        Ok(match token {
            Token::String(text) => Value::String(self.lua.create_string(text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(yes) => Value::Boolean(yes),
            Token::Null => Value::NULL,
            Token::ObjectBegin => self.object(depth + 1)?,
            Token::ArrayBegin => self.array(depth + 1)?,
            other => return Err(expected("value", &other, at)),
        })
    }

    fn check_depth(&self, depth: usize) -> Result<(), Bad> {
        if depth <= self.settings.decode_depth.min(DEPTH_MAX) {
            return Ok(());
        }
        let at = self.at;
        Err(Bad::Text(format!("Found too many nested data structures ({depth}) at character {at}")))
    }

    fn object(&mut self, depth: usize) -> Result<Value, Bad> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if matches!(token, Token::ObjectEnd) {
            return Ok(Value::Table(table));
        }
        loop {
            let Token::String(key) = token else {
                return Err(expected("object key string", &token, at));
            };
            (token, at) = self.token();
            if !matches!(token, Token::Colon) {
                return Err(expected("colon", &token, at));
            }
            (token, at) = self.token();
            let value = self.value(token, at, depth)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            (token, at) = self.token();
            match token {
                Token::ObjectEnd => return Ok(Value::Table(table)),
                Token::Comma => (token, at) = self.token(),
                other => return Err(expected("comma or object end", &other, at)),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Bad> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if matches!(token, Token::ArrayEnd) {
            return Ok(Value::Table(table));
        }
        let mut index = 1;
        loop {
            let value = self.value(token, at, depth)?;
            table.raw_set(index, value)?;
            index += 1;
            (token, at) = self.token();
            match token {
                Token::ArrayEnd => return Ok(Value::Table(table)),
                Token::Comma => (token, at) = self.token(),
                other => return Err(expected("comma or array end", &other, at)),
            }
        }
    }

    /// The next token, and its offset.
    fn token(&mut self) -> (Token, usize) {
        while self.text.get(self.at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let at = self.at;
        let rest = &self.text[at..];
        let Some(first) = rest.first() else { return (Token::End, at) };
        let single = match first {
            b'{' => Some(Token::ObjectBegin),
            b'}' => Some(Token::ObjectEnd),
            b'[' => Some(Token::ArrayBegin),
            b']' => Some(Token::ArrayEnd),
            b':' => Some(Token::Colon),
            b',' => Some(Token::Comma),
            _ => None,
        };
        if let Some(token) = single {
            self.at += 1;
            return (token, at);
        }
        if *first == b'"' {
            let token = self.string();
            let at = if matches!(token, Token::Error(_)) { self.at } else { at };
            return (token, at);
        }
        for (word, token) in [
            ("true", Token::Boolean(true)),
            ("false", Token::Boolean(false)),
            ("null", Token::Null),
        ] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return (token, at);
            }
        }
        let is_plain = *first == b'-' || first.is_ascii_digit();
        match number(rest) {
            Some((value, length, strange)) if !strange || self.settings.decode_invalid => {
                self.at += length;
                (Token::Number(value), at)
            }
            _ if is_plain => (Token::Error("invalid number"), at),
            _ => (Token::Error("invalid token"), at),
        }
    }

    fn string(&mut self) -> Token {
        let mut out = Vec::new();
        let start = self.at;
        let mut at = start + 1;
        loop {
            let Some(&byte) = self.text.get(at) else {
                self.at = at;
                return Token::Error("unexpected end of string");
            };
            at += 1;
            match byte {
                b'"' => break,
                b'\\' => {
                    self.at = at - 1;
                    let Some(&escape) = self.text.get(at) else {
                        return Token::Error("invalid escape code");
                    };
                    at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' => out.push(escape),
                        b'b' => out.push(8),
                        b't' => out.push(b'\t'),
                        b'n' => out.push(b'\n'),
                        b'f' => out.push(12),
                        b'r' => out.push(b'\r'),
                        b'u' => match self.unicode(&mut at) {
                            Some(letter) => {
                                let mut buffer = [0; 4];
                                out.extend_from_slice(letter.encode_utf8(&mut buffer).as_bytes());
                            }
                            None => return Token::Error("invalid unicode escape code"),
                        },
                        _ => return Token::Error("invalid escape code"),
                    }
                }
                other => out.push(other),
            }
        }
        self.at = at;
        Token::String(out)
    }

    fn unicode(&self, at: &mut usize) -> Option<char> {
        let unit = |at: usize| {
            let digits = self.text.get(at..at + 4)?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let high = unit(*at)?;
        *at += 4;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        if self.text.get(*at..*at + 2)? != b"\\u" {
            return None;
        }
        let low = unit(*at + 2).filter(|low| (0xDC00..0xE000).contains(low))?;
        *at += 6;
        char::from_u32(0x1_0000 + ((high & 0x3FF) << 10) + (low & 0x3FF))
    }
}

fn expected(what: &str, found: &Token, at: usize) -> Bad {
    let (found, at) = (found.name(), at + 1);
    Bad::Text(format!("Expected {what} but found {found} at character {at}"))
}

/// The number at the beginning of a text, as C reads it; its length; and whether JSON forbids it.
fn number(text: &[u8]) -> Option<(f64, usize, bool)> {
    let is_negative = text.first() == Some(&b'-');
    let sign = if is_negative { -1.0 } else { 1.0 };
    let start = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let rest = &text[start..];
    let lower: Vec<u8> = rest.iter().take(8).map(u8::to_ascii_lowercase).collect();
    for (word, value) in [("infinity", f64::INFINITY), ("inf", f64::INFINITY), ("nan", f64::NAN)] {
        if lower.starts_with(word.as_bytes()) {
            return Some((sign * value, start + word.len(), true));
        }
    }
    if lower.starts_with(b"0x") {
        let digits = rest[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if digits > 0 {
            let value = rest[2..2 + digits].iter().fold(0.0, |value, digit| {
                value * 16.0 + f64::from(char::from(*digit).to_digit(16).unwrap_or(0))
            });
            return Some((sign * value, start + 2 + digits, true));
        }
    }
    let digits = |at: usize| rest[at..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    let mut length = whole;
    if rest.get(length) == Some(&b'.') {
        let behind = digits(length + 1);
        if whole + behind > 0 {
            length += 1 + behind;
        }
    }
    if length == 0 {
        return None;
    }
    if matches!(rest.get(length), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(rest.get(length + 1), Some(b'-' | b'+')));
        let exponent = digits((length + 1 + signed).min(rest.len()));
        if exponent > 0 {
            length += 1 + signed + exponent;
        }
    }
    let value: f64 = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
    let leading_zero = rest[0] == b'0' && rest.get(1).is_some_and(u8::is_ascii_digit);
    let strange = text[0] == b'+' || leading_zero || whole == 0;
    Some((sign * value, start + length, strange))
}
