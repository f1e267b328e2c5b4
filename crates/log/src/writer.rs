//! Places groups in segments.

use alloc::vec::Vec;

use crate::frame::{self, HEADER_BYTES, Kind, Place, padded};
use crate::marks::{Identity, SegmentHdr};

/// A segment with this many bytes or more takes no further group.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Assigns places to groups. The caller writes them there one after the other, and syncs each
/// before the next.
#[derive(Clone, Debug)]
pub struct Writer {
    identity: Identity,
    /// The number of the segment that takes groups.
    segment: u64,
    offset: u64,
    /// The number of the next group.
    group: u64,
}

impl Writer {
    /// A writer whose first segment is `segment` and whose first group is `group`; call
    /// [`Writer::begin_segment`] first.
    #[must_use]
    pub fn new(identity: Identity, segment: u64, group: u64) -> Writer {
        Writer { identity, segment: segment.saturating_sub(1), offset: 0, group }
    }

    /// The number of the segment that takes groups.
    #[must_use]
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// The identity of the directory that it writes.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The bytes of the current segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.offset
    }

    /// Whether the current segment takes no further group.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.offset >= SEGMENT_BYTES
    }

    /// Begins the next segment. `out` receives the group that it begins with.
    pub fn begin_segment(&mut self, out: &mut Vec<u8>) {
        self.segment += 1;
        self.offset = 0;
        let body = SegmentHdr::new(self.identity, self.segment).to_bytes();
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        out.extend_from_slice(&body);
        out.resize(start + padded(HEADER_BYTES + body.len()), 0);
        frame::begin(Kind::Segment, body.len(), &mut out[start..]);
        self.seal(&mut out[start..]);
    }

    /// Makes the frames of a batch a group, to be written at the end of the segment.
    pub fn seal(&mut self, frames: &mut [u8]) {
        let mut from = 0;
        while from < frames.len() {
            let end = from + padded(HEADER_BYTES + frame::body_bytes(&frames[from..]));
            let offset = self.offset + from as u64;
            let place = Place { storage: self.identity.storage, segment: self.segment, offset };
            let is_last = end >= frames.len();
            frame::seal(&mut frames[from..], place, self.group, is_last);
            from = end;
        }
        self.offset += frames.len() as u64;
        self.group += 1;
    }
}
