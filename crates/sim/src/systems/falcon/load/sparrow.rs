//! Sparrow [Ousterhout et al., SOSP 2013]: batch sampling, late binding, proactive cancellation.
//!
//! A job of m tasks makes its scheduler send d m reservations to nodes drawn at random; one message
//! to a node has all of that node's. The node's monitor queues them. With an executor free it takes
//! the oldest one and asks its scheduler for a task (getTask), and the executor waits for the
//! answer. The first nodes that ask get a task. When a job's last task is given, the scheduler
//! cancels the remaining reservations, and a node that asks in vain takes its next reservation.
//!
//! If there are fewer nodes than reservations, each gets several. (Sparrow's code has each node
//! at most once, and so never starts the rest of a job with more tasks than there are nodes:
//! `UnconstrainedTaskPlacer`, radlab/sparrow 0fe29e1.)
//!
//! Schedulers and monitors are processes: one queue each, busy with each message that they get or
//! send. A scheduler is on its client's host.

use std::collections::VecDeque;

use concord_core::Rng;

use super::clock::{self, Clock, Model as _};
use super::jobs::{Job, Known};
use super::seen::Open;
use super::{Load, Measured};

const STEPS: [&str; 3] = ["reservation", "queueing", "retrieval"];

enum Event {
    /// Something is at a scheduler.
    AtScheduler(u32, Question),
    /// A scheduler has taken it.
    Taken(u32, Question),
    /// Something is at a monitor.
    AtMonitor(u32, Told),
    /// A monitor has taken it.
    Heard(u32, Told),
}

#[derive(Clone, Copy)]
enum Question {
    /// For reservations.
    Job(u64),
    /// A node wants a task of the job; since when.
    GetTask(u64, u32, u64),
}

#[derive(Clone, Copy)]
enum Told {
    /// A number of reservations for a job.
    Reserve(u64, u32),
    /// A task of a job, for which it asked at that time.
    Task((u64, u32), u64),
    /// No task.
    NoTask,
    /// The job's reservations are cancelled.
    Cancel(u64),
    /// A task ended.
    Ended,
}

/// A job in progress.
struct Of {
    open: Open,
    scheduler: u32,
    /// The number of the next task to hand out.
    next: u32,
    /// For each node, the number of reservations for which it did not ask yet.
    nodes: Vec<(u32, u32)>,
}

#[derive(Clone)]
struct Monitor {
    busy_ns: u64,
    free: usize,
    /// The reservations: the job, and the time.
    queue: VecDeque<(u64, u64)>,
}

struct Model<'a> {
    load: &'a Load,
    probe_ratio: f64,
    clock: Clock<'a, Event>,
    rng: Rng,
    known: Known<Of>,
    /// For each scheduler, the time until which it is busy.
    schedulers_ns: Vec<u64>,
    monitors: Vec<Monitor>,
    /// The number of reservations, and of those for which a node asked in vain.
    reservations: u64,
    in_vain: u64,
    cancels: u64,
}

pub(super) fn run(load: &Load, probe_ratio: f64, schedulers: usize) -> Measured {
    let monitor = Monitor { busy_ns: 0, free: load.slots, queue: VecDeque::new() };
    let mut model = Model {
        load,
        probe_ratio,
        clock: Clock::new(load, &STEPS),
        rng: Rng::new(load.seed ^ 0x5a99_0770),
        known: Known::new(0),
        schedulers_ns: vec![0; schedulers],
        monitors: vec![monitor; load.workers],
        reservations: 0,
        in_vain: 0,
        cancels: 0,
    };
    let events = model.run();
    let mut measured = model.clock.seen.measured(model.known.iter().map(|of| &of.open));
    measured.counts.insert("reservations", model.reservations);
    measured.counts.insert("asked_in_vain", model.in_vain);
    measured.counts.insert("cancels", model.cancels);
    Measured { events, ..measured }
}

impl Model<'_> {
    fn way_ns(&self) -> u64 {
        2 * self.load.costs.latency_ns + self.load.costs.switch_ns
    }

    /// The time at which a scheduler is done with one more piece of work.
    fn scheduler_done_ns(&mut self, scheduler: u32, cost_ns: u64) -> u64 {
        let busy_ns = &mut self.schedulers_ns[scheduler as usize];
        *busy_ns = self.clock.now_ns.max(*busy_ns) + cost_ns;
        *busy_ns
    }

    /// A scheduler sends something to a node.
    fn send(&mut self, scheduler: u32, node: u32, told: Told) {
        let leaves_ns = self.scheduler_done_ns(scheduler, self.load.costs.process_ns);
        let way_ns = self.way_ns();
        self.clock.at(leaves_ns + way_ns, Event::AtMonitor(node, told));
    }

    /// Draws this many nodes, each once, or all of them several times.
    fn draw(&mut self, wanted: usize) -> Vec<(u32, u32)> {
        let nodes = self.load.workers;
        let (each, rest) = ((wanted / nodes) as u32, wanted % nodes);
        let mut drawn: Vec<(u32, u32)> = Vec::with_capacity(wanted.min(nodes));
        while drawn.len() < rest {
            let node = self.rng.below(nodes as u64) as u32;
            if !drawn.iter().any(|(other, _)| *other == node) {
                drawn.push((node, each + 1));
            }
        }
        if each > 0 {
            let others = (0..nodes as u32).filter(|n| !drawn.iter().any(|(node, _)| node == n));
            let others: Vec<(u32, u32)> = others.map(|node| (node, each)).collect();
            drawn.extend(others);
        }
        drawn
    }

    fn reserve(&mut self, scheduler: u32, number: u64) {
        let tasks = self.known.of(number).map_or(0, |of| of.open.times_ns.len());
        let wanted = (self.probe_ratio * tasks as f64).ceil() as usize;
        let drawn = self.draw(wanted);
        self.reservations += wanted as u64;
        for (node, count) in &drawn {
            self.send(scheduler, *node, Told::Reserve(number, *count));
        }
        if let Some(of) = self.known.of(number) {
            of.nodes = drawn;
        }
    }

    /// A node asks for a task of a job.
    fn give(&mut self, scheduler: u32, number: u64, node: u32, since_ns: u64) {
        let mut told = Told::NoTask;
        let mut cancels = Vec::new();
        if let Some(of) = self.known.of(number) {
            if let Some(place) = of.nodes.iter_mut().find(|(other, _)| *other == node) {
                place.1 -= 1;
            }
            if (of.next as usize) < of.open.times_ns.len() {
                told = Told::Task((number, of.next), since_ns);
                of.next += 1;
                if of.next as usize == of.open.times_ns.len() {
                    let left = of.nodes.iter().filter(|(_, count)| *count > 0);
                    cancels.extend(left.map(|(node, _)| *node));
                }
            }
        }
        if let Told::NoTask = told {
            self.in_vain += 1;
        }
        self.send(scheduler, node, told);
        self.cancels += cancels.len() as u64;
        for node in cancels {
            self.send(scheduler, node, Told::Cancel(number));
        }
    }

    fn heard(&mut self, node: u32, told: Told) {
        let monitor = &mut self.monitors[node as usize];
        match told {
            Told::Reserve(number, count) => {
                let reservation = (number, self.clock.now_ns);
                monitor.queue.extend(std::iter::repeat_n(reservation, count as usize));
                if let Some(of) = self.known.of(number) {
                    let at_ns = of.open.at_ns;
                    for _ in 0..count {
                        self.clock.seen.step(at_ns, 0, self.clock.now_ns - at_ns);
                    }
                }
            }
            Told::Task((number, tid), since_ns) => {
                let begins_ns = self.clock.now_ns + self.load.costs.start_ns;
                let Some(of) = self.known.of(number) else { return };
                let time_ns = u64::from(of.open.times_ns[tid as usize]);
                self.clock.seen.begins(begins_ns, &mut of.open, tid as usize);
                self.clock.seen.step(of.open.at_ns, 2, begins_ns - since_ns);
                self.known.forget(|of| of.open.is_over());
                self.clock.at(begins_ns + time_ns, Event::AtMonitor(node, Told::Ended));
            }
            Told::Cancel(number) => monitor.queue.retain(|(other, _)| *other != number),
            Told::NoTask | Told::Ended => monitor.free += 1,
        }
        self.ask(node);
    }

    /// Lets each free executor take a reservation, and ask for its task.
    fn ask(&mut self, node: u32) {
        let way_ns = self.way_ns();
        loop {
            let monitor = &mut self.monitors[node as usize];
            if monitor.free == 0 {
                return;
            }
            let Some((number, queued_ns)) = monitor.queue.pop_front() else { return };
            let Some(of) = self.known.of(number) else { continue };
            let (scheduler, at_ns) = (of.scheduler, of.open.at_ns);
            self.monitors[node as usize].free -= 1;
            self.clock.seen.step(at_ns, 1, self.clock.now_ns - queued_ns);
            let asked = Question::GetTask(number, node, self.clock.now_ns);
            self.clock.at(self.clock.now_ns + way_ns, Event::AtScheduler(scheduler, asked));
        }
    }
}

impl<'a> clock::Model<'a> for Model<'a> {
    type Event = Event;

    fn clock(&mut self) -> &mut Clock<'a, Event> {
        &mut self.clock
    }

    fn job(&mut self, job: Job) {
        let costs = self.load.costs;
        let number = self.known.next();
        let scheduler = (job.client % self.schedulers_ns.len()) as u32;
        let open = Open::new(job.at_ns, job.times_ns);
        self.known.push(Of { open, scheduler, next: 0, nodes: Vec::new() });
        let at_ns = self.clock.now_ns + costs.submit_ns;
        self.clock.at(at_ns, Event::AtScheduler(scheduler, Question::Job(number)));
    }

    fn happens(&mut self, event: Event) {
        let costs = self.load.costs;
        match event {
            Event::AtScheduler(scheduler, asked) => {
                let cost_ns = match asked {
                    Question::Job(_) => costs.job_ns,
                    Question::GetTask(..) => costs.process_ns,
                };
                let at_ns = self.scheduler_done_ns(scheduler, cost_ns);
                self.clock.at(at_ns, Event::Taken(scheduler, asked));
            }
            Event::Taken(scheduler, Question::Job(number)) => self.reserve(scheduler, number),
            Event::Taken(scheduler, Question::GetTask(number, node, since_ns)) => {
                self.give(scheduler, number, node, since_ns);
            }
            Event::AtMonitor(node, told) => {
                let cost_ns = if let Told::Ended = told { costs.end_ns } else { costs.message_ns };
                let monitor = &mut self.monitors[node as usize];
                monitor.busy_ns = self.clock.now_ns.max(monitor.busy_ns) + cost_ns;
                let at_ns = monitor.busy_ns;
                self.clock.at(at_ns, Event::Heard(node, told));
            }
            Event::Heard(node, told) => self.heard(node, told),
        }
    }
}
