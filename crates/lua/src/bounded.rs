//! Wrappers of native functions: they bound the arguments, and count the cost of Lua's own
//! functions.
//!
//! While a native runs, mlua holds each of its arguments that is not a number in the stack of a
//! thread, which has room for 8,000 values: one more ends the process, and no error handler helps.
//! `unpack` returns fewer, but a script can add to them (`f('x', ...)`, nested). So each native is
//! wrapped in a function that counts the arguments before mlua holds them. The wrapper is a C
//! function: with a Lua function that ends in a tail call, the frame of the caller would be lost,
//! and with it the line that an error names.

use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::ffi::{
    LUA_GCSTEP, LUA_MULTRET, LUA_OK, LUA_TBOOLEAN, LUA_TFUNCTION, LUA_TNIL, LUA_TNUMBER,
    LUA_TSTRING, LUA_TTABLE, lua_CFunction, lua_call, lua_gc, lua_gettop, lua_insert, lua_lessthan,
    lua_newuserdata, lua_next, lua_objlen, lua_pcall, lua_pop, lua_pushboolean, lua_pushcclosure,
    lua_pushcfunction, lua_pushinteger, lua_pushlightuserdata, lua_pushnil, lua_pushvalue,
    lua_rawget, lua_rawset, lua_remove, lua_replace, lua_settop, lua_toboolean, lua_tocfunction,
    lua_tointeger, lua_touserdata, lua_type, lua_upvalueindex, luaL_checkany, luaL_checktype,
    luaL_error,
};
use mlua::{Function, Lua, Table, lua_State};

use crate::internals::{Walk, cost_of_next, keys_at_argument};
use crate::meter::{Counts, Meter};

/// The cost of a call of one of Lua's own functions, without that of its bytes.
const CALL_COST: u64 = 8;
/// The number of produced bytes that cost one unit.
const BYTES_OF_ONE: u64 = 8;
/// The cost of a step of the collector, which visits about 512 KiB, and the size that it is told.
pub(crate) const COLLECT_STEP_COST: u64 = 50_000;
const COLLECT_STEP_KIB: c_int = 256;
/// The cost of a comparison while a table is sorted.
const COMPARED_COST: u64 = 4;

/// The parts of the interpreter that wrappers need: the counts, and the function that collects
/// garbage.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    meter: Meter,
    rest: Function,
}

impl Front {
    pub(crate) fn new(meter: &Meter, rest: &Function) -> Front {
        Front { meter: meter.clone(), rest: rest.clone() }
    }
}

/// Collects garbage if there is much, before a native makes more.
///
/// # Safety
/// The upvalues are the counts, and behind them the function that collects.
unsafe fn rest(state: *mut lua_State, upvalue: c_int) {
    // SAFETY: as the caller says. One slot beyond the arguments is used, of the 20 that a function
    // always has. Nothing here has a destructor.
    unsafe {
        if counts_of(state, upvalue).is_full() {
            lua_pushvalue(state, lua_upvalueindex(upvalue + 1));
            lua_call(state, 0, 0);
        }
    }
}

/// Wraps each function in `table`, so that it takes at most `most` arguments that are not numbers.
pub(crate) fn functions(lua: &Lua, table: &Table, most: c_int, front: &Front) -> mlua::Result<()> {
    let counts: *const Counts = front.meter.counts();
    // SAFETY: it is called protected, with the table as the only value on the stack and room for
    // more than is pushed. A field that is there may be assigned to while `lua_next` goes through
    // the fields.
    unsafe {
        lua.exec_raw((table, &front.rest), |state| {
            lua_pushnil(state);
            while lua_next(state, 1) != 0 {
                if lua_type(state, -1) == LUA_TFUNCTION {
                    lua_pushvalue(state, -2);
                    lua_insert(state, -2);
                    lua_pushinteger(state, most.into());
                    lua_pushlightuserdata(state, counts.cast_mut().cast());
                    lua_pushvalue(state, 2);
                    lua_pushcclosure(state, counted, 4);
                    lua_rawset(state, 1);
                } else {
                    lua_pop(state, 1);
                }
            }
            lua_settop(state, 0);
        })
    }
}

/// Counts the bytes that Lua's own functions in `string`, `table` and `math`, and `tonumber` and
/// `tostring`, produce.
pub(crate) fn charge(lua: &Lua, meter: &Meter, rest: &Function) -> mlua::Result<()> {
    let counts: *const Counts = meter.counts();
    let globals = lua.globals();
    for name in ["string", "table", "math"] {
        let table: Table = globals.raw_get(name)?;
        // SAFETY: it is called protected, with the table as the only value on the stack and room
        // for three more beyond what every C function has. A field that is there may be assigned to
        // while `lua_next` goes through the fields.
        unsafe {
            lua.exec_raw::<()>((table, rest), |state| {
                lua_pushnil(state);
                while lua_next(state, 1) != 0 {
                    if let Some(own) = lua_tocfunction(state, -1) {
                        lua_pop(state, 1);
                        lua_pushvalue(state, -1);
                        push_charged(state, own, counts, 2);
                        lua_rawset(state, 1);
                    } else {
                        lua_pop(state, 1);
                    }
                }
                lua_settop(state, 0);
            })?;
        }
    }
    for name in ["tonumber", "tostring"] {
        let function: Function = globals.raw_get(name)?;
        // SAFETY: as above; what is not one of Lua's own functions is given back as it is.
        let charged: Function = unsafe {
            lua.exec_raw((rest, function), |state| {
                if let Some(own) = lua_tocfunction(state, -1) {
                    push_charged(state, own, counts, 1);
                    lua_insert(state, 1);
                    lua_settop(state, 1);
                }
            })?
        };
        globals.raw_set(name, charged)?;
    }
    Ok(())
}

/// # Safety
/// There is room for three values, and what collects garbage is at `rest`.
unsafe fn push_charged(
    state: *mut lua_State,
    own: lua_CFunction,
    counts: *const Counts,
    rest: c_int,
) {
    // SAFETY: as the caller says.
    unsafe {
        lua_pushlightuserdata(state, own as *mut c_void);
        lua_pushlightuserdata(state, counts.cast_mut().cast());
        lua_pushvalue(state, rest);
        lua_pushcclosure(state, charged, 3);
    }
}

/// # Safety
/// The upvalue is the counts of the interpreter's meter.
unsafe fn counts_of<'a>(state: *mut lua_State, upvalue: c_int) -> &'a Counts {
    // SAFETY: as the caller says; they live as long as the interpreter is used.
    unsafe { &*lua_touserdata(state, lua_upvalueindex(upvalue)).cast::<Counts>() }
}

/// Calls one of Lua's own functions in its own frame, so that errors name it and the line of its
/// caller.
unsafe extern "C-unwind" fn charged(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions, with three upvalues. Nothing here
    // has a destructor, so that an error may leave it at any call. The function has no upvalues of
    // its own.
    unsafe {
        let counts = counts_of(state, 2);
        rest(state, 2);
        let own = lua_touserdata(state, lua_upvalueindex(1));
        let own = std::mem::transmute::<*mut c_void, lua_CFunction>(own);
        let results = own(state);
        let mut bytes = 0;
        for at in 1..=results {
            if lua_type(state, -at) == LUA_TSTRING {
                bytes += lua_objlen(state, -at) as u64;
            }
        }
        counts.add(CALL_COST + bytes / BYTES_OF_ONE);
        if counts.is_over() {
            return luaL_error(state, c"the script ran for too long".as_ptr());
        }
        results
    }
}

/// Lua's `pcall` and `xpcall`, which say first how it went. Lua's own put that in front of what was
/// returned, and there need be no room for one more: up to 7,000 values are. (Lua has a few places
/// to spare behind all others, so that nothing is overwritten; but its own checks see it.)
pub(crate) fn protected(lua: &Lua, handles: bool) -> mlua::Result<Function> {
    let function = if handles { xpcall } else { pcall };
    // SAFETY: it is called protected, and there is room for a value.
    unsafe { lua.exec_raw((), |state| lua_pushcfunction(state, function)) }
}

unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions. Two slots beyond the arguments are
    // used, of the 20 that a function always has.
    unsafe {
        luaL_checkany(state, 1);
        lua_pushboolean(state, 1);
        lua_insert(state, 1);
        let failed = lua_pcall(state, lua_gettop(state) - 2, LUA_MULTRET, 0);
        tell(state, failed)
    }
}

unsafe extern "C-unwind" fn xpcall(state: *mut lua_State) -> c_int {
    // SAFETY: as above. The handler is the second value while the function, the third, is called.
    unsafe {
        luaL_checkany(state, 2);
        lua_settop(state, 2);
        lua_insert(state, 1);
        lua_pushboolean(state, 1);
        lua_insert(state, 1);
        let failed = lua_pcall(state, 0, LUA_MULTRET, 2);
        lua_remove(state, 2);
        tell(state, failed)
    }
}

/// # Safety
/// The first value says that all went well; if it has failed, the second one is the error, and the
/// last.
unsafe fn tell(state: *mut lua_State, failed: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if failed != LUA_OK {
            lua_pushboolean(state, 0);
            lua_replace(state, 1);
        }
        lua_gettop(state)
    }
}

/// Runs a step of Lua's collector. Returns whether the collection is complete.
pub(crate) fn collect_step(lua: &Lua) -> mlua::Result<bool> {
    // SAFETY: it is called protected, and there is room for one value.
    unsafe {
        lua.exec_raw((), |state| {
            let is_done = lua_gc(state, LUA_GCSTEP, COLLECT_STEP_KIB);
            lua_pushboolean(state, is_done);
        })
    }
}

/// Lua's `next`. With `ordered`, for loops of scripts, it fails if a key is an object.
pub(crate) fn next(lua: &Lua, meter: &Meter, ordered: bool) -> mlua::Result<Function> {
    let counts: *const Counts = meter.counts();
    // SAFETY: it is called protected, and there is room for three values. The walk is plain data.
    unsafe {
        lua.exec_raw((), |state| {
            lua_pushlightuserdata(state, counts.cast_mut().cast());
            lua_pushboolean(state, ordered.into());
            ptr::write(lua_newuserdata(state, size_of::<Walk>()).cast(), Walk::NONE);
            lua_pushcclosure(state, next_counted, 3);
        })
    }
}

unsafe extern "C-unwind" fn next_counted(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions, with three upvalues. Nothing here
    // has a destructor, so that an error may leave it at any call. The stack has room for a key and
    // its value.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        lua_settop(state, 2);
        let walk = &mut *lua_touserdata(state, lua_upvalueindex(3)).cast::<Walk>();
        counts_of(state, 1).add(cost_of_next(state, walk));
        if lua_next(state, 1) == 0 {
            lua_pushnil(state);
            return 1;
        }
        match lua_type(state, -2) {
            LUA_TSTRING | LUA_TNUMBER | LUA_TBOOLEAN => 2,
            _ if lua_toboolean(state, lua_upvalueindex(2)) == 0 => 2,
            _ => luaL_error(
                state,
                c"a table whose keys are tables or functions has no order".as_ptr(),
            ),
        }
    }
}

/// Lua's `rawget`, or `rawset`.
pub(crate) fn raw(lua: &Lua, meter: &Meter, sets: bool) -> mlua::Result<Function> {
    let counts: *const Counts = meter.counts();
    // SAFETY: it is called protected, and there is room for a value.
    unsafe {
        lua.exec_raw((), |state| {
            lua_pushlightuserdata(state, counts.cast_mut().cast());
            lua_pushcclosure(state, if sets { rawset } else { rawget }, 1);
        })
    }
}

unsafe extern "C-unwind" fn rawget(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions, with an upvalue. Nothing here has
    // a destructor, so that an error may leave it.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        luaL_checkany(state, 2);
        lua_settop(state, 2);
        count_key(state);
        lua_rawget(state, 1);
        1
    }
}

unsafe extern "C-unwind" fn rawset(state: *mut lua_State) -> c_int {
    // SAFETY: as above.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        luaL_checkany(state, 2);
        luaL_checkany(state, 3);
        lua_settop(state, 3);
        count_key(state);
        lua_rawset(state, 1);
        1
    }
}

/// # Safety
/// The arguments are a table and a key, and the upvalue is the counts.
unsafe fn count_key(state: *mut lua_State) {
    // SAFETY: as the caller says.
    unsafe {
        let keys = keys_at_argument(state);
        if keys > 0 {
            counts_of(state, 1).add_searched(keys, 1);
        }
    }
}

/// Lua's comparison, for sorting many values within one call of Lua's own function.
pub(crate) fn less(lua: &Lua, meter: &Meter) -> mlua::Result<Function> {
    let counts: *const Counts = meter.counts();
    // SAFETY: it is called protected, and there is room for a value.
    unsafe {
        lua.exec_raw((), |state| {
            lua_pushlightuserdata(state, counts.cast_mut().cast());
            lua_pushcclosure(state, less_counted, 1);
        })
    }
}

unsafe extern "C-unwind" fn less_counted(state: *mut lua_State) -> c_int {
    // SAFETY: as above; it is called with two values.
    unsafe {
        lua_settop(state, 2);
        counts_of(state, 1).add(COMPARED_COST);
        let is_less = lua_lessthan(state, 1, 2);
        lua_pushboolean(state, is_less);
        1
    }
}

/// Calls its first upvalue, unless there are more arguments than its second upvalue permits.
unsafe extern "C-unwind" fn counted(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions, with four upvalues. Nothing here
    // has a destructor, so that an error may leave it at any call. One slot beyond the arguments is
    // used, of the 20 that a function always has.
    unsafe {
        let (count, most) = (lua_gettop(state), lua_tointeger(state, lua_upvalueindex(2)));
        if i64::from(count) > most {
            let mut held = 0;
            for at in 1..=count {
                let is_held = !matches!(lua_type(state, at), LUA_TNIL | LUA_TBOOLEAN | LUA_TNUMBER);
                held += i64::from(is_held);
            }
            if held > most {
                return luaL_error(state, c"too many arguments".as_ptr());
            }
        }
        rest(state, 3);
        lua_pushvalue(state, lua_upvalueindex(1));
        lua_insert(state, 1);
        lua_call(state, count, LUA_MULTRET);
        lua_gettop(state)
    }
}
