//! Between the replicas of Viewstamped Replication, NOPaxos and Raft, beside the stream of records
//! ([`crate::link`]): view changes and elections, recovery, and who streams from where. A view is a
//! term in Raft. Rare, so encoded as [`crate::control`] is.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::Addr;
use crate::control::{LogEnd, Message};
use crate::header::Kind;

/// One incarnation of a replica. Those of one node are ordered, by `count` and then by incarnation.
/// A process that cannot know how often its node has lived begins low; once it hears of a higher
/// one it takes a count above that. So of two with equal counts neither is known to be the later
/// one: the incarnation, which is drawn at random, only makes all replicas order them alike.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CrashVectorEntry {
    /// The number of the node's recoveries.
    pub count: u32,
    /// Drawn at the process' start.
    pub incarnation: u64,
}

impl CrashVectorEntry {
    /// A tag for the incarnation, for acknowledgements ([`crate::link::Ack`]).
    #[must_use]
    pub const fn tag(&self) -> u32 {
        (self.incarnation ^ (self.incarnation >> 32)) as u32 ^ self.count
    }
}

/// A switch as the controller granted it its id. Ordered by id.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SwitchIncarnation {
    /// The id; 0 for none.
    pub id: u32,
    /// The incarnation to which it was granted.
    pub incarnation: u64,
    /// The switch's address.
    pub addr: Addr,
}

/// A message between VR replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VrMessage {
    /// The message; its variant is the operation.
    pub body: VrBody,
    /// Which group: made of its founders' lives, so that no two groups share one.
    pub group: u64,
    /// The sender.
    #[serde(skip)]
    pub from: u16,
    /// The view of which the message speaks.
    #[serde(skip)]
    pub view: u32,
    /// The sender's crash vector: the newest incarnation that it knows of each member, in the
    /// configuration's order (Michael et al., DISC 2017).
    pub crash_vector: Vec<CrashVectorEntry>,
}

impl Message for VrMessage {
    const KIND: Kind = Kind::Vr;

    fn sender(&self) -> (NodeId, Epoch) {
        (NodeId(self.from), Epoch(self.view))
    }

    fn set_sender(&mut self, node: NodeId, view: Epoch) {
        (self.from, self.view) = (node.0, view.0);
    }
}

/// The body of a [`VrMessage`]. The names are those of Viewstamped Replication Revisited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VrBody {
    /// I do not hear the leader, and would go to this view if enough others say the same.
    Suspect,
    /// I am in this view, and not in an earlier one any more.
    StartViewChange,
    /// The vote for the view's leader, with the sender's log end. Every replica to which the sender
    /// granted a lease in an earlier view has entered this one, or its lease is over (trap T2).
    DoViewChange {
        /// The latest view in which the sender's status was normal.
        last_normal: u32,
        /// The end of its log.
        end: LogEnd,
        /// The position up to which it knows the log to be committed.
        committed: u64,
        /// The newest switch that it knows of.
        switch: SwitchIncarnation,
    },
    /// Grant me a lease of this view, counted from when I asked (trap T2). Whose lease it will be
    /// is in the crash vector.
    LeaseRequest {
        /// The asker's clock when it asked.
        asked_at: u64,
    },
    /// The grant.
    LeaseGrant {
        /// Echo of the request.
        asked_at: u64,
        /// The incarnation that asked: no other one of its node can use the grant.
        to: CrashVectorEntry,
    },
    /// Leader to all: the view has begun.
    StartView {
        /// The end of the view's log when the view began.
        end: LogEnd,
        /// The switch whose numbers the view takes.
        switch: SwitchIncarnation,
        /// NOPaxos: numbers up to there are not waited for.
        floor: u32,
    },
    /// NOPaxos, leader to all: the leader lacks the writes at these positions (gap agreement); a
    /// replica that has them sends them.
    Lacks {
        /// The first one's position.
        position: u64,
        /// The number of writes.
        count: u16,
    },
    /// Asks for a stream of the log from after the first of these ends that the receiver's log has
    /// too.
    Follow {
        /// The receiver's number of the stream.
        stream: u16,
        /// The end of the sender's log.
        end: LogEnd,
        /// The last record that it knows to be committed, and its hash: surely in both logs.
        committed: LogEnd,
    },
    /// The sender's log begins after the ends with which the receiver asked for a stream.
    LogMismatch {
        /// The stream that was asked for.
        stream: u16,
        /// The end before its first record; everything up to there is committed.
        base: LogEnd,
    },
    /// The sender has lost everything, and asks for the view. Its incarnation is in the crash
    /// vector.
    Recovery,
    /// The answer, from replicas whose status is normal. The asking incarnation is in the crash
    /// vector.
    RecoveryResponse {
        /// From the view's leader alone: the end of its log, the switch, and the view's floor.
        leader: Option<(LogEnd, SwitchIncarnation, u32)>,
    },
    /// I was told to end: let no reads be sent to me.
    Retire {
        /// I answer nothing any more: this incarnation holds no lease, and never will again (trap
        /// T2).
        released: bool,
    },
    /// Raft: would you vote for me in this term? Mine is an earlier one (dissertation §9.6).
    PreVote {
        /// The end of the sender's log.
        last: LastRecord,
    },
    /// The answer, of the term that was asked for; of the sender's own term if it would not.
    PreVoted {
        /// Whether it would.
        granted: bool,
    },
    /// Raft: vote for me in this term (§5.2).
    RequestVote {
        /// The end of the sender's log.
        last: LastRecord,
        /// Whether the leader of an earlier term has asked for this election, or is the sender:
        /// then replicas that hear it may vote (dissertation §3.10).
        handed: bool,
    },
    /// The answer, of the sender's own term. If it votes for the receiver, every replica to which
    /// it granted a lease in an earlier term has entered this one, or its lease is over (trap T2).
    Voted {
        /// Whether it does.
        granted: bool,
        /// The position up to which it knows the log to be committed.
        committed: u64,
        /// The newest switch that it knows of.
        switch: SwitchIncarnation,
    },
    /// Raft, from the leader of the term before: stand for election in this term at once
    /// (dissertation §3.10).
    TimeoutNow,
    /// Follower leases, from the leader: answer reads of key groups without a write in your log
    /// that you have not executed. No write is committed without you meanwhile.
    ReadLease {
        /// Echo of the request.
        asked_at: u64,
        /// The incarnation that asked: no other one of its node can use the lease.
        to: CrashVectorEntry,
        /// The position up to which the log is committed: the lease counts once the receiver's log
        /// reaches it.
        floor: u64,
    },
    /// Quorum reads: where does your log end?
    AskLogEnd {
        /// The sender's number of the question.
        round: u64,
    },
    /// The answer.
    LogEndIs {
        /// Echo of the question.
        round: u64,
        /// The position of the last record.
        end: u64,
    },
    /// Raft: the answer to [`VrBody::Recovery`] from the leader of a group whose voters were
    /// changed (dissertation §4).
    VotersAre {
        /// The end of its log.
        end: LogEnd,
        /// The term's switch.
        switch: SwitchIncarnation,
        /// Bit i: member i votes.
        voters: u64,
        /// The same by the last committed configuration.
        before: u64,
    },
}

/// Raft: the end of a log, as votes compare it (§5.4.1): by term, then by position.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LastRecord {
    /// The term of the last record; 0 if there is none.
    pub term: u32,
    /// Its position.
    pub position: u64,
}
