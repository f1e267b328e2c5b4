//! The injection of faults, and their ends.

use concord_core::{Duration, MS, Machine};
use concord_protocols::{Phase, Retired};
use concord_wire::GroupId;
use concord_wire::control::{Config, Member};

use super::{Process, Rack, Role, Slot, Stage};
use crate::systems::store::fault::{Fault, Node};
use crate::world::{Burst, CONTROLLER, Cut, Event, Hold, REPLICAS, SWITCH, addr};

/// The maximum time until a node is heard of again after a silence, in ns.
pub(super) const HEARD_AGAIN_NS: Duration = 300 * MS;
/// The maximum reading of the monotonic clock when a node starts after a reboot, in ns.
const BOOT_NS_MAX: Duration = 2_000 * MS;

impl Rack<'_> {
    pub(super) fn inject(&mut self, fault: Fault) {
        let now_ns = self.world.now_ns;
        let first = fault.nodes().first().map(|node| self.index_of(*node));
        let beyond = (fault.is_lethal() && !self.others_are_well(first))
            || (fault.is_troubling() && self.has_dead_member())
            || (matches!(fault, Fault::OldState { .. }) && !self.has_begun());
        if beyond {
            self.totals.faults_skipped += 1;
            return self.mark(first, format!("left out: {fault:?}"), false);
        }
        self.restart_progress();
        self.totals.faults.0[fault.kind()] += 1;
        self.world.note(4, fault.kind(), &[]);
        self.mark(first, format!("{fault:?}"), true);
        match fault {
            Fault::Pause { node, for_ns } => {
                let node = self.index_of(node);
                self.trouble(node, for_ns);
                self.slots[node].paused_until_ns = now_ns + for_ns;
                self.hold_alone(node, for_ns);
            }
            Fault::Kill { replica } => {
                self.retire_counters(REPLICAS + replica);
                self.slots[REPLICAS + replica] = Slot::new(Role::Dead);
            }
            Fault::Restart { replica } => {
                self.retire_counters(REPLICAS + replica);
                self.lose_disk(REPLICAS + replica);
                self.start_replica(replica);
                self.tick(REPLICAS + replica);
            }
            Fault::PowerCut { replica, for_ns } => self.cut_power(REPLICAS + replica, for_ns),
            Fault::PowerCutAll { for_ns } => {
                (REPLICAS..REPLICAS + self.replicas).for_each(|node| self.cut_power(node, for_ns));
            }
            Fault::FailSync { replica } => self.fail_sync(REPLICAS + replica),
            Fault::FullDisk { replica, for_ns, bytes } => {
                self.fill_disk(REPLICAS + replica, for_ns, bytes);
            }
            Fault::HangDisk { replica, for_ns } if fault.is_long_hang() => {
                self.hang_disk_for_good(REPLICAS + replica, for_ns);
            }
            Fault::HangDisk { replica, for_ns } => self.hang_disk(REPLICAS + replica, for_ns),
            Fault::FlipBit { replica, for_ns } => {
                self.flip_bit(REPLICAS + replica);
                self.cut_power(REPLICAS + replica, for_ns);
            }
            Fault::Unreadable { replica, for_ns } => {
                self.blank_place(REPLICAS + replica);
                self.cut_power(REPLICAS + replica, for_ns);
            }
            Fault::FullController { for_ns } => self.file.fill(now_ns + for_ns),
            Fault::CopyDisk { replica } => self.copy_disk(REPLICAS + replica),
            Fault::PutBack { replica, for_ns, others_ns } => {
                self.put_back(REPLICAS + replica, for_ns, others_ns);
            }
            Fault::Retire { replica, for_ns } => self.retire(REPLICAS + replica, for_ns),
            Fault::Reboot { node } => {
                let node = self.index_of(node);
                let shows_ns = self.incarnations.below(BOOT_NS_MAX);
                self.world.clocks[node].reboot(now_ns, shows_ns);
                match self.name_of(node) {
                    Node::Replica(replica) => {
                        self.retire_counters(node);
                        self.start_replica(replica);
                        self.tick(node);
                    }
                    _ => self.begin_switch(node, false),
                }
            }
            Fault::Join => {
                let replica = self.started;
                self.started += 1;
                self.start_replica(replica);
                self.tick(REPLICAS + replica);
            }
            Fault::LoseEngine { replica } => self.lose_engine(REPLICAS + replica),
            Fault::HangEngine { replica } => self.hang_engine(REPLICAS + replica),
            Fault::StallEngine { replica, for_ns } => {
                self.stall_engine(REPLICAS + replica, for_ns);
                if self.plan.engine_work_ns > 0 {
                    self.work_engine(REPLICAS + replica);
                }
            }
            Fault::CutEngine { replica, for_ns, executed } => {
                self.cut_engine(REPLICAS + replica, for_ns, executed);
            }
            Fault::Isolate { replica, for_ns, stale_switch } => {
                self.isolate(REPLICAS + replica, now_ns + for_ns, stale_switch);
                self.hold_alone(REPLICAS + replica, for_ns);
                self.trouble(REPLICAS + replica, for_ns);
            }
            Fault::Cut { from, to, for_ns } => {
                let (from, to) = (self.index_of(from), self.index_of(to));
                self.world.cuts.push(Cut { from, to, until_ns: now_ns + for_ns });
                // If two members cannot hear each other, one is removed; so is a member that does
                // not learn of epochs, and is therefore not heard in them.
                let is_controller = |node| node == CONTROLLER || node == self.other_controller();
                let (tells, told) = (is_controller(from), is_controller(to));
                if told || tells {
                    self.hold_alone(if told { from } else { to }, for_ns);
                }
                if told || self.is_replica(to) {
                    self.trouble(from, for_ns);
                }
                if tells || self.is_replica(from) {
                    self.trouble(to, for_ns);
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
                (REPLICAS..REPLICAS + self.replicas).for_each(|node| self.trouble(node, for_ns));
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
                self.world.clocks[node].jump(now_ns, by_ms);
            }
            Fault::FillTable { for_ns } => {
                self.world.completions_lost_until_ns = now_ns + for_ns;
            }
            Fault::LoseRecords { replica, for_ns } => {
                self.world.records_lost.push((REPLICAS + replica, now_ns + for_ns));
            }
            Fault::Deaf { replica, for_ns } => {
                let to = REPLICAS + replica;
                self.hold_alone(to, for_ns);
                let others = (0..REPLICAS + self.replicas).filter(|n| *n != SWITCH && *n != to);
                for from in others.chain([self.other_controller()]) {
                    self.world.cuts.push(Cut { from, to, until_ns: now_ns + for_ns });
                }
                // The controller may remove either this member or another one.
                (REPLICAS..REPLICAS + self.replicas).for_each(|node| self.trouble(node, for_ns));
            }
            Fault::LoseWrites { replica, for_ns } => {
                self.world.writes_lost.push((REPLICAS + replica, now_ns + for_ns));
            }
            Fault::RestartSwitch => self.begin_switch(self.active_switch(), false),
            Fault::ReplaceSwitch { standby, for_ns } => {
                let active = self.active_switch();
                self.slots[active].paused_until_ns = now_ns + for_ns;
                let other = if active == SWITCH { self.other_switch() } else { SWITCH };
                self.begin_switch(other, standby);
            }
            Fault::SecondController { for_ns } => {
                self.slots[CONTROLLER].paused_until_ns = now_ns + for_ns;
                let other = self.other_controller();
                self.retire_counters(other);
                self.place(other, Role::Controller(Box::new(self.controller(None))));
                self.tick(other);
            }
            Fault::CutController { with_switch, for_ns } => {
                self.cut_off(CONTROLLER, now_ns + for_ns);
                self.cut_off(self.other_controller(), now_ns + for_ns);
                if with_switch {
                    self.cut_off(self.active_switch(), now_ns + for_ns);
                }
            }
            Fault::OldState { gone, for_ns } => self.lose_state(gone, for_ns),
            Fault::CutPair { one, other, for_ns } => {
                let (one, other) = (REPLICAS + one, REPLICAS + other);
                for (from, to) in [(one, other), (other, one)] {
                    self.world.cuts.push(Cut { from, to, until_ns: now_ns + for_ns });
                }
                if self.plan.protocol.is_quorum() {
                    self.hold_alone(one, for_ns);
                }
                self.trouble(one, for_ns);
                self.trouble(other, for_ns);
            }
            Fault::ChangeVoter { replica, for_ns } => {
                self.ask_for_change(REPLICAS + replica, for_ns);
            }
            Fault::RestartClient { client } => self.restart_client(client),
        }
    }

    /// Ends a client in the middle of its operations, and starts it anew.
    pub(super) fn restart_client(&mut self, client: usize) {
        let node = self.index_of(Node::Client(client));
        self.abandon(node);
        self.retire_counters(node);
        self.start_client(client);
        self.tick(node);
    }

    /// Counts the duration of a fault in which no expiry can be decided. If the node is the only
    /// member left, nobody decides on expiries while it is paused, or while the controller cannot
    /// hear it and so announces no epoch to the switch. Nor does a quorum that would need the node.
    fn hold_alone(&mut self, node: usize, for_ns: u64) {
        if self.is_left_alone(node) {
            self.alone_held_ns += for_ns;
        }
    }

    /// Notes that others may take a node for dead, until they have heard of it again.
    pub(super) fn trouble(&mut self, node: usize, for_ns: u64) {
        let until_ns = self.world.now_ns + for_ns + HEARD_AGAIN_NS;
        let slot = &mut self.slots[node];
        slot.troubled_until_ns = slot.troubled_until_ns.max(until_ns);
    }

    fn begin_switch(&mut self, node: usize, standby: bool) {
        self.retire_counters(node);
        self.start_switch(node, standby);
        self.tick(node);
    }

    /// The node of the switch whose numbers are accepted.
    pub(super) fn active_switch(&self) -> usize {
        let is_other = self.config().is_some_and(|c| c.switch == addr(self.other_switch()));
        if is_other { self.other_switch() } else { SWITCH }
    }

    fn retire(&mut self, node: usize, for_ns: u64) {
        let now = self.world.clock(node);
        let Role::Replica(replica) = &mut self.slots[node].role else { return };
        replica.retire(now);
        self.slots[node].retiring_for_ns.get_or_insert(for_ns);
        self.after(node, 0);
    }

    /// Ends a replica that was told to shut down, once it has left.
    pub(super) fn end_retired(&mut self, node: usize) {
        let Some(for_ns) = self.slots[node].retiring_for_ns else { return };
        let Some(how) = self.slots[node].replica().and_then(|r| r.retired(self.world.clock(node)))
        else {
            return;
        };
        self.restart_progress();
        self.totals.retired[usize::from(how == Retired::InOrder)] += 1;
        self.mark(Some(node), format!("ends: {how:?}"), true);
        self.retire_counters(node);
        self.slots[node] = Slot { retiring_for_ns: Some(for_ns), ..Slot::new(Role::Dead) };
        let is_over = self.stage != Stage::Safety;
        let at_ns = self.world.now_ns + if is_over { 0 } else { for_ns };
        self.world.push(at_ns, Event::Start { node });
    }

    /// Starts a replica again that was told to shut down, and did.
    pub(super) fn start_again(&mut self, node: usize) {
        let slot = &self.slots[node];
        if matches!(slot.role, Role::Dead) && slot.retiring_for_ns.is_some() {
            let troubled_until_ns = slot.troubled_until_ns;
            self.start_replica(node - REPLICAS);
            self.slots[node].troubled_until_ns = troubled_until_ns;
            self.tick(node);
        }
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

    fn hang_engine(&mut self, node: usize) {
        self.slots[node].engine_lost = true;
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.engine_mut().backend_mut().hang();
        }
    }

    /// Stalls a replica's engine: no completion arrives before that time.
    fn stall_engine(&mut self, node: usize, for_ns: u64) {
        let until_ns = self.world.now_ns + for_ns;
        let slot = &mut self.slots[node];
        // One at a time: together they could last longer than an engine may be silent.
        if slot.engine_stalled_until_ns <= self.world.now_ns {
            slot.engine_stalled_until_ns = until_ns;
        }
        if let Role::Replica(replica) = &mut slot.role {
            replica.engine_mut().backend_mut().be_remote();
        }
    }

    /// Makes a stalled engine report that it is at work until it answers again.
    fn work_engine(&mut self, node: usize) {
        let now = self.world.clock(node);
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.engine_mut().backend_mut().work(now.instant);
        }
    }

    fn cut_engine(&mut self, node: usize, for_ns: u64, executed: bool) {
        let Role::Replica(replica) = &mut self.slots[node].role else { return };
        if executed && replica.engine_mut().backend_mut().cut() {
            return self.lose_engine(node);
        }
        self.stall_engine(node, for_ns);
    }

    /// Cuts a node off from all others.
    fn cut_off(&mut self, node: usize, until_ns: u64) {
        for other in (0..self.slots.len()).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
    }

    fn isolate(&mut self, node: usize, until_ns: u64, stale_switch: bool) {
        let others = (0..REPLICAS + self.replicas).filter(|n| *n != SWITCH && *n != node);
        for other in others.chain([self.other_controller()]) {
            for (from, to) in [(node, other), (other, node)] {
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
        for from in [CONTROLLER, self.other_controller()].into_iter().filter(|_| stale_switch) {
            for to in [SWITCH, self.other_switch()] {
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
    }

    /// Partitions the rack: a replica, the active switch and every second client on one side, all
    /// others on the other, with another switch.
    fn split(&mut self, replica: usize, until_ns: u64) {
        let active = self.active_switch();
        let other = if active == SWITCH { self.other_switch() } else { SWITCH };
        let clients = REPLICAS + self.replicas;
        let mut few: Vec<usize> = (clients + 1..self.other_controller()).step_by(2).collect();
        few.extend([replica, active]);
        for from in 0..self.slots.len() {
            for to in (0..self.slots.len()).filter(|to| few.contains(&from) != few.contains(to)) {
                self.world.cuts.push(Cut { from, to, until_ns });
            }
        }
        self.begin_switch(other, false);
    }

    /// For quorum protocols: whether enough replicas other than `node` for a quorum have lost
    /// nothing, or have it back.
    pub(super) fn quorum_is_intact(&self, node: Option<usize>) -> bool {
        self.are_quorum(self.intact(node))
    }

    /// Whether a replica other than `node` has all the data, and nothing makes it look dead: an
    /// open member of the newest epoch that has caught up. For quorum protocols: whether enough
    /// such replicas for a quorum exist.
    fn others_are_well(&self, node: Option<usize>) -> bool {
        if self.plan.protocol.is_quorum() {
            return self.quorum_is_intact(node);
        }
        let replicas = REPLICAS..REPLICAS + self.replicas;
        replicas.filter(|other| Some(*other) != node).any(|other| {
            let slot = &self.slots[other];
            slot.troubled_until_ns <= self.world.now_ns
                && !slot.engine_lost
                && slot.retiring_for_ns.is_none()
                && self.member(other).is_some_and(|r| r.status(self.world.clock(other)).caught_up)
        })
    }

    /// Whether a state can be made anew: the first epoch is open at some member.
    fn has_begun(&self) -> bool {
        let mut replicas = REPLICAS..REPLICAS + self.replicas;
        replicas.any(|node| self.member(node).is_some()) && self.others_are_well(None)
    }

    /// Whether a member of the newest epoch is dead and the controller does not know it.
    fn has_dead_member(&self) -> bool {
        let is_dead = |m: &Member| {
            let slot = &self.slots[REPLICAS + usize::from(m.node)];
            self.living(m).is_none() || slot.engine_lost || slot.retiring_for_ns.is_some()
        };
        self.config().is_some_and(|config| config.members.iter().any(is_dead))
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Option<&Config> {
        self.file.newest.as_ref()?.config(GroupId::FIRST)
    }

    /// Whether no decision is possible without `node`: it is the only member left of the chain
    /// family's newest epoch, or will be, since all others may be taken for dead; or the others are
    /// not a quorum.
    fn is_left_alone(&self, node: usize) -> bool {
        let is_well = |other: usize| {
            other != node && self.slots[other].troubled_until_ns <= self.world.now_ns
        };
        if self.plan.protocol.is_quorum() {
            let others = (REPLICAS..REPLICAS + self.replicas).filter(|other| is_well(*other));
            let alive = others.filter(|other| self.slots[*other].replica().is_some());
            let alive = alive.fold(0, |set, other| set | 1 << (other - REPLICAS));
            return self.is_replica(node) && !self.are_quorum(alive);
        }
        let is_member_well = |m: &Member| is_well(REPLICAS + usize::from(m.node));
        let of = |config: &Config| !config.members.iter().any(is_member_well);
        self.config().is_some_and(of)
    }

    /// The replica at `node`, if it has opened the newest epoch.
    pub(super) fn member(&self, node: usize) -> Option<&super::Replica> {
        let config = self.config()?;
        let replica = self.slots[node].replica()?;
        let is_in = replica.phase() == Phase::Open
            && replica.config().is_some_and(|c| c.epoch == config.epoch);
        is_in.then_some(replica)
    }

    /// The replica of `member`, if that incarnation is alive.
    pub(super) fn living(&self, member: &Member) -> Option<&super::Replica> {
        let replica = self.slots[REPLICAS + usize::from(member.node)].replica()?;
        let same = replica.member().incarnation == member.incarnation;
        (same && replica.phase() != Phase::Left).then_some(replica)
    }

    /// Whether no member of the newest epoch is alive, so that the data is lost.
    pub(super) fn is_lost(&self) -> bool {
        if self.plan.protocol.is_quorum() {
            return false;
        }
        let Some(config) = self.config() else { return false };
        // Data on disks returns, or else the rack makes no progress after all faults have ended.
        let keeps = |m: &Member| self.plan.disks.keeps(usize::from(m.node));
        !config.members.is_empty()
            && config.members.iter().all(|m| self.living(m).is_none() && !keeps(m))
    }

    /// Ends the safety phase: all faults that can end do so.
    pub(super) fn heal(&mut self) {
        let now_ns = self.world.now_ns;
        self.world.calm();
        self.stage = Stage::Liveness { since_ns: now_ns };
        self.healed_ns = Some(now_ns);
        self.mark(None, "everything heals".into(), true);
        self.asked.clear();
        self.file.make_room();
        self.recover_state(true);
        for node in 0..self.slots.len() {
            self.start_again(node);
            self.make_room(node);
            let slot = &mut self.slots[node];
            slot.slow = (0, 0);
            slot.troubled_until_ns = 0;
            // The engine's completions were to be delivered at the end of the pause, or of the
            // stall.
            let was_deaf = slot.paused_until_ns.max(slot.engine_stalled_until_ns) > now_ns;
            slot.engine_stalled_until_ns = 0;
            let waiting = slot.replica().map_or(0, |r| r.engine().backend().waiting());
            for _ in 0..if was_deaf { waiting } else { 0 } {
                self.world.push(now_ns, Event::Engine { node });
            }
            let slot = &mut self.slots[node];
            if let Role::Client(process) = &mut slot.role
                && let Process::Redis(redis) = &mut ***process
            {
                redis.heal();
            }
            if slot.paused_until_ns > now_ns {
                slot.paused_until_ns = now_ns;
                // So was a sync that ended meanwhile.
                self.wake_disk(node);
                let slot = &mut self.slots[node];
                // The events scheduled for the end of the pause find nothing to do then.
                slot.serve_scheduled = false;
                slot.tick_due = true;
                self.schedule_serve(node);
            }
        }
    }
}
