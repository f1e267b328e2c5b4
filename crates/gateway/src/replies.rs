//! Replies of the rack: into the slot of its command, and out in turn.

use alloc::vec::Vec;

use concord_client::{Class, Done, Outcome, Trace};
use concord_core::guard::Guard;
use concord_core::{Instant, Now};
use concord_engine::script::split_published;
use concord_engine::{CommandTable, Published, resp};
use concord_wire::Reason;

use crate::blocking::waiters::Found;
use crate::commands::split_reads::Ended;
use crate::commands::{Commands, Handling};
use crate::connection::subscriptions::{Message, Sort};
use crate::connection::{Connection, Slot, SlotState, Target};
use crate::state::{BUSY, Core};

/// Room that a reply's buffer may have beyond its length, in bytes.
const SPARE_BYTES_MAX: usize = 1_024;

/// The error for a consumer that waited for a stream or a group that was deleted, in Redis' words.
fn what_was_lost(reply: &[u8]) -> Option<&'static [u8]> {
    if reply.starts_with(b"-WRONGTYPE") {
        return Some(b"UNBLOCKED the stream key no longer exists");
    }
    let gone = b"NOGROUP the consumer group this client was blocked on no longer exists";
    reply.starts_with(b"-NOGROUP").then_some(gone)
}

/// Removes and returns the messages that scripts published, which precede their reply. Every answer
/// to the request has them, and one answer is used.
fn taken_from(reply: &mut Vec<u8>) -> Vec<Message> {
    if !reply.starts_with(b">") {
        return Vec::new();
    }
    let (published, length) = split_published(reply);
    reply.drain(..length);
    let message = |one: Published| Message {
        sort: if one.is_sharded { Sort::Shard } else { Sort::Channel },
        channel: one.channel,
        payload: one.message,
    };
    published.into_iter().map(message).collect()
}

/// A reply that is held may be held for long: by its length, as it is counted.
fn shrink(reply: &mut Vec<u8>) {
    if reply.capacity() > 2 * reply.len() + SPARE_BYTES_MAX {
        reply.shrink_to_fit();
    }
}

/// Whether a reply concerns only its command and is passed on unchanged: a value, a status or a
/// number that is neither an error nor the result of a transaction or a script.
fn is_plain(connection: &mut Connection, number: u64, done: &Done) -> bool {
    let is_one =
        done.outcome == Outcome::Reply && matches!(done.reply.first(), Some(b'$' | b'+' | b':'));
    let is_alone = connection.publishes.is_empty() && connection.selecting.is_none();
    is_one && is_alone && connection.slot_mut(number).is_some_and(|slot| slot.is_plain())
}

impl Core {
    /// The command table of the engine came, or did not.
    pub(crate) fn take_table(&mut self, done: &Done) {
        self.table_request = None;
        if done.outcome == Outcome::Reply
            && let Ok(table) = CommandTable::from_resp(&done.reply)
        {
            self.commands = Commands::new(&table, self.setup.redis);
            self.setup.table = table;
            self.wants_table = false;
        }
    }

    /// A request ended whose connection is gone: what its scripts published is published all the
    /// same.
    pub(crate) fn take_unread(&mut self, mut reply: Vec<u8>) {
        for message in taken_from(&mut reply) {
            self.count.published += 1;
            self.exchange.publish(message.sort, &message.channel, &message.payload);
        }
        self.client.give_back(reply);
    }

    /// A request of `connection` ended.
    #[inline]
    pub(crate) fn take_reply(
        &mut self,
        now: Now,
        connection: &mut Connection,
        target: Target,
        done: Done,
    ) {
        connection.note_done(target.class, target.is_of_all_keys);
        if target.only_reads && !target.is_of_all_keys && done.outcome == Outcome::Reply {
            match resp::is_null(&done.reply) {
                true => self.count.keyspace_misses += 1,
                false => self.count.keyspace_hits += u64::from(!done.reply.starts_with(b"-")),
            }
        }
        self.note_health(now.instant, done.outcome);
        connection.granted_bytes -= target.granted_bytes as usize;
        // A write that ended while its reply waited for room is not answered with that.
        connection.offers.remove(&(target.slot, target.part));
        if target.granted_bytes == 0 {
            connection.note_short_reply();
        }
        if is_plain(connection, target.slot, &done)
            && self.setup.client.guards.on(Guard::ReplyOrder)
        {
            return self.take_whole(connection, target.slot, done.reply);
        }
        let is_blocked = |slot: &mut Slot| matches!(slot.state, SlotState::Blocked);
        if connection.slot_mut(target.slot).is_some_and(is_blocked) {
            let line = self.waiters.only_line(connection.id);
            if let Some(line) = line.filter(|_| done.outcome == Outcome::Reply) {
                let found = usize::from(!resp::is_null(&done.reply));
                self.waiters.note_found(line, 1, found, done.reply.len());
            }
            return self.take_tried(now, connection, (done.outcome, done.reply), true);
        }
        let (ended, text) = self.ended(target.class, target.only_reads, done.outcome);
        let mut reply = done.reply;
        shrink(&mut reply);
        if let Some(text) = text {
            reply.clear();
            resp::error(&mut reply, text.as_bytes());
        }
        let of_scripts = taken_from(&mut reply);
        let is_asked = |slot: &&mut Slot| !matches!(slot.state, SlotState::Asking(_));
        let slot = connection.slot_mut(target.slot).filter(is_asked);
        if let Some(footprint) = slot.and_then(|slot| slot.footprint.take()) {
            self.take_footprint(now, connection, footprint, done.outcome, &mut reply);
        }
        self.note_failed(connection, target.slot, &reply);
        connection.end_selecting(target.slot, &reply);
        let is_whole =
            |slot: &&mut Slot| matches!(slot.state, SlotState::Waiting | SlotState::Explaining);
        if let Some(slot) = connection.slot_mut(target.slot).filter(is_whole) {
            reply = core::mem::take(&mut slot.shown).show(reply);
        }
        let queued = connection.publishes.iter().position(|(slot, _)| *slot == target.slot);
        let queued = queued.and_then(|at| connection.publishes.remove(at));
        if queued.is_some() || !of_scripts.is_empty() {
            let mut messages = queued.map(|(_, messages)| messages).unwrap_or_default();
            if !reply.starts_with(b"*") || resp::is_null(&reply) {
                messages.clear(); // Of a transaction that was not executed.
            }
            messages.extend(of_scripts);
            return self.publish_all(connection, target.slot, reply, &messages);
        }
        if self.take_ends(now, connection, target.slot, &reply) {
            return connection.write_in_turn();
        }
        let Some(slot) = connection.slot_mut(target.slot) else { return };
        match &mut slot.state {
            SlotState::Waiting if !self.setup.client.guards.on(Guard::ReplyOrder) => {
                slot.state = SlotState::Ready(Vec::new());
                connection.output.append(&reply);
            }
            SlotState::Waiting => return self.take_whole(connection, target.slot, reply),
            SlotState::Explaining => {
                let reply = explained(&reply, &done.trace, slot.resp3);
                let reply_bytes = reply.len();
                slot.state = SlotState::Ready(reply);
                connection.ready_bytes += reply_bytes;
            }
            SlotState::Info(wanted) => {
                let figures = reply;
                let reply = self.info_reply(now, *wanted, &figures, slot.resp3);
                if !figures.starts_with(b"-") {
                    self.last_figures = figures;
                }
                let reply_bytes = reply.len();
                slot.state = SlotState::Ready(reply);
                connection.ready_bytes += reply_bytes;
            }
            SlotState::Watching(watching) => {
                let watching = core::mem::take(&mut **watching);
                let reply = connection.watch.answered(&watching, reply);
                connection.ready_bytes += reply.len();
                if let Some(slot) = connection.slot_mut(target.slot) {
                    slot.state = SlotState::Ready(reply);
                }
            }
            SlotState::Parts(parts) => {
                let before = parts.held_bytes();
                parts.fill(target.part, ended, reply);
                let more = parts.held_bytes() - before;
                connection.ready_bytes += more;
            }
            SlotState::Ready(_)
            | SlotState::Blocked
            | SlotState::Asking(_)
            | SlotState::Gated(_) => {}
        }
        connection.write_in_turn();
    }

    /// A reply that goes out as it is by now: at once if it is its turn.
    #[inline]
    fn take_whole(&mut self, connection: &mut Connection, number: u64, mut reply: Vec<u8>) {
        let is_first = number == connection.first_slot;
        let Some(slot) = connection.slot_mut(number) else { return };
        if !is_first {
            shrink(&mut reply);
            let reply_bytes = reply.len();
            slot.state = SlotState::Ready(reply);
            connection.ready_bytes += reply_bytes;
            return;
        }
        if !slot.is_silent {
            connection.output.append(&reply);
        }
        connection.slots.pop_front();
        connection.first_slot += 1;
        self.client.give_back(reply);
        connection.write_in_turn();
    }

    /// A try of a command that waits ended, which was the last one of its request or not.
    pub(crate) fn take_tried(
        &mut self,
        now: Now,
        connection: &mut Connection,
        (outcome, mut reply): (Outcome, Vec<u8>),
        is_last: bool,
    ) {
        let (id, slot) = (connection.id, connection.first_slot);
        let is_late = self.waiters.is_ending(id);
        let lost = match outcome {
            Outcome::Reply if self.waiters.has_waited_in_group(id) => what_was_lost(&reply),
            _ => None,
        };
        let found = match outcome {
            Outcome::Reply if lost.is_some() => Found::Reply,
            Outcome::Reply if resp::is_null(&reply) => Found::Nothing,
            Outcome::Reply if is_late && !self.setup.client.guards.on(Guard::LateElement) => {
                Found::Nothing
            }
            Outcome::Reply if reply.starts_with(b"-WRONGTYPE") => Found::WrongType,
            Outcome::WriteNotExecuted => Found::NotExecuted,
            Outcome::Reply
            | Outcome::ReadTimeout
            | Outcome::Busy
            | Outcome::WriteUnknown
            | Outcome::Malformed
            | Outcome::TooLarge => Found::Reply,
        };
        if !self.waiters.tried(id, found, is_last) {
            return self.client.give_back(reply);
        }
        if let Some(text) = lost {
            reply.clear();
            resp::error(&mut reply, text);
        } else if let (_, Some(text)) = self.ended(Class::Write, false, outcome) {
            reply.clear();
            resp::error(&mut reply, text.as_bytes());
        }
        let footprint = connection.slot_mut(slot).and_then(|slot| slot.footprint.take());
        if let Some(footprint) = footprint {
            self.take_footprint(now, connection, footprint, outcome, &mut reply);
        }
        self.note_failed(connection, slot, &reply);
        connection.unblock(reply);
    }

    /// A command has its reply: counts it among those that failed if it is an error.
    fn note_failed(&mut self, connection: &mut Connection, slot: u64, reply: &[u8]) {
        let Some(slot) = connection.slot_mut(slot) else { return };
        let (command, is_part) = (slot.command.take(), matches!(slot.state, SlotState::Parts(_)));
        if !is_part {
            let is_exec = |index| matches!(self.commands.entry(index).handling, Handling::Exec);
            self.errors.note_reply(reply, || command.is_some_and(is_exec));
        }
        if let Some(index) = command.filter(|_| reply.starts_with(b"-")) {
            self.commands.entry_mut(index).failed += 1;
        }
    }

    /// A command was answered by the rack, or was not in time.
    fn note_health(&mut self, now: Instant, outcome: Outcome) {
        self.failed_at = match outcome {
            Outcome::Reply | Outcome::Busy | Outcome::Malformed | Outcome::TooLarge => None,
            Outcome::ReadTimeout | Outcome::WriteNotExecuted | Outcome::WriteUnknown => Some(now),
        };
    }

    /// The error of a command that was surely not executed in time.
    pub(crate) fn not_executed(&mut self, class: Class) -> &'static str {
        match class {
            Class::Read => {
                self.count.read_timeouts += 1;
                "TIMEOUT read timed out; it is safe to retry"
            }
            Class::Write => {
                self.count.writes_not_executed += 1;
                "TRYAGAIN not executed; it is safe to retry"
            }
        }
    }

    /// The outcome, and the error to answer if there is no reply.
    fn ended(
        &mut self,
        class: Class,
        only_reads: bool,
        outcome: Outcome,
    ) -> (Ended, Option<&'static str>) {
        let (ended, text) = match outcome {
            Outcome::Reply => return (Ended::Reply, None),
            Outcome::ReadTimeout => (Ended::NotExecuted, self.not_executed(Class::Read)),
            Outcome::Busy => {
                self.count.commands_busy += 1;
                (Ended::NotExecuted, BUSY)
            }
            Outcome::WriteNotExecuted | Outcome::WriteUnknown if only_reads => {
                (Ended::NotExecuted, self.not_executed(Class::Read))
            }
            Outcome::WriteNotExecuted => (Ended::NotExecuted, self.not_executed(Class::Write)),
            Outcome::WriteUnknown => {
                self.count.writes_unknown += 1;
                let text = "UNKNOWN the outcome of this write is not known: it may or may not have \
                            been executed; do not blindly retry";
                (Ended::NotExecuted, text)
            }
            Outcome::Malformed => {
                (Ended::NotExecuted, "ERR the replicas refused the command as malformed")
            }
            Outcome::TooLarge if class == Class::Write && !only_reads => {
                let text = "ERR executed, but the reply is longer than 64 MiB (Concord's limit)";
                (Ended::Reply, text)
            }
            Outcome::TooLarge => {
                (Ended::Reply, "ERR the reply is longer than 64 MiB (Concord's limit)")
            }
        };
        (ended, Some(text))
    }
}

/// Which path a read took, in words.
fn path(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Fast => ("fast", "no write to the object was in flight"),
        Reason::SlowDirty => ("slow", "dirty: a write to the object was in flight"),
        Reason::SlowNotReady => ("slow", "the switch has seen no completion of its own yet"),
        Reason::SlowWildcard => ("slow", "a write of all keys was in flight"),
        Reason::SlowUnaided => ("slow", "the rack runs without the switch's help"),
        Reason::SlowAllKeys => ("slow", "the command reads more than one object"),
        Reason::RefusedNewer => ("slow", "lagging: the replica had applied a newer write"),
        Reason::RefusedLease => ("slow", "the replica held no lease"),
        Reason::RefusedSwitch => ("slow", "the read came from an old switch"),
        Reason::Misrouted => ("slow", "the switch had an old configuration"),
        Reason::RefusedBehind => ("slow", "the replica had not executed the last committed write"),
        Reason::Clean => ("clean", "no write to the object was under way at the replica"),
        Reason::AskedTail => ("dirty", "asked the tail: a write to the object was under way"),
        Reason::SlowUnstable => ("slow", "unstable: a write to the key group was in flight"),
        Reason::SlowStaleReply => ("slow", "stale: a write came while a follower answered"),
        Reason::SlowNoHolder => ("slow", "no follower was known to hold the key group"),
        Reason::Leased => ("leased", "the follower held a lease for the key group"),
        Reason::RefusedRevoked => ("slow", "revoked: a write to the key group was under way"),
        Reason::Quorum => ("quorum", "all was executed that a majority had logged"),
        Reason::None => ("ordered", "it took the path of writes"),
    }
}

/// The reply of CONCORD EXPLAIN: a map, flat in RESP2.
fn explained(reply: &[u8], trace: &Trace, resp3: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let (path, reason) = path(trace.reason);
    resp::map(&mut out, 8, resp3);
    for (name, value) in [("path", path), ("reason", reason)] {
        resp::bulk(&mut out, name.as_bytes());
        resp::bulk(&mut out, value.as_bytes());
    }
    for (name, value) in [
        ("replica", u64::from(trace.node.0)),
        ("attempts", u64::from(trace.attempts)),
        ("epoch", u64::from(trace.epoch.0)),
        ("latency_us", trace.latency_ns / 1_000),
    ] {
        resp::bulk(&mut out, name.as_bytes());
        resp::integer(&mut out, value as i64);
    }
    resp::bulk(&mut out, b"last_committed");
    resp::bulk(&mut out, alloc::format!("{}", trace.last_committed).as_bytes());
    resp::bulk(&mut out, b"reply");
    out.extend_from_slice(reply);
    out
}
