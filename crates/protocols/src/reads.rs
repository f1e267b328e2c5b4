//! Reads: alone and at once on the switch's word (fast), or by the normal protocol (slow).
//!
//! Harmonia §8.2: a fast read is answered only if its last-committed point is at least the newest
//! write applied to its object, or that write is known to be committed; else it goes to the tail or
//! the primary. Whoever answers alone holds a lease (trap T2).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Epoch, Guard, NodeId, Now, ObjectId, Position, RequestNumber, Seq, SessionId};
use concord_engine::{Engine, Progress};
use concord_wire::control::{Config, Protocol};
use concord_wire::{Addr, Flags, Op, Packet, Reason, Repr, Sink};

use crate::replica::{Phase, Replica};
use crate::writes::Pending;

/// Most reads that wait for writes to commit, or for the tail's answer.
pub(crate) const WAITING_MAX: usize = 65_536;
/// Most bytes of replies that wait for writes to commit; a single one may be larger.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A read that is being answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTurn {
    pub(crate) flags: Flags,
    pub(crate) obj_id: ObjectId,
    pub(crate) last_committed: Seq,
    pub(crate) session: SessionId,
    pub(crate) request: RequestNumber,
    pub(crate) attempt: u16,
    pub(crate) client: Addr,
    pub(crate) reason: Reason,
    /// The writes that it may have seen: the reply waits until all up to there are committed. A
    /// position of this epoch.
    pub(crate) needed: Position,
    pub(crate) epoch: Epoch,
}

/// Replies to reads of the primary that wait for writes to commit (trap T6).
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// By the position that they wait for, then in their order.
    replies: BTreeMap<(Position, u64), (ReadTurn, Vec<u8>)>,
    bytes: usize,
}

impl Waiting {
    /// The epoch is over: clients ask again.
    pub(crate) fn clear(&mut self) {
        *self = Waiting::default();
    }

    /// Whether there was room.
    fn hold(&mut self, order: u64, turn: ReadTurn, reply: &[u8]) -> bool {
        let is_full = self.replies.len() >= WAITING_MAX
            || (self.bytes > 0 && self.bytes + reply.len() > WAITING_BYTES_MAX);
        if !is_full {
            self.bytes += reply.len();
            self.replies.insert((turn.needed, order), (turn, reply.to_vec()));
        }
        !is_full
    }

    /// The next one that waits for nothing beyond `committed`.
    fn pop(&mut self, committed: Position) -> Option<(ReadTurn, Vec<u8>)> {
        let entry = self.replies.first_entry().filter(|entry| entry.key().0 <= committed)?;
        let (turn, reply) = entry.remove();
        self.bytes -= reply.len();
        Some((turn, reply))
    }
}

impl ReadTurn {
    pub(crate) fn of(repr: &Repr, reason: Reason) -> ReadTurn {
        ReadTurn {
            needed: Position(0),
            epoch: Epoch(0),
            flags: repr.flags,
            obj_id: repr.obj_id,
            last_committed: repr.last_committed,
            session: repr.session,
            request: repr.request,
            attempt: repr.attempt,
            client: repr.client,
            reason,
        }
    }

    /// The reply's header.
    pub(crate) fn reply(&self, epoch: Epoch, node: NodeId) -> Repr {
        Repr {
            flags: self.flags,
            obj_id: self.obj_id,
            last_committed: self.last_committed,
            session: self.session,
            request: self.request,
            attempt: self.attempt,
            client: self.client,
            epoch,
            node,
            reason: self.reason,
            ..Repr::new(Op::ReadReply)
        }
    }
}

impl<E: Engine> Replica<E> {
    pub(crate) fn on_read(&mut self, now: Now, packet: &Packet<'_>, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            self.count.reads_dropped += 1;
            return;
        }
        if !self.whole && self.setup.guards.on(Guard::Whole) {
            self.count.reads_not_whole += 1;
            return;
        }
        let repr = packet.repr();
        if self.is_protocol(Protocol::Craq) {
            return self.on_read_craq(now, &repr, packet.body(), sink);
        }
        let forwarded = repr.flags.has(Flags::FORWARDED);
        if repr.flags.has(Flags::FAST) && !forwarded {
            match self.refuse_fast(now, &repr) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, packet.body(), Reason::Fast, sink);
                }
                Some(reason) if !self.is_reader() => {
                    return self.forward(&repr, reason, packet.body(), sink);
                }
                Some(reason) => {
                    let slow = Repr { reason, ..repr };
                    return self.read_slow(now, &slow, packet.body(), sink);
                }
            }
        }
        if forwarded && repr.epoch != self.epoch() {
            self.count.reads_dropped += 1;
        } else if self.is_reader() {
            self.read_slow(now, &repr, packet.body(), sink);
        } else if forwarded {
            self.count.reads_dropped += 1;
        } else {
            self.count.reads_misrouted += 1;
            self.forward(&repr, repr.reason, packet.body(), sink);
        }
    }

    pub(crate) fn is_leased(&self, now: Now) -> bool {
        self.leases.is_held(now.instant) || !self.setup.guards.on(Guard::Lease)
    }

    /// Why a fast read may not be answered here.
    fn refuse_fast(&mut self, now: Now, repr: &Repr) -> Option<Reason> {
        let active = self.config.as_ref().map_or(0, |c| c.switch_id);
        let newest = self.applied.newest(repr.obj_id).0;
        if !self.is_leased(now) {
            self.count.refused_lease += 1;
            Some(Reason::RefusedLease)
        } else if repr.last_committed.switch_id.0 != active {
            self.count.refused_switch += 1;
            Some(Reason::RefusedSwitch)
        } else if newest > repr.last_committed && self.setup.guards.on(Guard::LastCommitted) {
            self.count.refused_newer += 1;
            Some(Reason::RefusedNewer)
        } else {
            None
        }
    }

    /// One hop at most, and only within the epoch (trap T2).
    pub(crate) fn forward(
        &mut self,
        repr: &Repr,
        reason: Reason,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        let reader = self.config.as_ref().and_then(Config::reader).map(|m| m.addr);
        let Some(to) = reader else { return };
        let forwarded = Repr {
            flags: repr.flags.with(Flags::FORWARDED).without(Flags::FAST),
            epoch: self.epoch(),
            node: self.node(),
            reason,
            ..*repr
        };
        forwarded.emit(body, &mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The normal protocol: at the tail everything applied is committed; the primary reads at once,
    /// and answers when the writes that the read may have seen are (trap T6). Waiting first and
    /// reading then would wait for ever where a key is written all the time.
    fn read_slow(&mut self, now: Now, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        if !self.is_leased(now) {
            self.count.reads_dropped += 1;
            return;
        }
        let mut turn = ReadTurn::of(repr, repr.reason);
        if self.is_protocol(Protocol::PrimaryBackup) {
            turn.needed = self.newest_submitted(repr);
            turn.epoch = self.epoch();
        }
        self.count.reads_slow += 1;
        self.count.reads_waited += u64::from(turn.needed > self.committed);
        self.read_turn(now, turn, repr, body, sink);
    }

    /// The newest write that a read would see which the engine is given now.
    pub(crate) fn newest_submitted(&self, repr: &Repr) -> Position {
        if !repr.flags.has(Flags::WILDCARD) {
            return self.applied.newest(repr.obj_id).1;
        }
        if !self.setup.guards.on(Guard::AllKeysSubmitted) {
            return self.executed;
        }
        Position(self.submitted.position)
    }

    /// Answers the reads whose writes are committed by now.
    pub(crate) fn wake_reads(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some((turn, reply)) = self.waiting_reads.pop(self.committed) {
            self.serving().answer(now, &turn, &reply, sink);
        }
    }

    pub(crate) fn read(
        &mut self,
        now: Now,
        repr: &Repr,
        command: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) {
        self.read_turn(now, ReadTurn::of(repr, reason), repr, command, sink);
    }

    fn read_turn(
        &mut self,
        now: Now,
        turn: ReadTurn,
        repr: &Repr,
        command: &[u8],
        sink: &mut impl Sink,
    ) {
        if !self.reading.may_begin(turn.session, turn.request) {
            self.count.reads_queued += 1;
            return;
        }
        match self.serving().ask(now, &turn, repr, command, sink) {
            None => {}
            Some(Progress::Pending) => {
                self.reading.begin(turn.session, turn.request);
                self.pending.push_back(Pending::Read(turn));
            }
            Some(Progress::Done) => {
                let reply = core::mem::take(&mut self.reply);
                self.answer_read(now, &turn, &reply, sink);
                self.reply = reply;
            }
        }
    }

    /// The engine has read.
    pub(crate) fn answer_read(
        &mut self,
        now: Now,
        turn: &ReadTurn,
        reply: &[u8],
        sink: &mut impl Sink,
    ) {
        self.reading.end(turn.session, turn.request);
        if turn.needed <= self.committed {
            return self.serving().answer(now, turn, reply, sink);
        }
        // In another epoch its position may mean another write.
        let order = self.count.reads_slow;
        let held = turn.epoch == self.epoch() && self.waiting_reads.hold(order, *turn, reply);
        self.count.reads_dropped += u64::from(!held);
    }
}
