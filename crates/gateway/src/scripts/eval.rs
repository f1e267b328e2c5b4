//! Scripts. The gateway remembers their text, so that replicas depend on no cache: EVALSHA becomes
//! EVAL. After a restart of the gateway clients get NOSCRIPT, and send the text again.

use alloc::format;
use alloc::sync::Arc;

use concord_core::hash;
use concord_engine::command::{ARGS_MAX, TOO_MANY_ARGS};
use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::commands::{Failure, no_subcommand};
use crate::connection::Subject;
use crate::scripts::Scripts;
use crate::scripts::functions::nothing_to_kill;
use crate::state::{CommandContext, Core};
use crate::users::user::User;

impl Core {
    /// Encodes EVAL script numkeys key ..., with the rules of a user who may not do everything. A
    /// script that may touch other keys than its only one concerns all of them.
    pub(crate) fn encode_script(
        &mut self,
        database: u8,
        user: &Arc<User>,
        by_sha: bool,
        read_only: bool,
        args: &[&[u8]],
    ) -> Result<Subject, Failure> {
        let Some(numkeys) = resp::number(args[2]) else {
            return Err("ERR value is not an integer or out of range".into());
        };
        if numkeys < 0 {
            return Err("ERR Number of keys can't be negative".into());
        }
        let Some(keys) = usize::try_from(numkeys).ok().and_then(|n| args[3..].get(..n)) else {
            return Err("ERR Number of keys can't be greater than number of args".into());
        };
        let only = keys.split_first().filter(|(first, more)| more.iter().all(|key| key == *first));
        if args.len() + usize::from(!user.may_all()) > ARGS_MAX {
            return Err(TOO_MANY_ARGS.into());
        }
        let sha;
        let name_of_script = if by_sha {
            args[1]
        } else {
            sha = self.scripts.remember(args[1], &self.setup.table);
            &sha[..]
        };
        let found = self.scripts.get(name_of_script);
        let (script, is_local) = match found {
            Some(found) => (found.text.as_slice(), found.is_local),
            None if by_sha => return Err("NOSCRIPT No matching script. Please use EVAL.".into()),
            None => (args[1], false), // Too long to be remembered.
        };
        let only = only.filter(|_| is_local);
        let name: &[u8] = if read_only { b"EVAL_RO" } else { b"EVAL" };
        let rules = self.users.rules_of(user)?;
        let first_key = if rules.is_some() { 4 } else { 3 };
        let args = [name, script].into_iter().chain(rules).chain(args[2..].iter().copied());
        self.command.encode(if only.is_some() { first_key } else { 0 }, args);
        self.command.set_database(database);
        Ok(only.map_or(Subject::AllKeys, |(first, _)| Subject::Object(hash::object_id(first))))
    }
}

const HELP: [&str; 13] = [
    "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "EXISTS <sha1> [<sha1> ...]",
    "    Tells of each script whether this gateway knows it.",
    "FLUSH [ASYNC|SYNC]",
    "    Forgets this gateway's scripts.",
    "KILL",
    "    There is never a script to kill: one that runs for too long and has changed nothing is stopped.",
    "LOAD <script>",
    "    Has this gateway remember a script, and tells its SHA1.",
    "DEBUG (YES|SYNC|NO)",
    "    Concord does not support it.",
    "HELP",
    "    Prints this help.",
];

/// SCRIPT LOAD, EXISTS, FLUSH, KILL, HELP.
pub(crate) fn script(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"LOAD", [script]) => {
            let sha = core.scripts.remember(script, &core.setup.table);
            call.connection.answer(|out| resp::bulk(out, &sha));
        }
        (b"EXISTS", shas @ [_, ..]) => {
            let scripts = &core.scripts;
            call.connection.answer(|out| {
                resp::array(out, shas.len());
                shas.iter()
                    .for_each(|sha| resp::integer(out, i64::from(scripts.get(sha).is_some())));
            });
        }
        (b"FLUSH", how @ ([] | [_])) => {
            let is_way = |how: &&[u8]| {
                how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC")
            };
            if !how.iter().all(is_way) {
                return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
            }
            core.scripts = Scripts::default();
            call.connection.ok();
        }
        (b"KILL", []) => return Err(nothing_to_kill(core.client.is_busy(call.now.instant)).into()),
        (b"HELP", []) => {
            call.connection.answer(|out| {
                resp::array(out, HELP.len());
                HELP.iter().for_each(|line| resp::simple(out, line));
            });
        }
        (b"LOAD" | b"EXISTS" | b"FLUSH" | b"KILL" | b"HELP", _) => {
            let sub = UpperName::of(args[1]).lower();
            let text = format!("ERR wrong number of arguments for 'script|{sub}' command");
            return Err(text.into());
        }
        _ => return Err(no_subcommand("script", args[1])),
    }
    Ok(())
}
