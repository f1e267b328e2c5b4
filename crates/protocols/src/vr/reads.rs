//! Reads: alone and at once on the switch's word (fast), or by the leader (slow).
//!
//! Harmonia §8.3, P1: a replica that has executed less than a fast read's last-committed point would
//! answer from the past, so it passes the read to the leader. P2 needs nothing: VR executes only
//! what is committed. The leader answers under its lease, from all that its view began with.

use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{Guard, Instant, Now};
use concord_engine::{Class, Command, Context, Engine, Progress};
use concord_wire::fragment::{FragmentHdr, PULL_MAX};
use concord_wire::harmonia::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{Flags, Op, Packet, REPLY_BYTES_MAX, Reason, Repr, Sink, Status, WireError};

use super::execute::Pending;
use super::{Stage, Vr};
use crate::reads::ReadTurn;
use crate::writes::emit_first_fragment;

/// Most reads that wait at the leader.
const WAITING_MAX: usize = 65_536;

impl<E: Engine> Vr<E> {
    pub(super) fn on_read(&mut self, now: Now, packet: &Packet<'_>, sink: &mut impl Sink) {
        if self.stage != Stage::Normal {
            self.count.reads_dropped += 1;
            return;
        }
        let mut repr = packet.repr();
        let forwarded = repr.flags.has(Flags::FORWARDED);
        if repr.flags.has(Flags::FAST) && !forwarded {
            match self.refuse_fast(now.instant, &repr) {
                None => {
                    self.count.reads_fast += 1;
                    return self.read(now, &repr, packet.body(), Reason::Fast, sink);
                }
                Some(reason) => repr.reason = reason,
            }
        } else if !forwarded && !self.is_leader() {
            self.count.reads_misrouted += 1;
        }
        // One hop at most, and only within the view (trap T2).
        if self.is_leader() && (!forwarded || repr.epoch == self.epoch()) {
            self.read_slow(now, &repr, packet.body(), sink);
        } else if forwarded {
            self.count.reads_dropped += 1;
        } else {
            self.forward(&repr, packet.body(), sink);
        }
    }

    /// Whether no later view can have begun: a quorum, this replica included, is in this one.
    pub(super) fn is_leased(&self, now: Instant) -> bool {
        self.leases.held_of(now) + 1 >= self.quorum() || !self.setup.guards.on(Guard::Lease)
    }

    /// Why a fast read may not be answered here.
    fn refuse_fast(&mut self, now: Instant, repr: &Repr) -> Option<Reason> {
        if !self.is_leased(now) {
            self.count.refused_lease += 1;
            Some(Reason::RefusedLease)
        } else if repr.last_committed.switch_id.0 != self.switch.id {
            self.count.refused_switch += 1;
            Some(Reason::RefusedSwitch)
        } else if repr.last_committed > self.executed_seq && self.setup.guards.on(Guard::Visibility)
        {
            self.vr_count.refused_behind += 1;
            Some(Reason::RefusedBehind)
        } else {
            None
        }
    }

    fn forward(&mut self, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        let Some(to) = self.leader_addr() else { return };
        let forwarded = Repr {
            flags: repr.flags.with(Flags::FORWARDED).without(Flags::FAST),
            epoch: self.epoch(),
            node: self.node(),
            ..*repr
        };
        forwarded.emit(body, &mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The leader's answer holds every write that was acknowledged before, in this view or in an
    /// earlier one: it has executed those of its view, and waits for those that its view began with.
    fn read_slow(&mut self, now: Now, repr: &Repr, body: &[u8], sink: &mut impl Sink) {
        if self.executed >= self.view_start && self.is_leased(now.instant) {
            self.count.reads_slow += 1;
            return self.read(now, repr, body, repr.reason, sink);
        }
        if self.waiting_reads.len() >= WAITING_MAX {
            self.count.reads_dropped += 1;
            return;
        }
        self.vr_count.reads_waited_leader += 1;
        let mut packet = Vec::new();
        repr.emit(body, &mut packet);
        self.waiting_reads.push_back(packet);
    }

    /// Answers the reads that waited, once nothing keeps them.
    pub(super) fn wake_reads(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.is_leader() || self.executed < self.view_start || !self.is_leased(now.instant) {
            return;
        }
        while let Some(bytes) = self.waiting_reads.pop_front() {
            if let Ok(packet) = Packet::parse(&bytes) {
                self.read_slow(now, &packet.repr(), packet.body(), sink);
            }
        }
    }

    fn read(
        &mut self,
        now: Now,
        repr: &Repr,
        command: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) {
        let turn = ReadTurn::of(repr, reason);
        let Ok(command) = Command::parse(command) else {
            self.count.malformed += 1;
            return self.send_read_status(&turn, Status::Malformed, sink);
        };
        let context = Context {
            now_ms: now.unix_ms,
            entropy: splitmix64(now.instant.0 ^ repr.request.0),
            position: 0,
            resp3: repr.flags.has(Flags::RESP3),
            decide: false,
        };
        let mut reply = core::mem::take(&mut self.reply);
        reply.clear();
        match self.engine.submit(&context, Class::Read, &command, &mut reply) {
            Progress::Done => self.answer_read(&turn, &reply, sink),
            Progress::Pending => self.pending.push_back(Pending::Read(turn)),
        }
        self.reply = reply;
    }

    fn send_read_status(&mut self, turn: &ReadTurn, status: Status, sink: &mut impl Sink) {
        let repr = Repr { status, ..turn.reply(self.epoch(), self.node()) };
        repr.emit(&[], &mut self.scratch);
        sink.send(self.client_addr(turn.client), &self.scratch);
    }

    pub(super) fn answer_read(&mut self, turn: &ReadTurn, reply: &[u8], sink: &mut impl Sink) {
        const TOO_LONG: &[u8] = b"-ERR the reply is longer than 64 MiB (Concord's limit)\r\n";
        let reply = if reply.len() > REPLY_BYTES_MAX { TOO_LONG } else { reply };
        let mut repr = turn.reply(self.epoch(), self.node());
        if reply.len() <= BODY_BYTES_MAX {
            repr.emit(reply, &mut self.scratch);
        } else {
            repr.flags = repr.flags.with(Flags::MORE);
            let version = self.kept.keep((turn.session, turn.request), reply);
            emit_first_fragment(&repr, version, reply, &mut self.scratch);
        }
        sink.send(self.client_addr(turn.client), &self.scratch);
    }

    /// Sends the fragments of a long reply that its client asks for (trap T17).
    pub(super) fn on_pull(
        &mut self,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (wanted, _) = FragmentHdr::parse(packet.body())?;
        let asked = packet.repr();
        let key = (asked.session, asked.request);
        let to = self.client_addr(asked.client);
        let mut repr = Repr { op: Op::Fragment, node: self.node(), epoch: self.epoch(), ..asked };
        let whole = if asked.request.0 & READ_BIT != 0 {
            self.kept.reply(key, wanted.version)
        } else {
            let result = self.sessions.result(key.0, key.1);
            result.filter(|r| concord_core::hash::hash64(0, r) == wanted.version)
        };
        let Some(whole) = whole.filter(|w| w.len() == wanted.total_bytes as usize) else {
            self.count.fragments_gone += 1;
            repr.status = Status::Gone;
            repr.emit(packet.body(), &mut self.scratch);
            sink.send(to, &self.scratch);
            return Ok(());
        };
        let end = wanted.index.saturating_add(wanted.count.min(PULL_MAX)).min(wanted.fragments());
        let mut body = Vec::with_capacity(BODY_BYTES_MAX);
        for index in wanted.index..end {
            let hdr = FragmentHdr { index, count: 1, ..wanted };
            body.clear();
            hdr.emit(&mut body);
            body.extend_from_slice(&whole[hdr.range()]);
            repr.emit(&body, &mut self.scratch);
            sink.send(to, &self.scratch);
            self.count.fragments_pulled += 1;
        }
        Ok(())
    }
}
