//! The state of undecided scripts ([`crate::quorum::scripts::decide`]): running, stopped and
//! aborted ones, and the position up to which they are known to have run to their end.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::ops::RangeInclusive;

use concord_core::{Duration, Instant, MS, Position, Seq, ViewNumber};
use concord_engine::{Command, resp};
use concord_wire::Flags;
use concord_wire::record::Record;

use crate::pending::PendingWrite;

/// The internal write that aborts the script at a position.
pub(in crate::quorum) const ABORT_COMMAND: &[u8] = b"CONCORD.VOID";
/// The time for which a leader with a lost engine waits for that record, and for the others to
/// learn of it.
const LAST_WORD_NS: Duration = 2_000 * MS;
const TOLD_NS: Duration = 100 * MS;
/// The largest number of aborted scripts that are remembered.
const VOIDED_MAX: usize = 1_024;

/// A script that the engine executes.
#[derive(Clone, Copy, Debug)]
struct Running {
    position: Position,
    /// Whether this replica decides on its outcome.
    decides: bool,
}

/// The undecided scripts.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Scripts {
    /// Scripts that the engine is executing, oldest first.
    running: VecDeque<Running>,
    /// The last script that was executed here.
    last: Position,
    /// The newest sequence number of a script that the engine got.
    newest: Seq,
    /// Leader: the position up to which a quorum has executed the log in this view.
    known: Position,
    /// Leader: the position up to which an earlier leader may have answered, so that no script
    /// there may be aborted.
    settled: Position,
    /// The oldest undecided script, if it was stopped or caused the loss of the engine. It is the
    /// first pending operation.
    stopped: Option<PendingWrite>,
    /// Aborted scripts that are not executed here yet.
    aborted: BTreeSet<Position>,
    /// The latest aborted scripts, since an abort may be repeated.
    settled_aborts: BTreeSet<Position>,
    /// The record that aborts each script, as long as not everything up to the record is executed
    /// here.
    words: BTreeMap<Position, Position>,
    /// The position up to which the state is a copy of another member's, and the view in which the
    /// copy began.
    copied: (Position, ViewNumber),
    /// The position up to which the log was searched for aborts.
    searched: Position,
    /// The time at which a replica with a lost engine leaves.
    fail_stop_at: Option<Instant>,
}

impl Scripts {
    /// Whether the oldest pending operation waits for a decision, not for the engine.
    pub(in crate::quorum) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Begins with a copied state as of `position`, without pending operations. For a server's
    /// state, which scripts may have changed: the view in which it was made, and its newest number.
    pub(in crate::quorum) fn copied_up_to(
        position: Position,
        of_server: Option<(ViewNumber, Seq)>,
    ) -> Scripts {
        let view = of_server.map_or(ViewNumber(0), |(view, _)| view);
        let mut scripts =
            Scripts { copied: (position, view), searched: position, ..Scripts::default() };
        if let Some((_, seq)) = of_server {
            scripts.note(position, seq);
        }
        scripts
    }

    /// Notes that the state, up to `position` and number `seq`, may show a script's effect.
    pub(in crate::quorum) fn note(&mut self, position: Position, seq: Seq) {
        self.last = self.last.max(position);
        self.newest = self.newest.max(seq);
    }

    /// Notes a script that the engine has begun; `decides` says whether this replica decides on its
    /// outcome.
    pub(in crate::quorum) fn started(&mut self, position: Position, seq: Seq, decides: bool) {
        self.newest = self.newest.max(seq);
        self.running.push_back(Running { position, decides });
    }

    /// Begins a view that this replica leads. By the votes, the log is committed up to `settled`,
    /// and may have been answered up to there.
    pub(in crate::quorum) fn begin_view(&mut self, settled: Position) {
        (self.settled, self.known) = (settled, Position(0));
    }

    /// The position up to which an earlier leader may have answered.
    pub(in crate::quorum) fn settled(&self) -> Position {
        self.settled
    }

    /// Leader: the script whose effect an answer may show that is ready now, if no quorum is known
    /// to have executed it: another leader could abort it.
    pub(in crate::quorum) fn unknown(&self) -> Option<Position> {
        (self.last > self.known).then_some(self.last)
    }

    /// Leader: notes that a quorum has executed the log up to `known`.
    pub(in crate::quorum) fn know(&mut self, known: Position) {
        self.known = self.known.max(known);
    }

    /// The position up to which a quorum has executed the log.
    pub(in crate::quorum) fn known(&self) -> Position {
        self.known
    }

    /// Whether the state here may show, or will show, a script's effect.
    pub(in crate::quorum) fn are_any(&self) -> bool {
        self.last > Position(0) || !self.running.is_empty()
    }

    /// The newest sequence number of a script whose effect a read here may show.
    pub(in crate::quorum) fn newest(&self) -> Seq {
        self.newest
    }

    /// Whether the script at `position`, which is about to be executed, is aborted.
    pub(in crate::quorum) fn is_aborted(&mut self, position: Position) -> bool {
        let is_aborted = self.aborted.contains(&position);
        if is_aborted {
            self.forget_aborted(position);
        }
        is_aborted
    }

    fn forget_aborted(&mut self, position: Position) {
        self.aborted.remove(&position);
        self.settled_aborts.insert(position);
        if self.settled_aborts.len() > VOIDED_MAX {
            self.settled_aborts.pop_first();
        }
        self.running.pop_front_if(|first| first.position == position);
    }

    /// Notes that the write at `position` was executed.
    pub(in crate::quorum) fn finished(&mut self, position: Position) {
        if self.running.pop_front_if(|first| first.position == position).is_some() {
            self.last = position;
        }
    }

    /// Whether the oldest running script is at `position` and is decided here.
    fn decides(&self, position: Position) -> bool {
        self.running.front().is_some_and(|first| first.decides && first.position == position)
    }

    /// The position up to which the commit of a log with this commit point may be announced: to
    /// before the first undecided script, and past an aborted one only together with the record
    /// that aborts it.
    pub(in crate::quorum) fn decided(&self, committed: Position) -> Position {
        let before = |position: Position| Position(position.0 - 1);
        let first = self.running.iter().find(|script| script.decides);
        let upto = first.map_or(committed, |script| before(script.position).min(committed));
        self.words.iter().rev().fold(upto, |upto, (script, word)| {
            if *word > upto { upto.min(before(*script)) } else { upto }
        })
    }

    /// Notes that the engine stopped a script. Returns whether it was the oldest undecided one.
    pub(in crate::quorum) fn stop(&mut self, operation: PendingWrite) -> bool {
        let is_decided_here = self.decides(operation.position);
        if is_decided_here {
            self.stopped = Some(operation);
        }
        is_decided_here
    }

    /// The stopped script, as long as it is undecided.
    pub(in crate::quorum) fn stopped(&self) -> Option<PendingWrite> {
        self.stopped
    }

    /// The positions up to `committed` that were not searched for aborts, in a log that begins
    /// after `base`.
    pub(in crate::quorum) fn unsearched(
        &self,
        base: Position,
        committed: Position,
    ) -> RangeInclusive<u64> {
        self.searched.max(base).0 + 1..=committed.0
    }

    /// Notes that they were searched; everything up to `executed` is executed here.
    pub(in crate::quorum) fn searched_to(&mut self, committed: Position, executed: Position) {
        self.searched = self.searched.max(committed);
        self.words.retain(|_, word| *word > executed);
    }

    /// Learns that the leader of `view` aborted the script at `position` by the record at `word`;
    /// the engine has got everything up to `submitted`. Returns false if the script was executed
    /// here, or by the earlier view's leader from which the state was copied.
    pub(in crate::quorum) fn learn(
        &mut self,
        (position, view): (Position, ViewNumber),
        word: Position,
        submitted: Position,
    ) -> bool {
        self.words.entry(position).or_insert(word);
        let is_stopped = self.stopped.is_some_and(|operation| operation.position == position);
        if is_stopped || position > submitted {
            self.aborted.insert(position);
            return true;
        }
        let (copied, copied_in) = self.copied;
        (position <= copied && view <= copied_in) || self.settled_aborts.contains(&position)
    }

    /// Removes and returns the stopped script, if it is aborted for all: it is decided.
    pub(in crate::quorum) fn settle(&mut self) -> Option<PendingWrite> {
        let operation =
            self.stopped.take_if(|operation| self.aborted.contains(&operation.position))?;
        self.forget_aborted(operation.position);
        Some(operation)
    }

    /// Whether this replica's engine is lost to a script that does not end.
    pub(in crate::quorum) fn is_leaving(&self) -> bool {
        self.fail_stop_at.is_some()
    }

    /// Whether it stays, to abort such scripts.
    pub(in crate::quorum) fn stays(&self, now: Instant) -> bool {
        self.fail_stop_at.is_some_and(|at| now < at)
    }

    /// The oldest script that may have caused the loss of the engine and is not aborted. It may be
    /// neither the first pending operation nor the oldest script: a server holds back answers that
    /// belong to one receive.
    pub(in crate::quorum) fn suspect(&self) -> Option<Position> {
        let suspects = self.running.iter().filter(|script| script.decides);
        let is_aborted = |at| self.aborted.contains(&at) || self.settled_aborts.contains(&at);
        suspects.map(|script| script.position).find(|at| !is_aborted(*at))
    }

    /// Begins to abort the script of `operation`, as one that may have caused the loss.
    pub(in crate::quorum) fn has_last_word(&mut self, now: Instant, operation: PendingWrite) {
        self.stopped = Some(operation);
        self.fail_stop_at = Some(now.after(LAST_WORD_NS));
    }

    /// Notes that all such scripts are aborted: once the others know it, this replica leaves.
    pub(in crate::quorum) fn has_spoken(&mut self, now: Instant) {
        self.fail_stop_at = Some(now.after(TOLD_NS));
    }
}

/// The position of the script that a record aborts, and the view of the leader that decided it.
pub(in crate::quorum) fn aborted_by(record: &Record<'_>) -> Option<(Position, ViewNumber)> {
    if !record.flags.has(Flags::INTERNAL) {
        return None;
    }
    let command = Command::parse(record.command).ok()?;
    if command.name() != ABORT_COMMAND {
        return None;
    }
    let mut numbers = command.args().skip(1).map_while(resp::number);
    let position = Position(u64::try_from(numbers.next()?).ok()?);
    let view = u32::try_from(numbers.next()?).ok()?;
    (view == record.epoch.0 && position < record.position).then_some((position, ViewNumber(view)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a later leader makes void was executed by whom the state is copied from.
    #[test]
    fn bug_15_28_aborted_script_was_executed_by_the_source() {
        let (script, copied, view) = (Position(5), Position(7), ViewNumber(3));
        let mut scripts = Scripts::copied_up_to(copied, Some((view, Seq::NONE)));
        assert!(
            scripts.learn((script, view), Position(6), copied),
            "the leader of the copy said so itself"
        );
        assert!(!scripts.learn((script, ViewNumber(4)), Position(6), copied));
        assert!(
            scripts.learn((Position(8), ViewNumber(4)), Position(9), copied),
            "it is to be executed yet"
        );
    }

    const VIEW: ViewNumber = ViewNumber(3);

    fn operation(position: u64) -> PendingWrite {
        PendingWrite::of(&Record { position: Position(position), ..Record::EMPTY })
    }

    /// Scripts at these positions were given to the engine of a leader, in that order.
    fn running(positions: &[u64]) -> Scripts {
        let mut scripts = Scripts::default();
        for position in positions {
            scripts.started(Position(*position), Seq::NONE, true);
        }
        scripts
    }

    /// What is behind a script that is not decided is not called committed.
    #[test]
    fn nothing_after_an_undecided_script_is_committed() {
        let mut s = running(&[5, 7]);
        s.started(Position(3), Seq::NONE, false);
        assert_eq!((s.decided(Position(9)), s.decided(Position(4))), (Position(4), Position(4)));
        assert_eq!(s.decided(Position(2)), Position(2));
        s.finished(Position(7));
        assert_eq!(s.decided(Position(9)), Position(4), "it was not its turn");
        s.finished(Position(5));
        assert_eq!(s.decided(Position(9)), Position(6));
        s.finished(Position(7));
        assert_eq!(s.decided(Position(9)), Position(9));
        assert!(s.are_any() && s.unknown() == Some(Position(7)));
    }

    /// A script that was stopped is decided on by the record that makes it void.
    #[test]
    fn stopped_script_is_decided_by_its_abort_record() {
        let mut s = running(&[5]);
        assert!(!s.stop(operation(6)), "the oldest one is another");
        assert!(s.stop(operation(5)) && s.is_stopped());
        assert!(s.settle().is_none());
        // The record is at 8. Nobody hears of the script without it.
        assert!(s.learn((Position(5), VIEW), Position(8), Position(7)));
        assert_eq!(s.settle().map(|operation| operation.position), Some(Position(5)));
        assert!(!s.is_stopped() && !s.are_any());
        assert_eq!((s.decided(Position(7)), s.decided(Position(8))), (Position(4), Position(8)));
        s.searched_to(Position(8), Position(7));
        assert_eq!(s.decided(Position(7)), Position(4));
        s.searched_to(Position(8), Position(8));
        assert_eq!(s.decided(Position(7)), Position(7), "all of that is executed here");
        // It may be said again.
        assert!(s.learn((Position(5), VIEW), Position(9), Position(8)));
    }

    #[test]
    fn a_script_that_is_void_before_its_turn_is_not_executed() {
        let mut s = Scripts::default();
        assert!(s.learn((Position(5), VIEW), Position(8), Position(4)));
        assert!(!s.is_aborted(Position(4)) && s.is_aborted(Position(5)));
        assert!(!s.is_aborted(Position(5)), "that was its turn");
        assert!(!s.learn((Position(4), VIEW), Position(9), Position(4)), "it was executed here");
    }

    #[test]
    fn a_leader_answers_from_a_script_once_a_quorum_has_executed_it() {
        let mut s = running(&[5]);
        s.finished(Position(5));
        s.begin_view(Position(4));
        assert_eq!((s.settled(), s.unknown()), (Position(4), Some(Position(5))));
        s.know(Position(4));
        assert_eq!(s.unknown(), Some(Position(5)));
        s.know(Position(5));
        s.know(Position(3));
        assert_eq!((s.unknown(), s.known()), (None, Position(5)));
        s.begin_view(Position(5));
        assert_eq!(s.unknown(), Some(Position(5)), "in another view that is to be heard again");
    }

    #[test]
    fn the_log_is_searched_once_for_what_is_void() {
        let mut s = Scripts::copied_up_to(Position(4), None);
        assert_eq!(s.unsearched(Position(2), Position(6)), 5..=6);
        assert_eq!(s.unsearched(Position(5), Position(6)), 6..=6);
        s.searched_to(Position(6), Position(6));
        assert!(s.unsearched(Position(2), Position(6)).is_empty());
    }

    /// A lost engine is blamed on the oldest script that is not void.
    #[test]
    fn engine_loss_blames_the_oldest_live_script() {
        let mut s = Scripts::default();
        s.started(Position(3), Seq::NONE, false);
        s.started(Position(5), Seq::NONE, true);
        s.started(Position(7), Seq::NONE, true);
        assert_eq!(s.suspect(), Some(Position(5)));
        let now = Instant(9);
        assert!(!s.is_leaving() && !s.stays(now));
        s.has_last_word(now, operation(5));
        assert!(s.is_leaving() && s.stays(Instant(9 + LAST_WORD_NS - 1)));
        assert!(!s.stays(Instant(9 + LAST_WORD_NS)), "the record does not come");
        assert!(s.learn((Position(5), VIEW), Position(8), Position(7)));
        assert_eq!(s.suspect(), Some(Position(7)));
        s.settle();
        assert_eq!(s.suspect(), Some(Position(7)));
        s.has_spoken(now);
        assert!(s.stays(Instant(9 + TOLD_NS - 1)) && !s.stays(Instant(9 + TOLD_NS)));
    }

    /// A record makes an earlier script void by the word of its views leader alone.
    #[test]
    fn only_its_views_leader_aborts_a_script() {
        let mut command = concord_engine::CommandBuf::new();
        let mut aborted = |flags, position: &str, view: &str| {
            let args = [ABORT_COMMAND, position.as_bytes(), view.as_bytes()];
            let command = command.encode(0, args);
            let epoch = concord_core::Epoch(3);
            aborted_by(&Record { flags, epoch, position: Position(8), command, ..Record::EMPTY })
        };
        assert_eq!(aborted(Flags::INTERNAL, "5", "3"), Some((Position(5), VIEW)));
        assert_eq!(aborted(Flags::INTERNAL, "7", "3"), Some((Position(7), VIEW)));
        assert_eq!(aborted(Flags::INTERNAL, "8", "3"), None, "itself");
        assert_eq!(aborted(Flags::INTERNAL, "5", "2"), None, "the word of an earlier view");
        assert_eq!(aborted(Flags(0), "5", "3"), None, "a client's");
    }
}
