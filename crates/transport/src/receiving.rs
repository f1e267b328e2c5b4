//! The receiving half of a host: requests that wait for a slot, oldest first, the K slots and their
//! grants, the messages that arrive, and the outcomes that it remembers (Harmony §3.1).
//!
//! The receiver alone says what becomes of a message. A `reject` by a switch or by the sender comes
//! to it, along the path that was reserved; whether the message is tried again, goes on by its
//! other slots, or is rejected is decided here, and the sender is told. So nothing that goes to the
//! sender could free a virtual link that it never reserved (trap H4).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Guard, Instant, Sink};
use concord_wire::harmony::{Op, Reason, Repr, SPAN_SHIFT};

use crate::message::Pieces;
use crate::outcome::{Delivered, Outcome};
use crate::sending::to;
use crate::settings::{HostSettings, WINDOW};

concord_core::counters! {
    /// Counts of a host as a receiver of messages.
    pub struct ReceiverCounters {
        /// New requests for a slot.
        requests,
        /// Repeated requests.
        requests_repeated,
        /// Requests ignored because their message or their sender's incarnation is over.
        requests_stale,
        /// Requests ignored because this host has restarted, and waits until the reservations that
        /// it forgot have expired.
        requests_early,
        /// Slots granted: `rsvp` packets sent.
        granted,
        /// Further slots granted to a message that had one.
        granted_extra,
        /// Grants rejected by a switch or by the sender.
        grants_rejected,
        /// Grants that expired before they were closed.
        grants_expired,
        /// Packets that would close a grant that is closed already.
        closed_again,
        /// Data packets received for messages in progress.
        data_received,
        /// Data packets dropped because their message is not in progress.
        data_stale,
        /// Data packets that a switch forwarded without a reservation (best effort).
        data_best_effort,
        /// Messages delivered.
        delivered,
        /// Messages rejected.
        rejected,
        /// Messages that failed.
        failed,
    }
}

/// A message's name: its sender's place, and its number.
type Key = (u16, u64);

/// What is known of a sender.
#[derive(Clone, Debug, Default)]
struct Peer {
    incarnation: u32,
    /// Messages of lower numbers are over.
    floor: u64,
    /// Outcomes of messages from there on.
    finished: BTreeMap<u64, Outcome>,
}

/// A request that waits for a slot.
#[derive(Clone, Copy, Debug)]
struct Pending {
    key: Key,
    size: u32,
    since: Instant,
}

/// A message that has, or had, a slot.
#[derive(Clone, Debug)]
struct Incoming {
    pieces: Pieces,
    since: Instant,
    /// What the sender said it had sent.
    sent_bytes: u32,
    /// It fails then, if it is not whole: all of it was sent.
    fails_at: Instant,
}

/// A grant of a slot.
#[derive(Clone, Copy, Debug)]
struct Granted {
    key: Key,
    /// The sender's incarnation.
    incarnation: u32,
    quota_bytes: u32,
    /// It is over then, whatever was lost.
    until: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    peers: BTreeMap<u16, Peer>,
    pending: VecDeque<Pending>,
    arriving: BTreeMap<Key, Incoming>,
    slots: Vec<Option<Granted>>,
    /// The newest grant of each slot.
    grants: Vec<u32>,
    delivered: VecDeque<Delivered>,
    pub(crate) counters: ReceiverCounters,
}

impl Receiver {
    pub(crate) fn new(settings: &HostSettings) -> Receiver {
        Receiver {
            peers: BTreeMap::new(),
            pending: VecDeque::new(),
            arriving: BTreeMap::new(),
            slots: (0..settings.slots).map(|_| None).collect(),
            grants: (0..settings.slots).map(|_| 0).collect(),
            delivered: VecDeque::new(),
            counters: ReceiverCounters::default(),
        }
    }

    pub(crate) fn poll_delivered(&mut self) -> Option<Delivered> {
        self.delivered.pop_front()
    }

    /// Whether no request waits, no message arrives and no slot is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.arriving.is_empty() && self.slots_held() == 0
    }

    pub(crate) fn slots_held(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The open grants: slot, the grant's number.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (u8, u32)> + '_ {
        let slots = self.slots.iter().zip(&self.grants).zip(0..);
        slots.filter_map(|((slot, grant), index)| slot.map(|_| (index, *grant)))
    }

    /// A packet for a message's sender.
    fn send(settings: &HostSettings, incarnation: u32, packet: &Repr, sink: &mut impl Sink) {
        let packet = Repr {
            from: settings.node,
            group: settings.group,
            sender_incarnation: incarnation,
            receiver_incarnation: settings.incarnation,
            ..*packet
        };
        sink.send(to(settings, packet.sender), &packet.packet(&[]));
    }

    fn incarnation(&self, sender: u16) -> u32 {
        self.peers.get(&sender).map_or(0, |peer| peer.incarnation)
    }

    /// The message is over: its sender is told, now and whenever it asks again.
    fn end(&mut self, settings: &HostSettings, key: Key, outcome: Outcome, sink: &mut impl Sink) {
        self.arriving.remove(&key);
        match outcome {
            Outcome::Complete => self.counters.delivered += 1,
            Outcome::Reject(_) => self.counters.rejected += 1,
            Outcome::Failure(_) => self.counters.failed += 1,
        }
        let peer = self.peers.entry(key.0).or_default();
        peer.finished.insert(key.1, outcome);
        let incarnation = peer.incarnation;
        tell(settings, incarnation, key, outcome, sink);
    }

    pub(crate) fn handle(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        packet: &Repr,
        data: &[u8],
        sink: &mut impl Sink,
    ) {
        match packet.op {
            Op::Request => self.on_request(settings, now, packet, sink),
            Op::Data => self.on_data(settings, packet, data, sink),
            Op::Complete => self.on_complete(settings, now, packet),
            Op::Reject => self.on_reject(settings, now, packet, sink),
            Op::Rsvp | Op::Failure | Op::Sweep => {}
        }
        self.serve(settings, now, sink);
    }

    fn on_request(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        packet: &Repr,
        sink: &mut impl Sink,
    ) {
        let guards = settings.guards;
        let key = (packet.sender, packet.number);
        let peer = self.peers.entry(packet.sender).or_default();
        let is_older =
            packet.sender_incarnation < peer.incarnation && guards.on(Guard::OlderSender);
        if is_older {
            self.counters.requests_stale += 1;
            return;
        }
        if packet.sender_incarnation != peer.incarnation {
            // The sender has begun anew. Slots of its messages stay until their grants are over.
            *peer = Peer { incarnation: packet.sender_incarnation, ..Peer::default() };
            self.pending.retain(|pending| pending.key.0 != packet.sender);
            self.arriving.retain(|key, _| key.0 != packet.sender);
        }
        let peer = self.peers.entry(packet.sender).or_default();
        let oldest = packet.number.saturating_sub(u64::from(packet.span).min(WINDOW));
        peer.floor = peer.floor.max(oldest);
        peer.finished = peer.finished.split_off(&peer.floor);
        let remembers = guards.on(Guard::MessageOnce);
        if packet.number < peer.floor && remembers {
            self.counters.requests_stale += 1;
            return;
        }
        if let Some(outcome) = peer.finished.get(&packet.number).filter(|_| remembers) {
            self.counters.requests_repeated += 1;
            return tell(settings, peer.incarnation, key, *outcome, sink);
        }
        let is_pending = self.pending.iter().any(|pending| pending.key == key);
        if is_pending || self.arriving.contains_key(&key) {
            self.counters.requests_repeated += 1;
            return;
        }
        self.counters.requests += 1;
        let is_size = (1..=settings.message_bytes_max).contains(&packet.bytes);
        if !is_size || self.pending.len() >= settings.pending_max {
            return self.end(settings, key, Outcome::Reject(Reason::Pending), sink);
        }
        self.pending.push_back(Pending { key, size: packet.bytes, since: now });
    }

    fn on_data(
        &mut self,
        settings: &HostSettings,
        packet: &Repr,
        data: &[u8],
        sink: &mut impl Sink,
    ) {
        let key = (packet.sender, packet.number);
        let is_current = packet.sender_incarnation == self.incarnation(packet.sender)
            && packet.receiver_incarnation == settings.incarnation;
        let message = self.arriving.get_mut(&key).filter(|_| is_current);
        let Some(message) = message else {
            self.counters.data_stale += 1;
            return;
        };
        if !message.pieces.take(packet.bytes, data) {
            self.counters.data_stale += 1;
            return;
        }
        self.counters.data_received += 1;
        self.counters.data_best_effort += u64::from(packet.is_best_effort);
        if message.pieces.is_whole() {
            let Some(message) = self.arriving.remove(&key) else { return };
            let (from, number) = key;
            let incarnation = packet.sender_incarnation;
            let data = message.pieces.into_data();
            self.delivered.push_back(Delivered { from, incarnation, number, data });
            self.end(settings, key, Outcome::Complete, sink);
        }
    }

    /// Takes the slot back of the grant that a packet names; `None` if that was over before.
    fn close(&mut self, settings: &HostSettings, packet: &Repr) -> Option<Granted> {
        let index = usize::from(packet.slot);
        let newest = self.grants.get(index).copied().unwrap_or(0);
        let is_grant = packet.receiver_incarnation == settings.incarnation
            && packet.grant == newest
            || !settings.guards.on(Guard::GrantNamed);
        let slot = self.slots.get_mut(index).filter(|_| is_grant);
        let closed = slot.and_then(Option::take);
        self.counters.closed_again += u64::from(closed.is_none());
        closed
    }

    /// The sender has done with a reservation.
    fn on_complete(&mut self, settings: &HostSettings, now: Instant, packet: &Repr) {
        let Some(granted) = self.close(settings, packet) else { return };
        let Some(message) = self.arriving_of(&granted) else { return };
        message.sent_bytes = message.sent_bytes.max(packet.bytes);
        if message.sent_bytes >= message.pieces.size() {
            // All of it is on its way; data of another slot may still come.
            message.fails_at = message.fails_at.min(now.after(2 * settings.round_ns));
        }
    }

    /// A reservation came to nothing: its message goes on by another slot, waits for one, or is
    /// rejected.
    fn on_reject(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        packet: &Repr,
        sink: &mut impl Sink,
    ) {
        let Some(granted) = self.close(settings, packet) else { return };
        self.counters.grants_rejected += 1;
        let key = granted.key;
        let is_shared = self.has_slot(key) && settings.guards.on(Guard::ExtraRejected);
        let Some(message) = self.arriving_of(&granted) else { return };
        if packet.reason == Reason::Over {
            return self.end(settings, key, Outcome::Failure(Reason::Over), sink);
        }
        if is_shared {
            return; // A further slot was rejected: the message goes on (trap H9).
        }
        let (since, size) = (message.since, message.pieces.size());
        let is_late = now.since(since) >= settings.admission_ns;
        if message.sent_bytes > 0 || message.pieces.received() > 0 {
            // A later part of it found no link; it stays, and is served before requests.
            if is_late {
                self.end(settings, key, Outcome::Reject(packet.reason), sink);
            }
        } else if settings.tries_again && !is_late {
            self.arriving.remove(&key);
            let place = self.pending.iter().position(|p| p.since > since);
            let place = place.unwrap_or(self.pending.len());
            self.pending.insert(place, Pending { key, size, since });
        } else {
            self.end(settings, key, Outcome::Reject(packet.reason), sink);
        }
    }

    /// The message of a grant, if it still arrives.
    fn arriving_of(&mut self, granted: &Granted) -> Option<&mut Incoming> {
        let is_current = granted.incarnation == self.incarnation(granted.key.0);
        self.arriving.get_mut(&granted.key).filter(|_| is_current)
    }

    fn has_slot(&self, key: Key) -> bool {
        self.slots.iter().flatten().any(|slot| slot.key == key)
    }

    /// Bytes of a message for which a further slot would be of use, as far as is known: each slot
    /// that it has counts for a BDP, whatever its quota, so that a message that is alone gets all
    /// slots (§3.2).
    fn ungranted(&self, settings: &HostSettings, key: Key, message: &Incoming) -> u32 {
        let open = self.slots.iter().flatten().filter(|slot| slot.key == key);
        let open = open.map(|slot| slot.quota_bytes.min(settings.extra_bytes));
        let open = open.fold(0, u32::saturating_add);
        let begun = message.sent_bytes.max(message.pieces.received());
        message.pieces.size().saturating_sub(begun).saturating_sub(open)
    }

    /// Gives free slots: to messages that have begun and have none, to requests, oldest first, and
    /// if none wait to messages that have one, for a BDP (§3.2).
    fn serve(&mut self, settings: &HostSettings, now: Instant, sink: &mut impl Sink) {
        while let Some(index) = self.slots.iter().position(Option::is_none) {
            let without: Option<Key> = self
                .arriving
                .iter()
                .filter(|(key, m)| !self.has_slot(**key) && m.sent_bytes < m.pieces.size())
                .min_by_key(|(_, message)| message.since)
                .map(|(key, _)| *key);
            if let Some(key) = without {
                self.grant(settings, now, index, key, u32::MAX, sink);
            } else if let Some(next) = self.pending.pop_front() {
                let pieces = Pieces::new(next.size);
                let fails_at = Instant::NEVER;
                let message = Incoming { pieces, since: next.since, sent_bytes: 0, fails_at };
                self.arriving.insert(next.key, message);
                self.grant(settings, now, index, next.key, u32::MAX, sink);
            } else {
                let begun =
                    self.arriving.iter().filter(|(key, m)| self.ungranted(settings, **key, m) > 0);
                let Some(key) = begun.min_by_key(|(_, m)| m.since).map(|(key, _)| *key) else {
                    return;
                };
                self.counters.granted_extra += 1;
                self.grant(settings, now, index, key, settings.extra_bytes, sink);
            }
        }
    }

    fn grant(
        &mut self,
        settings: &HostSettings,
        now: Instant,
        index: usize,
        key: Key,
        bytes_max: u32,
        sink: &mut impl Sink,
    ) {
        let Some(message) = self.arriving.get(&key) else { return };
        let left = self.ungranted(settings, key, message).max(1);
        let quota_bytes = left.min(bytes_max.max(1)).min(settings.quota_bytes_max());
        let life_ns = settings.life_of(quota_bytes);
        let until = now.after(settings.slot_ns(life_ns));
        let incarnation = self.incarnation(key.0);
        self.grants[index] += 1;
        self.slots[index] = Some(Granted { key, incarnation, quota_bytes, until });
        self.counters.granted += 1;
        let rsvp = Repr {
            grant: self.grants[index],
            slot: index as u8,
            bytes: quota_bytes,
            span: (life_ns >> SPAN_SHIFT) as u32,
            ..Repr::new(Op::Rsvp, key.0, settings.place, key.1)
        };
        Receiver::send(settings, incarnation, &rsvp, sink);
    }

    pub(crate) fn tick(&mut self, settings: &HostSettings, now: Instant, sink: &mut impl Sink) {
        while let Some(late) =
            self.pending.pop_front_if(|p| p.since.after(settings.admission_ns) <= now)
        {
            self.end(settings, late.key, Outcome::Reject(Reason::Admission), sink);
        }
        for index in 0..self.slots.len() {
            let Some(granted) = self.slots[index].filter(|slot| slot.until <= now) else {
                continue;
            };
            self.slots[index] = None;
            self.counters.grants_expired += 1;
            // Its slots end in any order: what comes by the others may make it whole.
            if !self.has_slot(granted.key) && self.arriving_of(&granted).is_some() {
                self.end(settings, granted.key, Outcome::Failure(Reason::Lost), sink);
            }
        }
        let late = |(key, m): (&Key, &Incoming)| (m.fails_at <= now).then_some(*key);
        let late: Vec<Key> = self.arriving.iter().filter_map(late).collect();
        for key in late {
            self.end(settings, key, Outcome::Failure(Reason::Lost), sink);
        }
        self.serve(settings, now, sink);
    }

    pub(crate) fn deadline(&self, settings: &HostSettings) -> Deadline {
        let mut next = Deadline::NONE;
        if let Some(first) = self.pending.front() {
            let at = first.since.after(settings.admission_ns);
            next = next.min(Deadline { at, reason: "a request has waited for delta_admission" });
        }
        for slot in self.slots.iter().flatten() {
            next = next.min(Deadline { at: slot.until, reason: "a grant's time is over" });
        }
        for message in self.arriving.values() {
            next = next.min(Deadline { at: message.fails_at, reason: "a message is not whole" });
        }
        next
    }
}

/// Tells a sender what became of its message.
fn tell(
    settings: &HostSettings,
    incarnation: u32,
    (sender, number): Key,
    outcome: Outcome,
    sink: &mut impl Sink,
) {
    let (op, reason) = match outcome {
        Outcome::Complete => (Op::Complete, Reason::None),
        Outcome::Reject(reason) => (Op::Reject, reason),
        Outcome::Failure(reason) => (Op::Failure, reason),
    };
    let told = Repr { reason, to_sender: true, ..Repr::new(op, sender, settings.place, number) };
    Receiver::send(settings, incarnation, &told, sink);
}
