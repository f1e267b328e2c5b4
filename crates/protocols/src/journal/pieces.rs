//! The parts of a snapshot beside its chunks: objects in pieces, and keys that are copied early.

use alloc::vec::Vec;

use concord_core::Position;
use concord_engine::copy::{PLACE_EARLY, ticket_of_cursor};
use concord_log::Part;
use concord_wire::control::LogEnd;

use super::{Journal, Snapshot, part};
use crate::early::{Copied, PART_EARLY, WAITING_BYTES_MAX};
use crate::parts::{PART_OBJECTS, PART_RESULTS, PART_TABLE, cursor_of_part, number_of, rest_of};

impl Snapshot {
    /// The number of the next part, or of the one that is being made.
    pub(super) fn wanted(&self) -> u64 {
        self.rest.map_or(self.part, number_of)
    }

    /// Notes the cursor after the part that was made.
    pub(super) fn lead_to(&mut self, next: u64) {
        self.rest = (ticket_of_cursor(next) != 0).then_some(next);
        // An early part covers no place.
        if self.rest.is_none() && next != PLACE_EARLY {
            self.part = PART_OBJECTS + next;
        }
    }
}

impl Journal {
    /// Gives up the snapshot, since a part is too long to be read again.
    pub(super) fn refuse_snapshot(&mut self) {
        self.refused += 1;
        self.postpone_snapshot();
    }

    /// The number of snapshots given up because a part was too long to be read again.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Writes the early parts that waited for unfinished objects, once these are complete.
    pub(super) fn put_waiting(&mut self) {
        while self.snapshot.is_some_and(|snapshot| snapshot.rest.is_none())
            && let Some((position, bytes)) = self.early_waiting.pop_front()
        {
            self.early_waiting_bytes -= bytes.len();
            self.put_early((position, bytes));
        }
    }

    /// Whether keys are copied early for a snapshot: some of its objects were copied, and not all.
    pub(crate) fn copies_early(&self) -> bool {
        self.snapshot.is_some_and(|snapshot| {
            let is_first = snapshot.part == PART_OBJECTS
                && snapshot.rest.is_none()
                && snapshot.made_at.is_none();
            snapshot.part != PART_TABLE && snapshot.part != PART_RESULTS && !is_first
        })
    }

    /// Takes keys that were copied early. Returns whether a snapshot uses them.
    pub(crate) fn copied_early(&mut self, copied: &Copied) -> bool {
        if !self.copies_early() {
            return false;
        }
        let parts: Vec<_> = self.early.add(copied).collect();
        parts.into_iter().for_each(|part| self.put_early(part));
        self.snapshot.is_some()
    }

    /// Writes an early part, now or after the rest of unfinished objects.
    pub(super) fn put_early(&mut self, (position, bytes): (Position, Vec<u8>)) {
        let Some(snapshot) = &mut self.snapshot else { return };
        if snapshot.part == PART_RESULTS {
            // The snapshot has all objects.
            return;
        }
        if snapshot.rest.is_some() {
            self.early_waiting_bytes += bytes.len();
            self.early_waiting.push_back((position, bytes));
            if self.early_waiting_bytes > WAITING_BYTES_MAX {
                self.postpone_snapshot();
            }
            return;
        }
        if let Some(rest) = rest_of(&bytes) {
            snapshot.rest = Some(cursor_of_part(rest));
            // The chunk in progress is made again, since the rest of these keys precedes it.
            self.is_owed |= snapshot.made_at.take().is_some();
        }
        let snapshot = snapshot.number;
        let part = part(LogEnd { position: position.0, hash: 0 }, PART_EARLY, &bytes);
        if self.put(&Part { snapshot, ..part }).is_err() {
            self.refuse_snapshot();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_core::NodeId;
    use concord_log::PART_BYTES_MAX;

    use super::super::tests::{EVERY_BYTES, NOTHING, journal, parts};
    use super::*;

    /// All replicas took their snapshots at about the same position, and stood still together.
    #[test]
    fn bug_22_7_members_take_their_snapshots_at_different_positions() {
        let began = |node: u16| {
            let mut journal = journal();
            (journal.node, journal.log_bytes) = (NodeId(node), 0);
            let (mut position, mut began) = (0u64, vec![]);
            while began.len() < 8 {
                position += 4_096;
                journal.log_bytes += 4_096;
                if journal.part_wanted() == Some(PART_TABLE) {
                    began.push(position);
                    journal.begin_part(Position(1));
                    journal.end_part(NOTHING, b"table", None);
                    let batch = journal.poll(Position(1)).unwrap_or_else(|| {
                        journal.is_due = true;
                        journal.poll(Position(1)).unwrap()
                    });
                    journal.persisted(batch.number);
                }
            }
            began
        };
        let all: Vec<Vec<u64>> = (1..=5).map(began).collect();
        for (index, one) in all.iter().enumerate() {
            let mean = one[7] / 8;
            assert!((EVERY_BYTES / 4 * 3..EVERY_BYTES / 4 * 5).contains(&mean), "{mean}");
            for other in &all[index + 1..] {
                let apart = one.iter().zip(other).map(|(a, b)| a.abs_diff(*b));
                assert!(apart.clone().sum::<u64>() / 8 > EVERY_BYTES / 8, "{one:?} {other:?}");
                assert!(one[0].abs_diff(other[0]) > EVERY_BYTES / 8, "{one:?} {other:?}");
            }
        }
    }

    /// What cannot be read again is not written, and nothing that was written goes for it.
    #[test]
    fn bug_22_1_a_part_that_is_too_long_ends_its_snapshot_alone() {
        let mut journal = journal();
        assert_eq!(journal.part_wanted(), Some(PART_TABLE));
        journal.begin_part(Position(1));
        journal.end_part(NOTHING, b"table", Some(0));
        journal.begin_part(Position(1));
        journal.end_part(NOTHING, &vec![0; PART_BYTES_MAX + 1], None);
        assert_eq!((journal.refused(), journal.is_snapshotting()), (1, false));
        assert_eq!(journal.part_wanted(), None, "it is tried again later, not at once");
        journal.is_due = true;
        let batch = journal.poll(Position(1)).unwrap().what;
        assert_eq!((parts(batch.clone()), batch.ends_snapshot()), (vec![(1, PART_TABLE)], None));
        assert!(journal.kept.is_some() && !journal.is_dead);
    }

    /// A chunk that leads to `next`, with a key.
    fn chunk(next: u64) -> Vec<u8> {
        let mut chunk = next.to_be_bytes().to_vec();
        chunk.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'k']);
        chunk
    }

    /// Nothing is written between the pieces of an object, and what is copied early meanwhile comes
    /// behind them, with its own pieces.
    #[test]
    fn bug_22_1_pieces_are_not_parted_by_keys_copied_early() {
        let with_ticket = |place: u64, ticket: u64| place | ticket << 33;
        let copied = |before, next| Copied {
            before: Position(before),
            chunk: chunk(next),
            is_script: false,
        };
        let mut journal = journal();
        let make = |journal: &mut Journal, wanted: u64, next: Option<u64>| {
            assert_eq!(journal.part_wanted(), Some(wanted));
            journal.begin_part(Position(1));
            assert_eq!(journal.part_position(wanted), Some(Position(1)));
            let bytes = chunk(next.unwrap_or_default());
            journal.end_part(NOTHING, &bytes, next);
        };
        make(&mut journal, PART_TABLE, Some(0));
        make(&mut journal, PART_OBJECTS, Some(9));
        make(&mut journal, PART_OBJECTS + 9, Some(with_ticket(9, 1)));
        assert!(journal.copied_early(&copied(7, PLACE_EARLY)));
        assert!(journal.copied_early(&copied(8, with_ticket(PLACE_EARLY, 2))));
        assert!(journal.copied_early(&copied(9, PLACE_EARLY)));
        let rest = |place, ticket| number_of(with_ticket(place, ticket));
        make(&mut journal, rest(9, 1), Some(with_ticket(9, 3)));
        make(&mut journal, rest(9, 3), Some(20));
        make(&mut journal, rest(PLACE_EARLY, 2), Some(PLACE_EARLY));
        // What is being made is made anew behind the pieces of what is copied early meanwhile.
        journal.begin_part(Position(1));
        assert!(journal.copied_early(&copied(10, with_ticket(PLACE_EARLY, 4))));
        assert_eq!(journal.part_position(PART_OBJECTS + 20), None);
        make(&mut journal, rest(PLACE_EARLY, 4), Some(PLACE_EARLY));
        make(&mut journal, PART_OBJECTS + 20, Some(concord_engine::copy::PLACE_END));
        assert!(!journal.copied_early(&copied(11, PLACE_EARLY)), "all objects are there");
        make(&mut journal, PART_RESULTS, None);
        journal.is_due = true;
        let numbers: Vec<u64> =
            parts(journal.poll(Position(1)).unwrap().what).iter().map(|(_, part)| *part).collect();
        let (early, objects) = (PART_EARLY, PART_OBJECTS);
        assert_eq!(
            numbers,
            [
                [PART_TABLE, objects, objects + 9, rest(9, 1), rest(9, 3)].as_slice(),
                &[early, early, rest(PLACE_EARLY, 2), early],
                &[early, rest(PLACE_EARLY, 4), objects + 20, PART_RESULTS],
            ]
            .concat()
        );
    }
}
