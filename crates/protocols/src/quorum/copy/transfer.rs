//! State transfer (VRR §5.2): a replica that lacks records asks for a stream of them
//! ([`crate::quorum::copy::inbound`]), from the leader or, as a new leader, from the replica with
//! the best log.

use concord_core::{Guard, NodeId, Now, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::LogEnd;
use concord_wire::record::Record;
use concord_wire::vr::VrBody;

use crate::link::{BrokenStream, Sender};
use crate::quorum::copy::inbound::AskAgain;
use crate::quorum::{QuorumReplica, Stage};

impl<E: Engine> QuorumReplica<E> {
    /// Begins to fetch a log that ends at `target`.
    pub(in crate::quorum) fn fetch(&mut self, target: LogEnd) {
        let offered = [self.ordered.log.end(), self.committed_end()];
        self.inbound.fetch(target, offered);
    }

    /// Asks for a new stream from the replica that this one follows: the leader of its view or, as
    /// a new leader, the replica with the best log.
    pub(in crate::quorum) fn follow(&mut self, sink: &mut impl Sink) {
        let from = match self.change.best() {
            Some(best) if self.stage == Stage::ViewChange => Some(best),
            _ => self.group.leader_of(self.view),
        };
        let peer = from.and_then(|from| self.group.members().get(from));
        let Some(peer) = peer.map(|m| NodeId(m.node)) else { return };
        self.inbound.follow(peer);
        if let Some(target) = self.inbound.target() {
            self.fetch(target);
        }
        self.say_follow(sink);
    }

    /// Asks again for the stream that was not seen yet; finally for another one, since the sender
    /// may have begun it and given it up.
    pub(in crate::quorum) fn ask_again(&mut self, sink: &mut impl Sink) {
        match self.inbound.ask_again() {
            AskAgain::No => {}
            AskAgain::Same => self.say_follow(sink),
            AskAgain::Another => self.follow(sink),
        }
    }

    pub(in crate::quorum) fn say_follow(&mut self, sink: &mut impl Sink) {
        let Some(peer) = self.inbound.peer() else { return };
        self.inbound.on_asked();
        let (end, committed) = (self.ordered.log.end(), self.committed_end());
        let follow = VrBody::Follow { stream: self.inbound.stream(), end, committed };
        if let Some(to) = self.group.index_of(peer) {
            self.say(to, follow, sink);
        }
    }

    /// Another replica asks for a stream: from the leader or, for a new leader, from the replica
    /// with the best log.
    pub(in crate::quorum) fn on_follow(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        stream: u16,
        ends: [LogEnd; 2],
        sink: &mut impl Sink,
    ) {
        let leads = self.is_leader();
        let helps =
            self.stage == Stage::ViewChange && Some(from) == self.group.leader_of(self.view);
        if view != self.view || !(leads || helps) {
            return;
        }
        if self.is_used(leads.then_some(from), stream) {
            return;
        }
        let is_known = |e: &LogEnd| self.ordered.log.hash_at(Position(e.position)) == Some(e.hash);
        let Some(end) = ends.into_iter().find(is_known) else {
            return self.say_log_mismatch(from, stream, sink);
        };
        let to = self.group.members()[from];
        let has = Position(end.position);
        let node = NodeId(to.node);
        let mut sender = Sender::new(self.group.node(), self.epoch(), (node, to.addr), has, 0);
        sender.stream = stream;
        let told = self.commit_point();
        let (log, scratch) = (&self.ordered.log, &mut self.scratch);
        let upto = Position(log.end().position);
        sender.pump(now.instant, log, upto, told, scratch, sink);
        if leads {
            self.leading.followers[from].streamed = Some(stream);
            self.leading.followers[from].sender = Some(sender);
            self.leading.followers[from].heard_at = Some(now.instant);
            self.leading.hurry_switch(now.instant);
        } else {
            self.helper = Some(sender);
        }
    }

    /// Whether a stream of that number, or of a later one, was begun in this view, for a follower
    /// or for the new leader. A late question for an earlier one would end the stream that its
    /// receiver reads; one for the same number would restart it without the receiver's knowledge. A
    /// question that was answered by a log mismatch began none: its answer may have been lost.
    fn is_used(&self, follower: Option<usize>, stream: u16) -> bool {
        let sender = match follower {
            Some(from) => self.leading.followers[from].sender.as_ref(),
            None => self.helper.as_ref(),
        };
        if !self.setup.guards.on(Guard::StreamOnce) {
            return sender.is_some_and(|s| s.stream == stream);
        }
        let streamed = match follower {
            Some(from) => self.leading.followers[from].streamed,
            None => sender.map(|s| s.stream),
        };
        // Numbers wrap around, and differ by at most half of their range.
        streamed.is_some_and(|last| stream.wrapping_sub(last) as i16 <= 0)
    }

    /// Takes a record of a stream: of the leader's log, or of one that is being fetched.
    pub(in crate::quorum) fn take_record(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), BrokenStream> {
        let Some(taken) = self.inbound.take_fetched(bytes) else {
            return if self.copying.is_some() {
                self.on_copied_record(now, bytes, sink)
            } else if self.stage == Stage::Normal {
                self.append(bytes)
            } else {
                Ok(())
            };
        };
        self.vr_count.records_transferred += 1;
        if taken? {
            self.adopt(now, sink);
        }
        Ok(())
    }

    /// The fetched log is complete: it replaces the end of the own one, at once.
    fn adopt(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(log) = self.inbound.fetched() else { return };
        self.cut_log(log.base().position);
        let first = self.ordered.end().0 + 1;
        self.ordered.log.append(&log);
        for at in first..=self.ordered.end().0 {
            self.journal.record(self.ordered.log.record(Position(at)));
            self.note_voters_at(Position(at));
        }
        // The clock that stamped these records may have been behind the time known here: time
        // continues from their stamps.
        let last = self.ordered.log.last().and_then(|bytes| Record::parse(bytes).ok());
        if let Some(record) = last {
            self.ordered.clock.note(record.now_ms, self.local_ms);
        }
        if self.stage == Stage::ViewChange {
            self.start_view(now, sink);
        } else {
            self.begin_normal(now.instant);
            self.learn_committed(now, self.heard_committed, sink);
        }
    }

    /// The view's leader was heard.
    pub(in crate::quorum) fn hear_leader(&mut self, now: Now, from: NodeId) {
        let leader = self.group.leader_of(self.view);
        if leader.is_some() && self.group.index_of(from) == leader {
            self.suspicion.hear_leader(now.instant);
        }
    }
}
