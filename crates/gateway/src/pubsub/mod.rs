//! SUBSCRIBE, PUBLISH and their kin (docs/reference/semantics/pubsub.md, "Publish and subscribe").

pub(crate) mod channels;
pub(crate) mod event_delivery;
pub(crate) mod events;
pub(crate) mod exchange;
pub(crate) mod stream;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::{Duration, Instant, Now, SEC};
use concord_engine::table::UpperName;
use concord_engine::{glob_matches, resp};
use concord_wire::Sink;
use concord_wire::gateways::StreamHdr;

use crate::commands::{Failure, no_subcommand};
use crate::connection::local::wrong_arity;
use crate::connection::subscriptions::{Message, PendingSubscribe, PubSub, Sort};
use crate::connection::{Connection, ConnectionId, Slot, SlotState, Subject, Wait};
use crate::gateway::{Gateway, list};
use crate::memory::REPLIES_BYTES_MAX;
use crate::pubsub::channels::Waits;
use crate::pubsub::events::may_be_of_events;
use crate::state::{CommandContext, Core, Flow};

/// The largest size of a subscriber's unread messages, in bytes (Redis' `client-output-buffer-limit
/// pubsub 32mb 8mb 60`).
const UNREAD_BYTES_MAX: usize = 32 << 20;
const UNREAD_BYTES_LONG_MAX: usize = 8 << 20;
const UNREAD_NS: Duration = 60 * SEC;
/// The same while all replies together have reached their bound.
const UNREAD_BYTES_SHORT_MAX: usize = 1 << 20;

fn words(sort: Sort) -> (&'static str, &'static str) {
    match sort {
        Sort::Channel => ("subscribe", "unsubscribe"),
        Sort::Pattern => ("psubscribe", "punsubscribe"),
        Sort::Shard | Sort::Written => ("ssubscribe", "sunsubscribe"),
    }
}

/// The head of what is pushed to a client: an array in RESP2.
fn head(out: &mut Vec<u8>, count: usize, resp3: bool) {
    let at = out.len();
    resp::array(out, count);
    if resp3 {
        out[at] = b'>';
    }
}

/// A confirmation.
fn confirm(out: &mut Vec<u8>, word: &str, name: Option<&[u8]>, count: usize, resp3: bool) {
    head(out, 3, resp3);
    resp::bulk(out, word.as_bytes());
    match name {
        Some(name) => resp::bulk(out, name),
        None => resp::null(out, resp3),
    }
    resp::integer(out, count as i64);
}

/// The error for a command that a client may not send which has subscribed.
fn mixed(name: &[u8]) -> Option<Failure> {
    let may = [&b"PING"[..], b"QUIT", b"RESET"];
    if name.ends_with(b"SUBSCRIBE") || may.contains(&name) {
        return None;
    }
    let name = alloc::string::String::from_utf8_lossy(name).to_ascii_lowercase();
    let text = format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
         RESET are allowed in this context"
    );
    Some(text.into())
}

/// PUBSUB HELP.
const HELP: [&str; 13] = [
    "PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CHANNELS [<pattern>]",
    "    Tell the channels that have subscribers, those that match the pattern if there is one.",
    "NUMPAT",
    "    Tell the number of patterns that clients have subscribed to.",
    "NUMSUB [<channel> ...]",
    "    Tell the number of subscribers of each channel.",
    "SHARDCHANNELS [<pattern>]",
    "    The same as CHANNELS for shard channels.",
    "SHARDNUMSUB [<channel> ...]",
    "    The same as NUMSUB for shard channels.",
    "HELP",
    "    Prints this help.",
];

impl Core {
    /// Whether a client that has subscribed may not send this, as it would not know replies from
    /// messages.
    #[inline]
    pub(crate) fn must_not_mix(&self, connection: &Connection, name: &[u8]) -> Option<Failure> {
        if connection.resp3 || connection.subscriber.is_empty() { None } else { mixed(name) }
    }

    pub(crate) fn pubsub(
        &mut self,
        call: &mut CommandContext<'_>,
        what: PubSub,
        args: &[&[u8]],
    ) -> Result<Flow, Failure> {
        if matches!(what, PubSub::Subscribe(_) | PubSub::Unsubscribe(_)) {
            // As in Redis a confirmation is no reply to CLIENT REPLY.
            call.connection.is_silent = false;
        }
        match what {
            PubSub::Subscribe(sort) => Ok(self.subscribe(call, sort, &args[1..])),
            PubSub::Unsubscribe(sort) => {
                self.unsubscribe(call.connection, sort, &args[1..]);
                Ok(Flow::Went)
            }
            PubSub::Publish(sort) => Ok(self.publish(call, sort, args[1], args[2])),
            PubSub::Look => self.look(call, args).map(|()| Flow::Went),
        }
    }

    /// Begins once all before it is answered. The reply waits until the other gateways know:
    /// whatever is published after it reaches the client.
    fn subscribe(&mut self, call: &mut CommandContext<'_>, sort: Sort, names: &[&[u8]]) -> Flow {
        let connection = &mut *call.connection;
        if !connection.slots.is_empty() {
            connection.wait = Wait::Quiet;
            return Flow::Waits;
        }
        let (mut asked, mut reply) = (Vec::new(), Vec::new());
        for name in names {
            if connection.subscriber.add(sort, name) {
                asked.push((sort, *name, self.exchange.channels.ask(sort, name)));
            }
            let count = connection.subscriber.count(sort);
            confirm(&mut reply, words(sort).0, Some(name), count, connection.resp3);
        }
        let until = self.exchange.tell(&asked);
        self.events.listen(self.exchange.channels.may_hear_events());
        let begins = asked.iter().map(|(sort, name, _)| (*sort, name.to_vec())).collect();
        connection.subscriber.asked = Some(PendingSubscribe { begins, reply });
        connection.wait = Wait::Subscribed;
        self.exchange.wait(Waits::Subscribed(connection.id), &until);
        Flow::Went
    }

    fn unsubscribe(&mut self, connection: &mut Connection, sort: Sort, names: &[&[u8]]) {
        let own: Vec<Vec<u8>>;
        let names: Vec<&[u8]> = match names {
            [] => {
                own = connection.subscriber.names(sort).iter().cloned().collect();
                own.iter().map(Vec::as_slice).collect()
            }
            names => names.to_vec(),
        };
        let (mut left, mut reply) = (Vec::new(), Vec::new());
        let (word, resp3, id) = (words(sort).1, connection.resp3, connection.id);
        for name in &names {
            if connection.subscriber.remove(sort, name) {
                left.push((sort, *name, self.exchange.channels.end(sort, name, id)));
            }
            let count = connection.subscriber.count(sort);
            confirm(&mut reply, word, Some(name), count, resp3);
        }
        if names.is_empty() {
            confirm(&mut reply, word, None, connection.subscriber.count(sort), resp3);
        }
        self.exchange.tell(&left);
        self.events.listen(self.exchange.channels.may_hear_events());
        connection.answer(|out| out.extend_from_slice(&reply));
    }

    /// A connection is gone, or begins anew: it has subscribed to nothing.
    pub(crate) fn unsubscribe_all(&mut self, connection: &mut Connection) {
        let subscriber = core::mem::take(&mut connection.subscriber);
        for sort in [Sort::Channel, Sort::Pattern, Sort::Shard] {
            let end = |name: &Vec<u8>| {
                let left = self.exchange.channels.end(sort, name, connection.id);
                (name.clone(), left)
            };
            let left: Vec<(Vec<u8>, u32)> = subscriber.names(sort).iter().map(end).collect();
            let left: Vec<_> = left.iter().map(|(name, left)| (sort, &name[..], *left)).collect();
            self.exchange.tell(&left);
        }
        self.events.listen(self.exchange.channels.may_hear_events());
    }

    /// After everything before it is executed: who hears of it may look. The reply waits until the
    /// gateways of those who get it have it.
    fn publish(
        &mut self,
        call: &mut CommandContext<'_>,
        sort: Sort,
        channel: &[u8],
        payload: &[u8],
    ) -> Flow {
        let connection = &mut *call.connection;
        if !connection.has_nothing_unanswered() {
            self.count.commands_waited += 1;
            connection.wait = Wait::Order(Class::Write, Subject::AllKeys);
            return Flow::Waits;
        }
        if self.exchange.is_full() {
            self.exchange.waiting.push_back(connection.id);
            connection.wait = Wait::Others;
            return Flow::Waits;
        }
        let mut reply = Vec::new();
        resp::integer(&mut reply, self.exchange.receivers(sort, channel) as i64);
        let until = self.exchange.publish(sort, channel, payload);
        self.count.published += 1;
        if until.is_empty() {
            connection.answer(|out| out.extend_from_slice(&reply));
            return Flow::Went;
        }
        let slot = connection.next_slot();
        self.exchange.wait(Waits::Published { id: connection.id, slot }, &until);
        connection.ready_bytes += reply.len();
        let waiting = Slot::waiting(Class::Read, Subject::AllKeys, connection.resp3);
        connection.push_slot(Slot { state: SlotState::Gated(reply), ..waiting });
        Flow::Went
    }

    /// A PUBLISH within MULTI, which is published when EXEC is executed: its reply, as of now.
    pub(crate) fn queue_publish(
        &mut self,
        call: &mut CommandContext<'_>,
        sort: Sort,
        args: &[&[u8]],
    ) -> Vec<u8> {
        let mut reply = Vec::new();
        resp::integer(&mut reply, self.exchange.receivers(sort, args[1]) as i64);
        if let Some(multi) = &mut call.connection.multi {
            let (channel, payload) = (args[1].to_vec(), args[2].to_vec());
            multi.bytes += channel.len() + payload.len();
            multi.published.push(Message { sort, channel, payload });
        }
        reply
    }

    /// A transaction or a script has its reply: what they publish is published, and the reply waits
    /// until the other gateways have it.
    pub(crate) fn publish_all(
        &mut self,
        connection: &mut Connection,
        slot: u64,
        reply: Vec<u8>,
        messages: &[Message],
    ) {
        let mut until: Vec<(usize, u64)> = Vec::new();
        for message in messages {
            self.count.published += 1;
            until.extend(self.exchange.publish(message.sort, &message.channel, &message.payload));
        }
        connection.ready_bytes += reply.len();
        if let Some(own) = connection.slot_mut(slot) {
            own.state = SlotState::Gated(reply);
        }
        self.exchange.wait(Waits::Published { id: connection.id, slot }, &until);
    }

    /// PUBSUB.
    fn look(&mut self, call: &mut CommandContext<'_>, args: &[&[u8]]) -> Result<(), Failure> {
        let channels = &self.exchange.channels;
        let sub = UpperName::of(args[1]);
        let rest = &args[2..];
        match (sub.bytes(), rest) {
            (b"CHANNELS" | b"SHARDCHANNELS", [] | [_]) => {
                let sort = if sub.is(b"CHANNELS") { Sort::Channel } else { Sort::Shard };
                let mut names = channels.names(sort);
                names.retain(|name| rest.first().is_none_or(|pattern| glob_matches(pattern, name)));
                call.connection.answer(|out| {
                    resp::array(out, names.len());
                    names.iter().for_each(|name| resp::bulk(out, name));
                });
            }
            (b"NUMSUB" | b"SHARDNUMSUB", names) => {
                let sort = if sub.is(b"NUMSUB") { Sort::Channel } else { Sort::Shard };
                call.connection.answer(|out| {
                    resp::array(out, 2 * names.len());
                    for name in names {
                        resp::bulk(out, name);
                        resp::integer(out, channels.count(sort, name) as i64);
                    }
                });
            }
            (b"NUMPAT", []) => {
                let count = channels.names(Sort::Pattern).len();
                call.connection.answer(|out| resp::integer(out, count as i64));
            }
            (b"CHANNELS" | b"SHARDCHANNELS", _) => {
                let sub = String::from_utf8_lossy(&args[1][..args[1].len().min(128)]);
                return Err(format!(
                    "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try PUBSUB HELP."
                )
                .into());
            }
            (b"HELP", []) => call.connection.answer(|out| {
                resp::array(out, HELP.len());
                HELP.iter().for_each(|line| resp::simple(out, line));
            }),
            (b"HELP", _) => return Err(wrong_arity("pubsub|help")),
            (b"NUMPAT", _) => return Err(wrong_arity("pubsub|numpat")),
            _ => return Err(no_subcommand("pubsub", args[1])),
        }
        Ok(())
    }

    /// Disconnects a subscriber that leaves too much unread.
    pub(crate) fn give_up_if_slow(&mut self, now: Instant, connection: &mut Connection) {
        if self.is_too_slow(now, connection) {
            connection.is_given_up = true;
            connection.closing = true;
            self.count.subscribers_given_up += 1;
        }
    }

    /// Whether a subscriber leaves too much unread.
    fn is_too_slow(&self, now: Instant, connection: &mut Connection) -> bool {
        let unread = connection.output.len();
        let subscriber = &mut connection.subscriber;
        if unread <= UNREAD_BYTES_LONG_MAX {
            subscriber.slow_since = None;
        } else {
            subscriber.slow_since.get_or_insert(now);
        }
        let is_long = subscriber.slow_since.is_some_and(|since| now.since(since) >= UNREAD_NS);
        let is_short = self.memory.held_and_most_bytes().0 > REPLIES_BYTES_MAX;
        unread > UNREAD_BYTES_MAX || is_long || is_short && unread > UNREAD_BYTES_SHORT_MAX
    }
}

/// A message as its receiver gets it.
fn encode(message: &Message, pattern: Option<&[u8]>, resp3: bool, out: &mut Vec<u8>) {
    let word: &[u8] = match (message.sort, pattern) {
        (_, Some(_)) => b"pmessage",
        (Sort::Shard | Sort::Written, None) => b"smessage",
        (Sort::Channel | Sort::Pattern, None) => b"message",
    };
    head(out, 3 + usize::from(pattern.is_some()), resp3);
    resp::bulk(out, word);
    pattern.iter().for_each(|pattern| resp::bulk(out, pattern));
    resp::bulk(out, &message.channel);
    resp::bulk(out, &message.payload);
}

impl Gateway {
    /// A packet of another gateway.
    pub(crate) fn on_gateway(&mut self, now: Now, packet: &[u8], sink: &mut impl Sink) {
        match StreamHdr::parse(packet) {
            Ok((hdr, part)) => self.core.exchange.on_packet(now.instant, &hdr, part),
            Err(_) => self.core.count.packets_malformed += 1,
        }
        self.exchange(now, sink);
    }

    /// The number of times that another gateway counted as gone or began anew, and whether it
    /// counts as present: promises between gateways do not cover messages in flight at such times.
    #[must_use]
    pub fn breaks_with(&self, node: u16) -> (u64, bool) {
        self.core.exchange.breaks_with(node)
    }

    /// Gives messages to those who have subscribed, answers what other gateways have heard of, and
    /// tells who may have cached what was written.
    pub(crate) fn exchange(&mut self, now: Now, sink: &mut impl Sink) {
        self.look_after_users(now, sink);
        self.kill(now);
        self.look_after_pause(now, sink);
        self.look_after_events(now, sink);
        self.take_exchanged(now, sink);
        self.invalidate(now);
        self.show(now);
        self.kill(now);
    }

    fn take_exchanged(&mut self, now: Now, sink: &mut impl Sink) {
        loop {
            while let Some(message) = self.core.exchange.messages.pop_front() {
                self.deliver(now, &message);
            }
            if let Some(what) = self.core.exchange.gates.poll() {
                if !self.waits_for_events(what) {
                    self.heard(now, what, sink);
                }
            } else if !self.core.exchange.is_full()
                && let Some(id) = self.core.exchange.waiting.pop_front()
            {
                if self.connections.get(&id).is_some_and(|c| c.wait == Wait::Others) {
                    self.go_on(now, id, sink);
                }
            } else if self.core.exchange.messages.is_empty() {
                return;
            }
        }
    }

    /// Whether a subscription that all other gateways know of begins later, where events end by
    /// now.
    fn waits_for_events(&mut self, what: Waits) -> bool {
        let Waits::Subscribed(id) = what else { return false };
        let asked = self.connections.get(&id).and_then(|c| c.subscriber.asked.as_ref());
        let is_it = |(sort, name): &(Sort, Vec<u8>)| may_be_of_events(*sort, name);
        let waits = self.core.events.is_on() && asked.is_some_and(|a| a.begins.iter().any(is_it));
        if waits {
            self.core.events.wait(id);
        }
        waits
    }

    pub(crate) fn heard(&mut self, now: Now, what: Waits, sink: &mut impl Sink) {
        let (Waits::Published { id, .. } | Waits::Subscribed(id)) = what else {
            self.core.exchange.has_lost_contact = true;
            return;
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match what {
            Waits::Published { slot, .. } => {
                if let Some(slot) = connection.slot_mut(slot)
                    && let SlotState::Gated(reply) = &mut slot.state
                {
                    let reply = core::mem::take(reply);
                    slot.state = SlotState::Ready(reply);
                }
                connection.write_in_turn();
            }
            Waits::Regained => {}
            Waits::Subscribed(id) => {
                // The request may be obsolete by now.
                let Some(asked) = connection.subscriber.asked.take() else { return };
                for (sort, name) in &asked.begins {
                    self.core.exchange.channels.begin(*sort, name, id);
                }
                connection.output.append(&asked.reply);
                connection.first_slot += 1;
            }
        }
        self.core.memory.note(now.instant, connection);
        list(&mut self.ready, connection);
        let goes_on = match connection.wait {
            Wait::Subscribed => connection.subscriber.asked.is_none(),
            Wait::Quiet | Wait::Users => connection.slots.is_empty(),
            Wait::Slots => connection.slots.len() < self.core.setup.limits.commands_max,
            _ => false,
        };
        if goes_on {
            self.go_on(now, id, sink);
            self.try_blocked(now, sink);
        }
    }

    /// A message to all who get it here.
    pub(crate) fn deliver(&mut self, now: Now, message: &Message) {
        let receivers: Vec<(ConnectionId, Option<Vec<u8>>)> = {
            let channels = &self.core.exchange.channels;
            let all = channels.receivers(message.sort, &message.channel).into_iter();
            all.map(|(id, pattern)| (id, pattern.map(<[u8]>::to_vec))).collect()
        };
        // Once for each protocol; patterns differ.
        let mut encoded: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
        for resp3 in [false, true] {
            encode(message, None, resp3, &mut encoded[usize::from(resp3)]);
        }
        let mut own = Vec::new();
        for (id, pattern) in receivers {
            let Some(connection) = self.connections.get_mut(&id).filter(|c| !c.is_given_up) else {
                continue;
            };
            let bytes = match &pattern {
                None => &encoded[usize::from(connection.resp3)],
                Some(pattern) => {
                    own.clear();
                    encode(message, Some(pattern), connection.resp3, &mut own);
                    &own
                }
            };
            connection.push(bytes);
            self.core.count.messages += 1;
            self.core.give_up_if_slow(now.instant, connection);
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
        }
    }
}
