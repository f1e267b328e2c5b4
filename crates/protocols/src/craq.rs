//! CRAQ (Terrace and Freedman, USENIX ATC 2009): a chain in which every replica answers reads.
//!
//! An object is dirty at a replica from when a write of it has come to when it is known that the
//! write is committed (§2.3). A clean object is answered at once. For a dirty one the replica asks
//! the tail up to where the log is committed, and answers what the object is then.
//!
//! The paper keeps each version of a dirty object. Here a write is held back: it is in the log and
//! is passed on, but executed only when it is committed. So an engine, which knows one version of
//! each object, holds the committed one, and whatever commands there are can be replicated. The
//! tail's answer raises what is committed here, so that a read waits for that answer alone.
//!
//! The head of a group whose engine decides what is replicated (`replicate_replies`) has to execute
//! first. It has no committed version of a dirty object, and passes the read on to the tail.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Guard, Instant, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{Config, Protocol};
use concord_wire::craq::{VersionAnswer, VersionQuery};
use concord_wire::record::Record;
use concord_wire::{Flags, Packet, Reason, Repr, Sink, Status};

use crate::reads::WAITING_MAX;
use crate::replica::{Phase, RETRY_NS, Replica};
use crate::writes::Turn;

/// Reads of dirty objects that wait for the tail's answer.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    /// In the order in which they came, each with the number of the query that speaks for it: the
    /// first one sent after it came, so that the answer is not older than the read.
    reads: VecDeque<(u64, Vec<u8>)>,
    /// The number of the last query sent; never reset, so that an old answer covers no new read.
    asked: u64,
    /// When to ask again.
    retry_at: Instant,
    /// A buffer for the held record that is being executed.
    record: Vec<u8>,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { reads: VecDeque::new(), asked: 0, retry_at: Instant::NEVER, record: Vec::new() }
    }
}

impl Asking {
    /// The epoch is over: its answers count no more, and clients ask again.
    pub fn forget(&mut self) {
        self.reads.clear();
        self.retry_at = Instant::NEVER;
    }

    /// Whether a read waits for which no query was sent.
    pub fn is_due(&self) -> bool {
        self.reads.back().is_some_and(|(number, _)| *number > self.asked)
    }

    /// When to ask again, if no answer comes.
    pub fn retry_at(&self) -> Instant {
        self.retry_at
    }

    fn push(&mut self, packet: Vec<u8>) {
        self.reads.push_back((self.asked + 1, packet));
    }

    /// The next read that the answer to query `number` speaks for.
    fn pop(&mut self, number: u64) -> Option<Vec<u8>> {
        let (covered_by, _) = self.reads.front()?;
        if *covered_by > number {
            return None;
        }
        let (_, packet) = self.reads.pop_front()?;
        if self.reads.is_empty() {
            self.retry_at = Instant::NEVER;
        }
        Some(packet)
    }
}

impl<E: Engine> Replica<E> {
    /// Whether writes are executed here only once they are committed. The tail's execution is the
    /// commit; an engine that decides what is replicated has to execute first. A joining replica
    /// hears only of what the tail has executed.
    pub(crate) fn holds_back(&self) -> bool {
        self.is_protocol(Protocol::Craq)
            && self.phase != Phase::Joining
            && !self.is_reader()
            && !(self.is_head() && self.setup.replicate_replies)
    }

    /// Up to where records are passed on to the successor and acknowledged to the predecessor.
    pub(crate) fn passed(&self) -> Position {
        if self.is_protocol(Protocol::Craq) && self.phase != Phase::Joining {
            Position(self.log.end().position)
        } else {
            self.executed
        }
    }

    /// Whether a write is noted when it is executed. In CRAQ it was noted when it came, but by a
    /// replica that was joining then; at the tail no object is ever dirty.
    pub(crate) fn notes_executed(&self, deciding: bool) -> bool {
        deciding || self.phase == Phase::Joining || !self.is_protocol(Protocol::Craq)
    }

    /// Head: a write takes its place. What becomes of it (a retry, too late, refused) every replica
    /// decides alike when it executes the record.
    pub(crate) fn order_held(&mut self, turn: &Turn, command: &[u8]) {
        let record = turn.record(self.epoch(), command, &[]);
        let command = if record.refused == Status::Ok { command } else { &[] };
        self.append(turn, command, &[]);
        self.count.writes_ordered += 1;
        self.hold(&Record { command, ..record });
    }

    /// A record is in the log; its object is dirty until it is committed.
    pub(crate) fn hold(&mut self, record: &Record<'_>) {
        self.last_seq = self.last_seq.max(record.seq);
        if !record.command.is_empty() {
            self.note_write(record.flags, record.obj_id, record.seq, record.position);
        }
    }

    /// The successor or the tail said up to where the log is committed. The predecessor hears of it
    /// with the next acknowledgement, which is due now.
    pub(crate) fn commit_up_to(&mut self, position: Position, sink: &mut impl Sink) {
        let position = position.min(Position(self.log.end().position));
        if position <= self.committed {
            return;
        }
        if self.holds_back() {
            self.execute_up_to(position, sink);
        }
        self.raise_committed(position);
        if let Some(receiver) = self.receiver.as_mut() {
            receiver.ack_due = true;
        }
    }

    /// A new epoch gave this replica another role: who does not hold back executes all it has.
    pub(crate) fn execute_held(&mut self, sink: &mut impl Sink) {
        if !self.holds_back() {
            self.execute_up_to(Position(self.log.end().position), sink);
        }
    }

    fn execute_up_to(&mut self, position: Position, sink: &mut impl Sink) {
        let mut bytes = core::mem::take(&mut self.asking.record);
        while self.submitted.position < position.0 {
            let Some(held) = self.log.record(Position(self.submitted.position + 1)) else { break };
            bytes.clear();
            bytes.extend_from_slice(held);
            match Record::parse(&bytes) {
                Ok(record) => self.follow(&record, sink),
                Err(_) => self.leave(),
            }
            if self.phase == Phase::Left {
                break;
            }
        }
        self.asking.record = bytes;
    }

    /// A read that the switch sent to any replica.
    pub(crate) fn on_read_craq(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        let (is_tail, is_leased) = (self.is_reader(), self.is_leased(now));
        let forwarded = repr.flags.has(Flags::FORWARDED);
        let misplaced = forwarded && (repr.epoch != self.epoch() || !is_tail);
        if misplaced || (is_tail && !is_leased) {
            self.count.reads_dropped += 1;
            return;
        }
        let is_dirty = !is_tail && self.is_dirty(repr);
        if is_leased && !is_dirty {
            self.count.reads_clean += 1;
            let reason = if forwarded { repr.reason } else { Reason::Clean };
            return self.read(now, repr, body, reason, sink);
        }
        let reason = if is_dirty { Reason::AskedTail } else { Reason::RefusedLease };
        self.count.reads_dirty += u64::from(is_dirty);
        self.count.refused_lease += u64::from(!is_dirty);
        // Who does not hold back may execute more while it waits for the answer.
        if !self.holds_back() || self.submitted.position > self.committed.0 {
            return self.forward(repr, reason, body, sink);
        }
        if self.asking.reads.len() >= WAITING_MAX {
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
            newest = newest.max(Position(self.log.end().position));
        }
        newest > self.committed && self.setup.guards.on(Guard::AskTail)
    }

    /// Asks the tail, for all reads that wait.
    pub(crate) fn ask_version(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            return self.asking.forget();
        }
        let Some(tail) = self.config.as_ref().and_then(Config::reader).copied() else { return };
        self.asking.asked += 1;
        self.asking.retry_at = now.instant.after(RETRY_NS);
        self.count.version_queries += 1;
        let (epoch, from) = (self.epoch(), self.node());
        let asker = self.setup.me.addr;
        VersionQuery { epoch, from, asker, number: self.asking.asked }.emit(&mut self.scratch);
        sink.send(tail.addr, &self.scratch);
    }

    /// Tail: all that was executed here is committed. Trap T25: said only to members of its own
    /// epoch, and under a lease: a tail that was removed does not know what was committed since, nor
    /// does one that has just joined.
    pub(crate) fn on_version_query(
        &mut self,
        now: Now,
        query: &VersionQuery,
        sink: &mut impl Sink,
    ) {
        let guards = self.setup.guards;
        let fenced = self.is_epoch(query.epoch) || !guards.on(Guard::VersionEpoch);
        let leased = self.is_leased(now) || !guards.on(Guard::VersionLease);
        let whole = self.whole || !guards.on(Guard::Whole);
        if self.phase != Phase::Open || !self.is_reader() || !fenced || !leased || !whole {
            self.count.version_refused += 1;
            return;
        }
        self.count.version_answers += 1;
        let (epoch, from) = (self.epoch(), self.node());
        let answer = VersionAnswer { epoch, from, number: query.number, committed: self.executed };
        answer.emit(&mut self.scratch);
        sink.send(query.asker, &self.scratch);
    }

    /// The reads that came before the question was asked are answered. What became committed here
    /// meanwhile is newer than what the tail said, and as good (trap T25).
    pub(crate) fn on_version_answer(
        &mut self,
        now: Now,
        answer: &VersionAnswer,
        sink: &mut impl Sink,
    ) {
        let tail = self.config.as_ref().and_then(Config::reader).map(|m| NodeId(m.node));
        let fenced = self.is_epoch(answer.epoch) || !self.setup.guards.on(Guard::VersionEpoch);
        if self.phase != Phase::Open || !fenced || tail != Some(answer.from) {
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
