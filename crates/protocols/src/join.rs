//! Joining: a replica copies the state of a member while writes go on, and is made a member when it
//! has all of it (traps T4, T5). Until then it answers nothing.
//!
//! It gets records from its feeder ([`crate::feed`]) from the copy's first position on. While a
//! chunk of objects is under way, records wait in the log: a chunk taken at position p is installed
//! exactly between the records p and p + 1. So of each record it is known whether its object is here
//! (then it is executed) or yet to come (then it is not, and the chunk will show what it did). Who
//! executes nothing has no result: those are learned at the end.

use alloc::vec::Vec;

use concord_core::{Epoch, Guard, NodeId, Now, Position, Seq};
use concord_engine::copy::{PLACE_END, next_place, place};
use concord_engine::{Engine, Progress};
use concord_wire::control::{CopyMessage, LogEnd};
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::record::Record;
use concord_wire::{Flags, Sink};

use crate::applied::Applied;
use crate::feed::{FRAGMENTS_MAX, PART_OBJECTS, PART_RESULTS, PART_TABLE, Table};
use crate::link::Receiver;
use crate::replica::{Phase, RETRY_NS, Replica};
use crate::sessions::{SAVED_BYTES_MAX, SavedSessions, Sessions};
use crate::writes::Pending;

/// How far a replica's copy of the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// What is here is of no use: it is given up when nothing is pending any more.
    Stale,
    /// Nothing is here; the client table comes first.
    Table,
    /// The objects before this place are here, as of the last record executed.
    Objects(u64),
    /// All objects are here; some results of the client table are not.
    Results,
    /// The state is that of the log.
    Whole,
}

/// The copy of the state that a replica has, or makes.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Which one; each new beginning counts it up.
    attempt: u64,
    pub stage: Stage,
    /// The feeder of this epoch streams records behind our log.
    streamed: bool,
    /// Up to where the feeder knows the log to be committed.
    pub committed: Position,
    part: Option<Assembly>,
    /// The first fragment of the last question.
    asked: u32,
}

impl Default for Copy {
    fn default() -> Copy {
        Copy {
            attempt: 0,
            stage: Stage::Whole,
            streamed: false,
            committed: Position(0),
            part: None,
            asked: 0,
        }
    }
}

impl Copy {
    /// The part that is asked for.
    fn wanted(&self) -> Option<u64> {
        match self.stage {
            Stage::Table => Some(PART_TABLE),
            Stage::Objects(from) => Some(PART_OBJECTS + from),
            Stage::Results => Some(PART_RESULTS),
            Stage::Stale | Stage::Whole => None,
        }
    }

    /// About how much of the state is here, in percent.
    pub(crate) fn percent(&self) -> u8 {
        match self.stage {
            Stage::Stale | Stage::Table => 0,
            Stage::Objects(from) => (from * 99 / PLACE_END) as u8,
            Stage::Results => 99,
            Stage::Whole => 100,
        }
    }

    /// Whether the feeder of this epoch streams records behind our log.
    pub(crate) fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether records wait in the log until a chunk is installed.
    fn holds(&self) -> bool {
        matches!(self.stage, Stage::Objects(_))
    }
}

impl<E: Engine> Replica<E> {
    /// An epoch in which this replica is to join.
    pub(crate) fn join(&mut self, now: Now, sink: &mut impl Sink) {
        self.phase = Phase::Joining;
        self.copy.streamed = false;
        self.copy.committed = Position(0);
        self.copy.part = None;
        self.uncommitted.clear();
        self.keep_joining(now, sink);
    }

    /// Asks again for what has not come.
    pub(crate) fn keep_joining(&mut self, now: Now, sink: &mut impl Sink) {
        self.next_retry = now.instant.after(RETRY_NS);
        if self.copy.stage == Stage::Stale && self.pending.is_empty() {
            self.begin_anew();
        }
        let Some(feeder) = self.feeder().map(|m| m.addr) else { return };
        let (epoch, from, attempt) = (self.epoch().0, self.node().0, self.copy.attempt);
        let is_begun = !matches!(self.copy.stage, Stage::Stale | Stage::Table);
        if is_begun && !self.copy.streamed {
            // A write that this replica ordered itself may still move the end of its log.
            if !self.pending.is_empty() {
                return;
            }
            let resume = CopyMessage::Resume { epoch, from, attempt, end: self.log.end() };
            return self.send_control(feeder, &resume, sink);
        }
        let Some(part) = self.copy.wanted() else { return };
        let index = self.copy.part.as_ref().map_or(0, first_missing);
        self.copy.asked = index;
        self.send_control(feeder, &CopyMessage::Ask { epoch, from, attempt, part, index }, sink);
    }

    /// What is here is given up.
    fn begin_anew(&mut self) {
        if self.engine.clear() == Progress::Pending {
            self.pending.push_back(Pending::Install);
        }
        self.held_epoch = 0;
        self.copy.attempt += 1;
        self.copy.stage = Stage::Table;
        self.copy.streamed = false;
        self.copy.part = None;
        self.receiver = None;
        self.sessions =
            Sessions::new(self.setup.guards).with_room_for(self.setup.limits.sessions_max);
        self.applied = Applied::default();
        self.stand_at(LogEnd::default(), Seq::NONE, 0);
        self.count.copies_begun += 1;
    }

    fn stand_at(&mut self, end: LogEnd, last_seq: Seq, last_now_ms: u64) {
        self.log.reset(end);
        self.submitted = end;
        self.executed = Position(end.position);
        self.committed = Position(0);
        self.last_seq = last_seq;
        self.last_now_ms = last_now_ms;
    }

    /// The copy is of no use: it begins anew.
    pub(crate) fn spoil_copy(&mut self) {
        self.copy.stage = Stage::Stale;
        self.copy.part = None;
        self.copy.streamed = false;
        self.receiver = None;
    }

    fn is_from_feeder(&self, epoch: Epoch, from: NodeId) -> bool {
        self.phase == Phase::Joining
            && self.is_epoch(epoch)
            && self.feeder().is_some_and(|m| m.node == from.0)
    }

    pub(crate) fn on_resumed(
        &mut self,
        now: Now,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        sink: &mut impl Sink,
    ) {
        let is_late = attempt != self.copy.attempt || self.copy.streamed;
        if !self.is_from_feeder(epoch, from) || is_late || self.copy.stage == Stage::Stale {
            return;
        }
        self.count.copies_resumed += 1;
        self.begin_stream(now, from);
        if !self.copy.holds() {
            // What was held back as a member (CRAQ).
            self.follow_log(Position(self.log.end().position), sink);
        }
        self.keep_joining(now, sink);
    }

    fn begin_stream(&mut self, now: Now, feeder: NodeId) {
        self.copy.streamed = true;
        self.receiver = Some(Receiver::new(feeder, self.copy.attempt));
        self.next_keepalive = now.instant;
    }

    /// The log is not the sender's, or too short for it: a joining replica copies anew, a member
    /// leaves.
    pub(crate) fn on_apart(&mut self, now: Now, epoch: Epoch, from: NodeId, attempt: u64) {
        match self.phase {
            Phase::Joining if self.is_from_feeder(epoch, from) && attempt == self.copy.attempt => {
                self.spoil_copy();
                self.next_retry = now.instant;
            }
            Phase::Opening | Phase::Open if self.is_epoch(epoch) => self.leave(),
            Phase::Joining | Phase::Opening | Phase::Open | Phase::Out | Phase::Left => {}
        }
    }

    pub(crate) fn on_copy_piece(
        &mut self,
        now: Now,
        epoch: Epoch,
        (attempt, part): (u64, u64),
        hdr: FragmentHdr,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        let is_wanted = self.phase == Phase::Joining
            && self.is_epoch(epoch)
            && attempt == self.copy.attempt
            && self.copy.wanted() == Some(part)
            && (self.copy.streamed || part == PART_TABLE);
        if !is_wanted {
            return;
        }
        match take_piece(&mut self.copy.part, self.copy.asked, hdr, piece) {
            Piece::Last => self.try_install(now, sink),
            Piece::LastAsked => self.keep_joining(now, sink),
            Piece::OfMany => {}
        }
    }

    /// Installs the part that has come, once the records before it have come too.
    pub(crate) fn try_install(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(part) = self.copy.part.take_if(|part| part.is_complete()) else { return };
        let position = Position(part.version());
        let installed = match self.copy.stage {
            Stage::Table => self.install_table(now, position, &part.into_bytes()),
            Stage::Objects(_) if self.log.end().position < position.0 => {
                self.copy.part = Some(part);
                return;
            }
            Stage::Objects(_) => self.install_objects(position, &part.into_bytes(), sink),
            Stage::Results => self.install_results(&part.into_bytes()),
            Stage::Stale | Stage::Whole => return,
        };
        match installed {
            Some(()) => self.keep_joining(now, sink),
            None => self.spoil_copy(),
        }
    }

    fn install_table(&mut self, now: Now, position: Position, bytes: &[u8]) -> Option<()> {
        let (hash, table) = Table::parse(bytes)?;
        let end = LogEnd { position: position.0, hash };
        self.stand_at(end, Seq::from_u64(table.last_seq), table.last_now_ms);
        self.clock.note(table.last_now_ms, now.unix_ms);
        self.sessions.restore(table.sessions);
        self.copy.stage = Stage::Objects(0);
        let feeder = self.feeder().map(|m| NodeId(m.node))?;
        self.begin_stream(now, feeder);
        Some(())
    }

    fn install_objects(
        &mut self,
        position: Position,
        chunk: &[u8],
        sink: &mut impl Sink,
    ) -> Option<()> {
        let next = next_place(chunk).ok()?;
        if let Stage::Objects(from) = self.copy.stage
            && next <= from
        {
            return None;
        }
        self.follow_log(position, sink);
        if self.submitted.position != position.0 {
            return None;
        }
        if self.engine.install(chunk).ok()? == Progress::Pending {
            self.pending.push_back(Pending::Install);
        }
        self.count.chunks_installed += 1;
        self.copy.stage = Stage::Objects(next);
        if next == PLACE_END {
            self.copy.stage = Stage::Results;
            // Trap T4: which writes the objects have seen is not known; none is newer than this.
            if self.setup.guards.on(Guard::Floor) {
                self.applied.note_all(self.last_seq, position);
            }
        }
        self.follow_log(Position(self.log.end().position), sink);
        Some(())
    }

    fn install_results(&mut self, bytes: &[u8]) -> Option<()> {
        let saved: SavedSessions = postcard::from_bytes(bytes).ok()?;
        self.sessions.learn(&saved);
        self.copy.stage = Stage::Whole;
        self.count.copies_whole += 1;
        Some(())
    }

    /// Executes the records in the log up to `position`.
    fn follow_log(&mut self, position: Position, sink: &mut impl Sink) {
        while self.submitted.position < position.0 {
            let next = Position(self.submitted.position + 1);
            let Some(bytes) = self.log.record(next).map(Vec::from) else { return };
            let Ok(record) = Record::parse(&bytes) else { return };
            self.follow(&record, sink);
        }
    }

    /// A record has come and is in the log. Whether it is to be executed now.
    pub(crate) fn joins_record(&mut self, now: Now, sink: &mut impl Sink) -> bool {
        if !self.copy.holds() {
            return true;
        }
        if self.log.is_full(&self.setup.limits) {
            self.spoil_copy();
        } else {
            self.try_install(now, sink);
        }
        false
    }

    /// Whether a record's object is yet to be copied.
    pub(crate) fn lacks_object(&self, record: &Record<'_>) -> bool {
        match self.copy.stage {
            Stage::Objects(from) if self.phase == Phase::Joining => {
                !record.flags.has(Flags::WILDCARD) && place(record.obj_id) >= from
            }
            Stage::Objects(_) | Stage::Stale | Stage::Table | Stage::Results | Stage::Whole => {
                false
            }
        }
    }

    /// Whether it may be made a member: it has all of the state, and of the log what it heard is
    /// committed.
    pub(crate) fn is_copied(&self) -> bool {
        self.copy.stage == Stage::Whole
            && self.copy.streamed
            && self.pending.is_empty()
            && self.executed >= self.copy.committed
    }
}

/// Longest part that is taken, in bytes: an object is never cut.
const PART_BYTES_MAX: usize = 1 << 30;
// Whatever is in the client table, a replica can join.
const _: () = assert!(SAVED_BYTES_MAX < PART_BYTES_MAX);

/// What a fragment of a part is to who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The part is whole.
    Last,
    /// The last one of what was asked for: it is time to ask on.
    LastAsked,
    /// One of many, or of no use.
    OfMany,
}

/// Puts a fragment to the others of its `part`, or begins another; `asked` is the first one of the
/// last question.
pub(crate) fn take_piece(
    part: &mut Option<Assembly>,
    asked: u32,
    hdr: FragmentHdr,
    piece: &[u8],
) -> Piece {
    if hdr.index >= hdr.fragments() || hdr.total_bytes as usize > PART_BYTES_MAX {
        return Piece::OfMany;
    }
    let other =
        |own: &mut Assembly| own.version() != hdr.version || own.total_bytes() != hdr.total_bytes;
    part.take_if(other);
    let own = part.get_or_insert_with(|| Assembly::new(hdr));
    own.add(&hdr, piece);
    if own.is_complete() {
        Piece::Last
    } else if hdr.index + 1 == asked.saturating_add(FRAGMENTS_MAX).min(hdr.fragments()) {
        Piece::LastAsked
    } else {
        Piece::OfMany
    }
}

pub(crate) fn first_missing(part: &Assembly) -> u32 {
    let fragments = part.total_bytes().div_ceil(concord_wire::fragment::FRAGMENT_BYTES as u32);
    (0..fragments).find(|index| !part.has(*index)).unwrap_or(0)
}
