//! The exchange of users with the rack ([`crate::users`]), and the effect of a change of them on
//! connections.

use alloc::vec::Vec;

use concord_client::{Class, Done, Outcome, Request, Size};
use concord_core::{Now, ObjectId};
use concord_engine::resp;
use concord_engine::users::USERS_COMMAND;
use concord_wire::{Flags, FurtherIds, Sink};

use crate::connection::{ConnectionId, SlotState, Wait};
use crate::gateway::{Gateway, list};
use crate::pubsub::channels::Waits;
use crate::users::access::may_listen;
use crate::users::{PendingChange, Sent, version_and_text};

/// Whether replicas keep no users: they are of an older version.
fn is_unknown(reply: &[u8]) -> bool {
    reply.starts_with(b"-ERR unknown command")
}

impl Gateway {
    /// Shares the users with the rack, for all gateways; clients wait until the rack has sent them.
    /// `secret`, from which passwords are drawn (ACL GENPASS), must be 32 bytes of the driver's
    /// entropy.
    pub fn share_users(&mut self, secret: &[u8]) {
        self.core.users.share(secret);
    }

    /// Asks the rack for the users, sends it what changes them, and takes what other gateways tell.
    pub(crate) fn look_after_users(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(told) = self.core.exchange.users.pop_front() {
            if let Some((version, text)) = told.split_first_chunk() {
                self.install_users(u64::from_be_bytes(*version), text, 0, None);
            }
        }
        if self.core.users.must_ask(now.instant)
            && self.core.client.has_room(Class::Read, Size::Small)
        {
            let known = self.core.users.version();
            let version = alloc::format!("{known}");
            let args = [USERS_COMMAND, b"GET", version.as_bytes()];
            let request = self.request_users(now, Class::Read, &args, sink);
            self.core.users.question = request.map(|request| (request, known));
        }
        while self.core.users.are_known()
            && self.core.users.sent.is_none()
            && self.core.client.has_room(Class::Write, Size::Large)
            && let Some(asked) = self.core.users.changes.pop_front()
        {
            self.change(now, asked, sink);
        }
        self.serve_who_waited(now, sink);
    }

    /// Continues the clients that waited for the users.
    fn serve_who_waited(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.core.users.take_news() {
            return;
        }
        let waits = self.connections.values().filter(|c| c.wait == Wait::Users);
        let mut ids: Vec<ConnectionId> =
            waits.filter(|c| c.slots.is_empty()).map(|c| c.id).collect();
        ids.sort_unstable();
        for id in ids {
            self.go_on(now, id, sink);
        }
    }

    fn request_users(
        &mut self,
        now: Now,
        class: Class,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Option<concord_core::RequestNumber> {
        let command = self.core.command.encode(0, args.iter().copied());
        let (obj_id, further, flags) = (ObjectId(0), FurtherIds::NONE, Flags::WILDCARD);
        let request = Request { class, obj_id, further, flags, after: None, command };
        self.core.client.submit(now, request, sink).ok()
    }

    fn change(&mut self, now: Now, asked: PendingChange, sink: &mut impl Sink) {
        let (text, reply) = match self.core.users.try_change(&asked.change) {
            Ok(changed) => changed,
            Err(failure) => {
                let users = &self.core.users;
                let text = users.text_of(users.table(), users.wanted());
                let mut error = Vec::new();
                resp::error(&mut error, failure.as_bytes());
                self.core.errors.note(failure.as_bytes());
                (text, error)
            }
        };
        // Also if nothing changes according to this gateway: another one may have changed them.
        let version = self.core.users.version();
        if !self.core.users.is_shared() {
            self.install_users(version + 1, &text, version, Some(asked.id));
            return self.answer_change(&asked, reply, &[]);
        }
        let known = version;
        let version = alloc::format!("{known}");
        let args = [USERS_COMMAND, b"SET", version.as_bytes(), &text];
        match self.request_users(now, Class::Write, &args, sink) {
            Some(request) => {
                self.core.users.sent = Some(Sent { request, known, asked, text, reply });
            }
            None => self.refuse_change(&asked, b"TRYAGAIN not executed; it is safe to retry"),
        }
    }

    /// The rack answered something about users.
    pub(crate) fn take_users(&mut self, now: Now, done: &Done) {
        let is_reply = done.outcome == Outcome::Reply;
        let found = version_and_text(&done.reply).filter(|_| is_reply);
        if let Some((request, known)) = self.core.users.question
            && request == done.request
        {
            // Any other error says nothing of users: who may do what is not known then.
            let are_there =
                found.is_some() || done.reply.starts_with(b"$-1") || is_unknown(&done.reply);
            if let Some((version, text)) = found {
                self.install_users(version, text, known, None);
            }
            let was_known = self.core.users.are_known();
            self.core.users.answered(now.instant, is_reply && are_there);
            if !was_known && self.core.users.are_known() {
                self.open_anew();
            }
            return;
        }
        let Some(Sent { known, asked, text, reply, .. }) = self.core.users.sent.take() else {
            return;
        };
        if let Some((version, newer)) = found {
            // Somebody changed them meanwhile: the change is made to what they are now.
            self.install_users(version, newer, known, None);
            self.core.users.changes.push_front(asked);
            return;
        }
        let version = done.reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
        let version = version.and_then(resp::number).and_then(|n| u64::try_from(n).ok());
        match done.outcome {
            Outcome::Reply if let Some(version) = version => {
                let told = [&version.to_be_bytes(), &text[..]].concat();
                let until = self.core.exchange.tell_users(&told);
                self.install_users(version, &text, known, Some(asked.id));
                self.answer_change(&asked, reply, &until);
            }
            Outcome::WriteNotExecuted => {
                self.refuse_change(&asked, b"TRYAGAIN not executed; it is safe to retry");
            }
            Outcome::WriteUnknown => {
                let text = "UNKNOWN the outcome of this write is not known: it may or may not have \
                            been executed; do not blindly retry";
                self.refuse_change(&asked, text.as_bytes());
            }
            // Refused as any write may be: memory or a disk is full.
            Outcome::Reply
                if let Some(error) = done.reply.strip_prefix(b"-")
                    && !is_unknown(&done.reply) =>
            {
                let text = error.strip_suffix(b"\r\n").unwrap_or(error).to_vec();
                self.refuse_change(&asked, &text);
            }
            _ => {
                self.refuse_change(&asked, b"ERR the replicas keep no users: update them first");
            }
        }
    }

    fn refuse_change(&mut self, asked: &PendingChange, text: &[u8]) {
        let mut error = Vec::new();
        resp::error(&mut error, text);
        self.core.errors.note(text);
        self.answer_change(asked, error, &[]);
    }

    /// The reply to a change, once other gateways know of it.
    fn answer_change(&mut self, asked: &PendingChange, reply: Vec<u8>, until: &[(usize, u64)]) {
        let Some(connection) = self.connections.get_mut(&asked.id) else { return };
        connection.ready_bytes += reply.len();
        if let Some(slot) = connection.slot_mut(asked.slot) {
            slot.state = SlotState::Gated(reply);
        }
        self.core.exchange.wait(Waits::Published { id: asked.id, slot: asked.slot }, until);
    }

    /// Handles the first text of the users: earlier clients may need a password now, or none.
    fn open_anew(&mut self) {
        let (is_open, user) = (self.core.users.are_open(), self.core.users.default_user());
        for connection in self.connections.values_mut() {
            connection.authenticated = is_open;
            connection.user = user.clone();
        }
    }

    /// The users are these from now on. Connections of those that are no more are closed, and of
    /// those that may not listen any more where they do; a transaction that was begun under other
    /// rules is not executed. The connection that asked for it, `by`, gets its reply first. `known`
    /// is the version that was known when the rack was asked.
    fn install_users(&mut self, version: u64, text: &[u8], known: u64, by: Option<ConnectionId>) {
        if !self.core.users.install(version, text, known) {
            return;
        }
        let is_news = self.core.users.are_known();
        self.core.events.want(self.core.users.wanted(), is_news);
        let mut ended: Vec<ConnectionId> = Vec::new();
        for connection in self.connections.values_mut() {
            let Some(user) = self.core.users.find(&connection.user.name).cloned() else {
                connection.authenticated = false;
                connection.user = self.core.users.default_user();
                ended.push(connection.id);
                continue;
            };
            if *user == *connection.user {
                continue;
            }
            if !may_listen(&user, connection) {
                ended.push(connection.id);
            }
            if !user.may_all() {
                connection.abort_multi();
            }
            connection.user = user;
        }
        ended.sort_unstable();
        for id in ended {
            if by == Some(id) {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.closing = true;
                    list(&mut self.ready, connection);
                }
            } else {
                self.core.killed.push(id);
            }
        }
    }
}
