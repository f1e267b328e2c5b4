//! The dispatch of inputs: clients' packets, the stream of records, configurations, and messages
//! between members.

use alloc::vec::Vec;

use concord_core::{Guard, NodeId, Now, Position, Seq, ViewNumber};
use concord_engine::{Engine, Progress};
use concord_wire::control::{Config, CopyMessage, LogEnd, Member, Membership, Message as _};
use concord_wire::fragment::FragmentHdr;
use concord_wire::link::{self, Ack, Data};
use concord_wire::vr::{CrashVectorEntry, SwitchIncarnation, VrBody, VrMessage};
use concord_wire::{Kind, Op, Packet, Sink, WireError, op};

use super::follower::Follower;
use super::group::MEMBERS_MAX;
use super::queue::Pending;
use super::{CrashVector, QuorumReplica, Stage};
use crate::quorum::nopaxos::sequence::Sequence;
use crate::quorum::vr::change::{Change, Vote};
use crate::quorum::vr::crash_vector::Heard;
use crate::quorum::vr::recovering::Answer;

/// Whether a packet comes from a client, or goes to one.
pub(super) fn is_of_client(packet: &[u8]) -> bool {
    matches!(concord_wire::kind(packet), Ok(Kind::Store))
}

impl<E: Engine> QuorumReplica<E> {
    pub(super) fn take_packet(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        self.recovery.start(now.instant);
        self.local_ms = now.unix_ms;
        let handled = match concord_wire::kind(bytes) {
            Ok(Kind::Store) => self.on_request(now, bytes, sink),
            Ok(Kind::Link) => self.on_link(now, bytes, sink),
            Ok(Kind::Membership) => self.on_membership(now, bytes, sink),
            Ok(Kind::Copy) => self.on_copy(now, bytes, sink),
            Ok(Kind::Vr) => VrMessage::parse(bytes).map(|m| self.on_vr(now, &m, sink)),
            Ok(kind) => self.of_its_switch(now, kind, bytes, sink),
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.count.malformed += 1;
        }
        self.pump_full(now, sink);
    }

    fn on_request(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let packet = Packet::parse(bytes)?;
        match packet.op() {
            Op::Read => self.on_read(now, &packet, sink),
            Op::Write if self.group.is_sequenced() => {
                // Every replica accepts what the switch has numbered, also a retry.
                self.puts_off(now, &packet.repr(), sink);
                self.on_sequenced(now, &packet);
            }
            Op::Write if self.group.checks_replies() => self.count.writes_other_switch += 1,
            Op::Write if self.puts_off(now, &packet.repr(), sink) => {}
            Op::Write => self.on_write(now, &packet.repr(), packet.body()),
            Op::WRest => self.on_wrest(now, &packet, sink)?,
            Op::Pull => {
                let in_force = self.in_force();
                self.serving.pull(now, &packet, in_force, &mut self.count, sink)?;
            }
            Op::WRestAck
            | Op::WriteCompletion
            | Op::WriteReply
            | Op::ReadReply
            | Op::Fragment
            | Op::Push
            | Op::Sweep => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_link(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match op(bytes) {
            link::OP_DATA => self.on_data(now, &Data::parse(bytes)?, sink),
            _ => self.on_ack(now, &Ack::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_membership(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        match Membership::parse(bytes)? {
            Membership::Configure(part) => {
                if let Some(config) = self.assembly.take(part) {
                    self.on_configure(now, config, sink);
                }
            }
            // A controller that lost its state asks.
            Membership::WhoIsWho { client } => {
                if let Some(config) = &self.group.config {
                    config.send(client, &mut self.scratch, sink);
                }
            }
            Membership::ChangeVoter { client, number, change } => {
                self.on_change_voter(now, (client, number), change, sink);
            }
            Membership::WasDurable { incarnation, held } => {
                self.on_was_durable(now, incarnation, held, sink);
            }
            Membership::ReplicaAlive(_)
            | Membership::VoterAlive { .. }
            | Membership::VotersTold(_)
            | Membership::Compared { .. }
            | Membership::SwitchAlive { .. }
            | Membership::EpochState { .. }
            | Membership::Open { .. }
            | Membership::Opened { .. }
            | Membership::Reach { .. }
            | Membership::SwitchRetired { .. } => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_copy(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match CopyMessage::parse(bytes)? {
            CopyMessage::Fetch { .. }
            | CopyMessage::Fetched { .. }
            | CopyMessage::Resume { .. }
            | CopyMessage::Resumed { .. }
            | CopyMessage::LogMismatch { .. } => self.count.unexpected += 1,
            CopyMessage::Ask { epoch, from, attempt, part, index } => {
                let from = self.group.index_of(NodeId(from));
                if let Some(from) = from.filter(|_| epoch == self.view.0) {
                    self.on_copy_ask(now.instant, from, attempt, (part, index), sink);
                }
            }
            CopyMessage::Piece { epoch, attempt, part, position, total_bytes, index, piece } => {
                if epoch == self.view.0 {
                    let hdr = FragmentHdr { version: position, total_bytes, index, count: 1 };
                    self.on_copy_piece(now, (attempt, part), hdr, &piece, sink);
                }
            }
        }
        Ok(())
    }

    /// Handles a configuration: the group at first, later only another switch.
    fn on_configure(&mut self, now: Now, config: Config, sink: &mut impl Sink) {
        let is_old = config.epoch <= self.group.epoch();
        if self.stage == Stage::Left || !config.kind.is_quorum() || is_old {
            return;
        }
        let own =
            |m: &Member| (m.node, m.incarnation) == (self.setup.me.node, self.setup.me.incarnation);
        let config = match self.group.renew(config) {
            Ok(()) => return self.take_switch(now, sink),
            Err(config) => config,
        };
        if self.group.is_known() {
            // The group was given up with its data. This process is a founder of the next one, or
            // has no place in it.
            if !config.members.iter().any(own) {
                return self.fail_stop();
            }
            self.give_up_group();
        }
        if self.gives_up && !self.begin_anew() {
            // The controller repeats the configuration.
            return;
        }
        self.join(now, config);
        self.take_switch(now, sink);
    }

    /// Begins to give up the state here: the controller has founded another group with this process
    /// as a member. The engine may still be busy.
    fn give_up_group(&mut self) {
        self.leave_view(ViewNumber(0));
        self.group.forget();
        (self.stage, self.gives_up) = (Stage::Out, true);
        self.recovery.end();
        self.copying = None;
    }

    /// Forgets the earlier group once nothing waits for the engine. Returns false until then.
    fn begin_anew(&mut self) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        self.gives_up = false;
        if self.serving.forget() == Progress::Pending {
            self.pending.push_back(Pending::Install);
        }
        self.stand_at(LogEnd::default(), Seq::NONE, (0, 0));
        (self.origin_end, self.told_committed) = (Position(0), Position(0));
        self.journal.reset(self.setup.guards);
        (self.switch, self.last_normal) = (SwitchIncarnation::default(), ViewNumber(0));
        (self.sequence, self.change) = (Sequence::default(), Change::default());
        self.serving.forget_writes();
        self.leading.forget_positions();
        true
    }

    /// Handles the first configuration. A founder begins in the first view with an empty log; a
    /// later process in its node's place has lost the founder's log and promises (trap T4).
    fn join(&mut self, now: Now, config: Config) {
        let me = self.setup.me;
        let found = config.members.iter().position(|m| m.node == me.node);
        let Some(index) = found.filter(|_| config.members.len() <= MEMBERS_MAX) else { return };
        let founder = config.members[index].incarnation == me.incarnation
            || !self.setup.guards.on(Guard::Incarnation);
        let entry = |m: &Member| CrashVectorEntry { count: 0, incarnation: m.incarnation };
        let mut known: Vec<CrashVectorEntry> = config.members.iter().map(entry).collect();
        if !founder {
            known[index] = CrashVectorEntry { count: 1, incarnation: me.incarnation };
        }
        self.crash_vector = CrashVector::new(known, index, self.setup.guards);
        self.suspicion.enter_group(now.instant, config.members.len());
        self.recovery.enter_group(config.members.len());
        self.group.enter(config, index);
        self.ballot.new_term();
        self.view = self.setup.limits.first_view;
        self.next_retry = now.instant;
        if founder {
            // The first view is above the numbers in a restored log, which are views under FLAIR
            // (trap T28).
            let used = self.ordered.last_seq.switch_id.0;
            self.view = self.view.max(ViewNumber(used.saturating_add(1)));
            // The first term has a leader without an election.
            self.take_leader(self.group.operation_of(self.view));
            self.begin_normal(now.instant);
        } else {
            self.begin_recovery();
        }
    }

    /// Begins a view with the same leader for a switch that the present view does not have. A
    /// follower passes the switch on to its leader.
    pub(super) fn take_switch(&mut self, now: Now, sink: &mut impl Sink) {
        if self.stage != Stage::Normal || self.group.known_switch().id <= self.switch.id {
            return;
        }
        if self.is_leader() && self.group.elects() {
            self.stand(now, true, sink);
        } else if self.is_leader() {
            self.enter_view(now, self.next_view(self.group.members().len()), sink);
        } else if let Some((config, leader)) =
            self.group.config.as_ref().zip(self.group.leader_addr(self.view))
        {
            config.send(leader, &mut self.scratch, sink);
        }
    }

    fn on_vr(&mut self, now: Now, message: &VrMessage, sink: &mut impl Sink) {
        let from = self.group.members().iter().position(|m| m.node == message.from);
        let Some(from) = from.filter(|from| *from != self.group.me()) else {
            self.count.unexpected += 1;
            return;
        };
        if message.group != self.group.id() || matches!(self.stage, Stage::Out | Stage::Left) {
            self.vr_count.other_view += 1;
            return;
        }
        let judged = match message.body {
            VrBody::LeaseRequest { .. } | VrBody::LeaseGrant { .. } | VrBody::ReadLease { .. } => {
                self.setup.guards.on(Guard::LeaseIncarnation)
            }
            VrBody::Retire { .. } => self.setup.guards.on(Guard::Release),
            _ => true,
        };
        if judged && !self.is_of_known_incarnation(now, from, message, sink) {
            return;
        }
        self.recovery.hear(now.instant, from);
        let view = ViewNumber(message.view);
        match message.body {
            VrBody::Suspect | VrBody::DoViewChange { .. } if self.group.elects() => {
                self.count.unexpected += 1;
            }
            VrBody::StartViewChange if self.group.elects() => {
                self.on_term_entered(now, (from, view), sink);
            }
            VrBody::Suspect => self.on_suspect(now, from, view, sink),
            VrBody::StartViewChange => self.on_start_view_change(now, from, view, sink),
            VrBody::DoViewChange { last_normal, end, committed, switch } => {
                let last_normal = ViewNumber(last_normal);
                let vote = Vote { last_normal, end, committed: Position(committed), switch };
                self.on_do_view_change(now, from, view, vote, sink);
            }
            VrBody::StartView { end, switch, floor } => {
                self.on_start_view(now, (from, view), end, (switch, floor), sink);
            }
            VrBody::Lacks { position, count } => {
                self.on_lacks((from, view), (position, count), sink);
            }
            VrBody::Follow { stream, end, committed } => {
                self.on_follow(now, (from, view), stream, [end, committed], sink);
            }
            VrBody::LogMismatch { stream, base } => {
                self.on_log_mismatch_message(now, (from, view), (stream, base), sink);
            }
            VrBody::LeaseRequest { asked_at } => {
                let entry = message.crash_vector.get(from).copied().unwrap_or_default();
                self.on_lease_request(now, (from, view), (entry, asked_at), sink);
            }
            VrBody::LeaseGrant { asked_at, to } => {
                self.on_lease_grant(now, (from, view), (to, asked_at), sink);
            }
            VrBody::ReadLease { asked_at, to, floor } => {
                self.on_read_lease(now, (from, view), (to, asked_at), floor);
            }
            VrBody::AskLogEnd { round } => self.on_ask_log_end((from, view), round, sink),
            VrBody::LogEndIs { round, end } => {
                let to = message.crash_vector.get(self.group.me()).copied().unwrap_or_default();
                self.on_log_end(now, (from, view), to, (round, Position(end)), sink);
            }
            VrBody::Retire { released } => {
                let entry = message.crash_vector.get(from).copied().unwrap_or_default();
                self.on_retire(now, from, entry.incarnation, released, sink);
            }
            VrBody::PreVote { .. }
            | VrBody::PreVoted { .. }
            | VrBody::RequestVote { .. }
            | VrBody::Voted { .. }
            | VrBody::TimeoutNow => self.on_election(now, (from, view), message.body, sink),
            VrBody::Recovery => self.on_recovery(from, sink),
            VrBody::RecoveryResponse { leader } => {
                let answer = Answer { view, leader, voters: None };
                self.on_recovery_response(from, &message.crash_vector, answer);
            }
            VrBody::VotersAre { end, switch, voters, before } => {
                let (leader, voters) = (Some((end, switch, 0)), Some([voters, before]));
                let answer = Answer { view, leader, voters };
                self.on_recovery_response(from, &message.crash_vector, answer);
            }
        }
    }

    /// Raft: handles a message of an election.
    fn on_election(
        &mut self,
        now: Now,
        sent: (usize, ViewNumber),
        body: VrBody,
        sink: &mut impl Sink,
    ) {
        match body {
            _ if !self.group.elects() => self.count.unexpected += 1,
            VrBody::PreVote { last } => self.on_pre_vote(now, sent, last, sink),
            VrBody::PreVoted { granted } => self.on_pre_voted(now, sent, granted, sink),
            VrBody::RequestVote { last, handed } => {
                self.on_request_vote(now, sent, (last, handed), sink);
            }
            VrBody::Voted { granted, committed, switch } => {
                self.on_voted(now, sent, granted, (Position(committed), switch), sink);
            }
            _ => self.on_timeout_now(now, sent, sink),
        }
    }

    /// Merges a message's crash vector. Returns whether the message counts.
    fn is_of_known_incarnation(
        &mut self,
        now: Now,
        from: usize,
        message: &VrMessage,
        sink: &mut impl Sink,
    ) -> bool {
        match self.crash_vector.hear(from, &message.crash_vector) {
            Heard::Fresh(renewed) => {
                let leader = self.group.leader_of(self.view);
                if leader.is_some_and(|leader| renewed & (1 << leader) != 0) {
                    self.lose_leader(now);
                }
                self.forget_incarnations(renewed);
                true
            }
            Heard::Superseded => {
                self.come_again(now, message.crash_vector[self.group.me()], sink);
                false
            }
            Heard::Stale => {
                self.vr_count.stale_lives += 1;
                let asks = matches!(message.body, VrBody::Recovery | VrBody::LeaseRequest { .. });
                if asks && self.stage == Stage::Normal {
                    // The sender learns from the vector that it has to give its incarnation a
                    // higher number.
                    self.say(from, VrBody::RecoveryResponse { leader: None }, sink);
                }
                false
            }
        }
    }

    /// Forgets the messages of members' earlier incarnations.
    fn forget_incarnations(&mut self, renewed: u64) {
        if renewed == 0 || !self.setup.guards.on(Guard::CrashVector) {
            return;
        }
        for index in (0..self.group.members().len()).filter(|i| renewed & (1 << i) != 0) {
            self.recovery.forget(index);
            self.suspicion.forget(index);
            self.change.forget(index);
            self.ballot.forget(index);
            // Under NOPaxos an earlier incarnation may have logged writes that this leader lacks,
            // which recovery does not bring back.
            self.end_feed(index);
            if let Some(follower) = self.leading.followers.get_mut(index) {
                *follower = Follower::default();
            }
        }
    }
}
