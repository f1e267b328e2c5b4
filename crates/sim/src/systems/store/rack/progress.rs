//! The check of progress while a minority is at fault: as long as the others can go on, operations
//! end.
//!
//! It is made every [`LOOK_NS`] of the safety phase. The others can go on if the network between
//! them works as usual, the switch, the controller and a client are well, and
//! - with quorum protocols: the replicas that are well and have lost nothing are a quorum;
//! - while the controller's disk is full: all members and the switch are alive, and no node is at
//!   fault;
//! - in the chain family: some replica that is well has all the data, and each replica that is not
//!   well looks dead to the controller, which decides; or it tells the controller that it cannot
//!   reach another member. (A member that receives nothing but is heard is not replaced: nobody
//!   knows of its fault.)
//!
//! From the last change of the nodes at fault on, a read and a write must each end within
//! [`Rack::progress_ns`].

use std::collections::BTreeSet;

use concord_core::{Duration, MS};
use concord_protocols::Phase;
use concord_wire::control::{Config, Member};

use super::{Rack, Replicas, Role};
use crate::world::{CONTROLLER, REPLICAS};

/// The interval of the check, in ns.
const LOOK_NS: Duration = 10 * MS;
/// The time that requests take after several losses, and that long ones take, in ns.
const RETRIES_NS: Duration = 1_000 * MS;
/// VR, NOPaxos: the time that a new view takes after its leader is suspected, if the first attempts
/// fail, in ns.
const VIEWS_NS: Duration = 2_000 * MS;
/// The time for which the absence of writes does not count as a stop, in ns.
const STOOD_NS: Duration = 1_000 * MS;
/// The approximate time after which a leader whose disk hangs leaves its view, in ns.
const LEADER_DISK_NS: Duration = 5_500 * MS;
/// The shares of writes, in percent, with which both reads and writes are frequent.
const BOTH_PERCENT: std::ops::RangeInclusive<u64> = 10..=90;

/// The state of the check.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The time of the next check, in ns.
    look_ns: u64,
    /// The nodes that are at fault; `None` if the others cannot go on.
    unwell: Option<BTreeSet<usize>>,
    /// The time since when that is so, in ns.
    since_ns: u64,
    /// The time of the last read that ended with a reply, and of the last write, in ns.
    pub ended_ns: [u64; 2],
    /// The total time without a completed write, in ns, of all periods of at least [`STOOD_NS`].
    pub stood_ns: u64,
}

impl Progress {
    /// Notes an operation that ended with a reply.
    pub(super) fn see(&mut self, now_ns: u64, is_write: bool) {
        let last_ns = core::mem::replace(&mut self.ended_ns[usize::from(is_write)], now_ns);
        if is_write && now_ns - last_ns >= STOOD_NS {
            self.stood_ns += now_ns - last_ns;
        }
    }
}

impl Rack<'_> {
    /// The time within which operations must end, in ns.
    fn progress_ns(&self) -> Duration {
        let plan = self.plan;
        let decision_ns = if plan.protocol.is_quorum() { VIEWS_NS } else { 2 * plan.failure_ns };
        // After a pipeline a client pauses for as long as after each of its commands.
        let together = if plan.gateways.count > 0 { plan.gateways.pipeline_max } else { 1 };
        let think_ns = 2 * plan.think_ns * together;
        let is_hung = self.disks.iter().any(|disk| disk.hangs(self.world.now_ns));
        let hung_ns = if is_hung { LEADER_DISK_NS } else { 0 };
        let disks_ns = plan.disks.slow_ns() + hung_ns;
        decision_ns + 2 * plan.lease_ns + RETRIES_NS + think_ns + disks_ns
    }

    /// Returns a violation if no operation ends though the others can go on.
    pub(super) fn look_at_progress(&mut self) -> Option<String> {
        let now_ns = self.world.now_ns;
        if now_ns < self.progress.look_ns || !self.plan.invariants {
            return None;
        }
        self.progress.look_ns = now_ns + LOOK_NS;
        let unwell =
            self.unwell().filter(|unwell| self.can_go_on(unwell) && self.may_be_decided(unwell));
        if unwell != self.progress.unwell {
            self.progress.unwell = unwell;
            self.progress.since_ns = now_ns;
        }
        let unwell = self.progress.unwell.as_ref()?;
        let most_ns = self.progress_ns();
        let kinds = if BOTH_PERCENT.contains(&self.plan.writes_percent) { 0..2 } else { 0..0 };
        let last_ns = self.progress.ended_ns;
        let least_ns = kinds.map(|kind| last_ns[kind]).min().unwrap_or(last_ns[0].max(last_ns[1]));
        let stalled_ns = now_ns - least_ns.max(self.progress.since_ns).min(now_ns);
        if !unwell.is_empty() {
            self.totals.stalled_ns_max = self.totals.stalled_ns_max.max(stalled_ns);
            self.totals.watched_ns += LOOK_NS;
        }
        if stalled_ns <= most_ns {
            return None;
        }
        let names: Vec<String> = unwell.iter().map(|n| self.name_of(*n).to_string()).collect();
        let why = format!(
            "no progress for {} ms while only {names:?} are unwell (the last read ended at {} ms, \
             the last write at {} ms)",
            stalled_ns / MS,
            last_ns[0] / MS,
            last_ns[1] / MS
        );
        Some(self.standing(&why))
    }

    /// Notes that a fault begins or ends, from where the time counts anew.
    pub(super) fn restart_progress(&mut self) {
        self.progress.since_ns = self.world.now_ns;
    }

    /// The replicas and clients that are at fault, or cannot reach a node that is not; `None` if
    /// other nodes are at fault as well.
    fn unwell(&self) -> Option<BTreeSet<usize>> {
        let now_ns = self.world.now_ns;
        let is_worse = self.world.bursts.iter().any(|b| now_ns < b.until_ns)
            || now_ns < self.world.completions_lost_until_ns
            // A write waits for the disks of all members, until one whose disk hangs has left.
            || (!self.plan.protocol.is_quorum() && (REPLICAS..REPLICAS + self.replicas).any(|n| self.is_hung(n)))
            // It waits for the engines, too, which may be busy for long.
            || self.plan.engine_work_ns > 0
                && self.slots.iter().any(|slot| slot.engine_stalled_until_ns > now_ns);
        let switch = self.active_switch();
        if self.file.is_old() {
            return None;
        }
        let (fixed, other) = ([CONTROLLER, switch], self.other_controller());
        let is_asleep = |node: usize| self.slots[node].paused_until_ns > now_ns;
        let has_other = matches!(self.slots[other].role, Role::Controller(_));
        if is_worse || fixed.into_iter().any(is_asleep) || (has_other && is_asleep(other)) {
            return None;
        }
        let clients = REPLICAS + self.replicas..other;
        let mut unwell: BTreeSet<usize> = (REPLICAS..clients.end)
            .filter(|node| is_asleep(*node) || self.is_unwell_replica(*node))
            .collect();
        let counts = |node: &usize| *node < clients.end || *node == switch;
        let cuts = self.world.cuts.iter().filter(|c| now_ns < c.until_ns).map(|c| (c.from, c.to));
        // Packets that are held arrive late, all at once.
        let holds =
            self.world.holds.iter().filter(|h| now_ns < h.arrive_ns).map(|h| (h.from, h.to));
        let mut edges: Vec<(usize, usize)> =
            cuts.chain(holds).filter(|(a, b)| counts(a) && counts(b) && a != b).collect();
        loop {
            edges.retain(|(a, b)| !unwell.contains(a) && !unwell.contains(b));
            if edges.iter().any(|(a, b)| fixed.contains(a) && fixed.contains(b)) {
                return None;
            }
            // The node that is cut off from most others; a client first, since nobody needs it.
            let touched =
                |node: &usize| edges.iter().filter(|(a, b)| a == node || b == node).count();
            let Some(worst) = (REPLICAS..clients.end)
                .filter(|node| touched(node) > 0)
                .max_by_key(|node| (clients.contains(node), touched(node)))
            else {
                break;
            };
            unwell.insert(worst);
        }
        let is_well = |node: usize| !unwell.contains(&node);
        clients.clone().any(is_well).then_some(unwell)
    }

    /// Whether a replica's disk hangs, and the replica has not left for that.
    fn is_hung(&self, node: usize) -> bool {
        let has_left = self.slots[node].replica().is_none_or(|r| r.phase() == Phase::Left);
        !has_left && self.disks[node - REPLICAS].hangs(self.world.now_ns)
    }

    fn is_unwell_replica(&self, node: usize) -> bool {
        let (slot, now_ns) = (&self.slots[node], self.world.now_ns);
        let loses =
            |lost: &[(usize, u64)]| lost.iter().any(|(n, until)| *n == node && now_ns < *until);
        self.is_replica(node)
            && (slot.replica().is_none()
                || slot.engine_lost
                || self.is_hung(node)
                || now_ns < slot.slow.1
                || loses(&self.world.records_lost)
                || loses(&self.world.writes_lost))
    }

    fn can_go_on(&self, unwell: &BTreeSet<usize>) -> bool {
        let is_well = |node: &usize| !unwell.contains(node);
        if self.plan.protocol.is_quorum() {
            let intact = |node: &usize| match self.slots[*node].replica() {
                Some(Replicas::Vr(vr)) => vr.is_intact(),
                Some(Replicas::Replica(_)) | None => false,
            };
            let well = (REPLICAS..REPLICAS + self.plan.replicas).filter(is_well).filter(intact);
            return self.are_quorum(well.fold(0, |set, node| set | 1 << (node - REPLICAS)));
        }
        let Some(config) = self.config() else { return false };
        let node_of = |member: &Member| REPLICAS + usize::from(member.node);
        let looks_well_or_dead = config.members.iter().all(|member| {
            let node = node_of(member);
            is_well(&node)
                || self.living(member).is_none()
                || self.looks_dead(node)
                || (self.reaches_controller(node)
                    && config.members.iter().any(|m| {
                        let other = node_of(m);
                        is_well(&other) && self.is_apart(node, other)
                    }))
        });
        let has_all = config.members.iter().any(|member| {
            let node = node_of(member);
            let caught_up = |r: &super::Replica| r.status(self.world.clock(node)).caught_up;
            is_well(&node) && self.living(member).is_some_and(caught_up)
        });
        looks_well_or_dead && has_all
    }

    /// Whether no decision of the controller is needed, or it can store one: while its disk is
    /// full, the configuration in force stays.
    fn may_be_decided(&self, unwell: &BTreeSet<usize>) -> bool {
        let is_alive = |config: &Config| {
            let switch = self.active_switch();
            matches!(self.slots[switch].role, Role::Switch(_))
                && config.members.iter().all(|member| self.living(member).is_some())
        };
        !self.file.is_full(self.world.now_ns)
            || (unwell.is_empty() && self.config().is_some_and(is_alive))
    }

    /// Whether a replica and the controller hear each other, and the replica has no other fault.
    fn reaches_controller(&self, node: usize) -> bool {
        let is_cut = |a, b| self.is_cut(a, b) || self.is_cut(b, a);
        let is_asleep = self.slots[node].paused_until_ns > self.world.now_ns;
        !is_asleep && !self.is_unwell_replica(node) && !is_cut(node, CONTROLLER)
    }

    /// Whether two replicas cannot hear each other: both report it, and the controller removes one.
    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.is_cut(one, other) && self.is_cut(other, one)
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        let now_ns = self.world.now_ns;
        self.world.cuts.iter().any(|c| c.from == from && c.to == to && now_ns < c.until_ns)
    }

    /// Whether the controllers receive nothing from a replica.
    fn looks_dead(&self, node: usize) -> bool {
        let now_ns = self.world.now_ns;
        let is_cut = |to: usize| self.is_cut(node, to);
        self.slots[node].paused_until_ns > now_ns
            || (is_cut(CONTROLLER) && is_cut(self.other_controller()))
    }
}
