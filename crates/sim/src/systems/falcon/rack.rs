//! A run of a plan: the owners, workers and switches that ship, on virtual time.
//!
//! It checks that
//! - a reader of a job's outcomes gets each once, with its complete output, even if the owner is
//!   restarted meanwhile;
//! - each task has one outcome, and its output is that of one of its runs;
//! - a task that must not run twice begins at most once, ends before its outcome is reported, and
//!   never has the outcome "unknown" without having begun, unless a worker was dead or unreachable;
//! - every task is over 8 s after the last fault.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use concord_control::{Controller, ControllerConfig, GroupSetup, State};
use concord_core::machine::Deadline;
use concord_core::{Incarnation, Instant, Key, MS, Machine as _, Now, Rng, SEC, SessionId};
use concord_scheduler::{
    Book, Found, Journal, JournaledOwner, Order, Outcome, Output, OwnerConfig, Worker, WorkerConfig,
};
use concord_switch::{Agent, AgentConfig, Sections};
use concord_wire::control::Program;
use concord_wire::falcon::Submission;
use concord_wire::tasks::{Attempt, Ended};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use super::plan::{Fault, Plan};
use crate::engine::{EventQueue, NS, Time};
use crate::systems::Overdue;

mod readers;

use readers::Reader;

/// The time after the last fault within which every task has to be over, in ns.
pub const PATIENCE_NS: u64 = 8 * SEC;
/// The time of silence after which the controller takes a node for dead, in ns.
const FAILURE_NS: u64 = 300 * MS;
/// The maximum number of events in a run.
const EVENTS_MAX: u64 = 20_000_000;
const SWITCHES: usize = 2;
/// The key with which owners tag their tasks.
const KEY: [u8; 16] = *b"the rack's key..";

concord_core::counters! {
    /// Counts of what happened in a run.
    pub struct Totals {
        /// Tasks with an outcome.
        tasks,
        /// Tasks that succeeded.
        done,
        /// Tasks that failed, or whose workers were lost too often.
        failed,
        /// Tasks that may have run, and must not run again.
        unknown,
        /// Tasks that were cancelled.
        cancelled_tasks,
        /// Tasks whose owner died.
        orphans,
        /// Tasks that outlived their owner.
        resumed,
        /// Runs that began.
        runs,
        /// Tasks submitted again because no worker reported that it runs them.
        unheard,
        /// Tasks submitted again because another switch became active.
        forgotten,
        /// Tasks that found the queue full.
        refused,
        /// Leases that expired.
        leases_over,
        /// Runs that were cancelled.
        cancelled,
        /// Assignments by a switch that was no longer active.
        other_switch,
        /// Claims that owners refused.
        claims_refused,
        /// Tasks that gave up waiting for the node near which they preferred to run.
        moved,
        /// Tasks given back because their executors were occupied, or not of their class.
        returned,
        /// Tasks that arrived while all executors ran one.
        prefetched,
        /// Events of the simulation.
        events,
    }
}

/// The result of a run.
pub type Ran = crate::systems::Ran<Totals>;

enum Role {
    Controller(Box<Controller>),
    Owner(Box<JournaledOwner>),
    Worker(Box<Worker>),
    Switch(Box<Agent>),
    Dead,
}

impl Role {
    fn deadline(&self) -> Deadline {
        match self {
            Role::Controller(controller) => controller.deadline(),
            Role::Owner(owner) => owner.deadline(),
            Role::Worker(worker) => worker.deadline(),
            Role::Switch(agent) => agent.deadline(),
            Role::Dead => Deadline::NONE,
        }
    }
}

struct Node {
    role: Role,
    /// The number of its restarts: events of an earlier incarnation are ignored.
    incarnation: u64,
    /// The time until which it is paused, in ns; inputs wait in `held`.
    paused_until: u64,
    held: Vec<(Addr, Vec<u8>)>,
    wake_at: u64,
    overdue: Overdue,
    /// Its clock: the offset, and how much faster it runs, per million.
    offset_ns: u64,
    drift_ppm: i64,
    /// Its runs: the attempt, the result that the run will have, and the time when it began.
    runs: BTreeMap<u32, (Attempt, Ended, u64)>,
    /// The runs that end before any other event.
    ends_at_once: Vec<u32>,
    /// An owner's journal: its durable part, and the part that is being written.
    disk: Vec<u8>,
    writing: Option<Vec<u8>>,
    /// The outcomes that it reports to readers of its jobs.
    book: Book,
}

enum Event {
    Packet(usize, Addr, Vec<u8>),
    Wake(usize, u64),
    Finish(usize, u64, u32),
    Fault(usize),
    Job(usize),
    Cancel(usize),
    Read(usize),
    Resume(usize),
    Start(usize, u64),
    Synced(usize, u64, u64),
}

type TaskName = (u64, u32, u32);

struct Rack<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    nodes: Vec<Node>,
    /// The links that are cut, and the time until then.
    cuts: BTreeMap<(usize, usize), u64>,
    /// The state that the controller has stored.
    stored: Option<State>,
    /// The number of times that each task which must not run twice began.
    begun: BTreeMap<TaskName, u32>,
    once: BTreeMap<TaskName, bool>,
    /// The highest attempt of each task that was submitted.
    attempts: BTreeMap<TaskName, u16>,
    outcomes: BTreeMap<TaskName, Outcome>,
    expected: usize,
    /// The owner's session and the JID of each accepted job.
    taken: BTreeMap<usize, (u64, u32)>,
    /// The readers of jobs' outcomes.
    readers: BTreeMap<usize, Reader>,
    /// Jobs that were submitted, and may not be in the journal yet.
    taking: Vec<usize>,
    /// The sessions of owners that ended, and the time since when.
    gone: BTreeMap<u64, u64>,
    digest: FxHasher,
    totals: Totals,
    violation: Option<String>,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut rack = Rack::new(plan);
    rack.begin();
    let end_ns = plan.quiet_at_ns() + PATIENCE_NS;
    while rack.violation.is_none() && rack.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = rack.queue.next_until(Time(end_ns * NS)) else { break };
        rack.now = at.0 / NS;
        rack.happens(event);
        let is_over = rack.expected == rack.outcomes.len() && rack.readers.is_empty();
        if is_over && rack.now > plan.quiet_at_ns() {
            break;
        }
    }
    rack.ends(end_ns)
}

impl<'a> Rack<'a> {
    fn new(plan: &'a Plan) -> Rack<'a> {
        Rack {
            plan,
            rng: Rng::new(plan.seed ^ 0x00fa_1c04),
            now: 0,
            queue: EventQueue::new(),
            nodes: Vec::new(),
            cuts: BTreeMap::new(),
            stored: None,
            begun: BTreeMap::new(),
            once: BTreeMap::new(),
            attempts: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            expected: 0,
            taken: BTreeMap::new(),
            readers: BTreeMap::new(),
            taking: Vec::new(),
            gone: BTreeMap::new(),
            digest: FxHasher::default(),
            totals: Totals::default(),
            violation: None,
        }
    }

    fn begin(&mut self) {
        let count = self.controller() + 1;
        for node in 0..count {
            let offset_ns = self.rng.below(1_000 * SEC);
            let drift_ppm = self.rng.below(200) as i64 - 100;
            self.nodes.push(Node {
                role: Role::Dead,
                incarnation: 0,
                paused_until: 0,
                held: Vec::new(),
                wake_at: u64::MAX,
                overdue: Overdue::default(),
                offset_ns,
                drift_ppm,
                runs: BTreeMap::new(),
                ends_at_once: Vec::new(),
                disk: Vec::new(),
                writing: None,
                book: Book::with_room(self.plan.room_bytes),
            });
            self.start(node);
        }
        for (index, (at, _)) in self.plan.faults.iter().enumerate() {
            self.at(*at, Event::Fault(index));
        }
        for (index, (at, ..)) in self.plan.jobs.iter().enumerate() {
            self.at(*at, Event::Job(index));
        }
        for (index, (at, _)) in self.plan.cancels.iter().enumerate() {
            self.at(*at, Event::Cancel(index));
        }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn addr(node: usize) -> Addr {
        Addr { ip: 10, port: 1_000 + node as u16 }
    }

    fn node_of(addr: Addr) -> Option<usize> {
        (addr.ip == 10).then(|| usize::from(addr.port - 1_000))
    }

    /// The node of the first switch; the next one is the standby.
    fn switches(&self) -> usize {
        self.plan.owners + self.plan.workers.len()
    }

    fn controller(&self) -> usize {
        self.switches() + SWITCHES
    }

    /// The node of the switch that the controller has made active.
    fn active(&self) -> usize {
        let config = self.stored.as_ref().and_then(|state| state.config(GroupId::FIRST));
        config.and_then(|config| Rack::node_of(config.switch)).unwrap_or(self.switches())
    }

    fn clock(&self, node: usize) -> Now {
        let own = &self.nodes[node];
        let drift = i128::from(self.now) * i128::from(own.drift_ppm) / 1_000_000;
        let local = i128::from(own.offset_ns) + i128::from(self.now) + drift;
        Now { instant: Instant(local as u64), unix_ms: 0 }
    }

    /// The virtual time at which a node's clock shows `local`.
    fn when(&self, node: usize, local: Instant) -> u64 {
        if local == Instant::NEVER {
            return u64::MAX;
        }
        let own = &self.nodes[node];
        let since = u128::from(local.0.saturating_sub(own.offset_ns));
        (since * 1_000_000 / (1_000_000 + i128::from(own.drift_ppm)) as u128) as u64 + 1
    }

    /// Starts a new incarnation of a node.
    fn start(&mut self, node: usize) {
        let plan = self.plan;
        self.nodes[node].incarnation += 1;
        let incarnation = self.nodes[node].incarnation;
        let session = SessionId((node as u64 + 1) << 32 | incarnation);
        let (own, switch) = (Rack::addr(node), Rack::addr(self.active()));
        let controller = Rack::addr(self.controller());
        let role = if node < plan.owners {
            let config = OwnerConfig::new(session, own, switch);
            let (guards, lease_ns, attempts_noted) =
                (plan.guards, plan.lease_ns, plan.attempts_noted);
            let controller = Some(controller);
            let key = Some(Key::from_bytes(KEY));
            let room_bytes = plan.room_bytes;
            let config = OwnerConfig { room_bytes, guards, lease_ns, attempts_noted, ..config };
            let config = OwnerConfig { controller, key, ..config };
            self.nodes[node].book = Book::with_room(room_bytes);
            Role::Owner(Box::new(if plan.journal {
                let (journal, found) = self.recover(node);
                self.found(node, &found);
                JournaledOwner::resume(config, self.clock(node), journal, &found)
            } else {
                JournaledOwner::new(config)
            }))
        } else if node < self.switches() {
            let config = WorkerConfig::new(session, own, switch, plan.workers[node - plan.owners]);
            let (guards, lease_ns, wait_ns) = (plan.guards, plan.lease_ns, plan.wait_ns);
            let (queues, prefetch) = (plan.queues[node - plan.owners], plan.prefetch);
            let controller = Some((node as u16, controller));
            let report_bytes_max = plan.room_bytes / 4;
            let config = WorkerConfig { controller, queues, prefetch, report_bytes_max, ..config };
            Role::Worker(Box::new(Worker::new(WorkerConfig {
                guards,
                lease_ns,
                wait_ns,
                key: Some(Key::from_bytes(KEY)),
                ..config
            })))
        } else if node == self.controller() {
            let workers = GroupSetup::workers(GroupId::FIRST, Program::Falcon);
            let config = ControllerConfig::new(vec![workers], own);
            let config = ControllerConfig { failure_ns: FAILURE_NS, rack: 1, ..config };
            Role::Controller(Box::new(Controller::new(config, self.stored.clone())))
        } else {
            let base = AgentConfig::new(Incarnation(session.0 << 16), own, controller);
            let config = AgentConfig {
                program: Program::Falcon,
                sections: Sections { queue: plan.queue, ..base.sections },
                guards: plan.guards,
                standby: node > self.switches(),
                ..base
            };
            match Agent::new(config) {
                Ok(agent) => Role::Switch(Box::new(agent)),
                Err(error) => {
                    self.violation = Some(error.to_string());
                    Role::Dead
                }
            }
        };
        let own = &mut self.nodes[node];
        own.role = role;
        own.runs.clear();
        own.ends_at_once.clear();
        own.held.clear();
        own.paused_until = 0;
        own.wake_at = u64::MAX;
        self.after(node);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Packet(node, from, bytes) => {
                if self.now < self.nodes[node].paused_until {
                    self.nodes[node].held.push((from, bytes));
                } else {
                    self.packet(node, from, bytes);
                }
            }
            Event::Wake(node, incarnation) => {
                let own = &mut self.nodes[node];
                if own.incarnation == incarnation && own.wake_at <= self.now {
                    own.wake_at = u64::MAX;
                    if self.now >= own.paused_until {
                        self.tick(node);
                    }
                }
            }
            Event::Finish(node, incarnation, run) => self.finish(node, incarnation, run),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
            Event::Job(index) => self.job(index),
            Event::Cancel(index) => self.cancel(index),
            Event::Read(index) => self.read(index),
            Event::Resume(node) => self.resume(node),
            Event::Start(node, incarnation) => {
                if self.nodes[node].incarnation == incarnation {
                    self.start(node);
                }
            }
            Event::Synced(node, incarnation, number) => self.synced(node, incarnation, number),
        }
    }

    fn packet(&mut self, node: usize, from: Addr, mut bytes: Vec<u8>) {
        (self.now, node, &bytes).hash(&mut self.digest);
        let now = self.clock(node);
        let mut sent = Vec::new();
        match &mut self.nodes[node].role {
            Role::Controller(controller) => controller.handle(now, from, &mut bytes, &mut sent),
            Role::Owner(owner) => owner.handle(now, from, &mut bytes, &mut sent),
            Role::Worker(worker) => worker.handle(now, from, &mut bytes, &mut sent),
            Role::Switch(agent) => agent.handle(now, from, &mut bytes, &mut sent),
            Role::Dead => {}
        }
        self.send_all(node, sent);
        self.after(node);
    }

    fn tick(&mut self, node: usize) {
        let now = self.clock(node);
        let mut sent = Vec::new();
        match &mut self.nodes[node].role {
            Role::Controller(controller) => controller.tick(now, &mut sent),
            Role::Owner(owner) => owner.tick(now, &mut sent),
            Role::Worker(worker) => worker.tick(now, &mut sent),
            Role::Switch(agent) => agent.tick(now, &mut sent),
            Role::Dead => {}
        }
        self.send_all(node, sent);
        self.after(node);
        let deadline = self.nodes[node].role.deadline();
        if let Some(why) = self.nodes[node].overdue.woken(now.instant, deadline) {
            self.wrong(format!("node {node} {why}"));
        }
    }

    /// Handles a node's outputs after a step: actions, reports, and its next deadline.
    fn after(&mut self, node: usize) {
        loop {
            while let Role::Worker(worker) = &mut self.nodes[node].role
                && let Some(order) = worker.poll_order()
            {
                self.order(node, order);
            }
            if self.nodes[node].ends_at_once.is_empty() {
                break;
            }
            for run in std::mem::take(&mut self.nodes[node].ends_at_once) {
                self.ended(node, run);
            }
        }
        self.flush(node);
        while let Role::Owner(owner) = &mut self.nodes[node].role
            && let Some(told) = owner.poll_outcome()
        {
            let session = self.name_of(self.session(node));
            let (name, outcome) = ((session, told.jid, told.tid), told.outcome.clone());
            self.nodes[node].book.note(told);
            self.told(name, outcome);
        }
        self.hold(node);
        self.persist(node);
        let deadline = self.nodes[node].role.deadline();
        if matches!(self.nodes[node].role, Role::Dead) {
            return;
        }
        let at = self.when(node, deadline.at).max(self.now + 1_000);
        if at < self.nodes[node].wake_at {
            self.nodes[node].wake_at = at;
            let incarnation = self.nodes[node].incarnation;
            self.at(at, Event::Wake(node, incarnation));
        }
    }

    /// Ends a batch of inputs, which has one input here.
    fn flush(&mut self, node: usize) {
        let now = self.clock(node);
        let mut sent = Vec::new();
        match &mut self.nodes[node].role {
            Role::Controller(controller) => controller.flush(now, &mut sent),
            Role::Owner(owner) => owner.flush(now, &mut sent),
            Role::Worker(worker) => worker.flush(now, &mut sent),
            Role::Switch(agent) => agent.flush(now, &mut sent),
            Role::Dead => {}
        }
        self.send_all(node, sent);
    }

    fn send_all(&mut self, from: usize, sent: Vec<(Addr, Vec<u8>)>) {
        for (to, bytes) in sent {
            if from < self.plan.owners {
                self.submitted(&bytes);
            }
            if let Some(to) = Rack::node_of(to) {
                self.send(from, to, bytes);
            }
        }
    }

    /// Checks that the numbers of attempts, which are fencing tokens, only increase, whichever
    /// incarnation of an owner with a journal submits.
    fn submitted(&mut self, bytes: &[u8]) {
        let Ok(submission) = Submission::parse(bytes) else { return };
        let (name, jid) = (self.name_of(submission.uid.0), submission.jid);
        for task in &submission.tasks {
            let before = self.attempts.insert((name, jid, task.tid), task.attempt);
            if let Some(before) = before.filter(|before| *before >= task.attempt) {
                let (tid, attempt) = (task.tid, task.attempt);
                self.wrong(format!(
                    "attempt {attempt} at task {jid}.{tid} comes after attempt {before}"
                ));
            }
        }
    }

    /// Stores the controller's state before others receive its packets (trap T3).
    fn persist(&mut self, node: usize) {
        let now = self.clock(node);
        let mut sent = Vec::new();
        while let Role::Controller(controller) = &mut self.nodes[node].role
            && let Some(persist) = controller.poll_persist()
        {
            self.stored = Some(persist.what);
            controller.persisted(now, persist.number, &mut sent);
        }
        self.send_all(node, sent);
        if let Role::Owner(owner) = &mut self.nodes[node].role
            && let Some(persist) = owner.poll_persist()
        {
            self.nodes[node].writing = Some(persist.what);
            let (incarnation, at) = (
                self.nodes[node].incarnation,
                self.now + self.rng.between(50_000, self.plan.sync_ns_max),
            );
            self.at(at, Event::Synced(node, incarnation, persist.number));
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let cut = self.cuts.get(&(from.min(to), from.max(to)));
        if cut.is_some_and(|until| *until > self.now) {
            return;
        }
        let mut copies = u32::from(!self.rng.chance(self.plan.loss_ppm, 1_000_000));
        copies += u32::from(self.rng.chance(self.plan.duplicate_ppm, 1_000_000));
        for _ in 0..copies {
            let mut way_ns = self.rng.between(self.plan.latency_ns.0, self.plan.latency_ns.1);
            if self.rng.chance(self.plan.late_ppm, 1_000_000) {
                way_ns += self.rng.below(20 * MS);
            }
            self.at(self.now + way_ns, Event::Packet(to, Rack::addr(from), bytes.clone()));
        }
    }

    fn job(&mut self, index: usize) {
        let (_, node, job) = &self.plan.jobs[index];
        let now = self.clock(*node);
        let session = self.name_of(self.session(*node));
        let Role::Owner(owner) = &mut self.nodes[*node].role else { return };
        let Some(jid) = owner.submit(now, job.clone(), &index.to_be_bytes()) else { return };
        let mut sent = Vec::new();
        owner.tick(now, &mut sent);
        self.taken.insert(index, (session, jid));
        self.attach(index, jid);
        self.taking.push(index);
        self.take(*node);
        for tid in 0..job.tasks.len() as u32 {
            self.once.insert((session, jid, tid), job.once);
        }
        self.send_all(*node, sent);
        self.after(*node);
    }
}

impl Rack<'_> {
    fn session(&self, node: usize) -> u64 {
        (node as u64 + 1) << 32 | self.nodes[node].incarnation
    }

    /// The identity of a session's owner: an owner with a journal is the same in all of its
    /// incarnations.
    fn name_of(&self, session: u64) -> u64 {
        if self.plan.journal { session & !0xffff_ffff } else { session }
    }

    /// Notes the jobs that are durable: all of their tasks have to be over once.
    fn take(&mut self, node: usize) {
        let Role::Owner(owner) = &self.nodes[node].role else { return };
        let (plan, taken) = (self.plan, &self.taken);
        let is_taken = |index: &usize| {
            plan.jobs[*index].1 == node
                && taken.get(index).is_some_and(|(_, jid)| owner.is_taken(*jid))
        };
        let (now_taken, rest): (Vec<usize>, Vec<usize>) =
            self.taking.iter().copied().partition(is_taken);
        self.taking = rest;
        for index in now_taken {
            self.expected += plan.jobs[index].2.tasks.len();
        }
    }

    /// A sync of an owner's journal has ended.
    fn synced(&mut self, node: usize, incarnation: u64, number: u64) {
        if self.nodes[node].incarnation != incarnation
            || matches!(self.nodes[node].role, Role::Dead)
        {
            return;
        }
        if self.now < self.nodes[node].paused_until {
            let at = self.nodes[node].paused_until + MS;
            return self.at(at, Event::Synced(node, incarnation, number));
        }
        let written = self.nodes[node].writing.take().unwrap_or_default();
        self.nodes[node].disk.extend(written);
        let now = self.clock(node);
        let mut sent = Vec::new();
        if let Role::Owner(owner) = &mut self.nodes[node].role {
            owner.persisted(now, number, &mut sent);
        }
        self.send_all(node, sent);
        self.take(node);
        self.after(node);
    }

    /// An owner was killed: a prefix of the data that was being written may be on disk.
    fn tear(&mut self, node: usize) {
        if let Some(written) = self.nodes[node].writing.take() {
            let length = self.rng.below(written.len() as u64 + 1) as usize;
            self.nodes[node].disk.extend_from_slice(&written[..length]);
        }
    }

    /// Reads an owner's journal: it must have everything that was reported, and no incomplete job.
    fn recover(&mut self, node: usize) -> (Journal, Found) {
        let found = match Journal::recover(&self.nodes[node].disk) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let (journal, bytes) = Journal::create(node as u64);
                self.nodes[node].disk = bytes;
                return (journal, Found::default());
            }
            Err(why) => {
                self.wrong(format!("the journal of owner {node}: {why}"));
                Found::default()
            }
        };
        let name = self.name_of((node as u64 + 1) << 32);
        for job in found.jobs.values() {
            for told in &job.outcomes {
                let task = (name, job.jid, told.tid);
                match self.outcomes.get(&task) {
                    None => self.told(task, told.outcome.clone()),
                    Some(before) if *before == told.outcome => {}
                    Some(before) => {
                        let before = format!("{before:?}");
                        self.wrong(format!(
                            "task {task:?} was {before:.99}, and is written otherwise"
                        ));
                    }
                }
            }
            self.totals.resumed += (job.job.tasks.len() - job.outcomes.len()) as u64;
        }
        // The client of a job that is not there was not told that it was accepted.
        for index in std::mem::take(&mut self.taking) {
            let jid = self.taken.get(&index).map_or(0, |(_, jid)| *jid);
            if self.plan.jobs[index].1 != node {
                self.taking.push(index);
            } else if found.jobs.contains_key(&jid) {
                self.expected += self.plan.jobs[index].2.tasks.len();
            } else {
                self.taken.remove(&index);
                self.readers.remove(&index);
                self.attempts.retain(|task, _| (task.0, task.1) != (name, jid));
                self.once.retain(|task, _| (task.0, task.1) != (name, jid));
            }
        }
        for index in 0..self.plan.jobs.len() {
            let taken = self.taken.get(&index).filter(|(of, _)| *of == name);
            let is_there = taken.is_none_or(|(_, jid)| found.jobs.contains_key(jid));
            if !is_there {
                self.wrong(format!("job {index} was taken, and is not in the journal"));
            }
        }
        let kept = if self.rng.chance(1, 2) {
            Journal::rewritten(self.rng.below(u64::MAX), &found, usize::MAX)
        } else {
            self.nodes[node].disk[..found.length].to_vec()
        };
        self.nodes[node].disk = kept;
        let found = Journal::recover(&self.nodes[node].disk).ok().flatten().unwrap_or_default();
        (Journal::resume(&found), found)
    }

    fn cancel(&mut self, index: usize) {
        let job = self.plan.cancels[index].1;
        let node = self.plan.jobs[job].1;
        let Some((session, jid)) = self.taken.get(&job).copied() else { return };
        if session != self.name_of(self.session(node)) {
            return;
        }
        let now = self.clock(node);
        let Role::Owner(owner) = &mut self.nodes[node].role else { return };
        let mut sent = Vec::new();
        owner.cancel(now, jid, &mut sent);
        self.send_all(node, sent);
        self.after(node);
    }
}

/// The workers' runs, and the owners' reports.
impl Rack<'_> {
    fn wrong(&mut self, why: String) {
        self.violation.get_or_insert(why);
    }

    fn order(&mut self, node: usize, order: Order) {
        match order {
            Order::Start { run, of, job, parameters, task, .. } => {
                let worker = node - self.plan.owners;
                if task.needs != 0 && self.plan.queues[worker] >> task.needs & 1 == 0 {
                    self.wrong(format!("task {of:?} needs a class that worker {worker} is not of"));
                }
                if self.nodes[node].runs.len() >= usize::from(self.plan.workers[worker]) {
                    self.wrong(format!("worker {worker} runs more tasks than it may"));
                }
                let task = (self.name_of(of.uid), of.jid, of.tid);
                let job_name = (task.0, of.jid);
                let known = self.taken.iter().find(|(_, name)| **name == job_name);
                if let Some((index, _)) = known {
                    let plan = &self.plan.jobs[*index].2;
                    if plan.body != job || plan.long.get(&of.tid) != parameters.as_ref() {
                        self.wrong(format!("task {task:?} was begun without what it needs"));
                    }
                }
                let begun = self.begun.entry(task).or_default();
                *begun += 1;
                let begun = *begun;
                self.totals.runs += 1;
                if begun > 1 && self.once.get(&task) == Some(&true) {
                    self.wrong(format!("task {task:?} is never to be run twice, and was"));
                }
                let fails = self.rng.chance(self.plan.fail_ppm, 1_000_000);
                let ended = if fails { Ended::Failed } else { Ended::Done };
                self.nodes[node].runs.insert(run, (of, ended, self.now));
                if self.rng.chance(1, 4) {
                    self.nodes[node].ends_at_once.push(run);
                    return;
                }
                let most = self.plan.run_ns_max;
                let most = if self.rng.chance(1, 8) { most } else { most / 16 };
                let ends_at = self.now + 1_000 + self.rng.below(most);
                let incarnation = self.nodes[node].incarnation;
                self.at(ends_at, Event::Finish(node, incarnation, run));
            }
            Order::Kill { run, .. } => {
                self.nodes[node].runs.remove(&run);
            }
            Order::Stop { run, .. } => {
                if let Some((_, ended, _)) = self.nodes[node].runs.get_mut(&run) {
                    *ended = Ended::TimedOut;
                    self.nodes[node].ends_at_once.push(run);
                }
            }
        }
    }

    fn finish(&mut self, node: usize, incarnation: u64, run: u32) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        if self.now < self.nodes[node].paused_until {
            let at = self.nodes[node].paused_until + MS;
            return self.at(at, Event::Finish(node, incarnation, run));
        }
        self.ended(node, run);
        self.after(node);
    }

    /// Ends a run, unless it was killed.
    fn ended(&mut self, node: usize, run: u32) {
        let Some((of, ended, began)) = self.nodes[node].runs.remove(&run) else { return };
        let task = (self.name_of(of.uid), of.jid, of.tid);
        // The workers of a cancelled job learn of it later.
        let is_over = self.outcomes.get(&task).is_some_and(|o| *o != Outcome::Cancelled);
        if self.once.get(&task) == Some(&true) && is_over {
            self.wrong(format!("task {task:?} was told to be over, and its run ended after that"));
        }
        // A task that was in the queue begins nevertheless, and goes on for the time of a lease.
        let most_ns = self.plan.lease_ns + self.plan.lease_ns / 8 + 20 * MS;
        let ran_on = |since: u64| began.max(since) + most_ns < self.now;
        // With a journal, the next incarnation of its owner may have extended its lease.
        let name = self.name_of(of.uid);
        let deaths = self.gone.iter().filter(|(session, _)| self.name_of(**session) == name);
        let died = deaths.map(|(_, since)| *since).max();
        let owner = &self.nodes[(of.uid >> 32) as usize - 1];
        let has_owner = self.plan.journal && !matches!(owner.role, Role::Dead);
        if self.gone.contains_key(&of.uid) && !has_owner && died.is_some_and(ran_on) {
            self.wrong(format!("task {task:?} ran on though its owner is gone"));
        }
        let now = self.clock(node);
        let mut sent = Vec::new();
        if let Role::Worker(worker) = &mut self.nodes[node].role {
            let output = self.plan.outputs.of(of.tid);
            worker.finished(now, run, ended, Output::from(&output[..]), &mut sent);
        }
        self.send_all(node, sent);
    }

    fn told(&mut self, task: TaskName, outcome: Outcome) {
        match &outcome {
            Outcome::Done(output) => {
                self.totals.done += 1;
                if *output != self.plan.outputs.of(task.2) {
                    let bytes = output.len();
                    self.wrong(format!("task {task:?} gave {bytes} bytes that are not its own"));
                }
                if !self.begun.contains_key(&task) {
                    self.wrong(format!("task {task:?} is done, and nobody ran it"));
                }
            }
            Outcome::Failed(..) | Outcome::Lost => self.totals.failed += 1,
            Outcome::Cancelled => self.totals.cancelled_tasks += 1,
            Outcome::Unknown => {
                self.totals.unknown += 1;
                if self.once.get(&task) != Some(&true) {
                    self.wrong(format!("task {task:?} may be run twice, and is unknown"));
                }
                // Its worker can report that it did not begin.
                if !self.begun.contains_key(&task) && self.plan.keeps_workers() {
                    self.wrong(format!("task {task:?} is unknown, and never began"));
                }
            }
        }
        self.totals.tasks += 1;
        if let Some(before) = self.outcomes.insert(task, outcome) {
            self.wrong(format!("task {task:?} was over before: {before:?}"));
        }
    }

    fn ends(mut self, end_ns: u64) -> Ran {
        self.totals.events = self.queue.taken();
        let missing = self.expected - self.outcomes.len().min(self.expected);
        if missing > 0 {
            let why = format!("{missing} of {} tasks are not over at {end_ns} ns", self.expected);
            self.wrong(why);
        }
        if let Some(index) = self.readers.keys().next() {
            self.wrong(format!("the reader of job {index} has not read all at {end_ns} ns"));
        }
        for node in &self.nodes {
            match &node.role {
                Role::Owner(owner) => {
                    let c = owner.owner().counters();
                    self.totals.unheard += c.tasks_unheard;
                    self.totals.forgotten += c.tasks_forgotten;
                    self.totals.refused += c.tasks_refused;
                    self.totals.leases_over += c.leases_over;
                    self.totals.moved += c.tasks_moved;
                }
                Role::Worker(worker) => {
                    let c = worker.counters();
                    self.totals.cancelled += c.cancelled;
                    self.totals.other_switch += c.assignments_other_switch;
                    self.totals.claims_refused += c.claims_refused;
                    self.totals.returned += c.returned + c.returned_class;
                    self.totals.prefetched += c.prefetched;
                }
                Role::Controller(_) | Role::Switch(_) | Role::Dead => {}
            }
        }
        Ran { violation: self.violation, digest: self.digest.finish(), totals: self.totals }
    }
}

/// The faults.
impl Rack<'_> {
    fn fault(&mut self, fault: Fault) {
        let owners = self.plan.owners;
        match fault {
            Fault::KillWorker(worker, ns) => {
                let node = owners + worker;
                self.nodes[node].role = Role::Dead;
                self.nodes[node].runs.clear();
                let incarnation = self.nodes[node].incarnation;
                self.at(self.now + ns, Event::Start(node, incarnation));
            }
            Fault::KillOwner(node, ns) => {
                let session = self.session(node);
                if matches!(self.nodes[node].role, Role::Dead) {
                    return;
                }
                self.nodes[node].role = Role::Dead;
                self.gone.insert(session, self.now);
                self.tear(node);
                let has_orphans = !self.plan.journal;
                let own = self.once.keys().filter(|task| has_orphans && task.0 == session);
                let orphans = own.filter(|task| !self.outcomes.contains_key(task)).count();
                self.expected -= orphans;
                self.totals.orphans += orphans as u64;
                let incarnation = self.nodes[node].incarnation;
                self.at(self.now + ns, Event::Start(node, incarnation));
            }
            Fault::PauseWorker(worker, ns) => self.pause(owners + worker, ns),
            Fault::PauseOwner(owner, ns) => self.pause(owner, ns),
            Fault::PauseSwitch(ns) => self.pause(self.active(), ns),
            Fault::PauseController(ns) => self.pause(self.controller(), ns),
            Fault::RestartController(ns) => self.restart(self.controller(), ns),
            Fault::CutWorker(worker, ns) => {
                for other in 0..self.nodes.len() {
                    self.cut(owners + worker, other, ns);
                }
            }
            Fault::CutPair(worker, owner, ns) => self.cut(owners + worker, owner, ns),
            Fault::RestartSwitch(ns) => self.restart(self.active(), ns),
            Fault::OtherSwitch(ns) => self.cut(self.active(), self.controller(), ns),
        }
    }

    /// Kills a node, and restarts it later.
    fn restart(&mut self, node: usize, ns: u64) {
        self.nodes[node].role = Role::Dead;
        let incarnation = self.nodes[node].incarnation;
        self.at(self.now + ns, Event::Start(node, incarnation));
    }

    fn cut(&mut self, a: usize, b: usize, ns: u64) {
        let until = self.cuts.entry((a.min(b), a.max(b))).or_default();
        *until = (*until).max(self.now + ns);
    }

    fn pause(&mut self, node: usize, ns: u64) {
        let own = &mut self.nodes[node];
        own.paused_until = own.paused_until.max(self.now + ns);
        let at = own.paused_until;
        self.at(at, Event::Resume(node));
    }

    /// Resumes a node: inputs that waited come first, by the clock as it is now (trap T1).
    fn resume(&mut self, node: usize) {
        if self.now < self.nodes[node].paused_until {
            return;
        }
        for (from, bytes) in std::mem::take(&mut self.nodes[node].held) {
            self.packet(node, from, bytes);
        }
        self.tick(node);
    }
}
