//! Graceful shutdown of a replica of VR, NOPaxos or Raft ([`crate::retire`]). Its group stays the
//! same, and outvotes a silent member. So
//! 1. a leader hands over: it begins the change to the next view whose leader it hears, and does
//!    not lead again;
//! 2. a follower tells its leader, which has the switch send it no more reads, and serves
//!    meanwhile;
//! 3. then the replica stops answering, and gives its leases back, so that no vote waits for their
//!    end (trap T2).

use concord_core::{Instant, Now};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::vr::VrBody;

use super::farewell::Farewell;
use super::{QuorumReplica, Stage};
use crate::retire::{RELEASES, Retired};

impl<E: Engine> QuorumReplica<E> {
    /// Tells the replica to end: see [`crate::Replica::retire`].
    pub fn retire(&mut self, now: Now) {
        self.farewell.get_or_insert_with(|| Farewell::begin(now.instant));
    }

    /// Whether a replica that was told to end has left.
    #[must_use]
    pub fn retired(&self, _now: Now) -> Option<Retired> {
        let farewell = self.farewell.as_ref()?;
        // A recovering replica has no promises.
        if matches!(self.stage, Stage::Out | Stage::Recovering) {
            return Some(Retired::InOrder);
        }
        if self.group.is_alone() {
            return Some(Retired::Alone);
        }
        let how = if farewell.is_in_vain() { Retired::InVain } else { Retired::InOrder };
        (farewell.retiring.releases >= RELEASES).then_some(how)
    }

    /// The next time at which [`QuorumReplica::tick_retiring`] has work.
    pub(super) fn retiring_at(&self) -> Instant {
        self.farewell.as_ref().map_or(Instant::NEVER, |f| f.retiring.next_at)
    }

    pub(super) fn tick_retiring(&mut self, now: Now, sink: &mut impl Sink) {
        let (view, leader) = (self.view, self.group.leader_of(self.view));
        let Some(farewell) = &mut self.farewell else { return };
        if !farewell.retiring.is_due(now.instant) {
            return;
        }
        if self.stage != Stage::Left && farewell.gives_up(now.instant) {
            return self.fail_stop();
        }
        match self.stage {
            Stage::Left if farewell.retiring.releases < RELEASES => {
                farewell.retiring.releases += 1;
                self.say_all(VrBody::Retire { released: true }, sink);
            }
            Stage::Normal if leader == Some(self.group.me()) => self.hand_on(now, sink),
            Stage::Normal => {
                if farewell.tells(now.instant, view)
                    && let Some(leader) = leader
                {
                    self.say(leader, VrBody::Retire { released: false }, sink);
                } else {
                    self.fail_stop();
                }
            }
            Stage::Out | Stage::ViewChange | Stage::Starting | Stage::Recovering | Stage::Left => {}
        }
    }

    /// Leader: leaves its view for the next one whose leader it hears.
    pub(super) fn hand_on(&mut self, now: Now, sink: &mut impl Sink) {
        let members = self.group.members().len();
        if self.group.is_alone() {
            return;
        }
        self.vr_count.handed_on += 1;
        if self.group.elects() {
            return self.hand_over(now, sink);
        }
        let is_live =
            |by: &usize| self.is_live(now.instant, self.group.operation_of(self.next_view(*by)));
        let by = (1..members).find(is_live).unwrap_or(1);
        self.enter_view(now, self.next_view(by), sink);
    }

    /// Handles the message that member `from` leaves; the crash vector has its incarnation.
    pub(super) fn on_retire(
        &mut self,
        now: Now,
        from: usize,
        incarnation: u64,
        released: bool,
        sink: &mut impl Sink,
    ) {
        if let Some(follower) = self.leading.followers.get_mut(from)
            && !follower.retires
        {
            follower.retires = true;
            self.leading.hurry_switch(now.instant);
        }
        if !released {
            return;
        }
        let node = self.group.node_of(from);
        self.leases.release(node, incarnation, self.setup.guards);
        self.release_reads(node, incarnation);
        if self.stage == Stage::ViewChange && !self.group.elects() {
            self.vote_if_due(now, sink);
        }
    }
}
