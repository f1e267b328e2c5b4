//! MULTI and EXEC, where all commands have one and the same key: one write of the internal command
//! `CONCORD.EXEC`, whose arguments are the encoded commands.

use alloc::boxed::Box;
use alloc::format;

use concord_client::Class;
use concord_core::hash;
use concord_engine::ttl::EXEC_COMMAND;
use concord_engine::{Command, resp};
use concord_wire::{COMMAND_BYTES_MAX, Sink};

use crate::commands::{Failure, Handling};
use crate::connection::{Multi, SlotState, Subject};
use crate::state::{Core, Flow, Turn};

/// Most commands of a transaction.
const COMMANDS_MAX: usize = 10_000;
const ONE_KEY: &str = "CROSSKEY Concord supports transactions on one key only";

impl Core {
    /// A command between MULTI and EXEC.
    pub(crate) fn in_multi(
        &mut self,
        turn: &mut Turn<'_>,
        index: usize,
        handling: Handling,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        match handling {
            Handling::Exec => return self.exec(turn, sink),
            Handling::Discard => {
                turn.connection.multi = None;
                turn.connection.ok();
                return Ok(Flow::Went);
            }
            Handling::Multi => {
                // As in Redis, this error does not spoil the transaction.
                turn.connection.refuse("ERR MULTI calls can not be nested");
                return Ok(Flow::Went);
            }
            Handling::Watch => {
                turn.connection.refuse("ERR WATCH inside MULTI is not allowed");
                return Ok(Flow::Went);
            }
            Handling::Script { .. } => {
                return Err("ERR Concord does not support scripts inside MULTI".into());
            }
            Handling::OneKey(..) | Handling::Keys(_) | Handling::Split(_) | Handling::Container => {
            }
            Handling::Refused(refusal) => {
                return Err(refusal.text(&self.commands.entry(index).name));
            }
            Handling::AllKeys(_)
            | Handling::Cursor
            | Handling::Explain
            | Handling::Info
            | Handling::Local(_)
            | Handling::Always(_) => {
                let name = &self.commands.entry(index).name;
                return Err(format!("{ONE_KEY}: '{name}' has none").into());
            }
        }
        self.plan(index, handling, args)?;
        let encoded = self.command.bytes();
        let key = Command::parse(encoded).ok().and_then(|c| c.key()).unwrap_or_default();
        let Some(multi) = &mut turn.connection.multi else { return Ok(Flow::Went) };
        if multi.commands.is_empty() {
            multi.key = key.to_vec();
        } else if multi.key != key {
            return Err(ONE_KEY.into());
        }
        multi.bytes += encoded.len() + 4;
        if multi.commands.len() >= COMMANDS_MAX || multi.bytes > COMMAND_BYTES_MAX - 64 {
            return Err("ERR the transaction is larger than 1 MiB (Concord's limit)".into());
        }
        multi.commands.push(encoded.to_vec());
        turn.connection.answer(|out| resp::simple(out, "QUEUED"));
        Ok(Flow::Went)
    }

    fn exec(&mut self, turn: &mut Turn<'_>, sink: &mut impl Sink) -> Result<Flow, Failure> {
        let Some(multi) = turn.connection.multi.take() else { return Ok(Flow::Went) };
        if multi.failed {
            return Err("EXECABORT Transaction discarded because of previous errors.".into());
        }
        if multi.commands.is_empty() {
            turn.connection.answer(|out| resp::array(out, 0));
            return Ok(Flow::Went);
        }
        let Multi { commands, key, .. } = &*multi;
        let args = [EXEC_COMMAND].into_iter().chain(commands.iter().map(|c| c.as_slice()));
        self.command.encode(0, args);
        let subject = Subject::Object(hash::object_id(key));
        let flow = self.submit(turn, Class::Write, subject, SlotState::Waiting, sink);
        if flow == Flow::Waits {
            turn.connection.multi = Some(multi);
        }
        Ok(flow)
    }
}

/// A request was refused before it was a command: an open transaction must not be executed.
pub(crate) fn spoil(multi: &mut Option<Box<Multi>>) {
    if let Some(multi) = multi {
        multi.failed = true;
    }
}
