//! The leader's knowledge of each member, in its view.

use concord_core::{Duration, Instant, MS, Position};

use crate::early::Waiting;
use crate::link::Sender;
use crate::parts::Part;

/// The time for which a follower may lag before it is sent the records.
const LAG_NS: Duration = 2 * MS;

/// A member, as the leader of the view knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    /// The stream of records to it, once it has reported the end of its log.
    pub(super) sender: Option<Sender>,
    /// The number of the last stream to it that was begun in this view.
    pub(super) streamed: Option<u16>,
    /// The end of its log (PREPARE-OK).
    pub(super) acked: Position,
    /// The position up to which it has executed (COMMIT-ACK).
    pub(super) executed: Position,
    /// The commit point that was last sent to it.
    pub(super) told_committed: Position,
    pub(super) heard_at: Option<Instant>,
    /// The time of its last request for a part of the state. A copying member acknowledges nothing
    /// for long.
    pub(super) copied_at: Option<Instant>,
    /// NOPaxos: a position that it has not acknowledged, and since when.
    lag: Option<(Position, Instant)>,
    /// NOPaxos: the position up to which it is sent records.
    pub(super) stream_upto: Position,
    /// Whether it was told to end: it is sent no reads.
    pub(super) retires: bool,
    /// Its copy of the state, if it is copying.
    pub(super) outgoing_copy: Option<OutgoingCopy>,
}

/// The leader's state of a copy by a member.
#[derive(Clone, Debug)]
pub(super) struct OutgoingCopy {
    pub(super) attempt: u64,
    pub(super) part: Option<Part>,
    /// The newest part that was requested, except parts that continue its objects.
    pub(super) asked: u64,
    /// Early parts, which precede the next chunk.
    pub(super) early: Waiting,
}

impl Follower {
    /// NOPaxos: notes the log's end; a follower that does not acknowledge it in time is sent
    /// records.
    pub(super) fn note_lag(&mut self, now: Instant, end: Position) {
        match self.lag {
            _ if self.sender.is_none() || self.acked >= end => self.lag = None,
            Some((upto, since)) if self.acked < upto => {
                if now.since(since) >= LAG_NS {
                    self.stream_upto = self.stream_upto.max(upto);
                    self.lag = Some((end, now));
                }
            }
            Some(_) | None => self.lag = Some((end, now)),
        }
    }

    /// NOPaxos: the time at which it is sent records if it has not acknowledged.
    pub(super) fn lag_deadline(&self) -> Instant {
        self.lag.map_or(Instant::NEVER, |(_, since)| since.after(LAG_NS))
    }
}

#[cfg(test)]
mod tests {
    use concord_core::{Epoch, NodeId};
    use concord_wire::Addr;

    use super::*;

    /// A follower that does not acknowledge in time is sent the records.
    #[test]
    fn late_follower_is_sent_the_records() {
        let mut f = Follower::default();
        f.note_lag(Instant(0), Position(5));
        assert_eq!(f.lag_deadline(), Instant::NEVER, "nothing is streamed to it");
        let to = (NodeId(2), Addr::default());
        f.sender = Some(Sender::new(NodeId(1), Epoch(1), to, Position(0), 0));
        f.note_lag(Instant(10), Position(5));
        let due = Instant(10 + LAG_NS);
        f.note_lag(Instant(due.0 - 1), Position(9));
        assert_eq!((f.lag_deadline(), f.stream_upto), (due, Position(0)));
        f.acked = Position(4);
        f.note_lag(due, Position(9));
        assert_eq!((f.lag_deadline(), f.stream_upto), (due.after(LAG_NS), Position(5)));
        f.acked = Position(9);
        let later = due.after(2 * LAG_NS);
        f.note_lag(later, Position(12));
        assert_eq!(f.stream_upto, Position(5), "it has acknowledged what was waited for");
        assert_eq!(f.lag_deadline(), later.after(LAG_NS));
        f.note_lag(later, Position(9));
        assert_eq!(f.lag_deadline(), Instant::NEVER, "it has all");
    }
}
