//! The trace of a task, which `concord explain` shows.

use concord_core::{Addr, Instant};

/// The reasons for which a task was submitted again, or later, each with a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// The queue was full.
    pub refused: u16,
    /// The switch did not answer.
    pub unanswered: u16,
    /// It was handed out, and no worker said that it runs.
    pub unheard: u16,
    /// The switch was replaced, and its queue with it.
    pub forgotten: u16,
    /// It waited long enough for the node near which it was to run.
    pub moved: u16,
    /// The worker that ran it went silent.
    pub leases_over: u16,
    /// It failed.
    pub failed: u16,
    /// Its executor was busy.
    pub returned: u16,
}

impl Again {
    /// Each reason in words, with its count.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u16)> {
        [
            ("the queue was full", self.refused),
            ("the switch did not answer", self.unanswered),
            ("nobody said that it runs", self.unheard),
            ("the switch was replaced", self.forgotten),
            ("it waited long enough for its node", self.moved),
            ("its worker went silent", self.leases_over),
            ("it failed", self.failed),
            ("its executor was busy", self.returned),
        ]
        .into_iter()
    }
}

/// The times of a task's events by its owner's clock, all of the newest attempt, except the first
/// submission. An instant of 0 stands for an event that has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its job was accepted.
    pub taken_at: Instant,
    /// The owner heard that it is in the queue.
    pub queued_at: Instant,
    /// Its ticket in the queue.
    pub ticket: u32,
    /// The owner heard that retrieve_ptr has passed it: a worker has it.
    pub passed_at: Instant,
    /// The owner heard that it runs, or may run.
    pub started_at: Instant,
    /// The worker.
    pub worker: Addr,
    /// It was over.
    pub over_at: Instant,
    /// The reasons for which it was submitted more than once.
    pub again: Again,
}
