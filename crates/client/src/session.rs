//! The session under which writes are executed at most once (trap T16): how far it is, and what is
//! to be sent about it.

use concord_core::{Duration, Instant, RequestNumber, Rng, SessionId};
use concord_wire::{Flags, Op, Repr, Status};

use crate::timers::{Lane, ROUNDS, Timers};

/// Touches of the session have this number, and its registration at first.
const SESSION_REQUEST: RequestNumber = RequestNumber(0);

/// The state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    /// Not registered; no write asked for it.
    Fresh,
    /// The registration is in progress.
    Registering,
    /// The replicated stream knows it.
    Ready,
}

/// The session of a client.
#[derive(Clone, Debug)]
pub struct Session {
    id: SessionId,
    state: SessionState,
    /// The log position that it registers with; 0 at first.
    heard: RequestNumber,
    /// Whether the session is wanted although no write waits for it.
    is_wanted: bool,
    attempt: u16,
    round: u8,
    resend_at: Instant,
    /// When a write was sent last.
    used_at: Instant,
}

/// A packet about the session, to be sent now.
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest {
    pub flags: Flags,
    pub session: SessionId,
    pub request: RequestNumber,
    pub attempt: u16,
}

/// The meaning of an answer about the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionNews {
    /// The session is registered: writes may be sent.
    Ready,
    /// The answer names a later log position, with which to register.
    RegisterAgain,
    /// The replicas no longer know it.
    Expired,
    /// Nothing new.
    Known,
    /// The answer concerns another session.
    Foreign,
    /// The answer does not fit the session's state.
    Unexpected,
}

impl Session {
    /// A session with an id that no process had before.
    pub fn new(rng: &mut Rng) -> Session {
        let mut id = 0;
        while id == 0 {
            id = rng.next_u64();
        }
        Session::of(SessionId(id))
    }

    /// The session of that id, not registered.
    pub fn of(id: SessionId) -> Session {
        Session {
            id,
            state: SessionState::Fresh,
            heard: SESSION_REQUEST,
            is_wanted: false,
            attempt: 0,
            round: 0,
            resend_at: Instant::NEVER,
            used_at: Instant(0),
        }
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Whether nothing was asked of it yet.
    pub fn is_fresh(&self) -> bool {
        self.state == SessionState::Fresh
    }

    /// Whether writes may go under it.
    pub fn is_ready(&self) -> bool {
        self.state == SessionState::Ready
    }

    /// Requests the registration although no write waits for it.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// A write was sent under it.
    pub fn note_use(&mut self, now: Instant) {
        self.used_at = now;
    }

    /// Registers it through the replicated stream, or tries again.
    pub fn register(&mut self, now: Instant, timers: &Timers) -> SessionRequest {
        if self.state == SessionState::Registering {
            self.attempt = self.attempt.saturating_add(1);
            self.round = (self.round + 1).min(ROUNDS);
        }
        self.state = SessionState::Registering;
        self.resend_at = now.after(timers.timeout_ns(Lane::Write, self.round));
        let (session, attempt) = (self.id, self.attempt);
        SessionRequest { flags: Flags::REGISTER, session, request: self.heard, attempt }
    }

    /// Touches it: the write number 0, which no replica executes because it lies below every lowest
    /// unanswered one. Answered by Stale if the session is known, by SessionExpired if it is not.
    /// Registering again would not do: it would bring an evicted session back with an empty table,
    /// and a late duplicate of an answered write would be executed again (T16 c).
    pub fn keep_alive(&mut self, now: Instant) -> SessionRequest {
        self.used_at = now;
        self.attempt = self.attempt.wrapping_add(1);
        let (session, attempt) = (self.id, self.attempt);
        SessionRequest { flags: Flags::default(), session, request: SESSION_REQUEST, attempt }
    }

    /// When the registration is to be tried again; `has_writes` if some wait for it.
    pub fn register_at(&self, has_writes: bool) -> Instant {
        let is_wanted = self.is_wanted || has_writes;
        let wanted = self.state == SessionState::Registering && is_wanted;
        if wanted { self.resend_at } else { Instant::NEVER }
    }

    /// When it is to be touched, if that is due `keepalive_ns` after the last write.
    pub fn keep_alive_at(&self, keepalive_ns: Duration) -> Instant {
        match self.state {
            SessionState::Ready => self.used_at.after(keepalive_ns),
            SessionState::Fresh | SessionState::Registering => Instant::NEVER,
        }
    }

    /// Whether a reply concerns a session and no write of it. No write is sent before the session
    /// is registered; but a registration may be answered again later, and then its request, a
    /// position, may be the number of a write that waits.
    pub fn is_concerned(&self, repr: &Repr) -> bool {
        let is_own = repr.request == SESSION_REQUEST
            || repr.flags.has(Flags::REGISTER)
            || (self.state == SessionState::Registering && repr.session == self.id);
        repr.op == Op::WriteReply && is_own
    }

    /// A registration or a touch was answered.
    pub fn on_reply(&mut self, now: Instant, repr: &Repr, body: &[u8]) -> SessionNews {
        if repr.session != self.id {
            return SessionNews::Foreign;
        }
        match (self.state, repr.status) {
            (SessionState::Registering, Status::Ok) => {
                self.state = SessionState::Ready;
                self.round = 0;
                self.used_at = now;
                SessionNews::Ready
            }
            // Sessions were evicted since the position that it heard of: it names a later one.
            (SessionState::Registering, Status::Stale) => {
                match body.first_chunk().map(|b| u64::from_be_bytes(*b)) {
                    Some(heard) if heard > self.heard.0 => {
                        self.heard = RequestNumber(heard);
                        SessionNews::RegisterAgain
                    }
                    Some(_) | None => SessionNews::Known,
                }
            }
            (SessionState::Ready, Status::SessionExpired) => SessionNews::Expired,
            (SessionState::Ready, Status::Ok | Status::Stale) => SessionNews::Known,
            _ => SessionNews::Unexpected,
        }
    }
}
