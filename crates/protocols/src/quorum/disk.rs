//! The disk's completions, and the messages that they release (trap T7).
//!
//! A follower acknowledges the records on its disk, and the leader counts itself in the same way,
//! so that committed records are on the disks of a quorum. A replica's promises for its view, and
//! the newest incarnations that it knows, are on its disk before any packet leaves that follows
//! from them; until then all its packets are held back. That costs a sync at a view change, and
//! nothing in between.

use alloc::vec::Vec;

use concord_core::machine::Persist;
use concord_core::{Guard, Now, Position};
use concord_engine::Engine;
use concord_engine::copy::{continues, next_place};
use concord_log::{Batch, ViewMarks};
use concord_wire::control::LogEnd;
use concord_wire::{Addr, Sink};

use super::input::is_of_client;
use super::{QuorumReplica, Stage};
use crate::parts::{HASH_BYTES, PART_RESULTS, PART_TABLE, is_rest};

/// The largest number of packets that are held back while a promise is being written to the disk,
/// which may hang.
pub(super) const HELD_PACKETS_MAX: usize = 1_024;

impl<E: Engine> QuorumReplica<E> {
    /// Handles a datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        // A client's packet changes no promise.
        if !self.journal.is_on() || (is_of_client(bytes) && self.may_speak()) {
            return self.take_packet(now, bytes, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_packet(now, bytes, &mut held);
        self.speak(held, sink);
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.journal.is_on() {
            return self.take_time(now, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_time(now, &mut held);
        self.speak(held, sink);
    }

    /// Ends a batch of packets: gathered messages are sent. Promises of the batch, also those that
    /// follow from the engine's answers, go to the disk before any message that depends on them.
    pub fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.journal.is_on() {
            self.promise();
        }
        if self.may_speak() {
            self.end_batch(now, sink);
        } else {
            let mut held = core::mem::take(&mut self.held);
            self.end_batch(now, &mut held);
            self.held = held;
        }
        if !self.journal.is_on() {
            return self.mind_voters(now, sink);
        }
        // The replica may enter another term, which has to be on the disk before anyone hears of
        // it.
        let mut held = core::mem::take(&mut self.held);
        self.mind_voters(now, &mut held);
        self.speak(held, sink);
        self.journal.commit(self.commit_point());
        self.take_snapshot();
    }

    /// Takes the operations that the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        if self.may_speak() {
            return self.take_done(now, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_done(now, &mut held);
        self.held = held;
    }

    /// The next batch for the disk, if the one before is durable. Call [`QuorumReplica::persisted`]
    /// once it is durable.
    pub fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        self.journal.poll(self.ordered.end())
    }

    /// Notes that a batch is durable. The messages that follow are sent at the end of the batch of
    /// packets.
    pub fn persisted(&mut self, _now: Now, number: u64, sink: &mut impl Sink) {
        let _ = self.journal.persisted(number);
        if self.may_speak() {
            let held = core::mem::take(&mut self.held);
            self.speak(held, sink);
        }
    }

    /// Takes a written batch back, to reuse its memory.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        self.journal.reuse(batch);
    }

    /// Notes whether the disk is short of room.
    pub fn disk_room(&mut self, is_short: bool) {
        self.journal.set_short(is_short);
    }

    /// Leader: whether it refuses writes, because its own disk has no room, or because the members
    /// with room are no quorum.
    pub(super) fn refuses_writes(&self) -> bool {
        let voting = self.leading.followers.iter().enumerate();
        let voting = voting.filter(|(index, _)| self.group.is_voter(*index));
        let others = voting.filter_map(|(_, f)| f.sender.as_ref());
        let short = others.filter(|sender| sender.is_short).count();
        let is_short =
            self.journal.is_short() || self.group.voter_count() - short < self.group.quorum();
        is_short && self.setup.guards.on(Guard::DiskRoom)
    }

    /// Prepares for a graceful end: the next [`QuorumReplica::poll_persist`] returns the last
    /// batch.
    pub fn close(&mut self) {
        self.journal.close();
    }

    /// Notes that the data on disk is damaged: a new snapshot replaces it.
    pub fn renew_snapshot(&mut self) {
        self.journal.renew();
    }

    /// Notes that the disk failed for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        self.journal.die();
        self.held.clear();
        self.fail_stop();
    }

    /// Whether all promises are durable.
    fn may_speak(&self) -> bool {
        self.journal.has_promised() || !self.setup.guards.on(Guard::DurableView)
    }

    /// Sends the packets that are held back, if all promises are durable.
    fn speak(&mut self, mut held: Vec<(Addr, Vec<u8>)>, sink: &mut impl Sink) {
        self.promise();
        if self.may_speak() {
            for (to, packet) in held.drain(..) {
                sink.send(to, &packet);
            }
        }
        // Time-outs repeat all of them, and the oldest are the least useful.
        let surplus = held.len().saturating_sub(HELD_PACKETS_MAX);
        held.drain(..surplus);
        self.held = held;
    }

    /// Gathers this replica's promises for the disk. A replica that has lost its promises has none
    /// before it has recovered.
    pub(super) fn promise(&mut self) {
        if self.recovery.is_from_nothing() && self.journal.is_owed() {
            // The promises on its disk say how new its log is, in case the others are lost.
            return;
        }
        let config = self.group.config.as_ref().filter(|_| self.stage != Stage::Out);
        let is_here = config.is_some() && !self.recovery.is_from_nothing();
        // NOPaxos: the floor. Raft, during a copy: whether the log that was given up had a
        // configuration.
        let floor = match &self.copying {
            Some(copying) if self.group.elects() => copying.floor.position,
            _ => self.sequence.floor().to_u64(),
        };
        let view = is_here.then(|| ViewMarks {
            view: self.view.0,
            // An incomplete copy is not the log of any view.
            last_normal: if self.copying.is_some() { 0 } else { self.last_normal.0 },
            switch: self.switch,
            floor,
            crash_vector: self.crash_vector.vector().to_vec(),
        });
        let vote = self.ballot.voted_for().filter(|_| is_here && self.group.elects());
        let vote = vote.map_or(0, |member| self.group.node_of(member).0);
        self.journal.promise(view, vote, config);
    }

    /// Follower: the position up to which it acknowledges the log.
    pub(super) fn acked(&self) -> Position {
        let durable = self.setup.guards.on(Guard::DurableAck).then(|| self.journal.durable());
        self.ordered.end().min(durable.unwrap_or(Position(u64::MAX)))
    }

    /// Leader: the position up to which it counts itself among the replicas that have the log.
    pub(super) fn counted(&self) -> Position {
        let durable = self.setup.guards.on(Guard::DurableCommit).then(|| self.journal.durable());
        self.ordered.end().min(durable.unwrap_or(Position(u64::MAX)))
    }

    /// Cuts the log after `position`.
    pub(super) fn cut_log(&mut self, position: u64) {
        if position < self.ordered.log.end().position {
            self.ordered.log.cut(position);
            self.group.voters.cut(Position(position));
            self.journal.cut(self.ordered.log.end(), self.setup.guards);
        }
    }

    /// Makes the next part of a snapshot, if one is due or in progress.
    fn take_snapshot(&mut self) {
        let is_fed = self.leading.followers.iter().any(|f| f.outgoing_copy.is_some());
        if self.journal.take_left_objects() && !is_fed {
            self.serving.engine.end_copy();
        }
        let is_ready = self.stage == Stage::Normal && self.copying.is_none();
        let Some(number) = self.journal.part_wanted().filter(|_| is_ready) else { return };
        if self.serving.engine.prepare_copy() {
            self.take_part(self.group.me(), number);
        }
    }

    /// Takes a finished part of this replica's state.
    pub(super) fn snapshot_part(&mut self, number: u64, bytes: &[u8]) {
        let Some(position) = self.journal.part_position(number) else { return };
        let mut end = LogEnd { position: position.0, hash: 0 };
        match number {
            PART_TABLE => {
                // The log has the hash: everything up to there was executed.
                let Some(hash) = self.ordered.log.hash_at(position) else {
                    return self.journal.end_snapshot();
                };
                end.hash = hash;
                let table = bytes.get(HASH_BYTES..).unwrap_or_default();
                let bytes = [&hash.to_be_bytes()[..], table].concat();
                self.journal.end_part(end, &bytes, Some(0));
                // A state that begins with this part needs all records after its position, also
                // those already written.
                for behind in position.0 + 1..=self.ordered.end().0 {
                    self.journal.record(self.ordered.log.record(Position(behind)));
                }
            }
            PART_RESULTS => {
                self.journal.end_part(end, bytes, None);
                if self.leading.followers.iter().all(|f| f.outgoing_copy.is_none()) {
                    self.serving.engine.end_copy();
                }
            }
            _ => match next_place(bytes) {
                Ok(cursor) if continues(bytes) == is_rest(number) => {
                    self.journal.end_part(end, bytes, Some(cursor));
                    self.count.snapshots_refused = self.journal.refused();
                }
                // The unfinished objects were dropped: all keys were deleted, or too much time has
                // passed.
                Ok(_) | Err(_) => self.journal.end_snapshot(),
            },
        }
    }
}
