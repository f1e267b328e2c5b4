//! Reads: answered by any replica alone, if the switch says so (fast), or by the leader (slow).
//!
//! Harmonia §8.3, P1: a replica that has not executed up to a fast read's last-committed point
//! would answer with an old value, so it passes the read to the leader. P2 holds without a check,
//! since VR executes only committed records, except for scripts of a server
//! ([`crate::quorum::scripts::decide`]). The leader answers under its lease, once it has executed
//! the log with which its view began.

use alloc::vec::Vec;

use concord_core::{Guard, Instant, Now, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::vr::{CrashVectorEntry, VrBody};
use concord_wire::{Flags, Packet, Reason, Repr, Sink};

use crate::pending::PendingRead;
use crate::quorum::queue::Pending;
use crate::quorum::scripts::withheld::Ready;
use crate::quorum::{QuorumReplica, Stage};
use crate::serve::Read;
use crate::setup::{RETRY_NS, SlowReads};

impl<E: Engine> QuorumReplica<E> {
    pub(in crate::quorum) fn on_read(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) {
        if self.stage != Stage::Normal {
            self.count.reads_dropped += 1;
            return;
        }
        let mut repr = packet.repr();
        let forwarded = repr.flags.has(Flags::FORWARDED);
        if self.has_quorum_reads() {
            return self.read_by_quorum(now, &repr, packet.body(), sink);
        }
        if self.group.checks_replies() && !forwarded {
            // The read did not pass the switch.
            self.count.reads_misrouted += 1;
            return;
        }
        if repr.flags.has(Flags::FAST) && !forwarded {
            match self.refuse_fast(now.instant, &repr) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, packet.body(), Reason::Fast, sink);
                }
                Some(reason) => repr.reason = reason,
            }
        } else if !forwarded && !self.is_leader() && self.has_follower_leases() {
            match self.refuse_leased(now.instant, &repr) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, packet.body(), Reason::Leased, sink);
                }
                Some(reason) => repr.reason = reason,
            }
        } else if !forwarded && !self.is_leader() {
            self.count.reads_misrouted += 1;
        }
        // One hop at most, and only within the view (trap T2).
        if self.is_leader() && (!forwarded || repr.epoch == self.epoch()) {
            self.read_slow(now, &repr, packet.body(), sink);
        } else if forwarded {
            self.count.reads_dropped += 1;
        } else {
            self.forward(&repr, packet.body(), sink);
        }
    }

    /// Whether no later view can have begun, since a quorum, with this replica, is in this one.
    pub(in crate::quorum) fn is_leased(&self, now: Instant) -> bool {
        self.has_quorum_of_leases(now) || !self.setup.guards.on(Guard::Lease)
    }

    /// Raft: the leader's grant has to be among them. It shows that this replica knows the newest
    /// configuration or the one before, and so whom to count ([`crate::quorum::raft::membership`]).
    pub(in crate::quorum) fn has_quorum_of_leases(&self, now: Instant) -> bool {
        let held = self.leases.held_of(now, |node| self.group.has_voter(node));
        held + self.group.own_vote() >= self.group.quorum() && self.has_leaders_grant(now)
    }

    fn has_leaders_grant(&self, now: Instant) -> bool {
        if !self.group.elects() || self.is_leader() || !self.setup.guards.on(Guard::LeaderGrant) {
            return true;
        }
        let leader = self.group.leader_of(self.view).map(|leader| self.group.node_of(leader));
        self.leases.held_of(now, |node| Some(node) == leader) > 0
    }

    /// The time of the newest request that the rest of a quorum has granted.
    fn confirmed_at(&self) -> Option<Instant> {
        let others = self.group.quorum() - self.group.own_vote();
        self.leases.confirmed_by(others, |node| self.group.has_voter(node))
    }

    /// The reason for which a fast read may not be answered here.
    fn refuse_fast(&mut self, now: Instant, repr: &Repr) -> Option<Reason> {
        if !self.is_leased(now) {
            self.count.refused_lease += 1;
            Some(Reason::RefusedLease)
        } else if repr.last_committed.switch_id.0 != self.switch.id {
            self.count.refused_switch += 1;
            Some(Reason::RefusedSwitch)
        } else if repr.last_committed > self.executed_seq && self.setup.guards.on(Guard::Visibility)
        {
            self.vr_count.refused_behind += 1;
            Some(Reason::RefusedBehind)
        } else if repr.last_committed < self.scripts.newest()
            && self.setup.guards.on(Guard::ScriptKnown)
        {
            self.count.refused_newer += 1;
            Some(Reason::RefusedNewer)
        } else {
            None
        }
    }

    pub(in crate::quorum) fn forward(&mut self, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        let Some(to) = self.group.leader_addr(self.view) else { return };
        let forwarded = Repr {
            flags: repr.flags.with(Flags::FORWARDED).without(Flags::FAST),
            epoch: self.epoch(),
            node: self.group.node(),
            ..*repr
        };
        forwarded.emit(body, &mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// Answers a slow read. The leader's answer shows every write that was acknowledged before, in
    /// this view or an earlier one: it has executed those of its view, and waits for those with
    /// which the view began.
    pub(in crate::quorum) fn read_slow(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        if self.executed >= self.leading.view_start() && self.leads_at(now.instant, now.instant) {
            return self.answer_slow(now, repr, body, sink);
        }
        let packet = || {
            let mut packet = Vec::new();
            repr.emit(body, &mut packet);
            packet
        };
        if self.leading.push_read(now.instant, packet) {
            self.vr_count.reads_waited_leader += 1;
        } else {
            self.count.reads_dropped += 1;
        }
    }

    fn answer_slow(&mut self, now: Now, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        // A switch that checks replies counts its leader among the holders.
        let is_fast = self.group.checks_replies() && repr.flags.has(Flags::FAST);
        self.count.reads_fast += u64::from(is_fast);
        self.count.reads_slow += u64::from(!is_fast);
        self.read(now, repr, body, repr.reason, sink);
    }

    /// Answers the waiting reads that may be answered now.
    pub(in crate::quorum) fn wake_reads(&mut self, now: Now, sink: &mut impl Sink) {
        self.wake_quorum_reads(now, sink);
        let has_begun = self.executed >= self.leading.view_start();
        if !self.is_leader() || !has_begun {
            return;
        }
        let Some(upto) = self.led_until(now.instant) else { return };
        while let Some((_, bytes)) = self.leading.pop_read(upto) {
            if let Ok(packet) = Packet::parse(&bytes) {
                self.answer_slow(now, &packet.repr(), packet.body(), sink);
            }
        }
    }

    /// The latest time at which this replica surely led: reads that arrived by then may be
    /// answered.
    fn led_until(&self, now: Instant) -> Option<Instant> {
        match self.setup.reads {
            SlowReads::LeaderLease | SlowReads::FollowerLease => {
                self.is_leased(now).then_some(Instant::NEVER)
            }
            SlowReads::ReadIndex | SlowReads::Quorum if self.setup.guards.on(Guard::ReadRound) => {
                self.confirmed_at()
            }
            // Quorum reads need no leader; reads that the leader answers instead need no clock.
            SlowReads::ReadIndex | SlowReads::Quorum => Some(Instant::NEVER),
        }
    }

    fn leads_at(&self, now: Instant, came_at: Instant) -> bool {
        self.led_until(now).is_some_and(|until| came_at <= until)
    }

    /// ReadIndex (Raft §8): asks the others whether this replica still leads, once for all reads
    /// that wait now. Their answers are leases as well, whose duration does not matter here.
    pub(in crate::quorum) fn confirm_reads(&mut self, now: Now, sink: &mut impl Sink) {
        let asks = matches!(self.setup.reads, SlowReads::ReadIndex | SlowReads::Quorum);
        if !asks || !self.is_leader() {
            return;
        }
        let confirmed = self.confirmed_at();
        if self.leading.is_round_due(now.instant, confirmed, RETRY_NS) {
            self.vr_count.reads_confirmed += 1;
            self.request_leases(now, sink);
        }
    }

    /// Whether any replica answers reads after asking a quorum.
    fn has_quorum_reads(&self) -> bool {
        let is_open = self.group.elects() && !self.group.has_readers();
        self.setup.reads == SlowReads::Quorum && is_open
    }

    /// Answers a read by asking a quorum. Every write that was acknowledged before the read is in
    /// the log of some member of any quorum, and so not after the highest end of a quorum's logs.
    /// The answer depends on no term and no clock.
    fn read_by_quorum(&mut self, now: Now, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        if !self.setup.guards.on(Guard::QuorumEnd) {
            return self.read(now, repr, body, Reason::Quorum, sink);
        }
        let forwarded = repr.flags.has(Flags::FORWARDED);
        if self.sees_scripts() && !self.is_leader() && !forwarded {
            return self.forward(repr, body, sink);
        }
        let packet = || {
            let mut packet = Vec::new();
            repr.emit(body, &mut packet);
            packet
        };
        if !self.quorum_reads.push(packet) {
            self.count.reads_dropped += 1;
        }
    }

    /// Asks the others for the ends of their logs, if reads wait for that.
    pub(in crate::quorum) fn ask_log_ends(&mut self, now: Now, sink: &mut impl Sink) {
        if self.stage != Stage::Normal || !self.has_quorum_reads() {
            return;
        }
        let members = self.group.members().len();
        let Some(round) = self.quorum_reads.ask(now.instant, members, RETRY_NS) else { return };
        self.vr_count.quorum_asked += 1;
        self.say_all(VrBody::AskLogEnd { round }, sink);
        let own = (self.group.me(), round);
        self.quorum_reads.on_end(own, self.ordered.end(), self.voters_in_force());
        self.wake_quorum_reads(now, sink);
    }

    pub(in crate::quorum) fn on_ask_log_end(
        &mut self,
        (from, view): (usize, ViewNumber),
        round: u64,
        sink: &mut impl Sink,
    ) {
        if self.stage == Stage::Normal && self.is_view(view) {
            self.say(from, VrBody::LogEndIs { round, end: self.ordered.end().0 }, sink);
        }
    }

    /// Handles a member's answer; `to` is the newest incarnation of this node that it knew.
    pub(in crate::quorum) fn on_log_end(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        to: CrashVectorEntry,
        (round, end): (u64, Position),
        sink: &mut impl Sink,
    ) {
        // The numbers of questions begin anew with each process: an answer to an earlier one is
        // older than the reads here.
        let is_mine =
            to == self.crash_vector.mine() || !self.setup.guards.on(Guard::QuorumIncarnation);
        if !is_mine {
            self.vr_count.stale_lives += 1;
        } else if self.stage == Stage::Normal && self.is_view(view) {
            self.quorum_reads.on_end((from, round), end, self.voters_in_force());
            self.wake_quorum_reads(now, sink);
        }
    }

    /// The voters, and the position of their configuration.
    fn voters_in_force(&self) -> (u64, Position) {
        (self.group.voters(), self.read_voters_at())
    }

    fn read_voters_at(&self) -> Position {
        let is_on = self.setup.guards.on(Guard::QuorumVoters);
        if is_on { self.group.voters.position() } else { Position(0) }
    }

    fn wake_quorum_reads(&mut self, now: Now, sink: &mut impl Sink) {
        while self.stage == Stage::Normal
            && let Some(bytes) = self.quorum_reads.pop(self.executed, self.read_voters_at())
        {
            let Ok(packet) = Packet::parse(&bytes) else { continue };
            let repr = packet.repr();
            // A script may have been executed here since the read arrived.
            if self.sees_scripts() && !self.is_leader() {
                if repr.flags.has(Flags::FORWARDED) {
                    self.count.reads_dropped += 1;
                } else {
                    self.forward(&repr, packet.body(), sink);
                }
                continue;
            }
            self.count.reads_fast += u64::from(!self.is_leader());
            self.count.reads_slow += u64::from(self.is_leader());
            self.read(now, &repr, packet.body(), Reason::Quorum, sink);
        }
    }

    /// Whether an answer may show the effect of a server's script that a quorum may not know.
    fn sees_scripts(&self) -> bool {
        self.setup.replicate_replies && self.scripts.are_any()
    }

    pub(in crate::quorum) fn read(
        &mut self,
        now: Now,
        repr: &Repr,
        command: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) {
        let operation = PendingRead::of(repr, reason);
        let (asked, in_force) = ((repr, command), self.in_force());
        match self.serving.read(now, &operation, asked, in_force, &mut self.count, sink) {
            Read::Refused => {}
            Read::Waits => {
                let command =
                    if in_force.checked.is_some() { command.to_vec() } else { Vec::new() };
                let led = self.is_leader();
                self.pending.push_back(Pending::Read { operation, command, led });
            }
            Read::Done => {
                let reply = core::mem::take(&mut self.serving.reply);
                self.answer_read(now, operation, (&reply, command), sink);
                self.serving.reply = reply;
            }
        }
    }

    /// Sends the answer to a read that the engine has executed, unless it may show an undecided
    /// script.
    pub(in crate::quorum) fn answer_read(
        &mut self,
        now: Now,
        operation: PendingRead,
        (reply, command): (&[u8], &[u8]),
        sink: &mut impl Sink,
    ) {
        if let Some(script) = self.withholds() {
            return self.withheld.push(script, Ready::Read(operation, reply.to_vec()));
        }
        // The switch does not check the leader's answers, so that none is asked again.
        let command = if self.is_leader() { &[] } else { command };
        let in_force = self.in_force();
        self.serving.answer(now, &operation, (reply, command), in_force, &mut self.count, sink);
    }
}
