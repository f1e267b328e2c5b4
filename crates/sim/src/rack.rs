//! A rack of the shipped machines in a [`World`], its run, and the check of its history.

use concord_check::{Operation, Options, Reply, check};
use concord_client::{Client, ClientConfig, Done, Outcome as Ended, Request, SubmitError};
use concord_control::{Controller, ControllerConfig};
use concord_core::machine::Deadline;
use concord_core::{Incarnation, MS, Now, RequestNumber, Rng, SEC, US, hash};
use concord_engine::memory::Memory;
use concord_engine::{CommandBuf, Engine, Shimmed};
use concord_protocols::{Phase, Replica, ReplicaConfig, ReplicaCounters};
use concord_switch::agent::{Agent, AgentConfig};
use concord_switch::harmonia::Layout;
use concord_wire::control::Member;
use concord_wire::{Flags, Reason};

use crate::plan::{Fault, Plan};
use crate::workload::{draw, parse_reply};
use crate::world::{Cut, Event, Outgoing, Weather, World, addr};

const CONTROLLER: usize = 0;
const SWITCH: usize = 1;
const REPLICAS: usize = 2;
/// A run that takes longer has stopped making progress.
const VIRTUAL_NS_MAX: u64 = 120 * SEC;
const EVENTS_MAX: u64 = 5_000_000;

/// What a run saw; of several runs, the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Operations in the histories.
    pub operations: u64,
    /// Operations of unknown outcome.
    pub unknown: u64,
    /// Reads answered fast.
    pub fast_reads: u64,
    /// What the replicas counted.
    pub replicas: ReplicaCounters,
    /// Writes dropped because the dirty set was full.
    pub table_full: u64,
    /// Epochs put in force.
    pub epochs: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Faults injected.
    pub faults: u64,
}

impl Totals {
    /// Adds another run's.
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.fast_reads += other.fast_reads;
        self.replicas.add(&other.replicas);
        self.table_full += other.table_full;
        self.epochs += other.epochs;
        self.packets += other.packets;
        self.lost += other.lost;
        self.faults += other.faults;
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What is wrong: a history that is not linearizable, replicas that differ, no progress.
    pub violation: Option<String>,
    /// The history.
    pub history: Vec<Operation>,
    /// What was seen.
    pub totals: Totals,
}

type Node = Replica<Shimmed<Memory>>;

enum Role {
    Controller(Box<Controller>),
    Switch(Box<Agent>),
    Replica(Box<Node>),
    Client(Box<Process>),
    Dead,
}

struct Slot {
    role: Role,
    paused_until: u64,
    wake_at: u64,
}

struct Connection {
    underway: Option<(RequestNumber, Operation)>,
    last_write: Option<RequestNumber>,
}

struct Process {
    client: Client,
    connections: Vec<Connection>,
}

struct Rack<'a> {
    plan: &'a Plan,
    world: World,
    slots: Vec<Slot>,
    history: Vec<Operation>,
    begun: usize,
    unique: u64,
    totals: Totals,
    outgoing: Outgoing,
}

/// Runs a plan and checks its history.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let mut rack = Rack::new(plan);
    let stuck = rack.run_to_end();
    let converged = if stuck.is_none() { rack.settle() } else { None };
    rack.collect();
    let options = Options { grace_ns: 3 * SEC, time_max: None, ..Options::default() };
    // Expiry is decided by the ordering node's wall clock, which may differ by some ms.
    let options = Options { early_ns: 20 * MS, ..options };
    let violation = match check(&rack.history, &options) {
        Ok(report) if report.is_ok() => stuck.or(converged),
        Ok(report) => Some(report.to_string()),
        Err(error) => Some(error.to_string()),
    };
    Outcome { violation, history: rack.history, totals: rack.totals }
}

impl<'a> Rack<'a> {
    fn new(plan: &'a Plan) -> Rack<'a> {
        let weather = Weather {
            loss_ppm: plan.loss_ppm,
            duplicate_ppm: plan.duplicate_ppm,
            reorder_ppm: plan.reorder_ppm,
            latency_ns: plan.latency_ns,
            peer_latency_ns: plan.peer_latency_ns,
            peers: (REPLICAS, REPLICAS + plan.replicas),
            delay_ns: plan.delay_ns,
        };
        let rng = Rng::new(plan.seed ^ 0x5eed);
        let mut rack = Rack {
            plan,
            world: World::new(rng, weather),
            slots: Vec::new(),
            history: Vec::new(),
            begun: 0,
            unique: 0,
            totals: Totals { runs: 1, ..Totals::default() },
            outgoing: Outgoing::default(),
        };
        let nodes = REPLICAS + plan.replicas + plan.clients;
        for _ in 0..nodes {
            let offset = rack.world.rng.below(1_000) * SEC;
            rack.world.clock_offset_ns.push(offset);
            rack.slots.push(Slot { role: Role::Dead, paused_until: 0, wake_at: u64::MAX });
        }
        rack.slots[CONTROLLER].role = Role::Controller(Box::new(rack.controller()));
        for replica in 0..plan.replicas {
            rack.start_replica(replica);
        }
        rack.start_switch();
        for client in 0..plan.clients {
            rack.start_client(client);
        }
        for node in 0..nodes {
            rack.world.push(0, Event::Wake { node });
        }
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            rack.world.push(*at, Event::Fault { index });
        }
        rack
    }

    fn controller(&self) -> Controller {
        let config = ControllerConfig {
            replicas: (0..self.plan.replicas as u16).collect(),
            protocol: self.plan.protocol,
            accelerated: self.plan.accelerated,
            failure_ns: self.plan.failure_ns,
            fresh: false,
            guards: self.plan.guards,
        };
        Controller::new(config, None)
    }

    fn start_replica(&mut self, replica: usize) {
        let node = REPLICAS + replica;
        let config = ReplicaConfig {
            me: Member {
                node: replica as u16,
                incarnation: self.world.rng.next_u64(),
                addr: addr(node),
            },
            controller: addr(CONTROLLER),
            lease_ns: self.plan.lease_ns,
            replies_via_switch: true,
            replicate_replies: self.plan.replicate_replies,
            guards: self.plan.guards,
        };
        let replica = Replica::new(config, Shimmed::new(Memory::new(0)));
        self.slots[node].role = Role::Replica(Box::new(replica));
    }

    fn start_switch(&mut self) {
        let incarnation = Incarnation(self.world.rng.next_u64());
        let config = AgentConfig {
            layout: Layout {
                table_stages: self.plan.table_stages,
                slots: self.plan.slots,
                counter_bits: 32,
            },
            guards: self.plan.guards,
            sweep_chunk: 16,
            ..AgentConfig::new(incarnation, addr(SWITCH), addr(CONTROLLER))
        };
        if let Ok(agent) = Agent::new(config) {
            self.slots[SWITCH].role = Role::Switch(Box::new(agent));
        }
    }

    fn start_client(&mut self, client: usize) {
        let node = REPLICAS + self.plan.replicas + client;
        let config = ClientConfig {
            addr: addr(node),
            switch: addr(SWITCH),
            window: 64,
            reads_max: 64,
            write_deadline_ns: 3 * SEC,
            read_deadline_ns: 3 * SEC,
            retry_min_ns: 20 * MS,
            retry_max_ns: 100 * MS,
            keepalive_ns: 10 * SEC,
        };
        let seed = self.world.rng.next_u64();
        let connections = (0..self.plan.connections)
            .map(|_| Connection { underway: None, last_write: None })
            .collect();
        let process = Process { client: Client::new(config, Rng::new(seed)), connections };
        self.slots[node].role = Role::Client(Box::new(process));
        for connection in 0..self.plan.connections {
            let at = self.world.now_ns + self.world.rng.below(20 * MS);
            self.world.push(at, Event::Next { node, connection });
        }
    }

    /// Until every operation of the plan has ended. Some text if that never happens.
    fn run_to_end(&mut self) -> Option<String> {
        let mut events = 0;
        while self.ended() < self.plan.operations {
            let Some(event) = self.world.pop() else { return Some("nothing to do".into()) };
            events += 1;
            if self.world.now_ns > VIRTUAL_NS_MAX || events > EVENTS_MAX {
                return Some(self.stuck());
            }
            self.step(event);
        }
        None
    }

    /// Where everybody stands, for the engineer who has to find out why.
    fn stuck(&self) -> String {
        let mut text = format!("no progress: {} of {} operations", self.ended(), self.begun);
        for (node, slot) in self.slots.iter().enumerate() {
            let now = self.world.clock(node);
            text += "\n";
            text += &match &slot.role {
                Role::Controller(c) => format!("{:?}", c.state()),
                Role::Switch(s) => format!("{:?}", s.status()),
                Role::Replica(r) => format!("{:?}\n{:?}", r.status(now), r.counters()),
                Role::Client(p) => {
                    format!("{} unanswered, {:?}", p.client.unanswered(), p.client.counters())
                }
                Role::Dead => "dead".into(),
            };
        }
        text
    }

    fn ended(&self) -> usize {
        self.history.len()
    }

    /// Lets the rack come to rest without faults; then the members' data must be equal.
    fn settle(&mut self) -> Option<String> {
        let weather =
            Weather { loss_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0, ..self.world.weather };
        self.world.weather = weather;
        self.world.cuts.clear();
        let end = self.world.now_ns + 3 * SEC;
        while self.world.now_ns < end {
            let Some(event) = self.world.pop() else { break };
            self.step(event);
        }
        let mut digests = Vec::new();
        for slot in &self.slots {
            if let Role::Replica(replica) = &slot.role
                && replica.phase() == Phase::Open
                && self.is_member(replica)
            {
                digests.push((replica.status(Now::default()).executed, replica.engine().digest()));
            }
        }
        digests.dedup();
        (digests.len() > 1).then(|| format!("replicas differ at rest: {digests:?}"))
    }

    fn is_member(&self, replica: &Node) -> bool {
        let Role::Controller(controller) = &self.slots[CONTROLLER].role else { return false };
        let config = controller.state().config.as_ref();
        config.is_some_and(|c| c.epoch == replica.status(Now::default()).epoch.0)
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Deliver { to, bytes } => {
                let until = self.slots[to].paused_until;
                if until > self.world.now_ns {
                    self.world.push(until, Event::Deliver { to, bytes });
                } else {
                    self.deliver(to, bytes);
                }
            }
            Event::Wake { node } => {
                let until = self.slots[node].paused_until;
                if until > self.world.now_ns {
                    self.world.push(until, Event::Wake { node });
                } else {
                    self.slots[node].wake_at = u64::MAX;
                    self.tick(node);
                }
            }
            Event::Next { node, connection } => self.next_operation(node, connection),
            Event::Fault { index } => self.inject(self.plan.faults[index].1),
        }
    }

    fn deliver(&mut self, node: usize, mut bytes: Vec<u8>) {
        let now = self.world.clock(node);
        let out = &mut self.outgoing;
        match &mut self.slots[node].role {
            Role::Controller(c) => c.handle(now, &bytes, out),
            Role::Switch(s) => s.handle(now, &mut bytes, out),
            Role::Replica(r) => {
                r.handle(now, &bytes, out);
                r.flush(now, out);
            }
            Role::Client(p) => p.client.handle(now, &bytes, out),
            Role::Dead => {}
        }
        self.after(node);
    }

    fn tick(&mut self, node: usize) {
        let now = self.world.clock(node);
        let out = &mut self.outgoing;
        match &mut self.slots[node].role {
            Role::Controller(c) => c.tick(now, out),
            Role::Switch(s) => s.tick(now, out),
            Role::Replica(r) => {
                r.tick(now, out);
                r.flush(now, out);
            }
            Role::Client(p) => p.client.tick(now, out),
            Role::Dead => {}
        }
        self.after(node);
    }

    /// Drains a node's outputs and sees to its next deadline.
    fn after(&mut self, node: usize) {
        let now = self.world.clock(node);
        if let Role::Controller(c) = &mut self.slots[node].role
            && c.poll_persist().is_some()
        {
            c.persisted(now, &mut self.outgoing);
        }
        let mut outgoing = std::mem::take(&mut self.outgoing);
        self.world.transmit(node, &mut outgoing);
        self.outgoing = outgoing;
        self.take_done(node);
        let deadline = match &self.slots[node].role {
            Role::Controller(c) => c.deadline(),
            Role::Switch(s) => s.deadline(),
            Role::Replica(r) => r.deadline(),
            Role::Client(p) => p.client.deadline(),
            Role::Dead => Deadline::NONE,
        };
        if deadline == Deadline::NONE {
            return;
        }
        // At least a µs on, so that a deadline that is not met cannot stop time.
        let at = self.world.virtual_ns(node, deadline.at).max(self.world.now_ns + US);
        if at < self.slots[node].wake_at {
            self.slots[node].wake_at = at;
            self.world.push(at, Event::Wake { node });
        }
    }

    fn next_operation(&mut self, node: usize, connection: usize) {
        if self.begun >= self.plan.operations {
            return;
        }
        let now = self.world.clock(node);
        let Role::Client(process) = &mut self.slots[node].role else { return };
        if process.connections[connection].underway.is_some() {
            return;
        }
        self.unique += 1;
        let op = draw(&mut self.world.rng, self.plan.keys, self.plan.writes_percent, self.unique);
        let mut command = CommandBuf::new();
        let request = Request {
            class: op.class,
            obj_id: hash::object_id(&op.cmd[1]),
            flags: Flags(0),
            after: process.connections[connection].last_write,
            command: command.encode(1, op.cmd.iter().map(Vec::as_slice)),
        };
        match process.client.submit(now, request, &mut self.outgoing) {
            Ok(number) => {
                self.begun += 1;
                let slot = &mut process.connections[connection];
                if op.class == concord_client::Class::Write {
                    slot.last_write = Some(number);
                }
                let operation = Operation {
                    client: (node * 100 + connection) as u64,
                    call_ns: self.world.now_ns,
                    return_ns: None,
                    cmd: op.cmd,
                    reply: None,
                    path: None,
                };
                slot.underway = Some((number, operation));
            }
            Err(SubmitError::Full | SubmitError::TooLarge) => {
                let at = self.world.now_ns + MS;
                self.world.push(at, Event::Next { node, connection });
            }
        }
        self.after(node);
    }

    fn take_done(&mut self, node: usize) {
        loop {
            let Role::Client(process) = &mut self.slots[node].role else { return };
            let Some(done) = process.client.poll() else { return };
            let found = process
                .connections
                .iter()
                .position(|c| c.underway.as_ref().is_some_and(|(n, _)| *n == done.request));
            let Some(connection) = found else { continue };
            let Some((_, operation)) = process.connections[connection].underway.take() else {
                continue;
            };
            self.record(operation, &done);
            let think = self.world.rng.below(self.plan.think_ns + 1);
            self.world.push(self.world.now_ns + think, Event::Next { node, connection });
        }
    }

    fn record(&mut self, mut operation: Operation, done: &Done) {
        operation.path = Some(format!("{:?} at {}", done.trace.reason, done.trace.node));
        if done.trace.reason == Reason::Fast {
            self.totals.fast_reads += 1;
        }
        match done.outcome {
            Ended::Reply => {
                operation.return_ns = Some(self.world.now_ns);
                operation.reply = parse_reply(&done.reply);
            }
            Ended::ReadTimeout | Ended::WriteNotExecuted => {
                operation.return_ns = Some(self.world.now_ns);
                operation.reply = Some(Reply::Error("TIMEOUT not executed".into()));
            }
            Ended::WriteUnknown => self.totals.unknown += 1,
            Ended::Malformed | Ended::TooLarge => {
                operation.return_ns = Some(self.world.now_ns);
                operation.reply = Some(Reply::Error("ERR refused".into()));
            }
        }
        self.history.push(operation);
    }

    fn inject(&mut self, fault: Fault) {
        self.totals.faults += 1;
        let now = self.world.now_ns;
        let alive = self.alive();
        match fault {
            Fault::Pause { replica, for_ns } => {
                self.slots[REPLICAS + replica].paused_until = now + for_ns;
            }
            Fault::Kill { replica } if alive > 1 => {
                self.bury(REPLICAS + replica);
                self.slots[REPLICAS + replica].role = Role::Dead;
            }
            Fault::Restart { replica } if alive > 1 => {
                self.bury(REPLICAS + replica);
                self.start_replica(replica);
                self.tick(REPLICAS + replica);
            }
            Fault::Kill { .. } | Fault::Restart { .. } => self.totals.faults -= 1,
            Fault::Isolate { replica, for_ns, stale_switch } => {
                let node = REPLICAS + replica;
                self.cut_off(node..node + 1, now + for_ns, stale_switch);
            }
            Fault::Detach { first, for_ns } => {
                let nodes = REPLICAS + first..REPLICAS + self.plan.replicas;
                self.cut_off(nodes, now + for_ns, true);
            }
            Fault::RestartSwitch => {
                self.bury(SWITCH);
                self.start_switch();
                self.tick(SWITCH);
            }
            Fault::PauseController { for_ns } => {
                self.slots[CONTROLLER].paused_until = now + for_ns;
            }
            Fault::RestartClient { client } => {
                let node = REPLICAS + self.plan.replicas + client;
                if let Role::Client(process) = &mut self.slots[node].role {
                    for connection in &mut process.connections {
                        if let Some((_, operation)) = connection.underway.take() {
                            self.totals.unknown += 1;
                            self.history.push(operation);
                        }
                    }
                }
                self.start_client(client);
            }
        }
    }

    /// Cuts `nodes` off from the other replicas and the controller.
    fn cut_off(&mut self, nodes: std::ops::Range<usize>, until: u64, stale_switch: bool) {
        let others = (0..REPLICAS + self.plan.replicas).filter(|n| *n != SWITCH);
        for other in others.filter(|n| !nodes.contains(n)) {
            for node in nodes.clone() {
                for (from, to) in [(node, other), (other, node)] {
                    self.world.cuts.push(Cut { from, to, until });
                }
            }
        }
        if stale_switch {
            self.world.cuts.push(Cut { from: CONTROLLER, to: SWITCH, until });
        }
    }

    /// Replicas that hold the data: open members of the newest epoch that any of them is in.
    fn alive(&self) -> usize {
        let open = self.slots.iter().filter_map(|slot| match &slot.role {
            Role::Replica(r) if r.phase() == Phase::Open && self.is_member(r) => Some(()),
            _ => None,
        });
        open.count()
    }

    fn bury(&mut self, node: usize) {
        match &self.slots[node].role {
            Role::Replica(r) => self.totals.replicas.add(r.counters()),
            Role::Switch(s) => self.totals.table_full += s.program().counters().dropped_table_full,
            Role::Controller(_) | Role::Client(_) | Role::Dead => {}
        }
    }

    fn collect(&mut self) {
        for node in 0..self.slots.len() {
            self.bury(node);
        }
        if let Role::Controller(c) = &self.slots[CONTROLLER].role {
            self.totals.epochs += c.counters().epochs;
        }
        self.totals.operations = self.history.len() as u64;
        self.totals.packets = self.world.packets;
        self.totals.lost = self.world.lost;
    }
}
