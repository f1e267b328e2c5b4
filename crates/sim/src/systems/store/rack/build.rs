//! The construction of a rack's nodes, at the start and when one replaces another.

use concord_client::{Client, ClientConfig};
use concord_control::{Controller, ControllerConfig, GroupState, Recover, State};
use concord_core::{Duration, Guards, MS, Rng, SEC};
use concord_protocols::{Limits, ReplicaConfig};
use concord_switch::KeyGroupSettings;
use concord_switch::agent::AgentConfig;
use concord_switch::settings::Sections;
use concord_switch::{Layout, TableSettings};
use concord_wire::control::Config;
use concord_wire::{GroupId, OfGroup};

use super::cache::Cache;
use super::disk::ReplicaDisk;
use super::file::StateFile;
use super::gateway::Others;
use super::messages::Board;
use super::subscribers::Subscribers;
use super::{Connection, Native, Process, Progress, Rack, Redis, Role, Slot, Stage, Watch};
use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::odd::Odd;
use crate::systems::store::build::{Blueprint, engine, readers};
use crate::systems::store::edges::Bounds;
use crate::systems::store::plan::Plan;
use crate::systems::store::totals::Totals;
use crate::world::{CONTROLLER, Event, Outgoing, REPLICAS, SWITCH, Weather, World, addr};

/// The seed mask for the draws of a client that caches.
const CACHE: u64 = 0xcac4_ed00;
/// The seed mask for the draws of the packet-level network.
const LINKS: u64 = 0x0011_4c50;
/// The seed mask for the draws of clients that subscribe and publish.
const SUBSCRIBERS: u64 = 0x5b5c_21be;

/// The time after which a replica says that its engine is busy, in ns, in plans with engines that
/// are busy for long.
const WORK_SAID_NS: Duration = 50 * MS;
const BUSY_NS: Duration = 300 * MS;

impl<'a> Rack<'a> {
    pub(super) fn new(plan: &'a Plan) -> Rack<'a> {
        let replicas = plan.replicas_ever();
        let weather = Weather {
            loss_ppm: plan.loss_ppm,
            duplicate_ppm: plan.duplicate_ppm,
            reorder_ppm: plan.reorder_ppm,
            latency_ns: plan.latency_ns,
            peer_latency_ns: plan.peer_latency_ns,
            peers: (REPLICAS, REPLICAS + replicas),
            delay_ns: plan.delay_ns,
        };
        // The network must not depend on how often others draw: plans that differ in a fault or a
        // client are equal otherwise, and shrink well.
        let mut rng = Rng::new(plan.seed ^ 0x5eed);
        let mut clocks = rng.fork();
        let mut rack = Rack {
            plan,
            blueprint: blueprint(plan),
            file: StateFile::new(stored(plan)),
            replicas,
            started: plan.replicas,
            world: World::new(
                rng.fork(),
                weather,
                Odd::new(plan.packets, Rng::new(plan.seed ^ 0x0dd)),
            ),
            slots: Vec::new(),
            disks: (0..replicas as u16).map(|node| ReplicaDisk::new(node, plan.seed)).collect(),
            history: Vec::new(),
            transactions: Vec::new(),
            unknown_pushes: Vec::new(),
            stage: Stage::Safety,
            calm_from_ns: None,
            healed_ns: None,
            begun: 0,
            faults_left: plan.faults.len(),
            fast_since_heal: 0,
            unique: 0,
            has_library: false,
            board: Board::default(),
            alone_held_ns: 0,
            is_damaged: false,
            due: 0,
            incarnations: rng.fork(),
            totals: Totals { runs: 1, ..Totals::default() },
            outgoing: Outgoing::default(),
            watch: Watch::new(replicas),
            progress: Progress::default(),
            asked: Vec::new(),
            broken: None,
        };
        // The last two are the second controller and the second switch.
        let nodes = REPLICAS + replicas + plan.clients + 2;
        rack.world.switches = vec![SWITCH, rack.other_switch()];
        if plan.links.is_on() {
            let seed = Rng::new(plan.seed ^ LINKS).next_u64();
            let fabric = Fabric::new(&plan.links, nodes, &rack.world.switches, seed);
            rack.world.fabric = Some(fabric);
        }
        for _ in 0..nodes {
            let offset_ns = clocks.below(1_000) * SEC;
            let drift_ppm = clocks.between(0, 2 * plan.drift_ppm) as i64 - plan.drift_ppm as i64;
            rack.world.clocks.push(Clock::new(offset_ns, drift_ppm));
            rack.slots.push(Slot::new(Role::Dead));
        }
        rack.slots[CONTROLLER].role = Role::Controller(Box::new(rack.controller(None)));
        for replica in 0..plan.replicas {
            rack.start_replica(replica);
        }
        rack.start_switch(SWITCH, false);
        for client in 0..plan.clients {
            rack.start_client(client);
        }
        for node in 0..nodes {
            rack.wake_at(node, 0);
        }
        for (index, timed) in plan.faults.iter().enumerate() {
            rack.world.push(timed.at_ns, Event::Fault { index });
        }
        rack
    }

    /// A controller that continues from the stored state.
    pub(super) fn controller(&self, recover: Option<Recover>) -> Controller {
        self.blueprint.controller(self.file.stored.clone(), recover)
    }

    pub(super) fn start_replica(&mut self, replica: usize) {
        let node = REPLICAS + replica;
        self.world.clocks[node].restart(self.world.now_ns);
        let engine = engine(self.plan.engine_ns > 0, self.plan.bounds.memory_bytes_max);
        let incarnation = self.incarnations.next_u64();
        let mut replica = self.blueprint.replica(replica, incarnation, engine);
        self.restore(node, &mut replica);
        self.place(node, Role::Replica(replica));
    }

    pub(super) fn start_switch(&mut self, node: usize, standby: bool) {
        self.world.clocks[node].restart(self.world.now_ns);
        let incarnation = self.incarnations.next_u64();
        if let Ok(agent) = self.blueprint.switch(node, incarnation, standby) {
            self.place(node, Role::Switch(Box::new(agent)));
        }
    }

    pub(super) fn start_client(&mut self, client: usize) {
        let node = REPLICAS + self.replicas + client;
        let gateways = &self.plan.gateways;
        let is_gateway = client + gateways.count >= self.plan.clients;
        if gateways.subscribers {
            // The incarnations of gateways depend on the time.
            self.world.clocks[node].restart(self.world.now_ns);
        }
        let window = if is_gateway { gateways.window } else { 64 };
        let config = self.blueprint.client_config(node);
        let config = ClientConfig { window, reads_max: window as usize, ..config };
        let mut rng = self.incarnations.fork();
        let process = if is_gateway {
            let caches =
                gateways.caches.then(|| Cache::new(Rng::new(rng.clone().next_u64() ^ CACHE)));
            let subscribers = gateways.subscribers.then(|| {
                let own = Rng::new(rng.clone().next_u64() ^ SUBSCRIBERS);
                Subscribers::new(self.board.begin_incarnation(), own)
            });
            let others = Others { node, all: self.hearing() };
            let apart = (caches, subscribers);
            let redis = Redis::new(config, self.plan, others, apart, &mut rng);
            Process::Redis(Box::new(redis))
        } else {
            self.native(config, &mut rng)
        };
        let process = OfGroup::new(GroupId::FIRST, process);
        self.place(node, Role::Client(Box::new(process)));
        for connection in 0..self.plan.connections {
            let at_ns = self.world.now_ns + rng.below(20 * MS);
            self.world.push(at_ns, Event::Next { node, connection });
        }
        if is_gateway && gateways.caches {
            let connection = self.plan.connections;
            self.world.push(self.world.now_ns + MS, Event::Next { node, connection });
        }
        if is_gateway && gateways.subscribers {
            let connection = self.plan.connections + 1;
            self.world.push(self.world.now_ns + MS, Event::Next { node, connection });
        }
    }

    /// The nodes of the gateways that know each other.
    pub(super) fn hearing(&self) -> Vec<usize> {
        let gateways = &self.plan.gateways;
        let end = REPLICAS + self.replicas + self.plan.clients;
        let count = if gateways.subscribers { gateways.count } else { 0 };
        (end - count..end).collect()
    }

    fn native(&self, config: ClientConfig, rng: &mut Rng) -> Process {
        let connections = (0..self.plan.connections)
            .map(|_| Connection { underway: None, last_write: None, rng: rng.fork(), good: 0 })
            .collect();
        Process::Native(Box::new(Native { client: Client::new(config, rng.fork()), connections }))
    }

    /// Starts a new incarnation of a node; packets that waited for the previous one are gone.
    pub(super) fn place(&mut self, node: usize, role: Role) {
        let before = &self.slots[node];
        // A replica that returns with its data may be a member at once, and whatever makes it look
        // dead goes on, as it does on a slow host.
        let goes_on = self.keeps(node) || before.slow.1 > self.world.now_ns;
        let troubled_until_ns = if goes_on { before.troubled_until_ns } else { 0 };
        // The pause was that of the previous process, and the event at its end comes too late for
        // this one.
        let was_paused = before.paused_until_ns > self.world.now_ns;
        self.slots[node] = Slot {
            troubled_until_ns,
            slow: before.slow,
            serve_scheduled: before.serve_scheduled && !was_paused,
            ..Slot::new(role)
        };
    }
}

/// The interval at which a leader computes the weights of its group's replicas, in ns: short enough
/// for a run of a few seconds.
const WEIGH_NS: u64 = 50 * MS;
/// The time of silence after which a switch is replaced, in ns, as shipped.
const SWITCH_FAILURE_NS: u64 = 300 * MS;

/// The configurations of the machines of the plan's rack.
fn blueprint(plan: &Plan) -> Blueprint {
    let of = Blueprint::new(plan.protocol, plan.program, plan.replicas, plan.guards);
    let bounds = &plan.bounds;
    let counter_bits = if bounds.counter_bits == 0 { 32 } else { bounds.counter_bits };
    let (table_stages, slots, run_bits) = (plan.table_stages, plan.slots, plan.run_bits);
    Blueprint {
        controller: ControllerConfig {
            failure_ns: plan.failure_ns,
            switch_failure_ns: SWITCH_FAILURE_NS,
            rack: plan.seed | 1,
            ..of.controller
        },
        replica: ReplicaConfig {
            lease_ns: plan.lease_ns,
            copy_bytes: plan.copy_bytes,
            // The records that are retained for members that lag must leave room for new ones.
            records_kept: plan.records_kept.min(bounds.limits().log_records_max / 2),
            replicate_replies: plan.replicate_replies,
            reads: plan.reads(),
            weigh_ns: WEIGH_NS,
            // A run without a guard looks for something else, at its own time.
            compare_ns: if plan.guards == Guards::ALL { plan.compare_ns } else { 0 },
            limits: Limits {
                engine_silence_ns: plan.engine_silence_ns,
                work_ns: if plan.engine_work_ns > 0 {
                    WORK_SAID_NS
                } else {
                    of.replica.limits.work_ns
                },
                ..bounds.limits()
            },
            ..of.replica
        },
        switch: AgentConfig {
            look_after_ns: if plan.links.is_on() { plan.links.look_ns } else { 0 },
            sections: Sections {
                table: TableSettings {
                    layout: Layout { table_stages, slots, counter_bits, run_bits },
                    sweep_chunk: 16,
                    ..of.switch.sections.table
                },
                key_groups: KeyGroupSettings {
                    group_bits: 6,
                    counter_bits,
                    run_bits,
                    avoid_leader: plan.avoid_leader,
                    load_awareness: plan.load_awareness,
                    ..of.switch.sections.key_groups
                },
                ..of.switch.sections
            },
            ..of.switch
        },
        client: ClientConfig {
            write_deadline_ns: 3 * SEC,
            read_deadline_ns: 3 * SEC,
            retry_max_ns: 100 * MS,
            keepalive_ns: 10 * SEC,
            busy_ns: if plan.engine_work_ns > 0 { BUSY_NS } else { of.client.busy_ns },
            first_request: bounds.first_request.max(1),
            readers: readers(plan.reads(), plan.replicas),
            ..of.client
        },
        ..of
    }
}

/// The state that the controllers of earlier runs left behind.
fn stored(plan: &Plan) -> Option<State> {
    let Bounds { last_switch_id, last_epoch, .. } = plan.bounds;
    // As `--fresh` leaves it.
    let given_up = |epoch| GroupState {
        config: Config {
            epoch,
            group: GroupId::FIRST,
            rack: 0,
            switch_id: 0,
            switch_incarnation: 0,
            switch: addr(SWITCH),
            kind: plan.protocol.into(),
            program: plan.program,
            members: Vec::new(),
            joining: Vec::new(),
        },
        caught_up: Vec::new(),
        storages: Vec::new(),
    };
    let groups = (last_epoch > 0).then(|| given_up(last_epoch)).into_iter().collect();
    let is_new = last_switch_id == 0 && last_epoch == 0;
    (!is_new).then(|| State { last_switch_id, groups, ..State::default() })
}
