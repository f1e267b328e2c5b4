//! The gateway machine: commands in, requests to the rack, replies out in order.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use concord_client::{Class, Client, ClientConfig, Done, Outcome, Request, SubmitError, Trace};
use concord_core::machine::Deadline;
use concord_core::{MS, Now, ObjectId, Rng, counters, hash};
use concord_engine::table::UpperName;
use concord_engine::{Class as EngineClass, CommandBuf, CommandTable, resp};
use concord_wire::{Flags, Reason, Sink, VALUE_BYTES_MAX};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::connection::{Combine, Connection, ConnectionId, Multi, Parts, Slot, Unsent};
use crate::keys::{Keys, keys};
use crate::request::{Parsed, parse_request};
use crate::stats::Latencies;

/// Most unanswered commands of one connection before its input waits.
const SLOTS_MAX: usize = 16_384;
/// Most unwritten output of one connection before its input waits, in bytes.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Most scripts that are remembered, and their bytes.
pub(crate) const SCRIPTS_MAX: usize = 1_000;
const RETRY_NS: u64 = MS;
/// Arguments in the order in which they stand; those of one request, on the stack.
const ARGS_INLINE: usize = 16;

/// What a gateway is told at its start.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The rack's client.
    pub client: ClientConfig,
    /// Password that clients must give by AUTH.
    pub requirepass: Option<Vec<u8>>,
    /// What commands there are, until the engine said so itself.
    pub table: CommandTable,
    /// The engine is a Redis server: ask it for its own table at the start.
    pub redis: bool,
    /// Most connections at once.
    pub connections_max: usize,
    /// The gateway's number in the rack.
    pub node: u16,
    /// The TCP port that clients use, for INFO.
    pub port: u16,
}

counters! {
    /// What a gateway counted.
    pub struct GatewayCounters {
        /// Connections accepted.
        connections,
        /// Connections refused: too many.
        connections_refused,
        /// Commands received.
        commands,
        /// Commands answered by the gateway itself.
        commands_local,
        /// Commands refused with an error by the gateway.
        commands_refused,
        /// Times that a command waited for earlier ones of its connection.
        commands_waited,
        /// Times that a command waited because the rack's window was full.
        window_full,
        /// Protocol errors.
        protocol_errors,
        /// Reads that timed out.
        read_timeouts,
        /// Writes reported as not executed.
        writes_not_executed,
        /// Writes reported as of unknown outcome.
        writes_unknown,
    }
}

/// Whom a reply of the rack is for.
#[derive(Clone, Copy, Debug)]
struct Target {
    connection: ConnectionId,
    slot: u64,
    part: u32,
    class: Class,
    obj_id: Option<ObjectId>,
}

/// A request to send.
pub(crate) struct Send<'a> {
    pub class: Class,
    /// `None`: it concerns all keys.
    pub obj_id: Option<ObjectId>,
    pub command: &'a [u8],
}

/// The gateway.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) setup: GatewayConfig,
    pub(crate) client: Client,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    targets: HashMap<u64, Target, FxBuildHasher>,
    ready: VecDeque<ConnectionId>,
    blocked: Vec<ConnectionId>,
    pub(crate) scripts: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether the engine's own table is still to be asked for, and whether it was.
    wants_table: bool,
    table_asked: bool,
    args: Vec<Range<usize>>,
    unquoted: Vec<u8>,
    pub(crate) command: CommandBuf,
    next_retry: concord_core::Instant,
    reads: Latencies,
    writes: Latencies,
    pub(crate) started_at: Option<concord_core::Instant>,
    pub(crate) count: GatewayCounters,
}

impl Gateway {
    /// A gateway without connections.
    #[must_use]
    pub fn new(setup: GatewayConfig, rng: Rng) -> Gateway {
        Gateway {
            client: Client::new(setup.client.clone(), rng),
            connections: BTreeMap::new(),
            targets: HashMap::default(),
            ready: VecDeque::new(),
            blocked: Vec::new(),
            scripts: BTreeMap::new(),
            wants_table: setup.redis,
            table_asked: false,
            args: Vec::new(),
            unquoted: Vec::new(),
            command: CommandBuf::new(),
            next_retry: concord_core::Instant(0),
            reads: Latencies::default(),
            writes: Latencies::default(),
            started_at: None,
            count: GatewayCounters::default(),
            setup,
        }
    }

    /// A client connected. False: there are too many; write [`Gateway::TOO_MANY`] and close.
    pub fn connected(&mut self, now: Now, id: ConnectionId, peer: &str) -> bool {
        if self.connections.len() >= self.setup.connections_max {
            self.count.connections_refused += 1;
            return false;
        }
        self.count.connections += 1;
        let authed = self.setup.requirepass.is_none();
        self.connections.insert(id, Connection::new(peer, now.instant, authed));
        true
    }

    /// The reply to one connection too many.
    pub const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    /// The connection is gone; what it asked for may still be executed.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.blocked.retain(|b| *b != id);
    }

    /// Bytes of a connection.
    pub fn input(&mut self, now: Now, id: ConnectionId, bytes: &[u8], sink: &mut impl Sink) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.input.extend_from_slice(bytes);
        connection.active_at = now.instant;
        self.process(now, id, sink);
    }

    /// A datagram of the rack.
    pub fn packet(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        self.client.handle(now, bytes, sink);
        self.take_done(now, sink);
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.started_at.get_or_insert(now.instant);
        if self.wants_table && !self.table_asked {
            self.ask_table(now, sink);
        }
        self.client.tick(now, sink);
        self.take_done(now, sink);
        if now.instant >= self.next_retry {
            self.next_retry = now.instant.after(RETRY_NS);
            for id in core::mem::take(&mut self.blocked) {
                self.process(now, id, sink);
            }
        }
    }

    /// When to call [`Gateway::tick`] next.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let client = self.client.deadline();
        if self.blocked.is_empty() {
            return client;
        }
        client.min(Deadline { at: self.next_retry, reason: "commands wait for room" })
    }

    /// The next connection whose output, input or end the driver should look at.
    pub fn take_ready(&mut self) -> Option<ConnectionId> {
        self.ready.pop_front()
    }

    /// What is to be written to a connection; the driver drains it.
    pub fn output(&mut self, id: ConnectionId) -> Option<&mut Vec<u8>> {
        self.connections.get_mut(&id).map(|c| &mut c.output)
    }

    /// Whether the connection is to be closed once its output is written.
    #[must_use]
    pub fn wants_close(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.closing && c.slots.is_empty())
    }

    /// Whether the driver should read the connection.
    #[must_use]
    pub fn wants_input(&self, id: ConnectionId) -> bool {
        self.connections
            .get(&id)
            .is_some_and(|c| !c.blocked && !c.closing && c.output.len() < OUTPUT_BYTES_MAX)
    }

    /// The driver wrote what it could: go on with commands that waited for that.
    pub fn written(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) {
        let waits = |c: &Connection| !c.input.is_empty() && c.output.len() < OUTPUT_BYTES_MAX;
        if self.connections.get(&id).is_some_and(waits) {
            self.process(now, id, sink);
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &GatewayCounters {
        &self.count
    }

    /// What the rack's client counted.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Latencies of reads and writes since the start, seen at the gateway.
    #[must_use]
    pub fn latencies(&self) -> (&Latencies, &Latencies) {
        (&self.reads, &self.writes)
    }

    /// Whether the rack answers: the session is registered, and the table is known.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.client.is_registered() && !self.wants_table
    }

    /// Number of connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    fn ask_table(&mut self, now: Now, sink: &mut impl Sink) {
        let flags = Flags::WILDCARD;
        let command = self.command.encode(0, [&b"COMMAND"[..]]);
        let request =
            Request { class: Class::Read, obj_id: ObjectId(0), flags, after: None, command };
        if let Ok(number) = self.client.submit(now, request, sink) {
            self.table_asked = true;
            let connection = ConnectionId(u64::MAX);
            let target = Target { connection, slot: 0, part: 0, class: Class::Read, obj_id: None };
            self.targets.insert(number.0, target);
        }
    }

    /// Parses and sends as many commands of a connection as may go now.
    pub(crate) fn process(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.blocked = false;
        let input = core::mem::take(&mut connection.input);
        let mut ranges = core::mem::take(&mut self.args);
        let mut unquoted = core::mem::take(&mut self.unquoted);
        let mut at = 0;
        while self.may_go_on(now, id, sink) {
            match parse_request(&input[at..], &mut ranges, &mut unquoted) {
                Parsed::Incomplete => break,
                Parsed::Error(error) => {
                    self.count.protocol_errors += 1;
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.error(error.text().as_bytes());
                        connection.closing = true;
                    }
                    at = input.len();
                    break;
                }
                Parsed::Request(length) => {
                    let inline = input[at] != b'*';
                    let from: &[u8] = if inline { &unquoted } else { &input[at..] };
                    if !ranges.is_empty() && !self.run(now, id, from, &ranges, sink) {
                        self.block(id);
                        break;
                    }
                    at += length;
                }
            }
        }
        self.args = ranges;
        self.unquoted = unquoted;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = input;
            connection.input.drain(..at);
            self.ready.push_back(id);
        }
    }

    fn block(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.blocked = true;
            self.blocked.push(id);
        }
    }

    /// Whether the next command of the connection may be looked at.
    fn may_go_on(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) -> bool {
        while let Some(unsent) = self.connections.get_mut(&id).and_then(|c| c.unsent.pop_front()) {
            let send =
                Send { class: unsent.class, obj_id: Some(unsent.obj_id), command: &unsent.command };
            if !self.send_to(now, id, unsent.slot, unsent.part, &send, sink) {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.unsent.push_front(unsent);
                }
                self.block(id);
                return false;
            }
        }
        self.connections.get(&id).is_some_and(|c| {
            !c.closing && c.slots.len() < SLOTS_MAX && c.output.len() < OUTPUT_BYTES_MAX
        })
    }

    /// One command. False: it must wait, and is tried again from its bytes.
    fn run(
        &mut self,
        now: Now,
        id: ConnectionId,
        from: &[u8],
        ranges: &[Range<usize>],
        sink: &mut impl Sink,
    ) -> bool {
        let mut few: [&[u8]; ARGS_INLINE] = [&[]; ARGS_INLINE];
        let many: Vec<&[u8]>;
        let args: &[&[u8]] = if ranges.len() <= ARGS_INLINE {
            for (arg, range) in few.iter_mut().zip(ranges) {
                *arg = &from[range.clone()];
            }
            &few[..ranges.len()]
        } else {
            many = ranges.iter().map(|r| &from[r.clone()]).collect();
            &many
        };
        let name = UpperName::of(args[0]);
        let went = self.dispatch(now, id, &name, args, sink);
        if went {
            self.count.commands += 1;
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.commands += 1;
                if connection.last_command.as_bytes() != name.bytes() {
                    connection.last_command.clear();
                    connection.last_command.extend(name.bytes().iter().map(|b| *b as char));
                }
            }
        }
        went
    }

    fn dispatch(
        &mut self,
        now: Now,
        id: ConnectionId,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        if !connection.authed && !matches!(name.bytes(), b"AUTH" | b"HELLO" | b"QUIT" | b"RESET") {
            connection.error(b"NOAUTH Authentication required.");
            self.count.commands_refused += 1;
            return true;
        }
        if connection.multi.is_some() && !matches!(name.bytes(), b"QUIT" | b"RESET") {
            return self.in_multi(now, id, name, args, sink);
        }
        if self.local(now, id, name, args, sink) {
            self.count.commands_local += 1;
            return true;
        }
        match name.bytes() {
            b"MGET" | b"MSET" | b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" if args.len() > 2 => {
                return self.split(now, id, name, args, sink);
            }
            b"CONCORD" => return self.concord(now, id, args, sink),
            b"EVAL" | b"EVAL_RO" | b"EVALSHA" | b"EVALSHA_RO" => {
                return self.eval(now, id, name, args, sink);
            }
            _ => {}
        }
        match self.plan(name, args) {
            Ok((class, obj_id)) => self.submit(now, id, class, obj_id, Slot::Waiting, sink),
            Err(error) => self.refuse(id, &error),
        }
    }

    pub(crate) fn refuse(&mut self, id: ConnectionId, error: &str) -> bool {
        self.count.commands_refused += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.error(error.as_bytes());
        }
        true
    }

    /// A command by the table: class and object, with the encoded command in `self.command`.
    pub(crate) fn plan(
        &mut self,
        name: &UpperName,
        args: &[&[u8]],
    ) -> Result<(Class, Option<ObjectId>), String> {
        let table = &self.setup.table;
        let spec = match table.find(name.bytes()) {
            Some(spec) => spec,
            None => return Err(crate::local::unknown_command(args)),
        };
        if !spec.accepts(args.len()) {
            let lower = name.lower();
            return Err(alloc::format!("ERR wrong number of arguments for '{lower}' command"));
        }
        // A container's subcommand has its own flags and keys.
        let spec = match args.get(1) {
            Some(sub) => table.find_sub(name.bytes(), sub).unwrap_or(spec),
            None => spec,
        };
        if let Some(error) = crate::local::unsupported(spec, name) {
            return Err(error);
        }
        if args.iter().any(|a| a.len() > VALUE_BYTES_MAX) {
            return Err("ERR value is larger than 1 MiB (Concord's limit)".into());
        }
        let class = match spec.class() {
            Some(EngineClass::Read) => Class::Read,
            Some(EngineClass::Write) => Class::Write,
            None => return Err(crate::local::not_supported(name)),
        };
        let key = match keys(spec, name.bytes(), args) {
            Keys::One(at) => at,
            Keys::None => {
                self.command.encode(0, args.iter().copied());
                return Ok((class, None));
            }
            Keys::Several => {
                return Err("CROSSKEY Concord does not support commands over several keys".into());
            }
            Keys::BadNumber => return Err("ERR numkeys should be greater than 0".into()),
            Keys::Unsupported => {
                return Err(alloc::format!(
                    "ERR Concord does not support this form of '{}': it concerns several keys",
                    name.lower()
                ));
            }
        };
        self.command.encode(key, args.iter().copied());
        // A Redis server's cursors mean nothing to another: such a scan stays at one replica.
        let cursor = matches!(name.bytes(), b"HSCAN" | b"SSCAN" | b"ZSCAN") && self.setup.redis;
        Ok((class, (!cursor).then(|| hash::object_id(args[key as usize]))))
    }

    /// Sends the command that is encoded in `self.command`. False: it must wait.
    pub(crate) fn submit(
        &mut self,
        now: Now,
        id: ConnectionId,
        class: Class,
        obj_id: Option<ObjectId>,
        slot: Slot,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let number = connection.push_slot(slot);
        let command = core::mem::take(&mut self.command);
        let send = Send { class, obj_id, command: command.bytes() };
        let went = self.send_to(now, id, number, 0, &send, sink);
        self.command = command;
        if !went && let Some(connection) = self.connections.get_mut(&id) {
            connection.slots.pop_back();
        }
        went
    }

    fn send_to(
        &mut self,
        now: Now,
        id: ConnectionId,
        slot: u64,
        part: u32,
        send: &Send<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        if connection.conflicts(send.class, send.obj_id) {
            self.count.commands_waited += 1;
            return false;
        }
        let mut flags = Flags(0);
        if connection.resp3 {
            flags = flags.with(Flags::RESP3);
        }
        if send.obj_id.is_none() {
            flags = flags.with(Flags::WILDCARD);
        }
        let request = Request {
            class: send.class,
            obj_id: send.obj_id.unwrap_or(ObjectId(0)),
            flags,
            after: connection.last_write,
            command: send.command,
        };
        match self.client.submit(now, request, sink) {
            Ok(number) => {
                if send.class == Class::Write {
                    connection.last_write = Some(number);
                }
                connection.note_sent(send.class, send.obj_id);
                let (class, obj_id) = (send.class, send.obj_id);
                let target = Target { connection: id, slot, part, class, obj_id };
                self.targets.insert(number.0, target);
                true
            }
            Err(SubmitError::Full) => {
                self.count.window_full += 1;
                false
            }
            Err(SubmitError::TooLarge) => {
                let mut reply = Vec::new();
                resp::error(&mut reply, b"ERR the command is larger than Concord's limit");
                self.fill(id, slot, part, reply, None);
                true
            }
        }
    }

    /// DEL a b, MGET a b, ...: key by key, each by itself atomic.
    fn split(
        &mut self,
        now: Now,
        id: ConnectionId,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> bool {
        let (single, class, combine, step): (&[u8], _, _, usize) = match name.bytes() {
            b"MGET" => (b"GET", Class::Read, Combine::Array, 1),
            b"MSET" => (b"SET", Class::Write, Combine::AllOk, 2),
            b"EXISTS" | b"TOUCH" => (args[0], Class::Read, Combine::Sum, 1),
            _ => (args[0], Class::Write, Combine::Sum, 1),
        };
        let rest = &args[1..];
        if !rest.len().is_multiple_of(step) {
            let lower = name.lower();
            let error = alloc::format!("ERR wrong number of arguments for '{lower}' command");
            return self.refuse(id, &error);
        }
        if rest.iter().any(|a| a.len() > VALUE_BYTES_MAX) {
            return self.refuse(id, "ERR value is larger than 1 MiB (Concord's limit)");
        }
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let count = rest.len() / step;
        let parts = Parts { combine, replies: alloc::vec![None; count], missing: count };
        let slot = connection.push_slot(Slot::Parts(Box::new(parts)));
        for (part, item) in rest.chunks(step).enumerate() {
            let command = core::iter::once(single).chain(item.iter().copied());
            connection.unsent.push_back(Unsent {
                slot,
                part: part as u32,
                class,
                obj_id: hash::object_id(item[0]),
                command: self.command.encode(1, command).to_vec(),
            });
        }
        self.may_go_on(now, id, sink);
        true
    }

    /// Between MULTI and EXEC.
    fn in_multi(
        &mut self,
        now: Now,
        id: ConnectionId,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> bool {
        match name.bytes() {
            b"EXEC" => return self.exec(now, id, sink),
            b"DISCARD" => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.multi = None;
                    connection.answer(|out| resp::simple(out, "OK"));
                }
                return true;
            }
            b"MULTI" => return self.refuse(id, "ERR MULTI calls can not be nested"),
            b"WATCH" => return self.refuse(id, "ERR WATCH inside MULTI is not allowed"),
            _ => {}
        }
        let planned = self.plan(name, args);
        let encoded = self.command.bytes().to_vec();
        let key = args
            .iter()
            .copied()
            .find(|a| matches!(&planned, Ok((_, Some(obj_id))) if hash::object_id(a) == *obj_id));
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let Some(multi) = connection.multi.as_mut() else { return true };
        let error = match planned {
            Ok((_, Some(_))) if multi.commands.len() < 60_000 => {
                let key = key.unwrap_or_default();
                match &multi.key {
                    Some(other) if other != key => multi.several = true,
                    Some(_) => {}
                    None => multi.key = Some(key.to_vec()),
                }
                multi.commands.push(encoded);
                connection.answer(|out| resp::simple(out, "QUEUED"));
                return true;
            }
            Ok((_, Some(_))) => "ERR too many commands in a transaction".into(),
            Ok((_, None)) => {
                "ERR Concord supports transactions on one key only: this command has none".into()
            }
            Err(error) => error,
        };
        multi.failed = true;
        self.refuse(id, &error)
    }

    fn exec(&mut self, now: Now, id: ConnectionId, sink: &mut impl Sink) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let Some(multi) = connection.multi.take() else { return true };
        if multi.failed {
            return self.refuse(id, "EXECABORT Transaction discarded because of previous errors.");
        }
        if multi.several {
            return self.refuse(
                id,
                "CROSSKEY Concord supports transactions on one key only; nothing was executed",
            );
        }
        let Some(key) = &multi.key else {
            connection.answer(|out| resp::array(out, 0));
            return true;
        };
        let obj_id = hash::object_id(key);
        let name: &[u8] = concord_engine::ttl::EXEC_COMMAND;
        let parts = core::iter::once(name).chain(multi.commands.iter().map(Vec::as_slice));
        self.command.encode(0, parts);
        let went = self.submit(now, id, Class::Write, Some(obj_id), Slot::Waiting, sink);
        if !went && let Some(connection) = self.connections.get_mut(&id) {
            connection.multi = Some(multi);
        }
        went
    }

    pub(crate) fn begin_multi(connection: &mut Connection) {
        connection.multi = Some(Multi::default());
        connection.answer(|out| resp::simple(out, "OK"));
    }

    fn take_done(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(done) = self.client.poll() {
            let Some(target) = self.targets.remove(&done.request.0) else { continue };
            match target.class {
                Class::Read => self.reads.add(done.trace.latency_ns),
                Class::Write => self.writes.add(done.trace.latency_ns),
            }
            if target.connection == ConnectionId(u64::MAX) {
                self.take_table(&done);
                continue;
            }
            self.on_done(target, done);
            let id = target.connection;
            if self.connections.get(&id).is_some_and(|c| c.blocked) {
                self.blocked.retain(|b| *b != id);
                self.process(now, id, sink);
            }
        }
    }

    fn take_table(&mut self, done: &Done) {
        self.table_asked = false;
        if done.outcome == Outcome::Reply
            && let Ok(table) = CommandTable::from_resp(&done.reply)
        {
            self.setup.table = table;
            self.wants_table = false;
        }
    }

    fn on_done(&mut self, target: Target, done: Done) {
        let Some(connection) = self.connections.get_mut(&target.connection) else {
            self.client.give_back(done.reply);
            return;
        };
        connection.note_done(target.class, target.obj_id);
        let text: &[u8] = match done.outcome {
            Outcome::Reply => {
                let (id, slot, part) = (target.connection, target.slot, target.part);
                return self.fill(id, slot, part, done.reply, Some(&done.trace));
            }
            Outcome::ReadTimeout => {
                self.count.read_timeouts += 1;
                b"TIMEOUT the read was not answered in time; it is safe to retry"
            }
            Outcome::WriteNotExecuted => {
                self.count.writes_not_executed += 1;
                b"TRYAGAIN the write was not executed; it is safe to retry"
            }
            Outcome::WriteUnknown => {
                self.count.writes_unknown += 1;
                b"UNKNOWN the outcome of this write is not known: it may or may not have been \
                  executed; do not retry it blindly"
            }
            Outcome::Malformed => b"ERR the command was refused as malformed",
            Outcome::TooLarge => b"ERR the reply is larger than 64 MiB (Concord's limit)",
        };
        let mut reply = Vec::new();
        resp::error(&mut reply, text);
        self.fill(target.connection, target.slot, target.part, reply, Some(&done.trace));
    }

    /// A reply for its slot; everything that is in turn goes to the output.
    fn fill(
        &mut self,
        id: ConnectionId,
        number: u64,
        part: u32,
        reply: Vec<u8>,
        trace: Option<&Trace>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let resp3 = connection.resp3;
        let front = number == connection.first_slot;
        let mut spent = None;
        match connection.slot_mut(number) {
            Some(Slot::Waiting) if front => {
                connection.output.extend_from_slice(&reply);
                connection.slots.pop_front();
                connection.first_slot += 1;
                spent = Some(reply);
            }
            Some(slot @ Slot::Waiting) => *slot = Slot::Ready(reply),
            Some(slot @ Slot::Explaining) => {
                *slot = Slot::Ready(explained(&reply, trace, resp3));
            }
            Some(Slot::Parts(parts)) => {
                parts.replies[part as usize] = Some(reply);
                parts.missing -= 1;
            }
            Some(Slot::Ready(_)) | None => {}
        }
        while let Some(slot) = connection.slots.front() {
            match slot {
                Slot::Waiting | Slot::Explaining => break,
                Slot::Parts(parts) if parts.missing > 0 => break,
                Slot::Parts(parts) => connection.output.extend_from_slice(&parts.reply(resp3)),
                Slot::Ready(reply) => connection.output.extend_from_slice(reply),
            }
            if let Some(Slot::Ready(reply)) = connection.slots.pop_front() {
                spent = Some(reply);
            }
            connection.first_slot += 1;
        }
        if self.ready.back() != Some(&id) {
            self.ready.push_back(id);
        }
        if let Some(buffer) = spent {
            self.client.give_back(buffer);
        }
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
        Reason::None => ("write", "writes take the normal protocol"),
    }
}

fn explained(reply: &[u8], trace: Option<&Trace>, resp3: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(trace) = trace else { return reply.to_vec() };
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
