//! Joining: a replica copies the state of a member ([`super::copy`]) while writes go on, and is
//! made a member when it has all of it (traps T4, T5). Until then it answers nothing.

use alloc::vec::Vec;

use concord_core::{Epoch, Guard, NodeId, Now, Position, Seq};
use concord_engine::copy::{continues, next_place};
use concord_engine::{Engine, Progress};
use concord_wire::Sink;
use concord_wire::control::{CopyMessage, LogEnd};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;

use super::Replica;
use super::copy::{Question, Ready};
use super::queue::Pending;
use crate::applied::Applied;
use crate::early::{PART_EARLY, is_early, parse, part_of};
use crate::journal::part;
use crate::link::Receiver;
use crate::parts::{PART_RESULTS, PART_TABLE, Piece, Table};
use crate::sessions::SavedSessions;
use crate::setup::{Phase, RETRY_NS};

impl<E: Engine> Replica<E> {
    /// Begins an epoch in which this replica is to join.
    pub(super) fn join(&mut self, now: Now, sink: &mut impl Sink) {
        self.phase = Phase::Joining;
        self.copy.enter_epoch();
        self.unanswered.forget_writes();
        self.keep_joining(now, sink);
    }

    /// Asks again for what has not arrived.
    pub(super) fn keep_joining(&mut self, now: Now, sink: &mut impl Sink) {
        self.next_retry = now.instant.after(RETRY_NS);
        if self.copy.is_stale() && self.queue.is_empty() {
            self.begin_anew();
        }
        let Some(donor) = self.role.reader().map(|m| m.addr) else { return };
        let Some(question) = self.copy.question(!self.queue.is_empty()) else { return };
        let (epoch, from) = (self.role.epoch().0, self.role.node().0);
        let message = match question {
            Question::Resume { attempt } => {
                CopyMessage::Resume { epoch, from, attempt, end: self.ordered.log.end() }
            }
            Question::Part { attempt, part, index } => {
                CopyMessage::Ask { epoch, from, attempt, part, index }
            }
        };
        self.send_control(donor, &message, sink);
    }

    /// Discards the local state.
    fn begin_anew(&mut self) {
        if self.serving.forget() == Progress::Pending {
            self.queue.push(Pending::Install);
        }
        self.held_epoch = 0;
        self.journal.reset(self.setup.guards);
        self.copy.begin_anew();
        self.streams.close_receiver();
        self.applied = Applied::default();
        self.stand_at(LogEnd::default(), Seq::NONE, 0);
        self.count.copies_begun += 1;
    }

    fn stand_at(&mut self, end: LogEnd, last_seq: Seq, last_now_ms: u64) {
        self.ordered.reset(end, last_seq, last_now_ms);
        self.submitted = end;
        self.executed = Position(end.position);
        self.committed = Position(0);
    }

    /// The copy is useless, and restarts.
    pub(super) fn invalidate_copy(&mut self) {
        self.copy.invalidate();
        self.streams.close_receiver();
    }

    fn is_from_donor(&self, epoch: Epoch, from: NodeId) -> bool {
        self.phase == Phase::Joining
            && self.role.is_epoch(epoch)
            && self.role.reader().is_some_and(|m| m.node == from.0)
    }

    /// The donor continues from the end of our log.
    pub(super) fn on_resumed(
        &mut self,
        now: Now,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        sink: &mut impl Sink,
    ) {
        if !self.is_from_donor(epoch, from) || !self.copy.is_resumed(attempt) {
            return;
        }
        self.count.copies_resumed += 1;
        self.begin_stream(now, from);
        if !self.copy.holds() {
            // This replica held these back as a member (CRAQ).
            self.follow_log(self.ordered.end(), sink);
        }
        self.keep_joining(now, sink);
    }

    fn begin_stream(&mut self, now: Now, donor: NodeId) {
        self.copy.begin_stream();
        let receiver = Receiver::new(donor, self.copy.attempt());
        self.streams.receive(now.instant, Some(receiver));
    }

    /// The log does not match the sender's, or is too short for it: a joining replica restarts its
    /// copy, a member leaves. That may be said by the sender of its stream or, to a head, by a
    /// member of which it asked for records.
    pub(super) fn on_log_mismatch_message(
        &mut self,
        now: Now,
        epoch: Epoch,
        from: NodeId,
        attempt: u64,
    ) {
        let is_own = attempt == self.copy.attempt();
        match self.phase {
            Phase::Joining if self.is_from_donor(epoch, from) && is_own => {
                self.invalidate_copy();
                self.next_retry = now.instant;
            }
            // A head is told so after it asked for a record, which it may have received from
            // another member since.
            Phase::Opening | Phase::Open
                if self.role.is_head() && !self.opening.lacks(self.ordered.end()) => {}
            Phase::Opening | Phase::Open
                if self.role.is_epoch(epoch) && self.may_say_apart(from) =>
            {
                self.fail_stop_diverged();
            }
            Phase::Joining | Phase::Opening | Phase::Open | Phase::Out | Phase::Left => {}
        }
    }

    fn may_say_apart(&self, from: NodeId) -> bool {
        match self.role.predecessor() {
            Some(predecessor) => predecessor == from,
            None => self.role.others().any(|m| m.node == from.0),
        }
    }

    /// Takes a fragment of a part.
    pub(super) fn on_copy_piece(
        &mut self,
        now: Now,
        epoch: Epoch,
        part: (u64, u64),
        hdr: FragmentHdr,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        // Parts wait for the disk as records do: those that it cannot keep up with are asked for
        // again.
        let is_late = self.journal.is_late(self.setup.guards);
        if self.phase != Phase::Joining || !self.role.is_epoch(epoch) || is_late {
            return;
        }
        match self.copy.take(part, hdr, piece) {
            Piece::Last => self.try_install(now, sink),
            Piece::LastAsked => self.keep_joining(now, sink),
            Piece::OfMany => {}
            // For parts that can be made again this is never said.
            Piece::Gone if self.copy.has_pieces() => {
                self.invalidate_copy();
                self.next_retry = now.instant;
            }
            Piece::Gone => {}
        }
    }

    /// Installs the received part, once the records before it have arrived too.
    fn try_install(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(part) = self.copy.ready(self.ordered.end()) else { return };
        let installed = match part {
            Ready::Table(position, bytes) => self.join_table(now, position, &bytes),
            Ready::Objects(position, bytes) => self.join_objects(position, &bytes, sink),
            Ready::Results(bytes) => self.join_results(&bytes),
        };
        match installed {
            Some(()) => self.keep_joining(now, sink),
            None => self.invalidate_copy(),
        }
    }

    fn join_table(&mut self, now: Now, position: Position, bytes: &[u8]) -> Option<()> {
        let end = self.install_table(now, position, bytes)?;
        self.journal.copied(&part(end, PART_TABLE, bytes));
        let donor = self.role.reader().map(|m| NodeId(m.node))?;
        self.begin_stream(now, donor);
        Some(())
    }

    fn join_objects(
        &mut self,
        position: Position,
        chunk: &[u8],
        sink: &mut impl Sink,
    ) -> Option<()> {
        let (mut number, _) = part_of(self.copy.wanted().unwrap_or_default());
        if is_early(chunk) {
            self.install_early(position, chunk, sink)?;
            number = PART_EARLY;
        } else {
            self.install_objects(position, chunk, sink)?;
        }
        let end = LogEnd { position: position.0, hash: 0 };
        self.journal.copied(&part(end, number, chunk));
        // After a chunk another part may come that is as of before the next record.
        if !self.copy.holds() {
            self.follow_log(self.ordered.end(), sink);
        }
        Some(())
    }

    fn join_results(&mut self, bytes: &[u8]) -> Option<()> {
        self.install_results(bytes)?;
        self.journal.copied(&part(self.ordered.log.end(), PART_RESULTS, bytes));
        Some(())
    }

    /// Installs the client table as of `position`, from which the log continues.
    pub(super) fn install_table(
        &mut self,
        now: Now,
        position: Position,
        bytes: &[u8],
    ) -> Option<LogEnd> {
        let (hash, table) = Table::parse(bytes)?;
        let end = LogEnd { position: position.0, hash };
        self.stand_at(end, Seq::from_u64(table.last_seq), table.last_now_ms);
        self.ordered.clock.note(table.last_now_ms, now.unix_ms);
        self.serving.sessions.restore(table.sessions);
        self.copy.has_table();
        Some(end)
    }

    pub(super) fn install_objects(
        &mut self,
        position: Position,
        chunk: &[u8],
        sink: &mut impl Sink,
    ) -> Option<()> {
        let reached = self.copy.behind(next_place(chunk).ok()?, continues(chunk))?;
        // Pieces are as of where the first one was.
        if !continues(chunk) {
            self.follow_log(position, sink);
            // What is here may be of no use by now.
            if self.submitted.position != position.0 || self.copy.is_stale() {
                return None;
            }
        }
        if self.serving.engine.install(chunk).ok()? == Progress::Pending {
            self.queue.push(Pending::Install);
        }
        self.count.chunks_installed += 1;
        // Trap T4: it is not known which writes the objects have seen; none is newer than this.
        if self.copy.has_objects(reached) && self.setup.guards.on(Guard::Floor) {
            self.applied.note_all(self.ordered.last_seq, position);
        }
        Some(())
    }

    /// Installs keys that were copied early, before the record after `position`.
    pub(super) fn install_early(
        &mut self,
        position: Position,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Option<()> {
        let early = parse(bytes)?;
        let reached = self.copy.behind_early(next_place(early.chunk).ok()?)?;
        self.follow_log(position, sink);
        if self.submitted.position != position.0 || self.copy.is_stale() {
            return None;
        }
        if self.serving.engine.install(early.chunk).ok()? == Progress::Pending {
            self.queue.push(Pending::Install);
        }
        self.copy.has_early(&early, reached);
        Some(())
    }

    pub(super) fn install_results(&mut self, bytes: &[u8]) -> Option<()> {
        let saved: SavedSessions = postcard::from_bytes(bytes).ok()?;
        self.serving.sessions.learn(&saved);
        self.copy.has_results();
        self.count.copies_whole += 1;
        Some(())
    }

    /// Executes the records in the log up to `position`.
    pub(super) fn follow_log(&mut self, position: Position, sink: &mut impl Sink) {
        // Pieces of objects are as of before the next record.
        while self.submitted.position < position.0 && !self.copy.has_pieces() {
            let next = Position(self.submitted.position + 1);
            let Some(bytes) = self.ordered.log.record(next).map(Vec::from) else { return };
            let Ok(record) = Record::parse(&bytes) else { return };
            self.follow(&record, sink);
            if self.copy.is_stale() {
                return;
            }
        }
    }

    /// A record has arrived and is in the log. Returns whether it is to be executed now.
    pub(super) fn joins_record(&mut self, now: Now, sink: &mut impl Sink) -> bool {
        if !self.copy.holds() {
            return true;
        }
        let limits = self.setup.limits.beside_pieces(self.copy.has_pieces());
        if self.ordered.log.is_full(&limits) {
            self.invalidate_copy();
        } else {
            self.try_install(now, sink);
        }
        false
    }

    /// Whether it may be made a member.
    pub(super) fn is_copied(&self) -> bool {
        self.queue.is_empty() && self.copy.is_done(self.executed)
    }
}
