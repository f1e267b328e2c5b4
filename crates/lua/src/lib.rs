//! Scripts of the memory engine: Lua 5.1 in Redis 7.0's sandbox.
//!
//! [`run`] is the [`Interpreter`](concord_engine::script::Interpreter) of an engine that executes
//! scripts itself. Every replica executes each script, so that a script must do the same at all of
//! them, and must end:
//! - Each script finds an interpreter as if it were its own, and nothing of an earlier one is left
//!   (`kept.rs`). When garbage is collected, and when memory is exhausted, depends on the script
//!   alone.
//! - `math.random` is Redis' own generator, seeded by the record; there is no clock but TIME, which
//!   is the record's.
//! - `pairs` and `next` refuse tables whose keys are tables or functions: their order depends on
//!   addresses. `tostring` shows numbers of objects instead of their addresses.
//! - [`COST_MAX`] bounds the cost of a script, including natives, commands and garbage
//!   (`meter.rs`). A long script is executed in slices (`slices.rs`), so that nothing keeps a
//!   replica from saying that it lives.
#![deny(unsafe_code)]

mod bits;
#[allow(unsafe_code)]
mod bounded;
mod cjson;
#[allow(unsafe_code)]
mod clib;
mod cmsgpack;
mod functions;
#[allow(unsafe_code)]
mod internals;
mod kept;
#[allow(unsafe_code)]
mod memory;
mod meter;
mod natives;
mod patterns;
mod random;
mod replies;
mod sandbox;
#[allow(unsafe_code)]
mod slices;
#[allow(unsafe_code)]
mod steps;
mod strings;
mod structs;

use std::cell::RefCell;

use concord_engine::functions::Declared;
use concord_engine::script::{Host, Ran, Script};
use meter::Meter;
use sandbox::{Failed, Interpreter, Task};
use slices::{Ended, Nobody};

/// The cost limit of a script, in units of about 10 ns: up to two seconds. In a chain the replicas
/// execute it one after the other, and a gateway waits for five seconds.
pub const COST_MAX: u64 = 150_000_000;
/// The cost limit of a library's code when it is loaded, which is not executed in slices.
const LOAD_COST_MAX: u64 = 5_000_000;
/// The number of instructions that are counted at once.
const COST_STEP: u32 = 100;
/// The cost of a command, without its work, its bytes and those of its reply.
const CALL_COST: u64 = 200;
/// The number of bytes of commands and replies that cost one unit.
const BYTES_OF_ONE: u64 = 4;
/// The cost of loading a library, without the execution of its code.
const LOAD_COST: u64 = 5_000;
/// The cost of each byte of code, which is compiled.
const COMPILED_BYTE_COST: u64 = 3;
/// The memory limit of a script's interpreter in bytes, without garbage.
const MEMORY_BYTES_MAX: usize = 32 << 20;
/// The memory limit with garbage, of which a few steps may make much.
const ALLOCATED_BYTES_MAX: usize = 4 * MEMORY_BYTES_MAX;
/// Garbage is collected when there may be this many bytes of it, or as much as of everything else.
const GARBAGE_BYTES: usize = 4 << 20;
/// The number of bytes visited by the collector that cost one unit.
const COLLECTED_BYTES_OF_ONE: u64 = 8;
/// The number of allocated bytes that cost one unit, garbage or not: a loop that appends to a
/// string copies more than it executes.
const ALLOCATED_BYTES_OF_ONE: u64 = 16;
/// The reply to a script that cost too much.
const STOPPED: &str = "ERR the script ran for too long and was stopped; it has changed nothing";
/// The reply to a script that took too much memory.
const TOO_LARGE: &[u8] =
    b"ERR the script took more than 32 MiB of memory and was stopped; it has changed nothing";

/// Runs a script, or calls a function of a library, and appends the reply; see
/// [`concord_engine::script::Interpreter`].
pub fn run(script: &Script<'_>, host: &mut dyn Host, reply: &mut Vec<u8>) -> Ran {
    run_within::<COST_MAX>(script, host, reply)
}

/// As [`run`], with another cost limit, which must be the same at all replicas. For tests, which
/// have no seconds for each script.
pub fn run_within<const COST_MAX: u64>(
    script: &Script<'_>,
    host: &mut dyn Host,
    reply: &mut Vec<u8>,
) -> Ran {
    let task = script.function.map_or(Task::Script, Task::Call);
    let cost = match script.function {
        Some(_) => script.text.len() as u64 * COMPILED_BYTE_COST,
        None => 0,
    };
    kept::run(script, task, (cost, COST_MAX), host, reply)
}

/// Runs it in an interpreter of its own, within the limits of `meter` and [`MEMORY_BYTES_MAX`]. The
/// host is lent to it.
fn run_alone(script: &Script<'_>, task: Task<'_>, meter: &Meter) -> Ended {
    let mut interpreter = match Interpreter::new(meter.clone()) {
        Ok(interpreter) => interpreter,
        Err(error) => return Ended::Error(text_of(error.into())),
    };
    let mut reply = Vec::new();
    let ended = interpreter.collect_garbage().map_err(Failed::from);
    let ended = ended.and_then(|()| interpreter.run(script, task, &mut reply));
    match ended {
        _ if meter.is_over() => Ended::Stopped(STOPPED.as_bytes().to_vec()),
        Ok(()) => Ended::Reply(reply),
        Err(failed) => match Ended::Error(text_of(failed)) {
            ended if ended.lacks_memory() => Ended::Stopped(TOO_LARGE.to_vec()),
            ended => ended,
        },
    }
}

fn text_of(failed: Failed) -> Vec<u8> {
    match failed {
        Failed::Script(text) => text,
        Failed::Lua(error) => format!("ERR {}", natives::plain_text(&error)).into_bytes(),
    }
}

/// Whether a text compiles as a script; see [`concord_engine::redis::Compiler`].
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
    let loaded = match *cost > LOAD_COST_MAX {
        true => Ended::Stopped(Vec::new()),
        false => {
            let meter = Meter::default();
            meter.begin(*cost, LOAD_COST_MAX);
            let ended = meter.counts().outside().lend(&mut Nobody, || {
                let _counting = clib::count_by(&meter);
                run_alone(&script, task, &meter)
            });
            *cost = meter.cost();
            ended
        }
    };
    match loaded {
        Ended::Reply(_) => Ok(declared.into_inner()),
        Ended::Error(text) => Err(text),
        Ended::Stopped(_) => {
            Err(b"ERR Error registering functions: ERR FUNCTION LOAD timeout".to_vec())
        }
    }
}
