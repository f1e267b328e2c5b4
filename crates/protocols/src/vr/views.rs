//! View changes (VRR §4.2), with leases (trap T2) and without the promise that a lone replica
//! would make by leaving its view.
//!
//! - A replica that does not hear the leader asks the others (Suspect) and stays in its view. Once a
//!   quorum says the same, they leave it (StartViewChange). A replica whose own link is broken thus
//!   disturbs nobody.
//! - Who has left a view votes (DoViewChange) when nobody who has not left it can hold a lease that
//!   it granted. Any quorum of votes meets the quorum that granted a lease: so no lease of an
//!   earlier view is valid once a view has begun.
//! - The leader takes the best log of a quorum: that of the latest view, and of these the longest.
//!   It fetches what it lacks, and begins the view (StartView).

use alloc::vec::Vec;

use concord_core::{Guard, Instant, NodeId, Now, ObjectId, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::LogEnd;
use concord_wire::record::Record;
use concord_wire::vr::{Life, SwitchLife, VrBody};

use super::normal::{Completion, Follower};
use super::{Stage, Vr};
use crate::setup::RETRY_NS;

/// Most doublings of the time that a view change may take, a lease's length at first. It has to be longer
/// than a lease, and no longer than clients wait: whatever made earlier ones fail may have healed.
const PATIENCE_MAX: u32 = 2;

/// The log's time, found at a new view to be so much later than the last record, begins anew there:
/// what was cut off may have been of another time.
const TIME_KEPT_MS: u64 = 10_000;

/// A DoViewChange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vote {
    pub(super) last_normal: ViewNumber,
    pub(super) end: LogEnd,
    pub(super) committed: Position,
    pub(super) switch: SwitchLife,
}

/// A view change under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Members that are in this view too, and so in no earlier one.
    joined: Vec<bool>,
    votes: Vec<Option<Vote>>,
    /// New leader: who has the best log, which is being fetched.
    pub(super) best: Option<usize>,
    /// When to go on to the next view.
    give_up_at: Instant,
    /// View changes in a row that led to nothing.
    failed: u32,
}

impl Change {
    /// Member `index` has lost what it said.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(vote) = self.votes.get_mut(index) {
            *vote = None;
        }
    }
}

impl<E: Engine> Vr<E> {
    fn say_suspect(&mut self, view: ViewNumber, sink: &mut impl Sink) {
        let message = self.message(view, VrBody::Suspect);
        self.tell_all(&message, sink);
    }

    pub(super) fn on_suspect(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        sink: &mut impl Sink,
    ) {
        // The sender is in the view before. If that is news, the own view is over; its leader will
        // answer with StartView, or is the one who is missed.
        let theirs = ViewNumber(view.0.saturating_sub(1));
        if theirs > self.view && !self.recovering {
            self.enter_view(now, theirs, sink);
        }
        if theirs == self.view {
            self.suspicions[from] = Some(now.instant);
            self.consider_view_change(now, sink);
        }
    }

    /// Whether the view's leader has been silent for too long, or has not begun the view in time.
    pub(super) fn suspects(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Normal | Stage::Starting => {
                self.leader_of(self.view) != self.me
                    && now.since(self.heard_leader_at) >= self.suspect_ns()
            }
            Stage::ViewChange => now >= self.change.give_up_at,
            Stage::Out | Stage::Recovering | Stage::Left => false,
        }
    }

    /// Says so, and does something about it if others say the same.
    pub(super) fn mind_leader(&mut self, now: Now, sink: &mut impl Sink) {
        if self.suspects(now.instant) && !self.recovering {
            self.say_suspect(self.next_view(1), sink);
            self.consider_view_change(now, sink);
        }
    }

    /// Leaves the view if a quorum, this replica included, misses its leader.
    fn consider_view_change(&mut self, now: Now, sink: &mut impl Sink) {
        if self.recovering || !self.suspects(now.instant) {
            return;
        }
        let fresh = |at: &Instant| now.instant.since(*at) < self.suspect_ns();
        let others = self.suspicions.iter().flatten().filter(|at| fresh(at)).count();
        if others + 1 >= self.quorum() {
            self.enter_view(now, self.next_view(1), sink);
        }
    }

    /// Leaves the own view for `view`, which has not begun.
    pub(super) fn enter_view(&mut self, now: Now, view: ViewNumber, sink: &mut impl Sink) {
        if view <= self.view {
            return;
        }
        self.leave_view(view);
        self.stage = Stage::ViewChange;
        self.vr_count.view_changes += 1;
        let failed = self.change.failed + 1;
        let patience_ns = self.suspect_ns() << failed.min(PATIENCE_MAX);
        let members = self.members().len();
        self.change = Change {
            joined: alloc::vec![false; members],
            votes: alloc::vec![None; members],
            best: None,
            give_up_at: now.instant.after(patience_ns),
            failed,
        };
        self.next_retry = now.instant.after(RETRY_NS);
        self.vote(now, sink);
    }

    /// What belongs to the own view alone ends with it.
    pub(super) fn leave_view(&mut self, view: ViewNumber) {
        self.view = view;
        self.leases.close();
        (0..self.followers.len()).for_each(|member| self.end_feed(member));
        self.followers.clear();
        self.uncompleted.clear();
        self.waiting_reads.clear();
        self.receiver = None;
        self.incoming = None;
        self.helper = None;
        self.streaming = false;
        self.heard_committed = Position(0);
        self.commit_due = Instant::NEVER;
        self.next_beat = Instant::NEVER;
        self.suspicions.fill(None);
    }

    /// Votes if it may, and says where it is.
    fn vote(&mut self, now: Now, sink: &mut impl Sink) {
        let elsewhere = |node: NodeId| {
            let index = self.member_index(node);
            index.is_some_and(|i| self.change.joined.get(i) == Some(&true))
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
            committed: self.commit_point(),
            switch: self.known_switch().max(self.switch),
        };
        let me = self.me;
        self.change.votes[me] = Some(vote);
        let vote = VrBody::DoViewChange {
            last_normal: vote.last_normal.0,
            end: vote.end,
            committed: vote.committed.0,
            switch: vote.switch,
        };
        self.say_all(vote, sink);
        self.elect(now, sink);
    }

    pub(super) fn retry_view_change(&mut self, now: Now, sink: &mut impl Sink) {
        self.vote(now, sink);
        if self.stage == Stage::ViewChange && self.change.best.is_some() && !self.streaming {
            self.ask_again(sink);
        }
    }

    pub(super) fn on_start_view_change(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        sink: &mut impl Sink,
    ) {
        if self.recovering {
            return;
        }
        if view > self.view {
            self.enter_view(now, view, sink);
        }
        self.note_joined(now, from, view, sink);
    }

    /// `from` has left all views before `view`.
    fn note_joined(&mut self, now: Now, from: usize, view: ViewNumber, sink: &mut impl Sink) {
        if view == self.view && self.stage == Stage::ViewChange {
            let was = core::mem::replace(&mut self.change.joined[from], true);
            if !was {
                self.vote_if_due(now, sink);
            }
        }
    }

    /// Somebody can hold no lease any more: if that was what the own vote waited for, it waits no longer.
    pub(super) fn vote_if_due(&mut self, now: Now, sink: &mut impl Sink) {
        if self.change.votes[self.me].is_none() {
            self.vote(now, sink);
        }
    }

    pub(super) fn on_do_view_change(
        &mut self,
        now: Now,
        from: usize,
        view: ViewNumber,
        vote: Vote,
        sink: &mut impl Sink,
    ) {
        if self.recovering {
            return;
        }
        if view > self.view {
            self.enter_view(now, view, sink);
        }
        if view == self.view && self.stage == Stage::ViewChange {
            self.change.votes[from] = Some(vote);
            self.note_joined(now, from, view, sink);
            self.elect(now, sink);
        }
    }

    /// The view's leader: begins it once a quorum has voted, itself included.
    fn elect(&mut self, now: Now, sink: &mut impl Sink) {
        let leads = self.stage == Stage::ViewChange
            && self.leader_of(self.view) == self.me
            && !self.has_given_up()
            && self.may_lead();
        let votes = self.change.votes.iter().flatten().count();
        let own = self.change.votes.get(self.me).copied().flatten();
        let Some(own) = own.filter(|_| leads && votes >= self.quorum()) else { return };
        if self.change.best.is_some() {
            return;
        }
        let merit = |v: &Vote| (v.last_normal, v.end.position);
        let (mut best, mut vote) = (self.me, own);
        for (index, other) in self.change.votes.iter().enumerate() {
            if let Some(other) = other.filter(|v| merit(v) > merit(&vote)) {
                (best, vote) = (index, other);
            }
        }
        if self.ordered.log.end_at(vote.end.position) == Some(vote.end) {
            self.ordered.log.cut(vote.end.position);
            self.start_view(now, sink);
        } else {
            self.change.best = Some(best);
            self.fetch(vote.end);
            self.follow(sink);
        }
    }

    /// The view begins, with the best log of a quorum as its own.
    pub(super) fn start_view(&mut self, now: Now, sink: &mut impl Sink) {
        let votes = || self.change.votes.iter().flatten();
        let committed = votes().map(|v| v.committed).max().unwrap_or_default();
        let switch = votes().map(|v| v.switch).max().unwrap_or_default();
        self.switch = switch.max(self.known_switch());
        self.receiver = None;
        self.vr_count.views_led += 1;
        self.note_log_end();
        self.draw_floor();
        self.begin_normal(now.instant);
        self.followers = alloc::vec![Follower::default(); self.members().len()];
        self.listens_since = now.instant;
        self.view_start = self.ordered.end();
        self.committed = self.committed.max(committed.min(self.view_start));
        // Whatever was executed before may never have completed at the switch.
        let (position, seq) = (self.executed, self.executed_seq);
        self.uncompleted.push_back(Completion { position, seq, obj_id: ObjectId(0) });
        self.next_beat = now.instant.after(self.beat_ns());
        self.next_switch = now.instant;
        self.next_retry = now.instant.after(RETRY_NS);
        self.say_start_view(sink);
        self.request_leases(now, sink);
        self.execute_committed(now, sink);
    }

    /// To the members that have not asked for the stream yet.
    pub(super) fn say_start_view(&mut self, sink: &mut impl Sink) {
        let Some(end) =
            self.ordered.log.end_at(self.view_start.0.max(self.ordered.log.base().position))
        else {
            return;
        };
        let floor = self.sequence.floor.counter;
        for index in 0..self.followers.len() {
            if index != self.me && self.followers[index].sender.is_none() {
                self.say(index, VrBody::StartView { end, switch: self.switch, floor }, sink);
            }
        }
    }

    pub(super) fn on_start_view(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        end: LogEnd,
        (switch, floor): (SwitchLife, u32),
        sink: &mut impl Sink,
    ) {
        let begun = matches!(self.stage, Stage::Normal | Stage::Starting);
        let known = view < self.view || (view == self.view && begun);
        if known || from != self.leader_of(view) || self.stage == Stage::Recovering {
            return;
        }
        self.leave_view(view);
        self.vr_count.views_joined += 1;
        self.heard_leader_at = now.instant;
        self.catch_up(now, end, (switch, floor), sink);
    }

    /// Takes over the log of the view, which has begun: at once if the own log has it all.
    pub(super) fn catch_up(
        &mut self,
        now: Now,
        end: LogEnd,
        (switch, floor): (SwitchLife, u32),
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
        if self.ordered.log.end_at(end.position) == Some(end) {
            self.ordered.log.cut(end.position);
            self.begin_normal(now.instant);
        } else {
            self.fetch(end);
        }
        self.follow(sink);
    }

    /// The status is normal, and the log that of the view.
    pub(super) fn begin_normal(&mut self, now: Instant) {
        self.stage = Stage::Normal;
        self.last_normal = self.view;
        self.change.failed = 0;
        self.change.best = None;
        self.vr_count.recovered += u64::from(core::mem::take(&mut self.recovering));
        self.note_log_end();
        let me = self.setup.me.node;
        let members = self.config.iter().flat_map(|c| c.members.iter());
        let others = members.filter(|m| m.node != me).map(|m| NodeId(m.node));
        self.leases.open(now, others);
        self.told_end = Position(0);
        self.staged_end = Position(0);
        if self.is_sequenced() {
            self.take_early(now);
        }
    }

    /// The newest number and the newest time in the log, after its end was replaced.
    fn note_log_end(&mut self) {
        self.ordered.last_seq = self.executed_seq;
        self.ordered.last_now_ms = self.base_now_ms;
        let last = self.ordered.log.record(self.ordered.end());
        if let Some(record) = last.and_then(|bytes| Record::parse(bytes).ok()) {
            self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
            // Of the log alone: under NOPaxos every replica computes the next one from it.
            self.ordered.last_now_ms = record.now_ms;
        }
        let now_ms = self.ordered.clock.read(self.local_ms);
        if now_ms < self.ordered.last_now_ms || now_ms - self.ordered.last_now_ms > TIME_KEPT_MS {
            self.ordered.clock.note(self.ordered.last_now_ms, self.local_ms);
        }
    }

    /// Asks the others for a lease of this view. Who answers no reads needs none.
    pub(super) fn request_leases(&mut self, now: Now, sink: &mut impl Sink) {
        self.leases.on_requested(now.instant);
        if !self.is_leader() && !self.is_accelerated() {
            return;
        }
        self.say_all(VrBody::LeaseRequest { asked_at: now.instant.0 }, sink);
    }

    /// `from` asks for a lease, in the newest incarnation that is known of it. One that is not known yet
    /// could be taken for an earlier one, which has left the view: then this replica would vote while
    /// the lease is held.
    pub(super) fn on_lease_request(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (life, asked_at): (Life, u64),
        sink: &mut impl Sink,
    ) {
        if self.stage != Stage::Normal || !self.is_view(view) {
            return;
        }
        self.leases.grant(now.instant, NodeId(self.members()[from].node), life.incarnation);
        self.say(from, VrBody::LeaseGrant { asked_at, to: life }, sink);
    }

    /// `from` grants what incarnation `to` of this node asked for.
    pub(super) fn on_lease_grant(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (to, asked_at): (Life, u64),
        sink: &mut impl Sink,
    ) {
        let is_mine = to == self.lives.mine() || !self.setup.guards.on(Guard::LeaseLife);
        if self.stage == Stage::Normal && self.is_view(view) && is_mine {
            let from = NodeId(self.members()[from].node);
            self.leases.on_grant(now.instant, from, Instant(asked_at));
            self.wake_reads(now, sink);
        }
    }
}
