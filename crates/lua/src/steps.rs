//! The cost of Lua's instructions. Most take about as long as each other; a few take as long as
//! what they act on: `..` copies its strings, and has C print its numbers, what passes any number
//! of values on copies these, and a key is looked for among all whose hash is the same. None of it
//! need be seen by the allocator: a string that is there already is found again.
//!
//! So Lua calls this before one instruction of 1 to 16, which is looked at, and stands for those
//! before it. How many these are is drawn anew each time, always from the same seed: all replicas
//! look at the same instructions of a script, and no loop has the length of the pattern. The
//! counting, and what comes with it ([`crate::sandbox::Shared::go_on`]), is done every
//! [`COST_STEP`] instructions.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use mlua::Lua;
use mlua::ffi::{LUA_MASKCOUNT, lua_Debug, lua_Hook, lua_gethook, lua_sethook};
use mlua::lua_State;

use crate::COST_STEP;
use crate::clib;
use crate::internals::{Next, next_instruction};

/// What it costs to print a number.
const NUMBER_COST: u64 = 30;
/// So many bytes that are put together, and looked for among the strings, cost one unit.
const BYTES_OF_ONE: u64 = 32;
/// So many values that are passed on cost one unit.
const VALUES_OF_ONE: u64 = 4;

thread_local! {
    /// mlua's own hook, which calls what was given to it.
    static REST: Cell<Option<lua_Hook>> = const { Cell::new(None) };
}

/// From now on instructions are counted, and what mlua's hook calls is called every [`COST_STEP`]
/// of them. That hook was set before. The first one that is looked at comes after
/// `first` of them ([`crate::meter::Counts::first_look`]).
pub(crate) fn count(lua: &Lua, first: u32) -> mlua::Result<()> {
    // SAFETY: it is called protected, and leaves nothing on the stack.
    unsafe {
        lua.exec_raw((), |state| {
            let own: lua_Hook = on_step;
            let before = lua_gethook(state).filter(|hook| !ptr::fn_addr_eq(*hook, own));
            if before.is_some() {
                REST.set(before);
            }
            lua_sethook(state, Some(on_step), LUA_MASKCOUNT, first as c_int);
        })
    }
}

/// Called before the instruction that is looked at.
unsafe extern "C-unwind" fn on_step(state: *mut lua_State, debug: *mut lua_Debug) {
    let Some(counts) = clib::counts() else { return };
    // SAFETY: Lua calls it, before it executes an instruction of the function on top. Nothing here
    // has a destructor, so that an error may leave it.
    unsafe {
        let looked = counts.look();
        lua_sethook(state, Some(on_step), LUA_MASKCOUNT, looked.next as c_int);
        let more = match next_instruction(state) {
            Next::Cheap => 0,
            Next::Searched(keys) => {
                counts.add_searched(keys, looked.stands_for);
                1
            }
            Next::Values(count) => count / VALUES_OF_ONE,
            Next::Joined { numbers, bytes } => numbers * NUMBER_COST + bytes / BYTES_OF_ONE,
        };
        if more > 0 {
            counts.add(more * u64::from(looked.stands_for));
        }
        let is_over = more > 0 && counts.is_over();
        if !looked.is_step && !is_over {
            return;
        }
        if looked.is_step {
            counts.add(COST_STEP.into());
        }
        if let Some(rest) = REST.get() {
            rest(state, debug);
        }
    }
}
