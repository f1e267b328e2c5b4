//! Recovery of a replica that lost everything (VRR §4.3), made safe by crash vectors
//! ([`crate::quorum::vr::crash_vector`]).
//!
//! VRR's protocol alone is unsafe: a vote from before the crash can be counted after the recovery
//! in an earlier view (Michael et al., DISC 2017). Here a recovering replica
//! 1. numbers its incarnation above all that the others know of its node,
//! 2. hears from so many replicas of normal status, which then know its new incarnation, that every
//!    quorum has one of them: no quorum can count its node's earlier messages any more,
//! 3. waits until the leases that it may have granted are over (trap T2), and
//! 4. takes the log of the leader of the latest view that it heard of. That log has everything that
//!    this node acknowledged in that view and, since quorums intersect, in earlier ones.
//!
//! Until then it neither votes nor acknowledges.

use concord_core::{Guard, Now};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::Held;
use concord_wire::vr::{CrashVectorEntry, VrBody};

use crate::quorum::group::quorum_of;
use crate::quorum::vr::recovering::Answer;
use crate::quorum::{QuorumReplica, Stage};
use crate::setup::RETRY_NS;

impl<E: Engine> QuorumReplica<E> {
    pub(in crate::quorum) fn begin_recovery(&mut self) {
        self.stage = Stage::Recovering;
        self.recovery.begin();
        self.vr_count.recoveries += 1;
    }

    pub(in crate::quorum) fn retry_recovery(&mut self, now: Now, sink: &mut impl Sink) {
        self.consider_recovered(now, sink);
        if self.stage == Stage::Recovering {
            self.return_alone(now, sink);
        }
        if self.stage == Stage::Recovering {
            self.say_all(VrBody::Recovery, sink);
        }
    }

    /// Begins another incarnation, since others know a higher one of this node. That may be an
    /// earlier process: of two with equal counts it is unknown which is the later one. The promises
    /// of this process do not count any more, and those of the other one are not known here. So it
    /// recovers as an incarnation above both, and keeps its log and state to begin with.
    pub(in crate::quorum) fn come_again(
        &mut self,
        now: Now,
        above: CrashVectorEntry,
        sink: &mut impl Sink,
    ) {
        if !self.setup.guards.on(Guard::IncarnationRaised) {
            if !(self.recovery.is_under_way() && self.crash_vector.raise_mine(above)) {
                self.fail_stop();
            }
            self.recovery.forget_all();
            return;
        }
        if !self.crash_vector.raise_mine(above) {
            return self.fail_stop();
        }
        self.leave_view(self.view);
        // The other process may have granted leases until now.
        self.recovery.begin_again(now.instant);
        self.renew_copy();
        self.begin_recovery();
        self.next_retry = now.instant.after(RETRY_NS);
        self.say_all(VrBody::Recovery, sink);
    }

    /// Handles the controller's message that this node's disk had more than this process found: its
    /// directory is older, and others may know of promises that it lacks. It recovers like a
    /// replica that lost everything. If there is a controller, this message arrives while the
    /// replica waits for earlier leases to end.
    pub(in crate::quorum) fn on_was_durable(
        &mut self,
        now: Now,
        incarnation: u64,
        held: Held,
        sink: &mut impl Sink,
    ) {
        let begins = self.stage == Stage::Recovering
            && self.recovery.is_under_way()
            && !self.recovery.is_from_nothing();
        let lacks =
            incarnation == self.setup.me.incarnation && self.held().position < held.position;
        if begins && lacks && self.setup.guards.on(Guard::HeardDurable) {
            self.vr_count.older_directories += 1;
            self.come_again(now, self.crash_vector.mine(), sink);
        }
    }

    /// Stops waiting for the view's leader, which has restarted and forgotten the view.
    pub(in crate::quorum) fn lose_leader(&mut self, now: Now) {
        let gone = now.instant.0.saturating_sub(self.suspect_ns());
        self.suspicion.lose_leader(concord_core::Instant(gone));
    }

    /// Answers a member that has lost everything. Its crash vector has announced its new
    /// incarnation already.
    pub(in crate::quorum) fn on_recovery(&mut self, from: usize, sink: &mut impl Sink) {
        if self.stage != Stage::Normal {
            return;
        }
        let leads = self.is_leader() && self.knows_voters();
        let leader =
            leads.then(|| (self.ordered.log.end(), self.switch, self.sequence.floor().counter));
        match leader {
            Some((end, switch, _)) if !self.group.voters.are_founders() => {
                let [voters, before] = self.voters_that_may_count();
                self.say(from, VrBody::VotersAre { end, switch, voters, before }, sink);
            }
            leader => self.say(from, VrBody::RecoveryResponse { leader }, sink),
        }
    }

    /// Leader: whether no replica can be elected any more by a configuration that is not in this
    /// log, or precedes the last committed one: a quorum has a record of this term.
    fn knows_voters(&self) -> bool {
        let is_known = self.committed >= self.leading.view_start();
        is_known || !self.group.elects() || !self.setup.guards.on(Guard::RecoveryTerm)
    }

    pub(in crate::quorum) fn on_recovery_response(
        &mut self,
        from: usize,
        crash_vector: &[CrashVectorEntry],
        answer: Answer,
    ) {
        let mine = self.crash_vector.mine();
        if self.stage == Stage::Recovering && crash_vector.get(self.group.me()) == Some(&mine) {
            self.recovery.note(from, answer);
        }
    }

    /// Whether so many others have `answered` that every quorum of which this node was part has one
    /// of them.
    fn are_enough(&self, voters: Option<[u64; 2]>, answered: u64) -> bool {
        if !self.setup.guards.on(Guard::RecoveryQuorum) {
            return true;
        }
        let (me, all) = (1 << self.group.me(), self.group.all());
        let is_good = |voters: u64| {
            let least = voters.count_ones() as usize - quorum_of(voters) + 1;
            // A node without a vote was part of no quorum.
            voters & me == 0 || (answered & voters & !me).count_ones() as usize >= least
        };
        voters.unwrap_or([all; 2]).into_iter().all(is_good)
    }

    /// Completes the recovery once enough members have answered, with the leader of the latest
    /// view, and no lease that an earlier incarnation granted can be held any more.
    fn consider_recovered(&mut self, now: Now, sink: &mut impl Sink) {
        let outcome = self.recovery.outcome(|voters, answered| self.are_enough(voters, answered));
        let Some((view, leader, (end, switch, floor))) = outcome else { return };
        let waited = self.recovery.has_outlived_leases(now.instant, self.setup.lease_ns);
        if !waited && self.setup.guards.on(Guard::Lease) {
            return;
        }
        if view != self.view {
            self.ballot.new_term();
        }
        self.view = view;
        self.take_leader(leader);
        if !self.recovery.is_from_nothing() {
            // At most it lacks records.
            self.vr_count.recovered += 1;
            self.recovery.end();
        }
        self.suspicion.hear_leader(now.instant);
        self.catch_up(now, end, (switch, floor), sink);
    }
}
