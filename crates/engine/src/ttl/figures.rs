//! `CONCORD.INFO`: what the backend says of itself, and what is known of times to live.

use alloc::vec::Vec;

use super::{INFO_COMMAND, Shimmed, Work, step_of};
use crate::backend::Backend;
use crate::command::{Command, CommandBuf};
use crate::databases::ALL;
use crate::info::{self, Figures};
use crate::{Class, Context, Progress, resp};

impl<B: Backend> Shimmed<B> {
    pub(super) fn start_info(&mut self, context: &Context, reply: &mut Vec<u8>) -> Progress {
        let (mut info, mut size) = (CommandBuf::new(), CommandBuf::new());
        size.encode(0, [&b"DBSIZE"[..]]);
        let asked = [info.encode(0, [&b"INFO"[..]]), size.set_database(ALL)];
        let commands: Vec<Command<'_>> =
            asked.iter().filter_map(|bytes| Command::parse(bytes).ok()).collect();
        // The server's INFO is text of its own form in RESP3.
        let context = Context { resp3: false, ..*context };
        let step = step_of(Class::Read, None, &commands);
        self.submit_step(&context, &step, None, Work::Info, reply)
    }

    /// Puts the figures in the place of the backend's replies.
    pub(super) fn settle_info(&self, context: &Context, reply: &mut Vec<u8>, start: usize) {
        let figures = Figures {
            deadlines_bytes: self.deadlines.memory_bytes(),
            memory_bytes_max: self.backend.memory_bytes_max(),
            expires: self.deadlines.count(),
            average_ttl_ms: self.deadlines.average_ms(context.now_ms),
            expired: self.expired,
            of_databases: self.deadlines.of_databases(context.now_ms),
        };
        let whole = info::reply(&figures, &reply[start..]);
        reply.truncate(start);
        match whole {
            Some(whole) => reply.extend_from_slice(&whole),
            None => {
                let name = core::str::from_utf8(INFO_COMMAND).unwrap_or_default();
                let text = alloc::format!("ERR {name}: the engine did not tell its figures");
                resp::error(reply, text.as_bytes());
            }
        }
    }
}
