//! Entries to be written, gathered in memory.

use alloc::vec::Vec;
use core::fmt;

use concord_wire::control::LogEnd;

use concord_wire::record::RECORD_OVERHEAD_BYTES_MAX;
use concord_wire::{COMMAND_BYTES_MAX, REPLY_BYTES_MAX};

use crate::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Kind, padded};
use crate::marks::{Marks, Origin};

/// A frame of records is closed once it has this many bytes: the smaller the frames, the more
/// exactly damage is located.
const RECORDS_BYTES: usize = 256 << 10;
/// Length in bytes of the fields before the bytes of a part.
const PART_HEADER_BYTES: usize = 33;

/// The largest length in bytes of a part that a reader accepts.
pub const PART_BYTES_MAX: usize = BODY_BYTES_MAX - PART_HEADER_BYTES;
// A frame of records may exceed its limit by the one record that closes it.
const _: () = assert!(
    RECORDS_BYTES + RECORD_OVERHEAD_BYTES_MAX + COMMAND_BYTES_MAX + REPLY_BYTES_MAX
        < BODY_BYTES_MAX
);

/// The part is longer than a reader accepts. Nothing of it was added to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The length of the part in bytes.
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

/// A part of a snapshot, as of a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The number of its snapshot.
    pub snapshot: u64,
    /// Its number within the snapshot, from 0.
    pub number: u64,
    /// The position of the log as of which it was copied.
    pub position: u64,
    /// In the first part, the running hash at `position`. The log continues from there.
    pub hash: u64,
    /// Whether it is the first part.
    pub is_first: bool,
    /// Whether it is the last part.
    pub is_last: bool,
    /// Its contents: a piece of the copied engine or client table.
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

/// Parses the body that [`Batch::committed`] wrote.
pub(crate) fn position(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_be_bytes)
}

/// Parses the body that [`Batch::cut`] wrote.
pub(crate) fn log_end(body: &[u8]) -> Option<LogEnd> {
    let (place, hash) = body.split_first_chunk::<8>()?;
    Some(LogEnd { position: u64::from_be_bytes(*place), hash: position(hash)? })
}

/// Entries that are to become durable together, in order, in frames that have no place yet.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The offset of the frame of records that is still open, if one is.
    records: Option<usize>,
    /// The number of the snapshot whose first part is in the batch.
    begins: Option<u64>,
    /// The number of the snapshot whose last part is in the batch.
    ends: Option<u64>,
}

impl Batch {
    /// The bytes of memory that are allocated for it.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The length of its frames in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of the snapshot whose first part is in the batch, if there is one. Such a batch
    /// starts a new segment, so that all earlier segments can be removed once the snapshot is
    /// complete.
    #[must_use]
    pub fn begins_snapshot(&self) -> Option<u64> {
        self.begins
    }

    /// The number of the snapshot whose last part is in the batch, if there is one.
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

    /// Adds the marks that are kept beside the data.
    pub fn marks(&mut self, marks: &Marks) {
        self.put(Kind::Marks, &[], &marks.to_bytes());
    }

    /// Adds a part of a snapshot.
    ///
    /// # Errors
    /// [`TooLong`] if the part exceeds [`PART_BYTES_MAX`]. The batch is then unchanged.
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

    /// Discards everything that was written before: the directory holds no state from here on.
    pub fn reset(&mut self) {
        self.put(Kind::Reset, &[], &[]);
    }

    /// Notes that the log is known to be committed up to `position`.
    pub fn committed(&mut self, position: u64) {
        self.put(Kind::Committed, &[], &position.to_be_bytes());
    }

    /// Notes that a new rack begins with the state up to here.
    pub fn origin(&mut self, origin: &Origin) {
        self.put(Kind::Origin, &[], &origin.to_bytes());
    }

    /// Truncates the log to `end`. After a [`Batch::reset`], with an `end` before the first record,
    /// it says that the directory holds an empty state, which counts as a state.
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

    /// Closes the last frame, so that the next one begins at a multiple of [`frame::ALIGN`].
    fn close(&mut self) {
        self.records = None;
        self.bytes.resize(padded(self.bytes.len()), 0);
    }

    /// The frames, for [`crate::Writer::seal`].
    pub fn bytes(&mut self) -> &mut [u8] {
        self.close();
        &mut self.bytes
    }

    /// Empties the batch, and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.records, self.begins, self.ends) = (None, None, None);
    }
}
