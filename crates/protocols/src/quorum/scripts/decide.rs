//! Decisions on scripts that run for too long, if the engine is a server of its own.
//!
//! A script that runs for too long is stopped, and all replicas must agree on whether it was. The
//! leader decides: it does not announce the commit of a script before it has executed it. If its
//! engine had to stop the script, the leader logs a record (`CONCORD.VOID position`) that aborts
//! the script at all replicas, and announces both commits together. A leader whose engine is lost
//! to a script that cannot be stopped does the same before it leaves.
//!
//! A follower whose engine stops a script that its leader has executed leaves: it is far slower.
//!
//! No record says that a script ran to its end. If a leader executes one and dies before it has
//! announced that, its successor may abort the script. So no client may see the script's effect
//! before a quorum has executed it, and so knows the decision:
//! - until then a leader withholds the answers to the script, and to everything that it executes
//!   after it;
//! - a follower refuses fast reads whose last-committed point is before a script that it has
//!   executed: the point passes the script once a quorum has executed it (Harmonia §8.3);
//! - a new leader does not abort a script that any of its votes knows to be committed, and leaves
//!   if it has to stop it. Every quorum of votes has a member that knows the answered scripts.

use concord_core::{Guard, Instant, Now, Position};
use concord_engine::redis::STOPPED_REPLY;
use concord_engine::{CommandBuf, Engine};
use concord_wire::record::Record;
use concord_wire::{Flags, Op, Repr, Sink};

use crate::pending::PendingWrite;
use crate::quorum::queue::Pending;
use crate::quorum::scripts::decisions::{ABORT_COMMAND, aborted_by};
use crate::quorum::scripts::withheld::Ready;
use crate::quorum::{QuorumReplica, Stage};
use crate::serve::NO_REPLY;

impl<E: Engine> QuorumReplica<E> {
    /// The commit point that is announced to others.
    pub(in crate::quorum) fn commit_point(&self) -> Position {
        self.scripts.decided(self.committed)
    }

    /// Handles a script that the engine has stopped, or to which it is lost.
    pub(in crate::quorum) fn script_stopped(&mut self, operation: PendingWrite) {
        if self.scripts.stop(operation) {
            self.pending.push_front(Pending::Write(operation));
        } else {
            self.fail_stop();
        }
    }

    /// Finds the aborted scripts among the committed records.
    pub(in crate::quorum) fn search_aborted(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.setup.replicate_replies {
            return;
        }
        let base = Position(self.ordered.log.base().position);
        for at in self.scripts.unsearched(base, self.committed) {
            let at = Position(at);
            let record = self.ordered.log.record(at).and_then(|bytes| Record::parse(bytes).ok());
            let Some(aborted) = record.as_ref().and_then(aborted_by) else { continue };
            if !self.scripts.learn(aborted, at, self.submitted) {
                // The script ran to its end here, or is about to: this replica had followed a
                // leader without followers.
                return self.fail_stop();
            }
        }
        self.scripts.searched_to(self.committed, self.executed);
        self.settle_stopped(now, sink);
    }

    /// Finishes the script that was stopped here, once it is aborted for all: its client gets the
    /// error.
    fn settle_stopped(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(operation) = self.scripts.settle() else { return };
        if self.scripts.is_leaving() && !self.next_word(now.instant) {
            self.scripts.has_spoken(now.instant);
        }
        let is_first = |first: &mut Pending| matches!(first, Pending::Write(at) if at.position == operation.position);
        if self.pending.pop_front_if(is_first).is_none() {
            // The lost engine still owes earlier answers: the next leader gives them.
            return;
        }
        let operation = self.refused(operation, STOPPED_REPLY);
        self.finish(&operation, NO_REPLY, sink);
        // The engine may have no further answers.
        self.finish_idle(sink);
        self.take_done(now, sink);
    }

    /// The script whose effect an answer may show that is ready now; `None` if the answer need not
    /// be withheld.
    pub(in crate::quorum) fn withholds(&self) -> Option<Position> {
        self.scripts
            .unknown()
            .filter(|_| self.is_leader() && self.setup.guards.on(Guard::ScriptKnown))
    }

    /// Whether to drop an answer that was to be withheld, since this replica does not lead any
    /// more.
    pub(in crate::quorum) fn was_withheld(&self) -> bool {
        let is_unknown = self.scripts.unknown().is_some();
        is_unknown && !self.is_leader() && self.setup.guards.on(Guard::ScriptKnown)
    }

    /// Leader: sends the withheld answers up to the position that a quorum has executed.
    pub(in crate::quorum) fn give_answers(&mut self, now: Now, sink: &mut impl Sink) {
        if self.scripts.unknown().is_none() && self.withheld.is_empty() {
            return;
        }
        let executed = self.leading.quorum_has(self.counted_quorum(), |f| f.executed);
        self.scripts.know(executed);
        while let Some(answer) = self.withheld.pop(self.scripts.known()) {
            match answer {
                Ready::Write(operation) => self.emit_reply(&operation, sink),
                Ready::Read(operation, reply) => {
                    let in_force = self.in_force();
                    self.serving.answer(
                        now,
                        &operation,
                        (&reply, &[]),
                        in_force,
                        &mut self.count,
                        sink,
                    );
                }
            }
        }
    }

    /// Leader: sends the write that aborts the stopped script.
    pub(in crate::quorum) fn say_aborted(&mut self, sink: &mut impl Sink) {
        let Some(operation) = self.scripts.stopped().filter(|_| self.is_leader()) else { return };
        let digits = [operation.position.0, self.view.0.into()].map(|n| alloc::format!("{n}"));
        let mut command = CommandBuf::new();
        let body = command.encode(0, [ABORT_COMMAND, digits[0].as_bytes(), digits[1].as_bytes()]);
        let repr = Repr {
            flags: Flags::INTERNAL,
            client: self.setup.me.addr,
            node: self.group.node(),
            ..Repr::new(Op::Write)
        };
        repr.emit(body, &mut self.scratch);
        sink.send(self.switch.addr, &self.scratch);
    }

    /// Whether a later leader has executed the script that was stopped here.
    pub(in crate::quorum) fn outlived_stop(&self) -> bool {
        let heard = self.heard_committed;
        self.stage == Stage::Normal
            && !self.is_leader()
            && self.committed >= heard
            && self.scripts.stopped().is_some_and(|operation| operation.position <= heard)
    }

    /// Whether this replica leads, and an earlier leader has executed the script that was stopped
    /// here, since one of the votes knows it to be committed.
    pub(in crate::quorum) fn outlived_stop_as_leader(&self) -> bool {
        let settled = self.scripts.settled();
        self.scripts.stopped().is_some_and(|operation| operation.position <= settled)
    }

    /// Whether a replica with a lost engine stays a while, to abort the scripts that may have
    /// caused it.
    pub(in crate::quorum) fn has_last_word(&mut self, now: Instant) -> bool {
        if !self.serving.engine.is_poisoned() || !self.is_leader() {
            return false;
        }
        if self.scripts.is_leaving() { self.scripts.stays(now) } else { self.next_word(now) }
    }

    /// Begins to abort the next script that may have caused the loss of the engine, if there is
    /// one.
    fn next_word(&mut self, now: Instant) -> bool {
        let suspect = self.scripts.suspect();
        let operation = self.pending.iter().find_map(|pending| match pending {
            Pending::Write(operation) if Some(operation.position) == suspect => Some(*operation),
            _ => None,
        });
        operation.inspect(|operation| self.scripts.has_last_word(now, *operation)).is_some()
    }
}
