//! A client process that is a gateway, and the Redis clients that are connected to it.
//!
//! The gateway is the machine that ships, and its driver is here: data from clients waits in a
//! socket until the gateway wants input, and data for clients waits until they read.

use std::collections::VecDeque;

use concord_client::ClientConfig;
use concord_core::{MS, Machine, Now, Rng, Sink};
use concord_engine::{CommandTable, resp};
use concord_gateway::{ConnectionId, Gateway, GatewayConfig, Limits};

use super::cache::Cache;
use super::clients::{GOOD_MIN, Pace, describe};
use super::moves::moved;
use super::pipeline::{Awaited, End, Pipeline, Wanted, Writer, judge};
use super::subscribers::Subscribers;
use super::together::{Known, Said};
use super::{Process, Rack, Role, Stage, together};
use crate::systems::store::plan::Plan;
use crate::world::{Event, addr};

/// The maximum time between two parts of a pipeline, and before a client gives its connection up,
/// in ns.
const PIECE_NS_MAX: u64 = 2 * MS;
/// The maximum time between two pipelines of a client that does not read, in ns.
const AHEAD_NS_MAX: u64 = MS;
/// The maximum number of commands that a client sends without reading.
const AHEAD_MAX: usize = 10;
/// The maximum number of commands in a pipeline after all faults have ended: the rack owes each
/// connection a few answers.
const HEALED_MAX: u64 = 2;
/// The factor by which a connection that has these answers pauses longer, to leave the rack to the
/// others.
const LEAVES_TIMES: u64 = 4;
/// The maximum number of bytes that a connection accepts while its client does not read.
const ROOM_BYTES_MAX: u64 = 100;

/// The connection of a Redis client.
pub(super) struct Connection {
    /// The id of the connection at the gateway; another one after each connect.
    id: Option<ConnectionId>,
    rng: Rng,
    /// Whether RESP3 is in force after the commands that were sent.
    resp3: bool,
    /// The data to send, and when.
    sending: VecDeque<(u64, Vec<u8>)>,
    /// Whether the client closes its sending side after the data in `sending`.
    shuts: bool,
    /// Whether the gateway has closed the connection after the client closed its sending side while
    /// its commands waited for others.
    is_over: bool,
    /// The time at which the client gives the connection up, in ns.
    closes_ns: Option<u64>,
    /// The data that arrived at the gateway, and that it has not read.
    socket: Vec<u8>,
    awaited: VecDeque<Awaited>,
    /// The data that the gateway wrote, and that the client has not handled.
    received: Vec<u8>,
    /// The number of these bytes that are known to be an incomplete reply.
    torn_bytes: usize,
    /// The time from which on the client reads, in ns.
    reads_from_ns: u64,
    /// The number of bytes that the connection accepts until then.
    room: usize,
    /// The time at which the client begins the next pipeline, in ns; `None` while replies are
    /// awaited.
    turn_ns: Option<u64>,
    /// The number of commands in the last pipeline: the longer it was, the longer its client
    /// pauses.
    commands: u64,
    /// The number of operations that were begun and answered after all faults had ended.
    good: u64,
    /// Whether the last change of its user was acknowledged.
    has_changed: bool,
    /// Whether the connection watches keys after the commands that were sent.
    watches: bool,
    known: Known,
    /// The time at which the connection is looked at next, in ns; `u64::MAX` if that is not
    /// scheduled.
    wake_ns: u64,
}

impl Connection {
    /// The time at which the client has something to do.
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let piece_ns = self.sending.front().map(|(at_ns, _)| *at_ns);
        let reads_ns = Some(self.reads_from_ns).filter(|at_ns| *at_ns > now_ns);
        [piece_ns, reads_ns, self.closes_ns, self.turn_ns].into_iter().flatten().min()
    }

    /// Sends a pipeline in several parts; returns the time of the last, in ns.
    fn send(&mut self, pipeline: Pipeline, now_ns: u64) -> u64 {
        self.resp3 = pipeline.resp3;
        self.watches = pipeline.watches;
        self.commands = pipeline.commands.len() as u64;
        let pieces = pieces(&mut self.rng, now_ns, pipeline.bytes.len());
        let last_ns = pieces.last().map_or(now_ns, |(at_ns, _)| *at_ns);
        for (end, mut awaited) in pipeline.commands {
            let sent = pieces.iter().find(|(_, to)| end <= *to);
            awaited.called(sent.map_or(last_ns, |(at_ns, _)| *at_ns));
            self.awaited.push_back(awaited);
        }
        let mut from = 0;
        for (at_ns, to) in pieces {
            self.sending.push_back((at_ns, pipeline.bytes[from..to].to_vec()));
            from = to;
        }
        last_ns
    }

    /// Whether a reply contradicts the change that the connection has made to its user.
    fn is_undone_by(&mut self, awaited: &Awaited, bytes: &[u8]) -> bool {
        let is_ok = bytes == b"+OK\r\n";
        match awaited.wanted {
            Wanted::Changed => self.has_changed = is_ok,
            Wanted::Allowed => return self.has_changed && !is_ok,
            _ => {}
        }
        false
    }

    fn is_busy(&self) -> bool {
        let ends = self.closes_ns.is_some() || self.shuts;
        !self.awaited.is_empty() || !self.sending.is_empty() || ends
    }
}

/// The gateways that know each other.
pub(super) struct Others {
    /// The node of this gateway.
    pub node: usize,
    /// The nodes of all gateways that know each other, with this one; empty if each is alone.
    pub all: Vec<usize>,
}

/// A gateway with its connections.
pub(crate) struct Redis {
    pub(super) gateway: Gateway,
    connections: Vec<Connection>,
    next_id: u64,
    /// The client that caches, if there is one.
    pub(super) cache: Option<Cache>,
    /// The clients that subscribe, and the one that publishes.
    pub(super) subscribers: Option<Subscribers>,
    /// The number of fast reads of the gateway before all faults ended.
    fast_before_heal: u64,
}

impl Redis {
    pub(super) fn new(
        client: ClientConfig,
        plan: &Plan,
        others: Others,
        (cache, subscribers): (Option<Cache>, Option<Subscribers>),
        rng: &mut Rng,
    ) -> Redis {
        let (connections, plan) = (plan.connections, &plan.gateways);
        let apart = cache.as_ref().map_or(0, |_| Cache::connections())
            + subscribers.as_ref().map_or(0, |_| Subscribers::connections());
        let Others { node, all } = others;
        let is_alone = all.is_empty();
        let others = all.into_iter().filter(|other| *other != node);
        let config = GatewayConfig {
            splits_reads: false,
            others: others.map(|other| (other as u16, addr(other))).collect(),
            client,
            requirepass: None,
            table: CommandTable::memory(),
            redis: false,
            connections_max: connections + apart,
            limits: Limits {
                commands_max: plan.commands_max,
                output_bytes_max: plan.output_bytes_max,
                ..Limits::default()
            },
            node: if is_alone { 0 } else { node as u16 },
            port: 6_379,
        };
        let connection = |rng: Rng| Connection {
            id: None,
            rng,
            resp3: false,
            sending: VecDeque::new(),
            shuts: false,
            is_over: false,
            closes_ns: None,
            socket: Vec::new(),
            awaited: VecDeque::new(),
            received: Vec::new(),
            torn_bytes: 0,
            reads_from_ns: 0,
            room: 0,
            turn_ns: Some(0),
            commands: 1,
            good: 0,
            has_changed: false,
            watches: false,
            known: Known::default(),
            wake_ns: u64::MAX,
        };
        let connections = (0..connections).map(|_| connection(rng.fork())).collect();
        let mut gateway = Gateway::new(config, rng.fork());
        if plan.users {
            gateway.share_users(&[1; 32]);
        }
        Redis { connections, gateway, next_id: 1, cache, subscribers, fast_before_heal: 0 }
    }

    pub(super) fn is_lively(&self) -> bool {
        self.connections.iter().all(|c| c.good >= GOOD_MIN)
    }

    /// The connections without enough answers since all faults ended.
    pub(super) fn lacking(&self) -> String {
        let mut text = String::new();
        for (at, c) in self.connections.iter().enumerate().filter(|(_, c)| c.good < GOOD_MIN) {
            text += &format!(
                ", connection {at} got {} good replies, awaits {}, has {} bytes in its socket",
                c.good,
                c.awaited.len(),
                c.socket.len(),
            );
        }
        text
    }

    pub(super) fn is_busy(&self) -> bool {
        self.connections.iter().any(Connection::is_busy)
    }

    pub(super) fn heal(&mut self) {
        self.fast_before_heal = self.gateway.client().counters().fast_reads;
    }

    pub(super) fn was_fast_since_heal(&self) -> bool {
        self.gateway.client().counters().fast_reads > self.fast_before_heal
    }

    /// Connects a client; returns `false` if the gateway refuses it.
    fn connect(&mut self, at: usize, now: Now) -> bool {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        let connection = &mut self.connections[at];
        connection.id = Some(id);
        connection.resp3 = false;
        connection.watches = false;
        connection.known.forget_watched();
        connection.socket.clear();
        self.gateway.connected(now, id, "10.0.0.1:50000")
    }

    /// Lets the gateway read the data, and the end, of a connection if it wants input.
    fn read(&mut self, at: usize, now: Now, out: &mut impl Sink) {
        let connection = &mut self.connections[at];
        let Some(id) = connection.id else { return };
        let has_shut =
            connection.shuts && connection.sending.is_empty() && connection.socket.is_empty();
        if has_shut && self.gateway.wants_input(id) {
            self.gateway.ended(id);
        }
        let connection = &mut self.connections[at];
        let all = connection.socket.len().min(self.gateway.input_room(id));
        if all == 0 {
            return;
        }
        let few = connection.rng.chance(1, 8);
        let length = if few { connection.rng.between(1, all as u64) as usize } else { all };
        self.gateway.input(now, id, &connection.socket[..length], out);
        connection.socket.drain(..length);
    }

    /// Serves all connections for which the gateway has something, as the runtime's driver does.
    fn serve(&mut self, now_ns: u64, now: Now, out: &mut impl Sink) {
        while let Some(id) = self.gateway.take_ready(now, out) {
            if let Some(at) = self.connections.iter().position(|c| c.id == Some(id)) {
                self.write(at, now_ns, now, out);
                self.read(at, now, out);
                continue;
            }
            if let Some(cache) = &mut self.cache {
                cache.serve(id, &mut self.gateway, now, out);
            }
            if let Some(subscribers) = &mut self.subscribers {
                subscribers.serve(id, &mut self.gateway, now, out);
            }
        }
    }

    /// Writes as much of the gateway's output as the connection accepts.
    fn write(&mut self, at: usize, now_ns: u64, now: Now, out: &mut impl Sink) {
        let connection = &mut self.connections[at];
        let Some(id) = connection.id else { return };
        if self.gateway.is_over(id) {
            self.gateway.closed(id);
            (connection.id, connection.is_over) = (None, true);
            return;
        }
        let Some(output) = self.gateway.output(id) else { return };
        let reads = now_ns >= connection.reads_from_ns;
        let length = if reads { output.len() } else { output.len().min(connection.room) };
        connection.room = connection.room.saturating_sub(length);
        connection.received.extend_from_slice(&output[..length]);
        if length == output.len() && self.gateway.wants_close(id) {
            self.gateway.closed(id);
            (connection.id, connection.shuts) = (None, false);
            return;
        }
        if length > 0 {
            self.gateway.written(now, id, length, out);
        }
    }
}

impl Rack<'_> {
    /// Lets a Redis client do what is due.
    pub(super) fn turn(&mut self, node: usize, at: usize) {
        if at == self.plan.connections {
            return self.cache_turn(node);
        }
        if at == self.plan.connections + 1 {
            return self.subscribers_turn(node);
        }
        let now_ns = self.world.now_ns;
        let paused_until_ns = self.slots[node].paused_until_ns;
        let is_calm = self.stage != Stage::Safety;
        let Some(connection) = self.connection(node, at) else { return };
        if connection.wake_ns <= now_ns {
            connection.wake_ns = u64::MAX;
        }
        if paused_until_ns > now_ns {
            return self.wake_connection(node, at, paused_until_ns);
        }
        if is_calm {
            connection.reads_from_ns = connection.reads_from_ns.min(now_ns);
        }
        if connection.turn_ns.is_some_and(|turn_ns| turn_ns <= now_ns) {
            self.begin(node, at);
        }
        let now = self.world.clock(node);
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let (process, mut out) = process.input(&mut self.outgoing);
        let Process::Redis(redis) = process else { return };
        let connection = &mut redis.connections[at];
        while let Some((at_ns, piece)) = connection.sending.front()
            && *at_ns <= now_ns
        {
            connection.socket.extend_from_slice(piece);
            connection.sending.pop_front();
        }
        redis.read(at, now, &mut out);
        redis.write(at, now_ns, now, &mut out);
        redis.serve(now_ns, now, &mut out);
        if redis.connections[at].closes_ns.is_some_and(|closes_ns| closes_ns <= now_ns) {
            self.give_up(node, at);
        }
        self.after(node, 0);
    }

    fn connection(&mut self, node: usize, at: usize) -> Option<&mut Connection> {
        let Role::Client(process) = &mut self.slots[node].role else { return None };
        let Process::Redis(redis) = &mut ***process else { return None };
        redis.connections.get_mut(at)
    }

    fn wake_connection(&mut self, node: usize, at: usize, wake_ns: u64) {
        let Some(connection) = self.connection(node, at) else { return };
        if wake_ns < connection.wake_ns {
            connection.wake_ns = wake_ns;
            self.world.push(wake_ns, Event::Next { node, connection: at });
        }
    }

    /// Lets a client send a pipeline, over a new connection if it has none.
    fn begin(&mut self, node: usize, at: usize) {
        let (now_ns, stage, now) = (self.world.now_ns, self.stage, self.world.clock(node));
        let mix = self.mix();
        let plan = &self.plan.gateways;
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let Process::Redis(redis) = &mut ***process else { return };
        let connection = &mut redis.connections[at];
        connection.turn_ns = None;
        let ahead = connection.awaited.len();
        if stage == Stage::Rest || ahead >= AHEAD_MAX || connection.closes_ns.is_some() {
            return;
        }
        if connection.id.is_none() && !redis.connect(at, now) {
            self.broken = Some("a gateway refuses a connection that it has room for".into());
            return;
        }
        let connection = &mut redis.connections[at];
        let is_safety = stage == Stage::Safety;
        let rng = &mut connection.rng;
        let longest = if is_safety { plan.pipeline_max } else { plan.pipeline_max.min(HEALED_MAX) };
        let count = rng.between(1, longest);
        let end = match rng.below(3) {
            _ if !is_safety || !rng.chance(plan.broken_permille, 1_000) => End::Well,
            0 => End::Garbage,
            1 => End::Torn,
            _ => End::Shut,
        };
        let mut writer = Writer {
            rng,
            mix: &mix,
            gateways: plan,
            unique: &mut self.unique,
            client: (node * 100 + at) as u64,
            has_library: self.has_library,
            reads_only: matches!(stage, Stage::Liveness { .. }) && connection.good >= GOOD_MIN,
            known: &connection.known,
            watches: connection.watches,
        };
        let pipeline = writer.write(count, connection.resp3, end);
        self.begun += pipeline.operations;
        self.world.note(5, node, &pipeline.bytes);
        let seen = &mut self.totals.redis;
        seen.add(&pipeline.counted(end));
        let last_ns = connection.send(pipeline, now_ns);
        let rng = &mut connection.rng;
        if end == End::Torn {
            connection.closes_ns = Some(last_ns + rng.below(PIECE_NS_MAX));
        } else if now_ns < connection.reads_from_ns {
            seen.ahead += 1;
            connection.turn_ns = Some(last_ns + rng.below(AHEAD_NS_MAX));
        } else if is_safety && ahead == 0 && rng.chance(plan.slow_percent, 100) {
            seen.slow += 1;
            connection.reads_from_ns = now_ns + 1 + rng.below(plan.slow_ns);
            connection.room = rng.below(ROOM_BYTES_MAX) as usize;
            connection.turn_ns = Some(last_ns + rng.below(AHEAD_NS_MAX));
        }
        connection.shuts |= end == End::Shut;
        if matches!(end, End::Garbage | End::Shut) {
            // No further pipeline may follow.
            connection.turn_ns = None;
        }
    }

    /// Closes a client's connection: the outcome of its unanswered commands is unknown.
    fn give_up(&mut self, node: usize, at: usize) {
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let Process::Redis(redis) = &mut ***process else { return };
        let connection = &mut redis.connections[at];
        if let Some(id) = connection.id.take() {
            redis.gateway.closed(id);
        }
        connection.closes_ns = None;
        (connection.shuts, connection.is_over) = (false, false);
        connection.sending.clear();
        connection.socket.clear();
        connection.received.clear();
        connection.torn_bytes = 0;
        let awaited = std::mem::take(&mut connection.awaited);
        let mut operations = Vec::new();
        for awaited in awaited {
            match awaited.wanted {
                Wanted::Together(together) => self.transactions.push(together.unknown()),
                Wanted::Moved(moved) => {
                    let (pop, push) = moved.given_up();
                    operations.push(pop);
                    self.unknown_pushes.push(push);
                }
                _ => operations.extend(awaited.operations()),
            }
        }
        self.totals.unknown += operations.len() as u64;
        self.history.extend(operations);
    }

    /// Closes all connections of a gateway that dies: the outcome of their unanswered commands is
    /// unknown.
    pub(super) fn give_all_up(&mut self, node: usize) {
        self.totals.redis.died += 1;
        for at in 0..self.plan.connections {
            self.give_up(node, at);
        }
    }

    /// Transfers the gateway's output to its clients, and lets them handle it.
    pub(super) fn serve_clients(&mut self, node: usize) {
        let (now_ns, now) = (self.world.now_ns, self.world.clock(node));
        if self.slots[node].batch.is_some() {
            return; // As the runtime's driver, which looks at connections at the end of a batch.
        }
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let (process, mut out) = process.input(&mut self.outgoing);
        let Process::Redis(redis) = process else { return };
        redis.serve(now_ns, now, &mut out);
        redis.gateway.flush(now, &mut out);
        for at in 0..self.plan.connections {
            self.take_replies(node, at);
            if self.connection(node, at).is_some_and(|c| c.is_over) {
                self.totals.redis.over += 1;
                self.give_up(node, at);
            }
            self.think(node, at);
        }
        self.take_cached(node);
        self.take_messages(node);
    }

    fn take_replies(&mut self, node: usize, at: usize) {
        let now_ns = self.world.now_ns;
        let Some(connection) = self.connection(node, at) else { return };
        // An incomplete reply stays incomplete until more data arrives.
        if now_ns < connection.reads_from_ns || connection.received.len() == connection.torn_bytes {
            return;
        }
        let mut received = std::mem::take(&mut connection.received);
        let mut from = 0;
        while let Some(length) = resp::value_length(&received[from..]) {
            let bytes = &received[from..from + length];
            from += length;
            self.world.note(6, node, bytes);
            let awaited = self.connection(node, at).and_then(|c| c.awaited.pop_front());
            let Some(awaited) = awaited else {
                let text = String::from_utf8_lossy(bytes);
                self.broken = Some(format!("a gateway's reply that nobody waits for: {text}"));
                return;
            };
            self.has_library |= awaited.is_loaded_by(bytes);
            if let Some(connection) = self.connection(node, at)
                && connection.is_undone_by(&awaited, bytes)
            {
                self.broken = Some("a change of a user that was acknowledged is undone".into());
                return;
            }
            if awaited.is_together() {
                if let Err(why) = self.take_together(node, at, awaited, bytes) {
                    let text = String::from_utf8_lossy(bytes);
                    self.broken = Some(format!("a transaction of several keys: {why}: {text}"));
                    return;
                }
                continue;
            }
            let judged = match awaited.wanted {
                Wanted::Moved(_) => moved(awaited, bytes, now_ns).map(|(operations, unknown)| {
                    self.unknown_pushes.extend(unknown);
                    operations
                }),
                _ => judge(awaited, bytes, now_ns),
            };
            match judged {
                Ok(operations) => self.record_all(node, at, operations),
                Err(why) => {
                    self.broken = Some(why);
                    return;
                }
            }
        }
        received.drain(..from);
        let Some(connection) = self.connection(node, at) else { return };
        connection.torn_bytes = received.len();
        connection.received = received;
    }

    /// Handles the reply to a transaction on several keys.
    fn take_together(
        &mut self,
        node: usize,
        at: usize,
        awaited: Awaited,
        bytes: &[u8],
    ) -> Result<(), String> {
        let (now_ns, stage) = (self.world.now_ns, self.stage);
        let writes = matches!(&awaited.wanted, Wanted::Together(together) if !together.is_read());
        let Some(connection) = self.connection(node, at) else { return Ok(()) };
        let said = connection.known.take(awaited, bytes, now_ns)?;
        let transaction = match said {
            Said::Nothing => return Ok(()),
            Said::Aborted => {
                self.totals.redis.aborted += 1;
                return Ok(());
            }
            Said::Done(transaction) => transaction,
        };
        if transaction.return_ns.is_none() {
            self.totals.unknown += 1;
        } else {
            if matches!(stage, Stage::Liveness { since_ns } if transaction.call_ns >= since_ns) {
                connection.good += 1;
            }
            self.progress.see(now_ns, writes);
        }
        if self.world.recorder.is_some() {
            self.mark(Some(node), together::describe(&transaction), false);
        }
        self.transactions.push(transaction);
        Ok(())
    }

    fn record_all(&mut self, node: usize, at: usize, operations: Vec<concord_check::Operation>) {
        for operation in operations {
            let is_answered =
                !matches!(operation.reply, None | Some(concord_check::Reply::Error(_)));
            self.totals.unknown += u64::from(operation.return_ns.is_none());
            let stage = self.stage;
            if let Stage::Liveness { since_ns } = stage
                && is_answered
                && operation.call_ns >= since_ns
                && let Some(connection) = self.connection(node, at)
            {
                connection.good += 1;
            }
            self.see(&operation);
            if self.world.recorder.is_some() {
                self.mark(Some(node), describe(&operation), false);
            }
            self.history.push(operation);
        }
    }

    /// Lets a client pause before its next commands, if all of its commands are answered.
    fn think(&mut self, node: usize, at: usize) {
        let pace = Pace {
            now_ns: self.world.now_ns,
            stage: self.stage,
            is_spare: self.begun >= self.plan.operations,
        };
        let plan = self.plan;
        let Some(connection) = self.connection(node, at) else { return };
        let reads = pace.now_ns >= connection.reads_from_ns;
        if connection.id.is_none() && reads && !connection.awaited.is_empty() {
            self.broken = Some("a gateway closed a connection that awaits replies".into());
            return;
        }
        let is_idle = connection.turn_ns.is_none() && !connection.is_busy();
        if is_idle && pace.stage != Stage::Rest {
            let times = if connection.good >= GOOD_MIN { LEAVES_TIMES } else { 1 };
            let next_ns = pace.next_ns(plan, &mut connection.rng, connection.commands * times);
            connection.turn_ns = Some(next_ns);
        }
        if let Some(due_ns) = connection.due_ns(pace.now_ns) {
            self.wake_connection(node, at, due_ns.max(pace.now_ns));
        }
    }
}

/// The parts in which data of this length is sent: the time of each, and the offset of its end.
fn pieces(rng: &mut Rng, now_ns: u64, length: usize) -> Vec<(u64, usize)> {
    let mut pieces = Vec::new();
    let (mut at_ns, mut from) = (now_ns, 0);
    while pieces.len() < 2 && rng.chance(1, 4) && from + 1 < length {
        let to = rng.between(from as u64 + 1, length as u64 - 1) as usize;
        pieces.push((at_ns, to));
        at_ns += rng.below(PIECE_NS_MAX);
        from = to;
    }
    pieces.push((at_ns, length));
    pieces
}
