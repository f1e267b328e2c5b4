//! The phases after the faults: all nodes that are alive make progress, and all members come to
//! have the same data.

use concord_core::{MS, SEC};
use concord_engine::Engine;
use concord_protocols::Phase;
use concord_wire::control::LogEnd;

use super::{Process, Rack, Role, Stage};
use crate::systems::store::fault::Fault;
use crate::systems::store::workload::has_short_key;
use crate::world::REPLICAS;

/// The maximum time after the end of all faults until every connection has its answers, in ns.
const RECOVERY_NS_MAX: u64 = 8 * SEC;
/// The maximum time after the beginning of the last operation until the rack is at rest, in ns:
/// longer than a client waits for an answer.
const REST_NS_MAX: u64 = 5 * SEC;
/// The maximum of that time while replicas still copy the state, in ns.
const COPY_NS_MAX: u64 = 60 * SEC;
/// The maximum length of a key's name in reports, in characters.
const NAME_SHOWN: usize = 24;

impl Rack<'_> {
    /// Runs until every connection has had operations answered that it began after the end of all
    /// faults, and reads are fast again (trap T18). Returns a violation if that never happens.
    pub(super) fn run_liveness(&mut self) -> Option<String> {
        let end_ns = self.world.now_ns + RECOVERY_NS_MAX + self.plan.disks.slow_ns();
        while !self.is_lively() {
            if self.world.now_ns > end_ns {
                return Some(self.standing("no progress after everything healed"));
            }
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        None
    }

    fn is_lively(&self) -> bool {
        let all_good = self.slots.iter().all(|slot| match &slot.role {
            Role::Client(process) => process.is_lively(),
            Role::Controller(_) | Role::Switch(_) | Role::Replica(_) | Role::Dead => true,
        });
        let was_fast = |slot: &super::Slot| match &slot.role {
            Role::Client(process) => {
                matches!(&***process, Process::Redis(redis) if redis.was_fast_since_heal())
            }
            Role::Controller(_) | Role::Switch(_) | Role::Replica(_) | Role::Dead => false,
        };
        let is_fast = || self.fast_since_heal > 0 || self.slots.iter().any(was_fast);
        // Commands with a long key are sent as writes are, so that none of them is a fast read.
        let has_short = has_short_key(self.plan.keys, &self.plan.sizes);
        all_good && (!self.plan.program.has_dirty_set() || !has_short || is_fast())
    }

    /// Runs the calm period: clients continue for as long as the plan says. Returns a violation if
    /// there is one.
    pub(super) fn run_calm(&mut self) -> Option<String> {
        if self.plan.calm_ns == 0 {
            return None;
        }
        let since_ns = self.world.now_ns;
        self.stage = Stage::Calm;
        self.calm_from_ns = Some(since_ns);
        while self.world.now_ns < since_ns + self.plan.calm_ns {
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        None
    }

    /// Runs until the rack is at rest and all members have the same data. Returns a violation if
    /// that never happens.
    pub(super) fn run_to_rest(&mut self) -> Option<String> {
        self.stage = Stage::Rest;
        let rest_ns = REST_NS_MAX + self.plan.disks.slow_ns();
        let (mut end_ns, mut copied) = (self.world.now_ns + rest_ns, self.parts_installed());
        let last_ns = self.world.now_ns + COPY_NS_MAX + self.plan.disks.slow_ns();
        let mut restart_ns = Some(self.world.now_ns + rest_ns / 2);
        loop {
            let look_ns = self.world.now_ns + 10 * MS;
            while self.world.now_ns < look_ns {
                if let Some(text) = self.next_event() {
                    return Some(text);
                }
            }
            let Err(why) = self.is_at_rest() else { return None };
            // A gateway keeps asking for the digests of keys that its clients cache, and asks for a
            // long key by a write: with a slow disk, one after the other.
            if self.plan.gateways.caches
                && restart_ns.take_if(|at| self.world.now_ns > *at).is_some()
            {
                self.restart_gateways();
            }
            // Thousands of parts of a few bytes each take their time.
            let installed = self.parts_installed();
            if std::mem::replace(&mut copied, installed) != installed {
                end_ns = last_ns.min(self.world.now_ns + rest_ns);
            }
            if self.world.now_ns > end_ns {
                return Some(self.standing(&why));
            }
        }
    }

    /// Restarts the gateways, so that no client of theirs caches anything.
    fn restart_gateways(&mut self) {
        let first = self.plan.clients - self.plan.gateways.count;
        for client in first..self.plan.clients {
            self.restart_client(client);
        }
    }

    /// The number of parts of copies that replicas have installed.
    fn parts_installed(&self) -> u64 {
        let replicas = self.slots.iter().filter_map(super::Slot::replica);
        replicas.map(|replica| replica.counters().chunks_installed).sum()
    }

    fn is_at_rest(&self) -> Result<(), String> {
        let is_busy = |slot: &super::Slot| match &slot.role {
            Role::Client(p) => p.is_busy(),
            Role::Controller(_) | Role::Switch(_) | Role::Replica(_) | Role::Dead => false,
        };
        if self.slots.iter().any(is_busy) {
            return Err("an operation never ends".into());
        }
        if self.plan.protocol.is_quorum() {
            return self.is_vr_at_rest();
        }
        let Some(config) = self.config() else { return Err("there is no epoch".into()) };
        if let Role::Switch(switch) = &self.slots[self.active_switch()].role {
            if switch.epoch().0 != config.epoch {
                return Err("the switch has not heard of the newest epoch".into());
            }
            if switch.program().view().occupied > 0 {
                return Err("the dirty set keeps entries at rest".into());
            }
        }
        for node in REPLICAS..REPLICAS + self.replicas {
            let slot = &self.slots[node];
            let is_member = |r: &super::Replica| config.members.contains(r.member());
            if slot.replica().is_some_and(|r| !slot.engine_lost && !is_member(r)) {
                return Err(format!("{} is no member at rest", self.name_of(node)));
            }
        }
        let decides = config.head().map_or(REPLICAS, |m| REPLICAS + usize::from(m.node));
        let mut first: Option<(LogEnd, Option<u64>, u64)> = None;
        for member in &config.members {
            let node = REPLICAS + usize::from(member.node);
            let Some(replica) = self.member(node).filter(|r| r.phase() == Phase::Open) else {
                return Err(format!("{} has not opened the newest epoch", self.name_of(node)));
            };
            let clock = self.world.clock(decides);
            let behind_ms = self.member(decides).map_or(0, |r| r.status(clock).log_behind_ms);
            if let Some(late) = self.overdue(replica.engine(), (decides, behind_ms)) {
                return Err(format!(
                    "{} keeps {late}, whose time is over, at rest",
                    self.name_of(node)
                ));
            }
            let end = replica.log().end();
            if replica.executed().0 != end.position {
                return Err(format!("{} has records to execute at rest", self.name_of(node)));
            }
            // Backups learn what is committed with the next record only.
            let is_reader = config.reader().is_some_and(|m| m.node == member.node);
            if is_reader && replica.committed().0 != end.position {
                return Err(format!("{} has uncommitted records at rest", self.name_of(node)));
            }
            let data = replica.engine().digest();
            let holds = (end, data, replica.sessions_digest());
            if first.is_some_and(|other| other != holds) {
                return Err(format!("replicas differ at rest: {first:?} and {holds:?}"));
            }
            first = Some(holds);
        }
        Ok(())
    }

    /// A key that has expired by the clock of the node that decides on it, and is still there.
    pub(super) fn overdue(
        &self,
        engine: &impl Engine,
        (decides, log_behind_ms): (usize, i64),
    ) -> Option<String> {
        // The log's time decides on expiries, and does not follow a clock that jumped.
        if self.plan.faults.iter().any(|f| matches!(f.fault, Fault::ClockJump { .. })) {
            return None;
        }
        // The log's time may also have stood still for as long as no write was possible: the next
        // node that orders writes continues from the last record, and need not have been there
        // before.
        let stood_ms = self.progress.stood_ns / MS;
        let behind_ms = stood_ms.min(log_behind_ms.max(0) as u64);
        let now_ms = self.world.clock(decides).unix_ms.saturating_sub(behind_ms);
        let mut due = Vec::new();
        engine.due(now_ms, None, 1, &|_, _| false, &mut due);
        let (key, at_ms) = due.first()?;
        let name: String = String::from_utf8_lossy(key).chars().take(NAME_SHOWN).collect();
        Some(format!("{name} ({} bytes, {} ms late)", key.len(), now_ms - at_ms))
    }
}
