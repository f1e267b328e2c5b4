//! Libraries of functions: access to the prelude's data about them.

use concord_engine::functions::{Declared, FunctionFlags};
use mlua::{Function, Lua, Table, Value};

use crate::sandbox::{compiled, message_of};

/// Redis' name of the code of every library.
const LIBRARY_NAME: &str = "@user_function";

/// Executes the code of a library. Returns what it registered, or the error for the client.
pub(crate) fn load(
    lua: &Lua,
    code: &[u8],
    go: &Function,
    library: &Function,
) -> mlua::Result<Result<Table, Vec<u8>>> {
    let (registered, environment, loaded): (Table, Table, Function) = library.call(())?;
    let main = match compiled(lua, code, LIBRARY_NAME, environment) {
        Ok(main) => main,
        Err(text) => return Ok(Err(format!("ERR Error compiling function: {text}").into_bytes())),
    };
    let (ok, error): (bool, Value) = go.call(main)?;
    if !ok {
        let text = [b"ERR Error registering functions: ", &message_of(&error)[..]].concat();
        return Ok(Err(text));
    }
    loaded.call::<()>(())?;
    Ok(Ok(registered))
}

/// The registered functions.
pub(crate) fn declared(registered: &Table) -> mlua::Result<Vec<Declared>> {
    let mut all = Vec::new();
    for own in registered.sequence_values::<Table>() {
        let own = own?;
        let text = |field: &str| own.raw_get::<Option<mlua::String>>(field);
        let mut flags = FunctionFlags::default();
        for flag in own.raw_get::<Table>("flags")?.sequence_values::<mlua::String>() {
            flags = flags.with(&flag?.as_bytes());
        }
        all.push(Declared {
            name: text("function_name")?.map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
            description: text("description")?.map(|text| text.as_bytes().to_vec()),
            flags,
        });
    }
    Ok(all)
}

/// The function with this name.
pub(crate) fn find(registered: &Table, name: &[u8]) -> mlua::Result<Option<Function>> {
    for own in registered.sequence_values::<Table>() {
        let own = own?;
        if own.raw_get::<mlua::String>("function_name")?.as_bytes() == name {
            return own.raw_get("callback");
        }
    }
    Ok(None)
}
