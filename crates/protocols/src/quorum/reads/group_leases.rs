//! Follower leases (FLAIR §4.5, "FLeases", after Megastore): the reads that a follower may answer
//! alone, and the holders that a leader waits for.
//!
//! A follower has one lease from its leader for all key groups, bounded in time. Its log says for
//! which groups it is valid: a record revokes the lease of its group, and the commit point that
//! covers the record grants it again. Both travel with the log.

use alloc::vec::Vec;
use core::iter;

use concord_core::{Duration, Guard, Guards, Instant, Leases, NodeId, ObjectId, Position};
use concord_wire::record::Record;
use concord_wire::{Flags, Repr};

/// Key groups, a power of two (FLAIR §4.5: 4 K).
const GROUPS: usize = 4_096;

/// Leases for reads: those that this replica holds from its leader, and those that it granted as
/// the leader.
#[derive(Clone, Debug)]
pub(in crate::quorum) struct GroupLeases {
    leases: Leases,
    /// Whether there is another leader that could grant a lease.
    has_granter: bool,
    /// Follower: the position that the log has to reach before the lease counts. Up to there the
    /// leader committed without waiting for this replica.
    log_floor: Position,
    /// The position that has to be executed before any read: the end of the log when this replica
    /// entered its term.
    executed_floor: Position,
    /// The last record of each key group after that; empty before the first one.
    last: Vec<Position>,
    /// The last record of all keys.
    last_of_all: Position,
    /// Leader: by member: a position that a quorum has and the member lacks, and since when.
    lags: Vec<Option<(Position, Instant)>>,
    /// Leader: the end of the wait for a holder that delays a write.
    wait_until: Instant,
}

/// The reason for which a follower may not answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quorum) enum NoLease {
    /// It has no lease.
    None,
    /// A write of the key group is in its log and not executed.
    Revoked,
}

impl GroupLeases {
    /// None, of `duration_ns` each.
    pub(in crate::quorum) fn new(duration_ns: Duration) -> GroupLeases {
        GroupLeases {
            leases: Leases::new(duration_ns),
            has_granter: false,
            log_floor: Position(0),
            executed_floor: Position(0),
            last: Vec::new(),
            last_of_all: Position(0),
            lags: Vec::new(),
            wait_until: Instant::NEVER,
        }
    }

    /// Begins a term with a log that ends at `end`; `leader` is the leader if it is another member.
    /// No lease of an earlier term is valid any more.
    pub(in crate::quorum) fn begin_term(
        &mut self,
        (now, duration_ns): (Instant, Duration),
        (leader, members): (Option<NodeId>, usize),
        end: Position,
    ) {
        *self = GroupLeases { executed_floor: end, ..GroupLeases::new(duration_ns) };
        self.lags = alloc::vec![None; members];
        self.has_granter = leader.is_some();
        self.leases.open(now, leader.into_iter());
    }

    /// Ends the term.
    pub(in crate::quorum) fn end_term(&mut self) {
        self.leases.close();
        self.has_granter = false;
        self.wait_until = Instant::NEVER;
    }

    /// Follower: handles a record: its key groups are not read before it is executed.
    pub(in crate::quorum) fn revoke(&mut self, record: &Record<'_>) {
        if self.last.is_empty() {
            self.last = alloc::vec![Position(0); GROUPS];
        }
        if record.flags.has(Flags::WILDCARD) {
            self.last_of_all = record.position;
        }
        for obj_id in iter::once(record.obj_id).chain(record.further.as_slice().iter().copied()) {
            self.last[group_of(obj_id)] = record.position;
        }
    }

    /// Follower: takes the leader's grant of the lease requested at `asked_at`. The leader has
    /// committed up to `floor`.
    pub(in crate::quorum) fn on_grant(
        &mut self,
        now: Instant,
        leader: NodeId,
        (asked_at, floor): (Instant, Position),
    ) {
        self.leases.on_grant(now, leader, asked_at);
        self.log_floor = self.log_floor.max(floor);
    }

    /// Follower: the reason for which it may not answer a read now, if there is one. Its log ends
    /// at `end`.
    pub(in crate::quorum) fn refuse(
        &self,
        now: Instant,
        read: &Repr,
        (end, executed): (Position, Position),
        guards: Guards,
    ) -> Option<NoLease> {
        // Without another leader the lease would need no grant.
        let is_held = self.has_granter && self.leases.is_held(now);
        let is_held = is_held || !guards.on(Guard::ReadLease);
        let has_log = end >= self.log_floor || !guards.on(Guard::LeaseFloor);
        if !is_held || !has_log || executed < self.executed_floor {
            return Some(NoLease::None);
        }
        let mut last = self.last_of_all;
        for obj_id in iter::once(read.obj_id).chain(read.further.as_slice().iter().copied()) {
            last = last.max(self.last.get(group_of(obj_id)).copied().unwrap_or_default());
        }
        (executed < last && guards.on(Guard::GroupRevoked)).then_some(NoLease::Revoked)
    }

    /// Leader: grants incarnation `holder` of `node` a lease. Meanwhile no write is committed
    /// without the holder.
    pub(in crate::quorum) fn grant(&mut self, now: Instant, node: NodeId, holder: u64) {
        self.leases.grant(now, node, holder);
    }

    /// Leader: ends the lease of incarnation `holder` of `node`, which answers nothing any more.
    pub(in crate::quorum) fn release(&mut self, node: NodeId, holder: u64, guards: Guards) {
        self.leases.release(node, holder, guards);
    }

    /// Leader: lowers `committed`, which a quorum has, to `acked` if `member` holds a lease and has
    /// acknowledged only up to there.
    pub(in crate::quorum) fn await_holder(
        &mut self,
        now: Instant,
        (member, node): (usize, NodeId),
        (committed, acked): (Position, Position),
    ) -> Position {
        let until = self.leases.others_until(|other| other != node);
        if let Some(lag) = self.lags.get_mut(member) {
            let is_same = lag.is_some_and(|(upto, _)| acked < upto);
            *lag = if is_same { *lag } else { (acked < committed).then_some((committed, now)) };
        }
        if now >= until || acked >= committed {
            return committed;
        }
        self.wait_until = self.wait_until.min(until);
        acked
    }

    /// Leader: begins to compute the wait anew.
    pub(in crate::quorum) fn begin_wait(&mut self) {
        self.wait_until = Instant::NEVER;
    }

    /// Leader: the end of the first lease among those that delay a write.
    pub(in crate::quorum) fn wait_until(&self) -> Instant {
        self.wait_until
    }

    /// Leader: whether `member` has lacked records of a quorum for so long that it gets no lease.
    pub(in crate::quorum) fn lags(
        &self,
        now: Instant,
        member: usize,
        longest_ns: Duration,
    ) -> bool {
        let lag = self.lags.get(member).copied().flatten();
        lag.is_some_and(|(_, since)| now.since(since) > longest_ns)
    }
}

fn group_of(obj_id: ObjectId) -> usize {
    obj_id.0 as usize & (GROUPS - 1)
}

#[cfg(test)]
mod tests {
    use concord_wire::Op;

    use super::*;

    const LEADER: NodeId = NodeId(1);
    const A: ObjectId = ObjectId(5);
    const B: ObjectId = ObjectId(6);

    fn read(obj_id: ObjectId) -> Repr {
        Repr { obj_id, ..Repr::new(Op::Read) }
    }

    fn follower() -> GroupLeases {
        let mut leases = GroupLeases::new(100);
        leases.begin_term((Instant(0), 100), (Some(LEADER), 3), Position(4));
        leases
    }

    fn refused(l: &GroupLeases, at: u64, of: ObjectId, log: (u64, u64)) -> Option<NoLease> {
        let (end, executed) = (Position(log.0), Position(log.1));
        l.refuse(Instant(at), &read(of), (end, executed), Guards::ALL)
    }

    /// A follower answers by a lease that counts from when it was asked for.
    #[test]
    fn t2_follower_lease_counts_from_the_request() {
        let mut l = follower();
        assert_eq!(refused(&l, 1, A, (4, 4)), Some(NoLease::None));
        l.on_grant(Instant(30), LEADER, (Instant(10), Position(0)));
        assert_eq!(refused(&l, 99, A, (4, 4)), None);
        assert_eq!(refused(&l, 100, A, (4, 4)), Some(NoLease::None));
        assert_eq!(refused(&l, 50, A, (4, 3)), Some(NoLease::None), "the term began with more");
        l.end_term();
        l.begin_term((Instant(50), 100), (Some(LEADER), 3), Position(4));
        assert_eq!(refused(&l, 51, A, (4, 4)), Some(NoLease::None), "of the term before");
    }

    /// A lease is of no use before the log has what was committed without its holder.
    #[test]
    fn lease_needs_commits_made_without_its_holder() {
        let mut l = follower();
        l.on_grant(Instant(30), LEADER, (Instant(10), Position(6)));
        assert_eq!(refused(&l, 40, A, (5, 5)), Some(NoLease::None));
        assert_eq!(refused(&l, 40, A, (6, 5)), None);
    }

    /// A record revokes the lease of its groups until it is executed.
    #[test]
    fn record_revokes_group_leases_until_executed() {
        let mut l = follower();
        l.on_grant(Instant(0), LEADER, (Instant(0), Position(0)));
        l.revoke(&Record { position: Position(5), obj_id: A, ..Record::EMPTY });
        assert_eq!(refused(&l, 1, A, (5, 4)), Some(NoLease::Revoked));
        assert_eq!(refused(&l, 1, B, (5, 4)), None);
        assert_eq!(refused(&l, 1, A, (5, 5)), None);
        let flags = Flags::WILDCARD;
        l.revoke(&Record { position: Position(6), flags, ..Record::EMPTY });
        assert_eq!(refused(&l, 1, B, (6, 5)), Some(NoLease::Revoked));
        assert_eq!(refused(&l, 1, B, (6, 6)), None);
    }

    #[test]
    fn a_leader_waits_for_holders_until_their_leases_are_over() {
        let mut l = GroupLeases::new(100);
        l.begin_term((Instant(0), 100), (None, 3), Position(0));
        let wait = |l: &mut GroupLeases, at, acked| {
            l.begin_wait();
            let log = (Position(9), Position(acked));
            l.await_holder(Instant(at), (2, NodeId(2)), log).0
        };
        assert_eq!(wait(&mut l, 5, 3), 9, "it holds none");
        l.grant(Instant(10), NodeId(2), 7);
        assert_eq!((wait(&mut l, 20, 3), l.wait_until()), (3, Instant(110)));
        assert!(!l.lags(Instant(15), 2, 10) && l.lags(Instant(16), 2, 10));
        assert_eq!((wait(&mut l, 40, 9), l.wait_until()), (9, Instant::NEVER));
        assert!(!l.lags(Instant(60), 2, 10), "it has caught up");
        assert_eq!(wait(&mut l, 109, 4), 4);
        assert_eq!(wait(&mut l, 110, 4), 9, "its lease is over");
        l.grant(Instant(120), NodeId(2), 7);
        l.release(NodeId(2), 6, Guards::ALL);
        assert_eq!(wait(&mut l, 121, 4), 4, "another incarnation spoke");
        l.release(NodeId(2), 7, Guards::ALL);
        assert_eq!(wait(&mut l, 121, 4), 9);
    }
}
