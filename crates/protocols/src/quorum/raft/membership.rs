//! Raft: changes of the voters (Ongaro's dissertation §4).
//!
//! One voter changes at a time, so that a quorum of one configuration shares a member with each of
//! the next (§4.1). A configuration is in force as soon as it is logged. The next one is logged
//! once it is committed, and a record of the leader's own term is (Ongaro's correction of 2015). A
//! new voter has caught up before (§4.2.1). A leader that loses its vote leads until that is
//! committed (§4.2.2). A member without a vote does not stand for election, unless it may still be
//! needed, since the configuration without it is not committed.
//!
//! Leases add two rules. A holder counts a quorum by the newest configuration in its own log, and a
//! follower's log may end long before the leader's. So
//! - a follower needs its leader's grant among them, which the leader gives only to members that
//!   have acknowledged the newest configuration;
//! - a leader waits for a lease's length between two changes.
//!
//! So a replica that may answer reads counts by the newest configuration of its term or by the one
//! before. Its quorum shares a member with that of the next term's leader, whose configuration is
//! one of these two, since a record of the holder's term was committed before the change. None of
//! this outlives the term: no lease of it is valid once the next one has begun (trap T2).
//!
//! For replicas that lost their data see [`crate::quorum::vr::recovery`], and the floor of a copy
//! ([`crate::quorum::copy::copying`]).

use concord_core::{Guard, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{Membership, VoterOutcome, VotersTold};
use concord_wire::record::Record;
use concord_wire::{Addr, Flags, Op, Repr, Sink};

use crate::ordered::Room;
use crate::quorum::QuorumReplica;
use crate::quorum::group::quorum_of;
use crate::quorum::raft::voters::{ChangeRefused, Configuration};

/// The largest lag of a new voter behind the commit point, in records.
const LAG_RECORDS_MAX: u64 = 256;

impl<E: Engine> QuorumReplica<E> {
    /// Leader: logs the configuration in which the member `node` votes, or does not. The next flush
    /// streams it.
    ///
    /// # Errors
    /// [`ChangeRefused`]: nothing has changed.
    pub fn change_voter(
        &mut self,
        now: Now,
        node: NodeId,
        votes: bool,
    ) -> Result<(), ChangeRefused> {
        if !self.group.elects() || !self.is_leader() {
            return Err(ChangeRefused::NotLeader);
        }
        let index = self.group.index_of(node).ok_or(ChangeRefused::NotMember)?;
        if self.group.is_voter(index) == votes {
            return Err(ChangeRefused::NothingToDo);
        }
        let room = self.room().filter(|_| self.may_change(now)).ok_or(ChangeRefused::NotYet)?;
        if votes && !self.has_caught_up(now, index) {
            return Err(ChangeRefused::Behind);
        }
        let voters = self.group.voters() ^ (1 << index);
        let are_there = (0..self.group.members().len())
            .filter(|i| voters >> i & 1 == 1)
            .filter(|i| *i == self.group.me() || self.has_caught_up(now, *i));
        if voters == 0 || are_there.count() < quorum_of(voters) {
            return Err(ChangeRefused::NoQuorum);
        }
        self.log_voters(room, now, voters);
        Ok(())
    }

    /// Handles an operator's request for the voters, or to the leader, for a change of them.
    pub(in crate::quorum) fn on_change_voter(
        &mut self,
        now: Now,
        (client, number): (Addr, u64),
        change: Option<(u16, bool)>,
        sink: &mut impl Sink,
    ) {
        let done = change.map(|(node, votes)| self.change_voter(now, NodeId(node), votes));
        let outcome = match done {
            None if self.group.elects() && self.is_leader() => VoterOutcome::Done,
            None | Some(Err(ChangeRefused::NotLeader)) => VoterOutcome::NotLeader,
            Some(Ok(()) | Err(ChangeRefused::NothingToDo)) => VoterOutcome::Done,
            Some(Err(ChangeRefused::NotMember)) => VoterOutcome::NotMember,
            Some(Err(ChangeRefused::NotYet)) => VoterOutcome::NotYet,
            Some(Err(ChangeRefused::Behind)) => VoterOutcome::Behind,
            Some(Err(ChangeRefused::NoQuorum)) => VoterOutcome::NoQuorum,
        };
        let told = VotersTold {
            number,
            node: self.setup.me.node,
            outcome,
            members: self.group.members().iter().map(|m| m.node).collect(),
            voters: self.group.voters(),
            is_committed: self.committed >= self.group.voters.position(),
        };
        self.send_control(client, &Membership::VotersTold(told), sink);
    }

    /// Leader: whether the last configuration is committed, and nothing is counted by an earlier
    /// one any more.
    fn may_change(&self, now: Now) -> bool {
        let guards = self.setup.guards;
        // A new group has not logged anything.
        let has_begun = !self.leading.followers.is_empty()
            && (self.committed >= self.leading.view_start() || !guards.on(Guard::ChangeTerm));
        let is_one = self.committed >= self.group.voters.position() || !guards.on(Guard::OneChange);
        let lease_ns = self.setup.lease_ns;
        let is_late = self.leading.changed_at().is_none_or(|at| now.instant.since(at) >= lease_ns);
        has_begun && is_one && (is_late || !guards.on(Guard::ChangeLease))
    }

    /// Leader: whether a member is heard and lags little (§4.2.1).
    fn has_caught_up(&self, now: Now, member: usize) -> bool {
        let Some(follower) = self.leading.followers.get(member) else { return false };
        let is_near = follower.acked.0 + LAG_RECORDS_MAX >= self.committed.0;
        let has_begun = follower.acked >= self.leading.view_start();
        let follows = follower.sender.is_some() && follower.outgoing_copy.is_none();
        self.is_live(now.instant, member) && follows && has_begun && is_near
    }

    fn log_voters(&mut self, room: Room, now: Now, voters: u64) {
        let now_ms = self.ordered.stamp(now.unix_ms, self.is_timeless(), self.setup.guards);
        let no_op = Repr { flags: Flags::NOOP, ..Repr::new(Op::Write) };
        let configuration = Configuration::emit(self.group.id(), voters);
        self.order_with(room, now_ms, &no_op, (&[], &configuration));
        self.note_voters_at(self.ordered.end());
        self.leading.note_change(now.instant);
        self.leading.hurry_switch(now.instant);
        self.vr_count.voters_changed += 1;
    }

    /// Puts the configuration in a logged record in force, if it has one.
    pub(in crate::quorum) fn note_voters(&mut self, record: &Record<'_>) {
        if let Some(configuration) = Configuration::of(record) {
            self.take_configuration(configuration);
        }
    }

    pub(in crate::quorum) fn note_voters_at(&mut self, position: Position) {
        let record = self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
        if let Some(configuration) = record.as_ref().and_then(Configuration::of) {
            self.take_configuration(configuration);
        }
    }

    fn take_configuration(&mut self, configuration: Configuration) {
        // During a restore the group is not known yet.
        if !self.group.is_known() || configuration.group == self.group.id() {
            self.group.voters.note(configuration);
        }
    }

    /// The members that count in quorums, as bits.
    pub(in crate::quorum) fn counted_voters(&self) -> u64 {
        let is_on = self.setup.guards.on(Guard::VoterCount);
        if is_on { self.group.voters() } else { self.group.all() }
    }

    /// The size of a quorum, and the members that count, as bits.
    pub(in crate::quorum) fn counted_quorum(&self) -> (usize, u64) {
        (self.group.quorum(), self.counted_voters())
    }

    /// Whether this replica votes, or may vote again since the configuration without it is not
    /// committed here (§4.2.2).
    pub(in crate::quorum) fn may_be_needed(&self) -> bool {
        self.group.own_vote() == 1 || self.group.voters.position() > self.committed
    }

    /// Whether member `from` may get a lease: from a leader only voters that know that they are.
    pub(in crate::quorum) fn may_grant(&self, from: usize) -> bool {
        if !self.group.elects() || !self.is_leader() || !self.setup.guards.on(Guard::LeaderGrant) {
            return true;
        }
        let acked = self.leading.followers.get(from).map_or(Position(0), |f| f.acked);
        self.group.is_voter(from) && acked >= self.group.voters.position()
    }

    /// The voters, and those of the last committed configuration.
    pub(in crate::quorum) fn voters_that_may_count(&self) -> [u64; 2] {
        let before = self.group.voters.as_of(self.committed).map_or(self.group.all(), |c| c.voters);
        [self.group.voters(), before]
    }

    /// Leader: handles a committed change. A leader without a vote asks another member to stand,
    /// and follows the log. A switch that checks replies learns of other voters as of another
    /// leader, by a new session.
    pub(in crate::quorum) fn mind_voters(&mut self, now: Now, sink: &mut impl Sink) {
        if self.group.voters.are_founders() || !self.is_leader() {
            return;
        }
        let settled = self.group.voters.position().max(self.leading.view_start());
        if self.committed < settled {
            return;
        }
        if self.group.own_vote() == 0 {
            self.vr_count.voted_out += 1;
            self.hand_over(now, sink);
        } else if self.leading.has_session_of_others(self.group.voters()) {
            self.stand(now, true, sink);
        }
    }

    /// The known configurations in this replica's log, for hosts and tests: the position of each,
    /// and its voters as bits. The last one is in force.
    pub fn configurations(&self) -> impl Iterator<Item = (Position, u64)> + '_ {
        let founders = (Position(0), self.group.all());
        let known = self.group.voters.iter().map(|c| (c.position, c.voters));
        let first = self.group.voters.iter().next();
        let may_count = first.is_none_or(|first| first.position > self.committed);
        core::iter::once(founders).filter(move |_| may_count).chain(known)
    }
}
