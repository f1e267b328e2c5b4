//! The status of a replica, for its host, the controller and `concord status`.

use concord_core::{Guards, Now, ViewNumber};
use concord_engine::Engine;
use concord_log::Origin;
use concord_wire::control::{Heard, Held, Standing, Voting};
use concord_wire::vr::CrashVectorEntry;

use super::{QuorumCounters, QuorumReplica, Stage};
use crate::setup::Phase;
use crate::status::ReplicaStatus;

impl<E: Engine> QuorumReplica<E> {
    /// This replica's entry in its crash vector. It changes if the process has to begin another
    /// incarnation.
    #[must_use]
    pub fn own_entry(&self) -> CrashVectorEntry {
        self.crash_vector.mine()
    }

    /// The guards that are on.
    pub(crate) fn guards(&self) -> Guards {
        self.setup.guards
    }

    /// The view; 0 if the group is not known.
    #[must_use]
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// Whether it is asking the others for their view.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.stage == Stage::Recovering
    }

    /// Whether its group elects its leaders (Raft).
    pub(crate) fn elects(&self) -> bool {
        self.group.elects()
    }

    /// Whether it leads its view, and the view has begun.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.is_leader()
    }

    /// Whether it holds leases from so many members that no later view can have begun (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        self.stage == Stage::Normal && self.has_quorum_of_leases(now.instant)
    }

    /// The counters of quorum replicas alone.
    #[must_use]
    pub fn vr_counters(&self) -> &QuorumCounters {
        &self.vr_count
    }

    /// The standing that the controller is told. It removes no member because of it: the group
    /// stays the same.
    pub(super) fn standing(&self) -> Standing {
        match self.stage {
            Stage::Out => match self.journal.origin() {
                Some(Origin { id, switch_id, .. }) => Standing::Founding { origin: id, switch_id },
                None => Standing::Out,
            },
            Stage::Normal => Standing::Open { caught_up: self.is_caught_up() },
            Stage::Recovering if self.is_new || !self.recovery.is_from_nothing() => {
                Standing::Returning { intact: true }
            }
            Stage::ViewChange | Stage::Starting | Stage::Recovering => {
                Standing::Opening { caught_up: false }
            }
            Stage::Left => Standing::Leaving,
        }
    }

    /// The epoch in which its disk has promises, if any, and the position that this node's disk has
    /// for good: the end of the log for a process that starts with it; otherwise the committed
    /// position, since a view change may cut what follows (`Guard::HeardDurable`).
    pub(super) fn held(&self) -> Held {
        if !self.journal.is_on() || self.is_new || self.stage == Stage::Out {
            return Held::default();
        }
        let begins = self.stage == Stage::Recovering && !self.recovery.is_from_nothing();
        let committed = if begins { self.ordered.end() } else { self.commit_point() };
        Held { epoch: self.group.epoch(), position: committed.min(self.journal.durable()).0 }
    }

    /// The newest epoch and switch that it has heard of, from the controller or the leader.
    pub(super) fn heard(&self) -> Heard {
        let Some(config) = &self.group.config else { return Heard::default() };
        let switch_id = config.switch_id.max(self.switch.id);
        Heard { rack: config.rack, epoch: config.epoch, switch_id }
    }

    /// Raft: the voters according to the log here; `None` during a copy, which is not a log.
    pub(super) fn voting(&self) -> Option<Voting> {
        let has_log = self.group.elects() && !self.has_given_up();
        has_log.then(|| Voting { last: self.last_record(), voters: self.group.voters() })
    }

    /// Whether it has executed the log with which its view began.
    pub(super) fn is_caught_up(&self) -> bool {
        self.stage == Stage::Normal && self.executed >= self.leading.view_start()
    }

    /// The replica's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.stage {
            Stage::Out => Phase::Out,
            Stage::Normal => Phase::Open,
            Stage::ViewChange | Stage::Starting | Stage::Recovering => Phase::Opening,
            Stage::Left => Phase::Left,
        }
    }

    /// Whether it has all promises of its node.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        !self.recovery.is_from_nothing()
            && self.copying.is_none()
            && !matches!(self.stage, Stage::Out | Stage::Left)
    }

    /// The state to show to people. Its epoch is the view.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        let role = match self.stage {
            Stage::Out | Stage::Left => "none",
            Stage::Normal if self.group.members().len() == 1 => "alone",
            Stage::Normal if self.is_leader() => "leader",
            Stage::Normal if !self.group.is_voter(self.group.me()) => "non-voter",
            Stage::Normal => "follower",
            Stage::ViewChange if self.ballot.candidacy().is_some() => "candidate",
            Stage::ViewChange if self.group.elects() => "no leader",
            Stage::ViewChange => "view change",
            Stage::Starting | Stage::Recovering if self.recovery.is_from_nothing() => "recovering",
            Stage::Starting | Stage::Recovering if self.recovery.is_under_way() => "returning",
            Stage::Starting | Stage::Recovering => "catching up",
        };
        ReplicaStatus {
            node: self.group.node(),
            phase: self.phase(),
            epoch: self.epoch(),
            role,
            switch_id: self.switch.id,
            executed: self.executed,
            committed: self.committed,
            caught_up: self.is_caught_up(),
            copied_percent: None,
            leased: self.holds_lease(now),
            keys: self.serving.engine.keys(),
            memory_bytes: self.serving.engine.memory_bytes(),
            sessions: self.serving.sessions.len(),
            log_behind_ms: if self.is_leader() && !self.is_timeless() {
                now.unix_ms.wrapping_sub(self.ordered.clock.read(now.unix_ms)) as i64
            } else {
                0
            },
        }
    }
}
