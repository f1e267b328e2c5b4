//! Runs a [`Plan`]: nodes and the switch program that ship, on virtual time, with a network that
//! loses, doubles and reorders.
//!
//! Checked: what programs saw is linearizable; one node writes a block or many read it; every call
//! is answered 8 s after the last fault; and at rest no lock is held, copysets name the nodes that
//! have copies, and all copies are equal.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use concord_core::{Epoch, Instant, MS, Machine as _, NodeId, Now, Rng, SEC};
use concord_memory::{Done, LineState, Node, NodeSettings};
use concord_pisa::Metadata;
use concord_switch::{Concordia, PortTable};
use concord_wire::concordia::{GlobalStatus, Tag};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use super::plan::{Fault, Plan};
use super::programs::{Pending, Program, Seen};
use super::rack::{Passed, SWITCH, addr, config, pass, place_of, switch};
use crate::engine::{EventQueue, NS, Time};

/// How long after the last fault every call has to be answered, in ns.
pub const PATIENCE_NS: u64 = 8 * SEC;
/// How long everything may take to come to rest once the last call is answered, in ns.
const REST_NS: u64 = 2 * SEC;
/// Most events of a run.
const EVENTS_MAX: u64 = 5_000_000;
/// Longest delay of a late packet, in ns.
const LATE_NS: u64 = 20 * MS;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls that were answered.
    pub answered: u64,
    /// Accesses that a cache served.
    pub hits: u64,
    /// Coherence events.
    pub events_done: u64,
    /// Requests that failed, and were tried again.
    pub failed: u64,
    /// What was sent again.
    pub resent: u64,
    /// Copies that others' events took.
    pub invalidated: u64,
    /// Blocks written back.
    pub written_back: u64,
    /// Packets of events that were over.
    pub stale: u64,
    /// Requests that homes served: the switch did not own their blocks.
    pub at_homes: u64,
    /// Blocks that the switch took over.
    pub added: u64,
    /// Blocks for which it had no room.
    pub refused: u64,
    /// Blocks that went back to their homes.
    pub removed: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl Totals {
    /// Adds another run's.
    pub fn add(&mut self, other: &Totals) {
        self.answered += other.answered;
        self.hits += other.hits;
        self.events_done += other.events_done;
        self.failed += other.failed;
        self.resent += other.resent;
        self.invalidated += other.invalidated;
        self.written_back += other.written_back;
        self.stale += other.stale;
        self.at_homes += other.at_homes;
        self.added += other.added;
        self.refused += other.refused;
        self.removed += other.removed;
        self.events += other.events;
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What went wrong first.
    pub violation: Option<String>,
    /// The same for the same plan.
    pub digest: u64,
    /// What happened.
    pub totals: Totals,
}

enum Event {
    /// To a node, or to the switch.
    Packet(usize, Addr, Vec<u8>),
    Round(Metadata, Vec<u8>),
    Wake(usize),
    Next(usize),
    Fault(usize),
}

struct Host {
    node: Node,
    wake_at: u64,
}

struct Memory<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    switch: Concordia,
    ports: PortTable,
    hosts: Vec<Host>,
    tags: Vec<Tag>,
    programs: Vec<Program>,
    /// Until when nodes stand still; the switch is the last one.
    paused_until: Vec<u64>,
    /// Ways that are cut until then.
    cuts: BTreeMap<(usize, usize), u64>,
    seen: Seen,
    digest: FxHasher,
    violation: Option<String>,
    totals: Totals,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut memory = match Memory::new(plan) {
        Ok(memory) => memory,
        Err(why) => return Ran { violation: Some(why), digest: 0, totals: Totals::default() },
    };
    let mut end_ns = plan.quiet_at_ns() + PATIENCE_NS;
    let mut is_over = false;
    while memory.violation.is_none() && memory.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = memory.queue.next_until(Time(end_ns * NS)) else {
            memory.now = end_ns;
            break;
        };
        memory.now = at.0 / NS;
        memory.happens(event);
        if plan.invariants && memory.violation.is_none() {
            memory.violation = memory.wrong();
        }
        if !is_over && memory.is_done() {
            (is_over, end_ns) = (true, memory.now + REST_NS);
        }
    }
    memory.ends()
}

impl<'a> Memory<'a> {
    fn new(plan: &'a Plan) -> Result<Memory<'a>, String> {
        let nodes = plan.nodes as u8;
        let switch = switch(plan.layout, plan.guards, &config(1, nodes))?;
        let addrs: Vec<Addr> = (0..nodes).map(addr).collect();
        let mut ports = PortTable::default();
        ports.fill(&addrs);
        let hosts = (0..nodes).map(|place| {
            let node = Node::new(NodeSettings {
                node: NodeId(1 + u16::from(place)),
                place,
                group: GroupId(0),
                epoch: Epoch(1),
                nodes: addrs.clone(),
                switch: SWITCH,
                block_bytes: plan.block_bytes,
                range_blocks: plan.blocks,
                cache_sets: plan.cache_sets,
                cache_ways: plan.cache_ways,
                lanes: plan.lanes,
                guards: plan.guards,
            });
            Ok(Host { node: node.map_err(|e| e.to_string())?, wake_at: u64::MAX })
        });
        let hosts = hosts.collect::<Result<Vec<Host>, String>>()?;
        let tag =
            |block: u64| Tag::new((block % u64::from(nodes)) as u16, block / u64::from(nodes));
        let tags: Vec<Tag> = (0..plan.blocks).map(tag).collect();
        let at = (0..plan.nodes).flat_map(|node| (0..plan.programs).map(move |_| node));
        let programs = at.map(|node| Program { node, ..Program::default() }).collect();
        let mut memory = Memory {
            plan,
            rng: Rng::new(plan.seed ^ 0xc0c0_4d1a),
            now: 2,
            queue: EventQueue::new(),
            switch,
            ports,
            hosts,
            seen: Seen::new(&tags),
            tags,
            programs,
            paused_until: vec![0; plan.nodes + 1],
            cuts: BTreeMap::new(),
            digest: FxHasher::default(),
            violation: None,
            totals: Totals::default(),
        };
        for program in 0..memory.programs.len() {
            memory.next(program);
        }
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            memory.at(*at, Event::Fault(index));
        }
        Ok(memory)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn clock(&self) -> Now {
        Now { instant: Instant(self.now), unix_ms: 0 }
    }

    /// The switch's number among those that may pause.
    fn switch_index(&self) -> usize {
        self.plan.nodes
    }

    fn happens(&mut self, event: Event) {
        let at = match &event {
            Event::Packet(at, ..) | Event::Wake(at) => Some(*at),
            Event::Round(..) => Some(self.switch_index()),
            // A program stops with its node.
            Event::Next(program) => Some(self.programs[*program].node),
            Event::Fault(_) => None,
        };
        if let Some(until) = at.map(|at| self.paused_until[at])
            && self.now < until
        {
            return self.at(until, event);
        }
        match event {
            Event::Packet(at, _, bytes) if at == self.switch_index() => self.pass(None, bytes),
            Event::Packet(at, from, bytes) => self.packet(at, from, bytes),
            Event::Round(metadata, bytes) => self.pass(Some(metadata), bytes),
            Event::Wake(at) => self.wake(at),
            Event::Next(program) => self.call(program),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
        }
    }

    fn pass(&mut self, round: Option<Metadata>, mut bytes: Vec<u8>) {
        (self.now, &bytes).hash(&mut self.digest);
        let Passed { sent, round } = pass(&mut self.switch, &self.ports, round, &mut bytes);
        for (to, bytes) in sent {
            self.send(SWITCH, to, bytes);
        }
        if let Some((metadata, bytes)) = round
            && !self.rng.chance(self.plan.loss_ppm / 4, 1_000_000)
        {
            let at = self.now + 1 + self.rng.below(self.plan.round_ns + 1);
            self.at(at, Event::Round(metadata, bytes));
        }
    }

    fn packet(&mut self, at: usize, from: Addr, mut bytes: Vec<u8>) {
        (self.now, at, &bytes).hash(&mut self.digest);
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[at].node.handle(now, from, &mut bytes, &mut sent);
        self.after(at, sent);
    }

    fn wake(&mut self, at: usize) {
        if self.now < self.hosts[at].wake_at {
            return;
        }
        self.hosts[at].wake_at = u64::MAX;
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[at].node.tick(now, &mut sent);
        self.after(at, sent);
    }

    /// What a node sends, says and waits for.
    fn after(&mut self, at: usize, sent: Vec<(Addr, Vec<u8>)>) {
        for (to, bytes) in sent {
            self.send(addr(at as u8), to, bytes);
        }
        while let Some(done) = self.hosts[at].node.poll_done() {
            self.done(done);
        }
        let due = self.hosts[at].node.deadline().at.0;
        if due < self.hosts[at].wake_at {
            self.hosts[at].wake_at = due.max(self.now);
            let due = self.hosts[at].wake_at;
            self.at(due, Event::Wake(at));
        }
    }

    fn index_of(&self, addr: Addr) -> usize {
        if addr == SWITCH { self.switch_index() } else { place_of(addr) }
    }

    fn send(&mut self, from: Addr, to: Addr, bytes: Vec<u8>) {
        let plan = self.plan;
        let (from_index, to_index) = (self.index_of(from), self.index_of(to));
        let way = (from_index.min(to_index), from_index.max(to_index));
        if self.cuts.get(&way).is_some_and(|until| self.now < *until) {
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
            self.at(at, Event::Packet(to_index, from, bytes.clone()));
        }
    }

    fn fault(&mut self, fault: Fault) {
        let switch = self.switch_index();
        let (at, ns) = match fault {
            Fault::PauseNode(node, ns) => (node, ns),
            Fault::PauseSwitch(ns) => (switch, ns),
            Fault::CutPair(a, b, ns) => return self.cut(a, b, ns),
            Fault::CutSwitch(node, ns) => return self.cut(node, switch, ns),
        };
        let until = self.now + ns;
        if let Some(paused) = self.paused_until.get_mut(at) {
            *paused = until.max(*paused);
        }
    }

    fn cut(&mut self, a: usize, b: usize, ns: u64) {
        let until = self.cuts.entry((a.min(b), a.max(b))).or_default();
        *until = (*until).max(self.now + ns);
    }

    /// A program's next call comes soon.
    fn next(&mut self, program: usize) {
        let at = self.now + self.rng.below(self.plan.think_ns + 1);
        self.at(at, Event::Next(program));
    }

    fn call(&mut self, program: usize) {
        let Program { node, made, .. } = self.programs[program];
        if made >= self.plan.calls {
            return;
        }
        let id = (program as u64) << 16 | u64::from(made + 1);
        let tag = self.tags[self.rng.below(self.tags.len() as u64) as usize];
        let (bytes, reads) = (self.plan.block_bytes, self.plan.reads_percent);
        let pending = Pending::draw(&mut self.rng, (id, self.now), tag, bytes, reads);
        let call = pending.call();
        let own = &mut self.programs[program];
        (own.made, own.pending) = (made + 1, Some(pending));
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[node].node.call(now, call, &mut sent);
        self.after(node, sent);
    }

    fn done(&mut self, Done { id, result }: Done) {
        let program = (id >> 16) as usize;
        let Some(own) = self.programs.get_mut(program) else { return };
        let Some(pending) = own.pending.take_if(|pending| pending.id == id) else {
            return self.wrong_if(Err(format!("call {id} is answered, and nobody waits for it")));
        };
        let judged = match result {
            Ok(got) => {
                self.totals.answered += 1;
                self.seen.answered(program, self.now, &pending, &got)
            }
            Err(why) => Err(format!("a program is told {why:?}")),
        };
        self.wrong_if(judged);
        self.next(program);
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

    /// One owner; one writer or many readers, all of the same.
    fn wrong(&self) -> Option<String> {
        for tag in &self.tags {
            let home = &self.hosts[usize::from(tag.range())].node;
            let is_in_switch = self.switch.peek(*tag).is_some();
            if !home.is_moving(*tag) && home.owned(*tag).is_some() == is_in_switch {
                return Some(format!("block {:x} has two owners, or none", tag.0));
            }
            let lines = self.hosts.iter().enumerate().flat_map(|(place, host)| {
                let own = host.node.lines().filter(|l| l.tag == *tag && l.is_valid());
                own.map(move |line| (place, line))
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

    fn ends(mut self) -> Ran {
        let totals = &mut self.totals;
        totals.events = self.queue.taken();
        for host in &self.hosts {
            let c = host.node.counters();
            totals.hits += c.hits;
            totals.events_done += c.events;
            totals.failed += c.failed;
            totals.resent += c.resent;
            totals.invalidated += c.invalidated;
            totals.written_back += c.written_back;
            totals.stale += c.stale;
        }
        let c = self.switch.counters();
        totals.at_homes += c.passed_to_homes;
        totals.added += c.blocks_added;
        totals.refused += c.blocks_refused;
        totals.removed += c.blocks_removed;
        let waiting = self.programs.iter().filter(|own| own.pending.is_some()).count();
        if self.violation.is_none() && !self.is_done() {
            let after = PATIENCE_NS / SEC;
            self.violation = Some(format!(
                "{waiting} calls wait {after} s after the last fault: {}",
                self.under_way()
            ));
        }
        for (client, own) in self.programs.iter().enumerate() {
            if let Some(pending) = &own.pending {
                self.seen.unknown(client, pending);
            }
        }
        let violation = self.violation.take();
        let violation = violation.or_else(|| self.at_rest()).or_else(|| self.seen.judged());
        Ran { violation, digest: self.digest.finish(), totals: self.totals }
    }

    /// What is under way, for a person.
    fn under_way(&self) -> String {
        let mut all = Vec::new();
        for (place, host) in self.hosts.iter().enumerate() {
            for (lane, event) in host.node.events() {
                let (op, stage, block) = (event.op, event.stage, event.tag.0);
                all.push(format!("{place}.{lane}#{} {op:?} {stage:?} {block:x}", event.number));
            }
            if let Some(moving) = host.node.moves() {
                all.push(format!("{place} moves {:x}", moving.tag.0));
            }
        }
        for tag in &self.tags {
            let own = self.hosts[usize::from(tag.range())].node.owned(*tag);
            all.push(format!("block {:x}: {own:?}, {:?}", tag.0, self.switch.peek(*tag)));
        }
        all.join("; ")
    }

    /// At rest no lock is held, copysets name who has copies, and copies are equal.
    fn at_rest(&self) -> Option<String> {
        let busy = self.hosts.iter().position(|host| host.node.events().next().is_some());
        let moving = self.hosts.iter().position(|host| host.node.moves().is_some());
        if let Some(place) = busy.or(moving) {
            return Some(format!("an event of node {place} does not end"));
        }
        for tag in &self.tags {
            let node = &self.hosts[usize::from(tag.range())].node;
            let (own, block) = (node.owned(*tag), tag.0);
            let in_switch = self.switch.peek(*tag);
            if own.is_some() == in_switch.is_some() {
                return Some(format!("at rest block {block:x} has two owners, or none"));
            }
            let Some((status, _, copyset, is_locked)) = own.or(in_switch) else { continue };
            if is_locked {
                return Some(format!("at rest block {block:x} is locked"));
            }
            let home = self.hosts[usize::from(tag.range())].node.home_data(*tag);
            for (place, host) in self.hosts.iter().enumerate() {
                let line = host.node.lines().find(|line| line.tag == *tag && line.is_valid());
                if line.is_some() != copyset.has(place as u8) {
                    return Some(format!(
                        "at rest block {block:x}: {copyset:?}, and node {place} has a copy: {}",
                        line.is_some()
                    ));
                }
                if status == GlobalStatus::Shared && line.is_some_and(|line| line.data != home) {
                    return Some(format!("at rest block {block:x}: its home has an old value"));
                }
            }
        }
        self.wrong()
    }
}
