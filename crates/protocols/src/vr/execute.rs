//! Execution, which in VR follows the commit: every replica executes the log in order, up to what
//! it knows to be committed, and the leader answers.

use concord_core::{Guard, Now, Position};
use concord_engine::redis::STOPPED_REPLY;
use concord_engine::{Class, Command, Engine, Progress};
use concord_wire::record::Record;
use concord_wire::{Flags, Op, Repr, Sink, Status, checked_reply};

use super::leading::Completion;
use super::queue::Pending;
use super::scripts::void_of;
use super::withheld::Ready;
use super::{Stage, Vr};
use crate::parts::Executable;
use crate::sessions::Verdict;
use crate::turn::{Turn, emit_write_reply};

impl<E: Engine> Vr<E> {
    /// Hands the engine what is committed and was not handed to it before. The client table decides
    /// here, in log order, so that all replicas decide alike (trap T16).
    pub(super) fn execute_committed(&mut self, now: Now, sink: &mut impl Sink) {
        self.search_void(now, sink);
        if self.stage == Stage::Left {
            return;
        }
        let mut reply = core::mem::take(&mut self.serving.reply);
        while self.submitted < self.committed {
            let position = Position(self.submitted.0 + 1);
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let Some(record) = record else { return self.leave() };
            self.submitted = position;
            let mut turn = Turn::of(&record);
            turn.verdict = self.serving.sessions.admit(&record);
            self.count.note(turn.verdict);
            let (replicates, guards) = (self.setup.replicate_replies, self.setup.guards);
            let says_void = replicates && void_of(&record).is_some();
            let executable = match turn.verdict {
                Verdict::Execute if !says_void => self.executable(&record),
                Verdict::Execute | Verdict::Duplicate | Verdict::Nothing | Verdict::Refused(_) => {
                    Executable::Nothing
                }
            };
            if executable == Executable::Entangled {
                self.begin_copy_anew(sink);
                break;
            }
            if turn.verdict == Verdict::Execute && executable != Executable::Whole {
                // What is here of its objects has a reply of its own: the whole's is learned at the
                // end.
                turn.verdict = Verdict::Nothing;
            }
            reply.clear();
            match &executable {
                Executable::Whole | Executable::Part(_) => {
                    let bytes = executable.command(record.command);
                    let Ok(command) = Command::parse(bytes) else { return self.leave() };
                    let is_script = replicates && concord_engine::redis::runs_script(&command);
                    if is_script && self.scripts.is_void(position) {
                        self.refuse(turn, STOPPED_REPLY, sink);
                        continue;
                    }
                    let leads = is_script && self.is_leader();
                    // What an earlier leader may have answered is not to be decided any more.
                    let is_open =
                        position > self.scripts.settled() || !guards.on(Guard::ScriptKnown);
                    let decides = leads && is_open;
                    let mut context = turn.context(&self.serving.engine, guards);
                    // What a view begins with an earlier leader may have executed and answered.
                    context.decide = leads && position > self.leading.view_start();
                    match self.serving.engine.submit(&context, Class::Write, &command, &mut reply) {
                        Progress::Done => self.finish(&turn, &reply, sink),
                        Progress::Pending => {
                            self.pending.push_back(Pending::Write(turn));
                            if is_script {
                                self.scripts.started(position, record.seq, decides);
                            }
                        }
                    }
                }
                Executable::Nothing | Executable::Entangled => {
                    if replicates && self.copying.is_some() {
                        // The objects come as they are after it, and it may be a script.
                        self.scripts.note(position, record.seq);
                    }
                    if self.pending.is_empty() {
                        self.finish(&turn, &[], sink);
                    } else {
                        self.pending.push_back(Pending::Idle(turn));
                    }
                }
            }
        }
        self.serving.reply = reply;
        self.wake_reads(now, sink);
    }

    /// A write is not executed, and its client gets `error`.
    fn refuse(&mut self, turn: Turn, error: &[u8], sink: &mut impl Sink) {
        let turn = self.refused(turn, error);
        if self.pending.is_empty() {
            self.finish(&turn, &[], sink);
        } else {
            self.pending.push_back(Pending::Idle(turn));
        }
    }

    /// A write that was refused is answered like a retry: from the table.
    pub(super) fn refused(&mut self, turn: Turn, error: &[u8]) -> Turn {
        self.serving.sessions.complete(turn.asked.session, turn.asked.request, error);
        Turn { verdict: Verdict::Duplicate, ..turn }
    }

    pub(super) fn take_done(&mut self, now: Now, sink: &mut impl Sink) {
        self.local_ms = now.unix_ms;
        while !self.scripts.is_stopped()
            && let Some(done) = self.serving.poll()
        {
            match self.pending.pop_front() {
                Some(Pending::Write(turn)) if done.stopped => return self.script_stopped(turn),
                Some(Pending::Write(turn)) => self.finish(&turn, &done.reply, sink),
                Some(Pending::Read { turn, command, led }) => {
                    self.serving.end_read(&turn);
                    if led && self.was_withheld() {
                        self.count.reads_dropped += 1;
                    } else {
                        self.answer_read(now, turn, (&done.reply, &command), sink);
                    }
                }
                Some(Pending::Copy { to, number, position }) => {
                    self.chunk_made(to, (number, position), done.reply, sink);
                }
                Some(Pending::Install) => {}
                Some(Pending::Idle(_)) | None => return self.leave(),
            }
            self.finish_idle(sink);
        }
        self.wake_reads(now, sink);
    }

    /// What has nothing to execute and waits for nothing any more.
    pub(super) fn finish_idle(&mut self, sink: &mut impl Sink) {
        while let Some(Pending::Idle(turn)) = self.pending.front() {
            let turn = *turn;
            self.pending.pop_front();
            self.finish(&turn, &[], sink);
        }
    }

    /// A committed write was executed here, or had nothing to execute.
    pub(super) fn finish(&mut self, turn: &Turn, reply: &[u8], sink: &mut impl Sink) {
        if turn.verdict == Verdict::Execute && !turn.asked.flags.has(Flags::INTERNAL) {
            self.serving.sessions.complete(turn.asked.session, turn.asked.request, reply);
        }
        self.scripts.finished(turn.position);
        self.executed = turn.position;
        self.executed_seq = self.executed_seq.max(turn.asked.seq);
        self.count.records_applied += 1;
        if self.is_leader() {
            // Raft's own record has no number: what was executed before it completes with it.
            let has_number = turn.asked.seq.is_some();
            let seq = if has_number { turn.asked.seq } else { self.executed_seq };
            let (position, obj_id) = (turn.position, turn.asked.obj_id);
            self.leading.push_completion(Completion { position, seq, obj_id });
            self.reply_to_write(turn, sink);
        }
    }

    /// The reply alone: the completion follows when a quorum has executed (Harmonia §8.3).
    fn reply_to_write(&mut self, turn: &Turn, sink: &mut impl Sink) {
        // Where the switch checks replies it is told of those too.
        if is_unasked(turn) && !(self.group.checks_replies() && turn.asked.seq.is_some()) {
            return;
        }
        match self.withholds() {
            Some(script) => self.withheld.push(script, Ready::Write(*turn)),
            None => self.emit_reply(turn, sink),
        }
    }

    pub(super) fn emit_reply(&mut self, turn: &Turn, sink: &mut impl Sink) {
        if is_unasked(turn) {
            let from = Repr::new(Op::WriteReply);
            let reply = turn.asked.header(from);
            let repr = Repr { epoch: self.epoch(), node: self.group.node(), ..reply };
            repr.emit(&[], &mut self.scratch);
            return self.send_reply(turn, sink);
        }
        if turn.asked.flags.has(Flags::NOOP) {
            // The switch had no slot for it (trap T23).
            return self.say_busy(turn, sink);
        }
        let from =
            Repr { epoch: self.epoch(), node: self.group.node(), ..Repr::new(Op::WriteReply) };
        emit_write_reply(turn, from, &self.serving.sessions, &mut self.scratch);
        self.send_reply(turn, sink);
        let in_force = self.in_force();
        self.serving.tell_waiting(turn, in_force, &mut self.count, sink);
    }

    fn say_busy(&mut self, turn: &Turn, sink: &mut impl Sink) {
        let from = Repr { status: Status::Busy, ..Repr::new(Op::WriteReply) };
        let repr = Repr { epoch: self.epoch(), node: self.group.node(), ..turn.asked.header(from) };
        repr.emit(&[], &mut self.scratch);
        self.send_reply(turn, sink);
    }

    /// Sends the reply to a write, which is written.
    fn send_reply(&mut self, turn: &Turn, sink: &mut impl Sink) {
        if self.group.checks_replies() {
            let checked = self.checked(turn);
            checked_reply(&mut self.scratch, checked, &[]);
        }
        sink.send(self.serving.to(self.in_force(), turn.asked.client), &self.scratch);
    }
}

/// Whether no client waits for the reply: the write is a replica's own, or the switch's.
fn is_unasked(turn: &Turn) -> bool {
    let flags = turn.asked.flags;
    flags.has(Flags::INTERNAL) || (flags.has(Flags::NOOP) && turn.asked.session.0 == 0)
}
