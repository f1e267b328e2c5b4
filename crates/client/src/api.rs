//! The inputs and outputs of the client.

use core::fmt;

use alloc::vec;
use alloc::vec::Vec;

use concord_core::{
    Duration, Epoch, Guards, MS, NodeId, ObjectId, RequestNumber, SEC, Seq, counters,
};
use concord_wire::rpc::{BODY_BYTES_MAX, HEADER_BYTES};
use concord_wire::{Addr, Flags, FurtherIds, Reason, Repr, WINDOW_MAX};

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its own address, for replies.
    pub addr: Addr,
    /// The switch's address, to which every packet goes until the controller names another.
    pub switch: Addr,
    /// The controller's address, for the question which switch is active if requests stay
    /// unanswered.
    pub controller: Option<Addr>,
    /// The largest number of unanswered writes, 1 to [`WINDOW_MAX`].
    pub window: u64,
    /// The number of a session's first write: 1; simulations draw one near the end of all numbers.
    pub first_request: u64,
    /// The largest number of unanswered reads, at most 65,536.
    pub reads_max: usize,
    /// A reply of several packets is pulled only once [`crate::Client::grant`] says so: for who has
    /// to bound what all replies together take.
    pub grants_replies: bool,
    /// After that long without a reply the outcome of a write is [`Outcome::WriteUnknown`] or
    /// [`Outcome::WriteNotExecuted`].
    pub write_deadline_ns: Duration,
    /// After that long without a reply the outcome of a read is [`Outcome::ReadTimeout`].
    pub read_deadline_ns: Duration,
    /// Shortest time before a retry.
    pub retry_min_ns: Duration,
    /// Longest time before a retry.
    pub retry_max_ns: Duration,
    /// After that long of work on one operation, as replicas say, a read ends as
    /// [`Outcome::Busy`], and [`crate::Client::is_busy`] tells.
    pub busy_ns: Duration,
    /// After that long without a write the session is touched, so that it is not the one that makes
    /// room for another (trap T16).
    pub keepalive_ns: Duration,
    /// The replicas that answer reads, if clients choose among them (follower leases); otherwise
    /// the switch chooses.
    pub readers: Vec<NodeId>,
    /// Which of its checks, and of a gateway's, are on.
    pub guards: Guards,
}

impl ClientConfig {
    /// The defaults, for a client at `addr` behind the switch at `switch`.
    #[must_use]
    pub fn new(addr: Addr, switch: Addr) -> ClientConfig {
        ClientConfig {
            addr,
            switch,
            controller: None,
            window: WINDOW_MAX,
            first_request: 1,
            reads_max: 16_384,
            grants_replies: false,
            write_deadline_ns: 5 * SEC,
            read_deadline_ns: 5 * SEC,
            retry_min_ns: 20 * MS,
            retry_max_ns: 500 * MS,
            busy_ns: 5 * SEC,
            keepalive_ns: 30 * SEC,
            readers: Vec::new(),
            guards: Guards::ALL,
        }
    }
}

/// Whether a command changes its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The command changes nothing, and may be executed any number of times.
    Read,
    /// The command may change data, and is executed at most once.
    Write,
}

/// How large a command is. Writes of each size have room of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// It fits a packet.
    Small,
    /// Up to a MiB and what is around it.
    Large,
    /// More.
    Huge,
}

/// Longest command, in bytes, that is not huge.
const LARGE_BYTES_MAX: usize = (1 << 20) + (64 << 10);

impl Size {
    /// All of them, the smallest first.
    pub const ALL: [Size; 3] = [Size::Small, Size::Large, Size::Huge];

    /// That of an encoded command of so many bytes.
    #[must_use]
    pub fn of(command_bytes: usize) -> Size {
        if command_bytes <= BODY_BYTES_MAX {
            return Size::Small;
        }
        if command_bytes <= LARGE_BYTES_MAX { Size::Large } else { Size::Huge }
    }
}

/// A request to the rack.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Read or write.
    pub class: Class,
    /// The key's hash: [`concord_core::hash::object_id`].
    pub obj_id: ObjectId,
    /// The object ids of its other keys, each once; a command of more than eight keys counts as one
    /// of all keys.
    pub further: FurtherIds,
    /// [`Flags::WILDCARD`], [`Flags::RESP3`] and [`Flags::WAITS`]; others are ignored.
    pub flags: Flags,
    /// For writes: the previous write of the same connection, which must be executed before
    /// (trap T22). Ignored for reads: who pipelines submits a read when the writes before it that
    /// concern its key are answered.
    pub after: Option<RequestNumber>,
    /// The encoded command, opaque here.
    pub command: &'a [u8],
}

/// Why a request was not taken. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many as allowed are unanswered: submit it again after the next [`crate::Done`].
    Full,
    /// A write above [`concord_wire::COMMAND_BYTES_MAX`], or a read above
    /// [`concord_wire::rpc::BODY_BYTES_MAX`].
    TooLarge,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "too many unanswered requests; try again after the next reply",
            SubmitError::TooLarge => "the command is too large",
        })
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a reply; a write was executed exactly once.
    Reply,
    /// A read without a reply before its deadline. Safe to submit again.
    ReadTimeout,
    /// A read that was not answered, since the replicas work on one operation. Safe to submit
    /// again.
    Busy,
    /// A write that never left in a form that can be executed. It never will be; safe to submit
    /// again.
    WriteNotExecuted,
    /// A write that was executed, or not, or will be a little later, if one of its packets is still
    /// in flight. It must never be resubmitted silently.
    WriteUnknown,
    /// Refused by the replicas as malformed; not executed.
    Malformed,
    /// The reply is above [`concord_wire::REPLY_BYTES_MAX`]. A write was executed.
    TooLarge,
}

/// Which path a request took, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The path of a read, and why.
    pub reason: Reason,
    /// The replica that answered.
    pub node: NodeId,
    /// The last-committed point that a fast read carried.
    pub last_committed: Seq,
    /// The number of a write.
    pub seq: Seq,
    /// The epoch of who answered.
    pub epoch: Epoch,
    /// The number of times that the request was sent; 0 if never.
    pub attempts: u16,
    /// From submission to outcome.
    pub latency_ns: Duration,
    /// A read that a replica refused to answer alone and passed on.
    pub is_forwarded: bool,
}

impl Trace {
    pub(crate) fn new(reply: &Repr, attempts: u16, latency_ns: Duration) -> Trace {
        Trace {
            reason: reply.reason,
            node: reply.node,
            last_committed: reply.last_committed,
            seq: reply.seq,
            epoch: reply.epoch,
            attempts,
            latency_ns,
            is_forwarded: reply.flags.has(Flags::FORWARDED),
        }
    }

    /// Whether one replica answered a read alone, on the switch's word.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.reason == Reason::Fast
    }
}

/// A read that was taken back, or waits before it is sent.
#[derive(Clone, Debug)]
pub struct Withdrawn {
    pub(crate) obj_id: ObjectId,
    pub(crate) further: FurtherIds,
    pub(crate) flags: Flags,
    pub(crate) packet: Vec<u8>,
}

impl From<Request<'_>> for Withdrawn {
    /// A read that waits before it is sent.
    fn from(read: Request<'_>) -> Withdrawn {
        let mut packet = vec![0; HEADER_BYTES];
        packet.extend_from_slice(read.command);
        Withdrawn { obj_id: read.obj_id, further: read.further, flags: read.flags, packet }
    }
}

impl Withdrawn {
    /// The request, to be submitted anew.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let command = self.packet.get(HEADER_BYTES..).unwrap_or(&[]);
        let (obj_id, further, flags) = (self.obj_id, self.further, self.flags);
        Request { class: Class::Read, obj_id, further, flags, after: None, command }
    }

    /// Its size in memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packet.capacity()
    }
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// As [`crate::Client::submit`] returned it.
    pub request: RequestNumber,
    /// Read or write.
    pub class: Class,
    /// The outcome.
    pub outcome: Outcome,
    /// The reply; empty without one. Give it back by [`crate::Client::give_back`].
    pub reply: Vec<u8>,
    /// Which path it took.
    pub trace: Trace,
    /// The command, if it took as long as [`crate::Client::keep_commands_from`] says; else empty.
    pub command: Vec<u8>,
}

counters! {
    /// The counters of a client.
    pub struct ClientCounters {
        /// Reads submitted.
        reads,
        /// Writes submitted.
        writes,
        /// Requests not accepted because too many were unanswered.
        full,
        /// Requests not accepted because their command was too large.
        too_large,
        /// Reads answered.
        read_replies,
        /// Writes answered.
        write_replies,
        /// Reads answered by a single replica (fast path).
        fast_reads,
        /// Reads without a reply before their deadline.
        read_timeouts,
        /// Writes that were certainly not executed before their deadline.
        writes_not_executed,
        /// Writes of unknown outcome: no reply before their deadline.
        writes_unknown,
        /// Requests refused as malformed.
        refused_malformed,
        /// Replies refused because they were above the maximum size.
        replies_too_large,
        /// Reads sent again after a time-out.
        read_retries,
        /// Writes sent again after a time-out.
        write_retries,
        /// Writes refused because an earlier write of the session was lost or late; they are sent
        /// again.
        order_refused,
        /// Writes sent again after such a refusal, the earlier ones included.
        order_retries,
        /// Writes held back until an earlier write of the session was sent.
        held,
        /// Writes refused because their staged body was not at the replica any more.
        body_missing,
        /// Writes refused because their number was too far above that of the lowest unanswered one.
        window_refused,
        /// Messages from replicas that they are working on a long operation.
        heard_working,
        /// Reads that ended with an error because replicas were working on a long operation.
        reads_busy,
        /// Requests refused for want of room at the switch (NOPaxos, trap T23) or at a replica
        /// (trap T17); they are sent again.
        busy,
        /// Large writes that waited for earlier ones.
        large_waited,
        /// Long replies that waited for earlier ones, or for memory.
        replies_waited,
        /// Unanswered writes refused as old duplicates; must stay 0.
        stale_refused,
        /// Questions to the controller which switch is active.
        switch_asked,
        /// Times that another switch became active.
        switch_changed,
        /// Packets that registered a session.
        registers,
        /// Sessions registered.
        sessions,
        /// Sessions that the replicas had evicted.
        sessions_expired,
        /// Keepalives sent for idle sessions.
        keepalives,
        /// Fragments of bodies sent.
        fragments_sent,
        /// Fragments of bodies sent again.
        fragments_resent,
        /// Requests for further fragments of long replies.
        pulls,
        /// Repeated requests for lost fragments of long replies.
        pulls_again,
        /// Long replies that their replica no longer had, or whose replica was silent; the read was
        /// sent again.
        replies_gone,
        /// Fragments dropped because they belong to another replica, version or length than the
        /// reply in assembly.
        fragments_mixed,
        /// Replies dropped because their request was answered or abandoned before.
        late,
        /// Replies dropped because they belong to another session.
        foreign,
        /// Notifications of writes to objects for which a blocked command waits.
        pushes,
        /// Packets dropped because their operation or status is not for a client.
        unexpected,
        /// Packets dropped because they are malformed.
        malformed,
    }
}
