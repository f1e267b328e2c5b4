//! The owner's keyed tag on each task: eight bytes that travel in its slot, since a switch cannot
//! compute tags.

use concord_core::{Addr, Key, SessionId};
use concord_wire::falcon::Task;

/// Makes and compares tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    tasks: Key,
    bodies: Key,
}

/// The data that a tag covers beside TASK_INFO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub uid: SessionId,
    pub jid: u32,
    pub owner: Addr,
    /// The tag of the job's body, and of parameters that are fetched; 0 if there are none.
    pub job_body: u64,
    pub parameters: u64,
}

impl Tags {
    pub(crate) fn new(key: Key) -> Tags {
        Tags { tasks: key.derived(*b"tasks   "), bodies: key.derived(*b"bodies  ") }
    }

    /// The tag of fetched data.
    pub(crate) fn body(&self, bytes: &[u8]) -> u64 {
        self.bodies.tag(bytes)
    }

    /// The tag of a task, ignoring the one that it has.
    pub(crate) fn task(&self, task: &Task, of: &Tagged) -> u64 {
        let mut input = [0; 66];
        input[0..8].copy_from_slice(&of.uid.0.to_be_bytes());
        input[8..12].copy_from_slice(&of.jid.to_be_bytes());
        input[12..16].copy_from_slice(&of.owner.ip.to_be_bytes());
        input[16..18].copy_from_slice(&of.owner.port.to_be_bytes());
        input[18..26].copy_from_slice(&of.job_body.to_be_bytes());
        input[26..34].copy_from_slice(&of.parameters.to_be_bytes());
        input[34..66].copy_from_slice(&task.bytes()[..32]);
        self.tasks.tag(&input)
    }
}
