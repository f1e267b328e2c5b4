//! A group of the shipped machines, and the execution of one step.

use concord_client::{Client, ClientConfig};
use concord_control::{ControllerConfig, State};
use concord_core::hash::hash64;
use concord_core::machine::{Deadline, Persist};
use concord_core::{Instant, MS, Machine, Now, Rng, SEC};
use concord_engine::Shimmed;
use concord_protocols::{Node, ReplicaConfig, Retired};
use concord_switch::agent::AgentConfig;
use concord_switch::settings::Sections;
use concord_switch::{Layout, TableSettings};
use concord_wire::GroupId;
use concord_wire::control::Config;

use super::calls::Calls;
use super::packets::{Bag, Name};
use super::plan::BagPlan;
use super::watch::{Replica, Watch};
use crate::systems::store::build::{Blueprint, engine};
use crate::systems::store::role;
use crate::systems::store::storage::Store;
use crate::world::{CONTROLLER, Outgoing, REPLICAS, SWITCH, addr, node_of};

const MILLION: i64 = 1_000_000;
const WALL_MS: u64 = 1_700_000_000_000;
/// The maximum number of times in a row that a machine may ask to be woken at once.
const TICKS_MAX: usize = 16;
/// The minimum distance of the low 16 bits between incarnations of one node. Streams are numbered
/// from there on; a collision, which happens by chance once in 65,536 restarts, is not what the
/// runs look for.
const INCARNATION_STEP: u64 = 0x200;

pub(super) type Role = crate::systems::store::role::Role<Shimmed<Store>, Client>;

/// The configurations of the machines of the plan's group.
fn blueprint(plan: &BagPlan) -> Blueprint {
    let of = Blueprint::new(plan.protocol, plan.program, plan.replicas, plan.guards);
    let slots = plan.slots;
    Blueprint {
        controller: ControllerConfig { failure_ns: plan.failure_ns, ..of.controller },
        replica: ReplicaConfig {
            lease_ns: plan.lease_ns,
            copy_bytes: plan.copy_bytes,
            records_kept: plan.records_kept,
            ..of.replica
        },
        switch: AgentConfig {
            sections: Sections {
                table: TableSettings {
                    layout: Layout { table_stages: 1, slots, counter_bits: 32, run_bits: 0 },
                    sweep_chunk: slots,
                    ..of.switch.sections.table
                },
                ..of.switch.sections
            },
            ..of.switch
        },
        client: ClientConfig {
            window: 8,
            reads_max: 8,
            write_deadline_ns: 3 * SEC,
            read_deadline_ns: 3 * SEC,
            retry_max_ns: 100 * MS,
            keepalive_ns: 10 * SEC,
            ..of.client
        },
        ..of
    }
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Delivers a packet of the bag.
    Deliver(Name),
    /// Lets a node read the clock.
    Tick(u8),
    /// Lets time pass at all nodes, in ns.
    Pass(u64),
    /// Lets a storage engine complete an operation.
    Engine(u8),
    /// Lets a client make a call: the number of the key, and whether it writes.
    Call { client: u8, key: u8, writes: bool },
    /// Kills a replica.
    Kill(u8),
    /// Kills a replica if it is alive, and restarts it without its data; with `host`, its host
    /// reboots, so that its clock begins anew.
    Restart { replica: u8, tag: u64, host: bool },
    /// Tells a replica to shut down: it leaves in order, and ends.
    Retire(u8),
    /// Lets a replica lose its storage engine.
    LoseEngine(u8),
    /// Restarts a switch, without its state.
    RestartSwitch { is_other: bool, standby: bool, tag: u64 },
    /// Restarts the controller with its stored state.
    RestartController,
    /// Kills a client process, and starts another one in its place.
    RestartClient { client: u8, tag: u64 },
}

/// The monotonic clock of a host: it counts from the boot, at about the rate of virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostClock {
    booted_ns: u64,
    offset_ns: u64,
    drift_ppm: i64,
}

impl HostClock {
    fn at(&self, now_ns: u64) -> Now {
        let elapsed = (now_ns - self.booted_ns) as i64;
        let drifted = (elapsed + elapsed / MILLION * self.drift_ppm) as u64;
        let unix_ms = WALL_MS + now_ns / MS + self.offset_ns % 7;
        Now { instant: Instant(self.offset_ns + drifted), unix_ms }
    }

    /// The time until the clock shows `instant`, or slightly more, in ns.
    fn until(&self, now_ns: u64, instant: Instant) -> u64 {
        let left = instant.0.saturating_sub(self.at(now_ns).instant.0);
        left + left / 20 + u64::from(left > 0)
    }
}

/// A node.
pub(super) struct Slot {
    pub role: Role,
    pub clock: HostClock,
    pub engine_lost: bool,
    /// Whether it was told to shut down.
    pub retires: bool,
}

impl Slot {
    pub(super) fn replica(&self) -> Option<&Replica> {
        match &self.role {
            Role::Replica(replica) => Some(replica),
            Role::Controller(_) | Role::Switch(_) | Role::Client(_) | Role::Dead => None,
        }
    }
}

/// The group: its nodes, the bag of packets, and the observations of the checks.
pub(super) struct Group {
    pub plan: BagPlan,
    blueprint: Blueprint,
    pub now_ns: u64,
    pub slots: Vec<Slot>,
    pub bag: Bag,
    pub stored: Option<State>,
    pub calls: Calls,
    pub watch: Watch,
    /// The hash of all steps.
    pub digest: u64,
    pub wrong: Option<String>,
    /// Whether the last replica with all the data was told to shut down, and did.
    pub is_beyond: bool,
    pub(super) out: Outgoing,
    /// The number of incarnations so far.
    incarnations: u64,
}

impl Group {
    pub(super) fn new(plan: BagPlan) -> Group {
        let mut rng = Rng::new(plan.seed ^ 0xba9);
        let nodes = REPLICAS + plan.replicas + plan.clients + 1;
        let mut group = Group {
            blueprint: blueprint(&plan),
            plan,
            now_ns: 0,
            slots: Vec::new(),
            bag: Bag::default(),
            stored: None,
            calls: Calls::new(plan.clients),
            watch: Watch::new(plan.replicas),
            digest: 0,
            wrong: None,
            is_beyond: false,
            out: Outgoing::default(),
            incarnations: 0,
        };
        for _ in 0..nodes {
            let (offset_ns, drift_ppm) = if plan.drifts {
                (rng.below(1_000) * SEC, rng.between(0, 80_000) as i64 - 40_000)
            } else {
                (0, 0)
            };
            let clock = HostClock { booted_ns: 0, offset_ns, drift_ppm };
            group.slots.push(Slot { role: Role::Dead, clock, engine_lost: false, retires: false });
        }
        group.slots[CONTROLLER].role = group.controller();
        for replica in 0..plan.replicas {
            let tag = rng.next_u64();
            group.slots[REPLICAS + replica].role = group.replica_role(replica, tag);
        }
        group.slots[SWITCH].role = group.switch_role(SWITCH, false, rng.next_u64());
        for client in 0..plan.clients {
            let node = group.client_node(client);
            group.slots[node].role = group.client_role(client, rng.next_u64());
        }
        group
    }

    pub(super) fn client_node(&self, client: usize) -> usize {
        REPLICAS + self.plan.replicas + client
    }

    pub(super) fn other_switch(&self) -> usize {
        self.slots.len() - 1
    }

    pub(super) fn is_replica(&self, node: usize) -> bool {
        (REPLICAS..REPLICAS + self.plan.replicas).contains(&node)
    }

    pub(super) fn is_dead(&self, node: usize) -> bool {
        matches!(self.slots[node].role, Role::Dead)
    }

    fn controller(&self) -> Role {
        Role::Controller(Box::new(self.blueprint.controller(self.stored.clone(), None)))
    }

    fn replica_role(&mut self, replica: usize, tag: u64) -> Role {
        self.incarnations += 1;
        let low = (self.incarnations * INCARNATION_STEP) & 0xffff;
        let engine = engine(self.plan.engine_is_slow, 0);
        Role::Replica(self.blueprint.replica(replica, tag & !0xffff | low, engine))
    }

    fn switch_role(&self, node: usize, standby: bool, tag: u64) -> Role {
        let agent = self.blueprint.switch(node, tag, standby);
        agent.map_or(Role::Dead, |agent| Role::Switch(Box::new(agent)))
    }

    fn client_role(&self, client: usize, tag: u64) -> Role {
        let node = self.client_node(client);
        Role::Client(Box::new(self.blueprint.client(node, Rng::new(tag))))
    }

    /// The reading of a node's clock.
    pub(super) fn now(&self, node: usize) -> Now {
        self.slots[node].clock.at(self.now_ns)
    }

    /// The time until a node's deadline, in ns; `None` if it waits only for packets.
    pub(super) fn due_in(&self, node: usize) -> Option<u64> {
        let deadline = self.slots[node].role.deadline();
        (deadline != Deadline::NONE && deadline.at != Instant::NEVER)
            .then(|| self.slots[node].clock.until(self.now_ns, deadline.at))
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Option<&Config> {
        self.stored.as_ref()?.config(GroupId::FIRST)
    }

    /// The newest epoch, or view, that a node has heard of; 0 if its role has none.
    pub(super) fn epoch_of(&self, node: usize) -> u32 {
        match &self.slots[node].role {
            Role::Replica(replica) => match &**replica {
                Node::Replica(r) => r.config().map_or(0, |c| c.epoch),
                Node::Vr(vr) => vr.view().0,
            },
            Role::Switch(agent) => agent.epoch().0,
            Role::Controller(_) => self.config().map_or(0, |c| c.epoch),
            Role::Client(_) | Role::Dead => 0,
        }
    }

    pub(super) fn incarnation_of(&self, node: usize) -> u64 {
        self.slots[node].replica().map_or(0, |r| r.member().incarnation)
    }

    /// Whether a node's engine has operations to complete.
    pub(super) fn engine_waits(&self, node: usize) -> bool {
        self.slots[node].replica().is_some_and(|r| r.engine().backend().waiting() > 0)
    }

    /// Takes one step; a step that is not possible (any more) is skipped.
    pub(super) fn take(&mut self, step: &Step) {
        self.note(step);
        match *step {
            Step::Pass(ns) => self.now_ns += ns,
            Step::Deliver(name) => self.deliver(&name),
            Step::Tick(node) => self.tick(usize::from(node)),
            Step::Engine(node) => self.complete(usize::from(node)),
            Step::Call { client, key, writes } => self.call(usize::from(client), key, writes),
            Step::Kill(replica) => self.place(REPLICAS + usize::from(replica), Role::Dead),
            Step::Restart { replica, tag, host } => {
                let node = REPLICAS + usize::from(replica);
                if host {
                    let clock = &mut self.slots[node].clock;
                    *clock = HostClock { booted_ns: self.now_ns, offset_ns: 0, ..*clock };
                }
                let role = self.replica_role(usize::from(replica), tag);
                self.place(node, role);
                self.tick(node);
            }
            Step::Retire(replica) => self.retire(REPLICAS + usize::from(replica)),
            Step::LoseEngine(replica) => self.lose_engine(REPLICAS + usize::from(replica)),
            Step::RestartSwitch { is_other, standby, tag } => {
                let node = if is_other { self.other_switch() } else { SWITCH };
                let role = self.switch_role(node, standby, tag);
                self.place(node, role);
                self.tick(node);
            }
            Step::RestartController => {
                let role = self.controller();
                self.place(CONTROLLER, role);
                self.tick(CONTROLLER);
            }
            Step::RestartClient { client, tag } => {
                let client = usize::from(client);
                let node = self.client_node(client);
                self.calls.abandon(client);
                let role = self.client_role(client, tag);
                self.place(node, role);
                self.tick(node);
            }
        }
    }

    fn note(&mut self, step: &Step) {
        let what = format!("{step:?}");
        self.digest = hash64(self.digest.rotate_left(9) ^ self.now_ns, what.as_bytes());
    }

    fn place(&mut self, node: usize, role: Role) {
        let clock = self.slots[node].clock;
        self.slots[node] = Slot { role, clock, engine_lost: false, retires: false };
    }

    fn deliver(&mut self, name: &Name) {
        let Some(id) = self.bag.find(name) else { return };
        let Some(flight) = self.bag.deliver(id) else { return };
        let node = usize::from(flight.to);
        let (from, mut bytes) = (addr(usize::from(flight.from)), flight.bytes.clone());
        let now = self.now(node);
        role::deliver(&mut self.slots[node].role, now, from, &mut bytes, &mut self.out);
        self.after(node);
    }

    fn tick(&mut self, node: usize) {
        let now = self.now(node);
        for _ in 0..TICKS_MAX {
            role::wake(&mut self.slots[node].role, now, &mut self.out);
            if self.slots[node].role.deadline().at > now.instant {
                return self.after(node);
            }
        }
        let deadline = self.slots[node].role.deadline();
        self.after(node);
        let name = self.name_of(node);
        let why = || format!("{name} wants to be woken at once, again and again: {deadline:?}");
        self.wrong.get_or_insert_with(why);
    }

    fn complete(&mut self, node: usize) {
        let now = self.now(node);
        let Role::Replica(replica) = &mut self.slots[node].role else { return };
        replica.engine_mut().backend_mut().release();
        let (machine, mut out) = replica.input(&mut self.out);
        machine.engine_ready(now, &mut out);
        machine.flush(now, &mut out);
        self.after(node);
    }

    fn retire(&mut self, node: usize) {
        let now = self.now(node);
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.retire(now);
            self.slots[node].retires = true;
            self.tick(node);
        }
    }

    /// Ends a replica that was told to shut down, once it has left, or has waited in vain: if the
    /// others were removed meanwhile, it takes all data with it.
    fn end_retired(&mut self, node: usize) {
        if !self.slots[node].retires {
            return;
        }
        let how = self.slots[node].replica().and_then(|r| r.retired(self.now(node)));
        let Some(how) = how else { return };
        self.is_beyond |= how != Retired::InOrder && !self.can_lose(node);
        self.place(node, Role::Dead);
    }

    fn lose_engine(&mut self, node: usize) {
        let now = self.now(node);
        self.slots[node].engine_lost = true;
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.engine_mut().backend_mut().lose();
            replica.flush(now, &mut self.out);
            self.after(node);
        }
    }

    fn call(&mut self, client: usize, key: u8, writes: bool) {
        let node = self.client_node(client);
        let now = self.now(node);
        if let Role::Client(machine) = &mut self.slots[node].role {
            let (machine, mut out) = machine.input(&mut self.out);
            self.calls.call(client, machine, now, (key, writes), &mut out);
            self.after(node);
        }
    }

    /// The compare-and-swap of the controller's state.
    fn persist(&mut self, node: usize) {
        let now = self.now(node);
        let Role::Controller(controller) = &mut self.slots[node].role else { return };
        let Some(Persist { number, what: state }) = controller.poll_persist() else { return };
        if state.follows(self.stored.as_ref(), self.plan.guards) {
            self.stored = Some(state);
            controller.persisted(now, number, &mut self.out);
        } else if let Some(stored) = self.stored.clone() {
            controller.superseded(stored);
        }
    }

    /// Handles a node's outputs, and checks its new state.
    fn after(&mut self, node: usize) {
        self.persist(node);
        let (epoch, from) = (self.epoch_of(node), self.incarnation_of(node));
        let sent = std::mem::take(&mut self.out.packets);
        let of_switch = self.look_at_switch(node, &sent);
        for (to, bytes) in sent {
            let to = node_of(to);
            if to < self.slots.len() && to != node {
                let incarnations = (from, self.incarnation_of(to));
                self.bag.put((node, to), incarnations, epoch, bytes);
            }
        }
        let found = match &mut self.slots[node].role {
            Role::Client(client) => {
                let client_at = node - REPLICAS - self.plan.replicas;
                self.calls.take_done(client_at, client)
            }
            Role::Replica(_) => self.look(node),
            Role::Controller(_) | Role::Switch(_) | Role::Dead => of_switch,
        };
        if let Some(what) = found.filter(|_| self.wrong.is_none()) {
            self.wrong = Some(format!("{}: {what}", self.name_of(node)));
        }
        self.end_retired(node);
    }

    pub(super) fn name_of(&self, node: usize) -> String {
        match node {
            CONTROLLER => "controller".into(),
            SWITCH => "switch".into(),
            _ if self.is_replica(node) => format!("replica-{}", node - REPLICAS),
            _ if node == self.other_switch() => "other-switch".into(),
            _ => format!("client-{}", node - self.client_node(0)),
        }
    }
}
