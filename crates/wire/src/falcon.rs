//! Falcon's packets through the switch (Falcon §3.3.1): owners of tasks submit them, executors ask
//! for one. What owners and executors say to each other does not pass the switch's program.
//!
//! JOB_SUBMISSION (op 1), and its answer (op 2), which has what the paper's has not: which tasks
//! were added, and each one's ticket. With no task it is a question, how far the pointers are.
//!
//! | offset | bytes | field | filled in by |
//! |---|---|---|---|
//! | 0 | 16 | what all headers have | owner |
//! | 16 | 8 | UID: the owner's session, unique for each start of a process | owner |
//! | 24 | 4 | JID | owner |
//! | 28 | 4 + 2 | the owner's address, port | owner |
//! | 34 | 1 | #TASKS: tasks left in the list | owner; the switch counts down |
//! | 35 | 1 | tasks that were added | switch |
//! | 36 | 4 | the submission's number | owner |
//! | 40 | 4 | switch id: in a submission the only one that may take it, or 0 | owner; in an answer the switch |
//! | 44 | 1 | [`Answer`] | switch |
//! | 45 | 1 | the queue that it is for: a class of executors, or a node | owner |
//! | 46 | 1 | its priority: 3 is the most urgent, 0 what is not said | owner |
//! | 47 | 1 | reserved | |
//! | 48 | 4 | retrieve_ptr | switch |
//! | 52 | 4 | add_ptr | switch |
//! | 56 | 16 x 4 | tickets of the tasks that were added: add_ptr as it was | switch |
//! | 120 | 8 + 4 + 2 | whom the first task of the list is handed to: session, request number, slot | switch, between ingress and egress |
//! | 134 | 2 | reserved | |
//! | 136 | 40 each | TASK_INFO of the tasks that are left | owner; the switch takes the first away |
//!
//! REQUEST (op 3), TASK_ASSIGNMENT (op 4) and NO-OP (op 5) are of one length, so that the switch
//! makes the one of the other in place.
//!
//! | offset | bytes | field | filled in by |
//! |---|---|---|---|
//! | 16 | 8 | the executor's session | executor |
//! | 24 | 4 | the request's number | executor |
//! | 28 | 2 | its slot | executor |
//! | 30 | 1 | [`Answer`] of a NO-OP | switch |
//! | 31 | 1 | the queue that it asks; in an assignment, the one that the task was in | executor; the switch |
//! | 32 | 4 + 2 | the executor's address, port | executor |
//! | 38 | 2 | reserved | |
//! | 40 | 4 | how long it waits in the switch, in us; 0: it does not | executor |
//! | 44 | 4 | ticket | switch |
//! | 48 | 4 | switch id | switch |
//! | 52 | 4 | JID | switch |
//! | 56 | 8 | UID | switch |
//! | 64 | 4 + 2 | the owner's address, port | switch |
//! | 70 | 2 | reserved | |
//! | 72 | 40 | TASK_INFO | switch |
//!
//! TASK_INFO is a TID and what the paper calls TDESC.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | TID |
//! | 4 | 2 | attempt |
//! | 6 | 2 | function: what is to be executed |
//! | 8 | 1 | flags |
//! | 9 | 1 | length of the parameters: 0 to 16 |
//! | 10 | 1 | the class of executors that it needs: 0 to 7 |
//! | 11 | 1 | reserved |
//! | 12 | 4 | time limit in ms; 0: none |
//! | 16 | 16 | parameters |
//! | 32 | 8 | the owner's keyed tag |
//!
//! SWEEP (op 6) is the switch's own: ticket (4), switch id (4), queue (1), 3 reserved. It takes
//! away an executor that waited too long.

use alloc::vec::Vec;

use concord_core::{SessionId, SwitchId};

use crate::Addr;
use crate::header::{GroupId, Header, Kind, set_length};
use crate::{WireError, u16_at, u32_at, u64_at};

/// Operation of a JOB_SUBMISSION.
pub const OP_SUBMIT: u8 = 1;
/// Operation of the answer to one.
pub const OP_SUBMITTED: u8 = 2;
/// Operation of an executor's request.
pub const OP_REQUEST: u8 = 3;
/// Operation of a TASK_ASSIGNMENT.
pub const OP_ASSIGNMENT: u8 = 4;
/// Operation of a NO-OP.
pub const OP_NOOP: u8 = 5;
/// Operation of a SWEEP.
pub const OP_SWEEP: u8 = 6;

/// Most tasks of one JOB_SUBMISSION: each takes a pass, and packets come round that often at most.
pub const TASKS_MAX: usize = 16;
/// Length of TASK_INFO in bytes.
pub const TASK_BYTES: usize = 40;
/// Longest parameters that ride in the queue, in bytes.
pub const PARAMETER_BYTES_MAX: usize = 16;
/// Length of a JOB_SUBMISSION without tasks, in bytes.
pub const SUBMISSION_BYTES: usize = at::TASKS;
/// Length of REQUEST, TASK_ASSIGNMENT and NO-OP in bytes.
pub const REQUEST_BYTES: usize = 112;
/// Length of a SWEEP in bytes.
pub const SWEEP_BYTES: usize = 28;

/// Most priorities of a queue: [`PRIORITIES_MAX`] - 1 is the most urgent, 0 what is not said.
pub const PRIORITIES_MAX: u8 = 4;
/// Classes of executors. Class 0 are all of them; its queue is the one that is asked last.
pub const CLASSES_MAX: u8 = 8;
/// Most queues of a switch: one for each class, the others for nodes.
pub const QUEUES_MAX: u8 = 32;

/// The queue of tasks that are to run at a node. Nodes share one where there are more of them than
/// queues.
#[must_use]
pub const fn queue_of_node(node: u16) -> u8 {
    CLASSES_MAX + (node % (QUEUES_MAX - CLASSES_MAX) as u16) as u8
}

/// Where the fields are.
mod at {
    pub(super) const UID: usize = 16;
    pub(super) const JID: usize = 24;
    pub(super) const OWNER: usize = 28;
    pub(super) const TASKS_LEFT: usize = 34;
    pub(super) const ADDED: usize = 35;
    pub(super) const NUMBER: usize = 36;
    pub(super) const SWITCH_ID: usize = 40;
    pub(super) const ANSWER: usize = 44;
    pub(super) const QUEUE: usize = 45;
    pub(super) const PRIORITY: usize = 46;
    pub(super) const RETRIEVE_PTR: usize = 48;
    pub(super) const ADD_PTR: usize = 52;
    pub(super) const TICKETS: usize = 56;
    pub(super) const HANDED: usize = 120;
    pub(super) const TASKS: usize = 136;

    /// Of REQUEST, TASK_ASSIGNMENT and NO-OP.
    pub(super) mod request {
        pub(in super::super) const SESSION: usize = 16;
        pub(in super::super) const NUMBER: usize = 24;
        pub(in super::super) const SLOT: usize = 28;
        pub(in super::super) const ANSWER: usize = 30;
        pub(in super::super) const QUEUE: usize = 31;
        pub(in super::super) const EXECUTOR: usize = 32;
        pub(in super::super) const WAIT_US: usize = 40;
        pub(in super::super) const TICKET: usize = 44;
        pub(in super::super) const SWITCH_ID: usize = 48;
        pub(in super::super) const JID: usize = 52;
        pub(in super::super) const UID: usize = 56;
        pub(in super::super) const OWNER: usize = 64;
        pub(in super::super) const TASK: usize = 72;
    }

    /// Of a SWEEP.
    pub(super) mod sweep {
        pub(in super::super) const TICKET: usize = 16;
        pub(in super::super) const SWITCH_ID: usize = 20;
        pub(in super::super) const QUEUE: usize = 24;
    }
}

/// What the switch answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Answer {
    /// None: in what owners and executors send.
    #[default]
    None = 0,
    /// All tasks were added.
    Added = 1,
    /// The queue is full: the tasks in the list were not added. To an executor: too many wait
    /// already.
    Full = 2,
    /// The submission came round too often: the tasks in the list were not added.
    Rounds = 3,
    /// The submission is for another switch id: the tasks in the list were not added.
    OtherSwitch = 4,
    /// There is no task; the request waits in the switch.
    Waiting = 5,
    /// There is no task.
    Empty = 6,
    /// The switch has no such queue: the tasks in the list were not added.
    NoQueue = 7,
}

impl Answer {
    /// Every answer, in wire order.
    pub const ALL: &'static [Answer] = &[
        Answer::None,
        Answer::Added,
        Answer::Full,
        Answer::Rounds,
        Answer::OtherSwitch,
        Answer::Waiting,
        Answer::Empty,
        Answer::NoQueue,
    ];

    fn from_byte(byte: u8) -> Result<Answer, WireError> {
        Answer::ALL.get(usize::from(byte)).copied().ok_or(WireError::Field)
    }
}

/// What is said of a task, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskFlags(pub u8);

impl TaskFlags {
    /// Its executor asks the owner before it starts: it is never run twice.
    pub const ONCE: TaskFlags = TaskFlags(1);
    /// Its parameters do not ride in the queue: the executor fetches them from the owner.
    pub const FETCH: TaskFlags = TaskFlags(2);
    /// What is executed is in its job's body, which the executor fetches too.
    pub const JOB_BODY: TaskFlags = TaskFlags(4);

    /// Whether all of `others` are set.
    #[must_use]
    pub const fn has(self, others: TaskFlags) -> bool {
        self.0 & others.0 == others.0
    }

    /// These and `others`.
    #[must_use]
    pub const fn with(self, others: TaskFlags) -> TaskFlags {
        TaskFlags(self.0 | others.0)
    }
}

/// Parameters that ride in the queue. What is behind their length is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    bytes: [u8; PARAMETER_BYTES_MAX],
    length: u8,
}

impl Parameters {
    /// These bytes; `None` if they are too many.
    #[must_use]
    pub fn new(parameters: &[u8]) -> Option<Parameters> {
        let mut bytes = [0; PARAMETER_BYTES_MAX];
        bytes.get_mut(..parameters.len())?.copy_from_slice(parameters);
        Some(Parameters { bytes, length: parameters.len() as u8 })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(PARAMETER_BYTES_MAX)]
    }

    /// As two big-endian words and a length: what a switch keeps of them.
    #[must_use]
    pub fn words(&self) -> ([u64; 2], u8) {
        ([u64_at(&self.bytes, 0), u64_at(&self.bytes, 8)], self.length)
    }

    /// What [`Parameters::words`] gave.
    #[must_use]
    pub fn of_words(words: [u64; 2], length: u8) -> Parameters {
        let mut bytes = [0; PARAMETER_BYTES_MAX];
        bytes[..8].copy_from_slice(&words[0].to_be_bytes());
        bytes[8..].copy_from_slice(&words[1].to_be_bytes());
        Parameters { bytes, length: length.min(PARAMETER_BYTES_MAX as u8) }
    }
}

/// TASK_INFO: a task within its job. <UID, JID, TID> names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// TID.
    pub tid: u32,
    /// How often it was submitted before: a fencing token.
    pub attempt: u16,
    /// What is to be executed.
    pub function: u16,
    /// How.
    pub flags: TaskFlags,
    /// The class of executors that it needs, below [`CLASSES_MAX`]; 0: any.
    pub needs: u8,
    /// How long it may take, in ms; 0: for ever.
    pub limit_ms: u32,
    /// With what.
    pub parameters: Parameters,
    /// The owner's keyed tag over all this.
    pub tag: u64,
}

impl Task {
    /// Writes it to `out`.
    #[must_use]
    pub fn bytes(&self) -> [u8; TASK_BYTES] {
        let mut out = [0; TASK_BYTES];
        out[0..4].copy_from_slice(&self.tid.to_be_bytes());
        out[4..6].copy_from_slice(&self.attempt.to_be_bytes());
        out[6..8].copy_from_slice(&self.function.to_be_bytes());
        out[8] = self.flags.0;
        out[9] = self.parameters.length;
        out[10] = self.needs;
        out[12..16].copy_from_slice(&self.limit_ms.to_be_bytes());
        out[16..32].copy_from_slice(&self.parameters.bytes);
        out[32..40].copy_from_slice(&self.tag.to_be_bytes());
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`WireError`] if it is short, its parameters are too long, or there is no such class.
    pub fn parse(bytes: &[u8]) -> Result<Task, WireError> {
        let b = bytes.first_chunk::<TASK_BYTES>().ok_or(WireError::Truncated)?;
        let length = usize::from(b[9]);
        let parameters = b[16..32].get(..length).ok_or(WireError::Field)?;
        if b[10] >= CLASSES_MAX {
            return Err(WireError::Field);
        }
        Ok(Task {
            tid: u32_at(b, 0),
            attempt: u16_at(b, 4),
            function: u16_at(b, 6),
            flags: TaskFlags(b[8]),
            needs: b[10],
            limit_ms: u32_at(b, 12),
            parameters: Parameters::new(parameters).ok_or(WireError::Field)?,
            tag: u64_at(b, 32),
        })
    }
}

fn addr_at(b: &[u8], at: usize) -> Addr {
    Addr { ip: u32_at(b, at), port: u16_at(b, at + 4) }
}

fn put_addr(b: &mut [u8], at: usize, addr: Addr) {
    b[at..at + 4].copy_from_slice(&addr.ip.to_be_bytes());
    b[at + 4..at + 6].copy_from_slice(&addr.port.to_be_bytes());
}

fn put_u32(b: &mut [u8], at: usize, value: u32) {
    b[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put_u64(b: &mut [u8], at: usize, value: u64) {
    b[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Says that a packet is another operation, and how long it is.
fn become_op(b: &mut [u8], op: u8, length: usize) {
    b[crate::header::at::OP] = op;
    b[crate::header::at::LENGTH].copy_from_slice(&(length as u16).to_be_bytes());
}

/// Whom a request is of, and where its answer goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// The executor's session, unique for each start of a process.
    pub session: SessionId,
    /// The request's number.
    pub number: u32,
    /// Which of the process's executors.
    pub slot: u16,
    /// Where it is.
    pub addr: Addr,
}

/// A JOB_SUBMISSION or its answer, as owners write and read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// Which group it concerns.
    pub group: GroupId,
    /// UID.
    pub uid: SessionId,
    /// JID.
    pub jid: u32,
    /// Where the answer goes.
    pub owner: Addr,
    /// The submission's number.
    pub number: u32,
    /// The only switch id that may take it, or 0; in an answer, whose it is.
    pub switch_id: SwitchId,
    /// How it ended.
    pub answer: Answer,
    /// The queue that it is for, and with which priority: its tickets and pointers are of these.
    pub queue: u8,
    /// 3 is the most urgent, 0 what is not said.
    pub priority: u8,
    /// How far tasks are retrieved.
    pub retrieve_ptr: u32,
    /// How far they are added.
    pub add_ptr: u32,
    /// The tickets of those that were added, in their order.
    pub tickets: Vec<u32>,
    /// The tasks; in an answer those that were not added. At most [`TASKS_MAX`].
    pub tasks: Vec<Task>,
}

impl Submission {
    /// Writes a submission into `out`, replacing what was there; an answer, if it has an
    /// [`Answer`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        let op = if self.answer == Answer::None { OP_SUBMIT } else { OP_SUBMITTED };
        Header { group: self.group, ..Header::new(Kind::Falcon, op) }.begin(out);
        out.resize(SUBMISSION_BYTES, 0);
        put_u64(out, at::UID, self.uid.0);
        put_u32(out, at::JID, self.jid);
        put_addr(out, at::OWNER, self.owner);
        out[at::TASKS_LEFT] = self.tasks.len().min(TASKS_MAX) as u8;
        out[at::ADDED] = self.tickets.len().min(TASKS_MAX) as u8;
        put_u32(out, at::NUMBER, self.number);
        put_u32(out, at::SWITCH_ID, self.switch_id.0);
        out[at::ANSWER] = self.answer as u8;
        (out[at::QUEUE], out[at::PRIORITY]) = (self.queue, self.priority);
        put_u32(out, at::RETRIEVE_PTR, self.retrieve_ptr);
        put_u32(out, at::ADD_PTR, self.add_ptr);
        for (index, ticket) in self.tickets.iter().take(TASKS_MAX).enumerate() {
            put_u32(out, at::TICKETS + 4 * index, *ticket);
        }
        for task in self.tasks.iter().take(TASKS_MAX) {
            out.extend_from_slice(&task.bytes());
        }
        set_length(out);
    }

    /// Reads a submission or an answer.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Submission, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Falcon, SUBMISSION_BYTES)?;
        if header.op != OP_SUBMIT && header.op != OP_SUBMITTED {
            return Err(WireError::Op);
        }
        let answer = Answer::from_byte(b[at::ANSWER])?;
        if (answer == Answer::None) != (header.op == OP_SUBMIT) {
            return Err(WireError::Field);
        }
        let (left, added) = counts(b, TASKS_MAX)?;
        let tasks = b[at::TASKS..].chunks_exact(TASK_BYTES).take(left).map(Task::parse);
        Ok(Submission {
            group: header.group,
            uid: SessionId(u64_at(b, at::UID)),
            jid: u32_at(b, at::JID),
            owner: addr_at(b, at::OWNER),
            number: u32_at(b, at::NUMBER),
            switch_id: SwitchId(u32_at(b, at::SWITCH_ID)),
            answer,
            queue: b[at::QUEUE],
            priority: b[at::PRIORITY],
            retrieve_ptr: u32_at(b, at::RETRIEVE_PTR),
            add_ptr: u32_at(b, at::ADD_PTR),
            tickets: (0..added).map(|index| u32_at(b, at::TICKETS + 4 * index)).collect(),
            tasks: tasks.collect::<Result<_, WireError>>()?,
        })
    }
}

/// Most tasks left and added of a packet that comes round: one that was handed to an executor has
/// its ticket, and is taken from the list in the next pass.
const COUNTED_MAX: usize = TASKS_MAX + 1;

/// How many tasks are left in the list, and how many were added; not more than `most`.
fn counts(b: &[u8], most: usize) -> Result<(usize, usize), WireError> {
    let (left, added) = (usize::from(b[at::TASKS_LEFT]), usize::from(b[at::ADDED]));
    if left + added > most || left > TASKS_MAX {
        return Err(WireError::Field);
    }
    if b.len() < at::TASKS + left * TASK_BYTES {
        return Err(WireError::Truncated);
    }
    Ok((left, added))
}

/// A JOB_SUBMISSION in the switch, which rewrites it in place.
#[derive(Debug)]
pub struct SubmissionMut<'a> {
    bytes: &'a mut [u8],
    left: usize,
    added: usize,
}

impl<'a> SubmissionMut<'a> {
    /// Checks a JOB_SUBMISSION.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts. Nothing was changed.
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<SubmissionMut<'a>, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Falcon, SUBMISSION_BYTES)?;
        if header.op != OP_SUBMIT {
            return Err(WireError::Op);
        }
        let ((left, added), length) = (counts(b, COUNTED_MAX)?, b.len());
        Ok(SubmissionMut { bytes: &mut bytes[..length], left, added })
    }

    /// UID.
    #[inline]
    #[must_use]
    pub fn uid(&self) -> u64 {
        u64_at(self.bytes, at::UID)
    }

    /// JID.
    #[inline]
    #[must_use]
    pub fn jid(&self) -> u32 {
        u32_at(self.bytes, at::JID)
    }

    /// Where the answer goes.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> Addr {
        addr_at(self.bytes, at::OWNER)
    }

    /// The only switch id that may take it, or 0.
    #[inline]
    #[must_use]
    pub fn switch_id(&self) -> u32 {
        u32_at(self.bytes, at::SWITCH_ID)
    }

    /// The queue that it is for, and its priority.
    #[inline]
    #[must_use]
    pub fn queue(&self) -> (u8, u8) {
        (self.bytes[at::QUEUE], self.bytes[at::PRIORITY])
    }

    /// How many tasks are left in the list.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether every task of the list makes sense, before the first one is added.
    ///
    /// # Errors
    /// [`WireError`] if one does not.
    #[inline]
    pub fn check_tasks(&self) -> Result<(), WireError> {
        let mut tasks = self.bytes[at::TASKS..].chunks_exact(TASK_BYTES).take(self.left);
        let makes_sense =
            |task: &[u8]| usize::from(task[9]) <= PARAMETER_BYTES_MAX && task[10] < CLASSES_MAX;
        tasks.all(makes_sense).then_some(()).ok_or(WireError::Field)
    }

    /// The first task of the list.
    ///
    /// # Errors
    /// [`WireError`] if there is none, or it makes no sense.
    #[inline]
    pub fn first(&self) -> Result<Task, WireError> {
        if self.left == 0 {
            return Err(WireError::Field);
        }
        Task::parse(&self.bytes[at::TASKS..])
    }

    /// The first task was added, with that ticket.
    #[inline]
    pub fn push_ticket(&mut self, ticket: u32) {
        if self.added < TASKS_MAX {
            put_u32(self.bytes, at::TICKETS + 4 * self.added, ticket);
            self.added += 1;
            self.bytes[at::ADDED] = self.added as u8;
        }
    }

    /// Takes the first task from the list.
    #[inline]
    pub fn pop_task(mut self) -> SubmissionMut<'a> {
        if self.left == 0 {
            return self;
        }
        self.left -= 1;
        let end = at::TASKS + self.left * TASK_BYTES;
        self.bytes.copy_within(at::TASKS + TASK_BYTES..end + TASK_BYTES, at::TASKS);
        self.bytes[at::TASKS_LEFT] = self.left as u8;
        become_op(self.bytes, OP_SUBMIT, end);
        SubmissionMut { bytes: &mut self.bytes[..end], ..self }
    }

    /// Whom the copy of the first task goes to.
    #[inline]
    pub fn set_handed(&mut self, asker: &Asker) {
        put_u64(self.bytes, at::HANDED, asker.session.0);
        put_u32(self.bytes, at::HANDED + 8, asker.number);
        self.bytes[at::HANDED + 12..at::HANDED + 14].copy_from_slice(&asker.slot.to_be_bytes());
    }

    /// Makes it the answer.
    #[inline]
    pub fn answer(&mut self, answer: Answer, switch_id: u32, retrieve_ptr: u32, add_ptr: u32) {
        self.bytes[at::ANSWER] = answer as u8;
        put_u32(self.bytes, at::SWITCH_ID, switch_id);
        put_u32(self.bytes, at::RETRIEVE_PTR, retrieve_ptr);
        put_u32(self.bytes, at::ADD_PTR, add_ptr);
        self.bytes[crate::header::at::OP] = OP_SUBMITTED;
    }

    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Length of what becomes a TASK_ASSIGNMENT: a submission with its first task, in bytes.
pub const HANDED_BYTES: usize = SUBMISSION_BYTES + TASK_BYTES;

/// Makes the TASK_ASSIGNMENT of the first [`HANDED_BYTES`] of a submission, whose first task has
/// the last of its tickets. What is behind the assignment's length is padding.
///
/// # Errors
/// [`WireError`] if it is no submission that hands its first task to somebody.
pub fn hand_over(copy: &mut [u8], switch_id: u32, to: Addr) -> Result<(), WireError> {
    let from: [u8; HANDED_BYTES] = *copy.first_chunk().ok_or(WireError::Truncated)?;
    let added = usize::from(from[at::ADDED]);
    let index = added.checked_sub(1).filter(|i| *i < TASKS_MAX).ok_or(WireError::Field)?;
    let asker = Asker {
        session: SessionId(u64_at(&from, at::HANDED)),
        number: u32_at(&from, at::HANDED + 8),
        slot: u16_at(&from, at::HANDED + 12),
        addr: to,
    };
    let assigned = Assigned {
        uid: SessionId(u64_at(&from, at::UID)),
        jid: u32_at(&from, at::JID),
        owner: addr_at(&from, at::OWNER),
        ticket: u32_at(&from, at::TICKETS + 4 * index),
        switch_id: SwitchId(switch_id),
        queue: from[at::QUEUE],
        task: Task::parse(&from[at::TASKS..])?,
    };
    copy[crate::header::COMMON_BYTES..].fill(0);
    put_asker(copy, &asker);
    put_assigned(copy, &assigned);
    become_op(copy, OP_ASSIGNMENT, REQUEST_BYTES);
    Ok(())
}

/// An executor's REQUEST.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Which group it concerns.
    pub group: GroupId,
    /// Who asks.
    pub asker: Asker,
    /// Which queue.
    pub queue: u8,
    /// How long it waits in the switch if there is no task, in us; 0: it does not.
    pub wait_us: u32,
}

/// A task that is given to an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// UID.
    pub uid: SessionId,
    /// JID.
    pub jid: u32,
    /// Where its owner is.
    pub owner: Addr,
    /// Its ticket.
    pub ticket: u32,
    /// The switch id under which it was queued.
    pub switch_id: SwitchId,
    /// The queue that it was in.
    pub queue: u8,
    /// TASK_INFO.
    pub task: Task,
}

/// What a switch sends to an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// TASK_ASSIGNMENT.
    Task(Assigned),
    /// NO-OP.
    NoOp {
        /// Why.
        answer: Answer,
        /// The ticket with which the request waits.
        ticket: u32,
        /// Whose it is.
        switch_id: SwitchId,
    },
}

fn put_asker(b: &mut [u8], asker: &Asker) {
    put_u64(b, at::request::SESSION, asker.session.0);
    put_u32(b, at::request::NUMBER, asker.number);
    b[at::request::SLOT..at::request::SLOT + 2].copy_from_slice(&asker.slot.to_be_bytes());
    put_addr(b, at::request::EXECUTOR, asker.addr);
}

fn asker_at(b: &[u8]) -> Asker {
    Asker {
        session: SessionId(u64_at(b, at::request::SESSION)),
        number: u32_at(b, at::request::NUMBER),
        slot: u16_at(b, at::request::SLOT),
        addr: addr_at(b, at::request::EXECUTOR),
    }
}

fn put_assigned(b: &mut [u8], assigned: &Assigned) {
    put_u32(b, at::request::TICKET, assigned.ticket);
    put_u32(b, at::request::SWITCH_ID, assigned.switch_id.0);
    b[at::request::QUEUE] = assigned.queue;
    put_u32(b, at::request::JID, assigned.jid);
    put_u64(b, at::request::UID, assigned.uid.0);
    put_addr(b, at::request::OWNER, assigned.owner);
    b[at::request::TASK..at::request::TASK + TASK_BYTES].copy_from_slice(&assigned.task.bytes());
}

impl Request {
    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        Header { group: self.group, ..Header::new(Kind::Falcon, OP_REQUEST) }.begin(out);
        out.resize(REQUEST_BYTES, 0);
        put_asker(out, &self.asker);
        out[at::request::QUEUE] = self.queue;
        put_u32(out, at::request::WAIT_US, self.wait_us);
        set_length(out);
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Request, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Falcon, REQUEST_BYTES)?;
        if header.op != OP_REQUEST {
            return Err(WireError::Op);
        }
        let wait_us = u32_at(b, at::request::WAIT_US);
        let queue = b[at::request::QUEUE];
        Ok(Request { group: header.group, asker: asker_at(b), queue, wait_us })
    }
}

impl Reply {
    /// Makes this of the REQUEST in `bytes`.
    ///
    /// # Errors
    /// [`WireError`] if that is too short.
    #[inline]
    pub fn put(&self, bytes: &mut [u8]) -> Result<(), WireError> {
        let b = bytes.first_chunk_mut::<REQUEST_BYTES>().ok_or(WireError::Truncated)?;
        match self {
            Reply::Task(assigned) => {
                put_assigned(b, assigned);
                become_op(b, OP_ASSIGNMENT, REQUEST_BYTES);
            }
            Reply::NoOp { answer, ticket, switch_id } => {
                b[at::request::ANSWER] = *answer as u8;
                put_u32(b, at::request::TICKET, *ticket);
                put_u32(b, at::request::SWITCH_ID, switch_id.0);
                become_op(b, OP_NOOP, REQUEST_BYTES);
            }
        }
        Ok(())
    }

    /// Reads a TASK_ASSIGNMENT or a NO-OP, and whom it is for.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<(Asker, Reply), WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Falcon, REQUEST_BYTES)?;
        let (ticket, switch_id) =
            (u32_at(b, at::request::TICKET), SwitchId(u32_at(b, at::request::SWITCH_ID)));
        let reply = match header.op {
            OP_ASSIGNMENT => Reply::Task(Assigned {
                uid: SessionId(u64_at(b, at::request::UID)),
                jid: u32_at(b, at::request::JID),
                owner: addr_at(b, at::request::OWNER),
                ticket,
                switch_id,
                queue: b[at::request::QUEUE],
                task: Task::parse(&b[at::request::TASK..])?,
            }),
            OP_NOOP => {
                let answer = Answer::from_byte(b[at::request::ANSWER])?;
                Reply::NoOp { answer, ticket, switch_id }
            }
            _ => return Err(WireError::Op),
        };
        Ok((asker_at(b), reply))
    }
}

/// The switch's own SWEEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The ticket with which an executor waits that waited too long.
    pub ticket: u32,
    /// The switch id under which it waits.
    pub switch_id: SwitchId,
    /// The queue in which it waits.
    pub queue: u8,
}

impl Sweep {
    /// The packet.
    #[must_use]
    pub fn bytes(&self) -> [u8; SWEEP_BYTES] {
        let mut b = [0; SWEEP_BYTES];
        let header = Header::new(Kind::Falcon, OP_SWEEP).bytes(SWEEP_BYTES);
        b[..header.len()].copy_from_slice(&header);
        put_u32(&mut b, at::sweep::TICKET, self.ticket);
        put_u32(&mut b, at::sweep::SWITCH_ID, self.switch_id.0);
        b[at::sweep::QUEUE] = self.queue;
        b
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Sweep, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Falcon, SWEEP_BYTES)?;
        if header.op != OP_SWEEP {
            return Err(WireError::Op);
        }
        let switch_id = SwitchId(u32_at(b, at::sweep::SWITCH_ID));
        let (ticket, queue) = (u32_at(b, at::sweep::TICKET), b[at::sweep::QUEUE]);
        Ok(Sweep { ticket, switch_id, queue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn task(tid: u32) -> Task {
        Task {
            tid,
            attempt: 2,
            function: 3,
            flags: TaskFlags::ONCE,
            needs: 5,
            limit_ms: 2_000,
            parameters: Parameters::new(b"10 ms").unwrap(),
            tag: 0x0123_4567_89ab_cdef,
        }
    }

    fn submission(tasks: u32) -> Submission {
        Submission {
            group: GroupId(1),
            uid: SessionId(0xa11c_e000_0001),
            jid: 5,
            owner: Addr { ip: 0x0a00_00c8, port: 9000 },
            number: 77,
            switch_id: SwitchId(7),
            queue: 9,
            priority: 3,
            tasks: (0..tasks).map(task).collect(),
            ..Submission::default()
        }
    }

    fn asker() -> Asker {
        let addr = Addr { ip: 0x0a00_0101, port: 7001 };
        Asker { session: SessionId(0xb0b), number: 9, slot: 3, addr }
    }

    fn assigned() -> Assigned {
        Assigned {
            uid: SessionId(0xa11c_e000_0001),
            jid: 5,
            owner: Addr { ip: 0x0a00_00c8, port: 9000 },
            ticket: 41,
            switch_id: SwitchId(7),
            queue: 9,
            task: task(0),
        }
    }

    #[test]
    fn packets_survive_the_wire_and_golden_bytes_hold() {
        let mut packets = vec![vec![]; 6];
        submission(2).emit(&mut packets[0]);
        assert_eq!(Submission::parse(&packets[0]).unwrap(), submission(2));
        let answer = Submission {
            answer: Answer::Full,
            retrieve_ptr: 3,
            add_ptr: 6,
            tickets: vec![4, 5],
            ..submission(1)
        };
        answer.emit(&mut packets[1]);
        assert_eq!(Submission::parse(&packets[1]).unwrap(), answer);
        let request = Request { group: GroupId(1), asker: asker(), queue: 9, wait_us: 100_000 };
        request.emit(&mut packets[2]);
        assert_eq!(Request::parse(&packets[2]).unwrap(), request);
        for (at, reply) in [
            (3, Reply::Task(assigned())),
            (4, Reply::NoOp { answer: Answer::Waiting, ticket: 8, switch_id: SwitchId(7) }),
        ] {
            packets[at] = packets[2].clone();
            reply.put(&mut packets[at]).unwrap();
            assert_eq!(Reply::parse(&packets[at]).unwrap(), (asker(), reply));
            assert_eq!(Request::parse(&packets[at]), Err(WireError::Op));
        }
        let sweep = Sweep { ticket: 8, switch_id: SwitchId(7), queue: 9 };
        packets[5] = sweep.bytes().to_vec();
        assert_eq!(Sweep::parse(&packets[5]).unwrap(), sweep);
        crate::golden("falcon.hex", &packets);
        for (at, packet) in packets.iter().enumerate() {
            for cut in 0..packet.len() {
                assert_eq!(Submission::parse(&packet[..cut]).unwrap_err(), WireError::Truncated);
            }
            assert_eq!(Submission::parse(packet).is_ok(), at < 2, "{at}");
            assert_eq!(Reply::parse(packet).is_ok(), at == 3 || at == 4, "{at}");
        }
    }

    #[test]
    fn a_switch_takes_the_first_task_away_and_leaves_its_ticket() {
        let mut bytes = vec![];
        submission(3).emit(&mut bytes);
        let mut packet = SubmissionMut::parse(&mut bytes).unwrap();
        assert_eq!((packet.left(), packet.first().unwrap()), (3, task(0)));
        assert_eq!((packet.uid(), packet.jid()), (0xa11c_e000_0001, 5));
        packet.push_ticket(41);
        let mut packet = packet.pop_task();
        assert_eq!((packet.left(), packet.first().unwrap()), (2, task(1)));
        packet.answer(Answer::Full, 7, 40, 42);
        let size_bytes = packet.size_bytes();
        let answer = Submission::parse(&bytes[..size_bytes]).unwrap();
        assert_eq!((answer.answer, answer.tickets), (Answer::Full, vec![41]));
        assert_eq!((answer.retrieve_ptr, answer.add_ptr), (40, 42));
        assert_eq!(answer.tasks, [task(1), task(2)]);
    }

    #[test]
    fn the_head_of_a_submission_becomes_an_assignment() {
        let mut bytes = vec![];
        submission(2).emit(&mut bytes);
        let mut packet = SubmissionMut::parse(&mut bytes).unwrap();
        packet.push_ticket(41);
        packet.set_handed(&asker());
        bytes.truncate(HANDED_BYTES);
        hand_over(&mut bytes, 7, asker().addr).unwrap();
        assert_eq!(Reply::parse(&bytes).unwrap(), (asker(), Reply::Task(assigned())));
        assert_eq!(crate::header::group(&bytes), GroupId(1));
        let mut none = vec![];
        submission(1).emit(&mut none);
        assert_eq!(hand_over(&mut none, 7, asker().addr), Err(WireError::Field));
        assert_eq!(hand_over(&mut [0; 50], 7, asker().addr), Err(WireError::Truncated));
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let mut bytes = vec![];
        submission(2).emit(&mut bytes);
        let mut with = |at: usize, byte: u8| {
            let was = core::mem::replace(&mut bytes[at], byte);
            let found =
                (SubmissionMut::parse(&mut bytes.clone()).err(), Submission::parse(&bytes).err());
            bytes[at] = was;
            found
        };
        assert_eq!(
            with(at::TASKS_LEFT, 3),
            (Some(WireError::Truncated), Some(WireError::Truncated))
        );
        assert_eq!(with(at::TASKS_LEFT, 17), (Some(WireError::Field), Some(WireError::Field)));
        assert_eq!(with(at::ADDED, 16), (Some(WireError::Field), Some(WireError::Field)));
        assert_eq!(with(at::ADDED, 15), (None, Some(WireError::Field)));
        assert_eq!(with(at::ANSWER, 8), (None, Some(WireError::Field)));
        assert_eq!(with(at::TASKS + 10, 8), (None, Some(WireError::Field)));
        assert_eq!(with(at::TASKS + 9, 17), (None, Some(WireError::Field)));
    }
}
