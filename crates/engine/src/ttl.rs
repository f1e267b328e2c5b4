//! Times to live, kept beside the data for both engines and never in the server (trap T12).
//!
//! [`Shimmed`] turns each command into a [`Step`] without any time to live and, when that has run,
//! decides what becomes of the key's deadline. A deadline is in ms since the Unix epoch by the
//! clock of the ordering node ([`Context::now_ms`]), so that all replicas decide alike:
//! - A write on a key that is due deletes it first.
//! - A read shows a due key until a numbered delete has removed it, since two replicas' clocks
//!   would disagree; its TTL is 0.
//! - `CONCORD.EXPIRE key deadline_ms`, that numbered delete, removes the key iff it still has
//!   exactly this deadline and is due: `:1`, else `:0`.
//!
//! `CONCORD.USERS` keeps what gateways know of users ([`mod@crate::users`]).
//! `CONCORD.EVENTS` answers what happened to keys ([`mod@crate::events`]).
//! `CONCORD.INFO` answers what INFO tells of the data ([`mod@crate::info`]).
//!
//! `CONCORD.EXEC` with encoded commands as arguments executes them as one step (MULTI/EXEC) and
//! answers the array of their replies.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Instant;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::acl::sent::Understood;
use crate::backend::{Backend, BackendDone, Outcome, Published, Reach, Step, Submitted, TtlChange};
use crate::command::Command;
use crate::copy::{self, BadChunk};
use crate::databases::flushed;
use crate::deadlines::Deadlines;
use crate::digest::RangeDigest;
use crate::early::{Early, Touched};
use crate::events::{EVENTS_COMMAND, EventBuffer};
use crate::functions::{Functions, Loader};
use crate::plan::{After, Settled, plan_command};
use crate::script::{Interpreter, Running, SLICE_COST, WAITED_COST};
use crate::several;
use crate::table::UpperName;
use crate::users::{USERS_COMMAND, Users};
use crate::{Class, Completion, Context, Engine, Progress, resp, texts};

mod alone;
mod events;
mod exec;
mod figures;
mod flush;
mod functions;
mod scripts;
mod watch;

use alone::Alone;
use exec::{Parts, Transaction};
pub(crate) use functions::is_call;
use scripts::Answers;
use watch::Watched;
pub(crate) use watch::watched;
pub use watch::{DIGEST_COMMAND, WATCHED_COMMAND};

/// The internal write that deletes a key whose time has come.
pub const EXPIRE_COMMAND: &[u8] = b"CONCORD.EXPIRE";
/// The internal write that changes nothing and answers the error that is its argument: what became
/// of a script that was stopped.
pub const REFUSE_COMMAND: &[u8] = b"CONCORD.REFUSE";
/// The internal command that executes several commands as one.
pub const EXEC_COMMAND: &[u8] = b"CONCORD.EXEC";
/// Within it: answers its argument, which is the reply of a command that was answered without the
/// data.
pub const REPLY_COMMAND: &[u8] = b"CONCORD.REPLY";

/// The internal read that answers figures of the data.
pub const INFO_COMMAND: &[u8] = b"CONCORD.INFO";

/// Writes that change nothing within a value.
const LEAVES_VALUES: [&[u8]; 6] = [b"DEL", b"UNLINK", b"RENAME", b"SET", b"GETDEL", EXPIRE_COMMAND];

/// The number of changed deadlines at which the backend is told even if no script asks for them.
const UNTOLD_MAX: usize = 4_096;

/// The work that is left when a step has finished.
#[derive(Debug)]
struct Pending {
    /// Set iff the step may change the key's deadline: what looks at it must wait.
    unsettled_key: Option<Vec<u8>>,
    /// The same of a step of several keys.
    unsettled_keys: Vec<Vec<u8>>,
    /// The step may clear all deadlines.
    flushes: bool,
    /// The step may change any deadline.
    scripts: bool,
    work: Work,
    context: Context,
    /// The keys that its scripts used, if they were executed when it was submitted.
    touched: Option<Touched>,
}

#[derive(Debug)]
enum Work {
    /// The reply passes as it is, and no deadline changes.
    Pass,
    /// A single command.
    One(After),
    /// CONCORD.EXEC, or a write of several keys: each command's plan.
    Parts(Parts),
    /// CONCORD.INFO: INFO and DBSIZE of the backend.
    Info,
    /// CONCORD.DIGEST of keys with these deadlines.
    Digest(Vec<Option<u64>>),
    /// A transaction that goes on when it is known what the keys hold that it watches.
    Watched(Watched),
    /// Scripts that may touch any key, by themselves or in a transaction.
    Scripts(Answers),
    /// FLUSHALL and FLUSHDB: all deadlines of this database go, unless it failed.
    Flush(u8),
    /// A FLUSHDB of this database that goes on when the names of its keys are known.
    Naming(u8),
    /// The same, as its keys are deleted.
    Unlinked(u8),
    /// A part of a copy, which runs alone.
    Alone(Alone),
    /// A script that is executed here, by itself or in a transaction, slice by slice.
    Running(Option<Transaction>, Class),
    /// Finished at once, before earlier operations: its completion waits for theirs.
    Finished(Completion),
}

/// An operation that waits for the outcome of an earlier one.
#[derive(Debug)]
enum Stalled {
    Command { context: Context, class: Class, command: Vec<u8> },
    Alone(Alone),
}

/// An [`Engine`] made of a [`Backend`] and the deadlines of its keys.
///
/// Commands are pipelined to a backend that answers later. Only a command whose plan needs the
/// deadline of a key waits while an unfinished step may change that deadline, and all later ones
/// wait for it, so that effects keep the order of submission (trap T10).
#[derive(Debug)]
pub struct Shimmed<B> {
    backend: B,
    pub(crate) deadlines: Deadlines,
    /// Libraries of functions.
    functions: Functions,
    /// Users, which gateways keep here.
    users: Users,
    /// The libraries before a transaction that is being started, in case it is refused.
    functions_before: Option<Functions>,
    /// The loader of libraries.
    loader: Option<Loader>,
    /// Steps that the backend has not finished, in order.
    pending: VecDeque<Pending>,
    /// Keys of pending steps that may change their deadline, with the number of these steps.
    unsettled: HashMap<Vec<u8>, u32, FxBuildHasher>,
    /// Pending steps that clear all deadlines.
    flushes_pending: u32,
    /// Pending scripts that may change any deadline.
    scripts_pending: u32,
    /// A part of a copy is pending: everything else waits.
    alone_pending: bool,
    /// The same of a transaction that looks at the keys that it watches, or a FLUSHDB at the names
    /// of keys.
    watches_pending: bool,
    /// Whether the backend was given malformed values.
    broken: bool,
    /// Keys that were deleted because they were due.
    pub(crate) expired: u64,
    /// Keyspace events.
    pub(crate) event_buffer: EventBuffer,
    stalled: VecDeque<Stalled>,
    /// During a copy: the keys that were copied early.
    early: Option<Early>,
    /// Copies that are stalled, each of which makes `early` begin anew.
    early_resets: u32,
    /// The interpreter of scripts, if they do not go to the backend.
    interpreter: Option<Interpreter>,
    /// Rules of users who run scripts here.
    pub(crate) understood: Understood,
    /// The messages that the script being executed has published.
    pub(crate) published: Vec<Published>,
    /// The total size of their channels and messages, in bytes.
    pub(crate) published_bytes: usize,
    /// Whether the script is part of a transaction, whose messages are reported together.
    pub(crate) is_in_exec: bool,
    /// The script that waits for its next slice.
    pub(crate) running: Option<Running>,
    /// Before the script that is executed here: messages, their bytes, and the keys that were
    /// deleted as they were due.
    pub(crate) before_script: (usize, usize, u64),
    /// The work since [`Engine::poll`] last returned nothing, in the units of scripts.
    worked: u64,
    /// Whether it returned nothing although there was more to do.
    rests: bool,
}

impl<B: Backend> Shimmed<B> {
    /// An engine over `backend`, which holds no keys.
    #[must_use]
    pub fn new(backend: B) -> Shimmed<B> {
        Shimmed {
            backend,
            deadlines: Deadlines::default(),
            functions: Functions::default(),
            users: Users::default(),
            functions_before: None,
            loader: None,
            pending: VecDeque::new(),
            unsettled: HashMap::default(),
            flushes_pending: 0,
            scripts_pending: 0,
            alone_pending: false,
            watches_pending: false,
            broken: false,
            expired: 0,
            event_buffer: EventBuffer::default(),
            stalled: VecDeque::new(),
            early: None,
            early_resets: 0,
            interpreter: None,
            understood: Understood::default(),
            published: Vec::new(),
            published_bytes: 0,
            is_in_exec: false,
            running: None,
            before_script: (0, 0, 0),
            worked: 0,
            rests: false,
        }
    }

    /// Has scripts executed here, by this interpreter ([`mod@crate::script`]).
    #[must_use]
    pub fn with_scripts(self, interpreter: Interpreter) -> Shimmed<B> {
        Shimmed { interpreter: Some(interpreter), ..self }
    }

    /// The backend: a driver moves its bytes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend: a driver moves its bytes. After bytes were received, call [`Engine::poll`]
    /// until it returns `None`; that may submit further steps.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Whether `command`'s plan needs a deadline that an unfinished step may still change.
    fn must_wait(&self, class: Class, name: &UpperName, command: &Command<'_>) -> bool {
        if self.alone_pending || self.watches_pending || self.running.is_some() {
            return true;
        }
        let is_settled = self.unsettled.is_empty() && self.flushes_pending == 0;
        if is_settled && self.scripts_pending == 0 {
            return false;
        }
        if class == Class::Read && !crate::plan::reads_deadline(name) {
            return false;
        }
        let is_exec = name.is(EXEC_COMMAND) && exec::has_script(command);
        if is_exec || is_script(name) && (self.interpreter.is_some() || command.key().is_none()) {
            // It may use any key. After other such operations it finds their results.
            return !is_settled || is_exec;
        }
        let may_change_all = self.flushes_pending > 0 || self.scripts_pending > 0;
        let is_unsettled = |key: &[u8]| may_change_all || self.unsettled.contains_key(key);
        match command.key() {
            Some(key) => is_unsettled(key),
            None => several::keys(command).into_iter().any(is_unsettled),
        }
    }

    /// Whether no key of a write has to be encoded before it. Keys that are deleted as a whole
    /// leave their values to the copy.
    fn is_ready(&mut self, class: Class, name: &UpperName, command: &Command<'_>) -> bool {
        if class == Class::Read || LEAVES_VALUES.contains(&name.bytes()) {
            return true;
        }
        match command.key() {
            Some(key) => self.backend.make_ready(&[key]),
            None => self.backend.make_ready(&several::keys(command)),
        }
    }

    /// Plans and submits one operation whose key is settled.
    pub(crate) fn start(
        &mut self,
        context: &Context,
        class: Class,
        name: &UpperName,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        if name.is(b"FUNCTION") {
            return self.start_function(context, class, command, reply);
        }
        if name.is(USERS_COMMAND) {
            let args: Vec<&[u8]> = command.args().collect();
            let work = Work::One(After::Answer(self.users.execute(class, &args)));
            if class == Class::Write {
                self.note_wanted(context.position);
            }
            return self.submit_step(context, &step_of(class, None, &[]), None, work, reply);
        }
        if class == Class::Read && !crate::plan::reads_deadline(name) {
            let step = step_of(class, command.key(), core::slice::from_ref(command));
            return self.submit_step(context, &step, None, Work::Pass, reply);
        }
        if class == Class::Read && name.is(EVENTS_COMMAND) {
            let args: Vec<&[u8]> = command.args().collect();
            let work = Work::One(After::Answer(self.event_buffer.execute(&args)));
            return self.submit_step(context, &step_of(class, None, &[]), None, work, reply);
        }
        if let Some(database) = flushed(name, command) {
            if self.backend.flushes_by_name(database) {
                return self.start_flush(context, class, command, reply);
            }
            let step = step_of(class, None, core::slice::from_ref(command));
            return self.submit_step(context, &step, None, Work::Flush(database), reply);
        }
        if name.is(EXEC_COMMAND) {
            return match watch::watched(command) {
                Some(watched) => self.start_watched(context, class, command, &watched, reply),
                None => self.start_exec(context, class, command, reply),
            };
        }
        if name.is(DIGEST_COMMAND) {
            return self.start_digest(context, class, command, reply);
        }
        if name.is(INFO_COMMAND) {
            return self.start_info(context, reply);
        }
        if name.is(REFUSE_COMMAND) {
            let text = command.args().nth(1).unwrap_or_default();
            return self.refuse(context, class, text, reply);
        }
        if name.is(EXPIRE_COMMAND) {
            return self.start_expire(context, class, command, reply);
        }
        if let Some(interpreter) = self.interpreter.filter(|_| is_script(name)) {
            let progress = self.start_script(interpreter, context, class, command, reply);
            if self.running.is_some() && !self.is_in_exec {
                self.pending.push_back(Pending::of(Work::Running(None, class), *context));
            }
            return progress;
        }
        let key = command.key();
        if is_call(name) {
            return self.start_call(context, class, command, reply);
        }
        if key.is_none() && is_script(name) {
            return self.start_scripts(context, class, command, None, reply);
        }
        if key.is_none() && several::names_keys(name) {
            return self.start_several(context, class, command, reply);
        }
        let (delete_first, deadline_ms) = self.delete_due(context, class, key);
        let plan = plan_command(context, class, name, command, deadline_ms);
        let inner: Vec<Command<'_>>;
        let commands: &[Command<'_>] = match &plan.inner {
            None => core::slice::from_ref(command),
            Some(buffers) => {
                inner = buffers.iter().filter_map(|b| Command::parse(b).ok()).collect();
                &inner
            }
        };
        let want_exists = plan.want_exists;
        let step = Step { delete_first, want_exists, deadline_ms, ..step_of(class, key, commands) };
        match plan.after {
            After::Pass => self.submit_step(context, &step, None, Work::Pass, reply),
            after => {
                let unsettled_key = key.filter(|_| after.touches_deadline());
                self.submit_step(context, &step, unsettled_key, Work::One(after), reply)
            }
        }
    }

    /// Whether this write has to delete its key first, as it is due; the deadline that remains.
    pub(crate) fn delete_due(
        &mut self,
        context: &Context,
        class: Class,
        key: Option<&[u8]>,
    ) -> (bool, Option<u64>) {
        let Some(key) = key else { return (false, None) };
        match self.deadlines.of(key) {
            Some(at) if at <= context.now_ms && class == Class::Write => {
                self.expired += 1;
                self.deadlines.change(key, TtlChange::Clear);
                (true, None)
            }
            deadline_ms => (false, deadline_ms),
        }
    }

    /// CONCORD.EXPIRE key deadline_ms.
    fn start_expire(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let mut args = command.args().skip(1);
        let key = args.next().filter(|_| class == Class::Write && command.argc() == 3);
        let deadline_ms = args.next().and_then(resp::number).and_then(|ms| u64::try_from(ms).ok());
        let (Some(key), Some(deadline_ms)) = (key, deadline_ms) else {
            return self.refuse(context, class, b"ERR CONCORD.EXPIRE: malformed", reply);
        };
        let delete_first =
            self.deadlines.of(key) == Some(deadline_ms) && deadline_ms <= context.now_ms;
        if delete_first {
            self.expired += 1;
            self.deadlines.change(key, TtlChange::Clear);
        }
        let mut step = step_of(class, Some(key), &[]);
        step.delete_first = delete_first;
        let answer = if delete_first { b":1\r\n" } else { b":0\r\n" };
        let work = Work::One(After::Answer(answer.to_vec()));
        self.submit_step(context, &step, None, work, reply)
    }

    /// An error for the client; the backend still records the position of a write.
    fn refuse(
        &mut self,
        context: &Context,
        class: Class,
        text: &[u8],
        reply: &mut Vec<u8>,
    ) -> Progress {
        if let Some(before) = self.functions_before.take() {
            self.functions = before;
        }
        let mut error = Vec::new();
        resp::error(&mut error, text);
        let work = Work::One(After::Answer(error));
        self.submit_step(context, &step_of(class, None, &[]), None, work, reply)
    }

    fn submit_step(
        &mut self,
        context: &Context,
        step: &Step<'_>,
        unsettled_key: Option<&[u8]>,
        mut work: Work,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let start = reply.len();
        if self.deadlines.untold() > UNTOLD_MAX && self.scripts_pending == 0 {
            self.tell_deadlines();
        }
        if self.functions_before.is_some()
            && let Some(error) = self.backend.refusal(context, step)
        {
            self.functions = self.functions_before.take().unwrap_or_default();
            let work = Work::One(After::Answer(error));
            let nothing = step_of(step.class, None, &[]);
            return self.submit_step(context, &nothing, None, work, reply);
        }
        match self.backend.submit(context, step, reply) {
            Submitted::Done(outcome) => {
                if self.event_buffer.is_on() && !matches!(work, Work::Parts(_)) {
                    self.buffer_raised(context);
                }
                if !matches!(work, Work::Pass) {
                    self.settle(context, unsettled_key, &mut work, &outcome, reply, start);
                }
                Progress::Done
            }
            Submitted::Pending => {
                if let Some(key) = unsettled_key {
                    *self.unsettled.entry_ref(key).or_insert(0) += 1;
                }
                let unsettled_key = unsettled_key.map(<[u8]>::to_vec);
                let (mut unsettled_keys, mut flushes) =
                    (Vec::new(), matches!(work, Work::Flush(_) | Work::Unlinked(_)));
                if let Work::Parts(parts) = &work {
                    (unsettled_keys, flushes) = (parts.unsettled(), parts.flushes());
                }
                for key in &unsettled_keys {
                    *self.unsettled.entry_ref(key.as_slice()).or_insert(0) += 1;
                }
                self.flushes_pending += u32::from(flushes);
                let scripts = step.class == Class::Write && matches!(work, Work::Scripts(_));
                self.scripts_pending += u32::from(scripts);
                let context = *context;
                let pending = Pending {
                    unsettled_key,
                    unsettled_keys,
                    flushes,
                    scripts,
                    work,
                    context,
                    touched: None,
                };
                self.pending.push_back(pending);
                Progress::Pending
            }
        }
    }

    /// An operation that is settled, and whose reply the backend gives later.
    pub(crate) fn pass_later(&mut self, context: &Context) -> Progress {
        self.pending.push_back(Pending::of(Work::Pass, *context));
        Progress::Pending
    }

    /// Changes deadlines and the reply (`reply[start..]`) by what the step's outcome was.
    /// Returns the effect to replicate.
    fn settle(
        &mut self,
        context: &Context,
        key: Option<&[u8]>,
        work: &mut Work,
        outcome: &Outcome,
        reply: &mut Vec<u8>,
        start: usize,
    ) -> Option<Vec<u8>> {
        let single_effect = outcome.effects.first().map(|effect| effect.command.clone());
        match work {
            Work::Pass
            | Work::Finished(_)
            | Work::Alone(_)
            | Work::Watched(_)
            | Work::Running(..)
            | Work::Naming(_) => {
                return single_effect;
            }
            Work::Digest(deadlines) => watch::settle_digest(deadlines, reply, start),
            Work::Info => self.settle_info(context, reply, start),
            Work::Flush(database) => {
                if !reply[start..].starts_with(b"-") {
                    self.deadlines.flush(*database, false);
                }
            }
            Work::Unlinked(database) => {
                if !reply[start..].starts_with(b"-") {
                    reply.truncate(start);
                    reply.extend_from_slice(resp::OK);
                    self.deadlines.flush(*database, false);
                }
            }
            Work::One(after) => {
                let deadline_ms = key.and_then(|key| self.deadlines.of(key));
                let settled = after.settle(context, deadline_ms, &reply[start..], outcome.exists);
                apply(&mut self.deadlines, key, &settled);
                if let (Some(event), Some(key)) = (settled.event, key) {
                    self.tell_event(event, key);
                }
                settled.write(reply, start);
                self.hear(&outcome.told, false, reply, start);
            }
            Work::Scripts(answers) => {
                // A write is replicated as an error instead.
                let is_refused = outcome.stopped && !outcome.effects.is_empty();
                answers.settle(is_refused, reply, start);
                self.hear(&outcome.told, true, reply, start);
            }
            Work::Parts(parts) => {
                self.settle_parts(context, parts, reply, start);
                return parts.effect(&outcome.effects);
            }
        }
        single_effect
    }

    /// Completes the oldest pending step.
    fn complete(&mut self, done: BackendDone) -> Option<Completion> {
        let mut entry = self.pending.pop_front()?;
        if let Work::Alone(alone) = &entry.work {
            self.alone_pending = false;
            let reply = self.settle_alone(alone, done.copied);
            return Some(Completion { reply, ..Completion::default() });
        }
        if let Work::Watched(watched) = &entry.work {
            let reply = self.complete_watched(&entry.context, watched, &done.reply)?;
            return Some(Completion { reply, ..Completion::default() });
        }
        if let Work::Naming(database) = entry.work {
            let reply = self.complete_naming(&entry.context, database, &done.reply)?;
            return Some(Completion { reply, ..Completion::default() });
        }
        self.flushes_pending -= u32::from(entry.flushes);
        self.scripts_pending -= u32::from(entry.scripts);
        for key in entry.unsettled_key.iter().chain(&entry.unsettled_keys) {
            let Some(count) = self.unsettled.get_mut(key.as_slice()) else { continue };
            *count -= 1;
            if *count == 0 {
                self.unsettled.remove(key.as_slice());
            }
        }
        if self.event_buffer.is_on() {
            match entry.work {
                Work::Parts(_) => {}
                // Redis announces no events of keys that a FLUSHDB deletes.
                Work::Unlinked(_) => drop(self.take_raised(&entry.context)),
                _ => self.buffer_raised(&entry.context),
            }
        }
        let mut reply = done.reply;
        let key = entry.unsettled_key.as_deref();
        let effect =
            self.settle(&entry.context, key, &mut entry.work, &done.outcome, &mut reply, 0);
        let told = self.take_touched();
        let touched = entry.touched.or(told);
        Some(Completion { reply, effect, stopped: done.outcome.stopped, touched })
    }

    /// An operation was started, and its scripts were executed if that is done here. Where its
    /// completion comes later it says what they touched.
    fn keep_touched(&mut self, progress: Progress) {
        if self.interpreter.is_some() && progress == Progress::Pending {
            let touched = self.take_touched();
            self.pending
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|last| last.touched = touched.clone());
        }
    }

    /// A script that is executed here is about to touch these keys.
    pub(crate) fn touch(&mut self, keys: &[&[u8]]) {
        let Some(early) = &mut self.early else { return };
        let new = early.take_new(keys.iter().map(|key| key.to_vec()).collect());
        if new.is_empty() {
            return;
        }
        let Some(copied) = self.backend.copy_keys(&new, early.wanted(), early.next()) else {
            return early.look_at_all();
        };
        early.found_all(&new, &copied, |key| self.deadlines.of(key));
    }

    /// A script that is executed here looks at all keys.
    pub(crate) fn look_at_all(&mut self) {
        self.early.iter_mut().for_each(Early::look_at_all);
    }

    /// The script that runs goes on; the completion of the oldest operation, if it was that.
    fn work(&mut self) -> Option<Completion> {
        let Some(Pending { work: Work::Running(transaction, class), context, .. }) =
            self.pending.front_mut()
        else {
            return None;
        };
        let (transaction, class, context) = (transaction.take(), *class, *context);
        self.worked += SLICE_COST;
        let ended = self.run_slice();
        let (mut reply, start) = match transaction {
            None => (ended?, 0),
            Some(transaction) => match self.go_on_with(transaction, ended) {
                Ok(reply) => (reply, 0),
                Err(transaction) => {
                    if let Some(pending) = self.pending.front_mut() {
                        pending.work = Work::Running(Some(transaction), class);
                    }
                    return None;
                }
            },
        };
        self.pending.pop_front();
        self.put_published(&mut reply, start);
        if self.end_script(&context, class, &mut reply) == Progress::Pending {
            // Its reply was taken, and comes when those before it have.
            return None;
        }
        Some(Completion { reply, ..Completion::default() })
    }

    /// Submits what waited, as far as nothing unfinished is in its way, and for about a slice at
    /// most.
    fn drain_stalled(&mut self) {
        while self.worked < SLICE_COST
            && let Some(front) = self.stalled.pop_front()
        {
            let before = self.backend.spent();
            self.worked += WAITED_COST;
            let (finished, context) = match front {
                Stalled::Command { context, class, command } => {
                    let Ok(parsed) = Command::parse(&command) else { continue };
                    let name = UpperName::of(parsed.name());
                    let waits = self.must_wait(class, &name, &parsed);
                    if waits || !self.is_ready(class, &name, &parsed) {
                        self.worked = if waits { self.worked } else { SLICE_COST };
                        self.stalled.push_front(Stalled::Command { context, class, command });
                        return;
                    }
                    let mut reply = Vec::new();
                    let done = self.start(&context, class, &name, &parsed, &mut reply);
                    self.keep_touched(done);
                    ((done == Progress::Done).then_some(reply), context)
                }
                Stalled::Alone(alone) => {
                    if !self.pending.is_empty() {
                        self.stalled.push_front(Stalled::Alone(alone));
                        return;
                    }
                    self.early_resets -= u32::from(alone.begins_copy());
                    (self.start_alone(alone), Context::default())
                }
            };
            if let Some(reply) = finished {
                let touched = self.take_touched();
                let work = Work::Finished(Completion { reply, touched, ..Completion::default() });
                self.pending.push_back(Pending::of(work, context));
            }
            self.worked += self.backend.spent() - before;
        }
    }

    /// Whether a script runs in slices, and nothing that came before it waits for the backend.
    fn is_script_next(&self) -> bool {
        let is_next = matches!(self.pending.front(), Some(Pending { work: Work::Running(..), .. }));
        is_next && self.running.is_some()
    }

    fn next_done(&mut self) -> Option<Completion> {
        self.drain_stalled();
        if let Some(Pending { work: Work::Finished(completion), .. }) = self.pending.front_mut() {
            let completion = core::mem::take(completion);
            self.pending.pop_front();
            return Some(completion);
        }
        if self.is_script_next() {
            return if self.worked < SLICE_COST { self.work() } else { None };
        }
        let done = self.backend.poll()?;
        let completion = self.complete(done);
        self.drain_stalled();
        completion
    }
}

fn is_script(name: &UpperName) -> bool {
    name.is(b"EVAL") || name.is(b"EVAL_RO") || is_call(name)
}

impl Pending {
    /// Work that changes no deadline.
    fn of(work: Work, context: Context) -> Pending {
        let (unsettled_key, unsettled_keys) = (None, Vec::new());
        Pending {
            unsettled_key,
            unsettled_keys,
            flushes: false,
            scripts: false,
            work,
            context,
            touched: None,
        }
    }
}

pub(crate) fn step_of<'a>(
    class: Class,
    key: Option<&'a [u8]>,
    commands: &'a [Command<'a>],
) -> Step<'a> {
    Step {
        class,
        key,
        keys: &[],
        due: &[],
        delete_first: false,
        commands,
        want_exists: false,
        deadline_ms: None,
        reach: Reach::OneKey,
        is_beside: false,
    }
}

fn apply(deadlines: &mut Deadlines, key: Option<&[u8]>, settled: &Settled) {
    if let Some(key) = key {
        deadlines.change(key, settled.change);
    }
}

impl<B: Backend> Engine for Shimmed<B> {
    fn submit(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let name = UpperName::of(command.name());
        if name.is(EXEC_COMMAND)
            && let Some(full) = texts::expanded(command)
            && let Ok(full) = Command::parse(&full)
            && full.bytes() != command.bytes()
        {
            return self.submit(context, class, &full, reply);
        }
        let waits = !self.stalled.is_empty() || self.must_wait(class, &name, command);
        if waits || !self.is_ready(class, &name, command) {
            // Preparing the keys continues with the next call.
            self.rests |= !waits;
            let command = command.bytes().to_vec();
            self.stalled.push_back(Stalled::Command { context: *context, class, command });
            return Progress::Pending;
        }
        let progress = self.start(context, class, &name, command, reply);
        self.keep_touched(progress);
        progress
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.next_done();
        if completion.is_none() {
            self.rests = self.worked >= SLICE_COST;
            self.worked = 0;
        }
        completion
    }

    fn works(&self) -> bool {
        self.rests || self.is_script_next()
    }

    fn at_work_since(&self) -> Option<Instant> {
        self.backend.at_work_since()
    }

    fn prepare_copy(&mut self) -> bool {
        self.backend.prepare_copy()
    }

    fn end_copy(&mut self) {
        self.early = None;
        self.backend.end_copy();
    }

    fn copy(&mut self, from: u64, bytes_max: usize, chunk: &mut Vec<u8>) -> Progress {
        self.submit_alone(Alone::Copy(from, bytes_max), chunk)
    }

    fn copy_keys(&mut self, keys: &[&[u8]], chunk: &mut Vec<u8>) -> Option<Progress> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        let is_news = self.early_resets > 0 || !self.early.as_ref()?.has_all(&keys);
        (is_news && !keys.is_empty()).then(|| self.submit_alone(Alone::CopyKeys(keys), chunk))
    }

    fn take_touched(&mut self) -> Option<Touched> {
        self.early.as_mut().map(Early::take)
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        self.backend.fork_copy(cursor)
    }

    fn release_copy(&mut self, cursor: u64) {
        self.backend.release_copy(cursor);
    }

    fn install(&mut self, chunk: &[u8]) -> Result<Progress, BadChunk> {
        copy::objects(chunk)?;
        let progress = self.submit_alone(Alone::Install(chunk.to_vec()), &mut Vec::new());
        if self.broken { Err(BadChunk) } else { Ok(progress) }
    }

    fn clear(&mut self) -> Progress {
        self.submit_alone(Alone::Clear, &mut Vec::new())
    }

    fn next_expiry_ms(&self) -> Option<u64> {
        self.deadlines.next_ms()
    }

    fn due(
        &self,
        now_ms: u64,
        after: Option<&(Vec<u8>, u64)>,
        limit: usize,
        skip: &dyn Fn(&[u8], u64) -> bool,
        out: &mut Vec<(Vec<u8>, u64)>,
    ) {
        let wanted = self.deadlines.due(now_ms, after).filter(|(key, at)| !skip(key, *at));
        out.extend(wanted.take(limit).map(|(key, at)| (key.to_vec(), at)));
    }

    fn lost(&self) -> bool {
        self.broken || self.backend.lost()
    }

    fn is_poisoned(&self) -> bool {
        self.backend.is_poisoned()
    }

    fn keys(&self) -> u64 {
        self.backend.keys()
    }

    fn memory_bytes(&self) -> u64 {
        let beside = self.deadlines.memory_bytes()
            + self.functions.memory_bytes()
            + self.users.memory_bytes();
        self.backend.memory_bytes() + beside
    }

    fn is_full(&self) -> bool {
        let limit = self.backend.memory_bytes_max();
        limit != 0 && self.memory_bytes() > limit
    }

    fn digest(&self) -> Option<u64> {
        let shared = self.functions.digest().wrapping_add(self.users.digest());
        let beside = self.deadlines.digest().wrapping_add(shared);
        Some(self.backend.digest()?.wrapping_add(beside))
    }

    /// The libraries of functions and the users belong to the first place.
    fn digest_range(&self, first: u16, salt: u64) -> Option<RangeDigest> {
        let deadline = |key: &[u8]| self.deadlines.of(key);
        let mut range = self.backend.digest_range(first, salt, &deadline)?;
        if first == 0 {
            let shared = self.functions.digest().wrapping_add(self.users.digest());
            range.digest = range.digest.wrapping_add(shared);
        }
        Some(range)
    }

    fn damage(&mut self, which: u64) -> Option<u16> {
        self.backend.damage(which)
    }
}

#[cfg(test)]
#[path = "ttl_tests.rs"]
mod tests;
