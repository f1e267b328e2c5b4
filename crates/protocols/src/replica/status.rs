//! A replica's status, for the controller and for observers.

use concord_core::Now;
use concord_engine::Engine;
use concord_log::Origin;
use concord_wire::control::{Held, Standing};

use super::Replica;
use crate::setup::Phase;
use crate::status::ReplicaStatus;

impl<E: Engine> Replica<E> {
    /// Its standing, as reported to the controller.
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
            // An epoch with it as a member would wait for it.
            Phase::Joining if self.is_copied() && !self.is_quiet(now) => Standing::Copied,
            Phase::Joining => Standing::Copying,
            Phase::Opening => Standing::Opening { caught_up: self.caught_up },
            Phase::Open => Standing::Open { caught_up: self.caught_up },
            Phase::Left => Standing::Leaving,
        }
    }

    /// The complete state that is here, if there is one, member or not: if all members are lost, it
    /// may be the newest that is left. With a disk it is the state on the disk, so that a later
    /// start with less is known to have been given an older one (`Guard::HeardDurable`).
    pub(super) fn held(&self) -> Held {
        let is_complete =
            self.copy.is_caught_up() && self.held_epoch > 0 && self.journal.has_held();
        if self.phase == Phase::Left || !is_complete {
            return Held::default();
        }
        let position = self.ordered.end().min(self.journal.durable()).0;
        Held { epoch: self.held_epoch, position }
    }

    /// Whether everything that was agreed when its epoch opened is executed here.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.phase == Phase::Open && self.caught_up
    }

    /// The status for observers.
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
