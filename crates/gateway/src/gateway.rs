//! The gateway machine: its inputs and outputs, and which connection goes on when.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::{Class, Client, Request, Size};
use concord_core::machine::Deadline;
use concord_core::rng::splitmix64;
use concord_core::{Instant, Machine, Nothing, Now, ObjectId, RequestNumber, Rng};
use concord_engine::CommandBuf;
use concord_wire::gateways::OP_STREAM;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Addr, Flags, FurtherIds, Kind, Sink, VALUE_BYTES_MAX, header};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::blocking::members::Members;
use crate::blocking::waiters::{End, Waiters};
use crate::commands::Commands;
use crate::commands::errors::Errors;
use crate::commands::info;
use crate::commands::key_names::Shown;
use crate::commands::latencies::Latencies;
use crate::commands::long_reads::LongReads;
use crate::commands::monitors::Monitors;
use crate::commands::slowlog::SlowLog;
use crate::connection::pause::Pause;
use crate::connection::room::Waiting;
use crate::connection::traffic::Traffic;
use crate::connection::{Connection, ConnectionId, Connections, Offer, Offered, Target, Wait};
use crate::memory::inputs::{INPUT_BYTES_MAX, Inputs};
use crate::memory::tentative::Tentative;
use crate::memory::{Grant, Memory, unread_bytes, waits_for_client};
use crate::process::Process;
use crate::pubsub::events::Events;
use crate::pubsub::exchange::Exchange;
use crate::request::Parsed;
use crate::scripts::Scripts;
use crate::setup::{GatewayConfig, GatewayCounters, Settings};
use crate::state::{CommandContext, Core, Flow, TOO_LARGE, Totals};
use crate::tracking::Tracking;
use crate::users::Users;

/// The largest number of clients with pending messages before the end of a batch.
const TOLD_MAX: usize = 1_024;

/// The gateway: see the crate's documentation for the law of its API.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) core: Core,
    pub(crate) connections: Connections,
    /// The connections whose output, input or end the driver has to look at, each once.
    pub(crate) ready: VecDeque<ConnectionId>,
    /// Connections whose next command waits for room in the rack.
    waiting: Waiting,
    /// Long replies to writes whose clients are gone: fetched all the same, since a write keeps its
    /// place in the window until it is answered.
    orphans: Vec<(RequestNumber, u32)>,
    pub(crate) is_shut_down: bool,
    /// There was input since [`Gateway::settle`] was called last.
    is_unsettled: bool,
}

impl Machine for Gateway {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        if header::is(packet, Kind::Gateways, OP_STREAM) {
            return self.on_gateway(now, packet, sink);
        }
        if self.on_chain_packet(now, packet, sink) {
            return;
        }
        if self.core.members.are_asked() {
            self.note_members(now, packet);
        }
        self.core.client.handle(now, from, packet, sink);
        self.take_done(now, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.core.started_at.get_or_insert(now.instant);
        if self.must_ask_table() {
            self.ask_table(now, sink);
        }
        self.core.client.tick(now, sink);
        self.core.look_after_waiters(now, sink);
        self.core.look_after_members(now, sink);
        self.look_after_chain(now, sink);
        self.core.look_for_shadowed(now, sink);
        self.core.check_tracked(now, sink);
        self.core.exchange.tick(now, sink);
        self.look_after_users(now, sink);
        self.look_after_pause(now, sink);
        self.look_after_events(now, sink);
        if self.core.memory.must_look(now.instant, self.core.inputs.are_short()) {
            self.look_for_stuck(now);
        }
        self.give_up_stuck(now);
        self.give_places(now);
        self.take_done(now, sink);
        self.settle(now, sink);
        self.core.exchange.flush(now, sink);
    }

    fn deadline(&self) -> Deadline {
        if self.must_ask_table() {
            return Deadline { at: Instant(0), reason: "ask for the command table" };
        }
        let at = self.core.memory.deadline(self.core.inputs.are_short());
        let look =
            Deadline { at, reason: "clients that do not read, or owe the rest of a command" };
        let core = &self.core;
        // With all requests under way an answer comes first.
        let may_ask = core.client.has_room(Class::Read, Size::Small);
        let users_at = if may_ask { core.users.deadline() } else { Instant::NEVER };
        let parts = [
            (core.waiters.deadline(), "commands that wait"),
            (core.members.deadline(), "who the members are"),
            (core.chain_deadline(), "a chain of switches"),
            (core.shadowed_deadline(), "keys below the chain's prefix"),
            (core.exchange.deadline(), "other gateways"),
            (core.tracking.deadline(), "keys that clients cache"),
            (users_at, "users"),
            (core.pause.deadline(), "a pause of clients"),
            (core.events.deadline(), "events of keys"),
        ];
        let parts = parts.into_iter().map(|(at, reason)| Deadline { at, reason });
        parts.fold(core.client.deadline().min(look), Deadline::min)
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        while self.is_unsettled {
            self.settle(now, sink);
        }
        self.core.exchange.flush(now, sink);
    }
}

impl Gateway {
    /// The reply to one connection too many.
    pub const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    /// A gateway without connections. `rng` draws session ids: its seed must come from the driver's
    /// entropy, so that no two process starts have the same (trap T16 b).
    #[must_use]
    pub fn new(mut setup: GatewayConfig, rng: Rng) -> Gateway {
        setup.client.grants_replies = true;
        // Drawn beside, so that what the session's id is drawn from is as it was, and hashed.
        let mut drawn = rng.clone();
        let run_id = info::run_id([1, 2, 3].map(|n| splitmix64(drawn.next_u64() ^ n)));
        let exchange =
            Exchange::new(setup.node, drawn.next_u64(), core::mem::take(&mut setup.others));
        let users = Users::new(setup.requirepass.as_deref(), drawn.next_u64());
        let mut core = Core {
            exchange,
            memory: Memory::new(setup.limits.replies_bytes_max, setup.limits.output_bytes_max),
            inputs: Inputs::default(),
            tentative: Tentative::default(),
            long_reads: LongReads::default(),
            fetched: 0,
            failed_at: None,
            value_bytes_max: setup.limits.value_bytes_max.min(VALUE_BYTES_MAX),
            client: Client::new(setup.client.clone(), rng),
            commands: Commands::new(&setup.table, setup.redis),
            wants_table: setup.redis,
            setup,
            chain: None,
            targets: HashMap::default(),
            scripts: Scripts::default(),
            tracking: Tracking::default(),
            users,
            events: Events::default(),
            pause: Pause::default(),
            killed: Vec::new(),
            monitors: Monitors::default(),
            waiters: Waiters::default(),
            together: HashMap::default(),
            members: Members::default(),
            looks: HashMap::default(),
            command: CommandBuf::new(),
            table_request: None,
            count: GatewayCounters::default(),
            errors: Errors::default(),
            slow_log: SlowLog::default(),
            reads: Latencies::default(),
            writes: Latencies::default(),
            started_at: None,
            rack_info: String::new(),
            memory_bytes_max: 0,
            connected: 0,
            traffic: Traffic::default(),
            settings: Settings::default(),
            counted_from: Totals::default(),
            process: Process::default(),
            run_id,
            last_figures: Vec::new(),
        };
        core.client.keep_commands_from(core.slow_log.slow_ns());
        Gateway {
            core,
            connections: HashMap::default(),
            ready: VecDeque::new(),
            waiting: Waiting::default(),
            orphans: Vec::new(),
            is_shut_down: false,
            is_unsettled: false,
        }
    }

    /// A client connected from `peer`. False: there are too many; write [`Gateway::TOO_MANY`] and
    /// close.
    pub fn connected(&mut self, now: Now, id: ConnectionId, peer: &str) -> bool {
        if self.is_shut_down || self.core.connected >= self.core.setup.connections_max {
            self.core.count.connections_refused += 1;
            return false;
        }
        self.core.count.connections += 1;
        self.core.connected += 1;
        let (authenticated, user) = (self.core.users.are_open(), self.core.users.default_user());
        let connection = Connection::new(id, peer, now.instant, authenticated, user);
        self.connections.insert(id, Box::new(connection));
        true
    }

    /// The gateway's own end of a connection, for CLIENT LIST.
    pub fn set_local(&mut self, id: ConnectionId, local: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.local = local.into();
        }
    }

    /// The connection is gone; what it asked for may still be executed.
    pub fn closed(&mut self, id: ConnectionId) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        self.core.inputs.forget(&mut connection);
        self.core.waiters.forget(id);
        self.core.members.forget(id);
        self.core.forget_chain(id);
        self.core.unsubscribe_all(&mut connection);
        self.core.end_tracking(&mut connection);
        self.core.end_monitor(&mut connection);
        let slots = connection.first_slot..;
        let slots = slots.zip(core::mem::take(&mut connection.slots));
        for (number, footprint) in slots.filter_map(|(n, slot)| Some((n, slot.footprint?))) {
            let is_it = |target: &Target| target.connection == id && target.slot == number;
            let is_among = |ids: &Vec<ConnectionId>| ids.contains(&id);
            if self.core.targets.values().any(is_it) || self.core.together.values().any(is_among) {
                self.core.tracking.orphans.insert((id, number), footprint);
            }
        }
        self.core.connected -= 1;
        self.core.memory.forget(&connection);
        let offers = connection.offers.into_values();
        self.orphans.extend(offers.filter_map(|offer| match offer.what {
            Offered::Write(request) => Some((request, offer.bytes)),
            Offered::Read(..) => None,
        }));
    }

    /// Bytes of a connection.
    pub fn input(&mut self, now: Now, id: ConnectionId, bytes: &[u8], sink: &mut impl Sink) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.active_at = now.instant;
        self.core.traffic.sample(now.instant, self.core.count.commands);
        self.core.traffic.input_bytes += bytes.len() as u64;
        connection.note_input();
        if connection.wait == Wait::Nothing {
            connection.came_at = now.instant;
        }
        connection.input.extend_from_slice(bytes);
        match connection.wait {
            Wait::Nothing => {
                self.go_on(now, id, sink);
                self.note_unsettled(now, sink);
            }
            Wait::Blocked | Wait::Subscribed | Wait::Users => list(&mut self.ready, connection),
            Wait::Order(..)
            | Wait::Slots
            | Wait::Room(..)
            | Wait::Output
            | Wait::Quiet
            | Wait::Paused
            | Wait::Members
            | Wait::Chain
            | Wait::Others => {}
        }
    }

    /// The next connection whose output, input or end the driver is to look at.
    pub fn take_ready(&mut self, now: Now, sink: &mut impl Sink) -> Option<ConnectionId> {
        loop {
            if let Some(id) = self.ready.pop_front() {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.is_listed = false;
                    return Some(id);
                }
            } else if self.is_unsettled {
                self.settle(now, sink);
            } else {
                return None;
            }
        }
    }

    /// The bytes to write to a connection. The driver reports by [`Gateway::written`] how many it
    /// wrote.
    #[must_use]
    pub fn output(&self, id: ConnectionId) -> Option<&[u8]> {
        self.connections.get(&id).map(|c| c.output.unread())
    }

    /// Whether the connection is to be closed now: its client has read nothing for long, and others
    /// wait for the memory that its replies take, or it is at its bound and sends further commands.
    #[must_use]
    pub fn is_given_up(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.is_given_up)
    }

    /// The address of a client that was given up, and the number of bytes that it has not read.
    #[must_use]
    pub fn given_up(&self, id: ConnectionId) -> Option<(&str, usize)> {
        let connection = self.connections.get(&id).filter(|c| c.is_given_up)?;
        Some((&connection.peer, connection.output.len()))
    }

    /// Whether the connection is to be closed once its output is written.
    #[must_use]
    pub fn wants_close(&self, id: ConnectionId) -> bool {
        let is_done = |c: &Connection| c.closing || c.has_ended && c.wait == Wait::Nothing;
        self.connections.get(&id).is_some_and(|c| is_done(c) && c.slots.is_empty())
    }

    /// The client sends no more: it has shut its side, or is gone. What it sent is answered all the
    /// same, as a redis-server does; then the connection wants to be closed, or [is
    /// over](Gateway::is_over) at once.
    pub fn ended(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.has_ended = true;
        list(&mut self.ready, connection);
    }

    /// Whether the client sends no more, as far as the driver has said.
    #[must_use]
    pub fn has_ended(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.has_ended)
    }

    /// Whether to close the connection now: its client sends no more, and waits for no reply to a
    /// command in progress.
    #[must_use]
    pub fn is_over(&self, id: ConnectionId) -> bool {
        let waits = |c: &Connection| {
            matches!(
                c.wait,
                Wait::Blocked | Wait::Subscribed | Wait::Users | Wait::Paused | Wait::Members
            )
        };
        let listens = |c: &Connection| c.is_monitor || !c.subscriber.is_empty();
        let is_over = |c: &Connection| waits(c) || listens(c) || self.core.waits_in_crowd(c);
        self.connections.get(&id).is_some_and(|c| c.has_ended && is_over(c))
    }

    /// Whether a long reply of the connection waits for room while clients wait for each other: one
    /// whose client is gone is not to be fetched.
    #[must_use]
    pub fn waits_in_crowd(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| self.core.waits_in_crowd(c))
    }

    /// The largest number of bytes that the driver should read from the connection, at most 64 KiB:
    /// 0 while its commands wait for the rack, for each other, for the client to read its replies,
    /// or for a place for a long command.
    #[must_use]
    pub fn input_room(&self, id: ConnectionId) -> usize {
        self.connections.get(&id).map_or(0, |c| c.input_room())
    }

    /// Whether the driver should read the connection.
    #[must_use]
    pub fn wants_input(&self, id: ConnectionId) -> bool {
        self.input_room(id) > 0
    }

    /// Notes that the driver wrote `bytes` of a connection's output. Commands that waited for that
    /// continue.
    pub fn written(&mut self, now: Now, id: ConnectionId, bytes: usize, sink: &mut impl Sink) {
        self.core.traffic.sample(now.instant, self.core.count.commands);
        self.core.traffic.output_bytes += bytes as u64;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.output.took(bytes);
        connection.written_bytes += bytes as u64;
        connection.unread_since = None;
        self.core.memory.note(now.instant, connection);
        self.grant_offers(now, id, false, sink);
        self.grant_short(now, sink);
        self.take_done(now, sink);
    }

    /// No more commands: what was sent is answered, then every connection wants to be closed.
    pub fn shutdown(&mut self) {
        self.is_shut_down = true;
        let mut ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.closing = true;
                list(&mut self.ready, connection);
                self.core.waiters.end(id, End::Error);
                self.core.members.end(id, End::Error);
            }
        }
        self.answer_ended();
    }

    /// Registers a session with the rack, if there is none, so that a gateway without clients is
    /// ready for the first one, and reports it.
    pub fn open_session(&mut self, now: Now, sink: &mut impl Sink) {
        self.core.client.open_session(now, sink);
    }

    fn must_ask_table(&self) -> bool {
        let core = &self.core;
        core.wants_table
            && core.table_request.is_none()
            && core.client.has_room(Class::Read, Size::Small)
    }

    fn ask_table(&mut self, now: Now, sink: &mut impl Sink) {
        let flags = Flags::WILDCARD;
        let command = self.core.command.encode(0, [&b"COMMAND"[..]]);
        let (obj_id, further) = (ObjectId(0), FurtherIds::NONE);
        let request = Request { class: Class::Read, obj_id, further, flags, after: None, command };
        self.core.table_request = self.core.client.submit(now, request, sink).ok();
    }

    /// Deals with as many commands of a connection as may go now.
    pub(crate) fn go_on(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) {
        // Taken out, so that CLIENT LIST can look at the others.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        // It may have messages for other connections.
        self.is_unsettled = true;
        connection.wait = Wait::Nothing;
        connection.query_bytes = connection.input.len();
        let input = core::mem::take(&mut connection.input);
        let mut parser = core::mem::take(&mut connection.parser);
        parser.value_bytes_max = self.core.value_bytes_max;
        let mut at = 0;
        while may_go_on(&mut self.core, &mut connection) {
            match parser.parse(&input[at..], connection.authenticated) {
                Parsed::Incomplete => break,
                Parsed::Dropped(bytes) => at += bytes,
                Parsed::TooLarge => {
                    parser.next();
                    self.core.count.requests_too_large += 1;
                    connection.abort_multi();
                    connection.refuse(TOO_LARGE);
                }
                Parsed::Error(error) => {
                    self.core.count.protocol_errors += 1;
                    connection.refuse(&error.text());
                    connection.closing = true;
                    at = input.len();
                }
                Parsed::Request(length) => {
                    let (bytes, ranges) = parser.args(&input[at..]);
                    let (others, shown) = (&self.connections, Shown::AsIs);
                    let mut call = CommandContext {
                        now,
                        connection: &mut connection,
                        others,
                        shown,
                        footprint: None,
                        is_executed: false,
                    };
                    if !ranges.is_empty()
                        && self.core.run(&mut call, bytes, ranges, sink) == Flow::Waits
                    {
                        connection.has_more = input.len() > at + length;
                        break;
                    }
                    parser.next();
                    at += length;
                }
            }
        }
        connection.parser = parser;
        connection.input = input;
        connection.input.drain(..at);
        self.core.inputs.note(now.instant, &mut connection, at > 0);
        if connection.input.is_empty() {
            connection.input.shrink_to(INPUT_BYTES_MAX);
        }
        match connection.wait {
            Wait::Room(class, size) => {
                let is_first = connection.has_nothing_unanswered();
                let expected = connection.expected();
                self.waiting.push(id, (class, size), expected, is_first);
            }
            Wait::Nothing
            | Wait::Order(..)
            | Wait::Slots
            | Wait::Output
            | Wait::Blocked
            | Wait::Quiet
            | Wait::Subscribed
            | Wait::Users
            | Wait::Paused
            | Wait::Members
            | Wait::Chain
            | Wait::Others => {}
        }
        self.core.memory.note(now.instant, &mut connection);
        list(&mut self.ready, &mut connection);
        self.connections.insert(id, connection);
        self.give_places(now);
    }

    /// Gives free places for long commands to the connections that wait for one.
    fn give_places(&mut self, now: Now) {
        while let Some(id) = self.core.inputs.poll() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if self.core.inputs.give(now.instant, connection) {
                list(&mut self.ready, connection);
            }
        }
    }

    /// Long replies that replicas offered: each waits until its connection may take it.
    fn take_offers(&mut self, now: Now, sink: &mut impl Sink) {
        for (request, bytes) in core::mem::take(&mut self.orphans) {
            self.core.client.grant(now, request, bytes, sink);
        }
        while let Some((request, bytes)) = self.core.client.poll_offer() {
            let is_own = self.core.table_request == Some(request)
                || self.core.users.is_asked(request)
                || self.core.events.is_asked(request)
                || self.core.looks_for_shadowed(request)
                || self.core.together.contains_key(&request.0);
            if is_own {
                self.core.client.grant(now, request, bytes, sink);
                continue;
            }
            let Some(target) = self.core.targets.get_mut(&request.0) else { continue };
            self.core.tentative.settle(&mut target.expected);
            let granted_bytes = core::mem::take(&mut target.granted_bytes) as usize;
            let target = *target;
            self.core.fetched -= usize::from(granted_bytes > 0);
            let Some(connection) = self.connections.get_mut(&target.connection) else {
                // The reply has no reader, but its place in the window must be given back.
                if self.core.client.withdraw(request, sink).is_some() {
                    self.core.targets.remove(&request.0);
                } else {
                    self.core.client.grant(now, request, bytes, sink);
                }
                continue;
            };
            connection.was_short = Some(false);
            // The earlier grant was smaller.
            connection.granted_bytes -= granted_bytes;
            let is_first = connection.is_next_reply(target.slot, target.part);
            let grant = self.core.memory.grants(connection, bytes as usize, is_first);
            let may_fetch = target.class == Class::Write
                || self.core.may_fetch(now.instant)
                    && self.core.memory.may_take(now.instant, connection);
            if grant == Grant::Yes && connection.offers.is_empty() && may_fetch {
                self.core.memory.take(now.instant, connection);
                self.core.note_granted(now, connection, request, bytes);
                self.core.client.grant(now, request, bytes, sink);
                continue;
            }
            let what = match self.core.client.withdraw(request, sink) {
                Some(read) => {
                    self.core.targets.remove(&request.0);
                    connection.offer_bytes += read.bytes();
                    connection.note_long_reply();
                    self.core.tentative.note_long_reply();
                    let long_read = self.core.long_reads.note(read.request().command, bytes);
                    Offered::Read(read, Target { long_read, ..target })
                }
                None => Offered::Write(request),
            };
            connection.offers.insert((target.slot, target.part), Offer { bytes, what });
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
            self.grant_offers(now, target.connection, false, sink);
        }
        self.grant_short(now, sink);
    }

    /// Asks for long replies of a connection, in the order of its commands, as far as it may; then
    /// commands go on that waited for its client to read. `was_short` if it was its turn among
    /// those for whose replies there was no room.
    fn grant_offers(&mut self, now: Now, id: ConnectionId, was_short: bool, sink: &mut impl Sink) {
        self.grant_in_order(now, id, was_short, sink);
        let connection = self.connections.get(&id);
        if connection.is_some_and(|c| c.wait == Wait::Output && !self.core.is_full(c)) {
            self.go_on(now, id, sink);
        }
    }

    fn grant_in_order(
        &mut self,
        now: Now,
        id: ConnectionId,
        was_short: bool,
        sink: &mut impl Sink,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        // If few are fetched at a time, a connection that has had one waits for the others.
        let has_turn =
            was_short || !self.core.memory.is_pressed(now.instant) || !self.core.memory.is_short();
        while let Some((&(slot, part), offer)) = connection.offers.first_key_value() {
            let is_first = connection.is_next_reply(slot, part);
            let bytes = offer.bytes;
            let is_read = matches!(offer.what, Offered::Read(..));
            let grant = match self.core.memory.grants(connection, bytes as usize, is_first) {
                Grant::Yes
                    if is_read
                        && !(has_turn
                            && self.core.client.has_room(Class::Read, Size::Small)
                            && self.core.may_fetch(now.instant)
                            && self.core.memory.may_take(now.instant, connection)) =>
                {
                    Grant::NoRoom
                }
                grant => grant,
            };
            match grant {
                Grant::Yes => {}
                Grant::NotYet => return,
                Grant::NoRoom => {
                    self.core.memory.add_short(now.instant, connection, was_short);
                    return;
                }
            }
            let Some((_, offer)) = connection.offers.pop_first() else { return };
            let has_waited = was_short && !connection.reads_long();
            self.core.count.replies_paced += u64::from(has_waited);
            self.core.memory.take(now.instant, connection);
            let request = match offer.what {
                Offered::Write(request) => request,
                Offered::Read(read, target) => {
                    connection.offer_bytes -= read.bytes();
                    let Ok(request) = self.core.client.submit(now, read.request(), sink) else {
                        return;
                    };
                    self.core.targets.insert(request.0, target);
                    request
                }
            };
            self.core.note_granted(now, connection, request, bytes);
            self.core.client.grant(now, request, bytes, sink);
        }
    }

    /// Connections for whose replies there was no room, as far as there is by now: first those
    /// whose clients have not shown that they read, whose turns are few.
    fn grant_short(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(id) = self.core.memory.next_short_new(now.instant) {
            if !self.was_granted(now, id, sink) {
                self.core.memory.put_off_new(now.instant);
                break;
            }
        }
        while let Some(id) = self.core.memory.next_short() {
            if !self.was_granted(now, id, sink) && self.core.memory.is_next_short(id) {
                return;
            }
        }
    }

    /// Asks for the replies of a connection for which there was no room; whether there was for all
    /// of them.
    fn was_granted(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        connection.is_short = false;
        self.grant_offers(now, id, true, sink);
        self.connections.get(&id).is_none_or(|connection| !connection.is_short)
    }

    /// Looks for clients that others wait for: they read nothing, or do not send the rest of a
    /// command.
    fn look_for_stuck(&mut self, now: Now) {
        let all = &self.connections;
        let still_waits = |id| all.get(&id).is_some_and(|c| waits_for_client(c));
        self.core.memory.keep_at_limit(still_waits);
        let core = &self.core;
        let all = self.connections.values();
        let stuck = all.filter(|connection| core.is_stuck(now.instant, connection));
        let mut stuck: Vec<ConnectionId> = stuck.map(|connection| connection.id).collect();
        stuck.sort_unstable();
        let unread = self.connections.values().map(|c| unread_bytes(now.instant, c)).sum();
        let mut of_stuck = stuck.iter().filter_map(|id| self.connections.get(id));
        let holds_replies = of_stuck.any(|c| core.memory.is_stuck(now.instant, c));
        self.core.memory.looked(now.instant, stuck, holds_replies, unread);
    }

    /// Disconnects those among them whose turn it is.
    fn give_up_stuck(&mut self, now: Now) {
        while let Some(id) = self.core.memory.next_stuck(now.instant) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if self.core.is_stuck(now.instant, connection) {
                connection.is_given_up = true;
                connection.closing = true;
                if self.core.is_in_the_way(now.instant, connection) {
                    self.core.count.clients_given_up += 1;
                } else {
                    self.core.count.clients_over_limit += 1;
                }
                list(&mut self.ready, connection);
            }
        }
        let is_pressed = self.core.memory.is_pressed(now.instant);
        let is_crowded = is_pressed || self.core.memory.is_crowded();
        self.core.tentative.is_pressed = is_crowded;
        self.core.client.set_modest(is_crowded);
    }

    /// Delivers the rack's answers. Commands that waited for them continue.
    fn take_done(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(mut done) = self.core.client.poll() {
            if self.core.table_request == Some(done.request) {
                self.core.take_table(&done);
                continue;
            }
            if self.core.users.is_asked(done.request) {
                self.take_users(now, &done);
                continue;
            }
            if self.core.events.is_asked(done.request) {
                self.take_events(now, &done, sink);
                continue;
            }
            if self.core.looks_for_shadowed(done.request) {
                self.core.take_shadowed(now.instant, &done);
                continue;
            }
            if self.core.take_check(now, &done) {
                continue;
            }
            if let Some(key) = taken(&mut self.core.looks, done.request) {
                self.core.looked(&key, done);
                continue;
            }
            if let Some(ids) = taken(&mut self.core.together, done.request) {
                self.take_together(now, &ids, done, sink);
                continue;
            }
            let Some(mut target) = self.core.targets.remove(&done.request.0) else { continue };
            let was_counted = self.core.tentative.settle(&mut target.expected);
            if was_counted && target.granted_bytes == 0 {
                self.core.tentative.note_short_reply();
            }
            if target.granted_bytes > 0 && done.reply.len() <= BODY_BYTES_MAX {
                self.core.long_reads.forget(target.long_read);
            }
            self.core.fetched -= usize::from(target.granted_bytes > 0);
            if target.class == Class::Write {
                self.core.events.hint();
            }
            let latencies = match target.only_reads {
                true => &mut self.core.reads,
                false => &mut self.core.writes,
            };
            latencies.add(done.trace.latency_ns);
            let Some(connection) = self.connections.get_mut(&target.connection) else {
                self.core.take_orphan(now, (target.connection, target.slot), &done);
                self.core.take_unread(done.reply);
                continue;
            };
            self.core.slow_log.note(now, connection, &done);
            self.core.client.give_back(core::mem::take(&mut done.command));
            self.core.take_reply(now, connection, target, done);
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
            let connection: &Connection = if connection.wait == Wait::Output
                || !connection.offers.is_empty()
            {
                self.grant_offers(now, target.connection, false, sink);
                let Some(connection) = self.connections.get(&target.connection) else { continue };
                connection
            } else {
                connection
            };
            let goes_on = match connection.wait {
                Wait::Order(class, subject) => !connection.must_wait(class, subject),
                Wait::Slots => {
                    connection.has_room_for_request()
                        && (connection.slots.len() < self.core.setup.limits.commands_max
                            || connection.is_splitting)
                }
                Wait::Blocked => connection.is_unblocked(),
                Wait::Quiet | Wait::Users => connection.slots.is_empty(),
                Wait::Nothing
                | Wait::Room(..)
                | Wait::Output
                | Wait::Subscribed
                | Wait::Paused
                | Wait::Members
                | Wait::Chain
                | Wait::Others => false,
            };
            if goes_on {
                self.go_on(now, target.connection, sink);
            }
        }
        self.take_offers(now, sink);
        while let Some(object) = self.core.client.poll_pushed() {
            self.core.waiters.written(object);
        }
        self.note_unsettled(now, sink);
    }

    /// There was input. What follows from it is done once for all that comes together
    /// ([`Gateway::settle`]), but for what must not wait for other inputs.
    fn note_unsettled(&mut self, now: Now, sink: &mut impl Sink) {
        self.is_unsettled = true;
        if !self.core.killed.is_empty() {
            self.kill(now);
        }
        let told = self.core.tracking.outbox.len() + self.core.monitors.lines.len();
        if !self.waiting.is_empty() || told > TOLD_MAX {
            // Waiting commands come before those that are still to be read.
            self.settle(now, sink);
        } else if !self.core.exchange.messages.is_empty() {
            // To those who have subscribed by now, as PUBLISH has counted them.
            self.exchange(now, sink);
        }
    }

    /// Handles the further effects of inputs: other waiting commands continue, and messages go to
    /// other connections.
    fn settle(&mut self, now: Now, sink: &mut impl Sink) {
        self.is_unsettled = false;
        self.wake_askers(now, sink);
        self.try_blocked(now, sink);
        self.exchange(now, sink);
        while self.core.client.has_room(Class::Read, Size::Small)
            && let Some(id) = self.waiting.next_read(&self.core.tentative)
        {
            self.go_on(now, id, sink);
        }
        for size in Size::ALL {
            while self.core.client.has_room(Class::Write, size)
                && let Some(id) = self.waiting.next_write(size)
            {
                self.go_on(now, id, sink);
            }
        }
        self.invalidate(now);
        self.show(now);
        self.kill(now);
    }
}

impl Gateway {
    /// Shows commands to those who see them.
    pub(crate) fn show(&mut self, now: Now) {
        while let Some((ids, line)) = self.core.monitors.lines.pop_front() {
            for id in ids {
                let connection = self.connections.get_mut(&id);
                let Some(connection) = connection.filter(|c| c.is_monitor && !c.is_given_up) else {
                    continue;
                };
                connection.push(&line);
                self.core.give_up_if_slow(now.instant, connection);
                self.core.memory.note(now.instant, connection);
                list(&mut self.ready, connection);
            }
        }
    }

    /// Closes connections that CLIENT KILL named.
    pub(crate) fn kill(&mut self, now: Now) {
        for id in core::mem::take(&mut self.core.killed) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.is_given_up = true;
            connection.closing = true;
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
        }
    }
}

/// Removes and returns the entry of a request. The check for an empty map is for speed: mostly
/// there are no entries.
pub(crate) fn taken<T>(
    of: &mut HashMap<u64, T, FxBuildHasher>,
    request: RequestNumber,
) -> Option<T> {
    if of.is_empty() { None } else { of.remove(&request.0) }
}

/// Puts a connection on the list of those that the driver is to look at, if it is not there.
pub(crate) fn list(ready: &mut VecDeque<ConnectionId>, connection: &mut Connection) {
    if !connection.is_listed {
        connection.is_listed = true;
        ready.push_back(connection.id);
    }
}

/// Whether the next command of a connection may be looked at.
fn may_go_on(core: &mut Core, connection: &mut Connection) -> bool {
    if connection.is_splitting {
        // A command that was sent in part goes on, whatever came since.
        return true;
    }
    if connection.closing
        || matches!(connection.wait, Wait::Blocked | Wait::Subscribed | Wait::Users | Wait::Chain)
    {
        return false;
    }
    if !core.users.are_known() {
        connection.wait = Wait::Users;
        return false;
    }
    if connection.selecting.is_some() {
        connection.wait = Wait::Quiet;
        return false;
    }
    if connection.slots.len() >= core.setup.limits.commands_max {
        core.count.slots_full += 1;
        connection.wait = Wait::Slots;
        return false;
    }
    if let Some(wait) = core.wait_of(connection) {
        connection.wait = wait;
        return false;
    }
    true
}
