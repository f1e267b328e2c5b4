//! VR and Raft with a switch that runs FLAIR: the replica's side.
//!
//! A session is a view: each view has one leader and one switch, its number is never reused, and no
//! lease of an earlier view is valid once it has begun (traps T26, T28). A request has its session
//! in its number, and is irrelevant in another one.

use concord_core::{Duration, Guard, Instant, MS, Now, Position, Seq, SwitchId};
use concord_engine::Engine;
use concord_wire::control::Message as _;
use concord_wire::flair::{
    CaughtUp, Followers, Group, Heartbeat, OP_PROBE, Packet, REPLICAS_MAX, SessionMessage, Sid,
};
use concord_wire::{Checked, Flags, GroupId, Kind, Op, Reason, Repr, Sink, WireError, op};

use super::follower::Follower;
use super::{QuorumReplica, Stage};
use crate::flair::Speaker;
use crate::pending::PendingWrite;

/// The time for which a session waits for followers that lag: a follower that lacks a part of the
/// log at its start gets no reads of a key group before the group is written.
const PATIENCE_NS: Duration = 100 * MS;
/// The time for which it waits for silent ones: usually that is the earlier leader, which is dead.
const UNHEARD_NS: Duration = 20 * MS;

impl<E: Engine> QuorumReplica<E> {
    /// The upper half of writes' numbers: the switch id, or the session.
    pub(super) fn numbering(&self) -> u32 {
        if self.group.checks_replies() { self.view.0 } else { self.switch.id }
    }

    /// Handles packets that only a switch that checks replies sends.
    pub(super) fn of_its_switch(
        &mut self,
        now: Now,
        kind: Kind,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        match kind {
            Kind::Flair => self.on_checked(now, bytes, sink),
            Kind::FlairSession => self.on_session(now, bytes),
            _ => {
                self.count.unexpected += 1;
                Ok(())
            }
        }
    }

    /// Handles a request that the switch has numbered or stamped, or its answer to a heartbeat.
    fn on_checked(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        if !self.group.checks_replies() {
            self.count.unexpected += 1;
            return Ok(());
        }
        if op(bytes) == OP_PROBE {
            self.session.on_probe(&Heartbeat::parse_probe(bytes)?);
            return Ok(());
        }
        let packet = Packet::parse(bytes)?;
        let hdr = packet.repr();
        let is_other =
            (hdr.switch.0, Sid::of(hdr.common.seq)) != (self.switch.id, Sid(self.view.0));
        if is_other && self.setup.guards.on(Guard::SwitchSession) {
            self.vr_count.other_session += 1;
            return Ok(());
        }
        match hdr.common.op {
            Op::Write if self.puts_off(now, &hdr.common, sink) => {}
            Op::Write => self.on_write(now, &hdr.common, packet.body()),
            Op::Read => self.read_checked(now, &hdr.common, (hdr.log_idx, packet.command()), sink),
            _ => self.count.unexpected += 1,
        }
        Ok(())
    }

    /// advance_then_read (§4.3.4): a follower executes as far as the switch says the log is
    /// committed, and answers. The leader answers as usual.
    fn read_checked(
        &mut self,
        now: Now,
        asked: &Repr,
        (log_idx, command): (Position, &[u8]),
        sink: &mut impl Sink,
    ) {
        if self.stage != Stage::Normal {
            self.count.reads_dropped += 1;
            return;
        }
        if self.is_leader() {
            return self.read_slow(now, asked, command, sink);
        }
        let mut repr = *asked;
        if repr.flags.has(Flags::FAST) {
            // This log is a prefix of the leader's, as the leader has said, so that its records may
            // be executed (trap T29, in `learn_committed`). The leader reports the commit of
            // records that are not here yet, so that it need not be remembered.
            self.learn_committed(now, log_idx.min(self.ordered.end()), sink);
            match self.refuse_checked(now, log_idx) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, command, Reason::Fast, sink);
                }
                Some(reason) => repr.reason = reason,
            }
        } else {
            self.count.reads_misrouted += 1;
        }
        self.forward(&repr, command, sink);
    }

    /// The reason for which a follower does not answer.
    fn refuse_checked(&mut self, now: Now, log_idx: Position) -> Option<Reason> {
        if self.stage != Stage::Normal || !self.is_leased(now.instant) {
            self.count.refused_lease += 1;
            Some(Reason::RefusedLease)
        } else if self.executed < log_idx && self.setup.guards.on(Guard::Visibility) {
            self.vr_count.refused_behind += 1;
            Some(Reason::RefusedBehind)
        } else if self.scripts.newest() != Seq::NONE && self.setup.replicate_replies {
            // The leader knows whether a quorum knows the scripts' outcomes.
            self.count.refused_newer += 1;
            Some(Reason::RefusedNewer)
        } else {
            None
        }
    }

    /// The fields for the switch in the reply to a write.
    pub(super) fn checked(&self, operation: &PendingWrite) -> Checked {
        let concerns = [Flags::WILDCARD, Flags::REGISTER, Flags::NOOP, Flags::INTERNAL];
        let flags = concerns.into_iter().filter(|flag| operation.asked.flags.has(*flag));
        Checked {
            seq: operation.asked.seq,
            switch: SwitchId(self.switch.id),
            flags: flags.fold(Flags(0), Flags::with),
            log_idx: operation.position,
            cflwrs: self.holders(operation.position),
        }
    }

    /// Leader: the replicas that have its log up to `position`.
    fn holders(&self, position: Position) -> Followers {
        let (me, is_checked) = (self.group.me(), self.setup.guards.on(Guard::MatchedPrefix));
        let has = |(index, acked): (usize, Position)| {
            let is_here = acked >= position || !is_checked;
            index == me || (is_here && self.group.is_voter(index))
        };
        let all = self.leading.followers.iter().map(|f| f.acked).enumerate();
        let holders = all.take(REPLICAS_MAX).filter(|member| has(*member));
        holders.fold(Followers::default(), |set, (index, _)| set.with(index))
    }

    /// Leader: the replicas that keep up, and the position that all of them have. The reply to a
    /// write names the quorum that had it first; this adds the others once they have it. The
    /// position never decreases, so that the switch knows the newest.
    fn caught_up(&mut self, now: Instant) -> CaughtUp {
        let log_idx = self.session.kept_up_to(now, self.committed);
        CaughtUp { log_idx, followers: self.holders(log_idx) }
    }

    /// Handles the switch's confirmation of a step of the session's start.
    fn on_session(&mut self, now: Now, bytes: &[u8]) -> Result<(), WireError> {
        let message = SessionMessage::parse(bytes)?;
        if self.is_leader() {
            self.session.on_confirmed(now.instant, &message);
        }
        Ok(())
    }

    /// Notes the number of packets that wait at this replica's host after a batch, before the
    /// batch's end. A follower reports it to its leader in acknowledgements (§4.4.2).
    pub fn note_queue(&mut self, packets: usize) {
        if !self.group.checks_replies() {
            return;
        }
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        if self.is_leader() {
            self.session.note_queue(self.group.me(), packets);
        } else {
            self.queue.note(packets);
        }
    }

    /// Leader: begins the view's session once the log with which the view began is executed, and
    /// keeps it alive.
    pub(super) fn mind_session(&mut self, now: Now, sink: &mut impl Sink) {
        let members = self.group.members().len();
        if !self.group.checks_replies() || self.switch.id == 0 || members > REPLICAS_MAX {
            return;
        }
        if !self.session.is_begun() {
            let end = self.ordered.end();
            let is_settled = self.executed >= self.leading.view_start() && self.executed == end;
            let begun_ns = now.instant.since(self.leading.begun_at());
            let is_awaited = |f: &Follower| match f.heard_at {
                Some(_) => begun_ns < PATIENCE_NS,
                None => begun_ns < UNHEARD_NS,
            };
            let mut lag = self.leading.followers.iter().enumerate();
            let lags = |(index, f): &(usize, &Follower)| {
                let is_other = *index != self.group.me() && self.group.is_voter(*index);
                is_other && f.acked < end && is_awaited(f)
            };
            if !is_settled || lag.any(|follower| lags(&follower)) {
                return;
            }
            let replicas = self.group.members().iter().map(|m| m.node).collect();
            let followers = self.holders(end);
            let group = Group { log_idx: end.0, followers, is_stable: true };
            let at = (SwitchId(self.switch.id), Sid(self.view.0));
            self.session.begin(now.instant, at, replicas, group);
            self.leading.begin_session(self.group.voters());
            self.vr_count.sessions_begun += 1;
        }
        if now.instant < self.session.next_at() {
            return;
        }
        let caught_up = self.caught_up(now.instant);
        let group = self.group.config.as_ref().map_or(GroupId::FIRST, |c| c.group);
        let (node, view, weigh_ns) = (self.group.node(), self.epoch(), self.setup.weigh_ns);
        let by = Speaker { node, view, group, weigh_ns, caught_up };
        let to = self.switch.addr;
        self.session.tell(now.instant, by, &mut self.scratch, |packet| sink.send(to, packet));
    }
}
