//! Runs a [`Plan`]: the nodes, the switches and the controller that ship, on virtual time, with a
//! network that loses, duplicates and reorders packets, and clocks that drift.
//!
//! Checked: the programs' history is linearizable (in GAM's coherence: each word is coherent, and
//! fences wait for the writes before them), and lost values never reappear; a block has one
//! writer or many readers; every call is answered within 8 s after the last fault; and at rest all
//! nodes are in one epoch, no lock is held, copysets name the nodes that have copies, and all
//! copies are equal.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use concord_control::{Controller, ControllerConfig, GroupSetup, State};
use concord_core::machine::Deadline;
use concord_core::{Incarnation, Instant, MS, Machine as _, NodeId, Now, Rng, SEC};
use concord_memory::{Coherence, Done, Failure, LineState, MemberSettings, MemoryNode, Node};
use concord_switch::{Agent, AgentConfig, Concordia, Hosted, Loop, Sections};
use concord_wire::concordia::{GlobalStatus, Tag};
use concord_wire::control::Program as SwitchProgram;
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use super::plan::{Fault, Plan};
use super::programs::{Pending, Program, Seen};
use crate::engine::{EventQueue, NS, Time};
use crate::systems::Overdue;

/// The time after the last fault within which every call must be answered, in ns.
pub const PATIENCE_NS: u64 = 8 * SEC;
/// The interval of the checks for rest after the last call, in ns.
const REST_NS: u64 = 2 * SEC;
/// The maximum number of events of a run.
const EVENTS_MAX: u64 = 5_000_000;
/// The maximum delay of a late packet, in ns.
const LATE_NS: u64 = 20 * MS;
/// The time of silence after which the controller takes a node for failed, in ns.
const FAILURE_NS: u64 = 300 * MS;
/// The maximum time from the discovery of a lost block to its renewal, in ns.
const RENEW_NS: u64 = 500 * MS;
/// The interval at which a program checks whether its node is restarted, in ns.
const AGAIN_NS: u64 = 10 * MS;
/// With asynchronous writes, one in this number of calls is a fence, and so is each program's last.
const FENCE_SHARE: u64 = 6;
const SWITCHES: usize = 2;

concord_core::counters! {
    /// Counts of what happened in a run.
    pub struct Totals {
        /// Calls that were answered.
        answered,
        /// Fences that ended.
        fences,
        /// Accesses that a cache answered at once.
        hits,
        /// Coherence events.
        events_done,
        /// Requests that failed, and were tried again.
        failed,
        /// Packets sent again.
        resent,
        /// Copies invalidated by the events of other nodes.
        invalidated,
        /// Blocks written back.
        written_back,
        /// Packets dropped because their event was over.
        stale,
        /// Requests that homes served: the switch did not own their blocks.
        at_homes,
        /// Blocks that homes moved to the switch.
        added,
        /// Blocks for which the switch had no room.
        refused,
        /// Blocks that homes took back.
        removed,
        /// Calls of unknown outcome: their node died.
        unknown,
        /// Calls that failed because their block was lost.
        lost,
        /// Calls that a node refused because it was leaving.
        refused_calls,
        /// Nodes that left, and handed over what they had.
        left,
        /// Lost blocks that were renewed.
        renewed,
        /// Epochs that nodes opened.
        epochs,
        /// Packets dropped because their node held no lease.
        unleased,
        /// Events of the simulation.
        events,
    }
}

/// The result of a run.
pub type Ran = crate::systems::Ran<Totals>;

enum Event {
    Packet(usize, Addr, Vec<u8>),
    Wake(usize, u64),
    Next(usize),
    Fault(usize),
    Start(usize, u64),
    /// A program asks for the renewal of a lost block.
    Renew(Tag),
}

enum Role {
    Node(Box<MemoryNode>),
    Switch(Box<Agent>),
    Controller(Box<Controller>),
    Dead,
}

impl Role {
    fn deadline(&self) -> Deadline {
        match self {
            Role::Node(node) => node.deadline(),
            Role::Switch(agent) => agent.deadline(),
            Role::Controller(controller) => controller.deadline(),
            Role::Dead => Deadline::NONE,
        }
    }
}

struct Host {
    role: Role,
    /// The incarnation of the host, raised at each restart.
    process: u64,
    wake_at: u64,
    overdue: Overdue,
    /// The time until which it is paused.
    paused_until: u64,
    /// The offset of its clock; and its drift, in parts per million.
    offset_ns: u64,
    drift_ppm: i64,
}

struct Memory<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    /// The nodes, then the switches, then the controller.
    hosts: Vec<Host>,
    /// The state that the controller has stored.
    stored: Option<State>,
    tags: Vec<Tag>,
    programs: Vec<Program>,
    /// The paths that are cut, and until when.
    cuts: BTreeMap<(usize, usize), u64>,
    /// The lost blocks, and since when each is known to be lost.
    lost: BTreeMap<Tag, u64>,
    /// The time of each block's last renewal.
    renewed: BTreeMap<Tag, u64>,
    seen: Seen,
    digest: FxHasher,
    violation: Option<String>,
    totals: Totals,
}

/// Runs a plan, and checks it.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut memory = Memory::new(plan);
    let mut end_ns = plan.quiet_at_ns() + PATIENCE_NS;
    let mut rests_until = None;
    while memory.violation.is_none() && memory.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = memory.queue.next_until(Time(end_ns * NS)) else {
            memory.now = end_ns;
            // A node whose keepalives were lost may be about to be removed, or to return.
            if rests_until.is_none_or(|until| until <= end_ns) || memory.at_rest().is_none() {
                break;
            }
            end_ns += REST_NS;
            continue;
        };
        memory.now = at.0 / NS;
        memory.happens(event);
        if plan.invariants && memory.violation.is_none() {
            memory.violation = memory.wrong();
        }
        if rests_until.is_none() && memory.is_done() {
            rests_until = Some(memory.now + PATIENCE_NS);
            end_ns = memory.now + REST_NS;
        }
    }
    memory.ends()
}

/// The address of a host.
fn addr(host: usize) -> Addr {
    Addr { ip: 10, port: 1_000 + host as u16 }
}

impl<'a> Memory<'a> {
    fn new(plan: &'a Plan) -> Memory<'a> {
        let nodes = plan.nodes as u64;
        let tag = |block: u64| Tag::new((block % nodes) as u16, block / nodes);
        let tags: Vec<Tag> = (0..plan.blocks).map(tag).collect();
        let at = (0..plan.nodes).flat_map(|node| (0..plan.programs).map(move |_| node));
        let programs = at.map(|node| Program { node, ..Program::default() }).collect();
        let mut memory = Memory {
            plan,
            rng: Rng::new(plan.seed ^ 0xc0c0_4d1a),
            now: 2,
            queue: EventQueue::new(),
            hosts: Vec::new(),
            stored: None,
            seen: Seen::new(&tags, plan.coherence == Coherence::Gam),
            tags,
            programs,
            cuts: BTreeMap::new(),
            lost: BTreeMap::new(),
            renewed: BTreeMap::new(),
            digest: FxHasher::default(),
            violation: None,
            totals: Totals::default(),
        };
        for host in 0..=memory.controller() {
            let offset_ns = memory.rng.below(1_000 * SEC);
            let drift_ppm = memory.rng.below(200) as i64 - 100;
            memory.hosts.push(Host {
                role: Role::Dead,
                process: 0,
                wake_at: u64::MAX,
                overdue: Overdue::default(),
                paused_until: 0,
                offset_ns,
                drift_ppm,
            });
            memory.start(host);
        }
        for program in 0..memory.programs.len() {
            memory.next(program);
        }
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            memory.at(*at, Event::Fault(index));
        }
        memory
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn controller(&self) -> usize {
        self.plan.nodes + SWITCHES
    }

    /// The index of the switch that the controller has made the active one.
    fn active(&self) -> usize {
        let config = self.stored.as_ref().and_then(|state| state.config(GroupId::FIRST));
        config.map_or(self.plan.nodes, |config| usize::from(config.switch.port - 1_000))
    }

    fn clock(&self, host: usize) -> Now {
        let own = &self.hosts[host];
        let drift = i128::from(self.now) * i128::from(own.drift_ppm) / 1_000_000;
        let local = i128::from(own.offset_ns) + i128::from(self.now) + drift;
        Now { instant: Instant(local as u64), unix_ms: 0 }
    }

    /// The time at which a host's clock shows `local`.
    fn when(&self, host: usize, local: Instant) -> u64 {
        if local == Instant::NEVER {
            return u64::MAX;
        }
        let own = &self.hosts[host];
        let since = u128::from(local.0.saturating_sub(own.offset_ns));
        (since * 1_000_000 / (1_000_000 + i128::from(own.drift_ppm)) as u128) as u64 + 1
    }

    /// Starts a new process of a host.
    fn start(&mut self, host: usize) {
        let plan = self.plan;
        self.hosts[host].process += 1;
        let process = self.hosts[host].process;
        let (own, controller) = (addr(host), addr(self.controller()));
        let incarnation = (host as u64 + 1) << 40 | process << 16;
        let role = if host < plan.nodes {
            let settings = MemberSettings {
                node: NodeId(1 + host as u16),
                incarnation,
                addr: own,
                controller,
                group: GroupId::FIRST,
                block_bytes: plan.block_bytes,
                range_blocks: plan.blocks,
                cache_sets: plan.cache_sets,
                cache_ways: plan.cache_ways,
                lanes: plan.lanes,
                coherence: plan.coherence,
                lease_ns: plan.lease_ns,
                guards: plan.guards,
            };
            MemoryNode::new(self.clock(host), settings)
                .map(|node| Role::Node(Box::new(node)))
                .map_err(|why| why.to_string())
        } else if host < self.controller() {
            let base = AgentConfig::new(Incarnation(incarnation), own, controller);
            let recirculation = Loop { delay_ns: plan.round_ns, ..Loop::DEFAULT };
            let config = AgentConfig {
                program: SwitchProgram::Concordia,
                sections: Sections { blocks: plan.layout, ..base.sections },
                guards: plan.guards,
                standby: host > plan.nodes,
                recirculation,
                ..base
            };
            Agent::new(config)
                .map(|agent| Role::Switch(Box::new(agent)))
                .map_err(|why| why.to_string())
        } else {
            let memory = GroupSetup::memory(GroupId::FIRST, SwitchProgram::Concordia);
            let config = ControllerConfig::new(vec![memory], own);
            let config = ControllerConfig { failure_ns: FAILURE_NS, rack: 1, ..config };
            Ok(Role::Controller(Box::new(Controller::new(config, self.stored.clone()))))
        };
        match role {
            Ok(role) => self.hosts[host].role = role,
            Err(why) => self.violation = Some(why),
        }
        self.hosts[host].wake_at = u64::MAX;
        self.hosts[host].paused_until = 0;
        self.after(host, Vec::new());
    }

    fn happens(&mut self, event: Event) {
        let host = match &event {
            Event::Packet(host, ..) | Event::Wake(host, _) => Some(*host),
            // A program pauses with its node.
            Event::Next(program) => Some(self.programs[*program].node),
            Event::Fault(_) | Event::Start(..) | Event::Renew(_) => None,
        };
        if let Some(until) = host.map(|host| self.hosts[host].paused_until)
            && self.now < until
        {
            return self.at(until, event);
        }
        match event {
            Event::Packet(host, from, bytes) => self.packet(host, from, bytes),
            Event::Wake(host, process) => self.wake(host, process),
            Event::Next(program) => self.call(program),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
            Event::Start(host, process) => {
                if self.hosts[host].process == process {
                    // The node was told to leave, and has not left.
                    self.die(host);
                    self.start(host);
                }
            }
            Event::Renew(tag) => self.renew(tag),
        }
    }

    fn packet(&mut self, host: usize, from: Addr, mut bytes: Vec<u8>) {
        (self.now, host, &bytes).hash(&mut self.digest);
        let (now, mut sent) = (self.clock(host), Vec::new());
        match &mut self.hosts[host].role {
            Role::Node(node) => node.handle(now, from, &mut bytes, &mut sent),
            Role::Switch(agent) => agent.handle(now, from, &mut bytes, &mut sent),
            Role::Controller(controller) => controller.handle(now, from, &mut bytes, &mut sent),
            Role::Dead => {}
        }
        self.after(host, sent);
    }

    fn wake(&mut self, host: usize, process: u64) {
        let own = &mut self.hosts[host];
        if own.process != process || self.now < own.wake_at {
            return;
        }
        own.wake_at = u64::MAX;
        let (now, mut sent) = (self.clock(host), Vec::new());
        match &mut self.hosts[host].role {
            Role::Node(node) => node.tick(now, &mut sent),
            Role::Switch(agent) => agent.tick(now, &mut sent),
            Role::Controller(controller) => controller.tick(now, &mut sent),
            Role::Dead => {}
        }
        self.after(host, sent);
        let deadline = self.hosts[host].role.deadline();
        if let Some(why) = self.hosts[host].overdue.woken(now.instant, deadline) {
            self.violation.get_or_insert(format!("host {host} {why}"));
        }
    }

    /// Handles the packets, state, outcomes and deadlines of a host after an event.
    fn after(&mut self, host: usize, mut sent: Vec<(Addr, Vec<u8>)>) {
        let now = self.clock(host);
        match &mut self.hosts[host].role {
            Role::Node(node) => node.flush(now, &mut sent),
            Role::Switch(agent) => agent.flush(now, &mut sent),
            Role::Controller(controller) => {
                controller.flush(now, &mut sent);
                // The controller's state is stored before any other node hears of it (trap T3).
                while let Some(persist) = controller.poll_persist() {
                    self.stored = Some(persist.what);
                    controller.persisted(now, persist.number, &mut sent);
                }
            }
            Role::Dead => {}
        }
        for (to, bytes) in sent {
            self.send(host, to, bytes);
        }
        while let Role::Node(node) = &mut self.hosts[host].role
            && let Some(done) = node.poll_done()
        {
            self.done(done);
        }
        if let Role::Node(node) = &self.hosts[host].role
            && node.has_left()
        {
            self.totals.left += 1;
            // Writes that the node has not refused have taken effect.
            for program in 0..self.programs.len() {
                if self.programs[program].node == host {
                    let judged = self.fenced(program);
                    self.wrong_if(judged);
                }
            }
            self.die(host);
        }
        let deadline = self.hosts[host].role.deadline();
        if matches!(self.hosts[host].role, Role::Dead) {
            return;
        }
        let due = self.when(host, deadline.at).max(self.now + 1_000);
        if due < self.hosts[host].wake_at {
            self.hosts[host].wake_at = due;
            let process = self.hosts[host].process;
            self.at(due, Event::Wake(host, process));
        }
    }

    fn send(&mut self, from: usize, to: Addr, bytes: Vec<u8>) {
        let (plan, to) = (self.plan, usize::from(to.port.wrapping_sub(1_000)));
        let way = (from.min(to), from.max(to));
        if to >= self.hosts.len() || self.cuts.get(&way).is_some_and(|until| self.now < *until) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(plan.duplicate_ppm, 1_000_000));
        for _ in 0..copies {
            if self.rng.chance(plan.loss_ppm, 1_000_000) {
                continue;
            }
            let (shortest, longest) = plan.latency_ns;
            let mut at = self.now + self.rng.between(shortest, longest);
            if self.rng.chance(plan.late_ppm, 1_000_000) {
                at += self.rng.below(LATE_NS);
            }
            self.at(at, Event::Packet(to, addr(from), bytes.clone()));
        }
    }

    fn fault(&mut self, fault: Fault) {
        let (active, controller) = (self.active(), self.controller());
        match fault {
            Fault::PauseNode(node, ns) => self.pause(node, ns),
            Fault::PauseSwitch(ns) => self.pause(active, ns),
            Fault::PauseController(ns) => self.pause(controller, ns),
            Fault::CutPair(a, b, ns) => self.cut(a, b, ns),
            Fault::CutSwitch(node, ns) => self.cut(node, active, ns),
            Fault::CutController(node, ns) => self.cut(node, controller, ns),
            Fault::OtherSwitch(ns) => self.cut(active, controller, ns),
            Fault::KillNode(node, ns) => self.kill(node, ns),
            Fault::Leave(node, ns) => self.leave(node, ns),
            Fault::RestartSwitch(ns) => self.kill(active, ns),
            Fault::RestartController(ns) => self.kill(controller, ns),
        }
    }

    fn pause(&mut self, host: usize, ns: u64) {
        let until = self.now + ns;
        let paused = &mut self.hosts[host].paused_until;
        *paused = until.max(*paused);
    }

    fn cut(&mut self, a: usize, b: usize, ns: u64) {
        let until = self.cuts.entry((a.min(b), a.max(b))).or_default();
        *until = (*until).max(self.now + ns);
    }

    /// Kills a host, which is restarted later.
    fn kill(&mut self, host: usize, ns: u64) {
        self.die(host);
        let process = self.hosts[host].process;
        self.at(self.now + ns, Event::Start(host, process));
    }

    /// Tells a node to leave.
    fn leave(&mut self, host: usize, ns: u64) {
        let (now, process) = (self.clock(host), self.hosts[host].process);
        let Role::Node(node) = &mut self.hosts[host].role else { return };
        node.leave(now);
        self.at(self.now + ns, Event::Start(host, process));
        self.after(host, Vec::new());
    }

    /// Renews a lost block, which is then zeroes.
    fn renew(&mut self, tag: Tag) {
        for host in 0..self.plan.nodes {
            let now = self.clock(host);
            let is_up = self.hosts[host].paused_until <= self.now;
            if let Role::Node(node) = &mut self.hosts[host].role
                && is_up
                && node.renew(now, tag)
            {
                self.lost.remove(&tag);
                self.renewed.insert(tag, self.now);
                self.totals.renewed += 1;
                self.seen.renewed(tag, self.now);
            }
        }
    }

    /// Ends the process of a host. The outcomes of its programs' calls are unknown.
    fn die(&mut self, host: usize) {
        if let Role::Node(_) = self.hosts[host].role {
            self.count(host);
        }
        self.hosts[host].role = Role::Dead;
        for program in 0..self.programs.len() {
            if self.programs[program].node != host {
                continue;
            }
            for write in std::mem::take(&mut self.programs[program].unfenced) {
                self.totals.unknown += 1;
                self.seen.unknown(program, &write);
            }
            if let Some(pending) = self.programs[program].pending.take() {
                self.totals.unknown += 1;
                self.seen.unknown(program, &pending);
                self.next(program);
            }
        }
    }

    /// Schedules a program's next call.
    fn next(&mut self, program: usize) {
        let at = self.now + self.rng.below(self.plan.think_ns + 1);
        self.at(at, Event::Next(program));
    }

    fn call(&mut self, program: usize) {
        let Program { node, made, .. } = self.programs[program];
        if made >= self.plan.calls {
            return;
        }
        if matches!(self.hosts[node].role, Role::Dead) {
            return self.at(self.now + AGAIN_NS, Event::Next(program));
        }
        let id = (program as u64) << 16 | u64::from(made + 1);
        let tag = self.tags[self.rng.below(self.tags.len() as u64) as usize];
        let (bytes, reads) = (self.plan.block_bytes, self.plan.reads_percent);
        let is_relaxed = self.plan.coherence == Coherence::Gam;
        let is_fence =
            is_relaxed && (made + 1 == self.plan.calls || self.rng.chance(1, FENCE_SHARE));
        let pending = if is_fence {
            Pending::fence(id, self.now, tag)
        } else {
            Pending::draw(&mut self.rng, (id, self.now), tag, bytes, reads)
        };
        let call = pending.call();
        let own = &mut self.programs[program];
        (own.made, own.pending) = (made + 1, Some(pending));
        let (now, mut sent) = (self.clock(node), Vec::new());
        if let Role::Node(own) = &mut self.hosts[node].role {
            own.call(now, call, &mut sent);
        }
        self.after(node, sent);
    }

    fn done(&mut self, Done { id, result }: Done) {
        let program = (id >> 16) as usize;
        let Some(own) = self.programs.get_mut(program) else { return };
        let pending = match own.pending.take_if(|pending| pending.id == id) {
            Some(pending) => pending,
            None => return self.failed_late(program, id, result.err()),
        };
        let tag = pending.call().tag;
        let is_relaxed = self.plan.coherence == Coherence::Gam;
        let judged = match result {
            Ok(_) if is_relaxed && pending.is_write() => {
                self.totals.answered += 1;
                self.programs[program].unfenced.push(pending);
                Ok(())
            }
            Ok(_) if pending.is_fence() => {
                self.totals.fences += 1;
                self.fenced(program)
            }
            Ok(_) if self.lost.get(&tag).is_some_and(|since| *since < pending.call_ns) => {
                Err(format!("block {:x} was lost, and is seen again", tag.0))
            }
            Ok(got) => {
                self.totals.answered += 1;
                self.seen.answered(program, self.now, &pending, &got)
            }
            Err(Failure::Lost) if self.plan.may_lose() => {
                self.found_lost(&pending);
                Ok(())
            }
            Err(Failure::NoNode) => {
                self.totals.refused_calls += 1;
                Ok(())
            }
            Err(why) => Err(format!("a program is told {why:?} of block {:x}", tag.0)),
        };
        self.wrong_if(judged);
        self.next(program);
    }

    /// Notes that the block of a call is lost: the call had no effect.
    fn found_lost(&mut self, pending: &Pending) {
        let tag = pending.call().tag;
        self.totals.lost += 1;
        // A call made before the renewal of its block says nothing about the new one.
        if self.renewed.get(&tag).is_none_or(|at| *at < pending.call_ns) {
            self.lost.entry(tag).or_insert(self.now);
        }
        if self.rng.chance(1, 4) {
            let at = self.now + self.rng.below(RENEW_NS);
            self.at(at, Event::Renew(tag));
        }
    }

    /// A fence of a program has ended: its writes before it have taken effect.
    fn fenced(&mut self, program: usize) -> Result<(), String> {
        for write in std::mem::take(&mut self.programs[program].unfenced) {
            self.seen.answered(program, self.now, &write, &[])?;
        }
        Ok(())
    }

    /// A write that was answered before it took effect has failed: it has none.
    fn failed_late(&mut self, program: usize, id: u64, why: Option<Failure>) {
        let unfenced = &mut self.programs[program].unfenced;
        let at = unfenced.iter().position(|write| write.id == id);
        let judged = match (at.map(|at| unfenced.remove(at)), why) {
            (Some(write), Some(Failure::Lost)) if self.plan.may_lose() => {
                self.found_lost(&write);
                Ok(())
            }
            (Some(_), Some(Failure::NoNode)) => {
                self.totals.refused_calls += 1;
                Ok(())
            }
            (_, why) => Err(format!("call {id} is answered ({why:?}), and nobody waits for it")),
        };
        self.wrong_if(judged);
    }

    fn wrong_if(&mut self, judged: Result<(), String>) {
        if let Err(why) = judged {
            self.violation.get_or_insert(why);
        }
    }

    fn is_done(&self) -> bool {
        let is_over = |own: &Program| own.pending.is_none() && own.made >= self.plan.calls;
        self.programs.iter().all(is_over) && self.plan.quiet_at_ns() <= self.now
    }

    /// The nodes of the newest epoch that is open, by place.
    fn open(&self) -> Vec<(&MemoryNode, &Node)> {
        let nodes = self.hosts.iter().filter_map(|host| match &host.role {
            Role::Node(own) => Some((&**own, own.node()?)),
            _ => None,
        });
        let nodes: Vec<_> = nodes.collect();
        let newest = nodes.iter().map(|(own, _)| own.epoch()).max().unwrap_or(0);
        let mut open: Vec<_> = nodes.into_iter().filter(|(own, _)| own.epoch() == newest).collect();
        open.sort_by_key(|(_, node)| node.place());
        open
    }

    /// The program of the active switch.
    fn switch(&self) -> Option<&Concordia> {
        let Role::Switch(agent) = &self.hosts[self.active()].role else { return None };
        match agent.program() {
            Hosted::Concordia(program) => Some(program),
            _ => None,
        }
    }

    /// Checks the invariants: a block has one writer or many readers, and its copies are equal.
    fn wrong(&self) -> Option<String> {
        let open = self.open();
        for tag in &self.tags {
            let lines = open.iter().flat_map(|(_, node)| {
                let own = node.lines().filter(|l| l.tag == *tag && l.is_valid());
                own.map(move |line| (node.place(), line))
            });
            let holders: Vec<_> = lines.collect();
            let Some((_, first)) = holders.first() else { continue };
            let is_written = holders.iter().any(|(_, l)| l.state == LineState::Modified);
            if holders.len() > 1 && is_written {
                let all: Vec<_> = holders.iter().map(|(place, l)| (place, l.state)).collect();
                return Some(format!("block {:x} has a writer beside others: {all:?}", tag.0));
            }
            if holders.iter().any(|(_, line)| line.data != first.data) {
                return Some(format!("copies of block {:x} differ", tag.0));
            }
        }
        None
    }

    /// Adds the counters of a node in the open epoch to the totals.
    fn count(&mut self, host: usize) {
        let Role::Node(own) = &self.hosts[host].role else { return };
        let totals = &mut self.totals;
        totals.epochs += own.counters().epochs_opened;
        totals.unleased += own.counters().unleased;
        let Some(node) = own.node() else { return };
        let c = node.counters();
        totals.hits += c.hits;
        totals.events_done += c.events;
        totals.failed += c.failed;
        totals.resent += c.resent;
        totals.invalidated += c.invalidated;
        totals.written_back += c.written_back;
        totals.stale += c.stale;
    }

    fn ends(mut self) -> Ran {
        for host in 0..self.plan.nodes {
            self.count(host);
        }
        self.totals.events = self.queue.taken();
        if let Some(c) = self.switch().map(Concordia::counters).copied() {
            let totals = &mut self.totals;
            totals.at_homes += c.passed_to_homes;
            totals.added += c.blocks_added;
            totals.refused += c.blocks_refused;
            totals.removed += c.blocks_removed;
        }
        let waiting = self.programs.iter().filter(|own| own.pending.is_some()).count();
        if self.violation.is_none() && !self.is_done() {
            let after = PATIENCE_NS / SEC;
            self.violation = Some(format!(
                "{waiting} calls wait {after} s after the last fault: {}",
                self.under_way()
            ));
        }
        for (client, own) in self.programs.iter().enumerate() {
            for pending in own.unfenced.iter().chain(&own.pending) {
                self.seen.unknown(client, pending);
            }
        }
        let violation = self.violation.take();
        let violation = violation.or_else(|| self.at_rest()).or_else(|| self.seen.judged());
        Ran { violation, digest: self.digest.finish(), totals: self.totals }
    }

    /// A readable description of what is in progress.
    fn under_way(&self) -> String {
        let mut all = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let Role::Node(own) = &host.role else { continue };
            let Some(node) = own.node() else {
                all.push(format!("node {index} is in no open epoch, at {}", own.epoch()));
                continue;
            };
            all.push(format!("node {index} at {}", own.epoch()));
            for (lane, event) in node.events() {
                let (op, stage, block) = (event.op, event.stage, event.tag.0);
                all.push(format!("{index}.{lane}#{} {op:?} {stage:?} {block:x}", event.number));
            }
            if let Some(moving) = node.moves() {
                all.push(format!("{index} moves {:x}", moving.tag.0));
            }
        }
        all.join("; ")
    }

    /// Checks the state at rest: all nodes are in one epoch, no lock is held, copysets name the
    /// nodes that have copies, and copies are equal.
    fn at_rest(&self) -> Option<String> {
        let open = self.open();
        if open.len() < self.plan.nodes {
            return Some(format!("at rest a node is in no open epoch: {}", self.under_way()));
        }
        let is_busy = |node: &Node| node.events().next().is_some() || node.moves().is_some();
        if open.iter().any(|(_, node)| is_busy(node)) {
            return Some(format!("an event does not end: {}", self.under_way()));
        }
        for tag in &self.tags {
            let home = open.iter().find(|(_, node)| node.is_home(*tag)).map(|(_, node)| node)?;
            let (own, block) = (home.owned(*tag), tag.0);
            let in_switch = self.switch().and_then(|switch| switch.peek(*tag));
            if own.is_some() == in_switch.is_some() {
                return Some(format!("at rest block {block:x} has two owners, or none"));
            }
            let Some((status, _, copyset, is_locked)) = own.or(in_switch) else { continue };
            if is_locked {
                return Some(format!("at rest block {block:x} is locked"));
            }
            let value = home.home_data(*tag);
            for (_, node) in &open {
                let line = node.lines().find(|line| line.tag == *tag && line.is_valid());
                if line.is_some() != copyset.has(node.place()) {
                    return Some(format!(
                        "at rest block {block:x}: {copyset:?}, and place {} has a copy: {}",
                        node.place(),
                        line.is_some()
                    ));
                }
                if status == GlobalStatus::Shared && line.is_some_and(|line| line.data != value) {
                    return Some(format!("at rest block {block:x}: its home has an old value"));
                }
            }
        }
        self.wrong()
    }
}
