//! The configuration of a replica of any protocol, its address, and its intervals.

use concord_core::{Duration, Epoch, Guards, LogClock, MS, SEC, SwitchId};
use concord_wire::Addr;
use concord_wire::control::Member;

use crate::limits::Limits;

/// How long a silence between neighbours lasts at most, so that acknowledgements and commits
/// travel when no records do.
pub(crate) const KEEPALIVE_NS: Duration = 50 * MS;
/// How often the controller is told.
pub(crate) const ALIVE_NS: Duration = 100 * MS;
/// How often what may have been lost is said again.
pub(crate) const RETRY_NS: Duration = 20 * MS;

/// Time from one look at the queues of the group's hosts to the next.
pub(crate) const WEIGH_NS: Duration = SEC;

/// About how much a joining replica gets at a time: the source takes it in some 100 us.
const COPY_BYTES: usize = 128 << 10;
/// A part of a snapshot is as much smaller: nobody waits for it, and everybody for the loop.
const COPIED_PER_SNAPSHOT_BYTE: usize = 4;
/// VR, NOPaxos: records kept for members that lag; who lacks older ones copies the state.
const RECORDS_KEPT: usize = 32_768;

/// How a leader of a quorum protocol knows that it still leads when it answers a read alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowReads {
    /// A quorum has promised to elect nobody else for a while.
    #[default]
    LeaderLease,
    /// It asks a quorum for each read, or batch of reads (ReadIndex, Raft §8): no clock counts.
    ReadIndex,
    /// Raft without a switch's help: followers answer reads of key groups without a write under
    /// way, by leases of the leader, which waits with each write for all who hold one. The leader
    /// answers by its own lease.
    FollowerLease,
    /// Raft without a switch's help: any replica asks a quorum where their logs end, and answers
    /// when all up to the highest end is executed (quorum reads). No leader and no clock counts.
    Quorum,
}

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The node, this life of it, and where it listens.
    pub me: Member,
    /// Where the controller listens.
    pub controller: Addr,
    /// How long a lease lasts, in ns; the pause after a member died is about as long (trap T2).
    pub lease_ns: Duration,
    /// Replies to reads go through the switch too, as in a rack; else straight to the client.
    pub replies_via_switch: bool,
    /// About how many bytes a chunk of objects has that is copied to a joining replica.
    pub copy_bytes: usize,
    /// VR, NOPaxos: about how many executed records are kept for members that lag; who lacks older
    /// ones copies the state.
    pub records_kept: usize,
    /// VR, Raft: how a leader knows that it still leads when it answers a read alone.
    pub reads: SlowReads,
    /// How often a leader weighs its group's queues, for a switch that shares reads by them, in ns.
    pub weigh_ns: Duration,
    /// Replicate the ordering node's replies: for engines that are servers of their own.
    pub replicate_replies: bool,
    /// How much is held of what grows with load.
    pub limits: Limits,
    /// Which guards are on; all of them outside tests.
    pub guards: Guards,
}

impl ReplicaConfig {
    /// The defaults, for `me`, whose controller listens at `controller`.
    #[must_use]
    pub fn new(me: Member, controller: Addr) -> ReplicaConfig {
        ReplicaConfig {
            me,
            controller,
            lease_ns: SEC,
            replies_via_switch: true,
            copy_bytes: COPY_BYTES,
            records_kept: RECORDS_KEPT,
            reads: SlowReads::default(),
            weigh_ns: WEIGH_NS,
            replicate_replies: false,
            limits: Limits::default(),
            guards: Guards::ALL,
        }
    }
}

impl ReplicaConfig {
    /// About how many bytes a chunk has: of a snapshot, or of a copy.
    pub(crate) fn part_bytes(&self, is_of_snapshot: bool) -> usize {
        let part_of_all = if is_of_snapshot { COPIED_PER_SNAPSHOT_BYTE } else { 1 };
        // A chunk of nothing would be asked for again and again.
        (self.copy_bytes / part_of_all).max(1)
    }
}

/// What holds in the group now, as far as this replica knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InForce {
    /// What packets to clients carry as the epoch; the view of VR and NOPaxos.
    pub(crate) epoch: Epoch,
    pub(crate) switch: Addr,
    /// The switch that replies pass, if it checks them.
    pub(crate) checked: Option<SwitchId>,
    /// The log's time.
    pub(crate) clock: LogClock,
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In no epoch: it answers nothing, and asks to be let in.
    Out,
    /// It copies the state from a member, to become one; it answers nothing.
    Joining,
    /// Its epoch is known; members are agreeing on their logs (trap T5).
    Opening,
    /// It takes part.
    Open,
    /// It left: its engine was lost, for good, or its log diverged, until it is out and may copy.
    Left,
}
