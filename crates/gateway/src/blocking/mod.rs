//! Commands that wait for an element or an entry (docs/reference/semantics/blocking.md): each try
//! is a write that is executed at most once. [`crate::blocking::waiters`] chooses the client that
//! tries.

pub(crate) mod attempt;
pub(crate) mod last_ids;
pub(crate) mod members;
pub(crate) mod shared_attempt;
pub(crate) mod wait;
pub(crate) mod waiters;

use alloc::string::String;
use alloc::vec::Vec;

use concord_client::{Class, Done, Request, Size, SubmitError};
use concord_core::{Now, hash};
use concord_engine::blocking::Blocking;
use concord_engine::{Command, resp, several};
use concord_wire::{Flags, FurtherIds, Sink};

use crate::blocking::attempt::Wanted;
use crate::blocking::waiters::{End, Found};
use crate::commands::Failure;
use crate::connection::{Connection, ConnectionId, Slot, SlotState, Subject, Target, Wait};
use crate::gateway::{Gateway, list};
use crate::memory::tentative::Expected;
use crate::state::{CommandContext, Core, Flow, TOO_LARGE_COMMAND};

/// The largest number of concurrent reads that check whether a key exists.
const LOOKS_MAX: usize = 64;

impl Core {
    /// BLPOP and the like: begins once all earlier commands are answered, and no later one begins
    /// before its reply, as in Redis.
    pub(crate) fn block(
        &mut self,
        call: &mut CommandContext<'_>,
        index: usize,
        blocking: Blocking,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let handling = self.commands.entry(index).handling;
        let (class, subject) = self.plan(call.connection.database, index, handling, args)?;
        if !call.connection.slots.is_empty() {
            self.count.commands_waited += 1;
            call.connection.wait = Wait::Quiet;
            return Ok(Flow::Waits);
        }
        let Some(wanted) = Wanted::of(blocking, args) else {
            if let Some(text) = blocking.wrong_timeout(args) {
                return Err(String::from_utf8_lossy(text).into_owned().into());
            }
            // The engine reports other errors of the command.
            return Ok(self.submit(call, class, subject, SlotState::Waiting, sink));
        };
        if !self.waiters.has_room(&wanted) {
            return Err("ERR commands that wait take 64 MiB already (Concord's limit)".into());
        }
        if !wanted.ends().is_empty() {
            return Ok(self.ask_for_ends(call, wanted, sink));
        }
        let (id, resp3) = (call.connection.id, call.connection.resp3);
        self.waiters.begin(call.now.instant, id, wanted, resp3);
        let slot = Slot::waiting(class, subject, call.connection.resp3);
        let (state, shown) = (SlotState::Blocked, core::mem::take(&mut call.shown));
        let footprint = call.footprint.take();
        call.connection.push_slot(Slot { state, shown, footprint, ..slot });
        call.connection.wait = Wait::Blocked;
        Ok(Flow::Went)
    }

    /// Encodes the next try into `self.command`, or several that go together; whose they are, and
    /// what they concern.
    fn encode_try(&mut self) -> Option<(Vec<ConnectionId>, Subject)> {
        let first = self.waiters.next_try()?;
        let ids = match self.tentative.is_pressed {
            // Each reply waits for memory by itself.
            true => Vec::from([first]),
            false => self.waiters.together(first),
        };
        if ids.len() > 1 {
            self.encode_tries(&ids);
        } else {
            self.command.encode(0, self.waiters.command(first));
        }
        let keys: Vec<Vec<u8>> = match Command::parse(self.command.bytes()) {
            Ok(command) => several::keys(&command).into_iter().map(<[u8]>::to_vec).collect(),
            Err(_) => Vec::new(),
        };
        let key = keys.first()?;
        let args = self.waiters.command(first);
        if ids.len() == 1
            && keys.iter().all(|other| other == key)
            && let Some(at) = args.iter().skip(1).position(|arg| arg == key)
            && let Ok(at) = u8::try_from(at + 1)
        {
            self.command.encode(at, args);
        }
        Some((ids, Subject::of_keys(keys.iter().map(Vec::as_slice))))
    }

    /// Sends the try that is encoded in `self.command`; false if there is no room for it now.
    fn send_try(
        &mut self,
        now: Now,
        connection: &mut Connection,
        (ids, subject): (Vec<ConnectionId>, Subject),
        sink: &mut impl Sink,
    ) -> bool {
        let (obj_id, further) = match subject {
            Subject::Object(obj_id) => (obj_id, FurtherIds::NONE),
            Subject::Objects(obj_id, further) => (obj_id, further),
            // Not more than eight keys are tried at a time.
            Subject::AllKeys => {
                self.refuse_try(connection);
                return true;
            }
        };
        let class = Class::Write;
        let flags = Flags::WAITS.set(Flags::RESP3, connection.resp3);
        let after = connection.last_write;
        let command = self.command.bytes();
        let request = Request { class, obj_id, further, flags, after, command };
        match self.client.submit(now, request, sink) {
            Ok(number) if ids.len() > 1 => {
                self.waiters.sent(&ids);
                self.count.tries_together += ids.len() as u64;
                self.together.insert(number.0, ids);
            }
            Ok(number) => {
                connection.last_write = Some(number);
                connection.note_sent(class, subject);
                let target = Target {
                    connection: connection.id,
                    slot: connection.first_slot,
                    part: 0,
                    class,
                    is_of_all_keys: subject == Subject::AllKeys,
                    only_reads: false,
                    granted_bytes: 0,
                    expected: Expected::Short,
                    long_read: 0,
                };
                self.targets.insert(number.0, target);
                self.waiters.sent(&ids);
            }
            Err(SubmitError::Full) => return false,
            Err(SubmitError::TooLarge) => self.refuse_try(connection),
        }
        true
    }

    /// The next try cannot be sent: its command is answered with an error.
    fn refuse_try(&mut self, connection: &mut Connection) {
        self.waiters.sent(&[connection.id]);
        self.waiters.tried(connection.id, Found::Reply, true);
        let mut error = Vec::new();
        resp::error(&mut error, TOO_LARGE_COMMAND.as_bytes());
        connection.unblock(error);
    }

    /// Handles time-outs. Now and then also reads whether an awaited key exists, since a
    /// notification may be lost with the replica that should have sent it.
    pub(crate) fn look_after_waiters(&mut self, now: Now, sink: &mut impl Sink) {
        self.waiters.expire(now.instant);
        let Some(key) = self.waiters.next_look(now.instant) else { return };
        if self.looks.len() >= LOOKS_MAX || !self.client.has_room(Class::Read, Size::Small) {
            return;
        }
        let command = self.command.encode(1, [&b"EXISTS"[..], &key]);
        let (class, further) = (Class::Read, FurtherIds::NONE);
        let obj_id = hash::object_id(&key);
        let request = Request { class, obj_id, further, flags: Flags(0), after: None, command };
        if let Ok(number) = self.client.submit(now, request, sink) {
            self.looks.insert(number.0, key);
        }
    }

    /// A look ended.
    pub(crate) fn looked(&mut self, key: &[u8], done: Done) {
        if done.reply == b":1\r\n" {
            self.waiters.there_is(key);
        }
        self.client.give_back(done.reply);
    }
}

impl Gateway {
    /// Sends the tries that are due, and ends the waits that are over.
    pub(crate) fn try_blocked(&mut self, now: Now, sink: &mut impl Sink) {
        loop {
            for id in self.answer_ended() {
                if self.connections.get(&id).is_some_and(|c| c.is_unblocked()) {
                    self.go_on(now, id, sink);
                }
            }
            if !self.core.client.has_room(Class::Write, Size::Large) {
                return;
            }
            let Some((ids, subject)) = self.core.encode_try() else { return };
            let id = ids[0];
            let Some(connection) = self.connections.get_mut(&id) else {
                self.core.waiters.forget(id);
                continue;
            };
            if !self.core.send_try(now, connection, (ids, subject), sink) {
                return;
            }
            if connection.is_unblocked() {
                list(&mut self.ready, connection);
                self.go_on(now, id, sink);
            }
        }
    }

    /// Answers those whose waits ended without an element; who they are.
    pub(crate) fn answer_ended(&mut self) -> Vec<ConnectionId> {
        const UNBLOCKED: &[u8] = b"UNBLOCKED client unblocked via CLIENT UNBLOCK";
        let mut ids = Vec::new();
        let core = &mut self.core;
        while let Some((id, end)) = core
            .waiters
            .poll_end()
            .map(|(id, end)| (id, Err(end)))
            .or_else(|| core.members.poll_end())
        {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let mut reply = Vec::new();
            match end {
                Ok(replicas) => resp::integer(&mut reply, replicas),
                Err(End::Timeout) => resp::null_array(&mut reply, connection.resp3),
                Err(End::Error) => resp::error(&mut reply, UNBLOCKED),
            }
            connection.unblock(reply);
            list(&mut self.ready, connection);
            ids.push(id);
        }
        ids
    }
}
