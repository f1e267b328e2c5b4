//! The client machine: its inputs, its timers, and how requests end.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::guard::Guard;
use concord_core::machine::{Deadline, Relevance};
use concord_core::{
    Duration, Instant, MS, Machine, NodeId, Nothing, Now, ObjectId, RequestNumber, Rng, SessionId,
};
use concord_wire::rpc::{BODY_BYTES_MAX, HEADER_BYTES, READ_BIT};
use concord_wire::{
    Addr, COMMAND_BYTES_MAX, Flags, Op, Packet, Reason, Repr, Sink, Status, WINDOW_MAX, WireError,
};

use crate::api::{
    Class, ClientConfig, ClientCounters, Done, Outcome, Request, Size, SubmitError, Trace,
};
use crate::flow::Flow;
use crate::route::Route;
use crate::session::Session;
use crate::slots::{READS_MAX, Slot, Slots, State};
use crate::timers::{Timers, WHOLE};
use crate::transfer::Transfer;

/// Buffers above that size are given back to the allocator.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
/// The largest number of notifications that were not fetched; waiting commands also check by
/// themselves.
const PUSHED_MAX: usize = 4_096;
/// The time, in longest retry intervals, after which a replica's report that it is at work no
/// longer counts.
const WORKING_TIMES: Duration = 3;
/// The largest number of buffers kept for reuse.
const BUFFERS_MAX: usize = 4_096;

/// A client of one rack: see the crate's documentation for the law of its API.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) rng: Rng,
    pub(crate) session: Session,
    pub(crate) slots: Slots,
    pub(crate) timers: Timers,
    /// Writes that may go on; empty between inputs.
    pub(crate) ready: VecDeque<u64>,
    /// Long values: transfers in progress and waiting ones.
    pub(crate) flow: Flow,
    /// Requests sent so far: orders attempts of different requests.
    pub(crate) stamp: u64,
    /// The destination of packets.
    pub(crate) route: Route,
    pub(crate) scratch: Vec<u8>,
    pub(crate) part: Vec<u8>,
    pub(crate) count: ClientCounters,
    done: VecDeque<Done>,
    pushed: VecDeque<Option<ObjectId>>,
    buffers: Vec<Vec<u8>>,
    /// The last report of a replica that it is at work on an operation.
    working: Option<Working>,
    /// From so long on a request's command comes back with its end.
    kept_from_ns: Duration,
}

/// A replica works on one operation.
#[derive(Clone, Copy, Debug)]
struct Working {
    /// The reporting replica, and the time.
    node: NodeId,
    heard_at: Instant,
    /// Since when it works.
    since: Instant,
}

impl Machine for Client {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        if self.on_packet(now, packet, sink).is_err() && !self.on_control(packet) {
            self.count.malformed += 1;
        }
        self.run_ready(now, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.expire_requests(now);
        while let Some(timer) = self.timers.pop_due(now.instant, |timer| self.slots.is_past(timer))
        {
            if timer.part == WHOLE {
                self.on_retry_timer(now, timer.number, sink);
            } else {
                self.on_part_timer(now, &timer, sink);
            }
            self.run_ready(now, sink);
        }
        if now.instant >= self.register_at() {
            self.register(now, sink);
        }
        if now.instant >= self.keep_alive_at() {
            self.keep_alive(now, sink);
        }
        self.run_ready(now, sink);
    }

    fn deadline(&self) -> Deadline {
        let mut first = self.timers.deadline();
        if let Some(at) = self.write_deadline() {
            first = first.min(Deadline { at, reason: "write deadline" });
        }
        if let Some((submitted_at, _)) = self.slots.oldest_read() {
            let at = self.read_deadline(submitted_at);
            first = first.min(Deadline { at, reason: "read deadline" });
        }
        first = first.min(Deadline { at: self.register_at(), reason: "register the session" });
        first.min(Deadline { at: self.keep_alive_at(), reason: "touch the session" })
    }

    /// A request that was answered or given up needs no other reply.
    fn relevance(&self, packet: &[u8]) -> Relevance {
        match Packet::parse(packet).map(|p| p.op()) {
            Ok(Op::ReadReply | Op::WriteReply) => Relevance::AsNow,
            Ok(_) | Err(_) => Relevance::Relevant,
        }
    }
}

impl Client {
    /// A client that has sent nothing yet. `rng` draws session ids: its seed must come from the
    /// driver's entropy, so that no two process starts have the same (trap T16 b).
    #[must_use]
    pub fn new(config: ClientConfig, mut rng: Rng) -> Client {
        let window = config.window.clamp(1, WINDOW_MAX);
        let mut session = Session::new(&mut rng);
        if !config.guards.on(Guard::FreshSession) {
            session = Session::of(SessionId(u64::from(config.addr.ip)));
        }
        Client {
            session,
            slots: Slots::new(window, config.first_request, config.reads_max.clamp(1, READS_MAX)),
            timers: Timers::new(config.retry_min_ns, config.retry_max_ns),
            ready: VecDeque::new(),
            flow: Flow::default(),
            stamp: 0,
            route: Route::new(config.switch, config.controller),
            scratch: Vec::new(),
            part: Vec::new(),
            count: ClientCounters::default(),
            done: VecDeque::new(),
            pushed: VecDeque::new(),
            buffers: Vec::new(),
            working: None,
            kept_from_ns: Duration::MAX,
            config,
            rng,
        }
    }

    /// Has [`Done::command`] of requests that take so long or longer.
    pub fn keep_commands_from(&mut self, latency_ns: Duration) {
        self.kept_from_ns = latency_ns;
    }

    /// Takes a request and sends it, or keeps it until it may be sent. Its number comes back in a
    /// [`Done`], exactly once, at its deadline at the latest.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing was sent or kept.
    pub fn submit(
        &mut self,
        now: Now,
        request: Request<'_>,
        sink: &mut impl Sink,
    ) -> Result<RequestNumber, SubmitError> {
        let bytes_max = match request.class {
            Class::Read => BODY_BYTES_MAX,
            Class::Write => COMMAND_BYTES_MAX,
        };
        if request.command.len() > bytes_max {
            self.count.too_large += 1;
            return Err(SubmitError::TooLarge);
        }
        if !self.has_room(request.class, Size::of(request.command.len())) {
            self.count.full += 1;
            return Err(SubmitError::Full);
        }
        let mut packet = self.buffer();
        packet.resize(HEADER_BYTES, 0);
        packet.extend_from_slice(request.command);
        let kept = request.flags.0 & Flags::WILDCARD.with(Flags::RESP3).with(Flags::WAITS).0;
        let slot = Slot {
            state: State::Waiting,
            obj_id: request.obj_id,
            further: request.further,
            flags: Flags(kept),
            packet,
            submitted_at: now.instant,
            granted_bytes: if self.config.grants_replies { 0 } else { u32::MAX },
            ..Slot::default()
        };
        self.flow.take_write(&slot);
        match request.class {
            Class::Read => {
                self.count.reads += 1;
                let number = self.slots.add_read(slot);
                self.transmit(now, number, sink);
                Ok(RequestNumber(number))
            }
            Class::Write => {
                self.count.writes += 1;
                let after = request.after.filter(|_| self.config.guards.on(Guard::WriteOrder));
                let after = after.map_or(0, |n| n.0);
                // Only an earlier write can be waited for.
                let after = if after < self.slots.next() { after } else { 0 };
                let number = self.slots.add_write(Slot { after, ..slot });
                self.ready.push_back(number);
                self.run_ready(now, sink);
                Ok(RequestNumber(number))
            }
        }
    }

    fn on_packet(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        let packet = Packet::parse(bytes)?;
        match packet.op() {
            Op::ReadReply | Op::WriteReply => self.on_reply(now, &packet, sink),
            Op::WRestAck => self.on_fragment_ack(now, &packet, sink),
            Op::Fragment => self.on_fragment(now, &packet, sink),
            Op::Push => {
                self.count.pushes += 1;
                if self.pushed.len() < PUSHED_MAX {
                    let repr = packet.repr();
                    let is_of_all = repr.flags.has(Flags::WILDCARD);
                    self.pushed.push_back((!is_of_all).then_some(repr.obj_id));
                }
                Ok(())
            }
            Op::Write | Op::WRest | Op::Read | Op::WriteCompletion | Op::Pull | Op::Sweep => {
                self.count.unexpected += 1;
                Ok(())
            }
        }
    }

    /// The unanswered request to which a packet belongs; a packet without one is counted.
    pub(crate) fn live_of_session(&mut self, repr: &Repr) -> Option<&mut Slot> {
        let Some(slot) = self.slots.live_mut(repr.request.0) else {
            self.count.late += 1;
            return None;
        };
        if slot.session != repr.session {
            self.count.foreign += 1;
            return None;
        }
        Some(slot)
    }

    fn on_reply(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let repr = packet.repr();
        if self.session.is_concerned(&repr) {
            self.on_session_reply(now, &repr, packet.body(), sink);
            return Ok(());
        }
        let is_read = repr.request.0 & READ_BIT != 0;
        let Some(slot) = self.live_of_session(&repr) else { return Ok(()) };
        if is_read != (repr.op == Op::ReadReply) || slot.sends == 0 {
            self.count.unexpected += 1;
            return Ok(());
        }
        let is_current = repr.attempt == slot.attempt() && slot.state == State::Sent;
        if repr.status == Status::Working {
            let is_due = slot.state == State::Sent;
            self.on_working(now, &repr, is_read && is_due);
            return Ok(());
        }
        // Karn: a reply whose attempt is not known says nothing about the round trip. Ours names
        // its attempt; the first one's is used too, or a round trip above the time-out would
        // never be learned.
        if slot.state == State::Sent && (is_current || repr.attempt == 0) {
            let sent_at = if is_current { slot.sent_at } else { slot.first_sent_at };
            let lane = slot.lane();
            self.timers.sample(lane, now.instant.since(sent_at));
        }
        match repr.status {
            Status::Ok => {
                self.on_work_done(now.instant, &repr);
                return self.on_ok(now, &repr, packet.body(), sink);
            }
            Status::Malformed | Status::ManyObjects => {
                self.finish(now, repr.request.0, Outcome::Malformed, Vec::new(), Some(&repr));
            }
            Status::SessionExpired if !is_read => self.expire_session(now, sink),
            Status::Stale if !is_read => {
                self.count.stale_refused += 1;
                self.finish(now, repr.request.0, Outcome::WriteUnknown, Vec::new(), Some(&repr));
            }
            Status::Order if !is_read && is_current => self.on_order(now, repr.request.0),
            Status::BodyMissing if !is_read && is_current => {
                self.on_body_missing(now, repr.request.0, sink);
            }
            // The timer of the attempt tries again later.
            Status::Window if !is_read && is_current => self.count.window_refused += 1,
            Status::Busy if !is_read && is_current => self.count.busy += 1,
            Status::Busy if is_read && is_current => {
                self.count.busy += 1;
                self.flow.refused(repr.request.0);
            }
            Status::Order | Status::BodyMissing | Status::Window | Status::Busy if !is_read => {
                self.count.late += 1;
            }
            Status::SessionExpired
            | Status::Stale
            | Status::Order
            | Status::BodyMissing
            | Status::Window
            | Status::Busy
            | Status::Working
            | Status::Gone => self.count.unexpected += 1,
        }
        Ok(())
    }

    /// A replica works on one operation, and a request waits for that: it waits longer than it
    /// would otherwise. A read ends if that takes too long; a write may be executed yet.
    fn on_working(&mut self, now: Now, repr: &Repr, is_read: bool) {
        self.count.heard_working += 1;
        let work_ns = repr.time_ms.saturating_mul(MS);
        let since = Instant(now.instant.0.saturating_sub(work_ns));
        self.working = Some(Working { node: repr.node, since, heard_at: now.instant });
        // The work may be the read itself, if that was sent before it began.
        let submitted_at = self.slots.live(repr.request.0).map(|slot| slot.submitted_at);
        let came_later = submitted_at.is_some_and(|at| at > since);
        if is_read && came_later && work_ns >= self.config.busy_ns {
            self.count.reads_busy += 1;
            self.finish(now, repr.request.0, Outcome::Busy, Vec::new(), Some(repr));
        }
    }

    /// A replica that worked has answered, or a write was executed, which stood behind the others:
    /// the work is over, and whoever waited for it waits from now on.
    fn on_work_done(&mut self, now: Instant, repr: &Repr) {
        if let Some(working) = &mut self.working
            && (repr.op == Op::WriteReply || repr.node == working.node)
        {
            (working.since, working.heard_at) = (now, now);
        }
    }

    /// Whether the replicas have been at work on one operation for so long that others are to hear
    /// of it, by what they said lately.
    #[must_use]
    pub fn is_busy(&self, now: Instant) -> bool {
        self.working.is_some_and(|working| {
            let is_fresh = now.since(working.heard_at) <= WORKING_TIMES * self.config.retry_max_ns;
            is_fresh && working.heard_at.since(working.since) >= self.config.busy_ns
        })
    }

    /// The submission time that counts for the deadline: the time for which replicas were at work
    /// does not.
    fn waits_since(&self, submitted_at: Instant) -> Instant {
        self.working.map_or(submitted_at, |working| submitted_at.max(working.heard_at))
    }

    fn on_ok(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        if !repr.flags.has(Flags::MORE) {
            let mut reply = self.buffer();
            reply.extend_from_slice(body);
            self.finish(now, repr.request.0, Outcome::Reply, reply, Some(repr));
            return Ok(());
        }
        let state = self.slots.live(repr.request.0).map(|slot| slot.state);
        if matches!(state, Some(State::Pulling | State::Parked)) {
            self.count.late += 1;
            return Ok(());
        }
        self.start_download(now, repr, body, sink)
    }

    /// Ends what reached its deadline. The lowest unanswered write always reaches it first, so that
    /// whatever is abandoned is below the lowest one then: replicas refuse it for ever as stale.
    fn expire_requests(&mut self, now: Now) {
        while let Some(at) = self.write_deadline()
            && now.instant >= at
        {
            let low = self.slots.low();
            let outcome = match self.slots.is_unsent(low) {
                true => Outcome::WriteNotExecuted,
                false => Outcome::WriteUnknown,
            };
            self.finish(now, low, outcome, Vec::new(), None);
        }
        while let Some((submitted_at, number)) = self.slots.oldest_read()
            && now.instant >= self.read_deadline(submitted_at)
        {
            self.finish(now, number, Outcome::ReadTimeout, Vec::new(), None);
        }
    }

    fn write_deadline(&self) -> Option<Instant> {
        let lowest = self.slots.live(self.slots.low())?;
        Some(self.waits_since(lowest.since()).after(self.config.write_deadline_ns))
    }

    fn read_deadline(&self, submitted_at: Instant) -> Instant {
        self.waits_since(submitted_at).after(self.config.read_deadline_ns)
    }

    /// When the registration is to be tried again.
    fn register_at(&self) -> Instant {
        self.session.register_at(self.slots.low() < self.slots.next())
    }

    /// When the session is to be touched.
    fn keep_alive_at(&self) -> Instant {
        self.session.keep_alive_at(self.config.keepalive_ns)
    }

    /// The next request that ended.
    pub fn poll(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The next object that was written since a request with [`Flags::WAITS`] found nothing there;
    /// `None` in it: any may have been. It may be lost, and come late, or in vain.
    pub fn poll_pushed(&mut self) -> Option<Option<ObjectId>> {
        self.pushed.pop_front()
    }

    /// Takes a reply's buffer back, to be used again.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && capacity <= BUFFER_BYTES_MAX && self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Ends the transfer of a request, if there is one.
    pub(crate) fn drop_transfer(&mut self, number: u64) -> Option<Box<Transfer>> {
        let transfer = self.slots.live_mut(number)?.transfer.take()?;
        self.flow.ended(transfer.out());
        Some(transfer)
    }

    /// Ends a request.
    pub(crate) fn finish(
        &mut self,
        now: Now,
        number: u64,
        outcome: Outcome,
        reply: Vec<u8>,
        from: Option<&Repr>,
    ) {
        self.drop_transfer(number);
        let Some(slot) = self.slots.live_mut(number) else { return };
        self.flow.release(slot, &mut self.ready);
        let latency_ns = now.instant.since(slot.submitted_at);
        let nobody = Repr::new(Op::Read);
        let trace = Trace::new(from.unwrap_or(&nobody), slot.sends, latency_ns);
        let (lane, round) = (slot.lane(), slot.round);
        let mut packet = core::mem::take(&mut slot.packet);
        let class = if number & READ_BIT != 0 { Class::Read } else { Class::Write };
        self.slots.remove(number);
        if class == Class::Write {
            self.slots.unlink_all(number, &mut self.ready);
        }
        self.timers.prune(lane, round, |timer| self.slots.is_past(timer));
        let mut command = Vec::new();
        if latency_ns >= self.kept_from_ns {
            packet.drain(..packet.len().min(HEADER_BYTES));
            command = packet;
        } else {
            self.give_back(packet);
        }
        self.count_outcome(class, outcome, trace.reason);
        let request = RequestNumber(number);
        self.done.push_back(Done { request, class, outcome, reply, trace, command });
    }

    fn count_outcome(&mut self, class: Class, outcome: Outcome, reason: Reason) {
        let count = &mut self.count;
        match (outcome, class) {
            (Outcome::Reply, Class::Read) => {
                count.read_replies += 1;
                let is_alone = matches!(reason, Reason::Fast | Reason::Leased);
                count.fast_reads += u64::from(is_alone);
            }
            (Outcome::Reply, Class::Write) => count.write_replies += 1,
            (Outcome::ReadTimeout, _) => count.read_timeouts += 1,
            // Counted where it was heard.
            (Outcome::Busy, _) => {}
            (Outcome::WriteNotExecuted, _) => count.writes_not_executed += 1,
            (Outcome::WriteUnknown, _) => count.writes_unknown += 1,
            (Outcome::Malformed, _) => count.refused_malformed += 1,
            (Outcome::TooLarge, _) => count.replies_too_large += 1,
        }
    }

    /// Whether another request of that class and size would be taken now.
    #[must_use]
    pub fn has_room(&self, class: Class, size: Size) -> bool {
        match class {
            Class::Read => self.slots.has_room_for_read(),
            Class::Write => self.slots.has_room_for_write() && self.flow.has_room_for_write(size),
        }
    }

    /// The distance of the next write's number from the lowest unanswered write, plus the number of
    /// unanswered reads: 0 if nothing is pending.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        (self.slots.next() - self.slots.low()) as usize + self.slots.reads_out()
    }

    /// The session's id. It changes when the replicas no longer know it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.id()
    }

    /// Whether the replicas confirmed the session.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.session.is_ready()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ClientCounters {
        &self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers are used again but none that is large and not too many.
    #[test]
    fn buffer_reuse_is_bounded() {
        let addr = Addr { ip: 1, port: 1 };
        let mut client = Client::new(ClientConfig::new(addr, addr), Rng::new(1));
        for (bytes, is_kept) in [(0, false), (1, true), (BUFFER_BYTES_MAX, true)] {
            client.give_back(Vec::with_capacity(bytes));
            assert_eq!(client.buffers.pop().is_some(), is_kept, "{bytes}");
        }
        client.give_back(Vec::with_capacity(BUFFER_BYTES_MAX + 1));
        assert!(client.buffers.is_empty());
        for _ in 0..BUFFERS_MAX + 9 {
            client.give_back(alloc::vec![7]);
        }
        assert_eq!(client.buffers.len(), BUFFERS_MAX);
        assert!(client.buffer().is_empty(), "what was in it is gone");
        assert_eq!(client.buffers.len(), BUFFERS_MAX - 1);
    }
}
