//! Registering the session, keeping it known, and what becomes of its writes when it is lost; and
//! asking for the active switch.

use alloc::vec::Vec;

use concord_core::Now;
use concord_wire::control::{Membership, Message as _};
use concord_wire::{Op, Repr, Sink};

use crate::api::Outcome;
use crate::client::Client;
use crate::route::ATTEMPTS_UNTIL_DOUBT;
use crate::session::{Session, SessionNews, SessionRequest};
use crate::slots::State;

impl Client {
    /// Registers a session, if there is none yet, before the first write needs it.
    pub fn open_session(&mut self, now: Now, sink: &mut impl Sink) {
        if self.session.is_fresh() {
            self.session.want();
            self.register(now, sink);
        }
    }

    /// Registers the session, or tries again.
    pub(crate) fn register(&mut self, now: Now, sink: &mut impl Sink) {
        let request = self.session.register(now.instant, &self.timers);
        self.count.registers += 1;
        self.send_session_request(request, sink);
        if request.attempt >= ATTEMPTS_UNTIL_DOUBT {
            self.doubt_switch(now, sink);
        }
    }

    /// Touches the session.
    pub(crate) fn keep_alive(&mut self, now: Now, sink: &mut impl Sink) {
        let request = self.session.keep_alive(now.instant);
        self.count.keepalives += 1;
        self.send_session_request(request, sink);
    }

    fn send_session_request(&mut self, wanted: SessionRequest, sink: &mut impl Sink) {
        let SessionRequest { flags, session, request, attempt } = wanted;
        let client = self.config.addr;
        let repr = Repr { flags, session, request, client, attempt, ..Repr::new(Op::Write) };
        repr.emit(&[], &mut self.scratch);
        sink.send(self.route.switch(), &self.scratch);
    }

    /// A registration or a touch was answered.
    pub(crate) fn on_session_reply(
        &mut self,
        now: Now,
        repr: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) {
        match self.session.on_reply(now.instant, repr, body) {
            SessionNews::Ready => {
                self.count.sessions += 1;
                let waiting =
                    |n: &u64| self.slots.live(*n).is_some_and(|slot| slot.state == State::Waiting);
                let numbers = self.slots.low()..self.slots.next();
                self.ready.extend(numbers.filter(waiting));
            }
            SessionNews::RegisterAgain => self.register(now, sink),
            SessionNews::Expired => self.expire_session(now, sink),
            SessionNews::Known => {}
            SessionNews::Foreign => self.count.foreign += 1,
            SessionNews::Unexpected => self.count.unexpected += 1,
        }
    }

    /// Requests stay unanswered: perhaps another switch is active.
    pub(crate) fn doubt_switch(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(controller) = self.route.doubt(now.instant) else { return };
        self.count.switch_asked += 1;
        Membership::WhoIsWho { client: self.config.addr }.emit(&mut self.scratch);
        sink.send(controller, &self.scratch);
    }

    /// Handles the controller's answer. Returns false if the packet is not one.
    pub(crate) fn on_control(&mut self, bytes: &[u8]) -> bool {
        let Ok(Membership::Configure(part)) = Membership::parse(bytes) else { return false };
        // Each part has the switch's address.
        let config = part.common();
        self.count.switch_changed += u64::from(self.route.on_config(config));
        true
    }

    /// Handles the expiry of the session at the replicas: the outcome of writes that were sent is
    /// unknown. Writes that were not sent go under a new session. Numbers continue.
    pub(crate) fn expire_session(&mut self, now: Now, sink: &mut impl Sink) {
        self.count.sessions_expired += 1;
        self.session = Session::new(&mut self.rng);
        let numbers = self.slots.low()..self.slots.next();
        for number in numbers.clone() {
            self.drop_transfer(number);
            let Some(slot) = self.slots.live_mut(number) else { continue };
            self.flow.end_download(slot);
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
                self.finish(now, number, Outcome::WriteUnknown, Vec::new(), None);
            }
        }
        if self.slots.low() < self.slots.next() {
            self.register(now, sink);
        }
    }
}
