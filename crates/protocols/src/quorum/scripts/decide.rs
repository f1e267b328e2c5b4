//! Scripts that do not end, where the engine is a server of its own.
//!
//! A script that runs for too long is stopped, and whether it was must be the same at all replicas.
//! The leader decides: it tells nobody that a script is committed before it has executed it. If its
//! engine had to stop the script, the leader has a record written (`CONCORD.VOID position`), which
//! makes the script void for all who come to it; they hear that both are committed together. A
//! leader whose engine is lost to a script that cannot be stopped does the same before it leaves.
//!
//! A follower whose engine stops a script that its leader has executed leaves: it is slower by far.
//!
//! That a script ran to its end stands in no record. A leader that has executed one and dies before
//! anybody heard of it may have a successor that makes it void. So nobody may see it before a
//! quorum has executed it, and so knows that it was decided:
//! - a leader withholds the answers to it, and to all that it executes behind it, until then;
//! - a follower refuses fast reads that are older than a script that it has executed: their
//!   last-committed point passes it when a quorum has executed it (Harmonia §8.3);
//! - what any vote for a view knows to be committed its leader does not make void, and leaves if it
//!   has to stop it. Any quorum of votes holds one of those who know of what was answered.

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

impl<E: Engine> QuorumReplica<E> {
    /// Up to where others are told that the log is committed.
    pub(in crate::quorum) fn commit_point(&self) -> Position {
        self.scripts.decided(self.committed)
    }

    /// The engine stopped the script of `operation`, or is lost to it.
    pub(in crate::quorum) fn script_stopped(&mut self, operation: PendingWrite) {
        if self.scripts.stop(operation) {
            self.pending.push_front(Pending::Write(operation));
        } else {
            self.fail_stop();
        }
    }

    /// Learns from what is committed by now which scripts are void.
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
                // It ran to its end here, or is about to: a leader of which nobody had heard.
                return self.fail_stop();
            }
        }
        self.scripts.searched_to(self.committed, self.executed);
        self.settle_stopped(now, sink);
    }

    /// The script that was stopped here is void for all: whoever asked gets the error.
    fn settle_stopped(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(operation) = self.scripts.settle() else { return };
        if self.scripts.is_leaving() && !self.next_word(now.instant) {
            self.scripts.has_spoken(now.instant);
        }
        let is_first = |first: &mut Pending| matches!(first, Pending::Write(at) if at.position == operation.position);
        if self.pending.pop_front_if(is_first).is_none() {
            // The engine, which is lost, had answers to give before it: the next leader answers.
            return;
        }
        let operation = self.refused(operation, STOPPED_REPLY);
        self.finish(&operation, &[], sink);
        // The engine may have nothing more to answer.
        self.finish_idle(sink);
        self.take_done(now, sink);
    }

    /// The script that an answer may have seen which is ready now, if it is withheld for that.
    pub(in crate::quorum) fn withholds(&self) -> Option<Position> {
        self.scripts
            .unknown()
            .filter(|_| self.is_leader() && self.setup.guards.on(Guard::ScriptKnown))
    }

    /// Whether an answer that would have been withheld while this replica led is not any more,
    /// since it does not lead: it is none for a client, as those that were ready by then.
    pub(in crate::quorum) fn was_withheld(&self) -> bool {
        let is_unknown = self.scripts.unknown().is_some();
        is_unknown && !self.is_leader() && self.setup.guards.on(Guard::ScriptKnown)
    }

    /// Leader: a quorum has executed some more: gives the answers that were withheld until then.
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

    /// Leader: asks for the record that makes void what was stopped.
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

    /// A later leader has executed what was stopped here.
    pub(in crate::quorum) fn outlived_stop(&self) -> bool {
        let heard = self.heard_committed;
        self.stage == Stage::Normal
            && !self.is_leader()
            && self.committed >= heard
            && self.scripts.stopped().is_some_and(|operation| operation.position <= heard)
    }

    /// This replica leads a view, and a leader between has executed what was stopped here: by any
    /// of the votes it is committed.
    pub(in crate::quorum) fn outlived_stop_as_leader(&self) -> bool {
        let settled = self.scripts.settled();
        self.scripts.stopped().is_some_and(|operation| operation.position <= settled)
    }

    /// The engine is lost: whether to stay a while, for last words about the scripts that may have
    /// taken it.
    pub(in crate::quorum) fn has_last_word(&mut self, now: Instant) -> bool {
        if !self.serving.engine.is_poisoned() || !self.is_leader() {
            return false;
        }
        if self.scripts.is_leaving() { self.scripts.stays(now) } else { self.next_word(now) }
    }

    /// Begins to say that the next script that may have taken the engine is void, if there is one.
    fn next_word(&mut self, now: Instant) -> bool {
        let suspect = self.scripts.suspect();
        let operation = self.pending.iter().find_map(|pending| match pending {
            Pending::Write(operation) if Some(operation.position) == suspect => Some(*operation),
            _ => None,
        });
        operation.inspect(|operation| self.scripts.has_last_word(now, *operation)).is_some()
    }
}
