//! Execution, which follows the commit in VR: every replica executes the log in order, as far as it
//! knows it to be committed, and the leader answers.

use alloc::borrow::Cow;

use concord_core::{Guard, Now, Position};
use concord_engine::redis::STOPPED_REPLY;
use concord_engine::{Class, Command, Engine, Progress};
use concord_wire::control::LogEnd;
use concord_wire::record::Record;
use concord_wire::{Flags, Op, Repr, Sink, Status, checked_reply};

use super::leading::Completion;
use super::queue::Pending;
use super::{QuorumReplica, Stage};
use crate::parts::Executable;
use crate::pending::{PendingWrite, emit_write_reply};
use crate::quorum::copy::copying::Copying;
use crate::quorum::scripts::decisions::aborted_by;
use crate::quorum::scripts::withheld::Ready;
use crate::serve::{NO_REPLY, handed_over};
use crate::sessions::Verdict;

impl<E: Engine> QuorumReplica<E> {
    /// Hands the engine the committed records that it did not get yet. The client table decides
    /// here, in log order, so that all replicas decide alike (trap T16).
    pub(super) fn execute_committed(&mut self, now: Now, sink: &mut impl Sink) {
        self.search_aborted(now, sink);
        if self.stage == Stage::Left {
            return;
        }
        let mut reply = core::mem::take(&mut self.serving.reply);
        // The pieces of an object precede the next record.
        let has_pieces =
            |vr: &QuorumReplica<E>| vr.copying.as_ref().is_some_and(Copying::has_pieces);
        while self.submitted < self.committed && !has_pieces(self) {
            let position = Position(self.submitted.0 + 1);
            self.copy_early(position);
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let Some(record) = record else { return self.fail_stop() };
            self.submitted = position;
            let mut operation = PendingWrite::of(&record);
            operation.verdict = self.serving.sessions.admit(&record);
            self.count.note(operation.verdict);
            let (replicates, guards) = (self.setup.replicate_replies, self.setup.guards);
            let says_aborted = replicates && aborted_by(&record).is_some();
            let executable = match operation.verdict {
                Verdict::Execute if !says_aborted => self.executable(&record),
                Verdict::Execute | Verdict::Duplicate | Verdict::Nothing | Verdict::Refused(_) => {
                    Executable::Nothing
                }
            };
            if executable == Executable::Entangled {
                self.begin_copy_anew(sink);
                break;
            }
            if operation.verdict == Verdict::Execute && executable != Executable::All {
                // With only some of its objects the reply would differ: the right one comes with
                // the end of the copy.
                operation.verdict = Verdict::Nothing;
            }
            reply.clear();
            match &executable {
                Executable::All | Executable::Part(_) => {
                    let bytes = executable.command(record.command);
                    let Ok(command) = Command::parse(bytes) else { return self.fail_stop() };
                    let is_script = replicates && concord_engine::redis::runs_script(&command);
                    if is_script && self.scripts.is_aborted(position) {
                        self.refuse(operation, STOPPED_REPLY, sink);
                        continue;
                    }
                    let leads = is_script && self.is_leader();
                    // The outcome must not be decided again if an earlier leader may have answered.
                    let is_open =
                        position > self.scripts.settled() || !guards.on(Guard::ScriptKnown);
                    let decides = leads && is_open;
                    let mut context = operation.context(&self.serving.engine, guards);
                    // An earlier leader may have executed and answered the records with which a
                    // view begins.
                    context.decide = leads && position > self.leading.view_start();
                    match self.serving.engine.submit(&context, Class::Write, &command, &mut reply) {
                        Progress::Done => {
                            let touched = self.serving.engine.take_touched();
                            self.scripts_touched(position, touched);
                            self.finish(&operation, handed_over(&mut reply), sink);
                        }
                        Progress::Pending => {
                            self.pending.push_back(Pending::Write(operation));
                            if is_script {
                                self.scripts.started(position, record.seq, decides);
                            }
                        }
                    }
                }
                Executable::Nothing | Executable::Entangled => {
                    if replicates && self.copying.is_some() {
                        // The objects will come as they are after this record, which may be a
                        // script.
                        self.scripts.note(position, record.seq);
                    }
                    if self.pending.is_empty() {
                        self.finish(&operation, NO_REPLY, sink);
                    } else {
                        self.pending.push_back(Pending::Idle(operation));
                    }
                }
            }
        }
        self.serving.reply = reply;
        self.wake_reads(now, sink);
    }

    /// Refuses a write: it is not executed, and its client gets `error`.
    fn refuse(&mut self, operation: PendingWrite, error: &[u8], sink: &mut impl Sink) {
        let operation = self.refused(operation, error);
        if self.pending.is_empty() {
            self.finish(&operation, NO_REPLY, sink);
        } else {
            self.pending.push_back(Pending::Idle(operation));
        }
    }

    /// Prepares a refused write to be answered like a retry, from the client table.
    pub(super) fn refused(&mut self, operation: PendingWrite, error: &[u8]) -> PendingWrite {
        self.serving.sessions.complete(operation.asked.session, operation.asked.request, error);
        PendingWrite { verdict: Verdict::Duplicate, ..operation }
    }

    pub(super) fn take_done(&mut self, now: Now, sink: &mut impl Sink) {
        self.local_ms = now.unix_ms;
        while !self.scripts.is_stopped()
            && let Some(done) = self.serving.poll()
        {
            match self.pending.pop_front() {
                Some(Pending::Write(operation)) if done.stopped => {
                    return self.script_stopped(operation);
                }
                Some(Pending::Write(operation)) => {
                    self.scripts_touched(operation.position, done.touched);
                    self.finish(&operation, done.reply.into(), sink);
                }
                Some(Pending::Early(before)) => self.copied_early(before, done.reply, false),
                Some(Pending::Read { operation, command, led }) => {
                    self.serving.end_read(&operation);
                    if led && self.was_withheld() {
                        self.count.reads_dropped += 1;
                    } else {
                        self.answer_read(now, operation, (&done.reply, &command), sink);
                    }
                }
                Some(Pending::Copy { to, number, position }) => {
                    self.chunk_made(to, (number, position), done.reply, sink);
                }
                Some(Pending::Install) => {}
                Some(Pending::Idle(_)) | None => return self.fail_stop(),
            }
            self.finish_idle(sink);
        }
        self.serving.rest(now.instant);
        self.wake_reads(now, sink);
    }

    /// Finishes the operations that have nothing to execute and wait for nothing.
    pub(super) fn finish_idle(&mut self, sink: &mut impl Sink) {
        while let Some(Pending::Idle(operation)) = self.pending.front() {
            let operation = *operation;
            self.pending.pop_front();
            self.finish(&operation, NO_REPLY, sink);
        }
    }

    /// Finishes a committed write that was executed here, or had nothing to execute.
    pub(super) fn finish(
        &mut self,
        operation: &PendingWrite,
        reply: Cow<'_, [u8]>,
        sink: &mut impl Sink,
    ) {
        if operation.verdict == Verdict::Execute && !operation.asked.flags.has(Flags::INTERNAL) {
            let (session, request) = (operation.asked.session, operation.asked.request);
            self.serving.sessions.complete_with(session, request, reply);
        }
        self.scripts.finished(operation.position);
        self.executed = operation.position;
        self.executed_seq = self.executed_seq.max(operation.asked.seq);
        self.count.records_applied += 1;
        if let Some(first) = self.serving.note_executed(operation) {
            self.make_digest(first);
        }
        if self.is_leader() {
            // Raft's no-op has no number: the writes executed before it complete with it.
            let has_number = operation.asked.seq.is_some();
            let seq = if has_number { operation.asked.seq } else { self.executed_seq };
            let (position, obj_id) = (operation.position, operation.asked.obj_id);
            self.leading.push_completion(Completion { position, seq, obj_id });
            self.reply_to_write(operation, sink);
        }
    }

    /// Makes the digest of a part of the state, if the engine has that of the position executed
    /// last: nothing that was submitted is unfinished, and nothing is missing.
    fn make_digest(&mut self, first: u16) {
        let is_at = self.stage == Stage::Normal
            && self.copying.is_none()
            && self.submitted == self.executed;
        let hash = self.ordered.log.hash_at(self.executed).filter(|_| is_at);
        if let Some(hash) = hash {
            let at = LogEnd { position: self.executed.0, hash };
            self.serving.make_digest(first, at, &mut self.count);
        }
    }

    /// Sends the reply alone: the completion follows once a quorum has executed the write (Harmonia
    /// §8.3).
    fn reply_to_write(&mut self, operation: &PendingWrite, sink: &mut impl Sink) {
        if is_unasked(operation) {
            // An expired key is deleted also for the clients that wait for it.
            let in_force = self.in_force();
            self.serving.tell_waiting(operation, in_force, &mut self.count, sink);
        }
        // A switch that checks replies has to see those without a client, too.
        if is_unasked(operation) && !(self.group.checks_replies() && operation.asked.seq.is_some())
        {
            return;
        }
        match self.withholds() {
            Some(script) => self.withheld.push(script, Ready::Write(*operation)),
            None => self.emit_reply(operation, sink),
        }
    }

    pub(super) fn emit_reply(&mut self, operation: &PendingWrite, sink: &mut impl Sink) {
        if is_unasked(operation) {
            let from = Repr::new(Op::WriteReply);
            let reply = operation.asked.header(from);
            let repr = Repr { epoch: self.epoch(), node: self.group.node(), ..reply };
            repr.emit(&[], &mut self.scratch);
            return self.send_reply(operation, sink);
        }
        if operation.asked.flags.has(Flags::NOOP) {
            // The switch had no slot for it (trap T23).
            return self.say_busy(operation, sink);
        }
        let from =
            Repr { epoch: self.epoch(), node: self.group.node(), ..Repr::new(Op::WriteReply) };
        emit_write_reply(operation, from, &self.serving.sessions, &mut self.scratch);
        self.send_reply(operation, sink);
        let in_force = self.in_force();
        self.serving.tell_waiting(operation, in_force, &mut self.count, sink);
    }

    fn say_busy(&mut self, operation: &PendingWrite, sink: &mut impl Sink) {
        let from = Repr { status: Status::Busy, ..Repr::new(Op::WriteReply) };
        let repr =
            Repr { epoch: self.epoch(), node: self.group.node(), ..operation.asked.header(from) };
        repr.emit(&[], &mut self.scratch);
        self.send_reply(operation, sink);
    }

    /// Sends the encoded reply to a write.
    fn send_reply(&mut self, operation: &PendingWrite, sink: &mut impl Sink) {
        if self.group.checks_replies() {
            let checked = self.checked(operation);
            checked_reply(&mut self.scratch, checked, &[]);
        }
        sink.send(self.serving.to(self.in_force(), operation.asked.client), &self.scratch);
    }
}

/// Whether no client waits for the reply, since the write is a replica's or the switch's own.
fn is_unasked(operation: &PendingWrite) -> bool {
    let flags = operation.asked.flags;
    flags.has(Flags::INTERNAL) || (flags.has(Flags::NOOP) && operation.asked.session.0 == 0)
}
