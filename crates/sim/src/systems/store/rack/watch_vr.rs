//! The invariants of quorum protocols, checked after every event of a replica, and the conditions
//! at rest.
//!
//! - View, commit point and execution point never decrease in one incarnation, and executed <=
//!   committed <= end of the log.
//! - No two replicas ever call different records committed, by their running hash at each position.
//! - When a view begins, no replica holds a lease of an earlier one (T2).
//! - No replica leaves whose engine was not lost.

use concord_core::Position;
use concord_protocols::Phase;
use concord_protocols::quorum::QuorumReplica;
use concord_wire::record::Record;
use concord_wire::vr::CrashVectorEntry;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::{Rack, Replicas};
use crate::world::REPLICAS;

type Replica = QuorumReplica<concord_engine::Shimmed<crate::systems::store::storage::Store>>;

/// The last observed state of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    incarnation: CrashVectorEntry,
    view: u32,
    leads: bool,
    executed: u64,
    committed: u64,
}

/// All observations so far.
#[derive(Debug, Default)]
pub(super) struct WatchVr {
    replicas: HashMap<usize, Seen, FxBuildHasher>,
    /// The running hash at every position that some replica called committed.
    hashes: HashMap<u64, u64, FxBuildHasher>,
    /// The latest view that has begun.
    begun: u32,
}

impl Rack<'_> {
    fn vr(&self, node: usize) -> Option<&Replica> {
        match self.slots[node].replica() {
            Some(Replicas::Vr(vr)) => Some(vr),
            Some(Replicas::Replica(_)) | None => None,
        }
    }

    pub(super) fn look_at_vr(&mut self, node: usize) -> Option<String> {
        let vr = self.vr(node)?;
        let now = Seen {
            incarnation: vr.own_entry(),
            // A recovering replica is in no view yet.
            view: if vr.is_recovering() { 0 } else { vr.view().0 },
            leads: vr.leads(),
            executed: vr.executed().0,
            committed: vr.committed().0,
        };
        let is_to_leave =
            self.slots[node].engine_lost || self.slots[node].retiring_for_ns.is_some();
        if vr.phase() == Phase::Left && !is_to_leave {
            return Some("it left, and its engine was not lost".into());
        }
        let begun = self.watch.vr.begun;
        if now.view < begun && vr.holds_lease(self.world.clock(node)) {
            return Some(format!("it holds a lease in view {}, and view {begun} began", now.view));
        }
        let before = self.watch.vr.replicas.get(&node).copied().unwrap_or_default();
        let before = if before.incarnation == now.incarnation { before } else { Seen::default() };
        // It discarded its data to copy the state: it counts as a recovering one.
        let gives_up = !vr.is_intact() && now.executed < before.executed;
        let before = if gives_up { Seen { executed: 0, committed: 0, ..before } } else { before };
        let end = vr.log().end().position;
        // A replica whose state is unchanged may still have discarded the end of its log.
        if before == now && now.committed <= end {
            return None;
        }
        let went_back = now.view < before.view
            || now.executed < before.executed
            || now.committed < before.committed;
        if went_back || now.executed > now.committed || now.committed > end {
            return Some(format!("from {before:?} to {now:?}, the log ends at {end}"));
        }
        let found = self.note_committed(node, before.committed, now.committed);
        let begins = now.leads && now.view > begun;
        self.watch.vr.replicas.insert(node, now);
        found.or_else(|| if begins { self.note_begun(now.view) } else { None })
    }

    /// Checks that what a replica calls committed is what others called committed, at each
    /// position.
    fn note_committed(&mut self, node: usize, from: u64, to: u64) -> Option<String> {
        for position in from + 1..=to {
            let vr = self.vr(node)?;
            // A replica that copied the state does not have these records.
            let Some(bytes) = vr.log().record(Position(position)) else { continue };
            let Ok(record) = Record::parse(bytes) else { continue };
            let (hash, seq) = (record.hash, record.seq);
            if *self.watch.vr.hashes.entry(position).or_insert(hash) != hash {
                return Some(format!(
                    "record {position} is committed, and is not what others hold"
                ));
            }
            if seq.is_some() {
                self.watch.positions.insert(seq.to_u64(), position);
            }
        }
        self.watch.committed.1 = self.watch.committed.1.max(to);
        None
    }

    fn note_begun(&mut self, view: u32) -> Option<String> {
        self.watch.vr.begun = view;
        let leased = (REPLICAS..REPLICAS + self.plan.replicas).find(|node| {
            let now = self.world.clock(*node);
            self.vr(*node).is_some_and(|vr| vr.view().0 < view && vr.holds_lease(now))
        });
        leased.map(|node| {
            format!(
                "view {view} begins, and {} holds a lease of an earlier one",
                self.name_of(node)
            )
        })
    }

    /// Checks that all living replicas are in one view, have executed their logs and have the same
    /// data, and that the switch follows the view and tracks no write.
    pub(super) fn is_vr_at_rest(&self) -> Result<(), String> {
        let left = (REPLICAS..REPLICAS + self.plan.replicas).find(|n| {
            self.vr(*n).is_some_and(|vr| vr.phase() == Phase::Left) && !self.slots[*n].engine_lost
        });
        if let Some(node) = left {
            return Err(format!("{} left, and its engine was not lost", self.name_of(node)));
        }
        let alive: Vec<usize> = (REPLICAS..REPLICAS + self.plan.replicas)
            .filter(|n| self.vr(*n).is_some_and(|vr| vr.phase() != Phase::Left))
            .collect();
        let view = alive.iter().filter_map(|n| self.vr(*n)).map(|vr| vr.view().0).max();
        if let super::Role::Switch(switch) = &self.slots[self.active_switch()].role {
            if Some(switch.epoch().0) != view {
                return Err("the switch has not heard of the newest view".into());
            }
            if switch.program().view().occupied > 0 {
                return Err("the dirty set keeps entries at rest".into());
            }
        }
        let leads =
            |n: &&usize| self.vr(**n).is_some_and(|vr| Some(vr.view().0) == view && vr.leads());
        let Some(leader) = alive.iter().find(leads).copied() else {
            return Err("nobody leads the newest view".into());
        };
        let mut first = None;
        for node in alive {
            let Some(vr) = self.vr(node) else { continue };
            let name = self.name_of(node);
            if vr.phase() != Phase::Open || Some(vr.view().0) != view {
                return Err(format!("{name} is not in the newest view"));
            }
            let clock = self.world.clock(leader);
            let behind_ms = self.vr(leader).map_or(0, |vr| vr.status(clock).log_behind_ms);
            if let Some(late) = self.overdue(vr.engine(), (leader, behind_ms)) {
                return Err(format!("{name} keeps {late}, whose time is over, at rest"));
            }
            let end = vr.log().end();
            if vr.executed().0 != end.position {
                return Err(format!("{name} has records to execute at rest"));
            }
            let data = concord_engine::Engine::digest(vr.engine());
            let holds = (end, data, vr.sessions_digest());
            if first.is_some_and(|other| other != holds) {
                return Err(format!("replicas differ at rest: {first:?} and {holds:?}"));
            }
            first = Some(holds);
        }
        Ok(())
    }
}
