//! FLUSHDB, where the backend holds keys of several databases and deletes by name: it is asked for
//! the names first, and nothing else runs until they are deleted. Deleting them takes a server
//! about as long as FLUSHALL; a script that found and deleted them would be stopped where there are
//! millions.

use alloc::vec::Vec;

use super::{Pending, Shimmed, Work, step_of};
use crate::backend::{Backend, Submitted};
use crate::command::{Command, CommandBuf};
use crate::databases::{of_key, prefix};
use crate::{Class, Context, Progress, resp_scan};

/// Keys that are deleted by one command.
const UNLINKED_AT_ONCE: usize = 10_000;

impl<B: Backend> Shimmed<B> {
    pub(super) fn start_flush(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let mode = command.args().nth(1).unwrap_or(b"SYNC");
        let is_mode = mode.eq_ignore_ascii_case(b"SYNC") || mode.eq_ignore_ascii_case(b"ASYNC");
        if command.argc() > 2 || !is_mode {
            return self.refuse(context, class, b"ERR syntax error", reply);
        }
        if class == Class::Read {
            return self.refuse(context, class, b"ERR a write was submitted as a read", reply);
        }
        let database = command.database();
        let own = [&prefix(database)[..], b"*"].concat();
        let pattern = if database == 0 { b"*" } else { &own[..] };
        let mut asked = CommandBuf::new();
        let Ok(asked) = Command::parse(asked.encode(0, [&b"KEYS"[..], pattern])) else {
            return self.refuse(context, class, b"ERR syntax error", reply);
        };
        let step = step_of(Class::Read, None, core::slice::from_ref(&asked));
        let mut found = Vec::new();
        match self.backend.submit(context, &step, &mut found) {
            Submitted::Done(_) => self.go_on_flush(context, database, &found, reply),
            Submitted::Pending => {
                self.watches_pending = true;
                self.pending.push_back(Pending::of(Work::Naming(database), *context));
                Progress::Pending
            }
        }
    }

    /// The names are known.
    fn go_on_flush(
        &mut self,
        context: &Context,
        database: u8,
        found: &[u8],
        reply: &mut Vec<u8>,
    ) -> Progress {
        if let Some(error) = found.strip_prefix(b"-") {
            return self.refuse(context, Class::Write, error.trim_ascii_end(), reply);
        }
        let names = resp_scan::elements(found).filter_map(resp_scan::text);
        let own: Vec<&[u8]> = names.filter(|name| of_key(name) == database).collect();
        let unlink = |some: &[&[u8]]| {
            let args = [&b"UNLINK"[..]].into_iter().chain(some.iter().copied());
            CommandBuf::new().encode(0, args).to_vec()
        };
        let inner: Vec<Vec<u8>> = own.chunks(UNLINKED_AT_ONCE).map(unlink).collect();
        let inner: Vec<Command<'_>> = inner.iter().filter_map(|b| Command::parse(b).ok()).collect();
        let step = step_of(Class::Write, None, &inner);
        self.submit_step(context, &step, None, Work::Unlinked(database), reply)
    }

    /// The backend has told the names; the reply, if there is one by now.
    pub(super) fn complete_naming(
        &mut self,
        context: &Context,
        database: u8,
        found: &[u8],
    ) -> Option<Vec<u8>> {
        self.watches_pending = false;
        let mut reply = Vec::new();
        let progress = self.go_on_flush(context, database, found, &mut reply);
        (progress == Progress::Done).then_some(reply)
    }
}
