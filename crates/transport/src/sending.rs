//! The sending half of a host: its open messages, its K slots, and the one cycle of K phases by
//! which all of them are paced (trap H3).
//!
//! A message is opened by a `request`, which is repeated until something is heard. Each `rsvp`
//! gives it a slot for a part of the message. A slot sends one packet in each of its phases, and in
//! the phase after its last packet the `complete`: so the packet holds its virtual link for a whole
//! packet's time (trap H1).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Addr, Duration, Guard, Instant, Sink};
use concord_wire::harmony::{Op, Path, Reason, Repr, SLOTS_MAX, SPAN_SHIFT};

use crate::outcome::{Completion, Outcome, SubmitError};
use crate::settings::{HostSettings, OPEN_MAX, WINDOW};

concord_core::counters! {
    /// Counts of a host as a sender of messages.
    pub struct SenderCounters {
        /// Messages begun.
        opened,
        /// Requests sent, repeated ones included.
        requests,
        /// Slots opened by reservations.
        slots_opened,
        /// Reservations given back because no slot was free.
        no_slot,
        /// Reservations given back because their message was over.
        over,
        /// Reservations that arrived repeatedly or late.
        rsvps_repeated,
        /// Data packets sent.
        data_sent,
        /// Slots closed because their reservation had expired.
        slots_expired,
        /// Messages delivered.
        completed,
        /// Messages rejected.
        rejected,
        /// Messages that failed.
        failed,
    }
}

/// A message on its way.
#[derive(Clone, Debug)]
struct Outgoing {
    to: u16,
    data: Vec<u8>,
    /// The first bytes, which were sent.
    sent_bytes: u32,
    /// Its outcome is known at the latest then.
    ends_at: Instant,
    /// When the request goes out again.
    asks_at: Instant,
    /// The receiver's incarnation by whose first reservation data was sent: no other one may
    /// deliver the message (trap H5).
    receiver_incarnation: Option<u32>,
    /// By slot of the receiver: the newest grant that was seen.
    grants: [u32; SLOTS_MAX],
}

impl Outgoing {
    fn size(&self) -> u32 {
        self.data.len() as u32
    }
}

/// A reservation that this host sends on.
#[derive(Clone, Copy, Debug)]
struct Sending {
    number: u64,
    rsvp: Repr,
    left_bytes: u32,
    /// Nothing is sent on it from then on (trap H12).
    until: Instant,
}

/// A message that waits to be opened.
#[derive(Clone, Debug)]
struct Submission {
    number: u64,
    to: u16,
    data: Vec<u8>,
    /// It is rejected then.
    until: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    next_number: u64,
    submissions: VecDeque<Submission>,
    open: BTreeMap<u64, Outgoing>,
    slots: Vec<Option<Sending>>,
    /// The slot whose phase comes next, and when.
    phase: usize,
    phase_at: Instant,
    completions: VecDeque<Completion>,
    pub(crate) counters: SenderCounters,
}

impl Sender {
    pub(crate) fn new(settings: &HostSettings) -> Sender {
        Sender {
            next_number: 1,
            submissions: VecDeque::new(),
            open: BTreeMap::new(),
            slots: (0..settings.slots).map(|_| None).collect(),
            phase: 0,
            phase_at: Instant(0),
            completions: VecDeque::new(),
            counters: SenderCounters::default(),
        }
    }

    /// Takes a message, and gives it its number.
    ///
    /// # Errors
    /// [`SubmitError`], and nothing was changed.
    pub(crate) fn submit(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        to: u16,
        data: Vec<u8>,
    ) -> Result<u64, SubmitError> {
        if usize::from(to) >= settings.hosts.len() || to == settings.place {
            return Err(SubmitError::Host(to));
        }
        let is_size = (1..=settings.message_bytes_max as usize).contains(&data.len());
        if !is_size {
            return Err(SubmitError::Size(data.len()));
        }
        if self.submissions.len() >= settings.submissions_max {
            return Err(SubmitError::Full);
        }
        let number = self.next_number;
        self.next_number += 1;
        let until = now.after(settings.admission_ns + settings.restart_ns());
        self.submissions.push_back(Submission { number, to, data, until });
        Ok(number)
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// How many messages were submitted: the newest one's number.
    pub(crate) fn numbers(&self) -> u64 {
        self.next_number - 1
    }

    /// Whether no message is open and no slot is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.submissions.is_empty() && self.open.is_empty() && self.slots_held() == 0
    }

    pub(crate) fn slots_held(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The grants that its slots send on: receiver, its slot, the grant's number.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (u16, u8, u32)> + '_ {
        self.slots.iter().flatten().map(|s| (s.rsvp.receiver, s.rsvp.slot, s.rsvp.grant))
    }

    /// A packet of the sending half leaves.
    fn send(settings: &HostSettings, packet: &Repr, data: &[u8], sink: &mut impl Sink) {
        let packet = Repr {
            from: settings.node,
            group: settings.group,
            sender_incarnation: settings.incarnation,
            ..*packet
        };
        sink.send(to(settings, packet.receiver), &packet.packet(data));
    }

    /// Gives a reservation back, along its path.
    fn give_back(settings: &HostSettings, rsvp: &Repr, reason: Reason, sink: &mut impl Sink) {
        let packet = Repr { op: Op::Reject, reason, bytes: 0, span: 0, ..back(rsvp) };
        Sender::send(settings, &packet, &[], sink);
    }

    /// The message has its outcome. Its slots close in their next phases.
    fn end(&mut self, number: u64, outcome: Outcome) {
        let Some(message) = self.open.remove(&number) else { return };
        match outcome {
            Outcome::Complete => self.counters.completed += 1,
            Outcome::Reject(_) => self.counters.rejected += 1,
            Outcome::Failure(_) => self.counters.failed += 1,
        }
        self.completions.push_back(Completion { number, to: message.to, outcome });
    }

    /// A packet for the sending half: a `rsvp`, or the outcome of a message.
    pub(crate) fn handle(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        packet: &Repr,
        sink: &mut impl Sink,
    ) {
        let is_own = packet.sender_incarnation == settings.incarnation;
        if packet.op == Op::Rsvp {
            return self.on_rsvp(settings, now, packet, is_own, sink);
        }
        let Some(message) = self.open.get(&packet.number).filter(|_| is_own) else { return };
        let is_receiver = message.to == packet.receiver
            && message.receiver_incarnation.is_none_or(|own| own == packet.receiver_incarnation);
        if !is_receiver {
            return;
        }
        let outcome = match packet.op {
            Op::Complete => Outcome::Complete,
            Op::Reject => Outcome::Reject(packet.reason),
            _ => Outcome::Failure(packet.reason),
        };
        self.end(packet.number, outcome);
    }

    /// Whether a slot sends on this very reservation.
    fn sends_on(&self, rsvp: &Repr) -> bool {
        let of = |rsvp: &Repr| (rsvp.receiver, rsvp.receiver_incarnation, rsvp.slot, rsvp.grant);
        self.slots.iter().flatten().any(|slot| of(&slot.rsvp) == of(rsvp))
    }

    fn on_rsvp(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        rsvp: &Repr,
        is_own: bool,
        sink: &mut impl Sink,
    ) {
        let guards = settings.guards;
        if self.sends_on(rsvp) && guards.on(Guard::GrantOnce) {
            // Also if its message is over: the slot's next phase closes it, and nothing earlier.
            self.counters.rsvps_repeated += 1;
            return;
        }
        let message = self.open.get_mut(&rsvp.number).filter(|m| is_own && m.to == rsvp.receiver);
        let Some(message) = message else {
            self.counters.over += 1;
            return Sender::give_back(settings, rsvp, Reason::Over, sink);
        };
        let is_bound = message
            .receiver_incarnation
            .is_some_and(|own| own != rsvp.receiver_incarnation && guards.on(Guard::ReceiverBound));
        if is_bound {
            // The receiver has begun anew. What was sent to the one before may have been delivered.
            self.end(rsvp.number, Outcome::Failure(Reason::Restarted));
            return Sender::give_back(settings, rsvp, Reason::Over, sink);
        }
        let newest = &mut message.grants[usize::from(rsvp.slot) % SLOTS_MAX];
        if rsvp.grant <= *newest && guards.on(Guard::GrantOnce) {
            self.counters.rsvps_repeated += 1;
            return;
        }
        *newest = rsvp.grant;
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_none()) else {
            self.counters.no_slot += 1;
            return Sender::give_back(settings, rsvp, Reason::NoSlot, sink);
        };
        self.counters.slots_opened += 1;
        message.receiver_incarnation = Some(rsvp.receiver_incarnation);
        // The switches count the life from when the `rsvp` passed them: a little earlier.
        let life_ns = u64::from(rsvp.span) << SPAN_SHIFT;
        let until = now.after(life_ns.saturating_sub(settings.round_ns));
        *slot = Some(Sending { number: rsvp.number, rsvp: *rsvp, left_bytes: rsvp.bytes, until });
    }

    pub(crate) fn tick(&mut self, settings: &HostSettings, now: Instant, sink: &mut impl Sink) {
        let late: Vec<u64> =
            self.open.iter().filter(|(_, m)| m.ends_at <= now).map(|(n, _)| *n).collect();
        for number in late {
            self.end(number, Outcome::Failure(Reason::Lost));
        }
        while let Some(late) = self.submissions.pop_front_if(|s| s.until <= now) {
            self.counters.rejected += 1;
            let outcome = Outcome::Reject(Reason::Admission);
            self.completions.push_back(Completion { number: late.number, to: late.to, outcome });
        }
        while self.has_room() {
            let Some(next) = self.submissions.pop_front() else { break };
            let ends_at = now.after(settings.outcome_ns(next.data.len() as u32));
            self.counters.opened += 1;
            let message = Outgoing {
                to: next.to,
                data: next.data,
                sent_bytes: 0,
                ends_at,
                asks_at: now,
                receiver_incarnation: None,
                grants: [0; SLOTS_MAX],
            };
            self.open.insert(next.number, message);
        }
        self.ask(settings, now, sink);
        self.run_phases(settings, now, sink);
    }

    /// Whether another message may be opened: the open requests are limited (trap H11), and so are
    /// the outcomes that a receiver has to remember.
    fn has_room(&self) -> bool {
        let Some(next) = self.submissions.front() else { return false };
        let oldest = self.open.first_key_value().map_or(next.number, |(number, _)| *number);
        self.open.len() < OPEN_MAX && next.number - oldest < WINDOW
    }

    /// Sends requests that are due, for the first time or again: also of messages that were sent,
    /// whose outcome was not heard.
    fn ask(&mut self, settings: &HostSettings, now: Instant, sink: &mut impl Sink) {
        let Some((&oldest, _)) = self.open.first_key_value() else { return };
        for (&number, message) in &mut self.open {
            if message.asks_at > now {
                continue;
            }
            message.asks_at = now.after(ask_again_ns(settings));
            if self.slots.iter().flatten().any(|slot| slot.number == number) {
                continue;
            }
            self.counters.requests += 1;
            let request = Repr {
                bytes: message.size(),
                span: (number - oldest) as u32,
                ..Repr::new(Op::Request, settings.place, message.to, number)
            };
            Sender::send(settings, &request, &[], sink);
        }
    }

    /// Sends what the phase that has come allows: one packet of one slot. A sender that is late
    /// leaves out the phases that it missed (trap H3).
    fn run_phases(&mut self, settings: &HostSettings, now: Instant, sink: &mut impl Sink) {
        let catches_up = !settings.guards.on(Guard::NoCatchUp);
        while self.slots_held() > 0 && self.phase_at <= now {
            let count = self.slots.len();
            if catches_up {
                self.phase_at = self.phase_at.after(settings.phase_ns);
            } else {
                let missed = now.since(self.phase_at) / settings.phase_ns;
                self.phase = (self.phase + (missed % count as u64) as usize) % count;
                self.phase_at = now.after(settings.phase_ns);
            }
            let phase = self.phase;
            self.phase = (phase + 1) % count;
            self.run_phase(settings, now, phase, sink);
        }
    }

    fn run_phase(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        phase: usize,
        sink: &mut impl Sink,
    ) {
        let guards = settings.guards;
        let Some(slot) = &mut self.slots[phase] else { return };
        let Sending { number, rsvp, left_bytes, until } = *slot;
        let message = self.open.get_mut(&number);
        let sent_bytes = message.as_ref().map_or(0, |m| m.sent_bytes);
        let remaining = message.as_ref().map_or(0, |m| m.size() - m.sent_bytes);
        let is_over = until <= now && guards.on(Guard::ReservationEnds);
        self.counters.slots_expired += u64::from(is_over && left_bytes.min(remaining) > 0);
        let length = left_bytes.min(remaining).min(settings.fragment_bytes as u32);
        let Some(message) = message.filter(|_| length > 0 && !is_over) else {
            self.slots[phase] = None;
            let complete = Repr { op: Op::Complete, bytes: sent_bytes, span: 0, ..back(&rsvp) };
            return Sender::send(settings, &complete, &[], sink);
        };
        slot.left_bytes -= length;
        let (from, to) = (sent_bytes as usize, (sent_bytes + length) as usize);
        message.sent_bytes += length;
        message.asks_at = now.after(ask_again_ns(settings));
        self.counters.data_sent += 1;
        let data = Repr { op: Op::Data, bytes: sent_bytes, span: 0, ..back(&rsvp) };
        Sender::send(settings, &data, &message.data[from..to], sink);
        let is_last = left_bytes == length || remaining == length;
        if is_last && !guards.on(Guard::LastPacketHolds) {
            self.slots[phase] = None;
            let complete =
                Repr { op: Op::Complete, bytes: message.sent_bytes, span: 0, ..back(&rsvp) };
            Sender::send(settings, &complete, &[], sink);
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        let mut next = Deadline::NONE;
        for message in self.open.values() {
            let asks = Deadline { at: message.asks_at, reason: "a request is due" };
            let ends = Deadline { at: message.ends_at, reason: "a message's time is over" };
            next = next.min(asks).min(ends);
        }
        if let Some(first) = self.submissions.front() {
            let at = if self.has_room() { Instant(0) } else { first.until };
            next = next.min(Deadline { at, reason: "a submission waits" });
        }
        if self.slots_held() > 0 {
            next = next.min(Deadline { at: self.phase_at, reason: "a phase of the cycle" });
        }
        next
    }
}

/// Where packets for a host go.
pub(crate) fn to(settings: &HostSettings, place: u16) -> Addr {
    let own = settings.hosts.get(usize::from(place)).copied().unwrap_or_default();
    settings.switch.unwrap_or(own)
}

/// The time between two requests of a message of which nothing is heard.
fn ask_again_ns(settings: &HostSettings) -> Duration {
    2 * settings.round_ns
}

/// A packet on the path of a reservation, at its beginning.
fn back(rsvp: &Repr) -> Repr {
    let path: Path = rsvp.path;
    Repr { ahead: path.hops().len() as u8, to_sender: false, ..*rsvp }
}
