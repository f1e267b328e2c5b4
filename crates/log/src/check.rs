//! Checks a segment while it is read, frame by frame, without holding all of it.

use crate::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Place, padded};

/// Checks the frames of a segment, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    place: Place,
}

impl Check {
    /// A checker at the beginning of the segment `segment` of the directory `storage`.
    #[must_use]
    pub fn new(storage: u64, segment: u64) -> Check {
        Check { place: Place { storage, segment, offset: 0 } }
    }

    /// The offset of the next frame in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.place.offset
    }

    /// The size in bytes of the frame that begins with this header, or `None` if it exceeds the
    /// largest frame.
    #[must_use]
    pub fn frame_bytes(header: &[u8; HEADER_BYTES]) -> Option<usize> {
        let body = frame::body_bytes(header);
        (body <= BODY_BYTES_MAX).then(|| padded(HEADER_BYTES + body))
    }

    /// Whether `bytes` are a valid frame for this place. If so, the checker moves on to the next
    /// frame.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        let is_valid =
            frame::parse_at(bytes, self.place).is_some_and(|f| f.size_bytes() == bytes.len());
        self.place.offset += if is_valid { bytes.len() as u64 } else { 0 };
        is_valid
    }
}
