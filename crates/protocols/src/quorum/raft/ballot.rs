//! Raft: a replica's vote in its term, and the state of its own candidacy.

use concord_core::rng::splitmix64;
use concord_core::{Duration, Instant};

/// The state of a replica without a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Nothing yet.
    #[default]
    Waiting,
    /// It asks the members whether they would vote for it in the next term (dissertation §9.6).
    Asking,
    /// It is a candidate in its term.
    Candidate {
        /// Whether an earlier term's leader has asked for this election.
        handed: bool,
    },
}

/// A wait for a leader. It follows the time after which a silent leader is suspected, as that is
/// while the replica waits: a disk that hung seems slow until others of its syncs were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::quorum) struct Wait {
    /// The time at which it began.
    since: Instant,
    /// Its length in times after which a leader is suspected, and the random part, drawn when such
    /// a time was `of_ns`.
    times: u64,
    drawn_ns: Duration,
    of_ns: Duration,
}

impl Wait {
    /// A wait that is over at once.
    pub(in crate::quorum) fn none(now: Instant) -> Wait {
        Wait { since: now, ..Wait::default() }
    }

    /// A wait of `times` such times of `suspect_ns`, and `drawn_ns`.
    pub(in crate::quorum) fn begin(
        now: Instant,
        times: u64,
        drawn_ns: Duration,
        suspect_ns: Duration,
    ) -> Wait {
        Wait { since: now, times, drawn_ns, of_ns: suspect_ns }
    }

    /// Whether it is over, where a silent leader is suspected after `suspect_ns` now.
    fn is_over(&self, now: Instant, suspect_ns: Duration) -> bool {
        let suspect_ns = suspect_ns.min(self.of_ns);
        let drawn_ns =
            u128::from(self.drawn_ns) * u128::from(suspect_ns) / u128::from(self.of_ns.max(1));
        now >= self.since.after(self.times * suspect_ns + drawn_ns as Duration)
    }
}

/// The election of the present term, and the pre-vote for the next one.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Ballot {
    /// "votedFor": the member that has this replica's vote in the term. It never changes within the
    /// term.
    voted_for: Option<usize>,
    standing: Standing,
    /// The members that would vote for this replica in the next term, as bits.
    would: u64,
    /// The members that do not vote for this candidate, as bits.
    refused: u64,
    /// Without a leader: the wait for the next pre-vote.
    wait: Wait,
    /// The seed of time-outs, and the number drawn.
    seed: u64,
    drawn: u64,
}

impl Ballot {
    /// A replica that has not voted; `seed` is that of its time-outs.
    pub(in crate::quorum) fn new(seed: u64) -> Ballot {
        Ballot { seed, ..Ballot::default() }
    }

    /// Begins a term, in which the vote is free.
    pub(in crate::quorum) fn new_term(&mut self) {
        *self = Ballot { seed: self.seed, drawn: self.drawn, ..Ballot::default() };
    }

    /// Draws a time below `below_ns`, different from those of other replicas, so that not all stand
    /// at once (§5.2).
    pub(in crate::quorum) fn draw(&mut self, below_ns: Duration) -> Duration {
        self.drawn += 1;
        splitmix64(splitmix64(self.seed) ^ self.drawn) % below_ns.max(1)
    }

    /// The member that has the vote.
    pub(in crate::quorum) fn voted_for(&self) -> Option<usize> {
        self.voted_for
    }

    /// Whether `member` may get the vote.
    pub(in crate::quorum) fn is_free_for(&self, member: usize) -> bool {
        self.voted_for.is_none_or(|voted_for| voted_for == member)
    }

    /// Whether this replica, member `me`, voted less than `within_ns` ago for another member than
    /// `asks`: that one may be elected, and not have said so yet.
    pub(in crate::quorum) fn has_just_voted(
        &self,
        now: Instant,
        (me, asks): (usize, usize),
        within_ns: Duration,
    ) -> bool {
        let is_other = self.voted_for.is_some_and(|member| member != me && member != asks);
        // The wait for a leader began with the vote.
        is_other && now < self.wait.since.after(within_ns)
    }

    /// Votes for `member`. Returns whether the vote is new.
    pub(in crate::quorum) fn vote_for(&mut self, member: usize) -> bool {
        self.voted_for.replace(member) != Some(member)
    }

    /// Begins to wait for a leader.
    pub(in crate::quorum) fn wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Whether that is over, where a silent leader is suspected after `suspect_ns` now.
    pub(in crate::quorum) fn is_due(&self, now: Instant, suspect_ns: Duration) -> bool {
        self.wait.is_over(now, suspect_ns)
    }

    /// Ends the candidacy: there is a leader, or its time is over.
    pub(in crate::quorum) fn stop(&mut self) {
        (self.standing, self.would) = (Standing::Waiting, 0);
    }

    /// Begins a pre-vote, with the vote of this replica, member `me`.
    pub(in crate::quorum) fn ask(&mut self, me: usize) {
        if self.standing != Standing::Asking {
            (self.standing, self.would) = (Standing::Asking, 1 << me);
        }
    }

    pub(in crate::quorum) fn is_asking(&self) -> bool {
        self.standing == Standing::Asking
    }

    /// Notes that member `from` would vote for this replica.
    pub(in crate::quorum) fn note_would(&mut self, from: usize) {
        if self.is_asking() {
            self.would |= 1 << from;
        }
    }

    /// The number of `voters` that would vote for this replica.
    pub(in crate::quorum) fn would(&self, voters: u64) -> usize {
        (self.would & voters).count_ones() as usize
    }

    /// Forgets the answers of member `from`.
    pub(in crate::quorum) fn forget(&mut self, from: usize) {
        self.would &= !(1 << from);
        self.refused &= !(1 << from);
    }

    /// Makes this replica, member `me`, a candidate until `wait` is over, with its own vote.
    pub(in crate::quorum) fn stand(&mut self, me: usize, wait: Wait, handed: bool) {
        self.standing = Standing::Candidate { handed };
        (self.voted_for, self.wait, self.refused) = (Some(me), wait, 0);
    }

    /// Whether an earlier term's leader has asked for this candidacy; `None` if this replica is not
    /// a candidate.
    pub(in crate::quorum) fn candidacy(&self) -> Option<bool> {
        match self.standing {
            Standing::Candidate { handed } => Some(handed),
            Standing::Waiting | Standing::Asking => None,
        }
    }

    /// Notes that member `from` does not vote for this candidate. Returns the number of `voters`
    /// that do not.
    pub(in crate::quorum) fn note_refused(&mut self, from: usize, voters: u64) -> usize {
        self.refused |= 1 << from;
        (self.refused & voters).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_given_once_a_term() {
        let mut b = Ballot::new(3);
        assert!(b.is_free_for(1) && b.vote_for(1));
        assert!(b.is_free_for(1) && !b.vote_for(1), "a question that came twice");
        assert!(!b.is_free_for(2));
        b.stop();
        assert_eq!(b.voted_for(), Some(1));
        b.new_term();
        assert!(b.is_free_for(2));
        b.stand(0, Wait::none(Instant(7)), false);
        assert!(!b.is_free_for(2) && b.candidacy() == Some(false));
    }

    /// A replica whose disk hung as it began to wait would wait for many times as long as the hang
    /// had taken.
    #[test]
    fn bug_19_27_a_wait_follows_the_present_time_of_syncs() {
        let mut b = Ballot::new(3);
        b.wait(Wait::begin(Instant(100), 2, 40, 80));
        assert!(!b.is_due(Instant(299), 80) && b.is_due(Instant(300), 80));
        assert!(!b.is_due(Instant(299), 1_000) && b.is_due(Instant(300), 1_000), "never longer");
        assert!(!b.is_due(Instant(124), 10) && b.is_due(Instant(125), 10));
        b.wait(Wait::none(Instant(7)));
        assert!(b.is_due(Instant(7), 80));
    }

    /// What a candidate won it says once its disk has it. Two replicas with longer logs than the
    /// others' could depose each other for ever: the one that lost asked for the next term before.
    #[test]
    fn bug_19_29_a_vote_holds_until_its_candidate_can_have_said_so() {
        let mut b = Ballot::new(3);
        assert!(!b.has_just_voted(Instant(10), (0, 1), 40), "it has not voted");
        b.vote_for(2);
        b.wait(Wait::begin(Instant(10), 2, 0, 80));
        let asked = |asks, at| b.has_just_voted(Instant(at), (0, asks), 40);
        assert_eq!([asked(1, 49), asked(1, 50), asked(2, 49)], [true, false, false]);
        assert!(!b.has_just_voted(Instant(10), (0, 1), 0), "with quick disks it says so at once");
        b.new_term();
        b.stand(0, Wait::begin(Instant(60), 2, 0, 80), false);
        assert!(!b.has_just_voted(Instant(61), (0, 1), 40), "of itself it knows");
    }

    #[test]
    fn time_outs_differ_between_replicas_and_from_one_to_the_next() {
        let drawn = |seed| {
            let mut ballot = Ballot::new(seed);
            [0; 4].map(|_| ballot.draw(1_000_000))
        };
        let all: alloc::collections::BTreeSet<u64> = (1..=5).flat_map(drawn).collect();
        assert_eq!(all.len(), 20);
        assert_eq!(drawn(4), drawn(4), "a seed replays");
        assert!(all.iter().all(|ns| *ns < 1_000_000));
    }
}
