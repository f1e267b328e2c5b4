//! Several commands as one step (`CONCORD.EXEC`), and writes of several keys: the deadlines of all
//! their keys are known when the step is planned, and are changed when it has run.

use alloc::vec;
use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::functions::{Resolved, has_functions, is_full_for};
use super::{
    EXEC_COMMAND, EXPIRE_COMMAND, Pending, REPLY_COMMAND, Shimmed, Work, apply, is_script, step_of,
};
use crate::backend::{Backend, Effect, OUT_OF_MEMORY, Step, TtlChange};
use crate::command::{Command, CommandBuf};
use crate::databases::flushed;
use crate::plan::{After, Plan, When, after_several, plan_command};
use crate::several::Fate;
use crate::table::{Flags, UpperName};
use crate::{Class, Context, Progress, resp, several};

/// Shortest reply to a command of a transaction that is not copied, in bytes.
const MOVED_BYTES_MIN: usize = 1 << 20;

/// The replies to a transaction, whose first long one stays where it is.
struct Replies {
    /// All others.
    out: Vec<u8>,
    /// The place of the long one among the backend's replies, and in `out`.
    long: Option<(core::ops::Range<usize>, usize)>,
}

impl Replies {
    fn is_moved(&self, own: &[u8]) -> bool {
        self.long.is_none() && own.len() >= MOVED_BYTES_MIN
    }

    /// Takes the reply at this place of the backend's replies as it is.
    fn take(&mut self, raw: &[u8], place: core::ops::Range<usize>) {
        if self.is_moved(&raw[place.clone()]) {
            self.long = Some((place, self.out.len()));
        } else {
            self.out.extend_from_slice(&raw[place]);
        }
    }

    /// All of them; the backend's own are `raw`.
    fn join(self, mut raw: Vec<u8>) -> Vec<u8> {
        let Some((place, at)) = self.long else { return self.out };
        raw.truncate(place.end);
        drop(raw.splice(..place.start, self.out[..at].iter().copied()));
        raw.extend_from_slice(&self.out[at..]);
        raw
    }
}

/// Commands that cannot be part of a CONCORD.EXEC: scripts (what they do to the deadline is told
/// for the whole step only), and the shim's own.
const NOT_IN_EXEC: [&[u8]; 5] = [EXEC_COMMAND, EXPIRE_COMMAND, b"EVAL", b"EVALSHA", b"FCALL"];

/// One command of a step.
#[derive(Debug)]
struct Part {
    after: After,
    /// How many replies of the backend are its.
    count: usize,
    keys: Vec<Vec<u8>>,
    /// What it does to the deadlines of some of them, one by one; then `after` does nothing. For
    /// each that may go, the reply of an EXISTS stands behind the command's own.
    fates: Option<(When, Vec<(usize, Fate)>)>,
    /// It clears all deadlines of this database.
    flushes: Option<u8>,
}

impl Part {
    fn touches_deadline(&self) -> bool {
        self.after.touches_deadline() || self.fates.is_some()
    }
}

/// A transaction one of whose scripts waits for its next slice.
#[derive(Debug)]
pub(super) struct Transaction {
    command: Vec<u8>,
    /// Of its next command.
    context: Context,
    class: Class,
    /// Which command that is.
    next: usize,
    /// To those before the script.
    reply: Vec<u8>,
}

/// The commands of a step.
#[derive(Debug)]
pub(super) struct Parts {
    /// The CONCORD.EXEC; empty if it is one command by itself.
    original: Vec<u8>,
    parts: Vec<Part>,
}

#[cfg(test)]
impl Parts {
    /// Of a transaction, by what each command has for its replies.
    pub(super) fn of(original: Vec<u8>, parts: &[(After, usize)]) -> Parts {
        let part = |(after, count): &(After, usize)| Part {
            after: after.clone(),
            count: *count,
            keys: Vec::new(),
            fates: None,
            flushes: None,
        };
        Parts { original, parts: parts.iter().map(part).collect() }
    }
}

impl Parts {
    /// The keys whose deadlines may be others when the step has run, or which it looks at.
    pub(super) fn unsettled(&self) -> Vec<Vec<u8>> {
        let touching = self.parts.iter().filter(|part| part.touches_deadline());
        let keys = touching.flat_map(|part| &part.keys).map(|key| &key[..]);
        each_once(keys).into_iter().map(<[u8]>::to_vec).collect()
    }

    pub(super) fn flushes(&self) -> bool {
        self.parts.iter().any(|part| part.flushes.is_some())
    }

    /// A CONCORD.EXEC with the replaced commands, if any was.
    pub(super) fn effect(&self, effects: &[Effect]) -> Option<Vec<u8>> {
        if self.original.is_empty() {
            return effects.first().map(|effect| effect.command.clone());
        }
        if effects.is_empty() {
            return None;
        }
        let original = Command::parse(&self.original).ok()?;
        let mut args: Vec<&[u8]> = original.args().collect();
        for effect in effects {
            let mut before = 0;
            let part = self.parts.iter().position(|part| {
                before += part.count;
                effect.index < before
            })?;
            *args.get_mut(part + 1)? = &effect.command;
        }
        Some(CommandBuf::new().encode(original.key_index(), args).to_vec())
    }
}

/// The plan of a step.
#[derive(Default)]
struct Planned {
    inner: Vec<Vec<u8>>,
    parts: Vec<Part>,
    /// Keys whose deadline an earlier command of the step may have changed.
    changed: HashSet<Vec<u8>, FxBuildHasher>,
    /// One may have changed them all.
    is_flushed: bool,
}

impl Planned {
    /// Adds `part`; `deadline_of` says what a key's deadline is before the step.
    fn add(
        &mut self,
        context: &Context,
        class: Class,
        part: &Command<'_>,
        deadline_of: &dyn Fn(&[u8]) -> Option<u64>,
    ) -> Result<(), &'static [u8]> {
        let name = UpperName::of(part.name());
        let keys = several::keys(part);
        if NOT_IN_EXEC.contains(&name.bytes()) {
            return Err(b"ERR this command is not supported inside MULTI");
        }
        let is_changed = |key: &[u8]| self.is_flushed || self.changed.contains(key);
        // Once it may have changed, plan for a key that may have any deadline.
        let known = keys.iter().all(|key| !is_changed(key));
        let deadline_ms = match keys[..] {
            [key] if known => deadline_of(key),
            [_] => Some(u64::MAX),
            [] | [_, _, ..] => None,
        };
        let flushes = flushed(&name, part);
        let fates = several::fates(&name, keys.len());
        let fates = fates.filter(|_| part.key().is_none() && !keys.is_empty());
        let mut plan = match keys.len() {
            _ if name.is(REPLY_COMMAND) => Plan::answer(part.args().nth(1).unwrap_or_default()),
            0 | 1 if part.key().is_some() || keys.is_empty() => {
                plan_command(context, class, &name, part, deadline_ms)
            }
            _ => Plan {
                inner: None,
                after: match &fates {
                    Some(_) => After::Pass,
                    None => {
                        after_several(&name).ok_or(&b"ERR this command has several keys"[..])?
                    }
                },
                want_exists: false,
                needs_known_deadline: false,
            },
        };
        if !known && plan.needs_known_deadline {
            let text = b"ERR a condition with a time in the past is not supported here";
            let mut error = Vec::new();
            resp::error(&mut error, text);
            plan = Plan::answer(&error);
        }
        let mut after = plan.after;
        let mut inner = plan.inner.unwrap_or_else(|| vec![part.bytes().to_vec()]);
        if let (After::MayRemove, [key]) = (&after, &keys[..]) {
            inner.push(CommandBuf::new().encode(1, [&b"EXISTS"[..], key]).to_vec());
            after = After::Probed;
        }
        for (place, _) in fates.iter().flat_map(|(_, all)| all).filter(|f| f.1 == Fate::MayGo) {
            inner.push(CommandBuf::new().encode(1, [&b"EXISTS"[..], keys[*place]]).to_vec());
        }
        let keys: Vec<Vec<u8>> = keys.into_iter().map(<[u8]>::to_vec).collect();
        if after.changes_deadline() || fates.is_some() {
            self.changed.extend(keys.iter().cloned());
        }
        self.is_flushed |= flushes.is_some();
        self.parts.push(Part { after, count: inner.len(), keys, fates, flushes });
        self.inner.extend(inner);
        Ok(())
    }
}

/// The keys in their order, each once; there may be tens of thousands.
pub(super) fn each_once<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut seen: HashSet<&[u8], FxBuildHasher> = HashSet::default();
    keys.filter(|key| seen.insert(*key)).collect()
}

/// The error for a transaction with a part that is no command.
pub(super) const MALFORMED: &[u8] = b"ERR CONCORD.EXEC: malformed";

/// The commands of a transaction, if all are commands.
pub(super) fn parts_of<'a>(exec: &Command<'a>) -> Option<Vec<Command<'a>>> {
    exec.args().skip(1).map(|part| Command::parse(part).ok()).collect()
}

/// Whether a transaction has a script among its commands.
pub(super) fn has_script(command: &Command<'_>) -> bool {
    let mut parts = command.args().skip(1).filter_map(|arg| Command::parse(arg).ok());
    parts.any(|part| is_script(&UpperName::of(part.name())))
}

impl<B: Backend> Shimmed<B> {
    /// CONCORD.EXEC: one step of all commands, each write that might remove its key followed by an
    /// EXISTS, so that the outcome of each is known when all have run.
    pub(super) fn start_exec(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let (has_script, has_functions) = (has_script(command), has_functions(command));
        if self.interpreter.is_some() && (has_script || has_functions) {
            return self.start_each(context, class, command, reply);
        }
        let Some(commands) = parts_of(command) else {
            return self.refuse(context, class, MALFORMED, reply);
        };
        if !has_functions {
            return self.start_plain(
                context,
                class,
                command,
                &commands,
                Resolved::default(),
                reply,
            );
        }
        if context.memory_full && commands.iter().any(is_full_for) {
            return self.refuse(context, class, OUT_OF_MEMORY, reply);
        }
        let before = self.functions.clone();
        let Some(resolved) = self.resolve(context, class, command) else {
            return self.refuse(context, class, MALFORMED, reply);
        };
        let own: Vec<Command<'_>> =
            resolved.parts.iter().filter_map(|b| Command::parse(b).ok()).collect();
        self.functions_before = resolved.is_changing.then_some(before);
        let left = Resolved { parts: Vec::new(), ..resolved.clone() };
        let progress = self.start_plain(context, class, command, &own, left, reply);
        self.functions_before = None;
        progress
    }

    /// A transaction without calls of functions, or with scripts in their place.
    fn start_plain(
        &mut self,
        context: &Context,
        class: Class,
        original: &Command<'_>,
        commands: &[Command<'_>],
        of: Resolved,
        reply: &mut Vec<u8>,
    ) -> Progress {
        if commands.iter().any(|part| is_script(&UpperName::of(part.name()))) {
            let functions = (of.called, of.is_changing);
            return self.start_with_scripts(context, class, commands, functions, reply);
        }
        self.start_parts(context, class, original.bytes().to_vec(), commands, reply)
    }

    /// A transaction with scripts, where these are executed here: one command by one, each planned
    /// when those before it have run.
    fn start_each(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let Some(parts) = parts_of(command) else {
            return self.refuse(context, class, MALFORMED, reply);
        };
        // As in Redis, a transaction is refused as a whole.
        let needs_memory = |part: &Command<'_>| {
            let spec = self.backend.commands().and_then(|table| table.find(part.name()));
            spec.is_some_and(|spec| spec.accepts(part.argc()) && spec.flags.has(Flags::DENYOOM))
                || is_full_for(part)
        };
        if context.memory_full && parts.iter().any(needs_memory) {
            return self.refuse(context, class, OUT_OF_MEMORY, reply);
        }
        self.backend.begin_script();
        let start = reply.len();
        self.is_in_exec = true;
        resp::array(reply, parts.len());
        let (mut inner, exec) = (*context, command);
        let Some(next) = self.run_parts(&mut inner, class, &parts, 0, reply) else {
            self.is_in_exec = false;
            self.put_published(reply, start);
            return self.end_script(context, class, reply);
        };
        let (command, reply) = (exec.bytes().to_vec(), reply.split_off(start));
        let transaction = Transaction { command, context: inner, class, next, reply };
        self.pending.push_back(Pending::of(Work::Running(Some(transaction), class), *context));
        Progress::Pending
    }

    /// The script of a transaction has ended if there is a reply: its commands go on. The reply to
    /// all of them; or the transaction, if the next slice of a script is waited for.
    pub(super) fn go_on_with(
        &mut self,
        mut transaction: Transaction,
        ended: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, Transaction> {
        let Some(ended) = ended else { return Err(transaction) };
        let Transaction { command, context, class, next, reply } = &mut transaction;
        reply.extend_from_slice(&ended);
        // It was a command with these parts when it began.
        let exec = Command::parse(command).ok();
        let parts = exec.as_ref().and_then(parts_of).unwrap_or_default();
        if let Some(then) = self.run_parts(context, *class, &parts, *next, reply) {
            *next = then;
            return Err(transaction);
        }
        self.is_in_exec = false;
        Ok(transaction.reply)
    }

    /// Executes the commands of a transaction from this one on, one by one. If one is a script that
    /// is to go on, which comes after it.
    fn run_parts(
        &mut self,
        context: &mut Context,
        class: Class,
        parts: &[Command<'_>],
        from: usize,
        reply: &mut Vec<u8>,
    ) -> Option<usize> {
        for (at, part) in parts.iter().enumerate().skip(from) {
            let name = UpperName::of(part.name());
            if name.is(REPLY_COMMAND) {
                reply.extend_from_slice(part.args().nth(1).unwrap_or_default());
            } else if name.is(EXEC_COMMAND) || name.is(EXPIRE_COMMAND) {
                resp::error(reply, b"ERR this command is not supported inside MULTI");
            } else {
                if class == Class::Write {
                    several::keys(part)
                        .into_iter()
                        .for_each(|key| self.delete_if_due(context, key));
                }
                self.start(context, class, &name, part, reply);
                // Commands of one transaction draw differently.
                context.entropy = splitmix64(context.entropy);
                if self.running.is_some() {
                    return Some(at + 1);
                }
            }
        }
        None
    }

    /// A write of several keys.
    pub(super) fn start_several(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        self.start_parts(context, class, Vec::new(), core::slice::from_ref(command), reply)
    }

    fn start_parts(
        &mut self,
        context: &Context,
        class: Class,
        original: Vec<u8>,
        commands: &[Command<'_>],
        reply: &mut Vec<u8>,
    ) -> Progress {
        let is_due = |at: u64| class == Class::Write && at <= context.now_ms;
        let deadline_of = |key: &[u8]| self.deadlines.of(key).filter(|at| !is_due(*at));
        let mut planned = Planned::default();
        let added =
            commands.iter().try_for_each(|part| planned.add(context, class, part, &deadline_of));
        if let Err(text) = added {
            return self.refuse(context, class, text, reply);
        }
        let keys = each_once(commands.iter().flat_map(several::keys));
        let inner: Vec<Command<'_>> =
            planned.inner.iter().filter_map(|b| Command::parse(b).ok()).collect();
        let mut due: Vec<&[u8]> = Vec::new();
        let step = match keys[..] {
            [] => step_of(class, None, &inner),
            [key] => {
                let (delete_first, deadline_ms) = self.delete_due(context, class, Some(key));
                Step { delete_first, deadline_ms, ..step_of(class, Some(key), &inner) }
            }
            [_, _, ..] => {
                for key in &keys {
                    if self.delete_due(context, class, Some(key)).0 {
                        due.push(key);
                    }
                }
                Step { keys: &keys, due: &due, ..step_of(class, None, &inner) }
            }
        };
        let work = Work::Parts(Parts { original, parts: planned.parts });
        self.submit_step(context, &step, None, work, reply)
    }

    /// Changes the deadlines of the keys of one command that has several.
    fn settle_fates(
        &mut self,
        part: &Part,
        is_performed: bool,
        fates: &[(usize, Fate)],
        mut probes: &[u8],
    ) {
        let of_first = part.keys.first().and_then(|key| self.deadlines.of(key));
        for (place, fate) in fates {
            let change = match fate {
                Fate::MayGo => {
                    let length = resp::value_length(probes).unwrap_or(probes.len());
                    let (exists, rest) = probes.split_at(length);
                    probes = rest;
                    if exists == b":0\r\n" { TtlChange::Clear } else { TtlChange::Keep }
                }
                _ if !is_performed => TtlChange::Keep,
                Fate::Goes => TtlChange::Clear,
                Fate::IsThatOfTheFirst => of_first.map_or(TtlChange::Clear, TtlChange::Set),
            };
            if let Some(key) = part.keys.get(*place) {
                self.deadlines.change(key, change);
            }
        }
    }

    /// Makes of the backend's replies those of the commands, and changes the deadlines.
    pub(super) fn settle_parts(
        &mut self,
        context: &Context,
        parts: &Parts,
        reply: &mut Vec<u8>,
        start: usize,
    ) {
        let mut raised = self.take_raised(context);
        let mut command = 0;
        let raw = if start == 0 { core::mem::take(reply) } else { reply.split_off(start) };
        let mut from = 0;
        let mut replies = Replies { out: Vec::new(), long: None };
        if !parts.original.is_empty() {
            resp::array(&mut replies.out, parts.parts.len());
        }
        for part in &parts.parts {
            let mut length = 0;
            for _ in 0..part.count {
                let Some(next) = resp::value_length(&raw[from + length..]) else {
                    // The backend refused the whole with one error.
                    reply.extend_from_slice(&raw);
                    self.buffer_before(&mut raised, usize::MAX);
                    return;
                };
                length += next;
            }
            let (own, place) = (&raw[from..from + length], from);
            from += length;
            command += part.count;
            self.buffer_before(&mut raised, command);
            if let Some(database) = part.flushes
                && !own.starts_with(b"-")
            {
                self.deadlines.flush(database, false);
            }
            if let Some((when, fates)) = &part.fates {
                let first = resp::value_length(own).unwrap_or(own.len());
                let (said, probes) = own.split_at(first);
                self.settle_fates(part, when.holds(said), fates, probes);
                replies.take(&raw, place..place + first);
                continue;
            }
            let deadline_ms = part.keys.first().and_then(|key| self.deadlines.of(key));
            let settled = part.after.settle(context, deadline_ms, own, None);
            for key in &part.keys {
                apply(&mut self.deadlines, Some(key), &settled);
            }
            if let (Some(event), [key]) = (settled.event, &part.keys[..]) {
                self.tell_event(event, key);
            }
            match settled.kept_bytes(length) {
                Some(kept) => replies.take(&raw, place..place + kept.min(length)),
                None => {
                    let at = replies.out.len();
                    replies.out.extend_from_slice(own);
                    settled.write(&mut replies.out, at);
                }
            }
        }
        let all = replies.join(raw);
        if reply.is_empty() {
            *reply = all
        } else {
            reply.extend_from_slice(&all)
        }
        self.buffer_before(&mut raised, usize::MAX);
    }
}
