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
use concord_wire::{Flags, Op, Packet, Repr, Sink};

use super::normal::Follower;
use super::{Stage, Vr};
use crate::writes::Turn;

/// Most writes that wait for a missing one before them.
const EARLY_MAX: usize = 4_096;
/// How long a number may be late before the leader asks for it.
const REORDER_NS: Duration = 500 * US;
/// How often it asks.
const ASK_NS: Duration = 2 * MS;
/// How long it is missed before the replicas agree that it is lost.
const LOST_NS: Duration = 8 * MS;
/// How long a follower may lag behind before it is sent the records.
const LAG_NS: Duration = 2 * MS;

/// Numbered writes as they come from the switch.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Writes whose turn has not come, by number.
    early: BTreeMap<Seq, Vec<u8>>,
    /// Numbers up to there are not waited for.
    pub(super) floor: Seq,
    /// Since when a number is missed; `NEVER` if none is.
    missed_at: Instant,
    /// Leader: when it asks for it, or gives it up.
    ask_at: Instant,
}

impl Default for Sequence {
    fn default() -> Sequence {
        let (floor, never) = (Seq::NONE, Instant::NEVER);
        Sequence { early: BTreeMap::new(), floor, missed_at: never, ask_at: never }
    }
}

impl<E: Engine> Vr<E> {
    /// Whether the switch orders the writes.
    pub(super) fn is_sequenced(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.protocol.is_sequenced())
    }

    /// The number up to which the view has all writes, or does without them.
    fn numbered(&self) -> Seq {
        let session = Seq::new(SwitchId(self.switch.id), 0);
        self.last_seq.max(self.sequence.floor).max(session)
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
            self.order(repr.last_committed.to_u64(), &repr, packet.body());
            self.take_early(now.instant);
        } else if self.sequence.early.len() < EARLY_MAX {
            self.sequence.early.insert(repr.seq, packet.bytes().to_vec());
            self.take_early(now.instant);
        } else {
            self.count.writes_log_full += 1;
        }
    }

    /// Whether the write can be logged now. The body of a staged one is at the leader, who streams
    /// it as a record.
    fn is_next(&self, repr: &Repr) -> bool {
        let staged = repr.flags.has(Flags::BODY_STAGED) && !repr.flags.has(Flags::NOOP);
        self.stage == Stage::Normal
            && (repr.seq == self.next_number() || !self.setup.guards.on(Guard::Gaps))
            && repr.seq > self.numbered()
            && (self.is_leader() || !staged)
            && !self.log.is_full()
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
                self.order(repr.last_committed.to_u64(), &repr, packet.body());
            }
        }
        let sequence = &mut self.sequence;
        if sequence.early.is_empty() {
            (sequence.missed_at, sequence.ask_at) = (Instant::NEVER, Instant::NEVER);
        } else if sequence.missed_at == Instant::NEVER {
            (sequence.missed_at, sequence.ask_at) = (now, now.after(REORDER_NS));
        }
    }

    /// The write that was missed has come: another one may be missed from now on.
    pub(super) fn note_logged(&mut self) {
        (self.sequence.missed_at, self.sequence.ask_at) = (Instant::NEVER, Instant::NEVER);
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
        self.note_logged();
    }

    /// The floor of a view whose leader said so.
    pub(super) fn set_floor(&mut self, floor: u32) {
        self.sequence.floor = Seq::new(SwitchId(self.switch.id), floor);
        self.note_logged();
    }

    /// When the leader has to do something about a missing number.
    pub(super) fn gap_deadline(&self) -> Instant {
        if self.is_leader() { self.sequence.ask_at } else { Instant::NEVER }
    }

    pub(super) fn tick_gap(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant < self.gap_deadline() {
            return;
        }
        if now.instant.since(self.sequence.missed_at) >= LOST_NS {
            self.vr_count.gaps_agreed += 1;
            let view = ViewNumber(self.view.0 + self.members().len() as u32);
            return self.enter_view(now, view, sink);
        }
        self.sequence.ask_at = now.instant.after(ASK_NS);
        self.vr_count.gaps_asked += 1;
        let position = self.log.end().position + 1;
        self.say_all(VrBody::Lacks { position }, sink);
    }

    /// The leader lacks a write: who has logged it sends it as the switch did.
    pub(super) fn on_lacks(
        &mut self,
        (from, view): (usize, ViewNumber),
        position: Position,
        sink: &mut impl Sink,
    ) {
        if view != self.view || self.stage != Stage::Normal || from != self.leader_of(view) {
            return;
        }
        let record = self.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
        // What was staged went to the leader alone: such a question is an old one.
        let staged = |r: &Record<'_>| r.flags.has(Flags::BODY_STAGED);
        let record = record.filter(|r| r.epoch == self.epoch() && !staged(r));
        let Some(record) = record else { return };
        let repr = Repr {
            flags: record.flags,
            low_delta: record.low_delta,
            after_delta: record.after_delta,
            last_committed: Seq::from_u64(record.now_ms),
            ..Turn::of(&record).header(Repr::new(Op::Write))
        };
        repr.emit(record.command, &mut self.scratch);
        sink.send(self.members()[from].addr, &self.scratch);
        self.vr_count.gaps_filled += 1;
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
