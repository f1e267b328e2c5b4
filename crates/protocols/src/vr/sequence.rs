//! NOPaxos (Li et al.: *Just Say NO to Paxos Overhead*, OSDI 2016): the switch numbers the writes and
//! sends each to all replicas, so that nobody has to stream them.
//!
//! A view takes the numbers of one switch, its session (trap T23), one after the other: the log of a
//! follower is that of the leader without a word between them. A number that is missed
//! - at a follower: the leader sees that it lags behind, and streams the records;
//! - at the leader: it asks the others; who has logged the write sends it;
//! - at all of them: gap agreement. The leader goes on to a later view that it leads too. The votes of a
//!   quorum say that nobody who counts has logged that number, and the view begins behind it: its
//!   floor. So an agreement on a gap, a change of the leader and one of the switch are the same thing.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Duration, Guard, Instant, MS, Now, Position, Seq, SwitchId, US, ViewNumber};
use concord_engine::Engine;
use concord_wire::record::Record;
use concord_wire::vr::VrBody;
use concord_wire::{Addr, Flags, Packet, Repr, Sink};

use super::normal::Follower;
use super::{Stage, Vr};
use crate::turn::Asked;

/// Most writes that wait for a missing one before them.
const EARLY_MAX: usize = 4_096;
/// Most missing writes that the leader asks for at once.
const LACKS_MAX: u64 = 64;
/// How long a number may be late before the leader asks for it.
const REORDER_NS: Duration = 500 * US;
/// How often it asks.
const ASK_NS: Duration = 2 * MS;
/// How long it is missed before the replicas agree that it is lost.
const LOST_NS: Duration = 8 * MS;
/// How long a follower may lag behind before it is sent the records.
const LAG_NS: Duration = 2 * MS;

/// Numbered writes as they come from the switch.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// Writes whose turn has not come, by number.
    early: BTreeMap<Seq, Vec<u8>>,
    /// Numbers up to there are not waited for.
    pub(super) floor: Seq,
    /// Leader: the number that others are known to come behind, and which is not here.
    missed: Option<Missed>,
}

/// A number that the leader lacks.
#[derive(Clone, Copy, Debug)]
struct Missed {
    number: Seq,
    since: Instant,
    /// When to ask for it, or to give it up.
    ask_at: Instant,
}

impl<E: Engine> Vr<E> {
    /// Whether the switch orders the writes.
    pub(super) fn is_sequenced(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.kind.is_sequenced())
    }

    /// The number up to which the view has all writes, or does without them.
    fn numbered(&self) -> Seq {
        let session = Seq::new(SwitchId(self.switch.id), 0);
        self.ordered.last_seq.max(self.sequence.floor).max(session)
    }

    fn next_number(&self) -> Seq {
        let numbered = self.numbered();
        Seq::new(numbered.switch_id, numbered.counter.saturating_add(1))
    }

    /// A write with the switch's number.
    pub(super) fn on_sequenced(&mut self, now: Now, packet: &Packet<'_>) {
        let repr = packet.repr();
        if repr.seq.switch_id.0 != self.switch.id || !repr.seq.is_some() {
            self.count.writes_other_switch += 1;
        } else if repr.seq <= self.numbered() {
            self.count.writes_out_of_order += 1;
        } else if self.is_next(&repr) {
            self.order_stamped(&repr, packet.body());
            self.take_early(now.instant);
        } else if self.sequence.early.len() < EARLY_MAX {
            self.sequence.early.insert(repr.seq, packet.bytes().to_vec());
            self.take_early(now.instant);
        } else {
            self.count.writes_log_full += 1;
        }
    }

    /// Logs a write with the switch's stamp. By the log alone: every replica computes the same.
    fn order_stamped(&mut self, repr: &Repr, body: &[u8]) {
        self.order(repr.time_ms.max(self.ordered.last_now_ms), repr, body);
    }

    /// Whether the write can be logged now. The body of a staged one is at the leader, who streams
    /// it as a record.
    fn is_next(&self, repr: &Repr) -> bool {
        let staged = repr.flags.has(Flags::BODY_STAGED) && !repr.flags.has(Flags::NOOP);
        self.stage == Stage::Normal
            && (repr.seq == self.next_number() || !self.setup.guards.on(Guard::Gaps))
            && repr.seq > self.numbered()
            && (self.is_leader() || !staged)
            && !self.ordered.log.is_full(&self.setup.limits)
    }

    /// Logs the writes whose turn has come.
    pub(super) fn take_early(&mut self, now: Instant) {
        while let Some((seq, bytes)) = self.sequence.early.first_key_value() {
            let next = Packet::parse(bytes).is_ok_and(|packet| self.is_next(&packet.repr()));
            if *seq > self.numbered() && !next {
                break;
            }
            let Some((_, bytes)) = self.sequence.early.pop_first() else { break };
            if next && let Ok(packet) = Packet::parse(&bytes) {
                let repr = packet.repr();
                self.order_stamped(&repr, packet.body());
            }
        }
        self.note_missed(now);
    }

    /// Leader: whether the next number is missed. It is if later ones are here, or if a follower says
    /// that its log is longer.
    pub(super) fn note_missed(&mut self, now: Instant) {
        let (next, end) = (self.next_number(), self.ordered.end());
        let later = self.sequence.early.keys().next().is_some_and(|first| *first > next);
        let longer = || self.followers.iter().any(|f| f.acked > end);
        if !self.is_sequenced() || !self.is_leader() || !(later || longer()) {
            self.sequence.missed = None;
        } else if self.sequence.missed.is_none_or(|missed| missed.number != next) {
            self.count.seq_gaps += 1;
            let ask_at = now.after(REORDER_NS);
            self.sequence.missed = Some(Missed { number: next, since: now, ask_at });
        }
    }

    /// A new view's leader: what nobody who voted has logged is given up, up to the first write that
    /// is here.
    pub(super) fn draw_floor(&mut self) {
        self.sequence.floor = Seq::NONE;
        let numbered = self.numbered();
        let first = self.sequence.early.keys().find(|seq| **seq > numbered);
        let of_switch = first.filter(|seq| seq.switch_id == numbered.switch_id);
        let below = |seq: &Seq| Seq::new(seq.switch_id, seq.counter - 1);
        self.sequence.floor = of_switch.map_or(numbered, below);
    }

    /// The floor of a view whose leader said so.
    pub(super) fn set_floor(&mut self, floor: u32) {
        self.sequence.floor = Seq::new(SwitchId(self.switch.id), floor);
    }

    /// When the leader has to do something about a missing number.
    pub(super) fn gap_deadline(&self) -> Instant {
        let missed = self.sequence.missed.filter(|_| self.is_leader());
        missed.map_or(Instant::NEVER, |missed| missed.ask_at)
    }

    /// Asks for what is missed, and gives it up in the end.
    pub(super) fn tick_gap(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(missed) = self.sequence.missed.as_mut().filter(|m| now.instant >= m.ask_at) else {
            return;
        };
        if now.instant.since(missed.since) >= LOST_NS {
            self.vr_count.gaps_agreed += 1;
            return self.enter_view(now, self.next_view(self.members().len()), sink);
        }
        missed.ask_at = now.instant.after(ASK_NS);
        self.vr_count.gaps_asked += 1;
        // Within a view positions rise as numbers do.
        let first_here = self.sequence.early.keys().next();
        let lacked = first_here.map_or(1, |seq| {
            u64::from(seq.counter).saturating_sub(self.next_number().counter.into())
        });
        let position = self.ordered.log.end().position + 1;
        let count = lacked.clamp(1, LACKS_MAX) as u16;
        self.say_all(VrBody::Lacks { position, count }, sink);
    }

    /// The leader lacks writes: who has logged them sends them as the switch did.
    pub(super) fn on_lacks(
        &mut self,
        (from, view): (usize, ViewNumber),
        (position, count): (u64, u16),
        sink: &mut impl Sink,
    ) {
        if view != self.view || self.stage != Stage::Normal || from != self.leader_of(view) {
            return;
        }
        let to = self.members()[from].addr;
        let end = position.saturating_add(u64::from(count).min(LACKS_MAX));
        for position in (position..end).map(Position) {
            if position.0 > self.ordered.log.end().position {
                self.send_early(position, to, sink);
                continue;
            }
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let Some(record) = record.filter(|r| r.epoch == self.epoch()) else { return };
            // A body that was staged is at the leader alone: it has that record.
            if record.flags.has(Flags::BODY_STAGED) && !record.flags.has(Flags::NOOP) {
                continue;
            }
            let repr = Asked::recorded(&record).stamped();
            repr.emit(record.command, &mut self.scratch);
            sink.send(to, &self.scratch);
            self.vr_count.gaps_filled += 1;
        }
    }

    /// A write that waits here for the leader's record of it, since its body was staged there, or for one
    /// before it: as the switch sent it.
    fn send_early(&mut self, position: Position, to: Addr, sink: &mut impl Sink) {
        // Within a view positions rise as numbers do.
        let next = self.next_number();
        let ahead = position.0 - self.ordered.log.end().position - 1;
        let counter = u64::from(next.counter).saturating_add(ahead).min(u32::MAX.into());
        let number = Seq::new(next.switch_id, counter as u32);
        if let Some(bytes) = self.sequence.early.get(&number) {
            sink.send(to, bytes);
            self.vr_count.gaps_filled += 1;
        }
    }

    /// Up to where a follower is sent records: where the log ends, or under NOPaxos only what it
    /// did not get by itself in time.
    pub(super) fn stream_upto(&mut self, now: Instant, index: usize, end: Position) -> Position {
        if !self.is_sequenced() {
            return end;
        }
        let staged = self.staged_end;
        let Some(follower) = self.followers.get_mut(index) else { return end };
        follower.stream_upto = follower.stream_upto.max(staged);
        follower.note_lag(now, end);
        follower.stream_upto
    }

    /// When a follower that lags behind is sent records.
    pub(super) fn lag_deadline(&self) -> Instant {
        let lags = self.followers.iter().filter_map(|f| f.lag);
        lags.map(|(_, since)| since.after(LAG_NS)).min().unwrap_or(Instant::NEVER)
    }
}

impl Follower {
    fn note_lag(&mut self, now: Instant, end: Position) {
        match self.lag {
            _ if self.sender.is_none() || self.acked >= end => self.lag = None,
            Some((upto, since)) if self.acked < upto => {
                if now.since(since) >= LAG_NS {
                    self.stream_upto = self.stream_upto.max(upto);
                    self.lag = Some((end, now));
                }
            }
            Some(_) | None => self.lag = Some((end, now)),
        }
    }
}
