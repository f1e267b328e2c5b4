//! The load on Falcon: its owners, workers and switch program that ship.
//!
//! The program is driven directly, without the agent that hosts it: the agent adds only the
//! controller's work, and its recirculation has no rate. Here a recirculated packet waits for the
//! recirculation port.

use concord_core::machine::Deadline;
use concord_core::{Incarnation, Instant, MS, Machine as _, Now, Rng, SEC, SessionId};
use concord_pisa::{Metadata, Verdict};
use concord_scheduler::{
    self as scheduler, Order, Output, Owner, OwnerConfig, TaskSpec, Worker, WorkerConfig,
};
use concord_switch::program::Copied;
use concord_switch::{AgentConfig, Falcon, Ingress, Load as _, PortTable, SwitchProgram as _};
use concord_wire::control::{Config, GroupKind, Member, Program};
use concord_wire::falcon::{
    OP_ASSIGNMENT, OP_REQUEST, OP_SUBMIT, Reply, Request, Submission, TASKS_MAX,
};
use concord_wire::tasks::Ended;
use concord_wire::{Addr, GroupId, op};

use super::jobs::{Job, Jobs, Known};
use super::seen::{Open, Seen};
use super::{Load, Measured};
use crate::engine::{EventQueue, NS, Time};
use crate::world::Outgoing;

/// The measured steps.
const STEPS: [&str; 3] = ["submission", "queueing", "retrieval"];
const PORT: u16 = 7_400;
/// The start of the clocks: an instant of 0 stands for an event that has not happened.
const CLOCK_NS: u64 = SEC;
/// The interval in ns at which the switch's processor looks for executors that waited too long.
const UPKEEP_NS: u64 = 10 * MS;
/// The time in ns within which all executors ask for the first time.
const BEGIN_NS: u64 = MS;

/// An input of a host.
enum Input {
    Packet(Vec<u8>),
    /// A job for a client.
    Job(Job),
    /// A run ended.
    Ended(u32),
}

enum Event {
    /// An input reaches a host, and waits for its turn.
    Arrives(u32, Input),
    /// The host takes an input.
    Taken(u32, Input),
    Wake(u32),
    /// A packet is at the switch: its sender, and the number of its passes.
    Pass {
        sender: Addr,
        passes: u8,
        metadata: Metadata,
        bytes: Vec<u8>,
    },
    Upkeep,
}

#[derive(Clone)]
struct Host {
    busy_until_ns: u64,
    wake_ns: u64,
}

/// The times of an executor, if steps are measured.
#[derive(Clone, Copy, Default)]
struct Executor {
    /// The time at which its worker was done with its last task.
    free_ns: u64,
    /// The time that its last request took to the switch, in ns.
    asked_ns: u64,
}

/// The times of a job.
struct Of {
    open: Open,
    /// For each task, the times at which it reached the switch (if steps are measured) and left it.
    passed_ns: Vec<(u64, u64)>,
}

struct Rack<'a> {
    load: &'a Load,
    now_ns: u64,
    queue: EventQueue<Event>,
    jobs: Jobs<'a>,
    owners: Vec<Owner>,
    workers: Vec<Worker>,
    /// The hosts: owners, then workers.
    hosts: Vec<Host>,
    switch: Falcon,
    ports: PortTable,
    /// The time in ps until which the recirculation port is busy.
    round_busy_ps: u64,
    round_lost: u64,
    rounds: u64,
    /// The jobs of each owner, by JID.
    known: Vec<Known<Of>>,
    /// The jobs for which owners had no room.
    refused: Vec<Open>,
    executors: Vec<Executor>,
    /// For each owner, the number of tasks that began during the measurement.
    begun: Vec<u64>,
    seen: Seen,
    out: Outgoing,
}

/// Runs a load.
pub(super) fn run(load: &Load) -> Result<Measured, String> {
    let mut rack = Rack::new(load)?;
    rack.begin();
    let end_ns = rack.seen.end_ns();
    while let Some((at, event)) = rack.queue.next_until(Time(end_ns * NS)) {
        rack.now_ns = at.0 / NS;
        rack.happens(event);
        if rack.seen.is_over(rack.now_ns) {
            break;
        }
    }
    Ok(rack.measured())
}

/// The address of a node: owners, then workers; the switch is before them.
fn addr(node: usize) -> Addr {
    Addr { ip: 2 + node as u32, port: PORT }
}

/// The largest number of tasks of a worker: running ones, and prefetched ones.
fn places(load: &Load) -> usize {
    load.slots * (1 + usize::from(load.prefetch))
}

const SWITCH: Addr = Addr { ip: 1, port: PORT };

fn node_of(addr: Addr) -> Option<usize> {
    (addr.ip as usize).checked_sub(2)
}

fn program(worker: Addr) -> Result<Falcon, String> {
    let told = AgentConfig::new(Incarnation(1), SWITCH, SWITCH);
    let mut falcon = Falcon::load(&told.settings()).map_err(|error| error.to_string())?;
    let config = Config {
        epoch: 1,
        group: GroupId::FIRST,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: SWITCH,
        kind: GroupKind::Workers,
        program: Program::Falcon,
        members: vec![Member { node: 1, incarnation: 1, addr: worker }],
        joining: Vec::new(),
    };
    falcon.install(Now::default(), &config).map_err(|_| "the switch takes no workers")?;
    Ok(falcon)
}

impl<'a> Rack<'a> {
    fn new(load: &'a Load) -> Result<Rack<'a>, String> {
        let session = |node: usize| SessionId(node as u64 + 1);
        // Each packet is sent alone, since it costs its host alone.
        let config = |node| OwnerConfig::new(session(node), addr(node), SWITCH);
        let owner = |node| Owner::new(OwnerConfig { known_ns: 0, ..config(node) });
        let slots = u16::try_from(load.slots).map_err(|_| "too many executors of a worker")?;
        let worker = |at: usize| {
            let node = load.clients + at;
            let config = WorkerConfig::new(session(node), addr(node), SWITCH, slots);
            Worker::new(WorkerConfig { prefetch: load.prefetch, ..config })
        };
        Ok(Rack {
            load,
            now_ns: 0,
            queue: EventQueue::new(),
            jobs: Jobs::new(load),
            owners: (0..load.clients).map(owner).collect(),
            workers: (0..load.workers).map(worker).collect(),
            hosts: vec![Host { busy_until_ns: 0, wake_ns: u64::MAX }; load.clients + load.workers],
            switch: program(addr(load.clients))?,
            ports: PortTable::default(),
            round_busy_ps: 0,
            round_lost: 0,
            rounds: 0,
            known: (0..load.clients).map(|_| Known::new(1)).collect(),
            refused: Vec::new(),
            executors: vec![Executor::default(); load.workers * places(load)],
            begun: vec![0; load.clients],
            seen: Seen::new(load, &STEPS),
            out: Outgoing::default(),
        })
    }

    fn begin(&mut self) {
        let mut rng = Rng::new(self.load.seed ^ 0x0fa1_c0de);
        for worker in 0..self.load.workers {
            let at_ns = rng.below(BEGIN_NS);
            self.wake_at(self.load.clients + worker, at_ns);
        }
        self.next_job();
        self.at(UPKEEP_NS, Event::Upkeep);
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now_ns) * NS), event);
    }

    fn clock(&self) -> Now {
        Now { instant: Instant(CLOCK_NS + self.now_ns), unix_ms: 0 }
    }

    fn next_job(&mut self) {
        if let Some(job) = self.jobs.next() {
            self.at(job.at_ns, Event::Arrives(job.client as u32, Input::Job(job)));
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives(node, input) => self.arrives(node as usize, input),
            Event::Taken(node, input) => self.taken(node as usize, input),
            Event::Wake(node) => {
                let node = node as usize;
                if self.hosts[node].wake_ns <= self.now_ns {
                    self.hosts[node].wake_ns = u64::MAX;
                    self.tick(node);
                }
            }
            Event::Pass { sender, passes, metadata, bytes } => {
                self.pass(sender, passes, metadata, bytes);
            }
            Event::Upkeep => {
                while let Some(mut injection) = self.switch.upkeep(Instant(CLOCK_NS + self.now_ns))
                {
                    let bytes = injection.packet().to_vec();
                    self.pass(SWITCH, 0, Metadata::default(), bytes);
                }
                self.at(self.now_ns + UPKEEP_NS, Event::Upkeep);
            }
        }
    }
}

/// Hosts.
impl Rack<'_> {
    fn cost_ns(&self, input: &Input) -> u64 {
        let costs = &self.load.costs;
        match input {
            Input::Packet(_) => costs.message_ns,
            Input::Job(_) => costs.job_ns,
            Input::Ended(_) => costs.end_ns,
        }
    }

    /// Delays an input until its host has handled those before it.
    fn arrives(&mut self, node: usize, input: Input) {
        if let Input::Job(job) = &input {
            self.seen.job(job.at_ns, job.times_ns.len());
            self.next_job();
        }
        let begins_ns = self.hosts[node].busy_until_ns.max(self.now_ns);
        self.hosts[node].busy_until_ns = begins_ns + self.cost_ns(&input);
        if begins_ns == self.now_ns {
            return self.taken(node, input);
        }
        self.at(begins_ns, Event::Taken(node as u32, input));
    }

    fn taken(&mut self, node: usize, input: Input) {
        let now = self.clock();
        let cost_ns = self.cost_ns(&input);
        let worker = node.checked_sub(self.load.clients);
        match (worker, input) {
            (None, Input::Packet(mut bytes)) => {
                self.owners[node].handle(now, SWITCH, &mut bytes, &mut self.out);
                self.owners[node].flush(now, &mut self.out);
                self.out.reuse(bytes);
            }
            (None, Input::Job(job)) => self.submit(node, now, job),
            (Some(worker), Input::Packet(mut bytes)) => {
                self.workers[worker].handle(now, SWITCH, &mut bytes, &mut self.out);
                self.workers[worker].flush(now, &mut self.out);
                self.out.reuse(bytes);
            }
            (Some(worker), Input::Ended(run)) => {
                let output = Output::default();
                self.workers[worker].finished(now, run, Ended::Done, output, &mut self.out);
                self.workers[worker].flush(now, &mut self.out);
            }
            (None, Input::Ended(_)) | (Some(_), Input::Job(_)) => {}
        }
        self.after(node, cost_ns);
    }

    fn tick(&mut self, node: usize) {
        let now = self.clock();
        match node.checked_sub(self.load.clients) {
            None => self.owners[node].tick(now, &mut self.out),
            Some(worker) => {
                self.workers[worker].tick(now, &mut self.out);
                self.workers[worker].flush(now, &mut self.out);
            }
        }
        self.after(node, 0);
    }

    /// A job for which its owner has no room is dropped: its tasks count as not begun.
    fn submit(&mut self, node: usize, now: Now, job: Job) {
        let open = Open::new(job.at_ns, job.times_ns);
        let tasks = vec![TaskSpec::default(); open.times_ns.len()];
        let owner = &mut self.owners[node];
        let Some(jid) = owner.submit(now, scheduler::Job { tasks, ..scheduler::Job::default() })
        else {
            self.refused.push(open);
            return;
        };
        owner.tick(now, &mut self.out);
        assert!(u64::from(jid) == self.known[node].next(), "an owner counts its jobs");
        let passed_ns = if self.load.steps { vec![(0, 0); open.left] } else { Vec::new() };
        self.known[node].push(Of { open, passed_ns });
    }

    /// A host took a step: its output leaves once it is done.
    fn after(&mut self, node: usize, cost_ns: u64) {
        let leaves_ns = self.now_ns + cost_ns;
        let costs = self.load.costs;
        let mut packets = std::mem::take(&mut self.out.packets);
        for (to, bytes) in packets.drain(..) {
            let at_ns = leaves_ns + costs.latency_ns;
            match node_of(to) {
                None => {
                    let (sender, metadata) = (addr(node), Metadata::default());
                    self.at(at_ns, Event::Pass { sender, passes: 0, metadata, bytes });
                }
                Some(to) => {
                    let at_ns = at_ns + costs.switch_ns + costs.latency_ns;
                    self.at(at_ns, Event::Arrives(to as u32, Input::Packet(bytes)));
                }
            }
        }
        self.out.packets = packets;
        let deadline = match node.checked_sub(self.load.clients) {
            None => {
                while self.owners[node].poll_outcome().is_some() {}
                self.owners[node].deadline()
            }
            Some(worker) => {
                while let Some(order) = self.workers[worker].poll_order() {
                    self.order(worker, order, leaves_ns);
                }
                self.workers[worker].deadline()
            }
        };
        if deadline != Deadline::NONE {
            let at_ns = deadline.at.0.saturating_sub(CLOCK_NS);
            self.wake_at(node, at_ns.max(self.now_ns + 1));
        }
    }

    fn wake_at(&mut self, node: usize, at_ns: u64) {
        if at_ns < self.hosts[node].wake_ns {
            self.hosts[node].wake_ns = at_ns;
            self.at(at_ns, Event::Wake(node as u32));
        }
    }

    fn order(&mut self, worker: usize, order: Order, ready_ns: u64) {
        // No lease ends here, and no task is cancelled: only the second run of a task is stopped.
        let Order::Start { slot, run, of, .. } = order else { return };
        let begins_ns = ready_ns + self.load.costs.start_ns;
        let client = of.uid as usize - 1;
        self.begun[client] += u64::from(self.seen.counts(begins_ns));
        let known = &mut self.known[client];
        let mut time_ns = self.load.task_ns;
        let tid = of.tid as usize;
        if let Some(job) = known.of(u64::from(of.jid)) {
            time_ns = u64::from(job.open.times_ns[tid]);
            if self.seen.begins(begins_ns, &mut job.open, tid) && self.load.steps {
                let executor = &mut self.executors[worker * places(self.load) + usize::from(slot)];
                let (came_ns, left_ns) = job.passed_ns[tid];
                let at_ns = job.open.at_ns;
                let took =
                    [came_ns - at_ns, left_ns - came_ns, executor.asked_ns + begins_ns - left_ns];
                for (step, took_ns) in took.into_iter().enumerate() {
                    self.seen.step(at_ns, step, took_ns);
                }
            }
            known.forget(|job| job.open.is_over());
        }
        self.executors[worker * places(self.load) + usize::from(slot)].free_ns =
            begins_ns + time_ns;
        let node = (self.load.clients + worker) as u32;
        self.at(begins_ns + time_ns, Event::Arrives(node, Input::Ended(run)));
    }
}

/// The switch.
impl Rack<'_> {
    fn pass(&mut self, sender: Addr, passes: u8, metadata: Metadata, mut bytes: Vec<u8>) {
        if self.load.steps {
            self.note_arrival(passes, &bytes);
        }
        let now = self.clock();
        let ingress = Ingress::first(now, sender, &self.ports);
        let ingress = Ingress { passes, metadata, ..ingress };
        match self.switch.process(&ingress, &mut bytes) {
            Verdict::Forward { to, size_bytes } => {
                bytes.truncate(size_bytes);
                self.leaves(to, bytes);
            }
            Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                let mut copy = bytes[..copy_bytes].to_vec();
                self.switch.egress(&Copied { index: 0, port: None, to }, &mut copy);
                self.leaves(to, copy);
                bytes.truncate(size_bytes);
                self.comes_round(sender, passes, metadata, bytes);
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                bytes.truncate(size_bytes);
                self.comes_round(sender, passes, metadata, bytes);
            }
            Verdict::Drop(_) | Verdict::Reply { .. } | Verdict::Multicast { .. } => {
                self.out.reuse(bytes);
            }
        }
    }

    fn leaves(&mut self, to: Addr, bytes: Vec<u8>) {
        if self.load.steps {
            self.note_departure(&bytes);
        }
        let costs = &self.load.costs;
        let at_ns = self.now_ns + costs.switch_ns + costs.latency_ns;
        if let Some(to) = node_of(to) {
            self.at(at_ns, Event::Arrives(to as u32, Input::Packet(bytes)));
        }
    }

    fn comes_round(&mut self, sender: Addr, passes: u8, metadata: Metadata, bytes: Vec<u8>) {
        let costs = &self.load.costs;
        let port_ps = bytes.len() as u64 * 8 * 1_000_000_000_000 / costs.round_bits_per_s;
        let ready_ps = (self.now_ns + costs.switch_ns) * NS;
        let begins_ps = self.round_busy_ps.max(ready_ps);
        if begins_ps - ready_ps > costs.round_packets_max * port_ps {
            self.round_lost += 1;
            return;
        }
        self.rounds += 1;
        self.round_busy_ps = begins_ps + port_ps;
        let at_ns = self.round_busy_ps.div_ceil(NS) + costs.round_ns;
        self.at(at_ns, Event::Pass { sender, passes: passes + 1, metadata, bytes });
    }

    /// Notes the first arrival of tasks at the switch, and the time that requests took.
    fn note_arrival(&mut self, passes: u8, bytes: &[u8]) {
        let now_ns = self.now_ns;
        if op(bytes) == OP_REQUEST
            && let Ok(request) = Request::parse(bytes)
            && let Some(node) = node_of(request.asker.addr)
        {
            let at = (node - self.load.clients) * places(self.load);
            let executor = &mut self.executors[at + usize::from(request.asker.slot)];
            executor.asked_ns = now_ns.saturating_sub(executor.free_ns);
        }
        if op(bytes) == OP_SUBMIT
            && passes == 0
            && let Ok(submission) = Submission::parse(bytes)
            && let Some(of) =
                self.known[submission.uid.0 as usize - 1].of(u64::from(submission.jid))
        {
            for task in submission.tasks.iter().take(TASKS_MAX) {
                let (came_ns, _) = &mut of.passed_ns[task.tid as usize];
                if *came_ns == 0 {
                    *came_ns = now_ns;
                }
            }
        }
    }

    fn note_departure(&mut self, bytes: &[u8]) {
        if op(bytes) == OP_ASSIGNMENT
            && let Ok((_, Reply::Task(assigned))) = Reply::parse(bytes)
            && let Some(of) = self.known[assigned.uid.0 as usize - 1].of(u64::from(assigned.jid))
        {
            of.passed_ns[assigned.task.tid as usize].1 = self.now_ns;
        }
    }

    fn measured(self) -> Measured {
        let open = self.known.iter().flat_map(Known::iter).map(|of| &of.open).chain(&self.refused);
        let mut measured = self.seen.measured(open);
        for owner in &self.owners {
            for (name, _, value) in owner.counters().each() {
                *measured.counts.entry(name).or_default() += value;
            }
        }
        for (name, _, value) in self.switch.counters().each() {
            *measured.counts.entry(name).or_default() += value;
        }
        measured.counts.insert("rounds", self.rounds);
        measured.counts.insert("rounds_lost", self.round_lost);
        measured.begun = self.begun;
        measured.events = self.queue.taken();
        measured
    }
}
