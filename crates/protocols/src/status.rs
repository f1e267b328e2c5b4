//! What a replica tells of itself: to the controller, and to whoever looks.

use concord_core::{Epoch, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{Heard, Held, Protocol, Standing};

use crate::join::Stage;
use crate::replica::{Phase, Replica};

/// What `concord status` shows of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The node.
    pub node: NodeId,
    /// Where it stands.
    pub phase: Phase,
    /// Its epoch; 0 if none.
    pub epoch: Epoch,
    /// "head", "middle", "tail", "primary", "backup", "alone", "joining" or "none".
    pub role: &'static str,
    /// The active switch.
    pub switch_id: u32,
    /// The end of its log.
    pub executed: Position,
    /// Up to where it knows the log to be committed.
    pub committed: Position,
    /// Whether all that was agreed when the epoch opened is executed here.
    pub whole: bool,
    /// How much of the state it has, in percent, if it joins.
    pub copied_percent: Option<u8>,
    /// Whether it may answer alone.
    pub leased: bool,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of data.
    pub memory_bytes: u64,
    /// Number of client sessions.
    pub sessions: usize,
    /// Who orders writes: how far the log's time is behind the node's clock, in ms.
    pub log_behind_ms: i64,
}

impl<E: Engine> Replica<E> {
    /// Where it stands, as it tells the controller.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.phase {
            _ if self.retiring.is_some() => Standing::Leaving,
            Phase::Out => Standing::Out,
            Phase::Joining if self.is_copied() => Standing::Copied,
            Phase::Joining => Standing::Copying,
            Phase::Opening => Standing::Opening { whole: self.whole },
            Phase::Open => Standing::Open { whole: self.whole },
            Phase::Left => Standing::Leaving,
        }
    }

    /// What it heard of.
    pub(crate) fn heard(&self) -> Heard {
        self.config.as_ref().map_or_else(Heard::default, |c| Heard {
            rack: c.rack,
            epoch: c.epoch,
            switch_id: c.switch_id,
        })
    }

    /// The complete state that is here, if there is one, member or not: where all members are lost, it
    /// may be the newest that is left.
    pub(crate) fn held(&self) -> Held {
        if self.phase == Phase::Left || self.copy.stage != Stage::Whole || self.held_epoch == 0 {
            return Held::default();
        }
        Held { epoch: self.held_epoch, position: self.log.end().position }
    }

    /// A digest of the client table, equal on replicas that executed the same: for tests.
    #[must_use]
    pub fn sessions_digest(&self) -> u64 {
        self.sessions.digest()
    }

    /// Whether all that was agreed when its epoch opened is executed here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.phase == Phase::Open && self.whole
    }

    /// What to show of the replica.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        ReplicaStatus {
            node: self.node(),
            phase: self.phase,
            epoch: self.epoch(),
            role: self.role(),
            switch_id: self.config.as_ref().map_or(0, |c| c.switch_id),
            executed: self.executed,
            committed: self.committed,
            whole: self.is_whole(),
            copied_percent: (self.phase == Phase::Joining).then(|| self.copy.percent()),
            leased: self.phase == Phase::Open && self.leases.is_held(now.instant),
            keys: self.engine.keys(),
            memory_bytes: self.engine.memory_bytes(),
            sessions: self.sessions.len(),
            log_behind_ms: if self.phase == Phase::Open && self.is_head() && !self.is_timeless() {
                now.unix_ms.wrapping_sub(self.clock.read(now.unix_ms)) as i64
            } else {
                0
            },
        }
    }

    fn role(&self) -> &'static str {
        let Some(config) = &self.config else { return "none" };
        match self.phase {
            Phase::Out | Phase::Left => return "none",
            Phase::Joining => return "joining",
            Phase::Opening | Phase::Open => {}
        }
        let alone = config.members.len() == 1;
        match (alone, config.protocol, self.is_head(), self.is_reader()) {
            (true, ..) => "alone",
            (false, Protocol::PrimaryBackup, true, _) => "primary",
            (false, Protocol::PrimaryBackup, false, _) => "backup",
            (false, Protocol::Vr | Protocol::NoPaxos, ..) => "none",
            (false, Protocol::Chain | Protocol::Craq, true, _) => "head",
            (false, Protocol::Chain | Protocol::Craq, false, true) => "tail",
            (false, Protocol::Chain | Protocol::Craq, false, false) => "middle",
        }
    }
}
