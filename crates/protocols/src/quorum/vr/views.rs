//! View changes (VRR §4.2) with leases (trap T2); a replica does not leave its view alone.
//!
//! - A replica that does not hear the leader asks the others (Suspect) and stays in its view. Once
//!   a quorum says the same, they leave it (StartViewChange). So a replica with a broken link does
//!   not disturb the group.
//! - A replica that has left a view votes (DoViewChange) when no member that has not left it can
//!   hold a lease that the replica granted. A quorum of votes shares a member with the quorum that
//!   granted a lease, so that no lease of an earlier view is valid once a view has begun.
//! - The leader takes the best log of a quorum: that of the latest view, and of these the longest.
//!   It fetches what it lacks, and begins the view (StartView).

use concord_core::{Guard, Instant, NodeId, Now, ObjectId, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::LogEnd;
use concord_wire::record::Record;
use concord_wire::vr::{CrashVectorEntry, SwitchIncarnation, VrBody};

use crate::quorum::leading::Completion;
use crate::quorum::vr::change::Vote;
use crate::quorum::{QuorumReplica, Stage};
use crate::setup::RETRY_NS;

/// If the log's time is this much later than the last record when a view begins, it begins anew at
/// the record: records that were cut off may have had other times.
const TIME_KEPT_MS: u64 = 10_000;

impl<E: Engine> QuorumReplica<E> {
    fn say_suspect(&mut self, view: ViewNumber, sink: &mut impl Sink) {
        let message = self.message(view, VrBody::Suspect);
        self.tell_all(&message, sink);
    }

    pub(in crate::quorum) fn on_suspect(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        sink: &mut impl Sink,
    ) {
        // The sender is in the view before. If that is later than this replica's, its view is over;
        // the leader of the sender's view will answer with StartView, or is the one that is not
        // heard.
        let theirs = ViewNumber(view.0.saturating_sub(1));
        if theirs > self.view && self.takes_part(now, theirs) {
            self.enter_view(now, theirs, sink);
        }
        if theirs == self.view {
            self.suspicion.note(now.instant, from);
            self.consider_view_change(now, sink);
        }
    }

    /// Whether the view's leader has been silent for too long, or has not begun the view in time.
    pub(in crate::quorum) fn suspects(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Normal | Stage::Starting => {
                !self.group.is_mine(self.view)
                    && self.suspicion.is_leader_silent(now, self.suspect_ns())
            }
            Stage::ViewChange => self.change.is_over(now, self.suspect_ns()),
            Stage::Out | Stage::Recovering | Stage::Left => false,
        }
    }

    /// Reports a silent leader, and begins a view change if others report the same.
    pub(in crate::quorum) fn mind_leader(&mut self, now: Now, sink: &mut impl Sink) {
        if self.group.elects() {
            return self.mind_election(now, sink);
        }
        if self.suspects(now.instant) && !self.recovery.is_under_way() {
            self.say_suspect(self.next_view(1), sink);
            self.consider_view_change(now, sink);
        }
    }

    /// Leaves the view if a quorum, with this replica, does not hear its leader.
    fn consider_view_change(&mut self, now: Now, sink: &mut impl Sink) {
        if self.recovery.is_under_way() || !self.suspects(now.instant) {
            return;
        }
        let others = self.suspicion.count(now.instant, self.suspect_ns());
        if others + 1 >= self.group.quorum() {
            self.enter_view(now, self.next_view(1), sink);
        }
    }

    /// Enters `view`, which has not begun.
    pub(in crate::quorum) fn enter_view(
        &mut self,
        now: Now,
        view: ViewNumber,
        sink: &mut impl Sink,
    ) {
        if view <= self.view {
            // After the largest number there is no view.
            self.vr_count.views_exhausted += u64::from(view.0 == u32::MAX);
            return;
        }
        self.leave_view(view);
        self.stage = Stage::ViewChange;
        self.vr_count.view_changes += 1;
        let members = self.group.members().len();
        self.change.enter(now.instant, members);
        self.next_retry = now.instant.after(RETRY_NS);
        self.vote(now, sink);
    }

    /// Ends everything that belongs to the present view alone, and enters `view`.
    pub(in crate::quorum) fn leave_view(&mut self, view: ViewNumber) {
        if view == self.view {
            self.ballot.stop();
        } else {
            self.ballot.new_term();
        }
        self.view = view;
        self.leases.close();
        self.group_leases.end_term();
        self.quorum_reads.forget();
        (0..self.leading.followers.len()).for_each(|member| self.end_feed(member));
        self.leading.end_view();
        self.session.end();
        self.withheld.forget();
        self.inbound.end_view();
        self.helper = None;
        self.heard_committed = Position(0);
        self.next_beat = Instant::NEVER;
        self.suspicion.end_view();
    }

    /// Votes if it may, and announces its view.
    fn vote(&mut self, now: Now, sink: &mut impl Sink) {
        let elsewhere = |node: NodeId| {
            let index = self.group.index_of(node);
            index.is_some_and(|i| self.change.has_joined(i))
        };
        let until = self.leases.others_until(elsewhere);
        if now.instant < until && self.setup.guards.on(Guard::Lease) {
            self.next_retry = self.next_retry.min(until);
            return self.say_all(VrBody::StartViewChange, sink);
        }
        let (last_normal, end) = if self.has_given_up() {
            (ViewNumber(0), LogEnd::default())
        } else {
            (self.last_normal, self.ordered.log.end())
        };
        let vote = Vote {
            last_normal,
            end,
            committed: self.known_committed(),
            switch: self.group.known_switch().max(self.switch),
        };
        self.change.vote(self.group.me(), vote);
        let vote = VrBody::DoViewChange {
            last_normal: vote.last_normal.0,
            end: vote.end,
            committed: vote.committed.0,
            switch: vote.switch,
        };
        self.say_all(vote, sink);
        self.elect(now, sink);
    }

    pub(in crate::quorum) fn retry_view_change(&mut self, now: Now, sink: &mut impl Sink) {
        self.vote(now, sink);
        if self.stage == Stage::ViewChange
            && self.change.best().is_some()
            && !self.inbound.is_streaming()
        {
            self.ask_again(sink);
        }
    }

    pub(in crate::quorum) fn on_start_view_change(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        sink: &mut impl Sink,
    ) {
        if !self.takes_part(now, view) {
            return;
        }
        if view > self.view {
            self.enter_view(now, view, sink);
        }
        self.note_joined(now, from, view, sink);
    }

    /// Notes that `from` has left all views before `view`.
    fn note_joined(&mut self, now: Now, from: usize, view: ViewNumber, sink: &mut impl Sink) {
        if view == self.view && self.stage == Stage::ViewChange && self.change.join(from) {
            self.vote_if_due(now, sink);
        }
    }

    /// Votes if the vote waited for a lease that has ended.
    pub(in crate::quorum) fn vote_if_due(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.change.has_voted(self.group.me()) {
            self.vote(now, sink);
        }
    }

    pub(in crate::quorum) fn on_do_view_change(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        vote: Vote,
        sink: &mut impl Sink,
    ) {
        if !self.takes_part(now, view) {
            return;
        }
        if view > self.view {
            self.enter_view(now, view, sink);
        }
        if view == self.view && self.stage == Stage::ViewChange {
            self.change.vote(from, vote);
            self.note_joined(now, from, view, sink);
            self.elect(now, sink);
        }
    }

    /// The position up to which this replica knows the log to be committed, in its own log or not.
    pub(in crate::quorum) fn known_committed(&self) -> Position {
        self.told_committed.max(self.commit_point())
    }

    /// Whether a log that ends at `end` lacks records up to `committed`. The best log of a quorum
    /// never does, unless some replica has an older data directory than before, and so not all that
    /// it acknowledged. Then the view waits for another member.
    pub(in crate::quorum) fn lacks(&self, end: Position, committed: Position) -> bool {
        end < committed && self.setup.guards.on(Guard::KnownCommitted)
    }

    /// Counts the case that a log that ends at `end` lacks such records.
    pub(in crate::quorum) fn note_lack(&mut self, end: Position, committed: Position) {
        self.vr_count.lacked_committed += u64::from(self.lacks(end, committed));
    }

    /// The view's leader: begins the view once a quorum has voted, with itself.
    fn elect(&mut self, now: Now, sink: &mut impl Sink) {
        let leads = self.stage == Stage::ViewChange
            && self.group.is_mine(self.view)
            && !self.has_given_up()
            && self.may_lead();
        if !leads || self.change.best().is_some() {
            return;
        }
        let elected = self.change.elect(self.group.me(), self.group.quorum());
        let Some((best, vote)) = elected else { return };
        let (end, committed) = (Position(vote.end.position), self.change.committed());
        if self.lacks(end, committed) {
            return self.note_lack(end, committed);
        }
        if self.ordered.log.end_at(vote.end.position) == Some(vote.end) {
            self.cut_log(vote.end.position);
            self.start_view(now, sink);
        } else {
            self.change.fetch_from(best);
            self.fetch(vote.end);
            self.follow(sink);
        }
    }

    /// Begins the view, with the best log of a quorum as this replica's.
    pub(in crate::quorum) fn start_view(&mut self, now: Now, sink: &mut impl Sink) {
        let committed = self.change.committed();
        self.switch = self.change.switch().max(self.group.known_switch());
        self.inbound.close_receiver();
        self.vr_count.views_led += 1;
        self.note_log_end();
        self.draw_floor();
        self.begin_normal(now.instant);
        self.log_no_op(now);
        let (members, end) = (self.group.members().len(), self.ordered.end());
        self.leading.begin(now.instant, members, end);
        self.suspicion.listen(now.instant);
        self.committed = self.committed.max(committed.min(end));
        if self.setup.replicate_replies {
            self.scripts.begin_view(committed.min(end));
        }
        if self.outlived_stop_as_leader() {
            return self.fail_stop();
        }
        // Writes that were executed before may never have completed at the switch.
        let (position, seq) = (self.executed, self.executed_seq);
        self.leading.push_completion(Completion { position, seq, obj_id: ObjectId(0) });
        self.next_beat = now.instant.after(self.beat_ns());
        self.next_retry = now.instant.after(RETRY_NS);
        self.say_start_view(sink);
        self.request_leases(now, sink);
        self.execute_committed(now, sink);
    }

    /// Sends StartView to the members that have not asked for the stream yet.
    pub(in crate::quorum) fn say_start_view(&mut self, sink: &mut impl Sink) {
        let Some(end) = self
            .ordered
            .log
            .end_at(self.leading.view_start().0.max(self.ordered.log.base().position))
        else {
            return;
        };
        let floor = self.sequence.floor().counter;
        for index in 0..self.leading.followers.len() {
            if index != self.group.me() && self.leading.followers[index].sender.is_none() {
                self.say(index, VrBody::StartView { end, switch: self.switch, floor }, sink);
            }
        }
    }

    pub(in crate::quorum) fn on_start_view(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        end: LogEnd,
        (switch, floor): (SwitchIncarnation, u32),
        sink: &mut impl Sink,
    ) {
        let begun = matches!(self.stage, Stage::Normal | Stage::Starting);
        let known = view < self.view || (view == self.view && begun);
        if view < self.view {
            self.tell_term(from, sink);
        }
        if known || !self.may_begin(from, view) || self.stage == Stage::Recovering {
            return;
        }
        self.leave_view(view);
        self.take_leader(from);
        self.vr_count.views_joined += 1;
        self.suspicion.hear_leader(now.instant);
        self.catch_up(now, end, (switch, floor), sink);
    }

    /// Takes over the log of the view, which has begun: at once if this replica's log has all of
    /// it.
    pub(in crate::quorum) fn catch_up(
        &mut self,
        now: Now,
        end: LogEnd,
        (switch, floor): (SwitchIncarnation, u32),
        sink: &mut impl Sink,
    ) {
        self.stage = Stage::Starting;
        self.switch = switch;
        self.set_floor(floor);
        self.next_retry = now.instant.after(RETRY_NS);
        self.next_beat = now.instant.after(self.beat_ns());
        if self.copying.is_some() {
            return self.go_on_copying(now, end, sink);
        }
        if self.ends_in_own_term() && end.position <= self.ordered.end().0 {
            self.begin_normal(now.instant);
        } else if self.ordered.log.end_at(end.position) == Some(end) {
            self.cut_log(end.position);
            self.begin_normal(now.instant);
        } else {
            self.fetch(end);
        }
        self.follow(sink);
    }

    /// Sets the status to normal: the log is that of the view.
    pub(in crate::quorum) fn begin_normal(&mut self, now: Instant) {
        (self.stage, self.is_new) = (Stage::Normal, false);
        self.last_normal = self.view;
        self.change.succeed();
        self.vr_count.recovered += u64::from(self.recovery.end());
        self.note_log_end();
        self.leases.open(now, self.group.others().map(|(_, m)| NodeId(m.node)));
        self.begin_leases(now);
        self.inbound.forget_end();
        self.leading.stage_up_to(Position(0));
        if self.group.is_sequenced() {
            self.take_early(now);
        }
    }

    /// Sets the newest number and time from the log, whose end was replaced.
    fn note_log_end(&mut self) {
        self.ordered.last_seq = self.executed_seq;
        self.ordered.last_now_ms = self.base_now_ms;
        let last = self.ordered.log.record(self.ordered.end());
        if let Some(record) = last.and_then(|bytes| Record::parse(bytes).ok()) {
            self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
            // From the log alone, since under NOPaxos every replica computes the next time from it.
            self.ordered.last_now_ms = record.now_ms;
        }
        let now_ms = self.ordered.clock.read(self.local_ms);
        if now_ms < self.ordered.last_now_ms || now_ms - self.ordered.last_now_ms > TIME_KEPT_MS {
            self.ordered.clock.note(self.ordered.last_now_ms, self.local_ms);
        }
    }

    /// Asks the others for a lease of this view. A replica that answers no reads needs none.
    pub(in crate::quorum) fn request_leases(&mut self, now: Now, sink: &mut impl Sink) {
        self.leases.on_requested(now.instant);
        if !self.is_leader() && !self.has_readers() {
            return;
        }
        self.say_all(VrBody::LeaseRequest { asked_at: now.instant.0 }, sink);
    }

    /// Grants `from` a lease, if the request is of its newest known incarnation. An unknown one
    /// could be taken for an earlier one that has left the view: then this replica would vote while
    /// the lease is held.
    pub(in crate::quorum) fn on_lease_request(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (entry, asked_at): (CrashVectorEntry, u64),
        sink: &mut impl Sink,
    ) {
        if self.stage != Stage::Normal || !self.is_view(view) || !self.may_grant(from) {
            return;
        }
        self.leases.grant(now.instant, self.group.node_of(from), entry.incarnation);
        self.say(from, VrBody::LeaseGrant { asked_at, to: entry }, sink);
        self.grant_reads(now.instant, from, (entry, asked_at), sink);
    }

    /// Takes the lease that `from` grants to incarnation `to` of this node.
    pub(in crate::quorum) fn on_lease_grant(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (to, asked_at): (CrashVectorEntry, u64),
        sink: &mut impl Sink,
    ) {
        let is_mine =
            to == self.crash_vector.mine() || !self.setup.guards.on(Guard::LeaseIncarnation);
        if self.stage == Stage::Normal && self.is_view(view) && is_mine {
            let from = self.group.node_of(from);
            self.leases.on_grant(now.instant, from, Instant(asked_at));
            self.wake_reads(now, sink);
        }
    }
}
