//! Scripts that do not end, where the engine is a server of its own.
//!
//! A script that runs for too long is stopped, and whether it was must be the same at all replicas. The
//! leader decides: it tells nobody that a script is committed before it has executed it. If its engine
//! had to stop the script, the leader has a record written (`CONCORD.VOID position`), which makes the
//! script void for all who come to it; they hear that both are committed together. A leader whose
//! engine is lost to a script that cannot be stopped does the same before it leaves.
//!
//! A follower whose engine stops a script that its leader has executed leaves: it is slower by far.

use concord_core::{Instant, Now, Position};
use concord_engine::redis::STOPPED_REPLY;
use concord_engine::{CommandBuf, Engine};
use concord_wire::record::Record;
use concord_wire::{Flags, Op, Repr, Sink};

use super::queue::Pending;
use super::scripts::{VOID_COMMAND, void_of};
use super::{Stage, Vr};
use crate::turn::Turn;

impl<E: Engine> Vr<E> {
    /// Up to where others are told that the log is committed.
    pub(super) fn commit_point(&self) -> Position {
        self.scripts.decided(self.committed)
    }

    /// The engine stopped the script of `turn`, or is lost to it.
    pub(super) fn script_stopped(&mut self, turn: Turn) {
        if self.scripts.stop(turn) {
            self.pending.push_front(Pending::Write(turn));
        } else {
            self.leave();
        }
    }

    /// Learns from what is committed by now which scripts are void.
    pub(super) fn search_void(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.setup.replicate_replies {
            return;
        }
        let base = Position(self.ordered.log.base().position);
        for at in self.scripts.unsearched(base, self.committed) {
            let at = Position(at);
            let record = self.ordered.log.record(at).and_then(|bytes| Record::parse(bytes).ok());
            let Some(position) = record.as_ref().and_then(void_of) else { continue };
            if !self.scripts.learn(position, self.submitted) {
                // It ran to its end here, or is about to: a leader of which nobody had heard.
                return self.leave();
            }
        }
        self.scripts.searched_to(self.committed);
        self.settle_stopped(now, sink);
    }

    /// The script that was stopped here is void for all: whoever asked gets the error.
    fn settle_stopped(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(turn) = self.scripts.settle() else { return };
        self.pending.pop_front();
        let turn = self.refused(turn, STOPPED_REPLY);
        self.finish(&turn, &[], sink);
        self.scripts.has_spoken(now.instant);
        self.engine_ready(now, sink);
    }

    /// Leader: asks for the record that makes void what was stopped.
    pub(super) fn say_void(&mut self, sink: &mut impl Sink) {
        let Some(turn) = self.scripts.stopped().filter(|_| self.is_leader()) else { return };
        let digits = [turn.position.0, self.view.0.into()].map(|n| alloc::format!("{n}"));
        let mut command = CommandBuf::new();
        let body = command.encode(0, [VOID_COMMAND, digits[0].as_bytes(), digits[1].as_bytes()]);
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
    pub(super) fn outlived_stop(&self) -> bool {
        let heard = self.heard_committed;
        self.stage == Stage::Normal
            && !self.is_leader()
            && self.committed >= heard
            && self.scripts.stopped().is_some_and(|turn| turn.position <= heard)
    }

    /// The engine is lost: whether to stay a while, for a last word about the script that took it.
    pub(super) fn has_last_word(&mut self, now: Instant) -> bool {
        if !self.serving.engine.is_poisoned() || !self.is_leader() {
            return false;
        }
        let first = match self.pending.front() {
            Some(Pending::Write(turn)) => Some(*turn),
            Some(_) | None => None,
        };
        self.scripts.has_last_word(now, first)
    }
}
