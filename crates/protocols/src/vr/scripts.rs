//! Scripts that are not decided on ([`super::decide`]): which are running, which was stopped, which are void.

use alloc::collections::{BTreeSet, VecDeque};
use core::ops::RangeInclusive;

use concord_core::{Duration, Instant, MS, Position};
use concord_engine::{Command, resp};
use concord_wire::Flags;
use concord_wire::record::Record;

use crate::turn::Turn;

/// The internal write that makes the script at a position void.
pub(super) const VOID_COMMAND: &[u8] = b"CONCORD.VOID";
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

    /// Up to where others may be told that a log is committed whose commit point is that.
    pub(super) fn decided(&self, committed: Position) -> Position {
        let undecided = self.running.front().map(|at| Position(at.0 - 1));
        undecided.map_or(committed, |before| before.min(committed))
    }

    /// The engine stopped the script of `turn`. Whether that was the oldest one to decide on.
    pub(super) fn stop(&mut self, turn: Turn) -> bool {
        let is_first = self.running.front() == Some(&turn.position);
        if is_first {
            self.stopped = Some(turn);
        }
        is_first
    }

    /// The script that was stopped here, and is not decided on.
    pub(super) fn stopped(&self) -> Option<Turn> {
        self.stopped
    }

    /// The positions up to `committed` that were not searched for what is void, of a log that begins behind
    /// `base`.
    pub(super) fn unsearched(&self, base: Position, committed: Position) -> RangeInclusive<u64> {
        self.searched.max(base).0 + 1..=committed.0
    }

    /// They were searched.
    pub(super) fn searched_to(&mut self, committed: Position) {
        self.searched = self.searched.max(committed);
    }

    /// A record makes the script at `position` void, where all up to `submitted` was given to the engine.
    /// False if it was executed here as if it were not.
    pub(super) fn learn(&mut self, position: Position, submitted: Position) -> bool {
        let is_stopped = self.stopped.is_some_and(|turn| turn.position == position);
        if is_stopped || position > submitted {
            self.void.insert(position);
            return true;
        }
        position <= self.copied || self.voided.contains(&position)
    }

    /// The script that was stopped here, if it is void for all by now: it is decided on.
    pub(super) fn settle(&mut self) -> Option<Turn> {
        let turn = self.stopped.take_if(|turn| self.void.contains(&turn.position))?;
        self.make_void(turn.position);
        Some(turn)
    }

    /// All is said about the script that took the engine, if one did: the others hear of it, and then this
    /// replica leaves.
    pub(super) fn has_spoken(&mut self, now: Instant) {
        if self.leave_at.is_some() {
            self.leave_at = Some(now.after(TOLD_NS));
        }
    }

    /// The engine of a leader is lost, `first` being the write that it was at. Whether to stay a while, for a
    /// last word about the script that took it.
    pub(super) fn has_last_word(&mut self, now: Instant, first: Option<Turn>) -> bool {
        if self.leave_at.is_none() {
            let Some(turn) = first.filter(|t| self.running.front() == Some(&t.position)) else {
                return false;
            };
            self.stopped = Some(turn);
            self.leave_at = Some(now.after(LAST_WORD_NS));
        }
        self.leave_at.is_some_and(|at| now < at)
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
