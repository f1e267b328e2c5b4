//! Raft: what a replica promised in the election of its term, and what it heard since.

use concord_core::rng::splitmix64;
use concord_core::{Duration, Instant};

/// What a replica without a leader does about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Nothing yet.
    #[default]
    Waiting,
    /// It asks who would vote for it in the next term (dissertation §9.6).
    Asking,
    /// It is a candidate in its term.
    Candidate {
        /// The leader of an earlier term wants this election.
        handed: bool,
    },
}

/// The election of the own term's leader, and the question for the next one.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Ballot {
    /// "votedFor": the member that has this replica's vote in the term. Never another one.
    voted_for: Option<usize>,
    standing: Standing,
    /// Bit i: member i would vote for this replica in the next term.
    would: u64,
    /// Bit i: member i does not vote for this candidate.
    refused: u64,
    /// Without a leader: when to ask for the next term.
    due: Instant,
    /// What time-outs are drawn from, and how many were.
    seed: u64,
    drawn: u64,
}

impl Ballot {
    /// No vote yet; time-outs are drawn by `seed`.
    pub(in crate::quorum) fn new(seed: u64) -> Ballot {
        Ballot { seed, ..Ballot::default() }
    }

    /// Another term: the vote is free.
    pub(in crate::quorum) fn new_term(&mut self) {
        *self = Ballot { seed: self.seed, drawn: self.drawn, ..Ballot::default() };
    }

    /// A time below `below_ns`, other than those of other replicas, so that not all stand at once
    /// (§5.2).
    pub(in crate::quorum) fn draw(&mut self, below_ns: Duration) -> Duration {
        self.drawn += 1;
        splitmix64(splitmix64(self.seed) ^ self.drawn) % below_ns.max(1)
    }

    /// Who has the vote.
    pub(in crate::quorum) fn voted_for(&self) -> Option<usize> {
        self.voted_for
    }

    /// Whether `member` may have it.
    pub(in crate::quorum) fn is_free_for(&self, member: usize) -> bool {
        self.voted_for.is_none_or(|voted_for| voted_for == member)
    }

    /// `member` has it; whether that is news.
    pub(in crate::quorum) fn vote_for(&mut self, member: usize) -> bool {
        self.voted_for.replace(member) != Some(member)
    }

    /// There is no leader, and that is borne until then.
    pub(in crate::quorum) fn wait_until(&mut self, due: Instant) {
        self.due = due;
    }

    /// Whether it was borne for long enough.
    pub(in crate::quorum) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// There is a leader, or the time of the candidate is over.
    pub(in crate::quorum) fn stop(&mut self) {
        (self.standing, self.would) = (Standing::Waiting, 0);
    }

    /// Asks who would vote; `me` would.
    pub(in crate::quorum) fn ask(&mut self, me: usize) {
        if self.standing != Standing::Asking {
            (self.standing, self.would) = (Standing::Asking, 1 << me);
        }
    }

    pub(in crate::quorum) fn is_asking(&self) -> bool {
        self.standing == Standing::Asking
    }

    /// Member `from` would vote for this replica.
    pub(in crate::quorum) fn note_would(&mut self, from: usize) {
        if self.is_asking() {
            self.would |= 1 << from;
        }
    }

    /// How many of `voters` would.
    pub(in crate::quorum) fn would(&self, voters: u64) -> usize {
        (self.would & voters).count_ones() as usize
    }

    /// What member `from` said counts no more.
    pub(in crate::quorum) fn forget(&mut self, from: usize) {
        self.would &= !(1 << from);
        self.refused &= !(1 << from);
    }

    /// Member `me`, this replica, is a candidate until `due`, and votes for itself.
    pub(in crate::quorum) fn stand(&mut self, me: usize, due: Instant, handed: bool) {
        self.standing = Standing::Candidate { handed };
        (self.voted_for, self.due, self.refused) = (Some(me), due, 0);
    }

    /// Whether it is a candidate; and if so, whether by a leader's wish.
    pub(in crate::quorum) fn candidacy(&self) -> Option<bool> {
        match self.standing {
            Standing::Candidate { handed } => Some(handed),
            Standing::Waiting | Standing::Asking => None,
        }
    }

    /// Member `from` votes for another one; how many of `voters` do not vote for this candidate by
    /// now.
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
        b.stand(0, Instant(7), false);
        assert!(!b.is_free_for(2) && b.candidacy() == Some(false));
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
