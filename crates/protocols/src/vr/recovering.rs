//! What a replica that lost everything has heard since ([`super::recovery`]).

use alloc::vec::Vec;

use concord_core::{Duration, Instant, ViewNumber};
use concord_wire::control::LogEnd;
use concord_wire::vr::SwitchLife;

/// A RecoveryResponse.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) view: ViewNumber,
    /// From the leader of that view alone: where its log ends, its switch, and the view's floor.
    pub(super) leader: Option<(LogEnd, SwitchLife, u32)>,
}

/// Whether a recovery is under way, and the answers so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    /// It lost everything and has not got it back yet: it must not vote.
    recovering: bool,
    answers: Vec<Option<Answer>>,
    /// Since when it has granted no lease that it does not know of.
    started_at: Option<Instant>,
}

impl Recovery {
    /// The process runs.
    pub(super) fn start(&mut self, now: Instant) {
        self.started_at.get_or_insert(now);
    }

    /// A group of so many was joined.
    pub(super) fn enter_group(&mut self, members: usize) {
        self.answers = alloc::vec![None; members];
    }

    /// Everything was lost.
    pub(super) fn begin(&mut self) {
        self.recovering = true;
    }

    /// Everything was lost, and another one of this node may have granted leases until now.
    pub(super) fn begin_again(&mut self, now: Instant) {
        self.answers.fill(None);
        self.started_at = Some(now);
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.recovering
    }

    /// The log is complete again, or of no use; whether a recovery was under way.
    pub(super) fn end(&mut self) -> bool {
        core::mem::take(&mut self.recovering)
    }

    pub(super) fn note(&mut self, from: usize, answer: Answer) {
        self.answers[from] = Some(answer);
    }

    /// What `from` answered counts no more.
    pub(super) fn forget(&mut self, from: usize) {
        self.answers[from] = None;
    }

    /// No answer counts any more.
    pub(super) fn forget_all(&mut self) {
        self.answers.fill(None);
    }

    /// The latest view that was told of, once so many have answered, and its leader among them; and what
    /// that one said.
    pub(super) fn outcome(&self, quorum: usize) -> Option<(ViewNumber, (LogEnd, SwitchLife, u32))> {
        let answers = || self.answers.iter().flatten();
        let view = answers().map(|a| a.view).max().filter(|_| answers().count() >= quorum)?;
        let of_leader = answers().find(|a| a.view == view && a.leader.is_some())?;
        Some((view, of_leader.leader?))
    }

    /// Whether the leases that may have been granted before are over.
    pub(super) fn has_waited(&self, now: Instant, lease_ns: Duration) -> bool {
        self.started_at.is_some_and(|at| now.since(at) >= lease_ns)
    }
}
