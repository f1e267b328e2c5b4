//! Scripts of the memory engine: Lua 5.1 in Redis 7.0's sandbox.
//!
//! [`run`] is the [`Interpreter`](concord_engine::script::Interpreter) of an engine that executes
//! scripts itself. Every replica executes each script, so that a script must do the same on all of
//! them, and must end:
//! - Each script gets an interpreter of its own. Nothing of an earlier one is left, not even garbage:
//!   when memory is collected, and when there is too much of it, hangs on the script alone.
//! - `math.random` is Redis' own generator, seeded by the record; there is no clock but TIME, which is
//!   the record's.
//! - `pairs` and `next` refuse tables whose keys are tables or functions: their order hangs on
//!   addresses. `tostring` numbers objects in the place of their addresses.
//! - [`COST_MAX`] bounds the instructions of a script, with those that its commands count for.
#![deny(unsafe_code)]

mod bits;
#[allow(unsafe_code)]
mod bounded;
mod cjson;
mod cmsgpack;
mod functions;
mod natives;
mod patterns;
mod random;
mod replies;
mod sandbox;
mod strings;
mod structs;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use concord_engine::functions::Declared;
use concord_engine::resp;
use concord_engine::script::{Host, Script};
use sandbox::{Failed, Task};

/// Most instructions of a script; a command counts for `CALL_COST` and its bytes.
pub const COST_MAX: u64 = 20_000_000;
/// Every so many instructions are counted at once.
const COST_STEP: u32 = 1_000;
/// What a command counts for, in instructions, beside its bytes and those of its reply.
const CALL_COST: u64 = 200;
/// So many bytes of commands and replies count for one instruction.
const BYTES_OF_ONE: u64 = 4;
/// What it counts for to load a library, in instructions, beside what its code executes.
const LOAD_COST: u64 = 5_000;
/// The same of a byte of code, which is to be compiled.
const COMPILED_BYTE_COST: u64 = 3;
/// Most memory of a script's interpreter.
const MEMORY_BYTES_MAX: usize = 32 << 20;
/// So many bytes that a collection of garbage has seen count for one instruction: a loop that appends to
/// a string copies more than it executes.
const COLLECTED_BYTES_OF_ONE: u64 = 4;
/// What a script that ran for too long is answered.
const STOPPED: &str = "ERR the script ran for too long and was stopped; what it did before stays";

/// What a script has cost so far.
#[derive(Clone, Debug, Default)]
struct Meter(Rc<Cell<u64>>);

impl Meter {
    fn add(&self, cost: u64) {
        self.0.set(self.0.get().saturating_add(cost));
    }

    fn is_over(&self) -> bool {
        self.0.get() > COST_MAX
    }
}

/// Runs a script, or calls a function of a library, and appends the reply; see
/// [`concord_engine::script::Interpreter`].
pub fn run(script: &Script<'_>, host: &mut dyn Host, reply: &mut Vec<u8>) {
    let start = reply.len();
    let meter = Meter::default();
    let task = script.function.map_or(Task::Script, Task::Call);
    if script.function.is_some() {
        meter.add(script.text.len() as u64 * COMPILED_BYTE_COST);
    }
    let text = match sandbox::run(script, task, host, &meter, reply) {
        Ok(()) => return,
        _ if meter.is_over() => STOPPED.as_bytes().to_vec(),
        Err(failed) => text_of(failed),
    };
    reply.truncate(start);
    resp::error(reply, &text);
}

fn text_of(failed: Failed) -> Vec<u8> {
    match failed {
        Failed::Script(text) => text,
        Failed::Lua(error) => format!("ERR {}", natives::plain_text(&error)).into_bytes(),
    }
}

/// Whether a text is a script by itself; see [`concord_engine::redis::Compiler`].
///
/// # Errors
/// The error for the client.
pub fn compile(code: &[u8]) -> Result<(), Vec<u8>> {
    sandbox::compile(code)
}

/// The functions of a library, in the order in which its code registers them; see
/// [`concord_engine::functions::Loader`].
///
/// # Errors
/// The error for the client.
pub fn load(code: &[u8], cost: &mut u64) -> Result<Vec<Declared>, Vec<u8>> {
    let meter = Meter::default();
    meter.add(*cost + LOAD_COST + code.len() as u64 * COMPILED_BYTE_COST);
    let nothing: [&[u8]; 0] = [];
    let script = Script {
        text: code,
        code_at: 0,
        keys: &nothing,
        args: &nothing,
        resp3: false,
        seed: 0,
        function: None,
    };
    let declared = RefCell::new(Vec::new());
    let task = Task::Load(&declared);
    let loaded = match meter.is_over() {
        true => Ok(()),
        false => sandbox::run(&script, task, &mut Nobody, &meter, &mut Vec::new()),
    };
    *cost = meter.0.get();
    match loaded {
        _ if meter.is_over() => {
            Err(b"ERR Error registering functions: ERR FUNCTION LOAD timeout".to_vec())
        }
        Ok(()) => Ok(declared.into_inner()),
        Err(failed) => Err(text_of(failed)),
    }
}

/// A library calls no commands while it is loaded.
struct Nobody;

impl Host for Nobody {
    fn call(&mut self, _resp3: bool, _args: &[&[u8]], reply: &mut Vec<u8>) {
        resp::error(reply, b"ERR This Redis command is not allowed from script");
    }

    fn may(&mut self, _args: &[&[u8]]) -> Option<bool> {
        Some(true)
    }
}
