//! Sending requests, again where needed, and the writes of a connection in their order (trap T22).

use concord_core::rng::splitmix64;
use concord_core::{NodeId, Now, RequestNumber};
use concord_wire::rpc::{HEADER_BYTES, READ_BIT};
use concord_wire::{Flags, Op, Repr, Sink};

use crate::client::Client;
use crate::flow::Admission;
use crate::route::ATTEMPTS_UNTIL_DOUBT;
use crate::slots::{Slot, State};
use crate::timers::{ROUNDS, Timer, WHOLE};
use crate::transfer::staged_hdr;

/// A write that was sent more often as the first of its connection, and is not answered, goes
/// alone: it is not its order that keeps it from being executed.
const SENDS_AS_FIRST_MAX: u16 = 1;
/// So does one that was sent more often in whatever place.
const SENDS_TOGETHER_MAX: u16 = 40;

/// Whether others wait for the answer to a write, and not only until it is sent.
fn goes_alone(slot: &Slot) -> bool {
    slot.sends_as_first > SENDS_AS_FIRST_MAX || slot.sends > SENDS_TOGETHER_MAX
}

/// The reader to which a read goes: any, and another one for a retry (trap T21).
fn reader(readers: &[NodeId], read: &Repr) -> Option<NodeId> {
    let drawn = splitmix64(read.session.0 ^ splitmix64(read.request.0)) >> 1;
    let at = (drawn + u64::from(read.attempt)).checked_rem(readers.len() as u64)?;
    readers.get(at as usize).copied()
}

impl Client {
    /// Lets every write go on that may. One that is sent may let others go on: a queue and not a
    /// recursion, because a connection's chain can be as long as the window.
    pub(crate) fn run_ready(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(number) = self.ready.pop_front() {
            let Some(slot) = self.slots.live(number) else { continue };
            match slot.state {
                State::Waiting | State::Held => self.launch(now, number, sink),
                State::Sent if slot.is_refused => {
                    self.count.order_retries += 1;
                    self.transmit(now, number, sink);
                }
                State::Idle | State::Staging | State::Sent | State::Pulling | State::Parked => {}
            }
        }
        while let Some(number) = self.flow.next_parked(&mut self.slots) {
            self.transmit(now, number, sink);
        }
        while let Some(number) = self.flow.next_refused(&self.slots) {
            self.transmit(now, number, sink);
        }
    }

    /// Takes a write as far as it may go: registered, body staged, predecessor sent, sent.
    fn launch(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        if !self.session.is_ready() {
            slot.state = State::Waiting;
            if self.session.is_fresh() {
                self.register(now, sink);
            }
            return;
        }
        if slot.is_large() && !slot.is_staged {
            slot.state = State::Waiting;
            match self.flow.admit(slot, &mut self.ready) {
                Admission::Admitted => self.start_upload(now, number, sink),
                Admission::Waits { is_new } => self.count.large_waited += u64::from(is_new),
            }
            return;
        }
        let after = slot.after;
        if self.slots.is_unsent(after) {
            if let Some(slot) = self.slots.live_mut(number) {
                slot.state = State::Held;
            }
            self.count.held += 1;
            self.slots.link(after, number);
            return;
        }
        self.transmit(now, number, sink);
    }

    /// Sends a request, for the first time or again. Writes that were held or refused because of it
    /// follow.
    pub(crate) fn transmit(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let is_write = number & READ_BIT == 0;
        let (low, session) = (self.slots.low(), self.session.id());
        let after = self.slots.live(number).map_or(0, |slot| slot.after);
        let is_after_live = is_write && self.slots.live(after).is_some();
        let Some(slot) = self.slots.live_mut(number) else { return };
        self.stamp += 1;
        let is_first = slot.sends == 0;
        if is_first {
            slot.first_sent_at = now.instant;
            slot.session = session;
        }
        slot.sends = slot.sends.saturating_add(1);
        if !is_after_live {
            slot.sends_as_first = slot.sends_as_first.saturating_add(1);
        }
        slot.state = State::Sent;
        slot.is_refused = false;
        slot.sent_at = now.instant;
        slot.stamp = self.stamp;
        slot.tag = slot.tag.wrapping_add(1);
        let mut repr = Repr {
            flags: slot.flags,
            obj_id: slot.obj_id,
            further: slot.further,
            session: slot.session,
            request: RequestNumber(number),
            client: self.config.addr,
            attempt: slot.attempt(),
            ..Repr::new(if is_write { Op::Write } else { Op::Read })
        };
        if is_write {
            repr.low_delta = (number - low) as u16;
            // A predecessor that was answered or abandoned is not waited for: if it was abandoned
            // with its session, it would be waited for in vain.
            repr.after_delta = if is_after_live { (number - after) as u16 } else { 0 };
            self.session.note_use(now.instant);
        }
        if !is_write
            && !repr.flags.has(Flags::WILDCARD)
            && let Some(reader) = reader(&self.config.readers, &repr)
        {
            (repr.flags, repr.node) = (repr.flags.with(Flags::CHOSEN), reader);
        }
        let (set_at, tag, round, lane) = (now.instant, slot.tag, slot.round, slot.lane());
        if slot.is_large() {
            repr.flags = repr.flags.with(Flags::BODY_STAGED);
            self.part.clear();
            staged_hdr(slot.command()).emit(&mut self.part);
            repr.emit(&self.part, &mut self.scratch);
            sink.send(self.route.switch(), &self.scratch);
        } else if !repr.further.is_empty() {
            // Their ids stand between the header and the command.
            repr.emit(slot.command(), &mut self.scratch);
            sink.send(self.route.switch(), &self.scratch);
        } else {
            let body_bytes = (slot.packet.len() - HEADER_BYTES) as u16;
            slot.packet[..HEADER_BYTES].copy_from_slice(&repr.header(body_bytes));
            sink.send(self.route.switch(), &slot.packet);
        }
        self.timers.set(lane, Timer { set_at, number, part: WHOLE, tag, round, missing: 0 });
        // One that does not get through goes alone: what follows it would be refused once more, and
        // where the switch has little room, what is refused takes it from the one that is not.
        if is_write && !self.goes_alone(number) {
            self.slots.unlink_all(number, &mut self.ready);
        }
    }

    fn goes_alone(&self, number: u64) -> bool {
        self.slots.live(number).is_some_and(goes_alone)
    }

    /// A write was refused: the write before it was lost, or is late. It is not executed until that
    /// was; the refusal is no sign that the rack is slow.
    pub(crate) fn on_order(&mut self, now: Now, number: u64) {
        self.count.order_refused += 1;
        let Some(slot) = self.slots.live_mut(number) else { return };
        if slot.is_refused {
            return;
        }
        slot.is_refused = true;
        let (after, stamp, tag) = (slot.after, slot.stamp, slot.tag);
        match self.slots.live(after) {
            Some(before)
                if !matches!(before.state, State::Pulling | State::Parked)
                    && (before.stamp < stamp || goes_alone(before)) =>
            {
                self.wait_for_order(now, number, after, tag);
            }
            // Executed meanwhile, or sent again after this attempt.
            Some(_) | None => self.ready.push_back(number),
        }
    }

    /// A refused write waits for its predecessor to be sent again or answered, but not for long.
    fn wait_for_order(&mut self, now: Now, number: u64, after: u64, tag: u16) {
        self.slots.link(after, number);
        let set_at = now.instant;
        self.timers.set_order(Timer { set_at, number, part: WHOLE, tag, round: 0, missing: 0 });
    }

    /// The body that a write refers to is not there: it is sent again.
    pub(crate) fn on_body_missing(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        self.count.body_missing += 1;
        if self.slots.live(number).is_some_and(Slot::is_large) {
            self.start_upload(now, number, sink);
        }
    }

    /// The time of an attempt has come.
    pub(crate) fn on_retry_timer(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        if slot.state != State::Sent {
            return;
        }
        if slot.is_refused {
            self.retry_in_order(now, number, sink);
            return;
        }
        slot.round = (slot.round + 1).min(ROUNDS - 1);
        if number & READ_BIT != 0 {
            self.count.read_retries += 1;
        } else {
            self.count.write_retries += 1;
        }
        let doubtful = slot.sends >= ATTEMPTS_UNTIL_DOUBT;
        self.transmit(now, number, sink);
        if doubtful {
            self.doubt_switch(now, sink);
        }
    }

    /// Sends a refused write again after a while, following the one that it must follow.
    fn retry_in_order(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live(number) else { return };
        let (after, stamp, tag) = (slot.after, slot.stamp, slot.tag);
        let before = self.slots.live(after);
        if self.goes_alone(after) && before.is_some_and(|before| before.stamp > stamp) {
            // It has a timer of its own, at whose end this one continues.
            self.slots.link(after, number);
            return;
        }
        let before = before.filter(|before| before.stamp < stamp);
        match before.map(|before| (before.state, before.is_refused)) {
            // It was sent before this attempt and had not been executed then, so it was lost.
            Some((State::Sent, false)) => {
                self.count.order_retries += 1;
                self.transmit(now, after, sink);
            }
            // Its own predecessor, or its body, is sent first; this one follows later.
            Some((State::Sent | State::Staging | State::Held | State::Waiting, _)) => {
                self.wait_for_order(now, number, after, tag);
            }
            Some((State::Idle | State::Pulling | State::Parked, _)) | None => {
                self.count.order_retries += 1;
                self.transmit(now, number, sink);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use concord_core::SessionId;

    use super::*;

    /// Clients choose each reader as often and a retry goes to another one.
    #[test]
    fn t21_readers_are_chosen_evenly() {
        let readers = [NodeId(4), NodeId(7), NodeId(9)];
        let read = |request, attempt| Repr {
            session: SessionId(3),
            request: RequestNumber(request | READ_BIT),
            attempt,
            ..Repr::new(Op::Read)
        };
        let chosen: Vec<NodeId> =
            (0..3_000).filter_map(|request| reader(&readers, &read(request, 0))).collect();
        for node in readers {
            let share = chosen.iter().filter(|chosen| **chosen == node).count();
            assert!((900..1_100).contains(&share), "{node:?}: {share}");
        }
        for request in 0..100 {
            let again = |attempt| reader(&readers, &read(request, attempt));
            assert_ne!(again(0), again(1));
            assert_ne!(again(1), again(2));
        }
        assert_eq!(reader(&[], &read(1, 0)), None);
    }
}
