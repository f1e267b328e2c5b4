//! FUNCTION and FCALL. The replicas have the libraries, and the gateway does not know them. So a
//! call may use any key and counts as one of all keys, as do commands that change or read
//! libraries: reads of them are ordered after writes of all keys.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::Instant;
use concord_engine::command::{ARGS_MAX, TOO_MANY_ARGS};
use concord_engine::functions::subcommand;
use concord_engine::table::UpperName;
use concord_engine::{Class as EngineClass, resp};

use crate::commands::{Failure, Handling, no_subcommand};
use crate::state::Core;
use crate::users::user::User;

/// The next step for a command.
pub(crate) enum Planned {
    /// It is encoded, and sent to the rack as a command of all keys.
    Rack(Class),
    /// It is answered here.
    Here(Vec<u8>),
}

impl Core {
    /// Encodes FUNCTION, FCALL or FCALL_RO, or answers it.
    pub(crate) fn plan_functions(
        &mut self,
        now: Instant,
        database: u8,
        user: &Arc<User>,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<Planned, Failure> {
        if args.len() + usize::from(!user.may_all()) > ARGS_MAX {
            return Err(TOO_MANY_ARGS.into());
        }
        let is_busy = self.client.is_busy(now);
        let class = match handling {
            Handling::Call { read_only: true } => Class::Read,
            Handling::Function => {
                let name = args.get(1).copied().unwrap_or_default();
                let sub = subcommand(name).ok_or_else(|| no_subcommand("function", name))?;
                if !sub.accepts(args.len()) {
                    let name = UpperName::of(name).lower();
                    let text =
                        format!("ERR wrong number of arguments for 'function|{name}' command");
                    return Err(text.into());
                }
                match sub.class {
                    Some(EngineClass::Read) => Class::Read,
                    Some(EngineClass::Write) => Class::Write,
                    None => return Ok(Planned::Here(answer(name, is_busy))),
                }
            }
            _ => Class::Write,
        };
        let is_call = matches!(handling, Handling::Call { .. });
        let rules = if is_call { self.users.rules_of(user)? } else { None };
        let (head, rest) = args.split_at(args.len().min(2));
        self.command.encode(0, head.iter().copied().chain(rules).chain(rest.iter().copied()));
        self.command.set_database(database);
        Ok(Planned::Rack(class))
    }
}

/// The answer to SCRIPT KILL and FUNCTION KILL, in Redis' words: a replica stops a script that has
/// changed nothing by itself, as soon as other clients are told that it is busy, and a script that
/// has changed something cannot be stopped.
pub(crate) fn nothing_to_kill(is_busy: bool) -> &'static str {
    match is_busy {
        false => "NOTBUSY No scripts in execution right now.",
        true => {
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You \
             can only wait until it ends"
        }
    }
}

/// FUNCTION HELP and KILL. There is never one to kill: what a replica executes ends by itself, or
/// is stopped by it.
fn answer(name: &[u8], is_busy: bool) -> Vec<u8> {
    let mut reply = Vec::new();
    if UpperName::of(name).is(b"KILL") {
        resp::error(&mut reply, nothing_to_kill(is_busy).as_bytes());
        return reply;
    }
    resp::array(&mut reply, HELP.len());
    HELP.iter().for_each(|line| resp::simple(&mut reply, line));
    reply
}

const HELP: [&str; 21] = [
    "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOAD [REPLACE] <FUNCTION CODE>",
    "    Loads a library; its first line is '#!lua name=<library name>'.",
    "DELETE <LIBRARY NAME>",
    "    Deletes a library.",
    "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
    "    Tells of libraries their names, their functions, and their code if WITHCODE is given.",
    "STATS",
    "    Tells how many libraries and functions there are.",
    "KILL",
    "    There is never a function to kill: one that runs for too long is stopped.",
    "FLUSH [ASYNC|SYNC]",
    "    Deletes all libraries.",
    "DUMP",
    "    Tells all libraries as a payload for FUNCTION RESTORE.",
    "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
    "    Loads the libraries of a payload. Those that are there are deleted (FLUSH), are kept, and none of the same",
    "    name may be among them (APPEND, which is the default), or are replaced by those of the same name",
    "    (REPLACE).",
    "HELP",
    "    Prints this help.",
];
