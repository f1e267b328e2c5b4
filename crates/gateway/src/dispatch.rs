//! What becomes of one command: answered here, refused, or sent to the rack.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use concord_client::{Class, Client, Request, SubmitError};
use concord_core::guard::Guard;
use concord_core::{Instant, Now, ObjectId, RequestNumber, hash};
use concord_engine::command::ARGS_MAX;
use concord_engine::table::UpperName;
use concord_engine::{CommandBuf, CommandSpec, resp};
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Flags, Sink};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::commands::{CROSS_KEY, Commands, Failure, Handling, class_of, handling_of, unknown};
use crate::connection::{Connection, ConnectionId, Slot, SlotState, Subject, Wait};
use crate::gateway::{Connections, GatewayConfig, GatewayCounters};
use crate::info::Process;
use crate::inputs::Inputs;
use crate::keys::{Keys, keys};
use crate::memory::Memory;
use crate::parts::{Parts, Split};
use crate::replies::Ended;
use crate::scripts::Scripts;
use crate::stats::Latencies;
use crate::tentative::Tentative;
use crate::traffic::Traffic;

/// Most unanswered commands of one connection, and requests of them, before its input waits.
pub(crate) const SLOTS_MAX: usize = 1_024;
/// Most arguments that stand on the stack.
const ARGS_INLINE: usize = 16;
/// What begins a request of HTTP or its second line: a page in somebody's browser that was made to
/// send commands in the body (redis-server closes on the same two).
const HTTP_WORDS: [&[u8]; 2] = [b"POST", b"HOST:"];
pub(crate) const TOO_LARGE: &str = "ERR value is larger than 1 MiB (Concord's limit)";

/// Whom a reply of the rack is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub connection: ConnectionId,
    pub slot: u64,
    pub part: u32,
    pub class: Class,
    pub subject: Subject,
    /// The command only reads, even if it went as a write.
    pub only_reads: bool,
    /// How long its reply may be, where that was granted.
    pub granted_bytes: u32,
    /// A read about whose reply nothing is known.
    pub is_tentative: bool,
}

/// All of a gateway but its connections.
#[derive(Debug)]
pub(crate) struct Core {
    pub setup: GatewayConfig,
    pub client: Client,
    pub commands: Commands,
    pub targets: HashMap<u64, Target, FxBuildHasher>,
    pub scripts: Scripts,
    /// What replies take.
    pub memory: Memory,
    /// What parts of commands take.
    pub inputs: Inputs,
    /// Reads whose replies may be long.
    pub tentative: Tentative,
    /// The command that is being sent.
    pub command: CommandBuf,
    /// The engine's own command table is still to be asked for.
    pub wants_table: bool,
    /// The request for it, while it is unanswered.
    pub table_request: Option<RequestNumber>,
    pub count: GatewayCounters,
    pub reads: Latencies,
    pub writes: Latencies,
    pub started_at: Option<Instant>,
    /// What INFO says of the rack.
    pub rack_info: String,
    /// The limit of the data, as the rack is configured; 0 for none.
    pub memory_bytes_max: u64,
    /// Number of connections.
    pub connected: usize,
    pub traffic: Traffic,
    /// What had been counted when CONFIG RESETSTAT came last.
    pub counted_from: Totals,
    pub process: Process,
    /// Names this start of the gateway.
    pub run_id: String,
}

/// What INFO counts from the last CONFIG RESETSTAT on; metrics never go back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub connections: u64,
    pub refused: u64,
    pub commands: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
}

/// The command of one connection, while it is looked at.
pub(crate) struct Turn<'a> {
    pub now: Now,
    pub connection: &'a mut Connection,
    /// All connections but this one.
    pub others: &'a Connections,
}

/// Whether a command was dealt with, or must be tried again; then the connection's `wait` says when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Went,
    Waits,
}

/// Where a reply goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    slot: u64,
    part: u32,
}

impl Core {
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            connections: self.count.connections,
            refused: self.count.connections_refused,
            commands: self.count.commands,
            input_bytes: self.traffic.input_bytes,
            output_bytes: self.traffic.output_bytes,
        }
    }

    /// One request of a connection; `ranges` are its arguments within `bytes`, at least one.
    pub(crate) fn run(
        &mut self,
        turn: &mut Turn<'_>,
        bytes: &[u8],
        ranges: &[Range<usize>],
        sink: &mut impl Sink,
    ) -> Flow {
        let mut few: [&[u8]; ARGS_INLINE] = [&[]; ARGS_INLINE];
        let many: Vec<&[u8]>;
        let args: &[&[u8]] = if ranges.len() <= ARGS_INLINE {
            for (arg, range) in few.iter_mut().zip(ranges) {
                *arg = &bytes[range.clone()];
            }
            &few[..ranges.len()]
        } else {
            many = ranges.iter().map(|r| &bytes[r.clone()]).collect();
            &many
        };
        if HTTP_WORDS.iter().any(|word| args[0].eq_ignore_ascii_case(word)) {
            // As redis-server: nothing of it is executed, and nothing is said.
            self.count.http_refused += 1;
            turn.connection.closing = true;
            return Flow::Went;
        }
        let found = self.commands.find(&UpperName::of(args[0]));
        let result = self.dispatch(turn, found, args, sink);
        if result == Ok(Flow::Waits) {
            return Flow::Waits;
        }
        self.count.commands += 1;
        turn.connection.commands += 1;
        turn.connection.last_command = found;
        if let Some(index) = found {
            self.commands.entry_mut(index).calls += 1;
        }
        if let Err(failure) = result {
            self.count.commands_refused += 1;
            if let Some(index) = found {
                self.commands.entry_mut(index).refused += 1;
            }
            if let Some(multi) = &mut turn.connection.multi {
                multi.failed = true;
            }
            turn.connection.refuse(&failure);
        }
        Flow::Went
    }

    fn dispatch(
        &mut self,
        turn: &mut Turn<'_>,
        found: Option<usize>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let handling = found.map(|index| self.commands.entry(index).handling);
        let always = matches!(handling, Some(Handling::Always(_)));
        if !turn.connection.authenticated && !always {
            return Err("NOAUTH Authentication required.".into());
        }
        let (Some(index), Some(handling)) = (found, handling) else { return Err(unknown(args)) };
        let entry = self.commands.entry(index);
        if !entry.accepts(args.len()) {
            return Err(entry.wrong_arity());
        }
        if turn.connection.multi.is_some() && !always {
            return self.in_multi(turn, index, handling, args, sink);
        }
        match handling {
            Handling::Always(handler) | Handling::Local(handler) => {
                self.count.commands_local += 1;
                handler(self, turn, args).map(|()| Flow::Went)
            }
            Handling::OneKey(class, key) => {
                let subject = self.encode(key, args)?;
                Ok(self.submit(turn, class, subject, SlotState::Waiting, sink))
            }
            Handling::Split(split) => self.split(turn, index, split, args, sink),
            Handling::Keys(_) | Handling::AllKeys(_) | Handling::Cursor | Handling::Container => {
                let (class, subject) = self.plan(index, handling, args)?;
                Ok(self.submit(turn, class, subject, SlotState::Waiting, sink))
            }
            Handling::Script { by_sha, read_only } => {
                let subject = self.encode_script(by_sha, read_only, args)?;
                let class = if read_only { Class::Read } else { Class::Write };
                Ok(self.submit(turn, class, subject, SlotState::Waiting, sink))
            }
            Handling::Explain => self.explain(turn, args, sink),
            Handling::Info => Ok(self.info(turn, args, sink)),
            Handling::Multi => {
                turn.connection.multi = Some(Box::default());
                turn.connection.ok();
                Ok(Flow::Went)
            }
            Handling::Exec => Err("ERR EXEC without MULTI".into()),
            Handling::Discard => Err("ERR DISCARD without MULTI".into()),
            Handling::Watch => Err(crate::commands::WATCH_REFUSED),
            Handling::Refused(refusal) => Err(refusal.text(&self.commands.entry(index).name)),
        }
    }

    /// Class and subject of a command on one key or on all; it is encoded into `self.command`.
    pub(crate) fn plan(
        &mut self,
        index: usize,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<(Class, Subject), Failure> {
        let name = UpperName::of(args[0]);
        let lower = || self.commands.entry(index).name.clone();
        match handling {
            Handling::OneKey(class, key) => Ok((class, self.encode(key, args)?)),
            Handling::AllKeys(class) => {
                self.encode(0, args)?;
                Ok((class, Subject::AllKeys))
            }
            Handling::Cursor => {
                self.encode(1, args)?;
                Ok((Class::Read, Subject::AllKeys))
            }
            Handling::Keys(class) => {
                let spec = self.setup.table.find(name.bytes());
                let found = spec.map_or(Keys::None, |spec| keys(spec, name.bytes(), args));
                Ok((class, self.encode_keyed(found, &lower(), args)?))
            }
            // DEL of one key, and the like.
            Handling::Split(split) if args.len() == 1 + split.step && split.is_whole_with_one() => {
                let renamed: Vec<&[u8]>;
                let args = match split.part {
                    Some(part) => {
                        renamed = [part].into_iter().chain(args[1..].iter().copied()).collect();
                        &renamed
                    }
                    None => args,
                };
                Ok((split.class, self.encode(1, args)?))
            }
            Handling::Split(_) => Err(CROSS_KEY.into()),
            Handling::Container => {
                let sub = args.get(1).copied().unwrap_or_default();
                let Some(spec) = self.setup.table.find_sub(name.bytes(), sub) else {
                    return Err(no_subcommand(&lower(), sub));
                };
                let (found, class) = subcommand(spec, name.bytes(), args)?;
                Ok((class, self.encode_keyed(found, &lower(), args)?))
            }
            Handling::Refused(refusal) => Err(refusal.text(&lower())),
            _ => Err(format!("ERR Concord does not support '{}' here", lower()).into()),
        }
    }

    fn encode_keyed(
        &mut self,
        found: Keys,
        name: &str,
        args: &[&[u8]],
    ) -> Result<Subject, Failure> {
        match found {
            Keys::One(key) => self.encode(key, args),
            Keys::Several => Err(CROSS_KEY.into()),
            Keys::BadNumber => Err("ERR numkeys should be greater than 0".into()),
            Keys::None => Err(format!("ERR Concord does not support the command '{name}'").into()),
            Keys::Unsupported => Err(format!(
                "ERR Concord does not support this form of '{name}': it concerns several keys"
            )
            .into()),
        }
    }

    /// Encodes a command with its key at `key` (0: none); gives what it concerns.
    pub(crate) fn encode(&mut self, key: u8, args: &[&[u8]]) -> Result<Subject, Failure> {
        if args.len() > ARGS_MAX {
            return Err("ERR too many arguments (Concord's limit is 65535)".into());
        }
        let Some(object) = args.get(key as usize) else { return Err("ERR syntax error".into()) };
        self.command.encode(key, args.iter().copied());
        Ok(Subject::Object(hash::object_id(object)))
    }

    /// Sends the command that is encoded in `self.command`, with a slot of its own.
    pub(crate) fn submit(
        &mut self,
        turn: &mut Turn<'_>,
        class: Class,
        subject: Subject,
        state: SlotState,
        sink: &mut impl Sink,
    ) -> Flow {
        let slot = turn.connection.next_slot();
        let resp3 = turn.connection.resp3;
        match self.send(turn, Place { slot, part: 0 }, class, subject, sink) {
            Sent::As(class) => {
                let slot = Slot { state, ..Slot::waiting(class, subject, resp3) };
                turn.connection.slots.push_back(slot);
                Flow::Went
            }
            Sent::TooLarge => {
                turn.connection.refuse(TOO_LARGE_COMMAND);
                Flow::Went
            }
            Sent::Waits => Flow::Waits,
        }
    }

    /// Sends the command that is encoded in `self.command`, if it may go now.
    fn send(
        &mut self,
        turn: &mut Turn<'_>,
        place: Place,
        class: Class,
        subject: Subject,
        sink: &mut impl Sink,
    ) -> Sent {
        let connection = &mut *turn.connection;
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
        if class == Class::Read && !self.tentative.has_room() {
            self.count.window_full += 1;
            connection.wait = Wait::Room(class);
            return Sent::Waits;
        }
        let mut flags = Flags(0);
        if connection.resp3 {
            flags = flags.with(Flags::RESP3);
        }
        let obj_id = match subject {
            Subject::Object(obj_id) => obj_id,
            Subject::AllKeys => {
                flags = flags.with(Flags::WILDCARD);
                ObjectId(0)
            }
        };
        let after = connection.last_write;
        let request = Request { class, obj_id, flags, after, command: self.command.bytes() };
        match self.client.submit(turn.now, request, sink) {
            Ok(number) => {
                if class == Class::Write {
                    connection.last_write = Some(number);
                }
                connection.note_sent(class, subject);
                let Place { slot, part } = place;
                let connection = connection.id;
                let is_tentative = class == Class::Read;
                if is_tentative {
                    self.tentative.sent();
                }
                let target = Target {
                    connection,
                    slot,
                    part,
                    class,
                    subject,
                    only_reads,
                    granted_bytes: 0,
                    is_tentative,
                };
                self.targets.insert(number.0, target);
                Sent::As(class)
            }
            Err(SubmitError::Full) => {
                self.count.window_full += 1;
                connection.wait = Wait::Room(class);
                Sent::Waits
            }
            Err(SubmitError::TooLarge) => Sent::TooLarge,
        }
    }

    /// DEL a b, MGET a b, ...: key by key, each by itself atomic. A command that had to wait goes on
    /// with its next part.
    fn split(
        &mut self,
        turn: &mut Turn<'_>,
        index: usize,
        split: Split,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        if args.len() == 1 + split.step && split.is_whole_with_one() {
            let (class, subject) = self.plan(index, Handling::Split(split), args)?;
            return Ok(self.submit(turn, class, subject, SlotState::Waiting, sink));
        }
        let rest = &args[1..];
        if !rest.len().is_multiple_of(split.step) {
            return Err(self.commands.entry(index).wrong_arity());
        }
        let count = rest.len() / split.step;
        if count > ARGS_MAX {
            return Err("ERR too many keys (Concord's limit is 65535)".into());
        }
        if !turn.connection.is_splitting {
            let parts = Box::new(Parts::new(split.combine, count));
            let slot = Slot::waiting(split.class, Subject::AllKeys, turn.connection.resp3);
            let slot = Slot { state: SlotState::Parts(parts), ..slot };
            turn.connection.slots.push_back(slot);
            turn.connection.is_splitting = true;
        }
        let slot = turn.connection.next_slot() - 1;
        let name = split.part.unwrap_or(args[0]);
        let mut sent = match turn.connection.slots.back() {
            Some(Slot { state: SlotState::Parts(parts), .. }) => parts.objects.len(),
            Some(_) | None => count,
        };
        while sent < count {
            if let Some(wait) = self.wait_of(turn.connection) {
                turn.connection.wait = wait;
                return Ok(Flow::Waits);
            }
            let part = &rest[sent * split.step..(sent + 1) * split.step];
            let object = hash::object_id(part[0]);
            self.command.encode(1, [name].into_iter().chain(part.iter().copied()));
            let place = Place { slot, part: sent as u32 };
            let went = self.send(turn, place, split.class, Subject::Object(object), sink);
            if went == Sent::Waits {
                return Ok(Flow::Waits);
            }
            if let Some(Slot { state: SlotState::Parts(parts), .. }) =
                turn.connection.slots.back_mut()
            {
                parts.objects.push(object);
                if went == Sent::TooLarge {
                    let mut error = Vec::new();
                    resp::error(&mut error, TOO_LARGE_COMMAND.as_bytes());
                    let before = parts.held_bytes();
                    parts.fill(sent as u32, Ended::Reply, error);
                    turn.connection.ready_bytes += parts.held_bytes() - before;
                }
            }
            sent += 1;
        }
        turn.connection.is_splitting = false;
        turn.connection.write_in_turn();
        Ok(Flow::Went)
    }

    /// The reply to a request may have so many bytes; unless it has ended.
    pub(crate) fn note_granted(
        &mut self,
        now: Now,
        connection: &mut Connection,
        request: RequestNumber,
        bytes: u32,
    ) {
        if let Some(target) = self.targets.get_mut(&request.0) {
            target.granted_bytes = bytes;
            connection.granted_bytes += bytes as usize;
            self.memory.note(now.instant, connection);
        }
    }

    /// What another request of the connection would have to wait for: its unanswered ones, or its
    /// client, who does not read.
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

    /// Whether a read of which nothing is known may be sent.
    pub(crate) fn has_room_for_read(&self) -> bool {
        self.tentative.has_room() && self.client.has_room(Class::Read)
    }

    /// Whether a connection's client has to read before more is asked for it.
    pub(crate) fn is_full(&self, connection: &Connection) -> bool {
        !connection.offers.is_empty() || self.memory.is_full(connection)
    }

    /// CONCORD EXPLAIN read-command ..., CONCORD HELP.
    fn explain(
        &mut self,
        turn: &mut Turn<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        const HELP: [&str; 5] = [
            "CONCORD <subcommand> [<arg> ...]. Subcommands are:",
            "EXPLAIN <read command> [<arg> ...]",
            "    Executes the command and says which path it took and why.",
            "HELP",
            "    Prints this help.",
        ];
        let sub = UpperName::of(args[1]);
        match sub.bytes() {
            b"EXPLAIN" if args.len() > 2 => {}
            b"HELP" => {
                turn.connection.answer(|out| {
                    resp::array(out, HELP.len());
                    HELP.iter().for_each(|line| resp::simple(out, line));
                });
                return Ok(Flow::Went);
            }
            _ => return Err(no_subcommand("concord", args[1])),
        }
        let args = &args[2..];
        let Some(index) = self.commands.find(&UpperName::of(args[0])) else {
            return Err(unknown(args));
        };
        let entry = self.commands.entry(index);
        if !entry.accepts(args.len()) {
            return Err(entry.wrong_arity());
        }
        let (class, subject) = self.plan(index, entry.handling, args)?;
        if class == Class::Write {
            return Err("ERR CONCORD EXPLAIN is for commands that only read".into());
        }
        Ok(self.submit(turn, class, subject, SlotState::Explaining, sink))
    }
}

const TOO_LARGE_COMMAND: &str = "ERR the command is larger than 1 MiB + 64 KiB (Concord's limit)";

/// What became of a command that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    As(Class),
    Waits,
    TooLarge,
}

fn subcommand(spec: &CommandSpec, name: &[u8], args: &[&[u8]]) -> Result<(Keys, Class), Failure> {
    if !spec.accepts(args.len()) {
        return Err(format!("ERR wrong number of arguments for '{}' command", spec.name).into());
    }
    match (handling_of(spec), class_of(spec)) {
        (Handling::Refused(refusal), _) => Err(refusal.text(&spec.name)),
        (_, Some(class)) => Ok((keys(spec, name, args), class)),
        (_, None) => {
            Err(format!("ERR Concord does not support the command '{}'", spec.name).into())
        }
    }
}

/// Redis' error for a subcommand that there is not.
pub(crate) fn no_subcommand(name: &str, sub: &[u8]) -> Failure {
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
    format!("ERR unknown subcommand '{sub}'. Try {} HELP.", name.to_ascii_uppercase()).into()
}
