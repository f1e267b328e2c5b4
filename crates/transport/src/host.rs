//! A host: its sending and its receiving half, and the wait of one that has begun anew.

use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine};
use concord_core::{Addr, Guard, Instant, Nothing, Now, Sink};
use concord_wire::WireError;
use concord_wire::harmony::{Op, Repr};

use crate::outcome::{Completion, Delivered, SubmitError};
use crate::receiving::{Receiver, ReceiverCounters};
use crate::sending::{Sender, SenderCounters};
use crate::settings::{HostSettings, SettingsError};

/// A host of the network: [`Host::submit`] is its submission queue, [`Host::poll_completion`] its
/// completion queue, [`Host::poll_delivered`] the messages for it (Harmony §4).
#[derive(Clone, Debug)]
pub struct Host {
    settings: HostSettings,
    sender: Sender,
    receiver: Receiver,
    /// It opens and grants nothing before (trap H5); `None` until its first input.
    ready_at: Option<Instant>,
    malformed: u64,
}

impl Host {
    /// A host that knows nothing. One of a later incarnation waits until what it forgot is over.
    ///
    /// # Errors
    /// [`SettingsError`] if there can be no such host.
    pub fn new(settings: HostSettings) -> Result<Host, SettingsError> {
        settings.check()?;
        let (sender, receiver) = (Sender::new(&settings), Receiver::new(&settings));
        Ok(Host { settings, sender, receiver, ready_at: None, malformed: 0 })
    }

    /// Takes a message for the host at place `to`, and gives it its number; its outcome comes out
    /// of [`Host::poll_completion`]. [`Machine::tick`] is due then.
    ///
    /// # Errors
    /// [`SubmitError`], and the message is not taken.
    pub fn submit(&mut self, now: Now, to: u16, data: Vec<u8>) -> Result<u64, SubmitError> {
        self.sender.submit(&self.settings, now.instant, to, data)
    }

    /// What became of a message that was submitted: of each, once.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.sender.poll_completion()
    }

    /// The next message that was delivered here.
    pub fn poll_delivered(&mut self) -> Option<Delivered> {
        self.receiver.poll_delivered()
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &HostSettings {
        &self.settings
    }

    /// The number of the newest message that was submitted; 0 if there was none.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.sender.numbers()
    }

    /// Whether no message is under way and no slot is held.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sender.is_idle() && self.receiver.is_idle()
    }

    /// Slots that are held: to send, to receive.
    #[must_use]
    pub fn slots_held(&self) -> (usize, usize) {
        (self.sender.slots_held(), self.receiver.slots_held())
    }

    /// The grants that it sends on: the receiver's place, its slot, the grant's number.
    pub fn sends_on(&self) -> impl Iterator<Item = (u16, u8, u32)> + '_ {
        self.sender.grants()
    }

    /// The grants that it has given and that are not closed: slot, the grant's number.
    pub fn granted(&self) -> impl Iterator<Item = (u8, u32)> + '_ {
        self.receiver.grants()
    }

    /// What its halves counted, and packets that were none.
    #[must_use]
    pub fn counters(&self) -> (&SenderCounters, &ReceiverCounters, u64) {
        (&self.sender.counters, &self.receiver.counters, self.malformed)
    }

    /// Whether it has waited long enough; notes when it began.
    fn is_ready(&mut self, now: Instant) -> bool {
        let settings = &self.settings;
        let waits = settings.incarnation > 1 && settings.guards.on(Guard::HostRestart);
        let wait_ns = if waits { settings.restart_ns() } else { 0 };
        *self.ready_at.get_or_insert(now.after(wait_ns)) <= now
    }

    fn on_packet(
        &mut self,
        now: Instant,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let (packet, data) = Repr::parse(bytes)?;
        let settings = &self.settings;
        let goes_to_sender = packet.to_sender || packet.op == Op::Rsvp;
        let place = if goes_to_sender { packet.sender } else { packet.receiver };
        if place != settings.place
            || usize::from(packet.sender.max(packet.receiver)) >= settings.hosts.len()
        {
            return Err(WireError::Field);
        }
        if goes_to_sender {
            self.sender.handle(settings, now, &packet, sink);
        } else {
            self.receiver.handle(settings, now, &packet, data, sink);
        }
        Ok(())
    }
}

impl Machine for Host {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        // Until it is ready it takes part in nothing: a request comes again, and a reservation that
        // is not answered ends by its time.
        if !self.is_ready(now.instant) {
            return;
        }
        if self.on_packet(now.instant, packet, sink).is_err() {
            self.malformed += 1;
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if self.is_ready(now.instant) {
            self.sender.tick(&self.settings, now.instant, sink);
            self.receiver.tick(&self.settings, now.instant, sink);
        }
    }

    fn deadline(&self) -> Deadline {
        let Some(ready_at) = self.ready_at else {
            return Deadline { at: Instant(0), reason: "a host begins" };
        };
        let next = self.sender.deadline().min(self.receiver.deadline(&self.settings));
        Deadline { at: next.at.max(ready_at), ..next }
    }
}
