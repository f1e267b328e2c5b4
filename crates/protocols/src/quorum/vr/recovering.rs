//! The state of a recovery: the answers to a replica that lost everything
//! ([`crate::quorum::vr::recovery`]).

use alloc::vec::Vec;

use concord_core::{Duration, Instant, ViewNumber};
use concord_wire::control::LogEnd;
use concord_wire::vr::SwitchIncarnation;

/// The leader's part of an answer: the end of its log, its switch, and the view's floor.
pub(in crate::quorum) type Led = (LogEnd, SwitchIncarnation, u32);

/// A RecoveryResponse.
#[derive(Clone, Copy, Debug)]
pub(in crate::quorum) struct Answer {
    pub(in crate::quorum) view: ViewNumber,
    /// Present if the answer is from the leader of that view.
    pub(in crate::quorum) leader: Option<Led>,
    /// Raft, from the leader of a group whose voters have changed: the voters, and those of the
    /// last committed configuration.
    pub(in crate::quorum) voters: Option<[u64; 2]>,
}

/// The progress of a recovery.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Recovery {
    /// Whether the replica has lost its promises and not recovered them: it must not vote.
    recovering: bool,
    /// Whether the replica has lost nothing: its disk has all its promises.
    is_kept: bool,
    /// The longest lease that an earlier start may have granted.
    quiet_ns: Duration,
    answers: Vec<Option<Answer>>,
    /// By member: the time of its last message.
    heard_at: Vec<Option<Instant>>,
    /// The time since which this replica knows of all leases that its node granted.
    started_at: Option<Instant>,
}

impl Recovery {
    /// Notes the start of the process.
    pub(in crate::quorum) fn start(&mut self, now: Instant) {
        self.started_at.get_or_insert(now);
    }

    /// Joins a group of `members`.
    pub(in crate::quorum) fn enter_group(&mut self, members: usize) {
        self.answers = alloc::vec![None; members];
        self.heard_at = alloc::vec![None; members];
    }

    /// Begins the recovery of a replica that lost everything.
    pub(in crate::quorum) fn begin(&mut self) {
        (self.recovering, self.is_kept) = (true, false);
    }

    /// Begins with all promises of earlier processes, which may have granted leases of up to
    /// `quiet_ns`.
    pub(in crate::quorum) fn begin_kept(&mut self, quiet_ns: Duration) {
        (self.recovering, self.is_kept, self.quiet_ns) = (true, true, quiet_ns);
    }

    /// Whether the promises of earlier processes are not known here.
    pub(in crate::quorum) fn is_from_nothing(&self) -> bool {
        self.recovering && !self.is_kept
    }

    /// Whether it may continue from its disk.
    pub(in crate::quorum) fn may_return(&self, now: Instant, lease_ns: Duration) -> bool {
        self.is_kept && self.has_outlived_leases(now, lease_ns)
    }

    /// Whether the leases of up to `lease_ns` that an earlier process may have granted are over.
    pub(in crate::quorum) fn has_outlived_leases(&self, now: Instant, lease_ns: Duration) -> bool {
        self.has_waited(now, lease_ns.max(self.quiet_ns))
    }

    /// Notes a message of member `from`.
    pub(in crate::quorum) fn hear(&mut self, now: Instant, from: usize) {
        if self.recovering {
            self.heard_at[from] = Some(now);
        }
    }

    /// The number of other members that were heard within `within_ns`.
    pub(in crate::quorum) fn hears(&self, now: Instant, within_ns: Duration) -> usize {
        let heard = self.heard_at.iter().flatten();
        heard.filter(|at| now.since(**at) <= within_ns).count()
    }

    /// Begins the recovery anew: another process of this node may have granted leases until now.
    pub(in crate::quorum) fn begin_again(&mut self, now: Instant) {
        self.answers.fill(None);
        self.started_at = Some(now);
    }

    pub(in crate::quorum) fn is_under_way(&self) -> bool {
        self.recovering
    }

    /// Ends the recovery, since the log is complete again or of no use. Returns whether one was in
    /// progress.
    pub(in crate::quorum) fn end(&mut self) -> bool {
        core::mem::take(&mut self.recovering)
    }

    pub(in crate::quorum) fn note(&mut self, from: usize, answer: Answer) {
        self.answers[from] = Some(answer);
    }

    /// Forgets the answer of `from`.
    pub(in crate::quorum) fn forget(&mut self, from: usize) {
        self.answers[from] = None;
    }

    /// Forgets all answers.
    pub(in crate::quorum) fn forget_all(&mut self) {
        self.answers.fill(None);
    }

    /// The latest view in the answers and its leader's part, once that leader and enough others
    /// have answered. `are_enough` judges the leader's voters and the members that have answered,
    /// as bits.
    pub(in crate::quorum) fn outcome(
        &self,
        are_enough: impl Fn(Option<[u64; 2]>, u64) -> bool,
    ) -> Option<(ViewNumber, usize, Led)> {
        let answers =
            || self.answers.iter().enumerate().filter_map(|(i, a)| Some((i, a.as_ref()?)));
        let view = answers().map(|(_, a)| a.view).max()?;
        let answered = answers().fold(0, |set, (index, _)| set | 1 << index);
        let of_leader = |(index, a): (usize, &Answer)| {
            let led = a.leader.filter(|_| a.view == view && are_enough(a.voters, answered));
            led.map(|led| (view, index, led))
        };
        answers().find_map(of_leader)
    }

    /// Whether the process has run for `lease_ns`.
    pub(in crate::quorum) fn has_waited(&self, now: Instant, lease_ns: Duration) -> bool {
        self.started_at.is_some_and(|at| now.since(at) >= lease_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By a member in `view`, its leader or not.
    fn answer(view: u32, leads: bool) -> Answer {
        let end = LogEnd { position: 9, hash: u64::from(view) };
        let leader = leads.then(|| (end, SwitchIncarnation::default(), 0));
        Answer { view: ViewNumber(view), leader, voters: None }
    }

    fn outcome(recovery: &Recovery) -> Option<(u32, usize)> {
        recovery.outcome(|_, _| true).map(|(view, leader, _)| (view.0, leader))
    }

    /// The leader of the latest view has to answer and enough others.
    #[test]
    fn vrr_4_3_recovery_needs_the_latest_leader() {
        let mut r = Recovery::default();
        r.enter_group(4);
        assert_eq!(outcome(&r), None);
        r.note(1, answer(3, true));
        assert_eq!(outcome(&r), Some((3, 1)));
        r.note(2, answer(4, false));
        assert_eq!(outcome(&r), None, "a later view has another leader");
        r.note(3, answer(4, true));
        assert_eq!(outcome(&r), Some((4, 3)));
        assert!(r.outcome(|_, answered| answered == 0b1110).is_some());
        assert!(r.outcome(|_, _| false).is_none());
        r.forget(3);
        assert_eq!(outcome(&r), None);
        r.forget(2);
        assert_eq!(outcome(&r), Some((3, 1)));
        r.forget_all();
        assert_eq!(outcome(&r), None);
    }

    #[test]
    fn the_leader_says_by_which_voters_enough_is_counted() {
        let mut r = Recovery::default();
        r.enter_group(3);
        r.note(0, Answer { voters: Some([1, 2]), ..answer(4, false) });
        r.note(1, Answer { voters: Some([3, 4]), ..answer(4, true) });
        assert!(r.outcome(|voters, _| voters == Some([3, 4])).is_some());
        assert!(r.outcome(|voters, _| voters == Some([1, 2])).is_none());
    }

    #[test]
    fn t2_leases_that_were_granted_before_are_outlived() {
        let mut r = Recovery::default();
        assert!(!r.has_waited(Instant(99), 0), "it does not run yet");
        r.start(Instant(10));
        r.start(Instant(20));
        r.begin_kept(50);
        assert!(r.is_under_way() && !r.is_from_nothing());
        assert!(!r.may_return(Instant(59), 30) && r.may_return(Instant(60), 30), "the longer one");
        assert!(!r.has_outlived_leases(Instant(89), 80) && r.has_outlived_leases(Instant(90), 80));
        r.enter_group(3);
        r.note(1, answer(3, true));
        r.begin_again(Instant(100));
        assert!(!r.may_return(Instant(149), 30) && r.may_return(Instant(150), 30));
        assert_eq!(outcome(&r), None);
        r.begin();
        assert!(r.is_from_nothing() && !r.may_return(Instant(999), 30), "it has nothing");
        assert!(r.end() && !r.end());
        assert!(!r.is_under_way() && !r.is_from_nothing());
    }

    #[test]
    fn others_are_heard_while_a_recovery_is_under_way() {
        let mut r = Recovery::default();
        r.enter_group(3);
        r.hear(Instant(10), 1);
        assert_eq!(r.hears(Instant(10), 5), 0);
        r.begin();
        r.hear(Instant(10), 1);
        r.hear(Instant(12), 2);
        assert_eq!([15, 16, 17, 18].map(|at| r.hears(Instant(at), 5)), [2, 1, 1, 0]);
        r.enter_group(3);
        assert_eq!(r.hears(Instant(15), 5), 0);
    }
}
