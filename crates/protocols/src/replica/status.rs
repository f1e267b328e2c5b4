//! A replica's status: to the controller, and to whoever looks.

use concord_core::Now;
use concord_engine::Engine;
use concord_log::Origin;
use concord_wire::control::{Held, Standing};

use super::Replica;
use crate::setup::Phase;
use crate::status::ReplicaStatus;

impl<E: Engine> Replica<E> {
    /// Where it stands, as it tells the controller.
    #[must_use]
    pub fn standing(&self, now: Now) -> Standing {
        match self.phase {
            _ if self.retiring.is_some() => Standing::Leaving,
            Phase::Out => match (self.journal.origin(), self.journal.is_intact()) {
                (Some(Origin { id, switch_id, .. }), _) => {
                    Standing::Founding { origin: id, switch_id }
                }
                (None, Some(intact)) => Standing::Returning { intact },
                (None, None) => Standing::Out,
            },
            // An epoch that it is a member of would wait for it.
            Phase::Joining if self.is_copied() && !self.is_quiet(now) => Standing::Copied,
            Phase::Joining => Standing::Copying,
            Phase::Opening => Standing::Opening { caught_up: self.caught_up },
            Phase::Open => Standing::Open { caught_up: self.caught_up },
            Phase::Left => Standing::Leaving,
        }
    }

    /// The complete state that is here, if there is one, member or not: where all members are lost,
    /// it may be the newest that is left.
    pub(super) fn held(&self) -> Held {
        if self.phase == Phase::Left || !self.copy.is_caught_up() || self.held_epoch == 0 {
            return Held::default();
        }
        Held { epoch: self.held_epoch, position: self.ordered.log.end().position }
    }

    /// Whether all that was agreed when its epoch opened is executed here.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.phase == Phase::Open && self.caught_up
    }

    /// What to show of the replica.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        ReplicaStatus {
            node: self.role.node(),
            phase: self.phase,
            epoch: self.role.epoch(),
            role: self.role(),
            switch_id: self.role.switch_id(),
            executed: self.executed,
            committed: self.committed,
            caught_up: self.is_caught_up(),
            copied_percent: (self.phase == Phase::Joining).then(|| self.copy.percent()),
            leased: self.holds_lease(now),
            keys: self.serving.engine.keys(),
            memory_bytes: self.serving.engine.memory_bytes(),
            sessions: self.serving.sessions.len(),
            log_behind_ms: if self.phase == Phase::Open
                && self.role.is_head()
                && !self.is_timeless()
            {
                now.unix_ms.wrapping_sub(self.ordered.clock.read(now.unix_ms)) as i64
            } else {
                0
            },
        }
    }

    fn role(&self) -> &'static str {
        match self.phase {
            Phase::Out | Phase::Left => "none",
            Phase::Joining => "joining",
            Phase::Opening | Phase::Open => self.role.name(),
        }
    }
}
