//! MULTI and EXEC: one request of the internal command `CONCORD.EXEC`, whose arguments are the
//! encoded commands. It names the keys of all of them; a read if none of them writes.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use concord_client::Class;
use concord_engine::table::UpperName;
use concord_engine::texts::{self, EXPANDED_BYTES_MAX};
use concord_engine::ttl::{DIGEST_COMMAND, EXEC_COMMAND, REPLY_COMMAND};
use concord_engine::{Command, resp, several};
use concord_wire::{COMMAND_BYTES_MAX, Sink};

use crate::commands::dispatch::handler_of;
use crate::commands::key_names::Shown;
use crate::commands::{Failure, Handling, Local};
use crate::connection::subscriptions::PubSub;
use crate::connection::{Connection, Multi, Slot, SlotState, Subject, Wait};
use crate::scripts::functions::Planned;
use crate::state::{CommandContext, Core, Flow};

/// The beginning of the error about an unknown script.
const NO_SCRIPT: &str = "NOSCRIPT";
/// The largest number of commands of a transaction.
const COMMANDS_MAX: usize = 10_000;
/// The bytes of all transactions together that are larger than [`SHARE_BYTES`] and wait for their
/// EXEC; and the bytes that a connection may have beside that.
const QUEUED_BYTES_MAX: usize = 256 << 20;
const SHARE_BYTES: usize = 1 << 20;
const TOO_LARGE_TRANSACTION: &str = "ERR the transaction is larger than 64 MiB (Concord's limit)";
const TOO_MANY_COMMANDS: &str =
    "ERR the transaction has more than 10000 commands (Concord's limit)";
const NO_ROOM: &str = "ERR large transactions of all clients take 256 MiB at this gateway \
                       (Concord's limit); try again when others have ended";
/// The number of keys of a transaction that are distinguished; with more it concerns all keys.
const KEYS_MAX: usize = 16;

impl Core {
    /// Handles a command between MULTI and EXEC.
    pub(crate) fn in_multi(
        &mut self,
        call: &mut CommandContext<'_>,
        index: usize,
        handling: Handling,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let database = call.connection.database;
        match handling {
            Handling::Exec => return self.exec(call, sink),
            Handling::Discard => {
                call.connection.end_multi();
                call.connection.watch.end();
                call.connection.ok();
                return Ok(Flow::Went);
            }
            Handling::Multi => {
                // As in Redis, this error does not abort the transaction.
                call.connection.refuse("ERR MULTI calls can not be nested");
                return Ok(Flow::Went);
            }
            Handling::Watch => {
                call.connection.refuse("ERR WATCH inside MULTI is not allowed");
                return Ok(Flow::Went);
            }
            Handling::Script { by_sha, read_only } => {
                let user = call.connection.user.clone();
                let subject = match self.encode_script(database, &user, by_sha, read_only, args) {
                    // As in Redis, which looks for the script when EXEC is executed: the other
                    // commands are executed.
                    Err(failure) if failure.starts_with(NO_SCRIPT) => {
                        return self.queue_error(call, &failure);
                    }
                    subject => subject?,
                };
                let class = if read_only { Class::Read } else { Class::Write };
                return self.queue(call, class, Some(subject));
            }
            Handling::Local(Local::Monitor) => {
                return Err("ERR Command not allowed inside a transaction".into());
            }
            Handling::Call { .. } | Handling::Function => {
                let user = call.connection.user.clone();
                return match self.plan_functions(
                    call.now.instant,
                    database,
                    &user,
                    handling,
                    args,
                )? {
                    Planned::Rack(class) => self.queue(call, class, Some(Subject::AllKeys)),
                    Planned::Here(reply) => {
                        self.command.encode(0, [REPLY_COMMAND, &reply]);
                        self.queue(call, Class::Read, None)
                    }
                };
            }
            Handling::Local(local) => {
                let reply = self.answer_now(call, local, args);
                self.command.encode(0, [REPLY_COMMAND, &reply]);
                return self.queue(call, Class::Read, None);
            }
            Handling::Wait => {
                let Some(reply) = self.wait_now(call, args, sink) else { return Ok(Flow::Waits) };
                self.command.encode(0, [REPLY_COMMAND, &reply]);
                return self.queue(call, Class::Read, None);
            }
            Handling::PubSub(PubSub::Publish(sort)) => {
                let reply = self.queue_publish(call, sort, args);
                self.command.encode(0, [REPLY_COMMAND, &reply]);
                return self.queue(call, Class::Read, None);
            }
            Handling::OneKey(..)
            | Handling::Keys(_)
            | Handling::Several(_)
            | Handling::Container
            | Handling::Blocks(_)
            | Handling::AllKeys(_)
            | Handling::Cursor => {}
            Handling::Refused(_) if is_never(args) => {
                return Err("ERR Command not allowed inside a transaction".into());
            }
            Handling::Refused(refusal) => {
                return Err(refusal.text(&self.commands.entry(index).name));
            }
            Handling::Info => {
                let reply = self.info_now(call, args);
                self.command.encode(0, [REPLY_COMMAND, &reply]);
                return self.queue(call, Class::Read, None);
            }
            Handling::Explain | Handling::PubSub(_) | Handling::Always(_) => {
                let name = &self.commands.entry(index).name;
                return Err(format!("ERR Concord does not support '{name}' inside MULTI").into());
            }
        }
        let (class, subject) = self.plan(database, index, handling, args)?;
        self.queue(call, class, Some(subject))
    }

    /// Queues a command that is answered with an error when EXEC is executed.
    pub(crate) fn queue_error(
        &mut self,
        call: &mut CommandContext<'_>,
        failure: &Failure,
    ) -> Result<Flow, Failure> {
        let mut reply = Vec::new();
        resp::error(&mut reply, failure.as_bytes());
        self.command.encode(0, [REPLY_COMMAND, &reply]);
        call.shown = Shown::AsIs;
        self.queue(call, Class::Read, None)
    }

    /// WATCH: reads the digests of its keys.
    pub(crate) fn watch(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let keys = &args[1..];
        let Some((watching, bytes)) = call.connection.watch.begin(keys) else {
            return Err(
                "ERR the keys that are watched take more than 64 KiB (Concord's limit)".into()
            );
        };
        self.command.encode(0, [DIGEST_COMMAND].into_iter().chain(keys.iter().copied()));
        let subject = Subject::of_keys(keys.iter().copied());
        let state = SlotState::Watching(Box::new(watching));
        let flow = self.submit(call, Class::Read, subject, state, sink);
        let is_asked = |slot: &Slot| matches!(slot.state, SlotState::Watching(_));
        match flow == Flow::Went && call.connection.slots.back().is_some_and(is_asked) {
            true => call.connection.watch.sent(bytes),
            // It was refused here, so that it is not known what it would have compared.
            false if flow == Flow::Went => call.connection.watch.refused(),
            false => {}
        }
        Ok(flow)
    }

    /// Queues the command that is encoded in `self.command`. The subject is `None` if it concerns
    /// no key.
    fn queue(
        &mut self,
        call: &mut CommandContext<'_>,
        class: Class,
        subject: Option<Subject>,
    ) -> Result<Flow, Failure> {
        let encoded = self.command.bytes();
        let Some(multi) = &mut call.connection.multi else { return Ok(Flow::Went) };
        if multi.failed {
            // It will never be executed: none of its contents are kept.
            call.connection.answer(|out| resp::simple(out, "QUEUED"));
            return Ok(Flow::Went);
        }
        multi.full_bytes += encoded.len();
        if multi.full_bytes > EXPANDED_BYTES_MAX {
            return Err(
                "ERR the scripts of the transaction are larger than 256 MiB (Concord's limit)"
                    .into(),
            );
        }
        let shared = share(&mut multi.texts, encoded);
        let encoded = shared.as_deref().unwrap_or(encoded);
        let before = multi.bytes;
        multi.bytes += encoded.len() + 4;
        // This is checked only now and then, since it examines all other connections.
        if before / SHARE_BYTES != multi.bytes / SHARE_BYTES {
            let others = call.others.values().filter_map(|other| other.multi.as_ref());
            let large = others.map(|other| other.bytes).filter(|bytes| *bytes >= SHARE_BYTES);
            if large.sum::<usize>() + multi.bytes > QUEUED_BYTES_MAX {
                return Err(NO_ROOM.into());
            }
        }
        if multi.commands.len() >= COMMANDS_MAX {
            return Err(TOO_MANY_COMMANDS.into());
        }
        if multi.bytes > COMMAND_BYTES_MAX - 64 {
            return Err(TOO_LARGE_TRANSACTION.into());
        }
        multi.writes |= class == Class::Write;
        let keys = Command::parse(encoded).map(|command| several::keys(&command));
        for key in keys.unwrap_or_default() {
            if multi.keys.len() < KEYS_MAX && !multi.keys.iter().any(|own| own == key) {
                multi.keys.push(key.to_vec());
            }
        }
        multi.of_all_keys |= subject == Some(Subject::AllKeys) || multi.keys.len() >= KEYS_MAX;
        // These are reads of several keys that the engine does not find by their names.
        if let Some(Subject::Objects(..)) = subject
            && Command::parse(encoded).is_ok_and(|command| several::keys(&command).is_empty())
        {
            multi.of_all_keys = true;
        }
        multi.commands.push(encoded.to_vec());
        multi.named.push(call.shown.named());
        if let Some(footprint) = call.footprint.take() {
            multi.footprint.get_or_insert_default().add(*footprint);
        }
        call.connection.answer(|out| resp::simple(out, "QUEUED"));
        Ok(Flow::Went)
    }

    /// The current reply to a command that does not need the rack.
    fn answer_now(
        &mut self,
        call: &mut CommandContext<'_>,
        local: Local,
        args: &[&[u8]],
    ) -> Vec<u8> {
        let Connection { output, slots, first_slot, .. } = &mut *call.connection;
        let kept = (core::mem::take(output), core::mem::take(slots), *first_slot);
        let result = handler_of(local)(self, call, args);
        let connection = &mut *call.connection;
        let mut reply = core::mem::replace(&mut connection.output, kept.0).into_vec();
        (connection.slots, connection.first_slot) = (kept.1, kept.2);
        if let Err(failure) = result {
            reply.clear();
            resp::error(&mut reply, failure.as_bytes());
        }
        reply
    }

    fn exec(
        &mut self,
        call: &mut CommandContext<'_>,
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let watches =
            call.connection.watch.is_unanswered() || call.connection.watch.keys().next().is_some();
        let publishes = call.connection.multi.as_ref().is_some_and(|m| !m.published.is_empty());
        if (watches || publishes) && call.connection.must_wait(Class::Write, Subject::AllKeys) {
            // It waits for everything before it: for the digests that it compares, and for reads,
            // which must not see anything later, whether it writes or not. Also, a client that
            // receives a message may look for what was done before it.
            call.connection.wait = Wait::Order(Class::Write, Subject::AllKeys);
            return Ok(Flow::Waits);
        }
        let Some(mut multi) = call.connection.multi.take() else { return Ok(Flow::Went) };
        call.is_executed = true;
        // This applies after it, unless it is not executed.
        let database = core::mem::replace(&mut call.connection.database, multi.database);
        let has_failed = call.connection.watch.has_failed();
        if multi.failed || has_failed {
            call.connection.watch.end();
            return Err("EXECABORT Transaction discarded because of previous errors.".into());
        }
        call.footprint = multi.footprint.take();
        let Multi { commands, keys, of_all_keys, writes, .. } = &*multi;
        let watched = call.connection.watch.encoded();
        if multi.bytes + watched.as_ref().map_or(0, Vec::len) > COMMAND_BYTES_MAX - 64 {
            call.connection.watch.end();
            return Err(TOO_LARGE_TRANSACTION.into());
        }
        if keys.is_empty() && !of_all_keys && watched.is_none() {
            call.connection.database = database;
            let replies = commands.iter().filter_map(|command| Command::parse(command).ok());
            let mut all = Vec::new();
            resp::array(&mut all, commands.len());
            replies.for_each(|reply| {
                all.extend_from_slice(reply.args().nth(1).unwrap_or_default());
            });
            let (slot, resp3) = (call.connection.next_slot(), call.connection.resp3);
            let waiting = Slot::waiting(Class::Read, Subject::AllKeys, resp3);
            call.connection.push_slot(waiting);
            self.publish_all(call.connection, slot, all, &multi.published);
            self.show_lines(core::mem::take(&mut multi.shown));
            return Ok(Flow::Went);
        }
        let bytes = multi.bytes + watched.as_ref().map_or(0, Vec::len);
        let asked = self.questions(&mut call.footprint, bytes, *writes);
        let behind = asked.iter().filter(|_| *writes);
        let parts = watched.iter().chain(&asked).chain(commands).chain(behind).map(Vec::as_slice);
        self.command.encode(0, [EXEC_COMMAND].into_iter().chain(parts));
        let subject = match of_all_keys {
            true => Subject::AllKeys,
            false => {
                Subject::of_keys(keys.iter().map(Vec::as_slice).chain(call.connection.watch.keys()))
            }
        };
        let class = if *writes { Class::Write } else { Class::Read };
        let slot = call.connection.next_slot();
        call.shown = Shown::each(&multi.named);
        let flow = self.submit(call, class, subject, SlotState::Waiting, sink);
        match flow {
            Flow::Waits => {
                multi.footprint = call.footprint.take();
                call.connection.database = database;
                call.connection.multi = Some(multi);
            }
            Flow::Went => {
                self.show_lines(core::mem::take(&mut multi.shown));
                let published = core::mem::take(&mut multi.published);
                let is_sent = call.connection.slots.back().is_some_and(|slot| slot.is_waiting());
                if is_sent && database != multi.database {
                    call.connection.database = database;
                    call.connection.selecting = Some((slot, multi.database));
                }
                if is_sent && !published.is_empty() {
                    call.connection.publishes.push_back((slot, published));
                }
                call.connection.watch.end();
            }
        }
        Ok(flow)
    }
}

/// The reference to a script whose text is already in the transaction (`concord_engine::texts`).
fn share(texts: &mut Vec<Vec<u8>>, encoded: &[u8]) -> Option<Vec<u8>> {
    let command = Command::parse(encoded).ok()?;
    let reference = texts::reference(texts::text_of(&command)?)?;
    if texts.contains(&reference) {
        return Some(texts::with_text(&command, &reference));
    }
    texts.push(reference);
    None
}

/// Whether Redis refuses a command in every transaction.
fn is_never(args: &[&[u8]]) -> bool {
    let name = UpperName::of(args[0]);
    matches!(name.bytes(), b"SAVE" | b"SHUTDOWN" | b"PSYNC" | b"SYNC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_22_154_failed_transaction_keeps_nothing() {
        let commands = alloc::vec![alloc::vec![0; 1 << 20]; 3];
        let mut multi = Multi { commands, bytes: 3 << 20, database: 7, ..Multi::default() };
        multi.abort();
        assert!(multi.failed && multi.commands.is_empty());
        assert_eq!((multi.bytes, multi.database), (0, 7));
    }
}
