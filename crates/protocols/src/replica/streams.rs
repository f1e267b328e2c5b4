//! Records in flight through the group: from the predecessor, and to the successors.

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
    /// The time at which to acknowledge if no record gives cause to.
    next_keepalive: Instant,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { senders: Vec::new(), receiver: None, next_keepalive: Instant::NEVER }
    }
}

impl Streams {
    /// Stops sending and receiving.
    pub(super) fn close(&mut self) {
        self.receiver = None;
        self.senders.clear();
    }

    /// Stops receiving.
    pub(super) fn close_receiver(&mut self) {
        self.receiver = None;
    }

    /// Receives records with `receiver`, if there is one; the sender is told at once up to where
    /// they arrived.
    pub(super) fn receive(&mut self, now: Instant, receiver: Option<Receiver>) {
        self.receiver = receiver;
        self.next_keepalive = now;
    }

    /// Whether records come from `peer`.
    pub(super) fn is_from(&self, peer: NodeId) -> bool {
        self.receiver.as_ref().is_some_and(|r| r.peer == peer)
    }

    /// The receiving end, taken while a packet is handled.
    pub(super) fn take_receiver(&mut self) -> Option<Receiver> {
        self.receiver.take()
    }

    pub(super) fn put_receiver(&mut self, receiver: Receiver) {
        self.receiver = Some(receiver);
    }

    /// Makes an acknowledgement to the predecessor due now.
    pub(super) fn acknowledge(&mut self) {
        if let Some(receiver) = self.receiver.as_mut() {
            receiver.ack_due = true;
        }
    }

    /// Whether an acknowledgement is due at the end of the batch.
    pub(super) fn owes_ack(&self) -> bool {
        self.receiver.as_ref().is_some_and(|r| r.ack_due)
    }

    /// Whether a keepalive acknowledgement is due; the next time is set.
    pub(super) fn is_keepalive_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_keepalive && self.receiver.is_some();
        if is_due {
            self.next_keepalive = now.after(KEEPALIVE_NS);
        }
        is_due
    }

    /// The acknowledgement of everything that arrived, and its recipient.
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

    /// Adds a stream to a successor.
    pub(super) fn add(&mut self, sender: Sender) {
        self.senders.push(sender);
    }

    /// The number of successors.
    pub(super) fn successors(&self) -> usize {
        self.senders.len()
    }

    /// Whether `peer` is a successor.
    pub(super) fn goes_to(&self, peer: NodeId) -> bool {
        self.senders.iter().any(|s| s.peer == peer)
    }

    /// The position up to which every successor has acknowledged the records; `None` if there is no
    /// successor.
    pub(super) fn applied(&self) -> Option<Position> {
        self.senders.iter().map(|s| s.applied).min()
    }

    /// Whether the disk of a successor, or of a member after it, has no room.
    pub(super) fn is_short(&self) -> bool {
        self.senders.iter().any(|s| s.is_short)
    }

    /// The time since which a successor, or a member after it, works on one operation.
    pub(super) fn at_work_since(&self) -> Option<Instant> {
        self.senders.iter().filter_map(|s| s.at_work_since).min()
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

    /// Handles a successor's acknowledgement. Returns the number of packets that it caused to be
    /// sent again; `None` if it is not from a successor.
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

    /// Handles the passing of time. Returns the number of packets that were sent again.
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

    /// The latest time of the next acknowledgement.
    pub(super) fn keepalive_at(&self) -> Instant {
        if self.receiver.is_some() { self.next_keepalive } else { Instant::NEVER }
    }

    /// The time at which something counts as lost.
    pub(super) fn resend_at(&self) -> Instant {
        self.senders.iter().map(Sender::deadline).min().unwrap_or(Instant::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_core::MS;
    use concord_wire::Addr;
    use concord_wire::control::LogEnd;

    use super::*;

    const ME: NodeId = NodeId(1);
    const EPOCH: Epoch = Epoch(4);
    const NONE: Position = Position(0);

    /// Of records that each take a packet.
    fn log(count: u64) -> Log {
        let mut log = Log::starting_at(LogEnd { position: 0, hash: 0 });
        (0..count).for_each(|_| log.push(&[0; 1_000], 0));
        log
    }

    fn sender(peer: u16) -> Sender {
        Sender::new(ME, EPOCH, (NodeId(peer), Addr { ip: peer.into(), port: 1 }), NONE, 0)
    }

    /// All records go to these.
    fn to(peers: &[u16], log: &Log) -> Streams {
        let mut streams = Streams::default();
        peers.iter().for_each(|peer| streams.add(sender(*peer)));
        pumped(&mut streams, 0, log);
        streams
    }

    /// How many packets go out at `ms`.
    fn pumped(streams: &mut Streams, ms: u64, log: &Log) -> usize {
        let mut out: Vec<(Addr, Vec<u8>)> = vec![];
        let upto = Position(log.end().position);
        streams.pump(Instant(ms * MS), (log, upto, NONE), &mut vec![], &mut out);
        out.len()
    }

    fn from(peer: u16) -> Streams {
        let mut streams = Streams::default();
        streams.receive(Instant(0), Some(Receiver::new(NodeId(peer), 0)));
        streams
    }

    /// `from` has applied so much, and lacks the first packet of those that it holds.
    fn ack(from: u16, applied: u64, held: u64, is_short: bool) -> Ack {
        let ack = Receiver::new(ME, 0).ack(EPOCH, NodeId(from), Position(applied), NONE);
        Ack { held, is_short, ..ack }
    }

    fn acked(streams: &mut Streams, ms: u64, ack: &Ack, log: &Log) -> Option<u64> {
        let mut out: Vec<(Addr, Vec<u8>)> = vec![];
        let resent = streams.on_ack(Instant(ms * MS), ack, (log, NONE), &mut vec![], &mut out);
        assert_eq!(out.len() as u64, resent.unwrap_or(0));
        resent
    }

    #[test]
    fn a_predecessor_hears_something_at_once_and_after_each_silence() {
        let mut streams = Streams::default();
        assert!(!streams.is_keepalive_due(Instant::NEVER), "there is none");
        assert_eq!(streams.keepalive_at(), Instant::NEVER);
        streams.receive(Instant(5), Some(Receiver::new(NodeId(2), 0)));
        assert_eq!(streams.keepalive_at(), Instant(5));
        assert!(!streams.is_keepalive_due(Instant(4)));
        assert!(streams.is_keepalive_due(Instant(5)));
        let next = Instant(5).after(KEEPALIVE_NS);
        assert_eq!(streams.keepalive_at(), next);
        assert!(!streams.is_keepalive_due(Instant(next.0 - 1)));
        let (to, _) = streams.ack(Instant(9), (EPOCH, ME), NONE, NONE).unwrap();
        assert_eq!(
            (to, streams.is_keepalive_due(next)),
            (NodeId(2), false),
            "that was word enough"
        );
        assert!(streams.is_keepalive_due(Instant(9).after(KEEPALIVE_NS)));
        streams.close_receiver();
        assert!(!streams.is_keepalive_due(Instant::NEVER));
        assert_eq!(streams.keepalive_at(), Instant::NEVER);
        assert!(streams.ack(Instant(9), (EPOCH, ME), NONE, NONE).is_none());
    }

    /// An acknowledgement is owed once it was asked for until it is given.
    #[test]
    fn acknowledgement_is_owed_until_given() {
        let mut streams = from(2);
        assert!(streams.is_from(NodeId(2)) && !streams.is_from(NodeId(3)) && !streams.owes_ack());
        streams.acknowledge();
        assert!(streams.owes_ack());
        let taken = streams.take_receiver().unwrap();
        assert!(!streams.is_from(NodeId(2)) && !streams.owes_ack());
        streams.put_receiver(taken);
        assert!(streams.is_from(NodeId(2)) && streams.owes_ack());
        let ack = streams.ack(Instant(0), (EPOCH, ME), Position(7), Position(5));
        let (_, Ack { epoch, from, applied, committed, .. }) = ack.unwrap();
        assert_eq!((epoch, from, applied, committed), (EPOCH, ME, Position(7), Position(5)));
        assert!(!streams.owes_ack());
        streams.acknowledge();
        streams.close();
        assert!(!streams.is_from(NodeId(2)) && !streams.owes_ack());
    }

    /// What all successors have is what the slowest has and one without room is enough.
    #[test]
    fn slowest_successor_decides() {
        let log = log(9);
        let mut streams = to(&[2, 3], &log);
        assert_eq!((streams.successors(), streams.applied()), (2, Some(NONE)));
        assert!(streams.goes_to(NodeId(3)) && !streams.goes_to(NodeId(4)));
        assert_eq!(acked(&mut streams, 1, &ack(4, 9, 0, true), &log), None, "a stranger's");
        assert!(!streams.is_short());
        assert_eq!(acked(&mut streams, 1, &ack(2, 8, 0, false), &log), Some(0));
        assert_eq!(streams.applied(), Some(NONE));
        assert_eq!(acked(&mut streams, 1, &ack(3, 5, 0, true), &log), Some(0));
        assert_eq!((streams.applied(), streams.is_short()), (Some(Position(5)), true));
        acked(&mut streams, 1, &ack(3, 5, 0, false), &log);
        assert!(!streams.is_short());
        streams.close();
        assert_eq!((streams.successors(), streams.applied()), (0, None));
        assert!(!streams.goes_to(NodeId(3)) && !streams.is_short());
    }

    #[test]
    fn packets_that_are_sent_again_are_counted_each_time() {
        let log = log(9);
        let mut streams = to(&[2, 3], &log);
        for ms in [6, 12] {
            assert_eq!(acked(&mut streams, ms, &ack(2, 0, 0b111, false), &log), Some(1));
        }
        let mut streams = to(&[2, 3], &log);
        for _ in 0..2 {
            let mut out: Vec<(Addr, Vec<u8>)> = vec![];
            let now = streams.resend_at();
            assert_eq!(streams.tick(now, (&log, NONE), &mut vec![], &mut out), 2, "one to each");
            assert_eq!(out.len(), 2);
            assert_eq!(streams.tick(now, (&log, NONE), &mut vec![], &mut out), 0);
        }
    }

    #[test]
    fn the_first_stream_on_which_something_seems_lost_says_when() {
        let log = log(1);
        assert_eq!(Streams::default().resend_at(), Instant::NEVER);
        let mut streams = to(&[2], &log);
        let first = streams.resend_at();
        assert!(first < Instant::NEVER);
        streams.add(sender(3));
        assert_eq!(pumped(&mut streams, 1, &log), 1, "the other one has it under way");
        assert_eq!(streams.resend_at(), first);
    }

    /// The middle of a batch sends full packets and its end the rest.
    #[test]
    fn mid_batch_sends_full_packets() {
        let log = log(3);
        let mut streams = to(&[2, 3], &Log::default());
        let mut out: Vec<(Addr, Vec<u8>)> = vec![];
        let known = (&log, Position(3), NONE);
        streams.pump_full(Instant(0), known, &mut vec![], &mut out);
        assert_eq!(out.len(), 2 * 2);
        assert_eq!(pumped(&mut streams, 0, &log), 2);
    }
}
