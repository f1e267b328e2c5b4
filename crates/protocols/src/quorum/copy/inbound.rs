//! The stream of records to this replica: of the leader's log, or of one that is fetched to replace
//! the end of its own log (VRR §5.2).
//!
//! The replica that asks names the end of its log and its committed position. The stream begins
//! after the later one of these that both logs contain (the hash shows it). Until a fetched log has
//! reached its target, it stays beside the own one: the own log was promised to the view before,
//! and is given up only for the complete log of a later one.

use concord_core::{Epoch, NodeId, Position};
use concord_wire::control::LogEnd;
use concord_wire::link::{Ack, Data};
use concord_wire::record::{Record, running_hash};

use crate::link::{BrokenStream, Receiver};
use crate::log::Log;

/// The number of times that a stream is asked for by one number: for half a second.
const ASKED_MAX: u32 = 25;

/// The stream to this replica.
#[derive(Clone, Debug)]
pub(in crate::quorum) struct Inbound {
    /// Its receiving end: from the leader, or, at a new leader, from the replica with the best log.
    receiver: Option<Receiver>,
    /// This replica's number of the last stream that it asked for.
    stream: u16,
    /// The number of times that it asked for it.
    asked: u32,
    /// Whether a packet of that stream was seen.
    streaming: bool,
    /// The position that the follower last reported as executed.
    told_executed: Position,
    /// The end of its log that it last reported.
    told_end: Position,
    /// A log that is fetched to replace the own one's end.
    incoming: Option<Incoming>,
}

/// A log that is being fetched.
#[derive(Clone, Debug)]
struct Incoming {
    /// The end that it must reach before it can be used.
    target: LogEnd,
    /// The two positions that were offered as common to both logs.
    offered: [LogEnd; 2],
    /// The records, once the first has shown which of the two is the common one.
    log: Option<Log>,
}

/// The reaction to a stream that was not seen yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quorum) enum AskAgain {
    /// None is wanted.
    No,
    /// Ask for it once more.
    Same,
    /// Ask for another one: the sender may have begun this one and given it up.
    Another,
}

impl Inbound {
    /// No stream yet. The numbers of another incarnation begin elsewhere.
    pub(in crate::quorum) fn new(incarnation: u64) -> Inbound {
        Inbound {
            receiver: None,
            stream: incarnation as u16,
            asked: 0,
            streaming: false,
            told_executed: Position(0),
            told_end: Position(0),
            incoming: None,
        }
    }

    /// Stops receiving.
    pub(in crate::quorum) fn close(&mut self) {
        self.receiver = None;
        self.incoming = None;
    }

    /// The view is over.
    pub(in crate::quorum) fn end_view(&mut self) {
        self.close();
        self.streaming = false;
    }

    /// Packets in flight of the last stream must not be taken for the next one's.
    pub(in crate::quorum) fn end_stream(&mut self) {
        self.end_view();
        self.next_number();
    }

    fn next_number(&mut self) {
        self.stream = self.stream.wrapping_add(1).max(1);
    }

    /// The records of the stream are not wanted any more, but the fetched ones are.
    pub(in crate::quorum) fn close_receiver(&mut self) {
        self.receiver = None;
    }

    /// Begins to ask `peer` for a new stream.
    pub(in crate::quorum) fn follow(&mut self, peer: NodeId) {
        self.next_number();
        (self.streaming, self.asked) = (false, 0);
        let mut receiver = Receiver::new(peer, 0);
        receiver.stream = self.stream;
        self.receiver = Some(receiver);
    }

    /// Notes that it was asked for.
    pub(in crate::quorum) fn on_asked(&mut self) {
        self.asked += 1;
    }

    pub(in crate::quorum) fn ask_again(&self) -> AskAgain {
        match self.receiver {
            None => AskAgain::No,
            Some(_) if self.asked < ASKED_MAX => AskAgain::Same,
            Some(_) => AskAgain::Another,
        }
    }

    /// The replica that was asked for a stream.
    pub(in crate::quorum) fn peer(&self) -> Option<NodeId> {
        self.receiver.as_ref().map(|r| r.peer)
    }

    /// The number of the last stream asked for.
    pub(in crate::quorum) fn stream(&self) -> u16 {
        self.stream
    }

    pub(in crate::quorum) fn is_open(&self) -> bool {
        self.receiver.is_some()
    }

    /// Whether a packet of the stream was seen.
    pub(in crate::quorum) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// The sender sends the stream of that number. Returns whether the stream that was asked for is
    /// lost.
    pub(in crate::quorum) fn see(&mut self, stream: u16) -> bool {
        if stream == self.stream {
            self.streaming = true;
            return false;
        }
        core::mem::take(&mut self.streaming)
    }

    /// Whether a packet belongs to the stream that was asked for.
    pub(in crate::quorum) fn expects(&self, data: &Data<'_>) -> bool {
        let receiver = self.receiver.as_ref();
        receiver.is_some_and(|r| r.peer == data.from && r.stream == data.stream)
    }

    /// The receiving end, taken while a packet is handled.
    pub(in crate::quorum) fn take_receiver(&mut self) -> Option<Receiver> {
        self.receiver.take()
    }

    /// Puts it back, unless another stream was asked for meanwhile.
    pub(in crate::quorum) fn put_receiver(&mut self, receiver: Receiver) {
        if receiver.stream == self.stream {
            self.receiver = Some(receiver);
        }
    }

    /// Whether an acknowledgement is due: of received records, of the execution up to `executed`,
    /// or of the log's end if no stream is coming.
    pub(in crate::quorum) fn owes_ack(&self, executed: Position, end: Option<Position>) -> bool {
        let has_news = executed > self.told_executed || end.is_some_and(|end| end > self.told_end);
        self.receiver.as_ref().is_some_and(|r| r.ack_due || has_news)
    }

    /// The acknowledgement of everything that arrived, and its recipient.
    pub(in crate::quorum) fn ack(
        &mut self,
        (epoch, me): (Epoch, NodeId),
        acked: Position,
        executed: Position,
    ) -> Option<(NodeId, Ack)> {
        let receiver = self.receiver.as_mut()?;
        let ack = receiver.ack(epoch, me, acked, executed);
        (self.told_executed, self.told_end) = (executed, acked);
        Some((receiver.peer, ack))
    }

    /// The executed state is discarded.
    pub(in crate::quorum) fn forget_executed(&mut self) {
        self.told_executed = Position(0);
    }

    /// The log is that of another view.
    pub(in crate::quorum) fn forget_end(&mut self) {
        self.told_end = Position(0);
    }

    /// Begins to fetch a log that ends at `target`; the common prefix ends at one of `offered`.
    pub(in crate::quorum) fn fetch(&mut self, target: LogEnd, offered: [LogEnd; 2]) {
        self.incoming = Some(Incoming { target, offered, log: None });
    }

    /// The end of the log that is fetched.
    pub(in crate::quorum) fn target(&self) -> Option<LogEnd> {
        self.incoming.as_ref().map(|incoming| incoming.target)
    }

    /// Takes the next record of the log that is fetched; true once the target is reached. `None` if
    /// no log is fetched.
    pub(in crate::quorum) fn take_fetched(
        &mut self,
        bytes: &[u8],
    ) -> Option<Result<bool, BrokenStream>> {
        Some(self.incoming.as_mut()?.take(bytes))
    }

    /// The fetched log: the records after the common prefix.
    pub(in crate::quorum) fn fetched(&mut self) -> Option<Log> {
        self.incoming.take()?.log
    }
}

impl Incoming {
    fn take(&mut self, bytes: &[u8]) -> Result<bool, BrokenStream> {
        let record = Record::parse(bytes).map_err(|_| BrokenStream)?;
        if self.log.is_none() {
            let follows = |end: &&LogEnd| {
                end.position + 1 == record.position.0
                    && running_hash(end.hash, bytes) == record.hash
            };
            self.log = self.offered.iter().find(follows).map(|end| Log::starting_at(*end));
        }
        let Some(log) = self.log.as_mut() else { return Err(BrokenStream) };
        let end = log.end();
        let hash = running_hash(end.hash, bytes);
        if record.position.0 != end.position + 1 || hash != record.hash {
            return Err(BrokenStream);
        }
        log.push(bytes, hash);
        if record.position.0 == self.target.position && hash != self.target.hash {
            return Err(BrokenStream);
        }
        Ok(record.position.0 >= self.target.position)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const PEER: NodeId = NodeId(2);

    fn following() -> Inbound {
        let mut inbound = Inbound::new(6);
        inbound.follow(PEER);
        inbound
    }

    #[test]
    fn each_stream_has_another_number_and_none_is_zero() {
        let mut i = following();
        assert_eq!((i.stream(), i.peer(), i.is_open()), (7, Some(PEER), true));
        i.end_stream();
        assert_eq!((i.stream(), i.peer(), i.is_open()), (8, None, false));
        let mut last = Inbound::new(u64::from(u16::MAX));
        last.follow(PEER);
        assert_eq!(last.stream(), 1);
    }

    #[test]
    fn a_packet_is_of_the_stream_by_who_sends_it_and_by_its_number() {
        let mut i = following();
        let data = |from, stream| Data {
            epoch: Epoch(1),
            from,
            stream,
            link_seq: 1,
            committed: Position(0),
            first: true,
            last: true,
            piece: b"",
        };
        assert!(i.expects(&data(PEER, 7)));
        assert!(!i.expects(&data(PEER, 6)) && !i.expects(&data(NodeId(3), 7)));
        let receiver = i.take_receiver().unwrap();
        assert!(!i.expects(&data(PEER, 7)));
        i.put_receiver(receiver.clone());
        assert!(i.expects(&data(PEER, 7)));
        i.end_stream();
        i.put_receiver(receiver);
        assert!(!i.is_open(), "another one was begun meanwhile");
    }

    #[test]
    fn a_stream_that_was_seen_is_lost_once_another_one_is_sent() {
        let mut i = following();
        assert!(!i.see(6) && !i.is_streaming());
        assert!(!i.see(7) && i.is_streaming());
        assert!(i.see(6) && !i.is_streaming());
        assert!(!i.see(6), "that is known");
        i.see(7);
        i.follow(PEER);
        assert!(!i.is_streaming());
        i.see(8);
        i.end_view();
        assert!(!i.is_streaming() && !i.is_open());
    }

    #[test]
    fn a_stream_is_asked_for_by_one_number_for_a_while() {
        let mut i = Inbound::new(6);
        assert_eq!(i.ask_again(), AskAgain::No);
        i.follow(PEER);
        for _ in 0..ASKED_MAX {
            assert_eq!(i.ask_again(), AskAgain::Same);
            i.on_asked();
        }
        assert_eq!(i.ask_again(), AskAgain::Another);
        i.follow(PEER);
        assert_eq!(i.ask_again(), AskAgain::Same);
        i.close_receiver();
        assert_eq!(i.ask_again(), AskAgain::No);
    }

    #[test]
    fn an_acknowledgement_is_owed_for_what_was_not_told_yet() {
        let mut i = following();
        let owes = |i: &Inbound, executed, end: u64| {
            [i.owes_ack(Position(executed), None), i.owes_ack(Position(0), Some(Position(end)))]
        };
        assert_eq!(owes(&i, 0, 0), [false, false]);
        assert_eq!(owes(&i, 1, 1), [true, true]);
        let from = (Epoch(1), NodeId(1));
        let (to, ack) = i.ack(from, Position(5), Position(3)).unwrap();
        assert_eq!(
            (to, ack.stream, ack.applied, ack.committed),
            (PEER, 7, Position(5), Position(3))
        );
        assert_eq!(owes(&i, 3, 5), [false, false]);
        assert_eq!(owes(&i, 4, 6), [true, true]);
        i.forget_executed();
        assert_eq!(owes(&i, 3, 5), [true, false]);
        i.forget_end();
        assert_eq!(owes(&i, 3, 5), [true, true]);
        i.ack(from, Position(5), Position(3));
        i.receiver.as_mut().unwrap().ack_due = true;
        assert_eq!(owes(&i, 3, 5), [true, true], "of what arrived");
        i.close();
        assert_eq!(owes(&i, 9, 9), [false, false], "there is nobody to tell");
        assert!(i.ack(from, Position(9), Position(9)).is_none());
    }

    /// A record at `position`, behind one of that hash, and its own.
    fn record(position: u64, previous_hash: u64) -> (Vec<u8>, LogEnd) {
        let mut bytes = Vec::new();
        let hash = Record { position: Position(position), ..Record::EMPTY }
            .emit(previous_hash, &mut bytes);
        (bytes, LogEnd { position, hash })
    }

    const OFFERED: [LogEnd; 2] =
        [LogEnd { position: 4, hash: 40 }, LogEnd { position: 2, hash: 20 }];

    fn fetching(target: LogEnd) -> Inbound {
        let mut inbound = Inbound::new(6);
        inbound.fetch(target, OFFERED);
        inbound
    }

    /// A fetched log goes on from what is common up to its target.
    #[test]
    fn vrr_5_2_fetched_log_continues_from_the_common_prefix() {
        for common in OFFERED {
            let (first, end) = record(common.position + 1, common.hash);
            let (second, target) = record(common.position + 2, end.hash);
            let mut i = fetching(target);
            assert_eq!(i.target(), Some(target));
            assert!(matches!(i.take_fetched(&first), Some(Ok(false))));
            assert!(matches!(i.take_fetched(&second), Some(Ok(true))));
            let log = i.fetched().unwrap();
            assert_eq!((log.base(), log.end()), (common, target));
            assert!(i.target().is_none() && i.take_fetched(&first).is_none(), "none is fetched");
        }
    }

    #[test]
    fn a_fetched_log_with_a_gap_or_of_another_history_is_given_up() {
        let is_broken =
            |i: &mut Inbound, bytes: &[u8]| matches!(i.take_fetched(bytes), Some(Err(_)));
        let target = LogEnd { position: 6, hash: 1 };
        for (position, hash) in [(6, 40), (5, 41), (3, 40), (5, 20)] {
            assert!(is_broken(&mut fetching(target), &record(position, hash).0), "{position}");
        }
        let (first, end) = record(5, 40);
        for (position, hash) in [(7, end.hash), (6, end.hash + 1), (5, end.hash), (6, end.hash)] {
            let mut i = fetching(target);
            assert!(!is_broken(&mut i, &first));
            assert!(is_broken(&mut i, &record(position, hash).0), "{position}");
        }
        assert!(is_broken(&mut fetching(target), b"no record"));
        let mut closed = fetching(target);
        closed.close();
        assert!(closed.take_fetched(&first).is_none());
    }
}
