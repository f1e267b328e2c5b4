//! CRAQ (Terrace and Freedman, USENIX ATC 2009): a chain in which every replica answers reads.
//!
//! An object is dirty at a replica from the arrival of a write of it until the write is known to be
//! committed (§2.3). A read of a clean object is answered at once. For a dirty one the replica asks
//! the tail for the committed position, and answers with the object's value as of then.
//!
//! The paper keeps each version of a dirty object. Here a write is held back: it is in the log and
//! is passed on, but executed only when it is committed. So an engine, which has one version of
//! each object, holds the committed one, and any command can be replicated. The tail's answer
//! advances the committed position here, so that a read waits for that answer alone.
//!
//! The head of a group whose engine decides what is replicated (`replicate_replies`) must execute
//! first. It has no committed version of a dirty object, and passes the read on to the tail.

use alloc::vec::Vec;

use concord_core::{Guard, Now, Position};
use concord_engine::Engine;
use concord_wire::control::Protocol;
use concord_wire::craq::{VersionAnswer, VersionQuery};
use concord_wire::record::Record;
use concord_wire::{Flags, Packet, Reason, Repr, Sink, Status};

use super::Replica;
use crate::pending::PendingWrite;
use crate::setup::Phase;

impl<E: Engine> Replica<E> {
    /// Whether writes are executed here only once they are committed. The tail's execution is the
    /// commit; an engine that decides what is replicated must execute first. A joining replica
    /// receives only what the tail has executed.
    pub(super) fn holds_back(&self) -> bool {
        self.role.is_protocol(Protocol::Craq)
            && self.phase != Phase::Joining
            && !self.role.is_reader()
            && !(self.role.is_head() && self.setup.replicate_replies)
    }

    /// The position up to which records are passed on to the successor and acknowledged to the
    /// predecessor.
    pub(super) fn passed(&self) -> Position {
        if self.role.is_protocol(Protocol::Craq) && self.phase != Phase::Joining {
            self.ordered.end()
        } else {
            self.executed
        }
    }

    /// Whether a write is noted when it is executed. In CRAQ it was noted when it arrived, except
    /// by a replica that was joining then; at the tail no object is ever dirty.
    pub(super) fn notes_executed(&self, deciding: bool) -> bool {
        deciding
            || self.phase == Phase::Joining
            || !self.role.is_protocol(Protocol::Craq)
            || (self.role.is_reader() && self.journal.delays_commits())
    }

    /// Head: orders a write. Its outcome (a retry, too late, refused) is decided alike by every
    /// replica when it executes the record.
    pub(super) fn order_held(&mut self, operation: &PendingWrite, command: &[u8]) {
        let record = operation.record(self.role.epoch(), command, &[]);
        let command = if record.refused == Status::Ok { command } else { &[] };
        self.append(operation, command, &[]);
        self.count.writes_ordered += 1;
        self.hold(&Record { command, ..record });
    }

    /// Notes that a record is in the log; its object is dirty until it is committed.
    pub(super) fn hold(&mut self, record: &Record<'_>) {
        self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
        if !record.command.is_empty() {
            let Record { flags, obj_id, further, seq, position, .. } = record;
            self.note_write(*flags, *obj_id, further, *seq, *position);
        }
    }

    /// The successor or the tail named the committed position. The predecessor is told with the
    /// next acknowledgement, which is due now.
    pub(super) fn commit_up_to(&mut self, position: Position, sink: &mut impl Sink) {
        let position = position.min(self.ordered.end());
        if position <= self.committed {
            return;
        }
        if self.holds_back() {
            self.execute_up_to(position, sink);
        }
        self.raise_committed(position);
        self.streams.acknowledge();
    }

    /// A new epoch gave this replica another role: if it does not hold back, it executes all that
    /// it has.
    pub(super) fn execute_held(&mut self, sink: &mut impl Sink) {
        if !self.holds_back() {
            self.execute_up_to(self.ordered.end(), sink);
        }
    }

    fn execute_up_to(&mut self, position: Position, sink: &mut impl Sink) {
        let mut bytes = core::mem::take(&mut self.record);
        while self.submitted.position < position.0 {
            let Some(held) = self.ordered.log.record(Position(self.submitted.position + 1)) else {
                break;
            };
            bytes.clear();
            bytes.extend_from_slice(held);
            match Record::parse(&bytes) {
                Ok(record) => self.follow(&record, sink),
                Err(_) => self.fail_stop(),
            }
            if self.phase == Phase::Left {
                break;
            }
        }
        self.record = bytes;
    }

    /// Handles a read that the switch sent to any replica.
    pub(super) fn on_read_craq(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        let (is_tail, is_leased) = (self.role.is_reader(), self.is_leased(now));
        let forwarded = repr.flags.has(Flags::FORWARDED);
        let misplaced = forwarded && (repr.epoch != self.role.epoch() || !is_tail);
        if misplaced || (is_tail && !is_leased) {
            self.count.reads_dropped += 1;
            return;
        }
        let is_dirty = !is_tail && self.is_dirty(repr);
        if is_leased && !is_dirty {
            self.count.reads_clean += 1;
            let reason = if forwarded { repr.reason } else { Reason::Clean };
            if is_tail && self.reads_wait() {
                return self.read_committed(now, repr, body, reason, sink);
            }
            return self.read(now, repr, body, reason, sink);
        }
        let reason = if is_dirty { Reason::AskedTail } else { Reason::RefusedLease };
        self.count.reads_dirty += u64::from(is_dirty);
        self.count.refused_lease += u64::from(!is_dirty);
        // A replica that does not hold back may execute more while it waits for the answer.
        if !self.holds_back() || self.submitted.position > self.committed.0 {
            return self.forward(repr, reason, body, sink);
        }
        if self.asking.is_full() {
            self.count.reads_dropped += 1;
            return;
        }
        let mut packet = Vec::new();
        Repr { reason, ..*repr }.emit(body, &mut packet);
        self.asking.push(packet);
    }

    /// Whether a write of the object is here that is not known to be committed.
    fn is_dirty(&self, repr: &Repr) -> bool {
        let mut newest = self.newest_submitted(repr);
        if repr.flags.has(Flags::WILDCARD) {
            newest = newest.max(self.ordered.end());
        }
        newest > self.committed && self.setup.guards.on(Guard::AskTail)
    }

    /// Asks the tail, for all waiting reads.
    pub(super) fn ask_version(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            return self.asking.forget();
        }
        let Some(tail) = self.role.reader().copied() else { return };
        let number = self.asking.query(now.instant);
        self.count.version_queries += 1;
        let (epoch, from) = (self.role.epoch(), self.role.node());
        let asker = self.setup.me.addr;
        VersionQuery { epoch, from, asker, number }.emit(&mut self.scratch);
        sink.send(tail.addr, &self.scratch);
    }

    /// Tail: everything executed here is committed. Trap T25: it says so only to members of its own
    /// epoch, and under a lease: a tail that was removed does not know what was committed since,
    /// nor does one that has just joined.
    pub(super) fn on_version_query(
        &mut self,
        now: Now,
        query: &VersionQuery,
        sink: &mut impl Sink,
    ) {
        let guards = self.setup.guards;
        let fenced = self.role.is_epoch(query.epoch) || !guards.on(Guard::VersionEpoch);
        let leased = self.is_leased(now) || !guards.on(Guard::VersionLease);
        let caught_up = self.caught_up || !guards.on(Guard::CaughtUp);
        let settled = self.is_settled() || !guards.on(Guard::DurableReads);
        let may_say = fenced && leased && caught_up && settled;
        if self.phase != Phase::Open || !self.role.is_reader() || !may_say {
            self.count.version_refused += 1;
            return;
        }
        self.count.version_answers += 1;
        let (epoch, from) = (self.role.epoch(), self.role.node());
        let committed = if self.reads_wait() { self.committed } else { self.executed };
        let answer = VersionAnswer { epoch, from, number: query.number, committed };
        answer.emit(&mut self.scratch);
        sink.send(query.asker, &self.scratch);
    }

    /// Whether everything that was agreed when the epoch opened is committed: a part of it may have
    /// been committed, and read, before.
    fn is_settled(&self) -> bool {
        let end = self.opening.agreed();
        !self.journal.delays_commits() || end.is_some_and(|end| self.committed.0 >= end.position)
    }

    /// Answers the reads that arrived before the question. Writes that were committed here
    /// meanwhile are newer than the tail's answer, which is as good (trap T25).
    pub(super) fn on_version_answer(
        &mut self,
        now: Now,
        answer: &VersionAnswer,
        sink: &mut impl Sink,
    ) {
        let tail = self.role.reader().map(|m| m.node);
        let guards = self.setup.guards;
        let fenced = self.role.is_epoch(answer.epoch) || !guards.on(Guard::VersionEpoch);
        let is_tails = tail == Some(answer.from.0) || !guards.on(Guard::VersionTail);
        if self.phase != Phase::Open || !fenced || !is_tails {
            self.count.version_refused += 1;
            return;
        }
        self.commit_up_to(answer.committed, sink);
        while let Some(bytes) = self.asking.pop(answer.number) {
            if let Ok(packet) = Packet::parse(&bytes) {
                let repr = packet.repr();
                self.read(now, &repr, packet.body(), repr.reason, sink);
            }
        }
    }
}
