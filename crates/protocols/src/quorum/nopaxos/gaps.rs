//! NOPaxos (Li et al.: *Just Say NO to Paxos Overhead*, OSDI 2016): the switch numbers the writes
//! and sends each to all replicas, so that the leader does not have to stream them.
//!
//! A view accepts the numbers of one switch, its session (trap T23), one after the other, so that
//! followers get the leader's log without messages from it. If a number is missed
//! - by a follower, the leader sees that it lags, and streams the records;
//! - by the leader, it asks the others, and a member that has logged the write sends it;
//! - by all, they agree on the gap: the leader begins a later view that it leads too. A quorum of
//!   votes shows that no member of it has logged the number, and the view begins after it, at its
//!   *floor*. So gap agreement, a change of leader and a change of switch are the same thing.

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
    /// The number up to which the view has all writes, or has given them up.
    fn last_sequenced(&self) -> Seq {
        self.sequence.last_sequenced(self.ordered.last_seq, self.switch.id)
    }

    fn next_number(&self) -> Seq {
        after(self.last_sequenced())
    }

    /// Handles a write with the switch's number.
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

    /// Logs a write with the switch's stamp. It depends on the log alone, so that every replica
    /// does the same.
    fn order_stamped(&mut self, room: Room, repr: &Repr, body: &[u8]) {
        self.order(room, repr.time_ms.max(self.ordered.last_now_ms), repr, body);
    }

    /// Permission to log the write, if that is possible now. A staged body is at the leader, which
    /// streams the write as a record.
    fn next(&self, repr: &Repr) -> Option<Room> {
        let staged = repr.flags.has(Flags::BODY_STAGED) && !repr.flags.has(Flags::NOOP);
        let is_next = self.stage == Stage::Normal
            && (repr.seq == self.next_number() || !self.setup.guards.on(Guard::Gaps))
            && repr.seq > self.last_sequenced()
            && (self.is_leader() || !staged);
        if is_next { self.room() } else { None }
    }

    /// Logs the held writes that are next.
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

    /// Logs the writes that waited for the disk, if it has caught up.
    pub(in crate::quorum) fn take_waiting(&mut self, now: Instant) {
        if self.group.is_sequenced() && self.stage == Stage::Normal && self.sequence.waits() {
            self.take_early(now);
        }
    }

    /// Leader: notes whether the next number is missing: later ones are here, or a follower's log
    /// is longer. Not while the log has no room for it: then others have the write that this leader
    /// holds back, or would not accept, and gap agreement would only cause one view change after
    /// another.
    pub(in crate::quorum) fn note_missed(&mut self, now: Instant) {
        if !self.group.is_sequenced() || !self.is_leader() || self.room().is_none() {
            return self.sequence.miss_nothing();
        }
        let (next, end) = (self.next_number(), self.ordered.end());
        let longer = || self.leading.followers.iter().any(|f| f.acked > end);
        let is_news = self.sequence.note_missed(now, next, longer);
        self.count.seq_gaps += u64::from(is_news);
    }

    /// A new view's leader: gives up the numbers that no voter has logged, up to the first write
    /// that is here.
    pub(in crate::quorum) fn draw_floor(&mut self) {
        self.sequence.set_floor(Seq::NONE);
        self.sequence.draw_floor(self.last_sequenced());
    }

    /// Sets the floor that the view's leader has sent.
    pub(in crate::quorum) fn set_floor(&mut self, floor: u32) {
        self.sequence.set_floor(Seq::new(SwitchId(self.switch.id), floor));
    }

    /// The time at which the leader has to act on a missing number.
    pub(in crate::quorum) fn gap_deadline(&self) -> Instant {
        if self.is_leader() { self.sequence.ask_at() } else { Instant::NEVER }
    }

    /// Asks for a missing number, and gives it up in the end.
    pub(in crate::quorum) fn tick_gap(&mut self, now: Now, sink: &mut impl Sink) {
        if self.begun(now.instant) < self.group.quorum() {
            // No quorum could answer or agree yet.
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

    /// Handles the leader's question for missing writes: sends those in the log as the switch sent
    /// them.
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
            // The record is of this view: it follows the leader's log, which has everything with
            // which the view began.
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let Some(record) = record else { return };
            // A staged body is at the leader alone, which has this record.
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

    /// Sends a held write as the switch sent it: one that waits for the leader's record, since its
    /// body was staged there, or for an earlier record.
    fn send_early(&mut self, position: Position, to: Addr, sink: &mut impl Sink) {
        let (end, last_sequenced) = (self.ordered.end(), self.last_sequenced());
        if let Some(bytes) = self.sequence.at(position, end, last_sequenced) {
            sink.send(to, bytes);
            self.vr_count.gaps_filled += 1;
        }
    }

    /// The position up to which a follower is sent records: the end of the log, or under NOPaxos
    /// only as far as the follower did not get them itself in time.
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
