//! NOPaxos: sequenced writes as they arrive from the switch, and the missing number
//! ([`crate::quorum::nopaxos::gaps`]).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, MS, Position, Seq, SwitchId, US};

/// The largest number of writes that wait for an earlier, missing one.
const EARLY_MAX: usize = 4_096;
/// The largest number of missing writes that the leader asks for at once.
pub(in crate::quorum) const LACKS_MAX: u64 = 64;
/// The time for which a number may be late before the leader asks for it.
const REORDER_NS: Duration = 500 * US;
/// The interval of its questions.
const ASK_NS: Duration = 2 * MS;
/// The time after which the replicas agree that a missing number is lost.
const LOST_NS: Duration = 8 * MS;

/// The sequence of writes from the switch.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Sequence {
    /// Writes that arrived early, by number.
    early: BTreeMap<Seq, Vec<u8>>,
    /// Numbers up to this one are given up.
    floor: Seq,
    /// Leader: a number that is missing here, although later ones exist.
    missed: Option<Missed>,
}

/// A missing number.
#[derive(Clone, Copy, Debug)]
struct Missed {
    number: Seq,
    since: Instant,
    /// The time of the next question, or of giving it up.
    ask_at: Instant,
}

/// The leader's next step for a missing number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quorum) enum Gap {
    /// Nothing now.
    None,
    /// Ask the others for this many writes.
    Ask(u16),
    /// Begin gap agreement: the write is lost.
    Lost,
}

/// The number after `last_sequenced`.
pub(in crate::quorum) fn after(last_sequenced: Seq) -> Seq {
    Seq::new(last_sequenced.switch_id, last_sequenced.counter.saturating_add(1))
}

impl Sequence {
    /// The number up to which a view of switch `switch_id` has all writes, or has given them up;
    /// `last_seq` is the last in its log.
    pub(in crate::quorum) fn last_sequenced(&self, last_seq: Seq, switch_id: u32) -> Seq {
        let session = Seq::new(SwitchId(switch_id), 0);
        last_seq.max(self.floor).max(session)
    }

    pub(in crate::quorum) fn floor(&self) -> Seq {
        self.floor
    }

    /// Sets the floor that the view's leader has sent.
    pub(in crate::quorum) fn set_floor(&mut self, floor: Seq) {
        self.floor = floor;
    }

    /// Computes the floor of a view that begins with all writes up to `last_sequenced`: it gives up
    /// the numbers that no voter has logged, up to the first write that is here.
    pub(in crate::quorum) fn draw_floor(&mut self, last_sequenced: Seq) {
        let first = self.early.keys().find(|seq| **seq > last_sequenced);
        let of_switch = first.filter(|seq| seq.switch_id == last_sequenced.switch_id);
        let below = |seq: &Seq| Seq::new(seq.switch_id, seq.counter - 1);
        self.floor = of_switch.map_or(last_sequenced, below);
    }

    /// Holds an early write, if there is room. Returns whether there was.
    pub(in crate::quorum) fn hold(&mut self, seq: Seq, packet: &[u8]) -> bool {
        let has_room = self.early.len() < EARLY_MAX;
        if has_room {
            self.early.insert(seq, packet.to_vec());
        }
        has_room
    }

    /// Whether any is held.
    pub(in crate::quorum) fn waits(&self) -> bool {
        !self.early.is_empty()
    }

    /// The held write with the lowest number.
    pub(in crate::quorum) fn first(&self) -> Option<(Seq, &[u8])> {
        self.early.first_key_value().map(|(seq, packet)| (*seq, &packet[..]))
    }

    /// Removes and returns the held write with the lowest number.
    pub(in crate::quorum) fn pop(&mut self) -> Option<Vec<u8>> {
        self.early.pop_first().map(|(_, packet)| packet)
    }

    /// The held write that will be at `position` of a log that ends at `end` with all numbers up to
    /// `last_sequenced`: within a view, positions increase with numbers.
    pub(in crate::quorum) fn at(
        &self,
        position: Position,
        end: Position,
        last_sequenced: Seq,
    ) -> Option<&[u8]> {
        let next = after(last_sequenced);
        let ahead = position.0 - end.0 - 1;
        let counter = u64::from(next.counter).saturating_add(ahead).min(u32::MAX.into());
        let number = Seq::new(next.switch_id, counter as u32);
        self.early.get(&number).map(|packet| &packet[..])
    }

    /// Leader: notes whether the number `next` is missing: later ones are here, or a follower's log
    /// is longer (`is_behind`). Returns true if it was not known.
    pub(in crate::quorum) fn note_missed(
        &mut self,
        now: Instant,
        next: Seq,
        is_behind: impl FnOnce() -> bool,
    ) -> bool {
        let later = self.early.keys().next().is_some_and(|first| *first > next);
        if !(later || is_behind()) {
            self.missed = None;
            return false;
        }
        let is_news = self.missed.is_none_or(|missed| missed.number != next);
        if is_news {
            self.missed = Some(Missed { number: next, since: now, ask_at: now.after(REORDER_NS) });
        }
        is_news
    }

    /// Notes that no number is missing.
    pub(in crate::quorum) fn miss_nothing(&mut self) {
        self.missed = None;
    }

    /// Starts the time of a missing number anew: there is no member to ask yet.
    pub(in crate::quorum) fn wait(&mut self, now: Instant) {
        if let Some(missed) = &mut self.missed {
            *missed = Missed { since: now, ask_at: now.after(ASK_NS), ..*missed };
        }
    }

    /// The time of the next step for a missing number.
    pub(in crate::quorum) fn ask_at(&self) -> Instant {
        self.missed.map_or(Instant::NEVER, |missed| missed.ask_at)
    }

    /// The step that is due now; `next` is the number that the log needs.
    pub(in crate::quorum) fn gap(&mut self, now: Instant, next: Seq) -> Gap {
        let Some(missed) = self.missed.as_mut().filter(|m| now >= m.ask_at) else {
            return Gap::None;
        };
        if now.since(missed.since) >= LOST_NS {
            return Gap::Lost;
        }
        missed.ask_at = now.after(ASK_NS);
        // Within a view, positions increase with numbers.
        let first_here = self.early.keys().next();
        let lacked =
            first_here.map_or(1, |seq| u64::from(seq.counter).saturating_sub(next.counter.into()));
        Gap::Ask(lacked.clamp(1, LACKS_MAX) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: u32 = 3;

    fn seq(counter: u32) -> Seq {
        Seq::new(SwitchId(SWITCH), counter)
    }

    /// The writes with these numbers wait.
    fn holding(numbers: &[u32]) -> Sequence {
        let mut sequence = Sequence::default();
        for number in numbers {
            assert!(sequence.hold(seq(*number), &number.to_be_bytes()));
        }
        sequence
    }

    #[test]
    fn a_view_has_what_its_log_has_or_what_it_does_without() {
        let mut s = Sequence::default();
        let of_another = Seq::new(SwitchId(SWITCH - 1), 50);
        assert_eq!(s.last_sequenced(of_another, SWITCH), seq(0));
        assert_eq!(s.last_sequenced(seq(7), SWITCH), seq(7));
        s.set_floor(seq(9));
        assert_eq!((s.last_sequenced(seq(7), SWITCH), s.floor()), (seq(9), seq(9)));
        assert_eq!(s.last_sequenced(seq(10), SWITCH), seq(10));
        assert_eq!((after(seq(9)), after(seq(u32::MAX))), (seq(10), seq(u32::MAX)));
    }

    #[test]
    fn a_floor_is_below_the_first_write_that_is_here() {
        let floor = |numbers: &[u32], last_sequenced| {
            let mut s = holding(numbers);
            s.draw_floor(last_sequenced);
            s.floor()
        };
        assert_eq!(floor(&[5, 8], seq(6)), seq(7));
        assert_eq!(floor(&[5, 8], seq(8)), seq(8), "the last one is in the log");
        assert_eq!(floor(&[], seq(8)), seq(8));
        let of_another = Seq::new(SwitchId(SWITCH - 1), 8);
        assert_eq!(floor(&[5], of_another), of_another, "it came from a later switch");
    }

    /// Writes are held in the order of their numbers while there is room.
    #[test]
    fn writes_are_held_in_order_within_bounds() {
        let mut s = holding(&[9, 5]);
        assert_eq!(s.first(), Some((seq(5), &5u32.to_be_bytes()[..])));
        assert_eq!(s.pop(), Some(5u32.to_be_bytes().to_vec()));
        assert_eq!(s.first().map(|(seq, _)| seq), Some(seq(9)));
        let many: Vec<u32> = (1..=EARLY_MAX as u32).collect();
        let mut full = holding(&many);
        assert!(!full.hold(seq(0), b""));
        full.pop();
        assert!(full.hold(seq(0), b""));
    }

    #[test]
    fn within_a_view_positions_rise_as_numbers_do() {
        let s = holding(&[21, 23]);
        let at = |position| s.at(Position(position), Position(10), seq(20)).map(<[u8]>::to_vec);
        let number = |number: u32| Some(number.to_be_bytes().to_vec());
        assert_eq!([11, 12, 13, 14].map(at), [number(21), None, number(23), None]);
    }

    #[test]
    fn a_number_is_missed_once_others_are_known_to_come_behind() {
        let mut s = holding(&[8]);
        assert!(!s.note_missed(Instant(10), seq(8), || false), "it is here");
        assert_eq!(s.ask_at(), Instant::NEVER);
        assert!(s.note_missed(Instant(10), seq(7), || false));
        assert!(!s.note_missed(Instant(11), seq(7), || false), "that is known");
        assert_eq!(s.ask_at(), Instant(10 + REORDER_NS));
        assert!(s.note_missed(Instant(12), seq(6), || false));
        assert_eq!(s.ask_at(), Instant(12 + REORDER_NS));
        assert!(s.note_missed(Instant(13), seq(9), || true), "somebody's log is longer");
        assert!(!s.note_missed(Instant(14), seq(9), || false));
        assert_eq!(s.ask_at(), Instant::NEVER, "it came");
    }

    /// What is missed is asked for and given up in the end.
    #[test]
    fn osdi_2016_missing_numbers_are_asked_then_given_up() {
        let missing = |numbers: &[u32]| {
            let mut s = holding(numbers);
            assert!(s.note_missed(Instant(0), seq(7), || true));
            s
        };
        let first_asked = |numbers| missing(numbers).gap(Instant(REORDER_NS), seq(7));
        assert_eq!(first_asked(&[]), Gap::Ask(1));
        assert_eq!(first_asked(&[10]), Gap::Ask(3));
        assert_eq!(first_asked(&[7_000]), Gap::Ask(LACKS_MAX as u16));
        let mut s = missing(&[]);
        assert_eq!(s.gap(Instant(REORDER_NS - 1), seq(7)), Gap::None, "it may be late");
        assert_eq!(s.gap(Instant(REORDER_NS), seq(7)), Gap::Ask(1));
        assert_eq!(s.gap(Instant(REORDER_NS + ASK_NS - 1), seq(7)), Gap::None);
        assert_eq!(s.gap(Instant(LOST_NS - 1), seq(7)), Gap::Ask(1));
        s.wait(Instant(LOST_NS));
        assert_eq!(s.gap(Instant(LOST_NS + ASK_NS - 1), seq(7)), Gap::None, "nobody was there");
        assert_eq!(s.gap(Instant(2 * LOST_NS - 1), seq(7)), Gap::Ask(1));
        let asked_at = s.ask_at();
        assert_eq!(s.gap(asked_at, seq(7)), Gap::Lost);
        s.miss_nothing();
        assert_eq!(s.gap(asked_at, seq(7)), Gap::None);
        s.wait(asked_at);
        assert_eq!(s.ask_at(), Instant::NEVER);
    }
}
