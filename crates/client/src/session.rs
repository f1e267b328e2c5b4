//! The session under which writes are executed at most once (trap T16).

use concord_core::{Instant, Now, RequestNumber, Rng, SessionId};
use concord_wire::{Flags, Op, Packet, Repr, Sink, Status};

use crate::api::Outcome;
use crate::client::Client;
use crate::slots::State;
use crate::timers::{Lane, ROUNDS};

/// Requests of the session itself have this number.
const SESSION_REQUEST: RequestNumber = RequestNumber(0);

/// How far the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Not registered; no write asked for it.
    Fresh,
    /// Its registration is under way.
    Registering,
    /// The replicated stream knows it.
    Ready,
}

/// The session of a client.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub state: SessionState,
    attempt: u16,
    round: u8,
    pub resend_at: Instant,
    /// When a write was sent last.
    pub touched_at: Instant,
}

impl Session {
    /// A session with an id that no process had before.
    pub fn new(rng: &mut Rng) -> Session {
        let mut id = 0;
        while id == 0 {
            id = rng.next_u64();
        }
        Session {
            id: SessionId(id),
            state: SessionState::Fresh,
            attempt: 0,
            round: 0,
            resend_at: Instant::NEVER,
            touched_at: Instant(0),
        }
    }
}

impl Client {
    /// Registers the session through the replicated stream, or tries again.
    pub(crate) fn register(&mut self, now: Now, sink: &mut impl Sink) {
        let session = &mut self.session;
        if session.state == SessionState::Registering {
            session.attempt = session.attempt.saturating_add(1);
            session.round = (session.round + 1).min(ROUNDS);
        }
        session.state = SessionState::Registering;
        let wait_ns = self.timers.timeout_ns(Lane::Write, session.round);
        session.resend_at = now.instant.after(wait_ns);
        self.count.registers += 1;
        let attempt = self.session.attempt;
        self.send_session_request(Flags::REGISTER, attempt, sink);
    }

    /// Touches the session: the write number 0, which no replica executes because it lies below
    /// every lowest unanswered one. Answered by Stale if the session is known, by SessionExpired if
    /// it is not. Registering again would not do: it would bring an evicted session back with an
    /// empty table, and a late duplicate of an answered write would be executed again (T16 c).
    pub(crate) fn keep_alive(&mut self, now: Now, sink: &mut impl Sink) {
        self.session.touched_at = now.instant;
        self.session.attempt = self.session.attempt.wrapping_add(1);
        self.count.keepalives += 1;
        let attempt = self.session.attempt;
        self.send_session_request(Flags::default(), attempt, sink);
    }

    fn send_session_request(&mut self, flags: Flags, attempt: u16, sink: &mut impl Sink) {
        let repr = Repr {
            flags,
            session: self.session.id,
            request: SESSION_REQUEST,
            client: self.config.addr,
            attempt,
            ..Repr::new(Op::Write)
        };
        repr.emit(&[], &mut self.scratch);
        sink.send(self.config.switch, &self.scratch);
    }

    /// When the registration is to be tried again.
    pub(crate) fn register_at(&self) -> Instant {
        let wanted =
            self.session.state == SessionState::Registering && self.slots.low() < self.slots.next();
        if wanted { self.session.resend_at } else { Instant::NEVER }
    }

    /// When the session is to be touched.
    pub(crate) fn keep_alive_at(&self) -> Instant {
        match self.session.state {
            SessionState::Ready => self.session.touched_at.after(self.config.keepalive_ns),
            SessionState::Fresh | SessionState::Registering => Instant::NEVER,
        }
    }

    /// Whether a reply concerns the session and no write of it.
    pub(crate) fn is_session_reply(packet: &Packet<'_>, repr: &Repr) -> bool {
        packet.op() == Op::WriteReply && repr.request == SESSION_REQUEST
    }

    /// A registration or a touch was answered.
    pub(crate) fn on_session_reply(&mut self, now: Now, repr: &Repr, sink: &mut impl Sink) {
        if repr.session != self.session.id {
            self.count.foreign += 1;
            return;
        }
        match (self.session.state, repr.status) {
            (SessionState::Registering, Status::Ok) => {
                self.session.state = SessionState::Ready;
                self.session.round = 0;
                self.session.touched_at = now.instant;
                self.count.sessions += 1;
                let waiting =
                    |n: &u64| self.slots.live(*n).is_some_and(|slot| slot.state == State::Waiting);
                let numbers = self.slots.low()..self.slots.next();
                self.ready.extend(numbers.filter(waiting));
            }
            (SessionState::Ready, Status::SessionExpired) => self.expire_session(now, sink),
            (SessionState::Ready, Status::Ok | Status::Stale) => {}
            _ => self.count.unexpected += 1,
        }
    }

    /// The replicas no longer know the session: whether what was sent was executed, nobody can say.
    /// What was not sent goes under a new one. Numbers go on rising.
    pub(crate) fn expire_session(&mut self, now: Now, sink: &mut impl Sink) {
        self.count.sessions_expired += 1;
        self.session = Session::new(&mut self.rng);
        let numbers = self.slots.low()..self.slots.next();
        for number in numbers.clone() {
            self.drop_transfer(number);
            let Some(slot) = self.slots.live_mut(number) else { continue };
            slot.first_waiter = 0;
            slot.next_waiter = 0;
            slot.is_linked = false;
            slot.is_staged = false;
            if slot.sends == 0 {
                slot.state = State::Waiting;
                slot.tag = slot.tag.wrapping_add(1);
            }
        }
        for number in numbers {
            if self.slots.live(number).is_some_and(|slot| slot.sends > 0) {
                self.finish(now, number, Outcome::WriteUnknown, alloc::vec::Vec::new(), None);
            }
        }
        if self.slots.low() < self.slots.next() {
            self.register(now, sink);
        }
    }
}
