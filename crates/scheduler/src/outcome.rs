//! The outcomes of tasks, for whoever gave them to an owner.

use alloc::vec::Vec;

use concord_wire::tasks::Ended;

use crate::trace::Trace;

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, and this is what it gave.
    Done(Vec<u8>),
    /// It failed, as often as it may.
    Failed(Ended, Vec<u8>),
    /// Its worker went silent, and it is not to be run twice: it may have been done, or a part of
    /// it.
    Unknown,
    /// So many workers went silent while they ran it that it is not tried again.
    Lost,
    /// It was cancelled. A run of it that had begun is stopped.
    Cancelled,
}

impl Outcome {
    /// What is kept of what it gave.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match self {
            Outcome::Done(output) | Outcome::Failed(_, output) => output,
            Outcome::Unknown | Outcome::Lost | Outcome::Cancelled => &[],
        }
    }
}

/// How which task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// JID.
    pub jid: u32,
    /// TID.
    pub tid: u32,
    /// How often it was submitted.
    pub attempts: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// How much it gave, in bytes; the outcome has the first of it.
    pub output_bytes: u64,
    /// Its way.
    pub trace: Trace,
}
