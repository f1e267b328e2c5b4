//! One script in an interpreter of its own.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;

use concord_engine::functions::Declared;
use concord_engine::script::{Host, Script, hash_of};

use mlua::{ChunkMode, Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, VmState};

use crate::{COST_STEP, MEMORY_BYTES_MAX, Meter, STOPPED, functions, natives, replies};

/// Frames that are searched for the place of an error.
const FRAMES_MAX: usize = 256;
/// Globals, `table`, `string` and the like, compiled once.
const PRELUDE: &str = include_str!("prelude.lua");
const PRELUDE_NAME: &str = "=prelude";
/// As Redis calls each script.
const SCRIPT_NAME: &str = "@user_script";

/// Why a script has no reply.
pub(crate) enum Failed {
    /// The text of its error.
    Script(Vec<u8>),
    Lua(mlua::Error),
}

impl From<mlua::Error> for Failed {
    fn from(error: mlua::Error) -> Failed {
        Failed::Lua(error)
    }
}

/// What natives share while a script runs.
pub(crate) struct Run<'a> {
    pub(crate) host: RefCell<&'a mut dyn Host>,
    pub(crate) meter: Meter,
    /// The replies of commands come as RESP3 says.
    pub(crate) resp3: Cell<bool>,
}

/// What is done with a text.
#[derive(Clone, Copy)]
pub(crate) enum Task<'a> {
    /// It is a script.
    Script,
    /// It is a library, of which this function is called.
    Call(&'a [u8]),
    /// It is a library whose functions are told.
    Load(&'a RefCell<Vec<Declared>>),
}

pub(crate) fn run(
    script: &Script<'_>,
    task: Task<'_>,
    host: &mut dyn Host,
    meter: &Meter,
    reply: &mut Vec<u8>,
) -> Result<(), Failed> {
    let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::new())?;
    lua.set_memory_limit(MEMORY_BYTES_MAX)?;
    let count = meter.clone();
    let triggers = HookTriggers::new().every_nth_instruction(COST_STEP);
    lua.set_global_hook(triggers, move |_, _| {
        count.add(COST_STEP.into());
        if count.is_over() { Err(mlua::Error::runtime(STOPPED)) } else { Ok(VmState::Continue) }
    })?;
    let shared = Run { host: RefCell::new(host), meter: meter.clone(), resp3: Cell::new(false) };
    let mut failed = None;
    lua.scope(|scope| {
        let native = natives::make(&lua, scope, &shared, script.seed)?;
        let globals = lua.globals();
        let lists = [("KEYS", script.keys), ("ARGV", script.args)];
        if matches!(task, Task::Script) {
            for (name, list) in lists {
                globals.raw_set(name, strings(&lua, list)?)?;
            }
        }
        let prelude = lua.load(prelude(&lua)?).set_mode(ChunkMode::Binary).into_function()?;
        let (environment, go, library): (Table, Function, Function) =
            prelude.call((native.clone(), globals))?;
        native.raw_set("environment", environment.clone())?;
        let code = &script.text[script.code_at..];
        let ended: mlua::Result<(bool, Value)> = match task {
            Task::Script => match compiled(&lua, code, SCRIPT_NAME, environment) {
                Ok(main) => go.call(main),
                Err(text) => {
                    failed = Some(compile_error(&text));
                    return Ok(());
                }
            },
            Task::Call(_) | Task::Load(_) => {
                let found = match functions::load(&lua, code, &go, &library)? {
                    Ok(found) => found,
                    Err(text) => {
                        failed = Some(text);
                        return Ok(());
                    }
                };
                let name = match task {
                    Task::Load(declared) => {
                        *declared.borrow_mut() = functions::declared(&found)?;
                        lua.gc_stop();
                        return Ok(());
                    }
                    Task::Script => return Ok(()),
                    Task::Call(name) => name,
                };
                let Some(callback) = functions::find(&found, name)? else {
                    failed = Some(b"ERR Function not found".to_vec());
                    return Ok(());
                };
                go.call((callback, strings(&lua, script.keys)?, strings(&lua, script.args)?))
            }
        };
        // From here on nobody would catch what a finalizer throws.
        lua.gc_stop();
        let (ok, result): (bool, Value) = ended?;
        if ok {
            let (script3, client3) = (shared.resp3.get(), script.resp3);
            replies::emit(&result, script3, client3, reply)?;
        } else {
            let hash;
            let name = match task {
                Task::Call(name) => name,
                Task::Script | Task::Load(_) => {
                    hash = hash_of(script.text);
                    &hash[..]
                }
            };
            failed = Some(error_text(&result, name));
        }
        Ok(())
    })?;
    failed.map_or(Ok(()), |text| Err(Failed::Script(text)))
}

/// Whether a text is a script; the error for the client if it is none.
pub(crate) fn compile(code: &[u8]) -> Result<(), Vec<u8>> {
    let lua = Lua::new_with(StdLib::NONE, LuaOptions::new());
    let text = match lua.map(|lua| compiled(&lua, code, SCRIPT_NAME, lua.globals()).map(|_| ())) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(text)) => text,
        Err(error) => error.to_string(),
    };
    Err(compile_error(&text))
}

fn compile_error(text: &str) -> Vec<u8> {
    format!("ERR Error compiling script (new function): {text}").into_bytes()
}

/// The function that a text is; the message if it is no Lua.
pub(crate) fn compiled(
    lua: &Lua,
    code: &[u8],
    name: &str,
    environment: Table,
) -> Result<Function, String> {
    let chunk = lua.load(code).set_name(name).set_mode(ChunkMode::Text);
    chunk.set_environment(environment).into_function().map_err(|error| syntax_text(&error))
}

fn strings(lua: &Lua, list: &[&[u8]]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(list.len(), 0)?;
    for bytes in list {
        table.raw_push(lua.create_string(bytes)?)?;
    }
    Ok(table)
}

/// The prelude's bytecode.
fn prelude(lua: &Lua) -> mlua::Result<&'static [u8]> {
    static BYTECODE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(bytes) = BYTECODE.get() {
        return Ok(bytes);
    }
    let compiled = lua.load(PRELUDE).set_name(PRELUDE_NAME).into_function()?.dump(true);
    Ok(BYTECODE.get_or_init(|| compiled))
}

/// The message of a chunk that is no Lua.
pub(crate) fn syntax_text(error: &mlua::Error) -> String {
    match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// Source and line of the innermost function that is the script's.
pub(crate) fn place(lua: &Lua) -> Option<(String, String, usize)> {
    for level in 1..FRAMES_MAX {
        let found = lua.inspect_stack(level, |frame| {
            let line = frame.current_line().filter(|line| *line > 0)?;
            let source = frame.source();
            if source.source.as_deref() == Some(PRELUDE_NAME) {
                return None;
            }
            Some((source.source?.into_owned(), source.short_src?.into_owned(), line))
        })?;
        if found.is_some() {
            return found;
        }
    }
    None
}

/// What was raised.
pub(crate) fn message_of(error: &Value) -> Vec<u8> {
    match error {
        Value::Table(parts) => match parts.raw_get::<mlua::String>(1) {
            Ok(message) => message.as_bytes().to_vec(),
            Err(_) => Vec::new(),
        },
        Value::String(message) => [b"ERR ", &message.as_bytes()[..]].concat(),
        Value::Error(error) => [b"ERR ", natives::plain_text(error).as_bytes()].concat(),
        _ => b"ERR unknown error".to_vec(),
    }
}

/// As Redis says it: `text script: name, on source:line.` A script's name is its SHA-1.
fn error_text(error: &Value, name: &[u8]) -> Vec<u8> {
    let mut text = message_of(error);
    let mut at = None;
    if let Value::Table(parts) = error {
        let source = parts.raw_get::<Option<mlua::String>>(2).ok().flatten();
        at = source.zip(parts.raw_get::<Option<u64>>(3).ok().flatten());
    }
    if let Some((source, line)) = at {
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(name);
        text.extend_from_slice(b", on ");
        text.extend_from_slice(&source.as_bytes());
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    text
}
