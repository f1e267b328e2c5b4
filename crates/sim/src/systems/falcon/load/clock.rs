//! The virtual time of a model: its events, the arriving jobs, and the observations.

use super::Load;
use super::jobs::{Job, Jobs};
use super::seen::Seen;
use crate::engine::{EventQueue, NS, Time};

enum Next<E> {
    /// A job is submitted.
    Job(Job),
    Own(E),
}

/// The clock of a model, with its events, the jobs to come, and the observations.
pub(super) struct Clock<'a, E> {
    pub now_ns: u64,
    pub seen: Seen,
    events: EventQueue<Next<E>>,
    jobs: Jobs<'a>,
}

impl<'a, E> Clock<'a, E> {
    pub fn new(load: &'a Load, steps: &[&'static str]) -> Clock<'a, E> {
        let (events, jobs) = (EventQueue::new(), Jobs::new(load));
        Clock { now_ns: 0, seen: Seen::new(load, steps), events, jobs }
    }

    pub fn at(&mut self, at_ns: u64, event: E) {
        self.events.schedule(Time(at_ns * NS), Next::Own(event));
    }

    fn next_job(&mut self) {
        if let Some(job) = self.jobs.next() {
            self.events.schedule(Time(job.at_ns * NS), Next::Job(job));
        }
    }
}

/// A model of a scheduler.
pub(super) trait Model<'a> {
    type Event;

    fn clock(&mut self) -> &mut Clock<'a, Self::Event>;

    /// A job is submitted.
    fn job(&mut self, job: Job);

    fn happens(&mut self, event: Self::Event);

    /// Runs to the end of the measurement. Returns the number of events.
    fn run(&mut self) -> u64 {
        self.clock().next_job();
        let end = Time(self.clock().seen.end_ns() * NS);
        while let Some((at, event)) = self.clock().events.next_until(end) {
            let now_ns = at.0 / NS;
            self.clock().now_ns = now_ns;
            match event {
                Next::Job(job) => {
                    self.clock().seen.job(job.at_ns, job.times_ns.len());
                    self.job(job);
                    self.clock().next_job();
                }
                Next::Own(event) => self.happens(event),
            }
            if self.clock().seen.is_over(now_ns) {
                break;
            }
        }
        self.clock().events.taken()
    }
}
