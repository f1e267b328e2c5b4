//! Grants of tasks that are never run twice: what a journal must have of them, and the runs that a
//! process before granted.

use alloc::collections::BTreeMap;

use concord_core::Instant;
use concord_wire::tasks::{Attempt, Run};

/// A decision about a task that is never run twice, for the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It may begin in this run.
    To(Attempt, Run),
    /// The run to which it was granted last did not begin, and never will: JID and TID.
    Back((u32, u32)),
}

/// The runs of the process before that were not heard of yet.
#[derive(Clone, Debug)]
pub(super) struct Inquiries {
    /// By JID and TID.
    pub(super) open: BTreeMap<(u32, u32), (Attempt, Run)>,
    pub(super) next_at: Instant,
}

impl Inquiries {
    pub(super) fn new() -> Inquiries {
        Inquiries { open: BTreeMap::new(), next_at: Instant(0) }
    }

    pub(super) fn deadline(&self) -> Instant {
        if self.open.is_empty() { Instant::NEVER } else { self.next_at }
    }

    /// Notes that a task's run was heard of, or that it is over.
    pub(super) fn close(&mut self, name: (u32, u32)) {
        self.open.remove(&name);
    }
}
