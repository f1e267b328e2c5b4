//! The members' agreement while an epoch opens (traps T2 to T5): the ends of all logs, the records
//! that the head lacks, the end that it decided on, and the members that have opened the epoch.

use alloc::vec::Vec;

use concord_core::{NodeId, Position};
use concord_wire::control::LogEnd;
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::{COMMAND_BYTES_MAX, REPLY_BYTES_MAX};

/// The largest number of fragments that one question asks for: the bits of its bitmap.
pub(super) const ASKED_MAX: u32 = u64::BITS;
/// The longest encoded record that is accepted, in bytes.
const RECORD_BYTES_MAX: usize = COMMAND_BYTES_MAX + REPLY_BYTES_MAX;

/// The known ends of the other members' logs, and the agreed end.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening {
    /// The ends of the other members' logs in this epoch, as they reported them.
    ends: Vec<(NodeId, LogEnd)>,
    /// Head: the members that have not said that they opened the epoch.
    unopened: Vec<NodeId>,
    /// The end of the agreed log, once the head said so.
    agreed: Option<LogEnd>,
    /// Whether a member waits for its disk.
    waits: bool,
    fetching: Fetching,
}

/// The fragments of the record that the head fetches.
#[derive(Clone, Debug, Default)]
struct Fetching {
    position: Position,
    record: Option<Assembly>,
    /// The last fragment of the last question.
    last_asked: u32,
}

/// A question for a record: the member, and the fragments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) of: NodeId,
    pub(super) position: Position,
    /// The first fragment, and a bitmap of it and those that follow.
    pub(super) index: u32,
    pub(super) missing: u64,
}

impl Opening {
    /// A member reports the end of its log, and whether it waits for its disk.
    pub(super) fn hear(&mut self, from: NodeId, end: LogEnd, waits: bool) {
        self.hear_waits(waits);
        match self.ends.iter_mut().find(|(node, _)| *node == from) {
            Some(known) => known.1 = end,
            None => self.ends.push((from, end)),
        }
    }

    /// Notes whether a member waits for its disk, by its own message or the head's.
    pub(super) fn hear_waits(&mut self, waits: bool) {
        self.waits |= waits;
    }

    /// Whether any member is known to wait for its disk.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waits
    }

    /// The reported ends.
    pub(super) fn ends(&self) -> &[(NodeId, LogEnd)] {
        &self.ends
    }

    /// The end that was agreed on.
    pub(super) fn agreed(&self) -> Option<LogEnd> {
        self.agreed
    }

    /// The head says that the log ends at `end`.
    pub(super) fn agree(&mut self, end: LogEnd) {
        self.agreed = Some(end);
    }

    /// Whether each of the `others` has reported the end of its log, and none is longer than `end`.
    pub(super) fn is_longest(&self, end: LogEnd, others: usize) -> bool {
        let longest = self.ends.iter().map(|(_, end)| end.position).max().unwrap_or(0);
        self.ends.len() == others && longest <= end.position
    }

    /// Head: these members have to be told that the epoch is open.
    pub(super) fn begin_telling(&mut self, others: Vec<NodeId>) {
        self.unopened = others;
    }

    /// A member has opened the epoch.
    pub(super) fn on_opened(&mut self, from: NodeId) {
        self.unopened.retain(|node| *node != from);
    }

    /// Members that may not have heard that the epoch is open.
    pub(super) fn unopened(&self) -> &[NodeId] {
        &self.unopened
    }

    /// The head's next question, if its log ends at `end`: for the next record of the longest log.
    pub(super) fn fetch(&mut self, end: Position) -> Option<Fetch> {
        let next = Position(end.0 + 1);
        let longest = self.ends.iter().max_by_key(|(_, end)| end.position).copied();
        let (of, _) = longest.filter(|(_, end)| end.position >= next.0)?;
        if self.fetching.position != next {
            self.fetching = Fetching { position: next, ..Fetching::default() };
        }
        if self.fetching.is_complete() {
            return None;
        }
        let (index, missing) = self.fetching.missing();
        self.fetching.last_asked = index + missing.ilog2();
        Some(Fetch { of, position: next, index, missing })
    }

    /// Whether a member's log continues after `end`.
    pub(super) fn lacks(&self, end: Position) -> bool {
        self.ends.iter().any(|(_, other)| other.position > end.0)
    }

    /// Takes a fragment of the record at `position`; the log ends at `end`. Returns whether it is
    /// time to go on: the record is complete, or all requested fragments have arrived.
    pub(super) fn take(
        &mut self,
        (position, end): (Position, Position),
        hdr: &FragmentHdr,
        piece: &[u8],
    ) -> bool {
        let fetching = &mut self.fetching;
        if position.0 != end.0 + 1
            || position != fetching.position
            || hdr.total_bytes as usize > RECORD_BYTES_MAX
            || hdr.index >= hdr.fragments()
        {
            return false;
        }
        fetching.take(hdr, piece);
        let last = fetching.last_asked.min(hdr.fragments() - 1);
        fetching.is_complete() || hdr.index == last
    }

    /// Whether a record was fetched.
    pub(super) fn has_fetched(&self) -> bool {
        self.fetching.is_complete()
    }

    /// The fetched record, if it is the one after `end`.
    pub(super) fn take_fetched(&mut self, end: Position) -> Option<Vec<u8>> {
        if self.fetching.position.0 != end.0 + 1 || !self.fetching.is_complete() {
            return None;
        }
        core::mem::take(&mut self.fetching).record.map(Assembly::into_bytes)
    }
}

impl Fetching {
    /// The first missing fragment, and a bitmap of it and those that follow.
    fn missing(&self) -> (u32, u64) {
        let Some(record) = &self.record else { return (0, u64::MAX) };
        let first = (0..record.fragments()).find(|index| !record.has(*index)).unwrap_or(0);
        let end = first.saturating_add(ASKED_MAX).min(record.fragments());
        let bit = |index: u32| u64::from(!record.has(index)) << (index - first);
        (first, (first..end).map(bit).sum())
    }

    /// Takes a fragment. Fragments of another record are discarded: it is not wanted any more.
    fn take(&mut self, hdr: &FragmentHdr, piece: &[u8]) {
        let other = |own: &mut Assembly| {
            own.version() != hdr.version || own.total_bytes() != hdr.total_bytes
        };
        self.record.take_if(other);
        self.record.get_or_insert_with(|| Assembly::new(*hdr)).add(hdr, piece);
    }

    fn is_complete(&self) -> bool {
        self.record.as_ref().is_some_and(Assembly::is_complete)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::fragment::FRAGMENT_BYTES;

    use super::*;

    const END: Position = Position(5);
    const NEXT: Position = Position(6);

    fn end(position: u64) -> LogEnd {
        LogEnd { position, hash: position * 10 }
    }

    /// Node 2 says that its log is as long, and node 3 that its is longer by 2.
    fn opening() -> Opening {
        let mut opening = Opening::default();
        opening.hear(NodeId(3), end(7), false);
        opening.hear(NodeId(2), end(5), false);
        opening
    }

    /// A fragment of a record that has so many.
    fn fragment(count: usize, index: u32) -> (FragmentHdr, Vec<u8>) {
        let total_bytes = (count * FRAGMENT_BYTES - 1) as u32;
        let hdr = FragmentHdr { version: 1, total_bytes, index, count: 1 };
        (hdr, vec![index as u8; hdr.range().len()])
    }

    fn take(opening: &mut Opening, (hdr, piece): &(FragmentHdr, Vec<u8>)) -> bool {
        opening.take((NEXT, END), hdr, piece)
    }

    fn asked(opening: &mut Opening) -> (u32, u64) {
        let fetch = opening.fetch(END).unwrap();
        assert_eq!((fetch.of, fetch.position), (NodeId(3), NEXT));
        (fetch.index, fetch.missing)
    }

    /// A log is the longest once all have spoken and none goes on behind it.
    #[test]
    fn longest_log_wins_once_all_have_spoken() {
        let opening = opening();
        assert!(opening.is_longest(end(7), 2) && opening.is_longest(end(8), 2));
        assert!(!opening.is_longest(end(6), 2), "one is longer");
        assert!(!opening.is_longest(end(7), 3), "one has not spoken");
        assert!(opening.lacks(Position(6)) && !opening.lacks(Position(7)));
        assert!(Opening::default().is_longest(end(0), 0));
        assert!(!Opening::default().lacks(Position(0)));
    }

    /// A members last word counts of its end and its first one of its disk.
    #[test]
    fn last_end_and_first_disk_word_count() {
        let mut opening = opening();
        assert!(!opening.is_waited_for());
        opening.hear(NodeId(3), end(9), true);
        assert_eq!(opening.ends(), [(NodeId(3), end(9)), (NodeId(2), end(5))]);
        opening.hear(NodeId(3), end(9), false);
        assert!(opening.is_waited_for());
        assert_eq!(opening.agreed(), None);
        opening.agree(end(9));
        assert_eq!(opening.agreed(), Some(end(9)));
    }

    #[test]
    fn members_are_told_until_they_have_opened() {
        let mut opening = Opening::default();
        opening.begin_telling(vec![NodeId(2), NodeId(3)]);
        opening.on_opened(NodeId(2));
        opening.on_opened(NodeId(4));
        assert_eq!(opening.unopened(), [NodeId(3)]);
    }

    /// The next record is fetched of the longest log fragment by fragment.
    #[test]
    fn next_record_is_fetched_by_fragments() {
        let mut opening = opening();
        assert!(opening.fetch(Position(7)).is_none(), "nobody has more");
        assert_eq!(asked(&mut opening), (0, u64::MAX), "nobody knows how long it is");
        let [first, second, last] = [0, 1, 2].map(|index| fragment(3, index));
        assert!(!take(&mut opening, &first));
        assert!(take(&mut opening, &last), "nothing comes behind that one");
        assert!(!opening.has_fetched());
        assert_eq!(asked(&mut opening), (1, 0b1));
        assert!(take(&mut opening, &second) && opening.has_fetched());
        assert!(opening.fetch(END).is_none(), "it is here");
        assert_eq!((opening.take_fetched(Position(4)), opening.take_fetched(NEXT)), (None, None));
        let caught_up = [first.1, second.1, last.1].concat();
        assert_eq!(opening.take_fetched(END), Some(caught_up));
        assert!(!opening.has_fetched() && opening.take_fetched(END).is_none());
        let next = opening.fetch(NEXT).unwrap();
        assert_eq!((next.position, next.index, next.missing), (Position(7), 0, u64::MAX));
    }

    #[test]
    fn a_long_record_is_asked_for_64_fragments_at_a_time() {
        let mut opening = opening();
        asked(&mut opening);
        for index in 0..3 {
            assert!(!take(&mut opening, &fragment(70, index)));
        }
        assert!(take(&mut opening, &fragment(70, 63)), "the last that was asked for");
        assert_eq!(asked(&mut opening), (3, u64::MAX ^ 1 << 60));
        assert!(!take(&mut opening, &fragment(70, 65)));
        assert!(take(&mut opening, &fragment(70, 66)));
        for index in 3..63 {
            take(&mut opening, &fragment(70, index));
        }
        assert_eq!(asked(&mut opening), (64, 0b11_1001), "of the six at the end");
    }

    #[test]
    fn what_was_not_asked_for_or_cannot_be_is_not_taken() {
        let (hdr, piece) = fragment(2, 0);
        let refuses = |at, hdr: FragmentHdr| {
            let mut opening = opening();
            asked(&mut opening);
            assert!(!opening.take(at, &hdr, &piece));
            opening.fetching.record.is_none()
        };
        assert!(!refuses((NEXT, END), hdr));
        assert!(refuses((Position(7), END), hdr));
        assert!(refuses((Position(7), NEXT), hdr), "that one was not asked for");
        assert!(refuses((NEXT, END), FragmentHdr { index: 2, ..hdr }));
        assert!(refuses((NEXT, END), FragmentHdr { total_bytes: 0, ..hdr }));
        let of = |total_bytes: usize| FragmentHdr { total_bytes: total_bytes as u32, ..hdr };
        assert!(!refuses((NEXT, END), of(RECORD_BYTES_MAX)));
        assert!(refuses((NEXT, END), of(RECORD_BYTES_MAX + 1)));
    }

    #[test]
    fn fragments_of_two_records_are_not_put_together() {
        let (hdr, piece) = fragment(3, 1);
        let version = FragmentHdr { version: 2, ..hdr };
        let total = FragmentHdr { total_bytes: hdr.total_bytes + 1, ..hdr };
        for (hdr, missing) in [(hdr, (2, 0b1)), (version, (0, 0b101)), (total, (0, 0b101))] {
            let mut opening = opening();
            asked(&mut opening);
            take(&mut opening, &fragment(3, 0));
            take(&mut opening, &(hdr, piece.clone()));
            assert_eq!(asked(&mut opening), missing);
        }
    }
}
