//! The outcomes of tasks.

use alloc::vec::Vec;

use concord_wire::tasks::Ended;

use crate::trace::Trace;

/// The outcome of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, with this output.
    Done(Vec<u8>),
    /// It failed as often as it may, with this status and output.
    Failed(Ended, Vec<u8>),
    /// Its worker went silent, and it must not be run twice: it may have been done, or a part of
    /// it.
    Unknown,
    /// It is not tried again, since too many workers went silent while they ran it.
    Lost,
    /// It was cancelled. If it was running, the run is stopped.
    Cancelled,
}

impl Outcome {
    /// The part of its output that is kept.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match self {
            Outcome::Done(output) | Outcome::Failed(_, output) => output,
            Outcome::Unknown | Outcome::Lost | Outcome::Cancelled => &[],
        }
    }
}

/// The outcome of a particular task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// JID.
    pub jid: u32,
    /// TID.
    pub tid: u32,
    /// The number of times that it was submitted.
    pub attempts: u16,
    /// The outcome.
    pub outcome: Outcome,
    /// The length of its output in bytes; the outcome has the first part of it.
    pub output_bytes: u64,
    /// The times of its events.
    pub trace: Trace,
}
