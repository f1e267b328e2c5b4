//! The session under which writes are executed at most once (trap T16).

use concord_core::{Instant, MS, Now, RequestNumber, Rng, SessionId};
use concord_wire::control::{Membership, Message as _};
use concord_wire::{Flags, Op, Repr, Sink, Status};

use crate::api::Outcome;
use crate::client::Client;
use crate::slots::State;
use crate::timers::{Lane, ROUNDS};

/// Touches of the session have this number, and its registration at first.
const SESSION_REQUEST: RequestNumber = RequestNumber(0);
/// After so many attempts the switch is doubted.
pub(crate) const ATTEMPTS_UNTIL_DOUBT: u16 = 3;
/// Shortest time between two questions which switch is active, in ns.
const DOUBT_INTERVAL_NS: u64 = 100 * MS;

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
#[derive(Clone, Debug)]
pub struct Session {
    pub id: SessionId,
    pub state: SessionState,
    /// The log position that it registers with; 0 at first.
    heard: RequestNumber,
    /// It is wanted without a write that waits for it.
    is_wanted: bool,
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
            heard: SESSION_REQUEST,
            is_wanted: false,
            attempt: 0,
            round: 0,
            resend_at: Instant::NEVER,
            touched_at: Instant(0),
        }
    }
}

impl Client {
    /// Registers a session, if there is none yet, before a write asks for it.
    pub fn open_session(&mut self, now: Now, sink: &mut impl Sink) {
        if self.session.state == SessionState::Fresh {
            self.session.is_wanted = true;
            self.register(now, sink);
        }
    }

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
        let (heard, attempt) = (self.session.heard, self.session.attempt);
        self.send_session_request(Flags::REGISTER, heard, attempt, sink);
        if attempt >= ATTEMPTS_UNTIL_DOUBT {
            self.doubt_switch(now, sink);
        }
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
        self.send_session_request(Flags::default(), SESSION_REQUEST, attempt, sink);
    }

    fn send_session_request(
        &mut self,
        flags: Flags,
        request: RequestNumber,
        attempt: u16,
        sink: &mut impl Sink,
    ) {
        let repr = Repr {
            flags,
            session: self.session.id,
            request,
            client: self.config.addr,
            attempt,
            ..Repr::new(Op::Write)
        };
        repr.emit(&[], &mut self.scratch);
        sink.send(self.config.switch, &self.scratch);
    }

    /// When the registration is to be tried again.
    pub(crate) fn register_at(&self) -> Instant {
        let is_wanted = self.session.is_wanted || self.slots.low() < self.slots.next();
        let wanted = self.session.state == SessionState::Registering && is_wanted;
        if wanted { self.session.resend_at } else { Instant::NEVER }
    }

    /// When the session is to be touched.
    pub(crate) fn keep_alive_at(&self) -> Instant {
        match self.session.state {
            SessionState::Ready => self.session.touched_at.after(self.config.keepalive_ns),
            SessionState::Fresh | SessionState::Registering => Instant::NEVER,
        }
    }

    /// Whether a reply concerns the session and no write of it. No write is sent before the session
    /// is registered.
    pub(crate) fn is_session_reply(&self, repr: &Repr) -> bool {
        let is_own = repr.request == SESSION_REQUEST
            || (self.session.state == SessionState::Registering && repr.session == self.session.id);
        repr.op == Op::WriteReply && is_own
    }

    /// A registration or a touch was answered.
    pub(crate) fn on_session_reply(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
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
            // Sessions were evicted since the position that it heard of: it names a later one.
            (SessionState::Registering, Status::Stale) => {
                if let Some(heard) = body.first_chunk().map(|b| u64::from_be_bytes(*b))
                    && heard > self.session.heard.0
                {
                    self.session.heard = RequestNumber(heard);
                    self.register(now, sink);
                }
            }
            (SessionState::Ready, Status::SessionExpired) => self.expire_session(now, sink),
            (SessionState::Ready, Status::Ok | Status::Stale) => {}
            _ => self.count.unexpected += 1,
        }
    }

    /// Requests stay unanswered: perhaps another switch is active.
    pub(crate) fn doubt_switch(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(controller) = self.config.controller else { return };
        if now.instant < self.next_doubt {
            return;
        }
        self.next_doubt = now.instant.after(DOUBT_INTERVAL_NS);
        self.count.switch_asked += 1;
        Membership::WhoIsWho { client: self.config.addr }.emit(&mut self.scratch);
        sink.send(controller, &self.scratch);
    }

    /// The controller's answer; false if the packet is none.
    pub(crate) fn on_control(&mut self, bytes: &[u8]) -> bool {
        let Ok(Membership::Configure(config)) = Membership::parse(bytes) else { return false };
        if config.epoch > self.epoch {
            self.epoch = config.epoch;
            self.count.switch_changed += u64::from(config.switch != self.config.switch);
            self.config.switch = config.switch;
        }
        true
    }

    /// The replicas no longer know the session: whether what was sent was executed, nobody can say.
    /// What was not sent goes under a new one. Numbers go on rising.
    pub(crate) fn expire_session(&mut self, now: Now, sink: &mut impl Sink) {
        self.count.sessions_expired += 1;
        self.session = Session::new(&mut self.rng);
        let numbers = self.slots.low()..self.slots.next();
        for number in numbers.clone() {
            self.drop_transfer(number);
            self.end_download(number);
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
