//! The disk's completions, and the messages that they release (trap T7).
//!
//! A follower acknowledges what its disk has, and the leader counts itself by that: so what is
//! committed is on the disks of a quorum. What a replica promises by its view, and the newest lives
//! that it knows, stand on its disk before anything leaves it that comes of them: until then all
//! that it says is held back. That costs a sync at a view change, and nothing in between.

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

/// Most packets that are held back while a promise is on its way to the disk, which may hang.
pub(super) const HELD_PACKETS_MAX: usize = 1_024;

impl<E: Engine> QuorumReplica<E> {
    /// Takes one datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        // What a client says changes nothing that is promised.
        if !self.journal.is_on() || (is_of_client(bytes) && self.may_speak()) {
            return self.take_packet(now, bytes, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_packet(now, bytes, &mut held);
        self.speak(held, sink);
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.journal.is_on() {
            return self.take_time(now, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_time(now, &mut held);
        self.speak(held, sink);
    }

    /// The end of a batch of packets: what piled up goes out once. What the batch promises, by what
    /// the engine answered too, is given to the disk before anything of it is said.
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
        // It may enter another term, of which nobody is to hear before that is on the disk.
        let mut held = core::mem::take(&mut self.held);
        self.mind_voters(now, &mut held);
        self.speak(held, sink);
        self.journal.commit(self.commit_point());
        self.take_snapshot();
    }

    /// Takes what the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        if self.may_speak() {
            return self.take_done(now, sink);
        }
        let mut held = core::mem::take(&mut self.held);
        self.take_done(now, &mut held);
        self.held = held;
    }

    /// What is to be written to the disk, if the batch before is durable: then call
    /// [`QuorumReplica::persisted`].
    pub fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        self.journal.poll(self.ordered.end())
    }

    /// What was handed out is durable. What comes of that is said at the end of the batch.
    pub fn persisted(&mut self, _now: Now, number: u64, sink: &mut impl Sink) {
        let _ = self.journal.persisted(number);
        if self.may_speak() {
            let held = core::mem::take(&mut self.held);
            self.speak(held, sink);
        }
    }

    /// What was handed out is written, and of no more use: its memory is.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        self.journal.reuse(batch);
    }

    /// Whether the disk has room, as it is found now.
    pub fn disk_room(&mut self, is_short: bool) {
        self.journal.set_short(is_short);
    }

    /// Leader: whether it refuses writes, since its own disk has no room, or so many others' that
    /// the rest is no quorum.
    pub(super) fn refuses_writes(&self) -> bool {
        let voting = self.leading.followers.iter().enumerate();
        let voting = voting.filter(|(index, _)| self.group.is_voter(*index));
        let others = voting.filter_map(|(_, f)| f.sender.as_ref());
        let short = others.filter(|sender| sender.is_short).count();
        let is_short =
            self.journal.is_short() || self.group.voter_count() - short < self.group.quorum();
        is_short && self.setup.guards.on(Guard::DiskRoom)
    }

    /// The process ends in order: what [`QuorumReplica::poll_persist`] gives now is the last.
    pub fn close(&mut self) {
        self.journal.close();
    }

    /// What stands on the disk is damaged: another snapshot takes the place of all before.
    pub fn renew_snapshot(&mut self) {
        self.journal.renew();
    }

    /// The disk failed, for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        self.journal.die();
        self.held.clear();
        self.fail_stop();
    }

    /// Whether all that was promised is durable.
    fn may_speak(&self) -> bool {
        self.journal.has_promised() || !self.setup.guards.on(Guard::DurableView)
    }

    /// Says what is held back, if all that was promised is durable by now.
    fn speak(&mut self, mut held: Vec<(Addr, Vec<u8>)>, sink: &mut impl Sink) {
        self.promise();
        if self.may_speak() {
            for (to, packet) in held.drain(..) {
                sink.send(to, &packet);
            }
        }
        // All of it is said again by time-outs; what is oldest is of least use.
        let surplus = held.len().saturating_sub(HELD_PACKETS_MAX);
        held.drain(..surplus);
        self.held = held;
    }

    /// Has the disk remember what this replica promises. One that has lost what it had promised has
    /// nothing to remember before it has recovered.
    pub(super) fn promise(&mut self) {
        if self.recovery.is_from_nothing() && self.journal.is_owed() {
            // What is there of its promises says how new its log is, should the others be lost.
            return;
        }
        let config = self.group.config.as_ref().filter(|_| self.stage != Stage::Out);
        let is_here = config.is_some() && !self.recovery.is_from_nothing();
        // NOPaxos' floor. In Raft of a copy: whether a configuration was in the log that was given
        // up.
        let floor = match &self.copying {
            Some(copying) if self.group.elects() => copying.floor.position,
            _ => self.sequence.floor().to_u64(),
        };
        let view = is_here.then(|| ViewMarks {
            view: self.view.0,
            // What is here of a copy is the log of no view.
            last_normal: if self.copying.is_some() { 0 } else { self.last_normal.0 },
            switch: self.switch,
            floor,
            crash_vector: self.crash_vector.vector().to_vec(),
        });
        let vote = self.ballot.voted_for().filter(|_| is_here && self.group.elects());
        let vote = vote.map_or(0, |member| self.group.node_of(member).0);
        self.journal.promise(view, vote, config);
    }

    /// Follower: up to where the log is acknowledged.
    pub(super) fn acked(&self) -> Position {
        let durable = self.setup.guards.on(Guard::DurableAck).then(|| self.journal.durable());
        self.ordered.end().min(durable.unwrap_or(Position(u64::MAX)))
    }

    /// Leader: up to where it counts itself among those who have the log.
    pub(super) fn counted(&self) -> Position {
        let durable = self.setup.guards.on(Guard::DurableCommit).then(|| self.journal.durable());
        self.ordered.end().min(durable.unwrap_or(Position(u64::MAX)))
    }

    /// What is behind `position` in the log is given up.
    pub(super) fn cut_log(&mut self, position: u64) {
        if position < self.ordered.log.end().position {
            self.ordered.log.cut(position);
            self.group.voters.cut(Position(position));
            self.journal.cut(self.ordered.log.end(), self.setup.guards);
        }
    }

    /// Takes the next part of a snapshot, if one is due, or under way.
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

    /// A part of the own state is made.
    pub(super) fn snapshot_part(&mut self, number: u64, bytes: &[u8]) {
        let Some(position) = self.journal.part_position(number) else { return };
        let mut end = LogEnd { position: position.0, hash: 0 };
        match number {
            PART_TABLE => {
                // The hash is in the log now: everything before was executed.
                let Some(hash) = self.ordered.log.hash_at(position) else {
                    return self.journal.end_snapshot();
                };
                end.hash = hash;
                let table = bytes.get(HASH_BYTES..).unwrap_or_default();
                let bytes = [&hash.to_be_bytes()[..], table].concat();
                self.journal.end_part(end, &bytes, Some(0));
                // Whoever begins with this part needs all that follows it, also what stands before.
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
                // What was under way is gone: all keys are, or it was too long ago.
                Ok(_) | Err(_) => self.journal.end_snapshot(),
            },
        }
    }
}
