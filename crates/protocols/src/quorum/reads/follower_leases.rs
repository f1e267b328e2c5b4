//! Follower leases over the log (FLAIR §4.5, "FLeases"): reads answered by Raft's followers without
//! a switch's help.
//!
//! - A follower asks all members for leases, as under Harmonia: while it holds those of a quorum,
//!   no later term has begun (trap T2). The leader's grant also has its commit point.
//! - The record of a write revokes the lease of its key group, and the commit point grants it
//!   again: [`crate::quorum::reads::group_leases`].
//! - The leader commits a write once a quorum and all holders of a lease have it, and a holder
//!   answers no read of its group before it has executed the write. So after a client has seen a
//!   write, no answer is older.
//! - A follower that lags gets no lease. A holder that dies delays writes until its lease is over.
//! - Clients choose a replica at random; a follower that may not answer passes the read to the
//!   leader, in its term.

use concord_core::{Duration, Guard, Instant, NodeId, Now, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::vr::{CrashVectorEntry, VrBody};
use concord_wire::{Flags, Reason, Repr, Sink};

use crate::quorum::reads::group_leases::NoLease;
use crate::quorum::{QuorumReplica, Stage};
use crate::setup::SlowReads;

/// The largest lag behind the commit point with which a follower gets a lease, in records: writes
/// will wait for it.
const LAG_RECORDS_MAX: u64 = 256;
/// The fraction of a lease for which a follower may lack records of a quorum and still get a lease.
const PATIENCE: Duration = 8;

impl<E: Engine> QuorumReplica<E> {
    /// Whether followers answer reads by leases of their leader.
    pub(in crate::quorum) fn has_follower_leases(&self) -> bool {
        self.setup.reads == SlowReads::FollowerLease
            && self.group.elects()
            && !self.group.has_readers()
    }

    /// Whether any member may answer reads.
    pub(in crate::quorum) fn has_readers(&self) -> bool {
        self.group.has_readers() || self.has_follower_leases()
    }

    /// Begins the leases of a term.
    pub(in crate::quorum) fn begin_leases(&mut self, now: Instant) {
        if !self.has_follower_leases() {
            return;
        }
        let leader = self.group.leader_of(self.view).filter(|leader| *leader != self.group.me());
        let leader = leader.map(|leader| self.group.node_of(leader));
        let members = self.group.members().len();
        let (at, end) = ((now, self.setup.lease_ns), self.ordered.end());
        self.group_leases.begin_term(at, (leader, members), end);
    }

    /// Leader: grants member `from` a lease for reads, unless writes would have to wait for it.
    pub(in crate::quorum) fn grant_reads(
        &mut self,
        now: Instant,
        from: usize,
        (entry, asked_at): (CrashVectorEntry, u64),
        sink: &mut impl Sink,
    ) {
        if !self.has_follower_leases() || !self.is_leader() {
            return;
        }
        let Some(follower) = self.leading.followers.get(from) else { return };
        let is_near = follower.acked.0 + LAG_RECORDS_MAX >= self.committed.0;
        let follows =
            follower.sender.is_some() && follower.outgoing_copy.is_none() && !follower.retires;
        let lags = self.group_leases.lags(now, from, self.setup.lease_ns / PATIENCE);
        if !is_near || !follows || lags {
            self.vr_count.read_leases_refused += 1;
            return;
        }
        self.vr_count.read_leases_granted += 1;
        self.group_leases.grant(now, self.group.node_of(from), entry.incarnation);
        let floor = self.committed.0;
        self.say(from, VrBody::ReadLease { asked_at, to: entry, floor }, sink);
    }

    /// Follower: handles the leader's grant to incarnation `to` of this node.
    pub(in crate::quorum) fn on_read_lease(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (to, asked_at): (CrashVectorEntry, u64),
        floor: u64,
    ) {
        let is_mine =
            to == self.crash_vector.mine() || !self.setup.guards.on(Guard::LeaseIncarnation);
        let is_leaders = self.group.leader_of(self.view) == Some(from);
        if self.stage == Stage::Normal && self.is_view(view) && is_mine && is_leaders {
            let leader = self.group.node_of(from);
            let granted = (Instant(asked_at), Position(floor));
            self.group_leases.on_grant(now.instant, leader, granted);
        }
    }

    /// Leader: the position up to which the records of a quorum may be committed: every holder of a
    /// lease has them too.
    pub(in crate::quorum) fn await_holders(
        &mut self,
        now: Instant,
        committed: Position,
    ) -> Position {
        if !self.has_follower_leases() || !self.setup.guards.on(Guard::LeaseHolders) {
            return committed;
        }
        self.group_leases.begin_wait();
        let mut upto = committed;
        for index in (0..self.leading.followers.len()).filter(|i| *i != self.group.me()) {
            let (node, acked) = (self.group.node_of(index), self.leading.followers[index].acked);
            let had = self.group_leases.await_holder(now, (index, node), (committed, acked));
            upto = upto.min(had);
        }
        upto
    }

    /// Follower: the reason for which a client's read may not be answered here, if there is one.
    pub(in crate::quorum) fn refuse_leased(&mut self, now: Instant, read: &Repr) -> Option<Reason> {
        let log = (self.ordered.end(), self.executed);
        let is_caught_up = self.copying.is_none() && !read.flags.has(Flags::WILDCARD);
        let refused = match self.group_leases.refuse(now, read, log, self.setup.guards) {
            _ if !is_caught_up || !self.is_leased(now) => Some(NoLease::None),
            // The leader knows whether a quorum knows the scripts' outcomes.
            None if self.setup.replicate_replies && self.scripts.are_any() => {
                Some(NoLease::Revoked)
            }
            refused => refused,
        };
        match refused? {
            NoLease::None => {
                self.count.refused_lease += 1;
                Some(Reason::RefusedLease)
            }
            NoLease::Revoked => {
                self.count.refused_revoked += 1;
                Some(Reason::RefusedRevoked)
            }
        }
    }

    /// The time at which a write stops waiting for the holder of a lease.
    pub(in crate::quorum) fn holders_until(&self) -> Instant {
        if self.is_leader() { self.group_leases.wait_until() } else { Instant::NEVER }
    }

    /// Leader: notes that this incarnation of member `node` holds no lease any more.
    pub(in crate::quorum) fn release_reads(&mut self, node: NodeId, incarnation: u64) {
        self.group_leases.release(node, incarnation, self.setup.guards);
    }
}
