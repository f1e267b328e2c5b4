//! Records on their way through the group: from the predecessor, and to those who come next.

use alloc::vec::Vec;

use concord_core::{Epoch, Instant, NodeId, Position};
use concord_wire::Sink;
use concord_wire::link::Ack;

use crate::link::{Receiver, Sender};
use crate::log::Log;
use crate::setup::KEEPALIVE_NS;

/// The streams of one epoch.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    senders: Vec<Sender>,
    receiver: Option<Receiver>,
    /// When to acknowledge, if no record gives cause to.
    next_keepalive: Instant,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { senders: Vec::new(), receiver: None, next_keepalive: Instant::NEVER }
    }
}

impl Streams {
    /// Nothing is sent or received any more.
    pub(super) fn close(&mut self) {
        self.receiver = None;
        self.senders.clear();
    }

    /// Nothing is received any more.
    pub(super) fn close_receiver(&mut self) {
        self.receiver = None;
    }

    /// Records come from there, if from anywhere; their sender is told at once up to where.
    pub(super) fn receive(&mut self, now: Instant, receiver: Option<Receiver>) {
        self.receiver = receiver;
        self.next_keepalive = now;
    }

    /// Whether records come from `peer`.
    pub(super) fn is_from(&self, peer: NodeId) -> bool {
        self.receiver.as_ref().is_some_and(|r| r.peer == peer)
    }

    /// The receiving end, for as long as a packet is taken.
    pub(super) fn take_receiver(&mut self) -> Option<Receiver> {
        self.receiver.take()
    }

    pub(super) fn put_receiver(&mut self, receiver: Receiver) {
        self.receiver = Some(receiver);
    }

    /// The predecessor is to hear something with the next acknowledgement, which is due now.
    pub(super) fn acknowledge(&mut self) {
        if let Some(receiver) = self.receiver.as_mut() {
            receiver.ack_due = true;
        }
    }

    /// Whether an acknowledgement is due at the end of the batch.
    pub(super) fn owes_ack(&self) -> bool {
        self.receiver.as_ref().is_some_and(|r| r.ack_due)
    }

    /// Whether it is time for an acknowledgement that nothing else gave cause to; the next time is set.
    pub(super) fn is_keepalive_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_keepalive && self.receiver.is_some();
        if is_due {
            self.next_keepalive = now.after(KEEPALIVE_NS);
        }
        is_due
    }

    /// The acknowledgement of all that arrived, and whom it is for.
    pub(super) fn ack(
        &mut self,
        now: Instant,
        (epoch, me): (Epoch, NodeId),
        passed: Position,
        committed: Position,
    ) -> Option<(NodeId, Ack)> {
        let receiver = self.receiver.as_mut()?;
        self.next_keepalive = now.after(KEEPALIVE_NS);
        Some((receiver.peer, receiver.ack(epoch, me, passed, committed)))
    }

    /// Records go to a successor.
    pub(super) fn add(&mut self, sender: Sender) {
        self.senders.push(sender);
    }

    /// How many successors records go to.
    pub(super) fn successors(&self) -> usize {
        self.senders.len()
    }

    /// Whether records go to `peer`.
    pub(super) fn goes_to(&self, peer: NodeId) -> bool {
        self.senders.iter().any(|s| s.peer == peer)
    }

    /// Up to where every successor has said that it has the records; `None` if there is none.
    pub(super) fn applied(&self) -> Option<Position> {
        self.senders.iter().map(|s| s.applied).min()
    }

    /// Whether the disk of a successor, or of one after that, has no room.
    pub(super) fn is_short(&self) -> bool {
        self.senders.iter().any(|s| s.is_short)
    }

    /// Sends records up to `upto`.
    pub(super) fn pump(
        &mut self,
        now: Instant,
        (log, upto, committed): (&Log, Position, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        for sender in &mut self.senders {
            sender.pump(now, log, upto, committed, scratch, sink);
        }
    }

    /// Sends full packets of records in the middle of a batch.
    pub(super) fn pump_full(
        &mut self,
        now: Instant,
        (log, upto, committed): (&Log, Position, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        for sender in &mut self.senders {
            sender.pump_full(now, log, upto, committed, scratch, sink);
        }
    }

    /// A successor's acknowledgement: how many packets were sent again by it; `None` if it is of
    /// somebody else.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        ack: &Ack,
        (log, committed): (&Log, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Option<u64> {
        let sender = self.senders.iter_mut().find(|s| s.peer == ack.from)?;
        let before = sender.resent;
        sender.on_ack(now, ack, log, committed, scratch, sink);
        Some(sender.resent - before)
    }

    /// Time passed: how many packets were sent again.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        (log, committed): (&Log, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> u64 {
        let mut resent = 0;
        for sender in &mut self.senders {
            let before = sender.resent;
            sender.tick(now, log, committed, scratch, sink);
            resent += sender.resent - before;
        }
        resent
    }

    /// When to acknowledge at the latest.
    pub(super) fn keepalive_at(&self) -> Instant {
        if self.receiver.is_some() { self.next_keepalive } else { Instant::NEVER }
    }

    /// When something seems lost.
    pub(super) fn resend_at(&self) -> Instant {
        self.senders.iter().map(Sender::deadline).min().unwrap_or(Instant::NEVER)
    }
}
