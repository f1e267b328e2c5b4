//! Scripts that do not end, where the engine is a server of its own.
//!
//! A script that runs for too long is stopped, and whether it was must be the same at all replicas. The
//! leader decides: it tells nobody that a script is committed before it has executed it. If its engine
//! had to stop the script, the leader has a record written (`CONCORD.VOID position`), which makes the
//! script void for all who come to it; they hear that both are committed together. A leader whose
//! engine is lost to a script that cannot be stopped does the same before it leaves.
//!
//! A follower whose engine stops a script that its leader has executed leaves: it is slower by far.

use alloc::collections::{BTreeSet, VecDeque};

use concord_core::{Duration, Instant, MS, Now, Position};
use concord_engine::redis::STOPPED_REPLY;
use concord_engine::{Command, CommandBuf, Engine, resp};
use concord_wire::record::Record;
use concord_wire::{Flags, Op, Repr, Sink};

use super::execute::Pending;
use super::{Stage, Vr};
use crate::turn::Turn;

/// The internal write that makes the script at a position void.
const VOID_COMMAND: &[u8] = b"CONCORD.VOID";
/// How long a leader whose engine is lost waits for that record, and for the others to hear of it.
const LAST_WORD_NS: Duration = 2_000 * MS;
const TOLD_NS: Duration = 100 * MS;
/// Most scripts of which is known that they were void.
const VOIDED_MAX: usize = 1_024;

/// Scripts that are not decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Scripts {
    /// Given to the engine as the leader and not executed, oldest first.
    running: VecDeque<Position>,
    /// The oldest of them: it was stopped, or took the engine with it. First of what is pending.
    stopped: Option<Turn>,
    /// Scripts that are void, not executed here yet.
    void: BTreeSet<Position>,
    /// The latest that were void here, since the same may be said again.
    voided: BTreeSet<Position>,
    /// Up to there the state is a copy of another member's.
    copied: Position,
    /// Up to there the log was searched for what is void.
    searched: Position,
    /// The engine is lost to a script: when to leave.
    leave_at: Option<Instant>,
}

impl Scripts {
    /// Whether the oldest pending operation waits for a decision, not for the engine.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The state is a copy as of `position`; nothing is pending.
    pub(super) fn copied_up_to(position: Position) -> Scripts {
        Scripts { copied: position, searched: position, ..Scripts::default() }
    }

    /// The leader gave it to its engine, which has not answered.
    pub(super) fn started(&mut self, position: Position) {
        self.running.push_back(position);
    }

    /// Whether the script at `position`, which is about to be executed, is void.
    pub(super) fn is_void(&mut self, position: Position) -> bool {
        let is_void = self.void.contains(&position);
        if is_void {
            self.make_void(position);
        }
        is_void
    }

    fn make_void(&mut self, position: Position) {
        self.void.remove(&position);
        self.voided.insert(position);
        if self.voided.len() > VOIDED_MAX {
            self.voided.pop_first();
        }
        self.finished(position);
    }

    pub(super) fn finished(&mut self, position: Position) {
        if self.running.front() == Some(&position) {
            self.running.pop_front();
        }
    }
}

impl<E: Engine> Vr<E> {
    /// Up to where others are told that the log is committed.
    pub(super) fn commit_point(&self) -> Position {
        let undecided = self.scripts.running.front().map(|at| Position(at.0 - 1));
        undecided.map_or(self.committed, |before| before.min(self.committed))
    }

    /// The engine stopped the script of `turn`, or is lost to it.
    pub(super) fn script_stopped(&mut self, turn: Turn) {
        if self.scripts.running.front() == Some(&turn.position) {
            self.scripts.stopped = Some(turn);
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
        let mut at = self.scripts.searched.max(Position(self.ordered.log.base().position));
        while at < self.committed {
            at = Position(at.0 + 1);
            let record = self.ordered.log.record(at).and_then(|bytes| Record::parse(bytes).ok());
            let Some(position) = record.as_ref().and_then(void_of) else { continue };
            let is_stopped = self.scripts.stopped.is_some_and(|turn| turn.position == position);
            if is_stopped || position > self.submitted {
                self.scripts.void.insert(position);
            } else if position > self.scripts.copied && !self.scripts.voided.contains(&position) {
                // It ran to its end here, or is about to: a leader of which nobody had heard.
                return self.leave();
            }
        }
        self.scripts.searched = at;
        self.settle_stopped(now, sink);
    }

    /// The script that was stopped here is void for all: whoever asked gets the error.
    fn settle_stopped(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(turn) = self.scripts.stopped else { return };
        if !self.scripts.void.contains(&turn.position) {
            return;
        }
        self.scripts.stopped = None;
        self.scripts.make_void(turn.position);
        self.pending.pop_front();
        let turn = self.refused(turn, STOPPED_REPLY);
        self.finish(&turn, &[], sink);
        if self.scripts.leave_at.is_some() {
            self.scripts.leave_at = Some(now.instant.after(TOLD_NS));
        }
        self.engine_ready(now, sink);
    }

    /// Leader: asks for the record that makes void what was stopped.
    pub(super) fn say_void(&mut self, sink: &mut impl Sink) {
        let Some(turn) = self.scripts.stopped.filter(|_| self.is_leader()) else { return };
        let digits = [turn.position.0, self.view.0.into()].map(|n| alloc::format!("{n}"));
        let mut command = CommandBuf::new();
        let body = command.encode(0, [VOID_COMMAND, digits[0].as_bytes(), digits[1].as_bytes()]);
        let repr = Repr {
            flags: Flags::INTERNAL,
            client: self.setup.me.addr,
            node: self.node(),
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
            && self.scripts.stopped.is_some_and(|turn| turn.position <= heard)
    }

    /// The engine is lost: whether to stay a while, for a last word about the script that took it.
    pub(super) fn has_last_word(&mut self, now: Instant) -> bool {
        if !self.serving.engine.is_poisoned() || !self.is_leader() {
            return false;
        }
        if self.scripts.leave_at.is_none() {
            let Some(Pending::Write(turn)) = self.pending.front().copied() else { return false };
            if self.scripts.running.front() != Some(&turn.position) {
                return false;
            }
            self.scripts.stopped = Some(turn);
            self.scripts.leave_at = Some(now.after(LAST_WORD_NS));
        }
        self.scripts.leave_at.is_some_and(|at| now < at)
    }
}

/// Which script a record makes void: one before it, by the word of the leader of its view.
pub(super) fn void_of(record: &Record<'_>) -> Option<Position> {
    if !record.flags.has(Flags::INTERNAL) {
        return None;
    }
    let command = Command::parse(record.command).ok()?;
    if command.name() != VOID_COMMAND {
        return None;
    }
    let mut numbers = command.args().skip(1).map_while(resp::number);
    let position = Position(u64::try_from(numbers.next()?).ok()?);
    let view = u32::try_from(numbers.next()?).ok()?;
    (view == record.epoch.0 && position < record.position).then_some(position)
}
