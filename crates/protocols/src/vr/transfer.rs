//! State transfer (VRR §5.2): who lacks records of a log asks for a stream of them.
//!
//! The one who asks says where its log ends and what it knows to be committed; the stream begins
//! behind whichever of the two both logs have (the hash tells). Until a fetched log has reached its
//! target it stays apart: what the own log holds was promised to the view before, and is given up
//! only for the whole log of a later one.

use concord_core::{Guard, NodeId, Now, Position, ViewNumber};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::LogEnd;
use concord_wire::record::{Record, running_hash};
use concord_wire::vr::VrBody;

use super::{Stage, Vr};
use crate::link::{BrokenStream, Receiver, Sender};
use crate::log::Log;

/// How often a stream is asked for by one number: for half a second.
const ASKED_MAX: u32 = 25;

/// A log that is being fetched.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// Where it has to end before it can be used.
    pub(super) target: LogEnd,
    /// What was offered as common to both logs.
    offered: [LogEnd; 2],
    /// The records, once the first has told which of the two it is.
    log: Option<Log>,
}

impl Incoming {
    /// Takes the next record; true once the target is reached.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, BrokenStream> {
        let record = Record::parse(bytes).map_err(|_| BrokenStream)?;
        if self.log.is_none() {
            let follows = |end: &&LogEnd| {
                end.position + 1 == record.position.0
                    && running_hash(end.hash, bytes) == record.hash
            };
            self.log = self.offered.iter().find(follows).map(|end| Log::starting_at(*end));
        }
        let Some(log) = self.log.as_mut() else { return Err(BrokenStream) };
        let end = log.end();
        let hash = running_hash(end.hash, bytes);
        if record.position.0 != end.position + 1 || hash != record.hash {
            return Err(BrokenStream);
        }
        log.push(bytes.to_vec(), hash);
        if record.position.0 == self.target.position && hash != self.target.hash {
            return Err(BrokenStream);
        }
        Ok(record.position.0 >= self.target.position)
    }
}

impl<E: Engine> Vr<E> {
    /// Begins to fetch a log that ends at `target`.
    pub(super) fn fetch(&mut self, target: LogEnd) {
        let offered = [self.ordered.log.end(), self.committed_end()];
        self.incoming = Some(Incoming { target, offered, log: None });
    }

    /// Asks for a new stream from the one whom this replica follows: the leader of its view, or, as
    /// a new leader, who has the best log.
    pub(super) fn follow(&mut self, sink: &mut impl Sink) {
        let from = match self.change.best {
            Some(best) if self.stage == Stage::ViewChange => best,
            _ => self.leader_of(self.view),
        };
        let Some(peer) = self.members().get(from).map(|m| NodeId(m.node)) else { return };
        self.stream = self.stream.wrapping_add(1).max(1);
        (self.streaming, self.asked) = (false, 0);
        let mut receiver = Receiver::new(peer, 0);
        receiver.stream = self.stream;
        self.receiver = Some(receiver);
        if let Some(target) = self.incoming.as_ref().map(|i| i.target) {
            self.fetch(target);
        }
        self.say_follow(sink);
    }

    /// Asks again for the stream that was not seen yet; in the end for another one, since the one who
    /// was asked may have begun it and given it up.
    pub(super) fn ask_again(&mut self, sink: &mut impl Sink) {
        if self.receiver.is_none() {
            return;
        }
        if self.asked < ASKED_MAX {
            self.say_follow(sink);
        } else {
            self.follow(sink);
        }
    }

    pub(super) fn say_follow(&mut self, sink: &mut impl Sink) {
        let Some(peer) = self.receiver.as_ref().map(|r| r.peer) else { return };
        self.asked += 1;
        let (end, committed) = (self.ordered.log.end(), self.committed_end());
        let follow = VrBody::Follow { stream: self.stream, end, committed };
        if let Some(to) = self.member_index(peer) {
            self.say(to, follow, sink);
        }
    }

    /// Somebody asks for a stream: of a leader, or of who has the best log for a new one.
    pub(super) fn on_follow(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        stream: u16,
        ends: [LogEnd; 2],
        sink: &mut impl Sink,
    ) {
        let leads = self.is_leader();
        let helps = self.stage == Stage::ViewChange && from == self.leader_of(self.view);
        if view != self.view || !(leads || helps) {
            return;
        }
        if self.is_used(leads.then_some(from), stream) {
            return;
        }
        let Some(end) = ends.into_iter().find(|e| self.ordered.log.end_at(e.position) == Some(*e))
        else {
            return self.say_apart(from, stream, sink);
        };
        let to = self.members()[from];
        let has = Position(end.position);
        let node = NodeId(to.node);
        let mut sender = Sender::new(self.node(), self.epoch(), (node, to.addr), has, 0);
        sender.stream = stream;
        let told = self.commit_point();
        let (log, scratch) = (&self.ordered.log, &mut self.scratch);
        let upto = Position(log.end().position);
        sender.pump(now.instant, log, upto, told, scratch, sink);
        if leads {
            self.followers[from].streamed = Some(stream);
            self.followers[from].sender = Some(sender);
            self.followers[from].heard_at = Some(now.instant);
            self.next_switch = now.instant;
        } else {
            self.helper = Some(sender);
        }
    }

    /// Whether a stream of that number, or of a later one, was begun in this view: for a follower, or for
    /// the new leader. A late question for an earlier one would end the stream that its receiver reads;
    /// and one for the same number would begin it anew, of which the receiver knows nothing. A question
    /// that was answered by Apart began none: its answer may have been lost.
    fn is_used(&self, follower: Option<usize>, stream: u16) -> bool {
        let sender = match follower {
            Some(from) => self.followers[from].sender.as_ref(),
            None => self.helper.as_ref(),
        };
        if !self.setup.guards.on(Guard::StreamOnce) {
            return sender.is_some_and(|s| s.stream == stream);
        }
        let streamed = match follower {
            Some(from) => self.followers[from].streamed,
            None => sender.map(|s| s.stream),
        };
        // Numbers wrap around, and are not further apart than half of all.
        streamed.is_some_and(|last| stream.wrapping_sub(last) as i16 <= 0)
    }

    /// A record of a stream: of the leader's log, or of one that is being fetched.
    pub(super) fn take_record(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), BrokenStream> {
        let Some(incoming) = &mut self.incoming else {
            return if self.copying.is_some() {
                self.on_copied_record(now, bytes, sink)
            } else if self.stage == Stage::Normal {
                self.append(bytes)
            } else {
                Ok(())
            };
        };
        self.vr_count.records_transferred += 1;
        if incoming.take(bytes)? {
            self.adopt(now, sink);
        }
        Ok(())
    }

    /// The fetched log is whole: it takes the place of the own one's end, at once.
    fn adopt(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(log) = self.incoming.take().and_then(|i| i.log) else { return };
        self.ordered.log.cut(log.base().position);
        self.ordered.log.append(log);
        if self.stage == Stage::ViewChange {
            self.start_view(now, sink);
        } else {
            self.begin_normal(now.instant);
            self.learn_committed(now, self.heard_committed, sink);
        }
    }

    /// A sign of life of the view's leader.
    pub(super) fn hear_leader(&mut self, now: Now, from: NodeId) {
        if self.member_index(from) == Some(self.leader_of(self.view)) {
            self.heard_leader_at = now.instant;
        }
    }
}
