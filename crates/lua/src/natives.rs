//! The native functions that the prelude builds on.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use concord_engine::resp;
use concord_engine::script::hash_of;
use mlua::{ChunkMode, Function, Lua, MultiValue, Table, Value, Variadic};

use crate::bounded::Front;
use crate::internals::slots;
use crate::meter::Meter;
use crate::sandbox::{HostCall, Question, Shared, place, syntax_text};
use crate::{
    BYTES_OF_ONE, CALL_COST, COMPILED_BYTE_COST, MEMORY_BYTES_MAX, STOPPED, bits, bounded, cjson,
    cmsgpack, replies, strings, structs,
};

/// The largest number of arguments of a native that are not numbers: as many as `unpack` returns,
/// and some before them.
const MOST_ARGS: i32 = 7_300;
/// The same for a native that may call functions of the script.
const FEW_ARGS: i32 = 4;
/// The cost of writing or reading a table, a number, and any other value.
const TABLE_COST: u64 = 100;
const NUMBER_COST: u64 = 100;
const VALUE_COST: u64 = 20;
/// The cost of raising an error of a native, with its position, and of catching it.
const ERROR_COST: u64 = 1_500;
/// The number of slots of a table, empty ones included, that are visited for one unit.
const SLOTS_OF_ONE: u64 = 2;
/// From here on %.17g prints an integer with an exponent.
const LONG_INTEGER: u64 = 100_000_000_000_000_000;

/// The result of a library function: a text is raised as an error with its position in the script.
pub(crate) type Fallible<T> = Result<T, String>;

/// An error raised by a native. A script sees the text, as with Lua's own functions, or a table
/// `{err = text}`, as with `redis.call`.
#[derive(Debug)]
struct Raised {
    text: Vec<u8>,
    is_table: bool,
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Raised {}

fn raised(text: &[u8]) -> mlua::Error {
    mlua::Error::external(Raised { text: text.to_vec(), is_table: true })
}

/// The values, or the error with its position.
pub(crate) fn outcome(lua: &Lua, result: Fallible<MultiValue>) -> mlua::Result<MultiValue> {
    result.map_err(|text| {
        let text = (position(lua) + &text).into_bytes();
        mlua::Error::external(Raised { text, is_table: false })
    })
}

/// The text of an error of a native, and whether a script sees a table with it.
fn text_of(lua: &Lua, error: &Value) -> mlua::Result<(Option<mlua::String>, bool)> {
    let Value::Error(error) = error else { return Ok((None, false)) };
    let found = raised_in(error);
    let (text, is_table) = match found {
        Some(raised) => (raised.text.clone(), raised.is_table),
        None => (plain_text(error).into_bytes(), false),
    };
    Ok((Some(lua.create_string(text)?), is_table))
}

fn raised_in(error: &mlua::Error) -> Option<&Raised> {
    match error {
        mlua::Error::CallbackError { cause, .. } => raised_in(cause),
        mlua::Error::ExternalError(error) => error.downcast_ref(),
        _ => None,
    }
}

/// The message of an interpreter's error, without a traceback.
pub(crate) fn plain_text(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => plain_text(cause),
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => text.clone(),
        mlua::Error::BadArgument { pos, cause, .. } => {
            format!("bad argument #{pos} ({})", plain_text(cause))
        }
        other => other.to_string(),
    }
}

/// Counts a value that is written, after what is written so far: a table may contain another one
/// many times, so that its text may be far longer than its memory. Reading one leaves garbage,
/// which is not collected before the whole is written.
///
/// # Errors
/// It is too long, or the script has cost too much.
pub(crate) fn count_value(meter: &Meter, value: &Value, out: &[u8]) -> mlua::Result<()> {
    spend_value(meter, value)?;
    match out.len() > MEMORY_BYTES_MAX {
        true => Err(mlua::Error::MemoryError("not enough memory".into())),
        false => Ok(()),
    }
}

/// Counts a value that is written, by its type and length.
///
/// # Errors
/// The script has cost too much.
pub(crate) fn spend_value(meter: &Meter, value: &Value) -> mlua::Result<()> {
    meter.spend(match value {
        Value::Table(table) => TABLE_COST + slots(table) / SLOTS_OF_ONE,
        Value::Integer(_) | Value::Number(_) => NUMBER_COST,
        Value::String(text) => VALUE_COST + text.as_bytes().len() as u64 / BYTES_OF_ONE,
        _ => VALUE_COST,
    })
}

/// Counts the strings among the arguments of a native, which reads all of each.
///
/// # Errors
/// The script has cost too much.
pub(crate) fn count_texts(meter: &Meter, args: &[Value]) -> mlua::Result<()> {
    let bytes = |value: &Value| match value {
        Value::String(text) => text.as_bytes().len() as u64,
        _ => 0,
    };
    meter.spend(args.iter().map(bytes).sum::<u64>() / BYTES_OF_ONE)
}

/// Counts a value that is read.
///
/// # Errors
/// The script has cost too much.
pub(crate) fn count_read(meter: &Meter) -> mlua::Result<()> {
    meter.spend(VALUE_COST)
}

pub(crate) fn make(lua: &Lua, shared: &Rc<Shared>, rest: &Function) -> mlua::Result<Table> {
    let front = Front::new(&shared.meter, rest);
    let native = lua.create_table()?;
    native.raw_set("stopped", STOPPED)?;
    native.raw_set("null", Value::NULL)?;
    native.raw_set("redis", redis(lua, shared, &front)?)?;
    let meter = shared.meter.clone();
    native.raw_set("is_over", lua.create_function(move |_, ()| Ok(meter.is_over()))?)?;
    let meter = shared.meter.clone();
    let text_of = lua.create_function(move |lua, error| {
        meter.add(ERROR_COST);
        text_of(lua, &error)
    })?;
    native.raw_set("text_of", text_of)?;
    native.raw_set("position", lua.create_function(|lua, ()| Ok(position(lua)))?)?;
    native.raw_set(
        "where",
        lua.create_function(|lua, ()| {
            Ok(place(lua).map_or((None, None), |(source, _, line)| (Some(source), Some(line))))
        })?,
    )?;
    let (to_native, meter) = (native.clone(), shared.meter.clone());
    native.raw_set(
        "load",
        lua.create_function(move |lua, (text, name): (mlua::String, mlua::String)| {
            meter.spend(text.as_bytes().len() as u64 * COMPILED_BYTE_COST)?;
            load(lua, &to_native, &text, &name)
        })?,
    )?;
    let (own, in_front) = (Rc::clone(shared), front.clone());
    let library =
        lua.create_function(move |lua, name: String| library(lua, &name, &own, &in_front))?;
    native.raw_set("library", library)?;
    let (meter, in_front) = (shared.meter.clone(), front.clone());
    let another =
        lua.create_function(move |lua, ()| cjson_library(lua, &Rc::default(), &meter, &in_front))?;
    native.raw_set("another_cjson", another)?;
    randomness(lua, &native, shared)?;
    strings::make(lua, &native, &shared.meter)?;
    // Some of these call functions of the script, which may call them again.
    bounded::functions(lua, &native, FEW_ARGS, &front)?;
    native.raw_set("next", bounded::next(lua, &shared.meter, true)?)?;
    native.raw_set("any_next", bounded::next(lua, &shared.meter, false)?)?;
    native.raw_set("rawget", bounded::raw(lua, &shared.meter, false)?)?;
    native.raw_set("rawset", bounded::raw(lua, &shared.meter, true)?)?;
    native.raw_set("pcall", bounded::protected(lua, false)?)?;
    native.raw_set("xpcall", bounded::protected(lua, true)?)?;
    native.raw_set("less", bounded::less(lua, &shared.meter)?)?;
    let slots_of = lua.create_function(|_, table: Table| Ok(slots(&table)))?;
    native.raw_set("slots", slots_of)?;
    Ok(native)
}

fn position(lua: &Lua) -> String {
    place(lua).map_or_else(String::new, |(_, short, line)| format!("{short}:{line}: "))
}

/// `cjson`, with these settings.
fn cjson_library(
    lua: &Lua,
    settings: &Rc<Cell<cjson::Settings>>,
    meter: &Meter,
    front: &Front,
) -> mlua::Result<Table> {
    let library = cjson::library(lua, settings, meter)?;
    bounded::functions(lua, &library, MOST_ARGS, front)?;
    Ok(library)
}

fn library(lua: &Lua, name: &str, shared: &Shared, front: &Front) -> mlua::Result<Table> {
    let library = match name {
        "cjson" => return cjson_library(lua, &shared.cjson, &shared.meter, front),
        "cmsgpack" => cmsgpack::library(lua, &shared.meter),
        "bit" => bits::library(lua, &shared.meter),
        _ => structs::library(lua, &shared.meter),
    }?;
    bounded::functions(lua, &library, MOST_ARGS, front)?;
    Ok(library)
}

fn constants(lua: &Lua) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    let numbers = [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
        ("REDIS_VERSION_NUM", 0x0007_000f),
    ];
    for (name, number) in numbers {
        redis.raw_set(name, number)?;
    }
    redis.raw_set("REDIS_VERSION", "7.0.15")?;
    Ok(redis)
}

/// Appends one argument of a command, as Redis takes it from Lua. Returns whether it is valid.
fn argument(value: &Value, out: &mut Vec<u8>) -> bool {
    match value {
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) if number.unsigned_abs() < LONG_INTEGER => {
            resp::decimal(out, *number);
        }
        Value::Integer(number) => {
            out.extend_from_slice(resp::general(*number as f64, 17).as_bytes());
        }
        Value::Number(number) => out.extend_from_slice(resp::general(*number, 17).as_bytes()),
        _ => return false,
    }
    true
}

/// Stores a command's arguments in `asked`, or returns the error.
fn ask(shared: &Shared, args: &[Value], for_what: Question) -> Result<u64, &'static [u8]> {
    let HostCall { question, bytes, ends, reply, .. } = &mut *shared.asked.borrow_mut();
    *question = for_what;
    bytes.clear();
    ends.clear();
    reply.clear();
    if args.is_empty() {
        return Err(b"ERR Please specify at least one argument for this redis lib call");
    }
    for value in args {
        if !argument(value, bytes) {
            return Err(b"ERR Lua redis lib command arguments must be strings or integers");
        }
        if bytes.len() > MEMORY_BYTES_MAX {
            return Err(b"ERR Lua redis lib command arguments are too long");
        }
        ends.push(bytes.len());
    }
    Ok(bytes.len() as u64)
}

/// Executes a command, and leaves its reply in `asked`.
fn execute(lua: &Lua, shared: &Shared, args: &[Value]) -> mlua::Result<()> {
    let length = match ask(shared, args, Question::Execute) {
        Ok(length) => length,
        Err(text) => {
            resp::error(&mut shared.asked.borrow_mut().reply, text);
            return Ok(());
        }
    };
    shared.go_on(lua)?;
    shared.ask_host();
    let length = length + shared.asked.borrow().reply.len() as u64;
    shared.meter.add(CALL_COST + length / BYTES_OF_ONE);
    Ok(())
}

/// redis.acl_check_cmd.
fn may(shared: &Shared, args: &[Value]) -> mlua::Result<bool> {
    let length = ask(shared, args, Question::May).map_err(raised)?;
    shared.meter.add(CALL_COST + length / BYTES_OF_ONE);
    shared.ask_host();
    let may = shared.asked.borrow().may;
    may.ok_or_else(|| raised(b"ERR Invalid command passed to redis.acl_check_cmd()"))
}

/// redis.call.
fn call(lua: &Lua, shared: &Shared, args: &[Value]) -> mlua::Result<Value> {
    execute(lua, shared, args)?;
    let asked = shared.asked.borrow();
    match asked.reply.split_first() {
        Some((b'-', text)) => Err(raised(text.trim_ascii_end())),
        _ => replies::parse(lua, &asked.reply),
    }
}

/// redis.pcall: an error is returned as a value.
fn try_call(lua: &Lua, shared: &Shared, args: &[Value]) -> mlua::Result<Value> {
    execute(lua, shared, args)?;
    replies::parse(lua, &shared.asked.borrow().reply)
}

/// The table `redis`.
fn redis(lua: &Lua, shared: &Rc<Shared>, front: &Front) -> mlua::Result<Table> {
    let redis = constants(lua)?;
    let own = Rc::clone(shared);
    let function = lua.create_function(move |lua, args: Variadic<Value>| call(lua, &own, &args))?;
    redis.raw_set("call", function)?;
    let own = Rc::clone(shared);
    let function =
        lua.create_function(move |lua, args: Variadic<Value>| try_call(lua, &own, &args))?;
    redis.raw_set("pcall", function)?;
    let own = Rc::clone(shared);
    let function = lua.create_function(move |_, args: Variadic<Value>| {
        let version = match args[..] {
            [Value::Integer(version)] => version,
            [_] => 0,
            _ => return Err(raised(b"ERR redis.setresp() requires one argument.")),
        };
        if !matches!(version, 2 | 3) {
            return Err(raised(b"ERR RESP version must be 2 or 3."));
        }
        own.resp3.set(version == 3);
        Ok(())
    })?;
    redis.raw_set("setresp", function)?;
    let meter = shared.meter.clone();
    let function =
        lua.create_function(move |lua, args: Variadic<Value>| sha1(lua, &meter, &args))?;
    redis.raw_set("sha1hex", function)?;
    let meter = shared.meter.clone();
    let function = lua.create_function(move |lua, args: Variadic<Value>| {
        count_texts(&meter, &args)?;
        single(lua, &args, "err")
    })?;
    redis.raw_set("error_reply", function)?;
    let function = lua.create_function(|lua, args: Variadic<Value>| single(lua, &args, "ok"))?;
    redis.raw_set("status_reply", function)?;
    redis.raw_set("log", lua.create_function(|_, args: Variadic<Value>| log(&args))?)?;
    redis.raw_set("set_repl", lua.create_function(|_, args: Variadic<Value>| set_repl(&args))?)?;
    let function = lua.create_function(|_, _: Variadic<Value>| Ok(true))?;
    redis.raw_set("replicate_commands", function)?;
    let own = Rc::clone(shared);
    let function = lua.create_function(move |_, args: Variadic<Value>| may(&own, &args))?;
    redis.raw_set("acl_check_cmd", function)?;
    redis.raw_set("breakpoint", lua.create_function(|_, _: Variadic<Value>| Ok(false))?)?;
    redis.raw_set("debug", lua.create_function(|_, _: Variadic<Value>| Ok(()))?)?;
    bounded::functions(lua, &redis, MOST_ARGS, front)?;
    Ok(redis)
}

fn sha1(lua: &Lua, meter: &Meter, args: &[Value]) -> mlua::Result<mlua::String> {
    let [value] = args else { return Err(raised(b"ERR wrong number of arguments")) };
    let mut bytes = Vec::new();
    argument(value, &mut bytes);
    meter.spend(bytes.len() as u64 / BYTES_OF_ONE)?;
    lua.create_string(hash_of(&bytes))
}

/// The text is discarded: clients' texts do not belong into a replica's log.
fn log(args: &[Value]) -> mlua::Result<()> {
    match args {
        [] | [_] => Err(raised(b"ERR redis.log() requires two arguments or more.")),
        [Value::Integer(0..=3), ..] => Ok(()),
        [Value::Integer(_) | Value::Number(_), ..] => Err(raised(b"ERR Invalid debug level.")),
        _ => Err(raised(b"ERR First argument must be a number (log level).")),
    }
}

/// Every replica executes a script, so that all its effects are replicated.
fn set_repl(args: &[Value]) -> mlua::Result<()> {
    match args {
        [Value::Integer(3)] => Ok(()),
        [Value::Integer(0..=2)] => {
            Err(raised(b"ERR Concord replicates all that a script does: redis.REPL_ALL"))
        }
        [_] => Err(raised(
            b"ERR Invalid replication flags. Please use REPL_AOF, REPL_REPLICA, REPL_ALL or \
              REPL_NONE.",
        )),
        _ => Err(raised(b"ERR redis.set_repl() requires one argument.")),
    }
}

/// redis.error_reply and redis.status_reply.
fn single(lua: &Lua, args: &[Value], field: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    match args {
        [Value::String(text)] if field == "err" => return error_reply(lua, text),
        [Value::String(text)] => table.raw_set(field, text)?,
        _ => table.raw_set("err", "ERR wrong number or type of arguments")?,
    }
    Ok(table)
}

/// Redis 7.0 `luaRedisErrorReplyCommand`: the first word is the code; ERR if there is only one
/// word.
fn error_reply(lua: &Lua, text: &mlua::String) -> mlua::Result<Table> {
    let text = text.as_bytes();
    let text = text.strip_prefix(b"-").unwrap_or(&text);
    let table = lua.create_table()?;
    let message = if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() };
    table.raw_set("err", lua.create_string(message.trim_ascii_end())?)?;
    Ok(table)
}

/// loadstring: returns a function, or nil and the error.
fn load(
    lua: &Lua,
    native: &Table,
    text: &mlua::String,
    name: &mlua::String,
) -> mlua::Result<(Value, Option<String>)> {
    let environment: Table = native.raw_get("environment")?;
    let source = text.as_bytes().to_vec();
    let chunk = lua.load(source).set_name(name.to_string_lossy()).set_mode(ChunkMode::Text);
    match chunk.set_environment(environment).into_function() {
        Ok(function) => Ok((Value::Function(function), None)),
        Err(error) => Ok((Value::Nil, Some(syntax_text(&error)))),
    }
}

/// math.random and math.randomseed.
fn randomness(lua: &Lua, native: &Table, shared: &Rc<Shared>) -> mlua::Result<()> {
    let own = Rc::clone(shared);
    let draw = lua.create_function(move |lua, bounds: Variadic<f64>| {
        let drawn = own.random.draw();
        let (low, high) = match bounds[..] {
            [] => return outcome(lua, Ok(MultiValue::from_iter([Value::Number(drawn)]))),
            [high] => (1.0, high.trunc()),
            [low, high] => (low.trunc(), high.trunc()),
            _ => return outcome(lua, Err("wrong number of arguments".into())),
        };
        if low > high {
            let which = bounds.len();
            let text = format!("bad argument #{which} to 'random' (interval is empty)");
            return outcome(lua, Err(text));
        }
        let value = (drawn * (high - low + 1.0)).floor() + low;
        outcome(lua, Ok(MultiValue::from_iter([Value::Number(value)])))
    })?;
    native.raw_set("random", draw)?;
    let own = Rc::clone(shared);
    let seed = lua.create_function(move |lua, seed: f64| {
        own.random.seed(seed as i64 as i32);
        outcome(lua, Ok(MultiValue::new()))
    })?;
    native.raw_set("randomseed", seed)
}
