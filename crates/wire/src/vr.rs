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
    /// How often the node has recovered.
    pub count: u32,
    /// Drawn at the process' start.
    pub incarnation: u64,
}

impl CrashVectorEntry {
    /// What stands for a life in an acknowledgement ([`crate::link::Ack`]).
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
    /// The life to which it was granted.
    pub incarnation: u64,
    /// Where the switch listens.
    pub addr: Addr,
}

/// A message between VR replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VrMessage {
    /// What it says; its variant is the operation.
    pub body: VrBody,
    /// Which group: made of its founders' lives, so that no two groups share one.
    pub group: u64,
    /// Who sends.
    #[serde(skip)]
    pub from: u16,
    /// The view of which the message speaks.
    #[serde(skip)]
    pub view: u32,
    /// The sender's crash vector: the newest life that it knows of each member, in the
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

/// What a [`VrMessage`] says. The names are those of Viewstamped Replication Revisited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VrBody {
    /// I do not hear the leader, and would go to this view if enough others say the same.
    Suspect,
    /// I am in this view, and not in an earlier one any more.
    StartViewChange,
    /// My vote for the view's leader: what I have. Whoever it still let answer reads in an earlier
    /// view is here or out of time (trap T2).
    DoViewChange {
        /// The latest view in which the sender's status was normal.
        last_normal: u32,
        /// Where its log ends.
        end: LogEnd,
        /// Up to where it knows the log to be committed.
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
        /// Where the view's log ended when it began.
        end: LogEnd,
        /// The switch whose numbers the view takes.
        switch: SwitchIncarnation,
        /// NOPaxos: numbers up to there are not waited for.
        floor: u32,
    },
    /// NOPaxos, leader to all: I lack the writes that come there in the log (gap agreement);
    /// whoever has them sends them.
    Lacks {
        /// The first one's position.
        position: u64,
        /// How many.
        count: u16,
    },
    /// Stream me the log from behind the first of these ends that your log has too.
    Follow {
        /// The receiver's number of the stream.
        stream: u16,
        /// Where the sender's log ends.
        end: LogEnd,
        /// The last record that it knows to be committed, and its hash: surely in both logs.
        committed: LogEnd,
    },
    /// My log begins behind the ends that you asked for a stream with.
    LogMismatch {
        /// The stream that was asked for.
        stream: u16,
        /// Where it begins; what is before is committed.
        base: LogEnd,
    },
    /// I have lost everything; in which view are you? The life that asks is in the crash vector.
    Recovery,
    /// The answer, from those whose status is normal; the life that asked is in the crash vector.
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
        /// Where the sender's log ends.
        last: LastRecord,
    },
    /// The answer, of the term that was asked for; of the sender's own term if it would not.
    PreVoted {
        /// Whether it would.
        granted: bool,
    },
    /// Raft: vote for me in this term (§5.2).
    RequestVote {
        /// Where the sender's log ends.
        last: LastRecord,
        /// The leader of an earlier term has asked for this election, or is the sender: nobody has
        /// to be loyal to it (dissertation §3.10).
        handed: bool,
    },
    /// The answer, of the sender's own term. Whoever it still let answer reads in an earlier term
    /// is here or out of time (trap T2), if it votes for the one who asked.
    Voted {
        /// Whether it does.
        granted: bool,
        /// Up to where it knows the log to be committed.
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
        /// Up to where the log is committed: before yours goes so far, the lease is of no use.
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
        /// Where its log ends.
        end: LogEnd,
        /// The term's switch.
        switch: SwitchIncarnation,
        /// Bit i: member i votes.
        voters: u64,
        /// The same by the last configuration that is committed.
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
