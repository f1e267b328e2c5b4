//! Normal operation (VRR §4.1) and the phase that Harmonia adds to it (Harmonia §8.3).
//!
//! The leader logs a write and streams it (PREPARE). A follower acknowledges the end of its log
//! (PREPARE-OK) and, in the same packet, the last record it has executed (COMMIT-ACK). A write is
//! committed once a quorum has it: the leader executes it and answers. The commit point travels
//! with the next PREPARE, or as a COMMIT if there is none soon. Once a quorum has executed a write,
//! it completes at the switch. Writes are pipelined: the stream's window, not the commit, bounds
//! the writes in flight.
//!
//! PREPARE is a [`Data`] packet, PREPARE-OK with COMMIT-ACK an [`Ack`] (`applied`, `committed`),
//! and COMMIT an [`Ack`] of the leader: `applied` is its log's end, `committed` the commit point,
//! `stream` which stream it sends to that follower.

use alloc::vec::Vec;

use concord_core::{Duration, Guard, Instant, Now, Position, US, ViewNumber};
use concord_engine::{Command, Engine};
use concord_wire::control::Config;
use concord_wire::fragment::FragmentHdr;
use concord_wire::link::{Ack, Data};
use concord_wire::nopaxos::Stamp;
use concord_wire::record::Record;
use concord_wire::{Flags, GroupId, Op, Packet, Repr, Sink, Status, WireError};

use super::follower::Follower;
use super::{QuorumReplica, Stage};
use crate::link::{Arrival, BrokenStream};
use crate::ordered::{Fit, Room};
use crate::pending::RequestHeader;
use crate::setup::ALIVE_NS;

/// The time for which a commit point waits for a PREPARE to carry it (Harmonia §8.3, footnote 3).
const COMMIT_DELAY_NS: Duration = 100 * US;
/// NOPaxos: the interval at which the replicas synchronise while there are writes.
const SYNC_NS: Duration = 1_000 * US;
/// The largest total size of records kept for members that lag, in bytes; a member that lacks older
/// ones copies the state.
const KEPT_BYTES_MAX: usize = 128 << 20;

impl<E: Engine> QuorumReplica<E> {
    /// Leader: gives a write its position. A write that cannot be ordered is dropped; its client
    /// sends it again, and it gets a new number. Every sequenced write becomes a record, also a
    /// retry or a malformed one (trap T14): the client table decides when it is executed.
    pub(super) fn on_write(&mut self, now: Now, repr: &Repr, body: &[u8]) {
        if !self.is_leader() {
            self.count.writes_not_head += 1;
            return;
        }
        let Some(room) = self.room() else {
            self.count.writes_log_full += 1;
            return;
        };
        let guards = self.setup.guards;
        if self.group.has_readers() {
            // The view accepts only the numbers of its own switch or session.
            let active = self.numbering();
            if !self.ordered.take_number(repr.seq, active, guards, &mut self.count) {
                return;
            }
        }
        let now_ms = self.ordered.stamp(now.unix_ms, self.is_timeless(), guards);
        self.order(room, now_ms, repr, body);
    }

    /// Leader: whether a write is a retry while an engine is at work on one operation, here or at
    /// members for which answers are withheld. Its client is told so.
    pub(super) fn puts_off(&mut self, now: Now, repr: &Repr, sink: &mut impl Sink) -> bool {
        if !self.is_leader() {
            return false;
        }
        let senders = self.leading.followers.iter().filter_map(|f| f.sender.as_ref());
        let others = senders.filter_map(|sender| sender.at_work_since).min();
        let others = others.filter(|_| !self.withheld.is_empty());
        let Some(works_ns) = self.serving.works_for(now.instant, others) else { return false };
        let from = (self.epoch(), Op::WriteReply);
        self.serving.puts_off(works_ns, repr, from, &mut self.count, sink)
    }

    /// Permission to append a record of this leader, or of the switch ([`Ordered::room`]).
    ///
    /// [`Ordered::room`]: crate::ordered::Ordered::room
    pub(super) fn room(&self) -> Option<Room> {
        self.ordered.room(&self.setup.limits, self.setup.guards, &self.journal)
    }

    /// Whether no key has a time to live, and no record of the log may set one.
    pub(super) fn is_timeless(&self) -> bool {
        self.serving.is_timeless()
            && self.pending.is_empty()
            && self.executed.0 == self.ordered.log.end().position
    }

    /// Logs a write at the next position, with the time stamp `now_ms` of the node that ordered it.
    pub(super) fn order(&mut self, room: Room, now_ms: u64, repr: &Repr, body: &[u8]) {
        self.order_with(room, now_ms, repr, (body, &[]));
    }

    /// Logs a write as [`Self::order`] does, with `reply` in its record.
    pub(super) fn order_with(
        &mut self,
        room: Room,
        now_ms: u64,
        repr: &Repr,
        (body, reply): (&[u8], &[u8]),
    ) {
        // Under NOPaxos the switch refuses it in the leader's name.
        let is_sequenced = self.group.is_sequenced();
        let is_short = || match is_sequenced {
            true => repr.flags.has(Flags::DISK_FULL),
            false => self.refuses_writes(),
        };
        let flags = repr.flags.refused_if(is_short());
        let staged;
        let (command, refused) = match self.staged(repr, body) {
            // Only the refusal is logged.
            _ if flags.has(Flags::DISK_FULL) => (&[][..], Status::Ok),
            Ok(None) => (body, Status::Ok),
            Ok(Some(body)) => {
                staged = body;
                (&staged[..], Status::Ok)
            }
            Err(status) => (&[][..], status),
        };
        let position = Position(self.ordered.log.end().position + 1);
        self.serving.on_ordered(repr, position);
        self.ordered.last_now_ms = now_ms;
        if is_sequenced {
            self.ordered.clock.note(now_ms, self.local_ms);
        }
        let is_full = match is_sequenced {
            true => repr.flags.has(Flags::MEMORY_FULL),
            false => self.serving.engine.is_full(),
        };
        let flags = flags.set(Flags::MEMORY_FULL, is_full);
        let asked = RequestHeader { flags, ..RequestHeader::of(repr, now_ms) };
        let at = (position, self.epoch());
        self.ordered.append(room, &asked.record(at, repr.further, refused, command, reply));
        self.journal.record(self.ordered.log.last());
        self.ordered.last_seq = self.ordered.last_seq.max(repr.seq);
        if repr.flags.has(Flags::BODY_STAGED) {
            self.leading.stage_up_to(self.ordered.end());
        }
        self.count.writes_ordered += 1;
    }

    /// The staged body that a write names; `None` if its command is in the packet.
    fn staged(&mut self, repr: &Repr, body: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        if repr.has_no_command() {
            return Ok(None);
        }
        if !repr.flags.has(Flags::BODY_STAGED) {
            return Command::parse(body).map(|_| None).map_err(|_| Status::Malformed);
        }
        if repr.flags.has(Flags::INTERNAL) {
            return self.serving.own_body(repr, body).map(Some).ok_or(Status::BodyMissing);
        }
        let (hdr, _) = FragmentHdr::parse(body).map_err(|_| Status::Malformed)?;
        let staged = self.serving.take_staged(repr, hdr.version).ok_or(Status::BodyMissing)?;
        match Command::parse(&staged) {
            Ok(_) => Ok(Some(staged)),
            Err(_) => Err(Status::Malformed),
        }
    }

    /// Stages a fragment of a body, which precedes its write (trap T17).
    pub(super) fn on_wrest(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        if !self.is_leader() {
            self.count.writes_not_head += 1;
            return Ok(());
        }
        let in_force = self.in_force();
        self.serving.stage(now, packet, in_force, &mut self.count, sink)
    }

    /// Handles a PREPARE, or a piece of a log that is being fetched.
    pub(super) fn on_data(&mut self, now: Now, data: &Data<'_>, sink: &mut impl Sink) {
        let of_view = data.epoch == self.epoch();
        if !of_view && !self.setup.guards.on(Guard::View) {
            return self.on_record(now, data.piece, sink);
        }
        if !of_view || !self.inbound.expects(data) {
            self.count.link_dropped += 1;
            return;
        }
        self.hear_leader(now, data.from);
        self.inbound.see(data.stream);
        let takes = self.stage == Stage::Normal || self.copying.is_some();
        let is_full = self.stage == Stage::Normal && self.takes_no_more();
        // A log that is fetched for a view has the usual bound, and the view waits for the disk.
        if is_full || (takes && self.journal.is_late(self.setup.guards)) {
            // The engine or the disk cannot keep up: records that are not accepted are not
            // acknowledged.
            self.count.writes_log_full += 1;
            self.learn_committed(now, data.committed, sink);
            return self.trim();
        }
        let Some(mut receiver) = self.inbound.take_receiver() else { return };
        let arrival = receiver.take(data, |record| {
            self.take_record(now, record, sink)?;
            Ok(true)
        });
        match arrival {
            Ok(Arrival::Held) => self.count.link_held += 1,
            Ok(Arrival::Dropped) => self.count.link_dropped += 1,
            Ok(Arrival::InOrder) | Err(BrokenStream) => {}
        }
        // A new leader's fetch ends when its view begins; a log that is given up is fetched again.
        if !self.is_leader() {
            self.inbound.put_receiver(receiver);
        }
        if arrival.is_err() && self.inbound.is_open() {
            self.follow(sink);
        }
        if self.group.is_sequenced() {
            self.take_early(now.instant);
        }
        self.learn_committed(now, data.committed, sink);
    }

    /// Appends the next record of the leader's log.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), BrokenStream> {
        let record = Record::parse(bytes).map_err(|_| BrokenStream)?;
        match self.ordered.fit(&record, bytes) {
            Fit::Known => return Ok(()),
            Fit::Gap | Fit::Mismatch => return Err(BrokenStream),
            Fit::Next => {}
        }
        self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
        self.ordered.take(Room::admitted(), &record, bytes, self.local_ms);
        self.journal.record(Some(bytes));
        self.note_voters(&record);
        if self.has_follower_leases() {
            self.group_leases.revoke(&record);
        }
        Ok(())
    }

    /// Only without [`Guard::View`]: appends a record of any view.
    fn on_record(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        let Ok(record) = Record::parse(bytes) else { return };
        if self.stage == Stage::Normal && record.position.0 == self.ordered.log.end().position + 1 {
            self.ordered.put(&record, bytes);
            self.journal.record(Some(bytes));
            self.learn_committed(now, self.heard_committed, sink);
        }
    }

    /// Handles an acknowledgement: from a follower PREPARE-OK and COMMIT-ACK, from the leader
    /// COMMIT, from a new leader the received part of the log that it fetches.
    pub(super) fn on_ack(&mut self, now: Now, ack: &Ack, sink: &mut impl Sink) {
        let Some(from) = self.group.index_of(ack.from) else {
            self.count.link_dropped += 1;
            return;
        };
        if !self.is_view(ViewNumber(ack.epoch.0)) {
            self.count.link_dropped += 1;
            if ack.epoch < self.epoch() {
                self.tell_term(from, sink);
            }
            return;
        }
        let is_stale = ack.entry != self.group.tag_of(self.crash_vector.of(from));
        if is_stale && self.setup.guards.on(Guard::CrashVector) {
            self.vr_count.stale_lives += 1;
        } else if self.is_leader() {
            self.on_prepare_ok(now, from, ack, sink);
        } else if self.stage == Stage::ViewChange {
            let (log, scratch) = (&self.ordered.log, &mut self.scratch);
            if let Some(sender) = self.helper.as_mut().filter(|s| s.stream == ack.stream) {
                sender.on_ack(now.instant, ack, log, self.committed, scratch, sink);
                let upto = Position(log.end().position);
                sender.pump(now.instant, log, upto, self.committed, scratch, sink);
            }
        } else if Some(from) == self.group.leader_of(self.view) {
            self.on_commit(now, ack, sink);
        }
    }

    fn on_commit(&mut self, now: Now, commit: &Ack, sink: &mut impl Sink) {
        self.hear_leader(now, commit.from);
        if self.inbound.see(commit.stream) {
            // The leader does not stream to this replica any more.
            self.vr_count.streams_restarted += 1;
            self.follow(sink);
        }
        self.learn_committed(now, commit.committed, sink);
        self.trim();
    }

    fn on_prepare_ok(&mut self, now: Now, from: usize, ack: &Ack, sink: &mut impl Sink) {
        let told = self.commit_point();
        let view_start = self.leading.view_start();
        let Some(follower) = self.leading.followers.get_mut(from) else { return };
        let joins = follower.acked < view_start && ack.applied >= view_start;
        follower.heard_at = Some(now.instant);
        follower.acked = follower.acked.max(ack.applied);
        follower.executed = follower.executed.max(ack.committed);
        self.session.note_queue(from, ack.queue);
        if let Some(sender) = follower.sender.as_mut().filter(|s| s.stream == ack.stream) {
            let (log, scratch) = (&self.ordered.log, &mut self.scratch);
            let before = sender.resent;
            sender.on_ack(now.instant, ack, log, told, scratch, sink);
            self.count.link_resent += sender.resent - before;
        }
        // An acknowledgement of an earlier stream may be older than the copy.
        let is_late = follower.sender.as_ref().is_some_and(|s| s.stream != ack.stream);
        if ack.applied.0 > 0 && !is_late {
            self.end_feed(from);
        }
        self.note_missed(now.instant);
        self.commit_acknowledged(now, sink);
        if joins && self.group.elects() && !self.is_leased(now.instant) {
            // The leader could not grant leases before this replica had the term's first record.
            self.request_leases(now, sink);
        }
    }

    /// VRR §4.1: an operation is committed once a quorum has it in its log, the leader included.
    pub(super) fn commit_acknowledged(&mut self, now: Now, sink: &mut impl Sink) {
        let (end, own_end) = (self.ordered.end(), self.counted());
        let me = self.group.me();
        if let Some(own) = self.leading.followers.get_mut(me) {
            own.acked = own_end;
        }
        let committed = self.leading.quorum_has(self.counted_quorum(), |f| f.acked).min(end);
        let committed = self.await_holders(now.instant, committed);
        if committed > self.committed && self.commits(committed) {
            self.committed = committed;
            self.execute_committed(now, sink);
        }
    }

    /// Follower: learns that the log is committed up to `committed`. Its own log is a prefix of the
    /// leader's as soon as its status is normal.
    pub(super) fn learn_committed(&mut self, now: Now, committed: Position, sink: &mut impl Sink) {
        self.heard_committed = self.heard_committed.max(committed);
        self.told_committed = self.told_committed.max(committed);
        let committed = self.heard_committed.min(self.ordered.end());
        if self.stage == Stage::Normal && committed > self.committed {
            self.committed = committed;
            self.execute_committed(now, sink);
        }
        if self.outlived_stop() {
            self.fail_stop();
        }
    }

    /// Truncates the log. The engine's state is the checkpoint; some records before it are kept for
    /// members that may need them.
    pub(super) fn trim(&mut self) {
        while self.ordered.log.base().position < self.executed.0
            && (self.ordered.log.len() > self.setup.records_kept
                || self.ordered.log.bytes() > KEPT_BYTES_MAX)
        {
            let first = Position(self.ordered.log.base().position + 1);
            let record = self.ordered.log.record(first).and_then(|bytes| Record::parse(bytes).ok());
            self.base_now_ms = record.as_ref().map_or(self.base_now_ms, |record| record.now_ms);
            self.base_term = self.term_at(first);
            self.ordered.log.truncate(first);
        }
        self.group.voters.forget_before(self.executed);
    }

    pub(super) fn end_batch(&mut self, now: Now, sink: &mut impl Sink) {
        self.local_ms = now.unix_ms;
        self.take_waiting(now.instant);
        let is_lost = self.serving.engine.lost() && !self.has_last_word(now.instant);
        if is_lost && self.stage != Stage::Left {
            self.fail_stop();
        }
        self.ask_log_ends(now, sink);
        if self.is_leader() {
            self.flush_leader(now, sink);
        } else if self.stage != Stage::Left {
            let is_told = self.group.is_sequenced() || self.journal.is_on();
            let end = (is_told && self.stage == Stage::Normal).then(|| self.acked());
            if self.inbound.owes_ack(self.executed, end) {
                self.send_ack(now.instant, sink);
            }
        }
    }

    fn flush_leader(&mut self, now: Now, sink: &mut impl Sink) {
        // A replica alone in its group commits its log by itself.
        self.commit_acknowledged(now, sink);
        if let Some(own) = self.leading.followers.get_mut(self.group.me()) {
            own.executed = self.executed;
        }
        self.give_answers(now, sink);
        self.confirm_reads(now, sink);
        self.send_completions(sink);
        if self.serving.has_more_expiries(self.executed) {
            self.expire(now, sink);
        }
        if self.leading.is_told_full() != self.serving.engine.is_full() {
            self.tell_stamp(sink);
        }
        let (end, told) = (self.ordered.end(), self.commit_point());
        for index in 0..self.leading.followers.len() {
            let upto = self.stream_upto(now.instant, index, end);
            let follower = &mut self.leading.followers[index];
            let Some(sender) = &mut follower.sender else { continue };
            let (log, scratch) = (&self.ordered.log, &mut self.scratch);
            sender.skip_to(follower.acked);
            if sender.first_needed() <= log.oldest() {
                // The follower learns by the next COMMIT that it has no stream, and asks for one.
                follower.sender = None;
                continue;
            }
            if sender.pump(now.instant, log, upto, told, scratch, sink) > 0 {
                follower.told_committed = told;
            }
        }
        let untold = self.leading.followers.iter().any(|f| self.lacks_commit(f));
        let delay_ns = match self.group.is_sequenced() {
            // Clients wait for the followers' work.
            _ if !self.withheld.is_empty() => 0,
            true => SYNC_NS,
            false => COMMIT_DELAY_NS,
        };
        if self.leading.is_commit_due(now.instant, untold, delay_ns) {
            self.send_commits(false, sink);
        }
        self.trim();
    }

    /// Sends full PREPAREs in the middle of a batch.
    pub(super) fn pump_full(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.is_leader() || self.group.is_sequenced() {
            return;
        }
        let (end, told) = (self.ordered.end(), self.commit_point());
        for follower in &mut self.leading.followers {
            let Some(sender) = &mut follower.sender else { continue };
            let (log, scratch) = (&self.ordered.log, &mut self.scratch);
            sender.skip_to(follower.acked);
            if sender.first_needed() > log.oldest()
                && sender.pump_full(now.instant, log, end, told, scratch, sink) > 0
            {
                follower.told_committed = told;
            }
        }
    }

    fn lacks_commit(&self, follower: &Follower) -> bool {
        follower.sender.is_some() && follower.told_committed < self.commit_point()
    }

    /// Sends a COMMIT to the followers that lack the commit point, or to all.
    fn send_commits(&mut self, all: bool, sink: &mut impl Sink) {
        for index in (0..self.leading.followers.len()).filter(|i| *i != self.group.me()) {
            let follower = &self.leading.followers[index];
            if !all && !self.lacks_commit(follower) {
                continue;
            }
            let commit = Ack {
                epoch: self.epoch(),
                from: self.group.node(),
                stream: follower.sender.as_ref().map_or(0, |s| s.stream),
                next: 0,
                held: 0,
                applied: self.ordered.end(),
                committed: self.commit_point(),
                entry: self.group.tag_of(self.crash_vector.mine()),
                is_short: false,
                is_at_work: false,
                queue: 0,
            };
            commit.emit(&mut self.scratch);
            sink.send(self.group.members()[index].addr, &self.scratch);
            self.leading.followers[index].told_committed = self.commit_point();
            self.vr_count.commits_sent += 1;
        }
    }

    /// Sends completions. Harmonia §8.3: a write completes once a quorum has executed it, so that
    /// most replicas can answer fast reads of it. One packet completes all numbers up to its own,
    /// which become stray in the dirty set (§6.2): in VR each is in the log before any higher one,
    /// or never will be.
    fn send_completions(&mut self, sink: &mut impl Sink) {
        let quorum = self.setup.guards.on(Guard::CommitAck);
        let executed = if quorum {
            self.leading.quorum_has(self.counted_quorum(), |f| f.executed)
        } else {
            self.executed
        };
        let last = self.leading.pop_completions(executed);
        let is_told = self.group.checks_replies();
        if let Some(completion) = last.filter(|c| c.seq.is_some() && !is_told) {
            let repr = Repr {
                obj_id: completion.obj_id,
                seq: completion.seq,
                epoch: self.epoch(),
                node: self.group.node(),
                ..Repr::new(Op::WriteCompletion)
            };
            repr.emit(&[], &mut self.scratch);
            sink.send(self.switch.addr, &self.scratch);
            self.vr_count.completions_sent += 1;
        }
    }

    /// Has expired keys deleted.
    fn expire(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.ordered.log.is_nearly_full(&self.setup.limits) {
            let ordered = (self.executed, self.ordered.last_now_ms);
            let in_force = self.in_force();
            self.serving.expire(now, ordered, in_force, &mut self.count, sink);
        }
    }

    pub(super) fn tick_leader(&mut self, now: Now, sink: &mut impl Sink) {
        let t = now.instant;
        if t >= self.next_beat {
            if !self.hears_quorum(t) && self.setup.guards.on(Guard::StepAside) {
                self.vr_count.stepped_aside += 1;
                if self.group.elects() {
                    return self.step_down(now);
                }
                return self.enter_view(now, self.next_view(1), sink);
            }
            self.next_beat = t.after(self.beat_ns());
            self.send_commits(true, sink);
        }
        if self.leading.is_switch_due(t, ALIVE_NS) {
            self.tell_switch(t, sink);
        }
        self.mind_session(now, sink);
        if self.serving.is_expiry_due(t) {
            self.expire(now, sink);
        }
        let has_room = !self.ordered.log.is_nearly_full(&self.setup.limits);
        let in_force = self.in_force();
        self.serving.compare(t, has_room, in_force, &mut self.count, sink);
    }

    /// Whether a quorum, with this replica, was heard recently. Otherwise nothing is committed, and
    /// followers that hear the leader do not suspect it. So the leader leaves the view, and they
    /// continue without it.
    fn hears_quorum(&self, now: Instant) -> bool {
        let lately = |at: Option<Instant>| at.is_some_and(|at| now.since(at) < self.suspect_ns());
        let others = self
            .leading
            .followers
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != self.group.me() && self.group.is_voter(*index));
        let heard = others.filter(|(_, f)| lately(f.heard_at) || lately(f.copied_at)).count();
        heard + self.group.own_vote() >= self.group.quorum()
            || lately(Some(self.suspicion.listens_since()))
    }

    pub(super) fn tick_senders(&mut self, now: Instant, sink: &mut impl Sink) {
        let told = self.commit_point();
        let senders = self.leading.followers.iter_mut().filter_map(|f| f.sender.as_mut());
        for sender in senders.chain(&mut self.helper) {
            let before = sender.resent;
            sender.tick(now, &self.ordered.log, told, &mut self.scratch, sink);
            self.count.link_resent += sender.resent - before;
        }
    }

    /// Leader: whether a member was heard recently, and stays.
    pub(super) fn is_live(&self, now: Instant, member: usize) -> bool {
        let follower = self.leading.followers.get(member).filter(|f| !f.retires);
        let heard_at = follower.and_then(|f| f.heard_at);
        heard_at.is_some_and(|at| now.since(at) < self.suspect_ns())
    }

    fn live_others(&self, now: Instant) -> impl Iterator<Item = usize> + '_ {
        let is_live = move |i: &usize| *i != self.group.me() && self.is_live(now, *i);
        let votes = move |i: &usize| self.group.is_voter(*i);
        (0..self.group.members().len()).filter(is_live).filter(votes)
    }

    /// Leader: the number of members in its view that have the log with which it began, with the
    /// leader.
    pub(super) fn begun(&self, now: Instant) -> usize {
        let view_start = self.leading.view_start();
        let has_begun = |i: &usize| self.leading.followers[*i].acked >= view_start;
        self.live_others(now).filter(has_begun).count() + 1
    }

    /// Sends the switch the leader, and the members that may answer fast reads: the leader and
    /// those that it has heard recently. The view is the epoch, so that the switch ignores a
    /// deposed leader.
    ///
    /// NOPaxos §3: all members get the writes, also those that have not entered the view yet: a
    /// write that is sent to the leader alone and lost is missing everywhere.
    pub(super) fn tell_switch(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.switch.id == 0 {
            return;
        }
        let mut members = alloc::vec![self.group.members()[self.group.me()]];
        members.extend(self.live_others(now).map(|i| self.group.members()[i]));
        let others = self.group.members().iter().filter(|_| self.group.is_sequenced());
        let joining = others.filter(|m| !members.contains(m)).copied().collect();
        let config = Config {
            epoch: self.view.0,
            group: self.group.config.as_ref().map_or(GroupId(0), |c| c.group),
            rack: self.group.config.as_ref().map_or(0, |c| c.rack),
            switch_id: self.switch.id,
            switch: self.switch.addr,
            switch_incarnation: self.switch.incarnation,
            kind: self.group.protocol().into(),
            program: self.group.program(),
            members,
            joining,
        };
        config.send(self.switch.addr, &mut self.scratch, sink);
        self.tell_stamp(sink);
    }

    /// Sends the switch the time that it stamps on the writes that it orders.
    fn tell_stamp(&mut self, sink: &mut impl Sink) {
        if !self.group.is_sequenced() {
            return;
        }
        self.leading.tell_full(self.serving.engine.is_full());
        // Before the first write of a switch the log's time may step to this node's clock without
        // effect, if no key has a time to live. Later a write that sets one may be in flight.
        let is_first = self.ordered.last_seq.switch_id.0 != self.switch.id && self.is_timeless();
        let own_ms = if is_first { self.local_ms } else { 0 };
        let stamp = Stamp {
            view: self.epoch(),
            from: self.group.node(),
            now_ms: self.ordered.clock.read(self.local_ms).max(own_ms),
            memory_full: self.leading.is_told_full(),
            disk_full: self.refuses_writes(),
        };
        stamp.emit(&mut self.scratch);
        sink.send(self.switch.addr, &self.scratch);
    }

    /// Sends PREPARE-OK and COMMIT-ACK, or acknowledges the received part of a log that is being
    /// fetched.
    pub(super) fn send_ack(&mut self, now: Instant, sink: &mut impl Sink) {
        let normal = self.stage == Stage::Normal;
        let acked = if normal { self.acked() } else { Position(0) };
        let (epoch, node, executed) = (self.epoch(), self.group.node(), self.executed);
        let Some((peer, ack)) = self.inbound.ack((epoch, node), acked, executed) else { return };
        let (entry, is_short) =
            (self.group.tag_of(self.crash_vector.mine()), self.journal.is_short());
        let is_at_work = self.serving.works_for(now, None).is_some();
        let queue = self.queue.tell();
        Ack { entry, is_short, is_at_work, queue, ..ack }.emit(&mut self.scratch);
        self.next_beat = now.after(self.beat_ns());
        if let Some(index) = self.group.index_of(peer) {
            sink.send(self.group.members()[index].addr, &self.scratch);
        }
    }
}
