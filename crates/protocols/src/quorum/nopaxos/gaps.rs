//! NOPaxos (Li et al.: *Just Say NO to Paxos Overhead*, OSDI 2016): the switch numbers the writes
//! and sends each to all replicas, so that nobody has to stream them.
//!
//! A view takes the numbers of one switch, its session (trap T23), one after the other: the log of
//! a follower is that of the leader without a word between them. A number that is missed
//! - at a follower: the leader sees that it lags behind, and streams the records;
//! - at the leader: it asks the others; who has logged the write sends it;
//! - at all of them: gap agreement. The leader goes on to a later view that it leads too. The votes
//!   of a quorum say that nobody who counts has logged that number, and the view begins behind it:
//!   its floor. So an agreement on a gap, a change of the leader and one of the switch are the same
//!   thing.

use concord_core::{Guard, Instant, Now, Position, Seq, SwitchId, ViewNumber};
use concord_engine::Engine;
use concord_wire::record::Record;
use concord_wire::vr::VrBody;
use concord_wire::{Addr, Flags, Packet, Repr, Sink};

use crate::ordered::Room;
use crate::pending::RequestHeader;
use crate::quorum::nopaxos::sequence::{Gap, LACKS_MAX, after};
use crate::quorum::{QuorumReplica, Stage};

impl<E: Engine> QuorumReplica<E> {
    /// The number up to which the view has all writes, or does without them.
    fn last_sequenced(&self) -> Seq {
        self.sequence.last_sequenced(self.ordered.last_seq, self.switch.id)
    }

    fn next_number(&self) -> Seq {
        after(self.last_sequenced())
    }

    /// A write with the switch's number.
    pub(in crate::quorum) fn on_sequenced(&mut self, now: Now, packet: &Packet<'_>) {
        let repr = packet.repr();
        if repr.seq.switch_id.0 != self.switch.id || !repr.seq.is_some() {
            self.count.writes_other_switch += 1;
        } else if repr.seq <= self.last_sequenced() {
            self.count.writes_out_of_order += 1;
        } else if let Some(room) = self.next(&repr) {
            self.order_stamped(room, &repr, packet.body());
            self.take_early(now.instant);
        } else if self.sequence.hold(repr.seq, packet.bytes()) {
            self.take_early(now.instant);
        } else {
            self.count.writes_log_full += 1;
        }
    }

    /// Logs a write with the switch's stamp. By the log alone: every replica computes the same.
    fn order_stamped(&mut self, room: Room, repr: &Repr, body: &[u8]) {
        self.order(room, repr.time_ms.max(self.ordered.last_now_ms), repr, body);
    }

    /// The room that the write takes, if it can be logged now. The body of a staged one is at the
    /// leader, who streams it as a record.
    fn next(&self, repr: &Repr) -> Option<Room> {
        let staged = repr.flags.has(Flags::BODY_STAGED) && !repr.flags.has(Flags::NOOP);
        let is_next = self.stage == Stage::Normal
            && (repr.seq == self.next_number() || !self.setup.guards.on(Guard::Gaps))
            && repr.seq > self.last_sequenced()
            && (self.is_leader() || !staged);
        if is_next { self.room() } else { None }
    }

    /// Logs the writes whose turn has come.
    pub(in crate::quorum) fn take_early(&mut self, now: Instant) {
        while let Some((seq, bytes)) = self.sequence.first() {
            let room = Packet::parse(bytes).ok().and_then(|packet| self.next(&packet.repr()));
            if seq > self.last_sequenced() && room.is_none() {
                break;
            }
            let Some(bytes) = self.sequence.pop() else { break };
            if let (Some(room), Ok(packet)) = (room, Packet::parse(&bytes)) {
                let repr = packet.repr();
                self.order_stamped(room, &repr, packet.body());
            }
        }
        self.note_missed(now);
    }

    /// The disk may have caught up: logs the writes that waited for that.
    pub(in crate::quorum) fn take_waiting(&mut self, now: Instant) {
        if self.group.is_sequenced() && self.stage == Stage::Normal && self.sequence.waits() {
            self.take_early(now);
        }
    }

    /// Leader: whether the next number is missed. It is if later ones are here, or if a follower
    /// says that its log is longer; not while the log has no room for it, since then others have
    /// what this leader holds back, or would not take: an agreement would only be a view change
    /// after the other.
    pub(in crate::quorum) fn note_missed(&mut self, now: Instant) {
        if !self.group.is_sequenced() || !self.is_leader() || self.room().is_none() {
            return self.sequence.miss_nothing();
        }
        let (next, end) = (self.next_number(), self.ordered.end());
        let longer = || self.leading.followers.iter().any(|f| f.acked > end);
        let is_news = self.sequence.note_missed(now, next, longer);
        self.count.seq_gaps += u64::from(is_news);
    }

    /// A new view's leader: what nobody who voted has logged is given up, up to the first write
    /// that is here.
    pub(in crate::quorum) fn draw_floor(&mut self) {
        self.sequence.set_floor(Seq::NONE);
        self.sequence.draw_floor(self.last_sequenced());
    }

    /// The floor of a view whose leader said so.
    pub(in crate::quorum) fn set_floor(&mut self, floor: u32) {
        self.sequence.set_floor(Seq::new(SwitchId(self.switch.id), floor));
    }

    /// When the leader has to do something about a missing number.
    pub(in crate::quorum) fn gap_deadline(&self) -> Instant {
        if self.is_leader() { self.sequence.ask_at() } else { Instant::NEVER }
    }

    /// Asks for what is missed, and gives it up in the end.
    pub(in crate::quorum) fn tick_gap(&mut self, now: Now, sink: &mut impl Sink) {
        if self.begun(now.instant) < self.group.quorum() {
            // Nobody could answer yet, nor agree.
            return self.sequence.wait(now.instant);
        }
        if self.room().is_none() {
            return self.sequence.miss_nothing();
        }
        let next = self.next_number();
        let count = match self.sequence.gap(now.instant, next) {
            Gap::None => return,
            Gap::Ask(count) => count,
            Gap::Lost => {
                self.vr_count.gaps_agreed += 1;
                return self.enter_view(now, self.next_view(self.group.members().len()), sink);
            }
        };
        self.vr_count.gaps_asked += 1;
        let position = self.ordered.log.end().position + 1;
        self.say_all(VrBody::Lacks { position, count }, sink);
    }

    /// The leader lacks writes: who has logged them sends them as the switch did.
    pub(in crate::quorum) fn on_lacks(
        &mut self,
        (from, view): (usize, ViewNumber),
        (position, count): (u64, u16),
        sink: &mut impl Sink,
    ) {
        if view != self.view
            || self.stage != Stage::Normal
            || Some(from) != self.group.leader_of(view)
        {
            return;
        }
        let to = self.group.members()[from].addr;
        let end = position.saturating_add(u64::from(count).min(LACKS_MAX));
        for position in (position..end).map(Position) {
            if position.0 > self.ordered.log.end().position {
                self.send_early(position, to, sink);
                continue;
            }
            // It is of this view: behind the leader's log, which has all that the view began with.
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let Some(record) = record else { return };
            // A body that was staged is at the leader alone: it has that record.
            if record.flags.has(Flags::BODY_STAGED) && !record.flags.has(Flags::NOOP) {
                continue;
            }
            let repr =
                Repr { further: record.further, ..RequestHeader::recorded(&record).stamped() };
            repr.emit(record.command, &mut self.scratch);
            sink.send(to, &self.scratch);
            self.vr_count.gaps_filled += 1;
        }
    }

    /// A write that waits here for the leader's record of it, since its body was staged there, or
    /// for one before it: as the switch sent it.
    fn send_early(&mut self, position: Position, to: Addr, sink: &mut impl Sink) {
        let (end, last_sequenced) = (self.ordered.end(), self.last_sequenced());
        if let Some(bytes) = self.sequence.at(position, end, last_sequenced) {
            sink.send(to, bytes);
            self.vr_count.gaps_filled += 1;
        }
    }

    /// Up to where a follower is sent records: where the log ends, or under NOPaxos only what it
    /// did not get by itself in time.
    pub(in crate::quorum) fn stream_upto(
        &mut self,
        now: Instant,
        index: usize,
        end: Position,
    ) -> Position {
        if !self.group.is_sequenced() {
            return end;
        }
        self.leading.stream_upto(now, index, end)
    }
}
