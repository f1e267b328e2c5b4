//! A replica's copy of its leader's state (VRR §5.2), if it makes one.

use concord_core::{Guards, Position};
use concord_wire::control::LogEnd;
use concord_wire::fragment::Assembly;
use concord_wire::record::Record;
use concord_wire::vr::LastRecord;

use crate::early::{Here, asked};
use crate::parts::{
    Executable, PART_OBJECTS, PART_RESULTS, PART_TABLE, Reached, cursor_of_part, number_of,
};

/// The number of the part that is asked for when all parts are here.
pub(in crate::quorum) const PART_NONE: u64 = PART_RESULTS + 1;

/// A copy of the state that is being made here.
#[derive(Clone, Debug)]
pub(in crate::quorum) struct Copying {
    /// Its number within this incarnation; parts of an older one are dropped.
    pub(in crate::quorum) attempt: u64,
    /// Whether the old local state was discarded.
    pub(in crate::quorum) begun: bool,
    /// The end that the log must reach before the status is normal.
    pub(in crate::quorum) target: LogEnd,
    /// The part that is needed next, when no rest of an object is missing.
    pub(in crate::quorum) wanted: u64,
    /// The cursor of the missing rest of an object of which pieces are here: it comes first, and
    /// nothing is executed before it has come.
    pub(in crate::quorum) rest: Option<u64>,
    pub(in crate::quorum) part: Option<Assembly>,
    /// The first fragment of the last question.
    pub(in crate::quorum) asked: u32,
    /// Raft: the newest configuration in the discarded log. This replica may be one of those that
    /// made it committed, so that it does not vote for a candidate whose log ends before it.
    pub(in crate::quorum) floor: LastRecord,
    /// The keys that were copied early.
    pub(in crate::quorum) here: Here,
}

impl Copying {
    /// A copy of which nothing is here yet; the log has to reach `target`.
    pub(in crate::quorum) fn begin(attempt: u64, target: LogEnd) -> Copying {
        let (wanted, floor) = (PART_TABLE, LastRecord::default());
        let here = Here::default();
        let (rest, part) = (None, None);
        Copying { attempt, begun: false, target, wanted, rest, part, asked: 0, floor, here }
    }

    /// The received part, if it can be installed: the log ends at `end`, and all up to `submitted`
    /// was given to the engine. A part of a leader that had executed less than an earlier one is
    /// dropped.
    pub(in crate::quorum) fn ready(
        &mut self,
        end: Position,
        submitted: Position,
    ) -> Option<Assembly> {
        let wanted = self.wanted;
        let is_chunk = wanted != PART_TABLE && wanted != PART_RESULTS;
        self.part.take_if(|part| wanted != PART_TABLE && part.version() < submitted.0);
        self.part.take_if(|part| part.is_complete() && !(is_chunk && part.version() > end.0))
    }

    /// The number of the part that is asked for.
    pub(in crate::quorum) fn wanted_number(&self) -> u64 {
        match self.rest {
            Some(rest) => number_of(rest),
            None if self.wanted == PART_TABLE => PART_TABLE,
            None => asked(self.wanted, self.here.taken()),
        }
    }

    /// The objects that are here so far.
    pub(in crate::quorum) fn reached(&self) -> Reached {
        Reached { from: cursor_of_part(self.wanted), rest: self.rest }
    }

    /// Notes that these objects are here.
    pub(in crate::quorum) fn has_objects(&mut self, reached: Reached) {
        (self.wanted, self.rest) = (PART_OBJECTS + reached.from, reached.rest);
    }

    /// The part of a record that can be executed, by which of its objects are here.
    pub(in crate::quorum) fn executable(&self, record: &Record<'_>, guards: Guards) -> Executable {
        if self.wanted >= PART_RESULTS {
            return Executable::All;
        }
        Executable::of(record, self.reached().from, &self.here, guards)
    }

    /// Whether pieces of an object are here, and the rest is missing: nothing is executed before it
    /// has come.
    pub(in crate::quorum) fn has_pieces(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether all parts are here, and the log, which ends at `end`, has reached its target.
    pub(in crate::quorum) fn is_done(&self, end: Position) -> bool {
        self.wanted == PART_NONE && end.0 >= self.target.position
    }
}

#[cfg(test)]
mod tests {
    use concord_wire::fragment::FragmentHdr;

    use super::*;
    use crate::parts::PART_OBJECTS;

    const TARGET: LogEnd = LogEnd { position: 9, hash: 7 };

    /// A copy that needs part `wanted` next, and has it whole or not, as of position 5.
    fn copying(wanted: u64, is_caught_up: bool) -> Copying {
        let total_bytes = if is_caught_up { 3 } else { 4_000 };
        let hdr = FragmentHdr { version: 5, total_bytes, index: 0, count: 1 };
        let mut part = Assembly::new(hdr);
        part.add(&hdr, b"abc");
        Copying { wanted, part: Some(part), ..Copying::begin(1, TARGET) }
    }

    /// A copy is done with its last part and the log of the view.
    #[test]
    fn vrr_5_2_copy_ends_with_the_last_part_and_the_log() {
        let is_done = |wanted, end| copying(wanted, true).is_done(Position(end));
        assert!(!is_done(PART_RESULTS, 9), "results may be lacking still");
        assert!(!is_done(PART_NONE, 8));
        assert!(is_done(PART_NONE, 9) && is_done(PART_NONE, 10));
    }

    /// A chunk waits for the records before it and what is older than the state is dropped.
    #[test]
    fn chunk_waits_for_earlier_records() {
        let ready = |mut copying: Copying, end, submitted| {
            let is_ready = copying.ready(Position(end), Position(submitted)).is_some();
            (is_ready, copying.part.is_some())
        };
        let chunk = || copying(PART_OBJECTS, true);
        assert_eq!(ready(chunk(), 4, 4), (false, true), "the log does not go so far");
        assert_eq!(ready(chunk(), 5, 4), (true, false));
        assert_eq!(ready(chunk(), 5, 5), (true, false));
        assert_eq!(ready(chunk(), 6, 6), (false, false), "of a leader that had executed less");
        assert_eq!(ready(copying(PART_OBJECTS, false), 5, 5), (false, true));
        // With the table the log begins; the results are those up to where their leader was.
        assert_eq!(ready(copying(PART_TABLE, true), 0, 6), (true, false));
        assert_eq!(ready(copying(PART_RESULTS, true), 4, 4), (true, false));
    }
}
