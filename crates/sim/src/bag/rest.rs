//! The fair end of a run: packets arrive once, in order and soon, and the group makes progress and
//! comes to rest with equal members.

use concord_core::{MS, SEC};
use concord_engine::Engine;
use concord_protocols::{Node, Phase};
use concord_wire::control::{Member, Standing};

use super::calls::KEYS;
use super::group::{Group, Role, Step};
use crate::world::{CONTROLLER, REPLICAS, SWITCH};

/// The maximum time until all calls are answered and the members are equal, in ns.
const REST_NS_MAX: u64 = 12 * SEC;
/// The maximum time until a new group is open, in ns.
const READY_NS_MAX: u64 = 3 * SEC;
/// The maximum number of successive steps in which no time passes: a group with more is busy with
/// itself.
const BUSY_STEPS_MAX: u64 = 20_000;

impl Group {
    /// Delivers packets in order until `is_done`; returns `false` if that is not reached within
    /// `for_ns`, or there is a violation.
    fn run_fairly(&mut self, for_ns: u64, is_done: impl Fn(&Group) -> bool) -> bool {
        let end_ns = self.now_ns + for_ns;
        let mut busy = 0;
        while self.wrong.is_none() && self.now_ns <= end_ns && busy < BUSY_STEPS_MAX {
            busy += 1;
            let slots = &self.slots;
            let may =
                |f: &super::packets::Flight| !matches!(slots[usize::from(f.to)].role, Role::Dead);
            let mut none = concord_core::Rng::new(0);
            if let Some(id) = self.bag.next_fresh(&mut none, 1, may) {
                let name = self.bag.name(id);
                self.take(&Step::Deliver(name));
                continue;
            }
            let nodes = 0..self.slots.len();
            if let Some(node) = nodes.clone().find(|n| self.engine_waits(*n)) {
                self.take(&Step::Engine(node as u8));
                continue;
            }
            let soonest = nodes.filter_map(|n| Some((self.due_in(n)?, n))).min();
            match soonest {
                Some((0, node)) => self.take(&Step::Tick(node as u8)),
                other => {
                    if is_done(self) {
                        return true;
                    }
                    busy = 0;
                    self.take(&Step::Pass(other.map_or(MS, |(ns, _)| ns)));
                }
            }
        }
        false
    }

    /// Starts the group: the first epoch is open at all members, and they hold leases.
    pub(super) fn begin(&mut self) {
        let is_ready = |group: &Group| {
            (REPLICAS..REPLICAS + group.plan.replicas).all(|node| {
                let replica = group.slots[node].replica();
                replica.is_some_and(|r| r.phase() == Phase::Open)
            })
        };
        if !self.run_fairly(READY_NS_MAX, is_ready) && self.wrong.is_none() {
            self.wrong = Some("the group never was ready".into());
        }
    }

    /// Lets the group come to rest: no node is dead any more, packets arrive, calls are answered,
    /// and then all members have the same data. Returns `false` for a group beyond its failure
    /// bound, of which nothing is asked.
    pub(super) fn come_to_rest(&mut self, tag: u64) -> bool {
        let nodes = REPLICAS..REPLICAS + self.plan.replicas;
        let takes_all = |node: usize| self.slots[node].retires && !self.can_lose(node);
        if self.is_lost() || nodes.into_iter().any(takes_all) {
            return false;
        }
        self.bag.forget_fresh();
        for replica in 0..self.plan.replicas {
            let node = REPLICAS + replica;
            let slot = &self.slots[node];
            let has_left = slot.retires || slot.replica().is_none_or(|r| r.phase() == Phase::Left);
            if has_left {
                let tag = tag.wrapping_add(replica as u64) << 16;
                self.take(&Step::Restart { replica: replica as u8, tag, host: false });
            }
        }
        let answered = self.calls.answered.clone();
        for client in 0..self.plan.clients {
            let node = self.client_node(client);
            if self.is_dead(node) {
                continue;
            }
            for key in 0..KEYS {
                self.take(&Step::Call { client: client as u8, key, writes: true });
            }
        }
        let clients = self.plan.clients;
        let is_done = |group: &Group| {
            let answered = |c: usize| group.calls.answered[c] > answered[c];
            (0..clients).all(|c| answered(c) && group.calls.under_way(c) == 0)
                && group.is_at_rest().is_ok()
        };
        if !self.run_fairly(REST_NS_MAX, is_done) && self.wrong.is_none() {
            let idle = (0..clients)
                .find(|c| self.calls.under_way(*c) > 0 || self.calls.answered[*c] == answered[*c]);
            let why = match (idle, self.is_at_rest()) {
                (_, Err(why)) => why,
                (Some(client), _) => format!("client-{client} gets no answer"),
                (None, Ok(())) => "the group is busy with itself".into(),
            };
            self.wrong = Some(format!("no rest: {why}\n{}", self.standing()));
        }
        true
    }

    /// Whether no replica, or no majority, has the data any more.
    fn is_lost(&self) -> bool {
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        let well = replicas.clone().filter(|node| self.has_everything(*node)).count();
        if self.is_beyond {
            return true;
        }
        if self.plan.protocol.is_quorum() {
            return well <= self.plan.replicas / 2;
        }
        // A replica that is opening the newest epoch has lost nothing by that, if it had everything
        // before. One that has just copied may lack records until it has opened it.
        let mut opening = replicas.filter_map(|node| match self.slots[node].replica() {
            Some(Node::Replica(r)) if !self.slots[node].engine_lost => Some((node, r)),
            _ => None,
        });
        let is_in = |r: &Member| self.config().is_some_and(|c| c.members.contains(r));
        well == 0
            && !opening.any(|(node, r)| {
                let standing = r.standing(self.now(node));
                is_in(r.member()) && standing == Standing::Opening { caught_up: true }
            })
    }

    fn is_at_rest(&self) -> Result<(), String> {
        let newest = match self.plan.protocol.is_quorum() {
            true => (REPLICAS..REPLICAS + self.plan.replicas).map(|n| self.epoch_of(n)).max(),
            false => self.config().map(|c| c.epoch),
        };
        let Some(newest) = newest else { return Err("there is no epoch".into()) };
        let is_other =
            self.config().is_some_and(|c| c.switch == crate::world::addr(self.other_switch()));
        let active = if is_other { self.other_switch() } else { SWITCH };
        if let Role::Switch(switch) = &self.slots[active].role {
            if switch.epoch().0 != newest {
                return Err("the switch has not heard of the newest epoch".into());
            }
            if switch.program().view().occupied > 0 {
                return Err("the dirty set keeps entries at rest".into());
            }
        }
        let mut first = None;
        for node in REPLICAS..REPLICAS + self.plan.replicas {
            let name = self.name_of(node);
            let Some(replica) = self.slots[node].replica() else { continue };
            let is_member = self.config().is_some_and(|c| c.members.contains(replica.member()));
            if !self.plan.protocol.is_quorum() && !is_member {
                return Err(format!("{name} is no member"));
            }
            if replica.phase() != Phase::Open || self.epoch_of(node) != newest {
                return Err(format!("{name} is not in the newest epoch"));
            }
            let end = replica.log().end();
            if replica.executed().0 != end.position {
                return Err(format!("{name} has records to execute"));
            }
            let holds = (end, Engine::digest(replica.engine()), replica.sessions_digest());
            if first.is_some_and(|other| other != holds) {
                return Err(format!("replicas differ: {first:?} and {holds:?} at {name}"));
            }
            first = Some(holds);
        }
        Ok(())
    }

    /// The state of all nodes, for whoever examines a failure.
    pub(super) fn standing(&self) -> String {
        let mut text = format!("at {} ms\n", self.now_ns / MS);
        if let Some(config) = self.config() {
            text += &format!(
                "controller: epoch {}, switch id {}, members",
                config.epoch, config.switch_id
            );
            config.members.iter().for_each(|m| text += &format!(" {}", m.node));
            config.joining.iter().for_each(|m| text += &format!(" (joins: {})", m.node));
            text += "\n";
        }
        if let Role::Controller(controller) = &self.slots[CONTROLLER].role
            && let Some(problem) = controller.problem()
        {
            text += &format!("controller: {problem:?}\n");
        }
        for node in REPLICAS..REPLICAS + self.plan.replicas {
            let Some(replica) = self.slots[node].replica() else {
                text += &format!("{}: dead\n", self.name_of(node));
                continue;
            };
            let status = replica.status(self.now(node));
            let own = match replica {
                Node::Vr(vr) => format!("view {}, intact {}", vr.view(), vr.is_intact()),
                Node::Replica(r) => format!("epoch {}", r.config().map_or(0, |c| c.epoch)),
            };
            text += &format!(
                "{}: {}, {:?}, {own}, executed {}, committed {}, end {}, lease {}\n",
                self.name_of(node),
                status.role,
                status.phase,
                status.executed,
                status.committed,
                replica.log().end().position,
                status.leased
            );
        }
        text
    }
}
