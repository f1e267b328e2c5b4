//! Pending operations: the parts of a request that its record and its answers need.

use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{
    Epoch, Guard, Guards, NodeId, ObjectId, Position, RequestNumber, Seq, SessionId,
};
use concord_engine::{Context, Engine};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Addr, Flags, FurtherIds, Op, Reason, Repr, Status};

use crate::sessions::{Sessions, Verdict};

/// A request without its command: the client, the operation, the objects and the numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHeader {
    pub(crate) flags: Flags,
    pub(crate) seq: Seq,
    pub(crate) session: SessionId,
    pub(crate) request: RequestNumber,
    pub(crate) obj_id: ObjectId,
    pub(crate) attempt: u16,
    pub(crate) low_delta: u16,
    pub(crate) after_delta: u16,
    pub(crate) client: Addr,
    /// The log's time at which the request was ordered; 0 for a read.
    pub(crate) now_ms: u64,
}

impl RequestHeader {
    /// The header of a request that came in a packet and was ordered at `now_ms`.
    pub(crate) fn of(repr: &Repr, now_ms: u64) -> RequestHeader {
        RequestHeader {
            flags: repr.flags,
            seq: repr.seq,
            session: repr.session,
            request: repr.request,
            obj_id: repr.obj_id,
            attempt: repr.attempt,
            low_delta: repr.low_delta,
            after_delta: repr.after_delta,
            client: repr.client,
            now_ms,
        }
    }

    /// The header of a request, from its record.
    pub(crate) fn recorded(record: &Record<'_>) -> RequestHeader {
        RequestHeader {
            flags: record.flags,
            seq: record.seq,
            session: record.session,
            request: record.request,
            obj_id: record.obj_id,
            attempt: record.attempt,
            low_delta: record.low_delta,
            after_delta: record.after_delta,
            client: record.client,
            now_ms: record.now_ms,
        }
    }

    /// The request's record at `position`, without the running hash.
    pub(crate) fn record<'a>(
        &self,
        (position, epoch): (Position, Epoch),
        further: FurtherIds,
        refused: Status,
        command: &'a [u8],
        reply: &'a [u8],
    ) -> Record<'a> {
        Record {
            position,
            hash: 0,
            epoch,
            flags: self.flags,
            low_delta: self.low_delta,
            seq: self.seq,
            session: self.session,
            request: self.request,
            now_ms: self.now_ms,
            obj_id: self.obj_id,
            further,
            after_delta: self.after_delta,
            attempt: self.attempt,
            client: self.client,
            refused,
            command,
            reply,
        }
    }

    /// The header of an answer by `from`.
    pub(crate) fn header(&self, from: Repr) -> Repr {
        // The request number of a registration is a position: its answer must not be taken for that
        // of a write with the same number.
        let registers = self.flags.has(Flags::REGISTER);
        Repr {
            flags: from.flags.set(Flags::REGISTER, from.flags.has(Flags::REGISTER) || registers),
            obj_id: self.obj_id,
            seq: self.seq,
            session: self.session,
            request: self.request,
            client: self.client,
            attempt: self.attempt,
            ..from
        }
    }

    /// The header of the request's packet, as stamped by a switch that orders.
    pub(crate) fn stamped(&self) -> Repr {
        Repr {
            flags: self.flags,
            low_delta: self.low_delta,
            after_delta: self.after_delta,
            time_ms: self.now_ms,
            ..self.header(Repr::new(Op::Write))
        }
    }
}

/// A pending write: everything that is needed to finish and answer it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingWrite {
    pub(crate) position: Position,
    pub(crate) asked: RequestHeader,
    /// The objects after the first.
    pub(crate) further: FurtherIds,
    pub(crate) refused: Status,
    pub(crate) verdict: Verdict,
    /// Whether this node orders the write, and makes its record once the engine has answered.
    pub(crate) deciding: bool,
}

impl PendingWrite {
    /// The pending write of a record that another node ordered, before the client table's verdict.
    pub(crate) fn of(record: &Record<'_>) -> PendingWrite {
        PendingWrite {
            position: record.position,
            asked: RequestHeader::recorded(record),
            further: record.further,
            refused: record.refused,
            verdict: Verdict::Nothing,
            deciding: false,
        }
    }

    /// The context in which the engine executes the write: the same at every replica.
    pub(crate) fn context(&self, engine: &impl Engine, guards: Guards) -> Context {
        let is_recorded = guards.on(Guard::RecordedMemory);
        let RequestHeader { now_ms, flags, .. } = self.asked;
        Context {
            now_ms,
            entropy: splitmix64(self.position.0 ^ now_ms.rotate_left(32)),
            position: self.position.0,
            resp3: flags.has(Flags::RESP3),
            decide: self.deciding,
            is_passed: false,
            memory_full: if is_recorded { flags.has(Flags::MEMORY_FULL) } else { engine.is_full() },
        }
    }

    pub(crate) fn record<'a>(
        &self,
        epoch: Epoch,
        command: &'a [u8],
        reply: &'a [u8],
    ) -> Record<'a> {
        self.asked.record((self.position, epoch), self.further, self.refused, command, reply)
    }
}

/// A read that is being answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRead {
    pub(crate) asked: RequestHeader,
    last_committed: Seq,
    reason: Reason,
    /// The last write that the read may have seen, a position of this epoch: the reply waits until
    /// all writes up to there are committed.
    pub(crate) needed: Position,
    pub(crate) epoch: Epoch,
}

impl PendingRead {
    pub(crate) fn of(repr: &Repr, reason: Reason) -> PendingRead {
        PendingRead {
            asked: RequestHeader::of(repr, 0),
            last_committed: repr.last_committed,
            reason,
            needed: Position(0),
            epoch: Epoch(0),
        }
    }

    /// The reply's header.
    pub(crate) fn reply(&self, epoch: Epoch, node: NodeId) -> Repr {
        Repr {
            flags: self.asked.flags,
            seq: Seq::NONE,
            last_committed: self.last_committed,
            epoch,
            node,
            reason: self.reason,
            ..self.asked.header(Repr::new(Op::ReadReply))
        }
    }
}

/// The reply to an executed or refused write, as the client table has it. `from` has the fields of
/// the answering replica.
pub(crate) fn emit_write_reply(
    operation: &PendingWrite,
    from: Repr,
    sessions: &Sessions,
    out: &mut Vec<u8>,
) {
    let mut repr = operation.asked.header(from);
    let mut reply: &[u8] = &[];
    let position = operation.position.0.to_be_bytes();
    match operation.verdict {
        Verdict::Execute | Verdict::Duplicate => {
            match sessions.result(operation.asked.session, operation.asked.request) {
                Some(result) => reply = result,
                None => repr.status = Status::Stale,
            }
        }
        Verdict::Nothing => {}
        Verdict::Refused(status) => {
            repr.status = status;
            if operation.asked.flags.has(Flags::REGISTER) {
                // The reply to a session that has to register: the position to register with.
                reply = &position;
            }
        }
    }
    match sessions.long_result(operation.asked.session, operation.asked.request) {
        Some((result, version)) if reply.len() > BODY_BYTES_MAX => {
            repr.flags = repr.flags.with(Flags::MORE);
            emit_first_fragment(&repr, version, result, out);
        }
        _ => repr.emit(reply, out),
    }
}

/// Writes the first fragment of a reply that is too long for one packet; the client pulls the rest.
pub(crate) fn emit_first_fragment(repr: &Repr, version: u64, reply: &[u8], out: &mut Vec<u8>) {
    let hdr = FragmentHdr { version, total_bytes: reply.len() as u32, index: 0, count: 1 };
    let mut body = Vec::with_capacity(BODY_BYTES_MAX);
    hdr.emit_of(reply, &mut body);
    repr.emit(&body, out);
}
