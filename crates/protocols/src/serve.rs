//! The service of a replica of any protocol to its clients, as far as its protocol permits: it
//! answers reads, stages the bodies of long writes, hands out long replies (trap T17), and has
//! expired keys deleted ([`crate::expiry`], trap T12).

use alloc::borrow::Cow;
use alloc::vec::Vec;

use concord_core::rng::splitmix64;
use concord_core::{
    Duration, Epoch, Guard, Guards, Instant, MS, NodeId, Now, Position, RequestNumber, Seq,
    SessionId,
};
use concord_engine::{Class, Command, Completion, Context, Engine, Progress, READ_TOO_LONG, resp};
use concord_wire::control::{Compared, LogEnd};
use concord_wire::fragment::{FRAGMENT_HEADER_BYTES, FragmentHdr, PULL_MAX};
use concord_wire::rpc::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{
    Addr, Checked, Flags, Op, Packet, REPLY_BYTES_MAX, Repr, Sink, Status, VALUE_BYTES_MAX,
    WireError, checked_reply,
};

use crate::bodies::{Refused, ReplyCache, Staging};
use crate::compare::Comparing;
use crate::counters::ReplicaCounters;
use crate::expiry::{Expiring, Orderer};
use crate::pending::{PendingRead, PendingWrite, emit_first_fragment};
use crate::sessions::{Sessions, Verdict};
use crate::setup::{InForce, ReplicaConfig};
use crate::waiting::Waiting;
use crate::watch::{EngineWatch, Reading};

/// The state that clients see, which is the engine and the client table, and the transfers from and
/// to clients.
#[derive(Clone, Debug)]
pub(crate) struct Serving<E> {
    node: NodeId,
    /// This replica's address.
    addr: Addr,
    replies_via_switch: bool,
    guards: Guards,
    pub(crate) engine: E,
    engine_watch: EngineWatch,
    /// The time of the engine's next slice of work, if it has more to do; then the pause between
    /// two slices.
    work_at: Instant,
    slice_ns: Duration,
    /// The time since which the engine works on an operation in slices.
    in_slices_since: Option<Instant>,
    work_ns: Duration,
    pub(crate) sessions: Sessions,
    staging: Staging,
    kept: ReplyCache,
    expiring: Expiring,
    comparing: Comparing,
    /// Reads that wait for the engine.
    reading: Reading,
    /// Clients that wait for a write.
    waiting: Waiting,
    /// The engine's reply to an operation that it completes at once.
    pub(crate) reply: Vec<u8>,
    scratch: Vec<u8>,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// It was refused with an answer, or dropped.
    Refused,
    /// It waits for the engine.
    Waits,
    /// Its answer is in [`Serving::reply`].
    Done,
}

impl<E: Engine> Serving<E> {
    pub(crate) fn new(setup: &ReplicaConfig, engine: E) -> Serving<E> {
        Serving {
            node: NodeId(setup.me.node),
            addr: setup.me.addr,
            replies_via_switch: setup.replies_via_switch,
            guards: setup.guards,
            engine,
            engine_watch: EngineWatch::new(setup.limits.engine_silence_ns),
            work_at: Instant(0),
            slice_ns: setup.limits.slice_ns,
            in_slices_since: None,
            work_ns: setup.limits.work_ns,
            sessions: Sessions::new(setup.guards).with_room_for(setup.limits.sessions_max),
            staging: Staging::default(),
            kept: ReplyCache::new(setup.me.incarnation),
            expiring: Expiring::default(),
            comparing: Comparing::new(setup.compare_ns),
            reading: Reading::default(),
            waiting: Waiting::default(),
            reply: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Forgets the state. [`Progress::Pending`] if the engine still has to finish that.
    pub(crate) fn forget(&mut self) -> Progress {
        let progress = self.engine.clear();
        self.sessions.forget();
        self.waiting = Waiting::default();
        progress
    }

    /// Forgets writes that have not been ordered: staged bodies and expiries.
    pub(crate) fn forget_writes(&mut self) {
        (self.staging, self.expiring) = (Staging::default(), Expiring::default());
    }

    /// The next hop of a packet to a client: the switch, or the client itself.
    pub(crate) fn to(&self, in_force: InForce, client: Addr) -> Addr {
        if self.replies_via_switch || in_force.checked.is_some() { in_force.switch } else { client }
    }

    /// An operation that the engine has completed, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        let done = self.engine.poll();
        if done.is_some() {
            self.in_slices_since = None;
        }
        // An engine that is at work is not silent.
        if done.is_some() || self.engine.works() {
            self.engine_watch.answered();
        }
        done
    }

    /// Schedules the engine's next slice of work, if it has more, so that packets are handled in
    /// between.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.work_at = now.after(self.slice_ns);
        self.in_slices_since = self.in_slices_since.or(Some(now)).filter(|_| self.engine.works());
    }

    /// The time of the next slice.
    pub(crate) fn work_at(&self) -> Instant {
        if self.engine.works() { self.work_at } else { Instant::NEVER }
    }

    /// The time for which the engine, or another member since `others`, has been at work on one
    /// operation, if it is long enough to tell clients.
    pub(crate) fn works_for(&self, now: Instant, others: Option<Instant>) -> Option<Duration> {
        let own = [self.engine.at_work_since(), self.in_slices_since];
        let since = own.into_iter().flatten().min();
        let own_ns = since.map(|since| now.since(since)).filter(|ns| *ns >= self.work_ns);
        own_ns.max(others.map(|since| now.since(since) + self.work_ns))
    }

    /// Tells the client of a retry that there is no outcome yet, and how long the work has taken.
    /// The retry is then dropped: the command waits, or gets another number later. Returns whether
    /// that was so.
    pub(crate) fn puts_off(
        &mut self,
        works_ns: Duration,
        repr: &Repr,
        (epoch, op): (Epoch, Op),
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) -> bool {
        let is_own = Flags::OWN.iter().any(|own| repr.flags.has(*own));
        if is_own {
            return false;
        }
        let reply = Repr {
            op,
            status: Status::Working,
            flags: Flags::default(),
            seq: Seq::NONE,
            time_ms: works_ns / MS,
            node: self.node,
            epoch,
            ..*repr
        };
        reply.emit(&[], &mut self.scratch);
        sink.send(repr.client, &self.scratch);
        count.put_off += 1;
        repr.attempt > 0
    }

    /// Checks whether the engine still answers, if it `owes` an answer. Returns true if it has been
    /// silent for so long that it is given up.
    pub(crate) fn gives_up_engine(
        &mut self,
        now: Instant,
        owes: bool,
        count: &mut ReplicaCounters,
    ) -> bool {
        let works = self.engine.at_work_since().is_some();
        self.engine_watch.look(now, owes && !works);
        let is_dead = self.engine_watch.is_dead() && self.guards.on(Guard::EngineSilence);
        if is_dead {
            self.engine_watch.answered();
            count.engines_silent += 1;
        }
        is_dead
    }

    /// Whether the engine has been silent for so long that other members should take over its work.
    pub(crate) fn is_engine_silent(&self) -> bool {
        self.engine_watch.is_silent()
    }

    /// The time of the next check of the engine. One that is at work is not silent
    /// ([`Serving::gives_up_engine`]), and is not checked.
    pub(crate) fn watch_at(&self, owes: bool) -> Instant {
        let works = self.engine.at_work_since().is_some();
        self.engine_watch.next_at(owes && !works)
    }

    /// Starts a read, unless the engine is already executing the same one.
    pub(crate) fn read(
        &mut self,
        now: Now,
        operation: &PendingRead,
        (repr, command): (&Repr, &[u8]),
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) -> Read {
        let (session, request) = (operation.asked.session, operation.asked.request);
        if !self.reading.may_begin(session, request) {
            count.reads_queued += 1;
            if let Some(works_ns) = self.works_for(now.instant, None) {
                self.puts_off(works_ns, repr, (in_force.epoch, Op::ReadReply), count, sink);
            }
            return Read::Refused;
        }
        let Ok(command) = Command::parse(command) else {
            count.malformed += 1;
            let reply = operation.reply(in_force.epoch, self.node);
            Repr { status: Status::Malformed, ..reply }.emit(&[], &mut self.scratch);
            self.send_answer(operation, command, in_force, sink);
            return Read::Refused;
        };
        let context = Context {
            now_ms: in_force.clock.read(now.unix_ms),
            entropy: splitmix64(now.instant.0 ^ repr.request.0),
            resp3: repr.flags.has(Flags::RESP3),
            ..Context::default()
        };
        self.reply.clear();
        match self.engine.submit(&context, Class::Read, &command, &mut self.reply) {
            Progress::Pending => {
                self.reading.begin(session, request);
                Read::Waits
            }
            Progress::Done => Read::Done,
        }
    }

    /// Forgets a read that waited for the engine.
    pub(crate) fn end_read(&mut self, operation: &PendingRead) {
        self.reading.end(operation.asked.session, operation.asked.request);
    }

    /// Answers a read that the engine has completed. `command` is the read's command, if it is
    /// still known.
    pub(crate) fn answer(
        &mut self,
        now: Now,
        operation: &PendingRead,
        (reply, command): (&[u8], &[u8]),
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) {
        // The longest string fits into a reply.
        const _: () = assert!(concord_engine::STRING_BYTES_MAX + 32 <= REPLY_BYTES_MAX);
        const _: () = assert!(concord_engine::STRING_BYTES_MAX == VALUE_BYTES_MAX);
        const _: () = assert!(concord_engine::REPLY_BYTES_MAX == REPLY_BYTES_MAX);
        let reply = if reply.len() > REPLY_BYTES_MAX { READ_TOO_LONG } else { reply };
        let mut repr = operation.reply(in_force.epoch, self.node);
        let key = (operation.asked.session, operation.asked.request);
        if reply.len() <= BODY_BYTES_MAX {
            repr.emit(reply, &mut self.scratch);
        } else if let Some(version) = self.kept.keep(now.instant, key, reply) {
            repr.flags = repr.flags.with(Flags::MORE);
            emit_first_fragment(&repr, version, reply, &mut self.scratch);
        } else {
            count.replies_without_room += 1;
            Repr { status: Status::Busy, ..repr }.emit(&[], &mut self.scratch);
        }
        self.send_answer(operation, command, in_force, sink);
    }

    /// Sends the answer to a read, which is in [`Serving::reply`].
    fn send_answer(
        &mut self,
        operation: &PendingRead,
        command: &[u8],
        in_force: InForce,
        sink: &mut impl Sink,
    ) {
        if let Some(switch) = in_force.checked {
            let seq = operation.asked.seq;
            let checked = Checked { seq, switch, ..Checked::default() };
            checked_reply(&mut self.scratch, checked, command);
        }
        sink.send(self.to(in_force, operation.asked.client), &self.scratch);
    }

    /// Sends the requested fragments of a long reply (trap T17).
    pub(crate) fn pull(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (wanted, _) = FragmentHdr::parse(packet.body())?;
        let asked = packet.repr();
        let to = self.to(in_force, asked.client);
        let mut repr = Repr { op: Op::Fragment, node: self.node, epoch: in_force.epoch, ..asked };
        let key = (asked.session, asked.request);
        if wanted.count == 0 {
            self.kept.release(key, wanted.version);
            return Ok(());
        }
        let (kept, sessions) = (&mut self.kept, &self.sessions);
        let whole = long_reply(now.instant, kept, sessions, key, wanted.version);
        let Some(whole) = whole.filter(|w| w.len() == wanted.total_bytes as usize) else {
            count.fragments_gone += 1;
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
            hdr.emit_of(whole, &mut body);
            repr.emit(&body, &mut self.scratch);
            sink.send(to, &self.scratch);
            count.fragments_pulled += 1;
        }
        Ok(())
    }

    /// Stages a fragment of a body, which precedes its write (trap T17).
    pub(crate) fn stage(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (hdr, payload) = FragmentHdr::parse(packet.body())?;
        let repr = packet.repr();
        let ack = Repr { op: Op::WRestAck, node: self.node, epoch: in_force.epoch, ..repr };
        // A late fragment of an executed write takes no room; its client gets the reply.
        let status = if self.sessions.was_executed(repr.session, repr.request) {
            Status::Ok
        } else {
            let key = (repr.session, repr.request);
            match self.staging.add(now.instant, key, &hdr, payload) {
                Ok(()) => {
                    count.fragments_staged += 1;
                    Status::Ok
                }
                Err(Refused::NoRoom) => {
                    count.bodies_without_room += 1;
                    Status::Busy
                }
                Err(Refused::Malformed) => {
                    count.fragments_refused += 1;
                    return Ok(());
                }
            }
        };
        let ack = Repr { status, ..ack };
        ack.emit(&packet.body()[..FRAGMENT_HEADER_BYTES], &mut self.scratch);
        sink.send(self.to(in_force, repr.client), &self.scratch);
        Ok(())
    }

    /// The staged body of a write in this version, if it is complete.
    pub(crate) fn staged(&self, repr: &Repr, version: u64) -> Option<&[u8]> {
        self.staging.whole((repr.session, repr.request), version)
    }

    /// Removes and returns the staged body of a write in this version, if it is complete.
    pub(crate) fn take_staged(&mut self, repr: &Repr, version: u64) -> Option<Vec<u8>> {
        self.staging.take((repr.session, repr.request), version)
    }

    /// Handles a write that this replica has answered. If it is a command that waits and found
    /// nothing, or too little, its client is remembered; otherwise clients that wait for its
    /// objects are told.
    pub(crate) fn tell_waiting(
        &mut self,
        operation: &PendingWrite,
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) {
        let asked = &operation.asked;
        match operation.verdict {
            Verdict::Execute | Verdict::Duplicate => {}
            Verdict::Nothing | Verdict::Refused(_) => return,
        }
        if asked.flags.has(Flags::WAITS) {
            let result = self.sessions.result(asked.session, asked.request);
            if result.is_some_and(resp::ends_in_null) {
                return self.waiting.add(asked.client, asked.obj_id, &operation.further);
            }
        }
        if self.waiting.is_empty() {
            return;
        }
        let told = self.waiting.take(asked.flags, asked.obj_id, &operation.further);
        for (client, object) in told {
            let flags = Flags(0).set(Flags::WILDCARD, object.is_none());
            let (obj_id, node, epoch) = (object.unwrap_or_default(), self.node, in_force.epoch);
            let push = Repr { flags, obj_id, client, node, epoch, ..Repr::new(Op::Push) };
            push.emit(&[], &mut self.scratch);
            sink.send(self.to(in_force, client), &self.scratch);
            count.waiting_told += 1;
        }
    }

    /// Whether the write is one of this replica's own expiries.
    pub(crate) fn is_own(&self, repr: &Repr) -> bool {
        repr.flags.has(Flags::INTERNAL) && repr.node == self.node
    }

    /// The body of one of this replica's own expiries, if it is too long for a packet.
    pub(crate) fn own_body(&self, repr: &Repr, hdr: &[u8]) -> Option<Vec<u8>> {
        if self.is_own(repr) { self.expiring.body(repr, hdr) } else { None }
    }

    /// Notes that a write was ordered at `position`, so that an own expiry is not sent again.
    pub(crate) fn on_ordered(&mut self, repr: &Repr, position: Position) {
        if self.is_own(repr) {
            self.expiring.on_ordered(repr, position);
        }
    }

    /// Whether no key has a time to live.
    pub(crate) fn is_timeless(&self) -> bool {
        self.engine.next_expiry_ms().is_none()
    }

    /// At the ordering replica: the time of the next search for expired keys.
    pub(crate) fn expire_at(&self) -> Instant {
        if self.is_timeless() { Instant::NEVER } else { self.expiring.next_at() }
    }

    /// Whether it is time to search for expired keys. Sets the next time.
    pub(crate) fn is_expiry_due(&mut self, now: Instant) -> bool {
        self.expiring.is_due(now)
    }

    /// Whether more expired keys wait to be deleted; expiries ordered up to `settled` are complete.
    pub(crate) fn has_more_expiries(&mut self, settled: Position) -> bool {
        self.expiring.goes_on(settled)
    }

    /// At the ordering replica: has expired keys deleted ([`Expiring::expire`]).
    pub(crate) fn expire(
        &mut self,
        now: Now,
        ordered: (Position, u64),
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) {
        let (expiring, _, by) = self.orderer(in_force, count);
        expiring.expire(now, ordered, by, sink);
    }

    /// The parts of an ordering replica that sends writes of its own.
    fn orderer<'a>(
        &'a mut self,
        in_force: InForce,
        count: &'a mut ReplicaCounters,
    ) -> (&'a mut Expiring, &'a mut Comparing, Orderer<'a, E>) {
        let by = Orderer {
            engine: &mut self.engine,
            node: self.node,
            addr: self.addr,
            in_force,
            guards: self.guards,
            scratch: &mut self.scratch,
            count,
        };
        (&mut self.expiring, &mut self.comparing, by)
    }

    /// At the ordering replica: the time at which replicas compare their states again.
    pub(crate) fn compare_at(&self) -> Instant {
        self.comparing.next_at()
    }

    /// At the ordering replica: has the replicas compare a part of their states, if it is time and
    /// the log has room ([`crate::compare`]).
    pub(crate) fn compare(
        &mut self,
        now: Instant,
        has_room: bool,
        in_force: InForce,
        count: &mut ReplicaCounters,
        sink: &mut impl Sink,
    ) {
        let (_, comparing, by) = self.orderer(in_force, count);
        comparing.ask(now, has_room, by, sink);
    }

    /// Notes an executed write. If it has the replicas compare their states, returns the place at
    /// which the part begins.
    pub(crate) fn note_executed(&mut self, operation: &PendingWrite) -> Option<u16> {
        self.comparing.executed(operation)
    }

    /// Makes the digest of a part of the state, which is that of the log up to `at`.
    pub(crate) fn make_digest(&mut self, first: u16, at: LogEnd, count: &mut ReplicaCounters) {
        count.digests_made += u64::from(self.comparing.make(first, at, &self.engine));
    }

    /// The digests for the next report to the controller.
    pub(crate) fn digests(&mut self) -> Vec<Compared> {
        self.comparing.report()
    }
}

/// Of what executes nothing.
pub(crate) const NO_REPLY: Cow<'static, [u8]> = Cow::Borrowed(&[]);

/// The engine's reply to a write. One of many packets is given away, so that the client table need
/// not copy it, and its buffer begins anew.
pub(crate) fn handed_over(reply: &mut Vec<u8>) -> Cow<'_, [u8]> {
    match reply.len() > BODY_BYTES_MAX {
        true => Cow::Owned(core::mem::take(reply)),
        false => Cow::Borrowed(reply),
    }
}

/// A long reply: a read's is in the reply cache, a write's in the client table.
fn long_reply<'a>(
    now: Instant,
    kept: &'a mut ReplyCache,
    sessions: &'a Sessions,
    (session, request): (SessionId, RequestNumber),
    version: u64,
) -> Option<&'a [u8]> {
    if request.0 & READ_BIT != 0 {
        return kept.reply(now, (session, request), version);
    }
    let (result, own) = sessions.long_result(session, request)?;
    (own == version).then_some(result)
}

#[cfg(test)]
mod tests {
    use concord_core::hash::hash64;
    use concord_wire::record::Record;

    use super::*;

    /// A long reply is given only to who asks for that very version.
    #[test]
    fn t17_long_reply_only_for_its_version() {
        let (at, session, write) = (Instant(0), SessionId(7), RequestNumber(1));
        let record = Record { session, request: write, ..Record::EMPTY };
        let mut sessions = Sessions::new(Guards::ALL);
        sessions.admit(&Record { flags: Flags::REGISTER, ..record });
        assert_eq!(sessions.admit(&record), Verdict::Execute);
        let (result, read) = ([b'x'; 3_000], RequestNumber(1 | READ_BIT));
        sessions.complete(session, write, &result);
        let mut kept = ReplyCache::new(1);
        let of_read = kept.keep(at, (session, read), b"read").unwrap();
        let mut reply = |request, version| {
            let key = (session, request);
            long_reply(at, &mut kept, &sessions, key, version).map(<[u8]>::to_vec)
        };
        let of_write = hash64(0, &result);
        assert_eq!(reply(write, of_write), Some(result.to_vec()));
        assert_eq!(reply(write, of_write ^ 1), None);
        assert_eq!(reply(RequestNumber(2), of_write), None);
        assert_eq!(reply(read, of_read), Some(b"read".to_vec()));
        assert_eq!(reply(read, of_read ^ 1), None);
        assert_eq!(reply(write, of_read), None);
    }
}
