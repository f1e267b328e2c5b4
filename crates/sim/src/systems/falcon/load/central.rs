//! A central scheduler on a server, as Spark's driver: a process that knows which executors are
//! free. It is busy with each task that it sends, and with each report that one has ended.

use std::collections::VecDeque;

use super::clock::{self, Clock, Model as _};
use super::jobs::{Job, Known};
use super::seen::Open;
use super::{Load, Measured};

enum Event {
    /// A message reaches the process.
    AtProcess(Message),
    /// The process has finished its last work, and takes the next message.
    Next,
    /// A task reaches a worker.
    AtWorker(u32, (u64, u32)),
    /// A task begins.
    Begins(u32, (u64, u32)),
    /// A task ended on an executor of this worker.
    Ended(u32),
}

enum Message {
    Job(u64),
    /// A worker has a free executor.
    Free(u32),
}

struct Model<'a> {
    load: &'a Load,
    clock: Clock<'a, Event>,
    known: Known<Open>,
    inbox: VecDeque<Message>,
    is_busy: bool,
    waiting: VecDeque<(u64, u32)>,
    /// Free executors, by worker.
    free: VecDeque<u32>,
    busy_ns: Vec<u64>,
}

pub(super) fn run(load: &Load) -> Measured {
    let workers = load.workers as u32;
    let mut model = Model {
        load,
        clock: Clock::new(load, &[]),
        known: Known::new(0),
        inbox: VecDeque::new(),
        is_busy: false,
        waiting: VecDeque::new(),
        free: (0..load.slots).flat_map(|_| 0..workers).collect(),
        busy_ns: vec![0; load.workers],
    };
    let events = model.run();
    let measured = model.clock.seen.measured(model.known.iter());
    Measured { events, ..measured }
}

impl Model<'_> {
    fn done_ns(&mut self, worker: u32, cost_ns: u64) -> u64 {
        let busy_ns = &mut self.busy_ns[worker as usize];
        *busy_ns = self.clock.now_ns.max(*busy_ns) + cost_ns;
        *busy_ns
    }

    /// Lets the process take a message or, if there is none, send a task if it can.
    fn go_on(&mut self) {
        let costs = self.load.costs;
        let way_ns = 2 * costs.latency_ns + costs.switch_ns;
        self.is_busy = true;
        if let Some(message) = self.inbox.pop_front() {
            let mut cost_ns = costs.process_ns;
            match message {
                Message::Job(number) => {
                    let tasks = self.known.of(number).map_or(0, |job| job.times_ns.len());
                    self.waiting.extend((0..tasks as u32).map(|tid| (number, tid)));
                    cost_ns = costs.job_ns;
                }
                Message::Free(worker) => self.free.push_back(worker),
            }
            return self.clock.at(self.clock.now_ns + cost_ns, Event::Next);
        }
        if !self.waiting.is_empty()
            && let Some(worker) = self.free.pop_front()
            && let Some(name) = self.waiting.pop_front()
        {
            let done_ns = self.clock.now_ns + costs.process_ns;
            self.clock.at(done_ns + way_ns, Event::AtWorker(worker, name));
            return self.clock.at(done_ns, Event::Next);
        }
        self.is_busy = false;
    }
}

impl<'a> clock::Model<'a> for Model<'a> {
    type Event = Event;

    fn clock(&mut self) -> &mut Clock<'a, Event> {
        &mut self.clock
    }

    fn job(&mut self, job: Job) {
        let costs = self.load.costs;
        let way_ns = 2 * costs.latency_ns + costs.switch_ns;
        let number = self.known.next();
        self.known.push(Open::new(job.at_ns, job.times_ns));
        let at_ns = self.clock.now_ns + costs.submit_ns + way_ns;
        self.clock.at(at_ns, Event::AtProcess(Message::Job(number)));
    }

    fn happens(&mut self, event: Event) {
        let costs = self.load.costs;
        let way_ns = 2 * costs.latency_ns + costs.switch_ns;
        match event {
            Event::AtProcess(message) => {
                self.inbox.push_back(message);
                if !self.is_busy {
                    self.go_on();
                }
            }
            Event::Next => self.go_on(),
            Event::AtWorker(worker, name) => {
                let done_ns = self.done_ns(worker, costs.message_ns) + costs.start_ns;
                self.clock.at(done_ns, Event::Begins(worker, name));
            }
            Event::Begins(worker, name) => {
                let Some(job) = self.known.of(name.0) else { return };
                let time_ns = u64::from(job.times_ns[name.1 as usize]);
                self.clock.seen.begins(self.clock.now_ns, job, name.1 as usize);
                self.known.forget(Open::is_over);
                self.clock.at(self.clock.now_ns + time_ns, Event::Ended(worker));
            }
            Event::Ended(worker) => {
                let done_ns = self.done_ns(worker, costs.end_ns);
                self.clock.at(done_ns + way_ns, Event::AtProcess(Message::Free(worker)));
            }
        }
    }
}
