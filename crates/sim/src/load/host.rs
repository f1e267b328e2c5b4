//! The hosts of a load, and its events.

use std::collections::VecDeque;

use concord_client::{Client, ClientConfig};
use concord_control::ControllerConfig;
use concord_core::machine::{Deadline, Persist};
use concord_core::{Guards, MS, Machine, Position, RequestNumber, Rng, SEC, SessionId, US, hash};
use concord_engine::Shimmed;
use concord_protocols::{Phase, ReplicaConfig, ReplicaCounters, SlowReads};
use concord_switch::agent::AgentConfig;
use concord_switch::{
    Counters as SwitchCounters, Layout, Sections, SwitchProgram as _, TableSettings,
};
use concord_wire::control::Protocol;
use concord_wire::record::Record;
use concord_wire::{Addr, GroupId, Kind, OfGroup, Op, Repr, Sink, craq, header, link, op};

use super::clients::{Answer, Process};
use super::completions;
use super::measured::{Latency, Measured, Packets};
use super::setup::{BATCH_PACKETS, Dies, Load};
use crate::clock::Clock;
use crate::odd::Odd;
use crate::systems::store::build::{Blueprint, engine, readers};
use crate::systems::store::role;
use crate::systems::store::storage::Store;
use crate::world::{CONTROLLER, Event, Outgoing, REPLICAS, SWITCH, Weather, World, addr, node_of};

/// The maximum number of unanswered writes of a process: further ones would only wait in queues.
const WRITES_MAX: u64 = 1_024;
const HOUR_NS: u64 = 3_600 * SEC;

type Role = crate::systems::store::role::Role<Shimmed<Store>, Process>;

struct Host {
    role: Role,
    /// The packets that wait: sender and bytes.
    inbox: VecDeque<(usize, Vec<u8>)>,
    busy_until_ns: u64,
    serve_scheduled: bool,
    wake_at_ns: u64,
    /// The number of packets handled since the last flush.
    batch: usize,
    packets: Packets,
    /// The position up to which it has acknowledged execution, with separate COMMIT-ACKs.
    told: Position,
    open: OpenRecords,
}

/// The records that are in a replica's log and not executed.
#[derive(Clone, Copy, Debug, Default)]
struct OpenRecords {
    count: u64,
    since_ns: u64,
    /// The sum of their times in the log so far, in ns.
    all_ns: u64,
    /// The number of executed records when the sum was 0.
    executed: u64,
}

impl OpenRecords {
    /// Notes that there are `count` from now on.
    fn note(&mut self, now_ns: u64, count: u64) {
        self.all_ns += self.count * (now_ns - self.since_ns);
        (self.count, self.since_ns) = (count, now_ns);
    }
}

impl Host {
    fn new(role: Role) -> Host {
        Host {
            role,
            inbox: VecDeque::new(),
            busy_until_ns: 0,
            serve_scheduled: false,
            wake_at_ns: u64::MAX,
            batch: 0,
            packets: Packets::default(),
            told: Position(0),
            open: OpenRecords::default(),
        }
    }
}

/// The configurations of the machines of a rack under load.
fn blueprint(load: &Load) -> Blueprint {
    let of = Blueprint::new(load.protocol, load.program, load.replicas, Guards::ALL);
    let (table_stages, slots) = (load.table_stages, load.slots);
    Blueprint {
        controller: ControllerConfig { failure_ns: 500 * MS, ..of.controller },
        replica: ReplicaConfig {
            lease_ns: 100 * MS,
            copy_bytes: 4_096,
            reads: load.reads,
            weigh_ns: load.weigh_ns,
            ..of.replica
        },
        switch: AgentConfig {
            sections: Sections {
                table: TableSettings {
                    layout: Layout { table_stages, slots, ..Layout::DEFAULT },
                    // Objects that are stuck have to stay so: the completion of a no-op would sweep
                    // them.
                    sweep_interval_ns: load.sweep_interval_ns,
                    noop_interval_ns: if load.stuck_writes > 0 { HOUR_NS } else { 20 * MS },
                    ..of.switch.sections.table
                },
                key_groups: load.key_groups,
                ..of.switch.sections
            },
            ..of.switch
        },
        client: ClientConfig {
            window: WRITES_MAX,
            retry_min_ns: load.retry_min_ns,
            retry_max_ns: 100 * MS,
            readers: readers(load.reads, load.replicas),
            ..of.client
        },
        ..of
    }
}

/// A rack under load.
pub(super) struct Rack<'a> {
    load: &'a Load,
    blueprint: Blueprint,
    world: World,
    hosts: Vec<Host>,
    rng: Rng,
    out: Outgoing,
    answers: Vec<Answer>,
    is_measured: bool,
    began_ns: u64,
    reads_ns: Vec<u32>,
    writes_ns: Vec<u32>,
    buckets: Vec<u64>,
}

impl<'a> Rack<'a> {
    pub fn new(load: &'a Load) -> Result<Rack<'a>, String> {
        let weather = Weather {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            latency_ns: load.latency_ns,
            peer_latency_ns: load.peer_latency_ns,
            peers: (REPLICAS, REPLICAS + load.replicas),
            delay_ns: 0,
        };
        let mut rng = Rng::new(load.seed);
        let nodes = REPLICAS + load.replicas + 2 * load.processes;
        let mut rack = Rack {
            load,
            blueprint: blueprint(load),
            world: World::new(rng.fork(), weather, Odd::none()),
            hosts: (0..nodes).map(|_| Host::new(Role::Dead)).collect(),
            rng,
            out: Outgoing::default(),
            answers: Vec::new(),
            is_measured: false,
            began_ns: 0,
            reads_ns: Vec::new(),
            writes_ns: Vec::new(),
            buckets: Vec::new(),
        };
        rack.world.clocks = vec![Clock::new(SEC, 0); nodes];
        let controller = rack.blueprint.controller(None, None);
        rack.hosts[CONTROLLER].role = Role::Controller(Box::new(controller));
        rack.start_switch()?;
        for replica in 0..load.replicas {
            let machine = rack.blueprint.replica(replica, 1 + replica as u64, engine(false, 0));
            rack.hosts[REPLICAS + replica].role = Role::Replica(machine);
        }
        for client in 0..2 * load.processes {
            let process = OfGroup::new(GroupId::FIRST, rack.client(client));
            rack.hosts[REPLICAS + load.replicas + client].role = Role::Client(Box::new(process));
        }
        (0..nodes).for_each(|node| rack.wake_at(node, 0));
        Ok(rack)
    }

    fn client(&mut self, client: usize) -> Process {
        let node = REPLICAS + self.load.replicas + client;
        let config = self.blueprint.client_config(node);
        let (all, processes) = (self.load.outstanding, self.load.processes);
        let outstanding = if client < processes {
            all / processes + usize::from(client < all % processes)
        } else {
            0
        };
        let rng = self.rng.fork();
        let mut process =
            Process::new(Client::new(config, self.rng.fork()), self.load, rng, outstanding);
        if client >= processes && self.load.writes_per_second > 0 {
            process.gap_ns = processes as u64 * SEC / self.load.writes_per_second;
        }
        process
    }

    /// Starts a new incarnation of the switch.
    pub fn start_switch(&mut self) -> Result<(), String> {
        let agent = self.blueprint.switch(SWITCH, self.rng.next_u64(), false);
        let agent = agent.map_err(|error| error.to_string())?;
        self.hosts[SWITCH].role = Role::Switch(Box::new(agent));
        self.wake_at(SWITCH, self.world.now_ns);
        Ok(())
    }

    /// Stops the switch; every packet to it is lost.
    pub fn stop_switch(&mut self) {
        self.hosts[SWITCH].role = Role::Dead;
    }

    /// Kills a replica; every packet to it is lost.
    pub fn kill(&mut self, who: Dies) {
        let leader = self.leader();
        let replicas = REPLICAS..REPLICAS + self.load.replicas;
        let mut chosen = replicas.rev().filter(|node| (*node == leader) == (who == Dies::Leader));
        if let Some(node) = chosen.next() {
            self.hosts[node].role = Role::Dead;
        }
    }

    /// The replica that orders writes, as the switch knows it.
    fn leader(&self) -> usize {
        let Role::Switch(switch) = &self.hosts[SWITCH].role else { return REPLICAS };
        switch.program().store().routes().map_or(REPLICAS, |routes| node_of(routes.head))
    }

    /// Runs until all replicas are open, and sends the first operations.
    pub fn start(&mut self, within_ns: u64) -> Result<(), String> {
        while !self.is_open() {
            if self.world.now_ns > within_ns {
                return Err("the rack does not get ready".into());
            }
            self.next_event()?;
        }
        // The switch's first no-op has to be completed before reads can be fast.
        self.run(5 * MS)?;
        self.stick()?;
        for client in 0..2 * self.load.processes {
            let node = REPLICAS + self.load.replicas + client;
            let now_ns = self.world.now_ns;
            self.world.push(now_ns + client as u64, Event::Next { node, connection: 0 });
        }
        Ok(())
    }

    /// Whether every replica is open, and those that answer reads have a lease: the leader alone,
    /// in a quorum protocol without the switch's help.
    fn is_open(&self) -> bool {
        let replicas = || {
            let hosts = &self.hosts[REPLICAS..REPLICAS + self.load.replicas];
            hosts.iter().filter_map(|host| match &host.role {
                Role::Replica(replica) => Some(&**replica),
                Role::Controller(_) | Role::Switch(_) | Role::Client(_) | Role::Dead => None,
            })
        };
        let now = self.world.clock(REPLICAS);
        let leased = replicas().filter(|r| r.holds_lease(now)).count();
        let program = self.load.program;
        let leases = self.load.reads == SlowReads::FollowerLease;
        let is_spread = program.has_dirty_set() || program.checks_replies() || leases;
        let answering =
            if self.load.protocol.is_quorum() && !is_spread { 1 } else { self.load.replicas };
        leased >= answering && replicas().all(|r| r.phase() == Phase::Open) && self.is_spread()
    }

    /// Whether the switch sends fast reads to every replica: VR's leader names a follower to it
    /// only once it hears from the follower.
    fn is_spread(&self) -> bool {
        let Role::Switch(switch) = &self.hosts[SWITCH].role else { return false };
        let routes = switch.program().store().routes();
        if self.load.program.checks_replies() {
            return switch.is_ready();
        }
        let is_alone =
            !self.load.program.has_dirty_set() && self.load.reads != SlowReads::FollowerLease;
        is_alone || routes.is_some_and(|r| r.replicas.len() == self.load.replicas)
    }

    /// Makes objects dirty by writes that reach no replica.
    fn stick(&mut self) -> Result<(), String> {
        let now = self.world.clock(SWITCH);
        let mut packet = Vec::new();
        for n in 0..self.load.stuck_writes {
            let write = Repr {
                obj_id: hash::object_id(format!("k{n}").as_bytes()),
                session: SessionId(1),
                request: RequestNumber(n + 1),
                client: addr(CONTROLLER),
                ..Repr::new(Op::Write)
            };
            write.emit(&[], &mut packet);
            let Role::Switch(switch) = &mut self.hosts[SWITCH].role else {
                return Err("there is no switch".into());
            };
            switch.handle(now, addr(CONTROLLER), &mut packet, &mut self.out);
            self.out.packets.clear();
        }
        Ok(())
    }

    /// Begins the measurement.
    pub fn begin(&mut self) {
        self.is_measured = true;
        self.began_ns = self.world.now_ns;
        for host in &mut self.hosts {
            host.packets = Packets::default();
            if let Role::Replica(replica) = &host.role {
                (host.open.all_ns, host.open.executed) = (0, replica.executed().0);
            }
        }
    }

    pub fn run(&mut self, for_ns: u64) -> Result<(), String> {
        let end_ns = self.world.now_ns + for_ns;
        self.world.push(end_ns, Event::Wake { node: CONTROLLER });
        while self.world.now_ns < end_ns {
            self.next_event()?;
        }
        Ok(())
    }

    fn next_event(&mut self) -> Result<(), String> {
        let event = self.world.pop().ok_or("nothing to do")?;
        match event {
            Event::Deliver { from, to, bytes } => self.deliver(from, to, bytes),
            Event::Serve { node } => self.serve(node),
            Event::Wake { node } => {
                if self.hosts[node].wake_at_ns <= self.world.now_ns {
                    self.hosts[node].wake_at_ns = u64::MAX;
                    self.tick(node);
                }
            }
            Event::Next { node, .. } => self.begin_operations(node),
            Event::Engine { .. }
            | Event::Fault { .. }
            | Event::Disk { .. }
            | Event::Start { .. }
            | Event::Room { .. } => {}
        }
        Ok(())
    }

    fn deliver(&mut self, from: usize, node: usize, mut bytes: Vec<u8>) {
        let now = self.world.clock(node);
        let host = &mut self.hosts[node];
        host.packets.got += 1;
        if matches!(host.role, Role::Replica(_)) {
            host.inbox.push_back((from, bytes));
            return self.schedule_serve(node);
        }
        role::deliver(&mut host.role, now, addr(from), &mut bytes, &mut self.out);
        self.out.reuse(bytes);
        let delay_ns = if node == SWITCH { self.load.service.switch_ns } else { 0 };
        self.after(node, delay_ns);
    }

    fn schedule_serve(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        if !host.serve_scheduled && !host.inbox.is_empty() {
            host.serve_scheduled = true;
            let at_ns = host.busy_until_ns.max(self.world.now_ns);
            self.world.push(at_ns, Event::Serve { node });
        }
    }

    /// Lets a replica handle its next packet.
    fn serve(&mut self, node: usize) {
        let now = self.world.clock(node);
        let host = &mut self.hosts[node];
        host.serve_scheduled = false;
        let Some((from, mut bytes)) = host.inbox.pop_front() else { return };
        let Role::Replica(replica) = &mut host.role else { return };
        let executed = replica.executed().0;
        replica.handle(now, addr(from), &mut bytes, &mut self.out);
        host.batch += 1;
        if host.inbox.is_empty() || host.batch >= BATCH_PACKETS {
            host.batch = 0;
            replica.note_queue(host.inbox.len());
            replica.flush(now, &mut self.out);
        }
        let forwards =
            self.out.packets.iter().any(|(_, packet)| header::is_request(packet, Op::Read as u8));
        let mut service_ns = service_ns(self.load, &bytes, forwards);
        if node + 1 == REPLICAS + self.load.replicas {
            service_ns += service_ns * self.load.slower_permille / 1_000;
        }
        if self.load.protocol == Protocol::Craq && is_commit(&bytes) {
            service_ns += (replica.executed().0 - executed) * self.load.commit_ns;
        }
        self.out.reuse(bytes);
        let open = replica.log().end().position.saturating_sub(replica.executed().0);
        host.open.note(self.world.now_ns, open);
        self.after(node, service_ns);
        self.schedule_serve(node);
    }

    fn tick(&mut self, node: usize) {
        let now = self.world.clock(node);
        role::wake(&mut self.hosts[node].role, now, &mut self.out);
        self.after(node, 0);
    }

    fn begin_operations(&mut self, node: usize) {
        let now = self.world.clock(node);
        let now_ns = self.world.now_ns;
        let Role::Client(process) = &mut self.hosts[node].role else { return };
        let (process, mut out) = process.input(&mut self.out);
        process.is_started = true;
        process.fill(now, &mut out);
        if process.gap_ns > 0 {
            let gap_ns = process.write(now, &mut out);
            self.world.push(now_ns + gap_ns, Event::Next { node, connection: 0 });
        }
        self.after(node, 0);
    }

    /// Handles a node's outputs, which leave after `delay_ns`, and schedules its next deadline.
    fn after(&mut self, node: usize, delay_ns: u64) {
        let now = self.world.clock(node);
        let role = &mut self.hosts[node].role;
        if let Some(Persist { number, .. }) = role.poll_persist() {
            role.persisted(now, number, &mut self.out);
        }
        if let Role::Client(process) = &mut self.hosts[node].role {
            let (process, mut out) = process.input(&mut self.out);
            process.take(&mut self.answers);
            process.fill(now, &mut out);
        }
        self.note_answers();
        let delay_ns = delay_ns + self.part_completions(node, delay_ns);
        self.part_commit_acks(node);
        self.hold_write_replies(node, delay_ns);
        let host = &mut self.hosts[node];
        host.packets.sent += self.out.packets.len() as u64;
        let leaves_ns = self.world.now_ns + delay_ns;
        host.busy_until_ns = host.busy_until_ns.max(leaves_ns);
        let deadline = host.role.deadline();
        self.world.transmit(node, leaves_ns, &mut self.out);
        if deadline != Deadline::NONE {
            let at_ns = self.world.clocks[node].when(deadline.at);
            self.wake_at(node, at_ns.max(self.world.now_ns + US));
        }
    }

    /// Sends the completions in a replica's replies separately after the replies, if the load says
    /// so. Returns the time that the replica is busy with that, in ns.
    fn part_completions(&mut self, node: usize, delay_ns: u64) -> u64 {
        let Some(apart) = self.load.completions_separate else { return 0 };
        if !(REPLICAS..REPLICAS + self.load.replicas).contains(&node) {
            return 0;
        }
        let at_ns = self.world.now_ns + delay_ns + self.load.latency_ns + apart.delay_ns;
        let mut parted = 0;
        for (_, packet) in &mut self.out.packets {
            if let Some(bytes) = completions::part(apart, &mut self.rng, packet) {
                parted += 1;
                self.world.push(at_ns, Event::Deliver { from: node, to: SWITCH, bytes });
            }
        }
        self.hosts[node].packets.sent += parted;
        parted * self.load.service.ack_ns
    }

    /// Holds a replica's replies to writes back, for the time that a write takes beyond what keeps
    /// a node busy.
    fn hold_write_replies(&mut self, node: usize, delay_ns: u64) {
        let replicas = REPLICAS..REPLICAS + self.load.replicas;
        if self.load.write_wait_ns == 0 || !replicas.contains(&node) {
            return;
        }
        let delay_ns = delay_ns + self.load.latency_ns + self.load.write_wait_ns;
        let at_ns = self.world.now_ns + delay_ns;
        let held = self
            .out
            .packets
            .extract_if(.., |(_, packet)| header::is_request(packet, Op::WriteReply as u8));
        for (to, bytes) in held {
            self.hosts[node].packets.sent += 1;
            self.world.push(at_ns, Event::Deliver { from: node, to: node_of(to), bytes });
        }
    }

    /// Sends a replica's COMMIT-ACKs separately after its acknowledgements, if the load says so.
    fn part_commit_acks(&mut self, node: usize) {
        if !self.load.commit_acks_separate {
            return;
        }
        let told = &mut self.hosts[node].told;
        let part =
            |(to, packet): &(Addr, Vec<u8>)| Some((*to, completions::commit_ack(told, packet)?));
        let parted: Vec<_> = self.out.packets.iter().filter_map(part).collect();
        for (to, packet) in parted {
            self.out.send(to, &packet);
        }
    }

    fn wake_at(&mut self, node: usize, at_ns: u64) {
        if at_ns < self.hosts[node].wake_at_ns {
            self.hosts[node].wake_at_ns = at_ns;
            self.world.push(at_ns, Event::Wake { node });
        }
    }

    fn note_answers(&mut self) {
        let since_ns = self.world.now_ns - self.began_ns;
        for answer in self.answers.drain(..).filter(|_| self.is_measured) {
            let latency_ns = u32::try_from(answer.latency_ns).unwrap_or(u32::MAX);
            let latencies = if answer.is_write { &mut self.writes_ns } else { &mut self.reads_ns };
            latencies.push(latency_ns);
            let bucket = (since_ns / self.load.bucket_ns) as usize;
            if bucket >= self.buckets.len() {
                self.buckets.resize(bucket + 1, 0);
            }
            self.buckets[bucket] += 1;
        }
    }

    /// The mean time that a record is in the log of a replica other than the leader before it is
    /// executed, in ns (by Little's law).
    fn record_open_ns(&self, leader: usize) -> f64 {
        let replicas = REPLICAS..REPLICAS + self.load.replicas;
        let (mut all_ns, mut executed) = (0, 0);
        for host in replicas.filter(|node| *node != leader).map(|node| &self.hosts[node]) {
            if let Role::Replica(replica) = &host.role {
                all_ns += host.open.all_ns;
                executed += replica.executed().0 - host.open.executed;
            }
        }
        all_ns as f64 / executed.max(1) as f64
    }

    /// The measurements since [`Rack::begin`].
    pub fn measured(mut self) -> Measured {
        let seconds = (self.world.now_ns - self.began_ns) as f64 / SEC as f64;
        let mut replicas = ReplicaCounters::default();
        let mut switch = SwitchCounters::default();
        let (mut occupied, mut counts) = (0, Vec::new());
        let (leader, mut of_leader) = (self.leader(), 0);
        let reads = |counters: &ReplicaCounters| counters.reads_fast + counters.reads_slow;
        for (node, host) in self.hosts.iter().enumerate() {
            match &host.role {
                Role::Replica(r) => {
                    replicas.add(r.counters());
                    if node == leader {
                        of_leader = reads(r.counters());
                    }
                }
                Role::Switch(s) => {
                    counts = s.program().counts();
                    switch.add(s.program().store().counters());
                    occupied = s.program().view().occupied;
                }
                Role::Controller(_) | Role::Client(_) | Role::Dead => {}
            }
        }
        let record_open_ns = self.record_open_ns(leader);
        let shown = &self.hosts[SWITCH..REPLICAS + self.load.replicas];
        Measured {
            reads_per_second: self.reads_ns.len() as f64 / seconds,
            writes_per_second: self.writes_ns.len() as f64 / seconds,
            answered: (self.reads_ns.len() + self.writes_ns.len()) as u64,
            read: latency(&mut self.reads_ns),
            write: latency(&mut self.writes_ns),
            buckets: self.buckets,
            record_open_ns,
            leader_reads_share: of_leader as f64 / reads(&replicas).max(1) as f64,
            counts: counts.into_iter().map(|(name, _, value)| (name, value)).collect(),
            replicas,
            switch,
            occupied,
            packets: shown.iter().map(|host| host.packets).collect(),
            events: self.world.events,
        }
    }
}

fn latency(all_ns: &mut [u32]) -> Latency {
    all_ns.sort_unstable();
    let Some(last) = all_ns.len().checked_sub(1) else { return Latency::default() };
    let sum: u64 = all_ns.iter().map(|ns| u64::from(*ns)).sum();
    Latency {
        mean_ns: sum as f64 / all_ns.len() as f64,
        median_ns: all_ns[last / 2],
        p99_ns: all_ns[last * 99 / 100],
        each_hundredth_ns: (0..100).map(|at| all_ns[last * at / 99]).collect(),
    }
}

/// The time that a replica is busy with a packet, in ns. A read that the replica only forwards
/// never reaches the store.
fn service_ns(load: &Load, bytes: &[u8], forwards: bool) -> u64 {
    let service = &load.service;
    match concord_wire::kind(bytes) {
        _ if header::is_request(bytes, Op::Read as u8) && !forwards => service.read_ns,
        _ if header::is_request(bytes, Op::Write as u8) => service.write_ns,
        Ok(Kind::Link) => match op(bytes) {
            link::OP_DATA => service.record_ns * records_in(bytes),
            _ => service.ack_ns,
        },
        Ok(Kind::Craq) => service.query_ns,
        _ => service.other_ns,
    }
}

/// The number of records that begin in a DATA packet.
fn records_in(bytes: &[u8]) -> u64 {
    let Ok(data) = link::Data::parse(bytes) else { return 0 };
    if !(data.first && data.last) {
        return u64::from(data.first);
    }
    let mut rest = data.piece;
    let mut records = 0;
    while let Some((_, behind)) = Record::split_first(rest) {
        rest = behind;
        records += 1;
    }
    records
}

/// Whether a packet tells a replica of CRAQ what is committed.
fn is_commit(bytes: &[u8]) -> bool {
    header::is(bytes, Kind::Link, link::OP_ACK) || header::is(bytes, Kind::Craq, craq::OP_ANSWER)
}
