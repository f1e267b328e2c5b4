//! Recovery: the part of a log that can be trusted after a crash.
//!
//! A group is written when the one before is durable. So a crash leaves all groups but the last as
//! they were, and of the last one any part. What is wrong at the end, with nothing of a later group
//! behind it, is that: it is cut. (A disk that lost the end of what it had synced looks the same,
//! and is trusted.) What is wrong before is damage: it is never cut, since what stood there was
//! perhaps acknowledged.

use alloc::vec::Vec;
use core::fmt;

use concord_wire::control::LogEnd;
use concord_wire::record::{Record, running_hash};

use crate::batch::{self, Part};
use crate::frame::{self, ALIGN, Frame, Kind, Place};
use crate::marks::{EngineKind, Identity, Marks, Origin, SegmentHdr};

/// Where the state begins that can be made from the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With an empty state, at the first segment.
    #[default]
    Start,
    /// With the snapshot whose first part is there, or with an empty state where all before was
    /// given up.
    At {
        /// The segment.
        segment: u64,
        /// The offset of the frame.
        offset: u64,
        /// The snapshot's number; 0 of an empty state.
        snapshot: u64,
    },
    /// Nothing is there: what was is given up, and the copy of another's state never came to its
    /// end.
    Nothing,
}

/// Where an incomplete last group begins: all from there on is to be cut, before anything else is
/// written. Where nothing of the segment is left, it is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub segment: u64,
    /// The offset.
    pub offset: u64,
}

/// What is wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A frame is not valid, and later groups are.
    Frame,
    /// A segment is not there, and later ones are.
    Missing,
    /// A group is not there, and later ones are.
    Group,
    /// The frame is valid, and what it holds makes no sense.
    Content,
    /// A record does not go on from the one before.
    Record,
    /// It is of another directory.
    Stranger,
    /// The disk could not read it.
    Unreadable,
}

/// Where a log is damaged, before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// The offset.
    pub offset: u64,
    /// What is wrong.
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

/// What can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose data it is; `None` if nothing was ever written durably.
    pub node: Option<u16>,
    /// The engine of the state, if a segment says it.
    pub engine: Option<EngineKind>,
    /// What is remembered beside the data.
    pub marks: Marks,
    /// Where the state begins.
    pub begin: Begin,
    /// Where the log ends; of no meaning where nothing is there.
    pub end: LogEnd,
    /// What is to be cut.
    pub cut: Option<Cut>,
    /// Segments behind the cut: nothing durable is in them.
    pub empty: Vec<u64>,
    /// The number of the next segment.
    pub next_segment: u64,
    /// The number of the next group.
    pub next_group: u64,
}

/// A snapshot of which some parts were seen.
#[derive(Clone, Copy, Debug)]
struct Taking {
    snapshot: u64,
    segment: u64,
    offset: u64,
}

/// Looks at every segment, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    storage: u64,
    node: Option<u16>,
    engine: Option<EngineKind>,
    first_segment: u64,
    last_segment: u64,
    /// The last complete group.
    group: u64,
    /// Which group comes next is not known: what was before is gone, or damaged.
    is_adrift: bool,
    cut: Option<Cut>,
    empty: Vec<u64>,
    damage: Option<Damage>,
    /// The last place that could not be read.
    unreadable: Option<Cut>,
    marks: Marks,
    begin: Begin,
    /// The end of the log; `None` before it is known where it begins.
    end: Option<LogEnd>,
    /// Where all that was before was given up on purpose.
    reset: Option<Cut>,
    taking: Option<Taking>,
}

impl Recovery {
    /// Of the directory of that number: it stands in the names of its files too, so that the first
    /// frame of the only one can be called damaged.
    #[must_use]
    pub fn new(storage: u64) -> Recovery {
        Recovery { storage, ..Recovery::default() }
    }

    /// Looks at the segment `number`, which holds `bytes`.
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

    /// A place of the segment `number` could not be read, and is zeros in what is looked at. It is
    /// never taken for the incomplete end of a log: what stood there was perhaps acknowledged.
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

    /// Whether a valid frame of a later group than `group` is there, at `from` or behind.
    fn has_valid(&self, segment: u64, bytes: &[u8], from: u64, group: u64) -> bool {
        (from..bytes.len() as u64).step_by(ALIGN).any(|offset| {
            let place = Place { storage: self.storage, segment, offset };
            frame::parse(bytes, place).is_some_and(|frame| frame.group > group)
        })
    }

    /// What is before can be trusted no more; a snapshot that begins behind it can.
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
                // Segments of an earlier version do not say it.
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
            // Of a state whose beginning is gone.
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

    /// Behind what was given up a state may begin that is empty: with the first record of all, or
    /// because it is said that the log ends before that ([`Kind::Cut`]).
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
            // Records behind its position that stand before it stand behind it again.
            self.end = Some(LogEnd { position: part.position, hash: part.hash });
        }
        let Some(taking) = self.taking.filter(|t| t.snapshot == snapshot) else { return };
        if part.is_last {
            let Taking { segment, offset, .. } = taking;
            self.begin = Begin::At { segment, offset, snapshot };
            self.damage = None;
        }
    }

    /// What can be trusted.
    ///
    /// # Errors
    /// [`Damage`]: something is missing before the end.
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
