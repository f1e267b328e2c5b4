//! The copy of the state that a replica has, or makes of a member's while writes go on (traps T4,
//! T5).
//!
//! It gets records from its feeder from the copy's first position on. While a chunk of objects is
//! under way, records wait in the log: a chunk taken at position p is installed exactly between the
//! records p and p + 1. So of each record it is known whether its object is here (then it is
//! executed) or yet to come (then it is not, and the chunk will show what it did). Who executes
//! nothing has no result: those are learned at the end.

use alloc::vec::Vec;

use concord_core::{Guards, Position};
use concord_engine::copy::PLACE_END;
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::record::Record;

use crate::early::{EarlyPart, Here, asked};
use crate::parts::{
    Executable, PART_RESULTS, PART_TABLE, Piece, Reached, first_missing, take_piece,
};

/// How far a replica's copy of the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What is here is of no use: it is given up when nothing is pending any more.
    Stale,
    /// Nothing is here; the client table comes first.
    Table,
    /// These objects are here, as of the last record executed.
    Objects(Reached),
    /// All objects are here; some results of the client table are not.
    Results,
    /// The state is that of the log.
    Complete,
}

/// The copy.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    /// Which one; each new beginning counts it up.
    attempt: u64,
    stage: Stage,
    /// The feeder of this epoch streams records behind our log.
    streamed: bool,
    /// Up to where the feeder knows the log to be committed.
    committed: Position,
    part: Option<Assembly>,
    /// The first fragment of the last question.
    asked: u32,
    /// What was copied early.
    here: Here,
}

/// What the feeder is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// To stream records from the log's end on, to that copy.
    Resume { attempt: u64 },
    /// For fragments of a part, from `index` on.
    Part { attempt: u64, part: u64, index: u32 },
}

/// A part that is to be installed.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// The client table, as of that position.
    Table(Position, Vec<u8>),
    /// Objects, as of that position.
    Objects(Position, Vec<u8>),
    /// The results that are not known yet.
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

    /// Whether the state is that of the log.
    pub(super) fn is_caught_up(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// Whether what is here is of no use.
    pub(super) fn is_stale(&self) -> bool {
        self.stage == Stage::Stale
    }

    /// Whether the feeder of this epoch streams records behind our log.
    pub(super) fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether records wait in the log until a chunk is installed.
    pub(super) fn holds(&self) -> bool {
        matches!(self.stage, Stage::Objects(_))
    }

    /// About how much of the state is here, in percent.
    pub(super) fn percent(&self) -> u8 {
        match self.stage {
            Stage::Stale | Stage::Table => 0,
            Stage::Objects(reached) => (reached.from * 99 / PLACE_END) as u8,
            Stage::Results => 99,
            Stage::Complete => 100,
        }
    }

    /// An epoch in which this replica is to join; another one may feed it.
    pub(super) fn enter_epoch(&mut self) {
        self.streamed = false;
        self.committed = Position(0);
        self.part = None;
        if self.has_pieces() {
            // The rest is to be had of nobody else.
            self.stage = Stage::Stale;
        }
    }

    /// Whether pieces of an object are here, and the rest is to come: nothing is executed before
    /// that.
    pub(super) fn has_pieces(&self) -> bool {
        matches!(self.stage, Stage::Objects(reached) if reached.rest.is_some())
    }

    /// What is here is of no use: it is to begin anew.
    pub(super) fn invalidate(&mut self) {
        self.stage = Stage::Stale;
        self.part = None;
        self.streamed = false;
    }

    /// What was here is given up: nothing is here.
    pub(super) fn begin_anew(&mut self) {
        self.attempt += 1;
        self.stage = Stage::Table;
        self.here = Here::default();
        self.streamed = false;
        self.part = None;
    }

    /// The part that is asked for.
    pub(super) fn wanted(&self) -> Option<u64> {
        match self.stage {
            Stage::Table => Some(PART_TABLE),
            Stage::Objects(reached) => Some(reached.wanted(self.here.taken())),
            Stage::Results => Some(asked(PART_RESULTS, self.here.taken())),
            Stage::Stale | Stage::Complete => None,
        }
    }

    /// What is to be asked now. A log whose end may still move, since something is pending that
    /// this replica ordered itself, is not gone on from.
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

    /// The feeder goes on behind our log, for the copy `attempt`; whether that is news.
    pub(super) fn is_resumed(&self, attempt: u64) -> bool {
        attempt == self.attempt && !self.streamed && self.stage != Stage::Stale
    }

    /// Records are streamed from now on.
    pub(super) fn begin_stream(&mut self) {
        self.streamed = true;
    }

    /// The feeder said up to where the log is committed.
    pub(super) fn note_committed(&mut self, committed: Position) {
        self.committed = self.committed.max(committed);
    }

    /// A fragment of a part came.
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

    /// The part that has come, once the records before it have come too: the log ends at `end`.
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

    /// The client table is here.
    pub(super) fn has_table(&mut self) {
        self.stage = Stage::Objects(Reached::default());
        self.here = Here::default();
    }

    /// Which objects are here behind a chunk that leads to `next`; `None` if it brings nothing, or
    /// goes on with pieces that are not here.
    pub(super) fn behind(&self, next: u64, continues: bool) -> Option<Reached> {
        let Stage::Objects(reached) = self.stage else { return None };
        reached.behind(next, continues)
    }

    /// These objects are here; whether that is all of them.
    pub(super) fn has_objects(&mut self, reached: Reached) -> bool {
        if reached.is_all() {
            self.here.has_all();
        }
        self.stage = if reached.is_all() { Stage::Results } else { Stage::Objects(reached) };
        reached.is_all()
    }

    /// Which objects are here behind a part of keys that were copied early, which leads to `next`;
    /// `None` if it may not come now.
    pub(super) fn behind_early(&self, next: u64) -> Option<Reached> {
        let Stage::Objects(reached) = self.stage else { return None };
        reached.behind_early(next).filter(|_| self.has_begun())
    }

    /// Whether some objects are here.
    pub(super) fn has_begun(&self) -> bool {
        self.stage != Stage::Objects(Reached::default())
    }

    /// These were copied early.
    pub(super) fn has_early(&mut self, part: &EarlyPart<'_>, reached: Reached) {
        self.here.take(part);
        self.stage = Stage::Objects(reached);
    }

    /// The results are here, and so the whole state.
    pub(super) fn has_results(&mut self) {
        self.stage = Stage::Complete;
    }

    /// What can be executed of a record, by which of its objects are here.
    pub(super) fn executable(&self, record: &Record<'_>, guards: Guards) -> Executable {
        match self.stage {
            Stage::Objects(reached) => Executable::of(record, reached.from, &self.here, guards),
            Stage::Stale | Stage::Table | Stage::Results | Stage::Complete => Executable::All,
        }
    }

    /// Whether this replica may be made a member, which has executed all up to `executed`: it has
    /// all of the state, and of the log what it heard is committed.
    pub(super) fn is_done(&self, executed: Position) -> bool {
        self.stage == Stage::Complete && self.streamed && executed >= self.committed
    }
}
