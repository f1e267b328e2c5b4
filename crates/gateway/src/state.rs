//! The parts of the gateway that commands need: all of it but its connections; and how a command is
//! sent to the rack, or waits.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::{Class, Client, Request, Size, SubmitError, Withdrawn};
use concord_core::guard::Guard;
use concord_core::{Instant, Now, ObjectId, RequestNumber, hash};
use concord_engine::CommandBuf;
use concord_engine::command::{ARGS_MAX, TOO_MANY_ARGS};
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Flags, FurtherIds, Sink};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::blocking::members::Members;
use crate::blocking::waiters::Waiters;
use crate::chain::callers::Chain;
use crate::commands::errors::Errors;
use crate::commands::key_names::Shown;
use crate::commands::latencies::Latencies;
use crate::commands::long_reads::LongReads;
use crate::commands::monitors::Monitors;
use crate::commands::slowlog::SlowLog;
use crate::commands::{Commands, Failure};
use crate::connection::pause::Pause;
use crate::connection::traffic::Traffic;
use crate::connection::{
    Connection, ConnectionId, Connections, Offer, Offered, Slot, SlotState, Subject, Target, Wait,
};
use crate::memory::inputs::Inputs;
use crate::memory::tentative::{Expected, Tentative};
use crate::memory::{FETCHED_PRESSED_MAX, Memory, is_over_limit};
use crate::process::Process;
use crate::pubsub::events::Events;
use crate::pubsub::exchange::Exchange;
use crate::scripts::Scripts;
use crate::setup::{GatewayConfig, GatewayCounters, Settings};
use crate::tracking::Tracking;
use crate::tracking::footprint::Footprint;
use crate::users::Users;

pub(crate) const TOO_LARGE: &str =
    "ERR value is larger than proto-max-bulk-len (at most 64 MiB, Concord's limit)";
/// The error for other commands while the replicas work on one operation; its first word is Redis'.
pub(crate) const BUSY: &str = "BUSY the rack has been working on one script or command for more \
                               than 5 s; this one was not executed, try again later";
/// Longest name, key, script or message, and longest argument of what the gateway does itself: it
/// may keep many of them.
pub(crate) const NAME_BYTES_MAX: usize = 1 << 20;
pub(crate) const TOO_LARGE_NAME: &str =
    "ERR a key, name, message or script is larger than 1 MiB (Concord's limit)";
pub(crate) const TOO_LARGE_COMMAND: &str =
    "ERR the command is larger than 64 MiB (Concord's limit)";

/// All of a gateway but its connections.
#[derive(Debug)]
pub(crate) struct Core {
    pub setup: GatewayConfig,
    pub client: Client,
    /// The chain that has the keys with its prefix.
    pub chain: Option<Chain>,
    pub commands: Commands,
    pub targets: HashMap<u64, Target, FxBuildHasher>,
    pub scripts: Scripts,
    /// Publish and subscribe.
    pub exchange: Exchange,
    /// The keys that clients may have cached.
    pub tracking: Tracking,
    pub users: Users,
    /// Keyspace events.
    pub events: Events,
    pub pause: Pause,
    /// Connections that are to be closed.
    pub killed: Vec<ConnectionId>,
    pub monitors: Monitors,
    /// Clients that wait for an element.
    pub waiters: Waiters,
    /// By request: the connections whose tries it has.
    pub together: HashMap<u64, Vec<ConnectionId>, FxBuildHasher>,
    /// The replicas, and the clients that wait for more of them.
    pub members: Members,
    /// Keys for which clients wait, while a read checks whether they exist.
    pub looks: HashMap<u64, Vec<u8>, FxBuildHasher>,
    /// The memory for replies.
    pub memory: Memory,
    /// The memory for incomplete commands.
    pub inputs: Inputs,
    /// Reads whose replies may be long.
    pub tentative: Tentative,
    pub long_reads: LongReads,
    /// Long replies that were granted and have not come.
    pub fetched: usize,
    /// When the last command was not answered in time, if none was answered since.
    pub failed_at: Option<Instant>,
    /// The command that is being sent.
    pub command: CommandBuf,
    /// The engine's own command table is still to be asked for.
    pub wants_table: bool,
    /// The request for it, while it is unanswered.
    pub table_request: Option<RequestNumber>,
    pub count: GatewayCounters,
    pub errors: Errors,
    pub slow_log: SlowLog,
    pub reads: Latencies,
    pub writes: Latencies,
    pub started_at: Option<Instant>,
    /// The rack's part of INFO.
    pub rack_info: String,
    /// The limit of the data, as the rack is configured; 0 for none.
    pub memory_bytes_max: u64,
    /// Number of connections.
    pub connected: usize,
    pub traffic: Traffic,
    /// The longest argument, as CONFIG SET proto-max-bulk-len says.
    pub value_bytes_max: usize,
    /// The values of CONFIG SET.
    pub settings: Settings,
    /// The totals at the last CONFIG RESETSTAT.
    pub counted_from: Totals,
    pub process: Process,
    /// Names this start of the gateway.
    pub run_id: String,
    /// The last figures of the data from a replica.
    pub last_figures: Vec<u8>,
}

/// The totals that INFO counts from the last CONFIG RESETSTAT on; metrics never decrease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub connections: u64,
    pub refused: u64,
    pub commands: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Reads that found something, and those that did not.
    pub hits: u64,
    pub misses: u64,
}

/// The command of one connection, while it is looked at.
pub(crate) struct CommandContext<'a> {
    pub now: Now,
    pub connection: &'a mut Connection,
    /// All connections but this one.
    pub others: &'a Connections,
    /// The treatment of the reply.
    pub shown: Shown,
    /// The keys that the command reads and writes, if clients have to be told of them.
    pub footprint: Option<Box<Footprint>>,
    /// Whether it was not refused.
    pub is_executed: bool,
}

/// Whether a command was dealt with, or must be tried again; then the connection's `wait` says
/// when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Went,
    Waits,
}

/// The destination of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub slot: u64,
    pub part: u32,
}

/// The outcome of sending a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    As(Class),
    Waits,
    /// With this error.
    Refused(&'static str),
}

impl Core {
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            connections: self.count.connections,
            refused: self.count.connections_refused,
            commands: self.count.commands,
            input_bytes: self.traffic.input_bytes,
            output_bytes: self.traffic.output_bytes,
            hits: self.count.keyspace_hits,
            misses: self.count.keyspace_misses,
        }
    }

    /// Encodes a command with its key at `key` (0: none); gives what it concerns.
    pub(crate) fn encode(&mut self, key: u8, args: &[&[u8]]) -> Result<Subject, Failure> {
        if args.len() > ARGS_MAX {
            return Err(TOO_MANY_ARGS.into());
        }
        let Some(object) = args.get(key as usize) else { return Err("ERR syntax error".into()) };
        self.command.encode(key, args.iter().copied());
        Ok(Subject::Object(hash::object_id(object)))
    }

    /// Sends the command that is encoded in `self.command`, with a slot of its own.
    pub(crate) fn submit(
        &mut self,
        call: &mut CommandContext<'_>,
        class: Class,
        subject: Subject,
        state: SlotState,
        sink: &mut impl Sink,
    ) -> Flow {
        if self.is_out_of_time(call, class) {
            let text = self.not_executed(class);
            call.connection.refuse(text);
            return Flow::Went;
        }
        let slot = call.connection.next_slot();
        let resp3 = call.connection.resp3;
        match self.send(call, Place { slot, part: 0 }, class, subject, sink) {
            Sent::As(class) => {
                let shown = core::mem::take(&mut call.shown);
                let footprint = call.footprint.take();
                let waiting = Slot::waiting(class, subject, resp3);
                let slot = Slot { state, shown, footprint, ..waiting };
                call.connection.push_slot(slot);
                Flow::Went
            }
            Sent::Refused(error) => {
                call.connection.refuse(error);
                Flow::Went
            }
            Sent::Waits => Flow::Waits,
        }
    }

    /// Whether a command has waited for others for as long as it may take in all, of which the last
    /// ended without an answer of the rack: those that came together do not wait one after another.
    fn is_out_of_time(&self, call: &CommandContext<'_>, class: Class) -> bool {
        let came_at = call.connection.came_at;
        let limit_ns = match class {
            Class::Read => self.setup.client.read_deadline_ns,
            Class::Write => self.setup.client.write_deadline_ns,
        };
        let has_failed = self.failed_at.is_some_and(|at| at >= came_at);
        has_failed && call.now.instant.since(came_at) >= limit_ns
    }

    /// Sends the command that is encoded in `self.command`, if it may go now.
    pub(crate) fn send(
        &mut self,
        call: &mut CommandContext<'_>,
        place: Place,
        class: Class,
        subject: Subject,
        sink: &mut impl Sink,
    ) -> Sent {
        let connection = &mut *call.connection;
        // A read that does not fit one packet goes the way of writes: slower, and as right.
        let only_reads = class == Class::Read;
        let class = match class {
            Class::Read if self.command.bytes().len() <= BODY_BYTES_MAX => Class::Read,
            Class::Read | Class::Write => Class::Write,
        };
        if self.setup.client.guards.on(Guard::PipelineOrder) && connection.must_wait(class, subject)
        {
            self.count.commands_waited += 1;
            connection.wait = Wait::Order(class, subject);
            return Sent::Waits;
        }
        // A write that was sent may be executed however late; this one was not.
        if class == Class::Write && self.client.is_busy(call.now.instant) {
            self.count.commands_busy += 1;
            return Sent::Refused(BUSY);
        }
        let expected = match class {
            Class::Read => connection.expected(),
            Class::Write => Expected::Short,
        };
        let long_bytes = self.waits_untried(connection, expected);
        if long_bytes.is_none() && !self.tentative.has_room(expected) {
            self.count.window_full += 1;
            connection.wait = Wait::Room(class, Size::of(self.command.bytes().len()));
            return Sent::Waits;
        }
        let mut flags = Flags(0);
        if connection.resp3 {
            flags = flags.with(Flags::RESP3);
        }
        let (obj_id, further) = match subject {
            Subject::Object(obj_id) => (obj_id, FurtherIds::NONE),
            Subject::Objects(obj_id, further) => (obj_id, further),
            Subject::AllKeys => {
                flags = flags.with(Flags::WILDCARD);
                (ObjectId(0), FurtherIds::NONE)
            }
        };
        let after = connection.last_write;
        let command = self.command.bytes();
        let request = Request { class, obj_id, further, flags, after, command };
        let Place { slot, part } = place;
        let target = Target {
            connection: connection.id,
            slot,
            part,
            class,
            is_of_all_keys: subject == Subject::AllKeys,
            only_reads,
            granted_bytes: 0,
            expected,
            long_read: 0,
        };
        if let Some(bytes) = long_bytes {
            connection.note_sent(class, subject);
            connection.note_long_reply();
            let long_read = self.long_reads.note(command, bytes);
            let target = Target { expected: Expected::Short, long_read, ..target };
            let read = Withdrawn::from(request);
            connection.offer_bytes += read.bytes();
            let what = Offered::Read(read, target);
            connection.offers.insert((slot, part), Offer { bytes, what });
            self.memory.add_short(call.now.instant, connection, false);
            self.count.reads_put_off += 1;
            return Sent::As(class);
        }
        match self.client.submit(call.now, request, sink) {
            Ok(number) => {
                if class == Class::Write {
                    connection.last_write = Some(number);
                }
                connection.note_sent(class, subject);
                self.tentative.sent(expected);
                self.targets.insert(number.0, target);
                Sent::As(class)
            }
            Err(SubmitError::Full) => {
                self.count.window_full += 1;
                connection.wait = Wait::Room(class, Size::of(self.command.bytes().len()));
                Sent::Waits
            }
            Err(SubmitError::TooLarge) => Sent::Refused(TOO_LARGE_COMMAND),
        }
    }

    /// The length of the reply to the read in `self.command`, if it need not be tried: it was long
    /// the last time, and there is no room for long replies to clients that have not shown that
    /// they read.
    fn waits_untried(&self, connection: &Connection, expected: Expected) -> Option<u32> {
        let waits = expected != Expected::Short
            && self.memory.is_crowded()
            && !connection.reads_long()
            && connection.unanswered.writes == 0;
        if waits { self.long_reads.bytes(self.command.bytes()) } else { None }
    }

    /// Notes the size granted to the reply of a request, unless the request has ended.
    pub(crate) fn note_granted(
        &mut self,
        now: Now,
        connection: &mut Connection,
        request: RequestNumber,
        bytes: u32,
    ) {
        if let Some(target) = self.targets.get_mut(&request.0) {
            self.fetched += usize::from(target.granted_bytes == 0);
            target.granted_bytes = bytes;
            connection.granted_bytes += bytes as usize;
            self.memory.note(now.instant, connection);
        }
    }

    /// The reason for which another request of the connection would have to wait: its unanswered
    /// ones, or its client, which does not read.
    pub(crate) fn wait_of(&mut self, connection: &Connection) -> Option<Wait> {
        if !connection.has_room_for_request() {
            self.count.slots_full += 1;
            return Some(Wait::Slots);
        }
        if self.is_full(connection) {
            self.count.output_full += 1;
            return Some(Wait::Output);
        }
        None
    }

    /// Whether another long reply may be fetched, as to how many are.
    pub(crate) fn may_fetch(&self, now: Instant) -> bool {
        self.fetched < FETCHED_PRESSED_MAX || !self.memory.is_pressed(now)
    }

    /// Whether a client is to be given up that does nothing.
    pub(crate) fn is_stuck(&self, now: Instant, connection: &Connection) -> bool {
        self.is_in_the_way(now, connection) || is_over_limit(now, connection)
    }

    /// Whether others wait for a client that does nothing.
    pub(crate) fn is_in_the_way(&self, now: Instant, connection: &Connection) -> bool {
        self.memory.is_stuck(now, connection) || self.inputs.is_stuck(now, connection)
    }

    /// See [`crate::Gateway::waits_in_crowd`].
    pub(crate) fn waits_in_crowd(&self, connection: &Connection) -> bool {
        !connection.offers.is_empty() && self.memory.is_crowded()
    }

    /// Whether a connection's client has to read before more is asked for it.
    pub(crate) fn is_full(&self, connection: &Connection) -> bool {
        !connection.offers.is_empty() || self.memory.is_full(connection)
    }
}
