//! Writes: ordered by the head, executed by every member in the same order, answered by the member
//! that commits.
//!
//! Harmonia §8 responsibility 1: only in sequence order. Trap T14: every numbered write, a retry or
//! a refused one too, takes its turn as a record, so that the last-committed point is a prefix.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use concord_core::{Guard, Now, ObjectId, Position, Seq};
use concord_engine::script::own_reply;
use concord_engine::{Class, Command, Completion, Engine, Progress};
use concord_wire::control::{LogEnd, Protocol};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;
use concord_wire::{Flags, FurtherIds, Op, Packet, Repr, Sink, Status, WireError};

use super::Replica;
use super::queue::Pending;
use crate::ordered::Room;
use crate::parts::{Executable, PART_TABLE};
use crate::pending::{PendingWrite, RequestHeader, emit_write_reply};
use crate::serve::{NO_REPLY, handed_over};
use crate::sessions::Verdict;
use crate::setup::Phase;

/// The longest reply in bytes that is stored in a record, unless another command replaces the
/// write's own there: each replica keeps its own version of a longer reply, which may list
/// unordered elements in another order.
const REPLICATED_BYTES_MAX: usize = 256 << 10;
/// The record's reply in that case, which no engine returns.
const LONG_REPLY: &[u8] = b"~";

/// Whether a reply is an error.
fn has_failed(reply: &[u8]) -> bool {
    matches!(own_reply(reply).first(), Some(b'-' | b'!'))
}

impl<E: Engine> Replica<E> {
    /// Head: sequence numbers become positions. A write that cannot be ordered is dropped; the
    /// client sends it again, with a new number.
    pub(super) fn on_write(&mut self, now: Now, packet: &Packet<'_>, sink: &mut impl Sink) {
        let repr = packet.repr();
        if self.phase != Phase::Open || !self.role.is_head() {
            self.count.writes_not_head += 1;
            return;
        }
        let others = self.streams.at_work_since();
        if let Some(works_ns) = self.serving.works_for(now.instant, others) {
            let from = (self.role.epoch(), Op::WriteReply);
            if self.serving.puts_off(works_ns, &repr, from, &mut self.count, sink) {
                return;
            }
        }
        let (limits, guards) = (&self.setup.limits, self.setup.guards);
        if self.ordered.room(limits, guards, &self.journal).is_none() {
            self.count.writes_log_full += 1;
            return;
        }
        if self.queue.is_full() {
            self.count.writes_queued += 1;
            return;
        }
        if self.role.is_accelerated() {
            let active = self.role.switch_id();
            if !self.ordered.take_number(repr.seq, active, guards, &mut self.count) {
                return;
            }
        }
        let now_ms = self.ordered.stamp(now.unix_ms, self.is_timeless(), guards);
        let mut operation = self.operation_of(now_ms, &repr);
        let own = self.serving.own_body(&repr, packet.body());
        self.serving.on_ordered(&repr, operation.position);
        let body = own.as_deref().unwrap_or(packet.body());
        let refuses = operation.asked.flags.has(Flags::DISK_FULL);
        // Of a refused write only the refusal is logged.
        let body = if refuses { &[][..] } else { body };
        let staged = match self.staged_version(&repr, body, own.is_some()) {
            _ if refuses => None,
            Ok(version) => version,
            Err(status) => {
                operation.refused = status;
                None
            }
        };
        self.ordered.last_now_ms = operation.asked.now_ms;
        if self.holds_back() {
            let staged = staged.and_then(|version| self.serving.take_staged(&repr, version));
            let command = staged.as_deref().unwrap_or(body);
            return self.order_held(&operation, command);
        }
        operation.verdict = self.admit(&operation);
        let prefix = self.setup.guards.on(Guard::Prefix);
        if !prefix && !matches!(operation.verdict, Verdict::Execute | Verdict::Nothing) {
            self.reply_to_write(&operation, sink);
            return;
        }
        self.submitted.position = operation.position.0;
        self.count.writes_ordered += 1;
        if operation.verdict != Verdict::Execute {
            return self.idle(operation, sink);
        }
        match staged {
            Some(version) => {
                let body = self.serving.take_staged(&repr, version);
                self.execute(operation, &body.unwrap_or_default(), sink);
            }
            None => self.execute(operation, body, sink),
        }
    }

    /// Whether no record of the log gives a key a time to live.
    pub(super) fn is_timeless(&self) -> bool {
        self.serving.is_timeless()
            && self.queue.is_empty()
            && self.executed.0 == self.ordered.log.end().position
    }

    fn operation_of(&self, now_ms: u64, repr: &Repr) -> PendingWrite {
        PendingWrite {
            // Held-back records follow the submitted ones (CRAQ).
            position: Position(self.submitted.position.max(self.ordered.log.end().position) + 1),
            asked: RequestHeader {
                flags: repr
                    .flags
                    .set(Flags::MEMORY_FULL, self.serving.engine.is_full())
                    .refused_if(self.refuses_writes()),
                ..RequestHeader::of(repr, now_ms)
            },
            further: repr.further,
            refused: Status::Ok,
            verdict: Verdict::Nothing,
            deciding: true,
        }
    }

    /// The version of the staged body to which the write refers; `None` if its command is in the
    /// packet.
    fn staged_version(
        &self,
        repr: &Repr,
        body: &[u8],
        is_own: bool,
    ) -> Result<Option<u64>, Status> {
        if repr.has_no_command() {
            return Ok(None);
        }
        if !repr.flags.has(Flags::BODY_STAGED) || is_own {
            return Command::parse(body).map(|_| None).map_err(|_| Status::Malformed);
        }
        let (hdr, _) = FragmentHdr::parse(body).map_err(|_| Status::Malformed)?;
        match self.serving.staged(repr, hdr.version) {
            Some(command) if Command::parse(command).is_ok() => Ok(Some(hdr.version)),
            Some(_) => Err(Status::Malformed),
            None => Err(Status::BodyMissing),
        }
    }

    fn admit(&mut self, operation: &PendingWrite) -> Verdict {
        let verdict = self.serving.sessions.admit(&operation.record(self.role.epoch(), &[], &[]));
        self.count.note(verdict);
        verdict
    }

    /// The part of a record that can be executed: all of it, unless the state is being copied.
    #[inline]
    fn executable(&self, record: &Record<'_>) -> Executable {
        if self.phase == Phase::Joining {
            return self.copy.executable(record, self.setup.guards);
        }
        Executable::All
    }

    /// Other members: executes a record in order. It is in the log already.
    pub(super) fn follow(&mut self, record: &Record<'_>, sink: &mut impl Sink) {
        self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
        self.submitted = LogEnd { position: record.position.0, hash: record.hash };
        let mut operation = PendingWrite::of(record);
        operation.verdict = self.admit(&operation);
        if operation.verdict != Verdict::Execute {
            return self.idle(operation, sink);
        }
        match self.executable(record) {
            Executable::All => self.execute(operation, record.command, sink),
            Executable::Nothing => {
                operation.verdict = Verdict::Nothing;
                self.idle(operation, sink);
            }
            Executable::Part(command) => {
                // The reply is not that of the whole command: it is copied at the end.
                operation.verdict = Verdict::Nothing;
                self.execute(operation, &command, sink);
            }
            Executable::Entangled => {
                self.count.copies_entangled += 1;
                self.invalidate_copy();
            }
        }
    }

    fn idle(&mut self, operation: PendingWrite, sink: &mut impl Sink) {
        if self.queue.is_empty() {
            self.finish(operation, &[], NO_REPLY, sink);
        } else {
            self.queue.push(Pending::Idle(operation));
        }
    }

    fn execute(&mut self, operation: PendingWrite, command: &[u8], sink: &mut impl Sink) {
        let Ok(parsed) = Command::parse(command) else { return self.fail_stop() };
        if self.notes_executed(operation.deciding) {
            let asked = &operation.asked;
            self.note_write(
                asked.flags,
                asked.obj_id,
                &operation.further,
                asked.seq,
                operation.position,
            );
        }
        let mut reply = core::mem::take(&mut self.serving.reply);
        reply.clear();
        let mut context = operation.context(&self.serving.engine, self.setup.guards);
        context.is_passed = !operation.deciding && self.succeeded(operation.position);
        self.copy_early(operation.position, &parsed);
        match self.serving.engine.submit(&context, Class::Write, &parsed, &mut reply) {
            Progress::Done => {
                let touched = self.serving.engine.take_touched();
                self.scripts_touched(operation.position, command, touched);
                self.finish(operation, command, handed_over(&mut reply), sink);
            }
            Progress::Pending => {
                let kept = if operation.deciding { command.to_vec() } else { Vec::new() };
                self.queue.push(Pending::Write(operation, kept));
            }
        }
        self.serving.reply = reply;
    }

    /// Whether the ordering node has answered the write of this record by no error.
    fn succeeded(&self, position: Position) -> bool {
        let record = self.ordered.log.record(position).and_then(|r| Record::parse(r).ok());
        record.is_some_and(|record| !record.reply.is_empty() && !has_failed(record.reply))
    }

    /// Notes the newest write of an object, of several, or of all (traps T9, T13).
    pub(super) fn note_write(
        &mut self,
        flags: Flags,
        obj_id: ObjectId,
        further: &FurtherIds,
        seq: Seq,
        at: Position,
    ) {
        if flags.has(Flags::WILDCARD) {
            return self.applied.note_all(seq, at);
        }
        self.applied.note(obj_id, seq, at);
        if self.setup.guards.on(Guard::SeveralNoted) {
            further.as_slice().iter().for_each(|obj_id| self.applied.note(*obj_id, seq, at));
        }
    }

    /// Handles the operations that the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        let executed = self.executed;
        while let Some(done) = self.serving.poll() {
            match self.queue.pop() {
                Some(Pending::Write(operation, command)) => {
                    self.script_ran(&operation, &command, done.touched.clone());
                    self.engine_wrote(operation, &command, done, sink);
                }
                Some(Pending::Read(operation)) => {
                    self.answer_read(now, &operation, &done.reply, sink)
                }
                Some(Pending::Copy(node, part)) => {
                    self.part_taken(node, part, done.reply);
                    let epoch = self.role.epoch();
                    self.source.push_part(epoch, node, &mut self.scratch, sink);
                }
                Some(Pending::Early(before)) => {
                    self.copied_early(before, done.reply, false);
                }
                Some(Pending::Install) => {}
                Some(Pending::Idle(_) | Pending::Table(..)) | None => return self.fail_stop(),
            }
            self.finish_idle(sink);
            self.pump_full(now, sink);
        }
        self.serving.rest(now.instant);
        if self.phase == Phase::Opening && self.opening.has_fetched() {
            self.fetch_longer(now, sink);
        }
        // The primary waits to hear of it; the acknowledgement of the record's arrival did not say
        // it.
        if self.executed > executed && self.role.is_protocol(Protocol::PrimaryBackup) {
            self.streams.acknowledge();
        }
        self.try_open(now, sink);
    }

    /// The engine was lost to a script that does not end. Its client is told that the outcome is
    /// unknown, so that it does not ask the next replica, which would be lost as well. No other
    /// member has the script: the node that orders logs only what the engine has answered. The
    /// engine does not say which of the pending scripts it was: it need not be the first, since a
    /// server holds back the answers to commands that arrived in one receive.
    pub(super) fn report_lost_script(&mut self, sink: &mut impl Sink) {
        if !self.serving.engine.is_poisoned() {
            return;
        }
        let in_force = self.in_force();
        for pending in self.queue.iter() {
            let Pending::Write(operation, command) = pending else { continue };
            let is_script = Command::parse(command)
                .is_ok_and(|command| concord_engine::redis::runs_script(&command));
            if !is_script || !operation.deciding || operation.asked.flags.has(Flags::INTERNAL) {
                continue;
            }
            let from = Repr { status: Status::Stale, ..Repr::new(Op::WriteReply) };
            let (epoch, node) = (self.role.epoch(), self.role.node());
            let repr = Repr { epoch, node, ..operation.asked.header(from) };
            repr.emit(&[], &mut self.scratch);
            sink.send(self.serving.to(in_force, repr.client), &self.scratch);
        }
    }

    /// Finishes the operations at the front of the queue that need no engine.
    fn finish_idle(&mut self, sink: &mut impl Sink) {
        while let Some(pending) = self.queue.pop_idle() {
            match pending {
                Pending::Idle(operation) => self.finish(operation, &[], NO_REPLY, sink),
                Pending::Table(node, table) => self.part_taken(node, PART_TABLE, table),
                Pending::Write(..)
                | Pending::Read(_)
                | Pending::Copy(..)
                | Pending::Early(_)
                | Pending::Install => {}
            }
        }
    }

    fn engine_wrote(
        &mut self,
        operation: PendingWrite,
        command: &[u8],
        done: Completion,
        sink: &mut impl Sink,
    ) {
        if operation.deciding {
            let is_own = done.effect.is_none() && done.reply.len() > REPLICATED_BYTES_MAX;
            let kept = is_own.then_some(LONG_REPLY);
            let command = done.effect.as_deref().unwrap_or(command);
            return self.finish_with(operation, command, (done.reply.into(), kept), sink);
        }
        // Trap T11: an operation that failed here and not at the ordering node, or the reverse (for
        // lack of memory, for example), has diverged. The client gets the ordering node's reply.
        let Some(record) =
            self.ordered.log.record(operation.position).and_then(|r| Record::parse(r).ok())
        else {
            return self.fail_stop();
        };
        // While the state is copied, only the objects that are here were changed.
        if operation.verdict == Verdict::Nothing {
            return self.finish(operation, &[], NO_REPLY, sink);
        }
        // It was stopped here, and ran to its end at the ordering node.
        if done.stopped {
            return self.fail_stop();
        }
        if record.reply.is_empty() {
            return self.finish(operation, &[], done.reply.into(), sink);
        }
        if record.reply == LONG_REPLY {
            // The reply is not an error, and the one here is as good.
            return match has_failed(&done.reply) {
                true => self.fail_stop(),
                false => self.finish(operation, &[], done.reply.into(), sink),
            };
        }
        if has_failed(record.reply) != has_failed(&done.reply) {
            return self.fail_stop();
        }
        let reply = record.reply.to_vec();
        self.finish(operation, &[], reply.into(), sink);
    }

    /// A write was executed here (or had nothing to execute): it is logged, kept, passed on, and
    /// answered by the member that commits.
    fn finish(
        &mut self,
        operation: PendingWrite,
        command: &[u8],
        reply: Cow<'_, [u8]>,
        sink: &mut impl Sink,
    ) {
        self.finish_with(operation, command, (reply, None), sink);
    }

    /// As [`Self::finish`]; `kept` replaces the reply in the record, if records have replies.
    fn finish_with(
        &mut self,
        operation: PendingWrite,
        command: &[u8],
        (reply, kept): (Cow<'_, [u8]>, Option<&[u8]>),
        sink: &mut impl Sink,
    ) {
        if operation.deciding {
            let kept = if self.setup.replicate_replies { kept.unwrap_or(&reply) } else { &[] };
            self.append(&operation, command, kept);
        }
        if operation.verdict == Verdict::Execute && !operation.asked.flags.has(Flags::INTERNAL) {
            let (session, request) = (operation.asked.session, operation.asked.request);
            self.serving.sessions.complete_with(session, request, reply);
        }
        self.executed = operation.position;
        self.count.records_applied += 1;
        if let Some(first) = self.serving.note_executed(&operation) {
            self.make_digest(first);
        }
        if self.phase != Phase::Open {
            return;
        }
        // CRAQ: it was committed before, and no further write may be while the log is full.
        if self.executed <= self.committed {
            self.truncate_log();
        }
        if !self.caught_up {
            self.note_caught_up();
        }
        if self.role.is_reader() {
            let alone = self.role.is_alone();
            let waits = self.journal.delays_commits() && self.setup.guards.on(Guard::DurableCommit);
            if !waits && (alone || !self.role.is_protocol(Protocol::PrimaryBackup)) {
                self.raise_committed(self.executed);
                self.reply_to_write(&operation, sink);
            } else {
                self.unanswered.push_write(operation);
            }
        }
    }

    /// Makes the digest of a part of the state, if the engine has that of the position executed
    /// last: nothing that was submitted is unfinished, and nothing is missing.
    fn make_digest(&mut self, first: u16) {
        let is_at = self.phase == Phase::Open && self.submitted.position == self.executed.0;
        let hash = self.ordered.log.hash_at(self.executed).filter(|_| is_at);
        if let Some(hash) = hash {
            let at = LogEnd { position: self.executed.0, hash };
            self.serving.make_digest(first, at, &mut self.count);
        }
    }

    /// The node that orders: appends the write's record to the log.
    pub(super) fn append(&mut self, operation: &PendingWrite, command: &[u8], reply: &[u8]) {
        self.ordered.append(Room::admitted(), &operation.record(self.role.epoch(), command, reply));
        self.journal.record(self.ordered.log.last());
    }

    /// Primary: a write is committed once every backup has executed it.
    pub(super) fn commit_acknowledged(&mut self, now: Now, sink: &mut impl Sink) {
        let others = self.role.others().count();
        if !self.role.is_head() || self.streams.successors() != others {
            return;
        }
        let everywhere = self.streams.applied().unwrap_or(self.executed);
        self.raise_committed(everywhere.min(self.durable_here()));
        self.answer_committed(now, sink);
    }

    /// Answers the writes that are committed, and the reads that waited for one.
    pub(super) fn answer_committed(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(operation) = self.unanswered.pop_write(self.committed) {
            self.reply_to_write(&operation, sink);
        }
        self.wake_reads(now, sink);
    }

    /// Settles writes that were executed in an earlier epoch and never answered, on which the
    /// members agree now. The clients ask again, and are answered from the client table.
    pub(super) fn settle_old_writes(&mut self, now: Now, sink: &mut impl Sink) {
        if !(self.role.is_head() && self.role.is_protocol(Protocol::PrimaryBackup)) {
            self.unanswered.forget_writes();
            if self.role.is_reader() {
                self.raise_committed(self.durable_before().min(self.durable_here()));
            }
            return;
        }
        self.commit_acknowledged(now, sink);
    }

    /// Sends the reply, which carries the completion (Harmonia §6.1), or the completion alone.
    fn reply_to_write(&mut self, operation: &PendingWrite, sink: &mut impl Sink) {
        let from = Repr {
            flags: Flags::COMPLETION,
            epoch: self.role.epoch(),
            node: self.role.node(),
            ..Repr::new(Op::WriteReply)
        };
        let to = self.role.switch_addr();
        if operation.asked.flags.has(Flags::NOOP) || operation.asked.flags.has(Flags::INTERNAL) {
            operation
                .asked
                .header(Repr { op: Op::WriteCompletion, ..from })
                .emit(&[], &mut self.scratch);
        } else {
            emit_write_reply(operation, from, &self.serving.sessions, &mut self.scratch);
        }
        sink.send(to, &self.scratch);
        let in_force = self.in_force();
        self.serving.tell_waiting(operation, in_force, &mut self.count, sink);
    }

    /// Takes a fragment of a body, which precedes its write (trap T17).
    pub(super) fn on_wrest(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        if self.phase != Phase::Open || !self.role.is_head() {
            self.count.writes_not_head += 1;
            return Ok(());
        }
        let in_force = self.in_force();
        self.serving.stage(now, packet, in_force, &mut self.count, sink)
    }
}
