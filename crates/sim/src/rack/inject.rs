//! Faults as they happen, and how they end.

use concord_control::State;
use concord_protocols::Phase;
use concord_wire::control::{Config, Member, Protocol};

use super::{Machine, Rack, Replicas, Role, Slot, Stage};
use crate::fault::{Fault, Node};
use crate::world::{Burst, CONTROLLER, Cut, Detour, Hold, REPLICAS, SWITCH};

impl Rack<'_> {
    pub(super) fn inject(&mut self, fault: Fault) {
        let now_ns = self.world.now_ns;
        let first = fault.nodes().first().map(|node| self.index_of(*node));
        if fault.is_lethal() && !self.others_are_well(first) {
            self.totals.faults_skipped += 1;
            return self.mark(first, format!("left out: {fault:?}"), false);
        }
        self.totals.faults[fault.kind()] += 1;
        self.world.note(4, fault.kind(), &[]);
        self.mark(first, format!("{fault:?}"), true);
        match fault {
            Fault::Pause { node, for_ns } => {
                let node = self.index_of(node);
                self.trouble(node, for_ns);
                self.slots[node].paused_until_ns = now_ns + for_ns;
            }
            Fault::Kill { replica } => {
                self.bury(REPLICAS + replica);
                self.slots[REPLICAS + replica] = Slot::new(Role::Dead);
            }
            Fault::Restart { replica } => {
                self.bury(REPLICAS + replica);
                self.start_replica(replica);
                self.tick(REPLICAS + replica);
            }
            Fault::LoseEngine { replica } => self.lose_engine(REPLICAS + replica),
            Fault::Isolate { replica, for_ns, stale_switch } => {
                self.isolate(REPLICAS + replica, now_ns + for_ns, stale_switch);
                self.trouble(REPLICAS + replica, for_ns);
            }
            Fault::Cut { from, to, for_ns } => {
                let (from, to) = (self.index_of(from), self.index_of(to));
                self.world.cuts.push(Cut { from, to, until_ns: now_ns + for_ns });
                if to == CONTROLLER {
                    self.trouble(from, for_ns);
                }
            }
            Fault::Hold { from, to, for_ns, late_ns } => {
                let (from, to) = (self.index_of(from), self.index_of(to));
                let (until_ns, arrive_ns) = (now_ns + for_ns, now_ns + late_ns);
                self.world.holds.push(Hold { from, to, until_ns, arrive_ns });
            }
            Fault::Split { replica, for_ns } => {
                self.split(REPLICAS + replica, now_ns + for_ns);
                self.trouble(REPLICAS + replica, for_ns);
            }
            Fault::LossBurst { loss_ppm, for_ns } => {
                let until_ns = now_ns + for_ns;
                self.world.bursts.push(Burst { loss_ppm, duplicate_ppm: 0, until_ns });
            }
            Fault::DuplicateBurst { duplicate_ppm, for_ns } => {
                let until_ns = now_ns + for_ns;
                self.world.bursts.push(Burst { loss_ppm: 0, duplicate_ppm, until_ns });
            }
            Fault::Slow { replica, extra_ns, for_ns } => {
                self.slots[REPLICAS + replica].slow = (extra_ns, now_ns + for_ns);
                self.trouble(REPLICAS + replica, for_ns);
            }
            Fault::ClockJump { node, by_ms } => {
                let node = self.index_of(node);
                self.world.clocks[node].jump(by_ms);
            }
            Fault::FillTable { for_ns } => {
                self.world.completions_lost_until_ns = now_ns + for_ns;
            }
            Fault::RestartSwitch => {
                self.bury(SWITCH);
                self.start_switch();
                self.tick(SWITCH);
            }
            Fault::RestartClient { client } => {
                let node = self.index_of(Node::Client(client));
                self.abandon(node);
                self.start_client(client);
                self.tick(node);
            }
        }
    }

    fn trouble(&mut self, node: usize, for_ns: u64) {
        let until_ns = self.world.now_ns + for_ns;
        let slot = &mut self.slots[node];
        slot.troubled_until_ns = slot.troubled_until_ns.max(until_ns);
    }

    fn lose_engine(&mut self, node: usize) {
        let now = self.world.clock(node);
        self.slots[node].engine_lost = true;
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.engine_mut().backend_mut().lose();
            replica.flush(now, &mut self.outgoing);
            self.after(node, 0);
        }
    }

    fn isolate(&mut self, node: usize, until_ns: u64, stale_switch: bool) {
        let others = (0..REPLICAS + self.plan.replicas).filter(|n| *n != SWITCH && *n != node);
        for other in others {
            for (from, to) in [(node, other), (other, node)] {
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
        if stale_switch {
            self.world.cuts.push(Cut { from: CONTROLLER, to: SWITCH, until_ns });
        }
    }

    /// Two sides that do not reach each other, each with a switch at the one address. The old switch
    /// is heard of no more when they do again.
    fn split(&mut self, replica: usize, until_ns: u64) {
        let (clients, old_switch) = (REPLICAS + self.plan.replicas, self.old_switch());
        self.bury(old_switch);
        let switch = std::mem::replace(&mut self.slots[SWITCH], Slot::new(Role::Dead));
        self.slots[old_switch] = Slot { wake_at_ns: u64::MAX, serve_scheduled: false, ..switch };
        self.world.clocks[old_switch] = self.world.clocks[SWITCH];
        let mut few: Vec<usize> = (clients + 1..old_switch).step_by(2).collect();
        few.extend([replica, old_switch]);
        for from in 0..=old_switch {
            for to in (0..=old_switch).filter(|to| few.contains(&from) != few.contains(to)) {
                let for_ever = from == old_switch || to == old_switch;
                let until_ns = if for_ever { u64::MAX } else { until_ns };
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
        self.world.detours.push(Detour { from: few, switch: old_switch, until_ns });
        self.start_switch();
        self.tick(SWITCH);
        self.tick(old_switch);
        self.schedule_serve(old_switch);
    }

    /// In VR: whether, without `node`, a quorum has lost nothing, or has it back.
    fn quorum_is_intact(&self, node: Option<usize>) -> bool {
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        let intact = replicas.filter(|other| Some(*other) != node).filter(|other| {
            let slot = &self.slots[*other];
            let intact = |r: &Machine| matches!(r, Replicas::Vr(vr) if vr.is_intact());
            !slot.engine_lost && slot.replica().is_some_and(intact)
        });
        intact.count() > self.plan.replicas / 2
    }

    /// Whether a replica other than `node` holds the data and nothing makes it look dead: an open
    /// member of the newest epoch.
    fn others_are_well(&self, node: Option<usize>) -> bool {
        if self.plan.protocol == Protocol::Vr {
            return self.quorum_is_intact(node);
        }
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        replicas.filter(|other| Some(*other) != node).any(|other| {
            let slot = &self.slots[other];
            slot.troubled_until_ns <= self.world.now_ns
                && !slot.engine_lost
                && self.member(other).is_some()
        })
    }

    /// What the controller has put in force.
    pub(super) fn state(&self) -> Option<&State> {
        match &self.slots[CONTROLLER].role {
            Role::Controller(controller) => Some(controller.state()),
            Role::Switch(_) | Role::Replica(_) | Role::Client(_) | Role::Dead => None,
        }
    }

    pub(super) fn config(&self) -> Option<&Config> {
        self.state()?.config.as_ref()
    }

    /// The replica at `node`, if it has the newest epoch open.
    pub(super) fn member(&self, node: usize) -> Option<&super::Machine> {
        let config = self.config()?;
        let replica = self.slots[node].replica()?;
        let is_in = replica.phase() == Phase::Open
            && replica.config().is_some_and(|c| c.epoch == config.epoch);
        is_in.then_some(replica)
    }

    /// The replica that `member` means, if that life of it is alive.
    pub(super) fn living(&self, member: &Member) -> Option<&super::Machine> {
        let replica = self.slots[REPLICAS + usize::from(member.node)].replica()?;
        let same = replica.member().incarnation == member.incarnation;
        (same && replica.phase() != Phase::Left).then_some(replica)
    }

    /// Whether no member of the newest epoch is alive: nobody has the data any more.
    pub(super) fn is_lost(&self) -> bool {
        if self.plan.protocol == Protocol::Vr {
            return false;
        }
        let Some(config) = self.config() else { return false };
        !config.members.is_empty() && config.members.iter().all(|m| self.living(m).is_none())
    }

    /// The safety phase is over: whatever can heal does.
    pub(super) fn heal(&mut self) {
        let now_ns = self.world.now_ns;
        self.world.calm();
        let old_switch = self.old_switch();
        if old_switch < self.slots.len() {
            self.bury(old_switch);
            self.slots[old_switch] = Slot::new(Role::Dead);
        }
        self.stage = Stage::Liveness { since_ns: now_ns };
        self.mark(None, "everything heals".into(), true);
        for node in 0..self.slots.len() {
            let slot = &mut self.slots[node];
            slot.slow = (0, 0);
            slot.troubled_until_ns = 0;
            if slot.paused_until_ns > now_ns {
                slot.paused_until_ns = now_ns;
                // What was scheduled for the end of the pause finds nothing to do then.
                slot.serve_scheduled = false;
                slot.tick_due = true;
                self.schedule_serve(node);
            }
        }
    }
}
