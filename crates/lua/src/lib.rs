//! Scripts of the memory engine: Lua 5.1 in Redis 7.0's sandbox.
//!
//! [`run`] is the [`Interpreter`](concord_engine::script::Interpreter) of an engine that executes
//! scripts itself. Every replica executes each script, so that a script must do the same on all of
//! them, and must end:
//! - Each script finds an interpreter as if it were its own, and nothing of an earlier one is left
//!   (`kept.rs`). When garbage is collected, and when there is too much memory, hangs on the script
//!   alone.
//! - `math.random` is Redis' own generator, seeded by the record; there is no clock but TIME, which
//!   is the record's.
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
mod kept;
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
use sandbox::{Failed, Interpreter, Task};

/// Most instructions of a script; a command counts for `CALL_COST` and its bytes.
pub const COST_MAX: u64 = 20_000_000;
/// Every so many instructions are counted at once.
const COST_STEP: u32 = 250;
/// What a command counts for, in instructions, beside its bytes and those of its reply.
const CALL_COST: u64 = 200;
/// So many bytes of commands and replies count for one instruction.
const BYTES_OF_ONE: u64 = 4;
/// What it counts for to load a library, in instructions, beside what its code executes.
const LOAD_COST: u64 = 5_000;
/// The same of a byte of code, which is to be compiled.
const COMPILED_BYTE_COST: u64 = 3;
/// Most memory of a script's interpreter, in bytes, where no garbage is.
const MEMORY_BYTES_MAX: usize = 32 << 20;
/// The same with garbage.
const ALLOCATED_BYTES_MAX: usize = 2 * MEMORY_BYTES_MAX;
/// Garbage is collected when there may be so much of it, in bytes, or as much as there is of all
/// else.
const GARBAGE_BYTES: usize = 4 << 20;
/// So many bytes that a collection of garbage has seen count for one instruction: a loop that
/// appends to a string copies more than it executes.
const COLLECTED_BYTES_OF_ONE: u64 = 4;
/// What a script that ran for too long is answered.
const STOPPED: &str = "ERR the script ran for too long and was stopped; what it did before stays";

/// What a script has cost so far, and what it may.
#[derive(Clone, Debug)]
struct Meter(Rc<Cell<(u64, u64)>>);

impl Default for Meter {
    fn default() -> Meter {
        Meter(Rc::new(Cell::new((0, COST_MAX))))
    }
}

impl Meter {
    /// Begins anew.
    fn begin(&self, cost: u64, cost_max: u64) {
        self.0.set((cost, cost_max));
    }

    fn add(&self, cost: u64) {
        let (so_far, most) = self.0.get();
        self.0.set((so_far.saturating_add(cost), most));
    }

    fn cost(&self) -> u64 {
        self.0.get().0
    }

    fn is_over(&self) -> bool {
        let (cost, most) = self.0.get();
        cost > most
    }
}

/// Runs a script, or calls a function of a library, and appends the reply; see
/// [`concord_engine::script::Interpreter`].
pub fn run(script: &Script<'_>, host: &mut dyn Host, reply: &mut Vec<u8>) {
    let start = reply.len();
    let task = script.function.map_or(Task::Script, Task::Call);
    let cost = match script.function {
        Some(_) => script.text.len() as u64 * COMPILED_BYTE_COST,
        None => 0,
    };
    let Err(text) = kept::run(script, task, cost, host, reply) else { return };
    reply.truncate(start);
    resp::error(reply, &text);
}

/// Runs it in an interpreter of its own, within [`COST_MAX`] and [`MEMORY_BYTES_MAX`].
///
/// # Errors
/// The error for the client.
fn run_alone(
    script: &Script<'_>,
    task: Task<'_>,
    cost: &mut u64,
    host: &mut dyn Host,
    reply: &mut Vec<u8>,
) -> Result<(), Vec<u8>> {
    let mut interpreter = Interpreter::new().map_err(|error| text_of(error.into()))?;
    let meter = interpreter.shared.meter.clone();
    meter.begin(*cost, COST_MAX);
    let ended = interpreter.collect_garbage().map_err(Failed::from);
    let ended = ended.and_then(|()| interpreter.run(script, task, host, reply));
    *cost = meter.cost();
    match ended {
        Ok(()) => Ok(()),
        _ if meter.is_over() => Err(STOPPED.as_bytes().to_vec()),
        Err(failed) => Err(text_of(failed)),
    }
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
    *cost += LOAD_COST + code.len() as u64 * COMPILED_BYTE_COST;
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
    let loaded = match *cost > COST_MAX {
        true => Ok(()),
        false => run_alone(&script, task, cost, &mut Nobody, &mut Vec::new()),
    };
    if *cost > COST_MAX {
        return Err(b"ERR Error registering functions: ERR FUNCTION LOAD timeout".to_vec());
    }
    loaded.map(|()| declared.into_inner())
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
