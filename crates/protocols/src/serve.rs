//! What a replica of any protocol does alike for its clients, once its protocol has decided that it
//! may: it answers reads, stages the bodies of long writes and hands out long replies (trap T17), and
//! ([`crate::expiry`]) has keys deleted whose time has come (trap T12).

use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{Epoch, Instant, LogClock, NodeId, Now, RequestNumber, SessionId};
use concord_engine::{Class, Command, Context, Engine, Progress};
use concord_wire::fragment::{FRAGMENT_HEADER_BYTES, FragmentHdr, PULL_MAX};
use concord_wire::rpc::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{
    Addr, Flags, Op, Packet, REPLY_BYTES_MAX, Reason, Repr, Sink, Status, WireError,
};

use crate::bodies::{Kept, Refused, Staging};
use crate::expiry::Expiring;
use crate::reads::ReadTurn;
use crate::replica::ReplicaCounters;
use crate::sessions::Sessions;

/// The parts of a replica that serve its clients.
pub(crate) struct Serving<'a, E> {
    pub(crate) node: NodeId,
    /// What packets to clients carry as the epoch.
    pub(crate) epoch: Epoch,
    /// The own address.
    pub(crate) addr: Addr,
    pub(crate) switch: Addr,
    pub(crate) replies_via_switch: bool,
    pub(crate) engine: &'a mut E,
    pub(crate) sessions: &'a Sessions,
    pub(crate) staging: &'a mut Staging,
    pub(crate) kept: &'a mut Kept,
    pub(crate) expiring: &'a mut Expiring,
    /// The log's time.
    pub(crate) clock: LogClock,
    pub(crate) reply: &'a mut Vec<u8>,
    pub(crate) scratch: &'a mut Vec<u8>,
    pub(crate) count: &'a mut ReplicaCounters,
}

impl<E: Engine> Serving<'_, E> {
    /// Where a packet to a client goes first.
    pub(crate) fn to(&self, client: Addr) -> Addr {
        if self.replies_via_switch { self.switch } else { client }
    }

    /// Has the engine read, and answers; the read that waits for the engine, if it does.
    #[must_use]
    pub(crate) fn read(
        &mut self,
        now: Now,
        repr: &Repr,
        command: &[u8],
        reason: Reason,
        sink: &mut impl Sink,
    ) -> Option<ReadTurn> {
        let turn = ReadTurn::of(repr, reason);
        match self.ask(now, &turn, repr, command, sink)? {
            Progress::Pending => Some(turn),
            Progress::Done => {
                let reply = core::mem::take(self.reply);
                self.answer(now, &turn, &reply, sink);
                *self.reply = reply;
                None
            }
        }
    }

    /// Has the engine read; the reply is in `reply` if it is done. `None` if it was refused.
    pub(crate) fn ask(
        &mut self,
        now: Now,
        turn: &ReadTurn,
        repr: &Repr,
        command: &[u8],
        sink: &mut impl Sink,
    ) -> Option<Progress> {
        let command = match Command::parse(command) {
            Ok(command) if repr.further.is_empty() => command,
            refused => {
                let status = if refused.is_ok() { Status::ManyObjects } else { Status::Malformed };
                self.count.malformed += 1;
                let reply = turn.reply(self.epoch, self.node);
                Repr { status, ..reply }.emit(&[], self.scratch);
                sink.send(self.to(turn.client), self.scratch);
                return None;
            }
        };
        let context = Context {
            now_ms: self.clock.read(now.unix_ms),
            entropy: splitmix64(now.instant.0 ^ repr.request.0),
            resp3: repr.flags.has(Flags::RESP3),
            ..Context::default()
        };
        self.reply.clear();
        Some(self.engine.submit(&context, Class::Read, &command, self.reply))
    }

    /// The engine has read.
    pub(crate) fn answer(&mut self, now: Now, turn: &ReadTurn, reply: &[u8], sink: &mut impl Sink) {
        const TOO_LONG: &[u8] = b"-ERR the reply is longer than 64 MiB (Concord's limit)\r\n";
        let reply = if reply.len() > REPLY_BYTES_MAX { TOO_LONG } else { reply };
        let mut repr = turn.reply(self.epoch, self.node);
        if reply.len() <= BODY_BYTES_MAX {
            repr.emit(reply, self.scratch);
        } else if let Some(version) =
            self.kept.keep(now.instant, (turn.session, turn.request), reply)
        {
            repr.flags = repr.flags.with(Flags::MORE);
            emit_first_fragment(&repr, version, reply, self.scratch);
        } else {
            self.count.replies_without_room += 1;
            Repr { status: Status::Busy, ..repr }.emit(&[], self.scratch);
        }
        sink.send(self.to(turn.client), self.scratch);
    }

    /// Sends the fragments of a long reply that its client asks for (trap T17).
    pub(crate) fn pull(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (wanted, _) = FragmentHdr::parse(packet.body())?;
        let asked = packet.repr();
        let to = self.to(asked.client);
        let mut repr = Repr { op: Op::Fragment, node: self.node, epoch: self.epoch, ..asked };
        let key = (asked.session, asked.request);
        if wanted.count == 0 {
            self.kept.release(key, wanted.version);
            return Ok(());
        }
        let whole = long_reply(now.instant, self.kept, self.sessions, key, wanted.version);
        let Some(whole) = whole.filter(|w| w.len() == wanted.total_bytes as usize) else {
            self.count.fragments_gone += 1;
            repr.status = Status::Gone;
            repr.emit(packet.body(), self.scratch);
            sink.send(to, self.scratch);
            return Ok(());
        };
        let end = wanted.index.saturating_add(wanted.count.min(PULL_MAX)).min(wanted.fragments());
        let mut body = Vec::with_capacity(BODY_BYTES_MAX);
        for index in wanted.index..end {
            let hdr = FragmentHdr { index, count: 1, ..wanted };
            body.clear();
            hdr.emit_of(whole, &mut body);
            repr.emit(&body, self.scratch);
            sink.send(to, self.scratch);
            self.count.fragments_pulled += 1;
        }
        Ok(())
    }

    /// A fragment of a body, before its write (trap T17).
    pub(crate) fn stage(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (hdr, payload) = FragmentHdr::parse(packet.body())?;
        let repr = packet.repr();
        let ack = Repr { op: Op::WRestAck, node: self.node, epoch: self.epoch, ..repr };
        // A late fragment of what was executed takes no room; its client has the reply, or will.
        let status = if self.sessions.was_executed(repr.session, repr.request) {
            Status::Ok
        } else {
            let key = (repr.session, repr.request);
            match self.staging.add(now.instant, key, &hdr, payload) {
                Ok(()) => {
                    self.count.fragments_staged += 1;
                    Status::Ok
                }
                Err(Refused::NoRoom) => {
                    self.count.bodies_without_room += 1;
                    Status::Busy
                }
                Err(Refused::Malformed) => {
                    self.count.fragments_refused += 1;
                    return Ok(());
                }
            }
        };
        let ack = Repr { status, ..ack };
        ack.emit(&packet.body()[..FRAGMENT_HEADER_BYTES], self.scratch);
        sink.send(self.to(repr.client), self.scratch);
        Ok(())
    }
}

/// A read's reply was kept for its client, a write's is in the client table.
fn long_reply<'a>(
    now: Instant,
    kept: &'a mut Kept,
    sessions: &'a Sessions,
    (session, request): (SessionId, RequestNumber),
    version: u64,
) -> Option<&'a [u8]> {
    if request.0 & READ_BIT != 0 {
        return kept.reply(now, (session, request), version);
    }
    let result = sessions.result(session, request);
    result.filter(|r| concord_core::hash::hash64(0, r) == version)
}

/// A reply that is too long for one packet: its first fragment; the client pulls the rest.
pub(crate) fn emit_first_fragment(repr: &Repr, version: u64, reply: &[u8], out: &mut Vec<u8>) {
    let hdr = FragmentHdr { version, total_bytes: reply.len() as u32, index: 0, count: 1 };
    let mut body = Vec::with_capacity(BODY_BYTES_MAX);
    hdr.emit_of(reply, &mut body);
    repr.emit(&body, out);
}
