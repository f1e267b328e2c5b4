//! The failure detector: the time at which this replica last heard the view's leader, and the
//! members that do not hear it. At a leader, the time since which it could hear the others.

use alloc::vec::Vec;

use concord_core::{Duration, Instant};

/// The state of the failure detector.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    heard_leader_at: Instant,
    /// Leader: the time since which it could hear the others: the beginning of the view, or the end
    /// of a pause.
    listens_since: Instant,
    ticked_at: Instant,
    /// By member: the time at which it last reported that it does not hear the leader.
    suspicions: Vec<Option<Instant>>,
}

impl Default for Suspicion {
    fn default() -> Suspicion {
        let at = Instant(0);
        Suspicion { heard_leader_at: at, listens_since: at, ticked_at: at, suspicions: Vec::new() }
    }
}

impl Suspicion {
    /// Joins a group of `members`.
    pub(super) fn enter_group(&mut self, now: Instant, members: usize) {
        self.suspicions = alloc::vec![None; members];
        self.heard_leader_at = now;
    }

    /// Notes a message of the leader.
    pub(super) fn hear_leader(&mut self, now: Instant) {
        self.heard_leader_at = now;
    }

    /// Sets the time of the leader's last message.
    pub(super) fn lose_leader(&mut self, at: Instant) {
        self.heard_leader_at = self.heard_leader_at.min(at);
    }

    /// Whether the leader has been silent for `silent_ns`.
    pub(super) fn is_leader_silent(&self, now: Instant, silent_ns: Duration) -> bool {
        now.since(self.heard_leader_at) >= silent_ns
    }

    /// Notes that member `from` does not hear the leader.
    pub(super) fn note(&mut self, now: Instant, from: usize) {
        self.suspicions[from] = Some(now);
    }

    /// Forgets the report of member `from`.
    pub(super) fn forget(&mut self, from: usize) {
        self.suspicions[from] = None;
    }

    /// Forgets all reports, since the view has changed.
    pub(super) fn end_view(&mut self) {
        self.suspicions.fill(None);
    }

    /// The number of members that reported it within `recent_ns`.
    pub(super) fn count(&self, now: Instant, recent_ns: Duration) -> usize {
        let is_fresh = |at: &&Instant| now.since(**at) < recent_ns;
        self.suspicions.iter().flatten().filter(is_fresh).count()
    }

    /// Handles the passing of time. After more than `slept_ns` this replica was paused, and
    /// messages of that time still wait to be read.
    pub(super) fn tick(&mut self, now: Instant, slept_ns: Duration) {
        if now.since(core::mem::replace(&mut self.ticked_at, now)) > slept_ns {
            self.listens_since = now;
        }
    }

    /// Begins to listen as the leader.
    pub(super) fn listen(&mut self, now: Instant) {
        self.listens_since = now;
    }

    /// Leader: the time since which it could hear the others.
    pub(super) fn listens_since(&self) -> Instant {
        self.listens_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_silent_since_it_was_heard_last() {
        let mut s = Suspicion::default();
        s.enter_group(Instant(10), 3);
        assert!(!s.is_leader_silent(Instant(29), 20) && s.is_leader_silent(Instant(30), 20));
        s.hear_leader(Instant(30));
        assert!(!s.is_leader_silent(Instant(49), 20) && s.is_leader_silent(Instant(50), 20));
        s.lose_leader(Instant(40));
        assert!(s.is_leader_silent(Instant(50), 20), "it was lost before");
        s.lose_leader(Instant(20));
        assert!(s.is_leader_silent(Instant(40), 20));
    }

    #[test]
    fn suspicions_count_while_they_are_recent_and_of_this_view() {
        let mut s = Suspicion::default();
        s.enter_group(Instant(0), 3);
        s.note(Instant(10), 1);
        s.note(Instant(15), 2);
        assert_eq!([19, 20, 24, 25].map(|at| s.count(Instant(at), 10)), [2, 1, 1, 0]);
        s.forget(1);
        assert_eq!(s.count(Instant(15), 10), 1, "it lives anew");
        s.end_view();
        assert_eq!(s.count(Instant(15), 10), 0);
        s.note(Instant(15), 2);
        s.enter_group(Instant(15), 3);
        assert_eq!(s.count(Instant(15), 10), 0);
    }

    #[test]
    fn a_leader_that_slept_hears_the_others_since_it_woke_up() {
        let mut s = Suspicion::default();
        s.listen(Instant(5));
        s.tick(Instant(10), 10);
        s.tick(Instant(20), 10);
        assert_eq!(s.listens_since(), Instant(5));
        s.tick(Instant(31), 10);
        s.tick(Instant(35), 10);
        assert_eq!(s.listens_since(), Instant(31));
    }
}
