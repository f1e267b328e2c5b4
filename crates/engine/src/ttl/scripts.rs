//! Scripts that may touch any key, where the backend executes them itself: by themselves, and in a
//! transaction. They look deadlines up in what the backend was told, so that all that may change
//! one is settled before they are sent; and tell in the end what they changed.

use alloc::vec::Vec;

use super::exec::{MALFORMED, each_once};
use super::functions::name_function;
use super::{EXEC_COMMAND, EXPIRE_COMMAND, REPLY_COMMAND, Shimmed, Work, is_script, step_of};
use crate::backend::{Backend, Reach, Step, Told, TtlChange};
use crate::command::Command;
use crate::copy::{Copied, PLACE_EARLY};
use crate::early::Early;
use crate::plan::{After, after_several, plan_command, reads_deadline};
use crate::script::put_published;
use crate::table::UpperName;
use crate::{Class, Context, Progress, redis, resp, resp_scan, several};

/// Where the replies to the commands of a step come from.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The reply is the array of all.
    is_exec: bool,
    /// Those that are known; `None` for one of the backend's.
    known: Vec<Option<Vec<u8>>>,
    /// The functions that are called, by the places of the calls; of a single call the first.
    called: Vec<Option<Vec<u8>>>,
}

impl Answers {
    /// Makes of the backend's replies what the client gets. `is_refused`: a script was stopped, and
    /// an error is replicated, which is then the reply at all replicas, also to a transaction.
    pub(super) fn settle(&self, is_refused: bool, reply: &mut Vec<u8>, start: usize) {
        if is_refused {
            return;
        }
        let name_of = |at: usize| self.called.get(at).and_then(Option::as_ref);
        if !self.is_exec {
            if let Some(name) = name_of(0) {
                name_function(reply, start, name);
            }
            return;
        }
        let raw = reply.split_off(start);
        let mut rest = &raw[..];
        resp::array(reply, self.known.len());
        for (at, known) in self.known.iter().enumerate() {
            let Some(known) = known else {
                let Some(length) = resp_scan::frame_length(rest) else {
                    // The backend refused the whole with one error.
                    reply.truncate(start);
                    return reply.extend_from_slice(&raw);
                };
                let own = reply.len();
                reply.extend_from_slice(&rest[..length]);
                rest = &rest[length..];
                if let Some(name) = name_of(at) {
                    name_function(reply, own, name);
                }
                continue;
            };
            reply.extend_from_slice(known);
        }
    }
}

impl<B: Backend> Shimmed<B> {
    /// EVAL and EVAL_RO of any keys; `function`: what it calls, if it stands for FCALL.
    pub(super) fn start_scripts(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        function: Option<Vec<u8>>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        self.tell_deadlines();
        let is_timed = self.deadlines.count() > 0 || self.scripts_pending > 0;
        let reach = Reach::AnyKey { is_timed };
        let step = Step { reach, ..step_of(class, None, core::slice::from_ref(command)) };
        let answers = Answers { called: Vec::from([function]), ..Answers::default() };
        self.submit_step(context, &step, None, Work::Scripts(answers), reply)
    }

    /// A transaction with scripts among its commands.
    pub(super) fn start_with_scripts(
        &mut self,
        context: &Context,
        class: Class,
        parts: &[Command<'_>],
        (called, is_beside): (Vec<Option<Vec<u8>>>, bool),
        reply: &mut Vec<u8>,
    ) -> Progress {
        let is_own = |part: &Command<'_>| {
            let name = UpperName::of(part.name());
            name.is(EXEC_COMMAND) || name.is(EXPIRE_COMMAND)
        };
        if parts.iter().any(is_own) {
            return self.refuse(context, class, MALFORMED, reply);
        }
        let mut answers = Answers { is_exec: true, known: Vec::new(), called };
        let mut inner: Vec<Vec<u8>> = Vec::new();
        for part in parts {
            let is_reply = UpperName::of(part.name()).is(REPLY_COMMAND);
            let known = is_reply.then(|| part.args().nth(1).unwrap_or_default().to_vec());
            if known.is_none() {
                let Some(part) = self.beside_scripts(context, class, part) else {
                    let text = b"ERR too many arguments of a command beside a script in MULTI \
                        (Concord's limit is 7000)";
                    return self.refuse(context, class, text, reply);
                };
                inner.push(part);
            }
            answers.known.push(known);
        }
        let keys = each_once(parts.iter().flat_map(several::keys));
        let mut due: Vec<&[u8]> = Vec::new();
        for key in &keys {
            if self.delete_due(context, class, Some(key)).0 {
                due.push(key);
            }
        }
        self.tell_deadlines();
        // Each was encoded here, or is a command that was parsed.
        let inner: Vec<Command<'_>> = inner.iter().filter_map(|b| Command::parse(b).ok()).collect();
        let reach = Reach::AnyKey { is_timed: true };
        let step =
            Step { keys: &keys, due: &due, reach, is_beside, ..step_of(class, None, &inner) };
        self.submit_step(context, &step, None, Work::Scripts(answers), reply)
    }

    /// A command of a transaction with scripts: as it is, or as a script if it needs or changes a
    /// deadline, or draws. `None` if it has too many arguments for that.
    fn beside_scripts(
        &self,
        context: &Context,
        class: Class,
        part: &Command<'_>,
    ) -> Option<Vec<u8>> {
        let name = UpperName::of(part.name());
        let keys = several::keys(part).len();
        let only_reads = class == Class::Read || self.backend.class_of(part) == Some(Class::Read);
        let is_plain = match keys {
            _ if is_script(&name) || redis::is_question(part) => true,
            _ if only_reads => !reads_deadline(&name),
            _ if redis::draws(part) => false,
            0 => !name.is(b"FLUSHALL") && !name.is(b"FLUSHDB"),
            1 if part.key().is_some() => {
                // As of a key that may have any deadline.
                let plan = plan_command(context, class, &name, part, Some(u64::MAX));
                plan.inner.is_none() && plan.after == After::Pass && !plan.want_exists
            }
            _ => after_several(&name) == Some(After::Pass),
        };
        if is_plain {
            return Some(part.bytes().to_vec());
        }
        (part.argc() <= redis::IN_PLACE_ARGS_MAX).then(|| redis::in_place_of(part, class))
    }

    /// Tells the backend the deadlines that changed.
    pub(super) fn tell_deadlines(&mut self) {
        let (is_all, changed) = self.deadlines.take_untold();
        if is_all || !changed.is_empty() {
            let changed: Vec<_> = changed.iter().map(|(key, at)| (key.as_slice(), *at)).collect();
            self.backend.tell_deadlines(is_all, &changed);
        }
    }

    /// What the scripts of a step told; `is_known`: the backend knows what they changed. What they
    /// published comes in front of the reply. A script that is executed here may be in the middle
    /// of its own step: what that one has published stands in front of its reply, never of the
    /// reply to one of its commands.
    pub(super) fn hear(
        &mut self,
        told: &[Told],
        is_known: bool,
        reply: &mut Vec<u8>,
        start: usize,
    ) {
        let mut published = Vec::new();
        for told in told {
            match told {
                Told::Due { key, deadline_ms } => {
                    let change = deadline_ms.map_or(TtlChange::Clear, TtlChange::Set);
                    if is_known {
                        self.deadlines.change_told(key, change);
                    } else {
                        self.deadlines.change(key, change);
                    }
                }
                Told::Flush(database) => self.deadlines.flush(*database, is_known),
                Told::Published(one) => published.push(one.clone()),
                Told::Early { key, value } => {
                    let Some(early) = &mut self.early else { continue };
                    let mut copied = Copied::up_to(PLACE_EARLY);
                    value.iter().for_each(|value| {
                        copied.push(key, |out| out.extend_from_slice(value));
                    });
                    let copied = self.backend.cut_early(copied, early.wanted(), early.next());
                    let keys = core::slice::from_ref(key);
                    early.found_all(keys, &copied, |key| self.deadlines.of(key));
                }
                Told::LookedAtAll => self.early.iter_mut().for_each(Early::look_at_all),
            }
        }
        put_published(&published, reply, start);
    }

    /// Puts what the script or the transaction that was executed here has published in front of
    /// `reply[start..]`.
    pub(crate) fn put_published(&mut self, reply: &mut Vec<u8>, start: usize) {
        self.published_bytes = 0;
        put_published(&core::mem::take(&mut self.published), reply, start);
    }
}
