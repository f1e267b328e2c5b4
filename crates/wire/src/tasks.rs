//! What owners of tasks and the workers that run them say to each other (Falcon, kind 8). The paper has
//! none of it: a task's start, its lease, its result, and that somebody knows of it. Encoded as the
//! messages of [`crate::control`] are.

use alloc::vec::Vec;

use concord_core::{Addr, Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::control::Message;
use crate::header::Kind;

/// Longest output that a result carries, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1_024;

/// An attempt at a task: <UID, JID, TID>, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// UID: the owner's session.
    pub uid: u64,
    /// JID.
    pub jid: u32,
    /// TID.
    pub tid: u32,
    /// How often it was submitted, this time among them.
    pub attempt: u16,
}

/// One run of a task, on one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The worker's session, unique for each start of its process.
    pub session: u64,
    /// The worker's own number of the run.
    pub run: u32,
    /// Where the worker is.
    pub worker: Addr,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// As it should.
    Done,
    /// With a failure of its own.
    Failed,
    /// It took longer than it may.
    TimedOut,
}

/// A message of an owner or a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskMessage {
    /// Worker: may I start? Of a task that is never to be run twice.
    Claim {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
        /// The worker's clock when it asked, echoed.
        asked_at: u64,
    },
    /// Owner: you may, and hold a lease counted from when you asked; or you may not.
    Claimed {
        /// Echo.
        of: Attempt,
        /// Echo.
        run: Run,
        /// Echo.
        asked_at: u64,
        /// Whether it may.
        granted: bool,
    },
    /// Worker: it runs; extend my lease.
    Running {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
        /// The worker's clock when it asked, echoed.
        asked_at: u64,
    },
    /// Owner: your lease is extended, counted from when you asked.
    Extended {
        /// Echo.
        of: Attempt,
        /// Echo.
        run: Run,
        /// Echo.
        asked_at: u64,
    },
    /// Worker: it ended.
    Result {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
        /// How.
        ended: Ended,
        /// What it gave; at most [`OUTPUT_BYTES_MAX`].
        output: Vec<u8>,
    },
    /// Worker: it was assigned to me, did not start, and never will.
    Returned {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
    },
    /// Owner: I know; say no more of it.
    Known {
        /// Echo.
        of: Attempt,
        /// Echo.
        run: Run,
    },
    /// Owner: stop it.
    Cancel {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
    },
}

impl Message for TaskMessage {
    const KIND: Kind = Kind::Tasks;

    fn sender(&self) -> (NodeId, Epoch) {
        (NodeId(0), Epoch(0))
    }

    fn set_sender(&mut self, _: NodeId, _: Epoch) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_survive_the_wire_and_golden_bytes_hold() {
        let of = Attempt { uid: 0xa11c_e000_0001, jid: 5, tid: 7, attempt: 2 };
        let worker = Addr { ip: 0x0a00_0101, port: 7001 };
        let run = Run { session: 0xb0b, run: 9, worker };
        let (asked_at, output) = (123_456, b"out".to_vec());
        let messages = [
            TaskMessage::Claim { of, run, asked_at },
            TaskMessage::Claimed { of, run, asked_at, granted: true },
            TaskMessage::Running { of, run, asked_at },
            TaskMessage::Extended { of, run, asked_at },
            TaskMessage::Result { of, run, ended: Ended::TimedOut, output },
            TaskMessage::Returned { of, run },
            TaskMessage::Known { of, run },
            TaskMessage::Cancel { of, run },
        ];
        let mut packets = vec![vec![]; messages.len()];
        for (message, packet) in messages.iter().zip(&mut packets) {
            message.emit(packet);
            assert_eq!(TaskMessage::parse(packet).as_ref(), Ok(message));
        }
        crate::golden("tasks.hex", &packets);
    }
}
