//! Reads: answered by one member at once, as the switch permits (fast), or by the normal protocol
//! (slow).
//!
//! Harmonia §8.2: a fast read is answered only if its last-committed point is at least the newest
//! write applied to its object, or that write is known to be committed; otherwise it goes to the
//! tail or the primary. A member that answers alone holds a lease (trap T2).

use concord_core::{Guard, Now, Position, Seq};
use concord_engine::Engine;
use concord_wire::control::Protocol;
use concord_wire::{Flags, Packet, Reason, Repr, Sink};

use super::Replica;
use super::queue::Pending;
use crate::pending::PendingRead;
use crate::serve::Read;
use crate::setup::Phase;

impl<E: Engine> Replica<E> {
    pub(super) fn on_read(&mut self, now: Now, packet: &Packet<'_>, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            self.count.reads_dropped += 1;
            return;
        }
        if !self.caught_up && self.setup.guards.on(Guard::CaughtUp) {
            self.count.reads_not_whole += 1;
            return;
        }
        let repr = packet.repr();
        if self.role.is_protocol(Protocol::Craq) {
            return self.on_read_craq(now, &repr, packet.body(), sink);
        }
        let forwarded = repr.flags.has(Flags::FORWARDED);
        if repr.flags.has(Flags::FAST) && !forwarded {
            match self.refuse_fast(now, &repr) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, packet.body(), Reason::Fast, sink);
                }
                Some(reason) if !self.role.is_reader() => {
                    return self.forward(&repr, reason, packet.body(), sink);
                }
                Some(reason) => {
                    let slow = Repr { reason, ..repr };
                    return self.read_slow(now, &slow, packet.body(), sink);
                }
            }
        }
        if forwarded && repr.epoch != self.role.epoch() {
            self.count.reads_dropped += 1;
        } else if self.role.is_reader() {
            self.read_slow(now, &repr, packet.body(), sink);
        } else if forwarded {
            self.count.reads_dropped += 1;
        } else {
            self.count.reads_misrouted += 1;
            self.forward(&repr, repr.reason, packet.body(), sink);
        }
    }

    pub(super) fn is_leased(&self, now: Now) -> bool {
        self.leases.is_held(now.instant) || !self.setup.guards.on(Guard::Lease)
    }

    /// The reason that a fast read may not be answered here, if there is one.
    fn refuse_fast(&mut self, now: Now, repr: &Repr) -> Option<Reason> {
        let active = self.role.switch_id();
        let newest = self.newest_write(repr).0;
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

    /// The newest write of any object of a read, unless the read is of all keys.
    #[inline]
    fn newest_write(&self, repr: &Repr) -> (Seq, Position) {
        if repr.further.is_empty() || !self.setup.guards.on(Guard::SeveralNewest) {
            return self.applied.newest(repr.obj_id);
        }
        let further = repr.further.as_slice().iter().copied();
        self.applied.newest_of(further.chain([repr.obj_id]))
    }

    /// Forwards a read: one hop at most, and only within the epoch (trap T2).
    pub(super) fn forward(
        &mut self,
        repr: &Repr,
        reason: Reason,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        let Some(to) = self.role.reader().map(|m| m.addr) else { return };
        let forwarded = Repr {
            flags: repr.flags.with(Flags::FORWARDED).without(Flags::FAST),
            epoch: self.role.epoch(),
            node: self.role.node(),
            reason,
            ..*repr
        };
        forwarded.emit(body, &mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The normal protocol: at the tail everything applied is committed; the primary reads at once,
    /// and answers when the writes that the read may have seen are committed (trap T6). Waiting
    /// first and then reading would wait forever for a key that is written all the time.
    fn read_slow(&mut self, now: Now, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        if !self.is_leased(now) {
            self.count.reads_dropped += 1;
            return;
        }
        let mut operation = PendingRead::of(repr, repr.reason);
        if self.role.is_protocol(Protocol::PrimaryBackup) || self.reads_wait() {
            operation.needed = self.newest_submitted(repr);
            operation.epoch = self.role.epoch();
        }
        self.count.reads_slow += 1;
        self.count.reads_waited += u64::from(operation.needed > self.committed);
        self.pending_read(now, operation, repr, body, sink);
    }

    /// Tail: reads a state that may not be durable everywhere yet, and answers when it is (trap
    /// T7).
    pub(super) fn read_committed(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) {
        let (needed, epoch) = (self.newest_submitted(repr), self.role.epoch());
        self.count.reads_waited += u64::from(needed > self.committed);
        let mut operation = PendingRead::of(repr, reason);
        (operation.needed, operation.epoch) = (needed, epoch);
        self.pending_read(now, operation, repr, body, sink);
    }

    /// Whether the member that commits has executed writes that may not be durable everywhere yet.
    pub(super) fn reads_wait(&self) -> bool {
        self.journal.delays_commits() && self.setup.guards.on(Guard::DurableReads)
    }

    /// The newest write that a read given to the engine now would see.
    pub(super) fn newest_submitted(&self, repr: &Repr) -> Position {
        if !repr.flags.has(Flags::WILDCARD) {
            return self.newest_write(repr).1;
        }
        if !self.setup.guards.on(Guard::AllKeysSubmitted) {
            return self.executed;
        }
        Position(self.submitted.position)
    }

    /// Answers the reads whose writes are committed by now.
    pub(super) fn wake_reads(&mut self, now: Now, sink: &mut impl Sink) {
        let in_force = self.in_force();
        while let Some((operation, reply)) = self.unanswered.pop_read(self.committed) {
            self.serving.answer(now, &operation, (&reply, &[]), in_force, &mut self.count, sink);
        }
    }

    pub(super) fn read(
        &mut self,
        now: Now,
        repr: &Repr,
        command: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) {
        self.pending_read(now, PendingRead::of(repr, reason), repr, command, sink);
    }

    fn pending_read(
        &mut self,
        now: Now,
        operation: PendingRead,
        repr: &Repr,
        command: &[u8],
        sink: &mut impl Sink,
    ) {
        let (asked, in_force) = ((repr, command), self.in_force());
        match self.serving.read(now, &operation, asked, in_force, &mut self.count, sink) {
            Read::Refused => {}
            Read::Waits => self.queue.push(Pending::Read(operation)),
            Read::Done => {
                let reply = core::mem::take(&mut self.serving.reply);
                self.answer_read(now, &operation, &reply, sink);
                self.serving.reply = reply;
            }
        }
    }

    /// The engine has completed a read.
    pub(super) fn answer_read(
        &mut self,
        now: Now,
        operation: &PendingRead,
        reply: &[u8],
        sink: &mut impl Sink,
    ) {
        self.serving.end_read(operation);
        if operation.needed <= self.committed {
            let in_force = self.in_force();
            return self.serving.answer(
                now,
                operation,
                (reply, &[]),
                in_force,
                &mut self.count,
                sink,
            );
        }
        // In another epoch its position may refer to another write.
        let order = self.count.reads_slow;
        let held = operation.epoch == self.role.epoch()
            && self.unanswered.push_read(order, *operation, reply);
        self.count.reads_dropped += u64::from(!held);
    }
}
