//! Messages between owners of tasks and the workers that run them (Falcon, kind 8): a task's start,
//! its lease, its result, and the owner's knowledge of it. The paper has none of these. They are
//! encoded like the messages of [`crate::control`].

use alloc::vec::Vec;

use concord_core::{Addr, Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::control::Message;
use crate::header::Kind;

/// Longest output of a task, in bytes; of a longer one the rest is cut.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The same of a handler's answers, which are what their callers asked for, and of no use if cut.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How much of what a function gives is kept at most.
#[must_use]
pub const fn output_bytes_max(function: u16) -> usize {
    if function == Function::Handler.number() { ANSWER_BYTES_MAX } else { OUTPUT_BYTES_MAX }
}

/// Longest output that a result carries, in bytes. An owner fetches a longer one in fragments (trap
/// T17).
pub const RESULT_BYTES_MAX: usize = 1_024;
/// Longest parameters of a task, and longest body of a job, in bytes (trap T17).
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Length of a fragment of these and of outputs, in bytes; the last one may be shorter.
pub const FRAGMENT_BYTES: usize = 1_024;
/// The largest number of fragments that are requested at once.
pub const FRAGMENTS_ASKED_MAX: u8 = 32;
/// In the place of a TID: the job's own body.
pub const JOB_BODY: u32 = u32::MAX;

/// The functions of workers (TDESC's function).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Nothing.
    NoOp,
    /// Sleeps for the number of microseconds in its parameters, 8 bytes.
    Sleep,
    /// Keeps a core busy for as long.
    Spin,
    /// Runs the command in its job's body, with its parameters in their places.
    Command,
    /// Passes its parameters to a long-running process of the command in its job's body.
    Handler,
}

impl Function {
    /// Every function, in the order of their numbers.
    pub const ALL: [Function; 5] =
        [Function::NoOp, Function::Sleep, Function::Spin, Function::Command, Function::Handler];

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The function with this number; `None` if there is none.
    #[must_use]
    pub fn numbered(number: u16) -> Option<Function> {
        Function::ALL.get(usize::from(number)).copied()
    }
}

/// An attempt at a task: <UID, JID, TID>, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// UID: the owner's session.
    pub uid: u64,
    /// JID.
    pub jid: u32,
    /// TID.
    pub tid: u32,
    /// The number of its submissions, with this one.
    pub attempt: u16,
}

/// One run of a task, on one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The worker's session, unique for each start of its process.
    pub session: u64,
    /// The worker's own number of the run.
    pub run: u32,
    /// The worker's address.
    pub worker: Addr,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// As it should.
    Done,
    /// With a failure of its own.
    Failed,
    /// The run exceeded its limit of time.
    TimedOut,
    /// A command's exit status, which is not 0. As in a shell, 127: there is no such command; 126:
    /// it cannot be executed.
    Exited(u8),
    /// The signal that ended a command.
    Killed(u8),
}

/// The name of a body that a worker fetches from a task's owner: the parameters of a task, or the
/// data that its job's tasks share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BodyName {
    /// UID.
    pub uid: u64,
    /// JID.
    pub jid: u32,
    /// TID; [`JOB_BODY`] for the job's.
    pub tid: u32,
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
        /// The size of its output, in bytes.
        output_bytes: u64,
        /// The first [`RESULT_BYTES_MAX`] of it. The worker has [`output_bytes_max`] at most, which
        /// the owner fetches before it says [`TaskMessage::Known`].
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
    /// Worker: send me fragments of that.
    Fetch {
        /// Of what.
        name: BodyName,
        /// The worker's address.
        worker: Addr,
        /// The first fragment.
        first: u32,
        /// The number of fragments; at most [`FRAGMENTS_ASKED_MAX`].
        count: u8,
    },
    /// Owner: a fragment. What a name stands for never changes, so that fragments of one name fit
    /// together.
    Fragment {
        /// Of what.
        name: BodyName,
        /// Length of the whole in bytes.
        total_bytes: u32,
        /// Which fragment.
        index: u32,
        /// [`FRAGMENT_BYTES`] of it; the last one's are fewer.
        bytes: Vec<u8>,
    },
    /// Owner: send me fragments of the output of that run, which has ended.
    FetchOutput {
        /// Which run.
        run: Run,
        /// The first fragment.
        first: u32,
        /// The number of fragments; at most [`FRAGMENTS_ASKED_MAX`].
        count: u8,
    },
    /// Worker: a fragment of an output.
    OutputFragment {
        /// Of which run.
        run: Run,
        /// Length of what the worker has, in bytes.
        total_bytes: u32,
        /// Which fragment.
        index: u32,
        /// [`FRAGMENT_BYTES`] of it; the last one's are fewer.
        bytes: Vec<u8>,
    },
    /// Owner: take no more tasks, and end when what you run has ended.
    Drain {
        /// Where to say whether you do.
        owner: Addr,
        /// Which process of the worker; 0: say which one you are. So what comes late ends no other.
        session: u64,
        /// What runs for longer is killed, and begun again elsewhere, in ms; `None`: nothing is.
        within_ms: Option<u64>,
    },
    /// Worker: that is my session.
    Draining {
        /// Where the worker is.
        worker: Addr,
        /// Its session.
        session: u64,
        /// Whether it takes no more tasks.
        is_draining: bool,
        /// How many it has.
        tasks: u32,
    },
    /// Owner: your claim is granted once my journal has the grant; wait for it.
    Wait {
        /// Echo.
        of: Attempt,
        /// Echo.
        run: Run,
    },
    /// Owner: the process before me granted that; what came of it? The worker says that it runs,
    /// claims it again, tells its result, gives it back, or says [`TaskMessage::Gone`].
    Inquire {
        /// Which attempt at which task.
        of: Attempt,
        /// Which run of it.
        run: Run,
        /// Where to say so.
        owner: Addr,
    },
    /// Worker: it may have begun, and is over here, or another process had this address.
    Gone {
        /// Echo.
        of: Attempt,
        /// Echo.
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
        let name = BodyName { uid: of.uid, jid: 5, tid: JOB_BODY };
        let messages = [
            TaskMessage::Claim { of, run, asked_at },
            TaskMessage::Claimed { of, run, asked_at, granted: true },
            TaskMessage::Running { of, run, asked_at },
            TaskMessage::Extended { of, run, asked_at },
            TaskMessage::Result { of, run, ended: Ended::TimedOut, output_bytes: 7_000, output },
            TaskMessage::Returned { of, run },
            TaskMessage::Known { of, run },
            TaskMessage::Cancel { of, run },
            TaskMessage::Fetch { name, worker, first: 3, count: 2 },
            TaskMessage::Fragment { name, total_bytes: 4_099, index: 4, bytes: b"end".to_vec() },
            TaskMessage::FetchOutput { run, first: 3, count: 2 },
            TaskMessage::OutputFragment { run, total_bytes: 5, index: 0, bytes: b"out..".to_vec() },
            TaskMessage::Drain { owner: worker, session: 0xb0b, within_ms: Some(7_000) },
            TaskMessage::Draining { worker, session: 0xb0b, is_draining: true, tasks: 3 },
            TaskMessage::Wait { of, run },
            TaskMessage::Inquire { of, run, owner: worker },
            TaskMessage::Gone { of, run },
        ];
        let mut packets = vec![vec![]; messages.len()];
        for (message, packet) in messages.iter().zip(&mut packets) {
            message.emit(packet);
            assert_eq!(TaskMessage::parse(packet).as_ref(), Ok(message));
        }
        crate::golden("tasks.hex", &packets);
    }

    #[test]
    fn functions_have_the_numbers_of_their_places() {
        for function in Function::ALL {
            assert_eq!(Function::numbered(function.number()), Some(function));
        }
        assert_eq!(Function::numbered(5), None);
    }
}
