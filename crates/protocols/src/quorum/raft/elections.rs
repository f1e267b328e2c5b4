//! Raft: elections (Ongaro, Ousterhout: *In Search of an Understandable Consensus Algorithm*, 2014,
//! cited as Raft §n; Ongaro's dissertation of the same year). A term is a view of VR, and elections
//! replace view changes. Everything else is shared with VR: the log and its streams, commits,
//! leases, copies, recovery.
//!
//! - A replica that does not hear the leader asks the members whether they would vote for it in the
//!   next term (pre-vote, dissertation §9.6), and stays in its term: a replica with a broken link
//!   does not disturb the group.
//! - Once a quorum would, it becomes a candidate in the next term. A replica has one vote a term,
//!   and gives it to no candidate whose log is less up-to-date than its own (Raft §5.4.1). The vote
//!   is on its disk before it is sent ([`crate::quorum::disk`]).
//! - A replica that hears the leader votes for no other, unless the leader asks for the election
//!   (dissertation §4.2.3, §3.10).
//! - A replica that has granted leases votes only when no member that has not left the earlier
//!   terms can hold one of them (trap T2): as in VR, no lease of an earlier term is valid once a
//!   term has begun.
//! - The elected leader's log is the log of the term. It continues with a no-op of the term, and
//!   nothing is committed before that is (Raft §5.4.2, Figure 8).
//! - A leader that hears no quorum steps down (check-quorum, dissertation §6.2).

use concord_core::{Duration, Guard, Instant, Now, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::record::Record;
use concord_wire::vr::{LastRecord, VrBody};
use concord_wire::{Flags, Op, Repr, Sink};

use crate::ordered::Room;
use crate::quorum::copy::copying::Copying;
use crate::quorum::raft::ballot::Wait;
use crate::quorum::vr::change::Vote;
use crate::quorum::{QuorumReplica, Stage};
use crate::setup::RETRY_NS;

impl<E: Engine> QuorumReplica<E> {
    /// The last record of this replica's log, for votes. An incomplete copy is not a log
    /// ([`crate::quorum::copy::outgoing`]), and a restored origin has no records of this rack's
    /// terms.
    pub(in crate::quorum) fn last_record(&self) -> LastRecord {
        if let Some(copying) = self.copying.as_ref().filter(|_| self.has_given_up()) {
            let floor = copying.floor;
            return if self.setup.guards.on(Guard::CopyFloor) {
                floor
            } else {
                LastRecord::default()
            };
        }
        let end = self.ordered.end();
        LastRecord { term: self.term_at(end).0, position: end.0 }
    }

    /// The term of the record at `position`; 0 if it is not known here, or of an earlier rack.
    pub(in crate::quorum) fn term_at(&self, position: Position) -> ViewNumber {
        if position <= self.origin_end {
            return ViewNumber(0);
        }
        if position.0 == self.ordered.log.base().position {
            return self.base_term;
        }
        let record = self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
        ViewNumber(record.map_or(0, |record| record.epoch.0))
    }

    /// Whether the last record is of the present term: then this log is a prefix of the term's
    /// leader's (Log Matching, Raft §5.3). A replica that returns to its term with its disk may be
    /// told again where the term began; the records after that were acknowledged, and stay.
    pub(in crate::quorum) fn ends_in_own_term(&self) -> bool {
        self.group.elects() && self.term_at(self.ordered.end()) == self.view
    }

    /// Raft §5.4.1: whether a log with this last record is at least as up-to-date as this
    /// replica's, and reaches the position known to be committed (`Guard::KnownCommitted`).
    fn is_up_to_date(&self, last: LastRecord) -> bool {
        let is_later = last >= self.last_record() || !self.setup.guards.on(Guard::UpToDate);
        is_later && !self.lacks(Position(last.position), self.known_committed())
    }

    /// Whether this replica hears a leader other than the asking member.
    fn is_loyal(&self, now: Instant, asks: usize) -> bool {
        let has_leader = matches!(self.stage, Stage::Normal | Stage::Starting)
            && self.group.leader_of(self.view).is_some_and(|leader| leader != asks);
        has_leader && (self.is_leader() || !self.suspicion.is_leader_silent(now, self.suspect_ns()))
    }

    /// The wait of a term without a leader: longer than the leases of the one before.
    fn patience(&mut self, now: Instant) -> Wait {
        let drawn_ns = self.drawn_ns();
        Wait::begin(now, 2, drawn_ns, self.suspect_ns())
    }

    /// A wait of the random part alone.
    fn short_wait(&mut self, now: Instant) -> Wait {
        let drawn_ns = self.drawn_ns();
        Wait::begin(now, 0, drawn_ns, self.suspect_ns())
    }

    /// The random part of this replica's time-out.
    fn drawn_ns(&mut self) -> Duration {
        let below_ns = self.suspect_ns() / 2;
        self.ballot.draw(below_ns)
    }

    /// Whether a message of `from` that `view` has begun counts.
    pub(in crate::quorum) fn may_begin(&self, from: usize, view: ViewNumber) -> bool {
        let leader = self.group.leader_of(view);
        leader == Some(from) || (self.group.elects() && leader.is_none())
    }

    /// Notes the leader of the present term, which gets the vote.
    pub(in crate::quorum) fn take_leader(&mut self, leader: usize) {
        if !self.group.elects() {
            return;
        }
        self.group.elect(self.view, leader);
        if self.ballot.voted_for().is_none() {
            self.ballot.vote_for(leader);
        }
        self.ballot.stop();
        // Two candidates at once will wait for times drawn from a longer range.
        self.silence_ns = self.suspect_ns() + self.drawn_ns() / 2;
    }

    /// Whether this replica may become a candidate: it has a log, its engine answers, and it was
    /// not told to end.
    fn may_stand(&self) -> bool {
        let is_well = !self.has_given_up() && self.may_lead() && !self.recovery.is_under_way();
        let lacks = self.lacks(self.ordered.end(), self.known_committed());
        is_well && self.may_be_needed() && !lacks
    }

    fn misses_leader(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Normal | Stage::Starting => {
                !self.group.is_mine(self.view)
                    && self.suspicion.is_leader_silent(now, self.silence_ns)
            }
            Stage::ViewChange => {
                self.ballot.candidacy().is_none() && self.ballot.is_due(now, self.suspect_ns())
            }
            Stage::Out | Stage::Recovering | Stage::Left => false,
        }
    }

    /// Runs pre-votes while no leader is heard.
    pub(in crate::quorum) fn mind_election(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.misses_leader(now.instant) || !self.may_stand() {
            if self.ballot.is_asking() {
                self.ballot.stop();
            }
            return;
        }
        self.ballot.ask(self.group.me());
        let asked = VrBody::PreVote { last: self.last_record() };
        let message = self.message(self.next_view(1), asked);
        self.tell_all(&message, sink);
        self.consider_standing(now, sink);
    }

    pub(in crate::quorum) fn on_pre_vote(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        last: LastRecord,
        sink: &mut impl Sink,
    ) {
        let takes_part = !self.recovery.is_under_way()
            || self.recovery.may_return(now.instant, self.setup.lease_ns);
        if !takes_part {
            return;
        }
        // Whom it has just voted for may lead, and says so once its disk has it.
        let (asks, syncs_ns) = ((self.group.me(), from), self.slow_ns());
        let awaits = self.stage == Stage::ViewChange
            && self.ballot.has_just_voted(now.instant, asks, syncs_ns);
        let granted = term > self.view
            && !awaits
            && !self.is_loyal(now.instant, from)
            && self.is_up_to_date(last);
        let of = if granted { term } else { self.view };
        let message = self.message(of, VrBody::PreVoted { granted });
        if let Some(to) = self.group.members().get(from).map(|m| m.addr) {
            self.send_control(to, &message, sink);
        }
    }

    pub(in crate::quorum) fn on_pre_voted(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        granted: bool,
        sink: &mut impl Sink,
    ) {
        if !self.ballot.is_asking() {
            return;
        }
        if granted && term == self.next_view(1) {
            self.ballot.note_would(from);
            self.consider_standing(now, sink);
        } else if !granted && term > self.view {
            self.enter_term(now, term, sink);
            self.ballot.wait(Wait::none(now.instant));
        }
    }

    fn consider_standing(&mut self, now: Now, sink: &mut impl Sink) {
        if self.ballot.is_asking()
            && self.ballot.would(self.counted_voters()) >= self.group.quorum()
        {
            self.stand(now, false, sink);
        }
    }

    /// Becomes a candidate in the next term.
    pub(in crate::quorum) fn stand(&mut self, now: Now, handed: bool, sink: &mut impl Sink) {
        if self.enter_term(now, self.next_view(1), sink) {
            self.be_candidate(now, handed, sink);
        }
    }

    fn be_candidate(&mut self, now: Now, handed: bool, sink: &mut impl Sink) {
        let wait = self.patience(now.instant);
        self.ballot.stand(self.group.me(), wait, handed);
        self.retry_election(now, sink);
    }

    /// Enters `term`, of which no leader is known. Returns false at the largest number.
    pub(in crate::quorum) fn enter_term(
        &mut self,
        now: Now,
        term: ViewNumber,
        sink: &mut impl Sink,
    ) -> bool {
        if term <= self.view {
            self.vr_count.views_exhausted += u64::from(term.0 == u32::MAX);
            return false;
        }
        let led = self.is_leader();
        self.leave_view(term);
        self.await_leader(now);
        self.vr_count.view_changes += 1;
        if led || self.has_readers() {
            self.say_all(VrBody::StartViewChange, sink);
        }
        true
    }

    /// Begins to wait for the term's leader.
    fn await_leader(&mut self, now: Now) {
        self.stage = Stage::ViewChange;
        let members = self.group.members().len();
        self.change.enter(now.instant, members);
        let wait = self.patience(now.instant);
        self.ballot.wait(wait);
        self.next_retry = now.instant.after(RETRY_NS);
    }

    /// Leader: steps down because it hears no quorum (dissertation §6.2).
    pub(in crate::quorum) fn step_down(&mut self, now: Now) {
        self.leave_view(self.view);
        self.await_leader(now);
    }

    /// Leader: asks the member that lacks the least of the log to stand for election (dissertation
    /// §3.10).
    pub(in crate::quorum) fn hand_over(&mut self, now: Now, sink: &mut impl Sink) {
        let live = |index: &usize| self.is_live(now.instant, *index) && self.group.is_voter(*index);
        let others = (0..self.leading.followers.len()).filter(|i| *i != self.group.me());
        let best = others.filter(live).max_by_key(|i| self.leading.followers[*i].acked);
        if self.enter_term(now, self.next_view(1), sink)
            && let Some(best) = best
        {
            self.say(best, VrBody::TimeoutNow, sink);
        }
    }

    pub(in crate::quorum) fn on_timeout_now(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        sink: &mut impl Sink,
    ) {
        if !self.may_stand() {
            return;
        }
        if term > self.view && self.group.leader_of(self.view) == Some(from) {
            self.enter_term(now, term, sink);
        }
        let is_free = self.ballot.is_free_for(self.group.me()) && self.ballot.candidacy().is_none();
        if term == self.view && self.stage == Stage::ViewChange && is_free {
            self.be_candidate(now, true, sink);
        }
    }

    /// Notes that `from` has left all terms before `term`, also as a leader.
    pub(in crate::quorum) fn on_term_entered(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        sink: &mut impl Sink,
    ) {
        let led = self.group.leader_of(self.view) == Some(from);
        if term > self.view && led && matches!(self.stage, Stage::Normal | Stage::Starting) {
            self.enter_term(now, term, sink);
        }
        let is_news =
            term == self.view && self.stage == Stage::ViewChange && self.change.join(from);
        if is_news && self.ballot.candidacy().is_some() {
            // A vote of this replica may have waited for that.
            self.retry_election(now, sink);
        }
    }

    /// Whether no member that has not left the earlier terms can still hold a lease that this
    /// replica granted (trap T2).
    fn has_outlived_grants(&self, now: Instant) -> bool {
        let is_here = |node| {
            let index = self.group.index_of(node);
            index.is_some_and(|i| self.change.has_joined(i))
        };
        now >= self.leases.others_until(is_here) || !self.setup.guards.on(Guard::Lease)
    }

    /// Without a leader: repeats messages that others may have missed.
    pub(in crate::quorum) fn retry_election(&mut self, now: Now, sink: &mut impl Sink) {
        if self.has_readers() {
            self.say_all(VrBody::StartViewChange, sink);
        }
        let Some(handed) = self.ballot.candidacy() else { return };
        if self.ballot.is_due(now.instant, self.suspect_ns()) {
            return self.ballot.stop();
        }
        let me = self.group.me();
        if !self.change.has_voted(me) && self.has_outlived_grants(now.instant) {
            let switch = self.group.known_switch().max(self.switch);
            self.change.vote(me, self.vote_of(self.commit_point(), switch));
        }
        self.say_all(VrBody::RequestVote { last: self.last_record(), handed }, sink);
        self.consider_elected(now, sink);
    }

    fn vote_of(&self, committed: Position, switch: concord_wire::vr::SwitchIncarnation) -> Vote {
        Vote { last_normal: self.view, end: self.ordered.log.end(), committed, switch }
    }

    pub(in crate::quorum) fn on_request_vote(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        (last, handed): (LastRecord, bool),
        sink: &mut impl Sink,
    ) {
        if (self.is_loyal(now.instant, from) && !handed) || !self.takes_part(now, term) {
            return;
        }
        if term > self.view {
            self.enter_term(now, term, sink);
        }
        if self.stage != Stage::ViewChange {
            return;
        }
        if term == self.view {
            self.change.join(from);
        }
        let is_free = self.ballot.is_free_for(from) || !self.setup.guards.on(Guard::OneVote);
        self.note_lack(Position(last.position), self.known_committed());
        let granted = term == self.view && is_free && self.is_up_to_date(last);
        if granted {
            if !self.has_outlived_grants(now.instant) {
                // The candidate asks again.
                return;
            }
            if self.ballot.vote_for(from) {
                let wait = self.patience(now.instant);
                self.ballot.wait(wait);
            }
        }
        self.say_voted(from, granted, sink);
    }

    fn say_voted(&mut self, to: usize, granted: bool, sink: &mut impl Sink) {
        let switch = self.group.known_switch().max(self.switch);
        let committed = self.commit_point().0;
        self.say(to, VrBody::Voted { granted, committed, switch }, sink);
    }

    /// Tells `from`, which sent a message of an earlier term, the present one.
    pub(in crate::quorum) fn tell_term(&mut self, from: usize, sink: &mut impl Sink) {
        if self.group.elects() && self.stage == Stage::ViewChange {
            self.say_voted(from, false, sink);
        }
    }

    pub(in crate::quorum) fn on_voted(
        &mut self,
        now: Now,
        (from, term): (usize, ViewNumber),
        granted: bool,
        (committed, switch): (Position, concord_wire::vr::SwitchIncarnation),
        sink: &mut impl Sink,
    ) {
        if term > self.view {
            // Only without a leader, or as a leader that a member does not follow.
            if self.stage == Stage::ViewChange || self.is_leader() {
                self.enter_term(now, term, sink);
                self.ballot.wait(Wait::none(now.instant));
            }
            return;
        }
        if term < self.view || self.ballot.candidacy().is_none() {
            return;
        }
        self.change.join(from);
        if granted {
            self.change.vote(from, self.vote_of(committed, switch));
            self.consider_elected(now, sink);
        } else if self.ballot.note_refused(from, self.group.voters())
            > self.group.voter_count() - self.group.quorum()
        {
            // The candidate cannot win any more.
            self.ballot.stop();
            let wait = self.short_wait(now.instant);
            self.ballot.wait(wait);
        }
    }

    fn consider_elected(&mut self, now: Now, sink: &mut impl Sink) {
        let stands = self.stage == Stage::ViewChange && self.ballot.candidacy().is_some();
        if stands
            && self.may_stand()
            && self.change.votes_of(self.counted_voters()) >= self.group.quorum()
        {
            self.group.elect(self.view, self.group.me());
            self.ballot.stop();
            self.start_view(now, sink);
        }
    }

    /// The term's leader: logs the term's no-op. Earlier records can be committed with it, and not
    /// without (Raft §5.4.2).
    pub(in crate::quorum) fn log_no_op(&mut self, now: Now) {
        if self.group.elects() && self.setup.guards.on(Guard::OwnTerm) {
            let now_ms = self.ordered.stamp(now.unix_ms, self.is_timeless(), self.setup.guards);
            let no_op = Repr { flags: Flags::NOOP, ..Repr::new(Op::Write) };
            self.order(Room::of_view(), now_ms, &no_op, &[]);
        }
    }

    /// Follower: whether its log is full. In Raft a leader logs its no-op beyond the bound for
    /// clients' writes: with the same bound, a follower could not accept the record with which a
    /// term has to begin.
    pub(in crate::quorum) fn takes_no_more(&self) -> bool {
        let has_pieces = self.copying.as_ref().is_some_and(Copying::has_pieces);
        let mut limits = self.setup.limits.beside_pieces(has_pieces);
        if self.group.elects() {
            limits.log_records_max = limits.log_records_max.saturating_mul(2);
            limits.log_bytes_max = limits.log_bytes_max.saturating_mul(2);
        }
        self.ordered.log.is_full(&limits)
    }

    /// Whether the leader may commit up to `position`, which a quorum has: in Raft only a record of
    /// its own term.
    pub(in crate::quorum) fn commits(&self, position: Position) -> bool {
        !self.group.elects()
            || position >= self.leading.view_start()
            || !self.setup.guards.on(Guard::OwnTerm)
    }

    /// After a restart from disk: begins elections, since no leader was heard.
    pub(in crate::quorum) fn return_to_election(&mut self, now: Now) {
        self.await_leader(now);
        let wait = self.short_wait(now.instant);
        self.ballot.wait(wait);
    }
}
