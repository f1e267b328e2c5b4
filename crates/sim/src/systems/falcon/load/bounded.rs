//! Schedulers in the switch that push tasks: R2P2's JBSQ(n) [Kogias et al., ATC 2019] and
//! RackSched's power of two choices [Zhu et al., OSDI 2020].
//!
//! All tasks of a job reach the switch at once. The switch's knowledge of executors and workers is
//! exact: it counts the tasks that it sends and that end. (RackSched's learns a queue's length only
//! from replies.)

use std::collections::VecDeque;

use concord_core::Rng;

use super::clock::{self, Clock, Model as _};
use super::jobs::{Job, Known};
use super::seen::Open;
use super::{Load, Measured};

/// The choice of a task's queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// The executor with the fewest tasks; if all have `most`, the task waits in the switch.
    Shortest { most: u32 },
    /// The worker with fewer tasks, of two drawn at random.
    OfTwo,
}

/// The name of a task: the number of its job, and its own.
type Name = (u64, u32);

enum Event {
    /// The tasks of this job reach the switch.
    AtSwitch(u64),
    /// A task reaches a worker, for this queue.
    AtWorker(u32, Name),
    /// A worker has received it.
    Queued(u32, Name),
    /// It ended on an executor of this queue.
    Ended(u32),
    /// A worker has handled the end.
    Free(u32),
    /// The switch learns that a task of this queue ended.
    Heard(u32),
}

/// Queues by their lengths, so that a shortest one is found at once. Any of equally long ones may
/// be drawn.
struct Shortest {
    /// For each length, the queues with it.
    with: Vec<Vec<u32>>,
    /// For each queue, its length and its index in `with`.
    places: Vec<(u32, u32)>,
}

impl Shortest {
    fn new(queues: usize, most: u32) -> Shortest {
        let mut with = vec![Vec::new(); most as usize + 1];
        with[0] = (0..queues as u32).collect();
        Shortest { with, places: (0..queues as u32).map(|at| (0, at)).collect() }
    }

    /// Draws one of the shortest queues, if it has room.
    fn draw(&self, rng: &mut Rng) -> Option<u32> {
        let most = self.with.len() - 1;
        let fewest = self.with[..most].iter().find(|queues| !queues.is_empty())?;
        fewest.get(rng.below(fewest.len() as u64) as usize).copied()
    }

    fn set(&mut self, queue: u32, tasks: u32) {
        let (had, at) = self.places[queue as usize];
        self.with[had as usize].swap_remove(at as usize);
        if let Some(moved) = self.with[had as usize].get(at as usize) {
            self.places[*moved as usize].1 = at;
        }
        self.places[queue as usize] = (tasks, self.with[tasks as usize].len() as u32);
        self.with[tasks as usize].push(queue);
    }

    fn tasks(&self, queue: u32) -> u32 {
        self.places[queue as usize].0
    }
}

struct Model<'a> {
    load: &'a Load,
    choice: Choice,
    clock: Clock<'a, Event>,
    rng: Rng,
    known: Known<Open>,
    /// The tasks that wait in the switch.
    waiting: VecDeque<Name>,
    shortest: Shortest,
    /// The number of tasks of each worker, as the switch knows it.
    tasks: Vec<u32>,
    /// The queues, each of an executor or a worker: the waiting tasks, and the number of running
    /// ones.
    queues: Vec<(VecDeque<Name>, u32)>,
    /// The time until which each host is busy: clients, then workers.
    busy_ns: Vec<u64>,
}

pub(super) fn run(load: &Load, choice: Choice) -> Measured {
    let queues = match choice {
        Choice::Shortest { .. } => load.executors(),
        Choice::OfTwo => load.workers,
    };
    let most = if let Choice::Shortest { most } = choice { most } else { 1 };
    let mut model = Model {
        load,
        choice,
        clock: Clock::new(load, &[]),
        rng: Rng::new(load.seed ^ 0x0b0d_ed00),
        known: Known::new(0),
        waiting: VecDeque::new(),
        shortest: Shortest::new(queues, most),
        tasks: vec![0; queues],
        queues: vec![(VecDeque::new(), 0); queues],
        busy_ns: vec![0; load.clients + load.workers],
    };
    let events = model.run();
    let measured = model.clock.seen.measured(model.known.iter());
    Measured { events, ..measured }
}

impl Model<'_> {
    /// The time at which a host has handled something that arrives now.
    fn done_ns(&mut self, host: usize, cost_ns: u64) -> u64 {
        let busy_ns = &mut self.busy_ns[host];
        *busy_ns = self.clock.now_ns.max(*busy_ns) + cost_ns;
        *busy_ns
    }

    /// The host of a queue.
    fn host(&self, queue: u32) -> usize {
        let each = match self.choice {
            Choice::Shortest { .. } => self.load.slots,
            Choice::OfTwo => 1,
        };
        self.load.clients + queue as usize / each
    }

    /// Assigns tasks that wait in the switch to queues with room.
    fn assign(&mut self) {
        let costs = self.load.costs;
        while let Some(name) = self.waiting.front().copied() {
            let queue = match self.choice {
                Choice::Shortest { .. } => {
                    let Some(queue) = self.shortest.draw(&mut self.rng) else { return };
                    self.shortest.set(queue, self.shortest.tasks(queue) + 1);
                    queue
                }
                Choice::OfTwo => {
                    let workers = self.tasks.len() as u64;
                    let (a, b) = (self.rng.below(workers), self.rng.below(workers));
                    let of = |worker: u64| self.tasks[worker as usize];
                    let queue = if of(b) < of(a) { b } else { a };
                    self.tasks[queue as usize] += 1;
                    queue as u32
                }
            };
            self.waiting.pop_front();
            let at_ns = self.clock.now_ns + costs.switch_ns + costs.latency_ns;
            self.clock.at(at_ns, Event::AtWorker(queue, name));
        }
    }

    /// Begins waiting tasks of a queue, if executors are free.
    fn begin(&mut self, queue: u32) {
        let most = match self.choice {
            Choice::Shortest { .. } => 1,
            Choice::OfTwo => self.load.slots as u32,
        };
        let (waits, runs) = &mut self.queues[queue as usize];
        if *runs >= most {
            return;
        }
        let Some(name) = waits.pop_front() else { return };
        *runs += 1;
        let begins_ns = self.clock.now_ns + self.load.costs.start_ns;
        let Some(job) = self.known.of(name.0) else { return };
        let time_ns = u64::from(job.times_ns[name.1 as usize]);
        self.clock.seen.begins(begins_ns, job, name.1 as usize);
        self.known.forget(Open::is_over);
        self.clock.at(begins_ns + time_ns, Event::Ended(queue));
    }
}

impl<'a> clock::Model<'a> for Model<'a> {
    type Event = Event;

    fn clock(&mut self) -> &mut Clock<'a, Event> {
        &mut self.clock
    }

    fn job(&mut self, job: Job) {
        let costs = self.load.costs;
        let done_ns = self.done_ns(job.client, costs.job_ns);
        let number = self.known.next();
        self.known.push(Open::new(job.at_ns, job.times_ns));
        self.clock.at(done_ns + costs.latency_ns, Event::AtSwitch(number));
    }

    fn happens(&mut self, event: Event) {
        let costs = self.load.costs;
        match event {
            Event::AtSwitch(number) => {
                let tasks = self.known.of(number).map_or(0, |job| job.times_ns.len());
                self.waiting.extend((0..tasks as u32).map(|tid| (number, tid)));
                self.assign();
            }
            Event::AtWorker(queue, name) => {
                let done_ns = self.done_ns(self.host(queue), costs.message_ns);
                self.clock.at(done_ns, Event::Queued(queue, name));
            }
            Event::Queued(queue, name) => {
                self.queues[queue as usize].0.push_back(name);
                self.begin(queue);
            }
            Event::Ended(queue) => {
                let done_ns = self.done_ns(self.host(queue), costs.end_ns);
                self.clock.at(done_ns, Event::Free(queue));
            }
            Event::Free(queue) => {
                self.queues[queue as usize].1 -= 1;
                self.begin(queue);
                self.clock.at(self.clock.now_ns + costs.latency_ns, Event::Heard(queue));
            }
            Event::Heard(queue) => {
                match self.choice {
                    Choice::Shortest { .. } => {
                        let tasks = self.shortest.tasks(queue);
                        self.shortest.set(queue, tasks - 1);
                    }
                    Choice::OfTwo => self.tasks[queue as usize] -= 1,
                }
                self.assign();
            }
        }
    }
}
