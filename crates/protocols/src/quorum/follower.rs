//! The leader's knowledge of each member, in its view.

use concord_core::{Duration, Instant, MS, Position};

use crate::early::Waiting;
use crate::link::Sender;
use crate::parts::Part;

/// How long a follower may lag behind before it is sent the records.
const LAG_NS: Duration = 2 * MS;

/// What the leader knows of a member, in its view.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    /// The stream of records to it, once it has said where its log ends.
    pub(super) sender: Option<Sender>,
    /// The number of the last stream to it that was begun in this view.
    pub(super) streamed: Option<u16>,
    /// PREPARE-OK: where its log ends.
    pub(super) acked: Position,
    /// COMMIT-ACK: what it has executed.
    pub(super) executed: Position,
    /// The commit point that was last sent to it.
    pub(super) told_committed: Position,
    pub(super) heard_at: Option<Instant>,
    /// When it last asked for a part of the state. Who copies acknowledges nothing for long.
    pub(super) copied_at: Option<Instant>,
    /// NOPaxos: it has not acknowledged up to there, since then.
    lag: Option<(Position, Instant)>,
    /// NOPaxos: it is sent records up to there.
    pub(super) stream_upto: Position,
    /// It was told to end: no reads are sent to it.
    pub(super) retires: bool,
    /// It copies the state.
    pub(super) outgoing_copy: Option<OutgoingCopy>,
}

/// What the leader keeps for a member that copies.
#[derive(Clone, Debug)]
pub(super) struct OutgoingCopy {
    pub(super) attempt: u64,
    pub(super) part: Option<Part>,
    /// The newest part that was asked for, but for those that go on with pieces of it.
    pub(super) asked: u64,
    /// What was copied early, and comes before the next chunk.
    pub(super) early: Waiting,
}

impl Follower {
    /// NOPaxos: the log ends at `end`; a follower that has not acknowledged in time is sent
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

    /// NOPaxos: when it is sent records, should it not have acknowledged by then.
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
