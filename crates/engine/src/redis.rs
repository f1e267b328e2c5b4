//! A redis-server as a [`Backend`], without I/O: bytes in, bytes out.
//!
//! Read [`RedisEngine`] first. One replica has one server and one ordered, pipelined connection to
//! it (trap T10). A driver connects, tells [`RedisEngine::connected`] and
//! [`RedisEngine::disconnected`], and moves bytes.
//!
//! **A write** at position p of the log is sent as `[DEL key] MULTI commands... SELECT 1, SET
//! concord:applied p, SELECT 0, EXEC [EXISTS key]`: the applied number is stored beside the data
//! and changes with it, atomically (trap T11). It is in a database of its own, which no client's
//! command can reach or show; FLUSHALL deletes it, but is followed by the SET within the same
//! transaction. The DEL of an expired key is outside the transaction, since it has to happen even
//! if the server refuses the command and drops the transaction; so is the EXISTS, whose answer is
//! needed then as well. Nothing can come in between, since only the replica writes to the server.
//! If there are scripts among the commands, a list beside the applied number has their reports to
//! the replica, and is read and deleted within the transaction, too (`script.rs`). While keyspace
//! events are wanted, marks are sent in between, and the write is complete once they have arrived
//! (`heard.rs`).
//!
//! **A reconnect** first kills the old connection (what the server has not read of it must not run
//! later), then reads p. Writes that were applied while their replies were lost make the replica
//! leave ([`Backend::lost`]): the reply and what the shim learns from it cannot be had again. All
//! other writes, and reads, are sent again in order, so that nothing is applied twice or left out.

mod copier;
mod effects;
mod guarded;
mod heard;
mod input;
mod operation;
mod requests;
mod rights;
mod rules;
mod script;
#[cfg(test)]
mod tests;

pub(crate) use effects::draws;
pub(crate) use requests::is_question;
pub use requests::{is_script, runs_script};
pub use script::{Compiler, STOPPED_REPLY};
pub(crate) use script::{IN_PLACE_ARGS_MAX, in_place_of, script_of_library};

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Instant;

use crate::backend::{Backend, BackendDone, Effect, OUT_OF_MEMORY, Outcome, Step, Submitted};
use crate::copy::{
    BadChunk, Copied, Object, PLACE_EARLY, cursor, place_of_cursor, ticket_of_cursor,
};
use crate::databases::{ALL, of_key};
use crate::events::{Classes, Event};
use crate::resp_scan::{Scanner, elements, number, text};
use crate::table::CommandTable;
use crate::{Class, Command, Context, NOT_DONE_TOO_LONG, info, resp};
use copier::{Copier, Pieces};
use guarded::GUARD_COMMANDS;
use heard::{Awaited, Listening};
use operation::{Draws, Kind, Operation};
use requests::{encode, encode_step};

/// Where the applied number lives.
const APPLIED_KEY: &[u8] = b"concord:applied";
/// The database of [`APPLIED_KEY`]; the data is in database 0.
const APPLIED_DATABASE: &[u8] = b"1";
/// Commands that record the position: SELECT, SET, SELECT.
const RECORDING_COMMANDS: usize = 3;
/// Commands that ask what scripts told: LRANGE, DEL.
const ASKING_COMMANDS: usize = 2;
/// Deadlines that are told to the server in one command.
const DEADLINES_AT_ONCE: usize = 500;
/// Every so many operations the server is asked for its size.
const SIZE_INTERVAL: u32 = 4096;
/// The same where its memory has a limit; requests count by their length then, too.
const SIZE_INTERVAL_LIMITED: u32 = 256;
/// The same while it is full: room is to be seen soon.
const SIZE_INTERVAL_FULL: u32 = 16;
/// So many bytes of requests count as one more operation, where memory has a limit.
const SIZE_INTERVAL_BYTES: usize = 4_096;

/// Requests and replies are copied into buffers that shrink when they are larger than this, in
/// bytes.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// A question of ours, at connecting or in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// CLIENT KILL of the connection before, or SELECT: nothing to learn.
    Nothing,
    ClientId,
    /// INFO server: the run id, which changes when the server restarts.
    RunId,
    /// CONFIG GET of this name must answer this value.
    Setting(&'static str, &'static str),
    Commands,
    /// DBSIZE of a server that we meet for the first time: it must be empty.
    Empty,
    Applied,
    Size,
    Memory,
    /// SCAN of that copier: names of keys.
    Names(u32),
}

#[derive(Debug)]
enum Phase {
    /// Not connected.
    Down,
    /// Connected; the answers that are still to come.
    Greeting(VecDeque<Ask>),
    /// Operations are sent as they are submitted.
    Ready,
    /// The engine is of no use any more, and why.
    Lost(Cow<'static, str>),
}

/// How far the replies of the oldest operation have come; starts anew with every connection.
#[derive(Debug, Default)]
struct Front {
    frames: usize,
    /// What has come of the reply to EXEC, and how many of its elements have not: it is taken
    /// element by element, since any of them may be too long.
    exec: Option<(Vec<u8>, usize)>,
    /// How many have come, and those of them that are long, in whose places nulls stand there: they
    /// are moved, not copied.
    taken: usize,
    moved: VecDeque<(usize, Vec<u8>)>,
    reply: Vec<u8>,
    /// The first error at queueing: the server drops the transaction.
    queue_error: Option<Vec<u8>>,
    /// The server dropped the transaction, with its marks.
    is_dropped: bool,
    outcome: Outcome,
    copied: Copied,
}

/// The Redis engine's connection machine.
///
/// The law: after [`RedisEngine::connected`] send what [`RedisEngine::output`] gives, in order, and
/// hand everything received to [`RedisEngine::input`]; on any error of the connection call
/// [`RedisEngine::disconnected`] and connect again, or give up when [`Backend::lost`]. Operations
/// may be submitted from the time on that [`RedisEngine::ready`] was true once. How many are in
/// flight is bounded by who submits.
#[derive(Debug)]
pub struct RedisEngine {
    phase: Phase,
    /// Invariant: in submission order; replies belong to the first.
    operations: VecDeque<Operation>,
    front: Front,
    done: VecDeque<(BackendDone, Option<Awaited>)>,
    /// What the server tells of events.
    listening: Listening,
    /// Those of the operation that was polled last.
    events: Vec<(usize, Event)>,
    /// Bytes to send, from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
    /// Bytes of the reply that is not complete.
    inbox: Vec<u8>,
    scanner: Scanner,
    /// It is longer than a reply may be, and what has come of it was dropped.
    is_dropping: bool,
    /// The protocol that the connection speaks behind everything in `outbox`.
    resp3: bool,
    /// The highest position that the server has recorded, of finished writes.
    recorded: u64,
    /// The highest position that was submitted.
    submitted: u64,
    /// Identity of the server, once known.
    run_id: Vec<u8>,
    /// The id of this connection, and of the last one over which operations were sent.
    client_id: i64,
    client_id_used: Option<i64>,
    table: Option<CommandTable>,
    keys: u64,
    memory_bytes: u64,
    /// The server itself has no limit: it would refuse, or evict, at another write than the other
    /// replicas' servers (trap T11). 0 for none.
    memory_bytes_max: u64,
    until_size: u32,
    /// Operations came since it was asked.
    is_size_old: bool,
    /// Operations that were answered so far.
    answered: u64,
    /// Since when the server works on one operation, as the driver says.
    at_work_since: Option<Instant>,
    /// Scripts that were stopped, and whose error has not come yet.
    stopped: u32,
    /// The engine was lost because a script does not end.
    is_poisoned: bool,
    /// The server may hold keys of databases but 0; if not, a command on all keys of database 0 is
    /// one on all.
    has_databases: bool,
    /// Scripts that the server knows.
    known: script::Known,
    /// Set while somebody copies.
    copier: Option<Copier>,
    pieces: Pieces,
    /// Copiers so far.
    copies: u32,
}

impl Default for RedisEngine {
    fn default() -> RedisEngine {
        RedisEngine::new()
    }
}

impl RedisEngine {
    /// An engine that is not connected. Its server must be empty.
    #[must_use]
    pub fn new() -> RedisEngine {
        RedisEngine {
            phase: Phase::Down,
            operations: VecDeque::new(),
            front: Front::default(),
            done: VecDeque::new(),
            listening: Listening::default(),
            events: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            inbox: Vec::new(),
            scanner: Scanner::new(),
            is_dropping: false,
            resp3: false,
            recorded: 0,
            submitted: 0,
            run_id: Vec::new(),
            client_id: 0,
            client_id_used: None,
            table: None,
            keys: 0,
            memory_bytes: 0,
            memory_bytes_max: 0,
            until_size: 1,
            is_size_old: false,
            answered: 0,
            at_work_since: None,
            stopped: 0,
            is_poisoned: false,
            has_databases: false,
            known: script::Known::default(),
            copier: None,
            pieces: Pieces::default(),
            copies: 0,
        }
    }

    /// With a limit of what the server's memory may take (its `used_memory`); 0 for none.
    #[must_use]
    pub fn with_memory_max(self, memory_bytes_max: u64) -> RedisEngine {
        RedisEngine { memory_bytes_max, ..self }
    }

    /// With a look at each script before the server gets it.
    #[must_use]
    pub fn with_compiler(mut self, compiler: Compiler) -> RedisEngine {
        self.known.compiler = Some(compiler);
        self
    }

    /// A new connection stands: greets the server.
    pub fn connected(&mut self) {
        self.disconnected();
        if !matches!(self.phase, Phase::Down) {
            return;
        }
        let mut asks = VecDeque::new();
        let out = &mut self.outbox;
        let mut ask = |what: Ask, args: &[&[u8]]| {
            encode(out, args.iter().copied());
            asks.push_back(what);
        };
        if let Some(id) = self.client_id_used {
            // What the server has not yet read of the old connection would otherwise run after
            // we have read the applied number, and once more when it is sent again.
            let id = alloc::format!("{id}");
            ask(Ask::Nothing, &[b"CLIENT", b"KILL", b"ID", id.as_bytes()]);
        }
        ask(Ask::ClientId, &[b"CLIENT", b"ID"]);
        ask(Ask::RunId, &[b"INFO", b"server"]);
        // Replicas would reach a memory limit at different writes, and evict different keys (T11).
        for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "0")] {
            ask(Ask::Setting(name, value), &[b"CONFIG", b"GET", name.as_bytes()]);
        }
        if self.table.is_none() {
            ask(Ask::Commands, &[b"COMMAND"]);
            ask(Ask::Empty, &[b"DBSIZE"]);
        }
        ask(Ask::Nothing, &[b"SELECT", APPLIED_DATABASE]);
        ask(Ask::Applied, &[b"GET", APPLIED_KEY]);
        ask(Ask::Nothing, &[b"SELECT", b"0"]);
        self.phase = Phase::Greeting(asks);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.outbox.clear();
        self.sent = 0;
        self.inbox.clear();
        self.scanner = Scanner::new();
        self.is_dropping = false;
        self.front = Front::default();
        self.stopped = 0;
        self.resp3 = false;
        if !matches!(self.phase, Phase::Lost(_)) {
            self.phase = Phase::Down;
        }
    }

    /// Whether operations may be submitted: the server was met, and not lost since. They wait
    /// while the connection is down.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.table.is_some() && self.client_id_used.is_some() && !self.lost()
    }

    /// Why the engine is lost, for a person to read.
    #[must_use]
    pub fn lost_reason(&self) -> Option<&str> {
        match &self.phase {
            Phase::Lost(why) => Some(why),
            Phase::Down | Phase::Greeting(_) | Phase::Ready => None,
        }
    }

    /// The server's commands, once it was met.
    #[must_use]
    pub fn commands(&self) -> Option<&CommandTable> {
        self.table.as_ref()
    }

    /// Whether the server owes the answer to an operation.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.operations.is_empty() && matches!(self.phase, Phase::Ready)
    }

    /// How many operations were answered: as long as it stands still, the oldest is the same.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether what becomes of each script that is owed is decided here. If not, another node has
    /// executed one to its end, and stopping it here would make this replica differ. The oldest
    /// operation says nothing of that: the server keeps the answers of one receive back until it
    /// has executed all of it.
    #[must_use]
    pub fn decides(&self) -> bool {
        !self.operations.iter().any(|operation| operation.has_scripts && !operation.decides)
    }

    /// Whether each script that is owed can be stopped, if it has changed nothing, without loss:
    /// nothing else was done in its operation, which would have to be undone.
    #[must_use]
    pub fn stops_cleanly(&self) -> bool {
        self.operations.iter().filter(|operation| operation.has_scripts).all(Operation::is_alone)
    }

    /// The server has been at work on one operation since then; `None`: it is not, or nobody knows.
    pub fn set_at_work(&mut self, since: Option<Instant>) {
        self.at_work_since = since;
    }

    /// The server said that it stopped the script which it was executing. To be told before the
    /// bytes that came behind it are handed to [`RedisEngine::input`]: a script may raise any
    /// error, and only with this word is the server's one believed.
    pub fn script_stopped(&mut self) {
        self.stopped += 1;
    }

    /// A script has run for longer than any may, and has changed something: it cannot be stopped.
    pub fn script_runs_on(&mut self) {
        self.is_poisoned = true;
        self.lose("a script that has changed something ran for too long");
    }

    /// What is to be sent next; see [`RedisEngine::sent`].
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.outbox[self.sent..]
    }

    /// The first `length` bytes of [`RedisEngine::output`] were sent.
    ///
    /// # Panics
    /// If the output is shorter.
    pub fn sent(&mut self, length: usize) {
        assert!(length <= self.outbox.len() - self.sent, "sent no more than the output");
        self.sent += length;
        if self.sent == self.outbox.len() {
            self.sent = 0;
            self.outbox.clear();
            self.outbox.shrink_to(BUFFER_BYTES_KEPT);
        }
    }

    fn lose(&mut self, why: impl Into<Cow<'static, str>>) {
        self.phase = Phase::Lost(why.into());
        self.outbox.clear();
        self.sent = 0;
    }

    fn on_frame(&mut self, frame: &[u8]) {
        if frame.starts_with(b">") {
            return; // A push answers nothing.
        }
        if let Phase::Greeting(asks) = &mut self.phase {
            let Some(ask) = asks.pop_front() else { return };
            let is_last = asks.is_empty();
            self.on_answer(ask, frame);
            if is_last && matches!(self.phase, Phase::Greeting(_)) {
                self.phase = Phase::Ready;
                self.client_id_used = Some(self.client_id);
                self.resend();
            }
            return;
        }
        let Some(operation) = self.operations.front() else {
            return self.lose("the server sent a reply without a request");
        };
        let mut index = self.front.frames;
        self.front.frames += 1;
        if operation.switched {
            if index == 0 {
                if frame.starts_with(b"-") {
                    self.lose("the server refused HELLO: Redis 6 or newer is needed");
                }
                return;
            }
            index -= 1;
        }
        match operation.kind {
            Kind::Ask(ask) => {
                self.operations.pop_front();
                self.answered += 1;
                self.front = Front::default();
                self.on_answer(ask, frame);
            }
            Kind::Copy { .. } => self.on_dump(index, frame),
            Kind::Install => self.on_install(index, frame),
            Kind::Tell => self.on_tell(index, frame),
            Kind::Read => {
                let commands = operation.commands;
                self.on_command_reply(index, Cow::Borrowed(frame));
                if index + 1 == commands {
                    self.complete();
                }
            }
            Kind::Write { position, delete_first, want_exists } => {
                if operation.is_guarded {
                    let Some(behind) = index.checked_sub(GUARD_COMMANDS) else {
                        if frame.starts_with(b"-") {
                            self.lose(shown("the server refused to look at a pop", frame));
                        }
                        return;
                    };
                    index = behind;
                }
                if operation.awaited.is_some() {
                    // The mark in front.
                    let Some(behind) = index.checked_sub(1) else { return };
                    index = behind;
                }
                let place = (index + 1).checked_sub(usize::from(delete_first));
                self.on_write_frame(place, position, want_exists, frame);
            }
        }
    }

    /// `place` is `None` or 0... of the frames of a write: 0 its DEL, 1 MULTI, then what is queued,
    /// EXEC, EXISTS.
    fn on_write_frame(
        &mut self,
        place: Option<usize>,
        position: u64,
        want_exists: bool,
        frame: &[u8],
    ) {
        let Some(operation) = self.operations.front() else { return };
        let exec = operation.commands + operation.recording_commands() + 2;
        let is_error = frame.starts_with(b"-");
        match place {
            None | Some(0 | 1) => {
                if is_error {
                    self.lose(shown("the server refused DEL or MULTI", frame));
                }
            }
            Some(place) if place < exec => {
                if is_error && self.front.queue_error.is_none() {
                    self.front.queue_error = Some(frame.to_vec());
                }
            }
            Some(place) if place == exec => {
                self.on_exec(position, frame);
                if !want_exists && !self.lost() {
                    self.complete();
                }
            }
            Some(_) => {
                self.front.outcome.exists = Some(frame == b":1\r\n");
                self.complete();
            }
        }
    }

    fn on_exec(&mut self, position: u64, frame: &[u8]) {
        let Some(operation) = self.operations.front() else { return };
        let (commands, has_scripts) = (operation.commands, operation.has_scripts);
        if frame.starts_with(b"-") {
            // Refused as a whole, by the arity or the like of one command: nothing has changed.
            // The write counts as applied, and needs no record: sent again it fails again, and the
            // record of the next write covers its position. Only where there was a single command
            // is its own error the step's reply, as if it had come without MULTI.
            self.front.is_dropped = true;
            match (self.front.queue_error.take(), commands) {
                (_, 0) => self.lose(shown("the server refused to record a position", frame)),
                (Some(error), 1) => self.front.reply = error,
                (_, _) => self.front.reply = frame.to_vec(),
            }
            return;
        }
        if operation.is_guarded && frame == b"*-1\r\n" {
            // What was looked at is too long: the server dropped the transaction, as above.
            self.front.is_dropped = true;
            self.front.reply = NOT_DONE_TOO_LONG.to_vec();
            return;
        }
        let is_marked = operation.awaited.is_some();
        let mut replies = elements(frame);
        for index in 0..commands {
            let Some(reply) = replies.next() else { break };
            let place = if is_marked { 2 * index } else { index };
            let is_moved = self.front.moved.front().is_some_and(|(at, _)| *at == place);
            let moved = if is_moved { self.front.moved.pop_front() } else { None };
            let reply = moved.map_or(Cow::Borrowed(reply), |(_, long)| Cow::Owned(long));
            self.on_command_reply(index, reply);
            if is_marked {
                replies.next();
            }
        }
        if is_marked {
            replies.next();
        }
        if has_scripts && !self.lost() {
            let copier = &mut self.copier;
            let touch = |key: &[u8]| copier.iter_mut().for_each(|copier| copier.touch(key));
            let told = replies.nth(1).map(|told| script::told(told, touch));
            self.front.outcome.told = told.unwrap_or_default();
        }
        let recorded = replies.nth(1).is_some_and(|set| set == resp::OK);
        if !recorded || replies.count() != 1 {
            return self.lose(shown("a transaction did not record its position", frame));
        }
        self.recorded = self.recorded.max(position);
    }

    /// The reply of the operation's command `index`.
    fn on_command_reply(&mut self, index: usize, frame: Cow<'_, [u8]>) {
        let Some(operation) = self.operations.front() else { return };
        let is_write = matches!(operation.kind, Kind::Write { .. });
        if self.stopped > 0 && script::was_stopped(&frame) {
            self.stopped -= 1;
            if !operation.is_alone() {
                // The others of its transaction were executed, or a key that was due is deleted.
                // What is replicated in its place says nothing of that.
                self.is_poisoned = true;
                return self.lose("a script of a transaction was stopped");
            }
            self.front.outcome.stopped = true;
            if operation.decides && is_write {
                let effect = Effect { index, command: script::refusal() };
                self.front.outcome.effects.push(effect);
            }
            return self.front.reply.extend_from_slice(STOPPED_REPLY);
        }
        for Draws { index: at, command } in &operation.draws {
            if *at == index {
                let command = Command::parse(command).ok();
                let effect = command.and_then(|command| effects::effect(&command, &frame));
                let effect = effect.map(|command| Effect { index, command });
                self.front.outcome.effects.extend(effect);
            }
        }
        for (_, text, hash) in operation.taught.iter().filter(|(at, ..)| *at == index) {
            // An error of a script that was not compiled looks like any other.
            if !frame.starts_with(b"-") {
                self.known.learn(text.clone(), *hash);
            }
        }
        let is_nothing = *frame == *b"$-1\r\n" && operation.arrays.contains(&index);
        match frame {
            _ if is_nothing => self.front.reply.extend_from_slice(b"*-1\r\n"),
            // What is in front of it is short, as a rule.
            Cow::Owned(mut frame) if self.front.reply.len() < frame.len() / 16 => {
                drop(frame.splice(..0, core::mem::take(&mut self.front.reply)));
                self.front.reply = frame;
            }
            frame => self.front.reply.extend_from_slice(&frame),
        }
    }

    fn on_tell(&mut self, index: usize, frame: &[u8]) {
        if frame.starts_with(b"-") {
            return self.lose(shown("the server refused deadlines", frame));
        }
        if self.operations.front().is_some_and(|operation| index + 1 == operation.commands) {
            self.operations.pop_front();
            self.answered += 1;
            self.front = Front::default();
        }
    }

    /// All replies of the oldest operation are there.
    fn complete(&mut self) {
        let Some(operation) = self.operations.pop_front() else { return };
        let front = core::mem::take(&mut self.front);
        let is_write = matches!(operation.kind, Kind::Write { .. });
        let reply = match operation.refusal {
            Some(refusal) => refusal,
            // As at the replicas that get the error in the place of a write: without the digests.
            None if is_write && front.outcome.stopped => STOPPED_REPLY.to_vec(),
            None => front.reply,
        };
        let copied = matches!(operation.kind, Kind::Copy { .. }).then_some(front.copied);
        self.answered += 1;
        let awaited = operation.awaited.filter(|_| !front.is_dropped);
        self.done.push_back((BackendDone { reply, outcome: front.outcome, copied }, awaited));
    }

    fn on_answer(&mut self, ask: Ask, frame: &[u8]) {
        if frame.starts_with(b"-") && ask != Ask::Nothing {
            return self.lose(shown("the server refused a question of ours", frame));
        }
        let value = text(frame).unwrap_or_default();
        let count = number(value).unwrap_or(0);
        match ask {
            Ask::Nothing => {}
            Ask::ClientId => self.client_id = count,
            Ask::RunId => self.on_run_id(value),
            Ask::Setting(name, wanted) => {
                let found = elements(frame).nth(1).and_then(text);
                if found != Some(wanted.as_bytes()) {
                    self.lose(alloc::format!("the server's {name} must be {wanted}"));
                }
            }
            Ask::Commands => match CommandTable::from_resp(frame) {
                Ok(table) => self.table = Some(table),
                Err(why) => self.lose(alloc::format!("{why}")),
            },
            Ask::Empty if count != 0 => {
                self.lose("the server holds data that is not ours: start it empty");
            }
            Ask::Empty => {}
            Ask::Applied => self.on_applied(count.unsigned_abs()),
            Ask::Names(generation) => self.on_names(generation, frame),
            Ask::Size => self.keys = count.unsigned_abs(),
            Ask::Memory => {
                self.memory_bytes = info::number(value, "used_memory").unwrap_or(0);
            }
        }
    }

    fn on_run_id(&mut self, info: &[u8]) {
        let run_id = info::field(info, "run_id").unwrap_or_default();
        self.known.forgets = forgets_scripts(info);
        self.known.rights.is_open = rights::is_open(info);
        if self.run_id.is_empty() {
            self.run_id = run_id.to_vec();
        }
        if run_id.is_empty() || self.run_id != run_id {
            self.lose("the server restarted and lost its data");
        }
    }

    /// The server has applied the log up to `applied`.
    fn on_applied(&mut self, applied: u64) {
        if applied < self.recorded || applied > self.submitted {
            let (low, high) = (self.recorded, self.submitted);
            return self.lose(alloc::format!(
                "the server says that it applied position {applied}, not one of {low}..={high}"
            ));
        }
        let mut reads_before = false;
        for operation in &self.operations {
            match operation.kind {
                // Copied values and RESTORE with REPLACE are the same when they come again.
                // So are deadlines, up to those that come last.
                Kind::Ask(_) | Kind::Copy { .. } | Kind::Install | Kind::Tell => {}
                Kind::Read => reads_before = true,
                Kind::Write { position, .. } if position <= applied => {
                    return self.lose("the connection broke and a write's reply was lost");
                }
                // Its DEL may have run without the rest (behind writes that the server refused and
                // did not record, too): a read before it, which was checked against the state
                // without it (trap T10), can no longer be answered.
                Kind::Write { delete_first: true, .. } if reads_before => {
                    return self.lose("the connection broke between a read and a deletion");
                }
                Kind::Write { .. } => {}
            }
        }
    }

    /// Everything unanswered goes out on the new connection.
    fn resend(&mut self) {
        self.operations.retain(|operation| !matches!(operation.kind, Kind::Ask(_)));
        let mut operations = core::mem::take(&mut self.operations);
        for operation in &mut operations {
            self.send(operation);
        }
        self.operations = operations;
        self.scan_on();
    }

    fn send(&mut self, operation: &mut Operation) {
        operation.switched = operation.resp3 != self.resp3;
        if operation.switched {
            self.resp3 = operation.resp3;
            encode(&mut self.outbox, [&b"HELLO"[..], if self.resp3 { b"3" } else { b"2" }]);
        }
        self.outbox.extend_from_slice(&operation.request);
    }

    fn enqueue(&mut self, mut operation: Operation) {
        if matches!(self.phase, Phase::Ready) {
            self.send(&mut operation);
        }
        self.operations.push_back(operation);
    }

    /// Asks for the server's size now and then, after a request of so many bytes.
    fn ask_size(&mut self, request_bytes: usize) {
        self.is_size_old = true;
        let is_limited = self.memory_bytes_max != 0;
        let counted = if is_limited { 1 + request_bytes / SIZE_INTERVAL_BYTES } else { 1 };
        self.until_size = self.until_size.saturating_sub(counted as u32);
        if self.until_size > 0 {
            return;
        }
        self.until_size = match is_limited {
            true if self.memory_bytes > self.memory_bytes_max => SIZE_INTERVAL_FULL,
            true => SIZE_INTERVAL_LIMITED,
            false => SIZE_INTERVAL,
        };
        self.ask_size_now();
    }

    /// Asks for the server's size if operations came since that was done last: to be called now and
    /// then, so that figures are not old where there are few.
    pub fn refresh_size(&mut self) {
        if self.is_size_old && self.ready() {
            self.ask_size_now();
        }
    }

    fn ask_size_now(&mut self) {
        self.is_size_old = false;
        for (ask, args) in
            [(Ask::Size, &[&b"DBSIZE"[..]][..]), (Ask::Memory, &[&b"INFO"[..], b"memory"])]
        {
            let mut request = Vec::new();
            encode(&mut request, args.iter().copied());
            self.enqueue_own(request, Kind::Ask(ask), 1);
        }
    }

    /// Why `step` must not be passed on, as a RESP error.
    fn why_not(&self, context: &Context, step: &Step<'_>) -> Option<Vec<u8>> {
        let table = self.table.as_ref()?;
        let check = |command| rules::check(table, step.class, command).err();
        let mut why = step.commands.iter().find_map(check);
        let needs_memory = |c: &Command<'_>| rules::needs_memory(table, c);
        if why.is_none() && context.memory_full && step.commands.iter().any(needs_memory) {
            why = Some(alloc::string::String::from_utf8_lossy(OUT_OF_MEMORY).into_owned());
        }
        why.map(|why| {
            let mut error = Vec::new();
            resp::error(&mut error, why.as_bytes());
            error
        })
    }
}

impl Backend for RedisEngine {
    fn submit(&mut self, context: &Context, step: &Step<'_>, reply: &mut Vec<u8>) -> Submitted {
        if self.lost() {
            // Neither done nor failed: nobody may be told anything.
            return Submitted::Pending;
        }
        if !self.ready() {
            if step.class == Class::Read {
                resp::error(reply, b"LOADING the engine is not connected to its server yet");
                return Submitted::Done(Outcome::default());
            }
            self.lose("a write came before the engine was connected to its server");
            return Submitted::Pending;
        }
        if let Some(table) = &self.table {
            step.commands.iter().for_each(|command| self.known.rights.learn(table, command));
        }
        let refusal = self.why_not(context, step);
        if step.class == Class::Read {
            if let Some(error) = refusal {
                reply.extend_from_slice(&error);
                return Submitted::Done(Outcome::default());
            }
            if step.commands.is_empty() {
                return Submitted::Done(Outcome::default());
            }
        }
        if step.class == Class::Write {
            let of_keys = step.key.iter().chain(step.keys).any(|key| of_key(key) != 0);
            self.has_databases |= of_keys || step.commands.iter().any(|c| c.database() != 0);
        }
        // A refused write still records its position, and answers in its turn (trap T14).
        let commands = if refusal.is_some() { &[] } else { step.commands };
        let mut operation = encode_step(context, step, commands, self);
        operation.refusal = refusal;
        if step.class == Class::Write {
            self.submitted = self.submitted.max(context.position);
            if let Some(copier) = &mut self.copier {
                step.key.iter().chain(step.keys).for_each(|key| copier.touch(key));
            }
        }
        let request_bytes = operation.request.len();
        self.enqueue(operation);
        self.ask_size(request_bytes);
        Submitted::Pending
    }

    fn poll(&mut self) -> Option<BackendDone> {
        self.events = match &self.done.front()?.1 {
            Some(awaited) => self.listening.take(awaited)?,
            None => Vec::new(),
        };
        self.done.pop_front().map(|(done, _)| done)
    }

    fn want_events(&mut self, classes: Classes) -> bool {
        self.listen_for(classes)
    }

    fn take_events(&mut self) -> Vec<(usize, Event)> {
        core::mem::take(&mut self.events)
    }

    fn refusal(&self, context: &Context, step: &Step<'_>) -> Option<Vec<u8>> {
        self.why_not(context, step)
    }

    fn tell_deadlines(&mut self, is_all: bool, deadlines: &[(&[u8], Option<u64>)]) {
        let mut request = Vec::new();
        let mut count = 2;
        encode(&mut request, [&b"SELECT"[..], APPLIED_DATABASE]);
        if is_all {
            encode(&mut request, [&b"DEL"[..], script::DEADLINES_KEY]);
            count += 1;
        }
        for some in deadlines.chunks(DEADLINES_AT_ONCE) {
            let digits = |at: &u64| alloc::format!("{at}").into_bytes();
            let set = some.iter().filter_map(|(key, at)| Some((*key, digits(at.as_ref()?))));
            let set: Vec<(&[u8], Vec<u8>)> = set.collect();
            let pairs = set.iter().flat_map(|(key, at)| [*key, at.as_slice()]);
            let gone = some.iter().filter(|(_, at)| at.is_none()).map(|(key, _)| *key);
            let hash = script::DEADLINES_KEY;
            if !set.is_empty() {
                encode(&mut request, [&b"HSET"[..], hash].into_iter().chain(pairs));
                count += 1;
            }
            if set.len() < some.len() {
                encode(&mut request, [&b"HDEL"[..], hash].into_iter().chain(gone));
                count += 1;
            }
        }
        encode(&mut request, [&b"SELECT"[..], b"0"]);
        self.enqueue_own(request, Kind::Tell, count);
    }

    fn class_of(&self, command: &Command<'_>) -> Option<Class> {
        let spec = self.table.as_ref()?.spec_of(command.name(), command.args().nth(1))?;
        spec.class()
    }

    fn flushes_by_name(&self, database: u8) -> bool {
        database != 0 && database != ALL || database == 0 && self.has_databases
    }

    fn prepare_copy(&mut self) -> bool {
        self.prepare()
    }

    fn end_copy(&mut self) {
        self.copier = None;
        self.pieces.release_all();
    }

    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        self.copy_from(from, bytes_max)
    }

    fn copy_keys(
        &mut self,
        keys: &[Vec<u8>],
        (bytes_max, _): (usize, usize),
        _onto: u64,
    ) -> Option<Copied> {
        self.dump_keys(keys, bytes_max)
    }

    fn cut_early(&mut self, copied: Copied, wanted: (usize, usize), onto: u64) -> Copied {
        self.pieces.cut(copied, PLACE_EARLY, wanted, ticket_of_cursor(onto))
    }

    fn fork_copy(&mut self, from: u64) -> u64 {
        cursor(place_of_cursor(from), self.pieces.fork(ticket_of_cursor(from)))
    }

    fn release_copy(&mut self, from: u64) {
        self.pieces.release(ticket_of_cursor(from));
    }

    fn begin_early(&mut self) {
        let mut request = Vec::new();
        encode(&mut request, [&b"SELECT"[..], APPLIED_DATABASE]);
        encode(&mut request, [&b"DEL"[..], script::EARLY_KEY]);
        encode(&mut request, [&b"SELECT"[..], b"0"]);
        self.enqueue_own(request, Kind::Tell, 3);
    }

    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        self.restore(objects)
    }

    fn clear(&mut self) -> Submitted {
        self.forget()
    }

    fn lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    fn at_work_since(&self) -> Option<Instant> {
        self.at_work_since
    }

    fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    fn keys(&self) -> u64 {
        self.keys
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    fn digest(&self) -> Option<u64> {
        None
    }
}

/// Whether the server, by its INFO, forgets scripts that it was sent by EVAL: from Redis 7.4 and
/// Valkey 8 on.
fn forgets_scripts(info: &[u8]) -> bool {
    let version = info::field(info, "redis_version").unwrap_or_default();
    let mut parts = version.split(|&b| b == b'.').map(|part| number(part).unwrap_or(i64::MAX));
    let version = (parts.next().unwrap_or(i64::MAX), parts.next().unwrap_or(i64::MAX));
    version >= (7, 4) || info::field(info, "valkey_version").is_some()
}

/// `what` and the reply that showed it.
fn shown(what: &str, frame: &[u8]) -> alloc::string::String {
    const SHOWN_BYTES_MAX: usize = 200;
    let frame = &frame[..frame.len().min(SHOWN_BYTES_MAX)];
    alloc::format!("{what}: {}", alloc::string::String::from_utf8_lossy(frame.trim_ascii_end()))
}
