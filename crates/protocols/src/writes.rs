//! Writes: ordered by the head, executed by everybody in the same order, answered by who commits.
//!
//! Harmonia §8 responsibility 1: only in sequence order. Trap T14: every numbered write, a retry or a
//! refused one too, takes its turn as a record, so that the last-committed point is a prefix.

use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{
    Epoch, Guard, Guards, NodeId, Now, ObjectId, Position, RequestNumber, Seq, SessionId,
};
use concord_engine::{Class, Command, Completion, Context, Engine, Progress};
use concord_wire::control::{LogEnd, Protocol};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Addr, Flags, FurtherIds, Op, Packet, Repr, Sink, Status, WireError};

use crate::reads::ReadTurn;
use crate::replica::{Phase, Replica, ReplicaCounters};
use crate::serve::emit_first_fragment;
use crate::sessions::{Sessions, Verdict};

/// Most operations, and bytes of commands, that wait for the engine of who orders writes: it logs them
/// when they are executed. What comes beyond is dropped, and sent again by its client.
const PENDING_MAX: usize = 65_536;
const PENDING_BYTES_MAX: usize = 64 << 20;

/// A write in its turn: what is needed to finish and answer it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) position: Position,
    pub(crate) flags: Flags,
    pub(crate) seq: Seq,
    pub(crate) session: SessionId,
    pub(crate) request: RequestNumber,
    pub(crate) obj_id: ObjectId,
    pub(crate) attempt: u16,
    pub(crate) low_delta: u16,
    pub(crate) after_delta: u16,
    pub(crate) client: Addr,
    pub(crate) now_ms: u64,
    pub(crate) refused: Status,
    pub(crate) verdict: Verdict,
    /// This node ordered it: the record is written when the engine has answered.
    pub(crate) deciding: bool,
}

/// An operation that waits for the engine, or behind one that does.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// The engine executes it; the command is kept by the node that orders.
    Write(Turn, Vec<u8>),
    /// Nothing to execute; it only keeps its turn.
    Idle(Turn),
    /// The engine reads.
    Read(ReadTurn),
    /// Nothing to execute: the client table for that joining replica, taken here in the log.
    Table(NodeId, Vec<u8>),
    /// The engine copies that part of its state for that joining replica.
    Copy(NodeId, u64),
    /// The engine takes a part of another's state, or forgets its own.
    Install,
}

impl<E: Engine> Replica<E> {
    /// Head: numbers become positions. What cannot be ordered is dropped; the client sends it again
    /// and gets a new number.
    pub(crate) fn on_write(&mut self, now: Now, packet: &Packet<'_>, sink: &mut impl Sink) {
        let repr = packet.repr();
        if self.phase != Phase::Open || !self.is_head() {
            self.count.writes_not_head += 1;
            return;
        }
        if self.log.is_full(&self.setup.limits) {
            self.count.writes_log_full += 1;
            return;
        }
        if self.pending.len() >= PENDING_MAX || self.pending_bytes >= PENDING_BYTES_MAX {
            self.count.writes_queued += 1;
            return;
        }
        if self.config.as_ref().is_some_and(|c| c.program.has_dirty_set())
            && !self.take_number(repr.seq)
        {
            return;
        }
        let now_ms = self.stamp(now);
        let mut turn = self.turn_of(now_ms, &repr);
        let own = self.own_body(&repr, packet.body(), turn.position);
        let body = own.as_deref().unwrap_or(packet.body());
        let staged = match self.staged_version(&repr, body, own.is_some()) {
            Ok(version) => version,
            Err(status) => {
                turn.refused = status;
                None
            }
        };
        self.last_now_ms = turn.now_ms;
        if self.holds_back() {
            let staged = staged.and_then(|v| self.staging.take((repr.session, repr.request), v));
            let command = staged.as_deref().unwrap_or(body);
            return self.order_held(&turn, command);
        }
        turn.verdict = self.admit(&turn);
        let prefix = self.setup.guards.on(Guard::Prefix);
        if !prefix && !matches!(turn.verdict, Verdict::Execute | Verdict::Nothing) {
            self.reply_to_write(&turn, sink);
            return;
        }
        self.submitted.position = turn.position.0;
        self.count.writes_ordered += 1;
        if turn.verdict != Verdict::Execute {
            return self.idle(turn, sink);
        }
        match staged {
            Some(version) => {
                let body = self.staging.take((repr.session, repr.request), version);
                self.execute(turn, &body.unwrap_or_default(), sink);
            }
            None => self.execute(turn, body, sink),
        }
    }

    /// Harmonia §6.2: "tracking the last received sequence number and discarding any out-of-order
    /// writes".
    fn take_number(&mut self, seq: Seq) -> bool {
        let active = self.config.as_ref().map_or(0, |c| c.switch_id);
        if seq.switch_id.0 != active || !seq.is_some() {
            self.count.writes_other_switch += 1;
            return false;
        }
        if seq <= self.last_seq {
            if self.setup.guards.on(Guard::InOrderWrites) {
                self.count.writes_out_of_order += 1;
                return false;
            }
            return true;
        }
        if seq.switch_id == self.last_seq.switch_id {
            self.count.seq_gaps += u64::from(seq.counter - self.last_seq.counter - 1);
        }
        self.last_seq = seq;
        true
    }

    /// The log's time, for the next record. Where no key has a time to live, and none that was ordered
    /// may get one, it steps to the own clock: nobody can tell.
    fn stamp(&mut self, now: Now) -> u64 {
        if !self.setup.guards.on(Guard::LogClock) {
            return now.unix_ms.max(self.last_now_ms);
        }
        if self.clock.is_unset() || self.is_timeless() {
            self.clock.note(now.unix_ms, now.unix_ms);
        }
        self.clock.read(now.unix_ms)
    }

    /// Whether no key has a time to live by any record of the log.
    pub(crate) fn is_timeless(&self) -> bool {
        self.engine.next_expiry_ms().is_none()
            && self.pending.is_empty()
            && self.executed.0 == self.log.end().position
    }

    fn turn_of(&self, now_ms: u64, repr: &Repr) -> Turn {
        Turn {
            // What is held back stands behind what was submitted (CRAQ).
            position: Position(self.submitted.position.max(self.log.end().position) + 1),
            flags: repr.flags.set(Flags::MEMORY_FULL, self.engine.is_full()),
            seq: repr.seq,
            session: repr.session,
            request: repr.request,
            obj_id: repr.obj_id,
            attempt: repr.attempt,
            low_delta: repr.low_delta,
            after_delta: repr.after_delta,
            client: repr.client,
            now_ms,
            refused: Status::Ok,
            verdict: Verdict::Nothing,
            deciding: true,
        }
    }

    /// The version of the staged body that the write means, `None` if its command is in the packet.
    fn staged_version(
        &self,
        repr: &Repr,
        body: &[u8],
        is_own: bool,
    ) -> Result<Option<u64>, Status> {
        if repr.has_no_command() {
            return Ok(None);
        }
        if !repr.further.is_empty() {
            return Err(Status::ManyObjects);
        }
        if !repr.flags.has(Flags::BODY_STAGED) || is_own {
            return Command::parse(body).map(|_| None).map_err(|_| Status::Malformed);
        }
        let (hdr, _) = FragmentHdr::parse(body).map_err(|_| Status::Malformed)?;
        match self.staging.whole((repr.session, repr.request), hdr.version) {
            Some(command) if Command::parse(command).is_ok() => Ok(Some(hdr.version)),
            Some(_) => Err(Status::Malformed),
            None => Err(Status::BodyMissing),
        }
    }

    /// Notes that a write of this replica's own takes its place; its body, if no packet holds it.
    fn own_body(&mut self, repr: &Repr, hdr: &[u8], at: Position) -> Option<Vec<u8>> {
        if !repr.flags.has(Flags::INTERNAL) || repr.node != self.node() {
            return None;
        }
        let body = self.expiring.body(repr, hdr);
        self.expiring.on_ordered(repr, at);
        body
    }

    fn admit(&mut self, turn: &Turn) -> Verdict {
        let verdict = self.sessions.admit(&turn.record(self.epoch(), &[], &[]));
        self.count.note(verdict);
        verdict
    }

    /// Everybody else: a record in its turn. It is in the log already.
    pub(crate) fn follow(&mut self, record: &Record<'_>, sink: &mut impl Sink) {
        self.last_seq = self.last_seq.max(record.seq);
        self.submitted = LogEnd { position: record.position.0, hash: record.hash };
        let mut turn = Turn::of(record);
        turn.verdict = self.admit(&turn);
        if turn.verdict == Verdict::Execute && self.lacks_object(record) {
            turn.verdict = Verdict::Nothing;
        }
        match turn.verdict {
            Verdict::Execute => self.execute(turn, record.command, sink),
            Verdict::Duplicate | Verdict::Nothing | Verdict::Refused(_) => {
                self.idle(turn, sink);
            }
        }
    }

    fn idle(&mut self, turn: Turn, sink: &mut impl Sink) {
        if self.pending.is_empty() {
            self.finish(turn, &[], &[], sink);
        } else {
            self.pending.push_back(Pending::Idle(turn));
        }
    }

    fn execute(&mut self, turn: Turn, command: &[u8], sink: &mut impl Sink) {
        let Ok(parsed) = Command::parse(command) else { return self.leave() };
        if self.notes_executed(turn.deciding) {
            self.note_write(turn.flags, turn.obj_id, turn.seq, turn.position);
        }
        let mut reply = core::mem::take(&mut self.reply);
        reply.clear();
        let context = turn.context(&self.engine, self.setup.guards);
        match self.engine.submit(&context, Class::Write, &parsed, &mut reply) {
            Progress::Done => self.finish(turn, command, &reply, sink),
            Progress::Pending => {
                let kept = if turn.deciding { command.to_vec() } else { Vec::new() };
                self.pending_bytes += kept.len();
                self.pending.push_back(Pending::Write(turn, kept));
            }
        }
        self.reply = reply;
    }

    /// The newest write of an object, or of all (traps T9, T13).
    pub(crate) fn note_write(&mut self, flags: Flags, obj_id: ObjectId, seq: Seq, at: Position) {
        if flags.has(Flags::WILDCARD) {
            self.applied.note_all(seq, at);
        } else {
            self.applied.note(obj_id, seq, at);
        }
    }

    /// Takes what the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        let executed = self.executed;
        while let Some(done) = self.engine.poll() {
            self.engine_watch.answered();
            match self.pending.pop_front() {
                Some(Pending::Write(turn, command)) => {
                    self.pending_bytes -= command.len();
                    self.engine_wrote(turn, &command, &done, sink);
                }
                Some(Pending::Read(turn)) => self.answer_read(now, &turn, &done.reply, sink),
                Some(Pending::Copy(node, part)) => self.part_taken(node, part, done.reply),
                Some(Pending::Install) => {}
                Some(Pending::Idle(_) | Pending::Table(..)) | None => return self.leave(),
            }
            self.finish_idle(sink);
            self.pump_full(now, sink);
        }
        if self.phase == Phase::Opening && self.fetching.is_complete() {
            self.fetch_longer(now, sink);
        }
        // The primary waits to hear of it; what was said when the record came did not tell.
        if self.executed > executed
            && self.is_protocol(Protocol::PrimaryBackup)
            && let Some(receiver) = self.receiver.as_mut()
        {
            receiver.ack_due = true;
        }
        self.try_open(now, sink);
    }

    /// The engine was lost to a write that does not end. Its client is told that nobody knows what
    /// became of it, so that it does not ask the next replica, which would be lost as well. Nobody
    /// else has heard of it: who orders logs what the engine has answered.
    pub(crate) fn disown_poison(&mut self, sink: &mut impl Sink) {
        let Some(Pending::Write(turn, _)) = self.pending.front() else { return };
        if !self.engine.is_poisoned() || !turn.deciding || turn.flags.has(Flags::INTERNAL) {
            return;
        }
        let from = Repr { status: Status::Stale, ..Repr::new(Op::WriteReply) };
        let repr = Repr { epoch: self.epoch(), node: self.node(), ..turn.header(from) };
        repr.emit(&[], &mut self.scratch);
        let to = self.serving().to(repr.client);
        sink.send(to, &self.scratch);
    }

    /// What needs no engine and stands first by now.
    fn finish_idle(&mut self, sink: &mut impl Sink) {
        while let Some(Pending::Idle(_) | Pending::Table(..)) = self.pending.front() {
            match self.pending.pop_front() {
                Some(Pending::Idle(turn)) => self.finish(turn, &[], &[], sink),
                Some(Pending::Table(node, table)) => {
                    self.part_taken(node, crate::feed::PART_TABLE, table);
                }
                _ => return,
            }
        }
    }

    fn engine_wrote(
        &mut self,
        turn: Turn,
        command: &[u8],
        done: &Completion,
        sink: &mut impl Sink,
    ) {
        if turn.deciding {
            let command = done.effect.as_deref().unwrap_or(command);
            return self.finish(turn, command, &done.reply, sink);
        }
        // Trap T11: what failed here and not at the ordering node, or the other way round (out of
        // memory, say), has diverged. The client gets the ordering node's reply.
        let Some(record) = self.log.record(turn.position).and_then(|r| Record::parse(r).ok())
        else {
            return self.leave();
        };
        let failed = |reply: &[u8]| reply.first() == Some(&b'-') || reply.first() == Some(&b'!');
        // Stopped here, and run to its end by the ordering node.
        if done.stopped {
            return self.leave();
        }
        if record.reply.is_empty() {
            return self.finish(turn, &[], &done.reply, sink);
        }
        if failed(record.reply) != failed(&done.reply) {
            return self.leave();
        }
        let reply = record.reply.to_vec();
        self.finish(turn, &[], &reply, sink);
    }

    /// A write was executed here (or had nothing to execute): it is logged, kept, passed on, and
    /// answered by whoever commits.
    fn finish(&mut self, turn: Turn, command: &[u8], reply: &[u8], sink: &mut impl Sink) {
        if turn.deciding {
            let kept: &[u8] = if self.setup.replicate_replies { reply } else { &[] };
            self.append(&turn, command, kept);
        }
        if turn.verdict == Verdict::Execute && !turn.flags.has(Flags::INTERNAL) {
            self.sessions.complete(turn.session, turn.request, reply);
        }
        self.executed = turn.position;
        self.count.records_applied += 1;
        if self.phase != Phase::Open {
            return;
        }
        // CRAQ: it was committed before, and nothing more may be while the log is full.
        if self.executed <= self.committed {
            self.let_go();
        }
        if !self.whole {
            self.note_whole();
        }
        if self.is_acker() {
            let alone = self.config.as_ref().is_some_and(|c| c.members.len() == 1);
            if alone || !self.is_protocol(Protocol::PrimaryBackup) {
                self.raise_committed(self.executed);
                self.reply_to_write(&turn, sink);
            } else {
                self.uncommitted.push_back(turn);
            }
        }
    }

    /// The node that orders: the write's record takes its place in the log.
    pub(crate) fn append(&mut self, turn: &Turn, command: &[u8], reply: &[u8]) {
        let record = turn.record(self.epoch(), command, reply);
        let mut buffer = self.log.buffer();
        let hash = record.emit(self.log.end().hash, &mut buffer);
        self.log.push(buffer, hash);
    }

    /// Primary: a write is committed once every backup has executed it.
    pub(crate) fn commit_acknowledged(&mut self, now: Now, sink: &mut impl Sink) {
        let others = self.config.as_ref().map_or(0, |c| c.members.len() - 1);
        if !self.is_head() || self.senders.len() != others {
            return;
        }
        let everywhere = self.senders.iter().map(|s| s.applied).min().unwrap_or(self.executed);
        self.raise_committed(everywhere.min(self.executed));
        while let Some(turn) = self.uncommitted.front().copied() {
            if turn.position > self.committed {
                break;
            }
            self.uncommitted.pop_front();
            self.reply_to_write(&turn, sink);
        }
        self.wake_reads(now, sink);
    }

    /// What was executed in an earlier epoch and never answered: the members agree on it now. The
    /// clients ask again, and are answered from the table.
    pub(crate) fn settle_old_writes(&mut self, now: Now, sink: &mut impl Sink) {
        if !(self.is_head() && self.is_protocol(Protocol::PrimaryBackup)) {
            self.uncommitted.clear();
            if self.is_acker() {
                self.raise_committed(self.executed);
            }
            return;
        }
        self.commit_acknowledged(now, sink);
    }

    /// The reply, which carries the completion (Harmonia §6.1), or the completion alone.
    fn reply_to_write(&mut self, turn: &Turn, sink: &mut impl Sink) {
        let from = Repr {
            flags: Flags::COMPLETION,
            epoch: self.epoch(),
            node: self.node(),
            ..Repr::new(Op::WriteReply)
        };
        let to = self.switch_addr();
        if turn.flags.has(Flags::NOOP) || turn.flags.has(Flags::INTERNAL) {
            turn.header(Repr { op: Op::WriteCompletion, ..from }).emit(&[], &mut self.scratch);
        } else {
            emit_write_reply(turn, from, &self.sessions, &mut self.scratch);
        }
        sink.send(to, &self.scratch);
    }

    /// A fragment of a body, before its write (trap T17).
    pub(crate) fn on_wrest(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        if self.phase != Phase::Open || !self.is_head() {
            self.count.writes_not_head += 1;
            return Ok(());
        }
        self.serving().stage(now, packet, sink)
    }
}

impl ReplicaCounters {
    /// What the client table said of a record.
    pub(crate) fn note(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Execute | Verdict::Nothing => {}
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::Refused(status) => {
                self.refused_requests += 1;
                self.bodies_missing += u64::from(status == Status::BodyMissing);
            }
        }
    }
}

impl Turn {
    /// The turn of a record that this node did not order, before the client table's verdict.
    pub(crate) fn of(record: &Record<'_>) -> Turn {
        Turn {
            position: record.position,
            flags: record.flags,
            seq: record.seq,
            session: record.session,
            request: record.request,
            obj_id: record.obj_id,
            attempt: record.attempt,
            low_delta: record.low_delta,
            after_delta: record.after_delta,
            client: record.client,
            now_ms: record.now_ms,
            refused: record.refused,
            verdict: Verdict::Nothing,
            deciding: false,
        }
    }

    /// With what the engine executes it: the same at every replica.
    pub(crate) fn context(&self, engine: &impl Engine, guards: Guards) -> Context {
        let is_recorded = guards.on(Guard::RecordedMemory);
        Context {
            now_ms: self.now_ms,
            entropy: splitmix64(self.position.0 ^ self.now_ms.rotate_left(32)),
            position: self.position.0,
            resp3: self.flags.has(Flags::RESP3),
            decide: self.deciding,
            memory_full: if is_recorded {
                self.flags.has(Flags::MEMORY_FULL)
            } else {
                engine.is_full()
            },
        }
    }

    /// The header of an answer to it, by `from`.
    pub(crate) fn header(&self, from: Repr) -> Repr {
        Repr {
            obj_id: self.obj_id,
            seq: self.seq,
            session: self.session,
            request: self.request,
            client: self.client,
            attempt: self.attempt,
            ..from
        }
    }

    pub(crate) fn record<'a>(
        &self,
        epoch: Epoch,
        command: &'a [u8],
        reply: &'a [u8],
    ) -> Record<'a> {
        Record {
            position: self.position,
            hash: 0,
            epoch,
            flags: self.flags,
            low_delta: self.low_delta,
            seq: self.seq,
            session: self.session,
            request: self.request,
            now_ms: self.now_ms,
            obj_id: self.obj_id,
            // More than one is refused.
            further: FurtherIds::NONE,
            after_delta: self.after_delta,
            attempt: self.attempt,
            client: self.client,
            refused: self.refused,
            command,
            reply,
        }
    }
}

/// The reply to a write that was executed or refused in its turn: what the client table has. `from`
/// says who answers.
pub(crate) fn emit_write_reply(turn: &Turn, from: Repr, sessions: &Sessions, out: &mut Vec<u8>) {
    let mut repr = turn.header(from);
    let mut reply: &[u8] = &[];
    let position = turn.position.0.to_be_bytes();
    match turn.verdict {
        Verdict::Execute | Verdict::Duplicate => {
            match sessions.result(turn.session, turn.request) {
                Some(result) => reply = result,
                None => repr.status = Status::Stale,
            }
        }
        Verdict::Nothing => {}
        Verdict::Refused(status) => {
            repr.status = status;
            if turn.flags.has(Flags::REGISTER) {
                // The position to register with.
                reply = &position;
            }
        }
    }
    if reply.len() <= BODY_BYTES_MAX {
        repr.emit(reply, out);
    } else {
        repr.flags = repr.flags.with(Flags::MORE);
        let version = concord_core::hash::hash64(0, reply);
        emit_first_fragment(&repr, version, reply, out);
    }
}
