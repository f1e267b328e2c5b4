//! A view change in progress (VRR §4.2): the members that have left the earlier views, the votes,
//! and the log that the new leader takes.

use alloc::vec::Vec;

use concord_core::{Duration, Instant, Position, ViewNumber};
use concord_wire::control::LogEnd;
use concord_wire::vr::SwitchIncarnation;

/// The largest number of doublings of a view change's time-out, which is a lease's length at first.
/// It has to be longer than a lease, and no longer than clients wait, since the cause of earlier
/// failures may be gone.
const PATIENCE_MAX: u32 = 2;

/// A DoViewChange.
#[derive(Clone, Copy, Debug)]
pub(in crate::quorum) struct Vote {
    pub(in crate::quorum) last_normal: ViewNumber,
    pub(in crate::quorum) end: LogEnd,
    pub(in crate::quorum) committed: Position,
    pub(in crate::quorum) switch: SwitchIncarnation,
}

/// A view change in progress.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Change {
    /// By member: whether it has entered this view, and so left all earlier ones.
    joined: Vec<bool>,
    votes: Vec<Option<Vote>>,
    /// New leader: the member with the best log, which is being fetched.
    best: Option<usize>,
    /// The time at which this view was entered.
    entered_at: Instant,
    /// The number of successive view changes that failed.
    failed: u32,
}

impl Change {
    /// Enters a view of a group of `members`.
    pub(in crate::quorum) fn enter(&mut self, now: Instant, members: usize) {
        let failed = self.failed + 1;
        *self = Change {
            joined: alloc::vec![false; members],
            votes: alloc::vec![None; members],
            best: None,
            entered_at: now,
            failed,
        };
    }

    /// Notes that the view has begun.
    pub(in crate::quorum) fn succeed(&mut self) {
        self.failed = 0;
        self.best = None;
    }

    /// Whether it is time to enter the next view: this one has not begun within `patience_ns`, or
    /// longer after failures. The patience is the present one: a disk that hung seems slow until
    /// it has synced again.
    pub(in crate::quorum) fn is_over(&self, now: Instant, patience_ns: Duration) -> bool {
        now >= self.entered_at.after(patience_ns << self.failed.min(PATIENCE_MAX))
    }

    /// Forgets the messages of member `index`, which has lost its promises.
    pub(in crate::quorum) fn forget(&mut self, index: usize) {
        if let Some(vote) = self.votes.get_mut(index) {
            *vote = None;
        }
    }

    pub(in crate::quorum) fn has_joined(&self, index: usize) -> bool {
        self.joined.get(index) == Some(&true)
    }

    /// Notes that member `index` has left all earlier views. Returns whether it was not known.
    pub(in crate::quorum) fn join(&mut self, index: usize) -> bool {
        !core::mem::replace(&mut self.joined[index], true)
    }

    pub(in crate::quorum) fn has_voted(&self, index: usize) -> bool {
        self.votes[index].is_some()
    }

    /// The number of votes.
    pub(in crate::quorum) fn votes(&self) -> usize {
        self.votes.iter().flatten().count()
    }

    /// The number of votes of the members in `counted`.
    pub(in crate::quorum) fn votes_of(&self, counted: u64) -> usize {
        let voted = self.votes.iter().enumerate().filter(|(_, vote)| vote.is_some());
        voted.filter(|(index, _)| counted >> index & 1 == 1).count()
    }

    pub(in crate::quorum) fn vote(&mut self, index: usize, vote: Vote) {
        self.votes[index] = Some(vote);
    }

    /// The member with the best log of a quorum, and its vote: the log of the latest view, among
    /// these the longest, among equals that of `me`. `None` while there are too few votes, or the
    /// one of `me` is missing.
    pub(in crate::quorum) fn elect(&self, me: usize, quorum: usize) -> Option<(usize, Vote)> {
        let own = self.votes.get(me).copied().flatten()?;
        if self.votes() < quorum {
            return None;
        }
        let merit = |v: &Vote| (v.last_normal, v.end.position);
        let (mut best, mut vote) = (me, own);
        for (index, other) in self.votes.iter().enumerate() {
            if let Some(other) = other.filter(|v| merit(v) > merit(&vote)) {
                (best, vote) = (index, other);
            }
        }
        Some((best, vote))
    }

    /// The member whose log is being fetched.
    pub(in crate::quorum) fn best(&self) -> Option<usize> {
        self.best
    }

    pub(in crate::quorum) fn fetch_from(&mut self, best: usize) {
        self.best = Some(best);
    }

    /// The highest position that any vote knows to be committed.
    pub(in crate::quorum) fn committed(&self) -> Position {
        self.votes.iter().flatten().map(|v| v.committed).max().unwrap_or_default()
    }

    /// The newest switch that any vote knows.
    pub(in crate::quorum) fn switch(&self) -> SwitchIncarnation {
        self.votes.iter().flatten().map(|v| v.switch).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(last_normal: u32, position: u64) -> Vote {
        let (last_normal, end) = (ViewNumber(last_normal), LogEnd { position, hash: 0 });
        Vote { last_normal, end, committed: Position(0), switch: SwitchIncarnation::default() }
    }

    fn entered(members: usize) -> Change {
        let mut change = Change::default();
        change.enter(Instant(0), members);
        change
    }

    #[test]
    fn patience_doubles_twice_until_a_view_begins() {
        let mut c = Change::default();
        let patience = |c: &mut Change| {
            c.enter(Instant(1_000), 3);
            (0..).find(|ns| c.is_over(Instant(1_000 + ns), 100))
        };
        assert_eq!([0; 4].map(|_| patience(&mut c)), [200, 400, 400, 400].map(Some));
        c.fetch_from(2);
        c.succeed();
        assert_eq!(c.best(), None);
        assert_eq!(patience(&mut c), Some(200));
    }

    #[test]
    fn who_has_left_the_earlier_views_is_news_once() {
        let mut c = entered(3);
        assert!(!c.has_joined(1) && c.join(1) && !c.join(1));
        assert!(c.has_joined(1) && !c.has_joined(2) && !c.has_joined(9));
        c.enter(Instant(0), 3);
        assert!(!c.has_joined(1), "of the view before");
    }

    /// The log of the latest view wins and of these the longest.
    #[test]
    fn vrr_4_2_latest_view_then_longest_log_wins() {
        let elect = |votes: [Option<Vote>; 3], quorum| {
            let mut c = entered(3);
            for (index, vote) in votes.into_iter().enumerate() {
                vote.into_iter().for_each(|vote| c.vote(index, vote));
            }
            c.elect(1, quorum).map(|(best, vote)| (best, vote.end.position))
        };
        assert_eq!(elect([Some(vote(2, 5)), None, Some(vote(2, 5))], 2), None, "the own one lacks");
        assert_eq!(elect([None, Some(vote(2, 5)), None], 2), None);
        assert_eq!(elect([Some(vote(2, 5)), Some(vote(2, 5)), None], 2), Some((1, 5)));
        assert_eq!(elect([None, Some(vote(2, 5)), Some(vote(2, 5))], 2), Some((1, 5)));
        assert_eq!(elect([Some(vote(2, 6)), Some(vote(2, 5)), None], 2), Some((0, 6)));
        assert_eq!(elect([Some(vote(1, 9)), Some(vote(2, 5)), None], 2), Some((1, 5)));
        let all = [Some(vote(2, 6)), Some(vote(2, 5)), Some(vote(3, 1))];
        assert_eq!(elect(all, 3), Some((2, 1)));
    }

    #[test]
    fn votes_are_counted_among_the_voters_and_forgotten_with_a_life() {
        let mut c = entered(3);
        c.vote(0, Vote { committed: Position(7), ..vote(2, 9) });
        let switch = SwitchIncarnation { id: 4, ..SwitchIncarnation::default() };
        c.vote(2, Vote { committed: Position(3), switch, ..vote(2, 9) });
        assert!(c.has_voted(0) && !c.has_voted(1));
        assert_eq!(
            (c.votes(), c.votes_of(0b111), c.votes_of(0b011), c.votes_of(0b010)),
            (2, 2, 1, 0)
        );
        assert_eq!((c.committed(), c.switch()), (Position(7), switch));
        c.forget(0);
        c.forget(9);
        assert_eq!((c.votes(), c.committed()), (1, Position(3)));
        c.enter(Instant(0), 3);
        assert_eq!((c.votes(), c.committed(), c.switch().id), (0, Position(0), 0));
    }
}
