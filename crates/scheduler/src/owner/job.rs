//! A job, as it is submitted.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::Duration;
use concord_wire::falcon::Parameters;

/// A task of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskSpec {
    /// The number of the function to execute.
    pub function: u16,
    /// Its parameters.
    pub parameters: Parameters,
}

/// A job: tasks that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Its tasks. The TID of a task is its index.
    pub tasks: Vec<TaskSpec>,
    /// The data shared by its tasks, which executors fetch, if there is any.
    pub body: Option<Arc<[u8]>>,
    /// Parameters that are too long for the queue, by TID: executors fetch them in place of the
    /// task's own.
    pub long: BTreeMap<u32, Arc<[u8]>>,
    /// Whether its tasks are never run twice.
    pub once: bool,
    /// The number of times that a failed task is tried again.
    pub retries: u16,
    /// The delay in ns before a failed task is tried again; it doubles with each further attempt. 0
    /// for a few ms.
    pub retry_ns: Duration,
    /// The largest number of its tasks that are submitted and not over; 0 for no limit.
    pub running_max: u32,
    /// Whether it is held: none of its tasks is submitted before
    /// [`Owner::release`](super::Owner::release).
    pub is_held: bool,
    /// The time limit of a task in ms; 0 for none.
    pub limit_ms: u32,
    /// Its priority; 3 is the most urgent.
    pub priority: u8,
    /// The class of executors that it needs; 0 for any.
    pub needs: u8,
    /// The node near which its tasks are to run, unless they would wait too long for it.
    pub near: Option<u16>,
    /// The time in ns after the job's acceptance for which its tasks wait for that node.
    pub locality_wait_ns: Duration,
}
