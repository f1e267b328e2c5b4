//! The stream of records to this replica: of the leader's log, or of one that is being fetched in the place
//! of the own log's end (VRR §5.2).
//!
//! The one who asks says where its log ends and what it knows to be committed; the stream begins
//! behind whichever of the two both logs have (the hash tells). Until a fetched log has reached its
//! target it stays beside the own one: what that holds was promised to the view before, and is given up
//! only for the whole log of a later one.

use concord_core::{Epoch, NodeId, Position};
use concord_wire::control::LogEnd;
use concord_wire::link::{Ack, Data};
use concord_wire::record::{Record, running_hash};

use crate::link::{BrokenStream, Receiver};
use crate::log::Log;

/// How often a stream is asked for by one number: for half a second.
const ASKED_MAX: u32 = 25;

/// The stream to this replica.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    /// From the leader, or to a new leader from who has the best log.
    receiver: Option<Receiver>,
    /// The own number of the last stream asked for.
    stream: u16,
    /// How often it was asked for.
    asked: u32,
    /// Whether the leader was seen to send that stream.
    streaming: bool,
    /// What the follower last said that it executed.
    told_executed: Position,
    /// Where it last said that its log ends.
    told_end: Position,
    /// A log that is being fetched to replace the own one's end.
    incoming: Option<Incoming>,
}

/// A log that is being fetched.
#[derive(Clone, Debug)]
struct Incoming {
    /// Where it has to end before it can be used.
    target: LogEnd,
    /// What was offered as common to both logs.
    offered: [LogEnd; 2],
    /// The records, once the first has told which of the two it is.
    log: Option<Log>,
}

/// What is to be done about a stream that was not seen yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskAgain {
    /// Nothing: none is wanted.
    No,
    /// It is asked for once more.
    Same,
    /// Another one is asked for: the one who was asked may have begun it and given it up.
    Another,
}

impl Inbound {
    /// None yet. Another life begins with other numbers.
    pub(super) fn new(incarnation: u64) -> Inbound {
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

    /// Nothing is received any more.
    pub(super) fn close(&mut self) {
        self.receiver = None;
        self.incoming = None;
    }

    /// The view is over.
    pub(super) fn end_view(&mut self) {
        self.close();
        self.streaming = false;
    }

    /// What is under way of the last stream is none of the next one's.
    pub(super) fn end_stream(&mut self) {
        self.end_view();
        self.next_number();
    }

    fn next_number(&mut self) {
        self.stream = self.stream.wrapping_add(1).max(1);
    }

    /// The records of the stream are not wanted any more; what was fetched is.
    pub(super) fn close_receiver(&mut self) {
        self.receiver = None;
    }

    /// A new stream is asked of `peer`.
    pub(super) fn follow(&mut self, peer: NodeId) {
        self.next_number();
        (self.streaming, self.asked) = (false, 0);
        let mut receiver = Receiver::new(peer, 0);
        receiver.stream = self.stream;
        self.receiver = Some(receiver);
    }

    /// It was asked for.
    pub(super) fn on_asked(&mut self) {
        self.asked += 1;
    }

    pub(super) fn ask_again(&self) -> AskAgain {
        match self.receiver {
            None => AskAgain::No,
            Some(_) if self.asked < ASKED_MAX => AskAgain::Same,
            Some(_) => AskAgain::Another,
        }
    }

    /// Who was asked for a stream.
    pub(super) fn peer(&self) -> Option<NodeId> {
        self.receiver.as_ref().map(|r| r.peer)
    }

    /// The number of the last stream asked for.
    pub(super) fn stream(&self) -> u16 {
        self.stream
    }

    pub(super) fn is_open(&self) -> bool {
        self.receiver.is_some()
    }

    /// Whether the stream was seen.
    pub(super) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// The one who was asked sends the stream of that number. Whether the one that was asked for is lost.
    pub(super) fn see(&mut self, stream: u16) -> bool {
        if stream == self.stream {
            self.streaming = true;
            return false;
        }
        core::mem::take(&mut self.streaming)
    }

    /// Whether a packet is of the stream that was asked for.
    pub(super) fn expects(&self, data: &Data<'_>) -> bool {
        let receiver = self.receiver.as_ref();
        receiver.is_some_and(|r| r.peer == data.from && r.stream == data.stream)
    }

    /// The receiving end, for as long as a packet is taken.
    pub(super) fn take_receiver(&mut self) -> Option<Receiver> {
        self.receiver.take()
    }

    /// Gives it back, unless another stream was asked for meanwhile.
    pub(super) fn put_receiver(&mut self, receiver: Receiver) {
        if receiver.stream == self.stream {
            self.receiver = Some(receiver);
        }
    }

    /// Whether an acknowledgement is due: of what arrived, of what was executed up to `executed`, or of the
    /// log's end where nobody streams it.
    pub(super) fn owes_ack(&self, executed: Position, end: Option<Position>) -> bool {
        let has_news = executed > self.told_executed || end.is_some_and(|end| end > self.told_end);
        self.receiver.as_ref().is_some_and(|r| r.ack_due || has_news)
    }

    /// The acknowledgement of all that arrived, and whom it is for.
    pub(super) fn ack(
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

    /// What was executed is given up.
    pub(super) fn forget_executed(&mut self) {
        self.told_executed = Position(0);
    }

    /// The log is that of another view.
    pub(super) fn forget_end(&mut self) {
        self.told_end = Position(0);
    }

    /// A log is fetched that ends at `target`; what may be common to both ends at one of `offered`.
    pub(super) fn fetch(&mut self, target: LogEnd, offered: [LogEnd; 2]) {
        self.incoming = Some(Incoming { target, offered, log: None });
    }

    /// Where the log ends that is fetched.
    pub(super) fn target(&self) -> Option<LogEnd> {
        self.incoming.as_ref().map(|incoming| incoming.target)
    }

    /// Takes the next record of the log that is fetched; true once the target is reached. `None`: none is.
    pub(super) fn take_fetched(&mut self, bytes: &[u8]) -> Option<Result<bool, BrokenStream>> {
        Some(self.incoming.as_mut()?.take(bytes))
    }

    /// The log that was fetched: the records behind what was common.
    pub(super) fn fetched(&mut self) -> Option<Log> {
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
