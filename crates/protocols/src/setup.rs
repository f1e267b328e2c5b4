//! The configuration of a replica of any protocol, its address, and its intervals.

use concord_core::{Duration, Epoch, Guards, LogClock, MS, SEC, SwitchId};
use concord_wire::Addr;
use concord_wire::control::Member;

use crate::limits::Limits;

/// The longest silence between neighbours, so that acknowledgements and commits travel when no
/// records do.
pub(crate) const KEEPALIVE_NS: Duration = 50 * MS;
/// The interval of keepalives to the controller.
pub(crate) const ALIVE_NS: Duration = 100 * MS;
/// The interval at which messages that may be lost are repeated.
pub(crate) const RETRY_NS: Duration = 20 * MS;

/// The interval at which a leader weighs the queues of its group's hosts.
pub(crate) const WEIGH_NS: Duration = SEC;

/// The approximate size of a part for a joining replica, in bytes: the source makes it in some 100
/// us.
const COPY_BYTES: usize = 128 << 10;
/// The factor by which a snapshot's part is smaller: no one waits for it, and everyone for the
/// event loop.
const COPIED_PER_SNAPSHOT_BYTE: usize = 4;
/// VR, NOPaxos: the number of records kept for members that lag; a member that lacks older ones
/// copies the state.
const RECORDS_KEPT: usize = 32_768;

/// The way in which a quorum protocol answers a read that the switch does not speed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowReads {
    /// The leader answers alone: a quorum has promised not to elect another for a while.
    #[default]
    LeaderLease,
    /// The leader asks a quorum for each read, or batch of reads (ReadIndex, Raft §8). Safe
    /// whatever clocks do.
    ReadIndex,
    /// Raft without a switch's help: followers answer reads of key groups without a write in
    /// flight, by leases from the leader, whose writes wait for all holders of a lease. The leader
    /// answers by its own lease.
    FollowerLease,
    /// Raft without a switch's help: any replica asks a quorum for the ends of their logs, and
    /// answers once it has executed up to the highest (quorum reads). Safe whatever clocks do, and
    /// without a leader.
    Quorum,
}

/// The configuration of a replica at its start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// This replica's node, incarnation and address.
    pub me: Member,
    /// The controller's address.
    pub controller: Addr,
    /// The duration of a lease, in ns; the pause after a member's death is about as long (trap T2).
    pub lease_ns: Duration,
    /// Whether replies to reads go through the switch, as in a rack with a hardware switch, or
    /// straight to the client.
    pub replies_via_switch: bool,
    /// The approximate size of a chunk of objects for a joining replica, in bytes.
    pub copy_bytes: usize,
    /// VR, NOPaxos: the approximate number of executed records kept for members that lag; a member
    /// that lacks older ones copies the state.
    pub records_kept: usize,
    /// VR, Raft: the way in which reads are answered without the switch's help.
    pub reads: SlowReads,
    /// The interval at which a leader weighs its group's queues, for a switch that shares reads by
    /// them, in ns.
    pub weigh_ns: Duration,
    /// Whether the ordering node's replies are replicated: for engines that are servers of their
    /// own.
    pub replicate_replies: bool,
    /// The interval at which the replicas compare a part of their states, in ns; 0: never. Only the
    /// ordering replica's counts.
    pub compare_ns: Duration,
    /// The bounds of the state that grows with load.
    pub limits: Limits,
    /// The guards that are on: all of them outside tests.
    pub guards: Guards,
}

impl ReplicaConfig {
    /// The defaults, for the replica `me` and the controller at `controller`.
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
            compare_ns: 0,
            limits: Limits::default(),
            guards: Guards::ALL,
        }
    }
}

impl ReplicaConfig {
    /// The approximate size of a chunk of a snapshot or of a copy, in bytes.
    pub(crate) fn part_bytes(&self, is_of_snapshot: bool) -> usize {
        let part_of_all = if is_of_snapshot { COPIED_PER_SNAPSHOT_BYTE } else { 1 };
        // An empty chunk would be requested for ever.
        (self.copy_bytes / part_of_all).max(1)
    }
}

/// The present epoch, switch and clock of the group, as far as this replica knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InForce {
    /// The epoch in packets to clients; in VR and NOPaxos the view.
    pub(crate) epoch: Epoch,
    pub(crate) switch: Addr,
    /// The switch, if it checks replies, which then have to pass it.
    pub(crate) checked: Option<SwitchId>,
    /// The log's time.
    pub(crate) clock: LogClock,
}

/// The phase of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In no epoch: the replica answers nothing, and asks to be admitted.
    Out,
    /// The replica copies a member's state in order to become one; it answers nothing.
    Joining,
    /// The epoch is known, and its members are agreeing on their logs (trap T5).
    Opening,
    /// The replica takes part.
    Open,
    /// The replica has left: for good if its engine was lost; after a log mismatch until it is
    /// removed and may copy.
    Left,
}
