//! Commands about the server, which the gateway answers without the rack: CONFIG, COMMAND, TIME.

use alloc::string::ToString;

use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::commands::{Failure, no_subcommand};
use crate::keys::{Keys, keys};
use crate::state::{Core, Turn};

pub(crate) fn time(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    let unix_ms = turn.now.unix_ms;
    turn.connection.answer(|out| {
        resp::array(out, 2);
        resp::bulk(out, (unix_ms / 1_000).to_string().as_bytes());
        resp::bulk(out, (unix_ms % 1_000 * 1_000).to_string().as_bytes());
    });
    Ok(())
}

/// COMMAND [COUNT | INFO | DOCS | LIST | GETKEYS]: the engine's table.
pub(crate) fn command(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let (table, resp3) = (&core.setup.table, turn.connection.resp3);
    let Some(sub) = args.get(1) else {
        turn.connection.answer(|out| table.encode_all(out, resp3));
        return Ok(());
    };
    let names = &args[2..];
    match UpperName::of(sub).bytes() {
        b"COUNT" => turn.connection.answer(|out| table.encode_count(out)),
        b"INFO" => turn.connection.answer(|out| table.encode_info(out, names, resp3)),
        b"DOCS" => turn.connection.answer(|out| table.encode_docs(out, names, resp3)),
        b"LIST" => turn.connection.answer(|out| {
            let names = || table.specs().iter().filter(|spec| !spec.name.contains('|'));
            resp::array(out, names().count());
            names().for_each(|spec| resp::bulk(out, spec.name.as_bytes()));
        }),
        b"GETKEYS" if !names.is_empty() => {
            let name = UpperName::of(names[0]);
            let Some(spec) = table.find(name.bytes()) else {
                return Err("ERR Invalid command specified".into());
            };
            if !spec.accepts(names.len()) {
                return Err("ERR Invalid number of arguments specified for command".into());
            }
            match keys(spec, name.bytes(), names) {
                Keys::One(key) => turn.connection.answer(|out| {
                    resp::array(out, 1);
                    resp::bulk(out, names[key as usize]);
                }),
                Keys::Several(at) | Keys::AndOthers(at) => turn.connection.answer(|out| {
                    resp::array(out, at.len());
                    at.iter().for_each(|at| resp::bulk(out, names[*at]));
                }),
                Keys::None | Keys::BadNumber | Keys::Unsupported => {
                    return Err("ERR The command has no key arguments".into());
                }
            }
        }
        _ => return Err(no_subcommand("command", sub)),
    }
    Ok(())
}
