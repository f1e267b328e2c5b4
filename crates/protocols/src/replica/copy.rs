//! A replica's copy of the state: complete, or being made of a member's while writes go on (traps
//! T4, T5).
//!
//! The replica receives records from its donor, from the first position of the copy on. While a
//! chunk of objects is in transfer, records wait in the log: a chunk taken at position p is
//! installed exactly between the records p and p + 1. So for each record it is known whether its
//! object is here (then it is executed) or still missing (then it is not, and the chunk will
//! contain its effect). A record that is not executed has no result here: these are copied at the
//! end.

use alloc::vec::Vec;

use concord_core::{Guards, Position};
use concord_engine::copy::PLACE_END;
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::record::Record;

use crate::early::{EarlyPart, Here, asked};
use crate::parts::{
    Executable, PART_RESULTS, PART_TABLE, Piece, Reached, first_missing, take_piece,
};

/// The progress of a replica's copy of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The local state is useless: it is discarded when nothing is pending any more.
    Stale,
    /// There is no local state; the client table is copied first.
    Table,
    /// These objects are here, as of the last executed record.
    Objects(Reached),
    /// All objects are here; some results of the client table are missing.
    Results,
    /// The state is that of the log.
    Complete,
}

/// The copy.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    /// Its number, which grows with each restart.
    attempt: u64,
    stage: Stage,
    /// Whether the donor of this epoch streams the records after the end of our log.
    streamed: bool,
    /// The position up to which the donor knows the log to be committed.
    committed: Position,
    part: Option<Assembly>,
    /// The first fragment of the last question.
    asked: u32,
    /// The keys that were copied early.
    here: Here,
}

/// A question to the donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// It is to stream records from the end of the log on, to that copy.
    Resume { attempt: u64 },
    /// It is to send fragments of a part, from `index` on.
    Part { attempt: u64, part: u64, index: u32 },
}

/// A part that can be installed.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// The client table, as of this position.
    Table(Position, Vec<u8>),
    /// Objects, as of this position.
    Objects(Position, Vec<u8>),
    /// The missing results.
    Results(Vec<u8>),
}

impl Default for Copy {
    fn default() -> Copy {
        Copy {
            attempt: 0,
            stage: Stage::Complete,
            streamed: false,
            committed: Position(0),
            part: None,
            asked: 0,
            here: Here::default(),
        }
    }
}

impl Copy {
    /// The number of this copy.
    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Whether the local state is that of the log.
    pub(super) fn is_caught_up(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// Whether the local state is useless.
    pub(super) fn is_stale(&self) -> bool {
        self.stage == Stage::Stale
    }

    /// Whether the donor of this epoch streams the records after the end of our log.
    pub(super) fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether records wait in the log until a chunk is installed.
    pub(super) fn holds(&self) -> bool {
        matches!(self.stage, Stage::Objects(_))
    }

    /// The part of the state that is here, roughly, in percent.
    pub(super) fn percent(&self) -> u8 {
        match self.stage {
            Stage::Stale | Stage::Table => 0,
            Stage::Objects(reached) => (reached.from * 99 / PLACE_END) as u8,
            Stage::Results => 99,
            Stage::Complete => 100,
        }
    }

    /// Begins an epoch in which this replica is to join, possibly with another donor.
    pub(super) fn enter_epoch(&mut self) {
        self.streamed = false;
        self.committed = Position(0);
        self.part = None;
        if self.has_pieces() {
            // The rest of the object is available from that donor only.
            self.stage = Stage::Stale;
        }
    }

    /// Whether pieces of an object are here, and the rest is missing: nothing is executed before it
    /// has come.
    pub(super) fn has_pieces(&self) -> bool {
        matches!(self.stage, Stage::Objects(reached) if reached.rest.is_some())
    }

    /// Marks the local state as useless: the copy must restart.
    pub(super) fn invalidate(&mut self) {
        self.stage = Stage::Stale;
        self.part = None;
        self.streamed = false;
    }

    /// Restarts the copy without any local state.
    pub(super) fn begin_anew(&mut self) {
        self.attempt += 1;
        self.stage = Stage::Table;
        self.here = Here::default();
        self.streamed = false;
        self.part = None;
    }

    /// The number of the part that is needed next.
    pub(super) fn wanted(&self) -> Option<u64> {
        match self.stage {
            Stage::Table => Some(PART_TABLE),
            Stage::Objects(reached) => Some(reached.wanted(self.here.taken())),
            Stage::Results => Some(asked(PART_RESULTS, self.here.taken())),
            Stage::Stale | Stage::Complete => None,
        }
    }

    /// The question that is due now. A log whose end may still move, since a write that this
    /// replica ordered itself is pending, is not continued.
    pub(super) fn question(&mut self, is_pending: bool) -> Option<Question> {
        let attempt = self.attempt;
        let is_begun = !matches!(self.stage, Stage::Stale | Stage::Table);
        if is_begun && !self.streamed {
            return (!is_pending).then_some(Question::Resume { attempt });
        }
        let part = self.wanted()?;
        let index = self.part.as_ref().map_or(0, first_missing);
        self.asked = index;
        Some(Question::Part { attempt, part, index })
    }

    /// The donor says that it streams after the end of our log, for the copy `attempt`. Returns
    /// whether that was not known.
    pub(super) fn is_resumed(&self, attempt: u64) -> bool {
        attempt == self.attempt && !self.streamed && self.stage != Stage::Stale
    }

    /// Notes that records are streamed from now on.
    pub(super) fn begin_stream(&mut self) {
        self.streamed = true;
    }

    /// Notes the position up to which the donor says that the log is committed.
    pub(super) fn note_committed(&mut self, committed: Position) {
        self.committed = self.committed.max(committed);
    }

    /// Takes a fragment of a part.
    pub(super) fn take(
        &mut self,
        (attempt, part): (u64, u64),
        hdr: FragmentHdr,
        piece: &[u8],
    ) -> Piece {
        let is_wanted = attempt == self.attempt
            && self.wanted() == Some(part)
            && (self.streamed || part == PART_TABLE);
        if !is_wanted {
            return Piece::OfMany;
        }
        take_piece(&mut self.part, self.asked, hdr, piece)
    }

    /// The received part, once the records before it have arrived too: the log ends at `end`.
    pub(super) fn ready(&mut self, end: Position) -> Option<Ready> {
        let waits = self.holds();
        let is_ready =
            |part: &mut Assembly| part.is_complete() && !(waits && end.0 < part.version());
        let part = self.part.take_if(is_ready)?;
        let position = Position(part.version());
        match self.stage {
            Stage::Table => Some(Ready::Table(position, part.into_bytes())),
            Stage::Objects(_) => Some(Ready::Objects(position, part.into_bytes())),
            Stage::Results => Some(Ready::Results(part.into_bytes())),
            Stage::Stale | Stage::Complete => None,
        }
    }

    /// Notes that the client table is here.
    pub(super) fn has_table(&mut self) {
        self.stage = Stage::Objects(Reached::default());
        self.here = Here::default();
    }

    /// The objects that are here after a chunk that leads to `next`; `None` if it brings nothing,
    /// or continues pieces that are not here.
    pub(super) fn behind(&self, next: u64, continues: bool) -> Option<Reached> {
        let Stage::Objects(reached) = self.stage else { return None };
        reached.behind(next, continues)
    }

    /// Notes that these objects are here. Returns whether they are all.
    pub(super) fn has_objects(&mut self, reached: Reached) -> bool {
        if reached.is_all() {
            self.here.has_all();
        }
        self.stage = if reached.is_all() { Stage::Results } else { Stage::Objects(reached) };
        reached.is_all()
    }

    /// The objects that are here after a part of keys copied early, which leads to `next`; `None`
    /// if it may not come now.
    pub(super) fn behind_early(&self, next: u64) -> Option<Reached> {
        let Stage::Objects(reached) = self.stage else { return None };
        reached.behind_early(next).filter(|_| self.has_begun())
    }

    /// Whether some objects are here.
    pub(super) fn has_begun(&self) -> bool {
        self.stage != Stage::Objects(Reached::default())
    }

    /// Notes the keys that were copied early.
    pub(super) fn has_early(&mut self, part: &EarlyPart<'_>, reached: Reached) {
        self.here.take(part);
        self.stage = Stage::Objects(reached);
    }

    /// Notes that the results are here, and with them the whole state.
    pub(super) fn has_results(&mut self) {
        self.stage = Stage::Complete;
    }

    /// The part of a record that can be executed, by which of its objects are here.
    pub(super) fn executable(&self, record: &Record<'_>, guards: Guards) -> Executable {
        match self.stage {
            Stage::Objects(reached) => Executable::of(record, reached.from, &self.here, guards),
            Stage::Stale | Stage::Table | Stage::Results | Stage::Complete => Executable::All,
        }
    }

    /// Whether this replica, which has executed all up to `executed`, may be made a member: it has
    /// the whole state, and all of the log that it knows to be committed.
    pub(super) fn is_done(&self, executed: Position) -> bool {
        self.stage == Stage::Complete && self.streamed && executed >= self.committed
    }
}
