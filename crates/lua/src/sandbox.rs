//! A script in an interpreter: its environment, and the handling of its result.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use concord_engine::functions::Declared;
use concord_engine::script::{Script, hash_of};

use mlua::{ChunkMode, Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, VmState};

use crate::internals::Strings;
use crate::memory::{Memory, Own};
use crate::meter::Meter;
use crate::random::Random;
use crate::{
    ALLOCATED_BYTES_MAX, ALLOCATED_BYTES_OF_ONE, COLLECTED_BYTES_OF_ONE, COST_STEP, GARBAGE_BYTES,
    MEMORY_BYTES_MAX, STOPPED, bounded, cjson, functions, natives, replies, steps,
};

/// The number of bytes in large blocks that are collected in the time of one byte in small ones.
const LARGE_OF_SMALL: usize = 8;
/// The number of frames that are searched for the position of an error.
const FRAMES_MAX: usize = 256;
/// Globals, and `table`, `string` and the like, compiled once.
const PRELUDE: &str = include_str!("prelude.lua");
const PRELUDE_NAME: &str = "=prelude";
/// Redis' name of every script.
const SCRIPT_NAME: &str = "@user_script";

/// The reason that a script has no reply.
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

/// The state shared by natives and the code that runs a script.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) meter: Meter,
    /// Whether garbage is collected. If not, a script that has this much of it has too much.
    collects: Cell<bool>,
    /// The memory that is paid for, in bytes.
    paid: Cell<usize>,
    memory: Option<Rc<Own>>,
    /// The interpreter's interned strings, which it finds by a hash of a part of each.
    strings: RefCell<Strings>,
    /// Whether the replies of commands are converted as RESP3 specifies.
    pub(crate) resp3: Cell<bool>,
    /// The generator behind `math.random`.
    pub(crate) random: Random,
    pub(crate) cjson: Rc<Cell<cjson::Settings>>,
    /// The command that is to be executed.
    pub(crate) asked: RefCell<HostCall>,
}

impl Shared {
    /// Lets the host execute the command.
    pub(crate) fn ask_host(&self) {
        let HostCall { question, bytes, ends, reply, may } = &mut *self.asked.borrow_mut();
        let mut start = 0;
        let part = |end: &usize| &bytes[std::mem::replace(&mut start, *end)..*end];
        let parts: Vec<&[u8]> = ends.iter().map(part).collect();
        match question {
            Question::Execute => self.meter.call(self.resp3.get(), &parts, reply),
            Question::May => *may = self.meter.may(&parts),
        }
    }

    /// Decides whether a script may go on. It pays for its allocations, garbage or not. Garbage is
    /// collected only here, between two steps of the script: the progress of Lua's own collector
    /// depends on addresses, and so would its cost and the contents of weak tables.
    ///
    /// # Errors
    /// The script has cost too much, or has too much memory.
    pub(crate) fn go_on(&self, lua: &Lua) -> mlua::Result<()> {
        let used = self.meter.counts().used().get();
        let allocated = used.saturating_sub(self.paid.replace(used)) as u64;
        let strings = self.strings.borrow_mut().cost();
        self.meter.add(allocated / ALLOCATED_BYTES_OF_ONE + strings);
        let is_full = self.meter.counts().is_full();
        if is_full && !self.collects.get() {
            return Err(self.meter.over());
        } else if is_full {
            let small = self.meter.counts().small().get();
            let large = used.saturating_sub(small) / LARGE_OF_SMALL;
            self.meter.add((small + large) as u64 / COLLECTED_BYTES_OF_ONE);
            self.collect(lua)?;
        }
        if self.meter.is_over() { Err(mlua::Error::runtime(STOPPED)) } else { Ok(()) }
    }

    /// Collects all garbage, in steps between which the script may be paused.
    fn collect(&self, lua: &Lua) -> mlua::Result<()> {
        self.is_garbage(true);
        let collected = loop {
            match bounded::collect_step(lua) {
                Ok(false) => self.meter.work(bounded::COLLECT_STEP_COST),
                ended => break ended,
            }
        };
        self.is_garbage(false);
        lua.gc_stop();
        collected?;
        self.strings.borrow_mut().begin();
        let left = lua.used_memory();
        self.paid.set(left);
        // There is never much more than a script may have.
        let garbage = left.max(GARBAGE_BYTES).min(MEMORY_BYTES_MAX.saturating_sub(left));
        self.meter.counts().collect_at().set(left + garbage.max(GARBAGE_BYTES));
        match left > MEMORY_BYTES_MAX {
            true => Err(mlua::Error::MemoryError("not enough memory".into())),
            false => Ok(()),
        }
    }

    fn limit(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.limit(bytes);
        }
    }

    fn is_garbage(&self, yes: bool) {
        if let Some(memory) = &self.memory {
            memory.collects(yes);
        }
    }

    /// Resets it to the state before any script.
    fn reset(&self, seed: u64) {
        self.resp3.set(false);
        self.random.seed(seed as i32);
        self.cjson.set(cjson::Settings::default());
    }
}

/// A question to the host.
#[derive(Clone, Copy, Default)]
pub(crate) enum Question {
    #[default]
    Execute,
    /// Whether the user may execute it.
    May,
}

/// The interpreter's tables are freed with it, and are not moved.
impl Drop for Interpreter {
    fn drop(&mut self) {
        self.shared.is_garbage(true);
    }
}

/// The arguments of a command, one after the other, with the end of each, and the host's answer.
#[derive(Default)]
pub(crate) struct HostCall {
    pub(crate) question: Question,
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<usize>,
    pub(crate) reply: Vec<u8>,
    /// Whether the user may execute it; `None` if there is no such command.
    pub(crate) may: Option<bool>,
}

/// The use of a text.
#[derive(Clone, Copy)]
pub(crate) enum Task<'a> {
    /// It is a script.
    Script,
    /// It is a library, of which this function is called.
    Call(&'a [u8]),
    /// It is a library, whose functions are to be listed.
    Load(&'a RefCell<Vec<Declared>>),
}

/// The largest number of scripts that an interpreter keeps compiled, and the longest of them in
/// bytes.
const COMPILED_MAX: usize = 64;
const COMPILED_BYTES_MAX: usize = 32 << 10;

/// An interpreter in Redis' sandbox. Lua's own collector never runs in it.
pub(crate) struct Interpreter {
    /// It is dropped before the interpreter.
    _memory: Memory,
    pub(crate) lua: Lua,
    pub(crate) shared: Rc<Shared>,
    environment: Table,
    go: Function,
    library: Function,
    /// Whether a script left nothing in the tables that scripts share; it also resets what it keeps
    /// about the script.
    is_pristine: Function,
    compiled: HashMap<Vec<u8>, Function>,
    /// The allocated bytes when there was no garbage.
    pub(crate) left_bytes: usize,
}

impl Interpreter {
    pub(crate) fn new(meter: Meter) -> mlua::Result<Interpreter> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::new())?;
        lua.gc_stop();
        let strings = RefCell::new(Strings::of(&lua)?);
        let memory = Memory::of(&lua, &meter)?;
        let own = Some(Rc::clone(memory.own()));
        let shared = Rc::new(Shared { meter, strings, memory: own, ..Shared::default() });
        let own = Rc::clone(&shared);
        let rest = lua.create_function(move |lua, ()| own.go_on(lua))?;
        bounded::charge(&lua, &shared.meter, &rest)?;
        let native = natives::make(&lua, &shared, &rest)?;
        let prelude = lua.load(prelude()?).set_mode(ChunkMode::Binary).into_function()?;
        let (environment, go, library, is_pristine): (Table, Function, Function, Function) =
            prelude.call((native.clone(), lua.globals()))?;
        native.raw_set("environment", environment.clone())?;
        let (compiled, left_bytes) = (HashMap::new(), lua.used_memory());
        Ok(Interpreter {
            _memory: memory,
            lua,
            shared,
            environment,
            go,
            library,
            is_pristine,
            compiled,
            left_bytes,
        })
    }

    /// From now on garbage is collected whenever there is much of it.
    pub(crate) fn collect_garbage(&self) -> mlua::Result<()> {
        self.shared.limit(ALLOCATED_BYTES_MAX);
        self.shared.collects.set(true);
        self.shared.collect(&self.lua)
    }

    /// Lets nothing be collected while a script runs, which ends if it has allocated more than
    /// this, in bytes. That is checked where garbage would be collected, since a table that is
    /// emptied frees its memory.
    pub(crate) fn collect_nothing(&self, memory_bytes_max: usize, allocated_bytes_max: usize) {
        self.shared.limit(memory_bytes_max);
        self.shared.meter.counts().collect_at().set(self.lua.used_memory() + allocated_bytes_max);
        self.shared.paid.set(self.lua.used_memory());
        self.shared.strings.borrow_mut().begin();
    }

    /// Collects all garbage at once.
    pub(crate) fn collect_all(&self) -> bool {
        self.shared.is_garbage(true);
        let collected = self.lua.gc_collect();
        self.shared.is_garbage(false);
        self.lua.gc_stop();
        collected.is_ok()
    }

    /// Counts instructions from here on: a step ends where it would if nothing had run before.
    fn count_instructions(&self) -> mlua::Result<()> {
        let own = Rc::clone(&self.shared);
        let triggers = HookTriggers::new().every_nth_instruction(COST_STEP);
        self.lua
            .set_global_hook(triggers, move |lua, _| own.go_on(lua).map(|()| VmState::Continue))?;
        steps::count(&self.lua, self.shared.meter.counts().first_look())
    }

    /// Whether its state is that before any script, except for garbage.
    pub(crate) fn is_pristine(&self) -> bool {
        self.is_pristine.call(()).unwrap_or(false)
    }

    /// Runs a script, and appends its reply. The caller lends the host.
    pub(crate) fn run(
        &mut self,
        script: &Script<'_>,
        task: Task<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        self.shared.reset(script.seed);
        self.count_instructions()?;
        self.execute(script, task, reply)
    }

    fn execute(
        &mut self,
        script: &Script<'_>,
        task: Task<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let lua = self.lua.clone();
        let code = &script.text[script.code_at..];
        let (lists, name) = match task {
            Task::Script => (Some((script.keys, script.args)), None),
            Task::Call(name) => (None, Some(name)),
            Task::Load(_) => (None, None),
        };
        let globals = lua.globals();
        let list = |list| strings(&lua, list).map(Value::Table);
        let (keys, args) = match lists {
            Some((keys, args)) => (list(keys)?, list(args)?),
            None => (Value::Nil, Value::Nil),
        };
        globals.raw_set("KEYS", keys)?;
        globals.raw_set("ARGV", args)?;
        let ended: mlua::Result<(bool, Value)> = match task {
            Task::Script => {
                let main = self.main(code).map_err(|text| Failed::Script(compile_error(&text)))?;
                self.go.call(main)
            }
            Task::Call(_) | Task::Load(_) => {
                let found = functions::load(&lua, code, &self.go, &self.library)?;
                let found = found.map_err(Failed::Script)?;
                if let Task::Load(declared) = task {
                    *declared.borrow_mut() = functions::declared(&found)?;
                }
                let Some(name) = name else { return Ok(()) };
                let Some(callback) = functions::find(&found, name)? else {
                    return Err(Failed::Script(b"ERR Function not found".to_vec()));
                };
                self.go.call((callback, strings(&lua, script.keys)?, strings(&lua, script.args)?))
            }
        };
        let (ok, result): (bool, Value) = ended?;
        if !ok {
            let text = match name {
                Some(name) => error_text(&result, name),
                None => error_text(&result, &hash_of(script.text)[..]),
            };
            return Err(Failed::Script(text));
        }
        let meter = &self.shared.meter;
        replies::emit(meter, &result, self.shared.resp3.get(), script.resp3, reply)?;
        Ok(())
    }

    /// The compiled function of a script.
    fn main(&mut self, code: &[u8]) -> Result<Function, String> {
        if let Some(main) = self.compiled.get(code) {
            return Ok(main.clone());
        }
        let main = compiled(&self.lua, code, SCRIPT_NAME, self.environment.clone())?;
        if code.len() <= COMPILED_BYTES_MAX {
            if self.compiled.len() >= COMPILED_MAX {
                self.compiled.clear();
            }
            self.compiled.insert(code.to_vec(), main.clone());
        }
        Ok(main)
    }
}

/// Checks that a text compiles; returns the error for the client if not.
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

/// The function that a text compiles to, or the message of the syntax error.
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

/// The prelude's bytecode, compiled by an interpreter of its own, so that all others have equal
/// garbage.
fn prelude() -> mlua::Result<&'static [u8]> {
    static BYTECODE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(bytes) = BYTECODE.get() {
        return Ok(bytes);
    }
    let lua = Lua::new_with(StdLib::NONE, LuaOptions::new())?;
    let compiled = lua.load(PRELUDE).set_name(PRELUDE_NAME).into_function()?.dump(true);
    Ok(BYTECODE.get_or_init(|| compiled))
}

/// The message of a syntax error.
pub(crate) fn syntax_text(error: &mlua::Error) -> String {
    match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// The source and line of the script's innermost function.
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

/// The message of an error.
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

/// The error in Redis' format: `text script: name, on source:line.` A script's name is its SHA-1.
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
