//! A job as it is submitted.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::Duration;
use concord_wire::falcon::Parameters;

/// A task to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskSpec {
    /// What is to be executed.
    pub function: u16,
    /// With what.
    pub parameters: Parameters,
}

/// Tasks that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Its tasks; TID is the place in the list.
    pub tasks: Vec<TaskSpec>,
    /// What they share and executors fetch, if anything.
    pub body: Option<Arc<[u8]>>,
    /// Parameters that are too long for the queue, by TID: executors fetch them in place of the
    /// task's own.
    pub long: BTreeMap<u32, Arc<[u8]>>,
    /// No task of it is ever run twice.
    pub once: bool,
    /// How often a task that failed is tried again.
    pub retries: u16,
    /// How long a task that failed waits until it is tried again, in ns: twice as long after each
    /// further time. 0: a few ms.
    pub retry_ns: Duration,
    /// Most of its tasks that are submitted and not over; 0: all of them.
    pub running_max: u32,
    /// None of its tasks is submitted before [`Owner::release`](super::Owner::release) says so.
    pub is_held: bool,
    /// How long a task may take, in ms; 0: for ever.
    pub limit_ms: u32,
    /// 3 is the most urgent.
    pub priority: u8,
    /// The class of executors that it needs; 0: any.
    pub needs: u8,
    /// The node near which its tasks are to run, if they need not wait for it.
    pub near: Option<u16>,
    /// How long after it was taken its tasks wait for that node, in ns.
    pub locality_wait_ns: Duration,
}
