//! Recovery: the part of a log that can be trusted after a crash.
//!
//! A group is written only after the one before is durable. So a crash leaves all groups but the
//! last as they were, and any part of the last one. An invalid place at the end, with nothing of a
//! later group after it, is therefore an incomplete last group: it is cut off. (A disk that lost
//! the end of what it had synced looks the same, and is trusted.) An invalid place before that is
//! damage: it is never cut off, since what stood there may have been acknowledged.

use alloc::vec::Vec;
use core::fmt;

use concord_wire::control::LogEnd;
use concord_wire::record::{Record, running_hash};

use crate::batch::{self, Part};
use crate::frame::{self, ALIGN, Frame, Kind, Place};
use crate::marks::{EngineKind, Identity, Marks, Origin, SegmentHdr};

/// The place in the log at which its state begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// An empty state, at the first segment.
    #[default]
    Start,
    /// The snapshot whose first part is there, or an empty state after everything before was
    /// discarded.
    At {
        /// The segment.
        segment: u64,
        /// The offset of the frame.
        offset: u64,
        /// The snapshot's number, or 0 for an empty state.
        snapshot: u64,
    },
    /// The log holds no state: the old one was discarded, and the copy of another replica's state
    /// was never completed.
    Nothing,
}

/// The beginning of an incomplete last group. The caller cuts off everything from there on before
/// it writes anything else, and removes the segment if nothing of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub segment: u64,
    /// The offset.
    pub offset: u64,
}

/// The kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A frame is invalid, and later groups exist.
    Frame,
    /// A segment is missing, and later ones exist.
    Missing,
    /// A group is missing, and later ones exist.
    Group,
    /// The frame is valid, but its contents make no sense.
    Content,
    /// A record does not continue from the one before.
    Record,
    /// A segment belongs to another directory.
    Stranger,
    /// The disk could not read the place.
    Unreadable,
}

/// The place of damage before the end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// The offset.
    pub offset: u64,
    /// The kind of damage.
    pub what: What,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { offset, .. } = self;
        match self.what {
            What::Frame => write!(f, "damaged at offset {offset}, before the end of the log"),
            What::Missing => f.write_str("missing, and later segments are there"),
            What::Group => write!(f, "something is missing before offset {offset}"),
            What::Content => write!(f, "what stands at offset {offset} makes no sense"),
            What::Record => write!(f, "a record at offset {offset} does not follow the one before"),
            What::Stranger => f.write_str("of another directory"),
            What::Unreadable => write!(f, "the disk cannot read what stands at offset {offset}"),
        }
    }
}

/// The part of a log that can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The node that owns the data, or `None` if nothing was ever written durably.
    pub node: Option<u16>,
    /// The engine that made the state, if a segment says it.
    pub engine: Option<EngineKind>,
    /// The marks that are kept beside the data.
    pub marks: Marks,
    /// The place at which the state begins.
    pub begin: Begin,
    /// The end of the log. It has no meaning with [`Begin::Nothing`].
    pub end: LogEnd,
    /// The incomplete end that is to be cut off.
    pub cut: Option<Cut>,
    /// The segments after the cut, which hold nothing durable.
    pub empty: Vec<u64>,
    /// The number of the next segment.
    pub next_segment: u64,
    /// The number of the next group.
    pub next_group: u64,
}

/// A snapshot of which some parts have been seen.
#[derive(Clone, Copy, Debug)]
struct Taking {
    snapshot: u64,
    segment: u64,
    offset: u64,
}

/// Examines every segment of a directory, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    storage: u64,
    node: Option<u16>,
    engine: Option<EngineKind>,
    first_segment: u64,
    last_segment: u64,
    /// The number of the last complete group.
    group: u64,
    /// Whether the number of the next group is unknown, because what came before is gone or
    /// damaged.
    is_adrift: bool,
    cut: Option<Cut>,
    empty: Vec<u64>,
    damage: Option<Damage>,
    /// The last place that the disk could not read.
    unreadable: Option<Cut>,
    marks: Marks,
    begin: Begin,
    /// The end of the log, or `None` until its beginning is known.
    end: Option<LogEnd>,
    /// The place at which everything before was discarded on purpose.
    reset: Option<Cut>,
    taking: Option<Taking>,
}

impl Recovery {
    /// Recovery of the directory with the number `storage`. The number is also in the names of its
    /// files, so that a damaged first frame is recognised even in a directory's only segment.
    #[must_use]
    pub fn new(storage: u64) -> Recovery {
        Recovery { storage, ..Recovery::default() }
    }

    /// Examines the segment `number`, whose contents are `bytes`.
    pub fn segment(&mut self, number: u64, bytes: &[u8]) {
        if self.last_segment == 0 {
            self.first_segment = number;
            self.is_adrift = number != 1;
            if number == 1 {
                self.end = Some(LogEnd::default());
            } else {
                self.begin = Begin::Nothing;
            }
        } else if number != self.last_segment + 1 {
            let segment = self.last_segment + 1;
            self.note(Damage { segment, offset: 0, what: What::Missing });
        }
        self.last_segment = number;
        if let Some(cut) = self.cut {
            if !self.has_valid(number, bytes, 0, self.group + 1) {
                return self.empty.push(number);
            }
            let Cut { segment, offset } = cut;
            self.note(Damage { segment, offset, what: What::Frame });
        }
        self.scan(number, bytes);
    }

    /// Notes that a place of `segment` could not be read, and is zeros in the bytes that follow. It
    /// is never taken for the incomplete end of a log: what stood there may have been acknowledged.
    pub fn unreadable(&mut self, segment: u64, offset: u64) {
        self.unreadable = Some(Cut { segment, offset });
    }

    fn scan(&mut self, number: u64, bytes: &[u8]) {
        let (mut offset, mut group_offset) = (0, 0);
        let mut group: Vec<(u64, Frame<'_>)> = Vec::new();
        while offset < bytes.len() as u64 {
            let place = Place { storage: self.storage, segment: number, offset };
            let Some(frame) = frame::parse(bytes, place) else { break };
            if core::mem::take(&mut self.is_adrift) {
                self.group = frame.group.saturating_sub(1);
            }
            if frame.group != self.group + 1 || ((offset == 0) != (frame.kind == Kind::Segment)) {
                return self.note(Damage { segment: number, offset, what: What::Group });
            }
            group.push((offset, frame));
            offset += frame.size_bytes() as u64;
            if frame.is_last {
                for (at, frame) in group.drain(..) {
                    if let Err(what) = self.take(number, at, &frame) {
                        return self.note(Damage { segment: number, offset: at, what });
                    }
                }
                (self.group, group_offset) = (self.group + 1, offset);
            }
        }
        if group_offset == bytes.len() as u64 && group_offset > 0 {
            return;
        }
        if self.has_valid(number, bytes, offset, self.group + 1) {
            return self.note(Damage { segment: number, offset, what: What::Frame });
        }
        self.cut = Some(Cut { segment: number, offset: group_offset });
    }

    /// Whether `bytes` hold a valid frame of a later group than `group`, at the offset `from` or
    /// after it.
    fn has_valid(&self, segment: u64, bytes: &[u8], from: u64, group: u64) -> bool {
        (from..bytes.len() as u64).step_by(ALIGN).any(|offset| {
            let place = Place { storage: self.storage, segment, offset };
            frame::parse(bytes, place).is_some_and(|frame| frame.group > group)
        })
    }

    /// Notes damage: nothing before it can be trusted any more, but a snapshot that begins after it
    /// can.
    fn note(&mut self, damage: Damage) {
        self.damage.get_or_insert(damage);
        (self.end, self.begin, self.taking) = (None, Begin::Nothing, None);
        (self.cut, self.reset, self.is_adrift) = (None, None, true);
        self.empty.clear();
    }

    fn take(&mut self, segment: u64, offset: u64, frame: &Frame<'_>) -> Result<(), What> {
        match frame.kind {
            Kind::Segment => {
                let hdr = SegmentHdr::parse(frame.body).ok_or(What::Content)?;
                let node = *self.node.get_or_insert(hdr.identity.node);
                // Segments of an earlier version do not name it.
                let said = hdr.identity.engine;
                let engine = said.and(self.engine).or(said);
                self.engine = self.engine.or(said);
                let identity = Identity { storage: self.storage, node, engine };
                if hdr == SegmentHdr::new(identity, segment) { Ok(()) } else { Err(What::Stranger) }
            }
            Kind::Records => self.take_records(frame.body),
            Kind::Marks => {
                self.marks = Marks::parse(frame.body).ok_or(What::Content)?;
                Ok(())
            }
            Kind::Part => {
                self.take_part(segment, offset, &Part::parse(frame.body).ok_or(What::Content)?);
                Ok(())
            }
            Kind::Reset => {
                (self.end, self.begin, self.taking) = (None, Begin::Nothing, None);
                (self.damage, self.reset) = (None, Some(Cut { segment, offset }));
                Ok(())
            }
            Kind::Committed => batch::position(frame.body).map(|_| ()).ok_or(What::Content),
            Kind::Origin => {
                let origin = Origin::parse(frame.body).ok_or(What::Content)?;
                let is_there = self.end.is_none_or(|end| end == origin.end);
                if is_there { Ok(()) } else { Err(What::Record) }
            }
            Kind::Cut => {
                let cut = batch::log_end(frame.body).ok_or(What::Content)?;
                match &mut self.end {
                    Some(end) if end.position < cut.position => Err(What::Record),
                    Some(end) => {
                        *end = cut;
                        Ok(())
                    }
                    None if cut.position == 0 => {
                        self.begin_behind_reset();
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn take_records(&mut self, mut body: &[u8]) -> Result<(), What> {
        let Some(mut end) = self.end.or_else(|| self.begin_empty(body)) else {
            // It belongs to a state whose beginning is gone.
            return Ok(());
        };
        while !body.is_empty() {
            let (bytes, behind) = Record::split_first(body).ok_or(What::Content)?;
            let record = Record::parse(bytes).map_err(|_| What::Content)?;
            let follows = Some(record.position.0) == end.position.checked_add(1)
                && running_hash(end.hash, bytes) == record.hash;
            if !follows {
                return Err(What::Record);
            }
            end = LogEnd { position: record.position.0, hash: record.hash };
            body = behind;
        }
        self.end = Some(end);
        Ok(())
    }

    /// After everything was discarded, an empty state may begin: with the very first record, or
    /// with an entry that says that the log ends before that record ([`Kind::Cut`]).
    fn begin_empty(&mut self, body: &[u8]) -> Option<LogEnd> {
        let (bytes, _) = Record::split_first(body)?;
        let is_first = Record::parse(bytes).is_ok_and(|record| record.position.0 == 1);
        if is_first { self.begin_behind_reset() } else { None }
    }

    fn begin_behind_reset(&mut self) -> Option<LogEnd> {
        let Cut { segment, offset } = self.reset?;
        self.begin = Begin::At { segment, offset, snapshot: 0 };
        self.end = Some(LogEnd::default());
        self.end
    }

    fn take_part(&mut self, segment: u64, offset: u64, part: &Part<'_>) {
        let snapshot = part.snapshot;
        if part.is_first {
            self.taking = Some(Taking { snapshot, segment, offset });
            // Records after the snapshot's position that stand before its part are written again
            // after it.
            self.end = Some(LogEnd { position: part.position, hash: part.hash });
        }
        let Some(taking) = self.taking.filter(|t| t.snapshot == snapshot) else { return };
        if part.is_last {
            let Taking { segment, offset, .. } = taking;
            self.begin = Begin::At { segment, offset, snapshot };
            self.damage = None;
        }
    }

    /// The part of the log that can be trusted.
    ///
    /// # Errors
    /// [`Damage`] if something is missing before the end.
    pub fn finish(self) -> Result<Found, Damage> {
        if let Some(damage) = self.damage {
            return Err(damage);
        }
        let begin = match self.begin {
            Begin::At { segment, offset, .. } => (segment, offset),
            Begin::Start | Begin::Nothing => (0, 0),
        };
        let unreadable = self.unreadable.filter(|at| (at.segment, at.offset) >= begin);
        if let Some(Cut { segment, offset }) = unreadable {
            return Err(Damage { segment, offset, what: What::Unreadable });
        }
        if self.first_segment > 1 && self.begin == Begin::Nothing && self.reset.is_none() {
            return Err(Damage { segment: self.first_segment - 1, offset: 0, what: What::Missing });
        }
        let is_there = self.begin != Begin::Nothing;
        let mut marks = self.marks;
        if !is_there {
            marks.held_epoch = 0;
        }
        let next_segment = match self.cut {
            Some(Cut { segment, offset: 0 }) => segment,
            Some(Cut { segment, .. }) => segment + 1,
            None => self.last_segment + 1,
        };
        Ok(Found {
            node: self.node,
            engine: self.engine,
            marks,
            begin: self.begin,
            end: self.end.filter(|_| is_there).unwrap_or_default(),
            cut: self.cut,
            empty: self.empty,
            next_segment,
            next_group: self.group + 1,
        })
    }
}
