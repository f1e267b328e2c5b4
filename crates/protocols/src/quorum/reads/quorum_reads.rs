//! Quorum reads (one of FLAIR's baselines, §4.5): a replica answers a read without the leader,
//! after asking a quorum for the ends of their logs. One question serves all reads that wait at
//! that time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, Position};

use crate::quorum::group::quorum_of;

/// The largest number of waiting reads.
const WAITING_MAX: usize = 65_536;

/// Reads that wait for a quorum's answer, and then for execution.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct QuorumReads {
    /// The number of the last question; each is new.
    round: u64,
    /// The time at which it was last sent, until a quorum has answered it.
    asked_at: Option<Instant>,
    /// By member: the end of its log, if it has answered.
    ends: Vec<Option<Position>>,
    /// Reads, each with the number of the first question after its arrival.
    asking: VecDeque<(u64, Vec<u8>)>,
    /// Reads, each with the position to execute before its answer, and the position of the
    /// configuration by which the quorum was counted.
    ready: VecDeque<(Position, Position, Vec<u8>)>,
}

impl QuorumReads {
    /// Drops all reads: their clients ask another replica.
    pub(in crate::quorum) fn forget(&mut self) {
        *self = QuorumReads { round: self.round, ..QuorumReads::default() };
    }

    /// Queues a read, as its packet. Returns whether there was room.
    pub(in crate::quorum) fn push(&mut self, packet: impl FnOnce() -> Vec<u8>) -> bool {
        let has_room = self.asking.len() + self.ready.len() < WAITING_MAX;
        if has_room {
            self.asking.push_back((self.round + 1, packet()));
        }
        has_room
    }

    /// The question to send now: a new one to `members`, if reads wait for one; the last one again,
    /// if it was unanswered for `again_ns`.
    pub(in crate::quorum) fn ask(
        &mut self,
        now: Instant,
        members: usize,
        again_ns: Duration,
    ) -> Option<u64> {
        match self.asked_at {
            Some(asked_at) if now.since(asked_at) < again_ns => return None,
            Some(_) => {}
            None if self.asking.is_empty() => return None,
            None => {
                self.round += 1;
                self.ends = alloc::vec![None; members];
            }
        }
        self.asked_at = Some(now);
        Some(self.round)
    }

    /// Handles the answer of `member` to question `round`: its log ends at `end`. A quorum of the
    /// `voters`, according to the record at `voters_at`, is enough.
    pub(in crate::quorum) fn on_end(
        &mut self,
        (member, round): (usize, u64),
        end: Position,
        (voters, voters_at): (u64, Position),
    ) {
        if round != self.round || self.asked_at.is_none() {
            return;
        }
        if let Some(known) = self.ends.get_mut(member) {
            *known = Some(known.map_or(end, |known| known.max(end)));
        }
        let votes = |member: usize| voters >> member & 1 == 1;
        let answers = self.ends.iter().enumerate().filter(|(_, end)| end.is_some());
        if answers.filter(|(member, _)| votes(*member)).count() < quorum_of(voters) {
            return;
        }
        let upto = self.ends.iter().flatten().copied().max().unwrap_or_default();
        self.asked_at = None;
        while let Some((_, packet)) = self.asking.pop_front_if(|(asked, _)| *asked <= round) {
            self.ready.push_back((upto, voters_at, packet));
        }
    }

    /// The next read that can be answered, with the log executed up to `executed`. Its quorum was
    /// counted by the newest configuration in this log, which may have been outdated. But then some
    /// answering member had a later one in its log, which by now is in this log too, at
    /// `voters_at`. Such a read waits for another question.
    pub(in crate::quorum) fn pop(
        &mut self,
        executed: Position,
        voters_at: Position,
    ) -> Option<Vec<u8>> {
        while let Some((_, counted_at, packet)) =
            self.ready.pop_front_if(|(upto, ..)| *upto <= executed)
        {
            if counted_at == voters_at {
                return Some(packet);
            }
            self.asking.push_back((self.round + 1, packet));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const OF_THREE: (u64, Position) = (0b111, Position(0));

    /// A read waits for a question that was asked after it came and for the highest end.
    #[test]
    fn read_waits_for_a_later_question_and_highest_end() {
        let mut reads = QuorumReads::default();
        let ask = |r: &mut QuorumReads, at| r.ask(Instant(at), 3, 20);
        assert_eq!(ask(&mut reads, 0), None);
        assert!(reads.push(|| vec![1]));
        assert_eq!(ask(&mut reads, 0), Some(1));
        assert!(reads.push(|| vec![2]));
        assert_eq!((ask(&mut reads, 19), ask(&mut reads, 20)), (None, Some(1)));
        reads.on_end((0, 1), Position(5), OF_THREE);
        reads.on_end((0, 1), Position(4), OF_THREE);
        assert_eq!(reads.pop(Position(9), Position(0)), None, "one alone is no quorum");
        reads.on_end((2, 1), Position(7), OF_THREE);
        assert_eq!(
            (reads.pop(Position(6), Position(0)), reads.pop(Position(7), Position(0))),
            (None, Some(vec![1]))
        );
        assert_eq!(ask(&mut reads, 21), Some(2));
        reads.on_end((1, 1), Position(3), OF_THREE);
        reads.on_end((0, 2), Position(5), OF_THREE);
        assert_eq!(reads.pop(Position(9), Position(0)), None, "of the question before");
        reads.on_end((1, 2), Position(5), OF_THREE);
        assert_eq!(reads.pop(Position(5), Position(0)), Some(vec![2]));
        reads.push(|| vec![3]);
        reads.forget();
        assert_eq!(ask(&mut reads, 50), None);
    }

    #[test]
    fn where_the_voters_are_others_by_now_it_is_asked_anew() {
        let mut reads = QuorumReads::default();
        reads.push(|| vec![1]);
        assert_eq!(reads.ask(Instant(0), 3, 20), Some(1));
        reads.on_end((2, 1), Position(6), (0b011, Position(0)));
        reads.on_end((0, 1), Position(5), (0b011, Position(0)));
        assert_eq!(reads.pop(Position(9), Position(0)), None, "member 2 does not vote");
        reads.on_end((1, 1), Position(4), (0b011, Position(0)));
        assert_eq!(reads.pop(Position(6), Position(6)), None, "the record at 6 changes them");
        assert_eq!(reads.ask(Instant(1), 3, 20), Some(2));
        reads.on_end((0, 2), Position(6), (0b001, Position(6)));
        assert_eq!(reads.pop(Position(6), Position(6)), Some(vec![1]));
    }
}
