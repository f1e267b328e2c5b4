//! Natives that get too many arguments at once.
//!
//! Each argument of a native that is no number is held by mlua while it runs, in a thread's stack
//! that has room for 8,000 values: one more ends the process, whoever catches what. `unpack` gives
//! fewer, but a script can add to them (`f('x', ...)`, within each other). So in front of each
//! native stands a function that counts, before mlua has them. It is a C function, since the frame
//! of a script's function that ends by calling one of Lua's would be gone, and with it the line
//! that an error names.

use std::ffi::c_int;

use mlua::ffi::{
    LUA_MULTRET, LUA_TBOOLEAN, LUA_TFUNCTION, LUA_TNIL, LUA_TNUMBER, LUA_TSTRING, LUA_TTABLE,
    lua_call, lua_gettop, lua_insert, lua_next, lua_pop, lua_pushcclosure, lua_pushinteger,
    lua_pushnil, lua_pushvalue, lua_rawset, lua_settop, lua_tointeger, lua_type, lua_upvalueindex,
    luaL_checktype, luaL_error,
};
use mlua::{Function, Lua, Table, lua_State};

/// Puts a function in front of each function in `table`, which takes at most `most` arguments that
/// are no numbers.
pub(crate) fn functions(lua: &Lua, table: &Table, most: c_int) -> mlua::Result<()> {
    // SAFETY: it is called protected, with the table as the only value on the stack and room for
    // three more beyond what every C function has. A field that is there may be assigned to while
    // `lua_next` goes through the fields.
    unsafe {
        lua.exec_raw((table,), |state| {
            lua_pushnil(state);
            while lua_next(state, 1) != 0 {
                if lua_type(state, -1) == LUA_TFUNCTION {
                    lua_pushvalue(state, -2);
                    lua_insert(state, -2);
                    lua_pushinteger(state, most.into());
                    lua_pushcclosure(state, counted, 2);
                    lua_rawset(state, 1);
                } else {
                    lua_pop(state, 1);
                }
            }
            lua_pop(state, 1);
        })
    }
}

/// Lua's `next`, for loops of scripts: an error where a key is an object.
pub(crate) fn next(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: it is a function of the interpreter's that checks its arguments.
    unsafe { lua.create_c_function(next_in_order) }
}

unsafe extern "C-unwind" fn next_in_order(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions. Nothing here has a destructor, so
    // that an error may leave it at any call. The stack has room for a key and its value.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        lua_settop(state, 2);
        if lua_next(state, 1) == 0 {
            lua_pushnil(state);
            return 1;
        }
        match lua_type(state, -2) {
            LUA_TSTRING | LUA_TNUMBER | LUA_TBOOLEAN => 2,
            _ => luaL_error(
                state,
                c"a table whose keys are tables or functions has no order".as_ptr(),
            ),
        }
    }
}

/// Calls its first upvalue, if there are not more arguments than its second one says.
unsafe extern "C-unwind" fn counted(state: *mut lua_State) -> c_int {
    // SAFETY: called by the interpreter as one of its functions, with two upvalues. Nothing here
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
        lua_pushvalue(state, lua_upvalueindex(1));
        lua_insert(state, 1);
        lua_call(state, count, LUA_MULTRET);
        lua_gettop(state)
    }
}
