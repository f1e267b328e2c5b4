//! Entries to be written, gathered in memory.

use alloc::vec::Vec;
use core::fmt;

use concord_wire::control::LogEnd;

use concord_wire::record::RECORD_OVERHEAD_BYTES_MAX;
use concord_wire::{COMMAND_BYTES_MAX, REPLY_BYTES_MAX};

use crate::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Kind, padded};
use crate::marks::{Marks, Origin};

/// A frame of records is ended when it has as many bytes: one that is damaged names its place
/// better.
const RECORDS_BYTES: usize = 256 << 10;
/// Length of what stands before a part's bytes.
const PART_HEADER_BYTES: usize = 33;

/// Longest bytes of a part: what is read again.
pub const PART_BYTES_MAX: usize = BODY_BYTES_MAX - PART_HEADER_BYTES;
// A frame of records ends with the one that fills it.
const _: () = assert!(
    RECORDS_BYTES + RECORD_OVERHEAD_BYTES_MAX + COMMAND_BYTES_MAX + REPLY_BYTES_MAX
        < BODY_BYTES_MAX
);

/// A part that would be too long to be read again: nothing of it was put into the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Its bytes.
    pub bytes: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLong { bytes } = self;
        write!(f, "a part of {bytes} bytes, and no more than {PART_BYTES_MAX} can be read again")
    }
}

impl core::error::Error for TooLong {}

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// A part of the state, as of a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Which snapshot it is of.
    pub snapshot: u64,
    /// Which part of it.
    pub number: u64,
    /// As of which position.
    pub position: u64,
    /// The first part: the running hash at its position. The log goes on from there.
    pub hash: u64,
    /// It is the first part.
    pub is_first: bool,
    /// It is the last part.
    pub is_last: bool,
    /// What the engine, or the client table, was copied to.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Option<Part<'a>> {
        let (hdr, bytes) = body.split_first_chunk::<PART_HEADER_BYTES>()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&hdr[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Some(Part {
            snapshot: word(0),
            number: word(8),
            position: word(16),
            hash: word(24),
            is_first: hdr[32] & FIRST != 0,
            is_last: hdr[32] & LAST != 0,
            bytes,
        })
    }
}

/// What [`Batch::committed`] wrote.
pub(crate) fn position(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_be_bytes)
}

/// What [`Batch::cut`] wrote.
pub(crate) fn log_end(body: &[u8]) -> Option<LogEnd> {
    let (place, hash) = body.split_first_chunk::<8>()?;
    Some(LogEnd { position: u64::from_be_bytes(*place), hash: position(hash)? })
}

/// Entries that are to become durable together, in their order, in frames that have no place yet.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where the frame of records begins that takes more of them.
    records: Option<usize>,
    /// The snapshot that begins with it.
    begins: Option<u64>,
    /// It has the last part of that snapshot.
    ends: Option<u64>,
}

impl Batch {
    /// Bytes of memory that it has.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The snapshot that begins in it, if one does: then it is to begin a segment, so that all
    /// before can go once the snapshot is whole.
    #[must_use]
    pub fn begins_snapshot(&self) -> Option<u64> {
        self.begins
    }

    /// The snapshot that is whole with it, if one is.
    #[must_use]
    pub fn ends_snapshot(&self) -> Option<u64> {
        self.ends
    }

    /// Adds an encoded [`concord_wire::record`].
    pub fn record(&mut self, record: &[u8]) {
        let start = match self.records {
            Some(start) if self.bytes.len() - start < RECORDS_BYTES => start,
            Some(_) | None => {
                self.close();
                let start = self.bytes.len();
                self.bytes.resize(start + HEADER_BYTES, 0);
                self.records = Some(start);
                start
            }
        };
        self.bytes.extend_from_slice(record);
        let body_bytes = self.bytes.len() - start - HEADER_BYTES;
        frame::begin(Kind::Records, body_bytes, &mut self.bytes[start..]);
    }

    /// Adds what is to be remembered beside the data.
    pub fn marks(&mut self, marks: &Marks) {
        self.put(Kind::Marks, &[], &marks.to_bytes());
    }

    /// Adds a part of the state.
    ///
    /// # Errors
    /// [`TooLong`]: the batch is as it was.
    pub fn part(&mut self, part: &Part<'_>) -> Result<(), TooLong> {
        if part.bytes.len() > PART_BYTES_MAX {
            return Err(TooLong { bytes: part.bytes.len() });
        }
        let mut hdr = [0; PART_HEADER_BYTES];
        for (at, word) in [part.snapshot, part.number, part.position, part.hash].iter().enumerate()
        {
            hdr[at * 8..at * 8 + 8].copy_from_slice(&word.to_be_bytes());
        }
        hdr[32] = if part.is_first { FIRST } else { 0 } | if part.is_last { LAST } else { 0 };
        if part.is_first {
            self.begins = Some(part.snapshot);
        }
        if part.is_last {
            self.ends = Some(part.snapshot);
        }
        self.put(Kind::Part, &hdr, part.bytes);
        Ok(())
    }

    /// What was written before is given up: nothing is here.
    pub fn reset(&mut self) {
        self.put(Kind::Reset, &[], &[]);
    }

    /// The log is known to be committed up to `position`.
    pub fn committed(&mut self, position: u64) {
        self.put(Kind::Committed, &[], &position.to_be_bytes());
    }

    /// A rack begins with the state up to here.
    pub fn origin(&mut self, origin: &Origin) {
        self.put(Kind::Origin, &[], &origin.to_bytes());
    }

    /// The log ends at `end` again. Behind what was given up, and at no record: an empty state is
    /// there, and counts.
    pub fn cut(&mut self, end: LogEnd) {
        self.put(Kind::Cut, &end.position.to_be_bytes(), &end.hash.to_be_bytes());
    }

    fn put(&mut self, kind: Kind, hdr: &[u8], body: &[u8]) {
        self.close();
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_BYTES, 0);
        self.bytes.extend_from_slice(hdr);
        self.bytes.extend_from_slice(body);
        frame::begin(kind, hdr.len() + body.len(), &mut self.bytes[start..]);
        self.close();
    }

    /// Ends the last frame: the next one begins at a multiple of what frames are aligned to.
    fn close(&mut self) {
        self.records = None;
        self.bytes.resize(padded(self.bytes.len()), 0);
    }

    /// The frames, for the writer to seal.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.close();
        &mut self.bytes
    }

    /// Forgets all, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.records, self.begins, self.ends) = (None, None, None);
    }
}
